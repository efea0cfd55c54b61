"""A named cursor: how far a consumer has come, and whether the log still has that. Pure.

The value in ``<prefix>-<name>.cursor``. An unknown version is not a cursor.

| offset | bytes | field |
|---|---|---|
| 0 | 2 | version: 1 |
| 2 | 2 | flags: bit 0 a work queue's, not a consumer's; bit 1 retention waits for it; others zero |
| 4 | 4 | count of pages, at most 12 |
| 8 | 8 | committed: the last message that is done, 0 for none |
| 16 | 16 x count | pages of the log up to the one that holds this message, oldest first: number (8), salt (8) |

A sequence number alone is not enough: a crash of the machine takes unsynced messages and may spare the cursor.

1. Messages 51 to 60 are appended, consumed and committed. The cursor reaches the disk, the messages do not.
2. The power fails. The log ends at 50, and the next message gets number 51.
3. A consumer that trusted its number would skip ten new messages.

After such a crash the log continues in a new page with another salt (``opening``), so the salts show which 60 was
meant. A page *stands* when its number still has its salt. Twelve are enough, because a crash takes at most nine: those
that wait for their sync, and the one being written.

| newest page of the cursor that stands | the page begun after it | committed is at most |
|---|---|---|
| one | begun | the later page's base - 1 |
| one | none | the last message |
| none | the oldest page begun | its base - 1: retention has removed them all, or the queue is another one |
| none | none | the last message |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from holdfast.queue.format.page import PageHeader

PageId = tuple[int, int]

HEAD = Struct("<HHIQ")
PAGE_ID = Struct("<QQ")
VERSION = 1
OF_WORK_QUEUE = 1
HOLDS = 2
HISTORY_PAGES_MAX = 12


class Cursor:
    """One decoded cursor: ``committed_seq`` and all before it are done. ``pages`` are (number, salt), oldest first."""

    __slots__ = ("committed_seq", "holds", "of_work_queue", "pages")

    def __init__(self, committed_seq: int, pages: Sequence[PageId], *, of_work_queue: bool, holds: bool) -> None:
        self.committed_seq = committed_seq
        self.pages = pages
        self.of_work_queue = of_work_queue
        self.holds = holds


def cursor_pages(pages: Sequence[PageId]) -> bytes:
    """The pages' part of a value, the same for every commit within a page."""
    assert len(pages) <= HISTORY_PAGES_MAX, "a cursor remembers at most twelve pages"
    return b"".join(PAGE_ID.pack(number, salt) for number, salt in pages)


def encode_cursor(committed_seq: int, pages: bytes, *, of_work_queue: bool, holds: bool) -> bytes:
    """A whole value.

    >>> value = encode_cursor(60, cursor_pages([(7, 99)]), of_work_queue=False, holds=True)
    >>> cursor = decode_cursor(value)
    >>> cursor.committed_seq, cursor.pages, cursor.of_work_queue, cursor.holds
    (60, [(7, 99)], False, True)
    """
    flags = (OF_WORK_QUEUE if of_work_queue else 0) | (HOLDS if holds else 0)
    return HEAD.pack(VERSION, flags, len(pages) // PAGE_ID.size, committed_seq) + pages


def decode_cursor(value: bytes) -> Cursor | None:
    """The cursor, or None where this version does not know these bytes."""
    if len(value) < HEAD.size:
        return None
    version, flags, count, committed_seq = HEAD.unpack_from(value)
    if version != VERSION or count > HISTORY_PAGES_MAX or len(value) != HEAD.size + count * PAGE_ID.size:
        return None
    return Cursor(
        committed_seq,
        list(PAGE_ID.iter_unpack(value[HEAD.size :])),
        of_work_queue=bool(flags & OF_WORK_QUEUE),
        holds=bool(flags & HOLDS),
    )


def kept_seq(
    committed_seq: int,
    history: Sequence[PageId],
    numbers: Sequence[int],
    header_of: Callable[[int], PageHeader | None],
    last_seq: int,
) -> int:
    """How much of what was committed is still in the log, by the table above.

    ``numbers`` are the log's pages, rising; ``header_of`` returns a header or None; ``last_seq`` is the last message of
    the log. Cost: a header for each remembered page at most, usually two.
    """
    present = set(numbers)
    newest = 0
    for number, salt in reversed(history):
        header = header_of(number) if number in present else None
        if header is not None and header.salt == salt:
            newest = number
            break
    for number in numbers:
        header = header_of(number) if number > newest else None
        if header is not None and not header.prepared:
            return min(committed_seq, header.base_seq - 1)
    return min(committed_seq, last_seq)
