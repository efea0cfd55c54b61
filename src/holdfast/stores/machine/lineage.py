"""Which histories the numbers of the stores went through, and how far the numbers of earlier ones are those of today.

A restore, a promotion and a move begin another history. What the stores had then they still have, under the same
numbers. Above that the earlier history may have gone on elsewhere, and its numbers are given out again here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

HISTORIES_MAX: Final = 16
"""Earlier histories that are remembered; what is left of an older one is refused."""


class Ancestor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An earlier history, and the last number of each store, by the store's id, when it ended here."""

    history: str
    last_seqs: list[tuple[int, int]]


class Lineage:
    """The histories of one cluster, oldest first. ``history`` is the part of a token; empty before the first store."""

    __slots__ = ("_ancestors", "history")

    def __init__(self) -> None:
        self.history = ""
        self._ancestors: list[Ancestor] = []

    def go_on(self, history: str, last_seqs: Iterable[tuple[int, int]]) -> None:
        """Numbers are given out in another history from now on. ``last_seqs``: of each store, by its id."""
        if self.history:
            self._ancestors.append(Ancestor(self.history, list(last_seqs)))
            del self._ancestors[:-HISTORIES_MAX]
        self.history = history

    def has(self, history: str, store: int, seq: int) -> bool:
        """Whether the number that ``history`` gave to a message of the store is that of the same message here.

        A history that was gone through twice counts as it was the first time.
        """
        if history == self.history:
            return True
        for ancestor in self._ancestors:
            if ancestor.history == history:
                return seq <= dict(ancestor.last_seqs).get(store, -1)
        return False

    def state(self) -> tuple[str, list[Ancestor]]:
        """What a snapshot keeps."""
        return self.history, list(self._ancestors)

    def restore(self, history: str, ancestors: list[Ancestor]) -> None:
        """Take up what ``state`` gave."""
        self.history, self._ancestors = history, list(ancestors)
