"""What is repeated, how often and for how long, and what an interruption is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from obstore.exceptions import BaseError, GenericError, PermissionDeniedError, UnauthenticatedError
from tests.faulty_store import FaultRates, FaultyStore

from holdfast.errors import NotFound, Unavailable
from holdfast.objects.budget import BudgetedStore
from holdfast.objects.cloud import CloudStore
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.open import open_durable_reader, open_store
from holdfast.objects.port import Created, Listed, Refused, StoreDenies, Unknown
from holdfast.objects.retrying import ANSWERING, READING, RetryingReader, RetryingStore, RetryPolicy


class Failing(MemoryStore):
    """Fails the next ``failures`` requests that are not creates; each takes ``seconds`` of the test's clock."""

    def __init__(self, failures: int = 0, retry_after_ms: int | None = None) -> None:
        super().__init__()
        self.failures = failures
        self.retry_after_ms = retry_after_ms
        self.asked = 0
        self.seconds = 0.0
        self.clock = 0.0
        self.error: type[Unavailable] = Unavailable

    def _arrive(self) -> None:
        self.asked += 1
        self.clock += self.seconds
        if self.failures > 0:
            self.failures -= 1
            raise self.error("busy", retry_after_ms=self.retry_after_ms)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self._arrive()
        return await super().read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
        self._arrive()
        return await super().list(prefix, after=after, limit=limit)

    async def delete(self, *keys: str) -> None:
        self._arrive()
        await super().delete(*keys)


class Repeating:
    """A retrying store on a failing one, with a clock that only pauses and requests move."""

    def __init__(self, failing: Failing, policy: RetryPolicy = READING, draw: float = 1.0) -> None:
        self.failing = failing
        self.slept: list[float] = []

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            failing.clock += seconds

        self.store = RetryingStore(failing, policy, clock=lambda: failing.clock, draw=lambda: draw, sleep=sleep)
        asyncio.run(self.store.create("a", b"there"))

    def read(self, failures: int) -> bytes | None:
        """None: it was interrupted."""
        self.failing.failures = failures
        try:
            return asyncio.run(self.store.read("a"))
        except Unavailable:
            return None


def test_a_failed_read_is_repeated_with_backoff_that_doubles_up_to_its_cap() -> None:
    repeating = Repeating(Failing(), draw=1.0)
    assert repeating.read(8) == b"there"
    assert repeating.slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert (repeating.store.metrics.read.retries, repeating.store.metrics.read.interruptions) == (8, 0)


def test_full_jitter_waits_anything_down_to_nothing_but_never_less_than_asked() -> None:
    repeating = Repeating(Failing(), draw=0.0)
    assert repeating.read(2) == b"there"
    assert repeating.slept == [0.0, 0.0]
    repeating = Repeating(Failing(retry_after_ms=700), draw=0.5)
    assert repeating.read(2) == b"there"
    assert repeating.slept == [0.7, 0.7]


def test_attempts_are_bounded_and_the_end_of_them_is_an_interruption() -> None:
    repeating = Repeating(Failing(), draw=0.0)
    assert repeating.read(10_000) is None
    assert repeating.failing.asked == ANSWERING.attempts_max
    assert repeating.store.metrics.read.interruptions == 1


def test_a_store_that_has_answered_is_read_through_an_outage_that_one_that_never_did_is_not() -> None:
    repeating = Repeating(Failing(), draw=1.0)
    assert repeating.read(0) == b"there"
    assert repeating.read(50) == b"there"
    assert sum(repeating.slept) > 60.0
    # After an interruption the store has to answer again first.
    assert repeating.read(10_000) is None
    asked = repeating.failing.asked
    assert repeating.read(10_000) is None
    assert repeating.failing.asked - asked == ANSWERING.attempts_max


@pytest.mark.parametrize("policy", [ANSWERING, READING], ids=["answering", "reading"])
def test_no_attempt_begins_after_the_deadline(policy: RetryPolicy) -> None:
    repeating = Repeating(Failing(), policy)
    assert repeating.read(0) == b"there"
    repeating.failing.seconds = 10.0  # every attempt has no answer within the time of a request
    began = repeating.failing.clock
    assert repeating.read(10_000) is None
    assert repeating.failing.clock - began <= policy.deadline_ms / 1000 + 10.0


def test_listings_and_deletes_are_repeated_like_reads() -> None:
    repeating = Repeating(Failing())

    async def scenario() -> None:
        store = repeating.store
        repeating.failing.failures = 2
        assert await store.list("") == [Listed("a", 5)]
        repeating.failing.failures = 3
        await store.delete("a")
        assert await store.list("") == []
        assert (store.metrics.list.retries, store.metrics.delete.retries) == (2, 3)

    asyncio.run(scenario())


def test_many_names_are_removed_although_one_request_of_ten_fails() -> None:
    """As on a store without a request for many names: one of them all alone would fail nearly every time."""

    async def scenario() -> None:
        objects = MemoryObjects()
        names = [f"{number}" for number in range(128)]
        for name in names:
            objects.create(name, b"")
        faults = FaultyStore(objects, Random(1), FaultRates(failed_delete=0.1))
        store = RetryingStore(faults, ANSWERING, sleep=at_once)
        await store.delete(*names)
        assert len(objects) == 0
        assert faults.requests < 128 * 9
        assert store.metrics.delete.interruptions == 0

    asyncio.run(scenario())


def test_a_removal_of_many_from_a_store_that_is_away_ends() -> None:
    repeating = Repeating(Failing(10_000))
    with pytest.raises(Unavailable):
        asyncio.run(repeating.store.delete(*(f"{number}" for number in range(128))))
    assert repeating.failing.asked == 7 + ANSWERING.attempts_max


def test_not_found_is_an_answer_and_is_not_repeated() -> None:
    repeating = Repeating(Failing())
    with pytest.raises(NotFound):
        asyncio.run(repeating.store.read("absent"))
    assert repeating.failing.asked == 1


def test_what_the_store_denies_is_reported_at_once() -> None:
    repeating = Repeating(Failing())
    repeating.failing.error = StoreDenies
    assert repeating.read(10_000) is None
    assert repeating.failing.asked == 1


def test_a_create_is_sent_once_whatever_comes_of_it() -> None:
    """A store that repeats a create turns its own success into a refusal."""

    async def scenario() -> None:
        objects = FaultyStore(MemoryObjects(), Random(3), FaultRates.all_at(0.1))
        store = RetryingStore(objects, sleep=at_once)
        answers = [await store.create(f"{number}", b"four") for number in range(60)]
        assert objects.requests == 60
        assert {type(answer) for answer in answers} == {Created, Refused, Unknown}

    asyncio.run(scenario())


async def at_once(_: float) -> None:
    """No pause."""


@pytest.mark.parametrize("percent", [0.5, 2, 10])
def test_ten_thousand_reads_of_a_store_that_fails_meet_no_interruption(percent: float) -> None:
    async def scenario() -> None:
        objects = MemoryObjects()
        objects.create("a", b"bytes")
        rate = percent / 100
        faults = FaultyStore(objects, Random(1), FaultRates(failed_read=rate, torn_listing=rate, failed_delete=rate))
        store = RetryingStore(faults, ANSWERING, sleep=at_once)
        for _ in range(10_000):
            assert await store.read("a") == b"bytes"
        assert store.metrics.read.retries == sum(faults.faults.values()) > 0
        assert store.metrics.read.interruptions == 0

    asyncio.run(scenario())


def test_a_pause_holds_no_connection() -> None:
    """Others go on while one reader waits to ask again."""

    async def scenario() -> None:
        failing = Failing(1)
        budgeted = BudgetedStore(failing, connections_max=2, creates_max=1)
        asked: list[list[Listed]] = []

        async def sleep(_: float) -> None:
            asked.append(await budgeted.list(""))

        store = RetryingStore(budgeted, metrics=budgeted.metrics, sleep=sleep)
        await store.create("a", b"there")
        assert await store.read("a") == b"there"
        assert asked == [[Listed("a", 5)]]
        assert budgeted.metrics.read.retries == 1

    asyncio.run(scenario())


def test_every_store_that_is_opened_repeats_its_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    opened: list[Callable[[], object]] = [
        lambda: open_store((tmp_path / "log").as_uri(), create_missing=True),
        lambda: open_store("s3://bucket/log?region=here"),
        lambda: open_durable_reader(tmp_path.as_uri()),
        lambda: open_durable_reader("s3://bucket/log?region=here"),
    ]

    async def scenario() -> None:
        for each in opened:
            store = each()
            assert isinstance(store, RetryingReader)
            await store.close()

    asyncio.run(scenario())
    # A process's own memory never fails.
    assert isinstance(open_store("memory:never-fails"), MemoryStore)


@pytest.mark.parametrize(
    ("error", "denies"),
    [
        (PermissionDeniedError("403"), True),
        (UnauthenticatedError("401"), True),
        (GenericError("503 SlowDown"), False),
        (OSError("connection reset"), False),
        (TimeoutError(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_cloud_store_tells_what_it_denies_from_what_it_cannot_do_now(
    error: BaseError | OSError, denies: bool
) -> None:
    store = CloudStore(None, "s3://bucket", "s3", 1_000)  # type: ignore[arg-type]
    assert isinstance(store._unavailable("read", error, "a"), StoreDenies) is denies
