"""Run the lanes of tests in four groups at the same time, each group in a process of its own.

    python scripts/run_tests.py unit integration spark -- -m "not matrix"

Arguments: the lanes, folders of ``tests/``; after ``--`` what pytest gets. Prints the lines of each group as they come,
with the group's name, and at the end the slowest tests of all groups and every test that failed. The exit code is 0 if
every group passed.

Spark has a group of its own: it brings a Java process, threads and Python workers that no other lane should meet. Tests
that start processes wait most of the time, so they run in two groups, next to the lanes that compute. The lane
``stores`` runs in the shorter one of the two.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROCESS_LANES = ("integration", "crash")
MESSAGES = re.compile(r"test_(persist|queue|store|worker)")
"""The test files of queues and message stores among those that start processes; the others belong to the log."""
WITHOUT_SESSION = {
    "log": re.compile(r"test_(scan|delta_output)"),
    "computing": re.compile(r"test_(live_ingest|live_options|stream_reader|plan|buckets|joined_bodies)"),
    "messages": re.compile(
        r"test_(command_signals|example|increments|ingest_sources|lost_acknowledgement|refused_checkpoint|numbered_source"
        r"|options_everywhere|pipeline_cli|placement|sink_protocol|sink_values|truncated_ingest|typed_columns)"
    ),
}
"""Test files of Spark that need no Spark session in their own process, and the group that they run in."""
YIELDING = ("messages",)
"""It ends first, and leaves more of the processor to the longer ones. Not `computing`: it needs the most of it."""
SPARK_FLAGS = ("--timeout=420",)
WITHOUT_PLUGIN = ("-p", "no:schemathesis")
"""It imports for half a second what one test file needs, which imports it by itself."""
SLOWEST = 25
LAST_LINES = 60


def groups_of(lanes: list[str]) -> dict[str, list[str]]:
    """The folders and files of each group that has any."""
    unknown = [lane for lane in lanes if not (ROOT / "tests" / lane).is_dir()]
    if unknown:
        sys.exit(f"no such lane: {', '.join(unknown)}; a lane is a folder of tests/")
    found: dict[str, list[str]] = {}
    for lane in lanes:
        if lane in (*PROCESS_LANES, "spark"):
            for file in sorted((ROOT / "tests" / lane).glob("test_*.py")):
                if lane == "spark":
                    group = next((name for name, files in WITHOUT_SESSION.items() if files.match(file.name)), "spark")
                else:
                    group = "messages" if MESSAGES.match(file.name) else "log"
                found.setdefault(group, []).append(f"tests/{lane}/{file.name}")
        else:
            found.setdefault("messages" if lane == "stores" else "computing", []).append(f"tests/{lane}")
    return found


def start(group: str, paths: list[str], flags: list[str], durations: Path) -> subprocess.Popen[str]:
    """One pytest process."""
    command = [sys.executable, "-m", "pytest", "-q", *WITHOUT_PLUGIN, *paths]
    if group == "spark":
        command += SPARK_FLAGS
    if group in YIELDING:
        command = ["nice", "-n", "3", *command]
    environment = {**os.environ, "HOLDFAST_DURATIONS": str(durations / f"{group}.json"), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [*command, *flags], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def show(group: str, process: subprocess.Popen[str], width: int, failures: list[str]) -> None:
    """Print the group's lines until it ends, and keep those that name a failure.

    A group that ended before its summary (a test exceeded its time, or the interpreter died) leaves its last lines.
    """
    assert process.stdout is not None, "it was opened as a pipe"
    named: list[str] = []
    last: deque[str] = deque(maxlen=LAST_LINES)
    for line in process.stdout:
        if line.startswith(("FAILED ", "ERROR ")):
            named.append(line)
        last.append(f"{group:{width}} {line}")
        sys.stdout.write(last[-1])
        sys.stdout.flush()
    failures += named if named or process.wait() == 0 else last


def show_slowest(durations: Path) -> None:
    """The slowest tests of all groups, with the group's number of tests and seconds."""
    tests: list[tuple[float, str]] = []
    for path in sorted(durations.glob("*.json")):
        found = json.loads(path.read_text())
        print(f"{path.stem}: {len(found)} tests, {sum(found.values()):.0f} s in tests")
        tests += [(seconds, test) for test, seconds in found.items()]
    print(f"the {SLOWEST} slowest of {len(tests)} tests:")
    for seconds, test in sorted(tests, reverse=True)[:SLOWEST]:
        print(f"{seconds:7.1f} s  {test}")


def main() -> int:
    """Run the groups and wait for all of them."""
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    groups = groups_of(arguments[:cut])
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        durations = Path(folder)
        processes = {group: start(group, paths, arguments[cut + 1 :], durations) for group, paths in groups.items()}
        width = max(map(len, processes), default=0)
        failures: list[str] = []
        threads = [threading.Thread(target=show, args=(*each, width, failures)) for each in processes.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        codes = {group: process.wait() for group, process in processes.items()}
        show_slowest(durations)
    sys.stdout.writelines(failures)
    failed = [group for group, code in codes.items() if code != 0]
    print(f"{'failed: ' + ', '.join(failed) if failed else 'passed'}, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
