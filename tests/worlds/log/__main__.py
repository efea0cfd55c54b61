"""Run simulated worlds: ``python -m tests.worlds.log --seeds 5000 --jobs 2 --json worlds.json``.

Owns: the command line, progress and the summary. Exits 1 when a promise broke, a kind of fault never occurred (with 20
seeds or more), or a mutant was not caught.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tests.worlds.log.mutants import SEEDS_MAX, WAITING, Caught
from tests.worlds.log.runner import Summary, coverage_table, hunt_mutants, run_seeds


def main(arguments: list[str] | None = None) -> int:
    """Run worlds, then hunt mutants; return the exit status."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    shown = [began]

    def progress(summary: Summary) -> None:
        now = time.monotonic()
        if now - shown[0] >= 2.0:
            shown[0] = now
            done = summary.seeds + len(summary.failures)
            rate = done / (now - began)
            print(f"{done}/{options.seeds} worlds, {rate:.1f}/s, {len(summary.failures)} broken", file=sys.stderr)

    seeds = range(options.first, options.first + options.seeds)
    summary = run_seeds(seeds, jobs=options.jobs, check_every=options.check_every, progress=progress)
    seconds = time.monotonic() - began
    print(coverage_table(summary))
    print(
        f"{summary.seeds} worlds clean, {len(summary.failures)} broken, {summary.events} events "
        f"(fewest {summary.fewest_events}), {seconds:.1f} s, {summary.seeds / seconds:.1f} worlds/s"
    )
    for failure in summary.failures[:10]:
        print(f"seed {failure.seed}:\n{failure.detail}")
    caught: list[Caught] = []
    if options.mutants:
        for found in hunt_mutants(jobs=options.jobs):
            caught.append(found)
            told = f"seed {found.seed}: {found.promise}" if found.seed is not None else "NOT CAUGHT"
            print(f"mutant {found.mutant:<34} {told}", flush=True)
        for name, why in WAITING.items():
            print(f"waiting {name:<33} {why}")
    escaped = [found.mutant for found in caught if found.seed is None]
    missing = summary.missing() if options.seeds >= 20 else []
    if options.json:
        _write(options.json, summary, caught, missing, seconds)
    return 1 if summary.failures or escaped or missing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.log", description="simulated worlds")
    parser.add_argument("--seeds", type=int, default=40, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--check-every", type=int, default=1, help="steps between two checks of all invariants")
    parser.add_argument("--mutants", action="store_true", help=f"catch every mutant, each within {SEEDS_MAX} seeds")
    parser.add_argument("--json", type=Path, help="write the summary here")
    return parser


def _write(path: Path, summary: Summary, caught: list[Caught], missing: list[str], seconds: float) -> None:
    facts = {
        "seeds": summary.seeds,
        "broken": {failure.seed: failure.detail for failure in summary.failures},
        "events": summary.events,
        "fewest_events": summary.fewest_events,
        "seconds": round(seconds, 1),
        "coverage": dict(sorted(summary.coverage.items())),
        "seeds_with": dict(sorted(summary.seeds_with.items())),
        "missing": missing,
        "mutants": {found.mutant: {"seed": found.seed, "promise": found.promise} for found in caught},
        "waiting": dict(WAITING),
    }
    path.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
