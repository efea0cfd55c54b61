"""``shape=messages``: the rows are the messages that the queue's own reader gives, whatever the pieces."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.queue import Gap, Message, Queue
from holdfast.spark.data_source import HoldfastDataSource
from holdfast.spark.messages.queue import message_rows, plan_messages
from holdfast.spark.options import Mode, parse_message_options, parse_read_options

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


def read(path: Path, **options: str) -> tuple[list[tuple[int, datetime, bytes]], int]:
    """The rows of all pieces in order, and how many pieces they came in."""
    parsed = parse_message_options(
        {"shape": "messages", "queue": str(path), "targetPartitionBytes": "1048576", **options}
    )
    pieces = plan_messages(parsed)
    batches = [batch for piece in pieces for batch in message_rows(parsed, piece)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()], len(pieces)  # type: ignore[misc]


def plain(messages: Iterator[Message]) -> list[tuple[int, datetime, bytes]]:
    return [(m.seq, datetime.fromtimestamp(m.time_ns / 10**9, UTC), m.payload) for m in messages]


def test_rows_are_the_messages_in_order_while_the_program_goes_on(filled: Queue, tmp_path: Path) -> None:
    assert len(filled.pages.numbers()) > 6
    rows, pieces = read(tmp_path / "orders")
    assert rows == plain(filled.read()) and pieces == 1
    filled.append(b"later")
    assert len(read(tmp_path / "orders")[0]) == len(rows) + 1


def test_pieces_are_whole_pages_and_together_the_queue(
    filled: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.options.PARTITION_BYTES_MIN", 1)
    rows, pieces = read(tmp_path / "orders", targetPartitionBytes="1")
    assert rows == plain(filled.read())
    with_messages = {
        page for page in filled.pages.numbers() if not getattr(filled.pages.header_of(page), "prepared", True)
    }
    assert pieces == len(with_messages)
    assert 1 < read(tmp_path / "orders", targetPartitionBytes=str(2 * PAGE))[1] < pieces


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
    number = filled.pages.numbers()[4]
    path = tmp_path / filled.pages.names.page(number)
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
        ({"shape": "messages", "queue": "/q", "startingOffsets": '{"version": 1}'}, "read what comes after"),
        ({"shape": "messages", "queue": "/q", "startingTimestamp": "2026-01-31"}, "with its zone"),
    ],
)
def test_what_is_no_read_of_messages_is_refused_with_the_reason(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parse_message_options(given)


def test_a_stream_and_a_queue_as_a_log_are_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidRequest, match="batch source"):
        parse_message_options({"shape": "messages", "queue": "/q"}, Mode.STREAM)
    with pytest.raises(InvalidRequest, match="without shape=messages"):
        parse_read_options({"queue": "/q"})
    with pytest.raises(InvalidRequest, match="operations, transactions, batches, messages"):
        parse_read_options({"url": "file:///log", "shape": "rows"})
    source = HoldfastDataSource({"shape": "messages", "queue": "/q"})
    with pytest.raises(InvalidRequest, match="batch source"):
        source.streamReader(source.schema())


def test_spark_reads_a_queue(spark: SparkSession, filled: Queue, tmp_path: Path) -> None:
    frame = spark.read.format("holdfast").option("shape", "messages").load(str(tmp_path / "orders"))
    assert frame.schema.simpleString() == "struct<seq:bigint,time:timestamp,payload:binary>"
    rows = [(row.seq, bytes(row.payload)) for row in frame.orderBy("seq").collect()]
    assert rows == [(seq, payload) for seq, _, payload in plain(filled.read())]
    with pytest.raises(PySparkException, match="no such"):
        spark.read.format("holdfast").option("shape", "messages").load(str(tmp_path / "none")).collect()
