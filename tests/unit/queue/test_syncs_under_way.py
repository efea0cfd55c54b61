"""What comes while a sync is under way, or while a queue is closed, is told durable by a later sync, or not at all."""

from __future__ import annotations

from random import Random

from holdfast.queue import Queue
from holdfast.testing.queue_world import CrashFiles

PAGE_BYTES = 4096


def opened(files: CrashFiles, **settings: object) -> Queue:
    return Queue("d/q", page_size=PAGE_BYTES, files=files, background=False, **settings)  # type: ignore[arg-type]


def test_what_a_page_got_while_its_sync_was_under_way_is_synced_again_though_it_was_closed_meanwhile() -> None:
    for seed in range(20):
        files = CrashFiles(Random(seed))
        queue = opened(files)
        queue.append(b"before")

        def others(queue: Queue = queue, files: CrashFiles = files) -> None:
            files.during_sync = None
            for number in range(60):
                queue.append(b"meanwhile %02d" % number * 9)

        files.during_sync = others
        queue.flush()
        assert queue.durable_seq == 1
        queue.append(b"after, in another page")
        queue.flush()
        assert queue.durable_seq == queue.last_seq == 62
        with opened(files.after_power_loss(Random(seed))) as found:
            assert len(list(found.read())) == 62
