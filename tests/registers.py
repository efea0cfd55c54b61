"""Checks whether a small history of one register is linearizable, by a search for an order of its calls.

For responses with versions use ``histories``, which needs no search.

Source: Wing and Gong, "Testing and Verifying Concurrent Objects", 1993; Lowe, "Testing for Linearizability", 2017 (the
remembered states).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.histories import Moment

__all__ = ["RegisterCall", "register_is_linearizable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterCall:
    """One operation on a register. ``end`` is None when no answer came: it may have happened at any time, or never.

    ``write`` sets ``value``; ``read`` answered ``value``; ``swap`` set ``value`` where it found ``expected`` and
    answered ``swapped``. The register begins as None.
    """

    begin: Moment
    end: Moment | None
    kind: Literal["read", "write", "swap"]
    value: int | None = None
    expected: int | None = None
    swapped: bool = True


def register_is_linearizable(calls: Sequence[RegisterCall]) -> bool:
    """Whether some order of the calls, each at one moment between its begin and its end, explains every answer.

    Cost: exponential in the number of calls that overlap; states are remembered, so histories of a few dozen calls with
    up to about ten at once are quick.
    """
    finished = sum(1 << index for index, call in enumerate(calls) if call.end is not None)
    seen: set[tuple[int, int | None]] = set()
    stack: list[tuple[int, int | None]] = [(0, None)]
    while stack:
        done, value = stack.pop()
        if done & finished == finished:
            return True
        if (done, value) in seen:
            continue
        seen.add((done, value))
        for index in _may_be_next(calls, done):
            stack.extend((done | 1 << index, after) for after in _effects(calls[index], value))
    return False


def _may_be_next(calls: Sequence[RegisterCall], done: int) -> Iterable[int]:
    """The calls that began before every call still to come had ended."""
    waiting = [index for index in range(len(calls)) if not done >> index & 1]
    deadline = min((end for index in waiting if (end := calls[index].end) is not None), default=float("inf"))
    return [index for index in waiting if calls[index].begin <= deadline]


def _effects(call: RegisterCall, value: int | None) -> Sequence[int | None]:
    """The register after the call happens now: one value, or none when its answer would have been another."""
    match call.kind:
        case "write":
            return (call.value,)
        case "read":
            return (value,) if call.end is None or call.value == value else ()
        case "swap":
            matches = value == call.expected
            if call.end is not None and matches != call.swapped:
                return ()
            return (call.value,) if matches else (value,)
