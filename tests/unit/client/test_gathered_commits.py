"""Commits at the same time through one client, on real sockets, with tasks and with threads."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.client.commit_service import WRITE, CommitService, Crowd, Exchange, error_line, until
from tests.unit.client.conftest import QUICK, BlockingFace

from holdfast import Client, aio
from holdfast.client import CommitReceipt
from holdfast.client.protocol.effects import IN_TURN_MAX
from holdfast.client.protocol.gathering import ITEM_BYTES_MAX
from holdfast.commit.format.transaction import Write
from holdfast.errors import Closed, Code, HoldfastError, InvalidRequest, OutcomeUnknown, PermissionDenied
from holdfast.wire.stores import PublishedMessage, PublishPart

PATIENT = dataclasses.replace(QUICK, request_timeout_ms=15_000, give_up_after_ms=20_000, resolve_within_ms=20_000)
TOGETHER = dataclasses.replace(PATIENT, gather_ms=15_000)
"""What waits leaves when the one that is alone has its answer, and not before."""
Connect = Callable[..., Any]


def versions_of(outcomes: list[Any]) -> list[int]:
    assert all(isinstance(each, CommitReceipt) for each in outcomes), outcomes
    return [each.version for each in outcomes]


def test_commits_at_the_same_time_travel_together_and_each_gets_its_own_answer(connect: Connect) -> None:
    with CommitService() as service:
        crowd = Crowd(connect(service.url, options=TOGETHER), service)
        crowd.begin(40)
        service.gate.set()
        outcomes = crowd.end()
        assert versions_of(outcomes) == [service.versions[each.request_id] for each in outcomes]
        assert len({each.version for each in outcomes}) == 41
        assert service.targets() == ["/v1/version", "/v1/commit", "/v1/commits"]
        assert len(service.streams()[0]) == 40


def test_the_version_is_asked_for_once_on_the_connection_of_the_first_commit(connect: Connect) -> None:
    with CommitService() as service:
        crowd = Crowd(connect(service.url, options=TOGETHER), service)
        crowd.begin(10)
        assert service.connections == 1
        service.gate.set()
        crowd.end()
        assert service.targets().count("/v1/version") == 1


def test_no_version_is_asked_for_where_any_answer_gave_a_position(connect: Connect) -> None:
    with CommitService(gated=False) as service:
        client = connect(service.url)
        client.call("commit", WRITE, read_version=3)
        client.call("commit", WRITE)

        def body(txn: Any) -> Any:
            yield from ()
            txn.write(b"k", b"v")

        client.transact(body)
        assert service.targets() == ["/v1/commit"] * 3


ALONE: dict[str, dict[str, Any]] = {
    "its own id": {"request_id": "the-callers-own-request-id", "read_version": 60},
    "its own read version": {"read_version": 60},
    "a leader": {"leader_id": "ab" * 16},
    "a part for the stores": {"publish": [PublishPart("s", [PublishedMessage(b"m", {}, None)])]},
}


@pytest.mark.parametrize("arguments", ALONE.values(), ids=ALONE)
def test_a_commit_for_which_the_caller_decides_something_travels_alone(connect: Connect, arguments: Any) -> None:
    with CommitService() as service:
        crowd = Crowd(connect(service.url, options=TOGETHER), service)
        crowd.call([{}, arguments])
        until(lambda: service.targets().count("/v1/commit") == 2, "it does not wait for the first")
        service.gate.set()
        versions_of(crowd.end())
        assert service.streams() == []


@pytest.mark.parametrize(("size", "together"), [(ITEM_BYTES_MAX * 3 // 4 - 400, True), (ITEM_BYTES_MAX, False)])
def test_a_commit_above_64_kib_travels_alone(size: int, together: bool) -> None:
    async def go() -> None:
        with CommitService() as service:
            async with aio.Client(service.url, options=TOGETHER) as client:
                first = asyncio.create_task(client.commit(WRITE))
                await asyncio.to_thread(until, lambda: "/v1/commit" in service.targets())
                others = [asyncio.create_task(client.commit([Write(b"k", bytes(size))])) for _ in range(2)]
                if not together:
                    await asyncio.to_thread(until, lambda: service.targets().count("/v1/commit") == 3)
                service.gate.set()
                await asyncio.gather(first, *others)
            assert len(service.streams()) == together

    asyncio.run(go())


def test_nothing_is_shared_where_that_is_switched_off(connect: Connect) -> None:
    with CommitService() as service:
        crowd = Crowd(connect(service.url, options=dataclasses.replace(TOGETHER, gather=False)), service)
        crowd.call([{}] * 5)
        until(lambda: service.targets().count("/v1/commit") == 5)
        service.gate.set()
        versions_of(crowd.end())
        assert service.streams() == []


def test_what_waits_leaves_after_gather_ms_while_a_request_is_under_way(connect: Connect) -> None:
    with CommitService() as service:
        crowd = Crowd(connect(service.url, options=PATIENT), service)
        crowd.call([{}] * 4)
        until(lambda: len(service.versions) == 3, "they do not wait for the first")
        assert not service.gate.is_set()
        service.gate.set()
        versions_of(crowd.end())


def test_an_answer_is_given_as_soon_as_it_is_known(connect: Connect) -> None:
    known = threading.Event()

    def several(exchange: Exchange) -> None:
        first, *others = exchange.ids
        exchange.lines(*exchange.commit(first))
        assert known.wait(20)
        exchange.lines(*exchange.commit(*others))
        exchange.end()

    with CommitService(several=several) as service:
        crowd = Crowd(connect(service.url, options=TOGETHER), service)
        crowd.begin(3)
        service.gate.set()
        until(lambda: len(service.versions) == 2)
        until(lambda: sum(item.settled is not None for item in _items(crowd)) == 1, "the first line settles its commit")
        known.set()
        versions_of(crowd.end())


def test_no_answer_waits_for_the_end_of_the_response_and_the_connection_stays(connect: Connect) -> None:
    answered, ended = threading.Event(), threading.Event()

    def several(exchange: Exchange) -> None:
        exchange.lines(*exchange.commit(*exchange.ids))
        assert answered.wait(20)
        exchange.end()
        ended.set()

    with CommitService(several=several) as service:
        face = connect(service.url, options=TOGETHER)
        crowd = Crowd(face, service)
        crowd.begin(4)
        service.gate.set()
        versions_of(crowd.end())
        connections = service.connections
        answered.set()
        assert ended.wait(20)
        if face.name == "asyncio":
            face._runner.run(asyncio.to_thread(until, lambda: any(face.client.pool._idle.values())))
        face.call("commit", WRITE)
        assert service.connections == connections


def test_a_connection_whose_response_has_not_ended_keeps_no_thread_from_the_only_one_allowed() -> None:

    def several(exchange: Exchange) -> None:
        exchange.lines(*exchange.commit(*exchange.ids))
        over.wait(20)

    over = threading.Event()
    with CommitService(several=several) as service:
        face = BlockingFace(service.url, options=dataclasses.replace(TOGETHER, connections_max=1))
        crowd = Crowd(face, service)
        crowd.begin(4)
        service.gate.set()
        versions_of(crowd.end())
        assert face.call("version", local=True).version == 50
        over.set()
        face.close()


def _items(crowd: Crowd) -> list[Any]:
    return [item for shared in list(crowd.machine._under_way) for item in shared.items]


def test_of_a_crowd_each_commit_is_refused_as_if_it_were_alone(connect: Connect) -> None:
    def several(exchange: Exchange) -> None:
        one, _, three = exchange.ids
        exchange.lines(*exchange.commit(one), error_line("bad_range", 1), *exchange.commit(three))
        exchange.end()

    with CommitService(several=several) as service:
        crowd = Crowd(connect(service.url, options=TOGETHER), service)
        crowd.begin(3)
        service.gate.set()
        outcomes = crowd.end()
        refused = [each for each in outcomes if isinstance(each, HoldfastError)]
        assert [type(each) for each in refused] == [InvalidRequest]
        assert refused[0].code is Code.BAD_RANGE
        assert service.statuses() == []


def test_a_token_that_is_refused_is_refused_for_each(connect: Connect) -> None:
    with CommitService(several=lambda exchange: exchange.refuse(401, "unauthenticated")) as service:
        crowd = Crowd(connect(service.url, options=TOGETHER), service)
        crowd.begin(3)
        service.gate.set()
        first, *others = crowd.end()
        assert isinstance(first, CommitReceipt)
        assert [type(each) for each in others] == [PermissionDenied] * 3


def test_a_named_leader_is_followed_with_the_same_attempts(connect: Connect) -> None:
    with CommitService(gated=False) as leader:
        address = leader.url.removeprefix("http://")
        body = {"error": {"code": "not_leader", "message": "", "leader_address": address, "retry_after_ms": 60_000}}
        with CommitService(several=lambda exchange: exchange.reply(body, 503)) as other:
            crowd = Crowd(connect(other.url, options=TOGETHER), other)
            crowd.begin(3)
            other.gate.set()
            versions_of(crowd.end())
            assert sorted(leader.versions) == sorted(other.streams()[0])
            assert leader.statuses() == other.statuses() == []


def test_what_comes_after_the_end_of_a_stream_is_sent_again_at_once_and_nothing_is_asked(connect: Connect) -> None:
    def several(exchange: Exchange) -> None:
        if len(exchange.service.streams()) > 1:
            exchange.service.commit_several(exchange)
            return
        exchange.lines(*exchange.commit(exchange.ids[0]), error_line("too_large", 1, ends=True))
        exchange.end()
        exchange.cut()

    with CommitService(several=several) as service:
        crowd = Crowd(connect(service.url, options=TOGETHER), service)
        crowd.begin(5)
        service.gate.set()
        outcomes = crowd.end()
        assert sum(isinstance(each, HoldfastError) for each in outcomes) == 1
        first, second = service.streams()
        assert second == first[2:]
        assert service.statuses() == []


def test_after_a_lost_connection_each_caller_asks_for_its_own_outcome_and_nothing_is_sent_again(
    connect: Connect,
) -> None:
    def several(exchange: Exchange) -> None:
        exchange.lines(*exchange.commit(*exchange.ids[:2]))
        exchange.commit(*exchange.ids[2:4])  # they are committed, and their answers are lost
        exchange.service.several = exchange.service.commit_several
        exchange.cut()

    with CommitService(several=several) as service:
        crowd = Crowd(connect(service.url, options=TOGETHER), service)
        crowd.begin(6)
        service.gate.set()
        outcomes = crowd.end()
        assert versions_of(outcomes) == [service.versions[each.request_id] for each in outcomes]
        lost = service.streams()[0]
        assert sorted(service.statuses()) == sorted(lost[2:])
        # The two that had not committed are closed by the question, and are committed as other attempts.
        assert not set(lost[4:]) & set(service.versions)
        assert len(service.versions) == 7


def test_no_more_than_thirty_two_outcomes_are_asked_for_at_a_time(connect: Connect) -> None:
    asking: list[str] = []
    most: list[int] = []
    full = threading.Event()

    def status(exchange: Exchange) -> None:
        asking.append(exchange.path)
        most.append(len(asking))
        if len(asking) == IN_TURN_MAX:
            full.set()
        assert full.wait(20)
        asking.remove(exchange.path)
        exchange.service.say_status(exchange)

    def several(exchange: Exchange) -> None:
        exchange.commit(*exchange.ids)
        exchange.cut()

    with CommitService(several=several, status=status) as service:
        crowd = Crowd(connect(service.url, options=TOGETHER), service)
        crowd.begin(100)
        service.gate.set()
        versions_of(crowd.end())
        assert max(most) == IN_TURN_MAX
        assert len(service.statuses()) == 100


def test_a_server_that_does_not_know_the_route_gets_each_commit_alone_from_then_on(connect: Connect) -> None:
    with CommitService(several=lambda exchange: exchange.reply(b"no such page", 404)) as service:
        face = connect(service.url, options=TOGETHER)
        crowd = Crowd(face, service)
        crowd.begin(3)
        service.gate.set()
        versions_of(crowd.end())
        again = Crowd(face, service)
        again.call([{}] * 3)
        versions_of(again.end())
        assert service.targets().count("/v1/commits") == 1
        assert len(service.versions) == 7


def test_an_answer_to_another_commit_is_never_given(connect: Connect) -> None:
    def several(exchange: Exchange) -> None:
        lines = exchange.commit(*exchange.ids)
        exchange.lines(lines[0], lines[2], lines[1], lines[3])
        exchange.end()

    with CommitService(several=several) as service:
        crowd = Crowd(connect(service.url, options=TOGETHER), service)
        crowd.begin(4)
        service.gate.set()
        outcomes = crowd.end()
        assert versions_of(outcomes) == [service.versions[each.request_id] for each in outcomes]
        assert sorted(service.statuses()) == sorted(service.streams()[0][1:])


def test_a_commit_without_an_answer_in_its_time_ends_for_its_caller_alone(connect: Connect) -> None:
    """Its time begins with its call. Its line is dropped, and the connection carries the next request."""
    answers = threading.Event()

    def several(exchange: Exchange) -> None:
        assert answers.wait(20)
        exchange.service.commit_several(exchange)

    hurried = dataclasses.replace(TOGETHER, request_timeout_ms=300, resolve_within_ms=1)
    with CommitService(several=several, status=lambda exchange: exchange.refuse(503, "overloaded")) as service:
        face = connect(service.url, options=hurried)
        crowd = Crowd(face, service)
        crowd.begin(2)
        service.gate.set()
        outcomes = crowd.end()
        unknown = [each for each in outcomes if isinstance(each, OutcomeUnknown)]
        assert sorted(each.fields["request_id"] for each in unknown) == sorted(service.streams()[0])
        assert all(each.fields["min_version"] is not None for each in unknown)
        answers.set()


def test_reads_at_the_same_time_travel_together_and_each_gets_its_own_answer(connect: Connect) -> None:
    with CommitService() as service:
        face = connect(service.url, options=TOGETHER)
        keys = [b"k%d" % number for number in range(20)]
        crowd = Crowd(face, service)
        crowd.read(keys)
        service.gate.set()
        outcomes = crowd.end()
        assert [(each.key, each.value) for each in outcomes] == [(key, key) for key in keys]
        assert [target.rpartition("/")[0] for target in service.targets()] == ["/v1/keys", "/v1"]


def test_a_read_that_names_what_the_client_does_not_know_travels_alone(connect: Connect) -> None:
    with CommitService() as service:
        face = connect(service.url, options=TOGETHER)
        crowd = Crowd(face, service)
        crowd.read([b"a", b"b"])
        service.gate.set()
        crowd.end()
        face.call("get", b"c", at=10_000)
        assert "/v1/keys/Yw?at=10000" in [asked.target for asked in service.asked]


# ---- tasks


def test_a_task_that_is_cancelled_before_its_commit_is_sent_sends_nothing() -> None:
    async def go() -> None:
        with CommitService() as service:
            async with aio.Client(service.url, options=TOGETHER) as client:
                first, gone, other = (asyncio.create_task(client.commit(WRITE)) for _ in range(3))
                await asyncio.to_thread(until, lambda: len(client._commits.machine._waiting) == 2)
                gone.cancel()
                service.gate.set()
                await asyncio.gather(first, other)
                with pytest.raises(asyncio.CancelledError):
                    await gone
            assert len(service.versions) == 2

    asyncio.run(go())


def test_a_task_that_is_cancelled_after_that_leaves_the_others_and_the_connection() -> None:
    answers = threading.Event()

    def several(exchange: Exchange) -> None:
        lines = exchange.commit(*exchange.ids)
        assert answers.wait(20)
        exchange.lines(*lines)
        exchange.end()

    async def go() -> None:
        with CommitService(several=several) as service:
            async with aio.Client(service.url, options=TOGETHER) as client:
                tasks = [asyncio.create_task(client.commit(WRITE)) for _ in range(5)]
                await asyncio.to_thread(until, lambda: len(client._commits.machine._waiting) == 4)
                service.gate.set()
                await asyncio.to_thread(until, lambda: len(service.versions) == 5)
                tasks[2].cancel()
                await asyncio.sleep(0)
                assert tasks[2].cancelled()
                answers.set()
                found = await asyncio.gather(*tasks, return_exceptions=True)
                kept = [each for each in found if isinstance(each, CommitReceipt)]
                assert [each.version for each in kept] == [service.versions[str(each.request_id)] for each in kept]
                assert len(kept) == 4
                await asyncio.to_thread(until, lambda: any(client.pool._idle.values()))
                connections = service.connections
                service.several = service.commit_several
                await asyncio.gather(*(client.commit(WRITE) for _ in range(5)))
                assert service.connections == connections
                assert service.statuses() == []

    asyncio.run(go())


def test_a_shared_request_goes_on_when_every_caller_is_cancelled() -> None:
    async def go() -> None:
        with CommitService() as service:
            async with aio.Client(service.url, options=TOGETHER) as client:
                tasks = [asyncio.create_task(client.commit(WRITE)) for _ in range(3)]
                await asyncio.to_thread(until, lambda: len(client._commits.machine._waiting) == 2)
                service.gate.set()
                await tasks[0]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await client.commit(WRITE)
            assert service.statuses() == []

    asyncio.run(go())


def test_a_closed_client_ends_its_callers() -> None:
    async def go() -> None:
        with CommitService(several=lambda _: None) as service:
            client = aio.Client(service.url, options=TOGETHER)
            tasks = [asyncio.create_task(client.commit(WRITE)) for _ in range(4)]
            await asyncio.to_thread(until, lambda: len(client._commits.machine._waiting) == 3)
            service.gate.set()
            await tasks[0]
            await asyncio.to_thread(until, lambda: service.streams())
            await client.aclose()
            found = await asyncio.gather(*tasks[1:], return_exceptions=True)
            assert all(isinstance(each, Closed | OutcomeUnknown) for each in found), found
            with pytest.raises(Closed):
                await client.commit(WRITE)

    asyncio.run(go())


# ---- threads


class Interrupted(BaseException):
    """What a signal handler raises."""


def _interrupt(*_: object) -> None:
    raise Interrupted


@pytest.fixture
def interrupts() -> Any:
    before = signal.signal(signal.SIGUSR1, _interrupt)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("place", ["it drives", "it waits", "it is alone"])
def test_an_interrupted_thread_leaves_the_others_their_answers(place: str, interrupts: Callable[[], None]) -> None:
    answers = threading.Event()

    def several(exchange: Exchange) -> None:
        lines = exchange.commit(*exchange.ids)
        assert answers.wait(20)
        exchange.lines(*lines)
        exchange.end()

    with CommitService(several=several) as service, Client(service.url, options=TOGETHER) as client:
        machine = client._commits.machine
        found: list[CommitReceipt] = []
        threads = [threading.Thread(target=lambda: found.append(client.commit(WRITE))) for _ in range(4)]

        def others() -> None:
            if place == "it is alone":
                until(lambda: "/v1/commit" in service.targets())
            else:
                threads[0].start()
                until(lambda: "/v1/commit" in service.targets())
            for thread in threads[1:] if place != "it is alone" else threads:
                thread.start()
            start_main.set()
            until(lambda: len(machine._waiting) == 4, "all wait")
            if place == "it drives":
                service.gate.set()
                until(lambda: len(service.versions) == 5)
                until(lambda: sum(bool(each.until_ms) for each in client._commits._callers.values()) >= 3)
            interrupts()
            until(ended.is_set)
            service.gate.set()
            answers.set()

        start_main, ended = threading.Event(), threading.Event()
        director = threading.Thread(target=others)
        director.start()
        if place != "it is alone":
            start_main.wait(20)
        with pytest.raises(Interrupted):
            client.commit(WRITE)
        ended.set()
        director.join(20)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert len(found) == 4
        assert [each.version for each in found] == [service.versions[str(each.request_id)] for each in found]
        machine.check()


def test_interrupts_at_any_moment_lose_no_answer_of_another_thread(interrupts: Callable[[], None]) -> None:
    """The main thread is interrupted all the time; what the others get is theirs."""
    with CommitService(gated=False) as service, Client(service.url, options=PATIENT) as client:
        found: list[CommitReceipt] = []
        is_over = threading.Event()

        def commit_on() -> None:
            while not is_over.is_set():
                found.append(client.commit(WRITE))

        threads = [threading.Thread(target=commit_on) for _ in range(3)]
        for thread in threads:
            thread.start()

        def strike() -> None:
            while not is_over.is_set():
                interrupts()
                is_over.wait(0.002)

        striker = threading.Thread(target=strike)
        hits = 0
        try:
            striker.start()
            while hits < 150:
                try:
                    client.commit(WRITE)
                except Interrupted:
                    hits += 1
        except Interrupted:
            hits += 1
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            is_over.set()
            striker.join(20)
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive(), "every thread gets an answer"
        assert [each.version for each in found] == [service.versions[str(each.request_id)] for each in found]
        assert len({each.version for each in found}) == len(found)
        assert client.commit(WRITE).version


def test_a_child_has_nothing_of_what_waits_in_its_parent() -> None:
    with CommitService() as service, Client(service.url, options=TOGETHER) as client:
        client._commits.machine  # noqa: B018
        threads = [threading.Thread(target=client.commit, args=(WRITE,)) for _ in range(4)]
        threads[0].start()
        until(lambda: "/v1/commit" in service.targets())
        for thread in threads[1:]:
            thread.start()
        until(lambda: len(client._commits.machine._waiting) == 3)
        child = os.fork()
        if not child:
            try:
                gatherer = client._commits
                nothing = not gatherer.machine._waiting and not gatherer._callers and not client.pool._idle
                os._exit(0 if nothing and client.commit(WRITE).version else 1)
            finally:
                os._exit(2)
        until(lambda: service.targets().count("/v1/commit") == 2, "the child sends its own commit")
        service.gate.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert len(service.versions) == 5
