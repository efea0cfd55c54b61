"""The level "buffered": messages wait in memory for others, and are written as one batch.

Owns: the messages that are not written yet, and their sequence numbers. Does not own: writing (``writer``), the timer
(``background``).

Failure model: what waits here is lost with the process. A write that fails, or is interrupted, leaves what was not
written waiting under the numbers that it was told, refuses the message that caused it if one did, and is tried again
soon after the next one, so that the memory stays bounded: 256 KiB or 4,096 messages and the batch that goes above it.
"""

from __future__ import annotations

import threading

from holdfast.errors import Closed, HoldfastError
from holdfast.queue.frame import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, octets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.queue.writer import Writer

__all__ = ["LINGER_S", "Linger"]

LINGER_S = 0.005


class Linger:
    """A buffer before a writer, which nobody else writes to. Thread-safe. ``wake`` is called when the first message
    begins to wait."""

    __slots__ = ("_bytes", "_closed", "_first_seq", "_late", "_lock", "_waiting", "_wake", "_writer")

    def __init__(self, writer: Writer, wake: Callable[[], None]) -> None:
        self._writer = writer
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._first_seq = writer.next_seq  # of the first that waits, or of the next that comes
        self._bytes = 0
        self._late = False
        self._closed = False

    def append(self, payload: bytes) -> int:
        """Take one message. Returns the sequence number that it will have."""
        return self.append_many((payload,))[1]

    def append_many(self, payloads: Sequence[bytes]) -> tuple[int, int]:
        """Take messages. Raises what writing raises, and ``InvalidRequest``; then none of these were taken."""
        if set(map(type, payloads)) != {bytes}:
            # What changes later, or cannot be written, must not wait among the others.
            payloads = [*map(octets, payloads)]
        size = sum(map(len, payloads))
        with self._lock:
            self._raise_if_closed()
            if self._bytes + size > BATCH_BYTES_MAX or len(self._waiting) + len(payloads) > BATCH_MESSAGES_MAX:
                self._write()
            self._writer.raise_if_closed()
            self._writer.check_messages(payloads)
            if self._late or not self._waiting:
                self._wake()
            first = self.next_seq
            self._waiting += payloads
            self._bytes += size
            return first, first + len(payloads) - 1

    def append_atomic(self, payloads: Sequence[bytes]) -> tuple[int, int]:
        """Append messages as one frame, behind what waits and before whatever comes. Raises what writing raises."""
        with self._lock:
            self._raise_if_closed()
            self._write()
            try:
                return self._writer.append_many(payloads, atomic=True)
            finally:
                self._first_seq = self._writer.settled_next_seq()

    @property
    def next_seq(self) -> int:
        """The sequence number of the next message to be taken."""
        return self._first_seq + len(self._waiting)

    def write(self) -> None:
        """Hand everything to the writer."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Hand everything to the writer; what comes later is refused, whatever became of that."""
        with self._lock:
            self._closed = True
            self._write()

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise Closed("the queue is closed")

    def _write(self) -> None:
        if not self._waiting:
            return
        self._late = True  # until it is written
        self._forget_written()  # what an interrupt left unsaid
        try:
            if self._waiting:
                self._writer.append_many(self._waiting, atomic=False)
        except HoldfastError as error:
            # What it counts are messages that were taken before: of its caller's own none is in the log.
            error.fields = {name: value for name, value in error.fields.items() if name != "appended"}
            raise
        finally:
            self._forget_written()
        self._late = False

    def _forget_written(self) -> None:
        """What is in the log does not wait any more. Its numbers tell, whatever was raised."""
        written = self._writer.settled_next_seq() - self._first_seq
        if written > 0:
            self._first_seq, self._waiting = self._first_seq + written, self._waiting[written:]
            self._bytes = sum(map(len, self._waiting))
