"""Stage 2: what a precondition means, and what the window no longer knows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.commit.builders import BASE

from holdfast.commit.format.transaction import (
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
from holdfast.commit.stages.attempts import Attempts
from holdfast.commit.stages.events import CommitEntry, Place
from holdfast.commit.stages.resolve import Resolve


class Stage:
    """A Resolve whose requests get versions BASE + 1, BASE + 2, ..."""

    def __init__(self, *, window_ms: float = 1_000.0) -> None:
        self.attempts = Attempts(bytes_max=1 << 20)
        self.resolve = Resolve(BASE, self.attempts, window_ms=window_ms, bytes_max=1 << 20)
        self.version = BASE

    def decide(
        self,
        operations: Sequence[Operation],
        *reads: Precondition,
        at: int | None = None,
        request_id: str | None = None,
    ) -> CommitEntry:
        self.version += 1
        item = CommitEntry(Transaction([*operations], [*reads], request_id, None, at), lambda _: None)
        item.version = self.version
        self.resolve.decide([item])
        self.resolve.check()
        return item


WRITE = [Write(b"other", b"")]


@pytest.mark.parametrize(
    "change",
    [Write(b"k", b""), Delete(b"k"), RangeDelete(b"k", b"l"), RangeDelete(b"a"), RangeDelete(b"a", b"k\0")],
)
@pytest.mark.parametrize("read", [PointRead(b"k"), RangeRead(b"k", b"l"), RangeRead(b""), RangeRead(b"a", b"k\0")])
def test_a_read_fails_when_anything_in_it_changed_after_its_version(change: Operation, read: Precondition) -> None:
    stage = Stage()
    changed = stage.decide([change])
    stale = stage.decide(WRITE, read, at=BASE)
    assert stale.outcome == Rejected("conflict", (FailedPrecondition(0, changed.version),))
    assert not stale.accepted
    assert stage.decide(WRITE, read, at=changed.version).accepted


@pytest.mark.parametrize("read", [PointRead(b"k"), RangeRead(b"k", b"l"), RangeRead(b"k")])
@pytest.mark.parametrize("change", [Write(b"j", b""), Delete(b"j\xff"), RangeDelete(b"a", b"k")])
def test_what_lies_outside_a_read_does_not_touch_it(change: Operation, read: Precondition) -> None:
    stage = Stage()
    stage.decide([change])
    assert stage.decide(WRITE, read, at=BASE).accepted


def test_every_failed_precondition_is_told_by_its_index_with_its_newest_change() -> None:
    stage = Stage()
    first = stage.decide([Write(b"a", b"")])
    second = stage.decide([Write(b"b", b"")])
    third = stage.decide([Write(b"a", b"")])
    item = stage.decide(WRITE, PointRead(b"a"), PointRead(b"quiet"), RangeRead(b"b", b"c"), at=BASE)
    assert item.outcome == Rejected(
        "conflict", (FailedPrecondition(0, third.version), FailedPrecondition(2, second.version))
    )
    assert first.version < third.version


def test_a_precondition_s_own_version_overrides_the_transaction_s() -> None:
    stage = Stage()
    changed = stage.decide([Write(b"k", b"")])
    assert stage.decide(WRITE, PointRead(b"k", changed.version), at=BASE).accepted
    assert not stage.decide(WRITE, PointRead(b"k", BASE), at=changed.version).accepted


def test_an_accepted_transaction_counts_against_the_next_one_of_the_same_batch() -> None:
    stage = Stage()
    entries = []
    for _ in range(2):
        stage.version += 1
        item = CommitEntry(Transaction([Write(b"k", b"")], [PointRead(b"k")], None, None, BASE), lambda _: None)
        item.version = stage.version
        entries.append(item)
    stage.resolve.decide(entries)
    assert [item.accepted for item in entries] == [True, False]


def test_a_rejected_transaction_changes_nothing() -> None:
    stage = Stage()
    changed = stage.decide([Write(b"k", b"")])
    assert not stage.decide([Write(b"quiet", b"")], PointRead(b"k"), at=BASE).accepted
    assert stage.decide(WRITE, PointRead(b"quiet"), at=changed.version).accepted


def test_below_the_floor_nothing_is_judged() -> None:
    stage = Stage()
    assert stage.decide(WRITE, PointRead(b"quiet"), at=BASE - 1).outcome == Rejected("too_old")
    assert stage.decide(WRITE, PointRead(b"quiet", BASE - 1), at=BASE).outcome == Rejected("too_old")
    assert stage.decide(WRITE, at=BASE - 1, request_id="x").outcome == Rejected("too_old")


def test_a_write_without_reads_or_id_is_never_too_old() -> None:
    assert Stage().decide(WRITE, at=BASE - 1).accepted


def test_an_outcome_decided_before_is_left_alone() -> None:
    stage = Stage()
    item = CommitEntry(Transaction([Write(b"k", b"")]), lambda _: None)
    item.outcome = Rejected("banned")
    stage.resolve.decide([item])
    assert (item.accepted, item.outcome) == (False, Rejected("banned"))
    assert stage.decide(WRITE, PointRead(b"k"), at=BASE).accepted


def test_the_window_keeps_its_time_and_then_moves_on() -> None:
    stage = Stage(window_ms=1_000)
    stage.resolve.advance_floor(0, BASE, BASE)
    changed = stage.decide([Write(b"k", b"")])
    stage.resolve.advance_floor(500, changed.version, changed.version)
    assert stage.resolve.floor == BASE
    stage.resolve.advance_floor(1_501, changed.version, changed.version)
    assert stage.resolve.floor == changed.version
    assert stage.decide(WRITE, PointRead(b"k"), at=BASE).outcome == Rejected("too_old")


def test_the_window_never_moves_past_what_is_durable() -> None:
    stage = Stage(window_ms=100)
    stage.resolve.advance_floor(0, BASE, BASE)
    changed = stage.decide([Write(b"k", b"")])
    for now in (50, 500, 1_000):
        stage.resolve.advance_floor(now, changed.version, BASE)
    assert stage.resolve.floor == BASE


@given(
    transactions=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("wdr"), st.integers(0, 5)), min_size=1, max_size=6),
            st.lists(st.tuples(st.sampled_from("pr"), st.integers(0, 5), st.integers(0, 12)), max_size=6),
        ),
        max_size=10,
    ),
    work=st.integers(1, 40),
)
def test_a_decision_in_parts_is_the_same_decision(transactions: list[Any], work: int) -> None:
    def key(number: int) -> bytes:
        return bytes([number])

    kinds: dict[str, Callable[[int], Operation]] = {
        "w": lambda at: Write(key(at), b""),
        "d": lambda at: Delete(key(at)),
        "r": lambda at: RangeDelete(key(at), key(at + 2)),
    }

    def entries() -> deque[CommitEntry | Place]:
        made: deque[CommitEntry | Place] = deque()
        for number, (operations, reads) in enumerate(transactions):
            preconditions: list[Precondition] = [
                PointRead(key(at), BASE + back) if kind == "p" else RangeRead(key(at), key(at + 2), BASE + back)
                for kind, at, back in reads
            ]
            txn = Transaction([kinds[kind](at) for kind, at in operations], preconditions)
            item = CommitEntry(txn, lambda _: None)
            item.version = BASE + number + 1
            made += [item, Place(number)]
        return made

    whole, parts = entries(), entries()
    at_once, in_parts = Stage().resolve, Stage().resolve
    at_once.decide([item for item in whole if isinstance(item, CommitEntry)])
    taken: list[CommitEntry | Place] = []
    left = parts.copy()
    while left:
        taken += in_parts.decide_some(left, work)
        assert not in_parts.deciding or left
    in_parts.check()
    assert taken == list(parts)
    for one, other in zip(whole, parts, strict=True):
        if isinstance(one, CommitEntry):
            assert isinstance(other, CommitEntry)
            assert (one.accepted, one.outcome) == (other.accepted, other.outcome)
