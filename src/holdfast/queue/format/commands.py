"""What a work queue writes: commands in its log ``<prefix>-<name>.work``, and dead letters in
``<prefix>-<name>-dead``. Pure.

Bytes that are not a command raise ``CorruptData``: their frame verified, so another version wrote them. Little-endian.
A command:

| offset | bytes | field |
|---|---|---|
| 0 | 1 | kind |
| 1 | 8 | time: nanoseconds since 1970, signed; 0 where the kind has none |
| 9 | 8 x n | numbers |

| kind | time | numbers | meaning |
|---|---|---|---|
| 1 TAKE | the lease ends | messages | handed out, each once more than before |
| 2 DONE | 0 | messages | acknowledged |
| 3 RETURN | they are due | messages | given back |
| 4 EXTEND | the lease ends | messages | the worker needs longer |
| 5 BURY | 0 | a message, a number in the dead letters | it is there, durably; all up to the number have a BURY |
| 6 SKIP | 0 | first and last message | removed or damaged: they will never be handed out |

A state (kind 7), which makes all commands before it unnecessary:

| offset | bytes | field |
|---|---|---|
| 0 | 1 | kind |
| 1 | 8 | zero |
| 9 | 8 | next message to be handed out for the first time |
| 17 | 8 | last number of the dead letters that a BURY named |
| 25 | 4 | count of started messages |
| 29 | 24 x started | message (8), due (8, signed), deliveries (4), 1 while a worker has it, else 0 (4); rising |

A dead letter, a message of a queue that any program may read:

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

from collections.abc import Callable
from enum import IntEnum
from struct import Struct, error
from typing import NamedTuple

from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.queue.serializers import Serializer, chosen_serializer

Started = tuple[int, int, bool]

COMMAND_NUMBERS_MAX = 1000

ONE = Struct("<BqQ")
HEAD = Struct("<Bq")
STATE = Struct("<BqQQI")
STARTED = Struct("<QqII")
NUMBER_BYTES = 8

STATE_KIND = b"\x07"
"""The first byte of a state. Commands begin with another."""
encode_one: Callable[[int, int, int], bytes] = ONE.pack
"""The bytes of a command with one number, from kind, time and number."""


class CommandKind(IntEnum):
    """The effect of a command."""

    TAKE = 1
    DONE = 2
    RETURN = 3
    EXTEND = 4
    BURY = 5
    SKIP = 6
    STATE = 7


class WorkState(NamedTuple):
    """A whole state. ``started`` maps a message to (due, deliveries, leased), rising."""

    next_seq: int
    dead_seq: int
    started: dict[int, Started]


def encode_command(kind: int, time_ns: int, *numbers: int) -> bytes:
    """The bytes of a command.

    >>> decode_command(encode_command(CommandKind.BURY, 0, 7, 1))
    (<CommandKind.BURY: 5>, 0, (7, 1))
    """
    if len(numbers) == 1:
        return encode_one(kind, time_ns, numbers[0])
    return HEAD.pack(kind, time_ns) + Struct(f"<{len(numbers)}Q").pack(*numbers)


def decode_command(data: bytes) -> tuple[CommandKind, int, tuple[int, ...]]:
    """Kind, time and numbers of a command that is not a state. Raises: ``CorruptData``."""
    count, rest = divmod(len(data) - HEAD.size, NUMBER_BYTES)
    if rest or count < 1 or not CommandKind.TAKE <= data[0] < CommandKind.STATE:
        raise CorruptData("no command of a work queue", code=Code.CORRUPT_QUEUE, bytes=len(data))
    kind, time_ns, *numbers = Struct(f"<Bq{count}Q").unpack(data)
    return CommandKind(kind), time_ns, tuple(numbers)


def encode_state(state: WorkState) -> bytes:
    """The bytes of a state. Cost: 24 bytes for each started message."""
    head = STATE.pack(CommandKind.STATE, 0, state.next_seq, state.dead_seq, len(state.started))
    started = [STARTED.pack(seq, due, count, leased) for seq, (due, count, leased) in state.started.items()]
    return b"".join((head, *started))


def decode_state(data: bytes) -> WorkState:
    """The state.

    Raises: ``CorruptData``.

    >>> decode_state(encode_state(WorkState(9, 1, {7: (1000, 2, True)}))).started
    {7: (1000, 2, True)}
    """
    try:
        _, _, next_seq, dead_seq, started = STATE.unpack_from(data)
        if len(data) != STATE.size + started * STARTED.size:
            raise CorruptData("a state of a work queue is cut", code=Code.CORRUPT_QUEUE, bytes=len(data))
        entries = STARTED.iter_unpack(data[STATE.size :])
        return WorkState(next_seq, dead_seq, {seq: (due, count, leased == 1) for seq, due, count, leased in entries})
    except error as cause:
        raise CorruptData("no state of a work queue", code=Code.CORRUPT_QUEUE, bytes=len(data)) from cause


LETTER_HEAD = Struct("<HHIQq")
LETTER_VERSION = 1
REASON_BYTES_MAX = 4096


def check_reason(reason: object) -> None:
    """Raise ``InvalidRequest`` for a reason that is not text: otherwise only the last delivery would find out."""
    if not isinstance(reason, str):
        raise InvalidRequest("a reason is text", type=type(reason).__name__, hint="str(error)")


class DeadLetter:
    """A message that was given up: its number, its deliveries and the reason.

    >>> letter = DeadLetter(7, 5, b"hello", deliveries=3, reason="no such address")
    >>> copy = DeadLetter.decode(letter.encode())
    >>> copy.seq, copy.payload, copy.deliveries, copy.reason
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
        """What the serializer makes of the payload, at each call; the payload without one.

        *Raises*: what its ``load`` raises, which may be why the message is here.
        """
        return self.payload if self._serializer is None else self._serializer.load(self.payload)

    def encode(self) -> bytes:
        """The bytes. A reason above 4 KiB is cut at a character."""
        reason = self.reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
        head = LETTER_HEAD.pack(LETTER_VERSION, len(reason), self.deliveries, self.seq, self.time_ns)
        return head + reason + self.payload

    @classmethod
    def decode(cls, data: bytes, serializer: Serializer | None = None) -> DeadLetter:
        """The dead letter in a message of the dead-letter queue; ``serializer`` is for its ``value``.

        *Raises*: ``CorruptData``.
        """
        if len(data) < LETTER_HEAD.size:
            raise CorruptData("no dead letter", code=Code.CORRUPT_QUEUE, bytes=len(data))
        version, reason_bytes, deliveries, seq, time_ns = LETTER_HEAD.unpack_from(data)
        end = LETTER_HEAD.size + reason_bytes
        if version != LETTER_VERSION or end > len(data):
            raise CorruptData("no dead letter", code=Code.CORRUPT_QUEUE, bytes=len(data), version=version)
        reason = data[LETTER_HEAD.size : end].decode("utf-8", "replace")
        return cls(seq, time_ns, data[end:], deliveries=deliveries, reason=reason, serializer=serializer)

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self.encode(), "" if self._serializer is None else self._serializer.name)

    def __repr__(self) -> str:
        return f"DeadLetter(seq={self.seq}, deliveries={self.deliveries}, reason={self.reason!r})"


def _restored(data: bytes, serializer: str) -> DeadLetter:
    return DeadLetter.decode(data, chosen_serializer(None, serializer))
