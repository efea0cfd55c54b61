"""One subscriber's stream: history from the store, then live events, with no gap and no repeat.

History is read until the live buffer holds everything after the last version yielded; a subscriber that falls out of
the buffer reads history again. ``prev_version`` proves that no transaction is missing. Segments are read before the
log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from holdfast.commit.format.batch import Header
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.reading.feed import (
    Channel,
    Event,
    EventBatch,
    Feed,
    FeedCheckpoint,
    FeedTransaction,
    LeaderChange,
    StoresEvent,
)
from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.reading.reader import Leadership, LeadershipWalk, damage_unless_truncated, follow, start_after
from holdfast.commit.reading.verify import DamageLog
from holdfast.errors import (
    Backpressure,
    Code,
    CorruptData,
    HoldfastError,
    InternalError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from holdfast.objects.port import ObjectStore


class OlderHistory(Protocol):
    """History that is kept outside the log. ``through`` is called first."""

    async def through(self, log_id: str) -> int:
        """Everything of this log up to this version is there; 0 for nothing."""
        ...

    def events(self, after: int, until: int) -> AsyncGenerator[EventBatch]:
        """As the log would give them. Raises: CorruptData, Unavailable, where the log has to go on."""
        ...

    async def rolled_back_to(self, version: int) -> tuple[int, str] | None:
        """Where a stream at ``version`` of a leadership that left the log goes back to, and the leader from there."""
        ...


class FeedSource(Protocol):
    """What subscribers need of a process that knows the end of a log: its leader, or a ``following.FollowedLog``."""

    store: ObjectStore
    claim: Header
    leader_id: str
    log_id: str
    feed: Feed
    damage: DamageLog
    lineage: Lineage | None
    ended: asyncio.Future[Any]

    def durable_header(self) -> Header:
        """The header of the newest durable object that may be shown."""
        ...

    def local_version(self) -> int:
        """The newest version that this process knows to be durable."""
        ...

    async def version(self) -> int:
        """A version at least as new as everything committed when this was called. Raises: Fenced, Unavailable."""
        ...

    @property
    def assigned(self) -> int:
        """The newest version that was handed out, as far as this process knows."""
        ...

    @property
    def truncated_through(self) -> int:
        """Versions at or below it may have been removed."""
        ...


class StartRolledBack(HoldfastError):
    """The starting point belongs to a leader that was deposed before it became durable. Start from ``roll_back_to``."""

    default_code = Code.ROLLED_BACK

    def __init__(self, roll_back_to: int, leader_id: str) -> None:
        super().__init__("this version was rolled back", roll_back_to=roll_back_to, hint="start after roll_back_to")
        self.roll_back_to = roll_back_to
        self.leader_id = leader_id


async def subscribe(
    service: FeedSource,
    *,
    after: int,
    durable: bool = True,
    bytes_behind_max: int = 10 << 20,
    older: OlderHistory | None = None,
) -> AsyncIterator[EventBatch]:
    """The events after version ``after``, as batches that became visible together; endless until the leadership ends.

    Live batches are shared by all subscribers and must not be changed. With ``durable`` false, transactions come as
    soon as they are accepted, and checkpoints say what became durable; the last batch is then a LeaderChange. Raises:
    InvalidRequest ``future_version``, StartRolledBack, NotFound ``log_truncated``, Backpressure ``lagging`` (this
    subscriber had caught up and fell more than ``bytes_behind_max`` behind the live end, or out of the live buffer),
    Fenced ``leader_changed`` (the version may be a later leader's), Unavailable, CorruptData.
    """
    feed = service.feed
    caught_up = False
    feed.subscribers += 1
    feed.resolved_subscribers += not durable
    try:
        if after > service.assigned:
            # A later leader may have handed it out: its reader must not be turned away for good by who was deposed.
            await service.version()
            if after > service.assigned:
                raise InvalidRequest("version was never handed out", code=Code.FUTURE_VERSION, version=after)
        if after < service.claim.last_version:
            async for batch, reached in _history(service, older, after, durable):
                yield batch
                after = reached
        elif after >= service.local_version():
            # No event yet: send a checkpoint, so that a new subscriber knows it before the next commit.
            caught_up = True
            checkpoint = FeedCheckpoint(service.local_version(), service.leader_id)
            yield EventBatch(after, 64, service.log_id, (checkpoint,))
        channel = feed.durable if durable else feed.resolved
        async for batch in _live(service, channel, after, bytes_behind_max, caught_up):
            yield batch
    except NotFound as error:
        problem = damage_unless_truncated(error, service.durable_header())
        if isinstance(problem, CorruptData):
            service.damage.note("stream", problem)
        raise problem from error
    except CorruptData as error:
        service.damage.note("stream", error)
        raise
    finally:
        feed.subscribers -= 1
        feed.resolved_subscribers -= not durable
    if not durable:
        last = service.local_version()
        yield EventBatch(last, 64, service.log_id, (LeaderChange(last, service.leader_id),))


async def _live(
    service: FeedSource, channel: Channel, after: int, bytes_behind_max: int, caught_up: bool
) -> AsyncIterator[EventBatch]:
    """Events of this leadership after ``after``, from the live buffer, or from the store for what has left the buffer.

    Only a subscriber that has caught up can be lagging: a refused one would start again where it started before. What
    was published while it waited at the end does not count, and neither does the batch that it gets: one event may be
    larger than the bound. When that has left the buffer before it woke, it is read from the store.
    """
    feed = service.feed
    position: int | None = None
    counted_from = 0
    while True:
        if position is None:
            position = channel.find(after)
            if position is None:
                stood = after
                async for batch, reached in _catch_up(service, feed, channel, after):
                    yield batch
                    after = reached
                if channel.closed and after == stood:
                    # The missing events were accepted without a subscriber, and never became durable.
                    return
                continue
        if position >= channel.end:
            if channel.closed:
                return
            caught_up = True
            await channel.wait(position)
            counted_from = channel.end
            continue
        shared = channel.at(position)
        if shared is None and (not caught_up or position < counted_from):
            position = None
            caught_up = False
            continue
        behind = channel.bytes_behind(max(position + 1, counted_from)) if caught_up else 0
        if shared is None or behind > bytes_behind_max:
            raise Backpressure("subscriber is too far behind", code=Code.LAGGING, bytes_behind=behind, after=after)
        position += 1
        batch = _tail(shared, after)
        if batch.events:
            yield batch
        after = max(after, batch.last_version)


def _tail(batch: EventBatch, after: int) -> EventBatch:
    first = batch.events[0] if batch.events else None
    if not isinstance(first, FeedTransaction | StoresEvent) or first.version > after:
        return batch
    rest = [
        event for event in batch.events if not isinstance(event, FeedTransaction | StoresEvent) or event.version > after
    ]
    return EventBatch(batch.last_version, batch.size, batch.log_id, rest)


async def _catch_up(
    service: FeedSource, feed: Feed, channel: Channel, after: int
) -> AsyncIterator[tuple[EventBatch, int]]:
    if channel is feed.resolved and feed.durable.find(after) is not None:
        # Accepted without a subscriber and soon durable: take them from the durable ring.
        position = feed.durable.find(after)
        assert position is not None, "just found"
        await feed.durable.wait(position)
        shared = feed.durable.at(position) if position < feed.durable.end else None
        if shared is not None:
            batch = _tail(shared, after)
            yield batch, max(after, batch.last_version)
        return
    until = service.durable_header()
    walker = await start_after(service.store, Leadership(service.claim, None, until), after)
    async for batch, reached in _read(service, walker, until, after):
        yield batch, reached
        if channel.find(reached) is not None:
            return


async def _history(
    service: FeedSource, older: OlderHistory | None, after: int, durable: bool
) -> AsyncIterator[tuple[EventBatch, int]]:
    """Everything after ``after`` in earlier leaderships, and on to the durable end of this one."""
    damage: CorruptData | Unavailable | None = None
    try:
        if older is not None:
            async for batch, reached in _older(service, older, after, durable):
                yield batch, reached
                after = reached
    except (CorruptData, Unavailable) as error:
        damage = error
    if after >= service.claim.last_version:
        return
    try:
        async for batch, reached in _of_log(service, after, durable):
            yield batch, reached
    except NotFound as gone:
        if damage is not None:
            raise damage from gone
        raise


async def _older(
    service: FeedSource, older: OlderHistory, after: int, durable: bool
) -> AsyncIterator[tuple[EventBatch, int]]:
    """Events of the older history after ``after``, at most up to the durable end of the log."""
    until = min(await older.through(service.log_id), service.durable_header().last_version)
    if until <= after:
        return
    back = await _rolled_back_to(service, older, after)
    if back is not None:
        roll_back_to, leader_id = back
        if durable:
            raise StartRolledBack(roll_back_to, leader_id)
        after = roll_back_to
        yield EventBatch(after, 64, service.log_id, (LeaderChange(after, leader_id),)), after
    async with aclosing(older.events(after, until)) as batches:
        async for batch in batches:
            _prove(batch.events, after, after)
            after = batch.last_version
            yield batch, after


async def _rolled_back_to(service: FeedSource, older: OlderHistory, after: int) -> tuple[int, str] | None:
    """Where the stream must go back to when a deposed leader assigned ``after``; None for most."""
    async for leadership in LeadershipWalk(service.store, service.claim, service.durable_header()):
        if leadership.rolls_back(after):
            return leadership.rolled_back_to, leadership.claim.leader_id.hex()
        if leadership.base <= after or leadership.is_first:
            return None
    # Retention removed the end of an older leadership: only the older history knows what came before.
    return await older.rolled_back_to(after)


async def _of_log(service: FeedSource, after: int, durable: bool) -> AsyncIterator[tuple[EventBatch, int]]:
    if after < service.truncated_through:
        raise NotFound(
            "the log was truncated past this version",
            code=Code.LOG_TRUNCATED,
            version=after,
            truncated_through=service.truncated_through,
        )
    leadership: Leadership | None = None
    async for leadership in LeadershipWalk(service.store, service.claim, service.durable_header()):
        if leadership.rolls_back(after):
            if durable:
                raise StartRolledBack(leadership.rolled_back_to, leadership.claim.leader_id.hex())
            leader_id = leadership.claim.leader_id.hex()
            change = LeaderChange(leadership.rolled_back_to, leader_id)
            log_id = (leadership.claim.parent_log_id or leadership.claim.log_id).hex()
            yield EventBatch(leadership.rolled_back_to, 64, log_id, (change,)), leadership.rolled_back_to
            after = leadership.rolled_back_to
        if leadership.base <= after:
            break
    assert leadership is not None, "a log has a genesis"
    walker = await start_after(service.store, leadership, after)
    async for batch, reached in _read(service, walker, service.durable_header(), after):
        yield batch, reached


async def _read(
    service: FeedSource, walker: ChainWalker, until: Header, after: int
) -> AsyncIterator[tuple[EventBatch, int]]:
    """Walk the chain and make events; each batch's last event is a checkpoint."""
    last_prev = after
    async for logged in follow(service.store, walker, until=until.slot):
        batch = EventBatch.of(logged.header, logged.everything(), len(logged.data))
        batch = _tail(batch, after)
        _prove(batch.events, last_prev, after)
        last_prev = after = max(after, batch.last_version)
        yield batch, after
    if after < until.last_version:
        # Only a claim, or rejected commits, up to here: a checkpoint moves the stream on.
        checkpoint = FeedCheckpoint(until.last_version, until.leader_id.hex())
        yield EventBatch(until.last_version, 64, until.log_id.hex(), (checkpoint,)), until.last_version


def _prove(events: Sequence[Event], last_prev: int, after: int) -> None:
    """Every transaction must follow the one before it."""
    for event in events:
        if isinstance(event, FeedTransaction):
            if event.prev_version > last_prev:
                raise InternalError("a subscriber would have missed a transaction", version=event.version, after=after)
            last_prev = event.version
