"""Which bucket of a table has a key, when the number of buckets can grow by any number: linear hashing.

Source: W. Litwin, "Linear hashing: a new tool for file and table addressing", VLDB 1980. The hash is ``zlib.crc32``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.int64]

BUCKET_LOG_BYTES: Final = 32 * 2**20
"""Bytes of log per bucket when a table is made: a table is mostly smaller than its log."""
BUCKET_FILE_BYTES: Final = 32 * 2**20
"""Bytes of current rows per bucket, on the average, above which a table gets more buckets."""
BUCKETS_MIN: Final = 8
BUCKETS_MAX: Final = 4096


def bucket_count(log_bytes: int) -> int:
    """How many buckets a new table of a log of this size gets.

    >>> bucket_count(0), bucket_count(10 * 2**30)
    (8, 320)
    """
    return max(BUCKETS_MIN, min(BUCKETS_MAX, -(-log_bytes // BUCKET_LOG_BYTES)))


@dataclass(frozen=True, slots=True)
class Placement:
    """A table that was made with ``first`` buckets and has ``count`` now: ``0`` to ``count - 1``.

    With ``first * 2**n <= count < first * 2**(n + 1)`` the first ``count - first * 2**n`` buckets are split: their keys
    are placed by ``crc32(key) mod first * 2**(n + 1)``, those of the others by ``crc32(key) mod first * 2**n``. So one
    more bucket moves keys of one bucket alone.

    >>> Placement(8, 8).of_keys([b"a", b"b"]).tolist(), Placement(8, 12).of_keys([b"a", b"b"]).tolist()
    ([3, 1], [3, 9])
    """

    first: int
    count: int

    def __post_init__(self) -> None:
        assert 0 < self.first <= self.count, "a table never has fewer buckets than it was made with"

    @classmethod
    def fixed(cls, count: int) -> Placement:
        """Buckets that never grow."""
        return cls(count, count)

    def of_keys(self, keys: Sequence[bytes]) -> Numbers:
        """The bucket of each key. Cost: O(n), in Python for the hash."""
        return self.of_hashes(np.fromiter(map(crc32, keys), np.int64, len(keys)))

    def of_hashes(self, hashes: Numbers) -> Numbers:
        """The bucket of each hash."""
        level = self.first
        while level * 2 <= self.count:
            level *= 2
        split: Numbers = hashes % (level * 2)
        return np.where(split < self.count, split, hashes % level)

    def grown(self, table_bytes: int) -> Placement:
        """The buckets for current rows of ``table_bytes``: at most twice as many as now, never fewer.

        >>> Placement(8, 8).grown(9 * BUCKET_FILE_BYTES), Placement(8, 9).grown(0)
        (Placement(first=8, count=9), Placement(first=8, count=9))
        """
        wanted = min(-(-table_bytes // BUCKET_FILE_BYTES), 2 * self.count, BUCKETS_MAX)
        return replace(self, count=max(self.count, wanted))

    def sources(self, before: Placement) -> Numbers:
        """For each bucket the one that had its keys ``before``, with fewer buckets."""
        # A bucket's number is the remainder of the hashes in it, and every earlier remainder follows from it.
        return before.of_hashes(np.arange(self.count))
