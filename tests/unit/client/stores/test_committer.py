"""Laws of ``SparkCommitter``: no verdict is lost, the receiver's role neither, and the work is linear. Fakes answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Mapping
from typing import Self, cast

import pytest

from holdfast import CorruptData, InvalidRequest, NotFound, OutcomeUnknown, Write, aio
from holdfast.client.protocol.options import SubscriberOptions
from holdfast.client.protocol.stores import committing
from holdfast.client.transport import aio as transport
from holdfast.errors import Closed, Code, Fenced
from holdfast.wire.parts import Delivery, Receipt


class Store:
    """A client, its publisher and its subscriber at once. What is not acknowledged stays."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.receipt = Receipt(1, 1)
        self.failure: Exception | None = None
        self.ready: deque[Delivery] = deque()
        self.arrived = asyncio.Event()
        self.acknowledged: list[int] = []
        self.acknowledging = asyncio.Event()
        self.acknowledging.set()
        self.is_closed = False
        self.receives = 0
        self.seq = 0

    def publisher(self, store: str) -> Self:
        del store
        return self

    def subscriber(self, *_: object, options: SubscriberOptions, **__: object) -> Self:
        assert options.explicit_ack
        assert options.prefetch is not None
        assert options.prefetch > committing.HELD_MAX
        return self

    async def __aenter__(self) -> Self:
        return self

    async def aclose(self) -> None:
        self.is_closed = True
        self.arrived.set()

    async def publish(self, body: bytes, *, fields: Mapping[str, str]) -> Receipt:
        del body
        self.sent.append(fields["request_id"])
        if self.failure is not None:
            raise self.failure
        return self.receipt

    async def receive(self, timeout: float) -> Delivery | None:
        self.receives += 1
        try:
            async with asyncio.timeout(timeout):
                while not self.ready and not self.is_closed:
                    if self.failure is not None:
                        raise self.failure
                    self.arrived.clear()
                    await self.arrived.wait()
        except TimeoutError:
            return None
        return self.ready.popleft() if self.ready else None

    async def acknowledge(self, *messages: Delivery) -> None:
        await self.acknowledging.wait()
        self.acknowledged.extend(message.seq for message in messages)

    def answer(self, name: str | None, body: bytes | None = None) -> int:
        """A verdict comes; returns its number, which is also its version."""
        self.seq += 1
        if body is None:
            body = json.dumps({"status": "committed", "version": self.seq, "leader_id": "l"}).encode()
        fields: dict[str, str | int | bool] = {} if name is None else {"request_id": name}
        self.ready.append(Delivery(self.seq, fields, None, body, 0, 1, False))
        self.arrived.set()
        return self.seq


def made() -> tuple[Store, aio.SparkCommitter]:
    store = Store()
    return store, aio.SparkCommitter(cast("aio.StoreClient", store), name="desk")


async def waiting(committer: aio.SparkCommitter, *names: str) -> list[asyncio.Task[int]]:
    """Tasks that wait for these verdicts, the first of them as the receiver."""

    async def version(name: str) -> int:
        return (await committer.verdict(name, 20)).version

    tasks = [asyncio.create_task(version(name)) for name in names]
    await asyncio.sleep(0)
    return tasks


async def after_turns(turns: int = 10) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def test_a_verdict_is_acknowledged_when_its_caller_gets_it() -> None:
    async def run() -> None:
        store, committer = made()
        first, second = store.answer("first"), store.answer("second")
        assert (await committer.verdict("second")).version == second
        assert store.acknowledged == [second]
        assert (await committer.verdict("first", 0.001)).version == first
        assert store.acknowledged == [second, first]

    asyncio.run(run())


def test_waiters_of_one_request_all_get_its_verdict_and_the_loop_goes_on() -> None:
    async def run() -> None:
        store, committer = made()
        tasks = await waiting(committer, "one", "one", "other", "one")
        version = store.answer("one")
        assert list(await asyncio.gather(tasks[0], tasks[1], tasks[3])) == [version] * 3
        assert not tasks[2].done()
        assert store.answer("other") == await tasks[2]

    asyncio.run(run())


def test_each_verdict_wakes_only_its_waiters_and_one_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = 0

    class Counted(transport.Event):
        def __init__(self) -> None:
            super().__init__()
            wake = self.set

            def count() -> None:
                nonlocal wakes
                wakes += 1
                wake()

            self.set = count

    monkeypatch.setattr(transport, "Event", Counted)

    async def run() -> None:
        store, committer = made()
        names = [str(number) for number in range(400)]
        tasks = await waiting(committer, *names)
        versions = [store.answer(name) for name in names]
        assert await asyncio.gather(*tasks) == versions
        assert wakes <= 2 * len(names)
        assert store.receives <= 2 * len(names)

    asyncio.run(run())


def test_a_cancelled_receiver_passes_its_role_on() -> None:
    async def run() -> None:
        store, committer = made()
        first, second, third, last = await waiting(committer, "1", "2", "3", "4")
        first.cancel()
        await asyncio.sleep(0)  # the role is passed to the second, which has not run yet
        second.cancel()
        await after_turns()
        assert store.answer("4") == await asyncio.wait_for(last, 5)
        third.cancel()
        await asyncio.gather(first, second, third, return_exceptions=True)
        (later,) = await waiting(committer, "5")
        assert store.answer("5") == await asyncio.wait_for(later, 5)

    asyncio.run(run())


def test_a_verdict_of_a_cancelled_waiter_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "HELD_MAX", 1)

    async def run() -> None:
        store, committer = made()
        receiver, one, another = await waiting(committer, "receiver", "wanted", "wanted")
        version = store.answer("wanted")
        for _ in range(10):
            await asyncio.sleep(0)
            if not store.ready:
                break
        # Its verdict was handed to both; neither has run since.
        one.cancel()
        another.cancel()
        await asyncio.gather(one, another, return_exceptions=True)
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)
        assert store.acknowledged == []
        with pytest.raises(OutcomeUnknown, match="limit of verdicts"):
            await committer.verdict("other", 1)
        assert (await committer.verdict("wanted", 1)).version == version
        assert store.acknowledged == [version]

    asyncio.run(run())


def test_a_waiter_cancelled_while_it_acknowledges_leaves_the_verdict() -> None:
    async def run() -> None:
        store, committer = made()
        store.acknowledging.clear()
        (task,) = await waiting(committer, "wanted")
        version = store.answer("wanted")
        await after_turns()
        (other,) = await waiting(committer, "wanted")
        for one in (task, other):
            one.cancel()
        await asyncio.gather(task, other, return_exceptions=True)
        store.acknowledging.set()
        assert (await committer.verdict("wanted", 1)).version == version

    asyncio.run(run())


def test_at_its_bound_it_receives_nothing_more_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "HELD_MAX", 3)

    async def run() -> None:
        store, committer = made()
        for name in ("a", "b", "c", "d", "wanted"):
            store.answer(name)
        with pytest.raises(OutcomeUnknown, match="limit of verdicts") as full:
            await committer.verdict("wanted", 20)
        assert full.value.fields["request_id"] == "wanted"
        assert full.value.fields["verdicts_held"] == 3
        assert len(store.ready) == 2, "the store keeps the rest"
        assert store.acknowledged == []
        while (oldest := full.value.fields["oldest_held"]) is not None:
            await committer.verdict(str(oldest))
            try:
                assert (await committer.verdict("wanted", 20)).version == 5
            except OutcomeUnknown as again:
                full.value.fields = again.fields
            else:
                break
        assert 5 in store.acknowledged

    asyncio.run(run())


def test_verdicts_that_are_waited_for_do_not_count_for_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "HELD_MAX", 2)

    async def run() -> None:
        store, committer = made()
        names = [str(number) for number in range(20)]
        tasks = await waiting(committer, *names)
        for name in reversed(names):
            store.answer(name)
        assert sorted(await asyncio.gather(*tasks)) == list(range(1, 21))

    asyncio.run(run())


def test_further_verdicts_of_one_attempt_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "HELD_MAX", 2)

    async def run() -> None:
        store, committer = made()
        write = [Write(b"k", b"v")]
        for number in range(5):
            name = f"attempt-{number}"
            for _ in range(2):  # the second after a time-out of the first
                assert await committer.send(write, request_id=name, read_version=3) == name
            store.answer(name)
            if number % 2:  # both at once, or the second later
                store.answer(name)
            await committer.verdict(name)
            if not number % 2:
                store.answer(name)
        (task,) = await waiting(committer, "last")
        store.answer("last")
        await task
        assert sorted(store.acknowledged) == list(range(1, 12))
        # Sent once more, it gets the verdict of that message.
        await committer.send(write, request_id="attempt-4", read_version=3)
        again = store.answer("attempt-4")
        store.answer("other")
        assert (await committer.verdict("other")).version == again + 1
        assert (await committer.verdict("attempt-4", 1)).version == again

    asyncio.run(run())


def test_a_second_verdict_that_comes_before_the_first_is_asked_for_takes_no_room() -> None:
    async def run() -> None:
        store, committer = made()
        store.answer("held")
        store.answer("held")
        store.answer("wanted")
        await committer.verdict("wanted")
        assert store.acknowledged == [2, 3]
        assert (await committer.verdict("held", 1)).version == 1

    asyncio.run(run())


def test_a_held_verdict_that_is_delivered_again_stays() -> None:
    async def run() -> None:
        store, committer = made()
        store.answer("held")
        store.ready.append(store.ready[0])
        store.answer("wanted")
        await committer.verdict("wanted")
        assert store.acknowledged == [2]
        assert (await committer.verdict("held", 1)).version == 1

    asyncio.run(run())


def test_foreign_messages_fail_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store, committer = made()
        store.answer("foreign", b"no verdict")
        store.answer(None, b"no name")
        wanted = store.answer("wanted")
        with caplog.at_level(logging.WARNING, "holdfast.committer"):
            assert (await committer.verdict("wanted")).version == wanted
        assert "no request id seq=2" in caplog.text
        assert store.acknowledged == [2, wanted]
        with pytest.raises(CorruptData):
            await committer.verdict("foreign", 1)
        assert store.acknowledged == [2, wanted, 1]

    asyncio.run(run())


def test_a_request_id_needs_a_read_version() -> None:
    async def run() -> None:
        store, committer = made()
        with pytest.raises(InvalidRequest) as refused:
            await committer.send([Write(b"k", b"v")], request_id="mine")
        assert refused.value.code is Code.READ_VERSION_REQUIRED
        assert store.sent == []
        name = await committer.send([Write(b"k", b"v")])
        assert store.sent == [name]

    asyncio.run(run())


def test_an_unknown_outcome_of_sending_names_the_request() -> None:
    async def run() -> None:
        store, committer = made()
        store.failure = OutcomeUnknown("it is not known whether the store has these messages")
        with pytest.raises(OutcomeUnknown) as unknown:
            await committer.send([Write(b"k", b"v")])
        store.failure = None
        assert [unknown.value.fields["request_id"]] == store.sent
        version = store.answer(store.sent[0])
        assert (await committer.verdict(str(unknown.value.fields["request_id"]))).version == version

    asyncio.run(run())


def test_a_count_that_others_share_refuses_nothing_that_may_be_kept() -> None:
    async def run() -> None:
        store, committer = made()
        store.receipt = Receipt(4, 6, 0, 3)
        with pytest.raises(NotFound, match="no durable keeps the requests"):
            await committer.send([Write(b"k", b"v")])
        store.receipt = Receipt(7, 9, 0, 2)
        with pytest.raises(OutcomeUnknown) as unknown:
            await committer.send([Write(b"k", b"v")])
        assert unknown.value.fields["request_id"] == store.sent[-1]

    asyncio.run(run())


def test_a_failed_subscriber_does_not_look_like_a_refused_request() -> None:
    async def run() -> None:
        store, committer = made()
        store.failure = Fenced("a newer subscriber took the place", code=Code.DURABLE_COLLISION)
        tasks = await waiting(committer, "one", "two")
        for task in tasks:
            with pytest.raises(OutcomeUnknown, match="a newer subscriber"):
                await asyncio.wait_for(task, 5)

    asyncio.run(run())


def test_closing_ends_every_wait() -> None:
    async def run() -> None:
        store, committer = made()
        held = store.answer("held")
        tasks = await waiting(committer, "one", "two", "three")
        await after_turns()
        await committer.__aexit__(None, None, None)
        for task in tasks:
            with pytest.raises(OutcomeUnknown, match="is closed"):
                await asyncio.wait_for(task, 5)
        store.acknowledge = refuse  # type: ignore[method-assign]
        assert (await committer.verdict("held")).version == held

    async def refuse(*_: Delivery) -> None:
        raise Closed("this subscriber is closed")

    asyncio.run(run())
