"""The cursor files ``<prefix>-<name>.cursor``: make, read, write and lock them; which cursors retention waits for.

A crash leaves the old value or the new one. A cursor is durable under its name before its consumer gets a message. A
missing or empty file is a new cursor. A file with bytes and without a valid value is *damaged*: its consumer begins at
the first message there is, and until then retention keeps everything.
"""

from __future__ import annotations

from holdfast.errors import PermissionDenied
from holdfast.queue.files.disk_errors import FORBIDDEN
from holdfast.queue.files.meta_files import SlotFile
from holdfast.queue.files.pages import PageDirectory, check_name, other_owner, read_file
from holdfast.queue.files.process import locked_after_dropped
from holdfast.queue.format.meta import SLOTS_BYTES, Cursor, decode_cursor, newest_slot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SUFFIX = ".cursor"
_NOTHING_DONE = Cursor(0, of_work_queue=False, holds=True)


class CursorFile(SlotFile):
    """One open cursor. ``stored`` is the value at the opening; None if it is new or ``damaged``. It may never have been
    durable, so an opening writes and syncs a value before anything depends on the cursor.
    """

    __slots__ = ("damaged", "stored")

    def __init__(self, pages: PageDirectory, name: str) -> None:
        super().__init__(pages, pages.names.cursor(name))
        self.stored: Cursor | None = None if self.value is None else decode_cursor(self.value)
        self.damaged = self.stored is None and not self.is_empty


def read_cursor(pages: PageDirectory, name: str) -> Cursor | None:
    """The cursor of a name on disk, or None. A damaged one has committed nothing and holds."""
    data = read_file(pages, pages.names.cursor(name), SLOTS_BYTES)
    if data is None:
        return None
    slot = newest_slot(data)
    cursor = decode_cursor(slot[1]) if slot is not None else None
    return _NOTHING_DONE if cursor is None and any(data) else cursor


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
    cursors = _cursors(pages, unwritten=_NOTHING_DONE)
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


def lock_name(pages: PageDirectory, name: str, *, of_work_queue: bool = False) -> int:
    """Check and lock the name of a consumer or work queue. Returns the lock's file."""
    check_name(pages, name, of_work_queue=of_work_queue)
    try:
        return locked_after_dropped(lambda: pages.port.lock(pages.directory, pages.names.named_lock(name)))
    except OSError as error:
        if error.errno not in FORBIDDEN:
            raise
        raise PermissionDenied("a cursor cannot be kept here", name=name, cause=error.strerror) from error
