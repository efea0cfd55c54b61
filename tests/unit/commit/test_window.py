"""The conflict window to the letter: where its keys are after each step, and what its check notices.

``window_life.txt`` has the steps of a short life, and what each changes in the window. ``HOLDFAST_RECORD=1`` writes
what happens into the file instead; explain such a change where it is committed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.property.test_recent_writes import live

from holdfast.commit.format.transaction import Delete, Operation, RangeDelete, Write
from holdfast.commit.window import (
    BOUND_BYTES,
    KEY_BYTES,
    VERSION_BYTES,
    DeletedRanges,
    Merge,
    RecentWrites,
    Run,
    WindowGeneration,
    WindowShape,
)

LIFE = Path(__file__).with_name("window_life.txt")
RECORD = os.environ.get("HOLDFAST_RECORD") == "1"
SHAPE = WindowShape(
    leaf_keys=3,
    slice_keys=6,
    generation_keys=14,
    generation_slices=4,
    block_keys=2,
    work_keys=4,
    slice_bounds=4,
    generation_bounds=7,
)
ROOMY = 1 << 30
STEPS = 60


def shown_run(run: Run) -> str:
    blocks = "" if run._newest_by_block is None else f"~{len(run._newest_by_block)}"
    return f"{run.rank}@{run.last_version}:{b' '.join(run.keys).decode()}{blocks}"


def shown_generation(generation: WindowGeneration) -> str:
    if generation.empty and generation.after == generation.last_version:
        return f"({generation.after}]"
    order = "by time" if generation.run_begins is None else "by key"
    runs = ", ".join(map(shown_run, generation.runs))
    deleted = generation.deleted
    steps = "" if deleted is None else f", deleted {list(zip(deleted.bounds, deleted.versions, strict=True))}"
    return (
        f"({generation.after}, {generation.last_version}] {len(generation.versions)} keys, {generation.run_keys} in"
        f" runs {order} [{runs}]{steps}, {generation.slices} slices, {generation.transactions} transactions,"
        f" {generation.payload_bytes} bytes"
    )


def shown(window: RecentWrites) -> list[str]:
    """All that the window holds."""
    keys = (b" ".join(part).decode() for part in (window._open_keys, window._sorted_open_keys))
    gone = [len(run.keys) for run in window._releasing_runs], [len(versions) for versions in window._releasing_versions]
    merges = [(merge.generation.last_version, merge._positions, merge.content_bytes) for merge in window._merges]
    return [
        f"floor {window.floor}, newest {window.last_version}, open [{'] ['.join(keys)}], releases {gone}, {merges}",
        *map(shown_generation, window._generations),
    ]


def lived(bytes_max: int) -> list[str]:
    """A life in which every way of closing, merging and dropping is met: its steps, and what is new after each."""
    chance = random.Random(7)
    window, lines, before = RecentWrites(100, bytes_max=bytes_max, shape=SHAPE), list[str](), list[str]()

    def key() -> bytes:
        return b"%02d" % chance.randrange(40)

    def operation() -> Operation:
        kind = chance.random()
        if kind < 0.12:
            begin = key()
            return RangeDelete(begin, None if kind < 0.01 else begin + b"~" if kind < 0.06 else b"%02d" % 40)
        return Delete(key()) if kind < 0.3 else Write(key(), b"")

    for step in range(STEPS):
        version = window.last_version + chance.choice([1, 1, 3])
        operations = [operation() for _ in range(chance.choice([1, 1, 2, 4]))]
        deletions = window.record(version, operations)
        told = f"step {step}: {version} {len(operations)} operations, {deletions} deletions"
        if step % 3 == 0:
            asked = max(window.floor, version - 12)
            answers = window.range_changed_after(b"05", b"30", asked), window.changed_after(b"20", asked)
            told += f", changed after {asked}: {answers}"
        if step % 7 == 6:
            window.expire(version - 30)
            told += f", expired through {version - 30}"
        window.check()
        assert window._window_bytes() == sum(generation.bytes_used() for generation in window._generations)
        after = shown(window)
        lines += [told, *(f"    {line}" for line in after if line not in before)]
        before = after
    return lines


def test_the_window_holds_after_each_step_of_a_life_what_the_file_says() -> None:
    text = "\n".join([*lived(ROOMY), *lived(40_000), ""])
    if RECORD:
        LIFE.write_text(text)
    assert text == LIFE.read_text()


def test_the_runs_of_the_young_generation_are_merged_like_the_digits_of_a_binary_counter() -> None:
    window = RecentWrites(0, bytes_max=ROOMY, shape=replace(SHAPE, slice_keys=1_000))
    for leaves in range(1, 33):
        for key in range(3):
            window.record(3 * leaves + key, [Write(b"%02d" % ((7 * leaves + key) % 60), b"")])
        assert [run.rank for run in window._young.runs] == [
            digit for digit in range(5, -1, -1) if leaves >> digit & 1
        ]  # fmt: skip
        window.check()


def test_a_generation_is_closed_with_as_many_slices_or_bounds_as_its_shape_says() -> None:
    shape = replace(SHAPE, leaf_keys=1, slice_keys=1, generation_keys=1_000, generation_slices=4, generation_bounds=1)
    window = RecentWrites(0, bytes_max=ROOMY, shape=shape)
    for version in range(1, 20):
        window.record(version, [Write(b"%02d" % version, b"")])
    assert [generation.slices for generation in window._generations[3:]] == [4] * 4
    shape = replace(SHAPE, slice_bounds=2, generation_slices=1_000, generation_bounds=6)
    window = RecentWrites(0, bytes_max=ROOMY, shape=shape)
    for version in range(1, 20):
        window.record(version, [RangeDelete(b"%02d" % version, b"%02d~" % version)])
        assert window._generations[1].payload_bytes == 5 + 2 * BOUND_BYTES, "nothing but the two bounds"
    closed = [generation.deleted for generation in window._generations[3:]]
    assert [deleted and len(deleted.bounds) for deleted in closed] == [6] * 6


def test_a_wide_range_is_answered_from_the_newest_version_of_each_block() -> None:
    class Versions(dict[bytes, int]):
        looks = 0

        def __getitem__(self, key: bytes) -> int:
            self.looks += 1
            return super().__getitem__(key)

    keys = [b"%02d" % number for number in range(20)]
    versions = Versions((key, 100 + number) for number, key in enumerate(keys))
    run = Run(keys, 119, 0, 4)
    assert run.newest(b"00", b"19", versions) == 118 and versions.looks == 20 + 3
    versions.looks = 0
    for begin, end, newest, looks in ((b"03", b"14", 113, 3), (b"04", b"16", 115, 0), (b"04", b"12", 111, 8)):
        assert run.newest(begin, end, versions) == newest
        assert versions.looks == looks
        versions.looks = 0


def test_a_merged_generation_looks_at_the_runs_of_the_range_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    generation = WindowGeneration(0)
    keys = [b"10", b"11", b"20", b"21", b"30", b"31"]
    generation.versions = {key: number for number, key in enumerate(keys, 1)}
    generation.replace_runs([Run(keys[start : start + 2], 6, 0, 2) for start in (0, 2, 4)])
    looks: list[bytes] = []
    honest = Run.newest

    def newest(run: Run, begin: bytes, end: bytes | None, versions: dict[bytes, int]) -> int:
        looks.append(run.keys[0])
        return honest(run, begin, end, versions)

    monkeypatch.setattr(Run, "newest", newest)
    for begin, end, found, runs in (
        (b"00", b"10", 0, []), (b"00", b"11", 1, [b"10"]), (b"20", b"30", 4, [b"20"]),
        (b"11", b"21", 3, [b"10", b"20"]), (b"21", None, 6, [b"20", b"30"]), (b"32", None, 0, [b"30"]),
    ):  # fmt: skip
        looks.clear()
        assert generation.newest_in_range(begin, end, 0) == found
        assert looks == runs


def test_a_step_of_a_merge_ends_with_the_piece_that_fills_it() -> None:
    generation = WindowGeneration(0)
    for keys in ([b"00", b"01", b"02", b"10"], [b"001", b"11"], [b"12"], [b"13"]):
        generation.runs.append(Run(keys, 9, 0, SHAPE.block_keys))
        generation.versions.update(dict.fromkeys(keys, 9))
        generation.run_keys += len(keys)
    merge = Merge(generation, SHAPE)
    assert not merge.step()
    assert [list(run.keys) for run in merge.runs] == [[b"00", b"001", b"01", b"02"]]


def test_what_has_been_open_for_a_whole_window_is_closed_and_dropped() -> None:
    window = RecentWrites(5, bytes_max=ROOMY, shape=SHAPE)
    window.record(6, [Write(b"a", b"")])
    window.expire(5)
    assert len(window._young.versions) == 1, "its changes are all after the floor"
    window.record(9, [Write(b"b", b"")])
    window.expire(6)
    assert window._young.empty and window.changed_after(b"a", 6) == 0 and window.changed_after(b"b", 6) == 9


def test_what_a_transaction_changed_after_a_slice_ended_within_it_is_dropped_with_it() -> None:
    window = RecentWrites(0, bytes_max=ROOMY, shape=SHAPE)
    window.record(5, [RangeDelete(b"a", b"b"), RangeDelete(b"c", b"d"), Write(b"x", b""), Write(b"y", b"")])
    assert window.range_changed_after(b"x", None, 0) == 5
    assert (window._young.after, window._young.last_version, len(window._young.versions)) == (5, 5, 2)
    window.record(5, [Write(b"z", b"")], further=True)
    window.expire(5)
    window.check()
    window.record(6, [Write(b"x", b"")])
    assert window.range_changed_after(b"w", None, 5) == 6 == window.changed_after(b"x", 5)
    window.check()


@pytest.mark.parametrize("bytes_max", [ROOMY, 1, 2_000])
def test_a_window_answers_in_a_few_lives_as_a_list_of_all_changes(bytes_max: int) -> None:
    live(range(4), 250, bytes_max=bytes_max)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def test_what_is_dropped_counts_until_it_is_given_back() -> None:
    window = RecentWrites(0, bytes_max=ROOMY, shape=SHAPE)
    empty = window.bytes_used()
    for version in range(1, 8):
        window.record(version, [Write(b"%03d" % version, b"")])
    window.record(8, [RangeDelete(b"ab", b"abc")])
    held = window.bytes_used()
    content = 7 * (3 + KEY_BYTES) + 5 + 2 * BOUND_BYTES
    assert held - empty >= content + VERSION_BYTES
    window.expire(8)
    assert window.bytes_used() > held, "the new generations, and all that was dropped"
    for _ in range(9):
        window.expire(8)
        window.check()
        assert (window._releasing_bytes > 0) == bool(window._releasing_runs or window._releasing_versions)
    assert window.bytes_used() == empty
    least = RecentWrites(0, bytes_max=1, shape=SHAPE)
    least.record(1, [Write(b"a", b"")])
    for _ in range(9):
        least.expire(0)
    assert least.bytes_used() == empty, "nothing is left to be dropped, and what was dropped is given back"


def test_a_window_may_hold_as_many_bytes_as_its_bound() -> None:
    window = RecentWrites(0, bytes_max=ROOMY, shape=SHAPE)
    window.record(1, [Write(b"a", b"")])
    window._bytes_max = window._window_bytes()
    window.expire(0)
    assert window.floor == 0
    window._bytes_max -= 1
    window.expire(0)
    assert window.floor == 1


def test_a_bound_of_bytes_raises_the_floor_to_the_end_of_the_oldest_generations() -> None:
    window = RecentWrites(0, bytes_max=2_000, shape=SHAPE)
    floors = []
    for version in range(1, 60):
        window.record(version, [Write(b"%0100d" % version, b"")])
        window.expire(0)
        floors.append(window.floor)
        assert window._window_bytes() <= 2_000 or window.floor == version
    assert floors == sorted(floors) and 0 < floors[-1] < 59


@pytest.mark.parametrize(
    ("bytes_max", "slice_keys", "generation_keys"),
    [(6_400, 1, 8), (6_407, 1, 8), (6_408, 1, 9), (6_464, 2, 10), (12_800, 2, 16)],
)
def test_a_slice_ends_at_a_64th_of_the_bound_and_a_generation_at_an_eighth(
    bytes_max: int, slice_keys: int, generation_keys: int
) -> None:
    key_bytes = 100 - KEY_BYTES - VERSION_BYTES
    window = RecentWrites(0, bytes_max=bytes_max)
    for version in range(1, 60):
        window.record(version, [Write(b"%0*d" % (key_bytes, version), b"")])
        assert len(window._young.versions) == version % slice_keys
    assert len(window._generations[-1].versions) == generation_keys


# ---- questions and changes that are bugs -----------------------------------------------------------------------------


def test_a_bug_of_the_caller_is_named() -> None:
    window = RecentWrites(5, bytes_max=ROOMY)
    window.record(6, [Write(b"a", b"")])
    window.record(6, [Write(b"b", b"")], further=True)
    assert window.changed_after(b"a", 5) == window.changed_after(b"b", 5) == 6
    cases: list[tuple[str, Callable[[], object]]] = [
        ("versions rise strictly", lambda: window.record(6, [])),
        ("versions rise strictly", lambda: window.record(5, [], further=True)),
        ("no question is asked below the floor", lambda: window.changed_after(b"a", 4)),
        ("no question is asked below the floor", lambda: window.range_changed_after(b"a", None, 4)),
        ("no question is asked about an empty range", lambda: window.range_changed_after(b"a", b"a", 5)),
        ("an empty range is refused at the door", lambda: window.record(8, [RangeDelete(b"a", b"a")])),
    ]
    for words, call in cases:
        with pytest.raises(AssertionError, match=f"^{words}"):
            call()


# ---- what the check notices ------------------------------------------------------------------------------------------


def grown() -> RecentWrites:
    """With keys in every place: open ones in order, the young generation, a resting, a growing and closed ones."""
    window = RecentWrites(0, bytes_max=ROOMY, shape=SHAPE)
    for version in range(1, 60):
        window.record(version, [Write(b"%03d" % (version * 7 % 60), b""), Write(b"%03d" % (version % 60), b"")])
        if version % 9 == 0:
            window.record(version, [RangeDelete(b"a", b"b"), RangeDelete(b"c", b"d")], further=True)
    window.range_changed_after(b"a", None, 0)
    window.check()
    return window


def by_time(window: RecentWrites) -> WindowGeneration:
    return next(each for each in window._generations if each.run_begins is None and len(each.runs) > 1)


def by_key(window: RecentWrites) -> WindowGeneration:
    return next(each for each in window._generations if each.run_begins is not None)


def ranges(window: RecentWrites) -> DeletedRanges:
    return next(each.deleted for each in window._generations if each.deleted is not None)


def second_key_twice(window: RecentWrites) -> None:
    generation = by_key(window)
    run = generation.runs[0]
    run.keys = (run.keys[0], *run.keys)
    generation.run_keys += 1


def unsorted(window: RecentWrites) -> None:
    run = next(run for run in by_time(window).runs if len(set(run.keys)) > 1)
    run.keys = run.keys[::-1]


def before_its_run(window: RecentWrites) -> None:
    generation = by_time(window)
    generation.versions[generation.runs[-1].keys[0]] = generation.after


DAMAGES: dict[str, Callable[[RecentWrites], object]] = {
    "every bound has a version": lambda window: ranges(window).versions.append(0),
    "bounds rise": lambda window: ranges(window).bounds.__setitem__(1, ranges(window).bounds[0]),
    "deletions fit": lambda window: ranges(window).versions.__setitem__(0, 99),
    "a generation does not end before it begins": lambda window: setattr(window._generations[-1], "after", 99),
    "versions fit": lambda window: by_key(window).versions.__setitem__(by_key(window).runs[0].keys[0], 99),
    "the keys in runs are counted": lambda window: setattr(by_time(window), "run_keys", 1),
    "the runs list exactly the keys": lambda window: by_time(window).versions.__setitem__(
        b"new", by_time(window).last_version
    ),
    "a run is sorted": unsorted,
    "runs are ordered by time": lambda window: setattr(by_time(window).runs[0], "last_version", 99),
    "a run lists what changed in it": before_its_run,
    "merged runs list each key once, in order": second_key_twice,
    "merged runs are found by their first key": lambda window: by_key(window).run_begins.__setitem__(  # type: ignore[union-attr]
        0, b"another"
    ),
    "the young generation is the first": lambda window: setattr(window, "_young", WindowGeneration(59)),
    "generations do not overlap": lambda window: setattr(window._generations[-2], "after", 1),
    "the young generation is up to date": lambda window: setattr(window, "last_version", 60),
    "nothing outlives the floor": lambda window: setattr(window, "floor", window._generations[-1].last_version),
    "the sorted open keys are sorted": lambda window: window._sorted_open_keys.reverse(),
    "closed bytes are counted": lambda window: setattr(window, "_closed_bytes", window._closed_bytes + 1),
    "what is gone is not counted": lambda window: setattr(window, "_releasing_bytes", 1),
}


@pytest.mark.parametrize("words", DAMAGES)
def test_a_broken_invariant_is_noticed_by_its_name(words: str) -> None:
    window = grown()
    while window._releasing_runs or window._releasing_versions:
        window.expire(0)
    DAMAGES[words](window)
    with pytest.raises(AssertionError, match=f"^{words}"):
        window.check()
