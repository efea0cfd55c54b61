"""Every engine finds the same values in every table of every pipeline, those of the partition columns included.

The reference is the Delta log itself: the files that it names, read as Parquet, and the partition values that it gives
them. Without JVM packages Spark reads the files that the Delta log names; on S3, where it would need more of them, the
other engines are compared. DuckDB reads the files itself and as a dataset, because its Delta extension is a download.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zlib import crc32

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from tests.matrix import matrix
from tests.rgw import Gateway
from tests.s3_lane import gateway, s3_bucket
from tests.spark.command_process import CommandProcess
from tests.spark.log_builder import random_log, read_plainly
from tests.spark.test_pipeline_cli import common, put_all

from holdfast.segments.table_location import table_location
from holdfast.spark import (
    Changes,
    History,
    Ingest,
    Latest,
    LoadOptions,
    RequestFormat,
    Segments,
    Snapshot,
    Verify,
    load_requests,
    resolve_requests,
    run_pipeline,
    stage,
)
from holdfast.spark.bulk.leadership import LeadershipOptions
from holdfast.spark.bulk.verdicts import write_verdicts

__all__ = ["gateway", "s3_bucket"]

BUCKETS = 3
DAY = date.fromisoformat
OF_TEXT: Mapping[str, Callable[[str], object]] = {"int32": int, "bool": "true".__eq__, "date32[day]": DAY}
PARTITION_RULES: Mapping[str, Mapping[str, Callable[[Mapping[str, Any]], object]]] = {
    "changes": {"day": lambda row: row["timestamp"].date()},
    "latest": {"bucket": lambda row: crc32(row["key"]) % BUCKETS},
    "history": {
        "bucket": lambda row: crc32(row["key"]) % BUCKETS,
        "is_current": lambda row: row["valid_to"] is None,
    },
}
"""What a partition column says of its row, said here a second time."""


def files_of(root: Path) -> dict[str, dict[str, Any]]:
    """The ``add`` action of every live file by its path, from the commits of the Delta log."""
    live: dict[str, dict[str, Any]] = {}
    for commit in sorted((root / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "remove" in action:
                live.pop(unquote(action["remove"]["path"]), None)
            if "add" in action:
                live[unquote(action["add"]["path"])] = action["add"]
    return live


def as_logged(root: Path) -> pa.Table:
    """The rows that the Delta log names, with the partition values that it gives them."""
    schema = schema_of(DeltaTable(str(root)))
    parts = [pa.table({field.name: pa.array([], field.type) for field in schema})]
    for path, add in files_of(root).items():
        rows = pq.ParquetFile(root / path).read()
        for name, text in add["partitionValues"].items():
            kind = schema.field(name).type
            value = OF_TEXT.get(str(kind), str)(text)
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, kind), rows.num_rows))
        parts.append(rows.select(schema.names).cast(parts[0].schema))
    return pa.concat_tables(parts)


Options = Mapping[str, str]
Engine = Callable[[SparkSession, DeltaTable, Options], pa.Table]
"""From a table and the options of its store to its rows."""


def by_deltalake(spark: SparkSession, table: DeltaTable, options: Options) -> pa.Table:
    return table.to_pyarrow_table()


def by_polars(spark: SparkSession, table: DeltaTable, options: Options) -> pa.Table:
    return pl.read_delta(table.table_uri, storage_options=dict(options)).to_arrow()


def by_polars_lazily(spark: SparkSession, table: DeltaTable, options: Options) -> pa.Table:
    return pl.scan_delta(table.table_uri, storage_options=dict(options)).collect().to_arrow()


def by_duckdb_dataset(spark: SparkSession, table: DeltaTable, options: Options) -> pa.Table:
    return duckdb.from_arrow(table.to_pyarrow_dataset()).to_arrow_table()


def by_duckdb_files(spark: SparkSession, table: DeltaTable, options: Options) -> pa.Table:
    of_sql = {"int32": "INTEGER", "bool": "BOOLEAN", "date32[day]": "DATE"}
    types = {name: of_sql[str(schema_of(table).field(name).type)] for name in table.metadata().partition_columns}
    given = ", ".join(f"'{name}': {kind}" for name, kind in types.items())
    hive = f", hive_partitioning = true, hive_types = {{{given}}}" if types else ""
    return duckdb.sql(f"SELECT * FROM read_parquet({table.file_uris()!r}{hive})").to_arrow_table()


def by_pandas(spark: SparkSession, table: DeltaTable, options: Options) -> pa.Table:
    return pa.Table.from_pandas(table.to_pandas(), schema_of(table), preserve_index=False)


def by_spark(spark: SparkSession, table: DeltaTable, options: Options) -> pa.Table:
    reader = spark.read.schema(from_arrow_schema(schema_of(table))).option("basePath", table.table_uri)
    return reader.parquet(*table.file_uris()).toArrow()


def schema_of(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


ON_S3: list[Engine] = [by_deltalake, by_polars, by_polars_lazily, by_duckdb_dataset, by_pandas]
ENGINES: list[Engine] = [by_spark, by_duckdb_files, *ON_S3]
TABLES = ["history", "changes", "latest", "snapshot", "segments", "verify", "resolve", "load", "ingest"]


def rows_of(table: pa.Table, schema: pa.Schema) -> list[tuple[object, ...]]:
    """The rows in an order of their own, in the types of ``schema``."""
    assert sorted(table.column_names) == sorted(schema.names)
    columns = [table[name].cast(schema.field(name).type).to_pylist() for name in schema.names]
    return sorted(zip(*columns, strict=True), key=repr)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The table of a pipeline by its name, made when it is first asked for."""
    root = tmp_path_factory.mktemp("tables")
    builder = random_log(71, reigns=4, batches=10)
    log = builder.write_to(root / "log")
    assert any(batch.transactions for batch in read_plainly(builder.objects))

    def make(name: str) -> Path:
        path = root / name
        if not path.exists():
            make_table(spark, name, log, path)
        return path

    return make


def make_table(spark: SparkSession, name: str, log: str, path: Path) -> None:
    url = path.as_uri()
    match name:
        case "history" | "latest":
            job = {"history": History, "latest": Latest}[name](spark, log, url, buckets=BUCKETS)
            run_pipeline(job, log, url, step_bytes=300_000)
        case "segments":
            run_pipeline(Segments(spark, log, url, log_bytes_min=1), log, url, step_bytes=300_000)
        case "changes" | "snapshot" | "verify":
            job = {"changes": Changes, "snapshot": Snapshot, "verify": Verify}[name](spark, log, url)
            run_pipeline(job, log, url, step_bytes=300_000)
        case _:
            make_verdicts(spark, name, path)


def requests_as_rows() -> list[dict[str, object]]:
    """Requests of every outcome."""
    read = [{"key": "k", "version": "#0"}]
    rows = [{"order": n, "key": "k", "value": str(n), "read_version": "#0", "preconditions": read} for n in (1, 2, 3)]
    return [*rows, {**rows[0], "order": 4, "read_version": None}]


def make_verdicts(spark: SparkSession, name: str, path: Path) -> None:
    """Verdicts of every kind: committed, in conflict and invalid."""
    rows = requests_as_rows()
    kinds = "order long, key string, value string, read_version string, "
    requests = spark.createDataFrame(rows, kinds + "preconditions array<struct<key: string, version: string>>")
    log = path.with_name(f"log-of-{name}").as_uri()
    match name:
        case "load":
            load_requests(spark, requests, log, path.as_uri(), LoadOptions(partitions=2))
        case "ingest":
            plain = requests.select("order", "key", "value")
            ingest = Ingest(log, path.as_uri(), "orders", leading=LeadershipOptions())
            ingest.micro_batch(plain, 0)
            ingest.micro_batch(plain.selectExpr("order + 10 AS order", "key", "value"), 1)
            ingest.close()
        case _:
            staged = stage(requests, RequestFormat(), partitions=2)
            resolution = resolve_requests(staged, 100)
            write_verdicts(staged, resolution, lambda each: 100 + each, path.as_uri(), made_by=name, identity="")
            staged.release()


def cases() -> list[Any]:
    """In ``make test`` each engine opens the table that has the most partition columns."""
    return matrix([(table, engine) for table in TABLES for engine in ENGINES], lambda case: case[0] == TABLES[0])


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case[0]}-{case[1].__name__}")
def test_every_engine_reads_the_values_that_the_delta_log_names(
    spark: SparkSession, made: Callable[[str], Path], case: tuple[str, Engine]
) -> None:
    name, engine = case
    path = made(name)
    wanted = as_logged(path)
    assert wanted.num_rows
    if name in PARTITION_RULES:
        check_files(name, path)
    assert rows_of(engine(spark, DeltaTable(str(path)), {}), wanted.schema) == rows_of(wanted, wanted.schema)


def test_a_filter_on_a_partition_column_finds_its_rows_in_polars(made: Callable[[str], Path]) -> None:
    """Polars takes the values of partition columns from paths."""
    path = made("history")
    wanted = [row for row in as_logged(path).to_pylist() if row["is_current"]]
    found = pl.scan_delta(str(path)).filter(pl.col("is_current")).collect()
    assert wanted and sorted(found["key"].to_list()) == sorted(row["key"] for row in wanted)


def check_files(name: str, root: Path) -> None:
    """Every live file is in the folder of its partition, and its partition values and bounds are those of its rows."""
    rules, columns = PARTITION_RULES[name], DeltaTable(str(root)).metadata().partition_columns
    for path, add in files_of(root).items():
        assert path.split("/")[:-1] == [f"{column}={add['partitionValues'][column]}" for column in columns]
        rows, stats = pq.ParquetFile(root / path).read(), json.loads(add["stats"])
        assert stats["numRecords"] == rows.num_rows and stats["minValues"]
        for column, lowest in stats["minValues"].items():
            numbers = [each for each in rows[column].to_pylist() if each is not None]
            assert (min(numbers), max(numbers)) == (lowest, stats["maxValues"][column])
    for row in as_logged(root).to_pylist():
        assert all(row[column] == rule(row) for column, rule in rules.items())


@pytest.mark.matrix
@pytest.mark.timeout(420)
def test_every_engine_reads_the_same_values_on_a_real_s3_server(
    spark: SparkSession, tmp_path: Path, s3_bucket: str, gateway: object
) -> None:
    assert isinstance(gateway, Gateway)
    builder = random_log(71, reigns=4, batches=10)
    log = gateway.url(s3_bucket, prefix="log")
    asyncio.run(put_all(log, builder.objects))
    source = tmp_path / "requests" / "1.json"
    source.parent.mkdir()
    source.write_text("\n".join(json.dumps(row) for row in requests_as_rows()))
    plain = "order LONG, key STRING, value STRING"
    requests = ["--from", str(source.parent), "--format", "json"]
    more = {
        "history": ["--buckets", str(BUCKETS), "--step-bytes", "300000"],
        "latest": ["--buckets", str(BUCKETS), "--step-bytes", "300000"],
        "segments": ["--min-bytes", "1"],
        "resolve": requests,
        "load": requests,
        "ingest": [*requests, "--name", "s", "--checkpoint", str(tmp_path / "checkpoint"), "--schema", plain],
    }
    with CommandProcess() as commands:
        for name in TABLES:
            to = gateway.url(s3_bucket, prefix=f"lake/{name}")
            code, _ = commands.run("spark", name, *common(log, to), *more.get(name, []))
            assert code == (6 if name == "verify" else 0), "the verdicts of a random log are random"
    for name in TABLES:
        location = table_location(gateway.url(s3_bucket, prefix=f"lake/{name}"))
        table = DeltaTable(location.uri, storage_options=dict(location.options))
        wanted = table.to_pyarrow_table()
        for row in wanted.to_pylist():
            assert all(row[column] == rule(row) for column, rule in PARTITION_RULES.get(name, {}).items())
        for engine in ON_S3:
            found = engine(spark, table, location.options)
            assert rows_of(found, schema_of(table)) == rows_of(wanted, schema_of(table)), (name, engine)
