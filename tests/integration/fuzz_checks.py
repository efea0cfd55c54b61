"""The checks of the fuzzer that are our own; loaded by it through ``SCHEMATHESIS_HOOKS``."""

from __future__ import annotations

import json

import msgspec
import schemathesis

from holdfast.errors import Code

CODES = frozenset(str(code) for code in Code)


class Inner(msgspec.Struct, frozen=True):
    """What every error says."""

    code: str
    message: str


class Outer(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: Inner


def check_error_body(status: int, method: str, content_type: str, body: bytes) -> None:
    """An answer of 400 and above carries one error with a stable code. Raises: AssertionError."""
    if status < 400:
        return
    assert status not in (500, 501, 502), f"a bug of the server: {body!r}"
    assert content_type.startswith("application/json"), f"{status} came as {content_type}"
    if method == "HEAD":
        return
    try:
        error = msgspec.json.decode(body, type=Outer).error
    except (msgspec.DecodeError, msgspec.ValidationError) as broken:
        raise AssertionError(f"{status} without an error body: {body!r}") from broken
    assert error.code in CODES, f"{status} with the unknown code {error.code}"
    assert error.message, f"{status} {error.code} without a message"


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _line(item: object) -> bytes:
    return json.dumps(item).encode() + b"\n"


def _map(item: object) -> bytes:
    try:
        return msgspec.msgpack.encode(item)
    except OverflowError:
        # msgpack has no integers this large; what goes out instead is no item at all, which is a case too.
        return _line(item)


@schemathesis.serializer("application/x-ndjson")
def lines(_context: schemathesis.SerializationContext, value: object) -> bytes:
    """A stream of commits, one a line; a generated value that is no list is one commit."""
    return value if isinstance(value, bytes) else b"".join(_line(item) for item in _items(value))


@schemathesis.serializer("application/msgpack")
def maps(_context: schemathesis.SerializationContext, value: object) -> bytes:
    """A stream of commits, concatenated."""
    return value if isinstance(value, bytes) else b"".join(_map(item) for item in _items(value))


@schemathesis.check
def errors_are_coded(
    _context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """Every error of every route is one of ours."""
    content_type = (response.headers.get("content-type") or [""])[0]
    check_error_body(response.status_code, case.method, content_type, response.content)
