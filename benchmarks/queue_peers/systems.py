"""Holdfast's queue and its peers behind one face: a log of byte strings in a folder.

Owns: how each system is opened, appended to, synced and read. Does not own: what is timed (``worker``).

Every peer is set as its documentation says, and never to its weakness; where it offers no choice it runs as it comes:

| system | without sync | synced |
|---|---|---|
| holdfast | ``sync="os"`` | ``sync="always"`` |
| holdfast zlib-ng | and the package zlib-ng, which the other rows hide | |
| holdfast crc32c | and ``checksum=CRC32C`` with the package crc32c | |
| lmdb | ``sync=False``, integer keys in order, ``putmulti(append=True)`` | ``sync=True`` |
| lmdb writemap | and ``writemap=True``: quicker, but a power cut may leave no database (lmdb.h, MDB_NOSYNC) | |
| sqlite3 | WAL, ``synchronous=NORMAL``, integer primary key, no index | WAL, ``synchronous=FULL`` |
| litequeue | as it comes: WAL, NORMAL; a batch in its ``transaction()`` | FULL set on its connection |
| persist-queue SQLite | no choice: WAL, FULL, a transaction for each message | the same |
| persist-queue SQLite, unsynced | NORMAL set on its private connection, which it does not offer | |
| persist-queue file | as it comes | ``fsync`` of its head file from outside |
| diskcache | ``Deque`` on a cache without eviction, NORMAL; a batch in ``transact()`` | ``sqlite_synchronous=2`` |
| queuelib | as it comes; keeps its place in memory until ``close()`` | ``fsync`` of its head file from outside |

The peers store no arrival time in these logs and no checksum; Holdfast stores both. Reading leaves every log as it was,
except litequeue's.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import Any, ClassVar

from holdfast.queue import Queue
from holdfast.queue.format.checksum import CRC32, CRC32C

__all__ = ["MAP_BYTES", "SYSTEMS", "System", "system_named"]

MAP_BYTES = 16 << 30
FILL_BATCH = 1000
KEY = Struct(">Q")


class System:
    """A log of byte strings."""

    name: ClassVar[str]
    reading_consumes: ClassVar[bool] = False

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        raise NotImplementedError

    def append(self, payload: bytes) -> object:
        raise NotImplementedError

    def append_many(self, payloads: Sequence[bytes]) -> object:
        """Append all in the system's own best way, and once synced where it was opened so."""
        raise NotImplementedError

    def fill(self, payloads: Iterable[bytes]) -> None:
        """Append for a later measurement, in batches of 1,000 messages."""
        rest = iter(payloads)
        while batch := list(islice(rest, FILL_BATCH)):
            self.append_many(batch)

    def payloads(self) -> Iterator[bytes]:
        """Every message from the oldest on, by the quickest way that the system has."""
        raise NotImplementedError

    def messages(self) -> Iterator[object]:
        """As ``payloads``, each message with its place; the same where the system has no other way."""
        return self.payloads()

    def close(self) -> None:
        raise NotImplementedError


class Holdfast(System):
    name = "holdfast"
    checksum: ClassVar[int] = CRC32

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        self.queue = Queue(folder / "log", sync="always" if synced else "os", checksum=self.checksum)
        self.append = self.queue.append  # type: ignore[method-assign]
        self.append_many = self.queue.append_many  # type: ignore[method-assign]

    def payloads(self) -> Iterator[bytes]:
        return self.queue.read_payloads()

    def messages(self) -> Iterator[object]:
        return self.queue.read()

    def close(self) -> None:
        self.queue.close()


class HoldfastZlibNg(Holdfast):
    name = "holdfast zlib-ng"


class HoldfastCrc32c(Holdfast):
    name = "holdfast crc32c"
    checksum = CRC32C


class Lmdb(System):
    name = "lmdb"
    writemap: ClassVar[bool] = False

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        import lmdb

        self.environment = lmdb.open(str(folder), map_size=MAP_BYTES, sync=synced, writemap=self.writemap)
        with self.environment.begin() as transaction:
            cursor = transaction.cursor()
            self._next = KEY.unpack(cursor.key())[0] + 1 if cursor.last() else 0

    def append(self, payload: bytes) -> None:
        with self.environment.begin(write=True) as transaction:
            transaction.put(KEY.pack(self._next), payload, append=True)
        self._next += 1

    def append_many(self, payloads: Sequence[bytes]) -> None:
        keys = map(KEY.pack, range(self._next, self._next + len(payloads)))
        with self.environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(list(zip(keys, payloads, strict=True)), append=True)
        self._next += len(payloads)

    def payloads(self) -> Iterator[bytes]:
        found: Iterator[bytes] = self._reading().cursor().iternext(keys=False, values=True)
        return found

    def messages(self) -> Iterator[object]:
        found: Iterator[object] = self._reading().cursor().iternext()
        return found

    def _reading(self) -> Any:
        self._transaction = self.environment.begin()  # ends with this object
        return self._transaction

    def close(self) -> None:
        self.environment.close()


class LmdbWritemap(Lmdb):
    name = "lmdb writemap"
    writemap = True


class Sqlite3(System):
    name = "sqlite3"

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        self.connection = sqlite3.connect(folder / "log.db", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
        self.connection.execute("CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, payload BLOB)")

    def append(self, payload: bytes) -> None:
        self.connection.execute("INSERT INTO log (payload) VALUES (?)", (payload,))

    def append_many(self, payloads: Sequence[bytes]) -> None:
        self.connection.execute("BEGIN")
        self.connection.executemany("INSERT INTO log (payload) VALUES (?)", ((each,) for each in payloads))
        self.connection.execute("COMMIT")

    def payloads(self) -> Iterator[bytes]:
        return map(itemgetter(0), self.connection.execute("SELECT payload FROM log ORDER BY seq"))

    def messages(self) -> Iterator[object]:
        return self.connection.execute("SELECT seq, payload FROM log ORDER BY seq")

    def close(self) -> None:
        self.connection.close()


class LiteQueue(System):
    name = "litequeue"
    reading_consumes = True

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        from litequeue import LiteQueue as Peer

        self.peer = Peer(str(folder / "queue.db"))
        if synced:
            self.peer.conn.execute("PRAGMA synchronous=FULL")
        self.append = self.peer.put  # type: ignore[method-assign]

    def append_many(self, payloads: Sequence[bytes]) -> None:
        put: Any = self.peer.put
        with self.peer.transaction():
            for payload in payloads:
                put(payload)

    def payloads(self) -> Iterator[bytes]:
        while (found := self.peer.pop()) is not None:
            yield found.data

    def close(self) -> None:
        self.peer.conn.close()


class PersistQueueSqlite(System):
    name = "persist-queue SQLite"
    synchronous: ClassVar[str] = ""
    auto_commit: ClassVar[bool] = False
    """Without it a read deletes nothing until ``task_done()``; ``put`` commits each message all the same."""

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        from persistqueue import SQLiteQueue

        self.peer = SQLiteQueue(str(folder), auto_commit=self.auto_commit)
        if self.synchronous:
            self.peer._putter.execute(f"PRAGMA synchronous={self.synchronous}")
        self.append = self.peer.put  # type: ignore[method-assign]

    def append_many(self, payloads: Sequence[bytes]) -> None:
        put = self.peer.put
        for payload in payloads:
            put(payload)

    def fill(self, payloads: Iterable[bytes]) -> None:
        """Straight into its table: through ``put`` a million messages would take minutes."""
        now = time.time()
        rows = ((pickle.dumps(payload, protocol=4), now + place * 1e-6) for place, payload in enumerate(payloads))
        connection = self.peer._putter
        connection.executemany("INSERT INTO queue_default (data, timestamp) VALUES (?, ?)", rows)
        connection.commit()

    def payloads(self) -> Iterator[bytes]:
        from persistqueue.exceptions import Empty

        while True:
            try:
                yield self.peer.get(block=False)
            except Empty:
                return

    def close(self) -> None:
        self.peer.close()


class PersistQueueSqliteUnsynced(PersistQueueSqlite):
    name = "persist-queue SQLite, unsynced"
    synchronous = "NORMAL"


class PersistQueueFile(System):
    name = "persist-queue file"

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        from persistqueue import Queue

        self.peer = Queue(str(folder), tempdir=str(folder))
        self._synced = synced

    def append(self, payload: bytes) -> None:
        self.peer.put(payload)
        if self._synced:
            os.fsync(self.peer.headf.fileno())

    def append_many(self, payloads: Sequence[bytes]) -> None:
        put = self.peer.put
        for payload in payloads:
            put(payload)
        if self._synced:
            os.fsync(self.peer.headf.fileno())

    def payloads(self) -> Iterator[bytes]:
        from persistqueue.exceptions import Empty

        while True:
            try:
                yield self.peer.get(block=False)
            except Empty:
                return

    def close(self) -> None:
        """It has no way to close: every message is with the operating system already."""


class Diskcache(System):
    name = "diskcache"

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        from diskcache import Cache, Deque

        self.cache = Cache(str(folder), eviction_policy="none", sqlite_synchronous=2 if synced else 1)
        self.peer = Deque.fromcache(self.cache)
        self.append = self.peer.append  # type: ignore[method-assign]

    def append_many(self, payloads: Sequence[bytes]) -> None:
        append = self.peer.append
        with self.peer.transact():
            for payload in payloads:
                append(payload)

    def payloads(self) -> Iterator[bytes]:
        yield from self.peer

    def close(self) -> None:
        self.cache.close()


class Queuelib(System):
    name = "queuelib"

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        from queuelib import FifoDiskQueue

        self.peer = FifoDiskQueue(str(folder))
        self._synced = synced

    def append(self, payload: bytes) -> None:
        self.peer.push(payload)
        if self._synced:
            os.fsync(self.peer.headf.fileno())

    def append_many(self, payloads: Sequence[bytes]) -> None:
        push = self.peer.push
        for payload in payloads:
            push(payload)
        if self._synced:
            os.fsync(self.peer.headf.fileno())

    def payloads(self) -> Iterator[bytes]:
        while (found := self.peer.pop()) is not None:
            yield found

    def close(self) -> None:
        self.peer.close()


SYSTEMS: tuple[type[System], ...] = (
    Holdfast,
    HoldfastZlibNg,
    HoldfastCrc32c,
    Lmdb,
    LmdbWritemap,
    Sqlite3,
    LiteQueue,
    PersistQueueSqlite,
    PersistQueueSqliteUnsynced,
    PersistQueueFile,
    Diskcache,
    Queuelib,
)


def system_named(name: str) -> type[System]:
    return next(each for each in SYSTEMS if each.name == name)
