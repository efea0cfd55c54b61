"""The helper thread of a writer: what must be done soon, and not on an appending thread.

Owns: the thread, when it wakes. Does not own: the work (``queue``).

Failure model: work handles its own errors, and is tried again at the next wake; nothing is lost by one, because whoever
needs the result does the work itself and gets the error. What it raises all the same ends the thread. It is a daemon:
an interpreter that exits does not wait for it, and a queue that is not closed is found as after a kill.
"""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Background"]


class Background:
    """Calls ``work`` after each ``wake`` and every ``interval_s`` seconds (None: only when woken), until ``stop``.

    ``linger_s`` is how long it waits after a wake, so that others join.

    The thread starts at the first need of it.
    """

    __slots__ = ("_interval_s", "_linger_s", "_stopped", "_thread", "_wake", "_work")

    def __init__(self, work: Callable[[], None], interval_s: float | None, linger_s: float = 0) -> None:
        self._work = work
        self._interval_s = interval_s
        self._wake = threading.Event()
        self._linger_s = linger_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if interval_s is not None:
            self.wake()

    def wake(self) -> None:
        """Soon. Never blocks."""
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._run, name="holdfast-queue", daemon=True)
            self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            if self._stopped.wait(self._linger_s):
                return
            self._work()

    def stop(self) -> None:
        """End the thread and wait for the work that it is at."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
