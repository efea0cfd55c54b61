"""Byte strings in order, with cheap insertion: a list of short sorted lists.

Owns: the order. Does not own: what the keys stand for. Cost: adding and removing O(log n + chunk) with a chunk of at
most ``CHUNK_MAX`` keys, a memory move of a few kilobytes; bulk building O(n log n); walking O(1) a key after the
first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["OrderedKeys"]

CHUNK_MAX: Final = 2_000


class OrderedKeys:
    """A set of keys that can be walked in byte order."""

    __slots__ = ("_chunks", "_lasts", "_size")

    def __init__(self) -> None:
        self._chunks: list[list[bytes]] = []
        self._lasts: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: bytes) -> bool:
        at = bisect_left(self._lasts, key)
        if at == len(self._chunks):
            return False
        chunk = self._chunks[at]
        within = bisect_left(chunk, key)
        return chunk[within] == key

    def rebuild(self, keys: Iterable[bytes]) -> None:
        """Hold exactly these keys."""
        ordered = sorted(set(keys))
        half = CHUNK_MAX // 2
        self._chunks = [ordered[start : start + half] for start in range(0, len(ordered), half)]
        self._lasts = [chunk[-1] for chunk in self._chunks]
        self._size = len(ordered)

    def add(self, key: bytes) -> None:
        """Hold ``key`` too."""
        if not self._chunks:
            self._chunks.append([key])
            self._lasts.append(key)
            self._size = 1
            return
        at = min(bisect_left(self._lasts, key), len(self._chunks) - 1)
        chunk = self._chunks[at]
        within = bisect_left(chunk, key)
        if within < len(chunk) and chunk[within] == key:
            return
        insort(chunk, key)
        self._size += 1
        self._lasts[at] = chunk[-1]
        if len(chunk) > CHUNK_MAX:
            half = len(chunk) // 2
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]
            self._lasts[at : at + 1] = [chunk[half - 1], chunk[-1]]

    def discard(self, key: bytes) -> None:
        """Do not hold ``key``."""
        at = bisect_left(self._lasts, key)
        if at == len(self._chunks):
            return
        chunk = self._chunks[at]
        within = bisect_left(chunk, key)
        if chunk[within] != key:
            return
        del chunk[within]
        self._size -= 1
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at]
            del self._lasts[at]

    def walk(self, begin: bytes, end: bytes | None) -> Iterator[bytes]:
        """The keys of ``[begin, end)`` in order. The set must not change meanwhile."""
        at = bisect_left(self._lasts, begin)
        start = bisect_left(self._chunks[at], begin) if at < len(self._chunks) else 0
        for chunk in self._chunks[at:]:
            for key in chunk[start:] if start else chunk:
                if end is not None and key >= end:
                    return
                yield key
            start = 0

    def check(self) -> None:
        """The laws of this structure. Cost: O(n)."""
        flat = [key for chunk in self._chunks for key in chunk]
        assert flat == sorted(set(flat)), "keys are in order and distinct"
        assert all(self._chunks), "no chunk is empty"
        assert self._lasts == [chunk[-1] for chunk in self._chunks], "each chunk's last key is known"
        assert self._size == len(flat), "the size is the number of keys"
        assert all(len(chunk) <= CHUNK_MAX for chunk in self._chunks), "no chunk exceeds its bound"
