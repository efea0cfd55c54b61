"""Whatever ends a step, and whoever runs beside it: nothing is in a table twice, and nothing is missed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, random_log
from tests.spark.test_pipeline_tables import KINDS, Kind, content, expected, job, run

from holdfast.commit.format.transaction import Write
from holdfast.errors import InvalidRequest, NotFound, Unavailable
from holdfast.spark import Changes, Latest, Schedule, run_pipeline
from holdfast.spark.log.delta_output import DeltaOutput
from holdfast.spark.log.runner import StepReport


class Killed(BaseException):
    """The process ends here: nothing of ours catches this."""


@pytest.fixture
def builder() -> LogBuilder:
    return random_log(33, reigns=3, batches=10)


Commit = Callable[..., None]


def once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, instead: Callable[[Commit], Commit]) -> None:
    """Replace a method for its first call."""
    real: Commit = getattr(owner, name)
    waiting = [instead(real)]

    def method(*arguments: object, **named: object) -> None:
        (waiting.pop() if waiting else real)(*arguments, **named)

    monkeypatch.setattr(owner, name, method)


def killed_before(real: Commit) -> Commit:
    def commit(*arguments: object, **named: object) -> None:
        raise Killed

    return commit


def killed_after(real: Commit) -> Commit:
    def commit(*arguments: object, **named: object) -> None:
        real(*arguments, **named)
        raise Killed

    return commit


def request_lost(real: Commit) -> Commit:
    def commit(*arguments: object, **named: object) -> None:
        raise OSError("connection reset before the request was sent")

    return commit


def answer_lost(real: Commit) -> Commit:
    def commit(*arguments: object, **named: object) -> None:
        real(*arguments, **named)
        raise OSError("connection reset before the answer came")

    return commit


@pytest.mark.parametrize("kind", matrix(KINDS, lambda kind: kind is Latest))
@pytest.mark.parametrize("death", [killed_before, killed_after])
def test_a_run_killed_around_its_commit_is_continued_exactly(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    builder: LogBuilder,
    kind: Kind,
    death: Callable[[Commit], Commit],
) -> None:
    log = builder.write_to(tmp_path / "log")
    once(monkeypatch, DeltaOutput, "commit", death)
    with pytest.raises(Killed):
        run(spark, kind, log, tmp_path / "table", step_bytes=300_000)
    left = {path.name for path in (tmp_path / "table").rglob("*.parquet")}
    report = run(spark, kind, log, tmp_path / "table", step_bytes=300_000)
    assert content(kind, tmp_path / "table") == expected(kind, builder)
    assert (report.started_at > 0) == (death is killed_after)
    named = {Path(uri).name for uri in DeltaTable(str(tmp_path / "table")).file_uris()}
    assert left and (death is killed_after or not left & named), "files without a commit are never looked at"


@pytest.mark.parametrize("loss", matrix([request_lost, answer_lost], lambda loss: loss is answer_lost))
def test_a_commit_without_an_answer_is_settled_by_the_offset(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    builder: LogBuilder,
    loss: Callable[[Commit], Commit],
) -> None:
    log = builder.write_to(tmp_path / "log")
    once(monkeypatch, DeltaTable, "create_write_transaction", loss)
    report = run(spark, Changes, log, tmp_path / "table")
    assert content(Changes, tmp_path / "table") == expected(Changes, builder)
    assert (report.retries, report.overtaken) == ((1, 0) if loss is request_lost else (0, 1))


@pytest.mark.parametrize("kind", matrix([Changes, Latest]))
def test_of_two_runners_at_one_step_one_commits(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builder: LogBuilder, kind: Kind
) -> None:
    log = builder.write_to(tmp_path / "log")

    def overtaken(real: Commit) -> Commit:
        def commit(*arguments: object, **named: object) -> None:
            other = run(spark, kind, log, tmp_path / "table")
            assert other.step_count == 1
            real(*arguments, **named)

        return commit

    once(monkeypatch, DeltaOutput, "commit", overtaken)
    report = run(spark, kind, log, tmp_path / "table", step_bytes=300_000)
    assert (report.overtaken, report.step_count) == (1, 0), "the slower one did nothing"
    assert content(kind, tmp_path / "table") == expected(kind, builder)


def test_a_store_that_stays_away_ends_the_run_after_its_retries(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builder: LogBuilder
) -> None:
    from holdfast.spark.log import runner

    monkeypatch.setattr(runner, "BACKOFF_SECONDS_MAX", 0.0)
    monkeypatch.setattr(runner, "RETRIES_MAX", 2)
    log = builder.write_to(tmp_path / "log")
    tries: list[int] = []

    def away(*arguments: object, **named: object) -> None:
        tries.append(1)
        raise OSError("no route to host")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", away)
    with pytest.raises(Unavailable, match="did not take the commit"):
        run(spark, Changes, log, tmp_path / "table")
    assert len(tries) == 3


def test_a_table_of_another_log_or_pipeline_is_refused(
    spark: SparkSession, tmp_path: Path, builder: LogBuilder
) -> None:
    log = builder.write_to(tmp_path / "log")
    run(spark, Changes, log, tmp_path / "table")
    with pytest.raises(InvalidRequest, match="another table here"):
        run(spark, Latest, log, tmp_path / "table")
    other = random_log(34, reigns=2, batches=4).write_to(tmp_path / "other")
    with pytest.raises(InvalidRequest, match="made of another log"):
        run(spark, Changes, other, tmp_path / "table")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="log is empty"):
        run(spark, Changes, (tmp_path / "empty").as_uri(), tmp_path / "new")
    assert not (tmp_path / "new").exists(), "a mistake makes no table"


def test_a_run_ends_at_its_version_and_goes_on_from_there(
    spark: SparkSession, tmp_path: Path, builder: LogBuilder
) -> None:
    log = builder.write_to(tmp_path / "log")
    whole = expected(Changes, builder)
    assert isinstance(whole, list)
    until = whole[len(whole) // 2][0]
    output = tmp_path / "table"
    report = run_pipeline(job(spark, Changes, log, output), log, output.as_uri(), schedule=Schedule(until=until))
    assert report.version == until
    assert content(Changes, output) == [row for row in whole if row[0] <= until]
    run(spark, Changes, log, output)
    assert content(Changes, output) == whole


def test_a_repeating_run_takes_in_what_is_new_and_ends_when_it_is_asked_to(spark: SparkSession, tmp_path: Path) -> None:
    builder = LogBuilder()
    leader = builder.lead()
    leader.commit([Write(b"k", b"1")])
    log = builder.write_to(tmp_path / "log")
    stop = Event()
    seen: list[StepReport] = []

    def progress(step: StepReport) -> None:
        seen.append(step)
        if len(seen) == 1:
            leader.commit([Write(b"k", b"2")])
            builder.write_to(tmp_path / "log")
        else:
            stop.set()

    report = run_pipeline(
        job(spark, Latest, log, tmp_path / "table"),
        log,
        (tmp_path / "table").as_uri(),
        schedule=Schedule(every_seconds=0.01),
        stop=stop,
        progress=progress,
    )
    assert report.step_count == 2 and stop.is_set()
    assert content(Latest, tmp_path / "table") == expected(Latest, builder)
