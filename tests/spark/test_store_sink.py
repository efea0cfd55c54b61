"""The sink into a message store against a real service: each row is published exactly once, whatever is killed."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types
from structlog.testing import capture_logs
from tests.matrix import matrix
from tests.spark.mortal import Fate, Killed, MortalClient
from tests.spark.service_process import ServiceProcess

from holdfast import StoreClient
from holdfast.client import Client
from holdfast.errors import (
    Closed,
    Code,
    Conflict,
    Fenced,
    HoldfastError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from holdfast.spark.option_values import Mode
from holdfast.spark.options import WriteOptions, parse_write_options
from holdfast.spark.sink import store_task
from holdfast.spark.sink.identity import MicroBatch, PartitionPublisher, SentPartition, token_of
from holdfast.spark.sink.record import (
    Publishing,
    WriteId,
    begin,
    finish,
    job_of_write,
    read_record,
    replace_record,
    wanted_micro_batch,
)
from holdfast.spark.sink.store_task import (
    check_message_schema,
    check_store,
    digest_messages,
    messages_of,
    publish_partition,
)
from holdfast.wire.parts import Message

_names = itertools.count()
QUERY = "8f1d1c6e-7a53-4d4b-9d3e-111111111111"
PARTITIONS = {0: 11, 1: 0, 2: 4}
STEP = 5 if os.environ.get("HOLDFAST_SMALL") == "1" else 1
"""A small run kills at each fifth request."""


@pytest.fixture(scope="module", params=matrix(["log", "disk"]))
def service(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    root = tmp_path_factory.mktemp("log")
    stores = root.with_name(f"{root.name}-stores")
    with ServiceProcess(root, f"stores.directory={stores}", f"stores.durability={request.param}") as started:
        yield started


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_task, "CHUNK_MESSAGES", 4)


def new_options(service: ServiceProcess, **more: object) -> WriteOptions:
    """A store of its own, with a durable that keeps all of it."""
    store = f"store-{next(_names)}"
    with StoreClient(service.url) as client:
        client.define_store(store)
        client.define_durable(store, "all", {"type": "shared"})
    return WriteOptions(service.url, f"copy@{store}", store=store, **more)  # type: ignore[arg-type]


def rows(name: str, partition: int, count: int) -> pa.RecordBatch:
    bodies = [b"%s/%d/%03d" % (name.encode(), partition, index) for index in range(count)]
    return pa.record_batch({"body": pa.array(bodies, pa.binary()), "key": [f"k{index}" for index in range(count)]})


def bodies_in(service: ServiceProcess, options: WriteOptions) -> list[bytes]:
    assert options.store is not None
    with StoreClient(service.url) as client:
        return sorted(each.body for each in client.browser(options.store, "all"))


def expected(*names: str, parts: dict[int, int] = PARTITIONS) -> list[bytes]:
    return sorted(
        body for name in names for part, count in parts.items() for body in rows(name, part, count)["body"].to_pylist()
    )


def wanted(name: str) -> WriteId:
    return WriteId(token_of(name), name)


def write(
    client: Client,
    options: WriteOptions,
    wanted: WriteId,
    name: str | None = None,
    parts: dict[int, int] = PARTITIONS,
) -> None:
    """A whole write: what Spark's driver and its tasks do, one after the other."""
    intent = begin(client, options, wanted)
    batches = {partition: [rows(name or wanted.name, partition, count)] for partition, count in parts.items()}
    if intent.version is None:
        sent = [digest_messages(partition, batch) for partition, batch in batches.items()]
    else:
        sent = [publish_partition(client, options, intent, partition, batch) for partition, batch in batches.items()]
    finish(client, options, wanted, sent)


def stream(client: Client, options: WriteOptions, micro_batch: MicroBatch, parts: dict[int, int], name: str) -> None:
    """A whole micro-batch: the first task with a row makes the intent."""
    planned = read_record(client, options.application)
    wanted = wanted_micro_batch(micro_batch)
    sent: list[SentPartition] = []
    for partition, count in parts.items():
        if not count:
            sent.append(SentPartition(partition))
            continue
        batches = [rows(f"{name}-{micro_batch.number}", partition, count)]
        intent = begin(client, options, wanted, planned)
        if intent.version is None:
            sent.append(digest_messages(partition, batches))
        else:
            sent.append(publish_partition(client, options, intent, partition, batches))
    finish(client, options, wanted, sent)


def publishing_of(client: Client, options: WriteOptions) -> Publishing:
    record = read_record(client, options.application).record
    assert record is not None and isinstance(record.publishing, Publishing)
    return record.publishing


@pytest.fixture
def mortal(service: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> Fate:
    """A fate that publishing shares with the client of the log."""
    fate = Fate()
    publish = store_task._Sender._publish

    def dying(self: store_task._Sender, chunk: object) -> object:
        return fate.run(lambda: publish(self, chunk))  # type: ignore[arg-type]

    monkeypatch.setattr(store_task._Sender, "_publish", dying)
    return fate


def test_writes_are_in_the_store_once_in_order_and_publishers_do_not_grow_in_number(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client, StoreClient(service.url) as stores:
        for number in range(5):
            write(client, options, wanted(f"plain{number}"))
            prefix = job_of_write(options.application, token_of(f"plain{number}")) + "/"
            assert client.jobs(prefix, at=client.version().version).items == ()
        assert bodies_in(service, options) == expected(*(f"plain{number}" for number in range(5)))
        assert stores.describe_store(options.store or "")["counts"]["publishers"] == 2  # type: ignore[index]
        assert publishing_of(client, options).partitions == (
            PartitionPublisher(0, 57),
            PartitionPublisher(),
            PartitionPublisher(0, 22),
        )
        of_one = [each.body for each in stores.browser(options.store or "", "all") if each.body.startswith(b"plain3/0")]
        assert of_one == sorted(of_one)


@pytest.mark.parametrize("after", matrix([True, False]))
def test_killed_at_every_request_and_run_again_it_publishes_exactly_once(
    service: ServiceProcess, mortal: Fate, after: bool
) -> None:
    deaths = 0
    options = new_options(service)
    names: list[str] = []
    for dies_at in itertools.count(1, STEP):
        names.append(f"killed-{after}-{dies_at}")
        mortal.left, mortal.after = dies_at, after
        with MortalClient(service.url, mortal) as client:
            try:
                write(client, options, wanted(names[-1]))
            except Killed:
                deaths += 1
            else:
                break
        mortal.left = 0
        with Client(service.url) as client:
            write(client, options, wanted(names[-1]))
            write(client, options, wanted(names[-1]))
    mortal.left = 0
    assert bodies_in(service, options) == expected(*names)
    assert deaths > 15 // STEP


@pytest.mark.parametrize("after", matrix([True, False]))
def test_micro_batches_killed_at_every_request_and_run_again_publish_exactly_once(
    service: ServiceProcess, mortal: Fate, after: bool
) -> None:
    deaths = running = 0
    batches = ({0: 0, 1: 0}, {0: 5, 1: 0, 2: 2}, {0: 0}, {0: 3})
    for dies_at in itertools.count(1, STEP):
        options = new_options(service)
        mortal.left, mortal.after = dies_at, after
        with MortalClient(service.url, mortal) as client:
            try:
                for number, parts in enumerate(batches):
                    running = number
                    stream(client, options, MicroBatch(QUERY, number), parts, "streamed")
            except Killed:
                deaths += 1
            else:
                break
        mortal.left = 0
        with Client(service.url) as client:
            for number in range(running, len(batches)):  # Spark runs the one again that was under way
                stream(client, options, MicroBatch(QUERY, number), batches[number], "streamed")
        every = [expected(f"streamed-{number}", parts=parts) for number, parts in enumerate(batches)]
        assert bodies_in(service, options) == sorted(itertools.chain(*every)), f"killed at request {dies_at}"
    assert deaths > 15 // STEP


def test_tasks_that_run_twice_at_once_publish_once(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        intent = begin(client, options, wanted("twins"))
        found: list[object] = []

        def run() -> None:
            try:
                with Client(service.url) as own:
                    found.append(publish_partition(own, options, intent, 0, [rows("twins", 0, 50)]))
            except BaseException as error:  # noqa: BLE001 - compared below
                found.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [each.transactions for each in found if isinstance(each, SentPartition)] == [50] * 3, found
        sent = found[0]
        assert isinstance(sent, SentPartition)
        finish(client, options, wanted("twins"), [sent])
        write(client, options, wanted("next"), parts={0: 3})
    assert bodies_in(service, options) == sorted(expected("twins", parts={0: 50}) + expected("next", parts={0: 3}))


def test_a_task_of_an_earlier_write_that_comes_late_changes_nothing(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        zombie = begin(client, options, wanted("old"))
        write(client, options, wanted("old"))
        write(client, options, wanted("new"))
        publish_partition(client, options, zombie, 0, [rows("old", 0, 11)])
        # Even one that stands between its note and its request: the store has its numbers.
        with StoreClient(service.url) as stores:
            sender = store_task._Sender(client, stores, options, zombie, 0)
            sender._publisher = PartitionPublisher()
            for chunk in store_task._chunks(messages_of([rows("old", 0, 11)])):
                assert sender._publish(chunk).duplicates == len(chunk.rows)
        lost = begin(client, options, wanted("third"))
        begin(client, replace(options, supersede=True), wanted("fifth"))
        with pytest.raises(Fenced, match="moved on"):
            publish_partition(client, options, lost, 0, [rows("third", 0, 11)])
    assert bodies_in(service, options) == expected("new", "old")


def test_rows_of_the_write_after_one_that_was_given_up_are_not_taken_for_its_duplicates(
    service: ServiceProcess,
) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        intent = begin(client, options, wanted("given up"))
        publish_partition(client, options, intent, 0, [rows("given up", 0, 6)])
        run = publishing_of(client, options).run
        write(client, replace(options, supersede=True), wanted("following"))
        assert publishing_of(client, options).run != run
        unnamed = begin(client, options, WriteId("9f" * 16, ""))
        publish_partition(client, options, unnamed, 0, [rows("unnamed", 0, 6)])
        write(client, options, wanted("last"))
    every = [*expected("following", "last"), *expected("given up", "unnamed", parts={0: 6})]
    assert bodies_in(service, options) == sorted(every)


def test_other_rows_under_the_same_token_are_refused_and_not_lost(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        intent = begin(client, options, wanted("changed"))
        publish_partition(client, options, intent, 0, [rows("changed", 0, 10)])
        for count in (9, 3, 0):
            with pytest.raises(InvalidRequest, match="not those that an earlier try"):
                publish_partition(client, options, intent, 0, [rows("changed", 0, count)])
        backwards = rows("changed", 0, 10).take(pa.array(range(9, -1, -1)))
        with pytest.raises(InvalidRequest, match="not those that an earlier try"):
            publish_partition(client, options, intent, 0, [backwards])
        finish(client, options, wanted("changed"), [digest_messages(0, [rows("changed", 0, 10)])])
        with pytest.raises(InvalidRequest, match="with other rows"):
            write(client, options, wanted("changed"), "others")
    assert bodies_in(service, options) == expected("changed", parts={0: 10})


def forget(service: ServiceProcess) -> None:
    """Make the service forget every publisher, as after a week without messages."""
    with StoreClient(service.url) as client:
        found = client.definition()
        definition: dict[str, Any] = {**found["definition"]}  # type: ignore[dict-item]
        client.define({**definition, "cluster": {**definition["cluster"], "publisher_ttl": "1s"}})
        waiting = threading.Event()
        for _ in range(500):
            stores: Any = client.stores()["stores"]
            if not any(store["counts"]["publishers"] for store in stores):
                break
            waiting.wait(0.02)
        else:
            raise AssertionError("publishers stay known")
        client.define(definition)


def test_a_publisher_that_the_store_has_forgotten_goes_on_under_another_id(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        write(client, options, wanted("before"))
        forget(service)
        write(client, options, wanted("after"))
        assert publishing_of(client, options).partitions[0] == PartitionPublisher(1, 13)
        write(client, options, wanted("later"))
        assert publishing_of(client, options).partitions[0] == PartitionPublisher(1, 24)
        assert bodies_in(service, options) == expected("after", "before", "later")
        first = new_options(service)
        intent = begin(client, first, wanted("first"))
        publish_partition(client, first, intent, 0, [rows("first", 0, 3)])
        forget(service)
        with pytest.raises(OutcomeUnknown, match="forgotten"):
            publish_partition(client, first, intent, 0, [rows("first", 0, 3)])
        assert bodies_in(service, first) == expected("first", parts={0: 3})
        intent = begin(client, options, wanted("half"))
        publish_partition(client, options, intent, 0, [rows("half", 0, 3)])
        forget(service)
        with pytest.raises(OutcomeUnknown, match="forgotten"):
            publish_partition(client, options, intent, 0, [rows("half", 0, 3)])
    assert bodies_in(service, options) == sorted(expected("after", "before", "later") + expected("half", parts={0: 3}))


def test_a_log_that_is_a_copy_draws_other_publishers(service: ServiceProcess) -> None:
    """A copy of the log may be older than the store: the numbers of its record are used."""
    options = new_options(service)
    with Client(service.url) as client:
        write(client, options, wanted("first"))
        found = read_record(client, options.application)
        assert found.record is not None
        before = publishing_of(client, options)
        of_another = msgspec.structs.replace(before, log_id="0" * 32)
        older = msgspec.structs.replace(found.record, publishing=of_another)
        assert replace_record(client, options, older, found.read_version) is not None
        write(client, options, wanted("second"))
        assert publishing_of(client, options).run != before.run
    assert bodies_in(service, options) == expected("first", "second")


def test_a_store_that_was_put_back_is_an_error(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        write(client, options, wanted("first"), parts={0: 5})
        found = read_record(client, options.application)
        assert found.record is not None
        ahead = msgspec.structs.replace(publishing_of(client, options), partitions=(PartitionPublisher(0, 90),))
        newer = msgspec.structs.replace(found.record, publishing=ahead)
        assert replace_record(client, options, newer, found.read_version) is not None
        with pytest.raises(Conflict, match="put back to an earlier state") as refused:
            write(client, options, wanted("second"), parts={0: 5})
        assert refused.value.code is Code.SEQUENCE_GAP
    assert bodies_in(service, options) == expected("first", parts={0: 5})


@pytest.mark.parametrize("when", ["before a write", "within a write", "before a task runs again"])
def test_a_store_that_was_made_again_gets_nothing(service: ServiceProcess, when: str) -> None:
    """Deleted and made again between two writes, or while the query is stopped; under a task; before a task's second
    attempt. The store has forgotten the publishers, so every number would pass for a new one."""
    options = new_options(service)
    assert options.store is not None
    parts = {0: 10}

    def made_again(client: StoreClient) -> None:
        assert options.store is not None
        client.delete_store(options.store)
        client.define_store(options.store)
        client.define_durable(options.store, "all", {"type": "shared"})

    with Client(service.url) as client, StoreClient(service.url) as stores:
        check_store(client, options)
        write(client, options, wanted("first"), parts=parts)
        check_store(client, options)
        intent = begin(client, options, wanted("second"))
        batches = [rows("second", 0, 10)]
        if when == "before a task runs again":
            publish_partition(client, options, intent, 0, batches)
            made_again(stores)
            intent = begin(client, options, wanted("second"))
        elif when == "within a write":

            def fail_within() -> Iterator[pa.RecordBatch]:
                yield rows("second", 0, 5)
                made_again(stores)
                yield rows("second", 0, 10).slice(5)

            batches = fail_within()  # type: ignore[assignment]
        else:
            made_again(stores)
            with pytest.raises(Closed, match="made again") as refused:
                check_store(client, options)
            assert refused.value.code is Code.STORE_REPLACED
        with pytest.raises(Closed, match="another application name") as ended:
            publish_partition(client, options, intent, 0, batches)
        assert ended.value.code is Code.STORE_REPLACED
        assert bodies_in(service, options) == []
        going_on = replace(options, supersede=True)
        check_store(client, going_on)
        write(client, going_on, wanted("third"), parts=parts)
        check_store(client, options)
        write(client, options, wanted("fourth"), parts=parts)
    assert bodies_in(service, options) == expected("third", "fourth", parts=parts)


def test_a_store_that_takes_no_more_and_a_message_that_it_does_not_take_are_clear_errors(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = new_options(service)
    monkeypatch.setattr(store_task, "GIVE_UP_SECONDS", 0.2)
    with StoreClient(service.url) as stores, Client(service.url) as client:
        stores.define_store(options.store or "", {"message_limit": 5, "max_message_size": 2000})
        with pytest.raises(HoldfastError, match="full") as full:
            write(client, options, wanted("full"))
        assert full.value.code is Code.STORE_FULL
        assert len(bodies_in(service, options)) == 4
        stores.define_store(options.store or "", {"max_message_size": 2000})
        write(client, options, wanted("full"))
        large = pa.record_batch({"body": pa.array([b"small", bytes(3000)], pa.binary())})
        intent = begin(client, options, wanted("large"))
        with pytest.raises(LimitExceeded, match="too large"):
            publish_partition(client, options, intent, 0, [large])
        with pytest.raises(NotFound, match="no such store"):
            check_store(client, replace(options, store="nowhere"))
        stores.define_store(options.store or "", {"publisher_mode": "store_send_noconfirm"})
        with pytest.raises(InvalidRequest, match="confirms no messages"):
            check_store(client, options)
    assert bodies_in(service, options) == expected("full")


def test_a_service_that_does_not_answer_is_an_error_and_the_next_try_publishes_the_rest(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = new_options(service)
    monkeypatch.setattr(store_task, "GIVE_UP_SECONDS", 0.3)
    with Client(service.url) as client:
        intent = begin(client, options, wanted("away"))
        with monkeypatch.context() as patched:
            patched.setattr(store_task, "open_store_client", lambda _: StoreClient("http://127.0.0.1:1"))
            with pytest.raises(Unavailable):
                publish_partition(client, options, intent, 0, [rows("away", 0, 5)])
        write(client, options, wanted("away"))
    assert bodies_in(service, options) == expected("away")


def test_rows_that_no_durable_wants_are_reported(service: ServiceProcess) -> None:
    options = new_options(service)
    with StoreClient(service.url) as stores, Client(service.url) as client:
        stores.delete_durable(options.store or "", "all")
        with capture_logs() as logged:
            write(client, options, wanted("unwanted"))
    assert [(each["event"], each["rows"]) for each in logged if "durable" in each["event"]] == [
        ("no_durable_wants_rows", 11),
        ("no_durable_wants_rows", 4),
    ]


# -- rows ------------------------------------------------------------------------------------------------------------


def test_every_form_of_fields_and_times_becomes_what_it_says() -> None:
    at = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
    fields = pa.struct([("kind", pa.string()), ("cups", pa.int32()), ("hot", pa.bool_())])
    batch = pa.record_batch(
        {
            "seq": [1, 2],
            "body": ["text", "ü"],
            "key": ["k", None],
            "fields": pa.array([{"kind": "a", "cups": 2, "hot": True}, {"kind": None, "cups": 3, "hot": None}], fields),
            "ttl_ms": pa.array([60_000, None], pa.int64()),
            "deliver_at": pa.array([at, None], pa.timestamp("us", tz="UTC")),
        }
    )
    first, second = messages_of([batch])
    at_ms = int(at.timestamp() * 1000) + 1
    assert first == Message(b"text", {"kind": "a", "cups": 2, "hot": True}, "k", 0, 60_000, at_ms)
    assert second == Message("ü".encode(), {"cups": 3})
    mapped = pa.array([[("b", "x"), ("a", None)], None], pa.map_(pa.string(), pa.string()))
    body = pa.array([b"1", b"2"], pa.binary())
    assert [each.fields for each in messages_of([pa.record_batch({"body": body, "fields": mapped})])] == [
        {"b": "x"},
        {},
    ]
    texts = pa.array(['{"n": 1, "b": true, "t": "x"}', None])
    found = [each.fields for each in messages_of([pa.record_batch({"body": body, "fields": texts})])]
    assert found == [{"n": 1, "b": True, "t": "x"}, {}]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"body": pa.array([None], pa.binary())}, "no body"),
        ({"body": ["x"], "fields": ["[1]"]}, "not a JSON object"),
        ({"body": ["x"], "fields": ['{"a": 1.5}']}, "not a JSON object"),
        ({"body": ["x"], "fields": ['{"a": {"b": 1}}']}, "not a JSON object"),
        ({"body": ["x"], "ttl_ms": [-1]}, "ttl_ms below 0"),
    ],
)
def test_a_row_that_is_no_message_is_refused(columns: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        list(messages_of([pa.record_batch(columns)]))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("key string", "no column body"),
        ("body binary, payload binary", "payload would be lost"),
        ("body int", "body is binary or string, not int"),
        ("body string, key binary", "key is string, not binary"),
        ("body string, fields struct<a:double>", "fields.a is double"),
        ("body string, fields map<string,timestamp>", "a value of fields is timestamp"),
        ("body string, fields map<int,string>", "keys are not strings"),
        ("body string, ttl_ms string", "ttl_ms is a whole number"),
        ("body string, deliver_at bigint", "deliver_at is a timestamp"),
    ],
)
def test_columns_that_are_no_messages_are_refused(spark: SparkSession, schema: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        check_message_schema(spark_types.StructType.fromDDL(schema))


def test_the_digest_does_not_depend_on_the_order_of_fields() -> None:
    one, other = (
        digest_messages(0, [pa.record_batch({"body": ["x"], "fields": [text]})])
        for text in ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}')
    )
    assert one == other
    for columns in ({"key": ["k"]}, {"ttl_ms": [5]}, {"fields": ['{"a": 2, "b": 2}']}):
        fields = {"fields": ['{"a": 1, "b": 2}'], **columns}
        assert digest_messages(0, [pa.record_batch({"body": ["x"], **fields})]) != one


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": "http://h", "store": "s"}, "application is required"),
        ({"url": "file:///log", "store": "s", "application": "a"}, "address of a service"),
        ({"url": "http://h", "store": "", "application": "a"}, "store names the message store"),
        ({"url": "http://h", "store": "s", "application": "a", "transactionKey": "k"}, "transactionKey is unknown"),
    ],
)
def test_options_of_a_write_into_a_store(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parse_write_options(given, Mode.BATCH)
    parsed = parse_write_options({"url": "http://h", "Store": "s", "application": "a"}, Mode.BATCH)
    assert (parsed.store, parsed.application) == ("s", "a@s")


# -- as Spark runs it ------------------------------------------------------------------------------------------------


def into(frame: DataFrame, options: WriteOptions, **more: str) -> None:
    writer = frame.write.format("holdfast").mode("append").option("url", options.url).option("application", "copy")
    for name, value in {"store": options.store or "", **more}.items():
        writer = writer.option(name, value)
    writer.save()


def delivered(service: ServiceProcess, options: WriteOptions) -> Sequence[tuple[object, ...]]:
    with StoreClient(service.url) as client:
        found = [(each.body, each.key, json.dumps(each.fields)) for each in client.browser(options.store or "", "all")]
    return sorted(found, key=str)


def test_spark_writes_a_frame_into_a_store_and_a_repetition_writes_nothing(
    spark: SparkSession, service: ServiceProcess
) -> None:
    options = new_options(service)
    frame = spark.range(500).selectExpr(
        "string(id) AS body", "concat('k', id % 7) AS key", "named_struct('n', id, 'kind', 'a') AS fields"
    )
    for _ in range(2):
        into(frame.repartition(3, "key").sortWithinPartitions("body"), options, token="2026-01-31")
    rows = [(b"%d" % n, f"k{n % 7}", json.dumps({"n": n, "kind": "a"})) for n in range(500)]
    assert delivered(service, options) == sorted(rows, key=str)
    with pytest.raises(PySparkException, match="with other rows"):
        into(frame.limit(3), options, token="2026-01-31")
    with pytest.raises(PySparkException, match=r"no such store.*nowhere"):
        into(frame, replace(options, store="nowhere"))
    with pytest.raises(PySparkException, match="payload would be lost"):
        into(frame.withColumnRenamed("key", "payload"), options)


@pytest.mark.matrix  # micro-batches run again without Spark, above
def test_spark_streams_into_a_store_with_restarts_and_a_replay(
    spark: SparkSession, service: ServiceProcess, tmp_path: Path
) -> None:
    options = new_options(service)
    source = tmp_path / "source"
    source.mkdir()

    def run() -> None:
        frame = spark.readStream.schema("body string, key string").json(str(source))
        query = (
            frame.writeStream.format("holdfast")
            .option("url", options.url)
            .option("application", "copy")
            .option("store", options.store or "")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    every: list[tuple[object, ...]] = []
    for number in range(3):
        lines = [{"body": f"{number}/{index}", "key": f"k{index}"} for index in range(20)]
        (source / f"{number}.json").write_text("\n".join(map(json.dumps, lines)))
        every += [(line["body"].encode(), line["key"], "{}") for line in lines]
        run()
        if number == 1:  # the newest micro-batch is written, and Spark does not know it
            (tmp_path / "checkpoint" / "commits" / "1").unlink()
            (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    assert delivered(service, options) == sorted(every, key=str)
