"""Errors that are kept as values, without the frames that they passed through.

A traceback refers to frames, and a frame to its variables. An error that one of those variables refers to forms a
reference cycle with everything that the frames hold: a request's body, its connection. The serving process collects
cycles rarely (``run``), so an error that is kept after it was caught loses its traceback first.
"""

from __future__ import annotations

from typing import TypeVar

__all__ = ["without_traceback"]

E = TypeVar("E", bound=BaseException)


def without_traceback(error: E) -> E:
    """``error`` itself, after its traceback and those of its causes were removed.

    Cost: O(errors in the chain of causes and contexts).
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()  # an error that is raised again from one that it caused makes a circle
    while waiting:
        found = waiting.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            found.__traceback__ = None
            waiting += (found.__cause__, found.__context__)
    return error
