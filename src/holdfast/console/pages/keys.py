"""The keys of the log's view: browsing, one key with its history, the keys that change most, and an edit."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Final

import msgspec

from holdfast.client.protocol.effects import TransactionEvent
from holdfast.client.protocol.messages import base64url
from holdfast.commit.format.transaction import Delete, Operation, PointRead, RangeDelete, Write, prefix_end
from holdfast.console import units
from holdfast.console.call import Action, ActionDone, Form, Input, PageCall, Screen, link
from holdfast.console.html import Content, element
from holdfast.console.parts import (
    Column,
    action,
    attempt,
    code,
    commands,
    facts,
    field,
    figures,
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
from holdfast.console.reading import backwards
from holdfast.console.reading.backwards import LogSearch
from holdfast.console.values import (
    bytes_of,
    comparing_form,
    form_choice,
    form_named,
    key_link,
    log_at,
    mark_of,
    older,
    range_shown,
    transaction_link,
    unpacked,
    value_given,
    value_of,
    value_start,
    writing_form,
)
from holdfast.errors import InvalidRequest
from holdfast.wire.log import ConflictingPlace, Conflicts, Found, VersionAnswer

ROWS: Final = 50
HISTORY: Final = 20
HOT_TRANSACTIONS: Final = 1_000
HOT_ROWS: Final = 15


async def _keys(call: PageCall) -> Content:
    prefix = field(call, "prefix", "Keys that begin with", "orders/ or 0x…", grow=True)
    at = field(call, "at", "Not older than version", "newest", is_number=True)
    form = search("/keys", "Browse keys", prefix, at)
    target = f"/v1/range?prefix_text={call.text('prefix')}&text=true&limit={ROWS}"
    return [
        section("Browse", form, await attempt(_browse(call)), actions=[action(call, EDIT, "Write a key", new=1)]),
        element("div", section("Keys that change most", await attempt(_hot(call))), id="hot"),
        element("div", section("Keys of conflicts", await attempt(_conflicting(call))), id="conflicts"),
        commands(call, target, "holdfast get --help"),
    ]


async def _browse(call: PageCall) -> Content:
    prefix = bytes_of(call.text("prefix"))
    after = unpacked(call.text("after")) if call.text("after") else None
    at = call.number("at") or None
    if after is None:
        page = await call.service.log.range(prefix=prefix, limit=ROWS, at=at)
    else:
        page = await call.service.log.range(after + b"\0", prefix_end(prefix), limit=ROWS, at=at)

    def place(item: Found) -> str:
        return link("/key", key=base64url(item.key))

    def written(item: Found) -> str:
        return link("/transaction", version=item.version)

    columns: list[Column[Found]] = [
        Column("Key", lambda item: key_link(item.key)),
        Column("Value", lambda item: value_start(item.value)),
        figures("Size", lambda item: len(item.value), place, units.size),
        Column("Version", lambda item: str(item.version), lambda item: item.version, href=written),
    ]
    rows = table(
        call, "keys", columns, page.items, caption="Keys in byte order", empty="No key begins with this.", is_live=False
    )
    more = onward("Next →", call.here(after=base64url(page.items[-1].key)), "More keys") if page.more else None
    return [element("p", "As of version ", log_at(page.version), ".", class_="note"), rows, more]


async def _hot(call: PageCall) -> Content:
    newest = await backwards.newest_version(call.service)
    events = (await backwards.newest(call.service, newest, HOT_TRANSACTIONS)).transactions
    changes = Counter(key for event in events for key in dict.fromkeys(map(_key_of, event.operations)))
    changes.pop(b"", None)
    if not events:
        return element("p", "No transaction yet.", class_="empty")
    span = units.duration(max(0.001, (events[0].time_ms - events[-1].time_ms) / 1000))

    def place(row: tuple[bytes, int]) -> str:
        return link("/log", key=units.key_text(row[0]))

    columns: list[Column[tuple[bytes, int]]] = [
        Column("Key", lambda row: key_link(row[0])),
        figures("Transactions", lambda row: row[1], place),
        Column("Part", lambda row: f"{row[1] / len(events):.0%}", is_number=True, href=place),
    ]
    rows = changes.most_common(HOT_ROWS)
    return [
        element("p", f"Of the newest {len(events):,} transactions, which span {span}.", class_="note"),
        table(call, "hot", columns, rows, caption="Keys that change most", empty="No key was changed."),
    ]


async def _conflicting(call: PageCall) -> Content:
    counts = msgspec.convert(await call.service.read(f"/v1/log/conflicts?limit={HOT_ROWS}"), Conflicts)

    def place(row: ConflictingPlace) -> Content:
        return range_shown(row.begin, row.end) if row.is_range else key_link(row.begin)

    def changes(row: ConflictingPlace) -> str:
        """What wrote to the key; of a range, the keys from its beginning on."""
        begin = units.key_text(row.begin)
        return link("/keys", prefix=begin) if row.is_range else link("/log", key=begin)

    note = (
        f"Preconditions that were broken in the last {units.duration(max(1.0, counts.seconds))} under this leader: "
        f"{units.count(counts.total)}. "
    )
    note += f"A count may be {units.count(counts.lost)} too low." if counts.lost else "The counts are exact."
    columns: list[Column[ConflictingPlace]] = [
        Column("Key or range", place),
        figures("Conflicts", lambda row: row.conflicts, changes),
        Column("Part", lambda row: f"{row.conflicts / max(1, counts.total):.0%}", is_number=True, href=changes),
    ]
    caption, empty = "Keys and ranges of conflicts, most first", "No commit was refused for a conflict."
    return [
        live("conflicts-note", element("p", note, class_="note")),
        table(call, "conflicts", columns, counts.places, caption=caption, empty=empty),
    ]


def _key_of(operation: Operation) -> bytes:
    return operation.begin if isinstance(operation, RangeDelete) else operation.key


async def _key(call: PageCall) -> Content:
    key = unpacked(call.required("key"))
    name = base64url(key)
    acts = [action(call, EDIT, "Edit", key=name), action(call, DELETE, "Delete", "danger", key=name)]
    return [
        live("value", section("Value", await attempt(_value(call, key)), actions=acts)),
        section("History, newest first", await attempt(_history(call, key))),
        commands(call, f"/v1/keys/{name}", f"holdfast get --encoding hex {key.hex()}"),
    ]


async def _value(call: PageCall, key: bytes) -> Content:
    item = await call.service.log.get(key)
    if item is None:
        return notice("none", "The key does not exist. Its history may say when it was deleted.")
    about = {
        "Key": whole_name(units.key_text(key)),
        "Version": transaction_link(item.version),
        "Key in base64url": code(base64url(key), copy=True),
    }
    return [facts(about), form_choice(call, key=base64url(key)), value_of(item.value, form_named(call.text("form")))]


async def _history(call: PageCall, key: bytes) -> Content:
    high = call.number("below") or await backwards.newest_version(call.service)
    changes = await backwards.newest(call.service, high, HISTORY, LogSearch(key, key + b"\0"))
    rows = [
        element("li", moment(event.time_ms), " ", transaction_link(event.version), " ", _change(event))
        for event in changes.transactions
    ]
    empty = element("p", "No change in what was read.", class_="empty")
    more = older(changes, call.here(below=changes.older), "Older changes")
    return [element("ol", rows, class_="history") if rows else empty, more]


def _change(event: TransactionEvent) -> Content:
    last = event.operations[-1] if event.operations else None
    if isinstance(last, Write):
        return value_of(last.value)
    return "deleted" if isinstance(last, Delete) else "deleted with a range"


async def _edit_form(call: PageCall) -> Form:
    name = call.text("key")
    key = unpacked(name) if name else b""
    item = await call.service.log.get(key) if name else None
    old, version = (None, 0) if item is None else (item.value, item.version)
    effect = "Commits one transaction that writes the key, after a look at the old and the new value."
    field_of_key = Input("key", "Key", units.key_text(key), note="text, or hex after 0x", required=True)
    return writing_form(effect, field_of_key, old, "version", version, link("/key", key=name) if name else "/keys")


async def _edit(call: PageCall) -> ActionDone | Form:
    key, value = bytes_of(call.form.get("key", "")), value_given(call.form)
    newest, item = await _newest(call, key)
    old, version = (None, 0) if item is None else (item.value, item.version)
    only = f"the key is unchanged since version {version}" if version else "the key still does not exist"
    name = name_shown(units.key_text(key))
    effect = element("p", "Commits one transaction that writes ", name, f", only if {only}.")
    mark = mark_of(key, value, b"%d" % version)
    confirm = comparing_form(call, effect, old, value, "version", version, "Commit", mark)
    return confirm if not confirm.is_seen_in(call.form) else await _commit(call, Write(key, value), key, newest)


async def _newest(call: PageCall, key: bytes) -> tuple[VersionAnswer, Found | None]:
    """The newest version, and the key at it."""
    newest = await call.service.log.version()
    return newest, await call.service.log.get(key, newest.version)


async def _commit(call: PageCall, operation: Write | Delete, key: bytes, newest: VersionAnswer) -> ActionDone:
    """Commit if the key does not change after ``newest``. One attempt: a conflict is the answer.

    The version of the form may be older than the conflict window, so the key was read again at ``newest``.
    """
    receipt = await call.service.log.commit(
        [operation],
        [PointRead(key, newest.version)],
        read_version=newest.version,
        request_id=f"console-{secrets.token_hex(16)}",
        log_id=newest.log_id,
    )
    name, done = units.shortened(units.key_text(key)), "deleted" if isinstance(operation, Delete) else "written"
    return ActionDone(f"{name} is {done} at version {receipt.version}.", link("/key", key=base64url(key)))


async def _delete_form(call: PageCall) -> Form:
    key = unpacked(call.required("key"))
    return _deleting(key, await call.service.log.get(key))


def _deleting(key: bytes, item: Found | None) -> Form:
    """What a deletion removes. Raises: InvalidRequest."""
    if item is None:
        raise InvalidRequest("the key does not exist")
    name, size = units.key_text(key), units.size(len(item.value))
    only = f"It is refused if the key has changed since version {item.version}. The log keeps its history."
    return Form(
        effect=[
            element("p", "Commits one transaction that deletes ", name_shown(name), f", {size}."),
            element("p", only),
        ],
        button="Delete",
        back=link("/key", key=base64url(key)),
        typed=name if units.in_heading(name) == name else "delete this key",
        seen=str(item.version),
    )


async def _delete(call: PageCall) -> ActionDone | Form:
    key = unpacked(call.required("key"))
    newest, item = await _newest(call, key)
    confirm = _deleting(key, item)
    return confirm if not confirm.is_seen_in(call.form) else await _commit(call, Delete(key), key, newest)


EDIT: Final = Action("/key/edit", "Write a key", "Keys", _edit_form, _edit, "write")
DELETE: Final = Action("/key/delete", "Delete a key", "Keys", _delete_form, _delete, "write")
PAGES: Final = (
    Screen("/keys", "Keys", "Keys", _keys),
    Screen("/key", lambda call: f"Key {units.in_heading(units.key_text(unpacked(call.text('key'))))}", "Keys", _key),
)
ACTIONS: Final = (EDIT, DELETE)
