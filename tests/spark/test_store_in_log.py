"""``shape=messages`` of a store that lives in the log: the rows are what the log says was published, whoever led it,
wherever the messages are now."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.matrix import matrix
from tests.spark.log_with_stores import STORES, Leader, Site, Write, objects_of, published_plainly

from holdfast.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.spark.data_source import HoldfastDataSource
from holdfast.spark.messages.store import HoldfastStoreStreamReader, plan_store, store_rows
from holdfast.spark.options import Mode, parse_store_options
from holdfast.stores.values.commands import MapChange, Publish
from holdfast.stores.values.messages import Message

Row = dict[str, object]
SMALL_PIECES = {"targetPartitionBytes": "1048576"}


def run(path: Path, check: Callable[[Site], Awaitable[None]], page_bytes: int = 65_536) -> None:
    async def main() -> None:
        site = Site(path, page_bytes)
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
            parts = [
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
                # A map keeps its newest values, so older changes are there as long as the log or a page has them.
                rows, expected = read(site, store, columns=COLUMNS), plain(site, store)
                kept = {row["seq"] for row in rows}
                assert rows == [row for row in expected if row["seq"] in kept]
                messages = {row["seq"] for row in expected if row["key"] is None}
                assert messages <= kept, "messages that nobody has consumed"
            if draw.random() < 0.7:
                leader = await site.lead(f"m{draw.randrange(3)}")
        since = read(site, columns=COLUMNS)
        middle = since[len(since) // 2]
        time = middle["time"]
        assert isinstance(time, datetime)
        assert read(site, columns=COLUMNS, startingTimestamp=time.isoformat()) == [
            row
            for row in since
            if row["time"] >= time  # type: ignore[operator]
        ]
        later = read(site, columns=COLUMNS, startingOffsets=f'{{"seq": {middle["seq"]}}}', failOnDataLoss="false")
        assert later == [row for row in since if row["seq"] > middle["seq"]]  # type: ignore[operator]

    run(tmp_path, check)
