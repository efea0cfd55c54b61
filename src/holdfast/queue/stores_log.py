"""The queue as the log of the message stores: a flush whose write position is recorded later."""

from __future__ import annotations

from holdfast.queue.format.page import PAGE_BYTES_MAX
from holdfast.queue.queue import Queue


class StoresLog(Queue):
    """A queue that can send replies between a sync and its record. The arguments are those of ``Queue``; every page has
    the whole page size, because compaction counts in pages."""

    _first_page_bytes = PAGE_BYTES_MAX

    def flush_data(self) -> None:
        """As ``flush``, without recording the write position: ``record_position`` or the next ``flush`` does that.

        With the record, the next opening can tell damage at the end from the end, and readers in other processes know
        how far the log is durable.
        """
        (self._writer or self._refuse_all()).flush(record=False)

    def record_position(self) -> None:
        """Record the write position that ``flush_data`` left, if any."""
        writer = self._writer
        if writer is not None:
            writer.record_position()
