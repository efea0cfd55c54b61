"""Laws of a standard durable: it has one consumer, who loses it by leaving, lapsing or a take-over, and not otherwise.

Source: docs/reference/stores.md, "One consumer".
"""

from __future__ import annotations

import pytest
from tests.stores.state_harness import Machine

from holdfast.errors import AlreadyOpen, Code, NotFound
from holdfast.stores.machine.state import State
from holdfast.stores.values import commands
from holdfast.stores.values.effects import DeadLettering, Displaced

STANDARD = {"type": "standard", "ack_wait": 5}
BUSY = pytest.raises(AlreadyOpen, match="type shared")
CONTENDED = [("s", "a")]


def expire(machine: Machine, later_ms: int, contended: list[tuple[str, str]]) -> list[Displaced]:
    """Who lost the durable to a subscriber that waits."""
    machine.now_ms += later_ms
    machine.do(commands.Expire(machine.now_ms, contended=contended))
    return [effect for effect in machine.effects if isinstance(effect, Displaced)]


def test_another_name_is_refused_with_the_holder_and_since_when_and_nothing_changes() -> None:
    machine = Machine(a=STANDARD)
    machine.publish("x")
    since_ms = machine.now_ms
    machine.attach("a", "one")
    assert machine.deliver("a", "one") == [(1, 1)]
    machine.now_ms += 700
    before = machine.state.snapshot()
    with BUSY as busy:
        machine.attach("a", "two")
    assert busy.value.code is Code.DURABLE_BUSY
    assert dict(busy.value.fields) == {"store": "s", "durable": "a", "holder": "one", "since_ms": since_ms}
    assert machine.state.snapshot() == before
    assert machine.ack("a", "one", 1).acknowledged == 1


def test_the_same_name_replaces_itself_at_once_and_is_the_holder_since_then() -> None:
    machine = Machine(a=STANDARD)
    machine.publish("x")
    machine.attach("a", "one")
    machine.deliver("a", "one")
    machine.now_ms += 700
    assert machine.attach("a", "one").displaced == "one"
    assert Displaced("s", "a", "one", "replaced") in machine.effects
    assert machine.deliver("a", "one") == [(1, 2)]
    with BUSY as busy:
        machine.attach("a", "two")
    assert busy.value.fields["since_ms"] == machine.now_ms


def test_a_take_over_displaces_the_holder_whose_acknowledgements_are_refused() -> None:
    machine = Machine(a=STANDARD)
    machine.publish("x")
    machine.attach("a", "one")
    machine.deliver("a", "one")
    assert machine.attach("a", "two", take_over=True).displaced == "one"
    assert Displaced("s", "a", "one", "taken_over") in machine.effects
    assert machine.deliver("a", "two") == [(1, 2)]
    with pytest.raises(NotFound):
        machine.ack("a", "one", 1)


def test_a_durable_whose_holder_has_left_is_free() -> None:
    machine = Machine(a=STANDARD)
    machine.attach("a", "one")
    machine.detach("a", "one")
    assert machine.attach("a", "two").displaced == ""


def test_a_shared_durable_is_never_busy() -> None:
    machine = Machine(a={"type": "shared"}, b={"type": "shared", "key_ordered": True})
    for durable in "ab":
        assert machine.attach(durable, "one").displaced == machine.attach(durable, "two").displaced == ""


def test_a_holder_that_lets_an_ack_wait_lapse_loses_the_durable_only_while_another_waits() -> None:
    for contended in ([], [("s", "other")], CONTENDED):
        machine = Machine(a=STANDARD)
        machine.publish("x", "y")
        machine.attach("a", "one", polls=True)
        machine.deliver("a", "one")
        lost = expire(machine, 5_000, contended)
        if contended is not CONTENDED:
            assert lost == []
            with BUSY:
                machine.attach("a", "two")
            continue
        assert lost == [Displaced("s", "a", "one", "lapsed")]
        assert machine.state.stores["s"].idle_since_ms["a"] == machine.now_ms
        machine.attach("a", "two")
        # The first was delivered; that the rest came back is not the application's doing.
        assert machine.deliver("a", "two") == [(1, 2), (2, -1)]


def test_what_waited_in_the_holders_client_is_no_lapse_of_its_application() -> None:
    machine = Machine(a={**STANDARD, "ack_wait": 9, "buffer_wait": 1})
    machine.publish("x", "y")
    machine.attach("a", "one")
    machine.settle("a", "one", started=[])
    machine.deliver("a", "one")
    machine.settle("a", "one", started=[(1, 1, machine.now_ms)])
    assert expire(machine, 1_000, CONTENDED) == [], "the second waited for a second"
    assert machine.ack("a", "one", 2).stale == [(2, 2)]
    assert expire(machine, 8_000, CONTENDED) == [Displaced("s", "a", "one", "lapsed")], "the first was in work"


def test_losing_a_durable_kills_no_message_that_was_not_in_work() -> None:
    """Else a newcomer that waits would make dead letters of what its predecessor had in its buffer."""
    machine = Machine(a={**STANDARD, "max_delivery": 1, "dead_letter_store": "dead"})
    machine.publish("x")
    machine.attach("a", "one", polls=True)
    machine.deliver("a", "one")
    machine.now_ms += 1_000
    machine.publish("y")
    machine.deliver("a", "one")
    assert expire(machine, 4_000, CONTENDED) == [Displaced("s", "a", "one", "lapsed")]
    assert [effect.seq for effect in machine.effects if isinstance(effect, DeadLettering)] == [1]
    machine.attach("a", "two")
    assert machine.deliver("a", "two") == [(2, -1)]


@pytest.mark.parametrize("how", ["taken over", "detached", "lapsed"])
def test_a_message_that_was_not_sent_was_not_delivered(how: str) -> None:
    machine = Machine(a={**STANDARD, "max_delivery": 1})
    machine.publish("x", "y")
    machine.attach("a", "one", polls=True)
    machine.deliver("a", "one")
    machine.settle("a", "one", unsent=[(1, 2), (7, 9)])
    if how == "detached":
        machine.detach("a", "one")
    elif how == "lapsed":
        expire(machine, 5_000, CONTENDED)
    machine.attach("a", "two", take_over=True)
    assert machine.deliver("a", "two") == [(1, 1), (2, 1)], "the first delivery, and not a repeat"


def test_a_message_that_was_seen_before_stays_a_repeat_where_the_next_delivery_is_not_sent() -> None:
    machine = Machine(a=STANDARD)
    machine.publish("x")
    machine.attach("a", "one")
    machine.settle("a", "one", started=[])
    assert machine.deliver("a", "one") == [(1, 1)]
    machine.attach("a", "one")  # it was in the buffer, and did not count
    assert machine.deliver("a", "one") == [(1, -1)]
    machine.settle("a", "one", unsent=[(1, 1)])
    machine.attach("a", "one")
    assert machine.deliver("a", "one") == [(1, -1)]
    machine.attach("a", "one")
    assert machine.deliver("a", "one") == [(1, 2)]


def test_a_snapshot_keeps_the_holder_since_when_and_what_was_not_sent() -> None:
    machine = Machine(a=STANDARD)
    machine.publish("x", "y")
    since_ms = machine.now_ms
    machine.attach("a", "one")
    machine.deliver("a", "one", 1)
    machine.settle("a", "one", unsent=[(1, 1)])
    machine.now_ms += 500
    machine.state.check()
    restored = State(*machine.state._ports)  # type: ignore[attr-defined]
    restored.restore(machine.state.snapshot())
    assert restored.snapshot() == machine.state.snapshot()
    with BUSY as busy:
        restored.apply(commands.Attach(machine.now_ms, "s", "a", "two"))
    assert busy.value.fields["since_ms"] == since_ms
    restored.apply(commands.Attach(machine.now_ms, "s", "a", "one"))
    delivered = restored.apply(commands.Deliver(machine.now_ms, "s", "a", "one", 1)).result
    assert delivered == commands.Delivered([(1, 1, 1)])
