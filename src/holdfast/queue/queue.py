"""The queue: what a program opens.

Owns: opening and closing, the public methods that write, consumers, the helper thread's work. Does not own: the public
methods that read (``log_reading``), writing (``writer``), starting (``opening``, ``mending``), which pages go
(``retention``).

Failure model: see the package. Closing makes everything durable; a queue that is not closed is found as after a kill.

Long, because it is the public class: half of it is what its methods promise.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from weakref import WeakValueDictionary

from holdfast.errors import Closed, Code, HoldfastError, NotFound, PermissionDenied
from holdfast.queue.arguments import each_of, whole_number
from holdfast.queue.background import Background
from holdfast.queue.checksum import CRC32, checksum_for_writing
from holdfast.queue.datetimes import lifetime_ns
from holdfast.queue.disk_errors import Opening, refusals
from holdfast.queue.dropped import close_when_dropped, locked_after_dropped
from holdfast.queue.file_names import FileNames
from holdfast.queue.forks import poison_in_children
from holdfast.queue.identity_file import open_identity, read_identity
from holdfast.queue.local_files import LocalFiles, lock_taken_at
from holdfast.queue.log_reading import SEQ_MAX, LogReading
from holdfast.queue.mark_file import MarkFile
from holdfast.queue.mending import mend
from holdfast.queue.messages import Message, class_with_value
from holdfast.queue.neighbours import check_new_queue
from holdfast.queue.opening import find_end
from holdfast.queue.page_files import PageDirectory
from holdfast.queue.page_header import PAGE_BYTES_MAX
from holdfast.queue.page_supply import FIRST_PAGE_BYTES
from holdfast.queue.reader import check_damage_policy, read_numbered_mark
from holdfast.queue.serializers import Serializer, chosen_serializer, other_serializer, record_of, serializer_named
from holdfast.queue.space import Space, check_limits
from holdfast.queue.sync_levels import sync_level
from holdfast.queue.writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping, Sequence
    from datetime import datetime, timedelta
    from types import TracebackType
    from typing import Self, TypeVar

    from holdfast.queue.consumer import Consumer
    from holdfast.queue.file_port import FilePort
    from holdfast.queue.reader import DamagePolicy
    from holdfast.queue.sync_levels import SyncLevel
    from holdfast.queue.work_queue import WorkQueue

    Found = TypeVar("Found")

__all__ = ["PAGE_BYTES_MIN", "Queue"]

PAGE_BYTES_MIN = 4096
MESSAGE_BYTES_MAX = 1 << 30
LIFETIME_LOOK_S = 10.0


class Queue(LogReading):
    """A durable queue in the files ``path-*`` of one directory; see the package for the whole of what it promises.

    *Raises*: ``AlreadyOpen`` when another writer has it; ``InvalidRequest`` for settings that cannot be; ``NotFound``
    when ``read_only`` and there is no such queue; ``PermissionDenied`` where nothing may be written or read;
    ``Unavailable`` (disk_full) where there is no room, and where the file system refuses for another reason.
    *Cost*: after a clean close under a millisecond; after a kill at most about 1 MiB of reading.

    With ``keep="consumed"`` a page goes when every named consumer and work queue of this queue has committed all of its
    messages, whether it is open or not: a reader that comes back later gets ``Trimmed``. Where there is no consumer, or
    the cursor of one is damaged, nothing goes. The page being written always stays.

    ``files``, ``clock`` and ``entropy`` replace the operating system's; ``background=False`` runs no helper thread: its
    work is then done by ``run_background_work``.
    """

    _is_of_work_queue = False
    _first_page_bytes = FIRST_PAGE_BYTES

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        page_size: int = 64 << 20,
        sync: SyncLevel | str = "os",
        lifetime: timedelta | None = None,
        max_bytes: int | None = None,
        full: str = "drop_oldest",
        keep: str = "all",
        serializer: Serializer | str | None = None,
        compression: int = 0,
        max_message: int = 64 << 20,
        checksum: int = CRC32,
        read_only: bool = False,
        damage: DamagePolicy = "raise",
        files: FilePort | None = None,
        clock: Callable[[], int] = time.time_ns,
        entropy: Callable[[int], bytes] = os.urandom,
        background: bool = True,
    ) -> None:
        # All of them before a file is touched.
        page_size = whole_number("page_size", page_size, PAGE_BYTES_MIN, PAGE_BYTES_MAX)
        max_message = whole_number("max_message", max_message, 1, MESSAGE_BYTES_MAX)
        compression = whole_number("compression", compression, 0, 9)
        check_limits(max_bytes, full, page_size, keep)
        kept_ns = None if lifetime is None else lifetime_ns(lifetime)
        check_damage_policy(damage)
        level = sync_level(sync)
        checksum_for_writing(checksum)
        path = os.fsdecode(path)
        folder, name = os.path.split(path)
        # What is opened beside this one later is in the same directory, wherever the process has gone meanwhile.
        self._path = os.path.join(os.getcwd(), folder, name) if files is None and folder[:1] != "/" else path
        self._port: FilePort = files if files is not None else LocalFiles()
        self._names = FileNames(name)
        self._damage = damage
        self._headers = {}
        self._anchors = {}
        self._indexes = {}
        self._writer = None
        if serializer is not None:
            serializer_named(serializer)  # refused before a file is touched
        self._serializer, self._message = None, Message
        self._append: Callable[[bytes], int] = _refuse_reader
        self._closed = False
        self._closer: dict[str, tuple[int, int, object]] = {}  # who closes it: process and thread
        self._ended = threading.Event()
        self._dependents_closed: list[Consumer | WorkQueue] = []
        self._level, self._full, self._keeps_all = level, full, keep == "all"
        self._clock, self._entropy, self._with_background = clock, entropy, background
        self._closes_dropped = files is None
        self._dependents: dict[str, MutableMapping[int, Consumer | WorkQueue]] = {}  # one mapping, made by the first
        self._keep: Callable[[], object] = _nothing
        with Opening(path):
            directory = self._open_directory(folder, make=not read_only)
            self._pages = PageDirectory(self._port, directory, self._names)
            self._held = _Held(self._pages)
            try:
                if read_only:
                    self._open_for_reading(path, serializer)
                    return
                self._held.lock_file = locked_after_dropped(lambda: self._port.lock(directory, self._names.lock))
                self._pages.be_sole()
                record = "" if serializer is None else record_of(serializer)
                writer = self._open_writer(page_size, level, compression, max_message, checksum, clock, entropy, record)
                self._use(chosen_serializer(serializer, self.identity.serializer))
            except BaseException:
                self._held.close_handles()
                raise
        self._writer = self._held.writer = writer
        try:
            self._start(writer, level, kept_ns, max_bytes, background=background)
        except BaseException:
            self._let_go()
            raise
        poison_in_children(self)
        self._close_when_dropped(warn=True)

    def _close_when_dropped(self, *, warn: bool) -> None:
        if self._closes_dropped:
            held = self._held
            place = lock_taken_at(held.lock_file)
            self._keep = close_when_dropped(self, "the queue", self._path, held.release, warn=warn, place=place)

    def _open_for_reading(self, path: str, serializer: Serializer | str | None) -> None:
        # A queue without a page is one that nothing was appended to yet: a reader may come first.
        if not self._pages.numbers() and self._names.identity not in self._pages.files():
            raise NotFound("no such queue", path=path)
        identity = read_identity(self._pages)  # refuses one of a later format
        # The bytes are there to be read, whatever they mean.
        recorded = "" if identity is None or serializer == "bytes" else identity.serializer
        self._use(chosen_serializer(serializer, recorded))
        self._close_when_dropped(warn=False)

    def _use(self, serializer: Serializer | None) -> None:
        self._serializer = serializer
        self._message = class_with_value(Message, serializer)

    def _open_directory(self, folder: str, *, make: bool) -> int:
        if make:
            self._port.make_directory(folder)
        try:
            return self._port.open_directory(folder)
        except FileNotFoundError as error:
            raise NotFound("no such directory", path=folder) from error

    def _start(
        self, writer: Writer, level: SyncLevel, kept_ns: int | None, max_bytes: int | None, *, background: bool
    ) -> None:
        """Join the writer to the space, the helper thread and the buffer."""
        pages, held, keeps_all = self._pages, self._held, self._keeps_all
        space = self._space = held.space = Space(
            pages,
            lifetime_ns=kept_ns,
            max_bytes=max_bytes,
            full=self._full,
            clock=self._clock,
            current=lambda: writer.page_number,
            safe_below=lambda: writer.pages_safe_below,
            make_durable=lambda: writer.durability.wait_for(writer.next_seq),
            first_held=lambda: _first_held(pages, writer),
            first_unconsumed=None if self._keeps_all else lambda: _first_unconsumed(pages, writer),
            sync_holds=lambda failed: _sync_holds(pages, failed, every=not keeps_all),
            sync_failed=writer.durability.fail,
        )
        writer.before_roll, writer.on_full = space.before_roll, space.trim
        if background:
            # Consumers in other processes wake no helper thread of this one.
            looks = [LIFETIME_LOOK_S] if kept_ns is not None or not keeps_all else []
            interval_s = min([*looks, level.ms_max / 1000] if level.ms_max else looks, default=None)
            # Of the parts, not of this queue: the thread would keep it, and it could not be dropped.
            held.background = Background(held.work, interval_s)
            writer.on_work = space.on_consumed = held.background.wake
        self._append_by(writer.append)

    def _append_by(self, append: Callable[[bytes], int]) -> None:
        """What ``append`` does. Where that needs no serializer, it is this itself: a call more is a tenth of it all."""
        self._append = append
        self.__dict__.pop("append", None)
        if not self._closed and self._serializer is None and type(self).append is Queue.append:
            self.__dict__["append"] = append

    def _open_writer(
        self,
        page_size: int,
        level: SyncLevel,
        compression: int,
        max_message: int,
        checksum: int,
        clock: Callable[[], int],
        entropy: Callable[[int], bytes],
        serializer: str,
    ) -> Writer:
        port, pages = self._port, self._pages
        if not self._is_of_work_queue:
            check_new_queue(pages)
        identity = open_identity(pages, entropy, page_size, checksum, serializer)
        if serializer and identity.serializer != serializer:
            raise other_serializer(serializer, identity.serializer)
        generation, mark = read_numbered_mark(pages)
        end = find_end(pages, mark, port.boot_id())
        mend(pages, end)
        self.identity = identity
        self.recovered_gaps: list[tuple[int, int]] = end.gaps
        return Writer(
            pages,
            end,
            mark,
            MarkFile(pages, generation),
            page_bytes=page_size,
            checksum_id=checksum,
            message_bytes_max=max_message,
            sync=level,
            compression=compression,
            clock=clock,
            entropy=entropy,
            first_page_bytes=self._first_page_bytes,
        )

    # ---- writing ----------------------------------------------------------------------------------------------------

    def append(self, payload: object) -> int:
        """Append one message and return its sequence number; what has happened by then is the sync level's promise.

        *Shape*: bytes, or what the serializer takes.
        *Raises*: ``Closed`` (also after a failed sync, and in a forked child); ``LimitExceeded`` above ``max_message``;
        ``Unavailable`` (disk_full), after which the queue works again as soon as there is room; ``Backpressure``
        (queue_full) with ``full="raise"``; ``PermissionDenied`` when opened ``read_only``; ``InvalidRequest`` for what
        is not bytes. Whatever is raised, the message is not in the queue, except after a failed sync or an interrupt
        (Ctrl-C), when it may be.
        *Cost*: about a microsecond at the level "os"; one shared data sync at "always". The first after an opening: a
        small data sync besides.
        """
        if self._serializer is not None:
            payload = self._serializer.dump(payload)
        return self._append(payload)  # type: ignore[arg-type]  # refused by the writer if it is something else

    def append_many(self, payloads: Iterable[object], *, atomic: bool = False) -> tuple[int, int]:
        """Append messages in order with none between them; returns the first and the last sequence number.

        After a crash of the machine a frame (at most 256 KiB or 4,096 messages) is there or not; with ``atomic`` the
        whole batch is one frame. *Raises*: as ``append``, and ``InvalidRequest`` for no messages. A batch of several
        frames that meets a full disk or a full queue may be there in part: the error's ``appended`` says how many.
        """
        if not isinstance(payloads, list | tuple):
            payloads = each_of(payloads)
        found: Sequence[bytes] = payloads  # type: ignore[assignment]  # refused by the writer if it is something else
        if self._serializer is not None:
            found = [*map(self._serializer.dump, payloads)]
        elif not isinstance(payloads, list | tuple):
            found = [*payloads]  # type: ignore[list-item]  # refused by the writer if it is something else
        return self.append_encoded(found, atomic=atomic)

    def append_encoded(self, payloads: Sequence[bytes], *, atomic: bool = False) -> tuple[int, int]:
        """As ``append_many``, of what the serializer has made already: for the asyncio twin."""
        return (self._writer or self._refuse_all()).append_many(payloads, atomic=atomic)

    def append_at_once(self, payload: bytes) -> int | None:
        """Append bytes if that waits for nothing, neither a sync nor a page; else do nothing and return None.

        For those who must not wait where they stand, as the asyncio twin.
        """
        return None if self._writer is None else self._writer.append_at_once(payload)

    def wait_durable(self, seq: int) -> None:
        """Return when ``seq`` and all before it are durable.

        *Raises*: ``Closed`` after a failed sync; ``InvalidRequest`` for a message that was not appended.
        """
        writer = self._writer or self._refuse_all()
        if seq >= writer.next_seq:
            writer.raise_if_closed()
            whole_number("seq", seq, 0, writer.next_seq - 1)
        writer.wait_durable(seq)

    def flush(self) -> None:
        """Return when everything appended so far is durable. *Raises*: ``Closed`` after a failed sync."""
        (self._writer or self._refuse_all()).flush()

    def trim(self, *, before_seq: int) -> int:
        """Remove the pages whose messages are all below ``before_seq``. Returns how many pages went.

        *Raises*: ``Unavailable`` where the file system refuses, after which some may have gone; ``Closed``;
        ``PermissionDenied``.
        """
        (self._writer or self._refuse_all()).raise_if_closed()
        before_seq = whole_number("before_seq", before_seq, 0, SEQ_MAX)
        with refusals:
            return self._space.trim_before(before_seq)

    @property
    def space(self) -> Space:
        """Retention: ``confirmed`` is for consumers."""
        if self._writer is None:
            self._refuse_all()
        return self._space

    def _refuse_all(self) -> Writer:
        raise self._refusal()

    def _refusal(self) -> HoldfastError:
        return _closed() if self._closed else _reader_only()

    # ---- consumers --------------------------------------------------------------------------------------------------

    def consumer(
        self,
        name: str,
        *,
        since: datetime | str | None = None,
        damage: DamagePolicy | None = None,
        hold: bool | None = None,
    ) -> Consumer:
        """A reader whose place is kept under ``name``; see ``queue.consumer``.

        ``since`` is where a new one begins: a time, ``"earliest"`` (default), ``"latest"``. With ``hold`` retention
        keeps what it has not committed, whether it is open or not; by default where ``full`` is not "drop_oldest".
        *Raises*: ``AlreadyOpen`` when the name is in use, here or in another process; ``InvalidRequest`` for a name
        that cannot be; ``PermissionDenied`` where nothing may be written; ``Unavailable``; ``Closed``.
        *Cost*: under a millisecond and a small data sync; two syncs more for a new name.
        """
        from holdfast.queue.consumer import Consumer

        if self._closed:
            raise Closed("the queue is closed")
        holding = self._full != "drop_oldest" if hold is None else hold
        with Opening(self._path):
            found = Consumer(self, self._pages, name, since=since, damage=damage, hold=holding)
        self._join(found)
        return found

    def work_queue(
        self,
        name: str,
        *,
        visibility: float = 30.0,
        max_deliveries: int = 5,
        retry_delay: float = 1.0,
        max_retry_delay: float = 300.0,
        max_started: int = 100_000,
        since: datetime | str | None = None,
        damage: DamagePolicy | None = None,
        hold: bool = True,
    ) -> WorkQueue:
        """Jobs for workers, each message to one of them until one has acknowledged it; see ``queue.work_queue``.

        A job is a worker's for ``visibility`` seconds. After ``max_deliveries`` it goes to the dead letters, the queue
        ``<path>-<name>-dead``. ``retry`` waits ``retry_delay`` seconds, doubled with each delivery up to
        ``max_retry_delay``. At most ``max_started`` messages are leased or delayed at a time. ``since``, ``damage``
        and ``hold`` are as for ``consumer``; a work queue holds unless it is told not to. *Raises*: as ``consumer``.
        *Cost*: replays about 128 KiB of commands, and a sync.
        """
        from holdfast.queue.work_queue import WorkQueue

        if self._closed:
            raise Closed("the queue is closed")
        with Opening(self._path):
            found = WorkQueue(
                self,
                self._pages,
                name,
                clock=self._clock,
                visibility=visibility,
                max_deliveries=max_deliveries,
                retry_delay=retry_delay,
                max_retry_delay=max_retry_delay,
                max_started=max_started,
                since=since,
                damage=self._damage if damage is None else damage,
                hold=hold,
            )
        self._join(found)
        return found

    def _join(self, dependent: Consumer | WorkQueue) -> None:
        """Closing the queue closes it from here on."""
        # Not held: one that the program drops closes by itself, but over files of the program's own.
        made: MutableMapping[int, Consumer | WorkQueue] = WeakValueDictionary() if self._closes_dropped else {}
        self._dependents.setdefault("", made)[id(dependent)] = dependent

    def _living(self) -> list[Consumer | WorkQueue]:
        return [found for known in self._dependents.values() for found in known.values()]

    def forget(self, dependent: Consumer | WorkQueue) -> None:
        """It is closed: closing the queue need not close it."""
        for known in self._dependents.values():
            known.pop(id(dependent), None)

    def close_when_dropped(
        self, dependent: Consumer | WorkQueue, what: str, release: Callable[[], object]
    ) -> Callable[[], object]:
        """See ``dropped``; over files of the program's own nothing is closed."""
        if not self._closes_dropped:
            return _nothing
        return close_when_dropped(dependent, what, f"{self._path}-{dependent.name}", release, warn=True)

    def beside(
        self,
        name: str,
        *,
        page_size: int = 1 << 20,
        sync: str | None = None,
        clock: Callable[[], int] | None = None,
        read_only: bool = False,
    ) -> Queue:
        """The queue ``<path>-<name>``, over the same files, for what is built on this one.

        ``sync`` is by default the level of this queue, and "always" is left to
        ``wait_durable``.
        """
        level = self._level if sync is None and self._level.name == "every" else (sync or "os")
        return _QueueOfWork(
            f"{self._path}-{name}",
            page_size=page_size,
            sync=level,
            max_message=MESSAGE_BYTES_MAX,
            read_only=read_only,
            files=self._port,
            clock=clock if clock is not None else self._clock,
            entropy=self._entropy,
            background=self._with_background,
        )

    @property
    def syncs_always(self) -> bool:
        """Whether the level is "always"."""
        return self._level.name == "always"

    @property
    def writable(self) -> bool:
        """Whether this object is the writer."""
        return self._writer is not None

    # ---- the helper thread and the end ------------------------------------------------------------------------------

    def run_background_work(self) -> None:
        """What the helper thread does when it wakes: make the next page, sync closed pages, keep the bounds of
        ``every``. *Raises*: ``Closed`` after a failed sync, and in a forked child; ``OSError``."""
        self._held.run_background_work()

    def close(self) -> None:
        """Make everything durable and let go of the files. Doing it twice is harmless; who does it while another thread
        does returns when that has, except from a callback for damage.

        *Raises*: ``Closed`` when it could not be made durable; ``Unavailable`` when all is durable and
        only the mark that says so could not be written. The files are released in every case.
        """
        if self._ended.is_set():
            return
        closer = os.getpid(), threading.get_ident(), object()
        first = self._closer.setdefault("", closer)  # one step, also under a signal
        if first[0] != closer[0]:  # a fork's parent was at it: here nobody is
            self._closer, self._ended = {"": closer}, threading.Event()
        elif first is not closer:
            # In a signal's handler, or a callback for damage, the one who closes may be waiting for this very thread.
            dependents = [*self._living(), *self._dependents_closed]
            if first[1] != closer[1] and not any(_is_read_by(closer[1], found) for found in dependents):
                self._ended.wait()
            return
        self._keep()
        self._dependents_closed = self._living()
        try:
            with ExitStack() as closing:
                for dependent in self._dependents_closed:
                    closing.callback(dependent.close)
        finally:
            try:
                self._let_go()
            finally:
                self._ended.set()
                self._dependents_closed = []

    def _let_go(self) -> None:
        self._closed = True
        self._append_by(_refuse_closed)
        try:
            self._held.release()
        finally:
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def poison_after_fork(self) -> None:
        """In a forked child: let go of the lock, which is the parent's, and refuse everything."""
        if self._writer is not None:
            self._writer.poison_after_fork(
                Closed(
                    "a forked child cannot write to its parent's queue", code=Code.FORKED, hint="open it in one process"
                )
            )
            # A thread of the parent may have held any lock: every way in leads to the writer, which has new ones.
            self._append_by(self._writer.append)
            self._held.background = None
            self._space.poison_after_fork()
            self._pages.be_sole(sole=False)
        self._keep()
        if self._held.lock_file >= 0:
            self._port.close(self._held.lock_file)
            self._held.lock_file = -1


class _Held:
    """What an open queue holds of the system, and how to close it without the queue."""

    __slots__ = ("background", "lock_file", "pages", "space", "writer")

    def __init__(self, pages: PageDirectory) -> None:
        self.pages = pages
        self.lock_file = -1
        self.writer: Writer | None = None
        self.space: Space | None = None
        self.background: Background | None = None

    def run_background_work(self) -> None:
        """See ``Queue.run_background_work``."""
        writer, space = self.writer, self.space
        if writer is None or space is None:
            return
        writer.raise_if_closed()
        if writer.wants_page():
            try:
                writer.prepare()
            except OSError:
                space.trim()  # the next try may find what has grown old gone, and room
                raise
        if writer.has_closing_pages:
            writer.durability.sync_sealed()
        if writer.sync_is_due():
            writer.flush()
        space.trim()

    def work(self) -> None:
        """As ``run_background_work``, on the helper thread."""
        try:
            self.run_background_work()
        except (HoldfastError, OSError):
            # Raised to whoever appends: a failed sync has poisoned the writer; a page that could not be made is tried
            # again by the append that needs it.
            return

    def release(self) -> None:
        """Make everything durable and close the files."""
        writer = self.writer
        if self.space is not None:
            self.space.close()
        try:
            try:
                if self.background is not None:
                    self.background.stop()
            finally:
                if writer is not None:
                    with refusals:
                        writer.close()
        finally:
            self.writer = None
            self.close_handles()

    def close_handles(self) -> None:
        """Close the lock's file and the directory."""
        port = self.pages.port
        if self.lock_file >= 0:
            port.unlock(self.lock_file)
            self.lock_file = -1
        directory, self.pages.directory = self.pages.directory, -1  # its number may soon be another directory's
        if directory >= 0:  # a fork's parent may have come so far
            port.close(directory)


def _first_held(pages: PageDirectory, writer: Writer) -> int | None:
    """For retention: the next message that a consumer which holds has yet to commit."""
    from holdfast.queue.cursor_file import first_held_seq

    return first_held_seq(pages, lambda: writer.next_seq - 1)


def _first_unconsumed(pages: PageDirectory, writer: Writer) -> int | None:
    from holdfast.queue.cursor_file import first_unconsumed_seq

    return first_unconsumed_seq(pages, lambda: writer.next_seq - 1)


def _sync_holds(pages: PageDirectory, failed: Callable[[OSError], None], *, every: bool) -> None:
    from holdfast.queue.cursor_file import sync_holds

    sync_holds(pages, failed, every=every)


def _nothing() -> None:
    """The queue is not closed when it is dropped."""


def _closed() -> HoldfastError:
    return Closed("the queue is closed")


def _reader_only() -> HoldfastError:
    return PermissionDenied("the queue is open for reading only", code=Code.PERMISSION_DENIED)


def _refuse_closed(payload: bytes) -> int:  # noqa: ARG001 - stands in for a writer's append
    raise _closed()


def _refuse_reader(payload: bytes) -> int:  # noqa: ARG001 - stands in for a writer's append
    raise _reader_only()


def _is_read_by(thread: int, dependent: Consumer | WorkQueue) -> bool:
    return getattr(dependent, "read_by", 0) == thread


class _QueueOfWork(Queue):
    """One that a work queue makes for itself, under a name that nobody else may give to a new queue."""

    _is_of_work_queue = True
