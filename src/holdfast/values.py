"""Identifiers and instants that more than one room of Holdfast speaks of.

Owns: the names and their text forms. Does not own: what they mean together (the log's rules live in ``commit``).
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

__all__ = ["SLOT_DIGITS", "Instant", "LeaderId", "LogId", "Slot", "Version", "parse_slot", "slot_text"]

Slot = NewType("Slot", int)
"""The number of one batch object. The first is 2^64-1 and they count down, so a larger slot is older."""

Version = NewType("Version", int)
"""A commit's place in the total order. Rises strictly; below 2^53, so that JSON readers keep it exactly."""

LeaderId = NewType("LeaderId", bytes)
"""16 random bytes, drawn once per process start. Its text form is 32 lowercase hexadecimal digits."""

LogId = NewType("LogId", bytes)
"""16 random bytes, drawn when the log is created and copied by every claim."""

SLOT_DIGITS: Final = 20


class Instant(NamedTuple):
    """One reading of both clocks, carried into the state machines as data.

    Units: ``boot_ms`` milliseconds of a clock that never steps back and runs through suspend; ``wall_ms`` milliseconds
    since the Unix epoch, which may jump either way.
    """

    boot_ms: float
    wall_ms: int


def slot_text(slot: int) -> str:
    """The 20-digit text of a slot, used in object names, JSON and the command line.

    >>> slot_text(2**64 - 1)
    '18446744073709551615'
    """
    return f"{slot:020d}"


def parse_slot(text: str) -> Slot | None:
    """The slot a 20-digit text names, or None when it is not exactly one.

    >>> parse_slot("00000000000000002000"), parse_slot("2000"), parse_slot("99999999999999999999")
    (2000, None, None)
    """
    if len(text) != SLOT_DIGITS or not text.isascii() or not text.isdigit():
        return None
    slot = int(text)
    return Slot(slot) if slot < 2**64 else None
