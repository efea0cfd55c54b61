"""Worlds of the embedded queue: the real queue on files in memory that lose what no sync wrote, with crashes.

``world`` is a world of the queue's log, ``followers`` of consumers and work queues, ``persisting`` of ``persist``.
``files`` and ``page_cache`` are the disk, ``ledger`` has the promises of the log, ``damage`` what a broken disk does.
``mutants`` proves the judges.

To crash-test another program over a queue, pass ``CrashFiles`` as ``files=`` and open what ``after_power_loss`` or
``after_kill`` returns.
"""

from tests.worlds.queue.files import CrashFiles
from tests.worlds.queue.followers import run_followers
from tests.worlds.queue.world import run_world

__all__ = ["CrashFiles", "run_followers", "run_world"]
