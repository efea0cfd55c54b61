"""Stores in a commit log: replies wait for the log, the files take durable entries only, and an end is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.errors import Code, Fenced, HoldfastError
from holdfast.stores.log_commit import Durable, LogCommit
from holdfast.stores.storage.frames import RECORD, RELOCATED


class Log:
    """A journal whose entries become durable when the test says so."""

    def __init__(self) -> None:
        self.entries: list[tuple[list[tuple[str, bytes]], Durable]] = []

    def write(self, records: list[tuple[str, bytes]], durable: Durable) -> None:
        self.entries.append((records, durable))

    def confirm(self, index: int) -> None:
        self.entries[index][1](100 + index)


class Files:
    """What ``Storage`` is for a ``LogCommit``."""

    def __init__(self) -> None:
        self.appended: list[tuple[list[bytes], int]] = []
        self.broken: Exception | None = None

    def append(self, frames: list[bytes], version: int) -> None:
        if self.broken is not None:
            raise self.broken
        if frames:
            self.appended.append((frames, version))


class Stores:
    """One ``LogCommit`` and what it told."""

    def __init__(self) -> None:
        self.log = Log()
        self.files = Files()
        self.told: list[tuple[str, object]] = []
        self.failures: list[BaseException] = []
        self.closing: Callable[[], None] = lambda: None
        self.groups = LogCommit(
            self.files,  # type: ignore[arg-type]
            self.log,
            closing=lambda: self.closing(),
            completed=lambda: None,
            failed=self.failures.append,
        )

    def add(self, name: str, *, kind: bytes | None = RECORD) -> None:
        frame = None if kind is None else kind + name.encode()
        self.groups.add(frame, lambda error: self.told.append((name, error)), store="s")


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
        stores.closing = lambda: stores.add(deliveries.pop()) if deliveries else None
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
