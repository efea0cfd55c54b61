"""Gathering with asyncio: a task of the client carries each shared request, and callers wait for their own item."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, cast

from holdfast.client.protocol.effects import Answered, Failed, Item, Request, Response, Send
from holdfast.client.protocol.endpoint import Route
from holdfast.client.protocol.gathering import ALONE, NOTHING, Effects, Gathering, Kind, SharedRequest
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.transport.aio import Pool
from holdfast.client.transport.clock import now_ms
from holdfast.errors import Closed

if TYPE_CHECKING:
    from holdfast.client.protocol.effects import KeyRead
    from holdfast.wire.log import CommitReceipt, NotCommitted

ENDED = "the client ended it"


class Gatherer:
    """What the tasks of one client offer, and the requests that carry it."""

    def __init__(self, pool: Pool, route: Route, options: ClientOptions, kind: Kind) -> None:
        self._pool = pool
        self._options = options
        self.machine = Gathering(kind, route, options, has_turns=True)
        self._carrying: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = math.inf
        self._closed = False

    async def share(self, item: Item) -> Answered:
        """Offer an item; its answer. A cancelled caller leaves its item, and no connection. Raises: Closed."""
        if self._closed:
            raise Closed("this client is closed")
        effects = self.machine.offered(item, now_ms())
        if item.settled is None:
            waiter = item.waiter = asyncio.get_running_loop().create_future()
            if effects is not NOTHING or self.machine.first is item:  # else nothing is due sooner than before
                self.carry_out(effects)
            try:
                await waiter
            except asyncio.CancelledError:
                self.machine.left(item)
                raise
        answer = item.settled
        if answer is ALONE:
            return await self._send_alone(item)
        assert item.endpoint is not None, "an answer comes from somewhere"
        return Answered(
            now_ms(), item.endpoint, cast("CommitReceipt | NotCommitted | KeyRead | Response | Failed", answer)
        )

    async def _send_alone(self, item: Item) -> Answered:
        request = self.machine.alone_request(item)
        endpoint = item.endpoint
        assert endpoint is not None, "its request goes somewhere"
        try:
            reply = await self._pool.exchange(Send(endpoint, request, self._options.request_timeout_ms))
        finally:
            if item.is_awaited:
                self.carry_out(self.machine.alone_ended(item, now_ms()))
        return Answered(reply.now_ms, endpoint, reply)

    def carry_out(self, effects: Effects) -> None:
        """Do what the machine wants."""
        if effects is not NOTHING:
            for item in effects.settled:
                waiter = cast("asyncio.Future[None]", item.waiter)
                if not waiter.done():  # its task was cancelled and has not run since
                    waiter.set_result(None)
            if effects.ends_turn:  # after the tasks that were just woken
                asyncio.get_running_loop().call_soon(self._end_turn)
            if effects.begun is not None:
                task = asyncio.get_running_loop().create_task(self._carry(effects.begun))
                self._carrying.add(task)
                task.add_done_callback(self._carrying.discard)
        due_ms = self.machine.due_ms
        if due_ms < self._timer_ms:
            self._set_timer(due_ms)

    def _end_turn(self) -> None:
        self.carry_out(self.machine.turn_ended(now_ms()))

    def _set_timer(self, due_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_ms - now_ms()) / 1000, self._look)

    def _look(self) -> None:
        self._timer, self._timer_ms = None, math.inf
        self.carry_out(self.machine.look(now_ms()))

    async def _carry(self, shared: SharedRequest) -> None:
        """Carry a request to its end."""
        talk = _Talk(self, shared)
        reply: Response | Failed = Failed(0.0, True, ENDED)
        try:
            reply = await self._pool.converse(shared.endpoint, max(1.0, shared.deadline_ms - now_ms()), talk)
        except Closed:
            pass
        finally:  # also of a cancelled task: no caller waits in vain
            self.carry_out(talk.ended(reply))

    def close(self) -> None:
        """Everything that waits ends; nothing is sent any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = -math.inf
        self.carry_out(self.machine.closed(now_ms(), ends_sent=True))
        for task in self._carrying:
            task.cancel()

    async def aclose(self) -> None:
        """``close``, and wait for the tasks."""
        self.close()
        await asyncio.gather(*self._carrying, return_exceptions=True)


class _Talk:
    """One shared request, between the pool and the machine."""

    def __init__(self, gatherer: Gatherer, shared: SharedRequest) -> None:
        self._gatherer = gatherer
        self._machine = gatherer.machine
        self._shared = shared
        self._is_open = False

    def begin(self) -> Request | None:
        """See ``Talk``."""
        self._is_open = True
        request = self._machine.opened(self._shared, now_ms())
        self._gatherer.carry_out(NOTHING)  # what is left over is due again
        return request

    def received(self, data: bytes) -> bool:
        """See ``Talk``."""
        effects = self._machine.received(self._shared, data, now_ms())
        self._gatherer.carry_out(effects)
        return effects.broken is None

    def ended(self, reply: Response | Failed) -> Effects:
        """Nothing more will come."""
        if self._is_open:
            return self._machine.ended(self._shared, reply)
        asked, problem = (reply.asked, reply.problem) if isinstance(reply, Failed) else (False, None)
        reason = reply.reason if isinstance(reply, Failed) else ENDED
        return self._machine.not_opened(self._shared, Failed(now_ms(), False, reason, asked=asked, problem=problem))
