"""The cluster of the example: a process that ends by itself ends the example, with what it printed last."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from examples.cluster.standalone import Member, MemberDied, watched

LIVES = "import sys, time; print('ready', flush=True); time.sleep(600)"
DIES = "import sys; print('26/11/29 ERROR Worker: no memory', flush=True); print('the last line'); sys.exit(7)"


def member(name: str, program: str, folder: Path) -> Member:
    return Member(name, [sys.executable, "-c", program], {}, folder)


def test_a_process_that_dies_ends_the_example_with_the_end_of_its_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    members = [member("master", LIVES, tmp_path), member("two", DIES, tmp_path)]
    end = r"two ended with exit code 7; its log ends with:[^$]*the last line"
    with pytest.raises(MemberDied, match=end), watched(members):
        threading.Event().wait(60)
    assert "two: 26/11/29 ERROR Worker: no memory" in capfd.readouterr().err
    assert all(each.process.poll() is not None for each in members), "the others are stopped"


def test_processes_that_live_are_stopped_at_the_end_without_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    members = [member("master", LIVES, tmp_path), member("one", LIVES, tmp_path)]
    with watched(members):
        assert all(each.process.poll() is None for each in members)
    assert all(each.process.poll() is not None for each in members)
    assert capfd.readouterr().err == ""
    with pytest.raises(ValueError, match="of the example"), watched([member("one", LIVES, tmp_path)]):
        raise ValueError("of the example itself")
