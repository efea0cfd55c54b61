"""The asyncio watch of a map: the machine of ``watching``, on the connection of a subscriber.

Owns: handing out changes. Does not own: the connection (``asynchronous_subscriber``), what a change is (``watching``).
Failure model: the subscriber's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from holdfast.client.aio.subscriber import Subscriber
from holdfast.client.stores.steps import Advisory
from holdfast.client.stores.watching import Watching
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

    async def __aenter__(self) -> Self:
        await self._subscriber.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[KeyChange]:
        return self

    async def __anext__(self) -> KeyChange:
        change = await self._subscriber.next_of(self._machine.take_change)
        if change is None:
            raise StopAsyncIteration
        return change

    async def receive(self, timeout: float | None = None) -> KeyChange | None:
        """The next change, None when none came within ``timeout`` seconds or the watch is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                async for change in self:
                    return change
        return None

    @property
    def is_current(self) -> bool:
        """Whether all that was in the map when the connection began was taken."""
        return self._machine.is_current

    def take_advisories(self) -> list[Advisory]:
        """What was advised since the last call, ``lock_lost`` among it."""
        return self._subscriber.take_advisories()

    async def aclose(self) -> None:
        """End the watch, and with it every lock whose owner it is."""
        await self._subscriber.aclose()
