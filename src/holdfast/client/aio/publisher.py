"""The asyncio publisher: the machine of ``publishing``, driven by one task, or by who waits for a lone message.

Owns: who drives, waiting for room, waiting for confirmations. Does not own: any decision (``publishing``), connections
(``client.transports``).

One message at a time costs no change of tasks: who publishes it, while nothing else is to be done, sends the request
and reads the answer itself. Everything else is driven by a task.

Failure model: a cancelled ``publish`` says nothing of its message, which may still be sent. A bug that ends the task
fails every message that waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from holdfast.client.aio.transports import Pool
from holdfast.client.protocol.effects import Failed, Reply, Send, Wait
from holdfast.client.protocol.shell import draw_wait_ms, now_ms
from holdfast.client.stores.blockage import LOOK_EVERY_MS, WARN_AFTER_MS
from holdfast.client.stores.options import PublisherOptions
from holdfast.client.stores.publishing import LINGER, Publishing
from holdfast.client.stores.sent import Failure, Sent
from holdfast.client.stores.steps import Advisory
from holdfast.errors import Closed, HoldfastError, InternalError
from holdfast.stores.values.messages import FieldValue, Message
from holdfast.wire.stores import Receipt

__all__ = ["Publisher"]

_NO_FIELDS: Mapping[str, FieldValue] = {}


class Publisher:
    """Sends messages to one store, in order. Made by ``StoreClient.publisher``.

    ``publish`` and ``publish_batch`` return when the store has confirmed; ``send`` returns when the window has room,
    and ``flush`` when everything sent is confirmed. Raises: what the store refuses with; OutcomeUnknown; Closed.
    """

    def __init__(self, pool: Pool, machine: Publishing, options: PublisherOptions) -> None:
        self._pool = pool
        self._machine = machine
        self._options = options
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._driving = False
        """Whether a request is under way."""
        self._looking: asyncio.TimerHandle | None = None
        """Looks again at a request that is under way for long."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
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

    async def publish(
        self,
        body: bytes,
        *,
        fields: Mapping[str, FieldValue] = _NO_FIELDS,
        key: str | None = None,
        ttl_ms: int = 0,
        deliver_at_ms: int = 0,
    ) -> Receipt:
        """Send one message and wait until the store has it as durably as its cluster's ``persistence`` says.

        Cost: one request, which it shares with what is published at the same time.
        """
        message = Message(body, dict(fields) if fields else {}, key, 0, ttl_ms, deliver_at_ms)
        if not self._machine.has_room:
            await self._room()
        return await self._confirmation([self._machine.add(message, now_ms(), told=True)])

    async def publish_batch(self, messages: Sequence[Message]) -> Receipt:
        """Send messages that are kept all together or not at all, and wait as ``publish`` does."""
        if not self._machine.has_room:
            await self._room()
        return await self._confirmation(self._machine.add_batch(messages, now_ms()))

    async def send(
        self,
        body: bytes,
        *,
        fields: Mapping[str, FieldValue] = _NO_FIELDS,
        key: str | None = None,
        ttl_ms: int = 0,
        deliver_at_ms: int = 0,
    ) -> Sent:
        """Send one message without waiting for more than room in the window. ``flush`` tells what failed."""
        if not self._machine.has_room:
            await self._room()
        message = Message(body, dict(fields) if fields else {}, key, 0, ttl_ms, deliver_at_ms)
        sent = self._machine.add(message, now_ms())
        if self._idle is not None or self._task is None:
            self._wake()
        return sent

    async def flush(self) -> None:
        """Wait until nothing is unconfirmed.

        Raises: the first failure of what was sent since ``take_failures`` was called last.
        """
        self._machine.flush()
        self._wake()
        while self._machine.unsettled:
            await self._change()
        if self._machine.first_error is not None:
            raise self._machine.first_error

    def take_advisories(self) -> list[Advisory]:
        """What was advised since the last call: why the store takes nothing, and that it does again."""
        return self._machine.blockage.take_advisories()

    def on_advisory(self, function: Callable[[Advisory], None] | None) -> None:
        """Call this with each advisory as it comes."""
        self._machine.blockage.on_advisory = function

    def take_failures(self) -> list[Failure]:
        """The messages given to ``send`` that failed since the last call, each with its error."""
        return self._machine.take_failures()

    async def aclose(self) -> None:
        """Wait up to ``close_linger`` for what is unconfirmed; the rest fails with Closed or OutcomeUnknown.

        Raises: the first failure that nobody has taken.
        """
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.close_linger):
                    self._machine.flush()
                    self._wake()
                    while self._machine.unsettled:
                        await self._change()
        finally:
            self._machine.end(Closed("the publisher was closed before the store confirmed"))
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            self._tell()
        if self._machine.first_error is not None:
            raise self._machine.first_error

    async def _confirmation(self, items: list[Sent]) -> Receipt:
        last = items[-1]
        if self._driving or self._machine.unsettled > len(items):
            await self._confirmed_by_the_task(last)
        else:
            step = self._machine.next_step(now_ms())
            if isinstance(step, Send):
                await self._exchange(step)
            if self._machine.unsettled:  # a pause before the next try, or others who came meanwhile
                self._wake()
            if not last.done:
                await self._confirmed_by_the_task(last)
        if last.error is not None:
            raise last.error
        return last.receipt if last.receipt is not None else Receipt(0, 0)

    async def _confirmed_by_the_task(self, last: Sent) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: Sent) -> None:
            if not future.done():
                future.set_result(None)

        last.on_done = done
        self._wake()
        await future

    async def _exchange(self, step: Send) -> None:
        """Carry out one request. Cancelled, its answer is unknown, and the task asks again."""
        self._driving = True
        looking = asyncio.get_running_loop().call_later(WARN_AFTER_MS / 1000, self._look)
        answer: Reply | Failed | None = None
        closed: Closed | None = None
        try:
            answer = await self._pool.exchange(step)
        except Closed as error:  # the client was closed before its publisher; nothing was sent
            answer, closed = Failed(now_ms(), False, error.statement()), error
        finally:
            (self._looking or looking).cancel()
            self._looking = None
            self._driving = False
            self._machine.answered(Failed(now_ms(), True, "cancelled") if answer is None else answer)
            if closed is not None:
                self._machine.end(closed)
            self._tell()
            if self._task is not None or self._machine.unsettled:
                self._wake()

    def _look(self) -> None:
        self._machine.look(now_ms())
        self._looking = asyncio.get_running_loop().call_later(LOOK_EVERY_MS / 1000, self._look)

    async def _room(self) -> None:
        while not self._machine.has_room:
            await self._change()

    async def _change(self) -> None:
        """Until some message was settled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _tell(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)

    def _wake(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drive())
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

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
            self._tell()
            raise

    async def _sleep(self, seconds: float | None) -> None:
        """Until something is added or flushed."""
        self._idle = asyncio.get_running_loop().create_future()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle
        finally:
            self._idle = None
