"""The conflict window: which versions changed which keys lately.

Owns: the newest change of every key and range inside the window, and the window's floor. Does not own: what a
precondition is or what its failure means (``resolve``), and how the window's age is measured (its caller does).

Failure model: pure memory, nothing fails. A question below the floor cannot be answered and is a bug of the caller.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from holdfast.commit.transaction import Operation, RangeDelete

__all__ = ["RecentWrites"]

KEY_BYTES = 150


class RecentWrites:
    """The newest change of every key and range changed after ``floor``."""

    __slots__ = ("_bytes_max", "_keys", "_range_deletes", "_versions", "floor", "last_version")

    def __init__(self, floor: int, *, bytes_max: int) -> None:
        self.floor = floor
        self.last_version = floor
        self._bytes_max = bytes_max
        self._versions: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        self._range_deletes: list[tuple[int, bytes, bytes | None]] = []

    def record(self, version: int, operations: Sequence[Operation]) -> None:
        """Remember what an accepted transaction changed. Versions rise strictly."""
        assert version > self.last_version, "versions rise strictly"
        self.last_version = version
        for operation in operations:
            if isinstance(operation, RangeDelete):
                self._range_deletes.append((version, operation.begin, operation.end))
            else:
                if operation.key not in self._versions:
                    insort(self._keys, operation.key)
                self._versions[operation.key] = version

    def changed_after(self, key: bytes, version: int) -> int:
        """The newest version above ``version`` that changed ``key``, or 0."""
        return self._newest(self._versions.get(key, 0), key, key + b"\0", version)

    def range_changed_after(self, begin: bytes, end: bytes | None, version: int) -> int:
        """The newest version above ``version`` at which anything in ``[begin, end)`` changed, or 0."""
        first = bisect_left(self._keys, begin)
        last = len(self._keys) if end is None else bisect_left(self._keys, end)
        newest = max(map(self._versions.__getitem__, self._keys[first:last]), default=0)
        return self._newest(newest, begin, end, version)

    def expire(self, floor: int) -> None:
        """Raise the floor and forget what is at or below it."""
        self.floor = max(floor, self.floor)
        if self.bytes_used() > self._bytes_max:
            middle = len(self._versions) // 2
            self.floor = max(self.floor, sorted(self._versions.values())[middle] if middle else self.last_version)
        self._versions = {key: version for key, version in self._versions.items() if version > self.floor}
        self._keys = sorted(self._versions)
        self._range_deletes = [delete for delete in self._range_deletes if delete[0] > self.floor]

    def bytes_used(self) -> int:
        """An estimate of the memory held."""
        return KEY_BYTES * (len(self._versions) + len(self._range_deletes))

    def check(self) -> None:
        """Assert the invariants."""
        assert self._keys == sorted(self._versions), "every key is listed once, in order"

    def _newest(self, newest: int, begin: bytes, end: bytes | None, version: int) -> int:
        for changed, deleted_from, deleted_to in self._range_deletes:
            if (deleted_to is None or begin < deleted_to) and (end is None or deleted_from < end):
                newest = max(newest, changed)
        return newest if newest > version else 0
