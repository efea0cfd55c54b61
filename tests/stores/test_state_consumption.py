"""Delivery and acknowledgement, law by law."""

from __future__ import annotations

import pytest
from tests.stores.state_harness import Machine

from holdfast.errors import Code, HoldfastError, InvalidRequest, NotFound
from holdfast.stores.durables import key_ordered
from holdfast.stores.machine import state
from holdfast.stores.values import commands
from holdfast.stores.values.effects import Advise, DeadLettering, Ready
from holdfast.wire.parts import Message

SHARED = {"type": "shared"}


def test_a_message_is_kept_until_every_durable_that_wants_it_has_acknowledged() -> None:
    machine = Machine(a=SHARED, b={"type": "standard"})
    machine.publish("x", "y")
    machine.attach("a", "one")
    machine.attach("b", "two")
    assert machine.numbers("a", "one") == [1, 2]
    machine.ack("a", "one", 1, 2)
    assert machine.kept == 2
    assert machine.numbers("b", "two") == [1, 2]
    machine.ack("b", "two", 1)
    assert machine.kept == 1


def test_a_message_that_no_durable_wants_takes_a_number_and_is_counted() -> None:
    machine = Machine(a={"type": "shared", "matcher": {"kind": "a"}})
    result = machine.publish("x", Message(fields={"kind": "a"}))
    assert (result.first_seq, result.last_seq, result.unmatched) == (1, 2, 1)
    assert (machine.kept, machine.state.stores["s"].unmatched) == (1, 1)
    machine.attach("a", "one")
    assert machine.numbers("a", "one") == [2]


def test_the_window_bounds_what_a_subscriber_holds() -> None:
    machine = Machine(a={"type": "shared", "prefetch": 2})
    machine.publish(*"abc")
    machine.attach("a", "one")
    assert machine.numbers("a", "one") == [1, 2]
    assert machine.numbers("a", "one") == []
    machine.ack("a", "one", 2)
    assert Ready("s", "a") in machine.effects
    assert machine.numbers("a", "one") == [3]


def test_a_window_of_zero_is_the_default_window() -> None:
    machine = Machine(a={"type": "standard", "prefetch": 0})
    machine.publish(*(["x"] * 300))
    machine.attach("a", "one")
    assert len(machine.numbers("a", "one", 2_000)) == 256


def test_shared_subscribers_get_each_message_once() -> None:
    machine = Machine(a=SHARED)
    machine.publish(*"abcd")
    machine.attach("a", "one")
    machine.attach("a", "two")
    assert machine.numbers("a", "one", 2) == [1, 2]
    assert machine.numbers("a", "two") == [3, 4]


def test_what_a_subscriber_held_goes_to_others_first_and_its_oldest_is_counted() -> None:
    machine = Machine(a=SHARED)
    machine.publish(*"abcd")
    machine.attach("a", "one")
    machine.attach("a", "two")
    machine.deliver("a", "one", 2)
    machine.detach("a", "one")
    assert machine.deliver("a", "two") == [(1, 2), (2, -1), (3, 1), (4, 1)]


def test_only_what_a_subscriber_holds_now_counts() -> None:
    machine = Machine(a=SHARED)
    machine.publish(*"abc")
    machine.attach("a", "one")
    machine.attach("a", "two")
    machine.deliver("a", "one", 1)
    machine.deliver("a", "two", 1)
    result = machine.settle("a", "one", ack=[(1, 3)], nack=[(2, 0)], reject=[1])
    assert result.acknowledged == 1
    assert result.stale == [(2, 3), (2, 2), (1, 1)]
    assert machine.ack("a", "two", 2).acknowledged == 1


@pytest.mark.parametrize("how", ["ack", "extend"])
def test_a_range_that_runs_backwards_is_refused_and_changes_nothing(how: str) -> None:
    machine = Machine(a={**SHARED, "ack_wait": "1m"})
    machine.publish(*"abcdef")
    machine.attach("a", "one")
    assert machine.numbers("a", "one") == [1, 2, 3, 4, 5, 6]
    with pytest.raises(InvalidRequest, match="begins with its lowest"):
        machine.settle("a", "one", **{"ack": [(1, 1)], how: [(5, 2)]})
    machine.state.check()
    assert machine.durable("a").pending == machine.durable("a").leases.held == 6
    assert machine.settle("a", "one", ack=[(1, 6)]) == commands.Acknowledged(6, [])


def test_a_message_that_is_not_acknowledged_in_time_comes_again_counted() -> None:
    machine = Machine(a={"type": "shared", "ack_wait": 5})
    machine.publish("x")
    machine.attach("a", "one")
    machine.deliver("a", "one")
    machine.later(4_999)
    assert machine.deliver("a", "one") == []
    machine.later(1)
    assert Ready("s", "a") in machine.effects
    assert machine.deliver("a", "one") == [(1, 2)]
    assert machine.ack("a", "one", 1).acknowledged == 1


def test_an_extension_restarts_the_time_and_settles_nothing() -> None:
    machine = Machine(a={"type": "shared", "ack_wait": 5})
    machine.publish("x", "y")
    machine.attach("a", "one")
    machine.deliver("a", "one")
    machine.later(4_000)
    assert machine.settle("a", "one", extend=[(1, 1)]).acknowledged == 0
    machine.later(1_000)
    assert machine.deliver("a", "one") == [(2, -1)]
    machine.later(4_000)
    assert machine.deliver("a", "one") == [(1, 2)]


def test_a_negative_acknowledgement_brings_it_back_after_its_delay() -> None:
    machine = Machine(a=SHARED)
    machine.publish("x", "y")
    machine.attach("a", "one")
    machine.deliver("a", "one")
    machine.settle("a", "one", nack=[(1, 0), (2, 700)])
    assert machine.deliver("a", "one") == [(1, 2)]
    machine.later(699)
    assert machine.deliver("a", "one") == []
    machine.later(1)
    assert machine.deliver("a", "one") == [(2, 2)]


def test_no_deadline_moves_with_a_restart() -> None:
    machine = Machine(a={"type": "shared", "ack_wait": 5}, b={"type": "shared", "message_ttl": 9})
    machine.publish(Message(deliver_at_ms=machine.now_ms + 3_000), Message(ttl_ms=7_000))
    machine.attach("a", "one")
    machine.deliver("a", "one")
    machine.later(2_500)
    before = machine.state.next_deadline_ms()
    machine.restart()
    assert machine.state.next_deadline_ms() == before
    machine.later(499)
    assert machine.deliver("a", "one") == []
    machine.later(1)
    assert machine.deliver("a", "one") == [(1, 1)]
    machine.later(2_000)
    assert machine.deliver("a", "one") == [(2, -1)]


def test_after_max_delivery_a_message_dies_and_its_letter_keeps_the_cause() -> None:
    machine = Machine(a={"type": "shared", "max_delivery": 2, "dead_letter_store": "dead"})
    machine.publish("x")
    machine.attach("a", "one")
    for number in (1, 2):
        assert machine.deliver("a", "one") == [(1, number)]
        machine.settle("a", "one", nack=[(1, 0)])
    assert machine.effects[0] == DeadLettering("s", "a", 1, "max_delivery", 2, "dead")
    assert machine.kept == 1
    assert machine.bury() == 1
    assert machine.kept == 0
    origin = machine.messages.bodies["dead", 1].origin
    assert origin is not None and origin.cause == "max_delivery"


def test_a_rejected_message_dies_at_once() -> None:
    machine = Machine(a={"type": "shared", "dead_letter_store": "dead"}, b={"type": "shared"})
    machine.publish("x")
    for durable in "ab":
        machine.attach(durable, "one")
        machine.deliver(durable, "one")
        assert machine.settle(durable, "one", reject=[1]).acknowledged == 1
        assert machine.bury() == (1 if durable == "a" else 0)
    assert machine.kept == 0
    assert machine.durable("b").causes == {"rejected": 1}


def test_a_dying_message_is_told_again_until_it_is_buried() -> None:
    machine = Machine(store={}, a={"type": "shared", "dead_letter_store": "dead"})
    machine.publish("x")
    machine.attach("a", "one")
    machine.deliver("a", "one")
    machine.settle("a", "one", reject=[1])
    machine.restart()
    assert machine.state.pending_effects() == [DeadLettering("s", "a", 1, "rejected", 1, "dead")]
    machine.later(10_000)
    assert DeadLettering("s", "a", 1, "rejected", 1, "dead") in machine.effects
    assert machine.bury() == 1
    with pytest.raises(NotFound):
        machine.do(commands.DeadLetter(machine.now_ms, "s", "a", 1, Message(), "dead"))
    assert machine.state.next_deadline_ms() is None


@pytest.mark.parametrize("restarts", [False, True])
def test_what_waits_to_be_a_dead_letter_stays_when_its_store_is_taken_from_the_definition(restarts: bool) -> None:
    machine = Machine(a={**SHARED, "dead_letter_store": "dead"})
    machine.publish("x", "y")
    machine.attach("a", "one")
    machine.numbers("a", "one")
    machine.settle("a", "one", reject=[1])
    machine.define(a=SHARED)
    if restarts:
        machine.restart()
    assert machine.state.pending_effects() == []
    machine.later(60_000)
    assert machine.kept == 2, "nothing is lost"
    machine.define(a={**SHARED, "dead_letter_store": "dead"})
    assert [effect.seq for effect in machine.effects if isinstance(effect, DeadLettering)] == [1]
    assert machine.bury() == 1
    assert (machine.kept, machine.state.stores["dead"].counts.live) == (1, 1)


def test_what_waits_for_a_dead_letter_store_can_be_purged() -> None:
    found = Machine(a={**SHARED, "dead_letter_store": "dead"})
    found.publish("x")
    found.attach("a", "one")
    found.numbers("a", "one")
    found.settle("a", "one", reject=[1])
    found.define(a=SHARED)
    found.do(commands.Purge(found.now_ms, "s", "a"))
    assert found.kept == 0


def test_a_dead_letter_that_no_durable_wants_stays_where_it_is() -> None:
    machine = Machine(store={}, a={"type": "shared", "dead_letter_store": "dead"})
    machine.publish("x")
    machine.attach("a", "one")
    machine.deliver("a", "one")
    machine.settle("a", "one", reject=[1])
    letters = machine.state.stores["dead"]
    for name in list(letters.durables):
        letters.remove(name, machine.now_ms)
    before = machine.state.snapshot()
    with pytest.raises(NotFound, match="wants"):
        machine.bury()
    assert machine.state.snapshot() == before
    assert machine.state.pending_effects() == [DeadLettering("s", "a", 1, "rejected", 1, "dead")]


def test_a_session_that_comes_again_is_given_what_it_held() -> None:
    machine = Machine(a=SHARED)
    machine.publish("x")
    machine.attach("a", "one")
    machine.deliver("a", "one")
    assert machine.attach("a", "one").displaced == "one"
    assert machine.deliver("a", "one") == [(1, 2)]


def test_a_durable_is_made_of_a_template_and_goes_when_nobody_was_there_for_its_time() -> None:
    machine = Machine(store={"templates": {"t": {"type": "shared", "durable_ttl": 5}}})
    assert machine.attach("new", "one", template="t", matcher=b'{"kind":"a"}').created
    machine.publish(Message(fields={"kind": "a"}), "other")
    assert machine.kept == 1
    machine.later(60_000)
    machine.detach("new", "one")
    machine.later(4_999)
    assert not machine.attach("new", "one").created
    machine.detach("new", "one")
    machine.later(5_000)
    assert Advise("s", "new", "", "durable_deleted", (("cause", "durable_ttl"),)) in machine.effects
    assert machine.kept == 0
    with pytest.raises(NotFound):
        machine.attach("new", "one")


def test_a_dynamic_durable_is_deleted_by_unsubscribing_a_static_one_is_not() -> None:
    machine = Machine(a=SHARED)
    machine.attach("new", "one", template="shared")
    machine.publish("x")
    machine.do(commands.Unsubscribe(machine.now_ms, "s", "new"))
    assert machine.kept == 1
    with pytest.raises(InvalidRequest):
        machine.do(commands.Unsubscribe(machine.now_ms, "s", "a"))


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"matcher": b'{"kind":"b"}'}, Code.MATCHER_MISMATCH),
        ({"template": "standard"}, Code.TYPE_MISMATCH),
        ({"template": "nothing"}, None),
        ({"matcher": b'{"kind":["a"]}'}, None),
    ],
)
def test_who_subscribes_to_a_durable_asks_for_what_it_is(more: dict[str, object], code: Code | None) -> None:
    machine = Machine(a={"type": "shared", "matcher": {"kind": "a"}})
    if code is None:
        machine.attach("a", "one", **more)
        return
    with pytest.raises(InvalidRequest) as refused:
        machine.attach("a", "one", **more)
    assert refused.value.code is code


def test_one_dynamic_durable_more_than_the_limit_is_refused() -> None:
    machine = Machine(store={"dynamic_durable_limit": 1}, a=SHARED, b=SHARED)
    machine.attach("new", "one", template="shared")
    with pytest.raises(HoldfastError) as refused:
        machine.attach("newer", "one", template="shared")
    assert refused.value.code is Code.TOO_MANY_DURABLES
    assert refused.value.fields["limit"] == 1


@pytest.mark.parametrize("kind", ["shared", "key_ordered", "last_value", "map"])
def test_one_subscriber_more_than_a_durable_has_room_for_is_refused_and_the_attached_ones_come_back(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "SUBSCRIBERS_MAX", 2)
    definition = {"type": "shared", "key_ordered": True} if kind == "key_ordered" else {"type": kind}
    machine = Machine(a=definition)
    key = {"key": "k"} if kind == "last_value" else {}
    for name in ("one", "two", "two"):
        machine.attach("a", name, **key)
    with pytest.raises(HoldfastError) as refused:
        machine.attach("a", "three", **key)
    assert refused.value.code is Code.TOO_MANY_SUBSCRIBERS
    assert (refused.value.fields["durable"], refused.value.fields["limit"]) == ("a", 2)
    machine.detach("a", "one")
    machine.attach("a", "three", **key)


def test_messages_of_one_key_are_with_one_subscriber_and_the_others_go_on() -> None:
    machine = Machine(a={"type": "shared", "key_ordered": True})
    machine.publish(*[Message(key=key) for key in "kkjk"], "no key")
    machine.attach("a", "one")
    machine.attach("a", "two")
    assert machine.numbers("a", "one", 1) == [1]
    assert machine.numbers("a", "two") == [3, 5]
    assert machine.numbers("a", "two") == []
    machine.ack("a", "one", 1)
    assert machine.numbers("a", "two") == [2, 4]


def test_a_key_whose_message_came_back_waits_for_it() -> None:
    machine = Machine(a={"type": "shared", "key_ordered": True})
    machine.publish(*[Message(key="k") for _ in range(3)])
    machine.attach("a", "one")
    machine.attach("a", "two")
    assert machine.numbers("a", "one", 1) == [1]
    machine.settle("a", "one", nack=[(1, 500)])
    assert machine.numbers("a", "two") == []
    assert not machine.state.ready_for("s", "a", "two")
    machine.later(500)
    assert machine.deliver("a", "two") == [(1, 2), (2, 1), (3, 1)]


def test_a_long_look_among_messages_of_others_is_ready_until_it_finds_its_own() -> None:
    machine = Machine(a={"type": "shared", "matcher": {"kind": "a"}}, b=SHARED)
    machine.checked = False
    machine.publish(Message(fields={"kind": "a"}))
    for _ in range(40):
        machine.publish(*[Message() for _ in range(1_000)])
    machine.publish(Message(fields={"kind": "a"}))
    machine.attach("a", "one")
    looks = 0
    found: list[int] = []
    while machine.state.ready_for("s", "a", "one"):
        found += machine.numbers("a", "one")
        looks += 1
    assert found == [1, 40_002]
    assert 1 < looks < 10
    machine.state.check()


def test_one_busy_key_holds_up_others_only_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ordered, "WAITING_MAX", 3)
    machine = Machine(a={"type": "shared", "key_ordered": True, "prefetch": 1})
    machine.publish(*[Message(key=key) for key in "kkkkkj"])
    machine.attach("a", "one")
    machine.attach("a", "two")
    assert machine.numbers("a", "one") == [1]
    assert machine.numbers("a", "two") == []
    assert not machine.state.ready_for("s", "a", "two")
    machine.publish(Message(key="j"))
    assert Ready("s", "a") not in machine.effects
    machine.ack("a", "one", 1)
    assert Ready("s", "a") in machine.effects
    assert machine.numbers("a", "one") == [2]
    machine.ack("a", "one", 2)
    assert machine.numbers("a", "one") == [3]
    assert machine.numbers("a", "two") == [6]
