"""Compiled matchers against an obvious reading of their JSON; the index against asking each."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.stores.matching import Matcher, MatcherIndex

NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["", "x", "xy", "y", "1"])
NUMBERS = st.integers(-2, 2)
VALUES = TEXTS | NUMBERS | st.booleans()
FIELDS = st.dictionaries(NAMES, VALUES)


def ranges(values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    both = st.tuples(values, values).map(lambda ends: sorted(ends, key=lambda end: (str(type(end)), end)))  # type: ignore[arg-type, return-value]
    return (
        st.builds(lambda operator, end: {operator: end}, st.sampled_from(["<", "<=", ">", ">="]), values)
        | both.map(lambda ends: {">=": ends[0], "<=": ends[1]})
        | both.filter(lambda ends: ends[0] != ends[1]).map(lambda ends: {">": ends[0], "<": ends[1]})
    )


CONDITIONS = (
    VALUES
    | st.builds(lambda value: {"equals": value}, VALUES)
    | st.builds(lambda text: {"prefix": text}, TEXTS)
    | ranges(TEXTS)
    | ranges(NUMBERS)
)
OBJECTS = st.dictionaries(NAMES, CONDITIONS | st.lists(CONDITIONS, min_size=1, max_size=3), max_size=3)
MATCHERS = OBJECTS | st.lists(OBJECTS, min_size=1, max_size=3)


def obvious(document: object, fields: dict[str, object]) -> bool:
    if isinstance(document, list):
        return any(obvious(item, fields) for item in document)
    assert isinstance(document, dict)
    return all(
        any(holds(item, name, fields) for item in (wanted if isinstance(wanted, list) else [wanted]))
        for name, wanted in document.items()
    )


def holds(wanted: object, name: str, fields: dict[str, object]) -> bool:
    if wanted is True or wanted is False:
        return (name in fields) is wanted
    if name not in fields:
        return False
    value = fields[name]
    if not isinstance(wanted, dict):
        return type(value) is type(wanted) and value == wanted
    for operator, end in wanted.items():
        if type(value) is not type(end):
            return False
        if operator == "prefix":
            ok = value.startswith(end)  # type: ignore[attr-defined]
        elif operator == "equals":
            ok = value == end
        else:
            ok = {
                "<": lambda end=end: value < end,
                "<=": lambda end=end: value <= end,
                ">": lambda end=end: value > end,
                ">=": lambda end=end: value >= end,
            }[operator]()
        if not ok:
            return False
    return True


@given(MATCHERS, st.lists(FIELDS, max_size=8))
@settings(max_examples=300, deadline=None)
def test_a_compiled_matcher_is_its_json_read_plainly(document: object, messages: list[dict[str, object]]) -> None:
    matcher = Matcher.of(document)
    for fields in messages:
        assert matcher.matches(fields) is obvious(document, fields)  # type: ignore[arg-type]


@given(MATCHERS)
@settings(max_examples=200, deadline=None)
def test_the_normal_form_reads_back_as_the_same_matcher(document: object) -> None:
    matcher = Matcher.of(document)
    assert Matcher.of(json.loads(matcher.json())) == matcher
    assert Matcher.parse(matcher.json()).json() == matcher.json()


@given(st.lists(MATCHERS, max_size=8), st.lists(FIELDS, max_size=6), st.sets(st.integers(0, 7)))
@settings(max_examples=200, deadline=None)
def test_the_index_finds_what_asking_each_finds(
    documents: list[object], messages: list[dict[str, object]], removed: set[int]
) -> None:
    index = MatcherIndex[int]()
    matchers = {name: Matcher.of(document) for name, document in enumerate(documents)}
    for name, matcher in matchers.items():
        index.add(name, matcher, name)
    for name in sorted(removed & set(matchers)):
        index.remove(name)
        del matchers[name]
    index.check()
    for fields in messages:
        asked = [name for name, matcher in matchers.items() if matcher.matches(fields)]  # type: ignore[arg-type]
        assert index.matching(fields) == asked  # type: ignore[arg-type]
