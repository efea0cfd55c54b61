"""The protocol of a watch, as a machine without I/O: what of a map was told, and what is to be told the application.

Owns: which changes are new, which keys went while nobody was connected. Does not own: connecting, coming back, pings
(``consuming``, which this is one of), frames (``wire``).

Each connection begins with everything that is in the map, so a watch that comes back is told again what it knows. It
passes on what differs: a key with another revision as ``present``, and one that is no more there as ``removed``, with
the revision that its value had. So whoever takes each change as the key's last word has what is in the map; what came
and went while the connection was lost, or faster than it was taken, is not told.

Failure model: as ``consuming``. Memory: the keys of the map with their revisions, and one change for each key that the
application has not taken yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.client.protocol.core import Session
from holdfast.client.stores.consuming import Consuming
from holdfast.client.stores.options import SubscriberOptions
from holdfast.wire.stores import ChangesFrame, CurrentFrame, KeyChange

__all__ = ["Watching"]

_THERE: Final = frozenset({"present", "set"})


class Watching(Consuming):
    """The machine. ``take_change`` beside what ``Consuming`` has; it has no messages."""

    def __init__(
        self,
        session: Session,
        store: str,
        name: str,
        subscriber: str,
        options: SubscriberOptions,
        *,
        key: str | None,
        prefix: str,
    ) -> None:
        super().__init__(session, store, name, subscriber, options, key=key, prefix=prefix)
        self._known: dict[str, int] = {}
        """The keys that the application has been told, or will be, and their revisions."""
        self._changes: dict[str, KeyChange] = {}
        """What it has not taken yet, one for each key, in the order of the newest."""
        self._met: set[str] | None = set()
        """Keys that were told on this connection, until it is current."""

    @property
    def has_ready(self) -> bool:
        """Whether ``take_change`` has something."""
        return bool(self._changes)

    @property
    def is_current(self) -> bool:
        """Whether all that was in the map when the connection began has been taken."""
        return self._met is None and not self._changes

    def take_change(self) -> KeyChange | None:
        """The next change, or None."""
        if not self._changes:
            return None
        return self._changes.pop(next(iter(self._changes)))

    def attached(self) -> None:
        """A connection begins, with everything that is there."""
        self._met = set()

    def watched(self, frame: ChangesFrame | CurrentFrame) -> None:
        """Something was told."""
        if isinstance(frame, ChangesFrame):
            self._changed(frame.changes)
            return
        met, self._met = self._met, None
        for key in [key for key in self._known if met is not None and key not in met]:
            self._gone(KeyChange(key, self._known[key], "removed"))

    def _changed(self, changes: Sequence[KeyChange]) -> None:
        for change in changes:
            if change.cause not in _THERE:
                self._gone(change)
                continue
            if self._met is not None:
                self._met.add(change.key)
            if self._known.get(change.key) != change.revision:
                self._known[change.key] = change.revision
                self._put(change)

    def _gone(self, change: KeyChange) -> None:
        if self._known.pop(change.key, None) is not None:
            self._put(change)

    def _put(self, change: KeyChange) -> None:
        self._changes.pop(change.key, None)
        self._changes[change.key] = change

    def check(self) -> None:
        """Assert every law of the state; for tests."""
        super().check()
        for key, change in self._changes.items():
            known = self._known.get(key)
            assert known == (change.revision if change.cause in _THERE else None), "a change is the key's last word"
