"""What shares a sync, when a group is taken, and that nobody hears before the log has it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from holdfast.stores.group_commit import LONE_GROUPS, GroupCommit


class Log:
    """A log whose syncs wait until they may end."""

    def __init__(self) -> None:
        self.groups: list[list[bytes]] = []
        self.synced = 0
        self.appended = threading.Event()
        self.may_sync = threading.Event()
        self.may_sync.set()

    def append(self, frames: Sequence[bytes]) -> None:
        self.groups.append(list(frames))
        self.appended.set()

    def sync(self) -> None:
        assert self.may_sync.wait(30)
        self.synced = len(self.groups)


class Loop:
    """One group commit over such a log."""

    def __init__(self) -> None:
        self.log = Log()
        self.closings = 0
        self.broken = False
        self.failures: list[BaseException] = []
        self.told: list[tuple[str, BaseException | None, int]] = []
        self.groups = GroupCommit(
            self.log,  # type: ignore[arg-type]  # what is called of a log is there
            closing=self._closing,
            settled=lambda: None,
            failed=self.failures.append,
        )

    def _closing(self) -> None:
        self.closings += 1
        if self.broken:
            raise RuntimeError("nobody can be asked")

    def add(self, name: str) -> None:
        self.groups.add(name.encode(), lambda error: self.told.append((name, error, self.log.synced)), at_once=True)

    async def alone(self, count: int) -> None:
        """So many, one after the other."""
        for number in range(count):
            self.add(f"alone {number}")
            await self.groups.drain()
        self.told.clear()
        self.log.groups.clear()
        self.log.synced = 0
        self.log.appended.clear()


def run(scenario: Callable[[Loop], Awaitable[None]]) -> None:
    async def whole() -> None:
        here = Loop()
        try:
            await scenario(here)
        finally:
            here.log.may_sync.set()
            await here.groups.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_what_comes_in_one_turn_of_the_loop_is_one_group() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(LONE_GROUPS - 1)
        here.add("a")
        here.add("b")
        await here.groups.drain()
        assert here.log.groups == [[b"a", b"b"]]
        # Two came together, so the next ones are waited for again, however many were alone before.
        here.add("c")
        here.add("d")
        await here.groups.drain()
        assert here.log.groups[1:] == [[b"c", b"d"]]

    run(scenario)


def test_who_is_alone_again_and_again_waits_for_nobody() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(LONE_GROUPS)
        closings = here.closings
        here.add("a")
        assert here.closings == closings + 1
        here.add("b")
        await here.groups.drain()
        assert here.log.groups == [[b"a"], [b"b"]]
        # Somebody came behind it, so the next ones are waited for.
        here.add("c")
        here.add("d")
        await here.groups.drain()
        assert here.log.groups[2:] == [[b"c", b"d"]]

    run(scenario)


def test_who_is_alone_is_answered_after_the_sync_and_never_before_add_returns() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(LONE_GROUPS)
        here.log.may_sync.clear()
        here.add("a")
        await asyncio.to_thread(here.log.appended.wait, 30)
        assert (here.log.groups, here.told) == ([[b"a"]], [])
        here.log.may_sync.set()
        await here.groups.drain()
        assert here.told == [("a", None, 1)]

    run(scenario)


@pytest.mark.parametrize("lone", [0, LONE_GROUPS])
def test_what_breaks_before_a_group_is_told_to_all_and_never_before_add_returns(lone: int) -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(lone)
        here.broken = True
        here.add("a")
        assert here.told == []
        here.add("b")
        await here.groups.drain()
        assert [(name, str(error)) for name, error, _ in here.told] == [
            ("a", "nobody can be asked"),
            ("b", "nobody can be asked"),
        ]
        assert here.log.groups == []
        assert len(here.failures) == 1

    run(scenario)


def test_who_is_not_to_be_taken_at_once_is_not() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(LONE_GROUPS)
        closings = here.closings
        here.groups.add(b"a", lambda _: None)
        assert here.closings == closings
        await here.groups.drain()
        assert here.log.groups == [[b"a"]]

    run(scenario)
