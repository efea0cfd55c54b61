"""``changes`` and ``latest`` of a store: tables of the messages of a durable, each once, whatever ends a step."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.command_process import CommandProcess
from tests.spark.service_process import NO_VIEW, ServiceProcess
from tests.spark.test_pipeline_exactly_once import Killed, killed_after, killed_before, once

from holdfast import StoreClient
from holdfast.errors import Closed, Code, InvalidRequest
from holdfast.spark import RunReport, Schedule, StoreChanges, StoreLatest, run_pipeline
from holdfast.spark.log.delta_output import DeltaOutput
from holdfast.spark.tables.store_tables import LATEST_MESSAGE_ROWS, merge_messages

Kind = type[StoreChanges] | type[StoreLatest]
KINDS: tuple[Kind, ...] = (StoreChanges, StoreLatest)
Published = list[tuple[int, str | None, bytes]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    root = tmp_path_factory.mktemp("log")
    with ServiceProcess(root, NO_VIEW, f"stores.directory={root.with_name(root.name + '-stores')}") as started:
        yield started


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[StoreClient]:
    with StoreClient(service.url) as opened:
        for store in [each["name"] for each in opened.stores()["stores"]]:  # type: ignore[attr-defined]
            opened.delete_store(store)
        opened.define_store("orders")
        opened.define_durable("orders", "lake", {"type": "standard", "prefetch": 1024})
        yield opened


def publish(client: StoreClient, *messages: tuple[str | None, bytes]) -> Published:
    with client.publisher("orders") as publisher:
        return [
            (publisher.publish(body, key=key, fields={"size": len(body)}).first_seq, key, body)
            for key, body in messages
        ]


def run(
    spark: SparkSession, kind: Kind, service: ServiceProcess, output: Path, *, durable: str = "lake", **more: Any
) -> RunReport:
    job = kind(spark, service.url, "orders", durable, output.as_uri())
    return run_pipeline(job, service.url, output.as_uri(), **more)


def content(kind: Kind, output: Path) -> Published:
    rows = DeltaTable(str(output)).to_pyarrow_table().to_pylist()
    assert all(row["fields"] == f'{{"size":{len(row["body"])}}}' for row in rows)
    now = datetime.now(UTC)
    assert all(now - timedelta(minutes=10) < row["time"] <= now for row in rows)
    assert all(row["day"] == row["time"].date() for row in rows if kind is StoreChanges)
    return sorted((row["seq"], row["key"], row["body"]) for row in rows)


def expected(kind: Kind, published: Published) -> Published:
    if kind is StoreChanges:
        return published
    return sorted({key: (seq, key, body) for seq, key, body in published if key is not None}.values())


def acknowledged(client: StoreClient, durable: str = "lake") -> int:
    counts: Any = client.describe_durable("orders", durable)["counts"]
    return int(counts["acknowledged"])


@pytest.mark.parametrize("kind", matrix(KINDS, lambda kind: kind is StoreLatest))
def test_a_table_follows_its_durable_step_by_step_and_lets_it_go(
    spark: SparkSession, service: ServiceProcess, client: StoreClient, tmp_path: Path, kind: Kind
) -> None:
    published = publish(client, *((f"k{n % 5}", b"%d" % n) for n in range(30)), (None, b"without a key"))
    report = run(spark, kind, service, tmp_path / "table", step_bytes=300)
    assert content(kind, tmp_path / "table") == expected(kind, published)
    assert report.step_count > 1 and report.version == 31
    assert acknowledged(client) == 31
    published += publish(client, ("k1", b""), ("k9", b"new"))
    report = run(spark, kind, service, tmp_path / "table", schedule=Schedule(until=32))
    assert report.version == 32 and content(kind, tmp_path / "table") == expected(kind, published[:-1])
    assert run(spark, kind, service, tmp_path / "table").step_count == 1
    assert content(kind, tmp_path / "table") == expected(kind, published)
    assert run(spark, kind, service, tmp_path / "table").step_count == 0


@pytest.mark.parametrize("kind", matrix(KINDS, lambda kind: kind is StoreChanges))
@pytest.mark.parametrize("death", [killed_before, killed_after])
def test_a_run_killed_around_its_commit_is_continued_exactly(
    spark: SparkSession,
    service: ServiceProcess,
    client: StoreClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    death: Any,
) -> None:
    published = publish(client, *((f"k{n % 3}", b"%d" % n) for n in range(12)))
    once(monkeypatch, DeltaOutput, "commit", death)
    with pytest.raises(Killed):
        run(spark, kind, service, tmp_path / "table", step_bytes=30)
    assert acknowledged(client) == 0, "nothing leaves the durable before the table has it for certain"
    published += publish(client, ("k0", b"later"))
    report = run(spark, kind, service, tmp_path / "table")
    assert (report.started_at > 0) == (death is killed_after)
    assert content(kind, tmp_path / "table") == expected(kind, published) and acknowledged(client) == 13


def test_a_table_of_another_durable_and_lost_messages_are_refused(
    spark: SparkSession, service: ServiceProcess, client: StoreClient, tmp_path: Path
) -> None:
    published = publish(client, ("a", b"1"))
    run(spark, StoreChanges, service, tmp_path / "table")
    with pytest.raises(InvalidRequest, match="made of another log"):
        run(spark, StoreChanges, service, tmp_path / "table", durable="other")
    client.define_durable("orders", "shared", {"type": "shared"})
    with pytest.raises(InvalidRequest, match="type standard"):
        run(spark, StoreChanges, service, tmp_path / "new", durable="shared")
    client.delete_durable("orders", "lake")
    publish(client, ("a", b"lost"))
    with pytest.raises(Closed, match="made again"):
        run(spark, StoreChanges, service, tmp_path / "table")
    client.delete_store("orders")
    client.define_store("orders")
    publish(client, *[("a", b"new")] * 9)
    with pytest.raises(Closed, match="made again"):
        run(spark, StoreChanges, service, tmp_path / "table")
    assert content(StoreChanges, tmp_path / "table") == published


def test_a_second_table_on_a_durable_is_refused_and_the_first_goes_on(
    spark: SparkSession, service: ServiceProcess, client: StoreClient, tmp_path: Path
) -> None:
    client.define_durable("orders", "own", {"type": "standard", "subscriber_timeout": 0.2})
    published = publish(client, ("a", b"1"))
    first = StoreChanges(spark, service.url, "orders", "own", (tmp_path / "table").as_uri())
    place = (tmp_path / "table").as_uri()
    run_pipeline(first, service.url, place)
    with pytest.raises(InvalidRequest, match="another subscriber has this durable") as refused:
        run(spark, StoreLatest, service, tmp_path / "second", durable="own")
    assert refused.value.code is Code.DURABLE_BUSY
    published += publish(client, ("a", b"2"))
    assert run_pipeline(first, service.url, place).version == 2
    assert content(StoreChanges, tmp_path / "table") == published and acknowledged(client, "own") == 2
    del first
    assert run(spark, StoreLatest, service, tmp_path / "second", durable="own").version == 0


@pytest.mark.parametrize("what", ["store", "durable"])
def test_a_store_that_is_made_again_under_a_table_ends_it_and_is_not_acknowledged(
    spark: SparkSession, service: ServiceProcess, client: StoreClient, tmp_path: Path, what: str
) -> None:
    """Between two steps of a job that runs, and while it is stopped: with more messages than the table has."""
    published = publish(client, *(("a", b"old"),) * 3)
    place = (tmp_path / "table").as_uri()
    job = StoreChanges(spark, service.url, "orders", "lake", place)
    run_pipeline(job, service.url, place)
    if what == "store":
        client.delete_store("orders")
        client.define_store("orders")
    else:
        client.delete_durable("orders", "lake")
    client.define_durable("orders", "lake", {"type": "standard"})
    publish(client, *(("a", b"new"),) * 5)
    for again in (job, StoreChanges(spark, service.url, "orders", "lake", place)):
        with pytest.raises(Closed, match="made again") as refused:
            run_pipeline(again, service.url, place)
        assert refused.value.code is Code.STORE_REPLACED
    assert content(StoreChanges, tmp_path / "table") == published and acknowledged(client) == 0


def test_the_newest_message_of_each_key_is_kept_in_the_order_of_keys() -> None:
    time = datetime(2026, 1, 31, tzinfo=UTC)
    current = pa.table([["a", "b"], [b"1", b"2"], ["{}", "{}"], [1, 2], [time, time]], schema=LATEST_MESSAGE_ROWS)
    changes = pa.table(
        {
            "version": [3, 4, 5],
            "key": [b"c", b"a", b"c"],
            "body": [b"3", b"4", b"5"],
            "fields": ["{}"] * 3,
            "time": pa.array([time] * 3, pa.timestamp("us", tz="UTC")),
        }
    )
    (part,) = merge_messages(current, changes)
    assert [(row["key"], row["seq"]) for row in part.rows.to_pylist()] == [("a", 4), ("b", 2), ("c", 5)]


@pytest.mark.matrix
def test_the_commands_make_tables_of_a_store(service: ServiceProcess, client: StoreClient, tmp_path: Path) -> None:
    published = publish(client, ("a", b"1"), ("b", b"2"), ("a", b"3"))
    client.define_durable("orders", "other", {"type": "standard"})
    source = ("--service", service.url, "--store", "orders", "--durable", "lake", "--json")
    with CommandProcess() as command:
        code, lines = command.run("spark", "changes", *source, "--to", (tmp_path / "changes").as_uri())
        report: Any = lines[-1]["report"]
        assert (code, report["rows"], report["version"]) == (0, 3, 3)
        code, _ = command.run("spark", "changes", *source, "--to", (tmp_path / "x").as_uri(), "--key-prefix", "a")
        assert code == 2
        code, _ = command.run("spark", "latest", *source[:2], "--json", "--to", (tmp_path / "x").as_uri())
        assert code == 2
    assert content(StoreChanges, tmp_path / "changes") == published
