"""Suspensions next to a log: the newest counts, and each change is made once."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.commit.leadership.suspension import PREFIX, Suspension, key_of
from holdfast.commit.leadership.suspensions import Suspensions
from holdfast.errors import Unavailable
from holdfast.objects import creating
from holdfast.objects.memory import MemoryStore
from holdfast.objects.port import CreateAnswer, Unknown
from holdfast.sealed import encode_sealed


class Store(MemoryStore):
    """A store whose next answers to creates are lost, or before whose next create somebody else is faster."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0
        self.faster: Suspension | None = None

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says."""
        if self.faster is not None:
            await super().create(key_of(self.faster.number), encode_sealed(self.faster))
            self.faster = None
        answer = await super().create(key, data)
        if self.lost:
            self.lost -= 1
            return Unknown("the answer was lost")
        return answer


async def change(store: Store, author: str, *, is_suspended: bool) -> Suspension:
    return await Suspensions(store).change(is_suspended=is_suspended, author=author, time_ms=7)


def test_the_newest_change_counts_and_a_repeated_one_writes_nothing() -> None:
    async def scenario() -> None:
        store = Store()
        reader = Suspensions(store)
        assert await reader.newest() is None and await reader.in_force() is None
        for number, is_suspended in enumerate((True, False, True, False), start=1):
            made = await change(store, f"author {number}", is_suspended=is_suspended)
            assert (made.number, made.is_suspended, made.author, made.time_ms) == (
                number, is_suspended, f"author {number}", 7,
            )  # fmt: skip
            assert await change(store, "another", is_suspended=is_suspended) == made, "it is so already"
            assert await reader.newest() == made
            assert await reader.in_force() == (made if is_suspended else None)
            assert len(await store.list(PREFIX)) == number

    asyncio.run(scenario())


def test_a_change_whose_answer_was_lost_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creating.asyncio, "sleep", _at_once)

    async def scenario() -> None:
        store = Store()
        store.lost = 2
        made = await change(store, "ann", is_suspended=True)
        assert made.number == 1 and made.author == "ann"
        assert len(await store.list(PREFIX)) == 1
        store.lost = 1_000
        with pytest.raises(Unavailable):
            await Suspensions(_Silent()).change(is_suspended=True, author="ann", time_ms=7)

    asyncio.run(scenario())


class _Silent(Store):
    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """No create has an answer, and none lands."""
        del key, data
        return Unknown("no answer in time")


async def _at_once(_: float) -> None:
    return


@pytest.mark.parametrize("is_suspended", [True, False])
def test_a_faster_writer_is_followed_or_agreed_with(is_suspended: bool) -> None:
    async def scenario() -> None:
        store = Store()
        store.faster = Suspension(number=1, is_suspended=is_suspended, author="bob", time_ms=1, nonce="b")
        made = await change(store, "ann", is_suspended=True)
        assert (made.number, made.author) == ((1, "bob") if is_suspended else (2, "ann"))
        assert await Suspensions(store).in_force() == made

    asyncio.run(scenario())
