"""The sink's protocol against a real service, without Spark: killed between every two steps, it writes exactly once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from tests.matrix import matrix
from tests.spark.service_process import ServiceProcess

from holdfast.client import Client, ClientOptions, NotCommitted
from holdfast.commit.format.transaction import Operation, Transaction, Write
from holdfast.errors import Code, Fenced, InvalidRequest
from holdfast.spark.options import WriteOptions
from holdfast.spark.sink import task as sink_task
from holdfast.spark.sink.record import (
    Record,
    StreamRange,
    Wanted,
    begin,
    finish,
    progress_range,
    read_record,
    record_key,
    stream_range,
    token_of,
)
from holdfast.spark.sink.task import send_partition

_applications = itertools.count()


class Killed(BaseException):
    """The process ends here."""


class MortalClient(Client):
    """A client whose process dies at its n-th request: before it is sent, or after it was carried out."""

    def __init__(self, url: str, *, dies_at: int, after: bool) -> None:
        super().__init__(url, options=ClientOptions(commits_per_request_max=3))
        self.left = dies_at
        self.after = after
        self.requests = 0

    def run(self, procedure, decide=None, view=None):  # type: ignore[no-untyped-def]
        self.requests += 1
        self.left -= 1
        if self.left == 0 and not self.after:
            procedure.close()
            raise Killed
        result = super().run(procedure, decide, view)
        if self.left == 0:
            raise Killed
        return result


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


def write(client: Client, options: WriteOptions, wanted: Wanted) -> None:
    """A whole write: what Spark's driver and its tasks do, one after the other."""
    intent = begin(client, options, wanted)
    if intent.version is None:
        return
    for partition, count in PARTITIONS.items():
        sent = send_partition(client, options, intent, partition, [rows(wanted.name, partition, count)])
        assert sent == count
    finish(client, options, wanted, len(PARTITIONS))


def written(service: ServiceProcess, name: str) -> list[bytes]:
    """The keys of a write in the log, as often as they are there."""
    prefix = f"{name}/".encode()
    return sorted(
        operation.key
        for txn in service.transactions()
        for operation in txn.operations
        if isinstance(operation, Write) and operation.key.startswith(prefix)
    )


def expected(name: str) -> list[bytes]:
    return sorted(
        key for partition, count in PARTITIONS.items() for key in rows(name, partition, count)["key"].to_pylist()
    )


def wanted(name: str, start: str | None = None, end: str | None = None) -> Wanted:
    return Wanted(token_of(name), name, start, end)


def notes_left(client: Client, options: WriteOptions, name: str) -> int:
    begin_key, end_key = progress_range(options.application, token_of(name))
    return len(client.range(begin_key, end_key, at=client.version().version).items)


def test_a_write_is_in_the_log_once_and_leaves_only_its_record(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        write(client, options, wanted("plain"))
        assert notes_left(client, options, "plain") == 0
        record, _ = read_record(client, options.application)
    assert record is not None
    assert (record.state, record.token) == ("done", token_of("plain"))
    assert written(service, "plain") == expected("plain")


@pytest.mark.parametrize("after", matrix([True, False]))
def test_killed_at_every_request_and_run_again_it_writes_exactly_once(service: ServiceProcess, after: bool) -> None:
    deaths = 0
    for dies_at in itertools.count(1):
        options = new_options(service)
        name = f"killed-{after}-{dies_at}"
        with MortalClient(service.url, dies_at=dies_at, after=after) as client:
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
        assert written(service, name) == expected(name), f"killed at request {dies_at}"
    assert deaths > 15


def test_killed_again_and_again_it_goes_on_where_it_was_and_comes_to_its_end(service: ServiceProcess) -> None:
    options = new_options(service)
    deaths = 0
    for _ in range(40):
        with MortalClient(service.url, dies_at=14, after=True) as client:
            try:
                intent = begin(client, options, wanted("again"))
                if intent.version is not None:  # else the last one died after its very end
                    send_partition(client, options, intent, 0, [rows("again", 0, 40)])
                    finish(client, options, wanted("again"), len(PARTITIONS))
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
        finish(client, options, wanted("twins"), len(PARTITIONS))
    assert written(service, "twins") == sorted(rows("twins", 0, 50)["key"].to_pylist())


def test_a_zombie_driver_is_refused_in_its_tasks_and_at_its_end(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        zombie = begin(client, options, wanted("old"))
        write(client, options, wanted("old"))
        write(client, options, wanted("new"))
        send_partition(client, options, zombie, 0, [rows("old", 0, 11)])
        finish(client, options, wanted("old"), len(PARTITIONS))
        assert written(service, "old") == expected("old"), "what was done already stays done, and once"
        lost = begin(client, options, wanted("third"))
        with pytest.raises(InvalidRequest, match="begun another write"):
            begin(client, options, wanted("fourth"))
        begin(client, new := WriteOptions(options.url, options.application, supersede=True), wanted("fifth"))
        with pytest.raises(Fenced, match="moved on"):
            send_partition(client, options, lost, 0, [rows("third", 0, 11)])
        with pytest.raises(Fenced, match="moved on"):
            finish(client, options, wanted("third"), len(PARTITIONS))
        finish(client, new, wanted("fifth"), len(PARTITIONS))
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
            finish(client, options, wanted("fewer"), 2)
        assert "another application name" in refused.value.hint
        record, _ = read_record(client, options.application)
    assert record is not None
    assert record.state == "intent"


@pytest.mark.parametrize(
    ("begin_key", "end_key"),
    [(b"", None), (b"spark/", b"spark0"), (b"{}", b"{}\0"), (b"{}/9", b"{}/a"), (b"{}/", None)],
)
def test_a_row_that_would_remove_the_record_is_refused_before_it_is_sent(
    service: ServiceProcess, begin_key: bytes, end_key: bytes | None
) -> None:
    """A log may be written into another one as it is; with its record gone a write would begin anew, and send twice."""
    options = new_options(service)
    record = record_key(options.application)
    begin_key = begin_key.replace(b"{}", record)
    end_key = None if end_key is None else end_key.replace(b"{}", record)
    name = f"keeps-{options.application}"
    kept = [(b"%s/0/%03d" % (name.encode(), index), b"v", "write", None) for index in range(6)]
    columns = zip(*kept, (begin_key, None, "range_delete", end_key), strict=True)
    batch = pa.record_batch(dict(zip(("key", "value", "kind", "end"), map(list, columns), strict=True)))
    with Client(service.url) as client:
        for _ in range(2):
            intent = begin(client, options, wanted(name))
            with pytest.raises(InvalidRequest, match="keeps its own progress"):
                send_partition(client, options, intent, 0, [batch])
    assert written(service, name) == [row[0] for row in kept[:4]], "the chunk before it, once"


@pytest.mark.parametrize(("begin_key", "end_key"), [(b"{}-2", b"{}."), (b"{}0", None), (b"", b"{}")])
def test_a_row_beside_the_record_is_none_of_its_business(
    service: ServiceProcess, begin_key: bytes, end_key: bytes | None
) -> None:
    options = new_options(service)
    record = record_key(options.application)
    kinds = {"kind": ["range_delete", "write"], "value": [None, b"v"]}
    keys = [begin_key.replace(b"{}", record), record + b"-other"]
    ends = [None if end_key is None else end_key.replace(b"{}", record), None]
    with Client(service.url) as client:
        intent = begin(client, options, wanted("beside"))
        assert send_partition(client, options, intent, 0, [pa.record_batch({"key": keys, "end": ends, **kinds})]) == 2
        finish(client, options, wanted("beside"), 1)


def test_a_stream_must_go_on_where_the_record_ends(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        write(client, options, wanted("first", None, "a"))
        write(client, options, wanted("second", "a", "b"))
        write(client, options, wanted("first", None, "a"))
        with pytest.raises(InvalidRequest, match="written up to other offsets"):
            write(client, options, wanted("after-a-deleted-checkpoint", None, "b2"))
        with pytest.raises(InvalidRequest, match="written up to other offsets"):
            write(client, options, wanted("a-gap", "c", "d"))
        write(client, WriteOptions(options.url, options.application, supersede=True), wanted("a-gap", "c", "d"))
    for name in ("first", "second", "a-gap"):
        assert written(service, name) == expected(name)


def test_a_stream_that_has_written_before_is_refused_by_a_log_that_knows_nothing_of_it(service: ServiceProcess) -> None:
    """Its target was replaced: what it wrote before is not there, and nothing would ever write it again."""
    options = new_options(service)
    with Client(service.url) as client:
        with pytest.raises(InvalidRequest, match="no record of its application") as caught:
            write(client, options, wanted("unknown-here", "b", "c"))
        assert caught.value.code is Code.LOG_MISMATCH
        assert caught.value.fields["log_id"] == client.version().log_id
        assert "new checkpoint" in caught.value.hint
        write(client, options, wanted("first-of-all", None, "a"))
        renamed = new_options(service)
        write(client, WriteOptions(renamed.url, renamed.application, supersede=True), wanted("renamed", "b", "c"))
    assert written(service, "unknown-here") == []
    assert written(service, "renamed") == expected("renamed")


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
        begin(client, options, Wanted(token_of("unnamed"), ""))
        write(client, options, wanted("named"))
    assert written(service, "named") == expected("named")


def test_a_key_that_holds_something_else_is_not_overwritten(service: ServiceProcess) -> None:
    options = new_options(service)
    with Client(service.url) as client:
        client.commit([Write(record_key(options.application), b"mine")])
        with pytest.raises(Exception, match="no sink wrote"):
            begin(client, options, wanted("foreign"))


def test_a_service_without_a_view_is_refused_with_what_to_set(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, "view.enabled=false") as viewless, Client(viewless.url) as client:
        with pytest.raises(InvalidRequest, match="needs a service that keeps a view"):
            begin(client, new_options(viewless), Wanted(token_of("a"), "a"))
        assert viewless.transactions() == []


def test_records_are_what_they_say() -> None:
    record = Record("intent", "9f" * 16, 7, name="2026-01-31")
    assert msgspec.json.encode(record) == (
        b'{"state":"intent","token":"' + b"9f" * 16 + b'","read_version":7,"name":"2026-01-31","end":null,"recent":[],'
        b'"format":1}'
    )


def test_micro_batches_without_new_offsets_are_told_apart_and_known_again(tmp_path: Path) -> None:
    """Timers and watermarks make rows where the source has nothing new: a micro-batch of its own each time."""
    (tmp_path / "offsets").mkdir()

    def begun(number: int, offset: int) -> StreamRange:
        metadata = f'{{"batchWatermarkMs":0,"batchTimestampMs":{number}}}'
        (tmp_path / "offsets" / str(number)).write_text(f'v1\n{metadata}\n{{"seq":{offset},"version":{offset}}}')
        return stream_range(str(tmp_path))

    ranges = [begun(number, offset) for number, offset in enumerate((5, 9, 9, 9, 12))]
    assert len({each.token for each in ranges}) == len(ranges)
    assert all(before.end == after.start for before, after in itertools.pairwise(ranges))
    (tmp_path / "offsets" / "4").unlink()
    assert stream_range(str(tmp_path)).token == ranges[3].token, "the same micro-batch again"


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

    def run(self, procedure, decide=None, view=None):  # type: ignore[no-untyped-def]
        self.left -= 1
        if self.left == 0:
            wait_until_floor_passes(self.slow)
        return super().run(procedure, decide, view)


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
    with MortalClient(narrow.service.url, dies_at=10, after=True) as client, pytest.raises(Killed):
        write(client, options, wanted(name))
    wait_until_floor_passes(narrow)
    with Client(narrow.service.url) as client:
        write(client, options, wanted(name))
    assert written(narrow.service, name) == expected(name)
