"""Mutants of the modules that decide about rights and data: each must be noticed by the fast tests of its group.

Run by ``make mutate``; ``make mutate MUTATE_FLAGS="rights cursors"`` runs some groups. The tool is mutmut: it changes
one expression of one function at a time. A mutant that no test notices survives.
``scripts/mutants_that_survive.toml`` gives each survivor its reason; one without a reason, and a reason whose mutant is
noticed, are failures. So is a group that is not done within ``--minutes``.

mutmut works in a folder of its own, ``.mutants/GROUP``. It changes neither decorated functions, such as properties, nor
what a module executes when it is imported, such as tables.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORK = ROOT / ".mutants"
BASELINE = ROOT / "scripts" / "mutants_that_survive.toml"
MINUTES = 60
NOTICED = ("killed", "timeout", "caught by type check", "segfault")
SURVIVED = ("survived", "no tests", "suspicious")


@dataclass(frozen=True)
class Group:
    """Modules of ``src/holdfast``, and the tests that must notice every mutant of them, as arguments of pytest. Tests
    that look at the source of a module are left out: in a run it has all mutants in it.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS = {
    "rights": Group(
        (
            "browsers", "server/http/auth", "server/http/key_scope", "server/http/rights_table",
            "server/stores/access", "stores/definitions/permissions",
        ),
        (
            "tests/unit/server/test_ended_tokens.py", "tests/unit/server/test_refusals_of_rights.py",
            "tests/unit/server/test_rights_watch.py", "tests/unit/stores/test_permissions.py",
            "tests/unit/test_browsers.py",
        ),
    ),
    "retention": Group(
        ("retention/cut",),
        (
            "tests/unit/retention/test_cut.py", "--deselect",
            "tests/unit/retention/test_cut.py::test_a_cut_that_forgets_the_span_is_noticed",
        ),
    ),
    "resolve": Group(
        ("commit/stages/judge", "commit/stages/resolve", "commit/window"),
        (
            "tests/unit/commit/test_judging.py", "tests/unit/commit/test_resolve.py",
            "tests/unit/commit/test_window.py",
        ),
    ),
    "recovery": Group(
        ("commit/format/chain", "commit/leadership/claims", "commit/leadership/evidence", "queue/log/judgement"),
        (
            "tests/unit/commit/test_chain.py", "tests/unit/commit/test_claims.py", "tests/unit/commit/test_evidence.py",
            "tests/unit/commit/test_recovery.py", "tests/unit/queue/test_judgement.py",
        ),
    ),
    "cursors": Group(
        ("queue/files/cursors", "queue/format/meta"),
        ("tests/unit/queue/test_cursor_files.py", "tests/unit/queue/test_formats.py"),
    ),
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Survivor:
    """A mutant by what it changes, so that it keeps its name when other lines of the function change."""

    function: str
    change: str


def prepare(name: str, group: Group) -> Path:
    """The folder in which mutmut works."""
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for linked in ("src", "tests"):
        (folder / linked).symlink_to(ROOT / linked, target_is_directory=True)
    options = {
        "source_paths": ["src"],
        "only_mutate": [f"src/holdfast/{module}.py" for module in group.modules],
        "pytest_add_cli_args_test_selection": list(group.tests),
        "pytest_add_cli_args": ["--hypothesis-seed=0"],
        "use_git_change_detection": False,
        "timeout_constant": 3.0,
        "timeout_multiplier": 3.0,
    }
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8") + "\n[tool.mutmut]\n"
    text += "".join(f"{option} = {json.dumps(value)}\n" for option, value in options.items())
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def mutmut(folder: Path, *words: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """One command of mutmut. After ``seconds`` it is interrupted, and keeps the results that it has."""
    command = [str(Path(sys.executable).with_name("mutmut")), *words]
    environment = {**os.environ, "HOLDFAST_SMALL": "1", "PYTHONPATH": "", "NO_COLOR": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, output)


def states_of(folder: Path) -> dict[str, str]:
    """What became of each mutant, by its name."""
    output = mutmut(folder, "results", "--all", "true").stdout
    rows = (line.strip().rpartition(": ") for line in output.splitlines() if ": " in line)
    return {name: state for name, _, state in rows if name.startswith("holdfast.")}


def survivor_of(folder: Path, name: str) -> Survivor:
    """What a mutant changes: the removed lines and the added ones."""
    lines = mutmut(folder, "show", name).stdout.splitlines()
    removed, added = (
        " ".join(line[1:].strip() for line in lines if line.startswith(sign) and not line.startswith(sign * 3))
        for sign in "-+"
    )
    function = name.partition("__mutmut_")[0].replace("xǁ", "").replace("ǁ", ".").replace(".x_", ".")
    return Survivor(function, f"{removed} -> {added}")


def reasons() -> dict[Survivor, str]:
    """The baseline."""
    rows = tomllib.loads(BASELINE.read_text(encoding="utf-8")).get("survivor", [])
    return {Survivor(row["function"], row["change"]): row["reason"] for row in rows}


@dataclass
class Result:
    """What became of one group. ``states`` counts its mutants; ``survivors`` are by their names in mutmut."""

    states: Counter[str]
    survivors: dict[str, Survivor]
    output: str


def run(name: str, seconds: float) -> Result:
    """Run one group."""
    folder = prepare(name, GROUPS[name])
    output = mutmut(folder, "run", seconds=seconds).stdout
    states = states_of(folder)
    survivors = {each: survivor_of(folder, each) for each, state in states.items() if state in SURVIVED}
    return Result(Counter(states.values()), survivors, output)


def problems_of(name: str, result: Result, known: Mapping[Survivor, str]) -> list[str]:
    """Survivors without a reason, reasons without a survivor, and what was not tried."""
    own = tuple(f"holdfast.{module.replace('/', '.')}." for module in GROUPS[name].modules)
    problems = [
        f"{mutant}\n    function = {json.dumps(each.function)}\n    change = {json.dumps(each.change)}"
        for mutant, each in sorted(result.survivors.items())
        if each not in known
    ]
    untried = sum(count for state, count in result.states.items() if state not in {*SURVIVED, *NOTICED})
    if untried or not result.states:
        problems.append(f"{untried} mutants were not tried in time:\n{result.output[-2000:]}")
    else:
        problems += [
            f"{BASELINE.name}: a test notices this mutant now: {each.function}: {each.change}"
            for each in known
            if each.function.startswith(own) and each not in result.survivors.values()
        ]
    return problems


def main() -> int:
    """Print the figures of each group and every survivor without a reason; the answer is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all groups together")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    known, failed = reasons(), False
    for name in arguments.groups or GROUPS:
        began = time.monotonic()
        result = run(name, max(1.0, end - began))
        counts = ", ".join(f"{count} {state}" for state, count in result.states.most_common())
        print(f"{name}: {result.states.total()} mutants: {counts}; {time.monotonic() - began:.0f} s", flush=True)
        for problem in problems_of(name, result, known):
            failed = True
            print(f"  {problem}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
