"""Mutants of the queue: the real code with one rule taken out, which a world must notice.

A world notices by a broken promise, by damage that is reported and that no disk has done, or by the removal of what a
consumer needs. These functions stand in for private methods of the real code and know its fields.
"""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from tests.worlds.harness import Mutants
from tests.worlds.queue.files import CrashFiles
from tests.worlds.queue.followers import run_followers
from tests.worlds.queue.persisting import run_persist
from tests.worlds.queue.shape import LIFETIME_NS
from tests.worlds.queue.world import run_world

from holdfast.errors import AlreadyOpen, CorruptData, InternalError
from holdfast.queue import Trimmed, core, every, evidence
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.evidence import FileEvidence
from holdfast.queue.files import pages as pages_file
from holdfast.queue.files.cursors import (
    CursorFile,
    committed_seqs,
    first_held_seq,
    first_unconsumed_seq,
    sync_holds,
)
from holdfast.queue.files.meta_files import WritePositionFile, read_write_position
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.commands import CommandKind, DeadLetter
from holdfast.queue.format.frame import HEAD, HEAD_BYTES, SEAL, SEAL_BYTES, SEQ_MASK, implied_seq, page_seed
from holdfast.queue.format.meta import WritePosition
from holdfast.queue.format.page import PageHeader, encode_header
from holdfast.queue.log import opening, page_scan, reader, space, tail, walk
from holdfast.queue.log.durability import Durability, SyncProgress, SyncTarget
from holdfast.queue.log.judgement import Following, Here, LostPage, Owed, Proof, Step, decide, end_of
from holdfast.queue.log.opening import LogEnd
from holdfast.queue.log.page_scan import PageScan
from holdfast.queue.log.reader import LogReader
from holdfast.queue.log.space import Space
from holdfast.queue.log.tail import LogTail, OpenPage
from holdfast.queue.log.walk import QueueEvidence
from holdfast.queue.log.writer import PageSupply, Writer
from holdfast.queue.persist_flow import Flow, Work
from holdfast.queue.persist_flow import FlowStep as FlowStep
from holdfast.queue.persist_run import PersistRun, Stored
from holdfast.queue.work.log import DEAD_PAGE_BYTES, WorkLog
from holdfast.queue.work.machine import WorkMachine
from holdfast.queue.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.queue import Message
    from holdfast.queue.format.checksum import Checksum, Octets
    from holdfast.queue.log.page_scan import FrameView
    from holdfast.queue.log.space import ClosedPage
    from holdfast.queue.persist_run import PersistArguments, _Since

__all__ = ["MUTANTS", "UNPROVED"]

MUTANTS: Final = Mutants(run_world, seeds_max=200, noticed=(AssertionError, CorruptData, InternalError, Trimmed))

UNPROVED: Final = {
    "slots written in place": "a mark is a hint: without one a start reads more and finds the same (I5)",
    "a lost page between two pages is ignored": "its numbers are reported all the same; a unit test has the row",
    "no second writing of the header": "the base of a page follows from the page before it",
}
"""Rules whose loss costs time and no message, so no world can prove them."""

GROWN_BYTES = 32_768
"""The configured size in the worlds where a broken rule takes it for the size of every page."""
FAULTS: Final = {"fault_rate": 0.06, "page_bytes": 12_288, "uniform": False, "max_bytes": None}
ALIGNED: Final = {
    "grows": False,
    "uniform": True,
    "fault_rate": 0.0,
    "max_bytes": None,
    "sync": "os",
    "steps": 40,
    "lives": 1,
}
GROWING: Final = {"grows": True, "page_bytes": GROWN_BYTES, "lives": 4, "max_bytes": None}

_sync_data = CrashFiles.sync_data
_take = SyncProgress.take
_find_end = opening.find_end
_write_mark = SyncProgress.record_position
_write_cursor = CursorFile.write
_record = WorkLog.record
_resume = LogTail.resume
_first_unconsumed_seq = first_unconsumed_seq


@MUTANTS.breaks(
    "stale bytes of another life of a page never verify",
    "page_seed",
    tail,
    opening,
    page_scan,
    focus={**ALIGNED, "stale": True, "page_bytes": 8192},
)
def no_salt(checksum: Checksum, salt: int, page_number: int) -> int:
    """Every life of a page has the same checks."""
    return page_seed(checksum, salt & 0, page_number)


@MUTANTS.breaks(
    "a frame verifies in one place only",
    "_verify",
    PageScan,
    focus={**ALIGNED, "page_bytes": 16_384, "damage_rounds": 200},
    first_seed=4,
)
def no_sequence_number_in_the_check(
    self: PageScan, data: bytes, seq: int, last_time_ns: int
) -> tuple[list[FrameView], bytes | None]:
    """A frame is valid anywhere in its page, with any number that it was written with."""
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


@MUTANTS.breaks("the data are synced before the pointer says so", "_sync", Durability)
def pointer_before_data(self: Durability, *, sealed_only: bool) -> None:
    """The durable place is written, and made durable, before the data are."""
    target = self._progress.take(sealed_only)
    try:
        self._progress.reached(SyncTarget([], None, target.next_seq, target.position))
        for file in [*target.closed, *([] if target.open is None else [target.open])]:
            self._port.sync_data(file)
        self._progress.reached(target)
        self.next_seq = max(self.next_seq, target.next_seq)
    finally:
        with self._condition:
            self._syncing = False
            self._condition.notify_all()


@MUTANTS.breaks("durable is what a sync returned for", "wait_for", Durability)
def acknowledge_unsynced(self: Durability, next_seq: int) -> None:
    """What was written counts as durable."""
    self.next_seq = max(self.next_seq, next_seq)


@MUTANTS.breaks("a failed sync is never repeated", "sync_data", CrashFiles, focus=FAULTS, first_seed=5)
def sync_tried_again(self: CrashFiles, file: int) -> None:
    """A sync that failed is tried once more, and then it succeeds."""
    try:
        _sync_data(self, file)
    except OSError:
        refuse, self.refuse = self.refuse, None
        try:
            _sync_data(self, file)
        finally:
            self.refuse = refuse


@MUTANTS.breaks("a closed page says that it is", "_seal", Writer, focus={**ALIGNED, "page_bytes": 4096}, first_seed=4)
def no_seal(self: Writer, page: OpenPage) -> None:
    """A page is left as it is when it is full."""
    del page
    self.progress.write_index()


def end_without_seal(here: Here, following: Following, owed: Owed, *, lost: bool) -> Step:
    """Where there is no SEAL, the log ends, whatever follows."""
    if here is Here.NOTHING and following is Following.CONTINUES:
        return Step.END
    return decide(here, following, owed, lost=lost)


@MUTANTS.breaks("reading since T begins in the last page strictly before T", "seek_time", LogReader, first_seed=7)
def latest_page_at_or_before(self: LogReader, time_ns: int) -> None:
    """The latest page whose first time is at most T, instead of strictly below."""
    self._seek_page(lambda header: header.base_time_ns <= time_ns)
    self._from_seq, self._from_time_ns = 1, time_ns
    if self.scan is not None:
        self.scan.seek_time(time_ns)


@MUTANTS.breaks("reading since T begins at the last record strictly before T", "seek_time", PageScan, first_seed=7)
def last_record_at_or_before(self: PageScan, time_ns: int) -> None:
    """The last record whose time is at most T, instead of strictly below."""
    if self._index is not None:
        self._seek(self._index, self._index.last_earlier(time_ns + 1), lambda indexed, _: indexed <= time_ns)


@MUTANTS.breaks("writing goes on at the verified end", "find_end", core, reader)
def resume_past_a_hole(pages: PageDirectory, files: QueueEvidence) -> LogEnd:
    """Writing goes on where the writer was, not where verified frames end."""
    end, mark = _find_end(pages, files), read_write_position(pages)
    if mark is not None and mark.end.page == end.page and mark.end.next_seq > end.next_seq:
        end.position, end.last_time_ns = mark.end.position, mark.end.last_time_ns
        end.next_seq = end.expected_seq = end.owed_end = mark.end.next_seq
    return end


@MUTANTS.breaks("the written mark is true only while the page cache lives", "is_true", WritePosition)
def mark_of_any_boot(self: WritePosition, boot_id: bytes) -> bool:
    """The page cache is taken for whole, also after a loss of power."""
    del self, boot_id
    return True


@MUTANTS.breaks(
    "after a torn tail a new page is begun",
    "find_end",
    core,
    reader,
    focus={**ALIGNED, "lives": 3, "steps": 15},
    first_seed=17,
)
def torn_page_written_on(pages: PageDirectory, files: QueueEvidence) -> LogEnd:
    """After a loss of power writing goes on in the same page, before what may follow the hole."""
    end = _find_end(pages, files)
    end.resume = end.resume or (end.page > 0 and not end.sealed and not end.doubtful)
    return end


@MUTANTS.breaks("a name is durable before anything in its file is acknowledged", "sync_directory", CrashFiles)
def directory_not_synced(self: CrashFiles, directory: int) -> None:
    """A name is taken for durable when it is there."""
    del self, directory


@MUTANTS.breaks("under its name a page is whole", "create", PageDirectory)
def page_named_before_its_sync(self: PageDirectory, header: PageHeader) -> int:
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


@MUTANTS.breaks("nothing is durable before the pages in front of it are", "take", SyncProgress)
def closed_pages_forgotten(self: SyncProgress, sealed_only: bool) -> SyncTarget:
    """Only the page being written is synced: that those before it are durable is taken for granted."""
    target = _take(self, sealed_only)
    page = self._tail.page
    return target if page is None or sealed_only else SyncTarget([], page.file, target.next_seq, target.position)


_reached = SyncProgress.reached


@MUTANTS.breaks(
    "a page that is closed while its sync is under way wants another one",
    "reached",
    SyncProgress,
    focus={"sync": "os", "max_bytes": None, "page_bytes": 4096, "crowd": 0.8, "steps": 28},
    first_seed=5,
)
def page_closed_meanwhile_is_synced(self: SyncProgress, target: SyncTarget) -> None:
    """What it got while its sync was under way is taken for synced with the rest."""
    if target.open is not None:
        target = target._replace(closed=[*target.closed, target.open])
    _reached(self, target)


@MUTANTS.breaks(
    "after a failed sync the cache is not trusted",
    "poison",
    SyncProgress,
    focus={**FAULTS, "lives": 4, "sync": "os", "steps": 20},
    first_seed=6,
)
def no_poison_mark(self: SyncProgress) -> None:
    """The mark does not say that the page cache is in doubt."""
    del self


@MUTANTS.breaks(
    "after a failed sync what is found is written again",
    "_rewrite",
    opening,
    focus={**FAULTS, "fault_rate": 0.12, "lives": 8, "steps": 14, "sync": every(bytes=9000)},
    first_seed=15,
)
def nothing_written_again(pages: PageDirectory, file: int, end: int) -> None:
    """After a failed sync a start syncs once more what the cache counts as clean."""
    del pages, file, end


@MUTANTS.breaks(
    "retention removes closed pages only",
    "remove",
    Space,
    focus={"page_bytes": 4096, "max_bytes": 12_288},
    first_seed=4,
)
def page_in_use_removed(self: Space, numbers: list[int]) -> None:
    """Retention takes one more page than it may: the one after, closed or not."""
    names, port, directory = self._pages.names, self._pages.port, self._pages.directory
    for number in [*numbers, *([numbers[-1] + 1] if numbers else [])]:
        self._pages.remove(names.page(number))
        self._pages.remove(names.index(number))
    if numbers:
        port.sync_directory(directory)


@MUTANTS.breaks(
    "the name of a page is gone for good before the next goes",
    "remove",
    Space,
    focus={"uniform": False, "page_bytes": 4096, "lifetime_ns": LIFETIME_NS, "max_bytes": None, "sync": "os"},
    first_seed=7,
)
def pages_removed_at_once(self: Space, numbers: list[int]) -> None:
    """Pages are removed one after the other without a sync between them."""
    for number in numbers:
        self._pages.remove(self._pages.names.page(number))
        self._pages.remove(self._pages.names.index(number))
        self._headers.pop(number, None)


@MUTANTS.breaks(
    "what is consumed goes when every consumer has committed it, open or not",
    "first_unconsumed_seq",
    space,
    play=partial(run_followers, consumed=True),
    first_seed=1,
)
def consumed_forgets_closed_consumers(pages: PageDirectory) -> int | None:
    """While a consumer is open, only those that are open count."""
    floors: list[int] = []
    for name, committed_seq in committed_seqs(pages).items():
        try:
            pages.port.unlock(pages.port.lock(pages.directory, pages.names.named_lock(name)))
        except AlreadyOpen:
            floors.append(committed_seq + 1)
    return min(floors) if floors else _first_unconsumed_seq(pages)


@MUTANTS.breaks(
    "the cursors are durable before the pages that they have passed go",
    "sync_holds",
    space,
    play=partial(run_followers, consumed=True),
)
def consumed_goes_before_the_cursors(
    pages: PageDirectory, failed: Callable[[OSError], None], *, every: bool = False
) -> None:
    """A page goes by what is committed, while lost power may take the commit back."""
    del pages, failed, every


@MUTANTS.breaks(
    "a page stays while one of its messages is not committed",
    "pages_consumed",
    space,
    play=partial(run_followers, consumed=True),
)
def consumed_takes_the_page_in_use(pages: list[ClosedPage], unconsumed_seq: int | None) -> list[int]:
    """The page of the next message goes, too."""
    return [page.number for page in pages if unconsumed_seq is not None and page.last_seq <= unconsumed_seq]


@MUTANTS.breaks("a page ends where its header says", "resume", LogTail, focus=GROWING)
def resumed_page_has_the_configured_size(self: LogTail, page: OpenPage, end: LogEnd) -> None:
    """A start takes the last page for one of the configured size, ``GROWN_BYTES``."""
    if page.map is not None:
        self._port.unmap(page.map)
        page.map = None
    page.limit = GROWN_BYTES - SEAL_BYTES
    _resume(self, page, end)


@MUTANTS.breaks(
    "the size of a page follows from its number, also after a start", "next_bytes", PageSupply, focus=GROWING
)
@property
def start_ends_the_growth(self: PageSupply) -> int:
    """The first page after a start has the configured size."""
    if self.number and self._taken is None:
        return self._page_bytes
    return min(self._page_bytes, self._first_page_bytes << self.number)


@MUTANTS.breaks("pages grow up to the configured size", "next_bytes", PageSupply, focus={**GROWING, "page_bytes": 8192})
@property
def growth_without_a_bound(self: PageSupply) -> int:
    """Pages double beyond the configured size."""
    return self._first_page_bytes << min(self.number, 8)


@MUTANTS.breaks(
    "an open queue has no clean mark on disk",
    "record_position",
    SyncProgress,
    focus={**ALIGNED, "lives": 4, "steps": 10, "page_bytes": 65_536},
    first_seed=42,
)
def clean_mark_stays(self: SyncProgress, *, clean: bool = False) -> None:
    """Opening leaves the mark of the clean close where it is."""
    if clean or self._tail.page is None or self._tail.next_seq > self.durable.next_seq:
        _write_mark(self, clean=clean)


@MUTANTS.breaks(
    "a number that a consumer has seen is never given to another message",
    "used_seq",
    FileEvidence,
    play=run_followers,
    first_seed=2,
)
def numbers_are_given_again(self: FileEvidence) -> int:
    """The log continues at its end, whatever consumers and workers have seen."""
    del self
    return 1


@MUTANTS.breaks(
    "a number that a worker has taken is never given to another message",
    "_taken_seq",
    evidence,
    play=run_followers,
    first_seed=2,
)
def workers_are_not_asked(pages: PageDirectory, name: str) -> int:
    """Only cursors count, which work queues write now and then."""
    del pages, name
    return 1


@MUTANTS.breaks(
    "what is committed durably is durable in the log", "_sync_log", Consumer, play=run_followers, first_seed=4
)
def durable_commit_without_the_log(self: Consumer, seq: int) -> None:
    """A durable commit syncs the cursor and leaves the log to itself."""
    del self, seq


@MUTANTS.breaks("a commit survives a kill", "write", CursorFile, play=run_followers)
def commit_not_written(self: CursorFile, value: bytes) -> None:
    """A cursor is written now and then."""
    if int.from_bytes(value[8:16], "little") % 2 == 0:
        _write_cursor(self, value)


@MUTANTS.breaks("a step is written before it counts", "record", WorkLog, play=run_followers)
def acknowledged_in_memory(self: WorkLog, command: bytes) -> None:
    """An acknowledgement counts when it is in memory."""
    if command[0] != CommandKind.DONE:
        _record(self, command)


@MUTANTS.breaks(
    "a message is a dead letter before it is given up", "_bury", WorkQueue, play=run_followers, first_seed=1
)
def buried_before_its_letter(self: WorkQueue, message: Message, deliveries: int, reason: str) -> int:
    """A message is given up, and then its letter is written."""
    if self._resources.dead is None:
        self._resources.dead = self._core.sibling(f"{self.name}-dead", page_size=DEAD_PAGE_BYTES, sync="always")
    mark = self._do(CommandKind.BURY, 0, message[0], self._resources.dead.last_seq + 1)
    letter = DeadLetter(message[0], message[1], message[2], deliveries=deliveries, reason=reason)
    self._resources.dead.append(letter.encode())
    return mark


@MUTANTS.breaks("retention waits for what is not finished", "committed_seq", WorkMachine, play=run_followers)
def started_counts_as_done(self: WorkMachine) -> int:
    """The cursor of a work queue passes what is being worked on."""
    return self.next_seq - 1


# -- the judgement: each row of its tables ----------------------------------------------------------------------------

DAMAGED: Final = {"damage_rounds": 40, "lives": 3, "fault_rate": 0.0}
_after = walk.LogWalk._after
_is_unused = LostPage.is_unused
_note_removal = SyncProgress.note_removal


def nothing_is_restored(data: bytes, number: int) -> None:
    """A damaged header is lost, also where it follows from the rest."""
    del data, number


def no_frame_proves_a_header(pages: PageDirectory, file: int, number: int, raw: bytes) -> None:
    """Frames and neighbours say nothing about a damaged header."""
    del pages, file, number, raw


def prepared_is_lost(self: walk.LogWalk, number: int, expected: int, proof: Proof) -> walk.After:
    """A page that was made ahead counts as lost."""
    after = _after(self, number, expected, proof)
    if after.prepared and after.header is None:
        after.lost.append(LostPage(after.prepared, 4096, 4096))
    return after


def damaged_is_unused(self: LostPage, proof: Proof, *, is_first: bool) -> bool:
    """A damaged page after the last page in use held nothing, whatever is in it."""
    return self.number > proof.page


def emptied_is_unused(self: LostPage, proof: Proof, *, is_first: bool) -> bool:
    """A page without room was only prepared."""
    return self.number > proof.page and self.content_end <= 64


def first_is_unused(self: LostPage, proof: Proof, *, is_first: bool) -> bool:
    """A page of zeros was only prepared, though no page was begun before it."""
    return _is_unused(self, proof, is_first=False)


def any_number_is_behind_damage(self: walk.LogWalk, proof: Proof) -> int:
    """A frame behind damage counts, whatever its number."""
    return 1 << 62


def damaged_is_ignored(self: walk.LogWalk, number: int, expected: int, proof: Proof) -> walk.After:
    """A damaged page is not there."""
    after = _after(self, number, expected, proof)
    after.lost = []
    return after


def absent_is_ignored(self: walk.LogWalk, number: int, expected: int, proof: Proof) -> walk.After:
    """A missing number is not there."""
    after = _after(self, number, expected, proof)
    after.absent, after.uncovered = False, 0
    return after


def everything_is_covered(self: LostPage, proof: Proof) -> bool:
    """A record counts the messages of every page."""
    del self, proof
    return True


def row(here: tuple[Here, ...], following: tuple[Following, ...], owed: tuple[Owed, ...], step: Step) -> object:
    """The table of the walk with another step in one row."""

    def decided(at: Here, follows: Following, is_owed: Owed, *, lost: bool) -> Step:
        if at in here and follows in following and is_owed in owed:
            return step
        return decide(at, follows, is_owed, lost=lost)

    return decided


def nothing_is_owed_at_the_end(
    expected_seq: int, proof: Proof, used_seq: int, lost: Sequence[LostPage] = (), uncovered: int = 0
) -> tuple[int, int]:
    """The log continues where it stops."""
    return end_of(expected_seq, Proof(ordered=proof.ordered, page=proof.page), used_seq, lost, uncovered)


def lost_pages_take_no_numbers(
    expected_seq: int, proof: Proof, used_seq: int, lost: Sequence[LostPage] = (), uncovered: int = 0
) -> tuple[int, int]:
    """The numbers of a lost page that no record covers are given again."""
    del lost, uncovered
    return end_of(expected_seq, Proof(owed_seq=proof.owed_seq, ordered=proof.ordered), used_seq)


def used_is_damaged(
    expected_seq: int, proof: Proof, used_seq: int, lost: Sequence[LostPage] = (), uncovered: int = 0
) -> tuple[int, int]:
    """What was used and never durable counts as damaged."""
    next_seq = end_of(expected_seq, proof, used_seq, lost, uncovered)[1]
    return next_seq, next_seq


def front_is_removed(header: PageHeader, proof: Proof, *, damaged: bool) -> int:
    """What is missing before the first page was removed by retention."""
    del proof, damaged
    return header.base_seq


def removal_is_not_recorded(self: SyncProgress, first_page: int, first_seq: int) -> None:
    """Retention removes pages without a record of it."""
    del self, first_page, first_seq


def lost_pages_are_set_aside(pages: PageDirectory, files: QueueEvidence) -> LogEnd:
    """An opening puts the damaged pages after the end away, and continues there."""
    end = _find_end(pages, files)
    end.doubtful = [number for number in pages.known_numbers() if number > end.page]
    end.last_page, end.next_seq, end.owed_end = end.page, end.expected_seq, end.expected_seq
    return end


def gap_is_not_written(self: Writer, end: LogEnd) -> None:
    """The page after a gap is begun by the first append, and nothing shows the gap before."""
    del self, end


def new_queue_without_a_record(self: WritePositionFile, pages: PageDirectory, *, new: bool = False) -> None:
    """The write position of a new queue is not recorded before its identity."""
    del new
    _open_write_position(self, pages)


_open_write_position = WritePositionFile.__init__

MUTANTS.add(
    "nothing_is_restored",
    "one damaged byte of a header costs no message",
    (pages_file, "nearest_header", nothing_is_restored),
    (core, "restored_header", no_frame_proves_a_header),
    focus=DAMAGED,
)
MUTANTS.add(
    "gap_is_not_written",
    "what was never durable is not damaged later either",
    (Writer, "_begin_after_gap", gap_is_not_written),
    play=run_followers,
)
for name, rule, place, attribute, broken in (
    ("prepared_is_lost", "a prepared page is unused", walk.LogWalk, "_after", prepared_is_lost),
    ("damaged_is_unused", "a damaged page with content is lost", LostPage, "is_unused", damaged_is_unused),
    ("emptied_is_unused", "a page without room is lost", LostPage, "is_unused", emptied_is_unused),
    ("damaged_is_ignored", "a damaged page is lost", walk.LogWalk, "_after", damaged_is_ignored),
    ("absent_is_ignored", "a page without a file is lost", walk.LogWalk, "_after", absent_is_ignored),
    ("everything_is_covered", "a record covers what is before its position", LostPage, "is_covered",
     everything_is_covered),
    ("torn_is_damaged", "what was never durable is not damaged", walk, "decide",
     row((Here.SEAL, Here.NOTHING, Here.INVALID), (Following.AHEAD,), (Owed.NO,), Step.NEXT_PAGE_AFTER_GAP)),
    ("ahead_ends_the_log", "a later page proves what is missing before it", walk, "decide",
     row(tuple(Here), (Following.AHEAD,), (Owed.YES, Owed.UNKNOWN), Step.END)),
    ("no_search_before_a_page", "frames after damage in a page are found", walk, "decide",
     row((Here.NOTHING, Here.INVALID), (Following.AHEAD,), tuple(Owed), Step.NEXT_PAGE_AFTER_GAP)),
    ("no_search_at_the_end", "frames after damage in the last page are found", walk, "decide",
     row((Here.INVALID,), (Following.NONE, Following.PREPARED), (Owed.YES, Owed.UNKNOWN), Step.END)),
    ("nothing_is_owed_at_the_end", "what is owed is reported", walk, "end_of", nothing_is_owed_at_the_end),
    ("lost_pages_take_no_numbers", "the numbers of a lost page are never given again", walk, "end_of",
     lost_pages_take_no_numbers),
    ("front_is_removed", "a missing first page is damage unless retention removed it", walk, "first_seq_of",
     front_is_removed),
    ("lost_pages_are_set_aside", "an opening never makes damage disappear", core, "find_end",
     lost_pages_are_set_aside),
    ("new_queue_without_a_record", "a new queue is not taken for one whose pages are lost", WritePositionFile,
     "__init__", new_queue_without_a_record),
):  # fmt: skip
    MUTANTS.add(name, rule, (place, attribute, broken), focus=DAMAGED)
SHORT_LIVES: Final = {"lives": 2, "steps": 6, "damage_rounds": 10}
MUTANTS.add(
    "first_is_unused",
    "a prepared page comes after a begun one",
    (LostPage, "is_unused", first_is_unused),
    focus=SHORT_LIVES,
    first_seed=1222,
)
MUTANTS.add(
    "any_number_is_behind_damage",
    "a page has no numbers of the next one",
    (walk.LogWalk, "_resync_below", any_number_is_behind_damage),
    focus=SHORT_LIVES,
    first_seed=4446,
)
MUTANTS.add(
    "used_is_damaged", "what was never durable is not damaged", (walk, "end_of", used_is_damaged), play=run_followers
)
MUTANTS.add(
    "removal_is_not_recorded",
    "what retention removed is not damaged",
    (SyncProgress, "note_removal", removal_is_not_recorded),
    focus={"page_bytes": 4096, "max_bytes": 12_288},
)


# -- persist --------------------------------------------------------------------------------------------------------

_next_item = PersistRun.next_item
_subscribe = PersistRun._subscribe
_stored = PersistRun.stored


@MUTANTS.breaks("an item is consumed when the next one is asked for", "next_item", PersistRun, play=run_persist)
def persist_acknowledges_when_given(self: PersistRun) -> tuple[Message, object]:
    """An item is committed when it is given."""
    message, item = _next_item(self)
    self._subscription.commit(message.seq, durable=False)
    return message, item


@MUTANTS.breaks("a new run first gives what is left", "_subscribe", PersistRun, play=run_persist)
def persist_drops_what_is_left(self: PersistRun, settings: PersistArguments) -> Consumer | _Since:
    """A new run begins after what the last one has left."""
    if settings.consumer is not None:
        with self.queue.consumer(settings.consumer, hold=True) as consumer:
            if consumer.committed_seq < self.queue.last_seq:
                consumer.reset(since="latest")
    return _subscribe(self, settings)


@MUTANTS.breaks("the end comes after the items before it", "step", Flow, play=run_persist)
@property
def persist_ends_before_the_last_items(self: Flow) -> FlowStep:
    """The end is given as soon as the source has ended."""
    if self.stopped:
        return FlowStep.CLOSED
    if self.ending is not None:
        return FlowStep.END
    return FlowStep.GIVE if self.consumed_seq < self.stored_seq else FlowStep.WAIT


@MUTANTS.breaks("what is consumed stays consumed after a kill", "consume", PersistRun, play=run_persist)
def persist_consumes_in_memory(self: PersistRun, *, durable: bool = False) -> None:
    """An item counts as consumed, and the cursor is not written."""
    if self.given is not None:
        self.flow.consumed(self.given.seq, len(self.given.payload))
        self.given = None


@MUTANTS.breaks("the source waits at the bound", "work", Flow, play=run_persist)
@property
def persist_never_waits(self: Flow) -> Work:
    """The source runs ahead without a bound."""
    if self.stopped or self.ending is not None:
        return Work.NOTHING if self.source_closed else Work.CLOSE_SOURCE
    return Work.MEASURE if self.measured_seq < self.left_seq else Work.PULL


@MUTANTS.breaks("what earlier runs have left counts against the bound", "measure", PersistRun, play=run_persist)
def persist_measures_nothing(self: PersistRun) -> None:
    """What earlier runs have left does not count against the bound."""
    self.flow.measured_seq = self.flow.left_seq


@MUTANTS.breaks("a source resumes after what is stored", "stored", PersistRun, play=run_persist)
def persist_forgets_what_is_stored(self: PersistRun) -> Stored[object]:
    """The source learns of the items that were consumed, and not of all that are stored."""
    found = _stored(self)
    return Stored(self.flow.consumed_seq, found.last)


@MUTANTS.breaks(
    "space is freed of what every consumer has consumed", "_free", PersistRun, play=run_persist, first_seed=1
)
def persist_frees_for_one_consumer(self: PersistRun) -> None:
    """Space is freed as soon as this consumer needs it no more, whatever others need."""
    inside = self._core
    if not self._keeps_consumed:
        sync_holds(inside.pages, self._sync_failed, every=True)
        inside.trim(before_seq=self.flow.consumed_seq + 1)


@MUTANTS.breaks(
    "space is freed of what every consumer has consumed, also of one that does not hold",
    "_free",
    PersistRun,
    play=run_persist,
    first_seed=1,
)
def persist_frees_for_consumers_that_hold(self: PersistRun) -> None:
    """Space is freed although a consumer that does not hold has yet to consume it."""
    inside = self._core
    held = first_held_seq(inside.pages)
    if held is not None and not self._keeps_consumed:
        sync_holds(inside.pages, self._sync_failed, every=True)
        inside.trim(before_seq=held)


@MUTANTS.breaks(
    "the cursors are durable before the pages that they have passed go",
    "_free",
    PersistRun,
    play=run_persist,
    first_seed=3,
)
def persist_frees_before_the_cursors(self: PersistRun) -> None:
    """Space is freed while lost power may take the cursors back before it."""
    inside = self._core
    unconsumed = first_unconsumed_seq(inside.pages)
    if unconsumed is not None and not self._keeps_consumed:
        inside.trim(before_seq=unconsumed)


MUTANTS.add(
    "no_check",
    "a frame is whole or it is not there",
    (tail, "checksum_for_writing", checksum_without_bytes),
    (opening, "checksum_for_reading", checksum_without_bytes),
    (page_scan, "checksum_for_reading", checksum_without_bytes),
)
MUTANTS.add(
    "no_seal_and_no_end_of_page",
    "a page ends where nothing valid is and the next begins",
    (Writer, "_seal", no_seal),
    (walk, "decide", end_without_seal),
)
MUTANTS.add(
    "consumed_asks_those_that_hold",
    "what is consumed goes when every consumer has committed it, whether it holds or not",
    (space, "first_unconsumed_seq", first_held_seq),
    play=partial(run_followers, consumed=True),
    first_seed=3,
)
