"""Clients of every kind at a leader and its standby, and what a take-over costs each of them.

Every kind has a client of its own, and does one thing after another in a thread or a task; each confirmation is noted
with its time. What a take-over costs a kind is the time from the moment at which the new leader is ready, as a separate
program sees it, to the first confirmation of that kind. ``benchmarks/take_over.py clients`` prints it for many rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final, Literal, Self, get_args

from tests.integration.test_stores_in_log import Machine

from holdfast import Client, StoreClient, aio
from holdfast.client.stores import Message
from holdfast.commit.format.transaction import Write
from holdfast.errors import HoldfastError

PAUSE_SECONDS: Final = 0.05
WITHIN_SECONDS: Final = 90.0
BACKLOG: Final = 2_000
How = Literal["freeze", "kill", "stop"]
HOWS: Final[tuple[How, ...]] = get_args(How)


class Books:
    """What was confirmed, when, and what was raised."""

    def __init__(self) -> None:
        self.confirmed: dict[str, list[float]] = defaultdict(list)
        self.failures: list[tuple[str, BaseException]] = []
        self.published: list[bytes] = []
        self.versions: dict[str, list[int]] = defaultdict(list)
        self._numbers = itertools.count()

    def body(self, kind: str) -> bytes:
        """Of a message that nobody else publishes."""
        return f"{kind} {next(self._numbers)}".encode()

    def first_after(self, kind: str, moment: float) -> float | None:
        return next((each for each in self.confirmed[kind] if each > moment), None)


def _blocking(kind: str, urls: list[str], books: Books, stack: ExitStack) -> Callable[[], object]:
    """One operation of a blocking client, done when it is confirmed."""
    client = stack.enter_context(Client(urls))
    stores = stack.enter_context(StoreClient(urls))
    what, _, shell = kind.partition(" ")
    match what:
        case "commit":
            return lambda: books.versions[kind].append(client.commit([Write(b"k", b"v")]).version)
        case "transact":
            return lambda: client.transact(lambda txn: txn.write(b"t", b"v"))
        case "version":
            return client.version
        case "describe":
            return lambda: stores.describe_store("orders")
        case "changes":
            events = iter(stack.enter_context(client.subscribe()))
            return lambda: next(events)
        case "publish":
            publisher = stack.enter_context(stores.publisher("published"))

            def publish() -> None:
                body = books.body(kind)
                publisher.publish(body)
                books.published.append(body)

            return publish
        case "consume":
            messages = stack.enter_context(stores.subscriber("orders", "work"))

            def consume() -> None:
                message = messages.receive()
                assert message is not None
                messages.acknowledge(message, confirmed=True)

            return consume
        case "watch":
            changed = stores.map("orders", "names")
            watch = stack.enter_context(changed.watch(key=shell))

            def change() -> None:
                revision = changed.set(shell, books.body(kind))
                while (seen := watch.receive()) is not None and seen.revision < revision:
                    pass

            return change
    raise AssertionError(kind)


async def _asynchronous(
    kind: str, urls: list[str], books: Books, stack: AsyncExitStack
) -> Callable[[], Awaitable[object]]:
    """One operation of an asyncio client."""
    client = await stack.enter_async_context(aio.Client(urls))
    stores = await stack.enter_async_context(aio.StoreClient(urls))
    what, _, shell = kind.partition(" ")
    match what:
        case "commit":

            async def commit() -> None:
                books.versions[kind].append((await client.commit([Write(b"k", b"v")])).version)

            return commit
        case "transact":

            async def decide(txn: aio.AsyncTransaction) -> None:
                txn.write(b"t", b"v")

            return lambda: client.transact(decide)
        case "version":
            return client.version
        case "describe":
            return lambda: stores.describe_store("orders")
        case "changes":
            events = aiter(await stack.enter_async_context(client.subscribe()))
            return lambda: anext(events)
        case "publish":
            publisher = await stack.enter_async_context(stores.publisher("published"))

            async def publish() -> None:
                body = books.body(kind)
                await publisher.publish(body)
                books.published.append(body)

            return publish
        case "consume":
            messages = await stack.enter_async_context(stores.subscriber("orders", "work"))

            async def consume() -> None:
                message = await messages.receive()
                assert message is not None
                await messages.acknowledge(message, confirmed=True)

            return consume
        case "watch":
            changed = stores.map("orders", "names")
            watch = await stack.enter_async_context(changed.watch(key=shell))

            async def change() -> None:
                revision = await changed.set(shell, books.body(kind))
                while (seen := await watch.receive()) is not None and seen.revision < revision:
                    pass

            return change
    raise AssertionError(kind)


WHAT: Final = ("commit", "transact", "version", "describe", "changes", "publish", "consume", "watch")
KINDS: Final = tuple(f"{what} {shell}" for what in WHAT for shell in ("blocking", "asyncio"))


def _pause_seconds(kind: str) -> float:
    """Between two operations. Who reads changes must keep up with all who commit."""
    return 0.0 if kind.startswith("changes") else PAUSE_SECONDS


class Clients:
    """One client of each kind, from ``with`` to its end."""

    def __init__(self, urls: list[str]) -> None:
        self.books = Books()
        self._urls = urls
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._block, args=(kind,), daemon=True)
            for kind in KINDS
            if kind.endswith("blocking")
        ]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._loop()), daemon=True))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        end = time.monotonic() + WITHIN_SECONDS
        with Client(self._urls) as client:
            while any(thread.is_alive() for thread in self._threads):
                assert time.monotonic() < end, "a client did not come to an end"
                client.commit([Write(b"end", b"")])  # for those who wait for a change
                time.sleep(PAUSE_SECONDS)

    def until_each_confirms_after(self, moment: float) -> dict[str, float]:
        """When each kind was confirmed first after this moment. Raises: TimeoutError."""
        end = time.monotonic() + WITHIN_SECONDS
        while True:
            found = {kind: self.books.first_after(kind, moment) for kind in KINDS}
            if None not in found.values():
                return {kind: each for kind, each in found.items() if each is not None}
            if time.monotonic() > end or self.books.failures:
                missing = [kind for kind, each in found.items() if each is None]
                raise TimeoutError(f"not confirmed: {missing}, raised: {self.books.failures}")
            time.sleep(0.02)

    def _block(self, kind: str) -> None:
        try:
            with ExitStack() as stack:
                operation = _blocking(kind, self._urls, self.books, stack)
                while not self._over.wait(_pause_seconds(kind)):
                    operation()
                    self.books.confirmed[kind].append(time.monotonic())
        except (HoldfastError, AssertionError) as error:
            self.books.failures.append((kind, error))

    async def _loop(self) -> None:
        await asyncio.gather(*(self._task(kind) for kind in KINDS if kind.endswith("asyncio")))

    async def _task(self, kind: str) -> None:
        try:
            async with AsyncExitStack() as stack:
                operation = await _asynchronous(kind, self._urls, self.books, stack)
                while not self._over.is_set():
                    await operation()
                    self.books.confirmed[kind].append(time.monotonic())
                    await asyncio.sleep(_pause_seconds(kind))
        except (HoldfastError, AssertionError) as error:
            self.books.failures.append((kind, error))


class Pair:
    """A leader and a standby, which change their parts in each round."""

    def __init__(self, directory: Path, log_url: str, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.leader = Machine(directory, "machine-0", log_url)
        self.standby = Machine(directory, "machine-1", log_url)
        self.urls = [f"http://127.0.0.1:{machine.port}" for machine in (self.leader, self.standby)]

    def start(self) -> None:
        """Lead, with a store to consume and one to publish in, and stand by."""
        self.leader.serve(**self._environment)
        with StoreClient(self.urls[0]) as client:
            client.define_store("orders", {"durables": {"work": {"type": "shared"}, "names": {"type": "map"}}})
            client.define_store("published", {"durables": {"all": {"type": "shared"}}})
        self.fill()
        self.standby.stand_by(**self._environment)

    def fill(self) -> None:
        """Messages for those who consume."""
        with StoreClient(self.urls) as client, client.publisher("orders") as publisher:
            publisher.publish_batch([Message(b"%d" % number) for number in range(BACKLOG)])

    def take_over(self, how: How) -> tuple[float, float]:
        """End the leader: when that was, and when the standby was ready."""
        at = time.monotonic()
        if how == "freeze":
            self.leader.server.pause()
        elif how == "kill":
            self.leader.server.kill()
        else:
            os.kill(self.leader.server.pid, signal.SIGTERM)
        while not self._is_ready(self.standby.port):
            assert time.monotonic() - at < WITHIN_SECONDS, self.standby.server.tail()
            time.sleep(0.01)
        ready = time.monotonic()
        self.leader, self.standby = self.standby, self.leader
        return at, ready

    def first_commit_seconds(self) -> float:
        """How long the new leader takes for a commit of a program that asks it alone."""
        began = time.monotonic()
        with Client(f"http://127.0.0.1:{self.leader.port}") as client:
            client.commit([Write(b"first", b"")])
        return time.monotonic() - began

    def stand_by_again(self) -> None:
        """Start the old leader again, as the standby."""
        self.standby.end()
        self.standby.stand_by(**self._environment)

    def end(self) -> None:
        for machine in (self.leader, self.standby):
            machine.end()

    @staticmethod
    def _is_ready(port: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        try:
            connection.request("GET", "/readyz?stores=true")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@contextlib.contextmanager
def pair(directory: Path, log_url: str, **environment: str) -> Iterator[Pair]:
    """A pair that runs, and ends with the block."""
    made = Pair(directory, log_url, environment)
    try:
        made.start()
        yield made
    finally:
        made.end()


def kept(urls: list[str]) -> list[bytes]:
    """Every message that is in the store of the publishers."""
    with StoreClient(urls) as client:
        return [message.body for message in client.browser("published", "all")]


def costs(ready: float, confirmed: Mapping[str, float]) -> dict[str, int]:
    """What the take-over cost each kind, in milliseconds."""
    return {kind: round((at - ready) * 1000) for kind, at in confirmed.items()}
