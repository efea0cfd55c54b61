"""The view: a batch is checked, applied and made visible in this order, under one lock.

The lock guards storage and position; it is held for one batch or one read. Waiters are called after its release.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.commit.format.transaction import Operation
from holdfast.errors import Closed, Code, CorruptData, InvalidRequest
from holdfast.values import FORK_JUMP_MIN, LogPosition
from holdfast.view.storage import (
    PAGE_BYTES,
    Filling,
    MemoryStorage,
    Row,
    StatePosition,
    Stored,
    ViewPage,
    ViewStorage,
    page_of,
)


class View:
    """The latest value of every key up to ``version``.

    Make one with ``View.memory()`` or ``View.sqlite(path)``; feed it with ``apply``; read it from any thread.
    """

    def __init__(self, storage: ViewStorage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._version, self._last_transaction, self._log_id = storage.position
        self._waiters: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._closed = False

    @classmethod
    def memory(cls) -> View:
        """A view in memory. Cost: under 1.5 microseconds an operation."""
        return cls(MemoryStorage())

    @classmethod
    def sqlite(cls, path: str | Path) -> View:
        """A view in a SQLite file, made when absent; resumes at the position the file holds.

        Raises: CorruptData when the file is something else; OSError, sqlite3.Error when it cannot be used.
        """
        from holdfast.view.sqlite import SqliteStorage  # imported here: not every Python has sqlite3

        return cls(SqliteStorage(Path(path)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def version(self) -> int:
        """Everything at or below is applied."""
        return self._version

    @property
    def log_id(self) -> str | None:
        """The log whose state this is; None before the first event that names it."""
        return self._log_id

    @property
    def position(self) -> LogPosition:
        """The version with its log. Subscribe after it; a service of another log refuses it."""
        return LogPosition(self._version, self._log_id)

    def apply(self, events: Iterable[object]) -> None:
        """Apply durable events in order: transactions and checkpoints, of the client's or the service's types.

        Transactions that were applied before are skipped. A batch is applied as a whole or not at all.
        Raises: CorruptData (a transaction is missing, naming the versions); InvalidRequest (an event that may still be
        rolled back, or is of another kind; log_mismatch: one of another log); Closed; what the storage raises.
        """
        version, last, log_id = self._version, self._last_transaction, self._log_id
        txns: list[tuple[int, Sequence[Operation]]] = []
        for event in events:
            event_log_id: str | None = getattr(event, "log_id", None)
            if event_log_id is not None and event_log_id != log_id:
                if log_id is not None and not self._goes_on(event, version, last):
                    continue
                log_id = event_log_id
            operations: Sequence[Operation] | None = getattr(event, "operations", None)
            if operations is None:
                version = max(version, _checkpoint_version(event))
                continue
            txn_version: int = event.version  # type: ignore[attr-defined]
            if txn_version <= version:
                if last is not None and txn_version <= last:
                    continue
                raise CorruptData("a transaction arrived after the view was past it", version=txn_version, past=version)
            prev_version: int = event.prev_version  # type: ignore[attr-defined]
            if prev_version != last and (last is not None or prev_version > version):
                raise CorruptData(
                    "a transaction is missing from the stream",
                    version=txn_version,
                    prev_version=prev_version,
                    last_applied=version if last is None else last,
                    hint="subscribe again after the view's version",
                )
            if not event.durable:  # type: ignore[attr-defined]
                raise InvalidRequest("a view takes durable transactions only", version=txn_version)
            txns.append((txn_version, operations))
            version = last = txn_version
        if txns or version != self._version or log_id != self._log_id:
            self._advance(txns, StatePosition(version, last, log_id))

    def _goes_on(self, event: object, version: int, last: int | None) -> bool:
        """Whether an event of another log shows that this log was forked here, and goes on as that one.

        Only a transaction proves it: it follows the last one of this view, after the jump of a fork. A checkpoint after
        such a jump proves nothing and is passed over. Raises: InvalidRequest (log_mismatch) for every other event.
        """
        if hasattr(event, "operations"):
            if event.prev_version == (last or 0) and event.version >= version + FORK_JUMP_MIN:  # type: ignore[attr-defined]
                return True
        elif _checkpoint_version(event) >= version + FORK_JUMP_MIN:
            return False
        self._require_log(event.log_id)  # type: ignore[attr-defined]
        return True

    def _require_log(self, log_id: str) -> None:
        if self._log_id not in (None, log_id):
            raise InvalidRequest(
                "the events belong to another log than this view",
                code=Code.LOG_MISMATCH,
                hint="the log was replaced, or this is another service: make a new view and subscribe from 0",
                log_id=log_id,
                view_log_id=self._log_id,
                view_version=self._version,
            )

    @contextlib.contextmanager
    def filling(self) -> Generator[Filling]:
        """Fill an empty view with a snapshot: ``add`` its rows by key, then ``finish`` with its position.

        Nothing of it shows before the end of the block. Without ``finish``, after an error and after a crash, the view
        is empty as before. Nothing may be applied meanwhile. Raises: InvalidRequest when the view is not empty.
        """
        with self._lock:
            self._check_open()
            if self._version or self._last_transaction:
                raise InvalidRequest("only an empty view takes a snapshot", view_version=self._version)
            filling = self._storage.fill()
        try:
            yield filling
        finally:
            filling.close()
        with self._lock:
            due = self._move(self._storage.position)
        for wake in due:
            wake()

    def _advance(self, txns: Sequence[tuple[int, Sequence[Operation]]], position: StatePosition) -> None:
        self._storage.make_room()
        with self._lock:
            self._check_open()
            self._storage.apply(txns, position)
            due = self._move(position)
        for wake in due:
            wake()

    def _move(self, position: StatePosition) -> list[Callable[[], None]]:
        """The view shows ``position``. Returns what to call without the lock."""
        self._version, self._last_transaction, self._log_id = position
        due: list[Callable[[], None]] = []
        while self._waiters and self._waiters[0][0] <= position[0]:
            due.append(heapq.heappop(self._waiters)[2])
        return due

    def get(self, key: bytes) -> Stored | None:
        """The key's value and the version that wrote it, or None."""
        with self._lock:
            self._check_open()
            return self._storage.get(key)

    def range(self, begin: bytes = b"", end: bytes | None = None, limit: int = 1000) -> list[Row]:
        """At most ``limit`` keys of ``[begin, end)`` in byte order with values and versions, all of one position."""
        return self.read_page(begin, end, limit, math.inf).rows

    def read_page(self, begin: bytes, end: bytes | None, limit: int, bytes_max: float = PAGE_BYTES) -> ViewPage:
        """As ``range``, with the version of which the rows are the exact state, and a bound of their bytes."""
        with self._lock:
            self._check_open()
            if end is not None and begin >= end:
                return ViewPage([], self._version, more=False)
            with contextlib.closing(self._storage.walk(begin, end)) as rows:
                return page_of(rows, self._version, limit, bytes_max)

    def call_when(self, version: int, wake: Callable[[], None]) -> None:
        """Call ``wake`` once everything up to ``version`` is applied: now, or from the applying thread."""
        with self._lock:
            self._check_open()
            if self._version < version:
                heapq.heappush(self._waiters, (version, next(self._numbers), wake))
                return
        wake()

    def wait_for(self, version: int, timeout_s: float | None = None) -> bool:
        """Block until everything up to ``version`` is applied; False when time is up first."""
        reached = threading.Event()
        self.call_when(version, reached.set)
        if reached.wait(timeout_s):
            return True
        self._forget(reached.set)
        return False

    async def reached(self, version: int) -> None:
        """Wait on an event loop until everything up to ``version`` is applied."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def complete() -> None:
            if not future.done():
                future.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(complete)

        self.call_when(version, wake)
        try:
            await future
        finally:
            if not future.done() or future.cancelled():
                self._forget(wake)

    def _forget(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._waiters = [waiter for waiter in self._waiters if waiter[2] != wake]
            heapq.heapify(self._waiters)

    def flush(self) -> None:
        """Return when everything applied so far survives a crash of this process."""
        self._storage.flush()

    def close(self) -> None:
        """Flush and close the storage."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._storage.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this view is closed")


def _checkpoint_version(event: object) -> int:
    version = getattr(event, "committed_version", None)
    if not isinstance(version, int):
        raise InvalidRequest("a view takes durable transactions and checkpoints", event=type(event).__name__)
    return version
