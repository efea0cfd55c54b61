"""The time of the stores: it never goes back, and a step of the machine's clock does not move it.

| known at a start | the time is |
|---|---|
| nothing: new stores, also with an unreadable anchor | the machine's |
| an anchor of this boot | the anchor's, plus the time that the kernel has counted since |
| an anchor of another boot or machine, or an unreadable one | the last known: the time that passed is unknown |
| no anchor (older code) | the machine's if that is within ``TRUSTED_MS``, else the last of the log |
| any, and the operator says ``wall`` | the machine's, or the above if that is later |

Then a clock counts that includes suspend and cannot be set. If the machine's clock differs by up to ``TRUSTED_MS``, the
stores' time approaches it by 1 part in ``2 ** PACE_BITS``; otherwise it is not followed. The anchor is the file
``clock.json``, replaced whole and synced: ``{"store_ms": t, "boot": name, "counts_ms": [a, b], "aim_ms": d}`` with the
kernel's boot id, the boot's age by its clock and by its uptime, and the remaining correction.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from holdfast.boot import boot_id, clock_ns
from holdfast.durable_directory import replace_durably

ANCHOR_NAME: Final = "clock.json"
SIZE_MAX: Final = 4_096


class Anchor(msgspec.Struct, frozen=True):
    """One moment, by the stores' time and by the kernel's counts. ``boot`` is "" where it was not known."""

    store_ms: int
    boot: str
    counts_ms: tuple[int, int]
    aim_ms: int = 0


def read_anchor(directory: str) -> Anchor | None:
    """The anchor; None if there is none (older code). An unreadable one counts as one of another boot."""
    try:
        with open(os.path.join(directory, ANCHOR_NAME), "rb") as file:
            return msgspec.json.decode(file.read(SIZE_MAX), type=Anchor)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError):
        return Anchor(0, "", (0, 0))


def write_anchor(directory: str, anchor: Anchor) -> None:
    """Replace the anchor. *Raises*, *After a crash*, *Cost*: as ``replace_durably``."""
    replace_durably(os.path.join(directory, ANCHOR_NAME), msgspec.json.encode(anchor))


MS_NS = 1_000_000
TRUSTED_MS: Final = 86_400_000  # a machine's clock that differs by more is not followed
PACE_BITS: Final = 6
NOTICED_MS: Final = 1_000  # clocks that differ by less count as equal where somebody gives a time of day


class Boot(NamedTuple):
    """One run of the kernel, and how long it has lasted by each of its two counts."""

    name: str
    counts_ms: tuple[int, int]


def _wall_ms() -> int:
    return time.time_ns() // MS_NS


def _steady_ms() -> int:
    return clock_ns() // MS_NS


def _this_boot() -> Boot | None:
    """None if unknown. A container may show another clock or uptime than the kernel's, but seldom both alike."""
    try:
        uptime_ms = int(float(Path("/proc/uptime").read_text().split()[0]) * 1000)
    except (OSError, ValueError, IndexError):
        return None
    return Boot(boot_id().hex(), (_steady_ms(), uptime_ms)) if any(boot_id()) else None


def anchor_now(store_ms: int) -> Anchor | None:
    """The stores' time is ``store_ms`` at this moment. None where the kernel does not say how long it has run."""
    boot = _this_boot()
    return None if boot is None else Anchor(store_ms, boot.name, boot.counts_ms)


class StoreClock:
    """Milliseconds since 1970. ``wall`` is looked at in ``start`` and ``look`` only; ``steady`` never falls.

    >>> clock = StoreClock(wall=lambda: 5_000, steady=lambda: 7, boot=lambda: None)
    >>> clock()
    5000
    >>> clock.start(9_000)
    >>> clock()
    9000
    """

    def __init__(
        self,
        *,
        wall: Callable[[], int] = _wall_ms,
        steady: Callable[[], int] = _steady_ms,
        boot: Callable[[], Boot | None] = _this_boot,
        follows_wall: bool = False,
    ) -> None:
        self._wall, self._steady, self._boot = wall, steady, boot
        self._follows_wall = follows_wall
        self._base_ms, self._base_steady_ms, self._aim_ms = wall(), steady(), 0

    def __call__(self) -> int:
        """Now."""
        return self._base_ms + _paced(self._steady() - self._base_steady_ms, self._aim_ms)

    def start(self, last_ms: int, anchor: Anchor | None = None) -> None:
        """Continue with stores whose newest record is of ``last_ms``, 0 for none."""
        wall_ms = self._wall()
        if not last_ms and (anchor is None or anchor.store_ms <= 0):
            now_ms = wall_ms
        elif anchor is not None:
            now_ms = max(last_ms, anchor.store_ms + _paced(self._since(anchor), anchor.aim_ms))
        else:
            now_ms = max(last_ms, wall_ms) if wall_ms - last_ms <= TRUSTED_MS else last_ms
        if self._follows_wall:
            now_ms = max(now_ms, wall_ms)
        self._base_ms, self._base_steady_ms, self._aim_ms = now_ms, self._steady(), 0
        self.look()

    def _since(self, anchor: Anchor) -> int:
        boot = self._boot()
        if boot is None or boot.name != anchor.boot:
            return 0
        passed = [now_ms - then_ms for now_ms, then_ms in zip(boot.counts_ms, anchor.counts_ms, strict=True)]
        # The smaller: a deadline may come late, and must not come early. Below 0 they are counts of different things.
        return max(0, min(passed))

    def look(self) -> int:
        """Read the machine's clock and approach it. Returns by how much the stores' time is behind it."""
        steady_ms = self._steady()
        self._base_ms += _paced(steady_ms - self._base_steady_ms, self._aim_ms)
        self._base_steady_ms = steady_ms
        behind_ms = self._wall() - self._base_ms
        self._aim_ms = behind_ms if abs(behind_ms) <= TRUSTED_MS else 0
        return behind_ms

    @property
    def behind_ms(self) -> int:
        """The machine's time less the stores'."""
        return self._wall() - self()

    @property
    def noticed_ms(self) -> int:
        """``behind_ms``, or 0 where that is too little to be noticed."""
        behind_ms = self.behind_ms
        return behind_ms if abs(behind_ms) >= NOTICED_MS else 0

    def anchor(self) -> Anchor:
        """What the next start continues from."""
        boot = self._boot() or Boot("", (0, 0))
        self.look()
        return Anchor(self._base_ms, boot.name, boot.counts_ms, self._aim_ms)


def _paced(passed_ms: int, aim_ms: int) -> int:
    """The stores' time for ``passed_ms`` of real time, while it approaches a clock ``aim_ms`` ahead. Never falls."""
    step_ms = passed_ms >> PACE_BITS
    return passed_ms + (min(aim_ms, step_ms) if aim_ms > 0 else max(aim_ms, -step_ms))


LOOK_S: Final = 3_600.0  # between two looks; after a reboot an idle service's time is behind by up to this

_logger = logging.getLogger(__name__)


class ClockKeeper:
    """Keeps the clock and the anchor of one directory. ``start`` and ``close`` do file I/O: call them on a thread.

    Without a directory there is no file: the ``anchor`` given, or the newest record, says from where the time goes on.
    """

    def __init__(self, clock: StoreClock, directory: str | None, anchor: Anchor | None = None) -> None:
        self._clock = clock
        self._directory = directory
        self._anchor = anchor
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self, last_ms: int) -> None:
        """Set the clock, and warn where it is far off."""
        self._clock.start(last_ms, self._anchor if self._directory is None else read_anchor(self._directory))
        self._write(self._clock.anchor())
        self._warn()

    def keep(self) -> None:
        """Look again from time to time. On the event loop."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._keep)

    def _keep(self) -> None:
        anchor = self._clock.anchor()
        self._warn()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(asyncio.to_thread(self._write, anchor))
        self.keep()

    def _write(self, anchor: Anchor) -> None:
        if self._directory is None:
            return
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
