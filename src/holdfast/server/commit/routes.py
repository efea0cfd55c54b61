"""The routes of the log that answer one request with one document: commit, version, status, stepping down.

Owns: what these requests carry and how their outcome is told. Does not own: deciding (``commit``), streams of commits
(``commit_stream``), subscriptions (``sse``). The fast lane serves commit and version by the same functions.

Failure model: what is refused here changed nothing. A client that goes away does not take its commit back.
"""

from __future__ import annotations

from holdfast.commit.format.json_request import JsonTransaction, decode_json
from holdfast.errors import Code, Fenced, HoldfastError, InvalidRequest, Unavailable
from holdfast.server.http.auth import Role
from holdfast.server.http.requests import problem_with, problem_with_request_id
from holdfast.server.http.routes import POSITION_SCHEMA, Answer, Call, Parameter, Route, json_answer
from holdfast.wire.log import CommitReceipt, NotCommitted, StatusAnswer, SteppedDown, VersionAnswer

__all__ = ["COMMIT_CODES", "ROUTES"]

COMMIT_CODES = (
    Code.MALFORMED,
    Code.NO_OPERATIONS,
    Code.FUTURE_VERSION,
    Code.BAD_BASE64,
    Code.BAD_RANGE,
    Code.BAD_REQUEST_ID,
    Code.READ_VERSION_REQUIRED,
    Code.LOG_MISMATCH,
    Code.LEADER_CHANGED,
    Code.REQUEST_ID_REUSED,
    Code.TOO_LARGE,
    Code.RATE_LIMITED,
    Code.OVERLOADED,
    Code.NOT_LEADER,
    Code.OUTCOME_UNKNOWN,
)


async def commit(call: Call) -> Answer:
    """``POST /v1/commit``."""
    front = call.front
    problem = front.admission() or front.over_rate(call.client)
    if problem is not None:
        raise problem
    body = await call.body()
    txn = decode_json(body)
    limits = front.limits
    problem = (
        problem_with(
            txn,
            leader_id=front.own.leader_id,
            log_id=front.log_id,
            request_id_length_min=limits.request_id_length_min,
            operations_max=limits.operations_max,
            preconditions_max=limits.preconditions_max,
        )
        or front.admission()
    )
    if problem is not None:
        raise problem
    entry = await front.commit(txn, len(body))
    assert entry.outcome is not None, "an entry is replied with its outcome"
    status, headers, answer = front.answers.response(
        entry.outcome, durable_version=entry.durable_version, request_id=txn.request_id
    )
    return Answer(answer, status, headers)


async def version(call: Call) -> Answer:
    """``GET /v1/version``."""
    front = call.front
    match call.text("consistency"):
        case None | "linearizable":
            answered = front.loop.create_future()

            def told(answer: int | HoldfastError) -> None:
                if not answered.done():
                    answered.set_result(answer)

            front.ask_version(told)
            answer = await answered
            if isinstance(answer, HoldfastError):
                raise answer
            return json_answer(VersionAnswer(answer, front.own.leader_id, front.log_id))
        case "local":
            service = front.leading()
            return json_answer(VersionAnswer(service.local_version(), service.leader_id, service.log_id))
        case _:
            raise InvalidRequest("consistency is linearizable or local")


async def status(call: Call) -> Answer:
    """``GET /v1/status/{request_id}``."""
    request_id = call.path_text("request_id")
    problem = problem_with_request_id(request_id, length_min=call.front.limits.request_id_length_min)
    if problem is not None:
        raise problem
    min_version = call.front.version_of(call.required_position("min_version"))
    verdict = await call.front.status(request_id, min_version)
    match verdict.status:
        case "committed":
            return json_answer(StatusAnswer("committed", verdict.version))
        case "not_committed":
            return json_answer(StatusAnswer("not_committed"))
        case other:
            assert other == "log_truncated", f"a status is one of three, not {other}"
            return json_answer(StatusAnswer("log_truncated"))


async def step_down(call: Call) -> Answer:
    """``POST /v1/admin/step-down``."""
    service = call.front.leading()
    await service.step_down()
    end = service.ended.result()
    if end.kind == "deposed":
        raise Fenced(f"another leader came meanwhile: {end.detail}", code=Code.LEADER_CHANGED)
    if end.kind != "resigned":
        raise Unavailable(f"the reign ended otherwise ({end.kind}): {end.detail}", code=Code.STORE_UNAVAILABLE)
    return json_answer(SteppedDown(True, service.leader_id))


ROUTES = (
    Route(
        method="POST",
        path="/v1/commit",
        role=Role.WRITE,
        summary="Commit one transaction, or learn why not",
        handler=commit,
        body={"application/json": JsonTransaction},
        answers={"application/json": CommitReceipt | NotCommitted},
        codes=COMMIT_CODES,
    ),
    Route(
        method="GET",
        path="/v1/version",
        role=Role.READ,
        summary="A version that covers everything known committed when the request arrived",
        handler=version,
        parameters=(
            Parameter(
                "consistency",
                "query",
                {"type": "string", "enum": ["linearizable", "local"], "default": "linearizable"},
                "local: the last durable version this process knows, without asking the store",
            ),
        ),
        answers={"application/json": VersionAnswer},
        codes=(Code.NOT_LEADER, Code.LEADER_CHANGED, Code.STORE_UNAVAILABLE),
    ),
    Route(
        method="GET",
        path="/v1/status/{request_id:any}",
        role=Role.WRITE,  # asking closes the attempt, which decides over a commit
        summary="The final outcome of an attempt; asking closes an attempt that has not committed",
        handler=status,
        parameters=(
            Parameter(
                "request_id", "path", {"type": "string", "minLength": 1, "maxLength": 255}, "The attempt's id", True
            ),
            Parameter(
                "min_version", "query", POSITION_SCHEMA, "The attempt's read version, with or without @LOGID", True
            ),
        ),
        answers={"application/json": StatusAnswer},
        codes=(
            Code.BAD_REQUEST_ID,
            Code.FUTURE_VERSION,
            Code.LOG_MISMATCH,
            Code.NOT_LEADER,
            Code.LEADER_CHANGED,
            Code.OVERLOADED,
            Code.STORE_UNAVAILABLE,
            Code.OUTCOME_UNKNOWN,
        ),
    ),
    Route(
        method="POST",
        path="/v1/admin/step-down",
        role=Role.ADMIN,
        summary="Drain to durable, answer everything, and give the lead back",
        handler=step_down,
        answers={"application/json": SteppedDown},
        codes=(Code.NOT_LEADER, Code.LEADER_CHANGED, Code.STORE_UNAVAILABLE),
        tag="admin",
    ),
)
