"""Plan a read: the part of the live chain that it needs, bounded by versions, and cut into pieces.

Where a read begins or ends inside the log, a search of headers finds the object before its first and its last one, and
only what is between them is listed. Cost: a LIST page for the end of the log, the pages of that part, and about
log2(objects) headers per bound. Memory: 16 bytes per object of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from holdfast.commit.format.batch import CLAIM_BYTES, FIRST_SLOT, Header
from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.reading.reader import find_header
from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.objects.port import ObjectStore
from holdfast.spark.options import ReadOptions
from holdfast.spark.positions import Position
from holdfast.spark.runtime.processes import cores
from holdfast.spark.runtime.refusals import log_truncated
from holdfast.spark.runtime.store_thread import with_store
from holdfast.spark.source.chain import (
    Chain,
    Indices,
    LiveEnd,
    first_index,
    frontier_of,
    index_after,
    live_chain,
    live_part,
    newest_before,
    read_header,
    require_log,
)
from holdfast.spark.source.shapes import RowFilter, row_filter, seq_of

OBJECT_COST_BYTES: Final = 8 * 1024
"""What reading one more object costs a task, as bytes read in the same time; keeps partitions of tiny objects short."""
WORTH_A_TASK_BYTES: Final = 4 * 2**20
"""A log is cut for idle cores into pieces of at least this: a task costs as much as reading some MiB."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one task reads: runs of live slots in the order of writing, and where they hang in the chain.

    Shape: each run is (first, last), first >= last, both inclusive. ``head`` is the slot before the first run and
    ``claim`` the newest claim at or before ``head``; None when there is none in what is left of the log. ``lineage`` is
    that of the log that was planned; a task that finds another one there refuses it.
    """

    runs: tuple[tuple[int, int], ...]
    head: int | None
    claim: int | None
    objects: int
    object_bytes: int
    lineage: Lineage | None = None

    def slots(self) -> Iterator[int]:
        """The slots in the order of writing."""
        return (slot for first, last in self.runs for slot in range(first, last - 1, -1))


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The pieces of a read in log order, and the rows that are wanted from them."""

    pieces: list[Piece]
    wanted: RowFilter


async def plan_read(store: ObjectStore, options: ReadOptions, pushed: RowFilter | None = None) -> ReadPlan:
    """The pieces that together hold every live object that ``options`` and the ``pushed`` filters ask for.

    Raises: NotFound (``log_empty``, ``log_truncated``), InvalidRequest (also ``log_mismatch``), CorruptData,
    Unavailable.
    """
    chain, newest = await planned_chain(store, options, pushed)
    if options.starting_after is not None:
        require_log(chain.lineage, options.starting_after)
    if options.ending_at is not None:
        require_log(chain.lineage, options.ending_at)
    starting = options.starting_version
    if options.from_latest:
        starting = newest.last_version
    past, ending = await _end(store, chain, options, newest)
    first = await first_object(store, chain, options, starting)
    if options.starting_after is not None:
        starting = options.starting_after.version + 1
    wanted = replace(row_filter(options), version_min=starting, version_max=ending)
    if pushed is not None:
        first, past = await _narrowed(store, chain, first, past, pushed)
        wanted = wanted.and_also(pushed)
    return plan_of(ChainPart(chain, first, past), options, wanted)


@dataclass(frozen=True, slots=True)
class ChainPart:
    """The objects ``[first, past)`` of a chain."""

    chain: Chain
    first: int
    past: int


def plan_of(part: ChainPart, options: ReadOptions, wanted: RowFilter) -> ReadPlan:
    """The pieces of a part that has been listed: without the option one for each core, if each has enough to read."""
    chain, first, past = part.chain, part.first, part.past
    cost = int(chain.sizes[first:past].sum()) + OBJECT_COST_BYTES * max(0, past - first)
    pieces_min = options.partitions_min or max(1, min(cores(), cost // WORTH_A_TASK_BYTES))
    return ReadPlan(cut(chain, first, past, options.target_partition_bytes, pieces_min), wanted)


async def planned_chain(
    store: ObjectStore, options: ReadOptions, pushed: RowFilter | None = None
) -> tuple[Chain, Header]:
    """The live chain as far as the read needs it, at least one object before it, and the newest header of the log.

    The whole chain where the read has no bounds, and where a part cannot be had. Raises: NotFound (``log_empty``),
    CorruptData, Unavailable.
    """
    if _is_bounded(options, pushed):
        part = await _part(store, options, pushed)
        if part is not None:
            return part
    chain = await live_chain(store)
    return chain, await read_header(store, int(chain.slots[-1]))


def _is_bounded(options: ReadOptions, pushed: RowFilter | None) -> bool:
    """Whether the read leaves out objects. A read as of a time needs the beginning of the log for its error."""
    if options.as_of_ms is not None:
        return False
    bounds = (
        *(options.starting_after, options.starting_version, options.starting_ms),
        *(options.ending_at, options.ending_version, options.ending_ms),
        *((pushed.version_min, pushed.seq_min) if pushed is not None else ()),
    )
    return options.from_latest or any(each is not None for each in bounds)


async def _part(store: ObjectStore, options: ReadOptions, pushed: RowFilter | None) -> tuple[Chain, Header] | None:
    """The live objects of the range alone. None where that is not possible: the whole log must be listed."""
    try:
        frontier = await frontier_of(store)
        begin = await newest_before(store, frontier, _wanted_from(options, pushed, frontier))
        if begin is None:
            begin = await find_header(store, FIRST_SLOT)  # with a hole after it where retention has been
        is_past = _is_past(options)
        last = frontier.newest if is_past is None else await newest_before(store, frontier, is_past)
        if begin is None or last is None:
            return None
        newer = min(begin, last, key=lambda header: header.slot)  # slots count down
        chain = await live_part(store, frontier, begin, newer)
    except CorruptData:
        return None  # the whole chain says what is damaged, if it is what the read needs
    return None if chain is None else (chain, frontier.newest)


def _wanted_from(options: ReadOptions, pushed: RowFilter | None, frontier: LiveEnd) -> Callable[[Header], bool]:
    """Whether an object is the first that the read wants, or a later one. A filter narrows a read without a start."""
    after, since_ms = options.starting_after, options.starting_ms
    lowest = frontier.newest.last_version if options.from_latest else options.starting_version
    seq = None if after is None else after.seq
    if after is not None and seq is None:
        lowest = after.version + 1
    if seq is None and lowest is None and since_ms is None and pushed is not None:
        lowest, seq = pushed.version_min, None if pushed.seq_min is None else pushed.seq_min - 1
    # Of a start by version and one by time the version decides: what is before it may be lost, which is an error.
    by_time = since_ms if lowest is None else None
    return lambda header: (
        (seq is None or header.slot < FIRST_SLOT - seq)
        and (lowest is None or header.last_version >= lowest)
        and (by_time is None or header.time_ms >= by_time)
    )


def _is_past(options: ReadOptions) -> Callable[[Header], bool] | None:
    """Whether an object is after the last one that the read wants; None for a read without an end."""
    at = options.ending_at
    seq = None if at is None else at.seq
    highest = options.ending_version if at is None else at.version
    until_ms = options.ending_ms if options.as_of_ms is None else options.as_of_ms
    if seq is not None:
        return lambda header: header.slot < FIRST_SLOT - seq
    if highest is not None:
        return lambda header: header.first_version > highest
    return None if until_ms is None else lambda header: header.time_ms > until_ms


async def _end(store: ObjectStore, chain: Chain, options: ReadOptions, newest: Header) -> tuple[int, int | None]:
    """The index after the last object that ``options`` ask for, and the last version, None for all of that object.

    Raises: InvalidRequest (``future_version``), NotFound (``log_truncated``: an as-of time before the oldest object).
    """
    ending, at = options.ending_version, options.ending_at
    if at is not None and at.seq is not None:
        if at.seq > seq_of(newest.slot):
            raise _past_the_end("endingOffsets", newest, ending_seq=at.seq)
        return index_after(chain, at.seq), None
    if at is not None:
        ending = at.version
    if ending is not None and ending > newest.last_version:
        raise _past_the_end("endingVersion" if at is None else "endingOffsets", newest, ending_version=ending)
    is_past = _is_past(options)
    past = len(chain.slots) if is_past is None else await first_index(store, chain, is_past)
    if past == 0 and options.as_of_ms is not None:
        oldest = await read_header(store, int(chain.slots[0]))
        raise log_truncated(
            "timestampAsOf is before the oldest object of the log",
            hint="give a later time; a removed part of the log may be in segments or in a snapshot",
            as_of_ms=options.as_of_ms,
            oldest_ms=oldest.time_ms,
        )
    return past, ending


def _past_the_end(option: str, newest: Header, **asked: int) -> InvalidRequest:
    return InvalidRequest(
        f"{option} is past the end of the log",
        code=Code.FUTURE_VERSION,
        facts={**asked, "last_version": newest.last_version, "last_seq": seq_of(newest.slot)},
    )


def ending_version(url: str, options: ReadOptions) -> int | None:
    """The last version that ``options`` ask for, None for the end of the log. Cost: for a time or an offset a search of
    headers and a page; for ``timestampAsOf`` a listing.

    Raises: as ``plan_read``; NotFound (``log_truncated``) also for an end before the oldest object.
    """
    if options.ending_at is None and options.ending_ms is None and options.as_of_ms is None:
        return options.ending_version

    # Of a bounded end only the objects around it are listed.
    around = replace(
        options,
        starting_version=None,
        starting_after=options.ending_at,
        starting_ms=options.ending_ms,
        from_latest=False,
    )

    async def resolved(store: ObjectStore) -> int | None:
        chain, newest = await planned_chain(store, around)
        if options.ending_at is not None:
            require_log(chain.lineage, options.ending_at)
        past, version = await _end(store, chain, options, newest)
        if version is not None:
            return version
        if past > 0:
            return (await read_header(store, int(chain.slots[past - 1]))).last_version
        if not chain.truncated:
            return 0
        raise log_truncated(
            "the end of this read is before the oldest object of the log",
            hint="give endingVersion, which segments know without the log",
        )

    return with_store(url, resolved)


async def first_object(store: ObjectStore, chain: Chain, options: ReadOptions, starting: int | None) -> int:
    """Where in the chain reading begins: the first object that may hold what ``options`` (and ``starting``) ask for.

    Raises: NotFound (``log_truncated``) when retention has removed some of it, unless ``failOnDataLoss`` is off.
    """
    after, since_ms = options.starting_after, options.starting_ms
    if since_ms is not None:
        since = await first_index(store, chain, lambda header: header.time_ms >= since_ms)
        if starting is None:
            return since
        # Both are given where segments hold the versions before ``starting``.
        return max(since, await first_object(store, chain, replace(options, starting_ms=None), starting))
    if after is not None and after.seq is not None:
        seq = after.seq
        await _refuse_loss(store, chain, options, lambda oldest: seq_of(oldest.prev) > seq, after)
        return index_after(chain, seq)
    lowest = starting if after is None else after.version + 1
    if lowest is None:
        return 0
    before = Position(None, lowest - 1)
    await _refuse_loss(store, chain, options, lambda oldest: lowest <= oldest.prev_version, before)
    return await first_index(store, chain, lambda header: header.last_version >= lowest)


async def _narrowed(store: ObjectStore, chain: Chain, first: int, past: int, pushed: RowFilter) -> tuple[int, int]:
    """The part of ``[first, past)`` that may hold rows of a filter. Nothing there is no error: a filter asks."""
    if pushed.seq_min is not None:
        first = max(first, index_after(chain, pushed.seq_min - 1))
    if pushed.seq_max is not None:
        past = min(past, index_after(chain, pushed.seq_max))
    lowest, highest = pushed.version_min, pushed.version_max
    if lowest is not None:
        first = max(first, await first_index(store, chain, lambda header: header.last_version >= lowest))
    if highest is not None:
        past = min(past, await first_index(store, chain, lambda header: header.first_version > highest))
    return first, past


async def _refuse_loss(
    store: ObjectStore, chain: Chain, options: ReadOptions, is_lost: Callable[[Header], bool], after: Position
) -> None:
    if not chain.truncated or not options.fail_on_data_loss:
        return
    oldest = await read_header(store, int(chain.slots[0]))
    if is_lost(oldest):
        raise log_truncated(
            "data loss: retention has removed versions that this read starts from",
            hint="start from a newer version or a snapshot, or set failOnDataLoss=false to begin with what is left",
            after_version=after.version,
            after_seq=after.seq,
            removed_through=oldest.prev_version,
        )


def cut(chain: Chain, first: int, past: int, target_bytes: int, pieces_min: int = 1) -> list[Piece]:
    """Pieces of nearly equal cost, none much above ``target_bytes``, never fewer objects than one.

    At least ``pieces_min`` pieces, if there are as many objects of similar size. More than that are made an even
    number of pieces: with one left over, half of a small machine waits for the last.
    """
    if first >= past:
        return []
    costs = chain.sizes[first:past] + OBJECT_COST_BYTES
    ends = np.cumsum(costs)
    total = int(ends[-1])
    pieces = -(-total // target_bytes)
    share = -(-total // max(pieces_min, pieces + pieces % 2 if pieces > 1 else 1))
    cuts = np.flatnonzero(np.diff((ends - costs) // share)) + 1
    edges = [first, *(first + int(cut) for cut in cuts), past]
    claims = np.flatnonzero(chain.sizes == CLAIM_BYTES)
    return [_piece(chain, claims, a, b) for a, b in pairwise(edges)]


def _piece(chain: Chain, claims: Indices, first: int, past: int) -> Piece:
    slots = chain.slots[first:past]
    breaks = np.flatnonzero(slots[:-1] - slots[1:] != 1) + 1
    runs = tuple((int(run[0]), int(run[-1])) for run in np.split(slots, breaks))
    head = claim = None
    if first > 0:
        head = int(chain.slots[first - 1])
        above = int(np.searchsorted(claims, first, side="left"))
        # In a truncated log the claim may be older than the oldest object kept; then the head names it.
        claim = int(chain.slots[claims[above - 1]]) if above else None
    return Piece(runs, head, claim, past - first, int(chain.sizes[first:past].sum()), chain.lineage)


@dataclass
class LogPartition(InputPartition):
    """One piece of the log and the rows wanted from it."""

    piece: Piece
    wanted: RowFilter


@dataclass
class SegmentPartition(InputPartition):
    """One segment file of the table at ``table_url``, its versions (both inclusive), and the rows wanted from it."""

    table_url: str
    path: str
    version_min: int
    version_max: int
    wanted: RowFilter
    since_ms: int | None
