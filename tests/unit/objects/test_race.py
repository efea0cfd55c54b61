"""The race on fakes: unfit stores of every kind are refused, faults are not a verdict, and nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from random import Random

import pytest
from tests.faulty_store import FaultRates, FaultyStore

from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.open import open_store
from holdfast.objects.port import CREATED, CreateAnswer, Listed, ObjectStore, Refused, Unknown
from holdfast.objects.probe import contest, probe
from holdfast.objects.probe.contest import Contest, LocalSide, clean_up, plan_race
from holdfast.objects.probe.race import LATER_SECONDS, race, race_and_keep, run_race
from holdfast.objects.probe.results import RACES_PREFIX, keep_result, list_meta, newest_result, result_of
from holdfast.objects.retrying import ANSWERING, RetryingStore


class Pauses:
    """Sleeps at once, and counts."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


def at_once(contests: list[Contest]) -> list[Contest]:
    return [Contest(each.name, min(each.size, 256), (0.0,) * len(each.offsets_ms)) for each in contests]


def race_on(store: ObjectStore, pauses: Pauses | None = None) -> list[str]:
    """A whole race without pauses; the names that it may have created."""
    names: list[str] = []
    sleep = (pauses or Pauses()).sleep
    sides = [LocalSide(store), LocalSide(store)]
    asyncio.run(run_race(sides, at_once(plan_race("probe/test", random.random)), store.url, names, sleep))
    return names


def test_a_fit_store_passes_after_a_second_look() -> None:
    pauses = Pauses()
    assert len(race_on(MemoryStore(), pauses)) == 20
    assert pauses.seconds == [LATER_SECONDS]


class ChecksBeforeItWrites(MemoryStore):
    """Other requests come between its check and its write."""

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        taken = key in self.objects
        await asyncio.sleep(0)
        if taken:
            return Refused()
        self.objects.delete(key)
        self.objects.create(key, data)
        return CREATED


class RefusesAndOverwrites(MemoryStore):
    """Says that the name is taken, and writes all the same."""

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        answer = await super().create(key, data)
        self.objects.delete(key)
        self.objects.create(key, data)
        return answer


class OverwritesLater(MemoryStore):
    """A refused create takes effect after the first reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.refused: dict[str, bytes] = {}

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        answer = await super().create(key, data)
        if answer != CREATED:
            self.refused[key] = data
        return answer

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.reads[key] += 1
        return await super().read(key) if self.reads[key] <= 2 else self.refused[key]


class ForgetsLater(OverwritesLater):
    """An object is gone after the first reads."""

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.reads[key] += 1
        if self.reads[key] > 2:
            raise NotFound("there is no such object", key=key)
        return await MemoryStore.read(self, key)


class ReadsLag(MemoryStore):
    """Every second reader does not see what was created."""

    turn = 0

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.turn += 1
        if self.turn % 2:
            raise NotFound("there is no such object", key=key)
        return await super().read(key)


class Tears(MemoryStore):
    """An object has the beginning of one body and the end of another."""

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        data = await super().read(key)
        return data[:128] + data[128:].replace(b"writer", b"reader")


UNFIT = [ChecksBeforeItWrites, RefusesAndOverwrites, OverwritesLater, ForgetsLater, ReadsLag, Tears]


@pytest.mark.parametrize("kind", UNFIT)
def test_a_store_that_only_looks_exclusive_is_refused(kind: type[MemoryStore]) -> None:
    with pytest.raises(InvalidRequest, match="cannot hold a log") as caught:
        race_on(kind())
    assert caught.value.code is Code.STORE_UNFIT


class Answers(MemoryStore):
    """Gives this answer to every create."""

    def __init__(self, answer: CreateAnswer, *, lands: bool = False) -> None:
        super().__init__()
        self.answer = answer
        self.lands = lands
        self.names: Counter[str] = Counter()

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        self.names[key] += 1
        if self.lands:
            self.objects.create(key, data)
        return self.answer


@pytest.mark.parametrize("lands", [False, True], ids=["not_done", "done"])
@pytest.mark.parametrize(
    "answer", [Refused(certain=False), Unknown("503 slow down"), Unknown("the answer was lost"), Refused()]
)
def test_a_store_without_a_clear_answer_is_unavailable_after_six_races_of_a_name(
    answer: CreateAnswer, lands: bool
) -> None:
    store, pauses = Answers(answer, lands=lands), Pauses()
    with pytest.raises(Unavailable, match="did not answer whether it refuses a taken name") as caught:
        race_on(store, pauses)
    assert caught.value.fields["tries"] == 6
    assert len(store.names) == 6 and set(store.names.values()) == {16}
    assert len(pauses.seconds) == 5


class AnswersAfter(MemoryStore):
    """Every name has this many races without an answer first."""

    def __init__(self, races: int) -> None:
        super().__init__()
        self.races = races

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        if int(key.rpartition(".")[2]) < self.races:
            return Unknown("503 slow down")
        return await super().create(key, data)


def test_a_name_is_raced_again_five_times() -> None:
    assert len(race_on(AnswersAfter(5))) == 20 * 6
    with pytest.raises(Unavailable):
        race_on(AnswersAfter(6))


class Unreadable(MemoryStore):
    """Reads have no answer: never, or only the later ones."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise Unavailable("503 slow down")
        return await super().read(key)


@pytest.mark.parametrize("after", [0, 40])
def test_a_store_that_cannot_be_read_is_unavailable(after: int) -> None:
    with pytest.raises(Unavailable):
        race_on(Unreadable(after))


@pytest.mark.parametrize("rate", [0.005, 0.02, 0.05])
def test_faults_never_make_a_fit_store_unfit(rate: float) -> None:
    passed = 0
    for seed in range(6):
        faulty = FaultyStore(MemoryObjects(), Random(seed), FaultRates.all_at(rate))
        store = RetryingStore(faulty, ANSWERING, sleep=Pauses().sleep)
        try:
            race_on(store)
            passed += 1
        except Unavailable:
            pass
    assert passed >= 3, passed


def test_a_race_writes_only_under_its_prefix_and_leaves_nothing() -> None:
    class Watched(MemoryStore):
        async def create(self, key: str, data: bytes) -> CreateAnswer:
            assert key.startswith("probe/")
            return await super().create(key, data)

    store = Watched(url="memory:watched")
    asyncio.run(race(store, "memory:watched"))
    assert len(store.objects) == 0


def test_a_refused_store_is_cleaned_up_too() -> None:
    store = RefusesAndOverwrites(url="memory:unfit")
    with pytest.raises(InvalidRequest):
        asyncio.run(race(store, "memory:unfit"))
    assert len(store.objects) == 0


def test_a_store_that_does_not_remove_delays_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(MemoryStore):
        async def delete(self, *keys: str) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(contest, "CLEAN_UP_SECONDS_MAX", 0.01)
    asyncio.run(clean_up(Hanging(), ["probe/1"]))


@pytest.mark.parametrize("kind", UNFIT)
def test_the_short_race_of_a_start_refuses_what_its_two_waits_can_show(kind: type[MemoryStore]) -> None:
    store = kind()
    if kind in (OverwritesLater, ForgetsLater):
        asyncio.run(clean_up(store, asyncio.run(probe(store))))
        return
    with pytest.raises(InvalidRequest):
        asyncio.run(probe(store))
    assert len(store.objects) == 0


# ---- results --------------------------------------------------------------------------------------------------------

HERE = "https://rgw.example"


def test_the_newest_result_of_an_endpoint_counts() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        assert await newest_result(store, HERE) is None
        await keep_result(store, result_of(HERE, 1.0, "it lies", 1))
        await keep_result(store, result_of("https://other.example", 3.0, "", 1))
        await keep_result(store, result_of(HERE, 2.0, "", 2))
        newest = await newest_result(store, HERE)
        assert newest is not None
        assert newest.fit and (newest.date, newest.addresses) == ("1970-01-01T00:00:02+00:00", 2)
        assert len(await store.list(RACES_PREFIX)) == 3

    asyncio.run(scenario())


def test_results_kept_at_the_same_time_are_all_kept() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        await asyncio.gather(*(keep_result(store, result_of(HERE, float(number), "", 1)) for number in range(4)))
        assert len(await store.list(RACES_PREFIX)) == 4

    asyncio.run(scenario())


def test_a_refusal_is_kept_and_raised() -> None:
    store = RefusesAndOverwrites(url="memory:kept")
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(race_and_keep(store, "memory:kept", {}))
    assert caught.value.code is Code.STORE_UNFIT
    kept = asyncio.run(newest_result(store, "memory:kept"))
    assert kept is not None
    assert not kept.fit and "other bytes" in kept.why


def test_results_are_no_part_of_a_log() -> None:
    async def scenario() -> None:
        store = open_store("memory:listing-meta")
        await keep_result(store, result_of(HERE, 1.0, "", 1))
        assert await list_meta(store, limit=5) == []
        for name in ("meta/alive/1", "meta/role", "meta/zeta"):
            await store.create(name, b"x")
        await keep_result(store, result_of(HERE, 2.0, "", 1))
        wanted = [Listed(name, 1) for name in ("meta/alive/1", "meta/role", "meta/zeta")]
        for limit in range(1, 5):
            assert await list_meta(store, limit=limit) == wanted[:limit]

    asyncio.run(scenario())
