"""Requests packed for the stages: what a request asks, what it reads and changes, and its values, as Arrow streams.

Owns: the packed form, its checks, and which request can never be taken in. Does not own: Spark (``request_frame``), the
order of all requests (``sequencing``).

A chunk holds consecutive requests of one partition in three streams, so that a stage reads only what it needs:

    asks     one row a request: order, request_id, read_index and read_version (its read version: ``#k`` or a number),
             index_max and version_max (of all that it names, -1 for none), items, refusal (0, or a ``Refusal``),
             fingerprint (16 bytes where there is a request id)
    items    one row a precondition or operation, in this order per request: kind (``commit.batch.ItemKind``), key, end,
             at_index, at_version
    values   one row an item: value

A request with a refusal is never sequenced. The rules are those of the service for requests over HTTP.

Failure model: a kind, version or null that cannot be read raises InvalidRequest with its place. Nothing is skipped.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# Most functions of pyarrow.compute are made when it is imported, so it cannot see those either.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commit.format.batch import REPEATED_BYTES_MAX, ItemKind
from holdfast.errors import InvalidRequest

__all__ = ["CHUNK_BYTES", "Chunk", "Refusal", "pack", "read_stream", "stream"]

CHUNK_BYTES: Final = 4 * 2**20
"""A chunk ends with the request that reaches this; one batch object is made of a chunk."""
REQUEST_ID_LENGTH_MIN: Final = 20
REQUEST_ID_LENGTH_MAX: Final = 255
VERSION_MAX: Final = 2**53 - 1

_KINDS: Final = {kind.name.lower(): int(kind) for kind in ItemKind}
_NONE: Final = -1
_BASE: Final = 0xD6E8FEB86659FD93
_INVERSE: Final = pow(_BASE, -1, 2**64)
_SLAB: Final = 2**14
_POWERS: Final = np.power(np.uint64(_BASE), np.arange(_SLAB, dtype=np.uint64))
_PRIMES: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
_ID_PRIME: Final = 0x27D4EB2F165667C5

Numbers = npt.NDArray[np.int64]


class Refusal(IntEnum):
    """Why a request is never sequenced; the names are the codes of the service."""

    NO_OPERATIONS = 1
    BAD_REQUEST_ID = 2
    READ_VERSION_REQUIRED = 3
    BAD_RANGE = 4
    TOO_LARGE = 5


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk. ``plain``: its requests only change things, name no version and have no id, and none is refused.

    ``checksum`` and ``weighted`` are sums over its requests, modulo 2^64: of each checksum, and of that
    times its place in the chunk, from 1. They make a digest of the whole input that does not depend on the chunks.
    """

    requests: int
    items: int
    size: int
    plain: bool
    has_versions: bool
    has_ids: bool
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


def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
    """The chunks of one partition, whose rows are in order. Raises: InvalidRequest."""
    before: str | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        orders = batch.column("order")
        if orders.null_count:
            raise InvalidRequest("a request has no place in the order")
        same = pc.equal(orders.slice(1), orders.slice(0, len(orders) - 1))
        if pc.any(same).as_py() or orders[0].as_py() == before:
            place = orders[pc.index(same, True).as_py()].as_py() if pc.any(same).as_py() else before
            raise InvalidRequest("two requests have the same place in the order", order=place)
        before = orders[-1].as_py()
        yield from _chunks(batch)


def _chunks(batch: pa.RecordBatch) -> Iterator[Chunk]:
    """The batch cut by bytes."""
    items = _items(batch)
    starts = np.concatenate(([0], np.cumsum(items.counts)))
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
        found: Numbers = np.full(self.columns.num_rows, 32, np.int64)
        for name in ("key", "end", "value"):
            found += pc.fill_null(pc.binary_length(self.columns[name]), 0).to_numpy(zero_copy_only=False)
        return found

    def part(self, first: int, past: int, begin: int, end: int) -> _Items:
        return _Items(self.counts[first:past], self.reads[first:past], self.columns.slice(begin, end - begin))


def _items(batch: pa.RecordBatch) -> _Items:
    if "operations" in batch.schema.names:
        counts, flat = _flat(batch.column("operations"))
    else:
        counts, flat = np.ones(batch.num_rows, np.int64), batch.select(["kind", "key", "end", "value"])
    value = _data(flat, "value")
    kind = _kinds(flat, pc.if_else(pc.is_null(value), _number(ItemKind.DELETE), _number(ItemKind.WRITE)))
    none = pa.nulls(flat.num_rows, pa.int64())
    columns = [kind, _data(flat, "key", "begin"), _data(flat, "end"), value.cast(pa.large_binary()), none, none]
    read_counts: Numbers = np.zeros(batch.num_rows, np.int64)
    if "reads" in batch.schema.names:
        read_counts, reads = _flat(batch.column("reads"))
        if reads.num_rows:
            end = _data(reads, "end")
            kind = _kinds(
                reads, pc.if_else(pc.is_null(end), _number(ItemKind.POINT_READ), _number(ItemKind.RANGE_READ))
            )
            no_values = pa.nulls(reads.num_rows, pa.large_binary())
            of_reads = [kind, _data(reads, "key", "begin"), end, no_values, *_versions(_text(reads, "version"))]
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


def _number(kind: ItemKind) -> pa.Scalar:
    return pa.scalar(int(kind), pa.uint8())


def _field(flat: pa.RecordBatch, kind: pa.DataType, names: tuple[str, ...]) -> pa.Array:
    """The first of these fields that has a value, in each row."""
    found = [flat[name].cast(kind) for name in names if name in flat.schema.names]
    if not found:
        return pa.nulls(flat.num_rows, kind)
    return found[0] if len(found) == 1 else pc.coalesce(*found)


def _data(flat: pa.RecordBatch, *names: str) -> pa.Array:
    return _field(flat, pa.binary(), names)


def _text(flat: pa.RecordBatch, *names: str) -> pa.Array:
    return _field(flat, pa.string(), names)


def _flat(lists: pa.ListArray) -> tuple[Numbers, pa.RecordBatch]:
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    structs = lists.flatten()
    if structs.null_count:
        raise InvalidRequest("an operation or a precondition is null")
    return counts, pa.RecordBatch.from_arrays(structs.flatten(), [field.name for field in structs.type])


def _interleaved(reads: Numbers, operations: Numbers) -> Numbers:
    """Where each item comes from, when all reads stand before all operations: a request's reads, its operations."""
    total_reads = int(reads.sum())
    starts = np.cumsum(reads + operations) - (reads + operations)
    result: Numbers = np.empty(total_reads + int(operations.sum()), np.int64)
    for counts, begins, first in ((reads, starts, 0), (operations, starts + reads, total_reads)):
        total = int(counts.sum())
        places = np.arange(total) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
        result[places] = np.arange(first, first + total)
    return result


def _kinds(flat: pa.RecordBatch, default: pa.Array) -> pa.Array:
    """The kind of each; ``default`` where none is named."""
    names = _text(flat, "kind", "type")
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


def _chunk(batch: pa.RecordBatch, items: _Items) -> Chunk:
    rows = batch.num_rows
    none = pa.nulls(rows, pa.int64())
    names = batch.schema.names
    read_index, read_version = _versions(batch.column("read_version")) if "read_version" in names else (none, none)
    ids = batch.column("request_id") if "request_id" in names else pa.nulls(rows, pa.string())
    versions = _largest(items, read_version, "at_version")
    indexes = _largest(items, read_index, "at_index")
    refusals = _refusals(items, ids, read_index, read_version)
    has_versions, has_ids = bool((versions != _NONE).any()), ids.null_count < rows
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
            "fingerprint": _fingerprints(items, ids, read_index, read_version),
        }
    )
    places = np.arange(1, rows + 1, dtype=np.uint64)
    return Chunk(
        requests=rows,
        items=items.columns.num_rows,
        size=int(items.lengths().sum()),
        plain=only_changes and not has_versions and not has_ids,
        has_versions=has_versions,
        has_ids=has_ids,
        checksum=int(sums.sum(dtype=np.uint64)),
        weighted=int((sums * places).sum(dtype=np.uint64)),
        asks=stream(asks),
        item_rows=stream(items.columns.select(["kind", "key", "end", "at_index", "at_version"])),
        values=stream(items.columns.select(["value"])),
    )


def _starts(items: _Items) -> Numbers:
    starts: Numbers = np.concatenate(([0], np.cumsum(items.counts)))
    return starts


def _largest(items: _Items, own: pa.Array, name: str) -> Numbers:
    """The largest version that a request names, itself or in a precondition; -1 for none."""
    found: Numbers = pc.fill_null(own, _NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    column = items.columns[name]
    if column.null_count < len(column):
        held = np.flatnonzero(items.counts > 0)
        values = pc.fill_null(column, _NONE).to_numpy(zero_copy_only=False)
        found[held] = np.maximum(found[held], np.maximum.reduceat(values, _starts(items)[:-1][held]))
    return found


def _refusals(items: _Items, ids: pa.Array, read_index: pa.Array, read_version: pa.Array) -> npt.NDArray[np.uint8]:
    """The first rule that a request breaks, in the order in which the service looks."""
    table = items.columns
    owners = np.repeat(np.arange(len(items.counts)), items.counts)
    has_version = ~(pc.is_null(read_index).to_numpy(zero_copy_only=False) & pc.is_null(read_version).to_numpy(False))
    broken: npt.NDArray[np.uint8] = np.zeros(table.num_rows, np.uint8)
    if table["end"].null_count < table.num_rows:
        kinds = table["kind"].to_numpy()
        empty = pc.fill_null(pc.greater_equal(table["key"], table["end"]), False).to_numpy(zero_copy_only=False)
        broken[empty & ((kinds == ItemKind.RANGE_DELETE) | (kinds == ItemKind.RANGE_READ))] = Refusal.BAD_RANGE
    if items.reads.any():
        reads = pc.greater_equal(table["kind"], int(ItemKind.POINT_READ))
        bare = pc.and_(reads, pc.and_(pc.is_null(table["at_index"]), pc.is_null(table["at_version"])))
        broken[bare.to_numpy(zero_copy_only=False) & ~has_version[owners]] = Refusal.READ_VERSION_REQUIRED
    found: npt.NDArray[np.uint8] = np.zeros(len(items.counts), np.uint8)
    # From the last to the first: the first broken item of a request is the one that counts.
    wrong = np.flatnonzero(broken)[::-1]
    found[owners[wrong]] = broken[wrong]
    named = pc.is_valid(ids).to_numpy(zero_copy_only=False)
    if named.any():
        found[named & ~has_version] = Refusal.READ_VERSION_REQUIRED
        repeated = pc.fill_null(pc.binary_length(ids), 0).to_numpy(zero_copy_only=False) * items.counts
        found[repeated > REPEATED_BYTES_MAX] = Refusal.TOO_LARGE
        for place in np.flatnonzero(named).tolist() if not _all_fit(ids) else ():
            if not _fits(ids[place].as_py()):
                found[place] = Refusal.BAD_REQUEST_ID
    found[items.counts == items.reads] = Refusal.NO_OPERATIONS
    return found


def _all_fit(ids: pa.Array) -> bool:
    """Whether all ids are good for certain; where they are not of plain text they are looked at one by one."""
    length = pc.utf8_length(ids)
    fits = pc.and_(
        pc.and_(pc.greater_equal(length, REQUEST_ID_LENGTH_MIN), pc.less_equal(length, REQUEST_ID_LENGTH_MAX)),
        pc.and_(pc.string_is_ascii(ids), pc.ascii_is_printable(ids)),
    )
    return bool(pc.all(fits).as_py())


def _fits(request_id: str) -> bool:
    return REQUEST_ID_LENGTH_MIN <= len(request_id) <= REQUEST_ID_LENGTH_MAX and request_id.isprintable()


def _bytes_of(column: pa.Array) -> tuple[Numbers, memoryview]:
    """Offsets and data of a binary column, its nulls as empty."""
    whole = pc.fill_null(column, b"").cast(pa.large_binary())
    _, offsets, data = whole.buffers()
    begins = np.frombuffer(offsets, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    return begins, memoryview(data) if data is not None else memoryview(b"")


def _fingerprints(items: _Items, ids: pa.Array, read_index: pa.Array, read_version: pa.Array) -> pa.Array:
    """16 bytes that tell two attempts under one id apart, for requests that have one."""
    if ids.null_count == len(ids):
        return pa.nulls(len(ids), pa.binary())
    starts = _starts(items).tolist()
    texts = [_bytes_of(items.columns[name]) for name in ("key", "end", "value")]
    numbers = [
        np.ascontiguousarray(pc.fill_null(items.columns[name], _NONE).to_numpy(zero_copy_only=False))
        for name in ("at_index", "at_version")
    ]
    numbers.append(items.columns["kind"].to_numpy())
    numbers.append(pc.is_null(items.columns["end"]).to_numpy(zero_copy_only=False))
    own = list(zip(read_index.to_pylist(), read_version.to_pylist(), strict=True))
    found: list[bytes | None] = []
    for place, request_id in enumerate(ids.to_pylist()):
        if request_id is None:
            found.append(None)
            continue
        begin, end = starts[place], starts[place + 1]
        digest = blake2b(repr(own[place]).encode(), digest_size=16)
        for values in numbers:
            digest.update(values[begin:end].tobytes())
        for offsets, data in texts:
            digest.update((offsets[begin : end + 1] - offsets[begin]).tobytes())
            digest.update(data[offsets[begin] : offsets[end]])
        found.append(digest.digest())
    return pa.array(found, pa.binary())


def _checksums(items: _Items, ids: pa.Array, read_index: pa.Array, read_version: pa.Array) -> npt.NDArray[np.uint64]:
    """A number for each request that depends on all of it. Guards against another input, not against an adversary."""
    columns = items.columns
    starts = _starts(items)
    # How long every part of an item is, and its numbers; then the bytes, which lie together for a whole request.
    places = (np.arange(columns.num_rows) - np.repeat(starts[:-1], items.counts)).astype(np.uint64)
    mixed: npt.NDArray[np.uint64] = columns["kind"].to_numpy().astype(np.uint64)
    for prime, name in zip(_PRIMES, ("at_index", "at_version"), strict=False):
        mixed = mixed * np.uint64(prime) + _unsigned(columns[name])
    held = np.flatnonzero(items.counts > 0)
    found: npt.NDArray[np.uint64] = np.ones(len(items.counts), np.uint64)
    for prime, name in zip(_PRIMES, ("key", "end", "value"), strict=False):
        column = columns[name]
        mixed = mixed * np.uint64(prime) + _unsigned(pc.binary_length(column))
        if column.null_count == len(column):
            # As if each were looked at, so that it does not matter which requests share a chunk.
            found += np.uint64(prime)
        else:
            offsets, data = _bytes_of(column)
            found += (_polynomials(np.frombuffer(data, np.uint8), offsets[starts]) + np.uint64(1)) * np.uint64(prime)
    if len(held):
        found[held] += np.add.reduceat(
            (mixed ^ (mixed >> np.uint64(29))) * (2 * places + np.uint64(1)), starts[:-1][held]
        )
    for prime, numbers in zip(_PRIMES, (read_index, read_version), strict=False):
        found += _unsigned(numbers) * np.uint64(prime)
    if ids.null_count < len(ids):
        offsets, data = _bytes_of(ids.cast(pa.binary()))
        named = pc.is_valid(ids).to_numpy(zero_copy_only=False).astype(np.uint64)
        found += (_polynomials(np.frombuffer(data, np.uint8), offsets) + np.uint64(1)) * np.uint64(_ID_PRIME) * named
    return found


def _polynomials(data: npt.NDArray[np.uint8], bounds: Numbers) -> npt.NDArray[np.uint64]:
    """For each stretch between two bounds the sum of (its byte i, and one) times (a prime to the power of i).

    Computed for all stretches at once, as if each began where the data does, and then moved back. In slabs, so that
    memory is bounded and what is multiplied stays near the processor.
    """
    found: npt.NDArray[np.uint64] = np.zeros(len(bounds) - 1, np.uint64)
    held = np.flatnonzero(np.diff(bounds) > 0)
    begins, ends = bounds[:-1][held], bounds[1:][held]
    sums: npt.NDArray[np.uint64] = np.zeros(len(held), np.uint64)
    start = int(bounds[0])
    for base in range(start, int(bounds[-1]), _SLAB):
        past = min(base + _SLAB, int(bounds[-1]))
        first, last = np.searchsorted(ends, base, side="right"), np.searchsorted(begins, past)
        products = (data[base:past].astype(np.uint64) + np.uint64(1)) * _POWERS[: past - base]
        parts = np.add.reduceat(products, np.maximum(begins[first:last] - base, 0))
        sums[first:last] += parts * np.power(np.uint64(_BASE), np.uint64(base - start))
    found[held] = sums * np.power(np.uint64(_INVERSE), (begins - start).astype(np.uint64))
    return found


def _unsigned(numbers: pa.Array) -> npt.NDArray[np.uint64]:
    """A small number for each value, one of its own for null."""
    plain: Numbers = pc.fill_null(numbers, _NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return (plain + 2).view(np.uint64)
