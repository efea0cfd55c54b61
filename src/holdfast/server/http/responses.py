"""Responses as bytes, and the HTTP status of each code. Pure; a test checks that every ``Code`` has a status."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.commit.format.transaction import Committed, Outcome, Rejected, Reused, Unanswered
from holdfast.errors import Code, Fenced, HoldfastError, InvalidRequest, OutcomeUnknown
from holdfast.stores.values.commands import Acknowledged, MapChanged, Published
from holdfast.wire.formats import WireFormat, encode
from holdfast.wire.log import CommitReceipt, ErrorBody, ErrorResponse, ItemError, NotCommitted
from holdfast.wire.parts import AckedResponse, ChangedResponse, Receipt, StoresReceipt

_CODES_OF: Final[Mapping[int, tuple[Code, ...]]] = {
    400: (
        Code.MALFORMED, Code.NO_OPERATIONS, Code.FUTURE_VERSION, Code.BAD_BASE64, Code.BAD_RANGE, Code.BAD_REQUEST_ID,
        Code.READ_VERSION_REQUIRED, Code.BAD_CONFIGURATION, Code.DUPLICATE_PART, Code.STORES_NOT_IN_LOG,
        Code.ID_NEEDS_TAG,
    ),
    401: (Code.UNAUTHENTICATED,),
    403: (Code.PERMISSION_DENIED,),
    404: (Code.NOT_FOUND, Code.NO_SUCH_KEY),
    405: (Code.METHOD_NOT_ALLOWED,),
    408: (Code.TOO_SLOW,),
    409: (
        Code.REQUEST_ID_REUSED, Code.CONFLICT, Code.TOO_OLD, Code.BANNED, Code.LEADER_CHANGED, Code.LEADER_ALIVE,
        Code.DEPOSED, Code.ROLLED_BACK, Code.LOG_MISMATCH, Code.VIEW_DISABLED, Code.NOT_PROMOTED, Code.LOG_RETIRED,
        Code.SUSPENDED, Code.READ_ONLY, Code.CLUSTER_RESTORED,
        Code.STORE_FULL, Code.CLUSTER_FULL, Code.DURABLE_COLLISION, Code.DURABLE_BUSY, Code.MATCHER_MISMATCH,
        Code.TYPE_MISMATCH,
        Code.TOO_MANY_DURABLES, Code.SEQUENCE_GAP, Code.UNKNOWN_PUBLISHER, Code.LOCK_HELD, Code.NOT_HOLDER,
        Code.DELETES_MESSAGES, Code.ALREADY_OPEN, Code.LEASE_LOST, Code.STORE_REFUSED, Code.DUPLICATE,
        Code.STORE_REPLACED, Code.TOO_MANY_SUBSCRIBERS,
    ),
    410: (Code.LOG_TRUNCATED, Code.STAGE_LOST, Code.QUEUE_TRIMMED),
    412: (Code.NO_QUORUM, Code.REVISION_MISMATCH),
    413: (Code.TOO_LARGE, Code.MESSAGE_TOO_LARGE),
    421: (Code.MISDIRECTED,),
    429: (Code.RATE_LIMITED,),
    500: (
        Code.INTERNAL, Code.CORRUPT_LOG, Code.CORRUPT_BATCH, Code.STORE_UNFIT, Code.CORRUPT_QUEUE, Code.SYNC_FAILED,
        Code.FORKED, Code.DIRECTORY_REPLACED,
    ),
    503: (
        Code.NOT_LEADER, Code.OVERLOADED, Code.STORE_UNAVAILABLE, Code.LAGGING, Code.VIEW_BEHIND, Code.LOG_EMPTY,
        Code.CLOSED, Code.QUEUE_FULL, Code.DISK_FULL,
    ),
    504: (Code.OUTCOME_UNKNOWN,),
    507: (Code.DISK_LIMIT,),
}  # fmt: skip
"""Every code has a status, also those of the embedded queue, which no route answers with."""
STATUS_OF: Final = {code: status for status, codes in _CODES_OF.items() for code in codes}


def retry_after_seconds(retry_after_ms: int) -> int:
    """What ``Retry-After`` says for a wait: whole seconds, rounded up, at least one.

    >>> retry_after_seconds(20), retry_after_seconds(1001)
    (1, 2)
    """
    return max(1, -(-retry_after_ms // 1000))


@dataclass(frozen=True, slots=True)
class LeaderHint:
    """The leader that this process knows. Empty texts when it knows none."""

    leader_id: str = ""
    address: str = ""
    is_this_process: bool = False


_NAMES_THE_LEADER: Final = frozenset({Code.NOT_LEADER, Code.LEADER_CHANGED, Code.LEADER_ALIVE, Code.DEPOSED})


_OWN_FIELDS: Final[Mapping[str, tuple[type, Collection[Code]]]] = {
    "roll_back_to": (int, frozenset(Code)),
    "log_id": (str, (Code.LOG_MISMATCH, Code.ROLLED_BACK)),
    "holder": (str, (Code.DURABLE_BUSY,)),
    "since_ms": (int, (Code.DURABLE_BUSY,)),
    "at": (int, (Code.NOT_FOUND,)),
    "tag": (str, (Code.ID_NEEDS_TAG,)),
}
"""Facts that have a field of their own in the body: their type, and the codes that have them."""


def error_body(error: HoldfastError, leader: LeaderHint) -> ErrorBody:
    """The body of an error, which states each fact once: in a field of its own, or in the message.

    The leader is named where that helps the caller. A process names itself only in the response to a request for
    another leader, which ``requests.problem_with`` marks with the field ``leader_id``.
    """
    own: dict[str, Any] = {
        name: fact
        for name, (kind, codes) in _OWN_FIELDS.items()
        if error.code in codes and isinstance(fact := error.fields.get(name), kind)
    }
    elsewhere = [*own]
    if error.code in _NAMES_THE_LEADER:
        elsewhere += ("leader_id", "leader_address")
        is_asked_for = error.code is Code.LEADER_CHANGED and error.fields.get("leader_id") == leader.leader_id
        if not leader.is_this_process or is_asked_for:
            own |= {"leader_id": leader.leader_id or None, "leader_address": leader.address or None}
    message = error.statement(without=elsewhere)
    return ErrorBody(code=str(error.code), message=message, retry_after_ms=error.retry_after_ms, hint=error.hint, **own)


def error_response(error: HoldfastError, leader: LeaderHint) -> tuple[int, dict[str, str], bytes]:
    """The status, the extra headers and the body of an error."""
    headers: dict[str, str] = {}
    if error.retry_after_ms is not None:
        headers["Retry-After"] = str(retry_after_seconds(error.retry_after_ms))
    if error.code is Code.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if error.code is Code.METHOD_NOT_ALLOWED and isinstance(error.fields.get("allow"), str):
        headers["Allow"] = str(error.fields["allow"])
    return STATUS_OF[error.code], headers, encode(ErrorResponse(error_body(error, leader)))


class CommitResponses:
    """Encodes the outcomes of one leader's commits; the parts that never change are made once."""

    __slots__ = ("_after_version", "_leader", "_leader_id")

    def __init__(self, leader: LeaderHint) -> None:
        self._leader = leader
        self._leader_id = leader.leader_id
        self._after_version = b',"leader_id":' + encode(leader.leader_id) + b',"request_id":'

    def committed_json(self, version: int, request_id: str | None) -> bytes:
        """The body of a committed answer; byte for byte what encoding a ``CommitReceipt`` gives."""
        if request_id is None:
            return b'{"status":"committed","version":%d%bnull}' % (version, self._after_version)
        return b'{"status":"committed","version":%d%b%b}' % (version, self._after_version, encode(request_id))

    def committed_line(self, version: int, request_id: str) -> bytes:
        """The same as a line."""
        return b'{"status":"committed","version":%d%b%b}\n' % (version, self._after_version, encode(request_id))

    def committed_lines(self, versions: list[int]) -> bytes:
        """A line for each committed answer without a request id, in order. Cost: a fifth of one at a time."""
        line = b'{"status":"committed","version":%d' + self._after_version.replace(b"%", b"%%") + b"null}\n"
        return (line * len(versions)) % tuple(versions)

    def answer(
        self, outcome: Outcome | HoldfastError, *, durable_version: int, request_id: str | None
    ) -> CommitReceipt | NotCommitted | HoldfastError:
        """The answer to one commit, or the error that it is answered with."""
        match outcome:
            case Committed(version=version, results=results):
                stores = UNSET if results is None else stores_receipt(results)
                return CommitReceipt(version, self._leader_id, request_id, stores)
            case Rejected(reason=reason, conflicts=conflicts, refused=refused):
                return NotCommitted(reason, conflicts, durable_version, self._leader_id, request_id, refused or UNSET)
            case Reused():
                return InvalidRequest("the request id belongs to another attempt", code=Code.REQUEST_ID_REUSED)
            case Unanswered():
                return OutcomeUnknown("the outcome could not be proved here", hint="ask /v1/status with the request id")
            case HoldfastError():
                return outcome

    def response(
        self, outcome: Outcome | HoldfastError, *, durable_version: int, request_id: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        """The status, the extra headers and the body of one commit's answer."""
        answer = self.answer(outcome, durable_version=durable_version, request_id=request_id)
        if isinstance(answer, HoldfastError):
            return error_response(answer, self._leader)
        return 200, {}, encode(answer)

    def stream_item(
        self,
        outcome: Outcome | HoldfastError,
        *,
        durable_version: int,
        request_id: str | None,
        index: int,
        wire_format: WireFormat,
    ) -> bytes:
        """The result of one item of a stream: a line of JSON, or a msgpack map. For an error, see ``item_error``."""
        if wire_format == "json" and type(outcome) is Committed and outcome.results is None:
            return self.committed_json(outcome.version, request_id) + b"\n"
        answer = self.answer(outcome, durable_version=durable_version, request_id=request_id)
        if isinstance(answer, HoldfastError):
            return self.item_error(answer, index=index, wire_format=wire_format, ends=False)
        return encode(answer, wire_format) + (b"\n" if wire_format == "json" else b"")

    def item_error(self, error: HoldfastError, *, index: int, wire_format: WireFormat, ends: bool) -> bytes:
        """An error as the result of one item. ``ends``: nothing of this item or of those after it was taken."""
        body = ItemError(error_body(error, self._leader), index, ends or UNSET)
        return encode(body, wire_format) + (b"\n" if wire_format == "json" else b"")


NOT_LEADING_RETRY_MS: Final = 250
"""Of every refusal that belongs to a take-over, or to an end that one may follow: it costs a client at most a quarter
more than this after the service is ready."""


def not_leading(leader: LeaderHint, hint: str = "") -> Fenced:
    """The answer of a process that does not lead (yet, or any more)."""
    return Fenced(
        "this process does not lead the log",
        code=Code.NOT_LEADER,
        hint=hint,
        retry_after_ms=NOT_LEADING_RETRY_MS,
        leader_address=leader.address or None,
    )


E = TypeVar("E", bound=BaseException)


def without_traceback(error: E) -> E:
    """``error`` itself, after its traceback and those of its causes were removed."""
    waiting: list[BaseException | None] = [error]
    visited: set[int] = set()  # an error that is raised again from one that it caused makes a circle
    while waiting:
        current = waiting.pop()
        if current is not None and id(current) not in visited:
            visited.add(id(current))
            current.__traceback__ = None
            waiting += (current.__cause__, current.__context__)
    return error


_DAYS: Final = (b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun")
_MONTHS: Final = tuple(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())


def http_date(timestamp: float) -> bytes:
    """A moment in seconds since 1970, in English whatever the locale.

    ``datetime`` is not used: each of its conversions leaves a small string in the interpreter's cache of attributes,
    and each of these strings can keep 1 MiB of freed memory in use (``freed_memory``).
    """
    year, month, day, hour, minute, second, weekday, _, _ = time.gmtime(timestamp)
    return b"%b, %02d %b %d %02d:%02d:%02d GMT" % (_DAYS[weekday], day, _MONTHS[month - 1], year, hour, minute, second)


_RESULTS: Final = msgspec.msgpack.Decoder(list[Acknowledged | MapChanged | Published])


def stores_receipt(results: bytes) -> StoresReceipt:
    """The results of the stores as a client reads them."""
    receipt = StoresReceipt([], [], [])
    for result in _RESULTS.decode(results):
        match result:
            case Acknowledged(acknowledged=count):
                receipt.acknowledge.append(AckedResponse(count, []))
            case MapChanged(revision=revision, changed=changed):
                receipt.maps.append(ChangedResponse(revision, changed))
            case Published():
                receipt.publish.append(
                    Receipt(result.first_seq, result.last_seq, result.duplicates, result.unmatched, result.discarded)
                )
    return receipt
