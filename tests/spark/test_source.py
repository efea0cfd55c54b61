"""What ``spark.read.format("holdfast")`` promises, on generated logs, against the plain reading of the same objects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, PlainBatch, random_log, read_plainly
from tests.spark.plain import PlainRow, batch_rows, operation_rows, spark_rows, transaction_rows

from holdfast.commit.format.batch import FIRST_SLOT, object_name
from holdfast.commit.format.transaction import Delete, Write

DEFAULT_COLUMNS = ("version", "seq", "request_id", "kind", "key", "end", "value", "timestamp")
SEED = 4


@dataclass(frozen=True)
class WrittenLog:
    """A log on disk and what the plain reading finds in it."""

    url: str
    root: Path
    builder: LogBuilder
    live: list[PlainBatch]

    @property
    def rows(self) -> list[PlainRow]:
        return operation_rows(self.live)


def written(builder: LogBuilder, root: Path) -> WrittenLog:
    return WrittenLog(builder.write_to(root), root, builder, list(read_plainly(builder.objects)))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return written(random_log(SEED, reigns=7), tmp_path_factory.mktemp("log"))


def read(spark: SparkSession, url: str, **options: object) -> DataFrame:
    reader = spark.read.format("holdfast").option("url", url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def only(rows: list[PlainRow], *columns: str) -> list[PlainRow]:
    return [{name: row[name] for name in columns} for row in rows]


@pytest.mark.parametrize("seed", matrix([1, 2]))
def test_rows_equal_a_plain_reading_of_the_live_chain_and_dead_slots_never_show(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    log = written(random_log(seed, reigns=7), tmp_path)
    assert len(log.builder.objects) > len(log.live), "this world has zombies in dead slots"
    columns = ",".join((*DEFAULT_COLUMNS, "position", "leader_id"))
    frame = read(spark, log.url, columns=columns, targetPartitionBytes=2**20)
    found = spark_rows(frame, "version", "position")
    assert found == [{name: row[name] for name in found[0]} for row in log.rows]


def test_columns_and_types_are_those_of_the_design(spark: SparkSession, log: WrittenLog) -> None:
    schema = read(spark, log.url).schema
    assert schema.simpleString() == (
        "struct<version:bigint,seq:bigint,request_id:string,kind:string,key:binary,end:binary,value:binary,timestamp:timestamp>"
    )


def test_a_log_of_claims_only_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    builder = LogBuilder()
    builder.lead()
    builder.lead()
    url = builder.write_to(tmp_path)
    assert read(spark, url).collect() == []
    assert read(spark, url, shape="batches").count() == 2


def test_an_empty_store_is_an_error_not_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="log is empty"):
        read(spark, tmp_path.as_uri()).collect()


def test_transactions_carry_their_operations_in_order_and_the_version_before(
    spark: SparkSession, log: WrittenLog
) -> None:
    frame = read(spark, log.url, shape="transactions", includePreconditions=True)
    assert spark_rows(frame, "version") == transaction_rows(log.live)


def test_batches_show_every_live_object_as_its_header_says(spark: SparkSession, log: WrittenLog) -> None:
    assert spark_rows(read(spark, log.url, shape="batches"), "seq") == batch_rows(log.live, log.builder.objects)


def test_columns_prune_and_order_the_schema(spark: SparkSession, log: WrittenLog) -> None:
    frame = read(spark, log.url, columns="key, version,position")
    assert frame.columns == ["key", "version", "position"]
    assert spark_rows(frame, "version", "position") == only(log.rows, "key", "version", "position")


def test_starting_and_ending_version_are_inclusive_and_cut_inside_a_batch(spark: SparkSession, log: WrittenLog) -> None:
    batch = next(batch for batch in log.live[len(log.live) // 3 :] if len(batch.transactions) > 2)
    later = next(batch for batch in log.live[len(log.live) // 2 :] if len(batch.transactions) > 2)
    first, last = batch.transactions[1].version, later.transactions[1].version
    found = spark_rows(read(spark, log.url, startingVersion=first, endingVersion=last), "version", "seq")
    wanted = [row for row in log.rows if first <= row["version"] <= last]
    assert sorted(map(repr, found)) == sorted(map(repr, only(wanted, *DEFAULT_COLUMNS)))
    assert read(spark, log.url, asOfVersion=last).count() == sum(row["version"] <= last for row in log.rows)


def test_versions_between_transactions_bound_like_any_other(spark: SparkSession, log: WrittenLog) -> None:
    claim = next(batch.header for batch in log.live[1:] if batch.header.epoch == 3)
    after = [row["version"] for row in log.rows if row["version"] >= claim.first_version]
    found = read(spark, log.url, startingVersion=claim.first_version, columns="version").collect()
    assert sorted(row.version for row in found) == after
    end = log.live[-1].header.last_version
    assert read(spark, log.url, startingVersion=end + 1).collect() == []


def test_an_ending_version_that_the_log_has_not_reached_is_an_error(spark: SparkSession, log: WrittenLog) -> None:
    with pytest.raises(PySparkException, match="endingVersion is past the end of the log"):
        read(spark, log.url, endingVersion=log.live[-1].header.last_version + 1).collect()


def test_starting_at_latest_reads_the_newest_version_only(spark: SparkSession, log: WrittenLog) -> None:
    end = log.live[-1].header.last_version
    found = spark_rows(read(spark, log.url, startingVersion="latest", columns="version"), "version")
    assert found == only([row for row in log.rows if row["version"] >= end], "version")


def test_key_bounds_and_kinds_reach_the_tasks(spark: SparkSession, log: WrittenLog) -> None:
    found = spark_rows(
        read(spark, log.url, keyPrefix="a", kinds="write", columns="version,position"), "version", "position"
    )
    wanted = [row for row in log.rows if row["kind"] == "write" and row["key"].startswith(b"a")]
    assert 0 < len(wanted) < len(log.rows)
    assert found == only(wanted, "version", "position")


def test_a_value_of_many_megabytes_arrives_whole(spark: SparkSession, tmp_path: Path) -> None:
    builder = LogBuilder()
    leader = builder.lead()
    value = builder.random.randbytes(20 * 2**20)
    leader.commit([Write(b"small", b"1")])
    leader.commit([Write(b"huge", value)], [Delete(b"small")])
    found = {bytes(row.key): row.value for row in read(spark, builder.write_to(tmp_path), kinds="write").collect()}
    assert bytes(found[b"huge"]) == value
    assert bytes(found[b"small"]) == b"1"


def test_thousands_of_tiny_objects_take_few_tasks_and_a_large_log_more_than_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = LogBuilder()
    leader = builder.lead()
    for number in range(1500):
        leader.commit([Write(b"%05d" % number, b"v")])
    url = builder.write_to(tmp_path)
    frame = read(spark, url)
    assert frame.rdd.getNumPartitions() == 2, "12 MB of work for a session of two cores"
    assert read(spark, url, minPartitions=5).rdd.getNumPartitions() == 5
    packed = read(spark, url, targetPartitionBytes=2**20)
    assert 10 < packed.rdd.getNumPartitions() < 40
    keys = [bytes(row.key) for row in packed.select("key").collect()]
    assert sorted(keys) == [b"%05d" % number for number in range(1500)]


def test_sql_views_take_the_same_options(spark: SparkSession, log: WrittenLog) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW operations USING holdfast OPTIONS (url '{log.url}', kinds 'write')")
    assert spark.sql("SELECT count(*) AS n FROM operations").first().n == sum(
        row["kind"] == "write" for row in log.rows
    )


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_or_missing_object_fails_the_read_and_is_named(
    spark: SparkSession, tmp_path: Path, damage: str
) -> None:
    builder = LogBuilder()
    leader = builder.lead()
    for number in range(8):
        leader.commit([Write(b"key%d" % number, b"v" * 100)])
    url = builder.write_to(tmp_path)
    slot = FIRST_SLOT - 4
    path = tmp_path / object_name(slot)
    data = bytearray(path.read_bytes())
    match damage:
        case "flipped":
            data[700] ^= 1
            path.write_bytes(data)
        case _:
            path.unlink()
    with pytest.raises(PySparkException, match=str(slot)):
        read(spark, url).collect()


@pytest.mark.parametrize(
    ("of_one_id", "says"), [(True, "log is damaged: .*{border}"), (False, "another log|not of the leader that claimed")]
)
def test_the_link_to_the_piece_before_is_checked_at_partition_borders(
    spark: SparkSession, tmp_path: Path, of_one_id: bool, says: str
) -> None:
    """Two logs of equal sizes, spliced exactly where one task's piece ends and the next one's begins."""
    one, other = LogBuilder(seed=1), LogBuilder(seed=2)
    if of_one_id:
        other.log_id = one.log_id
    for builder in (one, other):
        leader = builder.lead()
        for _ in range(4):
            leader.commit([Write(b"key", builder.random.randbytes(2**20))])
    border = FIRST_SLOT - 3
    one.objects |= {slot: data for slot, data in other.objects.items() if slot <= border}
    with pytest.raises(PySparkException, match=says.replace("{border}", str(border))):
        read(spark, one.write_to(tmp_path), targetPartitionBytes=2**20).collect()


def test_a_misspelled_option_is_an_error_that_lists_the_valid_ones(spark: SparkSession, log: WrittenLog) -> None:
    with pytest.raises(PySparkException, match=r"did you mean startingVersion\?.*valid options: url, shape, columns"):
        read(spark, log.url, startVersion=5).collect()


def test_a_declared_schema_is_refused(spark: SparkSession, log: WrittenLog) -> None:
    with pytest.raises(PySparkException, match="cannot be declared"):
        spark.read.format("holdfast").schema("key string").load(log.url).collect()


def test_load_takes_the_url(spark: SparkSession, log: WrittenLog) -> None:
    assert spark.read.format("holdfast").load(log.url).count() == len(log.rows)
