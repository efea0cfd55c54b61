"""The pages that a writer takes, one after the other: made ahead of their use, or when one is needed.

Owns: the number of the next page, the page made ahead, that a number is never left out. Does not own: how a page file
comes to be (``page_files``), what is written into it (``writer``).

Failure model: ``OSError`` from the port; then the page does not exist, and the next call tries again. A page that was
taken and could not be begun, or whose taker was interrupted, stays the next one: a number left out would end the log
there.

The writer of a queue: one per queue, any number of threads.

Owns: what takes care: batches, the first append, page roll, marks on the way, closing; and whose turn it is. Does not
own: the end of the log and the quick ways of one message (``log_tail``), the bytes (``frame``), recovery (``opening``),
the pages to come (``page_supply``), what is durable and the marks (``sync_progress``), who syncs (``durability``), when
pages go (``retention``).

Failure model: an append that raises has appended nothing but what its error counts as ``appended``, as safe as the
level wants it, and the next one writes over whatever it left; one that is interrupted (Ctrl-C) has appended its frame
or not, and the next one looks which. A full disk is ``Unavailable`` (disk_full) and nothing is wrong afterwards. A
failed sync poisons the writer: see ``durability``. A forked child's writer is dead (``Closed``, forked). Order of a
page roll, and what a crash leaves:

1. the next page exists durably before the SEAL of the last: else nothing changes, the error is the caller's;
2. the SEAL, then the next page's header, then the first frame, none of them synced: any may be lost, and then the
   later ones do not count (``recovery``);
3. the closed page is synced on the helper thread. Nothing in the next page is durable before it is.

Long, because whose turn it is, the roll and the closing share one state, and the order of each is told beside it.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from holdfast.errors import Closed, Code, HoldfastError, InvalidRequest, LimitExceeded
from holdfast.queue.files.disk_errors import FULL, refusal
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
from holdfast.queue.log.opening import UNSYNCED_PAGES_MAX, LogEnd
from holdfast.queue.log.tail import Durability, LogTail, OpenPage, SyncProgress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.queue.files.meta_files import MarkFile
    from holdfast.queue.files.pages import PageDirectory
    from holdfast.queue.format.checksum import Octets
    from holdfast.queue.format.meta import WriteMark
    from holdfast.queue.options import SyncLevel


__all__ = ["FIRST_PAGE_BYTES", "MARK_BYTES", "PageSupply", "Writer"]

FIRST_PAGE_BYTES = 1 << 20
"""The size of the first page of a queue. Each later page is twice as large, up to the size that the queue was opened
with. So twenty queues that are hardly used take 20 MiB."""


class PageSupply:
    """Pages of ``page_bytes``, or larger for a frame that needs it. Thread-safe. ``number`` is the last page taken."""

    __slots__ = (
        "_ahead",
        "_checksum_id",
        "_entropy",
        "_first_page_bytes",
        "_lock",
        "_page_bytes",
        "_pages",
        "_taken",
        "number",
    )

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
        self._ahead: OpenPage | None = None
        self._taken: OpenPage | None = None  # the last that was handed out
        self.number = number

    @property
    def next_bytes(self) -> int:
        """The size of the next page. It depends on the number of the page only, so a start continues the growth."""
        return min(self._page_bytes, self._first_page_bytes << min(self.number, 32))

    @property
    def has_page(self) -> bool:
        """Whether a page was made ahead."""
        return self._ahead is not None

    def adopt(self, page: OpenPage) -> None:
        """Use a page that an earlier process has made ahead."""
        self._ahead = page

    def prepare(self, wanted: Callable[[], bool]) -> None:
        """Make a page ahead, if it is still ``wanted`` once no other thread makes one. Raises: ``OSError``."""
        with self._lock:
            if wanted():
                self._ahead = self._create(self.next_bytes)

    def take(self, needed_bytes: int, current: OpenPage | None) -> OpenPage:
        """The next page, of at least so many bytes, behind the ``current`` one. Raises: ``OSError``."""
        with self._lock:
            if self._taken is not None and self._taken is not current:
                # Its taker was interrupted before it could begin it, or give it back.
                self._ahead, self.number = self._taken, self._taken.header.number - 1
            self._taken = None
            ahead, self._ahead = self._ahead, None
            if ahead is not None and ahead.header.page_bytes >= needed_bytes:
                self.number, self._taken = ahead.header.number, ahead
                return ahead
            # One of its own for a message that does not fit: its name replaces that of the page made ahead, which is
            # let go of first. Should this fail half way, that page may have no name any more, and nothing may go into
            # it.
            size = max(needed_bytes, self.next_bytes) if ahead is None else needed_bytes
            if ahead is not None:
                ahead.close(self._pages.port)
            page = self._create(size)
            self.number, self._taken = page.header.number, page
            return page

    def give_back(self, page: OpenPage) -> None:
        """A page that was taken and not begun, whatever its header says by now: it is the next one again."""
        with self._lock:
            self._ahead, self._taken, self.number = page, None, page.header.number - 1

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
        """Close the file of the page made ahead. The page stays."""
        with self._lock:
            ahead, self._ahead = self._ahead, None
            if ahead is not None:
                ahead.close(self._pages.port)

    def renew_lock(self) -> None:
        """In a forked child, where another thread of the parent may have held it."""
        self._lock = threading.Lock()


MARK_BYTES = 512 << 10
"""A mark is written when this much was appended since the last: what a start after a kill reads at most."""


class Writer:
    """Appends frames. Thread-safe. Every method raises ``Closed`` when the writer is closed, poisoned or forked.

    ``_turn`` is held by one careful operation from its beginning to its end; see ``log_tail`` for who may move the end
    of the log. While a careful operation runs, the quick way is closed, which sends all others to
    wait for their turn. ``append`` appends one message and returns its number, ``append_at_once`` does where that needs
    no sync, no page and no other thread to finish, and else nothing: None. Both raise as ``append_frames``.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_closed",
        "_compression",
        "_listeners",
        "_pages",
        "_port",
        "_progress",
        "_supply",
        "_sync",
        "_tail",
        "_turn",
        "append",
        "append_at_once",
        "before_roll",
        "durability",
        "message_bytes_max",
        "on_full",
        "on_work",
    )

    def __init__(
        self,
        pages: PageDirectory,
        end: LogEnd,
        mark: WriteMark | None,
        marks: MarkFile,
        *,
        page_bytes: int,
        checksum_id: int,
        message_bytes_max: int,
        sync: SyncLevel,
        compression: int,
        clock: Callable[[], int],
        entropy: Callable[[int], bytes],
        first_page_bytes: int,
    ) -> None:
        self._pages = pages
        port = self._port = pages.port
        self._clock = clock
        self._sync = sync
        self._compression = compression
        self._turn = threading.Lock()
        self._closed: Closed | None = None
        self._listeners: list[Callable[[], None]] = []
        self._supply = PageSupply(
            pages,
            end.page,
            page_bytes=page_bytes,
            first_page_bytes=first_page_bytes,
            checksum_id=checksum_id,
            entropy=entropy,
        )
        self.message_bytes_max = message_bytes_max
        self.on_work: Callable[[], None] = _nothing
        self.before_roll: Callable[[int], None] = _accept
        self.on_full: Callable[[], object] = _nothing
        stores = not compression and (
            sync.name == "os" or (sync.name == "every" and not (sync.messages_max or sync.bytes_max))
        )
        writes = not compression and sync.name == "always"
        tail = self._tail = LogTail(
            port,
            end,
            clock=clock,
            message_bytes_max=message_bytes_max,
            stores=stores,
            writes=writes,
            careful=self._append_with_care,
        )
        # Chosen here once, and not at each append.
        self.append: Callable[[Octets], int] = self._append_with_care
        if stores:
            self.append = tail.append
        elif writes:
            self.append = self._append_durably
        self.append_at_once = tail.append_at_once
        progress = self._progress = SyncProgress(port, tail, end, mark, marks, self._sync_names)
        self.durability = Durability(port, progress.durable.next_seq, progress.take, progress.reached, progress.poison)
        try:
            self._begin(end, clean=mark is not None and mark.clean)
        except BaseException:
            self._close_files()
            raise

    # ---- appending --------------------------------------------------------------------------------------------------

    def _append_with_care(self, payload: Octets) -> int:
        return self.append_frames([([octets(payload)], 1)])[0]

    def _append_durably(self, payload: Octets) -> int:
        seq = self._tail.write(payload) if type(payload) is bytes else 0
        if not seq:
            return self._append_with_care(payload)
        self.durability.wait_for(seq + 1)
        return seq

    def append_many(self, payloads: Sequence[bytes], *, atomic: bool) -> tuple[int, int]:
        """Append messages in order, none between them. Returns the first and the last sequence number.

        Frames hold at most 256 KiB or 4,096 messages, or with ``atomic`` all of them: after a crash a frame is there or
        not. Where a disk or the queue is full between two frames, those before are in the log, synced as the level
        demands, and the error's ``appended`` counts their messages.
        """
        if not payloads:
            raise InvalidRequest("append_many needs a message")
        size, bodies = _one_body(payloads) if atomic else split_batches(payloads)
        if size > self.message_bytes_max:
            self.check_messages(payloads)
        return self.append_frames(bodies)

    def append_frames(self, bodies: Iterable[tuple[list[bytes], int]]) -> tuple[int, int]:
        """Append each body, with its number of messages, as one frame, and sync as the level demands.

        Raises: ``Closed``; ``LimitExceeded`` above ``message_bytes_max``; ``Unavailable`` (disk_full);
        ``Backpressure`` as the queue is set.
        """
        try:
            first, last = self._append_bodies(bodies)
        except HoldfastError as error:
            if error.fields.get("appended"):
                self._after_append(self._tail.next_seq - 1)
            raise
        self._after_append(last)
        return first, last

    def _append_bodies(self, bodies: Iterable[tuple[list[bytes], int]]) -> tuple[int, int]:
        tail = self._tail
        with self._turn:
            with tail.lock:
                self.raise_if_closed()
                tail.close_quick_way()
            tail.settle()
            first = tail.next_seq
            try:
                self._progress.announce()
                self._write_bodies(bodies)
            except OSError as error:
                raise refusal(error, tail.next_seq - first) from error
            except HoldfastError as error:
                if tail.next_seq > first and error.code is not Code.SYNC_FAILED:
                    error.fields = {**error.fields, "appended": tail.next_seq - first}
                raise
            except (KeyboardInterrupt, SystemExit):
                tail.interrupted = True
                raise
            finally:
                with tail.lock:
                    last = tail.next_seq - 1  # here, because the next line lets others append
                    self._open_quick_way()
            if self._listeners:
                self._notify()
        return first, last

    def _write_bodies(self, bodies: Iterable[tuple[list[bytes], int]]) -> None:
        """Encode, write and publish one frame after the other."""
        tail = self._tail
        time_ns = max(self._clock(), tail.last_time_ns)
        level, flags = self._compression, COMPRESSED if self._compression else 0
        for body, count in bodies:
            size = sum(map(len, body))
            self._check_body(size, count)
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
            if tail.position >= tail.mark_due:
                self._checkpoint()

    def _check_body(self, size: int, count: int) -> None:
        """The bounds of a body as it will be read, whatever it is compressed to."""
        if count == 1 and size > self.message_bytes_max:
            raise LimitExceeded("message is too large", bytes=size, max=self.message_bytes_max)
        if self._compression and size > RAW_BODY_BYTES_MAX:
            raise LimitExceeded("batch is too large for one compressed frame", bytes=size, max=RAW_BODY_BYTES_MAX)

    def check_messages(self, payloads: Sequence[bytes]) -> None:
        """Raise ``LimitExceeded`` for a message above the bound."""
        largest = max(map(len, payloads))
        if largest > self.message_bytes_max:
            raise LimitExceeded("message is too large", bytes=largest, max=self.message_bytes_max)

    def _sync_names(self) -> None:
        """The names of the pages are durable on return. Raises: ``Closed`` (sync_failed), here and from then on."""
        try:
            self._port.sync_directory(self._pages.directory)
        except OSError as error:
            self.durability.fail(error)

    def _after_append(self, last: int) -> None:
        """Sync as the level demands."""
        level = self._sync
        if level.name == "always":
            self.durability.wait_for(last + 1)
        elif level.name == "every":
            messages = last + 1 - self.durability.next_seq
            size = self._tail.written_bytes - self._progress.synced_bytes
            if (level.messages_max and messages >= level.messages_max) or (level.bytes_max and size >= level.bytes_max):
                self.durability.wait_for(last + 1)

    def flush(self, *, mark: bool = True) -> None:
        """Return when everything appended before the call is durable. Without ``mark`` the mark that says so is left to
        ``write_mark``.

        Raises: ``Closed``. Cost: one data sync, shared with all who wait at the same time; none where nothing is new.
        """
        with self._tail.lock:
            self.raise_if_closed()
            next_seq = self._tail.next_seq
        self._progress.marks_at_once = mark
        try:
            self.durability.wait_for(next_seq)
        finally:
            self._progress.marks_at_once = True
        if mark:
            self._progress.write_owed_mark()

    def write_mark(self) -> None:
        """Write the mark that a ``flush`` has left, if one has, and nothing once the writer is closed. It is a hint:
        raises nothing."""
        if self._closed is None:
            self._progress.write_owed_mark()

    def wait_durable(self, seq: int) -> None:
        """Return when ``seq`` and all before it are durable. Raises: ``Closed``."""
        self.raise_if_closed()
        self.durability.wait_for(seq + 1)

    def notify_once(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after the next append, once, on the appending thread. It must be quick and raise
        nothing."""
        with self._tail.lock:
            self._listeners.append(listener)
            self._tail.close_quick_way()

    def notify_no_more(self, listener: Callable[[], None]) -> None:
        """Take ``listener`` back, if it still waits for its call.

        Takes no lock: the end of an iterator that nobody has any more may call this from wherever its thread is, also
        from where that holds one. The next append opens the quick way.
        """
        with suppress(ValueError):
            self._listeners.remove(listener)

    def _notify(self) -> None:
        with self._tail.lock:
            listeners, self._listeners = self._listeners, []
            self._open_quick_way()
        for listener in tuple(listeners):  # one that is taken back meanwhile must not hide the next
            listener()

    def _open_quick_way(self) -> None:
        """Unless somebody must be told, or refused. Call with the tail's lock held."""
        if self._closed is None and self.durability.failure is None:
            if not self._listeners and not self._progress.silent:
                self._tail.open_quick_way()

    # ---- pages ------------------------------------------------------------------------------------------------------

    def _begin(self, end: LogEnd, *, clean: bool) -> None:
        """Take over the files as the start has left them; see ``opening`` for when a page is written on."""
        if not end.resume:
            return
        for number in end.unsynced if not clean else []:
            unsynced = self._pages.open(number, write=True)
            if unsynced is not None:
                self._progress.closing.append(unsynced)
        header = end.header
        assert header is not None, "a page that is written on has a header"
        if end.doubtful:
            number = end.doubtful[0]
            ahead_header = self._pages.header_of(number)
            ahead = self._pages.open(number, write=True) if ahead_header is not None else None
            if ahead is not None and ahead_header is not None:
                self._supply.adopt(OpenPage(self._port, ahead, ahead_header))
        file = self._pages.open(end.page, write=True)
        if file is None:
            return
        if end.sealed:
            self._progress.closing.append(file)
            return
        page = OpenPage(self._port, file, header)
        self._tail.resume(page, end)  # from here on closing the tail closes it
        page.index_file = self._pages.open_index(end.page, write=True)

    def _roll(self, size: int, time_ns: int) -> None:
        """Close the current page and begin the next, with room for a frame of ``size``."""
        tail, closing = self._tail, self._progress.closing
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
                # No message goes into it any more, also if the rest fails: a reader may have left it by its SEAL.
                tail.page.limit = 0
                self._seal(tail.page)
            page.header = page.header.started(tail.next_seq, time_ns)
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
        """The SEAL of the current page. Its place is not published: until the next page is used, it may be written
        over."""
        tail = self._tail
        self._progress.write_index()
        seal = encode_seal(page.checksum, page.seed, tail.next_seq, tail.frames, tail.last_time_ns, tail.index.check)
        self._port.write(page.file, tail.position, (seal,))

    def _checkpoint(self) -> None:
        tail, progress = self._tail, self._progress
        page = tail.page
        assert page is not None, "a checkpoint follows a frame"
        with tail.lock:
            # Hints, both: the messages are in the log, and an error here may not say that they are not.
            with suppress(OSError):
                progress.write_index()
                progress.write_mark()
            tail.mark_due = tail.position + min(MARK_BYTES, page.header.page_bytes // 4)
        if self.wants_page():
            self.on_work()

    def prepare(self) -> None:
        """Make the next page ahead of its use, if it is time for it. For the helper thread.

        Raises: ``OSError``; then nothing is wrong, the append that needs the page tries again and tells its caller.
        """
        self._supply.prepare(self.wants_page)

    def wants_page(self) -> bool:
        """Whether the current page is more than half full and there is no next one."""
        page = self._tail.page
        return (
            not self._supply.has_page
            and self._closed is None
            and page is not None
            and self._tail.position > page.header.page_bytes // 2
        )

    # ---- where it stands --------------------------------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        """The number of the next message."""
        return self._tail.next_seq

    def settled_next_seq(self) -> int:
        """As ``next_seq``, after a look whether an interrupted append has left a whole frame."""
        if self._tail.interrupted:
            with self._turn:
                self._tail.settle()
        return self._tail.next_seq

    @property
    def last_time_ns(self) -> int:
        """Arrival of the last message, 0 where there is none."""
        return self._tail.last_time_ns

    @property
    def page_number(self) -> int:
        """The page being written, or the last one that was."""
        page = self._tail.page
        return page.header.number if page is not None else self._supply.number

    @property
    def pages_safe_below(self) -> int:
        """Pages below this one may be removed; see ``sync_progress``."""
        return self._progress.pages_safe_below

    @property
    def has_closing_pages(self) -> bool:
        """Whether a closed page waits for its sync."""
        return bool(self._progress.closing)

    def sync_is_due(self) -> bool:
        """Whether the level bounds the time until a sync, and something waits for one. Call it that often."""
        return self._sync.ms_max > 0 and self.durability.next_seq < self.next_seq and self._closed is None

    def raise_if_closed(self) -> None:
        """The reason why nothing is accepted any more."""
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # else it would keep the frames of all who met it
        self.durability.raise_if_failed()

    # ---- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, leave a clean mark, close the files. Doing it twice is harmless."""
        with self._turn:
            if self._closed is not None:
                return
            try:
                with self._tail.lock:
                    self._tail.close_quick_way()
                self._tail.settle()
                self.durability.wait_for(self.next_seq)
                if self.durability.failure is None:
                    self._progress.close_cleanly()
            finally:
                closed = Closed("the queue is closed")
                self.durability.end(closed)
                self.abandon(closed)
                self._close_files()

    def poison_after_fork(self, reason: Closed) -> None:
        """In a forked child, where another thread of the parent may have held any lock: make new ones, refuse
        everything."""
        self._turn = threading.Lock()
        self._tail.renew_after_fork()
        self._supply.renew_lock()
        self.abandon(reason)

    def abandon(self, reason: Closed) -> None:
        """Refuse everything from now on; touches no file."""
        self._closed = reason
        self._tail.close_quick_way()

    def _close_files(self) -> None:
        with self._tail.lock:
            self._tail.let_go()
            self._supply.close()
            self._progress.let_go()


def _one_body(payloads: Sequence[bytes]) -> tuple[int, list[tuple[list[bytes], int]]]:
    """As ``split_batches``, uncut."""
    body = batch_body(payloads)
    return sum(map(len, body)), [(body, len(payloads))]


def _nothing() -> None:
    """Nobody to tell."""


def _accept(page_bytes: int) -> None:
    """No limit on the space of the queue."""
