"""The end of the service's process after an assertion failed: logged, at once, with all its children.

What the process believes may be wrong then, so it answers nothing and writes nothing more. Clients see a dropped
connection, which means "unknown". The exit code is 70.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, NoReturn

import structlog

from holdfast.server.children.background_process import kill_all
from holdfast.server.exits import BUG

log = structlog.get_logger("holdfast.server")


def end_process(error: BaseException) -> NoReturn:
    """End this process and its children now. The children of the view and of a directory end with their sockets."""
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
