"""The number of cores that a session runs tasks on, for a process that plans a read and has no session."""

from __future__ import annotations

import os
import re
from typing import Final

CORES_VARIABLE: Final = "HOLDFAST_SPARK_CORES"
"""Set by ``holdfast.spark.session`` for the processes of its own Java."""
CORES_MAX: Final = 64
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")


def cores() -> int:
    """The session's cores if this package started it here, else those of this machine, which runs the driver."""
    stated = os.environ.get(CORES_VARIABLE, "")
    found = int(stated) if stated.isascii() and stated.isdigit() else len(os.sched_getaffinity(0))
    return max(1, min(CORES_MAX, found))


def cores_of(master: str) -> int | None:
    """The cores that a local Spark master uses; None for any other.

    >>> cores_of("local[3]"), cores_of("local"), cores_of("spark://host:7077")
    (3, 1, None)
    """
    local = _LOCAL.fullmatch(master)
    if local is None:
        return None
    if local[1] is None:
        return 1
    return len(os.sched_getaffinity(0)) if local[1] == "*" else int(local[1])
