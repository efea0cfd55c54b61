"""Stage 1 for requests in bulk: which requests get a version, and the fate of the others.

The first committed attempt under a request id is the original. The same attempt again shares its outcome; another
request under that id is ``request_id_reused``. A refused attempt leaves no record, so the id is decided again. Verdicts
come after this stage: it is given the positions that are known to be refused, see ``resolve_requests``. An *ordinal* is
a request's number among those that get a version, from 1: its version is the leader's base + ordinal. Cost: O(requests)
array work; a Python step for each request that shares its id or names a version above the base. Memory: about 60 bytes
per request.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]

BELOW: Final = -1
"""The ordinal of a version below the base."""


class Fate(IntEnum):
    """What becomes of a request. PENDING has a version and waits for its verdict; LOOK_UP waits for the log's word.

    From NO_OPERATIONS to TOO_LARGE: it breaks a rule, and the name is the code of the service.
    """

    PENDING = 0
    COMMITTED = 1
    CONFLICT = 2
    TOO_OLD = 3
    DUPLICATE = 4
    REQUEST_ID_REUSED = 5
    FUTURE_VERSION = 6
    NO_OPERATIONS = 7
    BAD_REQUEST_ID = 8
    READ_VERSION_REQUIRED = 9
    BAD_RANGE = 10
    TOO_LARGE = 11
    LOOK_UP = 12


@dataclass(frozen=True, slots=True)
class Windows:
    """The window floors: from position ``positions[i]`` on (counted from 1) the floor is what ``#indexes[i]`` means.

    Shape: both rise. Before the first position the floor is the base. No positions: the window holds the whole input.
    """

    positions: tuple[int, ...] = ()
    indexes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.positions) == len(self.indexes), "every floor has a position"
        assert all(index < position for position, index in zip(self.positions, self.indexes, strict=True)), (
            "a floor is past"
        )

    @staticmethod
    def trailing(requests: int, window: int | None) -> Windows:
        """A window of at least ``window`` requests, which moves in steps of an eighth of it."""
        if window is None:
            return WHOLE_INPUT
        step = max(1, window // 8)
        positions = tuple(range(window + step + 1, requests + 1, step))
        return Windows(positions, tuple(position - 1 - window for position in positions))

    def cut(self, after: tuple[int, ...]) -> Windows:
        """These floors, and a window that restarts after each of these counts of requests, as under a new leader."""
        if not after:
            return self
        positions = tuple(sorted({*self.positions, *(count + 1 for count in after)}))
        own = self.indexes_at(np.array(positions, np.int64)).tolist()
        cuts = [max((count for count in after if count < position), default=0) for position in positions]
        return Windows(positions, tuple(map(max, own, cuts)))

    def indexes_at(self, positions: Numbers) -> Numbers:
        """The ``k`` of the floor at each position, 0 for the base."""
        known: Numbers = np.array((0, *self.indexes), np.int64)
        indexes: Numbers = known[np.searchsorted(np.array(self.positions, np.int64), positions, side="right")]
        return indexes


WHOLE_INPUT: Final = Windows()
NONE_REFUSED: Final = frozenset[int]()


@dataclass(frozen=True, slots=True)
class Sequencing:
    """Every request's fate so far. ``assigned[k]`` is the ordinal after k requests; ``originals`` maps a
    duplicate's position to its original's. ``attempts``: the pending requests whose id another request has, too.
    Positions count from 0 here."""

    fates: npt.NDArray[np.uint8]
    assigned: npt.NDArray[np.int32]
    originals: dict[int, int]
    attempts: tuple[int, ...] = ()

    @property
    def pending(self) -> npt.NDArray[np.bool_]:
        """Which requests have a version."""
        return np.diff(self.assigned) > 0


def ordinals_of(
    indexes: Numbers, versions: Numbers, assigned: npt.NDArray[np.int32], base: int
) -> npt.NDArray[np.int32]:
    """The ordinals of these read versions: ``indexes`` where not -1, else ``versions``. -1 is below all."""
    absolute = np.clip(versions - base, BELOW, 2**31 - 1)
    return np.where(indexes >= 0, assigned[np.maximum(indexes, 0)], absolute).astype(np.int32)


def plain_numbers(column: pa.ChunkedArray) -> Numbers:
    """The numbers of a column, -1 for a null."""
    numbers: Numbers = pc.fill_null(column, -1).to_numpy().astype(np.int64)
    return numbers


def sequence_requests(
    asks: pa.Table, base: int, windows: Windows, refused: frozenset[int] = NONE_REFUSED
) -> Sequencing:
    """Sequence these requests, which are in order. ``refused``: positions whose verdict is a refusal."""
    count = asks.num_rows
    fates: npt.NDArray[np.uint8] = asks["refusal"].to_numpy().astype(np.uint8)
    positions = np.arange(count, dtype=np.int64)
    index_max, version_max = asks["index_max"].to_numpy(), asks["version_max"].to_numpy()
    read_index, read_version = plain_numbers(asks["read_index"]), plain_numbers(asks["read_version"])
    fates[(fates == 0) & (index_max > positions)] = Fate.FUTURE_VERSION
    special = version_max > base
    groups, shared = _shared_ids(asks["request_id"])
    # Requests with an id of their own, whose read version may be below the floor: the log may know them.
    floors = windows.indexes_at(positions + 1)
    named = groups >= 0
    special |= shared | (named & (read_index < floors) & (fates == 0))
    special &= fates <= Fate.FUTURE_VERSION
    chosen = np.flatnonzero(special)
    taken = (fates == 0) & ~special
    assigned: npt.NDArray[np.int32] = np.concatenate(([0], np.cumsum(taken))).astype(np.int32)
    sequencer = _OneByOne(asks, base, fates, assigned, groups, refused)
    for position in chosen.tolist():
        sequencer.take(
            position,
            int(read_index[position]),
            int(read_version[position]),
            int(index_max[position]),
            int(floors[position]),
        )
    assigned = np.concatenate(([0], np.cumsum(fates == Fate.PENDING))).astype(np.int32)
    attempts = np.flatnonzero(shared & (fates == Fate.PENDING)).tolist()
    return Sequencing(fates, assigned, sequencer.originals, tuple(attempts))


def _shared_ids(column: pa.ChunkedArray) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """A number for each request id, -1 for none, and whether another request has the same."""
    if column.null_count == len(column):
        return np.full(len(column), -1, np.int64), np.zeros(len(column), np.bool_)
    encoded = column.combine_chunks().dictionary_encode()
    groups: Numbers = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.bincount(groups[groups >= 0], minlength=len(encoded.dictionary))
    return groups, (groups >= 0) & (counts[groups] > 1)


@dataclass
class _OneByOne:
    """The requests whose fate depends on how many before them got a version, or on another with the same id."""

    asks: pa.Table
    base: int
    fates: npt.NDArray[np.uint8]
    assigned_without: npt.NDArray[np.int32]
    groups: Numbers
    refused: frozenset[int]
    originals: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self._version_max = self.asks["version_max"].to_numpy()
        self._checksums = self.asks["checksum"].to_numpy()
        self._known: dict[int, int] = {}
        self._taken: list[int] = []

    def take(self, position: int, read_index: int, read_version: int, index_max: int, floor_index: int) -> None:
        # Positions come in order, so all of ``_taken`` are before this one.
        newest = self.base + int(self.assigned_without[position]) + len(self._taken)
        if read_index > position or read_version > newest:
            self.fates[position] = Fate.FUTURE_VERSION
            return
        group = int(self.groups[position])
        original = self._known.get(group) if group >= 0 else None
        if original is not None:
            same = self._checksums[position] == self._checksums[original]
            self.fates[position] = Fate.DUPLICATE if same else Fate.REQUEST_ID_REUSED
            if same:
                self.originals[position] = original
            return
        if group >= 0 and self._below_floor(read_index, read_version, floor_index):
            self.fates[position] = Fate.LOOK_UP
            return
        if index_max > position or int(self._version_max[position]) > newest:
            self.fates[position] = Fate.FUTURE_VERSION
            return
        self.fates[position] = Fate.PENDING
        self._taken.append(position)
        if group >= 0 and position not in self.refused:
            self._known[group] = position

    def _ordinal_after(self, index: int) -> int:
        return int(self.assigned_without[index]) + bisect_left(self._taken, index)

    def _below_floor(self, read_index: int, read_version: int, floor_index: int) -> bool:
        floor = self._ordinal_after(floor_index)
        return (self._ordinal_after(read_index) if read_index >= 0 else read_version - self.base) < floor
