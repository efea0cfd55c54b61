"""The level "buffered": messages wait in memory for others, and are written as one batch.

Owns: the messages that are not written yet, and their sequence numbers. Does not own: writing (``writer``), the timer
(``background``).

Failure model: what waits here is lost with the process. A write that fails leaves what was not written waiting, refuses
the message that caused it if one did, and is tried again soon after the next one, so that the memory stays bounded: 256
KiB or 4,096 messages and the batch that goes above it.
"""

from __future__ import annotations

import threading

from holdfast.errors import Unavailable
from holdfast.queue.frame import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, octets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.queue.writer import Writer

__all__ = ["LINGER_S", "Linger"]

LINGER_S = 0.005


class Linger:
    """A buffer before a writer. Thread-safe. ``wake`` is called when the first message begins to wait."""

    __slots__ = ("_bytes", "_late", "_lock", "_waiting", "_wake", "_writer")

    def __init__(self, writer: Writer, wake: Callable[[], None]) -> None:
        self._writer = writer
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._late = False

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
            if self._bytes + size > BATCH_BYTES_MAX or len(self._waiting) + len(payloads) > BATCH_MESSAGES_MAX:
                self._write()
            self._writer.raise_if_closed()
            self._writer.check_messages(payloads)
            if self._late or not self._waiting:
                self._wake()
            first = self.next_seq
            self._waiting += payloads
            self._bytes += size
            return first, self.next_seq - 1

    @property
    def next_seq(self) -> int:
        """The sequence number of the next message to be taken."""
        return self._writer.next_seq + len(self._waiting)

    def write(self) -> None:
        """Hand everything to the writer."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        self._late = True  # until it is written
        try:
            self._writer.append_many(self._waiting, atomic=False)
        except Unavailable as error:
            appended = error.fields.get("appended", 0)
            if isinstance(appended, int):
                del self._waiting[:appended]
                self._bytes = sum(map(len, self._waiting))
            raise
        self._waiting = []
        self._bytes = 0
        self._late = False
