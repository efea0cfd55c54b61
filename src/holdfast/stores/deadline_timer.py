"""``DeadlineTimer`` wakes the service of stores for the next deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from holdfast.stores.machine.state import State
from holdfast.stores.values import commands
from holdfast.stores.values.commands import Command
from holdfast.stores.values.deadlines import earlier

WAIT_MS_MAX: Final = 60_000  # a suspended machine stops the timer, not the clock: look again after this
OF_ANY_STORE: Final = commands.Expire, commands.Redefine, commands.Restarted, commands.CommitParts, commands.Inherit


class DeadlineTimer:
    """Calls ``on_timer`` when something is due by ``now_ms``. One event loop."""

    def __init__(self, state: State, *, now_ms: Callable[[], int], on_timer: Callable[[], None]) -> None:
        self._state = state
        self._now_ms = now_ms
        self._on_timer = on_timer
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._touched: dict[str, None] | None = None  # stores with commands since ``arm``; None: any of them
        self.due_ms: int | None = None  # when it fires, None for never

    def touch(self, command: Command) -> None:
        """This command was applied."""
        touched = self._touched
        if touched is None or isinstance(command, OF_ANY_STORE):
            self._touched = None
            return
        touched[command.store] = None
        if isinstance(command, commands.DeadLetter | commands.Resend):
            touched[command.to_store] = None

    def arm(self) -> None:
        """Wake for the next deadline. *Cost*: O(stores touched); O(stores) after an ``Expire`` or a ``Redefine``."""
        due_ms, armed_ms = self._next_ms(), self.due_ms
        if armed_ms is not None and (due_ms is None or due_ms >= armed_ms):
            return
        self.stop()
        self.due_ms = due_ms
        if due_ms is not None:
            wait_ms = min(max(0, due_ms - self._now_ms()), WAIT_MS_MAX)
            self._timer = self._loop.call_later(wait_ms / 1000, self._wake)

    def _next_ms(self) -> int | None:
        state, touched = self._state, self._touched
        self._touched = {}
        if touched is None:
            return earlier(state.next_deadline_ms(), state.next_deadline_ms(volatile=True))
        next_ms = earlier(state.deadlines.next_ms(), state.volatile_deadlines.next_ms())
        for name in touched:
            store = state.stores.get(name)
            if store is not None:
                next_ms = earlier(next_ms, state.store_deadline_ms(store))
        return next_ms

    def _wake(self) -> None:
        self._timer = self.due_ms = self._touched = None
        self._on_timer()

    def stop(self) -> None:
        """Wake no more, until it is armed again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
