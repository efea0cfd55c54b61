"""A bulk load: exactly once whatever dies, a log that every reader and the audit find good, the service's verdicts."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.matrix import matrix
from tests.s3_lane import gateway, s3_bucket, s3_url
from tests.spark.bulk_requests import SCHEMA, Request, as_transaction, draw_requests, judge_plainly
from tests.spark.command_process import CommandProcess
from tests.spark.log_builder import LogBuilder, PlainBatch, read_plainly
from tests.spark.plain import operation_row
from tests.spark.plain_ingest import retention
from tests.spark.service_process import ServiceProcess
from tests.spark.test_pipeline_cli import common

from holdfast.client import Client
from holdfast.commit.format.batch import (
    HEADER_BYTES,
    Header,
    Kind,
    LoggedTransaction,
    decode_header,
    encode_object,
    slot_of,
)
from holdfast.commit.format.transaction import Delete, JobChange, RangeDelete, Write
from holdfast.errors import Closed, Code, Conflict, Fenced, InvalidRequest
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.spark import audit
from holdfast.spark.bulk import requests as requests_module
from holdfast.spark.bulk.leadership import JobLeadership, LeadershipOptions, put_batch
from holdfast.spark.bulk.load import (
    BatchPlan,
    LeadershipPlan,
    LoadOptions,
    LoadProgress,
    LoadReport,
    Planner,
    batch_object,
    load_requests,
)
from holdfast.spark.bulk.requests import ChunkSummary, Staged, chunk_parts, pack, stage
from holdfast.spark.bulk.resolve import Resolution, asked_changes, logged_changes, resolve_requests
from holdfast.spark.bulk.sequencing import Fate, Windows
from holdfast.spark.bulk.verdicts import write_verdicts
from holdfast.spark.options import parse_read_options
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.sink.record import decode
from holdfast.spark.source.reader import log_reader
from holdfast.values import Version

__all__ = ["gateway", "s3_bucket", "s3_url"]

REQUESTS = 400
OPTIONS = LoadOptions(wave=3, partitions=2, leading=LeadershipOptions(sign_interval_ms=50.0))
SLICES = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Killed(BaseException):
    """The driver dies here. Nothing catches it, as nothing catches a power cut."""


@dataclass
class KilledAt:
    """Dies at the ``number``-th step of a load."""

    number: int
    seen: int = 0

    def __call__(self, name: str, facts: Mapping[str, object]) -> None:
        self.seen += 1
        if self.seen == self.number:
            raise Killed(name)


@pytest.fixture
def small_chunks(spark: SparkSession) -> None:
    """Fifty requests a batch, so that a few hundred make several waves."""
    spark.conf.set(SLICES, "50")


def frame_of(spark: SparkSession, requests: list[Request]) -> DataFrame:
    rows = [request.row(place) for place, request in enumerate(requests)]
    random.Random(3).shuffle(rows)
    return spark.createDataFrame(rows, SCHEMA)


def live(root: Path) -> list[PlainBatch]:
    """The log as its plain reader sees it."""
    objects = {slot_of(f"batches/{path.name}"): path.read_bytes() for path in (root / "batches").iterdir()}
    return list(read_plainly({slot: data for slot, data in objects.items() if slot is not None}))


def transactions(root: Path) -> list[LoggedTransaction]:
    return [txn for batch in live(root) for txn in batch.transactions]


def told(root: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = DeltaTable(str(root)).to_pyarrow_table().sort_by("position").to_pylist()
    return rows


def origin(root: Path) -> int:
    """The base that the verdicts rest on: that of the load's first leader."""
    for txn in reversed(transactions(root)):
        for change in txn.jobs:
            if isinstance(change.value, bytes) and change.name.startswith("load/"):
                return decode(change.value, change.name, LoadProgress).base
    raise AssertionError("the log holds no load")


def check_verdicts(root: Path, requests: list[Request], windows: Windows) -> None:
    """The table tells what the leader's own stages tell, and the log holds just what it says is committed."""
    expected = judge_plainly(requests, origin(root / "log"), windows)
    rows = told(root / "verdicts")
    assert [row["position"] for row in rows] == list(range(1, len(requests) + 1))
    found = [(row["code"] or "committed", [c["precondition"] for c in row["conflicts"]]) for row in rows]  # type: ignore[union-attr]
    named = ["too_old" if each.outcome == "look_up" else each.outcome for each in expected]
    assert found == [
        (name, [number for number, _ in each.conflicts]) for name, each in zip(named, expected, strict=True)
    ]
    logged = {txn.version: txn for txn in transactions(root / "log")}
    seen: set[int] = set()
    for row, request, verdict in zip(rows, requests, expected, strict=True):
        version = row["version"]
        assert (version is None) == (verdict.version is None)
        if version is not None:
            assert isinstance(version, int)
            txn = logged[version]
            assert (txn.operations, txn.request_id) == (list(request.operations), request.request_id)
            seen.add(version)
    assert {version for version, txn in logged.items() if txn.operations} == seen, "each committed once"


@pytest.mark.matrix
@pytest.mark.parametrize("stride", [3, 1])
def test_a_load_killed_at_every_step_in_turn_commits_each_request_once(
    spark: SparkSession, tmp_path: Path, small_chunks: None, stride: int
) -> None:
    requests = draw_requests(11, REQUESTS, keys=200, skew=0.3)
    frame = frame_of(spark, requests).persist()
    log, verdicts = (tmp_path / "log").as_uri(), (tmp_path / "verdicts").as_uri()
    report: LoadReport | None = None
    deaths: list[str] = []
    while report is None:
        # Each run gets further than the one before: 1 is after staging, the last one after the verdicts.
        try:
            report = load_requests(spark, frame, log, verdicts, OPTIONS, step=KilledAt(2 + stride * len(deaths)))
        except Killed as death:
            deaths.append(str(death))
    if stride == 1:
        assert {"claim", "wave", "confirm"} <= set(deaths)
    assert len(deaths) >= 2
    check_verdicts(tmp_path, requests, Windows())
    found = audit(spark, log)
    assert found.findings == []
    again = load_requests(spark, frame, log, verdicts, OPTIONS)
    assert (again.batches, again.committed) == (0, report.committed), "what is loaded is not loaded again"
    check_verdicts(tmp_path, requests, Windows())


@pytest.mark.matrix  # test_a_name_belongs_to_one_input keeps the record
def test_what_was_loaded_is_not_loaded_again_after_retention(spark: SparkSession, tmp_path: Path) -> None:
    """The record of a load is in the newest snapshot alone."""
    frame = frame_of(spark, draw_requests(13, 20, keys=5)).persist()
    log = (tmp_path / "log").as_uri()
    report = load_requests(spark, frame, log, None, OPTIONS)
    retention(tmp_path / "log")
    again = load_requests(spark, frame, log, None, OPTIONS)
    assert (again.batches, again.committed, again.continued_at) == (0, report.committed, 20)


@pytest.mark.matrix
def test_without_a_crash_versions_are_those_of_a_leader_and_a_bounded_window_is_audited(
    spark: SparkSession, tmp_path: Path, small_chunks: None
) -> None:
    requests = draw_requests(12, REQUESTS, keys=60, lag=80)
    log = (tmp_path / "log").as_uri()
    options = LoadOptions(wave=100, partitions=2, window=64, leading=LeadershipOptions(sign_interval_ms=50.0))
    load_requests(spark, frame_of(spark, requests), log, (tmp_path / "verdicts").as_uri(), options)
    windows = Windows.trailing(len(requests), 64)
    check_verdicts(tmp_path, requests, windows)
    expected = judge_plainly(requests, origin(tmp_path / "log"), windows)
    assert [row["version"] for row in told(tmp_path / "verdicts")] == [each.version for each in expected]
    floors = [batch.header.window_floor for batch in live(tmp_path / "log")]
    assert floors[-1] > floors[0]
    assert audit(spark, log).findings == []


@pytest.mark.parametrize("listen", matrix(["127.0.0.1:0", "unix"]))
def test_a_load_is_refused_while_a_service_leads_and_says_how_to_go_on(
    spark: SparkSession, tmp_path: Path, listen: str
) -> None:
    (tmp_path / "log").mkdir()
    address = f"unix:{tmp_path}/socket" if listen == "unix" else listen
    with ServiceProcess(tmp_path / "log", listen=address) as service:
        before = live(tmp_path / "log")
        frame = frame_of(spark, draw_requests(13, 10, keys=60))
        with pytest.raises(Closed, match="a service leads this log") as refused:
            load_requests(spark, frame, service.log_url, None, OPTIONS)
        assert refused.value.code is Code.LEADER_ALIVE
        assert "--step-down" in refused.value.hint and "step_down=True" in refused.value.hint
        assert service.address in refused.value.hint and refused.value.fields["leader_address"] == service.address
        with StoreThread(service.log_url) as thread, pytest.raises(Closed, match="a service leads this log"):
            JobLeadership(thread, LeadershipOptions(sign_interval_ms=50.0)).claim()
        assert [batch.header.kind for batch in live(tmp_path / "log")] == [batch.header.kind for batch in before]
        assert service.process.poll() is None


def test_a_job_that_computes_for_long_shows_that_it_is_alive(tmp_path: Path) -> None:
    """A standby that cannot reach the job's address would take over after 2.5 intervals without a sign."""
    with StoreThread(tmp_path.as_uri()) as thread:
        leadership = JobLeadership(thread, LeadershipOptions(sign_interval_ms=50.0))
        claim = leadership.claim()
        wait_for_sign(leadership, 2)
        with leadership.writing():
            header = leadership.next_header(claim.last_version, claim.last_version, 0, 0)
            header = replace(header, body_length=0, body_crc=0)
            thread.start(partial(put_batch, header=header, data=encode_object(header))).result()
            leadership.confirm(header, 1)
        wait_for_sign(leadership, leadership._shown().sign + 2)
        leadership.resign()
        assert [batch.header.kind for batch in live(tmp_path)] == [Kind.CLAIM, Kind.DATA, Kind.RESIGN]
        again = JobLeadership(thread, LeadershipOptions(sign_interval_ms=50.0))
        again.claim()
        again.stop()
        usurper = JobLeadership(thread, LeadershipOptions(take_over=True))
        usurper.claim()
        usurper.resign()
        again._look()
        with pytest.raises(Fenced), again.writing():
            pass


def wait_for_sign(leadership: JobLeadership, number: int) -> None:
    give_up_at = time.monotonic() + 60.0
    while leadership._shown().sign < number:
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def test_both_ways_to_lead_at_once_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="exclude each other"):
        LeadershipOptions(take_over=True, step_down=True)


def test_a_service_that_may_not_be_asked_keeps_the_lead(tmp_path: Path) -> None:
    token = "server.tokens=admin:0123456789abcdef"
    with ServiceProcess(tmp_path, token) as service, StoreThread(service.log_url) as thread:
        with pytest.raises(Closed, match="did not step down") as refused:
            JobLeadership(
                thread, LeadershipOptions(step_down=True, sign_interval_ms=50.0, token="fedcba9876543210")
            ).claim()
        assert "--token" in refused.value.hint and service.address in refused.value.hint
        assert service.process.poll() is None


@pytest.mark.matrix
def test_the_service_stands_by_for_a_load_and_leads_again_after_it_with_the_same_verdicts(
    spark: SparkSession, tmp_path: Path
) -> None:
    requests = draw_requests(13, 100, keys=60, ids=False, odd=False)
    (tmp_path / "log").mkdir()
    (tmp_path / "plain").mkdir()
    asked = replace(OPTIONS, leading=LeadershipOptions(sign_interval_ms=50.0, step_down=True))
    with ServiceProcess(tmp_path / "log") as service, Client(service.url) as client:
        client.commit([Write(b"before", b"1")])
        report = load_requests(
            spark, frame_of(spark, requests), service.log_url, (tmp_path / "verdicts").as_uri(), asked
        )
        assert client.commit([Write(b"between", b"2")]).version > report.last_version, "the same process leads again"
    kinds = [batch.header.kind for batch in live(tmp_path / "log")]
    assert kinds.count(Kind.CLAIM) == 3 and kinds.count(Kind.RESIGN) == 3, "the service, the load, the service"
    assert report.committed + report.not_committed == len(requests)
    rows = told(tmp_path / "verdicts")
    with ServiceProcess(tmp_path / "plain") as service:
        assert _through_the_service(service.url, requests) == [
            (row["outcome"], [c["precondition"] for c in row["conflicts"]])  # type: ignore[union-attr]
            for row in rows
        ]
    with ServiceProcess(tmp_path / "log") as service, Client(service.url) as client:
        receipt = client.commit([Write(b"after", b"2")])
        assert receipt.version > max(int(str(row["version"])) for row in rows if row["version"] is not None)
        state: dict[bytes, bytes] = {b"before": b"1", b"between": b"2", b"after": b"2"}
        for row, request in zip(rows, requests, strict=True):
            if row["version"] is not None:
                _apply(state, request)
        assert _all(client) == state
    assert audit(spark, (tmp_path / "log").as_uri()).findings == []


def _through_the_service(url: str, requests: list[Request]) -> list[tuple[str, list[int]]]:
    """The same requests, one after the other, their ``#k`` as the version that the service had reached by then."""
    found: list[tuple[str, list[int]]] = []
    with Client(url) as client:
        assigned = [client.version().version]
        for request in requests:
            txn = as_transaction(request, assigned)
            try:
                client.commit(txn.operations, txn.preconditions, read_version=txn.read_version)
                found.append(("committed", []))
            except Conflict as error:
                conflicts = error.fields["conflicts"]
                assert isinstance(conflicts, tuple)
                found.append(("not_committed", [precondition for precondition, _ in conflicts]))
            # Whatever came of it, it had a version.
            assigned.append(assigned[-1] + 1)
    return found


def _apply(state: dict[bytes, bytes], request: Request) -> None:
    for operation in request.operations:
        match operation:
            case Write(key, value):
                state[key] = value
            case Delete(key):
                state.pop(key, None)
            case RangeDelete(begin, end):
                for key in [key for key in state if begin <= key and (end is None or key < end)]:
                    del state[key]


def _all(client: Client) -> dict[bytes, bytes]:
    page = client.range(b"", None, limit=1000)
    return {row.key: row.value for row in page.items}


@pytest.mark.matrix
def test_a_load_that_is_taken_over_is_fenced_and_the_other_finishes(
    spark: SparkSession, tmp_path: Path, small_chunks: None
) -> None:
    requests = draw_requests(14, 300, keys=100)
    frame = frame_of(spark, requests).persist()
    log, verdicts = (tmp_path / "log").as_uri(), (tmp_path / "verdicts").as_uri()
    finished: list[LoadReport] = []

    def overtaken(name: str, facts: Mapping[str, object]) -> None:
        if name == "confirm" and not finished:
            finished.append(
                load_requests(
                    spark,
                    frame,
                    log,
                    verdicts,
                    replace(OPTIONS, leading=LeadershipOptions(sign_interval_ms=50.0, take_over=True)),
                )
            )

    with pytest.raises(Fenced):
        load_requests(spark, frame, log, None, OPTIONS, step=overtaken)
    assert finished[0].continued_at > 0
    check_verdicts(tmp_path, requests, Windows())
    assert audit(spark, log).findings == []


def test_a_name_belongs_to_one_input(spark: SparkSession, tmp_path: Path) -> None:
    log = (tmp_path / "log").as_uri()
    options = LoadOptions(name="orders", partitions=1, leading=LeadershipOptions(sign_interval_ms=50.0))
    columns = "order int, key string, value string"
    first = spark.createDataFrame([(1, "a", "1")], columns)
    assert load_requests(spark, first, log, None, options).committed == 1
    assert load_requests(spark, first, log, None, options).batches == 0
    with pytest.raises(InvalidRequest, match="a load of this name has begun with other requests"):
        load_requests(spark, spark.createDataFrame([(1, "a", "2")], columns), log, None, options)
    assert len(transactions(tmp_path / "log")) == 1


@pytest.mark.matrix
def test_an_attempt_of_the_log_is_not_committed_again(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with ServiceProcess(tmp_path / "log") as service, Client(service.url) as client:
        read_version = client.version().version
        request_id = "an-order-of-yesterday-1"
        receipt = client.commit([Write(b"a", b"1")], request_id=request_id, read_version=read_version)
    rows = [
        (1, "a", "1", request_id, str(read_version)),
        (2, "b", "1", "an-order-of-yesterday-2", str(read_version)),
        (3, "a", "another", request_id, str(read_version)),
    ]
    frame = spark.createDataFrame(rows, "order int, key string, value string, request_id string, read_version string")
    report = load_requests(spark, frame, (tmp_path / "log").as_uri(), (tmp_path / "verdicts").as_uri(), OPTIONS)
    found = [(row["code"], row["version"]) for row in told(tmp_path / "verdicts")]
    assert found == [(None, receipt.version), ("too_old", None), ("request_id_reused", None)]
    assert (report.committed, report.not_committed, report.invalid) == (1, 1, 1)
    assert len(transactions(tmp_path / "log")) == 1


def test_batches_that_workers_have_written_elsewhere_are_not_called_durable(tmp_path: Path) -> None:
    """On a cluster a path is another directory on every machine, unless it is mounted there."""
    log, elsewhere = tmp_path / "log", tmp_path / "a-worker"
    log.mkdir()
    elsewhere.mkdir()

    def write(root: Path, headers: list[Header]) -> None:
        with StoreThread(root.as_uri()) as thread:
            for header in headers:
                thread.start(partial(put_batch, header=header, data=encode_object(header))).result()

    with StoreThread(log.as_uri()) as thread:
        reign = JobLeadership(thread, LeadershipOptions(sign_interval_ms=50.0))
        version = reign.claim().last_version
        first, second = (reign.next_header(version, version, 0, 0) for _ in range(2))
        write(elsewhere, [first])
        write(log, [second])
        with pytest.raises(InvalidRequest, match="not in this log"):
            reign.confirm(second, 2)
        write(log, [first])
        reign.confirm(second, 2)


def test_changes_of_the_log_and_of_requests_are_compared_by_one_digest(tmp_path: Path) -> None:
    builder = LogBuilder(4)
    leader = builder.lead()
    operations = [Write(b"a", b"1"), Delete(b"b"), RangeDelete(b"c", None)]
    base = leader.head.last_version
    changes = [operations, operations, [Write(b"a", b"2")], [Delete(b"a")]]
    records = [(), (JobChange("load/earlier", b"{}"),), (), ()]
    leader.send(
        [
            LoggedTransaction(base + 1 + n, f"an-id-of-a-request-{n}", base, list(each), [], jobs=jobs)
            for n, (each, jobs) in enumerate(zip(changes, records, strict=True))
        ]
    )
    log = builder.write_to(tmp_path / "log")
    options = parse_read_options({"url": log, "shape": "transactions", "columns": "version,request_id,operations"})
    reader = log_reader(options)
    attempts = (rows for part in reader.partitions() for rows in reader.read(part))
    logged = pa.Table.from_batches(
        [*logged_changes(rows.append_column("position", rows["version"]) for rows in attempts)]
    )
    assert logged["version"].to_pylist() == [base + 1 + n for n in range(len(changes))]
    kind = pa.struct([("kind", pa.string()), ("key", pa.binary()), ("end", pa.binary()), ("value", pa.binary())])
    read = pa.struct([("kind", pa.string()), ("key", pa.binary()), ("end", pa.binary()), ("version", pa.string())])
    asked = [operation_row(each) for each in operations]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["1", "2", "3"]),
            pa.array([[operation_row(Write(b"a", b"2"))], asked, asked[:2]], pa.list_(kind)),
            pa.array([[], [{"kind": "point_read", "key": b"a", "end": None, "version": "7"}], []], pa.list_(read)),
        ],
        ["order", "operations", "preconditions"],
    )
    (chunk,) = pack(iter([batch]))
    place = ChunkSummary(3 << 32, 100, 3, chunk.index_min, chunk.weighted)
    streams = {"asks": chunk.asks, "item_rows": chunk.item_rows, "values": chunk.values}

    def of_task(weighted: int) -> Iterator[pa.RecordBatch]:
        part = pickle.dumps((place, np.arange(3)))
        return iter([pa.RecordBatch.from_pylist([{"weighted": str(weighted), "part": part, **streams}])])

    (found,) = asked_changes(of_task(chunk.weighted))
    digests = dict(zip(found["position"].to_pylist(), found["changes"].to_pylist(), strict=True))
    held = logged["changes"].to_pylist()
    assert digests == {100: held[2], 101: held[0], 102: digests[102]}
    assert held[1] == held[0], "an earlier load's record is not a part of the request"
    assert digests[102] not in held
    with pytest.raises(InvalidRequest, match="other ones than when they were judged"):
        list(asked_changes(of_task(chunk.weighted ^ 1)))


def test_a_chunk_that_was_made_again_with_other_requests_is_not_written() -> None:
    def packed(request_id: str) -> dict[str, object]:
        names = ["order", "kind", "key", "end", "value", "read_version", "request_id"]
        values = ["1", "write", b"k", None, b"v", "#0", request_id]
        kinds = [pa.string(), pa.string(), *[pa.binary()] * 3, pa.string(), pa.string()]
        arrays = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
        (chunk,) = pack(iter([pa.RecordBatch.from_arrays(arrays, names)]))
        return asdict(chunk)

    builder = LogBuilder(1)
    header = builder.lead().head
    base = header.last_version
    header = replace(header, kind=Kind.DATA, first_version=Version(base + 1), last_version=Version(base + 1))
    reign = LeadershipPlan("load/it", base, base, 0)
    judged, again = packed("an-id-that-uuid()-has-made"), packed("another-id-that-it-has-made")
    plan = BatchPlan(header, 0, np.array([Fate.COMMITTED], np.uint8), b"{}", 0, np.zeros(0, np.int64))
    place = ChunkSummary(0, 0, 1, -1, cast("int", judged["weighted"]))
    part = pickle.dumps((place, plan))

    def of_task(chunk: dict[str, object]) -> Iterator[pa.RecordBatch]:
        streams = {name: chunk[name] for name in ("asks", "item_rows", "values")}
        row = {"weighted": str(chunk["weighted"]), "part": part, **streams}
        return iter([pa.RecordBatch.from_pylist([row])])

    ((chunk, found, streams),) = chunk_parts(of_task(judged))
    data = batch_object(chunk, found, reign, streams)
    assert b"an-id-that-uuid()-has-made" in data
    with pytest.raises(InvalidRequest, match="other ones than when they were judged"):
        list(chunk_parts(of_task(again)))


def test_a_task_gets_nothing_that_grows_with_the_other_requests() -> None:
    """A million requests before it without a version, as when all of an input were loaded before."""
    many, own = 1_000_000, 10
    fates = np.full(many + own, Fate.DUPLICATE, np.uint8)
    fates[many:] = Fate.COMMITTED
    ordinals = np.zeros(many + own, np.int32)
    ordinals[many:] = np.arange(1, own + 1)
    none = np.zeros(0, np.int64)
    narrow = none.astype(np.int32)
    resolution = Resolution(fates, {}, none, narrow, narrow, ordinals, 0, 0.0)
    near, far = (ChunkSummary(key, many, own, index_min, 0) for key, index_min in ((0, many + 3), (1, 5)))
    builder = LogBuilder(2)
    leader = builder.lead()
    header = replace(leader.head, kind=Kind.DATA)
    base = header.last_version

    class Led:
        head = header

        def next_header(self, *_: object) -> Header:
            return header

    def plan_of(chunk: ChunkSummary, through: int) -> BatchPlan:
        staged = Staged(cast("DataFrame", None), (chunk,), many + own, own, 0, False, True, "")
        progress = LoadProgress("", None, many + own, through, base, ())
        plan = LeadershipPlan("", base, base, 0)
        planner = Planner(staged, resolution, resolution.assigned(), Windows(), plan, progress)
        ((_, planned),) = planner.batches(cast("JobLeadership", Led()))
        return planned

    plan = plan_of(near, 0)
    assert len(pickle.dumps(plan)) < 2_000
    assert plan.ordinals_after(np.array([0, many, many + 3])).tolist() == [0, 0, 3]
    wide = plan_of(far, 0)
    assert wide.ordinals_after(np.array([0, 5, many, many + 3])).tolist() == [0, 0, 0, 3]
    assert len(pickle.dumps(plan_of(far, many))) < 2_000, "what was read before this leadership is its base"


def test_parts_that_are_large_go_to_tasks_in_several_jobs(
    spark: SparkSession, tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "PARTS_BYTES", 2_000)
    requests = draw_requests(16, 200, keys=60, skew=0.3)
    load_requests(
        spark, frame_of(spark, requests), (tmp_path / "log").as_uri(), (tmp_path / "verdicts").as_uri(), OPTIONS
    )
    check_verdicts(tmp_path, requests, Windows())


@pytest.mark.matrix  # the chunk that was made again is judged without Spark
@pytest.mark.parametrize("again", matrix(["others", "fewer"]))
def test_requests_that_were_made_again_as_others_are_not_told_as_those_that_were_judged(
    spark: SparkSession, tmp_path: Path, again: str
) -> None:
    def staged(mark: str, orders: range) -> Staged:
        rows = [(n, "k", "v", f"an-attempt-of-a-test-{mark}-{n}", "#0") for n in orders]
        columns = "order int, key string, value string, request_id string, read_version string"
        return stage(spark.createDataFrame(rows, columns), OPTIONS.request_format, partitions=1)

    judged = staged("a", range(3))
    remade = staged("b", range(3)) if again == "others" else staged("a", range(0))
    resolution = resolve_requests(judged, 100)

    def write(of: Staged) -> int:
        url = (tmp_path / "verdicts").as_uri()
        return write_verdicts(of, resolution, lambda each: 100 + each, url, made_by="load", identity="it")

    with pytest.raises(InvalidRequest, match="other ones than when they were judged"):
        write(replace(judged, frame=remade.frame))
    assert told(tmp_path / "verdicts") == []
    assert write(judged) > 0
    assert [row["request_id"] for row in told(tmp_path / "verdicts")] == [
        f"an-attempt-of-a-test-a-{n}" for n in range(3)
    ]


def test_a_refused_batch_is_ours_by_its_leader_nonce_and_body_and_otherwise_deposes() -> None:
    async def scenario() -> None:
        builder = LogBuilder()
        leader = builder.lead()
        leader.commit([Write(b"a", b"1")])
        slot = leader.head.slot
        header, data = decode_header(builder.objects[slot], slot=slot), builder.objects[slot]
        store = MemoryStore(MemoryObjects())
        await put_batch(store, header, data)
        await put_batch(store, header, data)
        for other in (encode_object(replace(header, nonce=bytes(16)), data[HEADER_BYTES:]), data[:-1] + b"x"):
            with pytest.raises(Fenced):
                await put_batch(store, header, other)

    asyncio.run(scenario())


@pytest.mark.matrix
def test_a_killed_command_is_continued_by_the_next_and_csv_is_loaded(tmp_path: Path) -> None:
    source = tmp_path / "requests.csv"
    lines = [f"{place},key/{place % 97},value {place},#{place // 2}" for place in range(4000)]
    source.write_text("order,key,value,read_version\n" + "\n".join(lines) + "\n")
    log = tmp_path / "log"
    words = [sys.executable, "-m", "holdfast.cli.main", "spark", "load", "--from", str(source), "--format", "csv"]
    words += ["--log", log.as_uri(), "--to", (tmp_path / "verdicts").as_uri(), "--master", "local[2]", "--wave", "2"]
    words += ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]
    words += ["--conf", f"{SLICES}=100", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while len(list(log.glob("batches/*"))) < 8:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])["report"]
    assert report["continued_at"] > 0 and report["committed"] == 4000
    values = [txn.operations for txn in transactions(log)]
    assert values == [[Write(b"key/%d" % (n % 97), b"value %d" % n)] for n in range(4000)]
    assert len(told(tmp_path / "verdicts")) == 4000


@pytest.mark.matrix
def test_what_others_wrote_between_two_runs_of_a_load_is_not_overlooked(
    spark: SparkSession, tmp_path: Path, small_chunks: None
) -> None:
    requests = draw_requests(15, 300, keys=40, odd=False)
    frame = frame_of(spark, requests).persist()
    log, verdicts = (tmp_path / "log").as_uri(), (tmp_path / "verdicts").as_uri()
    with pytest.raises(Killed):
        load_requests(spark, frame, log, verdicts, OPTIONS, step=KilledAt(6))
    settled = max(_progress(tmp_path / "log"))
    assert 0 < settled < len(requests)
    another = spark.createDataFrame([(1, "k/1", "theirs")], "order int, key string, value string")
    load_requests(spark, another, log, None, OPTIONS)
    with pytest.raises(Killed):
        load_requests(spark, frame, log, verdicts, OPTIONS, step=KilledAt(7))
    report = load_requests(spark, frame, log, verdicts, OPTIONS)
    assert report.continued_at > settled
    expected = judge_plainly(requests, origin(tmp_path / "log"), Windows().cut((settled,)))
    named = ["too_old" if each.outcome == "look_up" else each.outcome for each in expected]
    assert [row["code"] or "committed" for row in told(tmp_path / "verdicts")] == named
    assert "too_old" in named[settled:] and "too_old" not in named[:settled]
    assert audit(spark, log).findings == []


def _progress(root: Path) -> list[int]:
    records = [(each.name, each.value) for txn in transactions(root) for each in txn.jobs]
    found = [decode(value, name, LoadProgress) for name, value in records if isinstance(value, bytes)]
    return [each.through for each in found if each.requests > 1]


@pytest.mark.matrix
def test_a_load_and_an_ingest_on_a_real_s3_server_make_a_log_that_the_audit_finds_whole(
    s3_bucket: str, gateway: object, tmp_path: Path
) -> None:
    from tests.rgw import Gateway

    assert isinstance(gateway, Gateway)
    source = tmp_path / "requests"
    source.mkdir()
    (source / "0.json").write_text(
        "\n".join(json.dumps({"order": n, "key": f"k/{n % 7}", "value": str(n)}) for n in range(500))
    )
    log, tables = gateway.url(s3_bucket, prefix="bulk/log"), ["load", "ingest", "verify"]
    to = {name: gateway.url(s3_bucket, prefix=f"bulk/{name}") for name in tables}
    requests = ["--from", str(source), "--format", "json"]
    checkpoint = str(tmp_path / "checkpoint")
    with CommandProcess() as process:
        runs = [
            process.run("spark", *words)
            for words in (
                ["load", *requests, *common(log, to["load"])],
                ["load", *requests, *common(log, to["load"])],
                ["ingest", *requests, *common(log, to["ingest"]), "--name", "s", "--checkpoint", checkpoint],
                ["verify", *common(log, to["verify"])],
            )
        ]
    codes = [code for code, _ in runs]
    lines = [line for _, printed in runs for line in printed]
    assert codes == [0, 0, 0, 0]
    reports = [line["report"] for line in lines if "report" in line]
    assert [report.get("committed") for report in reports[:3]] == [500, 500, 500]
    assert reports[1]["batches"] == 0
    assert (reports[3]["findings"], reports[3]["verified"]) == (0, reports[3]["head_version"])
    assert reports[3]["transactions"] == 1001
