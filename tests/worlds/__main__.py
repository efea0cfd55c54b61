"""Run simulated worlds: ``python -m tests.worlds log --worlds 400 --jobs 2 --mutants``.

Exits 1 when a promise broke, a required kind of event never occurred in many worlds, or a mutant was not caught.
``--first SEED --worlds 1`` replays one world.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tests.worlds.harness import KINDS, Caught, Summary, hunt_mutants, kind_of, run_seeds


def main(arguments: list[str] | None = None) -> int:
    """Run worlds, then hunt mutants; return the exit status."""
    options = _parser().parse_args(arguments)
    began = shown = time.monotonic()

    def progress(summary: Summary) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= 2.0:
            shown = now
            seeds_broken = "".join(f", seed {seed}" for seed in sorted(summary.failures)[:5])
            broken = f"{len(summary.failures)} broken{seeds_broken}"
            rate = summary.count / (now - began)
            print(f"{summary.worlds} worlds, {broken}, {rate:.0f} {counted}/s", file=sys.stderr)

    seeds = range(options.first, options.first + options.worlds)
    counted = kind_of(options.kind).counted
    summary = run_seeds(options.kind, seeds, jobs=options.jobs, progress=progress)
    seconds = time.monotonic() - began
    print(summary.table())
    print(
        f"{summary.worlds} worlds, {len(summary.failures)} broken, {summary.count} {counted} (fewest {summary.fewest})"
        f", {seconds:.1f} s, {summary.count / seconds:.0f} {counted}/s"
    )
    if summary.failures:
        print(summary.failed())
    caught: list[Caught] = []
    if options.mutants:
        for found in hunt_mutants(options.kind, jobs=options.jobs):
            caught.append(found)
            result = f"seed {found.seed}: {found.promise}" if found.seed is not None else "NOT CAUGHT"
            print(f"mutant {found.mutant:<34} {result}", flush=True)
        for rule, why in summary.kind.unproved.items():
            print(f"unproved {rule:<32} {why}")
    missing = summary.missing() if options.worlds >= summary.kind.worlds_min else []
    if missing:
        print(f"never met: {', '.join(missing)}")
    if options.json:
        _write(options.json, summary, caught, missing, seconds)
    return 1 if summary.failures or missing or any(found.seed is None for found in caught) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds", description="simulated worlds")
    parser.add_argument("kind", choices=KINDS, help="the kind of world")
    parser.add_argument("--worlds", type=int, default=100, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--mutants", action="store_true", help="catch every mutant")
    parser.add_argument("--json", type=Path, help="write the summary here")
    return parser


def _write(path: Path, summary: Summary, caught: list[Caught], missing: list[str], seconds: float) -> None:
    facts = {
        "worlds": summary.worlds,
        "broken": summary.failures,
        summary.kind.counted: summary.count,
        "fewest": summary.fewest,
        "seconds": round(seconds, 1),
        "seen": dict(sorted(summary.seen.items())),
        "seeds_with": dict(sorted(summary.seeds_with.items())),
        "missing": missing,
        "mutants": {found.mutant: {"seed": found.seed, "promise": found.promise} for found in caught},
        "unproved": dict(summary.kind.unproved),
    }
    path.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
