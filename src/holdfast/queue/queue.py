"""``Queue``, the public class. ``QueueCore`` does the work."""

from __future__ import annotations

from functools import update_wrapper
from itertools import chain

from holdfast.queue.core import QueueCore
from holdfast.queue.files.disk_errors import opening
from holdfast.queue.files.process import WithBlock
from holdfast.queue.log.reader import LogReader
from holdfast.queue.log.tail import LogTail
from holdfast.queue.options import each_of, same_arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from holdfast.queue.consumers.consumer import Consumer
    from holdfast.queue.log.messages import Block, Damage, Message
    from holdfast.queue.options import Since
    from holdfast.queue.work.work_queue import WorkQueue


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
    thread: appends prepare pages, and only calls sync and remove them.
    """

    _core_class = QueueCore

    @same_arguments(QueueCore.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        core = self._core = self._core_class(*args, **options)
        if core.writable and core.serializer is None and type(self).append is Queue.append:
            self.__dict__["append"] = core.writer.tail.append  # a tenth faster

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
        core = self._core
        if core.serializer is not None:
            payload = core.serializer.dump(payload)
        return core.append(payload)  # type: ignore[arg-type]  # refused by the writer if it is something else

    def append_many(self, payloads: Iterable[object], *, atomic: bool = False) -> tuple[int, int]:
        """Append messages in order with no others between them; returns the first and the last sequence number.

        After a crash of the machine a frame (at most 256 KiB or 4,096 messages) is there or not; with ``atomic`` the
        batch is one frame. *Raises*: as ``append``, and ``InvalidRequest`` for an empty batch. When the disk or the
        queue is full, a part of the batch may be there: the error's ``appended`` counts it.
        """
        serializer = self._core.serializer
        if not isinstance(payloads, list | tuple):
            payloads = [*each_of(payloads)]
        encoded: Sequence[bytes] = payloads  # type: ignore[assignment]  # refused by the writer if it is something else
        if serializer is not None:
            encoded = [*map(serializer.dump, payloads)]
        return self._core.append_many(encoded, atomic=atomic)

    def flush(self) -> None:
        """Return when everything appended so far is durable. *Raises*: ``Closed`` after a failed sync."""
        self._core.flush()

    def trim(self, *, before_seq: int) -> int:
        """Remove the pages whose messages are all below ``before_seq``. Returns how many pages. *Raises*:
        ``Unavailable``, and some pages may be removed then; ``Closed``; ``PermissionDenied``.
        """
        return self._core.trim(before_seq=before_seq)

    @property
    def last_seq(self) -> int:
        """The newest message, 0 before the first."""
        return self._core.last_seq

    @property
    def durable_seq(self) -> int:
        """Messages up to this one are on disk."""
        return self._core.durable_seq

    @property
    def first_seq(self) -> int:
        """The oldest message that retention has not removed, lost or not; ``last_seq + 1`` if there is none."""
        return self._core.first_seq

    @property
    def skipped(self) -> int:
        """How many numbers up to ``last_seq`` have no message: a consumer or work queue has seen them, and a power
        failure took their messages before they were durable. *Raises*: ``PermissionDenied`` with ``read_only``.
        """
        return self._core.writer.skipped

    def read(
        self, *, since: Since = None, seq: int | None = None, follow: bool = False, damage: Damage = None
    ) -> Iterator[Message]:
        """The messages from a starting point on, in order: a time (aware), ``"earliest"`` (default), ``"latest"``, or
        ``seq``. "latest" is after the last appended message; in another process, after the last readable one.

        Without ``follow`` the iterator ends at the end of the log; with it, it waits for the next message. Reading does
        not consume. ``read_payloads`` and ``batches`` take less time for each message.

        *Raises*: ``InvalidRequest``; ``Gap`` and ``Trimmed`` as ``damage`` says ("raise", "skip", or a
        callable that gets the report); ``Unavailable`` when the file system refuses; ``Closed``.
        """
        return self._core.read(since=since, seq=seq, follow=follow, damage=damage)

    def read_payloads(
        self, *, since: Since = None, seq: int | None = None, follow: bool = False, damage: Damage = None
    ) -> Iterator[bytes]:
        """As ``read``, the bytes of each message alone, also with a serializer: the fastest way to read all of a log.

        *Cost*: of a log in batches a third of ``read``, of one written one by one three quarters, because each of its
        messages has a checksum.
        """
        nothing: list[Sequence[bytes]] = []
        parts = self._core.along(LogReader.read_payloads, nothing, since, seq, follow, damage)
        return chain.from_iterable(chain.from_iterable(parts))

    def batches(
        self, *, since: Since = None, seq: int | None = None, follow: bool = False, damage: Damage = None
    ) -> Iterator[Block]:
        """As ``read``, in blocks of consecutive messages without an object for each. For programs that handle many
        messages at a time, that need their numbers, or that look at some of them only.
        """
        return chain.from_iterable(self._core.along(LogReader.read_blocks, [], since, seq, follow, damage))

    def values(
        self, *, since: Since = None, seq: int | None = None, follow: bool = False, damage: Damage = None
    ) -> Iterator[object]:
        """As ``read``, what the serializer makes of each payload; bytes without one."""
        return (message.value for message in self.read(since=since, seq=seq, follow=follow, damage=damage))

    def consumer(self, name: str, *, since: Since = None, damage: Damage = None, hold: bool | None = None) -> Consumer:
        """A reader whose position is kept under ``name``; see ``Consumer``.

        ``since`` is where a new consumer begins: a time, ``"earliest"`` (default), ``"latest"``. With ``hold``
        retention keeps what it has not committed, whether it is open or not; by default unless ``full`` is
        "drop_oldest". *Raises*: ``AlreadyOpen`` when the name is in use in any process; ``InvalidRequest`` for an
        impossible name; ``PermissionDenied``; ``Unavailable``; ``Closed``.
        *Cost*: under a millisecond and a small data sync; two more syncs for a new name.
        """
        from holdfast.queue.consumers.consumer import Consumer

        core = self._core
        core.require_open()
        holding = core.full != "drop_oldest" if hold is None else hold
        with opening(core.path):
            consumer = Consumer(core, name, since=since, damage=damage, hold=holding)
        core.add(consumer)
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
        since: Since = None,
        damage: Damage = None,
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

        core = self._core
        core.require_open()
        with opening(core.path):
            work = WorkQueue(
                core,
                name,
                ack_wait=ack_wait,
                max_deliveries=max_deliveries,
                retry_delay=retry_delay,
                max_retry_delay=max_retry_delay,
                max_started=max_started,
                since=since,
                damage=core.damage if damage is None else damage,
                hold=hold,
            )
        core.add(work)
        return work

    def close(self) -> None:
        """Make everything durable and release the files. Closing twice is harmless; a second thread waits for the
        first, except in a callback for damage.

        *Raises*: ``Closed`` when something could not be made durable; ``Unavailable`` when only the record of the clean
        end could not be written; ``InternalError`` after a broken invariant, and nothing is written. The files are
        always released.
        """
        self._core.close()


def core_of(queue: Queue) -> QueueCore:
    """The inside of a queue, for this package."""
    return queue._core  # pyright: ignore[reportPrivateUsage] - of this module


# It stands in the place of ``Queue.append``: errors, ``repr`` and ``help`` name that one.
update_wrapper(LogTail.append, Queue.append, assigned=("__name__", "__qualname__", "__doc__"), updated=())
QueueCore.__init__.__qualname__ = "Queue.__init__"  # in errors of Python
