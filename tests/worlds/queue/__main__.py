"""Run the queue's worlds: ``python -m tests.worlds.queue --worlds 400 --jobs 2 --mutants``.

Owns: the command line, progress and the summary. Exits 1 when a promise broke, a kind of event never occurred (with 100
worlds or more), or a mutant was not caught. ``--first N --worlds 1`` repeats one world.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from tests.worlds.queue.followers import FOLLOWER_KINDS, run_followers
from tests.worlds.queue.mutants import EQUIVALENT, SEEDS_MAX
from tests.worlds.queue.persisting import PERSIST_KINDS, run_persist
from tests.worlds.queue.runner import KINDS, Summary, coverage_table, hunt_mutants, run_seeds
from tests.worlds.queue.world import WorldReport, run_world


def main(arguments: list[str] | None = None) -> int:
    """Run worlds, then hunt mutants; return the exit status."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    shown = [began]

    def progress(summary: Summary) -> None:
        now = time.monotonic()
        if now - shown[0] >= 2.0:
            shown[0] = now
            rate = summary.states / (now - began)
            print(f"{summary.worlds} worlds, {summary.states} states, {rate:.0f}/s", file=sys.stderr)

    seeds = range(options.first, options.first + options.worlds)
    world: Callable[[int], WorldReport] = run_world
    kinds = KINDS
    if options.followers:
        world, kinds = run_followers, FOLLOWER_KINDS
    if options.persist:
        world, kinds = run_persist, PERSIST_KINDS
    summary = run_seeds(seeds, jobs=options.jobs, progress=progress, world=world)
    seconds = time.monotonic() - began
    print(coverage_table(summary))
    print(
        f"{summary.worlds} worlds, {len(summary.failures)} broken, {summary.states} crash states, {seconds:.1f} s, "
        f"{summary.states / seconds:.0f} states/s"
    )
    for seed, detail in summary.failures[:10]:
        print(f"seed {seed}:\n{detail}")
    escaped = 0
    if options.mutants:
        for found in hunt_mutants(jobs=options.jobs):
            escaped += found.seed is None
            told = f"seed {found.seed}: {found.promise}" if found.seed is not None else "NOT CAUGHT"
            print(f"mutant {found.mutant:<34} {told}", flush=True)
        for rule, why in EQUIVALENT.items():
            print(f"equivalent {rule:<30} {why}")
    missing = summary.missing(kinds) if options.worlds >= 100 else []
    if missing:
        print(f"never met: {', '.join(missing)}")
    return 1 if summary.failures or escaped or missing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.queue", description="worlds of the queue")
    parser.add_argument("--worlds", type=int, default=100, help="how many worlds, of about 300 crash states each")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--followers", action="store_true", help="worlds of consumers and work queues instead")
    parser.add_argument("--persist", action="store_true", help="worlds of persist instead")
    parser.add_argument("--mutants", action="store_true", help=f"catch every mutant, each within {SEEDS_MAX} seeds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
