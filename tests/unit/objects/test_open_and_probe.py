"""Opening a store by its URL, and the probe that must pass before a log is led on it."""

from __future__ import annotations

import asyncio
import builtins
import sys
from pathlib import Path
from random import Random

import pytest
from tests.faulty_store import FaultRates, FaultyStore

from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.extras import MissingExtra
from holdfast.objects.directory.store import DirectoryStore
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.open import open_store
from holdfast.objects.port import CREATED, CreateAnswer, Listed, ObjectStore, Unknown
from holdfast.objects.probe import PREFIX, clean_up, probe


def test_one_name_in_memory_is_one_store() -> None:
    async def scenario() -> None:
        await open_store("memory:shared").create("a", b"1")
        assert await open_store("memory:shared").read("a") == b"1"
        assert await open_store("memory:other").list("") == []
        assert await open_store("memory:").list("") == []

    asyncio.run(scenario())


def test_directories_open_absolute_and_relative_and_with_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a log").mkdir()
    for url in (
        "file:a%20log",
        f"file://{tmp_path}/a%20log",
        f"file:{tmp_path}/a log",
        f"file://localhost{tmp_path}/a log",
    ):
        store = open_store(url, retry=None)
        assert isinstance(store, DirectoryStore)
        assert store.url == f"file://{tmp_path}/a%20log"
    with pytest.raises(NotFound):
        open_store("file:absent")


@pytest.mark.parametrize(
    "url",
    ["", "log", "/var/log", "http://bucket/x", "file:", "file://host/path", "file:///a?b=c", "S3", "ftp://a", "etcd:"],
)
def test_what_is_no_store_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        open_store(url)
    assert caught.value.code == Code.BAD_CONFIGURATION
    assert caught.value.hint


def test_a_store_on_etcd_without_its_extra_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    for name in ("channel", "store"):
        monkeypatch.delitem(sys.modules, f"holdfast.objects.etcd.{name}", raising=False)
    with pytest.raises(MissingExtra) as caught:
        open_store("etcd://a:2379/log")
    assert caught.value.hint == "pip install 'holdfastdb[etcd]'"


class Overwriting(MemoryStore):
    """A server that ignores If-None-Match."""

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        self.objects.delete(key)
        self.objects.create(key, data)
        return CREATED


class RefusingAndOverwriting(MemoryStore):
    """A server that says 412 and overwrites all the same."""

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        answer = await super().create(key, data)
        self.objects.delete(key)
        self.objects.create(key, data)
        return answer


class Unordered(MemoryStore):
    """A server that lists in some other order, as S3 Express directory buckets do."""

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        return (await super().list(prefix, after=after, limit=limit))[::-1]


class ByNumber(MemoryStore):
    """A server that orders names by length first, which is right for numbers and wrong for bytes."""

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        return sorted(await super().list(prefix, after=after, limit=limit), key=lambda row: (len(row.key), row.key))


class FromTheStart(MemoryStore):
    """A server that ignores where a listing should begin."""

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        return await super().list(prefix, limit=limit)


class Forgetting(MemoryStore):
    """A server whose reads lag behind its writes."""

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        raise NotFound("there is no such object", key=key)


@pytest.mark.parametrize(
    ("store", "why"),
    [
        (Overwriting, "If-None-Match"),
        (RefusingAndOverwriting, "other bytes"),
        (Unordered, "byte order"),
        (ByNumber, "byte order"),
        (FromTheStart, "after a given name"),
        (Forgetting, "read back"),
    ],
)
def test_the_probe_refuses_an_unfit_store_by_name_and_cleans_up(store: type[MemoryStore], why: str) -> None:
    unfit = store(url="memory:unfit")
    with pytest.raises(InvalidRequest, match=why) as caught:
        asyncio.run(probe(unfit, unique="test"))
    assert caught.value.code == Code.STORE_UNFIT
    assert caught.value.fields["url"] == "memory:unfit"
    assert len(unfit.objects) == 0


class RefusingLargeOnes(MemoryStore):
    """A cluster whose servers take smaller requests than the log sends."""

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        if len(data) > 1_000_000:
            return Unknown("request is too large", final=True)
        return await super().create(key, data)


def test_a_start_finds_out_that_full_requests_to_etcd_are_refused() -> None:
    async def scenario() -> None:
        await probe(RefusingLargeOnes(url="memory:"))
        with pytest.raises(InvalidRequest, match="request is too large") as caught:
            await probe(RefusingLargeOnes(url="etcd://a:2379/log"))
        assert caught.value.code == Code.STORE_UNFIT

    asyncio.run(scenario())


def test_the_probe_never_touches_the_log() -> None:
    objects = MemoryObjects()
    objects.create("batches/18446744073709551615", b"claim")

    class Watched(MemoryStore):
        async def create(self, key: str, data: bytes) -> CreateAnswer:
            assert key.startswith(PREFIX)
            return await super().create(key, data)

        async def delete(self, *keys: str) -> None:
            assert all(key.startswith(PREFIX) for key in keys)
            await super().delete(*keys)

    async def whole() -> None:
        store = Watched(objects)
        await clean_up(store, await probe(store))

    asyncio.run(whole())
    assert len(objects) == 1


def test_the_probe_takes_two_waits() -> None:
    class Slow(MemoryStore):
        """Counts how many rounds of requests follow one another."""

        rounds = 0
        under_way = 0

        async def _round(self) -> None:
            self.rounds += not self.under_way
            self.under_way += 1
            for _ in range(100):  # longer than the loop takes from an answer to the next request
                await asyncio.sleep(0)
            self.under_way -= 1

        async def create(self, key: str, data: bytes) -> CreateAnswer:
            await self._round()
            return await super().create(key, data)

        async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
            await self._round()
            return await super().read(key, start=start, length=length)

        async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
            await self._round()
            return await super().list(prefix, after=after, limit=limit)

    store = Slow()
    asyncio.run(probe(store))
    assert store.rounds == 2


def test_faults_never_make_a_fit_store_unfit() -> None:
    passed = failed = 0
    for seed in range(300):
        store: ObjectStore = FaultyStore(MemoryObjects(), Random(seed), FaultRates.all_at(0.06))
        try:
            asyncio.run(probe(store))
            passed += 1
        except Unavailable:
            failed += 1
    assert passed > 0
    assert failed > 0
