"""How much memory a task can still have: of the machine, and of its container. Linux says so; other systems do not."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
