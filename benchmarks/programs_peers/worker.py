"""One program: it runs bursts of a lane with one system's client, as its standard input asks for them.

    python worker.py SYSTEM tasks|threads PORT PID

Each line of its input is a burst, ``[LANE, TASKS, SECONDS]``, each line of its output what was measured. A burst has a
client of its own; a short time of the same load comes before and is not counted. A lane proves what it counts: each
value that is read is compared with the one that was written, and after the burst every commit is read back.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parent.parent))

from _generators import percentile
from _processes import Busy

from programs_peers.clients import CLIENTS, Client, Pair, plus_one
from programs_peers.ways import WAYS, Way

__all__ = ["LANES"]

WARM_PART = 0.2
KEYS = 1_000
SEVERAL = 10
RANGE = 100
FILLED_AT_ONCE = 100
READ_BACK_AT_ONCE = 500
STEP = 7_919
"""A prime: the keys that a task reads one after another are far apart."""


class CheckFailed(Exception):
    """The load was not what it claims to be: the figures mean nothing."""


def value_of(key: bytes) -> bytes:
    """100 bytes that belong to this key only."""
    return key.ljust(100, b".")


def require(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise CheckFailed(f"{what}: {found!r:.300} instead of {expected!r:.300}")


class Lane(Protocol):
    """What the tasks of a burst do."""

    def __init__(self, client: Client, way: Way, prefix: bytes) -> None: ...

    async def prepare(self) -> None:
        """Before the load."""
        ...

    async def one(self, task: int, number: int) -> None:
        """The request with this number of a task. Raises: CheckFailed."""
        ...

    async def check(self, done: list[int]) -> None:
        """After the load, with the requests of each task. Raises: CheckFailed."""
        ...


class Commit:
    """A new key each time."""

    each = 1

    def __init__(self, client: Client, way: Way, prefix: bytes) -> None:
        self._client = client
        self._way = way
        self._prefix = prefix

    def key(self, task: int, number: int) -> bytes:
        return b"%b%03d/%08d" % (self._prefix, task, number)

    async def prepare(self) -> None:
        pass

    async def one(self, task: int, number: int) -> None:
        key = self.key(task, number)
        await self._client.commit(key, value_of(key))

    async def check(self, done: list[int]) -> None:
        for task, requests in enumerate(done):
            keys = [self.key(task, number) for number in range(requests * self.each)]
            for begin in range(0, len(keys), READ_BACK_AT_ONCE):
                part = keys[begin : begin + READ_BACK_AT_ONCE]
                values = await self._client.read_back(part)
                for key, value in zip(part, values, strict=True):
                    require(value, value_of(key), f"the commit of {key!r}")


class CommitAfterGet(Commit):
    """The same, on connections that have all had a get: a program that reads, too."""

    async def one(self, task: int, number: int) -> None:
        if number == 0:  # before anything is counted
            require(await self._client.get(self.key(task, 0)), None, "a key before its commit")
        await super().one(task, number)


class Several(Commit):
    """Ten new keys in one transaction."""

    each = SEVERAL

    async def one(self, task: int, number: int) -> None:
        keys = [self.key(task, number * SEVERAL + index) for index in range(SEVERAL)]
        await self._client.commit_many([(key, value_of(key)) for key in keys])


class Stream(Commit):
    """A commit, and its event in the change stream of the same program."""

    async def prepare(self) -> None:
        self._waiting: dict[bytes, Any] = {}
        self._stop = await self._client.follow(self._prefix, self._arrived, self._failed)

    async def one(self, task: int, number: int) -> None:
        key = self.key(task, number)
        event = self._waiting[key] = self._way.promise()
        await self._client.commit_followed(key, value_of(key))
        require(await self._way.answer(event), value_of(key), f"the event of {key!r}")

    async def check(self, done: list[int]) -> None:
        await self._stop()
        require(list(self._waiting), [], "commits without an event")
        await super().check(done)

    def _arrived(self, key: bytes, value: bytes) -> None:
        self._waiting.pop(key).set_result(value)

    def _failed(self, error: BaseException) -> None:
        for event in self._waiting.values():
            event.set_exception(error)


class Get:
    """One of 1,000 keys."""

    def __init__(self, client: Client, way: Way, prefix: bytes) -> None:
        self._client = client
        keys = [b"%b%04d" % (prefix, number) for number in range(KEYS)]
        self._pairs: list[Pair] = [(key, value_of(key)) for key in keys]

    async def prepare(self) -> None:
        for begin in range(0, KEYS, FILLED_AT_ONCE):
            await self._client.fill(self._pairs[begin : begin + FILLED_AT_ONCE])

    async def one(self, task: int, number: int) -> None:
        key, value = self._pairs[(task + number) * STEP % KEYS]
        require(await self._client.get(key), value, "a get")

    async def check(self, done: list[int]) -> None:
        pass


class GetLinearizable(Get):
    """The same, and never an older value."""

    async def one(self, task: int, number: int) -> None:
        key, value = self._pairs[(task + number) * STEP % KEYS]
        require(await self._client.get_linearizable(key), value, "a linearizable get")


class Range(Get):
    """100 neighbours of the 1,000 keys, with their values."""

    async def one(self, task: int, number: int) -> None:
        begin = (task + number) * STEP % (KEYS - RANGE)
        found = await self._client.range(self._pairs[begin][0], self._pairs[begin + RANGE][0])
        require(found, self._pairs[begin : begin + RANGE], "a range")


class Transact(Commit):
    """Read, check, write: each task counts in a key of its own, so there are no conflicts."""

    async def one(self, task: int, number: int) -> None:
        await self._client.add_one(self.key(task, 0))

    async def check(self, done: list[int]) -> None:
        for task, requests in enumerate(done):
            (value,) = await self._client.read_back([self.key(task, 0)])
            require(value, plus_one(b"%d" % (requests - 1)), f"transactions of task {task}")


LANES: dict[str, Callable[[Client, Way, bytes], Lane]] = {
    "commit": Commit,
    "commit after a get": CommitAfterGet,
    "get": Get,
    "get, linearizable": GetLinearizable,
    "range of 100": Range,
    "transact": Transact,
    "10 keys in one commit": Several,
    "commit to its event": Stream,
}


class Load:
    """The tasks of one burst."""

    def __init__(self, lane: Lane, way: Way, tasks: int) -> None:
        self._lane = lane
        self._way = way
        self.done = [0] * tasks

    async def run(self, seconds: float) -> tuple[float, list[float]]:
        """How long it was, and the seconds of each request."""
        taken: list[float] = []
        began = time.perf_counter()
        await self._way.together(self._work(task, began + seconds, taken) for task in range(len(self.done)))
        return time.perf_counter() - began, taken

    async def _work(self, task: int, end: float, taken: list[float]) -> None:
        clock, one, number = time.perf_counter, self._lane.one, self.done[task]
        now = clock()
        while True:
            await one(task, number)
            number += 1
            after = clock()
            taken.append(after - now)
            now = after
            if now >= end:
                break
        self.done[task] = number


async def burst(
    system: str, way: Way, port: int, pid: int, lane_name: str, tasks: int, seconds: float
) -> dict[str, float]:
    client = CLIENTS[system](way)
    await client.open(port, tasks)
    lane = LANES[lane_name](client, way, b"%d/" % time.time_ns())
    load = Load(lane, way, tasks)
    await lane.prepare()
    await load.run(seconds * WARM_PART)
    with Busy(pid) as busy:
        elapsed, taken = await load.run(seconds)
    await lane.check(load.done)
    await client.close()
    taken.sort()
    return {
        "requests": len(taken),
        "rate": len(taken) / elapsed,
        "p50_ms": percentile(taken, 0.5) * 1e3,
        "p99_ms": percentile(taken, 0.99) * 1e3,
        "client_seconds": busy.generator_seconds,
        "server_seconds": busy.server_seconds,
        "other_cores": busy.other_cores,
    }


def main() -> None:
    system, way_name, port, pid = sys.argv[1:]
    way = WAYS[way_name]()
    for line in sys.stdin:
        lane, tasks, seconds = json.loads(line)
        found = way.run(burst(system, way, int(port), int(pid), lane, tasks, seconds))
        print(json.dumps(found), flush=True)
    way.end()


if __name__ == "__main__":
    main()
