"""A view's state in one SQLite file, written in large transactions in the background.

File (format 1), readable by its owner alone: table ``latest(key BLOB PRIMARY KEY, value BLOB, version INTEGER)``
without rowid; table ``jobs``, the same for records of jobs, which only a service's own view has; table ``position``
with one row (version, last_transaction, log_id); ``log_id`` is NULL while it is not known. Journal mode WAL,
``synchronous=NORMAL``; ``application_id`` identifies the file, and ``user_version`` is the format.

A read asks three layers, newest first: ``active`` takes new changes, ``frozen`` is being written, the file has the
rest. The order of a flush, and what a crash leaves:

    1. active becomes frozen, with the position it reaches        file: the old state and the old position
    2. one transaction: cleared ranges, changed keys, position    file: the old or the new, never a mixture
    3. frozen is dropped                                          file: the new state and the new position

A crash of the process loses no finished flush; a power cut may lose the newest ones, whole. The stream after the
position applies them again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from holdfast.commit.format.transaction import Operation
from holdfast.errors import Code, CorruptData, Unavailable
from holdfast.files.private_files import make_private, restrict_to_owner
from holdfast.values import LogPosition
from holdfast.view.storage import Layer, Row, StatePosition, Stored, merged

APPLICATION_ID: Final = 0x484F4C44
FORMAT: Final = 1
NEW: Final = 0
"""The format of a file that SQLite has just made."""

Table = Literal["latest", "jobs"]
TABLES: Final[tuple[Table, ...]] = ("latest", "jobs")


def open_for_writer(path: Path) -> tuple[sqlite3.Connection, StatePosition]:
    """The file at ``path``, made when absent, and the position it holds. Raises: CorruptData, sqlite3.Error."""
    make_private(str(path))
    # SQLite gives its other files the permissions of this one.
    restrict_to_owner(str(path), f"{path}-wal", f"{path}-shm", f"{path}-journal")
    connection = _connect(path)
    try:
        _prepare(connection, path)
        _tune(connection)
        return connection, _read_position(connection)
    except BaseException:
        connection.close()
        raise


def open_for_readers(path: Path) -> sqlite3.Connection:
    """A connection that cannot change the file, which exists and has another writer. Raises: sqlite3.Error."""
    address = path.absolute().as_uri() + "?mode=ro"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, timeout=5)
    connection.execute("PRAGMA cache_size = -8192")
    return connection


def connect(path: Path) -> sqlite3.Connection:
    """A connection that may be used by several threads, one at a time."""
    connection = _connect(path)
    _tune(connection)
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    # Transactions are explicit: the module begins none by itself.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)


def _tune(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cache_size = -16384")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    try:
        application_id = int(connection.execute("PRAGMA application_id").fetchone()[0])
        tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    except sqlite3.DatabaseError as error:
        raise CorruptData("this file is not a view", path=path, hint="choose another path, or remove it") from error
    if application_id != APPLICATION_ID and tables:
        raise CorruptData("this file is another database", path=path, hint="choose another path")
    connection.execute("PRAGMA journal_mode = WAL")
    with transaction(connection):
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version not in (NEW, FORMAT):
            raise CorruptData("this view has a format of another version", path=path, format=version)
        for table in TABLES:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table}(key BLOB PRIMARY KEY, value BLOB NOT NULL,"
                " version INTEGER NOT NULL) WITHOUT ROWID"
            )
        connection.execute(
            "CREATE TABLE IF NOT EXISTS position(only INTEGER PRIMARY KEY CHECK (only = 1),"
            " version INTEGER NOT NULL, last_transaction INTEGER, log_id TEXT)"
        )
        connection.execute("INSERT OR IGNORE INTO position VALUES (1, 0, NULL, NULL)")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """All of the block or nothing of it. Raises: sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _read_position(connection: sqlite3.Connection) -> StatePosition:
    row: tuple[int, int | None, str | None] | None = connection.execute(
        "SELECT version, last_transaction, log_id FROM position WHERE only = 1"
    ).fetchone()
    assert row is not None, "a view is prepared with a position"
    return StatePosition(*row)


def write_layer(connection: sqlite3.Connection, layer: Layer, position: StatePosition) -> None:
    """Write ``layer`` and ``position`` in one transaction. ``layer`` must not change meanwhile. Raises: sqlite3.Error,
    and then nothing has changed."""
    with transaction(connection):
        _write_changes(connection, layer, "latest")
        if layer.jobs is not None:
            _write_changes(connection, layer.jobs, "jobs")
        write_position(connection, position)


def _write_changes(connection: sqlite3.Connection, layer: Layer, table: Table) -> None:
    for begin, end in layer.cleared:
        connection.execute(f"DELETE FROM {table} WHERE key >= ? AND (? IS NULL OR key < ?)", (begin, end, end))
    ordered = sorted(layer.changes.items(), key=lambda item: item[0])  # the table is in this order too
    connection.executemany(
        f"INSERT INTO {table} VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value,"
        " version = excluded.version",
        ((key, stored[0], stored[1]) for key, stored in ordered if stored is not None),
    )
    connection.executemany(f"DELETE FROM {table} WHERE key = ?", ((key,) for key, stored in ordered if stored is None))


def insert_rows(connection: sqlite3.Connection, rows: Iterable[Row], table: Table = "latest") -> None:
    """Add rows whose keys the table does not hold. Raises: sqlite3.Error."""
    connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)


def write_position(connection: sqlite3.Connection, position: StatePosition) -> None:
    """Say which state the file holds, in the transaction that writes it. Raises: sqlite3.Error."""
    connection.execute("UPDATE position SET version = ?, last_transaction = ?, log_id = ? WHERE only = 1", position)


def walk_rows(connection: sqlite3.Connection, table: Table = "latest") -> Iterator[Row]:
    """Every row of the table by key."""
    return connection.execute(f"SELECT key, value, version FROM {table} ORDER BY key")


FLUSH_BYTES: Final = 16 << 20
FLUSH_SECONDS: Final = 1.0
WAITING_BYTES_MAX: Final = 64 << 20


class SqliteStorage:
    """Reads use one connection, the flushing thread another.

    A flush starts when ``FLUSH_BYTES`` of changes wait or after ``FLUSH_SECONDS``; applying waits while
    ``WAITING_BYTES_MAX`` wait for a flush.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Guards the layers and the position. Taken inside the view's lock, and never held for a flush.
        self._changed = threading.Condition()
        self._flushing = threading.Lock()
        self._reader, self.position = open_for_writer(path)
        try:
            self._writer = connect(path)
        except BaseException:
            self._reader.close()
            raise
        self._active = Layer(is_ground=False)
        self._frozen: Layer | None = None
        self._written = self.position
        self._failure: Exception | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._write_behind, name="holdfast-view", daemon=True)
        self._thread.start()

    def make_room(self) -> None:
        """See ``ViewStorage``."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._active.size < WAITING_BYTES_MAX)
            self._raise_failure()

    def apply(self, txns: Sequence[tuple[int, Sequence[Operation]]], position: StatePosition) -> None:
        """See ``ViewStorage``."""
        with self._changed:
            self._active.apply_many(txns)
            self.position = position
            if self._active.size >= FLUSH_BYTES:
                self._changed.notify_all()

    def fill(self) -> SqliteFilling:
        """See ``ViewStorage``."""
        return SqliteFilling(self, self._writer, self._flushing)

    def filled(self, position: StatePosition) -> None:
        """The file holds the state at ``position``, which was not applied here."""
        with self._changed:
            self.position = self._written = position

    def get(self, key: bytes) -> Stored | None:
        """See ``ViewStorage``."""
        with self._changed:
            for layer in (self._active, self._frozen):
                if layer is None:
                    continue
                if key in layer.changes:
                    return layer.changes[key]
                if layer.hides(key):
                    return None
            row: Stored | None = self._reader.execute(
                "SELECT value, version FROM latest WHERE key = ?", (key,)
            ).fetchone()
            return row

    def walk(self, begin: bytes, end: bytes | None) -> Generator[Row]:
        """See ``ViewStorage``. The three layers are merged; the newest one that has a key decides."""
        with self._changed:
            layers = [layer for layer in (self._active, self._frozen) if layer is not None]
            cursor = self._reader.execute(
                "SELECT key, value, version FROM latest WHERE key >= ? AND (? IS NULL OR key < ?) ORDER BY key",
                (begin, end, end),
            )
            try:
                yield from merged(layers, begin, end, cursor)
            finally:
                cursor.close()

    def flush(self) -> None:
        """See ``ViewStorage``."""
        self._write_once()
        with self._changed:
            self._raise_failure()

    def close(self) -> None:
        """See ``ViewStorage``."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        try:
            self._write_once()
        finally:
            self._reader.close()
            self._writer.close()
        self._raise_failure()

    def _write_behind(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._active.size >= FLUSH_BYTES, FLUSH_SECONDS)
                if self._stopping or self._failure is not None:
                    return
            self._write_once()

    def _write_once(self) -> None:
        """One flush. A failure is kept and raised by the next ``apply``: the file keeps its older, whole state."""
        with self._flushing:
            with self._changed:
                if self._failure is not None or self.position == self._written:
                    return
                frozen, position = self._active, self.position
                self._frozen, self._active = frozen, Layer(is_ground=False)
                self._changed.notify_all()
            try:
                write_layer(self._writer, frozen, position)
            except sqlite3.Error as error:
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._frozen = None
                self._written = position

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise Unavailable(
                f"the view's file cannot be written: {self._failure}",
                code=Code.STORE_UNAVAILABLE,
                path=self._path,
                hint="repair the disk, then open the view again; it resumes where the file is",
            ) from self._failure


class SqliteFilling:
    """One transaction of the file. Nothing else is written meanwhile."""

    def __init__(self, storage: SqliteStorage, writer: sqlite3.Connection, flushing: threading.Lock) -> None:
        self._storage = storage
        self._writer = writer
        self._flushing = flushing
        self._is_open = False
        flushing.acquire()
        try:
            writer.execute("BEGIN IMMEDIATE")
            self._is_open = True
        finally:
            if not self._is_open:
                flushing.release()

    def add(self, rows: Iterable[Row]) -> None:
        """See ``Filling``."""
        insert_rows(self._writer, rows)

    def finish(self, position: LogPosition, last_transaction: int) -> None:
        """See ``Filling``."""
        reached = StatePosition(position.version, last_transaction, position.log_id)
        write_position(self._writer, reached)
        self._writer.execute("COMMIT")
        self._is_open = False
        self._storage.filled(reached)
        self._flushing.release()

    def close(self) -> None:
        """See ``Filling``."""
        if self._is_open:
            self._is_open = False
            self._writer.execute("ROLLBACK")
            self._flushing.release()
