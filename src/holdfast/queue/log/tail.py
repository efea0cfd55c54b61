"""The end of the log: the page being written, and the fast paths that append there.

An append that raises has appended nothing, and the next append overwrites what it left. After an interrupt (Ctrl-C) its
frame is there or not; the next append finds out (``complete_interrupted``). Two paths move the end:

- The slow path (``writer``) closes the fast path first, and holds ``lock`` where other threads read several fields.
- The storing fast path takes the one element out of the list ``_fast_turn`` and puts it back: a lock at a quarter of
  the price. If the list is empty, a thread takes the slow path. Closing it sets ``limit`` and waits for the element.
"""

from __future__ import annotations

import struct
import threading
from time import sleep
from zlib import crc32

from holdfast.crc32 import Checksum, Octets
from holdfast.errors import InvalidRequest
from holdfast.queue.files.disk_errors import refusal
from holdfast.queue.files.index import PageIndex
from holdfast.queue.files.process import copies_refused
from holdfast.queue.format.checksum import checksum_for_writing
from holdfast.queue.format.frame import HEAD_BYTES, SEAL_BYTES, SEQ_MASK, encode_head, page_seed, single_packers
from holdfast.queue.format.meta import PagePosition
from holdfast.queue.format.page import HEADER_BYTES, PageHeader
from holdfast.queue.log.page_scan import PageScan
from holdfast.queue.options import clock_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from holdfast.queue.files.port import FilePort, WritableMap
    from holdfast.queue.log.opening import LogEnd


class OpenPage:
    """The open files of a page. Frames end at ``limit``, so that a SEAL fits. Closes ``file`` if it raises."""

    __slots__ = ("checksum", "file", "header", "index_file", "limit", "map", "seed")

    def __init__(self, port: FilePort, file: int, header: PageHeader) -> None:
        self.file = file
        self.header = header
        try:
            self.checksum = checksum_for_writing(header.checksum_id)
            self.seed = page_seed(self.checksum, header.salt, header.number)
            self.map: WritableMap | None = port.map(file, header.page_bytes)
        except BaseException:
            port.close(file)
            raise
        self.limit = header.page_bytes - SEAL_BYTES
        self.index_file: int | None = None

    def close(self, port: FilePort) -> None:
        """Close the files. Syncs nothing."""
        if self.map is not None:
            port.unmap(self.map)
            self.map = None
        if self.index_file is not None:
            port.close(self.index_file)
            self.index_file = None
        if self.file >= 0:
            port.close(self.file)
            self.file = -1

    def release(self, port: FilePort) -> None:
        """Close all files except the page itself, which the syncing thread closes."""
        self.file = -1
        self.close(port)


SMALL_FRAME_BYTES = 4096
"""Up to this size a store into the mapped page is faster than a system call."""
SHORT_S = 0.00005
"""A pause while another thread finishes its store, which takes a microsecond."""


class LogTail:
    """``end`` is the position and the number of the next frame, and its earliest time.

    A writer has at most one fast path: it ``stores`` into the mapped page, or it ``writes``. It stops at ``limit``: the
    next record of the write position or the end of the page; -1 while the slow path runs. Python and ``pickle`` show it
    as the queue, whose ``append`` is its own.
    """

    __slots__ = (
        "_clock", "_fast_turn", "_message_bytes_max", "_port", "_slow_append", "_small_max", "_stores", "_writes",
        "base_seq", "batch_surplus", "checksum", "end", "index", "interrupted", "limit", "lock", "map", "record_due",
        "page", "seed", "written_bytes",
    )  # fmt: skip

    def __init__(
        self,
        port: FilePort,
        end: LogEnd,
        *,
        clock: Callable[[], int],
        message_bytes_max: int,
        stores: bool,
        writes: bool,
        slow_append: Callable[[Octets], int],
    ) -> None:
        self._port = port
        self._clock = clock
        self._message_bytes_max = message_bytes_max
        self._small_max = min(SMALL_FRAME_BYTES, message_bytes_max) if stores else -1
        self._stores, self._writes = stores, writes
        self._slow_append = slow_append
        self.lock = threading.Lock()
        self._fast_turn: list[None] = [None]
        self.limit = -1
        self.interrupted = False  # a frame may be after the end, whole and not published
        self.page: OpenPage | None = None
        self.map: WritableMap = bytearray()
        self.seed = 0
        self.checksum: Checksum = crc32
        self.end = end.position, end.next_seq, end.last_time_ns
        self.record_due = 0
        self.base_seq = end.header.base_seq if end.resume and end.header else end.next_seq
        self.batch_surplus = 0  # messages of the page that have no frame of their own
        self.index = PageIndex()
        self.written_bytes = 0

    def __repr__(self) -> str:
        return "<holdfast.Queue>"

    def __reduce__(self) -> NoReturn:
        raise copies_refused("Queue")

    # ---- the fast paths ---------------------------------------------------------------------------------------------

    def append(self, payload: Octets) -> int:
        """What ``Queue.append`` does: store one message into the mapped page. Where that is impossible, it goes through
        ``Writer.append_durably`` at the level "always", else through ``Writer.append_slowly``. Returns its sequence
        number. Raises: as ``Writer.append_frames``. Cost: about one microsecond, without a system call.
        """
        try:
            size = len(payload)
        except TypeError:
            return self._slow_append(payload)  # it raises the error
        try:
            self._fast_turn.pop()
        except IndexError:  # another thread is in the fast path
            pass
        except BaseException:  # an interrupt after it
            self._fast_turn.append(None)
            raise
        else:
            try:
                position, seq, last_ns = self.end
                frame_end = position + HEAD_BYTES + size
                if frame_end <= self.limit and size <= self._small_max and type(payload) is bytes:
                    time_ns = self._clock()
                    if time_ns < last_ns:
                        time_ns = max(clock_ns(time_ns), last_ns)
                    pack, store = single_packers[size]
                    check = self.checksum(pack(payload, size, time_ns, 1), self.seed) ^ (seq & SEQ_MASK)
                    store(self.map, position, size, check, time_ns, 1, payload)
                    if position >= self.index.due:
                        self.index.note(time_ns, position, 1)
                    self.end = frame_end, seq + 1, time_ns
                    return seq
            except (struct.error, TypeError, InvalidRequest):  # the time: nothing is stored, and the slow path names it
                pass
            except BaseException:  # an interrupt: no call here, another one would come between
                self.interrupted, self.limit = True, -1
                raise
            finally:
                self._fast_turn.append(None)
        return self._slow_append(payload)

    def append_at_once(self, payload: bytes) -> int | None:
        """As ``append``, if that needs no new page and no other thread; else do nothing and return None."""
        frame_end = self.end[0] + HEAD_BYTES + len(payload)
        return self.append(payload) if self._stores and frame_end <= self.limit else None

    def write(self, payload: bytes) -> int:
        """Append one message by a system call; 0 where the slow path is needed. For the level "always": after a store
        into the mapped page a sync is slower, because the kernel write-protects the page again.
        """
        with self.lock:
            position, seq, last_ns = self.end
            page, frame_end = self.page, position + HEAD_BYTES + len(payload)
            if frame_end > self.limit or len(payload) > self._message_bytes_max or page is None:
                return 0
            try:
                time_ns = self._clock()
                if time_ns < last_ns:
                    time_ns = max(clock_ns(time_ns), last_ns)
                parts = (encode_head(page.checksum, page.seed, seq, time_ns, 1, 0, (payload,)), payload)
            except (struct.error, TypeError, InvalidRequest):
                return 0  # the slow path names what is wrong with the time
            try:
                self._port.write(page.file, position, parts)
                self._move(frame_end, 1, time_ns)
            except OSError as error:
                raise refusal(error, 0) from error
            except BaseException:
                self.interrupted, self.limit = True, -1
                raise
            return seq

    def open_fast_path(self) -> None:
        """Set ``limit`` as far as the fast path may go. Call with the lock held."""
        page = self.page
        if page is not None and not self.interrupted and (self._writes or (self._stores and page.map is not None)):
            self.limit = min(page.limit, self.record_due)

    def close_fast_path(self) -> None:
        """From now on every append takes the slow path, and no fast append is running. Call with the lock held."""
        self.limit = -1
        while not self._fast_turn:
            sleep(SHORT_S)

    def renew_after_fork(self) -> None:
        """In a forked child: another thread of the parent may have held the lock or the turn."""
        self.limit = -1
        self.lock, self._fast_turn = threading.Lock(), [None]

    # ---- the slow path ----------------------------------------------------------------------------------------------

    def put(self, page: OpenPage, parts: Sequence[bytes], frame_end: int, count: int, time_ns: int) -> None:
        """Write one frame at the end, then publish the new end, ``frame_end``. Call with the fast path closed.

        One write per frame: if a full disk cut a write of several, whole frames would stay after the published end.
        """
        position = self.position
        if frame_end - position <= SMALL_FRAME_BYTES and page.map is not None:
            page.map[position:frame_end] = b"".join(parts)
        else:
            self._port.write(page.file, position, parts)
        with self.lock:
            self._move(frame_end, count, time_ns)

    def _move(self, frame_end: int, count: int, time_ns: int) -> None:
        position, seq, _ = self.end
        self.index.note(time_ns, position, count)
        self.batch_surplus += count - 1
        self.written_bytes += frame_end - position
        self.end = frame_end, seq + count, time_ns

    def complete_interrupted(self) -> None:
        """Publish a frame that an interrupt left whole: readers elsewhere may have it, so its number is taken."""
        page = self.page
        if not self.interrupted or page is None:
            return
        position, next_seq, last_ns = self.end
        scan = PageScan(self._port, page.file, page.header, next_seq=next_seq, position=position, last_time_ns=last_ns)
        window = scan.read(HEAD_BYTES)
        with self.lock:
            if window is not None:
                self.batch_surplus += scan.next_seq - next_seq - len(window.frames)
                self.written_bytes += scan.position - position
                self.end = scan.state
            self.interrupted = False

    # ---- pages ------------------------------------------------------------------------------------------------------

    def resume(self, page: OpenPage, end: LogEnd) -> None:
        """Continue in a page of an earlier process."""
        self.index = end.index
        self.batch_surplus = end.next_seq - page.header.base_seq - end.frames
        self._use(page)

    def begin(self, page: OpenPage) -> None:
        """Continue in a new page. Call with the lock held."""
        self._use(page)
        # No frame may be earlier than the header says, also if this one is refused and the clock steps back.
        self.end = HEADER_BYTES, self.next_seq, page.header.base_time_ns
        self.base_seq, self.batch_surplus = self.next_seq, 0
        self.index = PageIndex()
        self.record_due = 0

    def _use(self, page: OpenPage) -> None:
        self.page = page
        self.seed, self.checksum = page.seed, page.checksum
        if page.map is not None:
            self.map = page.map

    @property
    def position(self) -> int:
        """Where the next frame goes."""
        return self.end[0]

    @property
    def next_seq(self) -> int:
        """The number of the next message."""
        return self.end[1]

    @property
    def last_time_ns(self) -> int:
        """The arrival of the last message; later messages never have an earlier one."""
        return self.end[2]

    @property
    def frames(self) -> int:
        """Frames in the page."""
        return self.next_seq - self.base_seq - self.batch_surplus

    @property
    def end_position(self) -> PagePosition | None:
        """The position that a sync from now makes durable; None before the first page. Call with the lock held."""
        if self.page is None:
            return None
        position, next_seq, time_ns = self.end
        return PagePosition(self.page.header.number, self.page.header.salt, next_seq, time_ns, position)

    def close(self) -> None:
        """Close the page's files. Call with the lock held."""
        page, self.page = self.page, None
        self.map = bytearray()
        if page is not None:
            page.close(self._port)
