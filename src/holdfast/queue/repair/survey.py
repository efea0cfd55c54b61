"""Reading a whole queue and saying what is in each page, what is damaged, and what that cost.

Owns: the walk over all pages, gaps by page, position and sequence numbers, whether indexes and SEALs are what they
should be. Does not own: what a frame is (``queue.page_scan``), looking behind damage (``queue_search``), mending
(``queue_repair``).

Failure model: reads only, and may run beside a writer: what is appended meanwhile may or may not be counted. Messages
that were never durable and did not survive a crash are not damage: the log ends before them. What the writer's mark
says was there and does not verify is a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from holdfast.queue.files.index import PageIndex
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.checksum import checksum_for_reading
from holdfast.queue.format.frame import HEAD_BYTES, seal_fields
from holdfast.queue.format.page import HEADER_BYTES, RECORD, RECORD_BYTES, PageHeader
from holdfast.queue.log.page_scan import PageScan
from holdfast.queue.log.reader import read_write_position
from holdfast.queue.log.recovery import Here
from holdfast.queue.repair.search import FrameSearch

__all__ = ["GapFound", "PageFound", "QueueSurvey", "survey_queue"]

WHOLE: Final = "whole"
ABSENT: Final = "absent"
DAMAGED: Final = "damaged"


@dataclass(frozen=True, slots=True)
class GapFound:
    """Messages ``first`` to ``last`` cannot be read: ``bytes`` of page ``page`` from ``position`` on are damaged.

    A page that is absent or has no readable header is lost from position 0; an absent one has 0 bytes.
    """

    page: int
    position: int
    bytes: int
    first: int
    last: int
    rule: str

    @property
    def messages(self) -> int:
        """How many messages are lost."""
        return self.last - self.first + 1


@dataclass(slots=True)
class PageFound:
    """One page: its messages, where its frames end, and the state of what is derived from them.

    ``index`` is "whole", "absent" or "damaged"; ``records`` is the index as it would be made anew, ``index_file`` what
    the file holds, of which ``index_matched`` records were compared.
    """

    number: int
    header: PageHeader
    bytes: int
    messages: int = 0
    frames: int = 0
    next_seq: int = 0
    end: int = HEADER_BYTES
    last_time_ns: int = 0
    sealed: bool = False
    seal_position: int = 0
    seal_frames: int = 0
    seal_index_check: int = 0
    gaps: int = 0
    index: str = WHOLE
    records: PageIndex = field(default_factory=PageIndex)
    index_file: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    index_matched: int = 0
    index_wrong: bool = False


@dataclass(slots=True)
class QueueSurvey:
    """What a walk over all pages found, oldest page first.

    ``unreadable`` are pages whose header does not verify, ``outside`` begun pages behind the end of the log, whose
    messages were never durable; ``tail_bytes`` lie behind the end and do not verify: a write that a crash cut off.
    """

    pages: list[PageFound] = field(default_factory=list[PageFound])
    gaps: list[GapFound] = field(default_factory=list[GapFound])
    unreadable: list[int] = field(default_factory=list[int])
    outside: list[int] = field(default_factory=list[int])
    tail_bytes: int = 0
    bytes: int = 0

    @property
    def messages(self) -> int:
        """Messages that can be read."""
        return sum(page.messages for page in self.pages)

    @property
    def lost(self) -> int:
        """Messages that were there and cannot be read."""
        return sum(gap.messages for gap in self.gaps)

    @property
    def doubtful_indexes(self) -> list[PageFound]:
        """Pages whose index is not what it should be. Nothing is lost by it, as an index can be made anew."""
        return [page for page in self.pages if page.index != WHOLE]


def written_end(pages: PageDirectory) -> tuple[int, int, int]:
    """How far the log goes by the writer's own word: sequence number, page and position of what would come next.

    Zeros where the writer left no word.
    """
    mark = read_write_position(pages)
    if mark is None:
        return 0, 0, 0
    boot_id = pages.port.boot_id()
    same_run = any(boot_id) and mark.boot_id == boot_id
    place = mark if mark.clean or same_run else mark.durable
    return place.next_seq, place.page, place.position


def survey_queue(pages: PageDirectory, moved: Callable[[int, int | None], None]) -> QueueSurvey:
    """Read every page and check every frame. ``moved`` is told MiB read and MiB in all.

    Cost: one reading of all pages.
    """
    return _Survey(pages, moved).run()


class _Survey:
    def __init__(self, pages: PageDirectory, moved: Callable[[int, int | None], None]) -> None:
        self._pages = pages
        self._moved = moved
        self._found = QueueSurvey()
        self._owed, self._owed_page, self._owed_position = written_end(pages)
        self._numbers = pages.numbers()
        self._expected: int | None = None
        self._last_time_ns = 0
        self._read_bytes = 0
        self._has_removed = False
        self._ahead = {number for number in self._numbers if self._is_ahead(number)}

    def run(self) -> QueueSurvey:
        found, pages = self._found, self._pages
        sizes = {number: size for number in self._numbers if (size := self._size(number)) is not None}
        found.bytes = sum(sizes.values())
        before = 0
        for place, number in enumerate(self._numbers):
            header = pages.header_of(number)
            if number not in sizes or (header is None and number not in pages.numbers()):
                self._went(number)
                continue
            if header is None:
                found.unreadable.append(number)
                continue
            header = self._begun(number, header)
            if header is None:
                continue  # made ahead, not used yet
            if not self._joins(header, before, number):
                found.outside += [later for later in self._numbers[place:] if self._is_begun(later)]
                break
            self._walk_page(number, header, sizes[number])
            before = found.pages[-1].number if found.pages else 0  # this one, unless it went
        else:
            self._check_end(before)
        return found

    def _went(self, number: int) -> None:
        """A page is not there any more. Where retention has removed it, and all before it, the next one begins anew."""
        if number in self._ahead or any(left < number for left in self._pages.numbers()):
            # A starting writer removes what was made ahead; retention takes the oldest first, so it did not take this.
            return
        self._has_removed = True
        self._expected = None
        self._found.unreadable.clear()

    def _size(self, number: int) -> int | None:
        try:
            return self._pages.port.size_of(self._pages.directory, self._pages.names.page(number))
        except FileNotFoundError:
            return None

    def _is_begun(self, number: int) -> bool:
        header = self._pages.header_of(number)
        return header is not None and not header.prepared

    def _is_ahead(self, number: int) -> bool:
        header = self._pages.header_of(number)
        return header is not None and header.prepared

    def _begun(self, number: int, header: PageHeader) -> PageHeader | None:
        """The header with its base, also where its second writing was lost while frames were not."""
        if not header.prepared:
            return header
        started = header.started(self._expected or 1, self._last_time_ns)
        file = self._pages.open(number)
        if file is None:
            return None
        try:
            scan = PageScan(self._pages.port, file, started, next_seq=started.base_seq)
            return started if scan.read() is not None else None
        finally:
            self._pages.port.close(file)

    def _joins(self, header: PageHeader, before: int, number: int) -> bool:
        """Whether this page belongs to the log; notes what is missing between it and the page before."""
        found, expected = self._found, self._expected
        if expected is None:
            self._expected = header.base_seq
            if found.unreadable and header.base_seq > 1:
                # How far the first page went back nobody knows, unless it is page 1.
                first = 1 if self._numbers[0] == 1 else header.base_seq
                self._lost_pages(first, header.base_seq - 1, before, number)
            return True
        if header.base_seq == expected:
            return True
        if header.base_seq < expected or expected >= self._owed:
            return False
        self._lost_pages(expected, header.base_seq - 1, before, number)
        self._expected = header.base_seq
        return True

    def _lost_pages(self, first: int, last: int, before: int, number: int | None) -> None:
        """Messages that were in pages which are absent or not readable."""
        if last < first:
            return
        readable = {page.number for page in self._found.pages}
        between = [page for page in self._found.unreadable if page > before]
        page = between[0] if between else (before + 1 if number is None or before + 1 < number else before)
        if page in readable:
            self._found.gaps.append(
                GapFound(page, self._found.pages[-1].end, 0, first, last, "the page ends too early")
            )
        elif between:
            size = sum(self._size(lost) or 0 for lost in between)
            self._found.gaps.append(GapFound(page, 0, size, first, last, "the header of the page is damaged"))
        else:
            self._found.gaps.append(GapFound(page, 0, 0, first, last, "the page is absent"))

    def _check_end(self, before: int) -> None:
        """What the writer's mark says was there behind the last page."""
        if self._expected is None and self._has_removed and not self._found.unreadable:
            return  # the log goes on in pages that are newer than the walk
        expected = self._expected if self._expected is not None else 1
        if self._owed > expected:
            self._lost_pages(expected, self._owed - 1, before, None)

    # ---- one page ---------------------------------------------------------------------------------------------------

    def _walk_page(self, number: int, header: PageHeader, size: int) -> None:
        file = self._pages.open(number)
        if file is None:
            self._went(number)
            return
        page = PageFound(number, header, size, next_seq=header.base_seq, last_time_ns=self._last_time_ns)
        try:
            scan = PageScan(self._pages.port, file, header, next_seq=header.base_seq, last_time_ns=self._last_time_ns)
            search = FrameSearch(self._pages.port, file, header)
            page.index_file = self._index_records(number)
            self._walk_frames(page, scan)
            while (here := scan.here()) is not Here.SEAL:
                if self._walk_frames(page, scan):
                    continue  # the writer was faster than the walk: this was its end a moment ago
                following = self._following_base(number)
                if following == scan.next_seq or self._owed <= scan.next_seq:
                    break
                gap, resumed = self._step_over(page, scan, search, file, following)
                self._found.gaps.append(gap)
                page.gaps += 1
                if resumed is None:
                    self._leave(page, scan)
                    self._expected = gap.last + 1
                    return
                scan = resumed
                self._walk_frames(page, scan)
            if here is Here.INVALID and self._following_base(number) is None:
                self._found.tail_bytes = search.content_end(scan.position) - scan.position
            self._leave(page, scan)
        finally:
            self._pages.port.close(file)

    def _walk_frames(self, page: PageFound, scan: PageScan) -> bool:
        """Count frames up to where they stop. Whether there was any."""
        before = page.frames
        records, at = page.index_file, page.index_matched
        while (window := scan.read()) is not None:
            for _, time_ns, count, _, start, _ in window.frames:
                position = window.offset + start - HEAD_BYTES
                page.records.note(time_ns, position, count)
                while at < len(records) and records[at][1] <= position:
                    # A record about bytes that are damaged is true all the same; others must name a frame.
                    page.index_wrong |= records[at] != (time_ns, position) and not page.gaps
                    at += 1
            page.index_matched = at
            page.frames += len(window.frames)
            page.messages += scan.next_seq - window.frames[0][0]
            self._moved((self._read_bytes + scan.position) >> 20, self._found.bytes >> 20)
        return page.frames > before

    def _leave(self, page: PageFound, scan: PageScan) -> None:
        """Note where the page ends, and judge its index."""
        page.next_seq, page.end, page.last_time_ns = scan.next_seq, scan.position, scan.last_time_ns
        if scan.seal is not None:
            page.sealed, page.seal_position = True, scan.position
            page.seal_frames, _, _, page.seal_index_check = seal_fields(scan.seal)
        self._expected, self._last_time_ns = scan.next_seq, scan.last_time_ns
        self._read_bytes += page.bytes
        self._found.pages.append(page)
        name = self._pages.names.index(page.number)
        data = self._file_bytes(name)
        if page.sealed and page.seal_index_check and data is not None:
            page.index_wrong = checksum_for_reading(page.header.checksum_id)(data, 0) != page.seal_index_check
        if data is None and page.records.pending:
            page.index = ABSENT
        elif page.index_wrong:
            page.index = DAMAGED

    def _index_records(self, number: int) -> list[tuple[int, int]]:
        data = self._file_bytes(self._pages.names.index(number)) or b""
        return list(RECORD.iter_unpack(data[: len(data) // RECORD_BYTES * RECORD_BYTES]))

    def _file_bytes(self, name: str) -> bytes | None:
        port = self._pages.port
        try:
            file = port.open(self._pages.directory, name, write=False)
        except FileNotFoundError:
            return None
        try:
            return port.read(file, 0, port.size(file))
        finally:
            port.close(file)

    def _step_over(
        self, page: PageFound, scan: PageScan, search: FrameSearch, file: int, following: int | None
    ) -> tuple[GapFound, PageScan | None]:
        """The gap at which the scan stands, and a scan behind it where the page goes on."""
        position, first = scan.position, scan.next_seq
        below = following if following is not None and following > first else self._owed
        found = search.next_frame(position, expected=first, last_time_ns=scan.last_time_ns, below=below)
        if found is None:
            end = search.content_end(position)
            if page.number == self._owed_page:
                end = max(end, self._owed_position)  # zeros at the end of a message are a part of it
            return GapFound(page.number, position, end - position, first, below - 1, "no frame verifies"), None
        again, seq = found
        resumed = PageScan(
            self._pages.port, file, scan.header, next_seq=seq, position=again, last_time_ns=scan.last_time_ns
        )
        return GapFound(page.number, position, again - position, first, seq - 1, "no frame verifies"), resumed

    def _following_base(self, number: int) -> int | None:
        """The base of the next page that was begun and is readable."""
        for later in self._numbers:
            if later > number:
                header = self._pages.header_of(later)
                if header is not None and not header.prepared:
                    return header.base_seq
        return None
