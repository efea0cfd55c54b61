"""One stretch of the conflict window: what changed between two versions, searchable by key and by range.

Owns: generations, the sorted runs and deleted ranges inside them, the merge of a closed generation's runs, and what all
that weighs. Does not own: when generations begin, end and are dropped (``recent_writes``).

Failure model: pure memory; nothing here fails.

Versions only rise while a generation is written, so the newest of its runs that lists any key of a range lists the key
of that range that changed last. That is why a search by range may stop at the first run that has something to say.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

__all__ = ["BOUND_BYTES", "KEY_BYTES", "SHAPE", "VERSION_BYTES", "DeletedRanges", "Generation", "Merge", "Run", "Shape"]

KEY_BYTES: Final = 56
"""What a key costs beside its content and its dictionary entry: an object header, rounded up, and a place in a run."""
VERSION_BYTES: Final = 32
"""What a version costs. All keys of a transaction share one."""
BOUND_BYTES: Final = 96
"""What a bound of a deleted range costs beside its content: an object header, two list places and a version."""


@dataclass(frozen=True, slots=True)
class Shape:
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


SHAPE: Final = Shape()


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
        return max(
            max(newest_by_block[first_block:last_block], default=0),
            max(map(versions.__getitem__, edges), default=0),
        )


class DeletedRanges:
    """The newest deletion of every point of the key space, as a step function.

    Shape: ``versions[i]`` holds from ``bounds[i]`` up to the next bound, the last one for ever; 0 means not deleted.
    Before the first bound nothing is deleted.
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


class Generation:
    """What changed after ``after``, up to ``last_version``. Nothing older than this generation is newer than that.

    ``runs`` are ordered by time, oldest first, until ``run_begins`` is set; from then on by key, ``run_begins`` naming
    the first key of each.
    """

    __slots__ = (
        "after",
        "deleted",
        "last_version",
        "payload_bytes",
        "run_begins",
        "run_keys",
        "runs",
        "slices",
        "transactions",
        "versions",
    )

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

    def absorb(self, younger: Generation) -> None:
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
        """Count the payload anew, without what was overwritten. ``content`` is the length of all keys in the runs."""
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
    """Turns the runs of a closed generation, ordered by time, into runs ordered by key, a piece at a time.

    Until it is done the generation answers from its old runs.
    """

    __slots__ = ("_positions", "_shape", "_sources", "content_bytes", "generation", "runs")

    def __init__(self, generation: Generation, shape: Shape) -> None:
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
