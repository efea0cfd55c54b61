"""The embedded queue's format v1 is read for ever: golden files that nothing writes any more."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.compat.write_queue_v1 import HERE, PAGE_BYTES, messages

from holdfast.queue import Queue
from holdfast.queue.files.meta_files import read_identity, read_write_position
from holdfast.queue.queue import core_of

DIGEST = "51472ee79ea8c923a5e08a3b2c4d9e1f61d5dfbf977a75801647d491266deda5"


def digest(folder: Path) -> str:
    """Of every file with its name, so that none is changed, added or lost unseen."""
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        whole.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def test_the_golden_files_are_the_ones_that_were_released() -> None:
    assert digest(HERE) == DIGEST


def test_every_message_of_the_golden_queue_is_read() -> None:
    with Queue(HERE / "golden", read_only=True) as queue:
        found = list(queue.read())
        assert [message.payload for message in found] == messages()
        assert [message.seq for message in found] == list(range(1, len(found) + 1))
        assert found[0].time == datetime(2026, 1, 1, tzinfo=UTC)
        for message in found:
            (first,) = [m for m, _ in zip(queue.read(seq=message.seq), range(1), strict=False)]
            assert first == message
            since = [m.seq for m in queue.read(since=message.time)]
            assert since == [m.seq for m in found if m.time_ns >= message.time_ns]


def test_a_writer_goes_on_where_the_golden_queue_ends(tmp_path: Path) -> None:
    shutil.copytree(HERE, tmp_path / "copy")
    with Queue(tmp_path / "copy" / "golden", page_size=PAGE_BYTES) as queue:
        assert queue.append(b"more") == len(messages()) + 1
        assert [message.payload for message in queue.read()] == [*messages(), b"more"]


def test_the_golden_metadata_is_understood() -> None:
    with Queue(HERE / "golden", read_only=True) as queue:
        identity, mark = read_identity(core_of(queue).pages), read_write_position(core_of(queue).pages)
        assert identity is not None
        assert (identity.page_bytes, identity.checksum_id) == (PAGE_BYTES, 1)
        assert mark is not None
        assert mark.clean
        assert mark.end.next_seq == mark.durable.next_seq == len(messages()) + 1


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_the_same_calls_write_the_same_bytes_whatever_the_hash_seed(tmp_path: Path, seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "tests.compat.write_queue_v1", str(tmp_path / "written")]
    subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[2])
    assert digest(tmp_path / "written") == DIGEST
