"""When a start without ``--take-over`` claims, and when it leaves the lead to who has it. Liveness only."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.integration.test_commit_service import Busy, Gate, answer_of, law, lead, put, shown
from tests.matrix import matrix

from holdfast.commit.leadership.evidence import LeaderAnswer, Reply
from holdfast.commit.leadership.takeover import AskLeader, now
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.errors import Closed, Code, Unavailable
from holdfast.objects.port import Listed
from holdfast.values import Instant

SHARED = "s3://bucket/log"
DEFAULT_ADDRESS = "127.0.0.1:8080"
FOR_EVER_MS = 600_000.0


def answering(leader_id: str | None) -> AskLeader:
    async def ask(*_: object) -> LeaderAnswer:
        return answer_of(leader_id)

    return ask


async def start(store: Gate, address: str, answer: str | None, **options: Any) -> CommitService:
    return await CommitService.lead(store, ServiceOptions(address=address, ask_leader=answering(answer), **options))


@pytest.mark.parametrize(
    ("address", "answer", "own_address"),
    [
        (DEFAULT_ADDRESS, "", DEFAULT_ADDRESS),  # two hosts with the default: who asks is answered by itself
        pytest.param(DEFAULT_ADDRESS, None, DEFAULT_ADDRESS, marks=pytest.mark.matrix),
        (DEFAULT_ADDRESS, "ab" * 16, "10.0.0.2:8080"),  # another log's leader listens on the host that asks
        pytest.param("10.0.0.1:8080", None, "10.0.0.2:8080", marks=pytest.mark.matrix),
    ],
)
@pytest.mark.parametrize("ahead_ms", matrix([0, 3_600_000]), ids=["clocks agree", "our clock is an hour ahead"])
def test_a_leader_that_writes_to_a_shared_store_is_left_in_peace(
    address: str, answer: str | None, own_address: str, ahead_ms: int
) -> None:
    async def scenario() -> None:
        store = Busy(url=SHARED)
        async with asyncio.timeout(30):
            store.leader = leader = await lead(store, address=address, address_is_bound=False, sign_interval_ms=200.0)
            await put(leader, b"k")

            def ahead() -> Instant:
                return Instant(now().boot_ms, now().wall_ms + ahead_ms)

            options = ServiceOptions(address=own_address, ask_leader=answering(answer))
            with pytest.raises(Closed) as caught:
                await CommitService.lead(store, options, clock=ahead)
            assert caught.value.code is Code.LEADER_ALIVE
            assert caught.value.fields["leader_id"] == leader.leader_id
            await leader.version()
            assert not leader.ended.done()
            await leader.close()

    asyncio.run(scenario())


@law
async def test_the_own_address_in_the_same_place_is_proof_enough_that_the_leader_died(store: Gate) -> None:
    how: dict[str, Any] = {"bound": (DEFAULT_ADDRESS,), "sign_interval_ms": FOR_EVER_MS}
    for url in ("file:///log", SHARED):
        store.url = url
        for answer, standby in (("", False), (None, False), ("", True), (None, True)):
            died = await lead(store, address=DEFAULT_ADDRESS, **how)
            await died.close()
            again = await start(store, DEFAULT_ADDRESS, answer, standby=standby, **how)
            assert again.takeover.deposed_leader_id == died.leader_id
            await again.close()


@law
async def test_an_address_that_refuses_in_the_same_place_is_proof_after_a_second(store: Gate) -> None:
    """Whatever it advertised: its sign says where it listened."""

    async def refuses(address: str, *_: object) -> LeaderAnswer:
        assert address == "127.0.0.1:9"
        return LeaderAnswer(Reply.REFUSES)

    store.url = SHARED
    leader = await lead(store, address="log.example:443", bound=("0.0.0.0:9",), sign_interval_ms=FOR_EVER_MS)
    await shown(leader)
    await leader.close()
    for standby in (False, True):
        options = ServiceOptions(address=DEFAULT_ADDRESS, ask_leader=refuses, standby=standby, probe=False)
        again = await CommitService.lead(store, options)
        assert again.takeover.steps_ms["polite_wait"] >= 999
        await again.close()
        store = Gate(url=SHARED)
        leader = await lead(store, address="log.example:443", bound=("0.0.0.0:9",), sign_interval_ms=FOR_EVER_MS)
        await shown(leader)
        await leader.close()


@pytest.mark.parametrize(
    ("leader_listens", "starter_listens", "left_alone"),
    # Where the leader listens is known to any process of that place; elsewhere nothing is proved.
    [(True, True, False), (False, True, True), (True, False, False), (False, False, True)],
)
def test_an_advertised_address_on_which_a_process_does_not_listen_proves_nothing(
    leader_listens: bool, starter_listens: bool, left_alone: bool
) -> None:
    """Two processes on one machine with one advertised name, which leads to a third one, do not depose each other."""

    async def scenario() -> None:
        store = Busy(url="file:///log")
        async with asyncio.timeout(30):
            listens = (DEFAULT_ADDRESS,) if leader_listens else ()
            leader = await lead(
                store, address=DEFAULT_ADDRESS, address_is_bound=leader_listens, bound=listens, sign_interval_ms=200.0
            )
            await put(leader, b"k")
            assert leader.claim.scope.is_known() is leader_listens
            store.leader = leader if left_alone else None
            how: dict[str, Any] = {"address_is_bound": starter_listens, "sign_interval_ms": 200.0}
            how["bound"] = (DEFAULT_ADDRESS,) if starter_listens else ()
            if left_alone:
                with pytest.raises(Closed) as caught:
                    await start(store, DEFAULT_ADDRESS, "", **how)
                assert caught.value.code is Code.LEADER_ALIVE
                await leader.version()
                assert not leader.ended.done()
            else:
                # The same address in the same place: who listened there before is gone.
                again = await start(store, DEFAULT_ADDRESS, "", **{**how, "sign_interval_ms": FOR_EVER_MS})
                assert again.takeover.deposed_leader_id == leader.leader_id
                await again.close()
            await leader.close()

    asyncio.run(scenario())


@law
async def test_who_died_on_a_shared_store_is_followed_once_the_log_was_silent(store: Gate) -> None:
    store.url = SHARED
    died = await lead(store, address=DEFAULT_ADDRESS, sign_interval_ms=50.0)
    await died.close()
    again = await start(store, DEFAULT_ADDRESS, "", sign_interval_ms=50.0)
    assert again.takeover.deposed_leader_id == died.leader_id
    await again.step_down()
    await start(store, DEFAULT_ADDRESS, "", sign_interval_ms=FOR_EVER_MS)  # who resigned is not waited for


@law
async def test_a_listing_that_fails_while_a_start_waits_for_silence_does_not_end_it(store: Gate) -> None:
    store.url = SHARED
    died = await lead(store, address=DEFAULT_ADDRESS, sign_interval_ms=50.0)
    await died.close()
    listing = store.list
    failures = iter((False, True, False, True, True))

    async def fails_now_and_then(prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
        if limit == 1 and next(failures, False):
            raise Unavailable("not now")
        return await listing(prefix, after=after, limit=limit)

    store.list = fails_now_and_then  # type: ignore[method-assign]
    again = await start(store, DEFAULT_ADDRESS, None, sign_interval_ms=50.0, probe=False)
    assert again.takeover.deposed_leader_id == died.leader_id
