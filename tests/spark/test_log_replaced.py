"""A log that is deleted and created again at the same url is noticed by streams, batches and the sink."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.log_builder import LogBuilder
from tests.spark.test_streaming import run_to_parquet, stream

from holdfast.commit.format.batch import object_name
from holdfast.commit.format.transaction import Write
from holdfast.errors import Code, InvalidRequest
from holdfast.objects.memory import MemoryStore
from holdfast.objects.open import open_store
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_read_options
from holdfast.spark.source.reader import log_reader
from holdfast.spark.source.reading import BatchReader
from holdfast.spark.source.stream import HoldfastStreamReader, Offset

GOLDEN = Path(__file__).parents[1] / "compat"
SHORT, LONG = 2, 40
_names = itertools.count()


def a_log(seed: int, batches: int) -> LogBuilder:
    builder = LogBuilder(seed)
    leader = builder.lead()
    for number in range(batches):
        leader.commit([Write(b"k", b"%d of %d" % (number, seed))])
    return builder


class Place:
    """A url of this process's memory at which one log after another is found, and a stream over it."""

    def __init__(self, log: LogBuilder) -> None:
        self.url = f"memory:replaced-{next(_names)}"
        store = open_store(self.url)
        assert isinstance(store, MemoryStore)
        self._objects = store.objects
        self.put(log)
        self.reader = self.stream()

    def put(self, log: LogBuilder) -> None:
        for row in self._objects.list("batches/", limit=10_000):
            self._objects.delete(row.key)
        for slot, data in log.objects.items():
            self._objects.create(object_name(slot), data)

    def stream(self, **options: str) -> HoldfastStreamReader:
        given = {"url": self.url, "pollInterval": "1ms", **options}
        return HoldfastStreamReader(parse_read_options(given, Mode.STREAM))

    def batch(self, **options: str) -> BatchReader:
        return log_reader(parse_read_options({"url": self.url, **options}, Mode.BATCH))

    def read_to_end(self) -> Offset:
        start = self.reader.initialOffset()
        end = self.reader.latestOffset(start, ReadAllAvailable())
        assert rows(self.reader, start, end)
        return end


def rows(reader: HoldfastStreamReader, start: Offset, end: Offset) -> int:
    return sum(batch.num_rows for piece in reader.partitions(start, end) for batch in reader.read(piece))


def without_id(offset: Offset) -> Offset:
    return {name: value for name, value in offset.items() if name != "log_id"}


def test_offsets_name_their_log() -> None:
    log = a_log(1, 5)
    place = Place(log)
    assert place.reader.initialOffset()["log_id"] == place.read_to_end()["log_id"] == log.log_id.hex()
    for start in ('{"seq": 1}', '{"version": 5}', json.dumps({"seq": 1, "log_id": log.log_id.hex()}), "latest"):
        assert place.stream(startingOffsets=start).initialOffset()["log_id"] == log.log_id.hex()


@pytest.mark.parametrize("batches", [SHORT, LONG])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_stream_notices_whether_the_new_log_is_shorter_or_longer(batches: int, restarted: bool) -> None:
    old, new = a_log(1, 10), a_log(2, batches)
    place = Place(old)
    end = place.read_to_end()
    place.put(new)
    reader = place.stream() if restarted else place.reader
    reader._asked_ms = reader._proved_ms = None  # the pollInterval and the time between proofs have passed
    with pytest.raises(InvalidRequest) as caught:
        reader.latestOffset(end, ReadAllAvailable())
    assert caught.value.code is Code.LOG_MISMATCH
    assert (caught.value.fields["offset_log_id"], caught.value.fields["log_id"]) == (old.log_id.hex(), new.log_id.hex())
    assert "new checkpoint" in caught.value.hint


@pytest.mark.parametrize("batches", [SHORT, LONG])
@pytest.mark.parametrize("options", [{}, {"maxObjectsPerTrigger": "3"}, {"failOnDataLoss": "false"}])
def test_a_bounded_run_notices(batches: int, options: dict[str, str]) -> None:
    place = Place(a_log(1, 10))
    end = place.read_to_end()
    place.put(a_log(2, batches))
    reader = place.stream(**options)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(InvalidRequest) as caught:
        reader.latestOffset(end, reader.getDefaultReadLimit())
    assert caught.value.code is Code.LOG_MISMATCH


@pytest.mark.parametrize("batches", [SHORT, LONG])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_micro_batch_that_was_planned_of_the_log_before_reads_nothing_of_the_new_one(
    batches: int, restarted: bool
) -> None:
    place = Place(a_log(1, 10))
    start = place.reader.initialOffset()
    end = place.reader.latestOffset(start, ReadAllAvailable())
    pieces = place.reader.partitions(start, end)
    place.put(a_log(2, batches))
    with pytest.raises(InvalidRequest) as caught:
        list(place.reader.read(pieces[0]))
    assert caught.value.code is Code.LOG_MISMATCH
    reader = place.stream() if restarted else place.reader
    with pytest.raises(InvalidRequest) as caught:
        rows(reader, start, end)
    assert caught.value.code is Code.LOG_MISMATCH


def test_a_checkpoint_that_does_not_name_its_log_is_refused() -> None:
    place = Place(a_log(1, 10))
    start = place.reader.initialOffset()
    end = place.reader.latestOffset(start, ReadAllAvailable())
    for step in (
        lambda: place.stream().latestOffset(without_id(start), ReadAllAvailable()),
        lambda: place.stream().partitions(without_id(start), end),
        lambda: place.stream().partitions(start, without_id(end)),
    ):
        with pytest.raises(InvalidRequest, match="checkpoint holds an offset"):
            step()


def test_an_offset_with_an_id_that_is_none_is_not_this_sources() -> None:
    place = Place(a_log(1, 3))
    end = place.read_to_end()
    with pytest.raises(InvalidRequest, match="checkpoint holds an offset"):
        place.stream().latestOffset(end | {"log_id": "x"}, ReadAllAvailable())
    with pytest.raises(InvalidRequest, match="log_id"):
        place.stream(startingOffsets='{"version": 3, "log_id": "x"}')


def test_a_batch_read_notices() -> None:
    old, new = a_log(2, 10), a_log(1, LONG)
    place = Place(old)
    offset = place.read_to_end()
    place.put(new)
    for start in (offset, {"version": 3, "log_id": old.log_id.hex()}):
        with pytest.raises(InvalidRequest) as caught:
            place.batch(startingOffsets=json.dumps(start)).partitions()
        assert caught.value.code is Code.LOG_MISMATCH
        with pytest.raises(InvalidRequest):
            place.stream(startingOffsets=json.dumps(start)).initialOffset()
    reader = place.batch(startingOffsets=json.dumps(without_id(offset)))
    assert sum(batch.num_rows for piece in reader.partitions() for batch in reader.read(piece)) == LONG - 10
    pieces = reader.partitions()
    place.put(old)
    with pytest.raises(InvalidRequest):
        list(reader.read(pieces[0]))


@pytest.mark.matrix
def test_a_query_of_spark_notices_running_and_stopped(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    url = a_log(1, 10).write_to(log)
    run_to_parquet(stream(spark, url), tmp_path)
    shutil.rmtree(log)
    a_log(2, LONG).write_to(log)
    query = (
        stream(spark, url)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "table"))
    )
    with pytest.raises(Exception, match="the offset belongs to another log"):
        query.awaitTermination(100)
    running = (
        stream(spark, url, pollInterval="10ms")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "second"))
        .start(str(tmp_path / "table of the second"))
    )
    running.processAllAvailable()
    shutil.rmtree(log)
    a_log(3, LONG + 1).write_to(log)
    # Who looks between the two lines above finds no log at all.
    found = "the offset belongs to another log|log is empty|was replaced by another directory|was moved or removed"
    with pytest.raises(Exception, match=found):
        running.awaitTermination(100)
    assert spark.read.parquet(str(tmp_path / "table")).count() == 10
