"""The store's own clock: by how much this machine's wall clock differs from it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from holdfast.errors import HoldfastError
from holdfast.objects.port import ObjectStore
from holdfast.objects.probe import PREFIX

CLOCKED: Final = frozenset({"s3", "gs", "az"})
"""Stores that say when an object was created, by a clock that is not this machine's."""
RESOLUTION_MS: Final = 1_000
AGREES_MS: Final = 60_000
"""Clocks that differ by up to this agree. The machine of a takeover has the same bound."""


async def ahead_of_store_ms(store: ObjectStore, wall_ms: Callable[[], int]) -> int | None:
    """By how much the wall clock is at least ahead of the store's, negative for behind.

    None where the store has no clock of its own, or did not answer. Cost: a create, a LIST and a DELETE, one after the
    other. A crash leaves an object under ``probe/``, where nothing reads it.
    """
    if urlsplit(store.url).scheme not in CLOCKED:
        return None
    key = f"{PREFIX}clock.{secrets.token_hex(16)}"
    before_ms = wall_ms()
    try:
        await store.create(key, b"when")
        rows = await store.list(key, limit=1)
    except HoldfastError:
        return None
    finally:
        with suppress(HoldfastError):
            await store.delete(key)
    after_ms = wall_ms()
    created_ms = rows[0].modified_ms if rows else None
    if created_ms is None:
        return None
    least, most = before_ms - created_ms - RESOLUTION_MS, after_ms - created_ms
    return least if least > 0 else min(most, 0)
