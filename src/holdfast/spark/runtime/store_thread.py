"""An object store on an event loop of its own, for code that may not await.

Owns: the loop, its thread, and opening and closing the store there. Does not own: which requests are made.

Failure model: what opening raises is raised by ``with``. Leaving the block abandons what is under way, which is
harmless for reads; an unused thread ends with its process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from holdfast.objects.budget import BudgetedStore
from holdfast.objects.open import open_durable_reader, open_store
from holdfast.objects.port import ObjectReader, ObjectStore
from holdfast.spark.runtime.directory_here import DirectoryHere

__all__ = ["PlannedObjectsThread", "StoreThread", "is_directory"]

T = TypeVar("T")
S = TypeVar("S", bound=ObjectReader)

CONNECTIONS_MAX: Final = 64


def is_directory(url: str) -> bool:
    """Whether the objects are files of this machine.

    >>> is_directory("file:///log"), is_directory("s3://bucket/log")
    (True, False)
    """
    return url.partition(":")[0].lower() == "file"


class _LoopThread(Generic[S]):
    """A loop in a daemon thread with something open on it."""

    def __init__(self, opener: Callable[[], S]) -> None:
        self._opener = opener
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-store", daemon=True)
        self._store: S | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._store = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        finally:
            self._stop()

    async def _open(self) -> S:
        return self._opener()

    async def _close(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert self._store is not None, "only an opened store is closed"
        await self._store.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, work: Callable[[S], Coroutine[object, object, T]]) -> Future[T]:
        """Begin ``work`` on the store and return at once."""
        assert self._store is not None, "the store is open inside the with block only"
        return asyncio.run_coroutine_threadsafe(work(self._store), self._loop)


class StoreThread(_LoopThread[ObjectStore]):
    """The whole store at ``url``: listing, reading, creating. Requests are within a budget and repeated as it says."""

    def __init__(self, url: str) -> None:
        super().__init__(lambda: DirectoryHere(url) if is_directory(url) else _budgeted(url))


class PlannedObjectsThread(_LoopThread[ObjectReader]):
    """Reads only what a plan has seen, and so what is durable.

    A directory is then read by name, without the syncs that a name nobody vouched for needs.
    """

    def __init__(self, url: str) -> None:
        super().__init__(lambda: open_durable_reader(url) if is_directory(url) else _budgeted(url))


def _budgeted(url: str) -> BudgetedStore:
    return BudgetedStore(
        open_store(url, connections_max=CONNECTIONS_MAX), connections_max=CONNECTIONS_MAX, creates_max=1
    )
