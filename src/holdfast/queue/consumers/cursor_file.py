"""The cursor files ``<prefix>-<name>.cursor``: make, read, write and lock them; which cursors retention waits for.

A crash leaves the old value or the new one. A cursor is durable under its name before its consumer gets a message. A
missing or empty file is a new cursor. A file with bytes and without a valid value is *damaged*: its consumer begins at
the first message there is, and until then retention keeps everything.
"""

from __future__ import annotations

import errno
from contextlib import suppress

from holdfast.errors import PermissionDenied
from holdfast.queue.files.pages import PageDirectory, check_name, other_owner, read_file
from holdfast.queue.files.process import locked_after_dropped
from holdfast.queue.format.cursor import Cursor, decode_cursor
from holdfast.queue.format.meta import SLOTS_BYTES, encode_slot, newest_slot, slot_offset
from holdfast.queue.log.messages import Gap, Trimmed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from holdfast.queue.log.port import QueuePort
    from holdfast.queue.log.reader import LogReader

SUFFIX = ".cursor"


class CursorFile:
    """One open cursor. One thread at a time. ``stored`` is the value at the opening; None if it is new or ``damaged``.
    It may never have been durable, so an opening writes and syncs a value before anything depends on the cursor.
    """

    __slots__ = ("_file", "_generation", "_pages", "_slot", "damaged", "stored")

    def __init__(self, pages: PageDirectory, name: str) -> None:
        port, directory, file_name = pages.port, pages.directory, pages.names.cursor(name)
        self._pages = pages
        try:
            self._file = port.open(directory, file_name, write=True)
        except FileNotFoundError:
            self._file = port.create(directory, file_name)
        making = False
        try:
            data = port.read(self._file, 0, SLOTS_BYTES)
            slot = newest_slot(data)
            if slot is None:
                # Also for an existing file: its maker may have stopped before its name was durable.
                making = not any(data)
                port.allocate(self._file, SLOTS_BYTES)
                port.sync_data(self._file)
                port.sync_directory(directory)
        except BaseException:
            port.close(self._file)
            if making:
                # A failed sync is not repeated: the next opening makes another file. A file with content stays: it may
                # be a good cursor.
                with suppress(OSError):
                    pages.remove(file_name)
            raise
        self._generation = slot[0] if slot is not None else 0
        self._slot = b""
        self.stored: Cursor | None = decode_cursor(slot[1]) if slot is not None else None
        self.damaged = self.stored is None and any(data)

    def write(self, value: bytes) -> None:
        """Replace the value, in the other slot. Cost: one small write."""
        generation = self._generation + 1
        slot = encode_slot(generation, value)
        self._pages.port.write(self._file, slot_offset(generation), (slot,))
        # Only now: after an error the same slot is written again, and the other stays whole.
        self._generation = generation
        self._slot = slot

    def sync(self) -> None:
        """Make the value durable. Raises: ``OSError``; the caller may not sync again."""
        try:
            self._pages.port.sync_data(self._file)
        except OSError:
            # Retention may sync the file before it removes a page, and a sync covers only what was written again.
            with suppress(OSError):
                self._pages.port.write(self._file, slot_offset(self._generation), (self._slot,))
            raise

    def close(self) -> None:
        """Close the file. Syncs nothing."""
        self._pages.port.close(self._file)


class ConsumerFiles:
    """The files of a consumer, and how to close them without it."""

    __slots__ = ("cursor", "lock_file", "pages", "reader")

    def __init__(self, pages: PageDirectory, lock_file: int) -> None:
        self.pages = pages
        self.lock_file = lock_file
        self.cursor: CursorFile | None = None
        self.reader: LogReader | None = None

    def release_name(self) -> None:
        """Close all but the reader, which another thread may use."""
        try:
            if self.cursor is not None:
                self.cursor.close()
        finally:
            self.pages.port.unlock(self.lock_file)

    def release(self) -> None:
        """Close everything."""
        if self.reader is not None:
            self.reader.close()
        self.release_name()


def read_cursor(pages: PageDirectory, name: str) -> Cursor | None:
    """The cursor of a name on disk, or None. A damaged one has committed nothing and holds."""
    data = read_file(pages, pages.names.cursor(name), SLOTS_BYTES)
    if data is None:
        return None
    slot = newest_slot(data)
    cursor = decode_cursor(slot[1]) if slot is not None else None
    return Cursor(0, of_work_queue=False, holds=True) if cursor is None and any(data) else cursor


def _cursors(pages: PageDirectory, unwritten: Cursor | None = None) -> Iterable[tuple[str, Cursor]]:
    """Every cursor by name; ``unwritten`` stands for an empty file."""
    files = set(pages.port.names(pages.directory))
    start = f"{pages.names.prefix}-"
    for file_name in sorted(file for file in files if file.endswith(SUFFIX) and file.startswith(start)):
        name = file_name[len(start) : -len(SUFFIX)]
        if name and other_owner(pages.names.prefix, name, files) is None:
            cursor = read_cursor(pages, name) or unwritten
            if cursor is not None:
                yield name, cursor


def committed_seqs(pages: PageDirectory) -> dict[str, int]:
    """The last message that each consumer and work queue has finished, by name. Cost: a small read for each."""
    return {name: cursor.committed_seq for name, cursor in _cursors(pages)}


def first_held_seq(pages: PageDirectory) -> int | None:
    """The first message that a holding cursor has not committed, open or not; None without such a cursor."""
    return min((cursor.committed_seq + 1 for _, cursor in _cursors(pages) if cursor.holds), default=None)


def first_unconsumed_seq(pages: PageDirectory) -> int | None:
    """The first message that any cursor has not committed; None without cursors. A damaged one committed nothing."""
    cursors = _cursors(pages, unwritten=Cursor(0, of_work_queue=False, holds=True))
    return min((cursor.committed_seq + 1 for _, cursor in cursors), default=None)


def sync_holds(pages: PageDirectory, failed: Callable[[OSError], None], *, every: bool = False) -> None:
    """Make the cursors that retention waits for durable, or ``every`` cursor. ``failed`` is called with the error of a
    sync, which must not be repeated, and raises. Cost: a data sync for each.
    """
    for name, cursor in _cursors(pages):
        if cursor.holds or every:
            file = pages.port.open(pages.directory, pages.names.cursor(name), write=True)
            try:
                pages.port.sync_data(file)
            except OSError as error:
                failed(error)
            finally:
                pages.port.close(file)


def seq_since(queue: QueuePort, since: datetime | str | None) -> int:
    """The first message from a starting point on, or the next future one. Lost messages directly before it come first,
    so that a new consumer reports them.
    """
    reports: list[Gap | Trimmed] = []
    reader = queue.reader(since=since, damage=reports.append)
    try:
        messages = reader.read_near()
        seq = messages[0].seq if messages is not None else reader.next_seq
    finally:
        reader.close()
    for report in reversed(reports):
        if isinstance(report, Gap) and report.first < seq <= report.last + 1:
            seq = report.first
    return seq


def lock_name(pages: PageDirectory, name: str, *, of_work_queue: bool = False) -> int:
    """Check and lock the name of a consumer or work queue. Returns the lock's file."""
    check_name(pages, name, of_work_queue=of_work_queue)
    try:
        return locked_after_dropped(lambda: pages.port.lock(pages.directory, pages.names.named_lock(name)))
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise PermissionDenied("a cursor cannot be kept here", name=name, cause=error.strerror) from error
