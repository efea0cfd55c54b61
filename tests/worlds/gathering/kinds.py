"""The kind of worlds of gathered commits, for ``harness``."""

from __future__ import annotations

from typing import Final

from tests.worlds.gathering.mutants import MUTANTS
from tests.worlds.gathering.world import run_world
from tests.worlds.harness import Kind

__all__ = ["EVENTS", "KINDS"]

EVENTS: Final = (
    *(
        "shared",
        "committed",
        "read",
        "reads that travelled together",
        "a kill",
        "no connection",
        "nothing is left to send",
        "no such route",
    ),
    *("a request is lost", "a response is lost", "a request is silent", "asked for an outcome"),
    *("a stream is lost on its way", "a stream is cut", "a stream is silent", "answers that did not fit, or an end"),
    *("left before it was sent", "left after it was sent", "answered: committed"),
    *("raised: OutcomeUnknown", "raised: InvalidRequest", "raised: LimitExceeded"),
)
"""What a large run has to meet."""

KINDS: Final = {"gathering": Kind(run_world, "events", EVENTS, 200, MUTANTS)}
