"""The drivers of publishers and subscribers in threads; every decision is made by the machines.

An interrupt of a thread that waits for the confirmation of its message says nothing about the message, which may still
be sent.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final, TypeVar

from holdfast.client.protocol.effects import Failed, Response, Send, Wait
from holdfast.client.protocol.endpoint import Endpoint
from holdfast.client.protocol.http1 import problem_with, reason_of
from holdfast.client.protocol.lookout import ANOTHER_LEADS
from holdfast.client.protocol.options import SubscriberOptions
from holdfast.client.protocol.stores.acknowledgements import OnReply
from holdfast.client.protocol.stores.publisher import LINGER, PublisherMachine, Sent, receipt_of
from holdfast.client.protocol.stores.subscriber import Connect, Ended, SubscriberMachine, Talk
from holdfast.client.protocol.stores.web_socket import WebSocket
from holdfast.client.transport.clock import draw_wait_ms, now_ms
from holdfast.client.transport.sync import RECEIVE_BYTES, Awaited, Connection, Event, LookoutTask, Pool, ticks
from holdfast.errors import Closed, HoldfastError, InternalError
from holdfast.wire.parts import Message, Receipt

__all__ = ["Event", "Pool", "PublisherDriver", "SubscriberDriver", "run_each"]

EARLY_MS: Final = 1.0
"""A millisecond early would find nothing due and sleep again."""
REPORT_SECONDS_MAX: Final = 0.05
READ_SECONDS_MAX: Final = 0.25
"""How long a message waits at most until it is reported as started."""

Item = TypeVar("Item")


def run_each(function: Callable[[Item], None], items: Sequence[Item], stop: Callable[[], None]) -> None:
    """Run the function on all items at the same time, each in a thread, one alone in the caller's. After the first
    error ``stop`` is called, and it is raised when the other threads have ended."""
    if len(items) == 1:
        function(items[0])
        return
    with ThreadPoolExecutor(len(items), thread_name_prefix="holdfast-handler") as pool:
        running = [pool.submit(function, item) for item in items]
        try:
            for done in as_completed(running):
                done.result()
        finally:
            stop()


class PublisherDriver:
    """Carries out the steps of one publisher's machine, in a thread that waits for it.

    One thread at a time drives: it sends the request that is due, without the lock, and notifies the others. So one
    message at a time costs no change of threads. ``wake`` starts a thread for messages that no thread waits for.
    """

    def __init__(self, pool: Pool, machine: PublisherMachine) -> None:
        self._pool = pool
        self._machine = machine
        self._changed = threading.Condition()
        self.lock = self._changed
        self._driving = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_watched = False

    @property
    def is_idle(self) -> bool:
        """Whether a message that was added needs a ``wake``."""
        return not self._driving or self._thread is None

    def add(self, message: Message, at_ms: float, *, told: bool = False) -> Sent:
        """See ``PublisherMachine``."""
        with self._changed:
            return self._machine.add(message, at_ms, told=told)

    def add_batch(self, messages: Sequence[Message], at_ms: float) -> list[Sent]:
        """See ``PublisherMachine``."""
        with self._changed:
            return self._machine.add_batch(messages, at_ms)

    def room(self) -> None:
        """Wait until the window has room."""
        self._drive_until(lambda: self._machine.has_room)

    def confirmation(self, last: Sent, count: int) -> Receipt:
        """Wait until ``last``, the last of ``count`` messages, is confirmed. Raises: why it is not."""
        del count
        self._drive_until(lambda: last.done)
        return receipt_of(last)

    def wake(self) -> None:
        """Send what was added."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._drive_until, args=(self._closing.is_set,), daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float = math.inf) -> None:
        """Send without lingering, and wait until nothing is unconfirmed or time is up."""
        with self._changed:
            self._machine.flush()
            self._changed.notify_all()
        self._drive_until(lambda: not self._machine.unconfirmed, now_ms() + timeout_s * 1000)

    def close(self, error: Closed) -> None:
        """Send nothing more; unconfirmed messages fail."""
        with self._changed:
            self._closing.set()
            self._machine.end(error)
            self._changed.notify_all()

    def _drive_until(self, is_done: Callable[[], bool], end_ms: float = math.inf) -> None:
        """Return when ``is_done``, or at ``end_ms``; drive meanwhile whenever no other thread does."""
        while True:
            with self._changed:
                step = self._next(is_done, end_ms)
                if step is None:
                    return
                self._driving = True
            reply: Response | Failed = Failed(now_ms(), True, "interrupted")
            closed: Closed | None = None
            try:
                if isinstance(step, Send):
                    if not self._is_watched:
                        self._is_watched = True
                        ticks.add(self)
                    reply = self._pool.exchange(step)
                else:
                    self._closing.wait(max(0.0, min(draw_wait_ms(step), end_ms - now_ms())) / 1000)
            except Closed as error:  # the client was closed before its publisher; nothing was sent
                reply, closed = Failed(now_ms(), False, error.statement()), error
            finally:
                with self._changed:
                    self._driving = False
                    if isinstance(step, Wait):
                        self._machine.waited()
                    else:
                        self._machine.on_response(reply)
                    if closed is not None:
                        self._machine.end(closed)
                    self._changed.notify_all()

    def look(self) -> bool:
        """Warn of a request that has no response for long. See ``TickTarget``."""
        with self._changed:
            self._machine.look(now_ms())
        return False

    def _next(self, is_done: Callable[[], bool], end_ms: float) -> Send | Wait | None:
        """The step for this thread, None when it may return. Waits while there is no step."""
        while True:
            left_ms = end_ms - now_ms()
            if is_done() or left_ms <= 0:
                return None
            step = None if self._driving else self._machine.next_step(now_ms())
            if isinstance(step, Wait) and step.reason == LINGER:
                left_ms = min(left_ms, step.at_least_ms)
                step = None
            if step is not None:
                return step
            self._changed.wait(None if math.isinf(left_ms) else left_ms / 1000)


class SubscriberDriver:
    """Carries out the steps of one subscriber's machine in its own thread, also while the application is busy. An error
    in the thread ends the subscriber."""

    def __init__(
        self,
        machine: SubscriberMachine,
        options: SubscriberOptions,
        token: str | None,
        tls: ssl.SSLContext | None,
        watch: LookoutTask,
    ) -> None:
        self._machine = machine
        self._options = options
        self._token = token
        self._tls = tls
        self._watch = watch
        self._connecting: Awaited | None = None
        self._changed = threading.Condition(threading.RLock())
        self.lock = self._changed
        self.wait = self._changed.wait
        self.wait_for = self._changed.wait_for
        self._thread: threading.Thread | None = None
        self._wakes, self._woken_by = socket.socketpair()
        self._wakes.setblocking(False)
        self._sleeps_until_ms = math.inf
        self._saying = False  # the thread has taken frames and not sent them yet
        self._hearing = False  # the thread is about to read bytes, or has not passed them on yet
        self._line: _Line | None = None

    def start(self) -> None:
        """Connect, unless that was begun before."""
        if self._thread is None:
            self._watch.add(self)
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def awaited(self, at_ms: float) -> list[tuple[Endpoint, float]]:
        """See ``Waiting``."""
        del at_ms
        with self._changed:
            awaited = self._machine.awaited
        return [] if awaited is None else [awaited]

    def leave(self, endpoints: Collection[Endpoint], at_ms: float) -> None:
        """See ``Waiting``."""
        with self._changed:
            awaited = self._machine.awaited
            if awaited is not None and awaited[0] in endpoints:
                self._machine.lost(at_ms, ANOTHER_LEADS)
                if self._connecting is not None:
                    self._connecting.leave()
                if self._line is not None:
                    self._line.connection.cut_off()  # the thread may be sending to a peer that does not read
                self._wake()

    def schedule(self) -> None:
        """See that outgoing frames are sent, now or before the thread wakes by itself."""
        machine = self._machine
        if machine.has_outgoing or (machine.is_attached and machine.send_due_ms < self._sleeps_until_ms):
            self._wake()

    def read_all(self) -> None:
        """Wait until the thread has read what has arrived: what was withdrawn while the process slept must not be
        handed over. With the lock held.

        Where more arrives all the time, ``READ_SECONDS_MAX`` are enough: what is withdrawn now was here a moment ago.
        """
        # In this order: what the thread has read is not on the line any more.
        self.wait_for(
            lambda: (self._line is None or not self._line.is_behind) and not self._hearing,
            READ_SECONDS_MAX,
        )

    def report(self) -> None:
        """Report the messages taken last as started, before the application gets them."""
        self.schedule()
        if self._machine.reports_first:
            self.wait_for(lambda: not self._machine.has_outgoing and not self._saying, REPORT_SECONDS_MAX)

    def ask(self, send: Callable[[OnReply], None]) -> Sequence[int]:
        """The service's reply to the frame that ``send`` makes: the stale numbers. Raises: what it refuses with."""
        replies: list[tuple[Sequence[int], HoldfastError | None]] = []

        def done(stale: Sequence[int], error: HoldfastError | None) -> None:
            replies.append((stale, error))

        with self._changed:
            self.start()
            send(done)
            self.schedule()
            self.wait_for(lambda: bool(replies))
        stale, error = replies[0]
        if error is not None:
            raise error
        return stale

    def notify(self) -> None:
        """End every wait."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Send what is acknowledged, wait up to ``close_linger`` for the replies, and disconnect."""
        with self._changed:
            self._machine.close()
            if self._thread is not None:
                self._wake()
                self.wait_for(lambda: self._machine.has_ended, self._options.close_linger)
            self._machine.end(None)
            self._wake()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._wakes.close()
        self._woken_by.close()

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
            self._watch.remove(self)
            self._replace(line, None)
            with self._changed:
                self._changed.notify_all()

    def _replace(self, line: _Line | None, step: Connect | None) -> _Line | None:
        if line is not None:
            line.close()
        self._line = None
        if step is None:
            return None
        self._watch.begin()
        wait = self._connecting = Awaited(step.endpoint, now_ms())
        try:
            made = self._line = _Line(step, self._token, self._tls, wait)
            return made
        except (OSError, UnicodeError) as error:
            with self._changed:
                self._machine.unreached(now_ms(), reason_of(error), problem_with(step.endpoint, error))
            return None
        finally:
            self._connecting = None

    def _talk(self, line: _Line | None, step: Talk) -> _Line | None:
        if line is None:  # the connection was lost while it was made
            return None
        try:
            line.say(step.outgoing, probes=step.probes)
            if self._watch.rests and (step.probes or step.outgoing):
                self._watch.begin()
            if step.outgoing:
                with self._changed:
                    self._saying = False
                    self._changed.notify_all()
            readable = self._hearing = self._sleep(line, step.timeout_ms)
            arrived = line.hear() if readable else []
        except OSError as error:
            with self._changed:
                self._hearing = False
                self._machine.lost(now_ms(), reason_of(error))
                self._changed.notify_all()
            return self._replace(line, None)
        with self._changed:
            now = now_ms()
            for data in arrived:
                line.socket.feed(data, self._machine, now)
            if readable:
                self._hearing = False
                self._changed.notify_all()
        return line

    def _sleep(self, line: _Line, timeout_ms: float) -> bool:
        """Wait until the line is readable (True), the application wakes this thread, or time is up."""
        with self._changed:
            machine, now = self._machine, now_ms()
            if machine.has_outgoing:
                timeout_ms = 0.0
            elif machine.is_attached:  # the application may have acknowledged something since the step was made
                timeout_ms = min(timeout_ms, max(0.0, machine.send_due_ms - now))
            self._sleeps_until_ms = now + timeout_ms
        number = line.connection.socket.fileno()
        return number in self._wait([number], timeout_ms + EARLY_MS if timeout_ms else 0)

    def _pause(self, ms: float) -> None:
        with self._changed:
            self._sleeps_until_ms = math.inf  # only closing wakes
            if self._machine.has_ended:
                return
        self._wait([], ms)

    def _wait(self, numbers: list[int], ms: float) -> set[int]:
        """The descriptors that are readable or at an end, before time is up or the application wakes this thread."""
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

    def __init__(self, step: Connect, token: str | None, tls: ssl.SSLContext | None, wait: Awaited) -> None:
        """Raises: OSError."""
        self._timeout_s = step.timeout_ms / 1000
        self.connection = Connection(step.endpoint, tls, self._timeout_s, wait)
        self.socket = WebSocket(step.endpoint, step.target, token, step.payload_bytes_max)
        self._poll = select.poll()
        self._poll.register(self.connection.socket.fileno(), select.POLLIN)
        self._write()

    @property
    def is_behind(self) -> bool:
        """Whether bytes wait to be read."""
        return any(mask & select.POLLIN for _, mask in self._poll.poll(0))

    def say(self, outgoing: Sequence[bytes], *, probes: bool) -> None:
        """Send these. Raises: OSError."""
        for payload in outgoing:
            self.socket.send(payload)
        if probes:
            self.socket.ping()
        self._write()

    def hear(self) -> list[bytes]:
        """What has arrived; no bytes at the end of the connection. Raises: OSError."""
        raw = self.connection.socket
        raw.settimeout(self._timeout_s)
        arrived = [raw.recv(RECEIVE_BYTES)]
        while isinstance(raw, ssl.SSLSocket) and raw.pending():  # decrypted already, which poll does not report
            arrived.append(raw.recv(RECEIVE_BYTES))
        return arrived

    def close(self) -> None:
        """Send a close frame and close the connection."""
        self.socket.close()
        with contextlib.suppress(OSError):
            self._write()
        self.connection.close()

    def _write(self) -> None:
        data = self.socket.take_bytes()
        if data:
            self.connection.send(data, self._timeout_s)
