"""The scheduler's hint changes nothing but the slice, and is nothing where the system does not know it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.objects.directory import time_slice

IN_A_PROCESS = """
import os
from holdfast.objects.directory.time_slice import COMPUTING_NS, WAITING_NS, ask_for_time_slice, time_slice
nice, policy = os.nice(0), os.sched_getscheduler(0)
agreed = ask_for_time_slice(COMPUTING_NS)
assert not agreed or time_slice() == COMPUTING_NS
assert ask_for_time_slice(WAITING_NS) == agreed
assert (os.nice(0), os.sched_getscheduler(0)) == (nice, policy)
print(agreed)
"""


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split(".")[:2])


def test_a_slice_is_what_was_asked_for_and_nothing_else_changes() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_PROCESS], capture_output=True, text=True, timeout=60, check=True)
    knows_it = os.uname().sysname == "Linux" and os.uname().machine in ("x86_64", "aarch64") and _kernel() >= (6, 12)
    assert done.stdout.strip() == str(knows_it)


def test_an_unknown_machine_has_no_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slice, "_NUMBERS", {})
    assert time_slice.time_slice() is None
    assert not time_slice.ask_for_time_slice(time_slice.COMPUTING_NS)
