"""Every reader of many objects on an S3 store that fails one request of ten, before and after it is carried out."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
from tests.integration.test_commit_service import put
from tests.rgw import Gateway

from holdfast.commit.reading.entries import Entries
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import find_frontier
from holdfast.commit.reading.survey import survey, verify_log
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.copies.restoring import Point, restore
from holdfast.errors import Unavailable
from holdfast.foundations.keeping import KeptSnapshots
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectStore
from holdfast.objects.retrying import RetryingStore
from holdfast.snapshots import make_snapshot
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.source.chain import live_chain
from holdfast.testing.fault_proxy import Fault, FaultProxy, Rule

OBJECTS = 60
FAULTS = (
    Fault.SLOWDOWN, Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.TRUNCATE,
)  # fmt: skip
PART = 0.1


def rules() -> list[Rule]:
    """One request of ten meets one of the faults. The first rule that applies wins, so the later ones are likelier."""
    share = PART / len(FAULTS)
    return [Rule(fault=fault, probability=share / (1 - number * share)) for number, fault in enumerate(FAULTS)]


async def read_without_retries(url: str) -> None:
    """What a store that asks once makes of it: the test is about faults that are really there."""
    store = open_store(url, retry=None)
    for _ in range(200):
        await store.list("batches/")


async def read_all(store: ObjectStore, copy: ObjectStore, restored: ObjectStore) -> None:
    """Every reader once, each over the whole log."""
    made = [await make_snapshot(store) for _ in range(2)]
    assert made[0] == made[1]
    assert made[0].rows == OBJECTS
    frontier = await find_frontier(store)
    assert frontier is not None
    newest, claim = frontier
    assert (await lineage_of(store, claim)).log_id == made[0].log_id
    assert await KeptSnapshots(store, claim, keep=2).oldest(()) == made[0].version
    assert (await survey(store, objects_max=None)).head == newest
    assert (await verify_log(store)).transactions == OBJECTS
    mirrored = await Mirror(store, copy, MirrorOptions()).run()
    assert (mirrored.version, mirrored.snapshots, mirrored.lag_versions) == (newest.last_version, 1, 0)
    assert (await restore(store, restored, Point())).version >= newest.last_version
    async for _ in Entries(store).through(claim, newest, after=0):
        pytest.fail("the stores of this log are on a disk")


def test_every_reader_ends_its_work_on_a_store_that_fails_one_request_of_ten(gateway: Gateway, s3_bucket: str) -> None:
    async def scenario() -> None:
        at = urlsplit(gateway.endpoint)
        async with asyncio.timeout(110), FaultProxy(at.hostname or "", at.port or 0, seed=1) as proxy:
            direct = open_store(gateway.url(s3_bucket, prefix="log"))
            service = await CommitService.lead(direct, ServiceOptions(allow_new=True, take_over=True))
            for number in range(OBJECTS):
                await put(service, b"%04d" % number)
            await service.close()
            await direct.close()
            proxy.set_rules(rules())
            urls = [gateway.url(s3_bucket, prefix=name, endpoint=proxy.endpoint) for name in ("log", "copy", "other")]
            with pytest.raises(Unavailable):
                await read_without_retries(urls[0])
            stores = [open_store(url) for url in urls]
            await read_all(*stores)

            def plan_of_spark() -> int:
                with StoreThread(urls[0]) as thread:
                    return len(thread.start(live_chain).result().slots)

            assert await asyncio.to_thread(plan_of_spark) > OBJECTS
            source = stores[0]
            assert isinstance(source, RetryingStore)
            assert source.metrics.read.retries > 0
            assert source.metrics.read.interruptions == source.metrics.list.interruptions == 0
            for store in stores:
                await store.close()

    asyncio.run(scenario())
