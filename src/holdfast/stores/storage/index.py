"""The index of the stores in SQLite: the state of the last checkpoint.

A checkpoint is one transaction. It is written after the log is durable up to its frame, so the index is never ahead of
the log. Frames that the index needs are removed only after the next checkpoint is durable. A checkpoint has the
checksum of its last frame, so an index of another log is refused. A file that SQLite finds damaged is ``CorruptData``;
one that cannot be opened (full disk, lock) is ``Unavailable``.

SQLite's pages have no checksums, so every row has its own, in ``crc``. Missing rows are detected too:

- of a block, by ``runs``;
- of an extent, by the blocks, which say that a message is kept. Also, before pages are removed, the table of extents
  and its index by frame must name the same first frame;
- of an entry, by ``check_entries``, which counts them at a start, and by the rows next to it.

| table | key | what |
|---|---|---|
| ``meta`` | name | value, see below |
| ``blocks`` | store, number | bytes, see ``caches``; crc |
| ``entries`` | store, durable, key | revision, size, expires_ms, crc |
| ``extents`` | store, first_seq | last_seq, first_frame, last_frame, bytes, crc; see ``locations`` |

``crc`` is ``row_crc`` of the row's other columns in their order. In ``meta`` are ``format`` (1); ``frame``, the last
frame of the checkpoint; ``at_ms``; ``state``; ``frame_crc``, the CRC-32 of that frame, if known; ``runs``, which blocks
exist, a msgpack map of store to [[first, last], ...]; ``version``, only in the cache of a commit log: that of the last
entry in the checkpoint; and ``crc``, of the seven values from ``format`` to ``version`` in this order, with nil for a
missing one.
``history`` names the history of the numbers in these files: 8 random bytes and their ``row_crc`` as 4 bytes. It is
drawn where there is none, and drawn again by each restore.

Two connections on one file in WAL mode: the event loop reads, the checkpoint's thread writes, and neither waits.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec.structs import astuple

from holdfast.errors import Code, CorruptData, HoldfastError, NotFound, Unavailable
from holdfast.files.private_files import make_private
from holdfast.stores.storage.caches import (
    BLOCKS_MAX,
    REPAIR,
    BlockCache,
    BlockChanges,
    EntryCache,
    EntryChanges,
    row_crc,
)
from holdfast.stores.storage.locations import Extent, LocationChanges
from holdfast.stores.values.ports import KeyEntry, ReadUnavailable
from holdfast.stores.values.sequence_set import SequenceSet

UNREADABLE: Final = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What reading a damaged file may raise; the latter is of Python's module, where SQLite's message has bytes of it."""
_PRIMARY: Final = 0xFF  # of SQLite's codes: the rest only says more
COLUMNS: Final = {
    "blocks": "store, number, data",
    "entries": "store, durable, key, revision, size, expires_ms",
    "extents": "store, first_seq, last_seq, first_frame, last_frame, bytes",
}
Row = tuple[Any, ...]  # a row as SQLite gives it: its columns have the types of the schema, which crc holds for


class Loaded(NamedTuple):
    """The last checkpoint: its last frame, the time of that, and the state.

    ``frame_crc`` is that frame's CRC-32 if known; ``runs`` the blocks that exist; ``version``, in the cache of a commit
    log, that of the last entry.
    """

    frame: int
    at_ms: int
    state: bytes
    frame_crc: int | None
    runs: bytes | None = None
    version: int | None = None


def read_checkpoint(database: sqlite3.Connection, path: str) -> Loaded | None:
    """The last checkpoint, None without one. *Raises*: ``CorruptData``, ``sqlite3.DatabaseError``."""
    meta: dict[str, bytes | int] = dict(database.execute("SELECT name, value FROM meta").fetchall())
    values = [meta.get(name) for name in Loaded._fields]
    if values[0] is None and "crc" not in meta:
        return None
    if row_crc(FORMAT, *values) != meta.get("crc"):
        raise damaged(path, "meta")
    return msgspec.convert(values, Loaded)


def checked_row(row: Row, table: str, path: str) -> Row:
    """A row without its last column ``crc``, which was checked. *Raises*: ``CorruptData``."""
    if row_crc(*row[:-1]) != row[-1]:
        raise damaged(path, table)
    return row[:-1]


def damaged(path: str, table: str) -> CorruptData:
    """The error for a table that does not have what was written."""
    return CorruptData("the index of the stores is damaged", path=path, table=table, hint=REPAIR)


def runs_of(database: sqlite3.Connection) -> dict[str, list[tuple[int, int]]]:
    """Which blocks the table has. *Cost*: reads all of it."""
    blocks: dict[str, SequenceSet] = {}
    for store, number in database.execute("SELECT store, number FROM blocks ORDER BY store, number"):
        blocks.setdefault(store, SequenceSet()).add(number, number)
    return {store: numbers.runs() for store, numbers in blocks.items()}


def unreadable(path: str, error: Exception, otherwise: type[Unavailable] = Unavailable) -> HoldfastError:
    """``CorruptData`` if SQLite says so; else ``otherwise``: the disk, or another process."""
    # What Python's module refuses by itself has no code of SQLite's; a table that is missing is SQLite's plain error.
    code = int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & _PRIMARY
    if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        full = code == sqlite3.SQLITE_FULL
        return otherwise(
            f"the index of the stores cannot be read: {error}",
            code=Code.DISK_FULL if full else Code.STORE_UNAVAILABLE,
            hint="nothing is known to be damaged: check the disk and what else has the file open, then start again",
            path=path,
        )
    return CorruptData("the index of the stores cannot be read", path=path, cause=str(error), hint=REPAIR)


HISTORY_BYTES: Final = 8
INDEX_NAME: Final = "index.sqlite"
SCRATCH_NAME: Final = "scratch.sqlite"
FORMAT: Final = 1
_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE blocks (
    store TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (store, number)
) WITHOUT ROWID;
CREATE TABLE entries (
    store TEXT NOT NULL, durable TEXT NOT NULL, key TEXT NOT NULL,
    revision INTEGER NOT NULL, size INTEGER NOT NULL, expires_ms INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    PRIMARY KEY (store, durable, key)
) WITHOUT ROWID;
CREATE TABLE extents (
    store TEXT NOT NULL, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL,
    first_frame INTEGER NOT NULL, last_frame INTEGER NOT NULL, bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    PRIMARY KEY (store, first_seq)
) WITHOUT ROWID;
CREATE INDEX extents_by_frame ON extents (first_frame);
"""
_BELOW: Final = "WHERE (store, durable, key) < (?, ?, ?) ORDER BY store DESC, durable DESC, key DESC LIMIT 1"
_ABOVE: Final = "WHERE (store, durable, key) > (?, ?, ?) ORDER BY store, durable, key LIMIT 1"
_encode = msgspec.msgpack.Encoder().encode
_decode_runs = msgspec.msgpack.Decoder(dict[str, list[tuple[int, int]]]).decode


def draw_history(path: str) -> None:
    """Give the index in this file another history: its numbers are given out again. *Raises*: ``sqlite3.Error``."""
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute("PRAGMA synchronous=FULL")
        _put_history(database)
    finally:
        database.close()


def _put_history(database: sqlite3.Connection) -> None:
    drawn = os.urandom(HISTORY_BYTES)
    value = drawn + row_crc("history", drawn).to_bytes(4, "big")
    database.execute("INSERT OR REPLACE INTO meta VALUES ('history', ?)", (value,))


class IndexChanges(NamedTuple):
    """What one transaction writes."""

    frame: int
    at_ms: int
    state: bytes
    blocks: BlockChanges
    entries: EntryChanges
    locations: LocationChanges
    frame_crc: int | None = None
    version: int | None = None


class Index:
    """One index file. ``write`` and ``copy_to`` belong on a thread of their own, the rest on the event loop.

    With ``read_only`` changes stay in memory. *Raises*: ``CorruptData``; ``Unavailable`` if it cannot be opened
    otherwise.
    """

    def __init__(self, directory: str, *, read_only: bool = False, blocks_max: int = BLOCKS_MAX) -> None:
        path = os.path.join(directory, INDEX_NAME)
        self._path = path
        self._needed = 0  # by the last checkpoint
        self._scratch_path = "" if read_only else os.path.join(directory, SCRATCH_NAME)
        if self._scratch_path:
            with suppress(FileNotFoundError):
                os.unlink(self._scratch_path)
        address = f"file:{quote(os.path.abspath(path))}?mode=ro" if read_only else path
        try:
            if not read_only and not os.path.exists(path):
                make_private(path)
            self._writer = sqlite3.connect(address, uri=read_only, check_same_thread=False, isolation_level=None)
        except sqlite3.OperationalError as error:
            if read_only and not os.path.exists(path):
                raise NotFound("there is no index of stores here", path=path) from error
            raise unreadable(path, error) from error
        try:
            if not read_only:
                self._writer.execute("PRAGMA journal_mode=WAL")
                self._writer.execute("PRAGMA synchronous=FULL")
                self._make_tables()
            self._check_format()
            self.history = self._history(read_only=read_only)
            self._reader = sqlite3.connect(address, uri=read_only, isolation_level=None, check_same_thread=False)
            self.blocks = BlockCache(self, self._scratch_path, cached_max=blocks_max)
        except UNREADABLE as error:
            self._writer.close()
            raise unreadable(path, error) from error
        except BaseException:
            self._writer.close()
            raise
        self.entries = EntryCache(self)

    def _make_tables(self) -> None:
        """Make all tables and the format, or none: a missing table among others is damage."""
        database = self._writer
        database.execute("BEGIN IMMEDIATE")
        try:
            if database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None:
                for statement in _SCHEMA.split(";")[:-1]:
                    database.execute(statement)
                database.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
            database.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _history(self, *, read_only: bool) -> str:
        """The history of the numbers, as hex digits; empty where a reader finds none."""
        row = self._writer.execute("SELECT value FROM meta WHERE name = 'history'").fetchone()
        if row is None and read_only:
            return ""
        if row is None:
            _put_history(self._writer)
            return self._history(read_only=True)
        drawn = row[0][:HISTORY_BYTES] if isinstance(row[0], bytes) else b""
        if row[0] != drawn + row_crc("history", drawn).to_bytes(4, "big"):
            raise damaged(self._path, "meta")
        return drawn.hex()

    def _check_format(self) -> None:
        row = self._writer.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
        if row is None and self._writer.execute("SELECT 1 FROM meta LIMIT 1").fetchone() is not None:
            raise damaged(self._path, "meta")
        elif row is None:
            raise CorruptData("the index of the stores is empty", path=self._path, hint=REPAIR)
        elif row[0] != FORMAT and self._has_values_of_this_format():
            raise CorruptData(
                "the format number in the stores' index is damaged, but the values next to it are intact",
                path=self._path,
                format=row[0],
                hint=f"in SQLite: UPDATE meta SET value = {FORMAT} WHERE name = 'format'; then holdfast stores verify",
            )
        elif row[0] != FORMAT:
            raise CorruptData(
                "the index of the stores was written by a later version of holdfast",
                path=self._path,
                format=row[0],
                hint="nothing is damaged: use that version",
            )

    def _has_values_of_this_format(self) -> bool:
        """Whether the checkpoint's checksum holds, which is of the number of the format, too."""
        try:
            return read_checkpoint(self._writer, self._path) is not None
        except CorruptData:
            return False

    def load(self) -> Loaded | None:
        """The last checkpoint. *Raises*: ``CorruptData``; ``sqlite3.DatabaseError``."""
        return read_checkpoint(self._reader, self._path)

    def unreadable(self, error: Exception) -> HoldfastError:
        """The error if a start could not read the index."""
        return unreadable(self._path, error)

    def copy_to(self, path: str) -> None:
        """A copy as of the last checkpoint, in a new file."""
        make_private(path)
        source, target = sqlite3.connect(self._path), sqlite3.connect(path)
        try:
            source.backup(target)
        finally:
            target.close()
            source.close()

    def check(self) -> None:
        """Look at every page of the file, and at every row. *Raises*: ``CorruptData``."""
        try:
            result = self._reader.execute("PRAGMA integrity_check(1)").fetchone()
            if result[0] != "ok":
                raise CorruptData("the index of the stores is damaged", path=self._path, cause=result[0])
            for table, columns in COLUMNS.items():
                for row in self._reader.execute(f"SELECT {columns}, crc FROM {table}"):
                    checked_row(row, table, self._path)
            if {name: runs for name, runs in self.block_runs().items() if runs} != runs_of(self._reader):
                raise damaged(self._path, "blocks")
        except UNREADABLE as error:
            raise unreadable(self._path, error) from error

    def _select(self, query: str, values: tuple[str | int, ...]) -> list[Row]:
        """Unchecked rows. *Raises*: ``CorruptData``; ``ReadUnavailable`` if they cannot be read now."""
        try:
            return self._reader.execute(query, values).fetchall()
        except UNREADABLE as error:
            raise unreadable(self._path, error, ReadUnavailable) from error

    def _read(self, table: str, rest: str, values: tuple[str | int, ...]) -> list[Row]:
        rows = self._select(f"SELECT {COLUMNS[table]}, crc FROM {table} {rest}", values)
        return [checked_row(row, table, self._path) for row in rows]

    def block(self, store: str, number: int) -> tuple[bytes, int] | None:
        """See ``BlockTable``."""
        rows = self._select("SELECT data, crc FROM blocks WHERE store = ? AND number = ?", (store, number))
        return rows[0] if rows else None

    def block_runs(self) -> dict[str, list[tuple[int, int]]]:
        """See ``BlockTable``. *Raises*: ``CorruptData``, ``sqlite3.DatabaseError``."""
        loaded = self.load()
        return _decode_runs(loaded.runs) if loaded is not None and loaded.runs is not None else {}

    def entry(self, store: str, durable: str, key: str) -> KeyEntry | None:
        """See ``EntryTable``."""
        address = (store, durable, key)
        rows = self._read("entries", "WHERE store = ? AND durable = ? AND key = ?", address)
        if not rows:
            # A row with a damaged key is where this one would be; its checksum distinguishes it from a missing row.
            self._read("entries", _BELOW, address)
            self._read("entries", _ABOVE, address)
        return KeyEntry(*rows[0][2:]) if rows else None

    def entries_after(self, store: str, durable: str, key: str, limit: int) -> list[KeyEntry]:
        """See ``EntryTable``."""
        rest = "WHERE store = ? AND durable = ? AND key > ? ORDER BY key LIMIT ?"
        return [KeyEntry(*row[2:]) for row in self._read("entries", rest, (store, durable, key, limit))]

    def extent_at(self, store: str, seq: int) -> Extent | None:
        """See ``ExtentTable``."""
        return self._extent("WHERE store = ? AND first_seq <= ? ORDER BY first_seq DESC LIMIT 1", (store, seq))

    def extent_after(self, store: str, seq: int) -> Extent | None:
        """See ``ExtentTable``."""
        return self._extent("WHERE store = ? AND first_seq > ? ORDER BY first_seq LIMIT 1", (store, seq))

    def check_entries(self, expected: dict[tuple[str, str], int]) -> None:
        """Raises ``CorruptData`` if a durable has another number of entries, or the table is not in order.

        *Cost*: a look at every entry, about half a microsecond each.
        """
        result = self._reader.execute("PRAGMA integrity_check(entries)").fetchone()
        if result[0] != "ok":
            raise damaged(self._path, "entries")
        rows = self._reader.execute("SELECT store, durable, count(*) FROM entries GROUP BY store, durable")
        if {(store, durable): count for store, durable, count in rows} != expected:
            raise damaged(self._path, "entries")

    def _extent(self, rest: str, values: tuple[str, int]) -> Extent | None:
        rows = self._read("extents", rest, values)
        return Extent(*rows[0]) if rows else None

    def oldest_extents(self, limit: int) -> list[Extent]:
        """The extents that are first in the log, in that order."""
        return [Extent(*row) for row in self._read("extents", "ORDER BY first_frame LIMIT ?", (limit,))]

    def write(self, checkpoint: IndexChanges) -> int:
        """Write a checkpoint durably, in one transaction. Returns the first frame that is needed from now on.

        *Raises*: ``sqlite3.Error``, for example on a full disk; then nothing was changed.
        """
        database = self._writer
        try:
            database.execute("BEGIN IMMEDIATE")
            self._write_tables(checkpoint)
            runs = _encode({store: numbers for store, numbers in checkpoint.blocks.runs.items() if numbers})
            self._write_meta(Loaded(*checkpoint[:3], checkpoint.frame_crc, runs, checkpoint.version))
            needed = self._first_needed(checkpoint.frame)
            database.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._roll_back()
            error_to_raise = unreadable(self._path, error)
            if isinstance(error_to_raise, CorruptData) and not isinstance(error, sqlite3.ProgrammingError):
                raise error_to_raise from error  # a retry would never succeed
            raise
        except BaseException:
            self._roll_back()
            raise
        self._needed = needed
        return needed

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            self._writer.execute("ROLLBACK")

    def _write_meta(self, loaded: Loaded) -> None:
        values = loaded._asdict()
        self._writer.execute("DELETE FROM meta WHERE name IN ('frame_crc', 'version')")
        self._writer.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [(name, value) for name, value in values.items() if value is not None]
            + [("crc", row_crc(FORMAT, *loaded)), ("format", FORMAT)],
        )

    def _first_needed(self, frame: int) -> int:
        """The first frame that is needed: of the extents, or the one after ``frame``.

        Earlier pages are removed for good, so two trees must agree. *Cost*: a look at all extents if it has risen.
        """
        needed = self._first_extent_frame("first_frame", frame)
        # The order by frame has no bytes: to look at them SQLite has to go through the table itself.
        if needed > self._needed and self._first_extent_frame("first_frame + 0 * bytes", frame) != needed:
            raise damaged(self._path, "extents")
        return needed

    def _first_extent_frame(self, value: str, frame: int) -> int:
        row = self._writer.execute(f"SELECT min({value}) FROM extents").fetchone()
        return frame + 1 if row[0] is None else min(int(row[0]), frame + 1)

    def _write_tables(self, checkpoint: IndexChanges) -> None:
        database = self._writer
        stores = [(store,) for store in checkpoint.blocks.forgotten]
        database.executemany("DELETE FROM blocks WHERE store = ?", stores)
        for store, number, data in checkpoint.blocks:
            if data is None:
                database.execute("DELETE FROM blocks WHERE store = ? AND number = ?", (store, number))
            else:
                crc = row_crc(store, number, data)
                database.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?)", (store, number, data, crc))
        self._write_entries(checkpoint.entries)
        stores = [(store,) for store in checkpoint.locations.forgotten]
        database.executemany("DELETE FROM extents WHERE store = ?", stores)
        database.executemany("DELETE FROM extents WHERE store = ? AND first_seq = ?", checkpoint.locations.removed)
        database.executemany(
            "INSERT OR REPLACE INTO extents VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(*extent, row_crc(*extent)) for extent in checkpoint.locations.extents],
        )

    def _write_entries(self, changes: EntryChanges) -> None:
        database = self._writer
        for store, durable in changes.forgotten:
            if durable:
                database.execute("DELETE FROM entries WHERE store = ? AND durable = ?", (store, durable))
            else:
                database.execute("DELETE FROM entries WHERE store = ?", (store,))
        for (store, durable), entries in changes.entries.items():
            database.executemany(
                "DELETE FROM entries WHERE store = ? AND durable = ? AND key = ?",
                [(store, durable, key) for key, entry in entries.items() if entry is None],
            )
            rows = [(store, durable, *astuple(entry)) for entry in entries.values() if entry is not None]
            database.executemany(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", [(*row, row_crc(*row)) for row in rows]
            )

    def close(self) -> None:
        """Close the files; the scratch file goes."""
        self.blocks.close()
        self._reader.close()
        self._writer.close()
        if self._scratch_path:
            with suppress(FileNotFoundError):
                os.unlink(self._scratch_path)
