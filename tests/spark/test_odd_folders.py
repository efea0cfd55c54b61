"""Every entry point finds a folder whatever its name is, or refuses the name before anything is made there."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.bulk_requests import SCHEMA, Request
from tests.spark.local_frames import local
from tests.spark.log_builder import latest_plainly, random_log, read_plainly
from tests.spark.plain import operation_rows
from tests.spark.plain_ingest import an_ingest, offered
from tests.spark.test_pipeline_tables import content, expected
from tests.spark.test_store_source import publish
from tests.spark.test_store_source import read as read_store
from tests.spark.test_store_source import run as with_stores

from holdfast import Queue
from holdfast.commit.format.transaction import Write
from holdfast.console.pages.pipelines import read_table as read_on_console
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.segments.table_location import table_location
from holdfast.spark import (
    Changes,
    History,
    Latest,
    Replay,
    Segments,
    Snapshot,
    Verify,
    load_requests,
    read_log,
    read_table,
    run_pipeline,
)
from holdfast.spark.data_source import HoldfastDataSource
from holdfast.spark.ingest import ingest as ingest_module
from holdfast.stores.service import StoreService

__all__ = ["local"]

FIT = (
    "a b", "a%zz", "100%", "%", "%2", "a#b", "a?b", "a+b", "a&b", "a;b", "ü", "u\u0308", "日本 🙂", "year=2024", "=x",
    ".hidden", "...", "it's", 'q"q', "x:y", "x@y", "~", "*", "{a,b}", "$HOME", "a`b", "<b>", " first", "last ", "\x85",
    "n" * 255,
)  # fmt: skip
"""Names that logs and tables have."""
UNFIT = ("a%20b", "%2F", "a%2520b", "%C3%BC", "%00", "back\\slash", "a[b", "a]b", "a|b", "a^b", "a\nb", "a\x7fb")
"""Names that only logs have: the library for Delta tables cannot have them in a path."""
MIXED = "a%zz b#c?d+e&ü='q\".~x"
ALL_MIXED = MIXED + "%20\\"


def read(**options: str) -> list[dict[str, object]]:
    """The rows of a batch read, as the data source gives them to Spark."""
    source = HoldfastDataSource(options)
    reader = source.reader(source.schema())
    return [row for piece in reader.partitions() for batch in reader.read(piece) for row in batch.to_pylist()]  # type: ignore[union-attr]


def streamed(**options: str) -> list[dict[str, object]]:
    """The rows of a stream from its beginning to now."""
    source = HoldfastDataSource(options)
    reader = source.streamReader(source.schema())
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    pieces = reader.partitions(begin, end)
    return [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]  # type: ignore[union-attr]


def a_log(folder: Path, *, reigns: int = 1) -> tuple[str, list[dict[str, object]]]:
    """A log in the folder, and its operations."""
    folder.mkdir(parents=True)
    builder = random_log(21, reigns=reigns)
    return builder.write_to(folder), operation_rows(read_plainly(builder.objects))  # type: ignore[return-value]


@pytest.mark.parametrize("name", matrix([ALL_MIXED, *FIT, *UNFIT]))
def test_a_log_a_queue_and_stores_are_read_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    url, rows = a_log(tmp_path / name / "log")
    versions = sorted(row["version"] for row in rows)  # type: ignore[type-var]
    for found in (read(url=url), streamed(url=url, startingVersion="earliest"), read(path=url, shape="operations")):
        assert sorted(row["version"] for row in found) == versions  # type: ignore[type-var]
    with Queue(tmp_path / name / "queue") as queue:
        queue.append_many([b"first", b"second"])
    found = read(shape="messages", queue=str(tmp_path / name / "queue"))
    assert [row["payload"] for row in found] == [b"first", b"second"]

    async def check(service: StoreService) -> None:
        await publish(service, [b"one", b"two"])

    (tmp_path / name / "stores").mkdir()
    with_stores(tmp_path / name / "stores", check, orders={})
    assert [row["body"] for row in read_store(tmp_path / name / "stores")] == [b"one", b"two"]


@pytest.mark.parametrize("name", matrix([MIXED, *FIT]))
def test_a_table_is_made_and_read_in_a_folder_of_any_name_that_delta_can_have(
    local: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    log, rows = a_log(tmp_path / name / "log")
    builder = random_log(21, reigns=1)
    for kind in (Changes, Latest, History):
        output = tmp_path / name / kind.name
        run_pipeline(kind(local, log, output.as_uri()), log, output.as_uri(), progress=None)
        assert content(kind, output) == expected(kind, builder)
        assert len(read(table=output.as_uri())) == len(content(kind, output))  # type: ignore[arg-type]
        shown = read_on_console(output.as_uri())
        assert (shown.pipeline, shown.problem) == (kind.name, "") and shown.written_ms > 0
    found = streamed(table=(tmp_path / name / "changes").as_uri())
    assert len(found) == len(rows)
    verdicts = tmp_path / name / "verdicts"
    monkeypatch.setattr(ingest_module, "message_requests", lambda frame: frame.requests)
    ingest = an_ingest(tmp_path / name / "ingested", verdicts.as_uri(), None)
    ingest.micro_batch(offered(1, 2, 3), 0)
    ingest.close()
    assert len(read(table=verdicts.as_uri())) == 3


def places(log: str) -> dict[str, Callable[[str], object]]:
    """What takes the place of a table, as it is called without Spark."""
    job: dict[str, Callable[[str], object]] = {
        kind.name: partial(lambda kind, url: kind(None, log, url), kind)
        for kind in (Changes, Latest, History, Snapshot, Segments)
    }
    return job | {
        "location": table_location,
        "source": lambda url: read(table=url),
        "stream": lambda url: streamed(table=url),
        "segments": lambda url: read(url=log, segments=url),
    }


@pytest.mark.parametrize("name", matrix(UNFIT))
def test_a_table_is_refused_in_a_folder_that_delta_cannot_have_and_nothing_is_made(tmp_path: Path, name: str) -> None:
    """Delta's library would make the table, and then look for it in another folder."""
    log, _ = a_log(tmp_path / "log")
    (tmp_path / name).mkdir()
    plain = tmp_path / "link"
    plain.symlink_to(tmp_path / name)
    for folder in (tmp_path / name / "table", plain / "table"):
        for place, use in places(log).items():
            with pytest.raises(InvalidRequest, match="a table cannot be here") as refused:
                use(folder.as_uri())
            assert refused.value.fields["found"] in name, place
        assert "a table cannot be here" in read_on_console(folder.as_uri()).problem
    assert not os.listdir(tmp_path / name)


@pytest.mark.parametrize("url", ["s3://lake/a%20b/table", "s3://lake/a b", "gs://lake/%2f", "az://lake/ü"])
def test_a_table_on_a_store_is_refused_where_delta_would_look_elsewhere(url: str) -> None:
    with pytest.raises(InvalidRequest):
        table_location(url)
    assert table_location("s3://lake/year=2024/table").uri == "s3://lake/year=2024/table"


@pytest.mark.parametrize("url", ["file:///a#b", "file:///a?b", "file:///a?", "file:///a\nb", "file://host/a", "file:"])
def test_a_url_that_would_name_another_folder_is_refused(url: str) -> None:
    for use in (table_location, lambda at: read(url=at), lambda at: read(table=at), lambda at: streamed(url=at)):
        with pytest.raises(HoldfastError) as refused:
            use(url)
        assert isinstance(refused.value, InvalidRequest)


def test_spark_finds_every_kind_of_folder_of_an_odd_name(spark: SparkSession, tmp_path: Path) -> None:
    check_with_spark(spark, tmp_path, MIXED, whole=False)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_spark_finds_every_kind_of_folder_of_any_name(spark: SparkSession, tmp_path: Path) -> None:
    for number, name in enumerate(FIT):
        (tmp_path / str(number)).mkdir()
        check_with_spark(spark, tmp_path / str(number), name, whole=True)


def check_with_spark(spark: SparkSession, root: Path, name: str, *, whole: bool) -> None:
    """Every job and every read that needs Spark; ``whole`` for the jobs that share their entry point, too."""
    log, rows = a_log(root / name / "log")
    count = len(rows)

    def at(kind: str) -> str:
        return (root / name / kind).as_uri()

    run_pipeline(Segments(spark, log, at("segments"), log_bytes_min=1), log, at("segments"), progress=None)
    assert read_log(spark, log, segments=at("segments")).count() == count
    if whole:
        requests = spark.createDataFrame([Request((Write(b"k", b"v"),)).row(1)], SCHEMA)
        assert load_requests(spark, requests, at("loaded"), at("verdicts")).committed == 1
        assert read_table(spark, at("verdicts")).count() == 1
        assert [row["value"] for row in read(url=at("loaded")) if row["key"] == b"k"] == [b"v"]
        run_pipeline(Snapshot(spark, log, at("snapshot")), log, at("snapshot"), progress=None)
        assert read_table(spark, at("snapshot")).count() == len(latest_plainly(random_log(21, reigns=1).objects))
        run_pipeline(Verify(spark, log, at("audit")), log, at("audit"), progress=None)
        assert read_on_console(at("audit")).verified > 0
        run_pipeline(Replay(spark, log, at("replay")), log, at("replay"), progress=None)
        copied = spark.read.format("holdfast").load(at("replay"))
        assert copied.count() == count
    for number, clause in enumerate((f"OPTIONS (url '{log}')", f"LOCATION '{log}'")):
        table = f"of_an_odd_name_{number}"
        spark.sql(f"DROP TABLE IF EXISTS {table}")
        spark.sql(f"CREATE TABLE {table} USING holdfast {clause}")
        try:
            assert spark.table(table).count() == count
        finally:
            spark.sql(f"DROP TABLE {table}")
    stream = spark.readStream.format("holdfast").option("url", log).option("startingVersion", "earliest").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(root / name / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(root / name / "copy"))
    assert query.awaitTermination(120)
    assert spark.read.schema(stream.schema).parquet(str(root / name / "copy")).count() == count
    assert (root / name / "checkpoint" / "offsets").is_dir()


def test_spark_reports_the_folder_that_delta_cannot_have(spark: SparkSession, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "table"), pa.table({"version": [1]}))
    (tmp_path / "table").rename(tmp_path / "a%20b")
    with pytest.raises(InvalidRequest, match=r"a table cannot be here.*choose a path without %"):
        read_table(spark, (tmp_path / "a%20b").as_uri())
