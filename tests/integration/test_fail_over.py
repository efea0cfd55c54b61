"""What each example, tutorial and deployment does with tokens when its leader is killed: with all addresses, with a
proxy in front, and with one address.

Source: docs/how-to/operate/fail-over.md.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.integration.test_stores_in_log import Machine, begin

from holdfast import Client, ClientOptions, StoreClient, Write
from holdfast.client.stores import SubscriberOptions
from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "operate" / "fail-over.md"
TOKEN = "admin-of-the-fail-over-tests"
TOKENS = {"HOLDFAST_SERVER__TOKENS": f"admin:{TOKEN}", "HOLDFAST_VIEW__ENABLED": "true"}
IMPATIENT = {"give_up_after_ms": 2_000, "resolve_within_ms": 2_000, "stream_give_up_after_ms": 2_000}
SECONDS_MAX = 90.0
SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
"""Then no program waits for its minute; a client with shorter bounds stands for them."""


def test_every_example_tutorial_and_deployment_has_a_row() -> None:
    rows = PAGE.read_text(encoding="utf-8").partition("## Files and programs")[2]
    named = set(re.findall(r"`((?:deploy|docs|examples)/[^`]+)`", rows))
    for name in named:
        assert (ROOT / name).exists(), name
    written = [*(ROOT / "deploy").rglob("*"), *(ROOT / "docs" / "tutorial").glob("*.md")]
    written += (ROOT / "examples").rglob("*.py")
    no_service = ("grafana", "prometheus", "s3-policies", "README.md", "__pycache__", "transformations", "__init__.py")
    for path in written:
        name = path.relative_to(ROOT)
        if path.is_file() and not set(name.parts) & set(no_service):
            assert {str(name), *map(str, name.parents)} & named, f"{name} has no row"


# -- the services, and a proxy in front of them ------------------------------------------------------------------------


def until(holds: Callable[[], object], said: Callable[[], str] = str) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < end, said()
        time.sleep(0.02)


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/readyz?stores=true")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Proxy:
    """Gives each connection to the service that is ready, as a load balancer does; closes it where none is.

    ``bytes_max``: it stops before a client's bytes are more than this, until ``go_on``.
    """

    def __init__(self, ports: list[int], bytes_max: int | None = None) -> None:
        self._ports = ports
        self._left = bytes_max
        self._goes_on = threading.Event()
        self.holds = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def go_on(self) -> None:
        self._left = None
        self._goes_on.set()

    def _admit(self, data: bytes) -> None:
        if self._left is None:
            return
        self._left -= len(data)
        if self._left < 0:
            self.holds.set()
            self._goes_on.wait()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            port = next((port for port in self._ports if is_ready(port)), None)
            if port is not None:
                with socket.create_connection(("127.0.0.1", port)) as server:
                    back = threading.Thread(target=_copy, args=(server, accepted), daemon=True)
                    back.start()
                    _copy(accepted, server, self._admit)
                    back.join()


def _copy(source: socket.socket, target: socket.socket, admit: Callable[[bytes], object] = len) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            admit(data)
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class Services:
    """A leader and a standby that want a token, and the addresses that clients may know of them."""

    def __init__(self, directory: Path) -> None:
        url = begin(directory)
        self.first, self.second = (Machine(directory, f"machine-{number}", url) for number in range(2))
        self.urls = [f"http://127.0.0.1:{machine.port}" for machine in (self.first, self.second)]
        self.proxy = Proxy([self.first.port, self.second.port])

    def start(self) -> None:
        self.first.start(**TOKENS)
        until(lambda: is_ready(self.first.port), lambda: self.first.server.tail())
        self.second.stand_by(**TOKENS)

    def kill_the_leader(self) -> None:
        self.first.server.kill()
        until(lambda: is_ready(self.second.port), lambda: self.second.server.tail())

    def start_it_again(self) -> None:
        """As a supervisor does: the second leads, and the first is its standby."""
        self.first.stand_by(**TOKENS)

    def end(self) -> None:
        self.proxy.close()
        for machine in (self.first, self.second):
            machine.end()


@contextmanager
def services(directory: Path) -> Iterator[Services]:
    made = Services(directory)
    try:
        made.start()
        yield made
    finally:
        made.end()


# -- what runs ---------------------------------------------------------------------------------------------------------


class Committing(threading.Thread):
    """A client that commits, publishes and consumes in a loop, from before the kill to after it."""

    def __init__(self, urls: str) -> None:
        super().__init__(daemon=True)
        self._urls = urls
        self.over = threading.Event()
        self.failure: BaseException | None = None
        self.done_at = 0.0
        self.start()

    def run(self) -> None:
        try:
            with (
                Client(self._urls, token=TOKEN) as client,
                StoreClient(self._urls, token=TOKEN) as stores,
                stores.publisher("kept") as publisher,
                stores.subscriber("kept", "all", options=SubscriberOptions(explicit_ack=True)) as messages,
            ):
                while not self.over.wait(0.05):
                    client.transact(lambda txn: txn.write(b"k", b"v"))
                    publisher.publish(b"m")
                    # The messages are shared: another client may have the one that was just published.
                    if (message := messages.receive(timeout=0.5)) is not None:
                        messages.acknowledge(message, confirmed=True)
                    self.done_at = time.monotonic()
        except HoldfastError as error:
            self.failure = error


def tutorial(page: str, program: str, url: str) -> str:
    """A program of a page for a service with tokens, by its file in the page; ``typed`` is the first without one."""
    text = (ROOT / "docs" / "tutorial" / page).read_text(encoding="utf-8")
    found = dict(re.findall(r"^cat > (\S+) <<'END'\n(.*?)^END$", text, re.MULTILINE | re.DOTALL))
    found["typed"], *_ = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) or [""]
    with_url = re.sub(r"http://127\.0\.0\.1:808\d", url, found[program])
    return re.sub(r"\b((?:Store)?Client)\(([^()]+)\)", rf'\1(\2, token="{TOKEN}")', with_url)


class Program:
    """A process; what it writes is in a file."""

    def __init__(self, arguments: list[str], folder: Path, output: Path, environment: dict[str, str]) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, *arguments], cwd=folder, env=environment, stdout=file, stderr=file
            )

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def said(self) -> str:
        """What it wrote up to now."""
        return self._output.read_text()

    def ended(self) -> tuple[int, str]:
        """The exit code, and what it wrote."""
        return self._process.wait(timeout=SECONDS_MAX + 60), self.said()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Programs:
    """The programs of examples and tutorials, and the command line, as processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Program] = []
        (folder / "lines.txt").write_text("one\ntwo\n")
        (folder / "orders.csv").write_text("order,item,pieces,cents\n1,cake,2,300\n")

    def all_of(self, url: str) -> dict[str, list[str]]:
        take_orders = str(ROOT / "examples" / "declarative-pipeline" / "take_orders.py")
        each = [part for address in url.split(",") for part in ("--url", address)]
        return {
            "take_orders": [take_orders, url, "orders.csv"],
            "import_lines": ["-m", "examples.stores.import_lines", "lines.txt", "--url", url],
            "mail_workers": ["-m", "examples.stores.mail_workers", "--url", url],
            "ship_orders": ["-m", "examples.stores.ship_orders", *each, "--orders", "6", "--workers", "1"],
            "commit-log.md": ["-c", tutorial("commit-log.md", "typed", url)],
            "commit": ["-m", "holdfast.cli.main", "commit", "a=1", "--url", url],
        }

    def close(self) -> None:
        for each in self._started:
            each.end()

    def start(self, arguments: list[str], **environment: str) -> Program:
        paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
        output = self._folder / f"program-{len(self._started)}.txt"
        around = {**os.environ, "PYTHONPATH": paths, "HOLDFAST_TOKEN": TOKEN, **environment}
        self._started.append(Program(arguments, self._folder, output, around))
        return self._started[-1]


@pytest.mark.timeout(600)
def test_each_program_goes_on_at_the_new_leader_or_names_the_setting(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    with services(tmp_path) as pair, closing(programs):
        said = pair.second.server.output.read_text()
        assert f"clients={','.join(pair.urls)}" in said, "a standby prints all addresses"
        everywhere, proxy, (one, other) = ",".join(pair.urls), pair.proxy.url, pair.urls
        with StoreClient(one, token=TOKEN) as client:
            client.define_store("kept", {"durables": {"all": {"type": "shared"}}})

        # From before the kill to after it.
        going = {"all": Committing(everywhere), "proxy": Committing(proxy), "one": Committing(other)}
        following = going.pop("one")
        until(lambda: all(each.done_at for each in going.values()))
        pair.kill_the_leader()
        ready = time.monotonic()
        for known, each in going.items():
            until(lambda each=each: each.done_at > ready or each.failure, lambda known=known: known)  # type: ignore[misc]
            assert each.failure is None, known
        until(lambda: following.done_at > ready or following.failure)
        assert following.failure is None, "its address leads now"
        for each in (*going.values(), following):
            each.over.set()

        # One address, and no service there.
        options = ClientOptions(**IMPATIENT)
        with Client(one, token=TOKEN, options=options) as client, pytest.raises(Unavailable):
            client.version()

        pair.start_it_again()
        # One address, and a standby there. Each waits for a minute.
        refused = {} if SMALL else {name: programs.start(words) for name, words in programs.all_of(one).items()}
        for url in (everywhere, proxy):
            running = {name: programs.start(words) for name, words in programs.all_of(url).items()}
            for name, program in running.items():
                code, output = program.ended()
                assert code == 0, (name, url, output)
        trusting = programs.start(programs.all_of(one)["commit"], HOLDFAST_TRUSTED_HOSTS="127.0.0.0/8:" + other[17:])
        assert trusting.ended()[0] == 0
        with Client(one, token=TOKEN, options=options) as client:
            with pytest.raises(Unavailable) as unavailable:
                client.commit([Write(b"k", b"v")])
            assert "trusted_hosts" in unavailable.value.hint and not isinstance(unavailable.value, OutcomeUnknown)
        curl = subprocess.run(
            ["curl", "-s", "-H", f"Authorization: Bearer {TOKEN}", f"{one}/v1/version"], capture_output=True, check=True
        )
        assert json.loads(curl.stdout)["error"]["leader_address"] in other, "curl follows nothing, and sees who leads"
        for name, program in refused.items():
            code, output = program.ended()
            assert code != 0 and "trusted_hosts" in output and other in output, (name, output)


def test_the_console_takes_the_same_addresses_as_every_client(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from holdfast.cli.main import application

    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr("holdfast.console.run.run", lambda options, **_: seen.append(options.services))
    both = ("http://a.example:8080", "http://b.example:8080")
    for given in (["--service", ",".join(both)], [f"--service={each}" for each in both]):
        CliRunner().invoke(application(), ["console", *given], catch_exceptions=False)
    CliRunner().invoke(application(), ["console"], env={"HOLDFAST_URL": ",".join(both)}, catch_exceptions=False)
    assert seen == [both] * 3
