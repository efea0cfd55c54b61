"""The routes that tell how the process is, and what its API is.

Owns: ``/livez``, ``/readyz``, ``/ok``, ``/metrics``, ``/openapi.json``, ``/docs``. Does not own: the numbers
(``metrics``), the reasons for not being ready (``readiness``), the description (``openapi``).

Failure model: none of these passes through admission, so they answer while the service is full or the store has
stalled; only ``/ok`` travels the pipeline, which is its purpose, and it gives up after ``OK_SECONDS_MAX``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from holdfast.errors import Backpressure, Code, HoldfastError, NotFound
from holdfast.server.docs_page import DOCS_PAGE
from holdfast.server.http.auth import Role
from holdfast.server.http.routes import Answer, Call, Parameter, Route, json_answer
from holdfast.wire.log import Liveness, PipelineResponse, Readiness

__all__ = ["STANDBY_HEADER", "STANDBY_PROOF_HEADER", "health_routes"]

OK_SECONDS_MAX: Final = 10.0
STANDBY_HEADER: Final = "Holdfast-Standby"
"""Names the standby that asks, by its address: of two standbys one may be cut off while the other one asks."""
STANDBY_PROOF_HEADER: Final = "Holdfast-Standby-Proof"
"""The slot and the nonce of the newest object that the standby has read, needed where callers need tokens."""
STANDBY_CHARACTERS_MAX: Final = 256


async def livez(call: Call) -> Answer:
    """``GET /livez``. A standby that asks says so: once it stops, the leader shows signs of life in the log."""
    front = call.front
    if call.switch("standby", default=False) and front.service is not None:
        headers = call.request.headers
        name = headers.get(STANDBY_HEADER, "")[:STANDBY_CHARACTERS_MAX]
        front.service.standby_seen(name, headers.get(STANDBY_PROOF_HEADER, ""))
    return json_answer(Liveness(front.own.leader_id, front.service is not None, front.own.address))


async def pipeline_ok(call: Call) -> Answer:
    """``GET /ok``."""
    service = call.front.leading()
    try:
        async with asyncio.timeout(OK_SECONDS_MAX):
            await service.noop()
    except TimeoutError as error:
        raise Backpressure("a no-op did not come through the pipeline in time", retry_after_ms=1000) from error
    return json_answer(PipelineResponse(True, service.leader_id))


_NOT_READY: Final = (Code.NOT_LEADER, Code.OVERLOADED, Code.LEADER_CHANGED)

_HEALTH: Final = (
    Route(
        method="GET",
        path="/livez",
        role=Role.OPEN,
        summary="This process is alive",
        handler=livez,
        parameters=(
            Parameter(
                "standby",
                "query",
                {"type": "boolean", "default": False},
                "A standby asks: once its questions stop, show signs of life in the log",
            ),
        ),
        answers={"application/json": Liveness},
        tag="health",
    ),
    Route(
        method="GET",
        path="/ok",
        role=Role.OPEN,
        summary="A no-op went through all four stages",
        handler=pipeline_ok,
        answers={"application/json": PipelineResponse},
        codes=_NOT_READY,
        tag="health",
    ),
)


def _readyz_route(handler: Callable[[Call], Awaitable[Answer]]) -> Route:
    return Route(
        method="GET",
        path="/readyz",
        role=Role.OPEN,
        summary="This process leads, accepts commits, and its store takes them",
        handler=handler,
        parameters=(
            Parameter(
                "stores",
                "query",
                {"type": "boolean", "default": False},
                "Whether the message stores must be open, too",
            ),
        ),
        answers={"application/json": Readiness},
        codes=(*_NOT_READY, Code.STORE_UNAVAILABLE, Code.NO_QUORUM, Code.NOT_FOUND),
        tag="health",
    )


class StoresReady(Protocol):
    """The message stores, as far as readiness asks."""

    @property
    def condition(self) -> str:
        """open, held or suspended."""
        ...

    def opened(self) -> object:
        """Raises: what a request to the stores would be answered with now."""
        ...

    def scrape_problem(self, authorization: bytes | None) -> HoldfastError | None:
        """Why this caller may not see the metrics, which name the stores; None where it may."""
        ...


def health_routes(
    *,
    unready: Callable[[], HoldfastError | None],
    damage: Callable[[], str | None],
    stores: StoresReady | None,
    scrape: Callable[[], bytes],
    description: Callable[[], bytes],
) -> tuple[Route, ...]:
    """The rows of the route table.

    ``unready`` says why commits would not get through now, ``damage`` what is known of damage in the log, ``scrape``
    gives the metrics as text, ``description`` the OpenAPI document. ``stores`` None: this process has none.
    """

    async def readyz(call: Call) -> Answer:
        problem = unready()
        if problem is not None:
            raise problem
        service = call.front.leading()
        if call.switch("stores", default=False):
            if stores is None:
                raise NotFound("this process has no message stores", hint="stores.directory says where they are")
            stores.opened()
        condition = "none" if stores is None else stores.condition
        return json_answer(Readiness(True, service.leader_id, service.local_version(), condition, damage()))

    async def metrics(call: Call) -> Answer:
        problem = None if stores is None else stores.scrape_problem(call.authorization)
        if problem is not None:
            raise problem
        return Answer(scrape(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(_: Call) -> Answer:
        return Answer(description())

    async def docs(_: Call) -> Answer:
        return Answer(DOCS_PAGE, media_type="text/html; charset=utf-8")

    return (
        *_HEALTH,
        _readyz_route(readyz),
        Route(
            method="GET",
            path="/metrics",
            role=Role.READ,
            summary="Prometheus metrics",
            handler=metrics,
            answers={"text/plain": None},
            tag="health",
        ),
        Route(
            method="GET",
            path="/openapi.json",
            role=Role.OPEN,
            summary="This description",
            handler=openapi,
            answers={"application/json": None},
            tag="description",
        ),
        Route(
            method="GET",
            path="/docs",
            role=Role.OPEN,
            summary="This description, to be read by people",
            handler=docs,
            answers={"text/html": None},
            tag="description",
        ),
    )
