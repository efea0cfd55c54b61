"""The time of the stores: it never goes back, and a step of the machine's clock does not move it.

| at a start, the stores are | the time goes on from |
|---|---|
| new, or unknown with an unreadable anchor | the machine's |
| in files, with an anchor of this boot | the anchor's, by what the kernel has counted since |
| in files, with an anchor of an earlier boot | the machine's, where the age of this boot confirms it to ``REBOOT_MS`` |
| in files, in every other case | the last known: the time that passed is unknown |
| in the log | the last record; a standby's count since it knew of it; the anchor, if this machine made that record |
| in the log, as well | the log's, up to ``HEARD_MS`` later where it heard of the record at once, else ``TRUSTED_MS`` |
| without an anchor or a record in the log (moved) | the machine's, with the same bound |
| any, and the operator says ``wall`` | the machine's, or the above if that is later |

No clock takes the time beyond the machine's. Then a clock counts that includes suspend and cannot be set. The time is
never faster than that clock, so what lasts n ms does not end early. Time that was lost stays lost until a start with
``wall``. While the machine's clock is behind by up to ``TRUSTED_MS``, the stores' time is slower by 1 part in
``2 ** PACE_BITS``. The anchor is the file ``clock.json``, replaced whole and synced: ``{"store_ms": t, "boot": name,
"counts_ms": [a, b], "behind_ms": d, "leader": id}`` with the kernel's boot id, the boot's age by its clock and by its
uptime, the machine's clock less the stores' time, and which leader of a log wrote it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from holdfast.boot import boot_id, clock_ns
from holdfast.files.durable_directory import replace_durably

ANCHOR_NAME: Final = "clock.json"
SIZE_MAX: Final = 4_096


class Anchor(msgspec.Struct, frozen=True):
    """One moment, by the stores' time and by the kernel's counts. ``boot`` is "" where it was not known."""

    store_ms: int
    boot: str
    counts_ms: tuple[int, int]
    behind_ms: int = 0
    leader: str = ""


def read_anchor(directory: str) -> Anchor | None:
    """The anchor; None if there is none. An unreadable one counts as one of another boot."""
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
TRUSTED_MS: Final = 86_400_000  # a clock that differs by more is not followed
REBOOT_MS: Final = 300_000  # from the last known time to the boot after it: off, and since the last look
HEARD_MS: Final = 10_000  # from the moment of a record until a standby hears of it
PACE_BITS: Final = 6
EQUAL_MS: Final = 1  # clocks that differ by up to this are equal: they are read one after the other
FAR_MS: Final = 600_000  # stores that are behind by more are reported
_PHASE_NS: Final = (time.time_ns() - clock_ns()) % MS_NS  # with it both clocks begin a millisecond at the same moment


class Boot(NamedTuple):
    """One run of the kernel, and how long it has lasted by each of its two counts."""

    name: str
    counts_ms: tuple[int, int]


def _wall_ms() -> int:
    return time.time_ns() // MS_NS


def _steady_ms() -> int:
    return (clock_ns() + _PHASE_NS) // MS_NS


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


class ByLog(NamedTuple):
    """The stores' time at a start if as much has passed since the last record as the log's time says, and how far it
    may be beyond what is known without the log."""

    now_ms: int
    most_ms: int


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

    def start(self, last_ms: int, *anchors: Anchor, by_log: ByLog | None = None) -> None:
        """Continue with stores whose newest record is of ``last_ms``, 0 for none; no anchor may be of a time that a
        later leader's stores had not reached. ``by_log``: what the log says, where they are in one."""
        wall_ms = self._wall()
        if not last_ms and all(anchor.store_ms <= 0 for anchor in anchors):
            now_ms = wall_ms
        else:
            now_ms = self._continued(last_ms, anchors, by_log, wall_ms)
        if self._follows_wall:
            now_ms = max(now_ms, wall_ms)
        self._base_ms, self._base_steady_ms, self._aim_ms = now_ms, self._steady(), 0
        self.look()

    def _continued(self, last_ms: int, anchors: Sequence[Anchor], by_log: ByLog | None, wall_ms: int) -> int:
        boot = self._boot() if anchors else None
        counted = [one.store_ms + _paced(_since(one, boot), _aim(one.behind_ms)) for one in anchors]
        known_ms = max(last_ms, *counted) if counted else last_ms
        believed_ms, least_ms, most_ms = wall_ms, 0, TRUSTED_MS
        if by_log is not None:
            believed_ms, most_ms = by_log
        elif anchors:
            anchor = anchors[0]
            if boot is None or anchor.boot in ("", boot.name):
                return known_ms
            # The clock of the day may be wrong. It is believed where a boot that is older than the time that it says
            # has passed, or much younger, does not contradict it.
            believed_ms -= anchor.behind_ms
            least_ms = min(boot.counts_ms)
            most_ms = least_ms + REBOOT_MS
        believed_ms = min(believed_ms, wall_ms)
        return believed_ms if least_ms <= believed_ms - known_ms <= most_ms else known_ms

    def look(self) -> int:
        """Read the machine's clock, and go slower if it is behind. Returns by how much the stores' time is behind."""
        steady_ms = self._steady()
        self._base_ms += _paced(steady_ms - self._base_steady_ms, self._aim_ms)
        self._base_steady_ms = steady_ms
        behind_ms = self._wall() - self._base_ms
        self._aim_ms = _aim(behind_ms)
        return behind_ms

    @property
    def behind_ms(self) -> int:
        """The machine's time less the stores'."""
        now_ms = self()
        return self._wall() - now_ms

    @property
    def noticed_ms(self) -> int:
        """``behind_ms``, or 0 where that is too little to be noticed."""
        behind_ms = self.behind_ms
        return behind_ms if abs(behind_ms) > EQUAL_MS else 0

    def anchor(self) -> Anchor:
        """What the next start continues from."""
        boot = self._boot() or Boot("", (0, 0))
        behind_ms = self.look()
        return Anchor(self._base_ms, boot.name, boot.counts_ms, behind_ms)


def _since(anchor: Anchor, boot: Boot | None) -> int:
    """The time since the anchor as far as the kernel has counted it; 0 in another boot."""
    if boot is None or boot.name != anchor.boot:
        return 0
    passed = [now_ms - then_ms for now_ms, then_ms in zip(boot.counts_ms, anchor.counts_ms, strict=True)]
    # The smaller: a deadline may come late, and must not come early. Below 0 they are counts of different things.
    return max(0, min(passed))


def _aim(behind_ms: int) -> int:
    """By how much the stores' time is ahead of a clock that it waits for, below 0. It never catches up with one."""
    return behind_ms if -TRUSTED_MS <= behind_ms < 0 else 0


def _paced(passed_ms: int, aim_ms: int) -> int:
    """The stores' time for ``passed_ms`` of real time, while a clock ``-aim_ms`` behind comes closer. Never falls."""
    return passed_ms + max(aim_ms, -(passed_ms >> PACE_BITS))


def in_stores_time(at_ms: int, behind_ms: int) -> int:
    """A time of the machine's clock as one of the stores, which are behind that clock by ``behind_ms``."""
    return max(1, at_ms - behind_ms)


LOOK_S: Final = 60.0  # between two looks: after a crash of the machine the last known time is at most as old
WARN_LOOKS: Final = 60  # between two warnings

_logger = logging.getLogger(__name__)


class ClockKeeper:
    """Keeps the clock and the anchor of one directory. ``start`` and ``close`` do file I/O: call them on a thread.

    Where the stores are in a log, ``leader`` leads it, and begins with ``start_in_log``.
    """

    def __init__(self, clock: StoreClock, directory: str, leader: str = "") -> None:
        self._clock = clock
        self._directory = directory
        self._leader = leader
        self._looks = 0
        self._is_refused = False
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self, last_ms: int) -> None:
        """Set the clock by the anchor, and warn where it is far off."""
        anchor = read_anchor(self._directory)
        self._clock.start(last_ms, *([] if anchor is None else [anchor]))
        self._write(self._anchor())
        self._warn()

    def start_in_log(self, last_ms: int, anchors: Sequence[Anchor], by_log: ByLog | None) -> None:
        """The same by what is known of the log. It does no I/O: the anchor comes with the first look."""
        self._clock.start(last_ms, *anchors, by_log=by_log)
        self._warn()

    def _anchor(self) -> Anchor:
        return msgspec.structs.replace(self._clock.anchor(), leader=self._leader)

    def keep(self) -> None:
        """Look again from time to time. On the event loop."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._keep)

    def _keep(self) -> None:
        anchor = self._anchor()
        self._looks += 1
        if self._looks % WARN_LOOKS == 0:
            self._warn()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(asyncio.to_thread(self._write, anchor))
        self.keep()

    def _write(self, anchor: Anchor) -> None:
        try:
            write_anchor(self._directory, anchor)
        except OSError as error:
            if not self._is_refused:
                _logger.warning("the anchor of the stores' clock could not be written error=%s", error)
            self._is_refused = True
        else:
            self._is_refused = False

    def _warn(self) -> None:
        behind_ms = self._clock.behind_ms
        if behind_ms >= FAR_MS or behind_ms < -TRUSTED_MS:
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
        self._write(self._anchor())
