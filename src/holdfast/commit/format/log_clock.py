"""The time of a log: what a header says of it, and how the next header's follows from the one before and two clocks.

The wall clock may be set, and may be wrong from the start. The boot clock cannot be set, but starts again at each boot.

| field | is |
|---|---|
| ``time_ms`` | the wall clock's time, as far as it is believed; it never falls |
| ``lived_ms`` | at most how long the log has existed: the boot clock's time from header to header of one boot |
| ``boot_ms`` | the boot clock, of the boot that ``scope`` names |
| ``ahead_s`` | by how much the wall clock was ahead of ``time_ms``, in whole seconds |
| ``clock_steps`` | how often the wall clock has stepped from one header to the next, along the chain |
| flag 4 | the wall clock has stepped, and is not believed |

A *step* is a change of the wall clock against the boot clock by more than ``STEP_MS_MAX`` since the wall clock was last
believed. After one, ``time_ms`` runs on by the boot clock until the step is undone or accepted. While the wall clock is
believed and behind ``time_ms``, ``time_ms`` runs at half speed, so that the ages of objects go on growing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.commit.format.batch import FLAG_CLOCK_DOUBTED, Header
from holdfast.values import Instant

STEP_MS_MAX: Final = 10_000
CATCH_UP: Final = 2
"""One part in this many is the speed of ``time_ms`` while the wall clock is behind it."""
AHEAD_S_MAX: Final = 2**31 - 1


class Moment(NamedTuple):
    """The time fields of one header."""

    time_ms: int
    lived_ms: int
    boot_ms: int
    ahead_s: int
    clock_steps: int
    doubted: bool

    @property
    def flags(self) -> int:
        """The header's flag for a wall clock that is not believed."""
        return FLAG_CLOCK_DOUBTED if self.doubted else 0

    @property
    def step_ms(self) -> int:
        """By how much the wall clock has stepped, in whole seconds; 0 while it is believed."""
        return self.ahead_s * 1000 if self.doubted else 0


def wall_ms_of(header: Header) -> int:
    """What the wall clock of the writer showed."""
    return header.time_ms + header.ahead_s * 1000


def age_ms(now: Moment, header: Header) -> int:
    """How old an object is at least: the lesser of its ages by the two times."""
    return max(0, min(now.time_ms - header.time_ms, now.lived_ms - header.lived_ms))


@dataclass(slots=True)
class LogClock:
    """The clock of one leadership, from its claim on. Pure: it gets what the two clocks show.

    >>> clock = LogClock.begin(None, bytes(16), Instant(0.0, 1_000_000))
    >>> clock.take(Instant(500.0, 1_000_500))
    Moment(time_ms=1000500, lived_ms=500, boot_ms=500, ahead_s=0, clock_steps=0, doubted=False)
    >>> clock.take(Instant(600.0, 9_000_600))
    Moment(time_ms=1000600, lived_ms=600, boot_ms=600, ahead_s=8000, clock_steps=1, doubted=True)
    >>> clock.accept(Instant(700.0, 9_000_700))
    >>> clock.take(Instant(800.0, 9_000_800)).time_ms
    9000800
    """

    _time_ms: float
    _lived_ms: int
    _boot_ms: int
    _offset_ms: int
    """The wall clock less the boot clock, as last taken."""
    _believed_ms: int
    """The same when the wall clock was last believed."""
    _steps: int

    @classmethod
    def of(cls, header: Header) -> LogClock:
        """The clock that goes on from a header of this very boot."""
        offset_ms = wall_ms_of(header) - header.boot_ms
        believed_ms = header.time_ms - header.boot_ms if header.doubts_clock else offset_ms
        return cls(header.time_ms, header.lived_ms, header.boot_ms, offset_ms, believed_ms, header.clock_steps)

    @classmethod
    def begin(cls, before: Header | None, boot_id: bytes, now: Instant, *, believed: bool = True) -> LogClock:
        """The clock of a claim after ``before``. Without ``believed`` something better contradicts the wall clock.

        In another boot the time since ``before`` is unknown, and counts as nothing. In the same boot the boot clock
        says it; where the wall clock disagrees, the log has lived for the lesser of the two: copies of a running
        machine share a boot id, and not a clock.
        """
        boot_ms, offset_ms = int(now.boot_ms), now.wall_ms - int(now.boot_ms)
        if before is not None and any(boot_id) and before.scope.boot_id == boot_id:
            clock = cls.of(before)
            passed_ms = max(0, boot_ms - before.boot_ms)
            clock._time_ms += passed_ms
            if abs(offset_ms - clock._offset_ms) > STEP_MS_MAX:
                passed_ms = min(passed_ms, max(0, now.wall_ms - wall_ms_of(before)))
            clock._lived_ms += passed_ms
            clock._boot_ms = boot_ms
            return clock
        time_ms = now.wall_ms if before is None else before.time_ms
        lived_ms, steps = (0, 0) if before is None else (before.lived_ms, before.clock_steps)
        return cls(time_ms, lived_ms, boot_ms, offset_ms, offset_ms if believed else time_ms - boot_ms, steps)

    def at(self, now: Instant) -> Moment:
        """What a header that is written now would say. It changes nothing."""
        return self._at(now)[1]

    def take(self, now: Instant) -> Moment:
        """The time of the next header."""
        self._time_ms, moment = self._at(now)
        self._lived_ms, self._boot_ms = moment.lived_ms, max(self._boot_ms, moment.boot_ms)
        self._offset_ms, self._steps = now.wall_ms - int(now.boot_ms), moment.clock_steps
        return moment

    def _at(self, now: Instant) -> tuple[float, Moment]:
        boot_ms = int(now.boot_ms)
        passed_ms, offset_ms = max(0, boot_ms - self._boot_ms), now.wall_ms - boot_ms
        doubted = abs(offset_ms - self._believed_ms) > STEP_MS_MAX
        time_ms = self._time_ms + passed_ms if doubted else max(now.wall_ms, self._time_ms + passed_ms / CATCH_UP)
        ahead_s = int((now.wall_ms - int(time_ms)) / 1000)
        return time_ms, Moment(
            int(time_ms),
            self._lived_ms + passed_ms,
            boot_ms,
            max(-AHEAD_S_MAX, min(AHEAD_S_MAX, ahead_s)),
            self._steps + (abs(offset_ms - self._offset_ms) > STEP_MS_MAX),
            doubted,
        )

    def accept(self, now: Instant) -> None:
        """Believe the wall clock as it is."""
        self._believed_ms = now.wall_ms - int(now.boot_ms)
