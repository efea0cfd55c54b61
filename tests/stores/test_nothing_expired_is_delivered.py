"""Nothing older than its durable's ``message_ttl`` is delivered, however much ended at once and is still to go."""

from __future__ import annotations

import pytest
from tests.stores.state_harness import Machine

from holdfast.stores.durables import backlog
from holdfast.stores.values import commands
from holdfast.stores.values.effects import Ready
from holdfast.wire.parts import Message

TTL_MS = 5_000
DURABLES = {
    "shared": {"type": "shared"},
    "standard": {"type": "standard"},
    "matcher": {"type": "shared", "matcher": {"kind": "a"}},
    "key_ordered": {"type": "shared", "key_ordered": True},
}


def message() -> Message:
    return Message(fields={"kind": "a"}, key="k")


def with_old(kind: str, count: int, *young: Message) -> Machine:
    """``count`` messages whose time has just ended, no ``Expire`` yet, and ``young`` behind them."""
    machine = Machine(a={**DURABLES[kind], "message_ttl": TTL_MS // 1_000})
    machine.checked = False
    machine.attach("a", "one")
    machine.publish(*[message()] * count)
    machine.now_ms += TTL_MS - 1
    machine.publish(*young or [message()])
    machine.now_ms += 1
    return machine


@pytest.mark.parametrize("kind", DURABLES)
def test_a_delivery_passes_all_that_is_too_old_and_gives_what_is_behind(kind: str) -> None:
    machine = with_old(kind, 1_500)
    assert machine.deliver("a", "one", 10) == [(1_501, 1)]
    assert machine.durable("a").causes == {"ttl": 1_500}
    assert machine.kept == 1
    machine.state.check()


@pytest.mark.parametrize("kind", DURABLES)
def test_between_two_steps_of_an_expiry_nothing_too_old_is_delivered(kind: str) -> None:
    machine = with_old(kind, 3_000)
    assert machine.do(commands.Expire(machine.now_ms, 100)).more
    assert machine.numbers("a", "one", 1) == [3_001]
    machine.state.check()


@pytest.mark.parametrize("kind", DURABLES)
def test_more_than_one_delivery_looks_through_is_gone_on_with(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty answer says by ``Ready`` that there is more to look at; what is too old is never in one."""
    monkeypatch.setattr(backlog, "SCAN_MAX", 512)
    monkeypatch.setattr("holdfast.stores.durables.consumption.SCAN_MAX", 512)
    machine = with_old(kind, 2_000)
    for _ in range(10):
        numbers = machine.numbers("a", "one", 10)
        machine.state.check()
        if numbers:
            break
        assert Ready("s", "a") in machine.effects
        assert machine.state.ready_for("s", "a", "one")
    assert numbers == [2_001]
    assert machine.durable("a").causes == {"ttl": 2_000}


def test_a_delayed_message_among_those_too_old_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """It began to live when it was due."""
    monkeypatch.setattr("holdfast.stores.durables.consumption.SCAN_MAX", 16)
    machine = Machine(a={"type": "shared", "message_ttl": TTL_MS // 1_000})
    machine.attach("a", "one")
    delayed = Message(deliver_at_ms=machine.now_ms + 1_000)
    machine.publish(*["old"] * 16, "old", delayed, "old")
    machine.now_ms += TTL_MS
    assert machine.numbers("a", "one", 10) == [18]
    assert machine.durable("a").causes == {"ttl": 18}
