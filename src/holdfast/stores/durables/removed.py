"""What left a durable while a subscriber held it (``Removals``): why its acknowledgement is stale, and who has its key.

An entry ends when the subscriber answers for its message or is detached, and is of no use from its deadline on: then
the message would have been taken back in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.stores.durables.leases import Lease

REMOVED_MAX: Final = 1_024
"""Entries of one subscriber. Above it the oldest is forgotten: its acknowledgement is stale without a cause."""

Entry = tuple[int, int, int, str]
"""First, last, deadline in milliseconds (0 for none), and cause."""


class Removals:
    """Entries by subscriber, in the order in which they were removed. Cost of each method: O(entries)."""

    def __init__(self) -> None:
        self.of: dict[str, list[Entry]] = {}

    def add(self, subscriber: str, runs: Sequence[Lease], cause: str) -> list[Entry]:
        """These left the durable. Returns what is forgotten for it."""
        entries = self.of.setdefault(subscriber, [])
        for first, last, _, deadline_ms in runs:
            if entries and (entries[-1][1], *entries[-1][2:]) == (first - 1, deadline_ms, cause):
                entries[-1] = entries[-1][0], last, deadline_ms, cause
            else:
                entries.append((first, last, deadline_ms, cause))
        forgotten = entries[:-REMOVED_MAX]
        del entries[:-REMOVED_MAX]
        return forgotten

    def take(self, subscriber: str, first: int, last: int) -> tuple[list[Entry], list[Entry]]:
        """The subscriber answers for these. Returns what of them was removed, and what is forgotten for the parts of
        entries that are left."""
        entries = self.of.get(subscriber)
        if not entries:
            return [], []
        taken: list[Entry] = []
        left: list[Entry] = []
        for low, high, deadline_ms, cause in entries:
            begin, end = max(low, first), min(high, last)
            if begin > end:
                left.append((low, high, deadline_ms, cause))
                continue
            taken.append((begin, end, deadline_ms, cause))
            left += [(low, begin - 1, deadline_ms, cause)] if low < begin else []
            left += [(end + 1, high, deadline_ms, cause)] if end < high else []
        return taken, self._keep(subscriber, left)

    def renew(self, subscriber: str, first: int, last: int, deadline_ms: int) -> tuple[list[Entry], list[Entry]]:
        """The application works on these: their time begins. Returns those that were removed, and what is forgotten."""
        taken, forgotten = self.take(subscriber, first, last)
        renewed = [(low, high, deadline_ms, cause) for low, high, _, cause in taken]
        if renewed:
            forgotten += self._keep(subscriber, self.of.get(subscriber, []) + renewed)
        return renewed, forgotten

    def leave(self, subscriber: str) -> list[Entry]:
        """The subscriber is detached."""
        return self.of.pop(subscriber, [])

    def end(self, now_ms: int) -> list[Entry]:
        """Forget those whose deadline has come."""
        ended = [entry for entries in self.of.values() for entry in entries if 0 < entry[2] <= now_ms]
        for name, entries in list(self.of.items()) if ended else ():
            self._keep(name, [entry for entry in entries if not 0 < entry[2] <= now_ms])
        return ended

    def postpone(self, until_ms: int) -> bool:
        """No deadline comes before then. Returns whether one would have."""
        early = any(0 < entry[2] < until_ms for entries in self.of.values() for entry in entries)
        for name, entries in self.of.items() if early else ():
            self.of[name] = [
                (first, last, max(deadline_ms, until_ms) if deadline_ms else 0, cause)
                for first, last, deadline_ms, cause in entries
            ]
        return early

    def next_ms(self) -> int | None:
        """The first deadline, or None."""
        return min((entry[2] for entries in self.of.values() for entry in entries if entry[2]), default=None)

    def _keep(self, subscriber: str, entries: list[Entry]) -> list[Entry]:
        """Keep these, the newest of them above the bound. Returns what is forgotten."""
        if entries:
            self.of[subscriber] = entries[-REMOVED_MAX:]
        else:
            self.of.pop(subscriber, None)
        return entries[:-REMOVED_MAX]

    def check(self) -> None:
        """Entries are bounded, and none is empty."""
        for entries in self.of.values():
            assert 0 < len(entries) <= REMOVED_MAX, "entries are bounded"
            assert all(first <= last for first, last, *_ in entries), "an entry is not empty"
