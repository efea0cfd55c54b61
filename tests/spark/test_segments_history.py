"""Subscribers and views whose history comes from segments are shown what the log alone would show them."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, random_log, read_plainly
from tests.spark.service_process import ServiceProcess
from tests.view_events import apply_txns

from holdfast import Client, NotFound
from holdfast.commit.format.batch import SPAN_MAX, object_name
from holdfast.commit.format.transaction import Delete, RangeDelete, Write
from holdfast.commit.reading.feed import Event, FeedCheckpoint, FeedTransaction, LeaderChange
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.subscription import StartRolledBack, subscribe
from holdfast.errors import CorruptData
from holdfast.objects.memory import MemoryStore
from holdfast.segments import history
from holdfast.segments.history import SegmentHistory
from holdfast.segments.index import read_segment_index
from holdfast.spark import Schedule, Segments, run_pipeline
from holdfast.values import Version
from holdfast.view import View

Plain = tuple[int, int, str | None, str, int, tuple[object, ...]]


@dataclass(frozen=True)
class World:
    """A log, what it says, and segments of about two thirds of it."""

    builder: LogBuilder
    url: str
    table: Path
    through: int
    events: list[Plain]


def plain(builder: LogBuilder) -> list[Plain]:
    """Every transaction as an event, by the plain reading of the log."""
    found: list[Plain] = []
    prev = 0
    for batch in read_plainly(builder.objects):
        for txn in batch.transactions:
            leader = batch.header.leader_id.hex()
            found.append((txn.version, prev, txn.request_id, leader, batch.header.time_ms, tuple(txn.operations)))
            prev = txn.version
    return found


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("history")
    builder = random_log(63, reigns=8, batches=14)
    url = builder.write_to(root / "log")
    events = plain(builder)
    through = events[2 * len(events) // 3][0]
    table = root / "segments"
    for until in (events[len(events) // 4][0], events[len(events) // 2][0], through):
        job = Segments(spark, url, table.as_uri(), log_bytes_min=1)
        run_pipeline(job, url, table.as_uri(), schedule=Schedule(until=until))
    assert len(read_segment_index(str(table), {}).segments) >= 3
    return World(builder, url, table, through, events)


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that transactions are cut by them."""
    monkeypatch.setattr(history, "BATCH_ROWS", 3)


def as_plain(event: FeedTransaction) -> Plain:
    return event.version, event.prev_version, event.request_id, event.leader_id, event.time_ms, tuple(event.operations)


class CountingStore(MemoryStore):
    """Counts the whole objects that were read."""

    read_whole = 0

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.read_whole += length is None
        return await super().read(key, start=start, length=length)


def served(
    builder: LogBuilder, check: Callable[[CommitService, CountingStore], Coroutine[object, object, None]]
) -> None:
    """``check`` beside a service in this process that has taken the log over."""

    async def main() -> None:
        store = CountingStore()
        for slot, data in builder.objects.items():
            await store.create(object_name(slot), data)
        service = await CommitService.lead(store, ServiceOptions(take_over=True))
        try:
            async with asyncio.timeout(100):
                await check(service, store)
        finally:
            await service.step_down()

    asyncio.run(main())


async def told(
    service: CommitService, after: int, older: SegmentHistory | None, *, durable: bool = True
) -> list[Event]:
    """What a subscriber is told until it stands at the service's own claim; a refusal as one of the events."""
    found: list[Event] = []
    try:
        async with aclosing(subscribe(service, after=after, durable=durable, older=older)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                found += batch.events
                if batch.last_version >= service.claim.last_version:
                    break
    except StartRolledBack as error:
        found.append(LeaderChange(error.roll_back_to, error.leader_id))
    return found


def without_checkpoints(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, FeedCheckpoint)]


def test_segments_give_the_events_of_the_log_from_any_version_to_any(world: World) -> None:
    async def check() -> None:
        older = SegmentHistory(world.table.as_uri())
        log_id = world.builder.log_id.hex()
        assert await older.through(log_id) == world.through
        assert await older.through("0" * 32) == 0
        draw = random.Random(1)
        versions = [event[0] for event in world.events if event[0] <= world.through]
        for _ in range(40):
            after, until = sorted((draw.choice([0, *versions]) + draw.randrange(2), draw.choice(versions)))
            found: list[Event] = []
            async for batch in older.events(after, until):
                assert (
                    isinstance(batch.events[-1], FeedCheckpoint)
                    and batch.events[-1].committed_version == batch.last_version
                )
                found += batch.events
            shown = [as_plain(event) for event in found if isinstance(event, FeedTransaction)]
            assert shown == [event for event in world.events if after < event[0] <= until]
            assert not shown or found[-1].committed_version == until  # type: ignore[union-attr]

    asyncio.run(check())


@pytest.mark.matrix
def test_a_subscriber_is_told_the_same_with_and_without_segments_from_every_version(world: World) -> None:
    async def check(service: CommitService, store: CountingStore) -> None:
        older = SegmentHistory(world.table.as_uri())
        versions = [event[0] for event in world.events]
        starts = {0, world.through, world.through + 1}
        starts |= {version + step for version in versions[:: max(1, len(versions) // 12)] for step in (-1, 0, 1)}
        for header in (batch.header for batch in read_plainly(world.builder.objects) if not batch.transactions):
            starts |= {header.last_version - 1, header.last_version, header.last_version + 1}
        for durable in (True, False):
            for after in sorted(start for start in starts if 0 <= start < service.claim.last_version):
                wanted = without_checkpoints(await told(service, after, None, durable=durable))
                found = without_checkpoints(await told(service, after, older, durable=durable))
                assert found == wanted, (after, durable)
        store.read_whole = 0
        assert len(without_checkpoints(await told(service, 0, older))) == len(world.events)
        with_segments, store.read_whole = store.read_whole, 0
        await told(service, 0, None)
        assert with_segments < store.read_whole * 2 // 3, "objects that segments cover are not read"

    served(world.builder, check)


@pytest.mark.parametrize("harm", matrix(["gone", "damaged", "cut short"]))
def test_a_segment_that_is_lost_while_it_is_read_is_read_from_the_log(world: World, tmp_path: Path, harm: str) -> None:
    table = tmp_path / "segments"
    shutil.copytree(world.table, table)
    victim = read_segment_index(str(table), {}).segments[1]

    async def check(service: CommitService, store: CountingStore) -> None:
        older = SegmentHistory(table.as_uri())
        found: list[Event] = []
        store.read_whole = 0
        async with aclosing(subscribe(service, after=0, older=older)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                if not found:
                    assert store.read_whole == 0, "it reads segments"
                    hurt(table / victim.path, harm)
                found += batch.events
                if batch.last_version >= service.claim.last_version:
                    break
        shown = [as_plain(event) for event in found if isinstance(event, FeedTransaction)]
        assert shown == world.events

    served(world.builder, check)


def hurt(path: Path, harm: str) -> None:
    data = path.read_bytes()
    if harm == "gone":
        path.unlink()
    elif harm == "damaged":
        version = pq.ParquetFile(path).metadata.row_group(0).column(0)
        at = version.data_page_offset + version.total_compressed_size - 1
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    else:
        path.write_bytes(data[: len(data) // 2])


@dataclass(frozen=True)
class Truncated:
    """A log whose oldest objects retention took, with segments that have them."""

    builder: LogBuilder
    root: Path
    table: Path
    events: list[Plain]
    removed: int


@pytest.fixture(scope="module")
def truncated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Truncated:
    root = tmp_path_factory.mktemp("truncated")
    builder = LogBuilder(seed=5)
    leader = builder.lead()
    for number in range(SPAN_MAX + 8):  # retention leaves a span of objects behind the newest
        gone = number % 50 == 40
        leader.commit([Delete(b"key%d" % (number - 1)) if gone else Write(b"key%d" % number, b"v%d" % number)])
    removed = {slot: txns[-1].version for slot, txns in list(leader.transactions.items())[:6]}
    leader.head = replace(leader.head, truncated_through=Version(max(removed.values())))
    leader.commit([RangeDelete(b"key3", b"key4")])
    events = plain(builder)
    url = builder.write_to(root / "log")
    table = root / "segments"
    until = max(removed.values())
    run_pipeline(
        Segments(spark, url, table.as_uri(), log_bytes_min=1), url, table.as_uri(), schedule=Schedule(until=until)
    )
    for slot in removed:
        (root / "log" / object_name(slot)).unlink()
        del builder.objects[slot]
    return Truncated(builder, root, table, events, until)


@pytest.mark.matrix
def test_what_retention_took_is_served_from_segments_to_subscribers_and_readers_of_a_real_service(
    truncated: Truncated, tmp_path: Path
) -> None:
    shutil.copytree(truncated.root / "log", tmp_path / "log")
    table = truncated.table.as_uri()
    obvious = View.memory()
    apply_txns(obvious, [(event[0], event[5]) for event in truncated.events], prev_version=0)  # type: ignore[misc]
    with ServiceProcess(tmp_path / "log", f"log.segments_url={table}") as service, Client(service.url) as client:
        live = client.commit([Write(b"live", b"1")])
        apply_txns(obvious, [(live.version, [Write(b"live", b"1")])], prev_version=truncated.events[-1][0])
        seen: list[tuple[int, int, tuple[object, ...]]] = []
        with client.subscribe(0) as events:
            for event in events:
                seen.append((event.version, event.prev_version, tuple(event.operations)))  # type: ignore[union-attr]
                if event.version == live.version:  # type: ignore[union-attr]
                    break
        assert seen[:-1] == [(event[0], event[1], event[5]) for event in truncated.events]
        assert seen[-1][1] == truncated.events[-1][0]
        rows: list[tuple[bytes, bytes, int]] = []
        while len(rows) % 1000 == 0:
            page = client.range(rows[-1][0] + b"\0" if rows else b"", None, limit=1000)
            rows += [(row.key, row.value, row.version) for row in page.items]
        assert rows == obvious.range(limit=10_000)
    shutil.rmtree(tmp_path / "log" / "view")
    with (
        ServiceProcess(tmp_path / "log") as service,
        Client(service.url) as client,
        client.subscribe(0) as events,
        pytest.raises(NotFound, match="truncated"),
    ):
        next(iter(events))


def test_a_segment_that_cannot_be_read_and_has_left_the_log_is_named(truncated: Truncated, tmp_path: Path) -> None:
    table = tmp_path / "segments"
    shutil.copytree(truncated.table, table)
    hurt(table / read_segment_index(str(table), {}).segments[0].path, "damaged")

    async def check(service: CommitService, _: CountingStore) -> None:
        with pytest.raises(CorruptData, match="a segment cannot be read"):
            await told(service, 0, SegmentHistory(table.as_uri()))
        behind = [event for event in truncated.events if event[0] > truncated.removed]
        shown = without_checkpoints(await told(service, truncated.removed, SegmentHistory(table.as_uri())))
        assert [as_plain(event) for event in shown if isinstance(event, FeedTransaction)] == behind

    served(truncated.builder, check)
