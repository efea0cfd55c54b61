"""Pages of a collection make each document at most twice, whatever the filter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.errors import InvalidRequest
from holdfast.server.stores.routes.parts import collection, filtered

COUNT = 400


class Collection:
    """Durables, of which one in ``step`` is a map; counts the documents that are made of them."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.made = 0

    def document(self, name: str) -> dict[str, object]:
        self.made += 1
        return {"name": name, "type": "shared" if int(name[1:]) % self.step else "map"}

    def page(self, query: list[tuple[str, str]], after: str | None, page_max: int) -> dict[str, Any]:
        given = [*query, ("max", str(page_max)), *([("after", after)] if after else [])]
        call = SimpleNamespace(query=given, text=lambda _: after, number=lambda *_, **__: page_max)
        answering = SimpleNamespace(call=call, answer=lambda answered: answered)
        names = [f"d{number:05d}" for number in range(COUNT)]
        return cast("dict[str, Any]", collection(cast(Any, answering), "durables", names, self.document))

    def all(self, query: list[tuple[str, str]], page_max: int) -> list[str]:
        names: list[str] = []
        after: str | None = None
        while True:
            page = self.page(query, after, page_max)
            names += [each["name"] for each in page["durables"]]
            if not page["more"]:
                return names
            after = names[-1]


@pytest.mark.parametrize("step", [1, 2, 7, 90, 300])
@pytest.mark.parametrize("query", [[("type", "map")], []])
def test_reading_all_pages_makes_each_document_at_most_twice(step: int, query: list[tuple[str, str]]) -> None:
    collection = Collection(step)
    wanted = [f"d{number:05d}" for number in range(COUNT) if not query or number % step == 0]
    assert collection.all(query, 10) == wanted
    assert collection.made <= 2 * COUNT


def test_an_attribute_that_no_item_has_is_refused_and_one_that_the_rest_lacks_is_not() -> None:
    items = [{"name": "a", "key_field": "k"}, {"name": "b"}]
    assert filtered(items, [("key_field", "x")]) == []
    with pytest.raises(InvalidRequest, match="'kye_field'"):
        filtered(items, [("name", "a"), ("kye_field", "k")])
    assert filtered(items[1:], [("key_field", "k")], is_rest=True) == []
    assert filtered(items, [("key_field", "k")], 1) == items[:1]
