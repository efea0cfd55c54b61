"""Reading one piece of the log inside a task: fetch ahead, check everything, yield few large record batches.

Owns: the order of reading, the checks of headers, bodies and links, the size of what is yielded.
Does not own: which slots (``plan``), what a row looks like (``shapes``), retries of requests (``objects.budget``).

Failure model: an object that is missing, damaged, or does not continue the chain raises CorruptData naming the slot and
the rule, also where it is the border to the piece before. A store that does not answer raises Unavailable, and Spark
runs the task again: reading changes nothing. Batches yielded before an error belong to a task that fails as a whole.

Store requests run on one event loop in one thread of this task's own, so that fetching goes on while Spark consumes.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Final, Self, TypeVar, assert_never

import pyarrow as pa

from holdfast.commit.batch import (
    BODY_SCHEMA,
    FIRST_SLOT,
    FLAG_LZ4,
    HEADER_BYTES,
    Kind,
    decode_header,
    object_name,
    read_body_table,
)
from holdfast.commit.chain import ChainWalker, broken
from holdfast.errors import NotFound
from holdfast.objects.budget import BudgetedStore
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectStore
from holdfast.spark.options import ReadOptions
from holdfast.spark.plan import Piece, lost, read_header
from holdfast.spark.shapes import Body, RowFilter, Shape, batch_rows, check_versions, operation_rows, transaction_rows
from holdfast.values import slot_text

__all__ = ["StoreThread", "checked_bodies", "scan"]

T = TypeVar("T")

FETCH_BYTES: Final = 16 * 2**20
"""How many bytes one round of concurrent requests asks for; two rounds are under way at a time."""
FETCH_OBJECTS_MAX: Final = 64
ROUNDS_AHEAD: Final = 2
CONNECTIONS_MAX: Final = 64
BATCH_ROWS: Final = 32 * 1024
BATCH_BYTES: Final = 8 * 2**20
"""A yielded record batch closes at either bound; only a single larger object passes them."""


class StoreThread:
    """An object store on an event loop of its own, for code that may not await.

    Used as a context manager; leaving it abandons what is under way, which is harmless for reads.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-store", daemon=True)
        self._store: ObjectStore | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._store = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        finally:
            self._stop()

    async def _open(self) -> ObjectStore:
        store = open_store(self._url, connections_max=CONNECTIONS_MAX)
        return BudgetedStore(store, connections_max=CONNECTIONS_MAX, creates_max=1)

    async def _close(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert self._store is not None, "only an opened store is closed"
        await self._store.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, work: Callable[[ObjectStore], Coroutine[object, object, T]]) -> Future[T]:
        """Begin ``work`` on the store and return at once."""
        assert self._store is not None, "the store is open inside the with block only"
        return asyncio.run_coroutine_threadsafe(work(self._store), self._loop)


def scan(options: ReadOptions, wanted: RowFilter, piece: Piece) -> Iterator[pa.RecordBatch]:
    """The rows of one piece, in log order, as record batches of the options' shape and columns.

    Raises: CorruptData, Unavailable. Cost: one request an object, and two for the border to the piece before.
    """
    pending: list[Body] = []
    rows = size = 0
    for body in checked_bodies(options, piece):
        if options.shape is not Shape.BATCHES and not body.header.transactions:
            continue
        pending.append(body)
        rows += max(1, body.rows.num_rows)
        size += _decoded_bytes(body)
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield from _shaped(pending, options, wanted)
            pending, rows, size = [], 0, 0
    if pending:
        yield from _shaped(pending, options, wanted)


def _decoded_bytes(body: Body) -> int:
    """The rows in memory, roughly. Asking Arrow costs as much as decoding a tiny body: only if they differ."""
    return body.rows.nbytes if body.header.flags & FLAG_LZ4 else body.header.body_length


def checked_bodies(options: ReadOptions, piece: Piece) -> Iterator[Body]:
    """Every live object of the piece, in log order, each checked by itself and against the one before it.

    The shape ``batches`` reads headers only: then bodies are not fetched, not checked and empty.
    """
    headers_only = options.shape is Shape.BATCHES
    with StoreThread(options.url) as thread:
        walker = thread.start(lambda store: _walker_at(store, piece)).result()
        for slot, data in _fetched(thread, piece, headers_only=headers_only):
            header = decode_header(data, slot=slot)
            if walker.head is None or walker.head.slot != slot:
                walker.accept(header)
            body = Body(header, BODY_SCHEMA.empty_table() if headers_only else read_body_table(data, header))
            if not headers_only:
                check_versions(body)
            yield body


async def _walker_at(store: ObjectStore, piece: Piece) -> ChainWalker:
    """A walker that expects the first object of the piece next, or, in a truncated log, stands on it already."""
    first = piece.runs[0][0]
    if piece.head is None and first == FIRST_SLOT:
        return ChainWalker()
    head = await read_header(store, first if piece.head is None else piece.head)
    if head.kind is Kind.CLAIM:
        return ChainWalker(head, head)
    claim = await read_header(store, head.claim)
    own = (head.log_id, head.epoch, head.leader_id)
    if own != (claim.log_id, claim.epoch, claim.leader_id) or piece.claim not in (None, claim.slot):
        raise broken("object is not of the leader that claimed", head.slot, claim=slot_text(claim.slot))
    return ChainWalker(head, claim)


def _fetched(thread: StoreThread, piece: Piece, *, headers_only: bool) -> Iterator[tuple[int, bytes]]:
    """The objects of the piece in log order, fetched in rounds of concurrent requests, two rounds ahead."""
    length = HEADER_BYTES if headers_only else None
    each = HEADER_BYTES if headers_only else max(1, piece.object_bytes // piece.objects)
    round_objects = max(1, min(FETCH_OBJECTS_MAX, FETCH_BYTES // each))
    slots = (slot for first, last in piece.runs for slot in range(first, last - 1, -1))
    under_way: deque[tuple[Sequence[int], Future[list[bytes]]]] = deque()
    while True:
        while len(under_way) < ROUNDS_AHEAD and (wanted := tuple(islice(slots, round_objects))):
            under_way.append((wanted, thread.start(partial(_read_round, slots=wanted, length=length))))
        if not under_way:
            return
        done, future = under_way.popleft()
        yield from zip(done, future.result(), strict=True)


async def _read_round(store: ObjectStore, *, slots: Sequence[int], length: int | None) -> list[bytes]:
    return await asyncio.gather(*(_read(store, slot, length) for slot in slots))


async def _read(store: ObjectStore, slot: int, length: int | None) -> bytes:
    try:
        return await store.read(object_name(slot), start=0, length=length)
    except NotFound:
        raise lost("an object of the live chain is missing", slot) from None


def _shaped(bodies: Sequence[Body], options: ReadOptions, wanted: RowFilter) -> Iterator[pa.RecordBatch]:
    match options.shape:
        case Shape.OPERATIONS:
            batch = operation_rows(bodies, options.columns, wanted)
        case Shape.TRANSACTIONS:
            batch = transaction_rows(bodies, options.columns, wanted)
        case Shape.BATCHES:
            batch = batch_rows([body.header for body in bodies], options.columns)
        case _:
            assert_never(options.shape)
    if batch.num_rows:
        yield batch
