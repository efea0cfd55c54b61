"""The kernel of bulk resolution: one pass over requests in order, in compiled loops.

A request conflicts when a committed request changed something that it read, after it read it.

Changes are in a radix tree of ordinals in flat arrays. Level 0 has one entry per rank, each higher level one per
``FAN`` entries below; ``begins`` says where each level begins. ``inside`` holds the newest change anywhere below an
entry, ``covers`` the newest change of everything below it. A range is cut into entries that are wholly inside it and
whose parents are not, so the two ends alone find what covers it. Cost: O(items x log(ranks)), at most 9 bytes per
rank. numba caches the loops by the date and size of this file; they check no bounds: ``Problem.check`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commit.format.batch import ItemKind
from holdfast.spark.bulk.sequencing import Numbers, ordinals_of, plain_numbers

Flags: TypeAlias = npt.NDArray[np.bool_]
Ordinals: TypeAlias = npt.NDArray[np.int32]
States: TypeAlias = npt.NDArray[np.uint8]

COMMITTED: Final = 1
REJECTED: Final = 2
"""States of a request. 0: not judged."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What the loops solve: requests in their order, with what they read and change among ``ranks`` ranks, as arrays.

    The rank of a key is its index among all keys and range bounds of the problem; a key of rank r is the range ``[r, r
    + 1)``. Two ranges of keys overlap exactly when their ranks do.

    Shape: ``ordinals`` rise strictly from 1 or more. The reads of request i are ``read_begins[i]`` up to
    ``read_begins[i + 1]``, each a range of ranks ``[low, high)`` and the ordinal ``at`` which it was read (0: before
    all). Writes likewise. No range is empty.
    """

    ranks: int
    ordinals: Ordinals
    read_begins: Numbers
    read_lows: Numbers
    read_highs: Numbers
    read_ats: Ordinals
    write_begins: Numbers
    write_lows: Numbers
    write_highs: Numbers

    @property
    def has_range_writes(self) -> bool:
        """Whether a change is of more than one rank."""
        return bool((self.write_highs - self.write_lows > 1).any())

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


@dataclass(frozen=True, slots=True)
class Items:
    """Preconditions and changes of requests that are to be judged, as columns.

    Shape: ``owners`` are request positions from 0, in order; ``numbers`` are positions of preconditions in them.
    """

    owners: Numbers
    numbers: npt.NDArray[np.int32]
    is_read: Flags
    is_range: Flags
    keys: pa.Array
    ends: pa.Array
    ats: Ordinals

    def chosen(self, which: Flags) -> Items:
        """Some of them."""
        mask = pa.array(which)
        return Items(
            self.owners[which],
            self.numbers[which],
            self.is_read[which],
            self.is_range[which],
            self.keys.filter(mask),
            self.ends.filter(mask),
            self.ats[which],
        )


def select_items(
    asks: pa.Table, rows: pa.Table, base: int, assigned: Ordinals, pending: Flags, floors: Numbers
) -> tuple[Items, Numbers]:
    """The items of all requests, and the positions of those that are too old.

    Shape: ``assigned`` holds the ordinal after k requests, ``floors`` are as ``k``. Items of requests that are not
    pending, or too old, are left out.
    """
    counts = asks["items"].to_numpy().astype(np.int64)
    owners = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    kinds = rows["kind"].to_numpy()
    is_read: Flags = kinds >= ItemKind.POINT_READ
    at_index, at_version = plain_numbers(rows["at_index"]), plain_numbers(rows["at_version"])
    bare = (at_index < 0) & (at_version < 0)
    own_index, own_version = plain_numbers(asks["read_index"]), plain_numbers(asks["read_version"])
    # A request that names a later one is refused before it comes here; its items are only passed over.
    at_index = np.minimum(np.where(bare, own_index[owners], at_index), len(assigned) - 1)
    at_version = np.where(bare, own_version[owners], at_version)
    ats = ordinals_of(at_index, at_version, assigned, base)
    old = np.unique(owners[is_read & (ats < assigned[floors][owners]) & pending[owners]])
    judged = pending.copy()
    judged[old] = False
    items = Items(
        owners,
        (np.arange(len(owners)) - starts[owners]).astype(np.int32),
        is_read,
        (kinds == ItemKind.RANGE_DELETE) | (kinds == ItemKind.RANGE_READ),
        _one(rows["key"]),
        _one(rows["end"]),
        ats,
    )
    return (items if judged.all() else items.chosen(judged[owners])), old


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.cast(pa.large_binary()).combine_chunks()


def key_ranks(keys: pa.Array, ends: pa.Array) -> tuple[Numbers, Numbers, int]:
    """The rank of every key and every end (one above all for a null), and how many ranks there are."""
    bounds = ends.drop_null()
    both = pa.concat_arrays([keys, bounds]) if len(bounds) else keys
    encoded = both.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks: Numbers = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    all_ranks = ranks[encoded.indices.to_numpy()]
    highs: Numbers = np.full(len(ends), len(order), np.int64)
    if len(bounds):
        highs[pc.is_valid(ends).to_numpy(zero_copy_only=False)] = all_ranks[len(keys) :]
    return all_ranks[: len(keys)], highs, len(order)


def make_problem(items: Items, positions: Numbers, ordinals: Ordinals) -> Problem:
    """The problem of the requests at ``positions``, which rise and hold every owner of ``items``."""
    lows, ends, ranks = key_ranks(items.keys, items.ends)
    highs = np.where(items.is_range, ends, lows + 1)
    owners = np.searchsorted(positions, items.owners)
    reads, writes = items.is_read, ~items.is_read

    def begins(which: Flags) -> Numbers:
        offsets: Numbers = np.zeros(len(positions) + 1, np.int64)
        np.cumsum(np.bincount(owners[which], minlength=len(positions)), out=offsets[1:])
        return offsets

    return Problem(
        ranks=ranks,
        ordinals=ordinals,
        read_begins=begins(reads),
        read_lows=lows[reads],
        read_highs=highs[reads],
        read_ats=items.ats[reads],
        write_begins=begins(writes),
        write_lows=lows[writes],
        write_highs=highs[writes],
    )


Changes: TypeAlias = tuple[Numbers, Ordinals, Ordinals]
ItemArrays: TypeAlias = tuple[Numbers, Numbers, Numbers]
Loop = TypeVar("Loop", bound=Callable[..., Any])

SHIFT: Final = 6
FAN: Final = 1 << SHIFT


def compiled(loop: Loop) -> Loop:
    """The loop as machine code, kept next to the module, or in the user's cache where that is read-only."""
    try:
        return cast("Loop", numba.njit(cache=True)(loop))
    except RuntimeError:  # No writable directory: every process compiles its own.
        return cast("Loop", numba.njit(loop))


def levels(ranks: int) -> Numbers:
    """Where each level begins, and after the last one the size of all.

    >>> levels(1000).tolist()
    [0, 1000, 1016, 1017]
    """
    sizes = [max(ranks, 1)]
    while sizes[-1] > 1:
        sizes.append(((sizes[-1] - 1) >> SHIFT) + 1)
    return np.cumsum([0, *sizes])


def empty(begins: Numbers) -> Ordinals:
    """Nothing has changed. Memory: 4 bytes a rank, and a little more; the system gives it where it is written."""
    return np.zeros(int(begins[-1]), np.int32)


@compiled
def record_one(begins: Numbers, inside: Ordinals, rank: int, ordinal: int) -> None:
    """A single rank changes at ``ordinal``."""
    for level in range(len(begins) - 1):
        inside[begins[level] + rank] = ordinal
        rank >>= SHIFT


@compiled
def _whole_parents(low: int, high: int) -> tuple[int, int]:
    """The parents that are wholly inside a range, as entries ``(left, right)``; ``(high, high)`` for none.

    >>> _whole_parents(3, 200), _whole_parents(3, 5), _whole_parents(64, 128)
    ((64, 192), (5, 5), (64, 128))
    """
    left, right = ((low + FAN - 1) >> SHIFT) << SHIFT, (high >> SHIFT) << SHIFT
    return (left, right) if left <= right else (high, high)


@compiled
def record(begins: Numbers, inside: Ordinals, covers: Ordinals, low: int, high: int, ordinal: int) -> None:
    """Everything in ``[low, high)`` changes at ``ordinal``. ``covers`` may be empty if that is ever a single rank only.

    >>> begins = levels(1000)
    >>> inside, covers = empty(begins), empty(begins)
    >>> record_one(begins, inside, 3, 1)
    >>> record(begins, inside, covers, 5, 900, 2)
    >>> [newest(begins, inside, covers, low, high) for low, high in ((0, 3), (0, 5), (0, 8), (899, 1000), (900, 1000))]
    [0, 1, 2, 2, 0]
    """
    record_one(begins, inside, low, ordinal)
    if high - low == 1:
        return
    record_one(begins, inside, high - 1, ordinal)
    level = 0
    while low < high:
        left, right = _whole_parents(low, high)
        for entry in range(begins[level] + low, begins[level] + left):
            inside[entry] = covers[entry] = ordinal
        for entry in range(begins[level] + right, begins[level] + high):
            inside[entry] = covers[entry] = ordinal
        low, high = (left + FAN - 1) >> SHIFT, right >> SHIFT
        level += 1


@compiled
def newest(begins: Numbers, inside: Ordinals, covers: Ordinals, low: int, high: int) -> int:
    """The newest change in ``[low, high)``, 0 for none. The range holds at least one rank.

    ``covers`` may be empty while every change was of a single rank; a single rank's newest change is then in
    ``inside[low]``, which is faster.
    """
    latest = 0
    if len(covers):
        first, last = low, high - 1
        for level in range(len(begins) - 1):
            latest = max(latest, int(covers[begins[level] + first]), int(covers[begins[level] + last]))
            first >>= SHIFT
            last >>= SHIFT
    level = 0
    while low < high:
        left, right = _whole_parents(low, high)
        for entry in range(begins[level] + low, begins[level] + left):
            latest = max(latest, int(inside[entry]))
        for entry in range(begins[level] + right, begins[level] + high):
            latest = max(latest, int(inside[entry]))
        low, high = (left + FAN - 1) >> SHIFT, right >> SHIFT
        level += 1
    return latest


@compiled
def _judge(
    committed: Changes, ordinals: Ordinals, reads: ItemArrays, read_ats: Ordinals, writes: ItemArrays
) -> tuple[States, Ordinals]:
    begins, inside, covers = committed
    read_begins, read_lows, read_highs = reads
    write_begins, write_lows, write_highs = writes
    points = len(covers) == 0
    states = np.zeros(len(ordinals), np.uint8)
    broken = np.zeros(len(read_lows), np.int32)
    for request in range(len(ordinals)):
        state = COMMITTED
        for read in range(read_begins[request], read_begins[request + 1]):
            low, high = read_lows[read], read_highs[read]
            one = points and high - low == 1
            change = inside[low] if one else newest(begins, inside, covers, low, high)
            if change > read_ats[read]:
                broken[read] = change
                state = REJECTED
        states[request] = state
        if state == REJECTED:
            continue
        for write in range(write_begins[request], write_begins[request + 1]):
            low, high, ordinal = write_lows[write], write_highs[write], ordinals[request]
            if high - low == 1:
                record_one(begins, inside, low, ordinal)
            else:
                record(begins, inside, covers, low, high, ordinal)
    return states, broken


def load_loops() -> None:
    """Load the loops, or compile them, so that a later measurement does not include it."""
    none, nothing = np.zeros(0, np.int64), np.zeros(0, np.int32)
    begins = np.zeros(1, np.int64)
    judge(Problem(1, nothing, begins, none, none, nothing, begins, none, none))


def judge(problem: Problem) -> tuple[States, Ordinals]:
    """COMMITTED or REJECTED for each request, and for each of its reads the newest change that broke it, or 0.

    That change was committed after the read and before the request.
    """
    begins = levels(problem.ranks)
    covers = empty(begins if problem.has_range_writes else np.zeros(1, np.int64))
    reads = (problem.read_begins, problem.read_lows, problem.read_highs)
    writes = (problem.write_begins, problem.write_lows, problem.write_highs)
    return _judge((begins, empty(begins), covers), problem.ordinals, reads, problem.read_ats, writes)
