"""What a rewind is about to read, read before it in portions, so that the rewind itself reads nothing.

Owns: which messages of a range a matcher takes, with their own times. Does not own: what of them a durable still wants
(``retention``), when a portion is read and who may go between two of them (the caller).

Failure model: pure, and a hint only. What it holds follows from messages that are kept and from the durable's matcher,
neither of which ever changes; so it does not get old, and a rewind that finds a block missing here reads that block. It
is not part of the state: a replay does without. Memory: 4 bytes for each run of messages that the matcher takes, some
200 for each message with times of its own, ``BYTES_MAX`` together: the rewind itself reads what is behind that.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from holdfast.stores.durables.backlog import expires_ms
from holdfast.stores.values.ports import BLOCK_MESSAGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.stores.durables.backlog import Backlog

__all__ = ["BYTES_MAX", "LookAhead", "Looked"]

BYTES_MAX: Final = 64 << 20
"""Enough for a hundred million messages that all match, or twenty-five million of which each second one does."""
_BLOCK_BYTES: Final = 600
_TIMES_BYTES: Final = 200


class Looked(NamedTuple):
    """A message that the matcher takes: its number, when its own time-to-live ends (0 for never) and when it is due."""

    seq: int
    expires_ms: int
    deliver_at_ms: int


class _Block:
    """What was found of ``first..end - 1``. ``firsts`` and ``lasts`` are runs, as places in the block."""

    __slots__ = ("end", "first", "firsts", "lasts", "times")

    def __init__(self, first: int) -> None:
        self.first = first
        self.end = first
        self.firsts = array("H")
        self.lasts = array("H")
        self.times: dict[int, tuple[int, int]] = {}

    def add(self, place: int) -> None:
        if self.lasts and self.lasts[-1] == place - 1:
            self.lasts[-1] = place
        else:
            self.firsts.append(place)
            self.lasts.append(place)


class LookAhead:
    """The messages of a backlog from ``seq`` up to its cursor."""

    __slots__ = ("_backlog", "_blocks", "_bytes", "_matcher", "_next")

    def __init__(self, backlog: Backlog, seq: int) -> None:
        self._backlog = backlog
        self._matcher = backlog.matcher
        self._next = seq
        self._blocks: dict[int, _Block] = {}
        self._bytes = 0

    def read_on(self) -> bool:
        """Read the next block that has to be read; whether there may be more. Cost: up to 1,024 messages are read."""
        backlog = self._backlog
        while self._next < backlog.cursor and self._bytes < BYTES_MAX:
            first, number = self._next, self._next // BLOCK_MESSAGES
            end = self._next = min(backlog.cursor, (number + 1) * BLOCK_MESSAGES)
            block = backlog.shelf.counts.block(number)
            if block is None or not block.live or (backlog.arithmetic and not block.timed):
                continue
            looked = self._blocks.get(number)
            if looked is None or looked.end != first:
                looked = self._blocks[number] = _Block(first)
            for kept in backlog.shelf.messages.read(backlog.shelf.store, first, end - 1):
                if self._matcher.matches(kept.fields):
                    looked.add(kept.seq % BLOCK_MESSAGES)
                    if kept.ttl_ms or kept.deliver_at_ms:
                        looked.times[kept.seq] = expires_ms(kept), kept.deliver_at_ms
            looked.end = end
            self._bytes += _BLOCK_BYTES + 4 * len(looked.firsts) + _TIMES_BYTES * len(looked.times)
            return True
        return False

    def is_of(self, backlog: Backlog) -> bool:
        """Whether it was read for this backlog, and not for one of another life of the durable."""
        return backlog is self._backlog and backlog.matcher is self._matcher

    def runs(self, first: int, end: int) -> list[tuple[int, int]] | None:
        """The runs among ``first..end - 1``, numbers of one block; None where not all were read or some have times."""
        looked = self._found(first, end)
        if looked is None or looked.times:
            return None
        base = first - first % BLOCK_MESSAGES
        return [
            (max(first, base + low), min(end - 1, base + high))
            for low, high in zip(looked.firsts, looked.lasts, strict=True)
            if first <= base + high and base + low < end
        ]

    def messages(self, first: int, end: int) -> Iterator[Looked] | None:
        """The messages of ``first..end - 1``, numbers of one block; None where not all of them were read."""
        looked = self._found(first, end)
        if looked is None:
            return None
        base = first - first % BLOCK_MESSAGES
        return (
            Looked(seq, *looked.times.get(seq, (0, 0)))
            for low, high in zip(looked.firsts, looked.lasts, strict=True)
            for seq in range(max(first, base + low), min(end, base + high + 1))
        )

    def _found(self, first: int, end: int) -> _Block | None:
        looked = self._blocks.get(first // BLOCK_MESSAGES)
        return looked if looked is not None and looked.first <= first and end <= looked.end else None
