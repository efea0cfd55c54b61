"""The four stages of ``commit`` under one leadership of an ingest, fed a group of requests at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.commit.format.batch import Header, LoggedTransaction, encode_body, encode_object
from holdfast.commit.format.transaction import (
    Committed,
    JobChange,
    Rejected,
    Reused,
    Transaction,
    Unanswered,
)
from holdfast.commit.leadership.takeover import now
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.status import AttemptHistory
from holdfast.commit.stages.attempts import Attempts, Known, judge_from_log
from holdfast.commit.stages.events import NO_STORE_PARTS, CommitEntry
from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.commit.stages.resolve import Resolve
from holdfast.commit.stages.sequence import Sequence as SequenceStage
from holdfast.errors import Code, HoldfastError, InvalidRequest
from holdfast.objects.port import ObjectStore
from holdfast.spark.bulk.leadership import JobLeadership, put_batch
from holdfast.spark.bulk.requests import ParsedRequest
from holdfast.spark.ingest.record import GroupRecord, RequestOutcome, requests_digest
from holdfast.spark.runtime.store_thread import StoreThread


@dataclass(slots=True)
class Group:
    """Requests that are decided together, and the transactions of their batch object: theirs, and the record's.

    ``entries`` are the accepted ones.
    """

    record: GroupRecord
    entries: list[CommitEntry]
    transactions: list[LoggedTransaction]
    floor: int


class Stages:
    """One leadership: the stages of ``commit``, fed a group at a time."""

    def __init__(self, thread: StoreThread, leadership: JobLeadership, claim: Header, rules: PipelineRules) -> None:
        self.leadership = leadership
        self.log_id = claim.log_id.hex()
        self.leader_id = claim.leader_id.hex()
        self._lineage: Lineage | None = None
        self._thread = thread
        self._claim = claim
        self._history: AttemptHistory | None = None
        attempts = Attempts(bytes_max=rules.window_bytes // 4)
        self._sequence = SequenceStage(claim.last_version, attempts)
        window_bytes = rules.window_bytes - rules.window_bytes // 4
        self._resolve = Resolve(claim.last_version, attempts, window_ms=rules.window_ms, bytes_max=window_bytes)
        self._durable = claim

    @property
    def durable_version(self) -> int:
        """The last version that is durable."""
        return self._durable.last_version

    def _refusal(self, request: ParsedRequest) -> str | None:
        """Why a request is not decided: it breaks a rule, is not for this log or leader, or names a job's record."""
        txn = request.transaction
        if txn is None:
            return request.refusal
        if txn.jobs:
            return str(Code.PERMISSION_DENIED)
        if txn.has_parts:
            return str(Code.STORES_NOT_IN_LOG)
        if txn.log_id not in (None, self.log_id):
            if self._lineage is None:
                self._lineage = self._thread.run(lambda store: lineage_of(store, self._claim))
            versions = [read.version for read in txn.preconditions if read.version is not None]
            try:
                self._lineage.require(txn.log_id, max([txn.read_version or 0, *versions]))
            except InvalidRequest as error:
                return str(error.code)
        if txn.leader_id not in (None, self.leader_id):
            return str(Code.LEADER_CHANGED)
        return None

    def decide(self, requests: Sequence[ParsedRequest], job: str, place: GroupRecord) -> Group:
        """Stages 1 and 2 for these requests, and for their record after them.

        ``place``: their record, without outcomes and digest.
        """
        self._resolve.advance_floor(now().boot_ms, self._sequence.assigned, self._durable.last_version)
        refusals = [self._refusal(each) for each in requests]
        entries = [
            None if each.transaction is None or refusal is not None else CommitEntry(each.transaction, lambda _: None)
            for each, refusal in zip(requests, refusals, strict=True)
        ]
        onward: list[CommitEntry] = []
        look_up: list[CommitEntry] = []
        for run in _without_repeats([entry for entry in entries if entry is not None]):
            ordered, below = self._sequence.order(run, self._resolve.floor)
            self._resolve.decide(ordered)
            for entry in ordered:
                if not entry.accepted:
                    self._sequence.complete(entry)  # a refused attempt leaves no record: its id is decided again
            onward += ordered
            look_up += below
        self._look_up(look_up)
        own = {id(entry) for entry in (*onward, *look_up)}
        outcomes = tuple(
            RequestOutcome(refusal)
            if entry is None
            else _outcome_of(entry if id(entry) in own else self._original(entry))
            for refusal, entry in zip(refusals, entries, strict=True)
        )
        record = msgspec.structs.replace(place, outcomes=outcomes, digest=requests_digest(requests))
        written = Transaction([], jobs=(JobChange(job, msgspec.json.encode(record)),))
        last = CommitEntry(written, lambda _: None, parts=NO_STORE_PARTS)
        self._resolve.decide(self._sequence.order([last], self._resolve.floor)[0])
        logged = [
            LoggedTransaction(
                e.version, e.txn.request_id, e.txn.read_version, e.txn.operations, e.txn.preconditions, jobs=e.txn.jobs
            )
            for e in [*onward, last]
            if e.accepted
        ]
        return Group(record, [entry for entry in onward if entry.accepted], logged, self._resolve.floor)

    def _original(self, follower: CommitEntry) -> CommitEntry:
        assert follower.txn.request_id is not None, "only attempts are followed"
        known = self._sequence.attempts.find(follower.txn.request_id)
        assert isinstance(known, Known), "an attempt that is followed is known"
        assert known.entry is not None, "an attempt that is followed is in flight"
        return known.entry

    def _look_up(self, entries: Sequence[CommitEntry]) -> None:
        """Attempts below the window: what the log says of them, by one scan. Raises: Unavailable, CorruptData."""

        async def find_one(history: AttemptHistory, entry: CommitEntry) -> None:
            request_id, read_version = entry.txn.request_id, entry.txn.read_version
            assert request_id is not None and read_version is not None, "only attempts are looked up"
            attempt = await history.find(request_id, read_version, self._durable)
            entry.outcome = judge_from_log(entry, attempt.txn, truncated=attempt.truncated)

        async def find(store: ObjectStore) -> None:
            if self._history is None:
                self._history = AttemptHistory(store, self._claim)
            history = self._history
            await asyncio.gather(*(find_one(history, entry) for entry in entries))

        if entries:
            self._thread.run(find)

    def persist(self, groups: Sequence[Group]) -> None:
        """Stage 3: an object for each group, side by side; return when all are durable. Raises: Fenced, Unavailable."""
        objects: list[tuple[Header, bytes]] = []

        async def put(store: ObjectStore) -> None:
            await asyncio.gather(*(put_batch(store, header, data) for header, data in objects))

        with self.leadership.writing():
            for group in groups:
                versions = group.transactions[0].version, group.transactions[-1].version
                header = self.leadership.next_header(*versions, group.floor, len(group.transactions))
                objects.append((header, encode_object(header, encode_body(group.transactions))))
            self._thread.run(put)
            self.leadership.confirm(objects[-1][0], len(objects))
        self._durable = objects[-1][0]
        for group in groups:
            for entry in group.entries:
                self._sequence.complete(entry)


def _without_repeats(entries: Sequence[CommitEntry]) -> Iterator[list[CommitEntry]]:
    """The entries in order, in runs in which each request id is once."""
    run: list[CommitEntry] = []
    ids: set[str] = set()
    for entry in entries:
        request_id = entry.txn.request_id
        if request_id is not None:
            if request_id in ids:
                yield run
                run, ids = [], set()
            ids.add(request_id)
        run.append(entry)
    yield run


def _outcome_of(entry: CommitEntry) -> RequestOutcome:
    match entry.outcome:
        case None:
            assert entry.accepted, "a request is decided before it is reported"
            return RequestOutcome(None, entry.version)
        case Committed(version):
            return RequestOutcome(None, version)
        case Rejected(reason, conflicts):
            return RequestOutcome(reason, None, tuple((each.precondition, each.version) for each in conflicts))
        case Reused():
            return RequestOutcome(str(Code.REQUEST_ID_REUSED))
        case Unanswered():
            return RequestOutcome(str(Code.LOG_TRUNCATED))
        case HoldfastError() as error:
            return RequestOutcome(str(error.code))
