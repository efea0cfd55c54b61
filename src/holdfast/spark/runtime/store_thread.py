"""An object store on its own event loop and thread, for code that cannot await.

A directory is read in this process: the product's directory store starts two worker processes, 40 ms each. Leaving the
``with`` block abandons requests in flight; that is harmless for reads.
"""

from __future__ import annotations

import asyncio
import builtins
import gc
import secrets
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, Generic, Self, TypeVar

from holdfast.errors import Closed, Code, InvalidRequest, NotFound, Unavailable
from holdfast.files.file_urls import path_of
from holdfast.objects.budget import BudgetedStore
from holdfast.objects.directory.files import PosixFiles
from holdfast.objects.directory.objects import DirectoryObjects, UnfitPlace
from holdfast.objects.open import open_durable_reader, open_store
from holdfast.objects.port import (
    CREATED,
    CreateAnswer,
    Listed,
    ObjectReader,
    ObjectStore,
    Refused,
    Unknown,
    WithoutLeftovers,
    require_key,
)
from holdfast.objects.retrying import RetryingStore
from holdfast.spark.runtime.processes import program


class _DirectoryHere(WithoutLeftovers):
    """An ``ObjectStore`` on the directory that a ``file:`` URL names. Raises: NotFound when there is none."""

    def __init__(self, url: str) -> None:
        root = path_of(url)
        if not root.is_dir():
            raise NotFound(
                "the directory does not exist",
                code=Code.LOG_EMPTY,
                hint="mount it, or start a new log there with: holdfast log init",
                path=str(root),
            )
        self._url = root.as_uri()
        self._objects = DirectoryObjects(PosixFiles(), str(root), secrets.token_hex(8))

    @property
    def url(self) -> str:
        return self._url

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        try:
            created = self._objects.create(require_key(key), data)
        except UnfitPlace as error:
            raise InvalidRequest(str(error), code=Code.STORE_UNFIT, url=self._url) from error
        except OSError as error:
            return Unknown(str(error))
        self._objects.tidy()
        return CREATED if created else Refused()

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        with _unavailable(key):
            data = self._objects.read(require_key(key), start, length)
        if data is None:
            raise NotFound("there is no such object", key=key)
        return data

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        with _unavailable(prefix):
            return [Listed(key, size) for key, size in self._objects.page(prefix, after, limit)]

    async def delete(self, *keys: str) -> None:
        with _unavailable(keys[0]):
            self._objects.delete(*map(require_key, keys))

    async def close(self) -> None:
        self._objects.close()


@contextmanager
def _unavailable(key: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable("the directory cannot be read", key=key, cause=str(error)) from error


_DAEMON: Final = "pyspark.daemon"
_done = False


def set_imports_aside() -> None:
    """Exclude the imported modules from garbage collection in a worker that Spark keeps; call it after a first task.

    Only the first call does anything. Objects are still freed when nothing refers to them, but not in cycles.
    """
    global _done
    if _done:
        return
    _done = True
    if program() == _DAEMON:  # which forks workers, and keeps them for later tasks
        gc.collect()
        gc.freeze()


T = TypeVar("T")
S = TypeVar("S", bound=ObjectReader)

CONNECTIONS_MAX: Final = 64


def is_directory(url: str) -> bool:
    """Whether the objects are files of this machine.

    >>> is_directory("file:///log"), is_directory("s3://bucket/log")
    (True, False)
    """
    return url.partition(":")[0].lower() == "file"


class LoopThread(Generic[S]):
    """A loop in a daemon thread with the store that ``opener`` opens on it: at ``with``, or when it is first used."""

    def __init__(self, opener: Callable[[], S]) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._open: tuple[S, asyncio.AbstractEventLoop, threading.Thread] | None = None
        self._ended = False

    def __enter__(self) -> Self:
        with self._lock:
            self._opened()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store, and end what others have begun. Harmless when nothing is open."""
        with self._lock:
            self._ended = True  # what was begun before is a task when _end runs, which cancels it
            opened, self._open = self._open, None
        if opened is not None:
            store, loop, thread = opened
            try:
                asyncio.run_coroutine_threadsafe(_end(store), loop).result()
            finally:
                _stop(loop, thread)

    def start(self, work: Callable[[S], Coroutine[object, object, T]]) -> Future[T]:
        """Begin ``work`` on the store and return at once. Raises: Closed after ``close``."""
        with self._lock:
            if self._ended:
                raise Closed("the store of this job is closed")
            store, loop, _ = self._opened()
            return asyncio.run_coroutine_threadsafe(work(store), loop)

    def run(self, work: Callable[[S], Coroutine[object, object, T]]) -> T:
        """Do ``work`` on the store. Raises: as ``start``."""
        return self.start(work).result()

    def _opened(self) -> tuple[S, asyncio.AbstractEventLoop, threading.Thread]:
        if self._open is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="holdfast-store", daemon=True)
            thread.start()
            try:
                store = asyncio.run_coroutine_threadsafe(self._made(), loop).result()
            except BaseException:
                _stop(loop, thread)
                raise
            self._open = store, loop, thread
        return self._open

    async def _made(self) -> S:
        return self._opener()


async def _end(store: ObjectReader) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await store.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class StoreThread(LoopThread[ObjectStore]):
    """The whole store at ``url``: listing, reading, creating. Requests are within a budget and repeated as it says."""

    def __init__(self, url: str) -> None:
        super().__init__(lambda: _DirectoryHere(url) if is_directory(url) else _budgeted(url))
        self.url = url


class PlannedObjectsThread(LoopThread[ObjectReader]):
    """Reads only planned, so durable, objects: a directory is read by name, without syncs."""

    def __init__(self, url: str) -> None:
        super().__init__(lambda: open_durable_reader(url) if is_directory(url) else _budgeted(url))


def with_store(url: str, work: Callable[[ObjectStore], Coroutine[object, object, T]]) -> T:
    """Open the store at ``url``, run ``work`` on it, and close it."""
    with StoreThread(url) as thread:
        return thread.run(work)


def _budgeted(url: str) -> ObjectStore:
    opened = open_store(url, connections_max=CONNECTIONS_MAX, retry=None)
    budgeted = BudgetedStore(opened, connections_max=CONNECTIONS_MAX, creates_max=1)
    return RetryingStore(budgeted, metrics=budgeted.metrics)
