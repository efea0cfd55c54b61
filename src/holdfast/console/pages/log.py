"""The log: its transactions, newest first, one of them in detail, a search, and the leaders that were seen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from holdfast.client.protocol.effects import TransactionEvent
from holdfast.commit.format.transaction import Delete, Operation, Write
from holdfast.console import backwards, units
from holdfast.console.backwards import Found, Wanted
from holdfast.console.call import Call, Page, link, whole
from holdfast.console.html import Content, Html, element, join, text_of
from holdfast.console.pages.leaders import leaders
from holdfast.console.parts import (
    Column,
    anchor,
    attempt,
    code,
    commands,
    facts,
    live,
    moment,
    notice,
    section,
    table,
    tile,
    tiles,
)
from holdfast.console.values import bytes_of, key_link, value_of
from holdfast.errors import InvalidRequest, NotFound

ROWS: Final = 50
OPERATIONS_SHOWN: Final = 3
BATCH_MEAN_SECONDS: Final = 60.0


async def _log(call: Call) -> Html:
    return text_of(
        [
            live("batches", section("Batches", await attempt(_batches(call)))),
            section("Transactions", _search_form(call), await attempt(_transactions(call))),
            section("Leaderships", element("div", live("leaders", leaders(call)), id="leaderships")),
            commands(call, "/v1/subscribe?after=0", "holdfast subscribe --after 0 --limit 10"),
        ]
    )


async def _batches(call: Call) -> Html:
    recent = call.watcher.recent(BATCH_MEAN_SECONDS)
    if recent is None:
        return element("p", "Collecting…", class_="empty")
    before, now = recent

    def rise(name: str, **labels: str) -> float:
        return max(0.0, now.total(name, **labels) - before.total(name, **labels))

    seconds, batches = max(1e-9, now.at - before.at), rise("holdfast_batches_total")
    committed, size = rise("holdfast_commits_total", outcome="committed"), rise("holdfast_batch_bytes_total")
    return tiles(
        tile("Batches", units.rate(batches / seconds), note=f"over {units.duration(seconds)}"),
        tile("Transactions in a batch", f"{committed / batches:.1f}" if batches else "–", note="mean"),
        tile("Size of a batch", units.size(size / batches) if batches else "–", note="mean"),
        tile("In flight", units.count(now.value("holdfast_watermark_lag_slots")), note="slots sent and not durable"),
        tile(
            "PUTs again",
            units.rate(
                (rise("holdfast_puts_total", reason="retry") + rise("holdfast_puts_total", reason="hedge")) / seconds
            ),
            note="retries and hedges",
        ),
        tile(
            "Damaged places", units.count(now.value("holdfast_log_damaged_places")), href="/runbooks#holdfastlogdamaged"
        ),
    )


def _search_form(call: Call) -> Html:
    def field(name: str, label: str, placeholder: str, *, grow: bool = False) -> Html:
        given = element(
            "input", type="text", name=name, value=call.text(name), placeholder=placeholder, spellcheck="false"
        )
        return element("label", label, given, class_="grow" if grow else None)

    return element(
        "form",
        field("at", "At or below version", "newest"),
        field("time", "At or before (UTC)", "2026-11-27T09:30:00"),
        field("request", "Request id", "", grow=True),
        field("key", "Key", "seat/12A or 0x…", grow=True),
        element("button", "Search", type="submit", class_="primary"),
        anchor("Newest", "/log", class_="button"),
        method="get",
        action="/log",
        role="search",
        aria_label="Search the log",
        class_="query",
    )


async def _where(call: Call) -> int:
    if call.text("time"):
        try:
            at = datetime.fromisoformat(call.text("time"))
        except ValueError:
            raise InvalidRequest("the time is ISO 8601, such as 2026-11-27T09:30:00") from None
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        newest = await backwards.newest_version(call.service)
        return await backwards.at_time(call.service, int(at.timestamp() * 1000), newest)
    if call.text("at"):
        return whole("the version", call.text("at"))
    return await backwards.newest_version(call.service)


async def _transactions(call: Call) -> Html:
    request, key = call.text("request"), call.text("key")
    wanted = Wanted(matches=(lambda event: event.request_id == request) if request else None)
    if key:
        begin = bytes_of(key)
        wanted = Wanted(begin, begin + b"\0", wanted.matches)
    found = await backwards.newest(call.service, await _where(call), 1 if request else ROWS, wanted)
    is_tail = not any(call.text(name) for name in ("at", "time", "request", "key"))
    shown = table_of(call, "txn", found.transactions, is_live=is_tail)
    said = "The newest transactions; this list follows the log." if is_tail else _progress(found)
    return text_of([element("p", said, class_="note"), shown, _older(call, found)])


def _progress(found: Found) -> str:
    more = "the log goes on before that" if found.older is not None else "this is the beginning of what the log has"
    return f"{len(found.transactions)} found, {units.count(found.looked_at)} transactions looked at; {more}."


def _older(call: Call, found: Found) -> Content:
    if found.truncated:
        return notice("none", "What is older was removed: see ", anchor("retention", "/retention"), ".")
    if found.older is None:
        return None
    href = call.here(at=found.older, time=None)
    label = "Older →" if found.transactions else "Go on searching →"
    return element("nav", anchor(label, href), class_="pages", aria_label="Older transactions")


def table_of(call: Call, name: str, rows: Sequence[TransactionEvent], *, is_live: bool) -> Html:
    """Transactions."""
    return table(
        call,
        name,
        [
            Column("Version", lambda event: anchor(str(event.version), link("/transaction", version=event.version))),
            Column("Time", lambda event: moment(event.time_ms)),
            Column("Operations", lambda event: _operations(event.operations)),
            Column("Request id", lambda event: element("code", event.request_id or "–")),
            Column("Leader", lambda event: element("code", event.leader_id[:8])),
        ],
        rows,
        caption="Transactions, newest first",
        empty="No transaction.",
        is_live=is_live,
    )


def _operations(operations: Sequence[Operation]) -> Content:
    shown: list[Content] = [_operation(each) for each in operations[:OPERATIONS_SHOWN]]
    if len(operations) > OPERATIONS_SHOWN:
        shown.append(f"and {len(operations) - OPERATIONS_SHOWN} more")
    return join(shown, ", ")


def _operation(operation: Operation) -> Html:
    match operation:
        case Write(key=key):
            return text_of(["write ", key_link(key)])
        case Delete(key=key):
            return text_of(["delete ", key_link(key)])
        case _:
            end = "the last key" if operation.end is None else element("code", units.key_text(operation.end))
            return text_of(["delete range ", element("code", units.key_text(operation.begin)), " to ", end])


async def _transaction(call: Call) -> Html:
    version = whole("version", call.required("version"))
    event = await backwards.first_after(call.service, version - 1)
    if event is None or event.version != version:
        raise NotFound("no transaction has this version", version=version)
    rows = [
        element("div", _operation(each), value_of(each.value) if isinstance(each, Write) else None, class_="operation")
        for each in event.operations
    ]
    newer = await backwards.first_after(call.service, version)
    return text_of(
        [
            section(
                "Facts",
                facts(
                    {
                        "Version": code(str(version), copy=True),
                        "Time": moment(event.time_ms),
                        "Request id": code(event.request_id, copy=True) if event.request_id else "none",
                        "Leader": code(event.leader_id),
                        "Before it": anchor(str(event.prev_version), link("/log", at=event.prev_version)),
                        "After it": "none yet"
                        if newer is None
                        else anchor(str(newer.version), link("/transaction", version=newer.version)),
                    }
                ),
            ),
            section(f"{len(event.operations)} operations", rows),
            element(
                "p",
                "The preconditions that it passed are in the log's object; the change stream does not carry them. ",
                element("code", f"holdfast log cat --after {version - 1} --limit 1"),
                " prints them from the store.",
                class_="note",
            ),
            commands(call, f"/v1/subscribe?after={version - 1}", f"holdfast subscribe --after {version - 1} --limit 1"),
        ]
    )


PAGES: Final = (
    Page("/log", "Log", "Log", _log),
    Page("/transaction", lambda call: f"Transaction {call.text('version')}", "Log", _transaction),
)
