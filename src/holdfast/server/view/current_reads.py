"""Reads of one leadership at its newest released version: the newest changes in memory, over a view that is older.

The live end of the change stream has every released batch, so commits cost nothing here: a read first takes in the
batches since the last one. A key that memory has is answered at once. For the rest the view is asked as soon as it has
applied everything up to ``NewestChanges.floor``. The version of the answer is chosen at its end, in one step with what
memory then has: nothing of it is older, and nothing is newer. Where the two do not fit together any more, the view
answers alone, once it has everything that is released by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from holdfast.commit.subscription import FeedSource
from holdfast.errors import Closed, HoldfastError
from holdfast.server.http.buffers import MARK_BYTES
from holdfast.view.newest_changes import NOT_HERE, Absence, NewestChanges
from holdfast.view.sqlite import Table
from holdfast.view.storage import Asked, KeyRange, Result, Stored, ViewAnswer

SLICE_BYTES: Final = 128 << 10
"""Of batches that are taken in before the event loop gets a turn."""
CATCH_UP_SECONDS_MAX: Final = 5.0
"""How long a read waits for the log and the view together."""


class Each(NamedTuple):
    """The results of several reads at ``version``, or their errors: of the first ones, as much as fits."""

    version: int
    results: Sequence[Result | HoldfastError]


class ViewReads(Protocol):
    """A view at one version or a later one."""

    async def read(self, asked: Sequence[Asked], table: Table, bytes_max: int) -> ViewAnswer:
        """What it has, all of one version."""
        ...


class FollowingView(Protocol):
    """A view that follows the log."""

    async def at(self, version: int) -> ViewReads:
        """The view, once it shows everything up to ``version``. Raises: Closed, CorruptData when it never will."""
        ...


class CurrentReads:
    """Reads of the log that ``service`` leads, over ``kept``, with ``bytes_max`` of changes in memory."""

    def __init__(self, service: FeedSource, kept: FollowingView, bytes_max: int) -> None:
        self._channel = service.feed.durable
        self._kept = kept
        self.recent = NewestChanges(service.claim.last_version, bytes_max)
        self._position: int | None = None
        """Of the next batch in the channel; None where it has to be found."""

    def find_now(self, key: bytes, at: int) -> Stored | Absence | None:
        """As ``read`` for one key, if it can be answered at once, else ``NOT_HERE``. A large value cannot."""
        recent = self.recent
        if self._position != self._channel.end:
            self._catch_up()
        if recent.version < at:
            return NOT_HERE
        stored = recent.find(key)
        return NOT_HERE if isinstance(stored, tuple) and len(stored[0]) > MARK_BYTES else stored

    async def read(self, asked: Sequence[Asked], at: int, bytes_max: int) -> ViewAnswer:
        """The exact state at the newest released version, which is ``at`` or later: as much as ``bytes_max`` allows.

        Raises: as ``FollowingView.at``; TimeoutError after ``CATCH_UP_SECONDS_MAX`` of waiting; Closed when the
        leadership ends, or the view begins again; what the view raises.
        """
        recent, deadline = self.recent, asyncio.get_running_loop().time() + CATCH_UP_SECONDS_MAX
        await self._reach(at, deadline)
        needed = [
            index for index, item in enumerate(asked) if isinstance(item, KeyRange) or recent.find(item) is NOT_HERE
        ]
        seen = await self._ask_view([asked[index] for index in needed], recent.floor, bytes_max, deadline)
        answer = self._over(seen, needed, asked, bytes_max)
        if answer is not None:
            return answer
        # The floor rose meanwhile, or a page has only rows that are deleted now. A view that has all that is released
        # now may answer by itself.
        released = recent.version
        seen = await self._ask_view(asked, released, bytes_max, deadline)
        answer = self._over(seen, range(len(asked)), asked, bytes_max)
        if answer is None and seen.version < released:
            raise Closed("the view began again while it was read")
        return answer or seen

    async def _ask_view(self, asked: Sequence[Asked], floor: int, bytes_max: int, deadline: float) -> ViewAnswer:
        """What the view has, once it has everything up to ``floor``."""
        if not asked:
            return ViewAnswer(floor, [])
        async with asyncio.timeout_at(deadline):
            view = await self._kept.at(floor)
        seen = await view.read(asked, "latest", bytes_max)
        await self._reach(seen.version, deadline)
        return seen

    def _over(
        self, seen: ViewAnswer, needed: Sequence[int], asked: Sequence[Asked], bytes_max: int
    ) -> ViewAnswer | None:
        """The newest changes over what the view has of the items ``needed``; None where they do not fit together."""
        known = dict(zip(needed, seen.results, strict=False))
        answer = self.recent.answer(asked, known, seen.version, bytes_max)
        if answer is None and seen.larger is not None:
            return ViewAnswer(self.recent.version, [], seen.larger)
        return answer

    def known(self, asked: Sequence[Asked], at: int, error: HoldfastError) -> Each:
        """What memory has of ``asked``; the rest has ``error``. Raises: it, before ``at`` is released."""
        results: list[Result | HoldfastError] = []
        size = 0
        self._catch_up()
        if self.recent.version < at:
            raise error
        for item in asked:
            stored = NOT_HERE if isinstance(item, KeyRange) else self.find_now(item, at)
            if isinstance(stored, tuple):
                size += len(stored[0])
            if results and size > MARK_BYTES:
                break
            results.append(error if stored is NOT_HERE else stored)
        return Each(self.recent.version, results)

    async def _reach(self, version: int, deadline: float) -> None:
        """Return when everything up to ``version`` is taken in. Raises: TimeoutError, Closed."""
        await self._take_all()
        if self.recent.version < version:
            async with asyncio.timeout_at(deadline):
                await self._wait_for(version)

    async def _wait_for(self, version: int) -> None:
        channel = self._channel
        while self.recent.version < version:
            if channel.closed:
                raise Closed("this leadership has ended")
            await channel.wait(channel.end)
            await self._take_all()

    async def _take_all(self) -> None:
        while True:
            if self._catch_up():
                return
            await asyncio.sleep(0)

    def _catch_up(self) -> bool:
        """Take in the next batches. Returns whether these were all."""
        channel, recent = self._channel, self.recent
        position = self._position
        taken = 0
        while position is None or position < channel.end:
            if taken > SLICE_BYTES:
                self._position = position
                return False
            batch = None if position is None else channel.at(position)
            if batch is None:
                position = channel.find(recent.version)
                if position is None:
                    recent.restart(channel.start_version)
                    position = channel.find(channel.start_version)
                assert position is not None, "the channel has everything after its start"
                continue
            recent.take(batch.transactions(), batch.last_version)
            position += 1  # type: ignore[operator]
            taken += batch.size
        self._position = position
        return True
