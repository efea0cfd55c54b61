"""A store that fails some of its requests: does every reader make progress, and what does it cost?

    python benchmarks/failing_store.py [--percent 0 0.5 2 10] [--objects 1000] [--soak SECONDS] [--json FILE]

The server is one Ceph RADOS Gateway (``tests.rgw``) behind the fault proxy in a process of its own. A log of as many
objects is made without faults. Then, for each percentage of requests that fail, each lane runs once:

- view: a service starts on the log, until its view has the newest version
- commits, stores: one commit after another, one published message after another; the longest wait for an answer
- snapshots: seven commands ``log snapshot``, each at another version; how many of them ended well
- retention: ``log truncate`` waits until a truncation is in the log and the objects are gone
- verify, mirror, restore: the command on the whole log
- Spark: a read of the whole log by Spark's own code without a cluster: the plan, then each task's objects

A request that fails is one of these, equally often: 503 before it is carried out, 500 before, 500 after, a reset
before, a reset after, half an answer; every fortieth of them has no answer at all. ``--soak`` lets a service with a
view, stores in the log, snapshots and retention run for as long at each percentage, and reports the longest time in
which a commit, a message or the view did not move.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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
LANE_SECONDS_MAX = 60.0
COMMAND = (sys.executable, "-m", "holdfast.cli.main", "log")
SNAPSHOTS = 7
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
}


def make_log(place: Place, objects: int) -> None:
    """A log of as many objects, each of one commit."""
    with holdfast(place.folder / "made", log_url=place.direct) as server, client_of(server) as client:
        for number in range(objects):
            client.commit([Write(b"k/%06d" % number, b"%d" % number)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--percent", type=float, nargs="+", default=[0, 0.5, 2, 10])
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--lanes", nargs="+", choices=LANES, default=list(LANES))
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
            make_log(place, given.objects)
            for name in given.lanes:
                proxy.set_rules(rules_for(percent))
                lane = Lane(name, percent)
                try:
                    LANES[name](place, lane)
                except (RuntimeError, OSError, Exception) as error:  # noqa: BLE001 - a lane that fails is a finding
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
