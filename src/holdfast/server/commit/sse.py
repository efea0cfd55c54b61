"""``GET /v1/subscribe``: the change stream as Server-Sent Events.

    event: log            no id                  data: log_id; the first event of every stream
    event: transaction    id: VERSION@LOG        data: version, prev_version, request_id, leader_id, timestamp,
                                                 operations
                          id: VERSION~LEADER@LOG when it is not durable yet
    event: published      id: VERSION@LOG        data: version, leader_id, timestamp, published; only with stores
                          no id                  a part of them, with ``more``
    event: checkpoint     id: VERSION@LOG        data: committed_version, leader_id; without id where durable=false
    event: leader_change  id: VERSION~LEADER@LOG data: roll_back_to, leader_id
    event: lagging        no id                  data: unsent_bytes; the stream ends after it
    event: error          no id                  data: as the body of an error; the stream ends after it

``after`` and ``Last-Event-ID`` take ids with and without the log's id; an id of another log is ``log_mismatch``. A
reader that has caught up may fall ``subscriber_unsent_bytes_max`` behind on its connection; then it gets ``lagging``,
is closed, and resumes by ``Last-Event-ID``. So does one whose client holds too much (``buffers``). One batch may be
larger than that: a reader within the bound gets it, and is measured by what follows. So a connection holds at most
three times the bound, and two such batches, of which the second ends it. Subscribers without a filter share one encoded
text of each batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.commit.format.transaction import Operation, RangeDelete
from holdfast.commit.reading.feed import Event, EventBatch, FeedCheckpoint, FeedTransaction, LeaderChange, StoresEvent
from holdfast.errors import Backpressure, Code, HoldfastError, InvalidRequest, PermissionDenied, Unavailable
from holdfast.server.commit.stream_source import READERS_MAX, READERS_OF_CLIENT, StreamSource
from holdfast.server.gateway import Gateway, ShownStores
from holdfast.server.http.answers import ClientTurns
from holdfast.server.http.auth import LAST_WORDS_SECONDS
from holdfast.server.http.buffers import MARK_BYTES
from holdfast.server.http.key_scope import EVERYTHING, NOTHING, KeyScope
from holdfast.server.http.requests import position_of
from holdfast.server.http.responses import LeaderHint, error_body
from holdfast.server.http.routes import (
    POSITION_SCHEMA,
    Call,
    Parameter,
    Route,
    ended_by_disconnect,
    key_parameters,
)
from holdfast.values import LogPosition
from holdfast.wire.log import (
    CheckpointData,
    LaggingData,
    LeaderChangeData,
    LogData,
    PublishedData,
    StreamMessage,
    TransactionData,
)

MEDIA_TYPE: Final = "text/event-stream"
KEEPALIVE: Final = b": keepalive\n\n"
KEEPALIVE_TICKS: Final = 8
FIRST_BATCH_SECONDS: Final = 0.25
"""How long the status waits for the first batch, or for an error of the start point."""
LINGER_SECONDS: Final = 30.0
PART_BYTES: Final = 16 << 20
"""A client takes events of 64 MiB by default, and one request may publish more."""
TEXT_TIMES_MAX: Final = 6
"""How much longer the text of a message may be than what is in it: a control character is six characters."""
MESSAGE_BYTES: Final = 64
"""About what names and numbers of a message add."""


class OpenBatches(Protocol):
    """The batches after a version, history first: ``commit.subscription.subscribe``, which ``server.run`` binds."""

    def __call__(self, after: int, durable: bool, with_segments: bool = True) -> AsyncIterator[EventBatch]:
        """Without segments history comes from the log alone: they have nothing of the stores."""
        ...


_encode = msgspec.json.Encoder().encode


@lru_cache(maxsize=1024)
def _timestamp(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Lets through what a transaction does to the keys in ``[begin, end)``. An absent ``end`` means to the last key."""

    begin: bytes
    end: bytes | None

    def operations(self, operations: Sequence[Operation]) -> list[Operation]:
        """The operations that touch the range, in order. A range delete is cut to it."""
        return [cut for operation in operations if (cut := self._cut(operation)) is not None]

    def _cut(self, operation: Operation) -> Operation | None:
        begin, end = self.begin, self.end
        if not isinstance(operation, RangeDelete):
            return operation if begin <= operation.key and (end is None or operation.key < end) else None
        low, high = max(begin, operation.begin), operation.end
        if high is None or (end is not None and end < high):
            high = end
        if high is not None and low >= high:
            return None
        return operation if (low, high) == (operation.begin, operation.end) else RangeDelete(low, high)


def encode_event(
    event: Event,
    log_id: str,
    *,
    durable_stream: bool,
    published: Sequence[StreamMessage] | UnsetType = UNSET,
) -> bytes:
    """The text of one event; ``log_id`` is that of the object that holds it."""
    log = log_id.encode()
    match event:
        case FeedTransaction():
            data = _encode(
                TransactionData(
                    event.version,
                    event.prev_version,
                    event.request_id,
                    event.leader_id,
                    _timestamp(event.time_ms),
                    event.operations,
                    published,
                )
            )
            if event.durable:
                return b"id: %d@%b\nevent: transaction\ndata: %b\n\n" % (event.version, log, data)
            leader = event.leader_id.encode()
            return b"id: %d~%b@%b\nevent: transaction\ndata: %b\n\n" % (event.version, leader, log, data)
        case StoresEvent():
            if not published:
                return b""
            texts: list[bytes] = []
            *earlier, last = _parts(published)
            for part in earlier:  # without an id: a reader that resumes gets the whole version again
                data = _encode(PublishedData(event.version, event.leader_id, _timestamp(event.time_ms), part, True))
                texts.append(b"event: published\ndata: %b\n\n" % data)
            data = _encode(PublishedData(event.version, event.leader_id, _timestamp(event.time_ms), last))
            texts.append(b"id: %d@%b\nevent: published\ndata: %b\n\n" % (event.version, log, data))
            return b"".join(texts)
        case FeedCheckpoint(committed_version=version, leader_id=leader_id):
            data = _encode(CheckpointData(version, leader_id))
            # A stream that is ahead of durability cannot resume from a checkpoint.
            identity = b"id: %d@%b\n" % (version, log) if durable_stream else b""
            return b"%bevent: checkpoint\ndata: %b\n\n" % (identity, data)
        case LeaderChange(roll_back_to=version, leader_id=leader_id):
            data = _encode(LeaderChangeData(version, leader_id))
            return b"id: %d~%b@%b\nevent: leader_change\ndata: %b\n\n" % (version, leader_id.encode(), log, data)


def _parts(published: Sequence[StreamMessage]) -> list[Sequence[StreamMessage]]:
    """The messages in parts of about ``PART_BYTES`` of text, each with at least one message."""
    if sum(map(_size, published)) <= PART_BYTES // TEXT_TIMES_MAX:
        return [published]
    parts: list[Sequence[StreamMessage]] = []
    part: list[StreamMessage] = []
    size = 0
    for message in published:
        length = len(_encode(message))
        if part and size + length > PART_BYTES:
            parts.append(part)
            part, size = [], 0
        part.append(message)
        size += length
    return [*parts, part]


def _size(message: StreamMessage) -> int:
    fields = sum(len(name) + (len(value) if isinstance(value, str) else 4) for name, value in message.fields.items())
    return MESSAGE_BYTES + len(message.body or b"") + len(message.key or "") + fields


def encode_batch(batch: EventBatch, *, durable_stream: bool) -> bytes:
    """The text of a batch, made when the first subscriber needs it and shared by all of the same kind."""
    if batch.encoded is None:
        batch.encoded = {}
    text = batch.encoded.get(durable_stream)
    if text is None:
        parts = [encode_event(event, batch.log_id, durable_stream=durable_stream) for event in batch.events]
        text = batch.encoded[durable_stream] = b"".join(parts)
    return text


@dataclass(frozen=True, slots=True)
class Selection:
    """What one stream shows: the transactions that touch ``keys``, all for None; what was published in ``stores``."""

    keys: KeyFilter | None
    stores: ShownStores | None

    def encode(self, batch: EventBatch, *, durable_stream: bool, scope: KeyScope = EVERYTHING) -> bytes:
        """The text of what is selected. Checkpoints always pass, so progress is visible. Raises: CorruptData.

        ``scope``: the reader's. Ids that it does not own are left out.
        """
        if self.keys is None and self.stores is None:
            return encode_batch(batch, durable_stream=durable_stream)
        parts: list[bytes] = []
        skipped: FeedTransaction | None = None
        for event in batch.events:
            published: list[StreamMessage] | UnsetType = UNSET
            if self.stores is not None and isinstance(event, FeedTransaction | StoresEvent):
                published = self.stores.messages(_records_of(event)) or UNSET
            if self.keys is not None and isinstance(event, FeedTransaction):
                kept = self.keys.operations(event.operations)
                if not kept and not published:
                    skipped = event
                    continue
                name = event.request_id
                event = msgspec.structs.replace(
                    event, operations=kept, request_id=name if name is not None and scope.owns(name) else None
                )
            skipped = None
            text = encode_event(event, batch.log_id, durable_stream=durable_stream, published=published)
            parts.append(text)
        if skipped is not None and skipped.durable:
            checkpoint = FeedCheckpoint(skipped.version, skipped.leader_id)
            parts.append(encode_event(checkpoint, batch.log_id, durable_stream=durable_stream))
        return b"".join(parts)


def _records_of(event: FeedTransaction | StoresEvent) -> list[bytes]:
    if isinstance(event, StoresEvent):
        return [record for _, record in event.records]
    return [] if event.record is None else [event.record]


class _Subscriber:
    """One open stream. ``quiet_ticks`` counts ticks of the keepalive clock since something was written."""

    __slots__ = (
        "_client", "_end_lagging", "_generation", "_held", "_is_counted", "_leader", "_scope", "_stores", "call",
        "connection", "ending", "has_ended", "quiet_ticks", "waiting", "writing",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        stores: ShownStores | None,
        leader: Callable[[], LeaderHint],
        end_lagging: Callable[[_Subscriber], asyncio.Task[None]],
    ) -> None:
        self.call = call
        self.connection = call.connection
        self._client = call.client
        self._end_lagging = end_lagging
        self._is_counted = False
        self._held = call.held_right()
        self._stores = stores
        self._leader = leader
        self._scope, self._generation = NOTHING, -1
        self.quiet_ticks = 0
        self.waiting = 0
        """Bytes that are to be written."""
        self.writing = False
        self.has_ended = False
        self.ending: asyncio.Task[None] | None = None

    def has_room(self, size: int) -> bool:
        """Whether this many more bytes may be written: False where the stream had to end for them."""
        self.waiting = size
        held = self.connection.unsent_bytes() + size
        if held > MARK_BYTES or self._is_counted:
            self._is_counted = True
            self.call.state.buffers.count(self._client, self, held)
        return not self.has_ended

    def discard(self) -> None:
        """It holds nothing any more."""
        if self._is_counted:
            self.call.state.buffers.discard(self._client, self)

    def held_bytes(self) -> int:
        """See ``Buffer``."""
        return self.connection.unsent_bytes() + self.waiting

    def end_lagging(self, problem: Unavailable) -> None:
        """See ``Buffer``."""
        del problem  # the event of a stream that lags says it
        self.ending = self._end_lagging(self)

    def abort(self) -> None:
        """See ``Buffer``."""
        self.connection.abort()

    def problem(self) -> HoldfastError | None:
        """None while the caller may read these keys and stores, else the error."""
        problem = self._held.problem()
        return self._stores.problem() if problem is None and self._stores is not None else problem

    def scope(self) -> KeyScope:
        """The keys that the caller's token is for, while ``problem`` is None."""
        generation = self.call.state.authenticator.generation
        if generation != self._generation:
            self._scope, self._generation = self.call.scope, generation
        return self._scope

    async def end_for(self, problem: HoldfastError) -> None:
        """See ``OpenAct``."""
        self.has_ended = True
        self.connection.abort_within(LAST_WORDS_SECONDS)
        try:
            if not self.writing:
                await self.say(problem, LAST_WORDS_SECONDS)
        finally:
            self.connection.close()

    async def say(self, error: HoldfastError, seconds: float = LINGER_SECONDS) -> None:
        """Say why the stream ends: a reader that meets the same damage again and again would never know it."""
        text = b"event: error\ndata: %b\n\n" % _encode(error_body(error, self._leader()))
        with contextlib.suppress(TimeoutError):  # a reader that does not read is cut off
            async with asyncio.timeout(seconds):
                await self.call.write(text)
                await self.call.finish()


class _Writer:
    """Writes the text of a stream. A reader that has caught up may be ``bytes_max`` behind, but for one larger text."""

    def __init__(self, subscriber: _Subscriber, bytes_max: int) -> None:
        self._subscriber = subscriber
        self._bytes_max = bytes_max
        self.caught_up = False
        self._written = self._counted_from = 0
        """Bytes of this stream; only those after the second make a reader lag."""

    async def write(self, text: bytes) -> bool:
        """False: the stream ended instead, because its client holds too much."""
        subscriber, size, bytes_max = self._subscriber, len(text), self._bytes_max
        self._written += size
        if size > bytes_max and self.caught_up and subscriber.connection.unsent_bytes() <= bytes_max:
            self._counted_from = self._written
            subscriber.connection.bound_unsent_bytes(4 * bytes_max + size)
        if not text:
            return True
        subscriber.quiet_ticks = 0
        if not subscriber.has_room(size):
            return False
        subscriber.writing = True
        await subscriber.call.write(text)
        subscriber.writing, subscriber.waiting = False, 0
        return True

    def measure(self) -> None:
        """The reader has caught up: from here on a slow one is measured, not waited for."""
        self.caught_up = True
        self._counted_from = self._written
        connection = self._subscriber.connection
        connection.bound_unsent_bytes(2 * self._bytes_max + connection.unsent_bytes())

    def is_lagging(self) -> bool:
        """Whether the reader is too far behind."""
        bytes_max = self._bytes_max
        return (
            self.caught_up
            and self._written - self._counted_from > bytes_max
            and self._subscriber.connection.unsent_bytes() > bytes_max
        )


class Subscriptions:
    """All open streams of a server."""

    def __init__(self, gateway: Gateway, open_batches: OpenBatches) -> None:
        self._gateway = gateway
        self._open_batches = open_batches
        self.open: set[_Subscriber] = set()
        self.lagged = 0
        self.bytes_sent = 0
        self._keepalives: asyncio.Task[None] | None = None
        self._turns = ClientTurns(READERS_MAX, READERS_OF_CLIENT)
        self._ending: set[asyncio.Task[None]] = set()

    def unsent_bytes_max(self) -> int:
        """How far the slowest reader is behind on its connection, in bytes."""
        return max((subscriber.connection.unsent_bytes() for subscriber in self.open), default=0)

    async def stream(self, call: Call) -> None:
        """Answer one subscription until it ends."""
        start, durable, selection = self._parameters(call)
        source = StreamSource(
            lambda after: self._open_batches(after, durable=durable, with_segments=selection.stores is None),
            self._gateway.version_of(start),
            self._turns,
            call.client,
            self._is_recent,
        )
        log_id = self._gateway.log_id
        subscriber = _Subscriber(call, selection.stores, lambda: self._gateway.leader, self._end_soon)
        self._keep_alive()
        try:
            with ended_by_disconnect(call):
                try:
                    await self._run(call, subscriber, source, log_id, durable, selection)
                except HoldfastError as error:
                    if call.started and isinstance(error, PermissionDenied):
                        await subscriber.end_for(error)
                    elif call.started:
                        await subscriber.say(error)
                    raise
        finally:
            self.open.discard(subscriber)
            self._gateway.rights.discard(subscriber)
            subscriber.discard()
            await source.close()

    async def _run(
        self,
        call: Call,
        subscriber: _Subscriber,
        source: StreamSource,
        log_id: str,
        durable: bool,
        selection: Selection,
    ) -> None:
        # An error of the start point comes before the first batch, and belongs into the status.
        first = asyncio.ensure_future(source.next())
        try:
            await asyncio.wait({first}, timeout=FIRST_BATCH_SECONDS)
            if first.done():
                first.result()
            await call.start(200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, MEDIA_TYPE)
            if call.method == "HEAD":
                await call.finish()
                return
            self.open.add(subscriber)
            self._gateway.rights.add(subscriber)
            if (problem := subscriber.problem()) is not None:
                raise problem  # the tokens were replaced, and those that were open compared, since the head came
            await call.write(b"event: log\ndata: %b\n\n" % _encode(LogData(log_id)))
            batch = await first
        finally:
            # The batches cannot be closed while somebody still waits for the next one.
            first.cancel()
            await asyncio.wait({first})
        del first  # it has the first batch
        connection = call.connection
        writer = _Writer(subscriber, self._gateway.limits.subscriber_unsent_bytes_max)
        while batch is not None:
            if subscriber.has_ended:
                await self._ended(subscriber)
                return
            if (problem := subscriber.problem()) is not None:
                subscriber.has_ended = True
                raise problem
            text = selection.encode(batch, durable_stream=durable, scope=subscriber.scope())
            is_live, batch = self._is_live(batch), None
            self.bytes_sent += len(text)
            if not await writer.write(text):
                await self._ended(subscriber)
                return
            del text  # while its reader takes nothing, a stream holds nothing twice
            if writer.is_lagging():
                await self._end_lagging(call, connection.unsent_bytes())
                return
            if is_live and not writer.caught_up:
                source.caught_up()
                writer.measure()
            elif not writer.caught_up:
                await source.wait_for(connection)
            try:
                batch = await source.next()
            except Backpressure:
                await self._end_lagging(call, connection.unsent_bytes())
                return
        await call.finish()
        connection.close()

    def _is_live(self, batch: EventBatch) -> bool:
        reader = self._gateway.reader
        return reader is not None and batch.last_version >= reader.local_version()

    def _is_recent(self, after: int) -> bool:
        reader = self._gateway.reader
        return reader is not None and reader.feed.durable.find(after) is not None

    def _end_soon(self, subscriber: _Subscriber) -> asyncio.Task[None]:
        """End a stream whose client holds too much: see ``Buffers``."""
        subscriber.has_ended = True
        call = subscriber.call
        if subscriber.writing:  # nothing can be said: it does not take what is being written
            call.connection.close_within(LAST_WORDS_SECONDS)
        task = asyncio.ensure_future(self._end_lagging(call, call.connection.unsent_bytes(), LAST_WORDS_SECONDS))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    @staticmethod
    async def _ended(subscriber: _Subscriber) -> None:
        """Return when it was said why the stream has ended."""
        if subscriber.ending is not None:
            await asyncio.wait({subscriber.ending})

    async def _end_lagging(self, call: Call, unsent: int, linger_seconds: float = LINGER_SECONDS) -> None:
        self.lagged += 1
        connection = call.connection
        if connection.is_over:
            return
        try:
            async with asyncio.timeout(linger_seconds):  # one large batch may leave more unsent than writers wait for
                await call.write(b"event: lagging\ndata: %b\n\n" % _encode(LaggingData(unsent)))
                await call.finish()
        except TimeoutError:
            linger_seconds = 0.0
        connection.close_within(linger_seconds)

    def _parameters(self, call: Call) -> tuple[LogPosition, bool, Selection]:
        after = call.position("after") or LogPosition(0)
        last_event_id = call.header("last-event-id")
        if last_event_id:
            after = position_of("Last-Event-ID", last_event_id)
        durable = call.switch("durable", default=True)
        wanted = call.key_range()
        stores = self._stores(call, durable=durable)
        return after, durable, Selection(None if wanted is None else KeyFilter(*wanted), stores)

    def _stores(self, call: Call, *, durable: bool) -> ShownStores | None:
        names = call.text("stores")
        if names is None:
            return None
        if not durable:
            raise InvalidRequest("stores is for streams of what is durable, without durable=false")
        return self._gateway.shown_stores(call.authorization, names.split(","))

    # Keepalive: one task for all streams, so that an event costs no timer.

    def _keep_alive(self) -> None:
        if self._keepalives is None or self._keepalives.done():
            self._keepalives = self._gateway.loop.create_task(self._send_keepalives())

    async def _send_keepalives(self) -> None:
        tick = self._gateway.limits.keepalive_interval_seconds / KEEPALIVE_TICKS
        while True:
            await asyncio.sleep(tick)
            for subscriber in list(self.open):
                subscriber.quiet_ticks += 1
                if subscriber.quiet_ticks >= KEEPALIVE_TICKS and not subscriber.writing:
                    subscriber.quiet_ticks = 0
                    if subscriber.connection.unsent_bytes() == 0:
                        await subscriber.call.write(KEEPALIVE)

    async def close(self) -> None:
        """End all streams; their readers resume elsewhere by ``Last-Event-ID``."""
        if self._keepalives is not None:
            self._keepalives.cancel()
        for subscriber in list(self.open):
            subscriber.connection.close()


def subscribe_route(subscriptions: Subscriptions) -> Route:
    """The row of the route table."""
    return Route(
        method="GET", path="/v1/subscribe", keys=Call.whole_range,
        summary="The change stream: history, then live events, without gap or repeat",
        stream=subscriptions.stream, tag="stream", answers={MEDIA_TYPE: None},
        parameters=(
            Parameter(
                "after", "query", POSITION_SCHEMA, "Send what came after this version or id; the whole log without it"
            ),
            Parameter(
                "durable", "query", {"type": "boolean", "default": True},
                "false: as soon as resolved, checkpoints follow",
            ),
            *key_parameters("begin", "Only keys at or above this one"),
            *key_parameters("end", "Only keys below this one"),
            *key_parameters("prefix", "Only keys that start so; not together with begin and end"),
            Parameter(
                "stores", "query", {"type": "string", "examples": ["orders,invoices"]},
                "Names with commas: also what is published in these stores, which live in the log",
            ),
            Parameter("Last-Event-ID", "header", POSITION_SCHEMA, "Resume after this event; wins over after"),
        ),
        codes=(
            Code.BAD_BASE64, Code.BAD_RANGE, Code.FUTURE_VERSION, Code.LOG_TRUNCATED, Code.ROLLED_BACK,
            Code.LOG_MISMATCH, Code.STORES_NOT_IN_LOG, Code.NOT_FOUND, Code.OVERLOADED, Code.NOT_LEADER,
            Code.LEADER_CHANGED, Code.STORE_UNAVAILABLE,
        ),
    )  # fmt: skip
