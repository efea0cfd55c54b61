"""Room for large answers: what they take while they are made, and until their peers have taken them.

An answer gets room before it reads what it is made of: a page of it, and after that what it really takes, until the
connection has taken nearly all of it. A client has a quarter of all room. Others wait in the order of their clients, at
most ``WAIT_SECONDS``. While somebody waits, a peer that has taken nothing for ``STALLED_SECONDS`` is cut off.

An item larger than a page makes an answer that no part has room for. Such answers are made and sent one at a time.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from holdfast.errors import Backpressure
from holdfast.server.http.auth import ClientKey
from holdfast.server.http.buffers import MARK_BYTES
from holdfast.server.http.client_turns import ClientTurns

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
        ...

    def unsent_bytes(self) -> int:
        """How much its peer has not taken."""
        ...

    def abort(self) -> None:
        """End it at once."""
        ...


class Answers:
    """The room of one server."""

    def __init__(self) -> None:
        self._pages = ClientTurns(PAGES_MAX, PAGES_OF_CLIENT)
        self._alone = ClientTurns(1, 1)

    def room(self, client: ClientKey) -> Room:
        """That of one answer. ``close`` it."""
        return Room(self._pages, self._alone, client)


class Room:
    """The room of one answer."""

    __slots__ = ("_alone", "_client", "_has_page", "_is_alone", "_pages")

    def __init__(self, pages: ClientTurns, alone: ClientTurns, client: ClientKey) -> None:
        self._pages = pages
        self._alone = alone
        self._client = client
        self._has_page = self._is_alone = False

    async def page(self) -> None:
        """Wait for the room of a page. Raises: Backpressure where it does not come in time."""
        if not self._has_page:
            await _in_time(self._pages, self._client)
            self._has_page = True

    async def alone(self) -> None:
        """Wait until there is no other answer that is larger than a page. Raises: Backpressure."""
        if not self._is_alone:
            await _in_time(self._alone, self._client)
            self._is_alone = True

    async def until_taken(self, connection: Sending) -> None:
        """Return when the peer has taken nearly all of the answer, or was cut off."""
        while self._has_page and not connection.takes_more:
            before = connection.unsent_bytes()
            try:
                async with asyncio.timeout(STALLED_SECONDS):
                    await connection.until_it_takes_more()
            except TimeoutError:
                if connection.unsent_bytes() == before > MARK_BYTES and self._is_awaited():
                    connection.abort()
                    return

    def close(self) -> None:
        """Give it back."""
        if self._has_page:
            self._has_page = False
            self._pages.give(self._client)
        if self._is_alone:
            self._is_alone = False
            self._alone.give(self._client)

    def _is_awaited(self) -> bool:
        return self._pages.is_awaited(self._client) or (self._is_alone and self._alone.is_awaited(self._client))


async def _in_time(turns: ClientTurns, client: ClientKey) -> None:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await turns.take(client)
    except TimeoutError:
        raise Backpressure(
            "too many large answers are under way",
            retry_after_ms=RETRY_MS,
            hint="ask for fewer at a time, and read what was asked for",
        ) from None
