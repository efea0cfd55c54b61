"""One Parquet file of a snapshot: ``key`` binary, ``value`` large_binary, ``version`` uint64, sorted by key, zstd.

A part ends at the first row where its keys and values reach ``PART_BYTES``. So the borders depend on the state alone,
and every maker draws them at the same rows; equal rows give equal bytes under one version of pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import CorruptData
from holdfast.snapshots.manifest import Part
from holdfast.view.storage import Row

# pyarrow ships no types, so its tables are unknown to the checker; ours are not.
# pyright: reportUnknownParameterType=false

PART_BYTES: Final = 64 * 2**20
SCHEMA: Final = pa.schema([("key", pa.binary()), ("value", pa.large_binary()), ("version", pa.uint64())])
ROW_GROUP_ROWS: Final = 64 * 1024


def cut(rows: Iterable[Row], part_bytes: int = PART_BYTES) -> Iterator[list[Row]]:
    """The rows of each part. ``rows`` rise by key. Memory: one part.

    >>> [len(part) for part in cut([(b"a", b"12", 1), (b"b", b"", 2), (b"c", b"1234", 3), (b"d", b"", 4)], 4)]
    [2, 1, 1]
    """
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += len(row[0]) + len(row[1])
        if size >= part_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part


def encode_part(rows: list[Row], name: str) -> tuple[Part, bytes]:
    """A part's entry in the manifest, and its bytes."""
    keys, values, versions = zip(*rows, strict=True)
    table = pa.Table.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, pa.large_binary()), pa.array(versions, pa.uint64())],
        schema=SCHEMA,
    )
    return encode_table(table, name)


def encode_table(table: pa.Table, name: str) -> tuple[Part, bytes]:
    """As ``encode_part``, of rows by key with the columns of ``SCHEMA``, each in one piece."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=ROW_GROUP_ROWS, use_dictionary=False)
    data: bytes = sink.getvalue().to_pybytes()
    part = Part(
        name=name,
        size=len(data),
        rows=table.num_rows,
        first_key=table["key"][0].as_py(),
        last_key=table["key"][-1].as_py(),
        sha256=sha256(data).hexdigest(),
    )
    return part, data


def decode_part(data: bytes, part: Part) -> pa.Table:
    """The rows of a part, checked against its entry in the manifest. Raises: CorruptData."""
    if len(data) != part.size or sha256(data).hexdigest() != part.sha256:
        raise CorruptData("a part of a snapshot has other bytes than its manifest says", part=part.name)
    table = pq.read_table(pa.BufferReader(data))
    if table.schema != SCHEMA or table.num_rows != part.rows:
        raise CorruptData("a part of a snapshot has other columns or rows than its manifest says", part=part.name)
    keys = table["key"].combine_chunks()
    # Its import makes a function of everything that Arrow can compute: 30 ms, which most processes never need.
    import pyarrow.compute as pc

    rising = pc.call_function("less", [keys.slice(0, len(keys) - 1), keys.slice(1)])
    rises = pc.call_function("all", [rising]).as_py() is not False
    if not rises or keys[0].as_py() != part.first_key or keys[-1].as_py() != part.last_key:
        raise CorruptData("the keys of a part are not in order", part=part.name)
    return table


def rows_of(table: pa.Table) -> Iterator[Row]:
    """The rows of a part, as a view has them."""
    for batch in table.to_batches():
        yield from zip(*(batch[name].to_pylist() for name in ("key", "value", "version")), strict=True)
