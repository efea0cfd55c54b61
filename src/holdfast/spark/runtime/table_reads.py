"""Reads of the files of one table, whole or by ranges, for code that cannot await."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from holdfast.objects.port import ObjectReader
from holdfast.objects.retrying import ANSWERING, RetryingReader
from holdfast.segments.table_location import CONNECTIONS_MAX, open_table_reader

T = TypeVar("T")


class Range(NamedTuple):
    """The bytes ``[start, past)`` of a file."""

    start: int
    past: int


class TableReads:
    """The open store of one table. At most ``CONNECTIONS_MAX`` requests are in flight.

    Raises: NotFound; Unavailable after the attempts of ``ANSWERING``. Not for use in a running event loop.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        # Not asyncio.run: it makes the text of each result, up to the whole file, when it restores the signal handler.
        self._loop = asyncio.new_event_loop()
        self._store: ObjectReader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._store is not None:
                self._run(self._store.close())
        finally:
            self._loop.close()

    def whole(self, path: str) -> bytes:
        """The bytes of the file at ``path``."""
        return self._run(self._read(path, 0, None))

    def ranges(self, path: str, wanted: Sequence[Range]) -> list[bytes]:
        """The bytes of these ranges of the file at ``path``, shorter where it ends."""
        return self._run(self._read_ranges(path, wanted))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    async def _read_ranges(self, path: str, wanted: Sequence[Range]) -> list[bytes]:
        found: list[bytes] = []
        for at in range(0, len(wanted), CONNECTIONS_MAX):
            some = wanted[at : at + CONNECTIONS_MAX]
            found += await asyncio.gather(*(self._read(path, each.start, each.past - each.start) for each in some))
        return found

    async def _read(self, path: str, start: int, length: int | None) -> bytes:
        if self._store is None:
            self._store = RetryingReader(open_table_reader(self._url), ANSWERING)
        return await self._store.read(path, start=start, length=length)
