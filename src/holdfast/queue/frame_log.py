"""The queue as the log of the message stores: a sync whose mark is written later, and the sizes of pages.

Owns: what the stores alone need of a queue. Does not own: everything else (``queue``).
"""

from __future__ import annotations

from holdfast.queue.queue import Queue

__all__ = ["FrameLog"]


class FrameLog(Queue):
    """A ``Queue`` for the message stores. Not public: ``holdfast.stores.message_log`` and the simulation use it."""

    def flush_unmarked(self) -> None:
        """As ``flush``, but leave the mark to ``write_mark`` or the next ``flush``, so that responses go out first.

        By the mark the next start tells damage at the very end from the end, and readers in other processes know how
        far the log is durable. *Raises*: ``Closed`` after a failed sync.
        """
        (self._writer or self._refuse_all()).flush(mark=False)

    def write_mark(self) -> None:
        """Write the mark that ``flush_unmarked`` has left, if one is left."""
        writer = self._writer
        if writer is not None:
            writer.write_mark()

    def page_bytes(self) -> list[int]:
        """The bytes of each page file, oldest first."""
        pages = self.pages
        return [pages.port.size_of(pages.directory, pages.names.page(number)) for number in pages.numbers()]
