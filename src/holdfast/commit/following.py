"""A reader that follows a log which another process leads, and serves subscribers and readers of its own.

It sees what is durable: an object of the chain with everything before it in place is never rolled back. It ends, like a
leadership, when another leader claims: its streams end with it, and their readers begin again where they were.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final, Self

import structlog

from holdfast.commit.format.batch import Header, Kind
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.reading.feed import Feed
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.reader import find_frontier, follow, require_frontier
from holdfast.commit.reading.verify import DamageLog
from holdfast.errors import Code, CorruptData, Fenced, HoldfastError
from holdfast.objects.port import ObjectStore

log = structlog.get_logger("holdfast.commit.following")

POLL_SECONDS: Final = 0.25
LOOK_SECONDS: Final = 10.0
"""After so long without a new object the end of the log is looked up: retention may have passed this reader."""
RETRY_SECONDS: Final = 1.0
FEED_BYTES_MAX: Final = 32 << 20


class FollowedLog:
    """What one leader wrote, as another process sees it. Make it with ``begin``, then ``run`` it until it ends."""

    def __init__(self, store: ObjectStore, head: Header, claim: Header, lineage: Lineage, *, bytes_max: int) -> None:
        self.store = store
        self.claim = claim
        self.leader_id = claim.leader_id.hex()
        self.log_id = claim.log_id.hex()
        self.address = claim.address
        self.lineage: Lineage | None = lineage
        self.damage = DamageLog()
        self.feed = Feed(claim, bytes_max=bytes_max)
        self.feed.durable.start_version = head.last_version
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._head = head
        self._walker = ChainWalker(head, claim)

    @classmethod
    async def begin(cls, store: ObjectStore, *, bytes_max: int = FEED_BYTES_MAX) -> Self:
        """Stand at the end of the log. Raises: NotFound (``log_empty``), CorruptData, Unavailable."""
        head, claim = await require_frontier(store)
        return cls(store, head, claim, await lineage_of(store, claim), bytes_max=bytes_max)

    async def run(self) -> None:
        """Publish what comes, until another leader claims, or retention has removed what comes next."""
        clock = asyncio.get_running_loop().time
        seen_s = clock()
        try:
            while not self.ended.done():
                pause = POLL_SECONDS
                try:
                    if await self._walk():
                        seen_s = clock()
                    elif clock() - seen_s >= LOOK_SECONDS:
                        seen_s = clock()
                        await self._look()
                except CorruptData as error:
                    self.damage.note("follow", error)
                    pause = LOOK_SECONDS
                except HoldfastError as error:
                    log.warning("following_waits", error=str(error))
                    pause = RETRY_SECONDS
                await asyncio.wait({self.ended}, timeout=pause)
        finally:
            self._end("stopped")

    async def _walk(self) -> bool:
        """Take what is there. Returns whether there was anything."""
        moved = False
        async with aclosing(follow(self.store, self._walker)) as batches:
            async for batch in batches:
                moved = True
                if batch.header.kind is Kind.CLAIM:
                    self._end("another leader")
                    return moved
                self._head = batch.header
                self.feed.publish_durable(batch.header, batch.everything(), len(batch.data))
        return moved

    async def _look(self) -> None:
        """Whether the log goes on elsewhere than in the next slot."""
        frontier = await find_frontier(self.store)
        if frontier is None or frontier[0].slot >= self._head.slot:
            return
        if await self._walk():
            return
        self._end("retention has removed what comes next")

    def _end(self, reason: str) -> None:
        self.feed.close()
        if not self.ended.done():
            self.ended.set_result(reason)

    # -- what readers ask ---------------------------------------------------------------------------------------------

    def durable_header(self) -> Header:
        """The header of the newest object that was read."""
        return self._head

    def local_version(self) -> int:
        """The newest version that was read. The log may be further."""
        return self._head.last_version

    @property
    def assigned(self) -> int:
        """No version above it is known here."""
        return self._head.last_version

    @property
    def truncated_through(self) -> int:
        """Versions at or below it may have been removed."""
        return self._head.truncated_through

    async def version(self) -> int:
        """Never: only a leader knows that nothing newer is durable. Raises: Fenced (``not_leader``)."""
        raise Fenced("this process follows the log and does not lead it", code=Code.NOT_LEADER)
