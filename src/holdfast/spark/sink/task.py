"""A task's part of a write: turn rows into transactions and commit those of one partition, each exactly once.

Columns: ``key`` and ``value`` (binary, or string written as UTF-8; a ``value`` that is a struct is written as JSON),
``kind`` (``write``, ``delete``, ``range_delete``; without it a null value deletes), ``end`` (for ``range_delete``; null
means to the last key). Or one column ``operations``, an array of structs of these: one transaction per row. The other
columns of the source's shapes are ignored, so rows of one log can be written to another.

An attempt is a request id and a read version, and every task that may send it must use the same two. A read version
expires with the conflict window, so rows are cut into chunks, and tasks agree on a read version per chunk.

1. A row is sent only after the partition's note names its chunk (``progress``). The version of that note is its read
   version.
2. For an attempt that is too old the task asks for the final outcome. If it is not committed, the transaction is sent
   in the next attempt, whose read version is agreed in the same way, after the earlier attempts.
The record and the notes are records of jobs, which no row reaches: a range delete over everything leaves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from functools import partial
from typing import Any, Final, TypeAlias, cast

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from holdfast.client import Client, CommitReceipt, NotCommitted
from holdfast.commit.format.transaction import Delete, Operation, RangeDelete, Transaction, Write
from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.spark.columns import COLUMNS, RowShape
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.sink.identity import SentPartition, hash_of_transactions, hash_of_writes
from holdfast.spark.sink.progress import Note, PartitionNotes, RowChunk, chunks_of, sent_of
from holdfast.spark.sink.record import Intent, PartitionProgress, request_id
from holdfast.values import LogPosition

_JSON: Final = msgspec.json.Encoder(decimal_format="number")


def encode(value: Any, kind: pa.DataType) -> bytes:
    """A value that is not null as JSON: the way back from ``typed.decode``. It is as ``to_pylist`` gives it.

    Fields that are null are left out, as ``to_json`` of Spark does; an element of an array that is null stays. Decimals
    are JSON numbers with all their digits, binary is base64, dates and times are ISO texts, a timestamp in UTC. A map
    is an object. Raises: InvalidRequest for a number that JSON does not have (NaN).

    >>> encode({"a": 1, "b": None}, pa.struct([("a", pa.int32()), ("b", pa.int32())]))
    b'{"a":1}'
    """
    return _JSON.encode(_plain(value, kind))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value in the types that the encoder writes. ``value`` is not null."""
    if pa.types.is_struct(kind):
        named = ((each, value[each.name]) for each in kind)
        return {each.name: _plain(held, each.type) for each, held in named if held is not None}
    if pa.types.is_map(kind):
        return {key: _or_none(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_or_none(item, kind.value_type) for item in value]
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return value.astimezone(UTC)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest("a value has a number that JSON does not have", hint="replace it by null", found=value)
    return value


def _or_none(value: Any, kind: pa.DataType) -> Any:
    return None if value is None else _plain(value, kind)


_OPERATION_COLUMNS: Final = ("key", "value", "kind", "end")
_IN_JSON: Final = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
_OWN: Final = frozenset(COLUMNS[RowShape.OPERATIONS]) | frozenset(COLUMNS[RowShape.TRANSACTIONS])


def check_schema(schema: StructType, transaction_key: str | None) -> None:
    """Raise InvalidRequest unless rows of this schema are operations, or transactions."""
    fields: Mapping[str, DataType] = {field.name: field.dataType for field in schema}
    if transaction_key is not None and transaction_key not in fields:
        raise _misfit(f"there is no column {transaction_key}, the transactionKey")
    extra = [name for name in fields if name not in _OWN and name != transaction_key]
    if extra:
        raise _misfit(f"columns {', '.join(extra)} would be lost")
    if "operations" in fields:
        kind = fields["operations"]
        if transaction_key is not None or "key" in fields:
            raise _misfit("a row of operations is a transaction already")
        if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
            raise _misfit("operations is an array of structs")
        fields = {field.name: field.dataType for field in kind.elementType}
    if "key" not in fields or not ("value" in fields or "kind" in fields):
        raise _misfit("key and value are needed (or key and kind)")
    for name in _OPERATION_COLUMNS:
        if name == "value" and name in fields and isinstance(fields[name], StructType):
            _require_json(fields[name], name)
        elif name in fields and not isinstance(fields[name], BinaryType | StringType):
            also = ", or a struct that becomes JSON" if name == "value" else ""
            raise _misfit(f"{name} is binary or string{also}, not {fields[name].simpleString()}")


def _require_json(kind: DataType, place: str) -> None:
    """Raise InvalidRequest for a type that has no form in JSON."""
    match kind:
        case StructType():
            for field in kind:
                _require_json(field.dataType, f"{place}.{field.name}")
        case ArrayType():
            _require_json(kind.elementType, f"{place}[]")
        case MapType(keyType=StringType()):
            _require_json(kind.valueType, f"{place}{{}}")
        case _ if not isinstance(kind, _IN_JSON):
            raise _misfit(f"{place} is {kind.simpleString()}, which JSON does not have")
        case _:
            return


def _misfit(reason: str) -> InvalidRequest:
    return bad_configuration(
        f"the rows cannot be written as transactions: {reason}",
        hint="the sink takes the columns key, value, kind and end, or the column operations; rename with select()",
    )


def transactions_of(batches: Iterable[pa.RecordBatch], transaction_key: str | None) -> Iterator[list[Operation]]:
    """The operations of one transaction after the other, in the order of the rows. Raises: InvalidRequest.

    With ``transaction_key`` consecutive rows of one value make a transaction; rows must be sorted by it within the
    partition, so that no transaction is torn unnoticed.
    """
    if transaction_key is None:
        for batch in batches:
            yield from _one_per_row(batch)
        return
    group: list[Operation] = []
    current: object = None
    for batch in batches:
        names: list[object] = batch.column(transaction_key).to_pylist()
        for name, operations in zip(names, _one_per_row(batch), strict=True):
            if name is None:
                raise InvalidRequest("a row has no transactionKey", column=transaction_key)
            if group and name != current:
                if name < current:  # type: ignore[operator]  # one column has one type
                    raise InvalidRequest(
                        "rows are not sorted by the transactionKey, so a transaction might be torn",
                        hint=f'df.repartition("{transaction_key}").sortWithinPartitions("{transaction_key}")',
                        after=current,
                        found=name,
                    )
                yield group
                group = []
            current = name
            group += operations
    if group:
        yield group


def _one_per_row(batch: pa.RecordBatch) -> Iterator[list[Operation]]:
    writes = _plain_writes(batch)
    if writes is not None:
        for key, value in zip(*(column.to_pylist() for column in writes), strict=True):
            yield [Write(key, value)]
        return
    names: Sequence[str] = batch.schema.names
    if "operations" in names:
        as_bytes = _bytes_of_values(batch.schema.field("operations").type.value_type)
        for row in batch.column("operations").to_pylist():
            operations = cast("list[dict[str, object]]", row or [])
            if not operations:
                raise InvalidRequest("a transaction has no operations", code=Code.NO_OPERATIONS)
            yield [
                _operation(each.get("key"), as_bytes(each.get("value")), each.get("kind", _BY_VALUE), each.get("end"))
                for each in operations
            ]
        return
    none: list[object] = [None] * batch.num_rows
    keys: list[object] = batch.column("key").to_pylist()
    as_bytes = _bytes_of_values(pa.struct(list(batch.schema)))
    values = list(map(as_bytes, batch.column("value").to_pylist())) if "value" in names else none
    if "kind" not in names:
        for key, value in zip(keys, values, strict=True):
            yield [_operation(key, value, _BY_VALUE, None)]
        return
    kinds: list[object] = batch.column("kind").to_pylist()
    ends: list[object] = batch.column("end").to_pylist() if "end" in names else none
    for key, value, kind, end in zip(keys, values, kinds, ends, strict=True):
        yield [_operation(key, value, kind, end)]


_BY_VALUE: Final = "by value"


def _plain_writes(batch: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.BinaryArray] | None:
    """The keys and values of these rows where each is a write; None where one may be something else, or wrong."""
    names: Sequence[str] = batch.schema.names
    if "operations" in names or "kind" in names or "value" not in names:
        return None
    columns: list[pa.BinaryArray] = []
    for name in ("key", "value"):
        column = batch.column(name)
        if column.null_count or not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
            return None
        try:
            column.validate(full=True)  # a text that is not UTF-8
        except pa.ArrowInvalid:
            return None
        columns.append(column.cast(pa.binary()))
    return columns[0], columns[1]


def _bytes_of_values(operations: pa.StructType) -> Callable[[object], bytes | None]:
    """What a value of these operations is written as."""
    at = operations.get_field_index("value")
    if at < 0 or not pa.types.is_struct(operations.field(at).type):
        return _bytes
    kind = operations.field(at).type
    return lambda value: None if value is None else encode(value, kind)


def _operation(key: object, value: object, kind: object, end: object) -> Operation:
    name = _bytes(key)
    if name is None:
        raise InvalidRequest("a row has no key")
    if kind == _BY_VALUE:
        kind = "delete" if value is None else "write"
    match kind:
        case "write":
            data = _bytes(value)
            if data is None:
                raise InvalidRequest("a write has no value", key=name)
            return Write(name, data)
        case "delete":
            return Delete(name)
        case "range_delete":
            return RangeDelete(name, _bytes(end))
        case _:
            raise InvalidRequest("kind is write, delete or range_delete", kind=kind)


def _bytes(value: object) -> bytes | None:
    return value.encode() if isinstance(value, str) else cast("bytes | None", value)


CHUNK_TRANSACTIONS: Final = 5_000
CHUNK_BYTES: Final = 8 * 2**20
"""A chunk closes at either bound. Both are part of the protocol: two tasks must cut the same rows alike."""
ATTEMPTS_MAX: Final = 8
ASKING: Final = 16
"""How many questions wait for their answers at once: each closes an attempt, which the service writes to its log."""

_encode_operations: Final = msgspec.msgpack.Encoder().encode


TransactionChunk: TypeAlias = RowChunk[list[Operation]]


def send_partition(
    client: Client,
    options: WriteOptions,
    intent: Intent,
    partition: int,
    batches: Iterable[pa.RecordBatch],
    fixed: str | None = None,
) -> SentPartition:
    """Commit the transactions of one partition that are not committed yet.

    ``fixed`` names rows that are checked and do not change; their hashes are known and not computed. Raises: Fenced,
    InvalidRequest (also when the rows are not those of an earlier try), LimitExceeded, OutcomeUnknown, Unavailable.
    After a crash: what was committed stays, and the next attempt sends the rest. Cost: a request for each 5,000
    transactions (8 MiB), and one to note each chunk.
    """
    sender = _Sender(client, options, intent, partition)
    chunks = _chunks(options, batches, fixed)
    if fixed is not None:
        return sent_of(partition, chunks, lambda _: 0, sender.send)
    sent = sent_of(partition, chunks, hash_of_transactions, sender.send)
    sender.notes.require_whole(sent.chunks)
    return sent


def digest_partition(options: WriteOptions, partition: int, batches: Iterable[pa.RecordBatch]) -> SentPartition:
    """Read the transactions of one partition and send none. Raises: InvalidRequest."""
    if options.transaction_key is not None:
        return sent_of(partition, _chunks(options, batches, ""), hash_of_transactions)  # no chunk is noted
    count = total = 0
    for batch in batches:
        count += batch.num_rows
        writes = _plain_writes(batch)
        total += hash_of_transactions(_one_per_row(batch)) if writes is None else hash_of_writes(*writes)
    return SentPartition(partition, count, total=total)


def _chunks(
    options: WriteOptions, batches: Iterable[pa.RecordBatch], fixed: str | None = None
) -> Iterator[TransactionChunk]:
    transactions = transactions_of(batches, options.transaction_key)
    return chunks_of(transactions, _size, (CHUNK_BYTES, CHUNK_TRANSACTIONS), _encode_operations, fixed)


def _size(operations: Iterable[Operation]) -> int:
    size = 0
    for each in operations:
        if isinstance(each, RangeDelete):
            size += len(each.begin) + len(each.end or b"")
        else:
            size += len(each.key) + (len(each.value) if isinstance(each, Write) else 0)
    return size


class _Sender:
    def __init__(self, client: Client, options: WriteOptions, intent: Intent, partition: int) -> None:
        self._client = client
        self._options = options
        self._intent = intent
        self._partition = partition
        self.notes = PartitionNotes(client, options, intent, partition)

    def send(self, chunk: TransactionChunk) -> None:
        note = self._agree(chunk, ())
        if note.is_past(chunk.number):
            return
        missing = list(range(len(chunk.rows)))
        tried = 0
        while missing:
            attempts = (*note.progress.attempts, note.version)
            for number in range(tried, len(attempts)):
                missing = self._attempt(chunk, missing, number, attempts[number])
            tried = len(attempts)
            if not missing:
                return
            if tried >= ATTEMPTS_MAX:
                raise Unavailable("transactions stay below the conflict window after every attempt")
            note = self._agree(chunk, attempts)
            if note.is_past(chunk.number):
                return

    def _agree(self, chunk: TransactionChunk, attempts: tuple[int, ...]) -> Note:
        count = len(chunk.rows)
        return self.notes.agree(PartitionProgress(chunk.number, chunk.digest, attempts, first=chunk.first, count=count))

    def _attempt(self, chunk: TransactionChunk, missing: list[int], attempt: int, read_version: int) -> list[int]:
        """Send these transactions in one attempt, and return those that are proved to be dead in it."""
        ids = [
            request_id(
                self._intent.tag,
                self._options.application,
                self._intent.token,
                self._partition,
                chunk.first + index,
                attempt,
            )
            for index in missing
        ]
        txns = (
            Transaction(
                operations=chunk.rows[index],
                request_id=name,
                read_version=read_version,
                log_id=self._intent.log_id,
            )
            for index, name in zip(missing, ids, strict=True)
        )
        dead: list[int] = []
        undecided: dict[str, int] = {}
        for index, name, result in zip(missing, ids, self._client.commits_many(txns), strict=True):
            match result:
                case CommitReceipt():
                    continue
                case NotCommitted(reason="too_old"):
                    undecided[name] = index
                case NotCommitted(reason="banned"):
                    dead.append(index)
                case NotCommitted():
                    raise result.error()
                case _:
                    raise result
        if undecided:
            with ThreadPoolExecutor(ASKING, "holdfast-sink-asking") as threads:
                are_dead = threads.map(partial(self._is_dead, read_version), undecided)
                dead += [index for index, is_dead in zip(undecided.values(), are_dead, strict=True) if is_dead]
        return sorted(dead)

    def _is_dead(self, read_version: int, name: str) -> bool:
        outcome = self._client.status(name, LogPosition(read_version, self._intent.log_id))
        if outcome.status == "log_truncated":
            raise NotFound(
                "retention has removed the part of the log that shows whether transactions of this write are committed",
                code=Code.STAGE_LOST,
                hint="give it up: `holdfast spark give-up` lists what is known; write the rest under another token",
                write=self._intent.token,
                request_id=name,
            )
        return outcome.status == "not_committed"
