"""What confirms an action that deletes: the typed name, and numbers that are at least those of now."""

from __future__ import annotations

import pytest

from holdfast.console.call import Form, Limit
from holdfast.errors import InvalidRequest

FORM = Form("", "Purge", "/", typed="orders/work", limits=(Limit("message", 1_204), Limit("durable", 3)))


def test_what_was_seen_confirms() -> None:
    assert not FORM.problems_with({"confirm": "orders/work", "at_most_message": "1,204", "at_most_durable": "3"})
    assert not FORM.problems_with({"confirm": "orders/work", "at_most_message": "5000", "at_most_durable": "3"})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"at_most_message": "1203", "at_most_durable": "3"}, "now delete 1,204 messages, and the form allows 1,203"),
        ({"at_most_message": "1204", "at_most_durable": "2"}, "now delete 3 durables, and the form allows 2"),
        ({"at_most_durable": "3"}, "the form allows 0"),
        ({"confirm": "orders", "at_most_message": "1204", "at_most_durable": "3"}, "Type orders/work"),
    ],
)
def test_what_has_grown_or_is_not_typed_does_nothing(fields: dict[str, str], said: str) -> None:
    (problem,) = FORM.problems_with({"confirm": "orders/work", **fields})
    assert problem.startswith("Nothing was done.")
    assert said in problem


def test_a_limit_is_a_number() -> None:
    with pytest.raises(InvalidRequest, match="the limit"):
        FORM.problems_with({"confirm": "orders/work", "at_most_message": "all", "at_most_durable": "3"})
