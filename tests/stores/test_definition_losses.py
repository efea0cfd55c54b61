"""A change of the definition deletes no message that nobody asked to delete, and changes only what it names."""

from __future__ import annotations

import json

import pytest
from tests.definitions import define as whole
from tests.stores.state_harness import Machine

from holdfast.errors import Code, Conflict, InvalidRequest
from holdfast.stores.definitions.changes import patched, patched_part, patched_store, with_part
from holdfast.stores.definitions.cluster import definition_of
from holdfast.stores.definitions.parts import keep_sections, with_parts
from holdfast.stores.definitions.permissions import OPEN
from holdfast.stores.machine import redefine as definition_losses
from holdfast.stores.values.commands import MapChange, Purge
from holdfast.wire.parts import Message

SHARED = {"type": "shared"}


def define(machine: Machine, *, delete: bool, **stores: object) -> None:
    document = {"stores": {"dead": {"durables": {"all": SHARED}}, **stores}}
    machine.do(whole(json.dumps(document).encode(), machine.state, at_ms=machine.now_ms, delete=delete))


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
        ({"s": {"durables": {"a": {**SHARED, "bytelimit": 1, "discard": "old"}}}}, "s/a (about 2)", 2),
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
    assert refused.value.fields["count"] == ("about" if "about" in place else "exact")
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
    found = keep_sections(current, definition_of({"stores": {"s": {}}}))
    assert (found.permissions, found.message_limit, list(found.stores)) == (current.permissions, 5, ["s"])
    assert keep_sections(current, definition_of({"permissions": {"enabled": False}})).permissions == OPEN


def test_a_patch_with_null_for_a_store_names_it_and_says_how_to_remove_it() -> None:
    before = definition_of({"stores": {"e": {}}})
    with pytest.raises(InvalidRequest, match=r"stores\.e: .*not null.*DELETE"):
        patched(before, {"stores": {"e": None}})


OLD_FIRST = {"message_limit": 1, "discard": "old"}
Section = dict[str, object]


def made(durables: Section, templates: Section | None = None) -> Section:
    return {"s": {"durables": durables, "templates": templates or {}}}


def machine_with(durables: Section, templates: Section | None = None) -> Machine:
    machine = Machine()
    define(machine, delete=True, **made(durables, templates))
    return machine


def consume(machine: Machine, durable: str) -> None:
    machine.attach(durable, "me")
    machine.ack(durable, "me", *machine.numbers(durable, "me"))
    machine.detach(durable, "me")


def refused(machine: Machine, place: str, messages: int, **stores: object) -> None:
    before = machine.state.snapshot()
    with pytest.raises(Conflict) as caught:
        define(machine, delete=False, **stores)
    assert caught.value.code is Code.DELETES_MESSAGES
    assert f" {place} ({messages})" in str(caught.value)
    assert caught.value.fields["messages"] == messages
    assert caught.value.fields["count"] == "exact"
    assert machine.state.snapshot() == before
    define(machine, delete=True, **stores)
    machine.later(1_000)


def test_the_limit_of_a_template_counts_what_its_dynamic_durables_lose() -> None:
    machine = machine_with({}, {"jobs": SHARED})
    machine.attach("d", "me", template="jobs")
    machine.detach("d", "me")
    machine.publish("1", "2", "3")
    refused(machine, "s/d", 2, **made({}, {"jobs": {**SHARED, **OLD_FIRST}}))
    assert machine.durable("d").pending == 1


def test_a_static_durable_in_place_of_a_dynamic_one_counts_what_its_limit_discards() -> None:
    machine = machine_with({}, {"jobs": SHARED})
    machine.attach("d", "me", template="jobs")
    machine.detach("d", "me")
    machine.publish("1", "2", "3")
    refused(machine, "s/d", 2, **made({"d": {**SHARED, **OLD_FIRST}}, {"jobs": SHARED}))


def test_a_lower_limit_of_a_map_counts_the_values_that_it_discards() -> None:
    machine = machine_with({"m": {"type": "map"}})
    machine.do(MapChange(machine.now_ms, "s", "m", [(key, b"x", None) for key in "abc"]))
    refused(machine, "s/m", 2, **made({"m": {"type": "map", **OLD_FIRST}}))
    assert machine.durable("m").keyed.messages == 1
    define(machine, delete=False, **made({"m": {"type": "map", **OLD_FIRST, "message_limit": 2}}))


@pytest.mark.parametrize("matcher", [{}, {"kind": True}])
def test_retained_messages_that_a_shorter_retention_ends_count(matcher: Section) -> None:
    kept = {**SHARED, "retention_time": "1h", "matcher": matcher}
    for wanted, place, messages in (
        (made({"a": {**kept, "retention_time": "1m"}}), "s/a", 2),
        (made({"a": {**SHARED, "matcher": matcher}}), "s/a", 3),
        (made({}), "s/a", 3),
        ({}, "s", 3),
    ):
        machine = machine_with({"a": kept})
        machine.publish(*[Message(body=b"x", fields={"kind": "k"}) for _ in range(2)])
        machine.later(120_000)
        machine.publish(Message(body=b"x", fields={"kind": "k"}))
        consume(machine, "a")
        refused(machine, place, messages, **wanted)


@pytest.mark.parametrize("settle", [{}, {"nack": [(1, 0), (2, 0)]}])
def test_a_shorter_time_to_live_counts_what_it_ends_at_once(settle: dict[str, list[tuple[int, int]]]) -> None:
    machine = machine_with({"a": SHARED, "m": {"type": "map"}, "v": {"type": "last_value"}})
    machine.publish(Message(body=b"1", key="k"), Message(body=b"2", key="l"))
    machine.do(MapChange(machine.now_ms, "s", "m", [("a", b"x", None)]))
    machine.later(60_000)
    machine.publish(Message(body=b"3", key="n"))
    if settle:
        machine.attach("a", "me")
        machine.deliver("a", "me", 2)
        machine.settle("a", "me", **settle)
        machine.detach("a", "me")
    short = {"message_ttl": "30s"}
    others = {"m": {"type": "map"}, "v": {"type": "last_value"}}
    define(machine, delete=False, **made({"a": {**SHARED, "message_ttl": "90s"}, **others}))
    refused(machine, "s/a", 2, **made({"a": {**SHARED, **short}, **others}))
    refused(machine, "s/m", 1, **made({"a": {**SHARED, **short}, **others, "m": {"type": "map", **short}}))
    others = {"m": {"type": "map", **short}, "v": {"type": "last_value", **short}}
    refused(machine, "s/v", 2, **made({"a": {**SHARED, **short}, **others}))
    define(machine, delete=False, **made({"a": {**SHARED, "message_ttl": "40s"}, **others}))


def test_a_shorter_durable_ttl_counts_what_the_idle_durables_keep() -> None:
    machine = machine_with({}, {"jobs": SHARED})
    machine.attach("d", "me", template="jobs")
    machine.detach("d", "me")
    machine.publish("1", "2")
    machine.later(60_000)
    define(machine, delete=False, **made({}, {"jobs": {**SHARED, "durable_ttl": "2m"}}))
    refused(machine, "s/d", 2, **made({}, {"jobs": {**SHARED, "durable_ttl": "30s"}}))
    assert "d" not in machine.state.stores["s"].durables


def test_a_store_whose_map_was_purged_can_be_removed() -> None:
    machine = machine_with({"m": {"type": "map"}})
    machine.checked = False
    machine.do(MapChange(machine.now_ms, "s", "m", [(str(number), b"x", None) for number in range(20_000)]))
    machine.do(Purge(machine.now_ms, "s", "m"))
    assert machine.kept > 0
    define(machine, delete=False)


def test_a_count_that_would_read_too_much_is_a_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition_losses, "LOOKS_MAX", 2)
    machine = machine_with({"a": {**SHARED, "retention_time": "1h"}, "b": {**SHARED, "retention_time": "1h"}})
    machine.publish("1", "2", "3")
    consume(machine, "a")
    consume(machine, "b")
    with pytest.raises(Conflict, match=r"s/a \(at least 2\), s/b \(an unknown number\)") as caught:
        define(machine, delete=False, **made({}))
    assert caught.value.fields == {"messages": 2, "places": 2, "count": "at_least"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused_with_its_path(number: float) -> None:
    before = definition_of({"stores": {"s": {"durables": {"a": SHARED}}}})
    with pytest.raises(InvalidRequest, match=r"stores\.s\.message_limit: a finite number"):
        patched_store(before, "s", {"message_limit": number})
    with pytest.raises(InvalidRequest, match=r"stores\.s\.durables\.a\.matcher\.n\.1: a finite number"):
        with_part(before, "s", "durables", "a", {**SHARED, "matcher": {"n": [1, number]}})


@pytest.mark.parametrize(("before", "after"), [("shared", "standard"), ("standard", "map"), ("map", "last_value")])
def test_a_patch_of_a_type_is_refused_for_the_type(before: str, after: str) -> None:
    known = definition_of(
        {"stores": {"s": {"durables": {"a": {"type": before}}, "templates": {"t": {"type": before}}}}}
    )
    for kind, name in (("durables", "a"), ("templates", "t")):
        with pytest.raises(InvalidRequest, match=f"{before} -> {after}") as caught:
            patched_part(known, "s", kind, name, {"type": after, "prefetch": 3})
        assert caught.value.code is Code.TYPE_MISMATCH
        assert with_parts(known, patched_part(known, "s", kind, name, {"type": before})) == known
