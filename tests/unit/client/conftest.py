"""Both shells behind one blocking face, so that every law is tried on both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import aio
from holdfast.client import Client, ClientOptions

QUICK = ClientOptions(
    request_timeout_ms=250,
    give_up_after_ms=3_000,
    resolve_within_ms=3_000,
    retry_base_ms=1,
    retry_max_ms=4,
    stream_silence_ms=200,
    stream_give_up_after_ms=1_000,
)


class BlockingFace:
    """The blocking client as it is."""

    name = "blocking"

    def __init__(self, url: object, **arguments: Any) -> None:
        self.client: Any = Client(url, **{"options": QUICK, **arguments})  # type: ignore[arg-type]

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.client, method)(*args, **kwargs)

    def take(self, count: int, *args: Any, **kwargs: Any) -> list[Any]:
        with self.client.subscribe(*args, **kwargs) as events:
            return [next(events) for _ in range(count)]

    def results(self, txns: Any) -> list[Any]:
        return list(self.client.commits_many(txns))

    def transact(self, function: Callable[[Any], Any], **kwargs: Any) -> Any:
        """``function`` is a generator function: it yields calls on the transaction and is sent their results."""

        def body(txn: Any) -> Any:
            return _drive_blocking(function(txn))

        return self.client.transact(body, **kwargs)

    def close(self) -> None:
        self.client.close()


class AsyncFace:
    """The asyncio client on a loop of its own."""

    name = "asyncio"

    def __init__(self, url: object, **arguments: Any) -> None:
        self._runner = asyncio.Runner()
        self.client: Any = None

        async def make() -> None:
            self.client = aio.Client(url, **{"options": QUICK, **arguments})  # type: ignore[arg-type]

        self._runner.run(make())

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        async def go() -> Any:
            return await getattr(self.client, method)(*args, **kwargs)

        return self._runner.run(go())

    def take(self, count: int, *args: Any, **kwargs: Any) -> list[Any]:
        async def go() -> list[Any]:
            async with self.client.subscribe(*args, **kwargs) as events:
                return [await anext(events) for _ in range(count)]

        return self._runner.run(go())

    def results(self, txns: Any) -> list[Any]:
        async def go() -> list[Any]:
            return [result async for result in self.client.commits_many(txns)]

        return self._runner.run(go())

    def transact(self, function: Callable[[Any], Any], **kwargs: Any) -> Any:
        async def body(txn: Any) -> Any:
            return await _drive_async(function(txn))

        async def go() -> Any:
            return await self.client.transact(body, **kwargs)

        return self._runner.run(go())

    def close(self) -> None:
        self._runner.run(self.client.aclose())
        self._runner.close()


def _drive_blocking(steps: Any) -> Any:
    try:
        value = next(steps)
        while True:
            value = steps.send(value)
    except StopIteration as stop:
        return stop.value


async def _drive_async(steps: Any) -> Any:
    try:
        value = next(steps)
        while True:
            value = steps.send(await value)
    except StopIteration as stop:
        return stop.value


@pytest.fixture(params=[BlockingFace, AsyncFace], ids=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Make clients of one kind; closed at the end."""
    made: list[Any] = []

    def make(url: object, **arguments: Any) -> Any:
        made.append(request.param(url, **arguments))
        return made[-1]

    yield make
    for face in made:
        face.close()
