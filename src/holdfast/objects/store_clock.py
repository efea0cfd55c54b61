"""The store's own clock: by how much this machine's wall clock differs from it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from holdfast.errors import HoldfastError
from holdfast.objects.port import ObjectStore
from holdfast.objects.probe import PREFIX
from holdfast.values import Instant

CLOCKED: Final = frozenset({"s3", "gs", "az"})
"""Stores that say when an object was created, by a clock that is not this machine's."""
RESOLUTION_MS: Final = 1_000
AGREES_MS: Final = 60_000
"""Clocks that differ by up to this agree. The machine of a takeover has the same bound."""


class Compared(NamedTuple):
    """``ahead_ms``: by how much the wall clock, as it was at ``asked``, is at least ahead of the store's, negative for
    behind. The wall clock may have been set since."""

    asked: Instant
    ahead_ms: int

    @property
    def booted_ms(self) -> int:
        """The wall clock less the boot clock, as the store's clock has it."""
        return self.asked.wall_ms - int(self.asked.boot_ms) - self.ahead_ms


async def compare_with_store(store: ObjectStore, clock: Callable[[], Instant]) -> Compared | None:
    """Compare the wall clock with the store's.

    None where the store has no clock of its own, or did not answer. Cost: a create, a LIST and a DELETE, one after the
    other. A crash leaves an object under ``probe/``, where nothing reads it.
    """
    if urlsplit(store.url).scheme not in CLOCKED:
        return None
    key = f"{PREFIX}clock.{secrets.token_hex(16)}"
    start = clock()
    try:
        await store.create(key, b"when")
        rows = await store.list(key, limit=1)
    except HoldfastError:
        return None
    finally:
        with suppress(HoldfastError):
            await store.delete(key)
    waited_ms = int(clock().boot_ms - start.boot_ms)  # by the boot clock: nobody sets that meanwhile
    created_ms = rows[0].modified_ms if rows else None
    if created_ms is None:
        return None
    least, most = start.wall_ms - created_ms - RESOLUTION_MS, start.wall_ms + waited_ms - created_ms
    return Compared(start, least if least > 0 else min(most, 0))
