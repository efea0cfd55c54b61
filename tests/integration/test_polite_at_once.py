"""When several start at once, and the log changes hands while one of them asks; and the exit code that tells a bug."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_commit_service import Gate, answer_of, law, lead, put

from holdfast.commit.format.batch import PREFIX
from holdfast.commit.leadership import takeover_machine
from holdfast.commit.leadership.evidence import LeaderAnswer
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.errors import Closed, Code, CorruptData, HoldfastError, InternalError, Unavailable
from holdfast.objects.port import Listed
from holdfast.server.exits import exit_code_of

DIRECTORY = "file:///log"
SHARED = "s3://bucket/log"
ONE = "127.0.0.1:8081"
OTHER = "127.0.0.1:8082"
FOR_EVER_MS = 600_000.0


def answering(answers: Iterable[str | None]) -> Callable[[str], Awaitable[str | None]]:
    rest = iter(answers)

    async def ask(_: str) -> str | None:
        return next(rest)

    return ask


async def start(store: Gate, ask: Callable[[str], Awaitable[str | None]], **options: Any) -> CommitService:
    async def asked(address: str, *_: object) -> LeaderAnswer:
        return answer_of(await ask(address))

    how = ServiceOptions(address=OTHER, ask_leader=asked, probe=False, **options)
    return await CommitService.lead(store, how)


@pytest.mark.parametrize("url", [DIRECTORY, SHARED])
def test_who_has_claimed_and_does_not_lead_yet_is_left_to_lead(url: str) -> None:
    @law
    async def scenario(store: Gate) -> None:
        store.url = url
        before = await lead(store, address=ONE)
        await before.step_down()
        listing, claimed, told = store.list, asyncio.Event(), asyncio.Event()

        async def of_the_first(prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
            if limit == 1 and prefix == PREFIX:  # its claim stands, and it looks whether anybody is past it
                claimed.set()
                await told.wait()
            return await listing(prefix, after=after, limit=limit)

        store.list = of_the_first  # type: ignore[method-assign]
        first = asyncio.ensure_future(CommitService.lead(store, ServiceOptions(address=ONE, probe=False)))
        await claimed.wait()
        store.list = listing  # type: ignore[method-assign]

        async def ask(_: str) -> str:
            if not told.is_set():
                told.set()
                return ""
            return (await first).leader_id

        with pytest.raises(Closed) as caught:
            await start(store, ask, sign_interval_ms=400.0)
        leader = await first
        assert caught.value.code is Code.LEADER_ALIVE
        assert caught.value.fields["leader_id"] == leader.leader_id
        await leader.version()
        assert not leader.ended.done()
        await leader.close()

    scenario()


@law
async def test_who_claimed_and_never_comes_to_lead_is_followed_once_the_log_was_silent(store: Gate) -> None:
    store.url = DIRECTORY
    died = await lead(store, address=ONE, sign_interval_ms=50.0)
    await died.close()
    # A standby of the same address, say: it answers, and waits as long as everybody else.
    again = await start(store, answering([""] * 100), sign_interval_ms=50.0)
    assert again.takeover.deposed_leader_id == died.leader_id


@law
async def test_who_led_and_answers_in_the_same_place_that_it_does_not_is_gone(store: Gate) -> None:
    store.url = DIRECTORY
    deposed = await lead(store, address=ONE)
    await put(deposed, b"k")
    await deposed.close()
    again = await start(store, answering([""]), sign_interval_ms=FOR_EVER_MS)
    assert again.takeover.deposed_leader_id == deposed.leader_id


@law
async def test_another_leader_at_the_address_in_the_same_place_is_proof_that_the_claimant_is_gone(store: Gate) -> None:
    store.url = DIRECTORY
    died = await lead(store, address=ONE)
    await died.close()
    again = await start(store, answering(["ab" * 16]), sign_interval_ms=FOR_EVER_MS)
    assert again.takeover.deposed_leader_id == died.leader_id


@pytest.mark.parametrize("url", [DIRECTORY, SHARED])
def test_who_resigns_when_it_is_asked_is_followed_at_once(url: str) -> None:
    @law
    async def scenario(store: Gate) -> None:
        store.url = url
        old = await lead(store, address=ONE)

        async def ask(_: str) -> str:
            await old.step_down()
            return ""

        again = await start(store, ask, sign_interval_ms=FOR_EVER_MS)
        assert again.takeover.deposed_leader_id is None

    scenario()


@pytest.mark.parametrize("resigned", [False, True], ids=["died", "resigned"])
def test_a_leader_that_came_while_another_was_waited_for_is_asked_too(
    resigned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover_machine, "STALE_MS", -1.0)  # every frontier is found anew

    @law
    async def scenario(store: Gate) -> None:
        store.url = DIRECTORY
        before = await lead(store, address=ONE)
        await put(before, b"k")
        living = before
        listing = store.list
        founds = 0

        async def find(prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
            nonlocal living, founds
            founds += limit > 1
            if limit > 1 and founds == 2:
                store.list = listing  # type: ignore[method-assign]
                living = await lead(store, address=ONE)
            return await listing(prefix, after=after, limit=limit)

        if resigned:
            await before.step_down()
        else:
            await before.close()

        async def ask(_: str) -> str:
            return "" if living is before else living.leader_id

        store.list = find  # type: ignore[method-assign]
        with pytest.raises(Closed) as caught:
            await start(store, ask, sign_interval_ms=FOR_EVER_MS)
        assert caught.value.code is Code.LEADER_ALIVE
        assert caught.value.fields["leader_id"] == living.leader_id
        await living.version()
        assert not living.ended.done()
        await living.close()

    scenario()


@law
async def test_a_log_that_changes_hands_whenever_somebody_asks_is_given_up_in_bounded_time(store: Gate) -> None:
    store.url = DIRECTORY
    leaders = [await lead(store, address=ONE)]

    async def ask(_: str) -> str:
        leaders.append(await lead(store, address=ONE))
        await put(leaders[-1], b"k")
        return "ab" * 16

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(takeover_machine, "STALE_MS", -1.0)
        patch.setattr(takeover_machine, "RESTARTS_MAX", 3)
        with pytest.raises(Unavailable) as caught:
            await start(store, ask, sign_interval_ms=FOR_EVER_MS)
    assert caught.value.code is Code.LEADER_CHANGED
    assert len(leaders) == 4
    await leaders[-1].version()
    for leader in leaders:
        await leader.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("the store does not answer"), 6),
        (Unavailable("the store failed its probe", code=Code.STORE_UNFIT), 6),
        (CorruptData("the log is damaged"), 6),
        (InternalError("a bug"), 70),
    ],
)
def test_a_start_tells_a_store_that_fails_from_a_bug_of_ours(error: HoldfastError, code: int) -> None:
    assert exit_code_of(error) == code


BROKEN = """
import sys
from holdfast.cli.main import main
from {module} import {owner}

def broken(*_, **__):
    raise AssertionError("planted")

{owner}.{law} = broken
sys.exit(main(["serve", "--init", "--log", sys.argv[1], "--listen", "127.0.0.1:0"]))
"""


@pytest.mark.parametrize(
    ("module", "owner", "law_of", "leads"),
    [
        ("holdfast.commit.leadership", "takeover_machine", "claim_header", False),
        ("holdfast.commit.stages.pipeline", "Pipeline", "step", True),
    ],
    ids=["at the start", "while it leads"],
)
def test_a_service_that_broke_a_law_of_its_own_exits_70(
    module: str, owner: str, law_of: str, leads: bool, tmp_path: Path
) -> None:
    planted = BROKEN.format(module=module, owner=owner, law=law_of)
    with subprocess.Popen(
        [sys.executable, "-c", planted, (tmp_path / "log").as_uri()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": "src"},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready") is leads
            if leads:
                process.terminate()  # to drain is the first step that the law is asked for
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 70 and "invariant_violated" in errors and "planted" in errors
