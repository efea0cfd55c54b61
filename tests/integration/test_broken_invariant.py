"""A service whose assertion fails ends at once with exit code 70, its children too, and answers nothing more."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import Client
from holdfast.server.children.background_process import BackgroundProcess, kill_all

PLANTED = """
import sys
from holdfast.cli.main import main
from holdfast.commit.stages import events, pipeline
from holdfast.retention import truncator
from holdfast.server.http import routes

step, answer = pipeline.Pipeline.step, routes.RouteEndpoint._answer
run = truncator.Truncator.run

def planted_step(self, event):
    effects = step(self, event)
    if isinstance(event, events.Arrived):
        assert not any("planted" in str(each.txn.operations) for each in event.entries), "planted in a step"
    return effects

async def planted_answer(self, call):
    assert sys.argv[2] != "handler" or not self.route.name.endswith("/configuration"), "planted in a handler"
    return await answer(self, call)

async def planted_task(self):
    assert sys.argv[2] != "task", "planted in a task"
    await run(self)

truncator.Truncator.run = planted_task
pipeline.Pipeline.step, routes.RouteEndpoint._answer = planted_step, planted_answer
sys.exit(main(["serve", "--init", "--log", sys.argv[1], "--listen", "127.0.0.1:0", *sys.argv[3:]]))
"""


def _start(log: Path, where: str, *options: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PLANTED, log.as_uri(), where, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "src"},
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    while line and not line.startswith("ready"):
        line = process.stdout.readline()
    if not line:
        process.wait()
        raise AssertionError(process.stderr.read())
    return process, line.split("listen=")[1].split()[0].split(",")[0]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _ask(address: str, method: str, path: str, body: object = None) -> Any:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        return json.loads(connection.getresponse().read() or b"{}")
    finally:
        connection.close()


def _write(key: str) -> dict[str, object]:
    return {"operations": [{"type": "write", "key_text": key, "value_text": "1"}]}


def test_a_failed_assertion_ends_the_service_and_its_children_and_the_log_stays_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process, address = _start(log, "step", "--console", "--console-listen", f"127.0.0.1:{_free_port()}")
    try:
        version = _ask(address, "POST", "/v1/commit", _write("before"))["version"]
        assert _ask(address, "GET", f"/v1/keys/YmVmb3Jl?at={version}")["version"] == version  # the view's process runs
        children = _children(process.pid)
        assert len(children) >= 2, "a console, a view, and a writer of the directory"
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            _ask(address, "POST", "/v1/commit", _write("planted"))
        assert process.wait(30) == 70
        assert process.stderr is not None
        errors = process.stderr.read()
        assert "invariant_violated" in errors and "planted in a step" in errors
        assert "reign_over" not in errors, "it neither drains nor resigns"
        until = time.monotonic() + 30.0
        while any(map(_lives, children)):
            assert time.monotonic() < until, "a child outlives the service"
            time.sleep(0.01)
    finally:
        process.kill()
        process.communicate()
    again, address = _start(log, "none")
    try:
        with Client(f"http://{address}") as client:
            assert client.get(b"before") is not None
    finally:
        again.terminate()
        assert again.wait(30) == 0
        again.communicate()


def test_a_failed_assertion_of_a_request_ends_the_service(tmp_path: Path) -> None:
    process, address = _start(tmp_path / "log", "handler")
    try:
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            _ask(address, "GET", "/v1/configuration")
        assert process.wait(30) == 70
    finally:
        process.kill()
        process.communicate()


def test_a_failed_assertion_of_a_background_task_ends_the_service(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PLANTED, (tmp_path / "log").as_uri(), "task"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "src"},
    )  # fmt: skip
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 70 and "planted in a task" in errors


def test_each_running_child_can_be_ended_at_once() -> None:
    async def scenario() -> None:
        child = await BackgroundProcess.start(["sleep", "600"], nice=0)
        kill_all()
        assert await child.exit_code() == -9
        kill_all()

    asyncio.run(scenario())
