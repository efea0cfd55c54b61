"""The steps of a subscriber's machine on an event loop, for both worlds; every decision is made by the machine.

``aio_stores`` carries them out on the application's loop, ``sync_stores`` on a loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import math
import select
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, cast

from holdfast.client.protocol.effects import Wait
from holdfast.client.protocol.endpoint import Endpoint
from holdfast.client.protocol.http1 import problem_with, reason_of
from holdfast.client.protocol.lookout import ANOTHER_LEADS
from holdfast.client.protocol.options import SubscriberOptions
from holdfast.client.protocol.stores.subscriber import Connect, SubscriberMachine, SubscriptionEnded, Talk
from holdfast.client.protocol.stores.web_socket import WebSocket
from holdfast.client.transport.aio import ClosingConnections, Incoming, connected
from holdfast.client.transport.clock import draw_wait_ms, now_ms

if TYPE_CHECKING:
    from holdfast.client.transport import aio, sync


class Line(Incoming):
    """One connection. ``arrived`` gets its bytes, and no bytes at its end, until it is dropped."""

    def __init__(
        self, arrived: Callable[[Line, bytes], None], socket: WebSocket, departures: ClosingConnections
    ) -> None:
        super().__init__()
        self._arrived: Callable[[Line, bytes], None] | None = arrived
        self._closing_connections = departures
        self.socket = socket
        self.transport: asyncio.Transport | None = None
        self._poll: select.poll | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the handshake."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from asyncio's
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
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
        self._poll = None
        if self.transport is not None:
            self._closing_connections.remove(self.transport)
            self.transport = None
        if self._arrived is not None:
            self._arrived(self, b"")

    def write(self) -> None:
        """Send the socket's outgoing bytes."""
        data = self.socket.take_bytes()
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    @property
    def is_behind(self) -> bool:
        """Whether bytes wait to be read."""
        poll = self._poll
        return poll is not None and any(mask & select.POLLIN for _, mask in poll.poll(0))

    def drop(self) -> None:
        """Close this line; nothing arrives any more."""
        self._poll = None
        self._arrived = None
        self.socket.close()
        self.write()
        if self.transport is not None:
            self._closing_connections.add(self.transport, self.transport.abort)
            self.transport.close()


class SubscriberSteps(ABC):
    """Carries out the steps of one subscriber's machine in the callbacks of its transport, without a task between."""

    def __init__(
        self,
        machine: SubscriberMachine,
        options: SubscriberOptions,
        token: str | None,
        tls: ssl.SSLContext | None,
        watch: aio.LookoutTask | sync.LookoutTask,
    ) -> None:
        self._machine = machine
        self._options = options
        self._token = token
        self._tls = tls
        self._watch = watch
        self._closing_connections = ClosingConnections()
        self._line: Line | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = math.inf
        self._started = False
        self._pause: Wait | None = None

    @abstractmethod
    def notify(self) -> None:
        """End every wait of the application."""

    def _notify_of_news(self) -> None:
        """End the waits that what came may end."""
        self.notify()

    def awaited(self, at_ms: float) -> list[tuple[Endpoint, float]]:
        """See ``Waiting``."""
        del at_ms
        awaited = self._machine.awaited
        return [] if awaited is None else [awaited]

    def leave(self, endpoints: Collection[Endpoint], at_ms: float) -> None:
        """See ``Waiting``."""
        awaited = self._machine.awaited
        if awaited is not None and awaited[0] in endpoints:
            self._hang_up()
            self._machine.lost(at_ms, ANOTHER_LEADS)
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
                if self._watch.rests and (probes or outgoing):
                    self._watch.begin()
            case Connect():
                self._hang_up()
                self._watch.begin()
                socket = WebSocket(step.endpoint, step.target, self._token, step.payload_bytes_max)
                line = self._line = Line(self._arrived, socket, self._closing_connections)
                self._connecting = asyncio.get_running_loop().create_task(self._connect(line, step))
                self._look_again(now + step.timeout_ms)
            case Wait():
                if step is self._pause:
                    return
                self._pause = step
                self._hang_up()
                self._at(now + draw_wait_ms(step), self._waited)
            case SubscriptionEnded(outgoing=outgoing):
                self._say(outgoing, probes=False)
                self._stop()
        self._notify_of_news()

    def _waited(self) -> None:
        self._timer, self._timer_ms = None, math.inf
        self._machine.waited()
        self._pump()

    def _say(self, outgoing: Sequence[bytes], *, probes: bool) -> None:
        line = self._line
        if line is None or not (outgoing or probes):
            return
        for payload in outgoing:
            line.socket.send(payload)
        if probes:
            line.socket.ping()
        line.write()

    def _look_again(self, due_ms: float) -> None:
        """Ask the machine again then, or sooner: an earlier timer is kept, as a timer for each message is expensive."""
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

    async def _connect(self, line: Line, step: Connect) -> None:
        endpoint, loop = step.endpoint, asyncio.get_running_loop()
        try:
            tls = (self._tls or ssl.create_default_context()) if endpoint.secure else None
            await connected(lambda: line, endpoint, tls, loop.time() + step.timeout_ms / 1000)
        except (OSError, UnicodeError) as error:
            self._unreached(line, endpoint, error)

    def _unreached(self, line: Line, endpoint: Endpoint, error: OSError | UnicodeError) -> None:
        if self._line is line:
            self._line = None
            self._machine.unreached(now_ms(), reason_of(error), problem_with(endpoint, error))
            self._pump()

    def _arrived(self, line: Line, data: bytes) -> None:
        if line is not self._line:
            return
        now = now_ms()
        was_attached = self._machine.is_attached
        line.socket.feed(data, self._machine, now)
        if line.socket.is_over:
            self._hang_up()
        line.write()  # pongs, and the answer to a close
        if was_attached and self._machine.goes_on:
            self._notify_of_news()  # a pump for each frame would cost as much as the frame
        else:
            self._pump()

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            self._closing_connections.stop(connecting)
        if line is not None:
            line.drop()

    def _stop(self) -> None:
        self._watch.remove(self)
        self._hang_up()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_ms = None, math.inf
        self.notify()
