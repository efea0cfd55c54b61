"""The asyncio subscriber of a durable, and the watch of a map. A cancelled wait for the next message loses none."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Self, TypeVar

from holdfast.client.aio.client import Closing
from holdfast.client.protocol.stores.acknowledgements import OnReply
from holdfast.client.protocol.stores.messages import Advisory
from holdfast.client.protocol.stores.subscriber import SubscriberMachine
from holdfast.client.protocol.stores.watch import WatchMachine
from holdfast.client.transport.aio_stores import Event, SubscriberDriver, run_each
from holdfast.client.transport.clock import now_ms
from holdfast.errors import Closed, Code, InvalidRequest
from holdfast.stores.values.sequence_set import SequenceSet
from holdfast.wire.parts import Delivery
from holdfast.wire.stores import KeyChange

RETRY_DELAY: Final = 0.1
RETRY_DELAY_MAX: Final = 60.0
OnError = Callable[[Delivery, Exception], None]
"""Called with the message and what its handler raised."""
_logger = logging.getLogger("holdfast.subscriber")
Item = TypeVar("Item")


class _Failures:
    """What one handler does after its exceptions."""

    def __init__(self, retry_delay: float, on_error: OnError | None, *, stop_on_error: bool) -> None:
        self._first = self._next = retry_delay
        self._on_error = on_error
        self._stops = stop_on_error

    def met(self, message: Delivery, error: Exception) -> float:
        """The handler raised. Returns the seconds to pause. Raises: the error, with ``stop_on_error``."""
        if self._on_error is not None:
            self._on_error(message, error)
        if self._stops:
            raise error
        delay, self._next = self._next, min(self._next * 2, RETRY_DELAY_MAX)
        _logger.error(
            "a handler failed seq=%d delivery_count=%d pause_seconds=%g",
            message.seq,
            message.delivery_count,
            delay,
            exc_info=error,
        )
        return delay

    def forget(self) -> None:
        """The handler succeeded."""
        self._next = self._first


def _refused(problem: str, **facts: object) -> InvalidRequest:
    texts = {name: repr(value)[:80] for name, value in facts.items()}
    return InvalidRequest(problem, code=Code.BAD_CONFIGURATION, facts=texts)


class Subscriber(Closing):
    """The messages of one durable, delivered to one subscriber name. Made by ``StoreClient.subscriber``.

    Iterate, or take ``batches``, or ``run`` a function on each. Without ``explicit_ack`` a message is acknowledged when
    the next one is asked for, and when the function returned; an exception of the function gives the message back. The
    message in work when the block is left, by ``break`` or otherwise, comes again unless it was acknowledged.

    While another subscriber has the standard durable, it waits, and adds one advisory ``durable_busy``.

    Raises while iterating: Fenced (``durable_collision``: another subscriber has the durable now), NotFound, Closed
    (``store_replaced``: the store or durable was deleted and made again), InvalidRequest (``matcher_mismatch``,
    ``type_mismatch``), PermissionDenied, LimitExceeded (above ``event_bytes_max``), Unavailable (after
    ``retry_duration``; ``AlreadyOpen`` with ``durable_busy`` if another subscriber has the durable still).
    """

    def __init__(self, machine: SubscriberMachine, driver: SubscriberDriver, *, is_implicit: bool) -> None:
        self._machine = machine
        self._driver = driver
        self._is_implicit = is_implicit
        self._lock = self._driver.lock
        self._unacknowledged = SequenceSet()
        self._unacknowledged_token = ""

    async def __aenter__(self) -> Self:
        """Wait until the service delivers to this subscriber, so that a dynamic durable exists.

        Raises: what the service refuses with; Unavailable after ``retry_duration``.
        """
        machine = self._machine
        try:
            with self._lock:
                self._driver.start()
                await self._driver.wait_for(lambda: machine.was_attached or machine.has_ended)
                if machine.failure is not None and not machine.was_attached:
                    raise machine.failure
        except BaseException:
            await self.aclose()
            raise
        return self

    # receiving

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        message = await self._next(math.inf, is_implicit=self._is_implicit)
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: float | None = None) -> Delivery | None:
        """The next message, None when none came within ``timeout`` seconds or the subscriber is closed."""
        end_ms = math.inf if timeout is None else now_ms() + timeout * 1000
        return await self._next(end_ms, is_implicit=self._is_implicit)

    async def batches(self) -> AsyncIterator[list[Delivery]]:
        """The messages as they arrive together, at most the prefetch of them."""
        while True:
            with self._lock:
                self._acknowledge_handed_out()
                if not await self._more(math.inf):
                    return
                await self._driver.read_all()
                messages = self._machine.take_all(now_ms())
                if not messages:
                    continue
                if self._is_implicit:
                    self._unacknowledged = SequenceSet(self._machine.taken)
                    self._unacknowledged_token = messages[0].token
                self._driver.report()
            yield messages

    async def run(
        self,
        function: Callable[[Delivery], Awaitable[None]],
        *,
        handlers: int = 1,
        redelivery_delay: float = 0.0,
        retry_delay: float = RETRY_DELAY,
        on_error: OnError | None = None,
        stop_on_error: bool = False,
    ) -> None:
        """Call ``function`` with each message until the subscriber is closed; acknowledge it when the function returns.

        ``handlers`` tasks call it at the same time. An exception costs its message one delivery: it is put back, and
        delivered again after ``redelivery_delay`` seconds at the earliest. The exception is logged and given to
        ``on_error``, and its task continues after ``retry_delay`` seconds, twice as many after each further exception
        up to a minute. ``stop_on_error`` raises the exception instead. ``Closed`` (``lease_lost``) from a commit counts
        as none of this: the message is another subscriber's, and the next one is taken.
        When the call ends by an exception, the other tasks are cancelled. Their messages come again.
        """
        with self._lock:
            self._acknowledge_handed_out()
        if type(handlers) is not int or handlers < 1:  # nor a bool
            raise _refused("handlers is a whole number of at least 1", handlers=handlers)
        if type(retry_delay) not in (int, float) or not 0 <= retry_delay <= RETRY_DELAY_MAX:
            raise _refused(f"retry_delay is a number of seconds from 0 to {RETRY_DELAY_MAX:g}", retry_delay=retry_delay)
        failures = [_Failures(retry_delay, on_error, stop_on_error=stop_on_error) for _ in range(handlers)]
        stopped = Event()

        async def handle(one: _Failures) -> None:
            await self._handle(function, redelivery_delay, one, stopped)

        def stop() -> None:
            stopped.set()
            self._driver.notify()

        await run_each(handle, failures, stop)

    async def _handle(
        self,
        function: Callable[[Delivery], Awaitable[None]],
        redelivery_delay: float,
        failures: _Failures,
        stopped: Event,
    ) -> None:
        while (message := await self._next(math.inf, is_implicit=False, stopped=stopped)) is not None:
            try:
                await function(message)
            except Exception as error:  # noqa: BLE001 - the application's: logged, and raised where that is asked for
                if isinstance(error, Closed) and error.code is Code.LEASE_LOST:  # from a commit of the handler
                    continue
                with contextlib.suppress(Closed):  # closed meanwhile: it comes again
                    await self.put_back(message, delay=redelivery_delay)
                delay = failures.met(message, error)
                with self._lock:
                    await self._driver.wait_for(lambda: self._machine.has_ended or stopped.is_set(), delay)
            else:
                failures.forget()
                with contextlib.suppress(Closed):
                    await self.acknowledge(message)

    # acknowledging

    async def acknowledge(self, *messages: Delivery, confirmed: bool = False) -> Sequence[int]:
        """These are consumed. ``confirmed`` waits until the service has it, as does ``ack_mode`` sync in any case.

        Returns the numbers that were stale, known when confirmed: too late, or the reply to a first attempt was lost.
        """
        if not messages:
            return ()
        numbers = [(message.seq, message.seq) for message in messages]
        self._forget_handed_out(messages)
        with self._lock:
            self._machine.require_own(messages)
            if not (confirmed or self._machine.acknowledges_at_once):
                self._machine.acknowledge(numbers, now_ms())
                self._driver.schedule()
                return ()
        return await self._driver.ask(lambda done: self._machine.acknowledge(numbers, now_ms(), done))

    async def put_back(self, message: Delivery, *, delay: float = 0.0, confirmed: bool = False) -> None:
        """Deliver this again to any subscriber, ``delay`` seconds later; it counts as one more delivery."""
        delay_ms = max(0, round(delay * 1000))
        self._forget_handed_out((message,))
        await self._send(message, lambda done: self._machine.put_back(message.seq, delay_ms, done), confirmed=confirmed)

    async def reject(self, message: Delivery, *, confirmed: bool = False) -> None:
        """Never deliver this again: it goes to the durable's dead letters."""
        self._forget_handed_out((message,))
        await self._send(message, lambda done: self._machine.reject(message.seq, done), confirmed=confirmed)

    async def extend(self, message: Delivery, *, confirmed: bool = False) -> None:
        """This is still in work: its time to be acknowledged starts again."""
        await self._send(message, lambda done: self._machine.extend(message.seq, done), confirmed=confirmed)

    # the rest

    @property
    def stale(self) -> int:
        """How many acknowledgements were stale; see ``acknowledge``."""
        return self._machine.stale

    @property
    def is_attached(self) -> bool:
        """Whether the service delivers to this subscriber now."""
        return self._machine.is_attached

    def take_advisories(self) -> list[Advisory]:
        """The advisories since the last call."""
        with self._lock:
            return self._machine.advisories.take()

    def on_advisory(self, function: Callable[[Advisory], None] | None) -> None:
        """Call this with each advisory as it comes, on the event loop."""
        self._machine.advisories.on_advisory = function

    async def aclose(self) -> None:
        """Send what is acknowledged, wait up to ``close_linger`` for the replies, and disconnect; the durable stays.

        Messages that were handed out and not acknowledged come again, also the last message or batch.
        """
        await self._driver.aclose()

    async def next_of(self, take: Callable[[], Item | None], end_ms: float = math.inf) -> Item | None:
        """The next item of ``take`` before ``end_ms``, or None. Raises: why nothing will come. For ``Watch``."""
        with self._lock:
            while (item := take()) is None:
                if not await self._more(end_ms):
                    return None
            return item

    async def _next(self, end_ms: float, *, is_implicit: bool, stopped: Event | None = None) -> Delivery | None:
        """The next message, reported as started before the application gets it.

        ``is_implicit``: the message handed out before is acknowledged now, and this one when the next is asked for.
        """
        with self._lock:
            if is_implicit:
                self._acknowledge_handed_out()
            await self._driver.read_all()
            while (message := self._machine.take(now_ms())) is None:
                if not await self._more(end_ms, stopped):
                    return None
                await self._driver.read_all()
            self._driver.report()
            if is_implicit:
                self._unacknowledged.add(message.seq, message.seq)
                self._unacknowledged_token = message.token
            return message

    async def _more(self, end_ms: float, stopped: Event | None = None) -> bool:
        """Wait until a message is here. False when none will come, or not in time. Raises: why none will."""
        self._driver.start()
        machine = self._machine
        while not machine.has_ready:
            if stopped is not None and stopped.is_set():
                return False
            if machine.has_ended:
                if machine.failure is not None:
                    raise machine.failure
                return False
            left_ms = end_ms - now_ms()
            if left_ms <= 0:
                return False
            await self._driver.wait(None if math.isinf(left_ms) else left_ms / 1000)
        return True

    def _acknowledge_handed_out(self) -> None:
        if not self._unacknowledged:
            return
        handed_out, self._unacknowledged = self._unacknowledged.runs(), SequenceSet()
        if self._machine.has_ended:
            return
        # Those of another durable or history were reported when the connection to this one began.
        if self._unacknowledged_token == self._machine.token:
            self._machine.acknowledge(handed_out, now_ms())
            self._driver.schedule()

    def _forget_handed_out(self, messages: Sequence[Delivery]) -> None:
        """The application decides about these itself: asking for the next message does not acknowledge them."""
        with self._lock:
            for message in messages:
                self._unacknowledged.remove(message.seq, message.seq)

    async def _send(self, message: Delivery, send: Callable[[OnReply | None], None], *, confirmed: bool) -> None:
        with self._lock:
            self._machine.require_own((message,))
        if confirmed:
            await self._driver.ask(send)
            return
        with self._lock:
            send(None)
            self._driver.schedule()


class Watch(Closing):
    """The changes of one map, as they happen. Made by ``Map.watch``.

    First the content of the map (``cause`` ``present``), then each change; after a lost connection the differences. The
    last change of each key gives the content of the map; values that were replaced before they were taken are not
    delivered. Raises while iterating: as ``Subscriber``.
    """

    def __init__(self, machine: WatchMachine, subscriber: Subscriber) -> None:
        self._machine = machine
        self._subscriber = subscriber

    async def __aenter__(self) -> Self:
        await self._subscriber.__aenter__()
        return self

    def __aiter__(self) -> AsyncIterator[KeyChange]:
        return self

    async def __anext__(self) -> KeyChange:
        change = await self._subscriber.next_of(self._machine.take_change)
        if change is None:
            raise StopAsyncIteration
        return change

    async def receive(self, timeout: float | None = None) -> KeyChange | None:
        """The next change, None when none came within ``timeout`` seconds or the watch is closed."""
        end_ms = math.inf if timeout is None else now_ms() + timeout * 1000
        return await self._subscriber.next_of(self._machine.take_change, end_ms)

    @property
    def is_current(self) -> bool:
        """Whether everything that was in the map when the connection began was taken."""
        return self._machine.is_current

    def take_advisories(self) -> list[Advisory]:
        """The advisories since the last call, for example ``lock_lost``."""
        return self._subscriber.take_advisories()

    async def aclose(self) -> None:
        """End the watch, and every lock that it owns."""
        await self._subscriber.aclose()
