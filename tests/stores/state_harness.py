"""A state machine on ports in memory, and short words for what tests do with it."""

from __future__ import annotations

import json

from tests.definitions import define
from tests.worlds.stores.memory_ports import MemoryBlocks, MemoryEntries, MemoryMessages

from holdfast.stores.machine.state import State
from holdfast.stores.values import commands
from holdfast.stores.values.commands import Acknowledged, Attached, Command, Delivered, Published
from holdfast.stores.values.effects import DeadLettering, Effect, dead_letter_of
from holdfast.wire.parts import Message

Definition = dict[str, object]


class Machine:
    """One store ``s``, a store ``dead``, a clock; every command is followed by every check."""

    def __init__(self, *, store: Definition | None = None, cluster: Definition | None = None, **durables: Definition):
        self.blocks = MemoryBlocks(strict=True)
        self.messages = MemoryMessages(self.blocks)
        self.entries = MemoryEntries()
        self.state = State(self.messages, self.blocks, self.entries)
        self.now_ms = 1_000_000
        self.checked = True
        """Off where there are too many messages to check after each command."""
        self.effects: list[Effect] = []
        self.define(store=store, cluster=cluster, **durables)

    def define(self, *, store: Definition | None = None, cluster: Definition | None = None, **durables: Definition):
        document = {
            "cluster": cluster or {},
            "stores": {"s": {**(store or {}), "durables": durables}, "dead": {"durables": {"all": {"type": "shared"}}}},
        }
        self.do(define(json.dumps(document).encode(), self.state, at_ms=self.now_ms))

    def do(self, command: Command):
        applied = self.state.apply(command)
        self.effects = applied.effects
        if self.checked:
            self.state.check()
        return applied.result

    def later(self, ms: int) -> None:
        """Time passes, and what is due is carried out."""
        end_ms = self.now_ms + ms
        while (due_ms := self.state.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.do(commands.Expire(self.now_ms))
        self.now_ms = end_ms

    def restart(self) -> None:
        """The state from its snapshot, on the same disk."""
        data = self.state.snapshot()
        self.state = State(self.messages, self.blocks, self.entries)
        self.state.restore(data)
        self.state.check()

    def publish(self, *messages: Message | str, publisher: str = "", store: str = "s") -> Published:
        made = [Message(body=item.encode()) if isinstance(item, str) else item for item in messages]
        result = self.do(commands.Publish(self.now_ms, store, publisher, made))
        assert isinstance(result, Published)
        return result

    def numbered(self, publisher: str, first: int, count: int = 1) -> Published:
        return self.publish(*[Message(publisher_seq=first + i) for i in range(count)], publisher=publisher)

    def attach(self, durable: str, subscriber: str, **more) -> Attached:
        result = self.do(commands.Attach(self.now_ms, "s", durable, subscriber, **more))
        assert isinstance(result, Attached)
        return result

    def detach(self, durable: str, subscriber: str) -> None:
        self.do(commands.Detach(self.now_ms, "s", durable, subscriber))

    def deliver(self, durable: str, subscriber: str, count: int = 100, store: str = "s") -> list[tuple[int, int]]:
        """Numbers with their delivery counts."""
        result = self.do(commands.Deliver(self.now_ms, store, durable, subscriber, count))
        assert isinstance(result, Delivered)
        return [(seq, number) for first, last, number in result.runs for seq in range(first, last + 1)]

    def numbers(self, durable: str, subscriber: str, count: int = 100) -> list[int]:
        return [seq for seq, _ in self.deliver(durable, subscriber, count)]

    def settle(self, durable: str, subscriber: str, **how) -> Acknowledged:
        result = self.do(commands.Acknowledge(self.now_ms, "s", durable, subscriber, **{"ack": [], **how}))
        assert isinstance(result, Acknowledged)
        return result

    def ack(self, durable: str, subscriber: str, *seqs: int) -> Acknowledged:
        return self.settle(durable, subscriber, ack=[(seq, seq) for seq in seqs])

    def bury(self) -> int:
        """Carry out the dying messages of the last command; returns how many."""
        dying = [effect for effect in self.effects if isinstance(effect, DeadLettering)]
        for item in dying:
            letter = dead_letter_of(Message(), item)
            self.do(
                commands.DeadLetter(self.now_ms, item.store, item.durable, item.seq, letter, item.dead_letter_store)
            )
        return len(dying)

    @property
    def kept(self) -> int:
        """Messages of the store."""
        return self.state.stores["s"].counts.live

    def durable(self, name: str):
        return self.state.stores["s"].durables[name]
