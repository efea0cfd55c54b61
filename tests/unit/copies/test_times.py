"""A time names the object that stood at that time, or the clocks disagree and the versions to choose from are named."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from tests.unit.commit.builders import genesis, record, stored, takeover

from holdfast.commit.format.batch import AddressScope, Header, Kind, object_name
from holdfast.commit.format.log_clock import LogClock
from holdfast.copies.restoring import Point, restore
from holdfast.copies.times import Place, place_of
from holdfast.errors import InvalidRequest, NotFound
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.values import Instant

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
EPOCH_MS = 1_700_000_000_000


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
        if other_boot:
            self.boot += 1
            self.booted_ms = self.true_ms
        self._claims(takeover(self.head, chr(97 + len(self.written) % 20)), self.head)

    def place(self, true_ms: int) -> Place:
        return asyncio.run(place_of(MemoryStore(self.objects), (self.head, self.claim), true_ms))

    def stood_at(self, true_ms: int) -> int:
        return [header.last_version for written_ms, header in self.written if written_ms <= true_ms][-1]


def test_a_jump_for_one_commit_hides_no_later_commit() -> None:
    writer = Writer(MemoryObjects())
    writer.commit()
    writer.wrong_ms = 2 * DAY_MS
    writer.commit()
    writer.wrong_ms = 0
    for _ in range(5):
        version = writer.commit()
        place = writer.place(writer.true_ms + 1_000)
        assert place.chosen.last_version == version
    place = writer.place(writer.true_ms - 1_000)
    assert place.following is not None
    assert (place.chosen.last_version, place.following.last_version) == (version - 1, version)


def test_a_jump_that_was_accepted_makes_every_time_in_it_ambiguous() -> None:
    writer = Writer(MemoryObjects())
    before = writer.commit()
    writer.wrong_ms = 2 * DAY_MS
    writer.clock.accept(writer.now())
    writer.commit()
    in_jump_ms = writer.true_ms + 1_000
    writer.commit()
    writer.wrong_ms = 0
    after = writer.commit()
    for accepted in (False, True):
        for true_ms in (in_jump_ms, writer.true_ms + 1_000):
            with pytest.raises(InvalidRequest, match="clocks of this log disagree") as refused:
                writer.place(true_ms)
            fields = refused.value.fields
            assert fields["from_version"] == before
            assert before < int(str(fields["to_version"])) <= after
            assert int(str(fields["to_version"])) >= writer.stood_at(true_ms)
        if not accepted:
            writer.clock.accept(writer.now())
            after = writer.commit()
    assert writer.place(writer.written[1][0] + 1_000 - HOUR_MS).chosen.kind is Kind.CLAIM, "long before it is clear"


def test_a_restore_at_an_ambiguous_time_names_the_versions_and_makes_nothing() -> None:
    writer = Writer(MemoryObjects())
    before = writer.commit()
    writer.wrong_ms = 2 * DAY_MS
    writer.clock.accept(writer.now())
    writer.commit()
    writer.wrong_ms = 0
    last = writer.commit()
    copy = MemoryObjects()

    async def scenario() -> None:
        source = MemoryStore(writer.objects)
        with pytest.raises(InvalidRequest, match="disagree") as refused:
            await restore(source, MemoryStore(copy), Point(time_ms=writer.true_ms + 1_000))
        assert refused.value.hint is not None
        assert str(before) in refused.value.hint
        assert not copy.list("")
        restored = await restore(source, MemoryStore(copy), Point(version=last))
        assert (restored.version, restored.time_ms) == (last, None)

    asyncio.run(scenario())


def test_a_restore_at_a_time_says_between_which_objects_it_lies() -> None:
    writer = Writer(MemoryObjects())
    first = writer.commit()
    at_ms = writer.true_ms
    writer.commit()

    async def scenario() -> None:
        source, copy = MemoryStore(writer.objects), MemoryStore(MemoryObjects())
        restored = await restore(source, copy, Point(time_ms=at_ms + 5_000))
        assert (restored.version, restored.time_ms, restored.next_time_ms) == (first, at_ms, at_ms + HOUR_MS)
        with pytest.raises(NotFound, match="so old"):
            await restore(source, MemoryStore(MemoryObjects()), Point(time_ms=EPOCH_MS - 1))

    asyncio.run(scenario())


def grown(draw: Random) -> Writer:
    """A log of several boots and steps. Each boot begins with a right clock, and the last object has one.

    Nobody accepts a wrong clock: that looks like a right one until it is corrected.
    """
    writer = Writer(MemoryObjects())

    def act(kind: str, **facts: Any) -> None:
        if kind == "step":
            writer.wrong_ms += draw.choice((-400, -2, -1, 1, 2, 400)) * draw.choice((60_000, HOUR_MS, DAY_MS))
        elif kind == "undo":
            writer.wrong_ms = 0
        elif kind == "accept" and not writer.wrong_ms:
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


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_a_time_is_answered_with_the_truth_or_refused_with_it_among_the_choices(first: int) -> None:
    answered = refused = 0
    for seed in range(first, first + 100):
        draw = Random(seed)
        writer = grown(draw)
        for _ in range(6):
            index = draw.randrange(len(writer.written) - 1)
            early_ms, late_ms = writer.written[index][0], writer.written[index + 1][0]
            if late_ms - early_ms < 30_000:
                continue
            true_ms = draw.randrange(early_ms + 11_000, late_ms - 11_000)
            truth = writer.stood_at(true_ms)
            try:
                found = writer.place(true_ms)
            except InvalidRequest as error:
                refused += 1
                low, high = int(str(error.fields["from_version"])), int(str(error.fields["to_version"]))
                assert low <= truth <= high, f"seed {seed} at {true_ms - EPOCH_MS}"
            else:
                answered += 1
                assert found.chosen.last_version == truth, f"seed {seed} at {true_ms - EPOCH_MS}"
    assert answered > refused > 0
