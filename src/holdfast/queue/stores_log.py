"""The queue as the log of the message stores: a flush whose write position is recorded later."""

from __future__ import annotations

from holdfast.queue.core import QueueCore
from holdfast.queue.format.page import PAGE_BYTES_MAX


class StoresLog(QueueCore):
    """A queue that can send replies between a sync and its record. Every page has the whole page size."""

    _first_page_bytes = PAGE_BYTES_MAX

    def flush_data(self) -> None:
        """As ``flush``, without recording the write position: ``record_position`` or the next ``flush`` does that. The
        record tells readers in other processes and the next opening how far the log is durable.
        """
        self.writer.flush(record=False)

    def record_position(self) -> None:
        """Record the write position that ``flush_data`` left, if any."""
        if self._writer is not None:
            self._writer.record_position()
