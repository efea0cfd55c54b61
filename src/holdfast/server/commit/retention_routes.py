"""``/v1/retention``: the policies that say how much of the log stays. A change is durable before it is answered."""

from __future__ import annotations

from functools import partial

import msgspec
import structlog

from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.retention.policies import (
    CONFIGURATION,
    decode_policy,
    remove_policy,
    require_id,
    require_valid,
    set_policy,
)
from holdfast.retention.truncator import Truncator
from holdfast.server.gateway import Gateway
from holdfast.server.http.routes import Call, Parameter, Response, Route, json_response
from holdfast.server.http.state import JSON
from holdfast.wire.formats import UNDECODABLE, decode_each_once
from holdfast.wire.log import (
    HoldState,
    PolicyState,
    RetentionAnswer,
    RetentionPlan,
    RetentionPlanRequest,
    RetentionPolicy,
)

log = structlog.get_logger("holdfast.server.commit.retention")

POLICY_BYTES_MAX = 4_096
_CODES = (Code.NOT_LEADER, Code.LOG_TRUNCATED, Code.FUTURE_VERSION, Code.STORE_UNAVAILABLE, Code.TOO_LARGE)


class RetentionHost:
    """The truncator of the leadership that this process has."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.truncator: Truncator | None = None

    def leading(self) -> Truncator:
        """The truncator. Raises: Fenced (not_leader)."""
        self.gateway.leading()
        assert self.truncator is not None, "a leader has a truncator"
        return self.truncator

    def answer(self) -> RetentionAnswer:
        """What is in force. Raises: Fenced (not_leader)."""
        truncator, service = self.leading(), self.gateway.leading()
        state = truncator.state
        generation = state.generation
        header = service.durable_header()
        jobs = {f"job {name}": hold for name, hold in state.jobs.items()}
        if generation is None:
            return RetentionAnswer(0, {}, jobs, 0, header.truncated_through)
        policies: dict[str, PolicyState] = {}
        for name, policy in generation.policies.items():
            kept = state.kept.get(name)
            policies[name] = PolicyState(
                policy.keep_from_version,
                policy.max_age_seconds,
                policy.max_bytes,
                policy.keep,
                None if kept is None else kept.from_version,
                None if kept is None else round(kept.seconds, 3),
                None if kept is None else kept.bytes,
            )
        holds = {
            name: HoldState(hold.from_version, hold.expires_ms or generation.time_ms + hold.lasts_ms, hold.snapshot)
            for name, hold in generation.holds.items()
        }
        return RetentionAnswer(
            generation.number,
            policies,
            holds | jobs,
            generation.truncate_through,
            header.truncated_through,
            state.warning,
        )


async def _list(host: RetentionHost, call: Call) -> Response:
    del call
    await host.leading().refresh()
    return json_response(host.answer())


async def _get(host: RetentionHost, call: Call) -> Response:
    name = require_id(call.path_text("policy_id"))
    await host.leading().refresh()
    answer = host.answer()
    if name not in answer.policies:
        raise NotFound("there is no retention policy of this name", policy=name)
    return json_response(answer.policies[name])


def _changeable(policy_id: str) -> str:
    name = require_id(policy_id)
    if name == CONFIGURATION:
        raise InvalidRequest(
            "the policy `configuration` comes from the configuration of the service",
            hint="change retention.* there, or use another name",
        )
    return name


async def _put(host: RetentionHost, call: Call) -> Response:
    name = _changeable(call.path_text("policy_id"))
    policy = decode_policy(await call.body(POLICY_BYTES_MAX))
    truncator = host.leading()
    head = host.gateway.leading().local_version()
    await truncator.change(set_policy(name, policy, head=head), "request")
    log.info("audit", act="set_retention", author=call.who, policy=name, content=msgspec.to_builtins(policy))
    return json_response(host.answer())


async def _delete(host: RetentionHost, call: Call) -> Response:
    name = _changeable(call.path_text("policy_id"))
    await host.leading().change(remove_policy(name), "request")
    log.info("audit", act="remove_retention", author=call.who, policy=name)
    return json_response(host.answer())


async def _plan(host: RetentionHost, call: Call) -> Response:
    try:
        asked = decode_each_once(await call.body(POLICY_BYTES_MAX), RetentionPlanRequest)
    except UNDECODABLE as error:
        raise InvalidRequest(f"the plan is not valid: {error}") from error
    name, truncator = _changeable(asked.policy_id), host.leading()
    if asked.policy is None:
        return json_response(await truncator.plan(remove_policy(name)))
    require_valid(asked.policy)
    head = host.gateway.leading().local_version()
    return json_response(await truncator.plan(set_policy(name, asked.policy, head=head)))


def retention_routes(host: RetentionHost) -> tuple[Route, ...]:
    """The rows of the route table."""
    one = "/v1/retention/{policy_id:any}"
    name = Parameter("policy_id", "path", {"type": "string", "maxLength": 128}, "The name of the policy", True)
    return (
        Route(
            method="GET", path="/v1/retention", summary="The retention policies, and what each keeps",
            handler=partial(_list, host), answers={JSON: RetentionAnswer}, codes=(Code.NOT_LEADER,), tag="admin",
        ),
        Route(
            method="GET", path=one, summary="One retention policy", handler=partial(_get, host),
            parameters=(name,), answers={JSON: PolicyState}, codes=(Code.NOT_LEADER, Code.NOT_FOUND), tag="admin",
        ),
        Route(
            method="PUT", path=one, summary="Set a retention policy", handler=partial(_put, host),
            parameters=(name,), body={JSON: RetentionPolicy}, answers={JSON: RetentionAnswer}, codes=_CODES,
            tag="admin",
        ),
        Route(
            method="DELETE", path=one, summary="Remove a retention policy",
            handler=partial(_delete, host), parameters=(name,), answers={JSON: RetentionAnswer},
            codes=(Code.NOT_LEADER, Code.NOT_FOUND, Code.STORE_UNAVAILABLE), tag="admin",
        ),
        Route(
            method="POST", path="/v1/admin/retention-plan",
            summary="What a retention policy, or its removal, would remove now; it changes nothing",
            handler=partial(_plan, host), body={JSON: RetentionPlanRequest}, answers={JSON: RetentionPlan},
            codes=(*_CODES, Code.NOT_FOUND), tag="admin",
        ),
    )  # fmt: skip
