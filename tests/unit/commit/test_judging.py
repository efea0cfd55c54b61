"""The work of judging and recording to the letter: what is asked, what is recorded in which part, and what it costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.unit.commit.builders import BASE

from holdfast.commit.format.transaction import (
    FailedPrecondition,
    JobChange,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Rejected,
    StoreRefusal,
    Transaction,
    Write,
)
from holdfast.commit.stages.attempts import Attempts
from holdfast.commit.stages.events import NO_STORE_PARTS, CommitEntry, Place
from holdfast.commit.stages.judge import Judge
from holdfast.commit.stages.resolve import PART_OPERATIONS, RANGE_DELETE_WORK, SAMPLES_MAX, Resolve
from holdfast.commit.window import RecentWrites
from holdfast.errors import Code, InvalidRequest


class Window:
    """A window of nine stretches that notes what it is asked and what it is given; ``b"x"`` changed at ``BASE + 9``."""

    floor = BASE
    stretches = 9

    def __init__(self) -> None:
        self.questions: list[tuple[object, ...]] = []
        self.parts: list[tuple[int, int, bool]] = []

    def changed_after(self, key: bytes, version: int) -> int:
        self.questions.append((key, version))
        return BASE + 9 if key == b"x" else 0

    def range_changed_after(self, begin: bytes, end: bytes | None, version: int) -> int:
        self.questions.append((begin, end, version))
        return BASE + 9 if begin == b"x" else 0

    def record(self, version: int, operations: Sequence[Operation], *, further: bool = False) -> int:
        assert len(self.parts) < 9, "a transaction ends"
        self.parts.append((version, len(operations), further))
        return sum(isinstance(operation, RangeDelete) for operation in operations)


POINT_WORK, RANGE_WORK = 1 + 9 // 4, 3 * 9


def txn(
    *reads: Precondition, request_id: str | None = None, at: int | None = None, operations: Sequence[Operation] = ()
) -> Transaction:
    return Transaction([*operations], [*reads], request_id, None, at)


def judge_of(window: Window) -> Judge:
    return Judge(cast("RecentWrites", window))


def test_a_judge_begins_with_nothing_begun_and_nothing_refused() -> None:
    judge = judge_of(Window())
    assert (judge.judging, judge.verdict) == (False, None)


@pytest.mark.parametrize(
    ("transaction", "verdict"),
    [
        (txn(PointRead(b"a", BASE)), None),
        (txn(PointRead(b"a"), at=BASE), None),
        (txn(PointRead(b"a", BASE - 1)), Rejected("too_old")),
        (txn(request_id="x", at=BASE), None),
        (txn(request_id="x", at=BASE - 1), Rejected("too_old")),
        (txn(request_id="x"), Rejected("too_old")),
        (txn(PointRead(b"x"), PointRead(b"a", BASE - 1), at=BASE), Rejected("too_old")),
        (
            txn(PointRead(b"x"), PointRead(b"a"), RangeRead(b"x", b"z"), at=BASE),
            Rejected("conflict", (FailedPrecondition(0, BASE + 9), FailedPrecondition(2, BASE + 9))),
        ),
    ],
)
def test_a_verdict_is_that_of_the_definition_however_little_work_is_allowed_at_once(
    transaction: Transaction, verdict: Rejected | None
) -> None:
    for work in (1, POINT_WORK, 1_000):
        judge = judge_of(Window())
        for _ in range(2):  # the second one begins with nothing of the first
            judge.judge(transaction, work)
            while judge.judging:
                judge.judge(transaction, work)
            assert judge.verdict == verdict


def test_a_judge_asks_one_question_for_each_precondition_and_stops_when_its_work_is_used_up() -> None:
    window = Window()
    judge = judge_of(window)
    reads = [PointRead(b"a"), RangeRead(b"b", b"c", BASE + 2), RangeRead(b"d")]
    questions = [(b"a", BASE + 1), (b"b", b"c", BASE + 2), (b"d", None, BASE + 1)]
    whole = txn(*reads, at=BASE + 1)
    assert judge.judge(whole, 1_000) == 1_000 - POINT_WORK - 2 * RANGE_WORK and not judge.judging
    assert window.questions == questions
    window.questions.clear()
    assert judge.judge(whole, POINT_WORK) == 0 and judge.judging is True
    assert window.questions == questions[:1]
    assert judge.judge(whole, 1) == 1 - RANGE_WORK and judge.judging is True
    assert judge.judge(whole, RANGE_WORK) == 0 and judge.judging is False
    assert window.questions == questions and judge.verdict is None


def test_a_precondition_without_a_version_is_a_bug() -> None:
    with pytest.raises(AssertionError, match=r"^a precondition has a version"):
        judge_of(Window()).judge(txn(PointRead(b"a")), 9)


# ---- what is recorded ------------------------------------------------------------------------------------------------


def resolve_of(window: Window | None = None, **options: Any) -> Resolve:
    resolve = Resolve(BASE, Attempts(bytes_max=1 << 20), **{"window_ms": 1_000.0, "bytes_max": 1 << 20, **options})
    if window is not None:
        resolve.recent = cast("RecentWrites", window)
    return resolve


def entry(transaction: Transaction, version: int = BASE + 1, parts: object = None) -> CommitEntry:
    item = CommitEntry(transaction, lambda _: None, parts=parts)
    item.version = version
    return item


def writes(count: int) -> list[Operation]:
    return [Write(b"%d" % number, b"") for number in range(count)]


def test_a_long_transaction_is_recorded_in_parts_and_goes_on_where_it_stopped() -> None:
    whole = txn(operations=writes(2 * PART_OPERATIONS + 88))
    parts = [(BASE + 1, PART_OPERATIONS, False), (BASE + 1, PART_OPERATIONS, True), (BASE + 1, 88, True)]
    for work, first in ((1, 1), (PART_OPERATIONS, 1), (PART_OPERATIONS + 1, 2), (2 * PART_OPERATIONS + 1, 3)):
        window = Window()
        resolve, item = resolve_of(window), entry(whole)
        entries = deque[CommitEntry | Place]([item])
        taken = resolve.decide_some(entries, work)
        assert window.parts == parts[:first]
        assert (bool(taken), item.accepted, resolve.deciding) == (
            (True, True, False) if first == 3 else (False, False, True)
        )
        if first < 3:
            assert resolve.decide_some(entries, 1_000) == [item] and item.accepted and not resolve.deciding
        assert window.parts == parts and resolve.accepted == 1
    window = Window()
    resolve_of(window).decide([entry(txn(operations=writes(PART_OPERATIONS)))])
    assert window.parts == [(BASE + 1, PART_OPERATIONS, False)]


def test_an_operation_costs_one_and_a_range_deletion_as_much_as_six() -> None:
    operations = [*writes(3), RangeDelete(b"a"), RangeDelete(b"b")]
    cost = 3 + 2 * RANGE_DELETE_WORK
    for work, count in ((cost, 1), (cost + 1, 2), (cost + 2, 2)):
        entries = deque[CommitEntry | Place]([entry(txn(operations=operations)), entry(txn(operations=writes(1)))])
        assert len(resolve_of(Window()).decide_some(entries, work)) == count
    judged = entry(txn(PointRead(b"a"), at=BASE, operations=writes(1)))
    for work, count in ((POINT_WORK + 1, 1), (POINT_WORK + 2, 2)):
        judged.outcome, judged.accepted = None, False
        resolve = resolve_of(window := Window())
        resolve._judge = judge_of(window)
        entries = deque[CommitEntry | Place]([judged, entry(txn(operations=writes(1)))])
        assert len(resolve.decide_some(entries, work)) == count


def test_what_was_accepted_and_rejected_is_counted() -> None:
    resolve = resolve_of()
    assert (resolve.accepted, resolve.rejected) == (0, 0)
    for number in range(1, 4):
        old = txn(PointRead(b"k", BASE - 1), operations=writes(1))
        resolve.decide([entry(txn(operations=writes(1)), BASE + number), entry(old, BASE + number)])
        assert (resolve.accepted, resolve.rejected) == (number, number)


# ---- parts of a commit -----------------------------------------------------------------------------------------------


class Stores:
    def __init__(self, refused: StoreRefusal | None = None) -> None:
        self.refused = refused
        self.entries: list[CommitEntry] = []

    def carry_out(self, entry: CommitEntry) -> StoreRefusal | None:
        self.entries.append(entry)
        return self.refused


def test_the_stores_do_their_parts_once_the_preconditions_hold_and_may_refuse() -> None:
    closed = StoreRefusal("", 0, "overloaded", "the stores are not open")
    refused = StoreRefusal("publish", 1, "store_full", "it is full")
    jobs = (JobChange("sink/orders", b"intent", BASE),)
    for stores, refusal in ((None, closed), (Stores(refused), refused), (Stores(), None)):
        resolve = resolve_of()
        if stores is not None:
            resolve.stores = stores
        item = entry(Transaction(writes(1), jobs=jobs), parts=object())
        resolve.decide([item])
        assert item.outcome == (None if refusal is None else Rejected("store_refused", refused=refusal))
        assert item.accepted is (refusal is None)
        assert resolve.jobs.changed_after(b"sink/orders", BASE) == (0 if refusal else BASE + 1)
        assert resolve.recent.changed_after(b"0", BASE) == (0 if refusal else BASE + 1)
        assert stores is None or stores.entries == [item]
    stores = Stores()
    resolve.stores = stores
    late = Transaction(writes(1), jobs=jobs)
    for item in (
        entry(txn(PointRead(b"0"), at=BASE, operations=writes(1)), BASE + 2, object()),
        entry(late, BASE + 2, object()),
        entry(late, BASE + 2, NO_STORE_PARTS),
        entry(Transaction(writes(1)), BASE + 2),
    ):
        resolve.decide([item])
        assert not stores.entries
    resolve.stores = None
    item = entry(Transaction(writes(1), jobs=(JobChange("sink/b", b"", BASE),)), BASE + 3, NO_STORE_PARTS)
    resolve.decide([item])
    assert item.accepted and resolve.jobs.changed_after(b"sink/b", BASE) == BASE + 3


def test_a_record_of_a_job_is_expected_at_a_version_before_its_own_and_within_the_window() -> None:
    def outcome(*jobs: JobChange, version: int = BASE + 2) -> object:
        reads = [PointRead(b"quiet", BASE)]
        item = entry(Transaction(writes(1), reads, jobs=jobs), version, NO_STORE_PARTS)
        resolve.decide([item])
        return item.outcome

    resolve = resolve_of()
    assert outcome(JobChange("a", b"", BASE), version=BASE + 1) is None
    free, stale = JobChange("b", b""), JobChange("a", b"", BASE)
    conflict = Rejected("conflict", (FailedPrecondition(2, BASE + 1), FailedPrecondition(3, BASE + 1)))
    assert outcome(free, stale, JobChange("a", b"", BASE)) == conflict
    ahead = outcome(stale, JobChange("a", b"", BASE + 2))
    assert isinstance(ahead, InvalidRequest)
    assert (ahead.message, ahead.code) == ("version was never handed out", Code.FUTURE_VERSION)
    assert ahead.fields == {"version": BASE + 2, "newest": BASE + 1}
    assert outcome(JobChange("a", b"", BASE - 1)) == Rejected("too_old")
    assert outcome(free, JobChange("a", b"", BASE + 1)) is None


def test_what_was_decided_before_is_remembered_as_it_was_recorded() -> None:
    resolve = resolve_of()
    resolve.remember(BASE + 3, [Write(b"k", b"")], ())
    resolve.remember(BASE + 4, [], (JobChange("sink/a", b""),))
    assert resolve.recent.changed_after(b"k", BASE) == BASE + 3 and resolve.recent.last_version == BASE + 4
    assert resolve.jobs.changed_after(b"sink/a", BASE) == BASE + 4
    before = resolve_of()
    before.remember(BASE + 3, [Write(b"k", b"")], ())
    assert before.jobs.last_version == BASE, "without jobs nothing is recorded there"


# ---- how the window moves --------------------------------------------------------------------------------------------


class Bounded:
    """Attempts that want this floor."""

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self.expired: list[int] = []

    def floor_for_bound(self) -> int:
        return self.floor

    def expire(self, floor: int) -> None:
        self.expired.append(floor)


def test_the_window_moves_by_its_samples_by_the_bound_of_attempts_and_never_past_what_is_durable() -> None:
    attempts = Bounded()
    resolve = Resolve(BASE, cast("Attempts", attempts), window_ms=float(SAMPLES_MAX), bytes_max=1 << 20)
    for now, assigned in ((600.0, BASE), (600.5, BASE + 1), (601.0, BASE + 2), (601.75, BASE + 3), (602.5, BASE + 4)):
        resolve.advance_floor(now, assigned, BASE + 4)
        assert resolve.floor == BASE
    ages = [resolve.window_ms(now) for now in (602.5, 700.0)]
    assert ages == [2.5, 100.0]
    end = SAMPLES_MAX + 601.0
    for now, floor in ((end - 1, BASE), (end, BASE), (end + 0.5, BASE + 2), (end + 1.5, BASE + 2), (end + 2, BASE + 4)):
        resolve.advance_floor(now, BASE + 4, BASE + 4)
        assert (resolve.floor, attempts.expired[-1]) == (floor, floor)
        if floor == BASE + 2:
            assert resolve.window_ms(now) == now - 602.5
    attempts.floor = BASE + 9
    resolve.advance_floor(end + 2, BASE + 9, BASE + 7)
    assert (resolve.floor, attempts.expired[-1]) == (BASE + 7, BASE + 7)
    attempts.floor = BASE + 5
    resolve.advance_floor(end + 2, BASE + 9, BASE + 9)
    assert (resolve.floor, attempts.expired[-1]) == (BASE + 7, BASE + 7)
    resolve.advance_floor(end + 2, BASE + 9, BASE + 6)
    assert (resolve.floor, attempts.expired[-1]) == (BASE + 7, BASE + 6)
    resolve.expire(BASE + 50)
    assert resolve.window_ms(end + 2) == 0.0


def test_the_window_does_not_move_in_the_middle_of_a_decision() -> None:
    resolve = resolve_of()
    resolve.decide_some(deque([entry(txn(operations=writes(PART_OPERATIONS + 1)))]), 1)
    with pytest.raises(AssertionError, match=r"^the window does not move in the middle of a decision"):
        resolve.advance_floor(0.0, BASE, BASE)


def test_the_window_of_the_jobs_is_not_longer() -> None:
    resolve = resolve_of()
    resolve.check()
    resolve.jobs = RecentWrites(BASE - 1, bytes_max=1 << 20)
    with pytest.raises(AssertionError, match=r"^the window of the jobs is not longer"):
        resolve.check()
