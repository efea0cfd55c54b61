"""A command of Holdfast that notes which names on a disk no sync covered, and is killed before one of its operations.

    python -m tests.crash.first_start_program ROOT STATE KILL_BEFORE WORD...

``ROOT`` is a ``ForgetfulDisk``, and ``STATE`` its state, which the next program and the test go on with. Operations
count from 1; with 0 the program is not killed. Objects of a log in a directory are made in this process.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from tests.crash.first_starts import without_workers
from tests.crash.forgetful_disk import ForgetfulDisk

from holdfast.cli.main import main

KILLED = 137


def run(root: str, state: str, kill_before: str, *words: str) -> int:
    """Run the command, and return its exit code."""
    disk = ForgetfulDisk(Path(root))
    if Path(state).exists():
        disk.resume(Path(state))

    def before() -> None:
        if disk.operations + 1 == int(kill_before):
            os._exit(KILLED)

    with without_workers(), disk.recorded(before, partial(disk.save, Path(state))):
        return main(words)


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
