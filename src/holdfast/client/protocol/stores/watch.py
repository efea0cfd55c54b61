"""The state machine of the watch of a map, without I/O.

Memory: the keys of the map with their revisions, and one change for each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.client.protocol.options import SubscriberOptions
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.subscriber import SubscriberMachine
from holdfast.wire.stores import ChangesFrame, CurrentFrame, KeyChange

_THERE: Final = frozenset({"present", "set"})


class WatchMachine(SubscriberMachine):
    """The subscriber of a map: ``take_change`` instead of messages.

    Each connection begins with the whole content of the map. After a reconnect only differences are delivered: a key
    with another revision as ``present``, a missing key as ``removed`` with its last revision.
    """

    def __init__(self, session: Session, target: str, options: SubscriberOptions) -> None:
        super().__init__(session, target, options)
        self._known: dict[str, int] = {}
        """The revision of each key after the changes delivered so far and those in ``_changes``."""
        self._changes: dict[str, KeyChange] = {}
        """Changes not taken yet, one for each key, in the order of the newest."""
        self._met: set[str] | None = set()
        """Keys received on this connection, until it is current."""

    @property
    def has_ready(self) -> bool:
        """Whether ``take_change`` has something."""
        return bool(self._changes)

    @property
    def is_current(self) -> bool:
        """Whether the content of the map at the start of the connection has been taken."""
        return self._met is None and not self._changes

    def take_change(self) -> KeyChange | None:
        """The next change, or None."""
        return self._changes.pop(next(iter(self._changes))) if self._changes else None

    def attached(self) -> None:
        """A connection begins with the whole content."""
        self._met = set()

    def watched(self, frame: ChangesFrame | CurrentFrame) -> None:
        """Changes arrived, or the initial content is complete."""
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
            assert known == (change.revision if change.cause in _THERE else None), "a change is the newest of its key"
