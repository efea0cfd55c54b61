"""The drivers of publishers and subscribers on an event loop; every decision is made by the machines.

A cancelled ``confirmation`` says nothing about its message, which may still be sent. A cancelled wait for a message
loses no message.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from holdfast.client.protocol.effects import Failed, Response, Send, Wait
from holdfast.client.protocol.stores.acknowledgements import OnReply
from holdfast.client.protocol.stores.publisher import (
    LINGER,
    LOOK_EVERY_MS,
    WARN_AFTER_MS,
    PublisherMachine,
    Sent,
    receipt_of,
)
from holdfast.client.transport.aio import Event, Lock, Pool
from holdfast.client.transport.clock import draw_wait_ms, now_ms
from holdfast.client.transport.subscribing import SubscriberSteps
from holdfast.errors import Closed, HoldfastError, InternalError
from holdfast.wire.parts import Receipt

__all__ = ["Event", "Lock", "Pool", "PublisherDriver", "SubscriberDriver", "run_each"]

Item = TypeVar("Item")
READS_MAX = 64


async def run_each(
    function: Callable[[Item], Awaitable[None]], items: Sequence[Item], stop: Callable[[], None]
) -> None:
    """Run the function on all items at the same time, each in a task; the first error cancels the others."""
    del stop  # tasks are cancelled
    tasks = [asyncio.ensure_future(function(item)) for item in items]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class PublisherDriver:
    """Carries out the steps of one publisher's machine.

    A task that publishes a single message sends the request itself. A background task sends everything else; an error
    in it fails every waiting message.
    """

    def __init__(self, pool: Pool, machine: PublisherMachine) -> None:
        self._pool = pool
        self._machine = machine
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._driving = False
        """Whether a request is in flight."""
        self._looking: asyncio.TimerHandle | None = None
        """Looks again at a request that has been in flight for long."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.add = machine.add
        self.add_batch = machine.add_batch
        self.lock = Lock()
        self.is_idle = True
        """Whether a message that was added needs a ``wake``."""

    async def room(self) -> None:
        """Wait until the window has room."""
        while not self._machine.has_room:
            await self._change()

    async def confirmation(self, last: Sent, count: int) -> Receipt:
        """Wait until ``last``, the last of ``count`` messages, is confirmed. Raises: why it is not."""
        if self._driving or self._machine.unconfirmed > count:
            await self._confirmed_by_the_task(last)
        else:
            step = self._machine.next_step(now_ms())
            if isinstance(step, Send):
                await self._exchange(step)
            if self._machine.unconfirmed:  # a pause before the next try, or messages of other tasks
                self.wake()
            if not last.done:
                await self._confirmed_by_the_task(last)
        return receipt_of(last)

    def wake(self) -> None:
        """Send what was added."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drive())
            self.is_idle = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send without lingering, and wait until nothing is unconfirmed or time is up."""
        self._machine.flush()
        self.wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._machine.unconfirmed:
                    await self._change()

    async def aclose(self, error: Closed) -> None:
        """Send nothing more; unconfirmed messages fail."""
        self._machine.end(error)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._notify()

    async def _confirmed_by_the_task(self, last: Sent) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: Sent) -> None:
            if not future.done():
                future.set_result(None)

        last.on_done = done
        self.wake()
        await future

    async def _exchange(self, step: Send) -> None:
        """Carry out one request. When cancelled, its outcome is unknown, and the task sends it again."""
        self._driving = True
        looking = asyncio.get_running_loop().call_later(WARN_AFTER_MS / 1000, self._look)
        reply: Response | Failed | None = None
        closed: Closed | None = None
        try:
            reply = await self._pool.exchange(step)
        except Closed as error:  # the client was closed before its publisher; nothing was sent
            reply, closed = Failed(now_ms(), False, error.statement()), error
        finally:
            (self._looking or looking).cancel()
            self._looking = None
            self._driving = False
            self._machine.on_response(Failed(now_ms(), True, "cancelled") if reply is None else reply)
            if closed is not None:
                self._machine.end(closed)
            self._notify()
            if self._task is not None or self._machine.unconfirmed:
                self.wake()

    def _look(self) -> None:
        self._machine.look(now_ms())
        self._looking = asyncio.get_running_loop().call_later(LOOK_EVERY_MS / 1000, self._look)

    async def _change(self) -> None:
        """Wait until a message is confirmed or has failed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _notify(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)

    async def _drive(self) -> None:
        try:
            while True:
                step = None if self._driving else self._machine.next_step(now_ms())
                match step:
                    case None:
                        await self._sleep(None)
                    case Send():
                        await self._exchange(step)
                    case Wait(reason=reason) if reason == LINGER:
                        await self._sleep(step.at_least_ms / 1000)
                    case Wait():
                        await asyncio.sleep(draw_wait_ms(step) / 1000)
                        self._machine.waited()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            broken = InternalError("the publisher's task ended")
            broken.__cause__ = error
            self._machine.end(broken)
            self._notify()
            raise

    async def _sleep(self, seconds: float | None) -> None:
        """Wait until a message is added or flushed."""
        self._idle = asyncio.get_running_loop().create_future()
        self.is_idle = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle
        finally:
            self._idle = None
            self.is_idle = False


class SubscriberDriver(SubscriberSteps):
    """The steps of one subscriber's machine, on the loop of the application."""

    lock: Final = Lock()
    _attachment_notified = False
    _waiting: tuple[asyncio.Future[None], ...] = ()

    def start(self) -> None:
        """Connect, unless that was begun before."""
        if not self._started:
            self._started = True
            self._watch.add(self)
            self._pump()

    def schedule(self) -> None:
        """Send outgoing frames now, or see that the timer does."""
        machine = self._machine
        # What is due within a millisecond of the timer is sent with it: the two were computed from different sums.
        if machine.has_outgoing or (machine.is_attached and machine.send_due_ms < self._timer_ms - 1):
            self._pump()

    async def read_all(self) -> None:
        """Read what has arrived: what was withdrawn while the event loop was busy must not be handed over.

        Where more arrives all the time, ``READS_MAX`` reads are enough: what is withdrawn now was here a moment ago.
        """
        if self._machine.has_just_read(now_ms()):
            return  # to ask the socket costs as much as ten messages
        for _ in range(READS_MAX):
            if self._line is None or not self._line.is_behind:
                return
            await asyncio.sleep(0)

    def report(self) -> None:
        """Report the messages taken last as started, before the application gets them."""
        self.schedule()

    async def ask(self, send: Callable[[OnReply], None]) -> Sequence[int]:
        """The service's reply to the frame that ``send`` makes: the stale numbers. Raises: what it refuses with."""
        future: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()

        def done(stale: Sequence[int], error: HoldfastError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(stale)
            else:
                future.set_exception(error)

        send(done)
        self.start()
        self._pump()
        return await future

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the state may have changed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting += (future,)
        try:
            if timeout_s is None:
                await future
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await future
        finally:
            self._waiting = tuple(each for each in self._waiting if each is not future)

    async def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait until this is true."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not is_true():
                    await self.wait()

    def notify(self) -> None:
        """End every wait."""
        waiting, self._waiting = self._waiting, ()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def aclose(self) -> None:
        """Send what is acknowledged, wait up to ``close_linger`` for the replies, and disconnect."""
        self._machine.close()
        try:
            if self._started:
                self._pump()
                await self.wait_for(lambda: self._machine.has_ended, self._options.close_linger)
        finally:
            self._machine.end(None)
            self._stop()
        await self._closing_connections.over()

    def _notify_of_news(self) -> None:
        machine = self._machine
        if self._waiting and (
            machine.has_ready or machine.has_ended or machine.was_attached is not self._attachment_notified
        ):
            self._attachment_notified = machine.was_attached
            self.notify()
