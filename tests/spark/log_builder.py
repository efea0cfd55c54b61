"""Logs for tests, written object by object as the protocol allows: claims, jumps, takeovers, zombies, resigns.

Owns: worlds of leaders that send batches, lose some of them, and are taken over. Recovery and claims are the product's
own pure functions (``commit.leadership``); the batches are made with ``commit.batch``.
Does not own: what the log then says; ``read_plainly`` walks it slot by slot, the obvious way.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.commit.format.batch import (
    FIRST_SLOT,
    FLAG_LZ4,
    HEADER_BYTES,
    Header,
    Kind,
    LoggedTransaction,
    decode_body,
    decode_header,
    encode_body,
    encode_object,
    jump,
    object_name,
)
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.format.transaction import (
    Delete,
    JobChange,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Write,
)
from holdfast.commit.leadership.claims import (
    Frontier,
    Identity,
    claim_header,
    encode_claim,
    plan_recovery,
    read_page,
)
from holdfast.values import Instant, LeaderId, LogId, Slot, Version


@dataclass
class LogBuilder:
    """The objects of one log by slot, and the randomness of its world."""

    seed: int = 0
    objects: dict[int, bytes] = field(default_factory=dict)
    acknowledged: list[LoggedTransaction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.log_id = LogId(self.random.randbytes(16))

    def lead(self) -> Leader:
        """A new leader, by the one LIST and the decision table of recovery."""
        rows = [(object_name(slot), len(data)) for slot, data in sorted(self.objects.items())]
        page = read_page(rows)
        headers: dict[Slot, bytes] = {}
        while not isinstance(plan := plan_recovery(page, headers, allow_new=True), Frontier):
            headers[plan] = self.objects[plan][:HEADER_BYTES]
        identity = Identity(LeaderId(self.random.randbytes(16)), self.random.randbytes(16), "http://127.0.0.1:1")
        nonce = self.random.randbytes(16)
        claim = claim_header(plan, identity, nonce=nonce, log_id=self.log_id, now=Instant(0.0, 1_700_000_000_000))
        assert claim.slot not in self.objects, "the frontier is free"
        self.objects[claim.slot] = encode_claim(claim)
        return Leader(self, claim)

    def write_to(self, root: Path) -> str:
        """Write every object below ``root`` and return the URL of the log."""
        (root / "batches").mkdir(parents=True, exist_ok=True)
        for slot, data in self.objects.items():
            (root / object_name(slot)).write_bytes(data)
        return root.as_uri()


class Leader:
    """One reign. Objects sent with ``lands=False`` are in flight: lost, or landing late by ``land``."""

    def __init__(self, builder: LogBuilder, claim: Header) -> None:
        self.builder = builder
        self.claim = claim
        self.head = claim
        self.watermark = claim.slot
        self.next_slot = jump(claim.slot)
        self.in_flight: dict[int, bytes] = {}
        self.transactions: dict[int, list[LoggedTransaction]] = {}

    def commit(self, *groups: Sequence[Operation], lands: bool = True) -> list[LoggedTransaction]:
        """Send one batch with a transaction for each group of operations."""
        draw = self.builder.random
        version = self.head.last_version
        logged: list[LoggedTransaction] = []
        for operations in groups:
            version = Version(version + draw.choice((1, 1, 1, 2, 7)))
            named = draw.random() < 0.5
            reads = _preconditions(draw) if draw.random() < 0.4 else ()
            request_id = f"request-{draw.getrandbits(64):016x}" if named else None
            own = version, request_id, self.claim.last_version, tuple(operations), reads
            logged.append(LoggedTransaction(*own, jobs=_records(version)))
        self.send(logged, lands=lands)
        return logged

    def send(self, logged: Sequence[LoggedTransaction], *, lands: bool = True, empty_through: int = 0) -> None:
        """Send one batch of these transactions; without any, an empty one that settles versions ``empty_through``."""
        last = Version(max(self.head.last_version, empty_through))
        versions = (logged[0].version, logged[-1].version) if logged else (last, last)
        compress = self.builder.random.random() < 0.2
        body = encode_body(logged, compress=compress)
        header = self._header(Kind.DATA, versions, body, len(logged))
        self._send(replace(header, flags=FLAG_LZ4 if compress else 0), body, list(logged), lands=lands)

    def resign(self) -> None:
        """Write the resign record and send nothing more."""
        assert not self.in_flight, "a leader resigns when nothing is in flight"
        last = self.head.last_version
        self._send(self._header(Kind.RESIGN, (last, last), b"", 0), b"", [], lands=True)

    def land(self, slot: int) -> bool:
        """A PUT still under way reaches the store; False when the slot is taken, and then this leader is deposed."""
        data = self.in_flight[slot]
        if slot in self.builder.objects:
            return False
        del self.in_flight[slot]
        self.builder.objects[slot] = data
        return True

    def acknowledge(self) -> None:
        """Move the watermark over every slot that landed, in slot order."""
        while (slot := self._after(self.watermark)) in self.transactions and slot not in self.in_flight:
            self.watermark = Slot(slot)
            self.builder.acknowledged += self.transactions[slot]

    def _after(self, slot: int) -> int:
        return jump(slot) if slot == self.claim.slot else slot - 1

    def _header(self, kind: Kind, versions: tuple[Version, Version], body: bytes, transactions: int) -> Header:
        draw = self.builder.random
        return replace(
            self.head,
            kind=kind,
            slot=self.next_slot,
            prev=self.head.slot,
            nonce=draw.randbytes(16),
            first_version=versions[0],
            last_version=versions[1],
            prev_version=self.head.last_transaction_version,
            durable=self.watermark,
            time_ms=self.head.time_ms + draw.randrange(50),
            transactions=transactions,
            body_length=len(body),
            body_crc=zlib.crc32(body),
            flags=0,
        )

    def _send(self, header: Header, body: bytes, logged: list[LoggedTransaction], *, lands: bool) -> None:
        data = encode_object(header, body)
        self.transactions[header.slot] = logged
        if lands:
            self.builder.objects.setdefault(header.slot, data)
        else:
            self.in_flight[header.slot] = data
        self.head = header
        self.next_slot = Slot(self.next_slot - 1)
        self.acknowledge()


def _records(version: int) -> tuple[JobChange, ...]:
    """Records of jobs in every third transaction. Their names are those of keys, and no reader of keys has them."""
    value = None if version % 2 else b"record"
    return (JobChange("a", value), JobChange("k/1", b"1")) if version % 3 == 0 else ()


def random_log(seed: int, *, reigns: int = 5, batches: int = 12) -> LogBuilder:
    """A log of several reigns whose leaders crash with batches in flight, some of which land as zombies later."""
    builder = LogBuilder(seed)
    draw = builder.random
    deposed: list[Leader] = []
    for _ in range(reigns):
        leader = builder.lead()
        for zombie in deposed:
            _haunt(zombie, draw)
        for _ in range(draw.randrange(batches)):
            _work(leader, draw, lands=True)
        if draw.random() < 0.3:
            leader.resign()
            continue
        for _ in range(draw.randrange(6)):
            _work(leader, draw, lands=False)
        for slot in list(leader.in_flight):
            if draw.random() < 0.5:
                leader.land(slot)
        leader.acknowledge()
        deposed.append(leader)
    return builder


def _haunt(zombie: Leader, draw: random.Random) -> None:
    """A deposed leader that has not noticed: late landings, and new batches behind the slot it lost."""
    for slot in list(zombie.in_flight):
        if draw.random() < 0.6:
            zombie.land(slot)
    if zombie.watermark - zombie.next_slot < 900:
        for _ in range(draw.randrange(3)):
            _work(zombie, draw, lands=False)


def _work(leader: Leader, draw: random.Random, *, lands: bool) -> None:
    kind = draw.random()
    if kind < 0.15:
        leader.send([], lands=lands, empty_through=leader.head.last_version + draw.choice((0, 1, 1000)))
    elif kind < 0.2:
        leader.commit([Write(draw.randbytes(4), draw.randbytes(300_000))], lands=lands)
    else:
        leader.commit(*(_operations(draw) for _ in range(draw.randrange(1, 6))), lands=lands)


KEYS = [b"", b"a", b"a\x00", b"b", b"ba", b"\x7f", b"\x80", b"\xff", b"\xff\xff", "schlüssel".encode(), b"z" * 200]


def _operations(draw: random.Random) -> list[Operation]:
    return [_operation(draw) for _ in range(draw.randrange(1, 5))]


def _operation(draw: random.Random) -> Operation:
    kind = draw.random()
    if kind < 0.6:
        return Write(draw.choice(KEYS), draw.randbytes(draw.choice((0, 1, 20))))
    if kind < 0.8:
        return Delete(draw.choice(KEYS))
    begin, end = sorted((draw.choice(KEYS), draw.choice(KEYS)))
    return RangeDelete(begin, None if draw.random() < 0.2 else end)


def _preconditions(draw: random.Random) -> tuple[Precondition, ...]:
    point = PointRead(draw.choice(KEYS), draw.choice((None, 5)))
    return (point, RangeRead(b"a", None)) if draw.random() < 0.5 else (point,)


@dataclass(frozen=True)
class PlainBatch:
    """One live object as the plain reading sees it."""

    header: Header
    transactions: list[LoggedTransaction]


def read_plainly(objects: Mapping[int, bytes]) -> Iterator[PlainBatch]:
    """The live log, one object after the other, by the chain walker and the row decoder alone."""
    walker = ChainWalker()
    while walker.next_slot in objects:
        slot = walker.next_slot
        header = decode_header(objects[slot], slot=slot)
        walker.accept(header)
        yield PlainBatch(header, decode_body(objects[slot], header))


def content(txn: LoggedTransaction) -> tuple[object, ...]:
    """A logged transaction as a value that compares by what it holds, whatever sequences it holds it in."""
    return txn.version, txn.request_id, txn.read_version, tuple(txn.operations), tuple(txn.preconditions)


def seq(slot: int) -> int:
    """The count from genesis, said here a second time so that the product's own is tested."""
    return FIRST_SLOT - slot


def latest_plainly(objects: Mapping[int, bytes], as_of: int | None = None) -> dict[bytes, tuple[bytes, int]]:
    """The newest value and its version of every key, by applying operations to a dict."""
    state: dict[bytes, tuple[bytes, int]] = {}
    for batch in read_plainly(objects):
        for txn in batch.transactions:
            if as_of is not None and txn.version > as_of:
                return state
            for operation in txn.operations:
                match operation:
                    case Write(key, value):
                        state[key] = (value, txn.version)
                    case Delete(key):
                        state.pop(key, None)
                    case RangeDelete(begin, end):
                        for key in [key for key in state if begin <= key and (end is None or key < end)]:
                            del state[key]
    return state
