"""The two ways in which a program uses a client: the tasks of an event loop, or threads.

The lanes and the clients are written once, as coroutines. With threads a coroutine never suspends: what it awaits has
already blocked its thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol

__all__ = ["WAYS", "Tasks", "Threads", "Way"]

Work = Coroutine[Any, Any, Any]
EVENT_SECONDS_MAX = 30.0
"""How long a thread waits for an event that it caused."""


class Way(Protocol):
    """How a program waits, and how it does many things at the same time."""

    def run(self, work: Work) -> Any:
        """The main function of a program."""
        ...

    async def answer(self, given: Any) -> Any:
        """What a call of the client answers."""
        ...

    async def together(self, works: Iterable[Work]) -> None:
        """All at the same time, until all have ended. Raises: what one of them raises."""
        ...

    def spawn(self, work: Work, failed: Callable[[BaseException], None]) -> Callable[[], Awaitable[None]]:
        """In the background; the answer waits for its end. ``failed`` gets what it raises."""
        ...

    def function(self, function: Callable[[Any], Work]) -> Callable[[Any], Any]:
        """A function that the client calls."""
        ...

    def promise(self) -> Any:
        """A future for ``answer``."""
        ...

    async def next_of(self, events: Any) -> Any:
        """The next event of a stream. Raises: StopAsyncIteration."""
        ...

    async def close(self, opened: Any) -> None:
        """Close a client or a stream."""
        ...

    def end(self) -> None:
        """The program ends."""
        ...


class Tasks:
    """An asyncio program. One loop for all bursts: gRPC keeps a part of each loop that it ever saw."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, work: Work) -> Any:
        return self._runner.run(work)

    async def answer(self, given: Any) -> Any:
        return await given

    async def together(self, works: Iterable[Work]) -> None:
        await asyncio.gather(*works)

    def spawn(self, work: Work, failed: Callable[[BaseException], None]) -> Callable[[], Awaitable[None]]:
        async def whole() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  # the lane ends with it
                failed(error)

        task = asyncio.create_task(whole())

        async def end() -> None:
            await task

        return end

    def function(self, function: Callable[[Any], Work]) -> Callable[[Any], Any]:
        return function

    def promise(self) -> Any:
        return asyncio.get_running_loop().create_future()

    async def next_of(self, events: Any) -> Any:
        return await anext(events)

    async def close(self, opened: Any) -> None:
        await opened.aclose()

    def end(self) -> None:
        self._runner.close()


def drive(work: Work) -> Any:
    """Run a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("a thread waits in its calls, and not in a coroutine")


class Threads:
    """A program with threads and a blocking client."""

    def run(self, work: Work) -> Any:
        return drive(work)

    async def answer(self, given: Any) -> Any:
        return given.result(EVENT_SECONDS_MAX) if isinstance(given, concurrent.futures.Future) else given

    async def together(self, works: Iterable[Work]) -> None:
        waiting = list(works)
        with concurrent.futures.ThreadPoolExecutor(len(waiting)) as pool:
            for started in [pool.submit(drive, work) for work in waiting]:
                started.result()

    def spawn(self, work: Work, failed: Callable[[BaseException], None]) -> Callable[[], Awaitable[None]]:
        def whole() -> None:
            try:
                drive(work)
            except Exception as error:  # noqa: BLE001  # the lane ends with it
                failed(error)

        thread = threading.Thread(target=whole, daemon=True)
        thread.start()

        async def end() -> None:
            thread.join(EVENT_SECONDS_MAX)

        return end

    def function(self, function: Callable[[Any], Work]) -> Callable[[Any], Any]:
        return lambda given: drive(function(given))

    def promise(self) -> Any:
        return concurrent.futures.Future()

    async def next_of(self, events: Any) -> Any:
        try:
            return next(events)
        except StopIteration:
            raise StopAsyncIteration from None

    async def close(self, opened: Any) -> None:
        opened.close()

    def end(self) -> None:
        pass


WAYS: dict[str, Callable[[], Way]] = {"tasks": Tasks, "threads": Threads}
