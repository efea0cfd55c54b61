"""Where a write keeps its rows until all of them are fixed: next to the log, through the service, or in a store that
``stagingLocation`` names.

An object never changes: of two with one name the first stays. Names: ``manifest``, and one for each part of each try of
a task (``staging``). After a crash every object whose ``put`` returned is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from holdfast.client.protocol.effects import Request, Response
from holdfast.client.protocol.messages import decode
from holdfast.client.protocol.stores.administration import ask
from holdfast.client.transport.clock import now_ms
from holdfast.errors import Conflict, NotFound
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import Listed, ObjectStore
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.service_client import ServiceClient
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.sink.micro_batch import token_of
from holdfast.wire.log import StagedObjects

FOLDER: Final = "staged"
PAGE: Final = 1_000
KEPT_MS: Final = 24 * 3_600_000
"""What no manifest names is kept this long: a slow task may still be at work on it."""


class Stage(ABC):
    """The objects of one application. ``write`` is a write's token. Raises: what the service or the store refuses."""

    @abstractmethod
    def put(self, write: str, name: str, data: bytes) -> bool:
        """Keep an object, durably. False: another object has this name, and stays."""

    @abstractmethod
    def get(self, write: str, name: str) -> bytes | None:
        """All of an object, None where there is none."""

    @abstractmethod
    def listed(self) -> Iterator[tuple[str, int | None]]:
        """Of each object: its write, and when it was created by the store's clock, None where that has none."""

    @abstractmethod
    def remove(self, write: str) -> None:
        """Remove the objects of a write."""

    def remove_abandoned(self, write: str) -> None:
        """Remove this write's objects, and those of others that are older than ``KEPT_MS``.

        Call it when the record says done: no intent names any write of the application then. Cost: a request for each
        1,000 objects, and one or more for each write.
        """
        newest: dict[str, int | None] = {}
        now = 0
        for other, created_ms in self.listed():
            known = newest.get(other, 0)
            newest[other] = None if known is None or created_ms is None else max(known, created_ms)
            now = max(now, created_ms or 0)
        self.remove(write)
        for other, created_ms in newest.items():
            if created_ms is not None and other != write and created_ms < now - KEPT_MS:
                self.remove(other)


class ServiceStage(Stage):
    """Through the service. A log that was begun again at the same place finds nothing of the one before."""

    def __init__(self, client: ServiceClient, log_id: str, application: str) -> None:
        self._client = client
        self._path = f"/v1/{FOLDER}/{application_folder(f'{log_id}/{application}')}"

    def put(self, write: str, name: str, data: bytes) -> bool:
        """See ``Stage``."""
        headers = (("Content-Type", "application/octet-stream"),)
        try:
            self._ask(Request("PUT", f"{self._path}/{write}/{name}", data, headers))
        except Conflict:
            return False
        return True

    def get(self, write: str, name: str) -> bytes | None:
        """See ``Stage``."""
        try:
            return self._ask(Request("GET", f"{self._path}/{write}/{name}")).body
        except NotFound:
            return None

    def listed(self) -> Iterator[tuple[str, int | None]]:
        """See ``Stage``."""
        after = ""
        while True:
            target = f"{self._path}?after={after}" if after else self._path
            page = decode(self._ask(Request("GET", target)), StagedObjects)
            for each in page.objects:
                yield each.name.partition("/")[0], each.modified_ms
            if page.next_after is None:
                return
            after = page.next_after

    def remove(self, write: str) -> None:
        """See ``Stage``."""
        self._ask(Request("DELETE", f"{self._path}/{write}"))

    def _ask(self, request: Request) -> Response:
        session = self._client.session
        return self._client.run(ask(session, request, now_ms(), session.options.give_up_after_ms))


class ObjectStage(Stage):
    """In an object store that every task and the driver reach. Logs may share it: each has a folder."""

    def __init__(self, thread: StoreThread, log_id: str, application: str) -> None:
        self._thread = thread
        self._folder = f"{FOLDER}/{log_id}/{application_folder(application)}"

    def put(self, write: str, name: str, data: bytes) -> bool:
        """See ``Stage``."""
        key = f"{self._folder}/{write}/{name}"
        return self._thread.start(lambda store: create_exactly(store, key, data)).result()

    def get(self, write: str, name: str) -> bytes | None:
        """See ``Stage``."""
        key = f"{self._folder}/{write}/{name}"
        try:
            return self._thread.start(lambda store: store.read(key)).result()
        except NotFound:
            return None

    def listed(self) -> Iterator[tuple[str, int | None]]:
        """See ``Stage``."""
        folder, after = self._folder + "/", ""
        while True:
            rows = self._page(folder, after)
            for row in rows:
                yield row.key.removeprefix(folder).partition("/")[0], row.modified_ms
            if len(rows) < PAGE:
                return
            after = rows[-1].key

    def remove(self, write: str) -> None:
        """See ``Stage``."""
        folder = f"{self._folder}/{write}/"
        while keys := [row.key for row in self._page(folder, "")]:
            self._thread.start(partial(_delete, keys)).result()

    def _page(self, folder: str, after: str) -> list[Listed]:
        return self._thread.start(lambda store: store.list(folder, after=after, limit=PAGE)).result()


async def _delete(keys: list[str], store: ObjectStore) -> None:
    await store.delete(*keys)


@contextmanager
def open_stage(options: WriteOptions, client: ServiceClient) -> Generator[Stage]:
    """The stage of a write into the log of this client. Raises: InvalidRequest, Unavailable."""
    log_id = client.session.log_id or client.version().log_id
    assert log_id is not None, "a log has an id"
    if options.staging_location is None:
        yield ServiceStage(client, log_id, options.application)
        return
    with StoreThread(options.staging_location) as thread:
        yield ObjectStage(thread, log_id, options.application)


def application_folder(application: str) -> str:
    """The folder of an application: digits, letters and hyphens, as every store and the service take it."""
    return token_of("staged", application)
