"""Stage 2, decide: does every precondition still hold against the recent writes?

Owns: the verdict, and the conflict window that it is decided by. Does not own: order (``sequence``), durability
(``persist``). An accepted transaction joins the window at once, so the next one is judged against it: both stand or
fall with the same leader.

A precondition at version v holds when nothing in its key or range changed after v. One with v below the window's floor
cannot be judged and makes the transaction ``too_old``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from holdfast.commit.attempts import Attempts
from holdfast.commit.entry import CommitEntry
from holdfast.commit.recent_writes import RecentWrites
from holdfast.commit.transaction import FailedPrecondition, PointRead, Rejected, Transaction

__all__ = ["Resolve"]

_TOO_OLD: Final = Rejected("too_old")
MARKS_MAX: Final = 4096


class Resolve:
    """Judges entries one after another against the recent writes of this leader.

    Bounds: the window keeps ``window_ms`` of history or ``bytes_max`` bytes, whichever is reached first.
    """

    __slots__ = ("_attempts", "_marks", "_window_ms", "accepted", "recent", "rejected")

    def __init__(self, base: int, attempts: Attempts, *, window_ms: float, bytes_max: int) -> None:
        self.recent = RecentWrites(base, bytes_max=bytes_max)
        self._attempts = attempts
        self._window_ms = window_ms
        self._marks: deque[tuple[float, int]] = deque()
        self.accepted = 0
        self.rejected = 0

    @property
    def floor(self) -> int:
        """The oldest version that a precondition may name."""
        return self.recent.floor

    def decide(self, entries: Iterable[CommitEntry]) -> None:
        """Set ``accepted``, or an outcome, on every entry that has none yet. Record what the accepted ones write."""
        record = self.recent.record
        for entry in entries:
            if entry.outcome is not None:
                continue
            txn = entry.txn
            if txn.preconditions or txn.request_id is not None:
                outcome = self._judge(txn)
                if outcome is not None:
                    entry.outcome = outcome
                    self.rejected += 1
                    continue
            entry.accepted = True
            self.accepted += 1
            record(entry.version, txn.operations)

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

    def advance_floor(self, now_ms: float, assigned: int, durable_version: int) -> None:
        """Let the window move on: by time and by its bound. Attempts stay known until they are durable."""
        marks = self._marks
        if not marks or now_ms - marks[-1][0] >= self._window_ms / MARKS_MAX:
            marks.append((now_ms, assigned))
        floor = self._attempts.floor_for_bound()
        while marks and now_ms - marks[0][0] > self._window_ms:
            floor = max(floor, marks.popleft()[1])
        self.recent.expire(min(max(floor, self.recent.floor), durable_version))
        self._attempts.expire(min(self.recent.floor, durable_version))

    def check(self) -> None:
        """Assert the invariants."""
        self.recent.check()
