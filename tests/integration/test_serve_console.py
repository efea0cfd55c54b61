"""``holdfast serve --console``: a console that ends with its service, and a service that outlives its console."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.crash.server_process import ServerProcess
from tests.rgw import free_port

SECONDS_MAX = 30.0


def page(port: int) -> str | None:
    """The overview, None where no console listens."""
    with contextlib.suppress(OSError):
        return str(urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).read(), "utf-8")
    return None


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def serve(folder: Path, name: str, console: int) -> ServerProcess:
    flags = ["--init", "--console", "--console-listen", f"127.0.0.1:{console}"]
    process = ServerProcess(folder, (folder / name).as_uri(), free_port(), flags=flags)
    process.wait_until_leading()
    return process


def test_a_console_ends_with_its_service_which_outlives_its_console(tmp_path: Path) -> None:
    console = free_port()
    first = serve(tmp_path, "first", console)
    wait(lambda: f"open http://127.0.0.1:{console}/" in first.tail())
    shown = page(console) or ""
    assert f"http://127.0.0.1:{first.port}" in shown
    assert "read only" in shown
    second = serve(tmp_path, "second", console)
    wait(lambda: "console_ended" in second.tail())
    assert f"open http://127.0.0.1:{console}/" not in second.tail(), "it says its address when it listens"
    assert second.leads(), "a console whose address is taken does not end its service"
    first.kill()
    wait(lambda: page(console) is None)
    assert second.stop() == 0
