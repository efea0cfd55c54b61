"""The state of a work queue: which messages were started, how often, and when each is due again. Pure.

``apply`` is the only way to change the state, in operation and at an opening. A command is written before it is
applied, so the state after a crash is the state of a moment before it.

A message is *new* at or above ``next_seq``. Below it, it is *started* while it is in ``started``, and otherwise
finished, so memory is bounded by the started messages. A started message is *due* at the end of its lease or delay.

| command | on a message that is | becomes |
|---|---|---|
| TAKE | new, exactly ``next_seq``; or started | started, leased, one delivery more, due at the lease's end |
| DONE, BURY | started | finished |
| RETURN | started | started, not leased, due at the given time |
| EXTEND | started and leased | due at the new end |
| SKIP | started, or new from ``next_seq`` on | finished |

Any other command raises ``CorruptData``, except after damage to the log of commands (``doubtful``). Then a message
below a taken one counts as taken once and not acknowledged, and a command for a finished message does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from holdfast.errors import Code, CorruptData
from holdfast.queue.format.commands import CommandKind, Started, WorkState

STALE_MAX = 64


class WorkMachine:
    """``started`` maps a message to (due, deliveries, leased), rising. ``dues`` is a heap of (due, message), ``ready``
    a heap of (message, due): each started message has an entry in one of them, and both have stale entries. Only
    ``oldest_due`` fills ``ready``. While ``doubtful``, commands may be missing.
    """

    __slots__ = ("dead_seq", "doubtful", "dues", "next_seq", "ready", "started")

    def __init__(self, state: WorkState | None = None) -> None:
        self.next_seq = state.next_seq if state is not None else 1
        self.dead_seq = state.dead_seq if state is not None else 0
        self.started: dict[int, Started] = dict(state.started) if state is not None else {}
        self.doubtful = False
        self.dues = [(due, seq) for seq, (due, _, _) in self.started.items()]
        heapify(self.dues)
        self.ready: list[tuple[int, int]] = []

    def state(self) -> WorkState:
        """Everything, to be written down."""
        return WorkState(self.next_seq, self.dead_seq, dict(sorted(self.started.items())))

    def due(self, now_ns: int) -> int | None:
        """The message that has been due for longest, or None. Cost: O(log started), amortised."""
        due_ns = self.next_due_ns()
        return None if due_ns is None or due_ns > now_ns else self.dues[0][1]

    def oldest_due(self, now_ns: int) -> int | None:
        """The lowest message that is due, or None. Cost: O(log started), amortised."""
        dues, ready, started = self.dues, self.ready, self.started
        while (due_ns := self.next_due_ns()) is not None and due_ns <= now_ns:
            heappush(ready, (dues[0][1], due_ns))  # first: an interrupt between the two steps loses no entry
            heappop(dues)
        while ready:
            seq, due_ns = ready[0]
            if seq in started and started[seq][0] == due_ns:
                return seq
            heappop(ready)
        return None

    def next_due_ns(self) -> int | None:
        """When the next started message that is not ``ready`` is due, or None."""
        dues, started = self.dues, self.started
        while dues:
            due, seq = dues[0]
            if seq in started and started[seq][0] == due:
                return due
            heappop(dues)
        return None

    def is_leased(self, seq: int, deliveries: int) -> bool:
        """Whether the worker with this delivery still has the message."""
        entry = self.started.get(seq)
        return entry is not None and entry[1] == deliveries and entry[2]

    def committed_seq(self) -> int:
        """The last message up to which all are finished. Cost: O(1)."""
        return next(iter(self.started), self.next_seq) - 1

    def leased(self) -> list[int]:
        """The messages that workers have."""
        return [seq for seq, (_, _, leased) in self.started.items() if leased]

    def apply(self, kind: CommandKind, time_ns: int, numbers: Sequence[int]) -> None:
        """Change the state by one command.

        Raises: ``CorruptData`` for a command that the state does not allow; earlier numbers of the same command are
        applied.
        """
        match kind:
            case CommandKind.TAKE:
                first = self.next_seq
                if numbers[0] == first and tuple(numbers) == tuple(range(first, first + len(numbers))):
                    self._take_new(numbers, time_ns)
                else:
                    for seq in numbers:
                        self.take(seq, time_ns)
            case CommandKind.DONE:
                for seq in numbers:
                    self.finish(seq)
            case CommandKind.RETURN | CommandKind.EXTEND:
                for seq in numbers:
                    self._set_due(seq, time_ns, leased=kind is CommandKind.EXTEND)
            case CommandKind.BURY:
                seq, dead_seq = _pair(kind, numbers)
                self.finish(seq)
                self.dead_seq = dead_seq
            case CommandKind.SKIP:
                first, last = _pair(kind, numbers)
                for seq in [started for started in self.started if first <= started <= last]:
                    self.finish(seq)
                if first <= self.next_seq <= last:
                    self.next_seq = last + 1
            case CommandKind.STATE:
                raise CorruptData("a state is not applied: it replaces the machine", code=Code.CORRUPT_QUEUE)

    def take(self, seq: int, lease_ends_ns: int) -> int:
        """Hand out one message. Returns its deliveries, this one included."""
        entry = self.started.get(seq)
        if entry is not None:
            deliveries = entry[1] + 1
        elif seq == self.next_seq:
            deliveries = 1
            self.next_seq = seq + 1
        else:
            deliveries = self._take_in_doubt(seq)
        self.started[seq] = (lease_ends_ns, deliveries, True)
        self._push(lease_ends_ns, seq)
        return deliveries

    def _take_new(self, numbers: Sequence[int], lease_ends_ns: int) -> None:
        """As ``take`` for each, in a third of the time."""
        self.next_seq = numbers[-1] + 1
        self.started.update(dict.fromkeys(numbers, (lease_ends_ns, 1, True)))
        if len(self.dues) > 2 * len(self.started) + STALE_MAX:
            self._drop_stale()
        else:
            for seq in numbers:
                heappush(self.dues, (lease_ends_ns, seq))

    def _push(self, due_ns: int, seq: int) -> None:
        dues = self.dues
        if len(dues) > 2 * len(self.started) + STALE_MAX:
            self._drop_stale()
        else:
            heappush(dues, (due_ns, seq))

    def _drop_stale(self) -> None:
        """Rebuild the heap: leases mostly end long after their message is done."""
        self.dues = [(due, seq) for seq, (due, _, _) in self.started.items()]
        heapify(self.dues)
        self.ready.clear()

    def _take_in_doubt(self, seq: int) -> int:
        if not self.doubtful:
            raise _illegal(CommandKind.TAKE, seq)
        for missing in range(self.next_seq, seq):
            self.started[missing] = (0, 1, False)
            heappush(self.dues, (0, missing))
        if seq < self.next_seq:
            # The rest of the log finished it before this TAKE: its first deliveries are missing.
            self.started = dict(sorted({**self.started, seq: (0, 1, False)}.items()))
            return 2
        self.next_seq = seq + 1
        return 1

    def finish(self, seq: int) -> None:
        """Forget one message: it is acknowledged, buried or gone."""
        if self.started.pop(seq, None) is None:
            if not self.doubtful:
                raise _illegal(CommandKind.DONE, seq)
            if seq >= self.next_seq:
                self._take_in_doubt(seq)

    def _set_due(self, seq: int, due_ns: int, *, leased: bool) -> None:
        entry = self.started.get(seq)
        if entry is None:
            if seq < self.next_seq and self.doubtful:
                return
            if not self.doubtful:
                raise _illegal(CommandKind.EXTEND if leased else CommandKind.RETURN, seq)
            entry = (0, self._take_in_doubt(seq), False)
        self.started[seq] = (due_ns, entry[1], leased)
        self._push(due_ns, seq)

    def check(self) -> None:
        """Assert every invariant. Cost: O(started)."""
        assert all(0 < seq < self.next_seq for seq in self.started), "what is started was taken"
        assert list(self.started) == sorted(self.started), "started messages are kept in order"
        assert all(count > 0 for _, count, _ in self.started.values()), "what is started was delivered"
        entries = {*self.dues, *((due, seq) for seq, due in self.ready)}
        assert all((due, seq) in entries for seq, (due, _, _) in self.started.items()), "all that is started falls due"
        for heap in (self.dues, self.ready):
            assert all(heap[index] >= heap[(index - 1) // 2] for index in range(1, len(heap))), "a heap"


def _pair(kind: CommandKind, numbers: Sequence[int]) -> tuple[int, int]:
    if len(numbers) != 2:
        raise CorruptData("a command has too few or too many numbers", code=Code.CORRUPT_QUEUE, kind=kind.name)
    return numbers[0], numbers[1]


def _illegal(kind: CommandKind, seq: int) -> CorruptData:
    return CorruptData(
        "the log of a work queue breaks its rules",
        code=Code.CORRUPT_QUEUE,
        kind=kind.name,
        seq=seq,
        hint="open the work queue with damage='skip' to continue; no message is lost",
    )
