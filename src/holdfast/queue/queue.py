"""``Queue``, the public class: it opens the files, joins writer, retention and readers, and closes them in order."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import update_wrapper
from itertools import chain
from weakref import WeakValueDictionary

from holdfast.errors import Closed, Code, HoldfastError, InternalError, InvalidRequest, NotFound, PermissionDenied
from holdfast.queue.evidence import FileEvidence, is_new
from holdfast.queue.files.disk_errors import opening, refusals
from holdfast.queue.files.local import LocalFiles, lock_taken_at
from holdfast.queue.files.meta_files import WritePositionFile, open_identity, read_identity, read_write_position
from holdfast.queue.files.pages import PageDirectory, check_new_queue
from holdfast.queue.files.port import RemovedFile
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
from holdfast.queue.format.page import PAGE_BYTES_MAX, PageHeader
from holdfast.queue.log.messages import Block, Message, class_with_value
from holdfast.queue.log.opening import LogEnd, find_end, first_seq, repair_tail
from holdfast.queue.log.reader import (
    DamagePolicy,
    LogReader,
    Waiter,
    WriterEvidence,
    check_damage_policy,
)
from holdfast.queue.log.restoration import restored_header
from holdfast.queue.log.space import Space, check_limits
from holdfast.queue.log.writer import FIRST_PAGE_BYTES, Writer
from holdfast.queue.options import (
    SyncLevel,
    clock_ns,
    each_of,
    lifetime_ns,
    moment_ns,
    sync_level,
    whole_number,
)
from holdfast.queue.serializers import Serializer, chosen_serializer, other_serializer, record_of, serializer_named
from holdfast.soundness import Soundness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, MutableMapping, Sequence
    from datetime import datetime, timedelta
    from typing import TypeVar

    from holdfast.queue.consumers.consumer import Consumer
    from holdfast.queue.files.index import KeptIndexes
    from holdfast.queue.files.port import FilePort
    from holdfast.queue.log.page_scan import Anchors
    from holdfast.queue.work.work_queue import WorkQueue

    Result = TypeVar("Result")

_logger = logging.getLogger("holdfast.queue")

SEQ_MAX = (1 << 64) - 1
PAGE_BYTES_MIN = 4096
MESSAGE_BYTES_MAX = 1 << 30
LIFETIME_LOOK_S = 10.0
CLOSED_UNDER = "the queue was closed under a reader"
HOW_TO_VERIFY = "Nothing more was written; `holdfast queue verify` reads the files"


class Queue(WithBlock):
    """A durable queue in the files ``path-*`` of one directory. See the package for its promises.

    *Raises*: ``AlreadyOpen`` when another writer has it; ``InvalidRequest`` for impossible settings; ``NotFound`` with
    ``read_only`` when there is no such queue; ``PermissionDenied``; ``Unavailable`` (disk_full) and for other refusals
    of the file system.
    *Cost*: under a millisecond after a clean close, and for a writer a sync of each directory above; after a kill about
    1 MiB of reading at most.

    With ``keep="consumed"`` a page is removed when every named consumer and work queue has committed all of its
    messages, whether it is open or not; a reader that comes later gets ``Trimmed``. Nothing is removed without a
    consumer, or while a cursor is damaged. The page being written always stays.

    ``files``, ``clock`` and ``entropy`` replace the operating system's. With ``background=False`` there is no helper
    thread; call ``run_background_work`` instead.
    """

    _is_of_work_queue = False
    _first_page_bytes = FIRST_PAGE_BYTES
    _shared_soundness: Soundness | None = None

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
        max_message = whole_number("max_message", max_message, 1, MESSAGE_BYTES_MAX)
        compression = whole_number("compression", compression, 0, 9)
        check_limits(max_bytes, full, page_size, keep)
        kept_ns = None if lifetime is None else lifetime_ns(lifetime)
        check_damage_policy(damage)
        level = sync_level(sync)
        checksum_for_writing(checksum)
        path = os.fsdecode(path)
        folder, name = os.path.split(path)
        # Later openings use the same directory, also after the process has changed its own.
        self._path = os.path.join(os.getcwd(), folder, name) if files is None and folder[:1] != "/" else path
        self._port: FilePort = files if files is not None else LocalFiles()
        self._names = FileNames(name)
        self.soundness = self._shared_soundness or Soundness("queue", HOW_TO_VERIFY)
        self._damage = damage
        self._headers: dict[int, PageHeader] = {}
        self._anchors: Anchors = {}
        self._indexes: KeptIndexes = {}
        self._writer: Writer | None = None
        if serializer is not None:
            serializer_named(serializer)  # refused before a file is touched
        self._serializer: Serializer | None = None
        self._message: type[Message] = Message
        self._append: Callable[[bytes], int] = _refuse_reader
        self._closed, self._closes_dropped = False, files is None
        self._closer: dict[str, tuple[int, int, object]] = {}  # the closing process and thread
        self._ended = threading.Event()
        self._dependents_closed: list[Consumer | WorkQueue] = []
        self._level, self._full, self._keeps_all = level, full, keep == "all"
        self._clock, self._entropy, self._with_background = clock, entropy, background
        # One mapping, which the first dependent makes: ``setdefault`` is one step, also among threads.
        self._dependents: dict[str, MutableMapping[int, Consumer | WorkQueue]] = {}
        self._keep: Callable[[], object] = _nothing
        with opening(path):
            self._directory = self._open_directory(folder, make=not read_only)
            directory = self._directory.number
            self._pages = PageDirectory(self._port, directory, self._names, restored_header)
            self._evidence = FileEvidence(self._pages, self._headers)
            self._resources = _Resources(self._pages, self._directory, self.soundness)
            try:
                if read_only:
                    self._open_for_reading(path, serializer)
                    return
                self._resources.lock_file = locked_after_dropped(lambda: self._port.lock(directory, self._names.lock))
                self._pages.be_sole()
                record = "" if serializer is None else record_of(serializer)
                writer = self._open_writer(page_size, compression, max_message, checksum, record)
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
            self._keep = close_when_dropped(self, "the queue", self._path, resources.release, warn=warn, opened=opened)

    def _open_for_reading(self, path: str, serializer: Serializer | str | None) -> None:
        # A reader may come before the first message.
        if is_new(self._pages) and self._names.write_meta not in self._pages.files():
            raise NotFound("no such queue", path=path)
        identity = read_identity(self._pages)  # refuses one of a later format
        # Payloads can always be read as bytes.
        recorded = "" if identity is None or serializer == "bytes" else identity.serializer
        self._use(chosen_serializer(serializer, recorded))
        self._close_when_dropped(warn=False)

    def _use(self, serializer: Serializer | None) -> None:
        self._serializer = serializer
        self._message = class_with_value(Message, serializer)

    def _open_directory(self, folder: str, *, make: bool) -> _Directory:
        if make:
            self._port.make_directory(folder)
        try:
            return _Directory(self._port.open_directory(folder))
        except FileNotFoundError as error:
            raise NotFound("no such directory", path=folder) from error

    def _start(self, writer: Writer, kept_ns: int | None, max_bytes: int | None) -> None:
        pages, held, keeps_all, level = self._pages, self._resources, self._keeps_all, self._level
        space = self._space = held.space = Space(
            pages,
            lifetime_ns=kept_ns,
            max_bytes=max_bytes,
            full=self._full,
            clock=_checked(self._clock),
            current=lambda: writer.page_number,
            safe_below=lambda: writer.progress.pages_safe_below,
            make_durable=lambda: writer.durability.wait_for(writer.next_seq),
            first_held=lambda: _first_held(pages),
            first_unconsumed=None if self._keeps_all else lambda: _first_unconsumed(pages),
            note_removal=writer.progress.note_removal,
            sync_holds=lambda failed: _sync_holds(pages, failed, every=not keeps_all),
            sync_failed=writer.durability.fail,
        )
        self.soundness.tell(space.break_off)
        writer.before_roll, writer.on_full = space.before_roll, space.trim
        if self._with_background:
            # Consumers in other processes wake no helper thread of this one.
            looks = [LIFETIME_LOOK_S] if kept_ns is not None or not keeps_all else []
            interval_s = min([*looks, level.ms_max / 1000] if level.ms_max else looks, default=None)
            # The thread references the parts, not this queue, which could not be dropped otherwise.
            held.background = Background(held.work, interval_s)
            writer.on_work = space.on_consumed = held.background.wake
        self._append_by(writer.append)

    def _append_by(self, append: Callable[[bytes], int]) -> None:
        """Set what ``append`` does. Without a serializer the method of the writer replaces it, a tenth faster."""
        self._append = append
        self.__dict__.pop("append", None)
        if not self._closed and self._serializer is None and type(self).append is Queue.append:
            self.__dict__["append"] = append

    def _open_writer(
        self, page_size: int, compression: int, max_message: int, checksum: int, serializer: str
    ) -> Writer:
        pages = self._pages
        if not self._is_of_work_queue:
            check_new_queue(pages)
        position_file = WritePositionFile(pages, new=is_new(pages))
        try:
            identity = open_identity(pages, self._entropy, page_size, checksum, serializer)
            if serializer and identity.serializer != serializer:
                raise other_serializer(serializer, identity.serializer)
            self.identity = identity
            end = find_end(pages, self._evidence)
            repair_tail(pages, end)
            self.recovered = end.losses
            _log_recovery(self._path, end)
            return Writer(
                pages,
                end,
                position_file,
                page_bytes=page_size,
                checksum_id=checksum,
                message_bytes_max=max_message,
                sync=self._level,
                compression=compression,
                clock=self._clock,
                entropy=self._entropy,
                first_page_bytes=self._first_page_bytes,
                soundness=self.soundness,
            )
        except BaseException:
            position_file.close()
            raise

    # ---- writing ----------------------------------------------------------------------------------------------------

    def append(self, payload: object) -> int:
        """Append one message and return its sequence number, after as much durability as the sync level promises.

        *Shape*: bytes, or what the serializer takes.
        *Raises*: ``Closed`` (also after a failed sync, and in a forked child); ``LimitExceeded`` above ``max_message``;
        ``Unavailable`` (disk_full), until there is room again; ``Backpressure`` (queue_full) with ``full="raise"``;
        ``PermissionDenied`` with ``read_only``; ``InvalidRequest`` for a message that is not bytes. After an error the
        message is not in the queue, except that a failed sync or an interrupt (Ctrl-C) leaves this open.
        *Cost*: about a microsecond at the level "os"; one shared data sync at "always". The first append after an
        opening syncs a small file in addition.
        """
        if self._serializer is not None:
            payload = self._serializer.dump(payload)
        return self._append(payload)  # type: ignore[arg-type]  # refused by the writer if it is something else

    def append_many(self, payloads: Iterable[object], *, atomic: bool = False) -> tuple[int, int]:
        """Append messages in order with no others between them; returns the first and the last sequence number.

        After a crash of the machine a frame (at most 256 KiB or 4,096 messages) is there or not; with ``atomic`` the
        batch is one frame. *Raises*: as ``append``, and ``InvalidRequest`` for an empty batch. When the disk or the
        queue is full, a part of the batch may be there: the error's ``appended`` counts it.
        """
        if not isinstance(payloads, list | tuple):
            payloads = each_of(payloads)
        encoded: Sequence[bytes] = payloads  # type: ignore[assignment]  # refused by the writer if it is something else
        if self._serializer is not None:
            encoded = [*map(self._serializer.dump, payloads)]
        elif not isinstance(payloads, list | tuple):
            encoded = [*payloads]  # type: ignore[list-item]  # refused by the writer if it is something else
        return self.append_encoded(encoded, atomic=atomic)

    def append_encoded(self, payloads: Sequence[bytes], *, atomic: bool = False) -> tuple[int, int]:
        """As ``append_many``, for payloads that the serializer has encoded already."""
        return (self._writer or self._refuse_all()).append_many(payloads, atomic=atomic)

    def append_at_once(self, payload: bytes) -> int | None:
        """Append bytes if that needs no sync and no new page; else return None. For callers that must not block."""
        return None if self._writer is None else self._writer.append_at_once(payload)

    def wait_durable(self, seq: int) -> None:
        """Return when ``seq`` and all messages before it are durable. *Raises*: ``Closed`` after a failed sync;
        ``InvalidRequest`` for a future message.
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
        """Remove the pages whose messages are all below ``before_seq``. Returns how many pages. *Raises*:
        ``Unavailable``, and some pages may be removed then; ``Closed``; ``PermissionDenied``.
        """
        (self._writer or self._refuse_all()).raise_if_closed()
        before_seq = whole_number("before_seq", before_seq, 0, SEQ_MAX)
        with refusals:
            return self._space.trim_before(before_seq)

    @property
    def space(self) -> Space:
        """Retention, for consumers."""
        if self._writer is None:
            self._refuse_all()
        return self._space

    def _refuse_all(self) -> Writer:
        raise _closed() if self._closed else _reader_only()

    @property
    def last_seq(self) -> int:
        """The newest message, 0 before the first."""
        writer = self._writer  # asked for once: closing in another thread takes it away
        if writer is not None:
            return writer.next_seq - 1
        with self.asking():
            return find_end(self._pages, self._evidence).next_seq - 1

    @property
    def durable_seq(self) -> int:
        """Messages up to this one are on disk."""
        writer = self._writer
        if writer is not None:
            return writer.durability.next_seq - 1
        with self.asking():
            written = read_write_position(self._pages)
        return written.durable.next_seq - 1 if written is not None else 0

    @property
    def skipped(self) -> int:
        """How many numbers up to ``last_seq`` have no message: a consumer or work queue has seen them, and a power
        failure took their messages before they were durable. *Raises*: ``PermissionDenied`` with ``read_only``.
        """
        return (self._writer or self._refuse_all()).skipped

    @property
    def first_seq(self) -> int:
        """The oldest message that retention has not removed, lost or not; ``last_seq + 1`` if there is none."""
        writer = self._writer
        with self.asking():
            return first_seq(self._pages, self._evidence if writer is None else WriterEvidence(writer))

    @contextmanager
    def asking(self) -> Generator[None]:
        """A block that reads files. Refusals of the file system become ``Unavailable``; if another thread closes the
        queue meanwhile, the block raises ``Closed``: the directory's number may be reused, so its result does not
        count.
        """
        self.soundness.require()
        if self._closed:
            raise Closed("the queue is closed")
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

    def reader(
        self, *, since: datetime | str | None = None, seq: int | None = None, damage: DamagePolicy | None = None
    ) -> LogReader:
        """A position in the log at a starting point. ``read_messages()`` and ``read_blocks()`` return what is there
        now, or None; they never wait. Errors of the file system are ``OSError``.
        """
        self.soundness.require()
        if self._closed:
            raise Closed("the queue is closed")
        if since is not None and seq is not None:
            raise InvalidRequest("since and seq exclude each other")
        reader = LogReader(
            self._pages,
            self._evidence,
            damage=damage if damage is not None else self._damage,
            writer=self._writer,
            headers=self._headers,
            anchors=self._anchors,
            indexes=self._indexes,
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

    def begin_reading(self, since: datetime | str | None, seq: int | None, damage: DamagePolicy | None) -> LogReader:
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
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        follow: bool = False,
        damage: DamagePolicy | None = None,
    ) -> Iterator[Message]:
        """The messages from a starting point on, in order: a time (aware), ``"earliest"`` (default), ``"latest"``, or
        ``seq``. "latest" is after the last appended message; in another process, after the last readable one.

        Without ``follow`` the iterator ends at the end of the log; with it, it waits for the next message. Reading does
        not consume. ``read_payloads`` and ``batches`` take less time for each message.

        *Raises*: ``InvalidRequest``; ``Gap`` and ``Trimmed`` as ``damage`` says ("raise", "skip", or a
        callable that gets the report); ``Unavailable`` when the file system refuses; ``Closed``.
        """
        reader = self.begin_reading(since, seq, damage)
        nothing: Iterator[Iterable[Message]] = iter(())
        windows = self._along(reader, reader.read_message_parts, follow, nothing)
        return chain.from_iterable(chain.from_iterable(windows))

    def read_payloads(
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        follow: bool = False,
        damage: DamagePolicy | None = None,
    ) -> Iterator[bytes]:
        """As ``read``, the bytes of each message alone, also with a serializer: the fastest way to read all of a log.

        *Cost*: of a log in batches a third of ``read``, of one written one by one three quarters, because each of its
        messages has a checksum.
        """
        reader = self.begin_reading(since, seq, damage)
        nothing: list[Sequence[bytes]] = []
        windows = self._along(reader, reader.read_payloads, follow, nothing)
        return chain.from_iterable(chain.from_iterable(windows))

    def batches(
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        follow: bool = False,
        damage: DamagePolicy | None = None,
    ) -> Iterator[Block]:
        """As ``read``, in blocks of consecutive messages without an object for each. For programs that handle many
        messages at a time, that need their numbers, or that look at some of them only.
        """
        reader = self.begin_reading(since, seq, damage)
        return chain.from_iterable(self._along(reader, reader.read_blocks, follow, []))

    def _along(
        self, reader: LogReader, step: Callable[[], Result | None], follow: bool, nothing: Result
    ) -> Iterator[Result]:
        """What each step returns. The generator is started here: an unstarted one would not release its files."""
        steps = self._steps(reader, step, follow, nothing)
        next(steps)
        return steps

    def _steps(
        self, reader: LogReader, step: Callable[[], Result | None], follow: bool, nothing: Result
    ) -> Iterator[Result]:
        waiter = self.waiter() if follow else None
        try:
            yield nothing
            while True:
                if waiter is not None:
                    waiter.arm()
                with self.asking():
                    result = step()
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

    def values(
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        follow: bool = False,
        damage: DamagePolicy | None = None,
    ) -> Iterator[object]:
        """As ``read``, what the serializer makes of each payload; bytes without one."""
        return (message.value for message in self.read(since=since, seq=seq, follow=follow, damage=damage))

    @property
    def serializer(self) -> Serializer | None:
        """The serializer; None for bytes."""
        return self._serializer

    @property
    def pages(self) -> PageDirectory:
        """The files: port, directory, names."""
        return self._pages

    def waiter(self) -> Waiter:
        """Waits for the next message, for callers of ``reader``."""
        writer = self._writer
        return Waiter(None, None) if writer is None else Waiter(writer.notify_once, writer.notify_no_more)

    # ---- consumers --------------------------------------------------------------------------------------------------

    def consumer(
        self,
        name: str,
        *,
        since: datetime | str | None = None,
        damage: DamagePolicy | None = None,
        hold: bool | None = None,
    ) -> Consumer:
        """A reader whose position is kept under ``name``; see ``Consumer``.

        ``since`` is where a new consumer begins: a time, ``"earliest"`` (default), ``"latest"``. With ``hold``
        retention keeps what it has not committed, whether it is open or not; by default unless ``full`` is
        "drop_oldest". *Raises*: ``AlreadyOpen`` when the name is in use in any process; ``InvalidRequest`` for an
        impossible name; ``PermissionDenied``; ``Unavailable``; ``Closed``.
        *Cost*: under a millisecond and a small data sync; two more syncs for a new name.
        """
        from holdfast.queue.consumers.consumer import Consumer

        self.soundness.require()
        if self._closed:
            raise Closed("the queue is closed")
        holding = self._full != "drop_oldest" if hold is None else hold
        with opening(self._path):
            consumer = Consumer(self, self._pages, name, since=since, damage=damage, hold=holding)
        self._add_dependent(consumer)
        return consumer

    def work_queue(
        self,
        name: str,
        *,
        ack_wait: float = 30.0,
        max_deliveries: int = 5,
        retry_delay: float = 1.0,
        max_retry_delay: float = 300.0,
        max_started: int = 100_000,
        since: datetime | str | None = None,
        damage: DamagePolicy | None = None,
        hold: bool = True,
    ) -> WorkQueue:
        """Jobs for workers: each message goes to one worker until a worker acknowledges it; see ``WorkQueue``.

        A worker has a job for ``ack_wait`` seconds. After ``max_deliveries`` the job goes to the dead letters, the
        queue ``<path>-<name>-dead``. ``retry`` waits ``retry_delay`` seconds, doubled with each delivery up to
        ``max_retry_delay``. At most ``max_started`` messages are leased or delayed at a time. ``since``, ``damage`` and
        ``hold`` are as for ``consumer``; a work queue holds by default.
        *Raises*: as ``consumer``.
        *Cost*: replays about 128 KiB of commands, and a sync.
        """
        from holdfast.queue.work.work_queue import WorkQueue

        self.soundness.require()
        if self._closed:
            raise Closed("the queue is closed")
        with opening(self._path):
            work = WorkQueue(
                self,
                self._pages,
                name,
                clock=_checked(self._clock),
                ack_wait=ack_wait,
                max_deliveries=max_deliveries,
                retry_delay=retry_delay,
                max_retry_delay=max_retry_delay,
                max_started=max_started,
                since=since,
                damage=self._damage if damage is None else damage,
                hold=hold,
            )
        self._add_dependent(work)
        return work

    def _add_dependent(self, dependent: Consumer | WorkQueue) -> None:
        # Weak references: a dropped dependent closes itself, except over files of the program's own.
        made: MutableMapping[int, Consumer | WorkQueue] = WeakValueDictionary() if self._closes_dropped else {}
        self._dependents.setdefault("", made)[id(dependent)] = dependent

    def _open_dependents(self) -> list[Consumer | WorkQueue]:
        return [dependent for known in self._dependents.values() for dependent in known.values()]

    def forget(self, dependent: Consumer | WorkQueue) -> None:
        """The dependent is closed: closing the queue need not close it."""
        for known in self._dependents.values():
            known.pop(id(dependent), None)

    def close_when_dropped(
        self, dependent: Consumer | WorkQueue, what: str, release: Callable[[], object]
    ) -> Callable[[], object]:
        """Close a dependent that the program drops; nothing is done over the program's own files."""
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
        """The queue ``<path>-<name>`` in the same directory, also after that was renamed. ``sync`` defaults to this
        queue's level; at "always" the caller uses ``wait_durable``.
        """
        level = self._level if sync is None and self._level.name == "every" else (sync or "os")
        return _QueueOfWork(
            self._directory,
            f"{self._path}-{name}",
            page_size=page_size,
            sync=level,
            max_message=MESSAGE_BYTES_MAX,
            read_only=read_only,
            files=self._port,
            clock=clock if clock is not None else self._clock,
            entropy=self._entropy,
            background=self._with_background,
            soundness=self.soundness,
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
        """The helper thread's work: prepare the next page, sync closed pages, keep the bounds of ``every``. *Raises*:
        ``Closed`` after a failed sync, and in a forked child; ``OSError``.
        """
        self._resources.run_background_work()

    def close(self) -> None:
        """Make everything durable and release the files. Closing twice is harmless; a second thread waits for the
        first, except in a callback for damage.

        *Raises*: ``Closed`` when something could not be made durable; ``Unavailable`` when only the record of the clean
        end could not be written; ``InternalError`` after a broken invariant, and nothing is written. The files are
        always released.
        """
        if self._ended.is_set():
            return
        closer = os.getpid(), threading.get_ident(), object()
        first = self._closer.setdefault("", closer)  # one step, also under a signal
        if first[0] != closer[0]:  # the parent of this forked child was closing it
            self._closer, self._ended = {"": closer}, threading.Event()
        elif first is not closer:
            # In a signal handler or a callback for damage, the closing thread may be waiting for this one.
            dependents = [*self._open_dependents(), *self._dependents_closed]
            if first[1] != closer[1] and not any(
                getattr(dependent, "read_by", 0) == closer[1] for dependent in dependents
            ):
                self._ended.wait()
            return
        self._keep()
        self._dependents_closed = self._open_dependents()
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
        self._append_by(_refuse_closed)
        try:
            self._resources.release()
        finally:
            self._writer = None

    def poison_after_fork(self) -> None:
        """In a forked child: release the lock, which is the parent's, and refuse everything."""
        if self._writer is not None:
            self._writer.poison_after_fork(forked("write to its parent's queue"))
            # The parent's threads may have held any lock; the writer has new ones.
            self._append_by(self._writer.append)
            self._resources.background = None
            self._space.poison_after_fork()
            self._pages.be_sole(sole=False)
        self._keep()
        if self._resources.lock_file >= 0:
            self._port.close(self._resources.lock_file)
            self._resources.lock_file = -1


for _append in Writer.APPENDS:
    # ``Queue._append_by`` may put it in the place of ``Queue.append``: errors, ``repr`` and ``help`` name that one.
    update_wrapper(_append, Queue.append, assigned=("__name__", "__qualname__", "__doc__"), updated=())


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

    __slots__ = ("background", "directory", "lock_file", "pages", "soundness", "space", "writer")

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


def _first_held(pages: PageDirectory) -> int | None:
    from holdfast.queue.consumers.cursor_file import first_held_seq

    return first_held_seq(pages)


def _first_unconsumed(pages: PageDirectory) -> int | None:
    from holdfast.queue.consumers.cursor_file import first_unconsumed_seq

    return first_unconsumed_seq(pages)


def _sync_holds(pages: PageDirectory, failed: Callable[[OSError], None], *, every: bool) -> None:
    from holdfast.queue.consumers.cursor_file import sync_holds

    def not_synced(error: OSError) -> None:
        if not isinstance(error, RemovedFile):  # a cursor without a name holds nothing
            failed(error)

    sync_holds(pages, not_synced, every=every)


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


def _nothing() -> None:
    """There is nothing to do."""


def _closed() -> HoldfastError:
    return Closed("the queue is closed")


def _reader_only() -> HoldfastError:
    return PermissionDenied("the queue is open for reading only", code=Code.PERMISSION_DENIED)


def _refuse_closed(payload: bytes) -> int:  # noqa: ARG001 - replaces the append of a writer
    raise _closed()


def _refuse_reader(payload: bytes) -> int:  # noqa: ARG001 - replaces the append of a writer
    raise _reader_only()


class _QueueOfWork(Queue):
    """A queue that a work queue makes for itself, under a reserved name, in the open directory of its queue."""

    _is_of_work_queue = True

    def __init__(
        self,
        directory: _Directory,
        path: str,
        *,
        page_size: int,
        sync: SyncLevel | str,
        max_message: int,
        read_only: bool,
        files: FilePort,
        clock: Callable[[], int],
        entropy: Callable[[int], bytes],
        background: bool,
        soundness: Soundness,
    ) -> None:
        self._shared = directory
        self._shared_soundness = soundness
        super().__init__(
            path,
            page_size=page_size,
            sync=sync,
            max_message=max_message,
            read_only=read_only,
            files=files,
            clock=clock,
            entropy=entropy,
            background=background,
        )

    def _open_directory(self, folder: str, *, make: bool) -> _Directory:
        return self._shared if self._shared.share() else super()._open_directory(folder, make=make)
