"""How long one operation retries, and which endpoint it asks next. Every wait is within the operation's bound.

Between two waits each endpoint is asked at most once: one that cannot be reached or does not lead is left at once for
the leader that it names, or for the next configured one. In a take-over the wait after that is short and does not
double.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from holdfast.client.protocol.effects import Failed, Procedure, Response, Wait, Woken
from holdfast.client.protocol.endpoint import ClientRoute, Endpoint, UnusableEndpoints
from holdfast.client.protocol.messages import COORDINATION_CODES, Place, error_of, position_of, retry_after_ms
from holdfast.client.protocol.options import ClientOptions
from holdfast.errors import Code, HoldfastError, Unavailable
from holdfast.soundness import Soundness
from holdfast.values import LogPosition
from holdfast.wire.log import ErrorBody

TAKE_OVER_WAIT_MS_MAX: Final = 400.0
"""The longest wait before the endpoints are asked again, while none of several can be reached or leads."""


@dataclass(slots=True)
class Session:
    """The state that the operations of one client share: the route, and the newest position of any response.

    ``newest`` is the read version of commits that have none; a stale one costs one more request, never a wrong outcome.
    A number without a log belongs to the log of ``newest``. Threads may share it: each update is one assignment.
    """

    route: ClientRoute
    options: ClientOptions = field(default_factory=ClientOptions)
    newest: LogPosition | None = None
    id_tag: str = ""
    """What the service wants ids to begin with that are drawn here: its version answers and refusals name it."""
    soundness: Soundness = field(
        default_factory=lambda: Soundness("client", "Make another client; ask for the outcomes of what this one sent."),
        repr=False,
        compare=False,
    )
    """Whether the invariants of the client hold."""

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

    def read_position(self, named: Place | None) -> LogPosition | None:
        """The position that a read must reach: ``newest``, or what a caller named where that is newer or elsewhere.

        Raises: InvalidRequest.
        """
        newest = self.newest
        if named is None:
            return newest
        position = self.resolve_position(named)
        return newest if newest is not None and newest.log_id == position.log_id and newest > position else position

    def draw_id(self, entropy: str, number: int) -> str:
        """The id of a new attempt. It is stored with the attempt: a repetition sends it as it is."""
        return f"{self.id_tag}{entropy}-{number}"

    def refused(self, error: ErrorBody | None, status: int) -> HoldfastError:
        """The exception for an error answer. After one about another log the next operation learns the log again."""
        if error is not None and error.code in (Code.LOG_MISMATCH, Code.ROLLED_BACK):
            self.newest = None
        if error is not None and error.tag is not None:
            self.id_tag = error.tag
        return error_of(error, status)


class Turns:
    """Where one operation asks next, and after which wait: full jitter under a doubling ceiling, except in a take-over.

    A take-over ends at an unknown moment, so a wait that doubles would be the client's own delay. There the wait is
    what the service asks for and a quarter more, else at most ``TAKE_OVER_WAIT_MS_MAX``.
    """

    def __init__(self, session: Session) -> None:
        self._options = session.options
        self._route = session.route
        self._ceiling_ms = session.options.retry_base_ms
        self._asked: set[Endpoint] = set()
        """The endpoints that were asked since the last wait."""
        self._at_least_ms = 0.0
        """What one of them asked for."""
        self.sent_by: Endpoint | None = None
        """The endpoint that named the leader that is asked now."""

    def progressed(self) -> None:
        """The operation got on: the next wait is short, and every endpoint may be asked at once."""
        self._ceiling_ms = self._options.retry_base_ms
        self._at_least_ms = 0.0
        self._asked.clear()

    def after(
        self,
        endpoint: Endpoint,
        code: Code | None = None,
        *,
        leader_address: object = None,
        at_least_ms: float = 0.0,
        is_lost: bool = False,
        reason: str = "",
    ) -> Wait:
        """The wait before the next request, which goes to ``route.current``; 0 for a request at once.

        ``code``: of the error. ``is_lost``: ``endpoint`` gave no response, or is to be left for another endpoint.
        ``at_least_ms``: what it asked for.
        """
        self._asked.add(endpoint)
        self.sent_by = None
        is_led_elsewhere = code in COORDINATION_CODES
        if is_led_elsewhere:
            leader = leader_address if isinstance(leader_address, str) and self._options.follow_leader else None
            if self._route.follow(endpoint, leader):
                self.sent_by = endpoint
            else:
                self._route.failed(endpoint)
        elif is_lost:
            self._route.failed(endpoint)
        self._at_least_ms = max(self._at_least_ms, at_least_ms)
        is_take_over = is_led_elsewhere or is_lost
        if is_take_over and self._turned_to_a_new_one():
            return Wait(0.0, 0.0, reason)
        at_least_ms, self._at_least_ms = self._at_least_ms, 0.0
        self._asked.clear()
        if is_take_over and at_least_ms:
            spread_ms = at_least_ms / 4
        else:
            spread_ms = max(self._ceiling_ms, at_least_ms / 4)
            self._ceiling_ms = min(self._ceiling_ms * 2, self._options.retry_max_ms)
            if is_led_elsewhere or (is_lost and len(self._route.configured) > 1):
                spread_ms = min(spread_ms, TAKE_OVER_WAIT_MS_MAX)
        return Wait(at_least_ms, at_least_ms + spread_ms, reason)

    def after_error(self, endpoint: Endpoint, error: HoldfastError | None, reply: Response | Failed) -> Wait:
        """As ``after``, for an error that was made of a response."""
        if isinstance(reply, Failed):
            return self.after(endpoint, is_lost=reply.asked, reason=reply.reason)
        assert error is not None, "a response that is not a success means an error"
        return self.after(
            endpoint,
            error.code,
            leader_address=error.fields.get("leader_address"),
            at_least_ms=float(error.retry_after_ms or retry_after_ms(reply.headers) or 0),
            reason=str(error.code),
        )

    def _turned_to_a_new_one(self) -> bool:
        """Turn to an endpoint that was not asked since the last wait: the one whose turn it is, else any configured
        one. One that was named counts as configured, so a chain of servers that name each other has an end."""
        route = self._route
        if len(self._asked) <= len(route.configured):
            for endpoint in (route.current, *route.configured):
                if endpoint not in self._asked and endpoint not in route.silent:
                    if endpoint != route.current:
                        self.sent_by = None
                        route.current = endpoint
                    return True
        return False


class RetryBudget:
    """How long one operation may retry, and what it met until now."""

    def __init__(self, session: Session, now_ms: float, within_ms: float) -> None:
        self._session = session
        self._end_ms = now_ms + within_ms
        self.now_ms = now_ms
        """When the last reply arrived: the time at which the next operation begins."""

    @cached_property
    def turns(self) -> Turns:
        """Where it asks next. Most operations need no retry."""
        return Turns(self._session)

    @cached_property
    def unusable(self) -> UnusableEndpoints:
        """The unusable endpoints that it has met. Most operations meet none."""
        return UnusableEndpoints(self._session.route)

    def exhausted(self, now_ms: float) -> bool:
        """Whether no time is left for a retry."""
        return now_ms >= self._end_ms

    def within(self, wait: Wait, now_ms: float) -> Wait:
        """The wait, cut at the end of the operation's own bound."""
        left_ms = self.left_ms(now_ms)
        return Wait(min(wait.at_least_ms, left_ms), min(wait.at_most_ms, left_ms), wait.reason)

    def next_wait(self, now_ms: float) -> Wait:
        """The next wait after a response that another endpoint would not change."""
        return self.within(self.turns.after(self._session.route.current), now_ms)

    def left_ms(self, now_ms: float) -> float:
        """Time until this operation gives up, at least one millisecond."""
        return max(1.0, self._end_ms - now_ms)

    def missed(self, endpoint: Endpoint, reply: Failed) -> None:
        """``endpoint`` has not responded: the next request goes to another endpoint, unless it was not asked at all.
        Raises: InvalidRequest (bad_configuration) when no configured endpoint is usable, nor a leader it named."""
        sent_by = self.turns.sent_by
        if reply.asked:
            self._session.route.failed(endpoint)
        if reply.problem is not None and self.unusable.met(reply.problem, endpoint, sent_by):
            raise reply.problem

    def unreachable(self, what: str, endpoint: Endpoint, reply: Failed, after: int | None = None) -> Unavailable:
        """The error when time is up."""
        elsewhere = self.unusable.elsewhere(endpoint)
        return Unavailable(f"{what}: {reply.reason}", endpoint=endpoint, elsewhere=elsewhere, after=after)


def pause(
    budget: RetryBudget, endpoint: Endpoint, reply: Response | Failed, error: HoldfastError | None
) -> Procedure[float]:
    """Wait as the response asks, or not at all where another endpoint is asked first. ``error``: of a response."""
    if isinstance(reply, Response):
        budget.unusable.heard(endpoint)
    wait = budget.turns.after_error(endpoint, error, reply)
    if not wait.at_most_ms:
        return reply.now_ms
    woken = yield budget.within(wait, reply.now_ms)
    assert isinstance(woken, Woken), "the reply to Wait is Woken"
    budget.now_ms = woken.now_ms
    return woken.now_ms
