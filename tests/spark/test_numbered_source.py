"""Whether a source is the one that the log's record names, and still has what was decided."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.spark.service_process import ServiceProcess

from holdfast.client.stores import StoreClient, define_spark_stores
from holdfast.copies.restoring import Point, restore
from holdfast.errors import InvalidRequest
from holdfast.objects.open import open_store
from holdfast.queue import Queue
from holdfast.spark.ingest.live_requests import LiveRequests
from holdfast.spark.ingest.numbered_source import DurableSource, QueueSource, Relation


def a_queue(path: Path, messages: int) -> QueueSource:
    with Queue(path) as queue:
        for _ in range(messages):
            queue.append(b"{}")
    return QueueSource(str(path))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_queue_whose_messages_had_no_times_is_continued(tmp_path: Path) -> None:
    """Rows with ``seq`` and ``payload`` only have requests, too, and the record then has the time 0."""
    source = a_queue(tmp_path / "q", 5)
    assert source.relation(source.identity, 3, 0) is Relation.SAME
    assert source.relation(source.identity, 6, 0) is Relation.PUT_BACK


def test_a_queue_that_lost_power_has_messages_that_were_decided(tmp_path: Path) -> None:
    """Messages 4 and 5 were decided and lost; their numbers go to others, or to none yet."""
    source = a_queue(tmp_path / "q", 3)
    decided_ms = now_ms()
    assert source.relation(source.identity, 5, decided_ms) is Relation.PUT_BACK
    time.sleep(0.005)
    a_queue(tmp_path / "q", 3)
    assert source.relation(source.identity, 5, decided_ms) is Relation.PUT_BACK
    assert source.relation(source.identity, 3, decided_ms) is Relation.SAME
    assert source.relation(source.identity, 5, 1) is Relation.MADE_AGAIN


def test_a_queue_whose_identity_file_is_missing_may_be_any_queue(tmp_path: Path) -> None:
    source = a_queue(tmp_path / "q", 5)
    before = source.identity
    for each in tmp_path.rglob("*-allMeta"):
        each.unlink()
    assert source.identity == f"queue:{tmp_path / 'q'}"
    assert source.relation(before, 5, now_ms()) is Relation.SAME
    other = a_queue(tmp_path / "other", 5)
    assert other.relation(before, 5, now_ms()) is Relation.OTHER
    assert other.relation("store:00ff/requests/spark", 5, 0) is Relation.OTHER
    assert other.relation(None, 5, now_ms()) is Relation.SAME


def test_a_queue_that_was_deleted_and_made_again_is_another_source(tmp_path: Path) -> None:
    before = a_queue(tmp_path / "q", 5).identity
    for each in tmp_path.iterdir():
        each.unlink()
    again = a_queue(tmp_path / "q", 9)
    assert again.relation(before, 5, now_ms()) is Relation.OTHER
    assert again.relation(again.identity, 5, now_ms()) is Relation.SAME


def test_an_identity_without_an_id_does_not_depend_on_the_current_directory(tmp_path: Path) -> None:
    a_queue(tmp_path / "q", 1)
    for each in tmp_path.rglob("*-allMeta"):
        each.unlink()
    assert QueueSource(f"{tmp_path}/./q").identity == QueueSource(str(tmp_path / "q")).identity


async def restored(source: str, target: str) -> None:
    stores = open_store(source), open_store(target)
    await restore(*stores, Point())
    for store in stores:
        await store.close()


def test_the_stores_of_a_restored_log_are_no_other_source(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    with ServiceProcess(first) as service, StoreClient(service.url) as client:
        define_spark_stores(client)
        earlier = DurableSource(service.url, "requests", "spark").identity
    second.mkdir()
    asyncio.run(restored(first.as_uri(), second.as_uri()))
    with ServiceProcess(second) as service, StoreClient(service.url) as client:
        define_spark_stores(client)
        source = DurableSource(service.url, "requests", "spark")
        assert source.identity != earlier
        assert source.relation(earlier, 5, 1) is Relation.MADE_AGAIN
        assert source.relation(source.identity, 0, 1) is Relation.SAME
        assert source.relation(earlier.replace("spark", "other"), 5, 1) is Relation.OTHER
        assert source.relation(f"queue:{32 * 'f'}", 5, 1) is Relation.OTHER
        with client.publisher("requests") as publisher:
            publisher.publish(b"{}")
        # Stores in files are not part of the log: these were made here, and their ids say so.
        assert source.relation(earlier, 5, now_ms() + 60_000) is Relation.MADE_AGAIN
        source.close()


def test_the_operator_says_that_a_queue_has_moved_and_a_durable_needs_no_word() -> None:
    for moved in (True, False):
        source = LiveRequests("queue:/var/requests", verdicts_store="verdicts", source_moved=moved).numbered()
        assert source is not None and source.is_moved is moved
    with pytest.raises(InvalidRequest, match="recognised wherever it is"):
        LiveRequests("store:http://desk:8080/requests/spark", verdicts_store="verdicts", source_moved=True).numbered()
