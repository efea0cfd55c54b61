"""A task's part of a write into a message store: publish the rows of one partition, each exactly once.

Columns: ``body`` (binary, or string written as UTF-8), and optionally ``key`` (string), ``fields`` (a JSON object as a
string, a map with string keys, or a struct), ``ttl_ms`` (a whole number) and ``deliver_at`` (a timestamp). A null in
``fields``, and a null of the other optional columns, means that the message has none. The columns ``seq``, ``time`` and
``publisher_seq`` of the source are ignored, so rows of one store can be written into another.

The store knows the last number of each publisher, and keeps no number twice. So each partition of an application has a
publisher of its own, and a row always gets the same number:

1. The intent has the number that comes next for each partition. Row ``i`` of the partition gets this number plus ``i``.
2. A chunk is published as one request after the partition's note names it (``progress``), so every task that may
   publish a number has the same row for it. A repeated request changes nothing.
3. The store may have forgotten the publisher, after ``publisher_ttl`` without a message. If this task noted the first
   chunk, nothing of the partition has been published: it continues under another id, with a new note. Otherwise an
   earlier try may have published rows, and only a person can find out: OutcomeUnknown.
4. If the store knows a lower number, it was put back to an earlier state: Conflict.
5. The record of the job ``sink/{application}/store`` has the token of the store that the first write began with. The
   driver compares it before each write, and tasks send it with each request. So a store that was deleted and made again
   gets nothing.

Ids are not drawn for each write, because a store remembers 100,000 publishers at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, cast

import msgspec
import pyarrow as pa
import structlog
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from holdfast.client import Client
from holdfast.client.protocol.messages import decode
from holdfast.client.protocol.options import ClientOptions, PublisherOptions
from holdfast.client.protocol.stores.administration import Definition, ask
from holdfast.client.protocol.stores.messages import request_of, store_path
from holdfast.client.stores import StoreClient
from holdfast.client.transport.clock import now_ms
from holdfast.commit.format.transaction import JobChange
from holdfast.errors import (
    Closed,
    Code,
    Conflict,
    InvalidRequest,
    OutcomeUnknown,
    PermissionDenied,
    Unavailable,
)
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.service_client import service_token, with_trusted_hosts
from holdfast.spark.sink.identity import PartitionPublisher, SentPartition, hash_of_plain
from holdfast.spark.sink.progress import Note, PartitionNotes, RowChunk, chunks_of, sent_of
from holdfast.spark.sink.record import Intent, PartitionProgress, Publishing, job_of
from holdfast.stores.values.identity import is_continued
from holdfast.values import GivenTwice, LogPosition, pairs_once
from holdfast.wire.formats import UNDECODABLE, decode_each_once
from holdfast.wire.parts import FieldValue, Message, Receipt

_COLUMNS: Final = ("body", "key", "fields", "ttl_ms", "deliver_at")
_IGNORED: Final = frozenset({"seq", "time", "publisher_seq"})
_FIELD_TYPES: Final = (BooleanType, IntegralType, StringType)


def check_message_schema(schema: StructType) -> None:
    """Raise InvalidRequest unless rows of this schema are messages."""
    kinds: Mapping[str, DataType] = {field.name: field.dataType for field in schema}
    extra = [name for name in kinds if name not in _COLUMNS and name not in _IGNORED]
    if extra:
        raise _misfit(f"columns {', '.join(extra)} would be lost")
    if "body" not in kinds:
        raise _misfit("there is no column body")
    for name, types, text in (
        ("body", (BinaryType, StringType), "binary or string"),
        ("key", (StringType,), "string"),
        ("fields", (StringType, MapType, StructType), "a JSON string, a map or a struct"),
        ("ttl_ms", (IntegralType,), "a whole number"),
        ("deliver_at", (TimestampType,), "a timestamp"),
    ):
        if name in kinds and not isinstance(kinds[name], types):
            raise _misfit(f"{name} is {text}, not {kinds[name].simpleString()}")
    match kinds.get("fields"):
        case StructType() as struct:
            values = {f"fields.{field.name}": field.dataType for field in struct}
        case MapType(keyType=StringType()) as mapped:
            values = {"a value of fields": mapped.valueType}
        case MapType():
            raise _misfit("fields is a map whose keys are not strings")
        case _:
            values = {}
    for name, kind in values.items():
        if not isinstance(kind, _FIELD_TYPES):
            raise _misfit(f"{name} is {kind.simpleString()}, not a string, a whole number or a boolean")


def _misfit(reason: str) -> InvalidRequest:
    return bad_configuration(
        f"the rows cannot be written as messages: {reason}",
        hint=f"the sink into a store takes the columns {', '.join(_COLUMNS)}; rename with select()",
    )


def messages_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
    """The message of one row after the other. Raises: InvalidRequest for a row that is not a message."""
    for batch in batches:
        names: list[str] = batch.schema.names
        none: list[object] = [None] * batch.num_rows
        as_fields = _fields_of(batch.schema.field("fields").type) if "fields" in names else lambda _: {}
        bodies, keys, fields, lifetimes = (
            cast("list[object]", batch.column(name).to_pylist()) if name in names else none
            for name in ("body", "key", "fields", "ttl_ms")
        )
        times = _milliseconds(batch.column("deliver_at")) if "deliver_at" in names else none
        for body, key, described, ttl_ms, at_ms in zip(bodies, keys, fields, lifetimes, times, strict=True):
            if body is None:
                raise InvalidRequest(
                    "a row has no body", hint='leave rows without a body out: where("body IS NOT NULL")', key=key
                )
            yield Message(
                body.encode() if isinstance(body, str) else cast("bytes", body),
                as_fields(described),
                cast("str | None", key),
                ttl_ms=_bound(ttl_ms, "ttl_ms"),
                deliver_at_ms=_bound(at_ms, "deliver_at"),
            )


def plain(message: Message) -> tuple[object, ...]:
    """What the digest of a row covers: everything but the order of its fields."""
    return message.body, sorted(message.fields.items()), message.key, message.ttl_ms, message.deliver_at_ms


def _milliseconds(times: pa.Array) -> list[object]:
    """The milliseconds since 1970 of a column of timestamps, rounded up: no message is delivered early."""
    micros = cast("list[int | None]", times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64()).to_pylist())
    return [None if each is None else -(-each // 1000) for each in micros]


def _bound(value: object, name: str) -> int:
    number = 0 if value is None else cast("int", value)
    if number < 0:
        raise InvalidRequest(f"a row has a {name} below 0", value=number)
    return number


def _fields_of(kind: pa.DataType) -> Callable[[object], dict[str, FieldValue]]:
    if pa.types.is_map(kind):
        return lambda value: _without_nulls(cast("list[tuple[str, FieldValue | None]]", value or []))
    if pa.types.is_struct(kind):
        return lambda value: _without_nulls(cast("dict[str, FieldValue | None]", value or {}).items())
    return _fields_of_text


def _without_nulls(items: Iterable[tuple[str, FieldValue | None]]) -> dict[str, FieldValue]:
    members = [(name, value) for name, value in items if value is not None]
    try:
        return pairs_once(members)
    except GivenTwice as error:
        raise InvalidRequest(f"a field of a row {error}", fields=members) from None


def _fields_of_text(value: object) -> dict[str, FieldValue]:
    if value is None:
        return {}
    try:
        return decode_each_once(cast("str", value).encode(), dict[str, FieldValue])
    except UNDECODABLE as error:
        raise InvalidRequest(
            "fields of a row are not a JSON object whose values are texts, whole numbers, true or false",
            fields=value,
            cause=error,
        ) from error


log = structlog.get_logger("holdfast.spark")

CHUNK_MESSAGES: Final = 4_000
CHUNK_BYTES: Final = 2**20
"""A chunk closes at either bound. Both are part of the protocol: two tasks must cut the same rows alike."""
MESSAGE_BYTES: Final = 64
"""What a message adds to a chunk besides its body, key and fields."""
GIVE_UP_SECONDS: Final = 60.0
ROUNDS_MAX: Final = 16

_encode: Final = msgspec.msgpack.Encoder().encode


def open_store_client(options: WriteOptions) -> StoreClient:
    """A client of the stores; its bearer token is this machine's environment's. Raises: InvalidRequest."""
    return StoreClient(options.url, token=service_token(), options=with_trusted_hosts(ClientOptions()))


def check_store(client: Client, options: WriteOptions) -> None:
    """Look at the store before anything is written into one.

    Raises: NotFound; InvalidRequest for a store that confirms nothing; Closed (``store_replaced``) for another store
    than the application has written into. A bearer token without the right to look is not refused here. Cost: two
    requests.
    """
    if options.store is None:
        return
    session = client.session
    request = request_of("GET", store_path(options.store))
    try:
        response = client.run(ask(session, request, now_ms(), session.options.give_up_after_ms))
    except PermissionDenied:
        return
    definition = decode(response, Definition)
    mode = definition.get("publisher_mode", "")
    if mode == "store_send_noconfirm":
        raise bad_configuration(
            "the store confirms no messages, so that none can be published exactly once",
            hint="set its publisher_mode to store_confirm_send",
            store=options.store,
        )
    _require_same_store(client, options, str(definition.get("token", "")))


def job_of_store(application: str) -> str:
    """The job whose record is the token of the store into which an application writes."""
    return f"{job_of(application)}/store"


def _require_same_store(client: Client, options: WriteOptions, token: str) -> None:
    """Compare the store with the one of earlier writes, and note its token if it is new.

    After a restore the store has another history: then its publishers' numbers show what it lacks.
    """
    job = job_of_store(options.application)
    try:
        stored = client.job(job)
    except InvalidRequest as error:
        if error.code is not Code.VIEW_DISABLED:
            raise
        return  # the record needs a view as well, and its error says so
    for _ in range(ROUNDS_MAX):
        known = "" if stored is None else stored.value.decode()
        if known == token:
            return
        if known and not is_continued(known, token) and not options.supersede:
            raise _another_store(options, known)
        read_version = client.version().version
        try:
            client.commit([], jobs=[JobChange(job, token.encode())], read_version=read_version)
        except Conflict:
            stored = client.job(job, at=client.version().version)
        else:
            return
    raise Unavailable("other drivers keep changing the store of this application", application=options.application)


def _another_store(options: WriteOptions, token: str) -> Closed:
    return Closed(
        "the store was deleted and made again, or restored, since this application began to write into it",
        code=Code.STORE_REPLACED,
        hint="rows that were written are not in it: write them again under another application name, a stream with a "
        'new checkpoint; or give .option("supersede", "true") for one run, to continue with the rows that come now',
        facts={"store": options.store, "application": options.application, "token": token},
    )


def publish_partition(
    client: Client, options: WriteOptions, intent: Intent, partition: int, batches: Iterable[pa.RecordBatch]
) -> SentPartition:
    """Publish the rows of one partition that are not in the store yet.

    Raises: Fenced, InvalidRequest (also when the rows are not those of an earlier try), NotFound, LimitExceeded,
    Conflict (the store was put back), OutcomeUnknown (it has forgotten the publisher), Unavailable. After a crash: what
    was published stays, and the next attempt publishes the rest.
    Cost: a request for each 4,000 rows (1 MiB), and one to note each chunk.
    """
    with open_store_client(options) as stores:
        sender = _Sender(client, stores, options, intent, partition)
        sent = sent_of(partition, _chunks(messages_of(batches)), _hash, sender.send)
        sender.notes.require_whole(sent.chunks)
        if sender.unmatched:
            log.warning("no_durable_wants_rows", store=options.store, rows=sender.unmatched, partition=partition)
        return replace(sent, publisher=sender.publisher_after(sent.transactions))


def digest_messages(partition: int, batches: Iterable[pa.RecordBatch]) -> SentPartition:
    """Read the rows of one partition and publish none: their write is done. Raises: InvalidRequest."""
    return sent_of(partition, _chunks(messages_of(batches)), _hash)


def _hash(messages: list[Message]) -> int:
    return hash_of_plain(map(plain, messages))


def _chunks(messages: Iterable[Message]) -> Iterator[RowChunk[Message]]:
    return chunks_of(messages, _size, (CHUNK_BYTES, CHUNK_MESSAGES), lambda group: _encode(list(map(plain, group))))


def _size(message: Message) -> int:
    return len(_encode(plain(message))) + MESSAGE_BYTES


def publisher_id(options: WriteOptions, publishing: Publishing, publisher: PartitionPublisher, partition: int) -> str:
    """The id under which the rows of a partition are published.

    >>> publisher_id(WriteOptions("http://h", "copy@orders"), Publishing("9f" * 8, None), PartitionPublisher(), 3)
    'spark/copy/9f9f9f9f9f9f9f9f/0/3'
    """
    application = options.application.partition("@")[0]
    return f"spark/{application}/{publishing.run}/{publisher.generation}/{partition}"


class _Sender:
    def __init__(
        self, client: Client, stores: StoreClient, options: WriteOptions, intent: Intent, partition: int
    ) -> None:
        assert options.store is not None and intent.publishing is not None, "the caller writes into a store"
        self._stores = stores
        self._store = options.store
        self._options = options
        self._publishing = intent.publishing
        self._partition = partition
        assert intent.version is not None, "a write that is done sends nothing"
        stored = client.job(job_of_store(options.application), at=LogPosition(intent.version, intent.log_id))
        self._token = "" if stored is None else stored.value.decode()
        self.notes = PartitionNotes(client, options, intent, partition)
        self._publisher: PartitionPublisher | None = None
        self.unmatched = 0

    def publisher_after(self, count: int) -> PartitionPublisher | None:
        """The publisher after this many rows; None where none were sent, or another run has ended the write."""
        if self._publisher is None:
            return None
        return PartitionPublisher(self._publisher.generation, self._publisher.next_seq + count)

    def send(self, chunk: RowChunk[Message]) -> None:
        note = self._agree(chunk, self._publisher or self._publishing.of(self._partition))
        if note.is_past(chunk.number):
            return
        try:
            receipt = self._publish(chunk)
        except Conflict as error:
            if error.code is Code.SEQUENCE_GAP:
                raise Conflict(
                    "the store lacks rows that this application published: it was put back to an earlier state, or "
                    "lost power",
                    code=error.code,
                    hint="continue under another application name, a stream with supersede=true for one run; rows that "
                    "the store lost come again only from a new checkpoint",
                    store=self._store,
                    partition=self._partition,
                    reason=error.statement(),
                ) from error
            if error.code is not Code.UNKNOWN_PUBLISHER:
                raise
            note = self._renewed(chunk, note, error)
            if note.is_past(chunk.number):
                return
            receipt = self._publish(chunk)
        self.unmatched += receipt.unmatched

    def _renewed(self, chunk: RowChunk[Message], note: Note, error: Conflict) -> Note:
        """A note with another publisher, after the store has forgotten the one of ``note``. Raises: OutcomeUnknown."""
        assert self._publisher is not None, "a note names it"
        following = PartitionPublisher(self._publisher.generation + 1)
        if note.is_new and not chunk.number:
            # Nothing was sent under this note. Another task that reads the next one uses its publisher as well.
            return self._agree(chunk, following)
        current = self.notes.read_again()
        if current is None or not (current.is_done or current.progress.publisher == following):
            raise OutcomeUnknown(
                "the store has forgotten the publisher of an earlier try, so it is not known whether it has the rows",
                code=error.code,
                hint="look for the rows in the store. If they are there, give the rest under another token; if not, "
                "continue under another application name, a stream with supersede=true for one run. A larger "
                "publisher_ttl of the cluster avoids this",
                store=self._store,
                partition=self._partition,
            ) from error
        return self._agree(chunk, following)

    def _agree(self, chunk: RowChunk[Message], publisher: PartitionPublisher) -> Note:
        count = len(chunk.rows)
        note = self.notes.agree(
            PartitionProgress(chunk.number, chunk.digest, first=chunk.first, count=count, publisher=publisher)
        )
        if isinstance(note.progress.publisher, PartitionPublisher):
            self._publisher = note.progress.publisher
        return note

    def _publish(self, chunk: RowChunk[Message]) -> Receipt:
        assert self._publisher is not None, "a note comes before"
        name = publisher_id(self._options, self._publishing, self._publisher, self._partition)
        bounds = PublisherOptions(
            batch_messages=CHUNK_MESSAGES, window_messages=CHUNK_MESSAGES, retry_duration=GIVE_UP_SECONDS
        )
        first = self._publisher.next_seq + chunk.first
        try:
            with self._stores.publisher(
                self._store, publisher_id=name, next_seq=first, store_token=self._token, options=bounds
            ) as publisher:
                return publisher.publish_batch(chunk.rows)
        except Closed as error:
            if error.code is not Code.STORE_REPLACED:
                raise
            raise _another_store(self._options, self._token) from error
        except OutcomeUnknown as error:
            raise Unavailable(
                "the service does not answer whether it has rows",
                code=Code.STORE_UNAVAILABLE,
                hint="run the write again, and it publishes what is missing",
                url=self._options.url,
                store=self._store,
                tried_seconds=GIVE_UP_SECONDS,
                last=str(error.__cause__ or error),
            ) from error
