"""``holdfast log``: begin and inspect logs directly on their stores, without a service.

``log_copies`` adds the commands that make snapshots and copies. All of them may run next to a leader. Damage ends a
command with exit code 6 and names the slot and the rule. The group is loaded when one of its commands runs, because it
needs Arrow.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import typer
from msgspec import UnsetType

from holdfast.cli.options import ConfigOption, JsonOption, LogArgument, configuration, log_url_of
from holdfast.cli.output import base64_text, print_fields, print_json, print_line, print_table, progress, utc_text
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
from holdfast.foundations.state import verify_all
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
ProgressLines: TypeAlias = Annotated[
    bool, typer.Option("--progress-lines", help="Progress as JSON lines on standard output.", hidden=True)
]
commands = typer.Typer()
clock = typer.Typer(no_args_is_help=True, help="The wall clock of the leader's machine.", rich_markup_mode=None)
commands.add_typer(clock, name="clock")


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


@commands.command()
def init(
    url: LogArgument = None,
    force_new: Annotated[
        bool, typer.Option("--force-new", help="Begin even if another log left stores or a view.")
    ] = False,
    stores: Annotated[
        Literal["disk", "log"] | None,
        typer.Option("--stores", help="Where the message stores live: on the leader's disk, or in the log."),
    ] = None,
    race: Annotated[
        bool,
        typer.Option(help="First race two processes on the store: about five seconds. Without it nothing is proved."),
    ] = True,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a new log if there is none and the store passes a race. Changes nothing if one exists."""
    settings = configuration(config, log=url).settings
    log_url = settings.log.url
    stores_mode = StoresMode.LOG if (stores or settings.stores.durability) == "log" else StoresMode.DISK

    async def begin(store: ObjectStore) -> tuple[LogId | None, RaceResult | None]:
        raced = None
        if await newest_slot(store) is None:
            if not force_new:
                refuse_remains(await remains_around(store, log_url, settings.stores.hosted))
            if race:
                raced = await _race(store, log_url, as_json=as_json)
        log_id = LogId(secrets.token_bytes(16))
        identity = Identity(LeaderId(secrets.token_bytes(16)), secrets.token_bytes(32), "", local_scope(""))
        if await init_log(store, identity, log_id, stores_mode=stores_mode):
            return log_id, raced
        if stores is not None:
            await _require_stores_mode(store, log_url, stores_mode)
        return None, raced

    created, raced = with_store(log_url, begin, create_missing=True)
    if as_json:
        proof = None if raced is None else {name: getattr(raced, name) for name in ("endpoint", "addresses", "date")}
        log_id = None if created is None else created.hex()
        print_json({"url": log_url, "created": created is not None, "log_id": log_id, "race": proof})
        return
    if raced is not None:
        print_line(f"raced: {raced.statement()}")
    if created is not None:
        print_line(f"began log {created.hex()} at {log_url}")
    else:
        print_line(f"{log_url} already has a log; nothing was changed")


async def _race(store: ObjectStore, url: str, *, as_json: bool) -> RaceResult:
    if not as_json:
        sys.stderr.write(f"holdfast: racing two processes on {url}, about five seconds\n")
        sys.stderr.flush()
    return await race_and_keep(store, url, os.environ)


async def _require_stores_mode(store: ObjectStore, url: str, wanted: StoresMode) -> None:
    slot = await newest_slot(store)
    assert slot is not None, "a log that exists has an object"
    mode = decode_header(await store.read(object_name(slot), length=HEADER_BYTES), slot=slot).stores_mode
    if mode is not wanted:
        names = {StoresMode.LOG: "log", StoresMode.DISK: "disk"}
        raise InvalidRequest(
            "this log exists, and its stores live in another place than the one that was given",
            code=Code.BAD_CONFIGURATION,
            hint=f"stop its services, and move them: holdfast stores move --to {names[wanted]}",
            url=url,
            stores=names[mode],
            given=names[wanted],
        )


@commands.command()
def ls(
    url: LogArgument = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="How many objects, newest first; 0 means all.")
    ] = 100,
    long: Annotated[bool, typer.Option("--long", "-l", help="Also read the headers.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the objects of a log, newest first, and whether each is live."""
    log_url = log_url_of(url, config)

    async def work(store: ObjectStore) -> None:
        log = await survey(store, objects_max=limit or None)
        if log.head is None:
            raise _empty(log_url)
        (_ls_json if as_json else _ls_table)(log, await _headers(store, log.objects) if long else None)

    with_store(log_url, work)


def _empty(url: str) -> NotFound:
    return NotFound("log is empty", code=Code.LOG_EMPTY, hint=f"run `holdfast log init {url}`")


def _ls_json(log: Survey, heads: list[bytes] | None) -> None:
    for number, row in enumerate(log.objects):
        slot = log.slot(row)
        fields: dict[str, object] = {"slot": slot_text(slot), "bytes": row.size, "live": log.is_live(slot)}
        print_json(fields | ({} if heads is None else header_fields(decode_header(heads[number], slot=slot))))


def _ls_table(log: Survey, heads: list[bytes] | None) -> None:
    rows: list[tuple[str, ...]] = []
    for number, row in enumerate(log.objects):
        slot = log.slot(row)
        plain = (slot_text(slot), "live" if log.is_live(slot) else "dead", str(row.size))
        if heads is None:
            rows.append((*plain, "claim" if log.is_claim(row) else "data"))
            continue
        header = decode_header(heads[number], slot=slot)
        leader, versions = header.leader_id.hex()[:8], f"{header.first_version}..{header.last_version}"
        kind, count = header.kind.name.lower(), str(header.transactions)
        rows.append((*plain, kind, str(header.epoch), leader, versions, count, utc_text(header.time_ms)))
    more = () if heads is None else ("epoch", "leader", "versions", "txns", "time")
    print_table(("slot", "state", "bytes", "kind", *more), rows, right=frozenset({"bytes", "txns", "epoch"}))


async def _headers(store: ObjectStore, rows: list[Listed]) -> list[bytes]:
    heads: list[bytes] = []
    for start in range(0, len(rows), HEADERS_AT_ONCE):
        some = rows[start : start + HEADERS_AT_ONCE]
        heads += await asyncio.gather(*(store.read(row.key, length=HEADER_BYTES) for row in some))
    return heads


@commands.command()
def show(
    slot: Annotated[str, typer.Argument(help="The 20-digit slot, or `newest`.")],
    url: LogArgument = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one object: its header, and its transactions with the preconditions that they passed."""
    log_url = log_url_of(url, config)

    async def work(store: ObjectStore) -> None:
        number = (await _frontier(store, log_url))[0].slot if slot == "newest" else parse_slot(slot)
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

    with_store(log_url, work)


@commands.command()
def cat(
    url: LogArgument = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Only transactions with a higher version.")] = 0,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="At most this many transactions; 0 means all.")
    ] = 0,
    from_snapshot: Annotated[
        bool, typer.Option("--from-snapshot", help="First the rows of the newest snapshot, then what came after it.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the committed transactions of a log in order, with the preconditions that they passed.

    The beginning of a truncated log is gone: --from-snapshot prints the state instead, one row per key.
    """
    if from_snapshot and after:
        raise InvalidRequest("--from-snapshot and --after exclude each other")
    log_url = log_url_of(url, config)

    async def work(store: ObjectStore) -> None:
        printed, begin = 0, after
        if from_snapshot:
            manifest = await _newest_snapshot(store, log_url)
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
                        print_json(transaction_fields(txn) | {"time": utc_text(batch.header.time_ms)})
                    else:
                        print_transaction(txn)
                    printed += 1
                    if printed == limit:
                        return
        check_reached(walker, newest)

    with_store(log_url, work)


async def _frontier(store: ObjectStore, url: str) -> tuple[Header, Header]:
    """The newest object and its leader's claim. Raises: NotFound where there is no log."""
    frontier = await find_frontier(store)
    if frontier is None:
        raise _empty(url)
    return frontier


async def _newest_snapshot(store: ObjectStore, url: str) -> Manifest:
    newest, claim = await _frontier(store, url)
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


@commands.command()
def verify(
    url: LogArgument = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Only objects with a higher version.")] = 0,
    through: Annotated[
        int | None, typer.Option("--through", min=0, help="Only up to this version; the end of the log if not given.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    progress_lines: ProgressLines = False,
) -> None:
    """Read the whole log, or a range, and check every rule: the chain, every CRC, every version.

    Without --after it also reads each snapshot and checkpoint, and checks that the log can produce its state. Exit code
    6 if a rule is broken, with its name and the slot or the object.
    """
    log_url = log_url_of(url, config)
    of_state: dict[str, object] = {}
    with progress("verifying", shown=not as_json, as_lines=progress_lines) as moved:
        if after:
            check = with_store(log_url, lambda store: verify_log(store, moved, after=after, through=through))
        else:
            check, state, readings = with_store(log_url, lambda store: verify_all(store, moved, through=through))
            base, checkpoint = state.snapshot, state.checkpoint
            of_state = {
                "foundations": len(readings),
                "foundation_bytes": sum(each.bytes for each in readings),
                "state_from_snapshot": None if base is None else base.version,
                "stores_from_checkpoint": None if checkpoint is None else checkpoint.version,
            }
    fields = asdict(check) | {"newest_slot": slot_text(check.newest_slot)} | of_state
    if as_json:
        print_json({"url": log_url, "ok": True} | fields)
        return
    print_fields(fields)
    what = "the log is intact" if not after and through is None else "this range of the log is intact"
    removed = check.truncated_through
    print_line(f"{what} after version {removed}; retention removed what was before" if removed else what)


@commands.command()
def stat(url: LogArgument = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Count a log's objects and bytes, and list its leaders. Reads no transactions."""
    log_url = log_url_of(url, config)
    log = with_store(log_url, lambda store: survey(store, objects_max=None))
    if log.head is None:
        raise _empty(log_url)
    live = sum(1 for row in log.objects if log.is_live(log.slot(row)))
    totals: dict[str, object] = {
        "url": log_url,
        "log_id": log.head.log_id.hex(),
        "objects": len(log.objects),
        "dead_objects": len(log.objects) - live,
        "bytes": sum(row.size for row in log.objects),
        "newest_slot": slot_text(log.head.slot),
        "last_version": log.head.last_version,
        "last_transaction": log.head.last_transaction_version,
        "truncated_through": log.head.truncated_through,
        "last_written": utc_text(log.head.time_ms),
    }
    if as_json:
        print_json(totals | {"leaders": [header_fields(leadership.claim) for leadership in reversed(log.leaderships)]})
        return
    print_fields(totals)
    print_line("")
    rows = [
        (str(r.claim.epoch), r.claim.leader_id.hex(), r.claim.address or "-", str(r.base), utc_text(r.claim.time_ms))
        for r in reversed(log.leaderships)
    ]
    print_table(("epoch", "leader", "address", "base", "claimed"), rows, right=frozenset({"epoch", "base"}))


@clock.command()
def accept(url: LogArgument = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Say that the wall clock of the leader's machine is right, after a step that the log did not follow.

    The leader follows it within seconds. Without a step it changes nothing.
    """
    log_url = log_url_of(url, config)

    async def work(store: ObjectStore) -> Header:
        head, _ = await _frontier(store, log_url)
        if head.doubts_clock:
            await write_accepted(store, accepted_of(head))
        return head

    head = with_store(log_url, work)
    facts = {"accepted": head.doubts_clock, "step_seconds": head.ahead_s if head.doubts_clock else 0}
    if as_json:
        print_json(facts)
    elif head.doubts_clock:
        print_line(f"accepted: the clock of {head.address or 'the leader'}, {head.ahead_s} s ahead of the log's time")
    else:
        print_line("the newest object of the log was written with a clock that is believed: there is nothing to accept")


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


def transaction_fields(txn: LoggedTransaction) -> dict[str, object]:
    """A committed transaction with the preconditions that it passed."""
    fields: dict[str, object] = {
        "version": txn.version,
        "request_id": txn.request_id,
        "read_version": txn.read_version,
        "preconditions": [operation_fields(read) for read in txn.preconditions],
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
