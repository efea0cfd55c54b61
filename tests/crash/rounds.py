"""Rounds of killing the leader under load, on one log, and what must be true afterwards.

One round is some load, one crash and one recovery. The kinds of round, in the order a setting gives:

    restart       kill -9, start again on the same address
    stumble       kill -9, start again, kill -9 at a random moment of its recovery, start again
    take over     a second server deposes the living leader, which must then end with exit code 4
    zombie        the leader is stopped (SIGSTOP), deposed while it sleeps, and woken: it must end with exit code 4
    successor     kill -9, and a server on another address takes over by itself
    store crash   the object store is killed and restarted under the living leader (only where that can be done)
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.clients import Clients
from tests.crash.server_process import ServerProcess
from tests.crash.wire import Address, StreamedTransaction, events
from tests.crash.workload import broken_invariants
from tests.histories import History, Law, LogEntry, Violation, check_history
from tests.rgw import free_port

from holdfast.commit.format.batch import PREFIX, slot_of
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.format.transaction import Committed, Rejected
from holdfast.commit.reading.reader import LoggedBatch, follow
from holdfast.objects.open import open_store
from holdfast.values import Slot

LOAD_ACKNOWLEDGED = (150, 1200)
"""A round crashes after so many acknowledged commits, drawn anew each time; the lower figure must follow the crash."""
LOAD_SECONDS_MAX = 60.0
MOMENT_SECONDS_MAX = 0.2
POLL_SECONDS = 0.01
DEPOSED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where the rounds happen.

    ``reading_url`` is the log without anything between; ``crash_store`` kills and restarts the store.
    """

    directory: Path
    log_url: str
    reading_url: str
    rounds: int
    kinds: Sequence[str]
    seed: int
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    crash_store: Callable[[], None] | None = None
    say: Callable[[str], None] = print


class Rounds:
    """Runs the rounds and keeps the server that leads."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._random = random.Random(setting.seed)
        self._server: ServerProcess | None = None
        self._address = Address(free_port())
        self._clients = Clients(self._address, seed=setting.seed)

    async def run(self) -> None:
        """All rounds and the final judgement. Raises: AssertionError naming every violation."""
        try:
            await self._start(self._address.port, "--init")
            await self._clients.start()
            for number in range(self._setting.rounds):
                await self._round(number + 1, self._setting.kinds[number % len(self._setting.kinds)])
            await self._clients.stop()
            await self._judge()
        except BaseException:
            await self._clients.abandon()
            raise
        finally:
            if self._server is not None and self._server.running:
                self._server.kill()

    async def _load(self, acknowledged: int) -> None:
        """Wait until so many more commits are acknowledged."""
        recording = self._clients.recording
        began, seen = time.monotonic(), len(recording.commits)
        while acknowledged > 0:
            await asyncio.sleep(POLL_SECONDS)
            self._clients.check()
            calls = recording.commits[seen:]
            seen += len(calls)
            acknowledged -= sum(isinstance(call.outcome, Committed) for call in calls)
            if time.monotonic() - began > LOAD_SECONDS_MAX:
                raise TimeoutError(f"{acknowledged} commits were not acknowledged: {self._leader().tail()}")

    async def _round(self, number: int, kind: str) -> None:
        recording = self._clients.recording
        commits, statuses, refused = len(recording.commits), len(recording.statuses), recording.refused
        await self._load(self._random.randint(*LOAD_ACKNOWLEDGED))
        await asyncio.sleep(self._random.uniform(0.0, MOMENT_SECONDS_MAX))
        began = time.monotonic()
        await self._crash(kind)
        recovered = time.monotonic() - began
        await self._load(LOAD_ACKNOWLEDGED[0])
        calls = recording.commits[commits:]
        rejected = [call.outcome for call in calls if isinstance(call.outcome, Rejected)]
        log = await read_log(self._setting.reading_url)
        found = check_history(History(log=log, commits=calls, complete=False))
        self._setting.say(
            f"round {number} {kind}: "
            f"{sum(isinstance(call.outcome, Committed) for call in calls)} acknowledged, "
            f"{len(rejected)} rejected ({sum(outcome.reason == 'too_old' for outcome in rejected)} too old), "
            f"{sum(call.outcome is None for call in calls)} unknown, "
            f"{len(recording.statuses) - statuses} asked, {recording.refused - refused} refused, "
            f"leading again after {recovered:.2f} s: {counted(found)}"
        )
        assert not found, describe(found)

    # --- the kinds of round -----------------------------------------------------------------------------------------

    async def _crash(self, kind: str) -> None:
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "restart": self._restart,
            "stumble": self._stumble,
            "take over": self._take_over,
            "zombie": self._zombie,
            "successor": self._successor,
            "store crash": self._store_crash,
        }
        await kinds[kind]()

    async def _start(self, port: int, *flags: str) -> None:
        setting = self._setting
        server = ServerProcess(
            setting.directory,
            setting.log_url,
            port,
            flags=[*setting.flags, *flags],
            environment=setting.environment,
        )
        self._server = server
        await asyncio.to_thread(server.wait_until_leading)
        self._address.port = port

    async def _restart(self) -> None:
        self._leader().kill()
        await self._start(self._address.port)

    async def _stumble(self) -> None:
        self._leader().kill()
        self._server = ServerProcess(
            self._setting.directory,
            self._setting.log_url,
            self._address.port,
            flags=self._setting.flags,
            environment=self._setting.environment,
        )
        await asyncio.sleep(self._random.uniform(0.1, 1.2))
        self._leader().kill()
        await self._start(self._address.port)

    async def _take_over(self) -> None:
        deposed = self._leader()
        try:
            await self._start(free_port(), "--take-over")
            code = await asyncio.to_thread(deposed.wait)
        finally:
            if deposed.running:
                deposed.kill()
        assert code == DEPOSED, f"a deposed leader ended with {code}: {deposed.tail()}"

    async def _zombie(self) -> None:
        asleep = self._leader()
        asleep.pause()
        try:
            await self._start(free_port(), "--take-over")
            await self._load(LOAD_ACKNOWLEDGED[0])
            asleep.resume()
            await self._clients.provoke(asleep.port)
            code = await asyncio.to_thread(asleep.wait)
        finally:
            if asleep.running:
                asleep.kill()
        assert code == DEPOSED, f"a leader deposed in its sleep ended with {code}: {asleep.tail()}"

    async def _successor(self) -> None:
        self._leader().kill()
        await self._start(free_port())

    async def _store_crash(self) -> None:
        assert self._setting.crash_store is not None
        self._setting.crash_store()
        assert self._leader().running, f"the leader ended with its store: {self._leader().tail()}"

    def _leader(self) -> ServerProcess:
        assert self._server is not None
        return self._server

    # --- the judgement ----------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        recording = self._clients.recording
        last = max(call.outcome.version for call in recording.commits if isinstance(call.outcome, Committed))
        streamed = await read_stream(self._address, last)
        code = await asyncio.to_thread(self._leader().stop)
        assert code == 0, f"a drained leader ended with {code}: {self._leader().tail()}"
        log = await read_log(self._setting.reading_url)
        found = check_history(
            History(
                log=log,
                commits=recording.commits,
                versions=recording.versions,
                statuses=recording.statuses,
                reads=recording.reads,
            )
        )
        assert sum(len(read.rows) for read in recording.reads) > self._setting.rounds, "reads are judged, too"
        broken = broken_invariants([(entry.version, entry.operations) for entry in log])
        self._setting.say(
            f"{self._setting.rounds} rounds: {len(recording.commits)} commits, {len(recording.versions)} versions, "
            f"{len(recording.reads)} reads and "
            f"{len(recording.statuses)} statuses heard, {len(log)} transactions in the log: {counted(found)}, "
            f"{len(found)} violations, {len(broken)} broken invariants"
        )
        assert not found, describe(found)
        assert broken == []
        assert_same(streamed, log, "a stream read from the start")
        assert_same(recording.streamed, log, "the stream followed over every crash")


def assert_same(streamed: Sequence[StreamedTransaction], log: Sequence[LogEntry], what: str) -> None:
    """The stream showed exactly the beginning of the log."""
    shown = [(event.version, event.prev_version, event.request_id, event.operations) for event in streamed]
    kept = [(entry.version, entry.prev_version, entry.request_id, entry.operations) for entry in log]
    assert shown == kept[: len(shown)], f"{what} differs from the log"
    assert shown, f"{what} is empty"


def counted(found: Sequence[Violation]) -> str:
    """The three counts that everybody asks for."""
    count = {law: sum(violation.law is law for violation in found) for law in Law}
    return f"{count[Law.NOTHING_LOST]} lost, {count[Law.NOTHING_MOVED]} moved, {count[Law.NO_GHOSTS]} ghosts"


def describe(found: Sequence[Violation]) -> str:
    """The first violations, one a line."""
    return "\n".join(f"{violation.law}: {violation.detail}" for violation in found[:20])


async def read_log(url: str) -> list[LogEntry]:
    """Every transaction that the log has now, by walking the chain, whose rules are checked on the way.

    No further than the object that was its newest at the beginning: while clients commit, the end may move on as fast
    as it is come nearer to.
    """
    store = open_store(url)
    entries: list[LogEntry] = []
    try:
        newest = slot_of((await store.list(PREFIX, limit=1))[0].key)
        assert newest is not None, "there is nothing but slots in the log"
        async with aclosing(follow(store, ChainWalker())) as batches:
            await _read_until(newest, batches, entries)
    finally:
        await store.close()
    return entries


async def _read_until(newest: Slot, batches: AsyncIterator[LoggedBatch], entries: list[LogEntry]) -> None:
    async for batch in batches:
        previous = batch.header.prev_version
        for txn in batch.transactions():
            entries.append(
                LogEntry(
                    version=txn.version,
                    operations=tuple(txn.operations),
                    request_id=txn.request_id,
                    read_version=txn.read_version,
                    prev_version=previous,
                )
            )
            previous = txn.version
        if batch.header.slot <= newest:  # slots count down
            return


async def read_stream(address: Address, last: int) -> list[StreamedTransaction]:
    """The stream from the start until it is durable up to a version."""
    shown: list[StreamedTransaction] = []
    async for event in events(address, 0):
        if isinstance(event, StreamedTransaction):
            shown.append(event)
        if (event.version if isinstance(event, StreamedTransaction) else event.committed_version) >= last:
            break
    return shown
