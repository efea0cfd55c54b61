"""Requests that are numbered messages: acknowledged with their verdicts, and decided once without any checkpoint."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.matrix import matrix
from tests.spark.plain_ingest import retention
from tests.spark.service_process import ServiceProcess
from tests.spark.test_bulk_load import Killed, transactions

from holdfast import Queue, StoreClient
from holdfast.client.stores import Message, define_spark_stores
from holdfast.commit.format.transaction import Write
from holdfast.errors import AlreadyOpen, Closed, Code, Fenced, InvalidRequest, Unavailable
from holdfast.spark.bulk.leadership import LeadershipOptions
from holdfast.spark.ingest.ingest import Ingest, commit_stream
from holdfast.spark.ingest.live_requests import LiveRequests
from holdfast.spark.ingest.micro_batches import Stages
from holdfast.spark.ingest.numbered_source import DurableSource, NumberedSource, QueueSource
from holdfast.spark.ingest.verdict_output import VerdictStore
from holdfast.spark.messages.durable_client import DurableClient

POLITE = LeadershipOptions(sign_interval_ms=50.0)


def body(number: int) -> bytes:
    """A request without an id: sent twice, it would be committed twice."""
    value = b64encode(b"value %d" % number).decode()
    return json.dumps({"operations": [{"type": "write", "key": "aw==", "value": value}]}).encode()


class Desk:
    """A service with the stores of requests and verdicts, and what is in them."""

    def __init__(self, service: ServiceProcess, client: StoreClient) -> None:
        self.url = service.url
        self.client = client
        self.requests = DurableSource(self.url, "requests", "spark")

    def send(self, first: int, past: int, *, ttl_ms: int = 0) -> None:
        sent = [Message(body(number), {"n": number}, ttl_ms=ttl_ms) for number in range(first, past)]
        with self.client.publisher("requests") as publisher:
            publisher.publish_batch(sent)

    def waiting(self) -> int:
        counts = self.client.describe_durable("requests", "spark")["counts"]
        return int(cast("dict[str, int]", counts)["messages"])

    def verdicts(self) -> list[tuple[object, dict[str, Any]]]:
        """The number of the request, None where only its message has one, and its verdict; in order."""
        return [(each.fields.get("n"), json.loads(each.body)) for each in self.client.browser("verdicts", "all")]


@contextmanager
def a_desk(root: Path) -> Iterator[Desk]:
    root.mkdir()
    with ServiceProcess(root) as service, StoreClient(service.url) as client:
        define_spark_stores(client)
        client.define_durable("verdicts", "all", {"type": "shared"})
        desk = Desk(service, client)
        yield desk
        desk.requests.close()


def an_ingest(root: Path, desk: Desk, source: NumberedSource | None = None, name: str = "orders") -> Ingest:
    return Ingest(
        (root / "log").as_uri(), VerdictStore(desk.url, "verdicts"), name, request_format=None,
        source=source or DurableSource(desk.url, "requests", "spark"), leading=POLITE, group_requests=4,
    )  # fmt: skip


class Frame:
    """A micro-batch as Spark would read it now: the first ``most`` messages that the durable keeps."""

    def __init__(self, spark: SparkSession, source: NumberedSource, most: int = 1000) -> None:
        self.sparkSession = spark
        self.requests = [request for _, request in sorted(source.kept(1, 1_000_000).items())][:most]


@pytest.fixture(autouse=True)
def _frames(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "stream" not in request.node.name:
        monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)


def offered(spark: SparkSession, source: NumberedSource, most: int = 1000) -> DataFrame:
    return cast("DataFrame", Frame(spark, source, most))


def values_of(root: Path) -> list[bytes]:
    found = [each for txn in transactions(root / "log") for each in txn.operations if isinstance(each, Write)]
    return [each.value for each in found]


def in_order(past: int) -> list[bytes]:
    return [b"value %d" % number for number in range(past)]


def test_a_micro_batch_is_acknowledged_as_soon_as_its_verdicts_are_durable(spark: SparkSession, tmp_path: Path) -> None:
    with a_desk(tmp_path / "desk") as desk:
        desk.send(0, 10)
        ingest = an_ingest(tmp_path, desk)
        ingest.micro_batch(offered(spark, desk.requests), 0)
        assert desk.waiting() == 0
        assert [number for number, _ in desk.verdicts()] == list(range(10))
        ingest.close()
        # Spark repeats what its checkpoint does not have: the messages are gone, and nothing is decided again.
        again = an_ingest(tmp_path, desk)
        again.micro_batch(offered(spark, desk.requests), 0)
        again.close()
    assert values_of(tmp_path) == in_order(10)


def _one_group_and_no_more() -> Callable[[Any, Any], None]:
    left, whole = [1], Stages.persist

    def persist(stages: Any, groups: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        whole(stages, groups)

    return persist


@pytest.mark.parametrize("death", matrix(["verdicts", "acknowledge", "half acknowledged", "second group"]))
@pytest.mark.parametrize("most", matrix([1000, 3]))
def test_a_killed_ingest_goes_on_without_its_checkpoint_and_each_request_counts_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str, most: int
) -> None:
    """Each restart begins at micro-batch 0, with what the durable keeps then, in other pieces than before."""

    def dies(*_: object) -> None:
        raise Killed(death)

    with a_desk(tmp_path / "desk") as desk:
        desk.send(0, 5)
        first = an_ingest(tmp_path, desk)
        first.micro_batch(offered(spark, desk.requests), 0)
        desk.send(5, 15)
        match death:
            case "verdicts":
                monkeypatch.setattr(VerdictStore, "write", dies)
            case "acknowledge":
                monkeypatch.setattr(DurableSource, "acknowledge", dies)
            case "half acknowledged":
                real = DurableClient.acknowledge_own
                monkeypatch.setattr(DurableClient, "acknowledge_own", lambda me, *_: [real(me, 9), dies()])
            case _:
                monkeypatch.setattr("holdfast.spark.ingest.micro_batches.WAVE", 1)
                monkeypatch.setattr("holdfast.spark.ingest.micro_batches.Stages.persist", _one_group_and_no_more())
        with pytest.raises(Killed):
            first.micro_batch(offered(spark, desk.requests), 1)
        if first._stages is not None:  # its process dies: it answers nobody any more
            first._abandon(first._stages)
        monkeypatch.undo()
        monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
        second = an_ingest(tmp_path, desk)
        for number in range(10):
            second.micro_batch(offered(spark, desk.requests, most), number)
        second.close()
        assert desk.waiting() == 0
        verdicts = desk.verdicts()
    assert values_of(tmp_path) == in_order(15)
    assert [number for number, _ in verdicts] == list(range(15))
    assert len({verdict["version"] for _, verdict in verdicts}) == 15


def test_a_request_that_expired_after_it_was_decided_gets_a_verdict_and_stops_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise Killed

    with a_desk(tmp_path / "desk") as desk:
        desk.send(0, 1, ttl_ms=4_000)
        desk.send(1, 6)
        first = an_ingest(tmp_path, desk)
        with monkeypatch.context() as patch:
            patch.setattr(VerdictStore, "write", dies)
            with pytest.raises(Killed):
                first.micro_batch(offered(spark, desk.requests), 0)
        until = time.monotonic() + 60
        while desk.waiting() == 6:
            assert time.monotonic() < until
            time.sleep(0.05)
        second = an_ingest(tmp_path, desk)
        second.micro_batch(offered(spark, desk.requests), 0)
        second.close()
        assert [number for number, _ in desk.verdicts()] == [None, 1, 2, 3, 4, 5]
        assert all(verdict["status"] == "committed" for _, verdict in desk.verdicts())
        assert next(each.key for each in desk.client.browser("verdicts", "all")) == "#1"
    assert values_of(tmp_path) == in_order(6)


def test_another_name_on_the_same_durable_is_refused_and_names_the_first(spark: SparkSession, tmp_path: Path) -> None:
    with a_desk(tmp_path / "desk") as desk:
        desk.send(0, 2)
        first = an_ingest(tmp_path, desk)
        first.micro_batch(offered(spark, desk.requests), 0)
        first.close()
        desk.send(2, 4)
        other = an_ingest(tmp_path, desk, name="another")
        with pytest.raises(InvalidRequest, match="'orders' has taken requests from this source") as refused:
            other.micro_batch(offered(spark, desk.requests), 0)
        assert "--name orders" in refused.value.hint
        other.close()
        desk.client.define_durable("requests", "second", {"type": "standard"})
        taken = an_ingest(tmp_path, desk, DurableSource(desk.url, "requests", "second"))
        with pytest.raises(InvalidRequest, match="belongs to another source"):
            taken.micro_batch(offered(spark, desk.requests), 0)
        taken.close()
        again = an_ingest(tmp_path, desk)
        again.micro_batch(offered(spark, desk.requests), 0)
        again.close()
    assert values_of(tmp_path) == in_order(4)


def test_name_and_source_belong_together_after_retention_removed_the_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    with a_desk(tmp_path / "desk") as desk:
        desk.send(0, 2)
        first = an_ingest(tmp_path, desk)
        first.micro_batch(offered(spark, desk.requests), 0)
        first.close()
        retention(tmp_path / "log")
        desk.send(2, 4)
        other = an_ingest(tmp_path, desk, name="another")
        with pytest.raises(InvalidRequest, match="'orders' has taken requests from this source"):
            other.micro_batch(offered(spark, desk.requests), 0)
        other.close()
        again = an_ingest(tmp_path, desk)
        again.micro_batch(offered(spark, desk.requests), 0)
        again.close()
        assert again.counts.committed == 2
        assert [number for number, _ in desk.verdicts()] == [0, 1, 2, 3]


def test_a_store_that_was_made_again_is_no_reason_to_leave_requests_out(spark: SparkSession, tmp_path: Path) -> None:
    with a_desk(tmp_path / "desk") as desk:
        desk.send(0, 5)
        first = an_ingest(tmp_path, desk)
        first.micro_batch(offered(spark, desk.requests), 0)
        first.close()
        for count in (3, 7):
            desk.client.delete_store("requests")
            define_spark_stores(desk.client)
            desk.send(5, 5 + count)
            with pytest.raises(Closed) as replaced:
                desk.requests.kept(1, 10)
            assert replaced.value.code == Code.STORE_REPLACED, "a source that is open is of the store that it met"
            desk.requests.close()
            again = an_ingest(tmp_path, desk)
            with pytest.raises(InvalidRequest, match="deleted and made again") as refused:
                again.micro_batch(offered(spark, desk.requests), 0)
            assert refused.value.code == Code.STORE_REPLACED
            again.close()
        other = an_ingest(tmp_path, desk, name="another")
        other.micro_batch(offered(spark, desk.requests), 0)
        other.close()
    assert values_of(tmp_path) == in_order(12)


def test_something_else_is_refused_the_durable_and_ends_the_ingest_where_an_administrator_gave_it_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    with a_desk(tmp_path / "desk") as desk:
        terms = {"type": "standard", "prefetch": 0, "subscriber_timeout": 0.3}
        desk.client.define_durable("requests", "spark", terms)
        ingest = an_ingest(tmp_path, desk)
        desk.send(0, 2)
        ingest.micro_batch(offered(spark, desk.requests), 0)
        other = an_ingest(tmp_path / "another", desk)
        for thief in (
            lambda: DurableClient(desk.url, "requests", "spark").acknowledge_through(3),
            lambda: other.micro_batch(offered(spark, desk.requests), 0),
        ):
            with pytest.raises(AlreadyOpen, match="spark/ingest/") as refused:
                thief()
            assert refused.value.code == Code.DURABLE_BUSY
        other.close()
        desk.send(2, 4)
        ingest.micro_batch(offered(spark, desk.requests), 1)
        assert (values_of(tmp_path), desk.waiting()) == (in_order(4), 0)
        desk.send(4, 6)
        with desk.client.subscriber("requests", "spark", subscriber="reports", take_over=True) as taken:
            received = taken.receive(timeout=10)
            assert received is not None
            taken.acknowledge(received, confirmed=True)
            with pytest.raises(Fenced) as ended:
                ingest.micro_batch(offered(spark, desk.requests), 2)
        assert ended.value.code == Code.DURABLE_COLLISION
        ingest.close()


def test_a_durable_that_was_made_again_under_an_ingest_ends_it_and_is_not_acknowledged(
    spark: SparkSession, tmp_path: Path
) -> None:
    with a_desk(tmp_path / "desk") as desk:
        ingest = an_ingest(tmp_path, desk)
        desk.send(0, 5)
        ingest.micro_batch(offered(spark, desk.requests), 0)
        desk.client.delete_store("requests")
        define_spark_stores(desk.client)
        desk.requests.close()
        desk.send(5, 12)
        for _ in range(2):  # also when the query is started again with the same object
            with pytest.raises((Closed, InvalidRequest), match="made again") as ended:
                ingest.micro_batch(offered(spark, desk.requests), 1)
            assert ended.value.code == Code.STORE_REPLACED
        assert desk.waiting() == 7
        ingest.close()


def test_a_queue_that_is_read_again_from_its_begin_is_decided_once(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    with a_desk(tmp_path / "desk") as desk, Queue(path) as queue:
        for number in range(6):
            queue.append(body(number))
        queue.flush()
        source = QueueSource(path)
        first = an_ingest(tmp_path, desk, source)
        first.micro_batch(offered(spark, source, 4), 0)
        first.close()
        second = an_ingest(tmp_path, desk, source)
        second.micro_batch(offered(spark, source), 0)
        second.close()
        other = an_ingest(tmp_path, desk, source, name="another")
        with pytest.raises(InvalidRequest, match="'orders' has taken"):
            other.micro_batch(offered(spark, source), 0)
        other.close()
        assert len(desk.verdicts()) == 6
    assert values_of(tmp_path) == in_order(6)


@pytest.mark.matrix  # a killed ingest goes on without it: a test above
def test_a_stream_without_its_checkpoint_continues_under_its_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real streams of Spark, each with a checkpoint of its own; the first ones are killed at the acknowledgement."""

    def run(number: int) -> int:
        live = LiveRequests(f"store:{desk.url}/requests/spark", verdicts_store="verdicts")
        frame = live.stream(spark)
        assert frame is not None
        stream = commit_stream(
            frame, (tmp_path / "log").as_uri(), live.verdicts(), "orders", str(tmp_path / f"checkpoint-{number}"),
            request_format=None, source=live.numbered(), leading=POLITE,
        )  # fmt: skip
        try:
            stream.wait()
        finally:
            stream.stop()
        return stream.counts.requests

    def dies(*_: object) -> None:
        raise Unavailable("it was killed")

    with a_desk(tmp_path / "desk") as desk:
        desk.send(0, 4)
        assert run(0) == 4
        assert desk.waiting() == 0
        desk.send(4, 8)
        with monkeypatch.context() as patch:
            patch.setattr(DurableSource, "acknowledge", dies)
            with pytest.raises(Unavailable, match="it was killed"):
                run(1)
        assert desk.waiting() == 4
        desk.send(8, 10)
        assert run(2) == 2
        assert run(1) == 0  # Spark repeats a micro-batch whose messages are gone
        assert desk.waiting() == 0
        assert [number for number, _ in desk.verdicts()] == list(range(10))
    assert values_of(tmp_path) == in_order(10)
