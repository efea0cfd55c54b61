"""The watch over open acts: when it asks them, how it ends them, and what it keeps of them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from holdfast.errors import HoldfastError
from holdfast.server.http.auth import LOOK_SECONDS, Authenticator, Grant, RightsWatch, Role

TOKENS: dict[str, Role | Grant] = {"a-long-random-token": Role.READ}
PROBLEM = HoldfastError("the right has ended")


class Loop:
    """Timers that fire when a test says so. Tasks run in ``real``, which does not run while the watch looks."""

    def __init__(self) -> None:
        self.real = asyncio.new_event_loop()
        self.timers: list[Callable[[], object]] = []
        self.troubles: list[str] = []
        self.real.set_exception_handler(lambda _, context: self.troubles.append(context["message"]))

    def call_later(self, seconds: float, look: Callable[[], object]) -> object:
        assert seconds == LOOK_SECONDS
        self.timers.append(look)
        return object()

    def create_task(self, ending: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        return self.real.create_task(ending)

    def look(self) -> None:
        [look] = self.timers
        self.timers.clear()
        look()

    def run(self) -> None:
        """Until every task waits or has ended."""
        for _ in range(5):
            self.real.run_until_complete(asyncio.sleep(0))
        gc.collect()


class Act:
    def __init__(self, end: Callable[[], Awaitable[object] | None] = lambda: None) -> None:
        self.end = end
        self.asked = 0
        self.may = True
        self.problems: list[HoldfastError] = []

    def problem(self) -> HoldfastError | None:
        self.asked += 1
        return None if self.may else PROBLEM

    def end_for(self, problem: HoldfastError) -> Awaitable[object] | None:
        self.problems.append(problem)
        return self.end()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.real.close()


def watch_of(tokens: Authenticator, loop: Loop) -> RightsWatch:
    return RightsWatch(tokens, cast("asyncio.AbstractEventLoop", loop))


def test_an_act_is_asked_after_it_began_and_whenever_rights_may_have_changed(loop: Loop) -> None:
    tokens, basis = Authenticator(TOKENS), [object()]
    watch, act, late = watch_of(tokens, loop), Act(), Act()

    def asked() -> int:
        """How often since it was added, after two looks."""
        loop.look()
        once = act.asked
        loop.look()
        assert act.asked == once, "nothing changed between the two"
        return once

    watch.also(lambda: basis[0])
    watch.add(act)
    assert asked() == 1
    tokens.replace(TOKENS)
    assert asked() == 2
    basis[0] = object()
    assert asked() == 3
    watch.also(lambda: None)
    assert asked() == 4
    watch.add(late)
    assert asked() == 4 and late.asked == 1
    tokens.replace({"a-long-random-token": Grant(Role.READ, until=1e12)})
    for looks in range(1, 4):
        loop.look()
        assert (act.asked, late.asked) == (4 + looks, 1 + looks), "its token may have expired meanwhile"


def test_an_act_without_its_right_is_ended_once_and_asked_no_more(loop: Loop) -> None:
    tokens = Authenticator(TOKENS)
    watch, ended, goes_on = watch_of(tokens, loop), Act(), Act()
    watch.add(ended)
    watch.add(goes_on)
    ended.may = False
    for looks in range(1, 4):
        loop.look()
        tokens.replace(TOKENS)
        assert ended.problems == [PROBLEM] and ended.asked == 1
        assert goes_on.problems == [] and goes_on.asked == looks


def test_an_act_that_another_one_ended_is_not_asked(loop: Loop) -> None:
    watch = watch_of(Authenticator(TOKENS), loop)
    other = Act()
    first = Act(end=lambda: watch.discard(other))
    first.may = False
    watch.add(first)
    watch.add(other)
    loop.look()
    assert len(first.problems) == 1 and other.asked == 0
    watch.discard(other)
    watch.discard(first)


@pytest.mark.parametrize(
    ("tokens", "has_basis", "looks"), [({}, False, 0), ({}, True, 1), (TOKENS, False, 1), (TOKENS, True, 1)]
)
def test_there_is_one_timer_while_an_act_is_open_whose_right_may_end(
    loop: Loop, tokens: dict[str, Role | Grant], has_basis: bool, looks: int
) -> None:
    watch = watch_of(Authenticator(tokens), loop)
    if has_basis:
        watch.also(lambda: None)
    acts = [Act(), Act()]
    for _ in range(2):
        for act in acts:
            watch.add(act)
            assert len(loop.timers) == looks
        for act in acts:
            watch.discard(act)
        if looks:
            loop.look()
        assert not loop.timers
        assert not any(act.asked for act in acts)


def test_a_watch_keeps_nothing_of_an_act_that_was_discarded(loop: Loop) -> None:
    watch, act = watch_of(Authenticator({}), loop), Act()
    watch.add(act)
    watch.discard(act)
    kept = weakref.ref(act)
    del act
    assert kept() is None


def test_the_last_words_of_an_act_are_kept_until_they_are_said(loop: Loop) -> None:
    steps: list[str] = []
    waits: list[weakref.ref[asyncio.Future[None]]] = []

    async def says() -> None:
        future = loop.real.create_future()
        waits.append(weakref.ref(future))
        steps.append("begins")
        await future
        steps.append("ends")

    act = Act(says)
    act.may = False
    watch = watch_of(Authenticator(TOKENS), loop)
    watch.add(act)
    loop.look()
    loop.run()
    future = waits[0]()
    assert steps == ["begins"] and future is not None
    future.set_result(None)
    del future
    loop.run()
    assert steps == ["begins", "ends"] and waits[0]() is None and not loop.troubles


def test_last_words_that_fail_or_are_cancelled_trouble_nobody_and_are_not_kept(loop: Loop) -> None:
    tasks: list[weakref.ref[asyncio.Task[object]]] = []

    async def fails(error: type[BaseException]) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(weakref.ref(task))
        raise error

    watch = watch_of(Authenticator(TOKENS), loop)
    for error in (ConnectionResetError, asyncio.CancelledError):
        act = Act(lambda error=error: fails(error))  # type: ignore[misc]
        act.may = False
        watch.add(act)
    loop.look()
    loop.run()
    assert [task() for task in tasks] == [None, None] and not loop.troubles
