"""The real server as a process: with the command line of a user, and killed as a machine would kill it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.fork_server import ForkedCommand

READY_SECONDS_MAX = 100.0
WORKER_START_SECONDS = 0.5
STOP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.01
NO_VIEW = {"HOLDFAST_VIEW__ENABLED": "false"}
"""For a service whose keys no test reads: a view is a process of its own, and costs as much as half a start."""


class ServerEnded(Exception):
    """The server ended by itself; the exit code and the end of its log are in the text."""


class ServerProcess:
    """One ``holdfast serve``, which ends with the tests. Its standard error goes to a file in ``directory``."""

    def __init__(
        self,
        directory: Path,
        log_url: str,
        port: int,
        *,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port
        self.output = directory / f"server-{port}-{time.monotonic_ns()}.log"
        paths = os.pathsep.join(path for path in sys.path if path)
        with self.output.open("wb") as output:
            self._process = ForkedCommand(
                ["serve", "--log", log_url, "--listen", f"127.0.0.1:{port}", *flags],
                stdout=output,
                stderr=output,
                cwd=directory,
                env=dict(os.environ, PYTHONPATH=paths, **(environment or {})),
            )

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def livez(self) -> dict[str, object] | None:
        """What ``/livez`` answers, None when nobody does."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/livez")
            return dict(json.loads(connection.getresponse().read()))
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def leads(self) -> bool:
        """Whether this process answers and leads. Raises: ServerEnded."""
        if not self.running:
            raise ServerEnded(f"exit code {self._process.returncode}: {self.tail()}")
        alive = self.livez()
        return alive is not None and alive.get("leading") is True

    def wait_until_leading(self) -> float:
        """Seconds until it led. Raises: ServerEnded, TimeoutError."""
        began = time.monotonic()
        while not self.leads():
            if time.monotonic() - began > READY_SECONDS_MAX:
                raise TimeoutError(self.tail())
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began

    def kill(self) -> None:
        """``kill -9``, and wait until it has gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it holds everything it has and does nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM, and the exit code. It is killed when it does not end."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit code. The process is killed when it does not end in time."""
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(self.tail()) from None

    def tail(self) -> str:
        """The end of what it wrote."""
        return self.output.read_bytes()[-3000:].decode("utf-8", "replace")


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has started."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(folder.name))
    return found


def directory_workers(pid: int) -> list[int]:
    """The processes that touch the log's directory for the idle server ``pid``, once it starts no more of them."""
    found: list[int] = []
    while True:
        before = found
        found = [child for child in children(pid) if b"directory.worker" in Path(f"/proc/{child}/cmdline").read_bytes()]
        if found and found == before:
            return found
        time.sleep(WORKER_START_SECONDS)
