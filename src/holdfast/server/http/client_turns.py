"""Work that takes memory, done for a few at a time: for each client and for all.

Who waits gets its turn in the order of its client: a client with many waiting ones does not keep another one waiting.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress

from holdfast.server.http.auth import ClientKey


class ClientTurns:
    """At most ``most`` turns at a time, and ``of_client`` of one client."""

    def __init__(self, most: int, of_client: int) -> None:
        assert 1 <= of_client <= most, "a client may have a turn"
        self._most = most
        self._of_client = of_client
        self._taken: dict[ClientKey, int] = {}
        self._count = 0
        self._waiting: OrderedDict[ClientKey, deque[asyncio.Future[None]]] = OrderedDict()

    def is_awaited(self, client: ClientKey) -> bool:
        """Whether somebody waits for the turn of this client."""
        return bool(self._waiting) and (self._count >= self._most or client in self._waiting)

    async def take(self, client: ClientKey) -> None:
        """Wait for a turn. ``give`` it back."""
        if client not in self._waiting and self._is_free(client):
            self._begin(client)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give(client)  # the turn had come
            else:
                self._forget(client, waiter)
            raise

    def give(self, client: ClientKey) -> None:
        """A turn is over."""
        self._count -= 1
        left = self._taken[client] - 1
        if left:
            self._taken[client] = left
        else:
            del self._taken[client]
        self._pass_on()

    def check(self) -> None:
        """Assert the invariants."""
        assert self._count == sum(self._taken.values()) <= self._most, "at most this number at a time"
        assert all(0 < taken <= self._of_client for taken in self._taken.values()), "and of one client"
        assert all(self._waiting.values()), "a client that waits has a waiter"
        assert not any(self._is_free(client) for client in self._waiting), "nobody waits for nothing"

    def _is_free(self, client: ClientKey) -> bool:
        return self._count < self._most and self._taken.get(client, 0) < self._of_client

    def _begin(self, client: ClientKey) -> None:
        self._taken[client] = self._taken.get(client, 0) + 1
        self._count += 1

    def _pass_on(self) -> None:
        for client in list(self._waiting):
            while client in self._waiting and self._is_free(client):
                waiter = self._waiting[client][0]
                self._forget(client, waiter)
                if client in self._waiting:
                    self._waiting.move_to_end(client)  # another client comes first the next time
                if not waiter.done():
                    self._begin(client)
                    waiter.set_result(None)

    def _forget(self, client: ClientKey, waiter: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(client)
        if waiting is None:
            return
        with suppress(ValueError):
            waiting.remove(waiter)
        if not waiting:
            del self._waiting[client]
