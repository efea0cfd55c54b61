"""What the code of an error answer of the stores tells about the request that it answers.

Owns: after which codes certainly nothing was done, and which pass with time. Does not own: what is done about it
(``publishing``, ``consuming``, ``administration``), the bytes (``wire``).

A code means "nothing was done" where the service gives it before it carries a command out, or instead. That is every
answer below 500, and of those above: no room below the service's own limit of the disk or among the unanswered
requests, not leading, not open or not open any more (``RETRIED_CODES``). Every other answer of 500 and above leaves
open what became of the request: the log may have it although writing or syncing it failed, or a newer service speaks.

Failure model: pure. What is not known is unclear.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import Code, HoldfastError

__all__ = ["PASSING_CODES", "RETRIED_CODES", "is_unclear"]

RETRIED_CODES: Final = frozenset(
    {
        Code.STORE_FULL,
        Code.CLUSTER_FULL,
        Code.DISK_LIMIT,
        Code.NO_QUORUM,
        Code.OVERLOADED,
        Code.RATE_LIMITED,
        Code.NOT_LEADER,
        Code.CLOSED,
    }
)
"""Nothing was done, and the same may be done later."""

_UNCLEAR_CODES: Final = frozenset(
    {
        Code.OUTCOME_UNKNOWN,
        Code.INTERNAL,
        Code.LEADER_CHANGED,
        Code.STORE_UNAVAILABLE,
        Code.SYNC_FAILED,
        Code.DISK_FULL,
    }
)

PASSING_CODES: Final = RETRIED_CODES | _UNCLEAR_CODES
"""Whatever became of the request, asking again later may be answered otherwise."""


def is_unclear(error: HoldfastError, status: int) -> bool:
    """Whether what was asked may have been done, though this is the answer.

    >>> from holdfast.errors import Backpressure, Closed
    >>> is_unclear(Closed("", code=Code.SYNC_FAILED), 500), is_unclear(Backpressure("", code=Code.DISK_LIMIT), 507)
    (True, False)
    """
    return error.code in _UNCLEAR_CODES or (status >= 500 and error.code not in RETRIED_CODES)
