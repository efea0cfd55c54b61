"""Stores that live in the log, on a machine whose disk fills up: it refuses publishes, and the log goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.mount_namespace import mount_namespace

STORIES = Path(__file__).parent / "full_disk_stories.py"


def tell(directory: Path, story: str) -> dict[str, Any]:
    """Run a story in a mount namespace of its own, so that its file system ends with it."""
    found = subprocess.run(
        [*mount_namespace(), sys.executable, str(STORIES), str(directory), story],
        stdout=subprocess.PIPE,
        timeout=110,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    happened: dict[str, Any] = json.loads(found.stdout)
    return happened


def test_a_leader_with_a_full_disk_refuses_publishes_and_loses_nothing(tmp_path: Path) -> None:
    happened = tell(tmp_path, "leader")
    assert happened["refusal"] == [507, "disk_limit"]
    assert happened["confirmed_while_full"] > 0
    assert happened["kept_back"] > 0 and happened["kept_back_after"] == 0
    assert (happened["taken"], happened["while_full"]) == (5, True)
    assert happened["commit"] == 200
    refused = happened["with_part"]
    assert (refused["reason"], refused["refused"]["code"]) == ("store_refused", "disk_limit")
    assert happened["seconds"] < 10
    assert happened["events"] == {"stores_disk_full": 1, "stores_disk_has_room": 1, "stores_failed": 0}
    assert (happened["exit"], happened["is_equal"], happened["all_there"]) == (0, True, True)


@pytest.mark.matrix  # the test before shows a full disk
def test_a_stop_and_a_start_on_a_full_disk_lose_nothing(tmp_path: Path) -> None:
    """The next leader waits for space with the stores alone: keys are committed meanwhile."""
    happened = tell(tmp_path, "stop")
    assert (happened["refusal"], happened["exit"]) == ([507, "disk_limit"], 0)
    assert happened["seconds"] < 10
    assert (happened["commit"], happened["asked"], happened["warnings"]) == (200, [503, "overloaded"], 1)
    assert happened["waited"] < 10
    assert (happened["after"], happened["all_there"], happened["stopped"], happened["is_equal"]) == (200, True, 0, True)


@pytest.mark.matrix
def test_a_machine_without_files_leads_on_a_full_disk_and_opens_the_stores_later(tmp_path: Path) -> None:
    happened = tell(tmp_path, "start")
    assert happened == {"commit": 200, "asked": [503, "overloaded"], "all_there": True}


@pytest.mark.matrix  # the first test shows space that comes back
def test_a_standby_with_a_full_disk_follows_again_when_there_is_space(tmp_path: Path) -> None:
    happened = tell(tmp_path, "standby")
    assert happened == {"running": True, "warnings": 1, "followed": True, "all_there": True}
