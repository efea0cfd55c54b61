"""Many worlds of the message stores: on one process or several, with what they met added up.

Owns: running seeds and mutants, the summary, which kinds of events a large run has to meet. Does not own: a world.

Failure model: a world that fails is reported with its seed; the others run on.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from typing import Final, TypeVar

from tests.worlds.stores.blocks import block_messages, set_block_messages
from tests.worlds.stores.mutants import MUTANTS, Caught, catch
from tests.worlds.stores.world import run_world

__all__ = ["KINDS", "Summary", "coverage_table", "hunt_mutants", "run_seeds"]

Job = TypeVar("Job")
Done = TypeVar("Done")

KINDS: Final = (
    *("Acknowledge", "Attach", "DeadLetter", "Define", "Deliver", "Detach", "Drop", "Expire", "MapChange", "MapLock"),
    *("MapUnlock", "Publish", "Purge", "Redefine", "Redeliver", "Resend", "Restarted", "Rewind", "Unsubscribe"),
    *("Publish refused: sequence_gap", "Publish refused: unknown_publisher", "Publish refused: store_full"),
    *("MapChange refused: revision_mismatch", "MapChange refused: store_full", "MapChange refused: not_holder"),
    *("MapLock refused: lock_held", "MapUnlock refused: not_holder", "Attach refused: too_many_durables"),
    *("effect Ready", "effect Displaced", "effect Changed", "effect Advise"),
    *("effect Dying: max_delivery", "effect Dying: rejected"),
    *("crash", "crash with a loss", "crash without a loss", "checkpoint", "sent again", "sent with a gap"),
    *("clock stands still", "clock goes on", "clock jumps"),
)
"""What a large run has to meet."""


class Summary:
    """What many worlds did; ``failures`` are seeds and the end of their tracebacks."""

    def __init__(self) -> None:
        self.worlds = 0
        self.states = 0
        self.seen: Counter[str] = Counter()
        self.failures: list[tuple[int, str]] = []

    def missing(self) -> list[str]:
        """Kinds of events that never occurred."""
        return [kind for kind in KINDS if not self.seen[kind]]


def _one(seed: int) -> tuple[int, int, Counter[str], str]:
    try:
        report = run_world(seed)
    except Exception:  # noqa: BLE001 - whatever breaks a world is reported with its seed
        return seed, 0, Counter(), traceback.format_exc(limit=-6)
    return seed, report.states, report.seen, ""


def run_seeds(seeds: Iterable[int], *, jobs: int = 1, progress: Callable[[Summary], None] | None = None) -> Summary:
    """Run the worlds of ``seeds`` on ``jobs`` processes."""
    summary = Summary()
    for seed, states, seen, trouble in _spread(_one, seeds, jobs, chunk=4):
        if trouble:
            summary.failures.append((seed, trouble))
        summary.worlds += 1
        summary.states += states
        summary.seen += seen
        if progress is not None:
            progress(summary)
    return summary


def _catch(name: str) -> Caught:
    return catch(MUTANTS[name])


def hunt_mutants(names: Iterable[str] = MUTANTS, *, jobs: int = 1) -> Iterator[Caught]:
    """Look for a seed that catches each mutant of this process's blocks, in the order of the registry."""
    here = block_messages()
    yield from _spread(_catch, [name for name in names if MUTANTS[name].block_messages == here], jobs, chunk=1)


def _spread(work: Callable[[Job], Done], jobs: Iterable[Job], processes: int, *, chunk: int) -> Iterator[Done]:
    if processes <= 1:
        yield from map(work, jobs)
        return
    with get_context("spawn").Pool(processes, set_block_messages, (block_messages(),)) as pool:
        yield from pool.imap(work, jobs, chunk)


def coverage_table(summary: Summary) -> str:
    """What occurred, and how often."""
    lines = [f"{'what happened':<44}{'times':>10}"]
    lines += [f"{kind:<44}{count:>10}" for kind, count in sorted(summary.seen.items()) if count]
    return "\n".join(lines)
