"""Whole worlds of the embedded queue from one seed: the real queue on a disk that forgets, over crashes at any moment.

    python -m tests.worlds.queue --worlds 400 --jobs 2 --mutants

Owns: the file port in memory, the worlds, the promises that they are held to, media damage, and the mutants that prove
that a broken promise is noticed. Does not own: anything that runs in production.

To crash-test a program of one's own over a queue, pass ``CrashFiles`` as ``files=`` and open what
``after_power_loss`` or ``after_kill`` returns.
"""

from tests.worlds.queue.files import CrashFiles
from tests.worlds.queue.followers import run_followers
from tests.worlds.queue.ledger import Ledger, PromiseBroken
from tests.worlds.queue.persisting import run_persist
from tests.worlds.queue.world import World, WorldReport, run_world

__all__ = ["CrashFiles", "Ledger", "PromiseBroken", "World", "WorldReport", "run_followers", "run_persist", "run_world"]
