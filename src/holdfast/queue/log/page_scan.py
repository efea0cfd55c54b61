"""Walking the frames of one page: read in windows, verify each frame, find a later frame after damage.

A frame that does not verify ends the walk; in a page that is being written it may verify later. ``OSError`` passes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.queue.format.checksum import checksum_for_reading
from holdfast.queue.format.frame import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    COMPRESSED,
    FIELDS,
    HEAD,
    HEAD_BYTES,
    KNOWN_FLAGS,
    SEAL,
    SEAL_BODY,
    SEQ_MASK,
    implied_seq,
    page_seed,
    single_frame,
    single_packers,
)
from holdfast.queue.format.page import HEADER_BYTES, PAGE_BYTES_MAX, PageHeader
from holdfast.queue.log.judgement import Here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from holdfast.queue.files.index import IndexReader
    from holdfast.queue.files.port import FilePort

FrameView = tuple[int, int, int, int, int, int]
FrameAt = tuple[int, int, int, int]
"""The frame at a position: sequence number, arrival, tail of the head, and the position after it."""
Anchors = dict[tuple[int, int], FrameAt]

WINDOW_BYTES = 2 * (BATCH_BYTES_MAX + HEAD_BYTES)
"""One read: two whole batches. Larger windows leave the processor's cache before the checksum."""
FIRST_WINDOW_BYTES = 16 << 10
"""The first read after a seek or a miss. Each hit makes the next read four times as large, except at the log's end."""
NEAR_BYTES = 24 << 10
"""One read where a seek lands in a finished page: the frame and the one that confirms it."""
ANCHORS_MAX = 1 << 14
CHUNK_BYTES = 1 << 20
_ZEROS = bytes(CHUNK_BYTES + HEAD_BYTES)
"""A comparison with it takes a tenth of the time of counting zeros."""
SMALL_BYTES = 512
"""For a body up to this size a copy takes less time than a second call of the checksum."""
EQUAL_BYTES_MIN = 4 << 10
_POSSIBLE_HEAD = re.compile(rb"(?=[\s\S]{16}(?!\0\0\0\0)[\s\S]{4}[\x00\x01]\0\0\0)")
"""A message count above 0, no unknown flag, and the two bytes that are always zero."""

ANY_NUMBER = 1 << 62  # above every sequence number


class Window(NamedTuple):
    """Verified frames of one read: ``frames`` are (seq, time_ns, count, flags, start, end), two in ``data``."""

    data: bytes
    offset: int
    frames: list[FrameView]


class PageScan:
    """A position in a page that moves over verified frames only. ``position`` and ``next_seq`` are those of the next
    frame, ``last_time_ns`` is the arrival of the last one. ``anchors`` remembers confirmed frames by (salt, position).
    """

    __slots__ = (
        "_anchors", "_below", "_checksum", "_file", "_index", "_port", "_seed", "_window_bytes", "header",
        "last_time_ns", "next_seq", "position", "seal",
    )  # fmt: skip

    def __init__(
        self,
        port: FilePort,
        file: int,
        header: PageHeader,
        *,
        next_seq: int,
        position: int = HEADER_BYTES,
        last_time_ns: int = 0,
        index: IndexReader | None = None,
        anchors: Anchors | None = None,
        window_bytes: int = FIRST_WINDOW_BYTES,
    ) -> None:
        self._port = port
        self._file = file
        self._index = index
        self._anchors: Anchors = {} if anchors is None else anchors
        self._checksum = checksum_for_reading(header.checksum_id)
        self._seed = page_seed(self._checksum, header.salt, header.number)
        self._window_bytes = window_bytes
        self.header = header
        self._below = ANY_NUMBER
        self.position = position
        self.next_seq = next_seq
        self.last_time_ns = last_time_ns
        self.seal: bytes | None = None

    def read(self, window_bytes: int = WINDOW_BYTES) -> Window | None:
        """The next frames, at least one, or None where the next frame does not verify. Stops before a SEAL and keeps
        it. ``window_bytes`` bounds one read, unless one frame is larger.
        """
        limit = max(0, self.header.page_bytes - self.position)
        window_bytes = min(window_bytes, self._window_bytes, limit)
        if HEAD_BYTES < window_bytes <= FIRST_WINDOW_BYTES and not any(
            self._port.read(self._file, self.position, HEAD_BYTES)
        ):
            # The end of a log. Reading on into unwritten room fills the cache with zeros: 3.4 ms at 8 MiB instead of 40
            # microseconds.
            self._window_bytes = FIRST_WINDOW_BYTES
            return None
        data = self._port.read(self._file, self.position, window_bytes)
        frames, seal = self._verify(data, self.next_seq, self.last_time_ns)
        if not frames and seal is None and len(data) >= HEAD_BYTES:
            length, _, _, tail = HEAD.unpack_from(data)
            whole = HEAD_BYTES + length
            if len(data) < whole <= limit and tail:
                data = self._port.read(self._file, self.position, whole)
                frames, seal = self._verify(data, self.next_seq, self.last_time_ns)
        if not frames:
            if seal is not None:
                self.seal = seal
            self._window_bytes = FIRST_WINDOW_BYTES
            return None
        end = frames[-1][5]
        at_the_end = len(data) - end >= HEAD_BYTES and not any(data[end : end + HEAD_BYTES])
        self._window_bytes = FIRST_WINDOW_BYTES if at_the_end else min(4 * self._window_bytes, WINDOW_BYTES)
        window = Window(data, self.position, frames)
        self.position += end
        self.next_seq = frames[-1][0] + frames[-1][2]
        self.last_time_ns = frames[-1][1]
        return window

    def _verify(self, data: bytes, seq: int, last_time_ns: int) -> tuple[list[FrameView], bytes | None]:
        """Every whole frame from the start of ``data``, where ``seq`` is next, or the SEAL there. The hottest loop."""
        checksum, seed = self._checksum, self._seed
        unpack, pack = HEAD.unpack_from, FIELDS.pack
        view = memoryview(data)
        start, limit = HEAD_BYTES, len(data)
        frames = self._equal_singles(data, seq, last_time_ns) if limit >= EQUAL_BYTES_MIN else []
        if frames:
            seq, last_time_ns, start = frames[-1][0] + 1, frames[-1][1], frames[-1][5] + HEAD_BYTES
        while start <= limit:
            length, check, time_ns, tail = unpack(data, start - HEAD_BYTES)
            end = start + length
            if end > limit or tail == 0 or time_ns < last_time_ns:
                break
            if length <= SMALL_BYTES:
                computed = checksum(data[start:end] + pack(length, time_ns, tail), seed)
            else:
                computed = checksum(pack(length, time_ns, tail), checksum(view[start:end], seed))
            if computed ^ check != seq & SEQ_MASK:
                break
            if tail == 1:  # one message and no flags, as most
                frames.append((seq, time_ns, 1, 0, start, end))
                seq += 1
            else:
                count, flags = tail & SEQ_MASK, tail >> 32
                if count == 0:
                    if flags == SEAL and length == SEAL_BODY.size and not frames:
                        return frames, data[start:end]
                    break
                if flags & ~KNOWN_FLAGS:
                    break
                frames.append((seq, time_ns, count, flags, start, end))
                seq += count
            last_time_ns = time_ns
            start = end + HEAD_BYTES
        return frames, None

    def _equal_singles(self, data: bytes, seq: int, last_time_ns: int) -> list[FrameView]:
        """As ``_verify``: the first frames, if each is one small message and all have the same size. Their heads and
        messages are unpacked in C, in half of the time.
        """
        checksum, seed = self._checksum, self._seed
        frames: list[FrameView] = []
        size, _, _, tail = HEAD.unpack_from(data)
        if tail != 1 or size > SMALL_BYTES:
            return frames
        pack = single_packers[size][0]
        start, end = HEAD_BYTES, HEAD_BYTES + size
        step = end
        whole = memoryview(data)[: len(data) // step * step]
        for length, check, time_ns, tail, message in single_frame(size).iter_unpack(whole):
            if length != size or tail != 1 or time_ns < last_time_ns:
                break
            if checksum(pack(message, length, time_ns, tail), seed) ^ check != seq & SEQ_MASK:
                break
            frames.append((seq, time_ns, 1, 0, start, end))
            seq += 1
            last_time_ns = time_ns
            start += step
            end += step
        return frames

    @property
    def state(self) -> tuple[int, int, int]:
        """Position and sequence number of the next frame, and arrival of the last one."""
        return self.position, self.next_seq, self.last_time_ns

    @state.setter
    def state(self, state: tuple[int, int, int]) -> None:
        self.position, self.next_seq, self.last_time_ns = state

    def here(self) -> Here:
        """What stopped ``read``."""
        if self.seal is not None:
            return Here.SEAL
        head = self._port.read(self._file, self.position, HEAD_BYTES)
        return Here.INVALID if any(head) else Here.NOTHING

    def seek_time(self, time_ns: int) -> None:
        """Move to a frame after which every message that arrived at or after ``time_ns`` is found: the last indexed one
        strictly before it, because frames of equal time may be on both sides of a record.
        """
        if self._index is None:
            return
        frame = self._seek(self._index, self._index.last_earlier(time_ns), lambda indexed, _: indexed < time_ns)
        if frame is not None:
            # That frame is whole and before ``time_ns``, and its successor confirms it: a batch need not be read.
            seq, self.last_time_ns, tail, self.position = frame
            self.next_seq = seq + (tail & SEQ_MASK)

    def seek_seq(self, seq: int) -> None:
        """Move to an indexed frame at or before the one that holds ``seq``."""

        def at_or_before(time_ns: int, position: int) -> bool:
            frame = self._anchors.get((self.header.salt, position)) or self._frame_at(time_ns, position)[0]
            return frame is not None and frame[0] <= seq

        if self._index is not None:
            self._seek(self._index, self._index.last_before(at_or_before), at_or_before)

    def _seek(
        self, index: IndexReader, last_record: tuple[int, int, int], belongs_before: Callable[[int, int], bool]
    ) -> FrameAt | None:
        """Move to the last such record whose frame is confirmed and return that frame; else stay and return None."""
        before, time_ns, position = last_record
        step = 1
        while before:
            # Each record is tested: in a damaged index an earlier record may not come before.
            if belongs_before(time_ns, position) and (frame := self._land(position, time_ns)) is not None:
                return frame
            before, step = max(0, before - step), 2 * step
            record = index.record(before - 1)
            if record is None:
                return None
            time_ns, position = record
        return None

    def _land(self, position: int, time_ns: int | None, ends: Container[int | None] | None = ()) -> FrameAt | None:
        """Move to ``position`` if a confirmed frame is there, with this arrival if given, and return it; else stay.

        Every position verifies for *some* number, so the next frame must confirm it. If nothing follows yet, the frame
        must end at one of ``ends``; None: its number is known.
        """
        key = self.header.salt, position
        frame = self._anchors.get(key)
        if frame is None:
            frame, after = self._frame_at(time_ns, position)
            if frame is None or not (self._is_possible(position, frame) and self._confirmed(frame, after, ends)):
                return None
            if len(self._anchors) >= ANCHORS_MAX:
                self._anchors.clear()
            self._anchors[key] = frame
        elif time_ns is not None and frame[1] != time_ns:
            return None
        # Read the shared dict once: another reader may clear it.
        self.position, self.next_seq = position, frame[0]
        return frame

    def _is_possible(self, position: int, frame: FrameAt) -> bool:
        """Whether that many messages have room up to here, and time does not fall. Stale frames of one size confirm
        each other: under another salt all numbers are wrong by the same bits, but by far.
        """
        seq, time_ns, tail, _ = frame
        room = position - self.position
        # A message takes at least four bytes in a batch, fewer when compressed; one compressed frame is always
        # possible.
        frames = room // HEAD_BYTES + 1 if tail >> 32 & COMPRESSED else 1
        return time_ns >= self.last_time_ns and seq - self.next_seq <= room // 4 + frames * BATCH_MESSAGES_MAX

    def _confirmed(self, frame: FrameAt, data: bytes, ends: Container[int | None] | None) -> bool:
        """Whether the frame or SEAL with the next number follows, or nothing yet. ``data`` was read after the frame."""
        seq, time_ns, tail, frame_end = frame
        next_seq = seq + (tail & SEQ_MASK)
        if not any(data[:HEAD_BYTES]):
            return ends is None or next_seq in ends
        if len(data) < HEAD_BYTES:
            return False
        whole = HEAD_BYTES + HEAD.unpack_from(data)[0]
        if frame_end + whole > self.header.page_bytes:
            return False
        if len(data) < whole:
            data = self._port.read(self._file, frame_end, whole)
        frames, seal = self._verify(data[:whole], next_seq, time_ns)
        return bool(frames) or seal is not None

    def _frame_at(self, time_ns: int | None, position: int) -> tuple[FrameAt | None, bytes]:
        """The frame that verifies here under some number, and the bytes read after it, with the next head if any."""
        room = self.header.page_bytes - position
        if position < HEADER_BYTES or room < HEAD_BYTES:
            return None, b""
        # In the page being written, read no more than needed: see ``read``.
        near = NEAR_BYTES if self._index is not None and self._index.kept is not None else HEAD_BYTES
        data = self._port.read(self._file, position, min(near, room))
        if len(data) < HEAD_BYTES:
            return None, b""
        length, check, stored_ns, tail = HEAD.unpack_from(data)
        whole = HEAD_BYTES + length
        if tail == 0 or whole > room or (time_ns is not None and stored_ns != time_ns):
            return None, b""
        if len(data) < whole + HEAD_BYTES:
            data = self._port.read(self._file, position, min(whole + HEAD_BYTES, room))
        base = self.header.base_seq
        body = memoryview(data)[HEAD_BYTES:whole]
        implied = implied_seq(self._checksum, self._seed, (length, check, stored_ns, tail), body)
        return (base + ((implied - base) & SEQ_MASK), stored_ns, tail, position + whole), data[whole:]

    def resync(self, ends: Container[int | None], *, search_bytes: int, below: int = ANY_NUMBER) -> bool:
        """After damage, move to the next confirmed frame whose number is less than ``below``; False if there is none.
        ``ends`` are the numbers that may follow the page's last message. Tries the damaged frame's own head, then
        each of the next ``search_bytes`` positions; all of the page if the index or the damaged head names a later
        frame. Cost: 20 ms for each MiB of damage, less of zeros; a head for each later record of the index.
        """
        damaged, state = self.position, self.state
        self._below = below
        leads = self._follow_head(ends)
        if leads is True:
            return True
        if leads is False or self._follow_index(ends):
            search_bytes = PAGE_BYTES_MAX
        self.state = state
        heads = self._possible_heads(damaged, search_bytes) if search_bytes else ()
        return any(self._land_later(position, None, ends) for position in heads)

    def _follow_head(self, ends: Container[int | None]) -> bool | None:
        """Move to where the damaged frame's own length leads. True: that is the next frame; False: it is a later one,
        and others may be before it; None: no frame is there.
        """
        head = self._port.read(self._file, self.position, HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            return None
        length, check, time_ns, tail = HEAD.unpack(head)
        position = self.position + HEAD_BYTES + length
        frame, _ = self._frame_at(None, position)
        if frame is None or not self.next_seq < frame[0] < self._below:
            return None
        # A bridge of a repair (a length and zeros) leads to the next frame. So does a damaged head that agrees with the
        # frame on the number.
        known = (length > 0 and not (check or time_ns or tail)) or frame[0] == self.next_seq + (tail & SEQ_MASK)
        return known if self._land(position, None, None if known else ends) is not None else None

    def _follow_index(self, ends: Container[int | None]) -> bool:
        """Move to a later frame that the index names."""
        index, damaged = self._index, self.position
        if index is None:
            return False
        first = index.last_before(lambda _, position: position <= damaged)[0]
        return any(self._land_later(position, time_ns, ends) for time_ns, position in index.records(first))

    def _land_later(self, position: int, time_ns: int | None, ends: Container[int | None]) -> bool:
        frame = self._frame_at(time_ns, position)[0] if position > self.position else None
        is_later = frame is not None and self.next_seq <= frame[0] < self._below
        return is_later and self._land(position, time_ns, ends) is not None

    def _possible_heads(self, damaged: int, search_bytes: int) -> Iterator[int]:
        """The positions after the damage where the bytes can be a head."""
        start = damaged + 1
        end = min(self.header.page_bytes, self._port.size(self._file), start + search_bytes)
        while start + HEAD_BYTES <= end:
            data = self._port.read(self._file, start, min(CHUNK_BYTES + HEAD_BYTES - 1, end - start))
            if not _ZEROS.startswith(data):
                yield from (start + at.start() for at in _POSSIBLE_HEAD.finditer(data) if at.start() < CHUNK_BYTES)
            start += CHUNK_BYTES


def content_end(port: FilePort, file: int, start: int = 0) -> int:
    """The end of the bytes of a file that are not zero, from ``start`` on. Cost: reads the rest of the file."""
    end, size = start, port.size(file)
    for begin in range(start, size, CHUNK_BYTES):
        kept = port.read(file, begin, min(CHUNK_BYTES, size - begin)).rstrip(b"\0")
        if kept:
            end = begin + len(kept)
    return end
