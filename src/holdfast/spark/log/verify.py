"""``verify``: the incremental audit of a log, with a table of findings and a "verified up to" mark.

Columns of the table: the broken ``rule``, its ``slot`` (20 digits) and ``version``, ``detail``, and ``step``, the
version that the step reached. Each step adds a row of rule ``verified up to``, whose ``version`` is the mark:
everything up to it is good. The first damage stops the mark permanently; after a repair, start a new table. Foreign
keys under ``batches/`` have no position in the log: every step reports them, and they do not stop the mark.

Damage is a finding. CorruptData is raised only when nothing can be read. Cost: the log is read once, plus one conflict
window per task; pieces are at least four windows long. Memory: 16 bytes per object on the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.commit.format.batch import Header
from holdfast.errors import Code, CorruptData
from holdfast.objects.port import ObjectStore
from holdfast.spark.log.audit import Finding, Survey, audit_piece, last_readable, survey, surveyed_log_id
from holdfast.spark.log.delta_output import DeltaJob
from holdfast.spark.log.increments import Increment, first_above
from holdfast.spark.log.runner import StepResult
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.runtime.table_files import write_table
from holdfast.spark.source.plan import Chain, LogHead, Piece, cut, index_after
from holdfast.spark.source.shapes import seq_of
from holdfast.values import slot_text

__all__ = ["Audit", "Counts", "Verify", "audit", "heads_before"]

VERIFIED: Final = "verified up to"
AUDITED: Final = "audited to"
"""The mark with the ``seq`` of the last object that was looked at. Later objects, such as a resign record, may have no
version above the one that was reached."""
PIECE_BYTES: Final = 64 * 2**20
WINDOWS_IN_A_PIECE: Final = 4
FINDINGS_MAX: Final = 100_000
"""Findings that one step keeps; a log with more is reported with these and a last one that says so."""
SCHEMA: Final = pa.schema(
    [
        pa.field("rule", pa.string()),
        pa.field("slot", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("detail", pa.string()),
        pa.field("step", pa.int64()),
    ]
)
_RESULT_TYPE: Final = (
    "rule string, slot string, version long, detail string, "
    "objects long, object_bytes long, transactions long, operations long, preconditions long"
)
_RESULT_SCHEMA: Final = pa.schema(
    [
        *list(SCHEMA)[:4],
        *(
            pa.field(name, pa.int64())
            for name in ("objects", "object_bytes", "transactions", "operations", "preconditions")
        ),
    ]
)


@dataclass(slots=True)
class Counts:
    """What an audit has looked at."""

    objects: int = 0
    object_bytes: int = 0
    transactions: int = 0
    operations: int = 0
    preconditions: int = 0


@dataclass(slots=True)
class Audit:
    """The result of one audit: ``verified`` is the mark, a version; ``findings`` are in the order of the log."""

    verified: int
    counts: Counts = field(default_factory=Counts)
    findings: list[Finding] = field(default_factory=list[Finding])


@dataclass(frozen=True, slots=True)
class _Share:
    """The part of the chain that one step audits: places ``[first, past)``, from ``after`` up to ``through``."""

    survey: Survey
    head: Header
    first: int
    past: int
    after: int
    through: int
    window_bytes: int

    def increment(self) -> Increment:
        sizes = self.survey.chain.sizes
        return Increment(
            LogHead(self.survey.log_id, self.head.last_version),
            self.after,
            self.through,
            self.past - self.first,
            int(sizes[self.first : self.past].sum()),
            int(sizes[self.past :].sum()),
        )


def audit(spark: SparkSession, url: str) -> Audit:
    """Audit the whole log at ``url`` now, without a table. Raises: NotFound, CorruptData, Unavailable."""
    share = _look(url, 0, None, 2**63, audited=0)
    with task_errors():
        return _audit(spark, url, share, verified=0)


class Verify(DeltaJob):
    """The incremental audit of the log at ``log_url``, with its findings in the Delta table at ``output_url``.

    After a run ``audit`` holds what it found: the counts of this run, and every finding of it.
    """

    name = "verify"

    def __init__(self, spark: SparkSession, log_url: str, output_url: str) -> None:
        super().__init__(spark, log_url, output_url, SCHEMA)
        self.audit = Audit(0)

    def log_id(self) -> str:
        """As ``Job``, from the newest object that can be read."""
        with StoreThread(self._log_url) as thread:
            return thread.start(surveyed_log_id).result()

    def offset(self, log_id: str) -> int:
        """As ``Job``."""
        offset = super().offset(log_id)
        self.audit.verified = self._mark()
        return offset

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """As ``Job``, on a log that may be damaged."""
        return _look(self._log_url, after, until, step_bytes, audited=self._output.mark(AUDITED)).increment()

    def advance(self, increment: Increment) -> StepResult:
        """As ``Job``."""
        state = self._open(increment)
        share = _look(self._log_url, increment.after, increment.through, 2**63, audited=self._output.mark(AUDITED))
        step = _audit(self._spark, self._log_url, share, verified=self._mark())
        rows = _rows(step, increment.through)
        written = write_table(self._output.location.url, rows, {}, ("version", "step"))
        marks = {VERIFIED: step.verified, AUDITED: seq_of(int(share.survey.chain.slots[share.past - 1]))}
        self._output.commit(state, increment.through, [written], (), marks=marks)
        self._add(step)
        return StepResult(rows=len(step.findings), files_added=1, bytes_written=written.size)

    def is_good(self, version: int) -> bool:
        """Whether all of the log up to ``version`` was found good, by this run and those before it."""
        return not self.audit.findings and self.audit.verified >= version

    def _mark(self) -> int:
        return self._output.mark(VERIFIED)

    def _add(self, step: Audit) -> None:
        self.audit.verified = step.verified
        self.audit.findings += step.findings
        for name in Counts.__slots__:
            setattr(self.audit.counts, name, getattr(self.audit.counts, name) + getattr(step.counts, name))


def _rows(step: Audit, through: int) -> pa.Table:
    findings = [*step.findings, Finding(VERIFIED, version=step.verified)]
    return pa.Table.from_pylist(
        [{"rule": f.rule, "slot": f.slot, "version": f.version, "detail": f.detail, "step": through} for f in findings],
        schema=SCHEMA,
    )


def _look(url: str, after: int, until: int | None, step_bytes: int, *, audited: int) -> _Share:
    with StoreThread(url) as thread:
        return thread.start(lambda store: _choose(store, after, until, step_bytes, audited)).result()


async def _choose(store: ObjectStore, after: int, until: int | None, step_bytes: int, audited: int) -> _Share:
    found = await survey(store)
    chain = found.chain
    readable = await last_readable(store, chain, 0, len(chain.slots) - 1)
    if readable is None:
        raise CorruptData("no header of the live chain can be read", code=Code.CORRUPT_LOG, url=store.url)
    newest_place, head = readable
    if head.last_version <= after or (until is not None and until <= after):
        if newest_place < len(chain.slots) - 1:
            raise CorruptData(
                "the newest object of the log is damaged", code=Code.CORRUPT_LOG, slot=slot_text(int(chain.slots[-1]))
            )
        return _Share(found, head, 0, 0, after, after, 0)
    above = await first_above(store, chain, after)
    first = 0 if after == 0 else above
    if audited:
        first = min(first, index_after(chain, audited))
    ends = np.cumsum(chain.sizes[first:])
    # Even a small step reaches a version above the last one's: a step that does not is taken for the end.
    past = max(first + int(np.searchsorted(ends, step_bytes, side="right")), above + 1)
    # A step ends with an object that can be read, because only a header says which version was reached.
    reached = await last_readable(store, chain, first, past - 1)
    if past >= len(chain.slots) or reached is None or reached[1].last_version <= after:
        reached, past = (newest_place, head), len(chain.slots)
    else:
        past = reached[0] + 1
    through: int = reached[1].last_version
    if until is not None and until < through:
        through = until
        past = await first_above(store, chain, until)
        before = await last_readable(store, chain, first, past - 1) if past > first else None
        # Inside an object: the whole of it is looked at, now and by the step that follows.
        past += before is None or before[1].last_version < until
    floor_place = 0 if head.window_floor == 0 else await first_above(store, chain, head.window_floor)
    window_bytes = int(chain.sizes[floor_place:].sum())
    return _Share(found, head, first, past, after, through, window_bytes)


def _audit(spark: SparkSession, url: str, share: _Share, *, verified: int) -> Audit:
    chain, survey_found = share.survey.chain, share.survey
    pieces = cut(chain, share.first, share.past, max(PIECE_BYTES, WINDOWS_IN_A_PIECE * share.window_bytes))
    result = Audit(verified)
    findings = [*survey_found.findings, *_lost(share)]
    for row in _run_pieces(
        spark, url, list(zip(pieces, heads_before(chain, share.first, pieces), strict=True))
    ).to_pylist():
        if row["rule"] is not None:
            findings.append(Finding(row["rule"], row["slot"], row["version"], row["detail"]))
            continue
        for name in Counts.__slots__:
            setattr(result.counts, name, getattr(result.counts, name) + row[name])
    if len(findings) > FINDINGS_MAX:
        findings = [
            *findings[:FINDINGS_MAX],
            Finding("there are more findings than are kept", detail=str(FINDINGS_MAX)),
        ]
    # A larger slot is older: that is the order of the log.
    result.findings = sorted(findings, key=lambda each: each.slot or "", reverse=True)
    if verified == share.after:
        result.verified = _mark(url, share, [each.slot for each in result.findings if each.slot is not None])
    return result


def _lost(share: _Share) -> Iterator[Finding]:
    """The holes of the chain that lie in this step."""
    slots = share.survey.chain.slots
    newest = int(slots[share.past - 1]) if share.past < len(slots) else 0
    oldest = int(slots[share.first - 1]) if share.first else 2**64
    for first, last in share.survey.holes:
        if newest < first < oldest:
            through = "" if first == last else f"through={slot_text(last)}"
            yield Finding("an acknowledged object is missing", slot_text(first), None, through)


def heads_before(chain: Chain, first: int, pieces: Sequence[Piece]) -> Iterator[int | None]:
    """For each of these pieces, which begin at the chain's place ``first``, the live slot before its head."""
    place = first
    for piece in pieces:
        yield int(chain.slots[place - 2]) if place >= 2 else None
        place += piece.objects


def _run_pieces(spark: SparkSession, url: str, pieces: Sequence[tuple[Piece, int | None]]) -> pa.Table:
    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch["id"].to_pylist():
                found = audit_piece(url, *pieces[index])
                rows: list[dict[str, object]] = [
                    {"rule": f.rule, "slot": f.slot, "version": f.version, "detail": f.detail} for f in found.findings
                ]
                rows.append({name: getattr(found, name) for name in Counts.__slots__})
                yield pa.RecordBatch.from_pylist(rows, schema=_RESULT_SCHEMA)

    if not pieces:
        return _RESULT_SCHEMA.empty_table()
    return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(check, _RESULT_TYPE).toArrow()


def _mark(url: str, share: _Share, damaged: Sequence[str]) -> int:
    """Up to which version all is good: the last one before the oldest damage of this step."""
    if not damaged:
        return share.through
    oldest = max(int(slot) for slot in damaged)

    async def before(store: ObjectStore) -> int:
        chain = share.survey.chain
        place = int(np.count_nonzero(chain.slots > np.uint64(oldest))) - 1
        found = None if place < 0 else await last_readable(store, chain, 0, place)
        return share.after if found is None else max(share.after, found[1].last_version)

    with StoreThread(url) as thread:
        return thread.start(before).result()
