"""Message stores on a small file system that fills up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.mount_namespace import mount_namespace

STORIES = Path(__file__).parent / "stores_small_disk.py"


def tell(mount: Path, story: str) -> dict[str, Any]:
    """Run a story in a mount namespace of its own, so that its file system ends with it."""
    found = subprocess.run(
        [*mount_namespace(), sys.executable, str(STORIES), str(mount), story],
        stdout=subprocess.PIPE,
        timeout=110,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    happened: dict[str, Any] = json.loads(found.stdout)
    return happened


def test_at_the_limit_publishers_wait_and_consumers_free_the_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    happened = tell(tmp_path, "limit")
    assert happened["refusal"] == "disk_limit"
    assert 0.5 < happened["fraction"] < 0.75, "the limit is soft: a page is taken as a whole"
    assert happened["acknowledged"] == happened["last"]
    assert happened["bodies"] == [10_000]
    assert happened["again"] == happened["last"] + 1
    assert happened["kept"] == 1
    with capsys.disabled():
        print(
            f"\nat the limit: refused with {happened['refusal']} at {happened['fraction']:.0%} of the disk, "
            f"{happened['last']} messages confirmed, {happened['acknowledged']} acknowledged, publishing goes on"
        )


def test_a_full_disk_ends_the_service_and_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    happened = tell(tmp_path, "full")
    assert (happened["answer"], happened["cause"]) == ("outcome_unknown", "disk_full")
    assert happened["failures"] == 1
    assert happened["found"] >= happened["last"] > 100
    assert happened["again"] == happened["found"] + 1
    assert happened["kept"] == happened["again"]
    with capsys.disabled():
        print(
            f"\na full disk: ended with {happened['cause']}, {happened['last']} messages confirmed, "
            f"{happened['found']} found, 0 lost"
        )
