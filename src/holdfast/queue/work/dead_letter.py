"""Dead letters: messages that nobody could work off, with the reason.

Owns: the bytes of one, as a message of the queue ``<prefix>-<name>-dead``. Does not own: that queue, which any program
may read while the work queue is open (``work_source``); when a message is given up (``work_queue``).

Failure model: pure. Bytes that are no dead letter raise ``CorruptData``, a reason that is no text ``InvalidRequest``.

| offset | bytes | field |
|---|---|---|
| 0 | 2 | version: 1 |
| 2 | 2 | length of the reason |
| 4 | 4 | deliveries |
| 8 | 8 | sequence number of the message in its queue |
| 16 | 8 | its arrival there: nanoseconds since 1970, signed |
| 24 | reason | the reason, UTF-8 |
| | | the message, to the end |
"""

from __future__ import annotations

from struct import Struct

from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.queue.serializers import chosen_serializer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.serializers import Serializer

__all__ = ["DeadLetter", "check_reason"]

HEAD = Struct("<HHIQq")
VERSION = 1
REASON_BYTES_MAX = 4096


def check_reason(reason: object) -> None:
    """Raise ``InvalidRequest`` for what is no text, as an exception: it would be met at the last delivery only."""
    if not isinstance(reason, str):
        raise InvalidRequest("a reason is text", type=type(reason).__name__, hint="str(error)")


class DeadLetter:
    """A message that was given up: where it was, how often it was handed out, why it is here.

    >>> letter = DeadLetter(7, 5, b"hello", deliveries=3, reason="no such address")
    >>> found = DeadLetter.decode(letter.encode())
    >>> found.seq, found.payload, found.deliveries, found.reason
    (7, b'hello', 3, 'no such address')
    """

    __slots__ = ("_serializer", "deliveries", "payload", "reason", "seq", "time_ns")

    def __init__(
        self,
        seq: int,
        time_ns: int,
        payload: bytes,
        *,
        deliveries: int,
        reason: str,
        serializer: Serializer | None = None,
    ) -> None:
        self.seq = seq
        self.time_ns = time_ns
        self.payload = payload
        self.deliveries = deliveries
        self.reason = reason
        self._serializer = serializer

    @property
    def value(self) -> object:
        """What the serializer makes of the payload, at each call; the payload where there is none.

        *Raises*: what its ``load`` raises, which may be why the message is here.
        """
        return self.payload if self._serializer is None else self._serializer.load(self.payload)

    def encode(self) -> bytes:
        """The bytes. A reason above 4 KiB is cut at a character."""
        reason = self.reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
        return HEAD.pack(VERSION, len(reason), self.deliveries, self.seq, self.time_ns) + reason + self.payload

    @classmethod
    def decode(cls, data: bytes, serializer: Serializer | None = None) -> DeadLetter:
        """The dead letter in a message of the queue of dead letters; ``serializer`` is for its ``value``.

        *Raises*: ``CorruptData``.
        """
        if len(data) < HEAD.size:
            raise CorruptData("no dead letter", code=Code.CORRUPT_QUEUE, bytes=len(data))
        version, reason_bytes, deliveries, seq, time_ns = HEAD.unpack_from(data)
        end = HEAD.size + reason_bytes
        if version != VERSION or end > len(data):
            raise CorruptData("no dead letter", code=Code.CORRUPT_QUEUE, bytes=len(data), version=version)
        reason = data[HEAD.size : end].decode("utf-8", "replace")
        return cls(seq, time_ns, data[end:], deliveries=deliveries, reason=reason, serializer=serializer)

    def __reduce__(self) -> tuple[object, ...]:
        """In another process, where a serializer of the program's own has to be named."""
        return _restored, (self.encode(), "" if self._serializer is None else self._serializer.name)

    def __repr__(self) -> str:
        return f"DeadLetter(seq={self.seq}, deliveries={self.deliveries}, reason={self.reason!r})"


def _restored(data: bytes, serializer: str) -> DeadLetter:
    return DeadLetter.decode(data, chosen_serializer(None, serializer))
