"""Message stores: all of them, one store, one durable, the whole definition with its history, and what can be done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec

from holdfast.client.protocol.stores.messages import durable_path, store_path
from holdfast.console import units
from holdfast.console.call import PageCall, Screen, link
from holdfast.console.html import Content, Html, element, join, text_of
from holdfast.console.pages.stores_acts import (
    CLUSTER_ACTIONS,
    DEFINE_DURABLE,
    DEFINE_STORE,
    DEFINE_TEMPLATE,
    DELETE_DURABLE,
    DELETE_STORE,
    DELETE_TEMPLATE,
    EDIT_CLUSTER,
    EDIT_DURABLE,
    EDIT_PERMISSIONS,
    EDIT_STORE,
    PUBLISH,
    PURGE,
    REDELIVER,
    RESUME,
    REWIND,
    ROLLBACK,
    SUSPEND,
    UNTIL_RESUMED,
)
from holdfast.console.parts import (
    Column,
    Tone,
    action,
    anchor,
    attempt,
    badge,
    bar,
    button,
    chart,
    code,
    commands,
    facts,
    figures,
    live,
    moment,
    notice,
    refusal,
    section,
    table,
    tile,
    tiles,
)
from holdfast.console.reading.service import (
    COUNTS,
    NOT_PARAMETERS,
    Document,
    count_of,
    document,
    documents,
    name_of,
    number,
    yaml_of,
)
from holdfast.console.reading.watcher import DURABLES_MAX
from holdfast.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.stores.definitions.reader import STATISTICS, is_name

CAUSES: Final[Mapping[str, str]] = {
    "limit_new": "above a limit",
    "limit_old": "above a limit, the oldest",
    "max_delivery": "delivered too often",
    "own_ttl": "too old by their own time",
    "ttl": "too old",
}
"""Why messages left a durable without an acknowledgement, where the name of the count does not say it."""
QUEUES: Final = ("shared", "standard")


def count_column(title: str, name: str, href: Callable[[Document], str] | None = None) -> Column[Document]:
    """A count of stores or durables."""
    return figures(title, lambda row: count_of(row, name), href)


def _without_figures(call: PageCall, store: str, durable: str) -> bool:
    """Whether the metrics have no line of a durable: they have those of a number of durables only."""
    has_figures = call.watcher.newest is not None
    return has_figures and call.watcher.value_of_store("holdfast_durable_backlog", store=store, durable=durable) is None


# All stores


async def _stores(call: PageCall) -> Content:
    acts = [button("Whole definition", "/definition"), action(call, EDIT_CLUSTER, "Edit parameters")]
    define = action(call, DEFINE_STORE, "Define a store")
    return [
        live("cluster", await attempt(_cluster(call))),
        section("Stores", await attempt(_store_table(call)), actions=[define]),
        section("Definition", await attempt(_history(call)), actions=acts),
        commands(call, "/v1/stores", "holdfast stores ls"),
    ]


def _filled(label: str, part: Document, used: str, limit: str, href: str, text: Callable[[float], str]) -> Html:
    """How much of a limit of a document is used."""
    size = number(part.get(used))
    return tile(label, text(size), href, bar(size, number(part.get(limit)), label, text))


async def _cluster(call: PageCall) -> Content:
    cluster = await call.service.read("/v1/cluster")
    disk, pages = document(cluster.get("disk")), document(cluster.get("log"))
    suspended, allocated = bool(cluster.get("suspended")), number(pages.get("allocated"))
    tone: Tone = "bad" if suspended else "good"
    state, revision = "suspended" if suspended else "serves", f"revision {cluster.get('revision')}"
    durables = f"{units.count(number(cluster.get('durables')))} durables"
    head = tiles(
        tile("State", state, "#h-definition", revision, tone=tone),
        tile("Stores", units.count(number(cluster.get("stores"))), "#h-stores", durables),
        _filled("Messages", cluster, "messages", "message_limit", "/messages", units.count),
        _filled("Bytes", cluster, "bytes", "bytelimit", "#h-stores", units.size),
        _filled("Disk", disk, "used", "limit", "/#room", units.size),
        tile("Pages", units.size(allocated), "/#room", bar(number(pages.get("in_use")), allocated, "Pages")),
    )
    offered = [each for each in CLUSTER_ACTIONS if each is not (SUSPEND if suspended else RESUME)]
    acts = [action(call, each, each.title, "danger" if each is SUSPEND else "plain") for each in offered]
    said = notice("bad", f"Publishing and delivering are refused (no_quorum). {UNTIL_RESUMED}") if suspended else None
    return [said, head, element("div", acts, class_="actions spaced")]


async def _store_table(call: PageCall) -> Content:
    rows = await call.service.collection("/v1/stores", "stores")

    def published(row: Document) -> float | None:
        return call.watcher.rate_of_store("holdfast_message_store_published_total", store=name_of(row))

    def messages(row: Document) -> str:
        return link("/messages", store=name_of(row))

    def part(name: str) -> Callable[[Document], str]:
        return lambda row: f"{link('/store', store=name_of(row))}#{name}"

    def place(row: Document) -> str:
        return "on disk" if row.get("replicated") else "in memory"

    columns: list[Column[Document]] = [
        Column("Store", lambda row: anchor(name_of(row), link("/store", store=name_of(row))), name_of),
        count_column("Messages", "messages", messages),
        Column("Bytes", _bytes_bar, lambda row: count_of(row, "bytes"), is_number=True, href=part("h-durables")),
        figures("Published", published, part("store"), units.rate),
        count_column("Durables", "durables", part("h-durables")),
        count_column("Publishers", "publishers", part("store")),
        count_column("Unmatched", "unmatched", part("h-durables")),
        Column("Kept", place, place),
    ]
    empty = "There is no store that this token may browse."
    return table(call, "stores", columns, rows, caption="Stores", empty=empty, text=name_of)


def _bytes_bar(row: Document) -> Html:
    used, limit = count_of(row, "bytes"), number(row.get("bytelimit"))
    return bar(used, limit, f"Bytes of {name_of(row)}") if limit else text_of(units.size(used))


async def _history(call: PageCall) -> Content:
    rows = documents((await call.service.read("/v1/cluster/history")).get("history"))
    rows.sort(key=lambda row: -number(row.get("revision")))
    newest = rows[0].get("revision") if rows else None

    def revision(row: Document) -> Content:
        return anchor(str(row["revision"]), link("/definition", revision=str(row["revision"])))

    def back(row: Document) -> Content:
        if row.get("revision") == newest:
            return badge("in force", "good")
        return action(call, ROLLBACK, "Roll back to it", revision=str(row["revision"]))

    columns: list[Column[Document]] = [
        Column("Revision", revision),
        Column("Time", lambda row: moment(number(row.get("at_ms")))),
        Column("", back),
    ]
    if any(row.get("author") for row in rows):
        columns.insert(2, Column("Author", lambda row: str(row.get("author") or "–")))
    caption, empty = "Revisions of the definition", "No definition was ever made."
    return table(call, "history", columns, rows[:10], caption=caption, empty=empty)


# One store


async def _store(call: PageCall) -> Content:
    store = call.required("store")
    if store != STATISTICS and not is_name(store):
        raise InvalidRequest("no store has this name")
    try:
        await call.service.read(store_path(store))
    except NotFound as error:
        return [refusal(error), element("p", anchor("All stores", "/stores"))]
    except HoldfastError:
        pass  # each part says why it is not there
    acts = [
        action(call, PUBLISH, "Publish a test message", store=store),
        action(call, EDIT_STORE, "Edit", store=store),
        action(call, DELETE_STORE, "Delete the store", "danger", store=store),
    ]
    define = action(call, DEFINE_DURABLE, "Define a durable", store=store)
    define_template = action(call, DEFINE_TEMPLATE, "Define a template", store=store)
    return [
        element("p", anchor("Stores", "/stores"), " / ", store),
        live("store", await attempt(_store_facts(call, store))),
        section("Durables", await attempt(_durable_table(call, store)), actions=[define]),
        section("Parameters", await attempt(_parameters(call, store_path(store))), actions=acts),
        section("Templates", await attempt(_templates(call, store)), actions=[define_template]),
        commands(call, store_path(store), f"holdfast stores ls {store}"),
    ]


async def _store_facts(call: PageCall, store: str) -> Content:
    part = await call.service.read(store_path(store))
    published = call.watcher.rate_of_store("holdfast_message_store_published_total", store=store)
    messages, size = count_of(part, "messages"), count_of(part, "bytes")
    browsed, rate = link("/messages", store=store), "–" if published is None else units.rate(published)
    full = bar(messages, number(part.get("message_limit")), "Messages", units.count)
    next_seq, publishers, unmatched = (
        units.count(count_of(part, name)) for name in ("next_seq", "publishers", "unmatched")
    )
    return tiles(
        tile("Messages", units.count(messages), browsed, full),
        tile("Bytes", units.size(size), "#h-parameters", bar(size, number(part.get("bytelimit")), "Bytes")),
        tile("Published", rate, browsed, "between the last two scrapes"),
        tile("Next number", next_seq, browsed, "of a message"),
        tile("Publishers", publishers, note="remembered; no page lists them"),
        tile("Unmatched", unmatched, "#h-durables", "messages that no durable wanted"),
    )


async def _durable_table(call: PageCall, store: str) -> Content:
    rows = await call.service.collection(f"{store_path(store)}/durables", "durables")
    rest = sum(_without_figures(call, store, name_of(row)) for row in rows)
    note = f"{units.counted(rest, 'durable')} of this store have no rate and no curve: the metrics of the service have "
    note += f"lines of {DURABLES_MAX:,} durables."
    empty = "No durable: messages of this store are not kept."
    columns = _durable_columns(call, store)
    return [
        table(call, "durables", columns, rows, caption="Durables", empty=empty, text=name_of),
        live("without-figures", element("p", note, class_="note") if rest else None),
    ]


def _durable_columns(call: PageCall, store: str) -> list[Column[Document]]:
    now_ms = time.time() * 1000

    def acknowledged(row: Document) -> float | None:
        return call.watcher.rate_of_store("holdfast_durable_acknowledged_total", store=store, durable=name_of(row))

    def oldest(row: Document) -> float | None:
        since = count_of(row, "oldest_ms")
        return max(0.0, now_ms - since) / 1000 if since else None

    def part(name: str) -> Callable[[Document], str]:
        return lambda row: f"{link('/durable', store=store, durable=name_of(row))}#{name}"

    return [
        Column("Durable", name_of, name_of, href=lambda row: link("/durable", store=store, durable=name_of(row))),
        Column("Type", lambda row: str(row.get("type")), lambda row: str(row.get("type"))),
        count_column("Backlog", "backlog", part("h-backlog-over-time")),
        count_column("Held", "unacknowledged", part("h-subscribers")),
        parked_column(store),
        count_column("Dead letters", "dead_letters", lambda row: _dead_letters_of(store, row)),
        count_column("Redelivered", "redelivered", part("durable")),
        figures("Acknowledged", acknowledged, part("h-subscribers"), units.rate),
        figures("Oldest", oldest, lambda row: content_of(store, row), units.duration),
        figures("Subscribers", lambda row: len(documents(row.get("subscribers"))), part("h-subscribers")),
    ]


def content_of(store: str, row: Document) -> str:
    """Where the messages of a durable are, or the keys of a map."""
    if row.get("type") == "map":
        return link("/map", store=store, map=name_of(row))
    return link("/messages", store=store, durable=name_of(row))


def _dead_letters_of(store: str, row: Document) -> str:
    return link("/messages", store=str(row.get("dead_letter_store") or store))


def parked_column(store: str) -> Column[Document]:
    """How many messages each durable of a store has parked; nothing for a kind of durable that parks none."""
    return figures(
        "Parked",
        lambda row: count_of(row, "parked") if row.get("type") in QUEUES else None,
        lambda row: link("/messages", store=store, durable=name_of(row), parked=1),
    )


async def _parameters(call: PageCall, target: str) -> Html:
    return _parameters_of(await call.service.read(target))


def _parameters_of(part: Document) -> Html:
    return facts({name: _shown(value) for name, value in part.items() if name not in NOT_PARAMETERS})


def _shown(value: object) -> Content:
    if value in (None, "", 0, {}, []) and not isinstance(value, bool):
        return "–" if value != 0 else "0"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, str | int | float) else _as_json(value)


def _as_json(value: object) -> Html:
    return element("code", msgspec.json.encode(value).decode())


async def _templates(call: PageCall, store: str) -> Content:
    rows = await call.service.collection(f"{store_path(store)}/templates", "templates")
    columns: list[Column[Document]] = [
        Column("Template", name_of, name_of),
        Column("Type", lambda row: str(row.get("type"))),
        Column("Parameters", lambda row: _as_json({key: value for key, value in row.items() if key != "name"})),
        Column("", lambda row: action(call, DELETE_TEMPLATE, "Delete", store=store, template=name_of(row))),
    ]
    empty = "No template of its own; the built-in ones are standard, shared, last_value and map."
    return table(call, "templates", columns, rows, caption="Templates", empty=empty)


# One durable


async def _durable(call: PageCall) -> Content:
    store, name = call.required("store"), call.required("durable")
    part = await call.service.read(durable_path(store, name))
    kind = f", {part.get('type')}{', dynamic' if part.get('dynamic') else ''}."
    return [
        element("p", "A durable of ", anchor(store, link("/store", store=store)), kind),
        element("div", _durable_actions(call, store, name, part), class_="actions spaced"),
        live("durable", _durable_facts(call, store, name, part), _backlog(call, store, name)),
        section("Subscribers", _subscribers(call, part, content_of(store, part))),
        section("Parameters", live("parameters", _parameters_of(part))),
        commands(call, durable_path(store, name), f"holdfast stores ls {store}"),
    ]


def _durable_actions(call: PageCall, store: str, name: str, part: Document) -> list[Content]:
    looks = button("Look at the map" if part.get("type") == "map" else "Browse messages", content_of(store, part))
    queue, place = part.get("type") in QUEUES, {"store": store, "durable": name}
    return [
        looks,
        action(call, EDIT_DURABLE, "Edit", **place) if not part.get("dynamic") else None,
        action(call, REWIND, "Rewind", **place) if queue else None,
        action(call, REDELIVER, "Deliver again", **place) if queue else None,
        action(call, PURGE, "Purge", "danger", **place),
        action(call, DELETE_DURABLE, "Delete", "danger", **place),
    ]


def _durable_facts(call: PageCall, store: str, name: str, part: Document) -> Html:
    def count(of: str) -> str:
        return units.count(count_of(part, of))

    oldest, browsed = count_of(part, "oldest_ms"), content_of(store, part)
    messages, size = count_of(part, "messages"), count_of(part, "bytes")
    waits = f"waits {units.duration(max(0.0, time.time() - oldest / 1000))}" if oldest else "nothing waits"
    full = bar(messages, number(part.get("message_limit")), "Messages", units.count)
    acknowledged = call.watcher.rate_of_store("holdfast_durable_acknowledged_total", store=store, durable=name)
    rate = "–" if acknowledged is None else units.rate(acknowledged)
    parked = link("/messages", store=store, durable=name, parked=1) if part.get("type") in QUEUES else ""
    expired = document(document(part.get(COUNTS)).get("expired"))
    gone = units.count(sum(number(value) for value in expired.values()))
    causes = join([f"{CAUSES.get(key, key)} {units.count(number(value))}" for key, value in expired.items()], ", ")
    lapsed = f"{count('ack_wait_lapsed')} not acknowledged in time"
    return tiles(
        tile("Backlog", count("backlog"), "#h-backlog-over-time", "messages that no subscriber holds"),
        tile("Held", count("unacknowledged"), "#h-subscribers", "delivered, not acknowledged"),
        tile("Messages", units.count(messages), browsed, full),
        tile("Bytes", units.size(size), "#h-parameters", bar(size, number(part.get("bytelimit")), "Bytes")),
        tile("Oldest", moment(oldest) if oldest else "–", browsed, waits),
        tile("Acknowledged", rate, "#h-subscribers", f"{count('acknowledged')} in all"),
        tile(
            "Parked", count("parked"), parked, "delivered too often", tone="warn" if count_of(part, "parked") else None
        ),
        tile("Dead letters", count("dead_letters"), _dead_letters_of(store, part), f"{count('dying')} on their way"),
        tile("Redelivered", count("redelivered"), "#h-subscribers", lapsed),
        tile("Gone unacknowledged", gone, "#h-parameters", causes),
    )


def _backlog(call: PageCall, store: str, name: str) -> Html:
    values = call.watcher.backlog(store, name)
    span = f"{units.duration(60 * len(values))}" if values else ""
    said = "Once a minute, kept by this console for a day while it runs."
    if _without_figures(call, store, name):
        said = f"Not known: the metrics of the service have lines of {DURABLES_MAX:,} durables, and none of this one."
    note = element("p", said, class_="note")
    return section("Backlog over time", chart(values, "Backlog", units.count, span=span, tall=True), note)


def _subscribers(call: PageCall, part: Document, browsed: str) -> Html:
    def at(name: str) -> Callable[[Document], Content]:
        return lambda row: moment(number(row.get(name)))

    def state(row: Document) -> Content:
        return badge("connected", "good") if row.get("connected") else badge("holds messages", "warn")

    columns: list[Column[Document]] = [
        Column("Subscriber", name_of, name_of),
        Column("", state),
        figures("Holds", lambda row: number(row.get("unacknowledged")), lambda _: browsed),
        figures("Takes more", lambda row: number(row.get("room")), lambda _: "#h-parameters"),
        Column("Address", lambda row: str(row.get("address") or "–")),
        Column("Since", at("since_ms")),
        Column("Last delivery", at("delivered_ms")),
        Column("Last acknowledgement", at("acknowledged_ms")),
    ]
    rows = documents(part.get("subscribers"))
    return table(call, "subscribers", columns, rows, caption="Subscribers", empty="No subscriber.", text=name_of)


# The definition


async def _definition(call: PageCall) -> Content:
    revision = call.number("revision")
    if revision:
        earlier = await call.service.read(f"/v1/cluster/history/{revision}")
        is_in_force = number((await call.service.read("/v1/cluster")).get("revision")) == revision
        shown = yaml_of(earlier.get("definition", earlier))
        acts: list[Content] = [
            None if is_in_force else action(call, ROLLBACK, "Roll back to it", "danger", revision=revision),
            button("In force", "/definition"),
        ]
        return section(f"Revision {revision}", element("pre", shown, tabindex="0"), actions=acts)
    in_force = await call.service.read("/v1/cluster/definition")
    definition = document(in_force.get("definition"))
    edit = action(call, EDIT_PERMISSIONS, "Edit users and roles")
    text = element("pre", yaml_of(definition), tabindex="0")
    return [
        section("Users and roles", _permissions(call, document(definition.get("permissions"))), actions=[edit]),
        section(f"Definition, revision {in_force.get('revision')}", text),
        commands(call, "/v1/cluster/definition", "holdfast stores history"),
    ]


def _permissions(call: PageCall, permissions: Document) -> Content:
    def named(part: str) -> list[Document]:
        return [{"name": name, **document(each)} for name, each in document(permissions.get(part)).items()]

    users: list[Column[Document]] = [
        Column("User", name_of, name_of),
        Column("Roles", lambda row: ", ".join(cast("list[str]", row.get("roles") or []))),
        Column("Token, SHA-256", lambda row: code(f"{str(row.get('token_sha256') or 'none')[:12]}…")),
    ]
    roles: list[Column[Document]] = [
        Column("Role", name_of, name_of),
        Column("Stores", lambda row: _as_json(row.get("stores") or {})),
        Column("Cluster", lambda row: _as_json(row.get("cluster") or [])),
    ]
    state = badge("permissions are on", "good") if permissions.get("enabled") else badge("permissions are off", "warn")
    return [
        element("p", state),
        table(call, "users", users, named("users"), caption="Users", empty="No user.", is_live=False),
        table(call, "roles", roles, named("roles"), caption="Roles", empty="No role.", is_live=False),
    ]


PAGES: Final = (
    Screen("/stores", "Stores", "Stores", _stores),
    Screen("/store", lambda call: f"Store {call.text('store')}", "Stores", _store),
    Screen("/durable", lambda call: f"Durable {call.text('store')}/{call.text('durable')}", "Stores", _durable),
    Screen("/definition", "Definition of the stores", "Stores", _definition),
)
