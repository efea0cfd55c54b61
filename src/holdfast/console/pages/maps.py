"""Maps: their keys, values and revisions, and setting, removing and locking a key."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.client.aio.stores import Map
from holdfast.client.protocol.messages import query_of
from holdfast.client.protocol.stores.messages import durable_path, map_path, store_path
from holdfast.console import units
from holdfast.console.call import Action, ActionDone, Form, Input, PageCall, Screen, link, whole
from holdfast.console.html import Content, element
from holdfast.console.parts import (
    Column,
    action,
    anchor,
    attempt,
    button,
    code,
    commands,
    facts,
    field,
    figures,
    hidden,
    live,
    moment,
    name_shown,
    notice,
    onward,
    search,
    section,
    table,
    whole_name,
)
from holdfast.console.reading.service import Document, count_of, document, documents, name_of, number
from holdfast.console.values import (
    comparing_form,
    form_choice,
    form_named,
    mark_of,
    value_given,
    value_of,
    value_start,
    writing_form,
)
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.wire.stores import EntriesResponse, Entry, Lock

ROWS: Final = 100
LOCK_SECONDS: Final = 60
STORES_ASKED_MAX: Final = 20


async def _maps(call: PageCall) -> Content:
    return [section("Maps", await attempt(_all(call))), commands(call, "/v1/stores", "holdfast stores map --help")]


async def _all(call: PageCall) -> Content:
    stores = await call.service.collection("/v1/stores", "stores")
    rows = [
        (name_of(store), name)
        for store in stores
        for name, parameters in document(store.get("durables")).items()
        if document(parameters).get("type") == "map"
    ]
    # Of dynamic durables only their stores know the type.
    for store in [store for store in stores if count_of(store, "dynamic_durables")][:STORES_ASKED_MAX]:
        target = f"{store_path(name_of(store))}/durables?type=map&dynamic=true"
        rows += [(name_of(store), name_of(each)) for each in await call.service.collection(target, "durables")]

    def value(name: str) -> Callable[[tuple[str, str]], float]:
        return lambda row: call.watcher.value_of_store(name, store=row[0], durable=row[1]) or 0.0

    def place(row: tuple[str, str]) -> str:
        return link("/map", store=row[0], map=row[1])

    columns: list[Column[tuple[str, str]]] = [
        Column("Map", "/".join, lambda row: row, href=place),
        figures("Keys", value("holdfast_durable_messages"), place),
        figures(
            "Bytes",
            value("holdfast_durable_bytes"),
            lambda row: link("/durable", store=row[0], durable=row[1]),
            units.size,
        ),
    ]
    return table(call, "maps", columns, rows, caption="Maps", empty="No store has a map.", text="/".join)


async def _map(call: PageCall) -> Content:
    store, name = call.required("store"), call.required("map")
    acts = [
        action(call, SET, "Set a key", store=store, map=name),
        action(call, LOCK, "Lock or steal a lock", store=store, map=name),
        button("Counts and parameters", link("/durable", store=store, durable=name)),
    ]
    above = field(call, "after", "Keys above", grow=True)
    form = search("/map", "Browse the map", hidden({"store": store, "map": name}), above)
    return [
        element("p", anchor("Maps", "/maps"), " / ", anchor(store, link("/store", store=store)), " / ", name),
        section("Entries", form, await attempt(_entries(call, store, name)), actions=acts),
        section("Locks", await attempt(_locks(call, store, name))),
        commands(call, map_path(store, name), f"holdfast stores watch {store}/{name}"),
    ]


async def _entries(call: PageCall, store: str, name: str) -> Content:
    query = query_of(after=call.text("after") or None, max=ROWS)
    page = msgspec.convert(await call.service.read(map_path(store, name) + query), EntriesResponse)

    def place(entry: Entry) -> str:
        return link("/map/entry", store=store, map=name, key=entry.key)

    columns: list[Column[Entry]] = [
        Column("Key", lambda entry: name_shown(entry.key), href=place),
        Column("Value", lambda entry: value_start(entry.value)),
        figures("Size", lambda entry: len(entry.value), place, units.size),
        figures("Revision", lambda entry: entry.revision, place, units.version),
    ]
    caption, empty = "Entries; they follow the map", "The map has no key above this."
    rows = table(call, "entries", columns, page.entries, caption=caption, empty=empty)
    more = onward("Next →", call.here(after=page.entries[-1].key), "More entries") if page.more else None
    return [rows, more]


async def _locks(call: PageCall, store: str, name: str) -> Content:
    rows = documents((await call.service.read(durable_path(store, name))).get("locks"))

    def until(row: Document) -> Content:
        until_ms = number(row.get("until_ms"))
        left = until_ms / 1000 - time.time()
        return [moment(until_ms), element("small", f" in {units.duration(left)}" if left > 0 else " has ended")]

    def key(row: Document) -> Content:
        return element("code", str(row["key"])) if row.get("key") else "the whole map"

    def entry(row: Document) -> str:
        return link("/map/entry", store=store, map=name, key=str(row["key"])) if row.get("key") else ""

    def acts(row: Document) -> Content:
        place = {"store": store, "map": name, "key": str(row.get("key") or "")}
        return [action(call, LOCK, "Steal", **place), action(call, UNLOCK, "Release", **place)]

    columns: list[Column[Document]] = [
        Column("Key", key, lambda row: str(row.get("key")), href=entry),
        Column("Owner", lambda row: str(row.get("owner")), lambda row: str(row.get("owner"))),
        Column("Fence", lambda row: str(row.get("fence")), is_number=True, href=entry),
        Column("Until", until, lambda row: number(row.get("until_ms"))),
        Column("", acts),
    ]
    caption = "Locks, newest first, at most 100"
    return table(call, "locks", columns, rows, caption=caption, empty="No lock is held.")


async def _entry(call: PageCall) -> Content:
    store, name, key = call.required("store"), call.required("map"), call.required("key")
    held = call.options.acts and await _locked(call, key)
    place = {"store": store, "map": name, "key": key}
    acts = [
        action(call, SET, "Set", **place),
        action(call, LOCK, "Steal the lock" if held else "Lock", **place),
        action(call, UNLOCK, "Release the lock", **place) if held else None,
        action(call, REMOVE, "Remove", "danger", **place),
    ]
    return [
        live("entry", section("Entry", await attempt(_entry_facts(call, key)), actions=acts)),
        commands(call, map_path(store, name, key), f"holdfast stores map get {store}/{name} {key}"),
    ]


async def _entry_facts(call: PageCall, key: str) -> Content:
    store, name = call.required("store"), call.required("map")
    entry = await _map_of(call).get(key)
    if entry is None:
        return element("p", "The key is not in the map.", class_="empty")
    held = await _held(call, key)
    about: dict[str, Content] = {
        "Map": anchor(f"{store}/{name}", link("/map", store=store, map=name)),
        "Key": whole_name(key),
        "Lock": "none" if held is None else holder(held),
        "Revision": code(str(entry.revision), copy=True),
    }
    choose = form_choice(call, store=store, map=name, key=key)
    return [facts(about), choose, value_of(entry.value, form_named(call.text("form")))]


def _map_of(call: PageCall) -> Map:
    return call.service.stores.map(call.required("store"), call.required("map"), retry_duration=0)


def _to_map(call: PageCall) -> str:
    return link("/map", store=call.text("store"), map=call.text("map"))


def _to_entry(call: PageCall, key: str) -> str:
    return link("/map/entry", store=call.text("store"), map=call.text("map"), key=key) if key else _to_map(call)


async def _set_form(call: PageCall) -> Form:
    store, name, key = call.required("store"), call.required("map"), call.text("key")
    entry = await _map_of(call).get(key) if key else None
    old, revision = (None, 0) if entry is None else (entry.value, entry.revision)
    effect = f"Sets a key of {store}/{name}, after a look at the old and the new value."
    return writing_form(
        effect, Input("key", "Key", key, required=True), old, "revision", revision, _to_entry(call, key)
    )


async def _set(call: PageCall) -> ActionDone | Form:
    key, value = call.form.get("key", ""), value_given(call.form)
    entry = await _map_of(call).get(key)
    old, revision, token = (None, 0, "") if entry is None else (entry.value, entry.revision, entry.token)
    only = f", only at revision {revision}" if revision else ", only if it does not exist"
    effect = [
        await _lock_notice(call, key),
        element("p", "Sets ", name_shown(key), f"{only}. Watchers see it at once."),
    ]
    mark = mark_of(key.encode(), value, b"%d" % revision, token.encode())
    confirm = comparing_form(call, effect, old, value, "revision", revision, "Set", mark)
    if not confirm.is_seen_in(call.form):
        return confirm
    revision = await _map_of(call).set(key, value, if_revision=revision)
    return ActionDone(f"{units.shortened(key)} is set at revision {revision}.", _to_entry(call, key))


async def _remove_form(call: PageCall) -> Form:
    store, name, key = call.required("store"), call.required("map"), call.required("key")
    entry = await _map_of(call).get(key)
    if entry is None:
        raise InvalidRequest("the key is not in the map")
    about = f" ({units.size(len(entry.value))}, revision {entry.revision}) from "
    where = element("strong", f"{store}/{name}")
    return Form(
        effect=[
            await _lock_notice(call, key),
            element("p", "Removes ", element("code", key), about, where, ". This cannot be undone."),
        ],
        button="Remove",
        back=_to_entry(call, key),
        seen=f"{entry.revision} {entry.token}",
        typed=key if units.in_heading(key) == key else "remove this key",
    )


async def _remove(call: PageCall) -> ActionDone | Form:
    key, confirm = call.required("key"), await _remove_form(call)
    if not confirm.is_seen_in(call.form):
        return confirm
    there = await _map_of(call).remove(key, if_revision=whole("the revision", confirm.seen.partition(" ")[0]))
    return ActionDone(f"{key} is removed." if there else f"{key} was not there.", _to_map(call))


async def _held(call: PageCall, key: str) -> Document | None:
    """The lock of a key, or of the whole map without one, as far as the service lists it, with the map's
    token; None where it is free."""
    durable = await call.service.read(durable_path(call.required("store"), call.required("map")))
    held = next((row for row in documents(durable.get("locks")) if str(row.get("key") or "") == key), None)
    if held is None or number(held.get("until_ms")) <= time.time() * 1000:
        return None
    return {**held, "token": durable.get("token", "")}


async def _locked(call: PageCall, key: str) -> bool:
    """Whether a key is known to be locked."""
    try:
        return await _held(call, key) is not None
    except HoldfastError:
        return False  # the page says why


def holder(held: Document) -> Content:
    """Who holds a lock, and until when."""
    until_ms = number(held.get("until_ms"))
    left = units.duration(max(0.0, until_ms / 1000 - time.time()))
    return ["held by ", element("strong", str(held.get("owner"))), f" for {left}, until ", moment(until_ms)]


async def _lock_notice(call: PageCall, key: str) -> Content:
    """That a key is locked, or the whole map: a change without the lock's fence does not wait for its owner."""
    held = await _held(call, key) or await _held(call, "")
    if held is None:
        return None
    return notice("warn", "The lock is ", holder(held), ". This change does not wait for it.")


async def _lock_form(call: PageCall) -> Form:
    key = call.text("key")
    held = await _held(call, key)
    stealing = "Stealing takes it away from its owner, whose next change with its fence is refused (not_holder)."
    return Form(
        effect=[
            None if held is None else notice("warn", "The lock is ", holder(held), "."),
            element("p", "Takes the lock of a key, or of the whole map without one, for a time."),
            element("p", stealing),
        ],
        button="Lock",
        back=_to_entry(call, key),
        inputs=(
            Input("key", "Key", key, note="empty: the whole map"),
            Input("owner", "Owner", "console", required=True),
            Input("seconds", "For seconds", str(LOCK_SECONDS), "number", required=True),
            Input("steal", "Steal it from another owner", "", "check"),
        ),
    )


def _what(key: str) -> str:
    return f"the key {key}" if key else "the whole map"


async def _lock(call: PageCall) -> ActionDone:
    key, owner = call.form.get("key", ""), call.form.get("owner", "")
    seconds, steal = whole("the time", call.form.get("seconds", "")), call.form.get("steal") == "1"
    lock = await _map_of(call).lock(key, owner=owner, ttl_ms=seconds * 1000, steal=steal)
    term = f"with fence {lock.fence} for {units.duration(seconds)}"
    return ActionDone(f"{owner} has the lock of {_what(key)} {term}.", _to_map(call))


async def _unlock_form(call: PageCall) -> Form:
    key = call.text("key")
    held = await _held(call, key)
    if held is None:
        raise InvalidRequest("the lock is free, or it is not among the newest 100 of its map", key=key)
    what = ["the lock of ", element("strong", key)] if key else "the lock of the whole map"
    next_change = "Its owner's next change with this fence is refused (not_holder). The next one gets the lock."
    return Form(
        effect=[
            element("p", "Releases ", what, ", which is ", holder(held), f", with fence {held.get('fence')}."),
            element("p", next_change),
            element("p", "It is refused if another owner has taken the lock meanwhile."),
        ],
        button="Release",
        back=_to_entry(call, key),
        seen=f"{held.get('fence')} {held['token']}",
    )


async def _unlock(call: PageCall) -> ActionDone | Form:
    key, form = call.text("key"), await _unlock_form(call)
    held = await _held(call, key)
    if held is None or not form.is_seen_in(call.form):
        return form
    owner, fence = str(held.get("owner")), whole("the fence", form.seen.partition(" ")[0])
    await _map_of(call).unlock(Lock(key, owner, fence, 0, str(held["token"])))
    return ActionDone(f"The lock of {_what(key)} is free; {owner} had it with fence {fence}.", _to_map(call))


SET: Final = Action("/map/set", "Set a key", "Maps", _set_form, _set, "write")
REMOVE: Final = Action("/map/remove", "Remove a key", "Maps", _remove_form, _remove, "write")
LOCK: Final = Action("/map/lock", "Lock a key", "Maps", _lock_form, _lock, "write")
UNLOCK: Final = Action("/map/unlock", "Release a lock", "Maps", _unlock_form, _unlock, "write")
PAGES: Final = (
    Screen("/maps", "Maps", "Maps", _maps),
    Screen("/map", lambda call: f"Map {call.text('store')}/{call.text('map')}", "Maps", _map),
    Screen("/map/entry", lambda call: f"Entry {units.in_heading(call.text('key'))}", "Maps", _entry),
)
ACTIONS: Final = (SET, REMOVE, LOCK, UNLOCK)
