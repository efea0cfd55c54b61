"""``shape=messages`` of a store that lives in the log: the rows are what was published under every leader,
wherever the messages are now."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.integration.test_stores_in_log import begin, commit, define, machines, message, write
from tests.matrix import matrix
from tests.rgw import Gateway
from tests.s3_lane import gateway, s3_bucket
from tests.spark.log_builder import LogBuilder
from tests.spark.log_with_stores import STORES, Leader, Site, Write, published_plainly

from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.copies.promoting import promote
from holdfast.copies.restoring import Point, restore
from holdfast.errors import Closed, Code, CorruptData, HoldfastError, InvalidRequest, NotFound
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectStore
from holdfast.spark.data_source import HoldfastDataSource
from holdfast.spark.messages.store import HoldfastStoreStreamReader, Offset, plan_store, store_rows
from holdfast.spark.messages.store_in_log import EXTENT_BYTES, CheckpointPage, StoreInLog, _in_pages
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_store_options
from holdfast.stores.checkpoint_objects import manifest_key
from holdfast.stores.storage.index import IndexChanges
from holdfast.stores.storage.locations import Extent
from holdfast.stores.values.commands import CommitPart, MapChange, Publish
from holdfast.wire.parts import Message

__all__ = ["gateway", "s3_bucket"]

Row = dict[str, object]
SMALL_PIECES = {"targetPartitionBytes": "1048576"}


def run(path: Path, check: Callable[[Site], Awaitable[None]], log_url: str = "") -> None:
    async def main() -> None:
        site = Site(path, log_url=log_url)
        try:
            await asyncio.wait_for(check(site), 120)
        finally:
            await site.end()

    asyncio.run(main())


def given(site: Site, store: str = "orders", **options: str) -> dict[str, str]:
    return {"shape": "messages", "url": site.url, "store": store, **SMALL_PIECES, **options}


def read(site: Site, store: str = "orders", **options: str) -> list[Row]:
    parsed = parse_store_options(given(site, store, **options), Mode.BATCH)
    return [row for piece in plan_store(parsed) for batch in store_rows(parsed, piece) for row in batch.to_pylist()]


def plain(site: Site, store: str = "orders") -> list[Row]:
    """What the log, which has everything still, says that the rows are."""
    found = published_plainly(site.root / "log", store)
    return [
        {"seq": seq, "time": datetime.fromtimestamp(at_ms / 1000, UTC), "key": key, "body": body}
        for seq, (_, body, key, at_ms) in sorted(found.items())
    ]


COLUMNS = "seq,time,key,body"
OF_A_LOG = '{"seq": 7, "version": 9, "log_id": "abababababababababababababababab"}'


async def work(leader: Leader, draw: random.Random, published: int) -> None:
    """One thing that happens to stores, of many."""
    bodies = [draw.randbytes(draw.randrange(2_000)) for _ in range(draw.randrange(1, 12))]
    match draw.randrange(10):
        case 0 | 1:
            await leader.publish(bodies)
        case 2:
            await leader.publish(bodies, "others")
        case 3:
            number = draw.randrange(1, 5)  # some of these are duplicates
            await leader.publish(bodies, publisher="p", first=number)
        case 4:
            key = draw.choice(("tea", "milk"))
            await leader.change((key, draw.choice((None, b"", b"1"))), ("none", None))
        case 5:
            await leader.commit(Write(b"k%d" % published, b"v"))
        case 6 | 7:
            parts: list[CommitPart] = [
                MapChange(0, "orders", "prices", [("tea", draw.choice((None, b"7")), None), ("gone", None, None)]),
                Publish(0, "orders", "", [Message(body) for body in bodies]),
                Publish(0, "others", "", [Message(b"of a commit")]),
            ]
            await leader.commit(Write(b"p%d" % published, b"v"), parts=draw.sample(parts, draw.randrange(1, 4)))
        case 8:
            refused = Publish(0, "nowhere", "", [Message(b"refused")])
            assert not await leader.commit(
                Write(b"r", b"v"), parts=[Publish(0, "orders", "", [Message(b"r")]), refused]
            )
        case _:
            await leader.change(remove_all=True)


@pytest.mark.parametrize("seed", matrix(range(12)))
def test_rows_are_what_the_log_says_was_published_across_leaders_and_checkpoints(tmp_path: Path, seed: int) -> None:
    """Nothing is consumed, so every message ever published is a row, with and without checkpoints."""
    draw = random.Random(seed)

    async def check(site: Site) -> None:
        leader = await site.lead("m0", STORES)
        for turn in range(5):
            for number in range(14):
                await work(leader, draw, 100 * turn + number)
            if draw.random() < 0.6:
                await leader.checkpoint()
            if draw.random() < 0.3:
                await leader.service.compaction.now()
            for _ in range(draw.randrange(6)):
                await work(leader, draw, 100 * turn + 50)
            for store in ("orders", "others"):
                # Of a map the newest values are kept: a checkpoint may lack older ones.
                rows, expected = read(site, store, columns=COLUMNS), plain(site, store)
                has_checkpoint = (site.root / "log" / "stores").is_dir()
                assert has_checkpoint or rows == expected
                kept = {row["seq"] for row in rows}
                assert rows == [row for row in expected if row["seq"] in kept]
                messages = {row["seq"] for row in expected if row["key"] is None}
                assert messages <= kept, "messages that no durable has consumed"
            if draw.random() < 0.7:
                leader = await site.lead(f"m{draw.randrange(3)}")
        since = read(site, columns=COLUMNS)
        middle = since[len(since) // 2]
        published = middle["time"]
        assert isinstance(published, datetime)
        assert read(site, columns=COLUMNS, startingTimestamp=published.isoformat()) == [
            row
            for row in since
            if row["time"] >= published  # type: ignore[operator]
        ]
        # A later start may find more: of a map the log has changes that a checkpoint lacks.
        text = json.dumps({"seq": middle["seq"]})
        later = read(site, columns=COLUMNS, startingOffsets=text, failOnDataLoss="false")
        after, found = [row for row in since if row["seq"] > middle["seq"]], {row["seq"] for row in later}  # type: ignore[operator]
        assert [row for row in later if row in after] == after
        assert later == [row for row in plain(site) if row["seq"] in found]

    run(tmp_path, check)


def follow(reader: HoldfastStoreStreamReader, start: Offset) -> tuple[list[object], Offset]:
    """One micro-batch after the other until nothing is left; each is the same when it is planned again elsewhere."""
    seen: list[object] = []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        rows = [
            row for piece in reader.partitions(start, end) for batch in reader.read(piece) for row in batch.to_pylist()
        ]
        again = HoldfastStoreStreamReader(reader._options)
        pieces = again.partitions(start, end)
        assert [row for piece in pieces for batch in again.read(piece) for row in batch.to_pylist()] == rows
        again.stop()
        reader.commit(end)
        seen += [row["seq"] for row in rows]
        start = end
    return seen, start


def stream(site: Site, **options: str) -> HoldfastStoreStreamReader:
    return HoldfastStoreStreamReader(parse_store_options(given(site, pollInterval="1ms", **options), Mode.STREAM))


def follow_again(site: Site, start: Offset, **options: str) -> list[object]:
    """What a restarted stream returns."""
    reader = stream(site, **options)
    try:
        return follow(reader, start)[0]
    finally:
        reader.stop()


def test_a_stream_goes_on_across_take_overs_checkpoints_and_truncation(tmp_path: Path) -> None:
    async def check(site: Site) -> None:
        leader = await site.lead("m0", STORES)
        await leader.publish([bytes(500)] * 300)
        await leader.checkpoint()
        await leader.consume(100)
        await leader.service.compaction.now()
        await leader.checkpoint()
        await leader.publish([b"after the checkpoint"] * 20)
        reader = stream(site, maxRowsPerTrigger="70")
        seen, place = follow(reader, reader.initialOffset())
        assert seen == list(range(101, 321)), "a hole in the backlog is no loss"
        for turn in range(3):
            for _ in range(3):
                await leader.publish([bytes(500)] * 30)
            made = await leader.checkpoint()
            leader = await site.lead(f"m{turn % 2}")
            await leader.commit(Write(b"k", b"v"), parts=[Publish(0, "orders", "", [Message(b"of a commit")] * 10)])
            # The stream, which is running, has not read what is removed now. The checkpoint has all of it.
            assert await leader.truncate(made.version - 1)
            opened = reader._opened()
            assert isinstance(opened, StoreInLog)
            opened._proved_s = 0.0  # as if half a minute had passed
            more, place = follow(reader, place)
            seen += more
        reader.stop()
        assert seen == list(range(101, 621))
        await leader.publish([b"one more"])
        assert follow_again(site, place) == [621]
        # What was consumed is lost to a stream only where neither a checkpoint nor the log has it.
        await leader.consume(10_000)
        await leader.service.compaction.now()
        before = await leader.checkpoint()
        assert follow_again(site, place) == [621], "the log after the older checkpoint has it"
        leader = await site.lead("m2")
        await leader.publish([b"newest"])
        assert await leader.truncate(before.version - 1)
        with pytest.raises(NotFound, match="data loss"):
            follow_again(site, place)
        assert follow_again(site, place, failOnDataLoss="false") == [622]

    run(tmp_path, check)


def test_a_stream_that_plans_again_misses_nothing_that_came_meanwhile(tmp_path: Path) -> None:
    """The first messages have gone, so each micro-batch that begins before them is planned by another look."""

    async def check(site: Site) -> None:
        leader = await site.lead("m0", STORES)
        for _ in range(5):
            await leader.publish([bytes(2_000)] * 40)  # each is an extent of its own
        await leader.consume(80)
        await leader.service.compaction.now()
        await leader.checkpoint()
        reader = stream(site, failOnDataLoss="false")
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert reader._extents[0].first_seq == 81, "the extents begin after the offset"
        await leader.publish([b"meanwhile"] * 5)
        pieces = reader.partitions(start, end)
        seen = [row["seq"] for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]
        reader.commit(end)
        assert seen == list(range(81, 201))
        assert follow(reader, end)[0] == list(range(201, 206))
        reader.stop()

    run(tmp_path, check)


def test_a_restart_reads_consumed_messages_while_the_log_after_an_older_checkpoint_has_them(tmp_path: Path) -> None:
    async def check(site: Site) -> None:
        leader = await site.lead("m0", STORES)
        await leader.publish([bytes(500)] * 100)
        await leader.checkpoint()
        reader = stream(site)
        _, place = follow(reader, reader.initialOffset())
        reader.stop()
        await leader.publish([bytes(500)] * 300)
        await leader.consume(250)
        await leader.service.compaction.now()
        newest = await leader.checkpoint()
        # The newest checkpoint has these numbers, with a hole among them.
        assert [row["seq"] for row in read(site)] == list(range(251, 401))
        assert follow_again(site, place) == list(range(101, 401))
        assert [row["seq"] for row in read(site, startingOffsets='{"seq": 180}')] == list(range(181, 401))
        old = read(site, startingOffsets='{"seq": 50}', failOnDataLoss="false")
        assert [row["seq"] for row in old] == list(range(251, 401)), "no checkpoint is that old"
        with pytest.raises(NotFound, match="data loss"):
            read(site, startingOffsets='{"seq": 50}')
        (site.root / "log" / manifest_key(newest.version)).unlink()
        assert [row["seq"] for row in read(site)] == list(range(1, 401)), "the older one and the log"

    run(tmp_path, check)


def test_extents_are_joined_only_where_their_frames_follow_in_few_pages() -> None:
    """Compaction that stopped in the middle leaves later numbers in earlier frames."""
    first, second, third = pages = [CheckpointPage(number, ()) for number in (1, 100, 200)]
    extents = [
        Extent("s", 1, 10, 150, 160, 100),
        Extent("s", 11, 20, 5, 9, 100),
        Extent("s", 21, 30, 9, 120, 100),
        Extent("s", 31, 40, 190, 205, 100),
        Extent("s", 42, 50, 206, 207, 100),
        Extent("s", 51, 60, 207, 208, EXTENT_BYTES),
    ]
    assert list(_in_pages(extents, pages)) == [
        (1, 10, 100, 150, 160, (second,)),
        (11, 30, 200, 5, 120, (first, second)),
        (31, 40, 100, 190, 205, (second, third)),
        (42, 50, 100, 206, 207, (third,)),
        (51, 60, EXTENT_BYTES, 207, 208, (third,)),
    ]
    with pytest.raises(CorruptData, match="names frames that it does not have"):
        list(_in_pages(extents, pages[1:]))


def test_a_deleted_store_ends_a_stream_and_is_not_mixed_with_its_successor(tmp_path: Path) -> None:
    async def check(site: Site) -> None:
        leader = await site.lead("m0", STORES)
        await leader.publish([b"old"] * 40)
        await leader.checkpoint()
        await leader.publish([b"old"] * 10)
        reader = stream(site)
        seen, place = follow(reader, reader.initialOffset())
        assert len(seen) == 50
        others = {"others": STORES["others"]}
        await leader.define(others)
        with pytest.raises(NotFound, match=r"no such store.*others"):
            read(site)
        await leader.define(STORES)
        await leader.publish([b"new"] * 30)
        assert [row["body"] for row in read(site)] == [b"new"] * 30
        with pytest.raises(Closed, match="made again"):
            follow_again(site, place)
        await leader.checkpoint()
        await leader.publish([b"new"] * 5)
        assert [row["body"] for row in read(site)] == [b"new"] * 35
        with pytest.raises(Closed, match="made again"):
            follow_again(site, place)
        await leader.publish([b"new"] * 30)  # so that no number is missing
        await leader.checkpoint()
        with pytest.raises(Closed, match="made again") as replaced:
            follow_again(site, place)
        assert replaced.value.code is Code.STORE_REPLACED
        await leader.publish([b"new"] * 30)
        with pytest.raises(Closed, match="made again"):
            follow(reader, place)
        reader.stop()

    run(tmp_path, check)


def test_a_stream_goes_on_at_a_mirror_and_at_a_promoted_or_restored_log_as_far_as_that_has_what_was_read(
    tmp_path: Path,
) -> None:
    """A mirror has the ids and the positions of its source. A fork of the log has them up to where it was cut."""

    async def check(site: Site) -> None:
        leader = await site.lead("m0", STORES)
        reader = stream(site)
        place = reader.initialOffset()
        places: list[Offset] = []
        mirror, fork = (Site(tmp_path, log_url=(tmp_path / name).as_uri()) for name in ("mirror", "fork"))
        source = leader.leader.store
        async with opened(mirror.url) as copy, opened(fork.url) as restored:
            for body in (b"kept", b"lost"):
                await leader.publish([body] * 5)
                seen, place = follow(reader, place)
                assert len(seen) == 5
                places.append(place)
                if body == b"kept":
                    await Mirror(source, copy, MirrorOptions()).run()
                    cut = leader.leader.local_version()
            reader.stop()
            kept, lost = places
            assert follow_again(mirror, kept) == []
            assert stream(mirror).initialOffset()["store_id"] == kept["store_id"]
            await promote(copy)
            await restore(source, restored, Point(version=cut))
        for name, place_of in (("mirror", mirror), ("fork", fork)):
            promoted = await place_of.lead(f"leader of the {name}")
            await promoted.publish([b"new"] * 10)  # so that no number is missing
            assert follow_again(place_of, kept) == list(range(6, 16))
            for step in (lambda: follow_again(place_of, lost), lambda: stream(place_of).partitions(kept, lost)):  # noqa: B023
                with pytest.raises(HoldfastError) as refused:
                    step()
                assert refused.value.code is Code.ROLLED_BACK
            await place_of.end()

    run(tmp_path, check)


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[ObjectStore]:
    store = open_store(url, create_missing=True)
    try:
        yield store
    finally:
        await store.close()


def test_what_was_published_while_a_checkpoint_was_made_is_in_its_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of a copy is older than its pages, and the log before the copy may be gone."""

    async def check(site: Site) -> None:
        leader = await site.lead("m0", STORES)
        storage = leader.service._storage
        write_checkpoint = storage.write_checkpoint
        frozen, published = threading.Event(), threading.Event()

        def slow(checkpoint: IndexChanges) -> int:
            frozen.set()
            published.wait(30)
            return write_checkpoint(checkpoint)

        monkeypatch.setattr(storage, "write_checkpoint", slow)
        await leader.publish([b"before"])
        making = asyncio.create_task(leader.checkpoint())
        await asyncio.to_thread(frozen.wait, 30)
        for _ in range(9):
            await leader.publish([bytes(30_000)])  # two fill a page
        published.set()
        made = await making
        leader = await site.lead("m1")
        await leader.publish([b"after"])
        assert await leader.truncate(made.version - 1)
        assert [row["seq"] for row in read(site)] == list(range(1, 12))

    run(tmp_path, check)


def test_a_damaged_checkpoint_is_passed_over_and_a_damaged_page_is_never_read(tmp_path: Path) -> None:
    async def check(site: Site) -> None:
        leader = await site.lead("m0", STORES)
        await leader.publish([b"%d" % number * 300 for number in range(200)])
        made = await leader.checkpoint()
        expected = read(site)
        assert len(expected) == 200
        files = site.root / "log" / "stores" / "files"
        (page, *_) = (file for file in made.files if file.name.endswith(".page"))
        planned = parse_store_options(given(site), Mode.BATCH)
        pieces = plan_store(planned)
        whole = (files / page.sha256).read_bytes()
        (files / page.sha256).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(CorruptData, match="damaged"):
            [list(store_rows(planned, piece)) for piece in pieces]
        (index,) = (file for file in made.files if file.name == "index.sqlite")
        (files / index.sha256).write_bytes(b"damaged")
        assert read(site) == expected, "the log alone has it"

    run(tmp_path, check)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "file:///l"}, "store is required"),
        ({"url": "file:///l", "store": "o", "stores": "/s"}, "url and stores both say"),
        (
            {"url": "file:///l", "store": "o", "segments": "/t"},
            "segments is unknown.*valid options: stores, store, url",
        ),
        ({"url": "file:///l", "store": "o", "queue": "/q"}, "queue is unknown"),
        ({"store": "o"}, "stores is required.*in a log: url"),
        ({"stores": "/s", "store": "o", "startingOffsets": OF_A_LOG}, "names a log, and option stores a directory"),
    ],
)
def test_what_is_no_read_of_a_store_is_refused_with_the_reason(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        HoldfastDataSource({"shape": "messages", **options}).schema()


def test_a_store_of_a_url_is_the_same_with_load() -> None:
    given = parse_store_options({"shape": "messages", "path": "s3://b/log", "store": "o"})
    assert (given.url, given.directory, given.poll_ms) == ("s3://b/log", "", 200)


def test_a_log_without_such_stores_names_what_to_do(tmp_path: Path) -> None:
    async def check(site: Site) -> None:
        leader = await site.lead("m0", {**STORES, "fleeting": {"replicated": False}})
        await leader.publish([b"one"])
        for _ in range(2):
            with pytest.raises(NotFound, match=r"no such store.*orders, others"):
                read(site, "order")
            with pytest.raises(NotFound, match="memory only"):
                read(site, "fleeting")
            await leader.checkpoint()

    run(tmp_path, check)
    builder = LogBuilder()
    builder.lead()
    url = builder.write_to(tmp_path / "plain")
    with pytest.raises(InvalidRequest, match=r"files of its service.*option\(\"stores\""):
        plan_store(parse_store_options({"shape": "messages", "url": url, "store": "orders"}))


def test_an_offset_belongs_to_one_log(tmp_path: Path) -> None:
    async def check(site: Site) -> None:
        leader = await site.lead("m0", STORES)
        await leader.publish([b"one", b"two"])
        reader = stream(site)
        offset = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        reader.stop()
        text = json.dumps({**offset, "seq": 1})
        assert [row["seq"] for row in read(site, startingOffsets=text)] == [2]
        with pytest.raises(Closed, match="made again"):
            read(site, startingOffsets=json.dumps({**offset, "store_id": 7}))
        other = {**offset, "log_id": "ab" * 16}
        with pytest.raises(InvalidRequest, match="another log"):
            read(site, startingOffsets=json.dumps(other))
        with pytest.raises(InvalidRequest, match="another log"):
            follow_again(site, other)
        with pytest.raises(InvalidRequest, match="not this source's"):
            follow_again(site, {"seq": 1, "backlog": 1})

    run(tmp_path, check)


@pytest.mark.matrix
def test_a_store_in_a_log_on_a_real_s3_server(tmp_path: Path, s3_bucket: str, gateway: Gateway) -> None:
    async def check(site: Site) -> None:
        published = [b"%d" % number * 200 for number in range(400)]
        leader = await site.lead("m0", STORES)
        await leader.publish(published[:300])
        await leader.checkpoint()
        leader = await site.lead("m1")
        for number in range(300, 400):
            await leader.publish(published[number : number + 1])

        def found() -> tuple[list[object], list[object]]:
            return [row["body"] for row in read(site)], follow_again(site, {**place, "seq": 0, "backlog": 0})

        reader = stream(site, startingOffsets="latest")
        place = await asyncio.to_thread(reader.initialOffset)
        await asyncio.to_thread(reader.stop)
        bodies, seqs = await asyncio.to_thread(found)
        assert bodies == published
        assert seqs == list(range(1, 401))

    run(tmp_path, check, gateway.url(s3_bucket, prefix="stores"))


@pytest.mark.matrix  # the tests above read the same without Spark
def test_spark_reads_what_killed_leaders_confirmed_as_a_batch_and_as_a_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Real services that share nothing but the log; the rows are what a subscriber of the last one gets."""
    url = begin(tmp_path)
    (tmp_path / "made").mkdir()

    def batch() -> list[tuple[object, ...]]:
        reader = spark.read.format("holdfast").option("shape", "messages").option("store", "orders")
        frame = reader.option("url", url).load().selectExpr("seq", "string(body)", "time")
        return [tuple(row) for row in frame.orderBy("seq").collect()]

    def followed() -> list[tuple[object, ...]]:
        reader = spark.readStream.format("holdfast").option("shape", "messages").option("store", "orders")
        query = (
            reader.option("url", url)
            .option("maxRowsPerTrigger", "30")
            .load()
            .selectExpr("seq", "string(body)", "time")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "made" / "checkpoint"))
            .option("path", str(tmp_path / "made" / "table"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        table = spark.read.parquet(str(tmp_path / "made" / "table"))
        return [tuple(row) for row in table.orderBy("seq").collect()]

    with machines(tmp_path, url) as (first, second):
        first.serve()
        define(first)
        first.publish(*(f"m{number}" for number in range(20)))
        part = {"store": "orders", "messages": [message("of a commit")]}
        refused = {"store": "orders", "durable": "work", "subscriber": "s", "ack": [1]}
        assert commit(first, operations=[write("k", "1")], publish=[part])[1]["status"] == "committed"
        step = {"publish": [part], "acknowledge": [refused], "request_id": "a-step-that-is-refused"}
        step["read_version"] = first.ask("GET", "/v1/version")[1]["version"]
        assert commit(first, **step)[1].get("status") == "not_committed"
        assert [seq for seq, _, _ in followed()] == list(range(1, 22))
        first.server.kill()
        second.serve("--take-over", HOLDFAST_STORES__CHECKPOINT_SECONDS="0.2")
        second.publish(*(f"n{number}" for number in range(20)))
        until = time.monotonic() + 30
        while not list((tmp_path / "log" / "stores" / "checkpoints").glob("*")):
            assert time.monotonic() < until, second.server.tail()
            time.sleep(0.1)
        second.server.kill()
        first.serve("--take-over")
        first.publish("last")
        _, page = first.ask("GET", "/v1/stores/orders/durables/work/browse?max=100")
        browsed = [(each["seq"], b64decode(each["body"]).decode()) for each in page["messages"]]
        assert len(browsed) == 42
        rows = batch()
        assert [row[:2] for row in rows] == browsed
        assert followed() == rows
        options = f"url '{url}', shape 'messages', store 'orders'"
        spark.sql(f"CREATE TABLE messages_of_orders USING holdfast OPTIONS ({options})")
        assert spark.table("messages_of_orders").count() == 42
        spark.sql("DROP TABLE messages_of_orders")
        published = published_plainly(tmp_path / "log", "orders")
        assert [(seq, body, milliseconds(at)) for seq, body, at in rows] == [
            (seq, (body or b"").decode(), at_ms) for seq, (_, body, _, at_ms) in sorted(published.items())
        ]


def milliseconds(time: object) -> int:
    assert isinstance(time, datetime)
    return round(time.replace(tzinfo=UTC).timestamp() * 1000)
