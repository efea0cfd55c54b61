"""Laws of the serving process: how it starts, who leads, how it ends, and the code it ends with."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.server_process import NO_VIEW, children, directory_workers
from tests.fork_server import ForkedCommand
from tests.matrix import matrix
from tests.mount_namespace import mount_namespace

SECONDS_MAX = 60
POLL_SECONDS = 0.01


class Process:
    """``holdfast serve`` as a process of its own."""

    def __init__(
        self,
        log: Path | str,
        *arguments: str,
        listen: str = "127.0.0.1:0",
        without_override: bool = False,
        view: bool = False,
        forked: bool = False,
    ) -> None:
        words = ["serve", "--log", log if isinstance(log, str) else log.as_uri(), "--listen", listen, *arguments]
        environment = {
            **os.environ,
            **({} if view else NO_VIEW),
            "PYTHONPATH": "src",
            "HOLDFAST_LEADER__SIGN_INTERVAL_MS": "200",
        }
        (output, their_output), (errors, their_errors) = os.pipe(), os.pipe()
        self.output, self.errors = open(output, encoding="utf-8"), open(errors, encoding="utf-8")  # noqa: SIM115
        self.process: ForkedCommand | subprocess.Popen[bytes]
        with open(their_output, "wb") as stdout, open(their_errors, "wb") as stderr:
            if forked:
                self.process = ForkedCommand(words, stdout=stdout, stderr=stderr, env=environment)
            else:
                # A superuser may write anywhere, unless this right is taken away.
                limits = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
                command = [
                    *("env", "--default-signal=HUP,INT"),  # one that ignores them, as under nohup, goes on
                    *(limits if without_override else []),
                    *(sys.executable, "-m", "holdfast.cli.main"),
                ]
                self.process = subprocess.Popen([*command, *words], stdout=stdout, stderr=stderr, env=environment)
        self.leader_id = ""
        self.address = ""

    def line(self) -> str:
        """The next line on standard output."""
        return self.output.readline()

    def ready(self) -> Process:
        line = self.line()
        found = re.match(r"ready listen=(\S+) leader_id=([0-9a-f]{32})$", line)
        assert found, line or self.end()
        self.address, self.leader_id = found[1].split(",")[0], found[2]
        return self

    def end(self) -> tuple[int, str]:
        """The exit code and standard error."""
        errors = self.errors.read()
        return self.process.wait(SECONDS_MAX), errors

    def close(self) -> None:
        """End the process, if it has not ended."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_MAX)
        self.output.close()
        self.errors.close()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ask(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.address, timeout=SECONDS_MAX)
        try:
            connection.request(method, target, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def key(self, encoded: str) -> Any:
        """What the view shows; on a busy machine its process may begin to follow seconds after the leader leads."""
        while True:
            status, answer = self.ask("GET", f"/v1/keys/{encoded}")
            if status != 503 or answer["error"]["code"] != "view_behind":
                return answer
            time.sleep(POLL_SECONDS)

    def metric(self, name: str) -> float:
        """One figure without labels."""
        connection = http.client.HTTPConnection(self.address, timeout=SECONDS_MAX)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]

    def commit(self) -> int:
        status, answer = self.ask("POST", "/v1/commit", WRITE)
        assert (status, answer["status"]) == (200, "committed"), answer
        return int(answer["version"])


WRITE = {"operations": [{"type": "write", "key": "a2V5", "value": "dmFs"}]}


def view_processes(pid: int) -> list[int]:
    """The processes that keep the view of the server ``pid``."""
    return [child for child in children(pid) if b"view.process" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts services by fork; ``forked=False`` starts the true command, for laws of its start and its end."""
    started: list[Process] = []

    def start_one(*arguments: str, log: Path | str | None = None, forked: bool = True, **how: Any) -> Process:
        started.append(Process(log or tmp_path / "log", *arguments, forked=forked, **how))
        return started[-1]

    yield start_one
    for one in started:
        one.close()


def test_a_hangup_stops_nothing_and_a_terminal_that_is_gone_neither(start: Any) -> None:
    server = start("--init", forked=False).ready()
    server.errors.close()  # as a terminal that is gone: every further line of the log fails
    for _ in range(3):
        server.signal(signal.SIGHUP)
        assert server.commit() > 0
    server.signal(signal.SIGTERM)
    assert server.process.wait(SECONDS_MAX) == 0


@pytest.mark.parametrize("number", matrix([signal.SIGTERM, signal.SIGINT]))
def test_a_signal_drains_resigns_and_exits_0_and_the_next_start_leads_at_once(start: Any, number: int) -> None:
    first = start("--init", forked=False).ready()
    version = first.commit()
    first.signal(number)
    code, errors = first.end()
    assert code == 0, errors
    second = start(view=True).ready()
    assert second.key("a2V5")["version"] == version
    assert second.commit() > version


def test_commits_under_way_at_a_signal_are_answered(start: Any) -> None:
    server = start("--init").ready()
    body = json.dumps(WRITE).encode()
    request = b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as connection:
        connection.sendall(request * 200)
        first = connection.recv(1 << 16)
        server.signal(signal.SIGTERM)
        whole = first
        while part := connection.recv(1 << 16):
            whole += part
    assert server.end()[0] == 0
    # Every request that was taken has its answer: none is torn, and the connection ended in good order.
    heads = [int(length) for length in re.findall(rb"Content-Length: (\d+)\r\n", whole)]
    assert len(heads) == whole.count(b"HTTP/1.1 ")
    assert whole.count(b'"status":"committed"') >= 1 and whole.endswith(b"}")


def test_of_two_servers_one_leads_and_the_other_names_it_and_exits_3(start: Any) -> None:
    first = start("--init").ready()
    code, errors = start().end()
    assert code == 3
    assert first.leader_id in errors and first.address in errors
    assert first.commit() > 0


def test_take_over_deposes_and_the_deposed_exits_4(start: Any) -> None:
    first = start("--init").ready()
    version = first.commit()
    second = start("--take-over").ready()
    status, answer = first.ask("POST", "/v1/commit", WRITE)
    assert (status, answer["error"]["code"]) in [(504, "outcome_unknown"), (409, "leader_changed"), (503, "not_leader")]
    assert first.leader_id not in json.dumps(answer)
    assert first.end()[0] == 4
    assert second.commit() > version


@pytest.mark.matrix  # the test that is asked to stand by does both
def test_a_standby_says_who_leads_and_leads_after_it(start: Any) -> None:
    first = start("--init").ready()
    version = first.commit()
    standby = start("--standby", view=True)
    line = standby.line()
    assert line.startswith(f"standby leader_id={first.leader_id} leader_address={first.address} clients=")
    addresses = line.rstrip().partition("clients=")[2].split(",")
    first.process.kill()
    first.process.wait(SECONDS_MAX)
    standby.ready()
    assert addresses == [f"http://{first.address}", f"http://{standby.address}"], "what clients are given"
    assert standby.key("a2V5")["version"] == version


def test_stepping_down_on_request_exits_0(start: Any) -> None:
    server = start("--init").ready()
    status, answer = server.ask("POST", "/v1/admin/step-down", {})
    assert (status, answer["stepped_down"]) == (200, True)
    assert server.end()[0] == 0


def test_a_process_that_is_asked_to_stand_by_runs_on_and_leads_again(start: Any) -> None:
    server = start("--init").ready()
    assert server.ask("POST", "/v1/admin/step-down?then=end", {})[0] == 400
    status, answer = server.ask("POST", "/v1/admin/step-down?then=stand_by", {})
    assert (status, answer["stepped_down"]) == (200, True)
    first = answer["leader_id"]
    server.ready()
    assert server.leader_id != first
    assert server.ask("POST", "/v1/admin/step-down", {})[0] == 200, "it was asked for one turn"
    assert server.end()[0] == 0


def test_nothing_to_open_exits_5_and_says_how_to_begin(start: Any, tmp_path: Path) -> None:
    code, errors = start().end()
    assert code == 5 and "init" in errors
    (tmp_path / "empty").mkdir()
    code, errors = start(log=tmp_path / "empty").end()
    assert code == 5 and "init" in errors


def test_a_log_that_is_a_plain_file_exits_2_at_once_and_is_named(start: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a log")
    for log in (tmp_path / "file", tmp_path / "file" / "below"):
        code, errors = start("--init", log=log).end()
        assert code == 2 and f"path={tmp_path / 'file'}" in errors and "not a directory" in errors
    assert (tmp_path / "file").read_text() == "not a log"


@pytest.mark.parametrize("closed", matrix(["", "batches"]))
def test_a_log_that_may_not_be_written_exits_2_at_once_and_is_named(start: Any, tmp_path: Path, closed: str) -> None:
    log = tmp_path / "log"
    (log / "batches").mkdir(parents=True)
    (log / closed).chmod(0o555)
    code, errors = start("--init", log=log, without_override=True, forked=False).end()
    assert code == 2 and f"path={log / closed}" in errors and "this user may not read, write and enter" in errors


def test_a_directory_that_may_not_be_made_exits_2_at_once(start: Any, tmp_path: Path) -> None:
    (tmp_path / "parent").mkdir(mode=0o555)
    code, errors = start("--init", log=tmp_path / "parent" / "log", without_override=True, forked=False).end()
    assert code == 2 and f"path={tmp_path / 'parent'}" in errors


def test_a_drain_that_a_store_holds_up_ends_in_time_with_6_and_an_unknown_outcome(start: Any) -> None:
    server = start("--init", "--set", "server.drain_seconds_max=4", forked=False).ready()
    assert server.commit() > 0
    workers = directory_workers(server.process.pid)
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    host, _, port = server.address.rpartition(":")
    body = json.dumps(WRITE).encode()
    with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as connection:
        connection.sendall(
            b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        while server.metric("holdfast_commits_in_flight") == 0:
            time.sleep(POLL_SECONDS)
        server.signal(signal.SIGTERM)
        while server.ask("GET", "/readyz")[0] == 200:
            time.sleep(POLL_SECONDS)
        # A refusal would be a proof that it has gone, and another process would claim.
        assert server.ask("GET", "/livez")[1]["leading"] is True
        answer = connection.recv(1 << 16)
    assert b"504" in answer.split(b"\r\n")[0] and b"outcome_unknown" in answer
    server.process.wait(SECONDS_MAX)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)  # they have the server's standard error
    code, errors = server.end()
    assert code == 6 and "drain_given_up" in errors and "outcomes_unknown=1" in errors


def test_a_stop_that_a_thread_holds_up_ends_in_time_with_6(start: Any, tmp_path: Path) -> None:
    """The interpreter waits for its threads at the end, and a view process that cannot be ended holds one up."""
    server = start("--init", "--set", "server.drain_seconds_max=2", view=True, forked=False).ready()
    assert server.commit() > 0
    server.key("a2V5")  # the view process is there
    (child,) = view_processes(server.process.pid)
    os.kill(child, signal.SIGSTOP)
    server.signal(signal.SIGTERM)
    server.process.wait(SECONDS_MAX)
    os.kill(child, signal.SIGKILL)  # it has the server's standard error
    code, errors = server.end()
    assert code == 6 and "stop_given_up" in errors


def ended(*command: str, **environment: str) -> tuple[int, str]:
    """The exit code and the standard error of a command that ends by itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={**kept, "PYTHONPATH": "src", **environment},
        check=False,
    )
    return done.returncode, done.stderr


SERVE = (sys.executable, "-m", "holdfast.cli.main", "serve", "--init", "--listen", "127.0.0.1:0", "--log")


def test_a_log_on_a_file_system_that_is_mounted_read_only_exits_6_and_is_named() -> None:
    mounted = f"mount -t tmpfs -o ro none /mnt && exec {' '.join(SERVE)} file:///mnt/log"
    code, errors = ended(*mount_namespace(), "sh", "-c", mounted)
    assert code == 6
    assert "mounted read-only" in errors and "path=/mnt" in errors and "hint=" in errors


def test_missing_s3_credentials_are_reported_and_not_waited_for() -> None:
    with socket.socket() as silent:  # bound and not listening: a machine without a metadata service
        silent.bind(("127.0.0.1", 0))
        metadata = {"AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        code, errors = ended(*SERVE, "s3://bucket/log", **metadata)
        assert code == 2 and "no credentials for S3" in errors and "AWS_ACCESS_KEY_ID" in errors
        code, errors = ended(*SERVE, "s3://bucket/log", AWS_ACCESS_KEY_ID="key", **metadata)
        assert code == 2 and "missing=AWS_SECRET_ACCESS_KEY" in errors


@pytest.mark.parametrize("listening", matrix([True, False]), ids=["silent", "refusing"])
def test_a_signal_ends_a_start_with_init_while_the_store_does_not_answer(
    start: Any, monkeypatch: pytest.MonkeyPatch, *, listening: bool
) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as store:
        store.bind(("127.0.0.1", 0))
        store.settimeout(SECONDS_MAX)
        if listening:
            store.listen()
        place = f"http://127.0.0.1:{store.getsockname()[1]}"
        process = start("--init", log=f"s3://bucket/log?region=us-east-1&endpoint={place}")
        if listening:
            asked, _ = store.accept()  # the request stays without an answer until the end
        else:
            errors = iter(process.errors.readline, "")
            assert any("store_unavailable" in line for line in errors)
        process.signal(signal.SIGTERM)
        assert process.end()[0] == 0
        if listening:
            asked.close()


def test_an_address_in_use_exits_2_and_is_named(start: Any) -> None:
    first = start("--init").ready()
    code, errors = start("--take-over", listen=first.address).end()
    assert code == 2 and first.address in errors
    assert first.commit() > 0


def test_a_damaged_log_exits_6_and_is_named(start: Any, tmp_path: Path) -> None:
    first = start("--init").ready()
    first.commit()
    first.signal(signal.SIGTERM)
    assert first.end()[0] == 0
    newest = min((tmp_path / "log" / "batches").iterdir())
    damaged = bytearray(newest.read_bytes())
    damaged[100] ^= 1
    newest.chmod(0o644)
    newest.write_bytes(damaged)
    code, errors = start().end()
    assert code == 6 and newest.name in errors


def test_a_unix_socket_is_served_and_one_left_behind_is_taken_over(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    for round_number in range(2):
        server = start("--init", listen=f"unix:{path}")
        assert f"unix:{path}" in server.line()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        if round_number == 0:
            server.process.kill()
            server.process.wait(SECONDS_MAX)
            assert path.exists()
