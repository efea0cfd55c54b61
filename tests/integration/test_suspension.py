"""A suspended log, with real processes: nobody leads it, readers are served, and it goes on when it is resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.server_process import ServerProcess
from tests.integration.curl import curl
from tests.rgw import free_port

from holdfast.cli.main import main

SECONDS_MAX = 60.0
POLL_SECONDS = 0.05
WRITE = {"type": "write", "key_text": "seat", "value_text": "ann"}


class Cluster:
    """Services of one log in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = (directory / "log").as_uri()
        self.running: list[ServerProcess] = []

    def start(self, *flags: str, port: int = 0) -> ServerProcess:
        process = ServerProcess(
            self.directory,
            self.url,
            port or free_port(),
            flags=flags,
            environment={"HOLDFAST_LEADER__SIGN_INTERVAL_MS": "200"},
        )
        self.running.append(process)
        return process

    def ask(self, process: ServerProcess, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        answered = curl(process.port, method, path, data)
        return answered.status, json.loads(answered.body)

    def commit(self, process: ServerProcess) -> int:
        status, answer = self.ask(process, "POST", "/v1/commit", {"operations": [WRITE]})
        assert status == 200, answer
        return int(answer["version"])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    for process in made.running:
        if process.running:
            process.kill()


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < end, f"not within {SECONDS_MAX:.0f} s: {what}"
        time.sleep(POLL_SECONDS)


def command(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out))


def test_nobody_leads_a_suspended_log_whoever_is_killed_or_started_until_it_goes_on(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    first = cluster.start("--init")
    first.wait_until_leading()
    second = cluster.start("--standby")
    version = cluster.commit(first)
    assert command(capsys, "cluster", "status", cluster.url)["suspended"] is False

    suspended = command(capsys, "cluster", "suspend", cluster.url)
    assert suspended["suspended"] is True and suspended["newest_kind"] == "resign"
    assert suspended["leader_id"] is None and suspended["last_version"] == version
    assert command(capsys, "cluster", "suspend", cluster.url) == suspended, "it is so already"

    first.kill()
    first, third = cluster.start("--standby"), cluster.start()
    assert third.wait() == 3, "a start that does not stand by is refused"
    assert "suspended" in third.tail() and "holdfast cluster resume" in third.tail()
    for process in (first, second):

        def says_why(process: ServerProcess = process) -> bool:
            if process.livez() is None:
                return False  # it does not listen yet
            status, answer = cluster.ask(process, "POST", "/v1/commit", {"operations": [WRITE]})
            return status == 503 and "suspended by" in answer["error"].get("hint", "")

        until(says_why, "a process says why nobody leads")
        until(lambda: cluster.ask(process, "GET", "/v1/version?consistency=local")[0] == 200, "readers are served")  # noqa: B023
    assert command(capsys, "cluster", "status", cluster.url)["newest_slot"] == suspended["newest_slot"]

    assert command(capsys, "cluster", "resume", cluster.url)["suspended"] is False
    until(lambda: first.leads() or second.leads(), "one of them leads")
    assert cluster.commit(first if first.leads() else second) > version


@pytest.mark.matrix
def test_a_leader_that_does_not_answer_is_named_and_resigns_when_it_wakes(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    leader = cluster.start("--init")
    leader.wait_until_leading()
    leader.pause()
    assert main(["cluster", "suspend", cluster.url, "--wait-seconds", "0.3"]) != 0
    assert f"127.0.0.1:{leader.port}" in capsys.readouterr().err
    leader.resume()
    until(lambda: command(capsys, "cluster", "status", cluster.url)["newest_kind"] == "resign", "it resigns")
    assert leader.running, "it serves readers, and waits"
    command(capsys, "cluster", "resume", cluster.url)
    leader.wait_until_leading()


def test_the_cluster_of_stores_in_the_log_is_suspended_as_the_log(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    leader = cluster.start("--init", "--set", "stores.durability=log")
    leader.wait_until_leading()
    until(lambda: cluster.ask(leader, "GET", "/v1/cluster/quorum")[0] == 200, "the stores are open")
    status, answer = cluster.ask(leader, "POST", "/v1/cluster/suspend")
    assert status == 200 and answer["have_quorum"] is False
    assert command(capsys, "cluster", "status", cluster.url)["suspended"] is True
    until(lambda: cluster.ask(leader, "GET", "/v1/cluster/quorum")[0] == 503, "nobody serves the stores")
    command(capsys, "cluster", "resume", cluster.url)
    leader.wait_until_leading()
    until(lambda: cluster.ask(leader, "GET", "/v1/cluster/quorum")[0] == 200, "the stores are open again")
    assert cluster.ask(leader, "GET", "/v1/cluster/quorum")[1]["have_quorum"] is True


def test_a_log_that_never_was_suspended_stays_as_it_is_when_it_is_resumed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    command(capsys, "log", "init", cluster.url, "--no-race")
    assert command(capsys, "cluster", "resume", cluster.url)["suspended"] is False
    assert "changed_by" not in command(capsys, "cluster", "status", cluster.url)
    assert not list((cluster.directory / "log").glob("meta/suspend/*"))
    assert main(["cluster", "suspend", (cluster.directory / "nothing").as_uri()]) == 5
