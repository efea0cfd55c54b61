"""Read one piece of the log inside a task: read ahead, check everything, yield few large record batches.

A missing or damaged object, and one that does not continue the chain, raises CorruptData with the slot and the rule;
the border to the piece before is checked too. A store that does not respond raises Unavailable, and Spark runs the
task again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, TypeVar, assert_never

import pyarrow as pa

from holdfast.commit.format.batch import FIRST_SLOT, FLAG_LZ4, HEADER_BYTES, Header, decode_header, object_name
from holdfast.commit.format.chain import ChainWalker, broken
from holdfast.errors import NotFound
from holdfast.objects.port import ObjectReader
from holdfast.spark.columns import RowShape
from holdfast.spark.options import ReadOptions
from holdfast.spark.positions import Position
from holdfast.spark.runtime.store_thread import PlannedObjectsThread, is_directory, set_imports_aside
from holdfast.spark.runtime.tasks import grouped
from holdfast.spark.source.bodies import JOINED_BYTES_MAX, decode_bodies
from holdfast.spark.source.chain import claim_of, lost, read_header, require_log
from holdfast.spark.source.plan import Piece
from holdfast.spark.source.shapes import RowFilter, batch_rows, operation_rows, transaction_rows
from holdfast.spark.typed.rows import Choice, typed_batch
from holdfast.values import slot_text

T = TypeVar("T")

FETCH_BYTES: Final = 16 * 2**20
"""How many bytes one round of concurrent requests asks for; two rounds are under way at a time."""
FETCH_OBJECTS_MAX: Final = 64
ROUNDS_AHEAD: Final = 2
ROW_BYTES: Final = 256
"""What a transaction counts as at least: a record batch has 32,768 of them at most."""
BATCH_BYTES: Final = 8 * 2**20
"""A record batch has at most this of bodies, or one object, whose rows are then cut."""
LZ4_RATIO: Final = 16
"""What a compressed body is taken to grow by: its size in memory is known only when it is too late."""


def scan(options: ReadOptions, wanted: RowFilter, piece: Piece) -> Iterator[pa.RecordBatch]:
    """The rows of one piece, in log order, as record batches of the options' shape and columns.

    Raises: CorruptData, InvalidRequest (``log_mismatch``: the log was replaced since it was planned), Unavailable.
    Cost: one request an object, and two for the border to the piece before. Memory: three rounds of objects and the
    rows of the largest; Spark gets them in parts.
    """
    for group in _groups(checked_objects(options, piece), headers_only=options.shape is RowShape.BATCHES):
        yield from _parts(_shaped(group, options, wanted))
    set_imports_aside()


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in record batches of about ``BATCH_BYTES``, without a copy: Java holds each of them as a whole."""
    parts = max(1, -(-batch.nbytes // BATCH_BYTES))
    step = max(1, -(-batch.num_rows // parts))
    return (batch.slice(first, step) for first in range(0, batch.num_rows, step))


def _groups(objects: Iterable[tuple[Header, bytes]], *, headers_only: bool) -> Iterator[Sequence[tuple[Header, bytes]]]:
    """Objects that share a record batch: many tiny ones, or a large one alone, which is then not copied."""

    def weight(one: tuple[Header, bytes]) -> int:
        header = one[0]
        body_bytes = header.body_length * (LZ4_RATIO if header.flags & FLAG_LZ4 else 1)
        return (
            BATCH_BYTES
            if body_bytes > JOINED_BYTES_MAX
            else max(body_bytes, header.transactions * ROW_BYTES, ROW_BYTES)
        )

    return grouped((one for one in objects if headers_only or one[0].transactions), weight, BATCH_BYTES)


def checked_objects(options: ReadOptions, piece: Piece) -> Iterator[tuple[Header, bytes]]:
    """Every live object of the piece, in log order, its header checked by itself and against the one before it.

    The shape ``batches`` reads headers only: then the bytes end there.
    """
    length = HEADER_BYTES if options.shape is RowShape.BATCHES else None
    # A file is read at once, in the thread of the loop: waiting for others would only cost.
    read_round = partial(_read_in_turn if is_directory(options.url) else _read_together, length=length)
    each_bytes = length or max(1, piece.object_bytes // piece.objects)
    with PlannedObjectsThread(options.url) as thread:
        walker = thread.run(lambda store: _walker_at(store, piece))
        for slot, data in fetched(thread, piece.slots(), each_bytes, read_round):
            header = decode_header(data, slot=slot)
            if walker.head is None or walker.head.slot != slot:
                _require_planned(header, piece)
                walker.accept(header)
            yield header, data


async def _walker_at(store: ObjectReader, piece: Piece) -> ChainWalker:
    """A walker that expects the first object of the piece next, or, in a truncated log, has already accepted it."""
    first = piece.runs[0][0]
    if piece.head is None and first == FIRST_SLOT:
        if piece.lineage is not None:
            _require_planned(await read_header(store, first), piece)
        return ChainWalker()
    head = await read_header(store, first if piece.head is None else piece.head)
    _require_planned(head, piece)
    claim = await claim_of(store, head)
    if piece.claim not in (None, claim.slot):
        raise broken("object is not of the leader that claimed", head.slot, claim=slot_text(claim.slot))
    return ChainWalker(head, claim)


def _require_planned(header: Header, piece: Piece) -> None:
    if piece.lineage is not None:
        require_log(piece.lineage, Position(None, 0, header.log_id.hex()))


def fetched(
    thread: PlannedObjectsThread,
    slots: Iterator[int],
    each_bytes: int,
    read_round: Callable[[Sequence[int], ObjectReader], Coroutine[object, object, list[T]]],
) -> Iterator[tuple[int, T]]:
    """The objects of these slots in order, read in rounds of ``FETCH_BYTES``, two rounds ahead."""
    round_objects = max(1, min(FETCH_OBJECTS_MAX, FETCH_BYTES // each_bytes))
    under_way: deque[tuple[Sequence[int], Future[list[T]]]] = deque()
    while True:
        while len(under_way) < ROUNDS_AHEAD and (wanted := tuple(islice(slots, round_objects))):
            under_way.append((wanted, thread.start(partial(read_round, wanted))))
        if not under_way:
            return
        done, future = under_way.popleft()
        yield from zip(done, future.result(), strict=True)


async def _read_in_turn(slots: Sequence[int], store: ObjectReader, *, length: int | None) -> list[bytes]:
    return [await _read(store, slot, length) for slot in slots]


async def _read_together(slots: Sequence[int], store: ObjectReader, *, length: int | None) -> list[bytes]:
    return await asyncio.gather(*(_read(store, slot, length) for slot in slots))


async def _read(store: ObjectReader, slot: int, length: int | None) -> bytes:
    try:
        return await store.read(object_name(slot), start=0, length=length)
    except NotFound:
        raise lost("an object of the live chain is missing", slot) from None


def _shaped(group: Sequence[tuple[Header, bytes]], options: ReadOptions, wanted: RowFilter) -> pa.RecordBatch:
    match options.shape:
        case RowShape.OPERATIONS:
            return operation_rows(decode_bodies(group, verify=options.verify), options.columns, wanted)
        case RowShape.TRANSACTIONS:
            return transaction_rows(decode_bodies(group, verify=options.verify), options.columns, wanted)
        case RowShape.BATCHES:
            return batch_rows([header for header, _ in group], options.columns, wanted)
        case _:
            assert_never(options.shape)


_NEEDED: Final = ("version", "kind", "key", "end", "value")
"""What the choice of rows, and the error for a value that does not fit, look at."""


def typed_scan(
    options: ReadOptions, read: Callable[[ReadOptions], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """The rows that ``read`` finds for the options, with the options' columns in their types.

    Raises: InvalidRequest for a key or a value that does not fit, and what ``read`` raises. Cost: a read without types
    that wants every key is passed through.
    """
    choice = Choice(options.key_prefixes)
    if options.typing.is_plain and choice.is_everything:
        yield from read(options)
        return
    columns = (*options.columns, *(name for name in _NEEDED if name not in options.columns))
    for batch in read(replace(options, columns=columns)):
        rows = choice.of(batch)
        if rows.num_rows:
            yield typed_batch(rows, options.typing).select(list(options.columns))
