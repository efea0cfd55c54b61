"""What the benchmarks start and how they see it: servers, processor time, the machine.

Owns: starting and ending the processes under test, reading what they cost from /proc. Does not own: load
(``_generators``), what is compared.

Processor time is that of a process and its living children, from /proc/PID/stat, in ticks of 10 ms. ``Busy`` also tells
how much of the machine went to neither the server nor the generator: figures taken on a busy machine are worth nothing,
and they say so.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from holdfast import __version__

__all__ = ["Busy", "Served", "etcd", "free_port", "holdfast", "machine", "processor_seconds"]

TICKS = os.sysconf("SC_CLK_TCK")
READY_SECONDS = 90.0
STOP_SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Served:
    """A process under test."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        self.name = name
        self.pid = process.pid
        self.port = port
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self._process = process

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def wait_until(self, path: str, expected: str) -> None:
        began = time.monotonic()
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._process.returncode}")
            with contextlib.suppress(OSError):
                if expected in self.get(path):
                    return
            if time.monotonic() - began > READY_SECONDS:
                raise RuntimeError(f"{self.name} is not ready after {READY_SECONDS} s")
            time.sleep(0.05)

    def stop(self) -> int:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                return self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait(STOP_SECONDS)


@contextlib.contextmanager
def holdfast(folder: Path, *flags: str, log_url: str | None = None) -> Iterator[Served]:
    """``holdfast serve`` as it comes: metrics on, tokens off. The log stays for whoever looks at it afterwards."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "holdfast.cli.main", "serve", "--init", "--listen", f"127.0.0.1:{port}"),
                *("--log", log_url or (folder / "log").as_uri(), *flags),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    served = Served("holdfast", process, port, folder)
    try:
        served.wait_until("/livez", '"leading":true')
        yield served
    finally:
        served.stop()


@contextlib.contextmanager
def etcd(folder: Path) -> Iterator[Served]:
    """One etcd node, as shipped: every transaction synced before it is answered."""
    port, peers = free_port(), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen(
            [
                *("etcd", "--name", "bench", "--data-dir", str(folder / "data"), "--log-outputs", "stderr"),
                *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer),
                *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"bench={peer}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    served = Served("etcd", process, port, folder)
    try:
        served.wait_until("/health", '"true"')
        yield served
    finally:
        served.stop()


def processor_seconds(pid: int) -> float:
    """Of a process, all its threads, and the living processes under it."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
                ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    wanted, total = [pid], 0
    while wanted:
        each = wanted.pop()
        total += ticks.get(each, 0)
        wanted.extend(parents.get(each, ()))
    return total / TICKS


class Busy:
    """The processor time of a server, of the generator, and of whatever is neither, while something runs.

    The generator is this process with its children that have ended. What the host gave to others (steal) counts as
    theirs: it was missing here.
    """

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid

    def __enter__(self) -> Self:
        self._began, self._whole = time.monotonic(), _machine_busy()
        self._server = processor_seconds(self._server_pid)
        self._generator = _own_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        # Before the server's, for which this process reads all of /proc.
        self.generator_seconds = _own_seconds() - self._generator
        seconds, whole = time.monotonic() - self._began, _machine_busy() - self._whole
        self.server_seconds = processor_seconds(self._server_pid) - self._server
        self.other_cores = max(0.0, (whole - self.server_seconds - self.generator_seconds) / seconds)


def _own_seconds() -> float:
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def _machine_busy() -> float:
    first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, softirq, steal, *_ = map(int, first)
    return (user + nice + system + irq + softirq + steal) / TICKS


def machine() -> dict[str, str]:
    """What the figures were taken on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    found = {
        "processor": f"{os.cpu_count()} x {model}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load average before": Path("/proc/loadavg").read_text().split()[0],
    }
    found |= {name: version(name) for name in ("uvloop", "msgspec")} | {"holdfast": __version__}
    for name, command in (("etcd", ["etcd", "--version"]), ("wrk", ["wrk", "-v"]), ("h2load", ["h2load", "--version"])):
        if shutil.which(name):
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
            found[name] = (done.stdout + done.stderr).splitlines()[0].split("Copyright")[0].strip()
    return found
