"""The streaming source and the sink as Spark runs them: micro-batches, checkpoints, restarts, replays, retries."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, random_log, read_plainly
from tests.spark.plain import operation_rows, spark_rows
from tests.spark.service_process import ServiceProcess

from holdfast.client import Client
from holdfast.commit.format.transaction import Delete, RangeDelete, Write
from holdfast.spark import read_log

SECONDS_MAX = 240
RESTARTS = 1 if os.environ.get("HOLDFAST_SMALL") == "1" else 3


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("log")) as started:
        yield started


def stream(spark: SparkSession, url: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("holdfast").option("url", url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def run_to_parquet(frame: DataFrame, root: Path) -> list[dict[str, object]]:
    """One run to the end of what is there, with a checkpoint; what each micro-batch reported."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(root / "table"))
    )
    assert query.awaitTermination(SECONDS_MAX)
    return [progress.jsonValue if isinstance(progress, str) else progress for progress in query.recentProgress]


def test_a_query_stopped_and_started_anywhere_makes_the_table_of_a_batch_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = random_log(11, reigns=3)
    root = tmp_path / "log"
    root.mkdir()
    url = builder.write_to(root)
    draw = builder.random
    for _ in range(RESTARTS):
        run_to_parquet(stream(spark, url, maxObjectsPerTrigger=7, columns="version,position,key,value"), tmp_path)
        leader = builder.lead()
        for _ in range(draw.randrange(1, 9)):
            leader.commit([Write(b"later", b"v"), Delete(b"x")])
        builder.write_to(root)
    run_to_parquet(stream(spark, url, columns="version,position,key,value"), tmp_path)
    found = spark_rows(spark.read.parquet(str(tmp_path / "table")), "version", "position")
    rows = operation_rows(read_plainly(builder.objects))
    assert found == [{name: row[name] for name in ("version", "position", "key", "value")} for row in rows]


@pytest.mark.matrix  # the first test stops and starts anywhere
def test_progress_names_offsets_that_a_new_query_can_start_from(spark: SparkSession, tmp_path: Path) -> None:
    builder = random_log(12, reigns=3)
    root = tmp_path / "log"
    root.mkdir()
    url = builder.write_to(root)
    query = (
        stream(spark, url, maxObjectsPerTrigger=6)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "one"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS_MAX)
    first = query.recentProgress[0]
    offset = first["sources"][0]["endOffset"]
    rest = spark.read.format("holdfast").option("url", url).option("startingOffsets", offset).load()
    rows = operation_rows(read_plainly(builder.objects))
    assert 0 < first["numInputRows"] < len(rows)
    assert rest.count() == len(rows) - first["numInputRows"]
    run_to_parquet(stream(spark, url, startingOffsets=offset), tmp_path)
    assert spark.read.parquet(str(tmp_path / "table")).count() == len(rows) - first["numInputRows"]


def test_an_option_of_the_other_mode_is_refused_with_those_that_are_valid(spark: SparkSession, tmp_path: Path) -> None:
    builder = LogBuilder()
    builder.lead()
    url = builder.write_to(tmp_path)
    with pytest.raises(PySparkException, match=r"maxRowsPerTrigger has no effect on a batch read; valid options: url"):
        spark.read.format("holdfast").option("maxRowsPerTrigger", "5").load(url).collect()
    query = stream(spark, url, endingVersion=5).writeStream.format("noop").start()
    with pytest.raises(PySparkException, match="endingVersion has no effect on a stream read"):
        query.awaitTermination(SECONDS_MAX)


@pytest.mark.matrix
def test_filters_narrow_what_is_read_and_change_no_row(spark: SparkSession, tmp_path: Path) -> None:
    builder = random_log(13, reigns=5)
    url = builder.write_to(tmp_path)
    rows = operation_rows(read_plainly(builder.objects))
    frame = read_log(spark, url, pushdown=True)
    middle = rows[len(rows) // 2]
    named = next(row for row in rows if row["request_id"])
    conditions = {
        f"version >= {middle['version']} AND version < {rows[-5]['version']}": (
            lambda row: middle["version"] <= row["version"] < rows[-5]["version"]
        ),
        f"seq = {middle['seq']}": lambda row: row["seq"] == middle["seq"],
        f"seq > {middle['seq']} AND kind = 'write'": (
            lambda row: row["seq"] > middle["seq"] and row["kind"] == "write"
        ),
        "key >= X'61' AND key < X'62'": lambda row: b"a" <= row["key"] < b"b",
        "key = X''": lambda row: row["key"] == b"",
        f"request_id = '{named['request_id']}'": lambda row: row["request_id"] == named["request_id"],
        f"request_id IN ('{named['request_id']}', 'none')": lambda row: row["request_id"] == named["request_id"],
        f"version IN ({middle['version']}, {rows[0]['version']})": (
            lambda row: row["version"] in (middle["version"], rows[0]["version"])
        ),
        f"version = {middle['version']} OR key = X'62'": (
            lambda row: row["version"] == middle["version"] or row["key"] == b"b"
        ),
        "NOT version > 5": lambda row: not row["version"] > 5,
        "request_id IS NULL AND version <=> NULL": lambda row: False,
    }
    for condition, passes in conditions.items():
        found = Counter((row.version, bytes(row.key), row.kind) for row in frame.where(condition).collect())
        assert found == Counter((row["version"], row["key"], row["kind"]) for row in rows if passes(row)), condition
        assert frame.count() == len(rows), "a query without a filter does not read by the filter of the one before"
    narrow = frame.where(f"seq = {middle['seq']}")
    assert narrow.rdd.getNumPartitions() == 1
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert frame.where("seq < 0").count() == 0, "a session without push-down reads as well"
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_frame_of_the_plain_source_is_planned_without_the_filters_of_other_queries(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = random_log(14)
    frame = spark.read.format("holdfast").load(builder.write_to(tmp_path))
    rows = operation_rows(read_plainly(builder.objects))
    assert frame.where(f"version = {rows[0]['version']}").count() == sum(
        r["version"] == rows[0]["version"] for r in rows
    )
    assert frame.count() == len(rows)


@dataclass(frozen=True)
class Uses:
    """A log with two of its versions, for queries that use one frame at two places."""

    url: str
    rows: int
    early: int
    late: int
    of_early: int
    of_late: int

    def found(self, frame: DataFrame) -> tuple[int, int]:
        """The rows of two filters in one query, and the rows that only the second filter passes."""
        early, late = frame.where(f"version = {self.early}"), frame.where(f"version = {self.late}")
        return early.union(late).count(), late.exceptAll(early).count()


@pytest.fixture
def uses(tmp_path: Path) -> Uses:
    builder = random_log(14)
    url = builder.write_to(tmp_path)
    rows = operation_rows(read_plainly(builder.objects))
    early, late = rows[3]["version"], rows[-4]["version"]
    count = Counter(row["version"] for row in rows)
    assert isinstance(early, int) and isinstance(late, int)
    return Uses(url, len(rows), early, late, count[early], count[late])


def test_each_use_of_a_frame_in_one_query_returns_its_rows(spark: SparkSession, uses: Uses) -> None:
    assert uses.found(read_log(spark, uses.url)) == (uses.of_early + uses.of_late, uses.of_late)


def test_spark_reads_all_uses_of_a_frame_by_the_filters_of_one(spark: SparkSession, uses: Uses) -> None:
    """The reason of decision 0009. When this fails, a new Spark plans each use: switch push-down on."""
    plain = spark.read.format("holdfast").option("pushdown", "true").load(uses.url)
    assert plain.where(f"version = {uses.early}").count() == uses.of_early
    assert plain.count() == uses.of_early < uses.rows, "the next query, without a filter"
    guarded = read_log(spark, uses.url, pushdown=True)
    assert uses.found(guarded) != (uses.of_early + uses.of_late, uses.of_late), "one query, two filters"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW pushed USING holdfast OPTIONS (url '{uses.url}', pushdown true)")
    assert spark.sql(f"SELECT * FROM pushed WHERE version = {uses.early}").count() == uses.of_early
    assert spark.sql("SELECT * FROM pushed").count() == uses.of_early, "the next statement on a temporary view"


@pytest.mark.matrix
def test_the_time_of_a_commit_is_an_event_time_for_watermarks(spark: SparkSession, tmp_path: Path) -> None:
    builder = LogBuilder()
    leader = builder.lead()
    for minute in range(4):
        leader.head = replace(leader.head, time_ms=1_700_000_000_000 + minute * 60_000)
        leader.commit([Write(b"a", b"1")], [Write(b"b", b"2")])
    root = tmp_path / "log"
    root.mkdir()
    windows = (
        stream(spark, builder.write_to(root))
        .withWatermark("timestamp", "1 second")
        .groupBy(F.window("timestamp", "1 minute"))
        .count()
    )
    run_to_parquet(windows, tmp_path)
    assert [row["count"] for row in spark.read.parquet(str(tmp_path / "table")).collect()] == [2, 2, 2]


def sink(frame: DataFrame, service: ServiceProcess, application: str, **options: str) -> None:
    writer = frame.write.format("holdfast").mode("append").option("url", service.url).option("application", application)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def keys_written(service: ServiceProcess, prefix: bytes) -> Counter[bytes]:
    return Counter(
        operation.key
        for txn in service.transactions()
        for operation in txn.operations
        if isinstance(operation, Write) and operation.key.startswith(prefix)
    )


def test_rows_become_transactions_and_a_named_batch_is_written_once(
    spark: SparkSession, service: ServiceProcess
) -> None:
    frame = spark.range(0, 300, numPartitions=3).select(
        F.format_string("once/%04d", "id").alias("key"), F.lit("v").alias("value")
    )
    for _ in range(2):
        sink(frame, service, "once", token="2026-01-31")
    assert keys_written(service, b"once/") == Counter(b"once/%04d" % number for number in range(300))
    with pytest.raises(PySparkException, match=r"written before, with other rows.*written=300:"):
        sink(frame.where("id != 7"), service, "once", token="2026-01-31")
    sink(frame.repartition(2), service, "once", token="2026-01-31")
    assert set(keys_written(service, b"once/").values()) == {1}
    sink(frame, service, "once", token="2026-02-01")
    assert set(keys_written(service, b"once/").values()) == {2}


def test_kinds_groups_and_whole_transactions_arrive_as_they_are(spark: SparkSession, service: ServiceProcess) -> None:
    rows = [
        ("t1", "g/a", b"1", "write", None),
        ("t1", "g/b", None, "delete", None),
        ("t2", "g/c", None, "range_delete", "g/d"),
    ]
    frame = spark.createDataFrame(rows, "order string, key string, value binary, kind string, end string").coalesce(1)
    sink(frame, service, "grouped", transactionKey="order")
    grouped = [txn.operations for txn in service.transactions() if (txn.request_id or "").startswith("spark/grouped/")]
    assert grouped == [[Write(b"g/a", b"1"), Delete(b"g/b")], [RangeDelete(b"g/c", b"g/d")]]
    log = spark.read.format("holdfast").option("url", service.log_url).option("shape", "transactions").load()
    sink(log.where("request_id LIKE 'spark/grouped/%'").coalesce(1), service, "copied")
    copied = [txn.operations for txn in service.transactions() if (txn.request_id or "").startswith("spark/copied/")]
    assert sorted(map(repr, copied)) == sorted(map(repr, grouped))


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("'k' AS key", {}, "key and value are needed"),
        ("'k' AS key, 1 AS value", {}, "value is binary or string, or a struct that becomes JSON, not int"),
        ("'k' AS key, 'v' AS value, 1 AS other", {}, "columns other would be lost"),
        ("'k' AS key, 'v' AS value", {"transactionKey": "t"}, "no column t"),
        (
            "'k' AS key, 'v' AS value",
            {"startingVersion": "1"},
            "startingversion is unknown.*valid options: url, application",
        ),
        ("'k' AS key, 'v' AS value", {"checkpointLocation": "/c"}, "no effect on a batch write; valid options: url"),
        ("'k' AS key, 'v' AS value", {"application": "a/b"}, "application is required: 1 to 64"),
        ("'k' AS key, 'v' AS value", {"url": "s3://bucket"}, "url is the address of a service"),
        ("'k' AS key, 'v' AS value, 'up' AS kind", {}, "kind is write, delete or range_delete"),
        ("CAST(NULL AS STRING) AS key, 'v' AS value", {}, "a row has no key"),
    ],
)
def test_what_is_no_write_is_refused_with_the_reason(
    spark: SparkSession, service: ServiceProcess, columns: str, options: dict[str, str], says: str
) -> None:
    writer = spark.sql(f"SELECT {columns}").write.format("holdfast").mode("append")
    for name, value in {"url": service.url, "application": "refused", **options}.items():
        writer = writer.option(name, value)
    with pytest.raises(PySparkException, match=says):
        writer.save()


def test_a_log_is_appended_to_and_never_overwritten(spark: SparkSession, service: ServiceProcess) -> None:
    frame = spark.sql("SELECT 'k' AS key, 'v' AS value")
    with pytest.raises(PySparkException, match=r"a log only grows.*foreachBatch"):
        frame.write.format("holdfast").mode("overwrite").option("url", service.url).option("application", "o").save()


@pytest.mark.matrix
def test_a_stream_of_one_log_into_another_is_its_table_and_a_replay_adds_nothing(
    spark: SparkSession, service: ServiceProcess, tmp_path: Path
) -> None:
    """Killed between the sink's commit and Spark's own, a micro-batch comes again under its number; then, with the
    checkpoint gone, under number 0 with other offsets."""
    builder = LogBuilder()
    leader = builder.lead()
    for number in range(40):
        leader.commit([Write(b"s/%04d" % number, b"%d" % number)])
    root = tmp_path / "log"
    root.mkdir()
    url = builder.write_to(root)
    checkpoint = tmp_path / "checkpoint"

    def run(**options: str) -> int:
        writer = stream(spark, url, maxObjectsPerTrigger=15, columns="key,value").writeStream.format("holdfast")
        for name, value in {"url": service.url, "application": "streamed", **options}.items():
            writer = writer.option(name, value)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS_MAX)
        return len(query.recentProgress)

    assert run() >= 3
    once = Counter(b"s/%04d" % number for number in range(40))
    assert keys_written(service, b"s/") == once
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    run()
    assert keys_written(service, b"s/") == once, "the micro-batch ran again and sent nothing"
    leader.commit([Write(b"s/0040", b"40")])
    builder.write_to(root)
    run()
    assert keys_written(service, b"s/") == once + Counter([b"s/0040"])
    checkpoint.rename(tmp_path / "lost")
    with pytest.raises(PySparkException, match="written more than the checkpoint of this stream knows of"):
        run()
    assert keys_written(service, b"s/") == once + Counter([b"s/0040"])


@pytest.mark.matrix  # test_sink_protocol: no rows, nothing written
@pytest.mark.parametrize("place", matrix(["session file://", "session viewfs://", "option viewfs://", "option path"]))
def test_a_sink_into_the_log_that_its_stream_reads_settles_wherever_the_checkpoint_is(
    spark: SparkSession, service: ServiceProcess, tmp_path: Path, place: str
) -> None:
    """Its own records make micro-batches without rows, which write nothing. The checkpoint is Spark's affair."""
    kind, _, scheme = place.partition(" ")
    name = f"loop-{kind}-{len(scheme)}"
    viewed = "fs.viewfs.mounttable.fake.link./root"
    locations = {"viewfs://": "viewfs://fake/root", "file://": tmp_path.as_uri(), "path": str(tmp_path)}
    root = locations[scheme]
    session_wide = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(viewed, tmp_path.as_uri())
    if kind == "session":
        spark.conf.set(session_wide, root)
    with Client(service.url) as client:

        def run() -> int:
            """The version after a run to the end of what is there."""
            frame = stream(spark, service.log_url, keyPrefix=f"{name}/in/", columns="key,value")
            frame = frame.selectExpr("regexp_replace(string(key), '/in/', '/out/') AS key", "value")
            writer = frame.writeStream.format("holdfast").option("url", service.url).option("application", name)
            if kind == "option":
                writer = writer.option("checkpointLocation", f"{root}/{name}")
            query = writer.queryName(name).trigger(availableNow=True).start()
            assert query.awaitTermination(SECONDS_MAX)
            return client.version().version

        try:
            client.commit([Write(f"{name}/in/1".encode(), b"v")])
            first = run()
            assert run() == first, "the stream's own record makes a micro-batch that writes nothing"
            client.commit([Write(f"{name}/in/2".encode(), b"v")])
            last = max((tmp_path / name / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            run()
            second = max((tmp_path / name / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            assert int(second.name) == int(last.name) + 1
            second.unlink()
            (second.parent / f".{second.name}.crc").unlink(missing_ok=True)
            version = client.version().version
            assert run() == version, "the replay of a micro-batch does nothing, and nor does what follows"
            expected = [f"{name}/out/{number}".encode() for number in (1, 2)]
            assert keys_written(service, f"{name}/out/".encode()) == Counter(expected)
        finally:
            spark.conf.unset(viewed)
            spark.conf.unset(session_wide)
