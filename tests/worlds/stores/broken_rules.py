"""The broken versions of the rules that ``mutants`` puts in the place of the real ones.

Owns: each broken rule, as close to the real code as its rule allows. Does not own: which rule is replaced where.

Failure model: these lose messages by intent. Never import them but for mutants.
"""

# They stand in for private methods of the real code, and know its fields.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import Backpressure, Code, HoldfastError
from holdfast.stores.durables.aging import without_expired
from holdfast.stores.durables.backlog import Backlog, Fate, fate
from holdfast.stores.durables.consumption import Consumption, KeyOrdered
from holdfast.stores.durables.keyed import KeyedMessages, KeyedResidue, KeyedResidueState, KeyedState
from holdfast.stores.durables.leases import RedeliveryQueue
from holdfast.stores.durables.map import Lock, Locks, LocksState, Map, Plan
from holdfast.stores.durables.pending import ConsumptionState
from holdfast.stores.machine.store import Publishers, PublisherState
from holdfast.stores.values.ports import BLOCK_MESSAGES
from holdfast.stores.values.reference_counts import ReferenceCounts
from holdfast.stores.values.sequence_set import SequenceSet

if TYPE_CHECKING:
    from holdfast.stores.durables.leases import Holder, Lease
    from holdfast.stores.machine.store import Store
    from holdfast.stores.values.commands import MapChange
    from holdfast.stores.values.effects import Effect
    from holdfast.stores.values.messages import Batch, Message
    from holdfast.stores.values.ports import Entry, Kept

_state = Consumption.state
_restore = Consumption.restore
_add = RedeliveryQueue.add
_give_back = Consumption._give_back
_die = Consumption._die
_duplicates = Publishers.duplicates
_plan = Map.plan
_release = ReferenceCounts.release
_mark_timed = ReferenceCounts.mark_timed
_next_deadline_ms = Consumption.next_deadline_ms
_locks_state = Locks.state


def state_without_holdings(self: Consumption) -> ConsumptionState:
    """A snapshot forgets what subscribers hold: nobody ever gets it again."""
    state = _state(self)
    held = sum(run[1] - run[0] + 1 for _, _, runs in state.subscribers for run in runs)
    people = [(name, key, list[tuple[int, int, int, int]]()) for name, key, _ in state.subscribers]
    return msgspec.structs.replace(state, subscribers=people, pending=state.pending - held, marks=[])


def state_without_returned(self: Consumption) -> ConsumptionState:
    """A snapshot forgets what came back."""
    return msgspec.structs.replace(_state(self), redelivery=[], later=[])


def acknowledged_comes_back(self: Consumption, first: int, last: int, now_ms: int) -> None:
    """An acknowledgement only puts the message back."""
    del now_ms
    self.redelivery.add(first, last, 1)


def deadlines_move(self: Consumption, state: ConsumptionState) -> None:
    """A restart gives every subscriber its whole time again."""
    people = [
        (name, key, [(run[0], run[1], run[2], run[3] + 1_000) for run in runs]) for name, key, runs in state.subscribers
    ]
    _restore(self, msgspec.structs.replace(state, subscribers=people))


def hand_out_in_reverse(
    self: Consumption, holder: Holder, room: int, now_ms: int, runs: list[tuple[int, int, int]]
) -> None:
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


def count_from_one(self: RedeliveryQueue, first: int, last: int, deliveries: int) -> None:
    """What comes back is delivered as if for the first time."""
    _add(self, first, last, deliveries * 0)


def no_delay(self: RedeliveryQueue, at_ms: int, seq: int, deliveries: int) -> None:
    """A message put back with a delay can be handed out at once."""
    del at_ms
    self.add(seq, seq, deliveries)


def delayed_is_due(kept: Kept, swept_ms: int, now_ms: int) -> Fate:
    """A delayed message is delivered before its time."""
    found = fate(kept, swept_ms, now_ms)
    return Fate.LIVE if found is Fate.DELAYED else found


def expires_from_publication(kept: Kept) -> int:
    """A delayed message's time-to-live begins before it is due."""
    return kept.published_ms + kept.ttl_ms if kept.ttl_ms else 0


def one_cause(self: Consumption, seq: int, deliveries: int, cause: str, now_ms: int, effects: list[Effect]) -> None:
    """Whatever a message dies of is told as a rejection."""
    _die(self, seq, deliveries, "rejected" if cause else cause, now_ms, effects)


def restore_without_dying(self: Consumption, state: ConsumptionState) -> None:
    """A restart tells nobody of the messages that wait for their dead letter."""
    _restore(self, msgspec.structs.replace(state, dying=[], pending=state.pending - len(state.dying)))


def once_more(self: Consumption, run: Lease, now_ms: int, effects: list[Effect], delay_ms: int = 0) -> None:
    """A message is delivered once more than ``max_delivery``."""
    maximum = self.definition.max_delivery
    if maximum and run[2] == maximum:
        for first, last in without_expired(self, run[0], run[1], now_ms):
            self.redelivery.add(first, last, run[2])
        return
    _give_back(self, run, now_ms, effects, delay_ms)


def leak(self: ReferenceCounts, first: int, last: int) -> int:
    """The last reference of a lone message is never given back."""
    return self.size(first, last) if first == last else _release(self, first, last)


def everything_is_new(self: Publishers, publisher: str, messages: Sequence[Message]) -> int:
    """A message that is sent again is stored again."""
    _duplicates(self, publisher, messages)
    return 0


def gaps_are_fine(self: Publishers, publisher: str, messages: Sequence[Message]) -> int:
    """What a publisher left out is not missed."""
    try:
        return _duplicates(self, publisher, messages)
    except HoldfastError:
        return 0


def publishers_forgotten(self: Publishers) -> tuple[list[PublisherState], list[str]]:
    """A snapshot does not know who has published what."""
    del self
    return [], []


def no_conditions(self: Map, command: MapChange) -> Plan:
    """A key is set whatever its revision."""
    changes = [(key, body, None) for key, body, _ in command.changes]
    return _plan(self, msgspec.structs.replace(command, changes=changes))


def locks_outlive_their_session(self: Locks, owner: str) -> list[Lock]:
    """Whoever is gone holds its locks until their time is over."""
    del self, owner
    return []


def no_fence(self: Locks, fence: int, keys: Iterable[str], now_ms: int) -> None:
    """Who lost a lock writes on."""
    del self, fence, keys, now_ms


def fences_begin_again(self: Locks) -> LocksState:
    """A restart gives out tokens that were given out before."""
    return 0, _locks_state(self)[1]


def locks_never_end(self: Locks, now_ms: int, count: int) -> list[Lock]:
    """A holder that is gone for ever holds its lock for ever."""
    del self, now_ms, count
    return []


def replaced_is_kept(self: KeyedMessages, entry: Entry) -> None:
    """A value that was replaced keeps its message."""
    self.messages -= 1
    self.bytes -= entry.size


def every_key_is_free(self: KeyOrdered, holder: Holder) -> Iterator[tuple[int, int]]:
    """The messages of one key go to several subscribers at a time."""
    del holder
    for first, last, deliveries in self.redelivery.runs:
        for seq in range(first, last + 1):
            yield seq, deliveries


def nobody_is_told(self: Consumption, effects: list[Effect]) -> None:
    """A durable that can serve somebody keeps that to itself."""
    del self, effects


def nothing_is_excluded(self: Backlog, first: int, last: int) -> None:
    """What was discarded or deleted is found again."""
    del self, first, last


def never_woken(self: object) -> int | None:
    """Nobody is told when a held message lapses."""
    del self
    return None


def wants_everything(self: Backlog, kept: Kept) -> bool:
    """A durable is handed messages that it has no interest in."""
    return kept.seq not in self.excluded


def everything_held_counts(self: Holder) -> SequenceSet:
    """What waits in the prefetch window counts as delivered to the application."""
    return SequenceSet((run[0], run[1]) for run in self.runs)


def restart_counts(self: Holder) -> bool:
    """A start of the service leaves what was reported, and the oldest message counts."""
    del self
    return False


def parked_is_dropped(
    self: Consumption, seq: int, deliveries: int, cause: str, now_ms: int, effects: list[Effect]
) -> None:
    """A message that was delivered too often is dropped where there is no dead-letter store."""
    if self.parks:
        self.gone(seq, seq, cause)
        return
    _die(self, seq, deliveries, cause, now_ms, effects)


def parked_never_expires(durable: Consumption) -> int | None:
    """A parked message outlives its time."""
    del durable
    return None


def put_back_is_lost(durable: Consumption, seq: int) -> None:
    """A parked message that is put back is found nowhere."""
    del durable, seq


def letter_for_everybody(self: Store, durable: Consumption, batch: Batch, effects: list[Effect]) -> int:
    """A dead letter that is sent back goes to every durable that matches."""
    if not durable.admits([0], batch):
        raise Backpressure("the durable is full", code=Code.STORE_FULL)
    return self.accept(batch, effects)[0]


def each_part_decides(*_: object) -> None:
    """Of what lapses in parts the oldest message of each part counts."""


def rest_is_not_due(self: Consumption) -> int | None:
    """What a command left above the limits stays until the next command."""
    discards_ms, self.discards_ms = self.discards_ms, 0
    try:
        return _next_deadline_ms(self)
    finally:
        self.discards_ms = discards_ms


def removals_after_changes(*_: object) -> None:
    """A key that changes is told before its removal by the clear before."""


def state_without_cleared_keys(residue: KeyedResidue) -> KeyedResidueState:
    """A snapshot begins the clear anew."""
    return residue.of


def changed_in_name_only(*_: object) -> None:
    """A durable keeps the parameters that it had."""


def state_without_marks(self: Consumption) -> ConsumptionState:
    """A snapshot forgets what subscribers reported."""
    return msgspec.structs.replace(_state(self), marks=[])


def deadline_from_blocks(self: KeyedMessages, ttl_ms: int) -> int | None:
    """The deadline of keyed messages follows from the blocks that other durables keep."""
    if not ttl_ms or not self.messages:
        return None
    return self._shelf.counts.time_from(self.oldest) + ttl_ms


def cursor_time_from_blocks(durable: Consumption) -> int | None:
    """The deadline of a backlog follows from the blocks that other durables keep."""
    ttl_ms = durable.definition.message_ttl_ms
    counts, cursor = durable.shelf.counts, durable.backlog.cursor
    return counts.time_from(cursor) + ttl_ms if ttl_ms and durable.undelivered > 0 else None


def snapshot_without_oldest_ms(self: KeyedMessages) -> KeyedState:
    """A restart finds the time of the oldest key in what is kept by then."""
    return KeyedState(self.messages, self.bytes, self.oldest)


def snapshot_without_cursor_ms(self: Consumption) -> ConsumptionState:
    """A restart finds the time of the cursor in what is kept by then."""
    return msgspec.structs.replace(_state(self), cursor_ms=None, floor_ms=None)


def wanted_blocks_only(self: ReferenceCounts, seq: int, deadline_ms: int) -> None:
    """A block that no durable wants has to be there."""
    assert self.block(seq // BLOCK_MESSAGES) is not None, "a message that was accepted has a block"
    _mark_timed(self, seq, deadline_ms)
