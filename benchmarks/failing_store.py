"""A store that fails some of its requests: does every reader make progress, and what does it cost?

    python benchmarks/failing_store.py [--percent 0 0.5 2 10] [--objects 1000] [--soak SECONDS] [--json FILE]

The server is one Ceph RADOS Gateway (``tests.rgw``) behind the fault proxy in a process of its own. A log of as many
objects is made without faults. Then, for each percentage of requests that fail, each lane runs once:

- view: a service starts on the log, until its view has the newest version
- commits, stores: one commit after another, one published message after another; the longest wait for an answer
- snapshots: seven commands ``log snapshot``, each at another version; how many of them ended well
- verify, mirror, restore: the command on the whole log
- retention: a service with a policy, until it has made a snapshot and truncated the log
- Spark: a local session counts the log's rows (only with ``--lanes ... spark``)

A request that fails is one of these, equally often: 503 before it is carried out, 500 before, 500 after, a reset
before, a reset after, half an answer; every fortieth of them has no answer at all. ``--soak`` instead lets a service
with a view, stores in the log, snapshots and retention run for as long at each percentage, and reports the longest time
without an answered commit, without an answered message, and in which view and truncation did not move.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _processes import Served, holdfast, machine
from tests.rgw import Gateway

from holdfast.client import Client, ClientOptions
from holdfast.client.stores import StoreClient
from holdfast.commit.format.transaction import Write
from holdfast.testing.fault_proxy import Fault, Rule
from holdfast.testing.fault_proxy_process import FaultProxyProcess

QUICK = (
    Fault.SLOWDOWN, Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.TRUNCATE,
)  # fmt: skip
SILENT_PART = 1 / 40
LANE_SECONDS_MAX = 300.0
COMMAND = (sys.executable, "-m", "holdfast.cli.main", "log")
SNAPSHOTS = 7
LIMITED = (
    *("--set", "retention.max_bytes=65536", "--set", "retention.min_age_seconds=0"),
    *("--set", "retention.check_seconds=1", "--set", "snapshots.check_seconds=1"),
    *("--set", "snapshots.every_bytes=262144", "--set", "snapshots.keep=2"),
)
TRUNCATED = 300
"""Commits after which a policy has something to truncate: it moves by at least 100 objects."""
LOADED = 60
"""Commits and messages of one lane, one after another."""


def rules_for(percent: float) -> list[Rule]:
    """Rules whose faults add up to ``percent`` of all requests. The first that applies wins, so each is conditional."""
    rate = percent / 100
    shares = [(fault, rate * (1 - SILENT_PART) / len(QUICK)) for fault in QUICK]
    shares.append((Fault.BLACKHOLE_AFTER, rate * SILENT_PART))
    rules: list[Rule] = []
    left = 1.0
    for fault, share in shares if percent else []:
        rules.append(Rule(fault=fault, probability=share / left))
        left -= share
    return rules


@dataclass(slots=True)
class Lane:
    """One lane at one percentage. ``worst_s``: the longest wait for an answer, where there are many."""

    name: str
    percent: float
    seconds: float = 0.0
    done: str = "yes"
    worst_s: float | None = None
    facts: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Place:
    """The log under test: without faults, and as the processes under test see it."""

    direct: str
    url: str
    folder: Path


def command(*words: str) -> bool:
    """Run one command; whether it ended well. One that stalls is ended, and did not."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run([*COMMAND, *words], capture_output=True, timeout=LANE_SECONDS_MAX, check=False)
        if done.returncode:
            print("   ", words[0], "ended with", done.returncode, done.stderr[-300:].decode(errors="replace").strip())
        return done.returncode == 0
    return False


def metric(server: Served, name: str) -> float:
    """The sum of one metric over its labels."""
    with contextlib.suppress(OSError):
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", server.get("/metrics"), re.MULTILINE)
        return sum(map(float, found))
    return 0.0


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + LANE_SECONDS_MAX
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def client_of(server: Served) -> Client:
    return Client(server.url, options=ClientOptions(give_up_after_ms=LANE_SECONDS_MAX * 1000))


# -- lanes ------------------------------------------------------------------------------------------------------------


def view(place: Place, lane: Lane) -> None:
    began = time.monotonic()
    flags = ("--set", "view.enabled=true")
    with holdfast(place.folder / f"view-{lane.percent}", *flags, log_url=place.url) as server:
        with client_of(server) as client:
            told(lane, client.get(b"k/000000", at=client.version().version) is not None)
        lane.seconds = time.monotonic() - began
        for name in ("retries", "interruptions"):
            lane.facts[name] = metric(server, f"holdfast_view_{name}_total")


def commits(place: Place, lane: Lane) -> None:
    with holdfast(place.folder / f"commits-{lane.percent}", log_url=place.url) as server, client_of(server) as client:
        waits = [timed(lambda n=n: client.commit([Write(b"c/%d" % n, b"x")])) for n in range(LOADED)]
    lane.seconds, lane.worst_s = sum(waits), max(waits)


def stores(place: Place, lane: Lane) -> None:
    url = place.url.replace("?", "-stores?")
    folder = place.folder / f"stores-{lane.percent}"
    flags = ("--set", "stores.durability=log", "--set", f"stores.directory={folder / 'stores'}")
    with holdfast(folder, *flags, log_url=url) as server:
        began = time.monotonic()
        with StoreClient(server.url) as client, client.publisher("default") as publisher:
            waits = [timed(lambda: publisher.publish(b"x" * 100)) for _ in range(LOADED)]
        lane.seconds, lane.worst_s = time.monotonic() - began, max(waits)


def timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def snapshots(place: Place, lane: Lane) -> None:
    listed = json.loads(
        subprocess.run([*COMMAND, "stat", place.direct, "--json"], check=True, capture_output=True).stdout
    )
    newest = int(listed["last_version"])
    began = time.monotonic()
    ended = [command("snapshot", place.url, "--at", str(newest - each)) for each in range(SNAPSHOTS)]
    lane.seconds = time.monotonic() - began
    lane.done = f"{sum(ended)} of {SNAPSHOTS}"


def verify(place: Place, lane: Lane) -> None:
    lane.seconds = timed(lambda: told(lane, command("verify", place.url)))


def mirror(place: Place, lane: Lane) -> None:
    target = place.url.replace("?", f"-mirror-{lane.percent}?")
    lane.seconds = timed(lambda: told(lane, command("mirror", place.url, target)))


def restore(place: Place, lane: Lane) -> None:
    target = place.url.replace("?", f"-restored-{lane.percent}?")
    lane.seconds = timed(lambda: told(lane, command("restore", place.url, target)))


def retention(place: Place, lane: Lane) -> None:
    began = time.monotonic()
    folder = place.folder / f"retention-{lane.percent}"
    with holdfast(folder, *LIMITED, log_url=place.url) as server, client_of(server) as client:
        for number in range(TRUNCATED):
            client.commit([Write(b"r/%d" % number, b"x")])
        told(lane, wait_for(lambda: metric(server, "holdfast_truncated_version") > 0))
    lane.seconds = time.monotonic() - began


def spark(place: Place, lane: Lane) -> None:
    from holdfast.spark import session

    started = session("failing-store", master="local[2]")
    started.sparkContext.setLogLevel("ERROR")
    rows = 0

    def count() -> None:
        nonlocal rows
        rows = started.read.format("holdfast").option("url", place.url).load().count()

    count()  # the first read starts Spark's workers
    lane.seconds = timed(count)
    lane.facts["rows"] = rows


def told(lane: Lane, is_done: bool) -> None:
    lane.done = "yes" if is_done else "NO"


LANES: dict[str, Callable[[Place, Lane], None]] = {
    "view": view,
    "commits": commits,
    "stores": stores,
    "snapshots": snapshots,
    "verify": verify,
    "mirror": mirror,
    "restore": restore,
    "retention": retention,
    "spark": spark,
}


# -- soak -------------------------------------------------------------------------------------------------------------


class Moving:
    """Something that should move: the longest time in which it did not."""

    def __init__(self) -> None:
        self.moves = 0
        self.worst_s = 0.0
        self._last = time.monotonic()

    def moved(self) -> None:
        now = time.monotonic()
        self.worst_s = max(self.worst_s, now - self._last)
        self.moves += 1
        self._last = now


def soak(place: Place, percent: float, seconds: float) -> dict[str, Moving]:
    """Load a service with everything on, for as long."""
    folder = place.folder / f"soak-{percent}"
    # Checkpoints of small pages: a page of 64 MiB would keep the proxy from everything else.
    flags = (
        "--set",
        "view.enabled=true",
        "--set",
        "stores.durability=log",
        "--set",
        "stores.page_size_bytes=1MiB",
        *LIMITED,
    )
    # Retention keeps what the newest two checkpoints of the stores need.
    stores = ("--set", f"stores.directory={folder / 'stores'}", "--set", "stores.checkpoint_seconds=20")
    ended = threading.Event()

    def load(name: str, work: Callable[[], object]) -> None:
        while not ended.is_set():
            work()
            found[name].moved()
            ended.wait(0.02)

    with (
        holdfast(folder, *flags, *stores, log_url=place.url.replace("?", "-soak?")) as server,
        client_of(server) as client,
        StoreClient(server.url) as messages,
        messages.publisher("default") as publisher,
        ThreadPoolExecutor(2) as threads,
    ):
        found = {name: Moving() for name in ("commit", "message", "view", "truncation")}
        numbers = itertools.count()
        loads = [
            threads.submit(
                load, "commit", lambda: client.commit([Write(b"s/%d" % (next(numbers) % 1000), b"x" * 200)])
            ),
            threads.submit(load, "message", lambda: publisher.publish(b"x" * 100)),
        ]
        end = time.monotonic() + seconds
        before = {"view": 0.0, "truncation": 0.0}
        while time.monotonic() < end and not any(each.done() for each in loads):
            for name, metric_name in (("view", "holdfast_view_version"), ("truncation", "holdfast_truncated_version")):
                if (now := metric(server, metric_name)) > before[name]:
                    before[name] = now
                    found[name].moved()
            time.sleep(0.25)
        ended.set()
        for each in loads:
            each.result()
    for each in found.values():
        if not each.moves:
            each.moved()
    return found


def make_log(place: Place, objects: int) -> None:
    """A log of as many objects, each of one commit."""
    with holdfast(place.folder / "made", log_url=place.direct) as server, client_of(server) as client:
        for number in range(objects):
            client.commit([Write(b"k/%06d" % number, b"%d" % number)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--percent", type=float, nargs="+", default=[0, 0.5, 2, 10])
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--lanes", nargs="+", choices=LANES, default=[name for name in LANES if name != "spark"])
    parser.add_argument("--soak", type=float, metavar="SECONDS", default=0.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    about = machine()
    print("  ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    found: list[Lane] = []
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder,
        Gateway(Path(folder, "gateway")) as gateway,
        FaultProxyProcess("127.0.0.1", gateway.port) as proxy,
    ):
        os.environ.update(gateway.environment())
        for percent in given.percent:
            bucket = f"failing-{percent:g}".replace(".", "-")
            gateway.create_bucket(bucket)
            direct = gateway.url(bucket, prefix="log")
            place = Place(direct, gateway.url(bucket, prefix="log", endpoint=proxy.endpoint), Path(folder, bucket))
            if given.soak:
                proxy.set_rules(rules_for(percent))
                for name, each in soak(place, percent, given.soak).items():
                    print(f"{percent:5} %  {name:10} {each.moves:8} moves  worst {each.worst_s:6.2f} s", flush=True)
                    found.append(Lane(f"soak {name}", percent, given.soak, "yes", each.worst_s))
                proxy.set_rules([])
                continue
            make_log(place, given.objects)
            for name in given.lanes:
                proxy.set_rules(rules_for(percent))
                lane = Lane(name, percent)
                try:
                    LANES[name](place, lane)
                except Exception as error:  # noqa: BLE001 - a lane that fails is a finding
                    lane.done = f"NO: {type(error).__name__}: {error}"
                proxy.set_rules([])
                found.append(lane)
                worst = "" if lane.worst_s is None else f"  worst {lane.worst_s:6.2f} s"
                facts = "  ".join(f"{name} {value:g}" for name, value in lane.facts.items())
                print(f"{percent:5} %  {name:10}{lane.seconds:8.1f} s  done: {lane.done}{worst}  {facts}", flush=True)
    if given.json:
        given.json.write_text(json.dumps({"machine": about, "found": [asdict(each) for each in found]}, indent=2))


if __name__ == "__main__":
    main()
