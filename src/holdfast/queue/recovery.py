"""What a walk along the log does where the frames stop: one table for every start and every reader.

Owns: the decision. Does not own: finding out what is there (``page_scan``), acting on it (``opening``, ``reader``).

Failure model: pure; every combination has an answer, and a test.

A walk expects a sequence number at a position. What it finds *here* is a SEAL, nothing (zeros), or something that does
not verify. What *follows* is the next page, by its header. *Owed* means that the expected message is known to have been
there: it is at or below what was durable, or a living writer is already past it. Then its absence is damage, and damage
is stepped over and reported; otherwise it is the torn tail of a crash, and the log is a prefix that ends here.

| here | follows | owed | step | why |
|---|---|---|---|---|
| SEAL | continues, prepared | any | NEXT_PAGE | the page is complete |
| SEAL | none | any | END | stopped just after a page was closed |
| SEAL | ahead, unreadable | yes | NEXT_PAGE_AFTER_GAP | damage: messages between the pages are gone |
| SEAL | ahead, unreadable | no | END | they were never durable: the later page goes with them |
| SEAL | behind | any | END | a page of an earlier history that was cut |
| nothing, invalid | continues | any | NEXT_PAGE | the SEAL was lost; nothing else was |
| nothing, invalid | prepared, none, behind | no | END | the torn tail |
| nothing, invalid | ahead, unreadable | no | END | frame k+1 reached the disk before k |
| nothing, invalid | ahead, unreadable, prepared, none, behind | yes | RESYNC | look for a later frame in this page |
| exhausted | ahead, unreadable | yes | NEXT_PAGE_AFTER_GAP | there is none: go on in the next page |
| exhausted | prepared, none, behind | yes | END_AFTER_GAP | there is none, and no page |

*Exhausted* is what a RESYNC that found nothing leaves. After END the caller sets aside the pages that follow.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Following", "Here", "Step", "decide"]


class Here(Enum):
    """What is at the position where the next frame is expected."""

    SEAL = "seal"
    NOTHING = "nothing"
    INVALID = "invalid"
    EXHAUSTED = "exhausted"


class Following(Enum):
    """The next page, by its header, against the expected sequence number."""

    NONE = "none"
    PREPARED = "prepared"
    CONTINUES = "continues"
    AHEAD = "ahead"
    BEHIND = "behind"
    UNREADABLE = "unreadable"


class Step(Enum):
    """What to do."""

    NEXT_PAGE = "next page"
    NEXT_PAGE_AFTER_GAP = "next page after gap"
    RESYNC = "resync"
    END = "end"
    END_AFTER_GAP = "end after gap"


_LATER = (Following.AHEAD, Following.UNREADABLE)


def decide(here: Here, following: Following, *, owed: bool) -> Step:
    """The row of the table.

    >>> decide(Here.INVALID, Following.AHEAD, owed=False), decide(Here.INVALID, Following.AHEAD, owed=True)
    (<Step.END: 'end'>, <Step.RESYNC: 'resync'>)
    """
    if following is Following.CONTINUES:
        return Step.NEXT_PAGE
    if here is Here.SEAL:
        if following is Following.PREPARED:
            return Step.NEXT_PAGE
        return Step.NEXT_PAGE_AFTER_GAP if owed and following in _LATER else Step.END
    if not owed:
        return Step.END
    if here is not Here.EXHAUSTED:
        return Step.RESYNC
    return Step.NEXT_PAGE_AFTER_GAP if following in _LATER else Step.END_AFTER_GAP
