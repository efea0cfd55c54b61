"""What ``holdfast log`` prints: the views of a log on its store.

Owns: ls, show, cat, stat, verify and init as functions of plain arguments. Does not own: their options (``log``),
finding things out (``log_survey``), the form of a record (``log_records``).

Failure model: each opens the store, prints, and closes it whatever happens. Raises what the store and the log raise.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final, TypeVar

from holdfast.cli.log_records import header_fields, print_transaction, transaction_fields
from holdfast.cli.log_survey import Survey, check_reached, create_genesis, survey, verify_log, walker_after
from holdfast.cli.output import print_fields, print_json, print_line, print_table, progress
from holdfast.commit.format.batch import HEADER_BYTES, decode_body, decode_header, object_name
from holdfast.commit.leadership.log_remains import refuse_remains, remains_around
from holdfast.commit.leadership.takeover import newest_slot
from holdfast.commit.reading.reader import find_frontier, follow
from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.objects.credentials import require_credentials
from holdfast.objects.open import open_store
from holdfast.objects.port import Listed, ObjectStore
from holdfast.values import LogId, parse_slot, slot_text

__all__ = ["cat", "init", "ls", "show", "stat", "verify"]

T = TypeVar("T")
HEADERS_AT_ONCE: Final = 32


def with_store(url: str, work: Callable[[ObjectStore], Awaitable[T]], *, create_missing: bool = False) -> T:
    """Run ``work`` on the store of a URL, and close it whatever happens."""

    require_credentials(url, os.environ)

    async def run() -> T:
        store = open_store(url, create_missing=create_missing)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def moment(time_ms: int) -> str:
    """A time of the log for people, in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def init(url: str, stores_directory: str | None, *, force_new: bool, as_json: bool) -> None:
    """Begin a log, or say that there is one. Raises: InvalidRequest (log_mismatch) where another log left something."""

    async def begin(store: ObjectStore) -> LogId | None:
        if not force_new and await newest_slot(store) is None:
            refuse_remains(await remains_around(store, url, stores_directory))
        return await create_genesis(store)

    created = with_store(url, begin, create_missing=True)
    if as_json:
        print_json({"url": url, "created": created is not None, "log_id": None if created is None else created.hex()})
    elif created is not None:
        print_line(f"began log {created.hex()} at {url}")
    else:
        print_line(f"there is a log at {url} already; nothing was changed")


def ls(url: str, *, limit: int, long: bool, as_json: bool) -> None:
    """The newest ``limit`` objects (0: all), and whether they are live."""

    async def work(store: ObjectStore) -> None:
        found = await survey(store, objects_max=limit or None)
        if found.head is None:
            raise _empty(url)
        await (_ls_json if as_json else _ls_table)(store, found, long=long)

    with_store(url, work)


def _empty(url: str) -> NotFound:
    return NotFound("log is empty", code=Code.LOG_EMPTY, hint=f"`holdfast log init {url}` begins one")


async def _ls_json(store: ObjectStore, found: Survey, *, long: bool) -> None:
    for start in range(0, len(found.objects), HEADERS_AT_ONCE):
        rows = found.objects[start : start + HEADERS_AT_ONCE]
        heads = await _headers(store, rows) if long else [b""] * len(rows)
        for row, head in zip(rows, heads, strict=True):
            slot = found.slot(row)
            fields: dict[str, object] = {"slot": slot_text(slot), "bytes": row.size, "live": found.is_live(slot)}
            print_json(fields | (header_fields(decode_header(head, slot=slot)) if long else {}))


async def _ls_table(store: ObjectStore, found: Survey, *, long: bool) -> None:
    rows: list[tuple[str, ...]] = []
    heads = await _headers(store, found.objects) if long else [b""] * len(found.objects)
    for row, head in zip(found.objects, heads, strict=True):
        slot = found.slot(row)
        plain = (slot_text(slot), "live" if found.is_live(slot) else "dead", str(row.size))
        if not long:
            rows.append((*plain, "claim" if found.is_claim(row) else "data"))
            continue
        header = decode_header(head, slot=slot)
        versions = f"{header.first_version}..{header.last_version}"
        who = header.leader_id.hex()[:8]
        rows.append(
            (
                *plain,
                header.kind.name.lower(),
                str(header.epoch),
                who,
                versions,
                str(header.transactions),
                moment(header.time_ms),
            )
        )
    more = ("epoch", "leader", "versions", "txns", "time") if long else ()
    print_table(("slot", "state", "bytes", "kind", *more), rows, right=frozenset({"bytes", "txns", "epoch"}))


async def _headers(store: ObjectStore, rows: list[Listed]) -> list[bytes]:
    heads: list[bytes] = []
    for start in range(0, len(rows), HEADERS_AT_ONCE):
        some = rows[start : start + HEADERS_AT_ONCE]
        heads += await asyncio.gather(*(store.read(row.key, length=HEADER_BYTES) for row in some))
    return heads


def show(url: str, slot: str, *, as_json: bool) -> None:
    """One object, whole."""

    async def work(store: ObjectStore) -> None:
        number = parse_slot(slot)
        if slot == "newest":
            frontier = await find_frontier(store)
            if frontier is None:
                raise NotFound("log is empty", code=Code.LOG_EMPTY)
            number = frontier[0].slot
        if number is None:
            raise InvalidRequest(f"{slot} is not a slot: 20 digits, or `newest`")
        data = await store.read(object_name(number))
        header = decode_header(data, slot=number)
        transactions = decode_body(data, header)
        if as_json:
            print_json(header_fields(header) | {"items": [transaction_fields(txn) for txn in transactions]})
            return
        print_fields(header_fields(header))
        for txn in transactions:
            print_transaction(txn)

    with_store(url, work)


def cat(url: str, *, after: int, limit: int, as_json: bool) -> None:
    """Committed transactions above ``after`` in order, at most ``limit`` (0: all). A hole ends it as damage."""

    async def work(store: ObjectStore) -> None:
        printed = 0
        walker, newest = await walker_after(store, after)
        async with aclosing(follow(store, walker)) as batches:
            async for batch in batches:
                for txn in batch.transactions():
                    if txn.version <= after:
                        continue
                    if as_json:
                        print_json(transaction_fields(txn) | {"time": moment(batch.header.time_ms)})
                    else:
                        print_transaction(txn)
                    printed += 1
                    if printed == limit:
                        return
        check_reached(walker, newest)

    with_store(url, work)


def verify(url: str, *, as_json: bool) -> None:
    """Read and check everything."""
    with progress("verifying", shown=not as_json) as moved:
        found = with_store(url, lambda store: verify_log(store, moved))
    if as_json:
        print_json({"url": url, "ok": True} | found.fields())
        return
    print_fields(found.fields())
    print_line("the log is whole")


def stat(url: str, *, as_json: bool) -> None:
    """Totals and leaders."""
    found = with_store(url, lambda store: survey(store, objects_max=None))
    if found.head is None:
        raise _empty(url)
    live = sum(1 for row in found.objects if found.is_live(found.slot(row)))
    totals: dict[str, object] = {
        "url": url,
        "log_id": found.head.log_id.hex(),
        "objects": len(found.objects),
        "dead_objects": len(found.objects) - live,
        "bytes": sum(row.size for row in found.objects),
        "newest_slot": slot_text(found.head.slot),
        "last_version": found.head.last_version,
        "last_transaction": found.head.last_transaction_version,
        "truncated_through": found.head.truncated_through,
        "last_written": moment(found.head.time_ms),
    }
    if as_json:
        print_json(totals | {"leaders": [header_fields(reign.claim) for reign in reversed(found.reigns)]})
        return
    print_fields(totals)
    print_line("")
    rows = [
        (str(r.claim.epoch), r.claim.leader_id.hex(), r.claim.address or "-", str(r.base), moment(r.claim.time_ms))
        for r in reversed(found.reigns)
    ]
    print_table(("epoch", "leader", "address", "base", "claimed"), rows, right=frozenset({"epoch", "base"}))
