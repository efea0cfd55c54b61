"""``holdfast commit``, ``get``, ``status``, ``version``, ``subscribe``, ``bench``: commands of a running service.

``holdfast.Client`` sends them. Exit code 1: not committed; 8: unknown outcome; 6: a gap in the change stream.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar, assert_never

import msgspec
import typer

from holdfast.cli.options import (
    EncodingOption,
    JsonOption,
    TextForm,
    TokenOption,
    TrustedOption,
    UrlOption,
    parse_bytes,
    parse_position,
    patterns_of,
)
from holdfast.cli.output import (
    Exit,
    answering,
    base64_text,
    flush_output,
    print_fields,
    print_json,
    print_line,
    progress,
    readable,
    write_bytes,
)
from holdfast.cli.service import LOCAL, STREAM_SECONDS, Service
from holdfast.commit.format.json_request import decode_json
from holdfast.commit.format.transaction import (
    Delete,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Transaction,
    Write,
    prefix_end,
)
from holdfast.errors import Code, Conflict, HoldfastError, InvalidRequest, OutcomeUnknown, Unavailable
from holdfast.values import is_log_id
from holdfast.values import parse_position as read_position

if TYPE_CHECKING:
    from holdfast.client.protocol.effects import Event
    from holdfast.wire.log import StreamMessage
    from holdfast.wire.stores import PublishPart
CHARACTERS_MAX: Final = 60


def commit(
    service: Service,
    operations: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATION...",
            help="KEY=VALUE writes, -KEY deletes (after --), -BEGIN.. or -BEGIN..END deletes a range.",
        ),
    ] = None,
    if_unchanged: Annotated[
        list[str] | None,
        typer.Option(
            "--if-unchanged",
            metavar="KEY[@VERSION[@LOGID]]",
            help="Commit only if this key, or BEGIN..END, has not changed.",
        ),
    ] = None,
    read_version: Annotated[
        str | None,
        typer.Option(
            "--read-version", metavar="VERSION[@LOGID]", help="The version at which the transaction has read."
        ),
    ] = None,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="Identifies the attempt; 20 to 255 characters.")
    ] = None,
    publish: Annotated[
        list[str] | None,
        typer.Option(
            "--publish",
            metavar="STORE=BODY",
            help="Publish a message in the same step, if the stores live in the log.",
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="A request as JSON, as POST /v1/commit takes it.")] = None,
    encoding: EncodingOption = TextForm.TEXT,
) -> None:
    """Commit one transaction, and wait until it is durable.

    For example: holdfast commit seat/12A=taken --if-unchanged seat/12A@1200000017

    With VERSION@LOGID, as holdfast version --position prints it, a different log refuses the commit.
    """
    from holdfast.wire.stores import AcknowledgePart, MapPart, PublishPart

    if file is not None and (operations or if_unchanged or publish):
        raise InvalidRequest(
            "--file holds the complete transaction; it excludes operations, --if-unchanged and --publish"
        )
    placed = [_precondition(text, encoding) for text in if_unchanged or ()]
    if file is not None:
        request = _read_request(file)
    else:
        request = Transaction([_operation(text, encoding) for text in operations or ()], [read for read, _ in placed])
    read = parse_position("--read-version", read_version)
    log_id = _one_log([request.log_id, None if read is None else read.log_id, *(each for _, each in placed)])
    with service.client() as client:
        try:
            receipt = client.commit(
                request.operations,
                request.preconditions,
                read_version=request.read_version if read is None else read.version,
                request_id=request.request_id if request_id is None else request_id,
                leader_id=request.leader_id,
                log_id=log_id,
                acknowledge=_decoded(request.acknowledge, AcknowledgePart),
                maps=_decoded(request.maps, MapPart),
                publish=_decoded(request.publish, PublishPart) if publish is None else _published(publish),
                jobs=request.jobs,
            )
        except Conflict as conflict:
            reason, fields = conflict.code.value, conflict.fields
            version = fields.get("version")
            what = conflict.message if version is None else f"read again from version {version}"
            text = f"not committed: {reason}, {what}"
            with answering():
                service.show({"status": "not_committed", "reason": reason} | dict(fields), text)
            raise typer.Exit(Exit.NO) from None
        except OutcomeUnknown as unknown:
            if not unknown.hint:
                unknown.hint = "ask: holdfast status REQUEST_ID --min-version READ_VERSION"
            raise
    try:
        facts: dict[str, object] = {
            "status": "committed",
            "version": receipt.version,
            "leader_id": receipt.leader_id,
        }
        if receipt.stores is not None:
            facts["stores"] = msgspec.to_builtins(receipt.stores)
        service.show(facts, f"committed {receipt.version}")
        flush_output()
    except Unavailable as error:
        # The commit has succeeded, so not the exit code for "try again later".
        raise OutcomeUnknown(
            f"committed {receipt.version}, but the result could not be written: {error.statement()}"
        ) from error


def get(
    service: Service,
    key: Annotated[str | None, typer.Argument(help="The key; with --end the beginning of a range.")] = None,
    end: Annotated[
        str | None, typer.Option("--end", help="Read all keys from KEY up to this one, not included.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="Read all keys with this prefix, instead of KEY and --end.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=1, max=10_000, help="At most this many keys of a range; stderr says if there are more."
        ),
    ] = 100,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="VERSION[@LOGID]", help="Wait until the view has reached this version."),
    ] = None,
    encoding: EncodingOption = TextForm.TEXT,
) -> None:
    """Print the value of a key, or the keys and values of a range, from the service's view.

    Exit code 1 if there is no such key.
    """
    first = prefix if key is None else key
    if first is None or (key is not None and prefix is not None):
        raise InvalidRequest("give either KEY or --prefix", hint="holdfast get --prefix '' reads all keys")
    if prefix is not None and end is not None:
        raise InvalidRequest("--prefix and --end exclude each other")
    begin = parse_bytes(first, encoding)
    reached = parse_position("--at", at)
    with service.client() as client:
        if end is not None or prefix is not None:
            bound = prefix_end(begin) if end is None else parse_bytes(end, encoding) or None
            while True:
                page = client.range(begin, bound, limit=limit, at=reached)
                for item in page.items:
                    fields = {"key": base64_text(item.key), "value": base64_text(item.value), "version": item.version}
                    service.show(fields, f"{readable(item.key)} = {readable(item.value)}  @{item.version}")
                if not page.more:
                    return
                limit -= len(page.items)
                if limit <= 0:
                    _report_more(page.items[-1].key, bound, as_json=service.as_json)
                    return
                begin = page.items[-1].key + b"\0"
        one = client.get(begin, reached)
    if one is None:
        with answering():
            if service.as_json:
                print_json(None)
        raise typer.Exit(Exit.NO)
    if service.as_json:
        print_json({"key": base64_text(one.key), "value": base64_text(one.value), "version": one.version})
    else:
        write_bytes(one.value)


def status(
    service: Service,
    request_id: Annotated[str, typer.Argument(help="The attempt's request id.")],
    min_version: Annotated[
        str, typer.Option("--min-version", metavar="VERSION[@LOGID]", help="The attempt's read version.")
    ],
) -> None:
    """Ask for the final outcome of an attempt. This closes it: if it has not committed, it never will.

    Exit code 0 if it committed, 1 otherwise.
    """
    position = parse_position("--min-version", min_version)
    assert position is not None, "the option is required"
    with service.client() as client:
        outcome = client.status(request_id, position)
    with answering():
        facts: dict[str, object] = {"status": outcome.status}
        if outcome.version is not None:
            facts["version"] = outcome.version
        service.show(facts, " ".join(map(str, facts.values())))
    if outcome.status != "committed":
        raise typer.Exit(Exit.NO)


def version(
    service: Service,
    local: Annotated[
        bool, typer.Option("--local", help="Do not prove that no other leader has newer commits.")
    ] = False,
    position: Annotated[
        bool, typer.Option("--position", help="Print VERSION@LOGID, which every option for a version takes.")
    ] = False,
) -> None:
    """Print a version at least as new as every commit acknowledged before this request."""
    with service.client() as client:
        newest = client.version(local=local)
    facts = {"version": newest.version, "leader_id": newest.leader_id, "log_id": newest.log_id}
    service.show(facts, str(newest.position if position else newest.version))


def _report_more(last: bytes, end: bytes | None, *, as_json: bool) -> None:
    following = last + b"\0"
    if as_json:
        more = {"begin": base64_text(following)} | ({} if end is None else {"end": base64_text(end)})
        sys.stderr.write(json.dumps({"more": more}) + "\n")
    else:
        position = f"{following.hex()} --end '{'' if end is None else end.hex()}'"
        sys.stderr.write(
            f"holdfast: there are more keys\n  hint: use a larger --limit, or continue at --encoding hex {position}\n"
        )


Part = TypeVar("Part")


def _published(texts: Sequence[str]) -> list[PublishPart]:
    """What ``--publish`` gives. Raises: InvalidRequest."""
    from holdfast.wire.stores import PublishedMessage, PublishPart

    messages: dict[str, list[PublishedMessage]] = {}
    for text in texts:
        store, equals, body = text.partition("=")
        if not equals or not store:
            raise InvalidRequest("--publish takes STORE=BODY", given=text)
        messages.setdefault(store, []).append(PublishedMessage(body.encode()))
    return [PublishPart(store, batch) for store, batch in messages.items()]


def _decoded(raw: msgspec.Raw | msgspec.UnsetType, kind: type[Part]) -> list[Part]:
    """Parts of a commit for the message stores. Raises: InvalidRequest."""
    try:
        return [] if raw is msgspec.UNSET else msgspec.json.decode(raw, type=list[kind])  # type: ignore[valid-type]
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the parts for the stores cannot be decoded: {error}") from error


def _read_request(file: Path) -> Transaction:
    try:
        return decode_json(Path("/dev/stdin").read_bytes() if str(file) == "-" else file.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{file} is not a commit request: {error}") from error
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{file} is not a commit request: {error.statement()}", code=error.code, hint=error.hint
        ) from error


def _operation(text: str, encoding: TextForm) -> Operation:
    key, equals, value = text.partition("=")
    if equals and key:
        return Write(parse_bytes(key, encoding), parse_bytes(value, encoding))
    if not equals and text.startswith("-") and len(text) > 1:
        begin, dots, end = text[1:].partition("..")
        if dots:
            return RangeDelete(parse_bytes(begin, encoding), parse_bytes(end, encoding) if end else None)
        return Delete(parse_bytes(begin, encoding))
    raise InvalidRequest(
        "not an operation", given=text, hint="KEY=VALUE writes; after --, -KEY deletes and -A..B deletes a range"
    )


def _precondition(text: str, encoding: TextForm) -> tuple[Precondition, str | None]:
    """A precondition, and the log of its version if the text names one."""
    keys, at, suffix = text.rpartition("@")
    if not at:
        keys, suffix = text, ""
    elif is_log_id(suffix) and "@" in keys:
        keys, _, number = keys.rpartition("@")
        suffix = f"{number}@{suffix}"
    position = read_position(suffix) if suffix else None
    if suffix and (position is None or position.leader_id is not None):
        raise InvalidRequest(
            "--if-unchanged must be KEY, KEY@VERSION or KEY@VERSION@LOGID",
            given=text,
            hint="`holdfast version --position` prints VERSION@LOGID",
        )
    version, log_id = (None, None) if position is None else (position.version, position.log_id)
    begin, dots, end = keys.partition("..")
    if dots:
        return RangeRead(parse_bytes(begin, encoding), parse_bytes(end, encoding) if end else None, version), log_id
    return PointRead(parse_bytes(keys, encoding), version), log_id


def _one_log(log_ids: Iterable[str | None]) -> str | None:
    """The log of all versions of a request, None if no version names one. Raises: InvalidRequest."""
    names = sorted({log_id for log_id in log_ids if log_id is not None})
    if len(names) > 1:
        raise InvalidRequest(
            "all versions of a commit must belong to one log", code=Code.LOG_MISMATCH, log_ids=" ".join(names)
        )
    return names[0] if names else None


# ---- operations -----------------------------------------------------------------------------------------------------


def short(data: bytes) -> str:
    """Bytes for people, cut to fit a line."""
    return readable(data, characters_max=CHARACTERS_MAX)


def operation_fields(operation: Operation | Precondition) -> dict[str, object]:
    """An operation or a precondition as the HTTP API writes it."""
    fields: dict[str, object] = msgspec.to_builtins(operation)
    return {name: value for name, value in fields.items() if value is not None}


def operation_text(operation: Operation) -> str:
    """An operation on one line.

    >>> from holdfast.commit.format.transaction import Write
    >>> operation_text(Write(b"seat/12A", b"taken"))
    'write seat/12A = taken'
    """
    match operation:
        case Write(key=key, value=value):
            return f"write {short(key)} = {short(value)}"
        case Delete(key=key):
            return f"delete {short(key)}"
        case RangeDelete(begin=begin, end=end):
            return f"range_delete {short(begin)} .. {'' if end is None else short(end)}".rstrip()


def message_text(message: StreamMessage) -> str:
    """A published message on one line.

    >>> from holdfast.wire.log import StreamMessage
    >>> message_text(StreamMessage("orders", 7, 0, b"2 x coffee", {"kind": "drink"}))
    "published orders 7 {'kind': 'drink'} = 2 x coffee"
    >>> message_text(StreamMessage("prices", 8, 0, None, key="tea"))
    'published prices 8 tea removed'
    """
    parts = ["published", message.store, str(message.seq)]
    if message.key is not None:
        parts.append(short(message.key.encode()))
    if message.fields:
        parts.append(str(message.fields))
    return " ".join([*parts, "removed" if message.body is None else f"= {short(message.body)}"])


# ---- the change stream ----------------------------------------------------------------------------------------------


def subscribe(
    service: Service,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="VERSION[@LOGID]", help="Start after this version, of this log; now by default."
        ),
    ] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only keys with this prefix.")] = None,
    stores: Annotated[
        list[str] | None,
        typer.Option("--store", metavar="NAME", help="Also what is published in this store; again for each."),
    ] = None,
    speculative: Annotated[
        bool, typer.Option("--speculative", help="Show transactions before they are durable.")
    ] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Show up to which version everything is durable.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Stop after this many of them; 0 means no limit.")
    ] = 0,
    encoding: EncodingOption = TextForm.TEXT,
) -> None:
    """Follow the log: every committed transaction in order, without a gap, across reconnects and changes of leader."""
    from holdfast.client import PublishedEvent, TransactionEvent

    printed = 0
    begin = parse_position("--after", after)
    notice = service.notice(STREAM_SECONDS)
    keys = None if prefix is None else parse_bytes(prefix, encoding)
    with service.stream_client(notice) as client:
        start = client.version().position if begin is None else begin
        with client.subscribe(
            start, durable=not speculative, prefix=keys, stores=stores or (), checkpoints=checkpoints
        ) as events:
            for event in events:
                notice.got_through()
                print_json(event_fields(event)) if service.as_json else print_line(event_text(event))
                flush_output()
                printed += isinstance(event, TransactionEvent | PublishedEvent)
                if limit and printed == limit:
                    return


def event_fields(event: Event) -> dict[str, object]:
    """An event as the HTTP API writes it, with its kind."""
    from holdfast.client.protocol.effects import Checkpoint, PublishedEvent, RolledBack, TransactionEvent

    fields: dict[str, object] = msgspec.to_builtins(event)
    match event:
        case TransactionEvent():
            kind, fields["operations"] = "transaction", [operation_fields(each) for each in event.operations]
        case PublishedEvent():
            kind = "published"
        case Checkpoint():
            kind = "checkpoint"
        case RolledBack():
            kind, fields["roll_back_to"] = "leader_change", fields.pop("to")
        case _:
            assert_never(event)
    return {"event": kind} | {
        name: value for name, value in fields.items() if value or name not in ("published", "more")
    }


def event_text(event: Event) -> str:
    """An event on one line, or a line for each operation."""
    from holdfast.client.protocol.effects import Checkpoint, PublishedEvent, RolledBack, TransactionEvent

    match event:
        case TransactionEvent():
            sign = "" if event.durable else " (not durable yet)"
            lines = [*map(operation_text, event.operations), *map(message_text, event.published)]
            return "\n".join([f"{event.version}{sign}", *(f"    {line}" for line in lines)])
        case PublishedEvent():
            sign = " (more of it follows)" if event.more else ""
            return "\n".join([f"{event.version}{sign}", *(f"    {message_text(one)}" for one in event.published)])
        case Checkpoint():
            return f"checkpoint {event.committed_version}"
        case RolledBack():
            return f"rolled back to {event.to}: discard later versions"
        case _:
            assert_never(event)


# ---- bench ----------------------------------------------------------------------------------------------------------


def bench(
    connections: Annotated[int, typer.Option("--connections", "-c", min=1, max=1024, help="Concurrent clients.")] = 64,
    seconds: Annotated[float, typer.Option("--seconds", "-s", min=0.1, max=3600, help="How long to run.")] = 10.0,
    value_bytes: Annotated[int, typer.Option("--value-bytes", min=0, max=1_000_000, help="Size of each value.")] = 100,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    trusted_hosts: TrustedOption = "",
    as_json: JsonOption = False,
) -> None:
    """Commit from many clients at once, then print rate and latency. Writes keys under bench/.

    Every commit writes a new key with one precondition, so none conflicts. The client is Python and shares this
    machine: the service alone is faster than the result.
    """
    import asyncio

    service = Service(url, token, None, as_json, patterns_of(trusted_hosts))
    with service.client() as client:
        newest = client.version().version
    result = asyncio.run(_run_bench(service, connections, seconds, value_bytes, newest, shown=not as_json))
    if as_json:
        print_json(result)
    else:
        print_fields(result)
    if result["errors"]:
        raise typer.Exit(Exit.UNAVAILABLE)


async def _run_bench(
    service: Service, connections: int, seconds: float, value_bytes: int, newest: int, *, shown: bool
) -> dict[str, object]:
    import asyncio

    from holdfast.aio import Client
    from holdfast.client import ClientOptions

    run = secrets.token_hex(4)
    value = secrets.token_bytes(value_bytes)
    latencies_ms: list[float] = []
    errors: Counter[str] = Counter()
    options = ClientOptions(trusted_hosts=service.trusted_hosts)
    async with Client(service.url, token=service.token, options=options) as client:
        began = time.perf_counter()
        end = began + seconds

        async def one(number: int) -> None:
            nonlocal newest  # a read version of the start would fall out of the conflict window of a long run
            count = 0
            while (before := time.perf_counter()) < end:
                key = f"bench/{run}/{number}/{count}".encode()
                count += 1
                try:
                    receipt = await client.commit([Write(key, value)], [PointRead(key)], read_version=newest)
                except HoldfastError as error:
                    errors[error.code.value] += 1
                else:
                    newest = max(newest, receipt.version)
                    latencies_ms.append((time.perf_counter() - before) * 1000)

        with progress("committing", shown=shown) as moved:
            work = asyncio.gather(*(one(number) for number in range(connections)))
            while not work.done():
                await asyncio.wait([work], timeout=0.2)
                moved(min(int(time.perf_counter() - began), int(seconds)), int(seconds))
            await work
        elapsed = time.perf_counter() - began
    latencies_ms.sort()
    return {
        "commits": len(latencies_ms),
        "seconds": round(elapsed, 3),
        "commits_per_second": round(len(latencies_ms) / elapsed),
        "p50_ms": _percentile(latencies_ms, 0.50),
        "p99_ms": _percentile(latencies_ms, 0.99),
        "p99_9_ms": _percentile(latencies_ms, 0.999),
        "max_ms": _percentile(latencies_ms, 1.0),
        "connections": connections,
        "errors": dict(sorted(errors.items())),
    }


def _percentile(ordered: list[float], part: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 3) if ordered else None
