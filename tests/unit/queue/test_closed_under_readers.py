"""A queue that is closed while other threads read it: they are told that it is closed, and nothing else.

Rules that these tests are proved to catch when they are broken: a consumer's reader is closed while its thread reads,
so that the number of its file may be another file's by the next read; what the file system says about a directory that
was closed is told as a refusal of the disk; what was found in a directory that has its number by then counts.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pytest

from holdfast import aio
from holdfast.errors import Closed
from holdfast.queue import Queue
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.queue import core_of

MESSAGE = b"x" * 100


class Held(LocalFiles):
    """The real files. The next read, or the next opening of ``page``, waits until it is ``let_go``."""

    def __init__(self) -> None:
        super().__init__()
        self.page = ""
        self.holds_reads = False
        self.let_go = threading.Event()
        self.is_held = threading.Event()
        self.being_read: set[int] = set()
        self.moved = threading.Event()
        self.closed_under: list[int] = []

    def hold(self) -> None:
        self.is_held.set()
        assert self.let_go.wait(60)

    def open(self, directory: int, name: str, *, write: bool) -> int:
        if name == self.page:
            self.page = ""
            self.hold()
        return super().open(directory, name, write=write)

    def read(self, file: int, offset: int, length: int) -> bytes:
        if self.holds_reads:
            self.holds_reads = False
            self.being_read.add(file)
            self.hold()
            self.being_read.discard(file)
        return super().read(file, offset, length)

    def close(self, file: int) -> None:
        if file in self.being_read:
            self.closed_under.append(file)
            self.moved.set()
        super().close(file)


class Telling:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, waits: threading.Event) -> None:
        self._lock = threading.RLock()
        self._waits = waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class Asking(threading.Thread):
    """Calls ``ask`` until it raises."""

    def __init__(self, ask: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.ask = ask
        self.answers: list[object] = []
        self.start()

    def run(self) -> None:
        try:
            while True:
                self.answers.append(self.ask())
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.answers.append(error)

    def told(self) -> list[object]:
        self.join(60)
        assert not self.is_alive()
        return self.answers


def filled(path: Path, payload: bytes = MESSAGE) -> None:
    """Three pages of about thirty."""
    with Queue(path, page_size=4096) as queue:
        for _ in range(90):
            queue.append(payload)


def test_a_consumer_that_reads_while_it_is_closed_reads_its_own_file_and_is_told(tmp_path: Path) -> None:
    filled(tmp_path / "q")
    files = Held()
    queue = Queue(tmp_path / "q", page_size=4096, files=files, background=False)
    consumer = queue.consumer("c")
    assert consumer.poll(max_messages=5)
    consumer._reading = Telling(files.moved)  # type: ignore[assignment]
    files.holds_reads = True
    polling = Asking(lambda: consumer.poll(max_messages=1000))
    assert files.is_held.wait(60)
    closing = threading.Thread(target=queue.close, daemon=True)
    closing.start()
    assert files.moved.wait(60)
    files.let_go.set()
    *messages, error = polling.told()
    closing.join(60)
    assert files.closed_under == []
    assert isinstance(error, Closed)
    assert all(messages)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["gone", "another directory"])
def test_an_iterator_whose_directory_was_closed_is_told_so_whatever_has_its_number(
    tmp_path: Path, *, elsewhere: bool
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    filled(tmp_path / "here" / "q")
    filled(tmp_path / "there" / "q", b"another queue's")
    files = Held()
    queue = Queue(tmp_path / "here" / "q", page_size=4096, files=files, background=False)
    found = queue.read()
    first = [next(found).payload]
    directory = core_of(queue).pages.directory
    files.page = "q-2.page"
    reading = Asking(lambda: first.append(next(found).payload))
    assert files.is_held.wait(60)
    queue.close()
    others: list[int] = []
    while elsewhere and (not others or others[-1] < directory):
        others.append(os.open(tmp_path / "there", os.O_RDONLY | os.O_DIRECTORY))
    files.let_go.set()
    error = reading.told()[-1]
    for other in others:
        os.close(other)
    assert isinstance(error, Closed)
    assert set(first) == {MESSAGE}


def test_asyncio_readers_are_told_that_the_queue_was_closed_under_them(tmp_path: Path) -> None:
    filled(tmp_path / "q")
    files = Held()

    async def main() -> None:
        queue = await aio.Queue(tmp_path / "q", page_size=4096, files=files, background=False).open()
        files.page = "q-2.page"
        got: list[bytes] = []

        async def read() -> None:
            got.extend([message.payload async for message in queue.read()])

        reading = asyncio.create_task(read())
        assert await asyncio.to_thread(files.is_held.wait, 60)
        await queue.close()
        files.let_go.set()
        with pytest.raises(Closed):
            await reading
        assert got == []

    asyncio.run(main())


@pytest.mark.parametrize("ask", ["reset", "lag"])
def test_what_a_consumer_asks_of_the_files_while_the_queue_is_closed_is_refused_as_closed(
    tmp_path: Path, ask: str
) -> None:
    filled(tmp_path / "q")
    files = Held()
    queue = Queue(tmp_path / "q", page_size=4096, files=files, background=False)
    consumer = queue.consumer("c")
    files.page = "q-1.page"
    asking = Asking((lambda: consumer.reset(since="earliest")) if ask == "reset" else consumer.lag)
    assert files.is_held.wait(60)
    queue.close()
    files.let_go.set()
    error = asking.told()[-1]
    assert isinstance(error, Closed)


@pytest.mark.parametrize("follows", [False, True])
def test_a_callback_for_damage_may_close_the_queue(tmp_path: Path, *, follows: bool) -> None:
    filled(tmp_path / "q")
    with open(tmp_path / "q-1.page", "r+b") as page:
        page.seek(64 + 124 * 9 + 30)
        page.write(b"!")
    queue = Queue(tmp_path / "q", page_size=4096, damage=lambda _: queue.close())
    with pytest.raises(Closed):
        list(queue.read(follow=follows))
    queue = Queue(tmp_path / "q", page_size=4096, damage=lambda _: queue.close())
    consumer = queue.consumer("c")
    with pytest.raises(Closed):
        list(consumer.follow() if follows else consumer)
