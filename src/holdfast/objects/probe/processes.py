"""The two processes of a race, seen from the process that starts them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from holdfast.errors import Code, InvalidRequest, Unavailable
from holdfast.objects.port import CreateAnswer
from holdfast.objects.probe.contest import UNFIT_HINT, Side, finish_all
from holdfast.objects.probe.plan import Contest
from holdfast.objects.probe.racer import REQUEST_TIMEOUT_MS, Answered, Create, Order, RacerFailed, Reply, See, Sightings
from holdfast.objects.probe.verdict import Read
from holdfast.objects.retrying import ANSWERING

PROCESSES: Final = 2
REPLY_SECONDS_MAX: Final = (REQUEST_TIMEOUT_MS + ANSWERING.deadline_ms) / 1000.0 + 5.0


@asynccontextmanager
async def racing_processes(url: str) -> AsyncGenerator[Sequence[Side]]:
    """Two processes that reach the store of ``url``, started; they end with the context. Raises: Unavailable."""
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(_racing_process(url)) for _ in range(PROCESSES)]
        await finish_all([process.see([]) for process in processes])  # both are ready when the first name begins
        yield processes


@asynccontextmanager
async def _racing_process(url: str) -> AsyncGenerator[RacingProcess]:
    process = await RacingProcess.start(url)
    try:
        yield process
    finally:
        await process.stop()


class RacingProcess:
    """A side in a process of its own, ``racer``, with a connection for each request."""

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
        reply = await self._ask(Create(contest, list(writers), start))
        assert isinstance(reply, Answered), "an order has its own reply"
        return reply.decoded()

    async def see(self, contests: Sequence[Contest]) -> list[Read]:
        """As ``Side`` says."""
        reply = await self._ask(See(contests))
        assert isinstance(reply, Sightings), "an order has its own reply"
        return reply.decoded()

    async def _ask(self, order: Order) -> Answered | Sightings:
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
        reply: Reply = msgspec.json.decode(line, type=Answered | Sightings | RacerFailed)
        if isinstance(reply, RacerFailed):
            if reply.code == Code.STORE_UNFIT:
                raise InvalidRequest(reply.statement, code=Code.STORE_UNFIT, hint=UNFIT_HINT)
            raise Unavailable("a racing process cannot reach the store", cause=reply.statement)
        return reply

    async def stop(self) -> None:
        """End the process."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
