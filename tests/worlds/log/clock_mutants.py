"""Mutants of the log's two times, and of what retention and holds make of them: each has one rule taken out."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from math import inf

import msgspec
from tests.worlds.harness import Mutants
from tests.worlds.log.clocks import run_clock_copies, run_clocks

from holdfast.commit.clock_watch import ClockWatch
from holdfast.commit.format import log_clock
from holdfast.commit.format.batch import Header
from holdfast.commit.format.log_clock import LogClock, Moment
from holdfast.commit.leadership import takeover
from holdfast.commit.leadership import takeover_events as t
from holdfast.commit.leadership.accepted_clocks import Accepted
from holdfast.retention.cut import Border
from holdfast.retention.generations import Generations
from holdfast.retention.policies import Change, Generation, Hold
from holdfast.values import Instant

__all__ = ["COPY_MUTANTS", "MUTANTS"]

MUTANTS = Mutants(run_clocks, seeds_max=100)
COPY_MUTANTS = Mutants(run_clock_copies, seeds_max=100)


def _by_time_alone(now: Moment, age_ms: float, *, below: int | None = None, above: int | None = None) -> Border:
    return Border(below, now.time_ms - age_ms, None, above)


def _by_lived_alone(now: Moment, age_ms: float, *, below: int | None = None, above: int | None = None) -> Border:
    return Border(below, None, now.lived_ms - age_ms, above)


MUTANTS.add(
    "ages_by_time_alone", "what goes is old by lived_ms", (Border, "of_age", staticmethod(_by_time_alone)), first_seed=1
)
MUTANTS.add("ages_by_lived_alone", "what goes is old by time_ms", (Border, "of_age", staticmethod(_by_lived_alone)))
COPY_MUTANTS.add(
    "mirrored_log_ages_by_time_alone", "what goes is old by lived_ms", (Border, "of_age", staticmethod(_by_time_alone))
)


_begin = LogClock.begin
_follow = Generations.follow


def _lives_over_boots(before: Header | None, boot_id: bytes, now: Instant, *, believed: bool = True) -> LogClock:
    clock = _begin(before, boot_id, now, believed=believed)
    if before is not None and before.scope.boot_id != boot_id:
        clock._lived_ms += max(0, now.wall_ms - before.time_ms)
    return clock


MUTANTS.add(
    "lived_ms_runs_over_boots",
    "the time between two boots counts as nothing",
    (LogClock, "begin", staticmethod(_lives_over_boots)),
)


def _any_boot_is_this_one(before: Header | None, boot_id: bytes, now: Instant, *, believed: bool = True) -> LogClock:
    return _begin(before, boot_id if before is None else before.scope.boot_id, now, believed=believed)


MUTANTS.add(
    "boot_clocks_are_one",
    "the boot clock counts within one boot alone",
    (LogClock, "begin", staticmethod(_any_boot_is_this_one)),
    first_seed=16,
)

MUTANTS.add(
    "time_stands_still_until_the_clock_has_caught_up",
    "retention goes on while a believed clock is behind",
    (log_clock, "CATCH_UP", inf),
    first_seed=2,
)

MUTANTS.add(
    "steps_are_followed_at_once",
    "a step is not followed before it is accepted",
    (log_clock, "STEP_MS_MAX", 1 << 60),
    first_seed=1,
)


@MUTANTS.breaks("a record accepts one distance of the clocks of one boot", "fits", Accepted, first_seed=1)
def any_record_accepts(self: Accepted, boot_id: bytes, leader_id: bytes, now: Instant) -> bool:
    """Whatever was accepted once, the clock is right."""
    return True


@MUTANTS.breaks("only an operator or the store accepts a step", "_accepted_by", ClockWatch, first_seed=1)
async def watch_accepts_by_itself(self: ClockWatch, boot_ms: float) -> tuple[str, Instant]:
    """A step is accepted after a while."""
    return "nobody", self._clock()


@MUTANTS.breaks("a hold ends by both times", "holds", Hold, first_seed=9)
def holds_end_by_one_time(self: Hold, now: Moment) -> bool:
    """``time_ms`` is enough."""
    return self.expires_ms is None or self.expires_lived_ms is None or now.time_ms < self.expires_ms


def _by_the_readers_clock(self: Hold, now: Moment) -> Hold:
    if self.expires_ms is not None:
        return self
    return msgspec.structs.replace(
        self, expires_ms=now.time_ms + self.lasts_ms, expires_lived_ms=now.lived_ms + self.lasts_ms
    )


def _holds_by_the_readers_clock(self: Hold, now: Moment) -> bool:
    return self.expires_ms is None or now.time_ms < self.expires_ms


MUTANTS.add(
    "holds_count_the_readers_clock",
    "the time of a hold begins when the leader sees it",
    (Hold, "begun", _by_the_readers_clock),
    (Hold, "holds", _holds_by_the_readers_clock),
    first_seed=2,
)


@MUTANTS.breaks(
    "the leader begins only holds that it saw before its look at the clock", "follow", Generations, first_seed=14
)
async def holds_begin_before_they_are_seen(
    self: Generations, before: Generation | None, change: Change, author: str
) -> Generation | None:
    """Its change is made to whatever is newest."""
    return await _follow(self, await self.newest(), change, author)


_carry_out = takeover.Driver._carry_out


@MUTANTS.breaks("a claim has the time at which it is sent", "_carry_out", takeover.Driver)
async def claims_of_an_old_time(self: takeover.Driver, effect: t.Request | t.TakeoverWait) -> t.Event:
    """The look at the clock comes before the request."""
    now = self._clock()
    event = await _carry_out(self, effect)
    return msgspec.structs.replace(event, now=now)
