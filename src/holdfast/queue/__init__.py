"""A durable queue in one process: fault-tolerant, one writer, many readers, replayable. Standard library only.

    from holdfast import Queue

    with Queue("data/orders") as queue:
        queue.append(b"first")
        for message in queue.read(since="earliest"):
            print(message.seq, message.time, message.payload)

Owns: the public names of the embedded queue. Does not own: anything behind them.

Failure model: at least once, in order, from any starting point. What was appended survives a killed process; what was
flushed survives lost power. A recovered log is a prefix of what was appended. Damage is reported, never delivered.

What to build on (each is documented where it is defined):

- ``Queue`` (``queue.queue``): ``append``, ``append_many``, ``flush``, ``read``, ``batches``, ``first_seq``,
  ``last_seq``, ``durable_seq``, ``close``; ``reader(seq=|since=)`` is the primitive that never waits, ``waiter()`` how
  to wait, ``run_background_work()`` the helper thread's work for those who run without a thread.
- ``FilePort`` (``queue.file_port``): every file operation. A simulation implements it and passes it as ``files=``, with
  ``clock=``, ``entropy=`` and ``background=False``.
- ``slots``: A/B slots for small values that are replaced; ``FileNames.cursor`` and ``FileNames.named_lock`` are the
  names for a consumer's.
- ``recovery``: the decision table. ``frame``, ``page_header``, ``time_index``, ``slots``, ``identity``, ``write_mark``:
  the format, byte by byte.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from holdfast.queue.file_queue import FileQueue
    from holdfast.queue.log.messages import Block, Gap, Message, Trimmed
    from holdfast.queue.options import SyncLevel, every
    from holdfast.queue.persist import Stored
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
    "Stored": "persist",
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
