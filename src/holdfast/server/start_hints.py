"""The next step after an error at start, for every code: an operator reads it in the last line of the log."""

from __future__ import annotations

from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, Unavailable

__all__ = ["hint_of"]


def hint_of(error: HoldfastError) -> str:
    """The error's own hint, or what its code suggests. Never empty."""
    if error.hint:
        return error.hint
    match error.code:
        case Code.BAD_CONFIGURATION:
            return "`holdfast check-config` shows every key, its rule and where its value came from"
        case Code.LEADER_ALIVE:
            return "stop the other leader, or start with --take-over, or wait for it with --standby"
        case Code.LEADER_CHANGED | Code.DEPOSED | Code.NOT_LEADER:
            return "another process leads now; start with --standby to wait for its end"
        case Code.LOG_EMPTY | Code.NOT_FOUND:
            return "check log.url; to begin a new log there, start with --init"
        case Code.STORE_UNAVAILABLE:
            return "check that the store of log.url can be reached from here, and its credentials"
        case Code.INTERNAL:
            return "this is a bug of Holdfast: report it with this log"
        case _:
            pass
    if isinstance(error, CorruptData):
        return "do not delete anything; `holdfast log verify` names what is damaged"
    if isinstance(error, Unavailable):
        return "start again; what was not available may be by then"
    if isinstance(error, InvalidRequest):
        return "correct what the message names; `holdfast check-config` shows what is in force"
    return "docs/reference/exit-codes.md says what the exit code means"
