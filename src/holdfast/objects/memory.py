"""The object store in memory: a synchronous core that simulations drive, and the port on it. No call fails."""

from __future__ import annotations

import builtins
from bisect import bisect_left, bisect_right, insort

from holdfast.errors import NotFound
from holdfast.objects.port import CREATED, CreateAnswer, Listed, Refused, WithoutLeftovers, require_key


class MemoryObjects:
    """Named immutable byte strings on plain dicts: every method is one atomic step.

    Cost: ``create`` and ``delete`` move O(n) pointers (the log adds at the front), reads are O(1), ``list`` is
    O(log n + page).
    """

    __slots__ = ("_data", "_keys")

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}
        self._keys: list[str] = []

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def create(self, key: str, data: bytes) -> bool:
        """Create ``key`` if it is absent; False when the name is taken."""
        require_key(key)
        if key in self._data:
            return False
        self._data[key] = bytes(data)
        insort(self._keys, key)
        return True

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of an object, or a part of them. Raises: NotFound."""
        data = self._data.get(key)
        if data is None:
            raise NotFound("there is no such object", key=key)
        return data[start : None if length is None else start + length]

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """The first ``limit`` objects under ``prefix`` with a key above ``after``, in byte order."""
        first = bisect_left(self._keys, prefix)
        if after >= prefix:
            first = bisect_right(self._keys, after)
        rows: builtins.list[Listed] = []
        for index in range(first, min(first + limit, len(self._keys))):
            key = self._keys[index]
            if not key.startswith(prefix):
                break
            rows.append(Listed(key, len(self._data[key])))
        return rows

    def delete(self, key: str) -> None:
        """Remove an object; an absent one is not an error."""
        if self._data.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def check(self) -> None:
        """Assert the invariants. Cost: O(n log n)."""
        assert self._keys == sorted(self._data), "the sorted keys are the keys of the objects"


class MemoryStore(WithoutLeftovers):
    """The port on one ``MemoryObjects``. Several stores may share one, as several processes share a bucket."""

    def __init__(self, objects: MemoryObjects | None = None, *, url: str = "memory:") -> None:
        self.objects = MemoryObjects() if objects is None else objects
        self.url = url

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says."""
        return CREATED if self.objects.create(key, data) else Refused()

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        return self.objects.read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """As the port says."""
        return self.objects.list(prefix, after=after, limit=limit)

    async def delete(self, *keys: str) -> None:
        """As the port says."""
        for key in keys:
            self.objects.delete(key)

    async def close(self) -> None:
        """As the port says."""
