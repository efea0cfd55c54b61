"""Reading a queue, in the writer's process or another, without locks and without writing.

A loss (``walk``) becomes ``Gap``, and ``Trimmed`` if retention removed a page before it was read. The damage policy
handles both: ``"raise"`` (reading again raises again), ``"skip"``, or a callable. Numbers that were never durable are
not damage: only a callable gets that gap.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from operator import itemgetter

from holdfast.errors import InvalidRequest
from holdfast.queue.files.pages import PageDirectory, cached_header
from holdfast.queue.format.frame import COMPRESSED, payloads, raw_body
from holdfast.queue.format.page import PageHeader
from holdfast.queue.log.judgement import Proof
from holdfast.queue.log.messages import Block, Gap, Message, Trimmed, block_of_singles, messages_of
from holdfast.queue.log.opening import find_end
from holdfast.queue.log.page_scan import WINDOW_BYTES, FrameView, PageScan, Window
from holdfast.queue.log.walk import LogWalk, Loss, QueueEvidence, WalkCaches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.queue.log.messages import DamagePolicy
    from holdfast.queue.log.writer import Writer

PAUSE_MIN_S = 50e-6
PAUSE_MAX_S = 5e-3
HEARTBEAT_S = 0.25


class Waiter:
    """Waits between two reads: for an append in the writer's process, else polling every 50 microseconds to 5 ms."""

    def __init__(self, writer: Writer | None) -> None:
        self._writer = writer
        self._woken = threading.Event()
        self._armed = False
        self._pause_s = PAUSE_MIN_S

    def arm(self) -> None:
        """Call before the read that decides whether to wait: an append after it ends the wait."""
        if self._writer is not None and not self._armed:
            # One listener until it has fired, however long a reader waits.
            self._armed = True
            self._writer.notify_once(self._fired)

    def disarm(self) -> None:
        """Call when the wait is over, also after an error: else the writer keeps the callback until an append."""
        if self._writer is not None:
            self._writer.notify_no_more(self._fired)
            self._armed = False

    def _fired(self) -> None:
        self._armed = False
        self._woken.set()

    def wake(self) -> None:
        """End a wait from another thread."""
        self._woken.set()

    def wait(self, limit_s: float | None = None) -> None:
        """Wait for an append, or a short time, no longer than ``limit_s``."""
        if self._writer is not None:
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
_flags: Callable[[FrameView], int] = itemgetter(3)

NEAR_BYTES = 8 << 10
SINGLES_WINDOW_BYTES = 128 << 10
"""Windows of single messages are smaller: thousands of small objects cost more than a system call."""


def check_damage_policy(damage: DamagePolicy) -> None:
    """Raise ``InvalidRequest`` for an unknown policy."""
    if damage not in ("raise", "skip") and not callable(damage):
        raise InvalidRequest("unknown damage policy", damage=repr(damage), hint="raise, skip or a callable")


class WriterEvidence:
    """What the writer in this process knows: exactly what was written."""

    __slots__ = ("_writer",)

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def proof(self) -> Proof:
        """Of now. Later frames prove nothing more."""
        writer = self._writer
        first_page, first_seq = writer.first
        return Proof(
            owed_seq=writer.next_seq,
            ordered=False,
            page=writer.page_number,
            complete=True,
            first_page=first_page,
            first_seq=first_seq,
        )

    def used_seq(self) -> int:
        """1: the writer's next number is already above the numbers that were used and never durable."""
        return 1


class LogReader(LogWalk):
    """A walk that moves forward from a starting point. ``next_seq`` is the next message, ``gaps`` counts reports.

    ``writer`` is the writer in this process, if there is one; then its knowledge is the evidence.
    """

    __slots__ = ("_damage", "_from_seq", "_from_time_ns", "_message", "_step_bytes", "_writer", "gaps")

    def __init__(
        self,
        pages: PageDirectory,
        evidence: QueueEvidence,
        *,
        damage: DamagePolicy = "raise",
        writer: Writer | None = None,
        caches: WalkCaches | None = None,
        message: type[Message] = Message,
    ) -> None:
        check_damage_policy(damage)
        super().__init__(
            pages,
            evidence if writer is None else WriterEvidence(writer),
            self._report_loss,
            caches,
            is_sole=writer is not None,
            used_seq=0 if writer is None else 1,  # the writer's next number is above what was used
        )
        self._message = message
        self._damage = damage
        self._writer = writer
        self._step_bytes = WINDOW_BYTES
        self._from_seq = 1
        self._from_time_ns: int | None = None
        self.gaps = 0

    @property
    def next_seq(self) -> int:
        """The next message."""
        return max(self._from_seq, super().next_seq) if self.scan is None else super().next_seq

    @property
    def page(self) -> PageHeader | None:
        """The page of the last messages."""
        return self.scan.header if self.scan is not None else None

    def seek_earliest(self) -> None:
        """Move to the oldest message."""
        self._from_seq, self._from_time_ns = 1, None
        self.start_at(self._pages.known_numbers())
        self._from_seq = self.next_seq

    def seek_latest(self) -> None:
        """Move after the newest message."""
        end = find_end(self._pages, self._evidence)
        self._from_seq, self._from_time_ns = end.next_seq, None
        self.close()
        if end.header is not None and self.start(end.header, end.position, end.expected_seq, end.last_time_ns):
            self._reported_seq = end.next_seq

    def seek_seq(self, seq: int) -> None:
        """Move to message ``seq``, which may be a future one. Raises: ``InvalidRequest`` below 1; ``Trimmed`` by the
        policy if it was removed, ``Gap`` if it is lost with the oldest pages. Cost: O(log pages) headers and O(log
        frames) frames of one page.
        """
        if seq < 1:
            raise InvalidRequest("sequence numbers begin at 1", seq=seq)
        self._from_seq, self._from_time_ns = seq, None
        self._seek_page(lambda header: header.base_seq <= seq)
        scan = self.scan
        if scan is None:
            return
        if scan.next_seq <= seq:
            scan.seek_seq(seq)
        else:
            self._from_seq = scan.next_seq
            if seq < self.first_seq:
                self._handle(Trimmed(seq, self.first_seq))

    def seek_time(self, time_ns: int) -> None:
        """Move to the first message that arrived at or after ``time_ns``. Cost: as ``seek_seq``."""
        self._from_seq, self._from_time_ns = 1, time_ns
        # Strictly below: a page may end with the time with which the next one begins.
        self._seek_page(lambda header: header.base_time_ns < time_ns)
        if self.scan is not None:
            self.scan.seek_time(time_ns)

    def _seek_page(self, belongs_before: Callable[[PageHeader], bool]) -> None:
        """Enter the last page for which the condition holds, or the first page."""
        numbers = self._pages.known_numbers()
        # A prepared page is never the right one, and its header would be read again at every seek.
        high = len(numbers) if self._writer is None else bisect_right(numbers, self._writer.page_number)

        def comes_after(number: int) -> bool:
            header = cached_header(self._pages, number, self._headers)
            return header is None or header.prepared or not belongs_before(header)

        low = bisect_left(numbers, True, 0, high, key=comes_after)
        self.start_at(numbers[max(0, low - 1) :], front=low == 0)

    def _move_on(self, scan: PageScan) -> bool:
        """As the walk decides. After the last message of a writer in this process there is nothing to decide."""
        if self._writer is not None and self._writer.next_seq <= scan.next_seq:
            return False
        return super()._move_on(scan)

    def _holds_much(self, header: PageHeader) -> bool:
        """Also whether the writer here has put many messages into it."""
        if super()._holds_much(header):
            return True
        return self._writer is not None and self._writer.next_seq - header.base_seq >= MUCH_MESSAGES

    def _report_loss(self, loss: Loss) -> None:
        if loss.last < self._from_seq:
            return  # on the way to the starting point: these were not requested
        if loss.reason == "removed":
            self._handle(Trimmed(max(loss.first, self._from_seq), loss.last + 1))
        else:
            self._handle(Gap(loss.first, loss.last, loss.page, loss.reason))

    def _handle(self, report: Gap | Trimmed) -> None:
        self.gaps += 1
        if callable(self._damage):
            self._damage(report)
        elif self._damage == "raise" and not (isinstance(report, Gap) and report.reason == "crash"):
            raise report

    def _read_step(self) -> Window | None:
        """As ``read_window``, in steps that suit the messages."""
        window = self.read_window(self._step_bytes)
        if window is not None:
            many = len(window.frames) > SINGLES_WINDOW_BYTES >> 10
            self._step_bytes = SINGLES_WINDOW_BYTES if many else WINDOW_BYTES
        return window

    # ---- what frames become -----------------------------------------------------------------------------------------

    def read_messages(self) -> list[Message] | None:
        """The next messages, at least one, or None if there is nothing more now."""
        parts = self.read_message_parts()
        return None if parts is None else [message for part in parts for message in part]

    def read_near(self) -> list[Message] | None:
        """As ``read_messages``, in small reads, for one message from the middle. Cost: about 8 KiB, or its batch."""
        self._step_bytes = NEAR_BYTES
        return self.read_messages()

    def read_message_parts(self) -> Iterator[list[Message]] | None:
        """As ``read_messages``, made as they are taken. Use up the result before the next read."""
        while (window := self._read_step()) is not None:
            frames = self._wanted(window)
            if frames:
                return self._parts(window.data, frames)
        return None

    def _parts(self, data: bytes, frames: list[FrameView]) -> Iterator[list[Message]]:
        message = self._message
        if len(frames) > SINGLES_MIN and _are_singles(frames):
            yield [message((seq, time_ns, data[start:end])) for seq, time_ns, _, _, start, end in frames]
            return
        from_seq = self._from_seq
        for seq, time_ns, count, flags, start, end in frames:
            if flags & COMPRESSED:
                raw = raw_body(data[start:end])
                bodies = payloads(raw, 0, len(raw), count)
            else:
                bodies = payloads(data, start, end, count)
            if seq < from_seq:
                bodies, seq = bodies[from_seq - seq :], from_seq
            for begin in range(0, len(bodies), PART_MESSAGES):
                yield messages_of(seq + begin, time_ns, bodies[begin : begin + PART_MESSAGES], message)

    def read_blocks(self) -> list[Block] | None:
        """The next blocks, at least one, or None if there is nothing more now."""
        while (window := self._read_step()) is not None:
            frames = self._wanted(window)
            if frames and _are_singles(frames):
                return [block_of_singles(window.data, frames)]
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
                    data = raw_body(data[start:end])
                    start, end = 0, len(data)
                skip = max(0, min(count, self._from_seq - seq))
                blocks.append(Block(seq, time_ns, count, data, start, end, skip=skip))
            if run < len(frames):
                blocks.append(block_of_singles(window.data, frames[run:]))
            if blocks:
                return blocks
        return None

    def read_payloads(self) -> list[Sequence[bytes]] | None:
        """The bytes of the next messages, block by block, or None if there is nothing more now."""
        blocks = self.read_blocks()
        return None if blocks is None else [block.payloads() for block in blocks]

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


def _are_singles(frames: list[FrameView]) -> bool:
    """Whether each frame of a window is one message without flags: then there are as many frames as numbers."""
    return frames[-1][0] + frames[-1][2] - frames[0][0] == len(frames) and not any(map(_flags, frames))
