"""Matchers: which messages a durable wants, by their fields.

    {"kind": "a", "region": "eu"}       both fields have exactly these values (and)
    {"kind": ["a", "b"]}                the field has one of these values (or)
    [{"kind": "a"}, {"region": "eu"}]   one of these objects matches (or)
    {"kind": true, "test": false}       the first field is present, the second is not
    {"name": {"prefix": "inv-"}}        a text that starts so
    {"price": {">=": 10, "<": 20}}      a number, or a text by code points, in a range with one or two ends
    {"paid": {"equals": true}}          a truth value, because a bare true asks for presence
    {}  or null                         every message

Values are compared exactly and never converted: the text "1", the number 1 and the truth value true are three values. A
list of values may hold any of the above. Matchers that differ only in order are equal.

``MatcherIndex`` finds which of many matchers accept a message. It files each alternative under the exact values of one
field, or under the presence of one; a message tests only the alternatives filed under its own fields.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, cast

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.wire.formats import UNDECODABLE, decode_each_once
from holdfast.wire.parts import FIELD_BYTES_MAX, FIELDS_MAX, FieldValue

ALTERNATIVES_MAX: Final = 256
VALUES_MAX: Final = 1_024  # values of one field in one list; a longer one is refused
MATCHER_BYTES_MAX: Final = 1 << 18

Test = Callable[[Mapping[str, FieldValue]], bool]


@dataclass(frozen=True, slots=True)
class Present:
    """The field is there, with any value."""


@dataclass(frozen=True, slots=True)
class Absent:
    """The field is not there."""


@dataclass(frozen=True, slots=True)
class Equals:
    """The field has this value, of this type: Python holds True equal to 1, a matcher does not."""

    value: FieldValue
    kind: type


@dataclass(frozen=True, slots=True)
class Prefix:
    """The field is a text that starts so."""

    text: str


@dataclass(frozen=True, slots=True)
class Range:
    """The field is a number, or a text, between ends of its own type; ``None`` is an open end."""

    low: str | int | None
    low_included: bool
    high: str | int | None
    high_included: bool


Condition = Present | Absent | Equals | Prefix | Range
"""One condition on one field. Several on one field are alternatives."""

Alternative = tuple[tuple[str, tuple[Condition, ...]], ...]
"""Fields in order of name, each with its conditions in a fixed order: all fields must hold."""


class Matcher:
    """A matcher in normal form. ``matches(fields)`` says whether a message's fields match; it is compiled once.

    Equal matchers accept the same messages (not the reverse, for ranges that overlap). *Cost* of ``matches``: one
    look-up per field named, whatever the length of its list of exact values.

    >>> matcher = Matcher.of({"kind": ["a", "b"], "test": False})
    >>> matcher.matches({"kind": "b"}), matcher.matches({"kind": "b", "test": "yes"})
    (True, False)
    >>> matcher == Matcher.parse(b'[{"test": false, "kind": ["b", "a", "a"]}]')
    True
    """

    __slots__ = ("alternatives", "matches")

    def __init__(self, alternatives: tuple[Alternative, ...]) -> None:
        # One alternative that accepts everything makes the others idle.
        unique = ((),) if () in alternatives else tuple(sorted(set(alternatives), key=repr))
        self.alternatives = unique
        tests = [_every([_field_test(name, conditions) for name, conditions in each]) for each in unique]
        self.matches: Test = tests[0] if len(tests) == 1 else lambda fields: any(test(fields) for test in tests)

    @classmethod
    def parse(cls, data: bytes) -> Matcher:
        """A matcher from its JSON; no bytes at all mean everything. Raises ``InvalidRequest``."""
        if not data:
            return EVERYTHING
        if len(data) > MATCHER_BYTES_MAX:
            raise InvalidRequest("the matcher is too long", bytes=len(data), max=MATCHER_BYTES_MAX)
        try:
            document = decode_each_once(data, object)
        except UNDECODABLE as error:
            raise InvalidRequest("the matcher cannot be read as JSON", reason=str(error)) from None
        return cls.of(document)

    @classmethod
    def of(cls, document: object) -> Matcher:
        """A matcher from parsed JSON. Raises ``InvalidRequest`` with the path of the wrong value."""
        if document is None:
            return EVERYTHING
        if isinstance(document, dict):
            return cls((_alternative(cast("dict[object, object]", document), ""),))
        if not isinstance(document, list):
            raise _wrong("a matcher is an object, or a list of objects", "", document)
        items = cast("list[object]", document)
        if not 0 < len(items) <= ALTERNATIVES_MAX:
            raise InvalidRequest("a list of objects has at least one", count=len(items), max=ALTERNATIVES_MAX)
        alternatives: list[Alternative] = []
        for position, item in enumerate(items):
            if not isinstance(item, dict):
                raise _wrong("a matcher is an object, or a list of objects", f"[{position}]", item)
            alternatives.append(_alternative(cast("dict[object, object]", item), f"[{position}]."))
        return cls(tuple(alternatives))

    @property
    def everything(self) -> bool:
        """Whether every message matches."""
        return self.alternatives == ((),)

    def document(self) -> object:
        """Its JSON in normal form; ``Matcher.of`` of it is equal."""
        objects = [
            {name: _one_or_list([_condition_document(each) for each in conditions]) for name, conditions in alternative}
            for alternative in self.alternatives
        ]
        return _one_or_list(objects)

    def json(self) -> bytes:
        """The bytes of its normal form: alike for equal matchers."""
        return msgspec.json.encode(self.document())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Matcher) and other.alternatives == self.alternatives

    def __hash__(self) -> int:
        return hash(self.alternatives)

    def __repr__(self) -> str:
        return f"Matcher.of({self.document()!r})"


def _wrong(rule: str, path: str, value: object) -> InvalidRequest:
    return InvalidRequest(rule, path=path or "matcher", given=repr(value)[:80])


def _alternative(document: dict[object, object], path: str) -> Alternative:
    if len(document) > FIELDS_MAX:
        raise InvalidRequest("a matcher names too many fields", path=path, fields=len(document), max=FIELDS_MAX)
    fields: list[tuple[str, tuple[Condition, ...]]] = []
    for name, value in document.items():
        if not isinstance(name, str) or not 0 < len(name.encode()) <= FIELD_BYTES_MAX:
            raise _wrong(f"a field's name is a text of 1 to {FIELD_BYTES_MAX} bytes", path, name)
        fields.append((name, _conditions(value, path + name)))
    return tuple(sorted(fields, key=lambda field: field[0]))


def _conditions(value: object, path: str) -> tuple[Condition, ...]:
    if not isinstance(value, list):
        return (_condition(value, path),)
    values = cast("list[object]", value)
    if not 0 < len(values) <= VALUES_MAX:
        raise InvalidRequest("a list of values has at least one", path=path, count=len(values), max=VALUES_MAX)
    conditions = {_condition(item, f"{path}[{position}]") for position, item in enumerate(values)}
    if Present() in conditions:
        # Present covers every condition but its opposite.
        conditions = {condition for condition in conditions if isinstance(condition, Present | Absent)}
    return tuple(sorted(conditions, key=repr))


def _condition(value: object, path: str) -> Condition:
    if value is True:
        return Present()
    if value is False:
        return Absent()
    if isinstance(value, dict):
        return _operators(cast("dict[object, object]", value), path)
    return _equals(value, path)


def _equals(value: object, path: str) -> Equals:
    equal_to = _field_value(value, path)
    return Equals(equal_to, type(equal_to))


def _field_value(value: object, path: str) -> FieldValue:
    if isinstance(value, str):
        if len(value.encode()) > FIELD_BYTES_MAX:
            raise InvalidRequest("a field's text is too long", path=path, bytes=len(value), max=FIELD_BYTES_MAX)
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return value
    raise _wrong("a field's value is a text, a whole number of 64 bits, true or false", path, value)


def _operators(document: dict[object, object], path: str) -> Condition:
    names = set(document)
    if names == {"equals"}:
        return _equals(document["equals"], f"{path}.equals")
    if names == {"prefix"}:
        text = _field_value(document["prefix"], f"{path}.prefix")
        if not isinstance(text, str):
            raise _wrong("a prefix is a text", f"{path}.prefix", text)
        return Prefix(text)
    lows, highs = names & {">", ">="}, names & {"<", "<="}
    if not names or len(lows) > 1 or len(highs) > 1 or names - lows - highs:
        raise _wrong("an operator is equals, prefix, or a range of > or >= and < or <=", path, document)
    low = _end(document, lows, path)
    high = _end(document, highs, path)
    if low is not None and high is not None:
        if isinstance(low, str) != isinstance(high, str):
            raise _wrong("both ends of a range have one type", path, document)
        both = ">=" in lows and "<=" in highs
        # One type was just checked; the types of texts and numbers do not compare.
        if (str(low) > str(high)) if isinstance(low, str) else (int(low) > int(high)):
            raise _wrong("a range's low end is not above its high end", path, document)
        if low == high and not both:
            raise _wrong("this range has no value in it", path, document)
    return Range(low, ">=" in lows, high, "<=" in highs)


def _end(document: dict[object, object], names: set[object], path: str) -> str | int | None:
    for name in names:
        value = _field_value(document[name], f"{path}.{name}")
        if isinstance(value, bool):
            raise _wrong("an end of a range is a text or a number", f"{path}.{name}", value)
        return value
    return None


def _one_or_list(documents: Sequence[object]) -> object:
    return documents[0] if len(documents) == 1 else documents


def _condition_document(condition: Condition) -> object:
    match condition:
        case Present():
            return True
        case Absent():
            return False
        case Equals(value):
            return {"equals": value} if isinstance(value, bool) else value
        case Prefix(text):
            return {"prefix": text}
        case Range(low, low_included, high, high_included):
            low_end = {} if low is None else {">=" if low_included else ">": low}
            return low_end | ({} if high is None else {"<=" if high_included else "<": high})


def _every(tests: list[Test]) -> Test:
    if not tests:
        return lambda _fields: True
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:
        first, second = tests
        return lambda fields: first(fields) and second(fields)
    return lambda fields: all(test(fields) for test in tests)


def _field_test(name: str, conditions: tuple[Condition, ...]) -> Test:
    values = [condition.value for condition in conditions if isinstance(condition, Equals)]
    tests = [_other_test(name, condition) for condition in conditions if not isinstance(condition, Equals)]
    if values:
        tests.insert(0, _exact_test(name, values))
    if len(tests) == 1:
        return tests[0]
    return lambda fields: any(test(fields) for test in tests)


def _exact_test(name: str, values: list[FieldValue]) -> Test:
    if all(isinstance(value, str) for value in values):
        # A text equals nothing but a text, so no type needs a look; this is nearly every matcher there is.
        if len(values) == 1:
            only = values[0]
            return lambda fields: fields.get(name) == only
        texts = frozenset(values)
        return lambda fields: fields.get(name) in texts
    typed = frozenset((type(value), value) for value in values)

    def test(fields: Mapping[str, FieldValue]) -> bool:
        value = fields.get(name)
        return (type(value), value) in typed

    return test


def _other_test(name: str, condition: Present | Absent | Prefix | Range) -> Test:
    match condition:
        case Present():
            return lambda fields: name in fields
        case Absent():
            return lambda fields: name not in fields
        case Prefix(text):
            return lambda fields: isinstance(value := fields.get(name), str) and value.startswith(text)
        case Range():
            return _range_test(name, condition)


def _range_test(name: str, wanted: Range) -> Test:
    kind = type(wanted.low if wanted.low is not None else wanted.high)
    low, high, low_included, high_included = wanted.low, wanted.high, wanted.low_included, wanted.high_included

    def test(fields: Mapping[str, FieldValue]) -> bool:
        value = fields.get(name)
        if type(value) is not kind:
            return False
        # Both ends and the value have one type, by _operators and by the line above.
        if low is not None and not (value > low or (low_included and value == low)):  # type: ignore[operator]
            return False
        return high is None or value < high or (high_included and value == high)  # type: ignore[operator]

    return test


EVERYTHING: Final = Matcher(((),))  # matches every message


Name = TypeVar("Name", bound=Hashable)

_Exact = tuple[str, type, FieldValue]
_Key = _Exact | str | None
"""Of a bucket: an exact value of a field, the name of a field that is there, or None for what is always tested."""


@dataclass(slots=True)
class _Filed(Generic[Name]):
    """One alternative of one matcher, and the buckets that it is in."""

    name: Name
    order: int
    test: Test
    keys: list[_Key]


class MatcherIndex(Generic[Name]):
    """Matchers by name, asked all at once.

    *Cost*: ``matching`` is O(fields of the message + alternatives filed under them); with exact fields of many values
    the second term is about the number of matches. ``add`` and ``remove`` are O(exact values of the matcher).

    >>> index = MatcherIndex[str]()
    >>> index.add("a", Matcher.of({"kind": "a"}), 1)
    >>> index.add("all", Matcher.of({}), 2)
    >>> index.matching({"kind": "b"}), index.matching({"kind": "a"})
    (['all'], ['a', 'all'])
    """

    def __init__(self) -> None:
        self._filed: dict[Name, list[_Filed[Name]]] = {}
        self._exact: dict[_Key, dict[int, _Filed[Name]]] = {}
        self._other: dict[_Key, dict[int, _Filed[Name]]] = {}  # apart, because mostly there are none
        self._exact_names: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._filed)

    def add(self, name: Name, matcher: Matcher, place: int) -> None:
        """File ``matcher`` under a new ``name``; names found are in the order of their places, which differ."""
        assert name not in self._filed, f"a name is filed once: {name!r}"
        filed: list[_Filed[Name]] = []
        for order, alternative in enumerate(matcher.alternatives, place * ALTERNATIVES_MAX):
            one = matcher if len(matcher.alternatives) == 1 else Matcher((alternative,))
            item = _Filed(name, order, one.matches, self._keys_for(alternative))
            for key in item.keys:
                self._buckets_for(key).setdefault(key, {})[order] = item
                if isinstance(key, tuple):
                    self._exact_names[key[0]] = self._exact_names.get(key[0], 0) + 1
            filed.append(item)
        self._filed[name] = filed

    def remove(self, name: Name) -> None:
        """Forget ``name``; nothing happens where it is not filed."""
        for item in self._filed.pop(name, ()):
            for key in item.keys:
                buckets = self._buckets_for(key)
                del buckets[key][item.order]
                if not buckets[key]:
                    del buckets[key]
                if isinstance(key, tuple):
                    self._exact_names[key[0]] -= 1
                    if not self._exact_names[key[0]]:
                        del self._exact_names[key[0]]

    def matching(self, fields: Mapping[str, FieldValue]) -> list[Name]:
        """The names whose matchers accept a message with these fields, each once, in the order of their places."""
        matched: dict[int, Name] = {}
        exact_names, exact, other = self._exact_names, self._exact, self._other
        for name, value in fields.items():
            if name in exact_names and (bucket := exact.get((name, type(value), value))):
                _take(bucket, fields, matched)
            if other and (bucket := other.get(name)):
                _take(bucket, fields, matched)
        if other and (bucket := other.get(None)):
            _take(bucket, fields, matched)
        if len(matched) < 2:
            return list(matched.values())
        # One name may have matched by two of its alternatives; they have neighbouring orders.
        return list(dict.fromkeys(matched[order] for order in sorted(matched)))

    def check(self) -> None:
        """Every filed alternative is in its buckets, and the buckets hold nothing else. O(n), for tests."""
        filed = {item.order: item for items in self._filed.values() for item in items}
        held = {order for buckets in (self._exact, self._other) for bucket in buckets.values() for order in bucket}
        assert held == set(filed), "the buckets hold exactly what is filed"
        assert all(item.order in self._buckets_for(key)[key] for item in filed.values() for key in item.keys), "its own"

    def _buckets_for(self, key: _Key) -> dict[_Key, dict[int, _Filed[Name]]]:
        return self._exact if isinstance(key, tuple) else self._other

    def _keys_for(self, alternative: Alternative) -> list[_Key]:
        """The exact values of the field under whose values the fewest others are filed so far; else a field that must
        be there, or none."""
        best: list[_Exact] = []
        best_load = -1
        for name, conditions in alternative:
            values = [condition.value for condition in conditions if isinstance(condition, Equals)]
            if len(values) < len(conditions):
                continue
            keys = [(name, type(value), value) for value in values]
            load = sum(len(self._exact.get(key, ())) for key in keys)
            if best_load < 0 or (load, len(keys)) < (best_load, len(best)):
                best, best_load = keys, load
        return [*best] or [next((name for name, conditions in alternative if Absent() not in conditions), None)]


def _take(bucket: dict[int, _Filed[Name]], fields: Mapping[str, FieldValue], matched: dict[int, Name]) -> None:
    for order, item in bucket.items():
        if item.test(fields):
            matched[order] = item.name
