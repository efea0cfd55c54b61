"""The keys of the log's view: browsing, one key with its history, the keys that change most, and an edit."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Final

import msgspec

from holdfast.client.protocol.effects import TransactionEvent
from holdfast.commit.format.transaction import Delete, Operation, PointRead, RangeDelete, Write, prefix_end
from holdfast.console import units
from holdfast.console.call import Action, Call, Done, Form, Input, Page, link, whole
from holdfast.console.html import Content, Html, element, text_of
from holdfast.console.parts import (
    Column,
    action,
    anchor,
    attempt,
    code,
    commands,
    facts,
    live,
    moment,
    name_shown,
    notice,
    section,
    table,
    whole_name,
)
from holdfast.console.reading import backwards
from holdfast.console.reading.backwards import LogSearch
from holdfast.console.values import (
    bytes_of,
    compared,
    form_choice,
    form_named,
    key_link,
    log_at,
    mark_of,
    packed,
    unpacked,
    value_given,
    value_of,
)
from holdfast.errors import InvalidRequest
from holdfast.wire.log import ConflictingPlace, Conflicts, Found, VersionAnswer

ROWS: Final = 50
HISTORY: Final = 20
HOT_TRANSACTIONS: Final = 1_000
HOT_ROWS: Final = 15
VALUE_CHARACTERS: Final = 80


async def _keys(call: Call) -> Html:
    return text_of(
        [
            section("Browse", _form(call), await attempt(_browse(call)), actions=[_new(call)]),
            element("div", section("Keys that change most", await attempt(_hot(call))), id="hot"),
            element("div", section("Keys of conflicts", await attempt(_conflicting(call))), id="conflicts"),
            commands(
                call, f"/v1/range?prefix_text={call.text('prefix')}&text=true&limit={ROWS}", "holdfast get --help"
            ),
        ]
    )


def _new(call: Call) -> Content:
    return action(call, EDIT, "Write a key", new=1)


def _form(call: Call) -> Html:
    prefix = element(
        "input", type="text", name="prefix", value=call.text("prefix"), placeholder="orders/ or 0x…", spellcheck="false"
    )
    at = element("input", type="text", name="at", value=call.text("at"), placeholder="newest", inputmode="numeric")
    return element(
        "form",
        element("label", "Keys that begin with", prefix, class_="grow"),
        element("label", "Not older than version", at),
        element("button", "Show", type="submit", class_="primary"),
        method="get",
        action="/keys",
        role="search",
        aria_label="Browse keys",
        class_="query",
    )


async def _browse(call: Call) -> Html:
    prefix = bytes_of(call.text("prefix"))
    after = unpacked(call.text("after")) if call.text("after") else None
    at = call.number("at") or None
    if after is None:
        found = await call.service.log.range(prefix=prefix, limit=ROWS, at=at)
    else:
        found = await call.service.log.range(after + b"\0", prefix_end(prefix), limit=ROWS, at=at)
    shown = table(
        call,
        "keys",
        [
            Column("Key", lambda item: key_link(item.key)),
            Column("Value", _short),
            Column(
                "Size",
                lambda item: units.size(len(item.value)),
                lambda item: len(item.value),
                is_number=True,
                href=lambda item: link("/key", key=packed(item.key)),
            ),
            Column(
                "Version",
                lambda item: str(item.version),
                lambda item: item.version,
                href=lambda item: link("/transaction", version=item.version),
            ),
        ],
        found.items,
        caption="Keys in byte order",
        empty="No key begins with this.",
        is_live=False,
    )
    more: Content = None
    if found.more:
        more = element(
            "nav",
            anchor("Next →", call.here(after=packed(found.items[-1].key))),
            class_="pages",
            aria_label="More keys",
        )
    return text_of([element("p", "As of version ", log_at(found.version), ".", class_="note"), shown, more])


def _short(item: Found) -> Html:
    try:
        shown = units.bytes_text(item.value[: units.SHOWN_BYTES_MAX], "text")
    except ValueError:
        shown = units.bytes_text(item.value[:VALUE_CHARACTERS], "hex")
    return element("code", shown if len(shown) <= VALUE_CHARACTERS else f"{shown[:VALUE_CHARACTERS]}…")


async def _hot(call: Call) -> Html:
    newest = await backwards.newest_version(call.service)
    found = await backwards.newest(call.service, newest, HOT_TRANSACTIONS)
    counted = Counter(key for event in found.transactions for key in {_key_of(each) for each in event.operations})
    counted.pop(b"", None)
    if not found.transactions:
        return element("p", "No transaction yet.", class_="empty")
    seconds = (found.transactions[0].time_ms - found.transactions[-1].time_ms) / 1000
    note = f"Of the newest {len(found.transactions):,} transactions, which span {units.duration(max(0.001, seconds))}."

    def changes(row: tuple[bytes, int]) -> str:
        return link("/log", key=units.key_text(row[0]))

    return text_of(
        [
            element("p", note, class_="note"),
            table(
                call,
                "hot",
                [
                    Column("Key", lambda row: key_link(row[0])),
                    Column(
                        "Transactions",
                        lambda row: units.count(row[1]),
                        lambda row: row[1],
                        is_number=True,
                        href=changes,
                    ),
                    Column("Part", lambda row: f"{row[1] / len(found.transactions):.0%}", is_number=True, href=changes),
                ],
                counted.most_common(HOT_ROWS),
                caption="Keys that change most",
                empty="No key was changed.",
            ),
        ]
    )


async def _conflicting(call: Call) -> Html:
    found = msgspec.convert(await call.service.read(f"/v1/log/conflicts?limit={HOT_ROWS}"), Conflicts)

    def place(row: ConflictingPlace) -> Content:
        if not row.is_range:
            return key_link(row.begin)
        end = "the last key" if row.end is None else name_shown(units.key_text(row.end))
        return ["range ", name_shown(units.key_text(row.begin)), " to ", end]

    def changes(row: ConflictingPlace) -> str:
        """What wrote to the key; of a range, the keys from its beginning on."""
        begin = units.key_text(row.begin)
        return link("/keys", prefix=begin) if row.is_range else link("/log", key=begin)

    note = (
        f"Preconditions that were broken in the last {units.duration(max(1.0, found.seconds))} under this leader: "
        f"{units.count(found.total)}. "
    )
    note += f"A count may be {units.count(found.lost)} too low." if found.lost else "The counts are exact."
    return text_of(
        [
            live("conflicts-note", element("p", note, class_="note")),
            table(
                call,
                "conflicts",
                [
                    Column("Key or range", place),
                    Column(
                        "Conflicts",
                        lambda row: units.count(row.conflicts),
                        lambda row: row.conflicts,
                        is_number=True,
                        href=changes,
                    ),
                    Column(
                        "Part",
                        lambda row: f"{row.conflicts / max(1, found.total):.0%}",
                        is_number=True,
                        href=changes,
                    ),
                ],
                found.places,
                caption="Keys and ranges of conflicts, most first",
                empty="No commit was refused for a conflict.",
            ),
        ]
    )


def _key_of(operation: Operation) -> bytes:
    return operation.begin if isinstance(operation, RangeDelete) else operation.key


async def _key(call: Call) -> Html:
    key = unpacked(call.required("key"))
    return text_of(
        [
            live("value", section("Value", await attempt(_value(call, key)), actions=_acts(call, key))),
            section("History, newest first", await attempt(_history(call, key))),
            commands(call, f"/v1/keys/{packed(key)}", f"holdfast get --encoding hex {key.hex()}"),
        ]
    )


def _acts(call: Call, key: bytes) -> list[Content]:
    return [action(call, EDIT, "Edit", key=packed(key)), action(call, DELETE, "Delete", danger=True, key=packed(key))]


async def _value(call: Call, key: bytes) -> Html:
    found = await call.service.log.get(key)
    if found is None:
        return notice("none", "The key does not exist. Its history may say when it was deleted.")
    form = form_named(call.text("form"))
    return text_of(
        [
            facts(
                {
                    "Key": whole_name(units.key_text(key)),
                    "Version": anchor(str(found.version), link("/transaction", version=found.version)),
                    "Key in base64url": code(packed(key), copy=True),
                }
            ),
            form_choice(call, key=packed(key)),
            value_of(found.value, form),
        ]
    )


async def _history(call: Call, key: bytes) -> Html:
    high = call.number("below") or await backwards.newest_version(call.service)
    found = await backwards.newest(call.service, high, HISTORY, LogSearch(key, key + b"\0"))
    rows = [
        element("li", moment(event.time_ms), " ", _version(event), " ", _change(event)) for event in found.transactions
    ]
    more: Content = None
    if found.older is not None:
        label = "Older →" if rows else "Go on searching →"
        more = element("nav", anchor(label, call.here(below=found.older)), class_="pages", aria_label="Older changes")
    elif found.truncated:
        more = notice("none", "What is older was removed: see ", anchor("retention", "/retention"), ".")
    empty = element("p", "No change in what was read.", class_="empty")
    return text_of([element("ol", rows, class_="history") if rows else empty, more])


def _version(event: TransactionEvent) -> Html:
    return anchor(str(event.version), link("/transaction", version=event.version))


def _change(event: TransactionEvent) -> Content:
    last = event.operations[-1] if event.operations else None
    if isinstance(last, Write):
        return value_of(last.value)
    return "deleted" if isinstance(last, Delete) else "deleted with a range"


async def _edit_form(call: Call) -> Form:
    name = call.text("key")
    key = unpacked(name) if name else b""
    found = await call.service.log.get(key) if name else None
    shown, form = "", "text"
    if found is not None:
        try:
            shown = units.bytes_text(found.value, "text")
            if len(found.value) > units.SHOWN_BYTES_MAX:
                raise InvalidRequest("the value is too large to be edited here", bytes=len(found.value))
        except ValueError as error:
            if isinstance(error, InvalidRequest):
                raise
            shown, form = found.value.hex(" "), "hex"
    expected = str(found.version) if found is not None else "0"
    effect = "Commits one transaction that writes the key, after a look at the old and the new value."
    return Form(
        effect=element("p", effect),
        button="Compare",
        back=link("/key", key=name) if name else "/keys",
        inputs=(
            Input("key", "Key", units.key_text(key), note="text, or hex after 0x", required=True),
            Input("value", "Value", shown, "area"),
            Input("form", "The value is written as", form, "choice", choices=("text", "hex")),
            Input("version", "", expected, "hidden"),
        ),
    )


async def _edit(call: Call) -> Done | Form:
    key, value = bytes_of(call.form.get("key", "")), value_given(call.form)
    newest, found = await _newest(call, key)
    confirm = _compared(call, key, found, value)
    if not confirm.is_seen_in(call.form):
        return confirm
    version = await _commit(call, [Write(key, value)], key, newest)
    return Done(
        f"{units.shortened(units.key_text(key))} is written at version {version}.", link("/key", key=packed(key))
    )


def _compared(call: Call, key: bytes, found: Found | None, value: bytes) -> Form:
    """What an edit would change: the old value, the new one, and the version on which it depends."""
    version = 0 if found is None else found.version
    only = f"the key is unchanged since version {version}" if version else "the key still does not exist"
    expected = whole("the version", call.form.get("version", "0"))
    changed = None
    if expected != version:
        since = f"The key has changed since version {expected}" if expected else "The key exists by now"
        changed = notice("warn", f"{since}. This is what it has now, and what you give it.")
    return Form(
        effect=[
            changed,
            element("p", "Commits one transaction that writes ", name_shown(units.key_text(key)), f", only if {only}."),
            compared(None if found is None else found.value, value, "version"),
        ],
        button="Commit",
        back=link("/key/edit", **call.query),
        inputs=tuple(
            Input(name, "", call.form.get(name, ""), "hidden") for name in ("key", "value", "form", "version")
        ),
        seen=mark_of(key, value, b"%d" % version),
    )


async def _newest(call: Call, key: bytes) -> tuple[VersionAnswer, Found | None]:
    """The newest version, and the key at it."""
    newest = await call.service.log.version()
    return newest, await call.service.log.get(key, newest.version)


async def _commit(call: Call, operations: list[Operation], key: bytes, newest: VersionAnswer) -> int:
    """Commit if the key does not change after ``newest``. One attempt: a conflict is the answer.

    The version of the form may be older than the conflict window, so the key was read again at ``newest``.
    """
    receipt = await call.service.log.commit(
        operations,
        [PointRead(key, newest.version)],
        read_version=newest.version,
        request_id=f"console-{secrets.token_hex(16)}",
        log_id=newest.log_id,
    )
    return receipt.version


async def _delete_form(call: Call) -> Form:
    key = unpacked(call.required("key"))
    return _deleting(key, await call.service.log.get(key))


def _deleting(key: bytes, found: Found | None) -> Form:
    """What a deletion removes. Raises: InvalidRequest."""
    if found is None:
        raise InvalidRequest("the key does not exist")
    name = units.key_text(key)
    return Form(
        effect=[
            element(
                "p",
                "Commits one transaction that deletes ",
                name_shown(name),
                f", {units.size(len(found.value))}.",
            ),
            element(
                "p",
                f"It is refused if the key has changed since version {found.version}. The log keeps its history.",
            ),
        ],
        button="Delete",
        back=link("/key", key=packed(key)),
        typed=name if units.in_heading(name) == name else "delete this key",
        seen=str(found.version),
    )


async def _delete(call: Call) -> Done | Form:
    key = unpacked(call.required("key"))
    newest, found = await _newest(call, key)
    confirm = _deleting(key, found)
    if not confirm.is_seen_in(call.form):
        return confirm
    version = await _commit(call, [Delete(key)], key, newest)
    return Done(
        f"{units.shortened(units.key_text(key))} is deleted at version {version}.", link("/key", key=packed(key))
    )


EDIT: Final = Action("/key/edit", "Write a key", "Keys", _edit_form, _edit, "write")
DELETE: Final = Action("/key/delete", "Delete a key", "Keys", _delete_form, _delete, "write")
PAGES: Final = (
    Page("/keys", "Keys", "Keys", _keys),
    Page("/key", lambda call: f"Key {units.in_heading(units.key_text(unpacked(call.text('key'))))}", "Keys", _key),
)
ACTIONS: Final = (EDIT, DELETE)
