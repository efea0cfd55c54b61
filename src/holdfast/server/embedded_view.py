"""The view that a leader keeps of its own log, for ``/v1/keys`` and ``/v1/range``.

Owns: where the view is kept, feeding it from this process's change stream, and starting over when it does not fit the
log. Does not own: the view (``holdfast.view``), the routes (``routes_view``).

Where: a ``file:`` log keeps it in its own directory (``view/LOG_ID.sqlite``), so a restart goes on where it was; a
``memory:`` log in memory; other logs in a temporary directory, rebuilt by every leader.

Failure model: a convenience, on which nothing of the log depends. It follows durable events only. One process at a time
writes the file (a lock on the directory): a deposed leader that has not noticed yet could otherwise write older values
over newer ones; whoever does not get the lock keeps its view in memory. When the stream breaks off it is resumed after
the view's own position; a position that the log does not know, or a gap, makes it start over from the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import structlog

from holdfast.commit.feed import EventBatch
from holdfast.commit.service import CommitService
from holdfast.errors import Closed, Code, CorruptData, Fenced, HoldfastError, InvalidRequest, NotFound, Unavailable
from holdfast.view import View
from holdfast.view.sqlite import SqliteStorage

__all__ = ["EmbeddedView"]

log = structlog.get_logger("holdfast.server.view")

ROOM_EVERY_BYTES: Final = 8 << 20
RETRY_SECONDS: Final = 1.0
CATCH_UP_SECONDS_MAX: Final = 5.0

Subscribe = Callable[[int, bool], AsyncIterator[EventBatch]]


class EmbeddedView:
    """The view of the current reign, when there is one."""

    def __init__(self, enabled: bool, log_url: str, subscribe: Subscribe) -> None:
        self.enabled = enabled
        self._log_url = log_url
        self._subscribe = subscribe
        self._view: View | None = None
        self._opened = asyncio.Event()
        self._storage: SqliteStorage | None = None
        self._task: asyncio.Task[None] | None = None
        self._lock: int | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    # Reading

    async def at(self, version: int) -> View:
        """The view, once it shows everything up to ``version``.

        Raises: InvalidRequest (view_disabled), Unavailable (view_behind, after ``CATCH_UP_SECONDS_MAX``).
        """
        if not self.enabled:
            raise InvalidRequest(
                "this service keeps no view",
                code=Code.VIEW_DISABLED,
                hint="set view.enabled, or subscribe and keep one",
            )
        view = self._view
        if view is not None and view.version >= version:
            return view
        with contextlib.suppress(TimeoutError, Closed):
            async with asyncio.timeout(CATCH_UP_SECONDS_MAX):
                # Just after the start the view may still be opening.
                await self._opened.wait()
                view = self._view
                assert view is not None, "opened means that there is a view"
                await view.reached(version)
                return view
        raise Unavailable(
            "the view has not come this far yet",
            code=Code.VIEW_BEHIND,
            retry_after_ms=1000,
            view_version=self.version,
            asked=version,
        )

    @property
    def version(self) -> int:
        """Everything at or below is shown; 0 without a view."""
        return 0 if self._view is None else self._view.version

    # Following

    def follow(self, service: CommitService) -> None:
        """Keep the view up with this reign."""
        if self.enabled:
            self._task = asyncio.get_running_loop().create_task(self._follow(service))

    async def stop(self) -> None:
        """Stop following; what is applied is flushed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        await self._close_view()

    async def _follow(self, service: CommitService) -> None:
        while not service.ended.done():
            try:
                if self._view is None:
                    await asyncio.to_thread(self._open, service.log_id)
                    self._opened.set()
                await self._apply_stream()
            except (CorruptData, InvalidRequest, NotFound) as error:
                log.warning("view_starts_over", error=str(error))
                await self._start_over(service.log_id)
            except (Fenced, Closed):
                return
            except (HoldfastError, OSError, sqlite3.Error) as error:
                if error_code(error) is Code.ROLLED_BACK:
                    log.warning("view_starts_over", error=str(error))
                    await self._start_over(service.log_id)
                else:
                    log.warning("view_interrupted", error=str(error))
                    await self._close_view()
            await asyncio.sleep(RETRY_SECONDS)

    async def _apply_stream(self) -> None:
        view, storage = self._view, self._storage
        assert view is not None, "opened before it is fed"
        since_room = 0
        async for batch in self._subscribe(view.version, True):
            # On the loop on purpose: a thread would hold the interpreter while commits wait for it.
            view.apply(batch.events)
            since_room += batch.size
            if since_room >= ROOM_EVERY_BYTES:
                since_room = 0
                if storage is not None:
                    # Applying waits when the file is far behind; wait beside the loop, before it could come to that.
                    await asyncio.to_thread(storage.make_room)
                await asyncio.sleep(0)

    # Where it is kept

    def _open(self, log_id: str) -> None:
        directory = self._directory()
        if directory is None:
            self._view = View.memory()
            return
        directory.mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                log.info("view_in_memory", reason="another process keeps the view of this directory")
                self._view = View.memory()
                return
            self._lock = lock
        self._storage = SqliteStorage(directory / f"{log_id}.sqlite")
        self._view = View(self._storage)

    def _directory(self) -> Path | None:
        parts = urlsplit(self._log_url)
        if parts.scheme == "memory":
            return None
        if parts.scheme == "file":
            return Path(unquote(parts.path)) / "view"
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="holdfast-view-")
        return Path(self._temporary.name)

    async def _start_over(self, log_id: str) -> None:
        try:
            await self._close_view()
        finally:
            directory = self._directory()
            if directory is not None and self._lock is not None:
                for suffix in ("", "-wal", "-shm"):
                    (directory / f"{log_id}.sqlite{suffix}").unlink(missing_ok=True)

    async def _close_view(self) -> None:
        self._opened.clear()
        view, self._view, self._storage = self._view, None, None
        if view is not None:
            try:
                await asyncio.to_thread(view.close)
            except HoldfastError as error:
                log.warning("view_not_flushed", error=str(error))

    async def close(self) -> None:
        """Let go of everything."""
        await self.stop()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._temporary is not None:
            self._temporary.cleanup()


def error_code(error: BaseException) -> Code | None:
    """The code of one of our errors."""
    return error.code if isinstance(error, HoldfastError) else None
