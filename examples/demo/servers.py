"""The serving processes of the demo, and the other processes: started, watched, killed, stopped.

Owns: processes and their end, whatever happens to the demo itself. Does not own: what they serve.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

__all__ = ["Child", "Server", "free_port"]

STOP_SECONDS = 60.0


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One ``holdfast serve``; its log goes to a file."""

    def __init__(self, name: str, log_url: str, folder: Path, flags: list[str]) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = folder / f"server-{name}.log"
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "holdfast.cli.main", "serve"),
                    *("--log", log_url, "--listen", f"127.0.0.1:{self.port}", *flags),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def leads(self) -> bool:
        """Whether it answers and leads. Raises: RuntimeError when it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"server {self.name} ended with {self._process.returncode}: {self.tail()}")
        text = self._get("/livez")
        return text is not None and json.loads(text).get("leading") is True

    def wait_until_leading(self, seconds: float = 60.0) -> None:
        """Raises: RuntimeError when it does not come to lead."""
        began = time.monotonic()
        while not self.leads():
            if time.monotonic() - began > seconds:
                raise RuntimeError(f"server {self.name} does not lead after {seconds} s: {self.tail()}")
            time.sleep(0.02)

    def wait_until_following(self, seconds: float = 60.0) -> None:
        """A standby that has heard of the leader takes over soon after the leader's end. Raises: RuntimeError."""
        began = time.monotonic()
        while "standby leader_id=" not in self.output.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() - began > seconds:
                raise RuntimeError(f"server {self.name} does not stand by: {self.tail()}")
            time.sleep(0.02)

    def figures(self) -> dict[str, float]:
        """Its ``/metrics``: value by name and labels as they are written there."""
        found: dict[str, float] = {}
        for line in (self._get("/metrics") or "").splitlines():
            match = re.fullmatch(r"([^#\s]\S*(?:\{.*\})?) (\S+)", line)
            if match:
                found[match[1]] = float(match[2])
        return found

    def memory_bytes(self) -> int:
        """Resident memory of the process."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """``kill -9``."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_SECONDS)

    def end(self) -> None:
        """Leave nothing behind, however the demo ends."""
        if self._process.poll() is None:
            self.kill()

    def tail(self) -> str:
        """The last of its log."""
        return self.output.read_text(errors="replace")[-1500:]

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                text: str = answer.read().decode()
                return text
        except (OSError, urllib.error.URLError):
            return None


class Child:
    """Another process of the demo, spoken to by lines."""

    def __init__(self, module: str, arguments: list[str]) -> None:
        self.module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    def tell(self, line: str) -> None:
        """Raises: OSError when it has ended."""
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self, seconds: float) -> str:
        """Its next line. Raises: RuntimeError when it ended or is silent."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise RuntimeError(f"{self.module} says nothing for {seconds} s") from None
        if line is None:
            raise RuntimeError(f"{self.module} ended with {self._process.wait()}")
        return line

    def last_heard(self) -> str | None:
        """Its newest line, if any came since the last call. Raises: RuntimeError when it ended."""
        newest: str | None = None
        while not self._lines.empty():
            newest = self.hear(1.0)
        return newest

    def wait(self, seconds: float) -> None:
        """Raises: RuntimeError unless it ends with exit code 0 in time."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self.module} does not end") from None
        if code:
            raise RuntimeError(f"{self.module} ended with {code}")

    def end(self) -> None:
        """Leave nothing behind."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
