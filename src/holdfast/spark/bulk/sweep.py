"""The kernel of bulk resolution: one pass over requests in their order, with three verdicts.

Owns: what a problem is, and deciding its requests by the changes of those before them, where some of these are
committed for sure, some rejected, and of some it is not known yet. Does not own: what an isolation conflict is
(``commit.resolve`` defines it, this computes the same thing; the tests hold the two together), how keys become ranks
(``key_ranks``), rounds (``rounds``), the loops (``sweep_loops``: importing them costs a second, which a task that
resolves nothing does not pay).

A request conflicts when a request that is committed for sure changed something that it read, after it read it; it is
clear when nothing did that may be committed. Everything else stays unknown. Two facts make rounds of this exact: both
verdicts only rest on what is certain, so they never change, and the first request that is unknown is decided by every
round. With all keys in one problem every clear request is committed at once, nothing is ever unknown, and one pass
gives the verdicts of a leader that takes the requests one by one.

Failure model: pure memory. Cost: O(items x log(ranks)) of compiled code, at most 17 bytes a rank; the first call of a
process loads the loops, and the first of a machine compiles them for some seconds. Measured by ``benchmarks/spark.py
--only resolve``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "CLEAR",
    "COMMITTED",
    "CONFLICT",
    "REJECTED",
    "UNKNOWN",
    "Ordinals",
    "Problem",
    "conflicting_changes",
    "sweep",
]

Flags = npt.NDArray[np.bool_]
Ordinals = npt.NDArray[np.int32]
Ranks = npt.NDArray[np.int64]
States = npt.NDArray[np.uint8]

UNKNOWN: Final = 0
COMMITTED: Final = 1
REJECTED: Final = 2

CLEAR: Final = 1
CONFLICT: Final = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """Requests in their order, with what they read and change among ``ranks`` ranks.

    Shape: ``ordinals`` rise strictly from 1 or more. The reads of request i are ``read_begins[i]`` up to
    ``read_begins[i + 1]``, each a range of ranks ``[low, high)`` and the ordinal ``at`` which it was read (0: before
    all). Writes likewise. No range is empty.
    """

    ranks: int
    ordinals: Ordinals
    read_begins: Ranks
    read_lows: Ranks
    read_highs: Ranks
    read_ats: Ordinals
    write_begins: Ranks
    write_lows: Ranks
    write_highs: Ranks

    @property
    def has_range_writes(self) -> bool:
        """Whether a change is of more than one rank."""
        return bool((self.write_highs - self.write_lows > 1).any())

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return len(self.ordinals)

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self.read_begins) == len(self.write_begins) == self.requests + 1, "every request has its items"
        assert self.requests == 0 or (self.ordinals[0] >= 1 and (np.diff(self.ordinals) > 0).all()), "ordinals rise"
        for lows, highs in ((self.read_lows, self.read_highs), (self.write_lows, self.write_highs)):
            assert (lows < highs).all() and (lows >= 0).all() and (highs <= self.ranks).all(), "ranges hold ranks"


def load_loops() -> None:
    """Load the loops, or compile them. Both other functions do so by themselves; this is for who takes the time."""
    none, nothing = np.zeros(0, np.int64), np.zeros(0, np.int32)
    begins = np.zeros(1, np.int64)
    problem = Problem(1, nothing, begins, none, none, nothing, begins, none, none)
    sweep(problem, np.zeros(0, np.uint8), np.zeros(0, np.bool_), np.zeros(0, np.bool_))


def sweep(problem: Problem, states: States, decides: Flags, clear: Flags) -> States:
    """Judge every request that is unknown: UNKNOWN, CLEAR or CONFLICT, 0 for those that are decided already.

    ``states`` holds what is known of each; ``decides`` says that a request which is clear here is committed; ``clear``
    that it has been found clear here before. Cost: see the module.
    """
    from holdfast.spark.bulk import sweep_loops  # late: see the module

    return sweep_loops.judge(*sweep_loops.arrays(problem), states, decides, clear)


def conflicting_changes(problem: Problem, states: States) -> Ordinals:
    """For each read of a REJECTED request the newest committed change after it was read and before the request, or 0.

    ``states`` is final: nothing is unknown. Reads of other requests get 0.
    """
    from holdfast.spark.bulk import sweep_loops  # late: see the module

    return sweep_loops.conflicting_changes(*sweep_loops.arrays(problem), states)
