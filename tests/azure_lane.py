"""Azure Blob Storage for the tests: Microsoft's emulator Azurite, one for the session, one container for each test.

Import the fixtures into a folder's ``conftest.py`` and mark the tests ``program("azurite-blob")``: they are not
collected where Azurite is absent, except under ``HOLDFAST_PROVE=1``, where they fail. ``scripts/setup.sh azure``
installs it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import itertools
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.rgw import free_port

__all__ = ["Azurite", "azure_url", "azurite", "azurite_program"]

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has; it is in its documentation."""
INSTALLED = Path(__file__).parent.parent / ".venv" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
START_SECONDS_MAX = 60.0
_container_numbers = itertools.count(1)


def azurite_program() -> str | None:
    """The installed emulator, or None."""
    return str(INSTALLED) if INSTALLED.exists() and shutil.which("node") else shutil.which("azurite-blob")


class Azurite:
    """A running emulator with its data in memory."""

    def __init__(self, directory: Path) -> None:
        program = azurite_program()
        assert program is not None, "Azurite is not installed: scripts/setup.sh azure"
        self.port = free_port()
        self._output = (directory / "azurite.log").open("wb")
        self._process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", program, "--silent", "--skipApiVersionCheck"),
                *("--inMemoryPersistence", "--blobPort", str(self.port), "--disableTelemetry"),
            ],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )
        until = time.monotonic() + START_SECONDS_MAX
        while not self._listens():
            assert self._process.poll() is None, (directory / "azurite.log").read_text()
            assert time.monotonic() < until, "Azurite does not listen"

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
            return True
        return False

    @property
    def endpoint(self) -> str:
        """Where the account is."""
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def environment(self) -> dict[str, str]:
        """The credentials."""
        return {"AZURE_STORAGE_ACCOUNT_KEY": KEY}

    def url(self, container: str, *, prefix: str = "log") -> str:
        """The URL of a place in a container."""
        return f"az://{container}/{prefix}?account={ACCOUNT}&endpoint={self.endpoint}"

    def create_container(self, name: str) -> None:
        """A new container, by a request signed with the account's key."""
        moment = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": moment, "x-ms-version": "2021-08-06"}
        listed = "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
        unsent = "\n" * 11  # eleven headers that this request does not have
        signed = f"PUT\n{unsent}{listed}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container".encode()
        signature = base64.b64encode(hmac.new(base64.b64decode(KEY), signed, hashlib.sha256).digest()).decode()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS_MAX)
        with contextlib.closing(connection):
            connection.request(
                "PUT", f"/{ACCOUNT}/{name}?restype=container", headers={**headers, "Content-Length": "0"}
            )
            answer = connection.getresponse()
            assert answer.status == 201, answer.read()

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._output.close()


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """A running emulator."""
    started = Azurite(tmp_path_factory.mktemp("azurite"))
    yield started
    started.stop()


@pytest.fixture
def azure_url(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a fresh, empty container; the credentials are in the environment."""
    for name, value in azurite.environment().items():
        monkeypatch.setenv(name, value)
    container = f"test-{next(_container_numbers)}"
    azurite.create_container(container)
    return azurite.url(container)
