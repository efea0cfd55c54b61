"""What the programs of each tutorial do with tokens when the leader is killed while they work.

The programs and commands are those of the pages. With all addresses, with a proxy in front, and with the address of the
standby they go on; where the address of the leader becomes that of a standby, the error names ``trusted_hosts``.

Source: docs/how-to/operate/fail-over.md.
"""

from __future__ import annotations

import re
import shlex
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, Protocol

import pytest
from tests.integration.test_fail_over import (
    ROOT,
    SMALL,
    TOKEN,
    Program,
    Programs,
    Proxy,
    Services,
    services,
    tutorial,
    until,
)
from tests.integration.test_spark_committer import answering
from tests.matrix import matrix
from tests.rgw import free_port
from typer.testing import CliRunner

from holdfast import Client, StoreClient
from holdfast.cli.main import application
from holdfast.client.stores import define_spark_stores

GOES_ON: Final = ("all", "proxy", "standby")
"""What clients know: all addresses, a proxy, the address of the standby."""
REFUSED: Final = "leader"
"""The address of the leader, where later a standby serves."""


class Here:
    """A page, and a pair of services for its programs."""

    def __init__(self, page: str, folder: Path, pair: Services, programs: Programs) -> None:
        self.page = page
        self.folder = folder
        self.pair = pair
        self.programs = programs
        self.everywhere = ",".join(pair.urls)
        leader, standby = pair.urls
        self.urls = {"all": self.everywhere, "proxy": pair.proxy.url, "standby": standby, "leader": leader}
        self.stores = StoreClient(self.everywhere, token=TOKEN)
        self.client = Client(self.everywhere, token=TOKEN)

    def close(self) -> None:
        self.stores.close()
        self.client.close()

    def run_commands(self, begin: str, renamed: str = "orders") -> None:
        """The commands of the page that begin so; ``renamed`` stands for its store ``orders``."""
        lines = re.findall(
            rf"^ *(holdfast {begin}.*)$", (ROOT / "docs" / "tutorial" / self.page).read_text(), re.MULTILINE
        )
        assert lines, f"{self.page} has no command {begin}"
        for line in lines:
            words = shlex.split(re.sub(r"\borders\b", renamed, line))[1:]
            done = CliRunner().invoke(application(), words, env={"HOLDFAST_URL": self.everywhere, **WITH_TOKEN})
            assert done.exit_code == 0, (line, done.output)

    def start(self, program: str, url: str, *arguments: str, store: str = "orders") -> Program:
        text = tutorial(self.page, program, url).replace('"orders"', f'"{store}"')
        text = text.replace("timeout=30", "timeout=300")  # a busy machine takes over slowly
        return self.programs.start(["-c", text, *arguments])


WITH_TOKEN: Final = {"HOLDFAST_TOKEN": TOKEN}


class Story(Protocol):
    """The programs of one page, one for each of what clients may know."""

    def start(self, known: str) -> None:
        """Start its program."""

    def step(self, known: str) -> Callable[[], object]:
        """Let it do something more; what says that it did."""

    def said(self, known: str) -> str:
        """What it wrote."""

    def refused(self) -> str:
        """What the program of ``REFUSED`` says, after a minute at most."""


class Working:
    """A worker of a store, which prints each message."""

    def __init__(self, here: Here, arguments: tuple[str, ...]) -> None:
        self._here = here
        self._arguments = arguments
        self._programs: dict[str, Program] = {}
        self._published = 0

    def start(self, known: str) -> None:
        here, store = self._here, f"orders-{known}"
        here.run_commands("stores define orders", store)
        self._programs[known] = here.start("worker.py", here.urls[known], known, *self._arguments, store=store)

    def step(self, known: str) -> Callable[[], object]:
        self._published += 1
        body = f"{self._published} x cake"
        with self._here.stores.publisher(f"orders-{known}") as publisher:
            publisher.publish(body.encode())
        return lambda: body in self.said(known)

    def said(self, known: str) -> str:
        return self._programs[known].said()

    def refused(self) -> str:
        """It waits without end."""
        until(lambda: "trusted_hosts" in self.said(REFUSED), lambda: self.said(REFUSED))
        return self.said(REFUSED)


class AsForSpark:
    """The program that sends requests to Spark and waits for verdicts. A thread of the test answers for Spark."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._programs: dict[str, Program] = {}
        define_spark_stores(here.stores)
        (here.folder / "wishes.py").write_text(tutorial(here.page, "wishes.py", ""))

    def start(self, known: str) -> None:
        self._programs[known] = self._here.start("by_spark.py", self._here.urls[known])

    def step(self, known: str) -> Callable[[], object]:
        """Before the kill it sends its first request, and after it all have their verdicts."""
        if not self._here.pair.first.server.running:
            return lambda: " ".join(re.findall(r"^(ann|bob|cat) ", self.said(known), re.MULTILINE)) == "ann bob cat"
        before = self._requests()
        return lambda: self._requests() > before

    def _requests(self) -> int:
        return len(list(self._here.stores.browser("requests", "spark")))

    def said(self, known: str) -> str:
        return self._programs[known].said()

    def refused(self) -> str:
        code, said = self._programs[REFUSED].ended()
        assert code != 0
        return said


class Console:
    """The console as the page starts it with a token: it shows the stores that there are."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._ports: dict[str, int] = {}
        self._defined = 0
        here.run_commands("commit")
        here.run_commands("stores")
        (here.folder / "token").write_text(TOKEN)
        (here.folder / "token").chmod(0o600)

    def start(self, known: str) -> None:
        here, port = self._here, free_port()
        text = (ROOT / "docs" / "tutorial" / here.page).read_text()
        (line,) = re.findall(r"^ *holdfast (console .*--token-file.*)$", text, re.MULTILINE)
        words = line.replace("http://127.0.0.1:8080", here.urls[known]).replace("~/.holdfast-token", "token").split()
        self._ports[known] = port
        here.programs.start(["-m", "holdfast.cli.main", *words, "--listen", f"127.0.0.1:{port}"])

    def step(self, known: str) -> Callable[[], object]:
        self._defined += 1
        name = f"shown-{self._defined}"
        self._here.stores.define_store(name, {})
        return lambda: name in self.said(known)

    def said(self, known: str, path: str = "/stores") -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[known]}{path}", timeout=30) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError as error:
            return str(error)

    def refused(self) -> str:
        until(lambda: "trusted_hosts" in self.said(REFUSED), lambda: self.said(REFUSED))
        return self.said(REFUSED)


STORIES: Final[Mapping[str, Callable[[Here], Story]]] = {
    "stores.md": lambda here: Working(here, ("0",)),
    "exactly-once.md": lambda here: Working(here, ("1000",)),
    "two-runtimes.md": AsForSpark,
    "console.md": Console,
}


def prepare(here: Here) -> None:
    if here.page == "stores.md":
        here.run_commands("stores define dead")
    if here.page == "exactly-once.md":
        here.run_commands("commit")
        here.run_commands("stores define")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", matrix(STORIES))
def test_the_program_of_a_tutorial_works_on_after_a_kill_or_names_the_setting(page: str, tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    with services(tmp_path) as pair, closing(programs), closing(Here(page, tmp_path, pair, programs)) as here:
        prepare(here)
        story = STORIES[page](here)
        for known in GOES_ON if SMALL else (*GOES_ON, REFUSED):
            story.start(known)
            if known != "standby":
                until(story.step(known), lambda known=known: story.said(known))  # type: ignore[misc]
        pair.kill_the_leader()
        with ExitStack() as answers:
            if page == "two-runtimes.md":
                answers.enter_context(answering(here.everywhere, token=TOKEN))
            for known in GOES_ON:
                until(story.step(known), lambda known=known: f"{known}: {story.said(known)}")  # type: ignore[misc]
        if not SMALL:
            pair.start_it_again()
            said = story.refused()
            assert "trusted_hosts" in said and pair.urls[1] in said, said
        if page == "exactly-once.md":
            require_balanced_books(here)


def require_balanced_books(here: Here) -> None:
    """Each order was shipped once: what left the stock is what the invoices say."""
    invoices = [message.body.decode() for message in here.stores.browser("invoices", "all")]
    assert len(set(invoices)) == len(invoices) > len(GOES_ON)
    sold = sum(int(invoice.split()[0]) for invoice in invoices)
    stock = here.client.get(b"stock/coffee")
    assert stock is not None and int(stock.value) == 100 - sold


SHORT: Final[Mapping[tuple[str, str], tuple[int, str]]] = {
    ("stores.md", "typed"): (2_000, r"2 b'5 x bread' b'99 x egg'\n"),
    ("exactly-once.md", "typed"): (0, r"lease_lost\n"),
    ("two-runtimes.md", "by_http.py"): (1_000, r"ann (?s:.*)\nbob (?s:.*)\ncat .*\n"),
}
"""How many bytes of a program reach the leader before it is killed; what it prints."""


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_short_program_of_a_tutorial_goes_on_where_its_leader_was_killed(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    with services(tmp_path) as pair, closing(programs), ExitStack() as stack:
        held: list[Proxy] = []
        running: dict[tuple[str, str, str], Program] = {}
        for (page, name), (bytes_max, _) in SHORT.items():
            here = stack.enter_context(closing(Here(page, tmp_path, pair, programs)))
            for known, ports in (("all", [pair.first.port]), ("proxy", [pair.first.port, pair.second.port])):
                proxy = stack.enter_context(closing(Proxy(ports, bytes_max)))
                url = proxy.url if known == "proxy" else f"{proxy.url},{pair.urls[1]}"
                store = f"{page.partition('.')[0]}-{known}"
                here.stores.define_store(store, {"durables": {"work": {"type": "shared"}}})
                with here.stores.publisher(store) as publisher:
                    publisher.publish(b"5 x bread")
                (tmp_path / "wishes.py").write_text(tutorial("two-runtimes.md", "wishes.py", ""))
                running[page, name, known] = here.start(name, url, store=store)
                held.append(proxy)
        for proxy, program in zip(held, running.values(), strict=True):
            until(proxy.holds.is_set, program.said)
        pair.kill_the_leader()
        for proxy, program in zip(held, running.values(), strict=True):
            assert not program.is_over
            proxy.go_on()
        for (page, name, known), program in running.items():
            code, said = program.ended()
            assert code == 0 and re.fullmatch(SHORT[page, name][1], said), (page, name, known, said)
