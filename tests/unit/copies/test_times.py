"""A time names the object that stood at that time, or the clocks disagree and the versions to choose from are named."""

from __future__ import annotations

import asyncio

import pytest
from tests.worlds.log.times import DAY_MS, EPOCH_MS, HOUR_MS, Writer

from holdfast.commit.format.batch import Kind
from holdfast.copies.restoring import Point, restore
from holdfast.errors import InvalidRequest, NotFound
from holdfast.objects.memory import MemoryObjects, MemoryStore


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


def test_while_a_machine_is_down_nobody_counts_how_much_the_log_was_ahead() -> None:
    """The log was two hours ahead. The new boot shows one: the other one has passed while the machine was down."""
    writer = Writer(MemoryObjects())
    writer.commit(5 * HOUR_MS)
    writer.wrong_ms = 2 * HOUR_MS
    writer.commit(4 * HOUR_MS)
    writer.clock.accept(writer.now())
    writer.commit(HOUR_MS)
    for _ in range(3):
        writer.commit(HOUR_MS)
    writer.wrong_ms = 0
    writer.restart(other_boot=True)
    writer.commit(HOUR_MS)
    before, first = writer.written[2:4]
    for true_ms in range(before[0] + 60_000, writer.written[-2][0], 600_000):
        truth = writer.stood_at(true_ms)
        try:
            assert writer.place(true_ms).chosen.last_version == truth
        except InvalidRequest as error:
            low, high = int(str(error.fields["from_version"])), int(str(error.fields["to_version"]))
            assert low <= truth <= high
    assert writer.place(first[0] - 6 * HOUR_MS).chosen.last_version == writer.written[0][1].last_version


def test_a_time_for_which_every_clock_names_the_same_object_is_no_question() -> None:
    writer = Writer(MemoryObjects())
    writer.commit()
    first, first_ms = writer.commit(), writer.true_ms
    writer.wrong_ms = -HOUR_MS
    writer.commit(3 * HOUR_MS)
    writer.restart(other_boot=True)
    writer.wrong_ms = -60_000
    writer.commit()
    writer.wrong_ms = 0
    writer.commit()
    assert writer.place(first_ms + 1_000).chosen.last_version == first


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
