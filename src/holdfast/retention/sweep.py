"""Delete the objects that a truncation has freed: data, live or dead, from a slot on, oldest first, never a claim.

A claim is never deleted: while it stands, the late PUT of a deposed leader is refused. Its size alone identifies it.
The sweep keeps no state. It can stop anywhere, run again, and run in two processes at once: everything that it deletes
is at or below a version that the durable log says was truncated, so no reader looks at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.commit.format.batch import CLAIM_BYTES, PREFIX, SPAN_MAX, object_name, slot_of
from holdfast.errors import CorruptData
from holdfast.objects.port import Listed, ObjectStore, Pages
from holdfast.values import Slot

REQUESTS_PER_SECOND: Final = 10
"""Small requests at a steady pace: the commits wait for a large one, and a store serves the two in turn."""
AT_ONCE_MAX: Final = 128
"""Objects of one request. Far fewer than the gap that a listing of a directory crosses, so any of them may go first."""


@dataclass(slots=True)
class Swept:
    """What sweeps have deleted so far."""

    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Freed:
    """What a truncation would free. Without ``is_whole`` the oldest objects were not counted."""

    objects: int
    bytes: int
    is_whole: bool


async def freed(
    store: ObjectStore, newest_freed: Slot, end: Slot | None, watermark: Slot, *, objects_max: int
) -> Freed:
    """What a sweep of ``newest_freed`` and older slots would delete, without those from ``end`` on. Changes nothing.

    Cost: a LIST for each 1,000 objects, of which at most about ``objects_max`` are counted. Raises: Unavailable.
    """
    objects, size = 0, 0
    async for rows in Pages(store, PREFIX, after=object_name(newest_freed - 1)):
        within = [row for row in rows if end is None or (slot_of(row.key) or 0) < end]
        going = [row for row in within if _may_go(row, newest_freed, watermark)]
        objects += len(going)
        size += sum(row.size for row in going)
        if len(within) < Pages.size or objects >= objects_max:
            return Freed(objects, size, len(within) < Pages.size)
    return Freed(objects, size, True)


async def sweep(
    store: ObjectStore, newest_freed: Slot, watermark: Callable[[], Slot], *, per_second: float, swept: Swept
) -> None:
    """Delete every data object in ``newest_freed`` and in older slots. ``swept`` counts while it works.

    ``watermark`` is the newest durable slot: nothing within ``SPAN_MAX`` of it is ever deleted.
    Cost: two LISTs for each 1,000 objects, and ten DELETEs a second or one for each 128 objects. Raises: Unavailable.
    """
    # Listings go from new to old. First note where each page begins, then delete page by page from the oldest.
    begins: list[str] = []
    after = object_name(newest_freed - 1)
    async for rows in Pages(store, PREFIX, after=after):
        if any(row.size != CLAIM_BYTES for row in rows):
            begins.append(after)
        after = rows[-1].key if rows else after
    at_once = max(1, min(AT_ONCE_MAX, round(per_second / REQUESTS_PER_SECOND)))
    pause = at_once / per_second
    for begin in reversed(begins):
        rows = await store.list(PREFIX, after=begin, limit=Pages.size)
        going = [row for row in reversed(rows) if _may_go(row, newest_freed, watermark())]
        for start in range(0, len(going), at_once):
            some = going[start : start + at_once]
            began = asyncio.get_running_loop().time()
            await store.delete(*(row.key for row in some))
            swept.objects += len(some)
            swept.bytes += sum(row.size for row in some)
            await asyncio.sleep(max(0.0, pause - (asyncio.get_running_loop().time() - began)))


def _may_go(row: Listed, newest_freed: Slot, watermark: Slot) -> bool:
    slot = slot_of(row.key)
    if slot is None:
        raise CorruptData("key under batches/ is not a slot", key=row.key)
    return row.size != CLAIM_BYTES and slot >= newest_freed and slot > watermark + SPAN_MAX
