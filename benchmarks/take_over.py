"""How long a log is without a leader: after a kill and a restart, with a standby of any age, and across a cut.

    python benchmarks/take_over.py deploy --kills 20      # what deploy/ ships, alone and as a pair, file: and s3:
    python benchmarks/take_over.py standby --kills 50     # a kill with a standby of any age
    python benchmarks/take_over.py apart --minutes 10     # two services that cannot reach each other (root, ip netns)
    python benchmarks/take_over.py clients --kills 10     # what a take-over costs clients of every kind

``deploy`` starts ``holdfast serve --init --standby`` as the files in deploy/ do, and a supervisor that starts a killed
process again after ``--restart`` seconds (0.1 by default; the unit's RestartSec is 2). Each figure is the time from the
kill to the first commit that any of the services acknowledged: the start of Python and the probe are in it. ``apart``
gives each service a network namespace of its own; they share the store and nothing else. ``--s3`` needs the server of
the tests.

``clients`` runs a leader and a standby whose stores live in the log, and one client of each kind that knows both.
``--how freeze`` stops the leader (SIGSTOP), ``kill`` kills it, ``stop`` asks it to end (SIGTERM). Each figure is the
time from the moment at which the new leader is ready, as a separate poller sees it, to the first confirmation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _processes import free_port, machine
from tests.integration.clients_of_a_pair import HOWS, KINDS, Clients, How, kept, pair
from tests.integration.test_stores_in_log import begin

COMMIT: Final = json.dumps({"operations": [{"type": "write", "key": "a2V5", "value": "dmFs"}]}).encode()
PLAIN: Final = {"HOLDFAST_STORES__ENABLED": "false", "HOLDFAST_VIEW__ENABLED": "false"}
POLL_SECONDS: Final = 0.01
WAIT_SECONDS_MAX: Final = 180.0
SIGN_INTERVAL_MS: Final = 2_000
"""The default. The tests have shorter ones."""


class Service:
    """One ``holdfast serve`` at a port, which is started again and again. ``within``: the command before it."""

    def __init__(self, log_url: str, folder: Path, *flags: str, within: Sequence[str] = (), host: str = "") -> None:
        self.port = free_port()
        self.listen = f"{host or '127.0.0.1'}:{self.port}"
        self._command = [*within, sys.executable, "-m", "holdfast.cli.main", "serve", "--log", log_url, "--listen"]
        self._flags = flags
        self._within = within
        self.output = folder / f"service-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str) -> None:
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._command, self.listen, *self._flags, *flags],
                stdout=output,
                stderr=output,
                env={**os.environ, **PLAIN},
            )

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)

    def ask(self, target: str, body: bytes | None = None) -> dict[str, object] | None:
        """The response as JSON; None without one, or for an error."""
        if self._within:
            asked = [*self._within, "curl", "-s", "-m", "2", *(["-d", body.decode()] if body else [])]
            done = subprocess.run([*asked, f"http://{self.listen}{target}"], capture_output=True, check=False)
            return None if done.returncode or not done.stdout else dict(json.loads(done.stdout))
        try:
            with urllib.request.urlopen(f"http://{self.listen}{target}", body, timeout=2) as answer:
                return dict(json.loads(answer.read()))
        except (OSError, urllib.error.URLError, ValueError):
            return None

    def took_seconds(self) -> float:
        """What its newest take-over took by its own log: from the first listing to a claim that was checked."""
        found = re.findall(r"event=leading .*?took_ms=([0-9.]+)", self.output.read_text())
        return float(found[-1]) / 1000.0 if found else 0.0

    def commits(self) -> bool:
        answer = self.ask("/v1/commit", COMMIT)
        return answer is not None and answer.get("status") == "committed"

    def leads(self) -> bool:
        answer = self.ask("/livez")
        return answer is not None and answer.get("leading") is True


def until_commit(services: Sequence[Service]) -> Service:
    """The service that acknowledges the next commit."""
    end = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < end:
        for service in services:
            if service.commits():
                return service
        time.sleep(POLL_SECONDS)
    raise TimeoutError("\n".join(service.output.read_text()[-2000:] for service in services))


def figures(name: str, seconds: Sequence[float]) -> None:
    print(f"{name}: n={len(seconds)} median={statistics.median(seconds):.2f} s max={max(seconds):.2f} s", flush=True)


def deploy(kind: str, log_url: str, folder: Path, kills: int, restart_s: float, idle_s: float) -> None:
    """Kill the leader and start it again, alone or beside a standby."""
    services = [Service(log_url, folder, "--init", "--standby") for _ in range(1 if kind == "alone" else 2)]
    try:
        for service in services:
            service.start()
        leader, seconds, took = until_commit(services), [], []
        for _ in range(kills):
            time.sleep(idle_s * random.random())
            killed = time.monotonic()
            leader.kill()
            time.sleep(restart_s)
            victim = leader
            victim.start()
            leader = until_commit(services)
            seconds.append(time.monotonic() - killed)
            if leader is victim:  # a standby's take-over began when it was started
                took.append(leader.took_seconds())
        name = f"deploy, {kind}, {log_url.partition(':')[0]}"
        figures(f"{name}, kill to commit", seconds)
        if took:
            figures(f"{name}, of that the take-over of a restarted process", took)
    finally:
        for service in services:
            service.kill()


def standby(log_url: str, folder: Path, kills: int) -> None:
    """Kill the leader while a standby of any age waits."""
    services = [Service(log_url, folder, "--init", "--standby") for _ in range(2)]
    try:
        leader, other = services
        leader.start()
        until_commit([leader])
        seconds = []
        for number in range(kills):
            other.start()
            while other.ask("/livez") is None:
                time.sleep(POLL_SECONDS)
            time.sleep((0.0, 0.05, 0.5, 3.0, 12.0)[number % 5] * random.random())
            killed = time.monotonic()
            leader.kill()
            until_commit([other])
            seconds.append(time.monotonic() - killed)
            leader, other = other, leader
        figures(f"a standby of any age, {log_url.partition(':')[0]}", seconds)
    finally:
        for service in services:
            service.kill()


@contextlib.contextmanager
def namespaces(*names: str) -> Generator[list[list[str]]]:
    """A network namespace for each name, with loopback only. Needs root."""
    made = []
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            made.append(name)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def apart(log_url: str, folder: Path, minutes: float, *, busy: bool, with_standby: bool, plain: bool) -> None:
    """One service leads; the other is started again and again where it cannot reach the first."""
    with namespaces(f"hf{os.getpid()}a", f"hf{os.getpid()}b") as (here, there):
        first = Service(log_url, folder, "--init", "--standby", within=here)
        near = Service(log_url, folder, "--standby", within=here)
        # As the default has it: the same loopback address, which is another endpoint there.
        far = Service(log_url, folder, *(() if plain else ("--standby",)), within=there)
        starts = takeovers = 0
        try:
            first.start()
            until_commit([first])
            if with_standby:
                near.start()
            led = before = first.ask("/livez")
            end = time.monotonic() + minutes * 60.0
            while time.monotonic() < end:
                if far.exit_code is not None or starts == 0:
                    starts += 1
                    far.start()
                if busy:
                    first.commits()
                led = first.ask("/livez")
                if far.leads() or near.leads() or led is None or led["leader_id"] != (before or {})["leader_id"]:
                    takeovers += 1
                    break
                time.sleep(0.2 if busy else 1.0)
            name = ("busy" if busy else "idle") + (", with a standby in reach" if with_standby else "")
            name += ", plain starts" if plain else ", a standby out of reach"
            print(f"apart, {name}: {minutes:g} min, {starts} starts, {takeovers} take-overs", flush=True)
        finally:
            for service in (first, near, far):
                service.kill()


@contextlib.contextmanager
def stores(folder: Path, *, s3: bool) -> Generator[Mapping[str, Callable[[str], str]]]:
    """The URL of a log by its name: in a directory, and in a bucket of the S3 server of the tests."""
    urls: dict[str, Callable[[str], str]] = {"file": lambda name: (folder / name).as_uri()}
    if not s3:
        yield urls
        return
    from tests.rgw import Gateway

    with Gateway(folder / "gateway") as gateway:
        os.environ.update(gateway.environment())
        gateway.create_bucket("logs")
        yield {**urls, "s3": lambda name: gateway.url("logs", prefix=name)}


def clients(folder: Path, how: How, rounds: int, idle_s: float) -> None:
    """Freeze or kill the leader under clients of every kind."""
    took: list[float] = []
    alone: list[float] = []
    cost: dict[str, list[float]] = {kind: [] for kind in KINDS}
    signs = {"HOLDFAST_LEADER__SIGN_INTERVAL_MS": str(SIGN_INTERVAL_MS)}
    with pair(folder, begin(folder), **signs) as services, Clients(services.urls) as running:
        running.until_each_confirms_after(0.0)
        for number in range(rounds):
            time.sleep(idle_s * random.random())
            at, ready = services.take_over(how)
            alone.append(services.first_commit_seconds())
            confirmed = running.until_each_confirms_after(at + (ready - at) / 2)
            took.append(ready - at)
            for kind, moment in confirmed.items():
                cost[kind].append(moment - ready)
            if number < rounds - 1:
                services.stand_by_again()
                services.fill()
        for kind, error in running.books.failures:
            print(f"{kind} raised {error!r}")
        confirmed_bodies, there = running.books.published[:], Counter(kept(services.urls))
    lost = sum(there[body] == 0 for body in confirmed_bodies)
    twice = sum(there[body] > 1 for body in confirmed_bodies)
    figures(f"{how}, the service", took)
    figures(f"{how}, a commit that asks the new leader alone", alone)
    for kind, seconds in cost.items():
        figures(f"{how}, {kind}, after the service", seconds)
    everything = [each for seconds in cost.values() for each in seconds]
    figures(f"{how}, all kinds, after the service", everything)
    print(f"{how}: {len(confirmed_bodies)} messages confirmed, {lost} lost, {twice} kept twice", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", nargs="?", default="standby", choices=["deploy", "standby", "apart", "clients"])
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--restart", type=float, default=0.1)
    options.add_argument("--idle", type=float, default=3.0, help="the longest time between two kills, in seconds")
    options.add_argument("--how", choices=HOWS, default="", help="of the clients; each unless given")
    options.add_argument("--s3", action="store_true")
    options.add_argument("--only", default="", help="only what has this word in its name, such as pair or busy")
    given = options.parse_args()
    print(machine())
    if given.what == "clients":
        for how in HOWS:
            if given.how in ("", how):
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
                    clients(Path(name), how, given.kills, given.idle)
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, stores(Path(name), s3=given.s3) as urls:
        folder = Path(name)
        for scheme, url in urls.items():
            if given.what == "deploy":
                for kind in ("alone", "pair"):
                    if given.only in f"{kind} {scheme}":
                        deploy(kind, url(f"log-{kind}"), folder, given.kills, given.restart, given.idle)
            elif given.what == "standby":
                if given.only in scheme:
                    standby(url("log-standby"), folder, given.kills)
            else:
                for number in range(8):
                    busy, with_standby, plain = number % 2 == 1, number // 2 % 2 == 1, number // 4 == 1
                    words = f"{'busy' if busy else 'idle'} {'standby' if with_standby else 'single'} "
                    if given.only in words + ("plain" if plain else "polite") and scheme == "file":
                        log = url(f"log-apart-{number}")
                        apart(log, folder, given.minutes, busy=busy, with_standby=with_standby, plain=plain)


if __name__ == "__main__":
    main()
