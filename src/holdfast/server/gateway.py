"""``Gateway``: it stands between the connections of one server and the commit service, and limits what passes.

The gateway admits commits and hands them to the service, which collects what comes within two turns of the event loop.
If several callers ask for the version in one turn, it asks the service once. While this process does not lead, requests
for the log are answered ``not_leader``. Health, metrics and open streams do not pass through admission.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from holdfast.browsers import guard_of
from holdfast.commit.format.request_rules import ITEMS_MAX
from holdfast.commit.format.transaction import Transaction, Unanswered, with_expectations
from holdfast.commit.leadership.suspension import RESUME_HINT
from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.service import CommitService
from holdfast.commit.stages.events import NO_STORE_PARTS, CommitEntry
from holdfast.commit.subscription import FeedSource
from holdfast.errors import Backpressure, Code, Fenced, HoldfastError, InvalidRequest, PermissionDenied, Unavailable
from holdfast.server.http.auth import Authenticator, ClientKey
from holdfast.server.http.requests import LINEAGE_AGAIN_MS
from holdfast.server.http.responses import (
    NOT_LEADING_RETRY_MS,
    CommitResponses,
    LeaderHint,
    not_leading,
    without_traceback,
)
from holdfast.server.http.rights_table import JOBS, need_of
from holdfast.server.http.state import HttpLimits, HttpState
from holdfast.settings import Settings
from holdfast.values import LogPosition
from holdfast.wire.formats import WireFormat
from holdfast.wire.log import StatusAnswer, StreamMessage

VersionWaiter = Callable[[int | HoldfastError], None]

OVERLOADED_RETRY_AFTER_MS: Final = 1000
STATUS_RETRY_AFTER_MS: Final = 500


@dataclass(frozen=True, slots=True)
class GatewayLimits(HttpLimits):
    """Bounds of the service. Bytes are those of request bodies; in flight, with their request ids in the log."""

    request_id_length_min: int = 20
    operations_max: int = ITEMS_MAX
    preconditions_max: int = ITEMS_MAX
    client_commits_per_second_max: int = 0
    in_flight_commits_max: int = 65_536
    in_flight_bytes_max: int = 256 * 1_048_576
    subscriber_unsent_bytes_max: int = 10 * 1_048_576
    keepalive_interval_seconds: float = 30.0
    status_seconds_max: float = 10.0
    receipts_seconds_max: float = 10.0
    """How long what was accepted may be answered for after its token has ended."""


def limits_of(settings: Settings) -> GatewayLimits:
    """The bounds that are configured."""
    return GatewayLimits(
        request_bytes_max=settings.server.max_request_size_bytes,
        request_id_length_min=settings.commit.min_request_id_length,
        operations_max=settings.commit.max_operations,
        preconditions_max=settings.commit.max_preconditions,
        in_flight_commits_max=settings.server.max_in_flight_commits,
        in_flight_bytes_max=settings.server.max_in_flight_bytes,
        connections_max=settings.server.max_connections,
        body_bytes_per_second_min=settings.server.min_body_bytes_per_second,
        unsent_bytes_max=settings.server.max_unsent_bytes,
        client_commits_per_second_max=settings.server.client_commits_per_second_max,
        subscriber_unsent_bytes_max=settings.subscription.max_buffer_size_bytes,
        keepalive_interval_seconds=settings.subscription.keepalive_interval_seconds,
        status_seconds_max=settings.persist.request_timeout_ms / 1000,
        receipts_seconds_max=settings.persist.request_timeout_ms / 1000,
    )


class ShownStores(Protocol):
    """The stores that one change stream shows."""

    def problem(self) -> HoldfastError | None:
        """Why its reader may not see them any more, or None."""
        ...

    def messages(self, records: Iterable[bytes]) -> list[StreamMessage]:
        """What these records published in the stores, in order. Raises: CorruptData."""
        ...


class HostedStores(Protocol):
    """The stores, as far as commits and change streams need them."""

    def read_parts(
        self, txn: Transaction, authorization: bytes | None, wire_format: WireFormat
    ) -> tuple[object, bytes]:
        """What the stores are to do for a commit, and a digest of how it was sent. Raises: HoldfastError."""
        ...

    def watch(self, authorization: bytes | None, stores: Sequence[str]) -> ShownStores:
        """These stores, for a reader that may see each. Raises: HoldfastError."""
        ...


def _no_stores() -> InvalidRequest:
    return InvalidRequest(
        "this service hosts no stores",
        code=Code.STORES_NOT_IN_LOG,
        hint="begin a log with stores.durability set to log",
    )


class Gateway(HttpState):
    """The service behind the connections, and the bounds in front of it."""

    limits: GatewayLimits

    def __init__(
        self,
        *,
        limits: GatewayLimits,
        authenticator: Authenticator,
        names: Iterable[str] = (),
        hosts: Iterable[str] = (),
    ) -> None:
        """``names``: hosts under which the service is reached, besides addresses; ``hosts``: ``server.hosts``."""
        super().__init__(limits, authenticator, asyncio.get_running_loop(), guard_of(names, hosts))
        self.own = LeaderHint()
        self.service: CommitService | None = None
        self.reader: FeedSource | None = None
        """Who answers readers: the service while this process leads, else what follows the log, if anything does."""
        self.read_only = False
        self.log_id = ""
        """The log that this process leads, or led last."""
        self.answers = CommitResponses(self.own)
        rate = limits.client_commits_per_second_max
        self.client_rates = ClientRates(rate) if rate else None
        self.stores: HostedStores | None = None
        """None where the service hosts none."""
        self.draining = False
        self.suspended_by: str | None = None
        """Who suspended the log that this process would lead; None while it is not known to be suspended."""
        self.stands_by_next = False
        """Whether the leadership that ends was asked to stand by: the process waits for its next turn, and runs on."""
        self.in_flight_bytes = 0
        self._version_waiters: list[VersionWaiter] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    # Leadership

    def lead(self, service: CommitService) -> None:
        """From now on this process answers for the log."""
        self.own = self.leader = LeaderHint(service.leader_id, service.address, is_this_process=True)
        self.log_id = service.log_id
        self.stands_by_next = False
        self.suspended_by = None
        self.answers = CommitResponses(self.own)
        self.service = self.reader = service

    def stop_leading(self, leader: LeaderHint) -> None:
        """From now on every request for the log gets ``not_leader``, naming ``leader`` when it is known."""
        if self.reader is self.service:
            self.reader = None
        self.service = None
        self.leader = leader

    def read(self, reader: FeedSource) -> None:
        """From now on this process answers readers of a log that another one leads."""
        self.log_id = reader.log_id
        self.reader = reader

    def leading(self) -> CommitService:
        """The service. Raises: Fenced (not_leader)."""
        if self.service is None:
            raise self.not_leading()
        return self.service

    def not_leading(self) -> HoldfastError:
        """Why this process takes no commits: it only reads its log, or another process leads."""
        if self.read_only:
            return InvalidRequest(
                "this service only reads its log",
                code=Code.READ_ONLY,
                hint="send commits to the leader; GET /v1/version needs consistency=local here",
            )
        return self.not_leader()

    def not_leader(self) -> Fenced:
        """The answer to what needs the leader, and why there may be none."""
        hint = ""
        if self.suspended_by is not None:
            hint = f"the log is suspended by {self.suspended_by}; {RESUME_HINT}"
        elif self.stands_by_next and not self.leader.address:  # a service has one
            hint = "it was asked to stand by, as a bulk job does, and leads again when the job has ended"
        return not_leading(self.leader, hint)

    def reading(self) -> FeedSource:
        """Who answers readers. Raises: Fenced (not_leader) while nobody does."""
        if self.reader is None:
            raise self.not_leader()
        return self.reader

    def version_of(self, position: LogPosition) -> int:
        """The version of a position in this log.

        Raises: Fenced (not_leader), InvalidRequest (log_mismatch, rolled_back), Unavailable while the ancestors of a
        log that was forked are not known.
        """
        reader = self.reading()
        if position.log_id not in (None, reader.log_id):
            if reader.lineage is None:
                raise Unavailable("the ancestors of this log are not known yet", retry_after_ms=LINEAGE_AGAIN_MS)
            reader.lineage.require(position.log_id, position.version)
        return position.version

    @property
    def lineage(self) -> Lineage | None:
        """The ancestors of the log that this process leads; None while they are not known."""
        return None if self.service is None else self.service.lineage

    # Admission

    def admission(self) -> HoldfastError | None:
        """None when one more commit is welcome, else the error to answer at once."""
        refusal = self._refusal()
        if refusal is not None:
            self.counters.refused_commits[refusal.code] += 1
        return refusal

    def _refusal(self) -> HoldfastError | None:
        service = self.service
        if service is None:
            return self.not_leading()
        if self.draining:
            return Unavailable("the service is stopping", code=Code.OVERLOADED, retry_after_ms=NOT_LEADING_RETRY_MS)
        limits = self.limits
        if self.in_flight_commits >= limits.in_flight_commits_max or self.in_flight_bytes >= limits.in_flight_bytes_max:
            return Backpressure(
                "the service is full",
                retry_after_ms=OVERLOADED_RETRY_AFTER_MS,
                commits_in_flight=self.in_flight_commits,
            )
        return service.admission()

    def over_rate(self, client: bytes | str, *, takes: bool = True) -> HoldfastError | None:
        """None after taking one commit from the client's own budget, or the error when it is exhausted."""
        rates = self.client_rates
        wait = 0.0 if rates is None else rates.wait_for_one(client, self.loop.time(), takes=takes)
        if rates is None or wait == 0.0:
            return None
        self.counters.rate_limited_commits += 1
        self.counters.refused_commits[Code.RATE_LIMITED] += 1
        return Backpressure(
            "this client commits faster than it may",
            code=Code.RATE_LIMITED,
            retry_after_ms=math.ceil(wait * 1000),
            per_second_max=rates.per_second_max,
        )

    # Commits

    def read_parts(
        self, entry: CommitEntry, authorization: bytes | None, wire_format: WireFormat
    ) -> HoldfastError | None:
        """Check who changes records of jobs, and let the stores read what a commit has for them.

        Returns the error to answer where one of them refuses.
        """
        if entry.txn.jobs:
            role = need_of("POST", "/v1/commit").role_of(JOBS)
            problem = self.authenticator.problem_with(authorization, role, checks_scope=True)
            if problem is not None:
                return problem
            entry.txn, entry.parts = with_expectations(entry.txn), NO_STORE_PARTS
            if not entry.txn.has_store_parts:
                return None
        if not self.authenticator.scope_of(authorization).is_everything:
            return PermissionDenied("a token with key prefixes may not name stores in a commit")
        if self.stores is None:
            return _no_stores()
        try:
            entry.parts, entry.parts_digest = self.stores.read_parts(entry.txn, authorization, wire_format)
        except HoldfastError as error:
            return without_traceback(error)
        return None

    def shown_stores(self, authorization: bytes | None, stores: Sequence[str]) -> ShownStores:
        """The stores that a change stream shows to this caller. Raises: HoldfastError."""
        if not self.authenticator.scope_of(authorization).is_everything:
            raise PermissionDenied("a token with key prefixes may not name stores")
        if self.stores is None:
            raise _no_stores()
        return self.stores.watch(authorization, stores)

    def submit(self, entries: list[CommitEntry], size: int) -> None:
        """Hand admitted commits to the service. It takes them after the next turn of the loop, with all others.

        ``size`` counts against the bytes in flight until the replies call ``settled`` with it.
        """
        self.in_flight_commits += len(entries)
        self.in_flight_bytes += size
        service = self.service
        if service is not None:
            service.submit(entries)
            return
        # The lead was lost between admission and now.
        for entry in entries:
            entry.outcome = Unanswered()
            entry.reply(entry)

    def settled(self, commits: int, size: int) -> None:
        """``commits`` with ``size`` bytes have their outcome."""
        self.in_flight_commits -= commits
        self.in_flight_bytes -= size
        assert self.in_flight_commits >= 0, "a commit is settled once"

    async def status(self, request_id: str, min_version: int) -> StatusAnswer:
        """The final outcome of an attempt. Raises: as the service; Unavailable after ``status_seconds_max``.

        The read continues in the background, so a retry about a long log is faster.
        """
        question = self.loop.create_task(self._status(request_id, min_version))
        self._tasks.add(question)
        question.add_done_callback(self._tasks.discard)
        await asyncio.wait({question}, timeout=self.limits.status_seconds_max)
        if not question.done():
            raise Unavailable("the log was not read in time", retry_after_ms=STATUS_RETRY_AFTER_MS)
        verdict = question.result()
        if isinstance(verdict, HoldfastError):
            raise verdict
        return verdict

    async def _status(self, request_id: str, min_version: int) -> StatusAnswer | HoldfastError:
        try:
            return await self.leading().status(request_id, min_version)
        except HoldfastError as error:  # returned, because the caller may have gone
            return error

    # Versions

    def ask_version(self, waiter: VersionWaiter) -> None:
        """Call ``waiter`` with a linearizable version, or with the error. Callers of one turn share one question."""
        waiters = self._version_waiters
        if not waiters:
            self.loop.call_soon(self._ask)
        waiters.append(waiter)

    async def newest_version(self) -> int:
        """A linearizable version, by the question that all callers of one turn share. Raises: as the service."""
        found: asyncio.Future[int | HoldfastError] = self.loop.create_future()

        def give(version: int | HoldfastError) -> None:
            if not found.done():
                found.set_result(version)

        self.ask_version(give)
        version = await found
        if isinstance(version, HoldfastError):
            raise version
        return version

    def _ask(self) -> None:
        waiters, self._version_waiters = self._version_waiters, []
        task = self.loop.create_task(self._answer_version(waiters))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_version(self, waiters: list[VersionWaiter]) -> None:
        answer: int | HoldfastError
        try:
            answer = await self.leading().version()
        except HoldfastError as error:
            answer = without_traceback(error)
        for waiter in waiters:
            waiter(answer)


CLIENTS_MAX: Final = 16_384
BURST_SECONDS: Final = 1.0
_ROUNDING_SECONDS: Final = 1e-6


class ClientRates:
    """The buckets of all clients. ``now`` is seconds of a clock that never steps back, the same in every call.

    >>> rates = ClientRates(2)
    >>> [rates.wait_for_one("peer", 10.0) for _ in range(3)]
    [0.0, 0.0, 0.5]
    >>> rates.wait_for_one("peer", 10.5)
    0.0
    """

    __slots__ = ("_clients_max", "_full_at", "_share_seconds", "per_second_max")

    def __init__(self, per_second_max: int, *, clients_max: int = CLIENTS_MAX) -> None:
        assert per_second_max >= 1, "a rate of none is no limit but an end"
        assert clients_max >= 1, "at least the client that asks is remembered"
        self.per_second_max = per_second_max
        self._share_seconds = 1.0 / per_second_max
        self._clients_max = clients_max
        self._full_at: OrderedDict[ClientKey, float] = OrderedDict()
        """Least recently heard first."""

    def __len__(self) -> int:
        return len(self._full_at)

    def wait_for_one(self, client: ClientKey, now: float, *, takes: bool = True) -> float:
        """Take one commit from the budget and return 0; or take nothing and return the seconds until one is there.

        ``takes`` false: only look.
        """
        full_at = max(self._full_at.pop(client, now), now)
        moved = full_at + self._share_seconds
        wait = moved - now - BURST_SECONDS
        if wait <= _ROUNDING_SECONDS:
            self._remember(client, moved if takes else full_at)
            return 0.0
        self._remember(client, full_at)
        return wait

    def wait_after_taking(self, client: ClientKey, commits: int, now: float) -> float:
        """Take ``commits`` from the budget in any case, and return the seconds that a stream must wait for them."""
        moved = max(self._full_at.pop(client, now), now) + commits * self._share_seconds
        self._remember(client, moved)
        return max(0.0, moved - now - BURST_SECONDS)

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self._full_at) <= self._clients_max, "the table is bounded"

    def _remember(self, client: ClientKey, full_at: float) -> None:
        table = self._full_at
        if len(table) >= self._clients_max:
            table.popitem(last=False)
        table[client] = full_at
