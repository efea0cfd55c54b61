"""Opening a log: find where it ends, then make the files say so (``repair_tail``). The walk begins:

1. At the *written* position, if the machine has not been restarted since: the page cache is whole.
2. Else at the *durable* position.
3. Else, without a record or with one about missing files, ``UNSYNCED_PAGES_MAX`` pages before the last begun page: the
   writer never has more pages waiting for their sync.

Writing continues in the same page after a clean close or a killed process. Else the page is sealed, and a page with
another salt is begun: a new frame k+1 could join frames k+2, k+3 of the torn page to the log again.

An opening never makes damage disappear. It writes a damaged header again if the header follows by rule. Otherwise the
page stays under its name, and the log continues in a page after it, at the number that ``judgement`` proves.
"""

from __future__ import annotations

from holdfast.queue.files.index import PageIndex
from holdfast.queue.files.meta_files import read_write_position
from holdfast.queue.files.pages import DurableRename, PageDirectory, cached_header, open_page
from holdfast.queue.format.checksum import checksum_for_reading
from holdfast.queue.format.frame import HEAD_BYTES, SEAL_BYTES, encode_seal, page_seed
from holdfast.queue.format.page import HEADER_BYTES, PageHeader, encode_header
from holdfast.queue.log.judgement import Proof, first_seq_of
from holdfast.queue.log.page_scan import WINDOW_BYTES
from holdfast.queue.log.walk import UNSYNCED_PAGES_MAX, LogWalk, Loss, QueueEvidence, WalkCaches

HEADERS_CHECKED = 16
"""This many of the newest pages have their headers checked by an opening, and those that it walks through. A reader
checks the header of each page that it enters."""


class LogEnd:
    """Where a log ends. The last frames are in ``page``, 0 if there is none, up to ``position``, before message
    ``expected_seq``; the next message is ``next_seq``. Of the numbers in between, those from ``owed_end`` on were never
    durable. ``last_page`` is the last page in use, or lost; ``first`` is what retention has not removed.

    ``clean``: everything was durable; ``resume``: writing may continue at ``position``, with the ``frames`` and the
    ``index`` of the page; ``rewrite``: what this opening keeps is written again, see ``_start``; ``sealed``: nothing is
    to be written at ``position``; ``unsynced``: pages before the end that may not be durable; ``doubtful``: pages after
    it that are not part of the log; ``restored``: headers to be written; ``losses``: what the walk found missing.
    """

    def __init__(self) -> None:
        self.page = self.last_page = 0
        self.header: PageHeader | None = None
        self.position = HEADER_BYTES
        self.next_seq = self.expected_seq = self.owed_end = 1
        self.first: tuple[int, int] = (1, 1)  # page and message
        self.skipped = 0  # numbers that were used and never durable, in the whole log
        self.last_time_ns = 0
        self.frames = 0
        self.index = PageIndex()
        self.clean = False
        self.resume = False
        self.rewrite = True
        self.sealed = False
        self.doubtful: list[int] = []
        self.losses: list[Loss] = []
        self.restored: list[PageHeader] = []
        self.unsynced: list[int] = []


def find_end(pages: PageDirectory, evidence: QueueEvidence) -> LogEnd:
    """Walk to the end. Reads only, and never leaves out a valid frame that follows a valid frame. Cost: at most about 1
    MiB after a kill or a clean close; what was not synced after a restart of the machine; nine pages without a record;
    the headers of the newest pages.
    """
    end = LogEnd()
    caches = WalkCaches({}, {}, {})
    headers = caches.headers
    proof = evidence.proof()
    numbers = pages.known_numbers()
    used_seq = evidence.used_seq()  # evidence first, then the pages
    walk = LogWalk(pages, evidence, end.losses.append, caches, is_sole=pages.is_sole, used_seq=used_seq)
    try:
        first_unsynced = _start(walk, end, pages, proof, headers)
        _walk(walk, end)
        end.next_seq, end.owed_end = walk.next_seq, walk.owed_end
    finally:
        walk.close()
    end.skipped = (0 if end.header is None else end.header.skipped_in_all) + end.next_seq - end.owed_end
    end.clean = end.clean and end.expected_seq == proof.owed_seq
    after = walk.after
    has_lost = bool(after.lost) or after.absent
    kept = {page.number for page in after.lost}
    end.doubtful = [
        number
        for number in numbers
        if number > end.page and (number in after.unused or cached_header(pages, number, headers) is not None)
    ]
    end.last_page = max(end.page, max(kept, default=0), after.last_page if has_lost else 0)
    end.first = _first(pages, proof, headers)
    end.unsynced = [number for number in numbers if first_unsynced <= number < end.page]
    last = cached_header(pages, end.page, headers) if end.page else None
    end.resume = (
        end.resume  # the walk began where the writer was
        and end.next_seq == end.expected_seq
        and not has_lost
        and all(
            (page := cached_header(pages, number, headers)) is not None and page.prepared for number in end.doubtful
        )
        and last is not None
        and not last.prepared
    )
    # Damaged bytes at the end stay as they are: the base of the next page shows what is missing.
    end.sealed = walk.is_sealed or end.owed_end > end.expected_seq
    recent = [*headers.values(), *(pages.header_of(number) for number in numbers[-HEADERS_CHECKED:])]
    end.restored = list({header.number: header for header in recent if header is not None and header.restored}.values())
    return end


def _start(walk: LogWalk, end: LogEnd, pages: PageDirectory, proof: Proof, headers: dict[int, PageHeader]) -> int:
    """Enter the page where the walk begins. Returns the first page that may not be synced."""
    record = read_write_position(pages)
    # After a failed sync, also in an earlier process, the page cache may hold what the disk lacks. Only a restart of
    # the machine empties it.
    end.rewrite = record is None or not any(record.boot_id) or record.boot_id == pages.port.boot_id()
    if record is not None:
        end.last_time_ns = max(record.durable.last_time_ns, record.end.last_time_ns)
        end.clean = record.clean
    if record is not None and proof.page:
        is_written = proof.ordered and proof.page == record.end.page
        unsynced = record.durable.page or max(1, record.end.page - UNSYNCED_PAGES_MAX)
        place = record.end if is_written else record.durable
        header = cached_header(pages, place.page, headers)
        # A prepared page before such a position is an older copy of it.
        fits = header is not None and HEADER_BYTES <= place.position <= header.page_bytes
        if (
            header is not None
            and fits
            and header.salt == place.salt
            and not (header.prepared and place.position > HEADER_BYTES)
        ):
            if header.prepared:
                # Nothing in it was durable, not even its second header.
                before = cached_header(pages, place.page - 1, headers)
                in_all = 0 if before is None else before.skipped_in_all
                header = header.started(place.next_seq, place.last_time_ns, skipped_in_all=in_all)
            if walk.start(header, place.position, place.next_seq, place.last_time_ns):
                end.resume = is_written
                if is_written:
                    end.frames = record.frames
                    end.index = PageIndex(record.index_records, record.index_check, record.index_due)
                return unsynced
    return _start_without_record(walk, pages, headers)


def _start_without_record(walk: LogWalk, pages: PageDirectory, headers: dict[int, PageHeader]) -> int:
    numbers = pages.known_numbers()
    entered = ((number, cached_header(pages, number, headers)) for number in reversed(numbers))
    begun = next((number for number, header in entered if header is not None and not header.prepared), 0)
    # Pages that wait for their sync may be *prepared* again. The page before them is whole, or the first page, whose
    # base is known.
    early = [number for number in numbers if number < begun - UNSYNCED_PAGES_MAX]
    recent = [number for number in numbers if number >= begun - UNSYNCED_PAGES_MAX]
    if walk.start_at([*early[-1:], *recent], front=not early):
        assert walk.scan is not None, "a page was entered"
        return walk.scan.header.number
    return 0


def _first(pages: PageDirectory, proof: Proof, headers: dict[int, PageHeader]) -> tuple[int, int]:
    """The first page and message. Without a record, those that are there."""
    if proof.first_page:
        return proof.first_page, proof.first_seq
    first = _first_begun(pages, proof, headers)
    return (1, 1) if first is None else (first[0].number, first[1])


def _first_begun(pages: PageDirectory, proof: Proof, headers: dict[int, PageHeader]) -> tuple[PageHeader, int] | None:
    """The first begun page, and the oldest message that was not removed on purpose."""
    damaged = False
    for number in pages.known_numbers():
        header = cached_header(pages, number, headers)
        if header is not None and not header.prepared:
            return header, first_seq_of(header, proof, damaged=damaged)
        damaged = damaged or header is None
    return None


def first_seq(pages: PageDirectory, evidence: QueueEvidence) -> int:
    """The oldest message that retention has not removed, lost or not, or the next one. Cost: a listing."""
    headers: dict[int, PageHeader] = {}
    _first_begun(pages, Proof(), headers)  # the look comes first: retention records what it removes before it does
    proof = evidence.proof()
    first = _first_begun(pages, proof, headers)
    return proof.first_seq if first is None else first[1]


def _walk(walk: LogWalk, end: LogEnd) -> None:
    """Walk along the frames to the end, and note the position there and the index of its page."""
    scan = walk.scan
    number = 0 if scan is None else scan.header.number
    while (window := walk.read_window()) is not None:
        scan = walk.scan
        assert scan is not None, "a window is from a page"
        if scan.header.number != number:
            number, end.frames, end.index = scan.header.number, 0, PageIndex()
        index, offset = end.index, window.offset - HEAD_BYTES
        for _, time_ns, count, _, start, _ in window.frames:
            if count > 1 or offset + start >= index.due:  # most have no record, and need no call
                index.note(time_ns, offset + start, count)
        end.frames += len(window.frames)
    scan = walk.scan
    if scan is None:
        end.expected_seq = 1
        return
    if scan.header.number != number:
        end.frames, end.index = 0, PageIndex()
    end.page, end.header = scan.header.number, scan.header
    end.position, end.expected_seq, end.last_time_ns = scan.state


SET_ASIDE_PAGES_MAX = UNSYNCED_PAGES_MAX + 1
"""Pages that openings set aside and keep: as many as one crash can leave. ``holdfast queue info`` lists them."""


def repair_tail(pages: PageDirectory, end: LogEnd) -> None:
    """Make the files say what ``find_end`` found, durably. It may be stopped anywhere and run again.

    1. Headers that follow by rule are written.
    2. A page that is not continued loses its index, durably, then gets its SEAL and a sync.
    3. The indexes of the pages after the end are removed, then these pages, the last one first: prepared pages are
       removed, begun pages are renamed. The directory is synced after each, so that no crash leaves a later page or
       index without the page before it, which would look like a lost page. Of the pages set aside earlier, the oldest
       are removed. If a sync fails, the names are back, so the next opening tries again.
    """
    port = pages.port
    for header in end.restored:
        with open_page(pages, header.number, write=True) as file:
            if file is not None:
                port.write(file, 0, (encode_header(header),))
                port.sync_data(file)
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
    living = {*pages.known_numbers()}
    doubtful = [] if end.resume else end.doubtful
    for name in pages.files():
        if pages.names.is_temporary(name):
            pages.remove(name)  # one that lost power brings back goes at the next start
        elif (index := pages.names.index_number(name)) is not None and (
            index in doubtful or (index not in living and index <= end.page)
        ):
            # One without a page after the end shows that the page is lost.
            changed |= going.remove(name)
    # Also the changes of an opening that was killed: a later failed sync could drop them.
    if changed or doubtful or (end.page and not end.resume):
        going.sync()
    for number in reversed(doubtful):
        going = DurableRename(pages)
        name = pages.names.page(number)
        found = pages.header_of(number)
        if found is None or found.prepared:
            going.remove(name)
        else:
            going.move(name, pages.names.set_aside(name, port.names(pages.directory)))
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
            seal = encode_seal(checksum, seed, end.expected_seq, end.frames, end.last_time_ns, 0)
            port.write(file, end.position, (seal,))
        port.sync_data(file)
        if end.position + SEAL_BYTES < port.size(file) and not end.losses:
            # Unused room. Frames after a SEAL are not part of the log.
            port.truncate(file, end.position + SEAL_BYTES)
