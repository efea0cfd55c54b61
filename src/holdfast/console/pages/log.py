"""The log: its transactions, newest first, one of them in detail, a search, and the leaders that were seen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from holdfast.client.protocol.effects import TransactionEvent
from holdfast.client.protocol.messages import query_of
from holdfast.commit.format.transaction import Delete, Operation, PointRead, Precondition, Write
from holdfast.console import units
from holdfast.console.call import PageCall, Screen, link, whole
from holdfast.console.html import Content, Html, element, join
from holdfast.console.pages.cluster import leaders
from holdfast.console.pages.jobs import VERIFY, job_of
from holdfast.console.parts import (
    Column,
    action,
    anchor,
    attempt,
    badge,
    code,
    commands,
    facts,
    field,
    figures,
    live,
    moment,
    onward,
    search,
    section,
    table,
    tile,
    tiles,
)
from holdfast.console.reading import backwards
from holdfast.console.reading.backwards import BackwardPage, LogSearch
from holdfast.console.values import (
    bytes_of,
    key_link,
    log_at,
    older,
    range_shown,
    time_given,
    transaction_link,
    value_of,
)
from holdfast.wire.log import LogObject, LogObjects, TransactionInLog

ROWS: Final = 50
BATCHES: Final = 20
OPERATIONS_SHOWN: Final = 3
BATCH_MEAN_SECONDS: Final = 60.0


async def _log(call: PageCall) -> Content:
    job = live("job", await attempt(job_of(call, "verify")))
    verification = section("Verification", job, actions=[action(call, VERIFY, "Verify a range")])
    return [
        live("batches", section("Now", _now(call))),
        section("Transactions", _search_form(call), await attempt(_transactions(call))),
        section("Batches", await attempt(_batches(call))),
        element("div", verification, id="verify"),
        element("div", section("Leaderships", await attempt(leaders(call))), id="leaderships"),
        commands(call, "/v1/subscribe?after=0", "holdfast subscribe --after 0 --limit 10"),
    ]


def _now(call: PageCall) -> Content:
    recent = call.watcher.recent(BATCH_MEAN_SECONDS)
    if recent is None:
        return element("p", "Collecting…", class_="empty")
    before, now = recent
    rise = partial(now.rise, before)
    seconds, batches = max(1e-9, now.at - before.at), rise("holdfast_batches_total")
    committed, size = rise("holdfast_commits_total", outcome="committed"), rise("holdfast_batch_bytes_total")
    again = rise("holdfast_puts_total", reason="retry") + rise("holdfast_puts_total", reason="hedge")
    in_flight, damaged = now.value("holdfast_watermark_lag_slots"), now.value("holdfast_log_damaged_places")
    mean = f"{committed / batches:.1f}" if batches else "–"
    return tiles(
        tile("Batches", units.rate(batches / seconds), "#h-batches", f"over {units.duration(seconds)}"),
        tile("Transactions in a batch", mean, "#h-batches", "mean"),
        tile("Size of a batch", units.size(size / batches) if batches else "–", "#h-batches", "mean"),
        tile("In flight", units.count(in_flight), "/#slow", "slots sent and not durable"),
        tile("PUTs again", units.rate(again / seconds), "/#slow", "retries and hedges"),
        tile("Damaged places", units.count(damaged), "/runbooks#holdfastlogdamaged"),
    )


async def _batches(call: PageCall) -> Content:
    """The newest objects. They are not live: each is a request to the object store."""
    target = f"/v1/log/objects{query_of(limit=BATCHES, slot=call.text('slot') or None)}"
    answer = msgspec.convert(await call.service.read(target), LogObjects)

    def in_batch(row: LogObject) -> str:
        """The log from its last transaction back."""
        return link("/log", at=row.last_version)

    def versions(row: LogObject) -> str:
        first, last = row.first_version, row.last_version
        return str(last) if first >= last else f"{first} to {last}"

    columns: list[Column[LogObject]] = [
        Column("Slot", lambda row: code(row.slot), href=lambda row: link("/log", slot=row.slot) + "#h-batches"),
        Column("Kind", lambda row: badge(row.kind, "none" if row.kind == "data" else "warn")),
        figures("Size", lambda row: row.bytes, in_batch, units.size),
        figures("Transactions", lambda row: row.transactions, in_batch),
        Column("Versions", versions, href=in_batch),
        Column("Epoch", lambda row: units.count(row.epoch), is_number=True, href=lambda _: "#leaderships"),
        Column("Leader", lambda row: element("code", row.leader_id[:8]), href=lambda _: "#leaderships"),
        Column("Time", lambda row: moment(row.time_ms)),
    ]
    caption, empty = "Batches, newest first", "The log has no object."
    shown = table(call, "batches", columns, answer.objects, caption=caption, empty=empty, is_live=False)
    return [shown, None if answer.next is None else onward("Older →", call.here(slot=answer.next), "Older batches")]


def _search_form(call: PageCall) -> Html:
    return search(
        "/log",
        "Search the log",
        field(call, "at", "At or below version", "newest", is_number=True),
        field(call, "time", "At or before (UTC)", "2026-11-27T09:30:00"),
        field(call, "request", "Request id", "", grow=True),
        field(call, "key", "Key", "seat/12A or 0x…", grow=True),
        button="Search",
        also=anchor("Newest", "/log", class_="button"),
    )


async def _where(call: PageCall) -> int:
    if call.text("time"):
        time_ms = time_given(call.text("time"))
        return await backwards.at_time(call.service, time_ms, await backwards.newest_version(call.service))
    if call.text("at"):
        return whole("the version", call.text("at"))
    return await backwards.newest_version(call.service)


async def _transactions(call: PageCall) -> Content:
    request, key = call.text("request"), call.text("key")
    wanted = LogSearch(matches=(lambda event: event.request_id == request) if request else None)
    if key:
        begin = bytes_of(key)
        wanted = LogSearch(begin, begin + b"\0", wanted.matches)
    page = await backwards.newest(call.service, await _where(call), 1 if request else ROWS, wanted)
    is_tail = not any(call.text(name) for name in ("at", "time", "request", "key"))
    columns: list[Column[TransactionEvent]] = [
        Column("Version", lambda event: transaction_link(event.version)),
        Column("Time", lambda event: moment(event.time_ms)),
        Column("Operations", lambda event: _operations(event.operations)),
        Column(
            "Request id",
            lambda event: element("code", event.request_id) if event.request_id else "–",
            href=lambda event: link("/log", request=event.request_id, at=event.version),
        ),
        Column("Leader", lambda event: element("code", event.leader_id[:8]), href=lambda _: "/log#leaderships"),
    ]
    caption = "Transactions, newest first"
    shown = table(call, "txn", columns, page.transactions, caption=caption, empty="No transaction.", is_live=is_tail)
    said = "The newest transactions; this list follows the log." if is_tail else _progress(page)
    more = older(page, call.here(at=page.older, time=None), "Older transactions")
    return [element("p", said, class_="note"), shown, more]


def _progress(page: BackwardPage) -> str:
    more = "the log goes on before that" if page.older is not None else "this is the beginning of what the log has"
    return f"{len(page.transactions)} found, {units.count(page.looked_at)} transactions looked at; {more}."


def _operations(operations: Sequence[Operation]) -> Content:
    shown: list[Content] = [_operation(each) for each in operations[:OPERATIONS_SHOWN]]
    if len(operations) > OPERATIONS_SHOWN:
        shown.append(f"and {len(operations) - OPERATIONS_SHOWN} more")
    return join(shown, ", ")


def _operation(operation: Operation) -> Content:
    match operation:
        case Write(key=key):
            return ["write ", key_link(key)]
        case Delete(key=key):
            return ["delete ", key_link(key)]
        case _:
            return ["delete ", range_shown(operation.begin, operation.end)]


async def _transaction(call: PageCall) -> Content:
    version = whole("version", call.required("version"))
    target = f"/v1/log/transactions/{version}"
    transaction = msgspec.convert(await call.service.read(target), TransactionInLog)
    newer = await backwards.first_after(call.service, version)
    writes = [
        element("div", _operation(each), value_of(each.value) if isinstance(each, Write) else None, class_="operation")
        for each in transaction.operations
    ]
    reads = [
        element("div", _precondition(each, transaction.read_version), class_="operation")
        for each in transaction.preconditions
    ]
    nothing = element("p", "It passed no precondition.", class_="empty")
    return [
        section("Facts", _facts(transaction, newer)),
        section(units.counted(len(writes), "operation"), writes),
        section(units.counted(len(reads), "precondition"), reads or nothing),
        commands(call, target, f"holdfast subscribe --after {version - 1} --limit 1"),
    ]


def _facts(transaction: TransactionInLog, newer: TransactionEvent | None) -> Html:
    batch, read_version = transaction.object, transaction.read_version
    about: dict[str, Content] = {
        "Version": code(str(transaction.version), copy=True),
        "Time": moment(batch.time_ms),
        "Request id": code(transaction.request_id, copy=True) if transaction.request_id else "none",
        "Read version": "none" if read_version is None else log_at(read_version),
        "Leader": anchor(code(batch.leader_id), "/log#leaderships"),
        "Batch": anchor(code(batch.slot), link("/log", slot=batch.slot)),
        "Log from here back": log_at(transaction.version - 1),
        "Next transaction": "none yet" if newer is None else transaction_link(newer.version),
    }
    return facts(about)


def _precondition(precondition: Precondition, read_version: int | None) -> Content:
    version = precondition.version if precondition.version is not None else read_version
    since = [" unchanged since version ", "–" if version is None else log_at(version)]
    if isinstance(precondition, PointRead):
        return ["key ", key_link(precondition.key), since]
    return [range_shown(precondition.begin, precondition.end), since]


PAGES: Final = (
    Screen("/log", "Log", "Log", _log),
    Screen("/transaction", lambda call: f"Transaction {call.text('version')}", "Log", _transaction),
)
