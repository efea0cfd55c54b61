"""``ingest``: the four commit stages on a stream of commit requests, micro-batch by micro-batch.

Exactly once, by crash. (1) Before a group is durable: nothing was reported, and its requests come again. (2) After: the
record has the outcomes. (3) Between the log and the verdicts: as 2; the verdicts are taken once (``verdict_output``).
(4) Between the verdicts and the acknowledgement: the record says through which number its source is decided, and lower
ones are left out. (5) Before Spark's checkpoint has the micro-batch: it comes again, perhaps without messages.
A run leads before it reads records, so an older run can add nothing after that. A crash costs the conflict window:
older read versions are then ``too_old``. Without a ``source``, 4 and 5 rest on Spark's checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from threading import Event
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.errors import AlreadyOpen, CorruptData, InvalidRequest, NotFound
from holdfast.files.durable_directory import make_durable_directory
from holdfast.files.file_urls import path_of
from holdfast.spark.bulk.leadership import DEFAULT_LEADERSHIP, JobLeadership, LeadershipOptions
from holdfast.spark.bulk.requests import (
    AS_NAMED,
    ParsedRequest,
    RequestFormat,
    in_order,
    pack,
    parsed_requests,
)
from holdfast.spark.ingest.micro_batches import CheckpointedIngest, IngestCounts, MicroBatches, NumberedIngest, Stages
from holdfast.spark.ingest.numbered_source import NumberedSource, message_requests
from holdfast.spark.ingest.record import find_records
from holdfast.spark.ingest.verdict_output import VerdictOutput, VerdictTable
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import StoreThread, is_directory

GROUP_REQUESTS: Final = 5_000
assert GROUP_REQUESTS < 1_000_000, "a wave of groups stays far below the bound on versions that are not durable"
NAME_LENGTH_MAX: Final = 128


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
        group_requests: int = GROUP_REQUESTS,
    ) -> None:
        if not 0 < len(name) <= NAME_LENGTH_MAX:
            raise bad_configuration(f"an ingest needs a name of at most {NAME_LENGTH_MAX} characters", name=name)
        if source is not None and request_format is not None:
            raise bad_configuration(
                "a source of messages has one request in each message",
                hint="give request_format=None with a source",
                name=name,
            )
        self._url = log_url
        self._name = name
        self._format = request_format
        self._source = source
        self._leading = leading
        self._output = VerdictTable(verdicts) if isinstance(verdicts, str) else verdicts
        self._thread: StoreThread | None = None
        self._stages: Stages | None = None
        self._batches = MicroBatches(name, source, self._output, group_requests=group_requests)
        self._protocol = (
            CheckpointedIngest(self._batches) if source is None else NumberedIngest(name, source, self._batches)
        )

    @property
    def counts(self) -> IngestCounts:
        """What this object has done."""
        return self._batches.counts

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
        try:
            self._protocol.decide(self._requests(frame), number, written)
        except BaseException:
            if self._source is not None:  # what it has acknowledged, and which durable has the name, is unknown now
                self._source.close()
            if self._batches.in_flight or self._source is not None:
                self._abandon(stages)
            raise

    def _abandon(self, stages: Stages) -> None:
        """The requests in flight are unknown now; the next leader finds them in the log."""
        stages.leadership.stop()
        self._stages = None

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
            thread.close()

    def _begin(self, spark: SparkSession) -> Stages:
        if is_directory(self._url):
            make_durable_directory(str(path_of(self._url)))
        if self._thread is None:
            self._thread = StoreThread(self._url)
        thread = self._thread
        leadership = JobLeadership(thread, self._leading)
        claim = leadership.claim()
        try:
            records = find_records(spark, thread, claim, self._url, self._name, self._source)
            if self._source is not None:
                self._source.attach(f"{claim.log_id.hex()}/{self._name}")
        except (InvalidRequest, NotFound, CorruptData, AlreadyOpen):
            if self._source is not None:
                self._source.close()
            leadership.resign()
            raise
        except BaseException:
            leadership.stop()
            raise
        self._stages = Stages(thread, leadership, claim, PipelineRules())
        self._batches.resume(self._stages, records)
        return self._stages

    def _requests(self, frame: DataFrame) -> list[ParsedRequest]:
        """The requests of the micro-batch in their order. Raises: InvalidRequest."""
        request_format = self._format
        if request_format is None:
            return message_requests(frame)

        def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for chunk in pack(batches, request_format):
                encoded = [msgspec.msgpack.encode(request) for request in parsed_requests(chunk)]
                yield pa.RecordBatch.from_arrays([pa.array(encoded, pa.binary())], ["request"])

        with task_errors():
            rows = in_order(frame, request_format, 1).mapInArrow(parse, "request binary").toArrow()
        decoder = msgspec.msgpack.Decoder(ParsedRequest)
        return [decoder.decode(data) for data in rows["request"].to_pylist()]


POLL_SECONDS: Final = 0.2

Report = Callable[[Mapping[str, object]], None]
"""Gets, after each micro-batch: its number, its requests, the seconds that they took, the time, and all counts."""


class CommitStream:
    """A running query that commits. ``wait`` for its end, and ``stop`` it in any case: that resigns the log."""

    def __init__(self, spark: SparkSession, ingest: Ingest, query: StreamingQuery, failures: list[Exception]) -> None:
        self.query = query
        self._spark = spark
        self._ingest = ingest
        self._failures = failures

    @property
    def counts(self) -> IngestCounts:
        """What it has done since it was started."""
        return self._ingest.counts

    def verdicts(self) -> DataFrame:
        """The verdicts as a stream of rows: a row for each request, from the first on; columns as in ``verdicts``.

        Raises: InvalidRequest (they go to a store, or there are none yet).
        """
        url = self._ingest.verdicts_url
        if url is None:
            raise bad_configuration(
                "the verdicts are messages of a store",
                hint="read them with the options url, store and durable, and shape=messages",
            )
        return self._spark.readStream.format("holdfast").option("table", url).load()

    def wait(self, stop: Event | None = None) -> None:
        """Return when the query has ended, or ``stop`` is set. Raises: what ended the query, or the leadership."""
        while self.query.isActive and not (stop or _NEVER).wait(POLL_SECONDS):
            failure = self._ingest.failure
            if failure is not None and not self._failures:
                raise failure
        if self._failures:
            raise self._failures[-1]
        with task_errors():
            failure = self.query.exception()
            if failure is not None:
                raise failure

    def stop(self) -> None:
        """Stop the query and resign. What is not answered comes again at the next start."""
        try:
            self.query.stop()
        finally:
            self._ingest.close()


_NEVER: Final = Event()


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def commit_stream(
    requests: DataFrame,
    log: str,
    verdicts: str | VerdictOutput,
    name: str,
    checkpoint: str,
    *,
    request_format: RequestFormat | None = AS_NAMED,
    source: NumberedSource | None = None,
    leading: LeadershipOptions = DEFAULT_LEADERSHIP,
    every_seconds: float | None = None,
    report: Report = lambda _: None,
) -> CommitStream:
    """Begin to commit what the stream ``requests`` brings, each row one request; see ``RequestFormat`` and ``Ingest``.

    The rows may come from anything that Spark reads as a stream: files, Kafka, a table, a queue, a message store.

    ``verdicts``: the URL of a table, or a ``VerdictStore``. ``name`` and ``checkpoint`` belong together permanently.
    ``request_format`` None: each row is a message with one request; ``source``: where they come from, see ``Ingest``.
    ``every_seconds``: the time from the beginning of one micro-batch to that of the next, 0 for at once; by default the
    query ends when it has taken all that exists now. Raises: InvalidRequest. After a crash: a start with the same
    arguments answers each request exactly once.
    """
    ingest = Ingest(log, verdicts, name, request_format=request_format, source=source, leading=leading)
    failures: list[Exception] = []

    def micro_batch(frame: DataFrame, number: int) -> None:
        began, before = time.monotonic(), ingest.counts.requests
        try:
            ingest.micro_batch(frame, number)
        except Exception as error:
            failures.append(error)
            raise
        report(
            {
                "step": "micro_batch",
                "number": number,
                "requests_in": ingest.counts.requests - before,
                "seconds": round(time.monotonic() - began, 3),
                "at": _utc_now(),
                **asdict(ingest.counts),
            }
        )

    writer = requests.writeStream.foreachBatch(micro_batch).option("checkpointLocation", checkpoint)
    if every_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{every_seconds} seconds")
    try:
        if every_seconds is not None:
            report({"step": "leads", "leader_id": ingest.lead(requests.sparkSession), "at": _utc_now()})
        return CommitStream(requests.sparkSession, ingest, writer.start(), failures)
    except BaseException:
        ingest.close()
        raise
