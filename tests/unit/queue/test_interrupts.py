"""Ctrl-C between the writing of a frame and its publication: the frame is a message or it is not, for everybody."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.queue import Queue
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.format.frame import single_packers
from holdfast.queue.log.durability import SyncProgress
from holdfast.queue.log.tail import LogTail, OpenPage
from holdfast.queue.log.writer import PageSupply, Writer
from holdfast.queue.queue import core_of


class Interrupting(LocalFiles):
    """Interrupts behind the next write of a frame, on demand."""

    armed = False

    def write(self, file: int, offset: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        super().write(file, offset, parts)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


def read_elsewhere(path: Path) -> list[bytes]:
    with Queue(path, read_only=True) as reader:
        return [message.payload for message in reader.read()]


def interrupt_the_store(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    pack, store = single_packers[size]

    def interrupted(*arguments: object) -> None:
        monkeypatch.setitem(single_packers, size, (pack, store))
        store(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setitem(single_packers, size, (pack, interrupted))


def test_what_a_reader_was_given_of_an_interrupted_append_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q"
    with Queue(path, background=False) as queue:
        queue.append(b"one")
        interrupt_the_store(monkeypatch, 3)
        with pytest.raises(KeyboardInterrupt):
            queue.append(b"two")
        assert read_elsewhere(path) == [b"one", b"two"]
        assert queue.append(b"3rd") == 3
        assert queue.append(b"4th") == 4
        assert read_elsewhere(path) == [b"one", b"two", b"3rd", b"4th"]
    assert read_elsewhere(path) == [b"one", b"two", b"3rd", b"4th"]


@pytest.mark.parametrize("sync", ["os", "always"])
@pytest.mark.parametrize(
    "append",
    [
        lambda queue: queue.append_many([b"2", b"3", b"4"]),
        lambda queue: queue.append_many([b"2"]),
        lambda queue: queue.append(b"2"),
    ],
    ids=["three", "batch of one", "one"],
)
@pytest.mark.parametrize("then", ["append", "close"])
def test_an_interrupted_write_is_a_message_or_it_is_not(
    tmp_path: Path, sync: str, append: Callable[[Queue], object], then: str
) -> None:
    path, files = tmp_path / "q", Interrupting()
    # Frames above 4 KiB are written, smaller ones are stored into the mapped page.
    files.map = lambda file, length: None  # type: ignore[method-assign]
    queue = Queue(path, background=False, sync=sync, files=files)
    queue.append(b"one")
    files.armed = True
    with pytest.raises(KeyboardInterrupt):
        append(queue)
    given = read_elsewhere(path)
    assert given[:2] == [b"one", b"2"]
    if then == "append":
        assert queue.append(b"after") == len(given) + 1
        given.append(b"after")
    queue.close()
    with Queue(path, background=False) as again:
        assert again.last_seq == len(given)
    assert read_elsewhere(path) == given


def test_an_interrupt_before_anything_was_written_leaves_nothing(tmp_path: Path) -> None:
    ticks = iter(range(1_000, 2_000, 10))

    def clock() -> int:
        if armed:
            armed.clear()
            raise KeyboardInterrupt
        return next(ticks)

    armed: list[bool] = []
    with Queue(tmp_path / "q", background=False, clock=clock) as queue:
        queue.append(b"one")
        for call in (lambda: queue.append(b"x"), lambda: queue.append_many([b"x", b"y"])):
            armed.append(True)
            with pytest.raises(KeyboardInterrupt):
                call()
        assert queue.append(b"two") == 2
        assert read_elsewhere(tmp_path / "q") == [b"one", b"two"]


class Turns(list[None]):
    """The quick way's turn: an interrupt behind its taking, on demand."""

    armed = False

    def pop(self, *arguments: Any) -> None:
        super().pop(*arguments)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


def test_an_interrupt_behind_the_taking_of_a_turn_gives_it_back(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", background=False) as queue:
        queue.append(b"one")
        tail: Any = core_of(queue)._writer.tail  # type: ignore[union-attr]
        turns = tail._fast_turn = Turns([None])
        turns.armed = True
        with pytest.raises(KeyboardInterrupt):
            queue.append(b"x")
        assert turns == [None]
        assert queue.append(b"two") == 2
        assert queue.append_many([b"three"]) == (3, 3)
    assert read_elsewhere(tmp_path / "q") == [b"one", b"two", b"three"]


def test_whatever_an_interrupt_meets_the_next_append_works_and_nothing_told_is_lost(tmp_path: Path) -> None:
    """Real signals, anywhere in a loop of appends."""
    told: dict[int, bytes] = {}
    with Queue(tmp_path / "q", page_size=1 << 16, background=False) as queue:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        interrupts = number = 0
        try:
            while interrupts < 300:
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.Random(interrupts).uniform(1e-5, 3e-4))
                    while True:
                        payload = b"%d" % number
                        number += 1
                        told[queue.append(payload)] = payload
                except KeyboardInterrupt:
                    interrupts += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        last = queue.append(b"last")
        told[last] = b"last"
        found = {message.seq: message.payload for message in queue.read()}
    assert list(found) == list(range(1, last + 1))
    assert {seq: found[seq] for seq in told} == told
    assert read_elsewhere(tmp_path / "q") == list(found.values())


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[None]:
    """An interrupt behind the next call of that method, after which what is returned is empty."""
    real = getattr(owner, name)
    armed: list[None] = [None]

    def interrupted(*arguments: Any, **named: Any) -> Any:
        found = real(*arguments, **named)
        if armed:
            armed.clear()
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(owner, name, interrupted)
    return armed


@pytest.mark.parametrize(
    ("owner", "name"),
    [(PageSupply, "take"), (LocalFiles, "unmap"), (LogTail, "begin"), (OpenPage, "release"), (Writer, "_seal")],
)
def test_an_interrupt_between_two_pages_leaves_out_no_page_and_no_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    sent: list[bytes] = []
    armed: list[None] = []
    with Queue(tmp_path / "q", page_size=4096, background=False) as queue:
        for number in range(30):
            if number == 10:
                armed = once(monkeypatch, owner, name)
            payload = b"%d" % number * 400
            try:
                assert queue.append(payload) == len(sent) + 1
            except KeyboardInterrupt:
                if queue.last_seq == len(sent):
                    continue
            sent.append(payload)
        assert not armed, "it was interrupted"
        queue.flush()
        assert queue.durable_seq == queue.last_seq == len(sent)
    pages = sorted(int(page.stem.removeprefix("q-")) for page in tmp_path.glob("q-*.page"))
    assert pages == list(range(1, pages[-1] + 1))
    assert read_elsewhere(tmp_path / "q") == sent


def test_an_interrupt_of_who_leads_a_sync_leaves_it_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(monkeypatch, SyncProgress, "take")
    with Queue(tmp_path / "q", background=False) as queue:
        queue.append(b"one")
        with pytest.raises(KeyboardInterrupt):
            queue.flush()
        queue.flush()
        assert queue.durable_seq == 1


def test_who_finds_an_append_under_way_comes_after_it(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()
    ticks = iter(range(1_000, 2_000, 10))

    def clock() -> int:
        if threading.current_thread() is slow:
            inside.set()
            assert go_on.wait(60)
        return next(ticks)

    with Queue(tmp_path / "q", background=False, clock=clock) as queue:
        slow = threading.Thread(target=lambda: queue.append(b"slow"))
        queue.append(b"first")
        slow.start()
        assert inside.wait(60)
        others = [
            threading.Thread(target=work)
            for work in (lambda: queue.append(b"one"), lambda: queue.append_many([b"one", b"one"]), queue.flush)
        ]
        for each in others:
            each.start()
        go_on.set()
        for each in [slow, *others]:
            each.join(60)
            assert not each.is_alive()
        assert [message.payload for message in queue.read()] == [b"first", b"slow", b"one", b"one", b"one"]
