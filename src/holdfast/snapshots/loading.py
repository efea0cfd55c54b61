"""A view's file from a snapshot: all of it in one transaction, so a crash leaves the file as it was."""

from __future__ import annotations

import sqlite3
from contextlib import aclosing

from holdfast.objects.port import ObjectReader
from holdfast.snapshots.manifest import Manifest, Part
from holdfast.snapshots.reading import read_rows
from holdfast.view.sqlite import Table, insert_rows, transaction, write_position
from holdfast.view.storage import Position


def position_of(manifest: Manifest) -> Position:
    """Where a view is that holds this snapshot."""
    return Position(manifest.version, manifest.last_transaction, manifest.log_id)


async def load_view_file(
    connection: sqlite3.Connection, store: ObjectReader, manifest: Manifest, log_id: str
) -> Position:
    """Fill the empty file of ``connection`` with a snapshot, and return the position that it then holds.

    ``log_id``: the log whose view it is, which may have been forked from the snapshot's after the snapshot.

    Memory: two parts. Raises: CorruptData, NotFound, Unavailable, sqlite3.Error; then the file is as it was.
    """
    position = position_of(manifest)._replace(log_id=log_id)
    with transaction(connection):
        tables: tuple[tuple[Table, list[Part]], ...] = ("latest", manifest.parts), ("jobs", manifest.jobs)
        for table, parts in tables:
            async with aclosing(read_rows(store, manifest, parts)) as found:
                async for rows in found:
                    insert_rows(connection, rows, table)
        write_position(connection, position)
    return position
