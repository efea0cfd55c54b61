"""The timer of all deadlines of the stores: it wakes for the next one.

Owns: when that is, at the cost of what has changed. Does not own: the deadlines (``state``), what is done then
(``service``).

Failure model: it may wake too early, because the deadline has moved on since, and never too late, but by at most
``WAIT_MS_MAX`` after the machine was suspended. The law: while a timer is set no store has an earlier deadline, and
while none is set no store has any; but for those touched since.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.stores.values.commands import DeadLetter, Define, Expire, Redefine, Resend, Restarted
from holdfast.stores.values.expiry import earlier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.stores.machine.state import State
    from holdfast.stores.values.commands import Command

__all__ = ["Alarm"]

WAIT_MS_MAX: Final = 60_000
"""The clock is looked at again at least this often: in a suspended machine it goes on, and the timer does not."""

_OF_ANY_STORE: Final = Expire, Define, Redefine, Restarted


class Alarm:
    """``ring`` is called when something is due; ``now_ms`` gives the time by which it is. One event loop."""

    def __init__(self, state: State, *, now_ms: Callable[[], int], ring: Callable[[], None]) -> None:
        self._state = state
        self._now_ms = now_ms
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._touched: dict[str, None] | None = None
        """Stores of which something was applied since ``arm`` looked, None for any of them."""
        self.due_ms: int | None = None
        """When it rings, None for never."""

    def touch(self, command: Command) -> None:
        """This command was applied."""
        touched = self._touched
        if touched is None or isinstance(command, _OF_ANY_STORE):
            self._touched = None
            return
        touched[command.store] = None
        if isinstance(command, DeadLetter | Resend):
            touched[command.to_store] = None

    def arm(self) -> None:
        """Wake for the next deadline. *Cost*: O(stores touched); O(stores) after an ``Expire`` or a ``Define``."""
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
        found = earlier(state.deadlines.next_ms(), state.volatile_deadlines.next_ms())
        for name in touched:
            store = state.stores.get(name)
            if store is not None:
                found = earlier(found, state.store_deadline_ms(store))
        return found

    def _wake(self) -> None:
        self._timer = self.due_ms = self._touched = None
        self._ring()

    def stop(self) -> None:
        """Wake no more, until it is armed again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
