"""The checks of an audit: a survey of the whole log, then every object, link and verdict of one piece.

The survey lists the log and continues where planning a read would stop: an audit exists for damaged logs. Only a log
without a readable object or claim raises CorruptData.

The audit of a piece has no rules of its own: ``commit.format`` checks objects and links, and the leader's own second
stage, ``commit.stages.resolve``, decides every transaction again. It judges by the committed writes since the window
floor in the batch's header. These belong to one leadership, because a claim's floor is its base, so a piece is judged
alone after the objects before it were read back to the floor of its first batch.

A rejected transaction leaves no trace, so a wrong rejection is not found. One damage is one finding: a link from a
damaged object is not judged, and an unreadable object writes nothing into the window. That can hide a conflict and
never invents one.

Memory: 16 bytes per object on the driver; in a task the conflict window of the leader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.commit.format.batch import (
    CLAIM_BYTES,
    FIRST_SLOT,
    HEADER_BYTES,
    PREFIX,
    Header,
    Kind,
    LoggedTransaction,
    decode_body,
    decode_header,
    jump,
    object_name,
    slot_of,
)
from holdfast.commit.format.chain import check_genesis, check_link, next_slot
from holdfast.commit.format.transaction import RangeDelete, RangeRead, Rejected, Transaction, Write
from holdfast.commit.stages.attempts import Attempts
from holdfast.commit.stages.events import CommitEntry
from holdfast.commit.stages.resolve import Resolve
from holdfast.commit.window import RecentWrites
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.objects.port import ObjectReader, ObjectStore
from holdfast.spark.runtime.store_thread import PlannedObjectsThread
from holdfast.spark.source.plan import Chain, Piece, read_header, walk
from holdfast.values import slot_text

__all__ = ["Finding", "PieceAudit", "Survey", "audit_piece", "last_readable", "survey", "surveyed_log_id"]

PAGE: Final = 50_000
FOREIGN_KEYS_MAX: Final = 1_000
CLAIMS_AT_ONCE: Final = 1_000
UNREADABLE_MAX: Final = 100
"""How many damaged headers in a row the survey looks past before it gives up."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule: where, as far as it is known, and which. ``slot`` is its 20-digit text."""

    rule: str
    slot: str | None = None
    version: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Survey:
    """The live chain as far as it can be made out, and what the listing alone shows to be wrong.

    Shape: ``holes`` are runs (first, last) of missing slots, in the order of writing; ``findings`` have no place in the
    chain (foreign keys, a genesis that has gone).
    """

    log_id: str
    chain: Chain
    holes: list[tuple[int, int]]
    findings: list[Finding]


async def survey(store: ObjectStore) -> Survey:
    """List the whole log and walk its claims. Raises: NotFound (``log_empty``), CorruptData, Unavailable."""
    findings: list[Finding] = []
    slots, sizes = await _listing(store, findings)
    if not len(slots):
        raise NotFound("log is empty: nothing is listed under batches/", code=Code.LOG_EMPTY, url=store.url)
    newest = await _first_readable(store, slots)
    is_claim = await _claims(store, slots, sizes)
    begin: int = FIRST_SLOT
    if int(slots[-1]) != FIRST_SLOT or not is_claim[-1]:
        claims = slots[is_claim]
        if not len(claims):
            raise CorruptData("the log has no claim at all", code=Code.CORRUPT_LOG, url=store.url)
        begin = int(claims[-1])
        findings.append(Finding("the log has no genesis claim", slot_text(FIRST_SLOT)))
    live, holes = walk(slots, is_claim, newest.durable, begin)
    chain = Chain(slots[live], sizes[live], truncated=False)
    if newest.truncated_through:
        chain, holes = await _after_retention(store, chain, holes, newest.truncated_through)
    return Survey(newest.log_id.hex(), chain, holes, findings)


async def surveyed_log_id(store: ObjectStore) -> str:
    """The id of the log, by the newest object that can be read. Raises: NotFound (``log_empty``), CorruptData."""
    slots = [slot for row in await store.list(PREFIX, limit=UNREADABLE_MAX) if (slot := slot_of(row.key)) is not None]
    if not slots:
        raise NotFound("log is empty: nothing is listed under batches/", code=Code.LOG_EMPTY, url=store.url)
    return (await _first_readable(store, np.array(slots, dtype=np.uint64))).log_id.hex()


async def _listing(store: ObjectStore, findings: list[Finding]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Slots rising (newest first) and sizes; keys that are no slot become findings."""
    parts: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []
    after = ""
    while True:
        rows = await store.list(PREFIX, after=after, limit=PAGE)
        named = [(slot_of(row.key), row) for row in rows]
        foreign = [Finding("a key under batches/ is not a slot", detail=row.key) for slot, row in named if slot is None]
        findings += foreign[: max(0, FOREIGN_KEYS_MAX - len(findings))]
        slots = np.array([slot for slot, _ in named if slot is not None], dtype=np.uint64)
        sizes = np.array([row.size for slot, row in named if slot is not None], dtype=np.int64)
        parts.append((slots, sizes))
        if len(rows) < PAGE:
            return np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts])
        after = rows[-1].key


async def _claims(
    store: ObjectStore, slots: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Which objects the walk follows as claims: those of a claim's size, but for copies, which name another slot, and
    for what was cut to that size.

    A jump from where nobody claimed would have the walk miss what was never there.
    """
    is_claim: npt.NDArray[np.bool_] = sizes == CLAIM_BYTES
    places = np.flatnonzero(is_claim)
    for first in range(0, len(places), CLAIMS_AT_ONCE):
        asked = places[first : first + CLAIMS_AT_ONCE]
        is_claim[asked] = await asyncio.gather(*(_stands_here(store, int(slot)) for slot in slots[asked]))
    return is_claim


async def _stands_here(store: ObjectStore, slot: int) -> bool:
    try:
        return (await read_header(store, slot)).kind is Kind.CLAIM
    except CorruptData as error:
        return "header_slot" not in error.fields


async def _first_readable(store: ObjectStore, slots: npt.NDArray[np.uint64]) -> Header:
    failure: CorruptData | None = None
    for slot in slots[:UNREADABLE_MAX]:
        try:
            return await read_header(store, int(slot))
        except CorruptData as error:
            failure = error
    assert failure is not None, "a log that lists slots has a first one"
    raise failure


async def _after_retention(
    store: ObjectStore, chain: Chain, holes: list[tuple[int, int]], truncated_through: int
) -> tuple[Chain, list[tuple[int, int]]]:
    """The chain without what retention removed, and the holes that retention does not explain."""
    for index in reversed(range(len(holes))):
        kept = int(np.count_nonzero(chain.slots > np.uint64(holes[index][1])))
        if kept == len(chain.slots):
            continue
        try:
            oldest = await read_header(store, int(chain.slots[kept]))
        except CorruptData:
            continue
        if oldest.prev_version <= truncated_through:
            return Chain(chain.slots[kept:], chain.sizes[kept:], truncated=True), holes[index + 1 :]
    return chain, holes


async def last_readable(store: ObjectStore, chain: Chain, first: int, last: int) -> tuple[int, Header] | None:
    """The newest object in the chain's places ``first`` to ``last`` whose header can be read, None for none of them."""
    for place in range(last, max(first, last - UNREADABLE_MAX) - 1, -1):
        try:
            return place, await read_header(store, int(chain.slots[place]))
        except CorruptData:
            continue
    return None


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
    """Decides every committed transaction of one leadership again, by the leader's own second stage."""

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
        entry = CommitEntry(request, _ignore_reply)
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


def _ignore_reply(entry: CommitEntry) -> None:
    """No client waits for a reply."""
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
        audit.start(thread)
        slots = (slot for first, last in piece.runs for slot in range(first, last - 1, -1))
        each = max(1, piece.object_bytes // piece.objects)
        for slot, data in _fetched(thread, slots, each):
            audit.take(thread, slot, data)
    return audit.result


class _Audit:
    """The object before, its claim, and the verdicts' window; None where damage hides them."""

    def __init__(self, piece: Piece, before_head: int | None) -> None:
        self.result = PieceAudit([])
        self._piece = piece
        self._before_head = before_head
        self._head: Header | None = None
        self._claim: Header | None = None
        self._verdicts: Verdicts | None = None

    def start(self, thread: PlannedObjectsThread) -> None:
        """Read the object before the piece, and its claim. It counts only if its own link is good."""
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
        """Whether the object may follow here, as far as the audit can know; a finding if not."""
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
    """What its leadership committed before ``first``, back to the floor of ``first``, in commit order.

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
