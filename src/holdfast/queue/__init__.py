"""A durable queue in one process: one writer, many readers, replayable. Standard library only.

    from holdfast import Queue

    with Queue("data/orders") as queue:
        queue.append(b"first")
        for message in queue.read(since="earliest"):
            print(message.seq, message.time, message.payload)

Delivery is at least once, in order, from any starting point. Appended messages survive a killed process, flushed
messages survive lost power. After a crash the log is a prefix of what was appended. Damage is reported, never
delivered. A number that a consumer has committed or a worker has taken is never given to another message.

Read in this order; each layer imports only layers that come before it in this list:

- ``format``: the bytes. ``frame`` (messages), ``page`` (header and index), ``meta`` (small files),
  ``commands`` (what a work queue writes).
- ``files``: ``FilePort``, the port for every file operation, ``PageDirectory``, which uses it, and ``cursors``. A
  simulation passes its own port as ``files=``, with ``clock=``, ``entropy=`` and ``background=False``.
- ``log``: ``PageScan`` verifies frames, ``judgement`` decides what is lost, ``LogWalk`` moves along the log by it.
  ``LogReader`` reads along it without waiting, ``opening`` finds the end and repairs the files. ``LogTail`` and
  ``Writer`` append, ``Durability`` syncs, ``Space`` removes pages.
- ``evidence``: what the small files prove. ``core``: an open queue, which joins them.
- ``consumers``: positions that are stored under a name. ``work``: jobs that are acknowledged, retried and given up.
- ``queue``: the public class ``Queue``. ``file_queue`` and ``persist`` build on it, ``stores_log`` on the core. ``aio``
  has the asyncio versions. ``repair``: verification and repair.

With ``background=False`` a queue has no helper thread: a simulation calls the core's ``run_background_work()``. A part
of this package that calls ``reader()`` itself waits for new messages with ``waiter()``.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from holdfast.queue.file_queue import FileQueue
    from holdfast.queue.log.messages import Block, Gap, Message, Trimmed
    from holdfast.queue.options import SyncLevel, every
    from holdfast.queue.persist_run import Stored
    from holdfast.queue.queue import Queue
    from holdfast.queue.serializers import Serializer

__all__ = ["Block", "FileQueue", "Gap", "Message", "Queue", "Serializer", "Stored", "SyncLevel", "Trimmed", "every"]

_HOMES: Final = {
    "Block": "log.messages",
    "FileQueue": "file_queue",
    "Gap": "log.messages",
    "Message": "log.messages",
    "Queue": "queue",
    "Serializer": "serializers",
    "Stored": "persist_run",
    "SyncLevel": "options",
    "Trimmed": "log.messages",
    "every": "options",
}


def __getattr__(name: str) -> object:
    """Each name is loaded when it is first used, as in ``holdfast``."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast.queue' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"holdfast.queue.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
