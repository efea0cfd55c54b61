"""Random commands against the state machine: every invariant after each, snapshots, and the log played again.

Judged by the machine's own invariants, and by what it said itself: a refusal and an unchanged answer change nothing, a
state that is taken up from a snapshot is the one that was written, and the same commands give the same results again.
"""

from __future__ import annotations

import json
import os
import random

import msgspec
import pytest
from tests.definitions import define
from tests.matrix import matrix
from tests.worlds.stores.memory_ports import MemoryBlocks, MemoryEntries, MemoryMessages

from holdfast.errors import HoldfastError
from holdfast.stores.durables import backlog
from holdfast.stores.machine.state import State
from holdfast.stores.values import commands
from holdfast.stores.values.commands import RULES, Command, Record
from holdfast.stores.values.effects import DeadLettering
from holdfast.wire.parts import Message

SEEDS = range(2_000 if os.environ.get("HOLDFAST_PROVE") else 32)
STEPS = 120


def fixed(rng: random.Random, kind: str) -> dict[str, object]:
    """What of a durable cannot change."""
    found: dict[str, object] = {"type": kind}
    if rng.random() < 0.5:
        found["matcher"] = {"kind": rng.choice(["a", "b"])}
    if kind == "shared" and rng.random() < 0.3:
        found["key_ordered"] = True
    return found


def limits(rng: random.Random, kind: str) -> dict[str, object]:
    """What may change while it is used."""
    if kind not in ("standard", "shared"):
        return {}
    found: dict[str, object] = {"ack_wait": rng.choice([0.05, 1, 30]), "prefetch": rng.choice([1, 3, 20, 1024])}
    if rng.random() < 0.4:
        found |= {"message_limit": rng.choice([3, 10]), "discard": rng.choice(["old", "new"])}
    if rng.random() < 0.2:
        found |= {"bytelimit": rng.choice([40, 200]), "discard": rng.choice(["old", "new"])}
    if rng.random() < 0.3:
        found["max_delivery"] = rng.choice([1, 2])
    if rng.random() < 0.5:
        found["dead_letter_store"] = "dead"
    if rng.random() < 0.4:
        found["retention_time"] = rng.choice([0.2, 5])
    elif rng.random() < 0.3:
        found["message_ttl"] = rng.choice([0.1, 2])
    return found


TYPES = {"standard": "standard", "shared": "shared", "other": "shared", "last": "last_value", "map": "map"}


def definitions(rng: random.Random, durables: dict[str, dict[str, object]]) -> bytes:
    """A store with durables of every type, and limits now and then."""
    store: dict[str, object] = {
        "durables": {name: {**durable, **limits(rng, TYPES[name])} for name, durable in durables.items()},
        "templates": {"temporary": {"type": "shared", "durable_ttl": 0.3}},
    }
    if rng.random() < 0.3:
        store["message_limit"] = rng.choice([20, 100])
    return json.dumps({"stores": {"main": store, "dead": {"durables": {"all": {"type": "shared"}}}}}).encode()


class World:
    """One state, its clock, and what to do next."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.durables = {name: fixed(self.rng, kind) for name, kind in TYPES.items() if kind != "map"}
        self.durables["map"] = {"type": "map"}
        self.blocks = MemoryBlocks(strict=True)
        self.messages = MemoryMessages(self.blocks)
        self.entries = MemoryEntries()
        self.state = State(self.messages, self.blocks, self.entries)
        self.now_ms = 1_000
        self.next_number = 1
        self.dying: list[DeadLettering] = []
        self.log: list[Record] = []
        self.has_times = self.rng.random() < 0.5

    def apply(self, command: Command) -> None:
        before = self.state.snapshot()
        try:
            applied = self.state.apply(command)
        except HoldfastError:
            assert self.state.snapshot() == before, f"a refusal changes nothing: {command}"
            return
        if not applied.changed:
            assert self.state.snapshot() == before, f"unchanged is unchanged: {command}"
        else:
            self.log.append(Record(command, applied.result, RULES))
        self.dying += [effect for effect in applied.effects if isinstance(effect, DeadLettering)]
        self.state.check()

    def restart(self) -> None:
        data = self.state.snapshot()
        self.state = State(self.messages, self.blocks, self.entries)
        self.state.restore(data)
        assert self.state.snapshot() == data, "a state taken up is the state that was written"
        self.state.check()

    def play_again(self) -> None:
        """From the log's bytes, in another machine."""
        blocks = MemoryBlocks()
        state = State(MemoryMessages(blocks), blocks, MemoryEntries())
        for record in self.log:
            again = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Record)
            assert state.apply(again.command).result == again.result, f"a log gives its results again: {record}"
        assert state.snapshot() == self.state.snapshot(), "and its state"

    def step(self) -> None:
        rng = self.rng
        if rng.random() < 0.4:
            self.now_ms += rng.choice([0, 1, 7, 60, 400, 3_000])
        if rng.random() < 0.04:
            self.restart()
        if rng.random() < 0.02:
            self.apply(self.redefine())
        self.apply(rng.choice(self.choices())())
        due_ms = self.state.next_deadline_ms()
        if due_ms is not None and due_ms <= self.now_ms and rng.random() < 0.7:
            self.apply(commands.Expire(self.now_ms, rng.choice([1, 10_000])))

    def choices(self) -> list[object]:
        return [
            self.publish, self.publish, self.publish, self.publish, self.deliver, self.deliver, self.deliver,
            self.acknowledge, self.acknowledge, self.acknowledge, self.attach, self.detach, self.expire, self.bury,
            self.purge, self.drop, self.rewind, self.rewind, self.change_map, self.change_map, self.lock,
            self.temporary, self.numbered,
        ]  # fmt: skip

    def message(self, number: int = 0) -> Message:
        rng = self.rng
        return Message(
            body=b"x" * rng.choice([0, 1, 30]),
            fields={} if rng.random() < 0.2 else {"kind": rng.choice(["a", "b", "c"])},
            key=rng.choice([None, "k1", "k2", "k3"]),
            publisher_seq=number,
            ttl_ms=rng.choice([0, 0, 0, 50, 2_000]) if self.has_times else 0,
            deliver_at_ms=self.now_ms + rng.choice([10, 500, 4_000]) if self.has_times and rng.random() < 0.2 else 0,
        )

    def publish(self) -> Command:
        count = self.rng.choice([1, 1, 2, 5, 40])
        return commands.Publish(self.now_ms, "main", "", [self.message() for _ in range(count)])

    def numbered(self) -> Command:
        first = max(1, self.next_number - self.rng.choice([0, 0, 1, 2]))
        count = self.rng.choice([1, 3])
        self.next_number = max(self.next_number, first + count)
        return commands.Publish(self.now_ms, "main", "p", [self.message(first + i) for i in range(count)])

    def place(self) -> tuple[str, str]:
        attached = [place for place in self.state.subscribers() if place[0] == "main"]
        if attached and self.rng.random() < 0.9:
            _, durable, subscriber = self.rng.choice(attached)
            return durable, subscriber
        return self.rng.choice(["standard", "shared", "other", "last", "map", "temporary"]), self.rng.choice("xyz")

    def deliver(self) -> Command:
        durable, subscriber = self.place()
        return commands.Deliver(self.now_ms, "main", durable, subscriber, self.rng.choice([1, 2, 50]))

    def acknowledge(self) -> Command:
        durable, subscriber = self.place()
        rng = self.rng
        found = self.state.stores["main"].durables.get(durable)
        held = []
        if found is not None and hasattr(found, "leases") and subscriber in found.leases.of:
            held = [(run[0], run[1]) for run in found.leases.of[subscriber].runs]
        command = commands.Acknowledge(self.now_ms, "main", durable, subscriber, [], [], [], [])
        for first, last in [*held, (1, 2)]:
            match rng.choice(["ack", "ack", "ack", "part", "nack", "reject", "extend", "none"]):
                case "ack":
                    command.ack.append((first, last))
                case "part":
                    command.ack.append((first + (last - first) // 3, last - (last - first) // 3))
                case "nack":
                    command.nack.append((first, rng.choice([0, 0, 100])))
                case "reject":
                    command.reject.append(last)
                case "extend":
                    command.extend.append((first, last))
                case _:
                    pass
        return command

    def attach(self) -> Command:
        durable = self.rng.choice(["standard", "shared", "other", "last", "map"])
        key = self.rng.choice(["k1", "k2"])
        return commands.Attach(self.now_ms, "main", durable, self.rng.choice("xyz"), key=key)

    def temporary(self) -> Command:
        if self.rng.random() < 0.2:
            return commands.Unsubscribe(self.now_ms, "main", "temporary")
        return commands.Attach(self.now_ms, "main", "temporary", "x", "temporary", b'{"kind":"a"}')

    def detach(self) -> Command:
        return commands.Detach(self.now_ms, "main", *self.place())

    def expire(self) -> Command:
        return commands.Expire(self.now_ms, self.rng.choice([1, 3, 10_000]))

    def bury(self) -> Command:
        if not self.dying:
            return self.expire()
        dying = self.rng.choice(self.dying)
        return commands.DeadLetter(self.now_ms, "main", dying.durable, dying.seq, Message(b"dead"), "dead")

    def purge(self) -> Command:
        if self.rng.random() < 0.7:
            return self.deliver()
        return commands.Purge(self.now_ms, "main", self.place()[0])

    def drop(self) -> Command:
        seq = self.rng.randrange(1, self.state.stores["main"].counts.next_seq + 1)
        return commands.Drop(self.now_ms, "main", self.place()[0], seq)

    def rewind(self) -> commands.Rewind:
        seq = self.rng.randrange(0, self.state.stores["main"].counts.next_seq + 1)
        time_ms = self.now_ms - 500 if self.rng.random() < 0.3 else 0
        return commands.Rewind(self.now_ms, "main", self.place()[0], seq, time_ms)

    def change_map(self) -> Command:
        body = self.rng.choice([b"v", b"w", None])
        changes = [(key, body, None) for key in self.rng.sample(["k1", "k2", "k3"], 2)]
        return commands.MapChange(self.now_ms, "main", "map", changes)

    def redefine(self) -> Command:
        return define(definitions(self.rng, self.durables), self.state, at_ms=self.now_ms)

    def lock(self) -> Command:
        return commands.MapLock(self.now_ms, "main", "map", self.rng.choice(["", "k1"]), "o", 100)


@pytest.mark.parametrize("seed", matrix(SEEDS, 8))
def test_every_invariant_holds_after_every_command(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        # Steps so small that looks and purges go on in further commands.
        monkeypatch.setattr(backlog, "SCAN_MAX", 8)
        monkeypatch.setattr(backlog, "CHUNK", 3)
        monkeypatch.setattr(backlog, "STEP_MESSAGES", 4)
    world = World(seed)
    world.apply(world.redefine())
    assert set(world.state.stores) == {"main", "dead"}
    for _ in range(STEPS):
        world.step()
    world.play_again()
