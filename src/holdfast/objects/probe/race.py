"""The race: two processes create the same names at the same time, and exactly one create of each may take effect.

Every name is read by both processes when its creates have ended, and again ``LATER_SECONDS`` after the last one. All
objects are under ``probe/`` and are removed; a crash leaves some.

A race proves what it saw: the gateways behind the connections of this machine, at this time. It does not see a gateway
that this machine never reaches, for example because a balancer sends each client to one of them.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, assert_never

from holdfast.errors import Code, InvalidRequest, Unavailable
from holdfast.objects.endpoint import addresses_of, endpoint_of
from holdfast.objects.port import ObjectStore
from holdfast.objects.probe.contest import (
    PREFIX,
    UNFIT,
    Contest,
    LocalSide,
    Patience,
    Side,
    Sleep,
    clean_up,
    finish_all,
    plan_race,
    settle,
    unfit,
)
from holdfast.objects.probe.racer import PROCESSES, racing_processes
from holdfast.objects.probe.results import RaceResult, keep_result, result_of
from holdfast.objects.probe.verdict import Fit, Undecided, UnfitStore, judge

PATIENCE: Final = Patience(again_max=5, pause_seconds=0.2, lead_seconds=0.01)
LATER_SECONDS: Final = 2.0
RACE_SECONDS_MAX: Final = 300.0


async def race(store: ObjectStore, url: str) -> None:
    """Race on the store of ``url``, and return if it is fit. ``store`` removes the names, and takes part itself where
    no other process reaches it (``memory:``).

    Raises: InvalidRequest (store_unfit), Unavailable (the store did not answer clearly, or in ``RACE_SECONDS_MAX``).
    Cost: 320 creates, of which 32 have 1 MiB, and 80 reads; about four seconds on a store nearby.
    """
    contests = plan_race(f"{PREFIX}{secrets.token_hex(16)}", random.random)
    names: list[str] = []
    try:
        async with asyncio.timeout(RACE_SECONDS_MAX), _sides(store, url) as sides:
            await run_race(sides, contests, store.url, names)
    except TimeoutError as error:
        raise Unavailable("the race did not end in time", url=store.url, seconds_max=RACE_SECONDS_MAX) from error
    finally:
        await clean_up(store, names)


async def race_and_keep(store: ObjectStore, url: str, environment: Mapping[str, str]) -> RaceResult:
    """Race, and keep the result, fit or not (``results``). Returns a fit one.

    Raises: InvalidRequest (store_unfit; kept if the store takes it), Unavailable (nothing is kept).
    """
    endpoint = endpoint_of(url, environment)
    refusal: InvalidRequest | None = None
    try:
        await race(store, url)
    except InvalidRequest as error:
        if error.code is not Code.STORE_UNFIT:
            raise
        refusal = error
    why = "" if refusal is None else refusal.message.removeprefix(UNFIT)
    result = result_of(endpoint, time.time(), why, await asyncio.to_thread(addresses_of, endpoint))
    try:
        await keep_result(store, result)
    except Unavailable:
        if refusal is None:
            raise
    if refusal is not None:
        raise refusal
    return result


async def run_race(
    sides: Sequence[Side], contests: Sequence[Contest], url: str, names: list[str], sleep: Sleep = asyncio.sleep
) -> None:
    """Race all names, one after the other, and read them again later. ``names`` collects what may exist.

    Raises: as ``race``.
    """
    settled = [await settle(sides, contest, url, names, PATIENCE, sleep) for contest in contests]
    await sleep(LATER_SECONDS)
    entered = [each.contest for each in settled]
    later = await finish_all([side.see(entered) for side in sides])
    for number, each in enumerate(settled):
        verdict = judge(each.answers, [each.reads, [reads[number] for reads in later]])
        match verdict:
            case Fit():
                pass
            case UnfitStore(why=why):
                unfit(url, why)
            case Undecided(why=why):
                raise Unavailable("the object store did not show what it holds", url=url, cause=why)
            case _:
                assert_never(verdict)


@asynccontextmanager
async def _sides(store: ObjectStore, url: str) -> AsyncGenerator[Sequence[Side]]:
    if url.partition(":")[0].lower() == "memory":
        yield [LocalSide(store)] * PROCESSES
        return
    async with racing_processes(url) as processes:
        yield processes
