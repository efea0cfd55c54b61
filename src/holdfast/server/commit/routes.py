"""The routes of the log that answer one request with one document: commit, version, status, stepping down.

A refused request changed nothing. A client that disconnects does not take its commit back.
"""

from __future__ import annotations

from functools import partial

import structlog
from msgspec import field
from msgspec.structs import replace

from holdfast.commit.format.batch import repeated_bytes
from holdfast.commit.format.json_request import JsonTransaction, decode_json
from holdfast.commit.format.request_rules import problem_with_request_id
from holdfast.commit.format.transaction import Committed
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import Code, Fenced, HoldfastError, InvalidRequest, PermissionDenied, Unavailable
from holdfast.server.gateway import Gateway
from holdfast.server.http.auth import HeldRight
from holdfast.server.http.key_scope import EVERYTHING, HINT
from holdfast.server.http.requests import problem_with
from holdfast.server.http.responses import error_response, stores_receipt, without_traceback
from holdfast.server.http.rights_table import ScopeRule, need_of
from holdfast.server.http.routes import GET_OR_POST, POSITION_SCHEMA, Call, Parameter, Response, Route, json_response
from holdfast.server.http.state import JSON, FastRequest, PendingResponse, RequestFields
from holdfast.values import slot_text
from holdfast.wire.formats import encode
from holdfast.wire.log import CommitReceipt, Liveness, NotCommitted, StatusAnswer, SteppedDown, VersionAnswer
from holdfast.wire.stores import AcknowledgePart, MapPart, PublishPart

log = structlog.get_logger("holdfast.server.commit.routes")

COMMIT_CODES = (
    *(Code.MALFORMED, Code.NO_OPERATIONS, Code.FUTURE_VERSION, Code.BAD_BASE64, Code.BAD_RANGE, Code.BAD_REQUEST_ID),
    *(
        Code.READ_VERSION_REQUIRED,
        Code.LOG_MISMATCH,
        Code.ROLLED_BACK,
        Code.LEADER_CHANGED,
        Code.REQUEST_ID_REUSED,
        Code.ID_NEEDS_TAG,
        Code.TOO_LARGE,
    ),
    *(Code.RATE_LIMITED, Code.OVERLOADED, Code.NOT_LEADER, Code.OUTCOME_UNKNOWN),
    *(Code.STORES_NOT_IN_LOG, Code.DUPLICATE_PART),
)
STATUS_CODES = (
    *(
        Code.BAD_REQUEST_ID,
        Code.FUTURE_VERSION,
        Code.LOG_MISMATCH,
        Code.ROLLED_BACK,
        Code.NOT_LEADER,
        Code.LEADER_CHANGED,
    ),
    *(Code.OVERLOADED, Code.STORE_UNAVAILABLE, Code.OUTCOME_UNKNOWN),
)


class CommitDocument(JsonTransaction, frozen=True, forbid_unknown_fields=True):
    """A commit request with the types of its parts, for the API's description: the stores decode them."""

    acknowledge: list[AcknowledgePart] = field(default_factory=list)  # type: ignore[assignment]
    maps: list[MapPart] = field(default_factory=list)  # type: ignore[assignment]
    publish: list[PublishPart] = field(default_factory=list)  # type: ignore[assignment]


class _LogRequest(FastRequest):
    __slots__ = ("_gateway", "_need")

    def __init__(self, gateway: Gateway, method: str, route: str) -> None:
        super().__init__(route, gateway.limits.request_bytes_max)
        self._gateway = gateway
        self._need = need_of(method, route)

    def problem_with(self, authorization: bytes | None) -> HoldfastError | None:
        """See ``FastRequest``."""
        need = self._need
        return self._gateway.authenticator.problem_with(authorization, need.role, checks_scope=need.checks_scope)


class CommitRequest(_LogRequest):
    """``POST /v1/commit``."""

    __slots__ = ("_reply",)

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "POST", "/v1/commit")
        self._reply = self._respond  # bound once, not for each request

    def serve(self, body: bytes, fields: RequestFields, response: PendingResponse) -> None:
        """See ``FastRequest``. It responds when the outcome is durable."""
        gateway = self._gateway
        problem: HoldfastError | None = None
        if gateway.authenticator.required:
            problem = self.problem_with(fields.authorization)
        if problem is None:
            problem = gateway.admission()
        if problem is None and gateway.client_rates is not None:
            problem = gateway.over_rate(gateway.authenticator.client_of(fields.authorization, response.peer))
        if problem is None:
            try:
                txn = decode_json(body)
            except InvalidRequest as error:
                problem = without_traceback(error)
            else:
                limits = gateway.limits
                problem = problem_with(
                    txn,
                    leader_id=gateway.own.leader_id,
                    log_id=gateway.log_id,
                    lineage=gateway.lineage,
                    request_id_length_min=limits.request_id_length_min,
                    operations_max=limits.operations_max,
                    preconditions_max=limits.preconditions_max,
                )
                if problem is None and gateway.authenticator.required and self._need.scope is ScopeRule.COMMITS:
                    scope = gateway.authenticator.scope_of(fields.authorization)
                    problem = None if scope is EVERYTHING else scope.problem_with(txn)
                if problem is None:
                    entry = CommitEntry(txn, self._reply, response, len(body) + repeated_bytes(txn))
                    if txn.has_parts:
                        problem = gateway.read_parts(entry, fields.authorization, "json")
                    if problem is None:
                        gateway.submit([entry], entry.size)
                        return
        response.respond(*error_response(problem, gateway.leader))

    def _respond(self, entry: CommitEntry) -> None:
        gateway = self._gateway
        gateway.settled(1, entry.size)
        response: PendingResponse = entry.ticket  # type: ignore[assignment]  # a checked cast would cost a call
        outcome = entry.outcome
        if type(outcome) is Committed and outcome.results is None:
            response.respond(200, None, gateway.answers.committed_json(outcome.version, entry.txn.request_id))
            return
        assert outcome is not None, "an entry is replied with its outcome"
        durable_version, request_id = entry.durable_version, entry.txn.request_id
        response.respond(*gateway.answers.response(outcome, durable_version=durable_version, request_id=request_id))


class VersionRequest(_LogRequest):
    """``GET /v1/version``: the linearizable one."""

    __slots__ = ()

    asks_store = True

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "GET", "/v1/version")

    def serve(self, body: bytes, fields: RequestFields, response: PendingResponse) -> None:
        """See ``FastRequest``."""
        del body
        gateway, authorization = self._gateway, fields.authorization
        held = HeldRight(gateway.authenticator, authorization, lambda: self.problem_with(authorization))

        def answered(version: int | HoldfastError) -> None:
            problem = version if isinstance(version, HoldfastError) else held.problem()
            if isinstance(version, int) and problem is None:
                tag = gateway.authenticator.scope_of(authorization).id_tag
                answer = VersionAnswer(version, gateway.own.leader_id, gateway.log_id, tag)
                response.respond(200, None, encode(answer))
            else:
                assert problem is not None, "what is not a version is an error"
                response.respond(*error_response(problem, gateway.leader))

        problem = held.problem()
        if problem is not None:
            answered(problem)
        else:
            gateway.ask_version(answered)


class LocalVersionRequest(_LogRequest):
    """``GET /v1/version?consistency=local``: what a client begins with."""

    __slots__ = ()

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "GET", "/v1/version")

    def serve(self, body: bytes, fields: RequestFields, response: PendingResponse) -> None:
        """See ``FastRequest``."""
        del body
        gateway = self._gateway
        problem = self.problem_with(fields.authorization)
        try:
            reader = gateway.reading()
        except HoldfastError as error:
            problem = problem or without_traceback(error)
        else:
            if problem is None:
                tag = gateway.authenticator.scope_of(fields.authorization).id_tag
                answer = VersionAnswer(reader.local_version(), reader.leader_id, reader.log_id, tag)
                response.respond(200, None, encode(answer))
                return
        response.respond(*error_response(problem, gateway.leader))


class LivezRequest(_LogRequest):
    """``GET /livez``."""

    __slots__ = ()
    any_host = True

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "GET", "/livez")

    def serve(self, body: bytes, fields: RequestFields, response: PendingResponse) -> None:
        """See ``FastRequest``."""
        del body, fields
        own, service = self._gateway.own, self._gateway.service
        alive = Liveness(own.leader_id, service is not None, own.address)
        if service is not None:
            shown = service.shown
            slot = "" if shown.slot is None else slot_text(shown.slot)
            alive = Liveness(own.leader_id, True, own.address, slot, shown.sign)
        response.respond(200, None, encode(alive))


async def _commit(gateway: Gateway, commit: CommitRequest, call: Call) -> Response:
    # Before the body is read; ``serve`` checks again and takes from the client's rate.
    problem = gateway.admission() or gateway.over_rate(call.client, takes=False)
    if problem is not None:
        raise problem
    return await call.serve(commit, await call.body(commit.request_bytes_max))


async def _version(linearizable: VersionRequest, local: LocalVersionRequest, call: Call) -> Response:
    match call.text("consistency"):
        case None | "linearizable":
            return await call.serve(linearizable)
        case "local":
            return await call.serve(local)
        case _:
            raise InvalidRequest("consistency is linearizable or local")


async def _status(gateway: Gateway, call: Call) -> Response:
    request_id = call.path_text("request_id")
    problem = problem_with_request_id(request_id, length_min=gateway.limits.request_id_length_min)
    if problem is not None:
        raise problem
    _require_own(call, request_id)
    min_version = gateway.version_of(call.required_position("min_version"))
    answer = await gateway.status(request_id, min_version)
    call.require_right_to_see()
    _require_own(call, request_id)  # the token may have been replaced by one for other keys
    if answer.stores is not None:
        answer = replace(answer, stores=stores_receipt(answer.stores))
    return json_response(answer)


def _require_own(call: Call, request_id: str) -> None:
    if call.need.scope is ScopeRule.IDS and not call.scope.owns(request_id):
        # Asking would ban an attempt of another writer, or show its receipt.
        raise PermissionDenied("the token may not ask for attempts of other writers", hint=HINT)


async def _step_down(gateway: Gateway, call: Call) -> Response:
    service = gateway.leading()
    log.info("audit", act="step_down", author=call.who, then=call.text("then"))
    match call.text("then"):
        case "stand_by":
            gateway.stands_by_next = True
        case None:
            pass
        case _:
            raise InvalidRequest("then is stand_by, or is left out")
    await service.step_down()
    end = service.ended.result()
    if end.kind == "deposed":
        raise Fenced(f"another leader came meanwhile: {end.detail}", code=Code.LEADER_CHANGED)
    if end.kind != "resigned":
        raise Unavailable(f"the leadership ended as {end.kind}: {end.detail}", code=Code.STORE_UNAVAILABLE)
    return json_response(SteppedDown(True, service.leader_id))


def log_routes(gateway: Gateway) -> tuple[Route, ...]:
    """The rows of the route table."""
    commit, linearizable, local = CommitRequest(gateway), VersionRequest(gateway), LocalVersionRequest(gateway)
    return (
        Route(
            method="POST", path="/v1/commit",
            summary="Commit one transaction, or learn why not",
            handler=partial(_commit, gateway, commit), fast=commit, codes=COMMIT_CODES,
            body={JSON: CommitDocument}, answers={JSON: CommitReceipt | NotCommitted},
        ),
        Route(
            method="GET", path="/v1/version",
            summary="A version that covers everything known committed when the request arrived",
            handler=partial(_version, linearizable, local),
            fast=linearizable, fast_queries={"consistency=local": local},
            parameters=(
                Parameter(
                    "consistency",
                    "query",
                    {"type": "string", "enum": ["linearizable", "local"], "default": "linearizable"},
                    "local: the last durable version this process knows, without asking the store",
                ),
            ),
            answers={JSON: VersionAnswer}, codes=(Code.NOT_LEADER, Code.LEADER_CHANGED, Code.STORE_UNAVAILABLE),
        ),
        *(
            Route(
                method=method, path="/v1/status/{request_id:any}", changes=True, is_hot=True,
                summary="The final outcome of an attempt; asking closes an attempt that has not committed",
                handler=partial(_status, gateway),
                parameters=(
                    Parameter(
                        "request_id", "path", {"type": "string", "minLength": 1, "maxLength": 255},
                        "The attempt's id", True,
                    ),
                    Parameter(
                        "min_version", "query", POSITION_SCHEMA,
                        "The attempt's read version, with or without @LOGID", True,
                    ),
                ),
                answers={JSON: StatusAnswer}, codes=STATUS_CODES,
            )
            for method in GET_OR_POST
        ),
        Route(
            method="POST", path="/v1/admin/step-down",
            summary="Drain to durable, answer everything, and give the lead back",
            handler=partial(_step_down, gateway), answers={JSON: SteppedDown}, tag="admin",
            parameters=(
                Parameter(
                    "then",
                    "query",
                    {"type": "string", "enum": ["stand_by"]},
                    "stand_by: the process leads again when the next leader has resigned or died; without it a process "
                    "that is not a standby ends",
                ),
            ),
            codes=(Code.NOT_LEADER, Code.LEADER_CHANGED, Code.STORE_UNAVAILABLE),
        ),
    )  # fmt: skip
