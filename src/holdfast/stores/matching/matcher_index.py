"""Which of many matchers accept a message, without asking each.

Owns: the index over the exact fields of matchers. Does not own: what a matcher says (``matcher``).

Each alternative of a matcher is filed under one of its fields: under the exact values that it asks for where it has
some, else under the field's mere presence (a prefix and a range need it, too). A message looks up its own fields only,
and each alternative found there is then tested whole. Alternatives that need no field at all (only absence, or
everything) are tested for every message.

Failure model: pure. Which alternatives are filed where depends on the order of ``add``, but what is found does not.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from holdfast.stores.matching.matcher import Absent, Alternative, Equals, Matcher, Test
from holdfast.stores.values.messages import FieldValue

__all__ = ["MatcherIndex"]

Name = TypeVar("Name", bound=Hashable)

_Exact = tuple[str, type, FieldValue]


@dataclass(slots=True)
class _Filed(Generic[Name]):
    """One alternative of one matcher, and the buckets that it is in."""

    name: Name
    order: int
    test: Test
    buckets: list[tuple[_Exact | str | None, dict[int, _Filed[Name]]]] = field(default_factory=list)


class MatcherIndex(Generic[Name]):
    """Matchers by name, asked all at once.

    *Cost*: ``matching`` is O(fields of the message + alternatives filed under them); with exact fields of many values
    the second term is about the number of matches. ``add`` and ``remove`` are O(exact values of the matcher).

    >>> index = MatcherIndex[str]()
    >>> index.add("a", Matcher.of({"kind": "a"}))
    >>> index.add("all", Matcher.of({}))
    >>> index.matching({"kind": "b"}), index.matching({"kind": "a"})
    (['all'], ['a', 'all'])
    """

    def __init__(self) -> None:
        self._filed: dict[Name, list[_Filed[Name]]] = {}
        self._exact: dict[_Exact, dict[int, _Filed[Name]]] = {}
        self._present: dict[str, dict[int, _Filed[Name]]] = {}
        self._always: dict[int, _Filed[Name]] = {}
        self._exact_names: dict[str, int] = {}
        self._next_order = 0

    def __len__(self) -> int:
        return len(self._filed)

    def __contains__(self, name: Name) -> bool:
        return name in self._filed

    def add(self, name: Name, matcher: Matcher) -> None:
        """File ``matcher`` under ``name``, which is new; names found are in the order in which they were added."""
        assert name not in self._filed, f"a name is filed once: {name!r}"
        filed: list[_Filed[Name]] = []
        for alternative in matcher.alternatives:
            item = _Filed(name, self._next_order, Matcher((alternative,)).matches)
            self._next_order += 1
            self._file(item, alternative)
            filed.append(item)
        self._filed[name] = filed

    def remove(self, name: Name) -> None:
        """Forget ``name``; nothing happens where it is not filed."""
        for item in self._filed.pop(name, ()):
            for key, bucket in item.buckets:
                del bucket[item.order]
                if isinstance(key, tuple):
                    self._exact_names[key[0]] -= 1
                    if not bucket:
                        del self._exact[key]
                    if not self._exact_names[key[0]]:
                        del self._exact_names[key[0]]
                elif key is not None and not bucket:
                    del self._present[key]

    def matching(self, fields: Mapping[str, FieldValue]) -> list[Name]:
        """The names whose matchers accept a message with these fields, each once, in the order of ``add``."""
        found: dict[int, Name] = {}
        exact_names, exact, present = self._exact_names, self._exact, self._present
        for name, value in fields.items():
            if name in exact_names and (bucket := exact.get((name, type(value), value))):
                _take(bucket, fields, found)
            if present and (bucket := present.get(name)):
                _take(bucket, fields, found)
        if self._always:
            _take(self._always, fields, found)
        if len(found) < 2:
            return list(found.values())
        # One name may have matched by two of its alternatives; they have neighbouring orders.
        return list(dict.fromkeys(found[order] for order in sorted(found)))

    def check(self) -> None:
        """Every filed alternative is in its buckets, and the buckets hold nothing else. O(n), for tests."""
        filed = {item.order: item for items in self._filed.values() for item in items}
        buckets = [*self._exact.values(), *self._present.values(), self._always]
        held = {order for bucket in buckets for order in bucket}
        assert held == set(filed), "the buckets hold exactly what is filed"
        assert all(item.order in bucket for item in filed.values() for _, bucket in item.buckets), "each is in its own"

    def _file(self, item: _Filed[Name], alternative: Alternative) -> None:
        keys = self._best_exact(alternative)
        if keys:
            for key in keys:
                self._exact_names[key[0]] = self._exact_names.get(key[0], 0) + 1
                bucket = self._exact.setdefault(key, {})
                bucket[item.order] = item
                item.buckets.append((key, bucket))
            return
        for name, conditions in alternative:
            if not any(isinstance(condition, Absent) for condition in conditions):
                bucket = self._present.setdefault(name, {})
                bucket[item.order] = item
                item.buckets.append((name, bucket))
                return
        self._always[item.order] = item
        item.buckets.append((None, self._always))

    def _best_exact(self, alternative: Alternative) -> list[_Exact]:
        """The exact values of that field under whose values the fewest others are filed so far.

        Ten thousand durables that ask for region and customer are so filed under the customer, whatever comes first.
        """
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
        return best


def _take(bucket: dict[int, _Filed[Name]], fields: Mapping[str, FieldValue], found: dict[int, Name]) -> None:
    for order, item in bucket.items():
        if item.test(fields):
            found[order] = item.name
