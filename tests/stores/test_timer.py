"""The timer of all deadlines is never late, and looks at no store in which nothing happened."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING

import pytest
from tests.definitions import define
from tests.worlds.stores.memory_ports import MemoryBlocks, MemoryEntries, MemoryMessages

from holdfast.errors import HoldfastError
from holdfast.stores.deadline_timer import DeadlineTimer
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.machine.state import State
from holdfast.stores.values import commands
from holdfast.wire.parts import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.stores.machine.store import Store
    from holdfast.stores.values.commands import Command

SUBSCRIBERS = ("ann", "bob")


class Stores:
    """A state with an alarm, which is armed after each command, as after each group."""

    def __init__(self, stores: int, on_timer: Callable[[], None]) -> None:
        blocks = MemoryBlocks(strict=True)
        self.state = State(MemoryMessages(blocks), blocks, MemoryEntries())
        self.now_ms = 1_000
        self.timer = DeadlineTimer(self.state, now_ms=lambda: self.now_ms, on_timer=on_timer)
        self.names = [f"s{number}" for number in range(stores)]
        self.define(60)

    def define(self, publisher_ttl: int) -> None:
        durables = {
            "plain": {"type": "shared"},
            "dying": {"type": "shared", "max_delivery": 1, "dead_letter_store": "letters"},
            "short": {"type": "shared", "message_ttl": 3, "ack_wait": 2, "matcher": {"kind": "a"}},
        }
        stores: dict[str, object] = {name: {"durables": durables} for name in self.names}
        stores["letters"] = {"durables": {"all": {"type": "shared"}}}
        stores[self.names[0]] = {"durables": {"plain": {"type": "shared"}}, "replicated": False}
        document = {"cluster": {"publisher_ttl": publisher_ttl}, "stores": stores}
        self.do(define(json.dumps(document).encode(), self.state, at_ms=self.now_ms))

    def do(self, command: Command) -> None:
        try:
            self.state.apply(command)
        except HoldfastError:
            return
        self.timer.touch(command)

    def all_deadlines_ms(self) -> list[int]:
        found = [self.state.next_deadline_ms(), self.state.next_deadline_ms(volatile=True)]
        return [at_ms for at_ms in found if at_ms is not None]


def some_command(dice: random.Random, stores: Stores) -> Command:
    now_ms, store = stores.now_ms, dice.choice(stores.names)
    durable, subscriber = dice.choice(("plain", "dying", "short")), dice.choice(SUBSCRIBERS)
    what = dice.random()
    if what < 0.35:
        publisher = dice.choice(("", "", f"p{dice.randrange(1_000_000)}"))
        ttl_ms = dice.choice((0, 0, dice.randrange(1, 9_000)))
        message = Message(b"x", {"kind": dice.choice("ab")}, publisher_seq=1 if publisher else 0, ttl_ms=ttl_ms)
        return commands.Publish(now_ms, store, publisher, [message])
    if what < 0.5:
        return commands.Attach(now_ms, store, durable, subscriber)
    if what < 0.75:
        return commands.Deliver(now_ms, store, durable, subscriber, 3)
    found = stores.state.stores[store].durables.get(durable)
    if what < 0.85 and isinstance(found, Consumption):
        held = [run[0] for holding in found.leases.of.values() for run in holding.runs]
        return commands.Acknowledge(now_ms, store, durable, subscriber, reject=held[:2])
    if what < 0.9 and isinstance(found, Consumption) and found.dying:
        letter = Message(b"x", ttl_ms=dice.randrange(1, 5_000))
        return commands.DeadLetter(now_ms, store, durable, next(iter(found.dying)), letter, "letters")
    if what < 0.95:
        return commands.Purge(now_ms, store, durable)
    return commands.Expire(now_ms, volatile=dice.random() < 0.3)


@pytest.mark.parametrize("seed", range(12))
def test_it_rings_no_later_than_anything_is_due(seed: int) -> None:
    async def main() -> None:
        dice = random.Random(seed)
        stores = Stores(5, on_timer=lambda: None)
        for _ in range(600):
            for _ in range(dice.randrange(1, 4)):
                stores.do(some_command(dice, stores))
            if dice.random() < 0.02:
                stores.define(dice.randrange(1, 60))
            stores.timer.arm()
            due = stores.all_deadlines_ms()
            if due:
                assert stores.timer.due_ms is not None
                assert stores.timer.due_ms <= min(due)
            if stores.timer.due_ms is not None and dice.random() < 0.1:
                stores.now_ms = max(stores.now_ms, stores.timer.due_ms)
                stores.timer._wake()  # pyright: ignore[reportPrivateUsage]  # as the loop would
                for volatile in (False, True):
                    stores.do(commands.Expire(stores.now_ms, volatile=volatile))
            stores.now_ms += dice.choice((0, 1, 1, 500))
        stores.timer.stop()

    asyncio.run(main())


def test_a_command_of_one_store_has_it_look_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        stores = Stores(50, on_timer=lambda: None)
        stores.timer.arm()
        looked: list[str] = []
        plain = State.store_deadline_ms

        def noted(state: State, store: Store) -> int | None:
            looked.append(store.name)
            return plain(state, store)

        monkeypatch.setattr(State, "store_deadline_ms", noted)
        stores.do(commands.Publish(stores.now_ms, "s7", "p", [Message(b"x", publisher_seq=1)]))
        stores.timer.arm()
        assert looked == ["s7"]
        assert stores.timer.due_ms == stores.now_ms + 60_000
        stores.timer.stop()

    asyncio.run(main())


def test_it_wakes_and_is_armed_anew() -> None:
    async def main() -> None:
        fired = asyncio.Event()
        stores = Stores(2, on_timer=fired.set)
        stores.do(commands.Publish(stores.now_ms, "s1", "", [Message(b"x", ttl_ms=10)]))
        stores.now_ms += 10
        stores.timer.arm()
        await asyncio.wait_for(fired.wait(), 10)
        assert stores.timer.due_ms is None
        stores.timer.arm()
        assert stores.timer.due_ms == stores.now_ms
        stores.timer.stop()

    asyncio.run(main())


def test_a_letter_that_ends_soon_is_the_store_s_that_it_was_sent_to() -> None:
    async def main() -> None:
        stores = Stores(2, on_timer=lambda: None)
        stores.do(commands.Publish(stores.now_ms, "s1", "", [Message(b"x")]))
        stores.do(commands.Attach(stores.now_ms, "s1", "dying", "ann"))
        stores.do(commands.Deliver(stores.now_ms, "s1", "dying", "ann", 1))
        stores.do(commands.Acknowledge(stores.now_ms, "s1", "dying", "ann", reject=[1]))
        stores.timer.arm()
        letter = Message(b"x", ttl_ms=5)
        stores.do(commands.DeadLetter(stores.now_ms, "s1", "dying", 1, letter, "letters"))
        stores.timer.arm()
        assert stores.timer.due_ms == stores.now_ms + 5
        stores.timer.stop()

    asyncio.run(main())
