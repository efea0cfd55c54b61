"""Messages: browsing a store, a durable, its parked messages or the dead letters; one message and its fate."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.client.protocol.messages import query_of
from holdfast.client.protocol.stores.messages import durable_path, store_path
from holdfast.console import units
from holdfast.console.call import Action, ActionDone, Form, PageCall, Screen, link
from holdfast.console.html import Content, element, join
from holdfast.console.pages.stores import content_of, count_column, parked_column
from holdfast.console.pages.stores_acts import PUBLISH, REDELIVER
from holdfast.console.parts import (
    Column,
    action,
    anchor,
    attempt,
    badge,
    button,
    code,
    commands,
    facts,
    field,
    hidden,
    moment,
    name_shown,
    onward,
    search,
    section,
    table,
    whole_name,
)
from holdfast.console.reading.service import Document, count_of, documents, name_of
from holdfast.console.values import form_choice, form_named, value_of, value_start
from holdfast.errors import InvalidRequest, NotFound
from holdfast.wire.formats import UNDECODABLE, decode_each_once
from holdfast.wire.parts import Delivery
from holdfast.wire.stores import Page as MessagePage

ROWS: Final = 50
EPOCH_MS_MIN: Final = 1_000_000_000_000
"""A larger number of milliseconds is a time, a smaller one a span."""


async def _messages(call: PageCall) -> Content:
    store, durable = call.text("store"), call.text("durable")
    if not store:
        return section("Choose a store", await attempt(_choose_store(call)))
    if not durable:
        return section(f"Durables of {store}", await attempt(_choose_durable(call, store)))
    place = {"store": store, "durable": durable}
    title = "Messages, newest first" if _follows(call) else "Messages, oldest first"
    path = [
        anchor("Stores", "/messages"),
        anchor(store, link("/messages", store=store)),
        anchor(durable, link("/durable", **place)),
    ]
    follow = button("Follow the newest", link("/messages", **place, newest=1))
    acts = [
        button("Oldest", link("/messages", **place)) if _follows(call) else follow,
        action(call, PUBLISH, "Publish a test message", store=store),
        action(call, REDELIVER, "Deliver again, or send dead letters back", **place),
    ]
    return [
        element("p", join(path, " / "), ". Looking consumes nothing."),
        section(
            "Parked messages" if _is_parked(call) else title,
            _form(call, store, durable),
            await attempt(_page(call, store, durable)),
            actions=acts,
        ),
        commands(
            call, f"{durable_path(store, durable)}/browse?max={ROWS}", f"holdfast stores browse {store}/{durable}"
        ),
    ]


def _is_parked(call: PageCall) -> bool:
    return call.text("parked") == "1"


def _follows(call: PageCall) -> bool:
    """Whether the page shows the newest messages, and goes on with new ones."""
    return call.text("newest") == "1" and not _is_parked(call)


async def _choose_store(call: PageCall) -> Content:
    rows = await call.service.collection("/v1/stores", "stores")

    def place(row: Document) -> str:
        return link("/messages", store=name_of(row))

    columns: list[Column[Document]] = [
        Column("Store", lambda row: anchor(name_of(row), place(row)), name_of),
        count_column("Messages", "messages", place),
    ]
    empty = "There is no store that this token may browse."
    return table(call, "stores", columns, rows, caption="Stores", empty=empty, text=name_of)


async def _choose_durable(call: PageCall, store: str) -> Content:
    rows = await call.service.collection(f"{store_path(store)}/durables", "durables")

    def place(row: Document) -> str:
        return content_of(store, row)

    columns: list[Column[Document]] = [
        Column("Durable", lambda row: anchor(name_of(row), place(row)), name_of),
        Column("Type", lambda row: str(row.get("type"))),
        count_column("Messages", "messages", place),
        parked_column(store),
    ]
    empty = "This store has no durable, so it keeps no message."
    return table(call, "durables", columns, rows, caption="Durables", empty=empty, text=name_of)


def _form(call: PageCall, store: str, durable: str) -> Content:
    box = element("input", type="checkbox", name="parked", value="1", checked=_is_parked(call))
    return search(
        "/messages",
        "Browse messages",
        hidden({"store": store, "durable": durable}),
        field(call, "after", "After number", is_number=True),
        field(call, "match", "Fields match (JSON)", '{"kind": "a"}', grow=True),
        element("label", element("span", box, " only parked")),
    )


async def _page(call: PageCall, store: str, durable: str) -> Content:
    match, after = call.text("match"), call.number("after")
    if match:
        try:
            decode_each_once(match.encode(), object)
        except UNDECODABLE as error:
            raise InvalidRequest(f"the match is JSON: {error}") from None
    if _follows(call):
        after = max(0, int(count_of(await call.service.read(store_path(store)), "next_seq")) - 1 - ROWS)
    query = query_of(after=after, max=ROWS, match=match or None, parked="true" if _is_parked(call) else None)
    page = msgspec.convert(await call.service.read(f"{durable_path(store, durable)}/browse{query}"), MessagePage)
    stopped = frozenset(page.parked)

    def state(message: Delivery) -> Content:
        if message.seq in stopped:
            return badge("parked", "warn")
        return badge(f"delivered {message.delivery_count} times") if message.delivery_count else badge("new")

    def fields(message: Delivery) -> Content:
        return element("code", msgspec.json.encode(message.fields).decode()) if message.fields else "–"

    columns: list[Column[Delivery]] = [
        Column("Number", lambda message: anchor(str(message.seq), _place(store, durable, message.seq)), is_number=True),
        Column("Published", lambda message: moment(message.published_ms)),
        Column("Key", lambda message: name_shown(message.key) if message.key is not None else "–"),
        Column("Fields", fields),
        Column("Body", lambda message: value_start(message.body)),
        Column("State", state),
    ]
    rows = page.messages[::-1] if _follows(call) else page.messages
    listed = table(
        call, "messages", columns, rows, caption="Messages", empty="No message here.", is_live=not call.text("after")
    )
    if page.next_after is None or _follows(call):
        return listed
    return [listed, onward("Next →", call.here(after=page.next_after), "More messages")]


def _origin(message: Delivery) -> dict[str, Content]:
    """Where a dead letter came from."""
    origin = message.origin
    if origin is None:
        return {}
    came = f"{origin.durable} of {origin.store}, message {origin.seq}: {origin.cause} after {origin.delivery_count}"
    return {"Dead letter of": anchor(came, _place(origin.store, origin.durable, origin.seq))}


def _place(store: str, durable: str, seq: int) -> str:
    return link("/message", store=store, durable=durable, seq=seq)


def _names(call: PageCall) -> tuple[str, str, int]:
    """The store, the durable and the number of the message that a page is about. Raises: InvalidRequest."""
    return call.required("store"), call.required("durable"), call.number("seq")


async def _message(call: PageCall) -> Content:
    store, durable, seq = _names(call)
    place: dict[str, str | int] = {"store": store, "durable": durable, "seq": seq}
    acts = [
        action(call, REDELIVER, "Deliver again, or send back", **place),
        action(call, DELETE, "Delete this message", "danger", **place),
    ]
    return [
        section(f"Message {seq}", await attempt(_body(call)), actions=acts),
        section("Its fate in every durable", await attempt(_fates(call, store, seq))),
        commands(call, f"{store_path(store)}/messages/{seq}/explain", f"holdfast stores explain {store} {seq}"),
    ]


async def _named(call: PageCall) -> Delivery:
    """The message that a page is about. Raises: NotFound."""
    store, durable, seq = _names(call)
    query = query_of(after=seq - 1, max=1)
    page = msgspec.convert(await call.service.read(f"{durable_path(store, durable)}/browse{query}"), MessagePage)
    if not page.messages or page.messages[0].seq != seq:
        raise NotFound("the durable does not keep this message any more", store=store, durable=durable, number=seq)
    return page.messages[0]


async def _body(call: PageCall) -> Content:
    store, durable, seq = _names(call)
    message = await _named(call)
    about: dict[str, Content] = {
        "Store": anchor(store, link("/store", store=store)),
        "Durable": anchor(durable, link("/durable", store=store, durable=durable)),
        "Published": moment(message.published_ms),
        "Key": whole_name(message.key) if message.key is not None else "none",
        "Deliveries": anchor(units.count(message.delivery_count), "#h-its-fate-in-every-durable"),
        **_origin(message),
        **{f"Field {name}": code(str(value)) for name, value in message.fields.items()},
    }
    choose = form_choice(call, store=store, durable=durable, seq=seq)
    return [facts(about), element("h3", "Body"), choose, value_of(message.body, form_named(call.text("form")))]


def fact_of(name: str, value: object) -> Content:
    """A fact of a message's fate as people read it: a time, a number, a word."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_ms") and isinstance(value, int) and value > EPOCH_MS_MIN:
        return moment(value)
    if value is None or isinstance(value, str | int | float):
        return "–" if value is None else str(value)
    return element("code", msgspec.json.encode(value).decode())


async def _fates(call: PageCall, store: str, seq: int) -> Content:
    explained = await call.service.read(f"{store_path(store)}/messages/{seq}/explain")

    def rest(row: Document) -> Content:
        others = {key: value for key, value in row.items() if key not in ("durable", "name", "fate")}
        facts_of = [[f"{name.replace('_', ' ')}: ", fact_of(name, value)] for name, value in others.items()]
        return join(facts_of, ", ") if facts_of else "–"

    def durable(row: Document) -> Content:
        name = str(row.get("durable") or row.get("name"))
        return anchor(name, link("/durable", store=store, durable=name))

    columns: list[Column[Document]] = [
        Column("Durable", durable),
        Column("Fate", lambda row: badge(str(row.get("fate")).replace("_", " "))),
        Column("Facts", rest),
    ]
    return table(call, "fates", columns, documents(explained.get("durables")), caption="Fates", empty="No durable.")


async def _delete_form(call: PageCall) -> Form:
    store, durable, seq = _names(call)
    message = await _named(call)
    description = await call.service.read(durable_path(store, durable))
    what = f"Takes message {seq} ({units.size(len(message.body))}) out of the durable "
    return Form(
        effect=[
            element("p", what, element("strong", f"{store}/{durable}"), "."),
            element("p", "Other durables keep it. This cannot be undone."),
        ],
        button="Delete this message",
        back=_place(store, durable, seq),
        typed=f"message {seq}",
        seen=str(description.get("token", "")),
    )


async def _delete(call: PageCall) -> ActionDone | Form:
    store, durable, seq = _names(call)
    form = await _delete_form(call)
    if not form.is_seen_in(call.form):
        return form
    await call.service.change("DELETE", f"{durable_path(store, durable)}/messages/{seq}{query_of(token=form.seen)}")
    return ActionDone(f"Message {seq} is deleted.", link("/messages", store=store, durable=durable))


DELETE: Final = Action("/message/delete", "Delete a message", "Messages", _delete_form, _delete, "write")
PAGES: Final = (
    Screen("/messages", "Messages", "Messages", _messages),
    Screen("/message", lambda call: f"Message {call.text('seq')} of {call.text('store')}", "Messages", _message),
)
ACTIONS: Final = (DELETE,)
