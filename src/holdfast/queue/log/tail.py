"""The end of the log: the page being written, the fast paths that append there, and how much of it is durable.

An append that raises has appended nothing, and the next append overwrites what it left. After an interrupt (Ctrl-C) its
frame is there or not; the next append finds out (``complete_interrupted``). Two paths move the end:

- The slow path (``writer``) closes the fast path first, and holds ``lock`` where other threads read several fields.
- The storing fast path takes the one element out of the list ``_turns`` and puts it back: a lock at a quarter of the
  price. If the list is empty, a thread takes the slow path. Closing it sets ``limit`` and waits for the element.

A failed sync is never repeated: Linux may have dropped the dirty pages and would report success. From then on every
call raises ``Closed`` (sync_failed), until the queue is opened again. The recorded write position then says that the
page cache is not trusted, if the disk takes it.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from time import sleep
from zlib import crc32

from holdfast.errors import Closed, Code
from holdfast.queue.files.disk_errors import refusal
from holdfast.queue.files.index import PageIndex
from holdfast.queue.files.meta_files import UNKNOWN_BOOT, WritePositionFile
from holdfast.queue.format.checksum import Checksum, Octets, checksum_for_writing
from holdfast.queue.format.frame import HEAD_BYTES, SEAL_BYTES, SEQ_MASK, encode_head, page_seed, single_packers
from holdfast.queue.format.meta import DurablePosition, WritePosition, write_position_value
from holdfast.queue.format.page import HEADER_BYTES, PageHeader
from holdfast.queue.log.page_scan import PageScan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    next record of the write position or the end of the page; -1 while the slow path runs.
    """

    __slots__ = (
        "_slow_append", "_clock", "_message_bytes_max", "_port", "_small_max", "_stores", "_turns", "_writes",
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
        self._small_max = min(SMALL_FRAME_BYTES, message_bytes_max)
        self._stores, self._writes = stores, writes
        self._slow_append = slow_append
        self.lock = threading.Lock()
        self._turns: list[None] = [None]
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

    # ---- the fast paths ---------------------------------------------------------------------------------------------

    def append(self, payload: Octets) -> int:
        """Append one message by storing it into the mapped page. Returns its sequence number. Raises: as
        ``Writer.append_frames``. Cost: about one microsecond, without a system call.
        """
        try:
            size = len(payload)
        except TypeError:
            return self._slow_append(payload)  # it raises the error
        try:
            self._turns.pop()
        except IndexError:  # another thread is in the fast path
            pass
        except BaseException:  # an interrupt after it
            self._turns.append(None)
            raise
        else:
            try:
                position, seq, last_ns = self.end
                frame_end = position + HEAD_BYTES + size
                if frame_end <= self.limit and size <= self._small_max and type(payload) is bytes:
                    time_ns = self._clock()
                    if time_ns < last_ns:
                        time_ns = last_ns
                    pack, store = single_packers[size]
                    check = self.checksum(pack(payload, size, time_ns, 1), self.seed) ^ (seq & SEQ_MASK)
                    store(self.map, position, size, check, time_ns, 1, payload)
                    if position >= self.index.due:
                        self.index.note(time_ns, position, 1)
                    self.end = frame_end, seq + 1, time_ns
                    return seq
            except BaseException:  # an interrupt: no call here, another one would come between
                self.interrupted, self.limit = True, -1
                raise
            finally:
                self._turns.append(None)
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
            time_ns = max(self._clock(), last_ns)
            parts = (encode_head(page.checksum, page.seed, seq, time_ns, 1, 0, (payload,)), payload)
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
        while not self._turns:
            sleep(SHORT_S)

    def renew_after_fork(self) -> None:
        """In a forked child: another thread of the parent may have held the lock or the turn."""
        self.limit = -1
        self.lock, self._turns = threading.Lock(), [None]

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
    def end_position(self) -> DurablePosition | None:
        """The position that a sync from now makes durable; None before the first page. Call with the lock held."""
        if self.page is None:
            return None
        header = self.page.header
        return DurablePosition(header.number, header.salt, *self.end)

    def close(self) -> None:
        """Close the page's files. Call with the lock held."""
        page, self.page = self.page, None
        self.map = bytearray()
        if page is not None:
            page.close(self._port)


class SyncTarget:
    """What one sync covers: files of ``closed`` pages, then the ``open`` page; it makes everything before ``next_seq``
    durable. Separate, because a page that is closed during its sync has grown and needs another sync.
    """

    __slots__ = ("closed", "next_seq", "open", "position")

    def __init__(
        self, closed: list[int], open_file: int | None, next_seq: int, position: tuple[DurablePosition, int] | None
    ) -> None:
        self.closed = closed
        self.open = open_file
        self.next_seq = next_seq
        self.position = position


class Durability:
    """Group commit: the first thread that needs a sync leads it, the others wait for its result. ``take`` returns what
    to sync; ``reached`` is called after success, ``failed`` after failure, all without this object's lock.
    """

    __slots__ = (
        "_condition", "_ended", "_failed", "_followed", "_lock", "_port", "_reached", "_syncing", "_take", "_failing",
        "failure", "next_seq", "syncs",
    )  # fmt: skip

    def __init__(
        self,
        port: FilePort,
        next_seq: int,
        take: Callable[[bool], SyncTarget],
        reached: Callable[[SyncTarget], None],
        failed: Callable[[], None],
    ) -> None:
        self._port = port
        self._take = take
        self._reached = reached
        self._failed = failed
        # A separate lock: an interrupt inside the condition's own ``with`` would leave it locked.
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._failing = threading.Lock()
        self._syncing = False
        self._followed = False  # a thread has waited for the sync that is under way
        self._ended: Closed | None = None
        self.failure: OSError | None = None
        self.next_seq = next_seq
        self.syncs = 0

    def wait_for(self, next_seq: int) -> None:
        """Return when everything before ``next_seq`` is durable. Raises: ``Closed`` (sync_failed). Cost: one sync."""
        while self.next_seq < next_seq:
            self._lead_or_follow(next_seq)

    def sync_sealed(self) -> None:
        """Sync the closed pages, or return immediately when another thread is syncing."""
        self._lead_or_follow(None)

    def fail(self, error: OSError) -> None:
        """Record that a sync of files or names has failed. Raises: ``Closed`` (sync_failed), always."""
        with self._failing:
            self.failure = error
            self._failed()
        self.raise_if_failed()

    def end(self, reason: Closed) -> None:
        """Refuse further syncs. Call before the files are closed, so that no thread syncs a reused file number."""
        with self._lock:
            self._ended = reason
            self._condition.notify_all()
        with self._failing:
            pass

    def _raise_if_ended(self) -> None:
        self.raise_if_failed()
        if self._ended is not None:
            raise self._ended.with_traceback(None)

    def raise_if_failed(self) -> None:
        """Raise ``Closed`` (sync_failed) if a sync has failed."""
        if self.failure is not None:
            raise Closed(
                "a sync failed: the queue accepts no more messages",
                code=Code.SYNC_FAILED,
                hint="open the queue again; it then has the messages that are on the disk",
                durable_seq=self.next_seq - 1,
                cause=self.failure,
            ) from self.failure

    def _lead_or_follow(self, next_seq: int | None) -> None:
        """Lead a sync, or wait for another leader. None syncs closed pages only."""
        leads = False
        try:
            with self._lock:
                if next_seq is not None and self.next_seq >= next_seq:
                    self.raise_if_failed()
                    return
                self._raise_if_ended()
                if self._syncing:
                    self._followed = True
                    self._condition.wait()
                    self.raise_if_failed()
                    return
                leads = self._syncing = True  # together: an interrupt leaves no sync without a leader
            self._sync(sealed_only=next_seq is None)
        finally:
            if leads:
                with self._lock:
                    self._syncing = False
                    if self._followed:
                        self._condition.notify_all()
                        self._followed = False

    def _sync(self, *, sealed_only: bool) -> None:
        target = self._take(sealed_only)
        try:
            for file in target.closed:
                self._port.sync_data(file)
            if target.open is not None:
                self._port.sync_data(target.open)
        except OSError as error:
            self.fail(error)
        if self._ended is not None:  # the files may have been closed under it: their numbers were others' then
            self._raise_if_ended()
        self.syncs += 1
        self._reached(target)
        self.next_seq = max(self.next_seq, target.next_seq)


class SyncProgress:
    """How far the log is durable, and the recorded write position. ``closing`` are files of sealed pages that wait for
    their sync, oldest first. While ``silent``, the disk does not say yet that the queue is open.

    With ``records_at_once`` each sync records the position; otherwise only a sync that closes pages does. The record is
    a hint, so its errors are suppressed, except in ``announce`` and ``close_cleanly``, which need it.
    """

    __slots__ = (
        "_start_position", "_position_is_owed", "_position_file", "_port", "_sync_names", "_tail", "closing", "durable",
        "records_at_once", "silent", "synced_bytes",
    )  # fmt: skip

    def __init__(
        self,
        port: FilePort,
        tail: LogTail,
        end: LogEnd,
        written: WritePosition | None,
        position_file: WritePositionFile,
        sync_names: Callable[[], None],
    ) -> None:
        self._port = port
        self._tail = tail
        self._position_file = position_file
        self.silent = True
        self.records_at_once = True
        self._position_is_owed = False
        end_position = DurablePosition(
            end.page, end.header.salt if end.header else 0, end.position, end.next_seq, end.last_time_ns
        )
        self._start_position = end_position
        # The prepared page will be used: its maker may have been killed before its name was durable.
        self._sync_names = None if end.clean or not (end.resume and end.doubtful) else sync_names
        self.durable = written.durable if written is not None and end.resume and not written.clean else end_position
        self.closing: list[int] = []
        self.synced_bytes = 0

    def take(self, sealed_only: bool) -> SyncTarget:
        """What a sync that begins now covers."""
        tail = self._tail
        with tail.lock:
            closed, page, end_position = list(self.closing), tail.page, tail.end_position
            if page is None or end_position is None:
                return SyncTarget(closed, None, tail.next_seq, None)
            if sealed_only:
                header = page.header
                end_position = DurablePosition(
                    header.number, header.salt, HEADER_BYTES, tail.base_seq, header.base_time_ns
                )
                return SyncTarget(closed, None, tail.base_seq, (end_position, self.synced_bytes))
            return SyncTarget(closed, page.file, tail.next_seq, (end_position, tail.written_bytes))

    def reached(self, target: SyncTarget) -> None:
        """A sync has succeeded."""
        with self._tail.lock:
            for file in target.closed:
                if file in self.closing:
                    self.closing.remove(file)
                    self._port.close(file)
            if target.position is not None and target.next_seq >= self.durable.next_seq:
                self.durable, self.synced_bytes = target.position
            self._position_is_owed = True
            if self.records_at_once or target.closed:
                self._record_owed_position()

    def record_owed_position(self) -> None:
        """Record the position of the last sync, unless that is done."""
        if self._position_is_owed:
            with self._tail.lock:
                if self._position_is_owed:
                    self._record_owed_position()

    def _record_owed_position(self) -> None:
        self._position_is_owed = False
        with suppress(OSError):
            self.record_position()

    def poison(self) -> None:
        """A sync has failed: record that the page cache is not trusted, if the disk allows it."""
        with self._tail.lock:
            self._position_file.boot_id = UNKNOWN_BOOT
            self._tail.close_fast_path()
            with suppress(OSError):
                self.record_position()

    @property
    def pages_safe_below(self) -> int:
        """Pages below this one may be removed: the page after each of them is durably begun, and has the base."""
        durable = self.durable
        return durable.page if durable.position > HEADER_BYTES else durable.page - 1

    def announce(self) -> None:
        """Before the first frame: both slots say durably that the queue is open, so no crash brings back a clean record
        together with later frames. Not done while opening: readers should not pay for syncs.
        """
        if self.silent:
            self._make_names_durable()
            with self._tail.lock:
                # Also after a failed sync: a sync covers only what is written again.
                self.record_position()
                self.record_position()
            self._position_file.sync()
            self.silent = False

    def _make_names_durable(self) -> None:
        if self._sync_names is not None:
            self._sync_names()
            self._sync_names = None

    def write_index(self) -> None:
        """Write the pending records of the page's index."""
        page = self._tail.page
        if page is not None and page.index_file is not None:
            self._tail.index.write(self._port, page.index_file, page.checksum)

    def record_position(self, *, clean: bool = False) -> None:
        """Write the next slot. Not synced. Call with the lock held."""
        tail, index, page = self._tail, self._tail.index, self._tail.page
        if page is None:
            end_position = self._start_position
            number, salt = end_position.page, end_position.salt
            position, next_seq, time_ns = end_position.position, end_position.next_seq, end_position.last_time_ns
        else:
            number, salt = page.header.number, page.header.salt
            position, next_seq, time_ns = tail.end
        value = write_position_value(
            *(number, salt, position, next_seq, time_ns),
            *(tail.frames, index.records, index.check, min(index.due, SEQ_MASK), clean),
            *(self.durable, self._position_file.boot_id),
        )
        self._position_file.write(value)

    def close_cleanly(self) -> None:
        """Everything is durable: record that, durably."""
        self._make_names_durable()  # the start after a clean record takes them for that
        with self._tail.lock:
            self.write_index()
            self._position_is_owed = False
            self.record_position(clean=True)
        self._position_file.sync()

    def close(self) -> None:
        """Close the files. Call with the lock held."""
        closing, self.closing = self.closing, []
        for file in closing:
            self._port.close(file)
        self._position_file.close()
