"""The row of ``GET .../subscribe`` for those who do not upgrade, and for the description.

Owns: the row. Does not own: the WebSocket, which is served below the framework (``socket``).
"""

from __future__ import annotations

from holdfast.errors import Code, InvalidRequest
from holdfast.server.http.routes import Answer, Route
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.store_call import StoreCall, parameter, store_route
from holdfast.stores.definitions.permissions import Right
from holdfast.wire.stores import NothingMore

__all__ = ["subscribe_routes"]


async def subscribe(_: StoreCall) -> Answer:
    """``GET .../subscribe`` without an upgrade."""
    raise InvalidRequest(
        "this route speaks WebSocket",
        hint="ask for an upgrade with the subprotocol holdfast.stores.v1+json or holdfast.stores.v1+msgpack",
    )


def subscribe_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    return (
        store_route(
            host, "GET", "/v1/stores/{store}/durables/{durable}/subscribe", Right.SUBSCRIBE,
            "One WebSocket for a subscriber: credit, messages, acknowledgements, advisories; of a map its changes",
            subscribe,
            answer=NothingMore,
            codes=(
                Code.MATCHER_MISMATCH, Code.TYPE_MISMATCH, Code.DURABLE_COLLISION, Code.TOO_MANY_DURABLES,
                Code.NO_QUORUM,
            ),
            parameters=(
                parameter("subscriber", "string", "The subscriber's name", minLength=1, maxLength=256),
                parameter("template", "string", "What a durable that does not exist is made of"),
                parameter("matcher", "string", "Its matcher, as JSON"),
                parameter("key", "string", "The one key of a last-value subscriber, or of a map that is to be watched"),
                parameter("prefix", "string", "Of a map, the keys that begin so"),
                parameter("prefetch", "integer", "How many messages it wants to hold", minimum=0, maximum=999_999),
            ),
        ),
    )  # fmt: skip
