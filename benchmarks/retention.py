"""Commits while retention removes nearly all of a long log: rate and p99 of 64 clients before, during and after.

    python benchmarks/retention.py [--batches 1000000] [--keep 10000] [--s3] [--seconds 5] [--json FILE]

It writes a log of ``--batches`` small objects, makes a snapshot, starts a service, and measures bursts of
``holdfast bench``. Then a policy lets go of all but the newest ``--keep`` objects. Bursts go on until the space is
back, and a minute after it: on ext4, deletions slow later creates in their directory. At the end the next leader takes
over, ``holdfast log verify`` reads what is left, and the number of objects is counted.

Targets: at least 90 % of the rate, and at most twice the p99, while objects are removed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _processes import Served, holdfast, machine
from _spark_logs import write_batches
from tests.rgw import Gateway

from holdfast.commit.format.transaction import Write
from holdfast.objects.open import open_store
from holdfast.snapshots import make_snapshot

CONNECTIONS = 64


def burst(server: Served, seconds: float) -> dict[str, float]:
    words = ("-m", "holdfast.cli.main", "bench", "-c", str(CONNECTIONS), "-s", str(seconds), "--url", server.url)
    done = subprocess.run([sys.executable, *words, "--json"], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {"rate": float(found["commits_per_second"]), "p99_ms": float(found["p99_ms"])}


async def copy(root: Path, url: str) -> None:
    """Every object of a directory's log to another store."""
    store = open_store(url, create_missing=True, request_timeout_ms=30_000, connections_max=64)
    names = iter(sorted((path.name for path in (root / "batches").iterdir()), reverse=True))

    async def some() -> None:
        for name in names:
            await store.create(f"batches/{name}", (root / "batches" / name).read_bytes())

    await asyncio.gather(*(some() for _ in range(64)))
    await store.close()


async def snapshot(url: str) -> tuple[int, int]:
    """The version and the keys of the snapshot."""
    store = open_store(url, request_timeout_ms=30_000, connections_max=16)
    try:
        made = await make_snapshot(store)
        return made.version, made.rows
    finally:
        await store.close()


def retention(server: Served) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.get("/v1/retention"))
    return found


def deleted(server: Served) -> int:
    for line in server.get("/metrics").splitlines():
        if line.startswith("holdfast_retention_deleted_objects_total "):
            return int(float(line.split()[1]))
    return 0


def command(*words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", *words], capture_output=True, text=True, check=True
    ).stdout


def measure(folder: Path, url: str, newest: int, chosen: argparse.Namespace) -> dict[str, Any]:
    os.environ["HOLDFAST_RETENTION__MIN_AGE_SECONDS"] = "0"
    os.environ["HOLDFAST_RETENTION__CHECK_SECONDS"] = "1"
    os.environ["HOLDFAST_RETENTION__DELETES_PER_SECOND"] = str(chosen.deletes_per_second)
    os.environ["HOLDFAST_VIEW__ENABLED"] = "false"
    os.environ["HOLDFAST_STORES__ENABLED"] = "false"
    with holdfast(folder / "service", "--take-over", log_url=url) as server:
        batches, keep, seconds = chosen.batches, chosen.keep, chosen.seconds
        burst(server, seconds)
        before = [burst(server, seconds) for _ in range(4)]
        began = time.monotonic()
        request = [*("retention", "set", "newest", "--url", server.url)]
        command(*request, "--keep-from-version", str(newest - keep))
        gone, during = 0, []
        while True:
            now = deleted(server)
            if now >= batches - keep - 1 or (gone == now and now > 0):
                break
            gone = now
            during.append(burst(server, seconds))
        took = time.monotonic() - began
        after = []
        while time.monotonic() - began - took < chosen.after_seconds:
            after.append(burst(server, seconds))
        total, truncated = deleted(server), retention(server)["truncated_through"]
    with holdfast(folder / "next", "--take-over", log_url=url) as server:
        waits = int(re.findall(r"store_waits=(\d+)", (server.folder / "server.log").read_text())[0])
    verified = json.loads(command("log", "verify", url, "--json"))
    middle = {name: {k: statistics.median(b[k] for b in bursts) for k in ("rate", "p99_ms")}
              for name, bursts in (("before", before), ("during", during), ("after", after)) if bursts}  # fmt: skip
    ratio = {
        f"{name}_{key}": round(middle[name][key] / middle["before"][key], 3)
        for name in ("during", "after")
        if name in middle
        for key in ("rate", "p99_ms")
    }
    return {
        "deleted": total, "seconds": round(took, 1), "truncated_through": truncated, "left": verified["objects"],
        "waits_of_the_next_leader": waits,
        "bursts": {"before": before, "during": during, "after": after}, "medians": middle, "ratios": ratio,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--keep", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--after-seconds", type=float, default=60.0)
    parser.add_argument("--deletes-per-second", type=float, default=1_000.0)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the log is written; a temporary directory by default")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as temporary:
        folder = Path(temporary)
        local = folder / "log"
        began = time.monotonic()
        write_batches(
            local, ([Write(b"key/%07d" % (number % 1_000_000), b"x" * 100)] for number in range(chosen.batches))
        )
        print(f"wrote {chosen.batches} batches in {time.monotonic() - began:.0f} s", flush=True)

        def run(url: str) -> dict[str, Any]:
            began = time.monotonic()
            version, rows = asyncio.run(snapshot(url))
            print(f"snapshot of {rows} keys in {time.monotonic() - began:.0f} s", flush=True)
            return measure(folder, url, version, chosen)

        if chosen.s3:
            with Gateway(folder / "s3", backing="memstore") as gateway:
                gateway.create_bucket("retention")
                os.environ.update(gateway.environment())
                url = gateway.url("retention", prefix="log")
                asyncio.run(copy(local, url))
                found = run(url)
        else:
            found = run(local.as_uri())
    found |= {"batches": chosen.batches, "store": "s3" if chosen.s3 else "directory", "machine": machine()}
    print(json.dumps({key: value for key, value in found.items() if key != "bursts"}, indent=1))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
