"""The kernel of bulk resolution: one pass over requests in their order, with three verdicts.

Owns: deciding requests by the changes of those before them, where some of these are committed for sure, some rejected,
and of some it is not known yet. Does not own: what an isolation conflict is (``commit.resolve`` defines it, this
computes the same thing; the tests hold the two together), how keys become ranks (``key_ranks``), rounds (``rounds``).

A request conflicts when a request that is committed for sure changed something that it read, after it read it; it is
clear when nothing did that may be committed. Everything else stays unknown. Two facts make rounds of this exact: both
verdicts only rest on what is certain, so they never change, and the first request that is unknown is decided by every
round. With all keys in one problem every clear request is committed at once, nothing is ever unknown, and one pass
gives the verdicts of a leader that takes the requests one by one.

How it is quick without a compiler: requests are judged in blocks. The state before the block answers most reads of a
block in a few array operations. What depends on writes of the same block is found by array operations too, and only
these requests, a few of a block as a rule, are judged one by one; a block shrinks when they are many.

Failure model: pure memory. Cost: O(items) array work, and O(items log) Python for requests that depend on their block.
Measured by ``benchmarks/spark.py --only resolve``.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.spark.bulk.newest_by_rank import NewestByRank, Ordinals, newest_of_segments

__all__ = ["CLEAR", "COMMITTED", "CONFLICT", "REJECTED", "UNKNOWN", "Problem", "conflicting_changes", "sweep"]

Flags = npt.NDArray[np.bool_]
Ranks = npt.NDArray[np.int64]
States = npt.NDArray[np.uint8]

UNKNOWN: Final = 0
COMMITTED: Final = 1
REJECTED: Final = 2

CLEAR: Final = 1
CONFLICT: Final = 2

BLOCK_MIN: Final = 64
BLOCK_START: Final = 1024
BLOCK_MAX: Final = 8192
CONFLICTS_BLOCK: Final = 4096


@dataclass(frozen=True, slots=True)
class Problem:
    """Requests in their order, with what they read and change among ``ranks`` ranks.

    Shape: ``ordinals`` rise strictly from 1 or more. The reads of request i are ``read_begins[i]`` up to
    ``read_begins[i + 1]``, each a range of ranks ``[low, high)`` and the ordinal ``at`` which it was read (0: before
    all). Writes likewise. No range is empty.
    """

    ranks: int
    ordinals: Ordinals
    read_begins: Ranks
    read_lows: Ranks
    read_highs: Ranks
    read_ats: Ordinals
    write_begins: Ranks
    write_lows: Ranks
    write_highs: Ranks

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return len(self.ordinals)

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self.read_begins) == len(self.write_begins) == self.requests + 1, "every request has its items"
        assert self.requests == 0 or (self.ordinals[0] >= 1 and (np.diff(self.ordinals) > 0).all()), "ordinals rise"
        for lows, highs in ((self.read_lows, self.read_highs), (self.write_lows, self.write_highs)):
            assert (lows < highs).all() and (lows >= 0).all() and (highs <= self.ranks).all(), "ranges hold ranks"


class _Block:
    """A stretch of requests and what of it the state before the block already decides."""

    __slots__ = (
        "conflict", "first", "past", "read_ats", "read_highs", "read_lows", "read_of", "states", "unknown",
        "write_highs", "write_lows", "write_of", "write_ordinals",
    )  # fmt: skip

    def __init__(self, problem: Problem, first: int, past: int) -> None:
        self.first, self.past = first, past
        r0, r1 = int(problem.read_begins[first]), int(problem.read_begins[past])
        w0, w1 = int(problem.write_begins[first]), int(problem.write_begins[past])
        self.read_lows, self.read_highs = problem.read_lows[r0:r1], problem.read_highs[r0:r1]
        self.read_ats = problem.read_ats[r0:r1]
        places = np.arange(past - first)
        self.read_of = np.repeat(places, np.diff(problem.read_begins[first : past + 1]))
        self.write_lows, self.write_highs = problem.write_lows[w0:w1], problem.write_highs[w0:w1]
        self.write_of = np.repeat(places, np.diff(problem.write_begins[first : past + 1]))
        self.write_ordinals: Ordinals = problem.ordinals[first:past][self.write_of]
        self.states: States = np.zeros(past - first, np.uint8)
        self.conflict: Flags = np.zeros(past - first, np.bool_)
        self.unknown: Flags = np.zeros(past - first, np.bool_)

    def record(self, newest: NewestByRank, which: Flags) -> None:
        chosen = which[self.write_of]
        newest.record(self.write_lows[chosen], self.write_highs[chosen], self.write_ordinals[chosen])


def sweep(problem: Problem, states: States, decides: Flags, clear: Flags) -> States:
    """Judge every request that is unknown: UNKNOWN, CLEAR or CONFLICT, 0 for those that are decided already.

    ``states`` holds what is known of each; ``decides`` says that a request which is clear here is committed; ``clear``
    that it has been found clear here before. Cost: see the module.
    """
    committed, undecided = NewestByRank(problem.ranks), NewestByRank(problem.ranks)
    first_writer: Ordinals = np.full(max(problem.ranks, 1), BLOCK_MAX, np.int32)
    verdicts: States = np.zeros(problem.requests, np.uint8)
    size, first = BLOCK_START, 0
    while first < problem.requests:
        past = min(first + size, problem.requests)
        block = _Block(problem, first, past)
        block.states[:] = states[first:past]
        open_requests = block.states == UNKNOWN
        asked = open_requests & ~clear[first:past]
        _judge_by_state(block, asked, committed, undecided)
        dependent = _dependent(block, asked & ~block.conflict, first_writer)
        found: States = np.where(block.conflict, CONFLICT, np.where(block.unknown, UNKNOWN, CLEAR)).astype(np.uint8)
        found[~open_requests] = 0
        settled = open_requests & ~dependent
        block.states[settled & (found == CONFLICT)] = REJECTED
        block.states[settled & (found == CLEAR) & decides[first:past]] = COMMITTED
        count = int(np.count_nonzero(dependent))
        if count:
            _judge_one_by_one(block, dependent, found, decides[first:past])
        verdicts[first:past] = found
        block.record(committed, block.states == COMMITTED)
        block.record(undecided, block.states == UNKNOWN)
        first = past
        if count > size >> 3:
            size = max(BLOCK_MIN, size >> 1)
        elif count < size >> 6:
            size = min(BLOCK_MAX, size << 1)
    return verdicts


def _judge_by_state(block: _Block, asked: Flags, committed: NewestByRank, undecided: NewestByRank) -> None:
    """Mark conflicts and unknowns that follow from what stands before the block."""
    some = asked[block.read_of]
    whole = bool(some.all())
    lows = block.read_lows if whole else block.read_lows[some]
    highs = block.read_highs if whole else block.read_highs[some]
    ats = block.read_ats if whole else block.read_ats[some]
    owners = block.read_of if whole else block.read_of[some]
    if not len(lows):
        return
    block.conflict[owners[committed.newest(lows, highs) > ats]] = True
    if not undecided.is_empty:
        block.unknown[owners[undecided.newest(lows, highs) > ats]] = True


def _dependent(block: _Block, asked: Flags, first_writer: Ordinals) -> Flags:
    """The requests among ``asked`` that may read what a request before them in this block writes.

    ``first_writer`` is scratch, and is left as it was: the place in the block of the first to write a rank.
    """
    dependent: Flags = np.zeros(len(asked), np.bool_)
    live = ((block.states != REJECTED) & ~block.conflict)[block.write_of]
    lows, highs, owners = block.write_lows[live], block.write_highs[live], block.write_of[live]
    if not len(lows) or not asked.any():
        return dependent
    single = highs - lows == 1
    point_ranks = lows[single]
    # Assigned from the last to the first, so that the first stays.
    first_writer[point_ranks[::-1]] = owners[single][::-1]
    reads = asked[block.read_of]
    of, low, high = block.read_of[reads], block.read_lows[reads], block.read_highs[reads]
    touches = first_writer[low] < of
    wide = np.flatnonzero(high - low > 1)
    if len(wide) and len(point_ranks):
        order = np.argsort(point_ranks, kind="stable")
        ranks = point_ranks[order]
        # The earliest writer in the range is the largest of the places counted backwards.
        backwards = (BLOCK_MAX - owners[single][order]).astype(np.int32)
        begins, ends = np.searchsorted(ranks, low[wide]), np.searchsorted(ranks, high[wide])
        touches[wide] = (BLOCK_MAX - newest_of_segments(backwards, begins, ends)) < of[wide]
    for index in np.flatnonzero(~single).tolist():
        touches |= (low < highs[index]) & (high > lows[index]) & (of > owners[index])
    first_writer[point_ranks] = BLOCK_MAX
    dependent[of[touches]] = True
    return dependent


class _LocalChanges:
    """What requests of one block changed so far, by rank and by range, each with its newest ordinal."""

    __slots__ = ("_all_ranks", "by_rank", "ranges")

    def __init__(self, all_ranks: list[int]) -> None:
        self._all_ranks = all_ranks
        self.by_rank: dict[int, int] = {}
        self.ranges: list[tuple[int, int, int]] = []

    def add(self, low: int, high: int, ordinal: int) -> None:
        if high - low == 1:
            self.by_rank[low] = ordinal
        else:
            self.ranges.append((low, high, ordinal))

    def changed_after(self, low: int, high: int, at: int) -> bool:
        by_rank = self.by_rank
        if high - low == 1:
            if by_rank.get(low, 0) > at:
                return True
        elif by_rank:
            ranks = self._all_ranks
            for index in range(bisect_left(ranks, low), bisect_left(ranks, high)):
                if by_rank.get(ranks[index], 0) > at:
                    return True
        return any(ordinal > at and begin < high and end > low for begin, end, ordinal in self.ranges)


def _judge_one_by_one(block: _Block, dependent: Flags, found: States, decides: Flags) -> None:
    """Judge the dependent requests in order, each against the requests of the block before it as they turned out."""
    reads = np.flatnonzero(dependent[block.read_of])
    rows = zip(
        block.read_of[reads].tolist(),
        block.read_lows[reads].tolist(),
        block.read_highs[reads].tolist(),
        block.read_ats[reads].tolist(),
        strict=True,
    )
    reads_of: dict[int, list[tuple[int, int, int]]] = {}
    for owner, low, high, at in rows:
        reads_of.setdefault(owner, []).append((low, high, at))
    writes = _writes_that_matter(block, reads)
    all_ranks = sorted({low for _, low, high, _ in writes if high - low == 1})
    committed, undecided = _LocalChanges(all_ranks), _LocalChanges(all_ranks)
    states: list[int] = block.states.tolist()
    unknown: list[bool] = block.unknown.tolist()
    decides_at: list[bool] = decides.tolist()
    written = 0
    for owner in np.flatnonzero(dependent).tolist():
        while written < len(writes) and writes[written][0] < owner:
            place, low, high, ordinal = writes[written]
            written += 1
            if states[place] != REJECTED:
                (committed if states[place] == COMMITTED else undecided).add(low, high, ordinal)
        verdict = UNKNOWN if unknown[owner] else CLEAR
        for low, high, at in reads_of[owner]:
            if committed.changed_after(low, high, at):
                verdict = CONFLICT
                break
            if verdict and undecided.changed_after(low, high, at):
                verdict = UNKNOWN
        found[owner] = verdict
        if verdict == CONFLICT:
            states[owner] = block.states[owner] = REJECTED
        elif verdict == CLEAR and decides_at[owner]:
            states[owner] = block.states[owner] = COMMITTED


def _writes_that_matter(block: _Block, reads: Ranks) -> list[tuple[int, int, int, int]]:
    """The block's writes that a dependent request may have read: place of the writer, range of ranks, ordinal."""
    live = (block.states != REJECTED)[block.write_of]
    lows, highs = block.read_lows[reads], block.read_highs[reads]
    if (highs - lows == 1).all():
        live &= (block.write_highs - block.write_lows > 1) | np.isin(block.write_lows, lows)
    return list(
        zip(
            block.write_of[live].tolist(),
            block.write_lows[live].tolist(),
            block.write_highs[live].tolist(),
            block.write_ordinals[live].tolist(),
            strict=True,
        )
    )


def conflicting_changes(problem: Problem, states: States) -> Ordinals:
    """For each read of a REJECTED request the newest committed change after it was read and before the request, or 0.

    ``states`` is final: nothing is unknown. Reads of other requests get 0.
    """
    newest = NewestByRank(problem.ranks)
    result: Ordinals = np.zeros(len(problem.read_lows), np.int32)
    for first in range(0, problem.requests, CONFLICTS_BLOCK):
        block = _Block(problem, first, min(first + CONFLICTS_BLOCK, problem.requests))
        block.states[:] = states[block.first : block.past]
        reads = np.flatnonzero((block.states == REJECTED)[block.read_of])
        if len(reads):
            lows, highs, of = block.read_lows[reads], block.read_highs[reads], block.read_of[reads]
            found = np.maximum(newest.newest(lows, highs), _newest_in_block(block, lows, highs, of))
            found[found <= block.read_ats[reads]] = 0
            result[reads + int(problem.read_begins[first])] = found
        block.record(newest, block.states == COMMITTED)
    return result


def _newest_in_block(block: _Block, lows: Ranks, highs: Ranks, of: Ranks) -> Ordinals:
    """The newest committed change by a request of the block before each reader."""
    live = (block.states == COMMITTED)[block.write_of]
    write_lows, write_highs = block.write_lows[live], block.write_highs[live]
    owners, ordinals = block.write_of[live], block.write_ordinals[live]
    single = write_highs - write_lows == 1
    found: Ordinals = np.zeros(len(lows), np.int32)
    # By rank, and by time within a rank: of a single rank the wanted change is the last one before the reader.
    points = np.flatnonzero(single)
    width = len(block.states)
    keys = write_lows[points] * width + owners[points]
    order = np.argsort(keys, kind="stable")
    keys, when = keys[order], ordinals[points][order]
    narrow = highs - lows == 1
    before = np.searchsorted(keys, lows * width + of) - 1
    held = narrow & (before >= 0)
    held[held] = keys[before[held]] // width == lows[held]
    found[held] = when[before[held]]
    wide = np.flatnonzero(~narrow)
    if len(wide) and len(keys):
        begins, ends = np.searchsorted(keys, lows[wide] * width), np.searchsorted(keys, highs[wide] * width)
        found[wide] = _newest_before(when, keys % width, begins, ends, of[wide])
    for index in np.flatnonzero(~single).tolist():
        covers = (lows < write_highs[index]) & (highs > write_lows[index]) & (of > owners[index])
        np.maximum(found, np.where(covers, ordinals[index], 0), out=found)
    return found


def _newest_before(when: Ordinals, owners: Ranks, begins: Ranks, ends: Ranks, readers: Ranks) -> Ordinals:
    """The largest of ``when[begins[i]:ends[i]]`` whose owner comes before ``readers[i]``, 0 for none."""
    counts = ends - begins
    held = np.flatnonzero(counts > 0)
    result: Ordinals = np.zeros(len(begins), np.int32)
    if len(held):
        some = counts[held]
        starts = np.cumsum(some) - some
        places = np.arange(int(some.sum())) + np.repeat(begins[held] - starts, some)
        values = np.where(owners[places] < np.repeat(readers[held], some), when[places], 0)
        result[held] = np.maximum.reduceat(values, starts)
    return result
