"""The conflict window: which versions recently changed which keys and ranges.

Changes arrive and leave in version order, so the window is divided by version. It is a bug of the caller to ask below
the floor, to add a version that does not rise or to pass an empty range. After a crash the window is gone: a new leader
starts with an empty one at a new floor.

- A **generation** holds the changes of a range of versions: a dictionary from key to newest version, the same keys in
  sorted runs, and the deleted ranges. Generations do not overlap, so a search stops at the first generation that is
  wholly older than the version asked about. Most readers are a few hundred versions behind and touch one or two
  generations.
- Generation ``[0]`` is the young one. With ``slice_keys`` keys it becomes the resting one, ``[1]``. This one is merged
  into the growing one, ``[2]``, while the next young one fills. A full growing generation is closed and stays in
  ``[3:]``, newest first, until the floor passes its last version; then it is dropped as a whole.
- Sorted runs are made while keys arrive, because sorting a full window at once takes seconds. Runs of equal rank are
  merged like the digits of a binary counter; the runs of a closed generation are merged into runs ordered by key.
- Large work (merging, freeing memory) is done in small steps during later calls (``_work``), so no call is slow.
- Within a generation later changes have higher versions, so a range search may stop at the newest run with a result.
- Closed runs are tuples of bytes, and dictionaries map bytes to integers: the garbage collector does not track them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from holdfast.commit.format.transaction import Operation, RangeDelete

KEY_BYTES: Final = 56
"""Bytes of a key in addition to its content and dictionary entry: an object header, rounded up, and an item of a run.
"""
VERSION_BYTES: Final = 32
"""What a version costs. All keys of a transaction share one."""
BOUND_BYTES: Final = 96
"""Bytes of a bound of a deleted range in addition to its content: an object header, two list items and a version."""


@dataclass(frozen=True, slots=True)
class WindowShape:
    """The sizes that trade pauses against the number of places to search. Tests make them small.

    ``slice_keys`` bounds the longest sort, about 0.7 ms. ``generation_keys`` is the number of entries at which a
    dictionary doubles (2/3 of 2**17), so that closed dictionaries are nearly full; one that doubles once more makes a
    pause of 4 ms instead of 2 ms, at half as many generations.
    """

    leaf_keys: int = 128
    slice_keys: int = 4_096
    generation_keys: int = 87_381
    generation_slices: int = 32
    block_keys: int = 64
    work_keys: int = 2_048
    slice_bounds: int = 512
    generation_bounds: int = 4_096


SHAPE: Final = WindowShape()


class Run:
    """Keys in order, changed between two versions. ``rank`` counts the merges that made it."""

    __slots__ = ("_block_keys", "_newest_by_block", "keys", "last_version", "rank")

    def __init__(self, keys: Sequence[bytes], last_version: int, rank: int, block_keys: int) -> None:
        self.keys = keys
        self.last_version = last_version
        self.rank = rank
        self._block_keys = block_keys
        self._newest_by_block: list[int] | None = None

    def newest(self, begin: bytes, end: bytes | None, versions: dict[bytes, int]) -> int:
        """The newest of ``versions`` among the keys in ``[begin, end)``, or 0 when there is none of them here.

        Cost: two bisections and, in wide ranges, a look at two blocks of keys and at one number per block between.
        """
        keys = self.keys
        first = bisect_left(keys, begin)
        if first == len(keys) or (end is not None and keys[first] >= end):
            return 0
        last = len(keys) if end is None else bisect_left(keys, end, first)
        block = self._block_keys
        if last - first <= 2 * block:
            return max(map(versions.__getitem__, keys[first:last]))
        newest_by_block = self._newest_by_block
        if newest_by_block is None:
            # Made when first needed. The dictionary may know newer versions by then, of keys changed again. That does
            # no harm: the newest change in a range is always found in the newest run with a key of that range.
            newest_by_block = self._newest_by_block = [
                max(map(versions.__getitem__, keys[start : start + block])) for start in range(0, len(keys), block)
            ]
        first_block, last_block = -(-first // block), last // block
        edges = (*keys[first : first_block * block], *keys[last_block * block : last])
        at_edges = max(map(versions.__getitem__, edges), default=0)
        between = max(newest_by_block[first_block:last_block])
        return max(between, at_edges)


class DeletedRanges:
    """The newest deletion of every point of the key space, as a step function.

    Shape: ``versions[i]`` holds from ``bounds[i]`` up to the next bound, the last one without end; 0 means not deleted.
    """

    __slots__ = ("bounds", "versions")

    def __init__(self) -> None:
        self.bounds: list[bytes] = []
        self.versions: list[int] = []

    def delete(self, begin: bytes, end: bytes | None, version: int) -> None:
        """Lay a deletion over what is known; ``version`` is at least every one known. Cost: O(bounds), by a memmove."""
        bounds, versions = self.bounds, self.versions
        first = bisect_left(bounds, begin)
        if end is None:
            bounds[first:] = [begin]
            versions[first:] = [version]
            return
        last = bisect_left(bounds, end, first)
        if last < len(bounds) and bounds[last] == end:
            bounds[first:last] = [begin]
            versions[first:last] = [version]
        else:
            held_at_end = versions[last - 1] if last else 0
            bounds[first:last] = [begin, end]
            versions[first:last] = [version, held_at_end]

    def newest_at(self, key: bytes) -> int:
        """The newest deletion that covers ``key``, or 0."""
        step = bisect_right(self.bounds, key)
        return self.versions[step - 1] if step else 0

    def newest(self, begin: bytes, end: bytes | None) -> int:
        """The newest deletion that meets ``[begin, end)``, or 0."""
        first = max(bisect_right(self.bounds, begin) - 1, 0)
        last = len(self.bounds) if end is None else bisect_left(self.bounds, end, first)
        return max(self.versions[first:last], default=0)

    def steps(self) -> Iterator[tuple[bytes, bytes | None, int]]:
        """Every range that was deleted, with its newest version, in key order."""
        ends: list[bytes | None] = [*self.bounds[1:], None]
        return (step for step in zip(self.bounds, ends, self.versions, strict=False) if step[2])

    def check(self, after: int, last_version: int) -> None:
        """Assert the invariants. Cost: O(bounds)."""
        assert len(self.bounds) == len(self.versions), "every bound has a version"
        assert all(lower < upper for lower, upper in pairwise(self.bounds)), "bounds rise"
        assert all(version == 0 or after <= version <= last_version for version in self.versions), "deletions fit"

    def bytes_used(self) -> int:
        """Cost: O(bounds)."""
        return sum(map(len, self.bounds)) + BOUND_BYTES * len(self.bounds)


class WindowGeneration:
    """What changed after ``after``, up to ``last_version``. Nothing older than this generation is newer than that.

    ``runs`` are ordered by time, oldest first, until ``run_begins`` is set; from then on by key, ``run_begins`` naming
    the first key of each.
    """

    __slots__ = (
        "after", "deleted", "last_version", "payload_bytes", "run_begins", "run_keys", "runs", "slices", "transactions",
        "versions",
    )  # fmt: skip

    def __init__(self, after: int) -> None:
        self.after = after
        self.last_version = after
        self.versions: dict[bytes, int] = {}
        self.runs: list[Run] = []
        self.run_keys = 0
        self.run_begins: list[bytes] | None = None
        self.deleted: DeletedRanges | None = None
        self.slices = 0
        self.transactions = 0
        self.payload_bytes = 0

    @property
    def empty(self) -> bool:
        """Whether nothing changed in it."""
        return not self.versions and self.deleted is None

    def bytes_used(self) -> int:
        """Everything but the dictionary is counted once, when it changes."""
        return self.payload_bytes + self.versions.__sizeof__()

    def newest_in_range(self, begin: bytes, end: bytes | None, version: int) -> int:
        """The newest change in ``[begin, end)``. Any number up to ``version`` stands for nothing after it."""
        newest = 0
        versions = self.versions
        if self.run_begins is None:
            for run in reversed(self.runs):
                if run.last_version <= version:
                    break
                newest = run.newest(begin, end, versions)
                if newest:
                    break
        else:
            first = max(bisect_right(self.run_begins, begin) - 1, 0)
            last = len(self.runs) if end is None else bisect_left(self.run_begins, end, first)
            for run in self.runs[first:last]:
                newest = max(newest, run.newest(begin, end, versions))
        if self.deleted is not None:
            newest = max(newest, self.deleted.newest(begin, end))
        return newest

    def absorb(self, younger: WindowGeneration) -> None:
        """Take in the generation that follows this one."""
        self.last_version = younger.last_version
        self.versions.update(younger.versions)
        self.runs += younger.runs
        self.run_keys += younger.run_keys
        self.slices += 1
        self.transactions += younger.transactions
        self.payload_bytes += younger.payload_bytes
        if younger.deleted is not None:
            if self.deleted is None:
                self.deleted = younger.deleted
            else:
                before = self.deleted.bytes_used() + younger.deleted.bytes_used()
                for begin, end, version in younger.deleted.steps():
                    self.deleted.delete(begin, end, version)
                self.payload_bytes += self.deleted.bytes_used() - before

    def replace_runs(self, runs: list[Run]) -> list[Run]:
        """From now on answer from ``runs``, the same keys ordered by key. Returns the old ones."""
        replaced, self.runs = self.runs, runs
        self.run_begins = [run.keys[0] for run in runs]
        self.run_keys = sum(len(run.keys) for run in runs)
        return replaced

    def count_bytes(self, content: int) -> None:
        """Count the payload again, without what was overwritten. ``content`` is the length of all keys in the runs."""
        self.payload_bytes = content + KEY_BYTES * self.run_keys + VERSION_BYTES * min(self.transactions, self.run_keys)
        if self.deleted is not None:
            self.payload_bytes += self.deleted.bytes_used()

    def check(self, open_keys: list[bytes]) -> None:
        """Assert the invariants. ``open_keys`` are in no run yet. Cost: O(keys)."""
        assert self.after <= self.last_version, "a generation does not end before it begins"
        assert all(self.after <= version <= self.last_version for version in self.versions.values()), "versions fit"
        listed = [key for run in self.runs for key in run.keys]
        assert len(listed) == self.run_keys, "the keys in runs are counted"
        assert set(listed).union(open_keys) == self.versions.keys(), "the runs list exactly the keys"
        if self.run_begins is None:
            last_version = self.after
            for run in self.runs:
                assert list(run.keys) == sorted(run.keys), "a run is sorted"
                assert last_version <= run.last_version <= self.last_version, "runs are ordered by time"
                assert all(self.versions[key] >= last_version for key in run.keys), "a run lists what changed in it"
                last_version = run.last_version
        else:
            assert all(lower < upper for lower, upper in pairwise(listed)), "merged runs list each key once, in order"
            assert self.run_begins == [run.keys[0] for run in self.runs], "merged runs are found by their first key"
        if self.deleted is not None:
            self.deleted.check(self.after, self.last_version)


class Merge:
    """Turns the runs of a closed generation into runs ordered by key, a piece at a time."""

    __slots__ = ("_positions", "_shape", "_sources", "content_bytes", "generation", "runs")

    def __init__(self, generation: WindowGeneration, shape: WindowShape) -> None:
        self.generation = generation
        self._shape = shape
        self._sources = [run.keys for run in generation.runs]
        self._positions = [0] * len(self._sources)
        self.runs: list[Run] = []
        self.content_bytes = 0

    def step(self) -> bool:
        """Merge the next few keys. True when there were none left: then ``runs`` is complete. Cost: under 1 ms."""
        keys: list[bytes] = []
        while len(keys) < self._shape.work_keys:
            piece = self._next_piece()
            if not piece:
                break
            keys += piece
        if not keys:
            return True
        if self.generation.run_keys > len(self.generation.versions):
            keys = list(dict.fromkeys(keys))
        self.content_bytes += sum(map(len, keys))
        self.runs.append(Run(tuple(keys), self.generation.last_version, 0, self._shape.block_keys))
        return False

    def _next_piece(self) -> list[bytes]:
        """The smallest keys left. A pivot that no source passes by more than its share bounds the piece."""
        sources, positions = self._sources, self._positions
        share = self._shape.work_keys // max(len(sources), 1) + 1
        pivots = [
            keys[position + share]
            for keys, position in zip(sources, positions, strict=True)
            if position + share < len(keys)
        ]
        pivot = min(pivots, default=None)
        piece: list[bytes] = []
        for index, keys in enumerate(sources):
            position = positions[index]
            # To the right of equal keys: the copies of a key that was changed again fall into one piece.
            stop = len(keys) if pivot is None else bisect_right(keys, pivot, position)
            piece += keys[position:stop]
            positions[index] = stop
        piece.sort()
        return piece


class RecentWrites:
    """The newest change of every key and range changed after ``floor``.

    ``floor`` is the oldest version that can still be judged: what changed after version v is answered exactly if
    ``v >= floor``. It rises in ``expire``: to the version the caller names and, while more than ``bytes_max`` bytes are
    held, to the last version of the oldest generation. A generation is dropped whole and only once the floor has
    reached its last version, so no change after the floor is ever missing. Units: ``bytes_max`` bytes; a generation is
    closed at 1/8 of it, which is how far the floor may jump. Between two calls of ``expire`` the window may outgrow it.

    >>> from holdfast.commit.format.transaction import RangeDelete, Write
    >>> window = RecentWrites(100, bytes_max=1 << 20)
    >>> window.record(101, [Write(b"a", b"")]), window.record(105, [RangeDelete(b"b", b"d")])
    (0, 1)
    >>> window.changed_after(b"c", 100), window.changed_after(b"d", 100), window.range_changed_after(b"a", None, 101)
    (105, 0, 105)
    """

    __slots__ = (
        "_bytes_max", "_closed_bytes", "_generations", "_merges", "_open_keys", "_releasing_bytes", "_releasing_runs",
        "_releasing_versions", "_shape", "_slice_bytes_max", "_sorted_open_keys", "_young", "floor", "last_version",
    )  # fmt: skip

    def __init__(self, floor: int, *, bytes_max: int, shape: WindowShape = SHAPE) -> None:
        self.floor = floor
        self.last_version = floor
        self._bytes_max = bytes_max
        self._slice_bytes_max = bytes_max // 64
        self._shape = shape
        self._young = WindowGeneration(floor)
        self._generations = [self._young, WindowGeneration(floor), WindowGeneration(floor)]
        # The keys changed since the last run was made: as they came, and those that a range read already put in order.
        self._open_keys: list[bytes] = []
        self._sorted_open_keys: list[bytes] = []
        self._merges: list[Merge] = []
        # The bytes of ``_generations[3:]``, and of what waits to be given back.
        self._closed_bytes = 0
        self._releasing_bytes = 0
        self._releasing_runs: list[Run] = []
        self._releasing_versions: list[dict[bytes, int]] = []

    def record(self, version: int, operations: Sequence[Operation], *, further: bool = False) -> int:
        """Remember what an accepted transaction changed. Versions rise strictly. Returns how many were range deletions.

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
        deletions = 0
        for operation in operations:
            if isinstance(operation, RangeDelete):
                deletions += 1
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
        return deletions

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
        """No question is asked below ``floor`` any more, nor below the limit of ``bytes_max``. Frees memory."""
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
        self._young = WindowGeneration(self.last_version)
        self._generations[:2] = [self._young, young]

    def _absorb_resting(self) -> None:
        """Merge the resting generation into the growing one, and close that when it is full."""
        shape = self._shape
        _, resting, growing = self._generations[:3]
        if resting.empty:
            return
        if growing.run_keys + resting.run_keys > shape.generation_keys and not growing.empty:
            self._close_growing()
            growing = self._generations[2]
        growing.absorb(resting)
        self._generations[1] = WindowGeneration(resting.last_version)
        bounds = 0 if growing.deleted is None else len(growing.deleted.bounds)
        if (
            growing.slices >= shape.generation_slices
            or bounds >= shape.generation_bounds
            or growing.payload_bytes >= self._bytes_max // 8
        ):
            self._close_growing()

    def _close_growing(self) -> None:
        closed = self._generations[2]
        self._generations.insert(2, WindowGeneration(closed.last_version))
        self._closed_bytes += closed.bytes_used()
        self._merges.append(Merge(closed, self._shape))

    def _drop_expired(self) -> None:
        generations = self._generations
        while len(generations) > 3 and generations[-1].last_version <= self.floor:
            closed = generations.pop()
            self._closed_bytes -= closed.bytes_used()
            self._release(closed)
        for index in (2, 1, 0):
            generation = generations[index]
            if not generation.empty and generation.last_version <= self.floor:
                self._release(generation)
                generations[index] = WindowGeneration(generation.last_version)
        if self._young is not generations[0]:
            self._young = generations[0]
            self._open_keys.clear()
            self._sorted_open_keys = []

    def _release(self, generation: WindowGeneration) -> None:
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
