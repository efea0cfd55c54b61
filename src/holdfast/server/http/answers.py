"""Room for large answers: what they take while they are made, and until their peers have taken them.

An answer gets room before it reads what it is made of: a page of it, and after that what it really takes, until the
connection has taken nearly all of it. A client has a quarter of all room. Others wait in the order of their clients, at
most ``WAIT_SECONDS``. While somebody waits, a peer that has taken nothing for ``STALLED_SECONDS`` is cut off.

An item larger than a page makes an answer that no part has room for. Such answers are made and sent one at a time.

``ClientTurns`` is the order in which clients get any work that takes memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress
from typing import Final, Protocol

from holdfast.errors import Backpressure
from holdfast.server.http.auth import ClientKey
from holdfast.server.http.buffers import MARK_BYTES

PAGE_ROOM: Final = 16 << 20
PAGES_MAX: Final = 16
PAGES_OF_CLIENT: Final = 4
WAIT_SECONDS: Final = 30.0
STALLED_SECONDS: Final = 5.0
RETRY_MS: Final = 1000


class Sending(Protocol):
    """The connection of an answer."""

    @property
    def takes_more(self) -> bool:
        """Whether its peer has taken nearly all of it."""
        ...

    async def until_it_takes_more(self) -> None:
        """Wait for that, or for the end of the connection."""

    def unsent_bytes(self) -> int:
        """How much its peer has not taken."""
        ...

    def abort(self) -> None:
        """End it at once."""


class Answers:
    """The room of one server."""

    def __init__(self) -> None:
        self.pages = ClientTurns(PAGES_MAX, PAGES_OF_CLIENT)
        self.alone = ClientTurns(1, 1)


class Room:
    """The room of one answer. ``close`` it."""

    __slots__ = ("_answers", "_client", "_turns")

    def __init__(self, answers: Answers, client: ClientKey) -> None:
        self._answers = answers
        self._client = client
        self._turns: list[ClientTurns] = []

    async def page(self) -> None:
        """Wait for the room of a page. Raises: Backpressure where it does not come in time."""
        await self._take(self._answers.pages)

    async def alone(self) -> None:
        """Wait until there is no other answer that is larger than a page. Raises: Backpressure."""
        await self._take(self._answers.alone)

    async def _take(self, turns: ClientTurns) -> None:
        if turns in self._turns:
            return
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turns.take(self._client)
        except TimeoutError:
            raise Backpressure(
                "too many large answers are under way",
                retry_after_ms=RETRY_MS,
                hint="ask for fewer at a time, and read what was asked for",
            ) from None
        self._turns.append(turns)

    async def until_taken(self, connection: Sending) -> None:
        """Return when the peer has taken nearly all of the answer, or was cut off."""
        while self._turns and not connection.takes_more:
            before = connection.unsent_bytes()
            try:
                async with asyncio.timeout(STALLED_SECONDS):
                    await connection.until_it_takes_more()
            except TimeoutError:
                is_awaited = any(turns.is_awaited(self._client) for turns in self._turns)
                if is_awaited and connection.unsent_bytes() == before > MARK_BYTES:
                    connection.abort()
                    return

    def close(self) -> None:
        """Give it back."""
        turns, self._turns = self._turns, []
        for each in turns:
            each.give(self._client)


class ClientTurns:
    """At most ``most`` turns at a time, and ``of_client`` of one client. A client with many waiting ones does not keep
    another one waiting."""

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
