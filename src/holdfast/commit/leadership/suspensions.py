"""Reads and writes the suspensions of one log (``suspension``).

A change is made by one create. A refused one was beaten by another writer, or its own answer was lost: the nonce tells
which. Suspensions are few and are kept, as a record of who said what.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final, Protocol

import structlog

from holdfast.commit.leadership.suspension import PREFIX, Suspension, decode_suspension, key_of
from holdfast.errors import Backpressure, HoldfastError
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.sealed import encode_sealed

TRIES: Final = 20

log = structlog.get_logger("holdfast.commit.leadership.suspensions")


class Suspensions:
    """Reads the newest change of one log. It remembers it, so that another look at the same one costs no GET."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._last: tuple[str, Suspension] | None = None

    async def newest(self) -> Suspension | None:
        """The change in force, None before the first. Cost: a LIST, and a GET of a new one.

        Raises: Unavailable, CorruptData.
        """
        rows = await self._store.list(PREFIX, limit=1)
        if not rows:
            return None
        key = rows[0].key
        if self._last is None or self._last[0] != key:
            self._last = key, decode_suspension(key, await self._store.read(key))
        return self._last[1]

    async def in_force(self) -> Suspension | None:
        """As ``newest``; None also when that one lets the log go on."""
        newest = await self.newest()
        return newest if newest is not None and newest.is_suspended else None

    async def change(self, *, is_suspended: bool, author: str, time_ms: int) -> Suspension:
        """Suspend the log or let it go on, durably. Where it is so already, nothing is written.

        Raises: Unavailable, CorruptData, Backpressure after ``TRIES`` faster writers. After a crash: it is so or not.
        """
        for _ in range(TRIES):
            newest = await self.newest()
            if newest is not None and newest.is_suspended == is_suspended:
                return newest
            following = Suspension(
                number=1 if newest is None else newest.number + 1,
                is_suspended=is_suspended,
                author=author,
                time_ms=time_ms,
                nonce=secrets.token_hex(16),
            )
            if await create_exactly(self._store, key_of(following.number), encode_sealed(following)):
                return following
        raise Backpressure("too many writers suspend and resume the log", retry_after_ms=1_000)


class Leader(Protocol):
    """A leader, as far as a suspension ends it."""

    ended: asyncio.Future[Any]

    async def step_down(self) -> None:
        """Finish work in progress, and resign."""
        ...


class Suspending:
    """What a leader does about suspensions of its log: it looks once in ``interval_ms``, and resigns under one."""

    def __init__(self, store: ObjectStore, leader: Leader, interval_ms: float) -> None:
        self._suspensions = Suspensions(store)
        self._leader = leader
        self._interval_ms = interval_ms
        self.cause: Suspension | None = None
        """Under what the leader has resigned, if that is why."""

    async def look(self) -> Suspension | None:
        """The suspension in force. The leader has resigned then. Raises: Unavailable, CorruptData."""
        suspension = await self._suspensions.in_force()
        if suspension is not None:
            await self._resign(suspension)
        return suspension

    async def suspend(self, author: str, time_ms: int) -> None:
        """Let nobody lead until the log is resumed, durably, and resign. Raises: as ``Suspensions.change``."""
        await self._resign(await self._suspensions.change(is_suspended=True, author=author, time_ms=time_ms))

    async def _resign(self, suspension: Suspension) -> None:
        if self._leader.ended.done():
            return
        self.cause = suspension
        log.warning("suspended", number=suspension.number, author=suspension.author)
        await self._leader.step_down()

    async def run(self) -> None:
        """Look until the leadership ends. A store that does not answer ends nothing."""
        while not self._leader.ended.done():
            await asyncio.wait({self._leader.ended}, timeout=self._interval_ms / 1000.0)
            try:
                await self.look()
            except HoldfastError as error:
                log.warning("suspension_not_read", error=str(error))
