"""Spark on a log that has message stores: shapes and tables have the keys, jobs lead it, and the stores stay whole."""

from __future__ import annotations

import asyncio
import random
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.command import command
from tests.integration.test_stores_in_log import Machine, begin, commit, define, machines, message, write
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, PlainBatch, latest_plainly, read_plainly
from tests.spark.log_with_stores import STORES, Leader, Site, objects_of
from tests.spark.plain import PlainRow, batch_rows, operation_rows, spark_rows, transaction_rows
from tests.spark.test_bulk_ingest import POLITE, Frame
from tests.spark.test_pipeline_audit import FEW_OBJECTS, audited, on_disk, verified, world_seeds
from tests.spark.test_pipeline_replay import run as replay
from tests.spark.test_pipeline_replay import transactions as operations_of
from tests.spark.test_pipeline_segments import COLUMNS as SEGMENT_COLUMNS
from tests.spark.test_pipeline_segments import run as run_segments
from tests.spark.test_pipeline_tables import KINDS, Kind, content, expected
from tests.spark.test_pipeline_tables import run as run_table
from tests.spark.test_streaming import run_to_parquet
from tests.worlds.log.shape import draw_shape
from tests.worlds.log.world import World

from holdfast.commit.format.batch import StoresMode, decode_header
from holdfast.commit.format.transaction import Delete, Operation, RangeDelete, Write
from holdfast.errors import Closed, Code
from holdfast.spark import Ingest, LoadOptions, Schedule, Snapshot, load_requests, read_log, run_pipeline
from holdfast.spark.bulk.leadership import JobLeadership, LeadershipOptions
from holdfast.spark.columns import COLUMNS, RowShape
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_read_options
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.source.reader import log_reader
from holdfast.spark.source.stream import HoldfastStreamReader
from holdfast.stores.values.commands import CommitPart, MapChange, Publish
from holdfast.wire.parts import Message


@dataclass(frozen=True)
class Written:
    """A log with stores in a directory, and its plain reading."""

    root: Path
    builder: LogBuilder
    live: list[PlainBatch]

    @property
    def url(self) -> str:
        return self.root.as_uri()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Commits with and without parts, publications, deliveries, and two take-overs."""
    site = Site(tmp_path_factory.mktemp("site"))

    async def make() -> None:
        draw = random.Random(7)
        try:
            leader = await site.lead("m0", STORES)
            for turn in range(3):
                for number in range(25):
                    await step(leader, draw, 100 * turn + number)
                if turn < 2:
                    leader = await site.lead(f"m{turn + 1}")
        finally:
            await site.end()

    asyncio.run(make())
    root = site.root / "log"
    builder = LogBuilder()
    builder.objects = objects_of(root)
    live = list(read_plainly(builder.objects))
    headers = [batch.header for batch in live]
    assert sum(header.entries for header in headers) > 20, "the stores did something by themselves"
    assert any(header.entries and header.transactions for header in headers), "in one object with commits"
    assert any(header.entries and not header.transactions for header in headers), "and alone"
    return Written(root, builder, live)


async def step(leader: Leader, draw: random.Random, number: int) -> None:
    """Some of these at once, so that they share objects."""
    part = Publish(0, "orders", "", [Message(b"of a commit", {"n": number})] * draw.randrange(1, 4))
    parts: list[CommitPart] = [part, MapChange(0, "others", "prices", [("tea", b"%d" % number, None)])]
    key = b"k%d" % draw.randrange(9)
    operations: list[list[Operation]] = [
        [Write(key, b"%d" % number), Write(b"a", b"1")],
        [Delete(key)],
        [RangeDelete(b"k3", b"k5"), Write(b"z%d" % number, b"2")],
    ]
    refused = leader.commit(Write(b"refused", b"r"), parts=[Publish(0, "nowhere", "", [Message(b"r")])])
    await asyncio.gather(
        leader.publish([b"m%d" % number] * 3),
        leader.commit(*draw.choice(operations), parts=parts[: draw.randrange(3)]),
        leader.publish([b"n%d" % number], "others"),
        leader.commit(*draw.choice(operations), request_id=f"a-request-of-this-test-{number}"),
        leader.commit(parts=[part]),
        refused,
    )
    if number % 5 == 0:
        await leader.consume(4)


def rows_of(log: Written, shape: RowShape) -> tuple[list[PlainRow], tuple[str, ...]]:
    """The rows by the plain reading, and what orders them."""
    if shape is RowShape.OPERATIONS:
        return operation_rows(log.live), ("version", "position")
    if shape is RowShape.TRANSACTIONS:
        return transaction_rows(log.live), ("version",)
    return batch_rows(log.live, log.builder.objects), ("seq",)


@pytest.mark.parametrize("shape", RowShape)
def test_every_shape_equals_the_plain_reading_without_what_the_stores_did(
    spark: SparkSession, log: Written, shape: RowShape
) -> None:
    rows, order = rows_of(log, shape)
    reader = spark.read.format("holdfast").option("shape", shape).option("columns", ",".join(COLUMNS[shape]))
    assert spark_rows(reader.option("minPartitions", "5").load(log.url), *order) == rows


@pytest.mark.parametrize("shape", matrix(RowShape, lambda shape: shape is RowShape.TRANSACTIONS))
def test_a_stream_of_every_shape_equals_the_plain_reading(
    spark: SparkSession, log: Written, tmp_path: Path, shape: RowShape
) -> None:
    rows, order = rows_of(log, shape)
    reader = spark.readStream.format("holdfast").option("shape", shape).option("columns", ",".join(COLUMNS[shape]))
    run_to_parquet(reader.option("maxObjectsPerTrigger", "40").load(log.url), tmp_path)
    assert spark_rows(spark.read.parquet(str(tmp_path / "table")), *order) == rows


def test_a_hole_in_a_log_with_stores_is_loss_also_where_only_stores_wrote(
    spark: SparkSession, log: Written, tmp_path: Path
) -> None:
    """A chain that ends early would look complete if only versions of transactions were compared."""
    alone = [batch.header.slot for batch in log.live if batch.header.entries and not batch.header.transactions]
    damaged = LogBuilder()
    damaged.objects = {slot: data for slot, data in log.builder.objects.items() if slot != alone[len(alone) // 2]}
    reader = spark.read.format("holdfast")
    with pytest.raises(Exception, match="data loss"):
        reader.load(damaged.write_to(tmp_path / "log")).count()


@pytest.mark.parametrize("kind", matrix(KINDS, lambda kind: kind is KINDS[1]))
def test_tables_of_a_log_with_stores_equal_the_plain_reading(
    spark: SparkSession, log: Written, tmp_path: Path, kind: Kind
) -> None:
    report = run_table(spark, kind, log.url, tmp_path / "table", step_bytes=100_000)
    assert report.version == report.head_version and report.behind_bytes == 0
    assert content(kind, tmp_path / "table") == expected(kind, log.builder)
    assert run_table(spark, kind, log.url, tmp_path / "table").step_count == 0


@pytest.mark.matrix
def test_a_snapshot_segments_and_a_replay_of_a_log_with_stores(
    spark: SparkSession, log: Written, tmp_path: Path
) -> None:
    output = (tmp_path / "snapshot").as_uri()
    run_pipeline(Snapshot(spark, log.url, output), log.url, output)
    assert content(KINDS[1], tmp_path / "snapshot") == latest_plainly(log.builder.objects)
    run_segments(spark, log.url, tmp_path / "segments", least=1)
    rows = spark_rows(
        read_log(spark, log.url, segments=(tmp_path / "segments").as_uri(), columns=SEGMENT_COLUMNS),
        "version",
        "position",
    )
    assert rows == [{name: row[name] for name in SEGMENT_COLUMNS.split(",")} for row in operation_rows(log.live)]
    replay(spark, log.url, tmp_path / "target", Schedule())
    assert operations_of(objects_of(tmp_path / "target")) == operations_of(log.builder.objects)


def test_the_audit_of_a_log_with_stores_finds_nothing_and_marks_its_head(
    spark: SparkSession, log: Written, tmp_path: Path
) -> None:
    job = verified(spark, log.url, tmp_path / "table")
    head = log.live[-1].header.last_version
    assert job.audit.findings == [] and job.audit.verified == head and job.is_good(head)
    assert job.audit.counts.transactions == sum(len(batch.transactions) for batch in log.live)


@pytest.mark.parametrize("seed", matrix(world_seeds()[:8]))
def test_worlds_whose_log_has_stores_are_read_whole_and_audited_clean(tmp_path: Path, seed: int) -> None:
    """Leaders that crash, pause and are deposed; late objects; in pieces and as a stream, without Spark."""
    shape = replace(draw_shape(random.Random(seed)), retention=False)
    made = World(seed, shape=shape, check_every=1000, stores=True)
    made.run()
    objects = dict(made.store.objects)
    live = list(read_plainly(objects))
    assert sum(batch.header.entries for batch in live) > 0
    assert audited(objects, piece_bytes=FEW_OBJECTS) == []
    url = on_disk(objects, tmp_path / "log")
    columns = tuple(COLUMNS[RowShape.TRANSACTIONS])
    given = {"url": url, "shape": "transactions", "columns": ",".join(columns)}
    reader = log_reader(parse_read_options({**given, "minPartitions": "7"}, Mode.BATCH))
    rows = [row for piece in reader.partitions() for batch in reader.read(piece) for row in batch.to_pylist()]
    wanted = [(row["version"], row["prev_version"], row["request_id"]) for row in transaction_rows(live)]
    assert [(row["version"], row["prev_version"], row["request_id"]) for row in rows] == wanted
    stream = HoldfastStreamReader(parse_read_options({**given, "maxObjectsPerTrigger": "9"}, Mode.STREAM))
    start, seen = stream.initialOffset(), list[PlainRow]()
    stream.prepareForTriggerAvailableNow()
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        pieces = stream.partitions(start, end)
        seen += [row for piece in pieces for batch in stream.read(piece) for row in batch.to_pylist()]
        start = end
    stream.stop()
    assert seen == rows


# -- jobs that lead the log -------------------------------------------------------------------------------------------

ASKED = LoadOptions(wave=2, partitions=2, leading=LeadershipOptions(sign_interval_ms=50.0, step_down=True))


def prepared(machine: Machine) -> list[tuple[int, str, int]]:
    """Stores with something of everything; what a subscriber holds."""
    machine.serve()
    define(machine)
    machine.publish(*(f"before {number}" for number in range(10)))
    part = {"store": "orders", "messages": [message("of a commit")]}
    assert commit(machine, operations=[write("k", "1")], publish=[part])[1]["status"] == "committed"
    taken = machine.take(4)
    machine.acknowledge(taken[0][0])
    return taken[1:]


def require_whole(machine: Machine, held: Sequence[tuple[int, str, int]], loaded: int) -> None:
    """The stores of a service that leads again: what was held is acknowledged, and all others are delivered once."""
    machine.acknowledge(*(seq for seq, _, _ in held))
    assert machine.publish("after")["first_seq"] == 12
    rest = machine.take(100, "t")
    wanted = [f"before {number}" for number in range(4, 10)] + ["of a commit", "after"]
    assert [body for _, body, _ in rest] == wanted
    part = {"store": "orders", "messages": [message("last")]}
    status, answer = commit(machine, operations=[write("k", "2")], publish=[part])
    assert (status, answer["status"]) == (200, "committed"), answer
    assert answer["version"] > loaded


def require_headers(root: Path) -> None:
    """Every object of the log has the mode, and a job's objects have no entries."""
    headers = [decode_header(data[:512], slot=slot) for slot, data in sorted(objects_of(root).items())]
    assert {header.stores_mode for header in headers} == {StoresMode.LOG}
    of_jobs = [header for header in headers if header.address.startswith("http://")]
    assert all(not header.entries for header in of_jobs)
    assert any(header.transactions for header in of_jobs), "a job wrote here"


def test_the_stores_answer_503_with_the_reason_while_a_job_leads(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,), StoreThread(url) as thread:
        held = prepared(machine)
        with pytest.raises(Closed, match="a service leads this log") as refused:
            JobLeadership(thread, LeadershipOptions(sign_interval_ms=50.0)).claim()
        assert refused.value.code is Code.LEADER_ALIVE and "step_down=True" in refused.value.hint
        assert machine.take(1)[0][1] == "before 4", "nothing happened"
        leadership = JobLeadership(thread, LeadershipOptions(sign_interval_ms=50.0, step_down=True))
        claim = leadership.claim()
        assert claim.stores_mode is StoresMode.LOG
        status, answer = machine.ask("GET", "/v1/stores")
        assert status == 503
        assert answer["error"]["code"] == "not_leader", answer
        assert answer["error"]["hint"].startswith("it was asked to stand by, as a bulk job does"), answer
        assert commit(machine, operations=[write("k", "2")])[1]["error"] == answer["error"]
        leadership.resign()
        machine.wait()
        machine.acknowledge(*(seq for seq, _, _ in held))
        assert machine.publish("after")["first_seq"] == 12
        assert machine.server.stop() == 0
    assert "the log is intact" in command("log", "verify", url).stdout


@pytest.mark.matrix
def test_the_stores_are_whole_after_a_load_and_after_an_ingest(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    url = begin(tmp_path)
    rows = [(number, [("write", b"loaded/%d" % number, b"v", None)]) for number in range(60)]
    schema = "order long, operations array<struct<kind:string,key:binary,value:binary,end:binary>>"
    with machines(tmp_path, url) as (machine, other):
        held = prepared(machine)
        frame = spark.createDataFrame(rows, schema)
        with pytest.raises(Closed, match="a service leads this log"):
            load_requests(spark, frame, url, None, replace(ASKED, leading=LeadershipOptions(sign_interval_ms=50.0)))
        report = load_requests(spark, frame, url, None, ASKED)
        assert report.committed == 60
        machine.wait()
        polite = replace(POLITE, step_down=True)
        ingest = Ingest(url, (tmp_path / "verdicts").as_uri(), "orders", leading=polite)
        ingest.micro_batch(cast("DataFrame", Frame(0, 13)), 0)
        ingest.close()
        machine.wait()
        require_whole(machine, held, report.last_version)
        # A machine without files opens what came of it.
        machine.server.kill()
        other.serve("--take-over")
        _, page = other.ask("GET", "/v1/stores/orders/durables/work/browse?max=100")
        assert b64decode(page["messages"][-1]["body"]) == b"last"
        assert other.publish("here")["first_seq"] == 14
        assert other.server.stop() == 0
    require_headers(tmp_path / "log")
    assert "the log is intact" in command("log", "verify", url).stdout
    job = verified(spark, url, tmp_path / "audit")
    assert job.audit.findings == []
    messages = spark.read.format("holdfast").option("shape", "messages").option("store", "orders").load(url)
    assert [row.seq for row in messages.orderBy("seq").collect()] == list(range(1, 15))
    assert spark.read.format("holdfast").load(url).where("key LIKE 'loaded/%'").count() == 60
