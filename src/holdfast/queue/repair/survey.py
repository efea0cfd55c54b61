"""Reads a whole queue and reports what is in each page, what is damaged and which messages are lost.

It takes no lock, so it may run next to a writer; messages that are appended meanwhile may be counted. Messages that
were never durable and did not survive a crash are not damage. Messages that exist by the recorded write position but do
not verify are a gap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.queue.files.index import PageIndex
from holdfast.queue.files.pages import PageDirectory, open_page, read_file
from holdfast.queue.files.port import FilePort
from holdfast.queue.format.checksum import checksum_for_reading
from holdfast.queue.format.frame import HEAD, HEAD_BYTES, SEQ_MASK, implied_seq, page_seed, seal_fields
from holdfast.queue.format.page import HEADER_BYTES, RECORD, RECORD_BYTES, PageHeader
from holdfast.queue.log.page_scan import PageScan
from holdfast.queue.log.reader import read_write_position
from holdfast.queue.log.recovery import Here
from holdfast.queue.repair.files import open_files

OnProgress = Callable[[int, int | None], None]
"""Called with MiB read and MiB in total."""
WHOLE: Final = "whole"
ABSENT: Final = "absent"
DAMAGED: Final = "damaged"


@dataclass(frozen=True, slots=True)
class LostMessages:
    """Messages ``first`` to ``last`` cannot be read: ``bytes`` bytes of page ``page`` are damaged from ``position`` on;
    0 bytes if the page is absent. ``known`` says that a repair has already listed the gap.
    """

    page: int
    position: int
    bytes: int
    first: int
    last: int
    rule: str
    known: bool = False

    @property
    def messages(self) -> int:
        """The number of lost messages."""
        return self.last - self.first + 1

    def is_listed(self, known: list[KnownGap]) -> bool:
        """Whether a repair has listed these messages."""
        return any(one.page == self.page and one.first <= self.first and self.last <= one.last for one in known)


@dataclass(slots=True)
class PageSurvey:
    """One page. ``index`` is "whole", "absent" or "damaged"; ``records`` is the index as a repair would write it,
    ``index_file`` is the content of the file, of which ``index_matched`` records were compared.
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


@dataclass(frozen=True, slots=True)
class KnownGap:
    """A gap that a repair has handled. ``file`` holds its damaged bytes; it is empty if there were none."""

    page: int
    position: int
    bytes: int
    first: int
    last: int
    file: str
    time_ms: int


def damage_list_name(pages: PageDirectory) -> str:
    """The file that lists every ``KnownGap`` as a line of JSON."""
    return f"{pages.names.prefix}-damage.jsonl"


def known_gaps(pages: PageDirectory) -> list[KnownGap]:
    """Every gap that a repair has handled. Torn and foreign lines do not count."""
    gaps: list[KnownGap] = []
    for line in (read_file(pages, damage_list_name(pages)) or b"").splitlines():
        try:
            gaps.append(KnownGap(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return gaps


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """The result of ``verify_queue``. The queue is ``ok`` if every gap is known from a repair.

    ``messages`` can be read. ``indexes`` are pairs of a page and the state of its index, "absent" or "damaged", which
    loses no message. ``unreadable_pages``, ``pages_outside`` and ``tail_bytes`` are as in ``QueueSurvey``.
    """

    path: str
    messages: int
    bytes: int
    pages: int
    gaps: tuple[LostMessages, ...]
    indexes: tuple[tuple[int, str], ...]
    unreadable_pages: tuple[int, ...]
    pages_outside: tuple[int, ...]
    tail_bytes: int

    @property
    def lost(self) -> int:
        """Messages that existed and cannot be read."""
        return sum(gap.messages for gap in self.gaps)

    @property
    def new_gaps(self) -> tuple[LostMessages, ...]:
        """Gaps that no repair has handled."""
        return tuple(gap for gap in self.gaps if not gap.known)

    @property
    def ok(self) -> bool:
        """Whether no message is lost, except those that a repair has listed."""
        return not self.new_gaps


def verify_queue(path: str, on_progress: OnProgress | None = None) -> QueueCheck:
    """Read every page of the queue at ``path`` and check every message. Never raises for damage: see ``QueueCheck``.

    Raises: ``NotFound``; ``InvalidRequest``, ``PermissionDenied`` or ``Unavailable`` from the file system.
    Cost: one reading of all pages. Takes no lock and may run next to a writer.
    """
    with open_files(path) as pages:
        survey = QueueSurvey(pages, on_progress)
        known = known_gaps(pages)
    return QueueCheck(
        path=path,
        messages=survey.messages,
        bytes=survey.bytes,
        pages=len(survey.pages),
        gaps=tuple(replace(gap, known=gap.is_listed(known)) for gap in survey.gaps),
        indexes=tuple((page.number, page.index) for page in survey.doubtful_indexes),
        unreadable_pages=tuple(survey.unreadable),
        pages_outside=tuple(survey.outside),
        tail_bytes=survey.tail_bytes,
    )


def _written_end(pages: PageDirectory) -> tuple[int, int, int]:
    """The end of the log by the recorded write position: next sequence number, page and position; zeros without one."""
    written = read_write_position(pages)
    if written is None:
        return 0, 0, 0
    end = written if written.is_true(pages.port.boot_id()) else written.durable
    return end.next_seq, end.page, end.position


class QueueSurvey:
    """The result of a walk over all pages, oldest first, that checks every frame. Cost: one reading of all pages.

    ``unreadable`` are pages whose header does not verify; ``outside`` are begun pages after the end of the log, whose
    messages were never durable; ``tail_bytes`` after the end do not verify: a write that a crash cut off. Messages
    below ``_expected_end`` exist by the recorded write position.
    """

    def __init__(self, files: PageDirectory, on_progress: OnProgress | None) -> None:
        self._files = files
        self._on_progress = on_progress
        self.pages: list[PageSurvey] = []
        self.gaps: list[LostMessages] = []
        self.unreadable: list[int] = []
        self.outside: list[int] = []
        self.tail_bytes = 0
        self.bytes = 0
        self._expected_end, self._expected_page, self._expected_position = _written_end(files)
        self._numbers = files.numbers()
        self._next_seq: int | None = None
        self._last_time_ns = 0
        self._read_bytes = 0
        self._has_removed = False
        headers = {number: files.header_of(number) for number in self._numbers}
        self._prepared = {number for number, header in headers.items() if header is not None and header.prepared}
        self._walk()

    @property
    def messages(self) -> int:
        """Messages that can be read."""
        return sum(page.messages for page in self.pages)

    @property
    def doubtful_indexes(self) -> list[PageSurvey]:
        """Pages whose index is absent or damaged. No message is lost by it: a repair builds the index again."""
        return [page for page in self.pages if page.index != WHOLE]

    def _walk(self) -> None:
        files = self._files
        sizes = {number: size for number in self._numbers if (size := self._size(number)) is not None}
        self.bytes = sum(sizes.values())
        before = 0
        for index, number in enumerate(self._numbers):
            header = files.header_of(number)
            if number not in sizes or (header is None and number not in files.numbers()):
                self._note_removed(number)
                continue
            if header is None:
                self.unreadable.append(number)
                continue
            header = self._begun(number, header)
            if header is None:
                continue  # prepared, not used yet
            if not self._joins(header, before, number):
                self.outside += [
                    later
                    for later in self._numbers[index:]
                    if (header := files.header_of(later)) is not None and not header.prepared
                ]
                break
            self._walk_page(number, header, sizes[number])
            before = self.pages[-1].number if self.pages else 0  # this page, unless it was removed
        else:
            self._check_end(before)

    def _note_removed(self, number: int) -> None:
        """A page was removed during the walk. If retention took it, the walk starts again at the next page."""
        if number in self._prepared or any(left < number for left in self._files.numbers()):
            # A starting writer removes prepared pages, and retention removes the oldest first: this was not retention.
            return
        self._has_removed = True
        self._next_seq = None
        self.unreadable.clear()

    def _size(self, number: int) -> int | None:
        try:
            return self._files.port.size_of(self._files.directory, self._files.names.page(number))
        except FileNotFoundError:
            return None

    def _begun(self, number: int, header: PageHeader) -> PageHeader | None:
        """The header with its base, even if its second write was lost and its frames were not."""
        if not header.prepared:
            return header
        started = header.started(self._next_seq or 1, self._last_time_ns)
        with open_page(self._files, number) as file:
            if file is None:
                return None
            scan = PageScan(self._files.port, file, started, next_seq=started.base_seq)
            return started if scan.read() is not None else None

    def _joins(self, header: PageHeader, before: int, number: int) -> bool:
        """Whether this page belongs to the log; notes what is missing between it and the page before."""
        expected = self._next_seq
        if expected is None:
            self._next_seq = header.base_seq
            if self.unreadable and header.base_seq > 1:
                # The first message of the first page is unknown, unless it is page 1.
                first = 1 if self._numbers[0] == 1 else header.base_seq
                self._lost_pages(first, header.base_seq - 1, before, number)
            return True
        if header.base_seq == expected:
            return True
        if header.base_seq < expected or expected >= self._expected_end:
            return False
        self._lost_pages(expected, header.base_seq - 1, before, number)
        self._next_seq = header.base_seq
        return True

    def _lost_pages(self, first: int, last: int, before: int, number: int | None) -> None:
        if last < first:
            return
        readable = {page.number for page in self.pages}
        between = [page for page in self.unreadable if page > before]
        page = between[0] if between else (before + 1 if number is None or before + 1 < number else before)
        if page in readable:
            self.gaps.append(LostMessages(page, self.pages[-1].end, 0, first, last, "the page ends too early"))
        elif between:
            size = sum(self._size(lost) or 0 for lost in between)
            self.gaps.append(LostMessages(page, 0, size, first, last, "the header of the page is damaged"))
        else:
            self.gaps.append(LostMessages(page, 0, 0, first, last, "the page is absent"))

    def _check_end(self, before: int) -> None:
        """Note messages that should follow the last page by the recorded write position."""
        if self._next_seq is None and self._has_removed and not self.unreadable:
            return  # the log continues in pages that are newer than the walk
        expected = self._next_seq if self._next_seq is not None else 1
        if self._expected_end > expected:
            self._lost_pages(expected, self._expected_end - 1, before, None)

    def _walk_page(self, number: int, header: PageHeader, size: int) -> None:
        file = self._files.open(number)
        if file is None:
            self._note_removed(number)
            return
        page = PageSurvey(number, header, size, next_seq=header.base_seq, last_time_ns=self._last_time_ns)
        try:
            scan = PageScan(self._files.port, file, header, next_seq=header.base_seq, last_time_ns=self._last_time_ns)
            search = FrameSearch(self._files.port, file, header)
            data = read_file(self._files, self._files.names.index(number)) or b""
            page.index_file = list(RECORD.iter_unpack(data[: len(data) // RECORD_BYTES * RECORD_BYTES]))
            self._walk_frames(page, scan)
            while (here := scan.here()) is not Here.SEAL:
                if self._walk_frames(page, scan):
                    continue  # the writer has appended since the walk reached its end
                following = self._following_base(number)
                if following == scan.next_seq or self._expected_end <= scan.next_seq:
                    break
                gap, resumed = self._gap_at(page, scan, search, file, following)
                self.gaps.append(gap)
                page.gaps += 1
                if resumed is None:
                    self._finish_page(page, scan)
                    self._next_seq = gap.last + 1
                    return
                scan = resumed
                self._walk_frames(page, scan)
            if here is Here.INVALID and self._following_base(number) is None:
                self.tail_bytes = search.content_end(scan.position) - scan.position
            self._finish_page(page, scan)
        finally:
            self._files.port.close(file)

    def _walk_frames(self, page: PageSurvey, scan: PageScan) -> bool:
        """Count frames until the next one does not verify. Returns whether there was any."""
        before = page.frames
        records, at = page.index_file, page.index_matched
        while (window := scan.read()) is not None:
            for _, time_ns, count, _, start, _ in window.frames:
                position = window.offset + start - HEAD_BYTES
                page.records.note(time_ns, position, count)
                while at < len(records) and records[at][1] <= position:
                    # After damage a record may name a frame that the walk skipped; other records must name a frame.
                    page.index_wrong |= records[at] != (time_ns, position) and not page.gaps
                    at += 1
            page.index_matched = at
            page.frames += len(window.frames)
            page.messages += scan.next_seq - window.frames[0][0]
            if self._on_progress is not None:
                self._on_progress((self._read_bytes + scan.position) >> 20, self.bytes >> 20)
        return page.frames > before

    def _finish_page(self, page: PageSurvey, scan: PageScan) -> None:
        page.next_seq, page.end, page.last_time_ns = scan.next_seq, scan.position, scan.last_time_ns
        if scan.seal is not None:
            page.sealed, page.seal_position = True, scan.position
            page.seal_frames, _, _, page.seal_index_check = seal_fields(scan.seal)
        self._next_seq, self._last_time_ns = scan.next_seq, scan.last_time_ns
        self._read_bytes += page.bytes
        self.pages.append(page)
        name = self._files.names.index(page.number)
        data = read_file(self._files, name)
        if page.sealed and page.seal_index_check and data is not None:
            page.index_wrong = checksum_for_reading(page.header.checksum_id)(data, 0) != page.seal_index_check
        if data is None and page.records.pending:
            page.index = ABSENT
        elif page.index_wrong:
            page.index = DAMAGED

    def _gap_at(
        self, page: PageSurvey, scan: PageScan, search: FrameSearch, file: int, following: int | None
    ) -> tuple[LostMessages, PageScan | None]:
        """The gap at the position of the scan, and a scan after it if the page continues."""
        position, first = scan.position, scan.next_seq
        below = following if following is not None and following > first else self._expected_end
        following_frame = search.next_frame(position, expected=first, last_time_ns=scan.last_time_ns, below=below)
        if following_frame is None:
            end = search.content_end(position)
            if page.number == self._expected_page:
                end = max(end, self._expected_position)  # zeros at the end of a message belong to it
            return LostMessages(page.number, position, end - position, first, below - 1, "no frame verifies"), None
        again, seq = following_frame
        resumed = PageScan(
            self._files.port, file, scan.header, next_seq=seq, position=again, last_time_ns=scan.last_time_ns
        )
        return LostMessages(page.number, position, again - position, first, seq - 1, "no frame verifies"), resumed

    def _following_base(self, number: int) -> int | None:
        """The base sequence number of the next begun and readable page."""
        for later in self._numbers:
            if later > number:
                header = self._files.header_of(later)
                if header is not None and not header.prepared:
                    return header.base_seq
        return None


# ---- the next frame after damage -------------------------------------------------------------------------------------

CHUNK_BYTES: Final = 1 << 20
_HEAD: Final = re.compile(rb"(?=[\s\S]{16}(?!\0\0\0\0)[\s\S]{4}[\x00\x01]\0\0\0)")
"""A possible head: a message count above 0, no unknown flag, and the two bytes that are always zero."""


class FrameSearch:
    """Finds the next intact frame after damage, byte by byte, where the damaged frame's length and the index lead
    nowhere.

    A position counts if its head is possible, its checksum fits a possible sequence number, and the next frame or SEAL
    verifies or no bytes follow.
    """

    def __init__(self, port: FilePort, file: int, header: PageHeader) -> None:
        self._port = port
        self._file = file
        self._header = header
        self._checksum = checksum_for_reading(header.checksum_id)
        self._seed = page_seed(self._checksum, header.salt, header.number)
        self._end = min(header.page_bytes, port.size(file))

    def next_frame(self, after: int, *, expected: int, last_time_ns: int, below: int | None) -> tuple[int, int] | None:
        """The first intact frame after position ``after`` that can follow message ``expected - 1``, or None: its
        position and its sequence number, less than ``below`` if that is given. Cost: about 20 ms for each MiB in
        between.
        """
        for position in self._heads(after + HEAD_BYTES):
            seq = self._sequence_number(position, after, expected, last_time_ns)
            if seq is not None and (below is None or seq < below) and self._verifies(position, seq):
                return position, seq
        return None

    def content_end(self, position: int) -> int:
        """The end of the bytes after ``position`` that are not zero."""
        end = position
        for start in range(position, self._end, CHUNK_BYTES):
            kept = self._port.read(self._file, start, min(CHUNK_BYTES, self._end - start)).rstrip(b"\0")
            if kept:
                end = start + len(kept)
        return end

    def _heads(self, start: int) -> Iterator[int]:
        while start + HEAD_BYTES <= self._end:
            data = self._port.read(self._file, start, min(CHUNK_BYTES + HEAD_BYTES - 1, self._end - start))
            if data.count(0) == len(data):
                start += CHUNK_BYTES
                continue
            for match in _HEAD.finditer(data):
                if match.start() < CHUNK_BYTES:
                    yield start + match.start()
            start += CHUNK_BYTES

    def _sequence_number(self, position: int, after: int, expected: int, last_time_ns: int) -> int | None:
        """The only sequence number for which the frame at ``position`` can verify, or None."""
        head = HEAD.unpack(self._port.read(self._file, position, HEAD_BYTES))
        length, _, time_ns, _ = head
        if position + HEAD_BYTES + length > self._end or time_ns < last_time_ns:
            return None
        body = self._port.read(self._file, position + HEAD_BYTES, length)
        skipped = (implied_seq(self._checksum, self._seed, head, body) - expected) & SEQ_MASK
        # A message takes at least four bytes, which bounds the number of messages in between.
        return expected + skipped if 0 < skipped <= (position - after) // 4 else None

    def _verifies(self, position: int, seq: int) -> bool:
        scan = PageScan(self._port, self._file, self._header, next_seq=seq, position=position)
        if scan.read(HEAD_BYTES) is None:
            return False
        return scan.read(HEAD_BYTES) is not None or scan.here() is not Here.INVALID
