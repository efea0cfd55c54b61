"""The checker of histories finds every planted violation, and none where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.histories import (
    CommitCall,
    History,
    Law,
    LogEntry,
    ReadCall,
    StatusCall,
    VersionCall,
    check_history,
)

from holdfast.commit.format.transaction import (
    Committed,
    Delete,
    FailedPrecondition,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Rejected,
    Transaction,
    Write,
)


def txn(name: str, *operations: Operation, reads: tuple[Precondition, ...] = (), at: int = 0) -> Transaction:
    return Transaction(operations=list(operations), preconditions=list(reads), request_id=name, read_version=at)


def committed(begin: int, end: int, asked: Transaction, version: int) -> CommitCall:
    return CommitCall(begin=begin, end=end, txn=asked, outcome=Committed(version))


def conflict(begin: int, end: int, asked: Transaction, index: int, version: int, durable: int) -> CommitCall:
    outcome = Rejected("conflict", (FailedPrecondition(index, version),))
    return CommitCall(begin=begin, end=end, txn=asked, outcome=outcome, durable_version=durable)


def entry(version: int, asked: Transaction, prev: int | None = None) -> LogEntry:
    return LogEntry(
        version=version,
        operations=tuple(asked.operations),
        request_id=asked.request_id,
        read_version=asked.read_version,
        prev_version=prev,
    )


# One honest history. x is written twice; the second writer read the first; a third lost the race; a fourth never heard.
FIRST = txn("first", Write(b"x", b"1"))
SECOND = txn("second", Write(b"x", b"2"), reads=(PointRead(b"x"),), at=10)
LOSER = txn("loser", Write(b"x", b"3"), reads=(PointRead(b"x"), RangeRead(b"a", b"z", 30)), at=10)
UNHEARD = txn("unheard", RangeDelete(b"a", b"m"), at=20)
HONEST = History(
    log=[entry(10, FIRST, 0), entry(20, SECOND, 10), entry(30, UNHEARD, 20)],
    commits=[
        committed(0, 10, FIRST, 10),
        committed(20, 30, SECOND, 20),
        conflict(25, 35, LOSER, 0, 20, 20),
        CommitCall(begin=40, end=50, txn=UNHEARD, outcome=None),
    ],
    versions=[VersionCall(begin=31, end=33, version=20), VersionCall(begin=60, end=61, version=30)],
    reads=[
        ReadCall(begin=31, end=32, at=10, version=20, ranges=[(b"x", b"x\0")], rows=[[(b"x", b"2", 20)]]),
        ReadCall(begin=60, end=61, at=0, version=30, ranges=[(b"", b"n")], rows=[[]], linearizable=True),
    ],
    statuses=[
        StatusCall(begin=70, end=71, request_id="unheard", read_version=20, status="committed", version=30),
        StatusCall(begin=72, end=73, request_id="loser", read_version=10, status="not_committed"),
    ],
)


def laws(history: History) -> set[Law]:
    return {violation.law for violation in check_history(history)}


def with_commit(index: int, call: CommitCall) -> History:
    return replace(HONEST, commits=[*HONEST.commits[:index], call, *HONEST.commits[index + 1 :]])


def with_status(index: int, call: StatusCall) -> History:
    return replace(HONEST, statuses=[*HONEST.statuses[:index], call, *HONEST.statuses[index + 1 :]])


def with_read(index: int, **changed: Any) -> History:
    reads = list(HONEST.reads)
    reads[index] = replace(reads[index], **changed)
    return replace(HONEST, reads=reads)


def test_an_honest_history_has_no_violation() -> None:
    assert check_history(HONEST) == []


def test_an_unknown_outcome_may_be_absent_from_the_log() -> None:
    absent = replace(HONEST, log=HONEST.log[:2], versions=HONEST.versions[:1], statuses=HONEST.statuses[1:])
    assert check_history(absent) == []


FOREIGN = txn("foreign", Write(b"q", b""))
PLANTED: dict[str, tuple[History, Law]] = {
    "versions fall": (replace(HONEST, log=[HONEST.log[1], HONEST.log[0], HONEST.log[2]]), Law.VERSIONS_RISE),
    "prev_version skips": (
        replace(HONEST, log=[*HONEST.log[:2], replace(HONEST.log[2], prev_version=10)]),
        Law.VERSIONS_RISE,
    ),
    "an unknown outcome lands twice": (
        replace(HONEST, log=[*HONEST.log, entry(40, UNHEARD, 30)]),
        Law.ATTEMPTS_LAND_ONCE,
    ),
    "an acknowledged commit is gone": (replace(HONEST, log=[entry(20, SECOND), entry(30, UNHEARD)]), Law.NOTHING_LOST),
    "an acknowledged commit has moved": (
        replace(HONEST, log=[entry(11, FIRST), *HONEST.log[1:]]),
        Law.NOTHING_MOVED,
    ),
    "an acknowledged commit without an id has moved": (
        replace(
            HONEST,
            log=[LogEntry(version=11, operations=tuple(FIRST.operations)), *HONEST.log[1:]],
            commits=[
                committed(0, 10, Transaction(operations=FIRST.operations), 10),
                *HONEST.commits[1:],
            ],
        ),
        Law.NOTHING_MOVED,
    ),
    "a version holds somebody else's operations": (
        replace(HONEST, log=[replace(HONEST.log[0], operations=(Write(b"x", b"?"),)), *HONEST.log[1:]]),
        Law.NOTHING_MOVED,
    ),
    "the log holds what nobody asked for": (
        replace(HONEST, log=[*HONEST.log, entry(40, FOREIGN, 30)]),
        Law.NOTHING_INVENTED,
    ),
    "a read shows an older value": (with_read(0, rows=[[(b"x", b"1", 10)]]), Law.READ_IS_EXACT),
    "a read shows a newer value": (with_read(0, version=19, at=0), Law.READ_IS_EXACT),
    "a read misses a key": (with_read(0, rows=[[]]), Law.READ_IS_EXACT),
    "a read is older than asked": (with_read(0, at=21), Law.READ_IS_NOT_OLDER),
    "a linearizable read is older than what was heard": (
        with_read(0, version=9, rows=[[]], at=0, linearizable=True),
        Law.READ_IS_FRESH,
    ),
    "a commit begins after a read that names a later version": (with_read(0, begin=1, end=2), Law.REAL_TIME),
    "a rejected commit is in the log": (replace(HONEST, log=[*HONEST.log, entry(40, LOSER, 30)]), Law.NO_GHOSTS),
    "a banned commit is in the log": (
        with_commit(3, CommitCall(begin=40, end=50, txn=UNHEARD, outcome=Rejected("banned"))),
        Law.NO_GHOSTS,
    ),
    "a committed point read was stale": (
        with_commit(1, committed(20, 30, txn("second", Write(b"x", b"2"), reads=(PointRead(b"x", 9),), at=10), 20)),
        Law.PRECONDITIONS_HELD,
    ),
    "a committed range read was stale": (
        with_commit(
            1, committed(20, 30, txn("second", Write(b"x", b"2"), reads=(RangeRead(b"w", None, 9),), at=10), 20)
        ),
        Law.PRECONDITIONS_HELD,
    ),
    "an unheard commit was stale": (
        with_commit(
            3,
            CommitCall(
                begin=40,
                end=50,
                txn=txn("unheard", RangeDelete(b"a", b"m"), reads=(PointRead(b"x", 15),), at=20),
                outcome=None,
            ),
        ),
        Law.PRECONDITIONS_HELD,
    ),
    "a conflict names a version that is not in the log": (
        with_commit(2, conflict(25, 35, LOSER, 0, 19, 20)),
        Law.REJECTIONS_JUSTIFIED,
    ),
    "a conflict names a version that changed something else": (
        with_commit(2, conflict(25, 35, LOSER, 0, 30, 30)),
        Law.REJECTIONS_JUSTIFIED,
    ),
    "a conflict names a version that had been read": (
        with_commit(2, conflict(25, 35, LOSER, 0, 10, 20)),
        Law.REJECTIONS_JUSTIFIED,
    ),
    "a conflict names a precondition that does not exist": (
        with_commit(2, conflict(25, 35, LOSER, 2, 20, 20)),
        Law.REJECTIONS_JUSTIFIED,
    ),
    "a conflict with nothing": (
        with_commit(2, CommitCall(begin=25, end=35, txn=LOSER, outcome=Rejected("conflict"), durable_version=20)),
        Law.REJECTIONS_JUSTIFIED,
    ),
    "the version to retry from would conflict again": (
        with_commit(2, conflict(25, 35, LOSER, 0, 20, 10)),
        Law.REJECTIONS_JUSTIFIED,
    ),
    "a later commit got a smaller version": (with_commit(0, committed(35, 40, FIRST, 10)), Law.REAL_TIME),
    "an unheard commit landed before it began": (
        with_commit(3, CommitCall(begin=62, end=70, txn=UNHEARD, outcome=None)),
        Law.REAL_TIME,
    ),
    "a version is older than a commit that was heard": (
        replace(HONEST, versions=[VersionCall(begin=31, end=33, version=19)]),
        Law.VERSION_IS_FRESH,
    ),
    "a version is older than an earlier version": (
        replace(HONEST, versions=[*HONEST.versions, VersionCall(begin=62, end=63, version=29)]),
        Law.VERSION_IS_FRESH,
    ),
    "status says committed elsewhere": (
        with_status(0, replace(HONEST.statuses[0], version=29)),
        Law.STATUS_IS_FINAL,
    ),
    "status says absent and it is there": (
        with_status(0, replace(HONEST.statuses[0], status="not_committed")),
        Law.STATUS_IS_FINAL,
    ),
}


@pytest.mark.parametrize(("history", "law"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_violation_is_found(history: History, law: Law) -> None:
    assert law in laws(history)


def test_every_law_has_a_planted_violation() -> None:
    assert {law for _, law in PLANTED.values()} == set(Law)


def test_a_repeated_attempt_may_answer_with_its_first_version() -> None:
    repeated = replace(HONEST, commits=[*HONEST.commits, committed(80, 90, FIRST, 10)])
    assert check_history(repeated) == []


def test_one_id_with_two_read_versions_is_two_attempts() -> None:
    again = txn("loser", Write(b"x", b"3"), at=30)
    history = replace(
        HONEST, log=[*HONEST.log, entry(40, again, 30)], commits=[*HONEST.commits, committed(80, 90, again, 40)]
    )
    assert check_history(history) == []


@pytest.mark.parametrize(
    ("operation", "read", "breaks"),
    [
        (Write(b"k", b""), PointRead(b"k", 1), True),
        (Delete(b"k"), PointRead(b"k", 1), True),
        (Write(b"k", b""), PointRead(b"j", 1), False),
        (Write(b"k", b""), RangeRead(b"k", b"l", 1), True),
        (Write(b"l", b""), RangeRead(b"k", b"l", 1), False),
        (Write(b"z", b""), RangeRead(b"k", None, 1), True),
        (RangeDelete(b"a", b"k"), PointRead(b"k", 1), False),
        (RangeDelete(b"a", b"k"), PointRead(b"a", 1), True),
        (RangeDelete(b"a", None), PointRead(b"z", 1), True),
        (RangeDelete(b"a", b"k"), RangeRead(b"k", b"l", 1), False),
        (RangeDelete(b"a", b"k"), RangeRead(b"j", b"l", 1), True),
        (RangeDelete(b"l", None), RangeRead(b"k", b"l", 1), False),
        (RangeDelete(b"k", None), RangeRead(b"a", None, 1), True),
    ],
)
def test_what_changes_what_is_the_same_for_commits_and_for_rejections(
    operation: Operation, read: Precondition, breaks: bool
) -> None:
    changing, reading = txn("changing", operation), txn("reading", Write(b"other", b""), reads=(read,), at=1)
    log = [entry(2, changing), entry(3, reading)]
    accepted = History(log=log, commits=[committed(0, 9, changing, 2), committed(0, 9, reading, 3)])
    assert (Law.PRECONDITIONS_HELD in laws(accepted)) == breaks
    rejected = History(log=log[:1], commits=[committed(0, 9, changing, 2), conflict(0, 9, reading, 0, 2, 2)])
    assert (Law.REJECTIONS_JUSTIFIED in laws(rejected)) != breaks
