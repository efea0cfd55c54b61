"""Whether anybody may lead a log: small objects next to it, the newest in force.

| object | content |
|---|---|
| ``meta/suspend/{2^64-1 - number:020d}`` | ``Suspension`` as JSON |

The names count down, so that a LIST with limit 1 gives the newest. A log without one is not suspended. Every claimant
reads the newest one with the headers from which it claims, and again after its claim; a leader reads it once an
interval of its signs. Under a suspension nobody claims, and who leads resigns. So after it was written, the newest
object of the log says who may still lead: a record of a resignation means nobody. ``suspensions`` reads and writes
them.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.commit.format.batch import FIRST_SLOT
from holdfast.errors import Closed, Code, CorruptData
from holdfast.sealed import decode_sealed

PREFIX: Final = "meta/suspend/"
RESUME_HINT: Final = "`holdfast cluster resume URL` lets its services lead again"


class Suspension(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change. ``author``: who made it. ``time_ms``: when, by the author's wall clock."""

    format: Literal[1] = 1
    number: int
    is_suspended: bool
    author: str
    time_ms: int
    nonce: str

    def error(self) -> Closed:
        """Why nobody may lead under it."""
        return Closed(
            "nobody may lead here: the log is suspended",
            code=Code.SUSPENDED,
            hint=RESUME_HINT,
            number=self.number,
            author=self.author,
        )


def key_of(number: int) -> str:
    """The name of a change.

    >>> key_of(1)
    'meta/suspend/18446744073709551614'
    """
    return f"{PREFIX}{FIRST_SLOT - number:020d}"


def decode_suspension(key: str, data: bytes) -> Suspension:
    """The record of this name. Raises: CorruptData."""
    try:
        return decode_sealed(data, Suspension)
    except msgspec.DecodeError as error:
        raise CorruptData("the record of a suspension is damaged", key=key, cause=str(error)) from error
