"""Which messages of one consumer were handed out to which owner, and how far all of them are done.

Owns: the stretches that are handed out and not done, and the place that may be committed. Does not own: owners (a
thread, a task: ``consumer``, ``asynchronous_work``), the cursor, locks.

Failure model: pure. The committed place is below every message that is not done, so a crash skips none of them.
"""

from __future__ import annotations

from bisect import bisect_right

from holdfast.errors import LimitExceeded

__all__ = ["STRETCHES_MAX", "HandOuts", "Owner"]

STRETCHES_MAX = 1_000_000
"""Stretches that may be handed out and not done: about 200 bytes each."""


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
    """Consecutive messages from ``committed_seq + 1`` to ``given_seq``: each is done or in one owner's stretch.

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

    def give(self, owner: Owner, until: int, moves: int = 0) -> None:
        """The next messages, up to this one, are the owner's. Raises: ``LimitExceeded``, and nothing has changed."""
        given_seq = self.given_seq
        assert until > given_seq, "messages are handed out in order"
        last = self._stretches[-1] if self._stretches else None
        if last is not None and last[1] == given_seq and last[2] is owner:
            self._stretches[-1] = (last[0], until, owner)
        else:
            self.check_room()
            self._stretches.append((given_seq + 1, until, owner))
        self._given_seq = until
        owner.last_seq, owner.moves = until, moves

    def take_back(self, owner: Owner, after: int, until: int) -> bool:
        """The owner never got its messages above ``after``, up to ``until``.

        True where these are handed out next. False where later ones were handed out: then these are of an owner that
        commits nothing, and the committed place stays below them.
        """
        if self.given_seq <= until:
            self._given_seq = after
            if self._stretches and self._stretches[-1][1] > after:
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

    def check(self) -> None:
        """Assert the invariants."""
        before = 0
        for first, last, _ in self._stretches:
            assert before < first <= last, "stretches are in order and do not overlap"
            before = last
        assert before <= self.given_seq, "only messages that were handed out are in a stretch"


def _first_of(stretch: tuple[int, int, Owner]) -> int:
    return stretch[0]
