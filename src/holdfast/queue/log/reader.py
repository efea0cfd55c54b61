"""Reading a queue, in the writer's process or another, without locks and without writing.

Bytes at the end of a log that do not verify count as not written *yet*. If the writer has passed them, they are damage:
``Gap``. If retention removed a page before it was read: ``Trimmed``. The damage policy handles both: ``"raise"``
(reading again raises again), ``"skip"``, or a callable. The port's ``OSError`` is raised unchanged.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Protocol

from holdfast.errors import InvalidRequest
from holdfast.queue.files.index import IndexReader, KeptIndexes
from holdfast.queue.files.pages import PageDirectory, cached_header, read_file
from holdfast.queue.format.frame import COMPRESSED, HEAD_BYTES, payloads, raw_body
from holdfast.queue.format.meta import SLOTS_BYTES, WritePosition, decode_write_position, newest_slot
from holdfast.queue.format.page import HEADER_BYTES, PageHeader
from holdfast.queue.log.messages import Block, Gap, Message, Trimmed, block_of_singles, messages_of
from holdfast.queue.log.opening import find_end
from holdfast.queue.log.page_scan import FIRST_WINDOW_BYTES, WINDOW_BYTES, Anchors, FrameView, PageScan, Window
from holdfast.queue.log.recovery import Following, Here, Owed, Step, decide, following_of

DamagePolicy = str | Callable[["Gap | Trimmed"], None]

PAUSE_MIN_S = 50e-6
PAUSE_MAX_S = 5e-3
HEARTBEAT_S = 0.25


class Waiter:
    """Waits between two reads: for an append in the writer's process, else polling every 50 microseconds to 5 ms."""

    __slots__ = ("_armed", "_pause_s", "_subscribe", "_unsubscribe", "_woken")

    def __init__(
        self,
        subscribe: Callable[[Callable[[], None]], None] | None,
        unsubscribe: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._woken = threading.Event()
        self._armed = False
        self._pause_s = PAUSE_MIN_S

    def arm(self) -> None:
        """Call before the read that decides whether to wait: an append after it ends the wait."""
        if self._subscribe is not None and not self._armed:
            # One listener until it has fired, however long a reader waits.
            self._armed = True
            self._subscribe(self._fired)

    def disarm(self) -> None:
        """Call when the wait is over, also after an error: else the writer keeps the callback until an append."""
        if self._unsubscribe is not None:
            self._unsubscribe(self._fired)
            self._armed = False

    def _fired(self) -> None:
        self._armed = False
        self._woken.set()

    def wake(self) -> None:
        """End a wait from another thread."""
        self._woken.set()

    def wait(self, limit_s: float | None = None) -> None:
        """Wait for an append, or a short time, no longer than ``limit_s``."""
        if self._subscribe is not None:
            self._woken.wait(HEARTBEAT_S if limit_s is None else min(HEARTBEAT_S, limit_s))
            self._woken.clear()
            return
        time.sleep(self._pause_s if limit_s is None else min(self._pause_s, limit_s))
        self._pause_s = min(PAUSE_MAX_S, self._pause_s * 1.25)

    def found(self) -> None:
        """There was a message: poll soon after the next miss."""
        self._pause_s = PAUSE_MIN_S


MUCH_MESSAGES = 4096
SINGLES_MIN = 8
PART_MESSAGES = 256
"""Messages of one frame that are made at a time: they are used while they are in the processor's cache."""
_messages_of_part: Callable[[tuple[int, list[Message]]], list[Message]] = itemgetter(1)

NEAR_BYTES = 8 << 10
SINGLES_WINDOW_BYTES = 128 << 10
"""Windows of single messages are smaller: thousands of small objects cost more than a system call."""


def read_write_position(pages: PageDirectory) -> WritePosition | None:
    """The write position that the writer recorded last, or None."""
    data = read_file(pages, pages.names.write_meta, SLOTS_BYTES)
    slot = None if data is None else newest_slot(data)
    return None if slot is None else decode_write_position(slot[1])


def check_damage_policy(damage: DamagePolicy) -> None:
    """Raise ``InvalidRequest`` for an unknown policy."""
    if damage not in ("raise", "skip") and not callable(damage):
        raise InvalidRequest("unknown damage policy", damage=repr(damage), hint="raise, skip or a callable")


class LiveWriter(Protocol):
    """The writer of the log, in the reader's process."""

    @property
    def next_seq(self) -> int:
        """The number of the next message."""
        ...

    @property
    def page_number(self) -> int:
        """The page being written, or the last one. Pages above it are prepared."""
        ...


class LogReader:
    """A position in the log that moves forward. One thread at a time. ``next_seq`` is the next message.

    ``writer`` is the writer in this process, if there is one; else the recorded write position is read. Readers of a
    queue may share ``headers`` (of begun pages), ``anchors`` (confirmed frames) and ``indexes`` (of finished pages).
    """

    __slots__ = (
        "_anchors", "_damage", "_file", "_from_seq", "_from_time_ns", "_headers", "_index", "_indexes",
        "_message", "_pages", "_reported_seq", "_scan", "_window_bytes", "_writer", "gaps",
    )  # fmt: skip

    def __init__(
        self,
        pages: PageDirectory,
        *,
        damage: DamagePolicy = "raise",
        writer: LiveWriter | None = None,
        headers: dict[int, PageHeader] | None = None,
        anchors: Anchors | None = None,
        indexes: KeptIndexes | None = None,
        message: type[Message] = Message,
    ) -> None:
        check_damage_policy(damage)
        self._pages = pages
        self._message = message
        self._damage = damage
        self._writer = writer
        self._headers = {} if headers is None else headers
        self._anchors: Anchors = {} if anchors is None else anchors
        self._indexes: KeptIndexes = {} if indexes is None else indexes
        self._window_bytes = WINDOW_BYTES
        self._scan: PageScan | None = None
        self._file = -1
        self._index: IndexReader | None = None
        self._from_seq = 1
        self._from_time_ns: int | None = None
        # Messages below this were reported as lost. The scan still expects the number of its position: under another
        # number damaged bytes may verify.
        self._reported_seq = 1
        self.gaps = 0

    def seek_earliest(self) -> None:
        """Move to the oldest message."""
        self._from_seq, self._from_time_ns = 1, None
        self._enter_first(self._pages.known_numbers())
        self._from_seq = self.next_seq

    def seek_latest(self) -> None:
        """Move after the newest message."""
        end = find_end(self._pages, read_write_position(self._pages), self._pages.port.boot_id())
        self._from_seq, self._from_time_ns = end.next_seq, None
        self.close()
        if end.page and self._enter(end.page, None) and self._scan is not None:
            scan = self._scan
            scan.position, scan.next_seq, scan.last_time_ns = end.position, end.expected_seq, end.last_time_ns
            self._reported_seq = end.next_seq

    def seek_seq(self, seq: int) -> None:
        """Move to message ``seq``, which may be a future one. Raises: ``InvalidRequest`` below 1; ``Trimmed`` by the
        policy if it was removed. Cost: O(log pages) headers and O(log frames) frames of one page.
        """
        if seq < 1:
            raise InvalidRequest("sequence numbers begin at 1", seq=seq)
        self._from_seq, self._from_time_ns = seq, None
        self._seek_page(lambda header: header.base_seq <= seq)
        scan = self._scan
        if scan is None:
            return
        if scan.next_seq > seq:
            first = scan.next_seq
            self._from_seq = first
            self._report(Trimmed(seq, first))
        else:
            scan.seek_seq(seq)

    def seek_time(self, time_ns: int) -> None:
        """Move to the first message that arrived at or after ``time_ns``. Cost: as ``seek_seq``."""
        self._from_seq, self._from_time_ns = 1, time_ns
        # Strictly below: a page may end with the time with which the next one begins.
        self._seek_page(lambda header: header.base_time_ns < time_ns)
        if self._scan is not None:
            self._scan.seek_time(time_ns)

    def _seek_page(self, belongs_before: Callable[[PageHeader], bool]) -> None:
        """Enter the last page for which the condition holds, or the first page."""
        numbers = self._pages.known_numbers()
        low, high = 0, len(numbers)
        if self._writer is not None:
            # A prepared page is never the right one, and its header would be read again at every seek.
            high = bisect_right(numbers, self._writer.page_number)
        while low < high:
            middle = (low + high) // 2
            header = cached_header(self._pages, numbers[middle], self._headers)
            if header is not None and not header.prepared and belongs_before(header):
                low = middle + 1
            else:
                high = middle
        self._enter_first(numbers[max(0, low - 1) :])

    def _enter_first(self, numbers: list[int]) -> bool:
        """Enter the first readable page of these. Report unreadable pages before it."""
        self.close()  # the time and number of an earlier position say nothing about this page
        self._reported_seq = 1
        for index, number in enumerate(numbers):
            if self._enter(number, 1 if number == 1 else None):
                if index:
                    self._report_unreadable(numbers[:index])
                return True
        return False

    def _report_unreadable(self, numbers: list[int]) -> None:
        there = self._pages.numbers()
        if any(self._pages.header_of(number) is None for number in numbers if number in there):
            # The first sequence number is unknown: at most this much is gone.
            self._report(Gap(1, self.next_seq - 1, numbers[0]))

    # ---- moving -----------------------------------------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        """The sequence number expected next."""
        return max(self._scan.next_seq, self._reported_seq) if self._scan is not None else self._from_seq

    @property
    def page(self) -> PageHeader | None:
        """The page of the last messages."""
        return self._scan.header if self._scan is not None else None

    def read_window(self) -> Window | None:
        """The next verified frames, or None if there are none now. Raises: ``Gap`` and ``Trimmed`` by the policy."""
        while True:
            scan = self._scan
            if scan is None:
                numbers = self._pages.numbers()
                if self._enter_first(numbers):
                    continue
                last = (self._owed_seq() or 0) - 1
                if last >= self._from_seq and any(self._pages.header_of(number) is None for number in numbers):
                    self._report(Gap(self._from_seq, last, numbers[0]))
                    self._from_seq = last + 1
                return None
            window = scan.read(self._window_bytes)
            if window is not None:
                many = len(window.frames) > SINGLES_WINDOW_BYTES >> 10
                self._window_bytes = SINGLES_WINDOW_BYTES if many else WINDOW_BYTES
                return window
            if not self._move_on(scan):
                # The writer may have rolled since the failed read.
                return scan.read(self._window_bytes)

    def _move_on(self, scan: PageScan) -> bool:
        """Decide where the frames stop. True if reading may continue."""
        following, next_number = self._following(scan.header.number + 1)
        here = scan.here()
        owed = Owed.NO if following is Following.CONTINUES else self._owed()
        step = decide(here, following, owed)
        if step is Step.END:
            return False
        if step is Step.NEXT_PAGE and following is Following.PREPARED and next_number is not None:
            return self._enter(next_number, self.next_seq)
        # The writer is past this position, so a second read distinguishes damage from a frame that was being written.
        if owed is not Owed.NO and self._verifies_now(scan, *scan.state, here):
            return True
        if step is Step.RESYNC:
            if self._resync(scan, next_number, here):
                return True
            step = decide(Here.EXHAUSTED, following, owed)
            if step is Step.END:
                return False
        return self._leave_page(scan, step, next_number)

    def _verifies_now(self, scan: PageScan, position: int, seq: int, last_time_ns: int, here: Here) -> bool:
        """Whether by now something follows where nothing did."""
        again = PageScan(
            self._pages.port, self._file, scan.header, next_seq=seq, position=position, last_time_ns=last_time_ns
        )
        return again.read(self._window_bytes) is not None or (again.seal is not None and here is not Here.SEAL)

    def _resync(self, scan: PageScan, following: int | None, here: Here) -> bool:
        first, state = self.next_seq, scan.state
        header = None if following is None else cached_header(self._pages, following, self._headers)
        if not scan.resync((self._owed_seq(), 0 if header is None else header.base_seq)):
            return False
        if self._verifies_now(scan, *state, here):
            # Without a record the writer's position is unknown: it may have written this since the last read.
            scan.state = state
        elif scan.next_seq > first:
            self._report(Gap(first, scan.next_seq - 1, scan.header.number))
        return True

    def _leave_page(self, scan: PageScan, step: Step, next_number: int | None) -> bool:
        first, number = self.next_seq, scan.header.number
        if step is Step.NEXT_PAGE and next_number is not None:
            return self._go_to(next_number, first)
        for later in self._pages.numbers() if next_number is not None and step is not Step.END_AFTER_GAP else []:
            header = cached_header(self._pages, later, self._headers)
            if later <= number or header is None or header.prepared:
                continue
            removed = self._pages.header_of(number) is None
            self._report(Trimmed(first, header.base_seq) if removed else Gap(first, header.base_seq - 1, number))
            return self._go_to(later, None)
        last = (self._owed_seq() or 0) - 1
        if last >= first:
            self._report(Gap(first, last, number))
            # A reported message stays skipped, so that reading never goes back.
            self._from_seq = self._reported_seq = last + 1
        return False

    def _go_to(self, number: int, expected: int | None) -> bool:
        """Enter a page whose header said that it is next. If it is gone or damaged, the next read decides again."""
        if not self._enter(number, expected):
            self._headers.pop(number, None)
        return True

    def _following(self, number: int) -> tuple[Following, int | None]:
        header = cached_header(self._pages, number, self._headers)
        if header is None:
            later = [other for other in self._pages.numbers() if other >= number]
            if not later:
                return Following.NONE, None
            number = later[0]
            header = cached_header(self._pages, number, self._headers)
        return following_of(header, self.next_seq), number

    def _owed(self) -> Owed:
        owed = self._owed_seq()
        if owed is None:
            return Owed.UNKNOWN
        return Owed.YES if owed > self.next_seq else Owed.NO

    def _owed_seq(self) -> int | None:
        """Messages below this were written, by the writer's record; None if there is no record."""
        if self._writer is not None:
            return self._writer.next_seq
        written = read_write_position(self._pages)
        if written is None:
            return None
        return written.next_seq if written.is_true(self._pages.port.boot_id()) else written.durable.next_seq

    def _enter(self, number: int, expected: int | None) -> bool:
        """Move to the start of a begun page; else False. ``expected`` is its base if the header may lack it."""
        file = self._pages.open(number)
        if file is None:
            return False
        # In the writer's process no one else changes the files, so cached headers are valid.
        header = self._headers.get(number) if self._writer is not None else None
        try:
            header = header or self._pages.header(file, number)
            if header is not None and header.prepared:
                header = self._begun(file, header, expected) if expected is not None else None
            # A reader that comes from the page before will read on.
            reads_on = self._scan is not None and header is not None and self._holds_much(header)
        except BaseException:
            self._pages.port.close(file)
            raise
        if header is None:
            self._pages.port.close(file)
            return False
        last_time_ns = self._scan.last_time_ns if self._scan is not None else header.base_time_ns
        self.close()
        self._file = file
        # The next page was begun after the last message of this one.
        is_finished = number + 1 in self._headers
        self._index = IndexReader(self._pages, number, header.salt, self._indexes if is_finished else None)
        self._scan = PageScan(
            self._pages.port,
            file,
            header,
            next_seq=header.base_seq,
            position=HEADER_BYTES,
            last_time_ns=last_time_ns,
            index=self._index,
            anchors=self._anchors,
            window_bytes=WINDOW_BYTES if reads_on else FIRST_WINDOW_BYTES,
        )
        return True

    def _holds_much(self, header: PageHeader) -> bool:
        """Whether the page needs no small first read: it is full, or the writer here has put many messages into it."""
        following = cached_header(self._pages, header.number + 1, self._headers)
        if following is not None and not following.prepared:
            return True
        return self._writer is not None and self._writer.next_seq - header.base_seq >= MUCH_MESSAGES

    def _begun(self, file: int, prepared: PageHeader, expected: int) -> PageHeader | None:
        """The header of a prepared page as begun with ``expected``, if that message or a later page is there. Until
        then a larger page may take its name, and a reader in this one would wait forever.
        """
        header = prepared.started(expected, 0)
        first = PageScan(self._pages.port, file, header, next_seq=expected)
        begun = first.read(HEAD_BYTES) is not None or self._pages.numbers()[-1:] != [header.number]
        return header if begun else None

    def _report(self, report: Gap | Trimmed) -> None:
        if isinstance(report, Gap) and report.last < self._from_seq:
            return  # on the way to the starting point: these were not requested
        self.gaps += 1
        if self._damage == "raise":
            raise report
        if callable(self._damage):
            self._damage(report)

    def close(self) -> None:
        """Close the files. Seek before reading again."""
        if self._scan is not None:
            self._scan = None
            self._pages.port.close(self._file)
            if self._index is not None:
                self._index.close()
                self._index = None

    # ---- what frames become -----------------------------------------------------------------------------------------

    def read_messages(self) -> list[Message] | None:
        """The next messages, at least one, or None if there is nothing more now."""
        parts = self.read_message_parts()
        return None if parts is None else [message for part in parts for message in part]

    def read_near(self) -> list[Message] | None:
        """As ``read_messages``, in small reads, for one message from the middle. Cost: about 8 KiB, or its batch."""
        self._window_bytes = NEAR_BYTES
        return self.read_messages()

    def read_message_parts(self) -> Iterator[list[Message]] | None:
        """As ``read_messages``, made as they are taken. Use up the result before the next read."""
        parts = self.read_bounded_parts()
        return None if parts is None else map(_messages_of_part, parts)

    def read_bounded_parts(self) -> Iterator[tuple[int, list[Message]]] | None:
        """As ``read_message_parts``, with the number of the last message of each part."""
        while (window := self.read_window()) is not None:
            frames = self._wanted(window)
            if frames:
                return self._parts(window.data, frames)
        return None

    def _parts(self, data: bytes, frames: list[FrameView]) -> Iterator[tuple[int, list[Message]]]:
        message = self._message
        if len(frames) > SINGLES_MIN and all(frame[2] == 1 and not frame[3] for frame in frames):
            yield (
                frames[-1][0],
                [message((seq, time_ns, data[start:end])) for seq, time_ns, _, _, start, end in frames],
            )
            return
        from_seq = self._from_seq
        for seq, time_ns, count, flags, start, end in frames:
            if flags & COMPRESSED:
                raw = raw_body(data[start:end], flags)
                bodies = payloads(raw, 0, len(raw), count)
            else:
                bodies = payloads(data, start, end, count)
            if seq < from_seq:
                bodies, seq = bodies[from_seq - seq :], from_seq
            for begin in range(0, len(bodies), PART_MESSAGES):
                part = messages_of(seq + begin, time_ns, bodies[begin : begin + PART_MESSAGES], message)
                yield part[-1][0], part

    def read_blocks(self) -> list[Block] | None:
        """The next blocks, at least one, or None if there is nothing more now."""
        while (window := self.read_window()) is not None:
            frames = self._wanted(window)
            blocks: list[Block] = []
            run = 0  # first of the single frames that are not in a block yet
            for index, (seq, time_ns, count, flags, start, end) in enumerate(frames):
                if count == 1 and not flags:
                    continue
                if run < index:
                    blocks.append(block_of_singles(window.data, frames[run:index]))
                run = index + 1
                data = window.data
                if flags & COMPRESSED:
                    data = raw_body(data[start:end], flags)
                    start, end = 0, len(data)
                skip = max(0, min(count, self._from_seq - seq))
                blocks.append(Block(seq, time_ns, count, data, start, end, skip=skip))
            if run < len(frames):
                blocks.append(block_of_singles(window.data, frames[run:]))
            if blocks:
                return blocks
        return None

    def _wanted(self, window: Window) -> list[FrameView]:
        frames = window.frames
        if frames[0][0] >= self._from_seq and self._from_time_ns is None:
            return frames
        time_ns = self._from_time_ns
        if time_ns is not None and frames[0][1] >= time_ns:
            self._from_time_ns = None
            return frames
        return [
            frame
            for frame in frames
            if frame[0] + frame[2] > self._from_seq and (time_ns is None or frame[1] >= time_ns)
        ]
