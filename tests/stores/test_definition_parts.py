"""A definition that is changed by parts is the one that is given as a whole, now, in the history and after a start."""

from __future__ import annotations

import json
from random import Random
from typing import Any, cast

import msgspec
import pytest
from tests.matrix import matrix
from tests.stores.state_harness import Machine
from tests.worlds.stores.memory_ports import MemoryBlocks, MemoryEntries, MemoryMessages

from holdfast.errors import Code, InvalidRequest
from holdfast.stores.definitions import cluster as definitions
from holdfast.stores.definitions import parts as definition_parts
from holdfast.stores.definitions.cluster import ClusterDefinition, DurableDefinition, definition_of
from holdfast.stores.definitions.parts import changed_paths, full_parts, parts_between, undoing, with_parts
from holdfast.stores.machine.redefine import definition_at
from holdfast.stores.machine.state import State
from holdfast.stores.values.commands import DefinitionPart, Record, Redefine

SHARED = {"type": "shared"}


def drawn(random: Random) -> ClusterDefinition:
    """A definition with a few of a few names, so that everything comes, goes and changes."""
    stores: dict[str, Any] = {"dead": {"durables": {"all": SHARED}}}
    for name in random.sample(["a", "b", "c"], random.randint(0, 3)):
        durables = {
            durable: {"type": kind, "message_limit": random.choice((0, 5))}
            for durable, kind in (("d", "shared"), ("e", "standard"), ("f", "map"))
            if random.random() < 0.6
        }
        if "d" in durables and random.random() < 0.5:
            durables["d"]["dead_letter_store"] = "dead"
        templates = {"t": {"type": "shared", "prefetch": random.choice((1, 2))}} if random.random() < 0.5 else {}
        stores[name] = {
            "durables": durables,
            "templates": templates,
            "default_durable": random.choice(("", *durables)),
            "default_template": random.choice(("", "shared", *templates)),
            "subscribers": {"ann": next(iter(durables))} if durables and random.random() < 0.5 else {},
            "bytelimit": random.choice((0, 100)),
        }
    permissions = {"roles": {"r": {"stores": {"a": ["publish"]}}}} if random.random() < 0.3 else {}
    cluster = {"publisher_ttl": random.choice((60, 70)), "max_deployment_history": random.choice((2, 25))}
    return definition_of({"cluster": cluster, "stores": stores, "permissions": permissions})


@pytest.mark.parametrize("seed", matrix(range(20), 5))
def test_parts_make_the_one_definition_of_the_other_and_back(seed: int) -> None:
    random = Random(seed)
    for _ in range(20):
        before, after = drawn(random), drawn(random)
        parts = parts_between(before, after)
        changed = with_parts(before, parts)
        assert changed == after
        assert with_parts(changed, undoing(before, changed, changed_paths(before, after))) == before
        assert full_parts(before, parts) == parts, "every part changes something, and holds everything in force"
        assert parts_between(after, after) == []


class Log:
    """A state, the definitions that it should have had, and its records."""

    def __init__(self) -> None:
        self.state = empty()
        self.records: list[bytes] = []
        self.wanted: dict[int, ClusterDefinition] = {}

    def define(self, wanted: ClusterDefinition) -> None:
        revision = self.state.revision + 1
        parts = parts_between(self.state.definition, wanted)
        command = Redefine(1_000 + revision, parts, revision, "ann", delete=True)
        applied = self.state.apply(command)
        self.records.append(msgspec.msgpack.encode(Record(command, applied.result, 2)))
        self.wanted[revision] = wanted
        self.state.check()


def empty() -> State:
    blocks = MemoryBlocks(strict=True)
    return State(MemoryMessages(blocks), blocks, MemoryEntries())


@pytest.mark.parametrize("seed", matrix(range(20), 5))
def test_the_history_is_the_same_live_replayed_and_restored(seed: int) -> None:
    random = Random(1_000 + seed)
    log = Log()
    from_snapshot: tuple[int, bytes] | None = None
    for _ in range(30):
        log.define(drawn(random))
        assert log.state.definition == log.wanted[log.state.revision]
        kept = [one.revision for one in log.state.history]
        assert len(kept) <= log.state.definition.max_deployment_history
        for revision in kept:
            assert definition_at(log.state, revision) == log.wanted[revision]
        assert definition_at(log.state, kept[0] - 1) is None
        if random.random() < 0.1:
            from_snapshot = len(log.records), log.state.snapshot()
    for start, data in ((0, b""), from_snapshot or (0, b"")):
        state = empty()
        if data:
            state.restore(data)
        for record in log.records[start:]:
            state.apply(msgspec.msgpack.decode(record, type=Record).command)
        assert state.snapshot() == log.state.snapshot()


def test_a_change_that_is_wrong_names_the_place_and_changes_nothing() -> None:
    before = definition_of({"stores": {"s": {"durables": {"w": SHARED}, "default_durable": "w"}, "dead": {}}})
    wrong = {
        "stores.s.durables.x.prefetch: ": [
            DefinitionPart(("stores", "s", "durables", "x"), b'{"type": "shared", "prefetch": -1}')
        ],
        "stores.s.durables.x: an object": [DefinitionPart(("stores", "s", "durables", "x"), b"[]")],
        "stores.s.durables.x is not JSON": [DefinitionPart(("stores", "s", "durables", "x"), b"{")],
        "stores.s.default_durable: a static durable": [DefinitionPart(("stores", "s", "durables", "w"))],
        "stores.t: there is no such store": [DefinitionPart(("stores", "t", "durables", "w"), b'{"type": "shared"}')],
        "stores.s: the name of a durable": [DefinitionPart(("stores", "s", "durables", "a b"), b'{"type": "shared"}')],
        "somewhere: a definition has no such part": [DefinitionPart(("somewhere",), b"{}")],
        "dead_letter_store: a store that is defined": [
            DefinitionPart(("stores", "s", "durables", "w"), b'{"type": "shared", "dead_letter_store": "nowhere"}')
        ],
        "whose own dead letters come back to s": [
            DefinitionPart(("stores", "s", "durables", "w"), b'{"type": "shared", "dead_letter_store": "dead"}'),
            DefinitionPart(("stores", "dead", "durables", "w"), b'{"type": "shared", "dead_letter_store": "s"}'),
        ],
    }
    for text, parts in wrong.items():
        with pytest.raises(InvalidRequest, match=text.replace(".", r"\.")) as refused:
            with_parts(before, parts)
        assert refused.value.code is Code.BAD_CONFIGURATION


def test_a_store_that_dead_letters_go_to_is_not_taken_away() -> None:
    before = definition_of({"stores": {"s": {"durables": {"w": {**SHARED, "dead_letter_store": "dead"}}}, "dead": {}}})
    with pytest.raises(InvalidRequest, match=r"stores\.s\.durables\.w\.dead_letter_store"):
        with_parts(before, [DefinitionPart(("stores", "dead"))])
    with_parts(before, [DefinitionPart(("stores", "dead")), DefinitionPart(("stores", "s", "durables", "w"))])


def test_the_cost_of_a_durable_does_not_grow_with_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    machine.checked = False
    examined = [0]
    read, shown = definitions.read_durable, DurableDefinition.document

    def reading(*given: Any, **more: Any) -> DurableDefinition:
        examined[0] += 1
        return read(*given, **more)

    def showing(durable: DurableDefinition) -> dict[str, object]:
        examined[0] += 1
        return shown(durable)

    monkeypatch.setattr(definitions, "read_durable", reading)
    monkeypatch.setattr(definition_parts, "read_durable", reading)
    monkeypatch.setattr(DurableDefinition, "document", showing)
    costs: list[tuple[int, int]] = []
    for number in range(1_000):
        examined[0] = 0
        path = ("stores", "s", "durables", f"d{number:03}")
        parts = full_parts(machine.state.definition, [DefinitionPart(path, json.dumps(SHARED).encode())])
        command = Redefine(machine.now_ms, parts, machine.state.revision + 1, "ann")
        machine.do(command)
        costs.append((len(msgspec.msgpack.encode(command)), examined[0]))
    assert len(machine.state.stores["s"].durables) == 1_000
    assert {count for _, count in costs} == {3}, "read twice, and its document made once"
    assert max(size for size, _ in costs) - min(size for size, _ in costs) <= 8
    assert cast(int, max(size for size, _ in costs)) < 1_000
