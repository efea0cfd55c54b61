"""How far a log is durable: what a sync has to sync, what one has reached, and what the marks say of it.

Owns: the closed pages that wait for their sync, the durable place, the marks and when both slots are whole. Does not
own: who syncs and when (``durability``), the end of the log (``log_tail``), the file of the marks (``mark_file``).

Failure model: ``OSError`` from the port. A mark is a hint: where one cannot be written, the messages are in the log all
the same, and no error may say that they are not. Only ``announce`` and ``close_cleanly`` need theirs, and raise. A sync
of the directory that fails is as any that fails (``durability``): ``Closed``, and no clean mark any more.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.queue.format.frame import SEQ_MASK
from holdfast.queue.format.page_header import HEADER_BYTES
from holdfast.queue.format.write_mark import DurableMark, mark_value
from holdfast.queue.log.durability import SyncTarget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.queue.files.mark_file import MarkFile
    from holdfast.queue.files.port import FilePort
    from holdfast.queue.format.write_mark import WriteMark
    from holdfast.queue.log.log_tail import LogTail
    from holdfast.queue.log.opening import LogEnd

__all__ = ["SyncProgress"]


class SyncProgress:
    """``durable`` is the place before which everything is on disk. ``closing`` are the files of pages that are closed
    by a SEAL and not synced yet, oldest first; ``synced_bytes`` counts as the tail's ``written_bytes`` does. While it
    is ``silent``, the marks do not say yet, durably, that the queue is open. With ``marks_at_once`` each sync writes a
    mark, else only one that closes pages does, and ``write_owed_mark`` the others. ``sync_names`` syncs the directory,
    and raises ``Closed`` where that fails."""

    __slots__ = (
        "_end_place",
        "_mark_is_owed",
        "_marks",
        "_port",
        "_sync_names",
        "_tail",
        "closing",
        "durable",
        "marks_at_once",
        "silent",
        "synced_bytes",
    )

    def __init__(
        self,
        port: FilePort,
        tail: LogTail,
        end: LogEnd,
        mark: WriteMark | None,
        marks: MarkFile,
        sync_names: Callable[[], None],
    ) -> None:
        self._port = port
        self._tail = tail
        self._marks = marks
        self.silent = True
        self.marks_at_once = True
        self._mark_is_owed = False
        place = DurableMark(
            end.page, end.header.salt if end.header else 0, end.position, end.next_seq, end.last_time_ns
        )
        self._end_place = place
        # The page made ahead will be used: the one who made it may have been killed before its name was durable.
        self._sync_names = None if end.clean or not (end.resume and end.doubtful) else sync_names
        self.durable = mark.durable if mark is not None and end.resume and not mark.clean else place
        self.closing: list[int] = []
        self.synced_bytes = 0

    # ---- syncs ------------------------------------------------------------------------------------------------------

    def take(self, sealed_only: bool) -> SyncTarget:
        """What a sync that begins now has to sync: the closed pages, and the open one unless told otherwise."""
        tail = self._tail
        with tail.lock:
            closed, page, place = list(self.closing), tail.page, tail.place
            if page is None or place is None:
                return SyncTarget(closed, None, tail.next_seq, None)
            if sealed_only:
                header = page.header
                place = DurableMark(header.number, header.salt, HEADER_BYTES, tail.base_seq, header.base_time_ns)
                return SyncTarget(closed, None, tail.base_seq, (place, self.synced_bytes))
            return SyncTarget(closed, page.file, tail.next_seq, (place, tail.written_bytes))

    def reached(self, target: SyncTarget) -> None:
        """A sync has succeeded."""
        with self._tail.lock:
            for file in target.closed:
                if file in self.closing:
                    self.closing.remove(file)
                    self._port.close(file)
            if target.place is not None and target.next_seq >= self.durable.next_seq:
                self.durable, self.synced_bytes = target.place
            self._mark_is_owed = True
            if self.marks_at_once or target.closed:
                self._write_owed_mark()

    def write_owed_mark(self) -> None:
        """Write the mark that a sync has left, if one has."""
        if self._mark_is_owed:
            with self._tail.lock:
                if self._mark_is_owed:
                    self._write_owed_mark()

    def _write_owed_mark(self) -> None:
        self._mark_is_owed = False
        # A hint: everything up to the target is durable, with or without it.
        with suppress(OSError):
            self.write_mark()

    def poison(self) -> None:
        """A sync has failed: the mark says that the page cache is not to be trusted. Where even that cannot be written,
        there is nothing else to do, and the failure itself is told to every caller."""
        with self._tail.lock:
            self._marks.distrust_cache()
            self._tail.close_quick_way()
            with suppress(OSError):
                self.write_mark()

    @property
    def pages_safe_below(self) -> int:
        """Pages below this one may be removed: the page after each of them is begun durably, so that the log's first
        page always tells its base."""
        durable = self.durable
        return durable.page if durable.position > HEADER_BYTES else durable.page - 1

    # ---- marks ------------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Before the first frame, and before the first page: both slots say durably that the queue is open.

        Were a clean mark left on disk, a crash could bring it back together with frames from behind it. And once both
        are whole, no crash takes both. Also the name of a page that a killed process made ahead. Not when opening: who
        only reads does not pay for the syncs, and what was being written when a process was killed makes them long.
        """
        if self.silent:
            self._make_names_durable()
            with self._tail.lock:
                # Also where they were written before and the sync failed: only what is written anew is synced.
                self.write_mark()
                self.write_mark()
            self._marks.sync()
            self.silent = False

    def _make_names_durable(self) -> None:
        if self._sync_names is not None:
            self._sync_names()
            self._sync_names = None

    def write_index(self) -> None:
        """Write what the index file of the page lacks."""
        page = self._tail.page
        if page is not None and page.index_file is not None:
            self._tail.index.write(self._port, page.index_file, page.checksum)

    def write_mark(self, *, clean: bool = False) -> None:
        """Write the next slot. Call with the lock held; not synced."""
        tail, index, page = self._tail, self._tail.index, self._tail.page
        if page is None:
            place = self._end_place
            number, salt = place.page, place.salt
            position, next_seq, time_ns = place.position, place.next_seq, place.last_time_ns
        else:
            number, salt = page.header.number, page.header.salt
            position, next_seq, time_ns = tail.end
        value = mark_value(
            *(number, salt, position, next_seq, time_ns),
            *(tail.frames, index.records, index.check, min(index.due, SEQ_MASK), clean),
            *(self.durable, self._marks.boot_id),
        )
        self._marks.write(value)

    def close_cleanly(self) -> None:
        """Everything is durable, and the marks say so, durably."""
        self._make_names_durable()  # the start after a clean mark takes them for that
        with self._tail.lock:
            self.write_index()
            self._mark_is_owed = False
            self.write_mark(clean=True)
        self._marks.sync()

    def let_go(self) -> None:
        """Close the files. Call with the lock held."""
        closing, self.closing = self.closing, []
        for file in closing:
            self._port.close(file)
        self._marks.close()
