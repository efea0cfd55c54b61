"""A named cursor: how far a consumer has come. Pure.

The value in ``<prefix>-<name>.cursor``. An unknown version is not a cursor.

| offset | bytes | field |
|---|---|---|
| 0 | 2 | version: 1 |
| 2 | 2 | flags: bit 0 a work queue's, not a consumer's; bit 1 retention waits for it; others zero |
| 4 | 4 | zero |
| 8 | 8 | committed: the last message that is done, 0 for none, below 2^62 |

A crash of the machine may spare a cursor and take the unsynced messages that it has committed. Then the next opening
continues the log after the cursor: those numbers are never given to other messages (``log.judgement``).
"""

from __future__ import annotations

from struct import Struct

CURSOR = Struct("<HHIQ")
VERSION = 1
OF_WORK_QUEUE = 1
HOLDS = 2
COMMITTED_MAX = 1 << 62


class Cursor:
    """One decoded cursor: ``committed_seq`` and all before it are done."""

    __slots__ = ("committed_seq", "holds", "of_work_queue")

    def __init__(self, committed_seq: int, *, of_work_queue: bool, holds: bool) -> None:
        self.committed_seq = committed_seq
        self.of_work_queue = of_work_queue
        self.holds = holds


def encode_cursor(committed_seq: int, *, of_work_queue: bool, holds: bool) -> bytes:
    """A whole value.

    >>> cursor = decode_cursor(encode_cursor(60, of_work_queue=False, holds=True))
    >>> cursor.committed_seq, cursor.of_work_queue, cursor.holds
    (60, False, True)
    """
    return CURSOR.pack(VERSION, (OF_WORK_QUEUE if of_work_queue else 0) | (HOLDS if holds else 0), 0, committed_seq)


def decode_cursor(value: bytes) -> Cursor | None:
    """The cursor, or None where this version does not know these bytes."""
    if len(value) != CURSOR.size:
        return None
    version, flags, _, committed_seq = CURSOR.unpack(value)
    if version != VERSION or committed_seq >= COMMITTED_MAX:
        return None
    return Cursor(committed_seq, of_work_queue=bool(flags & OF_WORK_QUEUE), holds=bool(flags & HOLDS))
