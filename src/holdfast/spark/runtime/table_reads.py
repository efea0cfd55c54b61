"""Reads of the files of one table, whole or by ranges, for code that cannot await."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.objects.port import ObjectReader
from holdfast.objects.retrying import ANSWERING, RetryingReader
from holdfast.segments.table_location import CONNECTIONS_MAX, open_table_reader
from holdfast.spark.runtime.store_thread import LoopThread


class ByteRange(NamedTuple):
    """The bytes ``[start, past)`` of a file."""

    start: int
    past: int


class TableReads(LoopThread[ObjectReader]):
    """The open store of one table. At most ``CONNECTIONS_MAX`` requests are in flight.

    Raises: NotFound; Unavailable after the attempts of ``ANSWERING``.
    """

    def __init__(self, url: str) -> None:
        super().__init__(lambda: RetryingReader(open_table_reader(url), ANSWERING))

    def whole(self, path: str) -> bytes:
        """The bytes of the file at ``path``."""
        return self.start(lambda store: store.read(path)).result()

    def ranges(self, path: str, wanted: Sequence[ByteRange]) -> list[bytes]:
        """The bytes of these ranges of the file at ``path``, shorter where it ends."""

        async def read(store: ObjectReader) -> list[bytes]:
            found: list[bytes] = []
            for at in range(0, len(wanted), CONNECTIONS_MAX):
                some = wanted[at : at + CONNECTIONS_MAX]
                asked = (store.read(path, start=each.start, length=each.past - each.start) for each in some)
                found += await asyncio.gather(*asked)
            return found

        return self.start(read).result()
