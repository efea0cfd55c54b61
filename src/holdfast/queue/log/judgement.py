"""What a log has lost: the one judgement for opening, reading, verifying, repairing, trimming and ``info``. Pure.

The proof (``Proof``) is what the small files say. Each item is a lower bound and never says that something is *not*
there:

- *owed*: messages below this number were durable, or are in a page cache that no restart has emptied.
- *used*: a consumer has committed, or a work queue has taken, numbers below this one. They are never given to other
  messages.
- *ordered*: no restart of the machine came after the last record, or the record is lost. Then a frame or page proves
  everything before it. After a restart it does not: a later frame may have reached the disk first.
- *page*: the last page in use. A page is durable under its name before its first message.
- *first*: the page and message before which retention has removed everything.

**A page** without a valid header was valid once, because a page gets its name after its header is durable:

| page | verdict |
|---|---|
| valid header, or one that follows by rule (``restoration``) | whole; its frames decide the rest |
| prepared | unused |
| damaged, after a page in use; it has its room, no content and no index | unused: it was prepared |
| damaged | lost |
| shorter than its header says, without a SEAL at its end | its end is lost |
| no file, not before *first*, and another page or index comes after it, or it is in use | lost |

**A walk** expects a number at a position and stops. *Here*: a SEAL, nothing (zeros), bytes that do not verify
(invalid), or exhausted: no later frame in this page. *Follows*: the next begun page, by the number with which the page
before it ends (``PageHeader.after_seq``). *Lost*: there are lost pages before that one, or after the end.

| here | follows | lost | owed | step | verdict |
|---|---|---|---|---|---|
| any | continues | any | any | NEXT_PAGE | whole; skipped numbers were used and never durable |
| SEAL, nothing, invalid | ahead | no | no | END | torn: never durable, as are the later pages |
| nothing, invalid | ahead | yes | any | RESYNC | damaged |
| nothing, invalid | ahead | no | yes, unknown | RESYNC | damaged |
| SEAL | ahead | yes | any | NEXT_PAGE_AFTER_GAP | damaged or absent, owed |
| SEAL | ahead | no | yes, unknown | NEXT_PAGE_AFTER_GAP | damaged or absent, owed |
| exhausted | ahead | any | any | NEXT_PAGE_AFTER_GAP | damaged or absent, owed |
| SEAL | prepared, none, behind | any | any | END | the writer stopped after it closed a page |
| nothing, invalid | prepared, none, behind | any | no | END | the torn tail |
| nothing, invalid | prepared, none, behind | any | yes, unknown | RESYNC | damaged, or not written yet |
| exhausted | prepared, none, behind | any | any | END | no later frame here |

**At the END** (``end_of``) the log continues at the highest number that anything proves:

| numbers | verdict |
|---|---|
| from the stop up to *owed* | damaged, owed |
| of lost pages that no record covers, 2^32 for each: a page never holds more | damaged or absent, owed: at most these |
| from there up to *used*, after a restart of the machine | used, never durable: ``Gap(reason="crash")`` |
| from there up to *used*, otherwise | damaged, owed |

Where numbers are missing, the writer begins a page at once, whose base is the next number. So the gap follows from the
bases of pages alone.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from holdfast.queue.format.page import HEADER_BYTES, SKIPPED_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.queue.format.meta import PagePosition, WritePosition
    from holdfast.queue.format.page import PageHeader

PAGE_MESSAGES_MAX = 1 << 32
LOST_PAGES_MAX = 1 << 16
"""Pages that are counted at most, and where every page and record of a queue is gone: 2^48 numbers."""


class Proof(NamedTuple):
    """What the small files say; see the module. ``position`` belongs to ``page``, whose content ends there.
    ``complete``: the log was closed cleanly, and nothing was appended after the record. ``first_page``: 0 if it is not
    known. ``all_lost``: files of a queue are there, and neither pages nor a record.
    """

    owed_seq: int = 1
    ordered: bool = True
    page: int = 0
    position: int = HEADER_BYTES
    complete: bool = False
    first_page: int = 0
    first_seq: int = 1
    all_lost: bool = False

    @property
    def covered_page(self) -> int:
        """The last page whose messages *owed* counts, even if nothing of it is left."""
        return self.page if self.complete else self.page - 1

    def owed(self, expected_seq: int) -> Owed:
        """Whether the expected message was written."""
        if expected_seq < self.owed_seq:
            return Owed.YES
        return Owed.UNKNOWN if self.ordered else Owed.NO


def proof_of(
    record: WritePosition | None,
    boot_id: bytes,
    header_of: Callable[[int], PageHeader | None],
    *,
    all_lost: bool = False,
) -> Proof:
    """What the recorded write position proves in this run of the machine. A record about another life of its page, by
    the salt, proves nothing.
    """
    if record is None or _is_another_life(header_of, record.durable):
        return Proof(all_lost=all_lost and record is None)
    place = record.durable
    is_true = record.is_true(boot_id)
    if is_true and not _is_another_life(header_of, record.end):
        place = record.end
    return Proof(
        owed_seq=max(record.durable.next_seq, place.next_seq),
        ordered=is_true,
        complete=record.clean,
        page=place.page,
        position=place.position,
        first_page=record.first_page,
        first_seq=record.first_seq,
    )


def _is_another_life(header_of: Callable[[int], PageHeader | None], place: PagePosition) -> bool:
    header = header_of(place.page) if place.page else None
    return header is not None and header.salt != place.salt


class LostPage(NamedTuple):
    """A page that cannot be read: its size, the end of its bytes that are not zero, and whether it has an index."""

    number: int
    bytes: int
    content_end: int
    indexed: bool = False

    def is_unused(self, proof: Proof, *, is_first: bool) -> bool:
        """Whether it was only prepared. ``is_first``: no page before it is left."""
        is_empty = self.bytes > HEADER_BYTES and self.content_end <= HEADER_BYTES
        return is_empty and not self.indexed and self.number > proof.page and not (is_first and not proof.page)

    def is_covered(self, proof: Proof) -> bool:
        """Whether *owed* counts all of its messages."""
        if self.number <= proof.covered_page:
            return True
        return self.number == proof.page and self.content_end == proof.position


class Here(Enum):
    """What is at the position of the next frame."""

    SEAL = "seal"
    NOTHING = "nothing"
    INVALID = "invalid"
    EXHAUSTED = "exhausted"


class Following(Enum):
    """The next begun page, compared with the expected number; else whether a prepared page follows."""

    NONE = "none"
    PREPARED = "prepared"
    CONTINUES = "continues"
    AHEAD = "ahead"
    BEHIND = "behind"


def following_of(header: PageHeader, expected_seq: int) -> Following:
    """What a page is that follows the expected number.

    >>> from holdfast.queue.format.page import PageHeader
    >>> header = PageHeader(number=2, page_bytes=4096, salt=0, checksum_id=1, base_seq=61, skipped=10)
    >>> [following_of(header, seq).value for seq in (50, 51, 55, 61, 62)]
    ['ahead', 'continues', 'continues', 'continues', 'behind']
    """
    if header.prepared:
        return Following.PREPARED
    if header.base_seq < expected_seq:
        return Following.BEHIND
    return Following.CONTINUES if header.after_seq <= expected_seq else Following.AHEAD


class Owed(Enum):
    """Whether the expected message was there. Unknown is never treated as one of the others."""

    NO = "no"
    YES = "yes"
    UNKNOWN = "unknown"


class Step(Enum):
    """What to do."""

    NEXT_PAGE = "next page"
    NEXT_PAGE_AFTER_GAP = "next page after gap"
    RESYNC = "resync"
    END = "end"


def decide(here: Here, following: Following, owed: Owed, *, lost: bool) -> Step:
    """The row of the table.

    >>> decide(Here.INVALID, Following.AHEAD, Owed.NO, lost=False)
    <Step.END: 'end'>
    >>> decide(Here.INVALID, Following.AHEAD, Owed.NO, lost=True)
    <Step.RESYNC: 'resync'>
    """
    if following is Following.CONTINUES:
        return Step.NEXT_PAGE
    searchable = here in (Here.NOTHING, Here.INVALID)
    if following is Following.AHEAD:
        if owed is Owed.NO and not lost and here is not Here.EXHAUSTED:
            return Step.END
        return Step.RESYNC if searchable else Step.NEXT_PAGE_AFTER_GAP
    return Step.RESYNC if searchable and owed is not Owed.NO else Step.END


def end_of(
    expected_seq: int, proof: Proof, used_seq: int, lost: Iterable[LostPage] = (), uncovered: int = 0
) -> tuple[int, int]:
    """Where a log continues that stops at a number: the end of what is owed, and the next number of the log.

    ``lost`` are the lost pages after the stop, ``uncovered`` counts those without a file that no record covers.

    >>> end_of(51, Proof(owed_seq=51, ordered=False), 61)
    (51, 61)
    >>> end_of(51, Proof(owed_seq=56), 61)
    (61, 61)
    >>> end_of(51, Proof(page=2), 1, [LostPage(3, 4096, 4000)]) == (51 + PAGE_MESSAGES_MAX, 51 + PAGE_MESSAGES_MAX)
    True
    """
    unbounded = uncovered + sum(not page.is_covered(proof) for page in lost)
    if proof.all_lost:
        unbounded = LOST_PAGES_MAX
    owed_end = max(expected_seq, proof.owed_seq) + PAGE_MESSAGES_MAX * min(unbounded, LOST_PAGES_MAX)
    next_seq = max(owed_end, used_seq)
    return (next_seq if proof.ordered else max(owed_end, next_seq - SKIPPED_MAX)), next_seq


def first_seq_of(header: PageHeader, proof: Proof, *, damaged: bool) -> int:
    """The oldest message that was not removed on purpose, by the first begun page; those below its base are lost.
    ``damaged``: there are damaged pages before it.

    Without a record the pages that have no file count as removed by retention.

    >>> from holdfast.queue.format.page import PageHeader
    >>> page = PageHeader(number=3, page_bytes=4096, salt=0, checksum_id=1, base_seq=21)
    >>> first_seq_of(page, Proof(first_page=1), damaged=False)
    1
    >>> first_seq_of(page, Proof(first_page=3, first_seq=21), damaged=False)
    21
    >>> first_seq_of(page, Proof(), damaged=False), first_seq_of(page, Proof(), damaged=True)
    (21, 1)
    """
    is_lost = header.number >= proof.first_page if proof.first_page else damaged or header.number == 1
    return min(proof.first_seq, header.base_seq) if is_lost else header.base_seq
