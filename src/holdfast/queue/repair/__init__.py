"""Verification and repair of a queue's files, for programs and for ``holdfast queue``.

    from holdfast.queue.repair import repair_queue, verify_queue

    check = verify_queue("data/orders")      # reads only, next to a writer, on a copy or on a read-only mount
    if not check.ok:
        print(check.lost, "messages are lost")
        repair_queue("data/orders")          # needs the writer's lock; deletes nothing

Read ``survey`` first: it walks over all pages, and ``verify_queue`` is its result. ``repair`` makes intact messages
readable, ``trim`` removes the oldest pages, ``files`` opens a queue's files without a lock. Each function returns a
frozen value and prints nothing.
"""

from holdfast.queue.repair.repair import QueueRepair, repair_queue
from holdfast.queue.repair.survey import KnownGap, LostMessages, QueueCheck, verify_queue
from holdfast.queue.repair.trim import TrimReport, trim_queue

__all__ = [
    "KnownGap",
    "LostMessages",
    "QueueCheck",
    "QueueRepair",
    "TrimReport",
    "repair_queue",
    "trim_queue",
    "verify_queue",
]
