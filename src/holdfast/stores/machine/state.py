"""The state machine of a cluster: ``apply(command)`` changes the state and returns a result.

``apply`` is the only way to change the state, both in operation and during recovery. It either executes the whole
command, or raises ``HoldfastError`` and changes nothing. The result depends only on the state, the command, and the
messages that the ports return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from holdfast.errors import Backpressure, Code, InvalidRequest, NotFound
from holdfast.stores.definitions.cluster import STATISTICS_STORE, DurableDefinition, DurableType, StoreDefinition
from holdfast.stores.definitions.reader import STATISTICS, check_name
from holdfast.stores.durables import expiry
from holdfast.stores.durables.backlog import expires_ms
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.keyed import LastValue
from holdfast.stores.durables.map import MapDurable
from holdfast.stores.machine import commit_parts, map_commands, redefine, snapshots
from holdfast.stores.machine.store import Cluster, Durable, Ports, Store
from holdfast.stores.matching import Matcher
from holdfast.stores.values import commands
from holdfast.stores.values.commands import Command, Done, Result
from holdfast.stores.values.deadlines import Budget
from holdfast.stores.values.effects import Applied, Displaced, Effect, Ready, Withdrawn
from holdfast.stores.values.messages import MessageBatch
from holdfast.stores.values.ports import BLOCK_MESSAGES, Blocks, Kept, KeyEntries, Messages

_Outcome = tuple[Result, bool]  # a result, and whether anything changed
DEAD_LETTER_BYTES_MAX = 1 << 31
"""A dead letter is never refused for its size: it was accepted once, and has a few fields more now."""
SUBSCRIBERS_MAX = 65_536
"""Attached to one durable: their names are in memory, and in each snapshot."""


class State(Cluster):
    """The whole state. ``stores`` is for reading."""

    def __init__(self, messages: Messages, blocks: Blocks, entries: KeyEntries, volatile: Ports | None = None) -> None:
        super().__init__(messages, blocks, entries, volatile)
        self._handlers: dict[type[Command], Callable[..., _Outcome]] = {
            commands.Publish: self._publish,
            commands.Deliver: self._deliver,
            commands.Acknowledge: self._acknowledge,
            commands.Attach: self._attach,
            commands.Detach: self._detach,
            commands.Unsubscribe: self._unsubscribe,
            commands.Expire: self._expire,
            commands.DeadLetter: self._dead_letter,
            commands.Purge: self._purge,
            commands.Drop: self._drop,
            commands.Rewind: self._rewind,
            commands.Redefine: partial(redefine.redefine, self),
            commands.MapChange: partial(map_commands.change, self),
            commands.MapLock: partial(map_commands.lock, self),
            commands.MapUnlock: partial(map_commands.unlock, self),
            commands.Restarted: self._restarted,
            commands.Redeliver: self._redeliver,
            commands.Resend: self._resend,
            commands.CommitParts: self._commit_parts,
            commands.Inherit: self._inherit,
        }
        """The method of each command. A ``match`` costs up to thrice as much: it looks at one class after another."""

    def apply(self, command: Command) -> Applied:
        """Carry out one command: by its method in ``_handlers``. Raises ``HoldfastError``: then nothing has changed."""
        volatile = self.is_volatile(command)
        last_ms = self.volatile_at_ms if volatile else self.at_ms
        assert command.at_ms >= last_ms, "time never goes back within one log"
        effects: list[Effect] = []
        result, changed = self._handlers[type(command)](command, effects)
        if self.withdrawn:
            effects += self.withdrawn
            self.withdrawn.clear()
        if changed and volatile:
            self.volatile_at_ms = command.at_ms
        elif changed:
            self.at_ms = command.at_ms
        return Applied(result, effects, changed)

    def _commit_parts(self, command: commands.CommitParts, effects: list[Effect]) -> _Outcome:
        done = commit_parts.carry_out(self, command, lambda part: self._handlers[type(part)](part, effects)[0])
        effects += [
            Withdrawn(part.store, part.durable, part.subscriber, part.ack, "acknowledged")
            for part in command.parts
            if isinstance(part, commands.Acknowledge)
        ]
        return done, True

    def _publish(self, command: commands.Publish, effects: list[Effect]) -> _Outcome:
        store = self.store(command.store)
        result = store.publish(command, effects)
        for name in store.ageing:
            self.arm(store, name)
        return result, result.duplicates < len(command.messages) or bool(effects)

    def _attach(self, command: commands.Attach, effects: list[Effect]) -> _Outcome:
        store = self.store(command.store)
        durable = store.durables.get(command.durable)
        created = durable is None
        if durable is None:
            definition = self._dynamic(store.definition, command)
            if definition.type is DurableType.LAST_VALUE:
                LastValue.check_key(definition, command.key)
            durable = store.add_dynamic(definition, command.at_ms, command.drawn)
        else:
            self._check_same(store.definition, durable.definition, command)
            _require_room(store.name, durable, command.subscriber)
        displaced = ""
        if isinstance(durable, Consumption):
            displaced = durable.attach(command, effects)
        elif isinstance(durable, LastValue):
            if command.subscriber in durable.attached:
                displaced = command.subscriber
                effects.append(Displaced(store.name, command.durable, displaced, "replaced"))
            if durable.attach(command.subscriber, command.key):
                effects.append(Ready(store.name, command.durable))
        else:
            durable.attached[command.subscriber] = None
        store.idle_since_ms.pop(command.durable, None)
        self.arm(store, command.durable)
        return commands.Attached(created, displaced), True

    def _dynamic(self, store: StoreDefinition, command: commands.Attach) -> DurableDefinition:
        template = store.template(command.template)
        if template is None:
            raise NotFound(
                "durable does not exist, and no template is given to create it",
                facts={"store": store.name, "durable": command.durable, "template": command.template or None},
                hint="define the durable, or name a template such as shared",
            )
        check_name("durable", command.durable)
        return template.durable(command.durable, Matcher.parse(command.matcher) if command.matcher else None)

    def _check_same(self, store: StoreDefinition, definition: DurableDefinition, command: commands.Attach) -> None:
        if command.matcher and Matcher.parse(command.matcher) != definition.matcher:
            raise InvalidRequest(
                "the durable has another matcher",
                code=Code.MATCHER_MISMATCH,
                hint="subscribe without a matcher, or with the durable's own",
                facts={"store": store.name, "durable": definition.name, "matcher": definition.matcher.json().decode()},
            )
        template = store.template(command.template) if command.template else None
        if template is not None and template.pattern.type is not definition.type:
            raise InvalidRequest(
                "the durable is of another type",
                code=Code.TYPE_MISMATCH,
                facts={"store": store.name, "durable": definition.name, "type": str(definition.type)},
            )

    def _detach(self, command: commands.Detach, effects: list[Effect]) -> _Outcome:
        store, durable = self.find(command.store, command.durable)
        if isinstance(durable, Consumption):
            durable.detach(command.subscriber, command.at_ms, effects)
        elif isinstance(durable, LastValue):
            if not durable.detach(command.subscriber):
                raise NotFound(
                    "this subscriber is not attached", durable=command.durable, subscriber=command.subscriber
                )
        else:
            map_commands.detach(store, durable, command.subscriber, effects)
        if not durable.attached:
            store.idle_since_ms[command.durable] = command.at_ms
        self.arm(store, command.durable)
        return Done(), True

    def _unsubscribe(self, command: commands.Unsubscribe, effects: list[Effect]) -> _Outcome:
        store, durable = self.find(command.store, command.durable)
        if not durable.definition.dynamic:
            raise InvalidRequest(
                "a static durable is deleted by a definition without it", store=store.name, durable=command.durable
            )
        self.delete(store, command.durable, "unsubscribed", command.at_ms, effects)
        return Done(), True

    def _deliver(self, command: commands.Deliver, effects: list[Effect]) -> _Outcome:
        store, durable = self.find(command.store, command.durable)
        if isinstance(durable, Consumption):
            before = durable.position()
            runs = durable.deliver(command.subscriber, command.count, command.at_ms, effects)
            if durable.position() == before:
                return commands.Delivered(runs), False
            self.arm(store, command.durable)
            return commands.Delivered(runs), True
        if isinstance(durable, MapDurable):
            raise _not_for(durable, "a map is read by key, and watched")
        entry = durable.deliver(command.subscriber) if command.count > 0 else None
        return commands.Delivered([(entry.revision, entry.revision, 1)] if entry is not None else []), entry is not None

    def _acknowledge(self, command: commands.Acknowledge, effects: list[Effect]) -> _Outcome:
        store, durable = self.find(command.store, command.durable)
        if not isinstance(durable, Consumption):
            # There is nothing to settle; a client that acknowledges everything need not know the type.
            return commands.Acknowledged(0, []), False
        started = [(first, last) for first, last, _ in command.started or ()]
        _check_ranges(chain(command.ack, command.extend, started))
        result = durable.acknowledge(command, effects)
        self.arm(store, command.durable)
        marked = command.started is not None or bool(command.unsent)
        is_settled = result.acknowledged > 0 or bool(result.causes)
        return result, is_settled or bool(command.extend) or marked

    def _dead_letter(self, command: commands.DeadLetter, effects: list[Effect]) -> _Outcome:
        store, durable = self.find(command.store, command.durable)
        if not isinstance(durable, Consumption) or command.seq not in durable.dying:
            raise NotFound("this message is not dying", store=store.name, durable=command.durable, seq=command.seq)
        result = commands.Published(0, 0, 0, 0)
        if command.to_store:
            target = self.store(command.to_store)
            batch = MessageBatch([command.message], DEAD_LETTER_BYTES_MAX, command.at_ms)
            if not target.wanted(batch):
                # It stays with the dying messages and is reported again: an unwanted dead letter would be lost.
                raise NotFound("no durable of the dead-letter store wants the message", store=target.name)
            seq, unmatched = target.accept(batch, effects)
            result = commands.Published(seq, seq, 0, unmatched)
            for name in target.ageing:
                self.arm(target, name)
        durable.buried(command.seq)
        self.arm(store, command.durable)
        return result, True

    def _restarted(self, command: commands.Restarted, effects: list[Effect]) -> _Outcome:
        del effects
        changed = False
        for store in self.stores.values():
            for name, durable in store.durables.items():
                if isinstance(durable, Consumption) and durable.restarted(command.at_ms):
                    changed = True
                    self.arm(store, name)
        return Done(), changed

    def _inherit(self, command: commands.Inherit, effects: list[Effect]) -> _Outcome:
        del effects
        if command.history == self.lineage.history:
            return Done(), False
        logged = [store for name, store in self.stores.items() if name not in self.volatile_names]
        self.lineage.go_on(command.history, [(store.id, store.counts.next_seq - 1) for store in logged])
        return Done(), True

    def _redeliver(self, command: commands.Redeliver, effects: list[Effect]) -> _Outcome:
        store, durable = self.find(command.store, command.durable)
        _check_ranges(command.messages)
        if not isinstance(durable, Consumption):
            raise _not_for(durable, "only a standard or shared durable redelivers messages")
        before = durable.pending
        result = durable.redeliver(command)
        if result.messages and durable.ready():
            effects.append(durable.ready_effect)
        self.arm(store, command.durable)
        return result, result.messages > 0 or durable.pending < before

    def _resend(self, command: commands.Resend, effects: list[Effect]) -> _Outcome:
        target, durable = self.find(command.to_store, command.to_durable)
        if not isinstance(durable, Consumption):
            raise _not_for(durable, "a dead letter goes back to a standard or shared durable")
        letter = self._letter(command) if command.store else None
        batch = MessageBatch([command.message], DEAD_LETTER_BYTES_MAX, command.at_ms)
        seq = target.accept_for(durable, batch, effects)
        for name in (*target.ageing, command.to_durable):
            self.arm(target, name)
        if letter is not None:
            letter[0].drop(letter[1])
            self.arm(self.stores[command.store], command.durable)
        return commands.Published(seq, seq, 0, 0), True

    def _letter(self, command: commands.Resend) -> tuple[Consumption, Kept]:
        """A dead letter and its durable. Raises ``NotFound`` if it cannot be taken from there."""
        store, durable = self.find(command.store, command.durable)
        stored = store.shelf.messages.read(store.name, command.seq, command.seq)
        if not isinstance(durable, Consumption) or not stored or not durable.is_waiting(command.seq):
            raise NotFound(
                "the durable has no such message that no subscriber holds",
                store=store.name,
                durable=command.durable,
                seq=command.seq,
            )
        return durable, stored[0]

    def _purge(self, command: commands.Purge, effects: list[Effect]) -> _Outcome:
        store, durable = self.find(command.store, command.durable)
        if isinstance(durable, MapDurable):
            messages, size = durable.pending, durable.pending_bytes
            map_commands.clear(store, durable, command.at_ms, "deleted", 0, effects)
        else:
            messages, size = store.purge(command.durable, command.at_ms)
        self.arm(store, command.durable)
        return commands.Purged(messages, size), True

    def _drop(self, command: commands.Drop, effects: list[Effect]) -> _Outcome:
        store, durable = self.find(command.store, command.durable)
        stored = store.shelf.messages.read(store.name, command.seq, command.seq)
        if isinstance(durable, Consumption):
            done = bool(stored) and store.counts.is_kept(command.seq) and durable.drop(stored[0])
        else:
            dropped = durable.drop(stored)
            done = dropped is not None
            if dropped is not None and isinstance(durable, MapDurable):
                map_commands.notify_deleted(store, durable, [dropped], effects)
        if not done:
            raise NotFound(
                "the durable has no such message", store=store.name, durable=command.durable, seq=command.seq
            )
        if isinstance(durable, Consumption) and durable.ready():
            # Its holder has room now, and its key may be free.
            effects.append(durable.ready_effect)
        self.arm(store, command.durable)
        return Done(), True

    def _rewind(self, command: commands.Rewind, effects: list[Effect]) -> _Outcome:
        store, target = self.find(command.store, command.durable)
        durable = _retaining(target)
        changed = expiry.rewind(durable, command)
        if changed and durable.ready():
            effects.append(durable.ready_effect)
        self.arm(store, command.durable)
        return Done(), changed

    def rewind_reads(self, command: commands.Rewind) -> Iterator[tuple[int, int]]:
        """The ranges that this rewind will read, the newest first. Raises what it would be refused with."""
        return expiry.rewind_reads(_retaining(self.find(command.store, command.durable)[1]), command)

    def _expire(self, command: commands.Expire, effects: list[Effect]) -> _Outcome:
        due_ms = self.next_deadline_ms(volatile=command.volatile)
        if due_ms is None or due_ms > command.at_ms:
            return commands.Expired(0, 0, False), False
        now_ms, budget = command.at_ms, Budget(max(1, command.count), max(1, command.looks))
        deadlines = self.volatile_deadlines if command.volatile else self.deadlines
        contended = frozenset(command.contended)
        total = durables = 0
        visited: set[tuple[str, str]] = set()
        again: list[tuple[str, str]] = []
        while not budget.is_spent and (key := deadlines.pop(now_ms)) is not None:
            if key in visited:
                again.append(key)
                continue
            visited.add(key)
            store, durable = self.stores[key[0]], self.stores[key[0]].durables[key[1]]
            budget.looks -= 1
            since_ms, ttl_ms = store.idle_since_ms.get(key[1]), durable.definition.durable_ttl_ms
            if ttl_ms and since_ms is not None and since_ms + ttl_ms <= now_ms:
                self.delete(store, key[1], "durable_ttl", now_ms, effects)
                durables += 1
                continue
            if isinstance(durable, Consumption):
                total += durable.expire(now_ms, budget, effects, contended=key in contended)
                if not durable.leases.of:
                    store.idle_since_ms.setdefault(key[1], now_ms)
            elif isinstance(durable, MapDurable):
                total += map_commands.expire(store, durable, now_ms, budget, effects)
            else:
                total += len(durable.expire(now_ms, budget))
            self.arm(store, key[1])
        for name, of in again:
            self.arm(self.stores[name], of)
        for store in self.stores.values():
            if (store.name in self.volatile_names) is command.volatile:
                total += self._expire_store(store, now_ms, budget, effects)
        next_ms = self.next_deadline_ms(volatile=command.volatile)
        return commands.Expired(total, durables, next_ms is not None and next_ms <= now_ms), True

    def _expire_store(self, store: Store, now_ms: int, budget: Budget, effects: list[Effect]) -> int:
        """Expire what belongs to the store itself; returns how many messages were removed."""
        total = 0
        if store.residues and not budget.is_spent:
            budget.looks -= BLOCK_MESSAGES
            total += store.residues[0].step(now_ms)
            if store.residues[0].is_done:
                del store.residues[0]
        if store.keyed_residues and not budget.is_spent:
            total += map_commands.give_back(store, budget, effects)
        while not budget.is_spent and (number := store.counts.due_blocks.pop(now_ms)) is not None:
            budget.looks -= BLOCK_MESSAGES
            total += self._sweep(store, number, now_ms)
        store.publishers.expire(now_ms, self.definition.publisher_ttl_ms)
        budget.messages -= total
        return total

    def _sweep(self, store: Store, number: int, now_ms: int) -> int:
        """Carry out the ended own times-to-live of one block; returns how many messages durables released."""
        block = store.counts.block(number)
        if block is None:
            return 0
        swept_ms, next_ms, total = block.swept_ms, 0, 0
        first = number * BLOCK_MESSAGES
        last = min(first + BLOCK_MESSAGES, store.counts.next_seq) - 1
        for kept in store.shelf.messages.read(store.name, first, last):
            end_ms = expires_ms(kept)
            if end_ms > now_ms:
                next_ms = min(next_ms or end_ms, end_ms)
            elif end_ms > swept_ms and store.counts.is_kept(kept.seq):
                total += self._expire_own(store, kept)
        store.counts.swept(number, now_ms, next_ms)
        return total

    def _expire_own(self, store: Store, kept: Kept) -> int:
        total = 0
        for name in store.wanting(kept.fields):
            durable = store.durables[name]
            gone = False
            if isinstance(durable, Consumption):
                gone = expiry.expire_own(durable, kept)
            elif isinstance(durable, LastValue):
                gone = durable.keyed.lose_message(kept, "own_ttl") is not None
            if gone:
                total += 1
                self.arm(store, name)
        for residue in list(store.residues):
            total += residue.expire_own(kept)
            if residue.is_done:
                store.residues.remove(residue)
        return total

    def make_statistics(self, identity: int) -> None:
        """Make the store that no definition has, where it is not there. Outside every log: not by a command."""
        if STATISTICS not in self.stores:
            self.make_store(STATISTICS_STORE, identity)

    def remove_statistics(self) -> None:
        """Remove it with everything in it, while no subscriber is attached."""
        if STATISTICS in self.stores:
            redefine.delete_store(self, STATISTICS, [])

    def snapshot(self) -> bytes:
        """Everything that the ports do not keep."""
        return snapshots.snapshot(self)

    def restore(self, data: bytes) -> None:
        """Load a snapshot into a new state. Raises ``CorruptData``."""
        snapshots.restore(self, data)


def _require_room(store: str, durable: Durable, subscriber: str) -> None:
    """Raise ``Backpressure`` (too_many_subscribers) where a durable has no room for one more name."""
    if len(durable.attached) >= SUBSCRIBERS_MAX and subscriber not in durable.attached:
        raise Backpressure(
            "the durable has too many subscribers",
            code=Code.TOO_MANY_SUBSCRIBERS,
            hint="use fewer names, or spread the subscribers over durables; a name that does not poll any more is "
            "detached after subscriber_timeout",
            facts={"store": store, "durable": durable.definition.name, "limit": SUBSCRIBERS_MAX},
        )


def _check_ranges(ranges: Iterable[tuple[int, int]]) -> None:
    for first, last in ranges:
        if first > last:
            raise InvalidRequest("a range of numbers begins with its lowest", first=first, last=last)


def _retaining(durable: Durable) -> Consumption:
    if isinstance(durable, Consumption) and durable.backlog.floor is not None:
        return durable
    raise _not_for(durable, "only a durable with a retention_time can be rewound")


def _not_for(durable: Durable, rule: str) -> InvalidRequest:
    definition = durable.definition
    return InvalidRequest(rule, code=Code.TYPE_MISMATCH, durable=definition.name, type=str(definition.type))
