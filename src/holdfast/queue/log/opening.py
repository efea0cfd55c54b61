"""Opening a log: find where it ends, then make the files say so (``repair_tail``). The walk begins:

1. At the *written* position, if the machine has not been restarted since: the page cache is whole.
2. Else at the *durable* position.
3. Else, without a record or with one about missing files, ``UNSYNCED_PAGES_MAX`` pages before the last begun page: the
   writer never has more pages waiting for their sync.

Writing continues in the same page after a clean close or a killed process. Else the page is sealed, and a page with
another salt is begun: a new frame k+1 could join frames k+2, k+3 of the torn page to the log again.
"""

from __future__ import annotations

from holdfast.queue.files.index import IndexReader, PageIndex
from holdfast.queue.files.pages import DurableRename, PageDirectory, open_page
from holdfast.queue.format.checksum import checksum_for_reading
from holdfast.queue.format.frame import HEAD_BYTES, SEAL_BYTES, encode_seal, page_seed
from holdfast.queue.format.meta import WritePosition
from holdfast.queue.format.page import HEADER_BYTES, PageHeader, encode_header
from holdfast.queue.log.page_scan import WINDOW_BYTES, PageScan
from holdfast.queue.log.recovery import Following, Here, Owed, Step, decide, following_of

UNSYNCED_PAGES_MAX = 8


class LogEnd:
    """Where a log ends: in ``page``, 0 if there is none. ``resume``: writing may continue at ``position``; ``sealed``:
    a SEAL is there; ``doubtful``: pages after the end. ``expected_seq`` belongs to ``position``; it is below
    ``next_seq`` where the log ends with damage.
    """

    __slots__ = (
        "clean", "doubtful", "expected_seq", "frames", "gaps", "header", "index", "last_time_ns", "next_seq", "page",
        "position", "resume", "rewrite", "sealed", "unsynced",
    )  # fmt: skip

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


def find_end(pages: PageDirectory, written: WritePosition | None, boot_id: bytes) -> LogEnd:
    """Walk to the end. Reads only, and never leaves out a valid frame that follows a valid frame. Cost: at most about 1
    MiB after a kill or a clean close; what was not synced after a restart of the machine; nine pages without a record.
    """
    return _Walk(pages, written, boot_id).run()


class _Walk:
    __slots__ = (
        "_blind", "_boot_id", "_end", "_first_unsynced", "_floor", "_headers", "_kept", "_written", "_numbers",
        "_pages",
    )  # fmt: skip

    def __init__(self, pages: PageDirectory, written: WritePosition | None, boot_id: bytes) -> None:
        self._pages = pages
        self._written = written
        self._boot_id = boot_id
        self._end = LogEnd()
        self._numbers = pages.known_numbers()
        self._headers: dict[int, PageHeader] = {}
        self._floor = 0  # sequence numbers below this are owed
        self._blind = written is None  # later ones are unknown: see `recovery`
        self._first_unsynced = 0
        self._kept: tuple[int, int] | None = None
        """Number and file of the page of the write position, open from its header to the walk, which begins there."""

    def run(self) -> LogEnd:
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
            end.sealed = True  # the damaged bytes are left as they are: the base of the next page shows what is missing
        end.doubtful = [number for number in self._numbers if number > end.page]
        end.unsynced = [number for number in self._numbers if self._first_unsynced <= number < end.page]
        end.resume = end.resume and all(
            (header := self._header(number)) is not None and header.prepared for number in end.doubtful
        )
        return end

    def _header(self, number: int) -> PageHeader | None:
        header = self._headers.get(number) or self._read_header(number)
        if header is not None:
            self._headers[number] = header
        return header

    def _read_header(self, number: int) -> PageHeader | None:
        pages = self._pages
        if self._kept is not None or self._written is None or number != self._written.page:
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

    def _begin(self) -> bool:
        end, written = self._end, self._written
        # After a failed sync, also in an earlier process, the page cache may hold what the disk lacks. Only a restart
        # of the machine empties it.
        end.rewrite = written is None or not any(written.boot_id) or written.boot_id == self._boot_id
        if written is not None:
            end.clean = written.clean
            durable = written.durable
            if self._page_matches(durable.page, durable.salt):
                self._floor, self._first_unsynced = durable.next_seq, durable.page
            else:
                # Retention may have removed that page; no crash does. Otherwise the record belongs to other files, or
                # its page is damaged.
                self._blind = bool(self._numbers) and durable.page >= self._numbers[0]
            is_true = written.is_true(self._boot_id)
            if is_true and self._page_matches(written.page, written.salt):
                end.page, end.position, end.next_seq = written.page, written.position, written.next_seq
                end.last_time_ns, end.frames, end.resume = written.last_time_ns, written.frames, True
                end.index = PageIndex(written.index_records, written.index_check, written.index_due)
                self._floor = max(self._floor, written.next_seq)
                if not self._first_unsynced:
                    self._first_unsynced = max(1, written.page - UNSYNCED_PAGES_MAX)
            elif self._floor:
                end.page, end.position, end.next_seq = durable.page, durable.position, durable.next_seq
                end.last_time_ns = durable.last_time_ns
            if not end.page:
                # The page of the record cannot be read: its messages are owed, and their numbers stay used.
                self._floor = max(
                    self._floor,
                    durable.next_seq if self._is_unreadable(durable.page) else 0,
                    written.next_seq if is_true and self._is_unreadable(written.page) else 0,
                )
        if end.page:
            header = self._header(end.page)
            if header is not None and header.prepared:
                # Nothing in it was durable, not even its second header.
                header = header.started(end.next_seq, end.last_time_ns)
            end.header = header
            return True
        return self._begin_without_mark()

    def _is_unreadable(self, page: int) -> bool:
        return page in self._numbers and self._header(page) is None

    def _page_matches(self, page: int, salt: int) -> bool:
        header = self._header(page) if page in self._numbers else None
        return header is not None and header.salt == salt

    def _begin_without_mark(self) -> bool:
        numbers, end = self._numbers, self._end
        headers = ((number, self._header(number)) for number in reversed(numbers))
        begun = next((number for number, header in headers if header is not None and not header.prepared), 0)
        # Pages that wait for their sync may be *prepared* again. The page before them is whole, or the first page,
        # whose base is known.
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
        end, pages = self._end, self._pages
        assert end.header is not None, "a walk is in a page with a header"
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
        return Following.NONE if self._next_number() is None else following_of(self._next_header(), self._end.next_seq)

    def _next_number(self) -> int | None:
        return next((number for number in self._numbers if number > self._end.page), None)

    def _enter_next(self, *, after_gap: bool) -> bool:
        """Move to the start of the next readable page. False if there is none."""
        end = self._end
        for number in [later for later in self._numbers if later > end.page]:
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
        with open_page(self._pages, number) as file:
            if file is None:
                return False
            scan = PageScan(self._pages.port, file, header, next_seq=self._end.next_seq)
            return scan.read() is not None


SET_ASIDE_PAGES_MAX = UNSYNCED_PAGES_MAX + 1
"""Pages that openings set aside and keep: as many as one crash can leave. ``holdfast queue info`` lists them."""


def repair_tail(pages: PageDirectory, end: LogEnd) -> None:
    """Make the files say what ``find_end`` found, durably. It may be stopped anywhere and run again.

    1. A page that is not continued loses its index, durably, then gets its SEAL and a sync.
    2. Prepared pages after the end are removed, begun pages are renamed, then the directory is synced. Of the pages set
       aside earlier, the oldest are removed. If that sync fails, the names are back, so the next opening tries again.
    """
    port = pages.port
    if end.page and not end.resume:
        for number in end.unsynced:
            _sync_page(pages, number, rewrite=end.rewrite)
        # Before its SEAL: the index may name frames after it, which are cut from the log and still on disk.
        going = DurableRename(pages)
        if going.remove(pages.names.index(end.page)):
            going.sync()
        _close_page(pages, end)
    going = DurableRename(pages)
    changed = False if end.resume else _forget_set_aside(pages, len(end.doubtful))
    files = pages.known_files()
    living = {*pages.known_numbers()}
    for name in files:
        if pages.names.is_temporary(name):
            pages.remove(name)  # one that lost power brings back goes at the next start
        elif (index := pages.names.index_number(name)) is not None and index not in living:
            changed |= going.remove(name)
    for number in [] if end.resume else end.doubtful:
        name = pages.names.page(number)
        header = pages.header_of(number)
        if header is not None and header.prepared:
            going.remove(name)
        else:
            # Also with a damaged header: the page was whole once, and repair may read it.
            going.move(name, pages.names.set_aside(name, port.names(pages.directory)))
        going.remove(pages.names.index(number))
        changed = True
    # Also the changes of an opening that was killed: a later failed sync could drop them.
    if changed or (end.page and not end.resume):
        going.sync()


def _forget_set_aside(pages: PageDirectory, coming: int) -> bool:
    """Remove the oldest pages that earlier openings set aside, to leave room for the ``coming`` ones."""
    port, directory = pages.port, pages.directory
    kept = [name for name in port.names(directory) if pages.names.is_set_aside(name)]
    excess = len(kept) + coming - SET_ASIDE_PAGES_MAX
    if not coming or excess <= 0:
        return False
    for name in sorted(kept, key=lambda name: (port.modified_ns(directory, name), name))[:excess]:
        pages.remove(name)
    return True


def _sync_page(pages: PageDirectory, number: int, *, rewrite: bool) -> None:
    with open_page(pages, number, write=True) as file:
        if file is not None:
            if rewrite:
                _rewrite(pages, file, pages.port.size(file))
            pages.port.sync_data(file)


def _rewrite(pages: PageDirectory, file: int, end: int) -> None:
    """Write the bytes again: after a failed sync the cache counts as clean what the disk does not have."""
    for offset in range(0, end, WINDOW_BYTES):
        pages.port.write(file, offset, (pages.port.read(file, offset, min(WINDOW_BYTES, end - offset)),))


def _close_page(pages: PageDirectory, end: LogEnd) -> None:
    """Write the header and the SEAL that the torn page lacks."""
    port = pages.port
    with open_page(pages, end.page, write=True) as file:
        header = end.header
        if file is None or header is None:
            return
        if end.rewrite:
            _rewrite(pages, file, end.position)
        port.write(file, 0, (encode_header(header),))
        if not end.sealed and end.position + SEAL_BYTES <= header.page_bytes:
            checksum = checksum_for_reading(header.checksum_id)
            seed = page_seed(checksum, header.salt, header.number)
            seal = encode_seal(checksum, seed, end.next_seq, end.frames, end.last_time_ns, 0)
            port.write(file, end.position, (seal,))
        port.sync_data(file)
        if end.position + SEAL_BYTES < port.size(file) and not end.gaps:
            # Unused room. Frames after a SEAL are not part of the log.
            port.truncate(file, end.position + SEAL_BYTES)
