"""The end of a service's process: what the error means that ends it, an end at once, and the time of a stop.

An assertion that fails ends the process at once with its children, by exit code 70: what it believes may be wrong then,
so it answers nothing and writes nothing more. Clients see a dropped connection, which means "unknown".
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import Any, Final, NoReturn

import structlog

from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, Unavailable
from holdfast.server.children.background_process import kill_all

log = structlog.get_logger("holdfast.server")

BUG: Final = 70
"""The exit code of a bug."""

_EXIT_CODES: Final = {
    Code.LEADER_ALIVE: 3,
    Code.DEPOSED: 4,
    Code.LEADER_CHANGED: 4,
    Code.LOG_EMPTY: 5,
    Code.NOT_PROMOTED: 5,
    Code.LOG_RETIRED: 5,
    Code.SUSPENDED: 3,
    Code.CLUSTER_RESTORED: 5,
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


def end_process(error: BaseException) -> NoReturn:
    """End this process and its children now. The children of a directory end with their sockets."""
    try:
        log.error("invariant_violated", exc_info=error)
        sys.stderr.flush()
        kill_all()
    finally:
        os._exit(BUG)


def end_on_broken_invariants(loop: asyncio.AbstractEventLoop) -> None:
    """From now on an assertion that fails in a callback of the loop, or is reported to it, ends the process."""
    loop.set_exception_handler(_handle)


def _handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, AssertionError):
        end_process(error)
    loop.default_exception_handler(context)


CLOSING_SECONDS_MAX: Final = 5.0
"""Reserved for replies and closing, after the log was drained."""


class StopBound:
    """One stop, which takes at most ``seconds_max`` from ``begin`` on. With ``exits`` the process is ended then."""

    def __init__(self, seconds_max: float, *, exits: bool) -> None:
        self._seconds_max = seconds_max
        self._exits = exits
        self._began: float | None = None

    def begin(self) -> None:
        """The process is about to end. Only the first call counts."""
        if self._began is not None:
            return
        self._began = time.monotonic()
        if self._exits:
            timer = threading.Timer(self._seconds_max, self._give_up)
            timer.daemon = True
            timer.start()

    def seconds_left(self) -> float:
        """How long the stop may still take, at least a moment."""
        began = time.monotonic() if self._began is None else self._began
        return max(0.01, began + self._seconds_max - time.monotonic())

    def drain_seconds(self) -> float:
        """How long draining may take, so that there is time left to answer and to close."""
        return max(0.01, self.seconds_left() - min(CLOSING_SECONDS_MAX, self._seconds_max / 2))

    def _give_up(self) -> None:
        log.error("stop_given_up", seconds=self._seconds_max)
        sys.stderr.flush()
        os._exit(6)
