"""A killed service of message stores: what was answered is there, and what was acknowledged does not come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.crash.stores_writer import MAP, MAPS, PAGE_BYTES, STORE, body_of

from holdfast.stores.repair.backup import verify
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.ports import BLOCK_MESSAGES

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
KILLS = 20 if PROVE else 3
SEED = int(os.environ.get("HOLDFAST_CRASH_SEED", "20250101"))
WRITER = Path(__file__).parent / "stores_writer.py"
RecordProperty = Callable[[str, object], None]

pytestmark = pytest.mark.timeout(1_800 if PROVE else 120)


class Told:
    """What all writers together were answered."""

    def __init__(self) -> None:
        self.published = 0
        self.asked: set[int] = set()
        self.acknowledged: set[int] = set()
        self.values: dict[str, int] = {}

    def hear(self, line: bytes) -> None:
        told = json.loads(line)
        if "published" in told:
            assert told["result"] == "Published"
            self.published = max(self.published, told["published"])
        elif "asking" in told:
            self.asked.update(seq for first, last in told["asking"] for seq in range(first, last + 1))
        elif "acknowledged" in told:
            self.acknowledged.update(seq for first, last in told["acknowledged"] for seq in range(first, last + 1))
        elif "key" in told:
            self.values[told["key"]] = max(told["value"], self.values.get(told["key"], 0))


def work_until_killed(directory: Path, persistence: str, seed: int, random: Random, told: Told) -> None:
    """Start a writer, kill it after so many answers, and hear all that it said. Its values rise with ``seed``."""
    writer = subprocess.Popen(
        [sys.executable, str(WRITER), str(directory), persistence, str(seed)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    assert writer.stdout is not None
    with writer.stdout as pipe:
        for _ in range(random.randint(1, 600)):
            told.hear(pipe.readline())
        writer.kill()
        for line in pipe.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                told.hear(line)
    writer.wait()


def check_stores(directory: Path, told: Told) -> None:
    """Open what the killed process left, as the next one would."""
    storage = Storage.open(str(directory), page_bytes=PAGE_BYTES)
    try:
        storage.state.check()
        last = storage.state.stores[STORE].counts.next_seq - 1
        assert last >= told.published
        for number in range(last // BLOCK_MESSAGES + 1):
            first, end = number * BLOCK_MESSAGES, min(last, (number + 1) * BLOCK_MESSAGES - 1)
            kept = [one.seq for one in storage.messages.read(STORE, max(1, first), end)]
            missing = set(range(max(1, first), end + 1)) - set(kept)
            assert missing <= told.asked, "a message that nobody acknowledged is there"
            assert not told.acknowledged & set(kept), "what was acknowledged does not come back"
            for one in storage.messages.deliveries(STORE, [(seq, seq, 1) for seq in kept]):
                assert one.body == body_of(one.seq)
        for key, value in told.values.items():
            entry = storage.index.entries.get(MAPS, MAP, key)
            assert entry is not None
            found = storage.messages.message(MAPS, entry.revision)
            assert found is not None
            assert int(found[0].body) >= value, "a value that was answered is there, or a later one"
    finally:
        storage.close()


@pytest.mark.parametrize("persistence", ["sync", "async"])
def test_a_killed_service_loses_nothing_that_it_answered(
    tmp_path: Path, persistence: str, record_property: RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    random, told = Random(f"{SEED}/{persistence}"), Told()
    for round_number in range(KILLS):
        work_until_killed(tmp_path / "stores", persistence, round_number, random, told)
        check_stores(tmp_path / "stores", told)
    assert verify(str(tmp_path / "stores")).stores == 2
    assert told.published
    assert told.acknowledged
    with capsys.disabled():
        print(
            f"\n{persistence}: {KILLS} kills, {told.published} messages confirmed, 0 lost; "
            f"{len(told.acknowledged)} acknowledged, 0 came back; {len(told.values)} keys of a map"
        )
    record_property(f"stores_kills_{persistence}", KILLS)
