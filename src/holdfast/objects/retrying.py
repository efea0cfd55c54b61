"""Requests that are repeated while the store is unavailable: the one policy of every reader.

A read, a listing or a delete is sent again after a pause with capped exponential backoff and full jitter. All three are
safe to repeat: an object never changes, a listing says what is there after it was asked for, and a delete that was
carried out twice has removed one name. Each attempt is a whole request, so an answer is never put together from two.

A create is sent once: its repetition is a decision about three results, which ``creating`` and the leader make.
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import SystemRandom
from typing import Final, Generic, TypeVar

from holdfast.errors import NotFound, Unavailable
from holdfast.objects.budget import RequestCounts, StoreMetrics
from holdfast.objects.port import CreateAnswer, Listed, ObjectReader, ObjectStore, StoreDenies

_random: Final = SystemRandom()
"""Not the generator of the module, which is the application's; and processes that fork draw different numbers."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a failed request is repeated. Units: milliseconds. ``attempts_max`` counts the first attempt too.

    No attempt begins later than ``deadline_ms`` after the first one, so a request ends within that and one timeout.
    """

    attempts_max: int
    deadline_ms: float
    backoff_ms: float = 50.0
    backoff_ms_max: float = 2_000.0

    def wait_ms(self, attempts: int, retry_after_ms: int | None, draw: float) -> float:
        """How long to wait after ``attempts`` failures: full jitter, and never less than the store asked for.

        >>> ANSWERING.wait_ms(3, None, 0.5), ANSWERING.wait_ms(1, 700, 0.0)
        (100.0, 700.0)
        """
        ceiling = min(self.backoff_ms_max, self.backoff_ms * 2.0 ** min(attempts - 1, 32))
        return max(draw * ceiling, float(retry_after_ms or 0))


ANSWERING: Final = RetryPolicy(attempts_max=10, deadline_ms=15_000.0)
"""For requests that a caller waits for: some five seconds of refusals, or two requests without an answer."""
READING: Final = RetryPolicy(attempts_max=200, deadline_ms=120_000.0)
"""For a process that reads many objects and would lose its work: two minutes of an outage cost it time alone."""

R = TypeVar("R", bound=ObjectReader)
T = TypeVar("T")


class RetryingReader(Generic[R]):
    """A reader whose reads are repeated.

    ``policy`` applies to a store that has answered since the last interruption; until then a request ends as
    ``ANSWERING`` says, so that a wrong address is reported soon. An *interruption* is a request that failed after its
    last attempt: its caller gets ``Unavailable``. ``metrics`` counts retries and interruptions by kind of request.
    ``clock`` returns seconds, ``draw`` a number in 0..1.
    """

    def __init__(
        self,
        store: R,
        policy: RetryPolicy = READING,
        *,
        metrics: StoreMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = _random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.metrics = StoreMetrics() if metrics is None else metrics
        self._store = store
        self._policy = policy
        self._has_answered = False
        self._clock = clock
        self._draw = draw
        self._sleep = sleep

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says, after the retries."""
        return await self._repeat(self.metrics.read, lambda: self._store.read(key, start=start, length=length))

    async def close(self) -> None:
        """As the port says."""
        await self._store.close()

    async def _repeat(self, counts: RequestCounts, request: Callable[[], Awaitable[T]]) -> T:
        attempts, began = 0, self._clock()
        while True:
            try:
                result = await request()
            except NotFound:
                self._has_answered = True
                raise
            except Unavailable as error:
                attempts += 1
                policy = self._policy if self._has_answered else ANSWERING
                wait_ms = policy.wait_ms(attempts, error.retry_after_ms, self._draw())
                ends_ms = (self._clock() - began) * 1000.0 + wait_ms
                if isinstance(error, StoreDenies) or attempts >= policy.attempts_max or ends_ms > policy.deadline_ms:
                    counts.interruptions += 1
                    self._has_answered = False
                    raise
            else:
                self._has_answered = True
                return result
            counts.retries += 1
            await self._sleep(wait_ms / 1000.0)


class RetryingStore(RetryingReader[ObjectStore]):
    """A whole store: also its listings and deletes are repeated, and its creates are not."""

    @property
    def url(self) -> str:
        """As the port says."""
        return self._store.url

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says, with one request."""
        return await self._store.create(key, data)

    @property
    def cluster_id(self) -> str | None:
        """As the port says."""
        return self._store.cluster_id

    async def remove_leftovers(self, now_ms: float) -> None:
        """As the port says, without retries: a later call does what this one could not."""
        await self._store.remove_leftovers(now_ms)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """As the port says, after the retries."""
        return await self._repeat(self.metrics.list, lambda: self._store.list(prefix, after=after, limit=limit))

    async def delete(self, *keys: str) -> None:
        """As the port says, after the retries.

        Where several cannot be removed at once, each half is removed by itself: a store without a request for many
        names sends one for each, and of a hundred requests one may fail every time. Cost: at most 1 + log2(n) requests
        for each name, before those that are repeated.
        """
        if len(keys) > 1:
            try:
                await self._store.delete(*keys)
            except StoreDenies:
                self.metrics.delete.interruptions += 1
                raise
            except Unavailable as error:
                self.metrics.delete.retries += 1
                await self._sleep(self._policy.wait_ms(1, error.retry_after_ms, self._draw()) / 1000.0)
            else:
                self._has_answered = True
                return
            middle = len(keys) // 2
            await self.delete(*keys[:middle])
            await self.delete(*keys[middle:])
            return
        await self._repeat(self.metrics.delete, lambda: self._store.delete(*keys))
