"""``kill -9`` of the real service under clients that gather: every answer is that of its own commit, each counts once.

The callers are tasks of one asyncio client, or threads of one blocking client. Judged are the answers against the log
(``histories``: nothing is lost, moved or invented, real-time order, fresh versions), counters that transactions add to,
and what each caller reads of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.crash.rounds import describe, read_log
from tests.crash.server_process import ServerProcess
from tests.histories import CommitCall, History, LogEntry, ReadCall, VersionCall, check_history
from tests.matrix import matrix
from tests.rgw import free_port

from holdfast import Client, aio
from holdfast.client import ClientOptions, CommitReceipt
from holdfast.commit.format.transaction import Committed, Transaction, Write
from holdfast.errors import HoldfastError, OutcomeUnknown

OPTIONS = ClientOptions(request_timeout_ms=4_000, give_up_after_ms=60_000, resolve_within_ms=60_000, retry_max_ms=100)
CALLERS = {"tasks": 32, "threads": 8}
ROUND_ANSWERS = 300
COUNTERS = 8
SECONDS_MAX = 120.0

pytestmark = pytest.mark.timeout(3_600)


@dataclass(slots=True)
class Seen:
    """What the callers saw. Threads append; each list is only read at the end."""

    commits: list[tuple[int, int, bytes, CommitReceipt]] = field(default_factory=list)
    """Begin, end, marker and receipt."""
    versions: list[VersionCall] = field(default_factory=list)
    reads: list[ReadCall] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    denied: list[bytes] = field(default_factory=list)
    added: Counter[bytes] = field(default_factory=Counter)
    maybe_added: Counter[bytes] = field(default_factory=Counter)
    broken: list[BaseException] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)


async def answer(given: Any) -> Any:
    """What a call of either client returns. A coroutine of the blocking client never suspends."""
    return await given if inspect.isawaitable(given) else given


async def caller(client: Any, name: str, seen: Seen, seed: int, function: Callable[[Any], Any]) -> None:
    """Commit, read, ask and add until it is over."""
    source = random.Random(seed)
    try:
        for number in itertools.count():
            if seen.is_over.is_set():
                return
            kind = source.random()
            if kind < 0.6:
                await commit_once(client, f"{name}/{number}".encode(), seen)
            elif kind < 0.7:
                await read_once(client, seen, linearizable=source.random() < 0.5)
            elif kind < 0.9:
                await add_one(client, b"n/%d" % source.randrange(COUNTERS), seen, function)
            else:
                await ask_version(client, seen)
    except BaseException as error:
        seen.broken.append(error)
        seen.is_over.set()
        raise


async def ask_version(client: Any, seen: Seen) -> None:
    begin = time.monotonic_ns()
    with contextlib.suppress(HoldfastError):
        found = await answer(client.version())
        seen.versions.append(VersionCall(begin=begin, end=time.monotonic_ns(), version=found.version))


async def read_once(client: Any, seen: Seen, *, linearizable: bool) -> None:
    """All counters. A read that is not linearizable is as new as what its caller was answered before."""
    newest = client.session.newest
    at, begin = 0 if newest is None else newest.version, time.monotonic_ns()
    with contextlib.suppress(HoldfastError):
        found = await answer(client.range(prefix=b"n/", linearizable=linearizable))
        rows = [(row.key, row.value, row.version) for row in found.items]
        call = ReadCall(
            begin=begin, end=time.monotonic_ns(), at=at, version=found.version, ranges=[(b"n/", b"n0")], rows=[rows],
            linearizable=linearizable,
        )  # fmt: skip
        seen.reads.append(call)


async def commit_once(client: Any, marker: bytes, seen: Seen) -> None:
    begin = time.monotonic_ns()
    try:
        receipt = await answer(client.commit([Write(b"m/" + marker, marker)]))
    except OutcomeUnknown:
        seen.unknown.append(marker)
        return
    except HoldfastError:
        seen.denied.append(marker)
        return
    seen.commits.append((begin, time.monotonic_ns(), marker, receipt))
    if receipt.version % 10 == 0:
        try:
            found = await answer(client.get(b"m/" + marker, receipt.version))
        except HoldfastError:
            return
        assert found is not None, f"{marker!r} is not read at {receipt.version}"
        assert (found.value, found.version) == (marker, receipt.version)


async def add_one(client: Any, key: bytes, seen: Seen, function: Callable[[Any], Any]) -> None:
    async def add(txn: Any) -> None:
        txn.write(key, b"%d" % (int(await answer(txn.get(key)) or b"0") + 1))

    try:
        await answer(client.transact(function(add)))
    except OutcomeUnknown:
        seen.maybe_added[key] += 1
    except HoldfastError:
        pass
    else:
        seen.added[key] += 1


# ---- the two ways to use a client


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """A coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a thread has nothing to suspend for")


def blocking(function: Callable[[Any], Coroutine[Any, Any, Any]]) -> Callable[[Any], Any]:
    return lambda txn: run(function(txn))


def asynchronous(function: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Any]:
    return function


def with_threads(url: str, seen: Seen, seed: int) -> None:
    with Client(url, options=OPTIONS) as client:
        threads = [
            threading.Thread(target=lambda name=name: run(caller(client, f"t{name}", seen, seed + name, blocking)))
            for name in range(CALLERS["threads"])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client._commits.machine.check()


def with_tasks(url: str, seen: Seen, seed: int) -> None:
    async def go() -> None:
        async with aio.Client(url, options=OPTIONS) as client:
            callers = (caller(client, f"a{name}", seen, seed + name, asynchronous) for name in range(CALLERS["tasks"]))
            await asyncio.gather(*callers)
            client._commits.machine.check()

    asyncio.run(go())


WAYS = {"tasks": with_tasks, "threads": with_threads}


# ---- rounds


def rounds(directory: Path, url: str, port: int, count: int, seen: Seen, source: random.Random) -> None:
    """Kill the service under load, and start it again, this many times."""
    server = SERVERS[-1]
    try:
        for _ in range(count):
            until_answered(seen, source.randint(ROUND_ANSWERS // 4, ROUND_ANSWERS))
            time.sleep(source.random() * 0.02)  # not always at an answer
            server.kill()
            server = start(directory, url, port)
        until_answered(seen, ROUND_ANSWERS)
    finally:
        seen.is_over.set()


SERVERS: list[ServerProcess] = []


def start(directory: Path, url: str, port: int) -> ServerProcess:
    server = ServerProcess(directory, url, port, flags=["--init"])
    SERVERS.append(server)
    server.wait_until_leading()
    return server


def until_answered(seen: Seen, more: int) -> None:
    wanted, end = len(seen.commits) + more, time.monotonic() + SECONDS_MAX
    while len(seen.commits) < wanted and not seen.broken:
        assert time.monotonic() < end, f"{wanted - len(seen.commits)} answers did not come"
        time.sleep(0.005)


@pytest.fixture
def servers() -> Iterator[list[ServerProcess]]:
    SERVERS.clear()
    yield SERVERS
    for server in SERVERS:
        if server.running:
            server.kill()


def counted(log: list[LogEntry]) -> tuple[Counter[bytes], Counter[bytes], dict[bytes, int]]:
    """The markers and the additions in the log, and the last value of each counter."""
    markers: Counter[bytes] = Counter()
    additions: Counter[bytes] = Counter()
    values: dict[bytes, int] = {}
    for entry in log:
        for operation in entry.operations:
            assert isinstance(operation, Write)
            if operation.key.startswith(b"m/"):
                markers[operation.value] += 1
            else:
                assert int(operation.value) == values.get(operation.key, 0) + 1, "no addition is lost"
                values[operation.key] = int(operation.value)
                additions[operation.key] += 1
    return markers, additions, values


def judge(seen: Seen, log: list[LogEntry]) -> None:
    """The answers against the log."""
    at = {entry.version: entry for entry in log}
    calls: list[CommitCall] = []
    for begin, end, marker, receipt in seen.commits:
        entry = at.get(receipt.version)
        assert entry is not None, f"{marker!r} at {receipt.version} is lost"
        assert entry.operations == (Write(b"m/" + marker, marker),), f"{marker!r} got the answer of {entry}"
        assert entry.request_id == receipt.request_id
        txn = Transaction(list(entry.operations), [], entry.request_id, None, entry.read_version)
        calls.append(CommitCall(begin=begin, end=end, txn=txn, outcome=Committed(receipt.version)))
    found = check_history(History(log=log, commits=calls, versions=seen.versions, reads=seen.reads, complete=False))
    assert not found, describe(found)
    markers, additions, values = counted(log)
    assert max(markers.values()) == 1, "a commit counts once"
    assert all(markers[marker] == 1 for _, _, marker, _ in seen.commits)
    assert not any(markers[marker] for marker in seen.denied), "what was refused is not in the log"
    for key, count in additions.items():
        assert values[key] == count
        assert seen.added[key] <= count <= seen.added[key] + seen.maybe_added[key]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", matrix([2, 50], lambda count: count == 2))
def test_a_kill_under_gathered_commits_loses_moves_and_repeats_nothing(
    tmp_path: Path, way: str, count: int, servers: list[ServerProcess], record_property: Callable[[str, object], None]
) -> None:
    url, port, seen = f"file://{tmp_path}/log", free_port(), Seen()
    seed = int.from_bytes(os.urandom(4), "little")
    start(tmp_path, url, port)
    ruler = threading.Thread(target=rounds, args=(tmp_path, url, port, count, seen, random.Random(seed)))
    ruler.start()
    WAYS[way](f"http://127.0.0.1:{port}", seen, seed)
    ruler.join()
    assert not seen.broken, seen.broken[0]
    servers[-1].stop()
    log = asyncio.run(read_log(url))
    judge(seen, log)
    assert len(seen.commits) > count * ROUND_ANSWERS // 4
    assert len(seen.reads) > count, "reads were judged, too"
    record_property("gathered_kill_rounds", count)
