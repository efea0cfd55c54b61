"""Commits while retention removes nearly all of a long log: rate and p99 of 64 clients, with and without deletions.

    python benchmarks/retention.py [--batches 1000000] [--keep 10000] [--s3] [--seconds 5] [--json FILE]

It writes a log of ``--batches`` small objects and its snapshot to a directory (with ``--log DIR``, a run finds there
what an earlier one wrote), copies both to S3 if asked, starts a service, and measures bursts of ``holdfast bench``.
Then a policy lets go of all but the newest ``--keep`` objects, in ``--steps`` steps. Before each step two bursts are
measured without deletions, then bursts until its space is back: the speed of a machine drifts, so only neighbours in
time are compared. Bursts go on for a minute after the last step: on ext4, deletions slow later creates in their
directory. At the end the next leader takes over, ``holdfast log verify`` reads what is left, and the number of objects
is counted.

The S3 server is one RADOS gateway on this machine. ``--far`` puts the latency of a distant store before it, as
``benchmarks/commit_on_s3.py`` does: log-normal, median 40 ms, p99 126 ms.

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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _processes import Served, holdfast, machine
from _spark_logs import write_batches
from tests.rgw import Gateway

from holdfast.commit.format.transaction import Write
from holdfast.objects.open import open_store
from holdfast.snapshots import make_snapshot
from holdfast.testing.fault_proxy import Latency
from holdfast.testing.fault_proxy_process import FaultProxyProcess

CONNECTIONS = 64
FAR = Latency(median_ms=40.0, p99_ms=126.0)


def burst(server: Served, seconds: float) -> dict[str, float]:
    words = ("-m", "holdfast.cli.main", "bench", "-c", str(CONNECTIONS), "-s", str(seconds), "--url", server.url)
    done = subprocess.run([sys.executable, *words, "--json"], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    print(f"deleted {deleted(server)}: {found['commits_per_second']} commits/s, p99 {found['p99_ms']} ms", flush=True)
    return {"rate": float(found["commits_per_second"]), "p99_ms": float(found["p99_ms"])}


async def copy(root: Path, url: str) -> None:
    """Every object of a directory's log, its snapshot too, to another store."""
    store = open_store(url, create_missing=True, request_timeout_ms=30_000, connections_max=64)
    keys = await asyncio.to_thread(
        lambda: sorted((str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()), reverse=True)
    )
    left, total, began = iter(keys), len(keys), time.monotonic()
    done = 0

    async def some() -> None:
        nonlocal done
        for key in left:
            await store.create(key, (root / key).read_bytes())
            done += 1
            if done % 100_000 == 0:
                print(f"copied {done} of {total} objects in {time.monotonic() - began:.0f} s", flush=True)

    await asyncio.gather(*(some() for _ in range(64)))
    await store.close()


async def snapshot(url: str) -> int:
    """The version of the snapshot."""
    store = open_store(url)
    try:
        return (await make_snapshot(store)).version
    finally:
        await store.close()


def prepare(root: Path, batches: int) -> int:
    """The log and its snapshot, as this or an earlier run wrote them; the version of both."""
    version = root.with_name(f"{root.name}.version")
    if not version.exists():
        began = time.monotonic()
        write_batches(root, ([Write(b"key/%07d" % (number % 1_000_000), b"x" * 100)] for number in range(batches)))
        print(f"wrote {batches} batches in {time.monotonic() - began:.0f} s", flush=True)
        began = time.monotonic()
        version.write_text(str(asyncio.run(snapshot(root.as_uri()))))
        print(f"made their snapshot in {time.monotonic() - began:.0f} s", flush=True)
    return int(version.read_text())


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
        before, during, after = [], [], []
        took = 0.0
        for step in range(1, chosen.steps + 1):
            before += [burst(server, seconds) for _ in range(2)]
            gone = (batches - keep) * step // chosen.steps
            began = time.monotonic()
            request = ("retention", "set", "newest", "--url", server.url)
            command(*request, "--keep-from-version", str(newest - batches + gone))
            at_begin = deleted(server)
            while (now := deleted(server)) < gone - 1:
                found = burst(server, seconds)
                # A burst in which the sweep began or ended has seen both.
                if at_begin < now and deleted(server) < gone - 1:
                    during.append(found)
            took += time.monotonic() - began
        ended = time.monotonic()
        while time.monotonic() - ended < chosen.after_seconds:
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
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--after-seconds", type=float, default=60.0)
    parser.add_argument("--deletes-per-second", type=float, default=1_000.0)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--far", action="store_true", help="with --s3: the latency of a distant store")
    parser.add_argument("--folder", type=Path, help="where temporary files go")
    parser.add_argument("--log", type=Path, help="where the log is, or will be; a run on a directory uses it up")
    parser.add_argument("--prepare-only", action="store_true", help="end when the log is written")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as temporary:
        folder = Path(temporary)
        local = (chosen.log or folder / "log").absolute()
        newest = prepare(local, chosen.batches)
        if chosen.prepare_only:
            return
        if chosen.s3:
            with Gateway(folder / "s3", backing="memstore") as gateway, ExitStack() as stack:
                gateway.create_bucket("retention")
                os.environ.update(gateway.environment())
                url = gateway.url("retention", prefix="log")
                asyncio.run(copy(local, url))
                if chosen.far:
                    proxy = stack.enter_context(FaultProxyProcess("127.0.0.1", gateway.port))
                    proxy.set_latency(FAR)
                    url = gateway.url("retention", prefix="log", endpoint=proxy.endpoint)
                found = measure(folder, url, newest, chosen)
        else:
            local.with_name(f"{local.name}.version").unlink()
            found = measure(folder, local.as_uri(), newest, chosen)
    found |= {
        "batches": chosen.batches,
        "store": "s3" if chosen.s3 else "directory",
        "far": chosen.far,
        "deletes_per_second": chosen.deletes_per_second,
        "machine": machine(),
    }
    print(json.dumps({key: value for key, value in found.items() if key != "bursts"}, indent=1))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
