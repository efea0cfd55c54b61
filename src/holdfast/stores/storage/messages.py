"""The messages that are kept: the newest in memory, the rest in the log.

The newest messages stay in memory up to ``recent_bytes``, and always until they are written. Messages that were read
from the log stay for a while, up to ``reread_bytes``. A frame of a kept message that cannot be read is
``CorruptData``; ``OSError`` from the log passes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from holdfast.errors import CorruptData, NotFound
from holdfast.stores.storage.frames import MessageRun, Relocated, decode_frame, runs_of
from holdfast.stores.storage.locations import Extent, Locations
from holdfast.stores.storage.log import MessageLog
from holdfast.stores.values.ports import BLOCK_MESSAGES, Blocks, Kept
from holdfast.wire.parts import Delivery, Message

RECENT_BYTES: Final = 64 << 20
REREAD_BYTES: Final = 32 << 20
MESSAGE_OVERHEAD_BYTES: Final = 160  # about what the objects of a message take in addition to its bytes
FIELD_OVERHEAD_BYTES: Final = 120


def message_bytes(message: Message) -> int:
    """About what a message takes in memory."""
    return len(message.body) + MESSAGE_OVERHEAD_BYTES + FIELD_OVERHEAD_BYTES * len(message.fields)


class _Recent:
    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.runs: list[MessageRun] = []


class StoredMessages:
    """Messages by store and number. Implements ``ports.Messages``."""

    def __init__(
        self,
        log: MessageLog,
        locations: Locations,
        blocks: Blocks,
        *,
        recent_bytes: int = RECENT_BYTES,
        reread_bytes: int = REREAD_BYTES,
    ) -> None:
        self.next_frame = log.last + 1  # the number of the frame that the next change will be in
        self._log = log
        self._locations = locations
        self._blocks = blocks
        self._recent: dict[str, _Recent] = {}  # the newest runs of each store, ascending
        self._queue: deque[tuple[_Recent, int, int]] = deque()  # (where, bytes, frame) of a run, oldest first
        self._recent_bytes = 0
        self._recent_bytes_max = recent_bytes
        self._reread: OrderedDict[tuple[str, int, int], tuple[list[MessageRun], int, int]] = OrderedDict()
        self._near: tuple[Extent, list[MessageRun]] | None = None  # read last: mostly the next one is there too
        self._relocating: dict[tuple[str, int, int], list[MessageRun]] = {}
        """What is not written yet, by store, first number and frame."""
        self._reread_bytes = 0
        self._reread_bytes_max = reread_bytes

    def add(
        self, store: str, first_seq: int, published_ms: int, messages: Sequence[Message], sizes: array[int]
    ) -> None:
        """These messages are, or will be, in frame ``next_frame`` of the log. See ``ports.Messages``."""
        size = sum(sizes) + MESSAGE_OVERHEAD_BYTES * len(messages)
        run = MessageRun(store, first_seq, published_ms, tuple(messages))
        recent = self._recent.get(store)
        if recent is None:
            recent = self._recent[store] = _Recent()
        recent.firsts.append(first_seq)
        recent.runs.append(run)
        self._queue.append((recent, size, self.next_frame))
        self._recent_bytes += size
        self._locations.add(store, first_seq, run.last_seq, self.next_frame, size)
        if self._recent_bytes > self._recent_bytes_max:
            self._evict()

    def relocate(self, relocated: Relocated, frame: int) -> None:
        """The kept messages of an extent are in this frame now."""
        written = self._log.last
        self._relocating = {key: entry for key, entry in self._relocating.items() if key[2] > written}
        self._relocating[relocated.store, relocated.first_seq, frame] = relocated.runs
        size = sum(message_bytes(message) for run in relocated.runs for message in run.messages)
        self._locations.move(relocated.store, relocated.first_seq, relocated.last_seq, frame, size)

    def forget_store(self, store: str) -> None:
        """A store was deleted, with its messages."""
        self._recent.pop(store, None)
        self._near = None
        self._locations.forget_store(store)
        for key in [key for key in self._reread if key[0] == store]:
            self._reread_bytes -= self._reread.pop(key)[1]

    def _evict(self) -> None:
        """Release the oldest written messages from memory: an eighth more than needed, so that it is rare."""
        written = self._log.last
        queue = self._queue
        target = self._recent_bytes_max - self._recent_bytes_max // 8
        counts: dict[_Recent, int] = {}
        while queue and self._recent_bytes > target and queue[0][2] <= written:
            recent, size, _ = queue.popleft()
            self._recent_bytes -= size
            counts[recent] = counts.get(recent, 0) + 1
        for recent, count in counts.items():
            del recent.firsts[:count]
            del recent.runs[:count]

    def runs(self, store: str, first: int, last: int) -> Iterator[MessageRun]:
        """The runs that have messages of ``first..last``, ascending."""
        recent = self._recent.get(store)
        firsts = recent.firsts if recent is not None else []
        # What is not in the log yet is among the recent ones, and these have no holes: all below them is in the log.
        recent_first = firsts[0] if firsts else last + 1
        seq = first
        while seq <= last and seq < recent_first:
            near = self._near
            if near is None or near[0].store != store or not near[0].first_seq <= seq <= near[0].last_seq:
                extent = self._locations.find(store, seq)
                if extent is None or extent.first_seq > last or extent.first_seq >= recent_first:
                    break
                whole = extent.last_frame <= self._log.last
                near = extent, self._read_extent(extent)
                self._near = near if whole else None
            extent, near_runs = near
            for run in near_runs[max(0, bisect_right(near_runs, seq, key=_first_seq_of) - 1) :]:
                if run.first_seq > last or run.first_seq >= recent_first:
                    break
                if run.last_seq >= seq:
                    yield run
            seq = extent.last_seq + 1
        if recent is not None and recent_first <= last:
            index = max(0, bisect_right(firsts, max(first, recent_first)) - 1)
            for run in recent.runs[index : bisect_right(firsts, last)]:
                if run.last_seq >= first:
                    yield run

    def _read_extent(self, extent: Extent) -> list[MessageRun]:
        last_frame = min(extent.last_frame, self._log.last)
        key = (extent.store, extent.first_seq, extent.first_frame)
        if last_frame < extent.first_frame:
            return self._relocating[key]
        known = self._reread.get(key)
        if known is not None and known[2] == last_frame:
            self._reread.move_to_end(key)
            return known[0]
        frames = self._read_frames(extent, last_frame)
        runs = _clipped([run for number, data in frames for run in runs_of(decode_frame(data, number))], extent)
        if known is not None:
            self._reread_bytes -= known[1]
        size = sum(message_bytes(message) for run in runs for message in run.messages)
        self._reread[key] = runs, size, last_frame
        self._reread_bytes += size
        while self._reread_bytes > self._reread_bytes_max and len(self._reread) > 1:
            self._reread_bytes -= self._reread.popitem(last=False)[1][1]
        return runs

    def _read_frames(self, extent: Extent, last_frame: int) -> list[tuple[int, bytes]]:
        try:
            return self._log.read(extent.first_frame, last_frame)
        except NotFound as error:
            if self.is_kept(extent):
                raise CorruptData(
                    "kept messages are not in the log any more",
                    store=extent.store,
                    first_seq=extent.first_seq,
                    last_seq=extent.last_seq,
                    frame=extent.first_frame,
                    hint="restore a backup",
                ) from error
            return []  # they were deleted, and their pages are gone

    def is_kept(self, extent: Extent) -> bool:
        """Whether any message of an extent is kept."""
        return self._kept_between(extent.store, extent.first_seq, extent.last_seq) > 0

    def read(self, store: str, first: int, last: int) -> list[Kept]:
        """Those of ``first..last`` that are still kept, ascending. See ``ports.Messages``."""
        messages: list[Kept] = []
        block, number = None, -1
        for run in self.runs(store, first, last):
            seq = run.first_seq
            for message in run.messages:
                if first <= seq <= last:
                    if seq // BLOCK_MESSAGES != number:
                        number = seq // BLOCK_MESSAGES
                        block = self._blocks.get(store, number)
                    offset = seq % BLOCK_MESSAGES
                    if block is not None and block.references[offset]:
                        size, ttl_ms, due_ms = block.sizes[offset], message.ttl_ms, message.deliver_at_ms
                        what = message.fields, message.key, ttl_ms, due_ms, message.origin
                        messages.append(Kept(seq, run.published_ms, size, *what))
                seq += 1
        if len(messages) < self._kept_between(store, first, last):
            raise self._missing(store, first, last)
        return messages

    def _kept_between(self, store: str, first: int, last: int) -> int:
        """How many of these are kept. Cost: O(blocks)."""
        total = 0
        while first <= last:
            number, low = divmod(first, BLOCK_MESSAGES)
            high = min(BLOCK_MESSAGES, last - number * BLOCK_MESSAGES + 1)
            block = self._blocks.get(store, number)
            if block is not None and block.live:
                total += high - low - block.references[low:high].count(0)
            first += high - low
        return total

    @staticmethod
    def _missing(store: str, first: int, last: int) -> CorruptData:
        return CorruptData(
            "a kept message is not in the log", store=store, first_seq=first, last_seq=last, hint="restore a backup"
        )

    def deliveries(self, store: str, runs: Iterable[tuple[int, int, int]]) -> list[Delivery]:
        """What a subscriber gets of these runs: triples of first, last and delivery count (see ``Delivered``).

        Deleted messages are left out. *Cost*: under a microsecond a message in memory. *Raises*: ``CorruptData`` if a
        kept one is not there.
        """
        delivered: list[Delivery] = []
        here: tuple[MessageRun, ...] = ()
        for first, last, count in runs:
            redelivered, before = count > 1 or count < 0, len(delivered)
            count = abs(count)
            if not here or not here[0].first_seq <= first <= last <= here[0].last_seq:
                here = tuple(self.runs(store, first, last))
            for run in here:
                messages, start, published_ms = run.messages, run.first_seq, run.published_ms
                low, high = max(first, start), min(last, run.last_seq)
                if high - low + 1 < len(messages):
                    messages = messages[low - start : high - start + 1]
                delivered += [
                    # In the order of its parts: names for them would double the cost.
                    Delivery(
                        seq,
                        message.fields,
                        message.key,
                        message.body,
                        published_ms,
                        count,
                        redelivered,
                        False,
                        "",
                        message.origin,
                    )
                    for seq, message in enumerate(messages, low)
                ]
            if len(delivered) - before <= last - first:
                there = {one.seq for one in delivered[before:]}
                if any(self._kept_between(store, seq, seq) for seq in range(first, last + 1) if seq not in there):
                    raise self._missing(store, first, last)
        return delivered

    def message(self, store: str, seq: int) -> tuple[Message, int] | None:
        """One message and when it was published, None if it is not kept. *Raises*: ``CorruptData`` if it should be
        there."""
        for run in self.runs(store, seq, seq):
            if run.first_seq <= seq <= run.last_seq:
                return run.messages[seq - run.first_seq], run.published_ms
        if self._kept_between(store, seq, seq):
            raise self._missing(store, seq, seq)
        return None


def _clipped(runs: list[MessageRun], extent: Extent) -> list[MessageRun]:
    """The messages of an extent, ascending and each once: its frames may have some that were moved there."""
    clipped: list[MessageRun] = []
    next_seq = extent.first_seq
    for run in sorted((run for run in runs if run.store == extent.store), key=_first_seq_of):
        low, high = max(next_seq, run.first_seq), min(extent.last_seq, run.last_seq)
        if low > high:
            continue
        next_seq = high + 1
        if low > run.first_seq or high < run.last_seq:
            part = run.messages[low - run.first_seq : high - run.first_seq + 1]
            run = MessageRun(run.store, low, run.published_ms, part)
        clipped.append(run)
    return clipped


def _first_seq_of(run: MessageRun) -> int:
    return run.first_seq
