"""A held message under everything that takes it from its subscriber: one row each.

What the durable does with it, the reported withdrawal, and what its acknowledgement is answered with. Source:
docs/reference/stores.md, "What takes a held message away".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.stores.state_harness import Machine

from holdfast.errors import NotFound
from holdfast.stores.durables.leases import REMOVED_MAX
from holdfast.stores.values import commands
from holdfast.stores.values.effects import Advise, Displaced, Withdrawn
from holdfast.wire.parts import Message

TERMS: dict[str, object] = {"type": "shared", "ack_wait": "1s", "retention_time": 600}


def lapse(machine: Machine) -> int:
    machine.later(1_000)
    return 0


def discard(machine: Machine) -> int:
    machine.define(a={**TERMS, "message_limit": 1, "discard": "old"})
    return machine.publish("b").discarded


def purge(machine: Machine) -> int:
    machine.do(commands.Purge(machine.now_ms, "s", "a"))
    return 0


def delete(machine: Machine) -> int:
    machine.do(commands.Drop(machine.now_ms, "s", "a", 1))
    return 0


def expiry(machine: Machine) -> int:
    machine.define(a={"type": "shared", "ack_wait": "1h", "message_ttl": "1s"})
    machine.settle("a", "one", extend=[(1, 1)])
    machine.later(2_000)
    return 0


def collision(machine: Machine) -> int:
    machine.attach("a", "one")
    return 0


def rewind(machine: Machine) -> int:
    machine.do(commands.Rewind(machine.now_ms, "s", "a", 0))
    return 0


def commit(machine: Machine) -> int:
    part = commands.Acknowledge(machine.now_ms, "s", "a", "one", ack=[(1, 1)])
    machine.do(commands.CommitParts(machine.now_ms, [part]))
    return 0


@dataclass(frozen=True)
class Row:
    """``again``: whether it is delivered again, with which count. ``withdrawal``: its cause. ``stale``: the
    cause of the stale acknowledgement, None where it is not stale. ``discarded``: what the publisher receives."""

    how: Callable[[Machine], int]
    again: int | None
    withdrawal: str
    stale: str | None
    discarded: int = 0


ROWS = {
    "its ack_wait ends": Row(lapse, 2, "lapsed", ""),
    "a limit discards it": Row(discard, None, "limit_old", "limit_old", 1),
    "the durable is purged": Row(purge, None, "purged", "purged"),
    "it is deleted": Row(delete, None, "deleted", "deleted"),
    "its time-to-live ends": Row(expiry, None, "", None),
    "a newer session": Row(collision, 2, "", ""),
    "the durable is rewound": Row(rewind, 1, "rewound", ""),
    "a commit acknowledges it": Row(commit, None, "acknowledged", ""),
}


def held() -> Machine:
    machine = Machine(a=TERMS)
    machine.publish("a")
    machine.attach("a", "one")
    assert machine.deliver("a", "one") == [(1, 1)]
    return machine


@pytest.mark.parametrize("name", ROWS)
def test_a_held_message_is_taken_away(name: str) -> None:
    row, machine = ROWS[name], held()
    assert row.how(machine) == row.discarded
    withdrawal = [(effect.ranges, effect.cause) for effect in machine.effects if isinstance(effect, Withdrawn)]
    assert withdrawal == ([([(1, 1)], row.withdrawal)] if row.withdrawal else [])
    displaced = [effect for effect in machine.effects if isinstance(effect, Displaced)]
    assert bool(displaced) == (name == "a newer session"), "its connection ends"
    answer = machine.ack("a", "one", 1)
    if row.stale is None:
        assert (answer.acknowledged, answer.stale) == (1, []), "what is held does not expire"
    else:
        assert (answer.acknowledged, answer.stale) == (0, [(1, 1)])
        assert answer.causes == ([(1, 1, row.stale)] if row.stale else [])
    machine.attach("a", "two")
    given = dict(machine.deliver("a", "two"))
    assert given.get(1) == row.again


def test_a_subscriber_whose_durable_is_deleted_is_told_and_not_found() -> None:
    machine = held()
    machine.define()
    advisories = [effect for effect in machine.effects if isinstance(effect, Advise)]
    assert [(effect.kind, effect.durable) for effect in advisories] == [("durable_deleted", "a")]
    with pytest.raises(NotFound):
        machine.ack("a", "one", 1)


def test_what_waits_behind_a_message_that_lapses_and_expires_is_taken_back_too() -> None:
    """The client dropped it with the late one of its key, and waits for the withdrawal."""
    machine = Machine(a={"type": "shared", "key_ordered": True, "ack_wait": "30s", "message_ttl": "5s"})
    machine.publish(Message(key="k"))
    machine.attach("a", "one")
    machine.settle("a", "one", started=[])
    assert machine.numbers("a", "one") == [1]
    machine.later(20_000)
    machine.publish(Message(key="k"))
    assert machine.numbers("a", "one") == [2]
    machine.later(10_000)
    withdrawal = [(effect.ranges, effect.cause) for effect in machine.effects if isinstance(effect, Withdrawn)]
    assert withdrawal == [([(1, 1)], "lapsed"), ([(2, 2)], "order")]


def keyed(count: int) -> Machine:
    """``one`` holds 1 to ``count``, each with its own key, and all of them are purged."""
    machine = Machine(a={"type": "shared", "key_ordered": True, "ack_wait": "1h", "prefetch": 2 * count})
    machine.checked = False
    machine.publish(*[Message(key=str(number)) for number in range(count)])
    machine.attach("a", "one")
    assert len(machine.numbers("a", "one", count)) == count
    machine.do(commands.Purge(machine.now_ms, "s", "a"))
    return machine


@pytest.mark.parametrize("how", ["acknowledged one by one", "acknowledged at once", "started"])
def test_what_is_known_of_removed_messages_is_bounded_however_it_is_cut(how: str) -> None:
    count = 2 * REMOVED_MAX + 100
    machine = keyed(count)
    every_other = [(seq, seq) for seq in range(1, count, 2)]
    if how == "started":
        machine.settle("a", "one", started=[(first, last, machine.now_ms - first) for first, last in every_other])
    else:
        parts = [[one] for one in every_other] if how == "acknowledged one by one" else [every_other]
        answers = [machine.settle("a", "one", ack=part) for part in parts]
        causes = [cause for answer in answers for cause in answer.causes]
        assert causes == [(first, last, "purged") for first, last in every_other]
    machine.state.check()
    assert len(machine.durable("a").removed.of["one"]) == REMOVED_MAX
    machine.settle("a", "one", ack=[(1, count)])
    machine.state.check()
    assert not machine.durable("a")._held.busy, "no key stays with what was forgotten"


def test_a_restart_changes_nothing_of_what_is_known_of_removed_messages() -> None:
    machine = Machine(a={"type": "shared", "key_ordered": True, "ack_wait": "1h"})
    machine.publish(*[Message(key=key) for key in "abc"])
    for name in ("one", "two"):
        machine.attach("a", name)
    for seq, name in enumerate(("one", "two", "one"), 1):
        assert machine.numbers("a", name, 1) == [seq]
    for seq in (1, 2, 3):
        machine.do(commands.Drop(machine.now_ms, "s", "a", seq))
    before = machine.state.snapshot()
    machine.restart()
    assert machine.state.snapshot() == before


def test_who_extends_a_removed_message_still_works_on_it_and_keeps_its_key() -> None:
    machine = Machine(a={"type": "shared", "key_ordered": True, "ack_wait": "10s"})
    machine.publish(*[Message(key="k") for _ in range(2)])
    machine.attach("a", "one")
    machine.attach("a", "two")
    assert machine.numbers("a", "one", 1) == [1]
    machine.do(commands.Drop(machine.now_ms, "s", "a", 1))
    machine.later(9_000)
    answer = machine.settle("a", "one", extend=[(1, 1)])
    assert (answer.stale, answer.causes) == ([(1, 1)], [(1, 1, "deleted")])
    assert machine.numbers("a", "two") == []
    machine.later(9_999)
    assert machine.numbers("a", "two") == []
    machine.later(1)
    assert machine.numbers("a", "two") == [2]
