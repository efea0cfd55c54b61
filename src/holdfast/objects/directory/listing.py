"""Listing the countdown directory of the log without reading all of it.

Owns: the page of numbered names found by probing from a hint, and when probing must give up. Does not own: the full
scan that is right then, the hint's file, or what the numbers mean.

The names are 20-digit slots that count down, so the newest sorts first. Probing is exact under two laws of the log. An
object that exists has the next newer one at most ``GAP_MAX`` slots below it: a jump of W = 1000 after a claim and a
span of at most 1000. And data are removed oldest first, claims never. A claim may therefore stand alone above removed
data, so a hint that names a claim (``CLAIM_BYTES``) does not count.

Failure model: none of its own. ``None`` means that probing cannot tell; ask the full scan. The hint is never authority:
a missing, torn, stale or foreign one costs time only, because it counts only when its slot exists.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["CLAIM_BYTES", "GAP_MAX", "SLOT_MAX", "SlotSize", "slot_of_name", "slots_from", "slots_newest_first"]

SLOT_MAX = 2**64 - 1
GAP_MAX = 2_000
CLAIM_BYTES = 512

SlotSize = Callable[[int], "int | None"]
"""The bytes of the object in a slot, None when there is none."""


def slot_of_name(name: str) -> int | None:
    """The slot that a file name is, None when it is not exactly one.

    >>> slot_of_name("18446744073709551615") == SLOT_MAX, slot_of_name("7")
    (True, None)
    """
    if len(name) != 20 or not name.isascii() or not name.isdigit():
        return None
    slot = int(name)
    return slot if slot <= SLOT_MAX else None


def slots_newest_first(size_of: SlotSize, hint: int | None, limit: int) -> list[tuple[int, int]] | None:
    """The ``limit`` newest slots with sizes, newest (lowest) first, found from ``hint``; None: probing cannot tell.

    Cost: the distance from the hint to the newest, GAP_MAX absent slots, and the page.
    """
    if hint is None:
        return None
    size = size_of(hint)
    if size is None or size <= CLAIM_BYTES:
        return None
    newest = slot = hint
    while slot > 0 and newest - slot < GAP_MAX:
        slot -= 1
        if size_of(slot) is not None:
            newest = slot
    return slots_from(size_of, newest, limit)


def slots_from(size_of: SlotSize, first: int, limit: int) -> list[tuple[int, int]] | None:
    """The first ``limit`` slots at or above ``first`` with their sizes; None when a gap or the end comes before.

    Only a full page counts. Near the end of the log a directory is small, or holds little beside claims, and the full
    scan also sees names there that are no slots.
    """
    rows: list[tuple[int, int]] = []
    absent = 0
    slot = first
    while len(rows) < limit:
        if slot > SLOT_MAX or absent > GAP_MAX:
            return None
        size = size_of(slot)
        if size is None:
            absent += 1
        else:
            absent = 0
            rows.append((slot, size))
        slot += 1
    return rows
