"""The routes that read keys: ``/v1/keys``, ``/v1/range`` and ``/v1/read``, and for records of jobs ``/v1/jobs``.

A read is never older than ``at``, and without ``at`` never older than the newest version known to be durable here when
it was asked, so clients read their own writes. A view that does not come that far in time answers ``view_behind``; one
that never will, because the log is damaged before that version, answers the damage with its slot and rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct

from holdfast.commit.format.json_request import Given, Text, optional_bytes, required_bytes, undecodable
from holdfast.commit.format.transaction import prefix_end
from holdfast.errors import Code, HoldfastError, InvalidRequest, NotFound
from holdfast.server.gateway import Gateway
from holdfast.server.http.key_scope import EVERYTHING, KeyScope
from holdfast.server.http.requests import key_from_text, position_of, range_of, text_key
from holdfast.server.http.responses import LeaderHint, error_body, without_traceback
from holdfast.server.http.rights_table import ScopeRule
from holdfast.server.http.routes import (
    POSITION_SCHEMA,
    Call,
    Parameter,
    Response,
    Route,
    json_response,
    key_parameters,
)
from holdfast.server.http.state import JSON
from holdfast.server.view.current_reads import Each
from holdfast.server.view.embedded_view import EmbeddedView
from holdfast.values import LogPosition
from holdfast.view.storage import Asked, KeyRange, Result, Stored, ViewPage
from holdfast.wire.formats import UNDECODABLE, decode_each_once
from holdfast.wire.log import Consistency, JobRecord, JobRecords, ReadAnswer, ReadResult, ValueRange, ValueResponse

RANGE_LIMIT_DEFAULT: Final = 1000
RANGE_LIMIT_MAX: Final = 10_000
ITEMS_MAX: Final = 1_000


class JsonReadKey(Struct, tag_field="type", tag="key", frozen=True, forbid_unknown_fields=True):
    """Read one key, given in base64 or as text."""

    key: Given = UNSET
    key_text: Text = UNSET


class JsonReadRange(Struct, tag_field="type", tag="range", frozen=True, forbid_unknown_fields=True):
    """Read at most ``limit`` keys of [begin, end), or all that start with ``prefix``; by default all keys."""

    begin: Given = UNSET
    begin_text: Text = UNSET
    end: Given | None = UNSET
    end_text: Text = UNSET
    prefix: Given = UNSET
    prefix_text: Text = UNSET
    limit: Annotated[int, Meta(ge=1, le=RANGE_LIMIT_MAX)] = RANGE_LIMIT_DEFAULT


class JsonRead(Struct, frozen=True, forbid_unknown_fields=True):
    """Read these items at one version, which is ``at`` or later. ``text``: values that are UTF-8 as text, too."""

    items: Annotated[list[JsonReadKey | JsonReadRange], Meta(min_length=1, max_length=ITEMS_MAX)]
    at: str | None = None
    consistency: Consistency = "local"
    text: bool = False


def decode_read(data: bytes) -> JsonRead:
    """The request in this JSON document. Raises: InvalidRequest (malformed)."""
    try:
        return decode_each_once(data, JsonRead)
    except UNDECODABLE as error:
        raise undecodable(error) from error


def within_scope(item: Asked | HoldfastError, scope: KeyScope) -> Asked | HoldfastError:
    """The item, or the error where it is outside the scope."""
    if isinstance(item, HoldfastError) or scope.is_everything:
        return item
    begin, end = (item.begin, item.end) if isinstance(item, KeyRange) else (item, item + b"\0")
    return scope.problem_with_range(begin, end) or item


def _item(item: JsonReadKey | JsonReadRange, index: int, scope: KeyScope) -> Asked | HoldfastError:
    """What an item asks for, or why it is not read."""
    try:
        return within_scope(_asked(item, f"$.items[{index}]"), scope)
    except InvalidRequest as error:
        return without_traceback(error)


def _asked(item: JsonReadKey | JsonReadRange, path: str) -> Asked:
    if isinstance(item, JsonReadKey):
        return required_bytes("key", item.key, item.key_text, path)
    begin = optional_bytes("begin", item.begin, item.begin_text, path)
    end = optional_bytes("end", item.end, item.end_text, path)
    prefix = optional_bytes("prefix", item.prefix, item.prefix_text, path)
    return KeyRange(*range_of(begin, end, prefix, f" - at `{path}`"), item.limit)


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


def _limit(description: str) -> Parameter:
    schema = {"type": "integer", "minimum": 1, "maximum": RANGE_LIMIT_MAX, "default": RANGE_LIMIT_DEFAULT}
    return Parameter("limit", "query", schema, description)


_READ_CODES: Final = (*_CODES, Code.LEADER_CHANGED)


def _found(key: bytes, value: bytes, version: int, at: int | None = None, *, text: bool) -> ValueResponse:
    if text:
        return ValueResponse(key, value, version, at, _text_of(key), _text_of(value))
    return ValueResponse(key, value, version, at)


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


_CONSISTENCY: Final = Parameter(
    "consistency", "query", {"type": "string", "enum": ["linearizable", "local"], "default": "local"},
    "linearizable: not older than any commit known anywhere when this came, as GET /v1/version; local: than any here",
)  # fmt: skip


async def _asked_version(gateway: Gateway, at: LogPosition | None, consistency: str | None) -> int:
    """The version that a read must reach, chosen before anything is read."""
    if consistency not in (None, "local", "linearizable"):
        raise InvalidRequest("consistency is linearizable or local")
    if consistency == "linearizable":
        newest = await gateway.newest_version()
        return newest if at is None else max(newest, gateway.version_of(at))
    return _local_version(gateway, at)


def _local_version(gateway: Gateway, at: LogPosition | None) -> int:
    # A standby follows the log and keeps no view.
    reader = gateway.reading() if gateway.read_only else gateway.leading()
    return reader.local_version() if at is None else gateway.version_of(at)


async def _asked_of(gateway: Gateway, call: Call) -> int:
    at, consistency = call.position("at"), call.text("consistency")
    return await _asked_version(gateway, at, consistency)


def _asked_key(call: Call) -> bytes:
    path = call.path_text("key")
    if call.switch("text", default=False):
        return text_key("key", path)
    return key_from_text("key", path, hint="text=true reads the path as text")


def _value_of(key: bytes, stored: Stored | None, at: int, *, text: bool) -> Response:
    """Raises: NotFound."""
    if stored is None:
        raise NotFound("there is no such key", at=at)
    return json_response(_found(key, *stored, at, text=text))


def _only_key(call: Call) -> tuple[bytes, bytes | None]:
    key = _asked_key(call)
    return key, key + b"\0"


def view_routes(gateway: Gateway, embedded: EmbeddedView) -> tuple[Route, ...]:
    """The rows of the route table."""

    async def read_key(call: Call) -> Response:
        key, text = _asked_key(call), call.switch("text", default=False)
        return _value_of(key, *await embedded.get(key, at=await _asked_of(gateway, call), room=call.room), text=text)

    def read_key_at_once(call: Call) -> Response | None:
        if call.text("consistency") is not None:
            return None
        key, text = _asked_key(call), call.switch("text", default=False)
        found = embedded.find_now(key, at=_local_version(gateway, call.position("at")))
        return None if found is None else _value_of(key, *found, text=text)

    async def read_range(call: Call) -> Response:
        begin, end = call.whole_range()
        text = call.switch("text", default=False)
        limit = call.number("limit", low=1, high=RANGE_LIMIT_MAX) or RANGE_LIMIT_DEFAULT
        page = await embedded.read_page(begin, end, limit, at=await _asked_of(gateway, call), room=call.room)
        items = tuple(_found(key, value, written, text=text) for key, value, written in page.rows)
        return json_response(ValueRange(items, page.version, page.more))

    return (
        Route(
            method="GET", path="/v1/keys/{key:any}", keys=_only_key, is_hot=True,
            summary="A key's value, from the embedded view",
            handler=read_key, at_once=read_key_at_once, answers={JSON: ValueResponse},
            codes=(*_READ_CODES, Code.NOT_FOUND), tag="view",
            parameters=(Parameter("key", "path", _KEY, "The key in base64url, padding optional", True), _TEXT, _AT,
                _CONSISTENCY),
        ),
        Route(
            method="GET", path="/v1/range", keys=Call.whole_range, is_hot=True,
            summary="Consecutive keys and their values, from the embedded view",
            handler=read_range, answers={JSON: ValueRange}, codes=(*_READ_CODES, Code.BAD_RANGE), tag="view",
            parameters=(
                *key_parameters("begin", "The first key; from the start without it"),
                *key_parameters("end", "Up to and without this key; to the last key without it"),
                *key_parameters("prefix", "All keys that start so; not together with begin and end"),
                _TEXT,
                _limit("How many keys at most"), _AT, _CONSISTENCY,
            ),
        ),
        Route(
            method="POST", path="/v1/read", is_hot=True,
            summary="Several keys and ranges, all at one version",
            handler=partial(_read_items, gateway, embedded), body={JSON: JsonRead}, answers={JSON: ReadAnswer},
            codes=(*_READ_CODES, Code.BAD_RANGE, Code.TOO_LARGE), tag="view",
        ),
    )  # fmt: skip


async def _read_items(gateway: Gateway, embedded: EmbeddedView, call: Call) -> Response:
    request = decode_read(await call.body())
    position = None if request.at is None else position_of("at", request.at)
    scope = _scope_of(call)
    asked = [_item(each, index, scope) for index, each in enumerate(request.items)]
    at = await _asked_version(gateway, position, request.consistency)
    each = await embedded.read([item for item in asked if not isinstance(item, HoldfastError)], at=at, room=call.room)
    call.require_right_to_see()
    scope = _scope_of(call)  # it may be another one by now
    shown = [within_scope(item, scope) for item in asked]
    return json_response(_answer(asked, shown, each, gateway.leader, text=request.text))


def _scope_of(call: Call) -> KeyScope:
    """The keys that each item may read, by the row of the route."""
    return call.scope if call.need.scope is ScopeRule.ITEMS else EVERYTHING


def _answer(
    asked: Sequence[Asked | HoldfastError],
    shown: Sequence[Asked | HoldfastError],
    each: Each,
    leader: LeaderHint,
    *,
    text: bool,
) -> ReadAnswer:
    """The results in the order of ``asked``, up to the first item that did not fit. Errors are in their place, also
    those of ``shown``: what the caller may see."""
    items: list[ReadResult] = []
    results = iter(each.results)
    for index, (item, problem) in enumerate(zip(asked, shown, strict=True)):
        result = item if isinstance(item, HoldfastError) else next(results, item)
        if isinstance(result, bytes | KeyRange):
            return ReadAnswer(each.version, tuple(items), more=True)
        items.append(_result(index, problem if isinstance(problem, HoldfastError) else result, leader, text=text))
    return ReadAnswer(each.version, tuple(items))


def _result(index: int, found: Result | HoldfastError, leader: LeaderHint, *, text: bool) -> ReadResult:
    if found is None:
        return ReadResult(index)
    if isinstance(found, HoldfastError):
        return ReadResult(index, error=error_body(found, leader))
    if isinstance(found, ViewPage):
        rows = tuple(_found(key, value, written, text=text) for key, value, written in found.rows)
        return ReadResult(index, rows=rows, more=found.more)
    value, written = found
    return ReadResult(index, value, written, _text_of(value) if text else None)


def job_routes(gateway: Gateway, embedded: EmbeddedView) -> tuple[Route, ...]:
    """The rows of the route table for records of jobs."""

    async def read_job(call: Call) -> Response:
        name = call.path_text("name")
        stored, _ = await embedded.get(name.encode(), at=await _asked_of(gateway, call), room=call.room, table="jobs")
        if stored is None:
            raise NotFound("this job has no record")
        return json_response(JobRecord(name, *stored))

    async def read_jobs(call: Call) -> Response:
        prefix, after = (call.text("prefix") or "").encode(), call.text("after")
        begin = prefix if after is None else max(prefix, after.encode() + b"\0")
        limit = call.number("limit", low=1, high=RANGE_LIMIT_MAX) or RANGE_LIMIT_DEFAULT
        page = await embedded.read_page(
            begin, prefix_end(prefix), limit, at=await _asked_of(gateway, call), room=call.room, table="jobs"
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
                _limit("At most this many records"), _AT,
            ),
        ),
    )  # fmt: skip
