"""Requests and responses of the log's HTTP API.

Bytes that the API does not describe are never guessed at. An error means *refused before it was accepted* only when its
body carries one of our codes: a proxy's own 502 or 503 says nothing about the commit. Unknown fields are ignored.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from holdfast import errors
from holdfast.client.protocol.effects import Request, Response
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest
from holdfast.values import LogPosition, parse_position
from holdfast.wire.formats import MSGPACK, NDJSON, UNDECODABLE
from holdfast.wire.log import CommitReceipt, ErrorBody, ErrorResponse, ItemError, NotCommitted

Place = int | str | LogPosition
"""A version as a caller names it: a number, ``VERSION@LOGID``, or a ``LogPosition``."""

JSON_TYPE: Final = "application/json"
COMMIT_HEADERS: Final = (("content-type", JSON_TYPE),)
COMMITS_HEADERS: Final = (("content-type", NDJSON), ("accept", NDJSON))

REFUSED_BEFORE_ACCEPTANCE: Final = frozenset({Code.OVERLOADED, Code.RATE_LIMITED, Code.NOT_LEADER})
"""A commit refused with one of these was not accepted: the same attempt may be sent again."""

COORDINATION_CODES: Final = frozenset({Code.NOT_LEADER, Code.LEADER_CHANGED, Code.LEADER_ALIVE, Code.DEPOSED})
"""After these errors the leader is asked instead."""

REPLACED_HINT: Final = "the log was replaced, or this is another service: read it again from its start"

_COMMIT: Final = msgspec.json.Decoder(CommitReceipt | NotCommitted)
_ERROR: Final = msgspec.json.Decoder(ErrorResponse)
_ITEM_ERROR: Final = msgspec.json.Decoder(ItemError)
_JSON: Final = msgspec.json.Encoder()

PLAIN: Final = "@"
"""In positions. A query may have it as it is, and the service serves a query without escapes in its hot lane."""

Shape = TypeVar("Shape")


def base64url(data: bytes) -> str:
    """Keys as they are written in paths and queries."""
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def query_of(**values: str | int | bool | LogPosition | None) -> str:
    """A query string with its question mark, without the values that are None.

    >>> query_of(after=7, match=None), query_of(match=None)
    ('?after=7', '')
    """
    texts = {name: str(value) for name, value in values.items() if value is not None}
    return f"?{urlencode(texts, safe=PLAIN)}" if texts else ""


def json_request(method: str, target: str, body: object) -> Request:
    """A request with a body in JSON."""
    return Request(method, target, _JSON.encode(body), COMMIT_HEADERS)


def position_of(named: Place) -> LogPosition:
    """The position that a caller names. Raises: InvalidRequest."""
    match named:
        case LogPosition():
            return named
        case str():
            position = parse_position(named)
        case _:
            position = LogPosition(named) if named >= 0 else None
    if position is None:
        raise InvalidRequest("a position is a version, VERSION@LOGID or VERSION~LEADER@LOGID", position=named)
    return position


def key_request(key: bytes, at: LogPosition | None, *, linearizable: bool = False) -> Request:
    """``GET /v1/keys/{key}``."""
    target = f"/v1/keys/{base64url(key)}"
    if linearizable:
        target += "?consistency=linearizable" if at is None else f"?consistency=linearizable&at={at}"
    elif at is not None:
        target += f"?at={at}"
    return Request("GET", target)


def decode(response: Response, shape: type[Shape]) -> Shape:
    """The body of a successful response. Raises: CorruptData."""
    try:
        if MSGPACK in response.headers.get("content-type", ""):
            return msgspec.msgpack.decode(response.body, type=shape)
        return msgspec.json.decode(response.body, type=shape)
    except UNDECODABLE as error:
        raise CorruptData("the service answered something the API does not describe", status=response.status) from error


def decode_commit(body: bytes) -> CommitReceipt | NotCommitted | None:
    """The verdict in a commit's response, or None when it is unreadable."""
    try:
        verdict: CommitReceipt | NotCommitted = _COMMIT.decode(body)
    except UNDECODABLE:
        return None
    return verdict


def decode_items(body: bytes) -> list[CommitReceipt | NotCommitted | ErrorBody]:
    """The result lines of a stream of commits. An incomplete or unreadable line ends them: what follows is unknown."""
    results: list[CommitReceipt | NotCommitted | ErrorBody] = []
    for line in body.split(b"\n")[:-1]:  # the rest is an incomplete line
        result = decode_commit(line) or error_in(line, _ITEM_ERROR)
        if result is None:
            break
        results.append(result)
    return results


def leaves_open(error: ErrorBody | None, status: int) -> bool:
    """Whether an error response to a commit leaves its outcome open."""
    if error is None:  # not from the service: a proxy may have sent the request on before it failed
        return status >= 500 or status in (408, 429) or status < 400
    if error.code in REFUSED_BEFORE_ACCEPTANCE:
        return False
    return status >= 500 or error.code in COORDINATION_CODES


def status_of_item(error: ErrorBody) -> int:
    """A status for a result line, which has none: 500 where the code leaves the outcome open."""
    open_codes = (Code.OUTCOME_UNKNOWN, Code.INTERNAL, Code.CLOSED, Code.STORE_UNAVAILABLE, Code.CORRUPT_LOG)
    return 500 if error.code in open_codes else 400


def service_error(response: Response) -> ErrorBody | None:
    """The coded error in a response, or None."""
    return error_in(response.body)


def error_in(
    body: bytes, decoder: msgspec.json.Decoder[ErrorResponse] | msgspec.json.Decoder[ItemError] = _ERROR
) -> ErrorBody | None:
    """The error in a body; None where there is none, or its code is not known and says nothing."""
    try:
        error = decoder.decode(body).error
        Code(error.code)
    except (*UNDECODABLE, ValueError):
        return None
    return error


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """The shortest wait that a response asks for in its header, which has seconds."""
    text = headers.get("retry-after", "")
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) <= 6 else None


_CODES_OF: Final[Mapping[type[HoldfastError], str]] = {
    InvalidRequest: (
        "malformed no_operations future_version bad_base64 bad_range bad_request_id read_version_required "
        "bad_configuration request_id_reused method_not_allowed rolled_back log_mismatch view_disabled read_only "
        "matcher_mismatch type_mismatch stores_not_in_log duplicate_part misdirected id_needs_tag"
    ),
    errors.LimitExceeded: "too_large message_too_large too_many_durables too_many_subscribers",
    errors.Conflict: (
        "conflict too_old banned sequence_gap unknown_publisher revision_mismatch deletes_messages lock_held "
        "not_holder already_open store_refused duplicate"
    ),
    errors.OutcomeUnknown: "outcome_unknown",
    errors.Unavailable: "not_leader store_unavailable lagging view_behind no_quorum disk_full too_slow",
    errors.AlreadyOpen: "durable_busy",
    errors.Fenced: "leader_changed leader_alive deposed durable_collision lease_lost",
    errors.NotFound: "not_found log_empty log_truncated stage_lost no_such_key",
    CorruptData: "corrupt_log corrupt_batch corrupt_queue store_unfit directory_replaced",
    errors.Backpressure: "overloaded rate_limited store_full cluster_full disk_limit",
    errors.Closed: "closed not_promoted log_retired suspended cluster_restored sync_failed store_replaced",
    errors.PermissionDenied: "unauthenticated permission_denied",
    errors.InternalError: "internal",
}
KIND_OF: Final = {Code(code): kind for kind, codes in _CODES_OF.items() for code in codes.split()}
"""What the client raises for each code of a response."""


PageOf = TypeVar("PageOf")


def require_progress(page: PageOf, items: Sequence[object], *, more: bool) -> PageOf:
    """The page. Raises: InternalError where it says that more follows and has nothing: reading on would never end."""
    if more and not items:
        raise errors.InternalError("the service answered a page without items and says that more follows")
    return page


def error_of(error: ErrorBody | None, status: int) -> HoldfastError:
    """The exception for an error response; its kind is by the code, else by the status."""
    if error is None:
        if status >= 500:
            return errors.Unavailable("something before the service answered with an error", status=status)
        return errors.InternalError("the service answered something the API does not describe", status=status)
    code = Code(error.code)
    return KIND_OF.get(code, errors.InternalError)(
        error.message or code.value,
        code=code,
        hint=error.hint or (REPLACED_HINT if code is Code.LOG_MISMATCH else ""),
        retry_after_ms=error.retry_after_ms,
        leader_id=error.leader_id,
        leader_address=error.leader_address,
        roll_back_to=error.roll_back_to,
        log_id=error.log_id,
        holder=error.holder,
        since_ms=error.since_ms,
        at=error.at,
        tag=error.tag,
    )
