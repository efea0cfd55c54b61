"""A view's state in one SQLite file, written in large transactions behind its readers.

Owns: the recent changes that are not in the file yet, the thread that writes them. Does not own: the file's format
(``sqlite_file``), order, proof and locking (``view``).

Layers, newest first: ``active`` takes what is applied; ``frozen`` is being written; the file holds the rest. A read
asks them in that order, and each layer hides what it changed or cleared.

The order of a flush, and what a crash leaves:

    1. active becomes frozen, with the position it reaches        file: the old state and the old position
    2. one transaction: cleared ranges, changed keys, position    file: the old or the new, never a mixture
    3. frozen is dropped                                          file: the new state and the new position

The position is in the same transaction as the data, so the file is always exactly the state at its position,
whichever step was the last. A crash of the process loses no finished flush; a power cut may lose the newest ones,
whole. What is lost is applied again from the stream, after the position.

Bounds: a flush starts when ``FLUSH_BYTES`` of changes wait or ``FLUSH_SECONDS`` have passed; applying waits while
``WAITING_BYTES_MAX`` wait behind a flush.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Final

from holdfast.commit.format.transaction import Operation
from holdfast.errors import Code, Unavailable
from holdfast.view.layer import Layer, Stored
from holdfast.view.sqlite_file import connect, open_for_writer, write_layer
from holdfast.view.view import Position, Row

__all__ = ["SqliteStorage"]

FLUSH_BYTES: Final = 16 << 20
FLUSH_SECONDS: Final = 1.0
WAITING_BYTES_MAX: Final = 64 << 20


class SqliteStorage:
    """See the module. Reads use one connection, the flushing thread another."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Guards the layers and the position. Taken inside the view's lock, never around it, and never held for a flush.
        self._changed = threading.Condition()
        self._flushing = threading.Lock()
        self._reader, self._position = open_for_writer(path)
        try:
            self._writer = connect(path)
        except BaseException:
            self._reader.close()
            raise
        self._active = Layer(is_ground=False)
        self._frozen: Layer | None = None
        self._written = self._position
        self._failure: Exception | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._write_behind, name="holdfast-view", daemon=True)
        self._thread.start()

    @property
    def position(self) -> Position:
        """See ``ViewStorage``."""
        return self._position

    def make_room(self) -> None:
        """See ``ViewStorage``."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._active.size < WAITING_BYTES_MAX)
            self._raise_failure()

    def apply(self, txns: Sequence[tuple[int, Sequence[Operation]]], position: Position) -> None:
        """See ``ViewStorage``."""
        with self._changed:
            for version, operations in txns:
                self._active.apply(version, operations)
            self._position = position
            if self._active.size >= FLUSH_BYTES:
                self._changed.notify_all()

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
        """See ``ViewStorage``. The three layers are merged; where they meet in a key, the newest decides."""
        with self._changed:
            layers = [layer for layer in (self._active, self._frozen) if layer is not None]
            walks: list[Iterator[bytes]] = [layer.walk(begin, end) for layer in layers]
            cursor = self._reader.execute(
                "SELECT key, value, version FROM latest WHERE key >= ? AND (? IS NULL OR key < ?) ORDER BY key",
                (begin, end, end),
            )
            try:
                yield from _merge(layers, walks, cursor)
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
        """One flush. A failure is kept and raised to whoever applies next: the file keeps its older, whole state."""
        with self._flushing:
            with self._changed:
                if self._failure is not None or self._position == self._written:
                    return
                frozen, position = self._active, self._position
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
                hint="mend the disk, then open the view again; it resumes where the file is",
            ) from self._failure


def _merge(layers: list[Layer], walks: list[Iterator[bytes]], cursor: sqlite3.Cursor) -> Iterator[Row]:
    heads: list[bytes | None] = [next(walk, None) for walk in walks]
    row: Row | None = cursor.fetchone()
    while True:
        candidates = [key for key in heads if key is not None]
        if row is not None:
            candidates.append(row[0])
        if not candidates:
            return
        key = min(candidates)
        stored: Stored | None = None
        decided = False
        for depth, layer in enumerate(layers):
            if not decided and key in layer.changes:
                stored, decided = layer.changes[key], True
            decided = decided or layer.hides(key)
            if heads[depth] == key:
                heads[depth] = next(walks[depth], None)
        if row is not None and row[0] == key:
            if not decided:
                stored = (row[1], row[2])
            row = cursor.fetchone()
        if stored is not None:
            yield key, stored[0], stored[1]
