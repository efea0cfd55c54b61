"""Things in groups of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def grouped(
    things: Iterable[T], size_of: Callable[[T], int], size_max: int, count_max: int | None = None
) -> Iterator[list[T]]:
    """The things in their order. A group ends before it exceeds a bound; a thing that is larger is a group alone.

    >>> list(grouped([3, 4, 5, 9, 1], int, 8)), list(grouped([1, 1, 1], int, 8, 2))
    ([[3, 4], [5], [9], [1]], [[1, 1], [1]])
    """
    group: list[T] = []
    size = 0
    for thing in things:
        more = size_of(thing)
        if group and (size + more > size_max or len(group) == count_max):
            yield group
            group, size = [], 0
        group.append(thing)
        size += more
    if group:
        yield group
