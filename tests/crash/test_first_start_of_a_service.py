"""A power cut after the first start of a whole service takes no confirmed message, wherever that start was killed.

The log, the view and the stores are in missing directories of their own. ``tests/crash/test_first_starts.py`` has the
parts of a service with all their operations; this test shows that ``holdfast serve`` uses them.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest
from tests.crash.first_start_program import KILLED
from tests.crash.forgetful_disk import ForgetfulDisk
from tests.rgw import free_port

PROVE: Final = os.environ.get("HOLDFAST_PROVE") == "1"
READY_SECONDS_MAX: Final = 100.0
KILLS: Final = range(1, 60, 6) if PROVE else (3, 20)
BODY: Final = b"confirmed"


class Service:
    """``holdfast serve`` on a disk that forgets. ``kill_before``: see ``first_start_program``."""

    def __init__(self, disk: Path, durability: str, *, kill_before: int = 0) -> None:
        self._port = free_port()
        self.state = disk.with_name("state.json")
        words = ["serve", "--init", "--log", (disk / "a/b/log").as_uri(), "--listen", f"127.0.0.1:{self._port}"]
        self._output = disk.with_name("output").open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.crash.first_start_program", str(disk), str(self.state)),
                *(str(kill_before), *words),
            ],
            stdout=self._output,
            stderr=self._output,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "HOLDFAST_STORES__DIRECTORY": str(disk / "a/c/d/stores"),
                "HOLDFAST_STORES__DURABILITY": durability,
                "HOLDFAST_STORES__PAGE_SIZE_BYTES": "1 MiB",
            },
        )

    def killed_itself(self) -> bool:
        """Wait until it is killed, or ready; False then."""
        return self._wait() == KILLED

    def _wait(self) -> int | None:
        until = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < until:
            if (code := self._process.poll()) is not None:
                return code
            try:
                if self.ask("GET", "/readyz")[0] == 200:
                    return None
            except OSError:
                pass
            time.sleep(0.02)
        raise TimeoutError("the service is not ready")

    def wait_until_ready(self) -> None:
        code = self._wait()
        if code is not None:
            raise OSError(f"exit code {code}: {Path(self._output.name).read_text()[-2_000:]}")

    def answer(self, method: str, target: str, body: object = None) -> Any:
        """The answer of the stores, once they are open."""
        until = time.monotonic() + READY_SECONDS_MAX
        while (asked := self.ask(method, target, body))[0] == 503 and time.monotonic() < until:
            time.sleep(0.02)
        assert asked[0] == 200, asked
        return asked[1]

    def ask(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{target}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()


def publish(service: Service) -> int:
    """Publish one message; its number, which the service confirmed."""
    batch = {"messages": [{"body": base64.b64encode(BODY).decode()}]}
    return int(service.answer("POST", "/v1/stores/default/messages", batch)["first_seq"])


@pytest.mark.matrix
@pytest.mark.parametrize("durability", ["disk", "log"])
@pytest.mark.parametrize("kill_before", KILLS)
def test_no_confirmed_message_is_lost(tmp_path: Path, durability: str, kill_before: int) -> None:
    root = tmp_path / "disk"
    first = Service(root, durability, kill_before=kill_before)
    was_killed = first.killed_itself()
    first.kill()
    second = Service(root, durability)
    second.wait_until_ready()
    last = publish(second)
    second.kill()
    disk = ForgetfulDisk(root)
    disk.resume(second.state)
    after = tmp_path / "after" / "disk"
    disk.power_cut(after, disk.pending(), empties=True)
    third = Service(after, durability)
    try:
        third.wait_until_ready()
        # New stores would begin with 1 again.
        assert publish(third) == last + 1, was_killed
    finally:
        third.kill()
