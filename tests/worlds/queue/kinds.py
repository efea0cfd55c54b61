"""The kinds of worlds of the queue, for ``harness``."""

from __future__ import annotations

from typing import Final

from tests.worlds.harness import Kind
from tests.worlds.queue.damage import DAMAGE_KINDS
from tests.worlds.queue.followers import FOLLOWER_KINDS, run_followers
from tests.worlds.queue.mutants import MUTANTS, UNPROVED
from tests.worlds.queue.persisting import PERSIST_KINDS, run_persist
from tests.worlds.queue.world import run_world

__all__ = ["KINDS"]

LOG_EVENTS: Final = (
    *(
        f"crash before {operation}"
        for operation in ("create", "allocate", "write", "sync", "rename", "sync directory", "unlink", "truncate")
    ),
    *(f"{operation} refused" for operation in ("create", "allocate", "write", "sync", "rename", "sync directory")),
    *("crash before between calls", "crash in a write", "crash in recovery", "crash after a crash"),
    *("block lost", "block torn", "size lost", "name lost", "removed name back", "stale block", "hints deleted"),
    *("hole reported without marks", "damaged without marks"),
    *("kill", "power loss", "clean close", "poisoned", "append refused", "opening refused"),
    *("clock back", "clock ahead", "jumbo", "flushed", "read", "read from another process", "append during a sync"),
    "page grown",
    *(f"{kind}: page" for kind in DAMAGE_KINDS),
    *(f"{kind}: hint" for kind in DAMAGE_KINDS if kind not in ("block misplaced", "older copy")),
)
"""What a large run has to meet. A hint seldom has two blocks, so that one in another's place is not asked for."""

KINDS: Final = {
    "queue": Kind(run_world, "crash states", LOG_EVENTS, 100, MUTANTS, UNPROVED),
    "followers": Kind(run_followers, "crash states", FOLLOWER_KINDS, 100, MUTANTS, UNPROVED),
    "persist": Kind(run_persist, "crash states", PERSIST_KINDS, 100, MUTANTS, UNPROVED),
}
