"""The limits of a durable: what leaves, what its holder and the publisher are told; one line a case.

Source: docs/reference/stores.md, "Limits of a durable".
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.stores.state_harness import Machine

from holdfast.stores.values import commands
from holdfast.stores.values.commands import Published
from holdfast.stores.values.effects import Withdrawn
from holdfast.wire.parts import Message

LIMIT = 5


def nothing(machine: Machine) -> None:
    """All wait."""


def held(machine: Machine) -> None:
    machine.attach("a", "one")
    assert machine.numbers("a", "one") == [1, 2, 3, 4, 5]


def two_held(machine: Machine) -> None:
    machine.attach("a", "one")
    assert machine.numbers("a", "one", 2) == [1, 2]


def put_back(machine: Machine) -> None:
    held(machine)
    machine.settle("a", "one", nack=[(seq, 0) for seq in range(1, 6)])


def put_back_for_later(machine: Machine) -> None:
    held(machine)
    machine.settle("a", "one", nack=[(seq, 60_000) for seq in range(1, 6)])


def parked(machine: Machine) -> None:
    machine.attach("a", "one")
    assert machine.numbers("a", "one", 2) == [1, 2]
    machine.settle("a", "one", nack=[(1, 0), (2, 0)])


DELAYED = "five are delayed"
OLD, NEW = "old", "new"

Row = tuple[str, str, Callable[[Machine], None] | str, dict[str, object], int, list[int], int]
ROWS: list[Row] = [
    # discard, what is where, further terms, published, what is left, discarded
    ("old, waiting", OLD, nothing, {}, 100, [101, 102, 103, 104, 105], 100),
    ("old, held", OLD, held, {}, 100, [101, 102, 103, 104, 105], 100),
    ("old, held, one more", OLD, held, {}, 1, [2, 3, 4, 5, 6], 1),
    ("old, two held", OLD, two_held, {}, 3, [4, 5, 6, 7, 8], 3),
    ("old, put back", OLD, put_back, {}, 100, [101, 102, 103, 104, 105], 100),
    ("old, put back for later", OLD, put_back_for_later, {}, 100, [101, 102, 103, 104, 105], 100),
    ("old, put back for later, two more", OLD, put_back_for_later, {}, 2, [3, 4, 5, 6, 7], 2),
    ("old, parked", OLD, parked, {"max_delivery": 1}, 1, [2, 3, 4, 5, 6], 1),
    ("old, delayed", OLD, DELAYED, {}, 100, [101, 102, 103, 104, 105], 100),
    ("old, delayed, two more", OLD, DELAYED, {}, 2, [3, 4, 5, 6, 7], 2),
    ("old, held, by key", OLD, held, {"key_ordered": True}, 100, [101, 102, 103, 104, 105], 100),
    ("old, held, standard", OLD, held, {"type": "standard"}, 100, [101, 102, 103, 104, 105], 100),
    ("old, bytes", OLD, held, {"message_limit": 0, "bytelimit": 15}, 100, [101, 102, 103, 104, 105], 100),
    ("new, waiting", NEW, nothing, {}, 100, [1, 2, 3, 4, 5], 100),
    ("new, held", NEW, held, {}, 100, [1, 2, 3, 4, 5], 100),
    ("new, bytes", NEW, held, {"message_limit": 0, "bytelimit": 15}, 100, [1, 2, 3, 4, 5], 100),
]


def holding(machine: Machine) -> set[int]:
    return {seq for run in machine.durable("a").leases.runs() for seq in range(run[0], run[1] + 1)}


def published(machine: Machine, count: int, **how: int) -> Published:
    return machine.publish(*[Message(body=b"ab", key="k", **how) for _ in range(count)])


@pytest.mark.parametrize("row", ROWS, ids=[row[0].replace(", ", "-").replace(" ", "_") for row in ROWS])
@pytest.mark.parametrize("at_once", [True, False], ids=["one_batch", "one_by_one"])
def test_a_limit_removes(row: Row, *, at_once: bool) -> None:
    _, discard, where, terms, count, left, discarded = row
    machine = Machine(a={"type": "shared", "message_limit": LIMIT, "discard": discard, **terms})
    if where == DELAYED:
        published(machine, LIMIT, deliver_at_ms=machine.now_ms + 60_000)
        machine.attach("a", "one")
        assert machine.numbers("a", "one") == []
    else:
        published(machine, LIMIT)
    if callable(where):
        where(machine)
    was_held = holding(machine)
    told: set[int] = set()
    answered = 0
    for size in [count] if at_once else [1] * count:
        answered += published(machine, size).discarded
        told |= {
            seq
            for effect in machine.effects
            if isinstance(effect, Withdrawn) and effect.cause == "limit_old"
            for first, last in effect.ranges
            for seq in range(first, last + 1)
        }
    durable = machine.durable("a")
    assert sorted(seq for seq, _ in durable.browse(0, 1_000)) == left
    assert durable.causes == {f"limit_{discard}": discarded}
    assert answered == discarded, "the publisher is told"
    assert told == was_held - set(left), "the holder is told"
    for seq in sorted(told):
        answer = machine.ack("a", "one", seq)
        assert (answer.acknowledged, answer.stale, answer.causes) == (0, [(seq, seq)], [(seq, seq, "limit_old")])
    if told:
        assert machine.ack("a", "one", min(told)).causes == [], "once"


def keyed() -> Machine:
    """One subscriber works on a message of the key k, which is removed; another message of k waits for it."""
    machine = Machine(a={"type": "shared", "key_ordered": True, "message_limit": 1, "discard": "old", "ack_wait": "5s"})
    published(machine, 1)
    machine.attach("a", "one")
    machine.attach("a", "two")
    assert machine.numbers("a", "one") == [1]
    return machine


REMOVALS: dict[str, Callable[[Machine], object]] = {
    "limit_old": lambda machine: None,
    "purged": lambda machine: machine.do(commands.Purge(machine.now_ms, "s", "a")),
    "deleted": lambda machine: machine.do(commands.Drop(machine.now_ms, "s", "a", 1)),
}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("ends", ["ack", "nack", "reject", "detach", "ack_wait"])
@pytest.mark.parametrize("removal", REMOVALS)
def test_a_key_stays_with_who_works_on_its_removed_message(removal: str, ends: str, restarts: bool) -> None:
    machine = keyed()
    REMOVALS[removal](machine)
    published(machine, 1)
    if restarts:
        machine.restart()
    assert machine.numbers("a", "two") == []
    match ends:
        case "ack":
            assert machine.ack("a", "one", 1).causes == [(1, 1, removal)]
        case "nack":
            assert machine.settle("a", "one", nack=[(1, 0)]).causes == [(1, 1, removal)]
        case "reject":
            assert machine.settle("a", "one", reject=[1]).causes == [(1, 1, removal)]
        case "detach":
            machine.detach("a", "one")
        case _:
            machine.later(4_999)
            assert machine.numbers("a", "two") == []
            machine.later(1)
    assert machine.numbers("a", "two") == [2]


def test_the_key_is_the_holders_own() -> None:
    machine = keyed()
    published(machine, 1)
    assert machine.numbers("a", "one") == [2]
