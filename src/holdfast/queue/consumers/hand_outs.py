"""Which messages of one consumer were handed out to which owner, and how far all of them are done.

Owns: messages in memory, the stretches that are handed out and not done, the place that may be committed. Does not own:
owners (a thread, a task: ``consumer``, ``asynchronous_work``), the cursor, locks.

Failure model: pure. The committed place is below every message that is not done, so a crash skips none of them.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from holdfast.errors import LimitExceeded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.queue.log.messages import Message

__all__ = ["STRETCHES_MAX", "Chunk", "HandOuts", "Owner", "give_messages", "runs_of"]

STRETCHES_MAX = 1_000_000
"""Stretches that may be handed out and not done: about 200 bytes each."""


class Chunk:
    """Messages in memory, up to ``last_seq``, and the last one of them that was taken: at first the one before them.

    ``messages`` is an iterator without a line of Python: taking the next one, and taking all the rest, is one step each
    for every thread.
    """

    __slots__ = ("last_seq", "messages", "taken_seq")

    def __init__(self, messages: Iterable[Message], taken_seq: int, last_seq: int) -> None:
        self.messages = iter(messages)
        self.taken_seq = taken_seq
        self.last_seq = last_seq


class Owner:
    """One thread or task that takes messages. ``last_seq`` is the last message that it was given, 0 for none.

    ``moves`` says at which place of the consumer: a message from before the consumer went elsewhere does not count.

    An object, not a thread's number: numbers are used again, and a new thread must not finish what a dead one had.
    """

    __slots__ = ("last_seq", "moves")

    def __init__(self) -> None:
        self.last_seq = 0
        self.moves = 0


class HandOuts:
    """The messages from ``committed_seq + 1`` to ``given_seq``: each is done or in one owner's stretch.

    A number without a message, because of damage or retention, counts as done.

    >>> a, b = Owner(), Owner()
    >>> outs = HandOuts(0)
    >>> outs.give(a, 3), outs.give(b, 5), outs.give(a, 6)
    (None, None, None)
    >>> outs.finish(b, 5), outs.committed_seq
    (None, 0)
    >>> outs.finish(a, 3), outs.committed_seq
    (None, 5)
    """

    __slots__ = ("_given_seq", "_stretches")

    def __init__(self, committed_seq: int) -> None:
        self._given_seq = committed_seq
        self._stretches: list[tuple[int, int, Owner]] = []  # first, last, owner

    @property
    def given_seq(self) -> int:
        """The last message that was handed out. An interrupt (Ctrl-C) in ``give`` may leave only the stretch."""
        return max(self._given_seq, self._stretches[-1][1]) if self._stretches else self._given_seq

    @property
    def committed_seq(self) -> int:
        """The last message that is done together with all before it."""
        return self._stretches[0][0] - 1 if self._stretches else self._given_seq

    def give(self, owner: Owner, until: int, moves: int = 0, *, first: int = 0) -> None:
        """The next messages, from ``first`` (0: the next number) up to ``until``, are the owner's.

        Raises: ``LimitExceeded``, and nothing has changed.
        """
        given_seq = self.given_seq
        first = first or given_seq + 1
        assert given_seq < first <= until, "messages are handed out in order"
        last = self._stretches[-1] if self._stretches else None
        if last is not None and last[1] == first - 1 and last[2] is owner:
            self._stretches[-1] = (last[0], until, owner)
        else:
            self.check_room()
            self._stretches.append((first, until, owner))
        self._given_seq = until
        owner.last_seq, owner.moves = until, moves

    def take_back(self, owner: Owner, after: int, until: int) -> bool:
        """The owner never got its messages above ``after``, up to ``until``.

        True where these are handed out next. False where later ones were handed out: then these are of an owner that
        commits nothing, and the committed place stays below them.
        """
        if self.given_seq <= until:
            self._given_seq = after
            while self._stretches and self._stretches[-1][1] > after:
                first = self._stretches[-1][0]
                self._stretches[-1:] = [(first, after, owner)] if first <= after else []
            return True
        missed = Owner()
        kept: list[tuple[int, int, Owner]] = []
        for first, last, of in self._stretches:
            if of is not owner or last <= after or first > until:
                kept.append((first, last, of))
                continue
            if first <= after:
                kept.append((first, after, owner))
            kept.append((max(first, after + 1), min(last, until), missed))
            if last > until:
                kept.append((until + 1, last, owner))
        self._stretches = kept
        return False

    def check_room(self) -> None:
        """Raises: ``LimitExceeded`` where there is no room for one stretch more."""
        count = len(self._stretches)
        if count >= STRETCHES_MAX:
            raise LimitExceeded(
                "too many messages are handed out and not committed", stretches=count, max=STRETCHES_MAX
            )

    def finish(self, owner: Owner, seq: int) -> None:
        """This message is done, and so is every earlier message that this owner was given."""
        self._given_seq = self.given_seq
        end = bisect_right(self._stretches, seq, key=_first_of)
        begin = 0 if owner.last_seq else max(0, end - 1)  # an owner without messages finishes this one alone
        kept: list[tuple[int, int, Owner]] = []
        for first, last, of in self._stretches[begin:end]:
            if last < seq:
                if of is not owner:
                    kept.append((first, last, of))
                continue
            if of is not owner and first < seq:
                kept.append((first, seq - 1, of))
            if last > seq:
                kept.append((seq + 1, last, of))
        self._stretches[begin:end] = kept

    def finish_run(self, first: int, last: int) -> None:
        """These messages are done, whichever owner was given them.

        >>> a, outs = Owner(), HandOuts(0)
        >>> outs.give(a, 9), outs.finish_run(4, 6), outs.committed_seq
        (None, None, 0)
        >>> outs.finish_run(1, 3), outs.committed_seq
        (None, 6)
        """
        self._given_seq = self.given_seq
        begin = max(0, bisect_right(self._stretches, first, key=_first_of) - 1)
        end = bisect_right(self._stretches, last, key=_first_of)
        kept: list[tuple[int, int, Owner]] = []
        for begun, ended, of in self._stretches[begin:end]:
            if begun < first:
                kept.append((begun, min(ended, first - 1), of))
            if ended > last:
                kept.append((max(begun, last + 1), ended, of))
        self._stretches[begin:end] = kept

    @property
    def stretches(self) -> int:
        """How many stretches are not done."""
        return len(self._stretches)

    @property
    def holes(self) -> int:
        """How many of them have messages that are done directly below. Cost: a look at each."""
        return sum(before[1] + 1 < after[0] for before, after in pairwise(self._stretches))

    def check(self) -> None:
        """Assert the invariants."""
        before = 0
        for first, last, _ in self._stretches:
            assert before < first <= last, "stretches are in order and do not overlap"
            before = last
        assert before <= self.given_seq, "only messages that were handed out are in a stretch"


def runs_of(seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The runs of consecutive numbers, of numbers that rise.

    >>> list(runs_of([1, 2, 3, 7, 9, 10]))
    [(1, 3), (7, 7), (9, 10)]
    """
    first = last = 0
    for seq in seqs:
        if last and seq > last + 1:
            yield first, last
            last = 0
        if not last:
            first = seq
        last = seq
    if last:
        yield first, last


def _first_of(stretch: tuple[int, int, Owner]) -> int:
    return stretch[0]


def give_messages(outs: HandOuts, owner: Owner, found: list[Message], taken_seq: int, moves: int) -> None:
    """Hand out these messages, the next ones after ``taken_seq``, without the numbers that have no message."""
    if found[-1][0] - taken_seq == len(found):
        outs.give(owner, found[-1][0], moves)
        return
    for first, last in runs_of(message[0] for message in found):
        outs.give(owner, last, moves, first=first)
