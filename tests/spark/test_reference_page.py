"""The reference page of the source and the sink: its examples run, and its tables name every option and no other."""

from __future__ import annotations

import asyncio
import re
import warnings
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.log_with_stores import STORES, Site
from tests.spark.service_process import ServiceProcess
from tests.spark.test_pipeline_audit import damageable, on_disk, world
from tests.spark.test_pipeline_docs import PYTHON

from holdfast import StoreClient
from holdfast.queue import Queue
from holdfast.spark import Latest, Segments, run_pipeline
from holdfast.spark.options import (
    LOG_OPTIONS,
    QUEUE_OPTIONS,
    SERVED_STORE_OPTIONS,
    STORE_OPTIONS,
    STORE_WRITE_OPTIONS,
    TABLE_OPTIONS,
    WRITE_OPTIONS,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md"
MESSAGE_COLUMNS = {"body", "key", "fields", "ttl_ms", "deliver_at"}


def named(intro: str) -> set[str]:
    """What the first cells of the table, or the items of the list, after these words name."""
    _, after = PAGE.read_text(encoding="utf-8").split(intro)
    block = re.search(r"^(?:[-|].*\n|  .*\n)+", after, re.MULTILINE)
    assert block is not None
    firsts = re.findall(r"^(?:\| (.*?) \||- (.*?):)", block[0], re.MULTILINE)
    return {name for first in firsts for name in re.findall(r"`(\w+)`", "".join(first))}


def test_the_tables_name_every_option_and_no_other() -> None:
    assert named("## Options of a read\n") == set(LOG_OPTIONS)
    assert named("### A queue\n") == set(QUEUE_OPTIONS)
    assert named("### A message store\n") == set(STORE_OPTIONS)
    assert named("### A message store of a service\n") == set(SERVED_STORE_OPTIONS)
    assert named("### A table of a pipeline\n") == set(TABLE_OPTIONS)
    assert named("Options of a write:\n") == set(WRITE_OPTIONS)
    assert named("| column | type | |\n") == MESSAGE_COLUMNS
    assert named("Options of a write into a store:\n") == set(STORE_WRITE_OPTIONS)


def log_of_orders(root: Path) -> str:
    """A log with a store that has messages in a checkpoint and after it."""
    site = Site(root)

    async def make() -> None:
        try:
            leader = await site.lead("m", STORES)
            await leader.publish([b"2 x coffee"])
            await leader.checkpoint()
            await leader.publish([b"1 x tea"])
        finally:
            await site.end()

    asyncio.run(make())
    return site.url


@pytest.mark.matrix
def test_the_examples_of_the_page_run(spark: SparkSession, tmp_path: Path) -> None:
    log = on_disk(dict(world(next(damageable()))), tmp_path / "log")
    segments = (tmp_path / "segments").as_uri()
    run_pipeline(Segments(spark, log, segments, log_bytes_min=1), log, segments)
    table = (tmp_path / "latest").as_uri()
    run_pipeline(Latest(spark, log, table), log, table)
    with Queue(tmp_path / "orders") as queue:
        queue.append_many([b"first", b"second"])
    (tmp_path / "served").mkdir()
    names: dict[str, object] = {"spark": spark, "log": log, "segments": segments, "queue": str(tmp_path / "orders")}
    names["table"] = table
    names["stores"] = str(tmp_path / "stores")
    names["log_of_orders"] = log_of_orders(tmp_path / "machine")
    with (
        ServiceProcess(tmp_path / "served", f"stores.directory={names['stores']}") as service,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        names["service"] = service.url
        with StoreClient(service.url) as client:
            client.define_store("orders")
            client.define_durable("orders", "work", {"type": "shared"})
            with client.publisher("orders") as publisher:
                for body in (b"2 x coffee", b"1 x tea"):
                    publisher.publish(body, fields={"kind": "drink"})
        # One after the other, as one reads them: a later one may use what an earlier one made.
        for block in PYTHON.findall(PAGE.read_text(encoding="utf-8")):
            exec(compile(block, PAGE.name, "exec"), names)
        assert len(service.transactions()) > 0
