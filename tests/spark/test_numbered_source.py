"""Whether a source is the one that the log's record names, and still has what was decided."""

from __future__ import annotations

from pathlib import Path

from holdfast.queue import Queue
from holdfast.spark.bulk.numbered_source import QueueSource


def a_queue(path: Path, messages: int) -> QueueSource:
    with Queue(path) as queue:
        for _ in range(messages):
            queue.append(b"{}")
    return QueueSource(str(path))


def test_a_queue_whose_messages_had_no_times_is_continued(tmp_path: Path) -> None:
    """Rows with ``seq`` and ``payload`` only have requests, too, and the record then has the time 0."""
    source = a_queue(tmp_path / "q", 5)
    assert source.is_continued(3, 0)
    assert not source.is_continued(6, 0)
    assert not source.is_continued(3, 1)
