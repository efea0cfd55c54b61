"""Find the snapshots of a log, and read one: every part is verified before its first row is given."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pyarrow as pa

from holdfast.commit.reading.lineage import Lineage
from holdfast.errors import CorruptData
from holdfast.objects.port import ObjectReader, ObjectStore, Pages, read_if_there
from holdfast.snapshots.manifest import (
    PREFIX,
    Manifest,
    Part,
    decode_manifest,
    manifest_key,
    part_key,
    version_of_manifest,
)
from holdfast.snapshots.part import decode_part, rows_of
from holdfast.view.sqlite import Table, insert_rows, transaction, write_position
from holdfast.view.storage import Row, StatePosition

# pyarrow ships no types, so its tables are unknown to the checker; ours are not.
# pyright: reportUnknownParameterType=false


async def list_versions(store: ObjectStore) -> list[int]:
    """The versions that have a manifest, oldest first. Cost: a LIST for each 1,000 objects. Raises: Unavailable."""
    keys = [row.key async for rows in Pages(store, PREFIX) for row in rows]
    return [version for key in keys if (version := version_of_manifest(key)) is not None]


async def read_manifest(store: ObjectReader, version: int) -> Manifest | None:
    """The manifest at ``version``, None where there is none. Raises: CorruptData, Unavailable."""
    data = await read_if_there(store, manifest_key(version))
    return None if data is None else decode_manifest(data, version)


async def list_snapshots(store: ObjectStore) -> list[Manifest]:
    """The snapshots, oldest first. Their parts are not read. Raises: CorruptData, Unavailable."""
    manifests = [await read_manifest(store, version) for version in await list_versions(store)]
    return [manifest for manifest in manifests if manifest is not None]


async def newest_snapshot(store: ObjectStore, lineage: Lineage, through: int) -> Manifest | None:
    """The newest snapshot of a log, or of an ancestor, at or below version ``through``; its parts are not read.

    Raises: Unavailable.
    """
    async with aclosing(snapshots_back(store, lineage, through)) as manifests:
        async for manifest in manifests:
            return manifest
    return None


async def snapshots_back(store: ObjectStore, lineage: Lineage, through: int) -> AsyncGenerator[Manifest]:
    """The snapshots of a log, or of its ancestors, at or below version ``through``, newest first; no parts are read.

    A snapshot of a state that the log never had, and one whose manifest is damaged, is passed over: an older one, or
    the log itself, has the same state. Raises: Unavailable.
    """
    for version in reversed(await list_versions(store)):
        if version > through:
            continue
        try:
            manifest = await read_manifest(store, version)
        except CorruptData:
            continue
        if manifest is not None and lineage.holds(manifest.log_id, manifest.version):
            yield manifest


async def read_part(store: ObjectReader, manifest: Manifest, part: Part) -> pa.Table:
    """The verified rows of one part: ``key``, ``value``, ``version``, by key.

    Memory: the part, twice. Raises: CorruptData, NotFound (the snapshot was removed), Unavailable.
    """
    data = await store.read(part_key(manifest.version, part.name))
    return await asyncio.to_thread(decode_part, data, part)


async def read_tables(
    store: ObjectReader, manifest: Manifest, parts: Sequence[Part] | None = None
) -> AsyncGenerator[pa.Table]:
    """Some parts of a snapshot, or all parts of keys, as ``read_part``; the next one is read ahead."""
    parts = manifest.parts if parts is None else parts
    ahead: asyncio.Task[pa.Table] | None = None
    try:
        for index, part in enumerate(parts):
            table = await (read_part(store, manifest, part) if ahead is None else ahead)
            following = parts[index + 1 : index + 2]
            ahead = asyncio.ensure_future(read_part(store, manifest, following[0])) if following else None
            yield table
    finally:
        if ahead is not None:
            ahead.cancel()


async def read_rows(
    store: ObjectReader, manifest: Manifest, parts: Sequence[Part] | None = None
) -> AsyncGenerator[list[Row]]:
    """The rows of some parts of a snapshot, or of all parts of keys, part by part. Raises: as ``read_part``."""
    async with aclosing(read_tables(store, manifest, parts)) as tables:
        async for table in tables:
            yield list(rows_of(table))


def position_of(manifest: Manifest) -> StatePosition:
    """Where a view is that holds this snapshot."""
    return StatePosition(manifest.version, manifest.last_transaction, manifest.log_id)


async def load_view_file(
    connection: sqlite3.Connection, store: ObjectReader, manifest: Manifest, log_id: str
) -> StatePosition:
    """Fill the empty file of ``connection`` with a snapshot, and return the position that it then holds.

    ``log_id``: the log whose view it is, which may have been forked from the snapshot's after the snapshot.

    Memory: two parts. Raises: CorruptData, NotFound, Unavailable, sqlite3.Error; then the file is as it was.
    """
    position = position_of(manifest)._replace(log_id=log_id)
    with transaction(connection):
        tables: tuple[tuple[Table, list[Part]], ...] = ("latest", manifest.parts), ("jobs", manifest.jobs)
        for table, parts in tables:
            async with aclosing(read_rows(store, manifest, parts)) as portions:
                async for rows in portions:
                    insert_rows(connection, rows, table)
        write_position(connection, position)
    return position
