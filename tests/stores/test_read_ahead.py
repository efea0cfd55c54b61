"""Looking ahead of a rewind: it spares the rewind its reading, changes nothing else, and lets others go between."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.integration.http_harness import run, until
from tests.stores.state_harness import Machine
from tests.worlds.stores.memory_ports import MemoryMessages

from holdfast.errors import Closed, CorruptData, InvalidRequest, NotFound
from holdfast.stores.durables import backlog as read_ahead
from holdfast.stores.durables.backlog import ReadAhead
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.service import StoreService
from holdfast.stores.storage.messages import StoredMessages
from holdfast.stores.values.commands import (
    Acknowledge,
    Attach,
    Define,
    Deliver,
    Delivered,
    Drop,
    MapChange,
    Publish,
    Rewind,
)
from holdfast.stores.values.messages import Message
from holdfast.stores.values.ports import BLOCK_MESSAGES, Kept

MANY = 3 * BLOCK_MESSAGES + 100
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


def rewind(machine: Machine, command: Rewind, ahead: ReadAhead | None = None) -> list[int]:
    """What is delivered after it."""
    machine.state.read_ahead = ahead
    machine.do(command)
    machine.state.read_ahead = None
    machine.state.check()
    pending = machine.durable("a").pending
    taken = take_all(machine)
    assert len(taken) == pending
    return taken


def look(machine: Machine, command: Rewind) -> ReadAhead:
    """To the end."""
    ahead = machine.state.reading_ahead(command)
    while ahead.read_on():
        pass
    return ahead


def matching(first: int, end: int = MANY + 1) -> list[int]:
    return [number for number in range(max(first, 1), end) if (number - 1) % 3 < 2]


@pytest.mark.parametrize("seq", [0, 1, 700, BLOCK_MESSAGES, 2 * BLOCK_MESSAGES - 1, MANY - 1])
def test_a_rewind_that_was_looked_ahead_of_reads_nothing_and_does_the_same(seq: int) -> None:
    with_ahead, without = retaining(), retaining()
    command = Rewind(with_ahead.now_ms, "s", "a", seq)
    ahead = look(with_ahead, command)
    reads, all_reads = Reads(with_ahead.messages), Reads(without.messages)
    with_ahead.state.read_ahead = ahead
    with_ahead.do(command)
    without.do(command)
    assert (reads.count, all_reads.count) == (0, MANY + 1 - max(seq, 1))
    assert with_ahead.state.snapshot() == without.state.snapshot()
    with_ahead.state.read_ahead = None
    assert take_all(with_ahead) == take_all(without) == matching(seq)


def test_a_maps_values_are_not_taken_for_messages() -> None:
    machine = Machine(a={"type": "shared", "retention_time": 36_000, "matcher": {"kind": True}}, m={"type": "map"})
    plain = Machine(a={"type": "shared", "retention_time": 36_000}, m={"type": "map"})
    for each in (machine, plain):
        each.attach("a", "one")
        for number in range(3):
            each.publish(Message(fields={"kind": "a"}))
            each.do(MapChange(each.now_ms, "s", "m", [(f"k{number}", b"value", None)]))
        numbers = take_all(each)
        assert len(numbers) == 3
        command = Rewind(each.now_ms, "s", "a", 0)
        assert rewind(each, command, look(each, command)) == numbers


def test_what_was_looked_at_takes_no_more_memory_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "BYTES_MAX", 1_000)
    machine = retaining()
    command = Rewind(machine.now_ms, "s", "a", 0)
    reads = Reads(machine.messages)
    ahead = look(machine, command)
    assert reads.count == BLOCK_MESSAGES - 1  # the first block is above it
    assert rewind(machine, command, ahead) == matching(0)


def test_what_happened_since_it_was_looked_at_counts() -> None:
    machine = retaining()
    command = Rewind(machine.now_ms, "s", "a", 0)
    ahead = look(machine, command)
    machine.do(Drop(machine.now_ms, "s", "a", 2))
    machine.publish(*[Message(fields={"kind": "a"})] * 5)
    held = machine.numbers("a", "one", 3)
    assert held == [MANY + 1, MANY + 2, MANY + 3]
    machine.settle("a", "one", reject=[MANY + 2])
    machine.later(10**7)  # those with times of their own are over
    over = {1 + number for number in range(0, MANY, 700)}
    command = Rewind(machine.now_ms, "s", "a", 0)
    expected = [seq for seq in [*matching(1), *range(MANY + 1, MANY + 6)] if seq not in {2, MANY + 2} | over]
    assert rewind(machine, command, ahead) == expected


def test_a_look_that_goes_on_after_the_cursor_went_on_knows_both_parts_of_a_block() -> None:
    machine = retaining()
    command = Rewind(machine.now_ms, "s", "a", 0)
    ahead = look(machine, command)
    machine.publish(*[Message(fields={"kind": "a"})] * 5)
    take_all(machine)
    assert ahead.read_on()
    reads = Reads(machine.messages)
    machine.state.read_ahead = ahead
    machine.do(command)
    assert reads.count == 0
    machine.state.read_ahead = None
    assert take_all(machine) == [*matching(0), *range(MANY + 1, MANY + 6)]


def test_what_was_looked_at_in_another_life_of_the_durable_is_not_believed() -> None:
    machine = retaining()
    ahead = look(machine, Rewind(machine.now_ms, "s", "a", 0))
    machine.define(all={"type": "shared"})
    machine.define(a={**MATCHED, "matcher": {"kind": "b"}}, all={"type": "shared"})
    machine.attach("a", "one")
    machine.publish(*[Message(fields={"kind": kind}) for kind in "abab"])
    assert take_all(machine) == [MANY + 2, MANY + 4]
    assert rewind(machine, Rewind(machine.now_ms, "s", "a", 0), ahead) == [MANY + 2, MANY + 4]


# ---- in the service -------------------------------------------------------------------------------------------------


async def serving(directory: Path) -> StoreService:
    service = await StoreService.open(str(directory))
    definition = {"stores": {"s": {"durables": {"a": MATCHED, "plain": {"type": "shared"}}}}}
    await service.submit(Define(0, json.dumps(definition).encode(), 1))
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
        others.cancel()
        assert pending(service) == 3_000
        assert service.state.read_ahead is None
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


def test_damage_that_a_look_ahead_meets_refuses_the_rewind_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert pending(service) == 3_000
        await service.close()

    run(scenario)
