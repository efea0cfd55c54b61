"""What a reader returns: messages, blocks of messages, and reports of missing messages.

``Gap`` and ``Trimmed`` are errors and reports in one: raised, or passed to a callback.
"""

from __future__ import annotations

from itertools import accumulate, pairwise, repeat
from operator import itemgetter
from typing import cast

from holdfast.errors import Code, CorruptData, NotFound
from holdfast.queue.format.frame import message_lengths, payloads
from holdfast.queue.serializers import chosen_serializer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from typing import TypeVar

    from holdfast.queue.log.page_scan import FrameView
    from holdfast.queue.serializers import Serializer

    Kind = TypeVar("Kind", bound="Message")

    DamagePolicy = str | Callable[["Gap | Trimmed"], None]
    """What happens on a report: "raise", "skip", or a call with it."""
    Damage = DamagePolicy | None
    """None: the policy of the queue."""


class Message(tuple[int, int, bytes]):
    """One message: ``seq``, ``time_ns`` (arrival, nanoseconds since 1970, never falling) and ``payload``, a tuple of
    the three.

    >>> message = Message((7, 1_767_225_600_000_000_000, b"hello"))
    >>> message.payload, message.time.isoformat()
    (b'hello', '2026-01-01T00:00:00+00:00')
    """

    __slots__ = ()

    seq = cast("int", property(itemgetter(0), doc="The sequence number."))
    time_ns = cast("int", property(itemgetter(1), doc="The arrival, nanoseconds since 1970."))
    payload = cast("bytes", property(itemgetter(2), doc="The bytes that were appended."))

    @property
    def value(self) -> object:
        """What the queue's serializer makes of the payload, at each call; the payload without one."""
        return self[2]

    @property
    def time(self) -> datetime:
        """The arrival in UTC, to the microsecond."""
        from datetime import UTC, datetime, timedelta

        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self[1] // 1000)

    def __repr__(self) -> str:
        return f"Message(seq={self[0]}, time_ns={self[1]}, payload={self[2]!r})"


_classes: dict[tuple[type[Message], str], type[Message]] = {}


def class_with_value(base: type[Kind], serializer: Serializer | None) -> type[Kind]:
    """``base``, whose ``value`` is what the serializer makes of the payload.

    >>> class_with_value(Message, None) is Message
    True
    """
    if serializer is None:
        return base
    load, name = serializer.load, serializer.name

    def reduced(self: Message) -> tuple[object, ...]:
        """In another process: a serializer of the program's own has to be named there."""
        return _restored, (base, name, tuple(self))

    fields = {
        "__slots__": (),
        "__reduce__": reduced,
        "value": property(lambda self: load(self[2])),
        "__doc__": base.__doc__,
        "__module__": base.__module__,
    }
    kind: type[Kind] = type(base.__name__, (base,), fields)  # pyright: ignore[reportAssignmentType]
    return kind


def _restored(base: type[Message], name: str, fields: tuple[int, int, bytes]) -> Message:
    kind = _classes.get((base, name))
    if kind is None:
        kind = _classes[base, name] = class_with_value(base, chosen_serializer(None, name))
    return kind(fields)


def messages_of(seq: int, time_ns: int, bodies: Sequence[bytes], message: type[Message] = Message) -> list[Message]:
    """The messages of one frame, or of a part of it. Cost: about 0.16 microseconds each."""
    return list(map(message, zip(range(seq, seq + len(bodies)), repeat(time_ns), bodies)))


_GAP_TEXTS = {
    "damage": "messages are damaged",
    "crash": "messages were lost in a power failure before they were durable",
}


class Gap(CorruptData):
    """Messages ``first`` to ``last`` are missing.

    ``reason`` is "damage": they existed, and their bytes are damaged or gone. Where nothing says how many there were,
    the gap has all numbers that they can have had. Or "crash": a consumer has committed them, or a work queue has taken
    them, and a power failure took them before they were durable. That is not damage: only a function as policy gets it,
    and the numbers are never given to other messages.
    """

    default_code = Code.CORRUPT_QUEUE

    def __init__(self, first: int, last: int, page: int, reason: str = "damage") -> None:
        super().__init__(
            _GAP_TEXTS[reason],
            first=first,
            last=last,
            page=page,
            hint="damage='skip' reads the messages after them" if reason == "damage" else "",
        )
        self.first = first
        self.last = last
        self.reason = reason

    def __reduce__(self) -> tuple[type[Gap], tuple[object, ...], dict[str, object]]:
        return type(self), (self.first, self.last, self.fields["page"], self.reason), self.__dict__


class Trimmed(NotFound):
    """Retention removed the message; ``first_seq`` is the oldest one left."""

    default_code = Code.QUEUE_TRIMMED

    def __init__(self, wanted_seq: int, first_seq: int) -> None:
        super().__init__("the queue no longer goes back that far", wanted_seq=wanted_seq, first_seq=first_seq)
        self.wanted_seq = wanted_seq
        self.first_seq = first_seq

    def __reduce__(self) -> tuple[type[Trimmed], tuple[object, ...], dict[str, object]]:
        return type(self), (self.wanted_seq, self.first_seq), self.__dict__


class Block:
    """Consecutive messages in one buffer, without an object for each. ``first_seq`` and ``time_ns`` are those of the
    first message, ``len()`` is the number of messages.
    """

    __slots__ = ("_bounds", "_count", "_data", "_end", "_singles", "_skip", "_start", "first_seq", "time_ns")

    def __init__(
        self,
        first_seq: int,
        time_ns: int,
        count: int,
        data: bytes,
        start: int,
        end: int,
        *,
        skip: int = 0,
        singles: Sequence[FrameView] | None = None,
    ) -> None:
        self.first_seq = first_seq + skip
        self.time_ns = time_ns
        self._count = count
        self._data = data
        self._start = start
        self._end = end
        self._skip = skip
        self._singles = singles
        self._bounds: Sequence[tuple[int, int]] | None = None

    def __len__(self) -> int:
        return self._count - self._skip

    @property
    def last_seq(self) -> int:
        """The sequence number of the last message."""
        return self.first_seq + len(self) - 1

    @property
    def bounds(self) -> Sequence[tuple[int, int]]:
        """Where each message begins and ends in ``buffer``. Computed at the first use."""
        if self._bounds is None:
            if self._singles is not None:
                self._bounds = [frame[4:6] for frame in self._singles]
            elif self._count == 1:
                self._bounds = [(self._start, self._end)]
            else:
                lengths = message_lengths(self._data, self._start, self._count)
                self._bounds = list(pairwise(accumulate(lengths, initial=self._start + 4 * self._count)))
        return self._bounds[self._skip :] if self._skip else self._bounds

    @property
    def buffer(self) -> memoryview:
        """The bytes that ``bounds`` points into."""
        return memoryview(self._data)

    def __getitem__(self, index: int) -> memoryview:
        start, end = self.bounds[index]
        return memoryview(self._data)[start:end]

    def payloads(self) -> Sequence[bytes]:
        """All messages as bytes."""
        if self._singles is not None:
            data = self._data
            return [data[start:end] for _, _, _, _, start, end in self._singles]
        messages = payloads(self._data, self._start, self._end, self._count)
        return messages[self._skip :] if self._skip else messages

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.payloads())


def block_of_singles(data: bytes, frames: Sequence[FrameView]) -> Block:
    """A run of frames of one message each."""
    return Block(frames[0][0], frames[0][1], len(frames), data, 0, 0, singles=frames)
