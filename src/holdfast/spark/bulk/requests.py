"""Commit requests on Spark: rows in one form, sorted, checked, packed into chunks and kept by Spark ("staged").

``RequestFormat`` describes the rows. A chunk holds consecutive requests of one partition in three Arrow streams, so
that a stage reads only what it needs:

    asks     one row per request: order, request_id, read_index and read_version (its read version: ``#k`` or a number),
             index_max and version_max (of all that it names, -1 for none), items, refusal (a ``Fate``, or 0),
             checksum (of all of the request)
    items    one row per precondition or operation, in this order per request: kind (``ItemKind``), key, end, at_index,
             at_version
    values   one row per item: value

Staged requests are on the executors' disks until the Spark session ends. When an executor is lost, Spark computes its
chunks again; a stage that uses a chunk compares its checksum with the judged one (``require_judged``).
"""

from __future__ import annotations

import pickle
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, Literal, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pandas import util
from pyspark import StorageLevel, TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from holdfast.commit.format.batch import REPEATED_BYTES_MAX, ItemKind
from holdfast.commit.format.request_rules import (
    REQUEST_ID_LENGTH_MAX,
    REQUEST_ID_LENGTH_MIN,
    problem_with_request_id,
)
from holdfast.commit.format.transaction import (
    Delete,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Transaction,
    Write,
)
from holdfast.errors import Code, InvalidRequest, LimitExceeded
from holdfast.spark.bulk.sequencing import Fate
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.tasks import grouped
from holdfast.values import VERSION_MAX

_COLUMNS: Final = ("operations", "preconditions", "read_version", "request_id", "key", "value", "kind", "end")
_ROW: Final = ("kind", "key", "end", "value")
_ARRAYS: Final = {
    "operations": "array<struct<kind string, type string, key string, begin string, value string, end string>>",
    "preconditions": "array<struct<kind string, type string, key string, begin string, end string, version string>>",
}
"""The columns that are arrays, and what they are as JSON."""


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """How rows are read as requests: one row each, with these columns.

    order           position in the total order: any type that sorts, no duplicates (``order_by`` is the column's name)
    operations      array of structs: ``kind`` (or ``type``: write, delete, range_delete), ``key`` (or ``begin``),
                    ``value``, ``end``; without a kind a null value deletes. Or the columns key, value, kind, end: one
                    operation per row
    preconditions   array of structs: ``kind`` (or ``type``: point_read, range_read), ``key`` (or ``begin``), ``end``,
                    ``version``; without a kind, one with an end is a range read
    read_version    a log version, or ``#k``: the log after the k-th request of this input, ``#0`` before all
    request_id      names the attempt

    Keys and values are binary, or strings: UTF-8 or base64, as ``text`` says. An array given as a string is JSON. A
    request that breaks a rule of the HTTP service is refused alone; rows that cannot be read raise InvalidRequest.
    """

    order_by: str = "order"
    text: Literal["utf8", "base64"] = "utf8"

    def __post_init__(self) -> None:
        if self.text not in ("utf8", "base64"):
            raise bad_configuration("text is utf8 or base64", text=self.text)


AS_NAMED: Final = RequestFormat()
SHOWN_MAX: Final = 80
"""How much of a key or value an error shows."""


def in_order(frame: DataFrame, request_format: RequestFormat, partitions: int) -> DataFrame:
    """``frame`` in the one form, range-partitioned and sorted by its order. Raises: InvalidRequest.

    Shape: ``order`` string; ``operations`` and ``preconditions`` arrays of structs, or the columns kind, key, end,
    value, each under the name that it has; ``read_version`` and ``request_id`` strings. Absent columns stay absent.
    """
    types: Mapping[str, DataType] = {field.name: field.dataType for field in frame.schema}
    order = request_format.order_by
    if order not in types:
        raise _misfit(f"there is no column {order}, which gives their order")
    extra = [name for name in types if name not in _COLUMNS and name != order]
    if extra:
        raise _misfit(f"columns {', '.join(extra)} would be lost")
    if "operations" in types and "key" in types:
        raise _misfit("a row of operations has no key of its own")
    if "operations" not in types and not ("key" in types and ("value" in types or "kind" in types)):
        raise _misfit("operations are needed, or key and value (or key and kind)")
    columns = [_array(name, kind, types[name]) for name, kind in _ARRAYS.items() if name in types]
    for name in _ROW if "operations" not in types else ():
        if name in types:
            _require_bytes(name, types[name])
            columns.append(F.col(name))
    texts = [name for name in ("read_version", "request_id") if name in types]
    columns += [F.col(name).cast("string").alias(name) for name in texts]
    # Sorted as they come, and brought into form where they arrive: what is sampled and shuffled is as narrow as it was.
    ordered = frame.repartitionByRange(partitions, _quoted(order)).sortWithinPartitions(_quoted(order))
    return ordered.select(F.col(_quoted(order)).cast("string").alias("order"), *columns)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _misfit(reason: str) -> InvalidRequest:
    return bad_configuration(
        f"rows are not commit requests: {reason}",
        hint="a request has an order, operations (or key, value, kind, end), preconditions, read_version, request_id",
    )


def _require_bytes(name: str, kind: DataType) -> None:
    if name in ("key", "begin", "end", "value") and not isinstance(kind, StringType | BinaryType):
        raise _misfit(f"a key or value is binary or string, not {kind.simpleString()}")


def _array(name: str, json: str, kind: DataType) -> Column:
    """A column of structs."""
    if isinstance(kind, StringType):
        return F.from_json(name, json, {"mode": "FAILFAST"}).alias(name)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        raise _misfit(f"{name} is an array of structs, or its JSON")
    for field in kind.elementType:
        _require_bytes(field.name, field.dataType)
    return F.col(name)


REQUESTS_MAX: Final = 2**31 - 2
"""Ordinals are numbers of four bytes."""
CHUNK_BYTES: Final = 4 * 2**20
"""A chunk ends with the request that reaches this; one batch object is made of a chunk."""

_KINDS: Final = {kind.name.lower(): int(kind) for kind in ItemKind}
_NONE: Final = -1

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestChunk:
    """One chunk. ``plain``: its requests only change things, name no version and have no id, and none is refused.

    ``checksum`` and ``weighted`` are sums over its requests, modulo 2^64: of each checksum, and of that
    times its position in the chunk, from 1. They make a digest of the whole input that does not depend on the chunks.
    """

    requests: int
    items: int
    judged_size: int
    index_min: int
    plain: bool
    has_versions: bool
    checksum: int
    weighted: int
    asks: bytes
    item_rows: bytes
    values: bytes


def stream(table: pa.Table | pa.RecordBatch) -> bytes:
    """``table`` as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_stream(data: bytes) -> pa.Table:
    """The table of a stream, without copying it."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


def pack(batches: Iterator[pa.RecordBatch], request_format: RequestFormat = AS_NAMED) -> Iterator[RequestChunk]:
    """The chunks of one partition, whose rows are in order. Raises: InvalidRequest."""
    before: str | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        orders = batch.column("order")
        if orders.null_count:
            raise InvalidRequest("a request has no position in the order")
        same = pc.equal(orders.slice(1), orders.slice(0, len(orders) - 1))
        if pc.any(same).as_py() or orders[0].as_py() == before:
            position = orders[pc.index(same, True).as_py()].as_py() if pc.any(same).as_py() else before
            raise InvalidRequest("two requests have the same position in the order", order=position)
        before = orders[-1].as_py()
        yield from _chunks(batch, request_format.text)


def _chunks(batch: pa.RecordBatch, text: str) -> Iterator[RequestChunk]:
    items = _items(batch, text)
    starts = _starts(items)
    sizes = np.concatenate(([0], np.cumsum(items.lengths())))[starts]
    first = 0
    while first < batch.num_rows:
        past = int(np.searchsorted(sizes, sizes[first] + CHUNK_BYTES))
        past = min(max(past, first + 1), batch.num_rows)
        yield _chunk(batch.slice(first, past - first), items.part(first, past, int(starts[first]), int(starts[past])))
        first = past


@dataclass(frozen=True, slots=True)
class _Items:
    """The items of a batch of requests: columns, how many each request has, and how many of those are reads."""

    counts: Numbers
    reads: Numbers
    columns: pa.RecordBatch

    def lengths(self) -> Numbers:
        lengths: Numbers = np.full(self.columns.num_rows, 32, np.int64)
        for name in ("key", "end", "value"):
            lengths += pc.fill_null(pc.binary_length(self.columns[name]), 0).to_numpy(zero_copy_only=False)
        return lengths

    def part(self, first: int, past: int, begin: int, end: int) -> _Items:
        return _Items(self.counts[first:past], self.reads[first:past], self.columns.slice(begin, end - begin))


def _items(batch: pa.RecordBatch, text: str) -> _Items:
    def bytes_of(flat: pa.RecordBatch, *names: str) -> pa.Array:
        return _field(flat, pa.binary(), *names, text=text)

    if "operations" in batch.schema.names:
        counts, flat = _flat(batch.column("operations"))
    else:
        names = [name for name in _ROW if name in batch.schema.names]
        counts, flat = np.ones(batch.num_rows, np.int64), batch.select(names)
    value = bytes_of(flat, "value")
    kind = _kinds(flat, value, ItemKind.DELETE, ItemKind.WRITE)
    none = pa.nulls(flat.num_rows, pa.int64())
    key, end = bytes_of(flat, "key", "begin"), bytes_of(flat, "end")
    columns = [kind, key, end, value.cast(pa.large_binary()), none, none]
    read_counts: Numbers = np.zeros(batch.num_rows, np.int64)
    if "preconditions" in batch.schema.names:
        read_counts, reads = _flat(batch.column("preconditions"))
        if reads.num_rows:
            end = bytes_of(reads, "end")
            kind = _kinds(reads, end, ItemKind.POINT_READ, ItemKind.RANGE_READ)
            key, versions = bytes_of(reads, "key", "begin"), _field(reads, pa.string(), "version")
            no_values = pa.nulls(reads.num_rows, pa.large_binary())
            of_reads = [kind, key, end, no_values, *_versions(versions)]
            take = pa.array(_interleaved(read_counts, counts))
            pairs = zip(of_reads, columns, strict=True)
            columns = [pa.concat_arrays([read, operation]).take(take) for read, operation in pairs]
    if columns[1].null_count:
        raise InvalidRequest("an operation or a precondition has no key")
    names = ["kind", "key", "end", "value", "at_index", "at_version"]
    table = pa.RecordBatch.from_arrays(columns, names)
    without = pc.and_(pc.equal(table["kind"], int(ItemKind.WRITE)), pc.is_null(table["value"]))
    if pc.any(without).as_py():
        raise InvalidRequest("a write has no value", key=table["key"][pc.index(without, True).as_py()].as_py())
    return _Items(counts + read_counts, read_counts, table)


def _field(flat: pa.RecordBatch, kind: pa.DataType, *names: str, text: str = "utf8") -> pa.Array:
    """The first of these fields that has a value, in each row. ``text``: how a column of texts has bytes."""
    columns = [flat[name] for name in names if name in flat.schema.names]
    fields = [
        _from_base64(each) if text == "base64" and each.type == pa.string() else each.cast(kind) for each in columns
    ]
    if not fields:
        return pa.nulls(flat.num_rows, kind)
    return fields[0] if len(fields) == 1 else pc.coalesce(*fields)


def _from_base64(texts: pa.Array) -> pa.Array:
    def decoded(text: str) -> bytes:
        try:
            return b64decode(text, validate=True)
        except ValueError as error:
            raise InvalidRequest(
                "a key or value is not base64",
                code=Code.BAD_BASE64,
                hint="standard base64, as in the HTTP API; keys and values that are text themselves are read as utf8",
                found=text[:SHOWN_MAX],
            ) from error

    return pa.array([None if each is None else decoded(each) for each in texts.to_pylist()], pa.binary())


def _flat(lists: pa.ListArray) -> tuple[Numbers, pa.RecordBatch]:
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    structs = lists.flatten()
    if structs.null_count:
        raise InvalidRequest("an operation or a precondition is null")
    return counts, pa.RecordBatch.from_arrays(structs.flatten(), [field.name for field in structs.type])


def _interleaved(reads: Numbers, operations: Numbers) -> Numbers:
    """Where each item comes from, when all reads come before all operations: a request's reads, its operations."""
    total_reads = int(reads.sum())
    starts = np.cumsum(reads + operations) - (reads + operations)
    result: Numbers = np.empty(total_reads + int(operations.sum()), np.int64)
    for counts, begins, first in ((reads, starts, 0), (operations, starts + reads, total_reads)):
        total = int(counts.sum())
        positions = np.arange(total) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
        result[positions] = np.arange(first, first + total)
    return result


def _kinds(flat: pa.RecordBatch, column: pa.Array, absent: ItemKind, present: ItemKind) -> pa.Array:
    """The kind of each item; without a name it depends on whether ``column`` is null."""
    default = pc.if_else(pc.is_null(column), pa.scalar(int(absent), pa.uint8()), pa.scalar(int(present), pa.uint8()))
    names = _field(flat, pa.string(), "kind", "type")
    if names.null_count == len(names):
        return default
    encoded = names.dictionary_encode()
    numbers = []
    for name in encoded.dictionary.to_pylist():
        if name not in _KINDS:
            raise InvalidRequest("not a kind of operation or precondition", kind=name, valid=", ".join(_KINDS))
        numbers.append(_KINDS[name])
    return pc.coalesce(pa.array(numbers, pa.uint8()).take(encoded.indices), default)


def _versions(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Versions given as ``#k`` and as numbers, each null where the other is given or none is."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.int64()), pa.nulls(len(texts), pa.int64())
    relative = pc.fill_null(pc.starts_with(texts, "#"), False)
    try:
        index = pc.if_else(relative, pc.utf8_slice_codeunits(texts, 1), None).cast(pa.int64())
        version = pc.if_else(relative, None, texts).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidRequest("a version is a number, or # and the number of a request", cause=error) from error
    for numbers in (index, version):
        bounds = pc.min_max(numbers).as_py()
        if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] <= VERSION_MAX:
            raise InvalidRequest("a version is out of bounds", least=bounds["min"], most=bounds["max"])
    return index, version


def _chunk(batch: pa.RecordBatch, items: _Items) -> RequestChunk:
    rows = batch.num_rows
    none = pa.nulls(rows, pa.int64())
    names = batch.schema.names
    read_index, read_version = _versions(batch.column("read_version")) if "read_version" in names else (none, none)
    ids = batch.column("request_id") if "request_id" in names else pa.nulls(rows, pa.string())
    versions = _largest(items, read_version, "at_version")
    indexes = _largest(items, read_index, "at_index")
    refusals = _refusals(items, ids, read_index, read_version)
    has_versions = bool((versions != _NONE).any())
    only_changes = not items.reads.any() and not refusals.any() and bool((indexes == _NONE).all())
    sums = _checksums(items, ids, read_index, read_version)
    asks = pa.RecordBatch.from_pydict(
        {
            "order": batch.column("order"),
            "request_id": ids,
            "read_index": read_index,
            "read_version": read_version,
            "index_max": indexes,
            "version_max": versions,
            "items": items.counts.astype(np.int32),
            "refusal": refusals,
            "checksum": sums,
        }
    )
    positions = np.arange(1, rows + 1, dtype=np.uint64)
    asks_data = stream(asks)
    rows_data = stream(items.columns.select(["kind", "key", "end", "at_index", "at_version"]))
    return RequestChunk(
        requests=rows,
        items=items.columns.num_rows,
        judged_size=len(asks_data) + len(rows_data),
        index_min=_smallest(read_index, items.columns["at_index"]),
        plain=only_changes and not has_versions and ids.null_count == rows,
        has_versions=has_versions,
        checksum=int(sums.sum(dtype=np.uint64)),
        weighted=int((sums * positions).sum(dtype=np.uint64)),
        asks=asks_data,
        item_rows=rows_data,
        values=stream(items.columns.select(["value"])),
    )


def _starts(items: _Items) -> Numbers:
    starts: Numbers = np.concatenate(([0], np.cumsum(items.counts)))
    return starts


def _largest(items: _Items, own: pa.Array, name: str) -> Numbers:
    """The largest version that a request names, itself or in a precondition; -1 for none."""
    largest: Numbers = pc.fill_null(own, _NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    column = items.columns[name]
    if column.null_count < len(column):
        held = np.flatnonzero(items.counts > 0)
        values = pc.fill_null(column, _NONE).to_numpy(zero_copy_only=False)
        largest[held] = np.maximum(largest[held], np.maximum.reduceat(values, _starts(items)[:-1][held]))
    return largest


def _smallest(*columns: pa.Array) -> int:
    """The smallest ``#k`` in these columns, without ``#0``; -1 for none."""
    least = [pc.min(column.filter(pc.greater(column, 0))).as_py() for column in columns]
    return min((index for index in least if index is not None), default=_NONE)


def _refusals(items: _Items, ids: pa.Array, read_index: pa.Array, read_version: pa.Array) -> npt.NDArray[np.uint8]:
    """The first rule that a request breaks, in the order in which the service looks."""
    table = items.columns
    owners = np.repeat(np.arange(len(items.counts)), items.counts)
    has_version = ~(pc.is_null(read_index).to_numpy(zero_copy_only=False) & pc.is_null(read_version).to_numpy(False))
    broken: npt.NDArray[np.uint8] = np.zeros(table.num_rows, np.uint8)
    if table["end"].null_count < table.num_rows:
        kinds = table["kind"].to_numpy()
        empty = pc.fill_null(pc.greater_equal(table["key"], table["end"]), False).to_numpy(zero_copy_only=False)
        broken[empty & ((kinds == ItemKind.RANGE_DELETE) | (kinds == ItemKind.RANGE_READ))] = Fate.BAD_RANGE
    if items.reads.any():
        reads = pc.greater_equal(table["kind"], int(ItemKind.POINT_READ))
        bare = pc.and_(reads, pc.and_(pc.is_null(table["at_index"]), pc.is_null(table["at_version"])))
        broken[bare.to_numpy(zero_copy_only=False) & ~has_version[owners]] = Fate.READ_VERSION_REQUIRED
    refusals: npt.NDArray[np.uint8] = np.zeros(len(items.counts), np.uint8)
    # From the last to the first: the first broken item of a request is the one that counts.
    wrong = np.flatnonzero(broken)[::-1]
    refusals[owners[wrong]] = broken[wrong]
    named = pc.is_valid(ids).to_numpy(zero_copy_only=False)
    if named.any():
        refusals[named & ~has_version] = Fate.READ_VERSION_REQUIRED
        repeated = pc.fill_null(pc.binary_length(ids), 0).to_numpy(zero_copy_only=False) * items.counts
        refusals[repeated > REPEATED_BYTES_MAX] = Fate.TOO_LARGE
        for position in np.flatnonzero(named).tolist() if not _all_fit(ids) else ():
            if problem_with_request_id(ids[position].as_py(), length_min=REQUEST_ID_LENGTH_MIN):
                refusals[position] = Fate.BAD_REQUEST_ID
    refusals[items.counts == items.reads] = Fate.NO_OPERATIONS
    return refusals


def _all_fit(ids: pa.Array) -> bool:
    """Whether all ids are good for certain; where they are not of plain text they are looked at one by one."""
    length = pc.utf8_length(ids)
    fits = pc.and_(
        pc.and_(pc.greater_equal(length, REQUEST_ID_LENGTH_MIN), pc.less_equal(length, REQUEST_ID_LENGTH_MAX)),
        pc.and_(pc.string_is_ascii(ids), pc.ascii_is_printable(ids)),
    )
    return bool(pc.all(fits).as_py())


def _checksums(items: _Items, ids: pa.Array, read_index: pa.Array, read_version: pa.Array) -> npt.NDArray[np.uint64]:
    """A number for each request that depends on all of it. Guards against another input, not against an adversary."""
    columns, starts = items.columns, _starts(items)
    positions = pa.array(np.arange(columns.num_rows) - np.repeat(starts[:-1], items.counts))
    of_items, sums = _hashes(positions, *columns.columns), _hashes(ids, read_index, read_version)
    held = np.flatnonzero(items.counts > 0)
    if len(held):
        sums[held] += np.add.reduceat(of_items, starts[:-1][held])
    return sums


_hash_array: Final = cast("Callable[..., npt.NDArray[np.uint64]]", util.hash_array)


def _hashes(*columns: pa.Array) -> npt.NDArray[np.uint64]:
    """A number for each row that depends on all of these columns."""
    hashes: npt.NDArray[np.uint64] = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        nothing = 0 if pa.types.is_integer(column.type) else b""
        values = pc.fill_null(column, nothing).to_numpy(zero_copy_only=False)
        is_null = pc.is_null(column).to_numpy(zero_copy_only=False)
        # Each is hashed with those before it, so that their order counts.
        hashes = _hash_array(hashes + _hash_array(values, categorize=False) + is_null)
    return hashes


_SUMMARY: dict[str, pa.DataType] = {
    "key": pa.int64(),
    "requests": pa.int32(),
    "items": pa.int64(),
    "judged_size": pa.int64(),
    "index_min": pa.int64(),
    "plain": pa.bool_(),
    "has_versions": pa.bool_(),
    "checksum": pa.decimal128(20),
    "weighted": pa.decimal128(20),
}
_SCHEMA = pa.schema([*_SUMMARY.items(), *((name, pa.binary()) for name in ("asks", "item_rows", "values"))])


def other_requests(first: int) -> InvalidRequest:
    """The error for requests from position ``first`` on that Spark has made again, as other ones."""
    return InvalidRequest(
        "the requests are other ones than when they were judged",
        hint="Spark makes them again when a worker is lost: load from a table that keeps them, and leave out what "
        "gives another value each time",
        first=first,
    )


PARTS_BYTES: Final = 64 * 2**20
"""One Spark job takes parts of this size together, or one that is larger."""


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """The position of a chunk: its requests begin at index ``first``, from 0. ``weighted`` is its checksum.

    ``key`` is the number of the partition times 2^32, plus the chunk's number in it.
    ``index_min`` is the smallest ``#k`` that it names, without ``#0``; -1 for none.
    """

    key: int
    first: int
    requests: int
    index_min: int
    weighted: int

    @property
    def past(self) -> int:
        """The position after its last request."""
        return self.first + self.requests


@dataclass(frozen=True, slots=True)
class Staged:
    """All requests. ``digest`` names this input: the same requests in the same order have the same.

    ``plain``: nothing is read, no version named and no id given, and none is refused. ``judged_size``: bytes without
    the values.
    """

    frame: DataFrame
    chunks: tuple[ChunkSummary, ...]
    requests: int
    items: int
    judged_size: int
    plain: bool
    has_versions: bool
    digest: str

    def release(self) -> None:
        """Let Spark forget what it kept."""
        self.frame.unpersist()

    def with_parts(self, columns: Sequence[str], parts: Iterable[tuple[ChunkSummary, Any]]) -> Iterator[DataFrame]:
        """Frames with these columns of the chunks in ``parts``, for ``chunk_parts``: the task of a chunk gets its part.

        No task gets the part of another chunk. Memory on the driver: ``PARTS_BYTES`` and one part, pickled.
        """
        rows = ((chunk.key, pickle.dumps((chunk, part))) for chunk, part in parts)
        for group in grouped(rows, lambda row: len(row[1]), PARTS_BYTES):
            own = self.frame.sparkSession.createDataFrame(group, "key long, part binary")
            yield self.frame.select("key", "weighted", *columns).join(F.broadcast(own), "key")


def chunk_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[ChunkSummary, Any, Mapping[str, Any]]]:
    """In a task: each chunk with its part and its columns. Raises: InvalidRequest where Spark has made other requests
    than those that were judged."""
    for batch in batches:
        for row in batch.to_pylist():
            chunk, part = pickle.loads(row["part"])
            if int(row["weighted"]) != chunk.weighted:
                raise other_requests(chunk.first)
            yield chunk, part, row


def stage(frame: DataFrame, request_format: RequestFormat, *, partitions: int) -> Staged:
    """Sort, check and pack the requests of ``frame``. Raises: InvalidRequest."""

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        for number, chunk in enumerate(pack(batches, request_format)):
            row = {"key": partition << 32 | number, **asdict(chunk)}
            yield pa.RecordBatch.from_pylist([row], schema=_SCHEMA)

    ordered = in_order(frame, request_format, partitions)
    staged = ordered.mapInArrow(packed, from_arrow_schema(_SCHEMA)).persist(StorageLevel.DISK_ONLY)
    with task_errors():
        rows = staged.select(*_SUMMARY).toArrow().to_pylist()
    rows.sort(key=itemgetter("key"))
    chunks: list[ChunkSummary] = []
    first = total = 0
    for row in rows:
        weighted = int(row["weighted"])
        chunks.append(ChunkSummary(row["key"], first, row["requests"], row["index_min"], weighted))
        total += weighted + first * int(row["checksum"])
        first += row["requests"]
    if first > REQUESTS_MAX:
        raise LimitExceeded(
            "there are more requests than one input may have",
            hint="split the input, in its order, into several",
            requests=first,
            requests_max=REQUESTS_MAX,
        )
    digest = blake2b(f"{first} {total % 2**64}".encode(), digest_size=16).hexdigest()
    return Staged(
        staged,
        tuple(chunks),
        first,
        sum(row["items"] for row in rows),
        sum(row["judged_size"] for row in rows),
        all(row["plain"] for row in rows),
        any(row["has_versions"] for row in rows),
        digest,
    )


class ParsedRequest(msgspec.Struct, frozen=True):
    """One request: its position as the input has it, and its transaction, or the code that refuses it."""

    order: str
    request_id: str | None
    transaction: Transaction | None
    refusal: str | None


def parsed_requests(chunk: RequestChunk) -> Iterator[ParsedRequest]:
    """The requests of a chunk, in order. Raises: InvalidRequest."""
    items = read_stream(chunk.item_rows).to_pylist()
    values: list[bytes | None] = read_stream(chunk.values)["value"].to_pylist()
    begin = 0
    for ask in read_stream(chunk.asks).to_pylist():
        end = begin + ask["items"]
        if ask["read_index"] is not None or ask["index_max"] >= 0:
            raise InvalidRequest(
                "a stream has no k-th request: a read version is a version of the log", order=ask["order"]
            )
        if ask["refusal"]:
            yield ParsedRequest(ask["order"], ask["request_id"], None, Fate(ask["refusal"]).name.lower())
        else:
            reads = [_parsed_read(item) for item in items[begin:end] if item["kind"] >= ItemKind.POINT_READ]
            rows = zip(items[begin:end], values[begin:end], strict=True)
            operations = [_parsed_operation(item, value) for item, value in rows if item["kind"] < ItemKind.POINT_READ]
            txn = Transaction(operations, reads, ask["request_id"], None, ask["read_version"])
            yield ParsedRequest(ask["order"], ask["request_id"], txn, None)
        begin = end


def operations_at(
    asks: pa.Table, items: pa.Table, values: pa.Table, positions: Iterable[int]
) -> Iterator[list[Operation]]:
    """The operations of the requests at these positions of a chunk."""
    counts = asks["items"].to_pylist()
    ends = list(accumulate(counts))
    for position in positions:
        begin = ends[position] - counts[position]
        rows = zip(
            items.slice(begin, counts[position]).to_pylist(),
            values["value"].slice(begin, counts[position]).to_pylist(),
            strict=True,
        )
        yield [_parsed_operation(item, value) for item, value in rows if item["kind"] < ItemKind.POINT_READ]


def _parsed_operation(item: Mapping[str, object], value: bytes | None) -> Operation:
    key, end = item["key"], item["end"]
    assert isinstance(key, bytes), "packed items have keys"
    match item["kind"]:
        case ItemKind.WRITE:
            assert value is not None, "packed writes have values"
            return Write(key, value)
        case ItemKind.DELETE:
            return Delete(key)
        case _:
            return RangeDelete(key, end if isinstance(end, bytes) else None)


def _parsed_read(item: Mapping[str, object]) -> Precondition:
    key, end, at = item["key"], item["end"], item["at_version"]
    assert isinstance(key, bytes), "packed items have keys"
    version = at if isinstance(at, int) else None
    if item["kind"] == ItemKind.POINT_READ:
        return PointRead(key, version)
    return RangeRead(key, end if isinstance(end, bytes) else None, version)
