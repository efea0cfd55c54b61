"""What an error that ends the process means: its exit code, and a hint of what to do."""

from __future__ import annotations

from typing import Final

from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, Unavailable

BUG: Final = 70
"""The exit code of a bug."""

_EXIT_CODES: Final = {
    Code.LEADER_ALIVE: 3,
    Code.DEPOSED: 4,
    Code.LEADER_CHANGED: 4,
    Code.LOG_EMPTY: 5,
    Code.NOT_PROMOTED: 5,
    Code.LOG_RETIRED: 5,
    Code.NOT_FOUND: 5,
    Code.STORE_UNFIT: 6,
    Code.STORE_UNAVAILABLE: 6,
    Code.INTERNAL: BUG,
}


def exit_code_of(error: HoldfastError) -> int:
    """The exit code of an error at start, or at the end of a leadership."""
    return _EXIT_CODES.get(error.code, 2 if isinstance(error, InvalidRequest) else 6)


_FOLLOW_HINT: Final = "another process leads now; start with --standby to wait for its end"
_NEW_LOG_HINT: Final = "check log.url; to begin a new log there, start with --init"
_HINTS: Final = {
    Code.BAD_CONFIGURATION: "`holdfast check-config` shows every key, its rule and where its value came from",
    Code.LEADER_ALIVE: "stop the other leader, or start with --take-over, or wait for it with --standby",
    Code.LEADER_CHANGED: _FOLLOW_HINT,
    Code.DEPOSED: _FOLLOW_HINT,
    Code.NOT_LEADER: _FOLLOW_HINT,
    Code.LOG_EMPTY: _NEW_LOG_HINT,
    Code.NOT_FOUND: _NEW_LOG_HINT,
    Code.STORE_UNAVAILABLE: "check that the store of log.url can be reached from here, and its credentials",
    Code.INTERNAL: "this is a bug of Holdfast: report it with this log",
}


def hint_of(error: HoldfastError) -> str:
    """The error's own hint, or what its code suggests. Never empty."""
    if error.hint:
        return error.hint
    if error.code in _HINTS:
        return _HINTS[error.code]
    if isinstance(error, CorruptData):
        return "do not delete anything; `holdfast log verify` names what is damaged"
    if isinstance(error, Unavailable):
        return "start again; what was not available may be by then"
    if isinstance(error, InvalidRequest):
        return "correct what the message names; `holdfast check-config` shows what is in force"
    return "docs/reference/exit-codes.md says what the exit code means"
