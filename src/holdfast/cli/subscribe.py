"""``holdfast subscribe``: the change stream on the terminal, or as lines of JSON.

Owns: how events are printed. Does not own: reconnecting and the proof that nothing is missing (``holdfast.Client``).

Failure model: a gap in the stream ends the command with exit code 6 and names the versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, assert_never

import typer

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
from holdfast.cli.output import flush_output, print_json, print_line
from holdfast.cli.service import STREAM_SECONDS, WaitNotice, following
from holdfast.cli.transactions import LOCAL

if TYPE_CHECKING:
    from holdfast.client.protocol.effects import Event

__all__ = ["subscribe"]


def subscribe(
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="VERSION[@LOGID]", help="Begin after this version, of this log; now by default."
        ),
    ] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only keys that begin with this.")] = None,
    speculative: Annotated[
        bool, typer.Option("--speculative", help="Show transactions before they are durable.")
    ] = False,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Show how far everything is durable.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="End after this many transactions; 0 is never.")
    ] = 0,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    encoding: EncodingOption = Encoding.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Follow the log: every committed transaction in order, without a gap, across reconnects and changes of leader."""
    from holdfast.client import TransactionEvent

    seen = 0
    begin = parse_position("--after", after)
    notice = WaitNotice(url, STREAM_SECONDS if timeout is None else timeout, as_json=as_json)
    keys = None if prefix is None else parse_bytes(prefix, encoding)
    with following(url, token, timeout, notice) as client:
        start = client.version().position if begin is None else begin
        with client.subscribe(start, durable=not speculative, prefix=keys, checkpoints=checkpoints) as events:
            for event in events:
                notice.got_through()
                print_json(event_fields(event)) if as_json else print_line(event_text(event))
                flush_output()
                seen += isinstance(event, TransactionEvent)
                if limit and seen == limit:
                    return


def event_fields(event: Event) -> dict[str, object]:
    """An event as the HTTP API writes it, with its kind."""
    from holdfast.cli.operations import operation_fields
    from holdfast.client.protocol.effects import Checkpoint, RolledBack, TransactionEvent

    match event:
        case TransactionEvent():
            return {
                "event": "transaction",
                "version": event.version,
                "prev_version": event.prev_version,
                "request_id": event.request_id,
                "leader_id": event.leader_id,
                "time_ms": event.time_ms,
                "durable": event.durable,
                "log_id": event.log_id,
                "operations": [operation_fields(operation) for operation in event.operations],
            }
        case Checkpoint():
            return {
                "event": "checkpoint",
                "committed_version": event.committed_version,
                "leader_id": event.leader_id,
                "log_id": event.log_id,
            }
        case RolledBack():
            return {
                "event": "leader_change",
                "roll_back_to": event.to,
                "leader_id": event.leader_id,
                "log_id": event.log_id,
            }
        case _:
            assert_never(event)


def event_text(event: Event) -> str:
    """An event on one line, or a line for each operation."""
    from holdfast.cli.operations import operation_text
    from holdfast.client.protocol.effects import Checkpoint, RolledBack, TransactionEvent

    match event:
        case TransactionEvent():
            sign = "" if event.durable else " (not durable yet)"
            return "\n".join([f"{event.version}{sign}", *(f"    {operation_text(item)}" for item in event.operations)])
        case Checkpoint():
            return f"checkpoint {event.committed_version}"
        case RolledBack():
            return f"rolled back to {event.to}: forget what came after"
        case _:
            assert_never(event)
