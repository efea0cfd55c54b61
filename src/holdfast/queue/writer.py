"""The writer of a queue: one per queue, any number of threads.

Owns: where the next frame goes, page roll, the marks, what counts as pending for a sync. Does not own: the bytes
(``frame``), recovery (``opening``), who syncs (``durability``), when pages go (``retention``), buffering (``linger``).

Failure model: an append that raises has appended nothing, and the next one writes over whatever it left. A full disk is
``Unavailable`` (disk_full) and nothing is wrong afterwards. A failed sync poisons the writer: see ``durability``. A
forked child's writer is dead (``Closed``, forked). Order of a page roll, and what a crash leaves:

1. the next page exists durably before the SEAL of the last: else nothing changes, the error is the caller's;
2. the SEAL, then the next page's header, then the first frame, none of them synced: any may be lost, and then the
   later ones do not count (``recovery``);
3. the closed page is synced on the helper thread. Nothing in the next page is durable before it is.

Long, because it is the one place that moves the end of the log: its parts share that state under two locks.
"""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from zlib import crc32

from holdfast.errors import Closed, Code, InvalidRequest, LimitExceeded, Unavailable
from holdfast.queue.durability import Durability, SyncTarget
from holdfast.queue.frame import (
    COMPRESSED,
    HEAD_BYTES,
    RAW_BODY_BYTES_MAX,
    SEAL_BYTES,
    SEQ_MASK,
    batch_body,
    compress_body,
    encode_head,
    encode_seal,
    octets,
    single_packers,
    split_batches,
)
from holdfast.queue.open_page import OpenPage
from holdfast.queue.opening import UNSYNCED_PAGES_MAX, LogEnd
from holdfast.queue.page_header import HEADER_BYTES, PAGE_BYTES_MAX, PageHeader, encode_header
from holdfast.queue.slots import SLOTS_BYTES, encode_slot, newest_slot, slot_offset
from holdfast.queue.time_index import RECORD, RECORD_BYTES, SINGLES_SPACING_BYTES
from holdfast.queue.write_mark import DurableMark, WriteMark, encode_mark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.queue.checksum import Checksum, Octets
    from holdfast.queue.file_port import WritableMap
    from holdfast.queue.page_files import PageDirectory
    from holdfast.queue.sync_levels import SyncLevel

__all__ = ["MARK_BYTES", "Writer"]

MARK_BYTES = 512 << 10
"""A mark is written when this much was appended since the last: what a start after a kill reads at most."""
SMALL_FRAME_BYTES = 4096
"""Up to here storing into the mapped page is quicker than a system call. The quick way of ``append`` stops here."""

_pack_record = RECORD.pack


class Writer:
    """Appends frames. Thread-safe. Every method raises ``Closed`` when the writer is closed, poisoned or forked.

    ``_turn`` is held by one careful operation from its beginning to its end; ``_lock`` by every change of the place
    where the next frame goes. While a careful operation runs, the limits are -1, which sends all others to wait for
    their turn.
    """

    __slots__ = (
        "__weakref__",
        "_base_seq",
        "_batch_surplus",
        "_boot_id",
        "_checksum",
        "_checksum_id",
        "_clock",
        "_closed",
        "_closing",
        "_compression",
        "_durable",
        "_durable_limit",
        "_end_place",
        "_entropy",
        "_fast",
        "_generation",
        "_index_check",
        "_index_due",
        "_index_pending",
        "_index_records",
        "_last_time_ns",
        "_limit",
        "_listeners",
        "_lock",
        "_map",
        "_mark_due",
        "_mark_file",
        "_number",
        "_page",
        "_page_lock",
        "_pages",
        "_poisoned",
        "_port",
        "_position",
        "_prepared",
        "_seed",
        "_small_max",
        "_sync",
        "_synced_bytes",
        "_turn",
        "_written_bytes",
        "before_roll",
        "durability",
        "message_bytes_max",
        "next_seq",
        "on_work",
        "page_bytes",
    )

    def __init__(
        self,
        pages: PageDirectory,
        end: LogEnd,
        mark: WriteMark | None,
        mark_file: int,
        *,
        page_bytes: int,
        checksum_id: int,
        message_bytes_max: int,
        sync: SyncLevel,
        compression: int,
        clock: Callable[[], int],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._pages = pages
        self._port = pages.port
        self._clock = clock
        self._entropy = entropy
        self._sync = sync
        self._compression = compression
        self._fast = not compression and (
            sync.name == "os" or (sync.name == "every" and not (sync.messages_max or sync.bytes_max))
        )
        self._checksum_id = checksum_id
        self._checksum: Checksum = crc32
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._page_lock = threading.Lock()
        self._closed: Closed | None = None
        self._poisoned = False
        self._listeners: list[Callable[[], None]] = []
        self._closing: list[int] = []  # files of pages that are closed by a SEAL, not synced yet
        self._prepared: OpenPage | None = None
        self._page: OpenPage | None = None
        self._number = end.page
        self._mark_file = mark_file
        self._boot_id = self._port.boot_id()
        self._limit = -1  # the end up to which a frame may be stored into the mapped page, or at level "always"
        self._durable_limit = -1  # written, without care: no roll, no mark, nobody to wake
        self._map: WritableMap = bytearray()
        self._seed = 0
        self._position = end.position
        self._mark_due = 0
        self._base_seq = end.next_seq
        self._batch_surplus = 0
        self._index_pending = bytearray()
        self._index_due = HEADER_BYTES
        self._index_records = 0
        self._index_check = 0
        self._written_bytes = 0
        self._synced_bytes = 0
        self.page_bytes = page_bytes
        self.message_bytes_max = message_bytes_max
        self._small_max = min(SMALL_FRAME_BYTES, message_bytes_max)
        self.next_seq = end.next_seq
        self._last_time_ns = end.last_time_ns
        self.on_work: Callable[[], None] = _nothing
        self.before_roll: Callable[[int], None] = _accept
        place = DurableMark(
            end.page, end.header.salt if end.header else 0, end.position, end.next_seq, end.last_time_ns
        )
        self._end_place = place
        self._durable = mark.durable if mark is not None and end.resume and not mark.clean else place
        self.durability = Durability(self._port, self._durable.next_seq, self._take, self._reached, self._poison)
        try:
            self._begin(end, clean=mark is not None and mark.clean)
        except BaseException:
            self._close_files()
            raise

    # ---- appending --------------------------------------------------------------------------------------------------

    def append(self, payload: Octets) -> int:
        """Append one message. Returns its sequence number.

        Raises: ``Closed``; ``LimitExceeded`` above ``message_bytes_max``; ``Unavailable`` (disk_full);
        ``Backpressure`` as the queue is set.
        Cost: about one microsecond where the page is mapped and the level is "os"; no system call.
        """
        with self._lock:
            size = len(payload)
            position = self._position
            end = position + HEAD_BYTES + size
            if end <= self._limit and size <= self._small_max and type(payload) is bytes:
                time_ns = self._clock()
                if time_ns < self._last_time_ns:
                    time_ns = self._last_time_ns
                seq = self.next_seq
                pack, store = single_packers[size]
                check = self._checksum(pack(payload, size, time_ns, 1), self._seed) ^ (seq & SEQ_MASK)
                store(self._map, position, size, check, time_ns, 1, payload)
                if position >= self._index_due:
                    self._index_due = position + SINGLES_SPACING_BYTES
                    self._index_pending += _pack_record(time_ns, position)
                self._last_time_ns = time_ns
                self._position = end
                self.next_seq = seq + 1
                return seq
        if self._durable_limit > 0 and type(payload) is bytes:
            seq = self._append_durable(payload)
            if seq:
                return seq
        return self.append_frames([([octets(payload)], 1)])[0]

    def _append_durable(self, payload: bytes) -> int:
        """The quick way at the level "always", or 0 where that takes care. Storing into the mapped page would make
        every sync dearer: the kernel takes the page's write permission away and gives it back at the next store."""
        with self._lock:
            position, page = self._position, self._page
            end = position + HEAD_BYTES + len(payload)
            if end > self._durable_limit or len(payload) > self.message_bytes_max or page is None:
                return 0
            time_ns = max(self._clock(), self._last_time_ns)
            seq = self.next_seq
            parts = (encode_head(page.checksum, page.seed, seq, time_ns, 1, 0, (payload,)), payload)
            try:
                self._port.write(page.file, position, parts)
            except OSError as error:
                raise self._refused(error, 0) from error
            if position >= self._index_due:
                self._index_due = position + SINGLES_SPACING_BYTES
                self._index_pending += _pack_record(time_ns, position)
            self._last_time_ns = time_ns
            self._written_bytes += end - position
            self._position = end
            self.next_seq = seq + 1
        self.durability.wait_for(seq + 1)
        return seq

    def append_many(self, payloads: Sequence[bytes], *, atomic: bool) -> tuple[int, int]:
        """Append messages in order, none between them. Returns the first and the last sequence number.

        Frames hold at most 256 KiB or 4,096 messages, or with ``atomic`` all of them: after a crash a frame is there or
        not. Where a disk fills up between two frames, those before are in the log and the error's ``appended`` counts
        them.
        """
        if not payloads:
            raise InvalidRequest("append_many needs a message")
        bodies = [(batch_body(payloads), len(payloads))] if atomic else split_batches(payloads)
        if sum(len(part) for parts, _ in bodies for part in parts) > self.message_bytes_max:
            self.check_messages(payloads)
        return self.append_frames(bodies)

    def append_at_once(self, payload: bytes) -> int | None:
        """Append if that needs no sync, no page and no other thread to finish; else do nothing and return None."""
        return self.append(payload) if self._position + HEAD_BYTES + len(payload) <= self._limit else None

    def append_frames(self, bodies: Sequence[tuple[list[bytes], int]]) -> tuple[int, int]:
        """Append each body, with its number of messages, as one frame, and sync as the level demands."""
        first, last = self._append_bodies(bodies)
        self._after_append(last)
        return first, last

    def _append_bodies(self, bodies: Sequence[tuple[list[bytes], int]]) -> tuple[int, int]:
        with self._turn:
            with self._lock:
                self.raise_if_closed()
                self._close_limits()
            first = self.next_seq
            try:
                self._write_bodies(bodies)
            except OSError as error:
                raise self._refused(error, self.next_seq - first) from error
            finally:
                with self._lock:
                    last = self.next_seq - 1  # here, because the next line lets others append
                    self._refresh_limits()
            if self._listeners:
                self._notify()
        return first, last

    def _write_bodies(self, bodies: Sequence[tuple[list[bytes], int]]) -> None:
        """Encode, write and publish one frame after the other."""
        time_ns = max(self._clock(), self._last_time_ns)
        level, flags = self._compression, COMPRESSED if self._compression else 0
        for body, count in bodies:
            self._check_body(sum(map(len, body)), count)
            if level:
                body = compress_body(body, level)
            size = HEAD_BYTES + sum(map(len, body))
            if HEADER_BYTES + size + SEAL_BYTES > PAGE_BYTES_MAX:
                raise LimitExceeded("batch is too large for one frame", bytes=size, max=PAGE_BYTES_MAX)
            if self._page is None or self._position + size > self._page.limit:
                self._roll(size, time_ns)
            page = self._page
            assert page is not None, "after a roll there is a page"
            head = encode_head(page.checksum, page.seed, self.next_seq, time_ns, count, flags, body)
            self._put(page, [head, *body], self._position + size, count, time_ns)

    def _put(self, page: OpenPage, parts: list[bytes], end: int, count: int, time_ns: int) -> None:
        """Write one frame at the current position, then publish the position behind it.

        One write for each: of several in one, a disk that fills up would leave whole frames behind the published end.
        Readers elsewhere would take them, and the next append would write others over them.
        """
        position = self._position
        if end - position <= SMALL_FRAME_BYTES and page.map is not None:
            page.map[position:end] = b"".join(parts)
        else:
            self._port.write(page.file, position, parts)
        with self._lock:
            if count > 1 or position >= self._index_due:
                self._index_pending += _pack_record(time_ns, position)
                self._index_due = position + SINGLES_SPACING_BYTES
            self._batch_surplus += count - 1
            self._last_time_ns = time_ns
            self._written_bytes += end - position
            self._position = end
            self.next_seq += count
        if end >= self._mark_due:
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

    def _after_append(self, last: int) -> None:
        """Sync as the level demands."""
        level = self._sync
        if level.name == "always":
            self.durability.wait_for(last + 1)
        elif level.name == "every":
            messages = last + 1 - self.durability.next_seq
            size = self._written_bytes - self._synced_bytes
            if (level.messages_max and messages >= level.messages_max) or (level.bytes_max and size >= level.bytes_max):
                self.durability.wait_for(last + 1)

    def flush(self) -> None:
        """Return when everything appended before the call is durable.

        Raises: ``Closed``. Cost: one data sync, shared with all who wait at the same time; none where nothing is new.
        """
        with self._lock:
            self.raise_if_closed()
            next_seq = self.next_seq
        self.durability.wait_for(next_seq)

    def wait_durable(self, seq: int) -> None:
        """Return when ``seq`` and all before it are durable. Raises: ``Closed``."""
        self.raise_if_closed()
        self.durability.wait_for(seq + 1)

    def notify_once(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after the next append, once, on the appending thread. It must be quick and raise
        nothing."""
        with self._lock:
            self._listeners.append(listener)
            self._close_limits()

    def _notify(self) -> None:
        with self._lock:
            listeners, self._listeners = self._listeners, []
            self._refresh_limits()
        for listener in listeners:
            listener()

    # ---- pages ------------------------------------------------------------------------------------------------------

    def _begin(self, end: LogEnd, *, clean: bool) -> None:
        """Take over the files as the start has left them; see ``opening`` for when a page is written on."""
        self._closing = [
            file
            for number in (end.unsynced if end.resume and not clean else [])
            if (file := self._pages.open(number, write=True))
        ]
        slot = newest_slot(self._port.read(self._mark_file, 0, SLOTS_BYTES))
        self._generation = slot[0] if slot is not None else 0
        if end.resume:
            self._resume(end)
        self._base_seq = end.header.base_seq if end.resume and end.header else end.next_seq
        # Both slots say now that the queue is open. Were the clean one left on disk, a crash could bring it back
        # together with frames from behind it.
        self.write_mark()
        self.write_mark()
        if clean:
            self._port.sync_data(self._mark_file)
        self._refresh_limits()

    def _resume(self, end: LogEnd) -> None:
        header = end.header
        assert header is not None, "a page that is written on has a header"
        if end.doubtful:
            number = end.doubtful[0]
            file, ahead = self._pages.open(number, write=True), self._pages.header_of(number)
            if file is not None and ahead is not None:
                self._prepared = OpenPage(self._port, file, ahead)
        file = self._pages.open(end.page, write=True)
        if file is None:
            return
        if end.sealed:
            self._closing.append(file)
            return
        page = OpenPage(self._port, file, header)
        page.index_file = self._pages.open_index(end.page, write=True)
        self._index_records, self._index_check = end.index.records, end.index.check
        self._index_pending, self._index_due = end.index.pending, end.index.due
        self._batch_surplus = end.next_seq - header.base_seq - end.frames
        self._use(page)

    def _use(self, page: OpenPage) -> None:
        self._page = page
        self._seed, self._checksum = page.seed, page.checksum
        if page.map is not None:
            self._map = page.map

    def _roll(self, size: int, time_ns: int) -> None:
        """Close the current page and begin the next, with room for a frame of ``size``."""
        while len(self._closing) >= UNSYNCED_PAGES_MAX:
            self.durability.sync_sealed()
        needed = HEADER_BYTES + size + SEAL_BYTES
        self.before_roll(max(needed, self.page_bytes))
        page = self._next_page(needed)
        try:
            if page.index_file is None:
                page.index_file = self._pages.open_index(page.header.number, write=True)
            if self._page is not None:
                # No message goes into it any more, also if the rest fails: a reader may have left it by its SEAL.
                self._page.limit = 0
                self._seal(self._page)
            page.header = page.header.started(self.next_seq, time_ns)
            self._port.write(page.file, 0, (encode_header(page.header),))
        except BaseException:
            # It stays the next page, whatever its header says by now: a number left out would end the log there.
            with self._page_lock:
                self._prepared, self._number = page, page.header.number - 1
            raise
        with self._lock:
            if self._page is not None:
                self._closing.append(self._page.release(self._port))
            self._use(page)
            # The header says so now: also if this frame is refused and the clock steps back, none may be earlier.
            self._last_time_ns = time_ns
            self._position = HEADER_BYTES
            self._base_seq, self._batch_surplus = self.next_seq, 0
            self._index_pending, self._index_due = bytearray(), HEADER_BYTES
            self._index_records = self._index_check = 0
            self._mark_due = 0
        self.on_work()

    def _next_page(self, needed: int) -> OpenPage:
        with self._page_lock:
            ahead = self._prepared
            if ahead is not None and ahead.header.page_bytes >= needed:
                self._prepared = None
                self._number = ahead.header.number
                return ahead
            # One of its own for a message that does not fit: its name replaces that of the page made ahead, which is
            # let go of first. Should this fail half way, that page may have no name any more, and nothing may go into
            # it.
            size = max(needed, self.page_bytes) if ahead is None else needed
            if ahead is not None:
                self._prepared = None
                ahead.close(self._port)
            page = self._create(self._number + 1, size)
            self._number = page.header.number
            return page

    def _create(self, number: int, page_bytes: int) -> OpenPage:
        salt = int.from_bytes(self._entropy(8), "little")
        header = PageHeader(
            number=number, page_bytes=page_bytes, salt=salt, checksum_id=self._checksum_id, prepared=True
        )
        return OpenPage(self._port, self._pages.create(header), header)

    def prepare(self) -> None:
        """Make the next page ahead of its use, if it is time for it. For the helper thread.

        Raises: ``OSError``; then nothing is wrong, the append that needs the page tries again and tells its caller.
        """
        with self._page_lock:
            if self.wants_page():
                self._prepared = self._create(self._number + 1, self.page_bytes)

    def wants_page(self) -> bool:
        """Whether the current page is more than half full and there is no next one."""
        page = self._page
        return (
            self._prepared is None
            and self._closed is None
            and page is not None
            and self._position > page.header.page_bytes // 2
        )

    def _seal(self, page: OpenPage) -> None:
        """The SEAL of the current page. Its place is not published: until the next page is used, it may be written
        over."""
        self._flush_index(page)
        frames = self.next_seq - self._base_seq - self._batch_surplus
        seal = encode_seal(page.checksum, page.seed, self.next_seq, frames, self._last_time_ns, self._index_check)
        self._port.write(page.file, self._position, (seal,))

    def _flush_index(self, page: OpenPage) -> None:
        pending = bytes(self._index_pending)
        if pending and page.index_file is not None:
            self._port.write(page.index_file, self._index_records * RECORD_BYTES, (pending,))
            self._index_check = page.checksum(pending, self._index_check)
            self._index_records += len(pending) // RECORD_BYTES
            self._index_pending = bytearray()

    # ---- marks ------------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        with self._lock:
            # Hints, both: the messages are in the log, and an error here may not say that they are not.
            with suppress(OSError):
                if self._page is not None:
                    self._flush_index(self._page)
                self.write_mark()
            self._mark_due = self._position + min(MARK_BYTES, self.page_bytes // 4)
        if self.wants_page():
            self.on_work()

    def write_mark(self, *, clean: bool = False) -> None:
        """Write the next slot. Call with the lock held; not synced."""
        page, place = self._page, self._end_place
        if page is not None:
            header = page.header
            place = DurableMark(header.number, header.salt, self._position, self.next_seq, self._last_time_ns)
        self._generation += 1
        mark = WriteMark(
            page=place.page,
            salt=place.salt,
            position=place.position,
            next_seq=place.next_seq,
            last_time_ns=place.last_time_ns,
            frames=self.next_seq - self._base_seq - self._batch_surplus,
            index_records=self._index_records,
            index_check=self._index_check,
            index_due=min(self._index_due, SEQ_MASK),
            clean=clean,
            durable=self._durable,
            boot_id=bytes(16) if self._poisoned else self._boot_id,
        )
        self._port.write(
            self._mark_file, slot_offset(self._generation), (encode_slot(self._generation, encode_mark(mark)),)
        )

    # ---- durability -------------------------------------------------------------------------------------------------

    def _take(self, sealed_only: bool) -> SyncTarget:
        with self._lock:
            page = self._page
            files = list(self._closing)
            if page is None:
                return SyncTarget(files, self.next_seq, None)
            header = page.header
            if sealed_only:
                place = DurableMark(header.number, header.salt, HEADER_BYTES, self._base_seq, header.base_time_ns)
                return SyncTarget(files, self._base_seq, (place, self._synced_bytes))
            place = DurableMark(header.number, header.salt, self._position, self.next_seq, self._last_time_ns)
            return SyncTarget([*files, page.file], self.next_seq, (place, self._written_bytes))

    def _reached(self, target: SyncTarget) -> None:
        with self._lock:
            for file in target.files:
                if file in self._closing:
                    self._closing.remove(file)
                    self._port.close(file)
            if target.place is not None and target.next_seq >= self._durable.next_seq:
                self._durable, self._synced_bytes = target.place
            # A hint: everything up to the target is durable, with or without it.
            with suppress(OSError):
                self.write_mark()

    def _poison(self) -> None:
        with self._lock:
            self._poisoned = True
            self._close_limits()
            # The mark is a hint. It now says that the page cache is not to be trusted; where even that cannot be
            # written, there is nothing else to do, and the failure itself is told to every caller.
            with suppress(OSError):
                self.write_mark()

    def sync_is_due(self) -> bool:
        """Whether the level bounds the time until a sync, and something waits for one. Call it that often."""
        return self._sync.ms_max > 0 and self.durability.next_seq < self.next_seq and self._closed is None

    @property
    def page_number(self) -> int:
        """The page being written, or the last one that was."""
        page = self._page
        return page.header.number if page is not None else self._number

    @property
    def pages_safe_below(self) -> int:
        """Pages below this one may be removed: the page after each of them is begun durably, so that the log's first
        page always tells its base."""
        durable = self._durable
        return durable.page if durable.position > HEADER_BYTES else durable.page - 1

    @property
    def has_closing_pages(self) -> bool:
        """Whether a closed page waits for its sync."""
        return bool(self._closing)

    @property
    def last_time_ns(self) -> int:
        """Arrival of the last message, 0 where there is none."""
        return self._last_time_ns

    def raise_if_closed(self) -> None:
        """The reason why nothing is accepted any more."""
        if self._closed is not None:
            raise self._closed
        self.durability.raise_if_failed()

    def _refresh_limits(self) -> None:
        """Open the quick ways as far as they may go without care: to the next mark, or the end of the page."""
        page = self._page
        if page is None or self._closed is not None or self._poisoned or self._listeners:
            return
        limit = min(page.limit, self._mark_due)
        self._limit = limit if self._fast and page.map is not None else -1
        self._durable_limit = limit if self._sync.name == "always" and not self._compression else -1

    def _close_limits(self) -> None:
        self._limit = self._durable_limit = -1

    def _refused(self, error: OSError, appended: int) -> Unavailable:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        return Unavailable(
            "the disk is full" if full else "the file system refused",
            code=Code.DISK_FULL if full else Code.STORE_UNAVAILABLE,
            hint="free some space and append again" if full else "",
            appended=appended,
            cause=error.strerror,
        )

    # ---- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, leave a clean mark, close the files. Doing it twice is harmless."""
        with self._turn:
            if self._closed is not None:
                return
            try:
                self.durability.wait_for(self.next_seq)
                if self.durability.failure is None:
                    with self._lock:
                        if self._page is not None:
                            self._flush_index(self._page)
                        self.write_mark(clean=True)
                    self._port.sync_data(self._mark_file)
            finally:
                self.abandon(Closed("the queue is closed"))
                self._close_files()

    def poison_after_fork(self, reason: Closed) -> None:
        """In a forked child, where another thread of the parent may have held any lock: make new ones, refuse
        everything."""
        self._turn, self._lock, self._page_lock = threading.Lock(), threading.Lock(), threading.Lock()
        self.abandon(reason)

    def abandon(self, reason: Closed) -> None:
        """Refuse everything from now on; touches no file."""
        self._closed = reason
        self._close_limits()

    def _close_files(self) -> None:
        with self._lock, self._page_lock:
            for page in (self._page, self._prepared):
                if page is not None:
                    page.close(self._port)
            for file in self._closing:
                self._port.close(file)
            self._page = self._prepared = None
            self._map = bytearray()
            self._closing = []
            self._port.close(self._mark_file)


def _nothing() -> None:
    """Nobody to tell."""


def _accept(page_bytes: int) -> None:
    """No limit on the space of the queue."""
