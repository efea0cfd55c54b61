"""What becomes of the directory store when its workers are lost, cannot be started, or have no directory to serve."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.objects import directory
from holdfast.objects import directory_worker as worker
from holdfast.objects.directory import DirectoryStore
from holdfast.objects.port import Created, Unknown
from holdfast.objects.time_limit import TimeLimited

PATIENCE_SECONDS = 30
DIED = Unknown("a writer process died with a create in hand, so what is durable is unknown")


class Played:
    """Workers that the test itself plays: it holds their ends of the sockets."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sockets: list[socket.socket] = []
        patch.setattr(directory._Lane, "_spawn", self._spawn)

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
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
            assert await store.create("batches/2", b"b") == Unknown("the sync failed")
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
