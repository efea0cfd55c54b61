"""The faulty store: every fault happens, does what it says, and follows from the seed alone."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

import pytest
from tests.faulty_store import NO_FAULTS, FaultRates, FaultyStore

from holdfast.errors import NotFound, Unavailable
from holdfast.objects.memory import MemoryObjects
from holdfast.objects.port import Created, Listed, Refused, Unknown

T = TypeVar("T")


def ask(call: Coroutine[Any, Any, T]) -> T:
    """The answer of a store that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the store waits")


def faulty(seed: int = 1, **rates: float) -> FaultyStore:
    return FaultyStore(MemoryObjects(), Random(seed), FaultRates(**rates))  # type: ignore[arg-type]


def test_a_lost_request_changes_nothing() -> None:
    store = faulty(lost_request=1.0)
    assert isinstance(ask(store.create("a", b"1")), Unknown)
    assert "a" not in store.objects


def test_a_lost_answer_hides_a_create_that_happened() -> None:
    store = faulty(lost_answer=1.0)
    assert isinstance(ask(store.create("a", b"1")), Unknown)
    assert store.objects.read("a") == b"1"


def test_a_late_create_lands_after_others_and_only_if_the_name_is_free() -> None:
    store = faulty(late=1.0)
    assert isinstance(ask(store.create("a", b"late")), Unknown)
    assert isinstance(ask(store.create("b", b"late")), Unknown)
    store.rates = FaultRates()
    assert "b" not in store.objects
    if "a" not in store.objects:
        assert ask(store.create("a", b"in time")) == Created()
    before = store.objects.read("a")
    store.land_all()
    assert store.objects.read("a") == before
    assert store.objects.read("b") == b"late"
    assert store.late == []


def test_a_late_create_lands_by_itself_within_its_bound() -> None:
    store = faulty(late=1.0, late_requests_max=7)
    ask(store.create("a", b"late"))
    store.rates = FaultRates()
    for _ in range(7):
        ask(store.list(""))
    assert store.objects.read("a") == b"late"


def test_sent_twice_refuses_an_own_create() -> None:
    store = faulty(sent_twice=1.0)
    assert ask(store.create("a", b"1")) == Refused(certain=True)
    assert store.objects.read("a") == b"1"


def test_409_is_an_uncertain_refusal_that_changes_nothing() -> None:
    store = faulty(busy_409=1.0)
    assert ask(store.create("a", b"1")) == Refused(certain=False)
    assert "a" not in store.objects


def test_503_changes_nothing_and_says_when_to_come_back() -> None:
    store = faulty(slow_down_503=1.0)
    answer = ask(store.create("a", b"1"))
    assert isinstance(answer, Unknown)
    assert answer.retry_after_ms is not None
    assert "a" not in store.objects


def test_a_torn_listing_is_no_listing() -> None:
    objects = MemoryObjects()
    for number in range(2_500):
        objects.create(f"{number:05}", b"")
    torn_behind_the_first_page = 0
    for seed in range(50):
        store = FaultyStore(objects, Random(seed), FaultRates(torn_listing=0.3))
        try:
            assert len(ask(store.list("", limit=5_000))) == 2_500
        except Unavailable as error:
            torn_behind_the_first_page += error.fields["listed"] != 0
    assert torn_behind_the_first_page > 0


def test_a_failed_delete_may_have_happened() -> None:
    gone = set()
    for seed in range(30):
        store = faulty(seed, failed_delete=1.0)
        store.objects.create("a", b"")
        with pytest.raises(Unavailable):
            ask(store.delete("a"))
        gone.add("a" not in store.objects)
    assert gone == {True, False}


def test_what_is_created_is_visible_at_once_whatever_else_fails() -> None:
    store = faulty(7, lost_request=0.2, late=0.2, busy_409=0.1)
    for number in range(300):
        key = f"{number:04}"
        if ask(store.create(key, b"x")) == Created():
            assert ask(store.read(key)) == b"x"
            assert ask(store.list("", after=f"{number - 1:04}" if number else "", limit=1)) == [Listed(key, 1)]


def everything(seed: int) -> list[str]:
    store = FaultyStore(MemoryObjects(), Random(seed), FaultRates.all_at(0.08))
    heard: list[str] = []
    for number in range(600):
        key = f"{number // 3:04}"
        for call in (
            lambda key=key, number=number: store.create(key, str(number).encode()),
            lambda key=key: store.read(key),
            lambda: store.list("", limit=3),
        ):
            try:
                heard.append(str(ask(call())))
            except (NotFound, Unavailable) as error:
                heard.append(str(error))
        if number % 50 == 0:
            try:
                ask(store.delete(key))
            except Unavailable as error:
                heard.append(str(error))
    heard.append(str(store.faults))
    if seed == 5:
        assert set(store.faults) == set(NO_FAULTS.__slots__) - {"late_requests_max"}
    return heard


def test_the_same_seed_gives_the_same_world_and_another_seed_another() -> None:
    assert everything(5) == everything(5)
    assert everything(5) != everything(6)
