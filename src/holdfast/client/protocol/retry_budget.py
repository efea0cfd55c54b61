"""How long one operation retries, and which endpoint it asks next. Every wait is within the operation's bound."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.client.protocol.effects import Failed, Procedure, Response, Wait, Woken
from holdfast.client.protocol.endpoint import Endpoint, Route, UnusableEndpoints
from holdfast.client.protocol.messages import Place, error_of, position_of, retry_after_ms, service_error
from holdfast.client.protocol.options import ClientOptions
from holdfast.errors import Code, HoldfastError, Unavailable
from holdfast.values import LogPosition
from holdfast.wire.log import ErrorBody

COORDINATION_CODES = frozenset({Code.NOT_LEADER, Code.LEADER_CHANGED, Code.LEADER_ALIVE, Code.DEPOSED})
"""After these errors the leader is asked instead."""


@dataclass(slots=True)
class Session:
    """The state that the operations of one client share: the route, and the newest position of any response.

    ``newest`` is the read version of commits that have none; a stale one costs one more request, never a wrong outcome.
    A number without a log belongs to the log of ``newest``. Threads may share it: each update is one assignment.
    """

    route: Route
    options: ClientOptions = field(default_factory=ClientOptions)
    newest: LogPosition | None = None

    @property
    def log_id(self) -> str | None:
        """The log of the newest position."""
        return None if self.newest is None else self.newest.log_id

    def saw(self, version: int, log_id: str | None) -> None:
        """A response named this durable version of this log; None when the log is not known."""
        newest = self.newest
        if newest is None or log_id not in (None, newest.log_id):
            self.newest = LogPosition(version, log_id)
        elif version > newest.version:
            self.newest = LogPosition(version, newest.log_id)

    def resolve_position(self, named: Place) -> LogPosition:
        """A position that a caller named; a number alone belongs to the log of ``newest``. Raises: InvalidRequest."""
        position = position_of(named)
        return position if position.log_id is not None else position._replace(log_id=self.log_id)

    def refused(self, error: ErrorBody | None, status: int) -> HoldfastError:
        """The exception for an error answer. After one about another log the next operation learns the log again."""
        if error is not None and error.code in (Code.LOG_MISMATCH, Code.ROLLED_BACK):
            self.newest = None
        return error_of(error, status)


class RetryBudget:
    """How long one operation has waited and how long it waits next: full jitter under a doubling ceiling."""

    def __init__(self, session: Session, now_ms: float, within_ms: float) -> None:
        self._options = session.options
        self._route = session.route
        self._ceiling_ms = self._options.retry_base_ms
        self._end_ms = now_ms + within_ms
        self.now_ms = now_ms
        """When the last reply arrived: the time at which the next operation begins."""
        self.sent_by: Endpoint | None = None
        """The endpoint that named the leader that is asked now."""
        self._unusable: UnusableEndpoints | None = None

    @property
    def unusable(self) -> UnusableEndpoints:
        """The unusable endpoints that it has met; made on first use, as most operations meet none."""
        if self._unusable is None:
            self._unusable = UnusableEndpoints(self._route)
        return self._unusable

    def exhausted(self, now_ms: float) -> bool:
        """Whether no time is left for a retry."""
        return now_ms >= self._end_ms

    def next_wait(self, now_ms: float, at_least_ms: float = 0.0, reason: str = "") -> Wait:
        """The next wait: at least ``at_least_ms``, with jitter, and never beyond the operation's own bound."""
        spread = max(self._ceiling_ms, at_least_ms / 4)
        self._ceiling_ms = min(self._ceiling_ms * 2, self._options.retry_max_ms)
        left_ms = self.left_ms(now_ms)
        return Wait(min(at_least_ms, left_ms), min(at_least_ms + spread, left_ms), reason)

    def left_ms(self, now_ms: float) -> float:
        """Time until this operation gives up, at least one millisecond."""
        return max(1.0, self._end_ms - now_ms)

    def missed(self, asked: Endpoint, reply: Failed) -> None:
        """``asked`` has not responded: the next request goes to another endpoint, unless it was not asked at all.
        Raises: InvalidRequest (bad_configuration) when no configured endpoint is usable, nor a leader it named."""
        if reply.asked:
            self._route.failed(asked)
        if reply.problem is not None and self.unusable.met(reply.problem, asked, self.sent_by):
            raise reply.problem

    def unreachable(self, what: str, asked: Endpoint, reply: Failed, after: int | None = None) -> Unavailable:
        """The error when time is up."""
        elsewhere = self.unusable.elsewhere(asked)
        return Unavailable(f"{what}: {reply.reason}", endpoint=asked, elsewhere=elsewhere, after=after)


def pause(session: Session, budget: RetryBudget, asked: Endpoint, reply: Response | Failed) -> Procedure[float]:
    """Wait as the response asks, or not at all when it names a leader that was not followed yet."""
    at_least = 0.0
    reason = reply.reason if isinstance(reply, Failed) else f"HTTP status {reply.status}"
    if isinstance(reply, Response):
        budget.unusable.heard(asked)
        error = service_error(reply)
        reason = reason if error is None else str(error.code)
        if error is not None and error.code in COORDINATION_CODES and session.options.follow_leader:
            if budget.sent_by is None and session.route.follow(asked, error.leader_address):
                budget.sent_by = asked
                return reply.now_ms
            if budget.sent_by is not None or not error.leader_address:
                session.route.failed(asked)
        at_least = float(retry_after_ms(error, reply.headers) or 0)
    woken = yield budget.next_wait(reply.now_ms, at_least, reason)
    assert isinstance(woken, Woken), "the reply to Wait is Woken"
    budget.now_ms = woken.now_ms
    budget.sent_by = None
    return woken.now_ms
