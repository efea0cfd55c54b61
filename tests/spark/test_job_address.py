"""A job that leads answers at an address: an idle one is not taken for dead, and a deposed one ends soon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.crash.server_process import ServerProcess
from tests.rgw import free_port
from tests.spark.test_bulk_load import live

from holdfast import Client, Write
from holdfast.cli.main import main
from holdfast.client import ClientOptions
from holdfast.commit.format.batch import Kind
from holdfast.commit.leadership.evidence import Shown
from holdfast.errors import Closed, Code, Fenced, InvalidRequest, Unavailable
from holdfast.spark.bulk import leadership as module
from holdfast.spark.bulk.leadership import JobAddress, JobLeadership, LeadershipOptions
from holdfast.spark.ingest.ingest import CommitStream, Ingest, commit_stream
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.values import slot_text

POLITE = LeadershipOptions(sign_interval_ms=50.0)
SECONDS_MAX = 60.0


@contextmanager
def a_job(log: Path, options: LeadershipOptions = POLITE) -> Iterator[JobLeadership]:
    with StoreThread(log.as_uri()) as thread:
        leadership = JobLeadership(thread, options)
        leadership.claim()
        try:
            yield leadership
        finally:
            leadership.stop()


def until(is_so: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def address_of(log: Path) -> str:
    return live(log)[-1].header.address


def answer_of(url: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url, body, {name.replace("_", "-"): text for name, text in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def is_silent(url: str) -> bool:
    try:
        answer_of(url)
    except OSError:
        return True
    return False


def test_a_job_answers_who_leads_and_takes_no_commits(tmp_path: Path) -> None:
    with a_job(tmp_path) as job:
        url = address_of(tmp_path)
        status, alive = answer_of(f"{url}/livez")
        assert (status, alive["leading"], alive["leader_id"]) == (200, True, job.head.leader_id.hex())
        status, refused = answer_of(f"{url}/v1/commit", b"x" * 300_000)
        assert (status, refused["error"]["code"]) == (503, "not_leader")
    with pytest.raises(urllib.error.URLError):
        answer_of(f"{url}/livez")


def test_a_plain_start_of_a_service_leaves_an_idle_job_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    with a_job(log):
        found = subprocess.run(
            [sys.executable, "-m", "holdfast.cli.main", "serve", "--log", log.as_uri(), "--listen", "127.0.0.1:0"],
            capture_output=True, text=True, timeout=SECONDS_MAX, cwd=tmp_path, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
        assert (found.returncode, "leader_alive" in found.stderr) == (3, True), found.stderr
        assert [batch.header.kind for batch in live(log)] == [Kind.CLAIM]


@pytest.mark.matrix
def test_a_standby_follows_a_job_and_leads_soon_after_it_was_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    port = free_port()
    bounds = ClientOptions(give_up_after_ms=1_000)
    with a_job(log) as job:
        service = ServerProcess(tmp_path, log.as_uri(), port, flags=["--standby"])
        try:
            until(lambda: "standby leader_id=" in service.output.read_text())
            with Client(f"http://127.0.0.1:{port}", options=bounds) as client, pytest.raises(Unavailable) as waits:
                client.commit([Write(b"k", b"v")])
            assert waits.value.code == Code.NOT_LEADER
            job.stop()  # as its death would
            until(service.leads)
            with Client(f"http://127.0.0.1:{port}") as client:
                client.commit([Write(b"k", b"v")])
        finally:
            service.kill()


def test_an_idle_job_shows_signs_beside_the_log_and_its_answer_names_them(tmp_path: Path) -> None:
    with a_job(tmp_path) as job:
        url = f"{address_of(tmp_path)}/livez"
        until(lambda: answer_of(url)[1]["sign"] > 2)
        assert answer_of(url)[1]["slot"] == slot_text(job.head.slot)
        assert 1 <= len(list((tmp_path / "meta" / "alive").iterdir())) <= 2
        assert len(live(tmp_path)) == 1, "the log does not grow"


def test_a_deposed_idle_job_ends_within_seconds_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    ingest = Ingest(tmp_path.as_uri(), (tmp_path / "verdicts").as_uri(), "orders", leading=POLITE)

    class Query:
        isActive = True  # noqa: N815  Spark's name

        def stop(self) -> None:
            self.isActive = False

    stream = CommitStream(cast("SparkSession", None), ingest, cast("StreamingQuery", Query()), [])
    ingest.lead(cast("SparkSession", None))
    usurper = LeadershipOptions(take_over=True)
    with a_job(tmp_path, usurper) as other:
        with pytest.raises(Fenced, match="another leader has taken over") as ended:
            stream.wait(Event())
        assert "start this job again" in ended.value.hint and "load" not in ended.value.hint
        stream.stop()
        assert live(tmp_path)[-1].header.leader_id == other.head.leader_id


def test_a_failure_between_a_header_and_its_object_ends_the_leadership_and_the_log_still_opens(tmp_path: Path) -> None:
    def write_a_header_only() -> None:
        with job.writing():
            version = job.head.last_version
            job.next_header(version, version, 0, 0)
            raise ValueError("its object is missing")

    with a_job(tmp_path) as job:
        with pytest.raises(ValueError, match="its object is missing"):
            write_a_header_only()
        time.sleep(0.5)  # ten signs of a job that leads
        assert [batch.header.kind for batch in live(tmp_path)] == [Kind.CLAIM]
        with pytest.raises(ValueError, match="its object is missing"), job.writing():
            pytest.fail("it does not lead any more")
    with a_job(tmp_path):  # the next leader
        pass


def test_a_job_that_does_not_lead_any_more_does_not_say_that_it_leads(tmp_path: Path) -> None:
    with a_job(tmp_path) as job:
        url = address_of(tmp_path)
        with pytest.raises(Unavailable), job.writing():
            raise Unavailable("the store did not take a batch in time")
        until(lambda: is_silent(f"{url}/livez"))
        assert isinstance(job.failure, Unavailable)


def test_nothing_is_written_after_the_resignation(tmp_path: Path) -> None:
    with a_job(tmp_path) as job:
        job.resign()
        with pytest.raises(Closed) as refused, job.writing():
            pytest.fail("the job has resigned")
        assert refused.value.code == Code.NOT_LEADER
        assert live(tmp_path)[-1].header.kind is Kind.RESIGN


def test_a_stream_that_may_not_lead_leaves_no_thread(tmp_path: Path) -> None:
    frame = cast("DataFrame", SimpleNamespace(sparkSession=None, writeStream=MagicMock()))
    with a_job(tmp_path):
        before = threading.active_count()
        for _ in range(3):
            with pytest.raises(Closed):
                commit_stream(frame, tmp_path.as_uri(), "file:///v", "n", "/c", leading=POLITE, every_seconds=1.0)
        until(lambda: threading.active_count() <= before)


def test_a_job_that_leads_is_named_as_a_job_before_spark_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.commands.session", None)
    command = [
        *("spark", "ingest", "--from", str(tmp_path / "requests"), "--to", (tmp_path / "verdicts").as_uri()),
        *("--log", (tmp_path / "log").as_uri(), "--name", "n", "--checkpoint", str(tmp_path / "c")),
    ]
    (tmp_path / "log").mkdir()
    with a_job(tmp_path / "log"):
        assert main(command) == 3
    said = capsys.readouterr().err
    assert "another job leads this log" in said and "--take-over" in said and "--standby" not in said


def test_an_address_that_cannot_be_listened_at_is_refused(tmp_path: Path) -> None:
    with a_job(tmp_path), StoreThread(tmp_path.as_uri()) as thread:
        taken = address_of(tmp_path).removeprefix("http://")
        with pytest.raises(InvalidRequest, match="cannot listen"):
            JobAddress(thread, taken, "", Shown)
        for text in ("8080", "host:", ":8080", "host:http"):
            with pytest.raises(InvalidRequest, match="not an address to listen at"):
                JobAddress(thread, text, "", Shown)
