"""A process that passes items through ``persist`` until it is killed, and says which it was given.

    python persist_program.py DIRECTORY ITEMS MAX_BYTES KIND

Item ``n`` is a function of ``n``. For each item that the loop gets, 8 bytes go to standard output: its number. KIND is
``thread``, ``executor`` or ``asyncio``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import holdfast
import holdfast.aio
from holdfast.queue import Stored

PAGE_BYTES = 64 << 10


def item_of(number: int) -> bytes:
    """The item with this number, from 0."""
    return b"%d:" % number + b"x" * (number % 90)


def tell(number: int, item: bytes) -> None:
    """Check what was given, and say so."""
    if item != item_of(number):
        sys.exit(f"item {number} is {item!r}")
    os.write(1, number.to_bytes(8, "little"))


def number_in(item: bytes) -> int:
    """The number that an item says it has."""
    return int(item.partition(b":")[0])


class Source:
    """The items from the first that is not stored on."""

    def __init__(self, items: int) -> None:
        self._items = items

    def _first(self, stored: Stored[bytes]) -> int:
        if stored.last != (item_of(stored.count - 1) if stored.count else None):
            sys.exit(f"the last of {stored.count} items is {stored.last!r}")
        return stored.count

    def plain(self, stored: Stored[bytes]) -> Iterator[bytes]:
        """For ``holdfast.persist``."""
        return map(item_of, range(self._first(stored), self._items))

    async def asynchronous(self, stored: Stored[bytes]) -> AsyncIterator[bytes]:
        """For ``holdfast.aio.persist``."""
        for number in range(self._first(stored), self._items):
            yield item_of(number)


async def main_asyncio(directory: str, items: int, max_bytes: int) -> None:
    """Consume with a task."""
    source = Source(items).asynchronous
    async with holdfast.aio.persist(source, directory, max_bytes=max_bytes, page_size=PAGE_BYTES) as passed:
        async for item in passed:
            tell(number_in(item), item)


def main(directory: str, items: int, max_bytes: int, kind: str) -> None:
    """Consume until the source ends."""
    if kind == "asyncio":
        asyncio.run(main_asyncio(directory, items, max_bytes))
        return
    pool = ThreadPoolExecutor(1) if kind == "executor" else None
    source = Source(items).plain
    with holdfast.persist(source, directory, max_bytes=max_bytes, page_size=PAGE_BYTES, scheduler=pool) as passed:
        for item in passed:
            tell(number_in(item), item)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
