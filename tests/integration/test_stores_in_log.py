"""Stores that live in the log, with real processes that share nothing but the log: any leader serves all of them."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.crash.server_process import ServerEnded, ServerProcess
from tests.rgw import free_port

SETTINGS = {"HOLDFAST_VIEW__ENABLED": "false", "HOLDFAST_STORES__PAGE_SIZE_BYTES": "1 MiB"}


class Machine:
    """One machine: its own directory for stores, and at most one service."""

    def __init__(self, directory: Path, name: str, log_url: str) -> None:
        self.directory = directory
        self.cache = directory / name
        self._log_url = log_url
        self._server: ServerProcess | None = None
        self._port = free_port()

    @property
    def server(self) -> ServerProcess:
        assert self._server is not None, "it was started"
        return self._server

    def start(self, *flags: str, **environment: str) -> None:
        self._server = ServerProcess(
            self.directory,
            self._log_url,
            self._port,
            flags=flags,
            environment={**SETTINGS, "HOLDFAST_STORES__DIRECTORY": str(self.cache), **environment},
        )

    def serve(self, *flags: str, **environment: str) -> None:
        """Start, and return when its stores are open."""
        self.start(*flags, **environment)
        self.wait()

    def wait(self) -> None:
        self.server.wait_until_leading()
        until = time.monotonic() + 30
        while self.ask("GET", "/v1/stores")[0] != 200:
            self.server.leads()  # raises when it has ended
            assert time.monotonic() < until, self.server.tail()
            time.sleep(0.02)

    def ask(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, target, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (ConnectionError, http.client.HTTPException):
            return 503, None
        finally:
            connection.close()

    def publish(self, *bodies: str) -> dict[str, Any]:
        messages = [{"body": b64encode(body.encode()).decode()} for body in bodies]
        status, answer = self.ask("POST", "/v1/stores/orders/messages", {"messages": messages})
        assert status == 200, answer
        return dict(answer)

    def take(self, count: int, subscriber: str = "s") -> list[tuple[int, str, int]]:
        """Numbers, bodies and delivery counts of what a poll hands out."""
        target = f"/v1/stores/orders/durables/work/messages?subscriber={subscriber}&max={count}"
        status, answer = self.ask("GET", target)
        assert status == 200, answer
        return [(each["seq"], b64decode(each["body"]).decode(), each["delivery_count"]) for each in answer["messages"]]

    def acknowledge(self, *seqs: int, subscriber: str = "s") -> None:
        body = {"subscriber": subscriber, "ack": [[seq, seq] for seq in seqs]}
        status, answer = self.ask("POST", "/v1/stores/orders/durables/work/acks", body)
        assert status == 200, answer

    def end(self) -> None:
        if self._server is not None and self._server.running:
            self._server.kill()


@contextmanager
def machines(directory: Path, log_url: str, count: int = 2) -> Iterator[list[Machine]]:
    made = [Machine(directory, f"machine-{number}", log_url) for number in range(count)]
    try:
        yield made
    finally:
        for machine in made:
            machine.end()


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def begin(directory: Path) -> str:
    """A new log whose stores live in it."""
    url = (directory / "log").as_uri()
    made = holdfast("log", "init", url, "--stores", "log")
    assert made.returncode == 0, made.stderr
    return url


def define(machine: Machine) -> None:
    work = {"type": "shared", "ack_wait": 3600}
    assert machine.ask("PUT", "/v1/stores/orders", {"durables": {"work": work}})[0] == 200


def test_another_machine_serves_what_a_killed_leader_confirmed(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url) as (first, second):
        first.serve()
        define(first)
        first.publish(*(f"m{number}" for number in range(20)))
        taken = first.take(5)
        assert [body for _, body, _ in taken] == [f"m{number}" for number in range(5)]
        first.acknowledge(*(seq for seq, _, _ in taken[:3]))
        first.server.kill()
        second.serve("--take-over")
        # What was acknowledged stays so; what was held comes again, and counts on.
        assert second.ask("GET", "/v1/stores/orders/durables/work")[0] == 200
        again = second.take(100, "s")
        assert {body for _, body, _ in again} == {f"m{number}" for number in range(3, 20)}
        assert second.publish("later")["first_seq"] == 21
        # And back to the first machine, whose files are behind now.
        second.server.kill()
        first.serve("--take-over")
        assert first.publish("last")["first_seq"] == 22
        assert first.server.stop() == 0
    assert "the log is intact" in holdfast("log", "verify", url).stdout


def test_a_standby_takes_the_stores_over_by_itself(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url) as (first, second):
        first.serve()
        define(first)
        first.publish("kept")
        second.start("--standby")
        time.sleep(1.0)
        first.server.kill()
        second.wait()
        assert [body for _, body, _ in second.take(5)] == ["kept"]


def test_a_cache_that_is_gone_or_damaged_is_made_again(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        define(machine)
        machine.publish("one", "two")
        assert machine.server.stop() == 0
        shutil.rmtree(machine.cache)
        machine.serve()
        assert machine.publish("three")["first_seq"] == 3
        assert machine.server.stop() == 0
        (index,) = machine.cache.glob("*/*/index.sqlite")
        data = bytearray(index.read_bytes())
        data[4096:8192] = bytes(4096)
        index.write_bytes(bytes(data))
        machine.serve()
        assert machine.publish("four")["first_seq"] == 4
        assert {body for _, body, _ in machine.take(10)} == {"one", "two", "three", "four"}


def test_commits_and_stores_share_one_log_and_readers_of_keys_see_keys_only(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        define(machine)
        versions: list[int] = []
        for number in range(10):
            machine.publish(f"m{number}")
            key = b64encode(b"k%d" % number).decode()
            status, answer = machine.ask("POST", "/v1/commit", {"operations": [{"type": "delete", "key": key}]})
            assert status == 200, answer
            versions.append(answer["version"])
        assert machine.server.stop() == 0
    lines = holdfast("log", "cat", url, "--json").stdout.splitlines()
    assert [json.loads(line)["version"] for line in lines] == versions
    assert "the log is intact" in holdfast("log", "verify", url).stdout


def test_a_mirror_and_a_restored_log_have_the_stores(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        define(machine)
        machine.publish("before")
        status, cut = machine.ask("GET", "/v1/version")
        assert status == 200
        machine.publish("after")
        assert machine.server.stop() == 0
    restored, mirrored = (tmp_path / "restored").as_uri(), (tmp_path / "mirror").as_uri()
    done = holdfast("log", "restore", url, restored, "--at", str(cut["version"]))
    assert done.returncode == 0, done.stderr
    done = holdfast("log", "mirror", url, mirrored)
    assert done.returncode == 0, done.stderr
    with machines(tmp_path, restored, 1) as (machine,):
        machine.serve()
        assert [body for _, body, _ in machine.take(10)] == ["before"]
    done = holdfast("log", "promote", mirrored)
    assert done.returncode == 0, done.stderr
    with machines(tmp_path / "m", mirrored, 1) as (machine,):
        (tmp_path / "m").mkdir()
        machine.serve()
        assert [body for _, body, _ in machine.take(10)] == ["before", "after"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"HOLDFAST_STORES__DURABILITY": "disk"}, "durability log, which was decided when the log began"),
        ({"HOLDFAST_STORES__ENABLED": "false"}, "the log has stores, and this service would serve none"),
    ],
)
def test_a_service_that_cannot_serve_the_stores_does_not_claim(
    tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    url = begin(tmp_path)
    before = holdfast("log", "ls", url, "--json").stdout
    with machines(tmp_path, url, 1) as (machine,):
        machine.start(**environment)
        with pytest.raises(ServerEnded) as caught:
            machine.server.wait_until_leading()
    assert "exit code 2" in str(caught.value)
    assert said in str(caught.value)
    assert holdfast("log", "ls", url, "--json").stdout == before


def test_nothing_is_truncated_while_a_new_leader_needs_all_of_the_log(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve(HOLDFAST_RETENTION__MAX_AGE_SECONDS="1", HOLDFAST_RETENTION__CHECK_SECONDS="0.1")
        until = time.monotonic() + 20
        while "the stores live in the log" not in str(machine.ask("GET", "/v1/retention")[1]):
            assert time.monotonic() < until
            time.sleep(0.05)


def test_a_backup_of_the_copy_is_refused_and_names_what_to_do(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        status, answer = machine.ask("POST", "/v1/cluster/backup", {"name": "b"})
        assert (status, "log mirror" in json.dumps(answer)) == (400, True)
