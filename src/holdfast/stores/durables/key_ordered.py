"""``KeyOrdered``: shared durables that deliver the messages of one key to one subscriber at a time, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from holdfast.stores.definitions.cluster import DurableDefinition
from holdfast.stores.durables.backlog import SCAN_MAX, Shelf
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.expiry import without_expired
from holdfast.stores.durables.leases import Entry, Holder, Lease, Leases, count_after
from holdfast.stores.durables.pending import ConsumptionState
from holdfast.stores.values.deadlines import Budget, earlier
from holdfast.stores.values.sequence_set import SequenceSet

_HIGH = 1 << 62
WAITING_MAX = 4_096
"""Messages set apart. Looking for one that can be handed out passes over all that cannot."""
PORTION = 256


class _KeyedLeases(Leases):
    """Leases that know who has each key. ``keys`` has the key of each message outside the backlog."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[int, str] = {}
        self.busy: dict[str, tuple[Holder, int]] = {}
        self.removed: dict[int, tuple[str, Holder]] = {}
        """Of messages that left the durable while they were held: their keys stay with who works on them."""

    def hold(self, holder: Holder, run: Lease) -> None:
        super().hold(holder, run)
        for seq in range(run[0], run[1] + 1):
            key = self.keys.get(seq)
            if key is not None:
                self.busy[key] = holder, self.busy.get(key, (holder, 0))[1] + 1

    def take(self, holder: Holder, first: int, last: int) -> list[Lease]:
        taken = super().take(holder, first, last)
        for run in taken:
            for seq in range(run[0], run[1] + 1):
                key = self.keys.get(seq)
                if key is not None:
                    self._free(key)
        return taken

    def _free(self, key: str) -> None:
        holder, count = self.busy[key]
        if count > 1:
            self.busy[key] = holder, count - 1
        else:
            del self.busy[key]

    def keep_keys(self, holder: Holder, keys: Mapping[int, str]) -> None:
        """These messages leave the durable, and their keys stay with this subscriber."""
        for seq, key in keys.items():
            self.removed[seq] = key, holder
            self.busy[key] = holder, self.busy.get(key, (holder, 0))[1] + 1

    def let_go(self, first: int, last: int) -> None:
        """Nobody works on these removed messages any more."""
        for seq in range(first, last + 1) if last - first < len(self.removed) else list(self.removed):
            if first <= seq <= last and seq in self.removed:
                self._free(self.removed.pop(seq)[0])

    def check(self) -> None:
        super().check()
        holders: dict[str, tuple[Holder, int]] = {}
        for holder in self.of.values():
            for run in holder.runs:
                for seq in range(run[0], run[1] + 1):
                    key = self.keys.get(seq)
                    if key is not None:
                        assert holders.get(key, (holder, 0))[0] is holder, "a key is with one subscriber"
                        holders[key] = holder, holders.get(key, (holder, 0))[1] + 1
        for key, holder in self.removed.values():
            holders[key] = holder, holders.get(key, (holder, 0))[1] + 1
        assert holders == self.busy, "keys are with who holds their messages, or works on them"


class KeyOrdered(Consumption):
    """A shared durable with ``key_ordered``: the messages of one key are with one subscriber at a time, in order.

    - while a subscriber holds a message of a key, the key's other messages go to no other subscriber
    - a message that came back, with or without a delay, is delivered before every later message of its key
    - a message that must wait is set apart and the cursor moves past it, so that it does not block other keys

    Messages without a key are shared as usual. When ``WAITING_MAX`` messages wait, the cursor stops until some are
    acknowledged. *Memory*: an item for each message outside the backlog. *Cost*: O(waiting) for each delivery.
    """

    def __init__(self, definition: DurableDefinition, shelf: Shelf) -> None:
        super().__init__(definition, shelf)
        self._held = _KeyedLeases()
        self.leases = self._held

    @property
    def looks_on(self) -> bool:
        """Whether the cursor may go on: fewer than ``WAITING_MAX`` messages wait for their key."""
        return self.redelivery.total < WAITING_MAX and super().looks_on

    def ready_for(self, subscriber: str) -> bool:
        """Whether this subscriber has room, and a message with a free key waits, or the cursor can move."""
        holder = self.leases.of[subscriber]
        if holder.held >= self.definition.window or not self.has_work:
            return False
        if self.undelivered > 0 and self.looks_on:
            return True
        return next(self._free(holder), None) is not None

    def remove_held(self, subscriber: str, first: int, last: int, cause: str) -> int:
        """As for every durable; the keys stay with the subscriber until it answers, leaves, or its time is over."""
        holder = self.leases.of[subscriber]
        last = holder.held_of(first, last)[0][1]
        known = {seq: key for seq in range(first, last + 1) if (key := self._held.keys.get(seq)) is not None}
        super().remove_held(subscriber, first, last, cause)
        self._held.keep_keys(holder, known)
        return last

    def let_go(self, entries: Sequence[Entry]) -> None:
        """Their keys are free."""
        for first, last, *_ in entries:
            self._held.let_go(first, last)

    def next_deadline_ms(self) -> int | None:
        """As for every durable, and when a key is free that was kept for a removed message."""
        next_ms = super().next_deadline_ms()
        return earlier(next_ms, self.removed.next_ms()) if self._held.removed else next_ms

    def _free(self, holder: Holder) -> Iterator[tuple[int, int]]:
        """Waiting messages that a subscriber can be given, with their deliveries so far, ascending."""
        keys, busy = self._held.keys, self._held.busy
        stopped = {key for _, seq, _ in self.redelivery.later if (key := keys.get(seq)) is not None}
        for first, last, deliveries in self.redelivery.runs:
            for seq in range(first, last + 1):
                key = keys.get(seq)
                if key is None:
                    yield seq, deliveries
                elif key not in stopped:
                    holder_and_count = busy.get(key)
                    if holder_and_count is None or holder_and_count[0] is holder:
                        yield seq, deliveries
                    else:
                        stopped.add(key)

    def hand_out(self, holder: Holder, room: int, now_ms: int, runs: list[tuple[int, int, int]]) -> None:
        """Waiting messages whose key is free or its own, then the backlog by portions."""
        room = self._hand_out_waiting(holder, room, now_ms, runs)
        budget = Budget(SCAN_MAX, SCAN_MAX)
        while room > 0 and self.undelivered > 0 and self.looks_on and not self._has_due_delayed(now_ms):
            if budget.is_spent:
                # The durable stays ready, so the next delivery searches further.
                return
            result = self.scan(min(room, PORTION), now_ms, budget=budget)
            budget.messages -= result.total
            for first, last in result.runs:
                self.set_apart(first, last)
            room = self._hand_out_waiting(holder, room, now_ms, runs)

    def _hand_out_waiting(self, holder: Holder, room: int, now_ms: int, runs: list[tuple[int, int, int]]) -> int:
        deadline_ms = self._deadline_ms(holder, now_ms)
        for seq, deliveries in list(islice(self._free(holder), room)):
            self.redelivery.remove(seq)
            if not without_expired(self, seq, seq, now_ms):
                continue
            self.leases.hold(holder, (seq, seq, max(deliveries, 0) + 1, deadline_ms))
            holder.handed_out(seq, seq, now_ms, deliveries)
            self.tally.delivered += 1
            self.tally.redelivered += deliveries != 0
            room -= 1
            count = count_after(deliveries)
            if runs and runs[-1][1] == seq - 1 and runs[-1][2] == count:
                runs[-1] = (runs[-1][0], seq, count)
            else:
                runs.append((seq, seq, count))
        return room

    def _behind(self, holder: Holder, lapsed: Sequence[Lease]) -> list[tuple[int, int]]:
        """The later messages of the same keys."""
        keys, first_of = self._held.keys, dict[str, int]()
        for run in lapsed:
            for seq in range(run[0], run[1] + 1):
                if (key := keys.get(seq)) is not None:
                    first_of[key] = min(seq, first_of.get(key, seq))
        if not first_of:
            return []
        behind = SequenceSet()
        for first, last in holder.unstarted(min(first_of.values()), _HIGH):
            for seq in range(first, last + 1):
                if (key := keys.get(seq)) is not None and first_of.get(key, _HIGH) < seq:
                    behind.add(seq, seq)
        return behind.runs()

    def set_apart(self, first: int, last: int) -> None:
        """As for every durable, with their keys noted. Cost: reads them."""
        for kept in self.shelf.messages.read(self.shelf.store, first, last):
            if kept.key is not None:
                self._held.keys[kept.seq] = kept.key
        super().set_apart(first, last)

    def forget(self, first: int, last: int) -> None:
        """Their keys need not be known any more."""
        keys = self._held.keys
        if last - first < len(keys):
            for seq in range(first, last + 1):
                keys.pop(seq, None)
        else:
            for seq in [seq for seq in keys if first <= seq <= last]:
                del keys[seq]

    def state(self) -> ConsumptionState:
        """As for every durable, with the keys in an order that a restart does not change."""
        removed = sorted((seq, key) for seq, (key, _) in self._held.removed.items())
        return replace(super().state(), keys=list(self._held.keys.items()), removed_keys=removed)

    def restore(self, state: ConsumptionState) -> None:
        """As for every durable: keys are known before who has them, and removed messages before their keys."""
        self._held.keys.update(state.keys)
        super().restore(state)
        known = dict(state.removed_keys)
        for name, entries in self.removed.of.items():
            of = {seq: known[seq] for first, last, *_ in entries for seq in range(first, last + 1) if seq in known}
            self._held.keep_keys(self.leases.of[name], of)

    def check(self) -> None:
        """As for every durable; keys are known only of messages outside the backlog."""
        super().check()
        apart = {seq for first, last, _ in self.apart() for seq in range(first, last + 1)}
        assert set(self._held.keys) <= apart, "only keys of unacknowledged messages are known"
