"""The parts of a commit: all of them are carried out, or none, and a check that passes never fails afterwards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from tests.matrix import matrix
from tests.stores.state_harness import Machine

from holdfast.errors import Code, HoldfastError
from holdfast.stores.machine import commit_parts
from holdfast.stores.values.commands import (
    Acknowledge,
    Acknowledged,
    CommitPart,
    CommitParts,
    MapChange,
    MapChanged,
    PartsCommitted,
    Publish,
    Published,
)
from holdfast.wire.parts import Message

SHARED = {"type": "shared", "ack_wait": 3600}
KEPT = {**SHARED, "retention_time": 60}


def machine(**more: Any) -> Machine:
    made = Machine(work=SHARED, stock={"type": "map"}, all=SHARED, **more)
    made.attach("work", "w")
    return made


def together(made: Machine, *parts: CommitPart) -> list[Any]:
    result = made.do(CommitParts(made.now_ms, list(parts)))
    assert isinstance(result, PartsCommitted)
    return result.results


def ack(*seqs: int, subscriber: str = "w", durable: str = "work") -> Acknowledge:
    return Acknowledge(0, "s", durable, subscriber, [(seq, seq) for seq in seqs])


def publish(*bodies: str, store: str = "s", publisher: str = "") -> Publish:
    return Publish(0, store, publisher, [Message(body.encode()) for body in bodies])


def put(key: str, body: bytes | None = b"v", *, if_revision: int | None = None) -> MapChange:
    return MapChange(0, "s", "stock", [(key, body, if_revision)])


def at_now(made: Machine, *parts: CommitPart) -> list[CommitPart]:
    from msgspec.structs import replace

    return [replace(part, at_ms=made.now_ms) for part in parts]


def whole(made: Machine) -> tuple[object, ...]:
    """Everything that a refusal must leave as it was."""
    return made.state.snapshot(), sorted(made.messages.bodies), sorted(made.entries.keys.items())


def test_every_part_has_its_result_in_order() -> None:
    made = machine()
    made.publish("a", "b")
    assert made.numbers("work", "w") == [1, 2]
    results = together(made, *at_now(made, ack(1, 2), put("coffee"), publish("c", "d")))
    assert [type(result) for result in results] == [Acknowledged, MapChanged, Published]
    assert results[0] == Acknowledged(2, [])
    assert (results[2].first_seq, results[2].last_seq) == (4, 5)
    assert made.numbers("work", "w") == [4, 5]


REFUSED = [
    pytest.param(ack(1, 9), Code.LEASE_LOST, id="not held"),
    pytest.param(ack(1, subscriber="another"), Code.LEASE_LOST, id="another subscriber"),
    pytest.param(ack(1, durable="none"), Code.NOT_FOUND, id="no durable"),
    pytest.param(ack(1, durable="stock"), Code.TYPE_MISMATCH, id="a map"),
    pytest.param(Acknowledge(0, "s", "work", "w", [(1, 1), (1, 1)]), Code.MALFORMED, id="twice"),
    pytest.param(put("k", if_revision=7), Code.REVISION_MISMATCH, id="revision"),
    pytest.param(MapChange(0, "s", "work", [("k", b"v", None)]), Code.TYPE_MISMATCH, id="no map"),
    pytest.param(MapChange(0, "s", "stock", [("k", b"v", None)], fence=3), Code.NOT_HOLDER, id="no lock"),
    pytest.param(publish("x", store="nowhere"), Code.NOT_FOUND, id="no store"),
    pytest.param(publish(), Code.NO_OPERATIONS, id="no message"),
    pytest.param(publish("x" * 2_000), Code.MESSAGE_TOO_LARGE, id="too large"),
    pytest.param(Publish(0, "s", "known", [Message(publisher_seq=7)]), Code.SEQUENCE_GAP, id="gap"),
    pytest.param(Publish(0, "s", "known", [Message(publisher_seq=1)]), Code.DUPLICATE, id="duplicate"),
    pytest.param(publish("1", "2", "3", "4", "5", "6", "7"), Code.STORE_FULL, id="full"),
]


@pytest.mark.parametrize(("part", "code"), REFUSED)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_part_that_is_refused_refuses_all_and_changes_nothing(part: CommitPart, code: Code, place: int) -> None:
    made = machine(store={"max_message_size": 1_000, "message_limit": 8})
    made.publish("a", "b")
    made.numbered("known", 1)
    assert made.numbers("work", "w") == [1, 2, 3]
    others: list[CommitPart] = [ack(2), publish("e", store="dead")]
    others.insert(place, part)
    before = whole(made)
    parts = at_now(made, *others)
    found = commit_parts.refusal(made.state, CommitParts(made.now_ms, parts))
    assert found is not None
    assert (found[0], found[1].code) == (place, code)
    with pytest.raises(HoldfastError):
        together(made, *parts)
    assert whole(made) == before


def test_room_counts_what_earlier_parts_take() -> None:
    made = machine(store={"message_limit": 4})
    made.publish("a")
    one, other = publish("b", "c", publisher=""), MapChange(0, "s", "stock", [("k", b"v", None), ("l", b"v", None)])
    with pytest.raises(HoldfastError, match="full"):
        together(made, *at_now(made, other, one))
    together(made, *at_now(made, other, publish("b")))


def test_an_acknowledgement_makes_room_for_a_publication() -> None:
    made = Machine(store={"message_limit": 2}, work=SHARED)
    made.attach("work", "w")
    made.publish("a", "b")
    assert made.numbers("work", "w") == [1, 2]
    with pytest.raises(HoldfastError, match="full"):
        together(made, *at_now(made, publish("c")))
    together(made, *at_now(made, ack(1), publish("c")))
    assert made.kept == 2


def test_a_message_that_another_durable_keeps_makes_no_room() -> None:
    made = Machine(store={"message_limit": 2}, work=SHARED, other=SHARED)
    made.attach("work", "w")
    made.publish("a", "b")
    made.numbers("work", "w")
    with pytest.raises(HoldfastError, match="full"):
        together(made, *at_now(made, ack(1), publish("c")))


def test_a_limit_that_was_lowered_refuses_what_adds_although_more_is_freed() -> None:
    made = Machine(store={"message_limit": 10}, work=SHARED)
    made.attach("work", "w")
    made.publish(*"abcdef")
    made.numbers("work", "w")
    made.define(store={"message_limit": 2}, work=SHARED)
    with pytest.raises(HoldfastError, match="full"):
        together(made, *at_now(made, ack(1, 2), publish("g")))
    together(made, *at_now(made, ack(1, 2, 3, 4, 5), publish("g")))


def test_the_limit_of_the_cluster_counts_all_stores() -> None:
    made = Machine(cluster={"message_limit": 3}, work=SHARED)
    with pytest.raises(HoldfastError, match="cluster is full"):
        together(made, *at_now(made, publish("a", "b"), publish("c", "d", store="dead")))
    together(made, *at_now(made, publish("a", "b"), publish("c", store="dead")))


@pytest.mark.parametrize("seed", matrix(range(60), 15))
def test_parts_give_what_their_commands_give_one_after_another(seed: int) -> None:
    """With small limits that collide: what the check passes is carried out, and equals the commands by themselves."""
    random = Random(seed)
    limits = {"message_limit": random.choice((0, 3, 6)), "bytelimit": random.choice((0, 12))}
    work = {**SHARED, "message_limit": random.choice((0, 2)), "discard": random.choice(("new", "old"))}
    stock = {"type": "map", "message_limit": random.choice((0, 2)), "discard": random.choice(("new", "old"))}
    cluster = {"message_limit": random.choice((0, 7))}
    definition = {"store": limits, "cluster": cluster, "work": work, "stock": stock, "kept": KEPT}
    made, single = both = Machine(**definition), Machine(**definition)
    for each in both:
        each.checked = False
        for durable in ("work", "kept"):
            each.attach(durable, "w")
    passed = refused = 0
    for _ in range(60):
        for durable in ("work", "kept"):
            count = random.randrange(3)
            assert made.numbers(durable, "w", count) == single.numbers(durable, "w", count)
        parts = at_now(made, *_some_parts(random, made))
        if commit_parts.refusal(made.state, CommitParts(made.now_ms, parts)) is not None:
            before = whole(made)
            with pytest.raises(HoldfastError):
                together(made, *parts)
            assert whole(made) == before
            refused += 1
        else:
            assert together(made, *parts) == [single.do(part) for part in parts]
            single.state.at_ms = made.state.at_ms  # a command that changes nothing by itself does not move it
            assert whole(made) == whole(single)
            passed += 1
        made.state.check()
        later = random.choice((0, 0, 1_000))
        for each in both:
            each.later(later)
    assert passed and refused


def _some_parts(random: Random, made: Machine) -> list[CommitPart]:
    parts: list[CommitPart] = []
    for durable in ("work", "kept"):
        holder = made.durable(durable).leases.of["w"]
        held = [seq for first, last, *_ in holder.runs for seq in range(first, last + 1)]
        if held and random.random() < 0.6:
            chosen = sorted(random.sample(held, random.randint(1, len(held))))
            parts.append(ack(*chosen, *([99_999] if random.random() < 0.1 else ()), durable=durable))
    if random.random() < 0.5:
        keys = random.sample("abcd", random.randint(1, 3))
        changes = [(key, random.choice((None, b"1", b"22")), random.choice((None, None, None, 0))) for key in keys]
        parts.append(MapChange(0, "s", "stock", changes))
    parts.extend(
        publish(*random.choices(("x", "yy", "zzz"), k=random.randint(1, 3)), store=store)
        for store in random.sample(("s", "dead"), random.randint(0, 2))
    )
    return parts or [publish("x")]


def test_a_store_in_memory_takes_no_part() -> None:
    made = Machine(store={"replicated": False}, work=SHARED)
    found = commit_parts.refusal(made.state, CommitParts(made.now_ms, at_now(made, publish("a"))))
    assert found is not None
    assert found[1].code is Code.STORES_NOT_IN_LOG


# -- mutants: the check with one rule taken out, which one of the tests above must notice -----------------------------


def _no_room_taken(self: Any, store: Any, messages: int, size: int) -> None:
    """No limit is looked at before a part is carried out."""


def _only_itself(self: Any, store: Any, messages: int, size: int) -> None:
    """Each part is looked at as if it were alone."""
    counts = (each.counts for each in self._cluster.stores.values())
    commit_parts.check_cluster(self._cluster.definition, counts, messages, size)
    commit_parts.check_store(store.definition, store.counts, messages, size)


def _one_store_only(self: Any, store: Any, messages: int, size: int) -> None:
    """The limit of the cluster is forgotten."""
    added = self._added[store.name]
    commit_parts.check_store(store.definition, store.counts, messages, size, pending=(added[0], added[1]))
    self.give_back(store, -messages, -size)


def _nothing_freed(self: Any, store: Any, messages: int, size: int) -> None:
    """What acknowledgements free is not counted."""
    if messages < 0:
        self._added[store.name][0] -= messages
        self._added[store.name][1] -= size


def _anything_is_held(state: Any, part: Acknowledge, room: Any) -> None:
    """A subscriber may acknowledge what it does not hold."""
    state.find(part.store, part.durable)


def _any_revision(state: Any, part: MapChange, room: Any) -> None:
    """A change of a map is not planned before it is carried out."""
    commit_parts.map_commands.map_of(state.store(part.store), part.map)


def _any_message(state: Any, part: Publish, room: Any) -> None:
    """A publication is not looked at before it is carried out."""
    state.store(part.store)


def _in_any_order(state: Any, command: CommitParts, handle: Callable[[CommitPart], Any]) -> PartsCommitted:
    """Publications come first."""
    found = commit_parts.refusal(state, command)
    if found is not None:
        raise found[1]
    done = {id(part): handle(part) for part in reversed(command.parts)}
    return PartsCommitted([done[id(part)] for part in command.parts])


def _as_far_as_it_goes(state: Any, command: CommitParts, handle: Callable[[CommitPart], Any]) -> PartsCommitted:
    """Parts are carried out one by one until one is refused."""
    return PartsCommitted([handle(part) for part in command.parts])


def _memory_takes_part(state: Any, command: CommitParts) -> tuple[int, HoldfastError] | None:
    """Stores in memory are like others."""
    names, state.volatile_names = state.volatile_names, set()
    try:
        return _refusal(state, command)
    finally:
        state.volatile_names = names


_refusal = commit_parts.refusal
MUTANTS: dict[str, tuple[object, str, object]] = {
    "no_room_taken": (commit_parts._Room, "take", _no_room_taken),
    "only_itself": (commit_parts._Room, "take", _only_itself),
    "one_store_only": (commit_parts._Room, "take", _one_store_only),
    "nothing_freed": (commit_parts._Room, "give_back", _nothing_freed),
    "anything_is_held": (commit_parts, "_look_at_acknowledgement", _anything_is_held),
    "any_revision": (commit_parts, "_look_at_change", _any_revision),
    "any_message": (commit_parts, "_look_at_publication", _any_message),
    "in_any_order": (commit_parts, "carry_out", _in_any_order),
    "as_far_as_it_goes": (commit_parts, "carry_out", _as_far_as_it_goes),
    "memory_takes_part": (commit_parts, "refusal", _memory_takes_part),
}


def _judges() -> list[Callable[[], None]]:
    judges: list[Callable[[], None]] = [
        test_every_part_has_its_result_in_order,
        test_room_counts_what_earlier_parts_take,
        test_an_acknowledgement_makes_room_for_a_publication,
        test_a_message_that_another_durable_keeps_makes_no_room,
        test_the_limit_of_the_cluster_counts_all_stores,
        test_a_store_in_memory_takes_no_part,
    ]
    judges += [
        partial(test_a_part_that_is_refused_refuses_all_and_changes_nothing, *row.values, 2)  # type: ignore[arg-type]
        for row in REFUSED
    ]
    judges += [partial(test_parts_give_what_their_commands_give_one_after_another, seed) for seed in range(12)]
    return judges


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_of_the_check_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    caught = 0
    for judge in _judges():
        try:
            judge()
        except (AssertionError, HoldfastError, pytest.fail.Exception):
            caught += 1
    assert caught
