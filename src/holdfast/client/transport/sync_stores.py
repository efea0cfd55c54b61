"""The drivers of publishers and subscribers in threads; every decision is made by the machines.

An interrupt of a thread that waits for the confirmation of its message says nothing about the message, which may still
be sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import selectors
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cached_property, partial
from typing import Any, Final, TypeVar

from holdfast.client.protocol.effects import Failed, Response, Send, Wait
from holdfast.client.protocol.endpoint import Endpoint
from holdfast.client.protocol.stores.acknowledgements import OnReply
from holdfast.client.protocol.stores.publisher import LINGER, PublisherMachine, Sent, receipt_of
from holdfast.client.transport.clock import draw_wait_ms, now_ms
from holdfast.client.transport.subscribing import Line, SubscriberSteps
from holdfast.client.transport.sync import Event, Pool, ticks
from holdfast.errors import Closed, HoldfastError, InternalError
from holdfast.wire.parts import Message, Receipt

__all__ = ["Event", "Pool", "PublisherDriver", "SubscriberDriver", "run_each"]

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


class _Selector(selectors.DefaultSelector):
    """Calls ``hears`` with True when a loop is about to read, and with False when it has passed on what it read."""

    def __init__(self, hears: Callable[[bool], None]) -> None:
        super().__init__()
        self._hears = hears

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the loop wants."""
        self._hears(False)
        events = super().select(timeout)
        self._hears(bool(events))
        return events


class SubscriberDriver(SubscriberSteps):
    """The steps of one subscriber's machine, on a loop in a thread of its own, also while the application is busy. An
    error in the thread ends the subscriber."""

    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _over: asyncio.Future[None] | None = None
    _is_woken = False
    _is_hearing = False
    """Whether the thread is about to read bytes, or has not passed them on yet."""

    @cached_property
    def lock(self) -> threading.Condition:
        """Of the machine."""
        return threading.Condition(threading.RLock())

    def start(self) -> None:
        """Connect, unless that was begun before."""
        if not self._started:
            self._started = True
            self._watch.add(self)
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def schedule(self) -> None:
        """See that outgoing frames are sent, now or before the thread wakes by itself."""
        machine = self._machine
        if machine.has_outgoing or (machine.is_attached and machine.send_due_ms < self._timer_ms - 1):
            self._wake()

    def read_all(self) -> None:
        """Wait until the thread has read what has arrived: what was withdrawn while the process slept must not be
        handed over. With the lock held.

        Where more arrives all the time, ``READ_SECONDS_MAX`` are enough: what is withdrawn now was here a moment ago.
        """
        # In this order: what the thread has read is not on the line any more.
        self.wait_for(
            lambda: (self._line is None or not self._line.is_behind) and not self._is_hearing,
            READ_SECONDS_MAX,
        )

    def report(self) -> None:
        """Report the messages taken last as started, before the application gets them."""
        self.schedule()
        if self._machine.reports_first:
            self.wait_for(lambda: not self._machine.has_outgoing, REPORT_SECONDS_MAX)

    def ask(self, send: Callable[[OnReply], None]) -> Sequence[int]:
        """The service's reply to the frame that ``send`` makes: the stale numbers. Raises: what it refuses with."""
        replies: list[tuple[Sequence[int], HoldfastError | None]] = []

        def done(stale: Sequence[int], error: HoldfastError | None) -> None:
            replies.append((stale, error))

        with self.lock:
            self.start()
            send(done)
            self.schedule()
            self.wait_for(lambda: bool(replies))
        stale, error = replies[0]
        if error is not None:
            raise error
        return stale

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the state may have changed. With the lock held, as all waits."""
        self.lock.wait(timeout_s)

    def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait until this is true."""
        self.lock.wait_for(is_true, timeout_s)

    def notify(self) -> None:
        """End every wait."""
        with self.lock:
            self.lock.notify_all()

    def close(self) -> None:
        """Send what is acknowledged, wait up to ``close_linger`` for the replies, and disconnect."""
        with self.lock:
            self._machine.close()
            if self._thread is not None:
                self._wake()
                self.wait_for(lambda: self._machine.has_ended, self._options.close_linger)
            self._machine.end(None)
            self._wake()
            self.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def awaited(self, at_ms: float) -> list[tuple[Endpoint, float]]:
        """See ``Waiting``."""
        with self.lock:
            return super().awaited(at_ms)

    def leave(self, endpoints: Collection[Endpoint], at_ms: float) -> None:
        """See ``Waiting``."""
        self._call_there(partial(super().leave, endpoints, at_ms))

    def _wake(self) -> None:
        if not self._is_woken:  # once is enough
            self._is_woken = True
            self._call_there(self._pump)

    def _call_there(self, function: Callable[[], None]) -> None:
        """Have the thread call this, with the lock held."""

        def call() -> None:
            with self.lock:
                self._is_woken = False
                function()

        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(call)

    # in the thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Selector(self._hears))) as runner:
                runner.run(self._work())
        finally:
            with self.lock:
                self._machine.end(InternalError("the subscriber's thread ended"))
                self._watch.remove(self)
                self.notify()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._broken)
        self._over = loop.create_future()
        with self.lock:
            self._loop = loop
            self._is_woken = False
            self._pump()
        await self._over
        await self._closing_connections.over()

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised an error."""
        loop.default_exception_handler(context)
        broken = InternalError("the subscriber's thread ended")
        broken.__cause__ = context.get("exception")
        with self.lock:
            self._machine.end(broken)
            self._pump()

    def _hears(self, is_hearing: bool) -> None:
        if is_hearing:
            self._is_hearing = True
        elif self._is_hearing:
            with self.lock:
                self._is_hearing = False
                self.notify()

    def _arrived(self, line: Line, data: bytes) -> None:
        with self.lock:
            super()._arrived(line, data)

    def _unreached(self, line: Line, endpoint: Endpoint, error: OSError | UnicodeError) -> None:
        with self.lock:
            super()._unreached(line, endpoint, error)

    def _waited(self) -> None:
        with self.lock:
            super()._waited()

    def _look(self) -> None:
        with self.lock:
            super()._look()

    def _stop(self) -> None:
        super()._stop()
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
