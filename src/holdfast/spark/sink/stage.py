"""Where a write keeps its rows until all of them are fixed: next to the log, through the service, or in a store that
``stagingLocation`` names.

An object never changes: of two with one name the first stays. Names: ``manifest``, and one for each part of each try of
a task. After a crash every object whose ``put`` returned is there.

The manifest says which staged objects are the rows of a write, in which order. The driver creates it when every task
has staged. The first manifest of a write stays, also of two drivers. Only what it names is sent: a run that finds one
does not look at its own rows. So it does not matter in which order rows come when they are computed again, nor how many
tries a task had.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from io import BytesIO
from typing import Final, Literal, Self

import msgspec
import pyarrow as pa

from holdfast.client.protocol.effects import Request, Response
from holdfast.client.protocol.messages import decode
from holdfast.client.protocol.stores.administration import ask
from holdfast.client.transport.clock import now_ms
from holdfast.errors import Code, Conflict, CorruptData, InternalError, NotFound
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import Listed, ObjectStore
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.service_client import ServiceClient
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.sink.identity import token_of
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
        return self._thread.run(lambda store: create_exactly(store, key, data))

    def get(self, write: str, name: str) -> bytes | None:
        """See ``Stage``."""
        key = f"{self._folder}/{write}/{name}"
        try:
            return self._thread.run(lambda store: store.read(key))
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
            self._thread.run(partial(_delete, keys))

    def _page(self, folder: str, after: str) -> list[Listed]:
        return self._thread.run(lambda store: store.list(folder, after=after, limit=PAGE))


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


MANIFEST: Final = "manifest"


class StagedPart(msgspec.Struct, frozen=True, array_like=True):
    """One object: an Arrow IPC stream with ``rows`` rows. Shape: ``hash`` is the BLAKE2b-128 of its bytes."""

    name: str
    rows: int
    hash: str


class StagedPartition(msgspec.Struct, frozen=True):
    """The rows of one partition, as one try of its task staged them. The numbers are those of ``SentPartition``."""

    partition: int
    parts: tuple[StagedPart, ...] = ()
    transactions: int = 0
    total: int = 0

    @property
    def digest(self) -> str:
        """What names these rows and their order: the BLAKE2b-128 of the parts' hashes."""
        return hash_of_part("".join(part.hash for part in self.parts).encode())


class WriteManifest(msgspec.Struct, frozen=True):
    """What a write is. Shape: ``partitions`` ascending, those with rows."""

    partitions: tuple[StagedPartition, ...]
    format: Literal[1] = 1


def hash_of_part(data: bytes) -> str:
    """The ``hash`` of a part."""
    return blake2b(data, digest_size=16).hexdigest()


def fix_manifest(stage: Stage, write: str, staged: Sequence[StagedPartition]) -> WriteManifest:
    """The manifest of a write: of these partitions, unless there is one already. After a crash it is there."""
    wanted = sorted((each for each in staged if each.parts), key=lambda each: each.partition)
    manifest = WriteManifest(tuple(wanted))
    if stage.put(write, MANIFEST, msgspec.json.encode(manifest)):
        return manifest
    first = find_manifest(stage, write)
    if first is None:
        raise stage_lost(write, MANIFEST)
    return first


def find_manifest(stage: Stage, write: str) -> WriteManifest | None:
    """The manifest of a write, None where its rows are not fixed. Raises: CorruptData."""
    data = stage.get(write, MANIFEST)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=WriteManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData("a manifest cannot be read", code=Code.CORRUPT_LOG, write=write, cause=error) from error


def rows_of(stage: Stage, write: str, partition: StagedPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition in their order. Memory: one part. Raises: NotFound (``stage_lost``), CorruptData."""
    for part in partition.parts:
        data = stage.get(write, part.name)
        if data is None:
            raise stage_lost(write, part.name)
        if hash_of_part(data) != part.hash:
            raise CorruptData("a staged object was changed", code=Code.CORRUPT_LOG, write=write, name=part.name)
        yield from pa.ipc.open_stream(data)


def stage_lost(write: str, name: str) -> NotFound:
    """The error where a write has sent rows, and what it still has to send is gone."""
    return NotFound(
        "the staged rows of this write are gone, and some of them may be committed",
        code=Code.STAGE_LOST,
        hint="give it up: `holdfast spark give-up` lists what is committed; then write the rest under another token",
        write=write,
        name=name,
    )


PART_BYTES: Final = 4 << 20
"""A part closes here, so that neither a task nor the sender holds more. One row may be larger."""


class TryParts:
    """The parts of one try, each kept when it is full. ``name`` is the try's own."""

    def __init__(self, stage: Stage, write: str, name: str) -> None:
        self._stage = stage
        self._write = write
        self._name = name
        self._parts: list[Future[StagedPart]] = []
        self._keeper = ThreadPoolExecutor(1, "holdfast-staging")
        self._sink = BytesIO()
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.shutdown(cancel_futures=True)

    def kept(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows, each batch after it was added to a part. Raises: what an earlier part was refused with."""
        for batch in _pieces(batches):
            if self._writer is None:
                self._sink, self._rows = BytesIO(), 0
                self._writer = pa.ipc.new_stream(self._sink, batch.schema)
            self._writer.write_batch(batch)
            self._rows += batch.num_rows
            if self._sink.tell() >= PART_BYTES:
                self._close()
            yield batch

    def whole(self) -> tuple[StagedPart, ...]:
        """All parts, when each is durable. Raises: what one was refused with."""
        if self._writer is not None:
            self._close()
        return tuple(part.result() for part in self._parts)

    def _close(self) -> None:
        assert self._writer is not None, "there is an open part"
        self._writer.close()
        self._writer = None
        if self._parts:
            self._parts[-1].result()  # one waits at most, so that memory is bounded
        name = f"{self._name}-{len(self._parts):05d}"
        self._parts.append(self._keeper.submit(self._keep, name, self._sink.getvalue(), self._rows))

    def _keep(self, name: str, data: bytes, rows: int) -> StagedPart:
        if not self._stage.put(self._write, name, data):
            raise InternalError("a name drawn at random is taken", name=name)
        return StagedPart(name, rows, hash_of_part(data))


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most about a quarter of a part."""
    for batch in batches:
        if not batch.num_rows:
            continue
        count = max(1, batch.num_rows * PART_BYTES // (4 * max(batch.nbytes, 1)))
        for first in range(0, batch.num_rows, count):
            yield batch.slice(first, count)
