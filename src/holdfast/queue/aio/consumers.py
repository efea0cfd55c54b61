"""``Consumer`` and ``WorkQueue`` for asyncio, and how blocking work runs on helper threads.

A task that is cancelled while it waits loses nothing: the next task gets the message, or the job as the same delivery.
A cancelled call has ended when the cancellation is reported, and may have been done; a cancelled ``open`` leaves
nothing open.
"""
# The blocking classes show their public methods only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from inspect import signature
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from holdfast.errors import Closed, Fenced, HoldfastError
from holdfast.queue.consumers.consumer import Consumer as BlockingConsumer
from holdfast.queue.consumers.hand_outs import Owner
from holdfast.queue.files.process import copies_refused
from holdfast.queue.format.commands import DeadLetter
from holdfast.queue.log.messages import Message
from holdfast.queue.options import whole_number
from holdfast.queue.work.work_queue import Job
from holdfast.queue.work.work_queue import WorkQueue as BlockingWorkQueue


class Closable(Protocol):
    """Holds files or a name until it is closed."""

    def close(self) -> None:
        """Release them."""


class WaitUntil(Protocol):
    """A method of the queue."""

    async def __call__(
        self, look: Callable[[], Awaitable[bool]], timeout: float | None, *, look_again_s: float | None = None
    ) -> bool:
        """See ``Queue._wait_until``."""
        ...


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Shell = TypeVar("Shell")
Opened = TypeVar("Opened", bound="Closable")
Blocking = TypeVar("Blocking", bound="Closable")

POLL_MESSAGES = 1000
COUNT_MAX = 1 << 60
DUE_LOOK_S = 0.05
"""A task that waits for a job looks this often for an ended delay or lease."""


async def to_its_end(work: Awaitable[Result]) -> Result:
    """Wait for ``work``. It has ended when this returns, however often the caller is cancelled."""
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            # Cancelled again: the caller gets one cancellation.
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise


async def on_helper(work: Callable[[], Result]) -> Result:
    """Run on a helper thread. It has ended when this returns. A cancelled caller loses the result."""
    return await to_its_end(asyncio.get_running_loop().run_in_executor(None, work))


async def open_by(run: Callable[[Callable[[], None]], Awaitable[None]], open_blocking: Callable[[], Opened]) -> Opened:
    """Open something by ``run``, on another thread. A cancelled caller leaves nothing open."""
    results: list[Opened] = []
    try:
        await run(lambda: results.append(open_blocking()))
    except asyncio.CancelledError:
        for opened in results:
            # It has no owner, and would keep its lock as long as the process lives.
            with suppress(HoldfastError, OSError):
                await run(opened.close)
        raise
    return results[0]


class _AsyncWithBlock:
    """An ``async with`` block that opens and closes the object. A private name, as ``WithBlock`` in ``process``."""

    async def open(self) -> Self:
        raise NotImplementedError

    async def close(self) -> object:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise copies_refused(type(self).__name__)


AsyncWithBlock = _AsyncWithBlock


class _Opened(AsyncWithBlock, Generic[Blocking]):
    """What a consumer and a work queue share: a name, and the blocking object, once it is open. It has no public
    methods, because errors of Python name the class of a method.
    """

    _kind = ""

    def __init__(self, wait_until: WaitUntil, name: str, open_blocking: Callable[[], Blocking]) -> None:
        self.name = name
        self._wait_until = wait_until
        self._open = open_blocking
        self._inner: Blocking | None = None

    async def _take_name(self) -> Self:
        if self._inner is not None:
            raise Closed(f"a {self._kind} can be opened only once", hint=f"make another {self._kind}")
        self._inner = await open_by(on_helper, self._open)
        return self

    def _opened(self) -> Blocking:
        if self._inner is None:
            raise Closed(f"the {self._kind} is not open yet", hint="use async with")
        return self._inner

    async def _release_name(self) -> None:
        if self._inner is not None:
            await on_helper(self._inner.close)


def _show_as(method: Callable[..., object], model: Callable[..., object], returns: object) -> None:
    """Give ``method`` the name, the docstring and the arguments of ``model``."""
    method.__name__, method.__qualname__, method.__doc__ = model.__name__, model.__qualname__, model.__doc__
    method.__signature__ = signature(model).replace(return_annotation=returns)  # type: ignore[attr-defined]


def shown_as(
    model: Callable[Concatenate[Any, Arguments], object],
) -> Callable[[Callable[Concatenate[Shell, ...], Result]], Callable[Concatenate[Shell, Arguments], Result]]:
    """Decorates a method that has the docstring and the arguments of ``model``, and refuses others at once."""

    def decorated(method: Callable[Concatenate[Shell, ...], Result]) -> Callable[Concatenate[Shell, Arguments], Result]:
        def checked(self: Shell, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
            check_arguments(model, self, *args, **options)
            return method(self, *args, **options)

        _show_as(checked, model, signature(method).return_annotation)
        return checked

    return decorated


def check_arguments(model: Callable[..., object], *args: object, **options: object) -> None:
    """Raise Python's ``TypeError`` for arguments that ``model`` does not take."""
    try:
        signature(model).bind(*args, **options)
    except TypeError as error:
        raise TypeError(f"{model.__qualname__}() {error}") from None


def _awaited(
    model: Callable[Concatenate[Blocking, Arguments], Result],
) -> Callable[Concatenate[_Opened[Blocking], Arguments], Coroutine[Any, Any, Result]]:
    """The method that awaits what ``model`` does on a helper thread."""

    async def call(self: _Opened[Blocking], /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return await on_helper(partial(model, self._opened(), *args, **options))

    _show_as(call, model, signature(model).return_annotation)
    return call


class Consumer(_Opened[BlockingConsumer]):
    """A position in the log that is kept under a name, opened by ``async with`` or ``await consumer.open()``.

    The methods are those of the blocking ``Consumer``, with tasks instead of threads. Take messages in the task that
    commits them: use ``poll(timeout)``, not a task around ``poll``, which ``asyncio.wait_for`` makes before Python
    3.12. A task that commits messages of another task commits the list: ``commit(messages)``.
    """

    _kind = "consumer"

    def __init__(self, wait_until: WaitUntil, name: str, open_blocking: Callable[[], BlockingConsumer]) -> None:
        super().__init__(wait_until, name, open_blocking)
        self._owners: WeakKeyDictionary[asyncio.Task[object], Owner] = WeakKeyDictionary()

    async def open(self) -> Self:
        """Take the name. *Raises*: as ``holdfast.Queue.consumer``; ``Closed`` if it was opened before."""
        return await self._take_name()

    async def close(self) -> None:
        """Release the files and the name. Commits nothing. Closing twice is harmless."""
        await self._release_name()

    def _owner(self) -> Owner:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        owner = self._owners.get(task)
        if owner is None:
            owner = self._owners[task] = Owner()
        return owner

    @property
    def committed_seq(self) -> int:
        """The last message that is done together with all before it."""
        return self._opened().committed_seq

    @property
    def next_seq(self) -> int:
        """The next message to be handed out."""
        return self._opened().next_seq

    async def _refill(self) -> bool:
        return await on_helper(partial(self._opened()._fill, POLL_MESSAGES))

    async def __aiter__(self) -> AsyncIterator[Message]:
        """The messages from the first that was not handed out. Ends at the end of the log."""
        inner = self._opened()
        while True:
            for message in inner._take(self._owner(), 1):
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
        """As iterating, but waits for more; ends after ``timeout`` seconds without a message (None: never)."""
        while True:
            async for message in self:
                yield message
            if not await self._wait_until(self._refill, timeout):
                return

    async def poll(self, timeout: float | None = 0.0, max_messages: int = POLL_MESSAGES) -> list[Message]:
        """The next messages, 1 to ``max_messages``; none after ``timeout`` seconds (None: waits)."""
        whole_number("max_messages", max_messages, 1, COUNT_MAX)
        inner, owner = self._opened(), self._owner()
        messages = inner._take(owner, max_messages)

        async def look() -> bool:
            if await self._refill():
                messages.extend(inner._take(owner, max_messages))
            return bool(messages)

        if not messages:
            await self._wait_until(look, timeout)
        return messages

    async def commit(
        self, message: Message | int | list[Message] | list[int] | None = None, *, durable: bool | None = None
    ) -> None:
        """This message and all earlier ones that this task was given are done; without an argument, all that it was
        given. Each message of a list is done, whichever task was given it. ``durable`` by default when the queue's sync
        level is "always". *Raises*: as ``holdfast.Queue``'s consumer.
        """
        inner, owner = self._opened(), self._owner()
        if durable is None:
            durable = inner._commits_durably
        if durable or inner._file_lock.locked():  # else it waits for no disk
            await on_helper(partial(inner._commit_by, owner, message, durable=durable))
        else:
            inner._commit_by(owner, message, durable=False)

    rewind = _awaited(BlockingConsumer.rewind)
    reset = _awaited(BlockingConsumer.reset)
    lag = _awaited(BlockingConsumer.lag)


class WorkQueue(_Opened["BlockingWorkQueue"]):
    """Jobs for the tasks of an event loop, opened by ``async with`` or ``await work.open()``. The methods are those of
    the blocking ``WorkQueue``. Any number of tasks may share it.
    """

    _kind = "work queue"

    def __init__(self, wait_until: WaitUntil, name: str, open_blocking: Callable[[], BlockingWorkQueue]) -> None:
        super().__init__(wait_until, name, open_blocking)
        # Taken for tasks that were cancelled before they got them.
        self._kept: deque[Job] = deque()

    async def open(self) -> Self:
        """Take the name. *Raises*: as ``holdfast.Queue.work_queue``; ``Closed`` if it was opened before."""
        return await self._take_name()

    async def close(self) -> None:
        """Return the jobs of workers, make everything durable, release the name. Closing twice is harmless."""
        await self._release_name()

    async def get(self, timeout: float | None = None) -> Job | None:
        """The next job, or None after ``timeout`` seconds without one (None: waits; 0: looks). A job whose delay or
        lease has ended is returned within 50 ms.
        """
        jobs = await self.get_many(1, timeout)
        return jobs[0] if jobs else None

    async def get_many(self, max_jobs: int, timeout: float | None = 0.0) -> list[Job]:
        """As ``get``, up to ``max_jobs`` that are there now; waits only for the first. Jobs that a cancelled call had
        taken come first, alone.
        """
        whole_number("max_jobs", max_jobs, 1, COUNT_MAX)
        inner = self._opened()
        jobs: list[Job] = []

        async def look() -> bool:
            await on_helper(partial(self._take, inner, max_jobs, jobs))
            return bool(jobs)

        try:
            await self._wait_until(look, timeout, look_again_s=DUE_LOOK_S)
        except BaseException:
            # Their deliveries are counted: the next caller gets them.
            self._kept.extend(jobs)
            raise
        return jobs

    def _take(self, inner: BlockingWorkQueue, max_jobs: int, jobs: list[Job]) -> None:
        """On a helper thread: put kept jobs into ``jobs``, or if there are none, new ones."""
        while len(jobs) < max_jobs:
            try:
                jobs.append(self._kept.popleft())
            except IndexError:  # not asked before: another task's thread may take the last one
                break
            try:
                # The ``ack_wait`` seconds of the worker begin now.
                inner.extend(jobs[-1])
            except Fenced:
                jobs.pop()  # its lease ended, and the message was given to another worker
        if not jobs:
            jobs.extend(inner.get_many(max_jobs, 0.0))

    ack = _awaited(BlockingWorkQueue.ack)
    ack_many = _awaited(BlockingWorkQueue.ack_many)
    nack = _awaited(BlockingWorkQueue.nack)
    retry = _awaited(BlockingWorkQueue.retry)
    extend = _awaited(BlockingWorkQueue.extend)
    dead_letter = _awaited(BlockingWorkQueue.dead_letter)
    lag = _awaited(BlockingWorkQueue.lag)

    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """The dead letters, oldest first."""
        inner = self._opened()
        for letter in await on_helper(lambda: list(inner.dead_letters())):
            yield letter

    @property
    def started(self) -> int:
        """Messages that are leased or delayed."""
        return self._opened().started
