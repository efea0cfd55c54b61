"""When a start without ``--take-over`` claims, and when it leaves the lead to who has it. Liveness only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.integration.test_commit_service import Busy, Gate, law, lead, put
from tests.matrix import matrix

from holdfast.commit.leadership.claims import Heartbeat, encode_proof
from holdfast.commit.leadership.takeover import now
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.errors import Closed, Code, Unavailable
from holdfast.objects.port import Listed
from holdfast.values import Instant, Slot

SHARED = "s3://bucket/log"
DEFAULT_ADDRESS = "127.0.0.1:8080"
FOR_EVER_MS = 3_600_000.0


def answering(leader_id: str | None) -> Callable[[str], Awaitable[str | None]]:
    async def ask(_: str) -> str | None:
        return leader_id

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
            store.leader = leader = await lead(store, address=address)
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
async def test_on_a_directory_the_same_address_is_proof_enough_that_the_leader_died(store: Gate) -> None:
    store.url = "file:///log"
    for answer in ("", None):
        died = await lead(store, address=DEFAULT_ADDRESS)
        await died.close()
        again = await start(store, DEFAULT_ADDRESS, answer, silence_ms=FOR_EVER_MS)
        assert again.takeover.deposed_leader_id == died.leader_id


@pytest.mark.parametrize(
    ("leader_listens", "starter_listens", "left_alone"),
    [(True, True, False), (False, True, True), (True, False, True), (False, False, True)],
)
def test_an_advertised_address_on_which_a_process_does_not_listen_proves_nothing(
    leader_listens: bool, starter_listens: bool, left_alone: bool
) -> None:
    """Two processes on one machine with one advertised name, which leads to a third one, do not depose each other."""

    async def scenario() -> None:
        store = Busy(url="file:///log")
        async with asyncio.timeout(30):
            leader = await lead(store, address=DEFAULT_ADDRESS, address_is_bound=leader_listens)
            await put(leader, b"k")
            assert leader.claim.scope.is_known() is leader_listens
            store.leader = leader if left_alone else None
            how: dict[str, Any] = {"address_is_bound": starter_listens, "silence_ms": 200.0}
            if left_alone:
                with pytest.raises(Closed) as caught:
                    await start(store, DEFAULT_ADDRESS, "", **how)
                assert caught.value.code is Code.LEADER_ALIVE
                await leader.version()
                assert not leader.ended.done()
            else:
                # The same address in the same place: who listened there before is gone.
                again = await start(store, DEFAULT_ADDRESS, "", **{**how, "silence_ms": FOR_EVER_MS})
                assert again.takeover.deposed_leader_id == leader.leader_id
                await again.close()
            await leader.close()

    asyncio.run(scenario())


@law
async def test_who_died_on_a_shared_store_is_followed_once_the_log_was_silent(store: Gate) -> None:
    store.url = SHARED
    died = await lead(store, address=DEFAULT_ADDRESS)
    await died.close()
    again = await start(store, DEFAULT_ADDRESS, "", silence_ms=1.0)
    assert again.takeover.deposed_leader_id == died.leader_id
    await again.step_down()
    await start(store, DEFAULT_ADDRESS, "", silence_ms=FOR_EVER_MS)  # who resigned is not waited for


@law
async def test_a_standby_proves_with_each_question_that_it_can_read_the_log(store: Gate) -> None:
    store.url = SHARED
    leader = await lead(store, address=DEFAULT_ADDRESS, standbys_prove=True)
    proofs: list[str] = []

    async def ask(address: str, proof: str) -> str:
        assert address == DEFAULT_ADDRESS
        proofs.append(proof)
        if len(proofs) == 2:
            await put(leader, b"k")
        if len(proofs) == 3:
            await leader.step_down()
        return "" if leader.ended.done() else leader.leader_id

    options = ServiceOptions(address="10.0.0.2:8080", standby=True, ask_as_standby=ask, heartbeat_ms=8.0)
    again = await CommitService.lead(store, options)
    assert len(proofs) == 3
    for proof in proofs:
        leader.standby_seen("10.0.0.2:8080", proof)
        assert leader._heartbeat.next_ms(now().boot_ms) is not None
        leader._heartbeat = Heartbeat(silence_ms=2_000.0, heartbeat_ms=500.0)
    # An object of a batch proves it as well as the claim.
    batch = Slot(leader.claim.slot - 1)
    await put(again, b"k")
    header = again.durable_header()
    assert header.slot != again.claim.slot
    assert again._has_read_the_log(encode_proof(header.slot, header.nonce))
    assert not again._has_read_the_log(encode_proof(batch, header.nonce))


@law
async def test_a_listing_that_fails_while_a_start_waits_for_silence_does_not_end_it(store: Gate) -> None:
    store.url = SHARED
    died = await lead(store, address=DEFAULT_ADDRESS)
    await died.close()
    listing = store.list
    failures = iter((False, True, False, True, True))

    async def fails_now_and_then(prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
        if limit == 1 and next(failures, False):
            raise Unavailable("not now")
        return await listing(prefix, after=after, limit=limit)

    store.list = fails_now_and_then  # type: ignore[method-assign]
    again = await start(store, DEFAULT_ADDRESS, None, silence_ms=1.0, probe=False)
    assert again.takeover.deposed_leader_id == died.leader_id
