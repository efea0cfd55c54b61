"""One boot of this machine: its id, and the clock that counts from it, runs through suspend and cannot be set.

On Linux the clock is the kernel's boot clock. A container may see it shifted (a time namespace); ``clock_ns`` takes the
shift out again, so that all processes of one boot read one clock. Elsewhere the id is unknown.
"""

from __future__ import annotations

import os
import time
from functools import cache

BOOT_ID = "/proc/sys/kernel/random/boot_id"
OFFSETS = "/proc/self/timens_offsets"
OWN, FOR_CHILDREN = "/proc/self/ns/time", "/proc/self/ns/time_for_children"
UNKNOWN_BOOT = bytes(16)
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@cache
def boot_id() -> bytes:
    """The 16 bytes of the kernel's boot id; zeros where it is unknown. It cannot change while a process runs."""
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            number = bytes.fromhex(file.read(64).strip().replace("-", ""))
    except (OSError, ValueError):
        return UNKNOWN_BOOT
    return number if len(number) == len(UNKNOWN_BOOT) else UNKNOWN_BOOT


def clock_id() -> bytes:
    """The id of the boot that ``clock_ns`` counts from; zeros where it is unknown."""
    return UNKNOWN_BOOT if _shift_ns() is None else boot_id()


def clock_ns() -> int:
    """Nanoseconds since the boot of this machine, time in suspend included."""
    return time.clock_gettime_ns(_CLOCK) - (_shift_ns() or 0)


@cache
def _shift_ns() -> int | None:
    """How far the boot clock of this process is ahead of the kernel's; None where that is unknown."""
    try:
        with open(OFFSETS, encoding="ascii") as file:
            lines = [line.split() for line in file]
        if os.stat(OWN).st_ino != os.stat(FOR_CHILDREN).st_ino:
            return None  # the file speaks of the children
        return next(int(seconds) * 10**9 + int(ns) for name, seconds, ns in lines if name in ("boottime", "7"))
    except FileNotFoundError:
        return 0  # a kernel without time namespaces
    except (OSError, ValueError, StopIteration):
        return None
