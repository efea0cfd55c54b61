"""The kernel of bulk resolution: one pass over requests in order, in compiled loops, with three verdicts.

A request conflicts when a certainly committed request changed something that it read, after it read it. It is clear
when no request that may be committed did so. Otherwise it is unknown.

Changes are in a radix tree of ordinals in flat arrays. Level 0 has one entry per rank, each higher level one per
``FAN`` entries below; ``begins`` says where each level begins. ``inside`` holds the newest change anywhere below an
entry, ``covers`` the newest change of everything below it. A range is cut into entries that are wholly inside it and
whose parents are not, so the two ends alone find what covers it. Cost: O(items x log(ranks)), at most 17 bytes per
rank. numba caches the loops by the date and size of this file; they check no bounds: ``Problem.check`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar, cast

import numba
import numpy as np

from holdfast.spark.bulk.problem import (  # fmt: skip
    CLEAR,
    COMMITTED,
    CONFLICT,
    REJECTED,
    UNKNOWN,
    Flags,
    Ordinals,
    Problem,
    States,
)
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


def _arrays(problem: Problem) -> tuple[Changes, Ordinals, Items, Ordinals, Items]:
    """What both loops work on: an empty tree of changes, ordinals, reads, when they were read, and writes."""
    begins = levels(problem.ranks)
    covers = empty(begins if problem.has_range_writes else np.zeros(1, np.int64))
    reads = (problem.read_begins, problem.read_lows, problem.read_highs)
    writes = (problem.write_begins, problem.write_lows, problem.write_highs)
    return (begins, empty(begins), covers), problem.ordinals, reads, problem.read_ats, writes


@compiled
def _judge(
    committed: Changes,
    ordinals: Ordinals,
    reads: Items,
    read_ats: Ordinals,
    writes: Items,
    states: States,
    decides: Flags,
    clear: Flags,
) -> States:
    begins, inside, covers = committed
    # What may be committed: looked up only once there is any.
    open_inside, open_covers, some_open = np.zeros_like(inside), np.zeros_like(covers), False
    read_begins, read_lows, read_highs = reads
    write_begins, write_lows, write_highs = writes
    points = len(covers) == 0
    verdicts = np.zeros(len(ordinals), np.uint8)
    for request in range(len(ordinals)):
        state = states[request]
        if state == UNKNOWN:
            verdict = CLEAR
            if not clear[request]:
                for read in range(read_begins[request], read_begins[request + 1]):
                    low, high, at = read_lows[read], read_highs[read], read_ats[read]
                    one = points and high - low == 1
                    if (inside[low] if one else newest(begins, inside, covers, low, high)) > at:
                        verdict = CONFLICT
                        break
                    if some_open and newest(begins, open_inside, open_covers, low, high) > at:
                        verdict = UNKNOWN
            verdicts[request] = verdict
            if verdict == CONFLICT:
                state = REJECTED
            elif verdict == CLEAR and decides[request]:
                state = COMMITTED
        if state == REJECTED:
            continue
        for write in range(write_begins[request], write_begins[request + 1]):
            low, high, ordinal = write_lows[write], write_highs[write], ordinals[request]
            if state != COMMITTED:
                some_open = True
                record(begins, open_inside, open_covers, low, high, ordinal)
            elif high - low == 1:
                record_one(begins, inside, low, ordinal)
            else:
                record(begins, inside, covers, low, high, ordinal)
    return verdicts


@compiled
def _conflicting_changes(
    committed: Changes, ordinals: Ordinals, reads: Items, read_ats: Ordinals, writes: Items, states: States
) -> Ordinals:
    begins, inside, covers = committed
    read_begins, read_lows, read_highs = reads
    write_begins, write_lows, write_highs = writes
    points = len(covers) == 0
    changes = np.zeros(len(read_lows), np.int32)
    for request in range(len(ordinals)):
        if states[request] == REJECTED:
            for read in range(read_begins[request], read_begins[request + 1]):
                low, high = read_lows[read], read_highs[read]
                one = points and high - low == 1
                change = inside[low] if one else newest(begins, inside, covers, low, high)
                if change > read_ats[read]:
                    changes[read] = change
        elif states[request] == COMMITTED:
            for write in range(write_begins[request], write_begins[request + 1]):
                low, high, ordinal = write_lows[write], write_highs[write], ordinals[request]
                if high - low == 1:
                    record_one(begins, inside, low, ordinal)
                else:
                    record(begins, inside, covers, low, high, ordinal)
    return changes


def load_loops() -> None:
    """Load the loops, or compile them, so that a later measurement does not include it."""
    none, nothing = np.zeros(0, np.int64), np.zeros(0, np.int32)
    begins = np.zeros(1, np.int64)
    problem = Problem(1, nothing, begins, none, none, nothing, begins, none, none)
    sweep(problem, np.zeros(0, np.uint8), np.zeros(0, np.bool_), np.zeros(0, np.bool_))


def sweep(problem: Problem, states: States, decides: Flags, clear: Flags) -> States:
    """Judge every unknown request: UNKNOWN, CLEAR or CONFLICT; 0 for requests that are already decided.

    ``states`` holds the known state of each request; ``decides``: a request that is clear here is committed; ``clear``:
    it was clear here before.
    """
    return _judge(*_arrays(problem), states, decides, clear)


def conflicting_changes(problem: Problem, states: States) -> Ordinals:
    """For each read of a REJECTED request the newest committed change after the read and before the request, or 0.

    ``states`` is final: nothing is unknown. Reads of other requests get 0.
    """
    return _conflicting_changes(*_arrays(problem), states)
