"""The live end of the change stream: recent events, kept once and shared by every subscriber.

A feed has two bounded rings: durable events, and events that are accepted but may not be durable yet. Each ring keeps
at most ``bytes_max`` of events. A subscriber holds a position, not a buffer, so a thousand of them need no more memory
than one; a subscriber that falls out of the ring reads history again (``subscription``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.commit.format.batch import Header, Logged, LoggedEntry, LoggedTransaction
from holdfast.commit.format.transaction import JobChange, Operation
from holdfast.values import Version


class FeedTransaction(Struct, frozen=True, gc=False):
    """One committed transaction as subscribers see it. ``prev_version`` is that of the transaction before it."""

    version: int
    prev_version: int
    request_id: str | None
    leader_id: str
    time_ms: int
    operations: list[Operation]
    durable: bool
    record: bytes | None = None
    """What the stores did for its parts; not known before it is durable."""
    jobs: tuple[JobChange, ...] = ()
    """What it changed of the records of jobs: for views of the service, not for subscribers."""


class StoresEvent(Struct, frozen=True, gc=False):
    """What the stores that live in the log did by themselves at one version. It is no transaction."""

    version: int
    leader_id: str
    time_ms: int
    records: list[tuple[str, bytes]]


class FeedCheckpoint(Struct, frozen=True, gc=False):
    """Everything at or below ``committed_version`` is durable."""

    committed_version: int
    leader_id: str


class LeaderChange(Struct, frozen=True, gc=False):
    """Forget what came after ``roll_back_to``: another leader goes on from there."""

    roll_back_to: int
    leader_id: str


Event = FeedTransaction | StoresEvent | FeedCheckpoint | LeaderChange


class EventBatch:
    """Events that became visible together, in order: everything up to ``last_version``, of the log ``log_id``.

    They are made from the log's objects on first use, so an unwatched stream costs nothing. ``encoded`` is the server's
    cache of their texts, for durable streams (True) and others.
    """

    __slots__ = ("_events", "_header", "_logged", "encoded", "last_version", "log_id", "size")

    def __init__(
        self,
        last_version: int,
        size: int,
        log_id: str,
        events: Sequence[Event] | None = None,
        header: Header | None = None,
        logged: Sequence[Logged] = (),
    ) -> None:
        self.last_version = last_version
        self.log_id = log_id
        self.size = size
        self.encoded: dict[bool, bytes] | None = None
        self._events = events
        self._header = header
        self._logged = logged

    @property
    def events(self) -> Sequence[Event]:
        """The events, the checkpoint last."""
        if self._events is None:
            assert self._header is not None, "a batch has events or what makes them"
            self._events = _events_of(self._header, self._logged)
            self._header, self._logged = None, ()
        return self._events

    def transactions(self) -> Iterable[tuple[int, Sequence[Operation]]]:
        """The versions and operations of its transactions, in order, without making events of them."""
        if self._events is None:
            return [(each.version, each.operations) for each in self._logged if type(each) is LoggedTransaction]
        return [(each.version, each.operations) for each in self._events if type(each) is FeedTransaction]

    @classmethod
    def of(cls, header: Header, logged: Sequence[Logged], size: int) -> EventBatch:
        """The events of one live object."""
        return cls(header.last_version, size, header.log_id.hex(), None, header, logged)


def _events_of(header: Header, logged: Sequence[Logged]) -> list[Event]:
    """The durable events of one live object, and the checkpoint after them."""
    leader_id = header.leader_id.hex()
    prev = header.prev_version
    events: list[Event] = []
    for each in logged:
        if isinstance(each, LoggedEntry):
            events.append(StoresEvent(each.version, leader_id, header.time_ms, each.records))
            continue
        shared = each.request_id, leader_id, header.time_ms, each.operations, True, each.record, each.jobs
        events.append(FeedTransaction(each.version, prev, *shared))
        prev = Version(each.version)
    events.append(FeedCheckpoint(header.last_version, leader_id))
    return events


class Channel:
    """A ring of event batches with positions that always rise.

    ``start_version``: every transaction after it, up to the newest published, is in the ring.
    """

    __slots__ = (
        "_batches", "_bytes", "_bytes_max", "_first", "_offsets", "_published", "_waiters", "closed", "start_version",
    )  # fmt: skip

    def __init__(self, start_version: int, *, bytes_max: int) -> None:
        self._batches: deque[EventBatch] = deque()
        self._offsets: deque[int] = deque()
        self._first = 0
        self._bytes = 0
        self._published = 0
        self._bytes_max = bytes_max
        self._waiters: dict[asyncio.Future[None], None] = {}
        self.start_version = start_version
        self.closed = False

    def publish(self, batch: EventBatch) -> None:
        """Add a batch at the end, drop what exceeds the bound, wake the waiting."""
        assert batch.last_version >= self.last_version, "versions never fall along a channel"
        self._batches.append(batch)
        self._offsets.append(self._published)
        self._published += batch.size
        self._bytes += batch.size
        while self._bytes > self._bytes_max and len(self._batches) > 1:
            gone = self._batches.popleft()
            self._offsets.popleft()
            self._first += 1
            self._bytes -= gone.size
            self.start_version = max(self.start_version, gone.last_version)
        self._wake()

    def close(self) -> None:
        """No more will be published."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def last_version(self) -> int:
        """Everything up to here is in the ring, or was before."""
        return max(self.start_version, self._batches[-1].last_version if self._batches else 0)

    @property
    def end(self) -> int:
        """The position after the newest batch."""
        return self._first + len(self._batches)

    def find(self, after: int) -> int | None:
        """The position of the first batch that holds anything after ``after``; None when the ring starts too late."""
        if after < self.start_version:
            return None
        position = self.end
        for batch in reversed(self._batches):
            if batch.last_version <= after:
                break
            position -= 1
        return position

    def at(self, position: int) -> EventBatch | None:
        """The batch at a position; None when it has left the ring. ``position`` must be below ``end``."""
        index = position - self._first
        return self._batches[index] if index >= 0 else None

    def bytes_behind(self, position: int) -> int:
        """How many bytes of events stand between a position and the end."""
        index = position - self._first
        if index >= len(self._batches):
            return 0
        return self._published - (self._offsets[index] if index >= 0 else self._offsets[0])

    async def wait(self, position: int) -> None:
        """Return when there is something at ``position``, or nothing will come any more."""
        while position >= self.end and not self.closed:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                self._waiters.pop(waiter, None)


class Feed:
    """The two channels of one leadership."""

    def __init__(self, claim: Header, *, bytes_max: int) -> None:
        self.leader_id = claim.leader_id.hex()
        self.log_id = claim.log_id.hex()
        self.durable = Channel(claim.last_version, bytes_max=bytes_max)
        self.resolved = Channel(claim.last_version, bytes_max=bytes_max)
        self.subscribers = 0
        self.resolved_subscribers = 0
        checkpoint = FeedCheckpoint(claim.last_version, self.leader_id)
        self.durable.publish(EventBatch(claim.last_version, 64, self.log_id, (checkpoint,)))

    def publish_durable(self, header: Header, logged: Sequence[Logged], size: int) -> None:
        """A batch became durable."""
        self.durable.publish(EventBatch.of(header, logged, size))
        if self.resolved_subscribers:
            # A checkpoint is about older versions, but comes after all transactions published before it.
            checkpoint = FeedCheckpoint(header.last_version, self.leader_id)
            last_version = max(header.last_version, self.resolved.last_version)
            self.resolved.publish(EventBatch(last_version, 64, self.log_id, (checkpoint,)))

    def publish_resolved(self, events: Sequence[FeedTransaction], size: int) -> None:
        """Transactions were accepted; they are not durable yet."""
        self.resolved.publish(EventBatch(events[-1].version, size, self.log_id, events))

    def skip_resolved(self, version: int) -> None:
        """Transactions up to ``version`` were accepted while the resolved channel had no subscriber."""
        self.resolved.start_version = version

    def close(self) -> None:
        """The leadership is over."""
        self.durable.close()
        self.resolved.close()
