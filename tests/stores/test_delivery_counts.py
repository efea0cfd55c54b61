"""A delivery counts when the application was handed the message; what was delivered too often is parked."""

from __future__ import annotations

import pytest
from tests.stores.state_harness import Machine

from holdfast.errors import InvalidRequest, NotFound
from holdfast.stores.values import commands
from holdfast.stores.values.commands import Published, Redelivered
from holdfast.stores.values.effects import Advise
from holdfast.wire.parts import Message

WORK = {"type": "shared", "max_delivery": 5, "ack_wait": "30s", "prefetch": 64}


def filled(count: int = 100, **more: object) -> Machine:
    machine = Machine(a={**WORK, **more})
    machine.publish(*[str(number) for number in range(count)])
    return machine


def started(machine: Machine, subscriber: str, *seqs: int) -> None:
    machine.do(
        commands.Acknowledge(machine.now_ms, "s", "a", subscriber, started=[(seq, seq, machine.now_ms) for seq in seqs])
    )


def redeliver(machine: Machine, **more: object) -> Redelivered:
    result = machine.do(commands.Redeliver(machine.now_ms, "s", "a", **more))
    assert isinstance(result, Redelivered)
    return result


def pending(machine: Machine) -> int:
    return machine.state.stores["s"].durables["a"].pending


def test_five_restarts_of_the_service_count_nothing() -> None:
    machine = filled()
    for _ in range(6):
        machine.attach("a", "worker")
        assert machine.deliver("a", "worker") == [(seq, 1 if _ == 0 else -1) for seq in range(1, 65)]
        machine.restart()
        machine.do(commands.Restarted(machine.now_ms))
    assert pending(machine) == 100


def test_nothing_lapses_after_a_restart_before_its_subscriber_had_the_time_to_return() -> None:
    machine = filled(3, ack_wait="10s", buffer_wait="2s", subscriber_timeout="5s", key_ordered=True)
    machine.publish(Message(key="k"), Message(key="k"))
    machine.attach("a", "worker")
    machine.deliver("a", "worker")
    machine.later(1_900)  # the worker is handed them now: the service that hears it is killed
    machine.restart()
    machine.do(commands.Restarted(machine.now_ms))
    machine.later(4_999)
    machine.attach("a", "other")
    assert machine.deliver("a", "other") == []
    machine.later(1)
    assert [seq for seq, _ in machine.deliver("a", "other")][:3] == [1, 2, 3]


def test_what_was_never_sent_and_comes_back_for_the_order_is_delivered_as_new() -> None:
    machine = Machine(a={**WORK, "key_ordered": True, "ack_wait": "10s"})
    machine.publish(Message(key="k"), Message(key="k"))
    machine.attach("a", "worker")
    machine.deliver("a", "worker")
    started(machine, "worker", 1)
    machine.do(commands.Acknowledge(machine.now_ms, "s", "a", "worker", extend=[(2, 2)], unsent=[(2, 2)]))
    machine.later(5_000)
    machine.do(commands.Acknowledge(machine.now_ms, "s", "a", "worker", extend=[(2, 2)]))
    machine.later(5_000)
    machine.detach("a", "worker")
    machine.attach("a", "other")
    assert machine.deliver("a", "other") == [(1, 2), (2, 1)]


def test_five_crashes_on_the_first_message_park_that_one_and_no_other() -> None:
    machine = filled()
    for _ in range(5):
        machine.attach("a", "worker")
        machine.deliver("a", "worker")
        started(machine, "worker", 1)
        machine.detach("a", "worker")
    advisory = next(effect for effect in machine.effects if isinstance(effect, Advise))
    assert (advisory.kind, dict(advisory.facts)) == ("messages_parked", {"messages": 1, "seq": 1, "parked": 1})
    assert dict(machine.state.stores["s"].durables["a"].dying) == {1: ("max_delivery", 5)}
    assert pending(machine) == 100
    machine.attach("a", "worker")
    assert [seq for seq, _ in machine.deliver("a", "worker")] == list(range(2, 66))


def test_without_reports_only_the_oldest_held_message_counts() -> None:
    machine = filled(3)
    machine.attach("a", "worker")
    machine.deliver("a", "worker")
    machine.detach("a", "worker")
    machine.attach("a", "worker")
    assert machine.deliver("a", "worker") == [(1, 2), (2, -1), (3, -1)]


def test_who_reports_and_has_started_nothing_counts_nothing() -> None:
    machine = filled(3)
    machine.attach("a", "worker")
    machine.deliver("a", "worker")
    started(machine, "worker")
    machine.detach("a", "worker")
    machine.attach("a", "worker")
    assert machine.deliver("a", "worker") == [(1, -1), (2, -1), (3, -1)]


def test_what_lapses_counts_where_it_was_started() -> None:
    machine = filled(3)
    machine.attach("a", "worker")
    machine.deliver("a", "worker")
    started(machine, "worker", 2)
    machine.later(30_000)
    assert machine.deliver("a", "worker") == [(1, -1), (2, 2), (3, -1)]


def test_a_message_that_was_put_back_counts_as_ever() -> None:
    machine = filled(1)
    machine.attach("a", "worker")
    for count in range(1, 6):
        assert machine.deliver("a", "worker") == [(1, count)]
        machine.settle("a", "worker", nack=[(1, 0)])
    assert machine.deliver("a", "worker") == []
    assert pending(machine) == 1


def parked(**more: object) -> Machine:
    """Messages 1 and 2 are parked, 3 waits."""
    machine = Machine(a={**WORK, "max_delivery": 1, **more})
    machine.publish(Message(b"1", {"kind": "a"}, "k"), Message(b"2", {"kind": "b"}, "k"), Message(b"3", {}, "k"))
    machine.attach("a", "worker")
    machine.deliver("a", "worker", 2)
    machine.settle("a", "worker", nack=[(1, 0), (2, 0)])
    return machine


def test_a_parked_message_does_not_block_its_key() -> None:
    assert parked(key_ordered=True).deliver("a", "worker") == [(3, 1)]


def test_a_parked_message_expires() -> None:
    machine = parked(message_ttl="1m")
    machine.later(60_000)
    assert pending(machine) == 0
    assert machine.state.stores["s"].durables["a"].causes["ttl"] == 3


def test_parked_messages_are_the_first_that_a_limit_discards() -> None:
    machine = parked(message_limit=3, discard="old")
    machine.publish("4")
    assert list(machine.state.stores["s"].durables["a"].dying) == [2]
    assert pending(machine) == 3


def test_what_is_put_back_is_counted_from_one() -> None:
    machine = parked()
    assert redeliver(machine) == Redelivered(2)
    assert machine.deliver("a", "worker") == [(1, -1), (2, -1), (3, 1)]


def test_numbers_matcher_and_bound_choose_what_is_put_back() -> None:
    machine = parked()
    assert redeliver(machine, match=b'{"kind": "b"}') == Redelivered(1)
    assert redeliver(machine, messages=[(2, 9)]) == Redelivered(0)
    assert redeliver(machine, count=1) == Redelivered(1)
    machine = parked()
    assert redeliver(machine, count=1) == Redelivered(1, 1)


def test_what_expired_while_it_was_dying_is_not_put_back() -> None:
    machine = Machine(a={**WORK, "max_delivery": 1, "dead_letter_store": "dead"})
    machine.publish(Message(b"short", ttl_ms=1_000), Message(b"long"))
    machine.attach("a", "worker")
    machine.deliver("a", "worker")
    machine.settle("a", "worker", nack=[(1, 0), (2, 0)])
    machine.now_ms += 1_000
    assert redeliver(machine, messages=[(1, 1)]) == Redelivered(0)
    assert pending(machine) == 1, "the end of a message is recorded, also where nothing is put back"
    assert redeliver(machine) == Redelivered(1)
    assert machine.deliver("a", "worker") == [(2, -1)]


def test_a_parked_message_can_be_deleted_and_purged() -> None:
    machine = parked()
    machine.do(commands.Drop(machine.now_ms, "s", "a", 1))
    assert pending(machine) == 2
    machine.do(commands.Purge(machine.now_ms, "s", "a"))
    assert pending(machine) == 0 and not machine.state.stores["s"].durables["a"].dying


def test_parked_messages_go_to_a_dead_letter_store_that_comes_later() -> None:
    machine = parked()
    machine.define(a={**WORK, "max_delivery": 1, "dead_letter_store": "dead"})
    assert machine.bury() == 2
    assert pending(machine) == 1


def test_what_a_rewind_reaches_is_parked_no_more() -> None:
    machine = parked(retention_time="1h")
    machine.do(commands.Rewind(machine.now_ms, "s", "a"))
    assert machine.deliver("a", "worker") == [(1, 1), (2, 1), (3, 1)]


def test_a_letter_goes_back_to_the_durable_that_it_came_from_and_to_no_other() -> None:
    machine = Machine(a={**WORK, "max_delivery": 1, "dead_letter_store": "dead"}, b={"type": "shared"})
    machine.publish("x")
    machine.attach("a", "worker")
    machine.deliver("a", "worker")
    machine.settle("a", "worker", nack=[(1, 0)])
    assert machine.bury() == 1
    letter = commands.Resend(machine.now_ms, "dead", "all", 1, Message(b"x"), "s", "a")
    assert machine.do(letter) == Published(2, 2, 0, 0)
    assert machine.deliver("a", "worker") == [(2, 1)]
    machine.attach("b", "other")
    assert machine.deliver("b", "other") == [(1, 1)]
    with pytest.raises(NotFound, match="no such message"):
        machine.do(letter)


def test_only_what_waits_is_sent_back_and_only_to_what_takes_messages() -> None:
    machine = Machine(a=WORK, m={"type": "map"}, w={"type": "shared", "matcher": {"kind": "a"}})
    machine.publish("x", store="dead")
    machine.do(commands.Attach(machine.now_ms, "dead", "all", "reader"))
    machine.deliver("all", "reader", store="dead")
    for durable, refused in (("a", NotFound), ("m", InvalidRequest), ("w", NotFound)):
        with pytest.raises(refused):
            machine.do(commands.Resend(machine.now_ms, "dead", "all", 1, Message(b"x"), "s", durable))
    machine.do(commands.Detach(machine.now_ms, "dead", "all", "reader"))
    with pytest.raises(InvalidRequest, match="matcher"):
        machine.do(commands.Resend(machine.now_ms, "dead", "all", 1, Message(b"x"), "s", "w"))
