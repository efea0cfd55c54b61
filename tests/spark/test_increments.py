"""Where the head of a log is, and what the next increment of a pipeline holds, without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event

import pytest
from tests.spark.log_builder import LogBuilder

from holdfast.commit.format.batch import slot_of
from holdfast.commit.format.transaction import Write
from holdfast.errors import InvalidRequest, NotFound, Unavailable
from holdfast.spark.log.increments import Increment, next_increment
from holdfast.spark.log.runner import PipelineJob, Schedule, StepReport, StepResult, run_pipeline
from holdfast.spark.runtime.table_files import Removed
from holdfast.spark.source.chain import log_head


def haunted_log(root: Path) -> tuple[LogBuilder, int]:
    """A log whose newest key is a deposed leader's; and the version of its live head, which is the claim."""
    builder = LogBuilder(seed=3)
    old = builder.lead()
    old.commit([Write(b"k", b"1")])
    old.commit([Write(b"k", b"2")], lands=False)
    old.commit([Write(b"k", b"3")], lands=False)
    claim = builder.lead().claim
    late = min(old.in_flight)
    assert late < claim.slot and old.land(late), "behind the slot that the claim took"
    builder.write_to(root)
    assert min(slot_of(f"batches/{path.name}") or 0 for path in (root / "batches").iterdir()) == late
    return builder, claim.last_version


def test_a_dead_object_beyond_the_head_is_not_the_head(tmp_path: Path) -> None:
    builder, version = haunted_log(tmp_path)
    found = log_head(tmp_path.as_uri())
    assert (found.log_id, found.version) == (builder.log_id.hex(), version)
    increment = next_increment(tmp_path.as_uri(), 0, step_bytes=2**40)
    assert (increment.through, increment.head) == (version, found), "what is read ends where the head is"
    assert next_increment(tmp_path.as_uri(), version, step_bytes=2**40).is_empty


def test_an_empty_log_has_no_head(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="log is empty"):
        log_head(tmp_path.as_uri())


class Reached(PipelineJob):
    """A pipeline that does nothing but get on."""

    name = "reached"

    def __init__(self, url: str) -> None:
        self._url = url
        self.reached = 0

    def log_id(self) -> str:
        return log_head(self._url).log_id

    def offset(self, log_id: str) -> int:
        return self.reached

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        return next_increment(self._url, after, until=until, step_bytes=step_bytes)

    def advance(self, increment: Increment) -> StepResult:
        self.reached = increment.through
        return StepResult()


def test_a_log_that_was_replaced_while_a_pipeline_runs_is_not_read_on(tmp_path: Path) -> None:
    """The new one may come to have versions above those that were reached in the old one."""

    def a_log(seed: int, batches: int) -> LogBuilder:
        builder = LogBuilder(seed)
        leader = builder.lead()
        for _ in range(batches):
            leader.commit([Write(b"k", b"v")])
        return builder

    log = tmp_path / "log"
    job = Reached(a_log(2, 2).write_to(log))
    end = next_increment(log.as_uri(), 0, step_bytes=2**40).through

    stop = Event()

    def replace(step: StepReport) -> None:
        if step.after:
            stop.set()
        shutil.rmtree(log)
        a_log(1, 50).write_to(log)

    every = Schedule(every_seconds=0.01)
    with pytest.raises(InvalidRequest, match="another log has come to this place"):
        run_pipeline(job, log.as_uri(), "file:///table", schedule=every, progress=replace, stop=stop)
    assert job.reached == end < next_increment(log.as_uri(), 0, step_bytes=2**40).through


def test_what_fails_while_a_step_is_told_is_not_taken_for_a_store_that_failed(tmp_path: Path) -> None:
    """The command line raises Unavailable where its output cannot be written."""
    builder = LogBuilder(seed=5)
    builder.lead().commit([Write(b"k", b"v")])
    job = Reached(builder.write_to(tmp_path))

    def cannot_be_told(step: StepReport) -> None:
        raise Unavailable(f"no room to say {step.through}")

    with pytest.raises(Unavailable, match="no room to say"):
        run_pipeline(job, tmp_path.as_uri(), "file:///table", progress=cannot_be_told)
    assert job.reached, "the step is committed"


class Kept(Reached):
    """A pipeline with a table, which records when its replaced files were to be removed."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[tuple[int, int]] = []
        self.is_away = False

    def vacuum(self, hours: int) -> Removed:
        self.asked.append((hours, self.reached))
        if self.is_away:
            raise Unavailable("the store is away")
        return Removed(1, 10)


def small_log(root: Path) -> str:
    builder = LogBuilder(seed=5)
    builder.lead().commit([Write(b"k", b"v")])
    return builder.write_to(root)


@pytest.mark.parametrize(("hours", "times"), [(None, 0), (0, 2), (1, 1), (168, 1)])
def test_replaced_files_are_removed_when_asked_at_the_start_and_after_the_pass_with_0(
    tmp_path: Path, hours: int | None, times: int
) -> None:
    log = small_log(tmp_path)
    job = Kept(log)
    report = run_pipeline(job, log, "file:///table", vacuum_hours=hours)
    assert job.asked == [(hours, 0), (hours, job.reached)][:times]
    assert (report.step_count, report.files_vacuumed, report.bytes_vacuumed) == (1, times, 10 * times)


def test_files_that_cannot_be_removed_now_do_not_end_a_run(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    job = Kept(log)
    job.is_away = True
    report = run_pipeline(job, log, "file:///table", vacuum_hours=0)
    assert (report.step_count, report.files_vacuumed, len(job.asked)) == (1, 0, 2)


def test_a_vacuum_that_cannot_be_done_is_refused_before_the_first_step(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    for job, hours, text in (
        (Reached(log), 1, "keeps no table"),
        (Kept(log), 169, "0 to 168"),
        (Kept(log), -1, "0 to"),
    ):
        with pytest.raises(InvalidRequest, match=text):
            run_pipeline(job, log, "file:///table", vacuum_hours=hours)
        assert job.reached == 0
