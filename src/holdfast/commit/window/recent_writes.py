"""The conflict window: which versions changed which keys lately.

Owns: the newest change of every key and range inside the window, the window's floor and its memory. Does not own: one
stretch of it (``recent_generation``), what a precondition is and what its failure means (``resolve``), and how old a
change may grow in time (its caller, who raises the floor).

Failure model: pure memory; nothing here fails. A question below the floor, a version that does not rise and an empty
range are bugs of the caller. After a crash the window is gone: a new leader starts an empty one at a new floor.

How it is built. Changes arrive in version order and leave in version order, so everything is cut by time:

- A **generation** holds the changes of a stretch of versions: a dictionary from key to newest version, the same keys in
  sorted runs, and the deleted ranges. Generations follow each other without overlap, so the newest one that knows
  anything about a key or a range knows its newest change, and a search ends at the first generation that is wholly
  older than the version asked about. Nearly all readers are a few hundred versions behind: they touch one or two small
  dictionaries that fit the processor's cache, however large the window is.
- ``[0]`` is the young generation, written to. Once it holds ``slice_keys`` it becomes the resting one, ``[1]``; while
  the next young one fills, that is poured into the growing one, ``[2]``. A full growing one is closed to changes and
  stays, ``[3:]``, newest first, until the floor passes its last version; then it goes as a whole.
- The sorted runs are made while keys arrive, not at the first range read, because sorting a full window then would stop
  the leader for seconds. Runs of equal rank are merged like the digits of a binary counter. The runs of a closed
  generation are merged into one sequence, cut into runs by key, a few thousand keys at a time.
- Whatever is large is done in small steps that ride on later calls (``_work``): merging, and giving memory back, since
  freeing a generation's keys at once takes as long as a slow sync. So no call is slow, however full the window.
- Closed runs are tuples of bytes, and dictionaries of bytes and integers, so the garbage collector stops tracking them:
  a full collection costs the same with ten million keys in the window as with none.

Measured by ``benchmarks/conflict_window.py`` (2 virtual cores, Python 3.11, other work on both). Transactions of 2
point reads and 2 writes of 16-byte keys per second of processor time, then with a range read of 10 keys added:
353,000 and 183,000 with 10,000 keys in the window, 383,000 and 215,000 with 10 million; one dictionary and one
SortedList with 1 million: 272,000 and 57,000. A key costs 119 bytes of resident memory, 135 if each transaction
writes one. A batch of 64, with 10 million keys and expiring as much as it records: 2.7 ms at p99.99, 10.7 ms at most.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise

from holdfast.commit.format.transaction import Operation, RangeDelete
from holdfast.commit.window.recent_generation import (
    BOUND_BYTES,
    KEY_BYTES,
    SHAPE,
    VERSION_BYTES,
    DeletedRanges,
    Generation,
    Merge,
    Run,
    Shape,
)

__all__ = ["RecentWrites"]


class RecentWrites:
    """The newest change of every key and range changed after ``floor``.

    ``floor`` is the oldest version that can still be judged: what changed after version v is answered exactly if
    ``v >= floor``. It rises in ``expire``: to the version the caller names and, while more than ``bytes_max`` bytes are
    held, to the last version of the oldest generation. A generation is dropped whole and only once the floor has
    reached its last version, so no change after the floor is ever missing. Units: ``bytes_max`` bytes; a generation is
    closed at 1/8 of it, which is how far the floor may jump. Between two calls of ``expire`` the window may outgrow it.

    >>> from holdfast.commit.format.transaction import RangeDelete, Write
    >>> window = RecentWrites(100, bytes_max=1 << 20)
    >>> window.record(101, [Write(b"a", b"")])
    >>> window.record(105, [RangeDelete(b"b", b"d")])
    >>> window.changed_after(b"c", 100), window.changed_after(b"d", 100), window.range_changed_after(b"a", None, 101)
    (105, 0, 105)
    """

    __slots__ = (
        "_bytes_max",
        "_closed_bytes",
        "_generations",
        "_merges",
        "_open_keys",
        "_releasing_bytes",
        "_releasing_runs",
        "_releasing_versions",
        "_shape",
        "_slice_bytes_max",
        "_sorted_open_keys",
        "_young",
        "floor",
        "last_version",
    )

    def __init__(self, floor: int, *, bytes_max: int, shape: Shape = SHAPE) -> None:
        self.floor = floor
        self.last_version = floor
        self._bytes_max = bytes_max
        self._slice_bytes_max = max(bytes_max // 64, 1)
        self._shape = shape
        self._young = Generation(floor)
        self._generations = [self._young, Generation(floor), Generation(floor)]
        # The keys changed since the last run was made: as they came, and those that a range read already put in order.
        self._open_keys: list[bytes] = []
        self._sorted_open_keys: list[bytes] = []
        self._merges: list[Merge] = []
        # The bytes of ``_generations[3:]``, and of what waits to be given back.
        self._closed_bytes = 0
        self._releasing_bytes = 0
        self._releasing_runs: list[Run] = []
        self._releasing_versions: list[dict[bytes, int]] = []

    def record(self, version: int, operations: Sequence[Operation], *, further: bool = False) -> None:
        """Remember what an accepted transaction changed. Versions rise strictly.

        A large transaction may be recorded in parts: ``further`` says that this is another part of the newest one. No
        question may be asked between its parts. Cost: O(operations), and the steps of work that as many keys owe.
        """
        assert version > self.last_version or (further and version == self.last_version), "versions rise strictly"
        self.last_version = version
        young = self._young
        young.last_version = version
        young.transactions += 1
        versions = young.versions
        open_keys = self._open_keys
        payload = VERSION_BYTES
        for operation in operations:
            if isinstance(operation, RangeDelete):
                self._record_range_delete(version, operation)
                if young is not self._young:
                    young = self._young
                    versions = young.versions
            else:
                key = operation.key
                versions[key] = version
                open_keys.append(key)
                payload += len(key) + KEY_BYTES
        young.payload_bytes += payload
        if len(open_keys) + len(self._sorted_open_keys) >= self._shape.leaf_keys:
            self._close_leaf()
            # Halfway through a slice: the longest sort happens at its end, and one pause must not add to another.
            if young.run_keys * 2 > self._shape.slice_keys:
                self._absorb_resting()
        if young.run_keys >= self._shape.slice_keys or young.payload_bytes >= self._slice_bytes_max:
            self._close_slice()

    def changed_after(self, key: bytes, version: int) -> int:
        """The newest version above ``version`` that changed ``key``, a range deletion over it included, or 0.

        ``version`` is at least ``floor``. Cost: one dictionary per generation with changes after ``version``.
        """
        assert version >= self.floor, "no question is asked below the floor"
        for generation in self._generations:
            if generation.last_version <= version:
                return 0
            newest = generation.versions.get(key, 0)
            if generation.deleted is not None:
                newest = max(newest, generation.deleted.newest_at(key))
            if newest:
                return newest if newest > version else 0
        return 0

    def range_changed_after(self, begin: bytes, end: bytes | None, version: int) -> int:
        """The newest version above ``version`` at which anything in ``[begin, end)`` changed, or 0.

        ``version`` is at least ``floor``; without ``end`` the range goes to the last key. A range deletion counts as a
        change of its whole range. Cost: two bisections per run with changes after ``version``.
        """
        assert version >= self.floor, "no question is asked below the floor"
        assert end is None or begin < end, "no question is asked about an empty range"
        for generation in self._generations:
            if generation.last_version <= version:
                return 0
            newest = generation.newest_in_range(begin, end, version)
            if generation is self._young:
                newest = max(newest, self._newest_open(begin, end))
            if newest:
                return newest if newest > version else 0
        return 0

    def expire(self, floor: int) -> None:
        """Nobody is judged below ``floor`` any more, nor below what ``bytes_max`` leaves room for. Frees memory.

        What falls out of the window is given back in steps by this and the following calls.
        """
        self.floor = max(self.floor, floor)
        # What has been open for a whole window is closed, so that a quiet log forgets too.
        if self._young.after < self.floor and not self._young.empty:
            self._close_slice()
        if self._generations[2].after < self.floor and not self._generations[2].empty:
            self._close_growing()
        self._drop_expired()
        while self._window_bytes() > self._bytes_max:
            oldest = next((generation for generation in reversed(self._generations) if not generation.empty), None)
            if oldest is None:
                break
            self.floor = max(self.floor, oldest.last_version)
            self._drop_expired()
        self._work(1)

    @property
    def stretches(self) -> int:
        """How many stretches of versions a question may have to look through."""
        return len(self._generations)

    def bytes_used(self) -> int:
        """The memory held, estimated, including what is still to be given back. Cost: O(1)."""
        return self._window_bytes() + self._releasing_bytes

    def check(self) -> None:
        """Assert the invariants. Cost: O(keys)."""
        generations = self._generations
        assert self._young is generations[0], "the young generation is the first"
        for newer, older in pairwise(generations):
            assert older.last_version <= newer.after, "generations do not overlap"
        assert self._young.last_version == self.last_version, "the young generation is up to date"
        for generation in generations:
            open_keys = self._open_keys + self._sorted_open_keys if generation is self._young else []
            generation.check(open_keys)
            assert generation.empty or generation.last_version > self.floor, "nothing outlives the floor"
        assert self._sorted_open_keys == sorted(self._sorted_open_keys), "the sorted open keys are sorted"
        closed = sum(generation.bytes_used() for generation in generations[3:])
        assert self._closed_bytes == closed, "closed bytes are counted"
        assert self._releasing_bytes == 0 or self._releasing_runs or self._releasing_versions, (
            "what is gone is not counted"
        )

    def _newest_open(self, begin: bytes, end: bytes | None) -> int:
        keys = self._sorted_open_keys
        for key in self._open_keys:
            insort(keys, key)
        self._open_keys.clear()
        first = bisect_left(keys, begin)
        last = len(keys) if end is None else bisect_left(keys, end, first)
        return max(map(self._young.versions.__getitem__, keys[first:last]), default=0)

    def _record_range_delete(self, version: int, operation: RangeDelete) -> None:
        begin, end = operation.begin, operation.end
        assert end is None or begin < end, "an empty range is refused at the door"
        young = self._young
        if young.deleted is None:
            young.deleted = DeletedRanges()
        young.deleted.delete(begin, end, version)
        young.payload_bytes += len(begin) + len(end or b"") + 2 * BOUND_BYTES
        if len(young.deleted.bounds) >= self._shape.slice_bounds:
            # In the middle of a transaction, too: one with thousands of deletions must not cost their square. Both
            # generations then hold changes of this version, which no search minds.
            self._close_slice()

    def _close_leaf(self) -> None:
        """Turn the open keys into a run and merge it with its equals."""
        young, shape = self._young, self._shape
        keys = self._sorted_open_keys + self._open_keys
        self._open_keys.clear()
        self._sorted_open_keys = []
        young.run_keys += len(keys)
        owed = 1 + len(keys) // shape.leaf_keys
        rank = 0
        while young.runs and young.runs[-1].rank == rank:
            keys = [*young.runs.pop().keys, *keys]
            rank += 1
        keys.sort()
        young.runs.append(Run(keys, young.last_version, rank, shape.block_keys))
        self._work(owed)

    def _close_slice(self) -> None:
        """Let the young generation rest and begin another."""
        if self._open_keys or self._sorted_open_keys:
            self._close_leaf()
        self._absorb_resting()
        young = self._young
        content = 0
        if young.runs:
            keys = young.runs[0].keys if len(young.runs) == 1 else sorted(key for run in young.runs for key in run.keys)
            # A key that was changed several times is listed several times until here.
            distinct = tuple(keys) if len(keys) == len(young.versions) else tuple(dict.fromkeys(keys))
            young.runs = [Run(distinct, young.last_version, 0, self._shape.block_keys)]
            young.run_keys = len(distinct)
            content = sum(map(len, distinct))
        young.count_bytes(content)
        self._young = Generation(self.last_version)
        self._generations[:2] = [self._young, young]

    def _absorb_resting(self) -> None:
        """Pour the resting generation into the growing one, and close that when it is full."""
        shape = self._shape
        _, resting, growing = self._generations[:3]
        if resting.empty:
            return
        if growing.run_keys + resting.run_keys > shape.generation_keys and not growing.empty:
            self._close_growing()
            growing = self._generations[2]
        growing.absorb(resting)
        self._generations[1] = Generation(resting.last_version)
        bounds = 0 if growing.deleted is None else len(growing.deleted.bounds)
        if (
            growing.slices >= shape.generation_slices
            or bounds >= shape.generation_bounds
            or growing.payload_bytes >= self._bytes_max // 8
        ):
            self._close_growing()

    def _close_growing(self) -> None:
        """Close the growing generation to changes and begin another after it."""
        closed = self._generations[2]
        self._generations.insert(2, Generation(closed.last_version))
        self._closed_bytes += closed.bytes_used()
        self._merges.append(Merge(closed, self._shape))

    def _drop_expired(self) -> None:
        """Drop every generation whose last version is not above the floor."""
        generations = self._generations
        while len(generations) > 3 and generations[-1].last_version <= self.floor:
            closed = generations.pop()
            self._closed_bytes -= closed.bytes_used()
            self._release(closed)
        for index in (2, 1, 0):
            generation = generations[index]
            if not generation.empty and generation.last_version <= self.floor:
                self._release(generation)
                generations[index] = Generation(generation.last_version)
        if self._young is not generations[0]:
            self._young = generations[0]
            self._open_keys.clear()
            self._sorted_open_keys = []

    def _release(self, generation: Generation) -> None:
        """Let go of a generation's memory, in the steps of ``_work``."""
        self._releasing_bytes += generation.bytes_used()
        self._releasing_runs += generation.runs
        self._releasing_versions.append(generation.versions)
        for merge in self._merges:
            if merge.generation is generation:
                self._releasing_runs += merge.runs
        self._merges = [merge for merge in self._merges if merge.generation is not generation]

    def _work(self, steps: int) -> None:
        """Give back what was dropped, then merge what was closed: at most ``steps`` steps of a fraction of a ms."""
        for _ in range(steps):
            if self._releasing_runs:
                self._releasing_runs.pop()
            elif self._releasing_versions:
                versions = self._releasing_versions[-1]
                for _ in range(min(len(versions), self._shape.work_keys)):
                    versions.popitem()
                if not versions:
                    self._releasing_versions.pop()
            elif self._merges:
                self._merge()
            else:
                return
            if not self._releasing_runs and not self._releasing_versions:
                self._releasing_bytes = 0

    def _merge(self) -> None:
        merge = self._merges[0]
        if not merge.step():
            return
        del self._merges[0]
        generation = merge.generation
        self._closed_bytes -= generation.bytes_used()
        self._releasing_runs += generation.replace_runs(merge.runs)
        generation.count_bytes(merge.content_bytes)
        self._closed_bytes += generation.bytes_used()

    def _window_bytes(self) -> int:
        young, resting, growing = self._generations[:3]
        return self._closed_bytes + young.bytes_used() + resting.bytes_used() + growing.bytes_used()
