"""What a walk along the log does where the frames stop: one table for opening a queue and for readers. Pure.

A walk expects a sequence number at a position. The columns of the table:

- *here*: what is at that position: a SEAL, nothing (zeros), or bytes that do not verify (invalid). *Exhausted*: a
  RESYNC found nothing.
- *follows*: the next page, by its header.
- *owed*: whether the expected message was written. Yes: it is at or below the durable position, or a living writer has
  passed it. If it is missing, it is damaged: the walk skips it and reports it. No: what is here is the torn tail of a
  crash. Unknown: no write position is recorded. No crash destroys both slots of that record, so valid frames that come
  later count. Without this rule, durable messages would be cut silently.

| here | follows | owed | step | why |
|---|---|---|---|---|
| SEAL | continues, prepared | any | NEXT_PAGE | the page is complete |
| SEAL | none | any | END | the writer stopped just after it closed a page |
| SEAL | ahead, unreadable | yes, unknown | NEXT_PAGE_AFTER_GAP | damage: messages between the pages are gone |
| SEAL | ahead, unreadable | no | END | the messages between were never durable: the later page is set aside too |
| SEAL | behind | any | END | a page of an earlier history that was cut |
| nothing, invalid | continues | any | NEXT_PAGE | only the SEAL was lost |
| nothing, invalid | prepared, none, behind | no | END | the torn tail |
| nothing, invalid | ahead, unreadable | no | END | a later frame reached the disk before this one |
| nothing, invalid | ahead, unreadable, prepared, none, behind | yes, unknown | RESYNC | look for a later frame here |
| exhausted | ahead, unreadable | yes, unknown | NEXT_PAGE_AFTER_GAP | no later frame here: go on in the next page |
| exhausted | prepared, none, behind | yes | END_AFTER_GAP | no later frame here, and no next page with messages |
| exhausted | prepared, none, behind | unknown | END | nothing says that anything is missing |

After END the caller sets aside the pages that follow.
"""

from __future__ import annotations

from enum import Enum

from holdfast.queue.format.page import PageHeader


class Here(Enum):
    """What is at the position of the next frame."""

    SEAL = "seal"
    NOTHING = "nothing"
    INVALID = "invalid"
    EXHAUSTED = "exhausted"


class Following(Enum):
    """The next page, by its header, compared with the expected sequence number."""

    NONE = "none"
    PREPARED = "prepared"
    CONTINUES = "continues"
    AHEAD = "ahead"
    BEHIND = "behind"
    UNREADABLE = "unreadable"


def following_of(header: PageHeader | None, expected_seq: int) -> Following:
    """The next page, by its header; None where that cannot be read."""
    if header is None:
        return Following.UNREADABLE
    if header.prepared:
        return Following.PREPARED
    if header.base_seq == expected_seq:
        return Following.CONTINUES
    return Following.AHEAD if header.base_seq > expected_seq else Following.BEHIND


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
    END_AFTER_GAP = "end after gap"


_LATER = (Following.AHEAD, Following.UNREADABLE)


def decide(here: Here, following: Following, owed: Owed) -> Step:
    """The row of the table.

    >>> decide(Here.INVALID, Following.AHEAD, Owed.NO), decide(Here.INVALID, Following.AHEAD, Owed.YES)
    (<Step.END: 'end'>, <Step.RESYNC: 'resync'>)
    """
    if following is Following.CONTINUES:
        return Step.NEXT_PAGE
    if here is Here.SEAL:
        if following is Following.PREPARED:
            return Step.NEXT_PAGE
        return Step.NEXT_PAGE_AFTER_GAP if owed is not Owed.NO and following in _LATER else Step.END
    if owed is Owed.NO:
        return Step.END
    if here is not Here.EXHAUSTED:
        return Step.RESYNC
    if following in _LATER:
        return Step.NEXT_PAGE_AFTER_GAP
    return Step.END_AFTER_GAP if owed is Owed.YES else Step.END
