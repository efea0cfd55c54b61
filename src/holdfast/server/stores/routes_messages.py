"""The routes that publish, deliver, acknowledge, browse and forget messages.

Owns: their rows and what they read of a request. Does not own: what they do (``operations``, the service), the same
publish, poll and acknowledge on the fast lane (``hot_routes``).
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import Code, InvalidRequest
from holdfast.server.http.routes import Answer, Route
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.hot_routes import ACKS_ROUTE, POLL_ROUTE, PUBLISH_ROUTE
from holdfast.server.stores.operations import (
    POLL_MESSAGES_DEFAULT,
    POLL_MESSAGES_MAX,
    POLL_WAIT_MS_MAX,
    PollRequest,
)
from holdfast.server.stores.redelivery import redeliver
from holdfast.server.stores.store_call import DOCUMENT, StoreCall, parameter, store_route
from holdfast.server.stores.subscribers import address_of
from holdfast.stores.definitions.permissions import Right
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.machine.explaining import explain
from holdfast.stores.values.commands import Done, Drop, Purge, Purged, Rewind
from holdfast.stores.values.messages import KEY_BYTES_MAX
from holdfast.wire import stores as wire
from holdfast.wire.stores import (
    AckedResponse,
    AckRequest,
    DeliveredResponse,
    NothingMore,
    Page,
    PublishRequest,
    Receipt,
    RedeliveredResponse,
    RedeliverRequest,
    RewindRequest,
)

__all__ = ["flag", "message_routes"]

BROWSE_MESSAGES_DEFAULT: Final = 100
BROWSE_MESSAGES_MAX: Final = 1_000

PUBLISH_CODES: Final = (
    Code.STORE_FULL,
    Code.CLUSTER_FULL,
    Code.MESSAGE_TOO_LARGE,
    Code.DISK_LIMIT,
    Code.NO_QUORUM,
    Code.SEQUENCE_GAP,
    Code.UNKNOWN_PUBLISHER,
)


async def publish(call: StoreCall) -> Answer:
    """``POST .../messages``."""
    return await call.hot(PUBLISH_ROUTE, Right.PUBLISH, await call.raw_body())


async def poll(call: StoreCall) -> Answer:
    """``GET .../messages``."""
    query = call.call
    asked = PollRequest(
        call.store,
        call.durable,
        query.text("subscriber") or "",
        query.number("max", low=1, high=POLL_MESSAGES_MAX) or POLL_MESSAGES_DEFAULT,
        query.number("wait_ms", high=POLL_WAIT_MS_MAX) or 0,
        query.text("key"),
        address=address_of(query.connection.peer),
    )
    return await call.hot(POLL_ROUTE, Right.SUBSCRIBE, durable=call.durable, poll=asked)


async def acknowledge(call: StoreCall) -> Answer:
    """``POST .../acks``."""
    return await call.hot(ACKS_ROUTE, Right.SUBSCRIBE, await call.raw_body(), durable=call.durable)


async def browse(call: StoreCall) -> Answer:
    """``GET .../browse``."""
    query = call.call
    found, next_after = call.opened.operations.browse(
        call.store,
        call.durable,
        after=query.number("after") or 0,
        count=query.number("max", low=1, high=BROWSE_MESSAGES_MAX) or BROWSE_MESSAGES_DEFAULT,
        match=(query.text("match") or "").encode(),
        parked=flag("parked", query.text("parked")),
    )
    durable = call.opened.state.store(call.store).durable(call.durable)
    parked = durable.dying if isinstance(durable, Consumption) and durable.parks else {}
    await call.opened.service.settled()
    return call.answer(Page(found, next_after, [one.seq for one in found if one.seq in parked]))


def flag(name: str, text: str | None) -> bool:
    """A query parameter that is true or false. Raises: InvalidRequest."""
    if text not in (None, "true", "false"):
        raise InvalidRequest(f"{name} is true or false")
    return text == "true"


async def purge(call: StoreCall) -> Answer:
    """``POST .../purge``."""
    result = await call.submit(call.opened.service.submit(Purge(0, call.store, call.durable)), Purged)
    return call.answer(wire.Purged(result.messages, result.bytes))


async def rewind(call: StoreCall) -> Answer:
    """``POST .../rewind``."""
    asked = await call.body(RewindRequest)
    if sum(one is not None for one in (asked.to, asked.seq, asked.time_ms)) != 1:
        raise InvalidRequest('a rewind names one of {"to": "start"}, {"seq": n} and {"time_ms": t}')
    command = Rewind(0, call.store, call.durable, asked.seq or 0, asked.time_ms or 0)
    await call.submit(call.opened.service.rewind(command), Done)
    return call.answer(NothingMore())


def _number(call: StoreCall) -> int:
    """The number of a message in the path. Raises: InvalidRequest."""
    text = call.call.path_text("seq")
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 16):
        raise InvalidRequest("the number of a message is a whole number")
    return int(text)


async def explain_message(call: StoreCall) -> Answer:
    """``GET .../messages/{seq}/explain``."""
    found = explain(call.opened.state, call.store, _number(call))
    await call.opened.service.settled()
    return call.answer(found)


async def drop(call: StoreCall) -> Answer:
    """``DELETE .../messages/{seq}``."""
    await call.submit(call.opened.service.submit(Drop(0, call.store, call.durable, _number(call))), Done)
    return call.answer(NothingMore())


def message_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    store, durable = "/v1/stores/{store}", "/v1/stores/{store}/durables/{durable}"
    return (
        store_route(
            host, "POST", f"{store}/messages", Right.PUBLISH, "Publish a batch: all of it or nothing", publish,
            body=PublishRequest, answer=Receipt, codes=PUBLISH_CODES,
        ),
        store_route(
            host, "GET", f"{durable}/messages", Right.SUBSCRIBE, "The next messages for a subscriber (long poll)", poll,
            answer=DeliveredResponse,
            codes=(Code.MATCHER_MISMATCH, Code.TYPE_MISMATCH, Code.DURABLE_COLLISION, Code.TOO_MANY_DURABLES),
            parameters=(
                parameter("subscriber", "string", "Whose; attached by its first poll", minLength=1, maxLength=256),
                parameter("max", "integer", "How many at most", minimum=1, maximum=POLL_MESSAGES_MAX,
                          default=POLL_MESSAGES_DEFAULT),
                parameter("wait_ms", "integer", "How long to wait for the first", minimum=0, maximum=POLL_WAIT_MS_MAX,
                          default=0),
                parameter("key", "string", "The one key of a last_value durable", maxLength=KEY_BYTES_MAX),
            ),
        ),
        store_route(
            host, "POST", f"{durable}/acks", Right.SUBSCRIBE, "Acknowledge, give back, reject or extend", acknowledge,
            body=AckRequest, answer=AckedResponse, codes=(Code.TYPE_MISMATCH,),
        ),
        store_route(
            host, "GET", f"{durable}/browse", Right.BROWSE, "Look at messages without consuming them", browse,
            answer=Page, codes=(Code.TYPE_MISMATCH,),
            parameters=(
                parameter("after", "integer", "Above this number", minimum=0, default=0),
                parameter("max", "integer", "How many at most", minimum=1, maximum=BROWSE_MESSAGES_MAX,
                          default=BROWSE_MESSAGES_DEFAULT),
                parameter("match", "string", "A matcher, as JSON"),
                parameter("parked", "boolean", "Only messages that were delivered too often", default=False),
            ),
        ),
        store_route(
            host, "GET", f"{store}/messages/{{seq}}/explain", Right.BROWSE, "What became of a message in every durable",
            explain_message, answer=DOCUMENT,
        ),
        store_route(
            host, "POST", f"{durable}/purge", Right.ADMINISTER, "Forget every message that the durable keeps", purge,
            answer=wire.Purged,
        ),
        store_route(
            host, "POST", f"{durable}/redeliver", Right.ADMINISTER,
            "Put parked messages back, and dead letters to where they came from", redeliver,
            body=RedeliverRequest, answer=RedeliveredResponse, codes=(Code.TYPE_MISMATCH,),
        ),
        store_route(
            host, "POST", f"{durable}/rewind", Right.SUBSCRIBE, "Deliver again what is retained", rewind,
            body=RewindRequest, answer=NothingMore, codes=(Code.TYPE_MISMATCH,),
        ),
        store_route(
            host, "DELETE", f"{durable}/messages/{{seq}}", Right.ADMINISTER, "Delete one message of a durable", drop,
            answer=NothingMore, codes=(Code.TYPE_MISMATCH,),
        ),
    )  # fmt: skip
