"""An event loop on the virtual time of a world: the real shells of a node run on it.

An event runs everything that is ready, so callbacks take no virtual time. Timers of a paused process wait; those of a
process that crashed never fire. There is no clock and no random number; callbacks run first in, first out.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack
from weakref import WeakKeyDictionary

from tests.worlds.log.agenda import Agenda, Owner

__all__ = ["SimulatedLoop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LATER_MS: Final = 1e-6
"""A timer comes a little late, as real ones do: never before the instant that it was asked for."""
TURNS_AT_ONCE_MAX: Final = 200
AT_ONCE_MS: Final = 1e-3


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The loop of one process. ``trouble`` gets what no one caught, and the report of a loop that spins."""

    def __init__(self, agenda: Agenda, owner: Owner, trouble: Callable[[BaseException], None]) -> None:
        self._agenda = agenda
        self._owner = owner
        self._trouble = trouble
        self._ready: deque[asyncio.Handle] = deque()
        self._turning = False
        self._numbers = 0
        self._started: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._timers_at_once = 0
        self._timer_ms = 0.0
        self.dead = False
        self._has_exited = False

    # -- turns --------------------------------------------------------------------------------------------------------

    def turn(self, action: Callable[[Unpack[Ts]], object], *arguments: *Ts) -> None:
        """Run ``action`` on the loop, and everything that it makes ready."""
        if self.dead:
            return
        assert not self._turning, "happenings come one after another"
        self._drain(action, *arguments)

    def _drain(self, action: Callable[[Unpack[Ts]], object], *arguments: *Ts) -> None:
        self._turning = True
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._close_generator)
        asyncio_events._set_running_loop(self)
        try:
            action(*arguments)
            while self._ready and not self._has_exited:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio_events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            self._turning = False

    def _close_generator(self, generator: AsyncGenerator[Any, None]) -> None:
        """A generator that was left in the middle ends on its loop, as a real one sees to it."""
        if not self.dead:
            self.call_soon(self.create_task, generator.aclose())

    def kill(self) -> None:
        """The process crashes: nothing that it waits for comes, and none of its code takes effect any more."""
        self.dead = True
        self._has_exited = False
        self._ready.clear()

        def cancel_all() -> None:
            # In a fixed order: a cancelled task may draw random numbers, and the order of a set depends on addresses.
            for task in sorted(asyncio.all_tasks(self), key=self._started.__getitem__):
                task.cancel()

        self._drain(cancel_all)

    def exit(self) -> None:
        """The process ends in the middle of a callback: nothing of this turn comes after it. ``kill`` follows."""
        self.dead = self._has_exited = True

    def _timer_due(self, handle: asyncio.TimerHandle, delay_ms: float) -> None:
        if self.dead:
            return  # the process has ended
        now_ms = self._agenda.now
        if now_ms - self._timer_ms >= AT_ONCE_MS:
            self._timers_at_once = 0
        # Many timers of old may be due at one instant, after a pause for example; a loop that spins sets them for now.
        self._timers_at_once += delay_ms < AT_ONCE_MS
        self._timer_ms = now_ms
        if self._timers_at_once > TURNS_AT_ONCE_MAX:
            self._trouble(AssertionError(f"an idle leader does not spin: {handle} at {now_ms:.3f} ms"))
        self._drain(handle._run)

    # -- what asyncio asks of a loop ----------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return self._agenda.now / 1000.0

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run in this turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run after so many seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run at a second of ``time``."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            delay_ms = max(0.0, when * 1000.0 - self._agenda.now) + LATER_MS
            self._agenda.after(delay_ms, self._owner, self._timer_due, handle, delay_ms, handle=handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """The agenda skips it."""

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """A task of this loop."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._numbers += 1
        self._started[task] = self._numbers
        return task

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """While a turn lasts."""
        return self._turning

    def is_closed(self) -> bool:
        """Once its process crashed."""
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What no one caught is a bug of ours, unless the process is dying."""
        if not self.dead:
            error = context.get("exception")
            self._trouble(error if isinstance(error, BaseException) else AssertionError(str(context.get("message"))))
