"""Acknowledgements of one subscriber on their way: which wait for company, which were sent and not answered.

Owns: merging numbers into ranges, numbering frames, matching answers to who waits for them, what is sent again on the
next connection. Does not own: when something is sent (``consuming``), the frames' bytes (``wire``).

Failure model: pure. An acknowledgement is forgotten when the service has answered it, and not before; one that is sent
again after it was carried out is stale, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.client.stores.wire import ack_frame
from holdfast.errors import HoldfastError
from holdfast.wire.stores import ReplyFrame

__all__ = ["RANGES_MAX", "Acknowledging", "OnAnswer"]

RANGES_MAX: Final = 10_000
"""Ranges of one frame; the service takes no more."""

OnAnswer = Callable[[Sequence[int], HoldfastError | None], None]
"""Called with the numbers that were stale, or with the error."""


@dataclass(slots=True)
class _Asked:
    """A frame without an answer yet."""

    kind: str
    what: Sequence[object]
    numbers: int
    on_answer: list[OnAnswer]


def _of_all(frames: int, on_answer: Sequence[OnAnswer]) -> OnAnswer:
    """Tell these once: what so many frames found stale when all are answered, or the first error."""
    gathered: list[int] = []
    left = frames

    def answered(stale: Sequence[int], error: HoldfastError | None) -> None:
        nonlocal left
        if left == 0:
            return  # told already
        gathered.extend(stale)
        left = 0 if error is not None else left - 1
        if left == 0:
            for tell in on_answer:
                tell(gathered if error is None else (), error)

    return answered


class Acknowledging:
    """What one subscriber has acknowledged and the service has not confirmed."""

    def __init__(self) -> None:
        self._pairs: list[list[int]] = []
        self._answers: list[OnAnswer] = []
        self._unanswered: dict[int, _Asked] = {}
        self._last_id = 0
        self.pending = 0
        """How many numbers wait for company."""
        self.since_ms = 0.0
        """Since when the first of them waits."""
        self.stale = 0

    @property
    def unconfirmed(self) -> int:
        """How many numbers wait for company or for an answer."""
        return self.pending + sum(asked.numbers for asked in self._unanswered.values())

    def add(self, first: int, last: int, now_ms: float) -> None:
        """``first`` to ``last`` are consumed. Neighbours in order of delivery become one range at once."""
        if not self.pending:
            self.since_ms = now_ms
        self.pending += last - first + 1
        if self._pairs and self._pairs[-1][1] + 1 == first:
            self._pairs[-1][1] = last
        else:
            self._pairs.append([first, last])

    def tell(self, on_answer: OnAnswer) -> None:
        """Call this when everything that waits for company now has its answer."""
        self._answers.append(on_answer)

    def take_pending(self) -> list[bytes]:
        """Frames of everything that waits for company. Who waits for an answer gets that of all of them."""
        pairs, answers = self._pairs, self._answers
        self._pairs, self._answers, self.pending = [], [], 0
        parts = [pairs[start : start + RANGES_MAX] for start in range(0, len(pairs), RANGES_MAX)]
        if answers and len(parts) > 1:
            answers = [_of_all(len(parts), answers)]
        return [self.ask("ack", part, sum(last - first + 1 for first, last in part), answers) for part in parts]

    def ask(self, kind: str, what: Sequence[object], numbers: int, on_answer: list[OnAnswer]) -> bytes:
        """A frame that is to be answered."""
        self._last_id += 1
        self._unanswered[self._last_id] = _Asked(kind, what, numbers, on_answer)
        return ack_frame(kind, self._last_id, what)

    def again(self) -> list[bytes]:
        """Everything without an answer, in order, for a new connection."""
        unanswered, self._unanswered = self._unanswered, {}
        return [self.ask(asked.kind, asked.what, asked.numbers, asked.on_answer) for asked in unanswered.values()]

    def answered(self, frame: ReplyFrame) -> list[int]:
        """The service has it. Answers which numbers were stale."""
        asked = self._unanswered.pop(frame.id, None)
        if asked is None:
            return []
        stale: list[int] = []
        for item in frame.stale:
            stale.extend((item,) if isinstance(item, int) else range(item[0], item[1] + 1))
        self.stale += len(stale)
        for answer in asked.on_answer:
            answer(stale, None)
        return stale

    def waits_for(self, frame_id: int) -> bool:
        """Whether this frame has no answer yet."""
        return frame_id in self._unanswered

    def refused(self, frame_id: int, error: HoldfastError) -> bool:
        """The service refused the frame. False where nobody waits to hear of it."""
        asked = self._unanswered.pop(frame_id, None)
        for answer in asked.on_answer if asked is not None else ():
            answer((), error)
        return asked is not None and bool(asked.on_answer)

    def fail(self, error: HoldfastError) -> None:
        """Nothing will be answered any more."""
        waiting = [answer for asked in self._unanswered.values() for answer in asked.on_answer] + self._answers
        self._answers = []
        for asked in self._unanswered.values():
            asked.on_answer = []
        for answer in waiting:
            answer((), error)

    def check(self) -> None:
        """Assert every law; for tests."""
        assert self.pending == sum(last - first + 1 for first, last in self._pairs), "ranges are counted"
        assert all(first <= last for first, last in self._pairs), "a range is not empty"
        assert all(frame_id <= self._last_id for frame_id in self._unanswered), "a frame has the id it was sent with"
