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
block in a few array operations. Who reads what the same block writes is known by rank and time, and only there, a few
reads of a block as a rule, each such pair is looked at: whoever reads from requests that are decided is decided, for
all at once, and the ends of long chains one by one. A block shrinks when there are many pairs.

Failure model: pure memory. Cost: O(items) array work, and Python for requests at the end of a chain within a block.
Measured by ``benchmarks/spark.py --only resolve``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.spark.bulk.newest_by_rank import NewestByRank, Ordinals

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
BLOCK_START: Final = 2048
BLOCK_MAX: Final = 8192
PAIRS_FOR_EACH: Final = 8
"""For each request of a block at most so many pairs are looked at, unless it is the smallest block."""
PASSES: Final = 4
"""After so many passes over the pairs of a block, the rest is a few chains and is decided one by one."""
FIRST_WRITES_LEVELS: Final = 3
"""A wider range meets a write of nearly every block, and is looked up anyway."""
BACKWARDS: Final = 2**31 - 1
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
    """A stretch of requests, and what of it the state before the block already decides."""

    __slots__ = (
        "conflict", "first", "ordinals", "past", "read_ats", "read_begins", "read_highs", "read_lows", "size", "states",
        "unknown", "write_begins", "write_highs", "write_lows",
    )  # fmt: skip

    def __init__(self, problem: Problem, first: int, past: int) -> None:
        self.first, self.past, self.size = first, past, past - first
        self.ordinals: Ordinals = problem.ordinals[first:past]
        self.read_begins = problem.read_begins[first : past + 1] - problem.read_begins[first]
        self.write_begins = problem.write_begins[first : past + 1] - problem.write_begins[first]
        r0, r1 = int(problem.read_begins[first]), int(problem.read_begins[past])
        w0, w1 = int(problem.write_begins[first]), int(problem.write_begins[past])
        self.read_lows, self.read_highs = problem.read_lows[r0:r1], problem.read_highs[r0:r1]
        self.read_ats = problem.read_ats[r0:r1]
        self.write_lows, self.write_highs = problem.write_lows[w0:w1], problem.write_highs[w0:w1]
        self.states: States = np.zeros(self.size, np.uint8)
        self.conflict: Flags = np.zeros(self.size, np.bool_)
        self.unknown: Flags = np.zeros(self.size, np.bool_)

    def readers(self, reads: Ranks) -> Ranks:
        """Whose these reads are, as places in the block."""
        found: Ranks = np.searchsorted(self.read_begins, reads, side="right") - 1
        return found

    def of_reads(self, flags: Flags) -> Ranks:
        """The reads of these requests."""
        if flags.all():
            return np.arange(len(self.read_lows))
        return np.flatnonzero(np.repeat(flags, np.diff(self.read_begins)))

    def of_writes(self, flags: Flags) -> Ranks:
        """The writes of these requests."""
        return np.flatnonzero(np.repeat(flags, np.diff(self.write_begins)))

    def writers(self) -> Ranks:
        """Whose the writes are, as places in the block."""
        found: Ranks = np.repeat(np.arange(self.size), np.diff(self.write_begins))
        return found

    def record(self, newest: NewestByRank, which: Flags) -> None:
        chosen = self.of_writes(which)
        when: Ordinals = np.repeat(self.ordinals, np.diff(self.write_begins))[chosen]
        newest.record(self.write_lows[chosen], self.write_highs[chosen], when)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """A read and an earlier write of the same block that changed, after it was read, what it reads: whose they are.

    ``looked_at`` pairs were compared to find these."""

    readers: Ranks
    writers: Ranks
    looked_at: int


def sweep(problem: Problem, states: States, decides: Flags, clear: Flags) -> States:
    """Judge every request that is unknown: UNKNOWN, CLEAR or CONFLICT, 0 for those that are decided already.

    ``states`` holds what is known of each; ``decides`` says that a request which is clear here is committed; ``clear``
    that it has been found clear here before. Cost: see the module.
    """
    committed, undecided = NewestByRank(problem.ranks), NewestByRank(problem.ranks)
    # What a block writes, by how many reads of the block come after it: the first to write a place is the newest.
    first_writes = NewestByRank(problem.ranks, FIRST_WRITES_LEVELS)
    verdicts: States = np.zeros(problem.requests, np.uint8)
    size, first = BLOCK_START, 0
    while first < problem.requests:
        block = _Block(problem, first, min(first + size, problem.requests))
        stretch = slice(block.first, block.past)
        block.states[:] = states[stretch]
        open_requests = block.states == UNKNOWN
        asked = open_requests & ~clear[stretch]
        _judge_by_state(block, asked, committed, undecided)
        pairs = _pairs(block, asked & ~block.conflict, first_writes, PAIRS_FOR_EACH * size)
        if pairs is None:
            size >>= 1
            continue
        first = block.past
        found = _judge_by_pairs(block, open_requests, decides[stretch], pairs)
        verdicts[stretch] = found
        block.record(committed, block.states == COMMITTED)
        left = block.states == UNKNOWN
        if left.any():
            block.record(undecided, left)
        if pairs.looked_at < size:
            size = min(BLOCK_MAX, size << 1)
    return verdicts


def _judge_by_state(block: _Block, asked: Flags, committed: NewestByRank, undecided: NewestByRank) -> None:
    """Mark conflicts and unknowns that follow from what stands before the block."""
    lows, highs, ats, some = block.read_lows, block.read_highs, block.read_ats, None
    if not asked.all():
        some = block.of_reads(asked)
        lows, highs, ats = lows[some], highs[some], ats[some]
    for newest, marks in ((committed, block.conflict), (undecided, block.unknown)):
        if not newest.is_empty:
            changed = np.flatnonzero(newest.changed_after(lows, highs, ats))
            marks[block.readers(changed if some is None else some[changed])] = True


def _pairs(block: _Block, asked: Flags, first_writes: NewestByRank, pairs_max: int) -> _Pairs | None:
    """The pairs whose readers are ``asked``. None: too many for a block of this size.

    ``first_writes`` is scratch: empty before and after.
    """
    none = np.zeros(0, np.int64)
    live = block.of_writes((block.states != REJECTED) & ~block.conflict)
    reads = block.of_reads(asked)
    if not len(live) or not len(reads):
        return _Pairs(none, none, 0)
    lows, highs, owners = block.write_lows[live], block.write_highs[live], block.writers()[live]
    single = highs - lows == 1
    whole = bool(single.all())
    ranks, point_owners = (lows, owners) if whole else (lows[single], owners[single])
    # A read is later than a write when it is at or behind the first read of the request after the writer.
    first_writes.record(
        ranks[::-1], ranks[::-1] + 1, (BACKWARDS - block.read_begins[1:])[point_owners[::-1]].astype(np.int32)
    )
    later = (BACKWARDS - 1 - reads).astype(np.int32)
    touching = first_writes.may_have_changed_after(block.read_lows[reads], block.read_highs[reads], later)
    first_writes.forget(ranks)
    pairs = _point_pairs(block, reads[touching], ranks, point_owners, pairs_max)
    if pairs is None or whole:
        return pairs
    found, looked_at = [pairs], pairs.looked_at
    readers = block.readers(reads)
    for index in np.flatnonzero(~single).tolist():
        meets = (block.read_lows[reads] < highs[index]) & (block.read_highs[reads] > lows[index])
        meets &= (readers > owners[index]) & (block.read_ats[reads] < block.ordinals[owners[index]])
        some = readers[meets]
        looked_at += len(some)
        if looked_at > pairs_max and block.size > BLOCK_MIN:
            return None
        found.append(_Pairs(some, np.full(len(some), owners[index], np.int64), len(some)))
    return _Pairs(
        np.concatenate([each.readers for each in found]), np.concatenate([each.writers for each in found]), looked_at
    )


def _point_pairs(block: _Block, reads: Ranks, ranks: Ranks, owners: Ranks, pairs_max: int) -> _Pairs | None:
    """The pairs of these reads and of writes of one rank each, or None: too many."""
    readers = block.readers(reads)
    lows, highs = block.read_lows[reads], block.read_highs[reads]
    # By rank, and by time within a rank. Of one rank, what was written since then lies together.
    keys = np.sort(ranks * block.size + owners)
    since = np.searchsorted(block.ordinals, block.read_ats[reads], side="right")
    one = highs - lows == 1
    begins = np.searchsorted(keys, lows * block.size + np.where(one, since, 0))
    ends = np.searchsorted(keys, np.where(one, lows * block.size + readers, highs * block.size))
    counts = np.maximum(ends - begins, 0)
    looked_at = int(counts.sum())
    if looked_at > pairs_max and block.size > BLOCK_MIN:
        return None
    of_pairs, places = _expanded(begins, counts)
    writers = keys[places] % block.size
    within = np.flatnonzero((writers < readers[of_pairs]) & (writers >= since[of_pairs]))
    return _Pairs(readers[of_pairs[within]], writers[within], looked_at)


def _expanded(begins: Ranks, counts: Ranks) -> tuple[Ranks, Ranks]:
    """Which segment, and which place, for every place of all segments."""
    starts = np.cumsum(counts) - counts
    segments: Ranks = np.repeat(np.arange(len(counts)), counts)
    places: Ranks = np.arange(len(segments)) + (begins - starts)[segments]
    return segments, places


def _judge_by_pairs(block: _Block, open_requests: Flags, decides: Flags, pairs: _Pairs) -> States:
    """The verdicts of a block, and the states that follow from them."""
    found: States = np.where(block.conflict, CONFLICT, np.where(block.unknown, UNKNOWN, CLEAR)).astype(np.uint8)
    found[~open_requests] = 0
    waiting: Flags = np.zeros(block.size, np.bool_)
    waiting[pairs.readers] = True
    settled = open_requests & ~waiting
    block.states[settled & (found == CONFLICT)] = REJECTED
    block.states[settled & (found == CLEAR) & decides] = COMMITTED
    readers, writers = pairs.readers, pairs.writers
    for _ in range(PASSES):
        if not len(readers):
            return found
        broken = readers[block.states[writers] == COMMITTED]
        found[broken], block.states[broken], waiting[broken] = CONFLICT, REJECTED, False
        still = np.flatnonzero(waiting[readers] & (block.states[writers] != REJECTED))
        readers, writers = readers[still], writers[still]
        held: Flags = np.zeros(block.size, np.bool_)
        held[readers[waiting[writers]]] = True
        # Whoever waits for nobody is decided; what is left of its pairs is with writers that stay unknown.
        ready = waiting & ~held
        found[readers[ready[readers]]] = UNKNOWN
        block.states[ready & (found == CLEAR) & decides] = COMMITTED
        waiting &= held
        still = np.flatnonzero(waiting[readers])
        readers, writers = readers[still], writers[still]
    _judge_one_by_one(block, decides, readers, writers, found)
    return found


def _judge_one_by_one(block: _Block, decides: Flags, readers: Ranks, writers: Ranks, found: States) -> None:
    """Decide the readers of the pairs that are left in their order, each when all that it waits for are decided."""
    order = np.argsort(readers, kind="stable")
    writers_of: dict[int, list[int]] = {}
    for reader, writer in zip(readers[order].tolist(), writers[order].tolist(), strict=True):
        writers_of.setdefault(reader, []).append(writer)
    states: list[int] = block.states.tolist()
    for reader, its in writers_of.items():
        verdict = int(found[reader])
        for writer in its:
            if states[writer] == COMMITTED:
                verdict = CONFLICT
                break
            if states[writer] == UNKNOWN:
                verdict = UNKNOWN
        found[reader] = verdict
        if verdict == CONFLICT:
            states[reader] = block.states[reader] = REJECTED
        elif verdict == CLEAR and decides[reader]:
            states[reader] = block.states[reader] = COMMITTED


def conflicting_changes(problem: Problem, states: States) -> Ordinals:
    """For each read of a REJECTED request the newest committed change after it was read and before the request, or 0.

    ``states`` is final: nothing is unknown. Reads of other requests get 0.
    """
    newest = NewestByRank(problem.ranks)
    result: Ordinals = np.zeros(len(problem.read_lows), np.int32)
    for first in range(0, problem.requests, CONFLICTS_BLOCK):
        block = _Block(problem, first, min(first + CONFLICTS_BLOCK, problem.requests))
        block.states[:] = states[block.first : block.past]
        reads = block.of_reads(block.states == REJECTED)
        if len(reads):
            lows, highs, of = block.read_lows[reads], block.read_highs[reads], block.readers(reads)
            found = np.maximum(newest.newest(lows, highs), _newest_in_block(block, lows, highs, of))
            found[found <= block.read_ats[reads]] = 0
            result[reads + int(problem.read_begins[first])] = found
        block.record(newest, block.states == COMMITTED)
    return result


def _newest_in_block(block: _Block, lows: Ranks, highs: Ranks, of: Ranks) -> Ordinals:
    """The newest committed change by a request of the block before each reader."""
    live = block.of_writes(block.states == COMMITTED)
    write_lows, write_highs, owners = block.write_lows[live], block.write_highs[live], block.writers()[live]
    ordinals = block.ordinals[owners]
    single = write_highs - write_lows == 1
    found: Ordinals = np.zeros(len(lows), np.int32)
    # By rank, and by time within a rank: of a single rank the wanted change is the last one before the reader.
    points = np.flatnonzero(single)
    width = block.size
    keys = np.sort(write_lows[points] * width + owners[points])
    when = block.ordinals[keys % width]
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
