"""Operations, as JSON fields and as lines for people.

Owns: these two forms. Keys and values are base64 in JSON, as in the HTTP API. Needs no Arrow: the client's
commands use it.
"""

from __future__ import annotations

from typing import Final

from holdfast.cli.output import base64_text, readable
from holdfast.commit.format.transaction import Delete, Operation, RangeDelete, Write

__all__ = ["operation_fields", "operation_text", "short"]

CHARACTERS_MAX: Final = 60


def short(data: bytes) -> str:
    """Bytes for people, cut to fit a line."""
    return readable(data, characters_max=CHARACTERS_MAX)


def operation_fields(operation: Operation) -> dict[str, object]:
    """An operation as the HTTP API writes it."""
    match operation:
        case Write(key=key, value=value):
            return {"type": "write", "key": base64_text(key), "value": base64_text(value)}
        case Delete(key=key):
            return {"type": "delete", "key": base64_text(key)}
        case RangeDelete(begin=begin, end=end):
            fields: dict[str, object] = {"type": "range_delete", "begin": base64_text(begin)}
            return fields if end is None else fields | {"end": base64_text(end)}


def operation_text(operation: Operation) -> str:
    """An operation on one line.

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
