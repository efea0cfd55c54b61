"""Many worlds on many cores, and what they covered.

Owns: spreading seeds over processes, adding coverage up, the table for people. Does not own: a world (``world``).

Failure model: a broken promise is a ``Failure`` with its seed, which reproduces it alone; the rest of the seeds go on.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Final, TypeVar

from tests.worlds.log.mutants import MUTANTS, Caught, catch
from tests.worlds.log.shape import FAULTS
from tests.worlds.log.world import run_world

__all__ = ["Failure", "Summary", "coverage_table", "hunt_mutants", "run_seeds"]

REQUIRED: Final = (*FAULTS, "refused_while_stalled", "admitted_while_in_flight")
"""What many worlds must meet: each fault, and both answers of admission while the store takes batches."""

Job = TypeVar("Job")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed whose world broke a promise."""

    seed: int
    detail: str


@dataclass(slots=True)
class Summary:
    """What a number of worlds showed. ``seeds_with`` counts, for each kind of event, the seeds in which it occurred."""

    seeds: int = 0
    events: int = 0
    fewest_events: int = 0
    coverage: Counter[str] = field(default_factory=Counter)
    seeds_with: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, events: int, coverage: dict[str, int]) -> None:
        """Add one clean world."""
        self.seeds += 1
        self.events += events
        self.fewest_events = min(self.fewest_events or events, events)
        self.coverage.update(coverage)
        self.seeds_with.update(kind for kind, count in coverage.items() if count)

    def missing(self) -> list[str]:
        """The required kinds of events that occurred in no world."""
        return [kind for kind in REQUIRED if not self.seeds_with[kind]]


def _one(job: tuple[int, int]) -> tuple[int, int, dict[str, int], str]:
    seed, check_every = job
    try:
        report = run_world(seed, check_every=check_every)
    except Exception:  # noqa: BLE001 - whatever breaks a world is reported with its seed
        return seed, 0, {}, traceback.format_exc(limit=-6)
    return seed, report.events, report.coverage, ""


def run_seeds(
    seeds: Iterable[int], *, jobs: int = 1, check_every: int = 1, progress: Callable[[Summary], None] | None = None
) -> Summary:
    """Run the worlds of ``seeds`` on ``jobs`` processes."""
    summary = Summary()
    work = [(seed, check_every) for seed in seeds]
    for seed, events, coverage, trouble in _spread(_one, work, jobs, chunk=8):
        if trouble:
            summary.failures.append(Failure(seed, trouble))
        else:
            summary.add(events, coverage)
        if progress is not None:
            progress(summary)
    return summary


def _catch(name: str) -> Caught:
    return catch(MUTANTS[name])


def hunt_mutants(*, jobs: int = 1) -> Iterator[Caught]:
    """Look for a seed that catches each mutant, in the order of the registry."""
    yield from _spread(_catch, list(MUTANTS), jobs, chunk=1)


def _spread(work: Callable[[Job], Done], jobs: list[Job], processes: int, *, chunk: int) -> Iterator[Done]:
    if processes <= 1:
        yield from map(work, jobs)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(work, jobs, chunk)


def coverage_table(summary: Summary) -> str:
    """What occurred, how often, and in how many seeds."""
    lines = [f"{'what happened':<40}{'times':>10}{'seeds':>8}"]
    lines += [
        f"{kind:<40}{count:>10}{summary.seeds_with[kind]:>8}"
        for kind, count in sorted(summary.coverage.items())
        if count
    ]
    return "\n".join(lines)
