"""Real etcd for the tests: one cluster for the session, one prefix for each test.

Import the fixtures into a folder's ``conftest.py``. Where etcd is absent the tests are skipped with the reason, except
under ``CI=true`` or ``HOLDFAST_PROVE=1``, where a lane that does not run is a failure.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.rgw import free_port

START_SECONDS_MAX = 60.0
_prefixes = itertools.count(1)
_shared: dict[str, EtcdCluster] = {}


def require_etcd() -> None:
    """Skip, or fail where the lane must run, when etcd is not installed."""
    if shutil.which("etcd") is not None:
        return
    reason = "the etcd lane needs etcd: scripts/setup.sh etcd (apt install etcd-server)"
    if os.environ.get("CI", "").lower() in ("1", "true") or os.environ.get("HOLDFAST_PROVE") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class EtcdMember:
    """One member, with its data in a directory. It dies with this process."""

    def __init__(self, directory: Path, name: str, scheme: str = "http", flags: Sequence[str] = ()) -> None:
        self.name = name
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.peer = f"http://127.0.0.1:{free_port()}"
        self._client = f"{scheme}://{self.endpoint}"
        self._directory = directory / name
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, members: Sequence[EtcdMember], token: str) -> None:
        """Start the process, for the first time or again. ``wait`` says when it serves."""
        everybody = ",".join(f"{each.name}={each.peer}" for each in members)
        command = [
            *(
                "setpriv",
                "--pdeathsig",
                "KILL",
                "etcd",
                "--name",
                self.name,
                "--data-dir",
                str(self._directory / "data"),
            ),
            *("--listen-client-urls", self._client, "--advertise-client-urls", self._client),
            *("--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer),
            *("--initial-cluster", everybody, "--initial-cluster-token", token),
            *("--heartbeat-interval", "50", "--election-timeout", "500", "--log-outputs", "stderr", *self._flags),
        ]
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "etcd.log").open("ab") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def wait(self) -> None:
        """Return when the member has a leader. It needs no user, and TLS is not asked here."""
        until = time.monotonic() + START_SECONDS_MAX
        while not self.metric("etcd_server_has_leader"):
            assert self._process is not None and self._process.poll() is None, self.log()
            assert time.monotonic() < until, f"etcd has no leader: {self.log()}"
            time.sleep(0.02)

    def metric(self, name: str) -> float:
        """A metric of the member; 0 while it does not answer."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(self.endpoint, timeout=5)
            with contextlib.closing(connection):
                connection.request("GET", "/metrics")
                for line in connection.getresponse().read().decode().splitlines():
                    if line.startswith(f"{name} "):
                        return float(line.rpartition(" ")[2])
        return 0.0

    @property
    def leads(self) -> bool:
        """Whether this member is the leader."""
        return self.metric("etcd_server_is_leader") == 1.0

    def signal(self, number: int) -> None:
        """Send a signal; after SIGKILL the process is gone when this returns."""
        assert self._process is not None, "the member was started"
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def log(self) -> str:
        """The end of what the member wrote."""
        return (self._directory / "etcd.log").read_text()[-2_000:]

    def stop(self) -> None:
        """End the process."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)


class EtcdCluster:
    """Some members that know each other."""

    def __init__(self, directory: Path, size: int = 1, flags: Sequence[str] = ()) -> None:
        self._token = directory.name
        self.members = [EtcdMember(directory, f"m{number}", flags=flags) for number in range(size)]
        for member in self.members:
            self.start(member)
        for member in self.members:
            member.wait()

    def start(self, member: EtcdMember) -> None:
        """Start a member, for the first time or again."""
        member.start(self.members, self._token)

    @property
    def endpoints(self) -> str:
        """The endpoints, as they are in a URL."""
        return ",".join(member.endpoint for member in self.members)

    def url(self, prefix: str = "log") -> str:
        """The URL of a log on it."""
        return f"etcd://{self.endpoints}/{prefix}"

    def leader(self) -> EtcdMember:
        """The member that leads now."""
        until = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < until:
            for member in self.members:
                if member.leads:
                    return member
            time.sleep(0.02)
        raise AssertionError("no member of etcd leads")

    def stop(self) -> None:
        """End all members."""
        for member in self.members:
            member.stop()


@pytest.fixture(scope="session")
def etcd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EtcdCluster:
    """A running cluster of one member."""
    require_etcd()
    if "one" not in _shared:
        _shared["one"] = EtcdCluster(tmp_path_factory.mktemp("etcd"))
        request.config.add_cleanup(_shared["one"].stop)
    return _shared["one"]


@pytest.fixture
def etcd_url(etcd: EtcdCluster) -> str:
    """The URL of a fresh, empty prefix."""
    return etcd.url(f"test-{next(_prefixes)}")


@pytest.fixture
def etcd_three(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Three members of its own for a test that kills them."""
    require_etcd()
    cluster = EtcdCluster(tmp_path / "etcd", 3)
    yield cluster
    cluster.stop()
