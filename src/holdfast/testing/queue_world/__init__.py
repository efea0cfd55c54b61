"""Whole worlds of the embedded queue from one seed: the real queue on a disk that forgets, over crashes at any moment.

    python -m holdfast.testing.queue_world --worlds 400 --jobs 2 --mutants

Owns: the file port in memory, the worlds, the promises that they are held to, media damage, and the mutants that prove
that a broken promise is noticed. Does not own: anything that runs in production.

To crash-test a program of one's own over a queue, pass ``CrashFiles`` as ``files=`` and open what
``after_power_loss`` or ``after_kill`` returns.
"""

from holdfast.testing.queue_world.files import CrashFiles
from holdfast.testing.queue_world.followers import run_followers
from holdfast.testing.queue_world.ledger import Ledger, PromiseBroken
from holdfast.testing.queue_world.persisting import run_persist
from holdfast.testing.queue_world.world import World, WorldReport, run_world

__all__ = ["CrashFiles", "Ledger", "PromiseBroken", "World", "WorldReport", "run_followers", "run_persist", "run_world"]
