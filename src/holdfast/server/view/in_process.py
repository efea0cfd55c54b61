"""The view of a ``memory:`` log, which no other process can read: in the server's own memory.

Owns: feeding it from this process's change stream, and starting over when it does not fit. Does not own: the view.

Failure model: it follows durable events only. When the stream breaks off it is resumed after the view's own position;
a position that the log does not know, or a gap, makes it start over from the beginning. Damage of the log itself ends
the following: what was before it stays readable, and whoever asks for more is told of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import structlog

from holdfast.commit.reading.feed import EventBatch
from holdfast.commit.service import CommitService
from holdfast.errors import Closed, Code, CorruptData, Fenced, HoldfastError, InvalidRequest, NotFound
from holdfast.server.view.messages import Damage
from holdfast.view import View
from holdfast.view.storage import Row, Stored

__all__ = ["MemoryReads", "Subscribe", "ViewInProcess"]

log = structlog.get_logger("holdfast.server.view")

YIELD_EVERY_BYTES: Final = 8 << 20
RETRY_SECONDS: Final = 1.0

Subscribe = Callable[[int, bool], AsyncIterator[EventBatch]]


class MemoryReads:
    """Reads of a view in memory, in the shape of those of a file."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def get(self, key: bytes) -> Stored | None:
        """As ``View.get``."""
        return self._view.get(key)

    async def read_range(self, begin: bytes, end: bytes | None, limit: int) -> tuple[list[Row], int]:
        """As ``View.read_range``."""
        return self._view.read_range(begin, end, limit)


class ViewInProcess:
    """One reign's view in memory."""

    def __init__(self, service: CommitService, subscribe: Subscribe) -> None:
        self._service = service
        self._subscribe = subscribe
        self._view = View.memory()
        self._damage: Damage | None = None
        self._following = asyncio.get_running_loop().create_task(self._follow())

    @property
    def version(self) -> int:
        """Everything at or below is shown."""
        return self._view.version

    async def at(self, version: int) -> MemoryReads:
        """What is read once it shows everything up to ``version``.

        Raises: Closed when the view started over or has ended, CorruptData when it will never come so far.
        """
        view = self._view
        if view.version < version:
            reached = asyncio.ensure_future(view.reached(version))
            try:
                await asyncio.wait({reached, self._following}, return_when=asyncio.FIRST_COMPLETED)
                if self._damage is not None:
                    raise self._damage.error()
                if not reached.done():
                    raise Closed("this view is not kept any more")
                reached.result()
            finally:
                reached.cancel()
        return MemoryReads(view)

    async def close(self) -> None:
        """Stop following."""
        self._following.cancel()
        await asyncio.wait({self._following})
        self._view.close()

    async def _follow(self) -> None:
        while not self._service.ended.done():
            is_new = self._view.version == 0
            try:
                await self._apply_stream()
            except (Fenced, Closed):
                return
            except HoldfastError as error:
                if isinstance(error, CorruptData) and (is_new or error.code is Code.CORRUPT_BATCH):
                    log.error("view_stops_at_damage", error=str(error), view_version=self._view.version)
                    self._damage = Damage.of(error)
                    return
                if isinstance(error, CorruptData | InvalidRequest | NotFound) or error.code is Code.ROLLED_BACK:
                    log.warning("view_starts_over", error=str(error))
                    self._view.close()
                    self._view = View.memory()
                else:
                    log.warning("view_interrupted", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def _apply_stream(self) -> None:
        since_yield = 0
        async for batch in self._subscribe(self._view.version, True):
            # On the loop on purpose: a thread would hold the interpreter while commits wait for it.
            self._view.apply(batch.events)
            since_yield += batch.size
            if since_yield >= YIELD_EVERY_BYTES:
                since_yield = 0
                await asyncio.sleep(0)
