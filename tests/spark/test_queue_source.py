"""``shape=messages``: the rows are the messages that the queue's own reader gives, whatever the pieces."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from holdfast.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.queue import Gap, Message, Queue
from holdfast.queue.queue import core_of
from holdfast.spark.messages.queue import HoldfastQueueStreamReader, message_rows, plan_messages
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_message_options, parse_read_options
from holdfast.spark.positions import Offset

PAGE = 4096
CLOCK_BEGIN = 1_700_000_000_000_000_000
CLOCK_STEP = 1_000_000_000


class Clock:
    """Each look is a second later."""

    def __init__(self) -> None:
        self.now = CLOCK_BEGIN

    def __call__(self) -> int:
        self.now += CLOCK_STEP
        return self.now


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Queue]:
    """A queue of many pages, open in a program that goes on."""
    with Queue(tmp_path / "orders", page_size=PAGE, clock=Clock(), compression=0) as queue:
        for number in range(120):
            queue.append(b"message %d " % number * (number % 40))
        queue.append_many([b"one", b"", b"three"], atomic=True)
        yield queue


def read(path: Path, piece_bytes: int = 2**20, **options: str) -> tuple[list[tuple[int, datetime, bytes]], int]:
    """The rows of all pieces in order, and how many pieces they came in."""
    given = parse_message_options({"shape": "messages", "queue": str(path), **options})
    parsed = replace(given, target_partition_bytes=piece_bytes)
    pieces = plan_messages(parsed)
    batches = [batch for piece in pieces for batch in message_rows(parsed, piece)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()], len(pieces)  # type: ignore[misc]


def plain(messages: Iterator[Message]) -> list[tuple[int, datetime, bytes]]:
    return [(m.seq, datetime.fromtimestamp(m.time_ns / 10**9, UTC), m.payload) for m in messages]


def test_rows_are_the_messages_in_order_while_the_program_goes_on(filled: Queue, tmp_path: Path) -> None:
    assert len(core_of(filled).pages.numbers()) > 6
    rows, pieces = read(tmp_path / "orders")
    assert rows == plain(filled.read()) and pieces == 1
    filled.append(b"later")
    assert len(read(tmp_path / "orders")[0]) == len(rows) + 1


def test_pieces_are_whole_pages_and_together_the_queue(filled: Queue, tmp_path: Path) -> None:
    rows, pieces = read(tmp_path / "orders", piece_bytes=1)
    assert rows == plain(filled.read())
    with_messages = {
        page
        for page in core_of(filled).pages.numbers()
        if not getattr(core_of(filled).pages.header_of(page), "prepared", True)
    }
    assert pieces == len(with_messages)
    assert 1 < read(tmp_path / "orders", piece_bytes=2 * PAGE)[1] < pieces


def test_a_start_by_seq_or_time_is_that_of_the_queue(filled: Queue, tmp_path: Path) -> None:
    path = tmp_path / "orders"
    everything = plain(filled.read())
    for after in (0, 1, 57, 121, 122, 123, 500):
        rows, _ = read(path, startingOffsets=f'{{"seq": {after}}}')
        assert rows == [row for row in everything if row[0] > after]
    for index in (0, 60, 121, -1):
        since = everything[index][1]
        rows, _ = read(path, startingTimestamp=since.isoformat())
        assert rows == plain(filled.read(since=since)) and rows[0][1] == since
    assert read(path, startingTimestamp="2100-01-01T00:00:00Z")[0] == []
    assert read(path, columns="payload")[0] == [(row[2],) for row in everything]


def test_a_removed_beginning_is_data_loss_only_where_it_was_asked_for(filled: Queue, tmp_path: Path) -> None:
    filled.flush()  # only pages whose successor is durable are removed
    filled.trim(before_seq=60)
    first = filled.first_seq
    assert 1 < first <= 60
    assert read(tmp_path / "orders")[0][0][0] == first
    with pytest.raises(NotFound, match="were removed"):
        read(tmp_path / "orders", startingOffsets='{"seq": 1}')
    rows, _ = read(tmp_path / "orders", startingOffsets='{"seq": 1}', failOnDataLoss="false")
    assert rows == plain(filled.read())


def test_damage_fails_the_read_and_is_passed_over_on_request(filled: Queue, tmp_path: Path) -> None:
    number = core_of(filled).pages.numbers()[4]
    path = tmp_path / core_of(filled).pages.names.page(number)
    data = bytearray(path.read_bytes())
    data[1500] ^= 1
    path.write_bytes(data)
    with pytest.raises(Gap):
        read(tmp_path / "orders")
    rows, _ = read(tmp_path / "orders", failOnDataLoss="false")
    assert rows == plain(filled.read(damage="skip")) and 100 < len(rows) < 123


def test_messages_that_go_between_planning_and_reading_are_told(filled: Queue, tmp_path: Path) -> None:
    given = {"shape": "messages", "queue": str(tmp_path / "orders")}
    (piece,) = plan_messages(parse_message_options(given))
    filled.flush()  # only pages whose successor is durable are removed
    filled.trim(before_seq=60)
    with pytest.raises(HoldfastError):
        list(message_rows(parse_message_options(given), piece))
    lenient = parse_message_options({**given, "failOnDataLoss": "false"})
    assert sum(batch.num_rows for batch in message_rows(lenient, piece)) == 123 - filled.first_seq + 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"shape": "messages"}, "queue is required"),
        ({"shape": "messages", "queue": "/q", "url": "file:///log"}, "url is unknown.*valid options: queue"),
        ({"shape": "messages", "queue": "/q", "columns": "key"}, "has seq, time, payload"),
        ({"shape": "messages", "path": "file:/q/orders"}, "queue is a path, not a URL: give /q/orders"),
        ({"shape": "messages", "queue": "/q", "startingOffsets": '{"version": 1}'}, "read what comes after"),
        ({"shape": "messages", "queue": "/q", "startingTimestamp": "2026-01-31"}, "with its zone"),
    ],
)
def test_what_is_no_read_of_messages_is_refused_with_the_reason(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parse_message_options(given)


def test_a_queue_as_a_log_and_options_of_a_stream_in_a_batch_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="without shape=messages"):
        parse_read_options({"queue": "/q"})
    with pytest.raises(InvalidRequest, match="operations, transactions, batches, messages"):
        parse_read_options({"url": "file:///log", "shape": "rows"})
    with pytest.raises(InvalidRequest, match="no effect on a batch"):
        parse_message_options({"shape": "messages", "queue": "/q", "maxRowsPerTrigger": "7"}, Mode.BATCH)


def streaming(path: Path, **options: str) -> HoldfastQueueStreamReader:
    given = {"shape": "messages", "queue": str(path), "pollInterval": "1ms", "columns": "seq,payload", **options}
    return HoldfastQueueStreamReader(parse_message_options(given, Mode.STREAM))


def rows_between(reader: HoldfastQueueStreamReader, start: Offset, end: Offset) -> list[tuple[int, bytes]]:
    pieces = reader.partitions(start, end)
    return [tuple(row.values()) for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]  # type: ignore[misc]


def drained(reader: HoldfastQueueStreamReader, start: Offset) -> tuple[list[tuple[int, bytes]], Offset]:
    """One micro-batch after the other until nothing is left, each read again by a reader after a restart."""
    seen: list[tuple[int, bytes]] = []
    while True:
        time.sleep(0.002)  # longer than the poll interval
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            return seen, start
        rows = rows_between(reader, start, end)
        assert rows_between(HoldfastQueueStreamReader(reader._options), start, end) == rows
        reader.commit(end)
        seen += rows
        start = end


def test_a_bound_in_bytes_ends_a_micro_batch_by_the_mean_message(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    with Queue(path) as queue:
        queue.append_many([bytes(100)] * 40)
    reader = streaming(path, maxBytesPerTrigger="1000", startingOffsets="earliest")
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert first["seq"] == 10
    assert reader.latestOffset(first, limit)["seq"] == 20
    assert streaming(path, maxBytesPerTrigger="1").latestOffset(first, limit)["seq"] == 11
    both = streaming(path, maxBytesPerTrigger="1000", maxRowsPerTrigger="3")
    assert both.latestOffset(first, both.getDefaultReadLimit())["seq"] == 13


def test_a_stream_returns_each_message_once_while_the_program_appends(filled: Queue, tmp_path: Path) -> None:
    path = tmp_path / "orders"
    reader = streaming(path, maxRowsPerTrigger="50")
    seen, place = drained(reader, reader.initialOffset())
    for number in range(3):
        filled.append_many([b"later %d" % number] * 70)
        more, place = drained(reader, place)
        seen += more
    assert seen == [(m.seq, m.payload) for m in filled.read()]
    filled.append(b"after a restart")
    assert drained(streaming(path), json.loads(json.dumps(place)))[0] == [(filled.last_seq, b"after a restart")]
    begun = {"latest": filled.last_seq, '{"seq": 100}': 100, json.dumps(place): place["seq"]}
    for given, after in begun.items():
        assert streaming(path, startingOffsets=given).initialOffset()["seq"] == after
    assert streaming(path, startingTimestamp="2100-01-01T00:00:00Z").initialOffset()["seq"] == filled.last_seq


def test_a_stream_for_what_is_there_now_ends_there(filled: Queue, tmp_path: Path) -> None:
    reader = streaming(tmp_path / "orders", maxRowsPerTrigger="100")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    filled.append(b"later")
    seen, place = drained(reader, start)
    assert len(seen) == place["seq"] == 123


def test_what_a_stream_cannot_get_any_more_is_an_error_or_skipped(filled: Queue, tmp_path: Path) -> None:
    path = tmp_path / "orders"
    reader = streaming(path)
    start = reader.initialOffset()
    assert start["seq"] == 0
    planned = reader.latestOffset(start, reader.getDefaultReadLimit())
    early = streaming(path, maxRowsPerTrigger="10").latestOffset(start, ReadMaxRows(10))
    filled.flush()
    filled.trim(before_seq=60)
    left = [(m.seq, m.payload) for m in filled.read()]
    for strict in (reader, streaming(path)):
        with pytest.raises(NotFound, match="messages after the starting offset were removed"):
            drained(strict, early)
    with pytest.raises(HoldfastError):
        rows_between(reader, early, planned)
    lenient = streaming(path, failOnDataLoss="false", maxRowsPerTrigger="10")
    assert drained(lenient, early)[0] == left
    assert rows_between(lenient, early, planned) == left
    assert streaming(path).initialOffset()["seq"] == filled.first_seq - 1, "what had gone before is not lost to it"
    number = core_of(filled).pages.numbers()[2]
    page = tmp_path / core_of(filled).pages.names.page(number)
    data = bytearray(page.read_bytes())
    data[1500] ^= 1
    page.write_bytes(data)
    with pytest.raises(Gap):
        drained(streaming(path), streaming(path).initialOffset())
    assert drained(lenient, early)[0] == [(m.seq, m.payload) for m in filled.read(damage="skip")]


@pytest.mark.parametrize("failing", ["true", "false"])
def test_a_queue_made_again_and_a_number_given_twice_end_a_stream(tmp_path: Path, failing: str) -> None:
    path = tmp_path / "orders"
    with Queue(path, page_size=PAGE, clock=Clock()) as queue:
        queue.append_many([b"durable"] * 5)
    kept = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with Queue(path, page_size=PAGE, clock=Clock()) as queue:
        queue.append_many([b"read, and lost"] * 5)
    reader = streaming(path, failOnDataLoss=failing)
    begun, place = reader.initialOffset(), drained(reader, reader.initialOffset())[1]

    def restored() -> None:
        for each in tmp_path.iterdir():
            each.unlink()
        for name, data in kept.items():
            (tmp_path / name).write_bytes(data)

    restored()  # what a power failure leaves
    with pytest.raises(NotFound, match="lost power"):
        drained(reader, place)
    with pytest.raises(NotFound, match="lost power"):
        reader.partitions(begun, place)
    with Queue(path, page_size=PAGE) as queue:
        queue.append_many([b"other"] * 9)
    with pytest.raises(InvalidRequest, match="to another one"):
        drained(reader, place)
    with pytest.raises(InvalidRequest, match="to another one"):
        reader.partitions(begun, place)
    assert len(drained(reader, begun)[0]) == 14
    planned = reader.partitions(begun, streaming(path).latestOffset(begun, ReadAllAvailable()))
    for each in tmp_path.iterdir():
        each.unlink()
    with pytest.raises(NotFound, match="no such queue"):
        drained(reader, place)
    with Queue(path, page_size=PAGE, clock=Clock()) as queue:
        queue.append_many([b"again"] * 20)
    for attempt in (
        lambda: drained(reader, begun),
        lambda: reader.partitions(begun, place),
        lambda: list(reader.read(planned[0])),
    ):
        with pytest.raises(InvalidRequest, match="deleted and made again"):
            attempt()


def test_an_offset_of_another_source_is_refused(filled: Queue, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="not this source's"):
        streaming(tmp_path / "orders").latestOffset({"version": 3}, ReadAllAvailable())


def test_spark_reads_a_queue(spark: SparkSession, filled: Queue, tmp_path: Path) -> None:
    frame = spark.read.format("holdfast").option("shape", "messages").load(str(tmp_path / "orders"))
    assert frame.schema.simpleString() == "struct<seq:bigint,time:timestamp,payload:binary>"
    rows = [(row.seq, bytes(row.payload)) for row in frame.orderBy("seq").collect()]
    assert rows == [(seq, payload) for seq, _, payload in plain(filled.read())]
    with pytest.raises(PySparkException, match="no such"):
        spark.read.format("holdfast").option("shape", "messages").load(str(tmp_path / "none")).collect()


def test_spark_follows_a_queue_with_restarts(spark: SparkSession, filled: Queue, tmp_path: Path) -> None:
    def follow() -> list[tuple[int, bytes]]:
        stream = spark.readStream.format("holdfast").option("shape", "messages").option("maxRowsPerTrigger", "100")
        query = (
            stream.load(str(tmp_path / "orders"))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "table"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        rows = spark.read.parquet(str(tmp_path / "table")).orderBy("seq").collect()
        return [(row.seq, bytes(row.payload)) for row in rows]

    assert follow() == [(m.seq, m.payload) for m in filled.read()]
    filled.append_many([b"later"] * 30)
    assert follow() == [(m.seq, m.payload) for m in filled.read()]
