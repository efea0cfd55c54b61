"""The state machine of a subscriber, without I/O: credit, deliveries, acknowledgements, reconnecting.

    state         what happens                                  how it ends
    connecting    the driver is to open a WebSocket             ``Connect`` was returned -> opening
    opening       the driver opens it                           opened -> attaching; refused for good, or no endpoint
                                                                usable as configured -> ended; lost or ``timeout_ms``
                                                                over -> waiting
    attaching     open, the service has not sent ``attached``   attached -> attached; lost or silent -> waiting
    attached      credit out, messages in, acknowledgements     lost or silent for ``timeout_ms`` -> waiting; a frame
                  out, each frame with a reply to its id        above ``event_bytes_max`` -> ended
    waiting       a jittered pause, doubled each time until     connecting; ``retry_duration`` over -> ended
                  a connection brings more than ``attached``
    ended         ``failure`` has the reason, None after close  -

A connection that breaks is replaced under the same subscriber name. Messages that were received and not handed out are
dropped, as the service delivers them again. What the application works on stays its own where the service has not given
it back, as in a change of leader (``InWork``). Acknowledgements without a reply are sent again first, unless the
numbers are of another history: then they fail (``store_replaced``), as does the subscriber if the durable is another.
A standard durable that another subscriber has is waited for: in the line of the service, and by asking again.

Messages arrive at least once; ``redelivered`` marks those that may have been seen. Memory is bounded by the credit,
which is never above the prefetch, and by ``advisories_max``.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import repeat
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from holdfast.client.protocol.effects import Wait
from holdfast.client.protocol.endpoint import Endpoint, UnusableEndpoints
from holdfast.client.protocol.messages import COORDINATION_CODES
from holdfast.client.protocol.options import FOR_EVER, SubscriberOptions, busy_wait_ms
from holdfast.client.protocol.retry_budget import Session, Turns
from holdfast.client.protocol.stores.acknowledgements import (
    RANGES_MAX,
    AckBatcher,
    CreditWindow,
    OnReply,
    StartedReports,
    of_these,
)
from holdfast.client.protocol.stores.buffer import Inbox
from holdfast.client.protocol.stores.messages import (
    PASSING_CODES,
    Advisories,
    ack_frame,
    closing_error,
    coded_error,
    decode_frame,
    frame_of,
    named_error,
)
from holdfast.errors import Closed, Code, CorruptData, HoldfastError, LimitExceeded, Unavailable
from holdfast.stores.values.effects import REMOVED_CAUSES
from holdfast.stores.values.identity import replaced
from holdfast.values import ranges_of
from holdfast.wire.log import ErrorBody
from holdfast.wire.parts import Delivery
from holdfast.wire.stores import (
    AdvisoryFrame,
    AttachedFrame,
    ChangesFrame,
    CurrentFrame,
    ErrorFrame,
    MessagesFrame,
    ReplyFrame,
    WithdrawnFrame,
)


class Connect(msgspec.Struct, frozen=True):
    """Drop the connection, if any, and open a WebSocket; then ``opened``, ``refused`` or ``lost``."""

    endpoint: Endpoint
    target: str
    timeout_ms: float
    payload_bytes_max: int


class Talk(msgspec.Struct, frozen=True):
    """Send ``outgoing`` (and a ping when ``probes``), then pass on what arrives, for at most ``timeout_ms``. Payloads
    go to ``received``; then, at the time-out, or when something was added, call ``next_step`` again."""

    outgoing: tuple[bytes, ...]
    probes: bool
    timeout_ms: float


class SubscriptionEnded(msgspec.Struct, frozen=True):
    """The machine has ended. ``outgoing`` are the last frames for an open connection."""

    outgoing: tuple[bytes, ...] = ()


Step = Connect | Talk | Wait | SubscriptionEnded


_logger = logging.getLogger("holdfast.subscriber")


_RECONNECTED_CODES: Final = PASSING_CODES | {Code.LAGGING}
"""After these codes the subscriber connects again."""

_NORMAL_CLOSE: Final = frozenset({1000, 1001, 1005, 1006, 1011, 1012, 1013})


class _State(Enum):
    CONNECTING = "connecting"
    OPENING = "opening"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    WAITING = "waiting"
    ENDED = "ended"


JUST_READ_MS: Final = 1.0
TARGET_LENGTH_MAX: Final = 8_000
"""Of a handshake with ``keep``. A service reads no request line above 8,192 bytes."""
_WORKING_FRAMES: Final = (MessagesFrame, ReplyFrame, ChangesFrame, CurrentFrame)
_CONNECTED: Final = frozenset({_State.OPENING, _State.ATTACHING, _State.ATTACHED})


class SubscriberMachine:
    """Its driver calls ``next_step``, carries the step out, reports events, and repeats. Not thread-safe. ``target``:
    see ``subscribe_target``."""

    def __init__(self, session: Session, target: str, options: SubscriberOptions, *, takes_over: bool = False) -> None:
        self._session = session
        self._target = target
        self._takes_over = takes_over
        self._options = options
        self._state = _State.CONNECTING
        self._asked_endpoint: Endpoint | None = None
        self._asked_ms = 0.0
        self._is_busy = False
        """Whether another subscriber has the standard durable, as the service said last."""
        self._unusable = UnusableEndpoints(session.route)
        self._pause: Wait | None = None
        self._turns = Turns(session)
        self._lost_since_ms: float | None = None
        """Since when no connection has received anything. The clock stops while one is attached."""
        self._attached_ms = 0.0
        self._away_since_ms: float | None = None
        """Since when it is not attached, for advisories."""
        self._advice = ""
        """The newest one that was logged: a subscriber may wait without end."""
        self.was_attached = False
        """Whether the service has delivered to this subscriber: a dynamic durable exists from then on."""
        self._bytes_ms = 0.0
        """When the last bytes arrived, or a connection began."""
        self._heard_ms = 0.0
        """When the last whole frame arrived: no probe is in flight after it."""
        self._probed_ms = 0.0
        self._terms = AttachedFrame()
        self.token = ""
        """Of the durable that it was attached to last: of the messages that arrive, and of their acknowledgements."""
        self._buffer = Inbox()
        self._window = CreditWindow(options.prefetch)
        self._outgoing: list[bytes] = []
        self._acks = AckBatcher()
        self._started = StartedReports()
        self.taken: list[tuple[int, int]] = []
        """The numbers of what the application took last, as ranges."""
        self.reports_first = False
        """Whether outgoing frames must be sent before the application gets the message that was taken last."""
        self.advisories = Advisories(options.advisories_max)
        self._last_said: AdvisoryFrame | None = None
        """A close frame has room for a code only; this advisory before it has the facts."""
        self._closing = False
        self.failure: HoldfastError | None = None

    # called by the application

    @property
    def has_ended(self) -> bool:
        """Whether nothing will arrive any more; ``failure`` has the reason."""
        return self._state is _State.ENDED

    @property
    def is_attached(self) -> bool:
        """Whether the service delivers to this subscriber now."""
        return self._state is _State.ATTACHED

    @property
    def awaited(self) -> tuple[Endpoint, float] | None:
        """The endpoint of which a sign of life is due, and since when; None while none is due."""
        if self._asked_endpoint is None or self._state not in _CONNECTED:
            return None
        if self._state is not _State.ATTACHED or self._acks.unconfirmed:
            return self._asked_endpoint, self._bytes_ms
        is_probed = self._probed_ms > max(self._heard_ms, self._bytes_ms)
        return (self._asked_endpoint, self._probed_ms) if is_probed else None

    def has_just_read(self, now_ms: float) -> bool:
        """Whether bytes arrived less than ``JUST_READ_MS`` ago: what was withdrawn since may as well be on its way."""
        return now_ms - self._bytes_ms < JUST_READ_MS

    @property
    def acknowledges_at_once(self) -> bool:
        """Whether the durable wants each acknowledgement confirmed alone (``ack_mode`` sync)."""
        return self._terms.ack_mode == "sync"

    @property
    def has_ready(self) -> bool:
        """Whether ``take`` has something."""
        return bool(self._buffer)

    @property
    def window(self) -> int:
        """How many messages it takes now, in the service's hands and here together."""
        return self._window.size

    @property
    def send_due_ms(self) -> float:
        """When waiting acknowledgements and reports are sent."""
        seconds = self._options.ack_batch_time
        wait_ms = self._terms.ack_batch_time_ms if seconds is None else seconds * 1000
        acks_ms = self._acks.since_ms + wait_ms if self._acks.pending else math.inf
        return min(acks_ms, self._started.due_ms)

    @property
    def unconfirmed(self) -> int:
        """How many acknowledgements have no reply yet."""
        return self._acks.unconfirmed

    @property
    def stale(self) -> int:
        """How many acknowledgements were stale: they came too late, or the reply to a first attempt was lost."""
        return self._acks.stale

    def take(self, now_ms: float) -> Delivery | None:
        """The next message that arrived, or None. Where ``reports_first`` is set then, send the outgoing frames before
        the application gets the message."""
        message = self._buffer.take(now_ms)
        if message is None:
            self._window.pace.waited()
            return None
        self._took((message,), now_ms, redelivered=message.redelivered)
        return message

    def take_all(self, now_ms: float) -> list[Delivery]:
        """Everything that arrived."""
        redelivered = bool(self._buffer.again)
        messages = self._buffer.take_all(now_ms)
        if messages:
            self._took(messages, now_ms, redelivered=redelivered)
        return messages

    def _took(self, messages: Sequence[Delivery], now_ms: float, *, redelivered: bool) -> None:
        self._window.pace.took(len(messages), now_ms, waiting=len(self._buffer))
        self._window.took(len(messages))
        self.taken = ranges = ranges_of([message.seq for message in messages])
        self._acks.in_work.took(ranges)
        self._give_credit()
        self._started.took(ranges, len(messages), now_ms, redelivered=redelivered)
        self.reports_first = self._started.is_exact
        if self.reports_first:
            self._report_started()

    def _report_started(self) -> None:
        if self._state is _State.ATTACHED:
            self._outgoing += self._started.take_frames()

    def acknowledge(self, ranges: Sequence[tuple[int, int]], now_ms: float, on_reply: OnReply | None = None) -> None:
        """Acknowledge ranges. They are sent together with others, immediately with ``on_reply``.

        ``on_reply`` gets the stale numbers of these ranges, not those of the others.
        """
        self._require_usable()
        for first, last in ranges:
            self._acks.add(first, last, now_ms)
            self._settled(first, last)
        if on_reply is not None:
            self._acks.notify(of_these(ranges, on_reply))
        if on_reply is not None or self._acks.pending >= self._batch_count() or self.acknowledges_at_once:
            self.flush()

    def require_own(self, messages: Sequence[Delivery]) -> None:
        """Raises: Closed (``store_replaced``) if a message is not of the durable as it is now."""
        for message in messages:
            if message.token and message.token != self.token:
                raise replaced(message.token)

    def put_back(self, seq: int, delay_ms: int, on_reply: OnReply | None = None) -> None:
        """Deliver this again to any subscriber, ``delay_ms`` later."""
        self._release(seq, "nack", (seq, delay_ms), on_reply)

    def reject(self, seq: int, on_reply: OnReply | None = None) -> None:
        """Move this to the dead letters."""
        self._release(seq, "reject", seq, on_reply)

    def extend(self, seq: int, on_reply: OnReply | None = None) -> None:
        """Restart the acknowledgement time of this."""
        self._ask("extend", seq, (), on_reply)

    def flush(self) -> None:
        """Send waiting acknowledgements and reports."""
        if self._state is not _State.ATTACHED:
            return
        self._report_started()
        if self._acks.pending:
            self._outgoing += self._acks.take_pending()
            if self._window.is_own:
                self._give_credit()

    def close(self) -> None:
        """Send acknowledgements, wait for the replies, then disconnect."""
        self._closing = True
        self.flush()

    def end(self, failure: HoldfastError | None) -> None:
        """End now. Every wait for a reply gets the failure, or ``Closed``."""
        if self._state is _State.ENDED:
            return
        self._state = _State.ENDED
        self._pause = None
        self._outgoing.clear()
        if failure is not None:
            self._session.route.explain(failure)
        self.failure = failure
        self._buffer.clear()
        self._acks.fail(failure if failure is not None else Closed("the subscriber was closed before the answer came"))

    # called by the driver

    def next_step(self, now_ms: float) -> Step:
        """The next step."""
        if self._state in _CONNECTED and now_ms - self._bytes_ms >= self._options.timeout_ms:
            self.lost(now_ms, f"nothing was heard for {self._options.timeout_ms:g} ms")
        match self._state:
            case _State.ENDED:
                return SubscriptionEnded()
            case _State.WAITING | _State.CONNECTING | _State.OPENING | _State.ATTACHING if self._closing:
                self.end(None)
                return SubscriptionEnded()
            case _State.WAITING:
                assert self._pause is not None, "waiting has a pause"
                return self._pause
            case _State.CONNECTING:
                self._asked_endpoint = self._session.route.current
                self._bytes_ms = self._asked_ms = now_ms
                self._state = _State.OPENING
                bytes_max = self._session.options.event_bytes_max
                target = f"{self._target}&token={self.token}" if self.token else self._target
                room = TARGET_LENGTH_MAX - len(target)
                if self.token and (keep := self._acks.in_work.parameter(room)):
                    target += f"&keep={keep}"
                if self._takes_over and not self.was_attached:
                    # Once: a lost connection must not take the durable back from one that took it over meanwhile.
                    target += "&take_over=true"
                return Connect(self._asked_endpoint, target, self._options.timeout_ms, bytes_max)
            case _State.OPENING | _State.ATTACHING:
                return Talk((), False, self._bytes_ms + self._options.timeout_ms - now_ms)
            case _State.ATTACHED:
                return self._talk(now_ms)

    def _talk(self, now_ms: float) -> Step:
        send_due_ms = self.send_due_ms
        if now_ms >= send_due_ms:
            self.flush()
            send_due_ms = self.send_due_ms
        if self._closing and not self.unconfirmed:
            last_words = (*self._take_outgoing(), frame_of("close"))
            self.end(None)
            return SubscriptionEnded(last_words)
        options = self._options
        probe_due_ms = max(self._heard_ms, self._probed_ms) + options.heartbeat_ms
        probes = now_ms >= probe_due_ms
        if probes:
            self._probed_ms = now_ms
            probe_due_ms = now_ms + options.heartbeat_ms
        due_ms = min(self._bytes_ms + options.timeout_ms, probe_due_ms, send_due_ms)
        return Talk(self._take_outgoing(), probes, max(0.0, due_ms - now_ms))

    def waited(self) -> None:
        """The pause is over."""
        if self._state is _State.WAITING:
            self._pause = None
            self._state = _State.CONNECTING

    def opened(self, now_ms: float) -> None:
        """The WebSocket is open. The service speaks first: ``attached``."""
        self._bytes_ms = self._heard_ms = self._probed_ms = now_ms
        if self._state is _State.OPENING:
            self._state = _State.ATTACHING
            self._unusable.forget()

    def refused(self, now_ms: float, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """An HTTP response instead of a WebSocket."""
        if self._state is not _State.OPENING:
            return
        error = coded_error(status, headers, body)
        if error is None:
            unclear = Unavailable("something before the service answered with an error", status=status)
            self._again_or_end(now_ms, unclear) if status >= 500 or status == 429 else self.end(unclear)
        elif error.code is Code.DURABLE_BUSY:
            self._busy(now_ms, error)
        elif error.code in _RECONNECTED_CODES:
            self._again_or_end(now_ms, error)
        else:
            self.end(error)

    def _busy(self, now_ms: float, error: HoldfastError) -> None:
        """Another subscriber has the standard durable: ask again, for as long as a lost service is retried."""
        if not self._is_busy:
            self._is_busy = True
            facts = {name: error.fields.get(name) for name in ("holder", "since_ms")}
            self.advisories.add("durable_busy", facts)
            _logger.warning("waiting for a standard durable holder=%s since_ms=%s", *facts.values())
        if self._lost_since_ms is None:
            self._lost_since_ms = self._asked_ms  # the wait in the line of the service is a part of ``retry_duration``
        if now_ms - self._asked_ms >= busy_wait_ms(self._options) / 2:
            # It waited in the line of the service, which is pause enough.
            self._turns.progressed()
        self._again_or_end(now_ms, error, is_reached=True)

    def bytes_arrived(self, now_ms: float) -> None:
        """Bytes arrived, perhaps a part of a frame: the service is not silent. Call this before their events.

        After a silence that is too long they are old, as when this machine slept: the service has given up this
        subscriber meanwhile, and its messages are others'.
        """
        if self._state in _CONNECTED and now_ms - self._bytes_ms >= self._options.timeout_ms:
            self.lost(now_ms, f"nothing was read for {self._options.timeout_ms:g} ms")
        self._bytes_ms = now_ms

    def heard(self, now_ms: float) -> None:
        """A pong arrived."""
        self._bytes_ms = self._heard_ms = now_ms
        if self._state is _State.ATTACHED:
            self._made_progress()

    def too_large(self) -> None:
        """A frame is above the client's bound, as it would be on every connection."""
        if self._state in _CONNECTED:
            problem = "the service sent a frame that is larger than this client accepts"
            hint, bytes_max = "increase event_bytes_max in the ClientOptions", self._session.options.event_bytes_max
            self.end(LimitExceeded(problem, hint=hint, event_bytes_max=bytes_max))

    def received(self, payload: bytes, now_ms: float) -> None:
        """A frame arrived. One that the API does not describe ends the subscription."""
        self._bytes_ms = self._heard_ms = now_ms
        if self._state not in (_State.ATTACHING, _State.ATTACHED):
            return
        try:
            frame = decode_frame(payload)
        except CorruptData as error:
            self.end(error)
            return
        if isinstance(frame, _WORKING_FRAMES):
            self._made_progress()
        match frame:
            case MessagesFrame(messages=messages, buffer_wait_ms=wait_ms):
                if self.token:
                    # Nobody has seen them yet. A loop of its own would cost more than all the rest.
                    deque(map(force_setattr, messages, repeat("token"), repeat(self.token)), maxlen=0)
                self._window.arrived(messages, len(payload))
                again = [message.seq for message in messages if message.redelivered]
                self._buffer.arrived(messages, again, now_ms + (wait_ms or math.inf))
                for seq in again:
                    if self._acks.is_settling(seq):
                        # The service has not carried that out yet: its reply would have come before this delivery.
                        self._settled(seq, seq)
            case ReplyFrame():
                self._on_response(frame)
            case AttachedFrame():
                self._attached(frame, now_ms)
            case WithdrawnFrame(ranges=ranges, cause=cause):
                self._withdrawn(ranges, cause)
            case AdvisoryFrame(kind=kind, facts=facts):
                self._last_said = frame
                self.advisories.add(kind, facts)
            case ErrorFrame():
                self._errored(frame, now_ms)
            case ChangesFrame() | CurrentFrame():
                self.watched(frame)

    def lost(self, now_ms: float, reason: str, code: int = 1006, name: str = "") -> None:
        """The connection is lost. ``code`` and ``name`` (an error's code) are those of a close frame."""
        if self._state not in _CONNECTED:
            return
        error: HoldfastError = Unavailable(f"the connection to the service was lost: {reason}")
        if code not in _NORMAL_CLOSE and name:
            error = closing_error(name, self._last_said)
            if error.code not in _RECONNECTED_CODES:
                self.end(error)
                return
        self._again_or_end(now_ms, error)

    def unreached(self, now_ms: float, reason: str, problem: HoldfastError | None) -> None:
        """No connection was made. ``problem``: none will be until a configuration is changed."""
        if self._state is not _State.OPENING:
            return
        if problem is not None and self._unusable.met(problem, self._asked_endpoint, self._turns.sent_by):
            self.end(problem)
        else:
            self.lost(now_ms, reason)

    # the rules

    def watched(self, frame: ChangesFrame | CurrentFrame) -> None:
        """Changes of a map, for ``WatchMachine``; other subscribers of a map get advisories only."""

    def attached(self) -> None:
        """A connection begins."""

    def _attached(self, terms: AttachedFrame, now_ms: float) -> None:
        self._terms = terms
        self._begin_history(terms.token)
        self._state, self._attached_ms = _State.ATTACHED, now_ms
        self._session.route.succeeded()
        self.attached()
        if self._away_since_ms is not None and self.was_attached:
            self.advisories.add("store_available", {"away_ms": round(now_ms - self._away_since_ms)})
        self.was_attached = True
        self._is_busy = False
        self._away_since_ms = None
        self._buffer.begin(terms.order)
        self._window.begin(terms.prefetch, terms.buffer_wait_ms)
        self._window.kept(terms.kept)
        self._acks.in_work.kept(terms.kept)
        self._started.begin(is_taken=terms.started_reports)
        if terms.started_reports:
            self._outgoing.append(frame_of("started", ranges=()))
        self._outgoing += self._acks.again()
        self.flush()
        if not self._closing:
            self._give_credit()

    def _begin_history(self, token: str) -> None:
        """A connection begins. Numbers of another history mean other messages: what is not confirmed is not sent."""
        if self.token and token != self.token:
            lost = self._acks.replaced(replaced(self.token))
            if lost:
                self.advisories.add("store_replaced", {"messages": lost})
        self.token = self._acks.token = token

    def _made_progress(self) -> None:
        """The connection brought a message or reply, so the next loss starts a new retry budget. Being attached is not
        enough: a cause that ends each connection would be retried without a bound."""
        self._turns.progressed()
        self._lost_since_ms = None

    def _again_or_end(self, now_ms: float, error: HoldfastError, *, is_reached: bool = False) -> None:
        self._buffer.clear()
        self._outgoing.clear()
        self._window.lost()
        self._started.lost()
        if self._lost_since_ms is None:
            self._lost_since_ms = now_ms
        elif self._state is _State.ATTACHED:
            self._lost_since_ms += now_ms - self._attached_ms
        if self._away_since_ms is None:
            self._away_since_ms = now_ms
            if self.was_attached:
                self.advisories.add("store_unavailable", {"reason": error.statement()})
        assert self._asked_endpoint is not None, "a connection that is lost was asked for"
        wait = self._turns.after(
            self._asked_endpoint,
            error.code if is_reached or error.code in COORDINATION_CODES else None,
            leader_address=error.fields.get("leader_address"),
            at_least_ms=float(error.retry_after_ms or 0),
            is_lost=not is_reached,
            reason=error.statement(),
        )
        advice = self._session.route.advice
        if advice and advice != self._advice:
            self._advice = advice
            _logger.warning("a subscriber waits for the leader reason=%s", advice)
        seconds = self._options.retry_duration
        if self._closing or (seconds != FOR_EVER and now_ms - self._lost_since_ms >= seconds * 1000):
            self.end(None if self._closing else error)
            return
        self._pause = wait
        self._state = _State.WAITING

    def _withdrawn(self, ranges: Sequence[tuple[int, int]], cause: str) -> None:
        for first, last in ranges:
            self._acks.in_work.done(first, last)
        dropped = self._buffer.withdraw(ranges)
        self._window.withdrawn(ranges, sum(last - first + 1 for first, last in ranges) - len(dropped))
        if dropped and cause in REMOVED_CAUSES and self._terms.order == "key":
            # Nobody works on these: others may have the next messages of their keys at once.
            nacks = [(seq, 0) for seq in dropped]
            parts = [nacks[start : start + RANGES_MAX] for start in range(0, len(nacks), RANGES_MAX)]
            self._outgoing += [ack_frame("nack", 0, part, self.token) for part in parts]

    def _on_response(self, frame: ReplyFrame) -> None:
        stale, settled = self._acks.on_response(frame)
        for first, last in settled:
            self._settled(first, last)
        self._give_credit()
        if stale:
            facts: dict[str, object] = {"messages": len(stale), "first_seq": stale[0]}
            if frame.causes:
                facts["cause"] = frame.causes[0][2]
            self.advisories.add("stale_acknowledgement", facts)

    def _errored(self, frame: ErrorFrame, now_ms: float) -> None:
        error = named_error(ErrorBody(frame.code, frame.message, hint=frame.hint), 500)
        if error.code in _RECONNECTED_CODES and (self._acks.waits_for(frame.id) or not frame.id):
            self._again_or_end(now_ms, error)  # the frame goes out again when the service is back
        elif not self._acks.refused(frame.id, error):
            self.end(error)

    def _release(self, seq: int, kind: str, what: object, on_reply: OnReply | None) -> None:
        self._ask(kind, what, [(seq, seq)], on_reply)
        self._settled(seq, seq)
        self._give_credit()

    def _settled(self, first: int, last: int) -> None:
        """The application is done with these. A later delivery of one must not be handed over: it is settled, too."""
        self._window.took(self._buffer.settled(first, last))
        self._window.released(first, last)

    def _ask(self, kind: str, what: object, settles: Sequence[tuple[int, int]], on_reply: OnReply | None) -> None:
        self._require_usable()
        frame = self._acks.ask(kind, [what], settles, [] if on_reply is None else [on_reply])
        if self._state is _State.ATTACHED:
            self._outgoing.append(frame)

    def _give_credit(self) -> None:
        if self._window.is_own and self._acks.pending:
            return  # the service counts those as held until they are sent
        if self._state is _State.ATTACHED and (due := self._window.take_due()):
            self._outgoing.append(frame_of("credit", messages=due))

    def _batch_count(self) -> int:
        asked = self._options.ack_batch_count
        count = self._terms.ack_batch_count if asked is None else asked
        # Later than half the window, acknowledging would stop the deliveries that it makes room for.
        window = self._window
        return max(1, min(count, (window.size if window.is_own else window.most) // 2))

    def _take_outgoing(self) -> tuple[bytes, ...]:
        outgoing = tuple(self._outgoing)
        self._outgoing.clear()
        return outgoing

    @property
    def has_outgoing(self) -> bool:
        """Whether the driver should be woken to send."""
        return bool(self._outgoing)

    @property
    def goes_on(self) -> bool:
        """Whether it is attached and what arrived changed nothing that a driver carries out."""
        return self._state is _State.ATTACHED and not self._outgoing and not self._closing

    def _require_usable(self) -> None:
        if self._state is _State.ENDED or self._closing:
            if self.failure is not None:
                raise self.failure
            raise Closed("this subscriber is closed")

    def check(self) -> None:
        """Assert every law of the state; for tests."""
        self._acks.check()
        assert (self._state is _State.WAITING) == (self._pause is not None), "only waiting has a pause"
        assert not (self._buffer and self._state is not _State.ATTACHED), "only an attached subscriber has messages"
        assert not (self._outgoing and self._state is not _State.ATTACHED), (
            "only an attached subscriber has frames to send"
        )
