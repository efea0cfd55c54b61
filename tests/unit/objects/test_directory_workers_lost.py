"""What becomes of the directory store when its workers are lost, cannot be started, or have no directory to serve."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.objects.budget import TimeLimited
from holdfast.objects.directory import store as directory
from holdfast.objects.directory import worker
from holdfast.objects.directory.files import PosixFiles
from holdfast.objects.directory.objects import DirectoryObjects
from holdfast.objects.directory.store import DirectoryStore
from holdfast.objects.port import Created, Unknown

PATIENCE_SECONDS = 20
DIED = Unknown("a writer process died with a create in hand, so what is durable is unknown", final=True)


def no_room() -> OSError:
    return OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


class Played:
    """Workers that the test itself plays: it holds their ends of the sockets.

    ``starts_left`` is how many more of them the machine has room for.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sockets: list[socket.socket] = []
        self.starts_left = 100
        self.starts_refused = 0
        self.starts_go_on = threading.Event()
        self.starts_go_on.set()
        patch.setattr(directory._Lane, "_spawn", self._spawn)

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        if self.starts_left == 0:
            self.starts_refused += 1
            theirs.close()
            raise no_room()
        self.starts_go_on.wait(PATIENCE_SECONDS)
        self.starts_left -= 1
        self.sockets.append(theirs)
        return subprocess.Popen([sys.executable, "-S", "-c", ""])

    def close(self) -> None:
        for one in self.sockets:
            one.close()

    async def request(self, number: int = 0) -> str:
        """The key of the next request of a worker."""
        request = await asyncio.to_thread(worker._receive, self.sockets[number])
        assert request is not None
        return request[1]

    def answer(self, status: int, data: bytes = b"", number: int = 0) -> None:
        self.sockets[number].sendall(struct.pack("<IB", 1 + len(data), status) + data)

    def nothing_is_asked(self, number: int = 0) -> bool:
        try:
            self.sockets[number].recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return True
        return False


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    played = Played(monkeypatch)
    yield played
    played.close()


@asynccontextmanager
async def opened(root: Path, *, writers: int = 1) -> AsyncIterator[DirectoryStore]:
    store = DirectoryStore(root, writers=writers, readers=1)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield store
    finally:
        await store.close()


async def until(condition: Callable[[], object]) -> None:
    """Let the loop notice."""
    while not condition():  # noqa: ASYNC110 - the loop itself has to notice
        await asyncio.sleep(0)


async def a_create_is_answered(store: DirectoryStore, played: Played, number: int = 0) -> None:
    """By that worker, which is idle again afterwards."""
    creating = asyncio.ensure_future(store.create("batches/0", b""))
    await until(lambda: len(played.sockets) > number)
    assert await played.request(number) == "batches/0"
    played.answer(worker.DONE, number=number)
    assert await creating == Created()


async def two_creates_are_answered(store: DirectoryStore, played: Played, first: int, second: int) -> None:
    """Both are asked for at once. Where one worker has both, the second waits for it."""
    creating = [asyncio.ensure_future(store.create("batches/0", b""))]
    await until(lambda: len(played.sockets) > first)
    assert await played.request(first) == "batches/0"
    creating.append(asyncio.ensure_future(store.create("batches/1", b"")))
    if first == second:
        await until(lambda: store._writers._waiting)
        await no_start_is_under_way(store)
        played.answer(worker.DONE, number=first)
    await until(lambda: len(played.sockets) > second)
    assert await played.request(second) == "batches/1"
    for number in {first, second}:
        played.answer(worker.DONE, number=number)
    assert await asyncio.gather(*creating) == [Created(), Created()]


async def a_create_is_given_up(store: DirectoryStore, played: Played) -> None:
    """A worker has it in hand, and its caller has run out of time."""
    creating = asyncio.ensure_future(store.create("batches/1", b"a"))
    await until(lambda: played.sockets)
    assert await played.request() == "batches/1"
    creating.cancel()
    await asyncio.wait({creating})
    assert creating.cancelled()


def test_a_writer_that_dies_after_its_create_was_given_up_poisons_the_store(tmp_path: Path, played: Played) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as store:
            await a_create_is_given_up(store, played)
            played.sockets[0].close()
            await until(lambda: not store._writers._workers)
            assert await store.create("batches/2", b"b") == DIED
            assert len(played.sockets) == 1, "nothing is sent any more"

    asyncio.run(scenario())


def test_a_sync_that_fails_after_its_create_was_given_up_poisons_the_store(tmp_path: Path, played: Played) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as store:
            await a_create_is_given_up(store, played)
            played.answer(worker.POISONED, b"the sync failed")
            await until(lambda: store._writers._idle)
            assert await store.create("batches/2", b"b") == Unknown("the sync failed", final=True)
            assert played.nothing_is_asked()

    asyncio.run(scenario())


def test_a_create_that_ran_out_of_time_is_one_that_was_given_up(tmp_path: Path, played: Played) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as store:
            await a_create_is_answered(store, played)
            limited = TimeLimited(store, 50)
            assert await limited.create("batches/1", b"a") == Unknown("no answer in time")
            await played.request()
            played.sockets[0].close()
            await until(lambda: not store._writers._workers)
            assert await store.create("batches/2", b"b") == DIED

    asyncio.run(scenario())


def test_a_worker_whose_request_was_given_up_carries_nothing_else_before_it_has_answered(
    tmp_path: Path, played: Played
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as store:
            await a_create_is_given_up(store, played)
            waiting = asyncio.ensure_future(store.create("batches/2", b"b"))
            await until(lambda: store._writers._waiting)
            assert played.nothing_is_asked()
            played.answer(worker.DONE)
            assert await played.request() == "batches/2"
            played.answer(worker.DONE)
            assert await waiting == Created()

    asyncio.run(scenario())


def test_a_create_given_up_before_a_worker_had_it_poisons_nothing(tmp_path: Path, played: Played) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as store:
            await a_create_is_given_up(store, played)
            waiting = asyncio.ensure_future(store.create("batches/2", b"b"))
            await until(lambda: store._writers._waiting)
            waiting.cancel()
            await asyncio.wait({waiting})
            played.answer(worker.DONE)
            await until(lambda: store._writers._idle)
            assert played.nothing_is_asked()
            played.sockets[0].close()
            await until(lambda: not store._writers._workers)
            await a_create_is_answered(store, played, 1)

    asyncio.run(scenario())


def test_a_writer_that_died_idle_poisons_nothing_where_the_loop_has_not_heard_of_it(
    tmp_path: Path, played: Played
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as store:
            await a_create_is_answered(store, played)
            played.sockets[0].close()
            await a_create_is_answered(store, played, 1)

    asyncio.run(scenario())


def test_a_writer_that_died_when_it_had_answered_gets_nothing_of_what_waits(tmp_path: Path, played: Played) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as store:
            first = asyncio.ensure_future(store.create("batches/1", b"a"))
            await until(lambda: played.sockets)
            await played.request()
            waiting = asyncio.ensure_future(store.create("batches/2", b"b"))
            await until(lambda: store._writers._waiting)
            played.answer(worker.DONE)
            played.sockets[0].close()
            assert await first == Created()
            answer = await waiting
            assert isinstance(answer, Unknown)
            assert not answer.final
            await a_create_is_answered(store, played, 1)

    asyncio.run(scenario())


async def no_start_is_under_way(store: DirectoryStore) -> None:
    behind = store._writers._background_start
    if behind is not None:
        await asyncio.wait({behind})


async def an_idle_writer_dies(store: DirectoryStore, played: Played, number: int) -> None:
    left = len(store._writers._workers)
    played.sockets[number].close()
    await until(lambda: len(store._writers._workers) < left)


def test_a_worker_is_started_when_a_request_finds_none_idle(tmp_path: Path, played: Played) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, writers=2) as store:
            for _ in range(3):
                await a_create_is_answered(store, played)
            assert len(played.sockets) == 1
            await two_creates_are_answered(store, played, 0, 1)
            assert len(played.sockets) == 2

    asyncio.run(scenario())


def test_writers_that_are_left_go_on_where_no_process_can_be_started(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(directory, "START_AGAIN_SECONDS", 3600.0)

    async def scenario() -> None:
        async with opened(tmp_path, writers=2) as store:
            await two_creates_are_answered(store, played, 0, 1)
            played.starts_left = 0
            await an_idle_writer_dies(store, played, 0)
            for _ in range(3):
                await two_creates_are_answered(store, played, 1, 1)
            assert played.starts_refused == 1, "a pause after a start that failed"

    with caplog.at_level(logging.WARNING, "holdfast.objects.directory.store"):
        asyncio.run(scenario())
    (record,) = caplog.records
    assert record.getMessage() == (f"a worker of the directory could not be started left=1 of=2 error={no_room()}")


def test_what_is_missing_is_started_again_after_the_pause(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "START_AGAIN_SECONDS", 0.0)

    async def scenario() -> None:
        async with opened(tmp_path, writers=2) as store:
            await two_creates_are_answered(store, played, 0, 1)
            played.starts_left = 0
            await an_idle_writer_dies(store, played, 0)
            for turn in (1, 2):
                await two_creates_are_answered(store, played, 1, 1)
                assert played.starts_refused == turn
            played.starts_left = 1
            await two_creates_are_answered(store, played, 1, 2)
            assert len(store._writers._workers) == len(store._writers._idle) == 2

    asyncio.run(scenario())


def test_one_writer_is_enough_to_begin_with(tmp_path: Path, played: Played) -> None:
    played.starts_left = 1

    async def scenario() -> None:
        async with opened(tmp_path, writers=4) as store:
            await two_creates_are_answered(store, played, 0, 0)
            assert played.starts_refused == 1

    asyncio.run(scenario())


def test_no_writer_left_and_none_to_be_started_is_unknown_and_tried_at_the_next_create(
    tmp_path: Path, played: Played
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, writers=2) as store:
            played.starts_left = 0
            for _ in range(2):
                answer = await store.create("batches/1", b"a")
                assert isinstance(answer, Unknown)
                assert os.strerror(errno.EAGAIN) in answer.detail
            played.starts_left = 2
            await a_create_is_answered(store, played)

    asyncio.run(scenario())


def test_a_thread_that_cannot_be_started_is_a_process_that_cannot(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(lane: object, theirs: socket.socket) -> None:
        theirs.close()
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        async with opened(tmp_path, writers=2) as store:
            await two_creates_are_answered(store, played, 0, 1)
            monkeypatch.setattr(directory._Lane, "_spawn", refused)
            await an_idle_writer_dies(store, played, 0)
            await two_creates_are_answered(store, played, 1, 1)
            await an_idle_writer_dies(store, played, 1)
            answer = await store.create("batches/1", b"a")
            assert isinstance(answer, Unknown)
            assert "thread" in answer.detail

    asyncio.run(scenario())


def test_a_start_under_way_is_waited_for_by_a_close(tmp_path: Path, played: Played) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, writers=2) as store:
            first = asyncio.ensure_future(store.create("batches/0", b""))
            await until(lambda: store._writers._workers)
            played.starts_go_on.clear()
            second = asyncio.ensure_future(store.create("batches/1", b""))
            await until(store._writers._starting.locked)
            behind = store._writers._background_start
            assert behind is not None
            for one in (first, second):
                await played.request()
                played.answer(worker.DONE)
                assert await one == Created()
            closing = asyncio.ensure_future(store.close())
            await asyncio.sleep(0)
            assert not behind.done()
            played.starts_go_on.set()
            await closing
            assert behind.done()
            assert store._writers._workers == []

    asyncio.run(scenario())


def test_a_directory_that_is_back_is_read_and_written_by_workers_that_could_not_open_it(tmp_path: Path) -> None:
    """The same workers: a directory that is away makes no processes come and go."""
    root = tmp_path / "log"

    async def scenario() -> None:
        async with opened(root) as store:
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await store.list("batches/")
                answer = await store.create("batches/1", b"a")
                assert answer == Unknown(os.strerror(errno.ENOENT))
            before = store._writers._workers + store._readers._workers
            root.mkdir()
            assert await store.list("batches/") == []
            assert await store.create("batches/1", b"a") == Created()
            assert await store.read("batches/1") == b"a"
            assert store._writers._workers + store._readers._workers == before

    asyncio.run(scenario())


def test_a_worker_that_could_not_open_its_directory_ends_with_its_stream(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(worker.encode_request_head(worker.DELETE, "batches/1", 0))
    ours.shutdown(socket.SHUT_WR)
    worker.serve(theirs, str(tmp_path / "absent"), "one")
    with ours:
        reason = os.strerror(errno.ENOENT).encode()
        assert ours.recv(100) == struct.pack("<IB", 1 + len(reason), worker.FAILED) + reason


def test_an_open_that_fails_halfway_keeps_no_directory_open(tmp_path: Path) -> None:
    class Stale(PosixFiles):
        def __init__(self) -> None:
            self.opened: list[int] = []
            self.closed: list[int] = []

        def open_directory(self, path: str) -> int:
            self.opened.append(super().open_directory(path))
            return self.opened[-1]

        def is_read_only(self, directory: int) -> bool:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        def close(self, handle: int) -> None:
            self.closed.append(handle)
            super().close(handle)

    files = Stale()
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        DirectoryObjects(files, str(tmp_path), "one")
    assert files.closed == files.opened != []
