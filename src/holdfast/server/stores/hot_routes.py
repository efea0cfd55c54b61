"""The hot store routes: publish, acknowledge, poll, each with one handler.

An ``HttpConnection`` finds them by their request line (``HotStores.match``). Other lines go to the framework, whose
routes (``routes.messages``) make the same ``HotRequest``. A poll is abandoned when its connection is lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.errors import HoldfastError
from holdfast.server.http.responses import error_response, without_traceback
from holdfast.server.http.rights_table import TAKE_OVER, Need, need_of
from holdfast.server.http.state import JSON, FastRequest, PendingResponse, RequestFields
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.operations import PendingPoll, PollRequest, decode
from holdfast.server.stores.subscribers import address_of
from holdfast.wire.formats import MSGPACK, WireFormat, format_of
from holdfast.wire.stores import AckRequest, PublishRequest

LINES_KEPT_MAX: Final = 4_096
PUBLISH_ROUTE: Final = "/v1/stores/{store}/messages"
ACKS_ROUTE: Final = "/v1/stores/{store}/durables/{durable}/acks"
POLL_ROUTE: Final = "/v1/stores/{store}/durables/{durable}/messages"

_NAME: Final = rb"([A-Za-z0-9._~-]{1,256})"
_PUBLISH: Final = re.compile(rb"POST /v1/stores/" + _NAME + rb"/messages HTTP/1\.1")
_ACKS: Final = re.compile(rb"POST /v1/stores/" + _NAME + rb"/durables/" + _NAME + rb"/acks HTTP/1\.1")
_POLL: Final = re.compile(
    rb"GET /v1/stores/" + _NAME + rb"/durables/" + _NAME + rb"/messages\?([A-Za-z0-9._~&=-]+) HTTP/1\.1"
)

_PARAMETERS: Final = frozenset({"subscriber", "max", "wait_ms", "token"})


class HotRequest(FastRequest):
    """A publish, where there is no ``durable``; a poll, with its query parameters; or else an acknowledgement."""

    __slots__ = ("_host", "_need", "_right", "durable", "poll", "store")

    def __init__(
        self,
        host: StoreHost,
        route: str,
        need: Need,
        store: str,
        durable: str = "",
        poll: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(route, host.request_bytes_max)
        self._host = host
        assert need.right is not None, "a route of the stores needs a right on one of them"
        self._need, self._right = need, need.right
        self.store = store
        self.durable = durable
        self.poll = poll

    def problem_with(self, authorization: bytes | None) -> HoldfastError | None:
        """See ``FastRequest``."""
        try:
            opened = self._host.opened()
        except HoldfastError as error:
            return without_traceback(error)
        return opened.access.problem_with(authorization, self._right, self.store)

    def serve(self, body: bytes, fields: RequestFields, response: PendingResponse) -> PendingPoll | None:
        """See ``FastRequest``."""
        host, right = self._host, self._right
        reply = HotReply(host, response, format_of(fields.accept))
        try:
            opened = host.opened()
            authorization = fields.authorization
            operations = opened.operations
            if self.poll is None:
                opened.access.require(authorization, right, self.store)
            else:
                held = opened.access.held(authorization, right, self.store)
                if (problem := held.problem()) is not None:
                    raise problem
                poll = PollRequest.read(self.store, self.durable, self.poll, address_of(response.peer))
                if poll.take_over:
                    opened.access.require(authorization, self._need.right_of(TAKE_OVER), self.store)
                opened.statistics.want(self.store)
                return operations.poll(poll, reply, held, host.gateway.rights)
            body_format = format_of(fields.content_type)
            if not self.durable:
                batch = decode(body, PublishRequest, body_format)
                host.admit(len(body))
                reply.admitted = len(body)
                operations.publish(self.store, batch, reply)
            else:
                operations.acknowledge(self.store, self.durable, decode(body, AckRequest, body_format), reply)
        except HoldfastError as error:
            reply.refuse(error)
        return None


class HotReply(msgspec.Struct):
    """The response to a hot request: see ``OperationReply``. It is given once, and gives back the room of a publish."""

    host: StoreHost
    response: PendingResponse
    wire_format: WireFormat
    admitted: int = -1
    """Bytes of a publish that is in flight."""

    def give(self, body: bytes) -> None:
        """See ``OperationReply``."""
        if self.admitted >= 0:
            self.host.settled(self.admitted)
        self.response.respond(200, None, body, JSON if self.wire_format == "json" else MSGPACK)

    def refuse(self, error: HoldfastError) -> None:
        """See ``OperationReply``."""
        if self.admitted >= 0:
            self.host.settled(self.admitted)
        self.response.respond(*error_response(error, self.host.gateway.leader))


class HotStores:
    """Finds the hot requests of one server by their lines."""

    __slots__ = ("_host", "_lines", "prefixes")

    def __init__(self, host: StoreHost) -> None:
        self._host = host
        self._lines: dict[bytes, HotRequest] = {}
        """Lines read before: a publisher always sends the same one."""
        self.prefixes = (b"POST /v1/stores/", b"GET /v1/stores/")

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
        host = self._host
        match = _PUBLISH.fullmatch(line)
        if match is not None:
            return HotRequest(host, PUBLISH_ROUTE, need_of("POST", PUBLISH_ROUTE), match[1].decode())
        match = _ACKS.fullmatch(line)
        if match is not None:
            need = need_of("POST", ACKS_ROUTE)
            return HotRequest(host, ACKS_ROUTE, need, match[1].decode(), match[2].decode())
        match = _POLL.fullmatch(line)
        if match is None:
            return None
        pairs = [pair.partition("=") for pair in match[3].decode().split("&")]
        parameters = {name: value for name, _, value in pairs}
        # The framework refuses doubled, unknown and missing parameters, in its words.
        if len(parameters) != len(pairs) or not parameters.keys() <= _PARAMETERS or "subscriber" not in parameters:
            return None
        need = need_of("GET", POLL_ROUTE)
        return HotRequest(host, POLL_ROUTE, need, match[1].decode(), match[2].decode(), parameters)
