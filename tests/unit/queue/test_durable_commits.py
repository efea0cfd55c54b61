"""A commit is durable by default when the sync level of the queue is "always"."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import aio
from holdfast.queue import Queue, SyncLevel, every
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.format.meta import decode_cursor, newest_slot

CASES = pytest.mark.parametrize(
    ("level", "durable", "synced"),
    [
        ("os", None, False),
        ("os", False, False),
        ("os", True, True),
        (every(messages=1), None, False),
        (every(messages=1), True, True),
        ("always", None, True),
        ("always", False, False),
        ("always", True, True),
    ],
    ids=str,
)


class CursorSyncs(LocalFiles):
    """Counts the syncs of cursors, and notes what the last one made durable."""

    def __init__(self) -> None:
        super().__init__()
        self.cursors: set[int] = set()
        self.count = 0
        self.durable_seq = 0

    def create(self, directory: int, name: str) -> int:
        return self._noted(super().create(directory, name), name)

    def open(self, directory: int, name: str, *, write: bool) -> int:
        return self._noted(super().open(directory, name, write=write), name)

    def _noted(self, file: int, name: str) -> int:
        if name.endswith(".cursor"):
            self.cursors.add(file)
        else:
            self.cursors.discard(file)
        return file

    def sync_data(self, file: int) -> None:
        super().sync_data(file)
        if file in self.cursors:
            self.count += 1
            slot = newest_slot(self.read(file, 0, self.size(file)))
            cursor = decode_cursor(slot[1]) if slot is not None else None
            self.durable_seq = cursor.committed_seq if cursor is not None else 0


@CASES
def test_a_commit_is_by_default_as_durable_as_the_queue(
    tmp_path: Path, level: SyncLevel | str, durable: bool | None, synced: bool
) -> None:
    files = CursorSyncs()
    with Queue(tmp_path / "q", sync=level, files=files, background=False) as queue, queue.consumer("c") as consumer:
        queue.append_many([b"one", b"two"])
        messages = consumer.poll()
        before = files.count
        consumer.commit(messages[0], durable=durable)
        consumer.commit(messages, durable=durable)
        consumer.commit(durable=durable)
        assert consumer.committed_seq == 2
        assert files.count - before == (3 if synced else 0)
        assert files.durable_seq == (2 if synced else 0)
        assert queue.durable_seq == (2 if synced or level != "os" else 0)


@CASES
def test_a_commit_by_a_task_is_by_default_as_durable_as_the_queue(
    tmp_path: Path, level: SyncLevel | str, durable: bool | None, synced: bool
) -> None:
    files = CursorSyncs()

    async def scenario() -> None:
        async with (
            aio.Queue(tmp_path / "q", sync=level, files=files, background=False) as queue,
            queue.consumer("c") as consumer,
        ):
            await queue.append_many([b"one", b"two"])
            messages = await consumer.poll()
            before = files.count
            await consumer.commit(messages, durable=durable)
            assert consumer.committed_seq == 2
            assert files.count - before == synced
            assert files.durable_seq == (2 if synced else 0)

    asyncio.run(scenario())


def test_a_consumer_of_a_reader_follows_the_level_of_the_reader(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append(b"one")
        for level, synced in (("os", 0), ("always", 1)):
            files = CursorSyncs()
            with (
                Queue(tmp_path / "q", read_only=True, sync=level, files=files) as reader,
                reader.consumer(level) as consumer,
            ):
                messages = consumer.poll()
                before = files.count
                consumer.commit(messages[0])
                assert files.count - before == synced
