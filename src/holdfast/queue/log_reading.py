"""The half of a queue that reads: where the log stands, starting points, iterating, following.

Owns: those public methods. Does not own: opening and writing (``queue``), the way along the log (``reader``), waiting
(``following``).

Failure model: reads only, beside a writer in this process or without one. An iterator lets go of its files when it ends
or nobody has it any more, begun or not. One that is under way in another thread while the queue is closed ends with
``Closed``, whatever it met in files that went from under it.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain

from holdfast.errors import Closed, InvalidRequest
from holdfast.queue.arguments import whole_number
from holdfast.queue.datetimes import moment_ns
from holdfast.queue.files.disk_errors import refusals
from holdfast.queue.log.following import Waiter
from holdfast.queue.log.opening import find_end
from holdfast.queue.log.reader import LogReader, read_mark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from datetime import datetime
    from typing import TypeVar

    from holdfast.queue.files.index_reader import KeptIndexes
    from holdfast.queue.files.pages import PageDirectory
    from holdfast.queue.format.page_header import PageHeader
    from holdfast.queue.log.messages import Block, Message
    from holdfast.queue.log.page_scan import Anchors
    from holdfast.queue.log.reader import DamagePolicy
    from holdfast.queue.log.writer import Writer
    from holdfast.queue.serializers import Serializer

    Found = TypeVar("Found")

__all__ = ["SEQ_MAX", "LogReading"]

SEQ_MAX = (1 << 64) - 1
CLOSED_UNDER = "the queue was closed under a reader"


class LogReading:
    """What ``Queue`` inherits. Its fields are set by ``Queue``; ``_writer`` is None for a reader."""

    _anchors: Anchors
    _closed: bool
    _damage: DamagePolicy
    _headers: dict[int, PageHeader]
    _indexes: KeptIndexes
    _message: type[Message]
    _pages: PageDirectory
    _serializer: Serializer | None
    _writer: Writer | None

    # ---- where it stands --------------------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        """The newest message, 0 before the first."""
        found = self._writer  # asked for once: closing in another thread takes it away
        if found is not None:
            return found.next_seq - 1
        with self.asking():
            return find_end(self._pages, read_mark(self._pages), self._pages.port.boot_id()).next_seq - 1

    @property
    def durable_seq(self) -> int:
        """Messages up to this one are on disk and survive everything but the loss of the disk."""
        writer = self._writer
        if writer is not None:
            return writer.durability.next_seq - 1
        with self.asking():
            mark = read_mark(self._pages)
        return mark.durable.next_seq - 1 if mark is not None else 0

    @property
    def first_seq(self) -> int:
        """The oldest message that has not been removed; ``last_seq + 1`` while there is none."""
        with self.asking():
            for number in self._pages.numbers():
                header = self._pages.header_of(number)
                if header is not None and not header.prepared:
                    return header.base_seq
        writer = self._writer
        return writer.next_seq if writer is not None else self.last_seq + 1

    @contextmanager
    def asking(self) -> Generator[None]:
        """A block that asks the files: what they refuse is ``Unavailable``, and what comes of asking while the queue is
        closed in another thread is ``Closed``. The number of its directory may be another one's by then, so nothing
        that was found there counts, neither messages nor damage."""
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
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        damage: DamagePolicy | None = None,
    ) -> LogReader:
        """A place in the log at a starting point: the primitive under ``read``, ``batches`` and consumers.

        ``reader.read_messages()`` and ``reader.read_blocks()`` return what is there now, or None; they never wait.
        What the file system raises passes, here and there, as ``OSError``.
        """
        if self._closed:
            raise Closed("the queue is closed")
        if since is not None and seq is not None:
            raise InvalidRequest("since and seq exclude each other")
        writer = self._writer
        found = LogReader(
            self._pages,
            damage=damage if damage is not None else self._damage,
            live_next_seq=(lambda: writer.next_seq) if writer is not None else None,
            headers=self._headers,
            anchors=self._anchors,
            indexes=self._indexes,
            message=self._message,
        )
        try:
            if seq is not None:
                found.seek_seq(whole_number("seq", seq, 1, SEQ_MAX))
            elif since is None or since == "earliest":
                found.seek_earliest()
            elif since == "latest":
                found.seek_latest()
            else:
                found.seek_time(moment_ns(since))
        except BaseException:
            found.close()
            raise
        return found

    def begin_reading(self, since: datetime | str | None, seq: int | None, damage: DamagePolicy | None) -> LogReader:
        """As ``reader``; what goes wrong is told as ``asking`` tells it."""
        found: LogReader | None = None
        try:
            with self.asking():
                found = self.reader(since=since, seq=seq, damage=damage)
        except BaseException:
            if found is not None:
                found.close()
            raise
        return found

    def read(
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        follow: bool = False,
        damage: DamagePolicy | None = None,
    ) -> Iterator[Message]:
        """The messages from a starting point on, in order: a time (aware), ``"earliest"`` (default), ``"latest"``, or
        ``seq``. "latest" is behind all that was appended, and in another process behind all that can be read there.

        Without ``follow`` the iterator ends where the log does; with it, it waits for the next message. Reading marks
        nothing as read. *Raises*: ``InvalidRequest``; ``Gap`` and ``Trimmed`` as ``damage`` says: "raise", "skip", or a
        callable that is told; ``Unavailable`` where the file system refuses; ``Closed``.
        """
        found = self.begin_reading(since, seq, damage)
        nothing: Iterator[Iterable[Message]] = iter(())
        windows = self._along(found, found.read_message_parts, follow, nothing)
        return chain.from_iterable(chain.from_iterable(windows))

    def batches(
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        follow: bool = False,
        damage: DamagePolicy | None = None,
    ) -> Iterator[Block]:
        """As ``read``, in blocks of consecutive messages without an object for each."""
        found = self.begin_reading(since, seq, damage)
        return chain.from_iterable(self._along(found, found.read_blocks, follow, []))

    def _along(
        self, reader: LogReader, step: Callable[[], Found | None], follow: bool, nothing: Found
    ) -> Iterator[Found]:
        """What each step finds. Begun here: a generator that nobody ever asks would not let go of its files."""
        steps = self._steps(reader, step, follow, nothing)
        next(steps)
        return steps

    def _steps(
        self, reader: LogReader, step: Callable[[], Found | None], follow: bool, nothing: Found
    ) -> Iterator[Found]:
        waiter = self.waiter() if follow else None
        try:
            yield nothing
            while True:
                if waiter is not None:
                    waiter.arm()
                with self.asking():
                    found = step()
                if found is not None:
                    yield found
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
        """What makes bytes of values and values of bytes; None for bytes."""
        return self._serializer

    @property
    def pages(self) -> PageDirectory:
        """The files, for what is built on a queue: its port, its directory, its names."""
        return self._pages

    def waiter(self) -> Waiter:
        """How to wait for the next message; for those who drive a reader themselves."""
        writer = self._writer
        return Waiter(None, None) if writer is None else Waiter(writer.notify_once, writer.notify_no_more)
