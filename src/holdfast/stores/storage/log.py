"""The log of the stores: frames on the embedded queue's pages.

A frame is a message of the queue, with the queue's sequence number: from 1, never repeated, removed only from the front
(``trim``). A synced group survives everything but the loss of the disk, an appended one survives the death of the
process. A start finds a prefix of what was appended. After a failed write or sync the log accepts nothing more.

The queue's errors are translated, because its hints do not help users of stores. Class, code and facts stay.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from operator import attrgetter

from holdfast.errors import (
    AlreadyOpen,
    Closed,
    Code,
    CorruptData,
    Fenced,
    HoldfastError,
    InternalError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    statement_of,
)
from holdfast.queue.log.messages import Message as QueueMessage
from holdfast.queue.log.reader import LogReader
from holdfast.queue.stores_log import StoresLog
from holdfast.stores.values.ports import ReadUnavailable

_START_AGAIN = "start the service again: it finds what the log holds"
_REPAIR = "holdfast stores repair {} tells what is lost; holdfast stores restore BACKUP NEW makes stores of a backup"


def of_the_stores(error: HoldfastError, directory: str) -> HoldfastError:
    """The error to raise from ``error``, which the queue in ``directory`` raised.

    >>> of_the_stores(CorruptData("messages are damaged", first=5), "d").hint
    'holdfast stores repair d tells what is lost; holdfast stores restore BACKUP NEW makes stores of a backup'
    """
    facts = {**error.fields, "directory": directory}
    message = f"the stores' log: {error.message}"
    if isinstance(error, CorruptData):
        # A later version is not damage: then the queue's own advice holds.
        hint = error.hint if "format_version" in error.fields else _REPAIR.format(directory)
        return CorruptData(message, code=error.code, hint=hint, facts=facts)
    if isinstance(error, Closed):
        return Closed(message, code=error.code, hint=_START_AGAIN, facts=facts)
    if isinstance(error, AlreadyOpen):
        return AlreadyOpen(message, code=error.code, hint=error.hint, facts=facts)
    if isinstance(error, Unavailable):
        hint = f"free some space, then {_START_AGAIN}" if error.code is Code.DISK_FULL else ""
        return Unavailable(message, code=error.code, hint=hint, retry_after_ms=error.retry_after_ms, facts=facts)
    return NotFound(message, code=error.code, facts=facts) if isinstance(error, NotFound) else error


def not_done(failure: BaseException) -> HoldfastError:
    """The reply to a command that changed nothing because the log has failed: it can be sent again.

    >>> not_done(Unavailable("the disk is full", code=Code.DISK_FULL)).code
    <Code.CLOSED: 'closed'>
    """
    if isinstance(failure, Fenced):
        return failure
    return Closed("the stores have failed, and this command was not done", hint=_START_AGAIN, facts=_cause(failure))


def perhaps_done(failure: BaseException) -> HoldfastError:
    """The reply to a command that was applied when the log failed.

    >>> perhaps_done(Unavailable("the disk is full", code=Code.DISK_FULL)).statement()
    'the stores have failed, and it is unknown whether the command was done cause=the disk is full cause_code=disk_full'
    """
    if isinstance(failure, Fenced):
        return OutcomeUnknown(
            "another leader may have this command or not",
            hint="ask the leader; a publisher can send numbered messages again with the same numbers",
            facts=_cause(failure),
        )
    return OutcomeUnknown(
        "the stores have failed, and it is unknown whether the command was done",
        hint="start the service again and check; a publisher can send numbered messages again with the same numbers",
        facts=_cause(failure),
    )


def own_failure(error: BaseException) -> HoldfastError:
    """The reply to the command that met the failure itself: nothing of it was written."""
    if isinstance(error, HoldfastError):
        return error
    return InternalError("the stores have failed", cause=str(error))


def _cause(failure: BaseException) -> dict[str, object]:
    return {
        "cause": statement_of(failure),
        "cause_code": str(failure.code) if isinstance(failure, HoldfastError) else None,
    }


LOG_NAME = "messages"  # the name of the queue in the stores' directory
READERS_MAX = 16
"""Places kept open: one for each durable that walks through its backlog, and another seek where there are more."""
SKIP_MAX = 512  # frames that a kept place may skip; a seek is dearer than to read over so many


class MessageLog:
    """Frames by number. ``append`` and ``write_mark`` belong to one thread at a time, ``sync`` to any, the rest to
    another.

    *Raises*: ``AlreadyOpen`` when another process has it; ``CorruptData``; ``OSError``.
    """

    def __init__(self, directory: str, *, page_bytes: int = 64 << 20, read_only: bool = False) -> None:
        self.directory = directory
        path = os.path.join(directory, LOG_NAME)
        with self._named():
            self.queue = StoresLog(path, page_size=page_bytes, sync="os", max_message=1 << 30, read_only=read_only)
        self._places: dict[int, tuple[LogReader, list[QueueMessage]]] = {}

    @property
    def first(self) -> int:
        """The oldest frame that there is; ``last + 1`` where there is none."""
        return self.queue.first_seq

    @property
    def last(self) -> int:
        """The newest frame that was appended."""
        return self.queue.last_seq

    @property
    def durable(self) -> int:
        """Frames up to this one survive the loss of power."""
        return self.queue.durable_seq

    def append(self, frames: Sequence[bytes]) -> None:
        """Append a group in order. Not durable yet. *Raises*: ``Unavailable`` (disk_full), ``Closed``."""
        try:
            if len(frames) == 1:  # the same bytes, by the queue's quick way
                self.queue.append(frames[0])
            else:
                self.queue.append_many(frames)
        except HoldfastError as error:
            raise of_the_stores(error, self.directory) from error

    def sync(self, *, mark: bool = True) -> None:
        """Return when everything appended is durable. *Raises*: ``Closed`` after a sync that failed.

        Without ``mark``, the queue's write position waits for ``write_mark``, or for a sync with it.
        """
        try:
            if mark:
                self.queue.flush()
            else:
                self.queue.flush_data()
        except HoldfastError as error:
            raise of_the_stores(error, self.directory) from error

    def write_mark(self) -> None:
        """Write the position that a ``sync`` without it has left, if any."""
        self.queue.record_position()

    def frames(self, first: int) -> Iterator[tuple[int, bytes]]:
        """All frames from ``first`` on, in order, up to the last one now.

        *Raises*: ``CorruptData`` for damaged frames; ``NotFound`` if ``first`` was removed; ``ReadUnavailable``.
        """
        number, last = max(first, self.first) - 1, self.last
        with self._reading():
            for message in self.queue.read(seq=number + 1):
                yield message.seq, message.payload
                number = message.seq
        # A hole at the end is after everything readable, so reading alone does not find it.
        if number < last:
            missing = CorruptData("frames are missing", first=number + 1, last=last)
            raise of_the_stores(missing, self.directory)

    def read(self, first: int, last: int) -> list[tuple[int, bytes]]:
        """The frames ``first`` to ``last``, all of them.

        *Raises*: ``CorruptData`` for a damaged or missing one; ``ReadUnavailable``. *Cost*: after a read of the frames
        before, their bytes; else a seek: the headers of some pages and some frames of one.
        """
        with self._reading():
            return self._read(first, last)

    def _read(self, first: int, last: int) -> list[tuple[int, bytes]]:
        near = max((number for number in self._places if first - SKIP_MAX <= number <= first), default=0)
        if near:
            reader, waiting = self._places.pop(near)
            try:
                return self._read_along(reader, waiting, first, last)
            except (NotFound, CorruptData):
                pass  # what lay between its place and ``first`` was trimmed, or is damaged and was not requested
        return self._read_along(self.queue.reader(seq=first), [], first, last)

    def _read_along(
        self, reader: LogReader, waiting: list[QueueMessage], first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Read to ``last`` from a place at or before ``first``; ``waiting`` was read there already."""
        messages: list[QueueMessage] = []
        try:
            while not waiting or waiting[-1].seq < last:
                messages += waiting
                more = reader.read_near()
                if more is None:
                    raise CorruptData("frames are missing", first=first, last=last)
                waiting = more
        except BaseException:
            reader.close()
            raise
        cut = bisect_left(waiting, last + 1, key=attrgetter("seq"))
        messages += waiting[:cut]
        self._keep(last + 1, reader, waiting[cut:])
        return [(message.seq, message.payload) for message in messages if message.seq >= first]

    def _keep(self, number: int, reader: LogReader, waiting: list[QueueMessage]) -> None:
        known = self._places.pop(number, None)
        if known is not None:
            known[0].close()
        while len(self._places) >= READERS_MAX:
            self._places.pop(next(iter(self._places)))[0].close()
        self._places[number] = reader, waiting

    def readable(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """The frames of ``first..last`` that can be read; missing ones are damaged or gone. To search for damage."""
        first, last = max(first, self.first), min(last, self.last)
        if first > last:
            return
        with self._reading():
            for message in self.queue.read(seq=first, damage="skip"):
                if message.seq > last:
                    return
                yield message.seq, message.payload

    def checksum(self, number: int) -> int | None:
        """The CRC-32 of a frame; None if it is absent or unreadable. Any thread."""
        if not self.first <= number <= self.last:
            return None
        with suppress(HoldfastError), closing(self.queue.reader(seq=number)) as reader:
            messages = reader.read_near() or []
            return next((zlib.crc32(message.payload) for message in messages if message.seq == number), None)
        return None

    def trim(self, before: int) -> int:
        """Remove pages whose frames are all before this one; returns how many. Call while they are not read."""
        return self.queue.trim(before_seq=before)

    def page_bytes(self) -> list[int]:
        """The bytes of each page, oldest first."""
        pages = self.queue.pages
        return [pages.port.size_of(pages.directory, pages.names.page(number)) for number in pages.numbers()]

    @contextmanager
    def _named(self) -> Generator[None]:
        """Translate errors of the queue."""
        try:
            yield
        except HoldfastError as error:
            raise of_the_stores(error, self.directory) from error

    @contextmanager
    def _reading(self) -> Generator[None]:
        """As ``_named``; a failed read becomes ``ReadUnavailable``."""
        try:
            with self._named():
                yield
        except Unavailable as error:
            raise ReadUnavailable(
                error.message, code=error.code, hint=error.hint, retry_after_ms=error.retry_after_ms, facts=error.fields
            ) from error

    def close(self) -> None:
        """Make everything durable and close the files. *Raises*: ``Closed`` when it could not be made durable."""
        for reader, _ in self._places.values():
            reader.close()
        self._places.clear()
        self.queue.close()
