"""The jobs of ``holdfast spark NAME``: start a session, run the job, and return plain values for printing.

The session is stopped in every case. Errors of the session and the job are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any, Final, Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.command_logs import log_to_standard_error
from holdfast.commit.format.batch import VERSION_JUMP
from holdfast.errors import Code, InvalidRequest, NotFound, statement_of
from holdfast.files.durable_directory import make_durable_directory
from holdfast.segments.table_location import table_location
from holdfast.spark.bulk.leadership import LeadershipOptions, require_free_log
from holdfast.spark.bulk.load import WAVE_DEFAULT, LoadOptions, load_requests
from holdfast.spark.bulk.requests import RequestFormat, stage
from holdfast.spark.bulk.resolve import look_up, resolve_requests
from holdfast.spark.bulk.sequencing import Fate, Windows
from holdfast.spark.bulk.verdicts import write_verdicts
from holdfast.spark.data_source import HoldfastDataSource
from holdfast.spark.ingest.commit_stream import commit_stream
from holdfast.spark.ingest.live_requests import LiveRequests
from holdfast.spark.ingest.micro_batches import IngestCounts
from holdfast.spark.log.audit import Verify
from holdfast.spark.log.replay import Replay
from holdfast.spark.log.runner import STEP_BYTES_DEFAULT, PipelineJob, Schedule, run_pipeline
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_write_options
from holdfast.spark.runtime.doctor import Diagnosis, diagnose
from holdfast.spark.runtime.session import java_without_sigterm, session, task_errors
from holdfast.spark.sink import give_up as sink
from holdfast.spark.sink.sending import open_client
from holdfast.spark.source.chain import log_head
from holdfast.spark.tables.buckets import History, Latest
from holdfast.spark.tables.changes import Changes
from holdfast.spark.tables.log_snapshot import snapshot_into_log
from holdfast.spark.tables.prefixes import run_tables, tables_of_prefixes
from holdfast.spark.tables.segments import SEGMENT_LOG_BYTES_MIN, Segments
from holdfast.spark.tables.snapshot import Snapshot
from holdfast.spark.tables.store_tables import StoreChanges, StoreLatest
from holdfast.spark.typed.table import RowOptions

FORMATS: Final = ("parquet", "json", "csv", "table")
_FOLDER_KINDS: Final = frozenset(
    {"file", "s3", "s3a", "abfs", "abfss", "wasb", "wasbs", "gs", "hdfs", "viewfs", "dbfs"}
)
"""The schemes of file systems that Spark and Hadoop know."""

Report: TypeAlias = Callable[[Mapping[str, object]], None]
"""Gets the names and numbers of every committed step."""
Stopping: TypeAlias = Callable[[], AbstractContextManager[Event]]
"""Entered once Spark runs, because Spark takes the signals of its process. The event ends a job after its step."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job. ``is_good`` is False when an audit found damage; ``findings`` then lists it."""

    fields: Mapping[str, object]
    findings: Sequence[Mapping[str, object]] = ()
    is_good: bool = True


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """The Spark that a command runs on: every core of this machine by default."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict[str, str])

    @contextmanager
    def session(self, name: str) -> Generator[SparkSession]:
        """A session for the command ``name``, which is stopped afterwards. Raises: InvalidRequest; the job's errors.

        Log lines of this process go to the standard error from now on: the standard output belongs to ``--json``.
        """
        log_to_standard_error()
        presets = {"spark.sql.session.timeZone": "UTC"}
        if self.remote is None:
            presets["spark.log.level"] = "ERROR"
        with java_without_sigterm():
            spark = session(f"holdfast {name}", master=self.master, remote=self.remote, conf={**presets, **self.conf})
        if self.remote is not None:
            # A server of Spark Connect may have been started without this package in sight of its driver.
            spark.dataSource.register(HoldfastDataSource)
        try:
            with task_errors():
                yield spark
        finally:
            spark.stop()


_TABLES: Final[Mapping[str, Callable[[SparkSession, str, str, Mapping[str, int], RowOptions], PipelineJob]]] = {
    "changes": lambda spark, log, to, _, rows: Changes(spark, log, to, rows=rows),
    "latest": lambda spark, log, to, options, rows: Latest(spark, log, to, buckets=options.get("buckets"), rows=rows),
    "history": lambda spark, log, to, options, rows: History(spark, log, to, buckets=options.get("buckets"), rows=rows),
}
_JOBS: Final[Mapping[str, Callable[[SparkSession, str, str, Mapping[str, int]], PipelineJob]]] = {
    "replay": lambda spark, log, to, options: Replay(spark, log, to, after=options.get("after", 0)),
    "segments": lambda spark, log, to, options: Segments(
        spark, log, to, log_bytes_min=options.get("log_bytes_min", SEGMENT_LOG_BYTES_MIN)
    ),
    "snapshot": lambda spark, log, to, _: Snapshot(spark, log, to),
    "verify": lambda spark, log, to, _: Verify(spark, log, to),
}


@dataclass(frozen=True, slots=True)
class StoreSource:
    """The messages of a durable: the address of the service, the store, and the durable."""

    service: str
    store: str
    durable: str

    def job(self, name: str, spark: SparkSession, to: str, options: Mapping[str, int]) -> PipelineJob:
        """The pipeline of this name."""
        if name == "changes":
            return StoreChanges(spark, self.service, self.store, self.durable, to)
        return StoreLatest(spark, self.service, self.store, self.durable, to, buckets=options.get("buckets"))


def run_job(
    name: str,
    log: str | StoreSource,
    to: str,
    target: SparkTarget,
    schedule: tuple[float | None, int | None],
    options: Mapping[str, int],
    stopping: Stopping,
    report: Report,
    rows: Mapping[str, object] | None = None,
) -> JobResult:
    """Run the pipeline of this name. ``schedule``: seconds between passes, and the last version; see ``Schedule``.

    ``rows`` are the arguments of ``RowOptions`` that were given, and ``table_per_prefix``. Of a store, a version is the
    number of a message. Raises: InvalidRequest, Conflict, NotFound, CorruptData, Unavailable.
    """
    when = Schedule(*schedule)
    given = dict(rows or {})
    is_per_prefix = bool(given.pop("table_per_prefix", False))
    chosen = _row_options(given)
    if is_per_prefix and isinstance(log, str):
        return _run_per_prefix(name, log, to, target, when, options, stopping, report, chosen)
    with target.session(name) as spark, stopping() as stop:
        if isinstance(log, StoreSource):
            job = log.job(name, spark, to, options)
            log = f"{log.service}/{log.store}/{log.durable}"
        elif name in _TABLES:
            job = _TABLES[name](spark, log, to, options, chosen)
        else:
            job = _JOBS[name](spark, log, to, options)
        try:
            run = run_pipeline(
                job,
                log,
                to,
                schedule=when,
                step_bytes=options.get("step_bytes", STEP_BYTES_DEFAULT),
                vacuum_hours=options.get("vacuum_hours"),
                stop=stop,
                progress=lambda step: report(step.fields()),
            )
        finally:
            if isinstance(job, Replay):
                job.close()
    if not isinstance(job, Verify):
        return JobResult(run.fields())
    audit = job.audit
    fields = {**run.fields(), **asdict(audit.counts), "findings": len(audit.findings), "verified": audit.verified}
    return JobResult(fields, [asdict(each) for each in audit.findings], is_good=job.is_good(run.version))


def snapshot_of_log(log: str, target: SparkTarget, at: int | None) -> JobResult:
    """Make a snapshot in the log's own store. Raises: as ``snapshot_into_log``."""
    with target.session("snapshot") as spark:
        manifest = snapshot_into_log(spark, log, at)
    return JobResult({
        "version": manifest.version, "rows": manifest.rows, "bytes": manifest.size, "parts": len(manifest.parts),
    })  # fmt: skip


def _run_per_prefix(
    name: str,
    log: str,
    to: str,
    target: SparkTarget,
    when: Schedule,
    options: Mapping[str, int],
    stopping: Stopping,
    report: Report,
    rows: RowOptions,
) -> JobResult:
    """Run the pipeline for each prefix. The findings are one line per table."""
    places = tables_of_prefixes(rows, to)
    with target.session(name) as spark, stopping() as stop:
        jobs = [(url, _TABLES[name](spark, log, url, options, of)) for url, of in places]
        reports = run_tables(
            jobs,
            log,
            schedule=when,
            step_bytes=options.get("step_bytes", STEP_BYTES_DEFAULT),
            stop=stop,
            progress=lambda url, step: report({"output": url.partition("?")[0], **step.fields()}),
        )
    tables = [each.fields() for each in reports]
    shown = ("output", "version", "behind_versions", "steps", "rows", "rows_quarantined", "seconds")
    totals = {"pipeline": name, "log": log.partition("?")[0], "output": to.partition("?")[0], "tables": len(tables)}
    return JobResult(totals, [{each: table[each] for each in shown} for table in tables])


def _row_options(given: Mapping[str, object]) -> RowOptions:
    """The options of rows as the command line has them: prefixes are texts, and a schema may be the path of a file."""
    texts = {name: value for name, value in given.items() if value is not None}
    for name in ("schema", "key_schema"):
        if name in texts and Path(str(texts[name])).is_file():
            texts[name] = Path(str(texts[name])).read_text(encoding="utf-8")
    prefixes = texts.pop("key_prefixes", None)
    chosen = tuple(str(each).encode() for each in prefixes) if isinstance(prefixes, list) else ()
    return RowOptions(chosen, **texts)  # type: ignore[arg-type]  # typer has made the types


def doctor(log: str | None, to: str | None) -> JobResult:
    """Whether jobs can run here: one finding per check. ``is_good`` unless one of them is bad.

    The output gets the objects of a probe, which are removed again; an absent directory is created, as a job would.
    """
    checks = diagnose(log)
    if to is not None:
        checks.append(_output_access(to))
    return JobResult({}, [asdict(each) for each in checks], is_good=all(each.verdict != "bad" for each in checks))


def _output_access(to: str) -> Diagnosis:
    try:
        location = table_location(to)
        if location.uri.startswith("/"):
            make_durable_directory(location.uri)
    except (InvalidRequest, OSError) as error:
        fix = error.hint if isinstance(error, InvalidRequest) else ""
        return Diagnosis("output", "bad", statement_of(error), fix or "name a place that this user may write to")
    return replace(diagnose(to, writes=True)[-1], check="output")


def give_up(
    service: str, application: str, write: str, staging_location: str | None, show: Callable[[JobResult], None]
) -> None:
    """Give up the unfinished write of an application, and ``show`` what is known of its rows before that is forgotten.

    Raises: as ``sink.give_up``, InvalidRequest.
    """
    named, _, store = application.partition("@")
    given = {"url": service, "application": named, "stagingLocation": staging_location, "store": store or None}
    options = parse_write_options({name: text for name, text in given.items() if text is not None}, Mode.BATCH)
    with open_client(options) as client:
        rows = sink.give_up(client, options, write)
        transactions = {
            known: sum(each.last - each.first + 1 for each in rows if each.known == known)
            for known in ("committed", "not committed", "undecidable")
        }
        show(JobResult({"application": application, "write": write, **transactions}, [asdict(each) for each in rows]))
        sink.forget(client, options, write)


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
            reader = spark.read.format(self.format).option("header", "true")  # which only CSV has
            return self._in_types(reader.schema(self.schema).load(self.path) if self.schema else reader.load(self.path))

    def require_folder(self) -> None:
        """Raise InvalidRequest unless the path may be a folder: a local one exists, and a URL is of a known kind."""
        kind, found, _ = self.path.partition("://")
        if self.format == "table" or any(sign in self.path for sign in "*?[{"):
            return
        if found and kind not in _FOLDER_KINDS:
            raise InvalidRequest(
                "not a place from which an ingest reads",
                code=Code.BAD_CONFIGURATION,
                hint="give store:URL/STORE/DURABLE, queue:PATH, a folder or its URL, or a table (--format table)",
                given=self.path,
                kinds=", ".join(sorted(_FOLDER_KINDS)),
            )
        if found and kind != "file":
            return
        folder = Path(self.path.removeprefix("file://").removeprefix("file:"))
        if folder.is_file():
            raise InvalidRequest(
                "an ingest reads the files that appear in a folder, and this is a file",
                code=Code.BAD_CONFIGURATION,
                hint=f"give its folder, {folder.parent}, or use `holdfast spark load` for one file",
                path=self.path,
            )
        if not folder.is_dir():
            raise InvalidRequest("there is no such folder of requests", code=Code.BAD_CONFIGURATION, path=self.path)

    def stream(self, spark: SparkSession, files_at_once: int | None) -> DataFrame:
        """The rows of files that appear in a folder, as a stream. Raises: InvalidRequest."""
        if self.format == "table":
            return spark.readStream.table(self.path)
        reader = spark.readStream.format(self.format).option("header", "true")
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


def _require_log(url: str) -> None:
    """Raise NotFound unless the log exists: a mistyped URL must not become a new log."""
    try:
        log_head(url)
    except NotFound as error:
        raise NotFound(
            "there is no log at this URL",
            code=error.code,
            hint="correct --log, or give --init, which makes a new log",
            log=url.partition("?")[0],
        ) from error


@dataclass(frozen=True, slots=True)
class BulkCommand:
    """One job on requests, and the Spark that it runs on (every core of this machine by default)."""

    source: RequestSource
    to: str
    log: str | None = None
    name: str | None = None
    window: int | None = None
    partitions: int = 8
    judging_bytes_max: int | None = None
    wave: int = WAVE_DEFAULT
    take_over: bool = False
    step_down: bool = False
    token: str | None = None
    listen: str | None = None
    spark: SparkTarget = SparkTarget()

    def resolve(self, base: int | None, report: Report) -> JobResult:
        """The verdicts that a leader would give, as a table; nothing is committed.

        The leader starts at ``base``; by default at that of the next leader of ``log``, or of a new log. Raises:
        InvalidRequest, NotFound, CorruptData, Unavailable.
        """
        table_location(self.to)  # before the work
        with self.spark.session("resolve") as spark:
            through = 0 if self.log is None else log_head(self.log).version
            start = base if base is not None else through + VERSION_JUMP
            staged = stage(self.source.read(spark), self.source.request_format(), partitions=self.partitions)
            try:
                report({"step": "stage", "requests": staged.requests, "items": staged.items})
                windows = Windows.trailing(staged.requests, self.window)
                resolution = resolve_requests(staged, start, windows=windows, judging_bytes_max=self.judging_bytes_max)
                report({"step": "resolve", "kernel_seconds": round(resolution.kernel_seconds, 3)})
                if self.log is not None:
                    resolution = look_up(spark, self.log, staged, resolution, through)
                write_verdicts(
                    staged, resolution, lambda ordinals: start + ordinals, self.to,
                    made_by="resolve", identity=f"{staged.digest}/{start}/{self.window}",
                )  # fmt: skip
            finally:
                staged.release()
        return JobResult(
            {
                "pipeline": "resolve",
                "base": resolution.base,
                "requests": staged.requests,
                "items": staged.items,
                "kernel_seconds": round(resolution.kernel_seconds, 3),
                **{fate.name.lower(): resolution.count(fate) for fate in Fate if fate is not Fate.PENDING},
            }
        )

    def load(self, report: Report) -> JobResult:
        """Commit the requests. Raises: as ``load_requests``."""

        def step(name: str, facts: Mapping[str, object]) -> None:
            report({"step": name, **facts})

        options = LoadOptions(
            request_format=self.source.request_format(),
            name=self.name,
            window=self.window,
            wave=self.wave,
            partitions=self.partitions,
            judging_bytes_max=self.judging_bytes_max,
            direct=self.source.format != "table",  # files have the same rows each time, a table may be a view
            leading=self._leading,
        )
        require_free_log(self._log(), options.leading)
        with self.spark.session("load") as spark:
            loaded = load_requests(spark, self.source.read(spark), self._log(), self.to, options, step=step)
        facts = {name: round(each, 3) if isinstance(each, float) else each for name, each in asdict(loaded).items()}
        return JobResult({"pipeline": "load", "log": self._log().partition("?")[0], **facts})

    def ingest(
        self,
        live: Mapping[str, Any],
        checkpoint: str,
        stopping: Stopping,
        report: Report,
        *,
        every_seconds: float | None,
        may_init: bool,
    ) -> JobResult:
        """Commit the requests that exist now, or new ones without end with ``every_seconds``.

        ``live``: the arguments of ``LiveRequests``, apart from the source. ``may_init``: make the log if there is none.
        What can be checked without Spark is checked before it starts. Raises: as Ingest.
        """
        if self.spark.remote is not None:
            raise InvalidRequest(
                "an ingest leads the log from its own process, which Spark Connect does not run it in",
                code=Code.BAD_CONFIGURATION,
                hint="give --master instead of --remote",
            )
        leading = self._leading
        requests = LiveRequests(self.source.path, **live)
        verdicts = requests.verdicts()
        if not may_init:
            _require_log(self._log())
        requests.require_another_log(self._log())
        require_free_log(self._log(), leading)
        requests.prepare(self._log())
        if requests.options is None:
            self.source.require_folder()
        with self.spark.session("ingest") as spark, stopping() as stop:
            if stop.is_set():  # while Spark started
                return JobResult({"pipeline": "ingest", "log": self._log().partition("?")[0], **asdict(IngestCounts())})
            messages = requests.stream(spark)
            stream = commit_stream(
                self.source.stream(spark, requests.at_once) if messages is None else messages,
                self._log(), verdicts, self.name or "", checkpoint,
                request_format=self.source.request_format() if messages is None else None,
                source=requests.numbered(), leading=leading, every_seconds=every_seconds, report=report,
            )  # fmt: skip
            try:
                stream.wait(stop)
            finally:
                stream.stop()
        return JobResult({"pipeline": "ingest", "log": self._log().partition("?")[0], **asdict(stream.counts)})

    @property
    def _leading(self) -> LeadershipOptions:
        return LeadershipOptions(self.take_over, token=self.token, step_down=self.step_down, listen=self.listen)

    def _log(self) -> str:
        if self.log is None:
            raise InvalidRequest("which log?", code=Code.BAD_CONFIGURATION, hint="give --log")
        return self.log
