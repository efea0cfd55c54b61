"""The machine of a publisher, without I/O: window, batches, numbers, retries and the result of each message.

One request is in flight at a time, which keeps the order; messages added meanwhile form the next one. Each request
carries the publisher's id and a number for each message, so the store keeps no message twice. The rule for every reply:

    the reply                                    what is known   what happens
    200                                          kept            the batch is confirmed
    200 with duplicates of numbers that were     unknown         the batch fails with ``OutcomeUnknown``, the rest
      never sent before                                          continues under a new id
    none, a broken connection, an uncoded 5xx    unknown         the same bytes again, until ``retry_duration`` is over;
      (a proxy), every 5xx code not listed                       not after damage (corrupt_queue, ...), which a retry
      below: outcome_unknown, internal, ...                      cannot repair
    store_full, cluster_full, disk_limit,        not kept        again, until ``retry_duration`` is over; where the
      no_quorum, overloaded, rate_limited,                       store is full, a batch that this publisher grouped is
      not_leader, closed                                         halved, as half may fit
    message_too_large, malformed                 not kept        a grouped batch is halved until the invalid message is
                                                                 alone and fails; the rest continues in order
    unknown_publisher, sequence_gap,             not kept now    the store has forgotten this publisher, or is another
      store_replaced                                             one: it continues under a new id; messages that may be
                                                                 kept fail
    permission_denied, not_found, ...            not kept        the batch fails
    no endpoint is usable as configured          not kept        the batch fails

    ``retry_duration`` is over                   not kept        the batch fails with the last error
                                                 unknown         it fails with ``OutcomeUnknown``; the rest continues
                                                                 under a new id, as the next number is not known

A batch that was divided or renumbered has not been tried: it gets one request, even where ``retry_duration`` is over.
A batch of the application (``add_batch``) is never divided. A publisher that the application numbers (``publisher_id``
and ``next_seq``) keeps its id: after one failure everything after it fails, because the store would refuse the gap.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from holdfast.client.protocol.effects import Failed, Request, Response, Send, Wait
from holdfast.client.protocol.endpoint import Endpoint, UnusableEndpoints
from holdfast.client.protocol.options import FOR_EVER, PublisherOptions
from holdfast.client.protocol.retry_budget import Session, Turns
from holdfast.client.protocol.stores.messages import (
    RETRIED_CODES,
    Advisories,
    coded_error,
    decode_receipt,
    is_unclear,
    publish_request,
)
from holdfast.errors import Closed, Code, CorruptData, HoldfastError, InvalidRequest, OutcomeUnknown, Unavailable
from holdfast.wire.parts import Message, Receipt


class Sent:
    """One message in flight. ``seq`` is its number in the store once it is confirmed, 0 where that is not known.
    ``done`` is set with either ``seq`` or ``error``; then ``on_done`` is called once."""

    __slots__ = ("done", "error", "message", "on_done", "receipt", "seq", "size", "told")

    def __init__(self, message: Message, *, told: bool) -> None:
        self.message = message
        self.size = len(message.body) + 64  # the rest of a message is small, and is bounded by the service
        self.seq = 0
        self.done = False
        self.told = told
        """Whether a caller waits for this message, and gets its failure without ``take_failures``."""
        self.receipt: Receipt | None = None
        self.error: HoldfastError | None = None
        self.on_done: Callable[[Sent], None] | None = None


def receipt_of(message: Sent) -> Receipt:
    """What the store reports of a message that is done. Raises: why it is not known to be kept."""
    if message.error is not None:
        raise message.error
    return message.receipt if message.receipt is not None else Receipt(0, 0)


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that is not known to be kept, and the reason."""

    message: Message
    error: HoldfastError


LAST_TRY_MS: Final = 250.0
"""Time that a request has at least, so that the last one before the end of ``retry_duration`` can be answered: cut at
once, it would make of a refusal an unknown outcome."""
WARN_AFTER_MS: Final = 5_000.0
WARN_EVERY_MS: Final = 60_000.0
LOOK_EVERY_MS: Final = 1_000.0
ADVISORIES_MAX: Final = 1_000
_OWN_KINDS: Final = frozenset({Code.STORE_FULL, Code.CLUSTER_FULL, Code.DISK_LIMIT, Code.NO_QUORUM})
"""Codes that are the kind of an advisory; that of all others is ``store_unavailable``."""
_logger = logging.getLogger("holdfast.publisher")


class Blockage:
    """Why and since when one publisher is blocked."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._kind = ""
        self._reason = ""
        self._since_ms = self._warn_ms = 0.0
        self.advisories = Advisories(ADVISORIES_MAX)

    def met(self, code: Code, reason: str, since_ms: float) -> None:
        """A request was not confirmed, and a retry may help."""
        kind = str(code) if code in _OWN_KINDS else "store_unavailable"
        if not self._kind:
            self._since_ms, self._warn_ms = since_ms, since_ms + WARN_AFTER_MS
        self._reason = reason
        if kind != self._kind:
            self._kind = kind
            self.advisories.add(kind, {"store": self._store, "reason": reason})

    def over(self, now_ms: float) -> None:
        """The store confirmed something."""
        if self._kind:
            self._kind = ""
            facts = {"store": self._store, "blocked_ms": round(now_ms - self._since_ms)}
            self.advisories.add("store_available", facts)

    def look(self, now_ms: float, unconfirmed: int) -> None:
        """Write the warning that is due, if any."""
        if not self._kind or now_ms < self._warn_ms:
            return
        self._warn_ms = now_ms + WARN_EVERY_MS
        _logger.warning(
            "a publisher is blocked store=%s kind=%s seconds=%.0f unconfirmed=%d reason=%s",
            self._store,
            self._kind,
            (now_ms - self._since_ms) / 1000,
            unconfirmed,
            self._reason,
        )


_DIVIDED_WHEN_FULL: Final = frozenset({Code.STORE_FULL, Code.CLUSTER_FULL})
_DIVIDED_TO_FIND_THE_CULPRIT: Final = frozenset({Code.MESSAGE_TOO_LARGE, Code.TOO_LARGE, Code.MALFORMED})
LINGER: Final = "linger"
_FORGOTTEN: Final = frozenset({Code.UNKNOWN_PUBLISHER, Code.SEQUENCE_GAP, Code.STORE_REPLACED})


@dataclass(slots=True)
class _Batch:
    """Messages of one request. ``first_number`` is 0 until it is sent the first time."""

    items: list[Sent]
    divisible: bool
    since_ms: float
    size: int = 0
    first_number: int = 0
    request: Request | None = None
    first_sent_ms: float | None = None
    tries: int = 0
    perhaps_kept: bool = False


class PublisherMachine:
    """Its driver calls ``next_step``, carries the step out, reports the reply, and repeats. Not thread-safe.
    ``entropy`` makes the ids of a publisher that numbers its own messages."""

    def __init__(
        self,
        session: Session,
        store: str,
        options: PublisherOptions,
        *,
        entropy: str,
        publisher_id: str | None = None,
        next_seq: int | None = None,
        store_token: str = "",
    ) -> None:
        if (publisher_id is None) != (next_seq is None):
            raise InvalidRequest(
                "publisher_id and next_seq come together",
                hint="a store confirms numbers it knows without keeping the message: say which one is next",
            )
        if next_seq is not None and (next_seq < 1 or not publisher_id or not options.confirms):
            raise InvalidRequest("a numbered publisher needs an id, a number from 1 on and store_confirm_send")
        if store_token and next_seq is None:
            raise InvalidRequest("a store_token is of remembered numbers: give publisher_id and next_seq, too")
        self._session = session
        self._store = store
        self._options = options
        self._entropy = entropy
        self._identities = 0
        self._token = store_token
        """Of the store that the numbers are of, as given or from its last receipt."""
        self._numbered_by_application = publisher_id is not None
        self._publisher_id = publisher_id if publisher_id is not None else self._new_id()
        self._next_number = next_seq if next_seq is not None else 1
        self._queue: deque[_Batch] = deque()
        self._under_way: _Batch | None = None
        self._asked: Endpoint | None = None
        self._unusable = UnusableEndpoints(session.route)
        self._pause: Wait | None = None
        self._turns = Turns(session)
        self._batch_messages = options.batch_messages  # halved by a full store, doubled by success
        self._flushing = False
        self._ended: HoldfastError | None = None
        self._sent_ms = 0.0
        self.blockage = Blockage(store)
        self._failures: deque[Failure] = deque(maxlen=options.failures_max)
        self.unconfirmed = 0
        self.unconfirmed_bytes = 0
        self.failed = 0
        """How many messages failed since ``take_failures``, those no longer kept included."""
        self.first_error: HoldfastError | None = None

    # called by the application

    @property
    def publisher_id(self) -> str:
        """The id under which messages are sent now; empty where nothing is confirmed."""
        return self._publisher_id if self._options.confirms else ""

    @property
    def has_room(self) -> bool:
        """Whether the window admits one more message. One message is admitted whatever its size."""
        if self._ended is not None:
            return True  # the next ``add`` raises the reason
        options = self._options
        return self.unconfirmed < options.window_messages and (
            self.unconfirmed == 0 or self.unconfirmed_bytes < options.window_bytes
        )

    def add(self, message: Message, now_ms: float, *, told: bool = False) -> Sent:
        """A message to send, in the order of the calls. ``told``: see ``Sent``. Raises: Closed."""
        self._require_usable()
        sent = Sent(message, told=told)
        tail = self._queue[-1] if self._queue else None
        if (
            tail is None
            or not tail.divisible
            or tail is self._under_way
            or tail.request is not None
            or len(tail.items) >= self._batch_messages
            or tail.size + sent.size > self._options.batch_bytes
        ):
            tail = _Batch([], divisible=True, since_ms=now_ms)
            self._queue.append(tail)
        tail.items.append(sent)
        tail.size += sent.size
        self.unconfirmed += 1
        self.unconfirmed_bytes += sent.size
        return sent

    def add_batch(self, messages: Sequence[Message], now_ms: float) -> list[Sent]:
        """Messages kept all together or not at all. Raises: as ``add``; InvalidRequest for none or too many."""
        self._require_usable()
        if not messages or len(messages) > self._options.batch_messages:
            raise InvalidRequest(
                "a batch has from one to batch_messages messages",
                hint="PublisherOptions(batch_messages=...) raises the limit, up to what the service takes at once"
                if messages
                else "",
                messages=len(messages),
                batch_messages=self._options.batch_messages,
            )
        items = [Sent(message, told=True) for message in messages]
        size = sum(item.size for item in items)
        self._queue.append(_Batch(items, divisible=False, since_ms=now_ms, size=size))
        self.unconfirmed += len(items)
        self.unconfirmed_bytes += size
        return items

    def flush(self) -> None:
        """Send without lingering until everything added so far is confirmed or has failed."""
        self._flushing = bool(self._queue)

    def take_failures(self) -> list[Failure]:
        """The failures since the last call, oldest first; at most ``failures_max`` of them."""
        failures = list(self._failures)
        self._failures.clear()
        self.failed = 0
        self.first_error = None
        return failures

    def end(self, error: HoldfastError) -> None:
        """Send nothing more. Unconfirmed messages fail: with ``error``, or as unknown where they may be kept."""
        if self._ended is None:
            self._ended = error
        if self._under_way is not None:
            self._under_way.perhaps_kept = True
            self._under_way = None
        while self._queue:
            self._fail_head(error)

    # called by the driver

    def next_step(self, now_ms: float) -> Send | Wait | None:
        """Next: send, then ``on_response``; wait, then ``waited``; or None until something is added. A ``Wait`` with
        the reason ``linger`` ends early when something is added or flushed."""
        assert self._under_way is None, "one request is in flight at a time"
        if self._pause is not None:
            return self._pause
        if not self._queue:
            return None
        head = self._queue[0]
        linger_ms = head.since_ms + self._options.linger_ms - now_ms
        is_full = not head.divisible or len(self._queue) > 1 or len(head.items) >= self._batch_messages
        if linger_ms > 0 and not is_full and not self._flushing and head.request is None:
            return Wait(linger_ms, linger_ms, LINGER)
        if head.request is None:
            self._number(head)
        assert head.request is not None, "a numbered batch has its request"
        if head.first_sent_ms is None:
            head.first_sent_ms = now_ms
        timeout_ms, left_ms = self._session.options.request_timeout_ms, self._left_ms(head, now_ms)
        if left_ms is not None and left_ms > 0:  # a request that is owed after the end has the full time
            timeout_ms = min(timeout_ms, max(LAST_TRY_MS, left_ms))
        head.tries += 1
        self._sent_ms = now_ms
        self._under_way = head
        self._asked = self._session.route.current
        return Send(self._asked, head.request, timeout_ms)

    def look(self, now_ms: float) -> None:
        """Warn of a request that has no response for long. Call it about once a second while one is in flight."""
        if self._under_way is not None and self._options.confirms and now_ms - self._sent_ms >= WARN_AFTER_MS:
            self.blockage.met(Code.STORE_UNAVAILABLE, "the request has no answer", self._sent_ms)
        self.blockage.look(now_ms, self.unconfirmed)

    def waited(self) -> None:
        """The wait of ``next_step`` is over."""
        self._pause = None

    def on_response(self, reply: Response | Failed) -> None:
        """The reply to the request: completes messages, or sets a wait before the next try."""
        head, self._under_way = self._under_way, None
        if head is None:  # ended meanwhile
            return
        if not self._options.confirms:
            self._confirm(head, None)
            return
        if isinstance(reply, Failed):
            assert self._asked is not None, "an answer follows a request"
            if reply.asked:
                self._session.route.failed(self._asked)
            head.perhaps_kept = head.perhaps_kept or reply.perhaps_accepted
            if reply.problem is not None and self._unusable.met(reply.problem, self._asked, self._turns.sent_by):
                self._unusable.forget()
                self._give_up(head, reply.problem)
                return
            unreached = Unavailable(f"the service cannot be reached: {reply.reason}", endpoint=self._asked)
            self._again_or_fail(head, unreached, reply)
            return
        self._unusable.forget()
        if reply.status == 200:
            try:
                receipt = decode_receipt(reply)
            except CorruptData as error:
                head.perhaps_kept = True
                self._again_or_fail(head, error, reply)
            else:
                self._token = receipt.token or self._token  # a restored store that has all before goes on
                if receipt.duplicates and not head.perhaps_kept and not self._numbered_by_application:
                    self._mistaken(head, receipt)
                else:
                    self.blockage.over(reply.now_ms)
                    self._confirm(head, receipt)
        else:
            self._refused(head, reply)

    # the rules

    def _refused(self, head: _Batch, reply: Response) -> None:
        error = coded_error(reply.status, reply.headers, reply.body)
        if error is None:
            head.perhaps_kept = head.perhaps_kept or reply.status >= 500
            unclear = Unavailable("something before the service answered with an error", status=reply.status)
            if reply.status >= 500 or reply.status in (408, 429):
                self._again_or_fail(head, unclear, reply)
            else:
                self._give_up(head, unclear)
        elif error.code in RETRIED_CODES:
            if error.code in _DIVIDED_WHEN_FULL and head.divisible and len(head.items) > 1:
                self._divide(head)
            self._again_or_fail(self._queue[0], error, reply)
        elif error.code in _DIVIDED_TO_FIND_THE_CULPRIT and head.divisible and len(head.items) > 1:
            self._divide(head)
        elif error.code in _FORGOTTEN and not self._numbered_by_application:
            if head.first_number == 1 and error.code is not Code.STORE_REPLACED:
                self._give_up(head, error)  # the store would forget every new id as well
            else:
                self._token = ""
                self._rename(error)
        elif is_unclear(error, reply.status):
            head.perhaps_kept = True
            if isinstance(error, CorruptData):
                self._give_up(head, error)
            else:
                self._again_or_fail(head, error, reply)
        else:
            self._give_up(head, error)

    def _mistaken(self, head: _Batch, receipt: Receipt) -> None:
        """The store had these numbers before this publisher sent them: it may have messages of another publisher."""
        head.perhaps_kept = True
        mistaken = OutcomeUnknown(
            "the store already had messages with these numbers before this publisher sent its own",
            hint="check whether it has these messages, or publish them again; later ones get a new publisher id",
            publisher_id=self._publisher_id,
            first_publisher_seq=head.first_number,
            messages=len(head.items),
            duplicates=receipt.duplicates,
        )
        self._give_up(head, mistaken)

    def _again_or_fail(self, head: _Batch, error: HoldfastError, reply: Response | Failed) -> None:
        assert self._asked is not None, "an answer follows a request"
        wait = self._turns.after_error(self._asked, error, reply)
        left_ms = self._left_ms(head, reply.now_ms)
        if left_ms is not None and left_ms <= 0:
            if head.tries:  # a half that was not tried is sent immediately
                self._give_up(head, error)
            return
        advice = self._session.route.advice
        reason = f"{error.statement()}; {advice}" if advice else error.statement()
        self.blockage.met(error.code, reason, self._sent_ms)
        self.blockage.look(reply.now_ms, self.unconfirmed)
        longest = wait.at_most_ms if left_ms is None else min(wait.at_most_ms, left_ms)
        self._pause = Wait(min(wait.at_least_ms, longest), longest, wait.reason)

    def _left_ms(self, head: _Batch, now_ms: float) -> float | None:
        seconds = self._options.retry_duration
        if not self._options.confirms or seconds == FOR_EVER or head.first_sent_ms is None:
            return None
        return head.first_sent_ms + seconds * 1000 - now_ms

    def _give_up(self, head: _Batch, error: HoldfastError) -> None:
        """The head fails; later batches continue, or fail too where the application numbers them."""
        was_perhaps_kept = head.perhaps_kept
        if self._numbered_by_application:
            self.end(self._fail_head(error))
            return
        self._fail_head(error)
        if was_perhaps_kept:
            self._rename(error)
        else:
            self._take_numbers_back(head)

    def _rename(self, error: HoldfastError) -> None:
        """Continue under a new id. Batches that may be kept under the old id fail."""
        while self._queue and self._queue[0].perhaps_kept:
            self._fail_head(error)
        self._publisher_id = self._new_id()
        self._renumber(1)

    def _take_numbers_back(self, head: _Batch) -> None:
        """Reuse the numbers of ``head``, which was not kept."""
        self._renumber(head.first_number or self._next_number)

    def _renumber(self, first_number: int) -> None:
        self._next_number = first_number
        for batch in self._queue:
            batch.request, batch.first_number, batch.tries = None, 0, 0

    def _new_id(self) -> str:
        self._identities += 1
        return f"{self._entropy}.{self._identities}"

    def _number(self, batch: _Batch) -> None:
        messages = [item.message for item in batch.items]
        if self._options.confirms:
            number = batch.first_number = self._next_number
            messages = [
                Message(message.body, message.fields, message.key, seq, message.ttl_ms, message.deliver_at_ms)
                for seq, message in enumerate(messages, number)
            ]
            self._next_number = number + len(messages)
        batch.request = publish_request(self._store, self.publisher_id, messages, self._token)

    def _divide(self, head: _Batch) -> None:
        """Replace the head by its two halves, in order and with its numbers."""
        half = len(head.items) // 2
        self._batch_messages = max(1, min(self._batch_messages, half))
        self._queue.popleft()
        if not head.perhaps_kept:
            self._take_numbers_back(head)
        for items in (head.items[half:], head.items[:half]):
            part = _Batch(items, divisible=True, since_ms=head.since_ms, size=sum(item.size for item in items))
            part.first_sent_ms = head.first_sent_ms
            part.perhaps_kept = head.perhaps_kept
            self._queue.appendleft(part)
        if head.perhaps_kept:  # the store may know these numbers: the messages keep them
            following, self._next_number = self._next_number, head.first_number
            self._number(self._queue[0])
            self._number(self._queue[1])
            self._next_number = following  # later batches may have their numbers already

    def _confirm(self, head: _Batch, receipt: Receipt | None) -> None:
        self._queue.popleft()
        self._turns.progressed()
        self._session.route.succeeded()
        self._batch_messages = min(self._batch_messages * 2, self._options.batch_messages)
        # Duplicates of several earlier batches may have gaps between them; then only the ends are known.
        in_a_row = receipt is not None and receipt.last_seq - receipt.first_seq + 1 == len(head.items)
        seq = receipt.first_seq if receipt is not None and in_a_row else 0
        self._settle(head.items, seq, receipt, None)

    def _fail_head(self, error: HoldfastError) -> HoldfastError:
        head = self._queue.popleft()
        if head.perhaps_kept and not isinstance(error, OutcomeUnknown):
            unknown = OutcomeUnknown(
                "it is not known whether the store has these messages",
                hint="publish them again; to find duplicates, receivers can compare a field that you set in each one",
                publisher_id=self._publisher_id,
                first_publisher_seq=head.first_number,
                messages=len(head.items),
            )
            unknown.__cause__ = error
            error = unknown
        self._session.route.explain(error)
        failures = [Failure(item.message, error) for item in head.items if not item.told]
        if failures:
            self.failed += len(failures)
            self.first_error = self.first_error or error
            self._failures.extend(failures)
        self._settle(head.items, 0, None, error)
        return error

    def _settle(self, items: list[Sent], seq: int, receipt: Receipt | None, error: HoldfastError | None) -> None:
        self.unconfirmed -= len(items)
        for item in items:
            self.unconfirmed_bytes -= item.size
            item.error = error
            item.receipt = receipt
            item.seq = seq
            item.done = True
            if seq:
                seq += 1
            if item.on_done is not None:
                item.on_done(item)
        if not self._queue:
            self._flushing = False

    def _require_usable(self) -> None:
        if isinstance(self._ended, Closed):
            raise self._ended
        if self._ended is not None:
            raise Closed(
                "this publisher ended, because one of its numbered messages failed",
                hint="open another with the number that comes next",
                reason=self._ended.code,
            ) from self._ended

    def check(self) -> None:
        """Assert every law of the state; for tests, O(messages)."""
        items = [item for batch in self._queue for item in batch.items]
        assert self.unconfirmed == len(items), "unconfirmed messages are queued"
        assert self.unconfirmed_bytes == sum(item.size for item in items), "bytes are counted as they are queued"
        assert not any(item.done for item in items), "a completed message is not queued"
        assert self._under_way is None or self._under_way is self._queue[0], "only the head is in flight"
        assert all(batch.items for batch in self._queue), "no batch is empty"
        numbered = [batch for batch in self._queue if batch.first_number]
        for before, after in pairwise(numbered):
            assert before.first_number + len(before.items) == after.first_number, "numbers have no gap"
        if numbered:
            last = numbered[-1]
            assert last.first_number + len(last.items) == self._next_number, "the next number is not in use"
