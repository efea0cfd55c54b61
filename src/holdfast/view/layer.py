"""Recent changes to a keyed state, laid over an older one.

Owns: what a sequence of writes, deletes and range deletes amounts to. Does not own: the state below.

Shape: ``cleared`` are the ranges in which nothing below shows through, disjoint and in order; ``changes`` are the
keys changed after that, each with its value and version, or None when it is gone. A layer over nothing keeps no trace
of what is gone (``is_ground``).

Cost: a write or delete of a known key is one dictionary operation; a new key is put in order only when a range is
read or deleted (``OrderedKeys``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

from holdfast.commit.format.transaction import Delete, Operation, RangeDelete, Write
from holdfast.view.ordered_keys import OrderedKeys

__all__ = ["Layer", "Stored"]

Stored = tuple[bytes, int]
"""A value and the version that wrote it."""


class Layer:
    """Changes in order; later ones win."""

    __slots__ = ("_order", "_unordered", "changes", "cleared", "is_ground", "size")

    def __init__(self, *, is_ground: bool) -> None:
        self.is_ground = is_ground
        self.changes: dict[bytes, Stored | None] = {}
        self.cleared: list[tuple[bytes, bytes | None]] = []
        self.size = 0
        self._order = OrderedKeys()
        self._unordered: set[bytes] = set()

    def apply(self, version: int, operations: Sequence[Operation]) -> None:
        """The operations of one transaction, in order."""
        changes = self.changes
        for operation in operations:
            kind = type(operation)
            if kind is Write:
                key = operation.key  # type: ignore[union-attr]
                if key not in changes:
                    self._unordered.add(key)
                value = operation.value  # type: ignore[union-attr]
                changes[key] = (value, version)
                self.size += len(key) + len(value) + 128
            elif kind is Delete:
                key = operation.key  # type: ignore[union-attr]
                if self.is_ground:
                    if changes.pop(key, None) is not None:
                        self._unordered.add(key)
                else:
                    if key not in changes:
                        self._unordered.add(key)
                    changes[key] = None
                    self.size += len(key) + 128
            else:
                assert isinstance(operation, RangeDelete), "there are three kinds of operation"
                self._clear(operation.begin, operation.end)

    def write(self, changes: Mapping[bytes, Stored]) -> None:
        """Writes of many transactions at once, the last one of each key: the cheap way in where nothing is deleted."""
        self.changes.update(changes)
        self._unordered.update(changes)
        self.size += sum(len(key) + len(stored[0]) for key, stored in changes.items()) + 128 * len(changes)

    def _clear(self, begin: bytes, end: bytes | None) -> None:
        if end is not None and begin >= end:
            return
        for key in list(self.walk(begin, end)):
            del self.changes[key]
            self._unordered.add(key)
        if self.is_ground:
            return
        self.size += len(begin) + len(end or b"") + 128
        # Join with every cleared range that this one touches.
        first = bisect_left([item[0] for item in self.cleared], begin)
        if first > 0:
            before_end = self.cleared[first - 1][1]
            if before_end is None or before_end >= begin:
                first -= 1
                begin = self.cleared[first][0]
        last = first
        while last < len(self.cleared) and (end is None or self.cleared[last][0] <= end):
            other = self.cleared[last][1]
            end = None if end is None or other is None else max(end, other)
            last += 1
        self.cleared[first:last] = [(begin, end)]

    def hides(self, key: bytes) -> bool:
        """Whether what lies below does not show through at ``key`` (its own changes aside)."""
        if not self.cleared:
            return False
        at = bisect_right(self.cleared, key, key=lambda item: item[0]) - 1
        if at < 0:
            return False
        end = self.cleared[at][1]
        return end is None or key < end

    def walk(self, begin: bytes, end: bytes | None) -> Iterator[bytes]:
        """The changed keys of ``[begin, end)`` in order, gone ones included."""
        self._put_in_order()
        return self._order.walk(begin, end)

    def _put_in_order(self) -> None:
        if not self._unordered:
            return
        if len(self._unordered) * 4 >= len(self._order):
            self._order.rebuild(self.changes)
        else:
            for key in self._unordered:  # the order of this walk leaves no trace
                if key in self.changes:
                    self._order.add(key)
                else:
                    self._order.discard(key)
        self._unordered.clear()

    def check(self) -> None:
        """The laws of a layer. Cost: O(n)."""
        self._put_in_order()
        self._order.check()
        assert list(self._order.walk(b"", None)) == sorted(self.changes), "the order holds exactly the changed keys"
        assert not (self.is_ground and self.cleared), "nothing lies below the ground"
        assert not (self.is_ground and None in self.changes.values()), "the ground keeps no trace of what is gone"
        for (_, end), (begin, _) in zip(self.cleared, self.cleared[1:], strict=False):
            assert end is not None, "only the last cleared range has no end"
            assert end < begin, "cleared ranges are disjoint, apart and in order"
