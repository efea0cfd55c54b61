"""The asyncio watch of a map: the changes that its machine collects, on the connection of a subscriber."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Self

from holdfast.client.aio.client import Closing
from holdfast.client.aio.subscriber import Subscriber
from holdfast.client.protocol.stores.messages import Advisory
from holdfast.client.protocol.stores.subscriber import WatchMachine
from holdfast.client.transport.clock import now_ms
from holdfast.wire.stores import KeyChange


class Watch(Closing):
    """The changes of one map, as they happen. Made by ``Map.watch``.

    First the content of the map (``cause`` ``present``), then each change; after a lost connection the differences. The
    last change of each key gives the content of the map; values that were replaced before they were taken are not
    delivered. Raises while iterating: as ``Subscriber``.
    """

    def __init__(self, machine: WatchMachine, subscriber: Subscriber) -> None:
        self._machine = machine
        self._subscriber = subscriber

    async def __aenter__(self) -> Self:
        await self._subscriber.__aenter__()
        return self

    def __aiter__(self) -> AsyncIterator[KeyChange]:
        return self

    async def __anext__(self) -> KeyChange:
        change = await self._subscriber.next_of(self._machine.take_change)
        if change is None:
            raise StopAsyncIteration
        return change

    async def receive(self, timeout: float | None = None) -> KeyChange | None:
        """The next change, None when none came within ``timeout`` seconds or the watch is closed."""
        end_ms = math.inf if timeout is None else now_ms() + timeout * 1000
        return await self._subscriber.next_of(self._machine.take_change, end_ms)

    @property
    def is_current(self) -> bool:
        """Whether everything that was in the map when the connection began was taken."""
        return self._machine.is_current

    def take_advisories(self) -> list[Advisory]:
        """The advisories since the last call, for example ``lock_lost``."""
        return self._subscriber.take_advisories()

    async def aclose(self) -> None:
        """End the watch, and every lock that it owns."""
        await self._subscriber.aclose()
