"""``ingest``: the four commit stages on a stream of commit requests, micro-batch by micro-batch.

Exactly once, by crash. (1) Before a group is durable: nothing was reported, and its requests come again. (2) After: the
record has the outcomes. (3) Between the log and the verdicts: as 2; the verdicts are taken once (``verdict_output``).
(4) Between the verdicts and the acknowledgement: the record says through which number its source is decided, and lower
ones are left out. (5) Before Spark's checkpoint has the micro-batch: it comes again, perhaps without messages.
A run leads before it reads records, so an older run can add nothing after that. A crash costs the conflict window:
older read versions are then ``too_old``. Without a ``source``, 4 and 5 rest on Spark's checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.commit.format.batch import SPAN_MAX, Header
from holdfast.commit.leadership.takeover import now
from holdfast.commit.stages.events import request_bytes
from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound
from holdfast.spark.bulk.leadership import DEFAULT_LEADERSHIP, Leadership, LeadershipOptions
from holdfast.spark.bulk.requests import (
    AS_NAMED,
    ParsedRequest,
    RequestFormat,
    frame_errors,
    in_order,
    pack,
    parsed_requests,
)
from holdfast.spark.bulk.verdicts import INVALID_CODES
from holdfast.spark.ingest.message_requests import MessageRequest, lost_request, message_requests
from holdfast.spark.ingest.numbered_source import NumberedSource, Relation
from holdfast.spark.ingest.record import (
    GroupRecord,
    RequestOutcome,
    lost_groups,
    missing_before,
    ranges_of,
    record_key,
    requests_digest,
)
from holdfast.spark.ingest.record_search import (
    newest_records,
    record_in_snapshot,
    records_nearby,
    records_of_log,
    removed_records,
)
from holdfast.spark.ingest.refusals import another_name, another_source, older_checkpoint, other_messages, table_ahead
from holdfast.spark.ingest.stages import Group, Stages
from holdfast.spark.ingest.verdict_output import Judged, VerdictOutput, VerdictTable
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import StoreThread, is_directory

GROUP_REQUESTS: Final = 5_000
assert GROUP_REQUESTS < 1_000_000, "a wave of groups stays far below the bound on versions that are not durable"
GROUP_BYTES: Final = 4 * 2**20
"""A group ends with the request that reaches this, as a chunk of a load does: an object is a PUT, whole in memory."""
LIFE_SILENCE_MS: Final = 600_000.0
"""After so long without verdicts another publisher begins: far below the time after which a store forgets one."""
NAME_LENGTH_MAX: Final = 128
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

    Give ``micro_batch`` to ``foreachBatch``. ``name`` belongs to the stream permanently. Read versions are versions of
    the log. ``verdicts``: a table's URL, or a ``VerdictStore``. ``request_format`` None: the rows are messages, each
    with one request (``message_requests``). Use ``load_requests`` for a complete input. Memory: a micro-batch and the
    conflict window on the driver.

    ``source``: where the messages come from. It belongs to the name, too: the log's record says how far it is decided,
    so that no checkpoint is needed. Without it the checkpoint belongs to the name: a stream that starts again from 0
    under a name whose log is further is refused, except that micro-batch 0 may come again with the same requests.
    """

    def __init__(
        self,
        log_url: str,
        verdicts: str | VerdictOutput,
        name: str,
        *,
        request_format: RequestFormat | None = AS_NAMED,
        source: NumberedSource | None = None,
        leading: LeadershipOptions = DEFAULT_LEADERSHIP,
        rules: PipelineRules | None = None,
        group_requests: int = GROUP_REQUESTS,
    ) -> None:
        if not 0 < len(name) <= NAME_LENGTH_MAX:
            raise InvalidRequest(
                f"an ingest needs a name of at most {NAME_LENGTH_MAX} characters",
                code=Code.BAD_CONFIGURATION,
                name=name,
            )
        if source is not None and request_format is not None:
            raise InvalidRequest(
                "a source of messages has one request in each message",
                code=Code.BAD_CONFIGURATION,
                hint="give request_format=None with a source",
                name=name,
            )
        self.counts = IngestCounts()
        self._url = log_url
        self._name = name
        self._key = record_key(name)
        self._format = request_format
        self._source = source
        self._leading = leading
        self._rules = rules or PipelineRules()
        self._group_requests = group_requests
        self._output = VerdictTable(verdicts) if isinstance(verdicts, str) else verdicts
        self._thread: StoreThread | None = None
        self._stages: Stages | None = None
        # The newest micro-batch's records when this process began to lead; None after its own first micro-batch.
        self._earlier: list[GroupRecord] | None = None
        self._before = 0  # requests of the micro-batches before the next one
        self._through = 0  # of numbered requests: the last one that the log has decided
        self._time_ms = 0  # of numbered requests: none up to that was published after it; 0: not known
        self._newest = -1  # of numbered requests: the newest micro-batch in the log, as the log counts them
        self._last: tuple[int, str] | None = None  # the newest micro-batch of this object, and its requests' digest
        self._life: tuple[int, int] = (
            0,
            0,
        )  # of the publisher of verdicts: its first micro-batch, and the requests before that
        self._written_ms: float | None = None

    @property
    def verdicts_url(self) -> str | None:
        """The URL of the table of verdicts; None where they go elsewhere."""
        return self._output.url if isinstance(self._output, VerdictTable) else None

    def micro_batch(self, frame: DataFrame, number: int) -> None:
        """Commit the requests of one micro-batch and report their verdicts. Harmless when repeated.

        Raises: Closed, Fenced, Unavailable, InvalidRequest end the stream, which can be started again. After a crash:
        the replay of the micro-batch commits the rest.
        """
        stages = self._stages or self._begin(frame.sparkSession)
        written = self._output.begin(stages.log_id, self._name)
        if self._source is not None and (not self._earlier or self._earlier[0].seqs or number > self._earlier[0].batch):
            try:
                self._decide_numbered(self._source, stages, self._requests(frame), number, written)
            except BaseException:
                self._abandon(stages)
                raise
            return
        earlier = self._earlier or []
        earlier_batch = earlier[0].batch if earlier else -1
        records = earlier if number == earlier_batch else []
        outcomes = [each for record in records for each in record.outcomes]
        if self._last is not None and number <= self._last[0]:
            # Spark repeats the last micro-batch alone, with the same requests: anything else is another checkpoint's.
            if self._last != (number, requests_digest(self._requests(frame))):
                raise older_checkpoint(number, self._last[0])
            return
        if number < written:
            if number < written - 1 or (self._earlier is not None and not self._repeats(frame, records)):
                raise older_checkpoint(number, written - 1)
            return
        if number < earlier_batch:
            raise older_checkpoint(number, earlier_batch)
        self.counts.found += len(outcomes)
        if earlier and number > earlier_batch:
            self._before += sum(len(record.outcomes) for record in earlier)
        try:
            requests = self._requests(frame)
            if not all(record.covers(requests) for record in records):
                raise older_checkpoint(number, earlier_batch)
            self._live_on(records, number)
            self._commit(stages, requests, outcomes, number)
            self._output.write(
                Judged(
                    number, self._before, *self._life, requests, outcomes, stages.durable_version, stages.leader_id
                )
            )  # fmt: skip
            self._earlier = None
            self._newest, self._through = number, int(requests[-1].order) if self._source and requests else 0
            self._before += len(requests)
            self._written_ms = now().boot_ms
            self._last = number, requests_digest(requests)
        except BaseException:
            self._abandon(stages)
            raise
        self._count(outcomes)

    def _abandon(self, stages: Stages) -> None:
        """The requests in flight are unknown now; the next leader finds them in the log."""
        stages.leadership.stop()
        self._stages = None
        if self._source is not None:
            self._source.close()

    def _decide_numbered(
        self, source: NumberedSource, stages: Stages, offered: Sequence[ParsedRequest], number: int, written: int
    ) -> None:
        """Commit the requests above ``_through``, report their verdicts, and acknowledge all that were offered.

        The messages of the newest micro-batch that the log has are acknowledged after its verdicts are durable. So it
        may lack verdicts only if one of its messages comes again, or if Spark repeats it.
        """
        fresh = [each for each in offered if int(each.order) > self._through]
        if self._time_ms and any(
            isinstance(each, MessageRequest) and int(each.order) <= self._through and each.time_ms > self._time_ms
            for each in offered
        ):
            raise other_messages(source, self._name, self._through, self._time_ms, Relation.PUT_BACK)
        earlier, again = self._earlier or [], False
        if earlier:
            numbers = {each for record in earlier for each in record.numbers()}
            again = number == earlier[0].batch or any(int(each.order) in numbers for each in offered)
            if again and earlier[0].batch >= written:
                self._report_again(source, stages, earlier)
            if again or fresh:
                self._earlier = None
                self._before += 0 if earlier[0].seqs else sum(len(record.outcomes) for record in earlier)
        outcomes: list[RequestOutcome] = []
        if fresh:
            batch = self._newest + 1
            if batch < written and (not earlier or earlier[0].seqs):
                raise table_ahead(batch, written)
            batch = max(batch, written)  # an earlier version counted micro-batches without requests in the table alone
            self._live_on((), batch)
            self._commit(stages, fresh, outcomes, batch)
            self._newest, self._through = batch, int(fresh[-1].order)
            self._output.write(
                Judged(batch, self._before, *self._life, fresh, outcomes, stages.durable_version, stages.leader_id)
            )
            self._before += len(fresh)
            self._written_ms = now().boot_ms
        if offered or again:
            # The verdicts of the newest micro-batch may be missing while only older messages have come.
            pending = self._earlier[0].numbers() if self._earlier else ()
            source.acknowledge(min(pending, default=self._through + 1) - 1)
        self._count(outcomes)

    def _report_again(self, source: NumberedSource, stages: Stages, records: Sequence[GroupRecord]) -> None:
        """Report the outcomes that ``records`` have: what was reported before is a duplicate and not taken twice."""
        numbers = [each for record in records for each in record.numbers()]
        outcomes = [each for record in records for each in record.outcomes]
        kept = source.kept(numbers[0], numbers[-1])
        requests: list[ParsedRequest] = [kept.get(each) or lost_request(each) for each in numbers]
        for record in records:
            if all(each in kept for each in record.numbers()) and not record.covers(requests):
                raise other_messages(source, self._name, self._through, self._time_ms, Relation.PUT_BACK)
        first = records[0]
        self._life = first.publisher, first.published
        self._output.write(
            Judged(
                first.batch, first.before, *self._life, requests, outcomes, stages.durable_version, stages.leader_id
            )
        )  # fmt: skip
        self._written_ms = now().boot_ms
        self.counts.found += len(outcomes)

    def _live_on(self, records: Sequence[GroupRecord], number: int) -> None:
        """Choose the publisher of this micro-batch's verdicts: what has begun keeps its own."""
        silent_ms = 0.0 if self._written_ms is None else now().boot_ms - self._written_ms
        if records:
            self._life = records[0].publisher, records[0].published
        elif self._written_ms is None or silent_ms > LIFE_SILENCE_MS:
            self._life = number, self._before

    @property
    def failure(self) -> BaseException | None:
        """What has ended the leadership between two micro-batches, for example another leader; None while it leads."""
        stages = self._stages
        return None if stages is None else stages.leadership.failure

    def lead(self, spark: SparkSession) -> str:
        """Lead the log from now on, and not from the first micro-batch on. Returns the leader id.

        Raises: Closed (another leader), Unavailable, InvalidRequest. After a crash: as ``micro_batch``.
        """
        return (self._stages or self._begin(spark)).leader_id

    def close(self) -> None:
        """Resign, so that the next leader need not wait. Harmless when nothing is led."""
        thread, stages = self._thread, self._stages
        self._thread = self._stages = None
        if thread is None:
            return
        try:
            if stages is None:
                pass
            elif stages.leadership.failure is not None:
                stages.leadership.stop()
            else:
                stages.leadership.resign()
        finally:
            if self._source is not None:
                self._source.close()
            thread.__exit__(None, None, None)

    def _begin(self, spark: SparkSession) -> Stages:
        if is_directory(self._url):
            Path(unquote(urlsplit(self._url).path)).mkdir(parents=True, exist_ok=True)
        if self._thread is None:
            self._thread = StoreThread(self._url).__enter__()
        thread = self._thread
        leadership = Leadership(thread, self._leading)
        claim = leadership.claim()
        try:
            records = self._records(spark, thread, claim)
        except (InvalidRequest, NotFound, CorruptData):
            leadership.resign()
            raise
        except BaseException:
            leadership.stop()
            raise
        self._earlier = records
        self._before = records[0].before if records else 0
        if records and records[0].seqs:
            self._before += sum(len(record.outcomes) for record in records)
        self._newest = records[0].batch if records else -1
        self._through = max((last for record in records for _, last in record.seqs), default=0)
        self._time_ms = max((record.time_ms for record in records), default=0)
        self._stages = Stages(thread, leadership, claim, self._rules)
        return self._stages

    def _records(self, spark: SparkSession, thread: StoreThread, claim: Header) -> list[GroupRecord]:
        """The records of the newest micro-batch in their order; the first one stands for those that retention removed.

        Raises: InvalidRequest (name and source do not belong together), NotFound, CorruptData, Unavailable. Cost: a
        scan of the log for a name without records among the newest objects, and one more for a new name.
        """
        records, complete = thread.start(lambda store: records_nearby(store, claim, self._key)).result()
        if not complete:
            records = records_of_log(spark, self._url, self._key)
        if not records:
            removed = thread.start(lambda store: record_in_snapshot(store, claim, self._key)).result()
            records = [] if removed is None else [removed]
        records.sort(key=lambda record: record.first)
        source = self._source
        if source is not None:
            known = records and records[-1].source is not None
            others = {} if known else thread.start(lambda store: removed_records(store, claim)).result()
            self._require_own_source(spark, source, records, others)
        if records and records[0].first > 0:
            begin, past = missing_before(records[0]) if records[0].seqs else (0, 0)
            kept = source.kept(begin, past - 1) if source is not None and begin < past else {}
            records.insert(0, lost_groups(records[0], kept))
        return records

    def _require_own_source(
        self,
        spark: SparkSession,
        source: NumberedSource,
        records: Sequence[GroupRecord],
        removed: Mapping[bytes, bytes],
    ) -> None:
        """Raise InvalidRequest unless name and source belong together in the log. Cost: a scan for a new name.

        ``removed``: the records of all names in the newest snapshot of a truncated log.
        """
        newest = records[-1] if records else None
        if newest is not None and newest.source is not None:
            through = newest.seqs[-1][1]
            relation = source.relation(newest.source, through, newest.time_ms)
            if relation is Relation.OTHER and source.is_moved:
                relation = source.relation(None, through, newest.time_ms)
            if relation is Relation.OTHER:
                raise another_source(self._name, newest.source, source.identity)
            if relation is not Relation.SAME:
                raise other_messages(source, self._name, through, newest.time_ms, relation)
            return
        for name, record in newest_records(spark, self._url, removed).items():
            if name == self._name or record.source is None:
                continue
            relation = source.relation(record.source, record.seqs[-1][1], record.time_ms)
            if relation is Relation.SAME:
                raise another_name(name, source.identity)
            if relation is Relation.PUT_BACK:
                raise other_messages(source, name, record.seqs[-1][1], record.time_ms, relation)

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
        self, stages: Stages, requests: Sequence[ParsedRequest], outcomes: list[RequestOutcome], number: int
    ) -> None:
        """Commit the requests after those in ``outcomes``, and append their outcomes."""
        while len(outcomes) < len(requests):
            groups: list[Group] = []
            first = len(outcomes)
            while first < len(requests) and len(groups) < WAVE:
                past = _group_end(requests, first, self._group_requests)
                place = self._place(number, first, requests[first:past])
                groups.append(stages.decide(requests[first:past], self._key, place))
                first = past
            stages.persist(groups)
            for group in groups:
                outcomes += group.record.outcomes

    def _place(self, number: int, first: int, group: Sequence[ParsedRequest]) -> GroupRecord:
        """The record of a group, without outcomes and digest."""
        place = GroupRecord(number, first, (), None, 1, self._before, *self._life)
        if self._source is None:
            return place
        time_ms = max((each.time_ms for each in group if isinstance(each, MessageRequest)), default=0)
        self._time_ms = max(self._time_ms, time_ms)
        seqs = ranges_of(int(each.order) for each in group)
        return msgspec.structs.replace(
            place, source=self._source.identity, seqs=seqs, time_ms=self._time_ms, after=self._through
        )

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
