"""Audit a log: a survey of the whole chain, a check of every object, and ``verify``, which does so step by step.

Damage is a finding, and the audit continues. ``commit.format`` checks objects and links, and the leader's own second
stage decides every transaction again. A claim's window floor is its base, so a piece is judged alone after the objects
before it were read back to the floor of its first batch. A wrong rejection leaves no trace. A link from a damaged
object is not judged: one damage is one finding. Cost: the log is read once, plus one conflict window per task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

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
from holdfast.commit.stages.events import NO_STORE_PARTS, CommitEntry
from holdfast.commit.stages.resolve import Resolve
from holdfast.commit.window import RecentWrites
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.objects.port import ObjectReader, ObjectStore
from holdfast.spark.log.delta_output import DeltaJob
from holdfast.spark.log.increments import UNREADABLE_MAX, Increment, first_above, last_readable
from holdfast.spark.log.runner import StepResult
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import PlannedObjectsThread, with_store
from holdfast.spark.runtime.table_files import write_table
from holdfast.spark.runtime.tasks import in_tasks
from holdfast.spark.source.chain import Chain, LogHead, after_retention, empty_log, index_after, read_header, walk
from holdfast.spark.source.plan import Piece, cut
from holdfast.spark.source.scan import fetched
from holdfast.spark.source.shapes import seq_of
from holdfast.values import slot_text

PAGE: Final = 50_000
FOREIGN_KEYS_MAX: Final = 1_000
CLAIMS_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Breach:
    """One broken rule: where, as far as it is known, and which. ``slot`` is its 20-digit text."""

    rule: str
    slot: str | None = None
    version: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ChainSurvey:
    """The live chain as far as it can be read, and what the listing alone shows to be wrong.

    Shape: ``holes`` are runs (first, last) of missing slots in the order of writing; ``findings`` are not part of it.
    """

    log_id: str
    chain: Chain
    holes: list[tuple[int, int]]
    findings: list[Breach]


async def survey(store: ObjectStore) -> ChainSurvey:
    """List the whole log and walk its claims. Raises: NotFound (``log_empty``), CorruptData, Unavailable."""
    findings: list[Breach] = []
    slots, sizes = await _listing(store, findings)
    if not len(slots):
        raise empty_log(store)
    newest = await _first_readable(store, slots)
    is_claim = await _claims(store, slots, sizes)
    begin: int = FIRST_SLOT
    if int(slots[-1]) != FIRST_SLOT or not is_claim[-1]:
        claims = slots[is_claim]
        if not len(claims):
            raise CorruptData("the log has no claim at all", code=Code.CORRUPT_LOG, url=store.url)
        begin = int(claims[-1])
        findings.append(Breach("the log has no genesis claim", slot_text(FIRST_SLOT)))
    live, holes = walk(slots, is_claim, newest.durable, begin)
    chain = Chain(slots[live], sizes[live], truncated=False)
    if newest.truncated_through:
        chain, holes = await after_retention(store, chain, holes, newest.truncated_through)
    return ChainSurvey(newest.log_id.hex(), chain, holes, findings)


async def surveyed_log_id(store: ObjectStore) -> str:
    """The id of the log, by the newest object that can be read. Raises: NotFound (``log_empty``), CorruptData."""
    slots = [slot for row in await store.list(PREFIX, limit=UNREADABLE_MAX) if (slot := slot_of(row.key)) is not None]
    if not slots:
        raise empty_log(store)
    return (await _first_readable(store, np.array(slots, dtype=np.uint64))).log_id.hex()


async def _listing(store: ObjectStore, findings: list[Breach]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Slots rising (newest first) and sizes; keys that are no slot become findings."""
    parts: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []
    after = ""
    while True:
        rows = await store.list(PREFIX, after=after, limit=PAGE)
        named = [(slot_of(row.key), row) for row in rows]
        foreign = [Breach("a key under batches/ is not a slot", detail=row.key) for slot, row in named if slot is None]
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
    """Which objects the walk follows as claims: those of a claim's size, except copies and objects cut to that size."""
    is_claim: npt.NDArray[np.bool_] = sizes == CLAIM_BYTES
    indexes = np.flatnonzero(is_claim)
    for first in range(0, len(indexes), CLAIMS_AT_ONCE):
        page = indexes[first : first + CLAIMS_AT_ONCE]
        is_claim[page] = await asyncio.gather(*(_stands_here(store, int(slot)) for slot in slots[page]))
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


UNBOUNDED: Final = 2**62
"""The window here ends at the floor of the header and nowhere else."""


@dataclass(slots=True)
class Counts:
    """How much an audit has read."""

    objects: int = 0
    object_bytes: int = 0
    transactions: int = 0
    operations: int = 0
    preconditions: int = 0


def _add(counts: Counts, more: Counts) -> None:
    for name, count in asdict(more).items():
        setattr(counts, name, getattr(counts, name) + count)


@dataclass(slots=True)
class Audit:
    """The result of one audit, or of a piece: ``verified`` is the mark, a version; ``findings`` are in the order of the
    log."""

    verified: int = 0
    counts: Counts = field(default_factory=Counts)
    findings: list[Breach] = field(default_factory=list[Breach])


class Verdicts:
    """Decides every committed transaction of one leadership again, by the leader's own second stage."""

    def __init__(self, floor: int) -> None:
        self._attempts = Attempts(bytes_max=UNBOUNDED)
        self._resolve = Resolve(floor, self._attempts, window_ms=0.0, bytes_max=UNBOUNDED, jobs_bytes_max=UNBOUNDED)
        # The conflict set holds request ids as well as keys: an attempt reads and writes its own.
        self._ids = RecentWrites(floor, bytes_max=UNBOUNDED)

    def remember(self, txn: LoggedTransaction) -> None:
        """What a committed transaction changed, for those after it."""
        if txn.version > self._resolve.recent.last_version and _malformed(txn) is None:
            self._resolve.remember(txn.version, txn.operations, txn.jobs)
            self._remember_id(txn)

    def _remember_id(self, txn: LoggedTransaction) -> None:
        if txn.request_id is not None:
            self._ids.record(txn.version, [Write(txn.request_id.encode(), b"")])

    def judge(self, header: Header, transactions: Sequence[LoggedTransaction]) -> Iterator[Breach]:
        """The transactions of one batch that the log says are committed and that must not be."""
        self._resolve.expire(header.window_floor)
        self._ids.expire(header.window_floor)
        if transactions[0].version <= self._resolve.recent.last_version:
            # Reached only where damage before it hides the link that would have said so.
            yield Breach("versions do not rise", slot_text(header.slot), transactions[0].version)
            return
        for txn in transactions:
            broken = _malformed(txn) or self._decide(txn)
            if broken is not None:
                yield Breach(broken[0], slot_text(header.slot), txn.version, broken[1])
            else:
                self._remember_id(txn)

    def _decide(self, txn: LoggedTransaction) -> tuple[str, str] | None:
        if txn.request_id is not None and txn.read_version is not None and txn.read_version >= self._ids.floor:
            earlier = self._ids.changed_after(txn.request_id.encode(), txn.read_version)
            if earlier:
                self._resolve.remember(txn.version, txn.operations, txn.jobs)
                return "a request id was committed twice", f"request_id={txn.request_id} first={earlier}"
        own = txn.operations, txn.preconditions, txn.request_id, None, txn.read_version
        entry = CommitEntry(Transaction(*own, jobs=txn.jobs), lambda _: None)
        entry.parts = NO_STORE_PARTS if txn.jobs else None
        entry.version = txn.version
        self._resolve.decide([entry])
        outcome = entry.outcome
        if outcome is None:
            return None
        assert isinstance(outcome, Rejected), "the second stage accepts or rejects"
        # The log says that it is committed, and its readers have seen what it wrote.
        self._resolve.remember(txn.version, txn.operations, txn.jobs)
        if outcome.reason == "too_old":
            return "a read version lies below the window", f"floor={self._resolve.floor}"
        failed = ", ".join(f"precondition {each.precondition} by version {each.version}" for each in outcome.conflicts)
        return "a precondition did not hold", failed


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
    for index, change in enumerate(txn.jobs, len(txn.preconditions)):
        if change.version is not None and change.version >= txn.version:
            return "a precondition names no version before its own", f"precondition={index} version={change.version}"
    return None


def audit_piece(url: str, piece: Piece, before_head: int | None) -> Audit:
    """Check every object of the piece; ``before_head`` is the live slot before ``piece.head``. Raises: Unavailable."""
    checker = _PieceChecker(piece, before_head)
    with PlannedObjectsThread(url) as thread:
        checker.start(thread)
        for slot, data in fetched(thread, piece.slots(), max(1, piece.object_bytes // piece.objects), _read_all):
            checker.take(thread, slot, data)
    return checker.result


class _PieceChecker:
    """The state of a piece's audit: the object before, its claim, and the window; None where damage hides them."""

    def __init__(self, piece: Piece, before_head: int | None) -> None:
        self.result = Audit()
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
        self.result.counts.objects += 1
        if data is None:
            self._damaged(Breach("an object of the live chain is missing", slot_text(slot)))
            return
        self.result.counts.object_bytes += len(data)
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

    def _damaged(self, finding: Breach) -> None:
        self.result.findings.append(finding)
        self._head = None

    def _linked(self, thread: PlannedObjectsThread, header: Header) -> bool:
        """Whether the object may follow here, as far as the audit can know; a finding if not."""
        head, claim = self._head, self._claim
        try:
            begins_piece = head is None and self._piece.head is None and self.result.counts.objects == 1
            if begins_piece and header.slot == FIRST_SLOT:
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
        self.result.counts.transactions += len(transactions)
        for txn in transactions:
            self.result.counts.operations += len(txn.operations)
            self.result.counts.preconditions += len(txn.preconditions)
        if not transactions:
            return
        if self._verdicts is None:
            self._verdicts = Verdicts(header.window_floor)
            for txn in _before(thread, header):
                self._verdicts.remember(txn)
        self.result.findings += self._verdicts.judge(header, transactions)


def _finding(error: CorruptData, slot: int) -> Breach:
    facts = " ".join(f"{name}={value}" for name, value in error.fields.items() if name != "slot")
    return Breach(error.message.removeprefix("log is damaged: "), slot_text(slot), None, facts)


def _header(thread: PlannedObjectsThread, slot: int) -> Header | None:
    """The header in a slot, None when it is damaged or gone: the piece that holds it says so."""
    data = thread.run(partial(_read, slot=slot, length=HEADER_BYTES))
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
    claim = _header(thread, header.claim)
    own = (Kind.CLAIM, header.log_id, header.epoch, header.leader_id)
    if claim is not None and (claim.kind, claim.log_id, claim.epoch, claim.leader_id) == own:
        return claim
    return replace(header, kind=Kind.CLAIM, slot=header.claim)


def _before(thread: PlannedObjectsThread, first: Header) -> list[LoggedTransaction]:
    """What this leadership committed before ``first``, back to its window floor, in commit order.

    Damaged and missing objects are left out: the piece that holds them reports them.
    """
    newest_first: list[list[LoggedTransaction]] = []
    for slot, data in fetched(thread, iter(range(first.slot + 1, jump(first.claim) + 1)), 2**18, _read_all):
        if data is None:
            continue
        try:
            header = decode_header(data, slot=slot)
            is_other = (header.claim, header.leader_id) != (first.claim, first.leader_id)
            if is_other or header.last_version <= first.window_floor:
                break
            newest_first.append(decode_body(data, header))
        except CorruptData:
            continue
    return [txn for batch in reversed(newest_first) for txn in batch]


async def _read_all(slots: Sequence[int], store: ObjectReader) -> list[bytes | None]:
    return await asyncio.gather(*(_read(store, slot) for slot in slots))


async def _read(store: ObjectReader, slot: int, length: int | None = None) -> bytes | None:
    try:
        return await store.read(object_name(slot), start=0, length=length)
    except NotFound:
        return None


VERIFIED: Final = "verified up to"
AUDITED: Final = "audited to"
"""The mark with the ``seq`` of the last object that was looked at. Later objects, such as a resign record, may have no
version above the one that was reached."""
PIECE_BYTES: Final = 64 * 2**20
WINDOWS_IN_A_PIECE: Final = 4
FINDINGS_MAX: Final = 100_000
"""Findings that one step keeps; a log with more is reported with these and a last one that says so."""
_FINDING: Final = [("rule", pa.string()), ("slot", pa.string()), ("version", pa.int64()), ("detail", pa.string())]
SCHEMA: Final = pa.schema([*_FINDING, ("step", pa.int64())])
_RESULT_SCHEMA: Final = pa.schema([*_FINDING, *((each.name, pa.int64()) for each in fields(Counts))])


@dataclass(frozen=True, slots=True)
class _Share:
    """The part of the chain that one step audits: the ``increment``, whose indexes are ``[first, past)``."""

    survey: ChainSurvey
    increment: Increment
    first: int
    past: int
    window_bytes: int


def audit(spark: SparkSession, url: str) -> Audit:
    """Audit the whole log at ``url`` now, without a table. Raises: NotFound, CorruptData, Unavailable."""
    share = with_store(url, lambda store: _choose(store, 0, None, 2**63, 0))
    with task_errors():
        return _audit(spark, url, share, verified=0)


class Verify(DeltaJob):
    """The incremental audit of the log at ``log_url``, with its findings in the Delta table at ``output_url``.

    Columns: the broken ``rule``, its ``slot`` (20 digits), ``version``, ``detail``, and ``step``, the version that the
    step reached. Each step adds a row of rule ``verified up to``: everything up to its ``version`` is good. The first
    damage stops that mark permanently; after a repair, start a new table. Foreign keys under ``batches/`` have no
    position in the log: every step reports them, and they do not stop the mark. After a run ``audit`` holds the counts
    and findings of that run.
    """

    name = "verify"
    schema = SCHEMA

    def __init__(self, spark: SparkSession, log_url: str, output_url: str) -> None:
        super().__init__(spark, log_url, output_url)
        self.audit = Audit(0)
        self._share: _Share | None = None

    def log_id(self) -> str:
        """As ``PipelineJob``, from the newest object that can be read."""
        return with_store(self._log_url, surveyed_log_id)

    def offset(self, log_id: str) -> int:
        """As ``PipelineJob``."""
        offset = super().offset(log_id)
        self.audit.verified = self._mark(VERIFIED)
        return offset

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """As ``PipelineJob``, on a log that may be damaged."""
        audited = self._mark(AUDITED)
        self._share = with_store(self._log_url, lambda store: _choose(store, after, until, step_bytes, audited))
        return self._share.increment

    def advance(self, increment: Increment) -> StepResult:
        """As ``PipelineJob``."""
        state = self._open(increment)
        share = self._share
        assert share is not None and share.increment == increment, "a step takes what the look before it has found"
        step = _audit(self._spark, self._log_url, share, verified=state.mark(VERIFIED))
        findings = [*step.findings, Breach(VERIFIED, version=step.verified)]
        rows = pa.Table.from_pylist([{**asdict(each), "step": increment.through} for each in findings], schema=SCHEMA)
        written = write_table(self._output.location.url, rows, {}, ("version", "step"))
        marks = {VERIFIED: step.verified, AUDITED: seq_of(int(share.survey.chain.slots[share.past - 1]))}
        self._output.commit(state, increment.through, [written], (), marks=marks)
        self.audit.verified = step.verified
        self.audit.findings += step.findings
        _add(self.audit.counts, step.counts)
        return StepResult(rows=len(step.findings), files_added=1, bytes_written=written.size)

    def is_good(self, version: int) -> bool:
        """Whether all of the log up to ``version`` was found good, by this run and those before it."""
        return not self.audit.findings and self.audit.verified >= version


async def _choose(store: ObjectStore, after: int, until: int | None, step_bytes: int, audited: int) -> _Share:
    surveyed = await survey(store)
    chain, sizes = surveyed.chain, surveyed.chain.sizes
    readable = await last_readable(store, chain, 0, len(chain.slots) - 1)
    if readable is None:
        raise CorruptData("no header of the live chain can be read", code=Code.CORRUPT_LOG, url=store.url)
    newest_index, head = readable
    if head.last_version <= after or (until is not None and until <= after):
        if newest_index < len(chain.slots) - 1:
            raise CorruptData(
                "the newest object of the log is damaged", code=Code.CORRUPT_LOG, slot=slot_text(int(chain.slots[-1]))
            )
        return _Share(surveyed, Increment(LogHead(surveyed.log_id, head.last_version), after, after, 0, 0, 0), 0, 0, 0)
    above = await first_above(store, chain, after)
    first = 0 if after == 0 else above
    if audited:
        first = min(first, index_after(chain, audited))
    ends = np.cumsum(sizes[first:])
    # Even a small step reaches a version above the last one's: a step that does not is taken for the end.
    past = max(first + int(np.searchsorted(ends, step_bytes, side="right")), above + 1)
    # A step ends with an object that can be read, because only a header says which version was reached.
    reached = await last_readable(store, chain, first, past - 1)
    if past >= len(chain.slots) or reached is None or reached[1].last_version <= after:
        reached, past = (newest_index, head), len(chain.slots)
    else:
        past = reached[0] + 1
    through: int = reached[1].last_version
    if until is not None and until < through:
        through = until
        past = await first_above(store, chain, until)
        before = await last_readable(store, chain, first, past - 1) if past > first else None
        # Inside an object: the whole of it is looked at, now and by the step that follows.
        past += before is None or before[1].last_version < until
    floor_index = 0 if head.window_floor == 0 else await first_above(store, chain, head.window_floor)
    size, rest, window_bytes = (int(part.sum()) for part in (sizes[first:past], sizes[past:], sizes[floor_index:]))
    increment = Increment(LogHead(surveyed.log_id, head.last_version), after, through, past - first, size, rest)
    return _Share(surveyed, increment, first, past, window_bytes)


def _audit(spark: SparkSession, url: str, share: _Share, *, verified: int) -> Audit:
    chain = share.survey.chain
    pieces = cut(chain, share.first, share.past, max(PIECE_BYTES, WINDOWS_IN_A_PIECE * share.window_bytes))
    result = Audit(verified)
    findings = [*share.survey.findings, *_lost(share)]
    with_heads = list(zip(pieces, heads_before(chain, share.first, pieces), strict=True))
    for row in _run_pieces(spark, url, with_heads).to_pylist():
        if row["rule"] is not None:
            findings.append(Breach(row["rule"], row["slot"], row["version"], row["detail"]))
            continue
        _add(result.counts, Counts(**{each.name: row[each.name] for each in fields(Counts)}))
    if len(findings) > FINDINGS_MAX:
        more = Breach("there are more findings than are kept", detail=str(FINDINGS_MAX))
        findings = [*findings[:FINDINGS_MAX], more]
    # A larger slot is older: that is the order of the log.
    result.findings = sorted(findings, key=lambda each: each.slot or "", reverse=True)
    if verified == share.increment.after:
        result.verified = _mark(url, share, [each.slot for each in result.findings if each.slot is not None])
    return result


def _lost(share: _Share) -> Iterator[Breach]:
    slots = share.survey.chain.slots
    newest = int(slots[share.past - 1]) if share.past < len(slots) else 0
    oldest = int(slots[share.first - 1]) if share.first else 2**64
    for first, last in share.survey.holes:
        if newest < first < oldest:
            through = "" if first == last else f"through={slot_text(last)}"
            yield Breach("an acknowledged object is missing", slot_text(first), None, through)


def heads_before(chain: Chain, first: int, pieces: Sequence[Piece]) -> Iterator[int | None]:
    """For each of these pieces, which begin at the chain's index ``first``, the live slot before its head."""
    index = first
    for piece in pieces:
        yield int(chain.slots[index - 2]) if index >= 2 else None
        index += piece.objects


def _run_pieces(spark: SparkSession, url: str, pieces: Sequence[tuple[Piece, int | None]]) -> pa.Table:
    def check(own: Iterator[tuple[Piece, int | None]]) -> Iterator[pa.RecordBatch]:
        for piece, before_head in own:
            piece_audit = audit_piece(url, piece, before_head)
            rows = [*map(asdict, piece_audit.findings), asdict(piece_audit.counts)]
            yield pa.RecordBatch.from_pylist(rows, schema=_RESULT_SCHEMA)

    return in_tasks(spark, pieces, check, from_arrow_schema(_RESULT_SCHEMA)).toArrow()


def _mark(url: str, share: _Share, damaged: Sequence[str]) -> int:
    """Up to which version all is good: the last one before the oldest damage of this step."""
    if not damaged:
        return share.increment.through
    oldest = max(int(slot) for slot in damaged)

    async def before(store: ObjectStore) -> int:
        chain = share.survey.chain
        index = int(np.count_nonzero(chain.slots > np.uint64(oldest))) - 1
        readable = None if index < 0 else await last_readable(store, chain, 0, index)
        after = share.increment.after
        return after if readable is None else max(after, readable[1].last_version)

    return with_store(url, before)
