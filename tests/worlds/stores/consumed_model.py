"""The plain model of a standard or shared durable: one item for each message, searched from end to end.

It knows where each message is and what each command may answer, and raises ``PromiseBroken`` for any other answer. It
shares no code with the state machine except the definitions and matchers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tests.worlds.stores.promises import promise

from holdfast.stores.definitions.cluster import Discard, DurableDefinition, DurableType
from holdfast.stores.matching import Matcher
from holdfast.stores.values.commands import Acknowledge, Acknowledged, Attach, Delivered, Redeliver, Redelivered
from holdfast.wire.parts import Message

__all__ = ["ConsumedModel", "Item"]


@dataclass(slots=True)
class Item:
    """One message in one durable. ``place``: waiting, held, returned, dying, acknowledged or gone."""

    seq: int
    publisher: str
    published_ms: int
    size: int
    message: Message
    place: str = "waiting"
    deliveries: int = 0
    holder: str = ""
    lapses_ms: int = 0
    not_before_ms: int = 0
    cause: str = ""
    started: bool = False
    carried: bool = False
    """Whether it was held when the service started."""
    died: int = 0
    """Rises with each message that dies."""
    unsent: bool = False
    """Whether its holder was never sent it."""
    again: bool = False
    """Whether a subscriber had it before its first delivery that counts."""
    rewound: bool = False
    """Whether a rewind reached it while it waited for its dead letter: the cursor may meet it again as a new one."""

    worked_by: str = ""
    """Who held it when it was removed, and may work on it."""

    @property
    def begins_ms(self) -> int:
        """When it began to live: a delayed message when it is due."""
        return max(self.published_ms, self.message.deliver_at_ms)

    @property
    def pending(self) -> bool:
        """Whether the durable still owes it to a subscriber."""
        return self.place in ("waiting", "held", "returned", "dying")


class ConsumedModel:
    """One durable. Methods named as commands judge an answer and follow it."""

    def __init__(self, definition: DurableDefinition) -> None:
        self.definition = definition
        self.items: dict[int, Item] = {}
        """What the durable keeps: pending, or acknowledged and retained."""
        self.gone: dict[int, Item] = {}
        self.subscribers: list[str] = []
        self.sessions: dict[str, str] = {}
        """By subscriber, as it attached."""
        self.reporting: set[str] = set()
        """Subscribers that report what they start."""
        self._died = 0

    # ---- questions --------------------------------------------------------------------------------------------------

    def pending(self) -> list[Item]:
        """Everything the durable owes."""
        return [item for item in self.items.values() if item.pending]

    def kept(self) -> set[int]:
        """The messages that it keeps, retained ones included."""
        return {item.seq for item in self.items.values() if item.pending or item.place == "acknowledged"}

    def held(self, subscriber: str) -> list[Item]:
        """What a subscriber holds."""
        return [item for item in self.items.values() if item.place == "held" and item.holder == subscriber]

    @property
    def parks(self) -> bool:
        """Whether what dies waits for an operator."""
        return not self.definition.dead_letter_store

    def _counting(self, subscriber: str) -> set[int]:
        """Those held messages whose delivery counts if they come back now."""
        held = self.held(subscriber)
        if subscriber in self.reporting:
            return {item.seq for item in held if item.started}
        oldest = min(held, key=lambda item: item.seq, default=None)
        return {oldest.seq} if oldest is not None and not oldest.carried and not oldest.unsent else set()

    def ends_ms(self, item: Item) -> int:
        """When a message expires, 0 for never."""
        ends = [item.begins_ms + ttl for ttl in (item.message.ttl_ms, self.definition.message_ttl_ms) if ttl]
        return min(ends, default=0)

    def expired(self, item: Item, now_ms: int) -> bool:
        """Whether its time is over."""
        return 0 < self.ends_ms(item) <= now_ms

    def deliverable(self, now_ms: int, subscriber: str) -> list[Item]:
        """What may be handed to this subscriber now, by number."""
        found: list[Item] = []
        takers = self._takers(subscriber, now_ms)
        for item in self.items.values():
            waits = item.place == "waiting" and item.message.deliver_at_ms <= now_ms
            back = item.place == "returned" and item.not_before_ms <= now_ms
            taken = takers.get(item.message.key, set()) - {item.seq}
            if (waits or back) and not self.expired(item, now_ms) and not taken:
                found.append(item)
        return found

    def _takers(self, subscriber: str, now_ms: int) -> dict[str | None, set[int]]:
        """By key, messages that another subscriber holds or that were put back with a delay: the key waits for them."""
        found: dict[str | None, set[int]] = {}
        if self.definition.key_ordered:
            for item in self.items.values():
                if (item.place == "held" and item.holder != subscriber) or item.not_before_ms > now_ms:
                    found.setdefault(item.message.key, set()).add(item.seq)
            for item in self.gone.values():
                if item.worked_by not in ("", subscriber):
                    found.setdefault(item.message.key, set()).add(item.seq)
            found.pop(None, None)
        return found

    def _key_taken(self, item: Item, subscriber: str, now_ms: int) -> bool:
        """Whether its key waits for another message."""
        return bool(self._takers(subscriber, now_ms).get(item.message.key, set()) - {item.seq})

    def next_event_ms(self, now_ms: int) -> int | None:
        """The earliest time to come at which something here changes by itself."""
        times: list[int] = []
        if self.definition.key_ordered:
            times += [item.lapses_ms for item in self.gone.values() if item.worked_by and item.message.key is not None]
        for item in self.items.values():
            if item.place == "held":
                times.append(item.lapses_ms)
            elif self._ages(item):
                if ends_ms := self.ends_ms(item):
                    times.append(ends_ms)
                if item.place == "returned" and item.not_before_ms:
                    times.append(item.not_before_ms)
        return min((at_ms for at_ms in times if at_ms > now_ms), default=None)

    # ---- publishing -------------------------------------------------------------------------------------------------

    def publish(self, batch: Sequence[tuple[int, Message, int]], publisher: str, now_ms: int) -> set[int]:
        """Follow a batch of (number, message, size); returns the numbers that the durable keeps of it."""
        kept: set[int] = set()
        definition = self.definition
        for seq, message, size in batch:
            if not definition.matcher.matches(message.fields):
                continue
            if definition.discard is Discard.NEW and self._is_over(1, size):
                continue
            self.items[seq] = Item(seq, publisher, now_ms, size, message)
            kept.add(seq)
        if kept:
            # What is over a limit because its holder gave it back goes with the next message that comes, not before.
            self.keep_limits(now_ms)
        return kept

    def has_room(self, size: int) -> bool:
        """Whether its own limits let one more message in."""
        return self.definition.discard is not Discard.NEW or not self._is_over(1, size)

    def _is_over(self, messages: int, size: int) -> bool:
        pending = self.pending()
        definition = self.definition
        over = 0 < definition.message_limit < len(pending) + messages
        return over or 0 < definition.bytelimit < sum(item.size for item in pending) + size

    def keep_limits(self, now_ms: int) -> None:
        """The parked go first, then the oldest, wherever it is; not one that waits for its dead letter."""
        if self.definition.discard is not Discard.OLD:
            return
        free = [item for item in self.items.values() if self._ages(item) or item.place == "held"]
        free.sort(key=lambda item: (item.place != "dying", item.died, item.seq), reverse=True)
        while free and self._is_over(0, 0):
            self.leave(free.pop(), "limit_old")

    def _ages(self, item: Item) -> bool:
        """Whether it can expire where it is, and be discarded."""
        return item.place in ("waiting", "returned") or (item.place == "dying" and self.parks)

    # ---- subscribers ------------------------------------------------------------------------------------------------

    def is_busy(self, subscriber: str) -> bool:
        """Whether another subscriber has it, who has it alone."""
        others = [name for name in self.subscribers if name != subscriber]
        return self.definition.type is DurableType.STANDARD and bool(others)

    def lose(self, name: str, now_ms: int) -> None:
        """Follow how a holder loses the durable to one that waits: only what it started counts."""
        for item in self.held(name) if name not in self.reporting else ():
            item.carried = True
        self.detach(name, now_ms)

    def attach(self, command: Attach) -> str:
        """Follow an attachment; returns whom it displaces. The same session keeps what it works on."""
        subscriber, now_ms, displaced = command.subscriber, command.at_ms, ""
        is_same = command.session and self.sessions.get(subscriber) == command.session
        kept = [
            item
            for item in self.held(subscriber)
            if is_same and any(first <= item.seq <= last for first, last in command.keep)
        ]
        for item in kept:
            item.place = "kept"
        if is_same and subscriber in self.subscribers and subscriber not in self.reporting:
            self.reporting.add(subscriber)
            for item in self.held(subscriber):
                item.started = False
        for name in list(self.subscribers):
            if name == subscriber or self.definition.type is DurableType.STANDARD:
                self.detach(name, now_ms)
                displaced = name
        self.subscribers.append(subscriber)
        self.sessions[subscriber] = command.session
        for item in kept:
            item.place, item.lapses_ms = "held", now_ms + self.definition.ack_wait_ms
            item.started, item.carried, item.unsent, item.again = True, False, False, True
        if kept:
            self.reporting.add(subscriber)
        return displaced

    def detach(self, subscriber: str, now_ms: int) -> None:
        """Follow a subscriber's end."""
        counting = self._counting(subscriber)
        for item in self.held(subscriber):
            self._come_back(item, now_ms, counts=item.seq in counting)
        for item in self.gone.values():
            if item.worked_by == subscriber:
                item.worked_by = ""
        self.subscribers.remove(subscriber)
        self.reporting.discard(subscriber)

    def _end_removed(self, items: Iterable[Item]) -> None:
        """Nobody needs to know any more that these were removed."""
        for item in items:
            item.lapses_ms = 0
            if self.definition.key_ordered:
                item.worked_by = ""

    def came_back(self, seqs: Collection[int], lost: Sequence[str], forgotten: Collection[int], now_ms: int) -> None:
        """Follow the part of an ``Expire`` that was carried out before a crash: ``seqs`` are not held any more,
        ``lost`` have lost the durable, and ``forgotten`` were removed before and are not known any more."""
        self._end_removed([item for seq, item in self.gone.items() if seq in forgotten])
        for name in lost:
            for item in self.held(name) if name not in self.reporting else ():
                item.carried = item.carried or item.lapses_ms > now_ms
        counting = {name: self._counting(name) for name in self.subscribers}
        for item in [item for item in self.items.values() if item.place == "held" and item.seq in seqs]:
            self._come_back(item, now_ms, counts=item.seq in counting[item.holder])
        for name in lost:
            self.detach(name, now_ms)

    def restarted(self, now_ms: int) -> None:
        """Follow a start of the service."""
        self.reporting.clear()
        earliest_ms = now_ms + self.definition.subscriber_timeout_ms
        for item in self.items.values():
            item.started, item.carried = False, item.place == "held"
            if item.place == "held":
                item.lapses_ms = max(item.lapses_ms, earliest_ms)
        for removed in self.gone.values():
            if removed.worked_by and removed.lapses_ms:
                removed.lapses_ms = max(removed.lapses_ms, earliest_ms)

    # ---- delivery ---------------------------------------------------------------------------------------------------

    def deliver(self, subscriber: str, count: int, result: Delivered, now_ms: int) -> None:
        """Judge and follow a delivery."""
        room = max(0, min(count, self.definition.window - len(self.held(subscriber))))
        possible = {item.seq: item for item in self.deliverable(now_ms, subscriber)}
        given = [(seq, times) for first, last, times in result.runs for seq in range(first, last + 1)]
        promise(len(given) <= room, "a window is not exceeded", given=given, room=room)
        if not self.definition.key_ordered:
            expected = min(room, len(possible))
            promise(len(given) == expected, "what is there is delivered", given=given, possible=sorted(possible))
        elif not any(item.place == "held" or item.worked_by for item in [*self.items.values(), *self.gone.values()]):
            promise(given or not possible or not room, "a free key is delivered", possible=sorted(possible))
        for seq, times in given:
            item = self.items.get(seq) or self.gone.get(seq)
            promise(item is not None, "only what matches is delivered", seq=seq, durable=self.definition.name)
            assert item is not None
            promise(item.place not in ("acknowledged", "gone"), "nothing acknowledged or gone comes back", item=item)
            promise(
                seq in possible, "nothing is delivered early, twice, expired or past its key", item=item, now=now_ms
            )
            uncounted = item.again and not item.deliveries
            allowed = {-1 if uncounted else item.deliveries + 1} | ({1} if uncounted and item.rewound else set())
            promise(times in allowed, "delivery counts are exact", item=item, delivered=times)
            self._check_order(item, now_ms, subscriber)
            item.place, item.holder, item.deliveries = "held", subscriber, item.deliveries + 1
            item.lapses_ms, item.not_before_ms = now_ms + self.definition.buffered_ms, 0
            item.started = item.carried = item.unsent = False

    def _check_order(self, item: Item, now_ms: int, subscriber: str) -> None:
        """Nothing earlier of this publisher still waits for its first delivery, unless it waits for its own time."""
        if item.deliveries or item.again:
            return
        for other in self.items.values():
            if other.seq >= item.seq or other.publisher != item.publisher or other.place != "waiting":
                continue
            excused = (
                other.message.deliver_at_ms or self.expired(other, now_ms) or self._key_taken(other, subscriber, now_ms)
            )
            promise(excused, "order per publisher", given=item, before=other)

    def acknowledge(self, command: Acknowledge, result: Acknowledged) -> None:
        """Judge and follow an acknowledgement."""
        now_ms = command.at_ms
        counted = 0
        stale: list[int] = []
        for item, _ in self._held_of(command, command.unsent):
            if item is not None:
                item.unsent = True
        if command.started is not None:
            self.reporting.add(command.subscriber)
            for first, last, at_ms in command.started:
                for item, seq in self._held_of(command, [(first, last)]):
                    removed = self.gone.get(seq)
                    if item is not None:
                        item.started, item.lapses_ms = True, at_ms + self.definition.ack_wait_ms
                    elif removed is not None and removed.worked_by == command.subscriber:
                        removed.lapses_ms = at_ms + self.definition.ack_wait_ms
        for item, seq in self._held_of(command, command.ack):
            if item is None:
                stale.append(seq)
                continue
            counted += 1
            item.place, item.holder = "acknowledged", ""
            if not self.definition.retention_time_ms:
                self.leave(item, "acknowledged")
        for seq, delay_ms in command.nack:
            for item, _ in self._held_of(command, [(seq, seq)]):
                counted += item is not None
                if item is None:
                    stale.append(seq)
                else:
                    self._give_back(item, now_ms, delay_ms)
        for item, seq in self._held_of(command, [(seq, seq) for seq in command.reject]):
            counted += item is not None
            if item is None:
                stale.append(seq)
            else:
                self._die(item, "rejected")
        for item, seq in self._held_of(command, command.extend):
            if item is None:
                stale.append(seq)
            else:
                item.lapses_ms = now_ms + self.definition.ack_wait_ms
        reported = [seq for first, last in result.stale for seq in range(first, last + 1)]
        promise(sorted(reported) == sorted(stale), "only what is held now counts", reported=reported, stale=stale)
        promise(result.acknowledged == counted, "every held message counts", result=result, expected=counted)
        extended = {seq for first, last in command.extend for seq in range(first, last + 1)}
        extended -= {seq for first, last in command.ack for seq in range(first, last + 1)}
        extended -= {*command.reject, *(seq for seq, _ in command.nack)}
        causes = {seq: cause for first, last, cause in result.causes for seq in range(first, last + 1)}
        for seq in stale:
            removed = self.gone.get(seq)
            if removed is None or removed.worked_by != command.subscriber:
                continue
            if seq in causes or removed.lapses_ms > now_ms:
                cause = {"dropped": "deleted"}.get(removed.cause, removed.cause)
                promise(causes.pop(seq, "") == cause, "what was removed says why", item=removed, result=result)
                if seq in extended:
                    removed.lapses_ms = now_ms + self.definition.ack_wait_ms
                    continue
            removed.worked_by = ""
        promise(not causes, "only what was removed has a cause", causes=causes)

    def _held_of(self, command: Acknowledge, ranges: Iterable[tuple[int, int]]) -> list[tuple[Item | None, int]]:
        found: list[tuple[Item | None, int]] = []
        for first, last in ranges:
            for seq in range(first, last + 1):
                item = self.items.get(seq)
                mine = item is not None and item.place == "held" and item.holder == command.subscriber
                found.append((item if mine else None, seq))
        return found

    # ---- coming back and leaving ------------------------------------------------------------------------------------

    def _come_back(self, item: Item, now_ms: int, *, counts: bool) -> None:
        """Its subscriber is gone or late."""
        if counts:
            self._give_back(item, now_ms, 0)
            return
        item.holder = ""
        if self.expired(item, now_ms):
            self.leave(item, "expired")
        else:
            item.place, item.not_before_ms, item.again = "returned", 0, item.again or not item.unsent
            item.deliveries -= 1

    def _give_back(self, item: Item, now_ms: int, delay_ms: int) -> None:
        maximum = self.definition.max_delivery
        item.holder = ""
        if self.expired(item, now_ms):
            self.leave(item, "expired")
        elif maximum and item.deliveries >= maximum:
            self._die(item, "max_delivery")
        else:
            item.place = "returned"
            item.not_before_ms = now_ms + delay_ms if delay_ms > 0 else 0

    def _die(self, item: Item, cause: str) -> None:
        item.holder = ""
        if self.parks and cause == "rejected":
            self.leave(item, cause)
            return
        self._died += 1
        item.place, item.cause, item.died = "dying", cause, self._died

    def leave(self, item: Item, cause: str) -> None:
        """It is this durable's no more, for good."""
        if item.place == "held" and cause in ("limit_old", "purged", "dropped"):
            item.worked_by = item.holder
        item.place, item.holder, item.cause = "gone", "", cause
        self.gone[item.seq] = self.items.pop(item.seq)

    def late(self, now_ms: int) -> list[str]:
        """Whose applications did not acknowledge in time. What was not handed to them is not late."""
        lapsing = [item for item in self.items.values() if item.place == "held" and item.lapses_ms <= now_ms]
        return sorted({item.holder for item in lapsing if item.started or item.holder not in self.reporting})

    def expire(self, now_ms: int) -> None:
        """Follow every deadline up to now."""
        counting = {name: self._counting(name) for name in self.subscribers}
        behind = {item.seq for name in self.subscribers for item in self._behind(name, now_ms)}
        self._end_removed([item for item in self.gone.values() if item.lapses_ms <= now_ms])
        for item in list(self.items.values()):
            if item.place == "held" and item.lapses_ms <= now_ms:
                self._come_back(item, now_ms, counts=item.seq in counting[item.holder])
            elif item.seq in behind:
                self._come_back(item, now_ms, counts=False)
            elif self._ages(item) and self.expired(item, now_ms):
                self.leave(item, "expired")
            if item.not_before_ms <= now_ms:
                item.not_before_ms = 0
            retention_ms = self.definition.retention_time_ms
            aged = item.published_ms + retention_ms <= now_ms
            own = 0 < item.message.ttl_ms <= now_ms - item.begins_ms
            if item.place == "acknowledged" and (aged or own):
                self.leave(item, "retention")

    def _behind(self, subscriber: str, now_ms: int) -> list[Item]:
        """What is in a subscriber's buffer behind messages that lapse, and must not be handed over before them."""
        held = self.held(subscriber)
        lapsing = [item for item in held if item.lapses_ms <= now_ms]
        if subscriber not in self.reporting or not lapsing:
            return []
        if self.definition.type is DurableType.STANDARD:
            first = min(item.seq for item in lapsing)
            return [item for item in held if item.seq > first and not item.started]
        if not self.definition.key_ordered:
            return []
        firsts: dict[str, int] = {}
        for item in lapsing:
            if item.message.key is not None:
                firsts[item.message.key] = min(item.seq, firsts.get(item.message.key, item.seq))
        return [item for item in held if not item.started and item.seq > firsts.get(item.message.key or "", 1 << 62)]

    def sweep(self, now_ms: int) -> None:
        """Follow the end of what expired, where a delivery came upon it before an ``Expire`` did."""
        for item in list(self.items.values()):
            if self._ages(item) and self.expired(item, now_ms):
                self.leave(item, "expired")

    def parks_now(self, now_ms: int) -> None:
        """Follow the end of the dead-letter store: what expired while it waited for its letter is gone."""
        for item in list(self.items.values()):
            if item.place == "dying" and self.expired(item, now_ms):
                self.leave(item, "expired")

    def retains_nothing(self) -> None:
        """Follow a definition without a retention time."""
        for item in list(self.items.values()):
            if item.place == "acknowledged":
                self.leave(item, "retention")

    def redeliver(self, command: Redeliver, result: Redelivered) -> None:
        """Judge and follow a redelivery of parked messages."""
        wanted = {seq for first, last in command.messages for seq in range(first, last + 1)}
        found = sorted(
            item.seq
            for item in self.items.values()
            if item.place == "dying" and item.seq > command.after and (item.seq in wanted or not command.messages)
        )
        looked, rest = found[: command.count], found[command.count :]
        matcher = Matcher.parse(command.match) if command.match else None
        chosen = [seq for seq in looked if matcher is None or matcher.matches(self.items[seq].message.fields)]
        live = [seq for seq in chosen if not self.expired(self.items[seq], command.at_ms)]
        expected = Redelivered(len(live), looked[-1] if rest else 0)
        promise(result == expected, "what is parked is put back", result=result, expected=expected)
        for seq in chosen:
            item = self.items[seq]
            if seq not in live:
                self.leave(item, "expired")
                continue
            item.place, item.deliveries, item.died, item.again = "returned", 0, 0, True
            item.not_before_ms = 0

    def purge(self) -> tuple[int, int]:
        """Follow a purge; returns messages and bytes."""
        purged = self.pending()
        for item in list(self.items.values()):
            self.leave(item, "purged")
        return len(purged), sum(item.size for item in purged)

    def drop(self, seq: int) -> bool:
        """Follow the deletion of one message; returns whether there was one."""
        item = self.items.get(seq)
        if item is None or not item.pending:
            return False
        self.leave(item, "dropped")
        return True

    def rewind(self, seq: int, now_ms: int) -> None:
        """Follow a rewind: what is retained or unsettled from ``seq`` on waits as if it had never been delivered.

        What was published longer ago than the retention is out of its reach, wherever it is.
        """
        for item in self.items.values():
            young = item.published_ms + self.definition.retention_time_ms > now_ms
            places = (
                ("held", "returned", "acknowledged", "dying") if self.parks else ("held", "returned", "acknowledged")
            )
            if item.seq >= seq and young and item.place in places:
                item.place, item.holder, item.deliveries, item.not_before_ms = "waiting", "", 0, 0
                item.died, item.again, item.rewound = 0, False, False
            elif item.seq >= seq and young and item.place == "dying":
                item.rewound = True
