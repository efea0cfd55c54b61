"""Killed programs that use ``persist``: each item arrives at least once, in order, and at most one comes again.

The program consumes an item by asking for the next one, so a kill leaves one item at most that was given and not
acknowledged.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
KILLS = 100 if PROVE else 3
ITEMS = 1_000_000 if PROVE else 3_000
SEED = int(os.environ.get("HOLDFAST_CRASH_SEED", "20250101"))
PROGRAM = Path(__file__).parent / "persist_program.py"
RecordProperty = Callable[[str, object], None]

pytestmark = pytest.mark.timeout(3_600 if PROVE else 120)


def start(directory: Path, kind: str, max_bytes: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(directory), str(ITEMS), str(max_bytes), kind],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )


def given(program: subprocess.Popen[bytes], kill_after: int | None) -> list[int]:
    """The items that the program was given, in order; it is killed when it has said so of this many."""
    assert program.stdout is not None
    with program.stdout as pipe:
        if kill_after is None:
            data = pipe.read()
        else:
            data = pipe.read(8 * kill_after)
            program.kill()
            data += pipe.read()
    code = program.wait()
    assert code in ((0,) if kill_after is None else (0, -9)), f"the program ended with {code}"
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) - len(data) % 8, 8)]


@pytest.mark.parametrize("kind", ["thread", "executor", "asyncio"])
def test_a_killed_program_misses_no_item_and_repeats_what_it_had_not_acknowledged(
    tmp_path: Path, kind: str, record_property: RecordProperty
) -> None:
    random = Random(f"{SEED}/{kind}")
    seen = repeats = kills = 0
    killed_runs = 0
    while kills < KILLS:
        # The counts are drawn so that most of the items have passed after the last kill.
        kill_after = random.randint(0, max(0, 2 * (ITEMS - seen) // (KILLS - kills + 1)))
        program = start(tmp_path, kind, random.choice((1, 2_000, 100_000)))
        found = given(program, kill_after)
        killed_runs += program.returncode == -9
        kills += 1
        if found:
            # It may have been killed after asking for the next item, and before it was given that.
            assert found[0] in (seen - 1, seen), f"kill {kills}: after item {seen - 1} comes {found[0]}"
            assert found == list(range(found[0], found[0] + len(found))), f"kill {kills}: not in order"
            repeats += found[0] < seen
            seen = found[-1] + 1
    last = given(start(tmp_path, kind, 100_000), None)
    assert not last or last[0] in (seen - 1, seen)
    assert last == list(range(last[0], ITEMS)) if last else seen == ITEMS
    repeats += bool(last) and last[0] < seen
    assert repeats <= kills
    assert killed_runs > KILLS // 2
    pages = sum(path.suffix == ".page" for path in tmp_path.iterdir())
    assert pages < 10, f"{pages} pages are left of consumed items"
    record_property("persist_kills", killed_runs)
    record_property("persist_items", ITEMS)
    record_property("persist_repeats", repeats)
