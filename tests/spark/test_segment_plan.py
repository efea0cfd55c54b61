"""A read that prefers segments gives the rows of the log alone, whatever is asked for and whatever has left the log."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, random_log, read_plainly
from tests.spark.plain import PlainRow, operation_rows, spark_rows

from holdfast.commit.format.batch import SPAN_MAX, object_name
from holdfast.commit.format.transaction import Write
from holdfast.errors import CorruptData, NotFound
from holdfast.segments.index import read_segment_index
from holdfast.spark import Schedule, Segments, run_pipeline
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_read_options
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.source import stream
from holdfast.spark.source.plan import SegmentPartition, plan_read
from holdfast.spark.source.scan import scan
from holdfast.spark.source.segments import plan_with_segments, scan_segment
from holdfast.spark.source.shapes import RowFilter
from holdfast.spark.source.stream import HoldfastStreamReader
from holdfast.values import Version

COLUMNS = "version,position,kind,key,end,value,request_id,seq,timestamp,leader_id"


@dataclass(frozen=True)
class World:
    """A log, its plain rows, and segments of about half of it."""

    log: str
    segments: str
    through: int
    rows: list[PlainRow]


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("segmented")
    builder = random_log(63, reigns=8, batches=14)
    log = builder.write_to(root / "log")
    rows = operation_rows(read_plainly(builder.objects))
    table = (root / "segments").as_uri()
    versions = [txn.version for batch in read_plainly(builder.objects) for txn in batch.transactions]
    middle = versions[len(versions) // 2]
    for until in (versions[len(versions) // 4], middle):
        run_pipeline(Segments(spark, log, table, log_bytes_min=1), log, table, schedule=Schedule(until=until))
    index = read_segment_index(str(root / "segments"), {})
    assert len(index.segments) >= 2 and index.through == middle
    return World(log, table, middle, rows)


def rows_of_log(given: dict[str, str], pushed: RowFilter | None) -> list[PlainRow]:
    options = parse_read_options(given)
    with StoreThread(options.url) as thread:
        plan = thread.start(lambda store: plan_read(store, options, pushed)).result()
    return [row for piece in plan.pieces for batch in scan(options, plan.wanted, piece) for row in batch.to_pylist()]


def rows_of_both(given: dict[str, str], pushed: RowFilter | None) -> tuple[list[PlainRow], int]:
    """The rows, and how many segments were read for them."""
    options = parse_read_options(given)
    rows: list[PlainRow] = []
    segments = 0
    for piece in plan_with_segments(options, pushed):
        if isinstance(piece, SegmentPartition):
            segments += 1
            batches = scan_segment(options, piece)
        else:
            batches = scan(options, piece.wanted, piece.piece)
        rows += [row for batch in batches for row in batch.to_pylist()]
    return rows, segments


def questions(world: World) -> dict[str, tuple[dict[str, str], RowFilter | None, Callable[[int], bool]]]:
    """Options, a pushed filter, and how many segments may answer."""
    early, late = world.rows[len(world.rows) // 6], world.rows[-len(world.rows) // 6]
    quarter = str(early["version"])
    offset = json.dumps({"seq": early["seq"], "version": early["version"]})
    named = next(str(row["request_id"]) for row in world.rows if row["request_id"])
    return {
        "everything": ({}, None, lambda count: count >= 2),
        "from a version in segments": ({"startingVersion": quarter}, None, lambda count: count >= 1),
        "up to a version in segments": ({"endingVersion": quarter}, None, lambda count: count == 1),
        "as of the border": ({"asOfVersion": str(world.through)}, None, lambda count: count >= 2),
        "from behind the border": ({"startingVersion": str(world.through + 1)}, None, lambda count: count == 0),
        "from the newest": ({"startingVersion": "latest"}, None, lambda count: count == 0),
        "since a time in segments": ({"startingTimestamp": f"{early['timestamp']}Z"}, None, lambda count: count >= 1),
        "since a time behind them": ({"startingTimestamp": f"{late['timestamp']}Z"}, None, lambda count: True),
        "up to a time in segments": ({"endingTimestamp": f"{early['timestamp']}Z"}, None, lambda count: count >= 1),
        "as of a time after them": ({"timestampAsOf": f"{late['timestamp']}Z"}, None, lambda count: count >= 1),
        "up to an offset": ({"endingOffsets": offset}, None, lambda count: count >= 1),
        "of a request": ({"requestIds": named}, None, lambda count: count >= 2),
        "after an offset": ({"startingOffsets": offset}, None, lambda count: count >= 1),
        "of a prefix": ({"keyPrefix": "a"}, None, lambda count: count >= 2),
        "of a range of keys": (
            {"keyBegin": "a", "keyEnd": "ba", "kinds": "write,range_delete"},
            None,
            lambda c: c >= 2,
        ),
        "of one kind": ({"kinds": "delete"}, None, lambda count: count >= 2),
        "of few columns": ({"columns": "key"}, None, lambda count: count >= 2),
        "of pushed places": ({}, RowFilter(seq_min=3, seq_max=late["seq"]), lambda count: True),  # type: ignore[arg-type]
        "of a pushed request": ({}, RowFilter(request_ids=(named,)), lambda count: True),
        "of pushed versions": ({}, RowFilter(version_min=5, version_max=world.through), lambda count: count >= 1),
    }


@pytest.mark.matrix
def test_segments_and_log_together_give_the_rows_of_the_log_alone_whatever_is_asked(world: World) -> None:
    for name, (options, pushed, fits) in questions(world).items():
        given = {"url": world.log, "columns": COLUMNS, **options}
        wanted = rows_of_log(given, pushed)
        found, segments = rows_of_both({**given, "segments": world.segments}, pushed)
        assert found == wanted, name
        assert wanted or name == "from the newest", name
        assert fits(segments), (name, segments)


def test_spark_reads_segments_by_an_option(spark: SparkSession, world: World) -> None:
    reader = spark.read.format("holdfast").option("url", world.log).option("columns", COLUMNS)
    frame = reader.option("segments", world.segments).load()
    rows = [{name: row[name] for name in COLUMNS.split(",")} for row in world.rows]
    assert spark_rows(frame, "version", "position") == rows


def test_what_retention_took_is_read_from_segments_and_what_is_in_neither_is_data_loss(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = LogBuilder(seed=5)
    leader = builder.lead()
    for number in range(SPAN_MAX + 8):  # retention leaves a span of objects behind the newest
        leader.commit([Write(b"key%d" % number, b"v")])
    removed = {slot: txns[-1].version for slot, txns in list(leader.transactions.items())[:6]}
    leader.head = replace(leader.head, truncated_through=Version(max(removed.values())))
    leader.commit([Write(b"after", b"v")])
    log = builder.write_to(tmp_path / "log")
    given = {"url": log, "columns": COLUMNS}
    wanted = rows_of_log(given, None)
    tables = {version: (tmp_path / str(version)).as_uri() for version in sorted(removed.values())[-2:]}
    for version, table in tables.items():
        run_pipeline(Segments(spark, log, table, log_bytes_min=1), log, table, schedule=Schedule(until=version))
    for slot in removed:
        (tmp_path / "log" / object_name(slot)).unlink()
    enough, too_little = tables[max(tables)], tables[min(tables)]
    with pytest.raises(NotFound, match="retention has removed"):
        rows_of_log({**given, "startingVersion": "0"}, None)
    for start in ({}, {"startingVersion": "0"}, {"startingTimestamp": "2000-01-01T00:00:00Z"}):
        assert rows_of_both({**given, **start, "segments": enough}, None)[0] == wanted
        with pytest.raises(NotFound, match="retention has removed"):
            rows_of_both({**given, **start, "segments": too_little}, None)
    ending = {"endingVersion": str(min(tables))}
    assert rows_of_both({**given, **ending, "segments": too_little}, None)[0] == wanted[:5], "the log is not needed"
    for path in (tmp_path / str(max(tables)) / "data").iterdir():
        path.unlink()
    with pytest.raises(CorruptData, match="have left the log"):
        rows_of_both({**given, "segments": enough}, None)


def stream_in_steps(world: World, draw: random.Random, **given: str) -> tuple[list[PlainRow], int]:
    """The rows of a stream in micro-batches of any size, and how many segments were read for them."""
    words = {"url": world.log, "columns": COLUMNS, "maxObjectsPerTrigger": str(draw.choice((3, 20, 1000)))}
    options = parse_read_options({**words, **given}, Mode.STREAM)
    reader = HoldfastStreamReader(options)
    offset = reader.initialOffset()
    rows: list[PlainRow] = []
    segments = 0
    while True:
        reader._asked_ms = None
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        if end == offset:
            reader.stop()
            return rows, segments
        if draw.random() < 0.3:  # another process is asked for the same micro-batch
            reader.stop()
            reader = HoldfastStreamReader(options)
        pieces = reader.partitions(offset, end)
        segments += sum(isinstance(piece, SegmentPartition) for piece in pieces)
        rows += [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]
        offset = end


def in_order(rows: list[PlainRow]) -> list[PlainRow]:
    return sorted(rows, key=lambda row: (row["version"], row["position"]))


@pytest.mark.parametrize("seed", matrix([1, 0, *range(2, 8)]))
def test_a_stream_with_segments_hands_out_the_rows_of_the_log_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(stream, "OBJECTS_MIN", 1)
    draw = random.Random(seed)
    early = world.rows[draw.randrange(len(world.rows) // 4)]
    starts: list[dict[str, str]] = [
        {},
        {"startingVersion": str(early["version"])},
        {"startingTimestamp": f"{early['timestamp']}Z"},
        {"startingOffsets": json.dumps({"seq": early["seq"], "version": early["version"]})},
        {"keyPrefix": "a"},
    ]
    used = 0
    for start in starts:
        plain, _ = stream_in_steps(world, draw, **start)
        found, segments = stream_in_steps(world, draw, segments=world.segments, **start)
        assert in_order(found) == in_order(plain), start
        used += segments
    assert used > 0 or seed == 0, "some micro-batch held a whole segment"


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_segment_that_cannot_be_read_is_read_from_the_log_while_that_has_it(
    world: World, tmp_path: Path, is_gone: bool
) -> None:
    log, table = tmp_path / "log", tmp_path / "segments"
    shutil.copytree(Path(unquote(urlsplit(world.log).path)), log)
    shutil.copytree(Path(unquote(urlsplit(world.segments).path)), table)
    victim = max(read_segment_index(str(table), {}).segments, key=lambda each: each.rows)
    path = table / victim.path
    if is_gone:
        path.unlink()
    else:
        data = path.read_bytes()
        middle = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset + 40
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    given = {"url": log.as_uri(), "columns": COLUMNS}
    assert rows_of_both({**given, "segments": table.as_uri()}, None)[0] == rows_of_log(given, None)
