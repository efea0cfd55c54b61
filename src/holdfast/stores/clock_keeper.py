"""Keeps a service's clock from one start to the next, and warns when the machine's clock is far off.

Owns: when the anchor is read and written, the warning. Does not own: what the time is (``clock``), the anchor's file.

Failure model: an anchor that cannot be written is reported and tried again at the next look; a start then goes on from
the one before, on the same boot with the exact time, else from the newest record.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.stores.clock import TRUSTED_MS, StoreClock
from holdfast.stores.clock_anchor import Anchor, read_anchor, write_anchor

__all__ = ["ClockKeeper"]

LOOK_S: Final = 3_600.0
"""Between two looks at the machine's clock. After a reboot an idle service's time is behind by up to this."""

_logger = logging.getLogger(__name__)


class ClockKeeper:
    """Of the stores in one directory. ``start`` and ``close`` do file I/O and belong on a thread."""

    def __init__(self, clock: StoreClock, directory: str) -> None:
        self._clock = clock
        self._directory = directory
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self, last_ms: int) -> None:
        """Set the clock, and warn where it is far off."""
        self._clock.start(last_ms, read_anchor(self._directory))
        self._write(self._look())

    def keep(self) -> None:
        """Look again from time to time. On the event loop."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._keep)

    def _keep(self) -> None:
        anchor = self._look()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(asyncio.to_thread(self._write, anchor))
        self.keep()

    def _look(self) -> Anchor:
        anchor = self._clock.anchor()
        self._warn()
        return anchor

    def _write(self, anchor: Anchor) -> None:
        try:
            write_anchor(self._directory, anchor)
        except OSError as error:
            _logger.warning("the anchor of the stores' clock could not be written error=%s", error)

    def _warn(self) -> None:
        behind_ms = self._clock.behind_ms
        if abs(behind_ms) > TRUSTED_MS:
            _logger.warning(
                "the machine's clock is far from the stores' time: deadlines go on by the stores' time "
                "clock_ahead_seconds=%d hint=%s",
                behind_ms // 1000,
                "set the machine's clock right; where it is right, start once with stores.clock = wall: deadlines that "
                "have passed by it then end at once",
            )

    async def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def close(self) -> None:
        """Write the last anchor, while the directory is still this service's."""
        self._write(self._clock.anchor())
