"""When the first of the messages that wait to be handed out again began to live.

Owns: ``Arrivals``, an index over ``Returned.runs``. It is no part of the state: it follows from the runs, and is built
when a durable with a time-to-live first asks for it.

A message of a block without own times begins to live when it is published, and these times ascend: the block has one
entry, which is corrected when it is the earliest. A message of another block has an entry of its own.

Failure model: pure.
"""

from __future__ import annotations

from holdfast.stores.values.expiry import Deadlines, earlier
from holdfast.stores.values.ports import BLOCK_MESSAGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.durables.backlog import Shelf
    from holdfast.stores.durables.returned import Returned

__all__ = ["Arrivals"]


class Arrivals:
    """*Cost*: O(log) for each block and each message with a time of its own, amortised; each of these is read once.

    Entries of messages that do not wait any more are removed when they are the earliest, or are too many.
    """

    __slots__ = ("_by_block", "_by_message", "_returned", "_shelf")

    def __init__(self, shelf: Shelf, returned: Returned) -> None:
        self._shelf = shelf
        self._returned = returned
        self._by_block: Deadlines[int] = Deadlines()
        self._by_message: Deadlines[int] = Deadlines()
        for first, last, _ in returned.runs:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """These wait now."""
        while first <= last:
            number = first // BLOCK_MESSAGES
            end = min(last, (number + 1) * BLOCK_MESSAGES - 1)
            block = self._shelf.counts.block(number)
            if block is not None and block.timed:
                self._add_each(first, end)
            else:
                known_ms, at_ms = self._by_block.get(number), self._shelf.counts.published_ms(first)
                self._by_block.set(number, at_ms if known_ms is None else min(known_ms, at_ms))
            first = end + 1
        if len(self._by_message) > 64 + 2 * self._returned.total:
            left = {seq: at_ms for seq, at_ms in self._by_message.items().items() if self._returned.waits(seq)}
            self._by_message = Deadlines(left)

    def _add_each(self, first: int, last: int) -> None:
        if all(self._by_message.get(seq) is not None for seq in range(first, last + 1)):
            return
        found = {
            kept.seq: max(kept.published_ms, kept.deliver_at_ms)
            for kept in self._shelf.messages.read(self._shelf.store, first, last)
        }
        for seq in range(first, last + 1):
            at_ms = found.get(seq)
            self._by_message.set(seq, self._shelf.counts.published_ms(seq) if at_ms is None else at_ms)

    def earliest_ms(self) -> int | None:
        """When the first of those that wait began to live, None where none waits."""
        return earlier(self._earliest_of_blocks(), self._earliest_of_messages())

    def _earliest_of_messages(self) -> int | None:
        found = self._by_message
        while (at_ms := found.next_ms()) is not None:
            seq = found.pop(at_ms)
            assert seq is not None, "the earliest is there"
            if self._returned.waits(seq):
                found.set(seq, at_ms)
                return at_ms
        return None

    def _earliest_of_blocks(self) -> int | None:
        found, counts = self._by_block, self._shelf.counts
        while (at_ms := found.next_ms()) is not None:
            number = found.pop(at_ms)
            assert number is not None, "the earliest is there"
            begin, end = number * BLOCK_MESSAGES, (number + 1) * BLOCK_MESSAGES
            block = counts.block(number)
            if block is not None and block.timed:
                # A later message of the block has a time of its own.
                for first, last in self._returned.between(begin, end - 1):
                    self._add_each(first, last)
                continue
            seq = self._returned.first_from(begin)
            if seq is not None and seq < end:
                found.set(number, counts.published_ms(seq))
                if counts.published_ms(seq) == at_ms:
                    return at_ms
        return None
