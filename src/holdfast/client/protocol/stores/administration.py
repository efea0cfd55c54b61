"""Requests to the message stores with one response each, as procedures without I/O.

A harmless request is repeated until ``within_ms`` is over. A change that depends on the current state (a
compare-and-set) is sent again only while it was certainly not accepted; otherwise ``OutcomeUnknown`` is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.client.protocol.effects import Failed, Procedure, Request, Response, Send
from holdfast.client.protocol.log_operations import no_response, wait_again
from holdfast.client.protocol.messages import query_of
from holdfast.client.protocol.retry_budget import RetryBudget, Session
from holdfast.client.protocol.stores.messages import PASSING_CODES, coded_error, is_unclear
from holdfast.errors import OutcomeUnknown, Unavailable

Definition = dict[str, object]
"""The parameters of a store, durable or template, with the values in force and its counts."""

ClusterCommand = Literal["suspend", "resume", "save", "backup", "compact", "force-quorum"]


class Redelivered(msgspec.Struct, frozen=True):
    """How many messages are delivered again, and of the dead letters that could not go back how many, by reason."""

    messages: int
    left: dict[str, int]


def ask(
    session: Session, request: Request, now_ms: float, within_ms: float, *, repeatable: bool = True
) -> Procedure[Response]:
    """The response to one request. Raises: what the service refuses with; Unavailable; OutcomeUnknown."""
    budget = RetryBudget(session, now_ms, within_ms)
    while True:
        endpoint = session.route.current
        timeout_ms = session.options.request_timeout_ms
        if within_ms > 0:  # without retries, the first try still has its time
            timeout_ms = min(timeout_ms, budget.left_ms(now_ms))
        reply = yield Send(endpoint, request, timeout_ms)
        assert isinstance(reply, Response | Failed), "the reply to Send is Response or Failed"
        if isinstance(reply, Response) and reply.status < 300:
            return reply
        if isinstance(reply, Failed):
            is_open = reply.perhaps_accepted
            error, again = no_response(session, budget, endpoint, reply)
        else:
            coded = coded_error(reply.status, reply.headers, reply.body)
            if coded is None:
                error = Unavailable("something before the service answered with an error", status=reply.status)
                again, is_open = reply.status >= 500 or reply.status == 429, reply.status >= 500
            else:
                error, again, is_open = coded, coded.code in PASSING_CODES, is_unclear(coded, reply.status)
        if is_open and not repeatable:
            raise OutcomeUnknown("whether this was done is not known", target=request.target) from error
        now_ms = yield from wait_again(budget, endpoint, reply, error, again)


def browse_target(
    path: str, after: int, count: int, match: Mapping[str, object] | None, parked: bool, token: str = ""
) -> str:
    """The next ``count`` messages above number ``after`` that match, at most, of the durable at ``path``. ``token``: of
    the durable that the number is of."""
    text = None if match is None else msgspec.json.encode(match).decode()
    query = query_of(after=after, max=count, match=text, parked="true" if parked else None, token=token or None)
    return f"{path}/browse{query}"
