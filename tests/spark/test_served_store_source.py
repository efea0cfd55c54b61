"""A store of a service as a source over HTTP: each message once, acknowledged when Spark has committed it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.service_process import NO_VIEW, ServiceProcess

from holdfast import Client, StoreClient
from holdfast.copies.restoring import Point, restore
from holdfast.errors import AlreadyOpen, Closed, Code, Conflict, Fenced, InvalidRequest, NotFound, Unavailable
from holdfast.objects.open import open_store
from holdfast.spark.data_source import HoldfastDataSource
from holdfast.spark.ingest.numbered_source import DurableSource, Relation
from holdfast.spark.messages.durable_client import DurableClient
from holdfast.spark.messages.served_store import (
    HoldfastServedStoreStreamReader,
    Offset,
    plan_served,
    served_rows,
)
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_served_store_options
from holdfast.stores.repair import backup

Rows = list[tuple[int, bytes]]


@pytest.fixture(scope="module", params=matrix(["log", "disk"]))
def service(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    root = tmp_path_factory.mktemp("log")
    stores = root.with_name(f"{root.name}-stores")
    with ServiceProcess(root, NO_VIEW, f"stores.directory={stores}", f"stores.durability={request.param}") as started:
        yield started


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[StoreClient]:
    """A client of a service with the empty store ``orders``, which has a durable of another subscriber."""
    with StoreClient(service.url) as opened:
        for name in [each["name"] for each in opened.stores()["stores"]]:  # type: ignore[attr-defined]
            opened.delete_store(name)
        opened.define_store("orders")
        opened.define_durable("orders", "others", {"type": "shared"})
        yield opened


def publish(client: StoreClient, *bodies: bytes, store: str = "orders") -> None:
    with client.publisher(store) as publisher:
        for body in bodies:
            publisher.publish(body, fields={"n": len(body)}, key="k")


_opened: list[HoldfastServedStoreStreamReader] = []


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """Every reader of a test ends with it."""
    yield
    while _opened:
        _opened.pop().stop()


def streaming(service: ServiceProcess, **options: str) -> HoldfastServedStoreStreamReader:
    given = {"shape": "messages", "url": service.url, "store": "orders", "durable": "lake", "pollInterval": "1ms"}
    _opened.append(HoldfastServedStoreStreamReader(parse_served_store_options({**given, **options}, Mode.STREAM)))
    return _opened[-1]


def rows_between(reader: HoldfastServedStoreStreamReader, start: Offset, end: Offset) -> Rows:
    return [
        (row["seq"], row["body"])
        for piece in reader.partitions(start, end)
        for batch in reader.read(piece)
        for row in batch.to_pylist()
    ]


def next_offset(reader: HoldfastServedStoreStreamReader, start: Offset) -> Offset:
    time.sleep(0.002)  # longer than the poll interval
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def drained(reader: HoldfastServedStoreStreamReader, start: Offset, *, commits: bool = True) -> tuple[Rows, Offset]:
    """One micro-batch after the other until nothing is left, each read again by a reader after a restart."""
    seen: Rows = []
    while (end := next_offset(reader, start)) != start:
        rows = rows_between(reader, start, end)
        again = HoldfastServedStoreStreamReader(reader._options)
        assert rows_between(again, start, end) == rows
        again.stop()
        if commits:
            reader.commit(json.loads(json.dumps(end)))
        seen += rows
        start = end
    return seen, start


def counts(client: StoreClient, durable: str = "lake") -> dict[str, Any]:
    found = client.describe_durable("orders", durable)["counts"]
    assert isinstance(found, dict)
    return found


def test_a_bound_in_bytes_ends_a_micro_batch_by_the_mean_message(service: ServiceProcess, client: StoreClient) -> None:
    reader = streaming(service, maxBytesPerTrigger="1000")
    place = reader.initialOffset()
    publish(client, *[bytes(100)] * 40)
    counted = reader.latestOffset(place, reader.getDefaultReadLimit())["seq"]
    assert 5 <= counted <= 10, "the mean counts what a message has besides its body"
    lone = streaming(service, maxBytesPerTrigger="1")
    assert lone.latestOffset(place, lone.getDefaultReadLimit())["seq"] == 1


def test_a_stream_returns_each_message_once_and_acknowledges_what_spark_has_committed(
    service: ServiceProcess, client: StoreClient
) -> None:
    publish(client, b"before the durable")
    reader = streaming(service, maxRowsPerTrigger="3")
    place = reader.initialOffset()
    assert client.describe_durable("orders", "lake")["type"] == "standard"
    assert next_offset(reader, place) == place
    bodies = [b"%d" % number for number in range(10)]
    publish(client, *bodies)
    seen, place = drained(reader, place)
    assert [body for _, body in seen] == bodies and place["seq"] == 11
    assert (counts(client)["messages"], counts(client)["acknowledged"]) == (0, 10)
    assert counts(client, "others")["messages"] == 11
    publish(client, b"x", b"y")
    uncommitted, end = drained(reader, place, commits=False)
    assert [body for _, body in uncommitted] == [b"x", b"y"] and counts(client)["messages"] == 2
    # Spark runs the micro-batch again that it has not committed; then another process continues after it.
    again = streaming(service)
    assert rows_between(again, place, end) == uncommitted
    publish(client, b"z")
    last = next_offset(again, end)
    assert counts(client)["messages"] == 3, "nothing was committed here"
    again.commit(end)
    assert counts(client)["messages"] == 1
    restarted = streaming(service)
    assert next_offset(restarted, last) == last
    assert counts(client)["messages"] == 0, "the checkpoint shows that its last micro-batch is committed"


def test_what_a_durable_does_not_want_is_neither_waited_for_nor_a_loss(
    service: ServiceProcess, client: StoreClient
) -> None:
    reader = streaming(service, matcher='{"n": 3}', maxRowsPerTrigger="5")
    place = reader.initialOffset()
    publish(client, *[b"a" * number for number in range(1, 6)] * 8)
    seen, place = drained(reader, place)
    assert [body for _, body in seen] == [b"aaa"] * 8
    assert counts(client)["messages"] == 0
    publish(client, b"no", b"no")
    assert next_offset(reader, place) == place
    restarted = streaming(service)
    assert next_offset(restarted, place) == place
    publish(client, b"yes")
    assert [body for _, body in drained(restarted, place)[0]] == [b"yes"]


def test_a_stream_for_what_is_there_now_ends_there(service: ServiceProcess, client: StoreClient) -> None:
    reader = streaming(service)
    start = reader.initialOffset()
    publish(client, b"1", b"2")
    reader.prepareForTriggerAvailableNow()
    publish(client, b"3")
    assert drained(reader, start)[0] == [(1, b"1"), (2, b"2")]


def test_messages_that_an_acknowledgement_held_too_far_are_kept_and_cost_no_delivery(
    service: ServiceProcess, client: StoreClient
) -> None:
    terms = {"type": "standard", "matcher": {"n": 3}, "max_delivery": 2, "ack_wait": "1s"}
    client.define_durable("orders", "lake", terms)
    publish(client, *[b"no", b"yes"] * 6)
    with DurableClient(service.url, "orders", "lake") as durable:
        assert durable.acknowledge_through(3) == 1
        assert counts(client)["unacknowledged"] == 3
        for _ in range(3):
            deadline = time.monotonic() + 30
            while counts(client)["unacknowledged"]:  # what lapses takes the later ones with it
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert durable.acknowledge_through(3, 0) == 0
        assert durable.acknowledge_through(11, 3) == 4
        assert [each.seq for page in durable.messages(0, 100) for each in page] == [12]
        assert counts(client)["parked"] == 0
    with DurableClient(service.url, "orders", "lake") as other:
        assert other.acknowledge_left(12) + other.acknowledge_through(12, 11) == 1
    assert counts(client)["messages"] == 0


def test_pages_and_pieces_together_are_the_durable(service: ServiceProcess, client: StoreClient) -> None:
    reader = streaming(service, targetPartitionBytes="1048576")
    reader.initialOffset()
    bodies = [bytes([number]) * 40_000 for number in range(1, 100)]
    for first in range(0, len(bodies), 20):
        publish(client, *bodies[first : first + 20])
    pieces = reader.partitions(begin := reader.initialOffset(), {**begin, "seq": 99})
    assert 3 < len(pieces) < 8
    found = [row["body"] for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]
    assert found == bodies
    planned = plan_served(reader._options)
    rows = [row for piece in planned for each in served_rows(reader._options, piece) for row in each.to_pylist()]
    assert [row["body"] for row in rows] == bodies and rows[0]["fields"] == '{"n":40000}' and rows[0]["key"] == "k"
    assert counts(client)["messages"] == 99, "a batch consumes nothing"


def test_a_page_that_is_too_large_for_a_response_is_asked_for_in_parts(
    service: ServiceProcess, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, *[bytes([number]) * 40_000 for number in range(20)])
    with DurableClient(service.url, "orders", "others") as durable:
        small = type(durable._client.session.options)(response_bytes_max=100_000)
        monkeypatch.setattr(durable._client.session, "options", small)
        monkeypatch.setattr(durable._client, "_options", small, raising=False)
        assert [each.seq for page in durable.messages(0, 100, 20) for each in page] == list(range(1, 21))


def test_what_has_gone_since_the_checkpoint_is_an_error_or_skipped(
    service: ServiceProcess, client: StoreClient
) -> None:
    reader = streaming(service)
    start = reader.initialOffset()
    publish(client, *[b"first"] * 5)
    _, place = drained(reader, start)
    client.delete_durable("orders", "lake")
    publish(client, b"missed")
    for _ in range(2):
        with pytest.raises(Closed, match="made again") as refused:
            next_offset(streaming(service), place)
        assert refused.value.code is Code.STORE_REPLACED
    publish(client, b"seen")
    lenient = streaming(service, failOnDataLoss="false")
    seen, later = drained(lenient, place)
    assert [body for _, body in seen] == [b"seen"]
    assert next_offset(streaming(service), later) == later, "nothing is missing after it"
    client.delete_store("orders")
    with pytest.raises(NotFound, match="no such store"):
        next_offset(streaming(service), later)
    client.define_store("orders")
    with pytest.raises(Closed, match="made again"):
        next_offset(streaming(service), later)
    publish(client, *[b"again"] * 9)
    with pytest.raises(Closed, match="made again"):
        next_offset(streaming(service, failOnDataLoss="false"), later)
    assert counts(client)["acknowledged"] == 0


@pytest.mark.parametrize("what", ["store", "durable"])
def test_a_stream_ends_when_its_store_is_made_again_under_it(
    service: ServiceProcess, client: StoreClient, what: str
) -> None:
    """As many messages again, so no number is missing: 120 of the new store, of which 100 would be acknowledged."""
    reader = streaming(service)
    start = reader.initialOffset()
    publish(client, *[b"old"] * 100)
    end = next_offset(reader, start)
    pieces = reader.partitions(start, end)
    if what == "store":
        client.delete_store("orders")
        client.define_store("orders")
    else:
        client.delete_durable("orders", "lake")
    streaming(service).initialOffset()  # makes the durable
    publish(client, *[b"new"] * 120)
    for step in (
        lambda: next_offset(reader, end),
        lambda: reader.partitions(start, end),
        lambda: list(reader.read(pieces[0])),
        lambda: reader.commit(end),
        lambda: streaming(service).partitions(start, end),
        lambda: next_offset(streaming(service), end),
    ):
        with pytest.raises(Closed) as refused:
            step()
        assert refused.value.code is Code.STORE_REPLACED
    assert (counts(client)["messages"], counts(client)["acknowledged"]) == (120, 0)


@pytest.mark.parametrize("durability", matrix(["log", "disk"]))
def test_in_another_history_a_stream_and_an_ingest_go_on_from_what_the_copy_has(
    tmp_path: Path, durability: str
) -> None:
    """Judged by history and number. As many messages again, older times and a decided record do not hide a loss."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    lives_in_log = durability == "log"

    def serving(root: Path, stores: str) -> ServiceProcess:
        directory = f"stores.directory={tmp_path / stores}"
        return ServiceProcess(root, NO_VIEW, directory, f"stores.durability={durability}")

    with serving(first, "stores") as service, StoreClient(service.url) as client:
        client.define_store("orders")
        reader = streaming(service, acknowledge="false")
        start = reader.initialOffset()
        publish(client, *[b"kept"] * 5)
        kept = next_offset(reader, start)
        source = DurableSource(service.url, "orders", "lake")
        identity = source.identity
        source.close()
        if not lives_in_log:
            client.cluster_command("backup", {"name": "copy"})
        with Client(service.url) as log:
            cut = log.version().version
        publish(client, *[b"lost"] * 5)
        lost = next_offset(reader, kept)
        assert (kept["seq"], lost["seq"]) == (5, 10)
        reader.stop()
    if lives_in_log:
        second.mkdir()
        asyncio.run(restored(first.as_uri(), second.as_uri(), Point(version=cut)))
    else:
        second = first
        backup.restore(str(tmp_path / "stores-backups" / "copy"), str(tmp_path / "restored"))
    with serving(second, "restored") as service, StoreClient(service.url) as client:
        publish(client, *[b"new"] * 10)
        seen, _ = drained(streaming(service, acknowledge="false"), kept, commits=False)
        assert seen == [(seq, b"new") for seq in range(6, 16)]
        for step in (
            lambda: next_offset(streaming(service), lost),
            lambda: next_offset(streaming(service, failOnDataLoss="false"), lost),
            lambda: streaming(service).partitions(kept, lost),
        ):
            with pytest.raises(Closed) as refused:
                step()
            assert refused.value.code is Code.STORE_REPLACED
        source = DurableSource(service.url, "orders", "lake")
        assert source.identity != identity
        assert source.relation(identity, 5, 0) is Relation.SAME
        assert source.relation(identity, 10, 0) is Relation.PUT_BACK
        with pytest.raises(Closed), DurableClient(service.url, "orders", "lake", token=str(kept["token"])) as planned:
            list(planned.messages(3, 10))
        source.close()


async def restored(source: str, target: str, point: Point) -> None:
    stores = open_store(source), open_store(target, create_missing=True)
    await restore(*stores, point)
    for store in stores:
        await store.close()


def test_a_durable_that_something_else_consumes_is_refused(service: ServiceProcess, client: StoreClient) -> None:
    client.define_durable("orders", "lake", {"type": "shared"})
    with pytest.raises(Conflict, match="of type standard") as refused:
        streaming(service).initialOffset()
    assert refused.value.code is Code.TYPE_MISMATCH
    client.define_durable("orders", "own", {"type": "standard", "subscriber_timeout": 0.2})
    with client.subscriber("orders", "own", subscriber="reports"), pytest.raises(AlreadyOpen, match="reports") as held:
        streaming(service, durable="own").initialOffset()
    assert held.value.code is Code.DURABLE_BUSY
    first = streaming(service, durable="own")
    place = first.initialOffset()
    publish(client, b"1", b"2")
    end = next_offset(first, place)
    first.commit(end)
    # An administrator may give the durable to another subscriber: the first query notices what it has missed.
    publish(client, b"3")
    taken = client.subscriber("orders", "own", subscriber="reports", take_over=True)
    with taken as subscriber:
        received = subscriber.receive(timeout=10)
        assert received is not None
        subscriber.acknowledge(received, confirmed=True)
        with pytest.raises(Fenced, match="another subscriber consumes") as lost:
            first.commit({**end, "seq": 3})
    assert lost.value.code is Code.DURABLE_COLLISION


def test_a_second_query_on_a_durable_is_refused_and_the_first_goes_on(
    service: ServiceProcess, client: StoreClient
) -> None:
    """Also a query that has read nothing for longer than a subscriber may be silent has its durable."""
    client.define_durable("orders", "lake", {"type": "standard", "subscriber_timeout": 0.3, "max_delivery": 1})
    first = streaming(service)
    place = first.initialOffset()
    publish(client, *[b"x"] * 5)
    written = counts(client)

    def second_is_refused() -> None:
        for step in (
            lambda: streaming(service).initialOffset(),
            lambda: next_offset(streaming(service), {**place, "seq": 0, "query": "another"}),
            lambda: streaming(service).commit({**place, "seq": 5, "query": "another"}),
        ):
            with pytest.raises(AlreadyOpen, match="another subscriber has this durable") as refused:
                step()
            assert refused.value.code is Code.DURABLE_BUSY
            assert refused.value.fields["holder"] == f"spark/{place['query']}"

    second_is_refused()
    assert counts(client) == written, "nothing was delivered or acknowledged"
    seen, place = drained(first, place)
    assert len(seen) == 5 and counts(client)["acknowledged"] == 5
    second_is_refused()
    # After a crash the query itself continues at once, and another one when the service has missed the first.
    publish(client, b"y")
    restarted = streaming(service)
    seen, place = drained(restarted, place)
    assert [body for _, body in seen] == [b"y"]
    first.stop()
    restarted.stop()
    other = streaming(service)
    other.initialOffset()
    with pytest.raises(AlreadyOpen):
        next_offset(streaming(service), place)


def test_a_sign_of_life_writes_nothing(service: ServiceProcess, client: StoreClient) -> None:
    with Client(service.url) as log:
        client.define_durable("orders", "lake", {"type": "standard", "subscriber_timeout": 0.1})
        reader = streaming(service)
        reader.initialOffset()
        before = log.version().version, counts(client)
        time.sleep(0.5)  # several signs
        assert (log.version().version, counts(client)) == before


def test_a_service_that_is_away_for_a_while_is_waited_for_and_then_an_error(
    service: ServiceProcess, client: StoreClient
) -> None:
    reader = streaming(service)
    place = reader.initialOffset()
    publish(client, b"1")
    away = streaming(service, url="http://127.0.0.1:1", retryDuration="300ms")
    with pytest.raises(Unavailable, match="does not answer"):
        next_offset(away, place)
    assert drained(reader, place)[0] == [(1, b"1")]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"store": "orders"}, "durable is required"),
        ({"durable": "lake"}, "store is required"),
        ({"store": "o", "durable": "d", "stores": "/s"}, "stores is unknown"),
        ({"store": "o", "durable": "d", "columns": "ttl_ms"}, "has seq, time, key, fields, body"),
        ({"store": "o", "durable": "d", "matcher": "kind"}, "a matcher as a JSON object"),
        ({"store": "o", "durable": "d", "startingOffsets": "latest"}, "startingOffsets is unknown"),
    ],
)
def test_what_is_no_read_of_a_service_is_refused_with_the_reason(given: dict[str, str], says: str) -> None:
    source = HoldfastDataSource({"shape": "messages", "url": "http://127.0.0.1:1", **given})
    with pytest.raises(InvalidRequest, match=says):
        source.schema()


def test_options_of_a_stream_in_a_batch_and_credentials_are_refused() -> None:
    given = {"shape": "messages", "url": "http://h", "store": "o", "durable": "d"}
    with pytest.raises(InvalidRequest, match="no effect on a batch"):
        parse_served_store_options({**given, "matcher": '{"a": 1}'}, Mode.BATCH)
    with pytest.raises(InvalidRequest, match="carries credentials"):
        parse_served_store_options({**given, "url": "http://u:p@h"}, Mode.BATCH)


@pytest.mark.matrix  # above without Spark; Spark: test_store_source
def test_spark_reads_a_store_over_http_as_a_batch_and_as_a_stream(
    spark: SparkSession, service: ServiceProcess, client: StoreClient, tmp_path: Path
) -> None:
    options = {"shape": "messages", "url": service.url, "store": "orders"}
    publish(client, b"1", b"22")
    frame = spark.read.format("holdfast").options(**options, durable="others").load()
    assert frame.schema.simpleString() == "struct<seq:bigint,time:timestamp,key:string,fields:string,body:binary>"
    assert [(row.seq, bytes(row.body), row.fields) for row in frame.orderBy("seq").collect()] == [
        (1, b"1", '{"n":1}'),
        (2, b"22", '{"n":2}'),
    ]
    with pytest.raises(PySparkException, match="no such durable"):
        spark.read.format("holdfast").options(**options, durable="none").load().collect()

    def follow() -> list[tuple[int, bytes]]:
        stream = spark.readStream.format("holdfast").options(**options, durable="lake", maxRowsPerTrigger="20").load()
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "table"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        rows = spark.read.schema("seq long, body binary").parquet(str(tmp_path / "table")).orderBy("seq").collect()
        return [(row.seq, bytes(row.body)) for row in rows]

    assert follow() == []
    publish(client, *[b"%d" % number for number in range(50)])
    expected = [(number + 3, b"%d" % number) for number in range(50)]
    assert follow() == expected
    publish(client, b"later")
    assert follow() == [*expected, (53, b"later")]
    assert counts(client)["acknowledged"] >= 50
