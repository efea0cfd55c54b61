"""Runs the ``holdfast log`` commands. Loaded when one of them runs, because it needs Arrow."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final, TypeVar

from msgspec import UnsetType

from holdfast.cli.output import base64_text, print_fields, print_json, print_line, print_table, progress
from holdfast.cli.transactions import operation_fields, operation_text, short
from holdfast.command_logs import log_to_standard_error
from holdfast.commit.format.batch import (
    HEADER_BYTES,
    Header,
    LoggedTransaction,
    StoresMode,
    decode_body,
    decode_header,
    object_name,
)
from holdfast.commit.format.transaction import JobChange, PointRead, Precondition, RangeRead, Write
from holdfast.commit.leadership.accepted_clocks import accepted_of, write_accepted
from holdfast.commit.leadership.claims import Identity
from holdfast.commit.leadership.log_remains import refuse_remains, remains_around
from holdfast.commit.leadership.takeover import init_log, local_scope, newest_slot
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import find_frontier, follow
from holdfast.commit.reading.survey import Survey, check_reached, survey, verify_log, walker_after
from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.foundations.verification import StateCheck, verify_all
from holdfast.objects.credentials import require_credentials
from holdfast.objects.open import open_store
from holdfast.objects.port import Listed, ObjectStore
from holdfast.objects.probe.race import race_and_keep
from holdfast.objects.probe.results import RaceResult
from holdfast.snapshots.manifest import Manifest
from holdfast.snapshots.reading import newest_snapshot, read_rows
from holdfast.values import LeaderId, LogId, parse_slot, slot_text
from holdfast.view.storage import Row

T = TypeVar("T")
HEADERS_AT_ONCE: Final = 32


def with_store(url: str, work: Callable[[ObjectStore], Awaitable[T]], *, create_missing: bool = False) -> T:
    """Run ``work`` on the store of a URL, and always close it. Log lines go to the standard error."""
    log_to_standard_error()
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


def init(
    url: str,
    stores_directory: str | None,
    durability: str | None,
    *,
    force_new: bool,
    race: bool,
    as_json: bool,
    is_required: bool = False,
) -> None:
    """Begin a log, or report that one exists. ``durability``: of its stores; on disk by default. ``race``: only on a
    store that passes one, which is kept next to the log.

    Raises: InvalidRequest if another log left files (log_mismatch), or if ``is_required`` and the log exists with its
    stores in the other place.
    """
    stores_mode = StoresMode.LOG if durability == "log" else StoresMode.DISK

    async def begin(store: ObjectStore) -> tuple[LogId | None, RaceResult | None]:
        raced = None
        if await newest_slot(store) is None:
            if not force_new:
                refuse_remains(await remains_around(store, url, stores_directory))
            if race:
                raced = await _race(store, url, as_json=as_json)
        log_id = LogId(secrets.token_bytes(16))
        identity = Identity(LeaderId(secrets.token_bytes(16)), secrets.token_bytes(32), "", local_scope(""))
        if await init_log(store, identity, log_id, stores_mode=stores_mode):
            return log_id, raced
        if is_required:
            await _require_stores_mode(store, url, stores_mode)
        return None, raced

    created, raced = with_store(url, begin, create_missing=True)
    if as_json:
        proof = (
            None if raced is None else {"endpoint": raced.endpoint, "addresses": raced.addresses, "date": raced.date}
        )
        log_id = None if created is None else created.hex()
        print_json({"url": url, "created": created is not None, "log_id": log_id, "race": proof})
        return
    if raced is not None:
        print_line(f"raced: {raced.statement()}")
    if created is not None:
        print_line(f"began log {created.hex()} at {url}")
    else:
        print_line(f"{url} already has a log; nothing was changed")


async def _race(store: ObjectStore, url: str, *, as_json: bool) -> RaceResult:
    if not as_json:
        sys.stderr.write(f"holdfast: racing two processes on {url}, about five seconds\n")
        sys.stderr.flush()
    return await race_and_keep(store, url, os.environ)


async def _require_stores_mode(store: ObjectStore, url: str, wanted: StoresMode) -> None:
    slot = await newest_slot(store)
    assert slot is not None, "a log that exists has an object"
    found = decode_header(await store.read(object_name(slot), length=HEADER_BYTES), slot=slot).stores_mode
    if found is not wanted:
        names = {StoresMode.LOG: "log", StoresMode.DISK: "disk"}
        raise InvalidRequest(
            "this log exists, and its stores live in another place than the one that was given",
            code=Code.BAD_CONFIGURATION,
            hint=f"stop its services, and move them: holdfast stores move --to {names[wanted]}",
            url=url,
            stores=names[found],
            given=names[wanted],
        )


def ls(url: str, *, limit: int, long: bool, as_json: bool) -> None:
    """Print the newest ``limit`` objects (0: all), and whether they are live."""

    async def work(store: ObjectStore) -> None:
        log = await survey(store, objects_max=limit or None)
        if log.head is None:
            raise _empty(url)
        await (_ls_json if as_json else _ls_table)(store, log, long=long)

    with_store(url, work)


def _empty(url: str) -> NotFound:
    return NotFound("log is empty", code=Code.LOG_EMPTY, hint=f"run `holdfast log init {url}`")


async def _ls_json(store: ObjectStore, log: Survey, *, long: bool) -> None:
    for start in range(0, len(log.objects), HEADERS_AT_ONCE):
        rows = log.objects[start : start + HEADERS_AT_ONCE]
        heads = await _headers(store, rows) if long else [b""] * len(rows)
        for row, head in zip(rows, heads, strict=True):
            slot = log.slot(row)
            fields: dict[str, object] = {"slot": slot_text(slot), "bytes": row.size, "live": log.is_live(slot)}
            print_json(fields | (header_fields(decode_header(head, slot=slot)) if long else {}))


async def _ls_table(store: ObjectStore, log: Survey, *, long: bool) -> None:
    rows: list[tuple[str, ...]] = []
    heads = await _headers(store, log.objects) if long else [b""] * len(log.objects)
    for row, head in zip(log.objects, heads, strict=True):
        slot = log.slot(row)
        plain = (slot_text(slot), "live" if log.is_live(slot) else "dead", str(row.size))
        if not long:
            rows.append((*plain, "claim" if log.is_claim(row) else "data"))
            continue
        header = decode_header(head, slot=slot)
        leader, versions = header.leader_id.hex()[:8], f"{header.first_version}..{header.last_version}"
        kind, count = header.kind.name.lower(), str(header.transactions)
        rows.append((*plain, kind, str(header.epoch), leader, versions, count, moment(header.time_ms)))
    more = ("epoch", "leader", "versions", "txns", "time") if long else ()
    print_table(("slot", "state", "bytes", "kind", *more), rows, right=frozenset({"bytes", "txns", "epoch"}))


async def _headers(store: ObjectStore, rows: list[Listed]) -> list[bytes]:
    heads: list[bytes] = []
    for start in range(0, len(rows), HEADERS_AT_ONCE):
        some = rows[start : start + HEADERS_AT_ONCE]
        heads += await asyncio.gather(*(store.read(row.key, length=HEADER_BYTES) for row in some))
    return heads


def show(url: str, slot: str, *, as_json: bool) -> None:
    """Print one object."""

    async def work(store: ObjectStore) -> None:
        number = parse_slot(slot)
        if slot == "newest":
            frontier = await find_frontier(store)
            if frontier is None:
                raise NotFound("log is empty", code=Code.LOG_EMPTY)
            number = frontier[0].slot
        if number is None:
            raise InvalidRequest("slot must be 20 digits or `newest`", given=slot)
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


def cat(url: str, *, after: int, limit: int, from_snapshot: bool, as_json: bool) -> None:
    """Print committed transactions above version ``after`` in order, at most ``limit`` (0: all). A hole is damage.

    ``from_snapshot``: first the rows of the newest snapshot, which count as well, then the transactions after it.
    """
    if from_snapshot and after:
        raise InvalidRequest("--from-snapshot and --after exclude each other")

    async def work(store: ObjectStore) -> None:
        printed, begin = 0, after
        if from_snapshot:
            manifest = await _newest_snapshot(store, url)
            begin = manifest.version
            async with aclosing(read_rows(store, manifest)) as parts:
                async for rows in parts:
                    for row in rows[: None if not limit else limit - printed]:
                        _print_row(row, begin, as_json=as_json)
                        printed += 1
                    if printed == limit > 0:
                        return
        await print_after(store, begin, printed)

    async def print_after(store: ObjectStore, after: int, printed: int) -> None:
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


async def _newest_snapshot(store: ObjectStore, url: str) -> Manifest:
    frontier = await find_frontier(store)
    if frontier is None:
        raise _empty(url)
    newest, claim = frontier
    manifest = await newest_snapshot(store, await lineage_of(store, claim), newest.last_version)
    if manifest is None:
        raise NotFound("the log has no snapshot", hint="`holdfast log snapshot` makes one", url=url)
    return manifest


def _print_row(row: Row, snapshot: int, *, as_json: bool) -> None:
    key, value, version = row
    write = Write(key, value)
    if as_json:
        print_json({"snapshot": snapshot, "version": version, "operations": [operation_fields(write)]})
    else:
        print_line(f"{version}  in the snapshot of {snapshot}\n    {operation_text(write)}")


def verify(url: str, *, after: int, through: int | None, as_json: bool, progress_lines: bool) -> None:
    """Read and check everything, or a range of versions."""
    state: StateCheck | None = None
    with progress("verifying", shown=not as_json, as_lines=progress_lines) as moved:
        if after:
            check = with_store(url, lambda store: verify_log(store, moved, after=after, through=through))
        else:
            state = with_store(url, lambda store: verify_all(store, moved, through=through))
            check = state.log
    fields = asdict(check) | {"newest_slot": slot_text(check.newest_slot)}
    if state is not None:
        fields |= _state_fields(state)
    if as_json:
        print_json({"url": url, "ok": True} | fields)
        return
    print_fields(fields)
    what = "the log is intact" if not after and through is None else "this range of the log is intact"
    removed = check.truncated_through
    print_line(f"{what} after version {removed}; retention removed what was before" if removed else what)


def _state_fields(state: StateCheck) -> dict[str, object]:
    base, checkpoint = state.state.snapshot, state.state.checkpoint
    return {
        "foundations": len(state.readings),
        "foundation_bytes": sum(each.bytes for each in state.readings),
        "state_from_snapshot": None if base is None else base.version,
        "stores_from_checkpoint": None if checkpoint is None else checkpoint.version,
    }


def stat(url: str, *, as_json: bool) -> None:
    """Print totals and leaders."""
    log = with_store(url, lambda store: survey(store, objects_max=None))
    if log.head is None:
        raise _empty(url)
    live = sum(1 for row in log.objects if log.is_live(log.slot(row)))
    totals: dict[str, object] = {
        "url": url,
        "log_id": log.head.log_id.hex(),
        "objects": len(log.objects),
        "dead_objects": len(log.objects) - live,
        "bytes": sum(row.size for row in log.objects),
        "newest_slot": slot_text(log.head.slot),
        "last_version": log.head.last_version,
        "last_transaction": log.head.last_transaction_version,
        "truncated_through": log.head.truncated_through,
        "last_written": moment(log.head.time_ms),
    }
    if as_json:
        print_json(totals | {"leaders": [header_fields(leadership.claim) for leadership in reversed(log.leaderships)]})
        return
    print_fields(totals)
    print_line("")
    rows = [
        (str(r.claim.epoch), r.claim.leader_id.hex(), r.claim.address or "-", str(r.base), moment(r.claim.time_ms))
        for r in reversed(log.leaderships)
    ]
    print_table(("epoch", "leader", "address", "base", "claimed"), rows, right=frozenset({"epoch", "base"}))


# ---- forms ----------------------------------------------------------------------------------------------------------


def header_fields(header: Header) -> dict[str, object]:
    """The fields of a header for programs. Versions are numbers, slots are text."""
    return {
        "kind": header.kind.name.lower(),
        "slot": slot_text(header.slot),
        "prev": slot_text(header.prev),
        "claim": slot_text(header.claim),
        "durable": slot_text(header.durable),
        "log_id": header.log_id.hex(),
        "leader_id": header.leader_id.hex(),
        "address": header.address,
        "epoch": header.epoch,
        "nonce": header.nonce.hex(),
        "first_version": header.first_version,
        "last_version": header.last_version,
        "prev_version": header.prev_version,
        "window_floor": header.window_floor,
        "truncated_through": header.truncated_through,
        "time_ms": header.time_ms,
        "transactions": header.transactions,
        "body_length": header.body_length,
        "flags": header.flags,
    }


def precondition_fields(read: Precondition) -> dict[str, object]:
    """A precondition as the HTTP API writes it."""
    match read:
        case PointRead(key=key, version=version):
            return {"type": "point_read", "key": base64_text(key), "version": version}
        case RangeRead(begin=begin, end=end, version=version):
            fields: dict[str, object] = {"type": "range_read", "begin": base64_text(begin), "version": version}
            return fields if end is None else fields | {"end": base64_text(end)}


def transaction_fields(txn: LoggedTransaction) -> dict[str, object]:
    """A committed transaction with the preconditions that it passed."""
    fields: dict[str, object] = {
        "version": txn.version,
        "request_id": txn.request_id,
        "read_version": txn.read_version,
        "preconditions": [precondition_fields(read) for read in txn.preconditions],
        "operations": [operation_fields(operation) for operation in txn.operations],
    }
    return fields | {"jobs": [job_fields(change) for change in txn.jobs]} if txn.jobs else fields


def job_fields(change: JobChange) -> dict[str, object]:
    """A change of a job's record as the HTTP API writes it."""
    fields: dict[str, object] = {"name": change.name, "version": change.version}
    if isinstance(change.value, UnsetType):
        return fields
    return fields | {"value": None if change.value is None else base64_text(change.value)}


def job_text(change: JobChange) -> str:
    """A change of a job's record on one line."""
    if isinstance(change.value, UnsetType):
        return f"unchanged record of job {change.name}" + ("" if change.version is None else f" @ {change.version}")
    if change.value is None:
        return f"remove the record of job {change.name}"
    return f"record of job {change.name} = {short(change.value)}"


def precondition_text(read: Precondition) -> str:
    """A precondition on one line."""
    at = "" if read.version is None else f" @ {read.version}"
    match read:
        case PointRead(key=key):
            return f"unchanged {short(key)}{at}"
        case RangeRead(begin=begin, end=end):
            return f"unchanged {short(begin)} .. {'' if end is None else short(end)}{at}"


def print_transaction(txn: LoggedTransaction) -> None:
    """A transaction on stdout: a line for itself, one for each precondition and operation."""
    facts = f"{txn.version}"
    if txn.request_id is not None:
        facts += f"  request_id={txn.request_id} read_version={txn.read_version}"
    lines = [facts]
    lines += [f"    {precondition_text(read)}" for read in txn.preconditions]
    lines += [f"    {operation_text(operation)}" for operation in txn.operations]
    lines += [f"    {job_text(change)}" for change in txn.jobs]
    print_line("\n".join(lines))


def accept_clock(url: str, *, as_json: bool) -> None:
    """Accept the wall clock as the newest object of the log shows it."""

    async def work(store: ObjectStore) -> Header:
        found = await find_frontier(store)
        if found is None:
            raise NotFound("log is empty", code=Code.LOG_EMPTY)
        if found[0].doubts_clock:
            await write_accepted(store, accepted_of(found[0]))
        return found[0]

    head = with_store(url, work)
    facts = {"accepted": head.doubts_clock, "step_seconds": head.ahead_s if head.doubts_clock else 0}
    if as_json:
        print_json(facts)
    elif head.doubts_clock:
        print_line(f"accepted: the clock of {head.address or 'the leader'}, {head.ahead_s} s ahead of the log's time")
    else:
        print_line("the newest object of the log was written with a clock that is believed: there is nothing to accept")
