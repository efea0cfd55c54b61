"""``holdfast cluster try``: three members of etcd and two services on this machine, killed and started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.etcd_lane import require_etcd

from holdfast import Client, Write
from holdfast.cli.main import main

SECONDS_MAX = 60.0


class RunningTrial:
    """The command in a process of its own."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", "cluster", "try", str(directory)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            text=True,
        )
        self.pids: dict[str, int] = {}
        self.clients = ""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.match(r"(\w+) +pid (\d+)", line):
                self.pids[found[1]] = int(found[2])
            elif line.startswith("clients"):
                self.clients = line.split()[1]
            elif found := re.match(r"ready: (\w+) leads", line):
                self.leader = found[1]
                break
        assert self.clients, "it ended at its start"

    def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)

    def read_until(self, words: str) -> None:
        assert self._process.stdout is not None
        assert any(words in line for line in self._process.stdout), f"it never said: {words}"

    def interrupt(self) -> int:
        """Ctrl-C, and the exit code."""
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(SECONDS_MAX)
        finally:
            self._process.kill()
            assert self._process.stdout is not None
            self._process.stdout.close()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[], RunningTrial]]:
    running: list[RunningTrial] = []

    def start() -> RunningTrial:
        running.append(RunningTrial(tmp_path / "trial"))
        return running[-1]

    require_etcd()
    yield start
    for trial in running:
        trial.interrupt()


def write(clients: str, key: bytes) -> int:
    with Client(clients) as client:
        return client.commit([Write(key, b"ann")]).version


def read(clients: str, key: bytes) -> bytes | None:
    with Client(clients) as client:
        found = client.get(key)
    return None if found is None else found.value


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_member_and_the_leading_service_are_killed_and_the_log_goes_on_also_in_a_later_run(
    started: Callable[[], RunningTrial],
) -> None:
    trial = started()
    assert sorted(trial.pids) == ["m1", "m2", "m3", "s1", "s2"]
    first = write(trial.clients, b"before")
    trial.kill(trial.leader)
    trial.kill("m2")
    second = write(trial.clients, b"after")
    assert second > first
    trial.read_until("m2 runs again")
    trial.read_until(f"{trial.leader} runs again")
    assert trial.interrupt() == 130
    until = time.monotonic() + SECONDS_MAX
    while any(map(is_there, trial.pids.values())) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_there, trial.pids.values())), "nothing is left"

    again = started()
    assert (read(again.clients, b"before"), read(again.clients, b"after")) == (b"ann", b"ann")


def test_a_directory_of_something_else_and_a_machine_without_etcd_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "try", str(tmp_path / "trial"), "--etcd", "no-such-program"]) == 2
    assert "apt-get install etcd-server" in capsys.readouterr().err
    require_etcd()
    (tmp_path / "thesis.txt").write_text("draft")
    assert main(["cluster", "try", str(tmp_path)]) == 2
    assert "has other files" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "draft"
