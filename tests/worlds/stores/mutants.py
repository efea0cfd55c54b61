"""Broken rules, one at a time: the proof that the worlds of the message stores would notice.

Owns: a registry of mutants, each the real code with one rule taken out, and the search for a seed that catches it. Does
not own: the rules, nor their broken versions (``broken_rules``).

A mutant is caught when a world under it breaks a promise or an invariant of the machine, within ``SEEDS_MAX`` seeds.
Every promise of ``promises`` has at least one; "replay is the same" has those that forget, which it meets first.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.worlds.stores import broken_rules as broken
from tests.worlds.stores.shape import DEAD, STORE
from tests.worlds.stores.world import run_world

from holdfast.stores.durables import aging, backlog, pending
from holdfast.stores.durables.backlog import Backlog
from holdfast.stores.durables.consumption import Consumption, KeyOrdered, Standard
from holdfast.stores.durables.keyed import KeyedMessages, KeyedResidue
from holdfast.stores.durables.leases import Holder, Leases, RedeliveryQueue
from holdfast.stores.durables.map import Locks, Map
from holdfast.stores.durables.pending import PendingMessages
from holdfast.stores.machine import map_commands, redefine
from holdfast.stores.machine import state as state_module
from holdfast.stores.machine.store import Publishers, Store
from holdfast.stores.values.reference_counts import ReferenceCounts

__all__ = ["MUTANTS", "SEEDS_MAX", "SMALL_BLOCK", "Caught", "Mutant", "catch"]

SEEDS_MAX: Final = 120
FORGETFUL: Final = {"crash_rate": 0.1, "fork_rate": 0.3, "sync_rate": 1.0, "crowd": 0, "steps": 80}
CALM: Final = {"crash_rate": 0.0, "fork_rate": 0.02, "crowd": 0, "steps": 150}

SMALL_BLOCK: Final = 4
"""Messages of a block, so that blocks are forgotten all the time."""

KEYED: Final = {
    **FORGETFUL,
    "definition": {
        "stores": {
            STORE: {
                "durables": {
                    "last": {"type": "last_value", "message_ttl": 3},
                    "shared": {"type": "shared", "ack_wait": 2, "prefetch": 50},
                },
                "templates": {"made": {"type": "shared"}},
            },
            DEAD: {"durables": {"grave": {"type": "standard"}}},
        }
    },
}
"""Keys that expire, among messages of another durable that are acknowledged meanwhile."""

MAPS: Final = {
    **CALM,
    "steps": 300,
    "definition": {
        "stores": {
            STORE: {
                "durables": {
                    "keys": {"type": "map"},
                    "more": {"type": "map", "message_limit": 8, "discard": "old"},
                },
                "templates": {"made": {"type": "shared"}},
            },
            DEAD: {"durables": {"grave": {"type": "standard"}}},
        }
    },
}
"""Maps that are cleared and changed."""

Patch = tuple[object, str, object]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule taken out: ``patches`` replace attributes of the real code. ``focus`` is where it is looked for."""

    name: str
    rule: str
    patches: tuple[Patch, ...]
    focus: Mapping[str, object] = field(default_factory=dict[str, object])
    block_messages: int = 1_024
    """The blocks in whose worlds it is looked for; the process has to have them."""


@dataclass(frozen=True, slots=True)
class Caught:
    """How a mutant was noticed: in which seed, by what; ``seed`` is None when it was not."""

    mutant: str
    seed: int | None
    promise: str
    seeds_tried: int


@contextmanager
def _applied(patches: tuple[Patch, ...]) -> Generator[None]:
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)
        yield


def catch(mutant: Mutant, *, first_seed: int = 0, seeds: int = SEEDS_MAX) -> Caught:
    """Run worlds under a mutant until one breaks a promise."""
    for tried in range(seeds):
        seed = first_seed + tried
        with _applied(mutant.patches):
            try:
                run_world(seed, mutant.focus)
            except AssertionError as error:
                return Caught(mutant.name, seed, str(error)[:200], tried + 1)
    return Caught(mutant.name, None, "", seeds)


def _everywhere(name: str, value: object, *modules: object) -> tuple[Patch, ...]:
    return tuple((module, name, value) for module in modules if name in vars(module))


_REGISTRY: Final = (
    Mutant(
        "snapshot_without_holdings",
        "nothing confirmed is lost",
        ((PendingMessages, "state", broken.state_without_holdings),),
        FORGETFUL,
    ),
    Mutant(
        "snapshot_without_returned",
        "nothing confirmed is lost",
        ((PendingMessages, "state", broken.state_without_returned),),
        FORGETFUL,
    ),
    Mutant(
        "acknowledged_comes_back",
        "nothing acknowledged comes back",
        ((Consumption, "_acknowledged", broken.acknowledged_comes_back),),
        CALM,
    ),
    Mutant(
        "discarded_comes_back",
        "nothing acknowledged comes back",
        ((Backlog, "exclude", broken.nothing_is_excluded),),
        CALM,
    ),
    Mutant(
        "out_of_order",
        "order per publisher",
        ((Consumption, "hand_out", broken.hand_out_in_reverse),),
        CALM,
    ),
    Mutant(
        "every_key_is_free",
        "one key with one subscriber",
        ((KeyOrdered, "_free", broken.every_key_is_free),),
        CALM,
    ),
    Mutant(
        "count_from_one",
        "delivery counts are exact",
        ((RedeliveryQueue, "add", broken.count_from_one),),
        CALM,
    ),
    Mutant(
        "once_more",
        "max_delivery is exact",
        ((Consumption, "_give_back", broken.once_more),),
        CALM,
    ),
    Mutant(
        "deadlines_move",
        "deadlines do not move",
        ((PendingMessages, "restore", broken.deadlines_move),),
        FORGETFUL,
    ),
    Mutant(
        "no_delay",
        "nothing early, nothing late",
        ((RedeliveryQueue, "add_later", broken.no_delay),),
        CALM,
    ),
    Mutant(
        "delayed_is_due",
        "nothing early, nothing late",
        ((backlog, "fate", broken.delayed_is_due),),
        CALM,
    ),
    Mutant(
        "expires_from_publication",
        "nothing early, nothing late",
        _everywhere(
            "expires_ms",
            broken.expires_from_publication,
            aging,
            backlog,
            pending,
            state_module,
        ),
        CALM,
    ),
    Mutant(
        "never_woken",
        "nothing early, nothing late",
        ((Leases, "next_ms", broken.never_woken),),
        CALM,
    ),
    Mutant(
        "nobody_is_told",
        "who can be served is told",
        ((Consumption, "_note_ready", broken.nobody_is_told),),
        CALM,
    ),
    Mutant(
        "one_cause",
        "dead letters keep their cause",
        ((Consumption, "_die", broken.one_cause),),
        CALM,
    ),
    Mutant(
        "restore_without_dying",
        "dead letters keep their cause",
        ((PendingMessages, "restore", broken.restore_without_dying),),
        FORGETFUL,
    ),
    Mutant(
        "leak",
        "one message, one place",
        ((ReferenceCounts, "release", broken.leak),),
        CALM,
    ),
    Mutant(
        "two_at_a_time",
        "the newest subscriber wins",
        ((Standard, "exclusive", False),),
        CALM,
    ),
    Mutant(
        "everything_is_new",
        "a resent message is stored once",
        ((Publishers, "duplicates", broken.everything_is_new),),
        CALM,
    ),
    Mutant(
        "gaps_are_fine",
        "a resent message is stored once",
        ((Publishers, "duplicates", broken.gaps_are_fine),),
        CALM,
    ),
    Mutant(
        "publishers_forgotten",
        "a resent message is stored once",
        ((Publishers, "state", broken.publishers_forgotten),),
        FORGETFUL,
    ),
    Mutant(
        "no_conditions",
        "maps are linear",
        ((Map, "plan", broken.no_conditions),),
        CALM,
    ),
    Mutant(
        "no_fence",
        "maps are linear",
        ((Locks, "require", broken.no_fence),),
        CALM,
    ),
    Mutant(
        "locks_outlive_their_session",
        "maps are linear",
        ((Locks, "release_owner", broken.locks_outlive_their_session),),
        CALM,
    ),
    Mutant(
        "fences_begin_again",
        "maps are linear",
        ((Locks, "state", broken.fences_begin_again),),
        FORGETFUL,
    ),
    Mutant(
        "replaced_is_kept",
        "a key has its last value",
        ((KeyedMessages, "_release", broken.replaced_is_kept),),
        CALM,
    ),
    Mutant(
        "locks_never_end",
        "nothing early, nothing late",
        ((Locks, "expire", broken.locks_never_end),),
        CALM,
    ),
    Mutant(
        "everything_held_counts",
        "delivery counts are exact",
        ((Holder, "counting", broken.everything_held_counts),),
        CALM,
    ),
    Mutant(
        "restart_counts",
        "delivery counts are exact",
        ((Holder, "restarted", broken.restart_counts),),
        FORGETFUL,
    ),
    Mutant(
        "parked_is_dropped",
        "one message, one place",
        ((Consumption, "_die", broken.parked_is_dropped),),
        CALM,
    ),
    Mutant(
        "parked_never_expires",
        "nothing early, nothing late",
        ((aging, "_parked_next_ms", broken.parked_never_expires),),
        CALM,
    ),
    Mutant(
        "put_back_is_lost",
        "nothing confirmed is lost",
        ((Consumption, "_put_back", broken.put_back_is_lost),),
        CALM,
    ),
    Mutant(
        "letter_for_everybody",
        "one message, one place",
        ((Store, "accept_for", broken.letter_for_everybody),),
        CALM,
    ),
    Mutant(
        "state_without_marks",
        "replay is the same",
        ((PendingMessages, "state", broken.state_without_marks),),
        FORGETFUL,
    ),
    Mutant(
        "changed_in_name_only",
        "a definition is carried out",
        ((redefine, "_change_durable", broken.changed_in_name_only),),
    ),
    Mutant(
        "deadline_from_blocks",
        "deadlines do not move",
        ((KeyedMessages, "next_ms", broken.deadline_from_blocks),),
        KEYED,
        SMALL_BLOCK,
    ),
    Mutant(
        "each_part_decides",
        "delivery counts are exact",
        ((Holder, "lapses_on", broken.each_part_decides),),
        CALM,
    ),
    Mutant(
        "rest_is_not_due",
        "one message, one place",
        ((Consumption, "next_deadline_ms", broken.rest_is_not_due),),
        CALM,
        SMALL_BLOCK,
    ),
    Mutant(
        "removals_after_changes",
        "watchers are told every change in order",
        ((map_commands, "_notify_first", broken.removals_after_changes),),
        MAPS,
        SMALL_BLOCK,
    ),
    Mutant(
        "state_without_cleared_keys",
        "replay is the same",
        ((KeyedResidue, "state", broken.state_without_cleared_keys),),
        MAPS,
        SMALL_BLOCK,
    ),
    Mutant(
        "cursor_time_from_blocks",
        "deadlines do not move",
        ((aging, "ttl_next_ms", broken.cursor_time_from_blocks),),
        FORGETFUL,
        SMALL_BLOCK,
    ),
    Mutant(
        "snapshot_without_oldest_ms",
        "replay is the same",
        ((KeyedMessages, "state", broken.snapshot_without_oldest_ms),),
        KEYED,
        SMALL_BLOCK,
    ),
    Mutant(
        "snapshot_without_cursor_ms",
        "replay is the same",
        ((PendingMessages, "state", broken.snapshot_without_cursor_ms),),
        FORGETFUL,
        SMALL_BLOCK,
    ),
    Mutant(
        "wanted_blocks_only",
        "a command is carried out or refused",
        ((ReferenceCounts, "mark_timed", broken.wanted_blocks_only),),
        CALM,
        SMALL_BLOCK,
    ),
)

MUTANTS: Final[Mapping[str, Mutant]] = {mutant.name: mutant for mutant in _REGISTRY}
