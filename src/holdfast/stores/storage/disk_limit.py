"""How full the disk may get before publishers are refused.

The used bytes of the file system, as ``df`` counts them, are compared with ``fraction`` of its capacity without the
blocks reserved for the administrator. Above it publishes are refused with ``disk_limit``; acknowledgements, which free
space, continue. 0 turns the limit off; it applies only if the persistence is not ``none``. The limit is soft: it is
checked every ``LOOK_MS`` or ``LOOK_BYTES``. If the file system cannot be asked, nothing is refused. Whatever the limit,
publishes are refused with the same code while a disk that is full keeps frames out of the files of stores in a log.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from holdfast.errors import Code, Unavailable

LOOK_MS: Final = 100
LOOK_BYTES: Final = 256 << 10
RETRY_AFTER_MS: Final = 1_000


class DiskUse(NamedTuple):
    """Bytes of a file system: used by everybody, and what can be used in all."""

    used: int
    capacity: int


def disk_use(directory: str) -> DiskUse:
    """How full the file system of a directory is. *Raises*: ``OSError``. *Cost*: one system call."""
    stat = os.statvfs(directory)
    used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    return DiskUse(used, used + stat.f_bavail * stat.f_frsize)


class DiskLimit:
    """The limit of one directory. ``check`` before each publish; it asks the file system every ``LOOK_MS`` at most.
    ``fraction`` is the part of the capacity that may be used; 0 for no limit.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._next_look_ms = 0
        self._bytes_left = 0  # until the next look
        self.use: DiskUse | None = None  # what the last look found
        self.fraction = 0.0

    def check(self, now_ms: int, size: int, waiting: int, *, is_full: bool = False) -> None:
        """Raise ``Unavailable`` (disk_limit) while more is used than allowed.

        ``now_ms`` is any clock, ``size`` the bytes to come, ``waiting`` those accepted and not written yet.
        ``is_full``: the disk has refused what was accepted before.
        """
        if is_full:
            raise Unavailable(
                "the disk is full, and takes no more messages",
                code=Code.DISK_LIMIT,
                hint="free some space: publishing continues by itself",
                retry_after_ms=RETRY_AFTER_MS,
            )
        if not self.fraction:
            return
        self._bytes_left -= size
        if self._bytes_left < 0 or now_ms >= self._next_look_ms or now_ms < self._next_look_ms - LOOK_MS:
            self._next_look_ms = now_ms + LOOK_MS
            self._bytes_left = LOOK_BYTES
            try:
                self.use = disk_use(self._directory)
            except OSError:
                self.use = None  # not refused: if the disk fails, the log reports it
        use = self.use
        if use is not None and use.used + waiting > self.fraction * use.capacity:
            raise Unavailable(
                "the disk is too full for more messages",
                code=Code.DISK_LIMIT,
                hint="consume messages, free space, or raise max_disk_fraction",
                retry_after_ms=RETRY_AFTER_MS,
                used_bytes=use.used,
                capacity_bytes=use.capacity,
                max_disk_fraction=self.fraction,
            )
