"""Stores in a commit log: replies wait for the log, the files take durable entries only, and an end is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.commit.stages.events import WhenDurable
from holdfast.errors import Code, Fenced, HoldfastError, Unavailable
from holdfast.stores import log_commit
from holdfast.stores.log_commit import LogCommit
from holdfast.stores.storage.frames import RECORD, RELOCATED


class Log:
    """A journal whose entries become durable when the test says so."""

    def __init__(self) -> None:
        self.entries: list[tuple[list[tuple[str, bytes]], WhenDurable]] = []

    def record(self, records: list[tuple[str, bytes]], when_durable: WhenDurable) -> None:
        self.entries.append((records, when_durable))

    def confirm(self, index: int) -> None:
        index %= len(self.entries)
        self.entries[index][1](100 + index)


class Files:
    """What ``Storage`` is for a ``LogCommit``."""

    def __init__(self) -> None:
        self.appended: list[tuple[list[bytes], int]] = []
        self.broken: Exception | None = None
        self.room = 1_000
        """How many frames the disk still takes."""

    @property
    def version(self) -> int:
        return self.appended[-1][1]

    def append(self, frames: list[bytes], version: int) -> int:
        if self.broken is not None:
            raise self.broken
        taken = frames[: self.room]
        self.room -= len(taken)
        if taken:
            self.appended.append((taken, version))
        return len(taken)

    def names(self) -> str:
        return "".join(frame.removeprefix(RECORD).decode() for frames, _ in self.appended for frame in frames)


class Stores:
    """One ``LogCommit`` and what it told."""

    def __init__(self) -> None:
        self.log = Log()
        self.files = Files()
        self.told: list[tuple[str, object]] = []
        self.failures: list[BaseException] = []
        self.before_group: Callable[[], None] = lambda: None
        self.groups = LogCommit(self.files, self.log, self)  # type: ignore[arg-type]
        self.changes: asyncio.Queue[bool] = asyncio.Queue()

    def after_group(self) -> None:
        pass

    def group_failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def disk_changed(self) -> None:
        self.changes.put_nowait(self.groups.disk_is_full)

    def add(self, name: str, *, kind: bytes | None = RECORD) -> None:
        frame = None if kind is None else kind + name.encode()
        self.groups.add(frame, lambda error: self.told.append((name, error)), store="s")

    async def confirm(self, *names: str) -> None:
        """An entry with these frames, which is durable at once."""
        for name in names:
            self.add(name)
        await turns()
        self.log.confirm(-1)

    def end_group(self, written: list[object]) -> None:
        """``written`` gets the version that the files have, or the error."""
        self.groups.end_group(lambda error: written.append(error or self.files.version))


def run(work: Callable[[Stores], Awaitable[Any]]) -> None:
    async def main() -> None:
        await work(Stores())

    asyncio.run(main())


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def test_what_comes_in_one_turn_is_one_entry_and_replies_wait_for_it() -> None:
    async def work(stores: Stores) -> None:
        stores.add("a")
        stores.add("b")
        await turns()
        assert [records for records, _ in stores.log.entries] == [[("s", RECORD + b"a"), ("s", RECORD + b"b")]]
        assert (stores.told, stores.files.appended) == ([], [])
        stores.log.confirm(0)
        assert stores.told == [("a", None), ("b", None)]
        assert stores.files.appended == [([RECORD + b"a", RECORD + b"b"], 100)]

    run(work)


def test_a_reply_without_a_record_waits_for_what_came_before_it() -> None:
    async def work(stores: Stores) -> None:
        stores.add("a")
        await turns()
        stores.add("turn", kind=None)
        await turns()
        assert stores.told == []
        stores.log.confirm(0)
        await turns()
        assert [name for name, _ in stores.told] == ["a", "turn"]

    run(work)


def test_a_relocation_goes_to_the_files_only_and_keeps_its_place() -> None:
    async def work(stores: Stores) -> None:
        stores.add("a")
        stores.add("moved", kind=RELOCATED)
        stores.add("b")
        await turns()
        assert stores.log.entries[0][0] == [("s", RECORD + b"a"), ("s", RECORD + b"b")]
        stores.log.confirm(0)
        assert stores.files.appended[0][0] == [RECORD + b"a", RELOCATED + b"moved", RECORD + b"b"]

    run(work)


def test_an_ended_group_is_an_entry_of_its_own() -> None:
    async def work(stores: Stores) -> None:
        stores.add("a")
        stores.groups.end_group(lambda _: None)
        stores.add("b")
        await turns()
        assert [[record for _, record in records] for records, _ in stores.log.entries] == [
            [RECORD + b"a"],
            [RECORD + b"b"],
        ]

    run(work)


def test_what_closing_adds_joins_the_same_entry() -> None:
    async def work(stores: Stores) -> None:
        deliveries = ["delivery"]
        stores.before_group = lambda: stores.add(deliveries.pop()) if deliveries else None
        stores.add("a")
        await turns()
        assert stores.log.entries[0][0] == [("s", RECORD + b"a"), ("s", RECORD + b"delivery")]

    run(work)


def test_the_end_of_the_leadership_is_unknown_for_all_who_wait_and_is_no_failure() -> None:
    async def work(stores: Stores) -> None:
        stores.add("a")
        await turns()
        stores.add("b")
        await turns()
        stores.log.entries[0][1](Fenced("deposed", code=Code.LEADER_CHANGED))
        stores.add("c")
        await turns()
        assert [name for name, _ in stores.told] == ["a", "b", "c"]
        assert all(isinstance(error, Fenced) for _, error in stores.told)
        assert (stores.failures, stores.files.appended) == ([], [])
        await stores.groups.drain()

    run(work)


def test_files_that_take_nothing_end_the_service_and_nothing_is_confirmed() -> None:
    async def work(stores: Stores) -> None:
        stores.files.broken = OSError("no space")
        stores.add("a")
        await turns()
        stores.log.confirm(0)
        await turns()
        assert [type(error) for _, error in stores.told] == [OSError]
        assert len(stores.failures) == 1

    run(work)


def test_nothing_is_written_while_paused() -> None:
    async def work(stores: Stores) -> None:
        stores.groups.pause()
        stores.add("a")
        await turns()
        assert stores.log.entries == []
        stores.groups.resume()
        await turns()
        assert len(stores.log.entries) == 1

    run(work)


def test_a_reply_that_raises_fails_the_rest_and_not_the_log() -> None:
    async def work(stores: Stores) -> None:
        def raising(_: BaseException | None) -> None:
            raise RuntimeError("a bug")

        stores.groups.add(RECORD, raising)
        stores.add("after")
        await turns()
        stores.log.confirm(0)
        assert [type(error) for _, error in stores.told] == [RuntimeError]

    run(work)


def test_a_poisoned_service_answers_everybody() -> None:
    async def work(stores: Stores) -> None:
        stores.add("in flight")
        await turns()
        stores.add("waiting")
        stores.groups.poison(HoldfastError("half changed"))
        await turns()
        assert [name for name, _ in stores.told] == ["in flight", "waiting"]
        await asyncio.wait_for(stores.groups.drain(), 5)

    run(work)


@pytest.mark.parametrize("count", [1, 3])
def test_entries_under_way_become_durable_in_order(count: int) -> None:
    async def work(stores: Stores) -> None:
        for index in range(count):
            stores.add(str(index))
            await turns()
        for index in range(count):
            stores.log.confirm(index)
        assert [version for _, version in stores.files.appended] == [100 + index for index in range(count)]

    run(work)


# -- a full disk ------------------------------------------------------------------------------------------------------


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_commit, "AGAIN_SECONDS", 0.001)


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("room", range(6))
def test_a_full_disk_keeps_frames_back_in_order_and_replies_go_on(room: int) -> None:
    """Also where it takes a part of an entry: no frame is appended twice, and none is left out."""

    async def work(stores: Stores) -> None:
        stores.files.room = room
        await stores.confirm("a", "b", "c")
        await stores.confirm("d")
        await stores.confirm("e", "f")
        assert [name for name, _ in stores.told] == ["a", "b", "c", "d", "e", "f"]
        assert stores.files.names() == "abcdef"[:room]
        assert stores.groups.disk_is_full
        assert stores.groups.kept_back_bytes == (6 - room) * len(RECORD + b"a")
        assert await stores.changes.get() is True
        stores.files.room = 1_000
        assert await stores.changes.get() is False
        assert stores.files.names() == "abcdef"
        assert [version for _, version in stores.files.appended] == sorted(
            version for _, version in stores.files.appended
        )
        assert stores.groups.kept_back_bytes == 0
        await stores.confirm("g")
        assert stores.files.appended[-1] == ([RECORD + b"g"], 103)
        assert (stores.failures, stores.changes.empty()) == ([], True)

    run(work)


@pytest.mark.usefixtures("_soon")
def test_what_waits_for_the_files_sees_the_version_of_its_own_entry() -> None:
    """A checkpoint has the frames up to its own; a reply alone comes before a full disk has taken them."""

    async def work(stores: Stores) -> None:
        written: list[object] = []
        stores.files.room = 1
        stores.add("a")
        stores.add("b")
        stores.end_group(written)
        await turns()
        await stores.confirm("c")
        stores.log.confirm(0)
        assert [name for name, _ in stores.told] == ["a", "b", "c"]
        assert (stores.files.names(), written) == ("a", [])
        assert await stores.changes.get() is True
        stores.files.room = 1_000
        assert await stores.changes.get() is False
        assert (stores.files.names(), written) == ("abc", [100])

    run(work)


@pytest.mark.usefixtures("_soon")
def test_above_the_bound_the_stores_fail_and_all_who_wait_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_commit, "KEPT_BACK_BYTES_MAX", 40)

    async def work(stores: Stores) -> None:
        written: list[object] = []
        stores.files.room = 0
        stores.add("x" * 100)  # accepted before the disk is known to be full: the bound is for what comes later
        stores.end_group(written)
        stores.log.confirm(0)
        count = 0
        while not stores.failures and count < 30:
            await stores.confirm("y" * 10)
            count += 1
        assert 3 < count < 30
        (failure,) = stores.failures
        assert isinstance(failure, Unavailable) and failure.code is Code.DISK_FULL
        assert "for too long" in str(failure)
        await turns()
        assert [error is None for _, error in stores.told] == [True] * count + [False]
        assert [type(error) for error in written] == [Unavailable]
        await asyncio.wait_for(stores.groups.drain(), 5)
        assert stores.files.appended == []

    run(work)


def test_a_stop_does_not_wait_for_space() -> None:
    async def work(stores: Stores) -> None:
        written: list[object] = []
        stores.files.room = 1
        stores.add("a")
        stores.add("b")
        stores.end_group(written)
        stores.log.confirm(0)
        stores.files.room = 0
        await asyncio.wait_for(stores.groups.drain(), 5)
        assert [error.code for error in written if isinstance(error, HoldfastError)] == [Code.DISK_FULL]
        await stores.groups.close()
        assert stores.groups.disk_is_full, "the files still lack a frame"
        assert await stores.changes.get() is True and stores.changes.empty()
        assert (stores.files.names(), stores.failures) == ("a", [])

    run(work)


def test_a_stop_uses_the_space_that_there_is() -> None:
    async def work(stores: Stores) -> None:
        written: list[object] = []
        stores.files.room = 1
        stores.add("a")
        stores.add("b")
        stores.end_group(written)
        stores.log.confirm(0)
        stores.files.room = 1_000
        await asyncio.wait_for(stores.groups.drain(), 5)
        assert (stores.files.names(), written, stores.groups.disk_is_full) == ("ab", [100], False)

    run(work)


@pytest.mark.usefixtures("_soon")
def test_files_that_are_copied_have_whole_entries_or_are_not_copied() -> None:
    async def work(stores: Stores) -> None:
        with stores.groups.files_held():
            await stores.confirm("a")
            await stores.confirm("b", "c")
            assert stores.files.appended == []
            stores.files.room = 2
        assert (stores.files.names(), await stores.changes.get()) == ("ab", True)
        with pytest.raises(Unavailable) as refused, stores.groups.files_held():
            pass
        assert refused.value.code is Code.DISK_FULL
        stores.files.room = 1_000
        assert await stores.changes.get() is False
        with stores.groups.files_held():
            assert stores.files.names() == "abc"
        assert stores.failures == []

    run(work)


def test_files_that_refuse_after_a_full_disk_end_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_commit, "AGAIN_SECONDS", 0.0)

    async def work(stores: Stores) -> None:
        stores.files.room = 0
        await stores.confirm("a")
        stores.files.broken = OSError("no disk")
        await turns()
        assert [type(error) for error in stores.failures] == [OSError]
        await asyncio.wait_for(stores.groups.drain(), 5)

    run(work)


@pytest.mark.usefixtures("_soon")
def test_after_the_end_of_the_leadership_nothing_is_appended() -> None:
    async def work(stores: Stores) -> None:
        stores.files.room = 0
        await stores.confirm("a")
        stores.add("b")
        await turns()
        stores.log.entries[1][1](Fenced("deposed", code=Code.LEADER_CHANGED))
        stores.files.room = 1_000
        await asyncio.sleep(0.005)
        assert (stores.files.appended, stores.failures) == ([], [])

    run(work)
