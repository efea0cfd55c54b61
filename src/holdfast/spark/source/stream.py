"""``readStream.format("holdfast")``: follow the end of the log, one micro-batch at a time.

An offset is ``{"seq": 41, "version": 1043, "log_id": "..."}``: every object up to that ``seq`` and every row up to
that version of that log has been returned. The same two offsets give the same rows always. The object after the head
has one known slot, so polling costs one read and no listing. A missing object between two offsets raises NotFound when
retention removed it (with ``failOnDataLoss`` off the stream continues with the oldest object left), CorruptData
otherwise. An offset of another log raises InvalidRequest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from holdfast.commit.format.batch import FIRST_SLOT, Header
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.reading.reader import find_header
from holdfast.errors import HoldfastError
from holdfast.objects.port import ObjectStore
from holdfast.spark.options import Admission, ReadOptions
from holdfast.spark.positions import Given, Offset, Position, foreign, offset_of, position_in
from holdfast.spark.runtime.processes import states_errors
from holdfast.spark.runtime.refusals import log_truncated
from holdfast.spark.runtime.store_thread import StoreThread, is_directory
from holdfast.spark.source.chain import (
    Chain,
    LiveEnd,
    claim_of,
    index_after,
    lineage_at,
    live_chain,
    live_part,
    lost,
    newest_header,
    read_header,
    require_log,
)
from holdfast.spark.source.plan import LogPartition, Piece, SegmentPartition, cut, first_object, planned_chain
from holdfast.spark.source.reader import rows_of
from holdfast.spark.source.reading import PolledStream
from holdfast.spark.source.shapes import row_filter, seq_of

AHEAD_MAX: Final = 16
"""Headers read at once while the stream catches up."""
JUMP_TO_END_AFTER: Final = 256
"""Objects walked one by one before the end is looked for by listing."""
BEFORE_GENESIS_SEQ: Final = -1


def position_of(header: Header, at_least: int = 0) -> Position:
    """The offset after an object; ``at_least`` is a version that rows must be above in any case."""
    return Position(seq_of(header.slot), max(header.last_version, at_least), header.log_id.hex())


async def head_position(store: ObjectStore) -> Position:
    """The offset after the newest object. Cost: one LIST page, two rounds of headers.

    Raises: NotFound (``log_empty``), CorruptData, Unavailable.
    """
    return position_of(await newest_header(store))


async def starting_position(store: ObjectStore, options: ReadOptions) -> Position:
    """The offset where a new stream with these options begins.

    Raises: NotFound (``log_empty``, ``log_truncated``), CorruptData, Unavailable. Cost: as planning a batch read.
    """
    if options.from_latest:
        return await head_position(store)
    after = options.starting_after
    if after is not None and after.seq is not None:
        newest = await newest_header(store)
        await require_position(store, newest, after)
        return Position(after.seq, after.version, after.log_id or newest.log_id.hex())
    chain, _ = await planned_chain(store, options)
    if after is not None:
        require_log(chain.lineage, after)
    index = await first_object(store, chain, options, options.starting_version)
    version = after.version if after is not None else max(0, (options.starting_version or 0) - 1)
    if index > 0:
        return position_of(await read_header(store, int(chain.slots[index - 1])), version)
    if not chain.truncated:
        return Position(BEFORE_GENESIS_SEQ, version, None if chain.lineage is None else chain.lineage.log_id)
    oldest = await read_header(store, int(chain.slots[0]))
    return Position(seq_of(oldest.prev), max(version, oldest.prev_version), oldest.log_id.hex())


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """Where a micro-batch may end, how many transactions are before it, and whether the log ends there."""

    end: Position
    transactions: int
    is_end_of_log: bool


async def lag_after(store: ObjectStore, position: Position) -> dict[str, float]:
    """What the log has after an offset: ``versions``, and ``seconds`` between the newest object and that offset's.

    Both are facts of the log, not of a clock, so a log that does not grow has the same lag always. Cost: one LIST page,
    three rounds of headers. Raises: NotFound, CorruptData, InvalidRequest (another log), Unavailable.
    """
    newest = await newest_header(store)
    await require_position(store, newest, position)
    last = await read_header(store, FIRST_SLOT - max(0, _seq(position)))
    milliseconds = max(0, newest.time_ms - last.time_ms)
    return {"versions": max(0, newest.last_version - position.version), "seconds": milliseconds / 1000}


class ChainTail:
    """The live chain after an offset. Keeps the headers of the objects of one micro-batch."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._start_seq: int | None = None
        self._log_id: str | None = None
        self._walker = ChainWalker()
        self._before: Header | None = None
        self._walked: list[Header] = []
        self._is_unproved = True

    async def end_of_batch(
        self,
        store: ObjectStore,
        start: Position,
        bounds: Admission,
        limit: Position | None = None,
        *,
        prove_end: bool = False,
    ) -> BatchEnd:
        """Where a micro-batch from ``start`` ends within ``bounds`` and not after ``limit``.

        A slot that is empty is the end of the log, or was emptied by retention before this stream came to it;
        ``prove_end`` asks which (always asked once for an offset that is new to this process).

        Raises: NotFound, CorruptData, Unavailable. Cost: one read when there is nothing new, one per new object.
        """
        if limit is not None and limit.log_id != start.log_id:
            await require_position(store, await newest_header(store), start)
        if limit is not None and not bounds.is_limited:
            end = Position(limit.seq, max(limit.version, start.version), limit.log_id)
            return BatchEnd(end if _seq(limit) > _seq(start) else start, 0, is_end_of_log=True)
        await self._stand_at(store, start)
        taken = transactions = size = 0
        while True:
            if taken == len(self._walked):
                if taken >= JUMP_TO_END_AFTER and not bounds.is_limited and transactions >= (bounds.rows_min or 0):
                    end = await head_position(store)
                    end = Position(end.seq, max(end.version, start.version), end.log_id)
                    return BatchEnd(end, transactions, is_end_of_log=True)
                if not await self._walk_on(store):
                    if (prove_end or self._is_unproved) and not taken and await self._was_removed(store, start):
                        continue
                    return self._batch_end(start, taken, transactions, is_end=True)
            header = self._walked[taken]
            if limit is not None and seq_of(header.slot) > _seq(limit):
                return self._batch_end(start, taken, transactions, is_end=True)
            size += header.object_bytes()
            amounts = taken + 1, size, transactions + header.transactions
            limits = bounds.objects_max, bounds.bytes_max, bounds.rows_max
            if taken and any(most is not None and one > most for one, most in zip(amounts, limits, strict=True)):
                return self._batch_end(start, taken, transactions, is_end=False)
            transactions += header.transactions
            taken += 1

    def _batch_end(self, start: Position, taken: int, transactions: int, *, is_end: bool) -> BatchEnd:
        end = position_of(self._walked[taken - 1], start.version) if taken else start
        return BatchEnd(end, transactions, is_end)

    async def _stand_at(self, store: ObjectStore, start: Position) -> None:
        """Make ``_walked`` the known headers right after ``start``, and ``_before`` the one before them."""
        if self._start_seq == start.seq:
            return
        for index, header in enumerate(self._walked):
            if seq_of(header.slot) == start.seq:
                self._before = header
                del self._walked[: index + 1]
                break
        else:
            self._walked = []
            self._walker, self._before, first = await _walker_after(store, start, self._options)
            known = self._before or first
            self._log_id = start.log_id if known is None else known.log_id.hex()
            if first is not None:
                self._walked.append(first)
            self._is_unproved = True
        self._start_seq = start.seq

    async def _walk_on(self, store: ObjectStore) -> bool:
        """Take what follows the last header that is known; False at the end of the log."""
        walker = self._walker
        first = await find_header(store, walker.next_slot)
        if first is None:
            return False
        ids = (first.log_id, first.parent_log_id)
        if self._log_id is not None and self._log_id not in (each.hex() for each in ids if each is not None):
            require_log(Lineage(first.log_id.hex()), Position(None, 0, self._log_id))
        walker.accept(first)
        self._log_id = first.log_id.hex()
        self._walked.append(first)
        # After a new object there may be more. They are read together and taken as far as they continue.
        ahead = range(walker.next_slot, max(0, walker.next_slot - min(len(self._walked), AHEAD_MAX)), -1)
        for header in await asyncio.gather(*(find_header(store, slot) for slot in ahead)):
            if header is None or header.slot != walker.next_slot:
                break
            walker.accept(header)
            self._walked.append(header)
        return True

    async def _was_removed(self, store: ObjectStore, start: Position) -> bool:
        """After an empty slot: False at the end of the log; True when the walk continues after what was removed."""
        self._is_unproved = False
        newest = await newest_header(store)
        await require_position(store, newest, Position(None, 0, self._log_id))
        head = position_of(newest)
        if _seq(head) <= _seq(start) or await find_header(store, self._walker.next_slot) is not None:
            return _seq(head) > _seq(start)
        oldest = await _oldest_after(store, start, self._options)
        if oldest is None:
            raise lost("an acknowledged object is missing", self._walker.next_slot)
        self._walker, self._before = ChainWalker(oldest, await claim_of(store, oldest)), None
        self._walked = [oldest]
        return True

    def chain_between(self, start: Position, end: Position) -> tuple[Chain, int] | None:
        """The walked objects up to ``end`` with the one before ``start``, if any, and the index after it."""
        if self._start_seq != start.seq:
            return None
        for index, header in enumerate(self._walked):
            if seq_of(header.slot) == end.seq:
                before = [] if self._before is None else [self._before]
                headers = [*before, *self._walked[: index + 1]]
                forks: dict[str, int] = {
                    one.parent_log_id.hex(): one.forked_at for one in headers if one.parent_log_id is not None
                }
                slots = np.array([one.slot for one in headers], dtype=np.uint64)
                sizes = np.array([one.object_bytes() for one in headers], dtype=np.int64)
                return Chain(slots, sizes, truncated=False, lineage=Lineage(header.log_id.hex(), forks)), len(before)
        return None


def _seq(position: Position) -> int:
    assert position.seq is not None, "an offset of a running stream names its object"
    return position.seq


async def require_position(store: ObjectStore, newest: Header, position: Position) -> None:
    """Return if the position is one of the log that ends with ``newest``. Raises: as ``require_log``, Unavailable."""
    if position.log_id not in (None, newest.log_id.hex()):
        require_log(await lineage_at(store, newest, newest.slot), position)


async def _walker_after(
    store: ObjectStore, start: Position, options: ReadOptions
) -> tuple[ChainWalker, Header | None, Header | None]:
    """A walker whose next object is the first one after ``start``, and the object before that.

    Where a truncated log begins after ``start``, the walker has already taken the oldest object, which comes third.
    """
    seq = _seq(start)
    if seq < 0:
        return ChainWalker(), None, None
    head = await find_header(store, FIRST_SLOT - seq)
    if head is not None:
        if start.log_id not in (None, head.log_id.hex()):
            await require_position(store, await newest_header(store), start)
        return ChainWalker(head, await claim_of(store, head)), head, None
    oldest = await _oldest_after(store, start, options)
    if oldest is None:
        raise lost("the object that an offset names is missing", FIRST_SLOT - seq)
    return ChainWalker(oldest, await claim_of(store, oldest)), None, oldest


async def _oldest_after(store: ObjectStore, start: Position, options: ReadOptions) -> Header | None:
    """In a log that was truncated after ``start``, the oldest object left; None in any other.

    Raises: NotFound (``log_truncated``) when something between them was removed, unless ``failOnDataLoss`` is off.
    """
    chain = await live_chain(store)
    require_log(chain.lineage, start)
    if not chain.truncated or index_after(chain, _seq(start)):
        return None
    oldest = await read_header(store, int(chain.slots[0]))
    if options.fail_on_data_loss and seq_of(oldest.prev) > _seq(start):
        raise log_truncated(
            "data loss: retention has removed what this stream has not read",
            hint="start a new stream from a snapshot, or set failOnDataLoss=false to continue with what is left",
            read_through=start.version,
            removed_through=oldest.prev_version,
        )
    return oldest


async def pieces_between(
    store: ObjectStore, tail: ChainTail, options: ReadOptions, start: Position, end: Position
) -> list[Piece]:
    """The pieces that hold the objects after ``start`` up to ``end``: always the same ones.

    Raises: NotFound (``log_truncated``), CorruptData, Unavailable. Cost: none after ``tail``, else a listing.
    """
    if end.log_id != start.log_id:
        await require_position(store, await newest_header(store), start)
    if _seq(end) <= _seq(start):
        return []
    chain, first = tail.chain_between(start, end) or await _listed_between(store, options, start, end)
    # At least how many is never decided by the machine, because a replay has the same pieces.
    return cut(chain, first, len(chain.slots), options.target_partition_bytes, options.partitions_min or 1)


async def _listed_between(
    store: ObjectStore, options: ReadOptions, start: Position, end: Position
) -> tuple[Chain, int]:
    """The chain up to ``end``, and the index after ``start`` in it."""
    slot = FIRST_SLOT - _seq(end)
    begin, last = await find_header(store, FIRST_SLOT - max(_seq(start), 0)), await find_header(store, slot)
    if last is None:
        await require_position(store, await newest_header(store), end if end.log_id else start)
        raise lost("the object that an offset names is missing", slot)
    chain = None if begin is None else await live_part(store, LiveEnd(last, last), begin, last)
    if chain is None:
        await _oldest_after(store, start, options)  # refuses what retention has removed
        chain = await live_chain(store)  # says what is damaged
    require_log(chain.lineage, end if end.log_id else start)
    past = index_after(chain, _seq(end))
    if not past or int(chain.slots[past - 1]) != slot:
        raise lost("everything up to this offset was removed", slot)
    return replace(chain, slots=chain.slots[:past], sizes=chain.sizes[:past]), index_after(chain, _seq(start))


POLL_MS_DIRECTORY: Final = 10
POLL_MS_REMOTE: Final = 200
PROVE_END_EVERY_MS: Final = 30_000
LAG_EVERY_MS: Final = 1000
"""A stream that is behind asks at most this often by how much: the answer costs a listing."""
OBJECTS_MIN: Final = 64
"""A smaller micro-batch is read from the log alone, and the Delta log of the segments is not read."""
_EVERYTHING: Final = Admission()


@states_errors
class HoldfastStreamReader(PolledStream[Position]):
    """One streaming query's view of the log."""

    def __init__(self, options: ReadOptions) -> None:
        default_ms = POLL_MS_DIRECTORY if is_directory(options.url) else POLL_MS_REMOTE
        is_bounded = options.admission.is_limited or options.admission.rows_min is not None
        super().__init__(partial(rows_of, options), options.poll_ms or default_ms, is_bounded=is_bounded)
        self._options = options
        self._thread = StoreThread(options.url)
        self._tail = ChainTail(options)
        self._proved_ms: float | None = None
        self._batch_ms: float | None = None
        self._seen: Position | None = None
        self._is_at_end = False
        self._lag: dict[str, float] | None = None
        self._lag_asked_ms: float | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        """Where a query without a checkpoint begins. Raises: NotFound, CorruptData, Unavailable."""
        options = self._options
        return offset_of(self._thread.run(lambda store: starting_position(store, options)))

    def _newest(self) -> Position:
        return self._thread.run(head_position)

    def _next_offset(self, start: Given, *, is_bounded: bool) -> Offset | None:
        begin = _position(start)
        now_ms = time.monotonic() * 1000
        is_bounded_run = self._target is not None
        prove_end = self._proved_ms is None or now_ms - self._proved_ms > PROVE_END_EVERY_MS
        self._proved_ms = now_ms if prove_end else self._proved_ms
        bounds = self._options.admission if is_bounded else _EVERYTHING
        target = self._target
        end = self._thread.run(lambda store: self._tail.end_of_batch(store, begin, bounds, target, prove_end=prove_end))
        self._seen, self._is_at_end = end.end, end.is_end_of_log and not is_bounded_run
        self._batch_ms = now_ms if self._batch_ms is None else self._batch_ms
        too_few = bounds.rows_min is not None and end.transactions < bounds.rows_min and end.is_end_of_log
        waits = too_few and not is_bounded_run and now_ms - self._batch_ms < bounds.delay_ms_max
        if end.end == begin or waits:
            return None
        self._batch_ms = now_ms
        return offset_of(end.end)

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802  Spark's name
        """The newest offset seen so far, for the query's progress, with the lag of the micro-batch that ends there.

        A source in Python cannot fill the ``metrics`` of a progress; this is the only place that it can.
        """
        seen = self._seen
        if seen is None:
            return None
        now_ms = time.monotonic() * 1000
        if self._is_at_end:
            self._lag = {"versions": 0, "seconds": 0.0}
        elif self._lag_asked_ms is None or now_ms - self._lag_asked_ms > LAG_EVERY_MS:
            self._lag_asked_ms = now_ms
            # A store that does not respond fails the next micro-batch, if it has to, but not a report.
            with suppress(HoldfastError):
                self._lag = self._thread.run(lambda store: lag_after(store, seen))
        progress: dict[str, object] = {**offset_of(seen)}
        if self._lag is not None:
            progress["lag"] = self._lag
        return progress

    def partitions(self, start: Given, end: Given) -> Sequence[LogPartition | SegmentPartition]:
        """The pieces between two offsets. Raises: NotFound (``log_truncated``), CorruptData, Unavailable."""
        options = self._options
        begin, until = _position(start), _position(end)
        assert begin.seq is not None and until.seq is not None, "an offset of a stream names its object"
        # A start in the history of another log is looked up by the tail, and segments are of one log.
        is_of_one_log = begin.log_id in (None, until.log_id)
        if options.segments_url is not None and is_of_one_log and until.seq - begin.seq >= OBJECTS_MIN:
            # Here: a worker process that reads no segments should not load Parquet and Delta.
            from holdfast.spark.source.segments import plan_with_segments

            after, pieces_min = Position(begin.seq, begin.version), options.partitions_min or 1
            options = replace(options, starting_version=None, starting_ms=None, from_latest=False)
            between = replace(options, starting_after=after, ending_at=until, partitions_min=pieces_min)
            return plan_with_segments(between, None)
        wanted = replace(row_filter(options), version_min=begin.version + 1 if begin.version else None)
        pieces = self._thread.run(lambda store: pieces_between(store, self._tail, options, begin, until))
        return [LogPartition(piece, wanted) for piece in pieces]

    def stop(self) -> None:
        """Close what is open; the query has ended."""
        self._thread.close()


def _position(offset: Given) -> Position:
    position = position_in(offset, Position)
    if position.seq is None or position.log_id is None:
        raise foreign(offset, "seq or log_id is missing")
    return position
