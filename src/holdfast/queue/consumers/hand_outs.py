"""Which owner has which messages of a consumer, and the position that follows from what is done. Pure."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from operator import itemgetter

from holdfast.errors import LimitExceeded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Fields = tuple[int, int, bytes]
    """Of a message: its number is the first."""

RANGES_MAX = 1_000_000
"""Ranges that may be handed out and not done: about 200 bytes each."""


class Owner:
    """A thread or task that takes messages, ``last_seq`` the last of them, 0 for none; ``moves`` is the consumer's
    count of moves at that time. An object, because numbers of threads are reused.
    """

    __slots__ = ("last_seq", "moves")

    def __init__(self) -> None:
        self.last_seq = 0
        self.moves = 0


class HandOuts:
    """The messages from ``committed_seq + 1`` to ``given_seq``: each is done or in a range of one owner. Numbers
    without a message count as done. Pure.

    >>> a, b = Owner(), Owner()
    >>> outs = HandOuts(0)
    >>> outs.give(a, 3), outs.give(b, 5), outs.give(a, 6)
    (None, None, None)
    >>> outs.finish(b, 5), outs.committed_seq
    (None, 0)
    >>> outs.finish(a, 3), outs.committed_seq
    (None, 5)
    """

    __slots__ = ("_given_seq", "_ranges")

    def __init__(self, committed_seq: int) -> None:
        self._given_seq = committed_seq
        self._ranges: list[tuple[int, int, Owner]] = []  # first, last, owner

    @property
    def given_seq(self) -> int:
        """The last message that was handed out. An interrupt in ``give`` may leave only the range."""
        return max(self._given_seq, self._ranges[-1][1]) if self._ranges else self._given_seq

    @property
    def committed_seq(self) -> int:
        """The last message that is done together with all before it."""
        return self._ranges[0][0] - 1 if self._ranges else self._given_seq

    def give(self, owner: Owner, until: int, moves: int = 0, *, first: int = 0) -> None:
        """Give the messages from ``first`` (0: the next) to ``until``. Raises: ``LimitExceeded``; nothing changed."""
        given_seq = self.given_seq
        first = first or given_seq + 1
        assert given_seq < first <= until, "messages are handed out in order"
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last[1] == first - 1 and last[2] is owner:
            self._ranges[-1] = (last[0], until, owner)
        else:
            self.check_room()
            self._ranges.append((first, until, owner))
        self._given_seq = until
        owner.last_seq, owner.moves = until, moves

    def take_back(self, owner: Owner, after: int, until: int) -> bool:
        """The owner never got its messages above ``after``, up to ``until``. True if these are handed out next; False
        if later ones were handed out: then they belong to an owner that commits nothing.
        """
        if self.given_seq <= until:
            self._given_seq = after
            while self._ranges and self._ranges[-1][1] > after:
                first = self._ranges[-1][0]
                self._ranges[-1:] = [(first, after, owner)] if first <= after else []
            return True
        missed = Owner()
        kept: list[tuple[int, int, Owner]] = []
        for first, last, of in self._ranges:
            if of is not owner or last <= after or first > until:
                kept.append((first, last, of))
                continue
            if first <= after:
                kept.append((first, after, owner))
            kept.append((max(first, after + 1), min(last, until), missed))
            if last > until:
                kept.append((until + 1, last, owner))
        self._ranges = kept
        return False

    def check_room(self) -> None:
        """Raises: ``LimitExceeded`` if there is no room for another range."""
        count = len(self._ranges)
        if count >= RANGES_MAX:
            raise LimitExceeded("too many messages are handed out and not committed", ranges=count, max=RANGES_MAX)

    def finish(self, owner: Owner, seq: int) -> None:
        """This message is done, and every earlier message of this owner."""
        self._given_seq = self.given_seq
        end = bisect_right(self._ranges, seq, key=itemgetter(0))
        begin = 0 if owner.last_seq else max(0, end - 1)  # an owner without messages finishes this one alone
        kept: list[tuple[int, int, Owner]] = []
        for first, last, of in self._ranges[begin:end]:
            if last < seq:
                if of is not owner:
                    kept.append((first, last, of))
                continue
            if of is not owner and first < seq:
                kept.append((first, seq - 1, of))
            if last > seq:
                kept.append((seq + 1, last, of))
        self._ranges[begin:end] = kept

    def finish_run(self, first: int, last: int) -> None:
        """These messages are done, whichever owner has them.

        >>> a, outs = Owner(), HandOuts(0)
        >>> outs.give(a, 9), outs.finish_run(4, 6), outs.committed_seq
        (None, None, 0)
        >>> outs.finish_run(1, 3), outs.committed_seq
        (None, 6)
        """
        self._given_seq = self.given_seq
        begin = max(0, bisect_right(self._ranges, first, key=itemgetter(0)) - 1)
        end = bisect_right(self._ranges, last, key=itemgetter(0))
        kept: list[tuple[int, int, Owner]] = []
        for begun, ended, of in self._ranges[begin:end]:
            if begun < first:
                kept.append((begun, min(ended, first - 1), of))
            if ended > last:
                kept.append((max(begun, last + 1), ended, of))
        self._ranges[begin:end] = kept

    @property
    def ranges(self) -> int:
        """How many ranges are not done."""
        return len(self._ranges)

    @property
    def holes(self) -> int:
        """How many ranges have finished messages directly below. Cost: O(ranges)."""
        return sum(before[1] + 1 < after[0] for before, after in pairwise(self._ranges))

    def check(self) -> None:
        """Assert the invariants."""
        before = 0
        for first, last, _ in self._ranges:
            assert before < first <= last, "ranges are in order and do not overlap"
            before = last
        assert before <= self.given_seq, "only messages that were handed out are in a range"


def runs_of(seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The runs of consecutive numbers in rising numbers.

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


def give_messages(outs: HandOuts, owner: Owner, messages: Sequence[Fields], taken_seq: int, moves: int) -> None:
    """Hand out these messages, the next after ``taken_seq``, without the numbers that have no message."""
    if messages[-1][0] - taken_seq == len(messages):
        outs.give(owner, messages[-1][0], moves)
        return
    for first, last in runs_of(message[0] for message in messages):
        outs.give(owner, last, moves, first=first)
