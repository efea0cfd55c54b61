"""``LogWalk``: a position in the log that moves over verified frames and past damage, by ``judgement``.

Readers, the opening and the verification walk with it. Bytes at the end of a log that do not verify count as not
written *yet*, until the proof says that the writer has passed them. The port's ``OSError`` is raised unchanged.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from holdfast.queue.files.index import IndexReader, KeptIndexes
from holdfast.queue.files.pages import PageDirectory, cached_header, open_page
from holdfast.queue.format.frame import HEAD_BYTES
from holdfast.queue.format.page import HEADER_BYTES, PAGE_BYTES_MAX, PageHeader
from holdfast.queue.log.judgement import (
    Following,
    Here,
    LostPage,
    Owed,
    Proof,
    Step,
    decide,
    end_of,
    first_seq_of,
    following_of,
)
from holdfast.queue.log.page_scan import (
    ANY_NUMBER,
    FIRST_WINDOW_BYTES,
    WINDOW_BYTES,
    Anchors,
    PageScan,
    Window,
    content_end,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FOREIGN_PAGES = 1024
"""A file whose page number is this far above all others is not a page of this queue."""
UNRECORDED_BYTES_MAX = 1 << 20
"""After the recorded position a writer appends fewer bytes before it records another one."""
UNSYNCED_PAGES_MAX = 8
"""The writer never has more closed pages waiting for their sync. So earlier pages are durable, whatever is recorded."""


class QueueEvidence(Protocol):
    """What the files next to the pages prove. ``proof`` is of now: it grows while a writer appends."""

    def proof(self) -> Proof:
        """The record of the writer."""
        ...

    def used_seq(self) -> int:
        """A consumer has committed, or a work queue has taken, numbers below this. Cost: a small read for each."""
        ...


class Loss(NamedTuple):
    """Messages ``first`` to ``last`` are missing. ``reason``: "damage"; or "crash", for numbers that were used and
    never durable; or "removed", by retention. In page ``page``, from ``position`` on; ``end`` is where frames go on, 0
    where they do not.
    """

    first: int
    last: int
    page: int
    reason: str
    position: int = 0
    end: int = 0


class After:
    """What comes after a page.

    ``header`` is that of the next begun page, and ``following`` is how it follows. ``prepared`` is the first prepared
    page before it. The other pages before it, or all pages after the end of the log, are lost or unused: ``lost`` have
    a damaged file; ``absent`` means that some have no file, and ``uncovered`` counts those of them that no record
    covers; ``unused`` were only prepared. ``last_page`` is the last page that any file names.
    """

    def __init__(self) -> None:
        self.following = Following.NONE
        self.header: PageHeader | None = None
        self.prepared = 0
        self.lost: list[LostPage] = []
        self.unused: list[int] = []
        self.absent = False
        self.uncovered = 0
        self.last_page = 0

    def skip_to(self, number: int, before: int, covered: int) -> None:
        """Pages between ``before`` and ``number`` have no file. A record covers the pages up to ``covered``."""
        if number > before + 1:
            self.absent = True
            self.uncovered += max(0, number - 1 - max(before, covered))

    def is_end_before(self, number: int) -> bool:
        """Whether nothing follows but prepared pages, the first of them ``number``."""
        return self.prepared == number and self.header is None and not (self.lost or self.unused or self.absent)


class WalkCaches(NamedTuple):
    """What walks over one queue may share: headers of begun pages, confirmed frames, indexes of finished pages."""

    headers: dict[int, PageHeader]
    anchors: Anchors
    indexes: KeptIndexes


class LogWalk:
    """One thread at a time. ``next_seq`` is the number expected next, ``report`` is called for each loss and may raise.

    ``is_sole``: no other process changes the files, so cached headers are valid. ``used_seq``: 0 is read at the first
    end.
    """

    __slots__ = (
        "_anchors", "_evidence", "_file", "_headers", "_index", "_indexes", "_lost", "_pages", "_report",
        "_reported_seq", "_used_seq", "after", "first_seq", "is_sealed", "is_sole", "owed_end", "scan",
    )  # fmt: skip

    def __init__(
        self,
        pages: PageDirectory,
        evidence: QueueEvidence,
        report: Callable[[Loss], None],
        caches: WalkCaches | None = None,
        *,
        is_sole: bool = False,
        used_seq: int = 0,
    ) -> None:
        self._pages = pages
        self._evidence = evidence
        self._used_seq = used_seq
        self._report = report
        self._headers, self._anchors, self._indexes = WalkCaches({}, {}, {}) if caches is None else caches
        self.is_sole = is_sole
        self.scan: PageScan | None = None  # the position in the present page; None before the first
        self._file = -1
        self._index: IndexReader | None = None
        self._lost: dict[int, LostPage] = {}
        # Messages below this were reported as lost. The scan still expects the number of its position: under another
        # number damaged bytes may verify.
        self._reported_seq = 1
        self.first_seq = 1  # the oldest message that was not removed on purpose, known after ``start_at``
        # At the end of the log: what follows, whether a SEAL is there, and the end of what is owed.
        self.after = After()
        self.is_sealed = False
        self.owed_end = 1

    @property
    def next_seq(self) -> int:
        """The number expected next."""
        return self._reported_seq if self.scan is None else max(self.scan.next_seq, self._reported_seq)

    # ---- pages ------------------------------------------------------------------------------------------------------

    def start_at(self, numbers: Sequence[int], *, front: bool = True) -> bool:
        """Enter the first page of these that can be read. ``front``: they are all pages; then report what is lost
        before that one. False if there is none.
        """
        self.close()  # the time and number of an earlier position say nothing about this page
        self._reported_seq = 1
        for number in numbers:
            # Read evidence only where the header does not say enough: this makes a seek a quarter faster.
            if self._enter(number, None) or self._enter(number, self._base_of_first(number)):
                # If retention has removed the wanted page meanwhile, this one is the first.
                if front or number != numbers[0]:
                    self._report_front(numbers[: numbers.index(number)])
                return True
        return False

    def _base_of_first(self, number: int) -> int | None:
        """What evidence says of the base of this page, if it is the first one."""
        proof = self._evidence.proof()
        return proof.first_seq if number in (1, proof.first_page) else None

    def _report_front(self, before: Sequence[int]) -> None:
        header = None if self.scan is None else self.scan.header
        assert header is not None, "a page was entered"
        proof = self._evidence.proof()  # after the look: retention records what it removes before it does
        there = self._pages.numbers() if before else ()
        damaged = [page for page in before if page in there and self._pages.header_of(page) is None]
        self.first_seq = first_seq_of(header, proof, damaged=bool(damaged))
        if self.first_seq < header.after_seq:
            page = damaged[0] if damaged else proof.first_page or max(1, header.number - 1)
            self._report(Loss(self.first_seq, header.after_seq - 1, page, reason="damage"))
        never_durable = max(self.first_seq, header.after_seq)
        if never_durable < header.base_seq:
            self._report(Loss(never_durable, header.base_seq - 1, header.number, reason="crash"))

    def start(self, header: PageHeader, position: int, next_seq: int, last_time_ns: int) -> bool:
        """Continue in the middle of a page; False if it has no file."""
        file = self._pages.open(header.number)
        if file is None:
            return False
        self._use(file, header, last_time_ns)
        assert self.scan is not None, "a walk is in a page"
        self.scan.state = position, next_seq, self.scan.last_time_ns
        return True

    def _enter(self, number: int, expected: int | None) -> bool:
        """Move to the start of a begun page; else False. ``expected`` is its base if the header may lack it."""
        file = self._pages.open(number)
        if file is None:
            return False
        header = self._headers.get(number) if self.is_sole else None
        try:
            header = header or self._pages.header(file, number)
            if header is not None and header.prepared:
                header = self._begun(file, header, expected) if expected is not None else None
        except BaseException:
            self._pages.port.close(file)
            raise
        if header is None:
            self._pages.port.close(file)
            return False
        self._use(file, header, 0 if self.scan is None else self.scan.last_time_ns)
        return True

    def _use(self, file: int, header: PageHeader, last_time_ns: int) -> None:
        try:
            # A walk that comes from the page before will read on.
            reads_on = self.scan is not None and self._holds_much(header)
        except BaseException:
            self._pages.port.close(file)
            raise
        self.close()
        self._file = file
        # The next page was begun after the last message of this one.
        is_finished = header.number + 1 in self._headers
        self._index = IndexReader(self._pages, header.number, header.salt, self._indexes if is_finished else None)
        self.scan = PageScan(
            self._pages.port,
            file,
            header,
            next_seq=header.base_seq,
            position=HEADER_BYTES,
            # A page may be empty after a crash; its header still says that later messages are no earlier.
            last_time_ns=max(last_time_ns, header.base_time_ns),
            index=self._index,
            anchors=self._anchors,
            window_bytes=WINDOW_BYTES if reads_on else FIRST_WINDOW_BYTES,
        )

    def _holds_much(self, header: PageHeader) -> bool:
        """Whether the page needs no small first read: it is full."""
        following = cached_header(self._pages, header.number + 1, self._headers)
        return following is not None and not following.prepared

    def _begun(self, file: int, prepared: PageHeader, expected: int) -> PageHeader | None:
        """The header of a prepared page as begun with ``expected``, if that message is there or, after a restart of the
        machine, a later page. Until then a larger page may take its name, and a walk in this one would wait forever.
        """
        scan = self.scan
        time_ns, in_all = (0, 0) if scan is None else (scan.last_time_ns, scan.header.skipped_in_all)
        header = prepared.started(expected, time_ns, skipped_in_all=in_all)
        first = PageScan(self._pages.port, file, header, next_seq=expected)
        is_last = self._pages.numbers()[-1:] == [header.number]
        if not is_last and self._evidence.proof().ordered:
            return None  # an older copy
        return header if not is_last or first.read(HEAD_BYTES) is not None else None

    # ---- moving -----------------------------------------------------------------------------------------------------

    def read_window(self, window_bytes: int = WINDOW_BYTES) -> Window | None:
        """The next verified frames, or None if there are none now. Raises: what ``report`` raises; the next call
        reports the same loss again.
        """
        progress = (0, 0)
        while True:
            scan = self.scan
            if scan is None:
                if self.start_at(self._pages.numbers()):
                    continue
                proof = self._evidence.proof()
                after = self.after = self._after(0, proof.first_seq, proof)
                # A page that was begun or prepared since that listing can be entered, or was looked at already. Until
                # no page is new, what the proof covers may be in one.
                place = (0 if after.header is None else after.header.number, after.prepared)
                if place not in ((0, 0), progress):
                    progress = place
                    continue
                if self._end(proof, None):
                    continue
                return None
            window = scan.read(window_bytes)
            if window is not None:
                return window
            if not self._move_on(scan):
                # The writer may have rolled since the failed read.
                return scan.read(window_bytes)

    def _move_on(self, scan: PageScan) -> bool:
        """Decide where the frames stop. True if reading may continue."""
        here = scan.here()
        proof = self._evidence.proof()  # before the listing: what it names has a file, or had one
        after = self.after = self._after(scan.header.number, scan.next_seq, proof)
        if here is Here.SEAL and after.prepared == scan.header.number + 1 and after.header is None:
            if self._enter(after.prepared, self.next_seq):
                return True
        is_old = after.header is not None and scan.header.number < after.header.number - UNSYNCED_PAGES_MAX
        owed = Owed.YES if is_old else proof.owed(scan.next_seq)
        while True:
            step = decide(here, after.following, owed, lost=bool(after.lost) or after.absent)
            # The writer is past this position, so a second read distinguishes damage from a frame being written.
            if step in (Step.RESYNC, Step.NEXT_PAGE_AFTER_GAP) and self._verifies_now(scan, here):
                return True
            if step is not Step.RESYNC:
                break
            if self._resync(scan, owed, proof, here):
                return True
            here = Here.EXHAUSTED
        if step is Step.END or after.header is None:
            self.is_sealed = here is Here.SEAL
            size = 0 if self.is_sealed else self._pages.port.size(self._file)
            if 0 < size < scan.header.page_bytes:
                if self._verifies_now(scan, here):
                    return True  # an opening has just closed it
                # Only a page with a SEAL is ever cut. What this one held after its end is lost.
                after.lost.insert(0, LostPage(scan.header.number, size, scan.header.page_bytes))
            return self._end(proof, scan)
        self._leave(scan, after.header)
        return True

    def _after(self, number: int, expected: int, proof: Proof) -> After:
        """What follows page ``number``. Cost: mostly one header; a listing at the end of the log, the first time."""
        after = After()
        header = cached_header(self._pages, number + 1, self._headers)
        if header is not None and not header.prepared:
            after.header, after.following = header, following_of(header, expected)
            return after
        if header is not None and self.after.is_end_before(number + 1):
            return self.after  # pages are begun in order: while this one is not, no later one is
        names, before = self._pages.names, number
        pages: list[int] = []
        indexes: set[int] = set()  # each was made after its page
        for name in self._pages.files():
            if (page := names.page_number(name)) is not None:
                pages.append(page)
            elif (index := names.index_number(name)) is not None:
                indexes.add(index)
        for page in sorted(page for page in pages if page > number):
            if page > max(before, proof.page) + FOREIGN_PAGES:
                break
            after.skip_to(page, before, proof.covered_page)
            before = page
            header = cached_header(self._pages, page, self._headers)
            if header is None:
                lost = self._lost_page(page, indexed=page in indexes)
                is_first = not (number or after.lost or after.unused)
                if lost.is_unused(proof, is_first=is_first):
                    after.unused.append(page)
                else:
                    after.lost.append(lost)
            elif header.prepared:
                after.prepared = after.prepared or page
                after.following = Following.PREPARED
            else:
                after.header, after.following = header, following_of(header, expected)
                # Without a restart a prepared page before a begun one is an older copy of itself.
                after.absent |= proof.ordered and after.prepared > 0
                return after
        near = max(before, proof.page) + FOREIGN_PAGES
        named = max(proof.page, max((index for index in indexes if index <= near), default=0))
        after.skip_to(named + 1, before, proof.covered_page)
        after.last_page = named
        return after

    def _lost_page(self, number: int, *, indexed: bool) -> LostPage:
        lost = self._lost.get(number)
        if lost is None:
            port = self._pages.port
            with open_page(self._pages, number) as file:
                size, end = (0, 0) if file is None else (port.size(file), content_end(port, file))
            lost = self._lost[number] = LostPage(number, size, end, indexed=indexed)
        return lost

    def _verifies_now(self, scan: PageScan, here: Here, state: tuple[int, int, int] | None = None) -> bool:
        """Whether by now something follows where nothing did."""
        position, seq, last_time_ns = scan.state if state is None else state
        again = PageScan(
            self._pages.port, self._file, scan.header, next_seq=seq, position=position, last_time_ns=last_time_ns
        )
        return again.read() is not None or (again.seal is not None and here is not Here.SEAL)

    def _resync(self, scan: PageScan, owed: Owed, proof: Proof, here: Here) -> bool:
        """Move to the next frame in this page; False if there is none."""
        first, state, header = self.next_seq, scan.state, self.after.header
        ends = (proof.owed_seq, 0 if header is None else header.after_seq)
        search_bytes = PAGE_BYTES_MAX
        if owed is not Owed.YES and header is None:
            # In a page that another process may be writing, bytes that do not verify are mostly not written yet. In
            # one that is not, there may be frames up to the next record of the position.
            search_bytes = UNRECORDED_BYTES_MAX if self.is_sole and not proof.complete else 0
        if not scan.resync(ends, search_bytes=search_bytes, below=self._resync_below(proof)):
            return False
        if self._verifies_now(scan, here, state):
            # The proof is a lower bound: the writer may have written this since the last read.
            scan.state = state
        elif scan.next_seq > first:
            number, position = scan.header.number, state[0]
            try:
                self._report(
                    Loss(first, scan.next_seq - 1, number, reason="damage", position=position, end=scan.position)
                )
            except BaseException:
                scan.state = state
                raise
        return True

    def _resync_below(self, proof: Proof) -> int:
        """No frame with this number or a later one is behind damage in this page.

        The next page has its own numbers. After a restart of the machine a frame behind *owed* proves nothing: an
        opening does not look for it, and gives its number out again.
        """
        header = self.after.header
        if header is not None and header.after_seq > self.next_seq:
            return header.after_seq
        return ANY_NUMBER if header is not None or proof.ordered else proof.owed_seq + 1

    def _leave(self, scan: PageScan, header: PageHeader) -> None:
        """Report what is missing before the next begun page, and enter it."""
        first, number = self.next_seq, scan.header.number
        if first < header.base_seq:
            proof = self._evidence.proof()  # again: retention may have removed pages since
            if number < proof.first_page and first < proof.first_seq:
                removed_end = min(proof.first_seq, header.base_seq)
                self._report(Loss(first, removed_end - 1, number, reason="removed"))
                first = removed_end
            self._report_gap(first, header.after_seq, header.base_seq, number, scan.position)
        if not self._enter(header.number, None):
            # It is gone or damaged; the next read decides again.
            self._headers.pop(header.number, None)

    def _report_gap(self, first: int, owed_end: int, next_seq: int, number: int, position: int) -> None:
        if first < owed_end:
            page = number
            if self.after.lost or self.after.absent:
                page, position = (self.after.lost[0].number if self.after.lost else number + 1), 0
            self._report(Loss(first, owed_end - 1, page, reason="damage", position=position))
        if max(first, owed_end) < next_seq:
            self._report(Loss(max(first, owed_end), next_seq - 1, number, reason="crash"))

    def _end(self, proof: Proof, scan: PageScan | None) -> bool:
        """Report what is missing at the end of the log. True if reading may continue after all.

        A reported message stays skipped, so reading never goes back.
        """
        if not self._used_seq:
            # Evidence first, then the pages: what a consumer has seen by now may have been written since the last look.
            self._used_seq = self._evidence.used_seq()
            return True
        after, stopped = self.after, proof.first_seq if scan is None else scan.next_seq
        self.owed_end, next_seq = end_of(stopped, proof, self._used_seq, after.lost, after.uncovered)
        expected = self.next_seq
        if next_seq <= expected:
            return False
        number, position = (0, 0) if scan is None else (scan.header.number, scan.position)
        self._report_gap(expected, self.owed_end, next_seq, number, position)
        self._reported_seq = next_seq
        return False

    def close(self) -> None:
        """Close the files. Start before reading again."""
        if self.scan is not None:
            self.scan = None
            self._pages.port.close(self._file)
            if self._index is not None:
                self._index.close()
                self._index = None
