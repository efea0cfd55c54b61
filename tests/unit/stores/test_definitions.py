"""Definitions: every parameter with its default, its spellings, its bounds, and where it applies."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import fields

import pytest

from holdfast.errors import Code, InvalidRequest, LimitExceeded, NotFound
from holdfast.stores.definitions.changes import with_part, without_store
from holdfast.stores.definitions.cluster import (
    BUILT_IN_TEMPLATES,
    PARAMETER_TYPES,
    ClusterDefinition,
    DurableDefinition,
    DurableType,
    StoreDefinition,
    definition_of,
    durable_of,
    parse_definition,
)
from holdfast.stores.definitions.parts import (
    changed_paths,
    check_change,
    differences,
    keep_sections,
    require_size,
)
from holdfast.stores.definitions.reader import check_name
from holdfast.stores.matching import Matcher
from holdfast.stores.values.commands import DefinitionPart

KI, MI, GI = 1 << 10, 1 << 20, 1 << 30


def with_store(**parameters: object) -> dict[str, object]:
    return {"stores": {"s": parameters, "dead": {}, "memory": {"replicated": False}}}


def with_durable(**parameters: object) -> dict[str, object]:
    return with_store(durables={"d": {"type": "shared"} | parameters})


def with_template(**parameters: object) -> dict[str, object]:
    return with_store(templates={"d": {"type": "shared"} | parameters})


def problem_of(document: object) -> str:
    with pytest.raises(InvalidRequest) as refused:
        definition_of(document)
    assert refused.value.code is Code.BAD_CONFIGURATION
    return str(refused.value)


# ---- defaults -------------------------------------------------------------------------------------------------------


def test_without_configuration_there_is_a_cluster_named_default() -> None:
    cluster = parse_definition(b"")
    assert cluster == ClusterDefinition() == definition_of({"cluster": {}})
    assert (cluster.name, cluster.persistence, cluster.stores) == ("default", "sync", {})
    assert (cluster.swap, cluster.bytelimit, cluster.message_limit) == (True, 0, 0)
    assert (cluster.max_disk_fraction, cluster.publisher_ttl_ms) == (0.95, 7 * 86_400_000)


def test_a_store_has_the_defaults_of_the_tables() -> None:
    store = definition_of({"stores": {"s": {}}}).stores["s"]
    assert store == StoreDefinition("s")
    assert (store.replicated, store.publisher_mode) == (True, "store_confirm_send")
    assert (store.bytelimit, store.message_limit, store.dynamic_durable_limit) == (0, 0, 10_000)
    assert (store.max_message_size, store.swap_bytelimit) == (10 * MI, 0)


def test_a_durable_has_the_defaults_of_the_tables() -> None:
    durable = definition_of(with_durable()).stores["s"].durables["d"]
    assert durable == DurableDefinition("d", DurableType.SHARED)
    assert durable.matcher.everything
    assert (durable.prefetch, durable.window, durable.ack_wait_ms, durable.subscriber_timeout_ms) == (
        256,
        256,
        30_000,
        5_000,
    )
    assert (durable.ack_mode, durable.ack_batch_count, durable.ack_batch_time_ms) == ("async", 1000, 100)
    assert (durable.message_ttl_ms, durable.durable_ttl_ms, durable.retention_time_ms) == (0, 0, 0)
    assert (durable.message_limit, durable.bytelimit, durable.discard, durable.max_delivery) == (0, 0, "new", 0)


def test_every_store_has_a_template_of_each_type_and_its_own_stands_instead() -> None:
    own = {"shared": {"type": "shared", "prefetch": 7}}
    store = definition_of(with_store(templates=own, default_template="shared")).stores["s"]
    assert set(BUILT_IN_TEMPLATES) == {"standard", "shared", "last_value", "map"}
    for name, built_in in BUILT_IN_TEMPLATES.items():
        template = store.template(name)
        assert template is not None
        assert template.pattern.type == built_in.pattern.type == name
    asked = store.template("")
    assert asked is not None
    made = asked.durable("mine", Matcher.of({"a": 1}))
    assert (made.name, made.template, made.dynamic, made.prefetch) == ("mine", "shared", True, 7)
    assert made.matcher == Matcher.of({"a": 1})
    assert store.template("other") is None


# ---- each parameter -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (100, 100),
        ("100", 100),
        ("100k", 100 * KI),
        ("100kb", 100 * KI),
        ("100K", 100 * KI),
        ("100mb", 100 * MI),
        ("1g", GI),
        ("1GiB", GI),
        ("", 0),
        (None, 0),
        (0, 0),
    ],
)
def test_byte_sizes_have_these_spellings(given: object, expected: int) -> None:
    assert definition_of({"cluster": {"bytelimit": given}}).bytelimit == expected
    assert definition_of(with_store(bytelimit=given)).stores["s"].bytelimit == expected
    assert definition_of(with_durable(bytelimit=given)).stores["s"].durables["d"].bytelimit == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [(30, 30_000), (0.1, 100), ("0.1", 100), ("0", 0), ("250ms", 250), ("5m", 300_000), ("2h", 7_200_000), (None, 0)],
)
def test_times_are_seconds_or_have_a_unit(given: object, expected: int) -> None:
    assert definition_of(with_durable(message_ttl=given)).stores["s"].durables["d"].message_ttl_ms == expected


@pytest.mark.parametrize(
    ("name", "given", "attribute", "expected"),
    [
        ("persistence", "async", "persistence", "async"),
        ("persistence", "none", "persistence", "none"),
        ("services", ["a"], "services", ("a",)),
        ("message_limit", 5, "message_limit", 5),
        ("swap", False, "swap", False),
        ("publisher_ttl", "1d", "publisher_ttl_ms", 86_400_000),
        ("max_disk_fraction", 0, "max_disk_fraction", 0.0),
        ("max_disk_fraction", 1, "max_disk_fraction", 1.0),
        ("disk_compact", False, "disk_compact", False),
        ("min_disk_inuse_ratio", 0.05, "min_disk_inuse_ratio", 0.05),
        ("max_deployment_history", 3, "max_deployment_history", 3),
    ],
)
def test_each_parameter_of_a_cluster_is_taken(name: str, given: object, attribute: str, expected: object) -> None:
    assert getattr(definition_of({"cluster": {name: given}}), attribute) == expected


@pytest.mark.parametrize(
    ("name", "given", "attribute", "expected"),
    [
        ("description", "of orders", "description", "of orders"),
        ("replicated", False, "replicated", False),
        ("publisher_mode", "store_send_noconfirm", "publisher_mode", "store_send_noconfirm"),
        ("message_limit", 9, "message_limit", 9),
        ("max_message_size", "64k", "max_message_size", 64 * KI),
        ("dynamic_durable_limit", 2, "dynamic_durable_limit", 2),
        ("swap_bytelimit", -1, "swap_bytelimit", -1),
        ("swap_bytelimit", "100m", "swap_bytelimit", 100 * MI),
    ],
)
def test_each_parameter_of_a_store_is_taken(name: str, given: object, attribute: str, expected: object) -> None:
    assert getattr(definition_of(with_store(**{name: given})).stores["s"], attribute) == expected


DURABLE_PARAMETERS = [
    ("matcher", {"a": 1}, "matcher", Matcher.of({"a": 1}), "shared"),
    ("prefetch", 0, "prefetch", 0, "standard"),
    ("prefetch", 7, "window", 7, "shared"),
    ("ack_mode", "sync", "ack_mode", "sync", "shared"),
    ("ack_wait", 2.5, "ack_wait_ms", 2500, "standard"),
    ("buffer_wait", 1.5, "buffered_ms", 1500, "shared"),
    ("ack_batch_count", 10, "ack_batch_count", 10, "shared"),
    ("ack_batch_time", 0, "ack_batch_time_ms", 0, "shared"),
    ("subscriber_timeout", 1, "subscriber_timeout_ms", 1000, "last_value"),
    ("message_ttl", 1, "message_ttl_ms", 1000, "map"),
    ("message_limit", 3, "message_limit", 3, "map"),
    ("bytelimit", "3k", "bytelimit", 3 * KI, "standard"),
    ("discard", "old", "discard", "old", "shared"),
    ("max_delivery", 5, "max_delivery", 5, "shared"),
    ("dead_letter_store", "dead", "dead_letter_store", "dead", "shared"),
    ("retention_time", "1h", "retention_time_ms", 3_600_000, "shared"),
    ("swap_bytelimit", "1m", "swap_bytelimit", MI, "last_value"),
    ("key_field", "id", "key_field", "id", "last_value"),
    ("key_ordered", True, "key_ordered", True, "shared"),
]


@pytest.mark.parametrize(("name", "given", "attribute", "expected", "kind"), DURABLE_PARAMETERS)
def test_each_parameter_of_a_durable_is_taken(
    name: str, given: object, attribute: str, expected: object, kind: str
) -> None:
    durable = definition_of(with_durable(type=kind, **{name: given})).stores["s"].durables["d"]
    assert getattr(durable, attribute) == expected
    template = definition_of(with_template(type=kind, **{name: given})).stores["s"].templates["d"]
    assert getattr(template.pattern, attribute) == expected


def test_no_parameter_of_a_durable_is_without_a_row() -> None:
    assert {row[0] for row in DURABLE_PARAMETERS} == set(PARAMETER_TYPES) - {"durable_ttl"}
    described = {name.removesuffix("_ms") for name in (field.name for field in fields(DurableDefinition))}
    assert described - {"name", "type", "template"} == set(PARAMETER_TYPES)


@pytest.mark.parametrize(("name", "given", "attribute", "expected", "kind"), DURABLE_PARAMETERS)
def test_a_parameter_given_where_it_does_not_apply_is_refused(
    name: str, given: object, attribute: str, expected: object, kind: str
) -> None:
    del attribute, expected, kind
    for other in sorted(set(DurableType) - PARAMETER_TYPES[name]):
        text = problem_of(with_durable(type=other, **{name: given}))
        assert f"stores.s.durables.d.{name}: a parameter of " in text


def test_the_time_of_a_durable_without_subscribers_is_a_templates_alone() -> None:
    template = definition_of(with_template(durable_ttl="1h")).stores["s"].templates["d"]
    assert template.durable("x").durable_ttl_ms == 3_600_000
    refused = problem_of(with_durable(durable_ttl=1))
    assert "stores.s.durables.d.durable_ttl: only for the durables of a template" in refused
    assert "message_ttl" in refused
    for none in (0, "0", "", None):
        definition_of(with_durable(durable_ttl=none))


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "definition: an object"),
        ({"stores": []}, "stores: an object"),
        ({"clusters": {}}, "clusters: there is no such parameter; did you mean cluster?"),
        ({"cluster": {"services": ["a", "b"]}}, "cluster.services: 1 service or an odd number of at least 3"),
        ({"cluster": {"services": ["a", "b", "c", "d"]}}, "cluster.services: 1 service or an odd number"),
        ({"cluster": {"services": ["a", "b", "c"]}}, "cluster.services: one service"),
        ({"cluster": {"persistence": "always"}}, "cluster.persistence: one of sync, async, none, not 'always'"),
        ({"cluster": {"max_disk_fraction": 1.01}}, "cluster.max_disk_fraction: a number from 0 to 1"),
        ({"cluster": {"max_disk_fraction": -0.1}}, "cluster.max_disk_fraction: a number from 0 to 1"),
        ({"cluster": {"publisher_ttl": 0}}, "cluster.publisher_ttl: a time of at least 1 s"),
        ({"stores": {"a/b": {}}}, "stores: the name of a store is"),
        ({"stores": {"_hidden": {}}}, "stores: the name of a store is"),
        ({"stores": {"x" * 257: {}}}, "stores: the name of a store is"),
        (with_store(bytelimt=1), "stores.s.bytelimt: there is no such parameter; did you mean bytelimit?"),
        (with_store(bytelimit="1x"), "stores.s.bytelimit: a number of bytes"),
        (with_store(bytelimit=-1), "stores.s.bytelimit: a number of bytes"),
        (with_store(bytelimit=True), "stores.s.bytelimit: a number of bytes"),
        (with_store(replicated=1), "stores.s.replicated: true or false"),
        (with_store(max_message_size=0), "stores.s.max_message_size: a number of bytes 1 to"),
        (with_store(message_limit=1.5), "stores.s.message_limit: a whole number"),
        (with_store(default_durable="no"), "stores.s.default_durable: a static durable of this store"),
        (with_store(default_template="no"), "stores.s.default_template: a template"),
        (with_store(subscribers={"a": "no"}), "stores.s.subscribers.a: a static durable"),
        (with_store(durables={"d": {}}), "stores.s.durables.d.type: one of standard, shared, last_value, map"),
        (with_durable(type="queue"), "stores.s.durables.d.type: one of standard, shared, last_value, map"),
        (with_durable(prefetch=0), "stores.s.durables.d.prefetch: a whole number 1 to"),
        (with_durable(ack_wait="soon"), "stores.s.durables.d.ack_wait: a number of seconds"),
        (with_durable(ack_wait=float("nan")), "stores.s.durables.d.ack_wait: a number of seconds"),
        (with_durable(ack_wait=float("inf")), "stores.s.durables.d.ack_wait: a number of seconds"),
        (with_durable(ack_wait=10**400), "stores.s.durables.d.ack_wait: a number of seconds"),
        (with_durable(ack_wait="9" * 400 + "d"), "stores.s.durables.d.ack_wait: a number of seconds"),
        ({"cluster": {"publisher_ttl": 10**400}}, "cluster.publisher_ttl: a number of seconds"),
        (with_durable(matcher={"a": [1, None]}), "stores.s.durables.d.matcher: a field's value"),
        (with_durable(discard="all"), "stores.s.durables.d.discard: one of old, new"),
        (with_durable(dead_letter_store="no"), "stores.s.durables.d.dead_letter_store: a store that is defined"),
        (with_durable(dead_letter_store="s"), "stores.s.durables.d.dead_letter_store: not s"),
        (with_durable(dead_letter_store="memory"), "dead_letter_store: a replicated store"),
        (with_durable(message_ttl=1, retention_time=2), "stores.s.durables.d.retention_time: at most message_ttl"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(document: object, said: str) -> None:
    assert said in problem_of(document)


def test_every_wrong_value_is_named_at_once() -> None:
    text = problem_of({"cluster": {"swap": 1}, "stores": {"a": {"bytelimit": "x"}, "b": {"durables": {"d": {}}}}})
    assert "3 problems" in text
    assert all(path in text for path in ("cluster.swap", "stores.a.bytelimit", "stores.b.durables.d.type"))


def test_dead_letters_never_come_round_in_a_circle() -> None:
    def store(target: str) -> dict[str, object]:
        return {"durables": {"d": {"type": "shared", "dead_letter_store": target}}}

    chain = {"stores": {"a": store("b"), "b": store("c"), "c": {}}}
    assert set(definition_of(chain).stores) == {"a", "b", "c"}
    circle = {"stores": {"a": store("b"), "b": store("c"), "c": store("a")}}
    assert "stores.c.durables.d.dead_letter_store: not a, whose own dead letters come back to c" in problem_of(circle)


@pytest.mark.parametrize("data", [b"{", b"\xff", b'{"a":' * 100_000])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_definition(data)
    assert refused.value.code is Code.BAD_CONFIGURATION


# ---- there and back -------------------------------------------------------------------------------------------------

EVERYTHING = {
    "cluster": {"name": "c", "persistence": "none", "bytelimit": "2g", "swap": False, "publisher_ttl": 1.5},
    "stores": {
        "s": {
            "description": "all of it",
            "bytelimit": "1g",
            "durables": {
                "std": {"type": "standard", "prefetch": 0, "matcher": [{"a": [1, "x"]}, {"b": {">": 3}}]},
                "sh": {"type": "shared", "max_delivery": 3, "dead_letter_store": "dead", "key_ordered": True},
                "lv": {"type": "last_value", "key_field": "id"},
                "m": {"type": "map", "message_limit": 5, "discard": "old"},
            },
            "templates": {"t": {"type": "shared", "durable_ttl": "90ms"}},
            "default_durable": "sh",
            "default_template": "t",
            "subscribers": {"ann": "std"},
        },
        "dead": {},
    },
    "permissions": {
        "enabled": True,
        "users": {"root": {"token": "sixteen-or-more-x", "roles": ["admin"]}},
        "roles": {"admin": {"stores": {"*": ["administer"]}, "cluster": ["administer"]}},
    },
}


def test_a_definition_reads_back_as_itself() -> None:
    definition = definition_of(EVERYTHING)
    again = parse_definition(definition.json())
    assert again == definition
    assert again.json() == definition.json()
    assert differences(definition, again) == []


def test_a_token_is_in_no_definition_that_is_kept() -> None:
    assert b"sixteen-or-more-x" not in definition_of(EVERYTHING).json()
    assert "sixteen-or-more-x" not in repr(definition_of(EVERYTHING))


@pytest.mark.parametrize("name", ["std", "sh", "lv", "m"])
def test_a_durable_reads_back_as_itself(name: str) -> None:
    durable = definition_of(EVERYTHING).stores["s"].durables[name]
    assert durable_of(name, durable.document()) == durable
    template = definition_of(EVERYTHING).stores["s"].templates["t"]
    made = template.durable("made", durable.matcher)
    assert durable_of("made", made.document(), template="t") == made


def test_a_definition_beside_another_takes_nothing_away() -> None:
    current = definition_of(EVERYTHING)
    wanted = definition_of({"stores": {"s": {"bytelimit": 7, "durables": {"new": {"type": "map"}}}, "other": {}}})
    both = keep_sections(current, wanted)
    assert sorted(both.stores) == sorted({*current.stores, "other"})
    assert both.stores["s"].bytelimit == 7
    assert sorted(both.stores["s"].durables) == sorted({*current.stores["s"].durables, "new"})
    assert both.stores["s"].templates == current.stores["s"].templates
    assert keep_sections(both, wanted) == both


def check(before: ClusterDefinition, after: ClusterDefinition) -> None:
    check_change(before, after, changed_paths(before, after))


def test_how_safe_messages_are_kept_changes_while_they_are_kept_on_disk() -> None:
    before = definition_of({"cluster": {"persistence": "sync"}, "stores": {"s": {}}})
    after = definition_of({"cluster": {"persistence": "async"}, "stores": {"s": {}}})
    check(before, after)
    check(after, before)


# ---- changes --------------------------------------------------------------------------------------------------------


def changed(path: str, value: object) -> ClusterDefinition:
    document = json.loads(definition_of(EVERYTHING).json())
    at = document
    *parents, last = path.split(".")
    for name in parents:
        at = at[name]
    at[last] = value
    return definition_of(document)


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("cluster.persistence", "sync", Code.BAD_CONFIGURATION),  # from none: what memory has is not on disk
        ("stores.s.replicated", False, Code.BAD_CONFIGURATION),
        ("stores.s.durables.std", {"type": "shared"}, Code.TYPE_MISMATCH),
        ("stores.s.templates.t", {"type": "map"}, Code.TYPE_MISMATCH),
        ("stores.s.durables.std.matcher", {"a": 2}, Code.MATCHER_MISMATCH),
        ("stores.s.durables.std.prefetch", 1, Code.BAD_CONFIGURATION),
        ("stores.s.durables.lv.key_field", "", Code.BAD_CONFIGURATION),
        ("stores.s.durables.sh.key_ordered", False, Code.BAD_CONFIGURATION),
    ],
)
def test_what_cannot_change_is_refused_with_its_path(path: str, value: object, code: Code) -> None:
    with pytest.raises(InvalidRequest, match=path.replace(".", r"\.")) as refused:
        check(definition_of(EVERYTHING), changed(path, value))
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cluster.swap", True),
        ("stores.s.bytelimit", 5),
        ("stores.s.durables.sh.prefetch", 5),
        ("stores.s.durables.sh.max_delivery", 9),
        ("stores.s.templates.t.durable_ttl", 5),
        ("stores.s.durables.new", {"type": "map"}),
        ("stores.dead.description", "of the dead"),
    ],
)
def test_everything_else_changes(path: str, value: object) -> None:
    before, after = definition_of(EVERYTHING), changed(path, value)
    check(before, after)
    assert [difference.path for difference in differences(before, after)] == [path]


def test_a_thing_taken_away_and_given_anew_in_two_definitions_may_be_another() -> None:
    without = json.loads(definition_of(EVERYTHING).json())
    del without["stores"]["s"]["durables"]["std"]
    without["stores"]["s"]["subscribers"] = {}
    between = definition_of(without)
    check(definition_of(EVERYTHING), between)
    without["stores"]["s"]["durables"]["std"] = {"type": "map"}
    check(between, definition_of(without))


def test_letters_of_any_script_are_names_in_one_form_only() -> None:
    for name in ("größe", "заказы", "東京-1", "हिन्दी", "안녕", "a..", "٣", "é" * 256):
        assert check_name("store", name) == name
    for name in (
        "",
        "_x",
        "-x",
        "a b",
        "a/b",
        "a\n",
        "①",
        "\N{GRINNING FACE}",
        "\N{ZERO WIDTH JOINER}",
        "\ud800",
        "é" * 257,
        7,
    ):
        with pytest.raises(InvalidRequest, match="letters and digits of any script"):
            check_name("store", name)
    with pytest.raises(InvalidRequest) as refused:
        check_name("store", unicodedata.normalize("NFD", "größe"))
    assert "gr\\xf6\\xdfe" in refused.value.hint


def test_a_definition_of_a_part_of_the_statistics_store_is_refused_without_advice_to_define_the_store() -> None:
    definition = definition_of({})
    for change in (
        lambda: with_part(definition, "_statistics", "durables", "d", {"type": "standard"}),
        lambda: without_store(definition, "_statistics"),
    ):
        with pytest.raises(NotFound, match="no definition has this store") as raised:
            change()
        assert "the service makes this store" in raised.value.hint
    with pytest.raises(NotFound) as raised:
        without_store(definition, "other")
    assert "define the store first" in raised.value.hint


def test_each_python_accepts_the_same_names_whatever_unicode_it_has() -> None:
    """All machines that replay a log must: U+A7AE is a letter since Unicode 9, U+1E9E since 5.1."""
    for name in ("\ua7ae", "\u1e9e"):
        with pytest.raises(InvalidRequest, match=r"Unicode 3\.2"):
            check_name("store", name)


def test_a_change_above_sixteen_mebibytes_is_refused_before_it_is_recorded() -> None:
    half = DefinitionPart(("cluster",), bytes(8 << 20))
    require_size([half, half])
    with pytest.raises(LimitExceeded, match="too large") as caught:
        require_size([half, half, DefinitionPart(("permissions",), b"{")])
    assert caught.value.code is Code.TOO_LARGE
