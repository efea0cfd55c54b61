"""What ``holdfast spark resolve``, ``load`` and ``ingest`` run: a session, the job, and what came of it as values.

Owns: reading the input, and the session around one run. Does not own: options and printing (``cli``), the jobs.

Failure model: raises what the session and the job raise. The session is stopped whatever happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import VERSION_JUMP
from holdfast.errors import Code, InvalidRequest
from holdfast.spark.bulk.ingest import Ingest
from holdfast.spark.bulk.load import WAVE_DEFAULT, LoadOptions, load_requests
from holdfast.spark.bulk.looked_up import look_up
from holdfast.spark.bulk.reign import BulkLeading
from holdfast.spark.bulk.request_frame import RequestFormat
from holdfast.spark.bulk.resolve import Resolution, resolve_requests
from holdfast.spark.bulk.sequencing import Fate, Windows
from holdfast.spark.bulk.staging import stage
from holdfast.spark.bulk.verdict_table import write_verdicts
from holdfast.spark.log.increments import log_head
from holdfast.spark.log.task_errors import task_errors
from holdfast.spark.runtime.command_session import command_session
from holdfast.spark.tables.command import Made, Told

__all__ = ["BulkCommand", "RequestSource"]

FORMATS: Final = ("parquet", "json", "csv", "table")
POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class RequestSource:
    """Where requests are: files of a format at a path, or a table by its name."""

    path: str
    format: str = "parquet"
    order_by: str = "order"
    text: Literal["utf8", "base64"] = "utf8"
    schema: str | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InvalidRequest(
                "not a format of requests", code=Code.BAD_CONFIGURATION, format=self.format, valid=", ".join(FORMATS)
            )

    def request_format(self) -> RequestFormat:
        """How the rows are read."""
        return RequestFormat(self.order_by, self.text)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows. Raises: InvalidRequest."""
        with task_errors():
            if self.format == "table":
                return spark.table(self.path)
            reader = spark.read.format(self.format)
            if self.format == "csv":
                reader = reader.option("header", "true")
            return self._in_types(reader.schema(self.schema).load(self.path) if self.schema else reader.load(self.path))

    def stream(self, spark: SparkSession, files_at_once: int | None) -> DataFrame:
        """The rows of files that appear in a folder, as a stream. Raises: InvalidRequest."""
        if self.format == "table":
            return spark.readStream.table(self.path)
        reader = spark.readStream.format(self.format)
        if self.format == "csv":
            reader = reader.option("header", "true")
        if files_at_once is not None:
            reader = reader.option("maxFilesPerTrigger", str(files_at_once))
        schema = self.schema
        if schema is None:
            # The files that are there say what those to come look like.
            schema = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in self.read(spark).schema)
        return self._in_types(reader.schema(schema).load(self.path))

    def _in_types(self, frame: DataFrame) -> DataFrame:
        """A CSV file has texts only; its order is a whole number."""
        if self.format == "csv" and self.order_by in frame.columns:
            return frame.withColumn(self.order_by, F.col(self.order_by).cast("decimal(38,0)"))
        return frame


@dataclass(frozen=True, slots=True)
class BulkCommand:
    """One job on requests, and the Spark that it runs on (every core of this machine by default)."""

    source: RequestSource
    to: str
    log: str | None = None
    name: str | None = None
    window: int | None = None
    partitions: int = 8
    ranges: int | None = None
    wave: int = WAVE_DEFAULT
    take_over: bool = False
    token: str | None = None
    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict[str, str])

    def resolve(self, base: int | None, told: Told) -> Made:
        """The verdicts that a leader would give, as a table; nothing is committed.

        The leader starts at ``base``; by default at that of the next leader of ``log``, or of a new log. Raises:
        InvalidRequest, NotFound, CorruptData, Unavailable.
        """
        return self._on_spark("resolve", lambda spark: self._resolve(spark, base, told))

    def load(self, told: Told) -> Made:
        """Commit the requests. Raises: as ``load_requests``."""

        def step(name: str, facts: Mapping[str, object]) -> None:
            told({"step": name, **facts})

        def work(spark: SparkSession) -> Made:
            options = LoadOptions(
                request_format=self.source.request_format(),
                name=self.name,
                window=self.window,
                wave=self.wave,
                partitions=self.partitions,
                resolve_partitions=self.ranges,
                take_over=self.take_over,
                token=self.token,
            )
            report = load_requests(spark, self.source.read(spark), self._log(), self.to, options, step=step)
            return Made({"pipeline": "load", "log": self._log().partition("?")[0], **_rounded(asdict(report))})

        return self._on_spark("load", work)

    def ingest(
        self,
        checkpoint: str,
        stopping: Callable[[], AbstractContextManager[Event]],
        told: Told,
        *,
        every_seconds: float | None,
        files_at_once: int | None,
    ) -> Made:
        """Commit requests as they come: those that are there, or for ever with ``every_seconds``. Raises: as Ingest."""

        def work(spark: SparkSession) -> Made:
            with stopping() as stop:
                return self._ingest(spark, checkpoint, stop, told, every_seconds, files_at_once)

        return self._on_spark("ingest", work)

    def _on_spark(self, name: str, work: Callable[[SparkSession], Made]) -> Made:
        spark = command_session(name, self.master, self.remote, self.conf)
        try:
            return work(spark)
        finally:
            spark.stop()

    def _log(self) -> str:
        if self.log is None:
            raise InvalidRequest("which log?", code=Code.BAD_CONFIGURATION, hint="give --log")
        return self.log

    def _resolve(self, spark: SparkSession, base: int | None, told: Told) -> Made:
        through = 0 if self.log is None else log_head(self.log).version
        start = base if base is not None else through + VERSION_JUMP
        staged = stage(self.source.read(spark), self.source.request_format(), partitions=self.partitions)
        try:
            told({"step": "stage", "requests": staged.requests, "items": staged.items})
            windows = Windows.trailing(staged.requests, self.window)
            resolution = resolve_requests(staged, start, windows=windows, partitions=self.ranges)
            told({"step": "resolve", "rounds": resolution.rounds, "residue": list(resolution.residue)})
            if self.log is not None:
                resolution = look_up(spark, self.log, staged, resolution, through)
            write_verdicts(
                spark, staged, resolution, lambda ordinals: start + ordinals, self.to,
                made_by="resolve", identity=f"{staged.digest}/{start}/{self.window}",
            )  # fmt: skip
            return Made(_resolved(resolution, staged.requests, staged.items))
        finally:
            staged.release()

    def _ingest(
        self,
        spark: SparkSession,
        checkpoint: str,
        stop: Event,
        told: Told,
        every_seconds: float | None,
        files_at_once: int | None,
    ) -> Made:
        if self.remote is not None:
            raise InvalidRequest(
                "an ingest leads the log from its own process, which Spark Connect does not run it in",
                code=Code.BAD_CONFIGURATION,
                hint="give --master instead of --remote",
            )
        leading = BulkLeading(take_over=self.take_over, token=self.token)
        name = self.name or ""
        ingest = Ingest(self._log(), self.to, name, request_format=self.source.request_format(), leading=leading)

        def micro_batch(frame: DataFrame, number: int) -> None:
            try:
                ingest.micro_batch(frame, number)
            except Exception as error:
                failures.append(error)
                raise
            told({"step": "micro_batch", "number": number, **asdict(ingest.counts)})

        failures: list[Exception] = []
        writer = self.source.stream(spark, files_at_once).writeStream.foreachBatch(micro_batch)
        writer = writer.option("checkpointLocation", checkpoint)
        try:
            if every_seconds is None:
                query = writer.trigger(availableNow=True).start()
            else:
                query = writer.trigger(processingTime=f"{every_seconds} seconds").start()
            try:
                while query.isActive and not stop.wait(POLL_SECONDS):
                    pass
            finally:
                query.stop()
            if failures:
                raise failures[-1]
            with task_errors():
                failure = query.exception()
                if failure is not None:
                    raise failure
        finally:
            ingest.close()
        return Made({"pipeline": "ingest", "log": self._log().partition("?")[0], **asdict(ingest.counts)})


def _rounded(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()}


def _resolved(resolution: Resolution, requests: int, items: int) -> dict[str, object]:
    return {
        "pipeline": "resolve",
        "base": resolution.base,
        "requests": requests,
        "items": items,
        "rounds": resolution.rounds,
        "residue": list(resolution.residue),
        "kernel_seconds": round(resolution.kernel_seconds, 3),
        **{fate.name.lower(): resolution.count(fate) for fate in Fate if fate is not Fate.PENDING},
    }
