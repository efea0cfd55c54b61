"""Returning freed memory to the system after many connections have ended.

The C library keeps what was freed for later requests, and a small block in use keeps all free pages below it: after a
burst of half-sent requests a process stays as large as it was. glibc's ``malloc_trim`` returns the free pages of the
whole heap. Elsewhere (musl, macOS) there is no such call, and nothing is done.

The interpreter's own arenas are returned only when they are empty. A full collection empties the lists of free objects
that are spread over them. It stops the loop for as long as it takes, so it is done only when nothing is under way.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Final

__all__ = ["FreedMemory"]

TRIM_SECONDS: Final = 5
"""At most one trim in this time. One that returns 2 GB takes about 0.1 s, one that finds nothing less than 1 ms."""
CONNECTIONS_MIN: Final = 64
"""So many connections have to end before a trim; with fewer than this many open a full collection comes before it."""

COLLECTIONS: Final = 2
"""Full collections after a burst. Tasks of the last connections are still being cancelled at the first one."""


class FreedMemory:
    """Decides when a trim is worth its time. ``look`` is called once a second."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._trim = libc.malloc_trim if hasattr(libc, "malloc_trim") else None
        self._ended = 0
        self._seconds = 0
        self._collections = 0

    def look(self, *, ended: int, opened: int, in_flight: int) -> None:
        """``ended``: connections ended since the start; ``opened``: those open now; ``in_flight``: commits."""
        self._seconds += 1
        if self._seconds < TRIM_SECONDS or self._trim is None:
            return
        if ended - self._ended >= CONNECTIONS_MIN:
            self._collections = COLLECTIONS
        elif not self._collections:
            return
        self._seconds = 0
        if opened < CONNECTIONS_MIN and not in_flight:
            self._ended = ended
            self._collections -= 1
            gc.collect()
        self._trim(0)
