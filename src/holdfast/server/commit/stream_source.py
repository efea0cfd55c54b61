"""The batches of one change stream, which hold no memory while its reader takes nothing.

What is read ahead of history may be many objects. So history is read in turns with the other streams of the client and
of the service, and a reader that takes nothing for ``STALLED_SECONDS`` gives its turn back with all that was read
ahead. It begins again after the last batch that it was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from holdfast.commit.reading.feed import EventBatch
from holdfast.server.http.answers import ClientTurns
from holdfast.server.http.auth import ClientKey

STALLED_SECONDS: Final = 1.0
TURN_SECONDS: Final = 2.0
"""How long a turn lasts while another stream of history waits."""
READERS_MAX: Final = 16
READERS_OF_CLIENT: Final = 4


class Taking(Protocol):
    """The connection of a stream."""

    @property
    def takes_more(self) -> bool:
        """Whether its peer has taken nearly all that was written."""
        ...

    async def until_it_takes_more(self) -> None:
        """Wait for that, or for the end of the connection."""
        ...


class StreamSource:
    """``next`` until it returns None. ``close`` it."""

    def __init__(
        self,
        batches_after: Callable[[int], AsyncIterator[EventBatch]],
        after: int,
        turns: ClientTurns,
        client: ClientKey,
        is_recent: Callable[[int], bool],
    ) -> None:
        """``batches_after`` opens the batches after a version; ``is_recent`` says whether memory has all of them."""
        self._batches_after = batches_after
        self._after = after
        self._turns = turns
        self._client = client
        self._is_recent = is_recent
        self._batches: AsyncIterator[EventBatch] | None = None
        self._since: float | None = None
        """Since when it has its turn; None without one."""

    async def next(self) -> EventBatch | None:
        """The next batch; None after the last one. Raises: as ``batches_after``."""
        if self._batches is None:
            if not self._is_recent(self._after):
                await self._turns.take(self._client)
                self._since = asyncio.get_running_loop().time()
            self._batches = self._batches_after(self._after)
        batch = await anext(self._batches, None)
        if batch is not None:
            self._after = max(self._after, batch.last_version)
        return batch

    def caught_up(self) -> None:
        """The batches that follow are shared with other streams: they need no turn."""
        if self._since is not None:
            self._since = None
            self._turns.give(self._client)

    async def wait_for(self, connection: Taking) -> None:
        """Return when the peer takes more."""
        if connection.takes_more:
            if self._since is None or not self._turns.is_awaited(self._client):
                return
            if asyncio.get_running_loop().time() - self._since > TURN_SECONDS:
                await self.close()
            return
        try:
            async with asyncio.timeout(STALLED_SECONDS):
                await connection.until_it_takes_more()
        except TimeoutError:
            await self.close()
            await connection.until_it_takes_more()

    async def close(self) -> None:
        """Release what was read ahead, and the turn."""
        batches, self._batches = self._batches, None
        try:
            close = getattr(batches, "aclose", None)
            if close is not None:
                await close()
        finally:
            self.caught_up()
