"""Identifiers, instants and names that several packages use, with their text forms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, NewType, TypeVar

K = TypeVar("K")
V = TypeVar("V")

Slot = NewType("Slot", int)
"""The number of one batch object. The first is 2^64-1 and they count down, so a larger slot is older."""

Version = NewType("Version", int)
"""A commit's place in the total order. Rises strictly; below 2^53, so that JSON readers keep it exactly."""

LeaderId = NewType("LeaderId", bytes)
"""16 random bytes, drawn once per process start. Its text form is 32 lowercase hexadecimal digits."""

LogId = NewType("LogId", bytes)
"""16 random bytes, drawn when the log is created and copied by every claim. Its text form is as a leader id's."""

VERSION_JUMP: Final = 100_000_000
"""A leadership begins this many versions above the last one of the leadership before it."""
FORK_JUMP_MIN: Final = 10**9
"""A log that was forked begins at least this many versions above the fork."""
UNIX: Final = "unix:"
LOOPBACK: Final = (UNIX, "127.", "localhost:", "[::1]:")
"""How the addresses begin that lead nowhere but to their own machine."""
SIGN_INTERVAL_LOCAL_MS: Final = 2_000.0
SIGN_INTERVAL_ETCD_MS: Final = 1_000.0
SIGN_INTERVAL_REMOTE_MS: Final = 10_000.0
SLOT_DIGITS: Final = 20
VERSION_MAX: Final = 2**53 - 1


class Instant(NamedTuple):
    """One reading of both clocks, carried into the state machines as data.

    Units: ``boot_ms`` milliseconds of a clock that never steps back and runs through suspend; ``wall_ms`` milliseconds
    since the Unix epoch, which may jump either way.
    """

    boot_ms: float
    wall_ms: int


class LogPosition(NamedTuple):
    """A place in a log: everything up to ``version`` in the log ``log_id``.

    ``log_id`` is the text form of the id, or None where it was not given. ``leader_id`` is set
    when the version was not durable yet: only that leader vouches for it.

    >>> str(LogPosition(7)), str(LogPosition(7, "0" * 32, "f" * 32))
    ('7', '7~ffffffffffffffffffffffffffffffff@00000000000000000000000000000000')
    """

    version: int
    log_id: str | None = None
    leader_id: str | None = None

    def __str__(self) -> str:
        leader = "" if self.leader_id is None else f"~{self.leader_id}"
        log = "" if self.log_id is None else f"@{self.log_id}"
        return f"{self.version}{leader}{log}"


def is_log_id(text: str) -> bool:
    """Whether the text is a log id: 32 lowercase hexadecimal digits."""
    return len(text) == 32 and all(digit in "0123456789abcdef" for digit in text)


def parse_position(text: str) -> LogPosition | None:
    """The position that ``VERSION``, ``VERSION@LOGID``, ``VERSION~LEADER`` or ``VERSION~LEADER@LOGID`` names, or None.

    >>> parse_position("7"), parse_position("7@" + "0" * 32) == (7, "0" * 32, None)
    (LogPosition(version=7, log_id=None, leader_id=None), True)
    >>> parse_position("7@"), parse_position("-7"), parse_position("7~")
    (None, None, None)
    """
    before, at, log_id = text.partition("@")
    number, tilde, leader_id = before.partition("~")
    if not (number.isascii() and number.isdigit() and len(number) <= SLOT_DIGITS and int(number) <= VERSION_MAX):
        return None
    if tilde and not (leader_id.isascii() and leader_id.isalnum()):
        return None
    if at and not is_log_id(log_id):
        return None
    return LogPosition(int(number), log_id if at else None, leader_id if tilde else None)


def sign_interval_ms(scheme: str) -> float:
    """How often an idle leader shows that it lives, unless configured: often where it costs nothing.

    >>> sign_interval_ms("file"), sign_interval_ms("etcd"), sign_interval_ms("s3")
    (2000.0, 1000.0, 10000.0)
    """
    if scheme == "etcd":
        return SIGN_INTERVAL_ETCD_MS
    return SIGN_INTERVAL_LOCAL_MS if scheme in ("file", "memory") else SIGN_INTERVAL_REMOTE_MS


def slot_text(slot: int) -> str:
    """The 20-digit text of a slot, used in object names, JSON and the command line.

    >>> slot_text(2**64 - 1)
    '18446744073709551615'
    """
    return f"{slot:020d}"


def parse_slot(text: str) -> Slot | None:
    """The slot a 20-digit text names, or None when it is not exactly one.

    >>> parse_slot("00000000000000002000"), parse_slot("2000"), parse_slot("99999999999999999999")
    (2000, None, None)
    """
    if len(text) != SLOT_DIGITS or not text.isascii() or not text.isdigit():
        return None
    slot = int(text)
    return Slot(slot) if slot < 2**64 else None


class GivenTwice(ValueError):
    """A name is given twice, so it has no one value."""


def pairs_once(pairs: list[tuple[K, V]]) -> dict[K, V]:
    """The members of one object. *Raises*: ``GivenTwice``, with the first name that is given twice.

    >>> pairs_once([("a", 1), ("b", 2)])
    {'a': 1, 'b': 2}
    >>> pairs_once([("a", 1), ("b", 2), ("b", 2)])
    Traceback (most recent call last):
    holdfast.values.GivenTwice: 'b' is given twice
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        keys: set[K] = set()
        for name, _ in pairs:
            if name in keys:
                shown = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
                raise GivenTwice(f"{shown!r} is given twice")
            keys.add(name)
    return members


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """These numbers as inclusive ranges, in order, each number once.

    >>> ranges_of([7, 8, 3, 8, 9])
    [(3, 3), (7, 9)]
    """
    numbers = list(numbers)
    if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return [(numbers[0], numbers[-1])]  # mostly; without a loop of its own
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
