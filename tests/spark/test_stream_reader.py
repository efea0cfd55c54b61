"""The stream reader without Spark: any sequence of questions, restarts included, hands out each row exactly once."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from typing import cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.matrix import matrix
from tests.spark.log_builder import Leader, LogBuilder, random_log, read_plainly, seq
from tests.spark.plain import PlainRow, batch_rows, operation_rows, transaction_rows

from holdfast.commit.format.batch import FIRST_SLOT, HEADER_BYTES, SPAN_MAX, object_name
from holdfast.commit.format.transaction import Write
from holdfast.errors import CorruptData, NotFound
from holdfast.objects import memory
from holdfast.objects.open import open_store
from holdfast.spark.columns import COLUMNS, RowShape
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_read_options
from holdfast.spark.source import stream as tail
from holdfast.spark.source.stream import HoldfastStreamReader
from holdfast.values import Version

_names = itertools.count()
Offset = dict[str, int]


class World:
    """A log in the memory of this process that grows, and a stream over it that may be restarted at any time."""

    def __init__(self, builder: LogBuilder, **given: object) -> None:
        self.builder = builder
        self.url = f"memory:stream-{next(_names)}"
        store = open_store(self.url)
        assert isinstance(store, memory.MemoryStore)
        self.objects = store.objects
        self.given = {"pollInterval": "1ms", **{name: str(value) for name, value in given.items()}}
        self.publish()
        self.reader = self.start()
        self.offset: Offset = self.reader.initialOffset()
        self.rows: list[PlainRow] = []

    def start(self) -> HoldfastStreamReader:
        return HoldfastStreamReader(parse_read_options({"url": self.url, **self.given}, Mode.STREAM))

    def publish(self) -> None:
        for slot, data in self.builder.objects.items():
            self.objects.create(object_name(slot), data)

    def restart(self) -> None:
        self.reader.stop()
        self.reader = self.start()

    def step(self, *, restart_between: bool = False) -> bool:
        """One micro-batch as Spark runs it; False when there is nothing new."""
        self.reader._asked_ms = None
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        if end == self.offset:
            return False
        if restart_between:  # Spark wrote the end down, died, and asks a new process for the same micro-batch
            self.restart()
        self.rows += read(self.reader, self.offset, end)
        self.offset = end
        return True

    def drain(self) -> None:
        while self.step():
            pass


def test_progress_names_the_versions_and_seconds_that_a_stream_is_behind() -> None:
    builder = random_log(3, reigns=2)
    world = World(builder, maxObjectsPerTrigger=4)
    headers = {seq(batch.header.slot): batch.header for batch in read_plainly(builder.objects)}
    newest = headers[max(headers)]
    behind = 0
    while world.step():
        reported = world.reader.reportLatestOffset()
        world.reader._lag_asked_ms = None
        last = headers[world.offset["seq"]]
        lag = {
            "versions": newest.last_version - last.last_version,
            "seconds": (newest.time_ms - last.time_ms) / 1000,
        }
        assert reported == {**world.offset, "lag": lag}
        assert parse_read_options({"url": world.url, "startingOffsets": json.dumps(reported)}).starting_after
        behind += lag["versions"] > 0
    assert behind > 1 and lag == {"versions": 0, "seconds": 0}


def read(reader: HoldfastStreamReader, start: Offset, end: Offset) -> list[PlainRow]:
    found: list[PlainRow] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += [cast("PlainRow", row) for row in batch.to_pylist()]
    for row in found:
        if "timestamp" in row:
            row["timestamp"] = row["timestamp"].replace(tzinfo=None)  # type: ignore[attr-defined]
    return found


def grow(builder: LogBuilder, draw: random.Random, leader: Leader) -> Leader:
    """Something happens to the log: batches, losses, a takeover."""
    if draw.random() < 0.3:
        leader = builder.lead()
    for _ in range(draw.randrange(5)):
        leader.commit([Write(b"k", draw.randbytes(4))], lands=draw.random() < 0.8)
    if draw.random() < 0.3:
        leader.send([])
    return leader


@pytest.mark.parametrize("shape", list(RowShape))
@pytest.mark.parametrize("seed", matrix(range(12), 3))
def test_a_stream_hands_out_every_row_once_whatever_happens_between_its_steps(seed: int, shape: RowShape) -> None:
    draw = random.Random(seed)
    builder = random_log(seed, reigns=3)
    bounds = draw.choice(
        [{}, {"maxObjectsPerTrigger": 2}, {"maxBytesPerTrigger": 3000}]
        + ([{"maxRowsPerTrigger": 4}] if shape is not RowShape.BATCHES else [])
    )
    world = World(builder, shape=shape, columns=",".join(COLUMNS[shape]), targetPartitionBytes=2**20, **bounds)
    leader = builder.lead()
    for _ in range(25):
        leader = grow(builder, draw, leader)
        world.publish()
        for _ in range(draw.randrange(3)):
            world.step(restart_between=draw.random() < 0.3)
        if draw.random() < 0.2:
            world.restart()
    world.drain()
    world.reader.stop()
    live = list(read_plainly(builder.objects))
    expected = {
        RowShape.OPERATIONS: lambda: operation_rows(live),
        RowShape.TRANSACTIONS: lambda: transaction_rows(live),
        RowShape.BATCHES: lambda: batch_rows(live, builder.objects),
    }[shape]()
    assert world.rows == expected


@pytest.mark.parametrize(("bound", "limit"), [("maxObjectsPerTrigger", 3), ("maxRowsPerTrigger", 6)])
def test_a_micro_batch_keeps_its_bound(bound: str, limit: int) -> None:
    builder = LogBuilder()
    leader = builder.lead()
    for _ in range(20):
        leader.commit([Write(b"a", b"")], [Write(b"b", b"")])
    world = World(builder, **{bound: limit})
    sizes = []
    while world.step():
        sizes.append(len(world.rows) - sum(sizes))
    world.reader.stop()
    assert sum(sizes) == 40
    assert max(sizes) == 6, "three objects of two transactions each"


def test_an_object_above_every_bound_is_still_taken_alone() -> None:
    builder = LogBuilder()
    leader = builder.lead()
    for _ in range(3):
        leader.commit(*([Write(b"a", b"v" * 100)] for _ in range(50)))
    world = World(builder, maxRowsPerTrigger=1, maxBytesPerTrigger=1)
    world.drain()
    world.reader.stop()
    assert len(world.rows) == 150


def test_available_now_ends_where_the_log_ended_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = LogBuilder()
    leader = builder.lead()
    for _ in range(10):
        leader.commit([Write(b"a", b"")])
    world = World(builder, maxObjectsPerTrigger=3, minRowsPerTrigger=1000, maxTriggerDelay="1h")
    world.reader.prepareForTriggerAvailableNow()
    leader.commit([Write(b"later", b"")])
    world.publish()
    world.drain()
    assert len(world.rows) == 10
    world.restart()
    world.reader.prepareForTriggerAvailableNow()
    world.drain()
    world.reader.stop()
    assert len(world.rows) == 11


def test_a_micro_batch_waits_for_enough_rows_but_not_for_ever() -> None:
    builder = LogBuilder()
    leader = builder.lead()
    leader.commit([Write(b"a", b"")])
    world = World(builder, minRowsPerTrigger=3, maxTriggerDelay="1h")
    assert not world.step()
    for _ in range(2):
        leader.commit([Write(b"a", b"")])
    world.publish()
    assert world.step()
    assert len(world.rows) == 3
    leader.commit([Write(b"a", b"")])
    world.publish()
    assert not world.step()
    world.reader._batch_ms = -1e12
    assert world.step()
    assert len(world.rows) == 4
    world.reader.stop()


def test_asking_for_everything_ignores_the_bounds() -> None:
    builder = LogBuilder()
    leader = builder.lead()
    for _ in range(10):
        leader.commit([Write(b"a", b"")])
    world = World(builder, maxObjectsPerTrigger=2)
    end = world.reader.latestOffset(world.offset, ReadAllAvailable())
    world.reader.stop()
    assert end["seq"] == 10


def test_far_behind_the_end_is_found_by_listing_and_what_lies_between_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "JUMP_TO_END_AFTER", 4)
    builder = random_log(5, reigns=6)
    world = World(builder, targetPartitionBytes=2**20)
    assert world.step()
    assert not world.step()
    world.reader.stop()
    rows = operation_rows(read_plainly(builder.objects))
    assert [row["version"] for row in world.rows] == [row["version"] for row in rows]


@pytest.mark.parametrize("seed", matrix(range(6), 2))
def test_a_stream_may_begin_at_any_version_offset_or_time(seed: int) -> None:
    builder = random_log(seed)
    live = list(read_plainly(builder.objects))
    rows = operation_rows(live)
    at = builder.random.choice(rows)
    version = cast("int", at["version"])
    header = next(batch.header for batch in live if seq(batch.header.slot) == at["seq"])
    when = f"{at['timestamp']}+00:00"
    for given, wanted in (
        ({"startingVersion": version}, [row for row in rows if cast("int", row["version"]) >= version]),
        ({"startingOffsets": f'{{"version": {version}}}'}, [r for r in rows if cast("int", r["version"]) > version]),
        ({"startingOffsets": f'{{"seq": {seq(header.slot)}}}'}, [r for r in rows if r["seq"] > at["seq"]]),  # type: ignore[operator]
        ({"startingTimestamp": when}, [row for row in rows if row["timestamp"] >= at["timestamp"]]),  # type: ignore[operator]
        ({"startingVersion": "latest"}, []),
        ({"startingOffsets": "earliest"}, rows),
    ):
        world = World(builder, **given)
        world.drain()
        world.restart()
        world.drain()
        world.reader.stop()
        assert [(row["version"], row["key"]) for row in world.rows] == [(r["version"], r["key"]) for r in wanted], given


def test_a_stream_that_begins_above_the_end_waits_for_that_version() -> None:
    builder = LogBuilder()
    leader = builder.lead()
    leader.commit([Write(b"a", b"")])
    head = leader.head.last_version
    world = World(builder, startingVersion=head + 100)
    leader.commit([Write(b"b", b"")])
    world.publish()
    world.drain()
    world.restart()
    leader.send([], empty_through=head + 200)
    leader.commit([Write(b"c", b"")])
    world.publish()
    world.drain()
    world.reader.stop()
    assert [row["key"] for row in world.rows] == [b"c"]


def test_a_bounded_run_that_begins_above_the_end_keeps_that_version_too() -> None:
    builder = LogBuilder()
    leader = builder.lead()
    leader.commit([Write(b"a", b"")])
    head = leader.head.last_version
    world = World(builder, startingVersion=head + 100)
    for key in (b"b", b"c"):
        leader.commit([Write(key, b"")])
        world.publish()
        world.restart()
        world.reader.prepareForTriggerAvailableNow()
        world.drain()
    world.reader.stop()
    assert world.rows == [], "none of them is of version 100 and more behind the first"


def retained_log() -> tuple[LogBuilder, dict[int, bytes]]:
    """A log whose oldest data was removed as retention does it, a whole span behind the head; and all it ever held."""
    builder = LogBuilder(seed=5)
    first = builder.lead()
    for _ in range(10):
        first.commit([Write(b"k", b"v")])
    second = builder.lead()
    for _ in range(10):
        second.commit([Write(b"k", b"v")])
    removed = [*first.transactions, *list(second.transactions)[:5]]
    removed_through = second.transactions[removed[-1]][-1].version
    second.head = replace(second.head, truncated_through=Version(removed_through))
    for _ in range(10):
        second.commit([Write(b"k", b"v")])
    for _ in range(SPAN_MAX):
        second.send([])
    whole = dict(builder.objects)
    for slot in removed:
        del builder.objects[slot]
    return builder, whole


@pytest.mark.parametrize("fail", [True, False])
def test_what_retention_removed_before_it_was_read_is_loud_unless_loss_is_allowed(fail: bool) -> None:
    builder, _ = retained_log()
    world = World(builder, failOnDataLoss=str(fail).lower())
    live = read_plainly_from_oldest(world)
    world.drain()
    assert world.rows == live, "a new stream begins with what is left"
    world.restart()
    log_id = builder.log_id.hex()
    world.offset = {"seq": 3, "version": 5, "log_id": log_id}
    world.rows = []
    if fail:
        with pytest.raises(NotFound, match="retention has removed what this stream has not read"):
            world.step()
        end = {"seq": live[-1]["seq"], "version": live[-1]["version"], "log_id": log_id}
        with pytest.raises(NotFound, match="retention has removed"):
            world.reader.partitions(world.offset, end)  # type: ignore[arg-type]
    else:
        world.drain()
        assert world.rows == live
    world.reader.stop()


def read_plainly_from_oldest(world: World) -> list[PlainRow]:
    reader = HoldfastStreamReader(parse_read_options({"url": world.url}, Mode.STREAM))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    found = read(reader, start, end)
    reader.stop()
    assert len(found) == 15
    return found


def test_retention_that_overtakes_a_running_stream_is_noticed_and_not_taken_for_the_end() -> None:
    builder, whole = retained_log()
    before = LogBuilder(seed=5)
    before.objects = whole
    world = World(before, maxObjectsPerTrigger=2)
    assert world.step()
    for slot in whole.keys() - builder.objects.keys():
        world.objects.delete(object_name(slot))
    # What was walked ahead is missed by the task, the rest by the walk; neither is taken for the end of the log.
    with pytest.raises(CorruptData, match="data loss: an object of the live chain is missing"):
        world.step()
    world.restart()
    with pytest.raises(NotFound, match="retention has removed"):
        world.step()
    world.reader.stop()


def test_an_object_between_two_offsets_that_was_cut_to_the_size_of_a_claim_is_damage() -> None:
    builder = LogBuilder()
    leader = builder.lead()
    leader.commit([Write(b"k", b"v")])
    leader.send([])
    cut_slot = leader.head.slot
    leader.commit([Write(b"k", b"v")])
    world = World(builder)
    end = world.reader.latestOffset(world.offset, ReadAllAvailable())
    world.objects.delete(object_name(cut_slot))
    assert world.objects.create(object_name(cut_slot), builder.objects[cut_slot][:HEADER_BYTES])
    world.restart()
    with pytest.raises(CorruptData, match=f"object of claim size is no claim slot={cut_slot}"):
        read(world.reader, world.offset, end)
    world.reader.stop()


def test_a_missing_object_between_two_offsets_is_damage() -> None:
    builder = LogBuilder()
    leader = builder.lead()
    for _ in range(10):
        leader.commit([Write(b"k", b"v")])
    world = World(builder)
    world.objects.delete(object_name(FIRST_SLOT - 5))
    start = {"seq": 2, "version": 0, "log_id": builder.log_id.hex()}
    with pytest.raises(CorruptData, match="missing"):
        world.reader.partitions(start, {**start, "seq": 9, "version": 99})
    world.reader.stop()
