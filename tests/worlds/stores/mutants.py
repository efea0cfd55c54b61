"""Mutants of the stores: the real code with one rule taken out, which a world must notice.

``MUTANTS`` are looked for in worlds with blocks of 1,024 messages, ``SMALL_BLOCK_MUTANTS`` with blocks of 4. Every
promise of ``promises`` has at least one; "replay is the same" has those that forget, which it meets first. These
functions stand in for private methods of the real code and know its fields.
"""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from tests.worlds.harness import Mutants
from tests.worlds.stores.shape import DEAD, STORE
from tests.worlds.stores.world import run_world

from holdfast.errors import Backpressure, Code, HoldfastError
from holdfast.stores.durables import backlog, expiry
from holdfast.stores.durables.backlog import Backlog, MessageFate, fate
from holdfast.stores.durables.consumption import Consumption, Standard
from holdfast.stores.durables.expiry import without_expired
from holdfast.stores.durables.key_ordered import KeyOrdered
from holdfast.stores.durables.keyed import KeyedMessages, KeyedResidue, KeyedResidueState, KeyedState
from holdfast.stores.durables.leases import Holder, HolderState, Leases, RedeliveryQueue
from holdfast.stores.durables.map import KeyLock, Locks, LocksState, MapDurable, MapPlan
from holdfast.stores.durables.pending import ConsumptionState, PendingMessages
from holdfast.stores.machine import map_commands, redefine
from holdfast.stores.machine.state import State
from holdfast.stores.machine.store import Publishers, PublisherState, Store
from holdfast.stores.values.ports import BLOCK_MESSAGES
from holdfast.stores.values.reference_counts import ReferenceCounts
from holdfast.stores.values.sequence_set import SequenceSet

if TYPE_CHECKING:
    from holdfast.stores.durables.leases import Lease
    from holdfast.stores.values.commands import Attach, Command, MapChange, Rewind
    from holdfast.stores.values.deadlines import Budget
    from holdfast.stores.values.effects import Applied, Effect
    from holdfast.stores.values.messages import MessageBatch
    from holdfast.stores.values.ports import Kept, KeyEntry
    from holdfast.wire.parts import Message

__all__ = ["MUTANTS", "SMALL_BLOCK_MUTANTS"]

MUTANTS: Final = Mutants(run_world, seeds_max=120)
SMALL_BLOCK_MUTANTS: Final = Mutants(run_world, seeds_max=120)

FORGETFUL: Final = {"crash_rate": 0.1, "fork_rate": 0.3, "sync_rate": 1.0, "crowd": 0, "steps": 80}
CALM: Final = {"crash_rate": 0.0, "fork_rate": 0.02, "crowd": 0, "steps": 150}

FOLLOWED: Final = {**CALM, "fork_rate": 1e-9}
"""No crash compares the state with that of a replay: only the follower does."""

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

REWOUND: Final = {
    **FORGETFUL,
    "steps": 300,
    "definition": {
        "stores": {
            STORE: {
                "durables": {
                    "one": {"type": "shared", "retention_time": 1_000, "matcher": {"kind": "a"}},
                    "two": {"type": "standard", "retention_time": 1_000},
                },
                "templates": {"made": {"type": "shared", "retention_time": 1_000}},
            },
            DEAD: {"durables": {"grave": {"type": "standard"}}},
        }
    },
}
"""Durables that retain messages."""

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

LIMITED: Final = {
    **CALM,
    "steps": 300,
    "definition": {
        "stores": {
            STORE: {
                "durables": {
                    "keyed": {"type": "shared", "key_ordered": True, "message_limit": 6, "discard": "old"},
                    "plain": {"type": "shared", "message_limit": 6, "discard": "old", "prefetch": 4},
                },
                "templates": {"made": {"type": "shared"}},
            },
            DEAD: {"durables": {"grave": {"type": "standard"}}},
        }
    },
}
"""Durables that discard their oldest messages, held ones, too."""

_oldest = Consumption._oldest
_state = Consumption.state
_keyed_state = KeyedMessages.state
_restore = Consumption.restore
_add = RedeliveryQueue.add
_give_back = Consumption._give_back
_die = Consumption._die
_lapse = Consumption._lapse
_duplicates = Publishers.duplicates
_plan = MapDurable.plan
_release = ReferenceCounts.release
_mark_timed = ReferenceCounts.mark_timed
_next_deadline_ms = Consumption.next_deadline_ms
_locks_state = Locks.state
_unfile = Store.unfile
_rewind = expiry.rewind
_apply = State.apply


@MUTANTS.breaks("nothing confirmed is lost", "state", PendingMessages, focus=FORGETFUL)
def snapshot_without_holdings(self: Consumption) -> ConsumptionState:
    """A snapshot forgets what subscribers hold: it is never delivered again."""
    state = _state(self)
    held = sum(run[1] - run[0] + 1 for one in state.holders for run in one.runs)
    people = [HolderState(one.name, False, 0, "", [], None, [], [], []) for one in state.holders]
    return msgspec.structs.replace(state, holders=people, pending=state.pending - held)


@MUTANTS.breaks("nothing confirmed is lost", "state", PendingMessages, focus=FORGETFUL)
def snapshot_without_returned(self: Consumption) -> ConsumptionState:
    """A snapshot forgets what came back."""
    return msgspec.structs.replace(_state(self), redelivery=[], later=[])


@MUTANTS.breaks("nothing acknowledged comes back", "_acknowledged", Consumption, focus=CALM)
def acknowledged_comes_back(self: Consumption, first: int, last: int, now_ms: int) -> None:
    """An acknowledgement only puts the message back."""
    del now_ms
    self.redelivery.add(first, last, 1)


@MUTANTS.breaks("deadlines do not move", "restore", PendingMessages, focus=FORGETFUL)
def deadlines_move(self: Consumption, state: ConsumptionState) -> None:
    """A restart gives every subscriber its whole time again."""
    people = [
        msgspec.structs.replace(one, runs=[(run[0], run[1], run[2], run[3] + 1_000) for run in one.runs])
        for one in state.holders
    ]
    _restore(self, msgspec.structs.replace(state, holders=people))


@MUTANTS.breaks("order per publisher", "hand_out", Consumption, focus=CALM)
def out_of_order(self: Consumption, holder: Holder, room: int, now_ms: int, runs: list[tuple[int, int, int]]) -> None:
    """Of what the cursor passes, the last is handed out, and what is before it waits."""
    deadline_ms = now_ms + self.definition.ack_wait_ms
    found = [seq for first, last in self.scan(room + 1, now_ms).runs for seq in range(first, last + 1)]
    for seq in found[:-room]:
        self.redelivery.add(seq, seq, 0)
    for seq in found[-room:]:
        self.leases.hold(holder, (seq, seq, 1, deadline_ms))
        runs.append((seq, seq, 1))
    left = room - len(found[-room:])
    while left > 0 and (run := self.redelivery.take(left)) is not None:
        self.leases.hold(holder, (run[0], run[1], run[2] + 1, deadline_ms))
        runs.append((run[0], run[1], run[2] + 1))
        left -= run[1] - run[0] + 1


@MUTANTS.breaks("delivery counts are exact", "add", RedeliveryQueue, focus=CALM)
def count_from_one(self: RedeliveryQueue, first: int, last: int, deliveries: int) -> None:
    """What comes back is delivered as if for the first time."""
    _add(self, first, last, deliveries * 0)


@MUTANTS.breaks("nothing early, nothing late", "add_later", RedeliveryQueue, focus=CALM, first_seed=5)
def no_delay(self: RedeliveryQueue, at_ms: int, seq: int, deliveries: int) -> None:
    """A message put back with a delay can be handed out at once."""
    del at_ms
    self.add(seq, seq, deliveries)


@MUTANTS.breaks("nothing early, nothing late", "fate", backlog, focus=CALM)
def delayed_is_due(kept: Kept, swept_ms: int, now_ms: int) -> MessageFate:
    """A delayed message is delivered before its time."""
    found = fate(kept, swept_ms, now_ms)
    return MessageFate.LIVE if found is MessageFate.DELAYED else found


@MUTANTS.breaks("nothing early, nothing late", "expires_ms", expiry, backlog, focus=CALM)
def expires_from_publication(kept: Kept) -> int:
    """A delayed message's time-to-live begins before it is due."""
    return kept.published_ms + kept.ttl_ms if kept.ttl_ms else 0


@MUTANTS.breaks("dead letters keep their cause", "_die", Consumption, focus=CALM)
def one_cause(self: Consumption, seq: int, deliveries: int, cause: str, now_ms: int, effects: list[Effect]) -> None:
    """Every cause of a dead letter is reported as a rejection."""
    _die(self, seq, deliveries, "rejected" if cause else cause, now_ms, effects)


@MUTANTS.breaks("dead letters keep their cause", "restore", PendingMessages, focus=FORGETFUL, first_seed=3)
def restore_without_dying(self: Consumption, state: ConsumptionState) -> None:
    """A restart does not announce the messages that wait for their dead letter."""
    _restore(self, msgspec.structs.replace(state, dying=[], pending=state.pending - len(state.dying)))


@MUTANTS.breaks("max_delivery is exact", "_give_back", Consumption, focus=CALM)
def once_more(self: Consumption, run: Lease, now_ms: int, effects: list[Effect], delay_ms: int = 0) -> None:
    """A message is delivered once more than ``max_delivery``."""
    maximum = self.definition.max_delivery
    if maximum and run[2] == maximum:
        for first, last in without_expired(self, run[0], run[1], now_ms):
            self.redelivery.add(first, last, run[2])
        return
    _give_back(self, run, now_ms, effects, delay_ms)


@MUTANTS.breaks("one message, one place", "release", ReferenceCounts, focus=CALM)
def leak(self: ReferenceCounts, first: int, last: int) -> int:
    """The last reference of a lone message is never given back."""
    return self.size(first, last) if first == last else _release(self, first, last)


@MUTANTS.breaks("a resent message is stored once", "duplicates", Publishers, focus=CALM)
def everything_is_new(self: Publishers, publisher: str, messages: Sequence[Message]) -> int:
    """A message that is sent again is stored again."""
    _duplicates(self, publisher, messages)
    return 0


@MUTANTS.breaks("a resent message is stored once", "duplicates", Publishers, focus=CALM)
def gaps_are_fine(self: Publishers, publisher: str, messages: Sequence[Message]) -> int:
    """What a publisher left out is not missed."""
    try:
        return _duplicates(self, publisher, messages)
    except HoldfastError:
        return 0


@MUTANTS.breaks("a resent message is stored once", "state", Publishers, focus=FORGETFUL)
def publishers_forgotten(self: Publishers) -> tuple[list[PublisherState], list[str]]:
    """A snapshot does not know who has published what."""
    del self
    return [], []


@MUTANTS.breaks("maps are linear", "plan", MapDurable, focus=CALM)
def no_conditions(self: MapDurable, command: MapChange) -> MapPlan:
    """A key is set whatever its revision."""
    changes = [(key, body, None) for key, body, _ in command.changes]
    return _plan(self, msgspec.structs.replace(command, changes=changes))


@MUTANTS.breaks("maps are linear", "release_owner", Locks, focus=CALM, first_seed=3)
def locks_outlive_their_session(self: Locks, owner: str) -> list[KeyLock]:
    """A session that ended holds its locks until they expire."""
    del self, owner
    return []


@MUTANTS.breaks("maps are linear", "require", Locks, focus=CALM)
def no_fence(self: Locks, fence: int, keys: Sequence[str], now_ms: int) -> None:
    """A client that lost its lock continues to write."""
    del self, fence, keys, now_ms


@MUTANTS.breaks("maps are linear", "require_none", Locks, focus=CALM)
def locks_are_advice(self: Locks, keys: Sequence[str], now_ms: int) -> None:
    """A change without a fence goes past a lock."""
    del self, keys, now_ms


@MUTANTS.breaks("maps are linear", "state", Locks, focus=FORGETFUL)
def fences_begin_again(self: Locks) -> LocksState:
    """A restart gives out tokens that were given out before."""
    return 0, _locks_state(self)[1]


@MUTANTS.breaks("nothing early, nothing late", "expire", Locks, focus=CALM, first_seed=1)
def locks_never_end(self: Locks, now_ms: int, count: int) -> list[KeyLock]:
    """A holder that never returns keeps its lock permanently."""
    del self, now_ms, count
    return []


@MUTANTS.breaks("a key has its last value", "_release", KeyedMessages, focus=CALM)
def replaced_is_kept(self: KeyedMessages, entry: KeyEntry) -> None:
    """A value that was replaced keeps its message."""
    self.messages -= 1
    self.bytes -= entry.size


@MUTANTS.breaks("one key with one subscriber", "_free", KeyOrdered, focus=CALM, first_seed=3)
def every_key_is_free(self: KeyOrdered, holder: Holder) -> Iterator[tuple[int, int]]:
    """The messages of one key go to several subscribers at a time."""
    del holder
    for first, last, deliveries in self.redelivery.runs:
        for seq in range(first, last + 1):
            yield seq, deliveries


@MUTANTS.breaks("a durable that can serve says so", "_note_ready", Consumption, focus=CALM)
def ready_not_sent(self: Consumption, effects: list[Effect]) -> None:
    """A durable that can serve sends no ``Ready``."""
    del self, effects


@MUTANTS.breaks("nothing acknowledged comes back", "exclude", Backlog, focus=CALM, first_seed=2)
def discarded_comes_back(self: Backlog, first: int, last: int) -> None:
    """What was discarded or deleted is found again."""
    del self, first, last


@MUTANTS.breaks("nothing early, nothing late", "postpone", Leases, focus=FORGETFUL)
def restart_postpones_nothing(self: Leases, holder: Holder, until_ms: int) -> bool:
    """What an application was handed lapses by the time that it had in the client's buffer."""
    del self, holder, until_ms
    return False


@MUTANTS.breaks("nothing early, nothing late", "next_ms", Leases, focus=CALM)
def never_woken(self: object) -> int | None:
    """The service is not woken when a held message lapses."""
    del self
    return None


@MUTANTS.breaks("delivery counts are exact", "counting", Holder, focus=CALM)
def everything_held_counts(self: Holder) -> SequenceSet:
    """What waits in the prefetch window counts as delivered to the application."""
    return SequenceSet((run[0], run[1]) for run in self.runs)


@MUTANTS.breaks("delivery counts are exact", "restarted", Holder, focus=FORGETFUL)
def restart_counts(self: Holder) -> bool:
    """A start of the service leaves what was reported, and the oldest message counts."""
    del self
    return False


@MUTANTS.breaks("what is taken back is told", "withdraw", PendingMessages, focus=CALM)
def taken_back_in_silence(*_: object) -> None:
    """A subscriber goes on to hand over what it does not hold any more."""


@MUTANTS.breaks("one message, one place", "_oldest", Consumption, focus=LIMITED)
def held_ones_stay(self: Consumption, budget: Budget) -> list[tuple[int, str]]:
    """Where the oldest messages are held, the new ones are discarded."""
    return [each for each in _oldest(self, budget) if not each[1].startswith("held ")]


@MUTANTS.breaks("nothing early, nothing late", "remove_held", KeyOrdered, focus=LIMITED)
def key_of_a_removed_message_is_free(self: KeyOrdered, subscriber: str, first: int, last: int, cause: str) -> int:
    """Another subscriber gets the next message of a key while the first works on a removed one."""
    return Consumption.remove_held(self, subscriber, first, last, cause)


@MUTANTS.breaks("order per publisher", "_behind", Standard, focus=CALM, first_seed=498)
def later_ones_stay(self: Standard, holder: Holder, lapsed: object) -> list[tuple[int, int]]:
    """A message comes again after later ones that waited in the same buffer."""
    del self, holder, lapsed
    return []


@MUTANTS.breaks("one message, one place", "_die", Consumption, focus=CALM)
def parked_is_dropped(
    self: Consumption, seq: int, deliveries: int, cause: str, now_ms: int, effects: list[Effect]
) -> None:
    """A message that was delivered too often is dropped where there is no dead-letter store."""
    if self.parks:
        self.gone(seq, seq, cause)
        return
    _die(self, seq, deliveries, cause, now_ms, effects)


@MUTANTS.breaks("nothing early, nothing late", "_parked_next_ms", expiry, focus=CALM, first_seed=80)
def parked_never_expires(durable: Consumption) -> int | None:
    """A parked message outlives its time."""
    del durable
    return None


@MUTANTS.breaks("nothing confirmed is lost", "_put_back", Consumption, focus=CALM)
def put_back_is_lost(durable: Consumption, seq: int) -> None:
    """A parked message that is put back is found nowhere."""
    del durable, seq


@MUTANTS.breaks("one message, one place", "accept_for", Store, focus=CALM, first_seed=2)
def letter_for_every_durable(self: Store, durable: Consumption, batch: MessageBatch, effects: list[Effect]) -> int:
    """A dead letter that is sent back goes to every durable that matches."""
    if not durable.admits([0], batch):
        raise Backpressure("the durable is full", code=Code.STORE_FULL)
    return self.accept(batch, effects)[0]


@MUTANTS.breaks("delivery counts are exact", "lapses_on", Holder, focus=CALM)
def each_part_decides(*_: object) -> None:
    """Of what lapses in parts the oldest message of each part counts."""


@SMALL_BLOCK_MUTANTS.breaks("one message, one place", "next_deadline_ms", Consumption, focus=CALM, first_seed=7)
def rest_is_not_due(self: Consumption) -> int | None:
    """What a command left above the limits stays until the next command."""
    discards_ms, self.discards_ms = self.discards_ms, 0
    try:
        return _next_deadline_ms(self)
    finally:
        self.discards_ms = discards_ms


@SMALL_BLOCK_MUTANTS.breaks(
    "watchers see every change in order", "_notify_first", map_commands, focus=MAPS, first_seed=9
)
def removals_after_changes(*_: object) -> None:
    """The change of a key is reported before its removal by an earlier clear."""


@SMALL_BLOCK_MUTANTS.breaks("replay is the same", "state", KeyedResidue, focus=MAPS)
def state_without_cleared_keys(residue: KeyedResidue) -> KeyedResidueState:
    """A snapshot starts the clear again."""
    return residue.of


@MUTANTS.breaks("a definition is carried out", "_change_durable", redefine)
def changed_in_name_only(*_: object) -> None:
    """A durable keeps the parameters that it had."""


@MUTANTS.breaks("replay is the same", "state", PendingMessages, focus=FORGETFUL)
def state_without_marks(self: Consumption) -> ConsumptionState:
    """A snapshot forgets what subscribers reported."""
    state = _state(self)
    people = [HolderState(one.name, False, 0, "", one.runs, None, [], [], []) for one in state.holders]
    return msgspec.structs.replace(state, holders=people)


@SMALL_BLOCK_MUTANTS.breaks("deadlines do not move", "next_ms", KeyedMessages, focus=KEYED, first_seed=109)
def deadline_from_blocks(self: KeyedMessages, ttl_ms: int) -> int | None:
    """The deadline of keyed messages follows from the blocks that other durables keep."""
    if not ttl_ms or not self.messages:
        return None
    return self._shelf.counts.time_from(self.oldest) + ttl_ms


@SMALL_BLOCK_MUTANTS.breaks("deadlines do not move", "ttl_next_ms", expiry, focus=FORGETFUL, first_seed=10)
def cursor_time_from_blocks(durable: Consumption) -> int | None:
    """The deadline of a backlog follows from the blocks that other durables keep."""
    ttl_ms = durable.definition.message_ttl_ms
    counts, cursor = durable.shelf.counts, durable.backlog.cursor
    return counts.time_from(cursor) + ttl_ms if ttl_ms and durable.undelivered > 0 else None


@SMALL_BLOCK_MUTANTS.breaks("replay is the same", "state", KeyedMessages, focus=KEYED, first_seed=11)
def snapshot_without_oldest_ms(self: KeyedMessages) -> KeyedState:
    """A restart finds the time of the oldest key in what is kept by then."""
    return msgspec.structs.replace(_keyed_state(self), oldest_ms=0)


@SMALL_BLOCK_MUTANTS.breaks("replay is the same", "state", PendingMessages, focus=FORGETFUL, first_seed=6)
def snapshot_without_cursor_ms(self: Consumption) -> ConsumptionState:
    """A restart finds the time of the cursor in what is kept by then."""
    return msgspec.structs.replace(_state(self), cursor_ms=0, floor_ms=0)


@SMALL_BLOCK_MUTANTS.breaks("delivery counts are exact", "rewind", expiry, focus=CALM, first_seed=15)
def rewind_forgets_the_rest(durable: Consumption, command: Rewind) -> bool:
    """A rewind ends with its first step."""
    changed = _rewind(durable, command)
    durable.rewind_to = None
    return changed


@SMALL_BLOCK_MUTANTS.breaks("replay is the same", "state", PendingMessages, focus=REWOUND, first_seed=9)
def snapshot_without_rewind(self: Consumption) -> ConsumptionState:
    """A snapshot forgets how far a rewind goes."""
    return msgspec.structs.replace(_state(self), rewind_to=None)


@SMALL_BLOCK_MUTANTS.breaks(
    "a command is carried out or refused", "mark_timed", ReferenceCounts, focus=CALM, first_seed=12
)
def wanted_blocks_only(self: ReferenceCounts, seq: int, deadline_ms: int) -> None:
    """A block that no durable wants has to be there."""
    assert self.block(seq // BLOCK_MESSAGES) is not None, "a message that was accepted has a block"
    _mark_timed(self, seq, deadline_ms)


@MUTANTS.breaks("a follower is the same", "unfile", Store, focus=FOLLOWED, first_seed=5)
def changed_comes_last(self: Store, name: str) -> None:
    """A durable whose definition was changed is found last, until a restart."""
    _unfile(self, name)
    self._places[name] = self._next_place
    self._next_place += 1


@MUTANTS.breaks("what is not logged changes nothing", "apply", State, focus=CALM)
def memory_moves_the_time(self: State, command: Command) -> Applied:
    """What happens in memory only moves the time of the stores in the log."""
    applied = _apply(self, command)
    if applied.changed:
        self.at_ms = max(self.at_ms, command.at_ms)
    return applied


MUTANTS.add("two_at_a_time", "a standard durable has one consumer", (Standard, "exclusive", False), focus=CALM)


@MUTANTS.breaks("a standard durable has one consumer", "_lose_holder", Consumption, focus=CALM, first_seed=20)
def late_holder_stays(*_: object) -> None:
    """A holder that lets an ``ack_wait`` lapse keeps the durable from those who wait."""


@MUTANTS.breaks("a standard durable has one consumer", "_lapse", Consumption, focus=CALM)
def buffered_is_late(self: Consumption, now_ms: int, budget: Budget, effects: list[Effect]) -> list[str]:
    """A holder loses the durable because of a message that only waited in its client."""
    before = {name: holder.held for name, holder in self.leases.of.items()}
    _lapse(self, now_ms, budget, effects)
    return [name for name, held in before.items() if self.leases.of[name].held < held]


@MUTANTS.breaks("delivery counts are exact", "not_sent", Holder, focus=CALM)
def unsent_counts(*_: object) -> None:
    """A delivery that was never sent counts."""


@MUTANTS.breaks("delivery counts are exact", "fresh", Holder, focus=CALM)
def seen_before_is_fresh(self: Holder) -> SequenceSet:
    """A message that a subscriber had before is delivered as a first one."""
    return self.unsent


@MUTANTS.breaks("nothing early, nothing late", "_kept", Consumption, focus=CALM)
def work_is_given_back(*_: object) -> list[Lease]:
    """A session that comes back loses what its application works on."""
    return []


@MUTANTS.breaks("what is taken back is told", "_kept", Consumption, focus=CALM)
def any_session_keeps(self: Consumption, command: Attach) -> list[Lease]:
    """A subscriber takes what another process of its name works on."""
    if command.subscriber not in self.leases.of:
        return []
    holder = self.leases.of[command.subscriber]
    return [run for first, last in command.keep for run in self.leases.take(holder, first, last)]


@MUTANTS.breaks("replay is the same", "restore", PendingMessages, focus=FORGETFUL)
def restored_without_session(self: Consumption, state: ConsumptionState) -> None:
    """A restart forgets which process a subscriber is."""
    people = [msgspec.structs.replace(one, session="") for one in state.holders]
    _restore(self, msgspec.structs.replace(state, holders=people))
