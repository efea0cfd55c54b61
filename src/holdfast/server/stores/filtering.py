"""``?attribute=value`` on collections.

Owns: which items of a collection a query lets through. Does not own: the items.

Failure model: pure. An attribute that no item has is refused: a filter that is ignored looks like one that matched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.errors import InvalidRequest

__all__ = ["filtered"]

Item = Mapping[str, object]


def filtered(items: Sequence[Item], wanted: Sequence[tuple[str, str]]) -> list[Item]:
    """The items whose attributes have these values, all of them; an attribute given twice may have either value.

    An attribute inside another is named with a dot. Values are compared as JSON writes them, text without its quotes.

    >>> filtered([{"name": "a", "counts": {"messages": 1}}, {"name": "b", "counts": {"messages": 0}}],
    ...          [("counts.messages", "0")])
    [{'name': 'b', 'counts': {'messages': 0}}]
    """
    values: dict[str, set[str]] = {}
    for name, value in wanted:
        values.setdefault(name, set()).add(value)
    for name in values:
        if items and all(_text(item, name) is None for item in items):
            raise InvalidRequest(f"there is no attribute {name[:64]!r} to filter by")
    return [item for item in items if all(_text(item, name) in accepted for name, accepted in values.items())]


def _text(item: Item, name: str) -> str | None:
    value: object = item
    for part in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None
