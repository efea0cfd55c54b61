"""The view that a leader keeps of its own log, for ``/v1/keys`` and ``/v1/range``.

Owns: where the view is kept, how long a reader waits for it, and what a reader is told that waits in vain. Does not
own: keeping it (``view_child`` in a process of its own, ``view_in_process`` for ``memory:``), the routes
(``routes_view``).

Where: a ``file:`` log keeps it in its own directory (``view/LOG_ID.sqlite``), so a restart goes on where it was; a
``memory:`` log in memory; other logs in a temporary directory, rebuilt by every leader.

Failure model: a convenience, on which nothing of the log depends. It shows durable transactions only. Over a damaged
log it stops before the damage; commits go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import Generator
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from holdfast.commit.leadership.log_remains import view_directory
from holdfast.commit.service import CommitService
from holdfast.errors import Closed, Code, InvalidRequest, Unavailable
from holdfast.server.view.child import ViewChild
from holdfast.server.view.in_process import Subscribe, ViewInProcess
from holdfast.server.view.messages import ViewStart
from holdfast.view.storage import Row, Stored

__all__ = ["EmbeddedView", "ViewReads"]

CATCH_UP_SECONDS_MAX: Final = 5.0


class ViewReads(Protocol):
    """A view that has come far enough."""

    async def get(self, key: bytes) -> Stored | None:
        """The key's value and the version that wrote it, or None."""
        ...

    async def read_range(self, begin: bytes, end: bytes | None, limit: int) -> tuple[list[Row], int]:
        """At most ``limit`` keys of ``[begin, end)``, and the version at which they are the whole truth."""
        ...


class EmbeddedView:
    """The view of the current reign, when there is one."""

    def __init__(self, enabled: bool, start: ViewStart, subscribe: Subscribe) -> None:
        self.enabled = enabled
        self._start = start
        self._subscribe = subscribe
        self._kept: ViewChild | ViewInProcess | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    # Reading

    async def get(self, key: bytes, *, at: int) -> Stored | None:
        """The key's value and the version that wrote it, not older than ``at``.

        Raises: InvalidRequest (view_disabled), Unavailable (view_behind, after ``CATCH_UP_SECONDS_MAX``), CorruptData
        (the log is damaged at or before ``at``; it names the slot).
        """
        reads = await self._at(at)
        with self._told_as_behind(at):
            return await reads.get(key)

    async def read_range(self, begin: bytes, end: bytes | None, limit: int, *, at: int) -> tuple[list[Row], int]:
        """At most ``limit`` keys of ``[begin, end)``, and the version of which they are the whole truth.

        Raises: as ``get``.
        """
        reads = await self._at(at)
        with self._told_as_behind(at):
            return await reads.read_range(begin, end, limit)

    async def _at(self, version: int) -> ViewReads:
        if not self.enabled:
            raise InvalidRequest(
                "this service keeps no view",
                code=Code.VIEW_DISABLED,
                hint="set view.enabled, or subscribe and keep one",
            )
        kept = self._kept
        if kept is not None:
            with contextlib.suppress(TimeoutError, Closed):
                async with asyncio.timeout(CATCH_UP_SECONDS_MAX):
                    # Just after the start the view may still be opening.
                    return await kept.at(version)
        raise self._behind(version)

    @contextlib.contextmanager
    def _told_as_behind(self, asked: int) -> Generator[None]:
        try:
            yield
        except (Closed, sqlite3.Error) as error:
            raise self._behind(asked) from error

    def _behind(self, asked: int) -> Unavailable:
        return Unavailable(
            "the view has not come this far yet",
            code=Code.VIEW_BEHIND,
            retry_after_ms=1000,
            view_version=self.version,
            asked=asked,
        )

    @property
    def version(self) -> int:
        """Everything at or below is shown; 0 without a view."""
        return 0 if self._kept is None else self._kept.version

    # Following

    def follow(self, service: CommitService) -> None:
        """Keep the view up with this reign."""
        if not self.enabled:
            return
        if urlsplit(self._start.log_url).scheme == "memory":
            self._kept = ViewInProcess(service, self._subscribe)
            return
        kept = view_directory(self._start.log_url)
        if kept is not None:
            directory = str(kept)
        else:
            self._temporary = tempfile.TemporaryDirectory(prefix="holdfast-view-")
            directory = self._temporary.name
        start = msgspec.structs.replace(self._start, log_id=service.log_id, directory=directory)
        self._kept = ViewChild(start, service)

    async def stop(self) -> None:
        """Stop following, and let go of everything."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.close()
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            await asyncio.to_thread(temporary.cleanup)
