"""What confirms an action that deletes: the typed name, and numbers that are at least those of now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.commit.format.transaction import Delete, Write
from holdfast.console.call import Action, ActionDone, Form, Input, Limit
from holdfast.console.frame import form_of
from holdfast.console.html import text_of
from holdfast.console.pages.keys import DELETE as DELETE_KEY
from holdfast.console.pages.keys import EDIT
from holdfast.console.pages.maps import REMOVE, UNLOCK
from holdfast.console.pages.maps import SET as SET_KEY
from holdfast.console.pages.messages import DELETE as DELETE_MESSAGE
from holdfast.console.pages.stores_acts import (
    DEFINE_DURABLE,
    DEFINE_STORE,
    DELETE_DURABLE,
    EDIT_DURABLE,
    EDIT_STORE,
    PURGE,
    changed_by,
    cluster_limits,
    durable_limits,
    limit_of,
    losses_of,
    store_limits,
)
from holdfast.console.reading.service import Document
from holdfast.errors import Code, Conflict, InvalidRequest
from holdfast.files.document_process import DocumentReader
from holdfast.wire.log import Found, VersionAnswer
from holdfast.wire.stores import Entry, Lock

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
        documents=DocumentReader(),
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
        documents=DocumentReader(),
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
            documents=DocumentReader(),
            service=service, form={"name": "work", "parameters": "type: shared", **fields}, query=query,
            path=DEFINE_DURABLE.path, text=lambda name: query.get(name, ""), required=query.__getitem__,
        )  # fmt: skip
        return asyncio.run(cast(Any, DEFINE_DURABLE.act(cast(Any, call))))

    asked = define()
    assert isinstance(asked, Form)
    assert "max_delivery: 2" in text_of(asked.effect)
    assert "exists" in text_of(asked.effect)
    assert isinstance(define(confirm="other", seen=asked.seen), Form)
    assert not service.puts
    assert isinstance(define(confirm="work", seen=asked.seen), ActionDone)
    assert service.puts
    with pytest.raises(InvalidRequest, match="the name of a durable"):
        define(name="bad name/é")


class OneKey:
    """A log with one key, which counts its commits."""

    def __init__(self) -> None:
        self.found = Found(b"k", b"old", 7)
        self.written: list[object] = []

    async def version(self) -> VersionAnswer:
        return VersionAnswer(9, "leader", "log")

    async def get(self, *_: object) -> Found:
        return self.found

    async def commit(self, operations: object, *_: object, **__: object) -> SimpleNamespace:
        self.written.append(operations)
        return SimpleNamespace(version=10)


def test_an_edit_is_committed_only_after_both_values_were_shown() -> None:
    log = OneKey()

    def edit(**fields: str) -> Any:
        form = {"key": "k", "value": "new", "form": "text", "version": "7", **fields}
        call = SimpleNamespace(service=SimpleNamespace(log=log), form=form, query={"key": "aw"}, path=EDIT.path)
        return asyncio.run(cast(Any, EDIT.act(cast(Any, call))))

    shown = edit()
    assert isinstance(shown, Form)
    assert all(said in text_of(shown.effect) for said in (">old<", ">new<", "unchanged since version 7"))
    assert isinstance(edit(seen=shown.seen, value="another"), Form), "what was not shown is shown first"
    assert "stays as it is" in text_of(edit(value="old").effect)
    assert not log.written
    assert isinstance(edit(seen=shown.seen), ActionDone)
    assert log.written == [[Write(b"k", b"new")]]
    log.found = Found(b"k", b"newer", 8)
    again = edit(seen=shown.seen)
    assert all(said in text_of(again.effect) for said in ("changed since version 7", ">newer<", "since version 8"))
    assert len(log.written) == 1
    assert isinstance(edit(seen=again.seen), ActionDone), "what it has now was shown"


def test_a_key_is_deleted_only_as_the_form_showed_it() -> None:
    log = OneKey()

    def delete(**fields: str) -> Any:
        query = {"key": "aw"}
        call = SimpleNamespace(
            documents=DocumentReader(),
            service=SimpleNamespace(log=log),
            form=fields,
            required=query.__getitem__,
            text=query.__getitem__,
        )
        return asyncio.run(cast(Any, DELETE_KEY.act(cast(Any, call))))

    shown = delete()
    assert "since version 7" in text_of(shown.effect)
    log.found = Found(b"k", b"newer", 8)
    again = delete(seen=shown.seen)
    assert "since version 8" in text_of(again.effect)
    assert not log.written
    assert isinstance(delete(seen=again.seen), ActionDone)
    assert log.written == [[Delete(b"k")]]


def test_a_message_is_deleted_only_of_the_durable_that_the_form_showed() -> None:
    """A durable that was made again has another message with the number."""
    tokens, deleted = ["of this one"], list[str]()
    message = {"seq": 7, "fields": {}, "key": None, "body": "", "published_ms": 1, "delivery_count": 0}

    async def read(target: str) -> Document:
        return {"messages": [{**message, "redelivered": False}]} if "browse" in target else {"token": tokens[-1]}

    async def change(method: str, target: str) -> Document:
        deleted.append(f"{method} {target}")
        return {}

    query = {"store": "a", "durable": "d"}

    def delete(**form: str) -> Any:
        service = SimpleNamespace(read=read, change=change)
        call = SimpleNamespace(service=service, form=form, required=query.__getitem__, number=lambda _: 7)
        return asyncio.run(cast(Any, DELETE_MESSAGE.act(cast(Any, call))))

    shown = delete()
    tokens.append("of-another")
    again = delete(seen=shown.seen)
    assert isinstance(again, Form)
    assert not deleted
    assert isinstance(delete(seen=again.seen), ActionDone)
    assert deleted == ["DELETE /v1/stores/a/durables/d/messages/7?token=of-another"]


def test_a_key_of_a_map_is_removed_only_of_the_map_that_the_form_showed() -> None:
    found, removed = [Entry("k", b"old", 7, "of this one")], list[tuple[str, int]]()

    async def get(_: str) -> Entry:
        return found[-1]

    async def remove(key: str, if_revision: int) -> bool:
        removed.append((key, if_revision))
        return True

    async def read(_: str) -> Document:
        return {}

    stores = SimpleNamespace(map=lambda *_, **__: SimpleNamespace(get=get, remove=remove))
    query = {"store": "a", "map": "m", "key": "k"}

    def act(**form: str) -> Any:
        service = SimpleNamespace(read=read, stores=stores)
        call = SimpleNamespace(service=service, form=form, required=query.__getitem__, text=query.__getitem__)
        return asyncio.run(cast(Any, REMOVE.act(cast(Any, call))))

    shown = act()
    found.append(Entry("k", b"new", 7, "of another"))
    again = act(seen=shown.seen)
    assert isinstance(again, Form)
    assert not removed
    assert isinstance(act(seen=again.seen), ActionDone)
    assert removed == [("k", 7)]


def test_a_lock_is_released_only_from_the_owner_that_the_form_named() -> None:
    lock = {"key": "k", "owner": "desk two", "fence": 4, "until_ms": 32_503_680_000_000}
    released: list[Lock] = []
    tokens = ["of this map"]

    async def read(_: str) -> Document:
        return {"locks": [lock], "token": tokens[-1]}

    async def unlock(held: Lock) -> None:
        released.append(held)

    stores = SimpleNamespace(map=lambda *_, **__: SimpleNamespace(unlock=unlock))
    query = {"store": "a", "map": "m", "key": "k"}

    def release(**form: str) -> Any:
        call = SimpleNamespace(
            documents=DocumentReader(),
            service=SimpleNamespace(read=read, stores=stores), form=form, text=query.__getitem__,
            required=query.__getitem__,
        )  # fmt: skip
        return asyncio.run(cast(Any, UNLOCK.act(cast(Any, call))))

    shown = release()
    assert "desk two" in text_of(shown.effect)
    lock["fence"] = 5
    assert isinstance(release(seen=shown.seen), Form), "it was stolen meanwhile"
    assert not released
    stolen = release()
    tokens.append("of another map")
    assert isinstance(release(seen=stolen.seen), Form), "the map was made again, and the fence is the same"
    assert not released
    another = release()
    assert isinstance(release(seen=another.seen), ActionDone)
    assert released == [Lock("k", "desk two", 5, 0, "of another map")]
    lock["until_ms"] = 1
    with pytest.raises(InvalidRequest, match="free"):
        release(seen=another.seen)


@pytest.mark.parametrize(
    ("of", "changed", "part", "said"),
    [
        (store_limits, {"message_limit": 2}, {"counts": {"messages": 5}}, "5 messages, 3 more than"),
        (store_limits, {"message_limit": 5}, {"counts": {"messages": 5}}, "as many as message_limit allows"),
        (store_limits, {"message_limit": 6}, {"counts": {"messages": 5}}, ""),
        (store_limits, {"message_limit": 0}, {"counts": {"messages": 5}}, ""),
        (store_limits, {"message_limit": "many"}, {"counts": {"messages": 5}}, ""),
        (store_limits, {"bytelimit": "1k"}, {"counts": {"bytes": 2048}}, "2.0 KiB, 1.0 KiB more"),
        (durable_limits, {"message_limit": 2}, {"counts": {"messages": 5}}, "get no error"),
        (durable_limits, {"message_limit": 2}, {"discard": "old", "counts": {"messages": 5}}, ""),
    ],
)  # fmt: skip
def test_a_limit_below_what_is_there_says_what_it_does(
    of: Callable[[Document, Document], list[str]], changed: Document, part: Document, said: str
) -> None:
    found = of(changed, part)
    assert bool(found) == bool(said)
    assert said in " ".join(found)


def test_limits_of_the_cluster_name_the_disk_and_the_revisions_that_are_forgotten() -> None:
    cluster: Document = {"messages": 9, "bytes": 0, "disk": {"used": 60, "capacity": 100}}
    changed: Document = {"message_limit": 3, "max_disk_fraction": 0.5, "max_deployment_history": 2}
    full, disk, history = cluster_limits(changed, cluster, 5)
    assert "9 messages, 6 more than message_limit 3" in full
    assert "60 B in use, and max_disk_fraction allows 50 B" in disk
    assert "The oldest 3 revisions of 5 are forgotten" in history
    assert not cluster_limits({"max_disk_fraction": 0.7, "max_deployment_history": 5}, cluster, 5)


def test_a_limit_below_what_is_there_is_set_only_after_another_look() -> None:
    sent: list[object] = []

    async def read(_: str) -> Document:
        return {"name": "orders", "message_limit": 50, "counts": {"messages": 9}}

    async def change(*given: object) -> Document:
        sent.append(given[-1])
        return {}

    query = {"store": "orders"}

    def edit(parameters: str, **more: str) -> Any:
        call = SimpleNamespace(
            documents=DocumentReader(),
            service=SimpleNamespace(read=read, change=change), form={"parameters": parameters, **more},
            text=lambda name: query.get(name, ""), required=query.__getitem__,
        )  # fmt: skip
        return asyncio.run(cast(Any, EDIT_STORE.act(cast(Any, call))))

    asked = edit("message_limit: 3")
    assert isinstance(asked, Form)
    assert "6 more than message_limit 3" in text_of(asked.effect)
    assert isinstance(edit("message_limit: 2", seen=asked.seen), Form), "another limit than was shown"
    assert not sent
    assert isinstance(edit("message_limit: 3", seen=asked.seen), ActionDone)
    assert isinstance(edit("message_limit: 10"), ActionDone)
    assert sent == [{"message_limit": 3}, {"message_limit": 10}]


def test_a_key_of_a_map_is_set_only_after_both_values_were_shown() -> None:
    entry = Entry("eu", b"old", 4)
    written: list[object] = []

    async def get(_: str) -> Entry:
        return entry

    async def put(*given: object, if_revision: int | None) -> int:
        written.append((*given, if_revision))
        return 5

    async def read(_: str) -> Document:
        return {"locks": [{"key": "", "owner": "desk two", "fence": 4, "until_ms": 32_503_680_000_000}]}

    stores = SimpleNamespace(map=lambda *_, **__: SimpleNamespace(get=get, set=put))
    query = {"store": "a", "map": "m", "key": "eu"}

    def put_value(**fields: str) -> Any:
        form = {"key": "eu", "value": "new", "form": "text", "revision": "4", **fields}
        call = SimpleNamespace(
            documents=DocumentReader(),
            service=SimpleNamespace(stores=stores, read=read), form=form, query=query, text=query.__getitem__,
            required=query.__getitem__, path=SET_KEY.path,
        )  # fmt: skip
        return asyncio.run(cast(Any, SET_KEY.act(cast(Any, call))))

    shown = put_value()
    assert isinstance(shown, Form)
    assert all(said in text_of(shown.effect) for said in (">old<", ">new<", "only at revision 4"))
    assert "desk two" in text_of(shown.effect), "who holds the lock of the map is named"
    assert "changed since revision 3" in text_of(put_value(revision="3").effect)
    assert not written
    assert isinstance(put_value(seen=shown.seen), ActionDone)
    entry = Entry("eu", b"newer", 5)
    again = put_value(seen=shown.seen)
    assert all(said in text_of(again.effect) for said in ("changed since revision 4", ">newer<", "only at revision 5"))
    assert isinstance(put_value(seen=again.seen), ActionDone)
    assert written == [("eu", b"new", 4), ("eu", b"new", 5)]


def defining_of(part: Document, fields: dict[str, str]) -> tuple[Any, list[object]]:
    """A call that defines a store or a durable that exists, and what is sent."""
    sent: list[object] = []

    async def read(_: str) -> Document:
        return part

    async def change(*given: object) -> None:
        sent.append(given)

    query = {"store": "orders"}
    call = SimpleNamespace(
        documents=DocumentReader(),
        service=SimpleNamespace(read=read, change=change), form=fields, query=query, path="/stores/define",
        text=lambda name, default="": query.get(name, default), required=query.__getitem__,
    )  # fmt: skip
    return cast(Any, call), sent


def test_only_what_was_shown_replaces_a_store() -> None:
    part: Document = {"name": "orders", "message_limit": 7, "publisher_mode": "store_confirm_send", "counts": {}}
    fields = {"name": "orders", "parameters": "{message_limit: 7, publisher_mode: store_confirm_send}"}
    call, sent = defining_of(part, fields)
    shown: Any = asyncio.run(cast(Any, DEFINE_STORE.act(call)))
    assert "reset to their defaults" not in text_of(shown.effect)
    fields |= {"confirm": "orders", "seen": shown.seen, "parameters": "{}"}
    again: Any = asyncio.run(cast(Any, DEFINE_STORE.act(call)))
    assert "reset to their defaults" in text_of(again.effect)
    assert not sent
    fields["seen"] = again.seen
    assert isinstance(asyncio.run(cast(Any, DEFINE_STORE.act(call))), ActionDone)
    assert sent


def test_a_limit_that_is_passed_since_the_look_is_looked_at_again() -> None:
    part: Document = {"name": "orders", "counts": {"messages": 50, "bytes": 9}}
    fields = {"name": "orders", "parameters": "message_limit: 100"}
    call, sent = defining_of(part, fields)
    shown: Any = asyncio.run(cast(Any, DEFINE_STORE.act(call)))
    assert "more than" not in text_of(shown.effect)
    part["counts"] = {"messages": 5_000, "bytes": 9}
    fields |= {"confirm": "orders", "seen": shown.seen}
    again: Any = asyncio.run(cast(Any, DEFINE_STORE.act(call)))
    assert "4,900 more than message_limit 100" in text_of(again.effect)
    assert not sent


def test_a_durable_whose_discard_gets_its_default_keeps_no_new_messages() -> None:
    part: Document = {"name": "work", "type": "shared", "discard": "old", "counts": {"messages": 50, "bytes": 9}}
    call, _ = defining_of(part, {"name": "work", "parameters": "{type: shared, message_limit: 10}"})
    shown: Any = asyncio.run(cast(Any, DEFINE_DURABLE.act(call)))
    assert "not kept in this durable" in text_of(shown.effect)
