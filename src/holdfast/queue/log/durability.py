"""How much of a log is durable: group commit, and the write position that records it.

A failed sync is never repeated: Linux may have dropped the dirty pages, and a second sync would report success. From
then on every call raises ``Closed`` (sync_failed), until the queue is opened again. If the disk accepts the write, the
recorded write position then says that the page cache is not trusted.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import NamedTuple

from holdfast.boot import UNKNOWN_BOOT
from holdfast.errors import Closed, Code, HoldfastError
from holdfast.queue.files.meta_files import WritePositionFile
from holdfast.queue.format.frame import SEQ_MASK
from holdfast.queue.format.meta import PagePosition, WritePosition
from holdfast.queue.format.page import HEADER_BYTES, PageHeader
from holdfast.queue.log.tail import LogTail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.queue.files.port import FilePort
    from holdfast.queue.log.opening import LogEnd
    from holdfast.soundness import Soundness


class SyncTarget(NamedTuple):
    """What one sync covers: files of ``closed`` pages, then the ``open`` page; it makes everything before ``next_seq``
    durable. Separate, because a page that is closed during its sync has grown and needs another sync.
    """

    closed: list[int]
    open: int | None
    next_seq: int
    position: tuple[PagePosition, int] | None


class Durability:
    """Group commit: the first thread that needs a sync leads it, the others wait for its result. Calls ``progress``
    without its own lock.
    """

    def __init__(self, port: FilePort, progress: SyncProgress, soundness: Soundness) -> None:
        self._port = port
        self._soundness = soundness
        self._progress = progress
        # A separate lock: an interrupt inside the condition's own ``with`` would leave it locked.
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._failing = threading.Lock()
        self._syncing = False
        self._followed = False  # a thread has waited for the sync that is under way
        self._ended: HoldfastError | None = None
        self.failure: OSError | None = None
        self.next_seq = progress.durable.next_seq

    def wait_for(self, next_seq: int) -> None:
        """Return when everything before ``next_seq`` is durable. Raises: ``Closed`` (sync_failed). Cost: one sync."""
        while self.next_seq < next_seq:
            self._lead_or_follow(next_seq)

    def sync_sealed(self) -> None:
        """Sync the closed pages, or return immediately when another thread is syncing."""
        self._lead_or_follow(None)

    def fail(self, error: OSError) -> None:
        """Record that a sync of files or names has failed. Raises: ``Closed`` (sync_failed), always."""
        with self._failing:
            self.failure = error
            self._progress.poison()
        self.raise_if_failed()

    def end(self, reason: HoldfastError) -> None:
        """Refuse further syncs. Call before the files are closed, so that no thread syncs a reused file number."""
        with self._lock:
            self._ended = reason
            self._condition.notify_all()
        with self._failing:
            pass

    def _raise_if_ended(self) -> None:
        self.raise_if_failed()
        if self._ended is not None:
            raise self._ended.with_traceback(None)

    def raise_if_failed(self) -> None:
        """Raise ``Closed`` (sync_failed) if a sync has failed."""
        if self.failure is not None:
            raise Closed(
                "a sync failed: the queue accepts no more messages",
                code=Code.SYNC_FAILED,
                hint="open the queue again; it then has the messages that are on the disk",
                durable_seq=self.next_seq - 1,
                cause=self.failure,
            ) from self.failure

    def _lead_or_follow(self, next_seq: int | None) -> None:
        """Lead a sync, or wait for another leader. None syncs closed pages only."""
        leads = False
        try:
            with self._lock:
                if next_seq is not None and self.next_seq >= next_seq:
                    self.raise_if_failed()
                    return
                self._raise_if_ended()
                if self._syncing:
                    self._followed = True
                    self._condition.wait()
                    self.raise_if_failed()
                    return
                leads = self._syncing = True  # together: an interrupt leaves no sync without a leader
            self._sync(sealed_only=next_seq is None)
        except AssertionError as error:
            self._soundness.break_off(error)
        finally:
            if leads:
                with self._lock:
                    self._syncing = False
                    if self._followed:
                        self._condition.notify_all()
                        self._followed = False

    def _sync(self, *, sealed_only: bool) -> None:
        target = self._progress.take(sealed_only)
        try:
            for file in target.closed:
                self._port.sync_data(file)
            if target.open is not None:
                self._port.sync_data(target.open)
        except OSError as error:
            self.fail(error)
        if self._ended is not None:  # the files may have been closed under it: their numbers were others' then
            self._raise_if_ended()
        self._progress.reached(target)
        self.next_seq = max(self.next_seq, target.next_seq)


class SyncProgress:
    """How far the log is durable, and the recorded write position. ``closing`` are files of sealed pages that wait for
    their sync, oldest first. While ``silent``, the disk does not say yet that the queue is open.

    With ``records_at_once`` each sync records the position; otherwise only a sync that closes pages does. The record is
    a hint, so its errors are suppressed, except in ``announce`` and ``close_cleanly``, which need it.
    """

    def __init__(
        self,
        port: FilePort,
        tail: LogTail,
        end: LogEnd,
        position_file: WritePositionFile,
        sync_names: Callable[[], None],
    ) -> None:
        self._port = port
        self._tail = tail
        self._position_file = position_file
        self.silent = True
        self.records_at_once = True
        self._position_is_owed = False
        salt = end.header.salt if end.header else 0
        start = self._start_position = PagePosition(end.page, salt, end.next_seq, end.last_time_ns, end.position)
        # The prepared page will be used: its maker may have been killed before its name was durable.
        self._sync_names = None if end.clean or not (end.resume and end.doubtful) else sync_names
        written = position_file.newest
        self.durable = written.durable if written is not None and end.resume and not written.clean else start
        self.first = end.first
        self.closing: list[int] = []
        self.synced_bytes = 0

    def take(self, sealed_only: bool) -> SyncTarget:
        """What a sync that begins now covers."""
        tail = self._tail
        with tail.lock:
            closed, page, end_position = list(self.closing), tail.page, tail.end_position
            if page is None or end_position is None:
                return SyncTarget(closed, None, tail.next_seq, None)
            if sealed_only:
                return SyncTarget(closed, None, tail.base_seq, (_beginning_of(page.header), self.synced_bytes))
            return SyncTarget(closed, page.file, tail.next_seq, (end_position, tail.written_bytes))

    def reached(self, target: SyncTarget) -> None:
        """A sync has succeeded."""
        with self._tail.lock:
            for file in target.closed:
                if file in self.closing:
                    self.closing.remove(file)
                    self._port.close(file)
            if target.position is not None and target.next_seq >= self.durable.next_seq:
                self.durable, self.synced_bytes = target.position
            self._position_is_owed = True
            if self.records_at_once or target.closed:
                self._record_owed_position()

    def record_owed_position(self) -> None:
        """Record the position of the last sync, unless that is done."""
        if self._position_is_owed:
            with self._tail.lock:
                if self._position_is_owed:
                    self._record_owed_position()

    def _record_owed_position(self) -> None:
        self._position_is_owed = False
        with suppress(OSError):
            self.record_position()

    def poison(self) -> None:
        """A sync has failed: record that the page cache is not trusted, if the disk allows it."""
        with self._tail.lock:
            self._position_file.boot_id = UNKNOWN_BOOT
            self._tail.close_fast_path()
            with suppress(OSError):
                self.record_position()

    @property
    def pages_safe_below(self) -> int:
        """Pages below this one may be removed: the page after each of them is durably begun, and has the base."""
        durable = self.durable
        return durable.page if durable.position > HEADER_BYTES else durable.page - 1

    def begin_at(self, header: PageHeader) -> None:
        """The log continues in this page, which is durable and empty."""
        self.durable = _beginning_of(header)

    def note_removal(self, first_page: int, first_seq: int) -> None:
        """Before retention removes pages: record durably, in both slots, which page is the first one then. Pages that
        are missing after it are damage. ``first_seq``: 0 keeps the recorded one. Raises: ``OSError``.
        """
        if first_page > self.first[0]:
            with self._tail.lock:
                self.first = first_page, first_seq or self.first[1]
                self.record_position()
                self.record_position()
            self._position_file.sync()

    def announce(self) -> None:
        """Before the first frame: both slots say durably that the queue is open, so no crash brings back a clean record
        together with later frames. Not done while opening: readers should not pay for syncs.
        """
        self._make_names_durable()
        with self._tail.lock:
            # Also after a failed sync: a sync covers only what is written again.
            self.record_position()
            self.record_position()
        self._position_file.sync()
        self.silent = False

    def _make_names_durable(self) -> None:
        if self._sync_names is not None:
            self._sync_names()
            self._sync_names = None

    def write_index(self) -> None:
        """Write the pending records of the page's index."""
        page = self._tail.page
        if page is not None and page.index_file is not None:
            self._tail.index.write(self._port, page.index_file, page.checksum)

    def record_position(self, *, clean: bool = False) -> None:
        """Write the next slot. Not synced. Call with the lock held."""
        tail, index = self._tail, self._tail.index
        record = WritePosition(
            tail.end_position or self._start_position,
            *(tail.frames, index.records, index.check, min(index.due, SEQ_MASK), clean),
            *(self.durable, self._position_file.boot_id, *self.first),
        )
        self._position_file.write(record.encode())

    def close_cleanly(self) -> None:
        """Everything is durable: record that, durably."""
        self._make_names_durable()  # the start after a clean record takes them for that
        with self._tail.lock:
            self.write_index()
            self._position_is_owed = False
            self.record_position(clean=True)
        self._position_file.sync()

    def close(self) -> None:
        """Close the files. Call with the lock held."""
        closing, self.closing = self.closing, []
        for file in closing:
            self._port.close(file)
        self._position_file.close()


def _beginning_of(header: PageHeader) -> PagePosition:
    return PagePosition(header.number, header.salt, header.base_seq, header.base_time_ns, HEADER_BYTES)
