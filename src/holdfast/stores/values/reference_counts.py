"""How many durables keep each message of one store, and the store's totals.

The totals are exact: a message counts once, from its acceptance to the release by its last durable. A message that no
durable wants takes a number and nothing else.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

from holdfast.stores.values.deadlines import Deadlines
from holdfast.stores.values.ports import BLOCK_MESSAGES, BlockCounts, Blocks

REFERENCES_MAX = 65_534  # durables of one store: a count has two bytes
MAP_VALUE = 65_535  # the count of a map's value: one map keeps it, and no other durable ever wants it
TIME_BLOCKS_MAX = 1_024  # blocks that time_from looks for
_ZEROS = array("H", bytes(2 * BLOCK_MESSAGES))


class ReferenceCounts:
    """The messages of one store by number. Cost of a range: O(blocks) where neighbours have equal counts."""

    def __init__(self, store: str, blocks: Blocks) -> None:
        self._store = store
        self._blocks = blocks
        self.next_seq = 1
        self.live = 0
        self.live_bytes = 0
        self.due_blocks: Deadlines[int] = Deadlines()
        """Blocks by the earliest own time-to-live of a message in them."""

    def block(self, number: int) -> BlockCounts | None:
        """One block, to read."""
        return self._blocks.get(self._store, number)

    def is_kept(self, seq: int) -> bool:
        """Whether any durable keeps a message."""
        return self.references(seq) > 0

    def references(self, seq: int) -> int:
        """How many durables keep a message; ``MAP_VALUE`` for a map's value."""
        block = self._blocks.get(self._store, seq // BLOCK_MESSAGES)
        return block.references[seq % BLOCK_MESSAGES] if block is not None else 0

    def published_ms(self, seq: int) -> int:
        """When a message that was accepted was published; 0 where its block was forgotten."""
        block = self._blocks.get(self._store, seq // BLOCK_MESSAGES)
        return block.published_ms[seq % BLOCK_MESSAGES] if block is not None else 0

    def time_from(self, seq: int) -> int:
        """A time not after the publication of anything from ``seq`` on; 0 if there is nothing, or a long gap.

        Cost: O(forgotten blocks), at most ``TIME_BLOCKS_MAX`` of them.
        """
        number, offset = divmod(seq, BLOCK_MESSAGES)
        for _ in range(TIME_BLOCKS_MAX):
            if number * BLOCK_MESSAGES + offset >= self.next_seq:
                break
            block = self._blocks.get(self._store, number)
            if block is not None:
                return block.published_ms[offset]
            number, offset = number + 1, 0
        return 0

    def size(self, first: int, last: int) -> int:
        """Bytes of ``first..last`` together, whether they are kept or not."""
        total = 0
        while first <= last:
            number, low = divmod(first, BLOCK_MESSAGES)
            high = min(last - number * BLOCK_MESSAGES + 1, BLOCK_MESSAGES)
            block = self._blocks.get(self._store, number)
            total += sum(block.sizes[low:high]) if block is not None else 0
            first += high - low
        return total

    def first_since(self, at_ms: int, low: int, high: int) -> int:
        """The first of ``low..high - 1`` that was published at or after ``at_ms``, else ``high``. Cost: O(blocks)."""
        while low < high:
            number, offset = divmod(low, BLOCK_MESSAGES)
            end = min(high - number * BLOCK_MESSAGES, BLOCK_MESSAGES)
            block = self._blocks.get(self._store, number)
            if block is not None and block.published_ms[end - 1] >= at_ms:
                return number * BLOCK_MESSAGES + bisect_left(block.published_ms, at_ms, offset, end)
            low += end - offset
        return high

    def append(self, sizes: array[int], references: array[int], at_ms: int) -> int:
        """Accept messages with their counts; returns the number of the first."""
        first = self.next_seq
        done, total = 0, len(sizes)
        if total == 1:
            self._append_one(sizes[0], references[0], at_ms)
            done = 1
        while done < total:
            number, low = divmod(first + done, BLOCK_MESSAGES)
            part = min(total - done, BLOCK_MESSAGES - low)
            block = self._blocks.get(self._store, number) or BlockCounts(number)
            block.sizes[low : low + part] = sizes[done : done + part]
            block.references[low : low + part] = references[done : done + part]
            block.published_ms[low : low + part] = array("Q", [at_ms]) * part
            counted, counted_bytes = block.live, block.live_bytes
            _recount(block, low, part)
            self.live += block.live - counted
            self.live_bytes += block.live_bytes - counted_bytes
            self._blocks.put(self._store, block)
            done += part
        self.next_seq = first + total
        return first

    def _append_one(self, size: int, count: int, at_ms: int) -> None:
        """The common case, without a slice for each array."""
        number, offset = divmod(self.next_seq, BLOCK_MESSAGES)
        block = self._blocks.get(self._store, number) or BlockCounts(number)
        block.sizes[offset], block.references[offset], block.published_ms[offset] = size, count, at_ms
        if count:
            block.live += 1
            block.live_bytes += size
            self.live += 1
            self.live_bytes += size
        self._blocks.put(self._store, block)

    def mark_timed(self, seq: int, deadline_ms: int) -> None:
        """A message has its own time-to-live, up to ``deadline_ms`` (0: it is only delivered late)."""
        block = self._blocks.get(self._store, seq // BLOCK_MESSAGES)
        if block is None:
            return  # no durable wants any message of this block, so it is forgotten already
        block.timed = True
        if deadline_ms and (not block.earliest_ms or deadline_ms < block.earliest_ms):
            block.earliest_ms = deadline_ms
            self.due_blocks.set(block.number, deadline_ms)
        self._blocks.put(self._store, block)

    def append_values(self, sizes: array[int], kept: array[int], at_ms: int) -> int:
        """Number the changes of a map; those with 1 in ``kept`` are values, the others removals."""
        first = self.append(sizes, array("H", [MAP_VALUE if item else 0 for item in kept]), at_ms)
        for number in range(first // BLOCK_MESSAGES, (self.next_seq - 1) // BLOCK_MESSAGES + 1):
            block = self._blocks.get(self._store, number)
            if block is not None:  # a block of removals alone is forgotten already
                block.timed = True
                self._blocks.put(self._store, block)
        return first

    def swept(self, number: int, at_ms: int, earliest_ms: int) -> None:
        """Own times-to-live of a block up to ``at_ms`` were carried out; ``earliest_ms`` is the next, 0: none."""
        block = self._blocks.get(self._store, number)
        if block is not None:
            block.swept_ms, block.earliest_ms = at_ms, earliest_ms
            self._blocks.put(self._store, block)
        self.due_blocks.set(number, earliest_ms or None)

    def release(self, first: int, last: int) -> int:
        """One durable no longer keeps ``first..last``. Returns their bytes."""
        total = 0
        while first <= last:
            number, low = divmod(first, BLOCK_MESSAGES)
            high = min(last - number * BLOCK_MESSAGES + 1, BLOCK_MESSAGES)
            block = self._blocks.get(self._store, number)
            assert block is not None, "a message that is kept has a block"
            live, live_bytes = block.live, block.live_bytes
            total += _release_one(block, low) if high - low == 1 else _release(block, low, high)
            self.live += block.live - live
            self.live_bytes += block.live_bytes - live_bytes
            if not block.live and block.earliest_ms:
                block.earliest_ms = 0
                self.due_blocks.set(number, None)
            self._blocks.put(self._store, block)
            first += high - low
        return total

    def lose(self, seq: int) -> None:
        """Drop every reference to a message."""
        block = self._blocks.get(self._store, seq // BLOCK_MESSAGES)
        offset = seq % BLOCK_MESSAGES
        if block is None or not block.references[offset]:
            return
        block.references[offset] = 1
        self.release(seq, seq)

    def check(self) -> None:
        """The totals of the newest block are those of its messages."""
        block = self._blocks.get(self._store, self.next_seq // BLOCK_MESSAGES)
        if block is not None:
            live = BLOCK_MESSAGES - block.references.count(0)
            assert live == block.live, "a block's total is that of its messages"
        assert self.live >= 0 and self.live_bytes >= 0, "totals are never negative"


def _recount(block: BlockCounts, low: int, part: int) -> None:
    references, sizes = block.references[low : low + part], block.sizes[low : low + part]
    dropped = references.count(0)
    block.live += part - dropped
    block.live_bytes += sum(sizes)
    if dropped:
        block.live_bytes -= sum(size for size, count in zip(sizes, references, strict=True) if not count)


def _release_one(block: BlockCounts, offset: int) -> int:
    count, size = block.references[offset], block.sizes[offset]
    assert count > 0, "what is released is kept"
    gone = count in (1, MAP_VALUE)
    block.references[offset] = 0 if gone else count - 1
    if gone:
        block.live -= 1
        block.live_bytes -= size
    return size


def _release(block: BlockCounts, low: int, high: int) -> int:
    counts, sizes = block.references[low:high], block.sizes[low:high]
    count, length = counts[0], high - low
    total = sum(sizes)
    if counts.count(count) != length:
        for offset in range(low, high):
            _release_one(block, offset)
        return total
    assert count > 0, "what is released is kept"
    if count in (1, MAP_VALUE):
        block.references[low:high] = _ZEROS[:length]
        block.live -= length
        block.live_bytes -= total
    else:
        block.references[low:high] = array("H", [count - 1]) * length
    return total
