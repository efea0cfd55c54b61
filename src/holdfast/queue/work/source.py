"""The messages of a work queue's jobs: new ones in order, and those that come back, from anywhere.

Owns: reading on, what was read ahead, what was read around the last one that came back; reading the dead letters. Does
not own: which message is wanted (``work_machine``), the log (``reader``).

Failure model: reads only. What is read ahead is at most one window of the reader, what is kept of a message that came
back at most its batch. A report (``Gap``, ``Trimmed``) that is raised moves nothing, and is raised again.
"""

from __future__ import annotations

from itertools import chain, islice

from holdfast.errors import NotFound
from holdfast.queue.log.messages import Gap
from holdfast.queue.work.dead_letter import DeadLetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.queue.format.cursor import Place
    from holdfast.queue.log.messages import Message
    from holdfast.queue.log.reader import DamagePolicy, LogReader
    from holdfast.queue.queue import Queue

__all__ = ["WorkSource", "read_letters"]


class WorkSource:
    """Not thread-safe. ``place`` is the page, number and salt, that the last new message came from."""

    __slots__ = ("_damage", "_near", "_peeked", "_queue", "_reader", "_ready", "place")

    def __init__(self, queue: Queue, damage: DamagePolicy) -> None:
        self._queue = queue
        self._damage: DamagePolicy = damage
        self._reader: LogReader | None = None
        self._ready: Iterator[Message] = iter(())
        self._peeked: Message | None = None
        self._near: list[Message] = []
        self.place: Place = (0, 0)

    def peek(self, next_seq: int) -> Message | None:
        """The message ``next_seq``, or the first after it that can be read; the same one until it is ``taken``."""
        message = self._peeked
        if message is None:
            try:
                message = self._peeked = next(self._ready, None) or self._refill(next_seq)
            except BaseException:  # an interrupt behind ``next``: that message would be passed over
                self.close()
                raise
        return message

    def taken(self, message: Message) -> None:
        """Go on behind this message if it is the one that was peeked."""
        if message is self._peeked:
            self._peeked = None

    def read_ahead(self, next_seq: int, count: int) -> list[Message]:
        """Up to ``count`` messages from ``next_seq`` on of those that are in memory, all of them consecutive, and go on
        behind them. None while one is peeked. Where they cannot be handed out after all: ``close``."""
        if self._peeked is not None:
            return []
        try:
            found = list(islice(self._ready, count))
        except BaseException:
            self.close()
            raise
        if found and found[-1][0] != next_seq + len(found) - 1:
            self._ready = chain(found, self._ready)
            return []
        return found

    def _refill(self, next_seq: int) -> Message | None:
        """Read on; where that stops half-way, the next call begins again at the first message that was not taken."""
        try:
            reader = self._reader
            if reader is None:
                reader = self._reader = self._queue.reader(seq=next_seq, damage=self._damage)
            parts = reader.read_message_parts()
            if parts is None:
                return None
            page = reader.page
            assert page is not None, "messages come from a page"
            self.place = (page.number, page.salt)
            self._ready = chain.from_iterable(parts)
            return next(self._ready, None)
        except BaseException:
            self.close()
            raise

    def fetch(self, seq: int) -> Message | None:
        """One message from anywhere; None where it is gone, or damaged, and the policy goes on."""
        # Those that come back together were mostly appended together: a batch is read once.
        near = self._near
        place = seq - near[0].seq if near else -1
        if not 0 <= place < len(near) or near[place].seq != seq:
            reader = self._queue.reader(seq=seq, damage=self._damage)
            try:
                near = self._near = reader.read_near() or []
            finally:
                reader.close()
            place = 0
            if not near or near[0].seq != seq:
                if self._damage == "raise":
                    raise Gap(seq, seq, 0)
                return None
        return near[place]

    def close(self) -> None:
        """Close the reader and forget what was read ahead."""
        self._ready = iter(())
        self._peeked = None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def read_letters(queue: Queue, name: str) -> Iterator[DeadLetter]:
    """What the work queue of this name has given up, oldest first; nothing where it never has."""
    try:
        dead = queue.beside(f"{name}-dead", read_only=True)
    except NotFound:
        return
    with dead:
        for message in dead.read():
            yield DeadLetter.decode(message.payload, queue.serializer)
