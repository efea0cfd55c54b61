"""``shape=messages`` of a message store: what another process reads is what was confirmed and is still there, whatever
the service does meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.definitions import define
from tests.matrix import matrix
from tests.spark.service_process import NO_VIEW, ServiceProcess

from holdfast import StoreClient
from holdfast.errors import Closed, Code, HoldfastError, InvalidRequest, NotFound
from holdfast.spark.data_source import HoldfastDataSource
from holdfast.spark.messages.store import HoldfastStoreStreamReader, plan_store, store_rows
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_read_options, parse_store_options
from holdfast.stores.repair import backup
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import (
    Acknowledge,
    Attach,
    Deliver,
    Delivered,
    MapChange,
    Publish,
    Published,
)
from holdfast.wire.parts import Message

PAGE_BYTES = 65_536
WORK = {"work": {"type": "shared", "prefetch": 10_000}}
SMALL_PIECES = {"targetPartitionBytes": "1048576"}
Row = dict[str, object]
Check = Callable[[StoreService], Awaitable[None]]


@asynccontextmanager
async def opened(path: Path, definition: bytes | None) -> AsyncGenerator[StoreService]:
    service = await StoreService.open(str(path), page_bytes=PAGE_BYTES)
    try:
        if definition is not None:
            await service.submit(define(definition, service.state))
        yield service
    finally:
        await service.close()


def run(path: Path, check: Check, definition: bytes | None = None, **stores: object) -> None:
    """``check`` beside stores that are open. Small pages, so that they come and go."""

    async def main() -> None:
        async with opened(path, definition or document(**stores)) as service:
            await asyncio.wait_for(check(service), 120)

    asyncio.run(main())


def document(*, cluster: dict[str, object] | None = None, **stores: object) -> bytes:
    return json.dumps({"cluster": cluster or {}, "stores": stores}).encode()


async def publish(service: StoreService, bodies: Sequence[bytes], store: str = "orders") -> int:
    found = await service.submit(Publish(0, store, "", [Message(body, {"n": len(body)}) for body in bodies]))
    assert isinstance(found, Published)
    return found.first_seq


async def consume(service: StoreService, count: int) -> list[int]:
    found = await service.submit(Deliver(0, "orders", "work", "s", count))
    assert isinstance(found, Delivered)
    ranges = [(first, last) for first, last, _ in found.runs]
    await service.submit(Acknowledge(0, "orders", "work", "s", ranges))
    return [seq for first, last in ranges for seq in range(first, last + 1)]


def given(path: Path, store: str = "orders", **options: str) -> dict[str, str]:
    return {"shape": "messages", "stores": str(path), "store": store, **SMALL_PIECES, **options}


def read(path: Path, store: str = "orders", **options: str) -> list[Row]:
    parsed = parse_store_options(given(path, store, **options))
    return [row for piece in plan_store(parsed) for batch in store_rows(parsed, piece) for row in batch.to_pylist()]


@pytest.mark.parametrize("seed", matrix(range(4)))
def test_every_kept_message_is_read_once_and_nothing_that_was_never_published(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)

    async def check(service: StoreService) -> None:
        await service.submit(Attach(0, "orders", "work", "s"))
        published: dict[int, bytes] = {}
        consumed: set[int] = set()
        for _ in range(60):
            match draw.randrange(6):
                case 0 | 1:
                    bodies = [draw.randbytes(draw.randrange(3_000)) for _ in range(draw.randrange(1, 20))]
                    first = await publish(service, bodies)
                    published |= dict(enumerate(bodies, first))
                case 2:
                    await publish(service, [b"another store's"] * draw.randrange(1, 9), "others")
                case 3:
                    consumed |= set(await consume(service, draw.randrange(1, 60)))
                case 4:
                    await service._checkpoints.now()
                case _:
                    await service.compaction.now()
            rows = {row["seq"]: row for row in read(tmp_path)}
            assert list(rows) == sorted(rows)
            assert published.keys() - consumed <= rows.keys() <= published.keys()
            assert all(row["body"] == published[seq] for seq, row in rows.items() if isinstance(seq, int))
            assert all(
                row["fields"] == json.dumps({"n": len(published[seq])}).replace(" ", "") for seq, row in rows.items()
            )  # type: ignore[index]
        assert consumed and len(service._storage.log.page_bytes()) > 1

    run(tmp_path, check, orders={"durables": WORK}, others={"durables": WORK})


def test_messages_that_are_moved_after_planning_are_read_at_their_new_place(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await service.submit(Attach(0, "orders", "work", "s"))
        bodies = [b"%d" % number * 500 for number in range(400)]
        await publish(service, bodies[:200])
        await service._checkpoints.now()
        await publish(service, bodies[200:])
        options = parse_store_options(given(tmp_path))
        pieces = plan_store(options)
        first = service._storage.log.first
        consumed = set(await consume(service, 150))
        await service.compaction.now()
        assert service._storage.log.first > first, "what was planned has moved"
        await publish(service, [b"after the plan"])
        rows = {
            row["seq"]: row["body"]
            for piece in pieces
            for batch in store_rows(options, piece)
            for row in batch.to_pylist()
        }
        assert set(range(1, 401)) - consumed <= rows.keys() <= set(range(1, 401))
        assert all(body == bodies[seq - 1] for seq, body in rows.items())

    run(tmp_path, check, orders={"durables": WORK})


def test_a_store_that_was_made_again_after_planning_ends_the_read(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await publish(service, [bytes(500)] * 300)
        options = parse_store_options(given(tmp_path))
        pieces = plan_store(options)

        def rows() -> list[bytes]:
            return [
                row["body"] for piece in pieces for batch in store_rows(options, piece) for row in batch.to_pylist()
            ]

        await service.submit(define(document(others={}), service.state))
        await service.compaction.now()
        with pytest.raises(NotFound, match="no such store"):
            rows()
        await service.submit(define(document(orders={"durables": WORK}), service.state))
        await publish(service, [b"new"] * 60)  # perhaps in the same millisecond
        await service.compaction.now()
        with pytest.raises(Closed, match="made again") as replaced:
            rows()
        assert replaced.value.code is Code.STORE_REPLACED
        assert [row["body"] for row in read(tmp_path)] == [b"new"] * 60

    run(tmp_path, check, orders={"durables": WORK})


def test_what_no_sync_has_reached_is_not_read(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await service._checkpoints.now()
        await publish(service, [b"answered, and only in memory of the machine"])
        assert read(tmp_path) == []
        await service._checkpoints.now()
        assert [row["seq"] for row in read(tmp_path)] == [1]

    run(tmp_path, check, document(cluster={"persistence": "async"}, orders={"durables": WORK}))


def test_what_was_let_go_is_loss_only_behind_a_start_that_was_named(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await service.submit(Attach(0, "orders", "work", "s"))
        await publish(service, [bytes(500)] * 400)
        consumed = await consume(service, 200)
        await service.compaction.now()
        await service._checkpoints.now()
        left = [row["seq"] for row in read(tmp_path)]
        assert left[-1] == 400 and left[0] == 201, consumed
        with pytest.raises(NotFound, match="removed before this read"):
            read(tmp_path, startingOffsets='{"seq": 100}')
        assert [row["seq"] for row in read(tmp_path, startingOffsets='{"seq": 100}', failOnDataLoss="false")] == left
        assert [row["seq"] for row in read(tmp_path, startingOffsets='{"seq": 300}')] == list(range(301, 401))
        assert read(tmp_path, startingOffsets="latest") == []

    run(tmp_path, check, orders={"durables": WORK})


def test_a_start_by_time_gives_what_was_published_since(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        for number in range(12):
            await publish(service, [bytes(60_000 if number % 2 else 100)] * 2)
            await asyncio.sleep(0.003)
        rows = read(tmp_path)
        for row in rows:
            time = row["time"]
            since = time.isoformat()  # type: ignore[attr-defined]
            expected = [each["seq"] for each in rows if each["time"] >= time]  # type: ignore[operator]
            assert [each["seq"] for each in read(tmp_path, startingTimestamp=since)] == expected
        assert read(tmp_path, startingTimestamp="2100-01-01T00:00:00Z") == []

    run(tmp_path, check, orders={"durables": WORK})


def test_changes_of_a_map_are_rows_and_a_removal_has_no_body(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        async def change(*changes: tuple[str, bytes | None], remove_all: bool = False) -> None:
            items = [(key, body, None) for key, body in changes]
            await service.submit(MapChange(0, "orders", "prices", items, remove_all=remove_all))

        await change(("tea", b"1"), ("cake", b""))
        await change(("tea", None), ("none", None), ("milk", b"2"))
        await change(remove_all=True)
        await change(("tea", b"3"))
        expected = [(1, "tea", b"1"), (2, "cake", b""), (3, "tea", None), (4, "milk", b"2"), (6, "tea", b"3")]
        for _ in range(2):
            assert [(row["seq"], row["key"], row["body"]) for row in read(tmp_path)] == expected
            assert len(read(tmp_path, startingOffsets='{"seq": 1}')) == 4, "numbers of what was cleared are no loss"
            await service._checkpoints.now()

    run(tmp_path, check, orders={"durables": {"prices": {"type": "map"}}})


def drained(reader: HoldfastStoreStreamReader, start: dict[str, int]) -> tuple[list[object], dict[str, int]]:
    """One micro-batch after the other until nothing is left: the numbers, and where it ended."""
    seen: list[object] = []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        pieces = reader.partitions(start, end)
        rows = [row["seq"] for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]
        again = HoldfastStoreStreamReader(reader._options)
        pieces = again.partitions(start, end)
        assert [row["seq"] for piece in pieces for batch in again.read(piece) for row in batch.to_pylist()] == rows
        again.stop()
        reader.commit(end)
        seen += rows
        start = end
    return seen, start


def test_a_stream_hands_out_every_message_once_and_tells_what_it_missed(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await service.submit(Attach(0, "orders", "work", "s"))
        await publish(service, [bytes(500)] * 300)
        await consume(service, 100)
        await service.compaction.now()
        options = parse_store_options(given(tmp_path, maxRowsPerTrigger="70", pollInterval="1ms"), Mode.STREAM)
        reader = HoldfastStoreStreamReader(options)
        seen, place = drained(reader, reader.initialOffset())
        assert seen == list(range(101, 301)), "a hole in the backlog is no loss"
        for _ in range(5):
            await publish(service, [bytes(500)] * 90)
            await service._checkpoints.now()
            more, place = drained(reader, place)
            seen += more
        assert seen == list(range(101, 751))
        restarted = HoldfastStoreStreamReader(options)
        await publish(service, [b"one more"])
        assert drained(restarted, place)[0] == [751]
        await consume(service, 10_000)
        await service.compaction.now()
        with pytest.raises(NotFound, match="data loss"):
            drained(HoldfastStoreStreamReader(options), place)
        lenient = parse_store_options(given(tmp_path, failOnDataLoss="false"), Mode.STREAM)
        assert drained(HoldfastStoreStreamReader(lenient), place)[0] == []
        for definition in (document(others={}), document(orders={"durables": WORK})):
            await service.submit(define(definition, service.state))
        with pytest.raises(Closed, match="made again") as under_way:
            drained(restarted, place)
        assert under_way.value.code is Code.STORE_REPLACED
        with pytest.raises(Closed, match="made again"):
            drained(HoldfastStoreStreamReader(options), place)
        await publish(service, [b"new"] * 800)  # so that no number is missing
        for _ in range(2):
            with pytest.raises(Closed, match="made again") as replaced:
                drained(HoldfastStoreStreamReader(options), place)
            assert replaced.value.code is Code.STORE_REPLACED
            await service._checkpoints.now()
        for each in (reader, restarted):
            each.stop()

    run(tmp_path, check, orders={"durables": WORK})


def test_a_bound_in_bytes_ends_a_micro_batch_by_the_mean_message(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await publish(service, [bytes(100)] * 40)
        for bound, ends in (("1000", 10), ("1", 1)):
            options = parse_store_options(given(tmp_path, maxBytesPerTrigger=bound), Mode.STREAM)
            reader = HoldfastStoreStreamReader(options)
            place = reader.latestOffset({"seq": 0, "backlog": 0}, reader.getDefaultReadLimit())
            assert place["seq"] == ends
            reader.stop()

    run(tmp_path, check, orders={"durables": WORK})


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_of_restored_files_a_stream_goes_on_from_what_the_copy_has(tmp_path: Path, has_checkpoint: bool) -> None:
    """What was read after the copy was made has its number no more: as many messages again do not hide that."""
    places: list[dict[str, int]] = []

    def reader_of(path: Path) -> HoldfastStoreStreamReader:
        return HoldfastStoreStreamReader(parse_store_options(given(path, pollInterval="1ms"), Mode.STREAM))

    async def before(service: StoreService) -> None:
        reader = reader_of(tmp_path / "stores")
        place = reader.initialOffset()
        for body in (b"kept", b"lost"):
            await publish(service, [body] * 5)
            seen, place = drained(reader, place)
            assert len(seen) == 5
            places.append(place)
            if body == b"kept":
                await service.checkpoint()
                await service.copy_files(str(tmp_path / "copy"))
        reader.stop()

    async def after(service: StoreService) -> None:
        await publish(service, [b"new"] * 10)
        if has_checkpoint:
            await service.checkpoint()
        kept, lost = places
        assert drained(reader_of(tmp_path / "restored"), kept)[0] == list(range(6, 16))
        text = json.dumps({**kept, "seq": 4})
        assert len(read(tmp_path / "restored", startingOffsets=text)) == 11
        for step in (
            lambda: drained(reader_of(tmp_path / "restored"), lost),
            lambda: reader_of(tmp_path / "restored").partitions(kept, lost),
            lambda: read(tmp_path / "restored", startingOffsets=json.dumps(lost)),
        ):
            with pytest.raises(Closed, match="or restored") as replaced:
                step()
            assert replaced.value.code is Code.STORE_REPLACED

    run(tmp_path / "stores", before, orders={"durables": WORK})
    backup.restore(str(tmp_path / "copy"), str(tmp_path / "restored"))
    run(tmp_path / "restored", after, orders={"durables": WORK})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"store": "orders"}, "stores is required"),
        ({"stores": "/s"}, "store is required"),
        ({"stores": "/s", "store": "o", "queue": "/q"}, "queue is unknown.*valid options: stores, store"),
        ({"stores": "/s", "store": "o", "columns": "payload"}, "has seq, time, key, fields, body"),
        ({"stores": "/s", "store": "o", "startingOffsets": '{"version": 1}'}, "read what comes after"),
        ({"stores": "/s", "store": "o", "maxRowsPerTrigger": "0"}, "at least 1"),
    ],
)
def test_what_is_no_read_of_a_store_is_refused_with_the_reason(options: dict[str, str], says: str) -> None:
    source = HoldfastDataSource({"shape": "messages", **options})
    with pytest.raises(InvalidRequest, match=says):
        source.schema()


def test_options_of_a_store_elsewhere_and_of_a_stream_in_a_batch_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="without shape=messages"):
        parse_read_options({"url": "file:///log", "store": "orders"})
    with pytest.raises(InvalidRequest, match="no effect on a batch"):
        parse_store_options({"stores": "/s", "store": "o", "pollInterval": "1s"}, Mode.BATCH)


def test_a_store_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        with pytest.raises(NotFound, match=r"no such store.*orders"):
            read(tmp_path, "order")
        with pytest.raises(NotFound, match="memory only"):
            read(tmp_path, "fleeting")
        await service._checkpoints.now()
        with pytest.raises(NotFound, match=r"no such store.*orders"):
            read(tmp_path, "order")

    run(tmp_path, check, orders={}, fleeting={"replicated": False})
    with pytest.raises(HoldfastError):
        read(tmp_path / "nowhere")


def test_spark_reads_a_store_beside_its_service_as_a_batch_and_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    stores = str(tmp_path / "stores")
    with (
        ServiceProcess(tmp_path / "served", NO_VIEW, f"stores.directory={stores}") as service,
        StoreClient(service.url) as client,
    ):
        client.define_store("orders")
        client.define_durable("orders", "work", {"type": "shared"})
        with client.publisher("orders") as publisher:
            for number in range(50):
                publisher.publish(b"%d" % number, key=f"k{number}", fields={"kind": "drink", "cups": number})
        reader = spark.read.format("holdfast").option("shape", "messages").option("store", "orders")
        frame = reader.load(stores)
        assert frame.schema.simpleString() == "struct<seq:bigint,time:timestamp,key:string,fields:string,body:binary>"
        rows = frame.selectExpr("seq", "key", "get_json_object(fields, '$.cups') AS cups", "string(body)").orderBy(
            "seq"
        )
        expected = [(n + 1, f"k{n}", str(n), str(n)) for n in range(50)]
        assert [tuple(row) for row in rows.collect()] == expected

        def follow() -> list[int]:
            stream = spark.readStream.format("holdfast").option("shape", "messages").option("stores", stores)
            stream = stream.option("store", "orders").option("columns", "seq").option("maxRowsPerTrigger", "20")
            query = (
                stream.load()
                .writeStream.format("parquet")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .option("path", str(tmp_path / "table"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)
            return sorted(row.seq for row in spark.read.parquet(str(tmp_path / "table")).collect())

        assert follow() == list(range(1, 51))
        with client.publisher("orders") as publisher:
            publisher.publish(b"later")
        assert follow() == list(range(1, 52))
    stopped = parse_store_options(given(Path(stores)))
    seqs = [
        row["seq"] for piece in plan_store(stopped) for rows in store_rows(stopped, piece) for row in rows.to_pylist()
    ]
    assert seqs == list(range(1, 52)), "stores that nobody has open are read as well"
