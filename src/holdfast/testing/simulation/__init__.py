"""Whole worlds from one seed: the real state machines of the commit log, driven through every fault there is.

    python -m holdfast.testing.simulation --seeds 1000 --jobs 2

Owns: the worlds, the promises they are held to, and the mutants that prove that a broken promise is noticed. Does not
own: anything that runs in production.
"""

from holdfast.testing.simulation.promises import PromiseBroken
from holdfast.testing.simulation.world import World, WorldReport, run_world

__all__ = ["PromiseBroken", "World", "WorldReport", "run_world"]
