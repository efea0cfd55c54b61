"""A process at low priority that the event loop starts and reads without a pause of its own.

``asyncio`` forks, which copies the page tables of this process: some 200 ms for each GiB of memory, on the loop. A
``Popen`` without ``preexec_fn`` does not, and runs in a thread; the priority is set from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sysconfig
from asyncio import StreamReader, StreamReaderProtocol
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Final, Self

LINE_BYTES_MAX: Final = 1 << 20
STOP_SECONDS: Final = 10.0
KILLED_SECONDS: Final = 5.0
NICE_MAX: Final = 19
_running: Final[dict[Popen[bytes], None]] = {}


class BackgroundProcess:
    """One process. ``output`` and ``errors``: its streams. A line above ``LINE_BYTES_MAX`` raises ValueError."""

    def __init__(self, process: Popen[bytes]) -> None:
        """Use ``start``."""
        self._process = process
        self._pipes: list[asyncio.BaseTransport] = []
        self.output = StreamReader(LINE_BYTES_MAX)
        self.errors = StreamReader(LINE_BYTES_MAX)

    @classmethod
    async def start(
        cls, command: Sequence[str], *, nice: int, has_input: bool = False, has_errors: bool = False
    ) -> Self:
        """Start ``command``. ``has_input``: its standard input is open until ``end_input``, else it is empty.
        ``has_errors``: its standard error is ``errors``, else it is that of this process. ``nice``: how much lower its
        priority is. Cancelled, it leaves no process. Raises: OSError."""
        starting = asyncio.ensure_future(
            asyncio.to_thread(_spawn, command, nice=nice, has_input=has_input, has_errors=has_errors)
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_end)
            raise
        started = cls(process)
        try:
            await started._read()
        except BaseException:
            started.kill()
            raise
        return started

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        for pipe, reader in ((self._process.stdout, self.output), (self._process.stderr, self.errors)):
            if pipe is not None:
                transport, _ = await loop.connect_read_pipe(partial(StreamReaderProtocol, reader, loop=loop), pipe)
                self._pipes.append(transport)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def send(self, line: bytes) -> None:
        """Write a line to its standard input, where nothing waits to be read. Harmless when it has ended."""
        assert self._process.stdin is not None, "it has an input"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)

    def end_input(self) -> None:
        """Close its standard input."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """End it now; nothing more of its streams is read."""
        self._process.kill()
        self._close()

    def _close(self) -> None:
        self.end_input()
        for pipe in self._pipes:
            pipe.close()

    async def exit_code(self) -> int | None:
        """After the end of ``output``, or after ``kill``: its exit code. One that does not end within ``STOP_SECONDS``
        is killed; None where it survives even this, as on a disk that hangs."""
        try:
            return await asyncio.to_thread(_reap, self._process)
        finally:
            self._close()


def _spawn(command: Sequence[str], *, nice: int, has_input: bool, has_errors: bool) -> Popen[bytes]:
    process = subprocess.Popen(
        command,
        stdin=PIPE if has_input else DEVNULL,
        stdout=PIPE,
        stderr=PIPE if has_errors else None,
        bufsize=0,
        env=_environment(),
        start_new_session=has_input,  # a signal of the terminal does not reach one that ends with its input
    )
    _running[process] = None
    with contextlib.suppress(OSError):  # it has ended, or this priority is not allowed: it is only less polite
        lower = os.getpriority(os.PRIO_PROCESS, 0) + nice
        os.setpriority(os.PRIO_PROCESS, process.pid, min(NICE_MAX, lower))
    return process


def _environment() -> dict[str, str]:
    """So that a process of this interpreter finds this package, too."""
    environment, package = dict(os.environ), str(Path(__file__).parents[3])
    if package != sysconfig.get_path("purelib"):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return environment


def _reap(process: Popen[bytes]) -> int | None:
    for seconds in (STOP_SECONDS, KILLED_SECONDS):
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        else:
            _running.pop(process, None)
            return code
    return None


def kill_all() -> None:
    """Kill every process that runs. For the end of this process."""
    for process in tuple(_running):
        process.kill()


def _end(starting: asyncio.Future[Popen[bytes]]) -> None:
    """End a process whose start was cancelled."""
    if starting.cancelled() or starting.exception() is not None:
        return
    process = starting.result()
    process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    asyncio.get_running_loop().run_in_executor(None, _reap, process)
