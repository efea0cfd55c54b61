"""Work on the whole log that a leader has a process of its own do, so that its event loop does not: snapshot, check.

One process of each kind at a time, at low priority. It reads and writes the log's store by itself; this side only reads
its progress. Cancelled, or when the leadership ends, it is killed: what a snapshot left without a manifest is removed
later, and a check leaves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio import StreamReader
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from holdfast.errors import Code, Unavailable
from holdfast.server.children.background_process import BackgroundProcess
from holdfast.wire.log import ErrorResponse, LogJobState

NICE: Final = 10
ERROR_BYTES_MAX: Final = 16_384
PROGRAM: Final = (sys.executable, "-m", "holdfast.cli.main")

log = structlog.get_logger("holdfast.server")


class _JobProgress(msgspec.Struct, forbid_unknown_fields=True):
    done: int
    total: int | None


Result = dict[str, int | str | bool | None]
_LINE: Final = msgspec.json.Decoder(_JobProgress)
_RESULT: Final = msgspec.json.Decoder(Result)


def seconds_of(state: LogJobState) -> float:
    """How long a job took."""
    return round((state.ended_ms - state.began_ms) / 1000, 1)


@dataclass(eq=False)
class LogJob:
    """One kind of job. ``state`` is that of the newest one.

    ``command``: the words after ``program`` for some parameters; the command prints JSON. ``done`` is called with the
    state of a job that is done.
    """

    name: str
    command: Callable[[Mapping[str, int]], Sequence[str]]
    now_ms: Callable[[], int]
    done: Callable[[LogJobState], None]
    program: Sequence[str] = PROGRAM
    state: LogJobState = field(default_factory=lambda: LogJobState("idle"), init=False)
    _work: asyncio.Task[LogJobState] | None = field(default=None, init=False)
    _is_closed: bool = field(default=False, init=False)

    @property
    def is_running(self) -> bool:
        """Whether a process is at work."""
        return self._work is not None and not self._work.done()

    def begin(self, parameters: Mapping[str, int]) -> None:
        """Start a job, unless one is running. Raises: Unavailable after ``close``."""
        if self._is_closed:
            raise Unavailable(f"no {self.name} begins any more: this leadership has ended", code=Code.STORE_UNAVAILABLE)
        if not self.is_running:
            self.state = LogJobState("running", dict(parameters), self.now_ms())
            self._work = asyncio.ensure_future(self._in_process(self.command(parameters)))
            self._work.add_done_callback(self._ended)

    async def wait(self) -> LogJobState:
        """The state after the job that is running has ended. Raises: Unavailable where it failed or was cancelled."""
        assert self._work is not None, "a job was begun"
        await asyncio.wait({self._work})
        if self.state.state != "done":
            cause = self.state.error or self.state.state
            raise Unavailable(f"the process for a {self.name} failed", code=Code.STORE_UNAVAILABLE, cause=cause)
        return self.state

    async def cancel(self) -> None:
        """End the job that is running, if there is one."""
        if self._work is not None and not self._work.done():
            self._work.cancel()
            await asyncio.wait({self._work})

    async def close(self) -> None:
        """End the job that is running, and begin none any more: the leadership has ended."""
        self._is_closed = True
        await self.cancel()

    def _ended(self, work: asyncio.Task[LogJobState]) -> None:
        """However the work has ended, also before its first step, the state says so before a waiter goes on."""
        if work.cancelled():
            ended = msgspec.structs.replace(self.state, state="cancelled")
        elif (error := work.exception()) is not None:
            text = str(error) or type(error).__name__
            ended = msgspec.structs.replace(self.state, state="failed", code=Code.INTERNAL.value, error=text)
        else:
            ended = work.result()
        self.state = msgspec.structs.replace(ended, ended_ms=self.now_ms())
        if self.state.state == "done":
            self.done(self.state)
        elif self.state.state == "failed":
            log.warning("log_job_failed", job=self.name, code=self.state.code, error=self.state.error)
        else:
            log.info("log_job_cancelled", job=self.name)

    async def _in_process(self, command: Sequence[str]) -> LogJobState:
        process = await BackgroundProcess.start((*self.program, *command), nice=NICE, has_errors=True)
        reading = asyncio.gather(self._result(process.output), _end_of(process.errors))
        try:
            result, errors = await reading
            exit_code = await process.exit_code()
        except BaseException:
            reading.cancel()
            process.kill()
            await process.exit_code()
            raise
        if exit_code == 0 and result is not None:
            return msgspec.structs.replace(self.state, state="done", result=result)
        code, error = _said(errors, exit_code)
        return msgspec.structs.replace(self.state, state="failed", code=code, error=error)

    async def _result(self, output: StreamReader) -> Result | None:
        """The last line of the output; the lines before it are its progress."""
        result: Result | None = None
        first: int | None = None  # versions of a log begin at a large number
        async for line in output:
            try:
                progress = _LINE.decode(line)
            except msgspec.DecodeError:
                with contextlib.suppress(msgspec.DecodeError):
                    result = _RESULT.decode(line)
            else:
                first = progress.done if first is None else first
                total = None if progress.total is None else progress.total - first
                self.state = msgspec.structs.replace(self.state, done=progress.done - first, total=total)
        return result


async def _end_of(errors: StreamReader) -> bytes:
    tail = b""
    while part := await errors.read(ERROR_BYTES_MAX):
        tail = (tail + part)[-ERROR_BYTES_MAX:]
    return tail


def _said(errors: bytes, exit_code: int | None) -> tuple[str, str]:
    """The code and the text of the error that a command printed last."""
    lines = errors.decode(errors="replace").strip().splitlines()
    try:
        error = msgspec.json.decode(lines[-1] if lines else "", type=ErrorResponse).error
    except msgspec.DecodeError:
        return Code.INTERNAL.value, "\n".join(lines)[-500:] or f"exit code {exit_code}"
    return error.code, error.message
