"""A bound in time for every request to a store.

Owns: what a request that is not answered in time comes to. Does not own: where it waits before it is sent (``budget``
limits what it is given, so a request's time begins when it holds its connection), whether it is sent again.

Failure model: the port's own. A create without an answer is ``Unknown``: it may be carried out later. Whatever else has
none raises ``Unavailable``, caused by the ``TimeoutError``; ``ran_out_of_time`` tells it from other failures. A request
that is given up is cancelled, which the port allows at any time.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable
from typing import Final, TypeVar

from holdfast.errors import Unavailable
from holdfast.objects.port import CreateAnswer, Listed, ObjectStore, Unknown

__all__ = ["TimeLimited", "ran_out_of_time"]

T = TypeVar("T")

PAGE: Final = 1000
"""A listing is a request per so many keys."""


class TimeLimited:
    """A store whose every request ends within ``request_timeout_ms``, a listing within as much for each 1,000 keys."""

    def __init__(self, store: ObjectStore, request_timeout_ms: float) -> None:
        self._store = store
        self._timeout_seconds = request_timeout_ms / 1000.0

    @property
    def url(self) -> str:
        """Where this is, without secrets, for people."""
        return self._store.url

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

    async def delete(self, key: str) -> None:
        """As the port says."""
        await self._within(self._store.delete(key), "delete", key)

    async def close(self) -> None:
        """As the port says."""
        await self._store.close()

    async def _within(self, request: Awaitable[T], what: str, key: str, *, requests: int = 1) -> T:
        try:
            async with asyncio.timeout(self._timeout_seconds * requests):
                return await request
        except TimeoutError as error:
            raise Unavailable(f"the object store did not {what} in time", url=self.url, key=key) from error


def ran_out_of_time(error: Unavailable) -> bool:
    """Whether a request failed because it had no answer in time."""
    return isinstance(error.__cause__, TimeoutError)
