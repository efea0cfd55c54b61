"""Whole worlds from one seed: the real state machines of the commit log, driven through every fault there is.

    python -m tests.worlds.log --seeds 1000 --jobs 2

Owns: the worlds, the promises they are held to, and the mutants that prove that a broken promise is noticed. Does not
own: anything that runs in production.
"""

from tests.worlds.log.promises import PromiseBroken
from tests.worlds.log.world import World, WorldReport, run_world

__all__ = ["PromiseBroken", "World", "WorldReport", "run_world"]
