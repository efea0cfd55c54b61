"""Retention generations on a store: each change is the next object, whoever else writes and whatever answer is lost."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.commit.format.log_clock import Moment
from holdfast.errors import Backpressure, InvalidRequest, NotFound, Unavailable
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import CREATED, CreateAnswer, Refused, Unknown
from holdfast.retention import generations
from holdfast.retention.generations import AHEAD_MAX, Generations, key_of
from holdfast.retention.policies import (
    HOLDS_MAX,
    POLICIES_MAX,
    Content,
    Generation,
    Hold,
    Policy,
    decode_policy,
    release_hold,
    remove_policy,
    require_id,
    set_hold,
    set_policy,
    settle_holds,
    truncate_to,
)
from holdfast.sealed import encode_sealed

HEAD = 1_000
AGE = Policy(max_age_seconds=60.0)
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "PAUSES", (0.0,) * 19)


class AnswersLost(MemoryStore):
    """Creates the object, and says what ``answers`` has for each create."""

    def __init__(self, objects: MemoryObjects, *answers: CreateAnswer) -> None:
        super().__init__(objects)
        self._answers = [*answers]

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        answer = await super().create(key, data)
        return self._answers.pop(0) if self._answers else answer


def of(store: MemoryStore) -> Generations:
    return Generations(store, lambda: NOW_MS)


def test_two_writers_both_get_their_change() -> None:
    async def main() -> None:
        objects = MemoryObjects()
        one, two = of(MemoryStore(objects)), of(MemoryStore(objects))
        await asyncio.gather(
            one.change(set_policy("a", AGE, head=HEAD), "one"), two.change(set_policy("b", AGE, head=HEAD), "two")
        )
        newest = await one.newest()
        assert newest is not None
        assert newest.number == 2
        assert newest.policies == {"a": AGE, "b": AGE}

    asyncio.run(main())


@pytest.mark.parametrize("answers", [(Unknown("lost"), Refused()), (Refused(),), (CREATED,)])
def test_a_create_whose_answer_was_lost_counts_once(answers: tuple[CreateAnswer, ...]) -> None:
    async def main() -> None:
        made = of(AnswersLost(MemoryObjects(), *answers))
        generation = await made.change(set_policy("a", AGE, head=HEAD), "one")
        assert generation == await made.newest()
        assert generation.number == 1

    asyncio.run(main())


def test_a_number_that_was_removed_long_ago_is_not_created_again() -> None:
    async def main() -> None:
        store = MemoryStore()
        stale = Generations(store, lambda: NOW_MS)
        first = await stale.change(set_policy("a", AGE, head=HEAD), "one")
        newer = Generation(
            number=AHEAD_MAX + 3, policies={}, holds={}, truncate_through=0, author="b", time_ms=0, nonce="n"
        )
        await store.create(key_of(newer.number), encode_sealed(newer))
        assert not await stale._create(  # pyright: ignore[reportPrivateUsage]
            Generation(number=2, policies={}, holds={}, truncate_through=0, author="", time_ms=0, nonce="late")
        )
        assert await stale.remove_old(newer) == 1, "the late one is old by its time"
        assert await store.read(key_of(first.number)), "a young one stays"
        assert await stale.newest() == newer

    asyncio.run(main())


def test_a_change_that_changes_nothing_writes_nothing() -> None:
    async def main() -> None:
        store = MemoryStore()
        made = of(store)
        await made.change(set_policy("a", AGE, head=HEAD), "one")
        await made.change(set_policy("a", AGE, head=HEAD), "one")
        await made.change(release_hold("none"), "one")
        assert len(await store.list("meta/retention/")) == 1

    asyncio.run(main())


def test_a_store_that_takes_nothing_is_reported() -> None:
    async def main() -> None:
        made = of(AnswersLost(MemoryObjects(), *([Unknown("lost")] * 100)))
        made._store.create = lambda key, data: asyncio.sleep(0, Unknown("down"))  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="did not take"):
            await made.change(set_policy("a", AGE, head=HEAD), "one")

    asyncio.run(main())


def test_writers_that_are_always_faster_end_in_backpressure() -> None:
    async def main() -> None:
        store = MemoryStore()
        made, other = of(store), of(MemoryStore(store.objects))
        count = 0

        async def faster(key: str, data: bytes) -> CreateAnswer:
            nonlocal count
            count += 1
            await other.change(set_policy(f"n{count}", AGE, head=HEAD), "other")
            return await MemoryStore.create(store, key, data)

        store.create = faster  # type: ignore[method-assign]
        with pytest.raises(Backpressure):
            await made.change(set_policy("mine", AGE, head=HEAD), "one")

    asyncio.run(main())


EMPTY = Content({}, {}, 0)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"{}", "exactly one field; this one has none"),
        (b'{"max_bytes": 1, "max_age_seconds": 1}', "max_age_seconds and max_bytes"),
        (b'{"max_bytes": 0}', "max_bytes is at least 1"),
        (b'{"max_bytes": "all"}', "max_bytes"),
        (b'{"max_age_seconds": 0}', "max_age_seconds is a number above 0"),
        (b'{"max_age_seconds": -1}', "max_age_seconds"),
        (b'{"keep_from_version": 0}', "keep_from_version is a version from 1"),
        (b'{"keep_from_version": 1.5}', "keep_from_version"),
        (b'{"keep": "nothing"}', "keep"),
        (b'{"keep_until": 1}', "keep_until"),
        (b"[]", "policy"),
        (b"{", "policy"),
    ],
)
def test_a_bad_policy_is_refused_by_name(body: bytes, names: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_policy(body)
    assert names in str(refused.value)


def test_a_policy_must_name_what_the_log_has() -> None:
    at = Policy(keep_from_version=HEAD + 1)
    with pytest.raises(InvalidRequest, match="above the newest version"):
        set_policy("a", at, head=HEAD)(EMPTY)
    cut = truncate_to(500)(EMPTY)
    assert set_policy("a", Policy(keep_from_version=501), head=HEAD)(cut).policies
    with pytest.raises(NotFound, match="truncated"):
        set_policy("a", Policy(keep_from_version=500), head=HEAD)(cut)
    with pytest.raises(NotFound, match="truncated"):
        set_hold("h", Hold(from_version=499, lasts_ms=1))(cut)
    assert set_hold("h", Hold(from_version=500, lasts_ms=1))(cut).holds


def test_policies_and_holds_are_bounded() -> None:
    full = Content({f"p{number}": AGE for number in range(POLICIES_MAX)}, {}, 0)
    with pytest.raises(InvalidRequest, match=f"at most {POLICIES_MAX}"):
        set_policy("one-more", AGE, head=HEAD)(full)
    assert set_policy("p0", Policy(max_bytes=5), head=HEAD)(full).policies["p0"].max_bytes == 5
    hold = Hold(from_version=1, lasts_ms=1)
    held = Content({}, {f"h{number}": hold for number in range(HOLDS_MAX)}, 0)
    with pytest.raises(InvalidRequest, match=f"at most {HOLDS_MAX}"):
        set_hold("one-more", hold)(held)
    assert set_hold("h0", hold)(held).holds == held.holds


def test_a_hold_lasts_its_time_from_the_leaders_first_look_by_both_times() -> None:
    def moment(time_ms: int, lived_ms: int) -> Moment:
        return Moment(time_ms, lived_ms, 0, 0, 0, doubted=False)

    set_ = set_hold("h", Hold(from_version=1, lasts_ms=1_000))(EMPTY)
    assert set_.holds["h"].holds(moment(1 << 60, 1 << 60)), "no clock but the leader's counts"
    begun = settle_holds(moment(5_000, 70))(set_)
    assert (begun.holds["h"].expires_ms, begun.holds["h"].expires_lived_ms) == (6_000, 1_070)
    for time_ms, lived_ms, holds in (
        (5_999, 1_069, True),
        (DAY_MS * 400, 1_069, True),
        (5_999, DAY_MS, True),
        (6_000, 1_070, False),
    ):
        now = moment(time_ms, lived_ms)
        assert begun.holds["h"].holds(now) is holds
        assert (settle_holds(now)(begun).holds == begun.holds) is holds, "begun once, and gone when it is over"


def test_truncate_through_never_falls() -> None:
    assert truncate_to(5)(truncate_to(9)(EMPTY)).truncate_through == 9


def test_ids_have_a_form() -> None:
    for bad in ("", "a/b", "-a", "ä", "a" * 129, "a b"):
        with pytest.raises(InvalidRequest):
            require_id(bad)
    with pytest.raises(NotFound):
        remove_policy("a")(EMPTY)
