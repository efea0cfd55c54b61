"""What the S3 adapter answers when the network misbehaves, on a real S3 server behind the fault proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import pytest
from tests.rgw import Gateway

from holdfast.errors import NotFound, Unavailable
from holdfast.objects.open import open_store
from holdfast.objects.port import CreateAnswer, Created, ObjectStore, Refused, Unknown
from holdfast.testing.fault_proxy import Fault, FaultProxy, Latency, Rule

KEY = "batches/18446744073709551615"
OURS, THEIRS = b"ours" * 300, b"theirs" * 300
TIMEOUT_MS = 1_500  # what a story waits for an answer that never comes; healthy requests need a small part of it
PATIENT_MS = 60_000

Story = Callable[[ObjectStore, ObjectStore, FaultProxy], Awaitable[None]]
Told = Callable[..., None]


@pytest.fixture
def behind_proxy(gateway: Gateway, s3_bucket: str) -> Told:
    """Run a story with the store behind a proxy without rules, the same store seen directly, and the proxy."""

    def run(story: Story, *, timeout_ms: int = TIMEOUT_MS) -> None:
        async def told() -> None:
            at = urlsplit(gateway.endpoint)
            async with asyncio.timeout(100), FaultProxy(at.hostname or "", at.port or 0) as proxy:
                url = gateway.url(s3_bucket, prefix="log", endpoint=proxy.endpoint)
                store = open_store(url, request_timeout_ms=timeout_ms, retry=None)
                direct = open_store(gateway.url(s3_bucket, prefix="log"))
                try:
                    await story(store, direct, proxy)
                finally:
                    await store.close()
                    await direct.close()

        asyncio.run(told())

    return run


async def stored(direct: ObjectStore, key: str = KEY) -> bytes | None:
    """What is really there."""
    try:
        return await direct.read(key)
    except NotFound:
        return None


# fault, answer of a create, whether the object is there afterwards
CREATES: list[tuple[Fault, type[CreateAnswer], bool]] = [
    (Fault.SLOWDOWN, Unknown, False),
    (Fault.ERROR_BEFORE, Unknown, False),
    (Fault.ERROR_AFTER, Unknown, True),
    (Fault.CONFLICT, Refused, False),
    (Fault.RESET_BEFORE, Unknown, False),
    (Fault.RESET_AFTER, Unknown, True),
    (Fault.BLACKHOLE_BEFORE, Unknown, False),
    (Fault.BLACKHOLE_AFTER, Unknown, True),
    (Fault.TRUNCATE, Unknown, True),
    (Fault.DUPLICATE, Refused, True),
    (Fault.HOLD, Unknown, False),
    (Fault.DELAY, Created, True),
]


def test_every_fault_has_an_expected_answer() -> None:
    assert {fault for fault, _, _ in CREATES} == set(Fault)


@pytest.mark.parametrize(("fault", "answers", "lands"), CREATES, ids=[fault.value for fault, _, _ in CREATES])
def test_a_create_under_a_fault_claims_no_more_than_is_known(
    behind_proxy: Told, fault: Fault, answers: type[CreateAnswer], lands: bool
) -> None:
    async def story(store: ObjectStore, direct: ObjectStore, proxy: FaultProxy) -> None:
        proxy.set_rules([Rule(fault=fault, method="PUT", times=1)])
        answer = await store.create(KEY, OURS)
        assert isinstance(answer, answers)
        if fault is Fault.CONFLICT:
            assert answer == Refused(certain=False)
        assert await stored(direct) == (OURS if lands else None)
        # The client repeats nothing by itself: that would turn an own landed write into a refusal.
        assert [trace.method for trace in proxy.log] == ["PUT"]
        # The identical bytes again settle it, and the read-back tells whose they are.
        again = await store.create(KEY, OURS)
        assert isinstance(again, Refused if lands else Created)
        assert await store.read(KEY) == OURS

    behind_proxy(story)


def test_a_late_landing_takes_a_free_name_and_never_one_that_is_taken(behind_proxy: Told) -> None:
    async def story(store: ObjectStore, direct: ObjectStore, proxy: FaultProxy) -> None:
        other = KEY.replace("615", "614")
        proxy.set_rules([Rule(fault=Fault.HOLD, method="PUT", times=2)])
        assert isinstance(await store.create(KEY, OURS), Unknown)
        assert isinstance(await store.create(other, OURS), Unknown)
        assert await direct.create(KEY, THEIRS) == Created()
        assert await stored(direct, other) is None
        assert [trace.status for trace in await proxy.release()] == [412, 200]
        assert (await stored(direct), await stored(direct, other)) == (THEIRS, OURS)

    behind_proxy(story)


@pytest.mark.parametrize(
    "fault",
    [Fault.SLOWDOWN, Fault.ERROR_BEFORE, Fault.RESET_BEFORE, Fault.BLACKHOLE_BEFORE, Fault.TRUNCATE],
    ids=lambda fault: fault.value,
)
def test_a_read_or_a_listing_under_a_fault_is_unavailable_and_never_short(behind_proxy: Told, fault: Fault) -> None:
    async def story(store: ObjectStore, direct: ObjectStore, proxy: FaultProxy) -> None:
        await direct.create(KEY, OURS)
        proxy.set_rules([Rule(fault=fault, method="GET", times=2)])
        with pytest.raises(Unavailable):
            await store.read(KEY)
        with pytest.raises(Unavailable):
            await store.list("batches/")
        assert await store.read(KEY) == OURS
        assert [row.key for row in await store.list("batches/")] == [KEY]

    behind_proxy(story)


def test_a_listing_that_breaks_off_between_its_pages_is_unavailable(behind_proxy: Told) -> None:
    async def story(store: ObjectStore, direct: ObjectStore, proxy: FaultProxy) -> None:
        names = [f"batches/{number:020d}" for number in range(1100)]
        for start in range(0, len(names), 50):
            await asyncio.gather(*(direct.create(name, b"x") for name in names[start : start + 50]))
        proxy.set_rules([Rule(fault=Fault.RESET_BEFORE, path="continuation-token")])
        with pytest.raises(Unavailable):
            await store.list("batches/", limit=2000)
        assert len(await store.list("batches/", limit=1000)) == 1000
        proxy.set_rules([])
        assert [row.key for row in await store.list("batches/", limit=2000)] == names

    behind_proxy(story)


def test_a_partition_answers_unknown_in_bounded_time_and_heals(behind_proxy: Told) -> None:
    async def story(store: ObjectStore, direct: ObjectStore, proxy: FaultProxy) -> None:
        proxy.partition()
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert isinstance(await store.create(KEY, OURS), Unknown)
        assert loop.time() - began < 10 * TIMEOUT_MS / 1000
        assert await stored(direct) is None
        proxy.partition(False)
        assert await store.create(KEY, OURS) == Created()

    behind_proxy(story)


def test_latency_is_carried_by_many_requests_at_once(behind_proxy: Told) -> None:
    async def story(store: ObjectStore, _direct: ObjectStore, proxy: FaultProxy) -> None:
        proxy.latency = Latency(median_ms=250, p99_ms=250)
        loop = asyncio.get_running_loop()
        began = loop.time()
        answers = await asyncio.gather(*(store.create(f"batches/{number:020d}", OURS) for number in range(32)))
        assert set(answers) == {Created()}
        assert 0.25 <= loop.time() - began < 32 * 0.25 / 2

    behind_proxy(story, timeout_ms=PATIENT_MS)
