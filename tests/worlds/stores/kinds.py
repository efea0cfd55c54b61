"""The kind of worlds of the stores, for ``harness``."""

from __future__ import annotations

from typing import Final

from tests.worlds.harness import Kind
from tests.worlds.stores.mutants import MUTANTS
from tests.worlds.stores.world import run_world

__all__ = ["EVENTS", "KINDS"]

EVENTS: Final = (
    *("Acknowledge", "Attach", "DeadLetter", "Deliver", "Detach", "Drop", "Expire", "MapChange", "MapLock"),
    *("MapUnlock", "Publish", "Purge", "Redefine", "Redeliver", "Resend", "Restarted", "Rewind", "Unsubscribe"),
    *("Publish refused: sequence_gap", "Publish refused: unknown_publisher", "Publish refused: store_full"),
    *("MapChange refused: revision_mismatch", "MapChange refused: store_full", "MapChange refused: not_holder"),
    *("MapLock refused: lock_held", "MapUnlock refused: not_holder", "Attach refused: too_many_durables"),
    *("Attach refused: durable_busy", "effect Displaced: lapsed", "effect Displaced: taken_over"),
    *("effect Ready", "effect Displaced: replaced", "effect Changed", "effect Advise"),
    *("effect DeadLettering: max_delivery", "effect DeadLettering: rejected"),
    *("crash", "crash with a loss", "crash without a loss", "checkpoint", "sent again", "sent with a gap"),
    *("in memory", "a session comes back", "what was removed is acknowledged"),
    *("clock stands still", "clock goes on", "clock jumps"),
)
"""What a large run has to meet."""

KINDS: Final = {"stores": Kind(run_world, "crash states", EVENTS, 300, MUTANTS)}
