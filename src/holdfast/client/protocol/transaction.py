"""A transaction: reads through the service or a view, collected writes, and the retries of ``Client.transact``.

The source may be newer than the read version, never older. A key read with version v is recorded as unchanged after
max(v, read version), an absent key as unchanged after the read version, a range as unchanged after the version of its
response. If every precondition holds at the commit, every value read is current there, so committed transactions are
strictly serializable.

Before that, every value that the function sees was current at one version: the first read may move the read version
forward, and a later read that meets something newer ends the attempt (``SnapshotMoved``) and starts another from there.
One exception is noticed only at the commit: a key deleted after the read version reads as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from msgspec.structs import replace

from holdfast.client.protocol import log_operations
from holdfast.client.protocol.effects import AwaitVersion, Decide, Failed, Procedure, Woken
from holdfast.client.protocol.retry_budget import RetryBudget, Session
from holdfast.commit.format.transaction import (
    Delete,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Transaction,
    Write,
)
from holdfast.errors import Code, Conflict, InvalidRequest, Unavailable
from holdfast.stores.values.identity import replaced
from holdfast.values import LogPosition
from holdfast.wire.log import CommitReceipt, Found, FoundRange
from holdfast.wire.parts import Delivery, FieldValue, StoresReceipt
from holdfast.wire.stores import AcknowledgePart, Entry, Lock, MapPart, OneChange, PublishedMessage, PublishPart

if TYPE_CHECKING:
    from holdfast.view import View

Result = TypeVar("Result")
ANOTHER_LOG: Final = (Code.LOG_MISMATCH, Code.ROLLED_BACK)
RANGE_PAGE: Final = 1_000
"""Keys asked for at once."""


class ServiceSource:
    """Reads through ``/v1/keys`` and ``/v1/range``. Results are never older than ``at``."""

    begins_newest: Final = True
    """Whether a transaction begins at the newest version that the client knows."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.log_id: str | None = None
        """The log that ``begin_version`` belongs to; None when it is not known."""

    def get(self, key: bytes, at: int, now_ms: float) -> Procedure[log_operations.KeysRead]:
        """One key."""
        row, version = yield from log_operations.read_key(self._session, key, LogPosition(at, self.log_id), now_ms)
        return log_operations.KeysRead(version, [None if row is None else (row.value, row.version)])

    def get_many(self, keys: Sequence[bytes], at: int, now_ms: float) -> Procedure[log_operations.KeysRead]:
        """The first of ``keys``, all at one version."""
        return (yield from log_operations.read_keys(self._session, keys, LogPosition(at, self.log_id), now_ms))

    def range(self, begin: bytes, end: bytes | None, limit: int, at: int, now_ms: float) -> Procedure[FoundRange]:
        """At most ``limit`` keys of ``[begin, end)`` in byte order."""
        position = LogPosition(at, self.log_id)
        return (yield from log_operations.read_range(self._session, begin, end, limit, position, now_ms))

    def begin_version(self, newer_than: int | None, now_ms: float) -> Procedure[int]:
        """A version to read at, at least ``newer_than``: the preconditions prove the outcome, however old it is."""
        if newer_than is not None:
            return newer_than
        newest = yield from log_operations.newest_position(self._session, now_ms)
        self.log_id = newest.log_id
        return newest.version


class ViewSource:
    """Reads the caller's own view; see ``ServiceSource`` for the methods."""

    begins_newest: Final = False

    def __init__(self, session: Session, view: View) -> None:
        self._session = session
        self._view = view

    @property
    def log_id(self) -> str | None:
        """The log of the view."""
        return self._view.log_id

    # A view is at least as new as any version that it returned, and sends no request: some arguments are unused.

    def get(self, key: bytes, at: int, now_ms: float) -> Procedure[log_operations.KeysRead]:
        """One key."""
        return (yield from self.get_many([key], at, now_ms))

    def get_many(self, keys: Sequence[bytes], at: int, now_ms: float) -> Procedure[log_operations.KeysRead]:  # noqa: ARG002
        """All of ``keys``; the view may advance while it is read, so they are not older than its version before."""
        yield from ()
        version = self._view.version
        return log_operations.KeysRead(version, [self._view.get(key) for key in keys])

    def range(
        self,
        begin: bytes,
        end: bytes | None,
        limit: int,
        at: int,  # noqa: ARG002
        now_ms: float,  # noqa: ARG002
    ) -> Procedure[FoundRange]:
        """The view may advance while it is read, so the range is of its version before the read."""
        yield from ()
        version = self._view.version
        rows = self._view.range(begin, end, limit + 1)
        items = tuple(Found(*row) for row in rows[:limit])
        return FoundRange(items, max([version, *(item.version for item in items)]), len(rows) > limit)

    def begin_version(self, newer_than: int | None, now_ms: float) -> Procedure[int]:  # noqa: ARG002
        """The view's version, once it has caught up with ``newer_than``."""
        if newer_than is not None and self._view.version < newer_than:
            options = self._session.options
            reply = yield AwaitVersion(newer_than, options.give_up_after_ms)
            assert isinstance(reply, Woken | Failed), "the reply to AwaitVersion is Woken or Failed"
            if isinstance(reply, Failed):
                raise Unavailable("the view does not catch up", view_version=self._view.version, version=newer_than)
        return self._view.version


Source = ServiceSource | ViewSource


class SnapshotMoved(Conflict):
    """A read is newer than those before it. Do not catch it: the transaction runs again."""


class TransactionBuilder:
    """One attempt. Later operations win over earlier ones, and reads see them."""

    def __init__(self, source: Source, read_version: int) -> None:
        self._source = source
        self.read_version = read_version
        self.moved_to: int | None = None
        """Where it begins again, because a read is newer than those before it; 0 where another log is served now."""
        self.refusal: InvalidRequest | None = None
        """Of the position that the client had chosen: it is of another log than the one that is served now."""
        self.operations: list[Operation] = []
        self._points: dict[bytes, int] = {}
        self._ranges: list[RangeRead] = []
        self._own: dict[bytes, bytes | None] = {}
        self._acknowledged: dict[tuple[str, str, str], AcknowledgePart] = {}
        self._changed: dict[tuple[str, str], dict[str, OneChange]] = {}
        self._fences: dict[tuple[str, str], int] = {}
        self._tokens: dict[tuple[str, str], str] = {}
        """Of each map, where a change rests on something of it that was remembered."""
        self._published: dict[str, list[PublishedMessage]] = {}
        self._cleared: list[tuple[bytes, bytes | None]] = []

    @property
    def preconditions(self) -> list[Precondition]:
        """The preconditions of the reads so far."""
        points: list[Precondition] = [PointRead(key, version) for key, version in self._points.items()]
        return points + list(self._ranges)

    def write(self, key: bytes, value: bytes) -> None:
        """Set ``key`` to ``value`` when the transaction commits."""
        self.operations.append(Write(key, value))
        self._own[key] = value

    def delete(self, key: bytes) -> None:
        """Remove ``key`` when the transaction commits."""
        self.operations.append(Delete(key))
        self._own[key] = None

    def delete_range(self, begin: bytes, end: bytes | None = None) -> None:
        """Remove every key of ``[begin, end)`` when the transaction commits. Raises: InvalidRequest."""
        if end is not None and begin >= end:
            raise InvalidRequest("a range needs begin < end")
        self.operations.append(RangeDelete(begin, end))
        self._cleared.append((begin, end))
        for key in [key for key in self._own if _inside(key, begin, end)]:
            self._own[key] = None

    def request(self, request_id: str | None = None, log_id: str | None = None) -> Transaction:
        """The commit request of what was decided so far."""
        maps = [
            MapPart(*where, list(changes.values()), self._fences[where], self._tokens.get(where, ""))
            for where, changes in self._changed.items()
        ]
        publish = [
            PublishPart(store, messages, token=self._token_of_store(store))
            for store, messages in self._published.items()
        ]
        return log_operations.transaction_of(
            self.operations,
            self.preconditions,
            request_id=request_id,
            read_version=self.read_version,
            log_id=log_id,
            acknowledge=list(self._acknowledged.values()),
            maps=maps,
            publish=publish,
        )

    def _token_of_store(self, store: str) -> str:
        """What the other parts know of the store; empty where they know nothing."""
        known = [(name, part.token) for (name, _, _), part in self._acknowledged.items()]
        known += [(name, token) for (name, _), token in self._tokens.items()]
        return next((token.rpartition(".")[0] for name, token in known if name == store and token), "")

    def publish(
        self,
        store: str,
        body: bytes,
        *,
        fields: Mapping[str, FieldValue] | None = None,
        key: str | None = None,
        ttl_ms: int = 0,
        deliver_at_ms: int = 0,
    ) -> None:
        """Publish a message when the transaction commits."""
        message = PublishedMessage(body, dict(fields or {}), key, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms)
        self._published.setdefault(store, []).append(message)

    def acknowledge(self, store: str, durable: str, subscriber: str, *messages: Delivery | int) -> None:
        """Acknowledge messages when the transaction commits. It commits only if ``subscriber`` holds all of them.

        A number alone is that of whatever has the names now; a message is its own. Raises: Closed (``store_replaced``)
        if messages are of two histories.
        """
        known = self._acknowledged.get((store, durable, subscriber), AcknowledgePart(store, durable, subscriber, []))
        numbers, token = known.ack, known.token
        for message in messages:
            own = message.token if isinstance(message, Delivery) else ""
            if own and token and own != token:
                raise replaced(token, store=store, durable=durable)
            token = token or own
            numbers.append(message.seq if isinstance(message, Delivery) else message)
        self._acknowledged[store, durable, subscriber] = AcknowledgePart(store, durable, subscriber, numbers, token)

    def change_map(
        self,
        store: str,
        name: str,
        key: str,
        value: bytes | None,
        *,
        if_revision: int | Entry | None = None,
        fence: int | Lock = 0,
    ) -> None:
        """Set a key of a map, or remove it (None), when the transaction commits. The last change of a key counts.

        ``fence``: a lock on the key or the map; a key that is locked is changed with it only. ``if_revision``: the
        entry that was read; 0 for no such key. A number alone, of either, is that of whatever has the names now.
        Raises: InvalidRequest for a second fence of one map: several keys need the lock of the whole map; Closed
        (``store_replaced``) if they are of two maps of the name.
        """
        for remembered in (if_revision, fence):
            if isinstance(remembered, Entry | Lock) and remembered.token:
                first = self._tokens.setdefault((store, name), remembered.token)
                if first != remembered.token:
                    raise replaced(first, store=store, durable=name)
        if isinstance(if_revision, Entry):
            if_revision = if_revision.revision
        fence = fence.fence if isinstance(fence, Lock) else fence
        known = self._fences.setdefault((store, name), fence)
        if known and fence not in (0, known):
            raise InvalidRequest(
                "a transaction has one fence for a map", hint="lock the whole map", store=store, map=name
            )
        self._fences[store, name] = fence or known
        self._changed.setdefault((store, name), {})[key] = OneChange(key, value, if_revision)

    def require_unchanged(self, key: bytes, version: int | None = None) -> None:
        """Require that ``key`` is unchanged after ``version`` (default: the read version), without reading it."""
        bound = self.read_version if version is None else version
        self._points[key] = min(bound, self._points.get(key, bound))

    def reading(self, key: bytes, now_ms: float) -> Procedure[bytes | None]:
        """Read one key."""
        if key in self._own:
            return self._own[key]
        if any(_inside(key, begin, end) for begin, end in self._cleared):
            return None
        read = yield from self._asking(self._source.get(key, self.read_version, now_ms))
        return self._take([key], read)[key]

    def reading_many(self, keys: Iterable[bytes], now_ms: float) -> Procedure[dict[bytes, bytes | None]]:
        """Read several keys. Those of one response are of one version."""
        values: dict[bytes, bytes | None] = {}
        left: list[bytes] = []
        for key in dict.fromkeys(keys):
            if key in self._own:
                values[key] = self._own[key]
            elif any(_inside(key, begin, end) for begin, end in self._cleared):
                values[key] = None
            else:
                left.append(key)
        while left:
            read = yield from self._asking(self._source.get_many(left, self.read_version, now_ms))
            values |= self._take(left, read)
            left = left[len(read.values) :]
        return values

    def _asking(self, procedure: Procedure[Result]) -> Procedure[Result]:
        """Read. Raises: as the procedure; SnapshotMoved where another log is there now."""
        try:
            return (yield from procedure)
        except InvalidRequest as error:
            if error.code not in ANOTHER_LOG:
                raise
            self.moved_to, self.refusal = 0, error
            raise SnapshotMoved("another log is served now", read_version=self.read_version) from error

    def _take(self, keys: Sequence[bytes], read: log_operations.KeysRead) -> dict[bytes, bytes | None]:
        """The first of ``keys`` were read: their values."""
        self._saw(max((stored[1] for stored in read.values if stored is not None), default=0), read.version)
        version = self.read_version
        values: dict[bytes, bytes | None] = {}
        for key, stored in zip(keys, read.values, strict=False):
            # Of two reads of one key at different versions, the older one must hold.
            self._points[key] = min(version, self._points.get(key, version))
            values[key] = None if stored is None else stored[0]
        return values

    def reading_range(
        self, begin: bytes, end: bytes | None, limit: int, now_ms: float
    ) -> Procedure[list[tuple[bytes, bytes]]]:
        """Read at most ``limit`` keys of ``[begin, end)``; the recorded range ends where the reading ended."""
        if limit <= 0 or (end is not None and begin >= end):
            raise InvalidRequest("a range needs begin < end and a limit above zero")
        rows: list[tuple[bytes, bytes]] = []
        cursor = begin
        while True:
            page = min(limit, RANGE_PAGE)
            reply = yield from self._asking(self._source.range(cursor, end, page, self.read_version, now_ms))
            bound = reply.items[-1].key + b"\0" if reply.more and reply.items else end
            self._saw(max((item.version for item in reply.items), default=0), reply.version)
            self._ranges.append(RangeRead(cursor, bound, max(self.read_version, reply.version)))
            rows.extend(self._with_own_writes(reply.items, cursor, bound))
            if len(rows) >= limit or not (reply.more and reply.items):
                return rows[:limit]
            assert bound is not None, "a truncated range ends at its last key"
            cursor = bound

    def _saw(self, version: int, at: int) -> None:
        """A read at ``at`` returned something of this version. The first read sets the read version.

        Raises: SnapshotMoved when earlier reads may be older.
        """
        if not self._points and not self._ranges:
            self.read_version = max(self.read_version, version, at)
        elif version > self.read_version:
            self.moved_to = version
            raise SnapshotMoved("a read is newer than those before it", read_version=self.read_version, version=version)

    def _with_own_writes(self, items: Sequence[Found], begin: bytes, end: bytes | None) -> list[tuple[bytes, bytes]]:
        merged: dict[bytes, bytes] = {
            item.key: item.value
            for item in items
            if not any(_inside(item.key, low, high) for low, high in self._cleared)
        }
        for key, value in self._own.items():
            if _inside(key, begin, end):
                if value is None:
                    merged.pop(key, None)
                else:
                    merged[key] = value
        return sorted(merged.items())


def _inside(key: bytes, begin: bytes, end: bytes | None) -> bool:
    return key >= begin and (end is None or key < end)


class TransactionAttempts:
    """Decides and commits until a commit holds. ``builder`` is the attempt that the caller's function fills."""

    builder: TransactionBuilder

    def __init__(self, session: Session, source: Source, entropy: str) -> None:
        self._session = session
        self._source = source
        self._entropy = entropy

    def run(self, now_ms: float) -> Procedure[CommitReceipt | None]:
        """The receipt of the attempt that committed; None when the function wrote nothing.

        Raises: Conflict (the last one) after ``attempts_max`` attempts or ``give_up_after_ms``, or at once
        (``store_refused``); Closed (``lease_lost``) when a message is not held any more; what reads and commits raise.
        """
        options = self._session.options
        budget = RetryBudget(self._session, now_ms, options.give_up_after_ms)
        newer_than: int | None = None
        refused = False
        number = 0
        while True:
            version = yield from self._source.begin_version(newer_than, now_ms)
            builder = self.builder = TransactionBuilder(self._source, version)
            decided = yield Decide()
            assert isinstance(decided, Woken), "the reply to Decide is Woken"
            if builder.moved_to is not None:
                if builder.refusal is not None and refused:
                    raise builder.refusal
                refused = refused or builder.refusal is not None
                number += 1
                now_ms, newer_than = decided.now_ms, builder.moved_to or None
                if number >= options.attempts_max or budget.exhausted(now_ms):
                    raise Conflict("the data changes faster than it is read", version=newer_than)
                continue
            txn = builder.request(self._session.draw_id(self._entropy, number), self._source.log_id)
            if not txn.operations and not txn.has_parts:
                return None
            may_share = self._source.begins_newest and not txn.has_store_parts
            try:
                verdict = yield from log_operations.attempt(self._session, txn, decided.now_ms, may_share=may_share)
            except InvalidRequest as error:
                if error.code in ANOTHER_LOG and self._source.begins_newest and not refused:
                    refused, newer_than, now_ms = True, None, decided.now_ms
                    number += 1
                    continue
                if error.code is not Code.ID_NEEDS_TAG:
                    raise
                number += 1  # nothing was accepted, and the next id begins with the tag that the refusal named
                txn = replace(txn, request_id=self._session.draw_id(self._entropy, number))
                verdict = yield from log_operations.attempt(self._session, txn, decided.now_ms, may_share=may_share)
            if isinstance(verdict, CommitReceipt):
                return verdict
            number += 1
            if number >= options.attempts_max or verdict.reason == "store_refused":
                raise verdict.error()
            woken = yield budget.next_wait(decided.now_ms)
            assert isinstance(woken, Woken), "the reply to Wait is Woken"
            now_ms = woken.now_ms
            if budget.exhausted(now_ms):
                raise verdict.error()
            newer_than = verdict.version if verdict.version > builder.read_version else None


@dataclass(frozen=True, slots=True)
class Transacted(Generic[Result]):
    """What the function returned, and where its transaction committed (None when it wrote nothing).

    ``stores``: what the message stores did in it.
    """

    value: Result
    version: int | None
    stores: StoresReceipt | None = None
