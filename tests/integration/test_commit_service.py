"""Laws of the shell around the pipeline: takeover, subscription, status and admission, on a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest

from holdfast.commit.format.batch import FIRST_SLOT, PREFIX, object_name
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.format.transaction import Committed, PointRead, Rejected, Reused, Transaction, Unanswered, Write
from holdfast.commit.leadership import takeover_machine
from holdfast.commit.leadership.claims import Identity
from holdfast.commit.leadership.evidence import LeaderAnswer, Reply
from holdfast.commit.leadership.takeover import AskLeader, init_log, now
from holdfast.commit.reading.feed import Channel, FeedCheckpoint, FeedTransaction, LeaderChange
from holdfast.commit.reading.reader import follow
from holdfast.commit.service import CommitEntry, CommitService, ServiceOptions
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.commit.subscription import StartRolledBack, subscribe
from holdfast.errors import Backpressure, Closed, Code, CorruptData, Fenced, InvalidRequest, NotFound, Unavailable
from holdfast.objects.memory import MemoryStore
from holdfast.objects.port import CreateAnswer, Listed, WithoutLeftovers
from holdfast.values import Instant, LeaderId, LogId, Slot, slot_text
from holdfast.wire.log import StatusAnswer

ID = "request-id-of-twenty-plus"


@dataclass
class Gate(WithoutLeftovers):
    """A store whose creates wait while it is shut."""

    inner: MemoryStore = field(default_factory=MemoryStore)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = "memory:gate"

    def __post_init__(self) -> None:
        self.open.set()

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        await self.open.wait()
        return await self.inner.create(key, data)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        return await self.inner.read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
        return await self.inner.list(prefix, after=after, limit=limit)

    async def delete(self, *keys: str) -> None:
        await self.inner.delete(*keys)

    async def close(self) -> None:
        await self.inner.close()


def law(test: Callable[[Gate], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a coroutine test on a fresh store, within a bound."""

    def run() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test(Gate())

        asyncio.run(bounded())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def answer_of(leader_id: str | None) -> LeaderAnswer:
    """The answer of a leader with this id: empty for a process that does not lead, None for none."""
    if leader_id is None:
        return LeaderAnswer(Reply.SILENT)
    return LeaderAnswer(Reply.LEADS if leader_id else Reply.LEADS_NOT, leader_id)


async def shown(service: CommitService, signs: int = 1) -> None:
    """Return when the leader has shown so many signs of life."""
    async with asyncio.timeout(30):
        while service.shown.sign < signs:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.005)


async def lead(store: Gate, **options: Any) -> CommitService:
    options.setdefault("rules", PipelineRules(persist=PersistRules(batch_timeout_ms=0.1)))
    return await CommitService.lead(store, ServiceOptions(allow_new=True, take_over=True, **options))


async def commit(service: CommitService, txn: Transaction) -> CommitEntry:
    done: asyncio.Future[CommitEntry] = asyncio.get_running_loop().create_future()
    service.submit([CommitEntry(txn, done.set_result)])
    return await done


async def put(service: CommitService, key: bytes, value: bytes = b"v") -> int:
    entry = await commit(service, Transaction([Write(key, value)]))
    assert isinstance(entry.outcome, Committed)
    return entry.outcome.version


@dataclass
class Busy(Gate):
    """The store of a leader that writes two batches while anybody lists."""

    leader: CommitService | None = None

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
        found = await self.inner.list(prefix, after=after, limit=limit)
        if self.leader is not None and not self.leader.ended.done():
            for key in (b"one", b"other"):
                await commit(self.leader, Transaction([Write(key, b"v")]))
        return found


async def collect(service: CommitService, *, after: int, enough: Callable[[list[Any]], bool], **how: Any) -> list[Any]:
    events: list[Any] = []
    stream = subscribe(service, after=after, **how)
    async for batch in stream:
        events += batch.events
        if enough(events):
            break
    await stream.aclose()
    return events


def transactions(events: list[Any]) -> list[FeedTransaction]:
    return [event for event in events if isinstance(event, FeedTransaction)]


def assert_chained(events: list[Any], after: int) -> None:
    last = after
    for event in transactions(events):
        assert event.prev_version <= last < event.version
        last = event.version


async def sequenced(service: CommitService, version: int) -> None:
    for _ in range(100):
        if service.pipeline.sequence.assigned >= version:
            return
        await asyncio.sleep(0)
    raise AssertionError("what was submitted is sequenced within a few turns of the loop")


async def logged_versions(store: Gate) -> list[int]:
    return [txn.version async for batch in follow(store, ChainWalker()) for txn in batch.transactions()]


@law
async def test_a_stream_misses_nothing_wherever_it_starts_and_however_small_the_ring(store: Gate) -> None:
    service = await lead(store, feed_bytes_max=4096)
    versions = [await put(service, b"before-%d" % i) for i in range(30)]
    total = 300

    def all_of_them(events: list[Any]) -> bool:
        return (
            bool(events)
            and isinstance(events[-1], FeedCheckpoint)
            and events[-1].committed_version >= versions[0] + total - 1
        )

    starts = [0, *versions[::7]]
    readers = [asyncio.ensure_future(collect(service, after=start, enough=all_of_them)) for start in starts]
    for i in range(30, total, 10):
        await asyncio.gather(*(put(service, b"k%d" % j) for j in range(i, i + 10)))
    logged = await logged_versions(store)
    assert len(logged) == total
    for start, reader in zip(starts, readers, strict=True):
        events = await reader
        assert_chained(events, start)
        assert [event.version for event in transactions(events)] == [v for v in logged if v > start]


@law
async def test_a_stream_of_a_log_without_transactions_waits_at_its_base(store: Gate) -> None:
    service = await lead(store)
    stream = subscribe(service, after=0)
    assert list((await anext(stream)).events) == [FeedCheckpoint(service.claim.last_version, service.leader_id)]
    waiting = asyncio.ensure_future(anext(stream))
    version = await put(service, b"a")
    events = (await waiting).events
    while not transactions(list(events)):
        events = (await anext(stream)).events
    assert transactions(list(events))[0].version == version


@law
async def test_a_stream_that_does_not_wait_sees_a_transaction_before_it_is_durable(store: Gate) -> None:
    service = await lead(store)
    first = await put(service, b"a")
    stream = subscribe(service, after=first, durable=False)
    turn = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    store.open.clear()
    waiting = asyncio.ensure_future(put(service, b"b"))
    event = (await turn).events[0]
    while not isinstance(event, FeedTransaction):
        event = (await anext(stream)).events[0]
    assert not event.durable
    assert event.prev_version == first
    assert not waiting.done()
    store.open.set()
    assert await waiting == event.version
    checkpoint = (await anext(stream)).events[0]
    assert checkpoint == FeedCheckpoint(event.version, service.leader_id)
    await service.step_down()
    rest = [event async for batch in stream for event in batch.events]
    assert isinstance(rest[-1], LeaderChange)
    assert rest[-1].roll_back_to == service.local_version()


@law
async def test_a_start_that_was_rolled_back_is_told_where_to_go(store: Gate) -> None:
    old = await lead(store)
    last = await put(old, b"a")
    new = await lead(store)
    with pytest.raises(StartRolledBack) as caught:
        await anext(subscribe(new, after=last + 5))
    assert caught.value.roll_back_to == last
    first = (await anext(subscribe(new, after=last + 5, durable=False))).events[0]
    assert first == LeaderChange(last, new.leader_id)
    with pytest.raises(InvalidRequest) as future:
        await anext(subscribe(new, after=new.local_version() + 5))
    assert future.value.code is Code.FUTURE_VERSION


@law
async def test_history_runs_across_reigns(store: Gate) -> None:
    versions: list[int] = []
    for reign in range(4):
        service = await lead(store)
        if reign != 2:
            versions += [await put(service, b"%d" % reign), await put(service, b"%d" % reign)]
    for start in (0, versions[0], versions[1], versions[3], versions[4]):
        wanted = [version for version in versions if version > start]
        events = await collect(
            service,
            after=start,
            enough=lambda seen: isinstance(seen[-1], FeedCheckpoint) and seen[-1].committed_version >= versions[-1],
        )
        assert [event.version for event in transactions(events)] == wanted
        assert_chained(events, start)


@law
async def test_a_subscriber_too_far_behind_is_told_so(store: Gate) -> None:
    service = await lead(store)
    stream = subscribe(service, after=service.local_version(), bytes_behind_max=10_000)
    assert isinstance((await anext(stream)).events[0], FeedCheckpoint)
    for i in range(40):
        await put(service, b"k%d" % i, b"x" * 1000)
    with pytest.raises(Backpressure) as caught:
        await anext(stream)
    assert caught.value.code is Code.LAGGING


@law
async def test_an_attempt_keeps_its_outcome_across_a_change_of_leader(store: Gate) -> None:
    old = await lead(store)
    read_version = await old.version()
    attempt = Transaction([Write(b"a", b"1")], request_id=ID, read_version=read_version)
    entry = await commit(old, attempt)
    assert isinstance(entry.outcome, Committed)
    again = await commit(old, attempt)
    assert again.outcome == entry.outcome
    other = await commit(old, Transaction([Write(b"a", b"2")], request_id=ID, read_version=read_version))
    assert other.outcome == Reused()
    new = await lead(store)
    assert (await new.status(ID, read_version)).version == entry.outcome.version
    late = await commit(new, attempt)
    assert late.outcome == entry.outcome
    never = Transaction([Write(b"a", b"2")], request_id=ID + "-other", read_version=read_version)
    assert (await commit(new, never)).outcome == Rejected("too_old")
    assert (await new.status(ID + "-other", read_version)).status == "not_committed"


@law
async def test_after_a_negative_status_the_attempt_can_never_commit(store: Gate) -> None:
    service = await lead(store)
    read_version = await service.version()
    assert (await service.status(ID, read_version)).status == "not_committed"
    entry = await commit(service, Transaction([Write(b"a", b"1")], request_id=ID, read_version=read_version))
    assert entry.outcome == Rejected("banned")


@law
async def test_an_id_that_is_known_to_be_committed_is_committed_whatever_the_question_names(store: Gate) -> None:
    old = await lead(store)
    read_version = await old.version()
    entry = await commit(old, Transaction([Write(b"a", b"1")], request_id=ID, read_version=read_version))
    assert isinstance(entry.outcome, Committed)
    version = entry.outcome.version
    committed = StatusAnswer("committed", version)
    for min_version in (read_version, version, version + 1, version + 1_000_000):
        assert await old.status(ID, min_version) == committed
    new = await lead(store)
    assert await new.status(ID, read_version) == committed  # from the log, which is how it becomes known here
    for min_version in (version, new.local_version(), new.local_version() + 1_000_000):
        assert await new.status(ID, min_version) == committed


@law
async def test_after_a_negative_status_an_idle_log_lets_the_id_commit_with_a_newer_read_version(store: Gate) -> None:
    service = await lead(store)
    for _ in range(3):
        read_version = await service.version()
        assert (await service.status(ID, read_version)).status == "not_committed"
    newer = await service.version()
    assert newer > read_version
    again = await commit(service, Transaction([Write(b"a", b"1")], request_id=ID, read_version=newer))
    assert isinstance(again.outcome, Committed)


@law
async def test_a_log_without_its_first_claim_is_refused_at_start(store: Gate) -> None:
    for _ in range(3):
        service = await lead(store)
        await put(service, b"a")
        await service.step_down()
    await store.delete(object_name(FIRST_SLOT))
    before = await store.list("batches/")
    with pytest.raises(CorruptData, match="the first claim has gone") as caught:
        await lead(store)
    assert slot_text(FIRST_SLOT) in str(caught.value)
    assert await store.list("batches/") == before, "nothing is written to a log that is refused"


@law
async def test_status_waits_for_an_attempt_in_flight(store: Gate) -> None:
    service = await lead(store)
    read_version = await service.version()
    store.open.clear()
    attempt = Transaction([Write(b"a", b"1")], request_id=ID, read_version=read_version)
    first = asyncio.ensure_future(commit(service, attempt))
    second = asyncio.ensure_future(commit(service, attempt))
    await asyncio.sleep(0.01)
    status = asyncio.ensure_future(service.status(ID, read_version))
    await asyncio.sleep(0.01)
    assert not status.done()
    store.open.set()
    outcomes = {(await first).outcome.version, (await second).outcome.version, (await status).version}  # type: ignore[union-attr]
    assert len(outcomes) == 1


@law
async def test_a_deposed_leader_answers_unknown_and_ends(store: Gate) -> None:
    old = await lead(store)
    await put(old, b"a")
    store.open.clear()
    waiting = asyncio.ensure_future(commit(old, Transaction([Write(b"b", b"1")])))
    await asyncio.sleep(0.01)
    # The new leader goes to the same objects by another way.
    new = await lead(Gate(store.inner))
    store.open.set()
    assert (await waiting).outcome == Unanswered()
    assert (await old.ended).kind == "deposed"
    with pytest.raises(Fenced):
        await old.version()
    assert old.admission() is not None
    assert await put(new, b"c") > new.claim.last_version


@law
async def test_a_deposed_leader_that_is_only_asked_for_a_version_finds_out(store: Gate) -> None:
    old = await lead(store)
    await put(old, b"a")
    new = await lead(store)
    await put(new, b"b")
    with pytest.raises(Fenced) as caught:
        await old.version()
    assert caught.value.code is Code.LEADER_CHANGED


@law
async def test_a_leader_that_answers_is_not_deposed_out_of_rudeness(store: Gate) -> None:
    old = await CommitService.lead(store, ServiceOptions(allow_new=True, address="http://one"))
    await put(old, b"a")

    def answers(leader_id: str | None) -> AskLeader:
        async def ask(address: str, *_: object) -> LeaderAnswer:
            assert address == "http://one"
            return answer_of(leader_id)

        return ask

    with pytest.raises(Closed) as caught:
        await CommitService.lead(store, ServiceOptions(address="http://two", ask_leader=answers(old.leader_id)))
    assert caught.value.fields["leader_address"] == "http://one"
    assert caught.value.fields["leader_id"] == old.leader_id
    await old.step_down()
    assert old.ended.result().kind == "resigned"
    new = await CommitService.lead(store, ServiceOptions(address="http://two", ask_leader=answers(None)))
    assert new.takeover.steps_ms["polite_wait"] < 500


@law
async def test_an_empty_log_is_created_only_on_request(store: Gate) -> None:
    with pytest.raises(NotFound) as caught:
        await CommitService.lead(store, ServiceOptions())
    assert caught.value.code is Code.LOG_EMPTY
    identity = Identity(LeaderId(b"l" * 16), b"n" * 32, "")
    assert await init_log(store, identity, LogId(b"g" * 16))
    assert not await init_log(store, identity, LogId(b"h" * 16))
    service = await CommitService.lead(store, ServiceOptions())
    assert service.log_id == (b"g" * 16).hex()
    assert service.claim.epoch == 2


@law
async def test_a_claim_that_was_lost_is_told_as_damage_and_not_as_a_silent_store(store: Gate) -> None:
    service = await lead(store)
    await commit(service, Transaction([Write(b"a", b"1")]))
    await service.step_down()
    for slot in (FIRST_SLOT, FIRST_SLOT - 1):
        await store.delete(object_name(Slot(slot)))
    with (
        mock.patch.object(takeover_machine, "MISSING_MS_MAX", 200.0),
        pytest.raises(CorruptData, match="has gone") as caught,
    ):
        await CommitService.lead(store, ServiceOptions())
    assert slot_text(FIRST_SLOT) in str(caught.value)


@law
async def test_a_stalled_store_is_backpressure_and_then_everything_is_answered(store: Gate) -> None:
    service = await lead(store, queue_entries_max=50)
    store.open.clear()
    waiting = [asyncio.ensure_future(commit(service, Transaction([Write(b"%d" % i, b"v")]))) for i in range(60)]
    await asyncio.sleep(0.01)
    refusal = service.admission()
    assert isinstance(refusal, Backpressure)
    assert refusal.retry_after_ms
    store.open.set()
    answered = await asyncio.gather(*waiting)
    assert all(isinstance(entry.outcome, Committed) for entry in answered)
    assert service.admission() is None


@law
async def test_commits_are_refused_while_the_store_is_stalled_and_welcome_when_it_answers(store: Gate) -> None:
    service = await lead(store, stalled_ms_max=20.0)
    assert service.admission() is None
    store.open.clear()
    waiting = asyncio.ensure_future(commit(service, Transaction([Write(b"a", b"1")])))
    while (refusal := service.admission()) is None:  # noqa: ASYNC110  # a clock that nothing sets an event for
        await asyncio.sleep(0)
    assert isinstance(refusal, Backpressure)
    assert refusal.retry_after_ms
    assert refusal.fields["waited_ms"] >= 20  # type: ignore[operator]
    store.open.set()
    assert isinstance((await waiting).outcome, Committed)
    assert service.admission() is None


@law
async def test_a_stall_is_measured_by_the_clock_of_the_service(store: Gate) -> None:
    shift_ms = -1_000_000.0

    def shifted() -> Instant:
        return Instant(now().boot_ms + shift_ms, now().wall_ms)

    options = ServiceOptions(allow_new=True, rules=PipelineRules(persist=PersistRules(batch_timeout_ms=0.1)))
    service = await CommitService.lead(store, options, clock=shifted)
    store.open.clear()
    waiting = asyncio.ensure_future(commit(service, Transaction([Write(b"a", b"1")])))
    while not service.pipeline.persist.in_flight:  # noqa: ASYNC110  # a state that nothing sets an event for
        await asyncio.sleep(0)
    assert service.admission() is None, "the store is asked for much less than 3 s"
    shift_ms += options.stalled_ms_max + 1.0
    assert isinstance(service.admission(), Backpressure)
    store.open.set()
    assert isinstance((await waiting).outcome, Committed)


@law
async def test_a_leader_gives_up_on_a_store_that_stays_away(store: Gate) -> None:
    rules = PipelineRules(persist=PersistRules(batch_timeout_ms=0.1, give_up_after_ms=50))
    service = await lead(store, rules=rules)
    store.open.clear()
    entry = await commit(service, Transaction([Write(b"a", b"1")]))
    assert entry.outcome == Unanswered()
    assert (await service.ended).kind == "gave_up"
    refusal = service.admission()
    assert isinstance(refusal, Unavailable)
    assert refusal.code is Code.NOT_LEADER


@law
async def test_a_conflict_names_every_failed_precondition_behind_durable_versions(store: Gate) -> None:
    service = await lead(store)
    start = await service.version()
    a, b = await put(service, b"a"), await put(service, b"b")
    reads = [PointRead(b"a"), PointRead(b"z"), PointRead(b"b", a)]
    entry = await commit(service, Transaction([Write(b"c", b"1")], reads, read_version=start))
    assert isinstance(entry.outcome, Rejected)
    assert [(failed.precondition, failed.version) for failed in entry.outcome.conflicts] == [(0, a), (2, b)]
    assert b <= entry.durable_version <= service.local_version()


@law
async def test_a_clean_stop_leaves_nothing_to_wait_for(store: Gate) -> None:
    service = await lead(store)
    waiting = [asyncio.ensure_future(put(service, b"%d" % i)) for i in range(20)]
    await asyncio.sleep(0)
    await service.step_down()
    versions = sorted(await asyncio.gather(*waiting))
    assert await logged_versions(store) == versions
    with pytest.raises(Fenced):
        await service.noop()


@law
async def test_a_commit_that_is_being_looked_up_when_the_service_closes_is_answered_unknown(gate: Gate) -> None:
    """Every entry gets its one reply: a look-up that was cut short proved nothing."""
    old = await put(await lead(gate), b"k")
    service = await lead(gate)
    asked = asyncio.Event()

    async def never(key: str, *, start: int = 0, length: int | None = None) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    gate.read = never  # type: ignore[method-assign]
    below_window = Transaction([Write(b"k", b"w")], request_id=ID, read_version=old)
    answer = asyncio.ensure_future(commit(service, below_window))
    await asked.wait()
    await service.close()
    assert (await answer).outcome == Unanswered()


@law
async def test_a_stream_that_does_not_wait_ends_although_what_it_missed_never_became_durable(store: Gate) -> None:
    """What was accepted while nobody listened would have come by the durable ring, which is closed."""
    service = await lead(store)
    first = await put(service, b"a")
    store.open.clear()
    lost = asyncio.ensure_future(commit(service, Transaction([Write(b"b", b"1")])))
    await sequenced(service, first + 1)
    stream = subscribe(service, after=first, durable=False)
    assert (await anext(stream)).events[0] == FeedCheckpoint(first, service.leader_id)
    await lead(Gate(store.inner))
    store.open.set()
    assert (await lost).outcome == Unanswered()
    turns = 0
    wait = Channel.wait

    async def counted(channel: Channel, position: int) -> None:
        nonlocal turns
        turns += 1
        assert turns < 100, "a stream at the end of a reign spins"
        await wait(channel, position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "wait", counted)
        rest = [event async for batch in stream for event in batch.events]
    assert rest == [LeaderChange(first, service.leader_id)]


@law
async def test_a_resolved_stream_misses_nothing_when_it_resumes_inside_a_batch_behind_a_checkpoint(store: Gate) -> None:
    """A checkpoint in the ring speaks of older versions than the transactions before it."""
    slow = PipelineRules(persist=PersistRules(batch_timeout_ms=60_000, batch_timeout_max_ms=60_000))
    service = await lead(store, rules=slow)
    base = service.local_version()
    other = subscribe(service, after=base, durable=False)
    await anext(other)
    proceed = asyncio.Semaphore(0)

    async def create(key: str, data: bytes) -> CreateAnswer:
        if key.startswith(PREFIX):  # a sign of life is not held back
            await proceed.acquire()
        return await store.inner.create(key, data)

    store.create = create  # type: ignore[method-assign]
    writers = [asyncio.ensure_future(put(service, b"first"))]
    await sequenced(service, base + 1)
    # Three more, resolved together, before the first of all is durable.
    writers += [asyncio.ensure_future(put(service, b"%d" % i)) for i in range(3)]
    await sequenced(service, base + 4)
    proceed.release()
    await writers[0]
    stream = subscribe(service, after=base + 2, durable=False)
    events: list[Any] = []
    while not transactions(events):
        async with asyncio.timeout(30):
            events += (await anext(stream)).events
    assert [event.version for event in transactions(events)] == [base + 3, base + 4]
    # The first writer comes back, as expected of it, and the batch closes.
    writers.append(asyncio.ensure_future(put(service, b"back")))
    proceed.release()
    await asyncio.gather(*writers)


@law
async def test_a_reader_that_is_up_to_date_gets_events_larger_than_its_bound(store: Gate) -> None:
    await large_events_arrive(await lead(store))


@law
async def test_a_reader_that_is_up_to_date_gets_events_that_left_the_buffer_before_it_woke(store: Gate) -> None:
    await large_events_arrive(await lead(store, feed_bytes_max=4096))


async def large_events_arrive(service: CommitService) -> None:
    first = await put(service, b"a")
    stream = subscribe(service, after=first, bytes_behind_max=2_000)
    events = [*(await anext(stream)).events]
    versions: list[int] = []
    for count in (1, 1, 3):
        ready = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)  # it waits at the end
        versions += await asyncio.gather(*(put(service, b"k", b"x" * 10_000) for _ in range(count)))
        events += (await ready).events
        while transactions(events)[-1].version < versions[-1]:
            events += (await anext(stream)).events
    assert [event.version for event in transactions(events)] == sorted(versions)
    assert_chained(events, first)
    await stream.aclose()


@law
async def test_a_reader_that_does_not_come_for_more_is_lagging_after_a_large_event_too(store: Gate) -> None:
    service = await lead(store)
    stream = subscribe(service, after=await put(service, b"a"), bytes_behind_max=2_000)
    await anext(stream)
    ready = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await put(service, b"k", b"x" * 10_000)
    await ready
    for _ in range(5):
        await put(service, b"k", b"x" * 1_000)
    with pytest.raises(Backpressure, match="too far behind"):
        await anext(stream)


@law
async def test_a_start_far_behind_inside_the_ring_catches_up(store: Gate) -> None:
    """Only a subscriber that falls behind is lagging. One that resumes must come through, or it never would."""
    service = await lead(store)
    first = await put(service, b"a")
    versions = [await put(service, b"k%d" % i, b"x" * 1000) for i in range(40)]
    events = await collect(
        service,
        after=first,
        bytes_behind_max=10_000,
        enough=lambda seen: isinstance(seen[-1], FeedCheckpoint) and seen[-1].committed_version >= versions[-1],
    )
    assert [event.version for event in transactions(events)] == versions


@law
async def test_a_start_near_the_end_that_falls_behind_before_it_is_there_is_still_on_its_way(store: Gate) -> None:
    service = await lead(store)
    first = await put(service, b"a")
    versions = [await put(service, b"k%d" % i, b"x" * 1000) for i in range(3)]
    stream = subscribe(service, after=first, bytes_behind_max=10_000)
    events = [*(await anext(stream)).events]
    versions += [await put(service, b"later%d" % i, b"x" * 1000) for i in range(40)]
    while transactions(events)[-1].version < versions[-1]:
        events += (await anext(stream)).events
    assert [event.version for event in transactions(events)] == versions


@law
async def test_a_look_up_in_a_log_with_a_hole_is_no_verdict(store: Gate) -> None:
    old = await lead(store)
    read_version = await old.version()
    attempt = Transaction([Write(b"a", b"1")], request_id=ID, read_version=read_version)
    # The third of eight: finding the start of the walk does not come across it.
    await put(old, b"0")
    await put(old, b"1")
    assert isinstance((await commit(old, attempt)).outcome, Committed)
    hole = old.durable_header().slot
    for i in range(5):
        await put(old, b"%d" % i)
    new = await lead(store)
    await store.delete(object_name(hole))
    with pytest.raises(CorruptData, match="an object has gone"):
        await new.status(ID, read_version)
    assert (await commit(new, attempt)).outcome == Unanswered()
    with pytest.raises(CorruptData, match="an object has gone"):
        await collect(new, after=read_version, enough=lambda seen: len(transactions(seen)) == 8)


@law
async def test_an_old_attempt_is_not_answered_with_the_commit_of_another_one_under_its_id(store: Gate) -> None:
    old = await lead(store)
    early = await old.version()
    late = await put(old, b"x")
    committed = Transaction([Write(b"a", b"1")], request_id=ID, read_version=late)
    entry = await commit(old, committed)
    assert isinstance(entry.outcome, Committed)
    other = Transaction([Write(b"a", b"2")], request_id=ID, read_version=early)
    assert (await commit(old, other)).outcome == Reused()
    new = await lead(store)
    assert (await commit(new, committed)).outcome == entry.outcome
    assert (await commit(new, other)).outcome == Reused()


@law
async def test_status_of_a_version_that_was_never_handed_out_is_refused(store: Gate) -> None:
    """A verdict about it could not be kept: the ban ends at the versions handed out by now."""
    service = await lead(store)
    ahead = await service.version() + 1
    with pytest.raises(InvalidRequest) as caught:
        await service.status(ID, ahead)
    assert caught.value.code is Code.FUTURE_VERSION


@law
async def test_a_step_that_raises_is_reported_to_the_loop_before_anything_else_happens(store: Gate) -> None:
    """The loop of a service's process ends it there. Nobody who waits was answered by then."""
    service = await lead(store)
    version = await put(service, b"a")
    store.open.clear()
    reported: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    replied: list[CommitEntry] = []
    service.submit([CommitEntry(Transaction([Write(b"b", b"1")]), replied.append)])
    await asyncio.sleep(0)
    impossible: Any = "no operation"
    service.submit([CommitEntry(Transaction([impossible]), replied.append)])
    with pytest.raises(AttributeError):
        service._pump()
    assert [type(error) for error in reported] == [AssertionError]
    assert not replied and not service.ended.done()
    asyncio.get_running_loop().set_exception_handler(None)
    store.open.set()
    assert await put(await lead(store), b"d") > version


@law
async def test_a_caller_whose_reply_fails_is_reported_like_a_broken_invariant(store: Gate) -> None:
    service = await lead(store)
    reported: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def handler(_: object, context: dict[str, Any]) -> None:
        if not reported.done():
            reported.set_result(context["exception"])

    asyncio.get_running_loop().set_exception_handler(handler)

    def fails(entry: CommitEntry) -> None:
        raise RuntimeError("planted")

    service.submit([CommitEntry(Transaction([Write(b"a", b"1")]), fails)])
    error = await reported
    assert isinstance(error, AssertionError) and isinstance(error.__cause__, RuntimeError)
    asyncio.get_running_loop().set_exception_handler(None)


@law
async def test_a_store_that_raises_what_the_port_does_not_know_is_asked_again(store: Gate) -> None:
    """A request without a usable answer is unknown, whatever it raised: nothing else would ever ask again."""
    service = await lead(store, rules=PipelineRules(persist=PersistRules(batch_timeout_ms=0.1, retry_base_ms=0.1)))
    create, read, listing = store.create, store.read, store.list
    troubles = [InvalidRequest("no such request"), OSError("no such socket")]

    async def fails_at_first(*_: Any, **__: Any) -> Any:
        error = troubles.pop()
        if not troubles:
            store.create, store.read, store.list = create, read, listing  # type: ignore[method-assign]
        raise error

    store.create = fails_at_first  # type: ignore[method-assign]
    version = await put(service, b"a")
    troubles = [OSError("no such socket")]
    store.list = fails_at_first  # type: ignore[method-assign]
    assert await service.version() == version
    troubles = [InvalidRequest("no such request")]
    store.read = fails_at_first  # type: ignore[method-assign]
    held = store.create

    async def lost_answer(key: str, data: bytes) -> CreateAnswer:
        store.create = held  # type: ignore[method-assign]
        await held(key, data)
        return await held(key, data)

    store.create = lost_answer  # type: ignore[method-assign]
    assert await put(service, b"b") > version


@law
async def test_a_store_that_stays_away_for_an_hour_is_still_waited_for(store: Gate) -> None:
    """The wait between two tries is capped, however many tries there were."""
    tries = 0
    listing = store.list

    async def stays_away(*_: Any, **__: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries > 1_200:
            store.list = listing  # type: ignore[method-assign]
        raise Unavailable("not now")

    async def at_once(_: float) -> None:
        return None

    store.list = stays_away  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", at_once)
        service = await lead(store, probe=False)
    assert await put(service, b"a")


@law
async def test_a_service_that_is_closed_in_the_middle_leaves_nobody_waiting(store: Gate) -> None:
    service = await lead(store)
    store.open.clear()
    waiting = asyncio.ensure_future(commit(service, Transaction([Write(b"a", b"1")])))
    await sequenced(service, service.local_version() + 1)
    noop = asyncio.ensure_future(service.noop())
    await asyncio.sleep(0)
    await service.close()
    assert (await waiting).outcome == Unanswered()
    with pytest.raises(Fenced):
        await noop


@law
async def test_a_version_of_a_later_leader_is_not_the_clients_fault(store: Gate) -> None:
    old = await lead(store)
    await put(old, b"a")
    new = await lead(store)
    read_version = await put(new, b"b")
    entry = await commit(old, Transaction([Write(b"c", b"1")], [PointRead(b"b")], read_version=read_version))
    assert isinstance(entry.outcome, Fenced)
    assert entry.outcome.code is Code.LEADER_CHANGED
    entry = await commit(new, Transaction([Write(b"c", b"1")], [PointRead(b"b")], read_version=read_version + 9))
    assert isinstance(entry.outcome, InvalidRequest)
    assert entry.outcome.code is Code.FUTURE_VERSION


@law
async def test_a_reader_of_a_later_leaders_log_is_not_turned_away_for_good(store: Gate) -> None:
    old = await lead(store)
    await put(old, b"a")
    new = await lead(store)
    version = await put(new, b"b")
    with pytest.raises(Fenced) as caught:
        await collect(old, after=version, enough=bool)
    assert caught.value.code is Code.LEADER_CHANGED
    assert await collect(new, after=version, enough=bool) == [FeedCheckpoint(version, new.leader_id)]


@law
async def test_an_idle_leader_finds_out_that_it_was_deposed(store: Gate) -> None:
    old = await lead(store, idle_check_ms=5)
    new = await lead(store)
    assert (await old.ended).kind == "deposed"
    assert not new.ended.done()


def test_a_leader_that_writes_faster_than_a_listing_answers_is_deposed_all_the_same() -> None:
    async def race() -> None:
        store = Busy()
        async with asyncio.timeout(30):
            store.leader = leader = await lead(store)
            await put(leader, b"k")
            successor = await lead(store)
            assert successor.takeover.restarts >= 1
            await put(successor, b"k")
            assert (await leader.ended).kind == "deposed"
            await asyncio.gather(leader.close(), successor.close())

    asyncio.run(race())
