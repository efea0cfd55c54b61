"""A backlog of many times the memory: what the service holds while it fills and drains, and how long it takes to start.

    python benchmarks/stores_backlog.py [--gib 10] [--steps 4] [--starts 3] [--folder DIR] [--json FILE] [--plot FILE]

One ``holdfast serve`` with everything as it comes: ``persistence`` sync, 128 MiB for messages and counts. A store with
a shared durable that is never asked and a standard one that is drained at the end; bodies of 1 KiB, each with its
number in it. The backlog is filled in steps, by one client process in requests of 1,000 messages, each confirmed. After
each step the service is killed (SIGKILL) and started again a few times, and every message must be there; what a start
takes is counted until the stores answer, as time and, because a busy machine says little by time, as processor time.
At the end the standard durable is consumed by the client, every body is compared, and the other one is purged.

Resident memory is read from /proc twenty times a second, in each phase apart. The scale is stated in what is printed:
messages, bytes of bodies, bytes of the log, and how many times the memory for messages that is.

Verdicts, none of them raised: the backlog is at least ten times the memory for messages; the most that was resident
is below ``RESIDENT_BOUND``, and in the last step of filling no more than ``GROWTH_BOUND`` above the first; a start
after the last step takes no more than ``START_BOUND`` seconds of a processor above one after the first; nothing that
was confirmed was missing, double or another; after the drain the log has given back nine tenths. The exit code is 0
where nothing was missing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from _processes import free_port, machine, processor_seconds
from rich.console import Console
from rich.table import Table

MIB = 1 << 20
MEMORY = 128 * MIB
"""What the service holds of messages and counts at most, as it comes."""
BODY_BYTES = 1_024
BATCH = 1_000
IN_FLIGHT = 4
RESIDENT_BOUND = 4 * MEMORY
GROWTH_BOUND = MEMORY // 2
START_BOUND = 1.0
GIVEN_BACK = 0.9
SAMPLE_S = 0.05
READY_S = 300.0
FILLER = bytes(range(256)) * (BODY_BYTES // 256)
DURABLES = {"shared": {"type": "shared"}, "drained": {"type": "standard", "prefetch": 8_192}}


def body(number: int) -> bytes:
    """The body of the message with this number."""
    return number.to_bytes(8, "big") + FILLER[8:]


@dataclass(slots=True)
class Phase:
    """What was seen while something went on."""

    name: str
    messages: int = 0
    seconds: float = 0.0
    resident_max: int = 0
    resident_end: int = 0
    anonymous_max: int = 0
    log_bytes: int = 0
    starts_s: list[float] = field(default_factory=list)
    starts_processor_s: list[float] = field(default_factory=list)


class Service:
    """One ``holdfast serve`` on one folder, over any number of lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> tuple[float, float]:
        """Seconds until the stores answer: from the start of the process, and of a processor."""
        began = time.monotonic()
        with (self.folder / "server.log").open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "holdfast.cli.main", "serve", "--init"),
                    *("--listen", f"127.0.0.1:{self.port}", "--log", (self.folder / "log").as_uri()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"the service ended with {self.process.returncode}: {self.folder / 'server.log'}")
            with contextlib.suppress(OSError):
                self.get("/v1/stores")
                return time.monotonic() - began, processor_seconds(self.process.pid)
            if time.monotonic() - began > READY_S:
                raise RuntimeError(f"the stores are not served after {READY_S} s")
            time.sleep(0.005)

    def kill(self) -> None:
        """SIGKILL: nothing is closed."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def ask(self, method: str, path: str, document: object = None) -> dict[str, Any]:
        data = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        with urllib.request.urlopen(request, timeout=300) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def get(self, path: str) -> dict[str, Any]:
        return self.ask("GET", path)

    @property
    def log_bytes(self) -> int:
        """What the log of the stores takes on disk."""
        found: int = self.get("/v1/cluster")["log"]["allocated"]
        return found


@contextlib.contextmanager
def watched(service: Service, name: str) -> Iterator[Phase]:
    """Sample the service's memory while something goes on."""
    phase = Phase(name)
    ended = threading.Event()

    def sample() -> None:
        while True:
            last = ended.wait(SAMPLE_S)
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{service.process.pid}/status").read_text()
                lines = dict(line.split(":", 1) for line in status.splitlines())
                phase.resident_end = int(lines["VmRSS"].split()[0]) * 1024
                phase.resident_max = max(phase.resident_max, phase.resident_end)
                phase.anonymous_max = max(phase.anonymous_max, int(lines["RssAnon"].split()[0]) * 1024)
            if last:
                return

    thread = threading.Thread(target=sample)
    thread.start()
    began = time.monotonic()
    try:
        yield phase
    finally:
        phase.seconds = time.monotonic() - began
        ended.set()
        thread.join()


async def fill(url: str, first: int, count: int) -> None:
    """Publish messages, each confirmed, in requests of ``BATCH``."""
    from holdfast.aio import StoreClient
    from holdfast.client.stores import Message

    async with StoreClient(url) as client:

        async def lane(begin: int) -> None:
            async with client.publisher("backlog") as publisher:
                for number in range(first + begin * BATCH, first + count, IN_FLIGHT * BATCH):
                    await publisher.publish_batch([Message(body(number + index)) for index in range(BATCH)])

        await asyncio.gather(*(lane(begin) for begin in range(IN_FLIGHT)))


async def drain(url: str, count: int) -> int:
    """Consume everything of the standard durable. Returns how many messages were missing, double or another."""
    from holdfast.aio import StoreClient

    seen = bytearray(count)
    wrong = found = 0
    async with StoreClient(url) as client, client.subscriber("backlog", "drained") as subscriber:
        async for batch in subscriber.batches():
            for message in batch:
                number = int.from_bytes(message.body[:8], "big")
                if number >= count or seen[number] or message.body != body(number):
                    wrong += 1
                else:
                    seen[number] = 1
                    found += 1
            if found + wrong >= count:
                await subscriber.acknowledge(*batch)
                break
    return wrong + count - found


def run(gib: float, steps: int, starts: int, folder: Path, console: Console) -> tuple[list[Phase], int]:
    """Every phase, and how many messages were missing."""
    service = Service(folder)
    total = int(gib * (1 << 30)) // BODY_BYTES // (steps * BATCH * IN_FLIGHT) * steps * BATCH * IN_FLIGHT
    phases: list[Phase] = []
    missing = 0

    def done(phase: Phase) -> None:
        phases.append(phase)
        console.print(
            f"{phase.name}: {phase.messages:,} messages, {phase.seconds:.1f} s, resident at most "
            f"{phase.resident_max / MIB:.0f} MiB, log {phase.log_bytes / MIB:,.0f} MiB, starts "
            + (", ".join(f"{start:.2f}" for start in phase.starts_processor_s) or "none")
            + " s of a processor",
            highlight=False,
        )

    try:
        service.start()
        service.ask("PUT", "/v1/stores/backlog", {"durables": DURABLES})
        with watched(service, "empty") as empty:
            time.sleep(1)
        restart(service, empty, starts)
        done(empty)
        for step in range(steps):
            first, count = total // steps * step, total // steps
            with watched(service, f"fill {step + 1}/{steps}") as phase:
                asyncio.run(fill(service.url, first, count))
            phase.messages = count
            phase.log_bytes = service.log_bytes
            missing += restart(service, phase, starts, expected=first + count)
            done(phase)
        with watched(service, "drain") as phase:
            missing += asyncio.run(drain(service.url, total))
        phase.messages, phase.log_bytes = total, service.log_bytes
        done(phase)
        with watched(service, "purge, save") as phase:
            service.ask("POST", "/v1/stores/backlog/durables/shared/purge")
            given_back(service)
        phase.messages, phase.log_bytes = total, service.log_bytes
        missing += service.get("/v1/stores/backlog")["counts"]["messages"]
        done(phase)
    finally:
        service.kill()
    return phases, missing


def restart(service: Service, phase: Phase, starts: int, expected: int = 0) -> int:
    """Kill it and start it again a few times. Returns how many of the messages are missing."""
    missing = 0
    for _ in range(starts):
        service.kill()
        seconds, processor = service.start()
        phase.starts_s.append(seconds)
        phase.starts_processor_s.append(processor)
        missing += abs(expected - service.get("/v1/stores/backlog")["counts"]["messages"])
    return missing


def given_back(service: Service) -> None:
    """Until a checkpoint finds nothing more to give back."""
    while True:
        counts, before = service.get("/v1/stores/backlog")["counts"], service.log_bytes
        service.ask("POST", "/v1/cluster/save")
        time.sleep(0.5)
        if counts["messages"] == 0 and service.log_bytes == before:
            return


def verdicts(phases: list[Phase], missing: int) -> list[tuple[str, bool]]:
    """What was promised, and whether it held."""
    fills = [phase for phase in phases if phase.name.startswith("fill")]
    purged = phases[-1]
    backlog = sum(phase.messages for phase in fills) * BODY_BYTES
    most = max(phase.resident_max for phase in phases)
    growth = fills[-1].resident_max - fills[0].resident_max
    early, late = (statistics.median(phase.starts_processor_s) for phase in (fills[0], fills[-1]))
    return [
        (f"backlog of {backlog / (1 << 30):.2f} GiB, {backlog / MEMORY:.0f} times the memory", backlog >= 10 * MEMORY),
        (f"resident at most {most / MIB:.0f} MiB of {RESIDENT_BOUND / MIB:.0f} MiB", most <= RESIDENT_BOUND),
        (f"filling further grows it by {growth / MIB:.0f} MiB of {GROWTH_BOUND / MIB:.0f} MiB", growth <= GROWTH_BOUND),
        (
            f"a start takes {late:.2f} s of a processor at {backlog / (1 << 30):.2f} GiB, {early:.2f} s after a step",
            late - early <= START_BOUND,
        ),
        (f"{missing} messages missing, double or another", missing == 0),
        (
            f"the log gave back {1 - purged.log_bytes / fills[-1].log_bytes:.1%}",
            purged.log_bytes <= (1 - GIVEN_BACK) * fills[-1].log_bytes,
        ),
    ]


def report(phases: list[Phase], found: list[tuple[str, bool]], console: Console) -> None:
    table = Table(title="a backlog of message stores")
    for column in (
        "phase",
        "messages",
        "msg/s",
        "resident max MiB",
        "anonymous max MiB",
        "log MiB",
        "start s",
        "processor s",
    ):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for phase in phases:
        table.add_row(
            phase.name,
            f"{phase.messages:,}",
            f"{phase.messages / phase.seconds:,.0f}" if phase.messages else "",
            f"{phase.resident_max / MIB:.0f}",
            f"{phase.anonymous_max / MIB:.0f}",
            f"{phase.log_bytes / MIB:,.0f}",
            f"{statistics.median(phase.starts_s):.2f}" if phase.starts_s else "",
            f"{statistics.median(phase.starts_processor_s):.2f}" if phase.starts_s else "",
        )
    console.print(table)
    for text, held in found:
        console.print(f"{'held    ' if held else 'NOT held'}  {text}", highlight=False)


def plot(phases: list[Phase], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    fills = [phase for phase in phases if phase.starts_s]
    backlog = [
        sum(phase.messages for phase in fills[: place + 1]) * BODY_BYTES / (1 << 30) for place in range(len(fills))
    ]
    drawing, (memory, start) = plt.subplots(1, 2, figsize=(9, 3.6))
    memory.plot(backlog, [phase.resident_max / MIB for phase in fills], marker="o")
    memory.axhline(RESIDENT_BOUND / MIB, linestyle="--")
    memory.set(xlabel="backlog, GiB", ylabel="resident at most, MiB", ylim=(0, None))
    start.plot(backlog, [statistics.median(phase.starts_processor_s) for phase in fills], marker="o")
    start.set(xlabel="backlog, GiB", ylabel="start after SIGKILL, s of a processor", ylim=(0, None))
    drawing.tight_layout()
    drawing.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=float, default=10.0, help="bytes of bodies")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--starts", type=int, default=3, help="starts after each step")
    parser.add_argument("--folder", type=Path, help="where the stores are to be; a temporary one otherwise")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    console = Console(width=120)
    before = machine()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        phases, missing = run(arguments.gib, arguments.steps, arguments.starts, Path(folder), console)
    found = verdicts(phases, missing)
    report(phases, found, console)
    console.print(f"load average {before['load average before']} before, {os.getloadavg()[0]:.2f} after")
    if arguments.json:
        figures = [asdict(phase) for phase in phases]
        held = [{"said": text, "held": one} for text, one in found]
        document = {"machine": before, "memory_bytes": MEMORY, "body_bytes": BODY_BYTES, "phases": figures}
        arguments.json.write_text(json.dumps({**document, "missing": missing, "verdicts": held}, indent=2) + "\n")
    if arguments.plot:
        plot(phases, arguments.plot)
    return 0 if missing == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
