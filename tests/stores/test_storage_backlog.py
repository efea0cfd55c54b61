"""A backlog of many times the memory: what is held does not grow with it, and neither does a start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.stores.backlog_process import BODY_BYTES, LOG_BYTES, MEMORY_BYTES

from holdfast.stores.checkpoints import OVERDUE
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.commands import Attach, Deliver, Delivered

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
PROCESS = Path(__file__).parent / "backlog_process.py"
TIMES = 500 if PROVE else 15
"""How many times the memory the larger backlog is."""

pytestmark = pytest.mark.timeout(1_800 if PROVE else 120)


def pile_up(directory: Path, messages: int) -> int:
    """Leave a backlog behind, as a killed process does. Returns by how many bytes its memory grew."""
    found = subprocess.run(
        [sys.executable, str(PROCESS), str(directory), str(messages)],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    grown: int = json.loads(found.stdout)["grown_bytes"]
    return grown


def test_neither_memory_nor_a_start_grows_with_the_backlog(tmp_path: Path) -> None:
    messages = MEMORY_BYTES * TIMES // BODY_BYTES // 100 * 100
    grown = pile_up(tmp_path / "large", messages)
    assert grown < MEMORY_BYTES * 8, "the bound, what waits for its checkpoint, and what the process itself took"
    storage = Storage.open(str(tmp_path / "large"), memory_bytes=MEMORY_BYTES)
    try:
        assert storage.log_bytes < 2 * OVERDUE * LOG_BYTES, (
            "what a start applies is what came since the last checkpoint"
        )
        storage.state.apply(Attach(storage.last_ms, "orders", "one", "s"))
        seen = 0
        while seen < messages:
            result = storage.state.apply(Deliver(storage.last_ms, "orders", "one", "s", 1_000)).result
            assert isinstance(result, Delivered)
            found = storage.messages.deliveries("orders", result.runs)
            assert [one.seq for one in found] == list(range(seen + 1, seen + 1 + len(found)))
            assert all(len(one.body) == BODY_BYTES for one in found)
            seen += len(found)
            if len(found) < 1_000:
                break
        assert seen == 256, "a subscriber's window is full"
    finally:
        storage.close()
