"""The sink's protocol against a real service, without Spark: killed between every two steps, it writes exactly once."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from structlog.testing import capture_logs
from tests.matrix import matrix
from tests.spark.mortal import Fate, Killed, MortalClient
from tests.spark.service_process import ServiceProcess

from holdfast.client import Client, ClientOptions, NotCommitted
from holdfast.client.protocol.messages import Place
from holdfast.commit.format.transaction import JobChange, Operation, RangeDelete, Transaction, Write
from holdfast.errors import Code, CorruptData, Fenced, InvalidRequest, NotFound, Unavailable
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime import service_client
from holdfast.spark.sink import task as sink_task
from holdfast.spark.sink.give_up import give_up
from holdfast.spark.sink.identity import MicroBatch, SentPartition, digest_text, token_of
from holdfast.spark.sink.record import (
    SinkRecord,
    StreamProgress,
    WriteId,
    begin,
    finish,
    job_of,
    job_of_write,
    read_record,
    wanted_micro_batch,
)
from holdfast.spark.sink.task import digest_partition, send_partition, transactions_of
from holdfast.wire.log import StatusAnswer

STEP = 2 if os.environ.get("HOLDFAST_SMALL") == "1" else 1
"""From one request at which a write is killed to the next."""
_applications = itertools.count()


CHUNKED = ClientOptions(commits_per_request_max=3)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("log")) as started:
        yield started


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_task, "CHUNK_TRANSACTIONS", 4)


def new_options(service: ServiceProcess, **more: object) -> WriteOptions:
    return WriteOptions(service.url, f"application-{next(_applications)}", **more)  # type: ignore[arg-type]


def rows(name: str, partition: int, count: int) -> pa.RecordBatch:
    keys = [b"%s/%d/%03d" % (name.encode(), partition, index) for index in range(count)]
    return pa.record_batch({"key": keys, "value": [b"v"] * count})


PARTITIONS = {0: 11, 1: 0, 2: 4}


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
    if intent.version is not None:
        sent = [send_partition(client, options, intent, partition, batch) for partition, batch in batches.items()]
    else:
        sent = [digest_partition(options, partition, batch) for partition, batch in batches.items()]
    assert intent.version is None or [part.transactions for part in sent] == list(parts.values())
    finish(client, options, wanted, sent)


def end(client: Client, options: WriteOptions, wanted: WriteId, partitions: int = len(PARTITIONS)) -> None:
    """What the driver does after tasks that found every chunk sent, or had none of their own."""
    finish(client, options, wanted, [SentPartition(partition, chunks=99) for partition in range(partitions)])


def stream(
    client: Client, options: WriteOptions, micro_batch: MicroBatch, counts: dict[int, int], name: str = "streamed"
) -> None:
    """A whole micro-batch: the first task with a row makes the intent."""
    planned = read_record(client, options.application)
    wanted = wanted_micro_batch(micro_batch)
    sent: list[SentPartition] = []
    for partition, count in counts.items():
        batches = [rows(f"{name}-{micro_batch.number}", partition, count)]
        intent = begin(client, options, wanted, planned) if count else None
        if intent is None:
            sent.append(SentPartition(partition))
        elif intent.version is None:
            sent.append(digest_partition(options, partition, batches))
        else:
            sent.append(send_partition(client, options, intent, partition, batches))
    finish(client, options, wanted, sent)


def written(service: ServiceProcess, name: str) -> list[bytes]:
    """The keys of a write in the log, as often as they are there."""
    return sorted(written_under(service, f"{name}/").elements())


def written_under(service: ServiceProcess, prefix: str) -> Counter[bytes]:
    """How often each key with this prefix was written. Cost: it reads the whole log."""
    return Counter(
        operation.key
        for txn in service.transactions()
        for operation in txn.operations
        if isinstance(operation, Write) and operation.key.startswith(prefix.encode())
    )


def expected(name: str) -> list[bytes]:
    return sorted(
        key for partition, count in PARTITIONS.items() for key in rows(name, partition, count)["key"].to_pylist()
    )


def wanted(name: str) -> WriteId:
    return WriteId(token_of(name), name)


def record_of(client: Client, options: WriteOptions) -> SinkRecord:
    record = read_record(client, options.application).record
    assert record is not None
    return record


def notes_left(client: Client, options: WriteOptions, name: str) -> int:
    prefix = job_of_write(options.application, token_of(name)) + "/"
    return len(client.jobs(prefix, at=client.version().version).items)


def test_a_write_is_in_the_log_once_and_leaves_only_its_record(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        write(client, options, wanted("plain"))
        assert notes_left(client, options, "plain") == 0
        record = record_of(client, options)
    assert (record.state, record.token) == ("done", token_of("plain"))
    assert record.digest is not None and record.digest.startswith("15:")
    assert written(service, "plain") == expected("plain")


@pytest.mark.parametrize("after", matrix([True, False]))
def test_killed_at_every_request_and_run_again_it_writes_exactly_once(service: ServiceProcess, after: bool) -> None:
    deaths = 0
    for dies_at in itertools.count(1, STEP):
        options = new_options(service)
        name = f"killed-{after}-{dies_at}"
        with MortalClient(service.url, Fate(dies_at, after=after), CHUNKED) as client:
            try:
                write(client, options, wanted(name))
            except Killed:
                deaths += 1
            else:
                break
        with Client(service.url) as client:
            write(client, options, wanted(name))
            write(client, options, wanted(name))
            assert notes_left(client, options, name) == 0
    last = dies_at  # a kill at this request came too late
    assert deaths > 15 // STEP
    found = written_under(service, f"killed-{after}-")
    for dies_at in range(1, last, STEP):
        keys = expected(f"killed-{after}-{dies_at}")
        assert [found.pop(key) for key in keys] == [1] * len(keys), f"killed at request {dies_at}"
    assert all(key.startswith(f"killed-{after}-{last}/".encode()) for key in found)


@pytest.mark.parametrize("after", matrix([True, False]))
def test_a_micro_batch_killed_at_every_request_and_run_again_writes_exactly_once(
    service: ServiceProcess, after: bool
) -> None:
    deaths = 0
    for dies_at in itertools.count(1, STEP):
        options = new_options(service)
        name = f"dies-{after}-{dies_at}"
        with MortalClient(service.url, Fate(dies_at, after=after), CHUNKED) as client:
            try:
                for number, counts in enumerate(({0: 0, 1: 0}, {0: 5, 1: 0, 2: 2}, {0: 0})):
                    stream(client, options, MicroBatch(QUERY, number), counts, name)
            except Killed:
                deaths += 1
            else:
                break
        with Client(service.url) as client:
            # Spark runs the micro-batch again that it has not noted as done.
            written_before = read_record(client, options.application).record
            done = -1 if written_before is None or written_before.stream is None else written_before.stream.number
            for number, counts in enumerate(({0: 0, 1: 0}, {0: 5, 1: 0, 2: 2}, {0: 0})):
                if number >= done:
                    stream(client, options, MicroBatch(QUERY, number), counts, name)
            prefix = job_of_write(options.application, MicroBatch(QUERY, 1).token) + "/"
            assert client.jobs(prefix, at=client.version().version).items == ()
    last = dies_at  # a kill at this request came too late
    assert deaths > 15 // STEP
    found = written_under(service, f"dies-{after}-")
    for dies_at in range(1, last, STEP):
        times = [count for key, count in found.items() if key.startswith(f"dies-{after}-{dies_at}-".encode())]
        assert times == [1] * 7, f"killed at request {dies_at}"


def test_killed_again_and_again_it_goes_on_where_it_was_and_comes_to_its_end(service: ServiceProcess) -> None:
    options = new_options(service)
    deaths = 0
    for _ in range(40):
        with MortalClient(service.url, Fate(14, after=True), CHUNKED) as client:
            try:
                intent = begin(client, options, wanted("again"))
                if intent.version is not None:  # else the last one died after its very end
                    send_partition(client, options, intent, 0, [rows("again", 0, 40)])
                    end(client, options, wanted("again"))
            except Killed:
                deaths += 1
                continue
            break
    assert 2 < deaths < 40
    assert written(service, "again") == sorted(rows("again", 0, 40)["key"].to_pylist())


def test_tasks_that_run_twice_at_once_write_once(service: ServiceProcess) -> None:
    """Two attempts of one partition, one request of each in turn, as speculation runs them."""
    options = new_options(service)
    with Client(service.url) as client:
        intent = begin(client, options, wanted("twins"))
        failures: list[BaseException] = []

        def run() -> None:
            try:
                with Client(service.url) as own:
                    send_partition(own, options, intent, 0, [rows("twins", 0, 50)])
            except BaseException as error:  # noqa: BLE001 - reported below
                failures.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        end(client, options, wanted("twins"))
    assert written(service, "twins") == sorted(rows("twins", 0, 50)["key"].to_pylist())


def test_a_zombie_driver_is_refused_in_its_tasks_and_at_its_end(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        zombie = begin(client, options, wanted("old"))
        write(client, options, wanted("old"))
        write(client, options, wanted("new"))
        sent = [
            send_partition(client, options, zombie, partition, [rows("old", partition, count)])
            for partition, count in PARTITIONS.items()
        ]
        finish(client, options, wanted("old"), sent)
        assert written(service, "old") == expected("old"), "what was done already stays done, and once"
        lost = begin(client, options, wanted("third"))
        with pytest.raises(InvalidRequest, match="begun another write"):
            begin(client, options, wanted("fourth"))
        begin(client, new := WriteOptions(options.url, options.application, supersede=True), wanted("fifth"))
        with pytest.raises(Fenced, match="moved on"):
            send_partition(client, options, lost, 0, [rows("third", 0, 11)])
        with pytest.raises(Fenced, match="moved on"):
            end(client, options, wanted("third"))
        end(client, new, wanted("fifth"))
    assert written(service, "third") == []


def test_other_rows_under_the_same_token_are_refused_and_not_lost(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        intent = begin(client, options, wanted("changed"))
        send_partition(client, options, intent, 0, [rows("changed", 0, 10)])
        for count in (9, 3, 0):
            with pytest.raises(InvalidRequest, match="not those that an earlier try"):
                send_partition(client, options, intent, 0, [rows("changed", 0, count)])
        backwards = rows("changed", 0, 10).take(pa.array(range(9, -1, -1)))
        with pytest.raises(InvalidRequest, match="not those that an earlier try"):
            send_partition(client, options, intent, 0, [backwards])
    assert written(service, "changed") == sorted(rows("changed", 0, 10)["key"].to_pylist())


def test_a_partition_that_has_lost_all_its_rows_is_refused_whatever_it_had(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        intent = begin(client, options, wanted("emptied"))
        send_partition(client, options, intent, 0, [rows("emptied", 0, 3)])
        with pytest.raises(InvalidRequest, match="not those that an earlier try"):
            send_partition(client, options, intent, 0, [rows("emptied", 0, 0)])


def test_a_write_tried_again_with_fewer_partitions_is_not_called_done(service: ServiceProcess) -> None:
    """What a partition sent that is not there any more may have come again as rows of another one."""
    options = new_options(service)
    with Client(service.url) as client:
        first = begin(client, options, wanted("fewer"))
        send_partition(client, options, first, 2, [rows("fewer", 2, 4)])
        again = begin(client, options, wanted("fewer"))
        for partition in range(2):
            send_partition(client, options, again, partition, [rows("fewer", partition, 5)])
        with pytest.raises(InvalidRequest, match="more partitions") as refused:
            end(client, options, wanted("fewer"), 2)
        assert "another application name" in refused.value.hint
        assert record_of(client, options).state == "intent"


@pytest.mark.parametrize(("begin_key", "end_key"), [(b"", None), (b"s", b"t"), (b"sink/", None)])
def test_no_row_and_no_client_reaches_the_record_and_the_notes(
    service: ServiceProcess, begin_key: bytes, end_key: bytes | None
) -> None:
    """They were keys: a range delete without end made a write begin again, and send its rows twice."""
    options = new_options(service)
    name = f"keeps-{options.application}"
    kept = [(b"%s/0/%03d" % (name.encode(), index), b"v", "write", None) for index in range(6)]
    columns = zip((begin_key, None, "range_delete", end_key), *kept, strict=True)
    batch = pa.record_batch(dict(zip(("key", "value", "kind", "end"), map(list, columns), strict=True)))
    with Client(service.url) as client:
        intent = begin(client, options, wanted(name))
        sent = send_partition(client, options, intent, 0, [batch])
        client.commit([RangeDelete(begin_key, end_key)])
        assert (record_of(client, options).state, notes_left(client, options, name)) == ("intent", 1)
        again = begin(client, options, wanted(name))
        assert send_partition(client, options, again, 0, [batch]) == sent
        finish(client, options, wanted(name), [sent])
        client.commit([RangeDelete(begin_key, end_key)])
        assert record_of(client, options).has_done(token_of(name))
        assert notes_left(client, options, name) == 0
    assert written(service, name) == [row[0] for row in kept], "each row once"


QUERY, OTHER = "8f6e3a52-0000-0000-0000-000000000001", "8f6e3a52-0000-0000-0000-000000000002"


def names(service: ServiceProcess, prefix: str = "streamed-") -> set[str]:
    """The micro-batches whose rows are in the log, each row once."""
    keys = [
        operation.key.decode()
        for txn in service.transactions()
        for operation in txn.operations
        if isinstance(operation, Write) and operation.key.startswith(prefix.encode())
    ]
    assert len(keys) == len(set(keys))
    return {key.partition("/")[0] for key in keys}


def test_a_micro_batch_without_rows_writes_nothing_and_the_next_one_follows_it(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        stream(client, options, MicroBatch(QUERY, 0), {0: 3, 1: 0}, "empty")
        before = client.version().version
        for number in (1, 2, 2, 3):
            stream(client, options, MicroBatch(QUERY, number), {0: 0, 1: 0}, "empty")
        stream(client, options, MicroBatch(QUERY, 0), {0: 3, 1: 0}, "empty")
        assert client.version().version == before, "nothing was written, by the replay neither"
        stream(client, options, MicroBatch(QUERY, 4), {0: 0, 1: 2}, "empty")
        for number in (3, 2, 4):  # a replay of the last one is the only one that may come
            stream(client, options, MicroBatch(QUERY, 4), {0: 0, 1: 2}, "empty")
            with pytest.raises(InvalidRequest, match="written more than the checkpoint"):
                stream(client, options, MicroBatch(QUERY, number - 1), {0: 1}, "empty")
    assert names(service, "empty-") == {"empty-0", "empty-4"}


def test_the_first_micro_batch_of_a_query_makes_its_record_even_without_rows(service: ServiceProcess) -> None:
    """Else nothing would tell a stream that had no rows yet from one whose log was replaced."""
    options = new_options(service)
    with Client(service.url) as client:
        stream(client, options, MicroBatch(QUERY, 0), {0: 0})
        assert record_of(client, options).stream == StreamProgress(QUERY, 0, "0:0000000000000000")
        version = client.version().version
        stream(client, options, MicroBatch(QUERY, 0), {0: 0})
        stream(client, options, MicroBatch(QUERY, 1), {0: 0})
        assert client.version().version == version
        with pytest.raises(InvalidRequest, match="written more than the checkpoint"):
            stream(client, options, MicroBatch(OTHER, 0), {0: 0})


def test_a_micro_batch_that_comes_again_without_the_rows_that_it_sent_is_refused(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        planned = read_record(client, options.application)
        intent = begin(client, options, wanted_micro_batch(MicroBatch(QUERY, 0)), planned)
        send_partition(client, options, intent, 1, [rows("vanished", 1, 3)])
        with pytest.raises(InvalidRequest, match="not those that an earlier try"):
            stream(client, options, MicroBatch(QUERY, 0), {0: 0, 1: 0})
        with pytest.raises(InvalidRequest, match="more partitions"):
            stream(client, options, MicroBatch(QUERY, 0), {0: 0})


def test_a_stream_goes_on_after_a_batch_of_its_application(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        stream(client, options, MicroBatch(QUERY, 0), {0: 1}, "mixed")
        write(client, options, wanted("between"))
        version = client.version().version
        stream(client, options, MicroBatch(QUERY, 0), {0: 1}, "mixed")
        write(client, options, wanted("between"))
        assert client.version().version == version
        stream(client, options, MicroBatch(QUERY, 1), {0: 1}, "mixed")
        write(client, options, wanted("between"))
    assert names(service, "mixed-") == {"mixed-0", "mixed-1"}
    assert written(service, "between") == expected("between")


def test_a_zombie_of_a_stream_is_refused_before_it_makes_an_intent(service: ServiceProcess) -> None:
    for options in (new_options(service), new_options(service, supersede=True)):
        with Client(service.url) as client:
            stream(client, options, MicroBatch(QUERY, 0), {0: 1})
            zombie = read_record(client, options.application)
            stream(client, options, MicroBatch(QUERY, 1), {0: 1})
            stream(client, options, MicroBatch(QUERY, 2), {0: 1})
            before = record_of(client, options)
            with pytest.raises(Fenced, match="moved on"):
                begin(client, options, wanted_micro_batch(MicroBatch(QUERY, 1)), zombie)
            with pytest.raises(Fenced, match="moved on"):
                finish(client, options, wanted_micro_batch(MicroBatch(QUERY, 1)), [SentPartition(0, 1, 1)])
            assert record_of(client, options) == before


def test_a_stream_whose_checkpoint_is_gone_is_refused_until_it_supersedes(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        for number in range(3):
            stream(client, options, MicroBatch(QUERY, number), {0: 1}, "gone")
        for query, number in ((OTHER, 0), (OTHER, 5), (QUERY, 1)):
            with pytest.raises(InvalidRequest, match="written more than the checkpoint") as refused:
                stream(client, options, MicroBatch(query, number), {0: 1}, "gone")
            assert "supersede" in refused.value.hint
        superseding = WriteOptions(options.url, options.application, supersede=True)
        stream(client, superseding, MicroBatch(OTHER, 5), {0: 1}, "gone")
        stream(client, options, MicroBatch(OTHER, 6), {0: 1}, "gone")
    assert names(service, "gone-") == {"gone-0", "gone-1", "gone-2", "gone-5", "gone-6"}


def test_a_stream_that_has_written_before_is_refused_by_a_log_that_knows_nothing_of_it(service: ServiceProcess) -> None:
    """Its target was replaced: what it wrote before is not there, and nothing would ever write it again."""
    options = new_options(service)
    with Client(service.url) as client:
        for counts in ({0: 2}, {0: 0}):
            with pytest.raises(InvalidRequest, match="no record of its application") as caught:
                stream(client, options, MicroBatch(QUERY, 7), counts, "unknown")
            assert caught.value.code is Code.LOG_MISMATCH
            assert caught.value.fields["log_id"] == client.version().log_id
            assert "new checkpoint" in caught.value.hint
        renamed = new_options(service, supersede=True)
        stream(client, renamed, MicroBatch(QUERY, 7), {0: 2}, "renamed")
    assert names(service, "unknown-") == set()
    assert names(service, "renamed-") == {"renamed-7"}


def test_the_same_token_with_other_rows_is_refused_and_with_the_same_rows_does_nothing(
    service: ServiceProcess,
) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        write(client, options, wanted("day"))
        write(client, options, wanted("later"))
        version = client.version().version
        write(client, options, wanted("day"))
        for parts in ({0: 11, 1: 0, 2: 5}, {0: 11}, {0: 0}):
            with pytest.raises(InvalidRequest, match="written before, with other rows") as refused:
                write(client, options, wanted("day"), parts=parts)
        assert refused.value.code is Code.REQUEST_ID_REUSED
        assert str(refused.value.fields["written"]).startswith("15:") and refused.value.fields["token"] == "day"
        with pytest.raises(InvalidRequest, match="written before, with other rows"):
            write(client, options, wanted("later"), "other")
        assert client.version().version == version
    assert written(service, "day") == expected("day")


def test_a_micro_batch_that_comes_again_with_other_rows_is_refused_and_accepted_on_request(
    service: ServiceProcess,
) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        stream(client, options, MicroBatch(QUERY, 0), {0: 2}, "first")
        version = client.version().version
        for counts in ({0: 3}, {0: 0}):
            with pytest.raises(InvalidRequest, match="written before, with other rows") as refused:
                stream(client, options, MicroBatch(QUERY, 0), counts, "first")
            assert "uuid" in refused.value.hint
        stream(client, replace(options, supersede=True), MicroBatch(QUERY, 0), {0: 2}, "second")
        assert client.version().version == version
    assert names(service, "second-") == set()


def test_the_digest_counts_rows_whatever_their_order_and_partition_and_never_changes(service: ServiceProcess) -> None:
    options = new_options(service)
    every = rows("digest", 0, 9)
    one = digest_partition(options, 0, [every])
    backwards = every.take(pa.array(range(8, -1, -1)))
    two = [digest_partition(options, 0, [backwards.slice(0, 5)]), digest_partition(options, 1, [backwards.slice(5)])]
    assert digest_text([one]) == digest_text(two)
    twice = digest_partition(options, 0, [every, every])
    assert twice.total not in (0, one.total)
    kinds = {"kind": ["write", "delete", "range_delete"], "end": [None, None, b"d"], "value": [b"v", None, None]}
    mixed = digest_partition(options, 0, [pa.record_batch({"key": [b"a", b"b", b"c"], **kinds})])
    assert digest_text([mixed]) == "3:12ee30bf8359a396"


def test_rows_have_one_digest_whichever_way_they_are_read() -> None:
    """Plain writes are hashed as columns, and sent as transactions; with other columns each row is looked at."""
    texts = pa.record_batch({"key": ["a", "b\u00e9", "", "c" * 70_000], "value": [b"", b"x", b"y" * 300, b"z"]})
    shapes = {
        "binary": texts.set_column(0, "key", texts["key"].cast(pa.binary())),
        "large": texts.set_column(1, "value", texts["value"].cast(pa.large_binary())),
        "kind": texts.append_column("kind", pa.array(["write"] * 4)),
        "grouped": texts.append_column("group", pa.array(range(4))),
    }
    expected = digest_text([digest_partition(WriteOptions("http://h", "a"), 0, [texts])])
    for name, batch in shapes.items():
        options = WriteOptions("http://h", "a", transaction_key="group" if name == "grouped" else None)
        for batches in ([batch], [batch.slice(2), batch.slice(0, 2)] if name != "grouped" else [batch.slice(0)]):
            assert digest_text([digest_partition(options, 0, batches)]) == expected, name
        assert [*transactions_of([batch], options.transaction_key)] == [*transactions_of([texts], None)]


def test_different_rows_have_different_digests() -> None:
    """Also where the same bytes stand in another place, and where a delete has the key of a write."""
    rows_: list[dict[str, object]] = [
        {"key": b"ab", "value": b"c", "kind": "write", "end": None},
        {"key": b"a", "value": b"bc", "kind": "write", "end": None},
        {"key": b"ab", "value": b"", "kind": "write", "end": None},
        {"key": b"ab", "value": None, "kind": "delete", "end": None},
        {"key": b"ab", "value": None, "kind": "range_delete", "end": None},
        {"key": b"ab", "value": None, "kind": "range_delete", "end": b""},
        {"key": b"ab", "value": None, "kind": "range_delete", "end": b"c"},
    ]
    options = WriteOptions("http://h", "a")
    found = {digest_partition(options, 0, [pa.RecordBatch.from_pylist([each])]).total for each in rows_}
    assert len(found) == len(rows_)


@pytest.mark.parametrize("wrong", ["text", "key"])
def test_a_row_that_cannot_be_sent_has_no_digest(wrong: str) -> None:
    """So its task fails before a manifest names it."""
    bad = pa.StringArray.from_buffers(1, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff"))
    keys = bad if wrong == "text" else pa.array([None], pa.binary())
    with pytest.raises((InvalidRequest, UnicodeDecodeError)):
        digest_partition(WriteOptions("http://h", "a"), 0, [pa.RecordBatch.from_arrays([keys, keys], ["key", "value"])])


def test_a_task_writes_to_no_other_log_than_its_driver(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        intent = begin(client, options, wanted("elsewhere"))
        assert intent.log_id == client.version().log_id
        of_another = replace(intent, log_id="0" * 32)
        with pytest.raises(InvalidRequest) as caught:
            send_partition(client, options, of_another, 0, [rows("elsewhere", 0, 5)])
        assert caught.value.code is Code.LOG_MISMATCH
    assert written(service, "elsewhere") == []


def test_a_batch_without_a_token_of_its_own_may_be_given_up(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        begin(client, options, WriteId(token_of("unnamed"), ""))
        write(client, options, wanted("named"))
    assert written(service, "named") == expected("named")


def test_a_record_that_is_something_else_is_not_overwritten(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        version = client.version().version
        client.commit([], jobs=[JobChange(job_of(options.application), b"mine", version)])
        with pytest.raises(CorruptData, match="not one of this version"):
            begin(client, options, wanted("foreign"))


def test_a_service_without_a_view_is_refused_with_what_to_set(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, "view.enabled=false") as viewless, Client(viewless.url) as client:
        with pytest.raises(InvalidRequest, match="needs a service that keeps a view"):
            begin(client, new_options(viewless), WriteId(token_of("a"), "a"))
        assert viewless.transactions() == []


def test_a_service_that_does_not_answer_is_reported_early_and_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_client, "SILENCE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        bounds = ClientOptions(request_timeout_ms=100, give_up_after_ms=400)
        with (
            capture_logs() as logged,
            service_client.ServiceClient(url, bounds) as client,
            pytest.raises(Unavailable, match="the service does not answer") as caught,
        ):
            begin(client, WriteOptions(url, "unheard"), wanted("unheard"))
    assert {"url": url, "tried_seconds": 0.4}.items() <= caught.value.fields.items()
    assert "option url" in caught.value.hint
    assert logged == [
        {"event": "service_does_not_answer", "log_level": "warning", "url": url, "seconds": 0.05,
         "gives_up_after_seconds": 0.4}
    ]  # fmt: skip


def test_records_are_what_they_say() -> None:
    record = SinkRecord("intent", "9f" * 16, 7, name="2026-01-31")
    assert msgspec.json.encode(record) == (
        b'{"state":"intent","token":"' + b"9f" * 16 + b'","read_version":7,"name":"2026-01-31","recent":[],'
        b'"format":1,"digest":null,"stream":null,"direct":false,"micro_batch":null}'
    )
    streamed = msgspec.structs.replace(record, state="done", stream=StreamProgress("8f6e", 3, "41:00000000000000ff"))
    text = msgspec.json.encode(streamed)
    assert text.endswith(
        b'"stream":{"query":"8f6e","number":3,"digest":"41:00000000000000ff"},"direct":false,"micro_batch":null}'
    )
    assert msgspec.json.decode(text, type=SinkRecord) == streamed


class SlowTask:
    """A service whose conflict window passes between a task's chunks and its tries."""

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service

    def pass_window(self) -> None:
        """Write more than the window holds, so that every read version before is behind it."""
        with Client(self.service.url) as client:
            value = b"v" * 200_000
            operations: list[Operation] = [Write(b"filler", value)]
            for _ in range(12):
                client.commit(operations)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowTask]:
    """A service that keeps few recent writes: every read version is soon too old."""
    settings = ("commit.conflict_window_seconds=1", "commit.conflict_window_bytes=1048576")
    with ServiceProcess(tmp_path_factory.mktemp("narrow"), *settings) as started:
        yield SlowTask(started)


class LateClient(Client):
    """A client before whose n-th request the conflict window passes."""

    def __init__(self, slow: SlowTask, late_at: int) -> None:
        super().__init__(slow.service.url, options=ClientOptions(commits_per_request_max=3))
        self.slow = slow
        self.left = late_at

    def run(self, procedure, carry_out=None):  # type: ignore[no-untyped-def]
        self.left -= 1
        if self.left == 0:
            wait_until_floor_passes(self.slow)
        return super().run(procedure, carry_out)


def wait_until_floor_passes(slow: SlowTask) -> None:
    """Until the service calls a version from before too old."""
    with Client(slow.service.url) as client:
        version = client.version().version
        for number in itertools.count():
            slow.pass_window()
            name = f"probe-of-the-window-{version}-{number}"
            probe = Transaction(operations=[Write(b"probe", b"")], request_id=name, read_version=version)
            (verdict,) = client.commits_many([probe])
            if isinstance(verdict, NotCommitted):
                assert verdict.reason == "too_old"
                return


@pytest.mark.parametrize("late_at", matrix([3, 5, 6, 8, 9, 12], 2))
def test_rows_that_come_after_the_conflict_window_are_committed_once(narrow: SlowTask, late_at: int) -> None:
    options = new_options(narrow.service)
    name = f"late-{late_at}"
    with LateClient(narrow, late_at) as client:
        write(client, options, wanted(name))
    assert written(narrow.service, name) == expected(name)


def test_a_task_tried_again_after_the_window_finds_what_it_had_committed(narrow: SlowTask) -> None:
    options = new_options(narrow.service)
    name = "again-late"
    with MortalClient(narrow.service.url, Fate(10, after=True), CHUNKED) as client, pytest.raises(Killed):
        write(client, options, wanted(name))
    wait_until_floor_passes(narrow)
    with Client(narrow.service.url) as client:
        write(client, options, wanted(name))
    assert written(narrow.service, name) == expected(name)


class Forgetful(Client):
    """A client of a service whose retention has removed what would show old attempts."""

    def status(self, request_id: str, min_version: Place) -> StatusAnswer:
        super().status(request_id, min_version)
        return StatusAnswer("log_truncated")


def test_a_write_whose_part_of_the_log_is_gone_is_refused_and_can_be_given_up(narrow: SlowTask) -> None:
    options = new_options(narrow.service)
    name = "forgotten"
    with MortalClient(narrow.service.url, Fate(10, after=True), CHUNKED) as client, pytest.raises(Killed):
        write(client, options, wanted(name))
    wait_until_floor_passes(narrow)
    with Forgetful(narrow.service.url) as client:
        with pytest.raises(NotFound) as refused:
            write(client, options, wanted(name))
        assert refused.value.code is Code.STAGE_LOST
        listed = give_up(client, options, name)
    assert "undecidable" in {rows.known for rows in listed}
    assert set(written(narrow.service, name)) < set(expected(name)), "nothing more is sent"
