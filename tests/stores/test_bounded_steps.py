"""No command examines more than a bounded number of messages, however many are due at once. Steps count, not time."""

from __future__ import annotations

import json
from collections.abc import Callable
from unittest.mock import Mock

import pytest
from tests.matrix import matrix
from tests.stores.state_harness import Machine

from holdfast.stores.durables.backlog import SCAN_MAX
from holdfast.stores.durables.keyed import STEP_ENTRIES as STEP
from holdfast.stores.machine.state import State
from holdfast.stores.storage.caches import EntryCache
from holdfast.stores.storage.volatile import VolatileEntries
from holdfast.stores.values import commands
from holdfast.stores.values.commands import EXPIRE_LOOKS, Deliver, Expire, Expired
from holdfast.stores.values.effects import Changed
from holdfast.stores.values.ports import BLOCK_MESSAGES, KeyEntry
from holdfast.wire.parts import Message

Clear = Callable[[Machine], commands.Command]
KEYS = 10_000
STEPS_MAX = EXPIRE_LOOKS + 2 * BLOCK_MESSAGES
"""The budget, and what its last step may read beyond it."""


class Steps:
    """Counts the messages that the machine asks its port for, and the largest number for one command."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.machine.checked = False
        self.one = self.most = self.total = self.entries = 0
        read, scan = machine.messages.read, machine.entries.scan

        def counted(store: str, first: int, last: int):
            found = read(store, first, last)
            self.one += len(found)
            return found

        def scanned(store: str, durable: str, after: str = ""):
            for entry in scan(store, durable, after):
                self.one += 1
                self.entries += 1
                yield entry

        machine.messages.read = counted  # type: ignore[method-assign]
        machine.entries.scan = scanned  # type: ignore[method-assign]

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


def fill(machine: Machine, kind: str, keys: int = KEYS) -> None:
    if kind == "last_value":
        machine.publish(*[Message(key=f"k{number:05}") for number in range(keys)])
        return
    changes: list[tuple[str, bytes | None, int | None]] = [(f"k{number:05}", b"v", None) for number in range(keys)]
    machine.do(commands.MapChange(machine.now_ms, "s", "keyed", changes))


def remove_all(machine: Machine) -> commands.Command:
    return commands.MapChange(machine.now_ms, "s", "keyed", [], 0, remove_all=True)


def purge(machine: Machine) -> commands.Command:
    return commands.Purge(machine.now_ms, "s", "keyed")


def undefine(machine: Machine) -> commands.Command:
    part = commands.DefinitionPart(("stores", "s", "durables", "keyed"))
    return commands.Redefine(machine.now_ms, [part], machine.state.revision + 1, delete=True)


@pytest.mark.parametrize(
    ("kind", "command"),
    [("map", remove_all), ("map", purge), ("map", undefine), ("last_value", purge), ("last_value", undefine)],
)
def test_keys_are_cleared_at_once_and_given_back_in_bounded_steps(kind: str, command: Clear) -> None:
    machine = Machine(keyed={"type": kind})
    fill(machine, kind)
    steps = Steps(machine)
    result = steps.do(command(machine))
    if command is purge:
        assert result.messages == KEYS
    if command is remove_all:
        assert result == commands.MapChanged(KEYS + 1, KEYS), "one number for all"
    told = changes_of(machine)
    keyed = getattr(machine.state.stores["s"].durables.get("keyed"), "keyed", None)
    assert keyed is None or (keyed.messages, keyed.bytes, list(keyed.scan())) == (0, 0, [])
    assert machine.kept == KEYS - STEP
    while (due := machine.state.next_deadline_ms()) is not None and due <= machine.now_ms:
        steps.do(Expire(machine.now_ms))
        told += changes_of(machine)
        if machine.kept == KEYS - 3 * STEP:
            looked = steps.entries
            machine.restart()
            machine.state.check()
            steps.entries = looked
    assert machine.kept == 0
    assert steps.most <= STEP
    assert steps.entries == KEYS, "each was looked at once"
    machine.state.check()
    expected = {remove_all: (KEYS + 1, "removed"), purge: (0, "deleted")}
    if kind == "map" and command is not undefine:
        number, cause = expected[command]
        assert told == [(f"k{place:05}", number or place + 1, cause) for place in range(KEYS)]
    else:
        assert told == []


def changes_of(machine: Machine) -> list[tuple[str, int, str]]:
    return [change for effect in machine.effects if isinstance(effect, Changed) for change in effect.changes]


class NoTable:
    """A table of entries that has none."""

    def entry(self, store: str, durable: str, key: str) -> KeyEntry | None:
        del store, durable, key
        return None

    def entries_after(self, store: str, durable: str, key: str, limit: int) -> list[KeyEntry]:
        del store, durable, key, limit
        return []


@pytest.mark.parametrize("kind", matrix(["cache", "harness", "memory"], 2))
def test_a_step_of_a_clear_takes_its_keys_at_once_and_leaves_no_place(kind: str) -> None:
    machine = Machine(keyed={"type": "map"})
    cache = EntryCache(NoTable())
    entries = {"memory": VolatileEntries(), "cache": cache, "harness": machine.entries}[kind]
    machine.blocks.strict = False
    machine.state = State(machine.messages, machine.blocks, entries)
    machine.checked = False
    machine.define(keyed={"type": "map"})
    keys = [f"k{number:06}" for number in range(100_000 if kind == "memory" else KEYS)]
    for start in range(0, len(keys), 10_000):
        changes: list[tuple[str, bytes | None, int | None]] = [(key, b"", None) for key in keys[start : start + 10_000]]
        machine.do(commands.MapChange(machine.now_ms, "s", "keyed", changes))
    counted = Mock(wraps=entries)
    machine.state.stores["s"].entries = counted
    machine.durable("keyed").keyed._entries = counted
    machine.do(remove_all(machine))
    while machine.kept:
        machine.do(Expire(machine.now_ms))
    assert [(name, args[3]) for name, args, _ in counted.mock_calls] == [("take_after", STEP)] * -(-len(keys) // STEP)
    if kind == "cache":
        cache.freeze()
        cache.written()
    for places in (name for name in ("_entries", "_keys", "entries", "keys") if hasattr(entries, name)):
        assert getattr(entries, places) == {}
    machine.state.check()


def test_a_key_that_changes_after_a_clear_is_told_in_the_order_of_its_changes() -> None:
    machine = Machine(keyed={"type": "map"})
    machine.checked = False
    fill(machine, "map")
    machine.do(remove_all(machine))
    last = f"k{KEYS - 1:05}"
    machine.do(commands.MapChange(machine.now_ms, "s", "keyed", [(last, b"new", None)]))
    assert changes_of(machine) == [(last, KEYS + 1, "removed"), (last, KEYS + 2, "set")]
    machine.do(remove_all(machine))
    assert changes_of(machine) == [(last, KEYS + 3, "removed")]
    told: list[tuple[str, int, str]] = []
    while machine.kept:
        machine.do(Expire(machine.now_ms))
        told += changes_of(machine)
    assert last not in {key for key, _, _ in told}
    assert len(told) == KEYS - STEP - 1
    machine.state.check()


@pytest.mark.parametrize("kind", matrix(["map", "last_value"]))
def test_a_durable_is_made_again_while_its_entries_are_still_given_back(kind: str) -> None:
    machine = Machine(keyed={"type": kind})
    machine.checked = False
    for round_ in range(3):
        fill(machine, kind, 3_000)
        assert machine.durable("keyed").keyed.messages == 3_000
        machine.do(undefine(machine))
        machine.define(keyed={"type": kind})
        assert machine.durable("keyed").keyed.messages == 0
        places = {residue.of.namespace for residue in machine.state.stores["s"].keyed_residues}
        assert len(places) == round_ + 1
        assert machine.durable("keyed").keyed.namespace not in places
    fill(machine, kind, 10)
    machine.restart()
    machine.later(1)
    assert machine.kept == 10
    machine.state.check()


@pytest.mark.matrix
def test_a_map_makes_room_in_bounded_steps() -> None:
    machine = Machine(keyed={"type": "map", "message_limit": 2, "discard": "old"}, other={"type": "shared"})
    steps = Steps(machine)

    def put(key: str) -> list[tuple[str, int, str]]:
        steps.do(commands.MapChange(machine.now_ms, "s", "keyed", [(key, b"", None)]))
        return changes_of(machine)

    put("a")
    for _ in range(5):
        machine.publish(*["x"] * 10_000)
    assert len(put("b")) == 1
    assert [cause for _, _, cause in put("c")] == ["set", "discarded"]
    assert [cause for _, _, cause in put("d")] == ["set"], "the next is 50,000 messages away"
    told: list[tuple[str, int, str]] = []
    while (due := machine.state.next_deadline_ms()) is not None and due <= machine.now_ms:
        machine.restart()
        steps.do(Expire(machine.now_ms))
        told += changes_of(machine)
    assert told == [("b", 50_002, "discarded")]
    assert steps.most <= SCAN_MAX + BLOCK_MESSAGES
    machine.state.check()


def expire_what_is_due(machine: Machine, steps: Steps) -> None:
    """Carry out what is due, with a restart before the first part."""
    machine.restart()
    for _ in range(100):
        due_ms = machine.state.next_deadline_ms()
        if due_ms is None or due_ms > machine.now_ms:
            return
        steps.do(Expire(machine.now_ms))
    raise AssertionError("an expiry comes to its end")


def redefine(machine: Machine, name: str, **durable: object) -> commands.Command:
    part = commands.DefinitionPart(("stores", "s", "durables", name), json.dumps(durable).encode())
    return commands.Redefine(machine.now_ms, [part], machine.state.revision + 1, delete=True)


def test_a_durable_makes_room_in_bounded_steps() -> None:
    some = {"type": "shared", "matcher": {"kind": "a"}, "message_limit": 1, "discard": "old"}
    machine = Machine(some=some, other={"type": "shared"})
    steps = Steps(machine)
    wanted = Message(fields={"kind": "a"})
    machine.publish(wanted)
    for _ in range(2):
        machine.publish(*["x"] * 10_000)
    machine.publish(wanted)
    steps.do(commands.Publish(machine.now_ms, "s", "", [wanted]))
    assert machine.durable("some").pending == 2, "the next is 20,000 messages away"
    assert machine.state.next_deadline_ms() == machine.now_ms
    machine.state.check()
    expire_what_is_due(machine, steps)
    assert machine.durable("some").pending == 1
    assert machine.durable("some").causes == {"limit_old": 2}
    assert steps.most <= SCAN_MAX + BLOCK_MESSAGES
    machine.state.check()


def test_a_lower_limit_is_carried_out_in_bounded_steps() -> None:
    some: dict[str, object] = {"type": "shared", "matcher": {"kind": "a"}}
    machine = Machine(some=some)
    steps = Steps(machine)
    for _ in range(2):
        machine.publish(*[Message(fields={"kind": "a"})] * 10_000)
    steps.do(redefine(machine, "some", **some, message_limit=3, discard="old"))
    assert machine.durable("some").pending > 3
    expire_what_is_due(machine, steps)
    assert machine.durable("some").pending == machine.kept == 3
    assert steps.most <= SCAN_MAX + BLOCK_MESSAGES
    machine.state.check()


@pytest.mark.parametrize("matcher", matrix([{"kind": "a"}, {}]))
def test_what_was_retained_is_given_back_in_bounded_steps(matcher: dict[str, str]) -> None:
    work: dict[str, object] = {"type": "shared", "matcher": matcher, "prefetch": 4 * KEYS}
    machine = Machine(work={**work, "retention_time": 3600})
    machine.checked = False
    machine.attach("work", "ann")
    wanted = {"kind": "a"}
    for number in range(4):
        delayed = [Message(fields=wanted, deliver_at_ms=machine.now_ms + 5_000 + number)] * 600
        machine.publish(*[Message(fields=wanted)] * (KEYS // 2), *delayed)
    while machine.durable("work").undelivered:
        machine.deliver("work", "ann", 4 * KEYS)
    machine.settle("work", "ann", ack=[(1, 2 * KEYS)])
    machine.settle("work", "ann", nack=[(20_001, 0)])
    held = machine.durable("work").leases.held
    pending = machine.durable("work").pending
    assert machine.durable("work").backlog.delayed_total == 2_400
    machine.state.check()
    steps = Steps(machine)
    steps.do(redefine(machine, "work", **work))
    machine.state.check()
    machine.publish(Message(fields=wanted))
    machine.now_ms += 5_002  # some of the delayed are due before everything is given back
    assert len(machine.numbers("work", "ann", 5)) == 5
    machine.ack("work", "ann", 5_001, 5_002)
    expire_what_is_due(machine, steps)
    assert machine.state.stores["s"].residues == []
    assert steps.most <= SCAN_MAX + BLOCK_MESSAGES
    machine.state.check()
    acknowledged = pending + 1 - machine.durable("work").pending
    assert machine.kept == machine.durable("work").pending
    assert acknowledged <= 2
    assert machine.durable("work").leases.held > held


@pytest.mark.matrix  # other messages are purged in the same steps
def test_delayed_messages_are_purged_in_bounded_steps() -> None:
    machine = Machine(work={"type": "shared"}, other={"type": "shared"})
    machine.checked = False
    machine.attach("work", "ann")
    for number in range(2):
        for _ in range(3):
            machine.publish(*[Message(deliver_at_ms=machine.now_ms + 5_000, ttl_ms=4_000 * number)] * KEYS)
        machine.deliver("work", "ann", 1)
        machine.deliver("work", "ann", 1)
    passed = machine.durable("work").backlog.delayed_total
    assert passed > SCAN_MAX
    pending = machine.durable("work").pending
    steps = Steps(machine)
    assert steps.do(commands.Purge(machine.now_ms, "s", "work")).messages == pending
    assert machine.durable("work").pending == 0
    assert machine.state.stores["s"].residues
    expire_what_is_due(machine, steps)
    assert machine.state.stores["s"].residues == []
    assert steps.most <= 2 * (SCAN_MAX + BLOCK_MESSAGES), passed
    assert machine.kept == machine.durable("other").pending
    machine.state.check()


def test_messages_whose_delay_ends_together_are_woken_in_bounded_steps() -> None:
    machine = Machine(work={"type": "shared", "prefetch": 2 * KEYS})
    machine.checked = False
    machine.attach("work", "ann")
    machine.publish(*["x"] * 2 * KEYS)
    machine.deliver("work", "ann", 2 * KEYS)
    machine.settle("work", "ann", nack=[(seq, 1_000) for seq in range(1, 2 * KEYS + 1)])
    machine.now_ms += 1_000
    machine.do(Expire(machine.now_ms))
    assert len(machine.durable("work").redelivery.later) == 2 * KEYS - SCAN_MAX
    assert machine.state.next_deadline_ms() == machine.now_ms
    assert len(machine.deliver("work", "ann", 2 * KEYS)) == SCAN_MAX
    assert len(machine.deliver("work", "ann", 2 * KEYS)) == 2 * KEYS - SCAN_MAX


def test_a_command_looks_at_few_of_the_delayed_messages_that_came_back() -> None:
    machine = Machine(work={"type": "shared", "message_ttl": 3600, "prefetch": KEYS})
    machine.checked = False
    machine.attach("work", "ann")
    for number in range(5):
        machine.publish(*[Message(deliver_at_ms=machine.now_ms + 1_000 + 7 * place) for place in range(1_000)])
        machine.publish(*["x"] * 10)
        assert machine.deliver("work", "ann", 10)[0] == (1_010 * number + 1_001, 1)
    machine.now_ms += 20_000
    while (due := machine.state.next_deadline_ms()) is not None and due <= machine.now_ms:
        machine.do(Expire(machine.now_ms))
    assert len(machine.deliver("work", "ann", KEYS)) == 5_000
    machine.detach("work", "ann")
    machine.attach("work", "ann")
    steps = Steps(machine)
    first = machine.numbers("work", "ann", 1)
    for _ in range(9):
        assert steps.do(Deliver(machine.now_ms, "s", "work", "ann", 1)).runs
    steps.do(commands.Publish(machine.now_ms, "s", "", [Message()]))
    steps.do(commands.Acknowledge(machine.now_ms, "s", "work", "ann", nack=[(first[0], 0)]))
    assert steps.most <= 4
    machine.state.check()
    assert first == [1]


def test_a_durable_with_parked_messages_is_redefined_in_bounded_steps() -> None:
    work: dict[str, object] = {"type": "shared", "message_ttl": 3600, "prefetch": KEYS}
    machine = Machine(work={**work, "max_delivery": 1})
    machine.checked = False
    machine.attach("work", "ann")
    machine.publish(*[Message(ttl_ms=10**9)] * KEYS)
    machine.deliver("work", "ann", KEYS)
    machine.settle("work", "ann", nack=[(seq, 0) for seq in range(1, KEYS + 1)])
    assert len(machine.durable("work").dying) == KEYS
    steps = Steps(machine)
    steps.do(redefine(machine, "work", **work, max_delivery=2))
    assert steps.most == 0
    machine.state.check()


def test_a_delivery_passes_a_bounded_number_of_messages_that_expired() -> None:
    machine = Machine(work={"type": "shared", "message_ttl": 60, "prefetch": 2 * KEYS})
    machine.checked = False
    machine.attach("work", "ann")
    for _ in range(2):
        machine.publish(*[Message(ttl_ms=10**9)] * KEYS)
    for _ in range(2):
        machine.deliver("work", "ann", 2 * KEYS)
    machine.settle("work", "ann", nack=[(seq, 0) for seq in range(1, 2 * KEYS + 1)])
    machine.now_ms += 100_000
    machine.publish("new")
    steps = Steps(machine)
    assert steps.do(Deliver(machine.now_ms, "s", "work", "ann", 1)).runs == []
    assert machine.state.ready_for("s", "work", "ann"), "so it asks again"
    assert steps.do(Deliver(machine.now_ms, "s", "work", "ann", 1)).runs == [(2 * KEYS + 1, 2 * KEYS + 1, 1)]
    assert steps.most <= SCAN_MAX + BLOCK_MESSAGES
    assert machine.durable("work").causes == {"ttl": 2 * KEYS}
    machine.state.check()


def test_what_lapses_together_comes_back_in_bounded_steps_and_one_message_counts() -> None:
    machine = Machine(work={"type": "shared", "ack_wait": 1, "prefetch": 4 * KEYS})
    machine.checked = False
    machine.attach("work", "ann")
    for _ in range(2):
        machine.publish(*[Message(ttl_ms=10**9)] * KEYS)
    while machine.durable("work").undelivered:
        machine.deliver("work", "ann", 4 * KEYS)
    machine.now_ms += 2_000
    steps = Steps(machine)
    machine.restart()
    while (due := machine.state.next_deadline_ms()) is not None and due <= machine.now_ms:
        steps.do(Expire(machine.now_ms))
        if machine.durable("work").leases.held == 2 * KEYS - EXPIRE_LOOKS:
            machine.restart()
    assert machine.durable("work").tally.lapsed == 2 * KEYS
    assert machine.durable("work").leases.held == 0
    assert steps.most <= STEPS_MAX
    machine.state.check()
    assert machine.durable("work").redelivery.runs == [(1, 1, 1), (2, 2 * KEYS, -1)]


def test_a_lapse_in_parts_counts_what_was_started() -> None:
    machine = Machine(work={"type": "shared", "ack_wait": 1})
    machine.attach("work", "ann")
    machine.publish(*["x"] * 6)
    machine.deliver("work", "ann")
    machine.settle("work", "ann", started=[(1, 1, machine.now_ms), (4, 4, machine.now_ms)])
    machine.now_ms += 2_000
    while machine.durable("work").leases.held:
        machine.do(Expire(machine.now_ms, 1_000, looks=2))
        machine.restart()
    assert machine.durable("work").redelivery.runs == [(1, 1, 1), (2, 3, -1), (4, 4, 1), (5, 6, -1)]


def test_a_renewed_message_counts_when_it_lapses_itself() -> None:
    machine = Machine(work={"type": "shared", "ack_wait": 1})
    machine.attach("work", "ann")
    machine.publish(*["x"] * 6)
    machine.deliver("work", "ann")
    machine.now_ms += 500
    machine.settle("work", "ann", extend=[(1, 1)])
    machine.now_ms += 600
    while machine.durable("work").leases.held > 1:
        machine.do(Expire(machine.now_ms, 1_000, looks=2))
    assert machine.durable("work").redelivery.runs == [(2, 6, -1)]
    machine.later(1_000)
    assert machine.durable("work").redelivery.runs == [(1, 1, 1), (2, 6, -1)]


def test_what_came_back_goes_before_the_backlog() -> None:
    machine = Machine(work={"type": "shared", "message_ttl": 60, "prefetch": 50_000})
    machine.checked = False
    machine.attach("work", "ann")
    machine.publish(*["x"] * 20_000)
    assert len(machine.deliver("work", "ann", 20_000)) == 20_000
    machine.detach("work", "ann")
    machine.attach("work", "ann")
    machine.publish("new")
    got = machine.numbers("work", "ann", 50_000)
    assert got == list(range(1, SCAN_MAX + 1))
    assert len(got) + len(machine.numbers("work", "ann", 50_000)) == 20_001


def test_a_key_ordered_delivery_searches_in_bounded_steps() -> None:
    some = {"type": "shared", "key_ordered": True, "matcher": {"kind": "a"}}
    machine = Machine(some=some, other={"type": "shared"})
    wanted = Message(fields={"kind": "a"})
    machine.checked = False
    machine.attach("some", "ann")
    machine.publish(wanted)
    for _ in range(4):
        machine.publish(*["x"] * KEYS)
    machine.publish(wanted)
    assert machine.numbers("some", "ann", 1) == [1]
    steps = Steps(machine)
    assert steps.do(Deliver(machine.now_ms, "s", "some", "ann", 1)).runs == []
    assert machine.state.ready_for("s", "some", "ann"), "so it asks again"
    for _ in range(5):
        steps.do(Deliver(machine.now_ms, "s", "some", "ann", 1))
    assert machine.durable("some").leases.held == 2
    assert steps.most <= SCAN_MAX + BLOCK_MESSAGES
    machine.state.check()
