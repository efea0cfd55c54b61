"""An event loop whose time goes on only while nothing else can: hours of timers pass in the time that the work takes.

Sockets are real; use Unix sockets, whose bytes are there as soon as they are written. While threads work for the loop,
its time stands still.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
WAIT_SECONDS_MAX = 20.0
"""Of real time, for one piece of work of a thread."""


class _Selector(selectors.BaseSelector):
    """A selector that never waits for time to pass."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.passed: Callable[[float], None] = lambda _: None
        self.works: Callable[[], bool] = lambda: False

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._real.select(0)
        if found or timeout == 0:
            return found
        if timeout is None or self.works():
            found = self._real.select(WAIT_SECONDS_MAX)
            assert found, "the work of a thread ends, and nothing waits for what cannot come"
            return found
        self.passed(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. ``time`` begins at 0."""

    def __init__(self) -> None:
        selector = _Selector()
        self._now = 0.0
        self._working = 0
        super().__init__(selector)
        selector.passed, selector.works = self._pass, lambda: self._working > 0

    def time(self) -> float:
        return self._now

    def _pass(self, seconds: float) -> None:
        self._now += seconds

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        self._working += 1
        work = super().run_in_executor(executor, func, *args)
        work.add_done_callback(self._worked)
        return work

    def _worked(self, _: object) -> None:
        self._working -= 1


def run_virtually(scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a scenario on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario())


async def until(condition: Callable[[], object], *, step_seconds: float = 0.01) -> None:
    """Let time pass until something is so."""
    while not condition():  # noqa: ASYNC110  # conditions of many kinds; nothing sets an event for them
        await asyncio.sleep(step_seconds)
