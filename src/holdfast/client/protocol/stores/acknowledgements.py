"""A subscriber's acknowledgements, its reports of started messages and its window, without I/O.

The window follows the measured pace of the application and the size of the messages.

An acknowledgement is kept until the service has replied; one that is sent again after it was carried out is stale and
changes nothing. For the first ``EXACT_MESSAGES`` of a connection and every redelivered message, the ``started`` report
is sent before the message is handed out; later one report is sent each ``INTERVAL_MS``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.client.protocol.stores.messages import ack_frame, frame_of
from holdfast.errors import HoldfastError
from holdfast.stores.values.sequence_set import SequenceSet
from holdfast.values import ranges_of
from holdfast.wire.parts import Delivery
from holdfast.wire.stores import KEEP_RANGES_MAX, MESSAGES_MAX, AttachedFrame, ReplyFrame

RANGES_MAX: Final = MESSAGES_MAX
"""Ranges or numbers of one frame; the service takes no more."""

OnReply = Callable[[Sequence[int], HoldfastError | None], None]
"""Called with the numbers that were stale, or with the error."""


def _without(first: int, last: int, numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The range without these numbers."""
    if not numbers:
        return [(first, last)]
    gone = frozenset(numbers)
    return ranges_of(seq for seq in range(first, last + 1) if seq not in gone)


@dataclass(slots=True)
class _Question:
    """A frame without a reply yet. ``settles``: what the application does not work on any more once it has one."""

    kind: str
    what: Sequence[object]
    settles: Sequence[Sequence[int]]
    numbers: int
    on_reply: list[OnReply]


def _of_all(frames: int, on_reply: Sequence[OnReply]) -> OnReply:
    """Call ``on_reply`` once: with the stale numbers of all frames, or with the first error."""
    gathered: list[int] = []
    left = frames

    def on_response(stale: Sequence[int], error: HoldfastError | None) -> None:
        nonlocal left
        if left == 0:
            return  # called already
        gathered.extend(stale)
        left = 0 if error is not None else left - 1
        if left == 0:
            for notify in on_reply:
                notify(gathered if error is None else (), error)

    return on_response


def of_these(ranges: Sequence[tuple[int, int]], on_reply: OnReply) -> OnReply:
    """Call ``on_reply`` with those stale numbers that are in ``ranges``: a frame also has numbers of other calls."""

    def on_response(stale: Sequence[int], error: HoldfastError | None) -> None:
        numbers = sorted(stale)
        own = {
            seq for first, last in ranges for seq in numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]
        }
        on_reply(sorted(own), error)

    return on_response


WORKED_ON_MAX: Final = 4_096
"""Ranges in ``InWork``; above it, the lower half is forgotten: those messages are delivered again."""


class InWork:
    """What the application was handed, and the service does not know as done. Another connection keeps it."""

    def __init__(self) -> None:
        self._numbers = SequenceSet()

    def took(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The application is about to get these."""
        for first, last in ranges:
            self._numbers.add(first, last)
        if self._numbers.length > WORKED_ON_MAX:
            self._numbers = SequenceSet(self._numbers.runs()[-WORKED_ON_MAX // 2 :])

    def done(self, first: int, last: int) -> None:
        """The service has settled these, or taken them back."""
        self._numbers.remove(first, last)

    def clear(self) -> None:
        """The numbers mean other messages now."""
        self._numbers = SequenceSet()

    def kept(self, ranges: Sequence[tuple[int, int]]) -> None:
        """The service says what of it this subscriber has still."""
        parts = [part for first, last in ranges for part in self._numbers.parts(first, last)]
        self._numbers = SequenceSet((first, last) for first, last, is_in_work in parts if is_in_work)

    def parameter(self, length_max: int) -> str:
        """The ``keep`` of a handshake: the last ``KEEP_RANGES_MAX`` ranges, fewer where the request has no room.

        >>> work = InWork()
        >>> work.took([(9, 9), (3, 3), (7, 8)])
        >>> work.parameter(100), work.parameter(4), work.parameter(-2)
        ('3,7-9', '7-9', '')
        """
        ranges = self._numbers.runs()[-KEEP_RANGES_MAX:]
        text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
        while text and len(text) > length_max:
            text = text.partition(",")[2]
        return text


class AckBatcher:
    """Acknowledgements of one subscriber that the service has not confirmed."""

    def __init__(self) -> None:
        self.in_work = InWork()
        self._pairs: list[list[int]] = []
        self._answers: list[OnReply] = []
        self._in_flight: dict[int, _Question] = {}
        self._last_id = 0
        self.pending = 0
        """How many numbers wait to be sent."""
        self.since_ms = 0.0
        """Since when the first of them waits."""
        self.stale = 0
        self.token = ""
        """Of the durable that the numbers are of. Every frame has it."""

    @property
    def unconfirmed(self) -> int:
        """How many numbers wait to be sent, or for a reply."""
        return self.pending + sum(question.numbers for question in self._in_flight.values())

    def add(self, first: int, last: int, now_ms: float) -> None:
        """``first`` to ``last`` are consumed. Adjacent ranges are joined."""
        if not self.pending:
            self.since_ms = now_ms
        self.pending += last - first + 1
        if self._pairs and self._pairs[-1][1] + 1 == first:
            self._pairs[-1][1] = last
        else:
            self._pairs.append([first, last])

    def notify(self, on_reply: OnReply) -> None:
        """Call this when everything that waits to be sent now has its reply."""
        self._answers.append(on_reply)

    def take_pending(self) -> list[bytes]:
        """Frames of everything that waits to be sent; ``on_reply`` functions get the reply to all of them."""
        pairs, replies = self._pairs, self._answers
        self._pairs, self._answers, self.pending = [], [], 0
        parts = [pairs[start : start + RANGES_MAX] for start in range(0, len(pairs), RANGES_MAX)]
        if replies and len(parts) > 1:
            replies = [_of_all(len(parts), replies)]
        return [self.ask("ack", part, part, replies) for part in parts]

    def ask(
        self, kind: str, what: Sequence[object], settles: Sequence[Sequence[int]], on_reply: list[OnReply]
    ) -> bytes:
        """A frame that gets a reply."""
        self._last_id += 1
        numbers = sum(last - first + 1 for first, last in settles) or 1
        self._in_flight[self._last_id] = _Question(kind, what, settles, numbers, on_reply)
        return ack_frame(kind, self._last_id, what, self.token)

    def again(self) -> list[bytes]:
        """Every frame without a reply, in order, for a new connection."""
        unanswered, self._in_flight = self._in_flight, {}
        return [self.ask(each.kind, each.what, each.settles, each.on_reply) for each in unanswered.values()]

    def replaced(self, error: HoldfastError) -> int:
        """The durable is another one: what is not confirmed never will be. Returns how many numbers that are."""
        count = self.unconfirmed
        self.fail(error)
        self._pairs, self.pending = [], 0
        self._in_flight.clear()
        self.in_work.clear()
        return count

    def is_settling(self, seq: int) -> bool:
        """Whether the application has settled it, and no reply says so yet. Cost: O(ranges without a reply)."""
        pending = any(first <= seq <= last for first, last in self._pairs)
        in_flight = (run for question in self._in_flight.values() for run in question.settles)
        return pending or any(first <= seq <= last for first, last in in_flight)

    def on_response(self, frame: ReplyFrame) -> tuple[list[int], list[tuple[int, int]]]:
        """The service has carried out the frame. Returns the stale numbers, and ranges of what is settled."""
        question = self._in_flight.pop(frame.id, None)
        if question is None:
            return [], []
        for first, last in question.settles:
            self.in_work.done(first, last)
        stale: list[int] = []
        for item in frame.stale:
            stale.extend((item,) if isinstance(item, int) else range(item[0], item[1] + 1))
        self.stale += len(stale)
        for reply in question.on_reply:
            reply(stale, None)
        return stale, [run for first, last in question.settles for run in _without(first, last, stale)]

    def waits_for(self, frame_id: int) -> bool:
        """Whether this frame has no reply yet."""
        return frame_id in self._in_flight

    def refused(self, frame_id: int, error: HoldfastError) -> bool:
        """The service refused the frame. False where no caller waits for it."""
        question = self._in_flight.pop(frame_id, None)
        for reply in question.on_reply if question is not None else ():
            reply((), error)
        return question is not None and bool(question.on_reply)

    def fail(self, error: HoldfastError) -> None:
        """No reply will arrive any more."""
        waiting = [reply for question in self._in_flight.values() for reply in question.on_reply] + self._answers
        self._answers = []
        for question in self._in_flight.values():
            question.on_reply = []
        for reply in waiting:
            reply((), error)

    def check(self) -> None:
        """Assert every law; for tests."""
        assert self.pending == sum(last - first + 1 for first, last in self._pairs), "ranges are counted"
        assert all(first <= last for first, last in self._pairs), "a range is not empty"
        assert all(frame_id <= self._last_id for frame_id in self._in_flight), "a frame has the id it was sent with"


EXACT_MESSAGES: Final = 1_024
INTERVAL_MS: Final = 1.0


class StartedReports:
    """The ``started`` reports of one subscriber."""

    def __init__(self) -> None:
        self._is_taken = False
        self._exact_left = 0
        self._ranges: list[list[int]] = []
        self._since_ms = math.inf
        self.is_exact = False
        """Whether the message taken last must be reported before it is handed out."""

    @property
    def due_ms(self) -> float:
        """When the next report must be sent."""
        return self._since_ms if not self._ranges else (-math.inf if self.is_exact else self._since_ms + INTERVAL_MS)

    def begin(self, *, is_taken: bool) -> None:
        """A connection begins. ``is_taken``: the service takes reports."""
        self._is_taken = is_taken
        self._exact_left = EXACT_MESSAGES
        self.lost()

    def lost(self) -> None:
        """The connection is lost: its messages are delivered again."""
        self._ranges, self._since_ms, self.is_exact = [], math.inf, False

    def took(self, ranges: Iterable[tuple[int, int]], count: int, now_ms: float, *, redelivered: bool) -> None:
        """The application is about to get these ``count`` numbers. ``redelivered``: one of them is."""
        if not self._is_taken:
            return
        self.is_exact = self._exact_left > 0 or redelivered
        self._exact_left = max(0, self._exact_left - count)
        if not self._ranges:
            self._since_ms = now_ms
        for first, last in ranges:
            if self._ranges and self._ranges[-1][1] + 1 == first:
                self._ranges[-1][1] = last
            else:
                self._ranges.append([first, last])

    def take_frames(self) -> list[bytes]:
        """The reports of everything that waits."""
        ranges = self._ranges
        self.lost()
        return [
            frame_of("started", ranges=ranges[start : start + RANGES_MAX])
            for start in range(0, len(ranges), RANGES_MAX)
        ]


PART: Final = 3
"""Messages that wait longer than one part in this many of their time may come back before they are handed over."""
GROWTH: Final = 4
"""From 1 to the default of 256 in four round trips."""
SOON_MS: Final = 1_000
ALWAYS: Final = 64
"""More messages than this are asked for only if the application takes them in ``SOON_MS``: others may be idle."""
BYTES: Final = 16 << 20
"""About what may wait here, above one message."""
WEIGHT: Final = 0.25
"""How much the newest message counts in the measured pace."""


class Pace:
    """The measured pace of one application. The window begins at 1 and grows as long as it is used up."""

    def __init__(self) -> None:
        self._each_ms = 0.0
        self._each_bytes = 1.0
        self._since_ms: float | None = None
        self._taken = 1
        self.window = 1

    def begin(self) -> None:
        """A connection begins. What was measured is kept."""
        self._since_ms = None
        self.window = 1

    def took(self, count: int, now_ms: float, *, waiting: int) -> None:
        """The application takes ``count`` messages now, and ``waiting`` more are here.

        The time since it took the last ones is what it needed for them, if it did not have to wait for these.
        """
        if self._since_ms is not None:
            each_ms = (now_ms - self._since_ms) / max(1, self._taken)
            # Slower counts at once: the window must be right before the messages are late.
            self._each_ms = max(each_ms, self._each_ms + WEIGHT * (each_ms - self._each_ms))
        self._since_ms, self._taken = now_ms, count
        if not waiting:
            self.window *= GROWTH

    def arrived(self, count: int, size: int) -> None:
        """``count`` messages came, in ``size`` bytes. Larger ones count at once, like a slower pace."""
        if count:
            each = size / count
            self._each_bytes = max(1.0, each, self._each_bytes + WEIGHT * (each - self._each_bytes))

    def waited(self) -> None:
        """Nothing was here when the application asked: the time until the next message is not its own."""
        self._since_ms = None

    def limit(self, most: int, wait_ms: int) -> int:
        """The window now, at most ``most``, where a message may wait for ``wait_ms`` (0: no limit)."""
        fits = BYTES / self._each_bytes
        if self._each_ms:
            in_time = wait_ms / PART / self._each_ms if wait_ms else math.inf
            fits = min(fits, in_time, max(ALWAYS, SOON_MS / self._each_ms))
        self.window = max(1, int(min(self.window, most, fits)))
        return self.window


class CreditWindow:
    """How many messages the service may send. ``asked`` is the subscriber's own maximum, None for the durable's.

    With the durable's window, credit comes back half a window at a time as messages are taken; with its own, as they
    are acknowledged, so the subscriber never holds more. A message that is never acknowledged keeps its part. Either
    way the window follows the measured ``Pace``.
    """

    def __init__(self, asked: int | None) -> None:
        self._asked = asked
        self._offered = AttachedFrame().prefetch
        self._wait_ms = 0
        self._given = 0
        """Credit that is with the service, or in messages that count still."""
        self._held: set[int] | None = set() if asked is not None else None
        """Numbers not acknowledged yet, where this subscriber has its own window."""
        self.pace = Pace()

    @property
    def is_own(self) -> bool:
        """Whether the subscriber has its own window."""
        return self._held is not None

    @property
    def most(self) -> int:
        """The maximum of the window, in messages."""
        return self._offered if self._asked is None else min(self._asked, self._offered)

    @property
    def size(self) -> int:
        """The window in messages."""
        return self.pace.limit(self.most, self._wait_ms)

    def begin(self, offered: int, wait_ms: int) -> None:
        """A connection begins. ``offered``: the durable's window; ``wait_ms``: how long a message may wait here."""
        self._offered, self._wait_ms, self._given = offered, wait_ms, 0
        self.pace.begin()

    def kept(self, ranges: Sequence[tuple[int, int]]) -> None:
        """The new connection begins with these held."""
        if self._held is not None:
            for first, last in ranges:
                self._held.update(range(first, last + 1))
            self._given = len(self._held)

    def lost(self) -> None:
        """The connection is lost: the subscriber holds no messages."""
        self._given = 0
        if self._held is not None:
            self._held.clear()

    def arrived(self, messages: Sequence[Delivery], size: int) -> None:
        """These came, in ``size`` bytes."""
        self.pace.arrived(len(messages), size)
        if self._held is not None:
            self._held.update([message.seq for message in messages])

    def took(self, count: int) -> None:
        """The application has this many more."""
        if self._held is None:
            self._given -= count

    def released(self, first: int, last: int) -> None:
        """These are not held any more."""
        if self._held is not None:
            for seq in range(first, last + 1):
                if seq in self._held:
                    self._held.discard(seq)
                    self._given -= 1

    def withdrawn(self, ranges: Sequence[tuple[int, int]], taken: int) -> None:
        """The service has taken these back with their credit; the application had ``taken`` of them."""
        if self._held is None:
            self._given += taken
            return
        for first, last in ranges:
            for seq in range(first, last + 1):
                if seq in self._held:
                    self._held.discard(seq)
                else:
                    self._given += 1

    def take_due(self) -> int:
        """The credit to give now."""
        size = self.size
        due = size - self._given
        if due <= 0 or (self._held is None and due * 2 < size):
            return 0
        self._given = size
        return due
