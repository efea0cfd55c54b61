"""A sync whose mark is left for later: durable all the same, and the mark comes when it is asked for."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.queue import CrashFiles

from holdfast.queue.format.meta import WritePosition, decode_write_position, newest_slot
from holdfast.queue.stores_log import StoresLog as Queue

PAGE_BYTES = 4096


def newest_mark(files: CrashFiles) -> WritePosition:
    slot = newest_slot(files.contents("d")["q-writeMeta"])
    mark = decode_write_position(slot[1]) if slot else None
    assert mark is not None
    return mark


def marked(files: CrashFiles) -> int:
    """Before which number everything is durable, as the newest mark says."""
    return newest_mark(files).durable.next_seq


@pytest.fixture
def files() -> CrashFiles:
    return CrashFiles(Random(1))


def test_the_mark_is_behind_the_sync_until_it_is_written(files: CrashFiles) -> None:
    queue = Queue("d/q", page_size=PAGE_BYTES, files=files, background=False)
    queue.append(b"a")
    queue.flush()
    assert marked(files) == 2
    queue.append(b"b")
    queue.flush_data()
    assert (queue.durable_seq, marked(files)) == (2, 2)
    queue.record_position()
    assert marked(files) == 3
    queue.append(b"c")
    queue.flush_data()
    queue.append(b"d")
    queue.flush()
    assert marked(files) == 5
    queue.append(b"e")
    queue.flush_data()
    queue.flush()
    assert marked(files) == 6
    queue.append(b"f")
    queue.flush_data()
    queue.close()
    assert marked(files) == 7
    queue.record_position()
    mark = newest_mark(files)
    assert mark.clean


def test_only_the_flush_that_says_so_leaves_its_mark(files: CrashFiles) -> None:
    queue = Queue("d/q", page_size=PAGE_BYTES, files=files, background=False, sync="always")
    queue.append(b"a")
    queue.flush_data()
    queue.append(b"b")
    assert marked(files) == 3


def test_a_sync_that_closes_a_page_is_marked_at_once(files: CrashFiles) -> None:
    queue = Queue("d/q", page_size=PAGE_BYTES, files=files, background=False)
    for number in range(1, 100):
        queue.append(b"x" * 100)
        page = queue.pages.numbers()[-1]
        queue.flush_data()
        if page > 1:
            assert marked(files) == number + 1
            return
    pytest.fail("no page was closed")


@pytest.mark.parametrize("seed", range(20))
def test_what_was_synced_without_its_mark_survives_lost_power_and_a_kill(seed: int) -> None:
    files = CrashFiles(Random(seed))
    queue = Queue("d/q", page_size=PAGE_BYTES, files=files, background=False)
    random = Random(seed)
    for number in range(60):
        queue.append(b"%d" % number * 50)
        queue.flush_data()
        if random.random() < 0.2:
            queue.record_position()
    for image in (files.after_power_loss(Random(seed)), files.after_kill(Random(seed))):
        with Queue("d/q", page_size=PAGE_BYTES, files=image, background=False) as found:
            assert [message.payload for message in found.read()] == [b"%d" % number * 50 for number in range(60)]


def test_writing_a_mark_that_nobody_owes_does_nothing(files: CrashFiles) -> None:
    queue = Queue("d/q", page_size=PAGE_BYTES, files=files, background=False)
    queue.append(b"a")
    queue.flush()
    operations: list[str] = []
    files.before = lambda operation: operations.append(str(operation))
    queue.record_position()
    assert operations == []
    queue.close()
    queue.record_position()
