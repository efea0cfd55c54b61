"""The blocking watch of a map: the machine of ``watching``, on the connection of a subscriber.

Owns: handing out changes. Does not own: the connection (``blocking_subscriber``), what a change is (``watching``).
Failure model: the subscriber's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from holdfast.client.protocol.shell import now_ms
from holdfast.client.stores.steps import Advisory
from holdfast.client.stores.watching import Watching
from holdfast.client.sync.subscriber import Subscriber
from holdfast.wire.stores import KeyChange

__all__ = ["Watch"]


class Watch:
    """The changes of one map, as they happen. Made by ``Map.watch``.

    It begins with everything that is in the map (``cause`` ``present``); then comes each change. Whoever takes each as
    the key's last word has what is in the map, also after a lost connection: then what differs is told. What came and
    went meanwhile, or faster than it was taken, is not. Raises while iterating: as ``Subscriber``.
    """

    def __init__(self, machine: Watching, subscriber: Subscriber) -> None:
        self._machine = machine
        self._subscriber = subscriber

    def __enter__(self) -> Self:
        self._subscriber.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[KeyChange]:
        return self

    def __next__(self) -> KeyChange:
        change = self._next(math.inf)
        if change is None:
            raise StopIteration
        return change

    def receive(self, timeout: float | None = None) -> KeyChange | None:
        """The next change, None when none came within ``timeout`` seconds or the watch is closed."""
        return self._next(math.inf if timeout is None else now_ms() + timeout * 1000)

    def _next(self, end_ms: float) -> KeyChange | None:
        return self._subscriber.next_of(self._machine.take_change, end_ms)

    @property
    def is_current(self) -> bool:
        """Whether all that was in the map when the connection began was taken."""
        return self._machine.is_current

    def take_advisories(self) -> list[Advisory]:
        """What was advised since the last call, ``lock_lost`` among it."""
        return self._subscriber.take_advisories()

    def close(self) -> None:
        """End the watch, and with it every lock whose owner it is."""
        self._subscriber.close()
