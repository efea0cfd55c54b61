"""Requests and responses of the log's HTTP API.

Bytes that the API does not describe are never guessed at. An error means *refused before it was accepted* only when its
body carries one of our codes: a proxy's own 502 or 503 says nothing about the commit. Unknown fields are ignored.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast import errors
from holdfast.client.protocol.effects import Request, Response
from holdfast.commit.format.transaction import Transaction
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest
from holdfast.values import LogPosition, parse_position
from holdfast.wire.formats import NDJSON, UNDECODABLE
from holdfast.wire.log import (
    CommitReceipt,
    ErrorBody,
    ErrorResponse,
    FoundRange,
    ItemError,
    JobRecord,
    JobRecords,
    NotCommitted,
    ReadAnswer,
    ReadKey,
    ReadRange,
    ReadRequest,
    RetentionAnswer,
    RetentionPlan,
    RetentionPlanRequest,
    RetentionPolicy,
    StatusAnswer,
    ValueResponse,
    VersionAnswer,
)

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

Shape = TypeVar(
    "Shape",
    StatusAnswer,
    VersionAnswer,
    ValueResponse,
    FoundRange,
    ReadAnswer,
    JobRecord,
    JobRecords,
    RetentionAnswer,
    RetentionPlan,
)


def base64url(data: bytes) -> str:
    """Keys as they are written in paths and queries."""
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def commits_request(txns: list[Transaction]) -> Request:
    """``POST /v1/commits`` as newline-delimited JSON, one result line per item."""
    return Request("POST", "/v1/commits", _JSON.encode_lines(txns), COMMITS_HEADERS, accepted_in_parts=True)


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


def status_request(request_id: str, min_version: LogPosition) -> Request:
    """``GET /v1/status/{request_id}``."""
    return Request("GET", f"/v1/status/{quote(request_id, safe='')}?min_version={min_version}")


def version_request(*, local: bool) -> Request:
    """``GET /v1/version``."""
    return Request("GET", "/v1/version?consistency=local" if local else "/v1/version")


def retention_request() -> Request:
    """``GET /v1/retention``."""
    return Request("GET", "/v1/retention")


def set_retention_request(name: str, policy: RetentionPolicy) -> Request:
    """``PUT /v1/retention/{name}``."""
    return Request("PUT", _policy_path(name), _JSON.encode(policy), (("content-type", JSON_TYPE),))


def remove_retention_request(name: str) -> Request:
    """``DELETE /v1/retention/{name}``."""
    return Request("DELETE", _policy_path(name))


def plan_retention_request(name: str, policy: RetentionPolicy | None) -> Request:
    """``POST /v1/admin/retention-plan``."""
    body = _JSON.encode(RetentionPlanRequest(name, policy))
    return Request("POST", "/v1/admin/retention-plan", body, (("content-type", JSON_TYPE),))


def _policy_path(name: str) -> str:
    return f"/v1/retention/{quote(name, safe='')}"


def key_request(key: bytes, at: LogPosition | None, *, linearizable: bool = False) -> Request:
    """``GET /v1/keys/{key}``."""
    target = f"/v1/keys/{base64url(key)}"
    if linearizable:
        target += "?consistency=linearizable" if at is None else f"?consistency=linearizable&at={at}"
    elif at is not None:
        target += f"?at={at}"
    return Request("GET", target)


def range_request(
    begin: bytes, end: bytes | None, limit: int, at: LogPosition | None, *, linearizable: bool = False
) -> Request:
    """``GET /v1/range``."""
    query: dict[str, str | int] = {"begin": base64url(begin), "limit": limit}
    if end is not None:
        query["end"] = base64url(end)
    if at is not None:
        query["at"] = str(at)
    if linearizable:
        query["consistency"] = "linearizable"
    return Request("GET", f"/v1/range?{urlencode(query)}")


def read_request(items: Sequence[ReadKey | ReadRange], at: LogPosition | None, *, linearizable: bool) -> Request:
    """``POST /v1/read``."""
    body = ReadRequest(items, None if at is None else str(at), "linearizable" if linearizable else "local")
    return Request("POST", "/v1/read", _JSON.encode(body), (("content-type", JSON_TYPE),))


def job_request(name: str, at: LogPosition | None) -> Request:
    """``GET /v1/jobs/{name}``."""
    target = f"/v1/jobs/{quote(name, safe='')}"
    return Request("GET", target if at is None else f"{target}?at={at}")


def jobs_request(prefix: str, after: str | None, limit: int, at: LogPosition | None) -> Request:
    """``GET /v1/jobs``."""
    query: dict[str, str | int] = {"prefix": prefix, "limit": limit}
    if after is not None:
        query["after"] = after
    if at is not None:
        query["at"] = str(at)
    return Request("GET", f"/v1/jobs?{urlencode(query)}")


def decode_body(response: Response, shape: type[Shape]) -> Shape:
    """The body of a successful response. Raises: CorruptData."""
    try:
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
    lines = body.split(b"\n")
    for line in lines[:-1]:  # the rest is an incomplete line
        verdict = decode_commit(line)
        if verdict is None:
            try:
                error = _ITEM_ERROR.decode(line).error
                Code(error.code)
            except (*UNDECODABLE, ValueError):  # an unknown code says nothing about the item
                break
            results.append(error)
        else:
            results.append(verdict)
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
    try:
        error = _ERROR.decode(response.body).error
        Code(error.code)
    except (*UNDECODABLE, ValueError):
        return None
    return error


def retry_after_ms(error: ErrorBody | None, headers: Mapping[str, str]) -> int | None:
    """The shortest wait that the service asks for: the body's milliseconds, else the header's seconds."""
    if error is not None and error.retry_after_ms is not None:
        return max(0, error.retry_after_ms)
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
    errors.Closed: "closed not_promoted log_retired sync_failed store_replaced",
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
