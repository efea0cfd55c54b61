"""Commit requests for bulk tests: drawn at random, as rows for Spark, and judged by the leader's own stages.

Owns: the generator, and the reference: ``commit.sequence`` and ``commit.resolve`` fed one request after the other, each
after the one before it is answered. Does not own: the bulk stages under test.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.commit.format.transaction import (
    Committed,
    Delete,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Rejected,
    Reused,
    Transaction,
    Write,
)
from holdfast.commit.stages.attempts import Attempts
from holdfast.commit.stages.events import CommitEntry
from holdfast.commit.stages.resolve import Resolve
from holdfast.commit.stages.sequence import Sequence as SequenceStage
from holdfast.errors import HoldfastError
from holdfast.server.http.requests import problem_with
from holdfast.spark.bulk.sequencing import WHOLE_INPUT, Windows

BASE = 300_000_000
UNBOUNDED = 2**62
SCHEMA = (
    "order long, operations array<struct<kind:string,key:binary,value:binary,end:binary>>, "
    "preconditions array<struct<kind:string,key:binary,end:binary,version:string>>, read_version string, "
    "request_id string"
)


@dataclass(frozen=True)
class Request:
    """One request. Versions are texts as the input has them: a number, or ``#k``."""

    operations: tuple[Operation, ...]
    reads: tuple[tuple[bytes, bytes | None, bool, str | None], ...] = ()
    read_version: str | None = None
    request_id: str | None = None

    def row(self, order: int) -> tuple[object, ...]:
        """As a row of ``SCHEMA``."""
        reads = [("range_read" if wide else "point_read", key, end, at) for key, end, wide, at in self.reads]
        return order, [_operation_row(each) for each in self.operations], reads, self.read_version, self.request_id


def _operation_row(operation: Operation) -> tuple[object, ...]:
    match operation:
        case Write(key, value):
            return "write", key, value, None
        case Delete(key):
            return "delete", key, None, None
        case RangeDelete(begin, end):
            return "range_delete", begin, None, end


@dataclass(frozen=True)
class Verdict:
    """What a request is told: an outcome's name, its version where it has one, and the failed preconditions."""

    outcome: str
    version: int | None = None
    conflicts: tuple[tuple[int, int], ...] = ()


def judge_plainly(requests: Sequence[Request], base: int, windows: Windows = WHOLE_INPUT) -> list[Verdict]:
    """The verdicts of a leader that takes the requests one by one, each after the one before is answered."""
    attempts = Attempts(bytes_max=UNBOUNDED)
    sequence = SequenceStage(base, attempts)
    resolve = Resolve(base, attempts, window_ms=0.0, bytes_max=UNBOUNDED)
    assigned = [base]
    entries: list[CommitEntry] = []
    verdicts: dict[int, Verdict] = {}
    floors = dict(zip(windows.positions, windows.indexes, strict=True))
    for place, request in enumerate(requests):
        if place + 1 in floors:
            resolve.recent.expire(assigned[floors[place + 1]])
        txn = as_transaction(request, assigned)
        entry = CommitEntry(txn, lambda _: None)
        wrong = problem_with(txn, leader_id="", log_id="", request_id_length_min=20)
        if wrong is not None:
            verdicts[place] = Verdict(str(wrong.code))
        else:
            onward, look_up = sequence.order([entry], resolve.floor)
            if look_up:
                verdicts[place] = Verdict("look_up")
            resolve.decide(onward)
            for each in onward:
                sequence.complete(each)
        entries.append(entry)
        assigned.append(sequence.assigned)
    for place, entry in enumerate(entries):
        if place not in verdicts:
            verdicts[place] = _verdict(entry)
    return [verdicts[place] for place in range(len(requests))]


def _verdict(entry: CommitEntry) -> Verdict:
    match entry.outcome:
        case None:
            assert entry.accepted, "each is decided before the next"
            return Verdict("committed", entry.version)
        case Committed(version):
            return Verdict("committed", version)
        case Rejected(reason, conflicts):
            return Verdict(reason, None, tuple((each.precondition, each.version) for each in conflicts))
        case Reused():
            return Verdict("request_id_reused")
        case HoldfastError() as error:
            return Verdict(str(error.code))
        case _:
            raise AssertionError(entry.outcome)


def as_transaction(request: Request, assigned: list[int]) -> Transaction:
    """The request as the leader gets it; ``assigned[k]`` is the newest version after k requests."""

    def version(text: str | None) -> int | None:
        if text is None:
            return None
        if not text.startswith("#"):
            return int(text)
        index = int(text[1:])
        # What lies ahead was handed out to nobody, whatever its number will be.
        return assigned[index] if index < len(assigned) else 2**53 - 1

    reads: list[Precondition] = [
        RangeRead(key, end, version(at)) if wide else PointRead(key, version(at))
        for key, end, wide, at in request.reads
    ]
    return Transaction(list(request.operations), reads, request.request_id, None, version(request.read_version))


def draw_requests(
    seed: int, count: int, *, keys: int, skew: float = 0.0, lag: int = 50, ids: bool = True, odd: bool = True
) -> list[Request]:
    """Requests over ``keys`` keys, reading at most ``lag`` requests back; ``odd`` ones are wrong in every way."""
    draw = random.Random(seed)

    def key() -> bytes:
        place = draw.random() ** (1 / (1 - skew)) if skew else draw.random()
        number = int(keys * place)
        return b"" if number == 0 else b"k/%d" % number

    def bounds() -> tuple[bytes, bytes | None]:
        begin, end = sorted((key(), key()))
        return begin, None if draw.random() < 0.1 else end + b"\x00"

    def version(place: int) -> str:
        if odd and draw.random() < 0.02:
            return draw.choice((f"#{place + draw.randrange(3)}", str(BASE + place + draw.randrange(-3, 3)), "5"))
        return f"#{max(0, place - draw.randrange(lag + 1))}"

    def operation() -> Operation:
        kind = draw.random()
        if kind < 0.8:
            return Write(key(), draw.randbytes(draw.choice((0, 1, 20))))
        return Delete(key()) if kind < 0.95 else RangeDelete(*bounds())

    found: list[Request] = []
    for place in range(count):
        if odd and found and draw.random() < 0.05:
            again = draw.choice(found)
            if draw.random() < 0.3:
                again = replace(again, operations=(Write(b"another", b"x"),))
            found.append(again)
            continue
        reads: list[tuple[bytes, bytes | None, bool, str | None]] = []
        for _ in range(draw.randrange(4)):
            at = version(place) if draw.random() < 0.3 else None
            reads.append((key(), None, False, at) if draw.random() < 0.8 else (*bounds(), True, at))
        named = ids and draw.random() < 0.4
        request = Request(
            tuple(operation() for _ in range(draw.randrange(1, 4))),
            tuple(reads),
            version(place),
            f"request-{draw.getrandbits(64):020d}" if named else None,
        )
        if odd and draw.random() < 0.04:
            request = draw.choice(
                (
                    replace(request, operations=()),
                    replace(request, operations=(RangeDelete(b"b", b"a"),)),
                    replace(request, request_id="short"),
                    replace(request, read_version=None),
                    replace(request, reads=((b"b", b"b", True, None),)),
                )
            )
        found.append(request)
    return found
