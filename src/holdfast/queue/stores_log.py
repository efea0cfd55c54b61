"""The queue as the log of the message stores: what they need of it, and no program.

Owns: a flush that leaves its mark for later. Does not own: the queue (``queue``).

Failure model: that of the queue.
"""

from __future__ import annotations

from holdfast.queue.format.page import PAGE_BYTES_MAX
from holdfast.queue.queue import Queue

__all__ = ["StoresLog"]


class StoresLog(Queue):
    """A queue whose durability and its mark are two steps. The arguments are those of ``Queue``; pages have their whole
    size from the first one on, because compaction counts in pages."""

    _first_page_bytes = PAGE_BYTES_MAX

    def flush_unmarked(self) -> None:
        """As ``flush``, for a caller that has an answer to send first.

        The mark is left to ``write_mark``, or to the next ``flush``: by it the next start tells damage at the very end
        from the end, and readers in other processes know how far the log is durable.
        """
        (self._writer or self._refuse_all()).flush(mark=False)

    def write_mark(self) -> None:
        """Write the mark that ``flush_unmarked`` has left, if one is left."""
        writer = self._writer
        if writer is not None:
            writer.write_mark()
