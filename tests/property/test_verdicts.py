"""A verdict is the same wherever its work runs out, and equals the plain definition.

Owns: the definition over a grid of keys, the sizes around every budget of ``judge`` and ``resolve``, and the one-line
mutants that the comparison must find. Does not own: what the window answers (``test_recent_writes``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.one_line_mutants import mutated
from tests.property.test_recent_writes import SMALLEST

from holdfast.commit.format.transaction import (
    Delete,
    FailedPrecondition,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Rejected,
    Transaction,
    Write,
)
from holdfast.commit.stages import judge, resolve
from holdfast.commit.stages.attempts import Attempts
from holdfast.commit.stages.events import CommitEntry, Place
from holdfast.commit.stages.judge import RANGE_READ_WORK
from holdfast.commit.stages.resolve import PART_OPERATIONS, RANGE_DELETE_WORK
from holdfast.commit.window import SHAPE, RecentWrites, WindowShape

CELLS = 48
"""The keys of the grid are 0 to 47, and every range begins and ends at one."""
BASE = 1_000
NO_VERSION = -1
"""A precondition takes the read version of its transaction."""


def around(*budgets: int) -> list[int]:
    return sorted({max(0, budget + off) for budget in budgets for off in (-1, 0, 1)})


BUDGETS = [1, 2, 3, 7, 16, 64, PART_OPERATIONS, 5_000]
READS = around(0, 2, 16, *BUDGETS[3:-1])
OPERATIONS = around(0, 2, 16, PART_OPERATIONS, 2 * PART_OPERATIONS)


class VerdictsDiffer(Exception):
    """The stage and the plain definition disagree. Not an AssertionError, which the stage's own checks raise."""


class Counted(RecentWrites):
    """The window, with the work of each question and each part since ``costs`` was cleared.

    ``begins_with_last``: the newest of them is the first part of a transaction.
    """

    __slots__ = ("begins_with_last", "costs")

    def __init__(self, floor: int, *, bytes_max: int, shape: WindowShape) -> None:
        super().__init__(floor, bytes_max=bytes_max, shape=shape)
        self.costs: list[int] = []
        self.begins_with_last = False

    def changed_after(self, key: bytes, version: int) -> int:
        self.begins_with_last = False
        self.costs.append(1 + (self.stretches >> 2))
        return super().changed_after(key, version)

    def range_changed_after(self, begin: bytes, end: bytes | None, version: int) -> int:
        self.begins_with_last = False
        self.costs.append(RANGE_READ_WORK * self.stretches)
        return super().range_changed_after(begin, end, version)

    def record(self, version: int, operations: Sequence[Operation], *, further: bool = False) -> int:
        self.begins_with_last = not further
        deletions = sum(type(operation) is RangeDelete for operation in operations)
        self.costs.append(len(operations) + (RANGE_DELETE_WORK - 1) * deletions)
        return super().record(version, operations, further=further)


class PlainDefinition:
    """The newest version that changed each cell of the grid, and the verdict as it is written in the design."""

    def __init__(self) -> None:
        self._changed = [0] * CELLS

    def verdict(self, txn: Transaction, floor: int) -> Rejected | None:
        versions = [txn.read_version if read.version is None else read.version for read in txn.preconditions]
        if txn.request_id is not None:
            versions.append(txn.read_version)
        if any(version is None or version < floor for version in versions):
            return Rejected("too_old")
        failed: list[FailedPrecondition] = []
        for index, read in enumerate(txn.preconditions):
            newest = max(self._changed[cell] for cell in cells_of(read))
            version = versions[index]
            assert version is not None
            if newest > version:
                failed.append(FailedPrecondition(index, newest))
        return Rejected("conflict", tuple(failed)) if failed else None

    def record(self, version: int, operations: Iterable[Operation]) -> None:
        for operation in operations:
            for cell in cells_of(operation):
                self._changed[cell] = version


def cells_of(what: Operation | Precondition) -> range:
    match what:
        case RangeDelete(begin=begin, end=end) | RangeRead(begin=begin, end=end):
            return range(begin[0], CELLS if end is None else end[0])
        case Write(key=key) | Delete(key=key) | PointRead(key=key):
            return range(key[0], key[0] + 1)


@dataclass(frozen=True)
class Sizes:
    """One transaction: how many preconditions and operations it has."""

    reads: int
    operations: int


class World:
    """Transactions of given sizes with random contents, decided in steps of ``work`` and compared one by one."""

    def __init__(
        self, sizes: Sequence[Sizes], work: int, seed: int, shape: WindowShape, code: ModuleType = resolve
    ) -> None:
        self.random = Random(seed)
        self.work = work
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(code, "RecentWrites", partial(Counted, shape=shape))
            self.stage: resolve.Resolve = code.Resolve(
                BASE, Attempts(bytes_max=1 << 20), window_ms=1.0, bytes_max=1 << 30
            )
        self.plain = PlainDefinition()
        self.entries: deque[CommitEntry | Place] = deque()
        for number, each in enumerate(sizes):
            self.entries += [self.entry(BASE + number + 1, each), Place(number)]
        self.now_ms = 0.0
        self.steps_max = sum(each.reads + each.operations // PART_OPERATIONS + 2 for each in sizes)
        """Each step asks one question, records one part or takes an entry out."""

    def run(self) -> None:
        expected = list(self.entries)
        taken: list[CommitEntry | Place] = []
        for _ in range(self.steps_max):
            if not self.entries:
                break
            taken += (step := self.step())
            if step and not self.stage.deciding and self.random.random() < 0.3:
                self.now_ms += 10.0
                last = max((entry.version for entry in taken if isinstance(entry, CommitEntry)), default=BASE)
                self.stage.advance_floor(self.now_ms, last - self.random.randrange(3), last)
        if taken != expected:
            raise VerdictsDiffer("an entry was lost, doubled or moved")
        self.stage.check()

    def step(self) -> list[CommitEntry | Place]:
        floor, window = self.stage.floor, self.stage.recent
        assert isinstance(window, Counted)
        window.costs.clear()
        taken = self.stage.decide_some(self.entries, self.work)
        # The first part of what was just accepted may follow the question that used the work up.
        whole = window.costs[:-1] if window.begins_with_last else window.costs
        if sum(whole[:-1]) >= self.work:
            raise VerdictsDiffer(f"the step of {self.work} went on after {window.costs}")
        for entry in taken:
            if isinstance(entry, CommitEntry):
                verdict = self.plain.verdict(entry.txn, floor)
                if (entry.accepted, entry.outcome) != (verdict is None, verdict):
                    raise VerdictsDiffer(f"{entry.outcome} instead of {verdict}")
                if entry.accepted:
                    self.plain.record(entry.version, entry.txn.operations)
        return taken

    def entry(self, version: int, sizes: Sizes) -> CommitEntry:
        """Most reads are at the newest version, so that verdicts of all kinds occur at every size."""
        draw = self.random
        oldest = version - draw.choice([1, 1, 1, 2, 3, 6])
        default = draw.choice([None, version - 1, oldest])
        at = [version - 1] if draw.random() < 0.5 else list(range(oldest, version))
        if default == version - 1:
            at.append(NO_VERSION)
        reads = [self.read(draw.choice(at)) for _ in range(sizes.reads)]
        if reads and draw.random() < 0.3:
            reads[draw.choice([0, -1, draw.randrange(len(reads))])] = self.read(oldest)
        # Few cells change, and one somewhere at each end, so that a lost or doubled part shows.
        cells = draw.sample(range(CELLS), 2)
        deletes = draw.choice([0.0, 0.0, 0.1])
        operations = [self.operation(cells, deletes) for _ in range(sizes.operations)]
        for end in (0, -1) if operations else ():
            operations[end] = Write(self.key(), b"")
        entry = CommitEntry(
            Transaction(operations, reads, draw.choice([None, None, "x"]), None, default), lambda _: None
        )
        entry.version = version
        return entry

    def read(self, at: int) -> Precondition:
        version = None if at == NO_VERSION else at
        if self.random.random() < 0.7:
            return PointRead(self.key(), version)
        return RangeRead(*self.range(), version)

    def operation(self, cells: Sequence[int], deletes: float) -> Operation:
        cell = self.random.choice(cells)
        if self.random.random() < deletes:
            return RangeDelete(bytes([cell]), bytes([cell + 1]))
        return Write(bytes([cell]), b"") if self.random.random() < 0.8 else Delete(bytes([cell]))

    def key(self) -> bytes:
        return bytes([self.random.randrange(CELLS)])

    def range(self) -> tuple[bytes, bytes | None]:
        begin = self.random.randrange(CELLS)
        end = self.random.randint(begin + 1, CELLS)
        return bytes([begin]), None if end == CELLS else bytes([end])


SIZES = st.builds(Sizes, reads=st.sampled_from(READS), operations=st.sampled_from(OPERATIONS))


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=6),
    work=st.sampled_from(around(*BUDGETS)[1:]),
    seed=st.integers(0, 1 << 32),
    shape=st.sampled_from([SHAPE, SMALLEST]),
)
@settings(max_examples=200, deadline=None)
def test_a_verdict_equals_the_plain_definition_wherever_its_work_runs_out(
    sizes: list[Sizes], work: int, seed: int, shape: WindowShape
) -> None:
    World(sizes, work, seed, shape).run()


@pytest.mark.parametrize("work", BUDGETS)
def test_every_size_around_a_budget_is_judged_as_defined(work: int) -> None:
    for seed, reads in enumerate(READS):
        World([Sizes(reads, size) for size in OPERATIONS], work, seed, SHAPE).run()


JUDGE_MUTANTS = [
    ("self._next, self.judging = index, True", "self._next, self.judging = index + 1, True"),
    ("self._next, self.judging = index, True", "self._next, self.judging, self._failed = index, True, []"),
    ("self._next, self.judging = index, True", "self._next, self.judging = 0, False"),
    ("self._next, self.judging, self.verdict = 0, False, verdict", "self.judging, self.verdict = False, verdict"),
    ("            self._failed = []", "            pass"),
    ("if version < floor:", "if index == 0 and version < floor:"),
    ("if version < floor:", "if version < floor and not self.judging:"),
    ("if version < floor:", "if version < floor and not failed:"),
    ("(default is None or default < floor)", "default is None"),
    ("elif reads := txn.preconditions:", "elif (reads := txn.preconditions) and not (self.judging and failed):"),
    ("default if read.version is None else read.version", "read.version if default is None else default"),
    ("if work <= 0:", "if work < 0:"),
    ("work -= 1 + (stretches >> 2)", "pass"),
    ("work -= RANGE_READ_WORK * stretches", "work -= 1"),
    ("FailedPrecondition(index, changed)", "FailedPrecondition(index - self._next, changed)"),
]
RESOLVE_MUTANTS = [
    ("done += len(part)", "done += len(part) + 1"),
    ("done = self._recorded\n", "done = 0\n"),
    ("if done >= len(operations):", "if done >= PART_OPERATIONS or done >= len(operations):"),
    (
        "            if work <= 0:\n                self._recorded",
        "            if work < 0:\n                self._recorded",
    ),
    ("        self._recorded = 0\n        entry.accepted", "        entry.accepted"),
    ("if txn.preconditions or txn.request_id is not None:", "if txn.preconditions:"),
    ("work -= len(part) + (RANGE_DELETE_WORK - 1) * deletions", "work -= len(part)"),
    ("if work <= 0 and self.deciding:", "if work <= 0 and self._recorded:"),
]


def caught(code: ModuleType) -> bool:
    for seed in range(400):
        random = Random(seed)
        sizes = [Sizes(random.choice(READS[:9]), random.choice(OPERATIONS)) for _ in range(5)]
        try:
            World(sizes, random.choice(around(*BUDGETS)[1:]), seed, random.choice([SHAPE, SMALLEST]), code).run()
        except (VerdictsDiffer, AssertionError):
            return True
    return False


@pytest.mark.parametrize(("honest", "broken"), JUDGE_MUTANTS)
def test_a_mutant_of_the_judge_is_found(honest: str, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "Judge", mutated(judge, honest, broken).Judge)
    assert caught(resolve)


@pytest.mark.parametrize(("honest", "broken"), RESOLVE_MUTANTS)
def test_a_mutant_of_the_stage_is_found(honest: str, broken: str) -> None:
    assert caught(mutated(resolve, honest, broken))
