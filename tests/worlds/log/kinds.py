"""The kinds of worlds of the log, for ``harness``."""

from __future__ import annotations

from typing import Final

from tests.worlds.harness import Kind
from tests.worlds.log.broken_law import EVENTS as BROKEN_LAW_EVENTS
from tests.worlds.log.broken_law import run_broken_law
from tests.worlds.log.clock_mutants import COPY_MUTANTS as CLOCK_COPY_MUTANTS
from tests.worlds.log.clock_mutants import MUTANTS as CLOCK_MUTANTS
from tests.worlds.log.clocks import run_clock_copies, run_clocks
from tests.worlds.log.copying import run_copies
from tests.worlds.log.copying_mutants import MUTANTS as COPY_MUTANTS
from tests.worlds.log.etiquette import SCENES, SUSPENSIONS, run_etiquette, run_suspensions
from tests.worlds.log.foundations import run_foundations
from tests.worlds.log.foundations_mutants import MUTANTS as FOUNDATION_MUTANTS
from tests.worlds.log.journal import run_journal
from tests.worlds.log.journal_mutants import MUTANTS as JOURNAL_MUTANTS
from tests.worlds.log.mutants import MUTANTS
from tests.worlds.log.retention_mutants import MUTANTS as RETENTION_MUTANTS
from tests.worlds.log.retention_mutants import run_retention
from tests.worlds.log.shape import FAULTS
from tests.worlds.log.times import MUTANTS as TIMES_MUTANTS
from tests.worlds.log.times import run_times
from tests.worlds.log.world import run_world

__all__ = ["KINDS"]

ADMISSION: Final = ("refused_while_stalled", "admitted_while_in_flight")
"""Both replies of admission while the store takes batches."""

RETENTION_EVENTS: Final = ("delete_lost", "delete_late", "retention_removed", "retention_removed_dead")

JOURNAL_EVENTS: Final = (
    *("stores_from_nothing", "stores_from_a_cache", "stores_confirmed", "stores_unknown"),
    *("stores_took_part", "stores_refused", "stores_disk_full"),
)

COPY_EVENTS: Final = (
    *("copied", "copied_snapshots", "copier_log_truncated", "copy_deleted", "copy_create_lost", "copy_create_late"),
    *("copy_start_not_promoted", "promoted", "promoted_read_afresh", "copier_learns_of_promotion", "copy_committed"),
)

FOUNDATION_EVENTS: Final = (
    *("restore_done", "mirror_done", "promote_done", "repair_done", "judged_whole", "truncated", "snapshot_replaced"),
    *("restore_killed", "mirror_killed", "promote_killed", "repair_killed", "rotted"),
    *("restore_refused_log_truncated", "mirror_refused_log_truncated", "repair_refused_log_truncated"),
)

CLOCK_EVENTS: Final = (
    *("reboot", "machine_stood_still", "step_back", "step_forward", "doubted", "accepted_in_doubt", "hold_ended"),
    *("truncated", "truncations_judged", "retention_removed", "retention_went_on", "lived_in_one_boot"),
)

KINDS: Final = {
    "log": Kind(run_world, "events", (*FAULTS, *ADMISSION), 20, MUTANTS),
    "retention": Kind(run_retention, "events", RETENTION_EVENTS, 20, RETENTION_MUTANTS),
    "journal": Kind(run_journal, "events", JOURNAL_EVENTS, 20, JOURNAL_MUTANTS),
    "copies": Kind(run_copies, "events", COPY_EVENTS, 20, COPY_MUTANTS),
    "foundations": Kind(run_foundations, "requests", FOUNDATION_EVENTS, 100, FOUNDATION_MUTANTS),
    "clocks": Kind(run_clocks, "events", CLOCK_EVENTS, 20, CLOCK_MUTANTS),
    "clock-copies": Kind(run_clock_copies, "events", (*CLOCK_EVENTS, *COPY_EVENTS), 100, CLOCK_COPY_MUTANTS),
    "clock-times": Kind(run_times, "questions", ("answered", "refused", "restored"), 20, TIMES_MUTANTS),
    "etiquette": Kind(run_etiquette, "events", tuple(scene.__name__ for scene in SCENES), 20, MUTANTS),
    "suspensions": Kind(run_suspensions, "events", tuple(scene.__name__ for scene in SUSPENSIONS), 10, MUTANTS),
    "broken-law": Kind(run_broken_law, "events", BROKEN_LAW_EVENTS, 3, MUTANTS),
}
