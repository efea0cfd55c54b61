"""A service whose standard streams are closed starts, and stops as any other."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.crash.server_process import NO_VIEW
from tests.rgw import free_port

SECONDS_MAX = 60


def leads(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/livez")
        return json.loads(connection.getresponse().read()).get("leading") is True
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


@pytest.mark.parametrize("closed", ["<&-", pytest.param("<&- >&- 2>&-", marks=pytest.mark.matrix)])
def test_a_stop_exits_0_whichever_standard_streams_are_closed(tmp_path: Path, closed: str) -> None:
    port = free_port()
    words = [sys.executable, "-m", "holdfast.cli.main", "serve", "--init", "--log", (tmp_path / "log").as_uri()]
    server = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *words, "--listen", f"127.0.0.1:{port}"],
        env={**os.environ, **NO_VIEW, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + SECONDS_MAX
        while not leads(port):
            assert server.poll() is None, server.returncode
            assert time.monotonic() < end
            time.sleep(0.05)
        server.send_signal(signal.SIGTERM)
        assert server.wait(SECONDS_MAX) == 0
    finally:
        server.kill()
        server.wait()
