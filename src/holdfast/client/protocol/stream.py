"""Following the change stream: decoding, proof that no event is missing, reconnecting; and loading a snapshot.

The proof: every transaction event names the version of the committed transaction before it. On an unfiltered stream
this version must be that of the last transaction delivered. The first transaction must name a version that is at or
below the start point. Otherwise the reader stops with ``CorruptData``, which names the versions. A filtered stream
leaves transactions out, so only the order is checked.

When the connection breaks, the stream is opened again after the last delivered event (``Last-Event-ID``). The waits
between attempts are jittered and double until something arrives; duplicate events are dropped. The first response
names the log. From then on every start point includes the id of this log, so another log refuses it
(``log_mismatch``). With ``durable=False`` delivered events may be taken back: after ``RolledBack(to)`` the proof
continues from the newest transaction that is left.

A snapshot is every row of one version, by key, over as many connections as it takes. The first answer names it. When a
connection breaks, the next one asks for the same snapshot after the last whole row. The number of rows proves that none
is missing: an answer that ends early is only a broken connection. Its last line may say why it ended.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET

from holdfast.client.protocol.effects import (
    Checkpoint,
    Chunk,
    DeliverEvents,
    DeliverRows,
    Event,
    Failed,
    Open,
    Opened,
    Procedure,
    PublishedEvent,
    Receive,
    Request,
    Response,
    RolledBack,
    TransactionEvent,
)
from holdfast.client.protocol.endpoint import Endpoint
from holdfast.client.protocol.log_operations import REPEATABLE_CODES
from holdfast.client.protocol.messages import base64url, error_of, query_of, service_error
from holdfast.client.protocol.retry_budget import RetryBudget, Session, pause
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest
from holdfast.values import LogPosition
from holdfast.wire.log import (
    SNAPSHOT_LAST_TRANSACTION,
    SNAPSHOT_LOG_ID,
    SNAPSHOT_ROWS,
    SNAPSHOT_VERSION,
    CheckpointData,
    ErrorBody,
    Found,
    ItemError,
    LeaderChangeData,
    LogData,
    PublishedData,
    TransactionData,
)

REMEMBERED_VERSIONS_MAX: Final = 1 << 20
REPEATABLE_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})

_TRANSACTION: Final = msgspec.json.Decoder(TransactionData)
_PUBLISHED: Final = msgspec.json.Decoder(PublishedData)
_CHECKPOINT: Final = msgspec.json.Decoder(CheckpointData)
_LOG: Final = msgspec.json.Decoder(LogData)
_ERROR: Final = msgspec.json.Decoder(ErrorBody)
_LEADER_CHANGE: Final = msgspec.json.Decoder(LeaderChangeData)


@dataclass(frozen=True, slots=True)
class Filter:
    """What a stream carries: every key unless a bound is given, and what is published in ``stores``.

    ``prefix`` excludes the other two bounds.
    """

    begin: bytes | None = None
    end: bytes | None = None
    prefix: bytes | None = None
    stores: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.prefix is not None and (self.begin is not None or self.end is not None):
            raise InvalidRequest("a filter is either a prefix or a range")

    @property
    def everything(self) -> bool:
        """No transaction is left out."""
        return not self.begin and self.end is None and not self.prefix


class ServerSentEvents:
    """Bytes in, (event, id, data) out. Comments and unknown fields are dropped; lines end with LF or CRLF."""

    def __init__(self, event_bytes_max: int) -> None:
        self._event_bytes_max = event_bytes_max
        self._line: list[bytes] = []
        self._kind = b""
        self._id = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[tuple[bytes, bytes, bytes]]:
        """The events completed by these bytes. Raises: CorruptData when one exceeds the bound."""
        if b"\n" not in data:  # a piece of a long line: joined once, when its end is here
            self._line.append(data)
            self._size += len(data)
            self._check_size()
            return []
        if self._line:
            self._size -= sum(map(len, self._line))
            data = b"".join((*self._line, data))
            self._line.clear()
        lines = data.split(b"\n")
        rest = lines.pop()
        events: list[tuple[bytes, bytes, bytes]] = []
        for raw in lines:
            line = raw[:-1] if raw.endswith(b"\r") else raw
            if not line:
                if self._data:
                    events.append((self._kind, self._id, b"\n".join(self._data)))
                self._kind, self._data, self._size = b"", [], 0
                continue
            name, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if name == b"data":
                self._data.append(value)
                self._size += len(value)
            elif name == b"event":
                self._kind = value
            elif name == b"id":
                self._id = value
        if rest:
            self._line.append(rest)
            self._size += len(rest)
        self._check_size()
        return events

    def _check_size(self) -> None:
        if self._size > self._event_bytes_max:
            raise CorruptData(
                "an event exceeds the bound",
                hint="increase event_bytes_max in the ClientOptions",
                event_bytes_max=self._event_bytes_max,
            )


class Continuity:
    """The progress of a stream, and whether the next event follows it.

    ``position``: everything at or below was delivered or filtered out. ``log_id``: its log, None while not known.
    ``last_transaction``: the newest transaction delivered and not taken back, when known.
    """

    def __init__(self, after: int, *, durable: bool, filtered: bool, log_id: str | None = None) -> None:
        self.position = after
        self.log_id = log_id
        self._start = after
        self.last_transaction: int | None = None
        self._last_published = 0
        self._part_version = 0  # the version whose messages come in parts
        self._part_messages = 0  # how many of them were delivered
        self._part_received = 0  # how many came on this connection
        self.committed_version = 0
        self.last_id = ""
        self._durable = durable
        self._filtered = filtered
        self._final_transaction: int | None = None  # the newest one that no rollback can reach
        self._not_durable_yet: deque[int] = deque()

    @property
    def proves_completeness(self) -> bool:
        """Whether a missing transaction would be noticed."""
        return not self._filtered

    def reopened(self) -> None:
        """The stream was opened, perhaps again: it begins after ``position``."""
        self._part_received = 0

    def accept(self, kind: bytes, event_id: bytes, data: bytes) -> Event | None:
        """The event to deliver, or None when it was delivered before. Raises: CorruptData."""
        event: Event | None
        log_id = event_id.rpartition(b"@")[2].decode("latin-1") if b"@" in event_id else self.log_id
        try:
            match kind:
                case b"log":
                    named = _LOG.decode(data).log_id
                    self.log_id = self.log_id or named
                    return None
                case b"transaction":
                    event = self._transaction(_TRANSACTION.decode(data), b"~" not in event_id, log_id)
                case b"published":
                    event = self._published(_PUBLISHED.decode(data), log_id)
                case b"checkpoint":
                    event = self._checkpoint(_CHECKPOINT.decode(data), log_id)
                case b"leader_change":
                    event = self._leader_change(_LEADER_CHANGE.decode(data), log_id)
                case _:
                    return None
        except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or not a time
            raise CorruptData("an event is unreadable", event=kind.decode("latin-1"), after=self.position) from error
        if event is not None:
            self.log_id = log_id
        if isinstance(event, PublishedEvent) and event.more:
            pass  # the stream is opened again before this version
        elif isinstance(event, TransactionEvent | PublishedEvent):
            self.last_id = event_id.decode("latin-1")
        elif event is not None:
            # After a checkpoint or a rollback the position is newer than the last transaction's id.
            self.last_id = "" if self.position != self.last_transaction else self.last_id
        return event

    def _transaction(self, data: TransactionData, is_durable: bool, log_id: str | None) -> TransactionEvent | None:
        time_ms = _milliseconds(data.timestamp)
        if not data.prev_version < data.version:
            raise CorruptData("an event does not follow itself", version=data.version, prev_version=data.prev_version)
        if data.version <= self.position:
            if self.last_transaction is not None and data.version <= self.last_transaction:
                return None  # delivered before a reconnect
            if data.version <= self._start:
                return None
            raise CorruptData(
                "a transaction arrived after the stream said it was past it", version=data.version, past=self.position
            )
        if not self._filtered:
            expected = self.last_transaction
            if expected is not None and data.prev_version != expected:
                raise self._gap(data, expected)
            if expected is None and data.prev_version > self.position:
                raise self._gap(data, self.position)
        self.last_transaction = self.position = data.version
        if is_durable:
            self.committed_version = max(self.committed_version, data.version)
            self._final_transaction = data.version
        else:
            self._not_durable_yet.append(data.version)
            if len(self._not_durable_yet) > REMEMBERED_VERSIONS_MAX:
                self._final_transaction = self._not_durable_yet.popleft()
        return TransactionEvent(
            data.version,
            data.prev_version,
            data.request_id,
            data.leader_id,
            time_ms,
            tuple(data.operations),
            is_durable,
            log_id,
            () if data.published is UNSET else tuple(data.published),
        )

    def _gap(self, data: TransactionData, expected: int) -> CorruptData:
        return CorruptData(
            "transactions are missing from the stream",
            version=data.version,
            prev_version=data.prev_version,
            last_delivered=expected,
            hint="do not apply what follows; read the log from the last delivered version",
        )

    def _published(self, data: PublishedData, log_id: str | None) -> PublishedEvent | None:
        if data.version <= self.position:
            if data.version <= max(self._start, self._last_published):
                return None  # delivered before a reconnect
            raise CorruptData(
                "messages arrived after the stream said it was past them", version=data.version, past=self.position
            )
        if data.version != self._part_version:
            self._part_version, self._part_messages, self._part_received = data.version, 0, 0
        # Parts that were delivered before a reconnect come again.
        messages = tuple(data.published)[max(0, self._part_messages - self._part_received) :]
        self._part_received += len(data.published)
        self._part_messages = max(self._part_messages, self._part_received)
        if not data.more:
            self._last_published = self.position = data.version
            self.committed_version = max(self.committed_version, data.version)
        elif not messages:
            return None
        time_ms = _milliseconds(data.timestamp)
        return PublishedEvent(data.version, data.leader_id, time_ms, messages, log_id, data.more)

    def _checkpoint(self, data: CheckpointData, log_id: str | None) -> Checkpoint | None:
        if data.committed_version < self.committed_version:
            return None
        self.committed_version = data.committed_version
        while self._not_durable_yet and self._not_durable_yet[0] <= data.committed_version:
            self._final_transaction = self._not_durable_yet.popleft()
        if self._durable:
            self.position = max(self.position, data.committed_version)
        return Checkpoint(data.committed_version, data.leader_id, log_id)

    def _leader_change(self, data: LeaderChangeData, log_id: str | None) -> RolledBack | None:
        if data.roll_back_to < self.committed_version:
            raise CorruptData(
                "durable transactions were rolled back", roll_back_to=data.roll_back_to, durable=self.committed_version
            )
        if self._durable:
            return None
        while self._not_durable_yet and self._not_durable_yet[-1] > data.roll_back_to:
            self._not_durable_yet.pop()
        if self.last_transaction is not None and self.last_transaction > data.roll_back_to:
            left = self._not_durable_yet[-1] if self._not_durable_yet else self._final_transaction
            self.last_transaction = left if left is not None and left <= data.roll_back_to else None
        self.position = min(self.position, data.roll_back_to)
        return RolledBack(data.roll_back_to, data.leader_id, log_id)


def _milliseconds(timestamp: str) -> int:
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


class PendingEvents:
    """Events that wait for the caller, so that no event is lost when the caller stops in the middle of a batch."""

    def __init__(self, continuity: Continuity) -> None:
        self._continuity = continuity
        self._waiting: deque[Event] = deque()
        self._position = LogPosition(continuity.position, continuity.log_id)

    @property
    def position(self) -> LogPosition:
        """Everything at or below was handed out."""
        continuity = self._continuity
        return self._position if self._waiting else LogPosition(continuity.position, continuity.log_id)

    def offer(self, events: tuple[Event, ...]) -> None:
        """Events that were proved to come next."""
        self._waiting.extend(events)

    def take_one(self, *, checkpoints: bool) -> Event | None:
        """The next event, or None when there is none yet."""
        while self._waiting:
            event = self._waiting.popleft()
            if isinstance(event, PublishedEvent) and event.more:
                pass  # not all of this version was handed out
            elif isinstance(event, TransactionEvent | PublishedEvent):
                self._position = LogPosition(event.version, event.log_id)
            elif isinstance(event, RolledBack):
                self._position = LogPosition(min(self._position.version, event.to), event.log_id)
            if checkpoints or not isinstance(event, Checkpoint):
                return event
        return None

    def take_all(self) -> tuple[Event, ...]:
        """Everything that waits, checkpoints included."""
        events = tuple(self._waiting)
        self._waiting.clear()
        self._position = self.position
        return events


def _stream_request(continuity: Continuity, keys: Filter, *, durable: bool) -> Request:
    bounds = (("begin", keys.begin), ("end", keys.end), ("prefix", keys.prefix))
    query = query_of(
        after=LogPosition(continuity.position, continuity.log_id),
        durable="true" if durable else "false",
        stores=",".join(keys.stores) if keys.stores else None,  # an empty name is refused by the service
        **{name: base64url(bound) for name, bound in bounds if bound},
    )
    headers: tuple[tuple[str, str], ...] = (("accept", "text/event-stream"),)
    if continuity.last_id:
        headers += (("last-event-id", continuity.last_id),)
    return Request("GET", f"/v1/subscribe{query}", b"", headers)


def follow(session: Session, continuity: Continuity, keys: Filter, *, durable: bool, now_ms: float) -> Procedure[None]:
    """Deliver events without an end. ``continuity`` is the progress, readable between two deliveries.

    Raises: CorruptData (a gap, an unreadable event, damage in the log); NotFound (log_truncated); InvalidRequest
    (rolled_back, log_mismatch and others, bad_configuration where no endpoint is usable); PermissionDenied; Unavailable
    when nothing arrived for ``stream_give_up_after_ms``.
    """
    options = session.options
    budget = RetryBudget(session, now_ms, options.stream_give_up_after_ms)
    while True:
        endpoint = session.route.current
        reply = yield Open(endpoint, _stream_request(continuity, keys, durable=durable), options.request_timeout_ms)
        if isinstance(reply, Opened):
            heard, reply = yield from _read(session, continuity)
            if heard:
                budget = RetryBudget(session, reply.now_ms, options.stream_give_up_after_ms)
        assert isinstance(reply, Response | Failed), "the reply to Open is Opened, Response or Failed"
        yield from pause_or_give_up(session, budget, endpoint, reply, continuity.position)


def pause_or_give_up(
    session: Session, budget: RetryBudget, endpoint: Endpoint, reply: Response | Failed, position: int
) -> Procedure[None]:
    """Wait before a stream that broke, or could not be opened, is opened again. Raises: why it never will be."""
    refusal: HoldfastError | None = None
    if isinstance(reply, Response):
        error = service_error(reply)
        repeat = error.code in REPEATABLE_CODES if error is not None else reply.status in REPEATABLE_STATUSES
        refusal = session.refused(error, reply.status)
        if not repeat or budget.exhausted(reply.now_ms):
            raise refusal
    else:
        budget.missed(endpoint, reply)
        if budget.exhausted(reply.now_ms):
            raise budget.unreachable("the stream cannot be opened", endpoint, reply, position)
    yield from pause(budget, endpoint, reply, refusal)


def _read(session: Session, continuity: Continuity) -> Procedure[tuple[bool, Failed]]:
    """Deliver what the open stream brings until it ends; whether anything came, and why it ended."""
    decoder = ServerSentEvents(session.options.event_bytes_max)
    continuity.reopened()
    heard = False
    while True:
        reply = yield Receive(session.options.stream_silence_ms)
        if isinstance(reply, Failed):
            return heard, reply
        assert isinstance(reply, Chunk), "the reply to Receive is Chunk or Failed"
        heard = True
        ended = ""
        events: list[Event] = []
        try:
            for kind, event_id, data in decoder.feed(reply.data):
                if kind == b"lagging":
                    ended = "the service said that this reader is lagging"
                    break
                if kind == b"error":
                    ended = _why_it_ended(data)
                    break
                event = continuity.accept(kind, event_id, data)
                if event is not None:
                    events.append(event)
        except HoldfastError:
            if events:  # events proved before the damage are delivered before the error
                yield DeliverEvents(tuple(events))
            raise
        if events:
            yield DeliverEvents(tuple(events))
        if ended:
            return True, Failed(reply.now_ms, False, ended)


def _why_it_ended(data: bytes) -> str:
    """The same as ``why_a_stream_ended``, of an event."""
    try:
        return why_a_stream_ended(_ERROR.decode(data))
    except msgspec.DecodeError:
        return UNKNOWN_ERROR


UNKNOWN_ERROR: Final = "the service ended the stream with an error that this client does not know"


def why_a_stream_ended(error: ErrorBody) -> str:
    """Why the service ended a stream that may be opened again. Raises: the service's error, if it stands."""
    try:
        code = Code(error.code)
    except ValueError:
        return UNKNOWN_ERROR
    if code not in REPEATABLE_CODES:
        raise error_of(error, 500)
    return f"the service ended the stream: {error.message or code.value}"


SNAPSHOT_ATTEMPTS: Final = 3
"""How many snapshots are begun, where each was removed before its end."""
_ROWS: Final = msgspec.json.Decoder(Found)


_ITEM_ERROR: Final = msgspec.json.Decoder(ItemError)
_ERROR_BEGINS: Final = b'{"error":'


def _error_of_line(line: bytes) -> ErrorBody:
    try:
        return _ITEM_ERROR.decode(line).error
    except msgspec.DecodeError as error:
        raise CorruptData("the last line of a snapshot cannot be read") from error


class SnapshotProgress:
    """What was received of one snapshot. ``position`` is None before the first answer."""

    def __init__(self) -> None:
        self.position: LogPosition | None = None
        self.last_transaction = 0
        self.rows = 0
        self._received = 0
        self._last_key: bytes | None = None
        self._rest = b""
        self.why_it_ended: ErrorBody | None = None
        """What the service said at the end of the answer."""

    @property
    def is_complete(self) -> bool:
        """Whether every row was received."""
        return self.position is not None and self._received == self.rows

    def begin(self, opened: Opened) -> None:
        """A connection begins to send. Raises: CorruptData when it is not the snapshot that was asked for."""
        self._rest, self.why_it_ended = b"", None
        headers = opened.headers
        try:
            version, last, rows = (
                int(headers[name.lower()]) for name in (SNAPSHOT_VERSION, SNAPSHOT_LAST_TRANSACTION, SNAPSHOT_ROWS)
            )
            position = LogPosition(version, headers[SNAPSHOT_LOG_ID.lower()])
        except (KeyError, ValueError) as error:
            raise CorruptData("a snapshot has a head that cannot be read", field=str(error)) from error
        if self.position is None:
            self.position, self.last_transaction, self.rows = position, last, rows
        elif (position, last, rows) != (self.position, self.last_transaction, self.rows):
            raise CorruptData("a snapshot was answered with another one", asked=self.position, received=position)

    def take(self, data: bytes) -> list[Found]:
        """The rows that these bytes complete. Raises: CorruptData."""
        lines, end, rest = data.rpartition(b"\n")
        if not end:
            self._rest += rest
            return []
        whole = self._rest + lines
        begun, _, last_line = whole.rpartition(b"\n")
        if last_line.startswith(_ERROR_BEGINS):
            whole, self.why_it_ended = begun, _error_of_line(last_line)
        try:
            rows = _ROWS.decode_lines(whole)
        except msgspec.DecodeError as error:
            raise CorruptData("a row of a snapshot cannot be read", after=self._last_key) from error
        self._rest = rest
        last = self._last_key
        for row in rows:
            if last is not None and row.key <= last:
                raise CorruptData("the rows of a snapshot are not in order", key=row.key, after=last)
            last = row.key
        self._last_key = last
        self._received += len(rows)
        if self._received > self.rows:
            raise CorruptData("a snapshot has more rows than it said", rows=self.rows)
        return rows

    def request(self) -> Request:
        """What is asked for next."""
        after = None if self._last_key is None else base64url(self._last_key)
        return Request("GET", f"/v1/snapshot{query_of(format='ndjson', version=self.position, after=after)}")


def load_snapshot(session: Session, progress: SnapshotProgress, now_ms: float) -> Procedure[None]:
    """Deliver the rows of the newest snapshot. ``progress`` names it from the first delivery on.

    Raises: NotFound (there is none, or it was removed meanwhile), CorruptData, PermissionDenied, InvalidRequest;
    Unavailable when nothing arrived for ``stream_give_up_after_ms``.
    """
    options = session.options
    budget = RetryBudget(session, now_ms, options.stream_give_up_after_ms)
    while True:
        endpoint = session.route.current
        reply = yield Open(endpoint, progress.request(), options.request_timeout_ms)
        if isinstance(reply, Opened):
            progress.begin(reply)
            while not progress.is_complete:
                reply = yield Receive(options.stream_silence_ms)
                if not isinstance(reply, Chunk):
                    break
                budget = RetryBudget(session, reply.now_ms, options.stream_give_up_after_ms)
                rows = progress.take(reply.data)
                if rows:
                    yield DeliverRows(tuple(rows))
                if progress.why_it_ended is not None:
                    reply = Failed(reply.now_ms, False, why_a_stream_ended(progress.why_it_ended))
                    break
            if progress.is_complete:
                return
        assert isinstance(reply, Response | Failed), "the reply to Open is Opened, Response or Failed"
        position = 0 if progress.position is None else progress.position.version
        yield from pause_or_give_up(session, budget, endpoint, reply, position)
