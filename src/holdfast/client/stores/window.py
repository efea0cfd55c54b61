"""How many messages the service may send to one subscriber: the window, and the credit that it is owed.

Owns: who has a window of its own and what is in it, how much credit comes back when. Does not own: when it is said
(``consuming``). Failure model: pure.

Without a window of its own the durable's bounds what is unsettled: credit only bounds what is on its way, and comes
back half a window at a time as messages are taken. With one, it comes back as messages are settled.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.stores.values.messages import Delivery
from holdfast.wire.stores import AttachedFrame

__all__ = ["Window"]


class Window:
    """The window of one subscriber. ``asked`` is its own, None where the durable's is."""

    def __init__(self, asked: int | None) -> None:
        self._asked = asked
        self._offered = AttachedFrame().prefetch
        self._owed = 0
        self._held: set[int] | None = set() if asked is not None else None
        """What is not settled yet, where this subscriber has a window of its own."""

    @property
    def is_own(self) -> bool:
        """Whether what this subscriber holds is bounded by itself."""
        return self._held is not None

    @property
    def size(self) -> int:
        """How many messages it is."""
        return self._offered if self._asked is None else min(self._asked, self._offered)

    def begin(self, offered: int) -> int:
        """A connection begins; ``offered`` is the durable's window. Returns the credit to give."""
        self._offered = offered
        self._owed = 0
        return self.size

    def lost(self) -> None:
        """The connection is gone, and with it what was on its way or held."""
        if self._held is not None:
            self._held.clear()

    def arrived(self, messages: Sequence[Delivery]) -> None:
        """These came."""
        if self._held is None:
            return
        for message in messages:
            if message.seq in self._held:  # its time to be acknowledged was over, and it came back to us
                self._owed += 1
            self._held.add(message.seq)

    def took(self, count: int) -> bool:
        """The application has so many more. Returns whether credit is due."""
        if self._held is not None:
            return False
        self._owed += count
        return self._owed * 2 >= self.size

    def settled(self, first: int, last: int) -> None:
        """These are not held any more."""
        if self._held is not None:
            for seq in range(first, last + 1):
                if seq in self._held:
                    self._held.discard(seq)
                    self._owed += 1

    def take_owed(self) -> int:
        """The credit that is owed, which is given now."""
        owed, self._owed = self._owed, 0
        return owed
