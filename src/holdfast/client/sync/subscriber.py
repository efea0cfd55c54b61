"""The blocking subscriber: the machine of ``consuming``, on a socket that one thread of its own serves.

Owns: the thread, the socket, waking the one for the other. Does not own: any decision (``consuming``), framing
(``web_socket``).

The thread reads, answers pings, sends acknowledgements when they are due and comes back after a loss, also while the
application works on a message for long. Everything else happens in the application's threads, under one lock.

Failure model: a lost connection is told to the machine. A bug that ends the thread ends the subscriber with it.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from types import TracebackType
from typing import Final, Self, TypeVar

from holdfast.client.protocol.effects import Wait
from holdfast.client.protocol.shell import draw_wait_ms, now_ms
from holdfast.client.protocol.unusable import problem_with, reason_of
from holdfast.client.stores.acknowledging import OnAnswer
from holdfast.client.stores.consuming import Consuming
from holdfast.client.stores.failures import RETRY_DELAY, Failures, OnError, at_least_one
from holdfast.client.stores.options import SubscriberOptions
from holdfast.client.stores.steps import Advisory, Connect, Ended, Talk
from holdfast.client.stores.web_socket import Happening, Hung, Opened, Payload, Pong, Refused, TooLarge, WebSocket
from holdfast.client.sync.sockets import RECEIVE_BYTES, Connection
from holdfast.errors import Closed, HoldfastError, InternalError
from holdfast.stores.values.messages import Delivery

__all__ = ["Subscriber"]

_EARLY_MS: Final = 1.0
"""A millisecond early would find nothing due and sleep again."""
REPORT_SECONDS_MAX: Final = 0.05
"""How long a message waits at most until it is reported as started."""

Item = TypeVar("Item")


class Subscriber:
    """The messages of one durable, delivered to one subscriber name. Made by ``StoreClient.subscriber``.

    Iterate, or take ``batches``, or ``run`` a function on each. Without ``explicit_ack`` a message is acknowledged when
    the next one is asked for, and when the function returned; what it raises gives the message back. The one that is
    worked on when the block is left, by ``break`` or otherwise, comes again unless it was acknowledged. Raises while
    iterating: Conflict (``durable_collision``: a newer subscriber took the place), NotFound, InvalidRequest
    (``matcher_mismatch``, ``type_mismatch``), PermissionDenied, LimitExceeded (above
    ``event_bytes_max``), Unavailable (after ``retry_duration``).
    """

    def __init__(
        self,
        machine: Consuming,
        options: SubscriberOptions,
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        payload_bytes_max: int,
    ) -> None:
        self._machine = machine
        self._options = options
        self._token = token
        self._tls = tls
        self._payload_bytes_max = payload_bytes_max
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._wakes, self._woken_by = socket.socketpair()
        self._wakes.setblocking(False)
        self._sleeps_until_ms = math.inf
        self._saying = False  # the thread has taken something to send and not sent it yet
        self._unacknowledged: dict[int, None] = {}  # numbers, in the order in which they were handed out

    def __enter__(self) -> Self:
        """Wait until the service delivers to this subscriber, so that a dynamic durable is there.

        Raises: what the service refuses; Unavailable after ``retry_duration``.
        """
        machine = self._machine
        try:
            with self._changed:
                self._start()
                self._changed.wait_for(lambda: machine.was_attached or machine.has_ended)
                if machine.failure is not None and not machine.was_attached:
                    raise machine.failure
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # receiving

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        message = self._next(math.inf)
        if message is None:
            raise StopIteration
        return message

    def receive(self, timeout: float | None = None) -> Delivery | None:
        """The next message, None when none came within ``timeout`` seconds or the subscriber is closed."""
        return self._next(math.inf if timeout is None else now_ms() + timeout * 1000)

    def batches(self) -> Iterator[list[Delivery]]:
        """The messages as they arrive together, at most the prefetch of them."""
        while True:
            with self._changed:
                self._settle_handed_out()
                if not self._more(math.inf):
                    return
                messages = self._machine.take_all(now_ms())
                if not self._options.explicit_ack:
                    self._unacknowledged = dict.fromkeys([message.seq for message in messages])
                self._report()
            yield messages

    def run(
        self,
        function: Callable[[Delivery], None],
        *,
        handlers: int = 1,
        redelivery_delay: float = 0.0,
        retry_delay: float = RETRY_DELAY,
        on_error: OnError | None = None,
        stop_on_error: bool = False,
    ) -> None:
        """Call ``function`` with each message until the subscriber is closed; acknowledge what it returned from.

        ``handlers`` threads do so at once, the caller's with one. An exception costs its message one delivery: it is
        put back, and delivered again after ``redelivery_delay`` seconds at the earliest. It is logged and given to
        ``on_error``, and its thread goes on after ``retry_delay`` seconds, twice as many after each further exception
        up to a minute. ``stop_on_error`` raises it instead, when the other threads have finished their message.
        """
        with self._changed:
            self._settle_handed_out()
        count = at_least_one(handlers)
        failures = [Failures(retry_delay, on_error, stop_on_error=stop_on_error) for _ in range(count)]
        if count == 1:
            self._handle(function, redelivery_delay, failures[0], threading.Event())
            return
        stopped = threading.Event()
        with ThreadPoolExecutor(count, thread_name_prefix="holdfast-handler") as pool:
            running = [pool.submit(self._handle, function, redelivery_delay, one, stopped) for one in failures]
            try:
                for done in as_completed(running):
                    done.result()
            finally:
                stopped.set()
                with self._changed:
                    self._changed.notify_all()

    def _handle(
        self,
        function: Callable[[Delivery], None],
        redelivery_delay: float,
        failures: Failures,
        stopped: threading.Event,
    ) -> None:
        while (message := self._take(math.inf, stopped)) is not None:
            try:
                function(message)
            except Exception as error:  # noqa: BLE001 - the application's: told, and raised where that is asked for
                with contextlib.suppress(Closed):  # closed meanwhile: it comes again
                    self.put_back(message, delay=redelivery_delay)
                delay = failures.met(message, error)
                with self._changed:
                    self._changed.wait_for(lambda: self._machine.has_ended or stopped.is_set(), delay)
            else:
                failures.forget()
                with contextlib.suppress(Closed):
                    self.acknowledge(message)

    # settling

    def acknowledge(self, *messages: Delivery, confirmed: bool = False) -> Sequence[int]:
        """These are consumed. ``confirmed`` waits until the service has it, as does ``ack_mode`` sync in any case.

        Returns the numbers that this subscriber held no more (they were delivered again), known when confirmed.
        """
        if not messages:
            return ()
        numbers = [(message.seq, message.seq) for message in messages]
        with self._changed:
            self._settles(messages)
            waits = confirmed or self._machine.acknowledges_at_once
            if not waits:
                self._machine.acknowledge_all(numbers, now_ms())
                self._said()
                return ()
        return self._answer(lambda done: self._machine.acknowledge_all(numbers, now_ms(), done))

    def put_back(self, message: Delivery, *, delay: float = 0.0, confirmed: bool = False) -> None:
        """Deliver this again to anybody, ``delay`` seconds later; it counts as one more delivery."""
        delay_ms = max(0, round(delay * 1000))
        self._settle(message, lambda done: self._machine.put_back(message.seq, delay_ms, done), confirmed=confirmed)

    def reject(self, message: Delivery, *, confirmed: bool = False) -> None:
        """Never deliver this again: it goes to the durable's dead letters."""
        self._settle(message, lambda done: self._machine.reject(message.seq, done), confirmed=confirmed)

    def extend(self, message: Delivery, *, confirmed: bool = False) -> None:
        """Work on this goes on: its time to be acknowledged starts anew."""
        self._settle(None, lambda done: self._machine.extend(message.seq, done), confirmed=confirmed)

    # the rest

    @property
    def stale(self) -> int:
        """How many acknowledgements came too late."""
        return self._machine.stale

    @property
    def is_attached(self) -> bool:
        """Whether the service delivers to this subscriber now."""
        return self._machine.is_attached

    def take_advisories(self) -> list[Advisory]:
        """What was advised since the last call."""
        with self._changed:
            return self._machine.take_advisories()

    def on_advisory(self, function: Callable[[Advisory], None] | None) -> None:
        """Call this with each advisory as it comes, from the subscriber's thread and with its lock held."""
        self._machine.on_advisory = function

    def close(self) -> None:
        """Send what is acknowledged, wait up to ``close_linger`` for the answers, and leave; the durable stays.

        What was handed out and not acknowledged comes again, also the message or the batch that was the last one.
        """
        with self._changed:
            self._machine.close()
            if self._thread is not None:
                self._wake()
                self._changed.wait_for(lambda: self._machine.has_ended, self._options.close_linger)
            self._machine.end(None)
            self._wake()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._wakes.close()
        self._woken_by.close()

    def next_of(self, take: Callable[[], Item | None], end_ms: float) -> Item | None:
        """What ``take`` finds before ``end_ms``; None when nothing comes. Raises: why nothing will. For ``Watch``."""
        with self._changed:
            item = take()
            return take() if item is None and self._more(end_ms) else item

    def _next(self, end_ms: float) -> Delivery | None:
        with self._changed:
            self._settle_handed_out()
            message = self._take(end_ms)
            if message is not None and not self._options.explicit_ack:
                self._unacknowledged[message.seq] = None
            return message

    def _take(self, end_ms: float, stopped: threading.Event | None = None) -> Delivery | None:
        """The next message, reported as started before it is handed out."""
        with self._changed:
            while (message := self._machine.take(now_ms())) is None:
                if not self._more(end_ms, stopped):
                    return None
            self._report()
            return message

    def _report(self) -> None:
        """Something is to be said of what was taken; where it has to be said first, wait for that."""
        self._said()
        if self._machine.reports_first:
            self._changed.wait_for(lambda: not self._machine.has_outgoing and not self._saying, REPORT_SECONDS_MAX)

    def _settle_handed_out(self) -> None:
        handed_out, self._unacknowledged = self._unacknowledged, {}
        if self._machine.has_ended:
            return
        for seq in handed_out:
            self._machine.acknowledge(seq, seq, now_ms())
        if handed_out:
            self._said()

    def _settles(self, messages: Sequence[Delivery]) -> None:
        """The application says itself what becomes of these: asking for the next one does not acknowledge them."""
        for message in messages:
            self._unacknowledged.pop(message.seq, None)

    def _settle(self, message: Delivery | None, ask: Callable[[OnAnswer | None], None], *, confirmed: bool) -> None:
        with self._changed:
            self._settles(() if message is None else (message,))
            if not confirmed:
                ask(None)
                self._said()
                return
        self._answer(ask)

    def _answer(self, ask: Callable[[OnAnswer], None]) -> Sequence[int]:
        answers: list[tuple[Sequence[int], HoldfastError | None]] = []

        def done(stale: Sequence[int], error: HoldfastError | None) -> None:
            answers.append((stale, error))

        with self._changed:
            self._start()
            ask(done)
            self._said()
            self._changed.wait_for(lambda: bool(answers))
        stale, error = answers[0]
        if error is not None:
            raise error
        return stale

    def _said(self) -> None:
        """Something is to be sent, now or before the thread wakes by itself."""
        machine = self._machine
        if machine.has_outgoing or (machine.is_attached and machine.say_due_ms < self._sleeps_until_ms):
            self._wake()

    def _more(self, end_ms: float, stopped: threading.Event | None = None) -> bool:
        """Wait until something came. False when nothing will, or not in time. Raises: why nothing will."""
        self._start()
        while not self._machine.has_ready:
            if stopped is not None and stopped.is_set():
                return False
            if self._machine.has_ended:
                if self._machine.failure is not None:
                    raise self._machine.failure
                return False
            left_ms = end_ms - now_ms()
            if left_ms <= 0:
                return False
            self._changed.wait(None if math.isinf(left_ms) else left_ms / 1000)
        return True

    # the thread

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        self._sleeps_until_ms = -math.inf  # once is enough
        with contextlib.suppress(BlockingIOError, OSError):
            self._wakes.send(b"\0")

    def _work(self) -> None:
        line: _Line | None = None
        try:
            while True:
                with self._changed:
                    step = self._machine.next_step(now_ms())
                    self._saying = isinstance(step, Talk) and bool(step.outgoing)
                match step:
                    case Connect():
                        line = self._replace(line, step)
                    case Talk():
                        line = self._talk(line, step)
                    case Wait():
                        line = self._replace(line, None)
                        self._pause(draw_wait_ms(step))
                        with self._changed:
                            self._machine.waited()
                    case Ended(outgoing=outgoing):
                        if line is not None:
                            with contextlib.suppress(OSError):
                                line.say(outgoing, probes=False)
                        return
        except BaseException as error:
            broken = InternalError("the subscriber's thread ended")
            broken.__cause__ = error
            with self._changed:
                self._machine.end(broken)
            raise
        finally:
            self._replace(line, None)
            with self._changed:
                self._changed.notify_all()

    def _replace(self, line: _Line | None, step: Connect | None) -> _Line | None:
        if line is not None:
            line.close()
        if step is None:
            return None
        try:
            return _Line(step, self._token, self._tls, self._payload_bytes_max)
        except (OSError, UnicodeError) as error:
            with self._changed:
                self._machine.unreached(now_ms(), reason_of(error), problem_with(step.endpoint, error))
            return None

    def _talk(self, line: _Line | None, step: Talk) -> _Line | None:
        if line is None:  # the connection was lost while it was made
            return None
        try:
            line.say(step.outgoing, probes=step.probes)
            if step.outgoing:
                with self._changed:
                    self._saying = False
                    self._changed.notify_all()
            readable = self._sleep(line, step.timeout_ms)
            happenings = line.hear() if readable else []
        except OSError as error:
            with self._changed:
                self._machine.lost(now_ms(), reason_of(error))
            line.close()
            return None
        with self._changed:
            now = now_ms()
            if readable:
                self._machine.stirred(now)
            for happening in happenings:
                match happening:
                    case Payload(data=payload):
                        self._machine.received(payload, now)
                    case Opened():
                        self._machine.opened(now)
                    case Pong():
                        self._machine.heard(now)
                    case Refused(status=status, headers=headers, body=body):
                        self._machine.refused(now, status, headers, body)
                    case Hung(reason=reason, code=code, name=name):
                        self._machine.lost(now, reason, code, name)
                    case TooLarge():
                        self._machine.too_large()
            if happenings:
                self._changed.notify_all()
        return line

    def _sleep(self, line: _Line, timeout_ms: float) -> bool:
        """Until the line is readable (then True), the application wakes us, or it is time."""
        with self._changed:
            machine, now = self._machine, now_ms()
            if machine.has_outgoing:
                timeout_ms = 0.0
            elif machine.is_attached:  # the application may have acknowledged something since the step was made
                timeout_ms = min(timeout_ms, max(0.0, machine.say_due_ms - now))
            self._sleeps_until_ms = now + timeout_ms
        number = line.connection.socket.fileno()
        return number in self._wait([number], timeout_ms + _EARLY_MS if timeout_ms else 0)

    def _pause(self, ms: float) -> None:
        with self._changed:
            self._sleeps_until_ms = math.inf  # only closing wakes
            if self._machine.has_ended:
                return
        self._wait([], ms)

    def _wait(self, numbers: list[int], ms: float) -> set[int]:
        """Which of these descriptors are readable, or at an end, before it is time or the application wakes us."""
        poll = select.poll()  # a program may have more files open than select can name
        own = self._woken_by.fileno()
        for number in (own, *numbers):
            poll.register(number, select.POLLIN)
        readable = {number for number, _ in poll.poll(math.ceil(ms))}
        if own in readable:
            self._woken_by.recv(4_096)
        return readable


class _Line:
    """One connection and its WebSocket."""

    def __init__(self, step: Connect, token: str | None, tls: ssl.SSLContext | None, payload_bytes_max: int) -> None:
        """Raises: OSError."""
        self._timeout_s = step.timeout_ms / 1000
        self.connection = Connection(step.endpoint, tls, self._timeout_s)
        self.socket = WebSocket(step.endpoint, step.target, token, payload_bytes_max)
        self._write()

    def say(self, outgoing: Sequence[bytes], *, probes: bool) -> None:
        """Send these. Raises: OSError."""
        for payload in outgoing:
            self.socket.send(payload)
        if probes:
            self.socket.ping()
        self._write()

    def hear(self) -> list[Happening]:
        """What has arrived. Raises: OSError."""
        raw = self.connection.socket
        raw.settimeout(self._timeout_s)
        happenings = self.socket.feed(raw.recv(RECEIVE_BYTES))
        while isinstance(raw, ssl.SSLSocket) and raw.pending():  # decrypted already: select would not tell
            happenings += self.socket.feed(raw.recv(RECEIVE_BYTES))
        self._write()
        return happenings

    def close(self) -> None:
        """Say good-bye and go."""
        self.socket.close()
        with contextlib.suppress(OSError):
            self._write()
        self.connection.close()

    def _write(self) -> None:
        data = self.socket.take_bytes()
        if data:
            self.connection.send(data, self._timeout_s)
