"""The examples of the message stores, and what the README says of them, against the real service."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.stores import import_lines, mail_workers
from tests.crash.server_process import ServerProcess
from tests.rgw import free_port

from holdfast import Client, StoreClient, Write

pytestmark = pytest.mark.usefixtures("durability")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def url(durability: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("service")
    process = ServerProcess(folder, (folder / "log").as_uri(), free_port(), flags=["--init"])
    process.wait_until_leading()
    yield f"http://127.0.0.1:{process.port}"
    process.kill()


def test_an_import_that_starts_over_keeps_each_line_once(url: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"".join(b"line %d\n" % number for number in range(250)))
    with StoreClient(url) as client:
        client.define_store("lines")
        client.define_durable("lines", "all", {"type": "shared"})
        assert import_lines.import_lines(client, file, "lines") == (250, 0)
        file.write_bytes(file.read_bytes() + b"one more\n")
        assert import_lines.import_lines(client, file, "lines") == (251, 250)
        kept = [message.body for message in client.browser("lines", "all")]
    assert kept == file.read_bytes().splitlines()


def test_every_mail_is_sent_or_given_up_once(url: str) -> None:
    sent, letters = asyncio.run(mail_workers.run(url))
    assert sent == dict.fromkeys(mail_workers.MAILS, 1)
    causes = [(letter.body, letter.origin.cause) for letter in letters if letter.origin is not None]
    assert causes == [(b"no-such-host@invalid", "rejected")]


def test_the_three_first_programs_of_the_readme_run(url: str, tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Who it is for")[2].partition("\n## ")[0]
    programs = [each.replace("http://127.0.0.1:8080", url) for each in PROGRAM.findall(section)]
    with Client(url) as client:
        client.commit([Write(b"seat/12B", b"free")])
        booking, jobs, clicks = programs
        assert printed(booking, tmp_path) == ""
        found = client.get(b"seat/12B")
        assert found is not None and found.value == b"bob"
    # The loop of a worker does not end by itself.
    with subprocess.Popen([sys.executable, "-u", "-c", jobs], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        worker.kill()
    assert line == "b'welcome ann'\n"
    assert printed(clicks, tmp_path) == "1 b'page=1'\n"


def printed(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
