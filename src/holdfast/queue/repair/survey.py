"""Reads a whole queue and reports what is in each page, what is damaged and which messages are lost.

It walks as every reader does (``log.walk``), so it judges as readers do. It takes no lock and may run next to a writer;
messages that are appended meanwhile may be counted. Messages that were never durable and did not survive a crash are
not damage.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.queue.evidence import FileEvidence
from holdfast.queue.files.index import PageIndex
from holdfast.queue.files.pages import PageDirectory, open_page, read_file
from holdfast.queue.format.checksum import checksum_for_reading
from holdfast.queue.format.frame import HEAD_BYTES, SEAL_BODY
from holdfast.queue.format.page import RECORD, RECORD_BYTES, PageHeader
from holdfast.queue.log.judgement import PAGE_MESSAGES_MAX, Here
from holdfast.queue.log.page_scan import PageScan, Window, content_end
from holdfast.queue.log.walk import LogWalk, Loss
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
        return any(one.first <= self.first and self.last <= one.last for one in known)


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
    last_time_ns: int = 0
    sealed: bool = False
    seal_position: int = 0
    seal_frames: int = 0
    seal_index_check: int = 0
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
    loses no message. ``never_durable`` are ranges of numbers that were used before a power failure took their messages,
    which is no damage. ``unreadable_pages``, ``restorable_pages``, ``pages_outside`` and ``tail_bytes`` are as in
    ``QueueSurvey``.
    """

    path: str
    messages: int
    bytes: int
    pages: int
    gaps: tuple[LostMessages, ...]
    indexes: tuple[tuple[int, str], ...]
    never_durable: tuple[tuple[int, int], ...]
    unreadable_pages: tuple[int, ...]
    restorable_pages: tuple[int, ...]
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
        never_durable=tuple(survey.never_durable),
        unreadable_pages=tuple(survey.unreadable),
        restorable_pages=tuple(survey.restorable),
        pages_outside=tuple(survey.outside),
        tail_bytes=survey.tail_bytes,
    )


class QueueSurvey:
    """The result of a walk over all pages, oldest first, that checks every frame. Cost: one reading of all pages.

    ``pages`` are those with messages; ``unreadable`` are pages whose header does not verify, ``restorable`` those whose
    damaged header follows by rule. ``outside`` are begun pages after the end of the log, whose messages were never
    durable; ``tail_bytes`` after the end do not verify: a write that a crash cut off.
    """

    def __init__(self, files: PageDirectory, on_progress: OnProgress | None) -> None:
        self._files = files
        self._on_progress = on_progress
        self.pages: list[PageSurvey] = []
        self.gaps: list[LostMessages] = []
        self.never_durable: list[tuple[int, int]] = []
        self.tail_bytes = 0
        evidence = FileEvidence(files)
        self._proof = evidence.proof()
        self._numbers = files.numbers()
        headers = {number: files.header_of(number) for number in self._numbers}
        self.restorable = [number for number, header in headers.items() if header is not None and header.restored]
        sizes = {number: self._size(number) for number in self._numbers}
        self.bytes = sum(sizes.values())
        self._read_bytes = 0
        self._in_page_gaps: set[int] = set()
        walk = LogWalk(files, evidence, self._note_loss)
        try:
            end = self._walk(walk)
        finally:
            walk.close()
        there = files.numbers()  # what retention has removed meanwhile is not damaged
        self.unreadable = [
            number
            for number in there
            if headers.get(number) is None and files.header_of(number) is None and number not in walk.after.unused
        ]
        self.outside = [
            number
            for number, header in headers.items()
            if end and number > end and number in there and header is not None and not header.prepared
        ]

    @property
    def messages(self) -> int:
        """Messages that can be read."""
        return sum(page.messages for page in self.pages)

    @property
    def doubtful_indexes(self) -> list[PageSurvey]:
        """Pages whose index is absent or damaged. No message is lost by it: a repair builds the index again."""
        return [page for page in self.pages if page.index != WHOLE]

    def _size(self, number: int) -> int:
        try:
            return self._files.port.size_of(self._files.directory, self._files.names.page(number))
        except FileNotFoundError:
            return 0

    def _walk(self, walk: LogWalk) -> int:
        """Read everything. Returns the last page of the log, 0 without one."""
        page: PageSurvey | None = None
        scan: PageScan | None = None
        while (window := walk.read_window()) is not None:
            if walk.scan is not scan or page is None:
                self._finish(page, scan)
                scan = walk.scan
                assert scan is not None, "a window is from a page"
                page = self._begin(scan.header)
            self._note_frames(page, window)
            if self._on_progress is not None and scan is not None:
                self._on_progress((self._read_bytes + scan.position) >> 20, self.bytes >> 20)
        self._finish(page, scan)
        last = walk.scan
        if last is None:
            return 0
        if walk.next_seq == last.next_seq and last.here() is Here.INVALID:
            self.tail_bytes = max(0, self._content_end(last.header.number, last.position) - last.position)
        return last.header.number

    def _begin(self, header: PageHeader) -> PageSurvey:
        page = PageSurvey(header.number, header, self._size(header.number))
        data = read_file(self._files, self._files.names.index(header.number)) or b""
        page.index_file = list(RECORD.iter_unpack(data[: len(data) // RECORD_BYTES * RECORD_BYTES]))
        return page

    def _note_frames(self, page: PageSurvey, window: Window) -> None:
        records, at = page.index_file, page.index_matched
        for _, time_ns, count, _, start, _ in window.frames:
            position = window.offset + start - HEAD_BYTES
            page.records.note(time_ns, position, count)
            page.messages += count
            while at < len(records) and records[at][1] <= position:
                # After damage a record may name a frame that the walk skipped; other records must name a frame.
                damaged = page.number in self._in_page_gaps
                page.index_wrong |= records[at] != (time_ns, position) and not damaged
                at += 1
        page.index_matched = at
        page.frames += len(window.frames)

    def _finish(self, page: PageSurvey | None, scan: PageScan | None) -> None:
        if page is None or scan is None:
            return
        page.next_seq, page.last_time_ns = scan.next_seq, scan.last_time_ns
        if scan.seal is not None:
            page.sealed, page.seal_position = True, scan.position
            page.seal_frames, _, _, page.seal_index_check = SEAL_BODY.unpack(scan.seal)
        self._read_bytes += page.bytes
        self.pages.append(page)
        data = read_file(self._files, self._files.names.index(page.number))
        if page.sealed and page.seal_index_check and data is not None:
            page.index_wrong = checksum_for_reading(page.header.checksum_id)(data, 0) != page.seal_index_check
        if data is None and page.records.pending:
            page.index = ABSENT
        elif page.index_wrong:
            page.index = DAMAGED

    def _note_loss(self, loss: Loss) -> None:
        if loss.reason == "crash":
            self.never_durable.append((loss.first, loss.last))
        if loss.reason != "damage":
            return
        if loss.position:
            # Zeros at the end of a message belong to it, as far as the record says so.
            recorded = self._proof.position if loss.page == self._proof.page else 0
            end = loss.end or max(self._content_end(loss.page, loss.position), recorded)
            size, rule = end - loss.position, "no frame verifies"
            self._in_page_gaps.add(loss.page)
        else:
            size = self._size(loss.page)
            rule = "the page is absent"
            if size:
                header = self._files.header_of(loss.page)
                rule = "the header of the page is damaged" if header is None else "the page is cut"
        if loss.last - loss.first >= PAGE_MESSAGES_MAX - 1:
            rule += "; how many messages it held is not known, at most these"
        self.gaps.append(LostMessages(loss.page, loss.position, size, loss.first, loss.last, rule))

    def _content_end(self, number: int, position: int) -> int:
        with open_page(self._files, number) as file:
            return position if file is None else content_end(self._files.port, file, position)
