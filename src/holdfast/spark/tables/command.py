"""What ``holdfast spark NAME`` runs: a session, the pipeline of that name, and what came of it as plain values.

Owns: the list of pipelines by name, and the session around one run. Does not own: options and printing (``cli``),
the pipelines.

Failure model: raises what the session and the pipeline raise. The session is stopped whatever happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Final, TypeAlias

from pyspark.sql import SparkSession

from holdfast.errors import Code, InvalidRequest, statement_of
from holdfast.segments.table_location import table_location
from holdfast.spark.log.replay import Replay
from holdfast.spark.log.runner import STEP_BYTES_DEFAULT, Job, RunReport, Schedule, StepReport, run_pipeline
from holdfast.spark.log.verify import Verify
from holdfast.spark.runtime.command_session import command_session
from holdfast.spark.runtime.doctor import Diagnosis, diagnose
from holdfast.spark.tables.changes import Changes
from holdfast.spark.tables.history import History
from holdfast.spark.tables.latest import Latest
from holdfast.spark.tables.segments import SEGMENT_LOG_BYTES_MIN, Segments
from holdfast.spark.tables.snapshot import Snapshot

__all__ = ["Command", "Made", "Running", "Told", "doctor"]

Told: TypeAlias = Callable[[Mapping[str, object]], None]
"""Hears of every committed step: names and numbers."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a run made. ``is_good`` is False when an audit found damage, which ``findings`` then lists."""

    fields: Mapping[str, object]
    findings: Sequence[Mapping[str, object]] = ()
    is_good: bool = True


@dataclass(frozen=True, slots=True)
class Running:
    """How a run goes: its schedule, the pipeline's own numbers, whom to tell, and what ends it early."""

    schedule: Schedule
    options: Mapping[str, int]
    told: Told
    stop: Event

    @property
    def step_bytes(self) -> int:
        """How much of the log one step reads."""
        return self.options.get("step_bytes", STEP_BYTES_DEFAULT)


@dataclass(frozen=True, slots=True)
class Command:
    """One pipeline by name, its log, its output, and the Spark it runs on (every core of this machine by default)."""

    name: str
    log: str
    to: str
    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict[str, str])

    def run(
        self,
        *,
        every_seconds: float | None,
        until: int | None,
        options: Mapping[str, int],
        stopping: Callable[[], AbstractContextManager[Event]],
        told: Told,
    ) -> Made:
        """Run it. ``stopping`` is entered once Spark runs, because Spark takes the signals of its process for itself.

        Raises: InvalidRequest, NotFound, CorruptData, Unavailable.
        """
        if self.name not in _PIPELINES:
            raise InvalidRequest(f"there is no pipeline {self.name!r}", code=Code.BAD_CONFIGURATION)
        schedule = Schedule(every_seconds, until)
        spark = command_session(self.name, self.master, self.remote, self.conf)
        try:
            with stopping() as stop:
                return _PIPELINES[self.name](spark, self, Running(schedule, options, told, stop))
        finally:
            spark.stop()


def doctor(log: str | None, to: str | None) -> Made:
    """Whether pipelines can run here: one finding for each check. ``is_good`` unless one of them is bad.

    The output gets one small object, which is removed again; an absent directory is made, as a pipeline would.
    """
    checks = diagnose(log)
    if to is not None:
        checks.append(_output_access(to))
    rows = [{"check": each.check, "verdict": each.verdict, "found": each.found, "mend": each.mend} for each in checks]
    return Made({}, rows, is_good=all(each.verdict != "bad" for each in checks))


def _output_access(to: str) -> Diagnosis:
    try:
        if table_location(to).url.startswith("file:"):
            Path(table_location(to).uri).mkdir(parents=True, exist_ok=True)
    except (InvalidRequest, OSError) as error:
        mend = error.hint if isinstance(error, InvalidRequest) else ""
        return Diagnosis("output", "bad", statement_of(error), mend or "name a place that this user may write to")
    return replace(diagnose(to, writes=True)[-1], check="output")


def _incremental(command: Command, running: Running, job: Job) -> RunReport:
    def tell(step: StepReport) -> None:
        running.told(step.fields())

    return run_pipeline(
        job,
        command.log,
        command.to,
        schedule=running.schedule,
        step_bytes=running.step_bytes,
        stop=running.stop,
        progress=tell,
    )


def _changes(spark: SparkSession, command: Command, running: Running) -> Made:
    return Made(_incremental(command, running, Changes(spark, command.log, command.to)).fields())


def _latest(spark: SparkSession, command: Command, running: Running) -> Made:
    job = Latest(spark, command.log, command.to, buckets=running.options.get("buckets"))
    return Made(_incremental(command, running, job).fields())


def _history(spark: SparkSession, command: Command, running: Running) -> Made:
    job = History(spark, command.log, command.to, buckets=running.options.get("buckets"))
    return Made(_incremental(command, running, job).fields())


def _segments(spark: SparkSession, command: Command, running: Running) -> Made:
    least = running.options.get("log_bytes_min", SEGMENT_LOG_BYTES_MIN)
    return Made(_incremental(command, running, Segments(spark, command.log, command.to, log_bytes_min=least)).fields())


def _snapshot(spark: SparkSession, command: Command, running: Running) -> Made:
    return Made(_incremental(command, running, Snapshot(spark, command.log, command.to)).fields())


def _replay(spark: SparkSession, command: Command, running: Running) -> Made:
    job = Replay(spark, command.log, command.to, after=running.options.get("after", 0))
    try:
        return Made(_incremental(command, running, job).fields())
    finally:
        job.close()


def _verify(spark: SparkSession, command: Command, running: Running) -> Made:
    job = Verify(spark, command.log, command.to)
    report = _incremental(command, running, job)
    found = job.audit
    fields = {**report.fields(), **asdict(found.counts), "findings": len(found.findings), "verified": found.verified}
    return Made(fields, [asdict(finding) for finding in found.findings], is_good=job.is_good(report.version))


_PIPELINES: Final[Mapping[str, Callable[[SparkSession, Command, Running], Made]]] = {
    "changes": _changes,
    "latest": _latest,
    "history": _history,
    "replay": _replay,
    "segments": _segments,
    "snapshot": _snapshot,
    "verify": _verify,
}
