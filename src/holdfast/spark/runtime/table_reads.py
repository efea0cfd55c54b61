"""Reads of the files of one table: whole, by ranges, or of Parquet files only the wanted column chunks.

``RangedParquet`` fetches the footer with one request, then the chunks of some row groups at once, nearly adjacent ones
together. Parquet finds their bytes in memory. A range that was not foreseen, such as a long footer, is read when
Parquet asks for it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.objects.port import ObjectReader
from holdfast.objects.retrying import ANSWERING, RetryingReader
from holdfast.segments.table_location import CONNECTIONS_MAX, open_table_reader
from holdfast.spark.runtime.store_thread import LoopThread
from holdfast.spark.runtime.tasks import grouped


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
        return self.run(lambda store: store.read(path))

    def ranges(self, path: str, wanted: Sequence[ByteRange]) -> list[bytes]:
        """The bytes of these ranges of the file at ``path``, shorter where it ends."""

        async def read(store: ObjectReader) -> list[bytes]:
            parts: list[bytes] = []
            for at in range(0, len(wanted), CONNECTIONS_MAX):
                some = wanted[at : at + CONNECTIONS_MAX]
                reads = (store.read(path, start=each.start, length=each.past - each.start) for each in some)
                parts += await asyncio.gather(*reads)
            return parts

        return self.run(read)


FOOTER_BYTES: Final = 64 * 1024
"""What Parquet reads first, from the end of a file."""
GAP_BYTES: Final = 32 * 1024
"""Chunks that are at most this far apart are read with one request, which costs more than these bytes."""
FETCH_BYTES: Final = 32 * 2**20
"""Packed bytes of the row groups that are fetched together; a larger row group is fetched alone."""


Fetch: TypeAlias = Callable[[Sequence[ByteRange]], list[bytes]]
"""Reads ranges of one file, shorter where it ends."""


def merged(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """These ranges in order, nearly adjacent ones as one.

    >>> merged([ByteRange(900_000, 900_100), ByteRange(0, 10), ByteRange(20, 30)])
    [ByteRange(start=0, past=30), ByteRange(start=900000, past=900100)]
    """
    joint: list[ByteRange] = []
    for each in sorted(ranges):
        if joint and each.start - joint[-1].past <= GAP_BYTES:
            joint[-1] = ByteRange(joint[-1].start, max(joint[-1].past, each.past))
        else:
            joint.append(each)
    return joint


class _Held(io.RawIOBase):
    """A file for Parquet to read: ranges that were fetched before, and others when they are asked for."""

    def __init__(self, fetch: Fetch, size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._at = 0
        self._parts: list[tuple[ByteRange, bytes]] = []

    def hold(self, ranges: Iterable[ByteRange]) -> None:
        wanted = merged(ranges)
        self._parts = []  # the former ones, before there are new ones
        self._parts = list(zip(wanted, self._fetch(wanted), strict=True)) if wanted else []

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = begin + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        length = self._size - self._at if size is None or size < 0 else size
        wanted = ByteRange(self._at, max(self._at, min(self._size, self._at + length)))
        data = self._read(wanted)
        self._at += len(data)
        return data

    def _read(self, wanted: ByteRange) -> bytes:
        for part, data in self._parts:
            if part.start <= wanted.start and wanted.past <= part.past:
                return data[wanted.start - part.start : wanted.past - part.start]
        return self._fetch([wanted])[0] if wanted.start < wanted.past else b""


class RangedParquet:
    """One Parquet file of ``size`` bytes. Raises: what ``fetch`` raises; ArrowException and OSError for a damaged file.

    Checksums of pages are verified. Cost: a request for the footer. Memory: the footer, and what ``fetch`` holds.
    """

    def __init__(self, fetch: Fetch, size: int) -> None:
        self._held = _Held(fetch, size)
        self._held.hold([ByteRange(max(0, size - FOOTER_BYTES), size)])
        self._file = pq.ParquetFile(self._held, page_checksum_verification=True)
        self._metadata: pq.FileMetaData = self._file.metadata
        self.schema: pa.Schema = self._file.schema_arrow
        self._chunks: dict[str, list[int]] = {name: [] for name in self.schema.names}
        for index in range(self._metadata.num_columns):
            path: str = self._metadata.schema.column(index).path
            for name in self._chunks:
                if path == name or path.startswith(f"{name}."):
                    self._chunks[name].append(index)

    @property
    def groups(self) -> range:
        """The numbers of the row groups."""
        return range(self._metadata.num_row_groups)

    def rows_in(self, group: int) -> int:
        """The number of rows of a row group."""
        count: int = self._metadata.row_group(group).num_rows
        return count

    def bounds(self, group: int, column: str) -> tuple[object, object]:
        """The lowest and the highest value of a column in a row group, None where the file does not say."""
        chunks = self._chunks[column]
        statistics = self._metadata.row_group(group).column(chunks[0]).statistics if len(chunks) == 1 else None
        return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else (None, None)

    def runs(self, groups: Iterable[int], columns: Sequence[str]) -> Iterator[list[int]]:
        """These row groups, in runs to fetch together."""

        def size_of(group: int) -> int:
            return sum(each.past - each.start for each in self._ranges(group, columns))

        return grouped(groups, size_of, FETCH_BYTES)

    def fetch(self, groups: Iterable[int], columns: Sequence[str]) -> None:
        """Read the chunks of these columns in these row groups, and forget those that were fetched before."""
        self._held.hold(each for group in groups for each in self._ranges(group, columns))

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """The rows of a row group, which should have been fetched."""
        return self._file.read_row_group(group, columns=list(columns))

    def _ranges(self, group: int, columns: Sequence[str]) -> Iterator[ByteRange]:
        row_group = self._metadata.row_group(group)
        for index in (index for name in columns for index in self._chunks[name]):
            chunk = row_group.column(index)
            start: int = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
                start = min(start, chunk.dictionary_page_offset)
            yield ByteRange(start, start + chunk.total_compressed_size)
