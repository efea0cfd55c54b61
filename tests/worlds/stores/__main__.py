"""Run the worlds of the message stores: ``python -m tests.worlds.stores --worlds 1000 --jobs 2 --mutants``.

Owns: the command line, progress and the summary. Exits 1 when a promise broke, a kind of event never occurred (with 300
worlds or more), or a mutant was not caught. ``--first N --worlds 1`` repeats one world, with the same
``--block-messages``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from tests.worlds.stores.blocks import block_messages, set_block_messages

if TYPE_CHECKING:
    from tests.worlds.stores.runner import Summary


def main(arguments: list[str] | None = None) -> int:
    """Run worlds, then hunt mutants; return the exit status."""
    options = _parser().parse_args(arguments)
    set_block_messages(options.block_messages)
    from tests.worlds.stores.runner import coverage_table, hunt_mutants, run_seeds

    began = time.monotonic()
    shown = [began]

    def progress(summary: Summary) -> None:
        now = time.monotonic()
        if now - shown[0] >= 2.0:
            shown[0] = now
            print(f"{summary.worlds} worlds, {summary.states} crash states", file=sys.stderr)

    summary = run_seeds(range(options.first, options.first + options.worlds), jobs=options.jobs, progress=progress)
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
            print(f"mutant {found.mutant:<28} {told}", flush=True)
    missing = summary.missing() if options.worlds >= 300 else []
    if missing:
        print(f"never met: {', '.join(missing)}")
    return 1 if summary.failures or escaped or missing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.stores", description="worlds of the stores")
    parser.add_argument("--worlds", type=int, default=100, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--mutants", action="store_true", help="catch every mutant")
    parser.add_argument("--block-messages", type=int, default=block_messages(), help="messages of one block")
    return parser


if __name__ == "__main__":
    sys.exit(main())
