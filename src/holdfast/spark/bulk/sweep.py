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
from typing import Any, Final, TypeAlias, TypeVar, cast

import numba
import numpy as np

from holdfast.spark.bulk.resolve import COMMITTED, REJECTED, Ordinals, Problem, States
from holdfast.spark.bulk.sequencing import Numbers

Changes: TypeAlias = tuple[Numbers, Ordinals, Ordinals]
Items: TypeAlias = tuple[Numbers, Numbers, Numbers]
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
    committed: Changes, ordinals: Ordinals, reads: Items, read_ats: Ordinals, writes: Items
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
