"""Message stores: all of them, one store, one durable, the whole definition with its history, and what can be done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec

from holdfast.client.protocol.stores.messages import durable_path, store_path
from holdfast.console import units
from holdfast.console.call import Call, Page, link
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
    live,
    moment,
    notice,
    refusal,
    section,
    table,
    tile,
    tiles,
)
from holdfast.console.reading.documents import COUNTS, NOT_PARAMETERS, count_of, name_of, yaml_of
from holdfast.console.reading.service import Document, document, documents, number
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


def _number(title: str, name: str, href: Callable[[Document], str] | None = None) -> Column[Document]:
    return Column(
        title,
        lambda row: units.count(count_of(row, name)),
        lambda row: count_of(row, name),
        is_number=True,
        href=href,
    )


def _rate(value: float | None) -> str:
    return "–" if value is None else units.rate(value)


def _without_figures(call: Call, store: str, durable: str) -> bool:
    """Whether the metrics have no line of a durable: they have those of a number of durables only."""
    seen = call.watcher.newest is not None
    return seen and call.watcher.value_of_store("holdfast_durable_backlog", store=store, durable=durable) is None


# All stores


async def _stores(call: Call) -> Html:
    return text_of(
        [
            live("cluster", await attempt(_cluster(call))),
            section(
                "Stores", await attempt(_store_table(call)), actions=[action(call, DEFINE_STORE, "Define a store")]
            ),
            section("Definition", await attempt(_history(call)), actions=_definition_actions(call)),
            commands(call, "/v1/stores", "holdfast stores ls"),
        ]
    )


def _definition_actions(call: Call) -> list[Content]:
    return [button("Whole definition", "/definition"), action(call, EDIT_CLUSTER, "Edit parameters")]


async def _cluster(call: Call) -> Html:
    cluster = await call.service.read("/v1/cluster")
    disk, pages = document(cluster.get("disk")), document(cluster.get("log"))
    suspended = bool(cluster.get("suspended"))
    head = tiles(
        tile(
            "State",
            "suspended" if suspended else "serves",
            tone="bad" if suspended else "good",
            href="#h-definition",
            note=f"revision {cluster.get('revision')}",
        ),
        tile(
            "Stores",
            units.count(number(cluster.get("stores"))),
            note=f"{units.count(number(cluster.get('durables')))} durables",
            href="#h-stores",
        ),
        tile(
            "Messages",
            units.count(number(cluster.get("messages"))),
            href="/messages",
            note=bar(number(cluster.get("messages")), number(cluster.get("message_limit")), "Messages", units.count),
        ),
        tile(
            "Bytes",
            units.size(number(cluster.get("bytes"))),
            href="#h-stores",
            note=bar(number(cluster.get("bytes")), number(cluster.get("bytelimit")), "Bytes"),
        ),
        tile(
            "Disk",
            units.size(number(disk.get("used"))),
            href="/#room",
            note=bar(number(disk.get("used")), number(disk.get("limit")), "Disk"),
        ),
        tile(
            "Pages",
            units.size(number(pages.get("allocated"))),
            href="/#room",
            note=bar(number(pages.get("in_use")), number(pages.get("allocated")), "Pages"),
        ),
    )
    offered = [each for each in CLUSTER_ACTIONS if each is not (SUSPEND if suspended else RESUME)]
    acts = [action(call, each, each.title, danger=each is SUSPEND) for each in offered]
    said = notice("bad", f"Publishing and delivering are refused (no_quorum). {UNTIL_RESUMED}") if suspended else None
    return text_of([said, head, element("div", acts, class_="actions spaced")])


async def _store_table(call: Call) -> Html:
    rows = await call.service.collection("/v1/stores", "stores")
    watcher = call.watcher

    def published(row: Document) -> float | None:
        return watcher.rate_of_store("holdfast_message_store_published_total", store=name_of(row))

    def messages(row: Document) -> str:
        return link("/messages", store=name_of(row))

    def part(name: str) -> Callable[[Document], str]:
        return lambda row: f"{link('/store', store=name_of(row))}#{name}"

    return table(
        call,
        "stores",
        [
            Column("Store", lambda row: anchor(name_of(row), link("/store", store=name_of(row))), name_of),
            _number("Messages", "messages", messages),
            Column(
                "Bytes",
                _bytes_bar,
                lambda row: count_of(row, "bytes"),
                is_number=True,
                href=part("h-durables"),
            ),
            Column(
                "Published",
                lambda row: _rate(published(row)),
                lambda row: published(row) or 0.0,
                is_number=True,
                href=part("store"),
            ),
            _number("Durables", "durables", part("h-durables")),
            _number("Publishers", "publishers", part("store")),
            _number("Unmatched", "unmatched", part("h-durables")),
            Column(
                "Kept",
                lambda row: "on disk" if row.get("replicated") else "in memory",
                lambda row: str(row.get("replicated")),
            ),
        ],
        rows,
        caption="Stores",
        empty="There is no store that this token may browse.",
        text=name_of,
    )


def _bytes_bar(row: Document) -> Html:
    used, limit = count_of(row, "bytes"), number(row.get("bytelimit"))
    return bar(used, limit, f"Bytes of {name_of(row)}") if limit else text_of(units.size(used))


async def _history(call: Call) -> Html:
    rows = documents((await call.service.read("/v1/cluster/history")).get("history"))
    rows.sort(key=lambda row: -number(row.get("revision")))
    newest = rows[0].get("revision") if rows else None
    authors: list[Column[Document]] = [Column("Author", lambda row: str(row.get("author") or "–"))]

    def back(row: Document) -> Content:
        if row.get("revision") == newest:
            return badge("in force", "good")
        return action(call, ROLLBACK, "Roll back to it", revision=str(row["revision"]))

    return table(
        call,
        "history",
        [
            Column(
                "Revision",
                lambda row: anchor(str(row["revision"]), link("/definition", revision=str(row["revision"]))),
            ),
            Column("Time", lambda row: moment(number(row.get("at_ms")))),
            *(authors if any(row.get("author") for row in rows) else ()),
            Column("", back),
        ],
        rows[:10],
        caption="Revisions of the definition",
        empty="No definition was ever made.",
    )


# One store


async def _store(call: Call) -> Html:
    store = call.required("store")
    if store != STATISTICS and not is_name(store):
        raise InvalidRequest("no store has this name")
    try:
        await call.service.read(store_path(store))
    except NotFound as error:
        return text_of([refusal(error), element("p", anchor("All stores", "/stores"))])
    except HoldfastError:
        pass  # each part says why it is not there
    return text_of(
        [
            element("p", anchor("Stores", "/stores"), " / ", store),
            live("store", await attempt(_store_facts(call, store))),
            section(
                "Durables",
                await attempt(_durable_table(call, store)),
                actions=[action(call, DEFINE_DURABLE, "Define a durable", store=store)],
            ),
            section(
                "Parameters", await attempt(_parameters(call, store_path(store))), actions=_store_actions(call, store)
            ),
            section(
                "Templates",
                await attempt(_templates(call, store)),
                actions=[action(call, DEFINE_TEMPLATE, "Define a template", store=store)],
            ),
            commands(call, store_path(store), f"holdfast stores ls {store}"),
        ]
    )


def _store_actions(call: Call, store: str) -> list[Content]:
    return [
        action(call, PUBLISH, "Publish a test message", store=store),
        action(call, EDIT_STORE, "Edit", store=store),
        action(call, DELETE_STORE, "Delete the store", danger=True, store=store),
    ]


async def _store_facts(call: Call, store: str) -> Html:
    part = await call.service.read(store_path(store))
    published = call.watcher.rate_of_store("holdfast_message_store_published_total", store=store)
    messages, size = count_of(part, "messages"), count_of(part, "bytes")
    limit = number(part.get("message_limit"))
    return tiles(
        tile(
            "Messages",
            units.count(messages),
            href=link("/messages", store=store),
            note=bar(messages, limit, "Messages", units.count),
        ),
        tile("Bytes", units.size(size), href="#h-parameters", note=bar(size, number(part.get("bytelimit")), "Bytes")),
        tile(
            "Published",
            "–" if published is None else units.rate(published),
            href=link("/messages", store=store),
            note="between the last two scrapes",
        ),
        tile(
            "Next number",
            units.count(count_of(part, "next_seq")),
            href=link("/messages", store=store),
            note="of a message",
        ),
        tile("Publishers", units.count(count_of(part, "publishers")), note="remembered; no page lists them"),
        tile(
            "Unmatched",
            units.count(count_of(part, "unmatched")),
            href="#h-durables",
            note="messages that no durable wanted",
        ),
    )


async def _durable_table(call: Call, store: str) -> Html:
    rows = await call.service.collection(f"{store_path(store)}/durables", "durables")
    rest = sum(_without_figures(call, store, name_of(row)) for row in rows)
    note = f"{units.counted(rest, 'durable')} of this store have no rate and no curve: the metrics of the service have "
    note += f"lines of {DURABLES_MAX:,} durables."
    shown = table(
        call,
        "durables",
        _durable_columns(call, store),
        rows,
        caption="Durables",
        empty="No durable: messages of this store are not kept.",
        text=name_of,
    )
    return text_of([shown, live("without-figures", element("p", note, class_="note") if rest else None)])


def _durable_columns(call: Call, store: str) -> list[Column[Document]]:
    now_ms = time.time() * 1000

    def acknowledged(row: Document) -> float | None:
        return call.watcher.rate_of_store("holdfast_durable_acknowledged_total", store=store, durable=name_of(row))

    def oldest(row: Document) -> float:
        since = count_of(row, "oldest_ms")
        return max(0.0, now_ms - since) if since else 0.0

    def part(name: str) -> Callable[[Document], str]:
        return lambda row: f"{link('/durable', store=store, durable=name_of(row))}#{name}"

    return [
        Column("Durable", name_of, name_of, href=lambda row: link("/durable", store=store, durable=name_of(row))),
        Column("Type", lambda row: str(row.get("type")), lambda row: str(row.get("type"))),
        _number("Backlog", "backlog", part("h-backlog-over-time")),
        _number("Held", "unacknowledged", part("h-subscribers")),
        parked_column(store),
        _number("Dead letters", "dead_letters", lambda row: _dead_letters_of(store, row)),
        _number("Redelivered", "redelivered", part("durable")),
        Column(
            "Acknowledged",
            lambda row: _rate(acknowledged(row)),
            lambda row: acknowledged(row) or 0.0,
            is_number=True,
            href=part("h-subscribers"),
        ),
        Column(
            "Oldest",
            lambda row: units.duration(oldest(row) / 1000) if oldest(row) else "–",
            oldest,
            is_number=True,
            href=lambda row: content_of(store, row),
        ),
        Column(
            "Subscribers",
            lambda row: str(len(documents(row.get("subscribers")))),
            lambda row: len(documents(row.get("subscribers"))),
            is_number=True,
            href=part("h-subscribers"),
        ),
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
    return Column(
        "Parked",
        lambda row: units.count(count_of(row, "parked")) if row.get("type") in QUEUES else "–",
        lambda row: count_of(row, "parked"),
        is_number=True,
        href=lambda row: link("/messages", store=store, durable=name_of(row), parked=1),
    )


async def _parameters(call: Call, target: str) -> Html:
    part = await call.service.read(target)
    return facts({name: _shown(value) for name, value in part.items() if name not in NOT_PARAMETERS})


def _shown(value: object) -> Content:
    if value in (None, "", 0, {}, []) and not isinstance(value, bool):
        return "–" if value != 0 else "0"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, str | int | float) else element("code", msgspec.json.encode(value).decode())


async def _templates(call: Call, store: str) -> Html:
    rows = await call.service.collection(f"{store_path(store)}/templates", "templates")
    return table(
        call,
        "templates",
        [
            Column("Template", name_of, name_of),
            Column("Type", lambda row: str(row.get("type"))),
            Column(
                "Parameters",
                lambda row: element(
                    "code", msgspec.json.encode({key: value for key, value in row.items() if key != "name"}).decode()
                ),
            ),
            Column("", lambda row: action(call, DELETE_TEMPLATE, "Delete", store=store, template=name_of(row))),
        ],
        rows,
        caption="Templates",
        empty="No template of its own; the built-in ones are standard, shared, last_value and map.",
    )


# One durable


async def _durable(call: Call) -> Html:
    store, name = call.required("store"), call.required("durable")
    part = await call.service.read(durable_path(store, name))
    return text_of(
        [
            element(
                "p",
                "A durable of ",
                anchor(store, link("/store", store=store)),
                f", {part.get('type')}",
                ", dynamic" if part.get("dynamic") else "",
                ".",
            ),
            element("div", _durable_actions(call, store, name, part), class_="actions spaced"),
            live("durable", _durable_facts(call, store, name, part), _backlog(call, store, name)),
            section("Subscribers", _subscribers(call, part, content_of(store, part))),
            section(
                "Parameters",
                live(
                    "parameters",
                    facts({key: _shown(value) for key, value in part.items() if key not in NOT_PARAMETERS}),
                ),
            ),
            commands(call, durable_path(store, name), f"holdfast stores ls {store}"),
        ]
    )


def _durable_actions(call: Call, store: str, name: str, part: Document) -> list[Content]:
    is_map = part.get("type") == "map"
    looks = button("Look at the map" if is_map else "Browse messages", content_of(store, part))
    queue = part.get("type") in QUEUES
    return [
        looks,
        action(call, EDIT_DURABLE, "Edit", store=store, durable=name) if not part.get("dynamic") else None,
        action(call, REWIND, "Rewind", store=store, durable=name) if queue else None,
        action(call, REDELIVER, "Deliver again", store=store, durable=name) if queue else None,
        action(call, PURGE, "Purge", danger=True, store=store, durable=name),
        action(call, DELETE_DURABLE, "Delete", danger=True, store=store, durable=name),
    ]


def _waiting(store: str, part: Document) -> list[Html]:
    """What a durable has."""
    oldest, browsed = count_of(part, "oldest_ms"), content_of(store, part)
    messages, size = count_of(part, "messages"), count_of(part, "bytes")
    return [
        tile(
            "Backlog",
            units.count(count_of(part, "backlog")),
            href="#h-backlog-over-time",
            note="messages that no subscriber holds",
        ),
        tile(
            "Held",
            units.count(count_of(part, "unacknowledged")),
            href="#h-subscribers",
            note="delivered, not acknowledged",
        ),
        tile(
            "Messages",
            units.count(messages),
            href=browsed,
            note=bar(messages, number(part.get("message_limit")), "Messages", units.count),
        ),
        tile("Bytes", units.size(size), href="#h-parameters", note=bar(size, number(part.get("bytelimit")), "Bytes")),
        tile(
            "Oldest",
            moment(oldest) if oldest else "–",
            href=browsed,
            note=f"waits {units.duration(max(0.0, time.time() - oldest / 1000))}" if oldest else "nothing waits",
        ),
    ]


def _durable_facts(call: Call, store: str, name: str, part: Document) -> Html:
    parked, dying = count_of(part, "parked"), count_of(part, "dying")
    acknowledged = call.watcher.rate_of_store("holdfast_durable_acknowledged_total", store=store, durable=name)
    expired = document(document(part.get(COUNTS)).get("expired"))
    return tiles(
        *_waiting(store, part),
        tile(
            "Acknowledged",
            "–" if acknowledged is None else units.rate(acknowledged),
            href="#h-subscribers",
            note=f"{units.count(count_of(part, 'acknowledged'))} in all",
        ),
        tile(
            "Parked",
            units.count(parked),
            tone="warn" if parked else None,
            href=link("/messages", store=store, durable=name, parked=1) if part.get("type") in QUEUES else "",
            note="delivered too often",
        ),
        tile(
            "Dead letters",
            units.count(count_of(part, "dead_letters")),
            href=_dead_letters_of(store, part),
            note=f"{units.count(dying)} on their way",
        ),
        tile(
            "Redelivered",
            units.count(count_of(part, "redelivered")),
            href="#h-subscribers",
            note=f"{units.count(count_of(part, 'ack_wait_lapsed'))} not acknowledged in time",
        ),
        tile(
            "Gone unacknowledged",
            units.count(sum(number(value) for value in expired.values())),
            href="#h-parameters",
            note=join([f"{CAUSES.get(key, key)} {units.count(number(value))}" for key, value in expired.items()], ", "),
        ),
    )


def _backlog(call: Call, store: str, name: str) -> Html:
    values = call.watcher.backlog(store, name)
    span = f"{units.duration(60 * len(values))}" if values else ""
    said = "Once a minute, kept by this console for a day while it runs."
    if _without_figures(call, store, name):
        said = f"Not known: the metrics of the service have lines of {DURABLES_MAX:,} durables, and none of this one."
    note = element("p", said, class_="note")
    return section("Backlog over time", chart(values, "Backlog", units.count, span=span, tall=True), note)


def _subscribers(call: Call, part: Document, browsed: str) -> Html:
    return table(
        call,
        "subscribers",
        [
            Column("Subscriber", name_of, name_of),
            Column(
                "", lambda row: badge("connected", "good") if row.get("connected") else badge("holds messages", "warn")
            ),
            Column(
                "Holds",
                lambda row: units.count(number(row.get("unacknowledged"))),
                lambda row: number(row.get("unacknowledged")),
                is_number=True,
                href=lambda _: browsed,
            ),
            Column(
                "Takes more",
                lambda row: units.count(number(row.get("room"))),
                is_number=True,
                href=lambda _: "#h-parameters",
            ),
            Column("Address", lambda row: str(row.get("address") or "–")),
            Column("Since", lambda row: moment(number(row.get("since_ms")))),
            Column("Last delivery", lambda row: moment(number(row.get("delivered_ms")))),
            Column("Last acknowledgement", lambda row: moment(number(row.get("acknowledged_ms")))),
        ],
        documents(part.get("subscribers")),
        caption="Subscribers",
        empty="No subscriber.",
        text=name_of,
    )


# The definition


async def _definition(call: Call) -> Html:
    revision = call.number("revision")
    if revision:
        earlier = await call.service.read(f"/v1/cluster/history/{revision}")
        is_in_force = number((await call.service.read("/v1/cluster")).get("revision")) == revision
        shown = yaml_of(earlier.get("definition", earlier))
        acts: list[Content] = [
            None if is_in_force else action(call, ROLLBACK, "Roll back to it", danger=True, revision=revision),
            button("In force", "/definition"),
        ]
        return text_of([section(f"Revision {revision}", element("pre", shown, tabindex="0"), actions=acts)])
    whole_one = await call.service.read("/v1/cluster/definition")
    definition = document(whole_one.get("definition"))
    permissions = document(definition.get("permissions"))
    return text_of(
        [
            section(
                "Users and roles",
                _permissions(call, permissions),
                actions=[action(call, EDIT_PERMISSIONS, "Edit users and roles")],
            ),
            section(
                f"Definition, revision {whole_one.get('revision')}", element("pre", yaml_of(definition), tabindex="0")
            ),
            commands(call, "/v1/cluster/definition", "holdfast stores history"),
        ]
    )


def _permissions(call: Call, permissions: Document) -> Html:
    users = [{"name": name, **document(user)} for name, user in document(permissions.get("users")).items()]
    roles = [{"name": name, **document(role)} for name, role in document(permissions.get("roles")).items()]
    enabled = permissions.get("enabled")
    state = badge("permissions are on", "good") if enabled else badge("permissions are off", "warn")
    return text_of(
        [
            element("p", state),
            table(
                call,
                "users",
                [
                    Column("User", name_of, name_of),
                    Column("Roles", lambda row: ", ".join(cast("list[str]", row.get("roles") or []))),
                    Column("Token, SHA-256", lambda row: code(f"{str(row.get('token_sha256') or 'none')[:12]}…")),
                ],
                users,
                caption="Users",
                empty="No user.",
                is_live=False,
            ),
            table(
                call,
                "roles",
                [
                    Column("Role", name_of, name_of),
                    Column(
                        "Stores", lambda row: element("code", msgspec.json.encode(row.get("stores") or {}).decode())
                    ),
                    Column(
                        "Cluster", lambda row: element("code", msgspec.json.encode(row.get("cluster") or []).decode())
                    ),
                ],
                roles,
                caption="Roles",
                empty="No role.",
                is_live=False,
            ),
        ]
    )


PAGES: Final = (
    Page("/stores", "Stores", "Stores", _stores),
    Page("/store", lambda call: f"Store {call.text('store')}", "Stores", _store),
    Page("/durable", lambda call: f"Durable {call.text('store')}/{call.text('durable')}", "Stores", _durable),
    Page("/definition", "Definition of the stores", "Stores", _definition),
)
