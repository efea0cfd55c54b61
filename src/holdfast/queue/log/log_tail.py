"""The open end of a log: where the next frame goes, and the quick ways of writing one there.

Owns: the page being written and the place, number, arrival and index of what comes next; the quick ways, how far they
may go, and that nobody else moves the end meanwhile. Does not own: what takes care, as a page roll, a mark, a batch
(``writer``); what of it is durable (``sync_progress``).

Failure model: an append that raises has appended nothing, and the next one writes over whatever it left; one that is
interrupted (Ctrl-C) has appended its frame or not, and the next one looks which (``settle``).

Who may move the end:

- what takes care closes the quick way first, and holds ``lock`` wherever others look at more than one field;
- the quick way of storing takes the one element out of a list, and puts it back. That is a lock at a quarter of the
  price, and a lock would take longer than the store that it guards. Nobody waits for it: who finds the list empty takes
  care instead. Who closes the quick way tells it first that it is closed, and then waits until the element is there.
- ``end`` is one tuple, so that whoever looks at it meanwhile sees a place, number and arrival that belong together.
"""

from __future__ import annotations

import threading
from time import sleep
from zlib import crc32

from holdfast.queue.files.disk_errors import refusal
from holdfast.queue.files.page_index import PageIndex
from holdfast.queue.format.frame import HEAD_BYTES, SEQ_MASK, encode_head, single_packers
from holdfast.queue.format.page_header import HEADER_BYTES
from holdfast.queue.format.write_mark import DurableMark
from holdfast.queue.log.page_scan import PageScan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.queue.files.port import FilePort, WritableMap
    from holdfast.queue.format.checksum import Checksum, Octets
    from holdfast.queue.log.open_page import OpenPage
    from holdfast.queue.log.opening import LogEnd

__all__ = ["SMALL_FRAME_BYTES", "LogTail"]

SMALL_FRAME_BYTES = 4096
"""Up to here storing into the mapped page is quicker than a system call. The quick way of ``append`` stops here."""
SHORT_S = 0.00005
"""Until a store that is under way is over: it takes a microsecond, once its thread has its turn."""


class LogTail:
    """``end`` is the place, the number and the least arrival of the next frame.

    There are two quick ways, and a writer has one of them or none: one ``stores`` into the mapped page, the other
    ``writes``. It goes up to ``limit``: to the next mark or the end of the page, and nowhere, -1, while something takes
    care. ``careful`` appends where it may not.
    """

    __slots__ = (
        "_careful",
        "_clock",
        "_message_bytes_max",
        "_port",
        "_small_max",
        "_stores",
        "_turns",
        "_writes",
        "base_seq",
        "batch_surplus",
        "checksum",
        "end",
        "index",
        "interrupted",
        "limit",
        "lock",
        "map",
        "mark_due",
        "page",
        "seed",
        "written_bytes",
    )

    def __init__(
        self,
        port: FilePort,
        end: LogEnd,
        *,
        clock: Callable[[], int],
        message_bytes_max: int,
        stores: bool,
        writes: bool,
        careful: Callable[[Octets], int],
    ) -> None:
        self._port = port
        self._clock = clock
        self._message_bytes_max = message_bytes_max
        self._small_max = min(SMALL_FRAME_BYTES, message_bytes_max)
        self._stores, self._writes = stores, writes
        self._careful = careful
        self.lock = threading.Lock()
        self._turns: list[None] = [None]
        self.limit = -1
        self.interrupted = False  # a frame may stand behind the end, whole and not published
        self.page: OpenPage | None = None
        self.map: WritableMap = bytearray()
        self.seed = 0
        self.checksum: Checksum = crc32
        self.end = end.position, end.next_seq, end.last_time_ns
        self.mark_due = 0
        self.base_seq = end.header.base_seq if end.resume and end.header else end.next_seq
        self.batch_surplus = 0  # messages of the page that have no frame of their own
        self.index = PageIndex()
        self.written_bytes = 0

    # ---- the quick ways ---------------------------------------------------------------------------------------------

    def append(self, payload: Octets) -> int:
        """Append one message, stored into the mapped page. Returns its sequence number. Raises: as
        ``Writer.append_frames``.

        Cost: about one microsecond where the page is mapped and the level is "os"; no system call.
        """
        try:
            size = len(payload)
        except TypeError:
            return self._careful(payload)  # which tells what a message is
        try:
            self._turns.pop()
        except IndexError:  # somebody else is at it
            pass
        except BaseException:  # an interrupt behind it
            self._turns.append(None)
            raise
        else:
            try:
                position, seq, last_ns = self.end
                behind = position + HEAD_BYTES + size
                if behind <= self.limit and size <= self._small_max and type(payload) is bytes:
                    time_ns = self._clock()
                    if time_ns < last_ns:
                        time_ns = last_ns
                    pack, store = single_packers[size]
                    check = self.checksum(pack(payload, size, time_ns, 1), self.seed) ^ (seq & SEQ_MASK)
                    store(self.map, position, size, check, time_ns, 1, payload)
                    if position >= self.index.due:
                        self.index.note(time_ns, position, 1)
                    self.end = behind, seq + 1, time_ns
                    return seq
            except BaseException:  # an interrupt: no call here, another one would come between
                self.interrupted, self.limit = True, -1
                raise
            finally:
                self._turns.append(None)
        return self._careful(payload)

    def append_at_once(self, payload: bytes) -> int | None:
        """As ``append``, if that needs no page and no other thread to finish; else do nothing and return None."""
        behind = self.end[0] + HEAD_BYTES + len(payload)
        return self.append(payload) if self._stores and behind <= self.limit else None

    def write(self, payload: bytes) -> int:
        """Append one message, written, or 0 where that takes care. For the level "always": storing into the mapped page
        would make every sync dearer, because the kernel takes the page's write permission away and gives it back at the
        next store."""
        with self.lock:
            position, seq, last_ns = self.end
            page, behind = self.page, position + HEAD_BYTES + len(payload)
            if behind > self.limit or len(payload) > self._message_bytes_max or page is None:
                return 0
            time_ns = max(self._clock(), last_ns)
            parts = (encode_head(page.checksum, page.seed, seq, time_ns, 1, 0, (payload,)), payload)
            try:
                self._port.write(page.file, position, parts)
                self._move(behind, 1, time_ns)
            except OSError as error:
                raise refusal(error, 0) from error
            except BaseException:
                self.interrupted, self.limit = True, -1
                raise
            return seq

    def open_quick_way(self) -> None:
        """Let it go as far as it may without care. Call with the lock held."""
        page = self.page
        if page is not None and not self.interrupted and (self._writes or (self._stores and page.map is not None)):
            self.limit = min(page.limit, self.mark_due)

    def close_quick_way(self) -> None:
        """From here on every append takes care, and none is under way in the quick way. Call with the lock held."""
        self.limit = -1
        while not self._turns:
            sleep(SHORT_S)

    def renew_after_fork(self) -> None:
        """In a forked child, where another thread of the parent may have held the lock, or its turn."""
        self.limit = -1
        self.lock, self._turns = threading.Lock(), [None]

    # ---- the careful way --------------------------------------------------------------------------------------------

    def put(self, page: OpenPage, parts: Sequence[bytes], behind: int, count: int, time_ns: int) -> None:
        """Write one frame at the end, then publish that the end is ``behind`` it. For who has closed the quick way.

        One write for each: of several in one, a disk that fills up would leave whole frames behind the published end.
        Readers elsewhere would take them, and the next append would write others over them.
        """
        position = self.position
        if behind - position <= SMALL_FRAME_BYTES and page.map is not None:
            page.map[position:behind] = b"".join(parts)
        else:
            self._port.write(page.file, position, parts)
        with self.lock:
            self._move(behind, count, time_ns)

    def _move(self, behind: int, count: int, time_ns: int) -> None:
        """Publish a frame that was written."""
        position, seq, _ = self.end
        self.index.note(time_ns, position, count)
        self.batch_surplus += count - 1
        self.written_bytes += behind - position
        self.end = behind, seq + count, time_ns

    def settle(self) -> None:
        """Publish a frame that an interrupt left between its writing and its publication, or see that there is none.

        Readers elsewhere may have been given it. Another one written over it would be a second message of its number.
        """
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
                self.end = scan.place
            self.interrupted = False

    # ---- pages ------------------------------------------------------------------------------------------------------

    def resume(self, page: OpenPage, end: LogEnd) -> None:
        """Go on in a page that an earlier process has begun."""
        self.index = end.index
        self.batch_surplus = end.next_seq - page.header.base_seq - end.frames
        self._use(page)

    def begin(self, page: OpenPage) -> None:
        """Go on in a new page. Call with the lock held."""
        self._use(page)
        # The header says so now: also if this frame is refused and the clock steps back, none may be earlier.
        self.end = HEADER_BYTES, self.next_seq, page.header.base_time_ns
        self.base_seq, self.batch_surplus = self.next_seq, 0
        self.index = PageIndex()
        self.mark_due = 0

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
        """Arrival of the last message: no later one may have an earlier one."""
        return self.end[2]

    @property
    def frames(self) -> int:
        """Frames in the page."""
        return self.next_seq - self.base_seq - self.batch_surplus

    @property
    def place(self) -> DurableMark | None:
        """The end, as it will be durable after a sync from now; None before the first page. Call with the lock held."""
        if self.page is None:
            return None
        header = self.page.header
        return DurableMark(header.number, header.salt, *self.end)

    def let_go(self) -> None:
        """Close the page's files. Call with the lock held."""
        page, self.page = self.page, None
        self.map = bytearray()
        if page is not None:
            page.close(self._port)
