"""The writer of a queue: one for each queue, used by any number of threads. ``tail`` has the fast paths of an append,
``durability`` the syncs; this module has everything else.

The steps by which the log moves to the next page, and what a crash leaves:

1. The next page is made durable before the last page gets its SEAL. A crash before the SEAL leaves the log as it was.
2. The SEAL, the header of the next page and its first frame are written without a sync. A crash may lose any of these
   three; ``judgement`` decides which of the others count.
3. The helper thread syncs the closed page. Nothing in the next page is durable before that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from holdfast.crc32 import Octets
from holdfast.errors import Closed, Code, HoldfastError, InternalError, InvalidRequest, LimitExceeded
from holdfast.queue.files.disk_errors import FULL, refusal
from holdfast.queue.files.meta_files import WritePositionFile
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.files.port import RemovedFile
from holdfast.queue.format.frame import (
    COMPRESSED,
    HEAD_BYTES,
    RAW_BODY_BYTES_MAX,
    SEAL_BYTES,
    batch_body,
    compress_body,
    encode_head,
    encode_seal,
    octets,
    split_batches,
)
from holdfast.queue.format.page import HEADER_BYTES, PAGE_BYTES_MAX, PageHeader, encode_header
from holdfast.queue.log.durability import Durability, SyncProgress
from holdfast.queue.log.opening import LogEnd
from holdfast.queue.log.tail import LogTail, OpenPage
from holdfast.queue.log.walk import UNSYNCED_PAGES_MAX
from holdfast.queue.options import SyncBounds, clock_ns
from holdfast.soundness import Soundness

FIRST_PAGE_BYTES = 1 << 20
"""The first page of a queue. Each later page is twice as large, up to ``page_size``."""


class PageSupply:
    """The pages that the writer takes: made ahead of their use, or when needed. ``number`` is the last page taken.
    Thread-safe. A page that was taken but not begun is taken again next, because a missing number would end the log.
    """

    def __init__(
        self,
        pages: PageDirectory,
        number: int,
        *,
        page_bytes: int,
        checksum_id: int,
        entropy: Callable[[int], bytes],
        first_page_bytes: int,
    ) -> None:
        self._pages = pages
        self._page_bytes = page_bytes
        self._first_page_bytes = first_page_bytes
        self._checksum_id = checksum_id
        self._entropy = entropy
        self._lock = threading.Lock()
        self.prepared: OpenPage | None = None
        self._taken: OpenPage | None = None  # the last that was handed out
        self.number = number

    @property
    def next_bytes(self) -> int:
        """The size of the next page. It depends only on the page number, so an opening continues the growth."""
        return min(self._page_bytes, self._first_page_bytes << min(self.number, 32))

    def prepare(self, wanted: Callable[[], bool]) -> None:
        """Prepare a page if it is still ``wanted``. Raises: ``OSError``."""
        with self._lock:
            if wanted():
                self.prepared = self._create(self.next_bytes)

    def take(self, needed_bytes: int, current: OpenPage | None) -> OpenPage:
        """The next page after ``current``, with at least ``needed_bytes``. Raises: ``OSError``."""
        with self._lock:
            if self._taken is not None and self._taken is not current:
                # An interrupt came before it was begun or given back.
                self.prepared, self.number = self._taken, self._taken.header.number - 1
            self._taken = None
            ahead, self.prepared = self.prepared, None
            if ahead is not None and ahead.header.page_bytes >= needed_bytes:
                self.number, self._taken = ahead.header.number, ahead
                return ahead
            # A message that does not fit gets its own page, whose name replaces that of the prepared page. Close that
            # one first: if this fails half way, it may have no name, and nothing may be written to it.
            size = max(needed_bytes, self.next_bytes) if ahead is None else needed_bytes
            if ahead is not None:
                ahead.close(self._pages.port)
            page = self._create(size)
            self.number, self._taken = page.header.number, page
            return page

    def give_back(self, page: OpenPage) -> None:
        """A page was taken and not begun: it is the next page again."""
        with self._lock:
            self.prepared, self._taken, self.number = page, None, page.header.number - 1

    def _create(self, page_bytes: int) -> OpenPage:
        header = PageHeader(
            number=self.number + 1,
            page_bytes=page_bytes,
            salt=int.from_bytes(self._entropy(8), "little"),
            checksum_id=self._checksum_id,
            prepared=True,
        )
        return OpenPage(self._pages.port, self._pages.create(header), header)

    def close(self) -> None:
        """Close the prepared page. Its file stays."""
        with self._lock:
            ahead, self.prepared = self.prepared, None
            if ahead is not None:
                ahead.close(self._pages.port)

    def renew_lock(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()


POSITION_EVERY_BYTES = 512 << 10
"""The write position is recorded after this much was appended, which bounds what an opening after a kill reads."""


class Writer:
    """Appends frames. Thread-safe. Every method raises ``Closed`` when the writer is closed, poisoned or forked.

    A slow operation holds ``_slow_turn``; meanwhile the fast path of ``tail``, which appends one message, is closed.
    """

    __slots__ = (
        "__weakref__", "_clock", "_closed", "_compression", "_listeners", "_pages", "_port", "_soundness", "_supply",
        "_slow_turn", "_sync", "before_roll", "durability", "message_bytes_max",
        "on_full", "on_work", "progress", "skipped", "stores", "tail",
    )  # fmt: skip

    def __init__(
        self,
        pages: PageDirectory,
        end: LogEnd,
        position_file: WritePositionFile,
        supply: PageSupply,
        *,
        message_bytes_max: int,
        sync: SyncBounds,
        compression: int,
        clock: Callable[[], int],
        soundness: Soundness,
    ) -> None:
        self._pages = pages
        port = self._port = pages.port
        self._soundness = soundness
        soundness.tell(self.break_off)
        self._clock = clock
        self._sync = sync
        self._compression = compression
        self._slow_turn = threading.Lock()
        self._closed: HoldfastError | None = None
        self._listeners: list[Callable[[], None]] = []
        self._supply = supply
        self.message_bytes_max = message_bytes_max
        self.skipped = end.skipped  # numbers that were used and never durable, in the whole log
        self.on_work: Callable[[], None] = _nothing  # Background.wake
        self.before_roll: Callable[[int], object] = _nothing  # Space.before_roll
        self.on_full: Callable[[], object] = _nothing  # Space.trim
        stores = self.stores = not compression and (
            sync.name == "os" or (sync.name == "every" and not (sync.messages_max or sync.bytes_max))
        )
        writes = not compression and sync.name == "always"
        tail = self.tail = LogTail(
            port,
            end,
            clock=clock,
            message_bytes_max=message_bytes_max,
            stores=stores,
            writes=writes,
            slow_append=self.append_durably if writes else self.append_slowly,
        )
        progress = self.progress = SyncProgress(port, tail, end, position_file, self._sync_names)
        self.durability = Durability(port, progress, soundness)
        try:
            self._begin(end)
        except BaseException:
            self._close_files()
            raise

    # ---- appending --------------------------------------------------------------------------------------------------

    def append_slowly(self, payload: Octets) -> int:
        """Append one message as a frame of its own."""
        return self.append_frames([([octets(payload)], 1)])[0]

    def append_durably(self, payload: Octets) -> int:
        """As ``append_slowly``, at the level "always"."""
        seq = self.tail.write(payload) if type(payload) is bytes else 0
        if not seq:
            return self.append_slowly(payload)
        self.durability.wait_for(seq + 1)
        return seq

    def append_many(self, payloads: Sequence[bytes], *, atomic: bool) -> tuple[int, int]:
        """Append messages in order with no others between them. Returns the first and the last sequence number.

        A frame holds at most 256 KiB or 4,096 messages, or all of them if ``atomic``. If the disk or queue is full
        between two frames, the earlier frames stay, synced as the level requires, and the error's ``appended`` counts
        their messages.
        """
        if not payloads:
            raise InvalidRequest("append_many needs a message")
        if not atomic:
            size, bodies = split_batches(payloads)
        else:
            body = batch_body(payloads)
            size, bodies = sum(map(len, body)), [(body, len(payloads))]
        if size > self.message_bytes_max and (largest := max(map(len, payloads))) > self.message_bytes_max:
            raise LimitExceeded("message is too large", bytes=largest, max=self.message_bytes_max)
        return self.append_frames(bodies)

    def append_frames(self, bodies: Iterable[tuple[list[bytes], int]]) -> tuple[int, int]:
        """Append each body, with its number of messages, as one frame, and sync as the level requires."""
        try:
            first, last = self._append_bodies(bodies)
        except HoldfastError as error:
            if error.fields.get("appended"):
                self._after_append(self.tail.next_seq - 1)
            raise
        self._after_append(last)
        return first, last

    def _append_bodies(self, bodies: Iterable[tuple[list[bytes], int]]) -> tuple[int, int]:
        tail = self.tail
        with self._slow_turn:
            with tail.lock:
                self.raise_if_closed()
                tail.close_fast_path()
            tail.complete_interrupted()
            first = tail.next_seq
            try:
                if self.progress.silent:
                    self._record(self.progress.announce)
                self._write_bodies(bodies)
            except OSError as error:
                raise refusal(error, tail.next_seq - first) from error
            except AssertionError as error:
                self._soundness.break_off(error)
            except HoldfastError as error:
                self._soundness.require()  # it waited for space, and another call found the invariant broken
                if tail.next_seq > first and error.code is not Code.SYNC_FAILED:
                    error.fields = {**error.fields, "appended": tail.next_seq - first}
                raise
            except (KeyboardInterrupt, SystemExit):
                tail.interrupted = True
                raise
            finally:
                with tail.lock:
                    last = tail.next_seq - 1  # here, because the next line lets others append
                    self._open_fast_path()
            if self._listeners:
                self._notify()
        return first, last

    def _write_bodies(self, bodies: Iterable[tuple[list[bytes], int]]) -> None:
        tail = self.tail
        time_ns = max(clock_ns(self._clock()), tail.last_time_ns)
        level, flags = self._compression, COMPRESSED if self._compression else 0
        for body, count in bodies:
            size = sum(map(len, body))
            if count == 1 and size > self.message_bytes_max:
                raise LimitExceeded("message is too large", bytes=size, max=self.message_bytes_max)
            if level and size > RAW_BODY_BYTES_MAX:
                raise LimitExceeded("batch is too large for one compressed frame", bytes=size, max=RAW_BODY_BYTES_MAX)
            if level:
                body = compress_body(body, level)
                size = sum(map(len, body))
            size += HEAD_BYTES
            if HEADER_BYTES + size + SEAL_BYTES > PAGE_BYTES_MAX:
                raise LimitExceeded("batch is too large for one frame", bytes=size, max=PAGE_BYTES_MAX)
            if tail.page is None or tail.position + size > tail.page.limit:
                self._roll(size, time_ns)
            page = tail.page
            assert page is not None, "after a roll there is a page"
            head = encode_head(page.checksum, page.seed, tail.next_seq, time_ns, count, flags, body)
            tail.put(page, [head, *body], tail.position + size, count, time_ns)
            del body  # its memory is the next one's
            if tail.position >= tail.record_due:
                self._checkpoint()

    def _record(self, step: Callable[[], None]) -> None:
        """A step that syncs the write position. Raises: also ``Closed``, if another program removed that file."""
        try:
            step()
        except RemovedFile as error:
            self.durability.fail(error)

    def _sync_names(self) -> None:
        """Sync the directory. Raises: ``Closed`` (sync_failed)."""
        try:
            self._port.sync_directory(self._pages.directory)
        except OSError as error:
            self.durability.fail(error)

    def _after_append(self, last: int) -> None:
        level = self._sync
        if level.name == "always":
            self.durability.wait_for(last + 1)
        elif level.name == "every":
            messages = last + 1 - self.durability.next_seq
            size = self.tail.written_bytes - self.progress.synced_bytes
            if (level.messages_max and messages >= level.messages_max) or (level.bytes_max and size >= level.bytes_max):
                self.durability.wait_for(last + 1)

    def flush(self, *, record: bool = True) -> None:
        """Return when everything appended before the call is durable. Without ``record`` the write position is left to
        ``record_position``. Raises: ``Closed``. Cost: one shared data sync; none if nothing is new.
        """
        with self.tail.lock:
            self.raise_if_closed()
            next_seq = self.tail.next_seq
        self.progress.records_at_once = record
        try:
            self.durability.wait_for(next_seq)
        finally:
            self.progress.records_at_once = True
        if record:
            self.progress.record_owed_position()

    def record_position(self) -> None:
        """Record the position that ``flush`` left, unless the writer is closed. Raises nothing: it is a hint."""
        if self._closed is None:
            self.progress.record_owed_position()

    def wait_durable(self, seq: int) -> None:
        """Return when ``seq`` and all messages before it are durable. Raises: ``Closed``."""
        self.raise_if_closed()
        self.durability.wait_for(seq + 1)

    def notify_once(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once, after the next append, on the appending thread. It must be fast and raise nothing."""
        with self.tail.lock:
            self._listeners.append(listener)
            self.tail.close_fast_path()

    def notify_no_more(self, listener: Callable[[], None]) -> None:
        """Remove ``listener`` if it was not called. Takes no lock: the garbage collector may call this anywhere."""
        with suppress(ValueError):
            self._listeners.remove(listener)

    def _notify(self) -> None:
        with self.tail.lock:
            listeners, self._listeners = self._listeners, []
            self._open_fast_path()
        for listener in tuple(listeners):  # one that is taken back meanwhile must not hide the next
            listener()

    def _open_fast_path(self) -> None:
        """Open it, as far as the page and the next record of the write position allow (its ``limit``). It stays closed
        after a failure, while a reader waits, and before the first append. Call with the tail's lock held."""
        if self._closed is None and self.durability.failure is None:
            if not self._listeners and not self.progress.silent:
                self.tail.open_fast_path()

    # ---- pages ------------------------------------------------------------------------------------------------------

    def _begin(self, end: LogEnd) -> None:
        """Take over the files from ``opening``, which decides whether a page is continued."""
        if not end.resume:
            if end.next_seq > end.expected_seq:
                self._begin_after_gap(end)
            return
        for number in end.unsynced if not end.clean else []:
            unsynced = self._pages.open(number, write=True)
            if unsynced is not None:
                self.progress.closing.append(unsynced)
        header = end.header
        assert header is not None, "a page that is written on has a header"
        if end.doubtful:
            number = end.doubtful[0]
            ahead = self._pages.open(number, write=True)
            ahead_header = None if ahead is None else self._pages.header(ahead, number)
            if ahead is not None and ahead_header is not None:
                self._supply.prepared = OpenPage(self._port, ahead, ahead_header)
            elif ahead is not None:
                self._port.close(ahead)
        file = self._pages.open(end.page, write=True)
        if file is None:
            return
        if end.sealed:
            self.progress.closing.append(file)
            return
        page = OpenPage(self._port, file, header)
        self.tail.resume(page, end)  # from here on closing the tail closes it
        page.index_file = self._pages.open_index(end.page, write=True)

    def _begin_after_gap(self, end: LogEnd) -> None:
        """Begin a page at the next number, durably: its base shows what is missing, to readers and to every opening."""
        page = self._supply.take(HEADER_BYTES + SEAL_BYTES, None)
        try:
            page.index_file = self._pages.open_index(page.header.number, write=True)
            page.header = page.header.started(
                end.next_seq, end.last_time_ns, skipped=end.next_seq - end.owed_end, skipped_in_all=end.skipped
            )
            self._port.write(page.file, 0, (encode_header(page.header),))
            self._port.sync_data(page.file)
        except BaseException:
            self._supply.give_back(page)
            raise
        with self.tail.lock:
            self.tail.begin(page)
        self.progress.begin_at(page.header)

    def _roll(self, size: int, time_ns: int) -> None:
        """Close the current page and begin the next, with room for a frame of ``size``."""
        tail, closing = self.tail, self.progress.closing
        while len(closing) >= UNSYNCED_PAGES_MAX:
            self.durability.sync_sealed()
        needed = HEADER_BYTES + size + SEAL_BYTES
        self.before_roll(max(needed, self._supply.next_bytes))
        try:
            page = self._supply.take(needed, tail.page)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.on_full()  # what has grown old may go
            page = self._supply.take(needed, tail.page)
        try:
            if page.index_file is None:
                page.index_file = self._pages.open_index(page.header.number, write=True)
            if tail.page is not None:
                # Write no more messages into it, also if the rest fails: a reader may have left it at its SEAL.
                tail.page.limit = 0
                self._seal(tail.page)
            page.header = page.header.started(tail.next_seq, time_ns, skipped_in_all=self.skipped)
            self._port.write(page.file, 0, (encode_header(page.header),))
        except BaseException:
            self._supply.give_back(page)
            raise
        former = tail.page
        with tail.lock:
            try:
                if former is not None:
                    closing.append(former.file)
                tail.begin(page)
            except BaseException:  # an interrupt: what was begun is ended, what was not is taken back
                if tail.page is not former:
                    tail.begin(page)
                else:
                    self._supply.give_back(page)
                    if former is not None and former.file in closing:
                        closing.remove(former.file)
                raise
        if former is not None:
            former.release(self._port)
        self.on_work()

    def _seal(self, page: OpenPage) -> None:
        """Write the SEAL. It is not published: until the next page is used it may be overwritten."""
        tail = self.tail
        self.progress.write_index()
        seal = encode_seal(page.checksum, page.seed, tail.next_seq, tail.frames, tail.last_time_ns, tail.index.check)
        self._port.write(page.file, tail.position, (seal,))

    def _checkpoint(self) -> None:
        tail, progress = self.tail, self.progress
        page = tail.page
        assert page is not None, "a checkpoint follows a frame"
        with tail.lock:
            # Both are hints: the messages are in the log, and an error may not deny that.
            with suppress(OSError):
                progress.write_index()
                progress.record_position()
            tail.record_due = tail.position + min(POSITION_EVERY_BYTES, page.header.page_bytes // 4)
        if self.wants_page():
            self.on_work()

    def prepare(self) -> None:
        """Prepare the next page if it is time. Raises: ``OSError``; the append that needs the page tries again."""
        self._supply.prepare(self.wants_page)

    def wants_page(self) -> bool:
        """Whether the current page is more than half full and no next page is prepared."""
        page = self.tail.page
        return (
            self._supply.prepared is None
            and self._closed is None
            and page is not None
            and self.tail.position > page.header.page_bytes // 2
        )

    @property
    def next_seq(self) -> int:
        """The number of the next message."""
        return self.tail.next_seq

    @property
    def first(self) -> tuple[int, int]:
        """The first page and message that retention has not removed."""
        return self.progress.first

    @property
    def page_number(self) -> int:
        """The page being written, or the last one."""
        page = self.tail.page
        return page.header.number if page is not None else self._supply.number

    def sync_is_due(self) -> bool:
        """Whether the level bounds the time until a sync, and messages wait for one."""
        return self._sync.ms_max > 0 and self.durability.next_seq < self.next_seq and self._closed is None

    def raise_if_closed(self) -> None:
        """Raise the reason why appends are refused."""
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # else it would keep the frames of every caller
        self.durability.raise_if_failed()

    def close(self) -> None:
        """Make everything durable, record a clean end, close the files. Closing twice is harmless."""
        with self._slow_turn:
            if self._soundness.broken is not None:
                self._close_files()
            if self._closed is not None:
                return
            try:
                with self.tail.lock:
                    self.tail.close_fast_path()
                self.tail.complete_interrupted()
                self.durability.wait_for(self.next_seq)
                if self.durability.failure is None:
                    self._record(self.progress.close_cleanly)
            finally:
                closed = Closed("the queue is closed")
                self.durability.end(closed)
                self.abandon(closed)
                self._close_files()

    def poison_after_fork(self, reason: Closed) -> None:
        """In a forked child: make new locks, because the parent's threads may have held them, and refuse everything."""
        self._slow_turn = threading.Lock()
        self.tail.renew_after_fork()
        self._supply.renew_lock()
        self.abandon(reason)

    def abandon(self, reason: HoldfastError) -> None:
        """Refuse everything from now on. Touches no file."""
        self._closed = reason
        self.tail.close_fast_path()

    def break_off(self, reason: InternalError) -> None:
        """Refuse everything from now on: an invariant is broken. Touches no file."""
        with self.tail.lock:
            self.abandon(reason)
        self.durability.end(reason)

    def _close_files(self) -> None:
        with self.tail.lock:
            self.tail.close()
            self._supply.close()
            self.progress.close()


def _nothing(*_: object) -> None:
    """The default callback."""
