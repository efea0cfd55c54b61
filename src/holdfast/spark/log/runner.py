"""Run a job in steps: up to the log's head, up to a version, or until it is stopped.

A step reads the versions ``(offset, through]`` and commits the result together with the new offset. So a runner has no
state: it can be killed, run twice, or moved to another machine. Conflict (another runner committed) is not an error:
the offset is read again. Unavailable is retried ``RETRIES_MAX`` times in a row with backoff.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from threading import Event
from typing import ClassVar, Final

import structlog

from holdfast.errors import Conflict, InvalidRequest, Unavailable
from holdfast.spark.log.increments import Increment
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.table_files import Removed

log = structlog.get_logger("holdfast.spark.pipeline")

RETRIES_MAX: Final = 8
BACKOFF_SECONDS: Final = 0.5
BACKOFF_SECONDS_MAX: Final = 30.0
UNTIL_POLL_SECONDS: Final = 1.0
VACUUM_HOURS_MAX: Final = 168
"""Delta keeps the names of replaced files for a week."""
VACUUM_SECONDS: Final = 3600.0
"""The shortest interval between two removals of files that are kept for an hour or longer."""
STEP_BYTES_DEFAULT: Final = 512 * 2**20
STEPS_KEPT_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a run ends: at the head that it finds (the default), at version ``until``, or not before it is stopped.

    Units: ``every_seconds`` from the start of one pass to that of the next.
    """

    every_seconds: float | None = None
    until: int | None = None

    def __post_init__(self) -> None:
        if self.every_seconds is not None and self.until is not None:
            raise InvalidRequest("a run repeats without end or ends at a version, not both")
        if self.every_seconds is not None and self.every_seconds <= 0:
            raise InvalidRequest("a run repeats after a positive number of seconds")


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one committed step made. ``rows_quarantined`` did not fit their types and are in the table of quarantine."""

    rows: int = 0
    files_added: int = 0
    files_removed: int = 0
    bytes_written: int = 0
    rows_quarantined: int = 0


@dataclass(frozen=True, slots=True)
class StepReport:
    """One committed step: the versions ``(after, through]``, what it read and made, and how far behind it left off."""

    after: int
    through: int
    head_version: int
    objects: int
    log_bytes: int
    behind_bytes: int
    result: StepResult
    seconds: float

    def fields(self) -> dict[str, object]:
        """The step by name."""
        return {
            "version": self.through,
            "behind_versions": max(0, self.head_version - self.through),
            "behind_bytes": self.behind_bytes,
            "objects": self.objects,
            "log_bytes": self.log_bytes,
            **asdict(self.result),
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class RunReport:
    """What a run did. ``steps`` holds the last 100; the totals count all of them."""

    pipeline: str
    log: str
    output: str
    started_at: int = 0
    version: int = 0
    head_version: int = 0
    behind_bytes: int = 0
    step_count: int = 0
    objects: int = 0
    log_bytes: int = 0
    rows: int = 0
    files_added: int = 0
    files_removed: int = 0
    bytes_written: int = 0
    files_vacuumed: int = 0
    bytes_vacuumed: int = 0
    retries: int = 0
    overtaken: int = 0
    seconds: float = 0.0
    steps: list[StepReport] = field(default_factory=list[StepReport])
    rows_quarantined: int = 0

    def add(self, step: StepReport) -> None:
        """Count one committed step."""
        self.version, self.head_version, self.behind_bytes = step.through, step.head_version, step.behind_bytes
        self.step_count += 1
        self.objects += step.objects
        self.log_bytes += step.log_bytes
        self.rows += step.result.rows
        self.files_added += step.result.files_added
        self.files_removed += step.result.files_removed
        self.bytes_written += step.result.bytes_written
        self.rows_quarantined += step.result.rows_quarantined
        self.steps = [*self.steps[-(STEPS_KEPT_MAX - 1) :], step]

    def fields(self) -> dict[str, object]:
        """The report by name, for JSON and for people; rates are of the time spent."""
        seconds = max(self.seconds, 1e-9)
        renamed = {"started_at": "started_at_version", "step_count": "steps"}
        own = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name != "steps")
        return {
            **{renamed.get(name, name): value for name, value in own},
            "behind_versions": max(0, self.head_version - self.version),
            "seconds": round(self.seconds, 3),
            "log_bytes_per_second": round(self.log_bytes / seconds),
            "rows_per_second": round(self.rows / seconds),
        }


class PipelineJob:
    """One pipeline over one log and one output."""

    name: ClassVar[str]
    settles: ClassVar[bool] = False
    """Whether its look settles what the output has, so that a run ends with one."""

    def log_id(self) -> str:
        """The log's id, as ``LogHead``."""
        raise NotImplementedError

    def offset(self, log_id: str) -> int:
        """The log version that the output has reached, 0 when there is none. Raises: InvalidRequest, Unavailable."""
        raise NotImplementedError

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """The next increment, as ``next_increment``."""
        raise NotImplementedError

    def advance(self, increment: Increment) -> StepResult:
        """Read the increment and commit what follows from it, with the offset, atomically.

        Raises: Conflict when the output is not at ``increment.after`` any more; what reading and writing raise.
        """
        raise NotImplementedError

    def vacuum(self, hours: int) -> Removed:
        """Remove the files that steps of at least ``hours`` ago replaced.

        Raises: InvalidRequest (also a table of another log or pipeline, of which nothing is removed), NotFound,
        Unavailable.
        """
        del hours  # there is nothing to remove
        raise bad_configuration("this job keeps no table, so no files are replaced", job=self.name)


def require_vacuum_hours(hours: int) -> None:
    """Raise InvalidRequest unless replaced files can be removed after ``hours``."""
    if not 0 <= hours <= VACUUM_HOURS_MAX:
        raise bad_configuration(
            "replaced files cannot be removed after this number of hours",
            hint=f"give 0 to {VACUUM_HOURS_MAX} hours: a Delta table forgets older files, which its own vacuum finds",
            hours=hours,
        )


def run_pipeline(
    job: PipelineJob,
    log_url: str,
    output_url: str,
    *,
    schedule: Schedule = Schedule(),
    step_bytes: int = STEP_BYTES_DEFAULT,
    vacuum_hours: int | None = None,
    stop: Event | None = None,
    progress: Callable[[StepReport], None] | None = None,
) -> RunReport:
    """Run ``job`` as ``schedule`` says; ``stop`` ends it after the step under way.

    With ``vacuum_hours`` the run removes files that steps of at least that long ago replaced (0: all of them): at its
    start and then hourly, or after each pass with 0. Without it nothing is removed. Raises: InvalidRequest, NotFound
    (``log_empty``, ``log_truncated``), CorruptData, Unavailable (after retries).
    """
    if vacuum_hours is not None:
        require_vacuum_hours(vacuum_hours)
    stop = stop if stop is not None else Event()
    report = RunReport(job.name, log_url.partition("?")[0], output_url.partition("?")[0])
    run = _Run(job, log_url, report, step_bytes, stop, progress, vacuum_hours)
    began = time.monotonic()
    try:
        run.vacuum_if_due()
        while True:
            pass_began = time.monotonic()
            run.catch_up(schedule.until)
            run.vacuum_if_due()
            if stop.is_set() or (schedule.every_seconds is None and schedule.until is None):
                return report
            if schedule.until is not None and report.version >= schedule.until:
                return report
            pause = UNTIL_POLL_SECONDS if schedule.every_seconds is None else schedule.every_seconds
            if stop.wait(max(0.0, pass_began + pause - time.monotonic())):
                return report
    finally:
        report.seconds = time.monotonic() - began


@dataclass
class _Run:
    job: PipelineJob
    log_url: str
    report: RunReport
    step_bytes: int
    stop: Event
    progress: Callable[[StepReport], None] | None
    vacuum_hours: int | None
    vacuum_due: float = -math.inf
    log_id: str | None = None

    def vacuum_if_due(self) -> None:
        """Remove replaced files. A failure is logged: the next time removes what this one left."""
        now = time.monotonic()
        if self.vacuum_hours is None or now < self.vacuum_due:
            return
        self.vacuum_due = now + min(self.vacuum_hours * 3600, VACUUM_SECONDS)
        try:
            removed = self.job.vacuum(self.vacuum_hours)
        except Unavailable as error:
            log.warning("pipeline_vacuum_failed", pipeline=self.job.name, cause=str(error))
            return
        self.report.files_vacuumed += removed.files
        self.report.bytes_vacuumed += removed.size

    def catch_up(self, until: int | None) -> None:
        """Steps until ``until``, or until the head that the first look found."""
        goal = until
        failures = 0
        while not self.stop.is_set():
            try:
                increment = self._look(goal)
                if goal is None:
                    goal = increment.head.version
                if increment.is_empty:
                    return
                step = self._step(increment)
            except Conflict:
                self.report.overtaken += 1
            except Unavailable as error:
                failures += 1
                self.report.retries += 1
                if failures > RETRIES_MAX:
                    raise
                wait = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2.0 ** (failures - 1))
                log.warning("pipeline_step_failed", pipeline=self.job.name, again_in_s=wait, cause=str(error))
                self.stop.wait(wait)
            else:
                failures = 0
                if self.progress is not None:
                    # What fails in here is the caller's: no store was unavailable, and the step is committed.
                    self.progress(step)
                if step.through >= goal and not self.job.settles:
                    return  # another look would find nothing

    def _look(self, goal: int | None) -> Increment:
        if self.log_id is None:
            self.log_id = self.job.log_id()
            self.report.started_at = self.job.offset(self.log_id)
        offset = self.job.offset(self.log_id)
        increment = self.job.look(offset, goal, self.step_bytes)
        if increment.head.log_id != self.log_id:
            raise bad_configuration(
                "another log has come to this place while the pipeline ran",
                hint="give each log a table of its own; versions of two logs cannot be compared",
                url=self.log_url.partition("?")[0],
                log_id=increment.head.log_id,
                before=self.log_id,
            )
        self.report.version = offset
        self.report.head_version = increment.head.version
        if increment.is_empty:
            self.report.behind_bytes = increment.behind_bytes
        return increment

    def _step(self, increment: Increment) -> StepReport:
        began = time.monotonic()
        with task_errors():
            result = self.job.advance(increment)
        step = StepReport(
            after=increment.after,
            through=increment.through,
            head_version=increment.head.version,
            objects=increment.objects,
            log_bytes=increment.log_bytes,
            behind_bytes=increment.behind_bytes,
            result=result,
            seconds=time.monotonic() - began,
        )
        self.report.add(step)
        return step
