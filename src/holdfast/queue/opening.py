"""Where a log ends: from the files that are there to a place where writing goes on.

Owns: the walk to the end of the log. Does not own: the decisions on the way (``recovery``), the mending of what a crash
left (``mending``), the writing that follows (``writer``).

Failure model: reads only. Nothing that verifies and follows what verifies is ever left out.

Where the walk begins:

1. at the *written* mark, if the machine has not been restarted since: the page cache is whole, and what lies before the
   mark is there;
2. else at the *durable* mark;
3. else, with no mark or one about files that are gone, ``UNSYNCED_PAGES_MAX`` pages before the last that was begun:
   the writer never has more than that waiting for their sync. No crash takes both marks, so this is damage or a
   deletion, and what verifies behind a hole counts: see ``recovery``.

Where writing goes on: in the same page after a clean close, or when only the process was killed; in a new page
otherwise. Behind the end of a torn page there may be valid frames k+2, k+3 whose k+1 is lost. A new k+1 of the same
length would make them part of the log again, so this page is sealed and another, with another salt, is begun.
"""

from __future__ import annotations

from holdfast.queue.frame import HEAD_BYTES
from holdfast.queue.index_reader import IndexReader
from holdfast.queue.page_header import HEADER_BYTES, PageHeader
from holdfast.queue.page_index import PageIndex
from holdfast.queue.page_scan import PageScan
from holdfast.queue.recovery import Following, Here, Owed, Step, decide
from holdfast.queue.write_mark import WriteMark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.page_files import PageDirectory

__all__ = ["UNSYNCED_PAGES_MAX", "LogEnd", "find_end"]

UNSYNCED_PAGES_MAX = 8


class LogEnd:
    """Where a log ends.

    ``page`` is the last page that holds a part of it, or 0 where there is none. ``resume`` tells whether its bytes
    behind ``position`` are safe to write on; ``sealed`` that a SEAL stands there; ``doubtful`` the pages behind the
    end. ``expected_seq`` is the number that belongs to ``position``: below ``next_seq`` where the log ends with damage.
    """

    __slots__ = (
        "clean",
        "doubtful",
        "expected_seq",
        "frames",
        "gaps",
        "header",
        "index",
        "last_time_ns",
        "next_seq",
        "page",
        "position",
        "resume",
        "rewrite",
        "sealed",
        "unsynced",
    )

    def __init__(self) -> None:
        self.page = 0
        self.header: PageHeader | None = None
        self.position = HEADER_BYTES
        self.next_seq = 1
        self.expected_seq = 1
        self.last_time_ns = 0
        self.frames = 0
        self.index = PageIndex()
        self.clean = False
        self.resume = False
        self.rewrite = True
        self.sealed = False
        self.doubtful: list[int] = []
        self.gaps: list[tuple[int, int]] = []
        self.unsynced: list[int] = []


def find_end(pages: PageDirectory, mark: WriteMark | None, boot_id: bytes) -> LogEnd:
    """Walk to the end. Reads only.

    Cost: after a kill or a clean close, what was written since the last mark, at most about 1 MiB; after a restart of
    the machine, what was not synced; without marks, at most nine pages.
    """
    return _Walk(pages, mark, boot_id).run()


class _Walk:
    __slots__ = (
        "_blind",
        "_boot_id",
        "_end",
        "_first_unsynced",
        "_floor",
        "_headers",
        "_kept",
        "_mark",
        "_numbers",
        "_pages",
    )

    def __init__(self, pages: PageDirectory, mark: WriteMark | None, boot_id: bytes) -> None:
        self._pages = pages
        self._mark = mark
        self._boot_id = boot_id
        self._end = LogEnd()
        self._numbers = pages.known_numbers()
        self._headers: dict[int, PageHeader] = {}
        self._floor = 0  # sequence numbers below this are owed
        self._blind = mark is None  # and of those above, nobody knows: see `recovery`
        self._first_unsynced = 0
        self._kept: tuple[int, int] | None = None
        """Number and file of the page of the mark, open from its header to the walk, which begins there."""

    def run(self) -> LogEnd:
        """The end."""
        try:
            return self._run()
        finally:
            kept, self._kept = self._kept, None
            if kept is not None:
                self._pages.port.close(kept[1])

    def _run(self) -> LogEnd:
        end = self._end
        if not self._begin():
            if self._floor:
                end.gaps, end.next_seq = [(1, self._floor - 1)], self._floor
            end.doubtful = list(self._numbers)
            return end
        step = Step.NEXT_PAGE
        while step in (Step.NEXT_PAGE, Step.NEXT_PAGE_AFTER_GAP):
            step = self._walk_page()
            if step in (Step.NEXT_PAGE, Step.NEXT_PAGE_AFTER_GAP) and not self._enter_next(
                after_gap=step is not Step.NEXT_PAGE
            ):
                step = Step.END_AFTER_GAP if end.next_seq < self._floor else Step.END
        end.expected_seq = end.next_seq
        if step is Step.END_AFTER_GAP:
            end.gaps.append((end.next_seq, self._floor - 1))
            end.next_seq = self._floor
            end.resume = False
            end.sealed = True  # the damaged bytes are left as they are: the next page's base tells what is missing
        end.doubtful = [number for number in self._numbers if number > end.page]
        end.unsynced = [number for number in self._numbers if self._first_unsynced <= number < end.page]
        end.resume = end.resume and not any(self._begun(number) for number in end.doubtful)
        return end

    def _header(self, number: int) -> PageHeader | None:
        """The header of a page; kept once the page was begun, because it never changes again."""
        header = self._headers.get(number) or self._read_header(number)
        if header is not None and not header.prepared:
            self._headers[number] = header
        return header

    def _read_header(self, number: int) -> PageHeader | None:
        pages = self._pages
        if self._kept is not None or self._mark is None or number != self._mark.page:
            return pages.header_of(number)
        file = pages.open(number)
        if file is None:
            return None
        self._kept = number, file
        return pages.header(file, number)

    def _open(self, number: int) -> int | None:
        kept = self._kept
        if kept is None or kept[0] != number:
            return self._pages.open(number)
        self._kept = None
        return kept[1]

    def _begun_header(self, number: int) -> PageHeader | None:
        header = self._header(number)
        return None if header is None or header.prepared else header

    def _begun(self, number: int) -> bool:
        header = self._header(number)
        return header is None or not header.prepared

    def _begin(self) -> bool:
        """Set the end to the place where the walk begins; False where there is no page to begin in."""
        end, mark = self._end, self._mark
        # After a failed sync the page cache may hold what the disk never got, also that of an earlier start. Only a
        # restart of the machine empties it; what is read then comes from the disk.
        end.rewrite = mark is None or not any(mark.boot_id) or mark.boot_id == self._boot_id
        if mark is not None:
            end.clean = mark.clean
            durable = mark.durable
            if self._mark_holds(durable.page, durable.salt):
                self._floor, self._first_unsynced = durable.next_seq, durable.page
            else:
                # Retention may have removed that page since. No crash does: else this mark is of other files, or its
                # page is damaged.
                self._blind = bool(self._numbers) and durable.page >= self._numbers[0]
            same_run = mark.boot_id == self._boot_id and any(mark.boot_id)
            if (same_run or mark.clean) and self._mark_holds(mark.page, mark.salt):
                end.page, end.position, end.next_seq = mark.page, mark.position, mark.next_seq
                end.last_time_ns, end.frames, end.resume = mark.last_time_ns, mark.frames, True
                end.index = PageIndex(mark.index_records, mark.index_check, mark.index_due)
                self._floor = max(self._floor, mark.next_seq)
                if not self._first_unsynced:
                    self._first_unsynced = max(1, mark.page - UNSYNCED_PAGES_MAX)
            elif self._floor:
                end.page, end.position, end.next_seq = durable.page, durable.position, durable.next_seq
                end.last_time_ns = durable.last_time_ns
            if not end.page:
                # The page of the mark is there and cannot be read: what it held is owed, and its numbers stay used.
                self._floor = max(
                    self._floor,
                    durable.next_seq if self._is_unreadable(durable.page) else 0,
                    mark.next_seq if (same_run or mark.clean) and self._is_unreadable(mark.page) else 0,
                )
        if end.page:
            header = self._header(end.page)
            if header is not None and header.prepared:
                # Nothing in it was durable, not even the second writing of its header.
                header = header.started(end.next_seq, end.last_time_ns)
            end.header = header
            return True
        return self._begin_without_mark()

    def _is_unreadable(self, page: int) -> bool:
        return page in self._numbers and self._header(page) is None

    def _mark_holds(self, page: int, salt: int) -> bool:
        if page not in self._numbers:
            return False
        header = self._header(page)
        return header is not None and header.salt == salt

    def _begin_without_mark(self) -> bool:
        numbers, end = self._numbers, self._end
        begun = next((number for number in reversed(numbers) if self._begun_header(number) is not None), 0)
        # Of the pages that wait for their sync, even the headers may have gone back to *prepared*. The one before them
        # all is whole, or the first of all, whose base is known.
        early = [number for number in numbers if number < begun - UNSYNCED_PAGES_MAX]
        for number in [*early[-1:], *(number for number in numbers if number >= begun - UNSYNCED_PAGES_MAX)]:
            header = self._header(number)
            if header is None or (header.prepared and number != 1):
                continue
            if header.prepared:
                header = header.started(1, 0)
            break
        else:
            return False
        end.page, end.header, end.next_seq, end.last_time_ns = number, header, header.base_seq, header.base_time_ns
        self._floor, self._first_unsynced = max(self._floor, header.base_seq), number
        return True

    def _walk_page(self) -> Step:
        """Walk the page at the end to where it stops, and decide."""
        end, pages = self._end, self._pages
        assert end.header is not None, "a walk stands in a page with a header"
        file = self._open(end.page)
        if file is None:
            return Step.END
        index = IndexReader(pages, end.page, end.header.salt)
        try:
            scan = PageScan(
                pages.port,
                file,
                end.header,
                next_seq=end.next_seq,
                position=end.position,
                last_time_ns=end.last_time_ns,
                index=index,
            )
            here = self._walk_frames(scan)
            step = decide(here, self._following(), self._owed(scan))
            while step is Step.RESYNC:
                expected = scan.next_seq
                following = self._next_header()
                ends = (self._floor, following.base_seq if following is not None else 0)
                if scan.resync(ends):
                    end.gaps.append((expected, scan.next_seq - 1))
                    here = self._walk_frames(scan)
                else:
                    here = Here.EXHAUSTED
                step = decide(here, self._following(), self._owed(scan))
        finally:
            pages.port.close(file)
            index.close()
        end.sealed = here is Here.SEAL
        return step

    def _owed(self, scan: PageScan) -> Owed:
        if scan.next_seq < self._floor:
            return Owed.YES
        return Owed.UNKNOWN if self._blind else Owed.NO

    def _walk_frames(self, scan: PageScan) -> Here:
        end, index = self._end, self._end.index
        while (window := scan.read()) is not None:
            offset = window.offset - HEAD_BYTES
            for _, time_ns, count, _, start, _ in window.frames:
                if count > 1 or offset + start >= index.due:  # most have no record, and need no call
                    index.note(time_ns, offset + start, count)
            end.frames += len(window.frames)
        end.position, end.next_seq, end.last_time_ns = scan.position, scan.next_seq, scan.last_time_ns
        return scan.here()

    def _next_header(self) -> PageHeader | None:
        number = self._next_number()
        return None if number is None else self._header(number)

    def _following(self) -> Following:
        if self._next_number() is None:
            return Following.NONE
        header = self._next_header()
        if header is None:
            return Following.UNREADABLE
        if header.prepared:
            return Following.PREPARED
        expected = self._end.next_seq
        if header.base_seq == expected:
            return Following.CONTINUES
        return Following.AHEAD if header.base_seq > expected else Following.BEHIND

    def _next_number(self) -> int | None:
        return next((number for number in self._numbers if number > self._end.page), None)

    def _enter_next(self, *, after_gap: bool) -> bool:
        """Stand at the start of the next page that can be read. False where there is none: the end stays."""
        end = self._end
        for number in [found for found in self._numbers if found > end.page]:
            header = self._header(number)
            if header is None:
                continue
            if header.prepared:
                if not self._prepared_holds_frames(number, header):
                    return False
                header = header.started(end.next_seq, end.last_time_ns)
            if after_gap:
                end.gaps.append((end.next_seq, header.base_seq - 1))
            end.page, end.header, end.position, end.next_seq = number, header, HEADER_BYTES, header.base_seq
            end.last_time_ns = max(end.last_time_ns, header.base_time_ns)
            end.frames, end.index, end.resume, end.sealed = 0, PageIndex(), end.resume, False
            return True
        return False

    def _prepared_holds_frames(self, number: int, header: PageHeader) -> bool:
        """Whether the second writing of this header was lost while frames were not."""
        file = self._pages.open(number)
        if file is None:
            return False
        try:
            scan = PageScan(self._pages.port, file, header, next_seq=self._end.next_seq)
            return scan.read() is not None
        finally:
            self._pages.port.close(file)
