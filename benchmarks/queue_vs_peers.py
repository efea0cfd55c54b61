"""The embedded queue against what a Python program would use instead: LMDB, sqlite3, litequeue, persist-queue,
diskcache, queuelib. Speed, and what is left after a fault.

    python benchmarks/queue_vs_peers.py [--quick] [--faults] [--json FILE] [--plot FILE]

P8: append_many, append, both synced and not; reading; the lazy view; reading since a time; opening after kill -9 and
    after a clean close; 1,000 asyncio tasks; the work queue. Messages of 100 bytes and 1 KiB.
How cost grows: with the batch, the message and the length of the log.
The fault table (alone with --faults): 2,000 messages, then kill -9, one flipped bit, a zeroed or cut tail, emptied
    metadata, a deleted index; what each system delivers afterwards.

Same durability on both sides; ``queue_peers/systems.py`` tells how each peer is set. Every measurement runs in a
process of its own, in interleaved rounds; figures are medians. What was written is read again and compared, byte by
byte. A measurement during which others used more than a quarter of a core is taken again, and the quietest is kept.
The exit code tells only whether the checks held: a missed target is printed, not raised.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sqlite3
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _processes import machine
from queue_peers.faults import fault_table, show_faults
from queue_peers.lanes import LOG_LENGTHS, Lanes
from queue_peers.report import plot, show
from queue_peers.targets import targets
from rich.console import Console

PEERS = ("lmdb", "litequeue", "persist-queue", "diskcache", "queuelib", "crc32c", "zlib-ng")


def about() -> dict[str, str]:
    found = machine()
    found = {name: found[name] for name in ("processor", "kernel", "python", "load average before", "holdfast")}
    found |= {"sqlite": sqlite3.sqlite_version, "system": platform.system()}
    return found | {name: version(name) for name in PEERS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three short rounds, logs of at most a million messages")
    parser.add_argument("--faults", action="store_true", help="only the fault table")
    parser.add_argument("--rounds", type=int, help="3 with --quick, otherwise 5")
    parser.add_argument("--seconds", type=float, help="of each measurement: 0.3 with --quick, otherwise 1")
    parser.add_argument("--tries", type=int, help="for a quiet moment: 1 with --quick, otherwise 3")
    parser.add_argument("--folder", type=Path, help="where the logs are kept while it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a PNG")
    given = parser.parse_args()
    rounds = given.rounds or (3 if given.quick else 5)
    seconds = given.seconds or (0.3 if given.quick else 1.0)
    tries = given.tries or (1 if given.quick else 3)
    lengths = [each for each in LOG_LENGTHS if each <= 1_000_000 or not given.quick]
    console = Console(width=150, highlight=False)
    facts = about()
    console.print("  ".join(f"{name} {value}" for name, value in facts.items()))
    report: dict[str, Any] = {"machine": facts, "rounds": rounds, "seconds": seconds}
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-"))
        )
        folder = folder.resolve()
        lanes = Lanes(folder, console, rounds=rounds, seconds=seconds, tries=tries)
        if not given.faults:
            lanes.run(lengths)
        faults = fault_table(folder / "faults")
    if not given.faults:
        found = targets(lanes, lengths)
        show(console, lanes, found, lengths)
        report["lanes"] = [
            {"measurement": name, "system": system, **lane.values} for (name, system), lane in lanes.found.items()
        ]
        report["targets"] = [{**asdict(target), "verdict": target.verdict} for target in found]
        if given.plot:
            plot(given.plot, lanes, f"{facts['processor']}, Python {facts['python']}")
    show_faults(console, faults)
    report["faults"] = [asdict(each) for each in faults]
    if given.json:
        given.json.write_text(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
