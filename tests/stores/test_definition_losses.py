"""A change of the definition deletes no message that nobody asked to delete, and changes only what it names."""

from __future__ import annotations

import json

import pytest
from tests.stores.state_harness import Machine

from holdfast.errors import Code, Conflict
from holdfast.server.stores.definition_edits import patched, patched_part, patched_store, with_part
from holdfast.stores.commands import Define
from holdfast.stores.definition_parts import full_parts, with_parts
from holdfast.stores.definitions import definition_of, with_known_prefetch

SHARED = {"type": "shared"}


def define(machine: Machine, *, delete: bool, **stores: object) -> None:
    document = {"stores": {"dead": {"durables": {"all": SHARED}}, **stores}}
    machine.do(Define(machine.now_ms, json.dumps(document).encode(), machine.state.revision + 1, "", delete))


def filled() -> Machine:
    machine = Machine(a=SHARED, b={"type": "shared", "matcher": {"kind": "x"}}, m={"type": "map"})
    machine.publish("1", "2", "3")
    return machine


@pytest.mark.parametrize(
    ("stores", "place", "messages"),
    [
        ({}, "s (3)", 3),
        ({"s": {}}, "s/a (3)", 3),
        ({"s": {"durables": {"a": {**SHARED, "message_limit": 1, "discard": "old"}}}}, "s/a (2)", 2),
        ({"s": {"durables": {"a": {**SHARED, "bytelimit": 1, "discard": "old"}}}}, "s/a (2)", 2),
    ],
)
def test_a_change_that_deletes_messages_is_refused_with_what_would_go(
    stores: dict[str, object], place: str, messages: int
) -> None:
    machine = filled()
    before = machine.state.snapshot()
    with pytest.raises(Conflict) as refused:
        define(machine, delete=False, **stores)
    assert refused.value.code is Code.DELETES_MESSAGES
    assert place in str(refused.value)
    assert refused.value.fields["messages"] == messages
    assert machine.state.snapshot() == before
    define(machine, delete=True, **stores)


def test_what_keeps_nothing_goes_without_being_asked_for() -> None:
    machine = filled()
    define(machine, delete=False, s={"durables": {"a": SHARED}})
    assert list(machine.state.stores["s"].durables) == ["a"]


def test_a_part_changes_only_what_it_names() -> None:
    work = {"type": "shared", "max_delivery": 5, "prefetch": 9}
    before = definition_of({"stores": {"s": {"message_limit": 7, "durables": {"a": work, "b": SHARED}}}})
    after = with_parts(before, patched_part(before, "s", "durables", "a", {"ack_wait": 2}))
    durable = after.stores["s"].durables["a"]
    assert (durable.max_delivery, durable.prefetch, durable.ack_wait_ms) == (5, 9, 2_000)
    after = with_parts(after, patched_store(after, "s", {"bytelimit": "1k", "durables": {"c": SHARED}}))
    store = after.stores["s"]
    assert (store.message_limit, store.bytelimit, sorted(store.durables)) == (7, 1_024, ["a", "b", "c"])
    change = {"cluster": {"name": "mine"}, "stores": {"t": {}, "s": {"durables": {"b": {"prefetch": 3}}}}}
    whole = with_parts(after, patched(after, change))
    assert (whole.name, sorted(whole.stores), whole.stores["s"].durables["b"].prefetch) == ("mine", ["s", "t"], 3)
    assert whole.stores["s"].durables["a"] == durable


def test_a_durable_of_the_earlier_default_keeps_its_prefetch_unless_another_is_given() -> None:
    before = definition_of({"stores": {"s": {"durables": {"a": {**SHARED, "prefetch": 1_024}}}}})
    for given, expected in (({}, 1_024), ({"prefetch": 7}, 7), ({"prefetch": 64}, 64)):
        part = with_part(before, "s", "durables", "a", {**SHARED, **given})
        changed = with_parts(before, full_parts(before, part))
        assert changed.stores["s"].durables["a"].prefetch == expected
        wanted = definition_of({"stores": {"s": {"durables": {"a": {**SHARED, **given}, "new": SHARED}}}})
        found = with_known_prefetch(before, wanted).stores["s"].durables
        assert (found["a"].prefetch, found["new"].prefetch) == (expected, 64)
