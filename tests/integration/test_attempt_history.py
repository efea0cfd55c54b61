"""Laws of the shared look-up: what one scan finds serves everybody, and nobody is told what the scan did not see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from holdfast.commit.format.transaction import Committed, Transaction, Write
from holdfast.commit.reading.status import AttemptHistory
from holdfast.commit.service import CommitEntry, CommitService, ServiceOptions
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.objects.memory import MemoryStore

PER_REIGN = 40


@dataclass
class Counted(MemoryStore):
    """A store that counts reads of whole objects, and can hold them back."""

    reads: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    reading: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__init__()
        self.open.set()

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        if length is None:
            self.reads += 1
            self.reading.set()
            await self.open.wait()
        return await super().read(key, start=start, length=length)


def law(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test()

        asyncio.run(bounded())

    run.__name__ = test.__name__
    return run


def name(number: int) -> str:
    return f"attempt-number-{number:09d}"


async def a_log(store: Counted, reigns: int = 3) -> tuple[CommitService, list[tuple[str, int, int]]]:
    """A log of several reigns; returns its last leader and (request id, read version, version) of every commit."""
    committed: list[tuple[str, int, int]] = []
    rules = PipelineRules(persist=PersistRules(batch_timeout_ms=0.1))
    for reign in range(reigns):
        service = await CommitService.lead(store, ServiceOptions(allow_new=True, take_over=True, rules=rules))
        for i in range(PER_REIGN):
            read_version = service.local_version()
            txn = Transaction([Write(b"k", b"v")], request_id=name(reign * 1000 + i), read_version=read_version)
            done: asyncio.Future[CommitEntry] = asyncio.get_running_loop().create_future()
            service.submit([CommitEntry(txn, done.set_result)])
            outcome = (await done).outcome
            assert isinstance(outcome, Committed)
            committed.append((name(reign * 1000 + i), read_version, outcome.version))
    return service, committed


@law
async def test_every_attempt_is_found_at_its_version_and_no_other_is() -> None:
    store = Counted()
    service, committed = await a_log(store)
    history = AttemptHistory(store, service.claim)
    newest = service.durable_header()
    for request_id, read_version, version in reversed(committed):
        found = await history.find(request_id, read_version, newest)
        assert found.txn is not None
        assert found.txn.version == version
        assert (await history.find(request_id, version, newest)).txn is None
        assert (await history.find(request_id + "-not", read_version, newest)).txn is None


@law
async def test_questions_that_wait_together_share_one_scan() -> None:
    store = Counted()
    service, committed = await a_log(store)
    history = AttemptHistory(store, service.claim)
    newest = service.durable_header()
    store.reads = 0
    found = await asyncio.gather(*(history.find(request_id, read, newest) for request_id, read, _ in committed))
    assert [each.txn.version for each in found if each.txn] == [version for _, _, version in committed]
    objects = len(committed) + 3
    assert store.reads <= 2 * objects + 200, "one scan, what it read ahead, and one read per answer"
    before = store.reads
    assert (await history.find("attempt-that-never-was", committed[0][1], newest)).txn is None
    assert store.reads == before, "what is known is not read again"


@law
async def test_many_attempts_of_one_object_read_it_once() -> None:
    store = Counted()
    service, committed = await a_log(store, reigns=1)
    read_version, waiting = committed[-1][2], 300
    entries: list[CommitEntry] = []
    all_done = asyncio.Event()

    def reply(entry: CommitEntry) -> None:
        entries.append(entry)
        if len(entries) == waiting:
            all_done.set()

    ids = [name(5_000 + number) for number in range(waiting)]
    service.submit([CommitEntry(Transaction([Write(b"k", b"v")], request_id=each, read_version=read_version), reply)
                    for each in ids])  # fmt: skip
    await all_done.wait()
    history = AttemptHistory(store, service.claim)
    newest = service.durable_header()
    await history.find(ids[0], read_version, newest)
    before = store.reads
    found = await asyncio.gather(*(history.find(each, read_version, newest) for each in ids))
    assert [each.txn.request_id for each in found if each.txn] == ids
    assert store.reads - before <= 1, "a client repeats the items of one request: they are of few objects"


@law
async def test_who_gives_up_while_an_object_is_read_costs_the_others_nothing() -> None:
    store = Counted()
    service, committed = await a_log(store, reigns=1)
    history = AttemptHistory(store, service.claim)
    newest = service.durable_header()
    request_id, read_version, version = committed[0]
    await history.find(
        committed[-1][0], read_version, newest
    )  # the scan is over, and what it found is of another object
    store.open.clear()
    store.reading.clear()
    reads = [asyncio.ensure_future(history.find(request_id, read_version, newest)) for _ in range(2)]
    await store.reading.wait()
    reads[0].cancel()
    await asyncio.wait({reads[0]})
    store.open.set()
    found = await reads[1]
    assert found.txn is not None
    assert found.txn.version == version


@law
async def test_a_cancelled_scan_makes_nobody_believe_in_an_absence() -> None:
    store = Counted()
    service, committed = await a_log(store)
    history = AttemptHistory(store, service.claim)
    newest = service.durable_header()
    request_id, read_version, version = committed[-1]
    store.open.clear()
    store.reading.clear()
    scanning = asyncio.ensure_future(history.find(committed[0][0], committed[0][1], newest))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(history.find(request_id, read_version, newest))
    await store.reading.wait()
    scanning.cancel()
    await asyncio.gather(scanning, return_exceptions=True)
    store.open.set()
    found = await waiting
    assert found.txn is not None
    assert found.txn.version == version


@law
async def test_a_question_that_is_given_up_while_another_scans_costs_the_other_nothing() -> None:
    store = Counted()
    service, committed = await a_log(store)
    history = AttemptHistory(store, service.claim)
    newest = service.durable_header()
    request_id, read_version, version = committed[50]
    store.open.clear()
    store.reading.clear()
    scans = asyncio.ensure_future(history.find(request_id, read_version, newest))
    given_up = asyncio.ensure_future(history.find(request_id, read_version, newest))
    await store.reading.wait()
    given_up.cancel()
    await asyncio.wait({given_up})
    store.open.set()
    found = await scans
    assert found.txn is not None
    assert found.txn.version == version


@law
async def test_what_was_forgotten_is_read_again() -> None:
    store = Counted()
    service, committed = await a_log(store)
    history = AttemptHistory(store, service.claim, ids_max=10)
    newest = service.durable_header()
    for request_id, read_version, version in committed + committed[::-1]:
        found = await history.find(request_id, read_version, newest)
        assert found.txn is not None
        assert found.txn.version == version
