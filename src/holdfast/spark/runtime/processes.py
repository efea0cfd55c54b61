"""What a process knows of where it runs: its cores, its free memory, and whether Spark started it, which shows errors.

A worker of Spark sends the text of an exception to Java, which puts its own words before it and its own trace after it.
Between them Spark would show the frames of both packages, some 20 lines. Errors of Holdfast name what is wrong
themselves. Every other exception is a bug, and keeps its frames.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction, isgeneratorfunction
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.errors import HoldfastError

CORES_VARIABLE: Final = "HOLDFAST_SPARK_CORES"
"""Set by ``holdfast.spark.session`` for the processes of its own Java."""
CORES_MAX: Final = 64
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")


def cores() -> int:
    """The session's cores if this package started it here, else those of this machine, which runs the driver."""
    stated = os.environ.get(CORES_VARIABLE, "")
    count = int(stated) if stated.isascii() and stated.isdigit() else len(os.sched_getaffinity(0))
    return max(1, min(CORES_MAX, count))


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


HIDE_VARIABLE: Final = "SPARK_HIDE_TRACEBACK"
"""A worker looks at it when it sends an exception, and ends after that."""

SHOWN_IN_FRAMES: Final = "streamReader"
"""Where no stream reader can be made, Spark 4.3 fails in its own clean-up, and shows our error in the frames alone."""

C = TypeVar("C", bound=type[object])


def states_errors(source: C) -> C:
    """This class, whose public methods raise errors of Holdfast so that Spark shows their text alone."""
    for name, method in list(vars(source).items()):
        if isfunction(method) and not name.startswith("_") and name != SHOWN_IN_FRAMES:
            setattr(source, name, _stating(method))
    return source


def _stating(method: Callable[..., Any]) -> Callable[..., Any]:
    if isgeneratorfunction(method):

        @wraps(method)
        def generate(*args: Any, **named: Any) -> Iterator[object]:
            with _text_alone():
                yield from method(*args, **named)

        return generate

    @wraps(method)
    def call(*args: Any, **named: Any) -> object:
        with _text_alone():
            return method(*args, **named)

    return call


@contextmanager
def _text_alone() -> Generator[None]:
    try:
        yield
    except HoldfastError:
        if program().startswith("pyspark."):
            os.environ[HIDE_VARIABLE] = "1"
        raise


def program() -> str:
    """The module that this process runs; one of ``pyspark`` where Spark started it, to plan or to run a task."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)


ROOT: Final = Path("/")


def free_memory(root: Path = ROOT) -> int | None:
    """The bytes that are free where this runs, None where the system does not say. ``root``: of ``proc``, ``sys``."""
    known = [each for each in (_of_machine(root), _of_container(root)) if each is not None]
    return min(known, default=None)


def _of_machine(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return None


_LIMIT_FILES: Final = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
"""Control groups, versions 2 and 1: the limit, what is used, and of that the pages of files, which can be freed."""


def _of_container(root: Path) -> int | None:
    """What the limit of a container leaves."""
    for *names, of_files in _LIMIT_FILES:
        limit, used, pages = (_lines(root / "sys/fs/cgroup" / name) for name in names)
        if limit and used and limit[0].isdecimal():
            amounts = (line.partition(" ") for line in pages)
            files = next((int(amount) for name, _, amount in amounts if name == of_files), 0)
            return max(0, int(limit[0]) - int(used[0]) + files)
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
