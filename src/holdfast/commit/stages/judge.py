"""The verdict on one transaction: a machine that stops when its work is used up, and continues where it stopped.

The plain definition, for a window with its floor and the changes after it:

1. ``too_old`` when a precondition, or the read version of a request with an id, is below the floor;
2. otherwise ``conflict`` with every precondition whose key or range changed after its version;
3. otherwise accepted.

The window does not change between the start of a verdict and its end, so the order of the questions does not matter.
"""

from __future__ import annotations

from typing import Final

from holdfast.commit.format.transaction import FailedPrecondition, PointRead, Rejected, Transaction
from holdfast.commit.window import RecentWrites

RANGE_READ_WORK: Final = 3
_TOO_OLD: Final = Rejected("too_old")


class Judge:
    """Judges one transaction after another. ``verdict`` is valid once ``judge`` returned and ``judging`` is False."""

    __slots__ = ("_failed", "_next", "_recent", "judging", "verdict")

    def __init__(self, recent: RecentWrites) -> None:
        self._recent = recent
        self._next = 0
        self._failed: list[FailedPrecondition] = []
        self.judging = False
        """Whether a verdict was begun and is not complete. The same transaction must come next."""
        self.verdict: Rejected | None = None
        """None: accepted."""

    def judge(self, txn: Transaction, work: int) -> int:
        """Judge preconditions until all are judged or ``work`` (about microseconds, above 0) is used up.

        Returns the remaining work. Cost: one question to the window per precondition; at least one is asked.
        """
        recent = self._recent
        floor, default = recent.floor, txn.read_version
        failed = self._failed
        verdict: Rejected | None = None
        if txn.request_id is not None and (default is None or default < floor):
            verdict = _TOO_OLD
        elif reads := txn.preconditions:
            stretches = recent.stretches
            for index in range(self._next, len(reads)):
                if work <= 0:
                    self._next, self.judging = index, True
                    return work
                read = reads[index]
                version = default if read.version is None else read.version
                assert version is not None, "a precondition has a version"
                if version < floor:
                    verdict = _TOO_OLD
                    break
                if type(read) is PointRead:
                    work -= 1 + (stretches >> 2)
                    changed = recent.changed_after(read.key, version)
                else:
                    work -= RANGE_READ_WORK * stretches
                    changed = recent.range_changed_after(read.begin, read.end, version)  # type: ignore[union-attr]
                if changed:
                    failed.append(FailedPrecondition(index, changed))
            else:
                if failed:
                    verdict = Rejected("conflict", tuple(failed))
        if failed:
            self._failed = []
        self._next, self.judging, self.verdict = 0, False, verdict
        return work
