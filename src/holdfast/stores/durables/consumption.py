"""Delivery and acknowledgement: standard and shared durables.

A durable has each of its messages in exactly one place. It holds one reference to the message, from the first place
until the message leaves the last one:

| from | to | when |
|---|---|---|
| backlog | held | a subscriber with room in its window asks |
| backlog | delayed | the cursor passes it before its delivery time |
| delayed | redelivery | its time has come |
| held | done | acknowledged |
| held | redelivery | put back (with a delay if requested), its ``ack_wait`` has passed, or its subscriber is gone |
| held | dying | rejected, or due for redelivery when ``max_delivery`` deliveries have been counted |
| redelivery | held | a subscriber with room in its window asks; redelivery goes before the backlog |
| dying | done | its dead letter is stored; at once if it was rejected and there is no dead-letter store |
| dying | redelivery | an operator puts it back |
| any but held, dying | done | it expired |
| any but dying | done | the durable's limit discards it, an administrator deletes it; a holder gets a withdrawal |

Done messages leave the durable; if the durable retains messages, acknowledged ones leave only after ``retention_time``.
Dying messages of a durable without a dead-letter store are *parked*: they wait for an operator. Parked messages can
also expire, be discarded or be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest

from holdfast.errors import AlreadyOpen, Code, NotFound
from holdfast.stores.durables import expiry
from holdfast.stores.durables.backlog import SCAN_MAX, Backlog, Residue
from holdfast.stores.durables.leases import HANDED_OUT, Entry, Holder, Lease, RedeliveryQueue, count_after, joined
from holdfast.stores.durables.pending import PendingMessages
from holdfast.stores.matching import Matcher
from holdfast.stores.values.commands import Acknowledge, Acknowledged, Attach, Redeliver, Redelivered
from holdfast.stores.values.deadlines import Budget, earlier
from holdfast.stores.values.effects import Advise, DeadLettering, Displaced, Effect
from holdfast.stores.values.messages import MessageBatch
from holdfast.stores.values.ports import Kept
from holdfast.stores.values.sequence_set import SequenceSet

_NONE = SequenceSet()
DYING_RETRY_MS = 10_000  # a dead letter that could not be stored is tried again after this
_HIGH = 1 << 62


class Consumption(PendingMessages):
    """One standard or shared durable, with many subscribers unless it is ``exclusive``. A newer session of a subscriber
    displaces the older one."""

    exclusive = False
    """Whether it has one subscriber at a time, its holder."""

    @property
    def attached(self) -> Mapping[str, Holder]:
        """The subscribers."""
        return self.leases.of

    def position(self) -> tuple[int, ...]:
        """A value that differs after every delivery that changed anything."""
        redelivery = self.redelivery
        return (
            self.backlog.cursor,
            self.backlog.delayed_total,
            self.pending,
            self.leases.held,
            redelivery.total,
            len(redelivery.later),
            self._woken,
        )

    def ready(self) -> bool:
        """Whether a subscriber with room in its window could be given something."""
        return self.has_work and any(map(self.ready_for, self.leases.of))

    def ready_for(self, subscriber: str) -> bool:
        """Whether a delivery to this subscriber would hand something out, or move the cursor."""
        return self.leases.of[subscriber].held < self.definition.window and self.has_work

    @property
    def has_work(self) -> bool:
        """Whether messages can be handed out now, or examined for it."""
        if self.rewind_to is not None:
            return False
        return bool(self.redelivery.runs) or (self.undelivered > 0 and self.looks_on)

    def next_deadline_ms(self) -> int | None:
        """When ``expire`` has something to do, or None."""
        next_ms = self.leases.next_ms()
        if self.redelivery.later:
            next_ms = earlier(next_ms, self.redelivery.next_ms())
        if self.backlog.scanned_ms:
            next_ms = earlier(next_ms, self.backlog.delayed.next_ms())
        if self.definition.message_ttl_ms:
            next_ms = earlier(next_ms, expiry.ttl_next_ms(self))
        if self.backlog.floor is not None:
            next_ms = earlier(next_ms, expiry.retention_next_ms(self))
        if self.discards_ms:
            next_ms = earlier(next_ms, self.discards_ms)
        if self.rewind_to is not None:
            next_ms = earlier(next_ms, self.rewind_ms)
        return earlier(next_ms, self.dying_retry_ms) if self.dying and self.definition.dead_letter_store else next_ms

    def published_all(self, batch: MessageBatch, effects: list[Effect]) -> None:
        """The whole batch was accepted and counted for this durable."""
        self._grown(len(batch.sizes), batch.size, batch.at_ms, effects)

    def published(
        self,
        first_seq: int,
        candidates: Sequence[int],
        admitted: Sequence[int],
        batch: MessageBatch,
        effects: list[Effect],
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

    def attach(self, command: Attach, effects: list[Effect]) -> str:
        """Attach a subscriber; returns the name of the one that it displaces, if any.

        Raises ``AlreadyOpen`` (durable_busy) if another one has the durable and the command does not take over.
        """
        subscriber, displaced = command.subscriber, ""
        other = self.holder_against(subscriber)
        if other is not None and not command.take_over:
            raise AlreadyOpen(
                "another subscriber has this durable, and a standard durable has one at a time; "
                "a durable of type shared has many",
                code=Code.DURABLE_BUSY,
                hint="wait for it with wait_ms, or take it over with take_over=true (right: administer)",
                store=self.shelf.store,
                durable=self.name,
                holder=other,
                since_ms=self.leases.of[other].since_ms,
            )
        worked_on = self._kept(command)
        for name in list(self.leases.of):
            if name == subscriber or self.exclusive:
                self.detach(name, command.at_ms, effects)
                cause = "replaced" if name == subscriber else "taken_over"
                effects.append(Displaced(self.shelf.store, self.name, name, cause))
                displaced = name
        holder = Holder(polls=command.polls, since_ms=command.at_ms, session=command.session)
        self.leases.of[subscriber] = holder
        for first, last, deliveries, _ in worked_on:
            self.leases.hold(holder, (first, last, deliveries, command.at_ms + self.definition.ack_wait_ms))
            holder.again.add(first, last)
        if worked_on:
            holder.start([(first, last) for first, last, *_ in worked_on])
        self._note_ready(effects)
        return displaced

    def _kept(self, command: Attach) -> list[Lease]:
        """Take from the earlier connection of this session what its application works on. Nothing else counts."""
        before = self.leases.of.get(command.subscriber)
        if before is None or not command.session or before.session != command.session:
            return []
        if before.started is None:
            before.start(command.keep)
        return [run for first, last in command.keep for run in self.leases.take(before, first, last)]

    def holder_against(self, subscriber: str) -> str | None:
        """The other subscriber that has the durable, which then is busy for this one; None if none has it."""
        others = (name for name in self.leases.of if name != subscriber)
        return next(others, None) if self.exclusive else None

    def detach(self, subscriber: str, now_ms: int, effects: list[Effect]) -> None:
        """Remove a subscriber; its leases are put back."""
        holder = self._attached(subscriber)
        counting, fresh = holder.counting(), holder.fresh()
        for run in self.leases.take(holder, 0, _HIGH):
            self._come_back(run, counting, fresh, now_ms, effects)
        self.let_go(self.removed.leave(subscriber))
        del self.leases.of[subscriber]
        self._note_ready(effects)

    def _attached(self, subscriber: str) -> Holder:
        holder = self.leases.of.get(subscriber)
        if holder is None:
            raise NotFound(
                "this subscriber is not attached",
                store=self.shelf.store,
                durable=self.name,
                subscriber=subscriber,
                hint="attach again; the messages that it held are delivered again, to any subscriber",
            )
        return holder

    def _note_ready(self, effects: list[Effect]) -> None:
        if self.leases.of and self.ready():
            effects.append(self.ready_effect)

    def deliver(self, subscriber: str, count: int, now_ms: int, effects: list[Effect]) -> list[tuple[int, int, int]]:
        """Hand out up to ``count`` messages within the window; redeliveries first."""
        holder = self._attached(subscriber)
        room = min(count, self.definition.window - holder.held)
        if room <= 0 or self.rewind_to is not None:
            return []
        budget = Budget(SCAN_MAX, SCAN_MAX)
        self.redelivery.wake(now_ms, SCAN_MAX)
        self._wake_delayed(now_ms, budget)
        if self.definition.message_ttl_ms and not self._has_due_delayed(now_ms):
            expiry.expire_backlog(self, now_ms, budget)
        runs: list[tuple[int, int, int]] = []
        self.hand_out(holder, room, now_ms, runs)
        self._note_ready(effects)
        return runs

    def hand_out(self, holder: Holder, room: int, now_ms: int, runs: list[tuple[int, int, int]]) -> None:
        """Redeliveries first, then the backlog.

        It examines up to ``SCAN_MAX`` of each, including expired ones; the durable stays ready for the next delivery.
        """
        deadline_ms = self._deadline_ms(holder, now_ms)
        looks = SCAN_MAX
        while room and looks and (run := self.redelivery.take(min(room, looks))) is not None:
            looks -= run[1] - run[0] + 1
            for first, last in expiry.without_expired(self, run[0], run[1], now_ms):
                self.leases.hold(holder, (first, last, max(run[2], 0) + 1, deadline_ms))
                holder.handed_out(first, last, now_ms, run[2])
                runs.append((first, last, count_after(run[2])))
                room -= last - first + 1
                self.tally.delivered += last - first + 1
                self.tally.redelivered += last - first + 1 if run[2] else 0
        if room and looks and self.looks_on and not self._has_due_delayed(now_ms):
            for first, last in expiry.without_old(self, self.scan(room, now_ms).runs, now_ms):
                self.leases.hold(holder, (first, last, 1, deadline_ms))
                holder.handed_out(first, last, now_ms)
                runs.append((first, last, 1))
                self.tally.delivered += last - first + 1

    def _deadline_ms(self, holder: Holder, now_ms: int) -> int:
        """Until when a message that is handed out now must be handed over; a poll hands it over at once."""
        return now_ms + (self.definition.ack_wait_ms if holder.polls else self.definition.buffered_ms)

    def acknowledge(self, command: Acknowledge, effects: list[Effect]) -> Acknowledged:
        """Acknowledge, put back, reject and extend leases; what the subscriber does not hold is stale."""
        holder = self._attached(command.subscriber)
        now_ms = command.at_ms
        if command.started is not None:
            holder.start([(first, last) for first, last, _ in command.started])
            for first, last, at_ms in command.started:
                self.leases.renew(holder, first, last, at_ms + self.definition.ack_wait_ms)
                self._renew_removed(command.subscriber, first, last, at_ms)
        holder.not_sent(command.unsent)
        count = 0
        stale: list[tuple[int, int]] = []
        for first, last in command.ack:
            # What was handed out one by one is given back together: most of the cost is for each run.
            for low, high in joined(self._take(holder, first, last, stale)):
                self._acknowledged(low, high, now_ms)
                count += high - low + 1
        self.tally.acknowledged += count
        for seq, delay_ms in command.nack:
            for run in self._take(holder, seq, seq, stale):
                count += 1
                self._give_back(run, now_ms, effects, delay_ms)
        for seq in command.reject:
            for run in self._take(holder, seq, seq, stale):
                count += 1
                self._die(seq, run[2], "rejected", now_ms, effects)
        removed: list[Entry] = []
        for first, last in stale:
            answered, forgotten = self.removed.take(command.subscriber, first, last)
            removed += answered
            self.let_go(answered + forgotten)
        for first, last in command.extend:
            renewed = self.leases.renew(holder, first, last, now_ms + self.definition.ack_wait_ms)
            self._note_stale(renewed, first, last, stale)
            removed += self._renew_removed(command.subscriber, first, last, now_ms)
        self._note_ready(effects)
        return Acknowledged(count, stale, [(first, last, cause) for first, last, _, cause in removed])

    def _renew_removed(self, subscriber: str, first: int, last: int, at_ms: int) -> list[Entry]:
        """The application works on these; those of them that were removed keep their keys. Returns these."""
        renewed, forgotten = self.removed.renew(subscriber, first, last, at_ms + self.definition.ack_wait_ms)
        self.let_go(forgotten)
        return renewed

    def _take(self, holder: Holder, first: int, last: int, stale: list[tuple[int, int]]) -> list[Lease]:
        runs = self.leases.take(holder, first, last)
        self._note_stale(runs, first, last, stale)
        return runs

    @staticmethod
    def _note_stale(taken: Sequence[Lease], first: int, last: int, stale: list[tuple[int, int]]) -> None:
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
        expiry.retain(self, first, last, now_ms)

    def _come_back(
        self, run: Lease, counting: SequenceSet, fresh: SequenceSet, now_ms: int, effects: list[Effect]
    ) -> None:
        """Put back a run whose subscriber is gone or late; only deliveries to the application count, and of what is
        ``fresh`` there was none."""
        for first, last, counts in counting.parts(run[0], run[1]):
            if counts:
                self._give_back((first, last, run[2], run[3]), now_ms, effects)
                continue
            for begin, end in expiry.without_expired(self, first, last, now_ms):
                for low, high, is_fresh in fresh.parts(begin, end):
                    self.redelivery.add(low, high, run[2] - 1 or (0 if is_fresh else HANDED_OUT))

    def _give_back(self, run: Lease, now_ms: int, effects: list[Effect], delay_ms: int = 0) -> None:
        """Put back a run, or dead-letter it after too many deliveries."""
        maximum = self.definition.max_delivery
        for first, last in expiry.without_expired(self, run[0], run[1], now_ms):
            if maximum and run[2] >= maximum:
                for seq in range(first, last + 1):
                    self._die(seq, run[2], "max_delivery", now_ms, effects)
                if self.parks:
                    facts = (("messages", last - first + 1), ("seq", first), ("parked", len(self.dying)))
                    effects.append(Advise(self.shelf.store, self.name, "", "messages_parked", facts))
            elif delay_ms > 0:
                for seq in range(first, last + 1):
                    self.redelivery.add_later(expiry.wake_ms(self, seq, now_ms + delay_ms), seq, run[2])
            else:
                self.redelivery.add(first, last, run[2])

    def _die(self, seq: int, deliveries: int, cause: str, now_ms: int, effects: list[Effect]) -> None:
        if not self.definition.dead_letter_store and not (self.parks and cause == "max_delivery"):
            self.gone(seq, seq, cause)
            return
        if not self.dying:
            self.dying_retry_ms = now_ms + DYING_RETRY_MS
        self.dying[seq] = cause, deliveries
        if self.parked_ms is not None:
            self.parked_ms.set(seq, self.arrived_ms(seq))
        if self.definition.dead_letter_store:
            effects.append(self._dying_effect(seq))

    def _dying_effect(self, seq: int) -> DeadLettering:
        cause, deliveries = self.dying[seq]
        return DeadLettering(self.shelf.store, self.name, seq, cause, deliveries, self.definition.dead_letter_store)

    def dying_effects(self) -> list[DeadLettering]:
        """The messages that wait for their dead letter, to be reported again; none without a dead-letter store."""
        return [self._dying_effect(seq) for seq in self.dying if self.definition.dead_letter_store]

    def restarted(self, now_ms: int) -> bool:
        """The service has started: leases are from before. Returns whether anything changed.

        What an application was handed shortly before is not known, so nothing lapses before its subscriber had the time
        to come back and say it.
        """
        until_ms = now_ms + self.definition.subscriber_timeout_ms
        changed = self.removed.postpone(until_ms)
        for holder in self.leases.of.values():
            changed |= holder.restarted()
            changed |= self.leases.postpone(holder, until_ms)
        return changed

    def buried(self, seq: int) -> None:
        """The dead letter of a dying message is stored."""
        dying = self.take_dying(seq)
        assert dying is not None, "only what is dying is buried"
        self.gone(seq, seq, dying[0])
        self.tally.dead_letters += 1

    def expire(self, now_ms: int, budget: Budget, effects: list[Effect], *, contended: bool = False) -> int:
        """Carry out every deadline up to ``now_ms``, as far as the budget goes; returns how many messages went.

        If the durable is ``contended``, a holder that lets an ``ack_wait`` lapse loses it.
        """
        if self.rewind_to is not None and not expiry.rewind_on(self, now_ms, budget):
            return 0
        before = self.pending
        if self.discards_ms:
            # First, so that an expiry in parts discards the same messages as one in a single part.
            self.keep_limits(now_ms, budget)
            if self.discards_ms:
                return before - self.pending
        for name in self._lapse(now_ms, budget, effects):
            if contended and self.exclusive:
                self._lose_holder(name, now_ms, effects)
        self.let_go(self.removed.end(now_ms))
        self.redelivery.wake(now_ms, SCAN_MAX)
        self._wake_delayed(now_ms, budget)
        if self.definition.message_ttl_ms:
            expiry.expire_parked(self, now_ms, budget)
            expiry.expire_returned(self, now_ms, budget)
            if not self._has_due_delayed(now_ms):
                expiry.expire_backlog(self, now_ms, budget)
        self.backlog.cursor_ms = max(self.backlog.cursor_ms, self.shelf.counts.time_from(self.backlog.cursor))
        retained = expiry.expire_retained(self, now_ms, budget)
        if self.dying and self.dying_retry_ms <= now_ms and self.definition.dead_letter_store:
            self.dying_retry_ms = now_ms + DYING_RETRY_MS
            effects += self.dying_effects()
        self._note_ready(effects)
        return before - self.pending + retained

    def _lapse(self, now_ms: int, budget: Budget, effects: list[Effect]) -> list[str]:
        """Take back what was not acknowledged in time, and what must not be handed over before it.

        Returns the subscribers whose applications were late. What only waited in a client was not in their hands.
        """
        lapsed: dict[str, list[Lease]] = {}
        late: dict[str, None] = {}
        fresh = {name: holder.fresh() for name, holder in self.leases.of.items() if holder.unsent}
        runs_due = self.leases.lapsed(now_ms, max(1, budget.looks))
        for name, run, _ in runs_due:
            lapsed.setdefault(name, []).append(run)
        # Before they come back: one that expires then takes its key with it.
        behind = {
            name: self._behind(holder, runs)
            for name, runs in lapsed.items()
            if (holder := self.leases.of[name]).started is not None
        }
        for name, run, counting in runs_due:
            self.tally.lapsed += run[1] - run[0] + 1
            budget.looks -= run[1] - run[0] + 1
            self._come_back(run, counting, fresh.get(name, _NONE), now_ms, effects)
            if self.leases.of[name].started is None or counting.count(run[0], run[1]):
                late[name] = None
        for name, runs in lapsed.items():
            self.withdraw(name, runs, "lapsed")
            holder = self.leases.of[name]
            taken = [run for first, last in behind.get(name, ()) for run in self.leases.take(holder, first, last)]
            for run in taken:
                self._come_back(run, _NONE, fresh.get(name, _NONE), now_ms, effects)
            self.withdraw(name, taken, "order")
        return list(late)

    def _lose_holder(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """The durable goes to a subscriber that waits for it. What was late has counted; the rest does not."""
        self.leases.of[name].does_not_count()
        self.detach(name, now_ms, effects)
        effects.append(Displaced(self.shelf.store, self.name, name, "lapsed"))

    def _behind(self, holder: Holder, lapsed: Sequence[Lease]) -> list[tuple[int, int]]:
        """What the subscriber has in its buffer behind these, and may not get before them."""
        del holder, lapsed
        return []

    def purge(self, now_ms: int) -> tuple[int, int, list[Residue]]:
        """Forget everything that the durable keeps, leases included.

        Returns messages and bytes, and the residues to be given back in further steps. Cost: O(messages outside the
        backlog), and three steps.
        """
        messages, size = self.pending, self.pending_bytes
        self.rewind_to = None
        retained = expiry.leave_retained(self, now_ms)
        delayed = Residue.of_delayed(self.backlog, now_ms)
        self.pending -= self.backlog.delayed_total
        self.backlog.forget_delayed()
        for name, holder in self.leases.of.items():
            while holder.runs:
                first = holder.runs[0][0]
                self.release(first, self.remove_held(name, first, _HIGH, "purged"))
        for first, last, _ in self.redelivery.all_runs():
            self.release(first, last)
        self.redelivery = RedeliveryQueue()
        for seq in self.dying:
            self.release(seq, seq)
        self.dying, self.parked_ms = {}, None
        left = [delayed, retained, self._leave_backlog(now_ms)]
        for residue in left:
            if not residue.is_done:
                residue.step(now_ms)
        return messages, size, [residue for residue in left if not residue.is_done]

    def _leave_backlog(self, now_ms: int) -> Residue:
        """Begin a new backlog after the store's last message; returns the residue of the old one."""
        old, next_seq = self.backlog, self.shelf.counts.next_seq
        residue = Residue(old, next_seq, self.pending, now_ms, {})
        # What the cursor passed is acknowledged or set apart; delayed messages of its block must not be seen again.
        old.start = old.cursor
        self.backlog = Backlog(self.shelf, old.matcher, next_seq)
        if old.floor is not None:
            self.backlog.move_floor(next_seq)
            old.move_floor(None)
        self.pending = self.pending_bytes = 0
        return residue

    def drop(self, kept: Kept) -> bool:
        """Delete one message; whether the durable had it. For its subscriber it is stale."""
        seq = kept.seq
        # A rewind keeps the dying from coming again, so these are not among what is wanted.
        if seq not in self.dying and not self.wants(kept):
            return False
        subscriber = self.leases.holder_of(seq)
        if subscriber is not None:
            self.remove_held(subscriber, seq, seq, "deleted")
        elif self.take_dying(seq) is None and self.redelivery.remove(seq) is None:
            if self.is_swept(kept):
                return False
            if seq >= self.backlog.cursor:
                self.backlog.exclude(seq, seq)
            elif self.backlog.is_passed_delayed(kept.seq, kept.deliver_at_ms):
                self.backlog.delayed_total -= 1
                self.backlog.exclude(seq, seq)
            else:
                return self.release_one_retained(seq)
        self.gone(seq, seq, "deleted")
        return True

    def redeliver(self, command: Redeliver) -> Redelivered:
        """Put parked messages back, counted from one; expired ones are removed and not counted.

        Cost: O(parked), and reads ``count`` if there is a matcher.
        """
        ranges = SequenceSet(sorted(command.messages))
        candidates = [seq for seq in self.dying if seq > command.after and (not command.messages or seq in ranges)]
        seqs = nsmallest(max(1, command.count) + 1, candidates)
        more = len(seqs) > max(1, command.count)
        if more:
            seqs.pop()
        if command.match:
            matcher, shelf = Matcher.parse(command.match), self.shelf
            read = (kept for seq in seqs for kept in shelf.messages.read(shelf.store, seq, seq))
            chosen = [kept.seq for kept in read if matcher.matches(kept.fields)]
        else:
            chosen = seqs
        put_back = 0
        for seq in chosen:
            self.take_dying(seq)
            if expiry.without_expired(self, seq, seq, command.at_ms):
                self._put_back(seq)
                put_back += 1
        return Redelivered(put_back, seqs[-1] if more else 0)

    def _put_back(self, seq: int) -> None:
        """A dying message waits again. A rewind may have excluded it from the backlog."""
        backlog = self.backlog
        if seq in backlog.excluded:
            backlog.excluded.remove(seq, seq)
            if seq >= backlog.cursor:
                backlog.cursor_ms = min(backlog.cursor_ms, self.shelf.counts.published_ms(seq))
                return
        self.redelivery.add(seq, seq, HANDED_OUT)

    def kept(self) -> SequenceSet:
        """Every message that the durable holds a reference to. Cost: O(backlog); for checks."""
        numbers = SequenceSet(sorted((seq, seq) for seq, _ in self.browse(0, _HIGH)))
        if self.backlog.floor is not None:
            for first, last in expiry.retained(self, self.backlog.floor, self.backlog.cursor):
                numbers.add(first, last)
        return numbers

    def check(self) -> None:
        """Every invariant of the parts; each message is in one place; totals are correct. Cost: O(backlog)."""
        self.backlog.check()
        self.leases.check()
        self.redelivery.check()
        self.removed.check()
        pending = [seq for seq, _ in self.browse(0, _HIGH)]
        assert len(set(pending)) == len(pending), "a message is in one place"
        assert len(pending) == self.pending, "the total is that of the messages"
        assert sum(self.shelf.counts.size(seq, seq) for seq in pending) == self.pending_bytes, "and so are the bytes"
        assert self.undelivered >= 0, "the backlog has no less than nothing"
        arrivals = self.redelivery.arrivals
        if arrivals is not None:
            waiting = [seq for first, last, _ in self.redelivery.runs for seq in range(first, last + 1)]
            first_ms = min((self.arrived_ms(seq) for seq in waiting), default=None)
            assert arrivals.earliest_ms() == first_ms, "the index has the first of those that wait"
        if self.parked_ms is not None:
            assert set(self.parked_ms.items()) == set(self.dying), "each of the parked has its time"


class Standard(Consumption):
    """One subscriber at a time: its holder, until it leaves, or loses the durable to another.

    A newer session of its name replaces it at once. Another name takes over, or is refused while it is there.
    """

    exclusive = True

    def _behind(self, holder: Holder, lapsed: Sequence[Lease]) -> list[tuple[int, int]]:
        """Every later message: one subscriber gets all, in order."""
        return holder.unstarted(lapsed[0][0], _HIGH)
