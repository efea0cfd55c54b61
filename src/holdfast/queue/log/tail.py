"""A page that is open for writing.

Owns: the handles of one page. Does not own: what is written (``writer``).

Failure model: as the port's. Closing twice is harmless.

The open end of a log: where the next frame goes, and the quick ways of writing one there.

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

Making the log durable: one sync for all who wait for one, and no second try.

Owns: who syncs (the first who needs it leads, the others follow), ``durable_seq``, the poison after a failure. Does not
own: what is synced (``SyncTarget``, told by the writer), the writing.

Failure model: a sync that fails, of a file or of the directory, is never repeated. Linux may have dropped the dirty
pages and would answer the second call with success. From then on nothing above ``durable_seq`` is ever acknowledged:
every waiter and every later call gets ``Closed`` with the code ``sync_failed``; opening the queue anew finds what is
really there. It learns of the failure from the mark. Where a disk refuses that one, too, what is opened before a
restart of the machine may call durable what only the cache has.

The end (``end``) comes before the files are closed. Whoever waits for a sync then, because the closing was interrupted,
gets ``Closed``: there is nothing left to sync, and that would be no reason to call anything durable.

How far a log is durable: what a sync has to sync, what one has reached, and what the marks say of it.

Owns: the closed pages that wait for their sync, the durable place, the marks and when both slots are whole. Does not
own: who syncs and when (``durability``), the end of the log (``log_tail``), the file of the marks (``mark_file``).

Failure model: ``OSError`` from the port. A mark is a hint: where one cannot be written, the messages are in the log all
the same, and no error may say that they are not. Only ``announce`` and ``close_cleanly`` need theirs, and raise. A sync
of the directory that fails is as any that fails (``durability``): ``Closed``, and no clean mark any more.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from time import sleep
from zlib import crc32

from holdfast.errors import Closed, Code
from holdfast.queue.files.disk_errors import refusal
from holdfast.queue.files.index import PageIndex
from holdfast.queue.format.checksum import checksum_for_writing
from holdfast.queue.format.frame import HEAD_BYTES, SEAL_BYTES, SEQ_MASK, encode_head, page_seed, single_packers
from holdfast.queue.format.meta import DurableMark, mark_value
from holdfast.queue.format.page import HEADER_BYTES, PageHeader
from holdfast.queue.log.page_scan import PageScan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.queue.files.meta_files import MarkFile
    from holdfast.queue.files.port import FilePort, WritableMap
    from holdfast.queue.format.checksum import Checksum, Octets
    from holdfast.queue.format.meta import DurableMark, WriteMark
    from holdfast.queue.log.opening import LogEnd


__all__ = ["SMALL_FRAME_BYTES", "Durability", "LogTail", "OpenPage", "SyncProgress", "SyncTarget"]


class OpenPage:
    """Handles and header; ``limit`` is where frames end, so that a SEAL always fits behind them.

    ``file`` is its own from the call on: closed also where it raises."""

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
        """Close what is open. Syncs nothing."""
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
        """Close all but the file, which by now is of those who sync it."""
        self.file = -1
        self.close(port)


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


class SyncTarget:
    """The files of the pages that are ``closed``, then that of the page that is ``open``, if it is to be synced, too.
    After that everything before ``next_seq`` is durable.

    They are told apart because a page that is closed while its sync is under way has got more meanwhile, which wants
    another one.
    """

    __slots__ = ("closed", "next_seq", "open", "place")

    def __init__(
        self, closed: list[int], open_file: int | None, next_seq: int, place: tuple[DurableMark, int] | None
    ) -> None:
        self.closed = closed
        self.open = open_file
        self.next_seq = next_seq
        self.place = place


class Durability:
    """Leader and followers over one log.

    ``take`` tells what a sync that begins now has to sync; ``reached`` is told when it has succeeded, ``failed`` when
    it has not. None of the three is called with this object's lock held.
    """

    __slots__ = (
        "_condition",
        "_ended",
        "_failed",
        "_followed",
        "_lock",
        "_port",
        "_reached",
        "_syncing",
        "_take",
        "_telling",
        "failure",
        "next_seq",
        "syncs",
    )

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
        # Taken by itself: an interrupt inside the condition's own ``with`` would leave it locked for ever.
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._telling = threading.Lock()
        self._syncing = False
        self._followed = False
        """Whether anybody has waited for the sync that is under way."""
        self._ended: Closed | None = None
        self.failure: OSError | None = None
        self.next_seq = next_seq
        self.syncs = 0

    def wait_for(self, next_seq: int) -> None:
        """Return when everything before ``next_seq`` is durable, by leading a sync or by following one.

        Raises: ``Closed`` (sync_failed) once any sync has failed.
        Cost: one data sync for all threads that wait at the same time; a follower may need the one after the next.
        """
        while self.next_seq < next_seq:
            self._lead_or_follow(next_seq)

    def sync_sealed(self) -> None:
        """Sync the closed pages that wait for it. Returns when they are, or at once when another syncs already."""
        self._lead_or_follow(None)

    def fail(self, error: OSError) -> None:
        """A sync has failed, of files or of their names. Raises: ``Closed`` (sync_failed), always."""
        with self._telling:
            self.failure = error
            self._failed()
        self.raise_if_failed()

    def end(self, reason: Closed) -> None:
        """Nothing more becomes durable. Call before the files are closed; a failure that was met has been told then."""
        with self._lock:
            self._ended = reason
            self._condition.notify_all()
        with self._telling:
            pass

    def _raise_if_over(self) -> None:
        self.raise_if_failed()
        if self._ended is not None:
            raise self._ended.with_traceback(None)

    def raise_if_failed(self) -> None:
        """The error of a log that can no longer promise anything."""
        if self.failure is not None:
            raise Closed(
                "a sync failed: nothing more is accepted",
                code=Code.SYNC_FAILED,
                hint="open the queue again; it finds what is on disk",
                durable_seq=self.next_seq - 1,
                cause=self.failure,
            ) from self.failure

    def _lead_or_follow(self, next_seq: int | None) -> None:
        """Sync what there is now and wake the followers whatever comes of it; or wait until another has.

        ``next_seq`` is what is to be durable; None is for the closed pages alone.
        """
        leads = False
        try:
            with self._lock:
                if next_seq is not None and self.next_seq >= next_seq:
                    self.raise_if_failed()
                    return
                self._raise_if_over()
                if self._syncing:
                    self._followed = True
                    self._condition.wait()
                    self.raise_if_failed()
                    return
                leads = self._syncing = True  # together: an interrupt leaves no sync that nobody leads
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
            self._raise_if_over()
        self.syncs += 1
        self._reached(target)
        self.next_seq = max(self.next_seq, target.next_seq)


class SyncProgress:
    """``durable`` is the place before which everything is on disk. ``closing`` are the files of pages that are closed
    by a SEAL and not synced yet, oldest first; ``synced_bytes`` counts as the tail's ``written_bytes`` does. While it
    is ``silent``, the marks do not say yet, durably, that the queue is open. With ``marks_at_once`` each sync writes a
    mark, else only one that closes pages does, and ``write_owed_mark`` the others. ``sync_names`` syncs the directory,
    and raises ``Closed`` where that fails."""

    __slots__ = (
        "_end_place",
        "_mark_is_owed",
        "_marks",
        "_port",
        "_sync_names",
        "_tail",
        "closing",
        "durable",
        "marks_at_once",
        "silent",
        "synced_bytes",
    )

    def __init__(
        self,
        port: FilePort,
        tail: LogTail,
        end: LogEnd,
        mark: WriteMark | None,
        marks: MarkFile,
        sync_names: Callable[[], None],
    ) -> None:
        self._port = port
        self._tail = tail
        self._marks = marks
        self.silent = True
        self.marks_at_once = True
        self._mark_is_owed = False
        place = DurableMark(
            end.page, end.header.salt if end.header else 0, end.position, end.next_seq, end.last_time_ns
        )
        self._end_place = place
        # The page made ahead will be used: the one who made it may have been killed before its name was durable.
        self._sync_names = None if end.clean or not (end.resume and end.doubtful) else sync_names
        self.durable = mark.durable if mark is not None and end.resume and not mark.clean else place
        self.closing: list[int] = []
        self.synced_bytes = 0

    # ---- syncs ------------------------------------------------------------------------------------------------------

    def take(self, sealed_only: bool) -> SyncTarget:
        """What a sync that begins now has to sync: the closed pages, and the open one unless told otherwise."""
        tail = self._tail
        with tail.lock:
            closed, page, place = list(self.closing), tail.page, tail.place
            if page is None or place is None:
                return SyncTarget(closed, None, tail.next_seq, None)
            if sealed_only:
                header = page.header
                place = DurableMark(header.number, header.salt, HEADER_BYTES, tail.base_seq, header.base_time_ns)
                return SyncTarget(closed, None, tail.base_seq, (place, self.synced_bytes))
            return SyncTarget(closed, page.file, tail.next_seq, (place, tail.written_bytes))

    def reached(self, target: SyncTarget) -> None:
        """A sync has succeeded."""
        with self._tail.lock:
            for file in target.closed:
                if file in self.closing:
                    self.closing.remove(file)
                    self._port.close(file)
            if target.place is not None and target.next_seq >= self.durable.next_seq:
                self.durable, self.synced_bytes = target.place
            self._mark_is_owed = True
            if self.marks_at_once or target.closed:
                self._write_owed_mark()

    def write_owed_mark(self) -> None:
        """Write the mark that a sync has left, if one has."""
        if self._mark_is_owed:
            with self._tail.lock:
                if self._mark_is_owed:
                    self._write_owed_mark()

    def _write_owed_mark(self) -> None:
        self._mark_is_owed = False
        # A hint: everything up to the target is durable, with or without it.
        with suppress(OSError):
            self.write_mark()

    def poison(self) -> None:
        """A sync has failed: the mark says that the page cache is not to be trusted. Where even that cannot be written,
        there is nothing else to do, and the failure itself is told to every caller."""
        with self._tail.lock:
            self._marks.distrust_cache()
            self._tail.close_quick_way()
            with suppress(OSError):
                self.write_mark()

    @property
    def pages_safe_below(self) -> int:
        """Pages below this one may be removed: the page after each of them is begun durably, so that the log's first
        page always tells its base."""
        durable = self.durable
        return durable.page if durable.position > HEADER_BYTES else durable.page - 1

    # ---- marks ------------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Before the first frame, and before the first page: both slots say durably that the queue is open.

        Were a clean mark left on disk, a crash could bring it back together with frames from behind it. And once both
        are whole, no crash takes both. Also the name of a page that a killed process made ahead. Not when opening: who
        only reads does not pay for the syncs, and what was being written when a process was killed makes them long.
        """
        if self.silent:
            self._make_names_durable()
            with self._tail.lock:
                # Also where they were written before and the sync failed: only what is written anew is synced.
                self.write_mark()
                self.write_mark()
            self._marks.sync()
            self.silent = False

    def _make_names_durable(self) -> None:
        if self._sync_names is not None:
            self._sync_names()
            self._sync_names = None

    def write_index(self) -> None:
        """Write what the index file of the page lacks."""
        page = self._tail.page
        if page is not None and page.index_file is not None:
            self._tail.index.write(self._port, page.index_file, page.checksum)

    def write_mark(self, *, clean: bool = False) -> None:
        """Write the next slot. Call with the lock held; not synced."""
        tail, index, page = self._tail, self._tail.index, self._tail.page
        if page is None:
            place = self._end_place
            number, salt = place.page, place.salt
            position, next_seq, time_ns = place.position, place.next_seq, place.last_time_ns
        else:
            number, salt = page.header.number, page.header.salt
            position, next_seq, time_ns = tail.end
        value = mark_value(
            *(number, salt, position, next_seq, time_ns),
            *(tail.frames, index.records, index.check, min(index.due, SEQ_MASK), clean),
            *(self.durable, self._marks.boot_id),
        )
        self._marks.write(value)

    def close_cleanly(self) -> None:
        """Everything is durable, and the marks say so, durably."""
        self._make_names_durable()  # the start after a clean mark takes them for that
        with self._tail.lock:
            self.write_index()
            self._mark_is_owed = False
            self.write_mark(clean=True)
        self._marks.sync()

    def let_go(self) -> None:
        """Close the files. Call with the lock held."""
        closing, self.closing = self.closing, []
        for file in closing:
            self._port.close(file)
        self._marks.close()
