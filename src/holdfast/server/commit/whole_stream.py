"""``POST /v1/commits`` whose body came whole with its head, as most requests of our clients do: without the framework.

Larger bodies, and those of which a part is still to come, are streams (``commit_stream``); results and errors are the
same. The response has a length when all results are known at once, else it comes in chunks.
"""

from __future__ import annotations

from typing import Final, cast

from holdfast.errors import HoldfastError
from holdfast.server.commit.item_readers import media_type_of, reader_for
from holdfast.server.commit.stream_items import StreamItems
from holdfast.server.gateway import Gateway
from holdfast.server.http.connection import FastResponse
from holdfast.server.http.key_scope import EVERYTHING
from holdfast.server.http.responses import error_response
from holdfast.server.http.rights_table import ScopeRule, need_of
from holdfast.server.http.state import FastRequest, PendingResponse, RequestFields
from holdfast.wire.formats import WireFormat

BODY_BYTES_MAX: Final = 131_072


class WholeStream(FastRequest):
    """The handler of all such requests. Where clients have a rate, a stream waits for it, and this is not used."""

    __slots__ = ("_gateway", "_need")

    only_whole = True

    def __init__(self, gateway: Gateway) -> None:
        super().__init__("/v1/commits", min(BODY_BYTES_MAX, gateway.limits.request_bytes_max), is_alone=True)
        self._gateway = gateway
        self._need = need_of("POST", "/v1/commits")

    def problem_with(self, authorization: bytes | None) -> HoldfastError | None:
        """See ``FastRequest``."""
        need = self._need
        return self._gateway.authenticator.problem_with(authorization, need.role, checks_scope=need.checks_scope)

    def serve(self, body: bytes, fields: RequestFields, response: PendingResponse) -> None:
        """See ``FastRequest``."""
        gateway, authorization = self._gateway, fields.authorization
        problem = self.problem_with(authorization) or gateway.admission()
        if problem is not None:
            response.respond(*error_response(problem, gateway.leader))
            return
        reader, wire_format = reader_for(fields.content_type, gateway.limits.request_bytes_max)
        txns = reader.take(body, last=True)
        due = cast(FastResponse, response)  # the framework has the stream
        due.closes = due.closes or reader.problem is not None
        answer = _Answer(gateway, wire_format, due)
        if txns:
            scope = (
                gateway.authenticator.scope_of(authorization) if self._need.scope is ScopeRule.COMMITS else EVERYTHING
            )
            weight = max(1, len(body) // len(txns))
            answer.items.submit(txns, weight, authorization, None if scope is EVERYTHING else scope)
        if reader.problem is not None:
            answer.items.end_with(reader.problem)
        if not answer.items.due:
            answer.wake()


class _Answer:
    """The response to one request."""

    __slots__ = ("_gateway", "_is_awake", "_response", "items")

    def __init__(self, gateway: Gateway, wire_format: WireFormat, response: FastResponse) -> None:
        self._gateway = gateway
        self._response = response
        self._is_awake = False
        self.items = StreamItems(gateway, wire_format, self.wake)

    def wake(self) -> None:
        """Write what is known at the end of this turn of the loop."""
        if not self._is_awake:
            self._is_awake = True
            self._gateway.loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_awake = False
        items = self.items
        results = items.results()
        is_last = not items.due
        if results or is_last:
            self._response.respond_part(results, media_type_of(items.wire_format), is_last=is_last)
        if is_last:
            items.end()
