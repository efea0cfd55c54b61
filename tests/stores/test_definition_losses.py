"""A change of the definition deletes no message that nobody asked to delete, and changes only what it names."""

from __future__ import annotations

import json

import pytest
from tests.stores.state_harness import Machine

from holdfast.errors import Code, Conflict, InvalidRequest
from holdfast.server.stores.definition_edits import patched, patched_part, patched_store, with_part
from holdfast.stores.commands import Define
from holdfast.stores.definition_changes import beside
from holdfast.stores.definition_parts import full_parts, with_parts
from holdfast.stores.definitions import definition_of, with_known_prefetch
from holdfast.stores.permissions import OPEN

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


TOKEN = "a-long-random-token"
PERMISSIONS = {
    "enabled": True,
    "users": {"ann": {"token": TOKEN, "roles": ["all", "reader"]}},
    "roles": {"all": {"cluster": ["administer"]}, "reader": {"stores": {"s": ["browse"], "t": ["browse"]}}},
}


def test_a_patch_of_permissions_changes_only_the_users_and_roles_that_it_names() -> None:
    before = definition_of({"stores": {"s": {}}, "permissions": PERMISSIONS})
    bob = {"users": {"bob": {"token": "another-random-token", "roles": ["reader"]}}}
    after = with_parts(before, patched(before, {"permissions": bob}))
    assert after.permissions.enabled
    assert after.permissions.users["ann"] == before.permissions.users["ann"]
    assert after.permissions.user_of("another-random-token") == "bob"
    change = {"users": {"ann": {"roles": ["all"]}, "bob": None}, "roles": {"reader": {"stores": {"t": None}}}}
    last = with_parts(after, patched(after, {"permissions": change})).permissions
    assert (last.enabled, list(last.users), last.user_of(TOKEN)) == (True, ["ann"], "ann")
    assert (last.users["ann"].roles, list(last.roles["reader"].stores)) == (("all",), ["s"])
    renewed = patched(after, {"permissions": {"users": {"ann": {"token": "a-renewed-random-token"}}}})
    assert with_parts(after, renewed).permissions.user_of("a-renewed-random-token") == "ann"
    off = with_parts(after, patched(after, {"permissions": {"enabled": False}})).permissions
    assert (off.enabled, off.users) == (False, after.permissions.users)


@pytest.mark.parametrize("given", [None, [], {"users": None}, {"users": {"bob": []}}, {"user": {}}])
def test_a_patch_of_permissions_that_is_wrong_is_refused(given: object) -> None:
    before = definition_of({"permissions": PERMISSIONS})
    with pytest.raises(InvalidRequest, match="permissions"):
        with_parts(before, patched(before, {"permissions": given}))


def test_a_patch_removes_a_subscriber_with_null_and_keeps_the_others() -> None:
    subscribers = {"ann": "a", "bob": "b"}
    before = definition_of({"stores": {"s": {"subscribers": subscribers, "durables": {"a": SHARED, "b": SHARED}}}})
    after = with_parts(before, patched_store(before, "s", {"subscribers": {"bob": None}}))
    assert after.stores["s"].subscribers == {"ann": "a"}


def test_a_file_without_a_section_leaves_that_section_as_it_is() -> None:
    current = definition_of({"cluster": {"message_limit": 5}, "permissions": PERMISSIONS})
    found = beside(current, definition_of({"stores": {"s": {}}}))
    assert (found.permissions, found.message_limit, list(found.stores)) == (current.permissions, 5, ["s"])
    assert beside(current, definition_of({"permissions": {"enabled": False}})).permissions == OPEN


def test_a_patch_with_null_for_a_store_names_it_and_says_how_to_remove_it() -> None:
    before = definition_of({"stores": {"e": {}}})
    with pytest.raises(InvalidRequest, match=r"stores\.e: .*not null.*DELETE"):
        patched(before, {"stores": {"e": None}})
