"""The retention generations of a log: a sequence of objects, each created if absent, the newest in force.

| object | content |
|---|---|
| ``meta/retention/{2^64-1 - number:020d}`` | ``policies.Generation`` as JSON |

The names count down, so that a LIST with limit 1 gives the newest. A writer reads the newest generation, applies its
change, and creates the next number. If that is refused, another writer was faster, or the writer's own create landed
and its answer was lost: the nonce tells which. A generation far behind the newest may be removed (``remove_old``), so
a create counts only if the newest is at most ``AHEAD_MAX`` ahead of it: a create of a removed name is refused that way.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from holdfast.commit.format.batch import FIRST_SLOT
from holdfast.errors import Backpressure, NotFound, Unavailable
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore, read_if_there
from holdfast.retention.policies import Change, Content, Generation, decode_generation
from holdfast.sealed import encode_sealed

PREFIX: Final = "meta/retention/"
AHEAD_MAX: Final = 1_000
TRIES: Final = 20
PAUSES: Final = (0.2,) * (TRIES - 1)
OLD_MS: Final = 86_400_000
PAGE: Final = 1_000


def key_of(number: int) -> str:
    """The name of a generation.

    >>> key_of(1)
    'meta/retention/18446744073709551614'
    """
    return f"{PREFIX}{FIRST_SLOT - number:020d}"


class Generations:
    """Reads and writes the retention generations of the log in ``store``. ``wall_ms`` gives the time."""

    def __init__(self, store: ObjectStore, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._wall_ms = wall_ms

    async def newest(self) -> Generation | None:
        """The generation in force, None before the first one. Cost: a LIST, a GET. Raises: Unavailable, CorruptData."""
        for _ in range(TRIES):
            rows = await self._store.list(PREFIX, limit=1)
            if not rows:
                return None
            try:
                return decode_generation(await self._store.read(rows[0].key), rows[0].key)
            except NotFound:  # it was removed since the listing, so newer ones exist
                continue
        raise Unavailable("the newest retention generation cannot be read", key=PREFIX)

    async def change(self, change: Change, author: str) -> Generation:
        """Apply a change, and return the generation that holds it, durably.

        A change that changes nothing writes nothing. Raises: what ``change`` raises, Unavailable, CorruptData,
        Backpressure after ``TRIES`` faster writers. After a crash: the change is made, or it is not.
        """
        for _ in range(TRIES):
            generation = await self.follow(await self.newest(), change, author)
            if generation is not None:
                return generation
        raise Backpressure("too many writers change the retention policies", retry_after_ms=1_000)

    async def follow(self, before: Generation | None, change: Change, author: str) -> Generation | None:
        """As ``change``, of this generation alone. None: another writer was faster.

        Raises: what ``change`` raises, Unavailable, CorruptData.
        """
        now = Content.of(before)
        after = change(now)
        if before is not None and after == now:
            return before
        following = Generation(
            number=1 if before is None else before.number + 1,
            policies=after.policies,
            holds=after.holds,
            truncate_through=after.truncate_through,
            author=author,
            time_ms=self._wall_ms(),
            nonce=secrets.token_hex(16),
        )
        return following if await self._create(following) else None

    async def _create(self, wanted: Generation) -> bool:
        """Whether ``wanted`` is in the sequence now. False: another generation has its number."""
        if not await create_exactly(self._store, key_of(wanted.number), encode_sealed(wanted), PAUSES):
            return False
        newest = await self.newest()
        return newest is not None and newest.number - wanted.number <= AHEAD_MAX

    async def remove_old(self, newest: Generation) -> int:
        """Remove a page of generations more than ``AHEAD_MAX`` behind the newest and older than a day.

        Returns how many. Raises: Unavailable, CorruptData.
        """
        if newest.number <= AHEAD_MAX + 1:
            return 0
        removed = 0
        for row in await self._store.list(PREFIX, after=key_of(newest.number - AHEAD_MAX), limit=PAGE):
            data = await read_if_there(self._store, row.key)
            if data is not None and self._wall_ms() - decode_generation(data, row.key).time_ms > OLD_MS:
                await self._store.delete(row.key)
                removed += 1
        return removed
