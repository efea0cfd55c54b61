"""A store within limits: connections, time per request, counters and health.

Three parts of the connections cannot starve each other: creates take at most ``creates_max``, a leader's requests about
its own log (``own``) at most ``own_max``, everything else the rest. ``TimeLimited`` belongs inside a budget: the time
of a request begins when it holds a connection.

Each call is one request. ``retrying`` belongs outside a budget, so that a pause holds no connection. A leader uses
``own`` without it, because it repeats its requests by its own rules.
"""

from __future__ import annotations

import asyncio
import builtins
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Final, TypeVar

from holdfast.errors import NotFound, Unavailable
from holdfast.objects.port import CreateAnswer, Created, Listed, ObjectStore, Unknown

PAGE: Final = 1000
"""A listing sends one request for each this many keys."""


class TimeLimited:
    """A store whose every request ends within ``request_timeout_ms``, a listing within as much for each 1,000 keys."""

    def __init__(self, store: ObjectStore, request_timeout_ms: float) -> None:
        self.url = store.url
        self._store = store
        self._timeout_seconds = request_timeout_ms / 1000.0

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._store.create(key, data)
        except TimeoutError:
            return Unknown("no answer in time")

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        return await self._within(self._store.read(key, start=start, length=length), "read", key)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """As the port says."""
        return await self._within(
            self._store.list(prefix, after=after, limit=limit), "list", prefix, requests=1 + limit // PAGE
        )

    async def delete(self, *keys: str) -> None:
        """As the port says."""
        await self._within(self._store.delete(*keys), "delete", keys[0])

    @property
    def cluster_id(self) -> str | None:
        """As the port says."""
        return self._store.cluster_id

    async def remove_leftovers(self, now_ms: float) -> None:
        """As the port says. It has many requests, each with a limit of its own."""
        await self._store.remove_leftovers(now_ms)

    async def close(self) -> None:
        """As the port says."""
        await self._store.close()

    async def _within(self, request: Awaitable[T], what: str, key: str, *, requests: int = 1) -> T:
        try:
            async with asyncio.timeout(self._timeout_seconds * requests):
                return await request
        except TimeoutError as error:
            raise Unavailable(f"the object store did not {what} in time", url=self.url, key=key) from error


T = TypeVar("T")

LATENCY_BOUNDS_MS: Final = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
"""Upper bounds, inclusive, of the latency histogram; one more bucket holds what is above the last."""
UNHEALTHY_AFTER_FAILURES: Final = 3
WARN_EVERY_SECONDS: Final = 10.0


@dataclass(slots=True)
class RequestCounts:
    """The requests of one kind (create, read, list, delete). All of it counts from the start of the process.

    Shape: ``outcomes`` by created, refused, unknown (creates) or ok, not_found, unavailable; ``latency_buckets`` are
    counts per bound of ``LATENCY_BOUNDS_MS`` and one above, not cumulative. ``retries`` counts requests that were sent
    again, ``interruptions`` those that failed after their last attempt; both stay 0 without ``retrying``.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    latency_buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_MS) + 1))
    latency_ms_sum: float = 0.0
    bytes_moved: int = 0
    in_flight: int = 0
    waiting: int = 0
    retries: int = 0
    interruptions: int = 0

    def finished(self, outcome: str, latency_ms: float, moved: int) -> None:
        """Count one request."""
        self.outcomes[outcome] += 1
        self.latency_buckets[bisect_left(LATENCY_BOUNDS_MS, latency_ms)] += 1
        self.latency_ms_sum += latency_ms
        self.bytes_moved += moved


@dataclass(slots=True)
class StoreMetrics:
    """Counters of one store, read at scrape time.

    ``last_success_seconds`` and ``last_told_seconds`` (when a create without an answer was last reported) are
    readings of the clock that the store was given, None before the first.
    """

    create: RequestCounts = field(default_factory=RequestCounts)
    read: RequestCounts = field(default_factory=RequestCounts)
    list: RequestCounts = field(default_factory=RequestCounts)
    delete: RequestCounts = field(default_factory=RequestCounts)
    consecutive_failures: int = 0
    last_success_seconds: float | None = None
    last_failure: str = ""
    last_told_seconds: float | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether the last few requests did not all fail."""
        return self.consecutive_failures < UNHEALTHY_AFTER_FAILURES

    def kinds(self) -> dict[str, RequestCounts]:
        """The counts by kind."""
        return {"create": self.create, "read": self.read, "list": self.list, "delete": self.delete}


class BudgetedStore:
    """A store within a connection budget, counted.

    ``connections_max`` is the whole budget, ``creates_max`` the part of creates (the span in flight and its hedges),
    ``own_max`` the part of ``own``, 0 for no reserved part. At least one connection is left for the rest. ``clock``
    returns seconds. ``not_created(key, detail)`` is called for a create without a response, at most once in ten
    seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        connections_max: int,
        creates_max: int,
        own_max: int = 0,
        clock: Callable[[], float] = time.monotonic,
        not_created: Callable[[str, str], None] | None = None,
    ) -> None:
        assert creates_max >= 1, "creates need at least one connection"
        self.metrics = StoreMetrics()
        self.url = store.url
        self._store = store
        self._creates = asyncio.Semaphore(creates_max)
        self._others = asyncio.Semaphore(max(1, connections_max - creates_max - own_max))
        self._clock = clock
        self._not_created = not_created
        self.own = copy(self)
        """This store for a leader's requests about its own log: on reserved connections."""
        if own_max:
            self.own._others = asyncio.Semaphore(own_max)

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says, with one request."""
        counts = self.metrics.create
        async with _Connection(self._creates, counts):
            started = self._clock()
            result = await self._store.create(key, data)
            ended = self._clock()
        if isinstance(result, Unknown):
            self._failed(result.detail)
            self._warn(key, result.detail, ended)
            outcome = "unknown"
        else:
            self._succeeded(ended)
            outcome = "created" if isinstance(result, Created) else "refused"
        counts.finished(outcome, (ended - started) * 1000, len(data))
        return result

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        return await self._once(self.metrics.read, lambda: self._store.read(key, start=start, length=length), len)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """As the port says."""
        return await self._once(
            self.metrics.list, lambda: self._store.list(prefix, after=after, limit=limit), lambda _: 0
        )

    async def delete(self, *keys: str) -> None:
        """As the port says."""
        await self._once(self.metrics.delete, lambda: self._store.delete(*keys), lambda _: 0)

    @property
    def cluster_id(self) -> str | None:
        """As the port says."""
        return self._store.cluster_id

    async def remove_leftovers(self, now_ms: float) -> None:
        """As the port says, on one connection, uncounted: it is not a request of one kind."""
        async with self._others:
            await self._store.remove_leftovers(now_ms)

    async def close(self) -> None:
        """As the port says."""
        await self._store.close()

    async def _once(self, counts: RequestCounts, request: Callable[[], Awaitable[T]], size_of: Callable[[T], int]) -> T:
        async with _Connection(self._others, counts):
            started = self._clock()
            try:
                result = await request()
            except NotFound:
                self._succeeded(self._clock())
                counts.finished("not_found", (self._clock() - started) * 1000, 0)
                raise
            except Unavailable as error:
                self._failed(error.statement())
                counts.finished("unavailable", (self._clock() - started) * 1000, 0)
                raise
            ended = self._clock()
        self._succeeded(ended)
        counts.finished("ok", (ended - started) * 1000, size_of(result))
        return result

    def _succeeded(self, now_seconds: float) -> None:
        self.metrics.consecutive_failures = 0
        self.metrics.last_success_seconds = now_seconds

    def _failed(self, detail: str) -> None:
        self.metrics.consecutive_failures += 1
        self.metrics.last_failure = detail

    def _warn(self, key: str, detail: str, now_seconds: float) -> None:
        if self._not_created is None:
            return
        told_seconds = self.metrics.last_told_seconds
        if told_seconds is None or now_seconds - told_seconds >= WARN_EVERY_SECONDS:
            self.metrics.last_told_seconds = now_seconds
            self._not_created(key, detail)


class _Connection:
    """One connection of a budget, counted while waiting and while held."""

    __slots__ = ("_counts", "_semaphore")

    def __init__(self, semaphore: asyncio.Semaphore, counts: RequestCounts) -> None:
        self._semaphore = semaphore
        self._counts = counts

    async def __aenter__(self) -> None:
        self._counts.waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self._counts.waiting -= 1
        self._counts.in_flight += 1

    async def __aexit__(self, *_: object) -> None:
        self._counts.in_flight -= 1
        self._semaphore.release()
