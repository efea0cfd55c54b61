"""What the server asks of the service that hosts the stores (``stores.service.StoreService`` is one).

Owns: the shape. Does not own: the state machine, its log, the disk.

Failure model: a refused command is answered with a ``HoldfastError`` and changed nothing. After a failed write or sync
what was applied and not told is answered ``outcome_unknown``, and all else ``closed``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from holdfast.errors import HoldfastError
from holdfast.stores.values.commands import Command, Result
from holdfast.stores.values.messages import Delivery

__all__ = ["Answered", "StoreServicePort"]

Answered = Callable[[Result | HoldfastError], None]
"""Called once on the loop, when what the command did is as durable as its store promises. Never raises."""


class StoreServicePort(Protocol):
    """Commands in, durable results out. One event loop, no locks."""

    def submit_nowait(self, command: Command, done: Answered) -> None:
        """Apply a command now, and tell its result when it is durable, never before this returns.

        The service sets ``at_ms``.
        """
        ...

    def submit(self, command: Command) -> Awaitable[Result]:
        """The same, awaited. Raises: what the command is refused with."""
        ...

    def when_safe(self, store: str, done: Callable[[], None]) -> None:
        """Call back when everything of the store that was applied until now is safe and was told; never where it fails.

        Whatever is applied later is told later.
        """
        ...

    async def settled(self) -> None:
        """Return when everything that was applied until now is safe. Raises: what ended the service."""
        ...

    def messages(self, store: str, runs: Iterable[tuple[int, int, int]]) -> list[Delivery]:
        """The messages of runs (first, last, delivery count) that were just delivered, in that order."""
        ...
