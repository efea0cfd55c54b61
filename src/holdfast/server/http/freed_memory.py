"""Returning freed memory to the system after many connections have ended.

The C library keeps what was freed, and a small block in use keeps all free pages below it. glibc's ``malloc_trim``
returns the free pages of the whole heap. Other C libraries (musl, macOS) have no such call, and nothing is done.

The interpreter returns an arena (1 MiB) only when it is empty: one small object keeps a whole one. A full collection
empties the interpreter's lists of free objects, which are spread over the arenas. It stops the loop, so it is done only
when nothing is in flight. ``_FreeLists`` empties the lists that no collection empties.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import gc
from collections.abc import Callable
from typing import Final

TRIM_SECONDS: Final = 3
"""At most one trim in this time, but a repeated collection. One that returns 2 GB takes about 0.1 s, one that finds
nothing less than 1 ms."""
CONNECTIONS_MIN: Final = 64
"""This many connections have to end before a trim.

Where fewer are open, and fewer ended in the last second, a full collection comes before the trim.
"""
COLLECTIONS: Final = 2
"""Full collections after a burst, a second apart. Tasks of the last connections are still being cancelled at the first
one."""

FREE_LIST_LENGTH: Final = 256
"""The loop's lists of free handles hold 250 objects each, asyncio's list of a future's iterators 255."""
FAR_SECONDS: Final = 3600.0


def _nothing() -> None:
    """What a spare handle calls."""


class _FreeLists:
    """Keeps the free lists of the event loop and of asyncio from holding arenas.

    These lists take what is freed first after a burst: a few hundred objects all over the arenas of the burst, for
    good. So this class holds as many objects of the same kinds, made at the start, side by side. After a burst it takes
    the objects of the lists, gives its own to the lists, frees what it took (the lists are full), and takes its own
    again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = contextvars.Context()
        self._future = loop.create_future()
        self._spare = self._take()

    def _take(self) -> list[object]:
        """As many objects of each kind as a list holds; those in the lists come first."""
        loop, context = self._loop, self._context
        taken: list[object] = []
        for _ in range(FREE_LIST_LENGTH):
            timer = loop.call_later(FAR_SECONDS, _nothing, context=context)
            timer.cancel()
            taken += (timer, loop.call_soon(_nothing, context=context), iter(self._future))
        return taken

    def replace(self, then: Callable[[], object]) -> None:
        """Put the spare objects in the place of those in the lists, and call ``then``, a turn of the loop later."""
        taken = self._take()
        # The loop holds what was taken until its turn, which comes before that of this call.
        self._loop.call_soon(self._put, taken, then)

    def _put(self, taken: list[object], then: Callable[[], object]) -> None:
        self._spare.clear()
        taken.clear()
        self._spare = self._take()
        then()


class FreedMemory:
    """Decides when a trim is worth its time. ``look`` is called once a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        libc = ctypes.CDLL(None)
        self._trim = libc.malloc_trim if hasattr(libc, "malloc_trim") else None
        self._loop = loop
        self._free_lists = _FreeLists(loop)
        self._ended = 0
        self._ended_before = 0
        self._seconds = 0
        self._collections = 0

    def look(self, *, ended: int, opened: int, in_flight: int) -> None:
        """``ended``: connections ended since the start; ``opened``: those open now; ``in_flight``: commits."""
        self._seconds += 1
        quiet = ended - self._ended_before < CONNECTIONS_MIN and opened < CONNECTIONS_MIN and not in_flight
        self._ended_before = ended
        repeats = quiet and 0 < self._collections < COLLECTIONS
        if self._trim is None or (self._seconds < TRIM_SECONDS and not repeats):
            return
        if ended - self._ended >= CONNECTIONS_MIN:
            self._collections = COLLECTIONS
        elif not self._collections:
            return
        self._seconds = 0
        if quiet:
            self._ended = ended
            self._collections -= 1
            # Not from a timer: handles of timers that end in one are freed only after the calls of the same turn.
            self._loop.call_soon(self._free_lists.replace, self._collect)
        else:
            self._trim(0)

    def _collect(self) -> None:
        gc.collect()
        if self._trim is not None:
            self._trim(0)
