"""The two processes of a race: each creates and reads names through connections of its own.

Standard input of such a process has one JSON object a line, standard output the reply to each, in order. ``do`` is
``create`` (some writers of one name, at moments of the monotonic clock, which all processes of a machine share) or
``see`` (read names). The process ends at the end of its standard input.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from holdfast.errors import Code, HoldfastError, InvalidRequest, Unavailable
from holdfast.objects.open import open_store
from holdfast.objects.port import CreateAnswer
from holdfast.objects.probe.contest import UNFIT_HINT, Contest, LocalSide, Side, finish_all
from holdfast.objects.probe.verdict import Read
from holdfast.objects.retrying import ANSWERING

PROCESSES: Final = 2
REQUEST_TIMEOUT_MS: Final = 30_000
REPLY_SECONDS_MAX: Final = (REQUEST_TIMEOUT_MS + ANSWERING.deadline_ms) / 1000.0 + 5.0


class Create(msgspec.Struct, tag_field="do", tag="create", frozen=True):
    """Create a name for each of ``writers``, at its offset from ``start``."""

    contest: Contest
    writers: Sequence[int]
    start: float


class See(msgspec.Struct, tag_field="do", tag="see", frozen=True):
    """Read each name."""

    contests: Sequence[Contest]


class RacerReply(msgspec.Struct, frozen=True):
    """What became of an order: the answers of the creates, or what the reads showed, or the store's error."""

    answers: list[CreateAnswer] = []
    reads: list[Read] = []
    code: str = ""
    error: str = ""


@asynccontextmanager
async def racing_processes(url: str) -> AsyncGenerator[Sequence[Side]]:
    """Two processes that reach the store of ``url``, started; they end with the context. Raises: Unavailable."""
    async with AsyncExitStack() as stack:

        async def start() -> RacingProcess:
            process = await RacingProcess.start(url)
            stack.push_async_callback(process.stop)
            return process

        processes = [await start() for _ in range(PROCESSES)]
        await finish_all([process.see([]) for process in processes])  # both are ready when the first name begins
        yield processes


class RacingProcess:
    """A side in a process of its own, with a connection for each request."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, url: str) -> RacingProcess:
        """Start the process. Raises: Unavailable."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast.objects.probe.racer", url),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise Unavailable("no process could be started to race", cause=str(error)) from error
        return cls(process)

    async def create(self, contest: Contest, writers: Sequence[int], start: float) -> list[CreateAnswer]:
        """As ``Side`` says."""
        return (await self._ask(Create(contest, list(writers), start))).answers

    async def see(self, contests: Sequence[Contest]) -> list[Read]:
        """As ``Side`` says."""
        return (await self._ask(See(contests))).reads

    async def _ask(self, order: Create | See) -> RacerReply:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None, "both are pipes"
        try:
            async with asyncio.timeout(REPLY_SECONDS_MAX):
                stdin.write(msgspec.json.encode(order) + b"\n")
                await stdin.drain()
                line = await stdout.readline()
        except TimeoutError as error:
            raise Unavailable("a racing process did not answer in time") from error
        except OSError as error:
            raise Unavailable("a racing process ended", cause=str(error)) from error
        if not line:
            raise Unavailable("a racing process ended", exit_code=await self._process.wait())
        reply = msgspec.json.decode(line, type=RacerReply)
        if reply.code == Code.STORE_UNFIT:
            raise InvalidRequest(reply.error, code=Code.STORE_UNFIT, hint=UNFIT_HINT)
        if reply.code:
            raise Unavailable("a racing process cannot reach the store", cause=reply.error)
        return reply

    async def stop(self) -> None:
        """End the process."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def obey(side: Side, order: Create | See) -> RacerReply:
    """Carry out one order. An error of the store is a reply."""
    try:
        match order:
            case Create(contest=contest, writers=writers, start=start):
                return RacerReply(answers=await side.create(contest, writers, start))
            case See(contests=contests):
                return RacerReply(reads=await side.see(contests))
    except HoldfastError as error:
        return RacerReply(code=str(error.code), error=error.statement())


async def _serve(url: str) -> None:
    # Without idle connections each request opens one: to any address of the host, through any gateway behind it.
    store = open_store(url, request_timeout_ms=REQUEST_TIMEOUT_MS, connections_max=0, retry=ANSWERING)
    try:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            reply = await obey(LocalSide(store), msgspec.json.decode(line, type=Create | See))
            sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
            sys.stdout.buffer.flush()
    finally:
        await store.close()


def main() -> int:
    """Run the process: ``python -m holdfast.objects.probe.racer URL``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    try:
        asyncio.run(_serve(sys.argv[1]))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
