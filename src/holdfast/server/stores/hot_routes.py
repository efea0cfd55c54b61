"""The hot store routes: publish, acknowledge, poll. Both kinds of connection serve them by ``HotStores.serve``.

A ``Connection`` finds them by their request line (``HotStores.match``). Lines with escapes or unknown parameters go to
an ``AsgiConnection``, whose handlers (``routes_messages``) call ``serve`` with what the framework read.

Every request gets one response. A poll is abandoned when its connection is lost, and waits no longer when its peer
sends no more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from holdfast.errors import Code, HoldfastError, InvalidRequest
from holdfast.server.gateway import Gateway
from holdfast.server.http.responses import error_answer, without_traceback
from holdfast.server.stores.deliveries import address_of
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.operations import POLL_MESSAGES_DEFAULT, PendingPoll, PollRequest, decode
from holdfast.stores.definitions.permissions import Right
from holdfast.wire.formats import MSGPACK, format_of
from holdfast.wire.stores import AckRequest, PublishRequest

__all__ = [
    "ACKS_ROUTE",
    "HOT_PREFIXES",
    "LINE_BYTES_MAX",
    "POLL_ROUTE",
    "PUBLISH_ROUTE",
    "Answer",
    "HotRequest",
    "HotStores",
]

HOT_PREFIXES: Final = (b"POST /v1/stores/", b"GET /v1/stores/")
LINE_BYTES_MAX: Final = 1_024
LINES_KEPT_MAX: Final = 4_096
JSON: Final = "application/json"

_NAME: Final = rb"([A-Za-z0-9._~-]{1,256})"
_PUBLISH: Final = re.compile(rb"POST /v1/stores/" + _NAME + rb"/messages HTTP/1\.1")
_ACKS: Final = re.compile(rb"POST /v1/stores/" + _NAME + rb"/durables/" + _NAME + rb"/acks HTTP/1\.1")
_POLL: Final = re.compile(
    rb"GET /v1/stores/" + _NAME + rb"/durables/" + _NAME + rb"/messages\?([A-Za-z0-9._~&=-]+) HTTP/1\.1"
)

Answer = Callable[[int, dict[str, str], bytes, str], None]
"""Status, extra headers, body and its media type. Called once."""


class HotRequest:
    """A request whose line is hot."""

    __slots__ = ("_stores", "action", "durable", "poll", "route", "store")

    def __init__(
        self,
        stores: HotStores,
        route: str,
        action: Right,
        store: str,
        durable: str = "",
        poll: dict[str, str] | PollRequest | None = None,
    ) -> None:
        """``poll``: what a long poll asks for, or the parameters of its query as they came."""
        self._stores = stores
        self.route = route
        self.action = action
        self.store = store
        self.durable = durable
        self.poll = poll

    @property
    def request_bytes_max(self) -> int:
        """The largest body that it may have."""
        return self._stores.host.request_bytes_max

    def problem_with(self, authorization: bytes | None) -> HoldfastError | None:
        """Why this caller's request is not even read, or None."""
        try:
            opened = self._stores.host.opened()
        except HoldfastError as error:
            return without_traceback(error)
        return opened.access.problem_with(authorization, self.action, self.store)

    def serve(
        self,
        body: bytes,
        content_type: bytes | str | None,
        accept: bytes | str | None,
        authorization: bytes | None,
        answer: Answer,
        peer: object = None,
    ) -> PendingPoll | None:
        """Carry it out. Returns what to tell when the connection ends before the answer. ``peer``: of its socket."""
        return self._stores.serve(self, body, content_type, accept, authorization, answer, peer)


PUBLISH_ROUTE: Final = "/v1/stores/{store}/messages"
ACKS_ROUTE: Final = "/v1/stores/{store}/durables/{durable}/acks"
POLL_ROUTE: Final = "/v1/stores/{store}/durables/{durable}/messages"
_PARAMETERS: Final = frozenset({"subscriber", "max", "wait_ms"})


class HotStores:
    """The hot store routes of one server."""

    __slots__ = ("_front", "_lines", "host")

    def __init__(self, front: Gateway, host: StoreHost) -> None:
        self._front = front
        self.host = host
        self._lines: dict[bytes, HotRequest] = {}
        """Lines that were read before: a publisher sends one line all its life."""

    def match(self, line: bytes) -> HotRequest | None:
        """The hot request of a request line (without its end), None when the framework has to read it."""
        known = self._lines.get(line)
        if known is not None:
            return known
        request = self._read(line)
        if request is not None and request.poll is None:
            if len(self._lines) == LINES_KEPT_MAX:
                self._lines.clear()
            self._lines[line] = request
        return request

    def _read(self, line: bytes) -> HotRequest | None:
        found = _PUBLISH.fullmatch(line)
        if found is not None:
            return HotRequest(self, PUBLISH_ROUTE, Right.PUBLISH, found[1].decode())
        found = _ACKS.fullmatch(line)
        if found is not None:
            return HotRequest(self, ACKS_ROUTE, Right.SUBSCRIBE, found[1].decode(), found[2].decode())
        found = _POLL.fullmatch(line)
        if found is None:
            return None
        pairs = [pair.partition("=") for pair in found[3].decode().split("&")]
        parameters = {name: value for name, _, value in pairs}
        # What is doubled, unknown or missing is the framework's to refuse, in its words.
        if len(parameters) != len(pairs) or not parameters.keys() <= _PARAMETERS or "subscriber" not in parameters:
            return None
        if not all(parameters.get(name, "1").isdigit() for name in ("max", "wait_ms")):
            return None
        return HotRequest(self, POLL_ROUTE, Right.SUBSCRIBE, found[1].decode(), found[2].decode(), parameters)

    def serve(
        self,
        request: HotRequest,
        body: bytes,
        content_type: bytes | str | None,
        accept: bytes | str | None,
        authorization: bytes | None,
        answer: Answer,
        peer: object,
    ) -> PendingPoll | None:
        """Carry one request out. Returns what to tell when the connection ends before the answer."""
        front, host = self._front, self.host
        wanted = format_of(accept)
        in_flight = -1  # bytes of a publish that was admitted

        def done(result: bytes | HoldfastError) -> None:
            nonlocal in_flight
            if in_flight >= 0:
                host.settled(in_flight)
                in_flight = -1
            if isinstance(result, HoldfastError):
                status, headers, text = error_answer(result, front.leader)
                answer(status, headers, text, JSON)
            else:
                answer(200, {}, result, JSON if wanted == "json" else MSGPACK)

        try:
            opened = host.opened()
            opened.access.require(authorization, request.action, request.store)
            operations = opened.operations
            if request.poll is not None:
                problem = opened.access.later(authorization, request.action, request.store)
                asked = request.poll
                if isinstance(asked, dict):
                    asked = _poll_of(request, asked, address_of(peer))
                return operations.poll(asked, wanted, done, problem)
            given = format_of(content_type)
            if request.action is Right.PUBLISH:
                batch = decode(body, PublishRequest, given)
                host.admit(len(body))
                in_flight = len(body)
                operations.publish(request.store, batch, wanted, done)
            else:
                acks = decode(body, AckRequest, given)
                operations.acknowledge(request.store, request.durable, acks, wanted, done)
        except HoldfastError as error:
            done(error)
        return None


def _poll_of(request: HotRequest, parameters: dict[str, str], address: str) -> PollRequest:
    count = parameters.get("max", str(POLL_MESSAGES_DEFAULT))
    wait_ms = parameters.get("wait_ms", "0")
    if len(count) > 9 or len(wait_ms) > 9:
        raise InvalidRequest("max and wait_ms are smaller whole numbers", code=Code.MALFORMED)
    subscriber = parameters["subscriber"]
    return PollRequest(request.store, request.durable, subscriber, int(count), int(wait_ms), address=address)
