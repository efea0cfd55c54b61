"""What confirms an action that deletes: the typed name, and numbers that are at least those of now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.console.call import Action, Done, Form, Input, Limit
from holdfast.console.frame import form_of
from holdfast.console.html import text_of
from holdfast.console.pages.stores_acts import (
    DEFINE_DURABLE,
    DELETE_DURABLE,
    EDIT_DURABLE,
    PURGE,
    changed_by,
    limit_of,
    losses_of,
)
from holdfast.console.service import Document
from holdfast.errors import Code, Conflict, InvalidRequest

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


class RefusingService:
    """A service that refuses a change which would delete messages, as ``Losses.refuse`` says it."""

    def __init__(self, message: str, count: str) -> None:
        self.refusal = Conflict(message, code=Code.DELETES_MESSAGES, facts={"messages": 0, "places": 1, "count": count})
        self.deleted = False

    async def read(self, target: str) -> Document:
        del target
        return {"name": "work", "store": "orders", "type": "shared", "retention_time": "1h"}

    async def change(self, method: str, target: str, body: Mapping[str, object] | None = None) -> Document:
        del method, body
        if "delete=true" not in target:
            raise self.refusal
        self.deleted = True
        return {}


def confirm(service: RefusingService, **fields: str) -> Any:
    query = {"store": "orders", "durable": "work"}
    session = SimpleNamespace(csrf="x")
    call = SimpleNamespace(
        service=service, form={"parameters": "retention_time: 1s", **fields}, query=query, session=session,
        path=EDIT_DURABLE.path, text=lambda name: query.get(name, ""), required=query.__getitem__,
    )  # fmt: skip
    done: Any = asyncio.run(cast(Any, EDIT_DURABLE.act(cast(Any, call))))
    return form_of(cast(Any, call), done) if isinstance(done, Form) else done


@pytest.mark.parametrize(
    ("message", "count", "shown"),
    [
        ("the change would delete messages of orders/work (an unknown number)", "at_least", "an unknown number of"),
        ("the change would delete messages of orders/work (about 3)", "about", "an unknown number of messages"),
        ("another text of another version", "", "an unknown number of messages"),
        ("the change would delete messages of a messages=0 places=1 count=exact/b", "at_least", "an unknown number of"),
    ],
)  # fmt: skip
def test_no_number_confirms_what_the_service_did_not_count(message: str, count: str, shown: str) -> None:
    service = RefusingService(message, count)
    assert shown in str(confirm(service))
    for given in ("0", "16384", "9999999999999999"):
        assert shown in str(confirm(service, at_most_message=given, confirm="delete messages"))
    assert 'value="0"' not in str(confirm(service))
    assert not service.deleted
    confirm(service, at_most_message="any number", confirm="delete messages")
    assert service.deleted


def test_a_lower_bound_is_shown_as_one_and_an_exact_number_as_itself() -> None:
    bound = losses_of("the change would delete messages of a/b (at least 7) messages=7 places=1 count=at_least")
    assert (str(bound), bound.is_exact) == ("at least 7 messages", False)
    assert "at least 7 messages" in bound.problem_with("16384")
    exact = losses_of("the change would delete messages of a/b (7) messages=7 places=1 count=exact")
    assert exact == Limit("message", 7)
    assert not exact.problem_with("any number")


def test_a_count_that_is_missing_is_not_none() -> None:
    assert limit_of({"counts": {"messages": 3}}, "messages", "message") == Limit("message", 3)
    assert limit_of({"counts": {}}, "messages", "message") == Limit("message", 0, is_exact=False)


@pytest.mark.parametrize("action", [PURGE, DELETE_DURABLE])
@pytest.mark.parametrize("retention_time", [0, 3_600])
def test_retained_messages_are_named_where_they_go_too(action: Action, retention_time: int) -> None:
    part: Document = {"retention_time": retention_time, "counts": {"messages": 3, "bytes": 9}}

    async def read(_: str) -> Document:
        return part

    query = {"store": "orders", "durable": "work"}
    call = SimpleNamespace(
        service=SimpleNamespace(read=read), required=query.__getitem__, text=query.get, path=action.path, query=query,
        session=SimpleNamespace(csrf="x"), form={},
    )  # fmt: skip
    form: Any = asyncio.run(cast(Any, action.form(cast(Any, call))))
    assert ("retains go, too" in str(form_of(cast(Any, call), form))) == bool(retention_time)
    assert form.limits == (Limit("message", 3),)


def test_a_field_of_several_lines_keeps_a_first_newline() -> None:
    """HTML drops one newline after the tag."""
    call = SimpleNamespace(form={}, query={}, path="/key/edit", session=SimpleNamespace(csrf="x"))
    shown = form_of(cast(Any, call), Form("", "Commit", "/", inputs=(Input("value", "Value", "\nabc", "area"),)))
    assert ">\n\nabc</textarea>" in shown


def test_a_change_does_not_take_back_what_another_changed_meanwhile() -> None:
    shown: Document = {"max_delivery": 3, "prefetch": 5}
    now: Document = {"max_delivery": 9, "prefetch": 5}
    assert changed_by(now, {"max_delivery": 3, "prefetch": 10}, shown) == {"prefetch": 10}
    with pytest.raises(Conflict, match="max_delivery"):
        changed_by(now, {"max_delivery": 4, "prefetch": 5}, shown)
    with pytest.raises(InvalidRequest, match="nothing differs"):
        changed_by(now, shown, shown)


class KnownService:
    """A service with one durable."""

    def __init__(self) -> None:
        self.puts: list[object] = []

    async def read(self, _: str) -> Document:
        return {"name": "work", "type": "shared", "max_delivery": 2, "retention_time": 3600, "counts": {}}

    async def change(self, *given: object) -> Document:
        self.puts.append(given)
        return {}


def test_defining_what_exists_asks_first_and_names_what_would_be_reset() -> None:
    service, query = KnownService(), {"store": "orders"}

    def define(**fields: str) -> object:
        call = SimpleNamespace(
            service=service, form={"name": "work", "parameters": "type: shared", **fields}, query=query,
            path=DEFINE_DURABLE.path, text=lambda name: query.get(name, ""), required=query.__getitem__,
        )  # fmt: skip
        return asyncio.run(cast(Any, DEFINE_DURABLE.act(cast(Any, call))))

    asked = define()
    assert isinstance(asked, Form)
    assert "max_delivery: 2" in text_of(asked.effect)
    assert "exists" in text_of(asked.effect)
    assert isinstance(define(confirm="other"), Form)
    assert not service.puts
    assert isinstance(define(confirm="work"), Done)
    assert service.puts
    with pytest.raises(InvalidRequest, match="the name of a durable"):
        define(name="bad name/é")
