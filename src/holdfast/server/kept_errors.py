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

    Cost: O(length of the chain of causes).
    """
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
    return error
