"""The keys of conflicts: never counted too high, at most ``lost`` too low, in constant memory, for some minutes."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from holdfast.commit.conflict_keys import KEY_BYTES_MAX, NOTED_MAX, PLACES_MAX, SPAN_MS, ConflictKeys
from holdfast.commit.format.transaction import FailedPrecondition, PointRead, RangeRead


def note(keys: ConflictKeys, key: bytes, now_ms: float = 0.0) -> None:
    keys.note([PointRead(b"other"), PointRead(key)], [FailedPrecondition(1, 7)], now_ms)


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_within_their_bound(seed: int) -> None:
    draw = Random(seed)
    keys, truth = ConflictKeys(), Counter[bytes]()
    for _ in range(20_000):
        key = b"key/%d" % int(draw.paretovariate(0.6))
        truth[key] += 1
        note(keys, key)
    top = keys.top(PLACES_MAX, 0.0)
    assert top.total == 20_000
    assert top.lost <= 20_000 / (PLACES_MAX + 1)
    counts = {place[0]: count for place, count in top.places}
    assert len(counts) <= PLACES_MAX
    for key, count in truth.items():
        assert count - top.lost <= counts.get(key, 0) <= count
    assert list(counts.values()) == sorted(counts.values(), reverse=True)
    assert keys.top(3, 0.0).places == top.places[:3]


def test_they_are_of_the_last_minutes() -> None:
    keys = ConflictKeys()
    note(keys, b"old", 1_000.0)
    note(keys, b"new", 1_000.0 + SPAN_MS)
    top = keys.top(9, 1_000.0 + SPAN_MS + 5_000)
    assert ([place[0] for place, _ in top.places], top.seconds) == ([b"new", b"old"], SPAN_MS / 1000 + 5)
    assert [place[0] for place, _ in keys.top(9, 2_000.0 + 2 * SPAN_MS).places] == [b"new"]
    assert keys.top(9, 3_000.0 + 5 * SPAN_MS).total == 0


def test_a_range_is_a_place_and_large_keys_and_many_preconditions_are_bounded() -> None:
    keys = ConflictKeys()
    read = RangeRead(b"a", None)
    keys.note([read, PointRead(b"k" * (KEY_BYTES_MAX + 1))], [FailedPrecondition(0, 1), FailedPrecondition(1, 1)], 0.0)
    assert keys.top(9, 0.0).places == (((b"a", None, True), 1),)
    assert keys.top(9, 0.0).total == 2
    reads = [PointRead(b"%d" % number) for number in range(100)]
    keys.note(reads, [FailedPrecondition(number, 1) for number in range(100)], 0.0)
    assert len(keys.top(PLACES_MAX, 0.0).places) == 1 + NOTED_MAX
    assert keys.top(9, 0.0).total == 102
