"""Collections of documents: those with the given attributes, all or a page of them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from holdfast.errors import InvalidRequest
from holdfast.server.http.routes import Response
from holdfast.server.stores.routes.store_call import StoreCall, parameter

PAGE_MAX: Final = 1_000
PAGING: Final = (
    parameter("after", "string", "A page by name: only names above this one"),
    parameter("max", "integer", "A page by name: how many at most; `more` says whether it goes on", minimum=1,
              maximum=PAGE_MAX),
)  # fmt: skip

Item = Mapping[str, object]


def filtered(
    items: Iterable[Item], wanted: Sequence[tuple[str, str]], items_max: int | None = None, *, is_rest: bool = False
) -> list[Item]:
    """The first ``items_max`` items whose attributes have these values; one that is given twice may have either value.

    An attribute inside another is named with a dot. Values are compared as JSON writes them, text without its quotes.
    ``items`` is read as far as needed. Raises: InvalidRequest where no item has an attribute, unless ``is_rest``: they
    follow other items.

    >>> filtered([{"name": "a", "counts": {"messages": 1}}, {"name": "b", "counts": {"messages": 0}}],
    ...          [("counts.messages", "0")])
    [{'name': 'b', 'counts': {'messages': 0}}]
    """
    values: dict[str, set[str]] = {}
    for name, value in wanted:
        values.setdefault(name, set()).add(value)
    found: list[Item] = []
    unknown: list[str] = []
    for number, item in enumerate(items):
        unknown = [name for name in (unknown if number else values) if _text(item, name) is None]
        if all(_text(item, name) in accepted for name, accepted in values.items()):
            found.append(item)
            if len(found) == items_max:
                break
    if unknown and not is_rest:
        raise InvalidRequest(f"there is no attribute {unknown[0][:64]!r} to filter by")
    return found


def collection(call: StoreCall, what: str, names: Iterable[str], document: Callable[[str], Item]) -> Response:
    """The documents of these names that the query asks for: all in the given order, or a page of them by name.

    Documents are made until the page is full, so that reading all pages makes each at most twice.
    """
    filters = [(name, value) for name, value in call.call.query if name not in ("after", "max")]
    after, page_max = call.call.text("after"), call.call.number("max", low=1, high=PAGE_MAX)
    if after is None and page_max is None:
        return call.answer({what: filtered((document(name) for name in names), filters)})
    page_max = PAGE_MAX if page_max is None else page_max
    wanted = sorted(name for name in names if after is None or name > after)
    items = filtered((document(name) for name in wanted), filters, page_max + 1, is_rest=after is not None)
    return call.answer({what: items[:page_max], "more": len(items) > page_max})


def _text(item: Item, name: str) -> str | None:
    value: object = item
    for part in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None
