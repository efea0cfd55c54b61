"""The blocking publisher: the machine of ``publishing``, driven by whichever thread waits for it.

Owns: who of the threads drives, waiting for room and for confirmations. Does not own: any decision (``publishing``),
connections (``client.sockets``).

One thread at a time drives: it sends the request that is due, without holding the lock, and tells everybody what came
of it. A thread that waits for its own message drives if nobody else does, so one message at a time costs no change of
threads; ``send`` waits for nobody, so its first call starts a thread that drives what nobody waits for.

Failure model: an interrupt in a waiting thread says nothing of its message, which may still be sent.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from holdfast.client.protocol.effects import Failed, Reply, Send, Wait
from holdfast.client.protocol.shell import draw_wait_ms, now_ms
from holdfast.client.stores.blockage import LOOK_EVERY_MS
from holdfast.client.stores.options import PublisherOptions
from holdfast.client.stores.publishing import LINGER, Publishing
from holdfast.client.stores.sent import Failure, Sent
from holdfast.client.stores.steps import Advisory
from holdfast.client.sync.sockets import Pool
from holdfast.errors import Closed, HoldfastError
from holdfast.stores.values.messages import FieldValue, Message
from holdfast.wire.stores import Receipt

__all__ = ["Publisher"]

_NO_FIELDS: Mapping[str, FieldValue] = {}


class Publisher:
    """Sends messages to one store, in order. Made by ``StoreClient.publisher``. Threads may share it.

    ``publish`` and ``publish_batch`` return when the store has confirmed; ``send`` returns when the window has room,
    and ``flush`` when everything sent is confirmed. Raises: what the store refuses with; OutcomeUnknown; Closed.
    """

    def __init__(self, pool: Pool, machine: Publishing, options: PublisherOptions) -> None:
        self._pool = pool
        self._machine = machine
        self._options = options
        self._changed = threading.Condition()
        self._driving = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_watched = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HoldfastError:
            if error is None:  # otherwise the block's own error is the one to hear
                raise

    @property
    def publisher_id(self) -> str:
        """Under which id messages go out now."""
        return self._machine.publisher_id

    @property
    def unconfirmed(self) -> int:
        """How many messages are neither confirmed nor failed."""
        return self._machine.unsettled

    def publish(
        self,
        body: bytes,
        *,
        fields: Mapping[str, FieldValue] = _NO_FIELDS,
        key: str | None = None,
        ttl_ms: int = 0,
        deliver_at_ms: int = 0,
    ) -> Receipt:
        """Send one message and wait until the store has it as durably as its cluster's ``persistence`` says.

        Cost: one request, which it shares with what other threads publish at the same time.
        """
        message = Message(body, dict(fields) if fields else {}, key, 0, ttl_ms, deliver_at_ms)
        self._room()
        with self._changed:
            sent = self._machine.add(message, now_ms(), told=True)
        return self._confirmation(sent)

    def publish_batch(self, messages: Sequence[Message]) -> Receipt:
        """Send messages that are kept all together or not at all, and wait as ``publish`` does."""
        self._room()
        with self._changed:
            items = self._machine.add_batch(messages, now_ms())
        return self._confirmation(items[-1])

    def send(
        self,
        body: bytes,
        *,
        fields: Mapping[str, FieldValue] = _NO_FIELDS,
        key: str | None = None,
        ttl_ms: int = 0,
        deliver_at_ms: int = 0,
    ) -> Sent:
        """Send one message without waiting for more than room in the window. ``flush`` tells what failed."""
        message = Message(body, dict(fields) if fields else {}, key, 0, ttl_ms, deliver_at_ms)
        self._room()
        with self._changed:
            sent = self._machine.add(message, now_ms())
            if self._thread is None:
                self._thread = threading.Thread(target=self._drive_what_nobody_waits_for, daemon=True)
                self._thread.start()
            if not self._driving:
                self._changed.notify_all()
        return sent

    def flush(self) -> None:
        """Wait until nothing is unconfirmed.

        Raises: the first failure of what was sent since ``take_failures`` was called last.
        """
        with self._changed:
            self._machine.flush()
            self._changed.notify_all()
        self._drive_until(lambda: not self._machine.unsettled)
        with self._changed:
            if self._machine.first_error is not None:
                raise self._machine.first_error

    def take_advisories(self) -> list[Advisory]:
        """What was advised since the last call: why the store takes nothing, and that it does again."""
        with self._changed:
            return self._machine.blockage.take_advisories()

    def on_advisory(self, function: Callable[[Advisory], None] | None) -> None:
        """Call this with each advisory as it comes, from the thread that sends and with the publisher's lock held."""
        self._machine.blockage.on_advisory = function

    def take_failures(self) -> list[Failure]:
        """The messages given to ``send`` that failed since the last call, each with its error."""
        with self._changed:
            return self._machine.take_failures()

    def close(self) -> None:
        """Wait up to ``close_linger`` for what is unconfirmed; the rest fails with Closed or OutcomeUnknown.

        Raises: the first failure that nobody has taken.
        """
        try:
            with self._changed:
                self._machine.flush()
                self._changed.notify_all()
            end_ms = now_ms() + self._options.close_linger * 1000
            self._drive_until(lambda: not self._machine.unsettled, end_ms)
        finally:
            with self._changed:
                self._closing.set()
                self._machine.end(Closed("the publisher was closed before the store confirmed"))
                self._changed.notify_all()
        with self._changed:
            if self._machine.first_error is not None:
                raise self._machine.first_error

    def _confirmation(self, sent: Sent) -> Receipt:
        self._drive_until(lambda: sent.done)
        if sent.error is not None:
            raise sent.error
        return sent.receipt if sent.receipt is not None else Receipt(0, 0)

    def _room(self) -> None:
        if not self._machine.has_room:
            self._drive_until(lambda: self._machine.has_room)

    def _drive_what_nobody_waits_for(self) -> None:
        self._drive_until(self._closing.is_set)

    def _drive_until(self, is_done: Callable[[], bool], end_ms: float = math.inf) -> None:
        """Return when ``is_done``, or at ``end_ms``; drive meanwhile whenever nobody else does."""
        while True:
            with self._changed:
                step = self._next(is_done, end_ms)
                if step is None:
                    return
                self._driving = True
            answer: Reply | Failed = Failed(now_ms(), True, "interrupted")
            closed: Closed | None = None
            try:
                if isinstance(step, Send):
                    if not self._is_watched:
                        self._is_watched = True
                        _lookout.add(self)
                    answer = self._pool.exchange(step)
                else:
                    self._closing.wait(max(0.0, min(draw_wait_ms(step), end_ms - now_ms())) / 1000)
            except Closed as error:  # the client was closed before its publisher; nothing was sent
                answer, closed = Failed(now_ms(), False, error.statement()), error
            finally:
                with self._changed:
                    self._driving = False
                    if isinstance(step, Wait):
                        self._machine.waited()
                    else:
                        self._machine.answered(answer)
                    if closed is not None:
                        self._machine.end(closed)
                    self._changed.notify_all()

    def _look(self) -> None:
        """Tell of a request that has no answer for long."""
        with self._changed:
            self._machine.look(now_ms())

    def _next(self, is_done: Callable[[], bool], end_ms: float) -> Send | Wait | None:
        """The step that this thread is to carry out, None when it may go. Waits while there is nothing for it to do."""
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


class _Lookout:
    """One thread of the process that looks at every publisher, because the thread that sends waits for its answer."""

    def __init__(self) -> None:
        self._publishers: weakref.WeakSet[Publisher] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, publisher: Publisher) -> None:
        """Look at this one, too."""
        with self._lock:
            self._publishers.add(publisher)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="holdfast-publishers", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_MS / 1000)
            with self._lock:
                publishers = list(self._publishers)
                if not publishers:
                    self._thread = None
                    return
            for publisher in publishers:
                publisher._look()  # pyright: ignore[reportPrivateUsage]
            del publishers


_lookout = _Lookout()
