"""Turns of clients: bounded for one and for all, in order, and none is lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from holdfast.server.http.answers import ClientTurns


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_client_with_many_waiting_does_not_keep_another_one_waiting() -> None:
    async def scenario() -> None:
        turns = ClientTurns(2, 1)
        had: list[str] = []

        async def act(client: str, name: str, until: asyncio.Event) -> None:
            await turns.take(client)
            had.append(name)
            await until.wait()
            turns.give(client)

        ends = [asyncio.Event() for _ in range(5)]
        tasks = [asyncio.ensure_future(act("a", f"a{number}", ends[number])) for number in range(3)]
        tasks.append(asyncio.ensure_future(act("b", "b", ends[3])))
        await settle()
        assert had == ["a0", "b"]
        assert turns.is_awaited("a")
        tasks.append(asyncio.ensure_future(act("c", "c", ends[4])))
        await settle()
        ends[0].set()
        await settle()
        assert had == ["a0", "b", "a1"]
        ends[1].set()
        await settle()
        assert had == ["a0", "b", "a1", "c"], "the next one of `a` comes after that of `c`"
        for end in ends:
            end.set()
        await asyncio.gather(*tasks)
        assert not turns.is_awaited("a")
        turns.check()

    asyncio.run(scenario())


def test_turns_are_bounded_and_none_is_lost_whoever_gives_up() -> None:
    async def scenario(chance: random.Random) -> None:
        turns = ClientTurns(4, 2)
        running: dict[str, int] = dict.fromkeys("abc", 0)

        async def act(client: str) -> None:
            await turns.take(client)
            running[client] += 1
            try:
                assert running[client] <= 2 and sum(running.values()) <= 4
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
            finally:
                running[client] -= 1
                turns.give(client)

        tasks = [asyncio.ensure_future(act(chance.choice("abc"))) for _ in range(60)]
        while not all(task.done() for task in tasks):
            if chance.random() < 0.4:
                chance.choice(tasks).cancel()
            turns.check()
            await asyncio.sleep(0)
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        turns.check()
        assert not any(turns.is_awaited(client) for client in "abc")
        for client in "abc":  # every turn is free again
            for _ in range(1 if client != "a" else 2):
                await asyncio.wait_for(turns.take(client), 1)

    for seed in range(30):
        asyncio.run(scenario(random.Random(seed)))
