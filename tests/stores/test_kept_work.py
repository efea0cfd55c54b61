"""Laws of a session that comes back: it keeps what its application works on, and nobody else does."""

from __future__ import annotations

import pytest
from tests.stores.state_harness import Machine

from holdfast.wire.parts import Message

KINDS = [{"type": "standard"}, {"type": "shared"}, {"type": "shared", "key_ordered": True}]


def held(machine: Machine, name: str = "ann") -> list[int]:
    runs = machine.durable("d").leases.of[name].runs
    return [seq for first, last, *_ in runs for seq in range(first, last + 1)]


def working(kind: dict[str, object]) -> Machine:
    """``ann`` holds 1 to 4, with one key for all of them."""
    machine = Machine(d={**kind, "ack_wait": 10})
    machine.attach("d", "ann", session="one")
    machine.publish(*[Message(b"%d" % number, key="k") for number in range(4)])
    assert machine.numbers("d", "ann") == [1, 2, 3, 4]
    return machine


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_session_keeps_what_it_names_and_the_rest_comes_again(kind: dict[str, object]) -> None:
    machine = working(kind)
    machine.restart()
    machine.attach("d", "ann", session="one", keep=[(1, 1), (3, 3), (9, 9)])
    assert held(machine) == [1, 3]
    assert machine.ack("d", "ann", 1).stale == []
    assert machine.deliver("d", "ann") == [(2, -1), (4, -1)], "again, and the restart counted for nothing"
    assert machine.ack("d", "ann", 3).stale == []


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("before", "after"), [("one", "two"), ("one", ""), ("", ""), ("", "one")])
def test_another_process_of_the_name_keeps_nothing(kind: dict[str, object], before: str, after: str) -> None:
    machine = working(kind)
    machine.attach("d", "ann", session=before)
    machine.numbers("d", "ann")
    machine.attach("d", "ann", session=after, keep=[(1, 4)])
    assert held(machine) == []


def test_the_time_of_what_is_kept_begins_again_and_its_end_counts() -> None:
    machine = working({"type": "shared"})
    machine.later(9_000)
    machine.attach("d", "ann", session="one", keep=[(1, 1)])
    machine.later(9_999)
    assert held(machine) == [1]
    machine.later(1)
    assert held(machine) == []
    assert machine.deliver("d", "ann", 1) == [(1, 2)]


def test_nothing_is_kept_of_what_another_has_or_has_done() -> None:
    machine = working({"type": "shared"})
    machine.detach("d", "ann")
    machine.attach("d", "bob", session="two")
    assert machine.numbers("d", "bob", 2) == [1, 2]
    machine.ack("d", "bob", 1)
    machine.attach("d", "ann", session="one", keep=[(1, 4)])
    assert held(machine) == []
    assert machine.ack("d", "ann", 1, 2).stale == [(1, 1), (2, 2)]
