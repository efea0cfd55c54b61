"""Where a time is in a log, and whether the clocks that wrote the log agree about it.

The objects of a leadership fall into parts: a part ends where the leader's wall clock stepped (``clock_steps``). In one
part both times rise, ``time_ms`` and what the wall clock showed, so a search finds where each of them crosses a time.
They disagree in two cases:

- In the part of the chosen object the wall clock was past the time: the log's time may have been late.
- In a later part the wall clock was behind the log's time: the times before it may have been ahead.

A step that was undone leaves no doubt: before and after it both agree, and the boot clock fits.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.commit.format.batch import FIRST_SLOT, Header, jump
from holdfast.commit.format.chain import next_slot
from holdfast.commit.format.log_clock import STEP_MS_MAX, wall_ms_of
from holdfast.commit.reading.reader import Leadership, LeadershipWalk, find_header, newest_where
from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.objects.port import ObjectStore

PARTS_MAX: Final = 10_000
"""As many parts are looked at. A log with more of them after a time has had no clock."""


@dataclass(frozen=True, slots=True)
class TimePlace:
    """The newest object of a time, and the object after it; None at the end of the log."""

    chosen: Header
    following: Header | None


@dataclass(frozen=True, slots=True)
class _Part:
    leadership: Leadership
    first: Header
    last: Header
    following: Header | None
    """The first object of the next part of the same leadership."""

    @property
    def is_undone(self) -> bool:
        """Whether the wall clock was doubted in it, and came back to where it had been."""
        after = self.following
        if after is None or not self.last.doubts_clock or after.doubts_clock or _disagrees(after):
            return False
        passed_ms = after.lived_ms - self.last.lived_ms
        return abs(after.time_ms - self.last.time_ms - passed_ms) <= STEP_MS_MAX


@dataclass(slots=True)
class _Doubts:
    """What later objects say against the times of earlier ones, on the way back.

    ``early_ms``: by how much the times here may be ahead of the truth: a later wall clock was as much behind the log's
    time, and no jump of the log's time between here and there explains it. ``early_after_ms``: the same of the object
    after this place. ``is_least``: they may be more ahead: a machine was down before that clock was read, and no clock
    has counted for how long.
    """

    behind: list[_Part] = field(default_factory=list[_Part])
    early_ms: int = 0
    early_after_ms: int = 0
    is_least: bool = False
    _after: _Part | None = None

    def reach(self, header: Header) -> None:
        """Go back to this object, from the one after it."""
        if self._after is not None:
            after = self._after.first
            self.is_least |= _is_behind(self._after) and header.scope.boot_id != after.scope.boot_id
            self.early_after_ms = self.early_ms
            self.early_ms = max(0, self.early_ms - _jump_ms(header, after))

    def pass_over(self, part: _Part) -> None:
        """Go back over a part that is later than the time."""
        if _is_behind(part):
            self.behind.append(part)
            self.early_ms = max(self.early_ms, -part.first.ahead_s * 1000)
        self.early_ms = max(0, self.early_ms - _jump_ms(part.first, part.last))
        self._after = part


def _is_behind(part: _Part) -> bool:
    """Whether the wall clock of a part says that the log's time before it was ahead."""
    return _disagrees(part.first) and part.first.ahead_s < 0 and not part.is_undone


def _jump_ms(header: Header, later: Header) -> int:
    """By how much the log's time has jumped between two objects: what no boot clock has counted.

    A claim counts the lesser of two clocks in ``lived_ms``; in a boot its own clock says more.
    """
    passed_ms = 0
    if header.scope.boot_id == later.scope.boot_id:
        passed_ms = max(later.lived_ms - header.lived_ms, later.boot_ms - header.boot_ms)
    return max(0, later.time_ms - header.time_ms - passed_ms)


def _disagrees(header: Header) -> bool:
    return abs(header.ahead_s) * 1000 > STEP_MS_MAX


async def place_of(source: ObjectStore, frontier: tuple[Header, Header], time_ms: int) -> TimePlace:
    """The newest object whose ``time_ms`` is at or before a time.

    Raises: InvalidRequest (the clocks disagree which one it is: it names the versions to choose from), NotFound
    (``log_truncated``: nothing that is left is so old), CorruptData, Unavailable. Cost: two header reads for each
    leadership back to that time, a search for each step of a clock since, and one for the object.
    """
    newest, claim = frontier
    doubts = _Doubts()
    async with aclosing(_parts_back(source, claim, newest)) as parts:
        async for part in parts:
            doubts.reach(part.last)
            if part.first.time_ms <= time_ms:
                return await _chosen(source, part, time_ms, doubts)
            doubts.pass_over(part)
            newest = part.leadership.newest
            if len(doubts.behind) > PARTS_MAX:
                raise InvalidRequest(
                    "clocks have stepped too often since this time", hint="choose a version", time_ms=time_ms
                )
    raise _too_old(newest, time_ms)


def _too_old(newest: Header, time_ms: int) -> NotFound:
    return NotFound(
        "the log has nothing that is so old",
        code=Code.LOG_TRUNCATED if newest.slot != FIRST_SLOT and newest.truncated_through else Code.NOT_FOUND,
        hint="give a later time",
        time_ms=time_ms,
    )


async def _parts_back(source: ObjectStore, claim: Header, newest: Header) -> AsyncGenerator[_Part]:
    """The parts of each leadership, from the newest object back to the first claim or to what retention removed."""
    async for leadership in LeadershipWalk(source, claim, newest):
        last, following, is_whole = leadership.newest, None, True
        while is_whole and leadership.claim.clock_steps != last.clock_steps:
            until_last = replace(leadership, newest=last)
            slot, before = await newest_where(source, until_last, _before_step(last.clock_steps))
            first = await find_header(source, jump(leadership.claim.slot) if slot is None else slot - 1)
            part = _Part(leadership, last if first is None else first, last, following)
            yield part
            is_whole = slot is None or before is not None
            last, following = before or leadership.claim, part.first
        if is_whole:
            yield _Part(leadership, leadership.claim, last, following)


def _before_step(steps: int) -> Callable[[Header], bool]:
    return lambda header: header.clock_steps < steps


async def _newest_with(source: ObjectStore, part: _Part, holds: Callable[[Header], bool]) -> Header | None:
    """The newest object up to the end of a part for which ``holds``, the claim where no other does; None if it was
    removed."""
    slot, header = await newest_where(source, replace(part.leadership, newest=part.last), holds)
    return part.leadership.claim if slot is None else header


async def _reached(source: ObjectStore, part: _Part, time_ms: int) -> Header | None:
    """The newest object before the wall clock had passed the time in a part; the one before the part for none."""
    if wall_ms_of(part.first) > time_ms:
        return await find_header(source, part.first.prev)

    def is_early(header: Header) -> bool:
        return header.clock_steps < part.last.clock_steps or wall_ms_of(header) <= time_ms

    return await _newest_with(source, part, is_early)


async def _chosen(source: ObjectStore, part: _Part, time_ms: int, doubts: _Doubts) -> TimePlace:
    """The place in this part; ``doubts`` come from later ones. Raises: InvalidRequest."""

    def is_early(header: Header) -> bool:
        return header.time_ms <= time_ms

    chosen = await _newest_with(source, part, is_early)
    if chosen is None:
        raise _too_old(part.last, time_ms)
    place = TimePlace(chosen, await find_header(source, next_slot(chosen)))
    if place.following is not None and place.following.claim == chosen.claim and not part.is_undone:
        rest = _Part(part.leadership, place.following, part.last, None)
        if _disagrees(rest.first) and rest.first.ahead_s < 0 and rest.first.clock_steps == part.last.clock_steps:
            doubts.behind.append(rest)
    is_last = place.following is None or place.following.slot < part.last.slot
    early_ms = doubts.early_after_ms if is_last else doubts.early_ms
    if doubts.is_least and place.following is not None:
        early_ms = max(early_ms, await _jumped_ms(source, part.leadership, place))
    candidates: list[Header] = []
    for each in doubts.behind:
        if place.following is None:
            continue
        if wall_ms_of(each.first) < place.following.time_ms or place.following.time_ms - early_ms <= time_ms:
            candidates.append(await _reached(source, each, time_ms) or each.first)
    if _disagrees(chosen) and wall_ms_of(chosen) > time_ms and not part.is_undone:
        candidates.append(await _reached(source, part, time_ms) or part.first)
    if any(each.last_version != chosen.last_version for each in candidates):
        raise _ambiguous(place, [chosen, *candidates], time_ms)
    return place


async def _jumped_ms(source: ObjectStore, within: Leadership, place: TimePlace) -> int:
    """By how much the log's time may be ahead after this place: as much as it has jumped until then, within boots.
    Cost: a search for each step of a clock before."""
    jumped_ms, after = 0, place.following or place.chosen
    async with aclosing(_parts_back(source, within.claim, place.chosen)) as parts:
        async for each in parts:
            if each.last.scope.boot_id == after.scope.boot_id:
                jumped_ms += _jump_ms(each.last, after)
            jumped_ms += _jump_ms(each.first, each.last)
            after = each.first
    return jumped_ms


def _ambiguous(place: TimePlace, candidates: list[Header], time_ms: int) -> InvalidRequest:
    versions = sorted(each.last_version for each in candidates)
    low, high = versions[0], versions[-1]
    return InvalidRequest(
        "the clocks of this log disagree about this time: one of them was wrong, or was set",
        hint=f"choose a version from {low}, which every clock calls old enough, to {high}, which one does; "
        "`holdfast log ls --long` and `holdfast log cat` show what lies between",
        time_ms=time_ms,
        chosen_version=place.chosen.last_version,
        chosen_time_ms=place.chosen.time_ms,
        next_time_ms=None if place.following is None else place.following.time_ms,
        from_version=low,
        to_version=high,
    )
