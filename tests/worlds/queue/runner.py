"""Many worlds: on one process or several, with what they met added up.

Owns: running seeds and mutants, the summary, which kinds of events a large run has to meet. Does not own: a world.

Failure model: a world that fails is reported with its seed; the others run on.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing import get_context
from typing import Final, TypeVar

from tests.worlds.queue.damage import DAMAGE_KINDS
from tests.worlds.queue.mutants import MUTANTS, Caught, catch
from tests.worlds.queue.world import WorldReport, run_world

__all__ = ["KINDS", "Summary", "coverage_table", "hunt_mutants", "run_seeds"]

Job = TypeVar("Job")
Done = TypeVar("Done")
World = Callable[[int], WorldReport]

KINDS: Final = (
    *(
        f"crash before {operation}"
        for operation in ("create", "allocate", "write", "sync", "rename", "sync directory", "unlink", "truncate")
    ),
    *(f"{operation} refused" for operation in ("create", "allocate", "write", "sync", "rename", "sync directory")),
    *("crash before between calls", "crash in a write", "crash in recovery", "crash after a crash"),
    *("block lost", "block torn", "size lost", "name lost", "removed name back", "stale block", "hints deleted"),
    *("hole told without marks", "damaged without marks"),
    *("kill", "power loss", "clean close", "poisoned", "append refused", "opening refused"),
    *("clock back", "clock ahead", "jumbo", "flushed", "read", "read from another process", "append during a sync"),
    "page grown",
    *(f"{kind}: page" for kind in DAMAGE_KINDS),
    *(f"{kind}: hint" for kind in DAMAGE_KINDS if kind != "block misplaced"),
)
"""What a large run has to meet. A hint seldom has two blocks, so that one in another's place is not asked for."""


class Summary:
    """What many worlds did; ``failures`` are seeds and the end of their tracebacks."""

    def __init__(self) -> None:
        self.worlds = 0
        self.states = 0
        self.seen: Counter[str] = Counter()
        self.failures: list[tuple[int, str]] = []

    def missing(self, kinds: Iterable[str] = KINDS) -> list[str]:
        """Kinds of events that never occurred."""
        return [kind for kind in kinds if not self.seen[kind]]


def _one(world: World, seed: int) -> tuple[int, int, Counter[str], str]:
    try:
        report = world(seed)
    except Exception:  # noqa: BLE001 - whatever breaks a world is reported with its seed
        return seed, 0, Counter(), traceback.format_exc(limit=-6)
    return seed, report.states, report.seen, ""


def run_seeds(
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    states_min: int = 0,
    progress: Callable[[Summary], None] | None = None,
    world: World = run_world,
) -> Summary:
    """Run the worlds of ``seeds`` on ``jobs`` processes; where ``states_min`` is given, until so many were judged.

    ``world`` is ``run_world``, of the log, ``followers.run_followers`` or ``persisting.run_persist``.
    """
    summary = Summary()
    for seed, states, seen, trouble in _spread(partial(_one, world), seeds, jobs, chunk=4):
        if trouble:
            summary.failures.append((seed, trouble))
        summary.worlds += 1
        summary.states += states
        summary.seen += seen
        if progress is not None:
            progress(summary)
        if states_min and summary.states >= states_min:
            break
    return summary


def _catch(name: str) -> Caught:
    return catch(MUTANTS[name])


def hunt_mutants(*, jobs: int = 1) -> Iterator[Caught]:
    """Look for a seed that catches each mutant, in the order of the registry."""
    yield from _spread(_catch, list(MUTANTS), jobs, chunk=1)


def _spread(work: Callable[[Job], Done], jobs: Iterable[Job], processes: int, *, chunk: int) -> Iterator[Done]:
    if processes <= 1:
        yield from map(work, jobs)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(work, jobs, chunk)


def coverage_table(summary: Summary) -> str:
    """What occurred, and how often."""
    lines = [f"{'what happened':<40}{'times':>10}"]
    lines += [f"{kind:<40}{count:>10}" for kind, count in sorted(summary.seen.items()) if count]
    return "\n".join(lines)
