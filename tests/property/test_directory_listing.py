"""Listing by probing from a hint against reading the whole directory, on logs that obey the log's laws."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.objects.directory import objects
from holdfast.objects.directory.files import PosixFiles
from holdfast.objects.directory.objects import (
    CLAIM_BYTES,
    GAP_MAX,
    SLOT_MAX,
    DirectoryObjects,
    slot_of_name,
    slots_newest_first,
)

JUMP = 1_000
DATA_BYTES = 2_048


def log_of(random: Random, reigns: int, window: int, removed: float) -> dict[int, int]:
    """The slots of a log with their sizes: reigns with claims, jumps, holes in the last span, zombies, retention.

    This is the protocol from the outside: a leader's data start at its jump, its unacknowledged span may land in any
    part, the next claim takes the highest absent slot behind the acknowledged ones, zombies land in the dead zone.
    """
    slots = {SLOT_MAX: CLAIM_BYTES}
    head = SLOT_MAX
    for reign in range(reigns):
        first = head - (1 if reign == 0 else JUMP)
        acknowledged = random.choice([0, 0, 1, random.randint(0, 80)])
        for slot in range(first, first - acknowledged, -1):
            slots[slot] = DATA_BYTES
        frontier = first - acknowledged
        span = range(frontier - 1, frontier - window, -1)
        for slot in random.sample(span, random.randint(0, min(5, len(span)))):
            slots[slot] = DATA_BYTES  # in flight when the leader died; the oldest of the span did not land
        if reign < reigns - 1:
            head = frontier
            slots[head] = CLAIM_BYTES
    in_order = sorted(slots, reverse=True)
    oldest = in_order[: int(len(in_order) * removed)]
    return {slot: size for slot, size in slots.items() if size == CLAIM_BYTES or slot not in oldest}


def by_reading_all(slots: dict[int, int], limit: int) -> list[tuple[int, int]]:
    return sorted(slots.items())[:limit]


@given(
    seed=st.integers(0, 2**32),
    reigns=st.integers(1, 6),
    window=st.sampled_from([1, 2, 50, 1_000]),
    removed=st.sampled_from([0.0, 0.0, 0.3, 0.9]),
    limit=st.sampled_from([1, 2, 7, 100]),
)
def test_a_probed_page_is_the_page_of_a_full_scan(
    seed: int, reigns: int, window: int, removed: float, limit: int
) -> None:
    random = Random(seed)
    slots = log_of(random, reigns, window, removed)
    hints = [None, 0, SLOT_MAX, random.randint(0, SLOT_MAX), *random.sample(sorted(slots), min(3, len(slots)))]
    for hint in hints:
        page = slots_newest_first(slots.get, hint, limit)
        assert page is None or page == by_reading_all(slots, limit)


@pytest.mark.parametrize("is_mutant", [False, True])
def test_a_hint_is_not_used_once_its_slot_is_gone(is_mutant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention removes the slot that a hint names; a listing from there would end far before the newest object."""
    if is_mutant:
        monkeypatch.setattr(objects, "is_data", lambda size: size is None or size > CLAIM_BYTES)
    wrong = 0
    for seed in range(20):
        random = Random(seed)
        batches, kept = random.randint(GAP_MAX, 4 * GAP_MAX), random.randint(1, 200)
        newest = SLOT_MAX - batches
        left = {SLOT_MAX: CLAIM_BYTES} | {newest + turn: DATA_BYTES for turn in range(kept)}
        for hint in random.sample(range(newest + kept, SLOT_MAX), 5):
            page = slots_newest_first(left.get, hint, 1)
            wrong += page is not None and page != by_reading_all(left, 1)
    assert (wrong > 0) is is_mutant


def test_probing_from_a_data_slot_serves_the_page_and_asks_a_bounded_number_of_slots() -> None:
    slots = {SLOT_MAX: CLAIM_BYTES} | {SLOT_MAX - 1 - turn: DATA_BYTES for turn in range(5_000)}
    asked: list[int] = []

    def size_of(slot: int) -> int | None:
        asked.append(slot)
        return slots.get(slot)

    hint = SLOT_MAX - 5_000 + 63
    assert slots_newest_first(size_of, hint, 10) == by_reading_all(slots, 10)
    assert len(asked) <= 1 + 63 + GAP_MAX + 10


def test_the_widest_gap_that_the_protocol_allows_is_crossed() -> None:
    data_before, claim = SLOT_MAX - 2, SLOT_MAX - 3
    first_landed = claim - JUMP - (1_000 - 1)  # the last slot of the first span: everything before it did not land
    slots = {SLOT_MAX: CLAIM_BYTES, SLOT_MAX - 1: DATA_BYTES, data_before: DATA_BYTES, claim: CLAIM_BYTES}
    slots[first_landed] = DATA_BYTES
    assert slots_newest_first(slots.get, data_before, 1) == [(first_landed, DATA_BYTES)]


def test_a_claim_is_no_hint_because_it_may_stand_alone() -> None:
    old_claim = SLOT_MAX - 10_000
    newest = {SLOT_MAX - 90_000 - turn: DATA_BYTES for turn in range(100)}
    slots = {SLOT_MAX: CLAIM_BYTES, old_claim: CLAIM_BYTES} | newest
    assert slots_newest_first(slots.get, old_claim, 1) is None


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_pages_of_a_real_directory_equal_a_full_scan_whatever_the_hint_says(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    random = Random(seed)
    root = _fresh(tmp_path_factory)
    slots = log_of(random, random.randint(1, 4), random.choice([2, 50]), random.choice([0.0, 0.5]))
    for slot, size in slots.items():
        (root / "batches" / f"{slot:020d}").write_bytes(bytes(size))
    hint = random.choice([b"", b"garbage", b"99999999999999999999", *(f"{slot:020d}".encode() for slot in slots)])
    (root / ".holdfast" / "newest").write_bytes(hint)
    opened = DirectoryObjects(PosixFiles(), str(root), "one")
    everything = [(f"batches/{slot:020d}", size) for slot, size in sorted(slots.items())]
    limit = random.choice([1, 3, 50])
    listed: list[tuple[str, int]] = []
    after = ""
    while page := opened.page("batches/", after, limit):
        assert len(page) == min(limit, len(everything) - len(listed))
        listed += page
        after = page[-1][0]
    assert listed == everything
    opened.close()


def test_writers_leave_a_hint_and_only_to_data(tmp_path: Path) -> None:
    opened = DirectoryObjects(PosixFiles(), str(tmp_path), "one")
    assert opened.create(f"batches/{SLOT_MAX:020d}", bytes(CLAIM_BYTES))
    opened.tidy()
    assert not (tmp_path / ".holdfast/newest").exists()
    for turn in range(1, 131):
        assert opened.create(f"batches/{SLOT_MAX - turn:020d}", bytes(DATA_BYTES))
        opened.tidy()
    hint = slot_of_name((tmp_path / ".holdfast/newest").read_text())
    assert hint is not None
    assert 0 <= hint - (SLOT_MAX - 130) < 64
    assert opened.page("batches/", "", 2) == [
        (f"batches/{SLOT_MAX - 130:020d}", DATA_BYTES),
        (f"batches/{SLOT_MAX - 129:020d}", DATA_BYTES),
    ]
    opened.close()


def _fresh(factory: pytest.TempPathFactory) -> Path:
    root = factory.mktemp("log")
    (root / "batches").mkdir()
    (root / ".holdfast").mkdir()
    return root
