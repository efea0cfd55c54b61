"""Carry the objects of a chain to another store, within the window of a leader.

At most ``SPAN_MAX`` slots are in flight, and a claim goes alone, after everything before it has landed. So a copier
that is stopped, or goes on after another one took its place, leaves nothing that recovery would not pass over, and a
promotion needs no word from it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Final

from holdfast.commit.format.batch import SPAN_MAX, Header, Kind, body_bytes, object_name
from holdfast.commit.reading.reader import LoggedBatch
from holdfast.errors import Code, InvalidRequest
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore

OBJECTS_MAX: Final = 64
BYTES_MAX: Final = 64 << 20

Copied = Callable[[Header], None]
"""Called for each object, in the order of the chain, when it and everything before it are in the copy."""


class CopyWindow:
    """The objects in flight. Objects are offered in the order of the chain; ``head`` is the newest that has landed
    together with everything before it."""

    def __init__(self) -> None:
        self._in_flight: OrderedDict[int, tuple[Header, bool]] = OrderedDict()
        self._bytes = 0
        self.head: Header | None = None

    def may_send(self, header: Header) -> bool:
        """Whether the next object may be sent now. One object may always be."""
        if not self._in_flight:
            return True
        oldest, _ = next(iter(self._in_flight.values()))
        return (
            header.kind is not Kind.CLAIM
            and oldest.kind is not Kind.CLAIM
            and oldest.slot - header.slot < SPAN_MAX
            and len(self._in_flight) < OBJECTS_MAX
            and self._bytes + header.object_bytes() <= BYTES_MAX
        )

    def sent(self, header: Header) -> None:
        """The object is under way."""
        assert self.may_send(header), "a copier keeps the rules of a leader"
        self._in_flight[header.slot] = header, False
        self._bytes += header.object_bytes()

    def landed(self, slot: int) -> list[Header]:
        """The object in ``slot`` is in the copy. Returns the objects that now have nothing missing before them."""
        header, _ = self._in_flight[slot]
        self._in_flight[slot] = header, True
        whole: list[Header] = []
        while self._in_flight:
            oldest, (header, has_landed) = next(iter(self._in_flight.items()))
            if not has_landed:
                break
            del self._in_flight[oldest]
            self._bytes -= header.object_bytes()
            self.head = header
            whole.append(header)
        return whole


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
