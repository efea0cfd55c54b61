"""The asyncio subscriber: the machine of ``consuming`` on a WebSocket's transport.

Owns: the transport, the timer, waking who waits for messages. Does not own: any decision (``consuming``), framing
(``web_socket``).

Everything happens in the transport's callbacks: bytes are turned into messages where they arrive, and what is to be
said is written at once, so that no task stands between the service and the application.

Failure model: a lost connection is told to the machine, which comes back. A cancelled wait for the next message loses
none.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, cast

from holdfast.client.aio.transports import Departures, Incoming, connected
from holdfast.client.protocol.effects import Wait
from holdfast.client.protocol.shell import draw_wait_ms, now_ms
from holdfast.client.protocol.unusable import problem_with, reason_of
from holdfast.client.stores.consuming import Consuming
from holdfast.client.stores.failures import RETRY_DELAY, Failures, OnError, at_least_one
from holdfast.client.stores.options import SubscriberOptions
from holdfast.client.stores.steps import Advisory, Connect, Ended, Talk
from holdfast.client.stores.web_socket import Hung, Opened, Payload, Pong, Refused, TooLarge, WebSocket
from holdfast.errors import Closed, HoldfastError
from holdfast.stores.values.messages import Delivery

__all__ = ["Subscriber"]


Item = TypeVar("Item")


class _Line(Incoming):
    """One connection. ``arrived`` is told of its bytes, none at its end, until it is dropped."""

    def __init__(self, arrived: Callable[[_Line, bytes], None], socket: WebSocket, departures: Departures) -> None:
        super().__init__()
        self._arrived: Callable[[_Line, bytes], None] | None = arrived
        self._departures = departures
        self.socket = socket
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the handshake."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from asyncio's
        self.write()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._arrived is not None:
            self._arrived(self, data)

    def eof_received(self) -> bool:
        """Nothing more will come."""
        if self._arrived is not None:
            self._arrived(self, b"")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        del exc
        if self.transport is not None:
            self._departures.remove(self.transport)
            self.transport = None
        if self._arrived is not None:
            self._arrived(self, b"")

    def write(self) -> None:
        """Send what the socket wants to say."""
        data = self.socket.take_bytes()
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def drop(self) -> None:
        """This line is of no further use."""
        self._arrived = None
        self.socket.close()
        self.write()
        if self.transport is not None:
            self._departures.add(self.transport, self.transport.abort)
            self.transport.close()


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
        self._departures = Departures()
        self._line: _Line | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = math.inf
        self._waiting: list[asyncio.Future[None]] = []
        self._started = False
        self._told = False  # whether who enters was told that it is attached
        self._pause: Wait | None = None
        self._unacknowledged: dict[int, None] = {}  # numbers, in the order in which they were handed out

    async def __aenter__(self) -> Self:
        """Wait until the service delivers to this subscriber, so that a dynamic durable is there.

        Raises: what the service refuses; Unavailable after ``retry_duration``.
        """
        self._start()
        try:
            while not self._machine.was_attached and not self._machine.has_ended:
                await self._change()
            if self._machine.failure is not None and not self._machine.was_attached:
                raise self._machine.failure
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # receiving

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        self._settle_handed_out()
        message = await self._next()
        if message is None:
            raise StopAsyncIteration
        if not self._options.explicit_ack:
            self._unacknowledged[message.seq] = None
        return message

    async def _next(self) -> Delivery | None:
        """The next message, reported as started before it is handed out; None when nothing will come."""
        machine = self._machine
        while (message := machine.take(now_ms())) is None:
            if not await self._more():
                return None
        self._said()
        return message

    async def batches(self) -> AsyncIterator[list[Delivery]]:
        """The messages as they arrive together, at most the prefetch of them."""
        machine = self._machine
        while True:
            self._settle_handed_out()
            messages = machine.take_all(now_ms())
            if not messages:
                if not await self._more():
                    return
                continue
            self._said()
            if not self._options.explicit_ack:
                self._unacknowledged = dict.fromkeys([message.seq for message in messages])
            yield messages

    async def receive(self, timeout: float | None = None) -> Delivery | None:
        """The next message, None when none came within ``timeout`` seconds or the subscriber is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                async for message in self:
                    return message
        return None

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
        """Call ``function`` with each message until the subscriber is closed; acknowledge what it returned from.

        ``handlers`` tasks do so at once. An exception costs its message one delivery: it is put back, and delivered
        again after ``redelivery_delay`` seconds at the earliest. It is logged and given to ``on_error``, and its task
        goes on after ``retry_delay`` seconds, twice as many after each further exception up to a minute.
        ``stop_on_error`` raises it instead. What is worked on when this is cancelled comes again when the subscriber
        is closed.
        """
        self._settle_handed_out()
        failures = [Failures(retry_delay, on_error, stop_on_error=stop_on_error) for _ in range(at_least_one(handlers))]
        tasks = [asyncio.ensure_future(self._handle(function, redelivery_delay, one)) for one in failures]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle(
        self, function: Callable[[Delivery], Awaitable[None]], redelivery_delay: float, failures: Failures
    ) -> None:
        while (message := await self._next()) is not None:
            try:
                await function(message)
            except Exception as error:  # noqa: BLE001 - the application's: told, and raised where that is asked for
                with contextlib.suppress(Closed):  # closed meanwhile: it comes again
                    await self.put_back(message, delay=redelivery_delay)
                await self._pause_for(failures.met(message, error))
            else:
                failures.forget()
                with contextlib.suppress(Closed):
                    await self.acknowledge(message)

    async def _pause_for(self, seconds: float) -> None:
        """Until then, or until nothing will come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._machine.has_ended:
                    await self._change()

    # settling

    async def acknowledge(self, *messages: Delivery, confirmed: bool = False) -> Sequence[int]:
        """These are consumed. ``confirmed`` waits until the service has it, as does ``ack_mode`` sync in any case.

        Returns the numbers that this subscriber held no more (they were delivered again), known when confirmed.
        """
        if not messages:
            return ()
        self._settles(messages)
        numbers = [(message.seq, message.seq) for message in messages]
        if confirmed or self._machine.acknowledges_at_once:
            return await self._answer(lambda done: self._machine.acknowledge_all(numbers, now_ms(), done))
        self._machine.acknowledge_all(numbers, now_ms())
        self._said()
        return ()

    async def put_back(self, message: Delivery, *, delay: float = 0.0, confirmed: bool = False) -> None:
        """Deliver this again to anybody, ``delay`` seconds later; it counts as one more delivery."""
        delay_ms = max(0, round(delay * 1000))
        self._settles((message,))
        if confirmed:
            await self._answer(lambda done: self._machine.put_back(message.seq, delay_ms, done))
        else:
            self._machine.put_back(message.seq, delay_ms)
            self._said()

    async def reject(self, message: Delivery, *, confirmed: bool = False) -> None:
        """Never deliver this again: it goes to the durable's dead letters."""
        self._settles((message,))
        if confirmed:
            await self._answer(lambda done: self._machine.reject(message.seq, done))
        else:
            self._machine.reject(message.seq)
            self._said()

    async def extend(self, message: Delivery, *, confirmed: bool = False) -> None:
        """Work on this goes on: its time to be acknowledged starts anew."""
        if confirmed:
            await self._answer(lambda done: self._machine.extend(message.seq, done))
        else:
            self._machine.extend(message.seq)
            self._said()

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
        return self._machine.take_advisories()

    def on_advisory(self, function: Callable[[Advisory], None] | None) -> None:
        """Call this with each advisory as it comes."""
        self._machine.on_advisory = function

    async def aclose(self) -> None:
        """Send what is acknowledged, wait up to ``close_linger`` for the answers, and leave; the durable stays.

        What was handed out and not acknowledged comes again, also the message or the batch that was the last one.
        """
        self._machine.close()
        try:
            if self._started:
                self._pump()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._options.close_linger):
                        while not self._machine.has_ended:
                            await self._change()
        finally:
            self._machine.end(None)
            self._stop()
        await self._departures.over()

    async def next_of(self, take: Callable[[], Item | None]) -> Item | None:
        """What ``take`` finds as soon as it can; None when nothing will come. Raises: why. For ``Watch``."""
        while (item := take()) is None:
            if not await self._more():
                return None
        return item

    def _settles(self, messages: Sequence[Delivery]) -> None:
        """The application says itself what becomes of these: asking for the next one does not acknowledge them."""
        for message in messages:
            self._unacknowledged.pop(message.seq, None)

    def _settle_handed_out(self) -> None:
        handed_out = list(self._unacknowledged)
        if not handed_out:
            return
        self._unacknowledged = {}
        if self._machine.has_ended:
            return
        first = last = handed_out[0]
        for seq in handed_out[1:]:
            if seq == last + 1:
                last = seq
                continue
            self._machine.acknowledge(first, last, now_ms())
            first = last = seq
        self._machine.acknowledge(first, last, now_ms())
        self._said()

    def _said(self) -> None:
        """Something was acknowledged: send it, or see that the timer does."""
        machine = self._machine
        # What is due within a millisecond of the timer is done with it: the two were computed from different sums.
        if machine.has_outgoing or (machine.is_attached and machine.say_due_ms < self._timer_ms - 1):
            self._pump()

    async def _answer(
        self, ask: Callable[[Callable[[Sequence[int], HoldfastError | None], None]], None]
    ) -> Sequence[int]:
        future: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()

        def done(stale: Sequence[int], error: HoldfastError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(stale)
            else:
                future.set_exception(error)

        ask(done)
        self._pump()
        return await future

    async def _more(self) -> bool:
        """Wait until something may have come. False when nothing will. Raises: why."""
        if self._machine.has_ended:
            if self._machine.failure is not None:
                raise self._machine.failure
            return False
        if not self._started:
            self._start()
        if not self._machine.has_ready:
            await self._change()
        return True

    async def _change(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # the connection

    def _start(self) -> None:
        self._started = True
        self._pump()

    def _pump(self) -> None:
        """Carry out what the machine wants now, and set the timer for what it wants later."""
        if not self._started:
            return
        now = now_ms()
        step = self._machine.next_step(now)
        match step:
            case Talk(outgoing=outgoing, probes=probes, timeout_ms=timeout_ms):
                self._say(outgoing, probes=probes)
                self._look_again(now + timeout_ms)
            case Connect():
                self._hang_up()
                line = self._line = _Line(self._arrived, self._web_socket(step), self._departures)
                self._connecting = asyncio.get_running_loop().create_task(self._connect(line, step))
                self._look_again(now + step.timeout_ms)
            case Wait():
                if step is self._pause:
                    return
                self._pause = step
                self._hang_up()
                self._at(now + draw_wait_ms(step), self._waited)
            case Ended(outgoing=outgoing):
                self._say(outgoing, probes=False)
                self._stop()
        machine = self._machine
        if self._waiting and (machine.has_ready or machine.has_ended or machine.was_attached is not self._told):
            self._told = machine.was_attached
            self._tell()

    def _web_socket(self, step: Connect) -> WebSocket:
        return WebSocket(step.endpoint, step.target, self._token, self._payload_bytes_max)

    def _waited(self) -> None:
        self._timer, self._timer_ms = None, math.inf
        self._machine.waited()
        self._pump()

    def _say(self, outgoing: Sequence[bytes], *, probes: bool) -> None:
        line = self._line
        if line is None:
            return
        for payload in outgoing:
            line.socket.send(payload)
        if probes:
            line.socket.ping()
        line.write()

    def _look_again(self, due_ms: float) -> None:
        """Ask the machine again then, or sooner: a timer that is due before is left as it is. What is due moves on with
        each message, and a timer for each would cost more than the rest of it."""
        if self._timer is None or self._timer_ms > due_ms:
            self._at(due_ms, self._look)

    def _look(self) -> None:
        self._timer, self._timer_ms = None, math.inf
        self._pump()

    def _at(self, due_ms: float, function: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        # A millisecond early would find nothing due and set the timer again.
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_ms - now_ms() + 1) / 1000, function)

    async def _connect(self, line: _Line, step: Connect) -> None:
        endpoint, loop = step.endpoint, asyncio.get_running_loop()
        try:
            tls = (self._tls or ssl.create_default_context()) if endpoint.secure else None
            await connected(lambda: line, endpoint, tls, loop.time() + step.timeout_ms / 1000)
        except (OSError, UnicodeError) as error:
            if self._line is line:
                self._line = None
                self._machine.unreached(now_ms(), reason_of(error), problem_with(endpoint, error))
                self._pump()

    def _arrived(self, line: _Line, data: bytes) -> None:
        if line is not self._line:
            return
        now = now_ms()
        if data:
            self._machine.stirred(now)
        for happening in line.socket.feed(data):
            match happening:
                case Payload(data=payload):
                    self._machine.received(payload, now)
                case Opened():
                    self._machine.opened(now)
                case Pong():
                    self._machine.heard(now)
                case Refused(status=status, headers=headers, body=body):
                    self._hang_up()
                    self._machine.refused(now, status, headers, body)
                case Hung(reason=reason, code=code, name=name):
                    self._hang_up()
                    self._machine.lost(now, reason, code, name)
                case TooLarge():
                    self._machine.too_large()
        line.write()  # pongs, and the answer to a close
        self._pump()

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            self._departures.stop(connecting)
        if line is not None:
            line.drop()

    def _stop(self) -> None:
        self._hang_up()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_ms = None, math.inf
        self._tell()
