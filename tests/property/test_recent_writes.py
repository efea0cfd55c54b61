"""The conflict window answers exactly as a list of all changes would, however it is cut, merged and dropped.

Owns: the obvious oracle, the random worlds that compare it with ``RecentWrites``, and the planted bugs that this
comparison must find. Does not own: verdicts about transactions (``resolve``).
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commit.format.transaction import Delete, Operation, RangeDelete, Write
from holdfast.commit.window import DeletedRanges, Merge, RecentWrites, Run, WindowGeneration, WindowShape

ROOMY = 1 << 30
SMALL = os.environ.get("HOLDFAST_SMALL") == "1"

SMALLEST = WindowShape(
    leaf_keys=1,
    slice_keys=2,
    generation_keys=6,
    generation_slices=2,
    block_keys=1,
    work_keys=1,
    slice_bounds=3,
    generation_bounds=6,
)


class AllChanges:
    """The oracle: every change in a list, every question a walk through all of it."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, bytes, bytes | None]] = []

    def record(self, version: int, operations: list[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, RangeDelete):
                self._changes.append((version, operation.begin, operation.end))
            else:
                self._changes.append((version, operation.key, operation.key + b"\0"))

    def range_changed_after(self, begin: bytes, end: bytes | None, version: int) -> int:
        return max(
            (
                changed
                for changed, first, stop in self._changes
                if changed > version and (end is None or first < end) and (stop is None or begin < stop)
            ),
            default=0,
        )

    def changed_after(self, key: bytes, version: int) -> int:
        return self.range_changed_after(key, key + b"\0", version)

    def forget_through(self, floor: int) -> None:
        """No question is asked below the floor, so this changes no answer; it only keeps the walk short."""
        self._changes = [change for change in self._changes if change[0] > floor]


class AnswersDiffer(Exception):
    """The window and the oracle disagree. Not an AssertionError, which the window's own checks raise."""


def same(question: str, answer: int, expected: int) -> None:
    if answer != expected:
        raise AnswersDiffer(f"{question}: {answer} instead of {expected}")


class World:
    """One seeded life of a window next to the oracle."""

    def __init__(self, seed: int, *, bytes_max: int) -> None:
        self.random = random.Random(seed)
        draw = self.random.randint
        self.keys = self.random.choice([4, 30, 300, 5_000])
        self.lag = self.random.choice([2, 10, 60])
        self.span = self.random.choice([15, 60, 200])
        self.range_deletes = self.random.choice([0.0, 0.0, 0.1, 0.5])
        shape = WindowShape(
            leaf_keys=draw(1, 6),
            slice_keys=draw(1, 24),
            generation_keys=draw(4, 80),
            generation_slices=draw(1, 5),
            block_keys=draw(1, 4),
            work_keys=draw(1, 12),
            slice_bounds=draw(1, 12),
            generation_bounds=draw(2, 30),
        )
        self.version = draw(0, 100)
        self.window = RecentWrites(self.version, bytes_max=bytes_max, shape=shape)
        self.oracle = AllChanges()

    def key(self) -> bytes:
        return b"%d" % self.random.randrange(self.keys)

    def range(self) -> tuple[bytes, bytes | None]:
        begin = self.key()
        if self.random.random() < 0.05:
            return begin, None
        end = self.key()
        if end < begin:
            begin, end = end, begin
        return begin, end if begin < end else begin + b"\0"

    def operation(self) -> Operation:
        if self.random.random() < self.range_deletes:
            return RangeDelete(*self.range())
        return Write(self.key(), b"") if self.random.random() < 0.8 else Delete(self.key())

    def step(self, *, check: bool) -> None:
        """One transaction is judged at a version of its own and recorded; now and then the floor rises."""
        choice = self.random
        asked = max(self.window.floor, self.version - choice.choice([0, 1, choice.randrange(self.lag), self.span]))
        key = self.key()
        same("point", self.window.changed_after(key, asked), self.oracle.changed_after(key, asked))
        if choice.random() < 0.7:
            begin, end = self.range()
            expected = self.oracle.range_changed_after(begin, end, asked)
            same("range", self.window.range_changed_after(begin, end, asked), expected)
        self.version += choice.choice([1, 1, 1, 7])
        operations = [self.operation() for _ in range(choice.choice([1, 2, 2, 3, 12]))]
        self.window.record(self.version, operations)
        self.oracle.record(self.version, operations)
        if choice.random() < 0.15:
            self.window.expire(self.version - self.span)
            self.oracle.forget_through(self.window.floor)
        if check:
            self.window.check()


def live(seeds: range, steps: int, *, bytes_max: int = ROOMY, check: bool = True) -> None:
    for seed in seeds:
        world = World(seed, bytes_max=bytes_max)
        for step in range(steps):
            world.step(check=check and step % 16 == 0)


def end_taken_as_inside(patch: pytest.MonkeyPatch) -> None:
    honest = Run.newest

    def newest(run: Run, begin: bytes, end: bytes | None, versions: dict[bytes, int]) -> int:
        return honest(run, begin, None if end is None else end + b"\0", versions)

    patch.setattr(Run, "newest", newest)


def end_of_a_deletion_taken_as_inside(patch: pytest.MonkeyPatch) -> None:
    honest = DeletedRanges.delete

    def delete(deleted: DeletedRanges, begin: bytes, end: bytes | None, version: int) -> None:
        honest(deleted, begin, None if end is None else end + b"\0", version)

    patch.setattr(DeletedRanges, "delete", delete)


def what_was_deleted_before_forgotten_after_a_deletion(patch: pytest.MonkeyPatch) -> None:
    honest = DeletedRanges.delete

    def delete(deleted: DeletedRanges, begin: bytes, end: bytes | None, version: int) -> None:
        known = set(deleted.bounds)
        honest(deleted, begin, end, version)
        if end is not None and end not in known:
            deleted.versions[deleted.bounds.index(end)] = 0

    patch.setattr(DeletedRanges, "delete", delete)


def range_deletions_ignored_by_point_reads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeletedRanges, "newest_at", lambda deleted, key: 0)


def a_generation_dropped_too_early(patch: pytest.MonkeyPatch) -> None:
    honest = RecentWrites._drop_expired

    def drop(window: RecentWrites) -> None:
        honest(window)
        generations = window._generations
        if len(generations) > 3 and generations[-1].after <= window.floor:
            closed = generations.pop()
            window._closed_bytes -= closed.bytes_used()
            window._release(closed)

    patch.setattr(RecentWrites, "_drop_expired", drop)


def the_older_version_kept_when_generations_meet(patch: pytest.MonkeyPatch) -> None:
    honest = WindowGeneration.absorb

    def absorb(older: WindowGeneration, younger: WindowGeneration) -> None:
        stale = dict(older.versions)
        honest(older, younger)
        older.versions.update(stale)

    patch.setattr(WindowGeneration, "absorb", absorb)


def deletions_lost_when_generations_meet(patch: pytest.MonkeyPatch) -> None:
    honest = WindowGeneration.absorb

    def absorb(older: WindowGeneration, younger: WindowGeneration) -> None:
        kept = older.deleted
        honest(older, younger)
        older.deleted = kept

    patch.setattr(WindowGeneration, "absorb", absorb)


def a_stale_key_of_an_old_run_trusted(patch: pytest.MonkeyPatch) -> None:
    honest = Run.newest

    def newest(run: Run, begin: bytes, end: bytes | None, versions: dict[bytes, int]) -> int:
        return run.last_version if honest(run, begin, end, versions) else 0

    patch.setattr(Run, "newest", newest)


def keys_lost_in_the_merge(patch: pytest.MonkeyPatch) -> None:
    honest = Merge._next_piece
    patch.setattr(Merge, "_next_piece", lambda merge: honest(merge)[1:])


def keys_in_no_run_yet_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecentWrites, "_newest_open", lambda window, begin, end: 0)


MUTANTS = [
    end_taken_as_inside,
    end_of_a_deletion_taken_as_inside,
    what_was_deleted_before_forgotten_after_a_deletion,
    range_deletions_ignored_by_point_reads,
    a_generation_dropped_too_early,
    the_older_version_kept_when_generations_meet,
    deletions_lost_when_generations_meet,
    a_stale_key_of_an_old_run_trusted,
    keys_lost_in_the_merge,
    keys_in_no_run_yet_forgotten,
]


@pytest.mark.parametrize("plant", MUTANTS)
def test_the_oracle_alone_finds_a_planted_bug(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AnswersDiffer):
            live(range(60), 1_000, check=False)


KEYS = st.binary(max_size=2)
RANGES = st.tuples(KEYS, st.none() | KEYS).filter(lambda bounds: bounds[1] is None or bounds[0] < bounds[1])
OPERATIONS = st.lists(
    st.builds(Write, KEYS, st.just(b"")) | st.builds(Delete, KEYS) | RANGES.map(lambda bounds: RangeDelete(*bounds)),
    min_size=1,
    max_size=5,
)
STEPS = st.lists(
    st.tuples(st.just("record"), st.integers(1, 4), OPERATIONS)
    | st.tuples(st.just("expire"), st.integers(0, 20), st.just([])),
    max_size=40,
)


@given(steps=STEPS, keys=st.lists(KEYS, max_size=4), ranges=st.lists(RANGES, max_size=4))
@settings(max_examples=60 if SMALL else 300, deadline=None)
def test_every_answer_equals_that_of_a_list_of_all_changes(
    steps: list[tuple[str, int, list[Operation]]], keys: list[bytes], ranges: list[tuple[bytes, bytes | None]]
) -> None:
    window, oracle, version = RecentWrites(0, bytes_max=ROOMY, shape=SMALLEST), AllChanges(), 0
    for kind, number, operations in steps:
        if kind == "record":
            version += number
            window.record(version, operations)
            oracle.record(version, operations)
        else:
            window.expire(version - number)
        window.check()
        for asked in range(window.floor, version + 1):
            for key in keys:
                assert window.changed_after(key, asked) == oracle.changed_after(key, asked)
            for begin, end in ranges:
                assert window.range_changed_after(begin, end, asked) == oracle.range_changed_after(begin, end, asked)


def test_sixty_thousand_transactions_are_judged_as_by_the_oracle() -> None:
    live(range(12 if SMALL else 60), 1_000)


@pytest.mark.parametrize("bytes_max", [1, 2_000, 8_000])
def test_answers_stay_exact_when_memory_raises_the_floor(bytes_max: int) -> None:
    live(range(12), 400, bytes_max=bytes_max)


def test_memory_raises_the_floor_to_the_end_of_whole_generations_and_no_further_than_needed() -> None:
    window = RecentWrites(0, bytes_max=1 << 20)
    for version in range(1, 100_001):
        window.record(version, [Write(b"%016d" % version, b"")])
        if version % 64 == 0:
            window.expire(0)
            if version % 6_400 == 0:
                window.check()
    assert 0 < window.floor < window.last_version
    kept = window.last_version - window.floor
    assert kept * 150 > (1 << 20) // 2, "at least half of the bound is in use"
    for version in range(window.floor + 1, window.last_version + 1):
        assert window.changed_after(b"%016d" % version, window.floor) == version


def test_the_byte_bound_holds_again_after_a_few_calls_of_expire() -> None:
    bytes_max = 1 << 18
    window = RecentWrites(0, bytes_max=bytes_max)
    for version in range(1, 5_001):
        window.record(version, [Write(b"%0200d" % version, b"")])
    assert window.bytes_used() > bytes_max
    for _ in range(200):
        window.expire(0)
    assert window.bytes_used() <= bytes_max
    window.check()


def test_a_quiet_log_forgets_everything_once_its_window_has_passed() -> None:
    window = RecentWrites(0, bytes_max=ROOMY)
    empty = window.bytes_used()
    window.record(10, [Write(b"a", b""), RangeDelete(b"b", b"c")])
    window.expire(9)
    assert window.changed_after(b"a", 9) == 10
    for _ in range(10):
        window.expire(10)
    assert window.bytes_used() == empty
    assert window.changed_after(b"a", 10) == 0
    window.check()


def test_a_key_changed_for_ever_does_not_grow_the_window() -> None:
    window = RecentWrites(0, bytes_max=ROOMY)
    for version in range(1, 50_001):
        window.record(version, [Write(b"hot", b""), RangeDelete(b"a", b"b")])
        window.expire(version - 5_000)
    assert window.bytes_used() < 2_000_000
    assert window.changed_after(b"hot", 49_999) == 50_000


def test_the_bytes_counted_are_those_held() -> None:
    window = RecentWrites(0, bytes_max=ROOMY)
    for version in range(1, 200_001, 2):
        window.record(version, [Write(b"%016d" % version, b""), Write(b"%016d" % (version + 1), b"")])
    keys = 200_000
    # A key of 16 bytes takes 64, its version half of 32, its place in a run 8 and a full dictionary 30 to 60.
    assert 110 * keys < window.bytes_used() < 160 * keys


def test_the_garbage_collector_does_not_walk_the_window() -> None:
    window = RecentWrites(0, bytes_max=ROOMY)
    for version in range(1, 400_001):
        window.record(version, [Write(b"%016d" % version, b"")])
    gc.collect()
    walked = sum(
        len(held)
        for held in gc.get_objects()
        if isinstance(held, list | tuple | dict) and held and type(next(iter(held))) is bytes
    )
    assert walked < 40_000, "only the young generation and the first keys of runs"
    assert window.changed_after(b"%016d" % 1, 0) == 1


def test_a_transaction_of_many_range_deletes_is_spread_over_generations() -> None:
    window, oracle = RecentWrites(0, bytes_max=ROOMY, shape=SMALLEST), AllChanges()
    operations: list[Operation] = [RangeDelete(b"%04d" % key, b"%04d" % (key + 1)) for key in range(0, 100, 2)]
    operations.append(Write(b"0001", b""))
    window.record(5, operations)
    oracle.record(5, operations)
    window.check()
    for key in range(101):
        assert window.changed_after(b"%04d" % key, 4) == oracle.changed_after(b"%04d" % key, 4)
    assert window.changed_after(b"0000", 5) == 0


def test_versions_that_do_not_rise_and_questions_below_the_floor_are_bugs() -> None:
    window = RecentWrites(5, bytes_max=ROOMY)
    with pytest.raises(AssertionError, match="versions rise strictly"):
        window.record(5, [Write(b"a", b"")])
    with pytest.raises(AssertionError, match="below the floor"):
        window.changed_after(b"a", 4)
    with pytest.raises(AssertionError, match="below the floor"):
        window.range_changed_after(b"a", None, 4)
    with pytest.raises(AssertionError, match="empty range"):
        window.range_changed_after(b"b", b"a", 5)
