"""The index of the stores: what the state machine reads of what is stored, as of the last checkpoint, in SQLite.

Owns: the tables, the transaction of a checkpoint. Does not own: what has changed since (``block_cache``,
``entry_cache``, ``locations``), when a checkpoint is taken and what it lets go (``storage``).

Failure model: a checkpoint is one transaction, there or not. It is written only after the log is durable up to its
frame, so the index is never ahead of the log; frames that the index needs are removed only after the next one is
durable. It remembers the checksum of its last frame: one that was made of another log is refused. A file that SQLite
finds damaged is ``CorruptData``: the index is then as lost as the log's oldest pages, and a backup has both. One that
only cannot be opened (a full disk, a lock) is ``Unavailable``.

| table | key | what |
|---|---|---|
| ``meta`` | name | ``format`` (1); ``frame``: the last one in here; ``frame_crc``: its CRC-32; ``at_ms``; ``state`` |
| ``blocks`` | store, number | bytes, see ``block_cache`` |
| ``entries`` | store, durable, key | revision, size, expires_ms |
| ``extents`` | store, first_seq | last_seq, first_frame, last_frame, bytes; see ``locations`` |

Two connections on one file in WAL mode: the event loop reads, the checkpoint's thread writes, and neither waits.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import quote

from holdfast.errors import Code, CorruptData, HoldfastError, NotFound, Unavailable
from holdfast.stores.block_cache import BLOCKS_MAX, BlockCache, BlockChanges
from holdfast.stores.entry_cache import EntryCache, EntryChanges
from holdfast.stores.locations import Extent, LocationChanges
from holdfast.stores.ports import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["INDEX_NAME", "Checkpoint", "Index", "Loaded"]

INDEX_NAME: Final = "index.sqlite"
SCRATCH_NAME: Final = "scratch.sqlite"
FORMAT: Final = 1
_PRIMARY: Final = 0xFF
"""Of SQLite's codes: the rest only says more."""
_REPAIR: Final = (
    "without index.sqlite* the state is made of the log alone, where that begins with frame 1; "
    "else holdfast stores restore BACKUP NEW makes stores of a backup"
)
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (
    store TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (store, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    store TEXT NOT NULL, durable TEXT NOT NULL, key TEXT NOT NULL,
    revision INTEGER NOT NULL, size INTEGER NOT NULL, expires_ms INTEGER NOT NULL,
    PRIMARY KEY (store, durable, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS extents (
    store TEXT NOT NULL, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL,
    first_frame INTEGER NOT NULL, last_frame INTEGER NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (store, first_seq)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS extents_by_frame ON extents (first_frame);
"""
_EXTENT: Final = "SELECT store, first_seq, last_seq, first_frame, last_frame, bytes FROM extents "
_ENTRY: Final = "SELECT key, revision, size, expires_ms FROM entries "


class Loaded(NamedTuple):
    """The last checkpoint: the last frame in it, the time of that, the state; None where there was none yet.

    ``frame_crc`` is that frame's CRC-32, None where it is not known.
    """

    frame: int
    at_ms: int
    state: bytes
    frame_crc: int | None


class Checkpoint(NamedTuple):
    """What one transaction writes."""

    frame: int
    at_ms: int
    state: bytes
    blocks: BlockChanges
    entries: EntryChanges
    locations: LocationChanges
    frame_crc: int | None = None


class Index:
    """One index file. ``write`` and ``copy_to`` belong on a thread of their own, all else on the event loop.

    With ``read_only`` the file is not changed, and nothing can be written; what changes stays in memory.
    *Raises*: ``CorruptData``; ``Unavailable`` where the file is not damaged and cannot be opened.
    """

    def __init__(self, directory: str, *, read_only: bool = False, blocks_max: int = BLOCKS_MAX) -> None:
        path = os.path.join(directory, INDEX_NAME)
        self._path = path
        self._scratch_path = "" if read_only else os.path.join(directory, SCRATCH_NAME)
        if self._scratch_path:
            with suppress(FileNotFoundError):
                os.unlink(self._scratch_path)
        address = f"file:{quote(os.path.abspath(path))}?mode=ro" if read_only else path
        try:
            self._writer = sqlite3.connect(address, uri=read_only, check_same_thread=False, isolation_level=None)
        except sqlite3.OperationalError as error:
            if read_only and not os.path.exists(path):
                raise NotFound("there is no index of stores here", path=path) from error
            raise _unreadable(path, error) from error
        try:
            if not read_only:
                self._writer.execute("PRAGMA journal_mode=WAL")
                self._writer.execute("PRAGMA synchronous=FULL")
                self._writer.executescript(_SCHEMA)
            self._check_format(read_only=read_only)
            self._reader = sqlite3.connect(address, uri=read_only, isolation_level=None, check_same_thread=False)
        except sqlite3.DatabaseError as error:
            self._writer.close()
            raise _unreadable(path, error) from error
        self.blocks = BlockCache(self, self._scratch_path, cached_max=blocks_max)
        self.entries = EntryCache(self)

    def _check_format(self, *, read_only: bool) -> None:
        row = self._writer.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
        if row is None and not read_only:
            self._writer.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
        elif row is None:
            raise CorruptData("the index of the stores is empty", code=Code.CORRUPT_LOG, path=self._path, hint=_REPAIR)
        elif row[0] != FORMAT:
            raise CorruptData(
                "the index of the stores was written by a later version of holdfast",
                code=Code.CORRUPT_LOG,
                path=self._path,
                format=row[0],
                hint="nothing is damaged: use that version",
            )

    def load(self) -> Loaded | None:
        """The last checkpoint. *Raises*: ``sqlite3.DatabaseError``."""
        found: dict[str, bytes | int] = dict(
            self._reader.execute(
                "SELECT name, value FROM meta WHERE name IN ('frame', 'at_ms', 'state', 'frame_crc')"
            ).fetchall()
        )
        frame, at_ms, state = found.get("frame"), found.get("at_ms"), found.get("state")
        if isinstance(frame, int) and isinstance(at_ms, int) and isinstance(state, bytes):
            crc = found.get("frame_crc")
            return Loaded(frame, at_ms, state, crc if isinstance(crc, int) else None)
        return None

    def unreadable(self, error: sqlite3.DatabaseError) -> HoldfastError:
        """What to raise where a start could not read the index."""
        return _unreadable(self._path, error)

    def copy_to(self, path: str) -> None:
        """A copy as of the last checkpoint, in a new file."""
        source, target = sqlite3.connect(self._path), sqlite3.connect(path)
        try:
            source.backup(target)
        finally:
            target.close()
            source.close()

    def check(self) -> None:
        """Let SQLite look at every page of the file. *Raises*: ``CorruptData``."""
        found = self._reader.execute("PRAGMA integrity_check(1)").fetchone()
        if found[0] != "ok":
            raise CorruptData(
                "the index of the stores is damaged", code=Code.CORRUPT_LOG, path=self._path, cause=found[0]
            )

    # ---- what the caches read ---------------------------------------------------------------------------------------

    def block(self, store: str, number: int) -> bytes | None:
        """See ``BlockTable``."""
        row = self._reader.execute("SELECT data FROM blocks WHERE store = ? AND number = ?", (store, number)).fetchone()
        return None if row is None else bytes(row[0])

    def newest_block(self, store: str) -> int:
        """See ``BlockTable``."""
        row = self._reader.execute("SELECT max(number) FROM blocks WHERE store = ?", (store,)).fetchone()
        return -1 if row[0] is None else int(row[0])

    def entry(self, store: str, durable: str, key: str) -> Entry | None:
        """See ``EntryTable``."""
        row = self._reader.execute(
            _ENTRY + "WHERE store = ? AND durable = ? AND key = ?", (store, durable, key)
        ).fetchone()
        return None if row is None else Entry(*row)

    def entries_after(self, store: str, durable: str, key: str, limit: int) -> list[Entry]:
        """See ``EntryTable``."""
        rows = self._reader.execute(
            _ENTRY + "WHERE store = ? AND durable = ? AND key > ? ORDER BY key LIMIT ?", (store, durable, key, limit)
        )
        return [Entry(*row) for row in rows.fetchall()]

    def extent_at(self, store: str, seq: int) -> Extent | None:
        """See ``ExtentTable``."""
        return self._extent(
            _EXTENT + "WHERE store = ? AND first_seq <= ? ORDER BY first_seq DESC LIMIT 1", (store, seq)
        )

    def extent_after(self, store: str, seq: int) -> Extent | None:
        """See ``ExtentTable``."""
        return self._extent(_EXTENT + "WHERE store = ? AND first_seq > ? ORDER BY first_seq LIMIT 1", (store, seq))

    def _extent(self, query: str, values: tuple[str, int]) -> Extent | None:
        row = self._reader.execute(query, values).fetchone()
        return None if row is None else Extent(*row)

    def oldest_extents(self, limit: int) -> list[Extent]:
        """The extents that lie first in the log, in that order."""
        rows = self._reader.execute(_EXTENT + "ORDER BY first_frame LIMIT ?", (limit,))
        return [Extent(*row) for row in rows.fetchall()]

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def write(self, checkpoint: Checkpoint) -> int:
        """Write a checkpoint durably, in one transaction. Returns the first frame that is needed from now on.

        *Raises*: ``sqlite3.Error``, for example on a full disk; then nothing was changed.
        """
        database = self._writer
        database.execute("BEGIN IMMEDIATE")
        try:
            self._write_tables(checkpoint)
            database.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                [("frame", checkpoint.frame), ("at_ms", checkpoint.at_ms), ("state", checkpoint.state)],
            )
            database.execute("DELETE FROM meta WHERE name = 'frame_crc'")
            if checkpoint.frame_crc is not None:
                database.execute("INSERT INTO meta VALUES ('frame_crc', ?)", (checkpoint.frame_crc,))
            row = database.execute("SELECT min(first_frame) FROM extents").fetchone()
            database.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            raise
        return checkpoint.frame + 1 if row[0] is None else min(int(row[0]), checkpoint.frame + 1)

    def _write_tables(self, checkpoint: Checkpoint) -> None:
        database = self._writer
        stores = [(store,) for store in checkpoint.blocks.forgotten]
        database.executemany("DELETE FROM blocks WHERE store = ?", stores)
        for store, number, data in checkpoint.blocks:
            if data is None:
                database.execute("DELETE FROM blocks WHERE store = ? AND number = ?", (store, number))
            else:
                database.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)", (store, number, data))
        self._write_entries(checkpoint.entries)
        stores = [(store,) for store in checkpoint.locations.forgotten]
        database.executemany("DELETE FROM extents WHERE store = ?", stores)
        database.executemany("DELETE FROM extents WHERE store = ? AND first_seq = ?", checkpoint.locations.removed)
        database.executemany("INSERT OR REPLACE INTO extents VALUES (?, ?, ?, ?, ?, ?)", checkpoint.locations.extents)

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
            database.executemany(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)", _rows(store, durable, entries.values())
            )

    def close(self) -> None:
        """Close the files; the scratch file goes."""
        self.blocks.close()
        self._reader.close()
        self._writer.close()
        if self._scratch_path:
            with suppress(FileNotFoundError):
                os.unlink(self._scratch_path)


def _rows(store: str, durable: str, entries: Iterable[Entry | None]) -> list[tuple[str, str, str, int, int, int]]:
    return [
        (store, durable, entry.key, entry.revision, entry.size, entry.expires_ms)
        for entry in entries
        if entry is not None
    ]


def _unreadable(path: str, error: sqlite3.DatabaseError) -> HoldfastError:
    """Damage where SQLite says so; anything else is the disk's or somebody else's, and the file is as it was."""
    # What Python's module refuses by itself has no code of SQLite's; a table that is missing is SQLite's plain error.
    code = int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & _PRIMARY
    if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        full = code == sqlite3.SQLITE_FULL
        return Unavailable(
            f"the index of the stores cannot be opened: {error}",
            code=Code.DISK_FULL if full else Code.STORE_UNAVAILABLE,
            hint="nothing is known to be damaged: see to the disk, or to who else has the file open, and start again",
            path=path,
        )
    return CorruptData(
        "the index of the stores cannot be read",
        code=Code.CORRUPT_LOG,
        path=path,
        cause=str(error),
        hint=_REPAIR,
    )
