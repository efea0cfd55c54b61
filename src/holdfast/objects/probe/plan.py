"""What a race creates: the names, the bodies and the moments. Pure: the numbers are drawn by ``draw``, 0 to 1.

The offsets of one name are 50 ms times the fourth power of an even number: of 16 creates about six begin within the
first millisecond, where a check without a lock is open, and the last ones near the end, when the winner has landed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.objects.probe.verdict import Read, Sight

NAMES: Final = 20
WRITERS: Final = 16
SPREAD_MS: Final = 50.0
CROWDING: Final = 4
SMALL_BYTES: Final = 256
LARGE_BYTES: Final = 1 << 20
LARGE: Final = frozenset({6, 13})
"""Which of the names have a large body: a gateway that checks before it has the body is open while it receives it."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One name: writer ``w`` creates it with ``body_of(..., w)``, ``offsets_ms[w]`` after the start."""

    name: str
    size: int
    offsets_ms: tuple[float, ...]


def plan_race(prefix: str, draw: Callable[[], float]) -> list[Contest]:
    """The race of two processes: ``NAMES`` names, each with ``WRITERS`` creates."""
    return [
        Contest(
            f"{prefix}.race.{number}",
            LARGE_BYTES if number in LARGE else SMALL_BYTES,
            tuple(SPREAD_MS * draw() ** CROWDING for _ in range(WRITERS)),
        )
        for number in range(NAMES)
    ]


SHORT_RACE: Final = {"one": SMALL_BYTES, "two": SMALL_BYTES, "large": 64 << 10}
SHORT_WRITERS: Final = 4


def plan_short_race(prefix: str) -> list[Contest]:
    """The race of one process at a start: few names, all creates at once."""
    at_once = (0.0,) * SHORT_WRITERS
    return [Contest(f"{prefix}.{part}", size, at_once) for part, size in SHORT_RACE.items()]


def body_of(name: str, size: int, writer: int) -> bytes:
    """The bytes that a writer sends: the same line again and again, cut at ``size``.

    >>> body_of("probe/a", 40, 3)
    b'writer 03 of probe/a\\nwriter 03 of probe/'
    """
    line = f"writer {writer:02d} of {name}\n".encode()
    return (line * (size // len(line) + 1))[:size]


def writer_of(data: bytes, contest: Contest) -> Read:
    """Whose body ``data`` is; foreign when it is not exactly one."""
    first = data[: len("writer 00")].decode("ascii", "replace").removeprefix("writer ")
    writer = int(first) if first.isascii() and first.isdigit() else -1
    known = 0 <= writer < len(contest.offsets_ms)
    return writer if known and data == body_of(contest.name, contest.size, writer) else Sight.FOREIGN
