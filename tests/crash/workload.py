"""What the clients of the kill tests do, and what must be true of the log whatever happened to them.

transfers   two accounts read by point, both written; no money appears or vanishes, no balance falls below zero
counters    one key read by point and written one higher; every committed increment counts exactly once
rooms       a whole room read by range, a seat taken in it; never more seats than the capacity, which only a range read
            can guard (two seats are two keys); a full room is emptied by a range delete behind the same range read
notes       blind writes of unique values, some without a request id
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.commit.format.transaction import (
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Transaction,
    Write,
)

ACCOUNTS = 40
BALANCE = 100
COUNTERS = 6
ROOMS = 5
ROOM_SEATS = 8


def account(number: int) -> bytes:
    """The key of an account."""
    return b"account/%03d" % number


def counter(number: int) -> bytes:
    """The key of a counter."""
    return b"counter/%03d" % number


def room(number: int) -> tuple[bytes, bytes]:
    """The range of a room's seats."""
    return b"room/%03d/" % number, b"room/%03d0" % number


@dataclass(slots=True)
class Model:
    """Keys and values by applying operations in order, with the rooms apart so that they are cheap to count."""

    version: int = 0
    values: dict[bytes, bytes] = field(default_factory=dict)
    changed: dict[bytes, int] = field(default_factory=dict)
    rooms: dict[bytes, set[bytes]] = field(default_factory=dict)

    def apply(self, version: int, operations: Iterable[Operation]) -> None:
        """One committed transaction."""
        self.version = version
        for operation in operations:
            match operation:
                case Write(key, value):
                    self.values[key] = value
                    self.changed[key] = version
                    if key.startswith(b"room/"):
                        self.rooms.setdefault(key[:9], set()).add(key)
                case RangeDelete(begin, end):
                    assert (begin, end) in [room(number) for number in range(ROOMS)], "only rooms are emptied"
                    for key in self.rooms.pop(begin, set()):
                        del self.values[key]
                case _:
                    raise AssertionError("the workload deletes by range only")


def opening(version: int) -> Transaction:
    """The first commit: all accounts and counters."""
    writes: list[Operation] = [Write(account(number), b"%d" % BALANCE) for number in range(ACCOUNTS)]
    writes += [Write(counter(number), b"0") for number in range(COUNTERS)]
    return Transaction(operations=writes, request_id="opening-of-all-accounts", read_version=version)


class Chooser:
    """Draws one client's transactions against what the stream has shown so far."""

    def __init__(self, source: random.Random, name: str) -> None:
        self._random = source
        self._name = name
        self._drawn = 0

    def next(self, model: Model) -> Transaction:
        """The next transaction of this client."""
        self._drawn += 1
        kind = self._random.choices((self._transfer, self._increment, self._take_seat, self._note), (5, 3, 3, 2))[0]
        preconditions, operations = kind(model)
        with_id = bool(preconditions) or self._random.random() < 0.5
        return Transaction(
            operations=operations,
            preconditions=preconditions,
            request_id=f"{self._name}-{self._drawn:08d}-of-this-run" if with_id else None,
            read_version=model.version if with_id else None,
        )

    def _read(self, model: Model, key: bytes) -> PointRead:
        # Both ways of saying the version: that of the value, and that of the whole view.
        exact = self._random.random() < 0.5
        return PointRead(key, model.changed[key] if exact else None)

    def _transfer(self, model: Model) -> tuple[list[Precondition], list[Operation]]:
        source, target = (account(number) for number in self._random.sample(range(ACCOUNTS), 2))
        amount = self._random.randint(0, int(model.values[source]))
        return [self._read(model, source), self._read(model, target)], [
            Write(source, b"%d" % (int(model.values[source]) - amount)),
            Write(target, b"%d" % (int(model.values[target]) + amount)),
        ]

    def _increment(self, model: Model) -> tuple[list[Precondition], list[Operation]]:
        key = counter(self._random.randrange(COUNTERS))
        return [self._read(model, key)], [Write(key, b"%d" % (int(model.values[key]) + 1))]

    def _take_seat(self, model: Model) -> tuple[list[Precondition], list[Operation]]:
        begin, end = room(self._random.randrange(ROOMS))
        seat = begin + f"{self._name}-{self._drawn}".encode()
        operations: list[Operation] = [Write(seat, b"taken")]
        if len(model.rooms.get(begin, ())) >= ROOM_SEATS:
            operations = [RangeDelete(begin, end), Write(seat, b"taken")]
        return [RangeRead(begin, end)], operations

    def _note(self, _model: Model) -> tuple[list[Precondition], list[Operation]]:
        return [], [Write(f"note/{self._name}".encode(), f"{self._name} {self._drawn}".encode())]


def broken_invariants(log: Sequence[tuple[int, Sequence[Operation]]]) -> list[str]:
    """Replay the log and say where the workload's own laws are broken."""
    model = Model()
    found: list[str] = []
    increments: Counter[bytes] = Counter()
    for version, operations in log:
        before = {key: model.values.get(key) for key in (op.key for op in operations if isinstance(op, Write))}
        model.apply(version, operations)
        accounts = [key for key in before if key.startswith(b"account/")]
        if len(accounts) == 2:
            if sum(int(before[key] or 0) for key in accounts) != sum(int(model.values[key]) for key in accounts):
                found.append(f"{version}: a transfer made or destroyed money")
            if any(int(model.values[key]) < 0 for key in accounts):
                found.append(f"{version}: a balance is below zero")
        for key, old in before.items():
            if key.startswith(b"counter/") and old is not None:
                increments[key] += 1
                if int(model.values[key]) != int(old) + 1:
                    found.append(f"{version}: an increment of {key!r} was lost or doubled")
        found.extend(
            f"{version}: room {name!r} is over full" for name, seats in model.rooms.items() if len(seats) > ROOM_SEATS
        )
    if sum(int(value) for key, value in model.values.items() if key.startswith(b"account/")) != ACCOUNTS * BALANCE:
        found.append("the accounts do not add up")
    for number in range(COUNTERS):
        key = counter(number)
        if int(model.values.get(key, b"0")) != increments[key]:
            found.append(f"{key!r} does not equal its increments")
    return found
