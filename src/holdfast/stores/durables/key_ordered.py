"""A shared durable with ``key_ordered``: the messages of one key are with one subscriber at a time, in order.

Three rules for messages with a key; messages without a key are shared as usual:

- while a subscriber holds a message of a key, the key's other messages go to no other subscriber;
- a message that came back, also with a delay, goes before every later one of its key;
- a message that must wait is set apart, and the cursor passes it, so that it does not block the others.

When ``WAITING_MAX`` messages wait, the cursor stops until some are acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from holdfast.stores.definitions.cluster import DurableDefinition
from holdfast.stores.durables.aging import without_expired
from holdfast.stores.durables.backlog import SCAN_MAX, Shelf
from holdfast.stores.durables.consumption import Shared
from holdfast.stores.durables.leases import Holder, Lease, Leases
from holdfast.stores.durables.redelivery import count_after
from holdfast.stores.values.deadlines import Budget

WAITING_MAX = 4_096
"""Messages set apart. Looking for one that can be handed out passes over all that cannot."""
PORTION = 256


class _KeyedLeases(Leases):
    """Holdings that know with whom each key is. ``keys`` has the key of each message that is not settled."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[int, str] = {}
        self.busy: dict[str, tuple[Holder, int]] = {}

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
                    count = self.busy[key][1] - 1
                    if count:
                        self.busy[key] = holder, count
                    else:
                        del self.busy[key]
        return taken

    def check(self) -> None:
        super().check()
        found: dict[str, tuple[Holder, int]] = {}
        for holder in self.of.values():
            for run in holder.runs:
                for seq in range(run[0], run[1] + 1):
                    key = self.keys.get(seq)
                    if key is not None:
                        assert found.get(key, (holder, 0))[0] is holder, "a key is with one subscriber"
                        found[key] = holder, found.get(key, (holder, 0))[1] + 1
        assert found == self.busy, "keys are with who holds their messages"


class KeyOrdered(Shared):
    """*Memory*: an item for each message that is held, came back or waits. *Cost*: O(waiting) for each delivery."""

    def __init__(self, definition: DurableDefinition, shelf: Shelf) -> None:
        super().__init__(definition, shelf)
        self._held = _KeyedLeases()
        self.leases = self._held

    @property
    def looks_on(self) -> bool:
        """Whether the cursor may go on: fewer than ``WAITING_MAX`` messages wait for their key."""
        if not self.counts_started:
            return self.redelivery.total + len(self.dying) < WAITING_MAX
        return self.redelivery.total < WAITING_MAX and super().looks_on

    def ready_for(self, subscriber: str) -> bool:
        """Whether this subscriber has room, and a message waits for no other's key, or the cursor can go on."""
        holder = self.leases.of[subscriber]
        if holder.held >= self.definition.window or not self.has_work:
            return False
        if self.undelivered > 0 and self.looks_on:
            return True
        return next(self._free(holder), None) is not None

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
                    found = busy.get(key)
                    if found is None or found[0] is holder:
                        yield seq, deliveries
                    else:
                        stopped.add(key)

    def hand_out(self, holder: Holder, room: int, now_ms: int, runs: list[tuple[int, int, int]]) -> None:
        """What one subscriber gets: waiting messages whose key is free or its own, then the backlog by portions."""
        room = self._hand_out_waiting(holder, room, now_ms, runs)
        budget = Budget(SCAN_MAX, SCAN_MAX)
        while room > 0 and self.undelivered > 0 and self.looks_on and not self._has_due_delayed(now_ms):
            if self.is_stepwise and budget.is_spent:
                # The durable stays ready, so the next delivery searches further.
                return
            found = self.scan(min(room, PORTION), now_ms, budget=budget if self.is_stepwise else None)
            budget.messages -= found.total
            for first, last in found.runs:
                self.set_apart(first, last)
            room = self._hand_out_waiting(holder, room, now_ms, runs)

    def _hand_out_waiting(self, holder: Holder, room: int, now_ms: int, runs: list[tuple[int, int, int]]) -> int:
        deadline_ms = now_ms + self.definition.ack_wait_ms
        for seq, deliveries in list(islice(self._free(holder), room)):
            self.redelivery.remove(seq)
            if not without_expired(self, seq, seq, now_ms):
                continue
            self.leases.hold(holder, (seq, seq, max(deliveries, 0) + 1, deadline_ms))
            holder.handed_out(seq, seq, now_ms)
            self.tally.delivered += 1
            self.tally.redelivered += deliveries != 0
            room -= 1
            count = count_after(deliveries)
            if runs and runs[-1][1] == seq - 1 and runs[-1][2] == count:
                runs[-1] = (runs[-1][0], seq, count)
            else:
                runs.append((seq, seq, count))
        return room

    def set_apart(self, first: int, last: int) -> None:
        """As for every durable, and their keys are noted. Cost: reads them."""
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

    def keys_state(self) -> list[tuple[int, str]]:
        """The key of each message that is not settled."""
        return list(self._held.keys.items())

    def restore_keys(self, keys: Sequence[tuple[int, str]]) -> None:
        """Take up ``keys_state``, before who holds what."""
        self._held.keys.update(keys)

    def check(self) -> None:
        """As for every durable; and keys are known of nothing else than what is not settled."""
        super().check()
        unsettled = {seq for first, last, *_ in self.leases.runs() for seq in range(first, last + 1)}
        unsettled |= {seq for first, last, _ in self.redelivery.all_runs() for seq in range(first, last + 1)}
        assert set(self._held.keys) <= unsettled | set(self.dying), "keys are known of what is not settled"
