"""Messages: browsing a store, a durable, its parked messages or the dead letters; one message and its fate."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.client.protocol.messages import query_of
from holdfast.client.protocol.stores.messages import durable_path, store_path
from holdfast.console import units
from holdfast.console.call import Action, Call, Done, Form, Page, link
from holdfast.console.html import Content, Html, element, join, text_of
from holdfast.console.pages.stores import content_of, parked_column
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
    moment,
    name_shown,
    section,
    table,
    whole_name,
)
from holdfast.console.reading.documents import count_of
from holdfast.console.reading.service import Document, documents
from holdfast.console.values import form_choice, form_named, value_of
from holdfast.errors import InvalidRequest, NotFound
from holdfast.wire.formats import UNDECODABLE, decode_each_once
from holdfast.wire.parts import Delivery
from holdfast.wire.stores import Page as MessagePage

ROWS: Final = 50
EPOCH_MS_MIN: Final = 1_000_000_000_000
"""A larger number of milliseconds is a time, a smaller one a span."""
BODY_CHARACTERS: Final = 80


async def _messages(call: Call) -> Html:
    store, durable = call.text("store"), call.text("durable")
    if not store:
        return text_of([section("Choose a store", await attempt(_choose_store(call)))])
    if not durable:
        return text_of([section(f"Durables of {store}", await attempt(_choose_durable(call, store)))])
    parked = call.text("parked") == "1"
    title = "Parked messages" if parked else "Messages, newest first" if _follows(call) else "Messages, oldest first"
    return text_of(
        [
            element(
                "p",
                anchor("Stores", "/messages"),
                " / ",
                anchor(store, link("/messages", store=store)),
                " / ",
                anchor(durable, link("/durable", store=store, durable=durable)),
                ". Looking consumes nothing.",
            ),
            section(
                title,
                _form(call, store, durable),
                await attempt(_page(call, store, durable, parked=parked)),
                actions=_acts(call, store, durable),
            ),
            commands(
                call, f"{durable_path(store, durable)}/browse?max={ROWS}", f"holdfast stores browse {store}/{durable}"
            ),
        ]
    )


def _follows(call: Call) -> bool:
    """Whether the page shows the newest messages, and goes on with new ones."""
    return call.text("newest") == "1" and call.text("parked") != "1"


def _acts(call: Call, store: str, durable: str) -> list[Content]:
    follow = button("Follow the newest", link("/messages", store=store, durable=durable, newest=1))
    return [
        button("Oldest", link("/messages", store=store, durable=durable)) if _follows(call) else follow,
        action(call, PUBLISH, "Publish a test message", store=store),
        action(call, REDELIVER, "Deliver again, or send dead letters back", store=store, durable=durable),
    ]


async def _choose_store(call: Call) -> Html:
    rows = await call.service.collection("/v1/stores", "stores")
    return table(
        call,
        "stores",
        [
            Column(
                "Store",
                lambda row: anchor(str(row["name"]), link("/messages", store=str(row["name"]))),
                lambda row: str(row["name"]),
            ),
            Column(
                "Messages",
                lambda row: units.count(count_of(row, "messages")),
                lambda row: count_of(row, "messages"),
                is_number=True,
                href=lambda row: link("/messages", store=str(row["name"])),
            ),
        ],
        rows,
        caption="Stores",
        empty="There is no store that this token may browse.",
        text=lambda row: str(row["name"]),
    )


async def _choose_durable(call: Call, store: str) -> Html:
    rows = await call.service.collection(f"{store_path(store)}/durables", "durables")

    def place(row: Document) -> str:
        return content_of(store, row)

    return table(
        call,
        "durables",
        [
            Column("Durable", lambda row: anchor(str(row["name"]), place(row)), lambda row: str(row["name"])),
            Column("Type", lambda row: str(row.get("type"))),
            Column(
                "Messages",
                lambda row: units.count(count_of(row, "messages")),
                lambda row: count_of(row, "messages"),
                is_number=True,
                href=place,
            ),
            parked_column(store),
        ],
        rows,
        caption="Durables",
        empty="This store has no durable, so it keeps no message.",
        text=lambda row: str(row["name"]),
    )


def _form(call: Call, store: str, durable: str) -> Html:
    return element(
        "form",
        element("input", type="hidden", name="store", value=store),
        element("input", type="hidden", name="durable", value=durable),
        element(
            "label",
            "After number",
            element("input", type="text", inputmode="numeric", name="after", value=call.text("after")),
        ),
        element(
            "label",
            "Fields match (JSON)",
            element(
                "input",
                type="text",
                name="match",
                value=call.text("match"),
                placeholder='{"kind": "a"}',
                spellcheck="false",
            ),
            class_="grow",
        ),
        element(
            "label",
            element(
                "span",
                element("input", type="checkbox", name="parked", value="1", checked=call.text("parked") == "1"),
                " only parked",
            ),
        ),
        element("button", "Show", type="submit", class_="primary"),
        method="get",
        action="/messages",
        role="search",
        aria_label="Browse messages",
        class_="query",
    )


async def _page(call: Call, store: str, durable: str, *, parked: bool) -> Html:
    match = call.text("match")
    if match:
        try:
            decode_each_once(match.encode(), object)
        except UNDECODABLE as error:
            raise InvalidRequest(f"the match is JSON: {error}") from None
    target = f"{durable_path(store, durable)}/browse"
    after = call.number("after")
    if _follows(call):
        after = max(0, int(count_of(await call.service.read(store_path(store)), "next_seq")) - 1 - ROWS)
    query = query_of(after=after, max=ROWS, match=match or None, parked="true" if parked else None)
    page = msgspec.convert(await call.service.read(target + query), MessagePage)
    stopped = frozenset(page.parked)

    def state(message: Delivery) -> Content:
        if message.seq in stopped:
            return badge("parked", "warn")
        return badge(f"delivered {message.delivery_count} times") if message.delivery_count else badge("new")

    rows = table(
        call,
        "messages",
        [
            Column(
                "Number", lambda message: anchor(str(message.seq), _place(store, durable, message.seq)), is_number=True
            ),
            Column("Published", lambda message: moment(message.published_ms)),
            Column("Key", lambda message: name_shown(message.key) if message.key is not None else "–"),
            Column(
                "Fields",
                lambda message: (
                    element("code", msgspec.json.encode(message.fields).decode()) if message.fields else "–"
                ),
            ),
            Column("Body", lambda message: element("code", _short(message.body))),
            Column("State", state),
        ],
        page.messages[::-1] if _follows(call) else page.messages,
        caption="Messages",
        empty="No message here.",
        is_live=not call.text("after"),
    )
    more: Content = None
    if page.next_after is not None and not _follows(call):
        more = element(
            "nav", anchor("Next →", call.here(after=page.next_after)), class_="pages", aria_label="More messages"
        )
    return text_of([rows, more])


def _origin(message: Delivery) -> dict[str, Content]:
    """Where a dead letter came from."""
    origin = message.origin
    if origin is None:
        return {}
    came = f"{origin.durable} of {origin.store}, message {origin.seq}: {origin.cause} after {origin.delivery_count}"
    return {"Dead letter of": anchor(came, _place(origin.store, origin.durable, origin.seq))}


def _short(body: bytes) -> str:
    try:
        text = units.bytes_text(body, "text")
    except ValueError:
        text = units.bytes_text(body[:BODY_CHARACTERS], "hex")
    return text if len(text) <= BODY_CHARACTERS else f"{text[:BODY_CHARACTERS]}…"


def _place(store: str, durable: str, seq: int) -> str:
    return link("/message", store=store, durable=durable, seq=seq)


async def _message(call: Call) -> Html:
    store, durable, seq = call.required("store"), call.required("durable"), call.number("seq")
    return text_of(
        [
            section(
                f"Message {seq}",
                await attempt(_body(call, store, durable, seq)),
                actions=_message_acts(call, store, durable, seq),
            ),
            section("Its fate in every durable", await attempt(_fates(call, store, seq))),
            commands(call, f"{store_path(store)}/messages/{seq}/explain", f"holdfast stores explain {store} {seq}"),
        ]
    )


def _message_acts(call: Call, store: str, durable: str, seq: int) -> list[Content]:
    return [
        action(call, REDELIVER, "Deliver again, or send back", store=store, durable=durable, seq=seq),
        action(call, DELETE, "Delete this message", danger=True, store=store, durable=durable, seq=seq),
    ]


async def _found(call: Call, store: str, durable: str, seq: int) -> Delivery:
    query = query_of(after=seq - 1, max=1)
    page = msgspec.convert(await call.service.read(f"{durable_path(store, durable)}/browse{query}"), MessagePage)
    if not page.messages or page.messages[0].seq != seq:
        raise NotFound("the durable does not keep this message any more", store=store, durable=durable, number=seq)
    return page.messages[0]


async def _body(call: Call, store: str, durable: str, seq: int) -> Html:
    message = await _found(call, store, durable, seq)
    return text_of(
        [
            facts(
                {
                    "Store": anchor(store, link("/store", store=store)),
                    "Durable": anchor(durable, link("/durable", store=store, durable=durable)),
                    "Published": moment(message.published_ms),
                    "Key": whole_name(message.key) if message.key is not None else "none",
                    "Deliveries": anchor(units.count(message.delivery_count), "#h-its-fate-in-every-durable"),
                    **_origin(message),
                    **{f"Field {name}": code(str(value)) for name, value in message.fields.items()},
                }
            ),
            element("h3", "Body"),
            form_choice(call, store=store, durable=durable, seq=seq),
            value_of(message.body, form_named(call.text("form"))),
        ]
    )


def fact_of(name: str, value: object) -> Content:
    """A fact of a message's fate as people read it: a time, a number, a word."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_ms") and isinstance(value, int) and value > EPOCH_MS_MIN:
        return moment(value)
    if value is None or isinstance(value, str | int | float):
        return "–" if value is None else str(value)
    return element("code", msgspec.json.encode(value).decode())


async def _fates(call: Call, store: str, seq: int) -> Html:
    explained = await call.service.read(f"{store_path(store)}/messages/{seq}/explain")
    rows = documents(explained.get("durables"))

    def rest(row: Document) -> Content:
        known = {key: value for key, value in row.items() if key not in ("durable", "name", "fate")}
        facts_of = [[f"{name.replace('_', ' ')}: ", fact_of(name, value)] for name, value in known.items()]
        return join(facts_of, ", ") if facts_of else "–"

    def durable(row: Document) -> Content:
        name = str(row.get("durable") or row.get("name"))
        return anchor(name, link("/durable", store=store, durable=name))

    return table(
        call,
        "fates",
        [
            Column("Durable", durable),
            Column("Fate", lambda row: badge(str(row.get("fate")).replace("_", " "))),
            Column("Facts", rest),
        ],
        rows,
        caption="Fates",
        empty="No durable.",
    )


async def _delete_form(call: Call) -> Form:
    store, durable, seq = call.required("store"), call.required("durable"), call.number("seq")
    message = await _found(call, store, durable, seq)
    described = await call.service.read(durable_path(store, durable))
    return Form(
        effect=[
            element(
                "p",
                f"Takes message {seq} ({units.size(len(message.body))}) out of the durable ",
                element("strong", f"{store}/{durable}"),
                ".",
            ),
            element("p", "Other durables keep it. This cannot be undone."),
        ],
        button="Delete this message",
        back=_place(store, durable, seq),
        typed=f"message {seq}",
        seen=str(described.get("token", "")),
    )


async def _delete(call: Call) -> Done | Form:
    store, durable, seq = call.required("store"), call.required("durable"), call.number("seq")
    form = await _delete_form(call)
    if not form.is_seen_in(call.form):
        return form
    await call.service.change("DELETE", f"{durable_path(store, durable)}/messages/{seq}{query_of(token=form.seen)}")
    return Done(f"Message {seq} is deleted.", link("/messages", store=store, durable=durable))


DELETE: Final = Action("/message/delete", "Delete a message", "Messages", _delete_form, _delete, "write")
PAGES: Final = (
    Page("/messages", "Messages", "Messages", _messages),
    Page("/message", lambda call: f"Message {call.text('seq')} of {call.text('store')}", "Messages", _message),
)
ACTIONS: Final = (DELETE,)
