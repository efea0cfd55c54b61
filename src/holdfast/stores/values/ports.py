"""The ports through which the state machine reads stored messages, so that its memory is bounded whatever the backlog.

A port raises ``CorruptData`` for damage, and ``ReadUnavailable`` if the read fails now. The content follows from the
commands alone, so the machine stays deterministic.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from holdfast.errors import Unavailable
from holdfast.wire.parts import FieldValue, Message, Origin

BLOCK_MESSAGES: Final = 1_024  # messages of one block: those with seq // BLOCK_MESSAGES alike


def block_parts(first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """The numbers ``first..last`` by block: which one, and the first and last of them in it.

    >>> list(block_parts(1_000, 1_030))
    [(0, 1000, 1023), (1, 1024, 1030)]
    """
    while first <= last:
        number = first // BLOCK_MESSAGES
        end = min(last, (number + 1) * BLOCK_MESSAGES - 1)
        yield number, first, end
        first = end + 1


class ReadUnavailable(Unavailable):
    """The disk cannot be read now. Not a refusal: the command may be half carried out."""


class Kept(msgspec.Struct, frozen=True):
    """What the machine needs to know of one kept message. ``size`` is that of key, fields and body, in bytes."""

    seq: int
    published_ms: int
    size: int
    fields: dict[str, FieldValue]
    key: str | None
    ttl_ms: int
    deliver_at_ms: int
    origin: Origin | None


class Messages(Protocol):
    """Published messages, by store and number."""

    def read(self, store: str, first: int, last: int) -> Sequence[Kept]:
        """Those of ``first..last`` that some durable keeps, ascending, and no others: what a command does must not
        depend on which pages this machine has compacted. Includes those of the current command."""
        ...

    def add(
        self, store: str, first_seq: int, published_ms: int, messages: Sequence[Message], sizes: array[int]
    ) -> None:
        """Accept a batch, in operation and in a replay alike; it can be read from now on. Its record is not in the log
        yet."""

    def forget_store(self, store: str) -> None:
        """A store was deleted, with its messages. A new one of the same name begins with number 1 again."""


class BlockCounts:
    """Counts of up to ``BLOCK_MESSAGES`` consecutive messages: how many durables keep each, and its size.

    ``references``, ``sizes`` and ``published_ms`` have one item per message (index ``seq % BLOCK_MESSAGES``), of 2, 4
    and 8 bytes; a message whose count is 0 is gone; times ascend, and are 0 above the newest. ``live`` and
    ``live_bytes`` are totals. ``earliest_ms`` is the next deadline of a message's own time-to-live, 0 for none.

    ``timed``: some message has its own time-to-live or delivery time, or is a map's value, so each must be examined.
    Own deadlines up to ``swept_ms`` were carried out by every durable, except for leases: such a message must not be
    released again.
    """

    __slots__ = (
        *("earliest_ms", "live", "live_bytes", "number", "swept_ms", "timed"),
        *("published_ms", "references", "sizes"),
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.references = array("H", bytes(2 * BLOCK_MESSAGES))
        self.sizes = array("I", bytes(4 * BLOCK_MESSAGES))
        self.live = 0
        self.published_ms = array("Q", bytes(8 * BLOCK_MESSAGES))
        self.live_bytes = 0
        self.earliest_ms = 0
        self.swept_ms = 0
        self.timed = False


class Blocks(Protocol):
    """The blocks of a store; recently used ones stay in memory."""

    def get(self, store: str, number: int) -> BlockCounts | None:
        """The block to read or change; a changed one is then given to ``put``."""

    def put(self, store: str, block: BlockCounts) -> None:
        """Keep a new or changed block; one with ``live == 0`` below the newest is forgotten."""

    def forget_store(self, store: str) -> None:
        """A store was deleted, with its blocks."""


class KeyEntry(msgspec.Struct, frozen=True):
    """One key of a map or of a last-value durable."""

    key: str
    revision: int
    """The sequence number of the message or change that set it."""
    size: int
    expires_ms: int


class KeyEntries(Protocol):
    """Sorted keys of maps and last-value durables; bodies are found by revision in the log."""

    def get(self, store: str, durable: str, key: str) -> KeyEntry | None:
        """The entry of a key, or None."""

    def put(self, store: str, durable: str, entry: KeyEntry) -> None:
        """Set an entry; it replaces the one of its key."""

    def remove(self, store: str, durable: str, key: str) -> None:
        """Forget a key; nothing happens where there is none."""

    def scan(self, store: str, durable: str, after: str = "") -> Iterator[KeyEntry]:
        """In the order of keys, from the first key above ``after``. The map may change behind the scan."""
        ...

    def take_after(self, store: str, durable: str, after: str, count: int) -> list[KeyEntry]:
        """Remove and return up to ``count`` entries in the order of keys, from the first key above ``after``."""
        ...

    def forget(self, store: str, durable: str = "") -> None:
        """Forget every key of one durable, or of a whole store."""
