"""Both marks gone and a page damaged: what is missing is told, and nothing that verifies is cut.

No crash takes both marks, so without them nobody knows whether a hole is the torn tail of a crash or damage. To take it
for a torn tail would set whole durable pages aside without a word.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.worlds.queue import CrashFiles

from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.format.meta import newest_slot

PAGE_BYTES = 4096
LAST = 60


def a_log(path: Path) -> None:
    with Queue(path, page_size=PAGE_BYTES, background=False) as queue:
        for number in range(1, LAST + 1):
            queue.append(b"%d" % number * 100)


def damage(path: Path, page: int, marks: str) -> None:
    file = path.with_name(f"q-{page}.page")
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    mark = path.with_name("q-writeMeta")
    if marks == "deleted":
        mark.unlink()
    else:
        mark.write_bytes(b"" if marks == "emptied" else bytes(1024))


@pytest.mark.parametrize("marks", ["deleted", "emptied", "zeroed"])
@pytest.mark.parametrize("page", [1, 2, 3])
def test_a_hole_is_told_and_all_that_verifies_stays(tmp_path: Path, page: int, marks: str) -> None:
    path = tmp_path / "q"
    a_log(path)
    pages = sorted(file.name for file in tmp_path.glob("*.page"))
    assert len(pages) == 4
    damage(path, page, marks)
    for read_only in (True, False):
        told: list[Gap | Trimmed] = []
        with Queue(path, page_size=PAGE_BYTES, read_only=read_only) as queue:
            found = [message.seq for message in queue.read(damage=told.append)]
            assert [type(report) for report in told] == [Gap]
            missing = {seq for gap in told if isinstance(gap, Gap) for seq in range(gap.first, gap.last + 1)}
            assert len(missing) == 1
            assert found == sorted(set(range(1, LAST + 1)) - missing)
            assert queue.last_seq == LAST
    assert list(tmp_path.glob("*.torn")) == []


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_takes_the_marks_only_with_every_page(seed: int) -> None:
    """They are on disk before the first page is made."""
    images: list[CrashFiles] = []
    files = CrashFiles(Random(seed))
    files.before = lambda _: images.append(files.after_power_loss(Random(seed)))
    queue = Queue("d/q", page_size=PAGE_BYTES, files=files, background=False)
    for number in range(40):
        queue.append(b"%d" % number * 100)
    with_pages = 0
    for image in images:
        contents = image.contents("d")
        if any(name.endswith(".page") for name in contents):
            with_pages += 1
            assert newest_slot(contents["q-writeMeta"]) is not None
    assert with_pages > 10
