"""``holdfast commit``, ``get``, ``status``, ``version``: one question to a running service.

Owns: how operations and preconditions are written on the command line. Does not own: sending them
(``holdfast.Client``).

Failure model: as the client's. A commit that is not committed ends with exit code 1, one whose outcome is unknown with
8 and the command that asks for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.exits import Exit
from holdfast.cli.options import (
    Encoding,
    EncodingOption,
    JsonOption,
    TimeoutOption,
    TokenOption,
    UrlOption,
    parse_bytes,
    parse_position,
)
from holdfast.cli.output import answering, base64_text, flush_output, print_json, print_line, readable, write_bytes
from holdfast.cli.service import asking
from holdfast.errors import Code, Conflict, InvalidRequest, OutcomeUnknown, Unavailable
from holdfast.values import LogPosition, is_log_id
from holdfast.values import parse_position as read_position

if TYPE_CHECKING:
    from holdfast.commit.format.transaction import Operation, Precondition, Transaction

__all__ = ["commit", "get", "status", "version"]

LOCAL: Final = "http://127.0.0.1:8080"


def commit(
    operations: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATION...",
            help="KEY=VALUE writes, -KEY deletes (after --), -BEGIN.. or -BEGIN..END deletes a range.",
            show_default=False,
        ),
    ] = None,
    if_unchanged: Annotated[
        list[str] | None,
        typer.Option(
            "--if-unchanged",
            metavar="KEY[@VERSION[@LOGID]]",
            help="Only if this key, or BEGIN..END, has not changed.",
        ),
    ] = None,
    read_version: Annotated[
        str | None,
        typer.Option("--read-version", metavar="VERSION[@LOGID]", help="What the transaction has read at."),
    ] = None,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="Names the attempt; 20 to 255 characters.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="A request as JSON, as POST /v1/commit takes it.")] = None,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    encoding: EncodingOption = Encoding.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Commit one transaction, and wait until it is durable.

    For example: holdfast commit seat/12A=taken --if-unchanged seat/12A@1200000017

    With VERSION@LOGID, as holdfast version --position prints it, another log refuses the commit.
    """
    if file is not None and (operations or if_unchanged):
        raise InvalidRequest("--file holds the whole transaction: give it alone")
    request = _read_request(file) if file is not None else None
    wanted = request.operations if request else [_operation(text, encoding) for text in operations or ()]
    placed = [_precondition(text, encoding) for text in if_unchanged or ()]
    reads = request.preconditions if request else [read for read, _ in placed]
    read = parse_position("--read-version", read_version)
    log_ids = [log_id for _, log_id in placed]
    if read is not None:
        log_ids.append(read.log_id)
    if request is not None:
        read = LogPosition(request.read_version) if read is None and request.read_version is not None else read
        log_ids.append(request.log_id)
        request_id = request.request_id if request_id is None else request_id
    leader_id = request.leader_id if request is not None else None
    log_id = _one_log(log_ids)
    with asking(url, token, timeout, as_json=as_json) as client:
        try:
            receipt = client.commit(
                wanted,
                reads,
                read_version=None if read is None else read.version,
                request_id=request_id,
                leader_id=leader_id,
                log_id=log_id,
            )
        except Conflict as conflict:
            with answering():
                _print_conflict(conflict, as_json=as_json)
            raise typer.Exit(Exit.NO) from None
        except OutcomeUnknown as unknown:
            if not unknown.hint:
                unknown.hint = "ask: holdfast status REQUEST_ID --min-version READ_VERSION"
            raise
    try:
        if as_json:
            print_json({"status": "committed", "version": receipt.version, "leader_id": receipt.leader_id})
        else:
            print_line(f"committed {receipt.version}")
        flush_output()
    except Unavailable as error:
        # No code that says "it may work later": it has worked.
        raise OutcomeUnknown(f"committed {receipt.version}, which could not be written: {error.statement()}") from error


def get(
    key: Annotated[
        str | None, typer.Argument(help="The key; with --end the beginning of a range.", show_default=False)
    ] = None,
    end: Annotated[
        str | None, typer.Option("--end", help="Read all keys from KEY up to this one, not included.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="Read all keys that start so, instead of KEY and --end.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=1, max=10_000, help="At most this many keys of a range; more are told on stderr."
        ),
    ] = 100,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="VERSION[@LOGID]", help="Wait until the view has reached this version."),
    ] = None,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    encoding: EncodingOption = Encoding.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Print the value of a key, or the keys and values of a range, from the service's view.

    Exit code 1 when there is no such key.
    """
    from holdfast.commit.format.transaction import prefix_end

    first = prefix if key is None else key
    if first is None or (key is not None and prefix is not None):
        raise InvalidRequest("give either KEY or --prefix", hint="holdfast get --prefix '' reads all keys")
    if prefix is not None and end is not None:
        raise InvalidRequest("--prefix excludes --end: it is a range by itself")
    begin = parse_bytes(first, encoding)
    reached = parse_position("--at", at)
    with asking(url, token, timeout, as_json=as_json) as client:
        if end is not None or prefix is not None:
            bound = prefix_end(begin) if end is None else parse_bytes(end, encoding) or None
            found = client.range(begin, bound, limit=limit, at=reached)
            for item in found.items:
                fields = {"key": base64_text(item.key), "value": base64_text(item.value), "version": item.version}
                if as_json:
                    print_json(fields)
                else:
                    print_line(f"{readable(item.key)} = {readable(item.value)}  @{item.version}")
            if found.more:
                _tell_more(found.items[-1].key, bound, as_json=as_json)
            return
        one = client.get(begin, reached)
    if one is None:
        with answering():
            if as_json:
                print_json(None)
        raise typer.Exit(Exit.NO)
    if as_json:
        print_json({"key": base64_text(one.key), "value": base64_text(one.value), "version": one.version})
    else:
        write_bytes(one.value)


def status(
    request_id: Annotated[str, typer.Argument(help="The attempt's request id.")],
    min_version: Annotated[
        str, typer.Option("--min-version", metavar="VERSION[@LOGID]", help="The attempt's read version.")
    ],
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask for the final outcome of an attempt. Asking closes it: if it has not committed, it never will.

    Exit code 0 when it committed, 1 otherwise.
    """
    asked = parse_position("--min-version", min_version)
    assert asked is not None, "the option is required"
    with asking(url, token, timeout, as_json=as_json) as client:
        answer = client.status(request_id, asked)
    with answering():
        if as_json:
            print_json({"status": answer.status} | ({} if answer.version is None else {"version": answer.version}))
        else:
            print_line(answer.status if answer.version is None else f"{answer.status} {answer.version}")
    if answer.status != "committed":
        raise typer.Exit(Exit.NO)


def version(
    local: Annotated[bool, typer.Option("--local", help="Do not prove that no other leader is ahead.")] = False,
    position: Annotated[
        bool, typer.Option("--position", help="Print VERSION@LOGID, which every option for a version takes.")
    ] = False,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a version at least as new as every commit that was known when the question arrived."""
    with asking(url, token, timeout, as_json=as_json) as client:
        answer = client.version(local=local)
    if as_json:
        print_json({"version": answer.version, "leader_id": answer.leader_id, "log_id": answer.log_id})
    else:
        print_line(str(answer.position if position else answer.version))


def _tell_more(last: bytes, end: bytes | None, *, as_json: bool) -> None:
    following = last + b"\0"
    if as_json:
        more = {"begin": base64_text(following)} | ({} if end is None else {"end": base64_text(end)})
        sys.stderr.write(json.dumps({"more": more}) + "\n")
    else:
        place = f"{following.hex()} --end '{'' if end is None else end.hex()}'"
        sys.stderr.write(
            f"holdfast: there are more keys\n  hint: a larger --limit, or go on at --encoding hex {place}\n"
        )


def _read_request(file: Path) -> Transaction:
    from holdfast.commit.format.json_request import decode_json

    try:
        return decode_json(Path("/dev/stdin").read_bytes() if str(file) == "-" else file.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{file} holds no commit request: {error}") from error
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{file} holds no commit request: {error.statement()}", code=error.code, hint=error.hint
        ) from error


def _operation(text: str, encoding: Encoding) -> Operation:
    from holdfast.commit.format.transaction import Delete, RangeDelete, Write

    key, equals, value = text.partition("=")
    if equals and key:
        return Write(parse_bytes(key, encoding), parse_bytes(value, encoding))
    if not equals and text.startswith("-") and len(text) > 1:
        begin, dots, end = text[1:].partition("..")
        if dots:
            return RangeDelete(parse_bytes(begin, encoding), parse_bytes(end, encoding) if end else None)
        return Delete(parse_bytes(begin, encoding))
    raise InvalidRequest(f"{text!r} is no operation", hint="KEY=VALUE writes; after --, -KEY deletes and -A..B a range")


def _precondition(text: str, encoding: Encoding) -> tuple[Precondition, str | None]:
    """A precondition, and the log that its version belongs to where the text names one."""
    from holdfast.commit.format.transaction import PointRead, RangeRead

    keys, at, place = text.rpartition("@")
    if not at:
        keys, place = text, ""
    elif is_log_id(place) and "@" in keys:
        keys, _, number = keys.rpartition("@")
        place = f"{number}@{place}"
    position = read_position(place) if place else None
    if place and (position is None or position.leader_id is not None):
        raise InvalidRequest(
            f"--if-unchanged is KEY, KEY@VERSION or KEY@VERSION@LOGID, not {text!r}",
            hint="`holdfast version --position` prints VERSION@LOGID",
        )
    seen, log_id = (None, None) if position is None else (position.version, position.log_id)
    begin, dots, end = keys.partition("..")
    if dots:
        return RangeRead(parse_bytes(begin, encoding), parse_bytes(end, encoding) if end else None, seen), log_id
    return PointRead(parse_bytes(keys, encoding), seen), log_id


def _one_log(log_ids: Iterable[str | None]) -> str | None:
    """The log that all versions of a request belong to, None where no version names one. Raises: InvalidRequest."""
    named = sorted({log_id for log_id in log_ids if log_id is not None})
    if len(named) > 1:
        raise InvalidRequest(
            "the versions of one commit belong to one log", code=Code.LOG_MISMATCH, log_ids=" ".join(named)
        )
    return named[0] if named else None


def _print_conflict(conflict: Conflict, *, as_json: bool) -> None:
    fields = conflict.fields
    if as_json:
        print_json({"status": "not_committed", "reason": conflict.code.value} | dict(fields))
        return
    print_line(f"not committed: {conflict.code.value}, read again from version {fields.get('version')}")
