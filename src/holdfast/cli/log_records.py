"""Headers and transactions of a log, as JSON fields and as lines for people.

Owns: these two forms. Keys and values are base64 in JSON, as in the HTTP API; versions are numbers, slots are text.
"""

from __future__ import annotations

from holdfast.cli.operations import operation_fields, operation_text, short
from holdfast.cli.output import base64_text, print_line
from holdfast.commit.format.batch import Header, LoggedTransaction
from holdfast.commit.format.transaction import PointRead, Precondition, RangeRead
from holdfast.values import slot_text

__all__ = ["header_fields", "print_transaction", "transaction_fields"]


def header_fields(header: Header) -> dict[str, object]:
    """Every field of a header that says something to a reader."""
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
    """A committed transaction with what it was judged by."""
    return {
        "version": txn.version,
        "request_id": txn.request_id,
        "read_version": txn.read_version,
        "preconditions": [precondition_fields(read) for read in txn.preconditions],
        "operations": [operation_fields(operation) for operation in txn.operations],
    }


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
    print_line("\n".join(lines))
