"""Worlds of one question: which object stood at a time, in a log and in its copies, whose wall clocks step.

The judge knows the true time of each object. It asks about no time for which the log cannot know that it was wrong: a
wrong clock was accepted, and the machine was down until the true time had passed the log's. A restore at a time ends
with the object that stood then, or is refused with that object among the versions to choose from. A mirror gives the
same answer as its source.
"""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from tests.unit.commit.builders import genesis, record, stored, takeover
from tests.worlds.harness import Mutants, PromiseBroken, SeededWorld, WorldReport
from tests.worlds.log.shape import silent

from holdfast.commit.format.batch import AddressScope, Header, object_name
from holdfast.commit.format.log_clock import STEP_MS_MAX, LogClock
from holdfast.copies import times
from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.copies.restoring import Point, restore
from holdfast.copies.times import TimePlace, place_of
from holdfast.errors import InvalidRequest
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.values import Instant

__all__ = ["MUTANTS", "Writer", "grown", "run_times"]

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
EPOCH_MS: Final = 1_700_000_000_000
QUESTIONS: Final = 6
CLEAR_MS: Final = 11_000
"""This far from any object, a change of a clock that is not a step changes no answer."""


@dataclass
class Writer:
    """A machine that leads a log, in a world whose real time nobody there knows."""

    objects: MemoryObjects
    true_ms: int = EPOCH_MS
    booted_ms: int = EPOCH_MS - 5_000
    boot: int = 1
    wrong_ms: int = 0

    def __post_init__(self) -> None:
        self.written: list[tuple[int, Header]] = []
        self.hidden_until_ms = 0
        """Until then the log may have been ahead, and nothing in it says so: a machine was down for as long."""
        self._claims(replace(genesis()), None)

    def now(self) -> Instant:
        return Instant(float(self.true_ms - self.booted_ms), self.true_ms + self.wrong_ms)

    def _timed(self, header: Header) -> Header:
        moment = self.clock.take(self.now())
        return replace(
            header, time_ms=moment.time_ms, lived_ms=moment.lived_ms, boot_ms=moment.boot_ms, ahead_s=moment.ahead_s,
            clock_steps=moment.clock_steps, flags=moment.flags, scope=AddressScope(bytes([self.boot]) * 16),
        )  # fmt: skip

    def _claims(self, claim: Header, before: Header | None) -> None:
        self.clock = LogClock.begin(before, bytes([self.boot]) * 16, self.now())
        self.claim = self._lands(self._timed(claim))

    def _lands(self, header: Header, *versions: int) -> Header:
        self.objects.create(object_name(header.slot), stored(header, *versions))
        self.head = header
        self.written.append((self.true_ms, header))
        return header

    def commit(self, after_ms: int = HOUR_MS) -> int:
        self.true_ms += after_ms
        version = self.head.last_version + 1
        self._lands(self._timed(record(self.head, self.claim, version)), version)
        return version

    def restart(self, *, other_boot: bool = False) -> None:
        self.true_ms += HOUR_MS
        was_ahead = self.head.time_ms > self.written[-1][0] + STEP_MS_MAX
        if other_boot:
            self.boot += 1
            self.booted_ms = self.true_ms
        self._claims(takeover(self.head, chr(97 + len(self.written) % 20)), self.head)
        if other_boot and was_ahead and self.head.time_ms <= self.true_ms + STEP_MS_MAX:
            self.hidden_until_ms = self.true_ms

    def place(self, true_ms: int) -> TimePlace:
        return asyncio.run(place_of(MemoryStore(self.objects), (self.head, self.claim), true_ms))

    def stood_at(self, true_ms: int) -> int:
        return [header.last_version for written_ms, header in self.written if written_ms <= true_ms][-1]


def grown(draw: Random) -> Writer:
    """A log of several boots and steps. Each boot begins with a right clock, and the last object has one.

    In some logs a clock is accepted that is ahead, and is corrected later. None is accepted that is behind: the log's
    time then falls behind the truth as in a log that is idle.
    """
    writer = Writer(MemoryObjects())
    may_accept = draw.random() < 0.3

    def act(kind: str, **facts: Any) -> None:
        if kind == "step":
            writer.wrong_ms += draw.choice((-400, -2, -1, 1, 2, 400)) * draw.choice((60_000, HOUR_MS, DAY_MS))
        elif kind == "undo":
            writer.wrong_ms = 0
        elif kind == "accept" and (not writer.wrong_ms or (may_accept and writer.wrong_ms > 0)):
            writer.clock.accept(writer.now())
        elif kind in ("accept", "reboot"):
            writer.wrong_ms = 0
            writer.restart(other_boot=True)
        else:
            writer.restart(**facts)

    for _ in range(draw.randrange(1, 12)):
        for _ in range(draw.randrange(4)):
            writer.commit(draw.randrange(60_000, 5 * HOUR_MS))
        act(draw.choice(("step", "undo", "accept", "restart", "reboot")))
    writer.commit()
    writer.wrong_ms = 0
    writer.commit()
    return writer


class TimesWorld(SeededWorld):
    """One log, questions about it, and its copies."""

    async def play(self) -> None:
        """Ask, restore, and mirror."""
        draw = self.random
        writer = grown(draw)
        source, copy = (
            MemoryStore(writer.objects, url="memory:source"),
            MemoryStore(MemoryObjects(), url="memory:mirror"),
        )
        await Mirror(source, copy, MirrorOptions(hold=False)).run()
        for _ in range(QUESTIONS):
            index = draw.randrange(len(writer.written) - 1)
            early_ms, late_ms = writer.written[index][0], writer.written[index + 1][0]
            if late_ms - early_ms < 3 * CLEAR_MS:
                continue
            true_ms = draw.randrange(early_ms + CLEAR_MS, late_ms - CLEAR_MS)
            if true_ms < writer.hidden_until_ms:
                continue
            answers = [await self._answer(store, writer, true_ms) for store in (source, copy)]
            self.digest.update(repr((true_ms, answers[0])).encode())
            self.states += 1
            truth = writer.stood_at(true_ms)
            if answers[0] != answers[1]:
                raise PromiseBroken(f"a mirror answers as its source: {answers}")
            low, high = answers[0]
            if not low <= truth <= high:
                raise PromiseBroken(f"a time names the object that stood then: {truth} of {answers[0]}")
            self.seen["refused" if low < high else "answered"] += 1
            await self._restore(source, true_ms, low, high)

    async def _answer(self, store: MemoryStore, writer: Writer, true_ms: int) -> tuple[int, int]:
        """The version of a time twice, or the lowest and highest to choose from."""
        try:
            chosen = (await place_of(store, (writer.head, writer.claim), true_ms)).chosen.last_version
        except InvalidRequest as error:
            return int(str(error.fields["from_version"])), int(str(error.fields["to_version"]))
        return chosen, chosen

    async def _restore(self, source: MemoryStore, true_ms: int, low: int, high: int) -> None:
        place = MemoryStore(MemoryObjects(), url="memory:restored")
        try:
            restored = await restore(source, place, Point(time_ms=true_ms))
        except InvalidRequest as error:
            if low == high or place.objects.list(""):
                raise PromiseBroken(f"a restore is refused where the time is, and makes nothing: {error}") from error
        else:
            if restored.version != low or low < high:
                raise PromiseBroken(f"a restore ends where its time is: {restored.version} of {low}")
            self.seen["restored"] += 1


def run_times(seed: int) -> WorldReport:
    """The world of one seed."""
    world = TimesWorld(seed, Random(seed))
    with silent():
        asyncio.run(world.play())
    return world.report()


MUTANTS = Mutants(run_times, seeds_max=200)


@MUTANTS.breaks("a span of unreal times makes a restore ambiguous", "_disagrees", times, first_seed=55)
def doubted_spans_do_not_count(header: Header) -> bool:
    """The log's time is the time."""
    return False


@MUTANTS.breaks("a later clock that was behind contradicts earlier times", "pass_over", times._Doubts, first_seed=55)
def later_clocks_do_not_count(self: object, part: object) -> None:
    """Only the part of the chosen object is looked at."""
    return


@MUTANTS.breaks("a time names the object that stood then", "_jumped_ms", times, first_seed=52_700)
async def what_nobody_counted_does_not_count(*_: object) -> int:
    """A machine that was down is taken to have been down for no time."""
    return 0
