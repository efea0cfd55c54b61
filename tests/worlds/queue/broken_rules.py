"""The broken versions of the rules that ``mutants`` puts in the place of the real ones.

Owns: each broken rule, as close to the real code as its rule allows. Does not own: which rule is replaced where.

Failure model: these lose data by intent. Never import them but for mutants.
"""

# They stand in for private methods of the real code, and know its fields.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.worlds.queue.files import CrashFiles

from holdfast.errors import AlreadyOpen
from holdfast.queue.consumers import cursor_file
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.consumers.cursor_file import CursorFile, committed_seqs
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.frame import HEAD, HEAD_BYTES, SEAL, SEAL_BYTES, SEQ_MASK, implied_seq, page_seed
from holdfast.queue.format.meta import WritePosition
from holdfast.queue.format.page import PageHeader, encode_header
from holdfast.queue.log import opening
from holdfast.queue.log.opening import LogEnd
from holdfast.queue.log.page_scan import PageScan
from holdfast.queue.log.reader import LogReader
from holdfast.queue.log.recovery import Following, Here, Owed, Step, decide
from holdfast.queue.log.space import Space
from holdfast.queue.log.tail import Durability, LogTail, OpenPage, SyncProgress, SyncTarget
from holdfast.queue.log.writer import PageSupply, Writer
from holdfast.queue.work.command import DeadLetter, Kind
from holdfast.queue.work.log import DEAD_PAGE_BYTES, WorkLog
from holdfast.queue.work.machine import WorkMachine
from holdfast.queue.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.queue import Message
    from holdfast.queue.format.checksum import Checksum, Octets
    from holdfast.queue.format.cursor import Place
    from holdfast.queue.log.page_scan import FrameView
    from holdfast.queue.log.space import ClosedPage

_sync_data = CrashFiles.sync_data
_take = SyncProgress.take
_find_end = opening.find_end
_write_mark = SyncProgress.record_position
_write_cursor = CursorFile.write
_record = WorkLog.record
_resume = LogTail.resume
_first_unconsumed_seq = cursor_file.first_unconsumed_seq
GROWN_BYTES = 32_768
"""The configured size in the worlds where a broken rule takes it for the size of every page."""


def seed_without_salt(checksum: Checksum, salt: int, page_number: int) -> int:
    """Every life of a page has the same checks."""
    return page_seed(checksum, salt & 0, page_number)


def verify_without_sequence(
    self: PageScan, data: bytes, seq: int, last_time_ns: int
) -> tuple[list[FrameView], bytes | None]:
    """A frame is valid wherever it lies in its page, whatever the number that it was written with."""
    frames: list[FrameView] = []
    start = HEAD_BYTES
    view = memoryview(data)
    while start <= len(data):
        length, check, time_ns, tail = HEAD.unpack_from(data, start - HEAD_BYTES)
        end = start + length
        if end > len(data) or tail == 0 or time_ns < last_time_ns:
            break
        implied = implied_seq(self._checksum, self._seed, (length, check, time_ns, tail), view[start:end])
        if not 0 <= implied - self.header.base_seq <= self.header.page_bytes:
            break
        count, flags = tail & SEQ_MASK, tail >> 32
        if count == 0:
            return frames, data[start:end] if flags == SEAL and not frames else None
        frames.append((seq, time_ns, count, flags, start, end))
        seq, last_time_ns, start = seq + count, time_ns, end + HEAD_BYTES
    return frames, None


def check_without_bytes(data: Octets, value: int = 0) -> int:
    """A frame is believed for its length and its place."""
    return value


def checksum_without_bytes(checksum_id: int) -> Checksum:
    """The function of every page."""
    return check_without_bytes


def pointer_before_data(self: Durability, *, sealed_only: bool) -> None:
    """The durable place is written, and made durable, before the data are."""
    target = self._take(sealed_only)
    try:
        self._reached(SyncTarget([], None, target.next_seq, target.position))
        for file in [*target.closed, *([] if target.open is None else [target.open])]:
            self._port.sync_data(file)
        self._reached(target)
        self.next_seq = max(self.next_seq, target.next_seq)
    finally:
        with self._condition:
            self._syncing = False
            self._condition.notify_all()


def acknowledge_unsynced(self: Durability, next_seq: int) -> None:
    """What was written counts as durable."""
    self.next_seq = max(self.next_seq, next_seq)


def sync_again(self: CrashFiles, file: int) -> None:
    """A sync that failed is tried once more, and then it succeeds."""
    try:
        _sync_data(self, file)
    except OSError:
        refuse, self.refuse = self.refuse, None
        try:
            _sync_data(self, file)
        finally:
            self.refuse = refuse


def no_seal(self: Writer, page: OpenPage) -> None:
    """A page is left as it is when it is full."""
    del page
    self._progress.write_index()


def end_without_seal(here: Here, following: Following, owed: Owed) -> Step:
    """Where there is no SEAL, the log ends, whatever follows."""
    if here is Here.NOTHING and following is Following.CONTINUES:
        return Step.END
    return decide(here, following, owed)


def seek_latest_page_at_or_before(self: LogReader, time_ns: int) -> None:
    """The latest page whose first time is at most T, instead of strictly below."""
    self._seek_page(lambda header: header.base_time_ns <= time_ns)
    self._from_seq, self._from_time_ns = 1, time_ns
    if self._scan is not None:
        self._scan.seek_time(time_ns)


def seek_last_record_at_or_before(self: PageScan, time_ns: int) -> None:
    """The last record whose time is at most T, instead of strictly below."""
    if self._index is not None:
        self._seek(self._index, self._index.last_earlier(time_ns + 1), lambda indexed, _: indexed <= time_ns)


def end_at_the_written_mark(pages: PageDirectory, mark: WritePosition | None, boot_id: bytes) -> LogEnd:
    """Writing goes on where the writer was, not where verified frames end."""
    end = _find_end(pages, mark, boot_id)
    if mark is not None and mark.page == end.page and mark.next_seq > end.next_seq:
        end.position, end.next_seq, end.last_time_ns = mark.position, mark.next_seq, mark.last_time_ns
    return end


def mark_of_any_boot(pages: PageDirectory, mark: WritePosition | None, boot_id: bytes) -> LogEnd:
    """The page cache is taken for whole, also after a loss of power."""
    if mark is not None:
        boot_id = mark.boot_id
    return _find_end(pages, mark, boot_id)


def resume_the_torn_page(pages: PageDirectory, mark: WritePosition | None, boot_id: bytes) -> LogEnd:
    """After a loss of power writing goes on in the same page, in front of what may lie behind the hole."""
    end = _find_end(pages, mark, boot_id)
    end.resume = end.resume or (end.page > 0 and not end.sealed and not end.doubtful)
    return end


def directory_not_synced(self: CrashFiles, directory: int) -> None:
    """A name is taken for durable when it is there."""
    del self, directory


def create_without_sync(self: PageDirectory, header: PageHeader) -> int:
    """A page gets its name before its bytes are durable."""
    name = self.names.page(header.number)
    temporary = self.names.temporary(name)
    self.remove(temporary)
    file = self.port.create(self.directory, temporary)
    self.port.allocate(file, header.page_bytes)
    self.port.write(file, 0, (encode_header(header),))
    self.port.rename(self.directory, temporary, name)
    self._changes += 1
    self.port.sync_directory(self.directory)
    return file


def forget_closed_pages(self: SyncProgress, sealed_only: bool) -> SyncTarget:
    """Only the page being written is synced: that those before it are durable is taken for granted."""
    target = _take(self, sealed_only)
    page = self._tail.page
    return target if page is None or sealed_only else SyncTarget([], page.file, target.next_seq, target.position)


_reached = SyncProgress.reached


def page_closed_meanwhile_is_synced(self: SyncProgress, target: SyncTarget) -> None:
    """What it got while its sync was under way is taken for synced with the rest."""
    if target.open is not None:
        target.closed = [*target.closed, target.open]
    _reached(self, target)


def no_poison(self: SyncProgress) -> None:
    """The mark does not say that the page cache is in doubt."""
    del self


def nothing_written_again(pages: PageDirectory, file: int, end: int) -> None:
    """After a failed sync a start syncs once more what the cache counts as clean."""
    del pages, file, end


def remove_any_page(self: Space, numbers: list[int]) -> None:
    """Retention takes one more page than it may: the one after, closed or not."""
    names, port, directory = self._pages.names, self._pages.port, self._pages.directory
    for number in [*numbers, *([numbers[-1] + 1] if numbers else [])]:
        self._pages.remove(names.page(number))
        self._pages.remove(names.index(number))
    if numbers:
        port.sync_directory(directory)


def remove_pages_at_once(self: Space, numbers: list[int]) -> None:
    """Pages are removed one after the other without a sync between them."""
    for number in numbers:
        self._pages.remove(self._pages.names.page(number))
        self._pages.remove(self._pages.names.index(number))
        self._headers.pop(number, None)


def forget_closed_consumers(pages: PageDirectory, last_seq: Callable[[], int]) -> int | None:
    """While a consumer is open, only those that are open count."""
    floors: list[int] = []
    for name, committed_seq in committed_seqs(pages, last_seq()).items():
        try:
            pages.port.unlock(pages.port.lock(pages.directory, pages.names.named_lock(name)))
        except AlreadyOpen:
            floors.append(committed_seq + 1)
    return min(floors) if floors else _first_unconsumed_seq(pages, last_seq)


def sync_no_cursor(pages: PageDirectory, failed: Callable[[OSError], None], *, every: bool = False) -> None:
    """A page goes by what is committed, while lost power may take the commit back."""
    del pages, failed, every


def one_page_more(pages: list[ClosedPage], unconsumed_seq: int | None) -> list[int]:
    """The page of the next message goes, too."""
    return [page.number for page in pages if unconsumed_seq is not None and page.last_seq <= unconsumed_seq]


def resume_with_the_configured_size(self: LogTail, page: OpenPage, end: LogEnd) -> None:
    """A start takes the last page for one of the configured size, ``GROWN_BYTES``."""
    if page.map is not None:
        self._port.unmap(page.map)
        page.map = None
    page.limit = GROWN_BYTES - SEAL_BYTES
    _resume(self, page, end)


def grown_after_a_start(self: PageSupply) -> int:
    """The first page after a start has the configured size."""
    if self.number and self._taken is None:
        return self._page_bytes
    return min(self._page_bytes, self._first_page_bytes << self.number)


def grow_without_end(self: PageSupply) -> int:
    """Pages double beyond the configured size."""
    return self._first_page_bytes << min(self.number, 8)


def clean_mark_stays(self: SyncProgress, *, clean: bool = False) -> None:
    """Opening leaves the mark of the clean close where it is."""
    if clean or self._tail.page is None or self._tail.next_seq > self.durable.next_seq:
        _write_mark(self, clean=clean)


def trust_the_number(
    committed_seq: int,
    history: Sequence[Place],
    numbers: Sequence[int],
    header_of: Callable[[int], PageHeader | None],
    last_seq: int,
) -> int:
    """A cursor is as good as its number, whatever became of the log."""
    return min(committed_seq, last_seq)


def log_not_synced(self: Consumer, seq: int, history: list[Place]) -> None:
    """A durable commit syncs the cursor and leaves the log to itself."""
    del self, seq, history


def write_every_other_value(self: CursorFile, value: bytes) -> None:
    """A cursor is written now and then."""
    if int.from_bytes(value[8:16], "little") % 2 == 0:
        _write_cursor(self, value)


def record_nothing_that_ends(self: WorkLog, command: bytes) -> None:
    """An acknowledgement counts when it is in memory."""
    if command[0] != Kind.DONE:
        _record(self, command)


def bury_before_the_letter(self: WorkQueue, message: Message, deliveries: int, reason: str) -> int:
    """A message is given up, and then its letter is written."""
    if self._resources.dead is None:
        self._resources.dead = self._queue.beside(f"{self.name}-dead", page_size=DEAD_PAGE_BYTES, sync="always")
    mark = self._do(Kind.BURY, 0, message[0], self._resources.dead.last_seq + 1)
    letter = DeadLetter(message[0], message[1], message[2], deliveries=deliveries, reason=reason)
    self._resources.dead.append(letter.encode())
    return mark


def committed_is_started(self: WorkMachine) -> int:
    """The cursor of a work queue passes what is being worked on."""
    return self.next_seq - 1
