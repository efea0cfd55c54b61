"""Laws of the holds of jobs: what an unfinished job needs stays; one that never comes back holds nothing for good."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.unit.commit.builders import genesis, record

from holdfast.commit.format.batch import Header
from holdfast.commit.format.log_clock import Moment
from holdfast.retention.job_holds import SECONDS_MAX, JobBorder, JobHold, holds_of, longest

CLAIM = genesis()
START = Moment(CLAIM.time_ms, CLAIM.lived_ms, 0, 0, 0, doubted=False)


def written(version: int, at_ms: int) -> Header:
    made = record(CLAIM, CLAIM, CLAIM.last_version + version)
    return replace(made, time_ms=CLAIM.time_ms + at_ms, lived_ms=CLAIM.lived_ms + at_ms)


def at(ms: int, lived_ms: int | None = None) -> Moment:
    return START._replace(time_ms=START.time_ms + ms, lived_ms=START.lived_ms + (ms if lived_ms is None else lived_ms))


def test_what_was_committed_since_stays_and_what_came_before_may_go() -> None:
    hold = JobHold("sink/orders", written(5, 0).last_version, 60)
    assert JobBorder(hold, at(1_000)).lets_go(written(4, 0))
    assert not JobBorder(hold, at(1_000)).lets_go(written(5, 0))
    assert not JobBorder(hold, at(60_000)).lets_go(written(9, 0))


def test_it_ends_when_both_times_of_the_log_say_so() -> None:
    hold = JobHold("sink/orders", written(5, 0).last_version, 60)
    assert JobBorder(hold, at(60_001)).lets_go(written(5, 0))
    assert not JobBorder(hold, at(60_001, lived_ms=59_000)).lets_go(written(5, 0))
    assert not JobBorder(hold, at(59_000, lived_ms=60_001)).lets_go(written(5, 0))


def test_the_longest_keep_what_all_keep() -> None:
    chance = random.Random(7)
    for _ in range(200):
        holds = [
            JobHold(str(n), written(chance.randrange(1, 9), 0).last_version, chance.randrange(4)) for n in range(6)
        ]
        now, header = at(chance.randrange(6_000)), written(chance.randrange(1, 9), chance.randrange(3_000))
        every = all(JobBorder(hold, now).lets_go(header) for hold in holds)
        assert all(JobBorder(hold, now).lets_go(header) for hold in longest(holds)) == every


def test_a_record_that_cannot_be_read_holds_as_long_as_any_may() -> None:
    contents = (
        b"{}",
        b'{"seconds":60}',
        b'{"seconds":-1}',
        b'{"seconds":99999999}',
        b"\xff",
        b"[]",
        b'{"seconds":1,"seconds":2}',
    )
    found = holds_of((b"hold/%d" % number, content, 7) for number, content in enumerate(contents))
    assert [hold.seconds for hold in found] == [SECONDS_MAX, 60, 0, SECONDS_MAX, SECONDS_MAX, SECONDS_MAX, SECONDS_MAX]
