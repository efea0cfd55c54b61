"""Stage 2, resolve: does every precondition still hold against the recent writes?

A precondition at version v holds when nothing in its key or range changed after v. If v is below the window's floor,
the transaction is ``too_old``. The writes of an accepted transaction are in the window when the next transaction is
judged. A long decision is made in parts (``decide_some``); the window does not move until the decision is complete.

Records of jobs have a window of their own, with the same floor or, after ``JOBS_BYTES_MAX`` of changes, a higher one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from holdfast.commit.format.transaction import (
    FailedPrecondition,
    JobChange,
    Operation,
    Rejected,
    StoreRefusal,
    Transaction,
    job_operations,
)
from holdfast.commit.stages.attempts import Attempts
from holdfast.commit.stages.events import NO_STORE_PARTS, CommitEntry, Place
from holdfast.commit.stages.judge import Judge
from holdfast.commit.window import RecentWrites
from holdfast.errors import Code, InvalidRequest

SAMPLES_MAX: Final = 4096

# What a decision costs, in units of about a microsecond, measured with up to 29 stretches in the window: a point read
# 0.25 for each stretch, a range read 2.6 for each (``judge``), a range deletion up to 6, a write 0.6.
RANGE_DELETE_WORK: Final = 6
PART_OPERATIONS: Final = 256
UNBOUNDED: Final = 1 << 62
JOBS_BYTES_MAX: Final = 8 << 20
"""Of names of jobs that changed: some 50,000 in a window. More make older expectations ``too_old``."""


class Stores(Protocol):
    """The message stores of the log, as far as commits need them."""

    def carry_out(self, entry: CommitEntry) -> StoreRefusal | None:
        """Do what ``entry.parts`` say, all of it or nothing, and set ``record``, ``results`` and ``recorded``."""
        ...


_NO_STORES: Final = StoreRefusal("", 0, "overloaded", "the stores are not open")


class Resolve:
    """Judges entries one after another against the recent writes of this leader.

    Bounds: the window keeps ``window_ms`` of history or ``bytes_max`` bytes, whichever is reached first.
    """

    __slots__ = (
        "_attempts",
        "_judge",
        "_recorded",
        "_samples",
        "_window_ms",
        "accepted",
        "jobs",
        "recent",
        "rejected",
        "stores",
    )

    def __init__(
        self,
        base: int,
        attempts: Attempts,
        *,
        window_ms: float,
        bytes_max: int,
        jobs_bytes_max: int = JOBS_BYTES_MAX,
    ) -> None:
        self.recent = RecentWrites(base, bytes_max=bytes_max)
        self.jobs = RecentWrites(base, bytes_max=jobs_bytes_max)
        self._attempts = attempts
        self._window_ms = window_ms
        self._samples: deque[tuple[float, int]] = deque()
        self._judge = Judge(self.recent)
        self._recorded = 0
        """How many operations of the front entry, which is accepted, are in the window."""
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
        return self._judge.judging or self._recorded > 0

    def decide(self, entries: Iterable[CommitEntry]) -> None:
        """Set ``accepted``, or an outcome, on every entry that has none yet. Record what the accepted ones write."""
        self.decide_some(deque(entries), UNBOUNDED)

    def decide_some(self, entries: deque[CommitEntry | Place], work_max: int) -> list[CommitEntry | Place]:
        """Decide entries from the front, in order, until ``work_max`` (about microseconds) is used up; at least one
        step.

        Returns the entries taken out, with the positions among them. The first one that remains may be half decided: it
        must stay at the front.
        """
        taken: list[CommitEntry | Place] = []
        work = work_max
        while entries and work > 0:
            entry = entries[0]
            if type(entry) is CommitEntry and entry.outcome is None:
                work = self._decide(entry, work)
                if work <= 0 and self.deciding:
                    break
            taken.append(entries.popleft())
        return taken

    def _decide(self, entry: CommitEntry, work: int) -> int:
        """Continue with one entry until it is decided or ``work`` is used up. Returns the remaining work.

        The first part is recorded as soon as the entry is accepted, so ``_recorded`` tells that it was.
        """
        txn = entry.txn
        operations = txn.operations
        done = self._recorded
        if not done:
            refused: Rejected | InvalidRequest | None = None
            if txn.preconditions or txn.request_id is not None:
                work = self._judge.judge(txn, work)
                if self._judge.judging:
                    return work
                refused = self._judge.verdict
            if refused is None and entry.parts is not None:
                refused = self._carry_out_parts(entry)
            if refused is not None:
                entry.outcome = refused
                self.rejected += 1
                return work
        while True:
            part = operations if len(operations) <= PART_OPERATIONS else operations[done : done + PART_OPERATIONS]
            deletions = self.recent.record(entry.version, part, further=bool(done))
            work -= len(part) + (RANGE_DELETE_WORK - 1) * deletions
            done += len(part)
            if done >= len(operations):
                break
            if work <= 0:
                self._recorded = done
                return work
        self._recorded = 0
        entry.accepted = True
        self.accepted += 1
        return work

    def _carry_out_parts(self, entry: CommitEntry) -> Rejected | InvalidRequest | None:
        """The preconditions hold: so do those on records of jobs, or the entry is refused; then the stores do their
        parts. The writes are not in the window yet."""
        txn = entry.txn
        rejected = self._judge_jobs(txn, entry.version) if txn.jobs else None
        if rejected is None and entry.parts is not NO_STORE_PARTS:
            refused = _NO_STORES if self.stores is None else self.stores.carry_out(entry)
            rejected = None if refused is None else Rejected("store_refused", refused=refused)
        if rejected is None and txn.jobs:
            self.jobs.record(entry.version, job_operations(txn.jobs))
        return rejected

    def _judge_jobs(self, txn: Transaction, own: int) -> Rejected | InvalidRequest | None:
        """Whether the records of jobs are as the transaction expects them; without a version it expects nothing."""
        failed: list[FailedPrecondition] = []
        for index, change in enumerate(txn.jobs, len(txn.preconditions)):
            version = change.version
            if version is None:
                continue
            if version >= own:
                return InvalidRequest(
                    "version was never handed out", code=Code.FUTURE_VERSION, version=version, newest=own - 1
                )
            if version < self.jobs.floor:
                return Rejected("too_old")
            if changed := self.jobs.changed_after(change.name.encode(), version):
                failed.append(FailedPrecondition(index, changed))
        return Rejected("conflict", tuple(failed)) if failed else None

    def remember(self, version: int, operations: Sequence[Operation], jobs: Sequence[JobChange]) -> None:
        """Record what a transaction changed that was decided before."""
        self.recent.record(version, operations)
        if jobs:
            self.jobs.record(version, job_operations(jobs))

    def expire(self, floor: int) -> None:
        """No precondition may name a version below ``floor`` any more."""
        self.recent.expire(floor)
        self.jobs.expire(self.recent.floor)

    def advance_floor(self, now_ms: float, assigned: int, durable_version: int) -> None:
        """Let the window move on: by time and by its bound. Attempts stay known until they are durable."""
        assert not self.deciding, "the window does not move in the middle of a decision"
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window_ms / SAMPLES_MAX:
            samples.append((now_ms, assigned))
        floor = self._attempts.floor_for_bound()
        while samples and now_ms - samples[0][0] > self._window_ms:
            floor = max(floor, samples.popleft()[1])
        self.expire(min(max(floor, self.recent.floor), durable_version))
        self._attempts.expire(min(self.recent.floor, durable_version))

    def window_ms(self, now_ms: float) -> float:
        """How far back the window reaches now; less than its bound where its bytes were used up."""
        floor = self.recent.floor
        return next((now_ms - at_ms for at_ms, assigned in self._samples if assigned >= floor), 0.0)

    def check(self) -> None:
        """Assert the invariants."""
        self.recent.check()
        self.jobs.check()
        assert self.jobs.floor >= self.recent.floor, "the window of the jobs is not longer"
