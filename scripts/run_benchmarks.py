"""Runs every benchmark in turn, each with ``--json``, and keeps the results in ``benchmarks/results/``.

A benchmark is a file ``benchmarks/NAME.py`` that takes ``--json FILE`` and prints its table. They run in turn,
because they share the cores. The exit code is that of the first one that failed; the others still run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
RESULTS = FOLDER / "results"


def main() -> int:
    """Run what was asked for; the answer is the exit code."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*names, []], help="all of them by default")
    chosen = parser.parse_args().names or names
    RESULTS.mkdir(parents=True, exist_ok=True)
    first_failure = 0
    for name in chosen:
        print(f"\n== {name}", flush=True)
        command = [sys.executable, str(FOLDER / f"{name}.py"), "--json", str(RESULTS / f"{name}.json")]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code:
            print(f"{name} ended with {code}", file=sys.stderr)
        first_failure = first_failure or code
    return first_failure


if __name__ == "__main__":
    sys.exit(main())
