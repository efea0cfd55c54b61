"""The audit of one piece of the log: every object by itself, every link, and every verdict decided again.

Owns: the order of these checks, and that one damage is one finding. Does not own: any rule. What an object must be is
``commit.batch``'s, how one follows another ``commit.chain``'s, and whether a transaction commits is decided by the very
stage that the leader runs, ``commit.resolve``: there is no second definition to agree or disagree with.

A verdict is judged by what the log says: the committed writes since the window floor that stands in the batch's header.
They lie in one reign, because a claim's floor is its base. So a piece is judged alone, once the objects before it have
been read back to the floor of its first batch.

What the log cannot show is not judged: a rejected transaction leaves no trace, so a commit that was wrongly refused is
not found.

One damage, one finding: a link from an object that is itself damaged is not judged, an object that cannot be read
writes nothing into the window. What is missing there can hide a conflict, and never invents one.

Failure model: Unavailable is raised, and the task runs again. Memory: the conflict window that the leader itself held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

from holdfast.commit.format.batch import (
    FIRST_SLOT,
    HEADER_BYTES,
    Header,
    Kind,
    LoggedTransaction,
    decode_body,
    decode_header,
    jump,
    object_name,
)
from holdfast.commit.format.chain import check_genesis, check_link, next_slot
from holdfast.commit.format.transaction import RangeDelete, RangeRead, Rejected, Transaction, Write
from holdfast.commit.stages.attempts import Attempts
from holdfast.commit.stages.events import CommitEntry
from holdfast.commit.stages.resolve import Resolve
from holdfast.commit.window import RecentWrites
from holdfast.errors import CorruptData, NotFound
from holdfast.objects.port import ObjectReader
from holdfast.spark.log.audit_survey import Finding
from holdfast.spark.runtime.store_thread import PlannedObjectsThread
from holdfast.spark.source.plan import Piece
from holdfast.values import slot_text

__all__ = ["PieceAudit", "audit_piece"]

ROUND_BYTES: Final = 8 * 2**20
ROUND_OBJECTS_MAX: Final = 64
ROUNDS_AHEAD: Final = 2
UNBOUNDED: Final = 2**62
"""The window here ends at the floor of the header and nowhere else."""


@dataclass(slots=True)
class PieceAudit:
    """What one piece holds, and what is wrong in it."""

    findings: list[Finding]
    objects: int = 0
    object_bytes: int = 0
    transactions: int = 0
    operations: int = 0
    preconditions: int = 0


class Verdicts:
    """Decides every committed transaction of one reign again, by the leader's own second stage."""

    def __init__(self, floor: int) -> None:
        self._attempts = Attempts(bytes_max=UNBOUNDED)
        self._resolve = Resolve(floor, self._attempts, window_ms=0.0, bytes_max=UNBOUNDED)
        # The conflict set holds request ids as well as keys: an attempt reads and writes its own.
        self._ids = RecentWrites(floor, bytes_max=UNBOUNDED)

    def remember(self, txn: LoggedTransaction) -> None:
        """What a committed transaction changed, for those after it."""
        if txn.version > self._resolve.recent.last_version and _malformed(txn) is None:
            self._resolve.recent.record(txn.version, txn.operations)
            self._remember_id(txn)

    def _remember_id(self, txn: LoggedTransaction) -> None:
        if txn.request_id is not None:
            self._ids.record(txn.version, [Write(txn.request_id.encode(), b"")])

    def judge(self, header: Header, transactions: Sequence[LoggedTransaction]) -> Iterator[Finding]:
        """The transactions of one batch that the log says are committed and that must not be."""
        self._resolve.recent.expire(header.window_floor)
        self._ids.expire(header.window_floor)
        if transactions[0].version <= self._resolve.recent.last_version:
            # Reached only where damage before it hides the link that would have said so.
            yield Finding("versions do not rise", slot_text(header.slot), transactions[0].version)
            return
        for txn in transactions:
            broken = _malformed(txn) or self._decide(txn)
            if broken is not None:
                yield Finding(broken[0], slot_text(header.slot), txn.version, broken[1])
            else:
                self._remember_id(txn)

    def _decide(self, txn: LoggedTransaction) -> tuple[str, str] | None:
        if txn.request_id is not None and txn.read_version is not None and txn.read_version >= self._ids.floor:
            earlier = self._ids.changed_after(txn.request_id.encode(), txn.read_version)
            if earlier:
                self._resolve.recent.record(txn.version, txn.operations)
                return "a request id was committed twice", f"request_id={txn.request_id} first={earlier}"
        request = Transaction(txn.operations, txn.preconditions, txn.request_id, None, txn.read_version)
        entry = CommitEntry(request, _nobody)
        entry.version = txn.version
        self._resolve.decide([entry])
        outcome = entry.outcome
        if outcome is None:
            return None
        assert isinstance(outcome, Rejected), "the second stage accepts or rejects"
        # The log says that it is committed, and its readers have seen what it wrote.
        self._resolve.recent.record(txn.version, txn.operations)
        if outcome.reason == "too_old":
            return "a read version lies below the window", f"floor={self._resolve.floor}"
        failed = ", ".join(f"precondition {each.precondition} by version {each.version}" for each in outcome.conflicts)
        return "a precondition did not hold", failed


def _nobody(entry: CommitEntry) -> None:
    """Nobody waits for an answer of the past."""
    del entry


def _malformed(txn: LoggedTransaction) -> tuple[str, str] | None:
    """What no leader would have taken in, and what can therefore not be judged."""
    for position, operation in enumerate(txn.operations):
        if isinstance(operation, RangeDelete) and operation.end is not None and operation.begin >= operation.end:
            return "a range delete is empty", f"operation={position}"
    if txn.request_id is not None and txn.read_version is None:
        return "a request id without a read version", ""
    for index, read in enumerate(txn.preconditions):
        version = txn.read_version if read.version is None else read.version
        if version is None or version >= txn.version:
            return "a precondition names no version before its own", f"precondition={index} version={version}"
        if isinstance(read, RangeRead) and read.end is not None and read.begin >= read.end:
            return "a precondition has an empty range", f"precondition={index}"
    return None


def audit_piece(url: str, piece: Piece, before_head: int | None) -> PieceAudit:
    """Check every object of the piece; ``before_head`` is the live slot before ``piece.head``. Raises: Unavailable."""
    audit = _Audit(piece, before_head)
    with PlannedObjectsThread(url) as thread:
        audit.stand(thread)
        slots = (slot for first, last in piece.runs for slot in range(first, last - 1, -1))
        each = max(1, piece.object_bytes // piece.objects)
        for slot, data in _fetched(thread, slots, each):
            audit.take(thread, slot, data)
    return audit.result


class _Audit:
    """Where the audit stands: the object before, its claim, and the verdicts' window. None where damage hides it."""

    def __init__(self, piece: Piece, before_head: int | None) -> None:
        self.result = PieceAudit([])
        self._piece = piece
        self._before_head = before_head
        self._head: Header | None = None
        self._claim: Header | None = None
        self._verdicts: Verdicts | None = None

    def stand(self, thread: PlannedObjectsThread) -> None:
        """Read the object before the piece, and its claim. It is stood on only if its own link is good."""
        head = None if self._piece.head is None else _header(thread, self._piece.head)
        if head is None:
            return
        before = None if self._before_head is None else _header(thread, self._before_head)
        if before is not None and next_slot(before) == head.slot:
            try:
                check_link(before, _claim_of(thread, before), head)
            except CorruptData:
                return
        self._head, self._claim = head, _claim_of(thread, head)

    def take(self, thread: PlannedObjectsThread, slot: int, data: bytes | None) -> None:
        """Check the next live object; None for one that went away after the survey."""
        self.result.objects += 1
        if data is None:
            self._damaged(Finding("an object of the live chain is missing", slot_text(slot)))
            return
        self.result.object_bytes += len(data)
        try:
            header = decode_header(data, slot=slot)
        except CorruptData as error:
            self._damaged(_finding(error, slot))
            return
        linked = self._linked(thread, header)
        try:
            transactions = decode_body(data, header)
        except CorruptData as error:
            transactions = None
            if linked:
                self.result.findings.append(_finding(error, slot))
                linked = False
        if header.kind is Kind.CLAIM:
            self._verdicts = Verdicts(header.last_version)
        elif transactions is not None and linked:
            self._judge(thread, header, transactions)
        self._head = header if linked else None

    def _damaged(self, finding: Finding) -> None:
        self.result.findings.append(finding)
        self._head = None

    def _linked(self, thread: PlannedObjectsThread, header: Header) -> bool:
        """Whether the object may stand here, as far as that can be told; a finding if not."""
        head, claim = self._head, self._claim
        try:
            if head is None and self._piece.head is None and self.result.objects == 1 and header.slot == FIRST_SLOT:
                check_genesis(header)
            elif head is not None and claim is not None and next_slot(head) == header.slot:
                check_link(head, claim, header)
            elif claim is None or header.claim != claim.slot:
                # After a hole or a damage: from here on by the claim that the object itself names.
                self._verdicts = None
                self._claim = _claim_of(thread, header)
        except CorruptData as error:
            self.result.findings.append(_finding(error, header.slot))
            return False
        if header.kind is Kind.CLAIM:
            self._claim = header
        return True

    def _judge(self, thread: PlannedObjectsThread, header: Header, transactions: Sequence[LoggedTransaction]) -> None:
        self.result.transactions += len(transactions)
        for txn in transactions:
            self.result.operations += len(txn.operations)
            self.result.preconditions += len(txn.preconditions)
        if not transactions:
            return
        if self._verdicts is None:
            self._verdicts = Verdicts(header.window_floor)
            for txn in _before(thread, header):
                self._verdicts.remember(txn)
        self.result.findings += self._verdicts.judge(header, transactions)


def _finding(error: CorruptData, slot: int) -> Finding:
    facts = " ".join(f"{name}={value}" for name, value in error.fields.items() if name != "slot")
    return Finding(error.message.removeprefix("log is damaged: "), slot_text(slot), None, facts)


def _header(thread: PlannedObjectsThread, slot: int) -> Header | None:
    """The header in a slot, None when it is damaged or gone: the piece that holds it says so."""
    data = thread.start(partial(_read, slot=slot, length=HEADER_BYTES)).result()
    if data is None:
        return None
    try:
        return decode_header(data, slot=slot)
    except CorruptData:
        return None


def _claim_of(thread: PlannedObjectsThread, header: Header) -> Header:
    """The claim that an object names; where that is damaged or another's, what the object says about it."""
    if header.kind is Kind.CLAIM:
        return header
    found = _header(thread, header.claim)
    own = (Kind.CLAIM, header.log_id, header.epoch, header.leader_id)
    if found is not None and (found.kind, found.log_id, found.epoch, found.leader_id) == own:
        return found
    return replace(header, kind=Kind.CLAIM, slot=header.claim)


def _before(thread: PlannedObjectsThread, first: Header) -> list[LoggedTransaction]:
    """What its reign committed before ``first``, back to the floor of ``first``, in commit order.

    Damaged and missing objects are left out: the piece that holds them reports them.
    """
    newest_first: list[list[LoggedTransaction]] = []
    for slot, data in _fetched(thread, iter(range(first.slot + 1, jump(first.claim) + 1)), 2**18):
        if data is None:
            continue
        try:
            header = decode_header(data, slot=slot)
            if (header.claim, header.leader_id) != (first.claim, first.leader_id):
                return _joined(newest_first)
            if header.last_version <= first.window_floor:
                return _joined(newest_first)
            newest_first.append(decode_body(data, header))
        except CorruptData:
            continue
    return _joined(newest_first)


def _joined(newest_first: list[list[LoggedTransaction]]) -> list[LoggedTransaction]:
    return [txn for batch in reversed(newest_first) for txn in batch]


def _fetched(thread: PlannedObjectsThread, slots: Iterator[int], each_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """The objects of these slots in order, None for a missing one, fetched in rounds, two rounds ahead."""
    round_objects = max(1, min(ROUND_OBJECTS_MAX, ROUND_BYTES // each_bytes))
    under_way: deque[tuple[Sequence[int], list[Future[bytes | None]]]] = deque()
    while True:
        while len(under_way) < ROUNDS_AHEAD and (wanted := tuple(islice(slots, round_objects))):
            under_way.append((wanted, [thread.start(partial(_read, slot=slot, length=None)) for slot in wanted]))
        if not under_way:
            return
        done, futures = under_way.popleft()
        yield from zip(done, (future.result() for future in futures), strict=True)


async def _read(store: ObjectReader, *, slot: int, length: int | None) -> bytes | None:
    try:
        return await store.read(object_name(slot), start=0, length=length)
    except NotFound:
        return None
