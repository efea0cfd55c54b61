"""``holdfast serve --console``: a console that ends with its service, and a service that outlives its console."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.certificates import authority, signed_by
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


def flags_of(console: int) -> list[str]:
    return ["--init", "--console", "--console-listen", f"127.0.0.1:{console}"]


def serve(folder: Path, name: str, console: int) -> ServerProcess:
    process = ServerProcess(folder, (folder / name).as_uri(), free_port(), flags=flags_of(console))
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


def test_the_console_of_a_service_with_tls_trusts_whom_its_peers_trust(tmp_path: Path) -> None:
    root = authority(tmp_path, "root")
    certificate, port, console = signed_by(root, "own", "DNS:localhost"), free_port(), free_port()
    settings = {
        "ADVERTISED_ADDRESS": f"localhost:{port}",
        "TLS_CERTIFICATE": str(certificate),
        "TLS_KEY": str(certificate.with_suffix(".key")),
        "PEER_CA_FILE": str(root),
    }
    environment = {f"HOLDFAST_SERVER__{name}": value for name, value in settings.items()}
    service = ServerProcess(
        tmp_path, (tmp_path / "log").as_uri(), port, flags=flags_of(console), environment=environment
    )
    try:
        wait(lambda: f"open http://127.0.0.1:{console}/" in service.output.read_text())
        wait(lambda: "leads" in (page(console) or ""))
        assert "certificate" not in (page(console) or "")
    finally:
        service.kill()
