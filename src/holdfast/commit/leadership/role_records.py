"""Read the records of ``role`` from a store."""

from __future__ import annotations

import asyncio

from holdfast.commit.leadership.role import PROMOTED_KEY, ROLE_KEY, RoleRecords
from holdfast.errors import NotFound
from holdfast.objects.port import ObjectReader


async def read_records(store: ObjectReader) -> RoleRecords:
    """Both records of a prefix. Cost: two GETs at once. Raises: Unavailable."""
    role, promoted = await asyncio.gather(_read(store, ROLE_KEY), _read(store, PROMOTED_KEY))
    return RoleRecords(role, promoted)


async def _read(store: ObjectReader, key: str) -> bytes | None:
    try:
        return await store.read(key)
    except NotFound:
        return None
