"""No command examines more than a bounded number of messages, however many are due at once. Steps count, not time."""

from __future__ import annotations

import pytest
from tests.stores.state_harness import Machine

from holdfast.stores import commands
from holdfast.stores.commands import EXPIRE_LOOKS, Deliver, Expire, Expired
from holdfast.stores.messages import Message
from holdfast.stores.ports import BLOCK_MESSAGES

KEYS = 10_000
STEPS_MAX = EXPIRE_LOOKS + 2 * BLOCK_MESSAGES
"""The budget, and what its last step may read beyond it."""


class Steps:
    """Counts the messages that the machine asks its port for, and the largest number for one command."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.machine.checked = False
        self.one = self.most = self.total = 0
        read = machine.messages.read

        def counted(store: str, first: int, last: int):
            found = read(store, first, last)
            self.one += len(found)
            return found

        machine.messages.read = counted  # type: ignore[method-assign]

    def do(self, command: commands.Command):
        self.one = 0
        result = self.machine.do(command)
        self.most = max(self.most, self.one)
        self.total += self.one
        return result

    def expire_everything(self) -> int:
        removed = 0
        for _ in range(1_000):
            result = self.do(Expire(self.machine.now_ms))
            assert isinstance(result, Expired)
            removed += result.messages
            if not result.more:
                return removed
        raise AssertionError("an expiry comes to its end")


@pytest.mark.parametrize("durable", [{"type": "last_value"}, {"type": "map"}])
def test_keys_that_expire_together_are_removed_in_bounded_steps(durable: dict[str, object]) -> None:
    machine = Machine(keyed={**durable, "message_ttl": 20})
    steps = Steps(machine)
    if durable["type"] == "map":
        for start in range(0, KEYS, 1_000):
            changes: list[tuple[str, bytes | None, int | None]] = [
                (f"k{number}", b"", None) for number in range(start, start + 1_000)
            ]
            machine.do(commands.MapChange(machine.now_ms, "s", "keyed", changes))
    else:
        machine.publish(*[Message(key=f"k{number}") for number in range(KEYS)])
    machine.now_ms += 20_000
    assert steps.expire_everything() == KEYS
    assert steps.most <= STEPS_MAX
    # Each message is read once: a key costs no second look at its neighbours.
    assert steps.total <= KEYS + STEPS_MAX
    machine.state.check()


def test_delayed_messages_that_are_due_together_are_woken_in_bounded_steps() -> None:
    machine = Machine(work={"type": "shared", "prefetch": 100})
    steps = Steps(machine)
    machine.attach("work", "ann")
    due_ms = machine.now_ms + 60_000
    for _ in range(20):
        machine.publish(*[Message(deliver_at_ms=due_ms) for _ in range(BLOCK_MESSAGES)])
        machine.deliver("work", "ann")
    machine.now_ms = due_ms
    first = steps.do(Deliver(machine.now_ms, "s", "work", "ann", 100))
    assert first.runs == [(1, 100, 1)]
    while (due := machine.state.next_deadline_ms()) is not None and due <= machine.now_ms:
        steps.do(Expire(machine.now_ms))
    assert steps.most <= 16_384 + 2 * BLOCK_MESSAGES
    machine.state.check()


def test_messages_with_a_time_of_their_own_expire_in_bounded_steps() -> None:
    machine = Machine(work={"type": "shared"}, other={"type": "shared", "matcher": {"kind": "a"}})
    steps = Steps(machine)
    machine.publish(*[Message(ttl_ms=5_000, fields={"kind": "a"}) for _ in range(KEYS)])
    machine.now_ms += 5_000
    assert steps.expire_everything() == 2 * KEYS
    assert steps.most <= STEPS_MAX
    machine.state.check()


def test_backlog_of_a_matcher_expires_in_bounded_steps() -> None:
    machine = Machine(some={"type": "shared", "matcher": {"kind": "a"}, "message_ttl": 5}, all={"type": "shared"})
    steps = Steps(machine)
    machine.publish(*[Message(fields={"kind": "ab"[number % 2]}) for number in range(KEYS)])
    machine.now_ms += 5_000
    assert steps.expire_everything() == KEYS // 2
    assert steps.most <= STEPS_MAX
    machine.state.check()


def test_a_command_expires_as_many_messages_as_it_says() -> None:
    machine = Machine(keyed={"type": "last_value", "message_ttl": 20})
    machine.publish(*[Message(key=f"k{number}") for number in range(100)])
    machine.now_ms += 20_000
    assert machine.do(Expire(machine.now_ms, 7)) == Expired(7, 0, True)
    assert machine.do(Expire(machine.now_ms, 100)) == Expired(93, 0, False)


def test_many_messages_that_no_durable_wants_may_have_times_of_their_own() -> None:
    machine = Machine(some={"type": "shared", "matcher": {"kind": "a"}})
    count = 2 * BLOCK_MESSAGES + 1
    assert machine.publish(*[Message(ttl_ms=10) for _ in range(count)]).unmatched == count
    machine.later(100)


def test_a_map_of_many_keys_is_cleared() -> None:
    machine = Machine(map={"type": "map"})
    count = 2 * BLOCK_MESSAGES + 1
    changes: list[tuple[str, bytes | None, int | None]] = [(f"k{number}", b"v", None) for number in range(count)]
    machine.do(commands.MapChange(machine.now_ms, "s", "map", changes))
    result = machine.do(commands.MapChange(machine.now_ms, "s", "map", [], 0, remove_all=True))
    assert result == commands.MapChanged(2 * count, count)
