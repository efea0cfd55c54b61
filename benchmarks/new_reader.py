"""How long a new reader takes to the head of a log: from a snapshot, and from the whole history.

    python benchmarks/new_reader.py [--keys 1000000] [--after 10000] [--directory] [--rounds 3] [--json FILE]

It writes a log of ``--keys`` keys in batches of 1,000 and makes a snapshot. Then a service leads the log, and
``--after`` more keys are committed. By default the log lies on an S3 gateway on this machine. Each round measures, in
turn: a client's ``View`` in memory and one in a file, each from ``load_snapshot`` and the stream after it until the
head; the same view from the stream alone; and a service that only reads the log, from its start until its own view
answers at the head.

Target: from the snapshot, at most 10 seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _processes import Served, holdfast, machine
from _spark_logs import write_batches
from retention import copy, snapshot
from tests.rgw import Gateway, free_port

from holdfast import Client, NotFound, Unavailable, View, Write
from holdfast.client import ClientOptions

BATCH = 1_000


def at_head(client: Client, view: View, head: int) -> None:
    with client.subscribe(view.position) as stream:
        for events in stream.batches():
            view.apply(events)
            if view.version >= head:
                return


def client_view(url: str, head: int, make: Callable[[], View], *, from_snapshot: bool) -> float:
    began = time.perf_counter()
    with Client(url, options=ClientOptions(give_up_after_ms=60_000)) as client, make() as view:
        if from_snapshot:
            assert client.load_snapshot(view).version > 0, "there is a snapshot"
        at_head(client, view, head)
        view.flush()
        return time.perf_counter() - began


def reading_service(folder: Path, log_url: str, head: int, key: bytes) -> float:
    port = free_port()
    words = ("serve", "--log", log_url, "--listen", f"127.0.0.1:{port}", "--read-only")
    began = time.perf_counter()
    with (folder / f"reader-{port}.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", *words], stdout=output, stderr=output, cwd=folder,
            env={**os.environ, "HOLDFAST_STORES__ENABLED": "false", "HOLDFAST_VIEW__ENABLED": "true"},
        )  # fmt: skip
        try:
            with Client(f"http://127.0.0.1:{port}", options=ClientOptions(give_up_after_ms=120_000)) as client:
                while True:
                    try:
                        assert client.get(key, at=head) is not None
                        return time.perf_counter() - began
                    except (NotFound, Unavailable):
                        time.sleep(0.02)
        finally:
            process.terminate()
            process.wait()


def commit(server: Served, count: int) -> int:
    with Client(server.url) as client:
        for first in range(0, count, 100):
            receipt = client.commit([Write(b"after/%06d" % number, b"x" * 100) for number in range(first, first + 100)])
        return receipt.version


def measure(folder: Path, log_url: str, after: int, rounds: int) -> dict[str, list[float]]:
    os.environ["HOLDFAST_STORES__ENABLED"] = "false"
    found: dict[str, list[float]] = {}
    with holdfast(folder / "service", "--take-over", log_url=log_url) as server:
        head = commit(server, after)
        for number in range(rounds):
            lanes: dict[str, Callable[[], float]] = {
                "memory from the snapshot": lambda: client_view(server.url, head, View.memory, from_snapshot=True),
                "file from the snapshot": lambda number=number: client_view(
                    server.url, head, lambda: View.sqlite(folder / f"view-{number}.sqlite"), from_snapshot=True
                ),
                "memory from the history": lambda: client_view(server.url, head, View.memory, from_snapshot=False),
                "a service that reads": lambda: reading_service(folder, log_url, head, b"key/0000001"),
            }
            for name, lane in lanes.items():
                found.setdefault(name, []).append(round(lane(), 2))
                print(f"{name}: {found[name][-1]} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--after", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        local = folder / "log"
        batches = (
            [Write(b"key/%07d" % number, b"x" * 100) for number in range(first, min(first + BATCH, chosen.keys))]
            for first in range(0, chosen.keys, BATCH)
        )
        write_batches(local, batches)

        def run(url: str) -> dict[str, list[float]]:
            version, rows = asyncio.run(snapshot(url))
            print(f"snapshot of {rows} keys at {version}", flush=True)
            return measure(folder, url, chosen.after, chosen.rounds)

        if chosen.directory:
            seconds = run(local.as_uri())
        else:
            with Gateway(folder / "s3", backing="memstore") as gateway:
                gateway.create_bucket("reader")
                os.environ.update(gateway.environment())
                url = gateway.url("reader", prefix="log")
                asyncio.run(copy(local, url))
                seconds = run(url)
    found: dict[str, Any] = {
        "keys": chosen.keys, "after": chosen.after, "store": "directory" if chosen.directory else "s3",
        "seconds": seconds, "medians": {name: statistics.median(each) for name, each in seconds.items()},
        "machine": machine(),
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
