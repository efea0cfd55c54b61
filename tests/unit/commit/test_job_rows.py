"""Records of jobs: rows of their own in a batch, judged by a window of their own, out of the reach of every key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.one_line_mutants import mutated
from tests.unit.commit.builders import BASE, genesis, record

from holdfast.commit.format.batch import LoggedTransaction, decode_body, decode_header, encode_body, encode_object
from holdfast.commit.format.json_request import decode_json
from holdfast.commit.format.request_rules import JOB_RECORD_BYTES_MAX, problem_with_request
from holdfast.commit.format.transaction import (
    Delete,
    FailedPrecondition,
    JobChange,
    Operation,
    PointRead,
    RangeDelete,
    RangeRead,
    Rejected,
    Transaction,
    Write,
    with_expectations,
)
from holdfast.commit.stages import resolve as resolve_module
from holdfast.commit.stages.attempts import Attempts, fingerprint
from holdfast.commit.stages.events import NO_STORE_PARTS, CommitEntry
from holdfast.commit.stages.resolve import Resolve
from holdfast.errors import Code, InvalidRequest, LimitExceeded

JOB = JobChange("sink/orders", b"intent", BASE)


class Stage:
    """A second stage whose requests get versions BASE + 1, BASE + 2, ..."""

    def __init__(self, jobs_bytes_max: int = 1 << 20) -> None:
        self.resolve = Resolve(
            BASE, Attempts(bytes_max=1 << 20), window_ms=1_000.0, bytes_max=1 << 20, jobs_bytes_max=jobs_bytes_max
        )
        self.version = BASE

    def decide(self, txn: Transaction) -> CommitEntry:
        self.version += 1
        item = CommitEntry(with_expectations(txn), lambda _: None, parts=NO_STORE_PARTS if txn.jobs else None)
        item.version = self.version
        self.resolve.decide([item])
        self.resolve.check()
        return item

    def change(self, *jobs: JobChange, operations: Sequence[Operation] = (), at: int | None = None) -> CommitEntry:
        return self.decide(Transaction([*operations], read_version=at, jobs=jobs))


def whole(*logged: LoggedTransaction) -> list[LoggedTransaction]:
    """These transactions after a way through the bytes of an object."""
    claim = genesis()
    body = encode_body(logged)
    header = replace(record(claim, claim, *(txn.version for txn in logged)), body_length=len(body))
    data = encode_object(header, body)
    return decode_body(data, decode_header(data, slot=header.slot))


def test_job_rows_travel_in_a_body_next_to_operations_and_alone() -> None:
    expected = JobChange("sink/d", version=3)
    jobs = (JobChange("sink/ä", b"\x00\xff", 7), JobChange("sink/b", None, 0), JobChange("load/c", b""), expected)
    mixed = LoggedTransaction(BASE + 1, "an-attempt", BASE, [Write(b"k", b"v")], [PointRead(b"k", 3)], jobs=jobs)
    alone = LoggedTransaction(BASE + 2, None, None, [], [], jobs=jobs[:1])
    after = LoggedTransaction(BASE + 5, None, None, [Delete(b"k")], [])
    assert whole(mixed, alone, after) == [mixed, alone, after]


def test_a_record_that_changed_refuses_who_expects_it_unchanged_and_all_of_its_commit() -> None:
    stage = Stage()
    intent = stage.change(JOB)
    assert intent.accepted
    zombie = stage.change(JobChange("sink/orders", b"late", BASE), operations=[Write(b"k", b"v")])
    assert zombie.outcome == Rejected("conflict", (FailedPrecondition(0, intent.version),))
    assert not stage.resolve.recent.changed_after(b"k", BASE), "nothing of a refused commit is recorded"
    assert stage.change(JobChange("sink/orders", b"done", intent.version)).accepted
    by_default = stage.change(JobChange("sink/orders", b"late"), at=intent.version)
    assert by_default.outcome == Rejected("conflict", (FailedPrecondition(0, intent.version + 2),))


def test_a_record_of_a_leader_that_expects_nothing_is_no_expectation_of_its_transaction() -> None:
    """A load adds its record to the last transaction of a batch, whose read version may be older than the record."""
    stage = Stage()
    stage.change(JobChange("load/it", b"1", BASE))
    (logged,) = whole(
        LoggedTransaction(BASE + 2, None, BASE, [Write(b"k", b"")], [], jobs=(JobChange("load/it", b"2"),))
    )
    own = Transaction(logged.operations, read_version=logged.read_version, jobs=logged.jobs)
    item = CommitEntry(own, lambda _: None, parts=NO_STORE_PARTS)
    item.version = stage.version + 1
    stage.resolve.decide([item])
    assert item.accepted


def test_the_index_of_a_failed_record_follows_those_of_the_preconditions() -> None:
    stage = Stage()
    changed = stage.change(JOB)
    txn = Transaction([Write(b"k", b"")], [PointRead(b"a"), PointRead(b"b")], read_version=BASE)
    found = stage.decide(replace_jobs(txn, JobChange("load/x", b""), JobChange("sink/orders", b"")))
    assert found.outcome == Rejected("conflict", (FailedPrecondition(3, changed.version),))


def replace_jobs(txn: Transaction, *jobs: JobChange) -> Transaction:
    return Transaction(txn.operations, txn.preconditions, read_version=txn.read_version, jobs=jobs)


def test_no_range_and_no_delete_reaches_a_record_and_no_record_reaches_a_key() -> None:
    stage = Stage()
    stage.change(JOB)
    for reads in ([RangeRead(b"")], [RangeRead(b"sink/", b"sink0")], [PointRead(b"sink/orders")]):
        assert stage.decide(Transaction([Write(b"o", b"")], [*reads], read_version=BASE)).accepted
        stage = Stage()
        stage.change(JOB)
    for operation in (RangeDelete(b""), Delete(b"sink/orders"), Write(b"sink/orders", b"")):
        stage.decide(Transaction([operation]))
    assert stage.change(JobChange("sink/orders", b"done", BASE + 1)).accepted


def test_removing_a_record_removes_those_below_it_and_no_others() -> None:
    stage = Stage()
    for name in ("sink/a", "sink/a/1", "sink/a0", "sink/ab"):
        stage.change(JobChange(name, b"", BASE))
    before = stage.version
    gone = stage.change(JobChange("sink/a", None, before))
    for name, changed in (("sink/a", True), ("sink/a/1", True), ("sink/a0", False), ("sink/ab", False)):
        assert bool(stage.resolve.jobs.changed_after(name.encode(), before)) is changed, name
    late = stage.change(JobChange("sink/a/1", b"note", before))
    assert late.outcome == Rejected("conflict", (FailedPrecondition(0, gone.version),))


def test_an_expectation_alone_refuses_and_changes_nothing() -> None:
    stage = Stage()
    changed = stage.change(JOB)
    note = JobChange("sink/orders/1", b"note", BASE)
    stale = stage.change(note, JobChange("sink/orders", version=BASE))
    assert stale.outcome == Rejected("conflict", (FailedPrecondition(1, changed.version),))
    assert stage.change(note, JobChange("sink/orders", version=changed.version)).accepted
    assert stage.change(JobChange("sink/orders", b"done", changed.version)).accepted, "expecting was no change"


def test_an_expectation_below_the_window_is_too_old_and_one_above_the_log_is_refused() -> None:
    stage = Stage()
    stage.change(JOB)
    ahead = stage.change(JobChange("sink/orders", b"", stage.version + 1))
    assert isinstance(ahead.outcome, InvalidRequest) and ahead.outcome.code is Code.FUTURE_VERSION
    stage.resolve.expire(BASE + 1)
    assert stage.change(JobChange("sink/orders", b"", BASE)).outcome == Rejected("too_old")


def test_many_records_raise_the_floor_of_records_alone() -> None:
    stage = Stage(jobs_bytes_max=20_000)
    for number in range(1_000):
        stage.change(JobChange(f"sink/{number}", b"", BASE + number))
    stage.resolve.expire(BASE)
    assert stage.resolve.floor == BASE < stage.resolve.jobs.floor
    assert stage.change(JobChange("sink/0", b"", BASE)).outcome == Rejected("too_old")
    assert stage.decide(Transaction([Write(b"k", b"")], [PointRead(b"k", BASE)])).accepted


def test_an_attempt_with_another_record_is_another_attempt() -> None:
    one, other = (replace_jobs(Transaction([]), JobChange("sink/a", value)) for value in (b"1", b"2"))
    assert fingerprint(one, b"") != fingerprint(other, b"")
    assert fingerprint(one, b"") == fingerprint(LoggedTransaction(9, None, None, [], [], jobs=one.jobs), b"")


def test_json_takes_records_in_base64_and_as_text() -> None:
    others = b'{"name":"b"},{"name":"c","value":null}]}'
    given = b'{"operations":[],"jobs":[{"name":"a","value":"AAE=","version":5},' + others
    assert decode_json(given).jobs == (JobChange("a", b"\x00\x01", 5), JobChange("b"), JobChange("c", None))
    text = b'{"operations":[],"jobs":[{"name":"a","value_text":"\xc3\xa4","version":5},' + others
    assert decode_json(text).jobs == (JobChange("a", "ä".encode(), 5), JobChange("b"), JobChange("c", None))
    for wrong in (b'{"name":"a","value":"AAF="}', b'{"name":"a","value":"AAE=","name":"a"}', b'{"value":"AAE="}'):
        with pytest.raises(InvalidRequest):
            decode_json(b'{"operations":[],"jobs":[' + wrong + b"]}")


@pytest.mark.parametrize(
    ("jobs", "code"),
    [
        ((JobChange("", b"", 1),), Code.MALFORMED),
        ((JobChange("ü" * 257, b"", 1),), Code.MALFORMED),
        ((JobChange("a\n", b"", 1),), Code.MALFORMED),
        ((JobChange("a", b"", 1), JobChange("a", None, 1)), Code.MALFORMED),
        ((JobChange("a", b"x" * (JOB_RECORD_BYTES_MAX + 1), 1),), Code.TOO_LARGE),
        ((JobChange("a", b""),), Code.READ_VERSION_REQUIRED),
        ((JobChange("a", version=1),), Code.NO_OPERATIONS),
        (tuple(JobChange(f"a/{number}", b"", 1) for number in range(10_001)), Code.TOO_LARGE),
    ],
)
def test_a_bad_name_a_large_record_and_one_without_an_expectation_are_refused(
    jobs: tuple[JobChange, ...], code: Code
) -> None:
    problem = problem_with_request(Transaction([], jobs=jobs))
    assert isinstance(problem, InvalidRequest | LimitExceeded) and problem.code is code
    assert problem_with_request(Transaction([], jobs=(JobChange("ü" * 256, b"", 1),))) is None


def test_a_zombie_passes_where_the_expectation_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant that shows that the law above can fail."""
    broken = mutated(
        resolve_module, "rejected = self._judge_jobs(txn, entry.version) if txn.jobs else None", "rejected = None"
    )
    monkeypatch.setitem(globals(), "Resolve", broken.Resolve)
    with pytest.raises(AssertionError):
        test_a_record_that_changed_refuses_who_expects_it_unchanged_and_all_of_its_commit()
