"""Carry the objects of a chain to another store, within the window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from holdfast.commit.format.batch import Header, Kind, body_bytes, object_name
from holdfast.commit.reading.reader import LoggedBatch
from holdfast.copies.window import CopyWindow
from holdfast.errors import Code, InvalidRequest
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore

Copied = Callable[[Header], None]
"""Called for each object, in the order of the chain, when it and everything before it are in the copy."""


async def carry(objects: AsyncIterator[LoggedBatch], copy: ObjectStore, copied: Copied) -> None:
    """Create every object in ``copy``, and return when all of them are durable there.

    An object that is there already counts when it has the same bytes. After a crash, or an error: the copy has
    everything up to the last object that was ``copied``, and may have some of those after it.
    Raises: InvalidRequest (``log_mismatch``: another object has a name), CorruptData (a body is damaged: it is not
    copied), Unavailable, and what ``objects`` raises.
    """
    window = CopyWindow()
    under_way: dict[asyncio.Task[None], Header] = {}

    async def land_some() -> None:
        done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        for task in sorted(done, key=lambda each: -under_way[each].slot):
            header = under_way.pop(task)
            task.result()
            for whole in window.landed(header.slot):
                copied(whole)

    try:
        async for batch in objects:
            while not window.may_send(batch.header):
                await land_some()
            if batch.header.kind is not Kind.CLAIM:
                body_bytes(batch.data, batch.header)
            window.sent(batch.header)
            under_way[asyncio.ensure_future(_put(copy, batch))] = batch.header
        while under_way:
            await land_some()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _put(copy: ObjectStore, batch: LoggedBatch) -> None:
    name = object_name(batch.header.slot)
    if not await create_exactly(copy, name, batch.data):
        raise InvalidRequest(
            "another object has the place of a copied one",
            code=Code.LOG_MISMATCH,
            hint="the copy was promoted, or it is a copy of something else; nothing in it was replaced",
            object=name,
        )
