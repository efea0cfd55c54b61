"""The object store's port as a node sees it, over the simulated network.

``NodeStore`` sees what the store holds now. ``Archive`` is for reading history: nothing was ever removed there, as a
reader of segments sees it, so that questions about old attempts have answers in worlds with retention.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tests.worlds.log.network import Rows

from holdfast.commit.format.batch import CLAIM_BYTES, HEADER_BYTES, PREFIX, slot_of
from holdfast.commit.leadership.role import PROMOTED_KEY, ROLE_KEY
from holdfast.commit.leadership.suspension import PREFIX as SUSPENSIONS
from holdfast.errors import NotFound, Unavailable
from holdfast.objects.port import CREATED, CreateAnswer, Listed, Refused, Unknown, WithoutLeftovers
from holdfast.values import Slot

if TYPE_CHECKING:
    from tests.worlds.log.loop import SimulatedLoop
    from tests.worlds.log.node import Node

__all__ = ["Archive", "NodeStore"]

T = TypeVar("T")


class NodeStore(WithoutLeftovers):
    """The object store as one process of a node reaches it. ``unfit``: its way there ignores conditions."""

    url = "s3://world/log"

    def __init__(self, node: Node, loop: SimulatedLoop, *, unfit: bool = False) -> None:
        self._node = node
        self._loop = loop
        self._world = node.world
        self._unfit = unfit

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says."""
        if self._loop.dead:
            return Unknown("crashed")
        slot = slot_of(key)
        if slot is None:
            return await self._create_other(key, data)
        self._world.sends(slot, data)
        if self._unfit:
            self._world.promises.break_("a store that fails its probe gets nothing", key)
        if len(data) == CLAIM_BYTES and self._world.strikes("claim_dawdles", 0.2):
            random = self._world.random
            await self.pause(random.choice((30.0, 500.0, 3_000.0)) * random.random())
        if self._world.agenda.now < self._node.held_until:
            await self.pause(self._node.held_until - self._world.agenda.now)
        answered: asyncio.Future[CreateAnswer] = self._loop.create_future()
        self._world.network.create(self._node, slot, data, self._done(answered))
        return await answered

    async def _create_other(self, key: str, data: bytes) -> CreateAnswer:
        await self.pause(self._world.network.delay_ms() + self._world.sign_delay_ms(key))
        others = self._world.store.others
        if self._world.strikes("probe_failed", 0.03) or not self._world.takes_signs(self._node, key):
            return Unknown("no answer in time")
        if key in others and not self._unfit:
            return Refused()
        others[key] = data
        self._world.made(key)
        return CREATED

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        slot = slot_of(key)
        if slot is None:
            if key not in (ROLE_KEY, PROMOTED_KEY):  # read beside headers, whose delay counts for all
                await self.pause(self._world.network.delay_ms())
            return self._found(key, self._world.store.others.get(key))
        assert not start and length == HEADER_BYTES, "a leader reads headers"
        if self._loop.dead:
            raise Unavailable("crashed")
        answered: asyncio.Future[bytes | Unknown | None] = self._loop.create_future()
        self._world.network.read(self._node, slot, self._done(answered))
        return self._found(key, await answered)

    @staticmethod
    def _found(key: str, answer: bytes | Unknown | None) -> bytes:
        if answer is None:
            raise NotFound("no such object", key=key)
        if isinstance(answer, Unknown):
            raise Unavailable(answer.detail)
        return answer

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """As the port says."""
        if prefix != PREFIX:
            if prefix != SUSPENSIONS:  # read with headers, whose delay counts for all
                await self.pause(self._world.network.delay_ms())
            if not self._world.takes_signs(self._node, prefix):
                raise Unavailable("no answer in time")
            others = self._world.store.others
            keys = sorted(key for key in others if key.startswith(prefix) and key > after)
            return [Listed(key, len(others[key]), self._world.modified_ms(key)) for key in keys[:limit]]
        if self._loop.dead:
            raise Unavailable("crashed")
        answered: asyncio.Future[Rows | Unknown] = self._loop.create_future()
        beyond = int(after[-20:]) if after else -1
        self._world.network.list(self._node, limit, self._done(answered), beyond)
        rows = await answered
        if isinstance(rows, Unknown):
            raise Unavailable(rows.detail)
        return [Listed(name, size) for name, size in rows]

    async def delete(self, *keys: str) -> None:
        """As the port says; each key by itself, in any order."""
        await asyncio.gather(*(self._delete(key) for key in keys))

    async def _delete(self, key: str) -> None:
        slot = slot_of(key)
        if slot is None:
            await self.pause(self._world.network.delay_ms())
            self._world.store.others.pop(key, None)
            return
        if self._loop.dead:
            raise Unavailable("crashed")
        answered: asyncio.Future[Unknown | None] = self._loop.create_future()
        self._world.network.delete(self._node, slot, self._done(answered))
        answer = await answered
        if answer is not None:
            raise Unavailable(answer.detail)

    async def close(self) -> None:
        """Nothing is held."""

    async def pause(self, ms: float) -> None:
        """Wait for this many milliseconds of virtual time."""
        if self._loop.dead:
            raise Unavailable("crashed")
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._world.agenda.after(ms, self._node, self._done(waiter), None)
        await waiter

    def _done(self, answered: asyncio.Future[T]) -> Callable[[T], None]:
        def answer(value: T) -> None:
            if not answered.done():
                self._loop.turn(answered.set_result, value)

        return answer


class Archive(WithoutLeftovers):
    """Everything that ever landed, for those who read history. Some reads take a while."""

    url = "s3://world/log"

    def __init__(self, node: Node, live: NodeStore) -> None:
        self._world = node.world
        self._live = live

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        if self._world.random.random() < 0.1:
            await self._live.pause(self._world.network.delay_ms() * 2)
        slot = slot_of(key)
        data = self._world.store.archive.get(slot if slot is not None else Slot(-1))
        if data is None:
            raise NotFound("no such object", key=key)
        return data if length is None else data[start : start + length]

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """Never: history is read."""
        raise AssertionError(f"history is not written: {key} {len(data)}")

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """Never: history is read by name."""
        raise AssertionError(f"history is not listed: {prefix} {after} {limit}")

    async def delete(self, *keys: str) -> None:
        """Never: history is read."""
        raise AssertionError(f"history is not written: {keys}")

    async def close(self) -> None:
        """Nothing is held."""
