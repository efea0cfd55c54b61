"""The jobs of ``holdfast spark NAME``: start a session, run the job, and return plain values for printing.

The session is stopped in every case. Errors of the session and the job are raised.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final, Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.command_logs import log_to_standard_error
from holdfast.commit.format.batch import VERSION_JUMP
from holdfast.errors import InvalidRequest, NotFound, statement_of
from holdfast.files.durable_directory import make_durable_directory
from holdfast.segments.table_location import table_location
from holdfast.spark.bulk.leadership import LeadershipOptions, require_free_log
from holdfast.spark.bulk.load import LoadOptions, load_requests
from holdfast.spark.bulk.requests import RequestFormat, stage
from holdfast.spark.bulk.resolve import look_up, resolve_requests
from holdfast.spark.bulk.sequencing import Fate, Windows
from holdfast.spark.bulk.verdicts import write_verdicts
from holdfast.spark.data_source import HoldfastDataSource
from holdfast.spark.ingest.ingest import commit_stream
from holdfast.spark.ingest.live_requests import LiveRequests
from holdfast.spark.ingest.micro_batches import IngestCounts
from holdfast.spark.log.audit import Verify
from holdfast.spark.log.replay import Replay
from holdfast.spark.log.runner import STEP_BYTES_DEFAULT, PipelineJob, RunReport, Schedule, StepReport, run_pipeline
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_write_options
from holdfast.spark.runtime.doctor import Diagnosis, diagnose
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.session import java_without_sigterm, session, task_errors
from holdfast.spark.sink import give_up as sink
from holdfast.spark.sink.writer import open_client
from holdfast.spark.source.chain import log_head
from holdfast.spark.tables.buckets import History, Latest
from holdfast.spark.tables.changes import Changes
from holdfast.spark.tables.newest import Snapshot, snapshot_into_log
from holdfast.spark.tables.segments import SEGMENT_LOG_BYTES_MIN, Segments
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


_JOBS: Final[Mapping[str, Callable[[SparkSession, str, str, Mapping[str, int], RowOptions], PipelineJob]]] = {
    "changes": lambda spark, log, to, _, rows: Changes(spark, log, to, rows=rows),
    "latest": lambda spark, log, to, options, rows: Latest(spark, log, to, buckets=options.get("buckets"), rows=rows),
    "history": lambda spark, log, to, options, rows: History(spark, log, to, buckets=options.get("buckets"), rows=rows),
    "replay": lambda spark, log, to, options, _: Replay(spark, log, to, after=options.get("after", 0)),
    "segments": lambda spark, log, to, options, _: Segments(
        spark, log, to, log_bytes_min=options.get("log_bytes_min", SEGMENT_LOG_BYTES_MIN)
    ),
    "snapshot": lambda spark, log, to, _, __: Snapshot(spark, log, to),
    "verify": lambda spark, log, to, _, __: Verify(spark, log, to),
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
    source: str | StoreSource,
    to: str,
    target: SparkTarget,
    schedule: tuple[float | None, int | None],
    options: Mapping[str, int],
    stopping: Stopping,
    report: Report,
    rows: Mapping[str, object],
) -> JobResult:
    """Run the pipeline of this name. ``schedule``: seconds between passes, and the last version; see ``Schedule``.

    ``rows`` are the arguments of ``RowOptions`` that were given, and ``table_per_prefix``. Of a store, a version is the
    number of a message. Raises: InvalidRequest, Conflict, NotFound, CorruptData, Unavailable.
    """
    when, step_bytes = Schedule(*schedule), options.get("step_bytes", STEP_BYTES_DEFAULT)
    chosen = _row_options({name: value for name, value in rows.items() if name != "table_per_prefix"})
    places = tables_of_prefixes(chosen, to) if rows.get("table_per_prefix") else None
    with target.session(name) as spark, stopping() as stop:
        if isinstance(source, StoreSource):
            job, log = source.job(name, spark, to, options), f"{source.service}/{source.store}/{source.durable}"
        elif places is not None:
            jobs = [(url, _JOBS[name](spark, source, url, options, of)) for url, of in places]

            def progress(url: str, step: StepReport) -> None:
                report({"output": url.partition("?")[0], **step.fields()})

            reports = run_tables(jobs, source, schedule=when, step_bytes=step_bytes, stop=stop, progress=progress)
            return _result_per_prefix(name, source, to, reports)
        else:
            job, log = _JOBS[name](spark, source, to, options, chosen), source
        try:
            run = run_pipeline(
                job,
                log,
                to,
                schedule=when,
                step_bytes=step_bytes,
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


def _result_per_prefix(name: str, log: str, to: str, reports: Sequence[RunReport]) -> JobResult:
    """The findings are one line per table."""
    tables = [each.fields() for each in reports]
    shown = ("output", "version", "behind_versions", "steps", "rows", "rows_quarantined", "seconds")
    totals = {"pipeline": name, "log": log.partition("?")[0], "output": to.partition("?")[0], "tables": len(tables)}
    return JobResult(totals, [{each: table[each] for each in shown} for table in tables])


def _row_options(values: Mapping[str, object]) -> RowOptions:
    """The options of rows as the command line has them: prefixes are texts, and a schema may be the path of a file."""
    texts = {name: value for name, value in values.items() if value is not None}
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
    format: str
    order_by: str
    text: Literal["utf8", "base64"]
    schema: str | None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise bad_configuration("not a format of requests", format=self.format, valid=", ".join(FORMATS))

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
            raise bad_configuration(
                "not a place from which an ingest reads",
                hint="give store:URL/STORE/DURABLE, queue:PATH, a folder or its URL, or a table (--format table)",
                given=self.path,
                kinds=", ".join(sorted(_FOLDER_KINDS)),
            )
        if found and kind != "file":
            return
        folder = Path(self.path.removeprefix("file://").removeprefix("file:"))
        if folder.is_file():
            raise bad_configuration(
                "an ingest reads the files that appear in a folder, and this is a file",
                hint=f"give its folder, {folder.parent}, or use `holdfast spark load` for one file",
                path=self.path,
            )
        if not folder.is_dir():
            raise bad_configuration("there is no such folder of requests", path=self.path)

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


def resolve(
    source: RequestSource,
    target: SparkTarget,
    report: Report,
    *,
    to: str,
    log: str | None,
    base: int | None,
    window: int | None,
    partitions: int,
    judging_bytes_max: int | None,
) -> JobResult:
    """The verdicts that a leader would give, as a table; nothing is committed.

    The leader starts at ``base``; by default at that of the next leader of ``log``, or of a new log. Raises:
    InvalidRequest, NotFound, CorruptData, Unavailable.
    """
    table_location(to)  # before the work
    with target.session("resolve") as spark:
        through = 0 if log is None else log_head(log).version
        start = base if base is not None else through + VERSION_JUMP
        staged = stage(source.read(spark), source.request_format(), partitions=partitions)
        try:
            report({"step": "stage", "requests": staged.requests, "items": staged.items})
            windows = Windows.trailing(staged.requests, window)
            resolution = resolve_requests(staged, start, windows=windows, judging_bytes_max=judging_bytes_max)
            report({"step": "resolve", "kernel_seconds": round(resolution.kernel_seconds, 3)})
            if log is not None:
                resolution = look_up(spark, log, staged, resolution, through)
            identity = f"{staged.digest}/{start}/{window}"
            write_verdicts(
                staged, resolution, lambda ordinals: start + ordinals, to, made_by="resolve", identity=identity
            )
        finally:
            staged.release()
    fields: dict[str, object] = {
        "pipeline": "resolve",
        "base": resolution.base,
        "requests": staged.requests,
        "items": staged.items,
        "kernel_seconds": round(resolution.kernel_seconds, 3),
    }
    return JobResult(fields | {each.name.lower(): resolution.count(each) for each in Fate if each is not Fate.PENDING})


def load(
    source: RequestSource,
    target: SparkTarget,
    report: Report,
    *,
    log: str,
    to: str,
    leading: Mapping[str, Any],
    options: Mapping[str, Any],
) -> JobResult:
    """Commit the requests. ``leading`` and ``options``: the arguments of ``LeadershipOptions`` and of ``LoadOptions``.

    Raises: as ``load_requests``.
    """

    def step(name: str, facts: Mapping[str, object]) -> None:
        report({"step": name, **facts})

    chosen = LoadOptions(
        request_format=source.request_format(),
        direct=source.format != "table",  # files have the same rows each time, a table may be a view
        leading=LeadershipOptions(**leading),
        **options,
    )
    require_free_log(log, chosen.leading)
    with target.session("load") as spark:
        loaded = load_requests(spark, source.read(spark), log, to, chosen, step=step)
    facts = {name: round(each, 3) if isinstance(each, float) else each for name, each in asdict(loaded).items()}
    return JobResult({"pipeline": "load", "log": log.partition("?")[0], **facts})


def ingest(
    source: RequestSource,
    target: SparkTarget,
    report: Report,
    stopping: Stopping,
    *,
    log: str,
    name: str,
    checkpoint: str,
    every: float | None,
    init: bool,
    leading: Mapping[str, Any],
    live: Mapping[str, Any],
) -> JobResult:
    """Commit the requests that exist now, or new ones without end with ``every``, a number of seconds.

    ``leading`` and ``live``: the arguments of ``LeadershipOptions``, and of ``LiveRequests`` apart from the source.
    ``init``: make the log if there is none. What can be checked without Spark is checked before it starts. Raises: as
    Ingest.
    """
    options, requests = LeadershipOptions(**leading), LiveRequests(source.path, **live)
    verdicts = requests.verdicts()
    if not init:
        _require_log(log)
    requests.require_another_log(log)
    require_free_log(log, options)
    requests.prepare(log)
    if requests.options is None:
        source.require_folder()
    counts = IngestCounts()
    with target.session("ingest") as spark, stopping() as stop:
        if not stop.is_set():  # while Spark started
            messages = requests.stream(spark)
            stream = commit_stream(
                source.stream(spark, requests.at_once) if messages is None else messages,
                log,
                verdicts,
                name,
                checkpoint,
                request_format=source.request_format() if messages is None else None,
                source=requests.numbered(),
                leading=options,
                every_seconds=every,
                report=report,
            )
            try:
                stream.wait(stop)
            finally:
                stream.stop()
            counts = stream.counts
    return JobResult({"pipeline": "ingest", "log": log.partition("?")[0], **asdict(counts)})


_NAME: Final = re.compile(r"[A-Za-z0-9_.-]*[A-Za-z0-9_-]")


def tables_of_prefixes(rows: RowOptions, output_url: str) -> Sequence[tuple[str, RowOptions]]:
    """The place and the rows of each table: ``flight/`` is ``flight`` below the output.

    Raises: InvalidRequest without a prefix, and for prefixes that do not name two places.

    >>> [url for url, _ in tables_of_prefixes(RowOptions((b"flight/", b"plane/")), "s3://lake/tables?region=eu")]
    ['s3://lake/tables/flight?region=eu', 's3://lake/tables/plane?region=eu']
    """
    if not rows.key_prefixes:
        raise bad_configuration("a table per prefix needs prefixes", hint="give --key-prefix for each table")
    place, mark, query = output_url.partition("?")
    places: dict[str, RowOptions] = {}
    for prefix in rows.key_prefixes:
        name = prefix.decode(errors="replace").rstrip("/:|#-").replace("/", "_")
        if not _NAME.fullmatch(name) or name.endswith("-quarantine"):
            raise bad_configuration(
                "a prefix does not name a table: ASCII letters, digits, '.', '_', '-' and '/' do", prefix=prefix
            )
        url = f"{place.rstrip('/')}/{name}{mark}{query}"
        if url in places:
            raise bad_configuration("two prefixes have one table", prefix=prefix, table=name)
        places[url] = replace(rows, key_prefixes=(prefix,))
    return list(places.items())


def run_tables(
    jobs: Sequence[tuple[str, PipelineJob]],
    log_url: str,
    *,
    schedule: Schedule,
    step_bytes: int = STEP_BYTES_DEFAULT,
    stop: Event,
    progress: Callable[[str, StepReport], None],
) -> list[RunReport]:
    """Run each job, with its output's URL, as ``run_pipeline`` does; with ``every_seconds`` all of them in each pass.

    The log is read once for each table. The reports are those of the last pass. Raises: as ``run_pipeline``. A table
    that fails ends the run; the next run continues every table where it is.
    """
    once = Schedule(until=schedule.until)
    while True:
        began = time.monotonic()
        reports: list[RunReport] = []
        for url, job in jobs:
            if stop.is_set() and reports:
                break
            step_done = partial(progress, url)
            reports.append(
                run_pipeline(job, log_url, url, schedule=once, step_bytes=step_bytes, stop=stop, progress=step_done)
            )
        if schedule.every_seconds is None or stop.is_set():
            return reports
        if stop.wait(max(0.0, began + schedule.every_seconds - time.monotonic())):
            return reports
