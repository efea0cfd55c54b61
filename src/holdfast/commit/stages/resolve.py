"""Stage 2, decide: does every precondition still hold against the recent writes?

A precondition at version v holds when nothing in its key or range changed after v. If v is below the window's floor,
the transaction is ``too_old``. The writes of an accepted transaction are in the window when the next transaction is
judged. A long decision is made in parts (``decide_some``); the window does not move until the decision is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from holdfast.commit.format.transaction import (
    FailedPrecondition,
    PointRead,
    RangeDelete,
    Rejected,
    StoreRefusal,
    Transaction,
)
from holdfast.commit.stages.attempts import Attempts
from holdfast.commit.stages.events import CommitEntry, Position
from holdfast.commit.window import RecentWrites

_TOO_OLD: Final = Rejected("too_old")
SAMPLES_MAX: Final = 4096

# What a decision costs, in units of about a microsecond, measured with up to 29 stretches in the window: a point read
# 0.25 for each stretch, a range read 2.6 for each, a range deletion up to 6, a write 0.6.
RANGE_READ_WORK: Final = 3
RANGE_DELETE_WORK: Final = 6
PART_OPERATIONS: Final = 256
WHOLE_ITEMS_MAX: Final = 16
"""Larger transactions are decided in parts."""
UNBOUNDED: Final = 1 << 62


class Stores(Protocol):
    """The message stores of the log, as far as commits need them."""

    def carry_out(self, entry: CommitEntry) -> StoreRefusal | None:
        """Do what ``entry.parts`` say, all of it or nothing, and set ``record``, ``results`` and ``recorded``."""
        ...


_NO_STORES: Final = StoreRefusal("", 0, "overloaded", "the stores are not open")


class _Partial:
    """How far the decision on one large transaction has come."""

    __slots__ = ("failed", "operations", "reads")

    def __init__(self) -> None:
        self.reads = 0
        self.failed: list[FailedPrecondition] = []
        self.operations = 0


class Resolve:
    """Judges entries one after another against the recent writes of this leader.

    Bounds: the window keeps ``window_ms`` of history or ``bytes_max`` bytes, whichever is reached first.
    """

    __slots__ = ("_attempts", "_samples", "_partial", "_window_ms", "accepted", "recent", "rejected", "stores")

    def __init__(self, base: int, attempts: Attempts, *, window_ms: float, bytes_max: int) -> None:
        self.recent = RecentWrites(base, bytes_max=bytes_max)
        self._attempts = attempts
        self._window_ms = window_ms
        self._samples: deque[tuple[float, int]] = deque()
        self._partial: _Partial | None = None
        self.accepted = 0
        self.rejected = 0
        self.stores: Stores | None = None

    @property
    def floor(self) -> int:
        """The oldest version that a precondition may name."""
        return self.recent.floor

    @property
    def deciding(self) -> bool:
        """Whether a decision was begun and is not complete."""
        return self._partial is not None

    def decide(self, entries: Iterable[CommitEntry]) -> None:
        """Set ``accepted``, or an outcome, on every entry that has none yet. Record what the accepted ones write."""
        self.decide_some(deque(entries), UNBOUNDED)

    def decide_some(self, entries: deque[CommitEntry | Position], work_max: int) -> list[CommitEntry | Position]:
        """Decide entries from the front, in order, until ``work_max`` (about microseconds) is used up; at least one
        step.

        Returns the entries taken out, with the positions among them. The first one that remains may be half decided: it
        must stay at the front.
        """
        taken: list[CommitEntry | Position] = []
        record, work, point_work = self.recent.record, work_max, 1 + (self.recent.stretches >> 2)
        while entries and work > 0:
            entry = entries[0]
            if type(entry) is CommitEntry and entry.outcome is None:
                txn = entry.txn
                reads, operations = txn.preconditions, txn.operations
                if self._partial is not None or len(reads) + len(operations) > WHOLE_ITEMS_MAX:
                    work = self._decide_part(entry, self._partial or _Partial(), work)
                    if self._partial is not None:
                        break
                else:
                    outcome = None
                    work -= len(operations)
                    if reads or txn.request_id is not None:
                        outcome = self._judge(txn)
                        for read in reads:
                            work -= point_work if type(read) is PointRead else RANGE_READ_WORK * self.recent.stretches
                    if outcome is None and entry.parts is not None:
                        outcome = self._carry_out(entry)
                    if outcome is not None:
                        self._reject(entry, outcome)
                    else:
                        entry.accepted = True
                        self.accepted += 1
                        record(entry.version, operations)
            taken.append(entries.popleft())
        return taken

    def _decide_part(self, entry: CommitEntry, partial: _Partial, work: int) -> int:
        """Continue with one entry. Returns the remaining work; ``_partial`` is None when the decision is complete."""
        txn, recent = entry.txn, self.recent
        self._partial = partial
        if partial.reads == 0 and (txn.preconditions or txn.request_id is not None):
            too_old = self._too_old(txn)
            if too_old is not None:
                self._partial = None
                self._reject(entry, too_old)
                return work - len(txn.preconditions)
        while partial.reads < len(txn.preconditions):
            if work <= 0:
                return work
            work -= self._judge_one(txn, partial.reads, partial.failed)
            partial.reads += 1
        if partial.failed:
            self._partial = None
            self._reject(entry, Rejected("conflict", tuple(partial.failed)))
            return work
        if entry.parts is not None and entry.record is None:
            refused = self._carry_out(entry)
            if refused is not None:
                self._partial = None
                self._reject(entry, refused)
                return work
        while partial.operations < len(txn.operations):
            if work <= 0:
                return work
            part = txn.operations[partial.operations : partial.operations + PART_OPERATIONS]
            work -= sum(RANGE_DELETE_WORK if type(operation) is RangeDelete else 1 for operation in part)
            recent.record(entry.version, part, further=partial.operations > 0)
            partial.operations += len(part)
        self._partial = None
        entry.accepted = True
        self.accepted += 1
        return work

    def _carry_out(self, entry: CommitEntry) -> Rejected | None:
        """Let the stores do their parts: the preconditions hold, and the writes are not in the window yet."""
        refused = _NO_STORES if self.stores is None else self.stores.carry_out(entry)
        return None if refused is None else Rejected("store_refused", refused=refused)

    def _reject(self, entry: CommitEntry, outcome: Rejected) -> None:
        entry.outcome = outcome
        self.rejected += 1

    def _judge(self, txn: Transaction) -> Rejected | None:
        recent = self.recent
        floor = recent.floor
        default = txn.read_version
        failed: list[FailedPrecondition] = []
        if txn.request_id is not None and (default is None or default < floor):
            return _TOO_OLD
        for index, read in enumerate(txn.preconditions):
            version = default if read.version is None else read.version
            assert version is not None, "a precondition has a version"
            if version < floor:
                return _TOO_OLD
            if type(read) is PointRead:
                changed = recent.changed_after(read.key, version)
            else:
                changed = recent.range_changed_after(read.begin, read.end, version)  # type: ignore[union-attr]
            if changed:
                failed.append(FailedPrecondition(index, changed))
        return Rejected("conflict", tuple(failed)) if failed else None

    def _too_old(self, txn: Transaction) -> Rejected | None:
        floor = self.recent.floor
        default = txn.read_version
        if txn.request_id is not None and (default is None or default < floor):
            return _TOO_OLD
        for read in txn.preconditions:
            version = default if read.version is None else read.version
            assert version is not None, "a precondition has a version"
            if version < floor:
                return _TOO_OLD
        return None

    def _judge_one(self, txn: Transaction, index: int, failed: list[FailedPrecondition]) -> int:
        """Append to ``failed`` when the precondition does not hold. Returns the work used."""
        recent = self.recent
        read = txn.preconditions[index]
        version = txn.read_version if read.version is None else read.version
        assert version is not None, "a precondition has a version"
        if type(read) is PointRead:
            changed = recent.changed_after(read.key, version)
            work = 1 + (recent.stretches >> 2)
        else:
            changed = recent.range_changed_after(read.begin, read.end, version)  # type: ignore[union-attr]
            work = RANGE_READ_WORK * recent.stretches
        if changed:
            failed.append(FailedPrecondition(index, changed))
        return work

    def advance_floor(self, now_ms: float, assigned: int, durable_version: int) -> None:
        """Let the window move on: by time and by its bound. Attempts stay known until they are durable."""
        assert self._partial is None, "the window does not move in the middle of a decision"
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window_ms / SAMPLES_MAX:
            samples.append((now_ms, assigned))
        floor = self._attempts.floor_for_bound()
        while samples and now_ms - samples[0][0] > self._window_ms:
            floor = max(floor, samples.popleft()[1])
        self.recent.expire(min(max(floor, self.recent.floor), durable_version))
        self._attempts.expire(min(self.recent.floor, durable_version))

    def window_ms(self, now_ms: float) -> float:
        """How far back the window reaches now; less than its bound where its bytes were used up."""
        floor = self.recent.floor
        return next((now_ms - at_ms for at_ms, assigned in self._samples if assigned >= floor), 0.0)

    def check(self) -> None:
        """Assert the invariants."""
        self.recent.check()
