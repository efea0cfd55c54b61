"""A rewind goes in steps: each reads a bounded number of messages, and nothing is delivered before the last one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.definitions import define
from tests.integration.http_harness import run, until
from tests.matrix import matrix
from tests.stores.state_harness import Machine
from tests.worlds.stores.memory_ports import MemoryMessages

from holdfast.errors import Closed, CorruptData, InvalidRequest, NotFound
from holdfast.stores.durables import expiry
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.service import StoreService
from holdfast.stores.storage.messages import StoredMessages
from holdfast.stores.values.commands import (
    EXPIRE_LOOKS,
    Acknowledge,
    Attach,
    Deliver,
    Delivered,
    Expire,
    Expired,
    Publish,
    Purge,
    Rewind,
)
from holdfast.stores.values.effects import Ready
from holdfast.stores.values.ports import BLOCK_MESSAGES, Kept
from holdfast.wire.parts import Message

MANY = 3 * EXPIRE_LOOKS + 100
MATCHED = {"type": "shared", "matcher": {"kind": "a"}, "retention_time": 36_000, "prefetch": 10_000}


class Reads:
    """How many messages were read."""

    def __init__(self, messages: MemoryMessages) -> None:
        self.count = 0
        self._read = messages.read
        messages.read = self.read  # type: ignore[method-assign]

    def read(self, store: str, first: int, last: int) -> list[Kept]:
        found = list(self._read(store, first, last))
        self.count += len(found)
        return found


def retaining() -> Machine:
    """Two of three messages matched and were acknowledged; some have times of their own; another durable keeps all."""
    machine = Machine(a=MATCHED, all={"type": "shared"})
    machine.checked = False
    machine.attach("a", "one")
    kinds = ["aab"[number % 3] for number in range(MANY)]
    messages = [Message(fields={"kind": kind}, ttl_ms=10**7 * (n % 700 == 0)) for n, kind in enumerate(kinds)]
    for first in range(0, MANY, 500):
        machine.publish(*messages[first : first + 500])
    take_all(machine)
    return machine


def take_all(machine: Machine) -> list[int]:
    taken: list[int] = []
    while numbers := machine.numbers("a", "one", 512):
        machine.ack("a", "one", *numbers)
        taken += numbers
    return taken


def rewind(machine: Machine, seq: int = 0) -> None:
    machine.do(Rewind(machine.now_ms, "s", "a", seq))


def expire(machine: Machine) -> bool:
    """One step; whether more is due."""
    result = machine.do(Expire(machine.now_ms))
    assert isinstance(result, Expired)
    return result.more


def finish(machine: Machine) -> int:
    """How many steps it takes to the end."""
    steps = 0
    while expire(machine):
        steps += 1
    machine.state.check()
    return steps


def matching(first: int, end: int = MANY + 1) -> list[int]:
    return [number for number in range(max(first, 1), end) if (number - 1) % 3 < 2]


@pytest.mark.parametrize("seq", matrix([700, BLOCK_MESSAGES, 0, 1, 2 * BLOCK_MESSAGES - 1, MANY - 1]))
def test_a_rewind_in_steps_delivers_what_one_in_a_single_step_delivers(
    seq: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_steps, at_once = retaining(), retaining()
    rewind(in_steps, seq)
    with monkeypatch.context() as patch:
        patch.setattr(expiry, "EXPIRE_LOOKS", 1 << 62)
        rewind(at_once, seq)
    assert at_once.durable("a").rewind_to is None
    finish(in_steps)
    assert in_steps.state.snapshot() == at_once.state.snapshot()
    assert take_all(in_steps) == take_all(at_once) == matching(seq)


def test_a_step_reads_a_bounded_number_of_messages() -> None:
    machine = retaining()
    reads = Reads(machine.messages)
    rewind(machine)
    assert reads.count <= EXPIRE_LOOKS + BLOCK_MESSAGES
    for _ in range(MANY // EXPIRE_LOOKS - 2):
        reads.count = 0
        assert expire(machine), "the rewind is not done yet"
        assert reads.count <= EXPIRE_LOOKS + BLOCK_MESSAGES
    finish(machine)
    assert take_all(machine) == matching(0)


def test_blocks_that_need_no_reading_are_many_to_a_step() -> None:
    machine = Machine(a={"type": "shared", "retention_time": 36_000, "prefetch": 10_000})
    machine.checked = False
    machine.attach("a", "one")
    for _ in range(10):
        machine.publish(*[Message()] * 2_000)
    assert len(take_all(machine)) == 20_000
    reads = Reads(machine.messages)
    rewind(machine)
    assert (reads.count, machine.durable("a").rewind_to) == (0, None)
    assert len(take_all(machine)) == 20_000


def test_nothing_is_delivered_before_the_last_step_and_the_oldest_comes_first() -> None:
    machine = retaining()
    rewind(machine)
    machine.publish(*[Message(fields={"kind": "a"})] * 3)
    assert not machine.state.ready("s", "a")
    assert machine.numbers("a", "one", 512) == []
    finish(machine)
    assert machine.effects == [Ready("s", "a")]
    assert take_all(machine) == [*matching(0), *range(MANY + 1, MANY + 4)]


def test_a_restart_between_two_steps_goes_on() -> None:
    machine = retaining()
    rewind(machine)
    to = machine.durable("a").rewind_to
    machine.restart()
    assert machine.durable("a").rewind_to == to == 1
    finish(machine)
    assert take_all(machine) == matching(0)


def test_what_is_held_is_acknowledged_until_the_rewind_reaches_it_and_comes_again_all_the_same() -> None:
    machine = retaining()
    machine.publish(*[Message(fields={"kind": "b"})] * (2 * EXPIRE_LOOKS))
    machine.do(Purge(machine.now_ms, "s", "all"))
    rewind(machine, MANY - 10)
    finish(machine)
    held = machine.numbers("a", "one", 4)
    machine.publish(*[Message(fields={"kind": "b"})] * (2 * EXPIRE_LOOKS))
    rewind(machine, MANY - 10)
    machine.do(Acknowledge(machine.now_ms, "s", "a", "one", ack=[(seq, seq) for seq in held]))
    finish(machine)
    assert take_all(machine) == matching(MANY - 10)


def test_a_second_rewind_goes_as_far_as_the_one_that_goes_further() -> None:
    for second, expected in ((0, 0), (700, 5)):
        machine = retaining()
        rewind(machine, 5 if second else 700)
        assert machine.durable("a").rewind_to is not None
        rewind(machine, second)
        finish(machine)
        assert take_all(machine) == matching(expected)


@pytest.mark.parametrize("ends", matrix(["purge", "no retention", "gone"]))
def test_a_purge_and_a_definition_end_a_rewind(ends: str) -> None:
    machine = retaining()
    rewind(machine)
    match ends:
        case "purge":
            machine.do(Purge(machine.now_ms, "s", "a"))
        case "no retention":
            machine.define(a={**MATCHED, "retention_time": 0}, all={"type": "shared"})
        case _:
            machine.define(all={"type": "shared"})
    finish(machine)
    if ends != "gone":
        assert machine.durable("a").rewind_to is None
        taken = take_all(machine)
        # Without retention what the first step put back is still to be delivered.
        assert taken == ([] if ends == "purge" else matching(taken[0]))


def test_a_limit_discards_the_oldest_after_the_last_step() -> None:
    machine = retaining()
    machine.define(a={**MATCHED, "message_limit": 10, "discard": "old"}, all={"type": "shared"})
    rewind(machine)
    machine.publish(Message(fields={"kind": "a"}))
    assert machine.durable("a").pending > 10, "the oldest ones are not known yet"
    finish(machine)
    assert take_all(machine) == [*matching(0)[-9:], MANY + 1]


# ---- in the service -------------------------------------------------------------------------------------------------


async def serving(directory: Path) -> StoreService:
    service = await StoreService.open(str(directory))
    definition = {"stores": {"s": {"durables": {"a": MATCHED, "plain": {"type": "shared"}}}}}
    await service.submit(define(json.dumps(definition).encode()))
    await service.submit(Attach(0, "s", "a", "me"))
    for _ in range(6):
        await service.submit(Publish(0, "s", "", [Message(fields={"kind": "ab"[n % 2]}) for n in range(1_000)]))
    delivered = await service.submit(Deliver(0, "s", "a", "me", 10_000))
    assert isinstance(delivered, Delivered)
    runs = [(first, last) for first, last, _ in delivered.runs]
    await service.submit(Acknowledge(0, "s", "a", "me", ack=runs))
    return service


def pending(service: StoreService) -> int:
    durable = service.state.stores["s"].durables["a"]
    assert isinstance(durable, Consumption)
    return durable.pending


def test_others_have_their_turn_while_a_rewind_reads(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = await serving(tmp_path / "stores")
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        others = asyncio.create_task(other())
        rewinding = asyncio.create_task(service.rewind(Rewind(0, "s", "a", 0)))
        await until(lambda: pending(service))
        assert turns >= 6_000 // BLOCK_MESSAGES
        await rewinding
        await until(lambda: pending(service) == 3_000)
        others.cancel()
        await service.close()

    run(scenario)


def test_a_rewind_that_is_refused_says_what_the_command_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = await serving(tmp_path / "stores")
        with pytest.raises(InvalidRequest, match="retention_time"):
            await service.rewind(Rewind(0, "s", "plain", 0))
        with pytest.raises(NotFound):
            await service.rewind(Rewind(0, "s", "none", 0))
        await service.close()
        with pytest.raises(Closed):
            await service.rewind(Rewind(0, "s", "a", 0))

    run(scenario)


def test_damage_refuses_the_rewind_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        service = await serving(tmp_path / "stores")
        before = service.state.snapshot()

        def unreadable(*_: object) -> list[Kept]:
            raise CorruptData("a kept message is not in the log")

        with monkeypatch.context() as damaged:
            damaged.setattr(StoredMessages, "read", unreadable)
            with pytest.raises(CorruptData):
                await service.rewind(Rewind(0, "s", "a", 0))
        assert service.state.snapshot() == before
        assert service.failure is None
        await service.rewind(Rewind(0, "s", "a", 0))
        await until(lambda: pending(service) == 3_000)
        await service.close()

    run(scenario)
