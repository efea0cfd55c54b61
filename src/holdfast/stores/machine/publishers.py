"""What a store knows of those who publish to it, so that a message that is sent again is stored once.

Owns: per publisher the last number and where its messages are; forgetting idle ones. Does not own: messages.

Failure model: pure. Of a publisher's numbers, only the last one + 1 is new. A lower one is a duplicate and confirmed
with the number that its message got; one that is older than the ``HISTORY_MAX`` last batches known is confirmed with
the oldest number known, because only that it is stored matters to who sends so late. A higher one would leave a gap.

A publisher that was idle for ``publisher_ttl`` is forgotten, and so is the one that was idle for longest when there are
more than ``PUBLISHERS_MAX``. Of the last ``FORGOTTEN_MAX`` that were, one that goes on
where it stopped is told so (``unknown_publisher``), because whether its message is a duplicate is not known any more;
number 1 begins anew. A publisher never heard of may begin with any number.
"""

from __future__ import annotations

from collections import deque

from holdfast.errors import Code, Conflict, InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.values.messages import Message

__all__ = ["FORGOTTEN_MAX", "HISTORY_MAX", "PUBLISHERS_MAX", "PublisherState", "Publishers"]

HISTORY_MAX = 128
"""Batches of one publisher whose numbers are known."""
PUBLISHERS_MAX = 100_000
"""Publishers of one store: all of them are in memory, and in each snapshot."""
FORGOTTEN_MAX = 10_000

Run = tuple[int, int, int]
"""First and last number of the publisher, and the first number in the store."""
PublisherState = tuple[str, int, list[Run]]
"""Name, when it last published, its history."""


class _Publisher:
    __slots__ = ("runs", "used_ms")

    def __init__(self, used_ms: int, runs: Sequence[Run] = ()) -> None:
        self.used_ms = used_ms
        self.runs: deque[Run] = deque(runs, maxlen=HISTORY_MAX)


class Publishers:
    """The publishers of one store, the one that was idle for longest first."""

    __slots__ = ("_forgotten", "_known")

    def __init__(self) -> None:
        self._known: dict[str, _Publisher] = {}
        self._forgotten: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def duplicates(self, publisher: str, messages: Sequence[Message]) -> int:
        """How many of the first messages are stored already. Changes nothing.

        *Raises*: ``InvalidRequest`` for numbers that do not rise by one; ``Conflict`` (sequence_gap,
        unknown_publisher).
        """
        first = messages[0].publisher_seq
        if not publisher:
            if any(message.publisher_seq for message in messages):
                raise InvalidRequest("numbered messages have a publisher_id")
            return 0
        if first < 1 or (
            len(messages) > 1
            and [message.publisher_seq for message in messages] != list(range(first, first + len(messages)))
        ):
            raise InvalidRequest("a publisher numbers its messages, rising by one", publisher=publisher, first=first)
        known = self._known.get(publisher)
        if known is None:
            if first > 1 and publisher in self._forgotten:
                raise Conflict(
                    "this publisher was idle for too long and is forgotten",
                    code=Code.UNKNOWN_PUBLISHER,
                    publisher=publisher,
                    publisher_seq=first,
                    hint="begin anew with number 1 or another publisher_id",
                )
            return 0
        last = known.runs[-1][1]
        if first > last + 1:
            raise Conflict(
                "messages of this publisher are missing before these",
                code=Code.SEQUENCE_GAP,
                publisher=publisher,
                publisher_seq=first,
                expected=last + 1,
                hint="send the missing ones first",
            )
        return min(len(messages), last - first + 1)

    def seq_of(self, publisher: str, publisher_seq: int) -> int:
        """Where a message that is stored is."""
        runs = self._known[publisher].runs
        for first, last, seq in reversed(runs):
            if first <= publisher_seq <= last:
                return seq + publisher_seq - first
        return runs[0][2]

    def accepted(self, publisher: str, first: int, count: int, first_seq: int, at_ms: int) -> None:
        """``count`` messages from number ``first`` on are stored from ``first_seq`` on."""
        known = self._known.pop(publisher, None)
        if known is None:
            known = _Publisher(at_ms)
            self._forgotten.pop(publisher, None)
        self._known[publisher] = known  # at the end: the one that was used last
        known.used_ms = at_ms
        runs = known.runs
        if runs and runs[-1][2] + first - runs[-1][0] == first_seq:
            runs[-1] = (runs[-1][0], first + count - 1, runs[-1][2])
        else:
            runs.append((first, first + count - 1, first_seq))
        while len(self._known) > PUBLISHERS_MAX:
            self._forget_first()

    def next_deadline_ms(self, ttl_ms: int) -> int | None:
        """When the next publisher is forgotten, or None."""
        for known in self._known.values():
            return known.used_ms + ttl_ms
        return None

    def expire(self, now_ms: int, ttl_ms: int) -> None:
        """Forget those who were idle for ``ttl_ms``."""
        while self._known:
            if self._known[next(iter(self._known))].used_ms + ttl_ms > now_ms:
                return
            self._forget_first()

    def _forget_first(self) -> None:
        """Forget the one that was idle for longest."""
        name = next(iter(self._known))
        del self._known[name]
        self._forgotten[name] = None
        if len(self._forgotten) > FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]

    def state(self) -> tuple[list[PublisherState], list[str]]:
        """Everything, in the order of use."""
        return [(name, known.used_ms, list(known.runs)) for name, known in self._known.items()], list(self._forgotten)

    def restore(self, known: Sequence[PublisherState], forgotten: Sequence[str]) -> None:
        """As ``state`` gave it."""
        self._known = {
            name: _Publisher(used_ms, [(run[0], run[1], run[2]) for run in runs]) for name, used_ms, runs in known
        }
        self._forgotten = dict.fromkeys(forgotten)

    def check(self) -> None:
        """Publishers are in the order of use, and each one's history rises."""
        used = [known.used_ms for known in self._known.values()]
        assert used == sorted(used), "the one that was idle for longest is first"
        for known in self._known.values():
            assert known.runs, "a publisher has published"
            ends = [run[1] for run in known.runs]
            assert ends == sorted(set(ends)), "a history rises"
