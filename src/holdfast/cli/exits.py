"""Exit codes: what a script may conclude from how a command ended.

Owns: the numbers (append only, listed in ``docs/reference/exit-codes.md``) and which error ends with which. Does not
own: the exit code of a server that has led, which ``holdfast serve`` passes on unchanged (the numbers are the same).
"""

from __future__ import annotations

from enum import IntEnum

from holdfast.errors import (
    Backpressure,
    Closed,
    Code,
    Conflict,
    CorruptData,
    HoldfastError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    Unavailable,
)

__all__ = ["Exit", "exit_of"]


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    NO = 1
    """The answer is no: not committed, no such key, not decidable any more."""
    BAD_REQUEST = 2
    """Bad usage or configuration, a request that is wrong as it stands, or no permission."""
    LEADER_ALIVE = 3
    DEPOSED = 4
    LOG_EMPTY = 5
    DAMAGED = 6
    """The store, the log or a queue is damaged or unfit."""
    UNAVAILABLE = 7
    """Nobody answered, the service is full, or another process has it open: the same command may work later."""
    OUTCOME_UNKNOWN = 8
    """The commit may have happened: ask ``holdfast status``."""
    INTERNAL = 70
    INTERRUPTED = 130


def exit_of(error: HoldfastError) -> Exit:
    """The exit code that an error ends a command with.

    >>> exit_of(NotFound("log is empty", code=Code.LOG_EMPTY)).value
    5
    """
    match error.code:
        case Code.LEADER_ALIVE:
            return Exit.LEADER_ALIVE
        case Code.LOG_EMPTY:
            return Exit.LOG_EMPTY
        case Code.STORE_UNFIT:
            return Exit.DAMAGED
        case _:
            pass
    match error:
        case Conflict() | NotFound():
            return Exit.NO
        case InvalidRequest() | LimitExceeded() | PermissionDenied():
            return Exit.BAD_REQUEST
        case Closed():
            return Exit.DEPOSED
        case CorruptData():
            return Exit.DAMAGED
        case Unavailable() | Backpressure():
            return Exit.UNAVAILABLE
        case OutcomeUnknown():
            return Exit.OUTCOME_UNKNOWN
        case _:
            return Exit.INTERNAL
