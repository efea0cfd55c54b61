"""The record that a write keeps in the log, and the parts of a write that change it.

1. Read the record of the job ``sink/{application}``.
2. Commit an intent there, if the record has not changed. No row has been sent before.
3. Fix the rows: tasks stage them, and the driver creates the ``manifest``. After a crash before this the next run
   begins with its own rows; after it, with those of the manifest.
4. Send the transactions. After a crash the next run with this token sends the rest, with the same ids.
5. Commit done with a digest of the rows, if the record has not changed, and remove the progress of the partitions. A
   replay then does nothing, and is refused if it has other rows.

In a batch the driver does 2 before the tasks. In a stream it does 2 after them: a micro-batch without rows writes
nothing. Only the first one of a query always makes a record, which shows that the stream has begun here. With
``direct`` there is no 3, and tasks do 4, in a stream also 2. A driver whose application has moved on is Fenced at 2, 4
or 5. Two drivers with the same token help each other. Readers may see part of a write before it is done.

A write into a message store also keeps its publishers here: the intent has the number that the next message of each
partition gets, and done moves it on. Where a write was given up, or the log is another one, nothing shows which numbers
were used: the next write gets publishers with other ids.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec
import structlog

from holdfast.client import Client
from holdfast.commit.format.transaction import JobChange
from holdfast.errors import Code, Conflict, CorruptData, Fenced, InvalidRequest
from holdfast.retention.job_holds import hold_for, release_for
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.sink.identity import MicroBatch, PartitionPublisher, SentPartition, digest_text

T = TypeVar("T")
log = structlog.get_logger("holdfast.spark.sink")

RECENT_MAX: Final = 64
"""How many tokens are remembered: a batch with an older one would be written again."""
GIVEN_UP: Final = "given up"
"""The digest of a write that was given up (``give_up``). It is done: nothing more of it is sent."""


class StreamProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest micro-batch that an application has written, and the digest of its rows."""

    query: str
    number: int
    digest: str

    @property
    def micro_batch(self) -> MicroBatch:
        """Its name."""
        return MicroBatch(self.query, self.number)


class Publishing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The publishers of an application into a message store.

    Shape: ``run`` is 16 hexadecimal digits, a part of every publisher's id; ``log_id`` the log in which it was drawn;
    ``partitions`` are as they are before the write of an intent, and after one that is done.
    """

    run: str
    log_id: str | None
    partitions: tuple[PartitionPublisher, ...] = ()

    def of(self, partition: int) -> PartitionPublisher:
        """The publisher of one partition."""
        return self.partitions[partition] if partition < len(self.partitions) else PartitionPublisher()

    def after(self, sent: Sequence[SentPartition]) -> Publishing:
        """The same after these partitions were sent."""
        moved = {part.partition: part.publisher for part in sent if part.publisher is not None}
        count = max([len(self.partitions), *(partition + 1 for partition in moved)])
        partitions = tuple(moved.get(partition, self.of(partition)) for partition in range(count))
        return msgspec.structs.replace(self, partitions=partitions)


class SinkRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an application has written, or is writing: JSON, the record of the job ``sink/{application}``.

    Shape: ``token`` is 32 hexadecimal digits, ``read_version`` the intent's, ``name`` the user's text, ``recent`` the
    batches done before, newest first, at most ``RECENT_MAX``, each its token, a colon and the digest of its rows.
    ``digest`` is that of a batch that is done, ``stream`` the newest micro-batch that is. ``direct``: tasks send their
    own rows. ``micro_batch``: the one that this write is. ``publishing`` is in the record of a write into a message
    store alone. ``id_tag`` is there where the driver's token is for some keys only: the ids of the write begin with it,
    also where the token is for others later.
    """

    state: Literal["intent", "done"]
    token: str
    read_version: int
    name: str = ""
    recent: tuple[str, ...] = ()
    format: Literal[1] = 1
    digest: str | None = None
    stream: StreamProgress | None = None
    direct: bool = False
    micro_batch: MicroBatch | None = None
    publishing: Publishing | msgspec.UnsetType = msgspec.UNSET
    id_tag: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def tag(self) -> str:
        """What the ids of the write begin with."""
        return "" if self.id_tag is msgspec.UNSET else self.id_tag

    def has_done(self, token: str) -> bool:
        """Whether the write of this token is done."""
        return token in self._done()

    def has_begun(self, token: str) -> bool:
        """Whether the write of this token is under way."""
        return self.state == "intent" and self.token == token

    def digest_of(self, token: str) -> str | None:
        """The digest of the rows of a write that is done."""
        return self._done().get(token)

    def _done(self) -> dict[str, str]:
        """The digests of all writes that are known to be done, by token."""
        done: dict[str, str] = {}
        for each in self.recent:
            token, _, digest = each.partition(":")
            done[token] = digest
        if self.state == "done" and self.digest is not None:
            done[self.token] = self.digest
        if self.stream is not None:
            done[self.stream.micro_batch.token] = self.stream.digest
        return done


class PartitionProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a partition has come: JSON, the record of a job below ``sink/{application}/{token}/``, removed when done.

    Shape: ``chunk`` is the part of the partition's rows in flight, ``attempts`` the read versions that this chunk used
    up, ``digest`` that of every transaction up to the end of this chunk, or of the partition where its rows are fixed,
    ``first`` the index of the chunk's first transaction and ``count`` how many it has. ``publisher``: into a message
    store, with the number of the partition's first row.
    """

    chunk: int
    digest: str
    attempts: tuple[int, ...] = ()
    format: Literal[1] = 1
    first: int = 0
    count: int = 0
    publisher: PartitionPublisher | msgspec.UnsetType = msgspec.UNSET


def job_of(application: str) -> str:
    """The job of an application: its record is this one's."""
    return f"sink/{application}"


def job_of_write(application: str, token: str) -> str:
    """The job of a write. It has no record: those below it are the progress of its partitions."""
    return f"{job_of(application)}/{token}"


def job_of_partition(application: str, token: str, partition: int) -> str:
    """The job whose record is a partition's progress."""
    return f"{job_of_write(application, token)}/{partition:06d}"


def request_id(tag: str, application: str, token: str, partition: int, index: int, attempt: int) -> str:
    """The id of one transaction in one attempt: the same in every task that sends it.

    >>> request_id("", "orders", "9f" * 16, 3, 41, 0)
    'spark/orders/9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f/3/41/0'
    """
    return f"{tag}spark/{application}/{token}/{partition}/{index}/{attempt}"


def decode(data: bytes, job: str, kind: type[T]) -> T:
    """The record of ``job``, which is of this ``kind``. Raises: CorruptData."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = "the record of a job is not one of this version"
        raise CorruptData(message, code=Code.CORRUPT_LOG, job=job, cause=error) from error


ROUNDS_MAX: Final = 16
"""How often the record may change under a driver's hands before it gives up."""


@dataclass(frozen=True, slots=True)
class WriteId:
    """What a write is: its token, its text for people (empty for one that cannot come again), its micro-batch."""

    token: str
    name: str
    micro_batch: MicroBatch | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    """An intent in the log. ``version`` is the record's; None where the write is done already and nothing is sent.

    ``log_id`` is the log that holds it: nothing is written to another one. ``publishing``: into a message store, the
    publishers as they are before this write. ``is_new``: this run committed it, so no row has been sent.
    """

    token: str
    version: int | None
    log_id: str | None = None
    publishing: Publishing | None = None
    is_new: bool = False
    tag: str = ""
    """What the ids of its transactions begin with."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record and its version, both None where there is none, a version at which it still is the newest, and the log.

    The driver of a stream reads it when it plans a micro-batch, whose intent is committed only on this record.
    """

    record: SinkRecord | None
    version: int | None
    read_version: int
    log_id: str | None


def read_record(client: Client, application: str) -> StoredRecord:
    """The application's record. Raises: as ``Client.job``, CorruptData. Cost: two requests."""
    read_version = client.version().version
    job = job_of(application)
    try:
        stored = client.job(job, at=read_version)
    except InvalidRequest as error:
        if error.code is not Code.VIEW_DISABLED:
            raise
        raise InvalidRequest(
            "a sink keeps its record in the log and needs a service that keeps a view",
            code=Code.VIEW_DISABLED,
            hint="start the service with view.enabled=true, which is off by default for logs on S3, GCS and Azure",
        ) from error
    if stored is None:
        return StoredRecord(None, None, read_version, client.session.log_id)
    record = decode(stored.value, job, SinkRecord)
    return StoredRecord(record, stored.version, max(read_version, stored.version), client.session.log_id)


def wanted_micro_batch(micro_batch: MicroBatch) -> WriteId:
    """What a micro-batch writes."""
    return WriteId(micro_batch.token, str(micro_batch), micro_batch)


def begin(client: Client, options: WriteOptions, wanted: WriteId, planned: StoredRecord | None = None) -> Intent:
    """Commit the intent to write ``wanted``, or join the one that is there.

    With ``planned`` only on the record that the driver found. Raises: InvalidRequest when the record shows other
    progress and ``supersede`` is off; Fenced when other drivers keep changing it; what the client raises. Cost: three
    requests, two to join.
    """
    log_id = None if planned is None else planned.log_id
    for _ in range(ROUNDS_MAX):
        stored = read_record(client, options.application)
        record = stored.record
        if planned is not None and planned.log_id not in (None, client.session.log_id):
            raise InvalidRequest(
                "the service leads another log than when this write began",
                code=Code.LOG_MISMATCH,
                hint="every worker must reach the service of the driver at this url",
                application=options.application,
                log_id=client.session.log_id,
                expected=planned.log_id,
            )
        if record is not None:
            if record.has_done(wanted.token):
                return Intent(wanted.token, None)
            if record.has_begun(wanted.token):
                _require_way(record, options)
                return _intent(record, stored.read_version, client.session.log_id)
        if planned is not None and planned.version != stored.version:
            break
        if not options.supersede:
            _require_follows(record, wanted, options, client.session.log_id)
        intent = SinkRecord(
            state="intent",
            token=wanted.token,
            read_version=stored.read_version,
            name=wanted.name,
            recent=_recent(record),
            stream=None if record is None else record.stream,
            direct=options.direct,
            micro_batch=wanted.micro_batch,
            publishing=_publishing(record, options, client.session.log_id),
            id_tag=client.session.id_tag or msgspec.UNSET,
        )
        hold = hold_for(job_of(options.application))
        version = replace_record(client, options, intent, stored.read_version, hold, log_id=log_id)
        if version is not None:
            return _intent(intent, version, client.session.log_id, is_new=True)
    raise fenced(options.application, wanted.token)


def _intent(record: SinkRecord, version: int, log_id: str | None, *, is_new: bool = False) -> Intent:
    publishing = None if record.publishing is msgspec.UNSET else record.publishing
    return Intent(record.token, version, log_id, publishing, is_new, record.tag)


def _require_way(record: SinkRecord, options: WriteOptions) -> None:
    """Raise InvalidRequest where a write goes on in another way than it began: rows would be sent twice."""
    if record.direct != options.direct:
        began = str(record.direct).lower()
        raise bad_configuration(
            f"this write was begun with direct={began}",
            hint=f'give .option("direct", "{began}") until it is done',
            application=options.application,
            unfinished=record.name,
        )


def _publishing(record: SinkRecord | None, options: WriteOptions, log_id: str | None) -> Publishing | msgspec.UnsetType:
    """The publishers of the write that begins after this record.

    A log that was restored from a copy may lack writes whose numbers a store has: they would pass for duplicates.
    """
    if options.store is None:
        return msgspec.UNSET
    publishing = None if record is None else record.publishing
    is_whole = record is not None and record.state == "done" and record.digest_of(record.token) != GIVEN_UP
    if not is_whole or not isinstance(publishing, Publishing) or publishing.log_id != log_id:
        return Publishing(secrets.token_hex(8), log_id)
    return publishing


def _recent(record: SinkRecord | None) -> tuple[str, ...]:
    """The batches that are done, newest first. Writes that were given up and micro-batches are not among them."""
    if record is None:
        return ()
    stream = record.stream
    if record.state != "done" or (stream is not None and record.token == stream.micro_batch.token):
        return record.recent
    return (f"{record.token}:{record.digest}", *record.recent)[:RECENT_MAX]


def _require_follows(record: SinkRecord | None, wanted: WriteId, options: WriteOptions, log_id: str | None) -> None:
    """Raise unless a write may come after what the record shows."""
    micro_batch = wanted.micro_batch
    if record is None:
        if micro_batch is not None and micro_batch.number > 0:
            raise InvalidRequest(
                "this stream has written before, and the log at this service has no record of its application",
                code=Code.LOG_MISMATCH,
                hint="the log was replaced: begin with a new checkpoint, so that all of it is written. If the "
                'application was renamed, give .option("supersede", "true") for this one run',
                application=options.application,
                log_id=log_id,
                offered=wanted.name,
            )
        return
    hint = 'to continue anyway, give .option("supersede", "true") for this one run'
    if record.state == "intent" and record.name:
        raise bad_configuration(
            "this application has begun another write and not finished it",
            hint=f"run that one again, it sends only what is missing; {hint}",
            application=options.application,
            unfinished=record.name,
        )
    if micro_batch is None:
        return
    stream = record.stream
    if stream is not None and not (stream.query == micro_batch.query and stream.number < micro_batch.number):
        raise bad_configuration(
            "this application has written more than the checkpoint of this stream knows of",
            hint="the checkpoint was deleted or put back, or belongs to another query: restore it, or use another "
            f"application name; {hint}",
            application=options.application,
            written=str(stream.micro_batch),
            offered=wanted.name,
        )


def finish(client: Client, options: WriteOptions, wanted: WriteId, sent: Sequence[SentPartition]) -> None:
    """Commit that ``wanted`` is written, and remove the progress of its tasks. Repeating it changes nothing.

    ``sent`` has an entry for each partition. A micro-batch without rows has no intent: it writes nothing, unless the
    record does not name its query yet. Raises: Fenced when the application has moved on; InvalidRequest when the write
    was done with other rows, or an earlier try had others; what the client raises; for a micro-batch without rows as
    ``begin``. Cost: four requests, two without rows.
    """
    job = job_of(options.application)
    over = release_for(job), JobChange(job_of_write(options.application, wanted.token), None)
    digest = digest_text(sent)
    for _ in range(ROUNDS_MAX):
        stored = read_record(client, options.application)
        record = stored.record
        if record is not None and record.has_done(wanted.token):
            _require_same_rows(record, wanted, options, digest, are_read=all(part.is_read for part in sent))
            return
        if record is not None and record.token == wanted.token:
            _require_notes_fit(client, options, wanted, sent, stored.read_version)
        elif wanted.micro_batch is None or not has_no_rows(sent):
            break
        else:
            if not options.supersede:
                _require_follows(record, wanted, options, client.session.log_id)
            if record is not None and record.stream is not None and record.stream.query == wanted.micro_batch.query:
                return
            publishing = _publishing(record, options, client.session.log_id)
            record = SinkRecord(
                "intent", wanted.token, stored.read_version, wanted.name, recent=_recent(record), publishing=publishing
            )
        done = _done(record, wanted, digest, sent)
        if replace_record(client, options, done, stored.read_version, *over) is not None:
            return
    raise fenced(options.application, wanted.token)


def has_no_rows(sent: Sequence[SentPartition]) -> bool:
    """Whether tasks have read all partitions of a write and found nothing."""
    return all(part.is_read and not part.transactions for part in sent)


def _done(record: SinkRecord, wanted: WriteId, digest: str, sent: Sequence[SentPartition]) -> SinkRecord:
    """The intent's record once its write is done."""
    if isinstance(record.publishing, Publishing):
        record = msgspec.structs.replace(record, publishing=record.publishing.after(sent))
    if wanted.micro_batch is None:
        return msgspec.structs.replace(record, state="done", name=wanted.name, digest=digest)
    stream = StreamProgress(wanted.micro_batch.query, wanted.micro_batch.number, digest)
    return msgspec.structs.replace(record, state="done", name=wanted.name, stream=stream)


def _require_same_rows(
    record: SinkRecord, wanted: WriteId, options: WriteOptions, digest: str, *, are_read: bool
) -> None:
    """Raise unless a write that is done comes again with the rows that it had."""
    written = record.digest_of(wanted.token)
    if written == GIVEN_UP:
        _require_no_batch(wanted, options)
        return
    if written == digest or not are_read or (options.supersede and wanted.micro_batch is not None):
        return
    if wanted.micro_batch is None:
        hint = (
            "the write of this token is complete. If its rows differ each time they are computed, nothing is missing; "
            "if these are other rows, none of them is in the log: give them a token of their own"
        )
    else:
        hint = (
            "nothing of this try is in the log: restore the checkpoint that belongs to it. If the rows have values "
            'that are new each time, as from uuid(), give .option("supersede", "true") for this one run, and what was '
            "written stays"
        )
    raise InvalidRequest(
        "this token was written before, with other rows",
        code=Code.REQUEST_ID_REUSED,
        hint=hint,
        application=options.application,
        token=wanted.name,
        written=written,
        offered=digest,
    )


def _require_no_batch(wanted: WriteId, options: WriteOptions) -> None:
    """Raise InvalidRequest for a batch that was given up. A stream goes on after its micro-batch."""
    if wanted.micro_batch is None:
        raise InvalidRequest(
            "this write was given up: nothing more of it is sent",
            code=Code.REQUEST_ID_REUSED,
            hint="write the rows that are missing under another token",
            application=options.application,
            token=wanted.name,
        )
    log.warning("micro_batch_given_up", application=options.application, micro_batch=wanted.name)


def has_notes(client: Client, application: str, token: str) -> bool:
    """Whether a row of this write may have been sent. Cost: two requests."""
    prefix = job_of_write(application, token) + "/"
    return bool(client.jobs(prefix, limit=1, at=client.version().version).items)


def _require_notes_fit(
    client: Client, options: WriteOptions, wanted: WriteId, sent: Sequence[SentPartition], read_version: int
) -> None:
    """Raise if an earlier try has begun a partition, or a chunk of one, that this write does not have.

    No task of this one saw such a note.
    """
    chunks = {part.partition: part.chunks for part in sent}
    for partition, progress, _ in notes_of(client, options.application, wanted.token, read_version):
        if partition not in chunks:
            raise InvalidRequest(
                "an earlier try of this write had more partitions, and what they sent may be there twice",
                code=Code.REQUEST_ID_REUSED,
                hint="a write that is tried again must get the same rows in the same order: repartition and sort them, "
                "or write from a table that keeps them; look for rows that are there twice; a stream continues from "
                "its checkpoint under another application name with supersede=true, which sends this micro-batch once "
                "more",
                application=options.application,
                partitions=len(sent),
            )
        if progress.chunk >= chunks[partition]:
            raise other_rows(partition, chunks[partition])


def notes_of(
    client: Client, application: str, token: str, read_version: int
) -> Iterator[tuple[int, PartitionProgress, int]]:
    """The partitions of a write that were begun: the number of each, its progress, and the version of its note."""
    prefix = job_of_write(application, token) + "/"
    after = None
    while True:
        page = client.jobs(prefix, after=after, at=read_version)
        for note in page.items:
            yield int(note.name.rpartition("/")[2]), decode(note.value, note.name, PartitionProgress), note.version
        if not page.more:
            return
        after = page.items[-1].name


def other_rows(partition: int, chunk: int) -> InvalidRequest:
    """The error for a partition whose rows are not those of an earlier try of the same write."""
    return InvalidRequest(
        "rows are not those that an earlier try of this write sent",
        code=Code.REQUEST_ID_REUSED,
        hint="a write that is tried again must get the same rows in the same order: sort them, or write from a "
        "table that keeps them",
        partition=partition,
        chunk=chunk,
    )


def replace_record(
    client: Client,
    options: WriteOptions,
    record: SinkRecord,
    read_version: int,
    *also: JobChange,
    log_id: str | None = None,
) -> int | None:
    """Write the record if it has not changed after ``read_version``: the version, or None when it has."""
    changes = [JobChange(job_of(options.application), msgspec.json.encode(record)), *also]
    try:
        receipt = client.commit([], jobs=changes, read_version=read_version, log_id=log_id)
    except Conflict:
        return None
    return receipt.version


def fenced(application: str, token: str) -> Fenced:
    """The error for a driver whose application has moved on."""
    return Fenced(
        "another run of this application has moved on",
        code=Code.DEPOSED,
        hint="one writer at a time: stop the other, or give this one an application of its own",
        application=application,
        token=token,
    )
