"""Ctrl-C before any line of a ``FileQueue`` and of its work queue."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

INTERRUPTED_FILES = (
    "/queue/file_queue.py",
    "/queue/work/work_queue.py",
    "/queue/work/log.py",
    "/queue/work/machine.py",
)


def interrupted(call: Callable[[], object], line: int) -> bool:
    """Call, and raise KeyboardInterrupt before the line of this number that runs. False where it does not get there."""
    left, last = line, ""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left, last
        code = frame.f_code
        if not code.co_filename.endswith(INTERRUPTED_FILES):
            return None
        if event == "line":
            before, last = last, linecache.getline(code.co_filename, frame.f_lineno).strip()
            # Lines at which Python handles no signal: between the end of a block and its ``__exit__``, before a block,
            # and between an error and the first call of its handler.
            if not last.startswith(("with ", "try:", "except ")) and not before.startswith("except "):
                left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(tracing)
    return False
