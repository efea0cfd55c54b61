"""The service of the stores: when it answers, what it refuses, what it does by itself, and what a start finds."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.definitions import define

from holdfast.errors import (
    Closed,
    Code,
    CorruptData,
    HoldfastError,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from holdfast.queue.files.local import LocalFiles
from holdfast.stores import checkpoints as checkpoints_module
from holdfast.stores import checkpoints as compaction_module
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.group_commit import SINGLE_GROUPS
from holdfast.stores.machine.state import State
from holdfast.stores.repair import backup as backup_module
from holdfast.stores.repair.backup import MANIFEST_NAME, restore, verify
from holdfast.stores.service import StoreService
from holdfast.stores.storage import disk_limit as disk_limit_module
from holdfast.stores.storage.disk_limit import DiskUse
from holdfast.stores.storage.index import Index, IndexChanges
from holdfast.stores.storage.log import MessageLog
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.commands import (
    Acknowledge,
    Acknowledged,
    Attach,
    Deliver,
    Delivered,
    Done,
    Drop,
    MapChange,
    MapChanged,
    Publish,
    Published,
    Purge,
    Result,
)
from holdfast.stores.values.effects import Applied, Effect
from holdfast.wire.parts import Message, Origin

PAGE_BYTES = 65_536
WORK = {"work": {"type": "shared", "prefetch": 10_000}}
Check = Callable[[StoreService], Awaitable[None]]


def document(*, cluster: dict[str, object] | None = None, **stores: object) -> bytes:
    return json.dumps({"cluster": cluster or {}, "stores": stores}).encode()


@asynccontextmanager
async def opened(path: Path, definition: bytes | None = None) -> AsyncGenerator[StoreService]:
    service = await StoreService.open(str(path), page_bytes=PAGE_BYTES)
    try:
        if definition is not None:
            await service.submit(define(definition, service.state))
        yield service
    finally:
        await service.close()


def run(path: Path, check: Check, definition: bytes | None = None) -> None:
    async def main() -> None:
        async with opened(path, definition) as service:
            await asyncio.wait_for(check(service), 60)

    asyncio.run(main())


async def publish(service: StoreService, count: int, *, store: str = "orders", size: int = 100) -> Published:
    found = await service.submit(Publish(0, store, "", [Message(bytes(size)) for _ in range(count)]))
    assert isinstance(found, Published)
    return found


async def deliver(service: StoreService, count: int, *, store: str = "orders", durable: str = "work") -> list[int]:
    found = await service.submit(Deliver(0, store, durable, "s", count))
    assert isinstance(found, Delivered)
    return [one.seq for one in service.messages(store, found.runs)]


async def acknowledge(service: StoreService, *ranges: tuple[int, int], store: str = "orders") -> None:
    found = await service.submit(Acknowledge(0, store, "work", "s", list(ranges)))
    assert isinstance(found, Acknowledged)
    assert not found.stale


class Slow:
    """A log whose syncs wait until they are let go, or fail."""

    def __init__(self, storage: Storage) -> None:
        self.sync = storage.log.sync
        self.loop = asyncio.get_running_loop()
        self.arrived = asyncio.Event()
        self.release = asyncio.Event()
        self.error: BaseException | None = None
        storage.log.sync = self.wait  # type: ignore[method-assign]

    def wait(self, *, mark: bool = True) -> None:
        self.loop.call_soon_threadsafe(self.arrived.set)
        asyncio.run_coroutine_threadsafe(self.release.wait(), self.loop).result(30)
        if self.error is not None:
            raise self.error
        self.sync(mark=mark)


# ---- answers --------------------------------------------------------------------------------------------------------


def test_nobody_is_asked_for_deliveries_while_who_publishes_is_still_at_it(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        at_it: list[bool] = [False]
        asked: list[bool] = []
        service.observer.ready = lambda _store, _durable: asked.append(at_it[0])  # type: ignore[method-assign]

        async def publish_alone() -> None:
            at_it[0] = True
            answer = service.submit(Publish(0, "orders", "", [Message(b"m")]))
            at_it[0] = False
            await answer
            await service._groups.drain()

        for _ in range(SINGLE_GROUPS + 1):  # so that the next ones are expected to be alone, too
            await publish_alone()
        assert asked == []
        await service.submit(Attach(0, "orders", "work", "s"))
        await service._groups.drain()
        asked.clear()
        for _ in range(SINGLE_GROUPS + 1):
            await publish_alone()
        assert asked == [False] * (SINGLE_GROUPS + 1)

    run(tmp_path, check, document(orders={"durables": WORK}))


def test_an_answer_comes_after_its_sync_and_so_does_a_refusal_that_rests_on_it(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        slow = Slow(service._storage)
        told: list[str] = []
        first = service.submit(MapChange(0, "orders", "m", [("k", b"1", 0)]))
        first.add_done_callback(lambda _: told.append("changed"))
        await slow.arrived.wait()
        second = service.submit(MapChange(0, "orders", "m", [("k", b"2", 0)]))
        second.add_done_callback(lambda _: told.append("refused"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert told == []
        slow.release.set()
        assert isinstance(await first, MapChanged)
        with pytest.raises(HoldfastError) as refusal:
            await second
        assert refusal.value.code is Code.REVISION_MISMATCH
        assert told == ["changed", "refused"]

    run(tmp_path, check, document(orders={"durables": {"m": {"type": "map"}}}))


def test_a_publication_and_its_delivery_share_one_sync(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await service.submit(Attach(0, "orders", "work", "s"))
        syncs = service._storage.log.queue.durable_seq
        delivered: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

        def done(result: Result | HoldfastError) -> None:
            assert isinstance(result, Delivered)
            delivered.set_result([one.seq for one in service.messages("orders", result.runs)])

        service.observer.ready = lambda store, durable: service.submit_nowait(Deliver(0, store, durable, "s", 10), done)  # type: ignore[method-assign]
        groups = service._groups.groups
        published = asyncio.ensure_future(publish(service, 3))
        assert await delivered == [1, 2, 3]
        assert (await published).last_seq == 3
        assert service._groups.groups == groups + 1
        assert service._storage.log.durable == syncs + 2

    run(tmp_path, check, document(orders={"durables": WORK}))


def test_after_a_failed_sync_everyone_is_told_and_nothing_more_is_accepted(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await publish(service, 1)
        slow = Slow(service._storage)
        failures: list[BaseException] = []
        service.observer.fail = failures.append  # type: ignore[method-assign]
        waiting = [asyncio.ensure_future(publish(service, 1)) for _ in range(3)]
        await slow.arrived.wait()
        late = asyncio.ensure_future(publish(service, 1))
        refused = asyncio.ensure_future(publish(service, 1, store="nowhere"))
        await asyncio.sleep(0)
        slow.error = Closed("a sync failed", code=Code.SYNC_FAILED)
        slow.release.set()
        for answer in [*waiting, late]:
            with pytest.raises(OutcomeUnknown) as unknown:
                await answer
            assert unknown.value.fields == {"cause": "a sync failed", "cause_code": "sync_failed"}
        for answer in [refused, asyncio.ensure_future(publish(service, 1))]:
            with pytest.raises(Closed) as failure:
                await answer
            assert failure.value.code is Code.CLOSED
            assert failure.value.fields["cause_code"] == "sync_failed"
        assert failures == [slow.error]
        with pytest.raises(Closed):
            await service.checkpoint()
        with pytest.raises(Closed):
            await service.wait_until_safe()

    run(tmp_path, check, document(orders={"durables": WORK}))
    assert verify(str(tmp_path)).stores == 1


def test_after_a_failed_sync_by_the_loop_everyone_is_told_and_nothing_more_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(service: StoreService) -> None:
        def fail(*_: object) -> None:
            writers.append(threading.current_thread())
            raise OSError(errno.EIO, "the disk is gone")

        await publish(service, 1)
        groups = service._groups
        groups._single_groups = groups._fast_groups = 1_000
        writers: list[threading.Thread] = []
        monkeypatch.setattr(LocalFiles, "sync_data", fail)
        for expected in (OutcomeUnknown, Closed):
            with pytest.raises(expected) as failure:
                await publish(service, 1)
            assert failure.value.fields["cause_code"] == "sync_failed"
        assert writers == [threading.main_thread()], "a sync that failed is not tried again"
        with pytest.raises(Closed, match="a sync failed"):
            await service.close()

    run(tmp_path, check, document(orders={"durables": WORK}))
    monkeypatch.undo()
    assert verify(str(tmp_path)).stores == 1


def test_what_was_applied_is_never_called_refused_though_a_full_disk_kept_the_rest_of_its_group(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        def append(frames: Sequence[bytes]) -> None:
            real(frames[:1])
            raise Unavailable("the disk is full", code=Code.DISK_FULL, appended=1)

        log = service._storage.log
        real, log.append = log.append, append  # type: ignore[method-assign]
        for answer in [asyncio.ensure_future(publish(service, 1)) for _ in range(3)]:
            with pytest.raises(OutcomeUnknown, match="cause_code=disk_full"):
                await answer

    run(tmp_path, check, document(orders={"durables": WORK}))

    async def again(service: StoreService) -> None:
        await service.submit(Attach(0, "orders", "work", "s"))
        assert await deliver(service, 9) == [1], "the first of them is there"

    run(tmp_path, again)


def test_what_is_being_written_while_another_command_ends_the_service_is_not_called_refused(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        slow = Slow(service._storage)
        waiting = asyncio.ensure_future(publish(service, 1))
        await slow.arrived.wait()

        def damaged(*_: object) -> None:
            raise CorruptData("damaged")

        service.state.apply = damaged  # type: ignore[method-assign, assignment]
        with pytest.raises(CorruptData):
            await publish(service, 1)
        slow.release.set()
        with pytest.raises(OutcomeUnknown, match="cause=damaged"):
            await waiting

    run(tmp_path, check, document(orders={"durables": WORK}))

    async def again(service: StoreService) -> None:
        await service.submit(Attach(0, "orders", "work", "s"))
        assert await deliver(service, 9) == [1]

    run(tmp_path, again)


def test_damage_found_while_a_command_is_carried_out_is_no_refusal(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        failures: list[BaseException] = []
        service.observer.fail = failures.append  # type: ignore[method-assign]

        def damaged(*_: object) -> None:
            raise CorruptData("damaged")

        service.state.apply = damaged  # type: ignore[method-assign, assignment]
        with pytest.raises(CorruptData):
            await publish(service, 1)
        assert len(failures) == 1

    run(tmp_path, check, document(orders={"durables": WORK}))


def test_time_never_goes_back(tmp_path: Path) -> None:
    times = iter([5_000, 4_000, 3_000, 6_000])  # the definition is preceded by the history of its numbers
    last = 6_000

    async def main() -> None:
        def clock() -> int:
            return next(times, last)

        service = await StoreService.open(str(tmp_path), clock=clock)
        await service.submit(define(document(orders={"durables": WORK})))
        await publish(service, 1)
        first = service._storage.messages.message("orders", 1)
        assert first is not None
        assert first[1] == 5_000
        await service.close()

    asyncio.run(main())


def test_without_sync_an_answer_waits_for_the_operating_system_alone(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        slow = Slow(service._storage)
        assert (await publish(service, 3)).last_seq == 3
        assert service._storage.log.last > service._storage.log.durable
        assert not slow.arrived.is_set()
        slow.release.set()

    run(tmp_path, check, document(cluster={"persistence": "async"}, orders={"durables": WORK}))


def test_what_was_published_before_a_definition_without_sync_is_synced(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        slow = Slow(service._storage)
        definition = document(cluster={"persistence": "async"}, orders={"durables": WORK})
        published = service.submit(Publish(0, "orders", "", [Message(b"x")]))
        defined = service.submit(define(definition, service.state))
        # Both are in one group, which does not come to an end before its sync was asked for and let go.
        await slow.arrived.wait()
        assert not published.done()
        slow.release.set()
        await published
        await defined
        slow.release.clear()
        assert (await publish(service, 1)).last_seq == 2, "and from then on nobody waits for a sync"
        slow.release.set()

    run(tmp_path, check, document(orders={"durables": WORK}))


def test_an_answer_that_raises_ends_the_service_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        failures: list[BaseException] = []
        service.observer.fail = failures.append  # type: ignore[method-assign]

        def broken(_: Result | HoldfastError) -> None:
            raise RuntimeError("a bug")

        service.submit_nowait(Publish(0, "orders", "", [Message(b"x")]), broken)
        with pytest.raises(OutcomeUnknown, match="cause=a bug"):
            await publish(service, 1)
        assert [str(failure) for failure in failures] == ["a bug"]

    run(tmp_path, check, document(orders={"durables": WORK}))


@pytest.mark.parametrize("replicated", [True, False])
def test_who_raises_before_a_group_is_taken_ends_the_service_and_keeps_nobody_waiting(
    tmp_path: Path, replicated: bool
) -> None:
    async def check(service: StoreService) -> None:
        failures: list[BaseException] = []
        service.observer.fail = failures.append  # type: ignore[method-assign]
        await service.submit(Attach(0, "orders", "work", "s"))

        def broken(_store: str, _durable: str) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        service.observer.ready = broken  # type: ignore[method-assign]
        for kind in (OutcomeUnknown, Closed):
            with pytest.raises(kind, match="cause=database or disk is full"):
                await publish(service, 1)
        assert [str(failure) for failure in failures] == ["database or disk is full"]

    run(tmp_path, check, document(orders={"replicated": replicated, "durables": WORK}))


def test_a_checkpoint_that_cannot_be_let_go_ends_the_service_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_storage: Storage) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async def check(service: StoreService) -> None:
        monkeypatch.setattr(Storage, "end_checkpoint", broken)
        await publish(service, 1)
        with pytest.raises(Closed):
            await service.checkpoint()
        with pytest.raises(HoldfastError, match="have failed"):
            await publish(service, 1)

    run(tmp_path, check, document(orders={"durables": WORK}))


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def test_the_index_is_never_ahead_of_the_log(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        storage = service._storage
        await publish(service, 1)
        await service.checkpoint()
        before = storage.index.load()
        await publish(service, 1)
        slow = Slow(storage)
        slow.error = Closed("a sync failed", code=Code.SYNC_FAILED)
        checkpoint = asyncio.ensure_future(service.checkpoint())
        await slow.arrived.wait()
        assert storage.index.load() == before
        slow.release.set()
        with pytest.raises(Closed):
            await checkpoint
        assert storage.index.load() == before
        with pytest.raises(Closed):
            await publish(service, 1)

    run(tmp_path, check, document(orders={"durables": WORK}))


def test_a_checkpoint_that_could_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints_module, "RETRY_S", 0.001)
    write, failing = Index.write, [3]

    def sometimes(index: Index, checkpoint: IndexChanges) -> int:
        if failing[0]:
            failing[0] -= 1
            raise sqlite3.OperationalError("database or disk is full")
        return write(index, checkpoint)

    async def check(service: StoreService) -> None:
        monkeypatch.setattr(Index, "write", sometimes)
        await publish(service, 1)
        with pytest.raises(sqlite3.OperationalError):
            await service.checkpoint()
        assert (await publish(service, 1)).last_seq == 2, "clients go on meanwhile"
        await until(service, lambda: service._checkpoints.count == 1)
        assert service._checkpoints.failure is None
        await service.checkpoint()
        loaded = service._storage.index.load()
        assert loaded is not None
        assert loaded.frame == service._storage.log.last

    run(tmp_path, check, document(orders={"durables": WORK}))


def test_everyone_waits_for_a_checkpoint_that_falls_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints_module, "LOG_BYTES", 10_000)
    write, go_on = Index.write, threading.Event()

    def late(index: Index, checkpoint: IndexChanges) -> int:
        assert go_on.wait(30)
        return write(index, checkpoint)

    async def check(service: StoreService) -> None:
        monkeypatch.setattr(Index, "write", late)
        answers: list[asyncio.Future[Published]] = []
        while not answers or answers[-1].done():
            answers.append(asyncio.ensure_future(publish(service, 1, size=1_000)))
            await answered_or_held(service, answers[-1])
            assert len(answers) < 100
        assert service._storage.log.last < len(answers) + 5
        go_on.set()
        assert (await answers[-1]).last_seq == len(answers)

    run(tmp_path, check, document(orders={"durables": WORK}))


async def answered_or_held(service: StoreService, answer: asyncio.Future[Published]) -> None:
    for _ in range(30_000):
        if answer.done() or service._groups._parked:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("neither an answer nor a reason to wait")


# ---- starts ---------------------------------------------------------------------------------------------------------


async def some_work(service: StoreService) -> None:
    await service.submit(Attach(0, "orders", "work", "s"))
    for _ in range(20):
        await publish(service, 50, size=300)
        seqs = await deliver(service, 40)
        await acknowledge(service, (seqs[0], seqs[-1]))
        await service.submit(MapChange(0, "maps", "m", [(str(seqs[0] % 7), b"v", None), ("gone", None, None)]))


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_a_start_finds_the_state_that_was_there(tmp_path: Path, checkpoints: int) -> None:
    definition = document(orders={"durables": WORK}, maps={"durables": {"m": {"type": "map"}}})
    states: list[bytes] = []

    async def check(service: StoreService) -> None:
        await some_work(service)
        for _ in range(checkpoints):
            await service.checkpoint()
            await some_work(service)
        service.state.check()
        states.append(service.state.snapshot())
        # As after a kill: what the operating system has of the files, and no clean end.
        shutil.copytree(service.directory, tmp_path / "killed", ignore=shutil.ignore_patterns("scratch*"))

    run(tmp_path / "stores", check, definition)

    async def look(service: StoreService) -> None:
        service.state.check()
        states.append(service.state.snapshot())
        assert len(await deliver(service, 10_000)) == len(set(range(1, 1_001 + 1_000 * checkpoints))) - 800 * (
            1 + checkpoints
        )

    run(tmp_path / "stores", look)
    run(tmp_path / "killed", look)
    assert states[0] == states[1] == states[2]


def test_a_start_after_a_clean_end_applies_nothing(tmp_path: Path) -> None:
    run(tmp_path, some_work, document(orders={"durables": WORK}, maps={"durables": {"m": {"type": "map"}}}))
    storage = Storage.open(str(tmp_path), page_bytes=PAGE_BYTES)
    assert storage.log_bytes == 0
    assert storage.log.last > 50
    storage.close()


def test_an_index_without_its_log_is_refused(tmp_path: Path) -> None:
    run(tmp_path, some_work, document(orders={"durables": WORK}, maps={"durables": {"m": {"type": "map"}}}))
    for page in tmp_path.glob("*.page"):
        page.unlink()
    for other in (*tmp_path.glob("*Meta"), *tmp_path.glob("*.idx")):
        other.unlink()
    with pytest.raises(CorruptData, match="do not belong together"):
        Storage.open(str(tmp_path))


def test_a_log_without_its_index_is_applied_from_its_first_frame(tmp_path: Path) -> None:
    run(tmp_path, some_work, document(orders={"durables": WORK}, maps={"durables": {"m": {"type": "map"}}}))
    before = Storage.open(str(tmp_path))
    expected = before.state.snapshot()
    before.close()
    for name in tmp_path.glob("index.sqlite*"):
        name.unlink()
    storage = Storage.open(str(tmp_path))
    assert storage.state.snapshot() == expected
    storage.close()


def test_a_record_that_gives_another_result_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, some_work, document(orders={"durables": WORK}, maps={"durables": {"m": {"type": "map"}}}))
    for name in tmp_path.glob("index.sqlite*"):
        name.unlink()
    apply = State.apply

    def other(state: State, command: object) -> object:
        applied = apply(state, command)  # type: ignore[arg-type]
        if isinstance(applied.result, Published):
            return Applied(Published(1, 1, 1, 1), applied.effects, applied.changed)
        return applied

    monkeypatch.setattr(State, "apply", other)
    with pytest.raises(CorruptData, match="another result"):
        Storage.open(str(tmp_path))


# ---- by itself ------------------------------------------------------------------------------------------------------


async def until(service: StoreService, condition: Callable[[], bool]) -> None:
    """Wait for what the service does by itself, turn by turn of its groups."""
    while not condition():
        await service._groups.turn()
        await asyncio.sleep(0.001)


def test_what_is_not_acknowledged_in_time_comes_again(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        ready = asyncio.Event()
        await service.submit(Attach(0, "orders", "work", "s"))
        await publish(service, 1)
        assert await deliver(service, 1) == [1]
        service.observer.ready = lambda *_: ready.set()  # type: ignore[method-assign]
        await ready.wait()
        found = await service.submit(Deliver(0, "orders", "work", "s", 1))
        assert found == Delivered([(1, 1, 2)])

    run(tmp_path, check, document(orders={"durables": {"work": {"type": "shared", "ack_wait": 0.02}}}))


def dead_letters(orders: dict[str, object], dead: dict[str, object]) -> bytes:
    work = {"type": "shared", "max_delivery": 1, "dead_letter_store": "dead"}
    return document(
        orders={**orders, "durables": {"work": work}}, dead={**dead, "durables": {"all": {"type": "shared"}}}
    )


@pytest.mark.parametrize("volatile", ["neither", "source", "both"])
def test_a_message_that_nobody_can_take_goes_to_the_dead_letters(tmp_path: Path, volatile: str) -> None:
    memory: dict[str, object] = {"replicated": False}

    async def check(service: StoreService) -> None:
        await service.submit(Attach(0, "orders", "work", "s"))
        await service.submit(Publish(0, "orders", "", [Message(b"bad", {"kind": "a"}, "key")]))
        assert await deliver(service, 1) == [1]
        await service.submit(Acknowledge(0, "orders", "work", "s", reject=[1]))
        await until(service, lambda: service.state.stores["dead"].counts.live == 1)
        await until(service, lambda: service.state.stores["orders"].counts.live == 0)
        await service.submit(Attach(0, "dead", "all", "t"))
        found = await service.submit(Deliver(0, "dead", "all", "t", 1))
        assert isinstance(found, Delivered)
        (letter,) = service.messages("dead", found.runs)
        assert (letter.body, letter.key) == (b"bad", "key")
        assert (letter.fields, letter.origin) == ({"kind": "a"}, Origin("orders", "work", 1, "rejected", 1))

    source = memory if volatile in ("source", "both") else {}
    target = memory if volatile == "both" else {}  # a replicated store must not lose its dead letters: that is refused
    run(tmp_path, check, dead_letters(source, target))
    storage = Storage.open(str(tmp_path))
    storage.state.check()
    assert storage.state.stores["dead"].counts.live == (0 if volatile == "both" else 1)
    storage.close()


def test_a_dead_letter_that_its_store_refuses_stays_where_it_is(tmp_path: Path) -> None:
    """From a store in memory to one in the log it takes two commands, and the second only where the first was heard."""

    async def check(service: StoreService) -> None:
        await publish(service, 1, store="dead")
        await service.submit(Attach(0, "orders", "work", "s"))
        await publish(service, 1)
        await deliver(service, 1)
        await service.submit(Acknowledge(0, "orders", "work", "s", reject=[1]))
        for _ in range(3):
            await service.submit(Attach(0, "dead", "all", "t"))  # behind what was submitted for the dying
        durable = service.state.stores["orders"].durables["work"]
        assert isinstance(durable, Consumption)
        assert (list(durable.dying), service.state.stores["dead"].counts.live) == ([1], 1)
        assert service.state.stores["orders"].counts.live == 1

    run(tmp_path, check, dead_letters({"replicated": False}, {"message_limit": 1}))


def test_a_message_that_was_dying_when_the_process_ended_is_buried_after_the_start(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await service.submit(Attach(0, "orders", "work", "s"))
        await publish(service, 1)
        await deliver(service, 1)
        service._bury = lambda _: None  # type: ignore[method-assign]  # the process ends before it comes to that
        await service.submit(Acknowledge(0, "orders", "work", "s", reject=[1]))

    async def look(service: StoreService) -> None:
        await until(service, lambda: service.state.stores["dead"].counts.live == 1)
        assert service.state.stores["orders"].counts.live == 0

    run(tmp_path, check, dead_letters({}, {}))
    run(tmp_path, look)


def test_effects_come_when_their_command_is_safe(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        effects: list[Effect] = []
        service.observer.carry_out = effects.append  # type: ignore[method-assign]
        slow = Slow(service._storage)
        gone = service.submit(define(document(), service.state))
        await slow.arrived.wait()
        assert effects == []
        slow.release.set()
        assert await gone == Done()
        assert [getattr(effect, "kind", "") for effect in effects] == ["durable_deleted"]

    run(tmp_path, check, document(orders={"durables": WORK}))


# ---- stores in memory -----------------------------------------------------------------------------------------------


def test_a_store_that_is_not_replicated_is_answered_without_the_log_and_empty_after_a_start(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await publish(service, 1)
        frames = service._storage.log.last
        await service.submit(Attach(0, "fast", "work", "s"))
        assert (await publish(service, 2_000, store="fast")).last_seq == 2_000
        assert await deliver(service, 3, store="fast") == [1, 2, 3]
        await acknowledge(service, (1, 2), store="fast")
        with pytest.raises(NotFound):
            await service.submit(Drop(0, "fast", "work", 2))
        assert service._storage.log.last == frames
        service.state.check()

    async def look(service: StoreService) -> None:
        service.state.check()
        assert service.state.stores["fast"].counts.next_seq == 1
        assert service.state.stores["orders"].counts.next_seq == 2
        assert (await publish(service, 1, store="fast")).last_seq == 1

    run(tmp_path, check, document(orders={"durables": WORK}, fast={"replicated": False, "durables": WORK}))
    run(tmp_path, look)


def test_without_persistence_the_definition_stays_and_the_messages_do_not(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        assert (await publish(service, 5)).last_seq == 5
        with pytest.raises(InvalidRequest, match="persistence"):
            await service.submit(define(document(orders={"durables": WORK}), service.state))

    async def look(service: StoreService) -> None:
        assert service.state.stores["orders"].counts.next_seq == 1

    run(tmp_path, check, document(cluster={"persistence": "none"}, orders={"durables": WORK}))
    run(tmp_path, look)


@pytest.mark.parametrize(
    ("cluster", "store", "durable", "swapped"),
    [
        ({}, {}, {}, 40),
        ({"swap": False}, {}, {}, 0),
        ({}, {"swap_bytelimit": -1}, {}, 0),
        ({}, {"swap_bytelimit": 2_000}, {}, 20),
        ({}, {"swap_bytelimit": -1}, {"swap_bytelimit": 1_000}, 30),
        ({}, {"swap_bytelimit": 2_000}, {"swap_bytelimit": 1_000}, 30),
    ],
)
def test_bodies_above_a_limit_are_swapped_and_read_again(
    tmp_path: Path, cluster: dict[str, object], store: dict[str, object], durable: dict[str, object], swapped: int
) -> None:
    async def check(service: StoreService) -> None:
        await service.submit(Attach(0, "fast", "work", "s"))
        for number in range(40):
            await service.submit(Publish(0, "fast", "", [Message(b"%100d" % number)]))
        volatile = service._storage.volatile
        assert volatile.swapped("fast") == (swapped, 100 * swapped)
        found = await service.submit(Deliver(0, "fast", "work", "s", 100))
        assert isinstance(found, Delivered)
        assert [int(one.body) for one in service.messages("fast", found.runs)] == list(range(40))
        await service.submit(Purge(0, "fast", "work"))
        assert volatile.swapped("fast") == (0, 0)
        assert service._storage.swap.bodies == 0

    work = {"work": {"type": "shared", **durable}}
    run(tmp_path, check, document(cluster=cluster, fast={"replicated": False, "durables": work, **store}))
    assert not list(tmp_path.glob("swap*"))


@pytest.mark.parametrize("kind", ["standard", "shared", "last_value", "map"])
@pytest.mark.parametrize("of_store", [True, False])
def test_the_batch_that_is_published_counts_towards_a_swap_limit(tmp_path: Path, kind: str, of_store: bool) -> None:
    async def check(service: StoreService) -> None:
        volatile = service._storage.volatile
        for at, body in enumerate([bytes(40_000), bytes(300_000)]):
            if kind == "map":
                await service.submit(MapChange(0, "fast", "work", [(f"k{at}", body, None)]))
            else:
                await service.submit(Publish(0, "fast", "", [Message(body, key=f"k{at}")]))
            assert volatile.swapped("fast")[0] == at

    limit, other = {"swap_bytelimit": "50k"}, {"swap_bytelimit": -1}
    store, durable = (limit, other) if of_store else (other, limit)
    work = {"work": {"type": kind, **durable}}
    run(tmp_path, check, document(fast={"replicated": False, "durables": work, **store}))


# ---- the disk -------------------------------------------------------------------------------------------------------


def test_a_disk_above_its_limit_refuses_publishers_alone_and_recovers_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(service: StoreService) -> None:
        now_ms = [10_000_000_000_000]
        service._clock = lambda: now_ms[0]
        used = [96]
        monkeypatch.setattr(disk_limit_module, "disk_use", lambda _: DiskUse(used[0], 100))
        await service.submit(Attach(0, "orders", "work", "s"))
        used[0] = 95
        await publish(service, 2)
        assert await deliver(service, 1) == [1]
        used[0] = 96
        now_ms[0] += 1_000
        for refused in (
            Publish(0, "orders", "", [Message(b"x")]),
            MapChange(0, "orders", "m", [("k", b"v", None)]),
        ):
            with pytest.raises(Unavailable) as error:
                await service.submit(refused)
            assert error.value.code is Code.DISK_LIMIT
            assert error.value.fields == {"used_bytes": 96, "capacity_bytes": 100, "max_disk_fraction": 0.95}
        await acknowledge(service, (1, 1))
        await service.submit(MapChange(0, "orders", "m", [("k", None, None)]))
        assert (await publish(service, 1, store="fast")).last_seq == 1, "a store in memory takes nothing of the disk"
        used[0] = 50
        now_ms[0] += 1_000
        assert (await publish(service, 1)).last_seq >= 3
        used[0] = 100
        now_ms[0] += 1_000
        off = document(
            cluster={"max_disk_fraction": 0},
            orders={"durables": {**WORK, "m": {"type": "map"}}},
            fast={"replicated": False, "durables": WORK},
        )
        await service.submit(define(off, service.state))
        await publish(service, 1)

    definition = document(
        orders={"durables": {**WORK, "m": {"type": "map"}}}, fast={"replicated": False, "durables": WORK}
    )
    run(tmp_path, check, definition)


# ---- compaction and backup ------------------------------------------------------------------------------------------


def test_compaction_gives_space_back_while_clients_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_module, "STEP_BYTES", 4_096)

    async def check(service: StoreService) -> None:
        service.compaction.automatic = False
        await service.submit(Attach(0, "orders", "work", "s"))
        for _ in range(100):
            await publish(service, 10, size=1_000)
        seqs = await deliver(service, 1_000)
        await acknowledge(service, *[(seq, seq) for seq in seqs if seq % 10])
        before = service.compaction.space()
        compacting = asyncio.ensure_future(service.compaction.now())
        published = [await publish(service, 1, size=10) for _ in range(30)]
        after = await compacting
        assert published[-1].last_seq == 1_030
        assert after.allocated < before.allocated / 3
        assert after.ratio > before.ratio
        left = await deliver(service, 100)
        assert left == list(range(1_001, 1_031))
        kept = [one.seq for one in service._storage.messages.read("orders", 1, 1_000)]
        assert kept == [seq for seq in seqs if not seq % 10]
        runs = [(seq, seq, 1) for seq in kept]
        assert [one.body for one in service.messages("orders", runs)] == [bytes(1_000)] * 100
        service.state.check()

    run(tmp_path, check, document(orders={"durables": WORK}))
    assert verify(str(tmp_path)).messages == 130


def test_compaction_begins_by_itself_below_the_ratio(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await service.submit(Attach(0, "orders", "work", "s"))
        for _ in range(100):
            await publish(service, 10, size=1_000)
        seqs = await deliver(service, 1_000)
        await acknowledge(service, (2, seqs[-1]))
        pages = service.compaction.space().pages
        await service.checkpoint()
        await until(service, lambda: service.compaction.runs > 0 and service.compaction._task is None)
        assert service.compaction.space().pages < pages / 3

    run(tmp_path, check, document(orders={"durables": WORK}))
    assert verify(str(tmp_path)).messages == 1


def test_a_backup_taken_under_load_is_restored_with_everything_answered_before_it(tmp_path: Path) -> None:
    states: list[bytes] = []

    async def check(service: StoreService) -> None:
        await some_work(service)
        answered = service.state.stores["orders"].counts.next_seq - 1
        copying = asyncio.ensure_future(service.copy_files(str(tmp_path / "copy")))
        while not copying.done():
            await publish(service, 5)
        manifest, _ = await copying
        assert manifest.frame > 0
        states.append(b"%d" % answered)
        with pytest.raises(InvalidRequest, match="files already"):
            await service.copy_files(str(tmp_path / "copy"))

    run(tmp_path / "stores", check, document(orders={"durables": WORK}, maps={"durables": {"m": {"type": "map"}}}))
    assert verify(str(tmp_path / "copy")).messages >= 200
    restore(str(tmp_path / "copy"), str(tmp_path / "again"))

    async def look(service: StoreService) -> None:
        service.state.check()
        assert service.state.stores["orders"].counts.next_seq > int(states[0])
        assert len(await deliver(service, 10_000)) >= 200

    run(tmp_path / "again", look)


def test_a_backup_under_which_pages_go_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_to = Index.copy_to

    async def check(service: StoreService) -> None:
        for _ in range(5):
            await publish(service, 1_000)
        log = service._storage.log

        def and_trimmed(index: Index, path: str) -> None:
            copy_to(index, path)
            assert log.trim(log.last) > 0

        monkeypatch.setattr(Index, "copy_to", and_trimmed)
        with pytest.raises(FileNotFoundError):
            await service.copy_files(str(tmp_path / "copy"))

    run(tmp_path / "stores", check, document(orders={"durables": WORK}))
    with pytest.raises(NotFound, match="the backup of stores is incomplete"):
        restore(str(tmp_path / "copy"), str(tmp_path / "x"))


def test_no_page_goes_under_a_backup_that_nobody_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_to, copying, go_on = Index.copy_to, threading.Event(), threading.Event()

    def late(index: Index, path: str) -> None:
        copying.set()
        assert go_on.wait(30)
        copy_to(index, path)

    async def check(service: StoreService) -> None:
        monkeypatch.setattr(Index, "copy_to", late)
        await publish(service, 3_000)
        backup = asyncio.ensure_future(service.copy_files(str(tmp_path / "copy")))
        await until(service, copying.is_set)
        backup.cancel()
        with pytest.raises(asyncio.CancelledError):
            await backup
        with pytest.raises(Closed, match="no checkpoint can be taken now"):
            await service.checkpoint()
        go_on.set()
        await until(service, lambda: not service._checkpoints._held)
        await service.checkpoint()

    run(tmp_path / "stores", check, document(orders={"durables": WORK}))
    assert verify(str(tmp_path / "copy")).messages == 3_000


def test_a_backup_that_is_cut_short_or_damaged_is_refused(tmp_path: Path) -> None:
    async def check(service: StoreService) -> None:
        await some_work(service)
        await service.copy_files(str(tmp_path / "copy"))

    run(tmp_path / "stores", check, document(orders={"durables": WORK}, maps={"durables": {"m": {"type": "map"}}}))
    page = next((tmp_path / "copy").glob("*.page"))
    data = bytearray(page.read_bytes())
    data[5_000] ^= 1
    page.write_bytes(data)
    for damaged in (
        lambda: restore(str(tmp_path / "copy"), str(tmp_path / "x")),
        lambda: verify(str(tmp_path / "copy")),
    ):
        with pytest.raises(CorruptData, match="damaged"):
            damaged()
    os.unlink(tmp_path / "copy" / MANIFEST_NAME)
    with pytest.raises(NotFound, match="the backup of stores is incomplete"):
        restore(str(tmp_path / "copy"), str(tmp_path / "x"))


def test_a_restore_that_was_cut_short_is_not_taken_for_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(service: StoreService) -> None:
        for _ in range(5):
            await publish(service, 300)
        await service.copy_files(str(tmp_path / "copy"))

    run(tmp_path / "stores", check, document(orders={"durables": WORK}))
    copy, files = backup_module._copy, sorted(os.listdir(tmp_path / "copy"))
    for cut in range(len(files) - 1):
        left = [cut]

        def cut_short(source: str, target: str, left: list[int] = left) -> tuple[int, int]:
            if not left[0]:
                raise OSError("the process ended")
            left[0] -= 1
            return copy(source, target)

        monkeypatch.setattr(backup_module, "_copy", cut_short)
        target = tmp_path / f"cut-{cut}"
        with pytest.raises(OSError, match="the process ended"):
            restore(str(tmp_path / "copy"), str(target))
        with pytest.raises(CorruptData, match="did not finish"):
            run(target, some_work)
        with pytest.raises(CorruptData, match="did not finish"):
            verify(str(target))
    monkeypatch.setattr(backup_module, "_copy", copy)
    restore(str(tmp_path / "copy"), str(tmp_path / "whole"))
    assert verify(str(tmp_path / "whole")).messages == 1_500


def test_verify_finds_a_flipped_byte_in_the_log(tmp_path: Path) -> None:
    run(tmp_path, some_work, document(orders={"durables": WORK}, maps={"durables": {"m": {"type": "map"}}}))
    assert verify(str(tmp_path)).frames > 50
    page = min(tmp_path.glob("*.page"), key=lambda path: path.stat().st_mtime)
    data = bytearray(page.read_bytes())
    data[20_000] ^= 1
    page.write_bytes(data)
    with pytest.raises(CorruptData):
        verify(str(tmp_path))


# ---- a crash at every step ------------------------------------------------------------------------------------------


def test_a_crash_at_any_step_of_a_checkpoint_or_a_compaction_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are copied at each step, as the operating system would have them after a kill, and opened."""
    live, copies = tmp_path / "live", tmp_path / "copies"
    copies.mkdir()
    steps: list[str] = []

    def copy(step: str) -> None:
        steps.append(step)
        shutil.copytree(live, copies / f"{len(steps):03}-{step}", ignore=shutil.ignore_patterns("scratch*"))

    def copying(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(self: object, *arguments: object) -> object:
            copy(f"before-{name}")
            found = original(self, *arguments)
            copy(f"after-{name}")
            return found

        monkeypatch.setattr(owner, name, wrapped)

    copying(MessageLog, "trim")
    copying(Index, "write")
    kept: list[int] = []

    async def check(service: StoreService) -> None:
        service.compaction.automatic = False
        await service.submit(Attach(0, "orders", "work", "s"))
        for _ in range(60):
            await publish(service, 10, size=1_000)
        seqs = await deliver(service, 600)
        await acknowledge(service, *[(seq, seq) for seq in seqs if seq % 50])
        kept.extend(seq for seq in seqs if not seq % 50)
        await service.checkpoint()
        await service.compaction.now()
        await service.checkpoint()

    run(live, check, document(orders={"durables": WORK}))
    assert {"before-trim", "after-trim", "before-write", "after-write"} == set(steps)
    assert len(steps) > 12
    for left in sorted(copies.iterdir()):
        storage = Storage.open(str(left), page_bytes=PAGE_BYTES)
        storage.state.check()
        assert [one.seq for one in storage.messages.read("orders", 1, 600)] == kept, left.name
        assert [len(one.body) for one in storage.messages.deliveries("orders", [(seq, seq, 1) for seq in kept])] == [
            1_000
        ] * len(kept)
        storage.close()
        assert verify(str(left)).messages == len(kept)


def test_time_never_goes_back_behind_a_checkpoint(tmp_path: Path) -> None:
    """A clean stop leaves nothing to apply, so a start knows the time of what was before from the index alone."""
    now_ms = 2_000_000_000_000

    async def main() -> None:
        service = await StoreService.open(str(tmp_path), page_bytes=PAGE_BYTES, clock=lambda: now_ms)
        await service.submit(define(document(orders={"durables": WORK})))
        await publish(service, 3)
        await service.close()
        again = await StoreService.open(str(tmp_path), page_bytes=PAGE_BYTES, clock=lambda: now_ms - 3_600_000)
        await publish(again, 1)
        assert again.state.at_ms >= now_ms
        await again.close()

    asyncio.run(main())
    with sqlite3.connect(tmp_path / "index.sqlite") as database:
        assert database.execute("SELECT value FROM meta WHERE name = 'at_ms'").fetchone()[0] >= now_ms
