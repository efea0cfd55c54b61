"""The Parquet files of a table: tasks write and read them through the table's own object store.

A task creates each file once, whole, under a random name in the folder of its partition. The file counts only when a
commit names it; ``vacuum`` removes the others when they are old. A store that does not respond raises Unavailable after
a bounded number of attempts; then Spark runs the task again.

``RangedParquet`` reads only the wanted column chunks of a file: the footer with one request, then the chunks of some
row groups at once, nearly adjacent ones together. Parquet finds their bytes in memory. A range that was not foreseen,
such as a long footer, is read when Parquet asks for it.
"""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import CorruptData, InternalError
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import Listed, ObjectReader, ObjectStore
from holdfast.objects.retrying import ANSWERING, RetryingReader
from holdfast.segments.table_location import CONNECTIONS_MAX, open_table_reader, open_table_store
from holdfast.spark.runtime.store_thread import LoopThread
from holdfast.spark.runtime.tasks import grouped, in_tasks


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


_TEXT: Final = pa.string()
FILES_SCHEMA: Final = pa.schema(
    [("path", _TEXT), ("size", pa.int64()), ("rows", pa.int64()), ("partition", _TEXT), ("stats", _TEXT)]
)
"""A task's report of its files. A row with an empty path names a partition whose older files are replaced."""
FILES_TYPE: Final = "path string, size long, rows long, partition string, stats string"

ROW_GROUP_ROWS: Final = 128 * 1024
BLOOM_FALSE_POSITIVES: Final = 0.01
TASKS_OF_A_READ_MAX: Final = 256
PAGE: Final = 10_000
"""Names of files that are listed together."""
UNPARTITIONED: Final = "data"
"""The folder of the files of a table without partition columns."""
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table, its size in bytes; or a partition whose older files a task has replaced (``path`` empty).

    Shape: ``partition`` holds the values of the partition columns as text, ``stats`` is the JSON of a Delta log.
    """

    path: str
    size: int
    rows: int
    partition: Mapping[str, str]
    stats: str = ""


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[ObjectStore]:
    store = open_table_store(url)
    try:
        yield store
    finally:
        await store.close()


def write_table(
    url: str, table: pa.Table, partition: Mapping[str, str], statistics: Sequence[str] = (), blooms: Sequence[str] = ()
) -> TableFile:
    """Write ``table`` as one new file: bounds of the columns in ``statistics``, bloom filters for those in ``blooms``.

    Raises: Unavailable. After a crash: a file that no commit names.
    """
    data = _parquet(table, blooms)
    path = _new_path(partition)
    asyncio.run(_create(url, path, data))
    return TableFile(path, len(data), table.num_rows, dict(partition), _stats(table, statistics))


def _parquet(table: pa.Table, blooms: Sequence[str] = ()) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=1,
        row_group_size=ROW_GROUP_ROWS,
        use_dictionary=False,
        write_page_checksum=True,
        bloom_filter_options={name: {"ndv": ROW_GROUP_ROWS, "fpp": BLOOM_FALSE_POSITIVES} for name in blooms} or None,
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def partition_folder(partition: Mapping[str, str]) -> str:
    """The folder in a table of the files with these partition values, which is where Hive and Delta keep them.

    Engines that take partition values from paths (polars, DuckDB, Spark's Parquet reader) find them there. Every byte
    of UTF-8 except ASCII letters, digits and ``._-`` is percent-encoded. An empty value is null, as in the Delta log.

    >>> partition_folder({"bucket": "3", "name": "a/b"}), partition_folder({})
    ('bucket=3/name=a%2Fb', 'data')
    """
    named = ((_encoded(name), _encoded(value) if value else HIVE_NULL) for name, value in partition.items())
    return "/".join(f"{name}={value}" for name, value in named) or UNPARTITIONED


def _encoded(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


def _new_path(partition: Mapping[str, str]) -> str:
    return f"{partition_folder(partition)}/{uuid.uuid4().hex}.parquet"


def _stats(table: pa.Table, columns: Sequence[str]) -> str:
    lowest: dict[str, int] = {}
    highest: dict[str, int] = {}
    for name in columns:
        bounds = pc.call_function("min_max", [table[name]]).as_py()
        if bounds["min"] is not None:
            lowest[name], highest[name] = bounds["min"], bounds["max"]
    nulls = {name: table[name].null_count for name in columns}
    return json.dumps({"numRecords": table.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls})


async def _create(url: str, path: str, data: bytes) -> None:
    async with _opened(url) as store:
        if not await create_exactly(store, path, data):
            raise InternalError("a name drawn at random is taken", path=path)


def read_table(url: str, path: str) -> pa.Table:
    """The rows of this file. Raises: NotFound, CorruptData, Unavailable."""
    return parquet_rows(read_objects(url, [path]))


def parquet_rows(files: Iterable[bytes], columns: Collection[str] | None = None) -> pa.Table | None:
    """The rows of Parquet files with these ``columns`` (those that a file has; None: all); None for no file.

    Raises: CorruptData for a page whose checksum does not fit: it must not be written again with a new one.
    """
    tables: list[pa.Table] = []
    for data in files:
        try:
            file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
            names = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
            tables.append(file.read(names))
        except (pa.ArrowException, OSError) as error:
            raise CorruptData("a file of the table is damaged", bytes=len(data), cause=str(error)[:300]) from error
    return pa.concat_tables(tables, promote_options="default") if tables else None


def read_objects(url: str, paths: Sequence[str]) -> list[bytes]:
    """The bytes of these files. Raises: NotFound, Unavailable."""
    with TableReads(url) as reads:
        return [reads.whole(path) for path in paths]


@dataclass(frozen=True, slots=True)
class Removed:
    """Files that no longer exist, and their size in bytes."""

    files: int
    size: int


def remove_files(url: str, paths: Collection[str]) -> Removed:
    """Remove those of these files of the table at ``url`` that exist. Raises: Unavailable.

    Cost: a listing of the table's folder, and a request for each file that exists. After a crash: some are removed.
    """
    return asyncio.run(_remove(url, frozenset(paths))) if paths else Removed(0, 0)


async def _remove(url: str, paths: frozenset[str]) -> Removed:
    async with _opened(url) as store:
        present: list[Listed] = []
        after = ""
        while True:
            rows = await store.list("", after=after, limit=PAGE)
            present += [row for row in rows if row.key in paths]
            if len(rows) < PAGE:
                break
            after = rows[-1].key
        for first in range(0, len(present), CONNECTIONS_MAX):
            await asyncio.gather(*(store.delete(row.key) for row in present[first : first + CONNECTIONS_MAX]))
    return Removed(len(present), sum(row.size for row in present))


def copy_files(spark: SparkSession, url: str, files: Sequence[TableFile], schema: pa.Schema) -> list[TableFile]:
    """Copies of these files of the table at ``url``, each in the folder of its partition, made by tasks.

    The columns have the types of ``schema`` in the copies. Raises: what tasks raise, as Spark's error. Cost: each file
    is read and written once. Memory: a file for each task that runs. After a crash: files that no commit names.
    """

    def copy(own: Iterator[TableFile]) -> Iterator[pa.RecordBatch]:
        for file in own:
            data = _parquet(_in_types(read_table(url, file.path), schema))
            path = _new_path(file.partition)
            asyncio.run(_create(url, path, data))
            yield file_rows([replace(file, path=path, size=len(data))])

    return new_files(in_tasks(spark, files, copy, FILES_TYPE, TASKS_OF_A_READ_MAX))


def _in_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.table({name: rows[name].cast(schema.field(name).type) for name in rows.column_names})


def read_files(spark: SparkSession, url: str, paths: Sequence[str], schema: str) -> DataFrame:
    """The rows of these files of the table at ``url``; tasks read them, because Spark lacks our stores."""

    def read(own: Iterator[str]) -> Iterator[pa.RecordBatch]:
        return (batch for path in own for batch in read_table(url, path).to_batches())

    return in_tasks(spark, paths, read, schema, TASKS_OF_A_READ_MAX)


def tables_of(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[pa.Table]:
    """The rows of these batches in their order, as tables of at most ``bytes_max``, or one batch."""
    return map(pa.Table.from_batches, grouped(batches, attrgetter("nbytes"), bytes_max))


def file_rows(files: Iterable[TableFile]) -> pa.RecordBatch:
    """The rows in which a task reports its files to the driver."""
    rows = [{**asdict(each), "partition": json.dumps(each.partition)} for each in files]
    return pa.RecordBatch.from_pylist(rows, schema=FILES_SCHEMA)


def new_files(frame: DataFrame) -> list[TableFile]:
    """Run the tasks of ``frame``, whose rows are those of ``file_rows``. Memory: one row per file."""
    rows = frame.toArrow().to_pylist()
    return [TableFile(**{**row, "partition": json.loads(row["partition"])}) for row in rows]
