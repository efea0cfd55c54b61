"""Time-to-live, delays, limits of a durable, retention and rewinding, law by law."""

from __future__ import annotations

import os

import pytest
from tests.stores.state_harness import Machine

from holdfast.errors import Code, InvalidRequest
from holdfast.stores.durables import backlog, expiry
from holdfast.stores.values import commands
from holdfast.stores.values.effects import Ready
from holdfast.wire.parts import Message

SHARED = {"type": "shared"}


# ---- time-to-live ---------------------------------------------------------------------------------------------------


def test_a_durables_time_to_live_counts_from_arrival_and_is_its_own() -> None:
    machine = Machine(a={"type": "shared", "message_ttl": 5}, b=SHARED)
    machine.publish("x")
    machine.later(3_000)
    machine.publish("y")
    machine.later(2_000)
    machine.attach("a", "one")
    assert machine.numbers("a", "one") == [2]
    assert machine.durable("a").causes == {"ttl": 1}
    assert machine.kept == 2


def test_a_messages_own_time_to_live_ends_it_for_every_durable() -> None:
    machine = Machine(a=SHARED, b={"type": "standard"})
    machine.publish(Message(ttl_ms=5_000), "stays")
    machine.later(5_000)
    assert machine.kept == 1
    for durable in "ab":
        machine.attach(durable, "one")
        assert machine.numbers(durable, "one") == [2]
        assert machine.durable(durable).causes == {"own_ttl": 1}


def test_what_a_subscriber_holds_is_not_taken_from_it_by_time() -> None:
    machine = Machine(a={"type": "shared", "message_ttl": 5}, b=SHARED)
    machine.publish(Message(ttl_ms=4_000))
    for durable in "ab":
        machine.attach(durable, "one")
        machine.deliver(durable, "one")
    machine.later(6_000)
    assert machine.ack("a", "one", 1).acknowledged == 1
    assert machine.kept == 1
    machine.settle("b", "one", nack=[(1, 0)])
    assert machine.deliver("b", "one") == []
    assert machine.kept == 0


def test_what_expired_is_not_delivered_even_before_it_is_carried_out() -> None:
    machine = Machine(a={"type": "shared", "message_ttl": 5}, b=SHARED)
    machine.publish(Message(ttl_ms=4_000), "y")
    for durable in "ab":
        machine.attach(durable, "one")
    machine.now_ms += 5_000
    assert machine.numbers("a", "one") == []
    assert machine.numbers("b", "one") == [2]


def test_one_expiry_of_a_large_backlog_is_bounded_and_goes_on() -> None:
    machine = Machine(a={"type": "shared", "message_ttl": 5})
    machine.checked = False
    machine.publish(*["x"] * 5_000)
    machine.now_ms += 5_000
    results = []
    while (due_ms := machine.state.next_deadline_ms()) is not None and due_ms <= machine.now_ms:
        results.append(machine.do(commands.Expire(machine.now_ms, 1_000)))
    assert sum(result.messages for result in results) == 5_000
    assert [result.more for result in results] == [True] * (len(results) - 1) + [False]
    assert max(result.messages for result in results) <= 1_000 + 1_024
    machine.state.check()


# ---- delayed messages -----------------------------------------------------------------------------------------------


def test_a_delayed_message_is_delivered_at_its_time_and_not_before() -> None:
    machine = Machine(a=SHARED)
    machine.publish(Message(deliver_at_ms=machine.now_ms + 500), "now")
    machine.attach("a", "one")
    assert machine.numbers("a", "one") == [2]
    machine.later(499)
    assert machine.numbers("a", "one") == []
    machine.later(1)
    assert Ready("s", "a") in machine.effects
    assert machine.numbers("a", "one") == [1]


def test_a_delayed_message_begins_to_live_when_it_is_due() -> None:
    machine = Machine(a={"type": "shared", "message_ttl": 1}, b=SHARED)
    machine.publish(Message(deliver_at_ms=machine.now_ms + 5_000, ttl_ms=800))
    for durable in "ab":
        machine.attach(durable, "one")
        assert machine.numbers(durable, "one") == []
    machine.later(5_700)
    assert machine.numbers("a", "one") == [1]
    machine.later(100)
    assert machine.numbers("b", "one") == []
    assert machine.durable("b").causes == {"own_ttl": 1}


DELAYED = 1_200 if os.environ.get("HOLDFAST_SMALL") == "1" else 3_000
"""More than one block. Each is due at a time of its own, for which its block is read once more."""


def test_many_delayed_messages_take_an_item_for_each_block() -> None:
    machine = Machine(a=SHARED)
    machine.checked = False
    before = len(machine.state.snapshot())
    machine.publish(*[Message(deliver_at_ms=machine.now_ms + 1 + n) for n in range(DELAYED)])
    machine.attach("a", "one")
    assert machine.numbers("a", "one") == []
    assert len(machine.state.snapshot()) - before < 200
    assert machine.durable("a").backlog.delayed_total == DELAYED
    machine.state.check()
    machine.later(10_000)
    got: list[int] = []
    while numbers := machine.numbers("a", "one", 1_000):
        got += numbers
        machine.settle("a", "one", ack=[(numbers[0], numbers[-1])])
    assert got == list(range(1, DELAYED + 1))
    assert machine.kept == 0


# ---- limits of a durable --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{"message_limit": 2}, {"bytelimit": 2}])
@pytest.mark.parametrize(("discard", "left"), [("old", [2, 3]), ("new", [1, 2])])
def test_a_durable_at_its_limit_discards_as_told_and_the_publisher_is_not_refused(
    limit: dict[str, object], discard: str, left: list[int]
) -> None:
    machine = Machine(a={"type": "shared", "discard": discard, **limit})
    machine.publish("a", "b")
    machine.publish("c")
    machine.attach("a", "one")
    assert machine.numbers("a", "one") == left
    assert machine.kept == 2
    assert machine.durable("a").causes == {f"limit_{discard}": 1}


def test_a_limit_that_is_lowered_holds_at_once() -> None:
    machine = Machine(a={"type": "shared", "message_limit": 9, "discard": "old"})
    machine.publish(*"abcd")
    machine.define(a={"type": "shared", "message_limit": 1, "discard": "old"})
    machine.attach("a", "one")
    assert machine.numbers("a", "one") == [4]


# ---- retention ------------------------------------------------------------------------------------------------------


def rewind(machine: Machine, seq: int = 0, time_ms: int = 0) -> None:
    machine.do(commands.Rewind(machine.now_ms, "s", "a", seq, time_ms))


def retaining() -> Machine:
    """Three messages, a second apart, all acknowledged, retained for a minute."""
    machine = Machine(a={"type": "shared", "retention_time": 60})
    machine.attach("a", "one")
    for body in "abc":
        machine.publish(body)
        machine.later(1_000)
    machine.ack("a", "one", *machine.numbers("a", "one"))
    return machine


def test_what_was_acknowledged_is_retained_for_its_time_and_comes_again_by_rewinding_only() -> None:
    machine = retaining()
    assert (machine.kept, machine.durable("a").pending) == (3, 0)
    assert machine.numbers("a", "one") == []
    rewind(machine)
    assert machine.deliver("a", "one") == [(1, 1), (2, 1), (3, 1)]
    machine.ack("a", "one", 1, 2, 3)
    machine.later(62_000)
    assert machine.kept == 0


@pytest.mark.parametrize(("to", "numbers"), [({"seq": 2}, [2, 3]), ({"time_ms": 1_002_000}, [3]), ({"seq": 9}, [])])
def test_rewinding_to_a_number_or_a_time(to: dict[str, int], numbers: list[int]) -> None:
    machine = retaining()
    rewind(machine, **to)
    assert machine.numbers("a", "one") == numbers


def test_what_the_durable_had_reached_before_it_was_rewound_is_replayed() -> None:
    machine = retaining()
    machine.publish("d", "e")
    assert machine.numbers("a", "one", 1) == [4]
    machine.settle("a", "one", nack=[(4, 0)])
    rewind(machine, seq=2)
    machine.restart()
    replayed = machine.durable("a").replayed
    assert [seq in replayed for seq in range(1, 6)] == [False, True, True, True, False]
    assert machine.numbers("a", "one", 2) == [2, 3]
    machine.ack("a", "one", 3)
    machine.later(61_000)
    assert machine.durable("a").replayed.runs() == [(2, 4)], "2 is held, and may come again"
    machine.ack("a", "one", 2, *machine.numbers("a", "one"))
    machine.later(130_000)
    assert not machine.durable("a").replayed, "nothing of it is retained"


def test_rewinds_to_many_places_need_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "REPLAYED_RUNS_MAX", 3)
    machine = Machine(a={"type": "shared", "retention_time": 60})
    machine.attach("a", "one")
    for _ in range(6):
        machine.publish("x", "y")
        machine.ack("a", "one", *machine.numbers("a", "one"))
        rewind(machine, seq=machine.state.stores["s"].counts.next_seq - 1)
        machine.ack("a", "one", *machine.numbers("a", "one"))
    assert machine.durable("a").replayed.runs() == [(8, 8), (10, 10), (12, 12)]


def test_rewinding_takes_back_what_subscribers_hold_from_there_on() -> None:
    machine = retaining()
    machine.publish("d")
    assert machine.numbers("a", "one") == [4]
    rewind(machine, seq=3)
    assert machine.ack("a", "one", 4).stale == [(4, 4)]
    assert machine.deliver("a", "one") == [(3, 1), (4, 1)]


def test_what_a_rejection_or_an_administrator_took_away_does_not_come_again() -> None:
    machine = retaining()
    machine.publish("d", "e")
    assert machine.numbers("a", "one") == [4, 5]
    machine.settle("a", "one", reject=[4])
    machine.do(commands.Drop(machine.now_ms, "s", "a", 2))
    rewind(machine)
    assert machine.numbers("a", "one") == [1, 3, 5]


def test_a_durable_without_retention_cannot_be_rewound() -> None:
    machine = Machine(a=SHARED)
    with pytest.raises(InvalidRequest) as refused:
        rewind(machine)
    assert refused.value.code is Code.TYPE_MISMATCH


def test_retention_that_ends_by_definition_lets_go() -> None:
    machine = retaining()
    machine.define(a=SHARED)
    machine.later(1)  # they are given back in steps
    assert machine.kept == 0


# ---- administration -------------------------------------------------------------------------------------------------


def test_a_purge_forgets_everything_wherever_it_is() -> None:
    machine = Machine(a={"type": "shared", "dead_letter_store": "dead"})
    machine.publish("held", "back", "later", "dying", Message(deliver_at_ms=machine.now_ms + 9_000), "new")
    machine.attach("a", "one")
    assert machine.numbers("a", "one", 4) == [1, 2, 3, 4]
    machine.settle("a", "one", nack=[(2, 0), (3, 5_000)], reject=[4])
    result = machine.do(commands.Purge(machine.now_ms, "s", "a"))
    assert (result.messages, result.bytes) == (6, 21)
    assert machine.kept == 0
    assert machine.ack("a", "one", 1).stale == [(1, 1)]
    machine.publish("next")
    assert machine.numbers("a", "one") == [7]


def test_a_large_purge_is_done_at_once_and_given_back_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(a={"type": "shared", "matcher": {"kind": "a"}}, b={"type": "shared", "matcher": {"kind": "b"}})
    machine.publish(*[Message(fields={"kind": "ab"[n % 2]}, ttl_ms=500 * (n % 3)) for n in range(60)])
    monkeypatch.setattr(backlog, "SCAN_MAX", 8)
    monkeypatch.setattr(backlog, "CHUNK", 4)
    assert machine.do(commands.Purge(machine.now_ms, "s", "a")).messages == 30
    assert machine.durable("a").pending == 0
    assert machine.kept > 30 + 20
    machine.publish(Message(fields={"kind": "a"}))
    machine.restart()
    machine.later(0)
    assert machine.kept == 31
    machine.attach("a", "one")
    assert machine.numbers("a", "one") == [61]


@pytest.mark.parametrize("matcher", [{"kind": "a"}, {}])
def test_a_purge_of_much_that_is_retained_is_given_back_in_steps(
    matcher: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is read where there is a matcher, so they are no more one command than a backlog is."""
    machine = Machine(a={"type": "shared", "matcher": matcher, "retention_time": 3_600})
    machine.publish(*[Message(fields={"kind": "a"}, ttl_ms=500 * (n % 3)) for n in range(60)])
    machine.attach("a", "one")
    assert len(machine.numbers("a", "one", 50)) == 50
    machine.ack("a", "one", *[seq for seq in range(1, 49) if seq % 7])
    machine.settle("a", "one", nack=[(7, 60_000)])
    before = machine.kept
    monkeypatch.setattr(backlog, "SCAN_MAX", 8)
    monkeypatch.setattr(backlog, "CHUNK", 4)
    monkeypatch.setattr(backlog, "STEP_MESSAGES", 8)
    pending = machine.durable("a").pending
    assert machine.do(commands.Purge(machine.now_ms, "s", "a")).messages == pending
    assert before - machine.kept <= pending + 2 * 8, "the rest is for further commands"
    assert machine.kept > 0
    machine.publish(Message(fields={"kind": "a"}))
    machine.restart()
    machine.later(0)
    assert machine.kept == 1
    machine.do(commands.Rewind(machine.now_ms, "s", "a"))
    assert machine.numbers("a", "one") == [61], "nothing that was purged comes again"
    machine.later(2_000)
    machine.ack("a", "one", 61)
    assert machine.kept == 1


def test_one_message_is_deleted_of_one_durable_wherever_it_is() -> None:
    machine = Machine(a=SHARED, b=SHARED)
    machine.publish(*"abc")
    machine.attach("a", "one")
    machine.deliver("a", "one", 2)
    machine.settle("a", "one", nack=[(2, 1_000)])
    for seq in (1, 2, 3):
        machine.do(commands.Drop(machine.now_ms, "s", "a", seq))
    assert machine.durable("a").pending == 0
    assert machine.kept == 3


def test_browsing_shows_everything_with_its_deliveries_and_takes_nothing() -> None:
    machine = Machine(a=SHARED)
    machine.publish("held", "back", Message(deliver_at_ms=machine.now_ms + 9_000), "new")
    machine.attach("a", "one")
    machine.deliver("a", "one", 2)
    machine.settle("a", "one", nack=[(2, 0)])
    before = machine.state.snapshot()
    assert machine.durable("a").browse(0, 10) == [(1, 1), (2, 1), (3, 0), (4, 0)]
    assert machine.durable("a").browse(2, 1) == [(3, 0)]
    assert machine.state.snapshot() == before


def test_a_snapshot_does_not_grow_with_the_backlog() -> None:
    machine = Machine(a=SHARED, b={"type": "standard", "matcher": {"kind": "a"}})
    machine.checked = False
    sizes = []
    for _ in range(3):
        for _ in range(10):
            machine.publish(*[Message(fields={"kind": "a"}) for _ in range(1_000)])
        sizes.append(len(machine.state.snapshot()))
    assert max(sizes) - min(sizes) < 16
