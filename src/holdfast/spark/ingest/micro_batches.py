"""The micro-batches of one ingest: what the log has of them, and how the next one is committed and reported.

Two protocols say which requests are not decided yet. ``NumberedIngest``: by the numbers of their messages, of which the
log's record says how far they are decided; no checkpoint is needed, and a message whose number is decided is left out,
whatever micro-batch brings it. ``CheckpointedIngest``: by the number that Spark's checkpoint gives to a micro-batch.
Spark repeats the last micro-batch alone, with the same requests; anything else is another checkpoint's, and is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.commit.format.batch import SPAN_MAX, Header, LoggedTransaction, encode_body, encode_object
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
from holdfast.commit.stages.events import NO_STORE_PARTS, CommitEntry, request_bytes
from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.commit.stages.resolve import Resolve
from holdfast.commit.stages.sequence import Sequence as SequenceStage
from holdfast.errors import Code, HoldfastError, InvalidRequest
from holdfast.objects.port import ObjectStore
from holdfast.spark.bulk.leadership import JobLeadership, put_batch
from holdfast.spark.bulk.requests import ParsedRequest
from holdfast.spark.bulk.verdicts import INVALID_CODES
from holdfast.spark.ingest.numbered_source import MessageRequest, NumberedSource, Relation, lost_request, other_messages
from holdfast.spark.ingest.record import GroupRecord, RequestOutcome, job_of_ingest, requests_digest
from holdfast.spark.ingest.verdict_output import Judged, VerdictOutput
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.values import ranges_of


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


GROUP_BYTES: Final = 4 * 2**20
"""A group ends with the request that reaches this, as a chunk of a load does: an object is a PUT, whole in memory."""
LIFE_SILENCE_MS: Final = 600_000.0
"""After so long without verdicts another publisher begins: far below the time after which a store forgets one."""
WAVE: Final = 64
assert WAVE <= SPAN_MAX, "a wave is within the span"


@dataclass(slots=True)
class IngestCounts:
    """What an ingest has done. ``found`` requests were finished by an earlier run."""

    micro_batches: int = 0
    requests: int = 0
    committed: int = 0
    not_committed: int = 0
    invalid: int = 0
    found: int = 0


class MicroBatches:
    """What the log has decided of the ingest ``name``, and the commits that continue it.

    ``source``: where numbered messages come from; None: the requests are not numbered.
    """

    def __init__(self, name: str, source: NumberedSource | None, output: VerdictOutput, *, group_requests: int) -> None:
        self.counts = IngestCounts()
        self.newest = -1
        """The newest micro-batch in the log, as the log counts them."""
        self.earlier: Sequence[GroupRecord] = ()
        """Its records, in their order, if another run wrote it or this one left it unfinished."""
        self.through = 0
        """The last number that the log has decided."""
        self.time_ms = 0
        """No message up to that number was published after this; 0: not known."""
        self.in_flight = False
        """Whether a micro-batch was begun and not reported: what the log has of it is unknown here."""
        self._job = job_of_ingest(name)
        self._source = source
        self._output = output
        self._group_requests = group_requests
        self._stages: Stages | None = None
        self._before = 0  # requests before the next micro-batch
        # Of the publisher of verdicts: its first micro-batch, and the requests before that.
        self._publisher: tuple[int, int] = (0, 0)
        self._reported_ms: float | None = None

    def resume(self, stages: Stages, records: Sequence[GroupRecord]) -> None:
        """Continue after ``records``, those of the newest micro-batch in the log, under this leadership."""
        self._stages = stages
        self.in_flight = False
        self.earlier = records
        self.newest = records[0].batch if records else -1
        self.through = max((last for record in records for _, last in record.seqs), default=0)
        self.time_ms = max((record.time_ms for record in records), default=0)
        self._before = records[0].before + sum(len(record.outcomes) for record in records) if records else 0

    def commit(self, requests: Sequence[ParsedRequest], number: int, records: Sequence[GroupRecord] = ()) -> None:
        """Commit the requests of a micro-batch that ``records`` do not have, and report all its verdicts.

        Raises: Fenced, Unavailable. After a crash: the log has whole groups, in their order.
        """
        stages = self._leading()
        self.in_flight = True
        before = records[0].before if records else self._before
        outcomes = [each for record in records for each in record.outcomes]
        self.counts.found += len(outcomes)
        self._choose_publisher(records, number)
        while len(outcomes) < len(requests):
            groups: list[Group] = []
            first = len(outcomes)
            while first < len(requests) and len(groups) < WAVE:
                past = _group_end(requests, first, self._group_requests)
                place = GroupRecord(number, first, (), None, 1, before, *self._publisher)
                place = self._numbered(place, requests[first:past])
                groups.append(stages.decide(requests[first:past], self._job, place))
                first = past
            stages.persist(groups)
            for group in groups:
                outcomes += group.record.outcomes
        self._report(number, before, requests, outcomes)
        self.earlier = ()
        self.newest = number
        self._before = before + len(requests)
        if self._source is not None and requests:
            self.through = int(requests[-1].order)
        self.in_flight = False
        self.count(outcomes)

    def report_again(self, requests: Sequence[ParsedRequest], records: Sequence[GroupRecord]) -> None:
        """Report the outcomes that ``records`` have: what was reported before is a duplicate and not taken twice."""
        outcomes = [each for record in records for each in record.outcomes]
        self.in_flight = True
        self._publisher = records[0].publisher, records[0].published
        self._report(records[0].batch, records[0].before, requests, outcomes)
        self.in_flight = False
        self.counts.found += len(outcomes)

    def _leading(self) -> Stages:
        assert self._stages is not None, "a leadership comes before its first micro-batch"
        return self._stages

    def _numbered(self, place: GroupRecord, group: Sequence[ParsedRequest]) -> GroupRecord:
        """The record of a group, with the numbers of its messages."""
        if self._source is None:
            return place
        self.time_ms = max(self.time_ms, *(each.time_ms for each in group if isinstance(each, MessageRequest)), 0)
        seqs = tuple(ranges_of(int(each.order) for each in group))
        return msgspec.structs.replace(
            place, source=self._source.identity, seqs=seqs, time_ms=self.time_ms, after=self.through
        )

    def _report(
        self, number: int, before: int, requests: Sequence[ParsedRequest], outcomes: Sequence[RequestOutcome]
    ) -> None:
        stages = self._leading()
        self._output.write(
            Judged(number, before, *self._publisher, requests, outcomes, stages.durable_version, stages.leader_id)
        )
        self._reported_ms = now().boot_ms

    def _choose_publisher(self, records: Sequence[GroupRecord], number: int) -> None:
        """The publisher of this micro-batch's verdicts: what has begun keeps its own."""
        silent_ms = 0.0 if self._reported_ms is None else now().boot_ms - self._reported_ms
        if records:
            self._publisher = records[0].publisher, records[0].published
        elif self._reported_ms is None or silent_ms > LIFE_SILENCE_MS:
            self._publisher = number, self._before

    def count(self, outcomes: Sequence[RequestOutcome]) -> None:
        """A micro-batch is done, with these outcomes of its own."""
        counts = self.counts
        counts.micro_batches += 1
        counts.requests += len(outcomes)
        counts.committed += sum(each.code is None for each in outcomes)
        counts.invalid += sum(each.code in INVALID_CODES for each in outcomes)
        counts.not_committed = counts.requests - counts.committed - counts.invalid


def _group_end(requests: Sequence[ParsedRequest], first: int, count: int) -> int:
    """The index after the group that begins at ``first``: at most ``count`` requests, as many as an object holds."""
    past, size = first, 0
    while past < min(first + count, len(requests)) and size < GROUP_BYTES:
        txn = requests[past].transaction
        size += 0 if txn is None else request_bytes(txn)
        past += 1
    return past


class NumberedIngest:
    """The protocol of an ingest whose ``source`` belongs to its name."""

    def __init__(self, name: str, source: NumberedSource, batches: MicroBatches) -> None:
        self._name = name
        self._source = source
        self._batches = batches

    def decide(self, offered: Sequence[ParsedRequest], number: int, written: int) -> None:
        """Commit what is not decided, report its verdicts, and acknowledge all that were offered.

        The messages of the newest micro-batch that the log has are acknowledged after its verdicts are durable. So it
        may lack verdicts only if one of its messages comes again, or if Spark repeats it.
        ``written``: how many micro-batches have their verdicts. Raises: Closed (``store_replaced``), InvalidRequest
        (the source was put back, or the table is further than the log), and as ``MicroBatches.commit``.
        """
        batches = self._batches
        self._source.require_same()
        self._require_same_messages(offered)
        fresh = [each for each in offered if int(each.order) > batches.through]
        earlier = batches.earlier
        numbers = {each for record in earlier for each in record.numbers()}
        again = bool(earlier) and (number == earlier[0].batch or any(int(each.order) in numbers for each in offered))
        if fresh and batches.newest + 1 < written:
            raise bad_configuration(
                "the table of verdicts has more micro-batches than the log: one of them was put back to an earlier "
                "state",
                hint="give --to the URL of a new table",
                next_in_log=batches.newest + 1,
                in_table=written,
            )
        if again and earlier[0].batch >= written:
            self._report_again(earlier)
        if again or fresh:
            batches.earlier = ()
        if fresh:
            batches.commit(fresh, batches.newest + 1)
        else:
            batches.count(())
        if offered or again:
            # The verdicts of the newest micro-batch may be missing while only older messages have come.
            pending = batches.earlier[0].numbers() if batches.earlier else ()
            self._source.acknowledge(min(pending, default=batches.through + 1) - 1)

    def _require_same_messages(self, offered: Sequence[ParsedRequest]) -> None:
        """Raise InvalidRequest if a message has a number that was decided before the message was published."""
        through, time_ms = self._batches.through, self._batches.time_ms
        if time_ms and any(
            isinstance(each, MessageRequest) and int(each.order) <= through and each.time_ms > time_ms
            for each in offered
        ):
            raise self._put_back()

    def _report_again(self, records: Sequence[GroupRecord]) -> None:
        numbers = [each for record in records for each in record.numbers()]
        messages = self._source.kept(numbers[0], numbers[-1])
        requests: list[ParsedRequest] = [messages.get(each) or lost_request(each) for each in numbers]
        for record in records:
            if all(each in messages for each in record.numbers()) and not record.covers(requests):
                raise self._put_back()
        self._batches.report_again(requests, records)

    def _put_back(self) -> Exception:
        batches = self._batches
        return other_messages(self._source, self._name, batches.through, batches.time_ms, Relation.PUT_BACK)


class CheckpointedIngest:
    """The protocol of an ingest whose checkpoint belongs to its name."""

    def __init__(self, batches: MicroBatches) -> None:
        self._batches = batches
        self._last: tuple[int, str] | None = None  # the newest micro-batch of this process, and its requests' digest

    def decide(self, requests: Sequence[ParsedRequest], number: int, written: int) -> None:
        """Commit and report what this micro-batch still lacks.

        ``written``: how many micro-batches have their verdicts. Raises: InvalidRequest (another checkpoint), and as
        ``MicroBatches.commit``.
        """
        digest = requests_digest(requests)
        if self._last is not None and number <= self._last[0]:
            if self._last != (number, digest):
                raise older_checkpoint(number, self._last[0])
            return
        earlier = self._batches.earlier
        newest = earlier[0].batch if earlier else -1
        records = earlier if number == newest else ()
        covered = all(record.covers(requests) for record in records)
        if number < written:
            finished = sum(len(record.outcomes) for record in records) == len(requests)
            if number < written - 1 or not finished or not covered:
                raise older_checkpoint(number, written - 1)
            return
        if number < newest or not covered:
            raise older_checkpoint(number, newest)
        self._batches.commit(requests, number, records)
        self._last = number, digest


def older_checkpoint(number: int, newest: int) -> InvalidRequest:
    """For a checkpoint of Spark that is not the newest one of this name."""
    return bad_configuration(
        "this stream's log is further than its checkpoint, or a micro-batch comes again with other requests",
        hint="restore the checkpoint. Without it, offer the requests that have no verdict under another name, with a "
        "new checkpoint: one with a request_id and a read_version is committed once in any case; look for any other "
        "in the log first. A micro-batch that is repeated needs the same requests, without values that are new each "
        "time",
        next_in_checkpoint=number,
        newest_in_log=newest,
    )
