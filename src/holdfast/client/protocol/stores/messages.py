"""Requests, responses and frames of the message stores' API, and what an error code says about its request.

Bodies are msgpack; errors are JSON or msgpack by content type. Bytes that the API does not describe raise
``CorruptData``; unknown fields are ignored. An unknown code becomes ``Unavailable`` (5xx) or ``InvalidRequest``.

"Nothing was done" is certain for every response below 500 and for ``RETRIED_CODES``. Any other response of 500 and
above leaves the outcome open: the log may have the request although writing or syncing it failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, cast
from urllib.parse import quote

import msgspec

from holdfast.client.protocol.effects import Request, Response
from holdfast.client.protocol.messages import REFUSED_BEFORE_ACCEPTANCE, decode, error_of, query_of
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, Unavailable
from holdfast.wire.formats import MSGPACK, UNDECODABLE
from holdfast.wire.log import ErrorBody, ErrorResponse
from holdfast.wire.parts import BatchReceipt, Message
from holdfast.wire.stores import AdvisoryFrame, PublishedMessage, PublishRequest, ServerFrame

SUBPROTOCOL: Final = "holdfast.stores.v1+msgpack"
_HEADERS: Final = (("content-type", MSGPACK), ("accept", MSGPACK))
_ACCEPT: Final = (("accept", MSGPACK),)
_ENCODER: Final = msgspec.msgpack.Encoder()
_CODES: Final = frozenset(code.value for code in Code)

_RECEIPT: Final = msgspec.msgpack.Decoder(BatchReceipt)
_FRAMES: Final = msgspec.msgpack.Decoder(ServerFrame)
_JSON_ERROR: Final = msgspec.json.Decoder(ErrorResponse)
_MSGPACK_ERROR: Final = msgspec.msgpack.Decoder(ErrorResponse)


class Advisory(msgspec.Struct, frozen=True):
    """A change of state that no message carries, for example ``store_unavailable`` or ``durable_collision``."""

    kind: str
    facts: Mapping[str, object]


class Advisories:
    """The newest ``count_max`` advisories that were not taken yet."""

    def __init__(self, count_max: int) -> None:
        self._waiting: deque[Advisory] = deque(maxlen=count_max)
        self.on_advisory: Callable[[Advisory], None] | None = None

    def add(self, kind: str, facts: Mapping[str, object]) -> None:
        """Report a change of state."""
        advisory = Advisory(kind, facts)
        self._waiting.append(advisory)
        if self.on_advisory is not None:
            self.on_advisory(advisory)

    def take(self) -> list[Advisory]:
        """The advisories since the last call, oldest first."""
        advisories = list(self._waiting)
        self._waiting.clear()
        return advisories


@lru_cache(maxsize=256)
def store_path(store: str) -> str:
    """``/v1/stores/{store}``.

    >>> store_path("orders of today")
    '/v1/stores/orders%20of%20today'
    """
    return f"/v1/stores/{quote(store, safe='')}"


def durable_path(store: str, durable: str) -> str:
    """``/v1/stores/{store}/durables/{durable}``."""
    return f"{store_path(store)}/durables/{quote(durable, safe='')}"


def template_path(store: str, template: str) -> str:
    """``/v1/stores/{store}/templates/{template}``."""
    return f"{store_path(store)}/templates/{quote(template, safe='')}"


def map_path(store: str, name: str, key: str | None = None) -> str:
    """``/v1/stores/{store}/maps/{map}``, of one key where it is given."""
    path = f"{store_path(store)}/maps/{quote(name, safe='')}"
    return path if key is None else f"{path}/{quote(key, safe='')}"


def request_of(method: str, target: str, body: object = None, headers: tuple[tuple[str, str], ...] = ()) -> Request:
    """A request whose body, where there is one, is msgpack."""
    if body is None:
        return Request(method, target, b"", _ACCEPT + headers)
    return Request(method, target, _encoded(body), _HEADERS + headers)


def publish_request(store: str, publisher_id: str, messages: Sequence[Message], token: str = "") -> Request:
    """``POST /v1/stores/{store}/messages``."""
    # The service checks the bounds of ``PublishedMessage``; encoding needs the fields of ``Message`` alone.
    batch = PublishRequest(cast("list[PublishedMessage]", messages), publisher_id, token)
    return Request("POST", f"{store_path(store)}/messages", _encoded(batch), _HEADERS)


def _encoded(body: object) -> bytes:
    try:
        return _ENCODER.encode(body)
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequest("a whole number has at most 64 bits, and a text is UTF-8", cause=str(error)) from error


def subscribe_target(
    store: str,
    durable: str,
    subscriber: str,
    *,
    template: str | None = None,
    matcher: Mapping[str, object] | None = None,
    key: str | None = None,
    prefix: str | None = None,
    prefetch: int | None = None,
    wait_ms: int | None = None,
    session: str | None = None,
) -> str:
    """``GET /v1/stores/{store}/durables/{durable}/subscribe`` with its query. ``session``: drawn for this subscriber of
    this process, so that a later connection keeps what the application works on."""
    text = None if matcher is None else msgspec.json.encode(matcher).decode()
    query = query_of(
        subscriber=subscriber,
        template=template,
        matcher=text,
        key=key,
        prefix=prefix,
        prefetch=prefetch,
        wait_ms=wait_ms,
        session=session,
    )
    return f"{durable_path(store, durable)}/subscribe{query}"


def frame_of(kind: str, **fields: object) -> bytes:
    """``credit`` (the service may send this many more messages), ``close`` (the subscriber leaves: its messages go back
    at once), or ``started`` (the application was handed these ranges; no range announces that reports will come)."""
    return _ENCODER.encode({"type": kind, **fields})


def ack_frame(kind: str, frame_id: int, what: Sequence[object], token: str) -> bytes:
    """An ``ack`` (ranges), ``nack`` (pairs with a delay), ``reject`` or ``extend`` (numbers)."""
    frame = {"type": kind, "id": frame_id, "ranges" if kind == "ack" else "messages": what}
    return _ENCODER.encode({**frame, "token": token} if token else frame)


def decode_frame(payload: bytes) -> ServerFrame:
    """A frame of the service. Raises: CorruptData."""
    try:
        frame: ServerFrame = _FRAMES.decode(payload)
    except UNDECODABLE as error:
        raise CorruptData("the service sent a frame that the API does not describe", size=len(payload)) from error
    return frame


def decode_receipt(response: Response) -> BatchReceipt:
    """The receipt of a batch. Raises: CorruptData."""
    if response.headers.get("content-type") != MSGPACK:
        return decode(response, BatchReceipt)
    try:
        return _RECEIPT.decode(response.body)
    except UNDECODABLE as error:
        raise CorruptData("the service answered something the API does not describe", status=response.status) from error


def coded_error(status: int, headers: Mapping[str, str], body: bytes) -> HoldfastError | None:
    """The error in a response, or None when it is not one of the API: then a proxy responded."""
    decoder = _MSGPACK_ERROR if MSGPACK in headers.get("content-type", "") else _JSON_ERROR
    try:
        error = decoder.decode(body).error
    except UNDECODABLE:
        return None
    return named_error(error, status)


def named_error(error: ErrorBody, status: int) -> HoldfastError:
    """The exception for a code."""
    if error.code in _CODES:
        return error_of(error, status)
    kind = Unavailable if status >= 500 else InvalidRequest
    return kind(
        error.message or error.code, retry_after_ms=error.retry_after_ms, hint=error.hint, service_code=error.code
    )


def closing_error(code: str, said: AdvisoryFrame | None) -> HoldfastError:
    """The exception for the code in a close frame, which has room for no more; the advisory before it has the facts."""
    facts = "".join(f" {key}={value}" for key, value in said.facts.items()) if said and said.kind == code else ""
    return named_error(ErrorBody(code, f"the service ended the subscription: {code}{facts}"), 500)


RETRIED_CODES: Final = REFUSED_BEFORE_ACCEPTANCE | {
    Code.STORE_FULL, Code.CLUSTER_FULL, Code.DISK_LIMIT, Code.NO_QUORUM, Code.CLOSED,
}  # fmt: skip
"""Nothing was done, and a later try may succeed."""

_UNCLEAR_CODES: Final = frozenset(
    {Code.OUTCOME_UNKNOWN, Code.INTERNAL, Code.LEADER_CHANGED, Code.STORE_UNAVAILABLE, Code.SYNC_FAILED, Code.DISK_FULL}
)

PASSING_CODES: Final = RETRIED_CODES | _UNCLEAR_CODES
"""A later try may succeed, whatever happened to this one."""


def is_unclear(error: HoldfastError, status: int) -> bool:
    """Whether the request may have been carried out in spite of this error.

    >>> from holdfast.errors import Backpressure, Closed
    >>> is_unclear(Closed("", code=Code.SYNC_FAILED), 500), is_unclear(Backpressure("", code=Code.DISK_LIMIT), 507)
    (True, False)
    """
    return error.code in _UNCLEAR_CODES or (status >= 500 and error.code not in RETRIED_CODES)
