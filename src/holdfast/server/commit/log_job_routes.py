"""``/v1/admin/snapshot`` and ``/v1/admin/verify``: begin a job on the log of this leader, ask how far it is, end it."""

from __future__ import annotations

from functools import partial
from typing import Literal

import structlog

from holdfast.errors import Code, InvalidRequest
from holdfast.server.children.log_job import LogJob
from holdfast.server.gateway import Gateway
from holdfast.server.http.routes import Call, Parameter, Response, Route, json_response
from holdfast.server.http.state import JSON
from holdfast.wire.log import LogJobState

log = structlog.get_logger("holdfast.server.commit.log_jobs")

Kind = Literal["snapshot", "verify"]
_CODES = (Code.NOT_LEADER, Code.LEADER_CHANGED)


class LogJobs:
    """The jobs of the leadership that this process has."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._jobs: dict[Kind, LogJob] = {}

    def lead(self, snapshot: LogJob, verify: LogJob) -> None:
        """From now on these may be begun."""
        self._jobs = {"snapshot": snapshot, "verify": verify}

    async def end(self) -> None:
        """The leadership has ended, and its jobs with it."""
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            await job.close()

    def job(self, kind: Kind) -> LogJob:
        """The job of the leader. Raises: Fenced (not_leader), InvalidRequest."""
        self.gateway.leading()
        job = self._jobs.get(kind)
        if job is None:
            raise InvalidRequest("no other process reaches a log in memory", hint="begin the log in a directory")
        return job


async def _begin(jobs: LogJobs, kind: Kind, call: Call) -> Response:
    job = jobs.job(kind)
    parameters = _range(jobs.gateway, call) if kind == "verify" else {}
    if not job.is_running:
        log.info("audit", act=kind, author=call.who, **parameters)
        job.begin(parameters)
    return json_response(job.state)


def _range(gateway: Gateway, call: Call) -> dict[str, int]:
    newest = gateway.leading().durable_header().last_version
    after, through = call.number("after") or 0, call.number("through")
    through = newest if through is None else through
    if not after <= through <= newest:
        raise InvalidRequest(
            "the log has no such range of versions",
            code=Code.FUTURE_VERSION,
            after=after,
            through=through,
            durable_version=newest,
        )
    return {"after": after, "through": through}


async def _show(jobs: LogJobs, kind: Kind, call: Call) -> Response:
    del call
    return json_response(jobs.job(kind).state)


async def _cancel(jobs: LogJobs, kind: Kind, call: Call) -> Response:
    job = jobs.job(kind)
    if job.is_running:
        log.info("audit", act=f"cancel_{kind}", author=call.who)
        await job.cancel()
    return json_response(job.state)


def log_job_routes(jobs: LogJobs) -> tuple[Route, ...]:
    """The rows of the route table."""
    return (
        *_routes(jobs, "snapshot", "a snapshot of the log's state at its newest version", ()),
        *_routes(
            jobs, "verify", "a check of every object of a range of versions",
            (
                Parameter("after", "query", {"type": "integer", "minimum": 0}, "Only objects with a higher version"),
                Parameter("through", "query", {"type": "integer", "minimum": 0}, "Only up to this version"),
            ),
        ),
    )  # fmt: skip


def _routes(jobs: LogJobs, kind: Kind, what: str, parameters: tuple[Parameter, ...]) -> tuple[Route, ...]:
    path = f"/v1/admin/{kind}"
    return (
        Route(
            method="GET", path=path, summary=f"The newest job for {what}",
            handler=partial(_show, jobs, kind), answers={JSON: LogJobState}, codes=_CODES, tag="admin",
        ),
        Route(
            method="POST", path=path, summary=f"Begin {what}, unless one is running",
            handler=partial(_begin, jobs, kind), parameters=parameters, answers={JSON: LogJobState},
            codes=(*_CODES, *((Code.FUTURE_VERSION,) if parameters else ())), tag="admin",
        ),
        Route(
            method="DELETE", path=path, summary=f"End the job for {what}",
            handler=partial(_cancel, jobs, kind), answers={JSON: LogJobState}, codes=_CODES, tag="admin",
        ),
    )  # fmt: skip
