"""Consumers and work queues for asyncio: what ``holdfast.aio.Queue.consumer`` and ``work_queue`` give.

Owns: waiting for a message or a job without a thread. Does not own: consumers and work queues themselves (``consumer``,
``work_queue``), which do all the rest, on a helper thread.

Failure model: that of the blocking classes. A task that is cancelled while it waits has lost nothing: what it was not
given is given to the next, a job as the same delivery. A call that is cancelled has ended when the cancellation is
reported, and may have been done; but what a cancelled ``open`` has opened is closed again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from weakref import WeakKeyDictionary

from holdfast.errors import Closed, Fenced, HoldfastError
from holdfast.queue.consumers.consumer import Owner
from holdfast.queue.options import renamed_argument, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from datetime import datetime
    from typing import Protocol, Self, TypeAlias, TypeVar

    from holdfast.queue.consumers import consumer as blocking_consumer
    from holdfast.queue.log.messages import Message
    from holdfast.queue.work import work_queue as blocking_work_queue
    from holdfast.queue.work.command import DeadLetter
    from holdfast.queue.work.work_queue import Job

    class Closable(Protocol):
        """Holds files or a name until it is closed."""

        def close(self) -> None:
            """Let go of them."""

    WaitUntil: TypeAlias = Callable[[Callable[[], Awaitable[bool]], float | None, float | None], Awaitable[bool]]
    """``Queue.wait_until``: looks until it is true, at most for ``timeout`` seconds, at least every so many."""

    Result = TypeVar("Result")
    Opened = TypeVar("Opened", bound=Closable)

POLL_MESSAGES = 1000
COUNT_MAX = 1 << 60
DUE_LOOK_S = 0.05
"""How often a task that waits for a job looks for one whose delay or lease has ended."""


async def to_its_end(work: Awaitable[Result]) -> Result:
    """Wait for ``work``. However often the caller is cancelled, it has ended when this returns."""
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            # Cancelled once more: this one ends with the cancellation anyhow.
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise


async def on_helper(work: Callable[[], Result]) -> Result:
    """Run on a helper thread; it has ended when this returns, because the next step may close the files under it.

    What it returns is lost where the caller is cancelled: what must not be lost, ``work`` puts away itself.
    """
    return await to_its_end(asyncio.get_running_loop().run_in_executor(None, work))


async def open_by(run: Callable[[Callable[[], None]], Awaitable[None]], open_blocking: Callable[[], Opened]) -> Opened:
    """Open something by ``run``, on another thread; a caller that is cancelled leaves nothing open behind it.

    *Raises*: as ``open_blocking``.
    """
    found: list[Opened] = []
    try:
        await run(lambda: found.append(open_blocking()))
    except asyncio.CancelledError:
        for opened in found:
            # It is nobody's, and would keep its lock as long as the process lives.
            with suppress(HoldfastError, OSError):
                await run(opened.close)
        raise
    return found[0]


class Consumer:
    """A place in the log that is kept under a name, opened by ``async with`` or ``await consumer.open()``.

    The methods are those of the blocking consumer; see ``queue.consumer``. Any number of tasks may share it: what is
    said there of threads is true of tasks here. Take messages in the task that commits them: ``poll(timeout)``, not a
    task of its own around ``poll``, as ``asyncio.wait_for`` makes one before Python 3.12. A task that commits what
    another one took commits the list: ``commit(messages)``.
    """

    def __init__(
        self, wait_until: WaitUntil, name: str, open_blocking: Callable[[], blocking_consumer.Consumer]
    ) -> None:
        self.name = name
        self._wait_until = wait_until
        self._open = open_blocking
        self._inner: blocking_consumer.Consumer | None = None
        self._owners: WeakKeyDictionary[asyncio.Task[object], Owner] = WeakKeyDictionary()

    async def open(self) -> Self:
        """Take the name. *Raises*: as ``holdfast.Queue.consumer``."""
        if self._inner is not None:
            raise Closed("a consumer is opened once", hint="make another")
        self._inner = await open_by(on_helper, self._open)
        return self

    def _opened(self) -> blocking_consumer.Consumer:
        if self._inner is None:
            raise Closed("the consumer is not open yet", hint="async with")
        return self._inner

    def _owner(self) -> Owner:
        """Whose the messages are that the current task takes."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        found = self._owners.get(task)
        if found is None:
            found = self._owners[task] = Owner()
        return found

    @property
    def committed_seq(self) -> int:
        """The last message that is done together with all before it."""
        return self._opened().committed_seq

    @property
    def next_seq(self) -> int:
        """The next message to be handed out."""
        return self._opened().next_seq

    async def _refill(self) -> bool:
        """Have messages in memory. False where there are none now."""
        return await on_helper(partial(self._opened().fill, POLL_MESSAGES))

    async def __aiter__(self) -> AsyncIterator[Message]:
        """The messages that are there, from the first that was not handed out yet. Ends where the log does now."""
        inner = self._opened()
        while True:
            for message in inner.take(self._owner(), 1):
                yield message
                break
            else:
                if not await self._refill():
                    return

    async def values(self) -> AsyncIterator[object]:
        """As iterating, what the queue's serializer makes of each payload."""
        async for message in self:
            yield message.value

    async def follow(self, timeout: float | None = None) -> AsyncIterator[Message]:
        """As iterating, but waits for more; ends after ``timeout`` seconds without a message, without one never."""
        while True:
            async for message in self:
                yield message
            if not await self._wait_until(self._refill, timeout, None):
                return

    async def poll(self, timeout: float | None = 0.0, max_messages: int = POLL_MESSAGES) -> list[Message]:
        """The next messages, at least one and at most ``max_messages``; none after ``timeout`` seconds (None:
        waits)."""
        whole_number("max_messages", max_messages, 1, COUNT_MAX)
        inner, owner = self._opened(), self._owner()
        found = inner.take(owner, max_messages)

        async def look() -> bool:
            if await self._refill():
                found.extend(inner.take(owner, max_messages))
            return bool(found)

        if not found:
            await self._wait_until(look, timeout, None)
        return found

    async def commit(self, message: Message | int | list[Message] | None = None, *, durable: bool = False) -> None:
        """This message and all before it that this task was given are done; without one, all that it was given.

        Of a list of messages each is done, whichever task was given it. See ``queue.consumer``.
        """
        inner, owner = self._opened(), self._owner()
        if durable or inner.may_wait:
            await on_helper(partial(inner.commit_by, owner, message, durable=durable))
        else:
            inner.commit_by(owner, message)

    async def rewind(self) -> None:
        """Hand out again what was handed out and not committed."""
        inner = self._opened()
        await on_helper(inner.rewind)

    async def reset(self, *, since: datetime | str | None = None, seq: int | None = None) -> None:
        """Go on from elsewhere; committed at once, durably. See ``queue.consumer``."""
        await on_helper(partial(self._opened().reset, since=since, seq=seq))

    async def lag(self) -> int:
        """How many messages of the log are not committed; those that were removed do not count."""
        return await on_helper(self._opened().lag)

    async def close(self) -> None:
        """Let go of the files and the name. Commits nothing. Doing it twice is harmless."""
        if self._inner is not None:
            await on_helper(self._inner.close)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class WorkQueue:
    """Jobs for the tasks of an event loop, opened by ``async with`` or ``await work.open()``.

    The methods are those of the blocking work queue; see ``queue.work_queue``. Any number of tasks may share it.
    """

    def __init__(
        self, wait_until: WaitUntil, name: str, open_blocking: Callable[[], blocking_work_queue.WorkQueue]
    ) -> None:
        self.name = name
        self._wait_until = wait_until
        self._open = open_blocking
        self._inner: blocking_work_queue.WorkQueue | None = None
        # Taken for a task that was cancelled before it got them.
        self._kept: deque[Job] = deque()

    async def open(self) -> Self:
        """Take the name. *Raises*: as ``holdfast.Queue.work_queue``."""
        if self._inner is not None:
            raise Closed("a work queue is opened once", hint="make another")
        self._inner = await open_by(on_helper, self._open)
        return self

    def _opened(self) -> blocking_work_queue.WorkQueue:
        if self._inner is None:
            raise Closed("the work queue is not open yet", hint="async with")
        return self._inner

    async def get(self, timeout: float | None = None) -> Job | None:
        """The next job, or None after ``timeout`` seconds without one (None: waits; 0: looks).

        A job whose delay or lease has ended is found within 50 ms.
        """
        found = await self.get_many(1, timeout)
        return found[0] if found else None

    async def get_many(self, max_jobs: int, timeout: float | None = 0.0) -> list[Job]:
        """As ``get``, as many as are there now, at most ``max_jobs``; waits only for the first.

        Jobs that a cancelled call had taken come first, and by themselves.
        """
        whole_number("max_jobs", max_jobs, 1, COUNT_MAX)
        inner = self._opened()
        found: list[Job] = []

        async def look() -> bool:
            await on_helper(partial(self._take, inner, max_jobs, found))
            return bool(found)

        try:
            await self._wait_until(look, timeout, DUE_LOOK_S)
        except BaseException:
            # Their deliveries are counted: they are for whoever asks next.
            self._kept.extend(found)
            raise
        return found

    def _take(self, inner: blocking_work_queue.WorkQueue, max_jobs: int, found: list[Job]) -> None:
        """On a helper thread: put into ``found`` what was kept, or, where that is nothing, what is there now."""
        while len(found) < max_jobs:
            try:
                found.append(self._kept.popleft())
            except IndexError:  # not asked before: another task's thread may take the last one
                break
            try:
                # A worker has it for ``ack_wait`` seconds, and these begin now.
                inner.extend(found[-1])
            except Fenced:
                found.pop()  # its lease ended, and the message was given to somebody else
        if not found:
            found.extend(inner.get_many(max_jobs, 0.0))

    async def ack(self, job: Job) -> None:
        """This job is done and never comes back. *Raises*: ``Fenced`` (lease_lost)."""
        await on_helper(partial(self._opened().ack, job))

    async def ack_many(self, jobs: Sequence[Job]) -> None:
        """As ``ack``, all of them."""
        await on_helper(partial(self._opened().ack_many, jobs))

    async def nack(self, job: Job, *, delay: float = 0.0, reason: str = "") -> None:
        """Give a job back, to be handed out again after ``delay`` seconds."""
        await on_helper(partial(self._opened().nack, job, delay=delay, reason=reason))

    async def retry(self, job: Job, *, reason: str = "") -> None:
        """Give a job back, to be handed out again after a wait that doubles with each delivery."""
        await on_helper(partial(self._opened().retry, job, reason=reason))

    async def extend(self, job: Job, ack_wait: float | None = None, *, visibility: float | None = None) -> None:
        """Keep a job for longer."""
        ack_wait = renamed_argument("visibility", visibility, "ack_wait", ack_wait)
        await on_helper(partial(self._opened().extend, job, ack_wait))

    async def dead_letter(self, job: Job, reason: str = "given up") -> None:
        """Give a job up now."""
        await on_helper(partial(self._opened().dead_letter, job, reason))

    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """What was given up, oldest first."""
        inner = self._opened()
        for letter in await on_helper(lambda: list(inner.dead_letters())):
            yield letter

    @property
    def started(self) -> int:
        """Messages that are leased or delayed."""
        return self._opened().started

    async def lag(self) -> int:
        """Messages that are not done."""
        return await on_helper(self._opened().lag)

    async def close(self) -> None:
        """Let go of the files and the name. Doing it twice is harmless."""
        if self._inner is not None:
            await on_helper(self._inner.close)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
