"""What a Python worker of Spark does once, so that each later task of it costs less.

Owns: taking what a worker has imported out of the garbage collector's sight. Does not own: workers, which Spark starts,
keeps and ends; what a task reads (``scan``).

Why: after each task a worker collects garbage in full, and looks at every object that its modules made. With pyspark,
pyarrow, numpy and pandas imported that takes 25 ms, nine tenths of what a small task costs a worker. Modules are never
garbage, so once they are there, they are set aside, and a collection looks at what came later.

Failure model: none. Where this is not a worker nothing is done: an application's own process is its own.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

__all__ = ["set_imports_aside"]

_DAEMON: Final = "pyspark.daemon"
_done = False


def set_imports_aside() -> None:
    """Call when a task has imported whatever it needs. Only the first call in a worker does anything.

    What is set aside is still freed when nothing refers to it; only cycles that are dropped later stay, and those among
    modules and what a first task has left are few. A collection before leaves no old ones.
    """
    global _done
    if _done:
        return
    _done = True
    if _is_kept_worker():
        gc.collect()
        gc.freeze()


def _is_kept_worker() -> bool:
    """Whether this process was forked by Spark's daemon, which keeps workers for later tasks."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
