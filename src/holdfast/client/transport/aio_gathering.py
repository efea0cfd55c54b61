"""Gathering with asyncio: callers wait for their own item, and shared requests are carried by callbacks.

A task is made only where a request needs a new connection.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from holdfast.client.protocol.effects import ALONE, Failed, Item, Response, Send
from holdfast.client.protocol.endpoint import ClientRoute
from holdfast.client.protocol.gathering import NOTHING, Effects, GatheredKind, Gathering, SharedRequest
from holdfast.client.protocol.http1 import ResponseReader, problem_with, reason_of
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.transport.aio import Connection, Pool
from holdfast.client.transport.clock import now_ms
from holdfast.errors import Closed, InternalError
from holdfast.soundness import Soundness

ENDED = "the client ended it"


class Gatherer:
    """What the tasks of one client offer, and the requests that carry it."""

    def __init__(
        self, pool: Pool, route: ClientRoute, options: ClientOptions, soundness: Soundness, kind: GatheredKind
    ) -> None:
        self.pool = pool
        self.options = options
        self.machine = Gathering(kind, route, options, has_turns=True)
        self._route = route
        self._soundness = soundness
        soundness.tell(self.break_off)
        self._waiters: dict[Item, asyncio.Future[None]] = {}
        self.carrying: set[Carriage] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = math.inf
        self._closed = False

    async def share(self, item: Item) -> None:
        """Offer an item; returns when it is settled. A cancelled caller leaves its item, and no connection.

        Raises: Closed, InternalError.
        """
        if self._closed:
            self._soundness.require()
            closed = Closed("this client is closed")
            self._route.explain(closed)
            raise closed
        try:
            effects = self.machine.offered(item, now_ms())
            if item.settled is None:
                waiter = self._waiters[item] = asyncio.Future()
                try:
                    if effects is not NOTHING:
                        self.carry_out(effects)
                    await waiter
                except asyncio.CancelledError:
                    self.machine.left(item)
                    raise
                finally:
                    del self._waiters[item]
            if item.settled is ALONE:
                await self._send_alone(item)
        except AssertionError as error:
            self._soundness.break_off(error)

    async def _send_alone(self, item: Item) -> None:
        request = self.machine.alone_request(item)
        assert item.endpoint is not None, "its request goes somewhere"
        try:
            reply = await self.pool.exchange(Send(item.endpoint, request, self.options.request_timeout_ms))
            self.machine.alone_answered(item, reply)
        finally:
            if item.is_awaited:
                self.carry_out(self.machine.alone_ended(item, now_ms()))

    def carry_out(self, effects: Effects) -> None:
        """Do what the machine wants."""
        if effects is not NOTHING:
            for item in effects.settled:
                waiter = self._waiters.get(item)
                if waiter is not None and not waiter.done():  # else its task has ended or was cancelled
                    waiter.set_result(None)
            if effects.ends_turn:  # after the tasks that were just woken
                asyncio.get_running_loop().call_soon(self._end_turn)
            if effects.to_open is not None:
                Carriage(self, effects.to_open)
        due_ms = self.machine.due_ms
        if due_ms < self._timer_ms:
            self._set_timer(due_ms)

    def _end_turn(self) -> None:
        self.guard(lambda: self.carry_out(self.machine.turn_ended(now_ms())))

    def guard(self, step: Callable[[], None]) -> None:
        """Take a step that the loop begins. No caller would see it fail."""
        try:
            step()
        except AssertionError as error:
            with suppress(InternalError):
                self._soundness.break_off(error)

    def break_off(self, reason: InternalError) -> None:
        """Refuse everything, and raise ``reason`` to every caller that waits: an invariant is broken."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ms = None, -math.inf
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(reason)
        for carriage in list(self.carrying):
            carriage.cut_off()
        self.pool.close()

    def _set_timer(self, due_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_ms - now_ms()) / 1000, self._look)

    def _look(self) -> None:
        self._timer, self._timer_ms = None, math.inf
        self.guard(lambda: self.carry_out(self.machine.look(now_ms())))

    def close(self) -> None:
        """Everything that waits ends; nothing is sent any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = -math.inf
        self.carry_out(self.machine.closed(now_ms(), ends_sent=True))
        for carriage in list(self.carrying):
            carriage.cut_off()

    async def aclose(self) -> None:
        """``close``, and wait for the tasks."""
        connecting = [each.connecting for each in self.carrying if each.connecting is not None]
        self.close()
        await asyncio.gather(*connecting, return_exceptions=True)


class Carriage:
    """One shared request, its connection and its response."""

    def __init__(self, gatherer: Gatherer, shared: SharedRequest) -> None:
        self._gatherer = gatherer
        self._shared = shared
        self._connection: Connection | None = None
        self._reader: ResponseReader | None = None
        self.connecting: asyncio.Task[None] | None = None
        gatherer.carrying.add(self)
        connection = gatherer.pool.lease_idle(shared.endpoint)
        if connection is None:
            self.connecting = asyncio.get_running_loop().create_task(self._connect())
        else:
            self._send(connection)

    async def _connect(self) -> None:
        shared, gatherer = self._shared, self._gatherer
        leased: Connection | Failed = Failed(0.0, False, ENDED, asked=False)
        try:
            leased = await gatherer.pool.lease(shared.endpoint, max(1.0, shared.deadline_ms - now_ms()))
        except Closed:
            pass
        finally:  # also of a cancelled task: no caller waits in vain
            self.connecting = None
            if isinstance(leased, Failed):
                gatherer.carrying.discard(self)
                failed = Failed(now_ms(), False, leased.reason, asked=leased.asked, problem=leased.problem)
                gatherer.guard(lambda: gatherer.carry_out(gatherer.machine.not_opened(shared, failed)))
            else:
                gatherer.guard(partial(self._send, leased))

    def _send(self, connection: Connection) -> None:
        shared, gatherer = self._shared, self._gatherer
        self._connection = connection
        request = gatherer.machine.opened(shared, now_ms())
        gatherer.carry_out(NOTHING)  # what is left over is due again
        if request is None:
            self._leave(is_usable=True)
            return
        self._reader = gatherer.pool.reader_for(connection)
        connection.listener = self.changed
        timeout_s = gatherer.options.request_timeout_ms / 1000
        deadline = asyncio.get_running_loop().time() + timeout_s
        connection.start(gatherer.pool.encode(request, shared.endpoint), self._reader, deadline)
        if connection.failure is not None:
            self.changed()

    def changed(self) -> None:
        """More of the response has arrived, or there will be no more."""
        self._gatherer.guard(self._take)

    def _take(self) -> None:
        gatherer, connection, reader = self._gatherer, self._connection, self._reader
        if connection is None or reader is None:  # it was left
            return
        if reader.status == 200 and reader.buffered:
            effects = gatherer.machine.received(self._shared, reader.take(), now_ms())
            if effects.broken is not None:
                self._leave(is_usable=False)
            gatherer.carry_out(effects)
            if effects.broken is not None:
                return
        if reader.complete:
            self._leave(is_usable=reader.reusable)
            self._end(Response(now_ms(), reader.status, reader.headers, reader.take()))
        elif connection.failure is not None:
            self._leave(is_usable=False)
            problem = problem_with(self._shared.endpoint, connection.failure)
            self._end(Failed(now_ms(), problem is None, reason_of(connection.failure), problem=problem))
        else:
            connection.resume()

    def _end(self, reply: Response | Failed) -> None:
        self._gatherer.carry_out(self._gatherer.machine.ended(self._shared, reply))

    def _leave(self, *, is_usable: bool) -> None:
        """Nothing more is waited for."""
        self._gatherer.carrying.discard(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            self._gatherer.pool.end_lease(self._shared.endpoint, connection, is_usable=is_usable)

    def cut_off(self) -> None:
        """The client is closed."""
        if self.connecting is not None:
            self.connecting.cancel()
        self._leave(is_usable=False)
