"""What shares a sync, when a group is taken and who writes it, and that nobody hears before the log has it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from holdfast.stores.group_commit import FAST_GROUPS, FAST_SECONDS, LOOP_BYTES_MAX, SINGLE_GROUPS, GroupCommit

ENOUGH = max(FAST_GROUPS, SINGLE_GROUPS)


class Log:
    """A log whose syncs wait until they may end."""

    def __init__(self) -> None:
        self.groups: list[list[bytes]] = []
        self.synced = 0
        self.appended = threading.Event()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.slow_syncs = 0
        self.now = 0.0
        self.broken: BaseException | None = None
        self.marked = 0
        self.writers: list[str] = []

    def append(self, frames: Sequence[bytes]) -> None:
        self.writers.append("loop" if threading.current_thread() is threading.main_thread() else "thread")
        if self.broken is not None:
            raise self.broken
        self.groups.append(list(frames))
        self.appended.set()

    def sync(self, *, mark: bool) -> None:
        assert self.may_sync.wait(30)
        if self.slow_syncs:
            self.slow_syncs -= 1
            self.now += 2 * FAST_SECONDS
        self.synced = len(self.groups)
        if mark:
            self.marked = self.synced

    def write_mark(self) -> None:
        self.marked = self.synced


class Loop:
    """One group commit over such a log."""

    def __init__(self) -> None:
        self.log = Log()
        self.closings = 0
        self.broken = self.poisons = False
        self.asks: list[bytes] = []
        self.failures: list[BaseException] = []
        self.told: list[tuple[str, BaseException | None, int]] = []
        self.groups = GroupCommit(
            self.log,  # type: ignore[arg-type]  # what is called of a log is there
            self,
            clock=lambda: self.log.now,
        )

    def after_group(self) -> None:
        pass

    def group_failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def disk_changed(self) -> None:
        raise AssertionError("a full disk ends these stores")

    def before_group(self) -> None:
        self.closings += 1
        if self.broken:
            raise RuntimeError("nobody can be asked")
        if self.poisons:
            self.groups.poison(RuntimeError("half changed"))
        asks, self.asks = self.asks, []
        for frame in asks:
            self.add(frame.decode())

    def add(self, name: str) -> None:
        self.groups.add(name.encode(), lambda error: self.told.append((name, error, self.log.synced)), at_once=True)

    async def alone(self, count: int) -> None:
        """So many, one after the other."""
        for number in range(count):
            self.add(f"alone {number}")
            await self.groups.drain()
        self.told.clear()
        self.log.groups.clear()
        self.log.writers.clear()
        self.log.synced = self.log.marked = 0
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
        await here.alone(SINGLE_GROUPS - 1)
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
        await here.alone(SINGLE_GROUPS)
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
        await here.alone(SINGLE_GROUPS)
        here.log.may_sync.clear()
        here.add("a")
        await asyncio.to_thread(here.log.appended.wait, 30)
        assert (here.log.groups, here.told) == ([[b"a"]], [])
        here.log.may_sync.set()
        await here.groups.drain()
        assert here.told == [("a", None, 1)]

    run(scenario)


@pytest.mark.parametrize("lone", [0, SINGLE_GROUPS])
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
        await here.alone(SINGLE_GROUPS)
        closings = here.closings
        here.groups.add(b"a", lambda _: None)
        assert here.closings == closings
        await here.groups.drain()
        assert here.log.groups == [[b"a"]]

    run(scenario)


def test_the_loop_writes_for_who_is_alone_once_groups_are_quick_and_not_before() -> None:
    async def scenario(here: Loop) -> None:
        for _ in range(ENOUGH):
            here.add("a")
            await here.groups.drain()
        assert here.log.writers == ENOUGH * ["thread"]
        await here.alone(0)
        here.add("a")
        assert (here.log.writers, here.told) == (["loop"], [])  # written, and never told before add returns
        await here.groups.drain()
        assert here.told == [("a", None, 1)]

    run(scenario)


def test_who_comes_while_the_loop_writes_is_the_next_group_and_the_threads() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        for name in ("a", "b", "c"):
            here.add(name)
        await here.groups.drain()
        assert here.log.groups == [[b"a"], [b"b", b"c"]]
        assert here.log.writers == ["loop", "thread"]
        assert [name for name, _, _ in here.told] == ["a", "b", "c"]

    run(scenario)


def test_after_a_slow_group_the_thread_writes_until_many_were_quick() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        here.log.slow_syncs = 1
        for _ in range(FAST_GROUPS + 1):
            here.add("a")
            await here.groups.drain()
        assert here.log.writers == ["loop"] + FAST_GROUPS * ["thread"]

    run(scenario)


def test_a_disk_that_is_always_slow_never_stops_the_loop() -> None:
    async def scenario(here: Loop) -> None:
        here.log.slow_syncs = 3 * ENOUGH
        for _ in range(3 * ENOUGH):
            here.add("a")
            await here.groups.drain()
        assert set(here.log.writers) == {"thread"}

    run(scenario)


def test_a_large_frame_is_the_threads() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        here.add("a" * (LOOP_BYTES_MAX + 1))
        await here.groups.drain()
        assert here.log.writers == ["thread"]

    run(scenario)


def test_what_the_loop_cannot_write_is_told_to_all_and_never_before_add_returns() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        here.log.broken = OSError("no such disk")
        here.add("a")
        here.add("b")
        assert (here.told, here.log.writers) == ([], ["loop"])
        await here.groups.drain()
        assert [(name, str(error)) for name, error, _ in here.told] == [("a", "no such disk"), ("b", "no such disk")]
        assert len(here.failures) == 1

    run(scenario)


def test_an_interrupt_while_the_loop_writes_goes_on_and_everyone_is_told() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        here.log.broken = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            here.add("a")
        assert here.told == []
        await here.groups.drain()
        assert [(name, type(error)) for name, error, _ in here.told] == [("a", KeyboardInterrupt)]

    run(scenario)


def test_who_is_alone_and_not_to_be_taken_at_once_is_written_and_told_in_the_loops_next_turn() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        loop = asyncio.get_running_loop()
        order: list[str] = []

        def answer(_: BaseException | None) -> None:
            order.append("told")
            # Whoever adds from an answer is the next group, which the thread writes: it came behind this one.
            here.groups.add(b"b", lambda _: order.append("told b"), at_once=True)

        here.groups.add(b"a", answer)
        assert order == []
        loop.call_soon(order.append, "next turn")
        await here.groups.drain()
        assert order == ["told", "next turn", "told b"]
        assert here.log.writers == ["loop", "thread"]

    run(scenario)


def test_what_is_asked_for_before_the_loop_writes_is_in_the_group() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        here.asks = [b"delivery"]
        here.add("a")
        assert here.log.groups == [[b"a", b"delivery"]]
        await here.groups.drain()
        assert here.log.writers == ["loop"]
        assert [name for name, _, _ in here.told] == ["a", "delivery"]

    run(scenario)


def test_who_is_held_is_not_written_by_the_loop_until_released() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        here.groups.pause()
        here.add("a")
        await asyncio.sleep(0)
        assert (here.log.groups, here.told) == ([], [])
        here.groups.resume()
        await here.groups.drain()
        assert here.told == [("a", None, 1)]

    run(scenario)


def test_while_the_disk_is_busy_the_thread_writes() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        here.groups.disk_is_busy = True
        here.add("a")
        await here.groups.drain()
        here.groups.disk_is_busy = False
        here.add("b")
        await here.groups.drain()
        assert here.log.writers == ["thread", "loop"]

    run(scenario)


def test_groups_that_are_not_synced_say_nothing_of_the_disk() -> None:
    async def scenario(here: Loop) -> None:
        here.groups.syncs = False
        await here.alone(2 * ENOUGH)  # the first one is synced: what was added while all were, is
        here.groups.syncs = True
        here.add("a")
        await here.groups.drain()
        assert here.log.writers == ["thread"]

    run(scenario)


def test_a_failure_that_closing_tells_is_never_told_before_add_returns() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        here.poisons = True
        here.add("a")
        assert here.told == []
        await here.groups.drain()
        assert [(name, str(error)) for name, error, _ in here.told] == [("a", "half changed")]
        assert here.log.groups == []

    run(scenario)


@pytest.mark.parametrize("behind", ["nothing", "an answer", "a pause"])
def test_no_mark_is_left_behind(behind: str) -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        here.add("a")
        if behind == "an answer":
            here.groups.add(None, lambda _: None)
            await here.groups.drain()
        elif behind == "a pause":
            here.groups.pause()
            here.add("b")
            for _ in range(3):  # its answer, then the turn of the group that is held
                await asyncio.sleep(0)
            assert here.told == [("a", None, 1)]
        else:
            await here.groups.drain()
        assert (here.log.synced, here.log.marked) == (1, 1)
        here.groups.resume()

    run(scenario)


def test_what_the_loop_has_written_is_marked_after_its_answer_and_before_the_next() -> None:
    async def scenario(here: Loop) -> None:
        await here.alone(ENOUGH)
        marked: list[int] = []
        for _ in range(3):
            here.groups.add(b"a", lambda _: marked.append(here.log.marked), at_once=True)
            await here.groups.drain()
        assert marked == [0, 1, 2]
        assert here.log.marked == 3

    run(scenario)
