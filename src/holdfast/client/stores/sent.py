"""What a publisher was given to send, and what became of it.

Owns: the shape of both. Does not own: what is sent when (``publishing``), who is told how (the shells).
Failure model: pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import HoldfastError
from holdfast.stores.values.messages import Message
from holdfast.wire.stores import Receipt

__all__ = ["Failure", "Sent"]


class Sent:
    """One message on its way. ``seq`` is its number in the store once it is confirmed, 0 where that is not known.

    ``done`` is set with either ``seq`` or ``error``; then ``on_done`` is called, once.
    """

    __slots__ = ("done", "error", "message", "on_done", "receipt", "seq", "size", "told")

    def __init__(self, message: Message, *, told: bool) -> None:
        self.message = message
        self.size = len(message.body) + 64  # the rest of a message is small, and is bounded by the service
        self.seq = 0
        self.done = False
        self.told = told
        """Whether somebody waits for this very message, and hears of its failure without ``take_failures``."""
        self.receipt: Receipt | None = None
        self.error: HoldfastError | None = None
        self.on_done: Callable[[Sent], None] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that is not known to be kept, and why."""

    message: Message
    error: HoldfastError
