"""A name that is given twice has no one value: the hook of parsers that have one, and the pairs of other texts."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class GivenTwice(ValueError):
    """A name is given twice."""


def pairs_once(pairs: list[tuple[K, V]]) -> dict[K, V]:
    """The members of one object. *Raises*: ``GivenTwice``, with the first name that is given twice.

    >>> pairs_once([("a", 1), ("b", 2)])
    {'a': 1, 'b': 2}
    >>> pairs_once([("a", 1), ("b", 2), ("b", 2)])
    Traceback (most recent call last):
    holdfast.given_twice.GivenTwice: 'b' is given twice
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[K] = set()
        for name, _ in pairs:
            if name in seen:
                shown = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
                raise GivenTwice(f"{shown!r} is given twice")
            seen.add(name)
    return members
