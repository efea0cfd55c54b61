"""Reports a broken invariant of this program to the event loop that runs it. The service's process ends by that."""

from __future__ import annotations

import asyncio


def report_broken(loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
    """Does not return where the loop is that of the service's process (``server.process_end``)."""
    broken = error
    if not isinstance(error, AssertionError):
        broken = AssertionError(f"{type(error).__name__}: {error}")
        broken.__cause__ = error
    loop.call_exception_handler({"message": "an invariant is broken", "exception": broken})
