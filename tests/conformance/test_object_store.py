"""The laws of the object store port, on every adapter and every fake.

To hold another store to them, inherit ``ObjectStoreLaws`` and give a ``make_store`` fixture: a function that returns a
store on the same empty place each time it is called on a running loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from tests.faulty_store import FaultRates, FaultyStore

from holdfast.errors import InvalidRequest, NotFound
from holdfast.objects.budget import BudgetedStore
from holdfast.objects.memory import MemoryObjects
from holdfast.objects.open import open_store
from holdfast.objects.port import Created, Listed, ObjectStore, Refused
from holdfast.objects.probe import PREFIX, clean_up, probe
from holdfast.objects.retrying import RetryingStore

MakeStore = Callable[[], ObjectStore]
Scenario = Callable[[ObjectStore], Awaitable[None]]


def key_of(slot: int) -> str:
    return f"batches/{slot:020d}"


class ObjectStoreLaws(ABC):
    """One test per law. ``make_store`` is what a subclass supplies."""

    @pytest.fixture
    @abstractmethod
    def make_store(self) -> MakeStore: ...

    @pytest.fixture
    def run(self, make_store: MakeStore) -> Callable[[Scenario], None]:
        """Run a scenario on a store that is closed afterwards."""

        async def opened(scenario: Scenario) -> None:
            store = make_store()
            try:
                async with asyncio.timeout(60):
                    await scenario(store)
            finally:
                await store.close()

        return lambda scenario: asyncio.run(opened(scenario))

    def test_what_was_created_reads_back(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            data = bytes(range(256)) * 64
            assert await store.create("batches/1", data) == Created()
            assert await store.read("batches/1") == data

        run(scenario)

    def test_a_taken_name_is_refused_and_keeps_its_bytes(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            assert await store.create("batches/1", b"first") == Created()
            for data in (b"second", b"first"):
                assert isinstance(await store.create("batches/1", data), Refused)
            assert await store.read("batches/1") == b"first"

        run(scenario)

    def test_of_many_creates_of_one_name_exactly_one_wins(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            for turn in range(5):
                key = key_of(2**64 - 1 - turn)
                bodies = [f"writer {writer} in turn {turn}".encode() * 100 for writer in range(12)]
                answers = await asyncio.gather(*(store.create(key, body) for body in bodies))
                won = [body for body, answer in zip(bodies, answers, strict=True) if answer == Created()]
                assert len(won) == 1
                assert sum(isinstance(answer, Refused) for answer in answers) == len(bodies) - 1
                assert await store.read(key) == won[0]

        run(scenario)

    def test_a_part_of_an_object_ends_where_the_object_ends(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            await store.create("batches/1", b"0123456789")
            assert await store.read("batches/1", start=0, length=4) == b"0123"
            assert await store.read("batches/1", start=4) == b"456789"
            assert await store.read("batches/1", start=8, length=4) == b"89"
            assert await store.read("batches/1", start=10, length=4) == b""
            assert await store.read("batches/1", start=99) == b""
            assert await store.read("batches/1", start=2, length=0) == b""

        run(scenario)

    def test_an_empty_object_is_an_object(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            assert await store.create("batches/empty", b"") == Created()
            assert isinstance(await store.create("batches/empty", b"x"), Refused)
            assert await store.read("batches/empty") == b""
            assert await store.list("batches/") == [Listed("batches/empty", 0)]

        run(scenario)

    def test_a_name_is_taken_literally(self, run: Callable[[Scenario], None]) -> None:
        """The folders of partitions have ``=`` in their names, and ``%`` where a value is encoded."""

        async def scenario(store: ObjectStore) -> None:
            keys = ["bucket=1/name=a%2520b/1.parquet", "bucket=1/name=a%20b/1.parquet", "bucket=1/name=a%2Fb/1.parquet"]
            for key in keys:
                assert await store.create(key, key.encode()) == Created()
            assert await store.list("bucket=1/") == [Listed(key, len(key)) for key in sorted(keys)]
            for key in keys:
                assert await store.read(key) == key.encode()
                await store.delete(key)
            assert await store.list("bucket=1/") == []

        run(scenario)

    def test_a_large_object_is_one_object(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            data = Random(7).randbytes(9 * 1024 * 1024)  # above the size at which clients like to split
            assert await store.create("batches/large", data) == Created()
            assert isinstance(await store.create("batches/large", data), Refused)
            assert await store.read("batches/large") == data
            assert await store.list("batches/") == [Listed("batches/large", len(data))]

        run(scenario)

    def test_an_absent_object_is_not_found(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            for key in ("batches/1", "nowhere/at/all"):
                with pytest.raises(NotFound):
                    await store.read(key)
                with pytest.raises(NotFound):
                    await store.read(key, start=3, length=5)
                with pytest.raises(NotFound):
                    await store.read(key, length=0)

        run(scenario)

    def test_an_empty_store_lists_nothing(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            assert await store.list("") == []
            assert await store.list("batches/") == []

        run(scenario)

    def test_names_list_in_byte_order_with_their_sizes(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            keys = ["b/9", "b/10", "b/1-", "b/A", "b/a", "b/_", "b-c/1", "b/d/1", "b/d-", "c/1", "b/1.5"]
            for size, key in enumerate(keys):
                assert await store.create(key, bytes(size)) == Created()
            rows = [Listed(key, size) for size, key in enumerate(keys)]
            in_order = sorted(rows, key=lambda row: row.key)
            assert await store.list("") == in_order
            assert await store.list("b/") == [row for row in in_order if row.key.startswith("b/")]
            assert await store.list("b/d") == [row for row in in_order if row.key.startswith("b/d")]
            assert await store.list("b/d/") == [Listed("b/d/1", keys.index("b/d/1"))]
            assert await store.list("x/") == []

        run(scenario)

    def test_a_listing_goes_on_behind_a_name_that_need_not_exist(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            for slot in (10, 20, 30):
                await store.create(key_of(slot), b"x")
            assert [row.key for row in await store.list("batches/", after=key_of(10))] == [key_of(20), key_of(30)]
            assert [row.key for row in await store.list("batches/", after=key_of(15))] == [key_of(20), key_of(30)]
            assert [row.key for row in await store.list("batches/", after=key_of(15), limit=1)] == [key_of(20)]
            assert await store.list("batches/", after=key_of(30)) == []

        run(scenario)

    def test_a_listing_is_as_long_as_asked_across_the_pages_of_the_store(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            slots = range(2**64 - 1, 2**64 - 1 - 1_205, -1)
            budget = asyncio.Semaphore(16)

            async def create(slot: int) -> None:
                async with budget:
                    assert await store.create(key_of(slot), b"one") == Created()

            await asyncio.gather(*(create(slot) for slot in slots))
            in_order = [key_of(slot) for slot in sorted(slots)]
            assert [row.key for row in await store.list("batches/", limit=5_000)] == in_order
            assert [row.key for row in await store.list("batches/")] == in_order[:1_000]
            assert [row.key for row in await store.list("batches/", limit=1_100)] == in_order[:1_100]
            assert [row.key for row in await store.list("batches/", after=in_order[3], limit=2)] == in_order[4:6]
            assert [row.key for row in await store.list("batches/", after=in_order[999])] == in_order[1_000:]

        run(scenario)

    def test_deleting_is_final_and_repeatable(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            await store.create("batches/1", b"a")
            await store.create("batches/2", b"bb")
            await store.delete("batches/1")
            await store.delete("batches/1")
            await store.delete("never/was")
            with pytest.raises(NotFound):
                await store.read("batches/1")
            assert await store.list("batches/") == [Listed("batches/2", 2)]

        run(scenario)

    def test_many_objects_are_deleted_at_once_and_absent_ones_do_not_matter(
        self, run: Callable[[Scenario], None]
    ) -> None:
        async def scenario(store: ObjectStore) -> None:
            for number in range(40):
                await store.create(f"batches/{number:02d}", b"a")
            await store.create("other/1", b"b")
            for _ in range(2):
                await store.delete("other/1", "never/was", *(f"batches/{number:02d}" for number in range(39)))
                assert await store.list("batches/") == [Listed("batches/39", 1)]
                assert await store.list("other/") == []

        run(scenario)

    def test_a_store_that_is_opened_again_has_what_was_created(self, make_store: MakeStore) -> None:
        async def scenario() -> None:
            first = make_store()
            assert await first.create("batches/1", b"kept") == Created()
            await first.close()
            second, third = make_store(), make_store()
            try:
                assert await second.read("batches/1") == b"kept"
                assert isinstance(await third.create("batches/1", b"lost"), Refused)
                assert await third.create("batches/2", b"seen") == Created()
                assert await second.read("batches/2") == b"seen"
            finally:
                await second.close()
                await third.close()

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a/", "a//b", "../a", "a/../b", ".hidden", "a/.b", "ä", "a b", "a\n", "a" * 513, "a?b", "=a", "%20"],
    )
    def test_a_name_that_some_store_cannot_hold_is_refused_by_all(
        self, run: Callable[[Scenario], None], key: str
    ) -> None:
        async def scenario(store: ObjectStore) -> None:
            with pytest.raises(InvalidRequest):
                await store.create(key, b"x")
            assert await store.list("") == []

        run(scenario)

    def test_the_probe_finds_it_fit_and_leaves_nothing(self, run: Callable[[Scenario], None]) -> None:
        async def scenario(store: ObjectStore) -> None:
            for left in await asyncio.gather(probe(store), probe(store)):
                await clean_up(store, left)
            assert await store.list(PREFIX) == []

        run(scenario)


class TestMemoryStore(ObjectStoreLaws):
    @pytest.fixture
    def make_store(self, request: pytest.FixtureRequest) -> MakeStore:
        return lambda: open_store(f"memory:{request.node.nodeid}")


class TestFaultyStoreWithoutFaults(ObjectStoreLaws):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        objects = MemoryObjects()
        return lambda: FaultyStore(objects, Random(1))


class TestBudgetedStore(ObjectStoreLaws):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        objects = MemoryObjects()
        return lambda: BudgetedStore(FaultyStore(objects, Random(1)), connections_max=3, creates_max=2)


class TestRetryingStore(ObjectStoreLaws):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        objects = MemoryObjects()

        async def at_once(_: float) -> None:
            return None

        rates = FaultRates(torn_listing=0.2, failed_read=0.2, failed_delete=0.2)
        return lambda: RetryingStore(FaultyStore(objects, Random(1), rates), sleep=at_once)


class TestDirectoryStore(ObjectStoreLaws):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        url = (tmp_path / "a log").as_uri()
        return lambda: open_store(url, create_missing=True)


@pytest.mark.program("azurite-blob")
class TestAzureStore(ObjectStoreLaws):
    @pytest.fixture
    def make_store(self, azure_url: str) -> MakeStore:
        return lambda: open_store(azure_url)


class TestS3Store(ObjectStoreLaws):
    @pytest.fixture
    def make_store(self, s3_url: str) -> MakeStore:
        return lambda: open_store(s3_url)


class TestEtcdStore(ObjectStoreLaws):
    @pytest.fixture
    def make_store(self, etcd_url: str) -> MakeStore:
        return lambda: open_store(etcd_url)
