"""Delivery and acknowledgement: what standard and shared durables have in common.

Owns: the way of a message through a durable, its exact totals, its deadlines. Does not own: the parts it is made of
(``backlog``, ``returned``, ``holdings``), the ends of messages by time (``aging``, ``retention``), limits
(``discarding``), who is connected.

Failure model: pure. A message of the durable is in exactly one place, and the durable holds exactly one reference to it
until it leaves the last:

| place | goes to | when |
|---|---|---|
| backlog | held | a subscriber with room in its window asks |
| backlog | delayed | the cursor passes it before its time |
| delayed | returned | its time has come |
| held | done | acknowledged |
| held | returned | put back, its ``ack_wait`` lapsed, its subscriber is gone; with a delay if one is asked for |
| held | dying | rejected, or it would be returned after ``max_delivery`` deliveries that count |
| returned | held | as from the backlog, and before it |
| dying | done | its dead letter is stored; at once where it was rejected and there is no dead-letter store |
| dying | returned | an operator puts it back |
| any but held, dying | done | it expired, the durable's limit discards it, an administrator deletes it |

Done ones leave the durable; acknowledged ones are retained first where the durable retains. Dying ones of a durable
without a dead-letter store are *parked*: they wait for an operator, and also expire, are discarded and deleted.
"""

from __future__ import annotations

from holdfast.errors import NotFound
from holdfast.stores.definitions.definitions import Discard, DurableDefinition
from holdfast.stores.durables import administration, aging, consumption_state
from holdfast.stores.durables.backlog import SCAN_MAX, Backlog, Found, Shelf
from holdfast.stores.durables.consumption_state import ConsumptionState, Tally
from holdfast.stores.durables.discarding import admits, discard_old
from holdfast.stores.durables.holdings import Held, Holding, Holdings, joined
from holdfast.stores.durables.retention import expire_retained, retention_next_ms
from holdfast.stores.durables.returned import HANDED_OUT, Returned, count_after
from holdfast.stores.values.commands import FIRST_RULES, STEPWISE_RULES, Acknowledge, Acknowledged
from holdfast.stores.values.effects import Advise, Displaced, Dying, Effect, Ready
from holdfast.stores.values.expiry import Budget, Deadlines, earlier
from holdfast.stores.values.ports import BLOCK_MESSAGES
from holdfast.stores.values.sequence_set import SequenceSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.durables.residue import Residue
    from holdfast.stores.values.batch import Batch
    from holdfast.stores.values.ports import Kept

    Started = list[tuple[int, int]] | None

__all__ = ["Consumption", "ConsumptionState", "Tally"]

SET_APART_MAX = 262_144
"""Messages put back, delayed by a subscriber or dying; above it a durable hands out nothing new."""
DYING_RETRY_MS = 10_000
"""A dead letter that could not be stored is tried again after this."""
_HIGH = 1 << 62


class Consumption:
    """One standard or shared durable. ``pending`` and ``pending_bytes`` are what it keeps and is not acknowledged."""

    __slots__ = (
        "_woken",
        "backlog",
        "causes",
        "definition",
        "discards_ms",
        "dying",
        "dying_retry_ms",
        "holdings",
        "name",
        "parked_ms",
        "pending",
        "pending_bytes",
        "ready_effect",
        "replayed",
        "retention_done_ms",
        "returned",
        "shelf",
        "tally",
    )

    exclusive = False
    """Whether the newest subscriber displaces the others."""

    def __init__(self, definition: DurableDefinition, shelf: Shelf) -> None:
        self.definition = definition
        self.name = definition.name
        self.shelf = shelf
        self.backlog = Backlog(shelf, definition.matcher, shelf.counts.next_seq)
        if definition.retention_time_ms:
            self.backlog.move_floor(self.backlog.cursor)
        self.holdings = Holdings()
        self.returned = Returned()
        self.dying: dict[int, tuple[str, int]] = {}
        """Cause and deliveries of each, in the order in which they died."""
        self.dying_retry_ms = 0
        self.discards_ms = 0
        """When a command left more than the limits allow, for ``Expire`` to discard; 0 for never."""
        self.parked_ms: Deadlines[int] | None = None
        """When each of the parked began to live; made when it is asked for."""
        self.retention_done_ms = 0
        self.replayed = SequenceSet()
        """Where the cursor was before a rewind, of what may still be delivered."""
        self.pending = 0
        self.pending_bytes = 0
        self._woken = 0
        self.tally = Tally()
        self.causes: dict[str, int] = {}
        """How many messages were lost to what."""
        self.ready_effect = Ready(shelf.store, definition.name)

    # ---- questions --------------------------------------------------------------------------------------------------

    @property
    def undelivered(self) -> int:
        """Messages in the backlog, delayed ones that the cursor did not reach included."""
        apart = self.returned.total + len(self.dying) + self.backlog.delayed_total
        return self.pending - self.holdings.held - apart

    def position(self) -> tuple[int, ...]:
        """Something that is another after every delivery that changed anything."""
        returned = self.returned
        return (
            self.backlog.cursor,
            self.backlog.delayed_total,
            self.pending,
            self.holdings.held,
            returned.total,
            len(returned.later),
            self._woken,
        )

    def ready(self) -> bool:
        """Whether a subscriber with room in its window could be given something."""
        return self.has_work and any(map(self.ready_for, self.holdings.of))

    def ready_for(self, subscriber: str) -> bool:
        """Whether a delivery to this subscriber would get on: hand something out, or move the cursor."""
        return self.holdings.of[subscriber].held < self.definition.window and self.has_work

    @property
    def has_work(self) -> bool:
        """Whether there is anything that can be handed out now, or looked at for it."""
        return bool(self.returned.runs) or (self.undelivered > 0 and self.looks_on)

    @property
    def looks_on(self) -> bool:
        """Whether the cursor may go on: not so many messages are set apart that it has to wait for them."""
        return self.returned.total + len(self.dying) < SET_APART_MAX

    def next_deadline_ms(self) -> int | None:
        """When ``expire`` has something to do, or None."""
        found = self.holdings.next_ms()
        if self.returned.later:
            found = earlier(found, self.returned.next_ms())
        if self.backlog.scanned_ms:
            found = earlier(found, self.backlog.delayed.next_ms())
        if self.definition.message_ttl_ms:
            found = earlier(found, aging.ttl_next_ms(self))
        if self.backlog.floor is not None:
            found = earlier(found, retention_next_ms(self))
        if self.discards_ms:
            found = earlier(found, self.discards_ms)
        return earlier(found, self.dying_retry_ms) if self.dying and self.definition.dead_letter_store else found

    @property
    def parks(self) -> bool:
        """Whether dying messages wait for an operator: there is no dead-letter store."""
        return not self.definition.dead_letter_store and self.counts_started

    @property
    def counts_started(self) -> bool:
        """Whether only deliveries to the application count; under rules 1 each did."""
        return self.shelf.rules > FIRST_RULES

    @property
    def is_stepwise(self) -> bool:
        """Whether one command examines a bounded number of messages; under older rules some examined all."""
        return self.shelf.rules >= STEPWISE_RULES

    def oldest_ms(self) -> int:
        """When the oldest message that is not acknowledged was published, 0 for none. Cost: O(subscribers).

        Of a durable with a matcher the backlog begins with what the cursor has yet to pass, another's maybe.
        """
        oldest = self.oldest_apart()
        if self.undelivered > 0:
            oldest.append(self.backlog.cursor)
        return self.shelf.counts.published_ms(min(oldest)) if oldest else 0

    def oldest_apart(self) -> list[int]:
        """Numbers of messages that are held, came back or are dying, the lowest among them. Cost: O(subscribers)."""
        found = [holding.runs[0][0] for holding in self.holdings.of.values() if holding.runs]
        found += [run[0] for run in self.returned.runs[:1]] + list(self.dying)[:1]
        return found + [seq for _, seq, _ in self.returned.later]

    # ---- publishing -------------------------------------------------------------------------------------------------

    @property
    def takes_all(self) -> bool:
        """Whether every message that is published is accepted, so that a batch is counted at once."""
        definition = self.definition
        limited = definition.discard is Discard.NEW and (definition.message_limit or definition.bytelimit)
        return self.backlog.matcher.everything and not limited

    def admits(self, candidates: Sequence[int], batch: Batch) -> Sequence[int]:
        """Which of these positions in the batch, which match, the limits let in. Changes nothing."""
        return admits(self, candidates, batch)

    def published_all(self, batch: Batch, effects: list[Effect]) -> None:
        """The whole batch was accepted and counted for this durable."""
        self._grown(len(batch.sizes), batch.size, batch.at_ms, effects)

    def published(
        self, first_seq: int, candidates: Sequence[int], admitted: Sequence[int], batch: Batch, effects: list[Effect]
    ) -> None:
        """``admitted`` of the candidates were counted for this durable; the first of the batch is ``first_seq``."""
        if len(admitted) < len(candidates):
            let_in = set(admitted)
            for position in candidates:
                if position not in let_in:
                    self.backlog.exclude(first_seq + position, first_seq + position)
            self.lose("limit_new", len(candidates) - len(admitted))
        if admitted and not self.undelivered:
            # Nothing waits from the cursor on: who wants one message in ten thousand need not read the others.
            self.backlog.cursor = max(self.backlog.cursor, first_seq + admitted[0])
        sizes = batch.sizes
        self._grown(len(admitted), sum(sizes[position] for position in admitted), batch.at_ms, effects)

    def _grown(self, count: int, size: int, now_ms: int, effects: list[Effect]) -> None:
        backlog = self.backlog
        if self.undelivered <= 0:
            backlog.cursor_ms = now_ms
        if backlog.floor is not None and not backlog.floor_ms:
            backlog.floor_ms = now_ms
        self.pending += count
        self.pending_bytes += size
        self.keep_limits(now_ms)
        if self.looks_on:
            self._note_ready(effects)

    def keep_limits(self, now_ms: int, budget: Budget | None = None) -> None:
        """Where the durable discards its oldest messages, discard what is over its limits."""
        definition = self.definition
        if definition.discard is Discard.OLD and (definition.message_limit or definition.bytelimit):
            discard_old(self, now_ms, budget)
        else:
            self.discards_ms = 0

    # ---- subscribers ------------------------------------------------------------------------------------------------

    def attach(
        self, subscriber: str, key: str | None, now_ms: int, effects: list[Effect], *, polls: bool = False
    ) -> str:
        """A subscriber comes; returns the name of the one that it displaces, if any."""
        displaced = ""
        for name in list(self.holdings.of):
            if self.exclusive or name == subscriber:
                self.detach(name, now_ms, effects)
                effects.append(Displaced(self.shelf.store, self.name, name))
                displaced = name
        self.holdings.of[subscriber] = Holding(key, polls=polls)
        self._note_ready(effects)
        return displaced

    def detach(self, subscriber: str, now_ms: int, effects: list[Effect]) -> None:
        """A subscriber is gone; what it holds is put back."""
        holding = self._attached(subscriber)
        counting = holding.counting()
        for run in self.holdings.take(holding, 0, _HIGH):
            self._come_back(run, counting, now_ms, effects)
        del self.holdings.of[subscriber]
        self._note_ready(effects)

    def _attached(self, subscriber: str) -> Holding:
        holding = self.holdings.of.get(subscriber)
        if holding is None:
            raise NotFound(
                "this subscriber is not attached",
                store=self.shelf.store,
                durable=self.name,
                subscriber=subscriber,
                hint="attach again; what it held was given to others",
            )
        return holding

    def _note_ready(self, effects: list[Effect]) -> None:
        if self.holdings.of and self.ready():
            effects.append(self.ready_effect)

    # ---- delivery ---------------------------------------------------------------------------------------------------

    def deliver(self, subscriber: str, count: int, now_ms: int, effects: list[Effect]) -> list[tuple[int, int, int]]:
        """Hand out up to ``count`` messages, as far as the window goes; what came back goes first."""
        holding = self._attached(subscriber)
        room = min(count, self.definition.window - holding.held)
        if room <= 0:
            return []
        budget = Budget(SCAN_MAX, SCAN_MAX)
        self.returned.wake(now_ms, SCAN_MAX if self.is_stepwise else _HIGH)
        self._wake_delayed(now_ms, budget)
        if self.definition.message_ttl_ms and not self._has_due_delayed(now_ms):
            aging.expire_backlog(self, now_ms, budget)
        runs: list[tuple[int, int, int]] = []
        self.hand_out(holding, room, now_ms, runs)
        self._note_ready(effects)
        return runs

    def hand_out(self, holding: Holding, room: int, now_ms: int, runs: list[tuple[int, int, int]]) -> None:
        """What one subscriber gets: the returned messages first, then the backlog.

        It examines up to ``SCAN_MAX`` of each, expired ones included; the durable stays ready for the next delivery.
        """
        deadline_ms = now_ms + self.definition.ack_wait_ms
        looks = SCAN_MAX if self.is_stepwise else _HIGH
        while room and looks and (run := self.returned.take(min(room, looks))) is not None:
            looks -= run[1] - run[0] + 1
            for first, last in aging.without_expired(self, run[0], run[1], now_ms):
                self.holdings.hold(holding, (first, last, max(run[2], 0) + 1, deadline_ms))
                holding.handed_out(first, last, now_ms)
                runs.append((first, last, count_after(run[2])))
                room -= last - first + 1
                self.tally.delivered += last - first + 1
                self.tally.redelivered += last - first + 1 if run[2] else 0
        if room and looks and self.looks_on and not self._has_due_delayed(now_ms):
            for first, last in aging.without_old(self, self.scan(room, now_ms).runs, now_ms):
                self.holdings.hold(holding, (first, last, 1, deadline_ms))
                holding.handed_out(first, last, now_ms)
                runs.append((first, last, 1))
                self.tally.delivered += last - first + 1

    def scan(self, want: int, now_ms: int, end: int | None = None, budget: Budget | None = None) -> Found:
        """Move the cursor on; what expired by its own time is given back here, the caller places the rest.

        A call without a budget examines up to ``SCAN_MAX`` messages.
        """
        next_seq = self.shelf.counts.next_seq
        if budget is None:
            budget = Budget(_HIGH, _HIGH)
        self._wake_delayed(now_ms, budget)
        if self._has_due_delayed(now_ms):
            return Found()
        if self.undelivered <= 0:
            if self.backlog.cursor < next_seq:
                # Nothing above the cursor is this durable's: what does not match need not be read.
                self.backlog.cursor = next_seq
                self.backlog.forget_passed()
            return Found()
        # Behind the last of its own it need not look, either.
        end = next_seq if end is None else end
        found = self.backlog.scan(now_ms, min(want, self.undelivered), end, budget.looks)
        budget.looks -= found.looks
        for seq in found.expired:
            self.gone(seq, seq, "own_ttl")
        return found

    def _has_due_delayed(self, now_ms: int) -> bool:
        """Whether delayed messages are due that the cursor passed: it must not pass their block again before."""
        next_ms = self.backlog.delayed.next_ms()
        return next_ms is not None and next_ms <= now_ms

    def _wake_delayed(self, now_ms: int, budget: Budget) -> None:
        """Set apart the delayed messages that are due, of whole blocks. Cost: reads the blocks."""
        next_ms = self.backlog.delayed.next_ms()
        self._woken += next_ms is not None and next_ms <= now_ms
        while next_ms is not None and next_ms <= now_ms and not budget.is_spent:
            budget.looks -= BLOCK_MESSAGES
            found = self.backlog.due(now_ms)
            for seq in found.expired:
                self.gone(seq, seq, "own_ttl")
            for first, last in found.runs:
                self.set_apart(first, last)
            next_ms = self.backlog.delayed.next_ms()

    def set_apart(self, first: int, last: int) -> None:
        """These were found, can be handed out, and wait for it."""
        self.returned.add(first, last, 0)

    def forget(self, first: int, last: int) -> None:
        """These are in no place of the durable any more."""

    # ---- acknowledgement --------------------------------------------------------------------------------------------

    def acknowledge(self, command: Acknowledge, effects: list[Effect]) -> Acknowledged:
        """Settle, put back, reject and extend what the subscriber holds; what it does not hold is stale."""
        holding = self._attached(command.subscriber)
        now_ms = command.at_ms
        if command.started is not None:
            holding.start(command.started)
        settled = 0
        stale: list[tuple[int, int]] = []
        for first, last in command.ack:
            # What was handed out one by one is given back together: most of the cost is for each run.
            for low, high in joined(self._take(holding, first, last, stale)):
                self._acknowledged(low, high, now_ms)
                settled += high - low + 1
        self.tally.acknowledged += settled
        for seq, delay_ms in command.nack:
            for run in self._take(holding, seq, seq, stale):
                settled += 1
                self._give_back(run, now_ms, effects, delay_ms)
        for seq in command.reject:
            for run in self._take(holding, seq, seq, stale):
                settled += 1
                self._die(seq, run[2], "rejected", now_ms, effects)
        for first, last in command.extend:
            renewed = self.holdings.renew(holding, first, last, now_ms + self.definition.ack_wait_ms)
            self._note_stale(renewed, first, last, stale)
        self._note_ready(effects)
        return Acknowledged(settled, stale)

    def _take(self, holding: Holding, first: int, last: int, stale: list[tuple[int, int]]) -> list[Held]:
        """What the subscriber holds of a range; the rest of it is stale."""
        taken = self.holdings.take(holding, first, last)
        self._note_stale(taken, first, last, stale)
        return taken

    @staticmethod
    def _note_stale(taken: Sequence[Held], first: int, last: int, stale: list[tuple[int, int]]) -> None:
        seq = first
        for run in taken:
            if run[0] > seq:
                stale.append((seq, run[0] - 1))
            seq = run[1] + 1
        if seq <= last:
            stale.append((seq, last))

    def _acknowledged(self, first: int, last: int, now_ms: int) -> None:
        self.pending -= last - first + 1
        self.forget(first, last)
        floor = self.backlog.floor
        if floor is None or last < floor:
            self.pending_bytes -= self.shelf.counts.release(first, last)
            return
        if first < floor:
            self.pending_bytes -= self.shelf.counts.release(first, floor - 1)
            first = floor
        self.pending_bytes -= self.shelf.counts.size(first, last)
        aging.retain(self, first, last, now_ms)

    def _come_back(self, run: Held, counting: SequenceSet, now_ms: int, effects: list[Effect]) -> None:
        """A run whose subscriber is gone or late. Where the application was not handed it, the delivery is none."""
        if not self.counts_started:
            self._give_back(run, now_ms, effects)
            return
        for first, last, counts in counting.parts(run[0], run[1]):
            if counts:
                self._give_back((first, last, run[2], run[3]), now_ms, effects)
                continue
            for low, high in aging.without_expired(self, first, last, now_ms):
                self.returned.add(low, high, run[2] - 1 or HANDED_OUT)

    def _give_back(self, run: Held, now_ms: int, effects: list[Effect], delay_ms: int = 0) -> None:
        """What was held and not settled: to others, or, delivered too often, to die."""
        maximum = self.definition.max_delivery
        for first, last in aging.without_expired(self, run[0], run[1], now_ms):
            if maximum and run[2] >= maximum:
                for seq in range(first, last + 1):
                    self._die(seq, run[2], "max_delivery", now_ms, effects)
                if self.parks:
                    facts = (("messages", last - first + 1), ("seq", first), ("parked", len(self.dying)))
                    effects.append(Advise(self.shelf.store, self.name, "", "messages_parked", facts))
            elif delay_ms > 0:
                for seq in range(first, last + 1):
                    self.returned.add_later(aging.wake_ms(self, seq, now_ms + delay_ms), seq, run[2])
            else:
                self.returned.add(first, last, run[2])

    # ---- leaving ----------------------------------------------------------------------------------------------------

    def lose(self, cause: str, count: int) -> None:
        """Count messages that are lost, by cause."""
        self.causes[cause] = self.causes.get(cause, 0) + count

    def gone(self, first: int, last: int, cause: str) -> None:
        """These leave the durable without an acknowledgement."""
        self.release(first, last)
        self.lose(cause, last - first + 1)

    def release(self, first: int, last: int) -> None:
        """These leave the durable, uncounted; they were taken from their place before."""
        self.pending -= last - first + 1
        self.pending_bytes -= self.shelf.counts.release(first, last)
        self.forget(first, last)
        floor = self.backlog.floor
        if floor is not None and last >= floor:
            self.backlog.exclude(max(first, floor), last)

    def _die(self, seq: int, deliveries: int, cause: str, now_ms: int, effects: list[Effect]) -> None:
        if not self.definition.dead_letter_store and not (self.parks and cause == "max_delivery"):
            self.gone(seq, seq, cause)
            return
        if not self.dying:
            self.dying_retry_ms = now_ms + DYING_RETRY_MS
        self.dying[seq] = cause, deliveries
        if self.parked_ms is not None:
            self.parked_ms.set(seq, aging.arrived_ms(self, seq))
        if self.definition.dead_letter_store:
            effects.append(self._dying_effect(seq))

    def take_dying(self, seq: int) -> tuple[str, int] | None:
        """Take a message from the dying, if it is one; returns its cause and deliveries."""
        if self.parked_ms is not None:
            self.parked_ms.set(seq, None)
        return self.dying.pop(seq, None)

    def _dying_effect(self, seq: int) -> Dying:
        cause, deliveries = self.dying[seq]
        return Dying(self.shelf.store, self.name, seq, cause, deliveries, self.definition.dead_letter_store)

    def dying_effects(self) -> list[Dying]:
        """Every message that waits for its dead letter, to be told again. Without a place to go they stay, untold."""
        return [self._dying_effect(seq) for seq in self.dying if self.definition.dead_letter_store]

    def buried(self, seq: int) -> None:
        """The dead letter of a dying message is stored."""
        found = self.take_dying(seq)
        assert found is not None, "only what is dying is buried"
        self.gone(seq, seq, found[0])
        self.tally.dead_letters += 1

    # ---- time -------------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int, budget: Budget, effects: list[Effect]) -> int:
        """Carry out every deadline up to ``now_ms``, as far as the budget goes; returns how many messages went."""
        before = self.pending
        if self.discards_ms:
            # First, so that an expiry in parts discards the same messages as one in a single part.
            self.keep_limits(now_ms, budget)
            if self.discards_ms:
                return before - self.pending
        for run, counting in self.holdings.lapsed(now_ms, max(1, budget.looks) if self.is_stepwise else _HIGH):
            self.tally.lapsed += run[1] - run[0] + 1
            budget.looks -= run[1] - run[0] + 1 if self.is_stepwise else 0
            self._come_back(run, counting, now_ms, effects)
        self.returned.wake(now_ms, SCAN_MAX if self.is_stepwise else _HIGH)
        self._wake_delayed(now_ms, budget)
        if self.definition.message_ttl_ms:
            aging.expire_parked(self, now_ms, budget)
            aging.expire_returned(self, now_ms, budget)
            if not self._has_due_delayed(now_ms):
                aging.expire_backlog(self, now_ms, budget)
        self.backlog.cursor_ms = max(self.backlog.cursor_ms, self.shelf.counts.time_from(self.backlog.cursor))
        retained = expire_retained(self, now_ms, budget)
        if self.dying and self.dying_retry_ms <= now_ms and self.definition.dead_letter_store:
            self.dying_retry_ms = now_ms + DYING_RETRY_MS
            effects += self.dying_effects()
        self._note_ready(effects)
        return before - self.pending + retained

    def expire_own(self, kept: Kept) -> bool:
        """A message's own time-to-live has ended; whether the durable let it go. Not while somebody holds it."""
        return aging.expire_own(self, kept)

    # ---- administration ---------------------------------------------------------------------------------------------

    def purge(self, now_ms: int) -> tuple[int, int, list[Residue]]:
        """Forget everything that the durable keeps. Messages and bytes, and what is to be given back in steps."""
        return administration.purge(self, now_ms)

    def drop(self, kept: Kept) -> bool:
        """Delete one message, wherever it is; whether the durable had it. Its holder finds it stale."""
        return administration.drop(self, kept)

    def browse(self, after: int, count: int) -> list[tuple[int, int]]:
        """Up to ``count`` messages above ``after`` with their deliveries, ascending, whoever holds them."""
        return administration.browse(self, after, count)

    # ---- state ------------------------------------------------------------------------------------------------------

    def state(self) -> ConsumptionState:
        """What a snapshot keeps. Cost: O(not settled)."""
        return consumption_state.capture(self)

    def restore(self, state: ConsumptionState) -> None:
        """Take up what ``state`` gave, in a durable just made."""
        consumption_state.take_up(self, state)

    def kept(self) -> SequenceSet:
        """Every message that the durable holds a reference to. Cost: O(backlog); for checks."""
        return consumption_state.kept(self)

    def check(self) -> None:
        """Every law of the parts; each message is in one place; totals are those of the messages. Cost: O(backlog)."""
        consumption_state.check(self)

    def keys_state(self) -> list[tuple[int, str]]:
        """What a key-ordered durable knows of keys."""
        return []

    def restore_keys(self, keys: Sequence[tuple[int, str]]) -> None:
        """Take up ``keys_state``."""
        assert not keys, "only a key-ordered durable knows keys"
