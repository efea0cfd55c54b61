"""The header of a damaged page, as far as it follows by rule. Reads only; the next opening writes it.

One damaged byte follows from the header's checksum (``nearest_header``). More damage needs frames that prove a guess,
because the check of a frame depends on salt, page number and sequence number:

| field | from |
|---|---|
| salt | its own field with at most one bit in doubt; the recorded write position, if it names this page |
| base | its own field; where the page before ends; 1 in page 1 |
| checksum id | both are tried |
| base time | the first frame; where that is damaged, too, the last frame of the page before |
| skipped | its own field, if it leads to the end of the page before; else 0 |
"""

from __future__ import annotations

from holdfast.queue.files.index import IndexReader
from holdfast.queue.files.meta_files import read_write_position
from holdfast.queue.files.pages import PageDirectory, open_page
from holdfast.queue.format.checksum import CRC32, CRC32C
from holdfast.queue.format.frame import HEAD_BYTES
from holdfast.queue.format.page import HEADER, HEADER_BYTES, PAGE_BYTES_MAX, PageHeader
from holdfast.queue.log.page_scan import PageScan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_IN_ALL_FIELD, _BASE_SEQ_FIELD, _SALT_FIELD, _SKIPPED_FIELD = 5, 7, 9, 10


def restored_header(pages: PageDirectory, file: int, number: int, raw: bytes) -> PageHeader | None:
    """The header of an open page whose bytes ``raw`` do not verify, or None if no frame proves one.

    Cost: one reading of the page before; a look at the index.
    """
    if len(raw) < HEADER_BYTES or pages.port.size(file) < HEADER_BYTES + HEAD_BYTES:
        return None
    fields = HEADER.unpack_from(raw)
    before = end_before(pages, number)
    end_seq, end_time_ns, _ = before
    bases = [fields[_BASE_SEQ_FIELD], *([] if end_seq in (0, fields[_BASE_SEQ_FIELD]) else [end_seq])]
    sure, doubtful = _salts(pages, number, fields[_SALT_FIELD])
    for salt in (*sure, *doubtful):
        for guess in _guesses(pages, file, number, salt, bases):
            scan = PageScan(pages.port, file, guess, next_seq=guess.base_seq)
            window = scan.read(HEAD_BYTES)
            if window is not None:
                return _completed(guess, window.frames[0][1], before, fields)
    for salt in sure if end_seq else ():
        # The first frames are damaged as well: a later one proves salt and base.
        for guess in _guesses(pages, file, number, salt, [end_seq]):
            index = IndexReader(pages, number, salt)
            scan = PageScan(pages.port, file, guess, next_seq=end_seq, last_time_ns=end_time_ns, index=index)
            try:
                if scan.resync((), search_bytes=PAGE_BYTES_MAX):
                    return _completed(guess, end_time_ns, before, fields)
            finally:
                index.close()
    return None


def _salts(pages: PageDirectory, number: int, field: int) -> tuple[list[int], list[int]]:
    """The salts to try: those that need no luck, and those with one bit of the field in doubt."""
    record = read_write_position(pages)
    places = [] if record is None else [record.end, record.durable]
    sure = dict.fromkeys((*(place.salt for place in places if place.page == number), field))
    return list(sure), [field ^ 1 << bit for bit in range(64)]


def _guesses(pages: PageDirectory, file: int, number: int, salt: int, bases: list[int]) -> Iterator[PageHeader]:
    for base_seq in bases:
        for checksum_id in (CRC32, CRC32C):
            yield PageHeader(
                number=number,
                page_bytes=pages.port.size(file),
                salt=salt,
                checksum_id=checksum_id,
                base_seq=base_seq,
                restored=True,
            )


def _completed(
    header: PageHeader, base_time_ns: int, before: tuple[int, int, int], fields: tuple[int, ...]
) -> PageHeader:
    """Skipped numbers follow from the page before, or from the fields if they agree with it."""
    end_seq, _, in_all = before
    skipped = fields[_SKIPPED_FIELD]
    if not 0 < skipped < header.base_seq or header.base_seq - skipped != end_seq:
        skipped = 0
    return header.started(
        header.base_seq,
        base_time_ns,
        skipped=skipped,
        skipped_in_all=in_all + skipped if end_seq else fields[_IN_ALL_FIELD],
    )


def end_before(pages: PageDirectory, number: int) -> tuple[int, int, int]:
    """The number and the time with which the page before ends, and the numbers that were skipped up to there; 0 if that
    is not known. Cost: a reading of that page.
    """
    if number == 1:
        return 1, 0, 0
    before = pages.header_of(number - 1)
    if before is None or before.prepared:
        return 0, 0, 0
    with open_page(pages, number - 1) as file:
        if file is None:
            return 0, 0, 0
        scan = PageScan(pages.port, file, before, next_seq=before.base_seq, last_time_ns=before.base_time_ns)
        while scan.read() is not None:
            continue
        return scan.next_seq, scan.last_time_ns, before.skipped_in_all
