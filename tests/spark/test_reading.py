"""What Spark calls to read: when a stream looks at its source, and what a task gets of a reader."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import EqualTo, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from holdfast.spark.positions import Given, Offset
from holdfast.spark.source.reading import BatchReader, PolledStream

LONG_MS = 10**9
"""No test runs as long."""


class Piece(InputPartition):
    """The numbers below ``value``."""


def numbers_of(name: str, piece: Piece) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({name: list(range(piece.value))})


class Numbers(PolledStream[int]):
    """A source that is looked at, and has what ``newest`` says."""

    def __init__(self, *, is_bounded: bool = False) -> None:
        super().__init__(partial(numbers_of, "seq"), LONG_MS, is_bounded=is_bounded)
        self.newest = self.looks = 0
        self.lock = iter(())  # nothing that can be pickled

    def _newest(self) -> int:
        return self.newest

    def _next_offset(self, start: Given, *, is_bounded: bool) -> Offset | None:
        self.looks += 1
        end = self.newest if self._target is None else self._target
        most = int(start["seq"]) + 1 if is_bounded else end
        return {"seq": min(end, most)} if end > int(start["seq"]) else None


def rows(reader: BatchReader | Numbers, piece: InputPartition) -> int:
    return sum(batch.num_rows for batch in reader.read(piece))


def test_a_stream_without_news_is_left_alone_for_its_interval() -> None:
    stream = Numbers()
    for _ in range(3):
        assert stream.latestOffset({"seq": 0}, ReadAllAvailable()) == {"seq": 0}
    assert stream.looks == 1


def test_a_stream_with_news_is_looked_at_again_at_once() -> None:
    stream = Numbers()
    for stream.newest in (1, 2, 3):
        assert stream.latestOffset({"seq": stream.newest - 1}, ReadAllAvailable()) == {"seq": stream.newest}
    assert stream.looks == 3


def test_a_run_to_what_there_is_now_waits_for_nothing_and_ends_there() -> None:
    stream = Numbers()
    stream.newest = 2
    stream.prepareForTriggerAvailableNow()
    stream.newest = 5
    for start, end in ((0, 2), (2, 2), (2, 2)):
        assert stream.latestOffset({"seq": start}, ReadAllAvailable()) == {"seq": end}
    assert stream.looks == 3


def test_a_source_is_bounded_by_its_own_options_unless_spark_wants_everything() -> None:
    for is_bounded in (False, True):
        stream = Numbers(is_bounded=is_bounded)
        stream.newest = 4
        assert isinstance(stream.getDefaultReadLimit(), ReadAllAvailable) is not is_bounded
        assert stream.latestOffset({"seq": 0}, stream.getDefaultReadLimit()) == {"seq": 1 if is_bounded else 4}
        assert stream.latestOffset({"seq": 0}, ReadAllAvailable()) == {"seq": 4}


def test_a_task_gets_what_reads_a_piece_and_an_empty_piece_has_no_rows() -> None:
    copied = pickle.loads(pickle.dumps(Numbers()))
    assert rows(copied, Piece(3)) == 3 and not hasattr(copied, "lock")
    assert rows(copied, InputPartition(3)) == 0, "Spark's own, of a read without pieces"


def plan(filters: list[Filter] | tuple[()] = ()) -> list[Piece]:
    return [Piece(len(filters))]


def test_filters_reach_the_plan_of_a_read_that_pushes_them_down() -> None:
    asked = [EqualTo(("seq",), 1), EqualTo(("seq",), 2)]
    pushing = BatchReader(plan, partial(numbers_of, "seq"), pushdown=True)
    assert list(pushing.pushFilters(list(asked))) == asked, "Spark evaluates all of them again"
    assert [rows(pickle.loads(pickle.dumps(pushing)), piece) for piece in pushing.partitions()] == [2]
    plain = BatchReader(plan, partial(numbers_of, "seq"))
    assert plain.pushFilters.__func__ is BatchReader.pushFilters, "Spark takes no other where push-down is off"
    assert [piece.value for piece in plain.partitions()] == [0]
