"""The first starts of everything that keeps data in directories, for ``test_first_starts``.

A program starts in a directory below ``base`` that may be absent, has something confirmed, and says later whether that
is there. ``life`` is 1 for a start that is killed, and 2 or more for those after it.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast
from unittest.mock import patch

from tests.command import command
from tests.crash.queue_damage import fast_folder
from tests.definitions import define

from holdfast.commit.format.batch import Header, StoresMode
from holdfast.commit.leadership.log_remains import bind_stores, bound_log
from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.stages.events import WhenDurable
from holdfast.errors import Code, NotFound, Unavailable
from holdfast.files.durable_directory import make_durable_directory
from holdfast.objects.directory.files import PosixFiles
from holdfast.objects.directory.objects import DirectoryObjects
from holdfast.objects.directory.store import DirectoryStore
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import CREATED, CreateAnswer, Listed, Refused, WithoutLeftovers
from holdfast.queue import FileQueue, Queue
from holdfast.server.moving import _Mover
from holdfast.server.stores.in_log import LocalCopy, open_in_log
from holdfast.settings import load_configuration
from holdfast.stores.checkpoint_objects import fetch_newest, make_checkpoint
from holdfast.stores.clock import StoreClock, read_anchor
from holdfast.stores.followed import FollowedStores
from holdfast.stores.repair.backup import restore, verify
from holdfast.stores.repair.damage import accept_recorded
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import Publish
from holdfast.wire.parts import Message

PAGE_BYTES: Final = 65_536
LOG_ID: Final = "ab" * 16
DEFINITION: Final = json.dumps({"stores": {"s": {"durables": {"all": {"type": "shared"}}}}}).encode()
OWN: Final = "own"


class Program(Protocol):
    """See the module."""

    def start(self, base: Path, levels: int, life: int) -> AbstractContextManager[None]:
        """Start ``levels`` below ``base``; in the block something is confirmed."""
        ...

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        """Whether what that life confirmed is there, in what a power cut has left. May raise as a start does."""
        ...


def place(base: Path, levels: int) -> Path:
    """The directory of a program: ``levels`` missing ones below ``base``."""
    return base.joinpath(*(f"level{number}" for number in range(1, levels)), OWN)


def text(life: int) -> bytes:
    return f"confirmed in life {life}".encode()


@contextmanager
def loop_of(opened: Callable[[], Awaitable[Any]], close: Callable[[Any], Awaitable[None]]) -> Generator[Any]:
    """A block with what a coroutine opened, and the function that runs coroutines."""
    with asyncio.Runner() as runner:

        async def begin() -> Any:
            return await opened()

        async def end(one: Any) -> None:
            await close(one)

        one = runner.run(begin())
        try:
            yield one, runner.run
        finally:
            runner.run(end(one))


# ---- the queue ------------------------------------------------------------------------------------------------------


class InQueue:
    """A message of a queue."""

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        with Queue(place(base, levels) / "q", page_size=4096, sync="always", background=False) as queue:
            queue.append(text(life))
            yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        with Queue(place(base, levels) / "q", page_size=4096, background=False) as queue:
            return text(life) in [message.payload for message in queue.read()]


class InFileQueue:
    """An item of a ``FileQueue``."""

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        with FileQueue(place(base, levels) / "q", sync="always") as queue:
            queue.put(text(life))
            yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        with FileQueue(place(base, levels) / "q") as queue:
            return text(life) in [queue.get(timeout=0) for _ in range(queue.qsize())]


class InConsumer:
    """A durable commit of a consumer."""

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        with Queue(place(base, levels) / "q", page_size=4096, sync="always", background=False) as queue:
            queue.append(text(life))
            with queue.consumer("c") as consumer:
                message = next(message for message in consumer if message.payload == text(life))
                consumer.commit(message)
                yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        with (
            Queue(place(base, levels) / "q", page_size=4096, background=False) as queue,
            queue.consumer("c") as consumer,
        ):
            return queue.last_seq > 0 and consumer.lag() == 0


# ---- stores in files ------------------------------------------------------------------------------------------------


async def _open(directory: Path) -> StoreService:
    return await StoreService.open(str(directory), page_bytes=PAGE_BYTES, memory_bytes=8 << 20)


async def _publish(service: StoreService, body: bytes) -> None:
    if not service.state.revision:
        await service.submit(define(DEFINITION))
    await service.submit(Publish(0, "s", "", [Message(body)]))


def _bodies(service: StoreService) -> list[bytes]:
    if "s" not in service.state.stores:
        return []
    last = service.state.stores["s"].counts.next_seq - 1
    return [one.body for one in service.messages("s", [(1, last, 1)])]


def bodies_in(directory: Path) -> list[bytes]:
    """The messages of stores in files."""
    with loop_of(partial(_open, directory), StoreService.close) as (service, _):
        return _bodies(service)


class InStores:
    """A message of stores in files; which log they belong to, and what the time was."""

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        directory = place(base, levels)
        with loop_of(partial(_open, directory), StoreService.close) as (service, run):
            bind_stores(str(directory), LOG_ID)
            run(_publish(service, text(life)))
            yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        directory = place(base, levels)
        kept = bound_log(str(directory)) == LOG_ID and read_anchor(str(directory)) is not None
        return kept and text(life) in bodies_in(directory)


class InBinding:
    """Which log stores belong to, before their first message."""

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        directory = place(base, levels)
        with loop_of(partial(_open, directory), StoreService.close):
            bind_stores(str(directory), f"{life:032x}")
            yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        return bound_log(str(place(base, levels))) == f"{life:032x}"


class InBackup:
    """A copy of stores next to them."""

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        directory = place(base, levels)
        with loop_of(partial(_open, directory), StoreService.close) as (service, run):
            run(_publish(service, text(life)))
            run(service.copy_files(f"{directory}-backups/{life}"))
            yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        return verify(f"{place(base, levels)}-backups/{life}").messages >= 1


@cache
def made_backup() -> str:
    """A copy of stores, made once."""
    made = TemporaryDirectory(dir=fast_folder())
    _kept.append(made)
    with InBackup().start(Path(made.name), 1, 1):
        pass
    return f"{made.name}/{OWN}-backups/1"


_kept: Final[list[TemporaryDirectory[str]]] = []


class InRestored:
    """A copy that was put back. The unfinished one of a life before is removed by the operator."""

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        shutil.rmtree(place(base, levels), ignore_errors=True)
        restore(made_backup(), str(place(base, levels)))
        yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        return bodies_in(place(base, levels)) == [text(1)]


class InAccepted:
    """The copy that a repair makes before it changes stores."""

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        with TemporaryDirectory(dir=fast_folder()) as made:
            restore(made_backup(), f"{made}/stores")
            accept_recorded(f"{made}/stores", f"{place(base, levels)}-{life}")
            yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        return bodies_in(Path(f"{place(base, levels)}-{life}")) == [text(1)]


class SetAside:
    """Files of stores that a move into the log has set aside. After a kill in the middle an operator decides."""

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        directory = place(base, levels)
        with loop_of(partial(_open, directory), StoreService.close) as (service, run):
            bind_stores(str(directory), LOG_ID)
            run(_publish(service, text(life)))
        head = cast(Header, SimpleNamespace(log_id=bytes.fromhex(LOG_ID), last_version=life))
        settings = load_configuration(flags={"log.url": "memory:"}).settings
        assert _Mover(made_checkpoint(), settings, str(directory), head).set_files_aside() is not None
        yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        return bodies_in(place(base, levels) / f"before-{life}") == [text(life)]


# ---- the log --------------------------------------------------------------------------------------------------------


class InProcess(WithoutLeftovers):
    """A directory store whose objects are made by this process, as its workers make them."""

    def __init__(self, root: Path) -> None:
        self.url = root.as_uri()
        self._objects = DirectoryObjects(PosixFiles(), str(root), os.urandom(4).hex())

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        return CREATED if self._objects.create(key, data) else Refused()

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        data = self._objects.read(key, start, length)
        if data is None:
            raise NotFound("there is no such object", key=key)
        return data

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        return [Listed(key, size) for key, size in self._objects.page(prefix, after, limit)]

    async def delete(self, *keys: str) -> None:
        self._objects.delete(*keys)

    async def close(self) -> None:
        own = self._objects._writing
        for handle in [*self._objects._directories.values(), *([] if own is None else [own])]:
            os.close(handle)


_open_directory: Final = DirectoryStore.open


def open_in_process(root: Path, *, create_missing: bool = False) -> InProcess:
    """``DirectoryStore.open``, and then no workers."""
    opened = _open_directory(root, create_missing=create_missing)
    while opened._handles:
        os.close(opened._handles.pop())
    return InProcess(root)


async def open_log(root: Path) -> InProcess:
    """As a service opens its log."""
    return open_in_process(root, create_missing=True)


@contextmanager
def without_workers() -> Generator[None]:
    """Commands make their objects in this process."""
    with patch("holdfast.objects.directory.store.DirectoryStore.open", open_in_process):
        yield


class InLog:
    """An object of a log: a batch, a part of a snapshot or of a checkpoint."""

    def __init__(self, key: str) -> None:
        self._key = key

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        with loop_of(partial(open_log, place(base, levels)), InProcess.close) as (store, run):
            assert run(store.create(self._key.format(life), text(life))) == CREATED
            yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        with loop_of(partial(open_log, place(base, levels)), InProcess.close) as (store, run):
            found: bool = run(store.read(self._key.format(life))) == text(life)
            return found


@cache
def made_log() -> str:
    """The URL of a log with some objects, made once."""
    made = TemporaryDirectory(dir=fast_folder())
    _kept.append(made)
    with InLogsStores().start(Path(made.name), 1, 1):
        pass
    return place(Path(made.name), 1).as_uri()


class ByCommand:
    """A log that a command has made. The command is run again after a kill, with the same words."""

    def __init__(self, *words: str, source: Callable[[], str] | None = None) -> None:
        self._words = words
        self._source = source

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        source = [] if self._source is None else [self._source()]
        self._run(*self._words, *source, place(base, levels).as_uri())
        yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        self._run("log", "verify", place(base, levels).as_uri())
        return True

    def _run(self, *words: str) -> None:
        with without_workers():
            done = command(*words)
        if done.returncode:
            raise Unavailable("the command failed", code=Code.STORE_UNAVAILABLE, cause=done.stderr + done.stdout)


async def _lead(base: Path, levels: int) -> tuple[StoreService, CommitService]:
    store = await open_log(place(base, levels))
    options = ServiceOptions(allow_new=True, take_over=True, probe=False, stores_mode=StoresMode.LOG)
    leader = await CommitService.lead(store, options)
    flags = {"log.url": "memory:", "stores.directory": f"{place(base, levels)}-copy", "stores.page_size_bytes": "1 MiB"}
    settings = load_configuration(flags=flags).settings.stores
    return await open_in_log(LocalCopy(store, settings, leader.log_id, "address"), leader, settings), leader


async def _resign(opened: tuple[StoreService, CommitService]) -> None:
    service, leader = opened
    await service.close()
    await leader.step_down()
    await leader.close()
    await leader.store.close()


class InLogsStores:
    """A message of stores that live in the log, and the copy of these stores."""

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        with loop_of(partial(_lead, base, levels), _resign) as ((service, _), run):
            run(_publish(service, text(life)))
            yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        with loop_of(partial(_lead, base, levels), _resign) as ((service, _), _run):
            return text(life) in _bodies(service)


class _Journal:
    """Entries are durable in the next turn of the loop."""

    def record(self, records: list[tuple[str, bytes]], when_durable: WhenDurable) -> None:
        del records
        asyncio.get_running_loop().call_soon(when_durable, 1_001)


@cache
def made_checkpoint() -> MemoryStore:
    """The objects of a log with a checkpoint of its stores, made once."""
    store = MemoryStore(MemoryObjects())

    async def make() -> None:
        with TemporaryDirectory(dir=fast_folder()) as made:
            stores = FollowedStores.open(f"{made}/stores", page_bytes=PAGE_BYTES, memory_bytes=8 << 20)
            service = stores.lead(_Journal(), StoreClock())
            await _publish(service, text(1))
            await make_checkpoint(service, store, LOG_ID)
            await service.close()

    asyncio.run(make())
    return store


class InFetched:
    """The copy of stores that was made of a checkpoint."""

    @contextmanager
    def start(self, base: Path, levels: int, life: int) -> Generator[None]:
        directory = place(base, levels)
        if directory.is_dir():
            make_durable_directory(str(directory))  # as the opening does that follows
        else:
            assert asyncio.run(fetch_newest(made_checkpoint(), Lineage(LOG_ID), 1 << 40, str(directory))) is not None
        yield

    def is_there(self, base: Path, levels: int, life: int) -> bool:
        if not place(base, levels).is_dir():
            return False
        storage = FollowedStores.open(str(place(base, levels)), page_bytes=PAGE_BYTES)
        try:
            storage.index.check()
            return [kept.size for kept in storage.messages.read("s", 1, 1)] == [len(text(1))]
        finally:
            storage.close()


def programs() -> Iterator[tuple[str, Program]]:
    """All of them, by name."""
    yield "queue", InQueue()
    yield "file-queue", InFileQueue()
    yield "consumer", InConsumer()
    yield "stores", InStores()
    yield "binding", InBinding()
    yield "backup", InBackup()
    yield "stores-restore", InRestored()
    yield "copy-before-a-repair", InAccepted()
    yield "log", InLog("batches/{:020d}")
    yield "snapshot", InLog("snapshots/{:020d}/parts/1")
    yield "stores-checkpoint", InLog("stores/checkpoints/{:020d}.json")
    yield "log-init", ByCommand("log", "init", "--no-race")
    yield "log-restore", ByCommand("log", "restore", source=made_log)
    yield "log-mirror", ByCommand("log", "mirror", source=made_log)
    yield "fetched-checkpoint", InFetched()
    yield "stores-in-the-log", InLogsStores()
