"""Laws of a leader's own requests: neither a crowd of readers nor a store that hangs keeps it from its own log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast.commit.format.transaction import Committed, Transaction, Unanswered, Write
from holdfast.commit.service import CommitEntry, CommitService, ServiceOptions
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.commit.subscription import subscribe
from holdfast.errors import Code, Unavailable
from holdfast.objects.memory import MemoryStore
from holdfast.objects.port import CreateAnswer, Listed, Unknown
from holdfast.objects.retrying import ANSWERING, RetryingStore
from holdfast.server import run as serve
from holdfast.server.gateway import Gateway, GatewayLimits
from holdfast.server.health import StoreWatch
from holdfast.server.http.auth import Authenticator
from holdfast.settings import Settings, load_configuration

ID = "request-id-of-twenty-plus"
READERS = 30


class Held(MemoryStore):
    """A store that never answers reads of what is ``held``, nor anything while it is a ``black_hole``."""

    def __init__(self) -> None:
        super().__init__()
        self.held: frozenset[str] = frozenset()
        self.black_hole = asyncio.Event()
        self.healed = asyncio.Event()
        self.answers_lost = 0

    def heal(self) -> None:
        """Answer again, also what was asked meanwhile."""
        self.black_hole.clear()
        self.healed.set()

    async def _answering(self, key: str = "") -> None:
        if self.black_hole.is_set() or key in self.held:
            await self.healed.wait()

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        await self._answering()
        answer = await super().create(key, data)
        if self.answers_lost:
            self.answers_lost -= 1
            return Unknown("lost")
        return answer

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        await self._answering(key)
        return await super().read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
        await self._answering()
        return await super().list(prefix, after=after, limit=limit)


def law(test: Callable[[Held], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a coroutine test on a fresh store, within a bound."""

    def run() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test(Held())

        asyncio.run(bounded())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def settings(**flags: object) -> Settings:
    given = {name.replace("__", "."): value for name, value in {"log__url": "memory:", **flags}.items()}
    return load_configuration(flags=given, environ={}, working_directory=Path("/")).settings


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the condition is the code under test
        await asyncio.sleep(0)


async def commit(service: CommitService, txn: Transaction) -> CommitEntry:
    done: asyncio.Future[CommitEntry] = asyncio.get_running_loop().create_future()
    service.submit([CommitEntry(txn, done.set_result)])
    return await done


async def first_reign(store: Held) -> None:
    options = ServiceOptions(allow_new=True, rules=PipelineRules(persist=PersistRules(batch_timeout_ms=0.1)))
    service = await CommitService.lead(store, options)
    for _ in range(20):
        assert isinstance((await commit(service, Transaction([Write(b"k", b"v")]))).outcome, Committed)
    await service.step_down()
    await service.close()


async def read_all(service: CommitService) -> None:
    async for _ in subscribe(service, after=0):
        pass


async def serving(store: Held, chosen: Settings) -> tuple[serve._Process, Any, CommitService]:
    """A leader as ``holdfast serve`` makes one, and the store as it uses it."""
    process = serve._Process(chosen, serve.Serving(take_over=True), exits=False)
    process._gateway = Gateway(limits=GatewayLimits(), authenticator=Authenticator({}))
    process._stop = asyncio.get_running_loop().create_future()
    budgeted = serve._budgeted(store, chosen)
    service = await process._lead(RetryingStore(budgeted, ANSWERING, metrics=budgeted.metrics), budgeted.own)
    assert service is not None
    return process, budgeted, service


@law
async def test_readers_of_history_do_not_keep_a_leader_from_proving_that_it_leads(store: Held) -> None:
    await first_reign(store)
    _, budgeted, service = await serving(store, settings())
    # The history is slow without end: its readers hold every connection that is theirs, and more of them wait.
    store.held = frozenset(row.key for row in await store.list("batches/"))
    readers = [asyncio.ensure_future(read_all(service)) for _ in range(READERS)]
    await until(lambda: budgeted.metrics.read.waiting > 0)
    assert await service.version() == service.local_version()
    # A lost answer is read back, too.
    store.answers_lost = 1
    entry = await commit(service, Transaction([Write(b"k", b"v")]))
    assert isinstance(entry.outcome, Committed)
    assert service.pipeline.persist.counters.own_successes == 1
    assert not any(reader.done() for reader in readers)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    await service.close()


@pytest.mark.parametrize("pool", [1, 2, 10, 50, 100, 200])
def test_every_part_of_a_pool_has_a_connection_and_batches_have_most_of_it(pool: int) -> None:
    async def scenario() -> None:
        store = serve._budgeted(
            MemoryStore(), settings(persist__target_pool_size=pool, persist__max_in_flight_requests=max(1, pool // 2))
        )
        creates, own, others = (part._value for part in (store._creates, store.own._others, store._others))
        assert min(creates, own, others) >= 1
        assert store.own._others is not store._others
        assert creates >= pool // 2
        assert creates + own + others <= max(pool, 3)

    asyncio.run(scenario())


@law
async def test_a_store_that_hangs_is_seen_by_whoever_looks_at_its_health(store: Held) -> None:
    await first_reign(store)
    chosen = settings(persist__request_timeout_ms=5, persist__retry_base_delay_ms=1, persist__retry_max_delay_ms=1)
    _, budgeted, service = await serving(store, chosen)
    assert budgeted.metrics.is_healthy
    store.black_hole.set()
    waiting = asyncio.ensure_future(commit(service, Transaction([Write(b"k", b"v")])))
    await until(lambda: budgeted.metrics.create.outcomes["unknown"] >= 3)
    assert not budgeted.metrics.is_healthy
    store.heal()
    assert isinstance((await waiting).outcome, Committed)
    assert await service.version() == service.local_version()
    assert budgeted.metrics.is_healthy
    await service.close()


@law
async def test_an_idle_leader_whose_store_hangs_is_not_ready_before_its_first_request_has_failed(store: Held) -> None:
    await first_reign(store)
    _, budgeted, service = await serving(store, settings())
    front = Gateway(limits=GatewayLimits(), authenticator=Authenticator({}))
    front.lead(service)
    watch = StoreWatch(front, stalled_ms_max=20)
    watch.store = budgeted.metrics
    assert watch.problem() is None
    store.black_hole.set()
    asking = asyncio.ensure_future(service.version())
    await until(lambda: watch.problem() is not None)
    problem = watch.problem()
    assert problem is not None
    assert problem.code is Code.STORE_UNAVAILABLE
    assert budgeted.metrics.is_healthy
    store.heal()
    assert await asking == service.local_version()
    assert watch.problem() is None
    await service.close()


@law
async def test_a_status_that_needs_a_log_that_hangs_is_unavailable(store: Held) -> None:
    await first_reign(store)
    _, budgeted, service = await serving(store, settings(persist__request_timeout_ms=5))
    store.held = frozenset(row.key for row in await store.list("batches/"))
    with pytest.raises(Unavailable):
        await service.status(ID, 0)
    assert budgeted.metrics.read.outcomes["unavailable"] >= 2
    old = Transaction([Write(b"k", b"v")], request_id=ID, read_version=0)
    assert (await commit(service, old)).outcome == Unanswered()
    await service.close()


@law
async def test_a_leader_on_a_bare_store_bounds_its_questions_by_itself(store: Held) -> None:
    await first_reign(store)
    service = await CommitService.lead(store, ServiceOptions(take_over=True, request_timeout_ms=5))
    store.held = frozenset(row.key for row in await store.list("batches/"))
    with pytest.raises(Unavailable):
        await service.status(ID, 0)
    await service.close()
