"""The log: its transactions, newest first, one of them in detail, a search, and the leaders that were seen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from holdfast.client.protocol.effects import TransactionEvent
from holdfast.client.protocol.messages import query_of
from holdfast.commit.format.transaction import Delete, Operation, PointRead, Precondition, Write
from holdfast.console import units
from holdfast.console.call import Call, Page, link, whole
from holdfast.console.html import Content, Html, element, join, text_of
from holdfast.console.pages.jobs import VERIFY, job_of
from holdfast.console.pages.leaders import leaders
from holdfast.console.parts import (
    Column,
    action,
    anchor,
    attempt,
    badge,
    code,
    commands,
    facts,
    live,
    moment,
    name_shown,
    notice,
    section,
    table,
    tile,
    tiles,
)
from holdfast.console.reading import backwards
from holdfast.console.reading.backwards import BackwardPage, LogSearch
from holdfast.console.reading.service import Document, documents, number
from holdfast.console.values import bytes_of, key_link, log_at, value_of
from holdfast.errors import InvalidRequest
from holdfast.wire.log import TransactionInLog

ROWS: Final = 50
BATCHES: Final = 20
OPERATIONS_SHOWN: Final = 3
BATCH_MEAN_SECONDS: Final = 60.0


async def _log(call: Call) -> Html:
    return text_of(
        [
            live("batches", section("Now", await attempt(_now(call)))),
            section("Transactions", _search_form(call), await attempt(_transactions(call))),
            section("Batches", await attempt(_batches(call))),
            element(
                "div",
                section(
                    "Verification",
                    live("job", await attempt(job_of(call, "verify"))),
                    actions=[action(call, VERIFY, "Verify a range")],
                ),
                id="verify",
            ),
            element("div", section("Leaderships", await attempt(leaders(call))), id="leaderships"),
            commands(call, "/v1/subscribe?after=0", "holdfast subscribe --after 0 --limit 10"),
        ]
    )


async def _now(call: Call) -> Html:
    recent = call.watcher.recent(BATCH_MEAN_SECONDS)
    if recent is None:
        return element("p", "Collecting…", class_="empty")
    before, now = recent

    def rise(name: str, **labels: str) -> float:
        return max(0.0, now.total(name, **labels) - before.total(name, **labels))

    seconds, batches = max(1e-9, now.at - before.at), rise("holdfast_batches_total")
    committed, size = rise("holdfast_commits_total", outcome="committed"), rise("holdfast_batch_bytes_total")
    return tiles(
        tile(
            "Batches",
            units.rate(batches / seconds),
            href="#h-batches",
            note=f"over {units.duration(seconds)}",
        ),
        tile(
            "Transactions in a batch",
            f"{committed / batches:.1f}" if batches else "–",
            href="#h-batches",
            note="mean",
        ),
        tile("Size of a batch", units.size(size / batches) if batches else "–", href="#h-batches", note="mean"),
        tile(
            "In flight",
            units.count(now.value("holdfast_watermark_lag_slots")),
            href="/#slow",
            note="slots sent and not durable",
        ),
        tile(
            "PUTs again",
            units.rate(
                (rise("holdfast_puts_total", reason="retry") + rise("holdfast_puts_total", reason="hedge")) / seconds
            ),
            href="/#slow",
            note="retries and hedges",
        ),
        tile(
            "Damaged places", units.count(now.value("holdfast_log_damaged_places")), href="/runbooks#holdfastlogdamaged"
        ),
    )


async def _batches(call: Call) -> Html:
    """The newest objects. They are not live: each is a request to the object store."""
    slot = call.text("slot")
    target = f"/v1/log/objects{query_of(limit=BATCHES, slot=slot or None)}"
    answer = await call.service.read(target)
    rows = table(
        call,
        "batches",
        [
            Column("Slot", lambda row: code(str(row["slot"])), href=lambda row: _from_slot(row) + "#h-batches"),
            Column("Kind", lambda row: badge(str(row["kind"]), "none" if row["kind"] == "data" else "warn")),
            Column(
                "Size",
                lambda row: units.size(number(row["bytes"])),
                lambda row: number(row["bytes"]),
                is_number=True,
                href=_in_batch,
            ),
            Column(
                "Transactions",
                lambda row: units.count(number(row["transactions"])),
                lambda row: number(row["transactions"]),
                is_number=True,
                href=_in_batch,
            ),
            Column("Versions", _versions_of, href=_in_batch),
            Column(
                "Epoch", lambda row: units.count(number(row["epoch"])), is_number=True, href=lambda _: "#leaderships"
            ),
            Column("Leader", lambda row: element("code", str(row["leader_id"])[:8]), href=lambda _: "#leaderships"),
            Column("Time", lambda row: moment(number(row["time_ms"]))),
        ],
        documents(answer.get("objects")),
        caption="Batches, newest first",
        empty="The log has no object.",
        is_live=False,
    )
    older = answer.get("next")
    more: Content = None
    if older is not None:
        more = element("nav", anchor("Older →", call.here(slot=str(older))), class_="pages", aria_label="Older batches")
    return text_of([rows, more])


def _from_slot(row: Document) -> str:
    return link("/log", slot=str(row["slot"]))


def _in_batch(row: Document) -> str:
    """The log from its last transaction back."""
    return link("/log", at=int(number(row["last_version"])))


def _versions_of(row: Document) -> str:
    first, last = int(number(row["first_version"])), int(number(row["last_version"]))
    return str(last) if first >= last else f"{first} to {last}"


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
    wanted = LogSearch(matches=(lambda event: event.request_id == request) if request else None)
    if key:
        begin = bytes_of(key)
        wanted = LogSearch(begin, begin + b"\0", wanted.matches)
    found = await backwards.newest(call.service, await _where(call), 1 if request else ROWS, wanted)
    is_tail = not any(call.text(name) for name in ("at", "time", "request", "key"))
    shown = table_of(call, "txn", found.transactions, is_live=is_tail)
    said = "The newest transactions; this list follows the log." if is_tail else _progress(found)
    return text_of([element("p", said, class_="note"), shown, _older(call, found)])


def _progress(found: BackwardPage) -> str:
    more = "the log goes on before that" if found.older is not None else "this is the beginning of what the log has"
    return f"{len(found.transactions)} found, {units.count(found.looked_at)} transactions looked at; {more}."


def _older(call: Call, found: BackwardPage) -> Content:
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
            Column(
                "Request id",
                lambda event: element("code", event.request_id) if event.request_id else "–",
                href=lambda event: link("/log", request=event.request_id, at=event.version),
            ),
            Column(
                "Leader",
                lambda event: element("code", event.leader_id[:8]),
                href=lambda _: "/log#leaderships",
            ),
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
            end = "the last key" if operation.end is None else name_shown(units.key_text(operation.end))
            return text_of(["delete range ", name_shown(units.key_text(operation.begin)), " to ", end])


async def _transaction(call: Call) -> Html:
    version = whole("version", call.required("version"))
    found = msgspec.convert(await call.service.read(f"/v1/log/transactions/{version}"), TransactionInLog)
    newer = await backwards.first_after(call.service, version)
    writes = [
        element("div", _operation(each), value_of(each.value) if isinstance(each, Write) else None, class_="operation")
        for each in found.operations
    ]
    reads = [
        element("div", _precondition(each, found.read_version), class_="operation") for each in found.preconditions
    ]
    nothing = element("p", "It passed no precondition.", class_="empty")
    return text_of(
        [
            section("Facts", _facts(found, newer)),
            section(units.counted(len(writes), "operation"), writes),
            section(units.counted(len(reads), "precondition"), reads or nothing),
            commands(call, f"/v1/log/transactions/{version}", f"holdfast subscribe --after {version - 1} --limit 1"),
        ]
    )


def _facts(found: TransactionInLog, newer: TransactionEvent | None) -> Html:
    after = "none yet" if newer is None else anchor(str(newer.version), link("/transaction", version=newer.version))
    return facts(
        {
            "Version": code(str(found.version), copy=True),
            "Time": moment(found.object.time_ms),
            "Request id": code(found.request_id, copy=True) if found.request_id else "none",
            "Read version": "none" if found.read_version is None else log_at(found.read_version),
            "Leader": anchor(code(found.object.leader_id), "/log#leaderships"),
            "Batch": anchor(code(found.object.slot), link("/log", slot=found.object.slot)),
            "Log from here back": log_at(found.version - 1),
            "Next transaction": after,
        }
    )


def _precondition(precondition: Precondition, read_version: int | None) -> Html:
    version = precondition.version if precondition.version is not None else read_version
    since = text_of([" unchanged since version ", "–" if version is None else log_at(version)])
    if isinstance(precondition, PointRead):
        return text_of(["key ", key_link(precondition.key), since])
    end = "the last key" if precondition.end is None else name_shown(units.key_text(precondition.end))
    return text_of(["range ", name_shown(units.key_text(precondition.begin)), " to ", end, since])


PAGES: Final = (
    Page("/log", "Log", "Log", _log),
    Page("/transaction", lambda call: f"Transaction {call.text('version')}", "Log", _transaction),
)
