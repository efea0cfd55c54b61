"""Which member of a cluster gets a request, how often, and what silence means: on connections without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast.errors import Unavailable
from holdfast.objects.etcd import members as module
from holdfast.objects.etcd.failures import CallFailed, Meaning
from holdfast.objects.etcd.members import Members
from holdfast.objects.etcd.procedures import NoReply
from holdfast.objects.etcd.wire import Compact, EtcdReply, GetKeys, PutKey, RemoveKey, Request, Txn
from holdfast.objects.port import StoreDenies

CREATE = Txn((), (PutKey(b"log/o/a", b"1"),))
REMOVAL = Txn((), (RemoveKey(b"log/o/a"),))
READ = GetKeys(b"log/o/a", any_member=True)
PROOF = GetKeys(b"log/o/", limit=1)


def answer_of(request: Request, cluster_id: int) -> bytes:
    """An answer that found nothing."""
    header = b"\x0a\x02\x08" + bytes((cluster_id,))
    return header if not isinstance(request, Txn) else header + b"\x10\x01" + b"\x1a\x02\x12\x00" * len(request.then)


class Member:
    """A connection that says what ``behaves`` says of each request, and keeps what it got."""

    def __init__(self, behaves: Callable[[Request], Meaning | None] = lambda _: None, cluster_id: int = 7) -> None:
        self.endpoint = "a:1"
        self.is_proved = False
        self.got: list[Request] = []
        self.behaves = behaves
        self.cluster_id = cluster_id
        self.is_silent = False

    async def call(self, request: Request) -> bytes:
        self.got.append(request)
        if self.is_silent:
            await asyncio.sleep(3600)
        meaning = self.behaves(request)
        if meaning is not None:
            raise CallFailed(meaning, meaning.name)
        return answer_of(request, self.cluster_id)

    async def close(self) -> None:
        """Nothing to do."""


def cluster_of(*members: Member, spread: bool = False) -> Members:
    return Members([*members], "etcd://a:1/log", b"log/o/", spread=spread)


def fails(meaning: Meaning) -> Callable[[Request], Meaning | None]:
    return lambda _: meaning


def fails_writes(meaning: Meaning) -> Callable[[Request], Meaning | None]:
    return lambda request: meaning if isinstance(request, Txn) else None


def test_a_transaction_goes_to_one_proved_member_once_and_a_failure_ends_it() -> None:
    async def scenario() -> None:
        first, second = Member(fails_writes(Meaning.NO_ANSWER)), Member()
        cluster = cluster_of(first, second)
        assert await cluster.send(CREATE) == NoReply("NO_ANSWER")
        assert first.got == [PROOF, CREATE]
        assert second.got == []
        assert isinstance(await cluster.send(CREATE), EtcdReply), "the next attempt begins at the next member"
        assert isinstance(await cluster.send(CREATE), EtcdReply)
        assert second.got == [PROOF, CREATE, CREATE]
        assert first.got == [PROOF, CREATE]

    asyncio.run(scenario())


def test_a_member_that_left_a_create_without_an_answer_is_proved_before_the_next() -> None:
    async def scenario() -> None:
        first = Member(fails_writes(Meaning.NO_ANSWER))
        cluster = cluster_of(first, Member())
        await cluster.send(CREATE)
        await cluster.ask(READ)
        first.behaves = lambda request: None if request == READ else Meaning.NO_ANSWER  # cut off from the majority
        cluster._preferred = 0  # a late reply of it to a read does so
        first.got.clear()
        assert isinstance(await cluster.send(CREATE), EtcdReply)
        assert first.got == [PROOF], "it got no create"

    asyncio.run(scenario())


def test_a_member_that_cannot_be_proved_gets_no_transaction() -> None:
    async def scenario() -> None:
        first, second = Member(fails(Meaning.NO_ANSWER)), Member()
        assert isinstance(await cluster_of(first, second).send(CREATE), EtcdReply)
        assert first.got == [PROOF]
        first = Member(fails(Meaning.NO_ANSWER))
        assert await cluster_of(first).send(CREATE) == NoReply("NO_ANSWER", final=False)
        assert first.got == [PROOF]

    asyncio.run(scenario())


def test_a_connection_that_ended_is_proved_again() -> None:
    async def scenario() -> None:
        first = Member()
        cluster = cluster_of(first)
        await cluster.send(CREATE)
        first.is_proved = False
        await cluster.send(CREATE)
        assert first.got == [PROOF, CREATE, PROOF, CREATE]

    asyncio.run(scenario())


def test_nothing_is_written_into_another_cluster_and_only_that_everywhere_is_final() -> None:
    async def scenario() -> None:
        ours, foreign = Member(), Member(cluster_id=9)
        cluster = cluster_of(ours, foreign)
        await cluster.ask(READ)
        ours.behaves = fails(Meaning.NO_ANSWER)
        answer = await cluster.send(CREATE)
        assert isinstance(answer, NoReply)
        assert not answer.final
        with pytest.raises(Unavailable) as raised:
            await cluster.ask(REMOVAL)
        assert not isinstance(raised.value, StoreDenies)
        ours.behaves, ours.cluster_id, ours.is_proved = lambda _: None, 9, False
        answer = await cluster.send(CREATE)
        assert isinstance(answer, NoReply)
        assert answer.final
        with pytest.raises(StoreDenies):
            await cluster.ask(READ)
        assert not any(isinstance(each, Txn) for each in foreign.got + ours.got)

    asyncio.run(scenario())


def test_a_cluster_that_took_the_place_of_ours_after_the_proof_is_no_answer() -> None:
    async def scenario() -> None:
        member = Member()
        cluster = cluster_of(member)
        await cluster.send(CREATE)
        member.cluster_id = 9
        assert isinstance(await cluster.send(CREATE), NoReply)
        assert not member.is_proved

    asyncio.run(scenario())


@pytest.mark.parametrize("meaning", [Meaning.DENIED, Meaning.TOO_LARGE])
def test_what_every_member_refuses_is_final_and_asked_once(meaning: Meaning) -> None:
    async def scenario() -> None:
        first, second = Member(fails(meaning)), Member(fails(meaning))
        cluster = cluster_of(first, second)
        assert await cluster.send(CREATE) == NoReply(meaning.name, final=True)
        assert len(first.got + second.got) == 1
        with pytest.raises(StoreDenies):
            await cluster.ask(READ)
        assert len(first.got + second.got) == 2

    asyncio.run(scenario())


def test_a_login_that_is_asked_for_is_unknown_to_a_create_and_another_member_to_a_read() -> None:
    async def scenario() -> None:
        first, second = Member(fails_writes(Meaning.LOG_IN_AGAIN)), Member()
        cluster = cluster_of(first, second)
        assert await cluster.send(CREATE) == NoReply("LOG_IN_AGAIN", final=False)
        first.behaves = fails(Meaning.LOG_IN_AGAIN)
        assert isinstance(await cluster_of(first, second).ask(READ), EtcdReply)

    asyncio.run(scenario())


def test_a_read_goes_to_the_second_member_when_the_first_is_silent_and_a_removal_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        first, second = Member(), Member()
        first.is_silent = True
        assert isinstance(await cluster_of(first, second).ask(READ), EtcdReply)
        assert (first.got, second.got) == ([READ], [READ])
        first.is_proved = True
        asked = asyncio.create_task(cluster_of(first, second).ask(REMOVAL))
        done, _ = await asyncio.wait([asked], timeout=20 * module.HEDGE_SECONDS)
        assert not done
        assert second.got == [READ]
        asked.cancel()

    monkeypatch.setattr(module, "HEDGE_SECONDS", 0.01)
    asyncio.run(scenario())


def test_after_a_failure_a_read_goes_on_at_once_and_a_round_without_an_answer_is_unavailable() -> None:
    async def scenario() -> None:
        members = [Member(fails(Meaning.NO_ANSWER)) for _ in range(3)]
        with pytest.raises(Unavailable, match="NO_ANSWER; NO_ANSWER; NO_ANSWER"):
            await cluster_of(*members).ask(READ)
        assert [len(member.got) for member in members] == [1, 1, 1]

    asyncio.run(scenario())


def test_spread_requests_begin_at_every_member() -> None:
    async def scenario() -> None:
        members = [Member(), Member(), Member()]
        cluster = cluster_of(*members, spread=True)
        for _ in range(6):
            await cluster.send(CREATE)
        assert [member.got.count(CREATE) for member in members] == [2, 2, 2]

    asyncio.run(scenario())


def test_a_compaction_goes_to_a_proved_member_and_may_have_been_carried_out_before() -> None:
    async def scenario() -> None:
        lost = Member(lambda request: Meaning.NO_ANSWER if isinstance(request, Compact) else None)
        done = Member(lambda request: Meaning.COMPACTED if isinstance(request, Compact) else None)
        assert isinstance(await cluster_of(lost, done).ask(Compact(9)), EtcdReply)
        assert (lost.got, done.got) == ([PROOF, Compact(9)], [PROOF, Compact(9)])

    asyncio.run(scenario())
