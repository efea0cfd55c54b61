"""``ingest``: the four commit stages on a stream of commit requests, micro-batch by micro-batch.

Exactly once, by crash. (1) Before a group is durable: nothing was reported, and the replay of the micro-batch takes it
again. (2) After: the record tells the replay the outcomes. (3) Between the log and the verdicts: as 2; the verdicts are
taken once (``verdict_output``). A run leads before it reads records, so an older run can add nothing after that. A
crash costs the conflict window: older read versions are then ``too_old``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.commit.format.batch import SPAN_MAX, Header, LoggedTransaction, encode_body, encode_object
from holdfast.commit.format.transaction import Committed, Rejected, Reused, Transaction, Write
from holdfast.commit.leadership.takeover import now
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.status import AttemptHistory
from holdfast.commit.stages.attempts import Attempts, Known, fingerprint
from holdfast.commit.stages.events import CommitEntry, request_bytes
from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.commit.stages.resolve import Resolve
from holdfast.commit.stages.sequence import Sequence as SequenceStage
from holdfast.crc32 import fastest_crc32
from holdfast.errors import Code, HoldfastError, InvalidRequest, Unavailable
from holdfast.objects.port import ObjectStore
from holdfast.spark.bulk.leadership import DEFAULT_LEADERSHIP, Leadership, LeadershipOptions, put_batch
from holdfast.spark.bulk.message_requests import message_requests
from holdfast.spark.bulk.records import (
    GroupRecord,
    RequestOutcome,
    record_key,
    records_nearby,
    records_of_log,
    requests_digest,
)
from holdfast.spark.bulk.requests import (
    AS_NAMED,
    ParsedRequest,
    RequestFormat,
    frame_errors,
    in_order,
    pack,
    parsed_requests,
)
from holdfast.spark.bulk.verdict_output import Judged, VerdictOutput, VerdictTable
from holdfast.spark.bulk.verdicts import INVALID_CODES
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import StoreThread, is_directory

GROUP_REQUESTS: Final = 5_000
assert GROUP_REQUESTS < 1_000_000, "a wave of groups stays far below the bound on versions that are not durable"
GROUP_BYTES: Final = 4 * 2**20
"""A group ends with the request that reaches this, as a chunk of a load does: an object is a PUT, whole in memory."""
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


class Ingest:
    """Commits micro-batches to the log at ``log_url``; leads it from the first one until ``close``.

    Give ``micro_batch`` to ``foreachBatch``. ``name`` belongs to the stream and its checkpoint permanently: a stream
    that starts again from 0 under a name whose log is further is refused. Read versions are versions of the log.
    ``verdicts``: a table's URL, or a ``VerdictStore``. ``request_format`` None: the rows are messages, each with one
    request (``message_requests``). Use ``load_requests`` for a complete input. Memory: a micro-batch and the conflict
    window on the driver.
    """

    def __init__(
        self,
        log_url: str,
        verdicts: str | VerdictOutput,
        name: str,
        *,
        request_format: RequestFormat | None = AS_NAMED,
        leading: LeadershipOptions = DEFAULT_LEADERSHIP,
        rules: PipelineRules | None = None,
        group_requests: int = GROUP_REQUESTS,
    ) -> None:
        if not name:
            raise InvalidRequest("an ingest needs a name", code=Code.BAD_CONFIGURATION)
        self.counts = IngestCounts()
        self._url = log_url
        self._name = name
        self._key = record_key(name)
        self._format = request_format
        self._leading = leading
        self._rules = rules or PipelineRules()
        self._group_requests = group_requests
        self._output = VerdictTable(verdicts) if isinstance(verdicts, str) else verdicts
        self._thread: StoreThread | None = None
        self._stages: _Stages | None = None
        # The newest micro-batch's records when this process began to lead; None after its own first micro-batch.
        self._earlier: list[GroupRecord] | None = None
        self._before = 0  # requests of the micro-batches before the next one

    @property
    def verdicts_url(self) -> str | None:
        """The URL of the table of verdicts; None where they go elsewhere."""
        return self._output.url if isinstance(self._output, VerdictTable) else None

    def micro_batch(self, frame: DataFrame, number: int) -> None:
        """Commit the requests of one micro-batch and add their verdicts to the table. Harmless when repeated.

        Raises: Closed, Fenced, Unavailable, InvalidRequest end the stream, which can be started again. After a crash:
        the replay of the micro-batch commits the rest.
        """
        stages = self._stages or self._begin(frame.sparkSession)
        written = self._output.begin(stages.log_id, self._name)
        earlier = self._earlier or []
        earlier_batch = earlier[0].batch if earlier else -1
        records = earlier if number == earlier_batch else []
        outcomes = [each for record in records for each in record.outcomes]
        if number < written:
            # Spark repeats the last micro-batch alone, with the same requests: anything else is another checkpoint's.
            if number < written - 1 or (self._earlier is not None and not self._repeats(frame, records)):
                raise _older_checkpoint(number, written - 1)
            return
        if number < earlier_batch:
            raise _older_checkpoint(number, earlier_batch)
        self.counts.found += len(outcomes)
        if earlier and number > earlier_batch:
            self._before += sum(len(record.outcomes) for record in earlier)
        try:
            requests = self._requests(frame)
            if not all(record.covers(requests) for record in records):
                raise _older_checkpoint(number, earlier_batch)
            self._commit(stages, requests, outcomes, number)
            self._output.write(
                Judged(number, self._before, requests, outcomes, stages.durable_version, stages.leader_id)
            )
            self._earlier = None
            self._before += len(requests)
        except BaseException:
            # The requests in flight are unknown now; the next leader finds them in the log.
            stages.leadership.stop()
            self._stages = None
            raise
        self._count(outcomes)

    def close(self) -> None:
        """Resign, so that the next leader need not wait. Harmless when nothing is led."""
        thread, stages = self._thread, self._stages
        self._thread = self._stages = None
        if thread is None:
            return
        try:
            if stages is not None:
                stages.leadership.resign()
        finally:
            thread.__exit__(None, None, None)

    def _begin(self, spark: SparkSession) -> _Stages:
        if is_directory(self._url):
            Path(unquote(urlsplit(self._url).path)).mkdir(parents=True, exist_ok=True)
        if self._thread is None:
            self._thread = StoreThread(self._url).__enter__()
        thread = self._thread
        leadership = Leadership(thread, self._leading)
        claim = leadership.claim()
        try:
            records, complete = thread.start(lambda store: records_nearby(store, claim, self._key)).result()
            if not complete:
                records = records_of_log(spark, self._url, self._key)
        except BaseException:
            leadership.stop()
            raise
        self._earlier = sorted(records, key=lambda record: record.first)
        self._before = records[0].before if records else 0
        self._stages = _Stages(thread, leadership, claim, self._rules)
        return self._stages

    def _requests(self, frame: DataFrame) -> list[ParsedRequest]:
        """The requests of the micro-batch in their order. Raises: InvalidRequest."""
        if self._format is None:
            return message_requests(frame)

        def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for chunk in pack(batches):
                encoded = [msgspec.msgpack.encode(request) for request in parsed_requests(chunk)]
                yield pa.RecordBatch.from_arrays([pa.array(encoded, pa.binary())], ["request"])

        with frame_errors(self._format), task_errors():
            rows = in_order(frame, self._format, 1).mapInArrow(parse, "request binary").toArrow()
        decoder = msgspec.msgpack.Decoder(ParsedRequest)
        return [decoder.decode(data) for data in rows["request"].to_pylist()]

    def _repeats(self, frame: DataFrame, records: Sequence[GroupRecord]) -> bool:
        requests, count = self._requests(frame), sum(len(record.outcomes) for record in records)
        return len(requests) == count and all(record.covers(requests) for record in records)

    def _commit(
        self, stages: _Stages, requests: Sequence[ParsedRequest], outcomes: list[RequestOutcome], number: int
    ) -> None:
        """Commit the requests after those in ``outcomes``, and append their outcomes."""
        while len(outcomes) < len(requests):
            groups: list[_Group] = []
            first = len(outcomes)
            while first < len(requests) and len(groups) < WAVE:
                past = _group_end(requests, first, self._group_requests)
                groups.append(stages.decide(requests[first:past], self._key, (number, first, self._before)))
                first = past
            stages.persist(groups)
            for group in groups:
                outcomes += group.record.outcomes

    def _count(self, outcomes: Sequence[RequestOutcome]) -> None:
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


def _older_checkpoint(number: int, newest: int) -> InvalidRequest:
    return InvalidRequest(
        "this stream's log is further than its checkpoint",
        code=Code.BAD_CONFIGURATION,
        hint="restore the checkpoint, or take another name if these requests were never offered before; a micro-batch "
        "that is repeated has to hold the same requests: leave out what gives another value each time",
        micro_batch=number,
        settled=newest,
    )


@dataclass(slots=True)
class _Group:
    record: GroupRecord
    entries: list[CommitEntry]
    transactions: list[LoggedTransaction]
    floor: int


class _Stages:
    """One leadership: the stages of ``commit``, fed a group at a time."""

    def __init__(self, thread: StoreThread, leadership: Leadership, claim: Header, rules: PipelineRules) -> None:
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
        """Why a request is not decided: it breaks a rule, or it is for another log or leader."""
        txn = request.transaction
        if txn is None:
            return request.refusal
        if txn.has_parts:
            return str(Code.STORES_NOT_IN_LOG)
        if txn.log_id not in (None, self.log_id):
            if self._lineage is None:
                self._lineage = self._thread.start(lambda store: lineage_of(store, self._claim)).result()
            versions = [read.version for read in txn.preconditions if read.version is not None]
            try:
                self._lineage.require(txn.log_id, max([txn.read_version or 0, *versions]))
            except InvalidRequest as error:
                return str(error.code)
        if txn.leader_id not in (None, self.leader_id):
            return str(Code.LEADER_CHANGED)
        return None

    def decide(self, requests: Sequence[ParsedRequest], key: bytes, place: tuple[int, int, int]) -> _Group:
        """Stages 1 and 2 for these requests, and for their record after them.

        ``place``: the micro-batch, how many of its requests came before, and how many of the stream before it.
        """
        self._resolve.advance_floor(now().boot_ms, self._sequence.assigned, self._durable.last_version)
        number, first, before = place
        refusals = [self._refusal(each) for each in requests]
        entries = [
            None if each.transaction is None or refusal is not None else CommitEntry(each.transaction, lambda _: None)
            for each, refusal in zip(requests, refusals, strict=True)
        ]
        onward, look_up = self._sequence.order([entry for entry in entries if entry is not None], self._resolve.floor)
        self._resolve.decide(onward)
        for entry in look_up:
            self._look_up(entry)
        own = {id(entry) for entry in (*onward, *look_up)}
        outcomes = tuple(
            RequestOutcome(refusal)
            if entry is None
            else _outcome_of(entry if id(entry) in own else self._original(entry))
            for refusal, entry in zip(refusals, entries, strict=True)
        )
        record = GroupRecord(number, first, outcomes, requests_digest(requests), before=before)
        last = CommitEntry(Transaction([Write(key, record.encode())]), lambda _: None)
        self._resolve.decide(self._sequence.order([last], self._resolve.floor)[0])
        logged = [
            LoggedTransaction(e.version, e.txn.request_id, e.txn.read_version, e.txn.operations, e.txn.preconditions)
            for e in [*onward, last]
            if e.accepted
        ]
        return _Group(record, [entry for entry in onward if entry.version], logged, self._resolve.floor)

    def _original(self, follower: CommitEntry) -> CommitEntry:
        assert follower.txn.request_id is not None, "only attempts are followed"
        known = self._sequence.attempts.find(follower.txn.request_id)
        assert isinstance(known, Known), "an attempt that is followed is known"
        assert known.entry is not None, "an attempt that is followed is in flight"
        return known.entry

    def _look_up(self, entry: CommitEntry) -> None:
        """An attempt below the window: what the log says that it came to. Raises: Unavailable, CorruptData."""
        request_id, read_version = entry.txn.request_id, entry.txn.read_version
        assert request_id is not None, "only attempts are looked up"
        assert read_version is not None, "a request id comes with a read version"

        async def find(store: ObjectStore) -> None:
            if self._history is None:
                self._history = AttemptHistory(store, self._claim)
            record = await self._history.find(request_id, read_version, self._durable)
            if record.txn is not None:
                same = fingerprint(record.txn, b"") == fingerprint(entry.txn, b"")
                entry.outcome = Committed(record.txn.version) if same else Reused()
            elif record.truncated:
                raise Unavailable("retention removed the record of an attempt", code=Code.LOG_TRUNCATED)
            else:
                entry.outcome = Rejected("too_old")

        self._thread.start(find).result()

    def persist(self, groups: Sequence[_Group]) -> None:
        """Stage 3: an object for each group, side by side; return when all are durable. Raises: Fenced, Unavailable."""
        with self.leadership.writing():
            self._persist(groups)

    def _persist(self, groups: Sequence[_Group]) -> None:
        objects: list[tuple[Header, bytes]] = []
        for group in groups:
            body = encode_body(group.transactions)
            versions = group.transactions[0].version, group.transactions[-1].version
            count = len(group.transactions)
            header = self.leadership.next_header(*versions, group.floor, count, now().wall_ms)
            header = replace(header, body_length=len(body), body_crc=fastest_crc32()(body, 0))
            objects.append((header, encode_object(header, body)))

        async def put(store: ObjectStore) -> None:
            await asyncio.gather(*(put_batch(store, header, data) for header, data in objects))

        self._thread.start(put).result()
        self.leadership.confirm(objects[-1][0], len(objects))
        self._durable = objects[-1][0]
        for group in groups:
            for entry in group.entries:
                self._sequence.complete(entry)


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
        case HoldfastError() as error:
            return RequestOutcome(str(error.code))
        case _:
            raise AssertionError("no leader leaves a request of its own unanswered")
