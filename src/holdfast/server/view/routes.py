"""The routes that read the embedded view: ``/v1/keys`` and ``/v1/range``, and for records of jobs ``/v1/jobs``.

A read is never older than ``at``, and without ``at`` never older than the newest version known to be durable here when
it was asked, so clients read their own writes. A view that does not come that far in time answers ``view_behind``; one
that never will, because the log is damaged before that version, answers the damage with its slot and rule.
"""

from __future__ import annotations

from typing import Final

from holdfast.commit.format.transaction import prefix_end
from holdfast.errors import Code, NotFound
from holdfast.server.gateway import Gateway
from holdfast.server.http.routes import (
    POSITION_SCHEMA,
    Call,
    Parameter,
    Response,
    Route,
    json_response,
    key_from_text,
    key_parameters,
    text_key,
)
from holdfast.server.http.state import JSON
from holdfast.server.view.embedded_view import EmbeddedView
from holdfast.wire.log import JobRecord, JobRecords, ValueRange, ValueResponse

RANGE_LIMIT_DEFAULT: Final = 1000
RANGE_LIMIT_MAX: Final = 10_000

_KEY: Final = {"type": "string", "format": "base64url"}
_AT: Final = Parameter(
    "at", "query", POSITION_SCHEMA,
    "Not older than this version, which may carry @LOGID; the newest durable one without it",
)  # fmt: skip
_TEXT: Final = Parameter(
    "text", "query", {"type": "boolean", "default": False},
    "The answer has each key and value that is UTF-8 as text, too; a key in the path is text, percent-encoded",
)  # fmt: skip
_CODES: Final = (
    Code.BAD_BASE64, Code.VIEW_DISABLED, Code.VIEW_BEHIND, Code.LOG_MISMATCH, Code.ROLLED_BACK, Code.NOT_LEADER,
    Code.STORE_UNAVAILABLE,
    Code.CORRUPT_LOG, Code.CORRUPT_BATCH,
)  # fmt: skip


def _found(key: bytes, value: bytes, version: int, *, text: bool) -> ValueResponse:
    return (
        ValueResponse(key, value, version, _text_of(key), _text_of(value))
        if text
        else ValueResponse(key, value, version)
    )


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _asked_version(gateway: Gateway, call: Call) -> int:
    at = call.position("at")
    # A standby follows the log and keeps no view.
    reader = gateway.reading() if gateway.read_only else gateway.leading()
    return reader.local_version() if at is None else gateway.version_of(at)


def _asked_key(call: Call) -> bytes:
    path = call.path_text("key")
    if call.switch("text", default=False):
        return text_key("key", path)
    return key_from_text("key", path, hint="text=true reads the path as text")


def _only_key(call: Call) -> tuple[bytes, bytes | None]:
    key = _asked_key(call)
    return key, key + b"\0"


def view_routes(gateway: Gateway, embedded: EmbeddedView) -> tuple[Route, ...]:
    """The rows of the route table."""

    async def read_key(call: Call) -> Response:
        key, text = _asked_key(call), call.switch("text", default=False)
        stored = await embedded.get(key, at=_asked_version(gateway, call), room=call.room)
        if stored is None:
            raise NotFound("there is no such key")
        value, version = stored
        return json_response(_found(key, value, version, text=text))

    async def read_range(call: Call) -> Response:
        begin, end = call.whole_range()
        text = call.switch("text", default=False)
        limit = call.number("limit", low=1, high=RANGE_LIMIT_MAX) or RANGE_LIMIT_DEFAULT
        page = await embedded.read_page(begin, end, limit, at=_asked_version(gateway, call), room=call.room)
        items = tuple(_found(key, value, written, text=text) for key, value, written in page.rows)
        return json_response(ValueRange(items, page.version, page.more))

    return (
        Route(
            method="GET", path="/v1/keys/{key:any}", keys=_only_key,
            summary="A key's value, from the embedded view",
            handler=read_key, answers={JSON: ValueResponse}, codes=(*_CODES, Code.NOT_FOUND), tag="view",
            parameters=(Parameter("key", "path", _KEY, "The key in base64url, padding optional", True), _TEXT, _AT),
        ),
        Route(
            method="GET", path="/v1/range", keys=Call.whole_range,
            summary="Consecutive keys and their values, from the embedded view",
            handler=read_range, answers={JSON: ValueRange}, codes=(*_CODES, Code.BAD_RANGE), tag="view",
            parameters=(
                *key_parameters("begin", "The first key; from the start without it"),
                *key_parameters("end", "Up to and without this key; to the last key without it"),
                *key_parameters("prefix", "All keys that start so; not together with begin and end"),
                _TEXT,
                Parameter(
                    "limit", "query",
                    {"type": "integer", "minimum": 1, "maximum": RANGE_LIMIT_MAX, "default": RANGE_LIMIT_DEFAULT},
                    "At most so many keys",
                ),
                _AT,
            ),
        ),
    )  # fmt: skip


def job_routes(gateway: Gateway, embedded: EmbeddedView) -> tuple[Route, ...]:
    """The rows of the route table for records of jobs."""

    async def read_job(call: Call) -> Response:
        name = call.path_text("name")
        stored = await embedded.get(name.encode(), at=_asked_version(gateway, call), room=call.room, table="jobs")
        if stored is None:
            raise NotFound("this job has no record")
        return json_response(JobRecord(name, *stored))

    async def read_jobs(call: Call) -> Response:
        prefix, after = (call.text("prefix") or "").encode(), call.text("after")
        begin = prefix if after is None else max(prefix, after.encode() + b"\0")
        limit = call.number("limit", low=1, high=RANGE_LIMIT_MAX) or RANGE_LIMIT_DEFAULT
        page = await embedded.read_page(
            begin, prefix_end(prefix), limit, at=_asked_version(gateway, call), room=call.room, table="jobs"
        )
        items = tuple(JobRecord(key.decode(), value, written) for key, value, written in page.rows)
        return json_response(JobRecords(items, page.version, page.more))

    return (
        Route(
            method="GET", path="/v1/jobs/{name:any}",
            summary="The record that a job keeps in the log, from the embedded view",
            handler=read_job, answers={JSON: JobRecord}, codes=(*_CODES, Code.NOT_FOUND), tag="view",
            parameters=(Parameter("name", "path", {"type": "string", "minLength": 1}, "The job's name", True), _AT),
        ),
        Route(
            method="GET", path="/v1/jobs",
            summary="The records that jobs keep in the log, by name, from the embedded view",
            handler=read_jobs, answers={JSON: JobRecords}, codes=_CODES, tag="view",
            parameters=(
                Parameter("prefix", "query", {"type": "string"}, "Only jobs whose names begin so"),
                Parameter("after", "query", {"type": "string"}, "Only jobs with names above this one"),
                Parameter(
                    "limit", "query",
                    {"type": "integer", "minimum": 1, "maximum": RANGE_LIMIT_MAX, "default": RANGE_LIMIT_DEFAULT},
                    "At most this many records",
                ),
                _AT,
            ),
        ),
    )  # fmt: skip
