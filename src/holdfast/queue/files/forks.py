"""Forked children: a queue that is open for writing stays with the parent.

Owns: which queues are told. Does not own: what they do then (``queue``, ``writer``).

Failure model: a child shares its parent's lock and file positions, so that two processes would write to one log. Every
open queue of a child refuses everything from the moment of the fork on.
"""

from __future__ import annotations

import os
from weakref import WeakSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Poisonable(Protocol):
        """What can be open across a fork."""

        def poison_after_fork(self) -> None:
            """Called in the child, by its only thread."""
            ...


__all__ = ["poison_in_children"]

_open: WeakSet[Poisonable] = WeakSet()
_registered: list[bool] = []


def poison_in_children(queue: Poisonable) -> None:
    """Call ``queue.poison_after_fork()`` in every child that is forked while the queue exists."""
    if not _registered:
        os.register_at_fork(after_in_child=_after_fork)
        _registered.append(True)
    _open.add(queue)


def _after_fork() -> None:
    for queue in list(_open):
        queue.poison_after_fork()
