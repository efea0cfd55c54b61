"""``QueueCore``: it opens the files of a queue, joins writer, retention and readers, and closes them in order.

``Queue`` shows its public methods. Consumers, work queues and the other classes of this package use the rest.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from weakref import WeakValueDictionary

from holdfast.errors import Closed, HoldfastError, InternalError, InvalidRequest, NotFound, PermissionDenied
from holdfast.queue.evidence import FileEvidence, is_new
from holdfast.queue.files.disk_errors import opening, refusals
from holdfast.queue.files.local import LocalFiles, lock_taken_at
from holdfast.queue.files.meta_files import WritePositionFile, open_identity, read_identity, read_write_position
from holdfast.queue.files.pages import PageDirectory, check_new_queue
from holdfast.queue.files.process import (
    Background,
    WithBlock,
    close_when_dropped,
    forked,
    locked_after_dropped,
    poison_in_children,
)
from holdfast.queue.format.checksum import CRC32, checksum_for_writing
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.page import PAGE_BYTES_MAX
from holdfast.queue.log.messages import Gap, Message, class_with_value
from holdfast.queue.log.opening import LogEnd, find_end, first_seq, repair_tail
from holdfast.queue.log.reader import LogReader, Waiter, WriterEvidence, check_damage_policy
from holdfast.queue.log.restoration import restored_header
from holdfast.queue.log.space import Space, check_limits
from holdfast.queue.log.walk import WalkCaches
from holdfast.queue.log.writer import FIRST_PAGE_BYTES, PageSupply, Writer
from holdfast.queue.options import clock_ns, lifetime_ns, moment_ns, sync_level, whole_number
from holdfast.queue.serializers import chosen_serializer, other_serializer, record_of, serializer_named
from holdfast.soundness import Soundness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, MutableMapping, Sequence
    from datetime import timedelta
    from typing import Any, Protocol, TypeVar

    from holdfast.queue.files.port import FilePort
    from holdfast.queue.format.meta import QueueIdentity
    from holdfast.queue.log.messages import Damage, DamagePolicy, Trimmed
    from holdfast.queue.options import Since, SyncLevel
    from holdfast.queue.serializers import Serializer

    Result = TypeVar("Result")

    class Dependent(Protocol):
        """A consumer or a work queue, which is closed before its queue."""

        name: str

        def close(self) -> None:
            """Release the files and the name."""


_logger = logging.getLogger("holdfast.queue")

SEQ_MAX = (1 << 64) - 1
PAGE_BYTES_MIN = 4096
MESSAGE_BYTES_MAX = 1 << 30
LIFETIME_LOOK_S = 10.0
CLOSED_UNDER = "the queue was closed under a reader"
HOW_TO_VERIFY = "Nothing more was written; `holdfast queue verify` reads the files"


class QueueCore(WithBlock):
    """An open queue. The arguments and errors are those of ``Queue``."""

    _first_page_bytes = FIRST_PAGE_BYTES
    _parent: QueueCore | None = None
    """The queue of the work queue that has made this one for itself."""

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
        # Check all arguments before touching a file.
        page_size = whole_number("page_size", page_size, PAGE_BYTES_MIN, PAGE_BYTES_MAX)
        self.max_message = whole_number("max_message", max_message, 1, MESSAGE_BYTES_MAX)
        compression = whole_number("compression", compression, 0, 9)
        check_limits(max_bytes, full, page_size, keep)
        kept_ns = None if lifetime is None else lifetime_ns(lifetime)
        check_damage_policy(damage)
        level = sync_level(sync)
        checksum_for_writing(checksum)
        path = os.fsdecode(path)
        folder, name = os.path.split(path)
        # Later openings use the same directory, also after the process has changed its own.
        self.path = os.path.join(os.getcwd(), folder, name) if files is None and folder[:1] != "/" else path
        self._port: FilePort = files if files is not None else LocalFiles()
        self._names = FileNames(name)
        self.soundness: Soundness = (
            Soundness("queue", HOW_TO_VERIFY) if self._parent is None else self._parent.soundness
        )
        self.damage = damage
        self._caches = WalkCaches({}, {}, {})
        self._writer: Writer | None = None
        if serializer is not None:
            serializer_named(serializer)  # refused before a file is touched
        self.serializer: Serializer | None = None  # None for bytes
        self._message: type[Message] = Message
        self._closed, self._closes_dropped = False, files is None
        self._closer: dict[str, tuple[int, int, object]] = {}  # the closing process and thread
        self._ended = threading.Event()
        self._dependents_closed: list[Dependent] = []
        self._sync, self._level, self.full, self._keeps_all = sync, level, full, keep == "all"
        self._clock, self._entropy, self._with_background = clock, entropy, background
        self.clock = _checked(clock)
        # Weak references: a dropped dependent closes itself, except over files of the program's own.
        self._dependents: MutableMapping[int, Dependent] = WeakValueDictionary() if self._closes_dropped else {}
        self._keep: Callable[[], object] = lambda: None
        with opening(path):
            self._directory = self._open_directory(folder, make=not read_only)
            directory = self._directory.number
            self.pages = PageDirectory(self._port, directory, self._names, restored_header)
            self._evidence = FileEvidence(self.pages, self._caches.headers)
            self._resources = _Resources(self.pages, self._directory, self.soundness)
            try:
                if read_only:
                    self._open_for_reading(path, serializer)
                    return
                self._resources.lock_file = locked_after_dropped(lambda: self._port.lock(directory, self._names.lock))
                self.pages.is_sole = True
                writer = self._open_writer(page_size, compression, checksum, record_of(serializer))
                self._use(chosen_serializer(serializer, self.identity.serializer))
            except BaseException:
                self._resources.close_handles()
                raise
        self._writer = self._resources.writer = writer
        try:
            self._start(writer, kept_ns, max_bytes)
        except BaseException:
            self._release()
            raise
        poison_in_children(self)
        self._close_when_dropped(warn=True)

    def _close_when_dropped(self, *, warn: bool) -> None:
        if self._closes_dropped:
            resources = self._resources
            opened = lock_taken_at(resources.lock_file)
            self._keep = close_when_dropped(self, "the queue", self.path, resources.release, warn=warn, opened=opened)

    def _open_for_reading(self, path: str, serializer: Serializer | str | None) -> None:
        # A reader may come before the first message.
        if is_new(self.pages) and self._names.write_meta not in self.pages.files():
            raise NotFound("no such queue", path=path)
        identity = read_identity(self.pages)  # refuses one of a later format
        # Payloads can always be read as bytes.
        recorded = "" if identity is None or serializer == "bytes" else identity.serializer
        self._use(chosen_serializer(serializer, recorded))
        self._close_when_dropped(warn=False)

    def _use(self, serializer: Serializer | None) -> None:
        self.serializer = serializer
        self._message = class_with_value(Message, serializer)

    def _open_directory(self, folder: str, *, make: bool) -> _Directory:
        if self._parent is not None and self._parent._directory.share():
            return self._parent._directory
        if make:
            self._port.make_directory(folder)
        try:
            return _Directory(self._port.open_directory(folder))
        except FileNotFoundError as error:
            raise NotFound("no such directory", path=folder) from error

    def _start(self, writer: Writer, kept_ns: int | None, max_bytes: int | None) -> None:
        resources, level = self._resources, self._level
        space = self.space = resources.space = Space(
            self.pages,
            writer,
            lifetime_ns=kept_ns,
            max_bytes=max_bytes,
            full=self.full,
            keeps_all=self._keeps_all,
            clock=self.clock,
        )
        self.soundness.tell(space.close)
        writer.before_roll, writer.on_full = space.before_roll, space.trim
        if self._with_background:
            # Consumers in other processes wake no helper thread of this one.
            looks = [LIFETIME_LOOK_S] if kept_ns is not None or not self._keeps_all else []
            interval_s = min([*looks, level.ms_max / 1000] if level.ms_max else looks, default=None)
            # The thread references the parts, not this queue, which could not be dropped otherwise.
            resources.background = Background(resources.work, interval_s)
            writer.on_work = space.on_consumed = resources.background.wake

    def _open_writer(self, page_size: int, compression: int, checksum: int, serializer: str) -> Writer:
        pages = self.pages
        if self._parent is None:
            check_new_queue(pages)
        position_file = WritePositionFile(pages, new=is_new(pages))
        try:
            identity = open_identity(pages, self._entropy, page_size, checksum, serializer)
            if serializer and identity.serializer != serializer:
                raise other_serializer(serializer, identity.serializer)
            self.identity: QueueIdentity = identity
            end = find_end(pages, self._evidence)
            repair_tail(pages, end)
            self.recovered = end.losses
            _log_recovery(self.path, end)
            supply = PageSupply(
                pages,
                end.last_page,
                page_bytes=page_size,
                first_page_bytes=self._first_page_bytes,
                checksum_id=checksum,
                entropy=self._entropy,
            )
            return Writer(
                pages,
                end,
                position_file,
                supply,
                message_bytes_max=self.max_message,
                sync=self._level,
                compression=compression,
                clock=self._clock,
                soundness=self.soundness,
            )
        except BaseException:
            position_file.close()
            raise

    # ---- writing ----------------------------------------------------------------------------------------------------

    @property
    def writer(self) -> Writer:
        """The writer. *Raises*: ``Closed``; ``PermissionDenied`` with ``read_only``."""
        writer = self._writer  # asked for once: closing in another thread takes it away
        if writer is None:
            if self._closed:
                raise Closed("the queue is closed")
            raise PermissionDenied("the queue is open for reading only")
        return writer

    @property
    def writable(self) -> bool:
        """Whether this object is the writer."""
        return self._writer is not None

    def append(self, payload: bytes) -> int:
        """As ``Queue.append``, for bytes."""
        return self.writer.tail.append(payload)

    def append_many(self, payloads: Sequence[bytes], *, atomic: bool = False) -> tuple[int, int]:
        """As ``Queue.append_many``, for bytes."""
        return self.writer.append_many(payloads, atomic=atomic)

    def append_at_once(self, payload: bytes) -> int | None:
        """Append bytes if that needs no sync and no new page; else return None. For callers that must not block."""
        return None if self._writer is None else self._writer.tail.append_at_once(payload)

    def wait_durable(self, seq: int) -> None:
        """Return when ``seq`` and all messages before it are durable. *Raises*: ``Closed`` after a failed sync;
        ``InvalidRequest`` for a future message.
        """
        writer = self.writer
        if seq >= writer.next_seq:
            writer.raise_if_closed()
            whole_number("seq", seq, 0, writer.next_seq - 1)
        writer.wait_durable(seq)

    def flush(self) -> None:
        """As ``Queue.flush``."""
        self.writer.flush()

    def trim(self, *, before_seq: int) -> int:
        """As ``Queue.trim``."""
        self.writer.raise_if_closed()
        before_seq = whole_number("before_seq", before_seq, 0, SEQ_MAX)
        with refusals:
            return self.space.trim_before(before_seq)

    @property
    def last_seq(self) -> int:
        """As ``Queue.last_seq``."""
        writer = self._writer
        if writer is not None:
            return writer.next_seq - 1
        with self.asking():
            return find_end(self.pages, self._evidence).next_seq - 1

    @property
    def durable_seq(self) -> int:
        """As ``Queue.durable_seq``."""
        writer = self._writer
        if writer is not None:
            return writer.durability.next_seq - 1
        with self.asking():
            written = read_write_position(self.pages)
        return written.durable.next_seq - 1 if written is not None else 0

    @property
    def first_seq(self) -> int:
        """As ``Queue.first_seq``."""
        writer = self._writer
        with self.asking():
            return first_seq(self.pages, self._evidence if writer is None else WriterEvidence(writer))

    def require_open(self) -> None:
        """Raise ``InternalError`` after a broken invariant, and ``Closed`` after a close."""
        self.soundness.require()
        if self._closed:
            raise Closed("the queue is closed")

    @contextmanager
    def asking(self) -> Generator[None]:
        """A block that reads files. Refusals of the file system become ``Unavailable``; if another thread closes the
        queue meanwhile, the block raises ``Closed``: the directory's number may be reused, so its result does not
        count.
        """
        self.require_open()
        try:
            with refusals:
                yield
        except Exception as error:
            if not self._closed:
                raise
            raise Closed(CLOSED_UNDER) from error
        if self._closed:
            raise Closed(CLOSED_UNDER)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def reader(self, *, since: Since = None, seq: int | None = None, damage: Damage = None) -> LogReader:
        """A position in the log at a starting point. ``read_messages()`` and ``read_blocks()`` return what is there
        now, or None; they never wait. Errors of the file system are ``OSError``.
        """
        self.require_open()
        if since is not None and seq is not None:
            raise InvalidRequest("since and seq exclude each other")
        reader = LogReader(
            self.pages,
            self._evidence,
            damage=damage if damage is not None else self.damage,
            writer=self._writer,
            caches=self._caches,
            message=self._message,
        )
        try:
            if seq is not None:
                reader.seek_seq(whole_number("seq", seq, 1, SEQ_MAX))
            elif since is None or since == "earliest":
                reader.seek_earliest()
            elif since == "latest":
                reader.seek_latest()
            else:
                reader.seek_time(moment_ns(since))
        except BaseException:
            reader.close()
            raise
        return reader

    def seq_since(self, since: Since) -> int:
        """The first message from a starting point on, or the next future one. Lost messages directly before it come
        first, so that a new consumer reports them.
        """
        reports: list[Gap | Trimmed] = []
        reader = self.reader(since=since, damage=reports.append)
        try:
            messages = reader.read_near()
            seq = messages[0].seq if messages is not None else reader.next_seq
        finally:
            reader.close()
        for report in reversed(reports):
            if isinstance(report, Gap) and report.first < seq <= report.last + 1:
                seq = report.first
        return seq

    def begin_reading(self, since: Since, seq: int | None, damage: Damage) -> LogReader:
        """As ``reader``, with the errors of ``asking``."""
        reader: LogReader | None = None
        try:
            with self.asking():
                reader = self.reader(since=since, seq=seq, damage=damage)
        except BaseException:
            if reader is not None:
                reader.close()
            raise
        return reader

    def read(
        self, *, since: Since = None, seq: int | None = None, follow: bool = False, damage: Damage = None
    ) -> Iterator[Message]:
        """As ``Queue.read``."""
        nothing: Iterator[list[Message]] = iter(())
        parts = self.along(LogReader.read_message_parts, nothing, since, seq, follow, damage)
        return chain.from_iterable(chain.from_iterable(parts))

    def along(
        self,
        step: Callable[[LogReader], Result | None],
        nothing: Result,
        since: Since,
        seq: int | None,
        follow: bool,
        damage: Damage,
    ) -> Iterator[Result]:
        """What each step returns. The generator is started here: an unstarted one would not release its files."""
        steps = self._steps(self.begin_reading(since, seq, damage), step, follow, nothing)
        next(steps)
        return steps

    def _steps(
        self, reader: LogReader, step: Callable[[LogReader], Result | None], follow: bool, nothing: Result
    ) -> Iterator[Result]:
        waiter = self.waiter() if follow else None
        try:
            yield nothing
            while True:
                if waiter is not None:
                    waiter.arm()
                with self.asking():
                    result = step(reader)
                if result is not None:
                    yield result
                    if waiter is not None:
                        waiter.found()
                elif waiter is None:
                    return
                else:
                    waiter.wait()
        finally:
            if waiter is not None:
                waiter.disarm()
            reader.close()

    def waiter(self) -> Waiter:
        """Waits for the next message, for callers of ``reader``."""
        return Waiter(self._writer)

    # ---- consumers --------------------------------------------------------------------------------------------------

    def add(self, dependent: Dependent) -> None:
        """Close this one before the queue."""
        self._dependents[id(dependent)] = dependent

    def forget(self, dependent: Dependent) -> None:
        """The dependent is closed: closing the queue need not close it."""
        self._dependents.pop(id(dependent), None)

    def close_when_dropped(
        self, dependent: Dependent, what: str, release: Callable[[], object]
    ) -> Callable[[], object]:
        """Close a dependent that the program drops; nothing is done over the program's own files."""
        if not self._closes_dropped:
            return lambda: None
        return close_when_dropped(dependent, what, f"{self.path}-{dependent.name}", release, warn=True)

    def sibling(
        self,
        name: str,
        *,
        page_size: int = 1 << 20,
        sync: str | None = None,
        clock: Callable[[], int] | None = None,
        read_only: bool = False,
    ) -> QueueCore:
        """The queue ``<path>-<name>`` of a work queue, in the same directory, also after that was renamed. ``sync``
        defaults to this queue's level; at "always" the caller uses ``wait_durable``.
        """
        return _Sibling(
            self,
            f"{self.path}-{name}",
            page_size=page_size,
            sync=self._sync if sync is None and self._level.name == "every" else (sync or "os"),
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

    # ---- the helper thread and the end ------------------------------------------------------------------------------

    def run_background_work(self) -> None:
        """The helper thread's work: prepare the next page, sync closed pages, keep the bounds of ``every``. *Raises*:
        ``Closed`` after a failed sync, and in a forked child; ``OSError``.
        """
        self._resources.run_background_work()

    def close(self) -> None:
        """As ``Queue.close``."""
        if self._ended.is_set():
            return
        closer = os.getpid(), threading.get_ident(), object()
        first = self._closer.setdefault("", closer)  # one step, also under a signal
        if first[0] != closer[0]:  # the parent of this forked child was closing it
            self._closer, self._ended = {"": closer}, threading.Event()
        elif first is not closer:
            # In a signal handler or a callback for damage, the closing thread may be waiting for this one.
            dependents = [*self._dependents.values(), *self._dependents_closed]
            if first[1] != closer[1] and not any(
                getattr(dependent, "_read_by", 0) == closer[1] for dependent in dependents
            ):
                self._ended.wait()
            return
        self._keep()
        self._dependents_closed = list(self._dependents.values())
        try:
            with ExitStack() as closing:
                for dependent in self._dependents_closed:
                    closing.callback(dependent.close)
        finally:
            try:
                self._release()
            finally:
                self._ended.set()
                self._dependents_closed = []
        self.soundness.require()

    def _release(self) -> None:
        self._closed = True
        try:
            self._resources.release()
        finally:
            self._writer = None

    def _poison_after_fork(self) -> None:
        """In a forked child: release the lock, which is the parent's, and refuse everything."""
        if self._writer is not None:
            self._writer.poison_after_fork(forked("write to its parent's queue"))
            self._resources.background = None
            self.space.poison_after_fork()
            self.pages.is_sole = False
        self._keep()
        if self._resources.lock_file >= 0:
            self._port.close(self._resources.lock_file)
            self._resources.lock_file = -1


class _Sibling(QueueCore):
    """A queue that a work queue makes for itself, under a reserved name, in the open directory of its queue."""

    def __init__(self, parent: QueueCore, path: str, **options: Any) -> None:
        self._parent = parent
        super().__init__(path, **options)


class _Directory:
    """An open directory. The queues of work queues share it, because a path means another one after a rename. The last
    user closes it. Takes no lock: a list grows and shrinks in one step, and the last user gets its first element.
    """

    __slots__ = ("_users", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._users = [True]

    def share(self) -> bool:
        """Add a user. False if the last user has closed it."""
        self._users.append(False)
        return self._users[0] or self._users.pop()

    def leave(self) -> bool:
        """Remove a user. True if that was the last one, who closes the directory."""
        return self._users.pop()


class _Resources:
    """The files and threads of an open queue, and how to close them without the queue."""

    def __init__(self, pages: PageDirectory, directory: _Directory, soundness: Soundness) -> None:
        self.soundness = soundness
        self.pages = pages
        self.directory = directory
        self.lock_file = -1
        self.writer: Writer | None = None
        self.space: Space | None = None
        self.background: Background | None = None

    def run_background_work(self) -> None:
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
        if writer.progress.closing:
            writer.durability.sync_sealed()
        if writer.sync_is_due():
            writer.flush()
        space.trim()

    def work(self) -> None:
        try:
            self.run_background_work()
        except AssertionError as error:
            with suppress(InternalError):  # the next call of the program raises it
                self.soundness.break_off(error)
        except (HoldfastError, OSError):
            # The appending thread gets the error: a failed sync poisons the writer, and the append that needs a page
            # tries again.
            return

    def release(self) -> None:
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
        port = self.pages.port
        if self.lock_file >= 0:
            port.unlock(self.lock_file)
            self.lock_file = -1
        directory, self.pages.directory = self.pages.directory, -1  # its number may soon be another directory's
        if directory >= 0 and self.directory.leave():  # below 0: a fork's parent may have come so far
            port.close(directory)


def _log_recovery(path: str, end: LogEnd) -> None:
    """Say what this opening has found; the files show it from now on."""
    for header in end.restored:
        _logger.warning("restored the header of a damaged page queue=%s page=%d", path, header.number)
    for loss in end.losses:
        if loss.reason == "damage":
            _logger.error("messages are lost queue=%s first=%d last=%d page=%d", path, loss.first, loss.last, loss.page)
        else:
            _logger.warning(
                "numbers were used and never durable queue=%s first=%d last=%d", path, loss.first, loss.last
            )


def _checked(clock: Callable[[], int]) -> Callable[[], int]:
    """A clock of the program, whose wrong results are refused. Appends look at what they get themselves."""
    return clock if clock is time.time_ns else lambda: clock_ns(clock())
