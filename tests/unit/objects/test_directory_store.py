"""The directory store's worker processes: what their death, a signal, a cancel and a close mean."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from tests.unit.objects.recording_files import RecordingFiles, failure

from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.objects.directory import store as directory
from holdfast.objects.directory import worker
from holdfast.objects.directory.files import PosixFiles
from holdfast.objects.directory.objects import DirectoryObjects
from holdfast.objects.directory.store import DirectoryStore
from holdfast.objects.port import Created, Refused, Unknown

Scenario = Callable[[DirectoryStore], Coroutine[None, None, None]]


def run(root: Path, scenario: Scenario, *, writers: int = 2) -> None:
    async def opened() -> None:
        store = DirectoryStore(root, writers=writers, readers=1)
        try:
            async with asyncio.timeout(60):
                await scenario(store)
        finally:
            await store.close()

    asyncio.run(opened())


def processes_of(store: DirectoryStore, kind: str) -> list[subprocess.Popen[bytes]]:
    lane = store._writers if kind == "writers" else store._readers
    return [one.process for one in lane._workers]


async def asked(store: DirectoryStore, kind: str) -> subprocess.Popen[bytes]:
    """Wait for a worker to have a request in hand."""
    lane = store._writers if kind == "writers" else store._readers
    while True:
        for one in lane._workers:
            if one._asked is not None:
                return one.process
        await asyncio.sleep(0)


def test_a_writer_that_dies_with_a_create_in_hand_poisons_the_store(tmp_path: Path) -> None:
    async def scenario(store: DirectoryStore) -> None:
        assert await store.create("batches/1", b"a") == Created()
        for process in processes_of(store, "writers"):
            process.send_signal(signal.SIGSTOP)
        creating = asyncio.ensure_future(store.create("batches/2", b"b"))
        (await asked(store, "writers")).kill()
        answer = await creating
        assert isinstance(answer, Unknown)
        assert "died" in answer.detail
        assert answer.final
        for process in processes_of(store, "writers"):
            process.send_signal(signal.SIGCONT)
        assert await store.create("batches/3", b"c") == answer
        assert await store.read("batches/1") == b"a"

    run(tmp_path, scenario)

    async def reopened(store: DirectoryStore) -> None:
        assert isinstance(await store.create("batches/1", b"a"), Refused)
        assert await store.create("batches/2", b"b") == Created()

    run(tmp_path, reopened)


def test_a_writer_that_dies_idle_has_answered_all_and_is_replaced(tmp_path: Path) -> None:
    async def scenario(store: DirectoryStore) -> None:
        assert await store.create("batches/1", b"a") == Created()
        before = processes_of(store, "writers")
        for process in before:
            process.kill()
        while processes_of(store, "writers"):  # noqa: ASYNC110 - the loop itself has to notice
            await asyncio.sleep(0)
        assert await store.create("batches/2", b"b") == Created()
        assert set(processes_of(store, "writers")).isdisjoint(before)

    run(tmp_path, scenario)


def test_a_dead_reader_fails_its_request_and_is_replaced(tmp_path: Path) -> None:
    async def scenario(store: DirectoryStore) -> None:
        assert await store.create("batches/1", b"a") == Created()
        assert await store.read("batches/1") == b"a"
        (process,) = processes_of(store, "readers")
        process.send_signal(signal.SIGSTOP)
        reading = asyncio.ensure_future(store.read("batches/1"))
        await asked(store, "readers")
        process.kill()
        with pytest.raises(Unavailable):
            await reading
        assert await store.read("batches/1") == b"a"
        assert processes_of(store, "readers") != [process]

    run(tmp_path, scenario)


def test_what_a_failed_sync_says_reaches_every_later_create(tmp_path: Path) -> None:
    files = RecordingFiles(lambda number, name: failure(5) if name == "sync_data" else None)
    objects = DirectoryObjects(files, str(tmp_path), "one")
    status, reason = worker.answer(objects, worker.CREATE, "batches/1", memoryview(b"a"))
    assert status == worker.POISONED

    async def scenario(store: DirectoryStore) -> None:
        async def poisoned(operation: int, key: str, argument: bytes) -> tuple[int, bytes]:
            asked.append(key)
            return status, reason

        asked: list[str] = []
        store._writers.ask = poisoned  # type: ignore[method-assign]
        first, second = await store.create("batches/1", b"a"), await store.create("batches/2", b"b")
        assert first == second == Unknown(reason.decode(), final=True)
        assert asked == ["batches/1"]

    run(tmp_path, scenario)


def test_an_unfit_file_system_is_an_invalid_request(tmp_path: Path) -> None:
    files = RecordingFiles(lacking=("create_unnamed", "link", "rename"))
    objects = DirectoryObjects(files, str(tmp_path), "one")
    answer = worker.answer(objects, worker.CREATE, "batches/1", memoryview(b"a"))
    assert answer[0] == worker.UNFIT

    async def scenario(store: DirectoryStore) -> None:
        async def unfit(operation: int, key: str, argument: bytes) -> tuple[int, bytes]:
            return answer

        store._writers.ask = unfit  # type: ignore[method-assign]
        with pytest.raises(InvalidRequest) as caught:
            await store.create("batches/1", b"a")
        assert caught.value.code == Code.STORE_UNFIT

    run(tmp_path, scenario)


def test_terminal_signals_do_not_stop_workers_that_the_leader_drains_through(tmp_path: Path) -> None:
    async def scenario(store: DirectoryStore) -> None:
        assert await store.create("batches/1", b"a") == Created()
        for process in processes_of(store, "writers"):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                process.send_signal(number)
        for turn in range(2, 6):
            assert await store.create(f"batches/{turn}", b"b") == Created()

    run(tmp_path, scenario)


def test_a_cancelled_create_still_lands_and_the_store_goes_on(tmp_path: Path) -> None:
    async def scenario(store: DirectoryStore) -> None:
        assert await store.create("batches/1", b"a") == Created()
        creating = asyncio.ensure_future(store.create("batches/2", b"b"))
        await asked(store, "writers")
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert await store.create("batches/3", b"c") == Created()
        assert isinstance(await store.create("batches/2", b"x"), Refused)
        assert await store.read("batches/2") == b"b"

    run(tmp_path, scenario, writers=1)


def test_more_requests_than_workers_wait_in_order(tmp_path: Path) -> None:
    async def scenario(store: DirectoryStore) -> None:
        finished: list[int] = []

        async def create(turn: int) -> None:
            assert await store.create(f"batches/{turn:03}", bytes(turn)) == Created()
            finished.append(turn)

        await asyncio.gather(*(create(turn) for turn in range(40)))
        assert finished == sorted(finished)

    run(tmp_path, scenario, writers=1)


def test_a_store_that_only_reads_starts_no_writer_and_writes_nothing(tmp_path: Path) -> None:
    async def scenario(store: DirectoryStore) -> None:
        assert await store.list("batches/") == []
        with pytest.raises(NotFound):
            await store.read("batches/1")
        assert processes_of(store, "writers") == []

    run(tmp_path, scenario)
    assert list(tmp_path.iterdir()) == []


def test_close_ends_every_worker_and_removes_their_folders(tmp_path: Path) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    async def scenario(store: DirectoryStore) -> None:
        assert await store.create("batches/1", b"a") == Created()
        assert await store.read("batches/1") == b"a"
        processes.extend(processes_of(store, "writers") + processes_of(store, "readers"))

    run(tmp_path, scenario)
    assert [process.returncode for process in processes] == [0, 0]
    assert list((tmp_path / ".holdfast/writing").iterdir()) == []


def test_a_closed_store_answers_unknown_and_unavailable(tmp_path: Path) -> None:
    async def scenario(store: DirectoryStore) -> None:
        await store.close()
        assert await store.create("batches/1", b"a") == Unknown("the store is closed", final=True)
        with pytest.raises(Unavailable):
            await store.read("batches/1")

    run(tmp_path, scenario)


LEADER = """
import asyncio, itertools, pathlib, sys
from holdfast.objects.directory.store import DirectoryStore

async def main():
    store = DirectoryStore(pathlib.Path(sys.argv[1]))
    workers, keys = store._writers._workers, (f"batches/{n}" for n in itertools.count())
    while len(workers) < 4:
        await asyncio.gather(*(store.create(next(keys), b"a") for _ in range(8)))
    print(*(one.process.pid for one in workers), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_killed_leader_takes_its_workers_along(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LEADER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        workers = [int(word) for word in leader.stdout.readline().split()]
        # A pidfd is readable when its process has ended, whoever its parent is by then.
        watched = [os.pidfd_open(pid) for pid in workers]
        leader.kill()
        leader.wait()
    assert len(workers) == 4

    async def all_ended() -> None:
        loop = asyncio.get_running_loop()
        for descriptor in watched:
            ended = asyncio.Event()
            loop.add_reader(descriptor, ended.set)
            await asyncio.wait_for(ended.wait(), 30)
            loop.remove_reader(descriptor)
            os.close(descriptor)

    asyncio.run(all_ended())


def test_an_absent_directory_is_not_made_unless_asked(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        DirectoryStore.open(tmp_path / "a/b")
    assert caught.value.code == Code.LOG_EMPTY
    assert DirectoryStore.open(tmp_path / "a/b", create_missing=True).url == (tmp_path / "a/b").as_uri()
    assert (tmp_path / "a/b").is_dir()


def test_a_worker_reads_requests_however_they_are_cut(tmp_path: Path) -> None:
    import socket
    import threading

    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=_serve, args=(theirs, str(tmp_path)))
    serving.start()
    data = bytes(range(256)) * 5_000
    request = worker.encode_request_head(worker.CREATE, "batches/1", len(data)) + data
    cuts = [0, 1, 6, 8, 20, 300_000, len(request)]
    for begin, end in itertools.pairwise(cuts):
        ours.sendall(request[begin:end])
    received = ours.recv(100)
    identity = PosixFiles().identity_at(str(tmp_path / "batches"))
    payload = f"{identity.device}:{identity.inode}".encode()
    assert received == struct.pack("<IB", 1 + len(payload), worker.DONE) + payload
    ours.sendall(request[:50])  # cut off by the end of the stream: never asked
    ours.close()
    serving.join(30)
    assert not serving.is_alive()
    assert (tmp_path / "batches/1").read_bytes() == data


def _serve(stream: object, root: str) -> None:
    import socket

    assert isinstance(stream, socket.socket)
    worker.serve(stream, root, "one")


def test_a_start_that_is_cancelled_keeps_the_socket_until_the_process_has_it(tmp_path: Path) -> None:
    """Closed earlier, its number could be that of a client's connection by the time the process inherits it."""

    async def cancelled() -> None:
        spawning, cancelled = threading.Event(), threading.Event()
        descriptors: list[int] = []

        def spawn(lane: object, theirs: socket.socket) -> None:
            with theirs:
                spawning.set()
                cancelled.wait(10)
                descriptors.append(theirs.fileno())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(directory._Lane, "_spawn", spawn)
            store = DirectoryStore(tmp_path, readers=1)
            asked = asyncio.ensure_future(store.list("batches/"))
            await asyncio.to_thread(spawning.wait, 10)
            asked.cancel()
            await asyncio.wait({asked})
            cancelled.set()
            await asyncio.get_running_loop().shutdown_default_executor()
        assert descriptors != [-1]

    asyncio.run(cancelled())
