"""The health routes, the metrics, and the description of the API.

None of them passes through admission, so they answer while the service is full or the object store has stalled. Only
``/ok`` goes through the pipeline, which is its purpose, for at most ``OK_SECONDS_MAX``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.commit.leadership.takeover import now
from holdfast.errors import Backpressure, Code, HoldfastError, NotFound, Unavailable
from holdfast.foundations.readings import FoundationReport
from holdfast.foundations.scrubbing import FoundationScrub
from holdfast.objects.budget import StoreMetrics
from holdfast.server.commit.routes import LivezRequest
from holdfast.server.gateway import Gateway
from holdfast.server.http.routes import Call, Parameter, Response, Route, json_response
from holdfast.server.http.state import JSON
from holdfast.server.stores.hosting import StoreHost
from holdfast.wire.log import FoundationReading, Liveness, PipelineResponse, Readiness

OK_SECONDS_MAX: Final = 10.0

_NOT_READY: Final = (Code.NOT_LEADER, Code.OVERLOADED, Code.LEADER_CHANGED)


async def _pipeline_ok(gateway: Gateway, _: Call) -> Response:
    service = gateway.leading()
    try:
        async with asyncio.timeout(OK_SECONDS_MAX):
            await service.noop()
    except TimeoutError as error:
        raise Backpressure("a no-op did not come through the pipeline in time", retry_after_ms=1000) from error
    return json_response(PipelineResponse(True, service.leader_id))


async def _readyz(gateway: Gateway, watch: StoreWatch, stores: StoreHost | None, call: Call) -> Response:
    problem = watch.problem()
    if problem is not None:
        raise problem
    reader = gateway.reading()
    if call.switch("stores", default=False):
        if stores is None:
            raise NotFound("this process has no message stores", hint="stores.directory says where they are")
        stores.opened()
    condition = "none" if stores is None else stores.condition
    return json_response(
        Readiness(True, reader.leader_id, reader.local_version(), condition, watch.damage(), watch.foundation())
    )


async def _metrics(stores: StoreHost | None, scrape: Callable[[], bytes], call: Call) -> Response:
    problem = None if stores is None else stores.scrape_problem(call.authorization)
    if problem is not None:
        raise problem
    return Response(scrape(), media_type="text/plain; version=0.0.4; charset=utf-8")


def health_routes(
    gateway: Gateway, watch: StoreWatch, *, stores: StoreHost | None, scrape: Callable[[], bytes]
) -> tuple[Route, ...]:
    """The rows of the route table. ``scrape`` gives the metrics as text; without ``stores`` this process has none."""
    is_switch = {"type": "boolean", "default": False}
    return (
        Route(
            method="GET", path="/livez", summary="This process is alive",
            fast=LivezRequest(gateway), answers={JSON: Liveness}, tag="health", browsers="any",
        ),
        Route(
            method="GET", path="/ok", summary="A no-op went through all four stages",
            handler=partial(_pipeline_ok, gateway), answers={JSON: PipelineResponse}, codes=_NOT_READY, tag="health",
            browsers="any",
        ),
        Route(
            method="GET", path="/readyz",
            summary="This process leads, accepts commits, and its store takes them; a read-only one follows its log",
            handler=partial(_readyz, gateway, watch, stores), answers={JSON: Readiness}, tag="health", browsers="any",
            parameters=(Parameter("stores", "query", is_switch, "Whether the message stores must be open, too"),),
            codes=(*_NOT_READY, Code.STORE_UNAVAILABLE, Code.NO_QUORUM, Code.NOT_FOUND),
        ),
        Route(
            method="GET", path="/metrics", summary="Prometheus metrics",
            handler=partial(_metrics, stores, scrape), answers={"text/plain": None}, tag="health",
        ),
    )  # fmt: skip


def description_routes(description: Callable[[], bytes]) -> tuple[Route, ...]:
    """The rows for the OpenAPI document, which ``description`` gives, and for the page that shows it."""

    async def openapi(_: Call) -> Response:
        return Response(description())

    async def docs(_: Call) -> Response:
        return Response(DOCS_PAGE, media_type="text/html; charset=utf-8")

    return (
        Route(
            method="GET", path="/openapi.json", summary="This description",
            handler=openapi, answers={JSON: None}, tag="description", browsers="links",
        ),
        Route(
            method="GET", path="/docs", summary="This description, to be read by people",
            handler=docs, answers={"text/html": None}, tag="description", browsers="links",
        ),
    )  # fmt: skip


DOCS_PAGE: Final = Path(__file__).with_name("api_page.html").read_bytes()
STALLED_MS_MAX: Final = 3_000.0
"""Far above a slow request to a cloud store, far below giving up."""
RETRY_AFTER_MS: Final = 1_000


class StoreWatch:
    """Looks at what the parts of one serving process know."""

    def __init__(self, gateway: Gateway, *, stalled_ms_max: float = STALLED_MS_MAX) -> None:
        self._gateway = gateway
        self._stalled_ms_max = stalled_ms_max
        self.store: StoreMetrics | None = None
        self.foundations: FoundationScrub | None = None

    def problem(self) -> HoldfastError | None:
        """None when commits are welcome and get through, else why not."""
        if self._gateway.read_only:
            return self._store_problem() or (None if self._gateway.reader is not None else self._gateway.not_leading())
        problem = self._gateway.admission()
        if problem is not None and (problem.code is not Code.OVERLOADED or self._gateway.draining):
            return problem
        # Before a refusal of commits: it says what the store does.
        return self._store_problem() or problem

    def damage(self) -> str | None:
        """The newest damage that anything met in the log under this leader, None for none."""
        reader = self._gateway.reader
        return None if reader is None else reader.damage.newest

    def foundation(self) -> FoundationReading | None:
        """The newest reading of a snapshot, or of a damaged foundation; None where none is known. Cheap."""
        if self.foundations is None:
            return None
        report = self.foundations.report()
        if report == FoundationReport():
            return None
        return FoundationReading(report.name, report.age_seconds(int(time.time() * 1000)), report.problem)

    def _store_problem(self) -> HoldfastError | None:
        service, store, boot_ms = self._gateway.service, self.store, now().boot_ms
        waits: list[tuple[str, float]] = []
        if service is not None:
            if service.pipeline.persist.in_flight:
                formed_ms = service.pipeline.persist.in_flight[0].formed_ms
                waits.append(("the oldest batch waits for the store", boot_ms - formed_ms))
            # An idle leader has no batch that could stall.
            if (since_ms := service.pipeline.unproved_since_ms) is not None:
                waits.append(("the store does not tell who owns the log", boot_ms - since_ms))
        # Before the first success nothing leads here.
        if store is not None and not store.is_healthy and store.last_success_seconds is not None:
            waits.append(("the store does not answer", (time.monotonic() - store.last_success_seconds) * 1000))
        # Anybody may ask; where that is not everybody's service, what a store says is for the log alone.
        failure = "" if store is None or self._gateway.authenticator.required else store.last_failure
        for what, waited_ms in waits:
            if waited_ms > self._stalled_ms_max:
                return Unavailable(
                    what,
                    code=Code.STORE_UNAVAILABLE,
                    retry_after_ms=RETRY_AFTER_MS,
                    waited_ms=round(waited_ms),
                    cause=failure or None,
                )
        return None
