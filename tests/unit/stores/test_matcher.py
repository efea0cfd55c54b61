"""What a matcher accepts, and what is no matcher."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast.errors import InvalidRequest
from holdfast.stores.matching import ALTERNATIVES_MAX, EVERYTHING, VALUES_MAX, Matcher, MatcherIndex, Test
from holdfast.wire.parts import FieldValue


@pytest.mark.parametrize(
    ("document", "accepted", "refused"),
    [
        ({"kind": "a"}, [{"kind": "a"}, {"kind": "a", "more": 1}], [{}, {"kind": "b"}, {"other": "a"}]),
        ({"kind": "a", "n": 1}, [{"kind": "a", "n": 1}], [{"kind": "a"}, {"n": 1}, {"kind": "a", "n": 2}]),
        ({"kind": ["a", "b"]}, [{"kind": "a"}, {"kind": "b"}], [{"kind": "c"}, {}]),
        ([{"kind": "a"}, {"n": 1}], [{"kind": "a"}, {"n": 1}], [{"kind": "b", "n": 2}, {}]),
        ({"kind": True}, [{"kind": ""}, {"kind": 0}, {"kind": False}], [{}, {"other": 1}]),
        ({"kind": False}, [{}, {"other": 1}], [{"kind": "a"}, {"kind": False}]),
        ({"kind": [False, "a"]}, [{}, {"kind": "a"}], [{"kind": "b"}]),
        ({"n": 1}, [{"n": 1}], [{"n": "1"}, {"n": True}]),
        ({"n": [1, "x"]}, [{"n": 1}, {"n": "x"}], [{"n": True}, {"n": "1"}]),
        ({"n": "1"}, [{"n": "1"}], [{"n": 1}]),
        ({"paid": {"equals": True}}, [{"paid": True}], [{"paid": False}, {"paid": 1}, {}]),
        ({"name": {"prefix": "inv-"}}, [{"name": "inv-"}, {"name": "inv-7"}], [{"name": "in"}, {"name": 7}, {}]),
        ({"p": {">=": 10, "<": 20}}, [{"p": 10}, {"p": 19}], [{"p": 9}, {"p": 20}, {"p": "15"}, {"p": True}, {}]),
        ({"p": {">": 10}}, [{"p": 11}], [{"p": 10}]),
        ({"p": {"<=": "m"}}, [{"p": "m"}, {"p": ""}], [{"p": "n"}, {"p": 1}]),
        ({"p": [{"prefix": "a"}, {">=": 5}]}, [{"p": "ab"}, {"p": 5}], [{"p": "b"}, {"p": 4}]),
        ({}, [{}, {"a": 1}], []),
        (None, [{}, {"a": 1}], []),
        ([{}, {"a": 1}], [{}, {"a": 2}], []),
    ],
)
def test_a_matcher_accepts_exactly_what_it_says(
    document: object, accepted: list[dict[str, object]], refused: list[dict[str, object]]
) -> None:
    matcher = Matcher.of(document)
    assert [fields for fields in accepted if not matcher.matches(fields)] == []
    assert [fields for fields in refused if matcher.matches(fields)] == []


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ("a", "matcher"),
        ([], None),
        (["a"], "[0]"),
        ([{}, 3], "[1]"),
        ({"": 1}, "matcher"),
        ({"a": []}, "a"),
        ({"a": None}, "a"),
        ({"a": 1.5}, "a"),
        ({"a": ["x", None]}, "a[1]"),
        ([{"a": 1}, {"b": {"like": "x"}}], "[1].b"),
        ({"a": {}}, "a"),
        ({"a": {"prefix": 1}}, "a.prefix"),
        ({"a": {">": 1, ">=": 1}}, "a"),
        ({"a": {">": 1, "<": "x"}}, "a"),
        ({"a": {">": 5, "<": 5}}, "a"),
        ({"a": {">=": 6, "<=": 5}}, "a"),
        ({"a": {">": True}}, "a.>"),
        ({"a": 1 << 63}, "a"),
        ({"a": "x" * 257}, "a"),
        ({"a": ["x"] * (VALUES_MAX + 1)}, "a"),
        ([{}] * (ALTERNATIVES_MAX + 1), None),
    ],
)
def test_what_is_no_matcher_is_refused_with_its_path(document: object, path: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Matcher.of(document)
    assert refused.value.fields.get("path") == path


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": ["x", "y", "x"]}, {"a": ["y", "x"]}),
        ({"a": ["x"]}, {"a": "x"}),
        ([{"a": 1}], {"a": 1}),
        ([{"a": 1}, {"b": 1}], [{"b": 1}, {"a": 1}, {"a": 1}]),
        ({"a": [True, "x"]}, {"a": True}),
        ([{}, {"a": 1}], None),
    ],
)
def test_matchers_that_say_the_same_are_equal(one: object, other: object) -> None:
    assert Matcher.of(one) == Matcher.of(other)
    assert hash(Matcher.of(one)) == hash(Matcher.of(other))
    assert Matcher.of(one).json() == Matcher.of(other).json()


@pytest.mark.parametrize(
    ("one", "other"), [({"a": 1}, {"a": {"equals": True}}), ({"a": 1}, {"a": "1"}), ({"a": 1}, {})]
)
def test_matchers_that_say_different_things_differ(one: object, other: object) -> None:
    assert Matcher.of(one) != Matcher.of(other)


def test_no_bytes_mean_everything_and_bad_bytes_are_refused() -> None:
    assert Matcher.parse(b"") is EVERYTHING
    assert Matcher.parse(b"null").everything
    for data in (b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(InvalidRequest):
            Matcher.parse(data)


def test_ten_thousand_durables_do_not_cost_ten_thousand_tests_a_message() -> None:
    index = MatcherIndex[int]()
    for customer in range(10_000):
        index.add(customer, Matcher.of({"region": "eu", "customer": f"c{customer}"}), customer)
    asked: list[int] = []
    for items in index._filed.values():
        for item in items:
            item.test = _noting(item.test, asked, item.name)
    assert index.matching({"region": "eu", "customer": "c17"}) == [17]
    assert len(asked) < 10


def _noting(test: Test, asked: list[int], name: int) -> Test:
    def noting(fields: Mapping[str, FieldValue]) -> bool:
        asked.append(name)
        return test(fields)

    return noting


def test_a_name_taken_out_of_the_index_is_found_no_more() -> None:
    index = MatcherIndex[str]()
    index.add("exact", Matcher.of([{"a": "x"}, {"a": ["x", "y"], "b": True}]), 1)
    index.add("range", Matcher.of({"a": {"prefix": "x"}}), 2)
    index.add("absent", Matcher.of({"z": False}), 3)
    index.check()
    assert index.matching({"a": "x", "b": 1}) == ["exact", "range", "absent"]
    for name in ("exact", "range", "absent"):
        index.remove(name)
        index.check()
        assert name not in index.matching({"a": "x", "b": 1})
    assert len(index) == 0
