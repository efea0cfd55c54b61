"""The helper thread of a writer: what must be done soon, and not on an appending thread.

Owns: the thread, when it wakes. Does not own: the work (``queue``).

Failure model: work handles its own errors, and is tried again at the next wake; nothing is lost by one, because whoever
needs the result does the work itself and gets the error. What it raises all the same ends the thread. It is a daemon:
an interpreter that exits does not wait for it, and a queue that is not closed is found as after a kill. Waking it takes
no lock of Python's, in which an interrupt (Ctrl-C) could leave the caller's next wake waiting for ever.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Background"]


class Background:
    """Calls ``work`` after each ``wake`` and every ``interval_s`` seconds (None: only when woken), until ``stop``.

    The thread starts at the first need of it: with an interval when it is made, which raises ``RuntimeError`` where the
    system has none to give.
    """

    __slots__ = ("_interval_s", "_starting", "_stopped", "_thread", "_wakes", "_work")

    def __init__(self, work: Callable[[], None], interval_s: float | None) -> None:
        self._work = work
        self._interval_s = interval_s
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._starting = threading.RLock()
        self._stopped = False
        self._thread: threading.Thread | None = None
        if interval_s is not None:
            self._start()
            self.wake()

    def wake(self) -> None:
        """Soon. Never blocks, and never raises: what wakes it has been done already."""
        if self._thread is None:
            with suppress(RuntimeError):  # the system has no thread to give: the next wake asks again
                self._start()
        if self._wakes.empty():  # one is enough for all that come before the thread has looked
            self._wakes.put(None)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name="holdfast-queue", daemon=True)
                thread.start()
                self._thread = thread  # one that is known has been started, so it can be waited for

    def _run(self) -> None:
        while True:
            try:
                self._wakes.get(timeout=self._interval_s)
            except Empty:
                pass  # the interval has passed
            if self._stopped:
                self._wakes.put(None)  # for another that an interrupt of its start has left unknown
                return
            self._work()

    def stop(self) -> None:
        """End the thread and wait for the work that it is at."""
        with self._starting:
            self._stopped = True
        self._wakes.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
