"""Three members of etcd and two services on this machine, to try out what three machines do.

The data and the ports are in one directory, so that a later run goes on with the same log. A process that ends is
started again after ``AGAIN_SECONDS``, as the units of ``deploy/`` do. Nothing here is for production: one machine has
one disk.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import Code, InvalidRequest, Unavailable
from holdfast.files.durable_directory import make_durable_directory

MEMBERS: Final[tuple[str, ...]] = ("m1", "m2", "m3")
SERVICES: Final[tuple[str, ...]] = ("s1", "s2")
PORTS: Final = "ports.json"
AGAIN_SECONDS: Final = 3.0
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 15.0
LOOK_SECONDS: Final = 0.1
Say = Callable[[str], None]


class Ports(msgspec.Struct, frozen=True):
    """The ports of one trial. ``clients`` and ``peers`` are those of the members."""

    clients: dict[str, int]
    peers: dict[str, int]
    services: dict[str, int]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class TrialProcess:
    """One process of a trial. It is started again when it ends."""

    def __init__(self, name: str, command: list[str], directory: Path) -> None:
        self.name = name
        self._command = command
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._again_at = 0.0

    @property
    def pid(self) -> int:
        """The process, 0 while there is none."""
        return 0 if self._process is None else self._process.pid

    @property
    def log(self) -> Path:
        """What it writes."""
        return self._directory / f"{self.name}.log"

    def start(self) -> None:
        """Start it. Its output is appended to a file."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                _ending_with_this(self._command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                start_new_session=True,  # an interrupt from the keyboard is for the trial, which ends them in order
            )

    def look(self, now: float, say: Say) -> None:
        """Say that it ended, and start it again when its time has come."""
        if self._process is not None and (code := self._process.poll()) is not None:
            say(f"{self.name} ended ({code}), and starts again in {AGAIN_SECONDS:.0f} s; its output is in {self.log}")
            self._process, self._again_at = None, now + AGAIN_SECONDS
        if self._process is None and now >= self._again_at:
            self.start()
            say(f"{self.name} runs again: pid {self.pid}")

    def require_running(self) -> None:
        """Return unless it has ended. Raises: Unavailable."""
        if self._process is None or self._process.poll() is not None:
            last = self.log.read_bytes()[-500:].decode("utf-8", "replace").strip().splitlines()[-1:]
            raise Unavailable(f"{self.name} ended at its start", cause=" ".join(last), log=str(self.log))

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after ``STOP_SECONDS_MAX``."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Trial:
    """The members and services of one directory."""

    def __init__(self, directory: Path, program: str = "etcd") -> None:
        """Raises: InvalidRequest without the program, and where the directory is not one of a trial."""
        etcd = shutil.which(program)
        if etcd is None:
            raise InvalidRequest(
                "the program etcd is not installed",
                code=Code.BAD_CONFIGURATION,
                hint="on Debian and Ubuntu: apt-get install etcd-server",
                program=program,
            )
        make_durable_directory(str(directory))
        self.directory = directory.resolve()
        self.ports = self._read_ports()
        peers = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in self.ports.peers.items())
        self.members = [TrialProcess(name, self._member(etcd, name, peers), self.directory) for name in MEMBERS]
        self.services = [TrialProcess(name, self._service(name), self.directory) for name in SERVICES]

    def _read_ports(self) -> Ports:
        file = self.directory / PORTS
        if file.exists():
            try:
                return msgspec.json.decode(file.read_bytes(), type=Ports)
            except msgspec.DecodeError as error:
                raise InvalidRequest("the ports of a trial cannot be read", path=str(file), cause=str(error)) from error
        if any(self.directory.iterdir()):
            raise InvalidRequest(
                "this directory has other files", hint="give an empty one, or one of an earlier trial",
                path=str(self.directory),
            )  # fmt: skip
        free = iter(_free_ports(2 * len(MEMBERS) + len(SERVICES)))
        ports = Ports(*({name: next(free) for name in names} for names in (MEMBERS, MEMBERS, SERVICES)))
        file.write_bytes(msgspec.json.encode(ports))
        return ports

    def _member(self, etcd: str, name: str, peers: str) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.ports.clients[name], self.ports.peers[name]))
        return [
            etcd, "--name", name, "--data-dir", str(self.directory / name), "--log-outputs", "stderr",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", peers, "--initial-cluster-token", self.directory.name,
            "--snapshot-count", "1000", "--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000",
        ]  # fmt: skip

    def _service(self, name: str) -> list[str]:
        return [
            sys.executable, "-m", "holdfast.cli.main", "serve", "--standby", "--log", self.url,
            "--listen", f"127.0.0.1:{self.ports.services[name]}",
            "--set", f"stores.directory={self.directory / f'{name}-stores'}", "--set", "view.enabled=true",
        ]  # fmt: skip

    @property
    def url(self) -> str:
        """Of the log."""
        return f"etcd://{','.join(f'127.0.0.1:{port}' for port in self.ports.clients.values())}/trial"

    @property
    def service_urls(self) -> str:
        """As clients take them."""
        return ",".join(f"http://127.0.0.1:{port}" for port in self.ports.services.values())

    def start(self, init: Callable[[str], None]) -> None:
        """Start everything, and return when a service leads. ``init`` begins the log where there is none.

        Raises: Unavailable.
        """
        for member in self.members:
            member.start()
        self._until("the members have no leader", self._has_majority, self.members)
        init(self.url)
        for service in self.services:
            service.start()
        self._until("no service leads", self._is_led, self.services)

    def _until(self, trouble: str, holds: Callable[[], bool], processes: list[TrialProcess]) -> None:
        until = time.monotonic() + START_SECONDS_MAX
        while not holds():
            for process in processes:
                process.require_running()
            if time.monotonic() > until:
                raise Unavailable(trouble, hint=f"the output of each process is in {self.directory}/*.log")
            time.sleep(LOOK_SECONDS)

    def _has_majority(self) -> bool:
        return all(_answer(port, "/health").get("health") in ("true", True) for port in self.ports.clients.values())

    def _is_led(self) -> bool:
        return any(_answer(port, "/livez").get("leading") is True for port in self.ports.services.values())

    def leader(self) -> str:
        """The service that leads, empty while none does."""
        names = (name for name, port in self.ports.services.items() if _answer(port, "/livez").get("leading") is True)
        return next(names, "")

    def look(self, say: Say) -> None:
        """Start again what has ended."""
        now = time.monotonic()
        for process in (*self.members, *self.services):
            process.look(now, say)

    def stop(self) -> None:
        """End the services, then the members."""
        for process in (*self.services, *self.members):
            process.stop()


def _ending_with_this(command: list[str]) -> list[str]:
    """The command, which the kernel ends when the trial is killed, where the system has a program for that."""
    return ["setpriv", "--pdeathsig", "TERM", *command] if shutil.which("setpriv") is not None else command


def _answer(port: int, path: str) -> Mapping[str, object]:
    """The JSON that a process answers; empty while it does not."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return dict(json.loads(connection.getresponse().read()))
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
