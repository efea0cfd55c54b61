"""Laws of the end of a reign in the shell: whoever waits hears of it, whatever it waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast.commit.format.transaction import Transaction, Unanswered, Write
from holdfast.commit.service import CommitEntry, CommitService, ServiceOptions
from holdfast.errors import Unavailable
from holdfast.objects.memory import MemoryStore
from holdfast.objects.port import CreateAnswer, Listed, Unknown

ID = "request-id-of-twenty-plus"


class Unlisted(MemoryStore):
    """A store whose listings never come, once it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: asyncio.Event | None = None

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
        if self.listed is not None:
            self.listed.set()
            await asyncio.Event().wait()
        return await super().list(prefix, after=after, limit=limit)


def law(test: Callable[[Unlisted], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a coroutine test on a fresh store, within a bound."""

    def run() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test(Unlisted())

        asyncio.run(bounded())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def of_the_future(service: CommitService, reply: Callable[[CommitEntry], None]) -> CommitEntry:
    return CommitEntry(Transaction([Write(b"a", b"1")], read_version=service.local_version() + 1000), reply)


@law
async def test_a_commit_that_waits_for_a_proof_when_the_service_closes_is_answered_unknown(store: Unlisted) -> None:
    service = await CommitService.lead(store, ServiceOptions(allow_new=True))
    store.listed = asyncio.Event()
    replied: list[CommitEntry] = []
    service.submit([of_the_future(service, replied.append)])
    await store.listed.wait()
    await service.close()
    assert [entry.outcome for entry in replied] == [Unanswered()]
    await service.close()
    assert len(replied) == 1


@law
async def test_a_commit_whose_proof_has_not_begun_when_the_service_closes_is_answered_unknown(store: Unlisted) -> None:
    service = await CommitService.lead(store, ServiceOptions(allow_new=True))
    replied: list[CommitEntry] = []
    service.submit([of_the_future(service, replied.append)])
    service._pump()
    assert not replied
    await service.close()
    assert [entry.outcome for entry in replied] == [Unanswered()]


@law
async def test_commits_that_wait_for_a_proof_are_counted_until_they_are_answered(store: Unlisted) -> None:
    service = await CommitService.lead(store, ServiceOptions(allow_new=True, queue_entries_max=1))
    replied: asyncio.Future[CommitEntry] = asyncio.get_running_loop().create_future()
    service.submit([of_the_future(service, replied.set_result)])
    service._pump()
    assert service.admission() is not None
    await replied
    assert service.admission() is None
    await service.close()


class Shut(Unlisted):
    """A store that takes nothing any more, once it is told so."""

    shut = False

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        return Unknown("a sync failed", final=True) if self.shut else await super().create(key, data)


def test_a_leader_whose_store_takes_nothing_any_more_does_not_wait_for_it() -> None:
    async def scenario() -> None:
        store = Shut()
        service = await CommitService.lead(store, ServiceOptions(allow_new=True))
        replied: asyncio.Future[CommitEntry] = asyncio.get_running_loop().create_future()
        store.shut = True
        service.submit([CommitEntry(Transaction([Write(b"a", b"1")]), replied.set_result)])
        assert (await replied).outcome == Unanswered()
        end = await service.ended
        assert (end.kind, end.detail) == ("gave_up", "the store takes nothing any more: a sync failed")
        assert service.admission() is not None
        await service.close()
        # Nor does who wants to lead there.
        with pytest.raises(Unavailable, match="takes nothing any more"):
            await CommitService.lead(store, ServiceOptions(take_over=True, probe=False))

    async def bounded() -> None:
        async with asyncio.timeout(30):  # half of the time for which a leader waits for a store
            await scenario()

    asyncio.run(bounded())


@law
async def test_a_foreign_name_among_the_batches_is_named_to_who_asks_for_a_proof(store: Unlisted) -> None:
    service = await CommitService.lead(store, ServiceOptions(allow_new=True, request_timeout_ms=1_000.0))
    await store.create("batches/0-notes", b"hello")
    with pytest.raises(Unavailable, match="batches/0-notes"):
        await service.version()
    await service.close()
