"""The judges of the kill rounds see what they are there to see."""

from __future__ import annotations

import random

import pytest
from tests.crash.workload import (
    BALANCE,
    ROOM_SEATS,
    Chooser,
    Model,
    account,
    broken_invariants,
    counter,
    opening,
    room,
)

from holdfast.commit.format.transaction import Operation, RangeDelete, Write

OPENING: tuple[int, list[Operation]] = (1, opening(0).operations)
SEATS: list[Operation] = [Write(room(0)[0] + b"%d" % seat, b"taken") for seat in range(ROOM_SEATS)]


def test_a_serial_run_of_the_workload_breaks_nothing() -> None:
    model = Model()
    log = [OPENING]
    model.apply(*OPENING)
    chooser = Chooser(random.Random(1), "only")
    for version in range(2, 2000):
        txn = chooser.next(model)
        log.append((version, txn.operations))
        model.apply(version, txn.operations)
    assert broken_invariants(log) == []
    kinds = {
        (type(operation), operation.key[:4]) for _, ops in log for operation in ops if isinstance(operation, Write)
    }
    assert {key for _, key in kinds} == {b"acco", b"coun", b"room", b"note"}
    assert any(isinstance(operation, RangeDelete) for _, operations in log for operation in operations)


@pytest.mark.parametrize(
    "later",
    [
        [(2, [Write(account(0), b"%d" % (BALANCE + 1)), Write(account(1), b"%d" % BALANCE)])],
        [(2, [Write(account(0), b"-1"), Write(account(1), b"%d" % (2 * BALANCE + 1))])],
        [(2, [Write(account(0), b"1")])],
        [(2, [Write(counter(0), b"1")]), (3, [Write(counter(0), b"1")])],
        [(2, [Write(counter(0), b"2")])],
        [(2, SEATS), (3, [Write(room(0)[0] + b"one more", b"taken")])],
    ],
    ids=["money made", "below zero", "money gone", "increment lost", "increment doubled", "room over full"],
)
def test_a_broken_invariant_is_seen(later: list[tuple[int, list[Operation]]]) -> None:
    assert broken_invariants([OPENING, *later]) != []


def test_an_emptied_room_may_fill_again() -> None:
    assert broken_invariants([OPENING, (2, SEATS), (3, [RangeDelete(*room(0)), *SEATS[:1]])]) == []
