"""The kind of worlds of workers, for ``harness``."""

from __future__ import annotations

from typing import Final

from tests.worlds.harness import Kind
from tests.worlds.workers.mutants import MUTANTS
from tests.worlds.workers.world import run_world

__all__ = ["EVENTS", "KINDS"]

EVENTS: Final = (
    *("a service starts", "a kill", "a stop", "a freeze", "a frozen leader is replaced"),
    *("a cut", "a held line", "a death", "a sleep", "a removal"),
    *("handed over", "handed over again", "confirmed", "a commit is too late", "work is kept"),
    *(f"job ends: {way}" for way in ("acknowledge", "confirm", "put back", "reject", "extend", "forget", "commit")),
)
"""What a large run has to meet."""

KINDS: Final = {"workers": Kind(run_world, "hand-overs", EVENTS, 200, MUTANTS)}
