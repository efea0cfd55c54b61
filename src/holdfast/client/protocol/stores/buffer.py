"""What has arrived at a subscriber and was not handed to its application, without I/O.

A message is handed over only while it is this subscriber's, as far as it can know. It leaves the buffer when the
service withdraws it, when its own time is over, and with everything else when the connection ends. A message that is
late takes with it what must not be handed over before it; of those that it withdraws the service names all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from holdfast.wire.parts import Delivery


@dataclass(slots=True)
class _Frame:
    """Messages that came together, and until when they may be handed over."""

    until_ms: float
    messages: deque[Delivery]


class Inbox:
    """Messages in the order in which they came. Memory: the credit that was given, at most the prefetch."""

    def __init__(self) -> None:
        self._frames: deque[_Frame] = deque()
        """None is empty."""
        self._count = 0
        self._order = ""
        self._late: dict[int, str | None] = {}
        """Numbers that were too late, with the key that orders them. The service withdraws them, too: until then they
        keep their credit."""
        self.again: set[int] = set()
        """Numbers of redelivered messages, which the application may work on since an earlier delivery."""

    def __len__(self) -> int:
        return self._count

    def begin(self, order: str) -> None:
        """A connection begins. ``order``: what is handed over in order, ``durable``, ``key`` or nothing."""
        self.clear()
        self._order = order

    def clear(self) -> None:
        """The connection has ended: the service delivers everything again."""
        self._frames.clear()
        self._count = 0
        self._late.clear()
        self.again.clear()

    def arrived(self, messages: Sequence[Delivery], again: Sequence[int], until_ms: float) -> None:
        """A frame came, to be handed over before ``until_ms``. ``again``: the numbers of the redelivered messages."""
        if not messages:
            return
        if self._late:
            for one in messages:
                self._late.pop(one.seq, None)
        self.again.update(again)
        self._frames.append(_Frame(until_ms, deque(messages)))
        self._count += len(messages)
        if self._late:
            self._drop_behind()  # what came behind a message that is late is withdrawn with it

    def take(self, now_ms: float) -> Delivery | None:
        """The next message, None for none."""
        if self._frames and self._frames[0].until_ms <= now_ms:
            self._drop_late(now_ms)
        if not self._frames:
            return None
        messages = self._frames[0].messages
        message = messages.popleft()
        if not messages:
            self._frames.popleft()
        self._count -= 1
        self.again.discard(message.seq)
        return message

    def take_all(self, now_ms: float) -> list[Delivery]:
        """Everything that may be handed over."""
        if any(frame.until_ms <= now_ms for frame in self._frames):
            self._drop_late(now_ms)
        messages = list(chain.from_iterable([frame.messages for frame in self._frames]))
        self._frames.clear()
        self._count = 0
        self.again.clear()
        return messages

    def withdraw(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """The service has taken these back, with their credit. Returns the numbers that the application did not get."""
        late = [seq for seq in self._late if any(first <= seq <= last for first, last in ranges)]
        for seq in late:
            del self._late[seq]
        dropped = self._remove(lambda message, _: any(first <= message.seq <= last for first, last in ranges))
        return late + [message.seq for message in dropped]

    def settled(self, first: int, last: int) -> int:
        """The application settles these, by an earlier delivery of them. Returns how many leave.

        Nothing withdraws them then: one that was late must not order what comes behind it any more.
        """
        if not any(first <= seq <= last for numbers in (self.again, self._late) for seq in numbers):
            return 0
        return len(self.withdraw([(first, last)]))

    def _drop_late(self, now_ms: float) -> None:
        late = self._remove(lambda _, until_ms: until_ms <= now_ms)
        if late:
            self._late.update({message.seq: self._ordered_by(message) for message in late})
            self._drop_behind()

    def _drop_behind(self) -> None:
        """What must not be handed over before a message that is late is late, too."""
        if not self._order:
            return
        firsts: dict[str | None, int] = {}
        for seq, key in self._late.items():
            firsts[key] = min(seq, firsts.get(key, seq))
        is_keyed = self._order == "key"
        behind = self._remove(
            lambda message, _: (
                not (is_keyed and message.key is None) and message.seq > firsts.get(self._ordered_by(message), 1 << 62)
            )
        )
        self._late.update({message.seq: self._ordered_by(message) for message in behind})

    def _ordered_by(self, message: Delivery) -> str | None:
        return message.key if self._order == "key" else None

    def _remove(self, leaves: Callable[[Delivery, float], bool]) -> list[Delivery]:
        gone: list[Delivery] = []
        for frame in self._frames:
            leaving = [message for message in frame.messages if leaves(message, frame.until_ms)]
            if leaving:
                gone += leaving
                numbers = {message.seq for message in leaving}
                frame.messages = deque(message for message in frame.messages if message.seq not in numbers)
        if gone:
            self._frames = deque(frame for frame in self._frames if frame.messages)
            self._count -= len(gone)
            self.again.difference_update([message.seq for message in gone])
        return gone
