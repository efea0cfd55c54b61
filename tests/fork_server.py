"""Starts ``holdfast`` commands by forking a process that has imported them: starting Python costs more than most tests.

A fork server belongs to one test process and begins at its first use. A command that it starts is a process of its own,
with its own arguments, environment, folder and files. ``tests/integration/test_http_process.py`` and the tests of
examples start the true command line.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

__all__ = ["ForkedCommand"]

REQUEST_BYTES_MAX: Final = 128 << 10
DESCRIPTORS: Final = 3
"""Standard output and error, and the pipe for the identifier and the exit code."""
PR_SET_PDEATHSIG: Final = 1
_servers: dict[int, socket.socket] = {}
"""By the process that started it: a fork of a test process has a server of its own."""


class ForkedCommand:
    """``holdfast WORDS`` in a process of its own, killed when the tests end; used as a ``subprocess.Popen``.

    ``stdout`` and ``stderr`` are files with descriptors, None drops what is written. Standard input is empty.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str],
    ) -> None:
        request = {"words": list(words), "cwd": str(cwd or Path.cwd()), "env": dict(env)}
        self.returncode: int | None = None
        reading, writing = os.pipe()
        self._status = open(reading, "rb", buffering=0)  # noqa: SIM115 - until the command has ended
        with open(os.devnull, "wb") as nothing, open(writing, "wb") as status:
            files = [(stdout or nothing).fileno(), (stderr or nothing).fileno(), status.fileno()]
            socket.send_fds(_server(), [json.dumps(request).encode()], files)
        self.pid = self._number()

    def poll(self) -> int | None:
        """The exit code, None as long as it runs."""
        if self.returncode is None and self._has_ended(0):
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; minus the signal that ended it. Raises: subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not self._has_ended(timeout):
                raise subprocess.TimeoutExpired("holdfast", timeout or 0)
            self.returncode = self._number()
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing when it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """``kill -9``."""
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, timeout: float | None) -> bool:
        waiting = select.poll()  # select() refuses descriptors from 1,024 on
        waiting.register(self._status, select.POLLIN)
        return bool(waiting.poll(None if timeout is None else timeout * 1000.0))

    def _number(self) -> int:
        data = self._status.read(4)
        if len(data) != 4:
            raise ChildProcessError("the fork server has ended; its standard error says why")
        return int.from_bytes(data, "little", signed=True)


def _server() -> socket.socket:
    """The connection to this process's fork server, which begins here at the first use and ends with this process."""
    if os.getpid() not in _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                pass_fds=[theirs.fileno()],
            )
        _servers[os.getpid()] = ours
        atexit.register(_end, process, ours, os.getpid())
    return _servers[os.getpid()]


def _end(process: subprocess.Popen[bytes], ours: socket.socket, owner: int) -> None:
    if os.getpid() == owner:
        ours.close()
        process.wait()


# ---- the server's side ----------------------------------------------------------------------------------------------


def serve(connection: socket.socket) -> list[str] | None:
    """Fork for each request until the test process ends. Returns: None; in a new child, the words of its command."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    children: dict[int, tuple[int, int]] = {}  # by the descriptor of the process: its identifier, its status pipe
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in children:
                pid, status = children.pop(descriptor)
                poll.unregister(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                tell(status, code)
                os.close(status)
                os.close(descriptor)
                continue
            data, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, DESCRIPTORS)
            if not data:
                return None
            request = json.loads(data)
            pid = os.fork()
            if pid == 0:
                connection.detach()
                become(request, files)
                return list(request["words"])
            tell(files[2], pid)
            process = os.pidfd_open(pid)
            children[process] = pid, files[2]
            poll.register(process, select.POLLIN)
            for file in files[:2]:
                os.close(file)


def tell(status: int, number: int) -> None:
    """Write one number; the test may have gone."""
    with contextlib.suppress(BrokenPipeError):
        os.write(status, number.to_bytes(4, "little", signed=True))


def become(request: dict[str, Any], files: Sequence[int]) -> None:
    """Make this new process look like one that was started with the request's command line."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for target, file in zip((1, 2), files[:2], strict=True):
        os.dup2(file, target)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - the old one knows another kind of file
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = [sys.argv[0], *request["words"]]


def main() -> int:
    """Import what commands need, serve, and be each command that is forked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import holdfast.server.run
    from holdfast.cli.main import main as command

    command(["--help"])  # the parser of the command line is made once
    del holdfast
    gc.collect()
    gc.freeze()  # the children share these pages as long as nobody counts in them
    words = serve(socket.socket(fileno=int(sys.argv[1])))
    return 0 if words is None else command(words)


if __name__ == "__main__":
    sys.exit(main())
