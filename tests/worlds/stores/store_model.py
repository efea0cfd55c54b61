"""The plain model of all stores: what each command may answer, and what is kept afterwards.

It judges every command with its answer or refusal, in the order of the log, and raises ``PromiseBroken`` where the
answer is not the expected one. Commands of a durable go to its model (``consumed_model``, ``keyed_model``). After a
crash the model is made again from the records that are left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import msgspec
from tests.worlds.stores.consumed_model import ConsumedModel
from tests.worlds.stores.keyed_model import LastValueModel, MapModel
from tests.worlds.stores.promises import promise

from holdfast.errors import Code, HoldfastError
from holdfast.stores.definitions.cluster import (
    ClusterDefinition,
    DurableDefinition,
    DurableType,
    definition_of,
)
from holdfast.stores.values import commands
from holdfast.stores.values.commands import Command, Result
from holdfast.stores.values.effects import Changed, DeadLettering, Displaced, Effect, Withdrawn
from holdfast.wire.parts import Message

__all__ = ["ClusterModel", "DurableModel", "StoreModel", "size_of"]

DurableModel = ConsumedModel | LastValueModel | MapModel
Answer = Result | HoldfastError
Kind = TypeVar("Kind")
_OnDurable = (
    commands.Attach
    | commands.Detach
    | commands.Unsubscribe
    | commands.Deliver
    | commands.Acknowledge
    | commands.Purge
    | commands.Drop
    | commands.Rewind
    | commands.Redeliver
)


def size_of(message: Message) -> int:
    """Bytes of body, key and fields; a number or truth value of a field counts eight."""
    size = len(message.body) + (len(message.key.encode()) if message.key is not None else 0)
    for name, value in message.fields.items():
        size += len(name.encode()) + (len(value.encode()) if isinstance(value, str) else 8)
    return size


@dataclass(slots=True)
class PublisherModel:
    """What one publisher has published: the store's number of each of its own."""

    seqs: dict[int, int] = field(default_factory=dict[int, int])
    used_ms: int = 0


Effects = Sequence[Effect] | None
CameBack = tuple[Collection[int], Sequence[str], Collection[int]]
"""Of one durable, see ``ConsumedModel.came_back``."""
"""The effects of a command; None where it is only followed."""


class StoreModel:
    """One store."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.next_seq = 1
        self.durables: dict[str, DurableModel] = {}
        self.idle_since_ms: dict[str, int] = {}
        self.publishers: dict[str, PublisherModel] = {}
        self.forgotten: set[str] = set()

    def kept(self) -> set[int]:
        """Every message that some durable keeps."""
        return set[int]().union(*(durable.kept() for durable in self.durables.values()))

    def add(self, definition: DurableDefinition, now_ms: int) -> None:
        """A durable is made."""
        match definition.type:
            case DurableType.LAST_VALUE:
                model: DurableModel = LastValueModel(definition)
            case DurableType.MAP:
                model = MapModel(definition)
            case _:
                model = ConsumedModel(definition)
        self.durables[definition.name] = model
        self.idle_since_ms[definition.name] = now_ms

    def accept(self, messages: Sequence[Message], publisher: str, now_ms: int) -> tuple[int, int]:
        """Follow messages that are new; returns the first number and how many no durable keeps."""
        first = self.next_seq
        batch = [(seq, message, size_of(message)) for seq, message in enumerate(messages, first)]
        self.next_seq += len(messages)
        wanted: set[int] = set()
        for durable in self.durables.values():
            if isinstance(durable, ConsumedModel):
                wanted |= durable.publish(batch, publisher, now_ms)
            elif isinstance(durable, LastValueModel):
                wanted |= durable.publish(batch, now_ms)
        return first, len(messages) - len(wanted)


class ClusterModel:
    """All stores. ``expire_done`` is False between two steps of one long ``Expire``: then nothing else may come."""

    def __init__(self) -> None:
        self.definition = ClusterDefinition()
        self.stores: dict[str, StoreModel] = {}
        self.expire_done = True
        self._stopped_ms = 0
        """The time of the last ``Expire`` that left something due."""
        self.swept_ms = 0
        """When every deadline was last carried out."""
        self._held_before: dict[tuple[str, str, str], set[int]] | None = None
        """Before the command, or the first of several that carry out one expiry; None after a crash amid these."""
        self._withdrawn: list[Withdrawn] = []
        self._displaced: set[tuple[str, str, str]] = set()
        """Who lost a durable because it was late, as the effects say."""
        self._lost: set[tuple[str, str, str]] = set()
        """Who did."""
        """What was held, and what was taken back, since ``expire_done``."""
        self._gave_up: set[tuple[str, str]] = set()
        """Durables of which a subscriber gave something up itself."""
        self._is_left = False
        self._announced: dict[tuple[str, str, int], DeadLettering] | None = {}
        """The dead letters announced since ``expire_done``; None where that is not known."""

    # ---- questions --------------------------------------------------------------------------------------------------

    def consumed(self) -> list[tuple[str, str, ConsumedModel]]:
        """Every standard and shared durable with its store and name."""
        return [
            (store.name, name, durable)
            for store in self.stores.values()
            for name, durable in store.durables.items()
            if isinstance(durable, ConsumedModel)
        ]

    def dying(self) -> dict[tuple[str, str, int], DeadLettering]:
        """Every message that waits for its dead letter, as it must be announced."""
        return {
            (store, name, item.seq): DeadLettering(
                store, name, item.seq, item.cause, item.deliveries, durable.definition.dead_letter_store
            )
            for store, name, durable in self.consumed()
            for item in durable.items.values()
            if item.place == "dying" and not durable.parks
        }

    def next_event_ms(self, now_ms: int) -> int | None:
        """The earliest time to come at which a message, a value or a lock changes by itself."""
        times: list[int | None] = []
        for store in self.stores.values():
            for name, durable in store.durables.items():
                times.append(durable.next_event_ms(now_ms))
                ttl_ms = durable.definition.durable_ttl_ms
                if ttl_ms and name in store.idle_since_ms:
                    times.append(store.idle_since_ms[name] + ttl_ms)
                if isinstance(durable, MapModel):
                    times.extend(lock.until_ms for lock in durable.locks.values())
        return min((at_ms for at_ms in times if at_ms is not None and at_ms > now_ms), default=None)

    def servable(self, now_ms: int) -> set[tuple[str, str]]:
        """Durables with a subscriber that could be given something now."""
        found: set[tuple[str, str]] = set()
        for store in self.stores.values():
            for name, durable in store.durables.items():
                if isinstance(durable, ConsumedModel):
                    serves = any(
                        len(durable.held(subscriber)) < durable.definition.window
                        and durable.deliverable(now_ms, subscriber)
                        for subscriber in durable.subscribers
                    )
                elif isinstance(durable, LastValueModel):
                    serves = any(
                        key in durable.values and durable.values[key].revision > seen
                        for key, seen in durable.seen.values()
                    )
                else:
                    serves = False
                if serves:
                    found.add((store.name, name))
        return found

    def sweep(self, now_ms: int) -> None:
        """Follow the end of what expired, where no deadline is left in the machine."""
        for _, _, durable in self.consumed():
            durable.sweep(now_ms)
        for _, _, found in self.maps():
            found.swept()

    # ---- judging ----------------------------------------------------------------------------------------------------

    def judge(
        self, command: Command, answer: Answer, effects: Sequence[Effect] | None, *, is_left: bool = False
    ) -> None:
        """Raise ``PromiseBroken`` unless this is what the command must answer; then follow it.

        ``effects`` are None for records that are only followed: they were judged when they were carried out.
        ``is_left``: the machine has left a part of what the command discards to the next ``Expire``, which tells it.
        """
        before = self.dying()
        if effects is not None and self.expire_done and not self._is_left:
            self._begin_to_tell()
        self._is_left = is_left
        if isinstance(command, commands.Expire):
            self._steps_of_clears(effects)
        match command:
            case commands.Redefine():
                self._define(self._with(command.parts), command.at_ms, answer)
            case commands.Publish():
                self._publish(command, answer)
            case commands.Expire():
                self._expire(command, answer)
            case commands.DeadLetter():
                self._dead_letter(command, answer)
            case commands.Resend():
                self._resend(command, answer)
            case commands.Restarted():
                _done(command, answer)
                for _, _, durable in self.consumed():
                    durable.restarted(command.at_ms)
            case commands.MapChange():
                self._map_change(command, answer, effects)
            case commands.MapLock() | commands.MapUnlock():
                self._locks(command, answer)
            case _:
                self._on_durable(command, answer, effects)
        if effects is None:
            # Deaths were announced when they were carried out; a recovered machine announces those that wait.
            self._announced = None if not self.expire_done else {}
            self._held_before = None
            return
        self._withdrawn += [effect for effect in effects if isinstance(effect, Withdrawn)]
        self._displaced |= {
            (effect.store, effect.durable, effect.subscriber)
            for effect in effects
            if isinstance(effect, Displaced) and effect.cause == "lapsed"
        }
        if isinstance(command, commands.Acknowledge | commands.Attach | commands.Detach):
            self._gave_up.add((command.store, command.durable))
        if self.expire_done and not is_left:
            self._check_withdrawn()
        if self._announced is not None:
            self._announced.update(((e.store, e.durable, e.seq), e) for e in effects if isinstance(e, DeadLettering))
        if self.expire_done and self._announced is not None:
            self._check_dying(before, self._announced)
        self._announced = {} if self.expire_done else self._announced

    def _held(self) -> dict[tuple[str, str, str], set[int]]:
        """What each subscriber holds, by store and durable."""
        return {
            (store, name, subscriber): {item.seq for item in durable.held(subscriber)}
            for store, name, durable in self.consumed()
            for subscriber in durable.subscribers
        }

    def _check_withdrawn(self) -> None:
        """A subscriber is told of each message that it holds no more and did not give up, and of no other."""
        if self._held_before is None:
            return
        told: dict[tuple[str, str, str], set[int]] = {}
        for each in self._withdrawn:
            numbers = told.setdefault((each.store, each.durable, each.subscriber), set())
            numbers |= {seq for first, last in each.ranges for seq in range(first, last + 1)}
        promise(
            self._displaced == self._lost, "a standard durable has one consumer", told=self._displaced, lost=self._lost
        )
        for key, held in self._held().items():
            if key[:2] not in self._gave_up:
                lost = self._held_before.get(key, set()) - held
                promise(told.get(key, set()) == lost, "what is taken back is told", whom=key, told=told, lost=lost)

    def maps(self) -> list[tuple[str, str, MapModel]]:
        """Every map with its store and name."""
        return [
            (store.name, name, durable)
            for store in self.stores.values()
            for name, durable in store.durables.items()
            if isinstance(durable, MapModel)
        ]

    def came_back(self, back: Mapping[tuple[str, str], CameBack]) -> None:
        """Follow what an ``Expire`` took back before a crash stopped the ones after it, by store and durable."""
        for store, name, durable in self.consumed():
            seqs, lost, forgotten = back.get((store, name), ((), (), ()))
            durable.came_back(seqs, lost, forgotten, self._stopped_ms)
            if lost:
                self.stores[store].idle_since_ms[name] = self._stopped_ms
        self._begin_to_tell()

    def _begin_to_tell(self) -> None:
        """The effects from here on are of one command, or of all steps of one expiry."""
        self._held_before, self._withdrawn, self._displaced, self._lost = self._held(), [], set(), set()
        self._gave_up = set()

    def _steps_of_clears(self, effects: Effects) -> None:
        """What an ``Expire`` reports to watchers of clears; where that is not known, it may be reported already."""
        for store, name, durable in self.maps():
            if effects is None:
                durable.unsure |= bool(durable.unreported)
                continue
            for effect in effects:
                if isinstance(effect, Changed) and (effect.store, effect.map) == (store, name):
                    for change in effect.changes:
                        if change[2] in ("removed", "deleted"):
                            durable.reported_later(change)

    def _check_dying(
        self, before: Collection[tuple[str, str, int]], announced: Mapping[tuple[str, str, int], DeadLettering]
    ) -> None:
        now = self.dying()
        for key, effect in announced.items():
            promise(now.get(key) == effect, "dead letters keep their cause", announced=effect, is_=now.get(key))
        for key, effect in now.items():
            promise(key in before or key in announced, "every dead letter is announced", unannounced=effect)

    def _with(self, parts: Iterable[commands.DefinitionPart]) -> ClusterDefinition:
        """The definition with these parts, by way of its whole document."""
        document = self.definition.document()
        for part in parts:
            *sections, name = part.path
            place = document
            for section in sections:
                place = cast("dict[str, object]", place[section])
            if not part.document:
                del place[name]
                continue
            given = msgspec.json.decode(part.document, type=dict[str, object])
            if len(part.path) == 2:
                known = cast("dict[str, object]", place.get(name, {}))
                given |= {kind: known.get(kind, {}) for kind in ("durables", "templates")}
            place[name] = given
        return definition_of(document)

    def _define(self, definition: ClusterDefinition, now_ms: int, answer: Answer) -> None:
        promise(isinstance(answer, commands.Done), "a definition is carried out", answer=answer)
        for name in [name for name in self.stores if name not in definition.stores]:
            del self.stores[name]
        for name, wanted in definition.stores.items():
            store = self.stores.setdefault(name, StoreModel(name))
            before = self.definition.stores[name].durables if name in self.definition.stores else {}
            for gone in [durable for durable in before if durable not in wanted.durables]:
                store.durables.pop(gone, None)
                store.idle_since_ms.pop(gone, None)
            for durable, parameters in wanted.durables.items():
                if durable in store.durables:
                    found = store.durables[durable]
                    moved = found.definition.dead_letter_store != parameters.dead_letter_store
                    found.definition = parameters
                    if isinstance(found, ConsumedModel):
                        if moved and found.parks:
                            found.parks_now(now_ms)
                        if not parameters.retention_time_ms:
                            found.retains_nothing()
                        found.keep_limits(now_ms)
                else:
                    store.add(parameters, now_ms)
        self.definition = definition

    # ---- publishing -------------------------------------------------------------------------------------------------

    def _publish(self, command: commands.Publish, answer: Answer) -> None:
        store = self.stores[command.store]
        known = store.publishers.get(command.publisher) if command.publisher else None
        first_number = command.messages[0].publisher_seq
        last_number = max(known.seqs) if known is not None else 0
        if command.publisher and known is None and command.publisher in store.forgotten and first_number > 1:
            _refused(command, answer, Code.UNKNOWN_PUBLISHER)
            return
        if known is not None and first_number > last_number + 1:
            _refused(command, answer, Code.SEQUENCE_GAP)
            return
        duplicates = min(len(command.messages), last_number - first_number + 1) if known is not None else 0
        fresh = command.messages[duplicates:]
        if self._is_full(store, fresh):
            _refused(command, answer, Code.STORE_FULL)
            return
        result = _answered(command, answer, commands.Published)
        first, unmatched = store.accept(fresh, command.publisher, command.at_ms) if fresh else (0, 0)
        if command.publisher:
            known = store.publishers.setdefault(command.publisher, PublisherModel())
            store.forgotten.discard(command.publisher)
            known.used_ms = command.at_ms if fresh else known.used_ms
            known.seqs.update((message.publisher_seq, first + place) for place, message in enumerate(fresh))
            expected = known.seqs[first_number], known.seqs[command.messages[-1].publisher_seq]
        else:
            expected = first, first + len(fresh) - 1
        numbers = result.first_seq, result.last_seq
        promise(numbers == expected, "a message always has the same number", numbers=numbers, expected=expected)
        promise(result.duplicates == duplicates, "a resent message is stored once", result=result, expected=duplicates)
        promise(
            result.unmatched == unmatched, "messages without a durable are counted", result=result, expected=unmatched
        )

    def _is_full(self, store: StoreModel, fresh: Sequence[Message]) -> bool:
        wanted = [message for message in fresh if self._is_wanted(store, message)]
        return self._is_over(store, len(wanted), sum(size_of(message) for message in wanted))

    def _is_over(self, store: StoreModel, messages: int, size: int) -> bool:
        """Whether so much more is above the store's limits; what shrinks is never."""
        definition = self.definition.stores[store.name]
        if not (definition.message_limit or definition.bytelimit):
            return False
        kept = store.kept()
        sizes: dict[int, int] = {}
        for durable in store.durables.values():
            if isinstance(durable, ConsumedModel):
                sizes.update((item.seq, item.size) for item in durable.items.values())
            else:
                sizes.update((value.revision, value.size) for value in durable.values.values())
        over = messages > 0 and 0 < definition.message_limit < len(kept) + messages
        return over or (size > 0 and 0 < definition.bytelimit < sum(sizes[seq] for seq in kept) + size)

    @staticmethod
    def _is_wanted(store: StoreModel, message: Message) -> bool:
        """Worlds with limits of a store have none of durables with ``discard`` new, so wanting is matching."""
        for durable in store.durables.values():
            definition = durable.definition
            if isinstance(durable, MapModel) or not definition.matcher.matches(message.fields):
                continue
            if isinstance(durable, ConsumedModel):
                return True
            field = definition.key_field
            if not message.deliver_at_ms and isinstance(message.fields.get(field) if field else message.key, str):
                return True
        return False

    # ---- durables ---------------------------------------------------------------------------------------------------

    def _on_durable(self, command: Command, answer: Answer, effects: Effects) -> None:
        at = cast("_OnDurable", command)
        store = self.stores[at.store]
        durable = store.durables.get(at.durable)
        if isinstance(at, commands.Attach):
            self._attach(store, at, answer)
            return
        if durable is None:
            _refused(command, answer, Code.NOT_FOUND)
            return
        match at:
            case commands.Unsubscribe():
                _done(command, answer)
                del store.durables[at.durable]
                store.idle_since_ms.pop(at.durable, None)
            case commands.Detach():
                self._detach(store, durable, at, answer, effects)
            case commands.Deliver():
                _deliver(durable, at, answer)
            case commands.Acknowledge():
                assert isinstance(durable, ConsumedModel)
                if at.subscriber not in durable.subscribers:
                    _refused(command, answer, Code.NOT_FOUND)
                    return
                durable.acknowledge(at, _answered(command, answer, commands.Acknowledged))
            case commands.Purge():
                if isinstance(durable, MapModel):
                    _purge_map(durable, _watched(effects))
                messages, size = durable.purge()
                result = _answered(command, answer, commands.Purged)
                promise((result.messages, result.bytes) == (messages, size), "a purge is exact", result=result)
            case commands.Drop():
                if durable.drop(at.seq):
                    _done(command, answer)
                else:
                    _refused(command, answer, Code.NOT_FOUND)
            case commands.Rewind():
                assert isinstance(durable, ConsumedModel)
                _done(command, answer)
                durable.rewind(at.seq, at.at_ms)
            case commands.Redeliver():
                assert isinstance(durable, ConsumedModel)
                durable.redeliver(at, _answered(command, answer, commands.Redelivered))

    def _attach(self, store: StoreModel, command: commands.Attach, answer: Answer) -> None:
        created = command.durable not in store.durables
        if created:
            template = self.definition.stores[store.name].template(command.template)
            assert template is not None, "worlds attach by templates that are there"
            dynamic = [durable for durable in store.durables.values() if durable.definition.dynamic]
            limit = self.definition.stores[store.name].dynamic_durable_limit
            if limit and len(dynamic) >= limit:
                _refused(command, answer, Code.TOO_MANY_DURABLES)
                return
            store.add(template.durable(command.durable), command.at_ms)
        durable = store.durables[command.durable]
        if isinstance(durable, ConsumedModel) and durable.is_busy(command.subscriber) and not command.take_over:
            _refused(command, answer, Code.DURABLE_BUSY)
            return
        result = _answered(command, answer, commands.Attached)
        displaced = ""
        if isinstance(durable, ConsumedModel):
            displaced = durable.attach(command)
        elif isinstance(durable, LastValueModel):
            displaced = command.subscriber if command.subscriber in durable.seen else ""
            durable.attach(command.subscriber, command.key or "")
        else:
            durable.sessions[command.subscriber] = None
        store.idle_since_ms.pop(command.durable, None)
        promise(result == commands.Attached(created, displaced), "a standard durable has one consumer", result=result)

    def _detach(
        self, store: StoreModel, durable: DurableModel, command: commands.Detach, answer: Answer, effects: Effects
    ) -> None:
        known = _attached(durable)
        if command.subscriber not in known:
            _refused(command, answer, Code.NOT_FOUND)
            return
        _done(command, answer)
        if isinstance(durable, ConsumedModel):
            durable.detach(command.subscriber, command.at_ms)
        elif isinstance(durable, LastValueModel):
            durable.detach(command.subscriber)
        else:
            durable.detach(command.subscriber, effects)
        if len(known) == 0:
            store.idle_since_ms[command.durable] = command.at_ms

    def _dead_letter(self, command: commands.DeadLetter, answer: Answer) -> None:
        durable = self.stores[command.store].durables.get(command.durable)
        item = durable.items.get(command.seq) if isinstance(durable, ConsumedModel) else None
        if not isinstance(durable, ConsumedModel) or item is None or item.place != "dying":
            _refused(command, answer, Code.NOT_FOUND)
            return
        result = _answered(command, answer, commands.Published)
        durable.leave(item, item.cause)
        target = self.stores[command.to_store]
        first, unmatched = target.accept([command.message], "", command.at_ms)
        promise(result == commands.Published(first, first, 0, unmatched), "a dead letter is one message", result=result)

    def _resend(self, command: commands.Resend, answer: Answer) -> None:
        target = self.stores[command.to_store]
        durable = target.durables.get(command.to_durable)
        letters = self.stores[command.store].durables.get(command.durable)
        letter = letters.items.get(command.seq) if isinstance(letters, ConsumedModel) else None
        if durable is None or letter is None or not letter.pending or letter.place == "held":
            _refused(command, answer, Code.NOT_FOUND)
            return
        assert isinstance(durable, ConsumedModel) and isinstance(letters, ConsumedModel)
        size = size_of(command.message)
        if not durable.has_room(size) or self._is_over(target, 1, size):
            _refused(command, answer, Code.STORE_FULL)
            return
        result = _answered(command, answer, commands.Published)
        seq = target.next_seq
        target.next_seq += 1
        promise(result == commands.Published(seq, seq, 0, 0), "a letter is sent back once", result=result)
        durable.publish([(seq, command.message, size)], "", command.at_ms)
        letters.leave(letter, "sent back")

    def _expire(self, command: commands.Expire, answer: Answer) -> None:
        result = _answered(command, answer, commands.Expired)
        self.expire_done = not result.more
        if result.more:
            self._stopped_ms = command.at_ms
            return
        now_ms = command.at_ms
        self.swept_ms = now_ms
        for store in self.stores.values():
            for name, durable in list(store.durables.items()):
                ttl_ms = durable.definition.durable_ttl_ms
                idle_ms = store.idle_since_ms.get(name)
                if ttl_ms and idle_ms is not None and idle_ms + ttl_ms <= now_ms:
                    del store.durables[name], store.idle_since_ms[name]
                    continue
                late = durable.late(now_ms) if isinstance(durable, ConsumedModel) else []
                durable.expire(now_ms)
                if isinstance(durable, ConsumedModel) and durable.definition.type is DurableType.STANDARD:
                    for subscriber in late if (store.name, name) in command.contended else ():
                        durable.lose(subscriber, now_ms)
                        self._lost.add((store.name, name, subscriber))
                        store.idle_since_ms[name] = now_ms
                if isinstance(durable, MapModel):
                    durable.locks = {key: lock for key, lock in durable.locks.items() if now_ms < lock.until_ms}
            for name, known in list(store.publishers.items()):
                if known.used_ms + self.definition.publisher_ttl_ms <= now_ms:
                    del store.publishers[name]
                    store.forgotten.add(name)

    # ---- maps -------------------------------------------------------------------------------------------------------

    def _map_change(self, command: commands.MapChange, answer: Answer, effects: Effects) -> None:
        store = self.stores[command.store]
        found = store.durables[command.map]
        assert isinstance(found, MapModel)
        refusal = found.refusal(command)
        if refusal is None and not command.remove_all and self._is_over(store, *found.added(command)):
            refusal = Code.STORE_FULL
        if refusal is not None:
            _refused(command, answer, refusal)
            return
        result = _answered(command, answer, commands.MapChanged)
        watched = _watched(effects)
        changes, revision, changed = found.change(command, store.next_seq, watched)
        store.next_seq = max(store.next_seq, revision + 1)
        if changed and not found.sessions:
            store.idle_since_ms[command.map] = command.at_ms
        expected = revision, changed
        promise((result.revision, result.changed) == expected, "revisions are the store's numbers", result=result)
        in_order = watched is None or watched == changes
        promise(in_order, "watchers see every change in order", watched=watched, expected=changes)

    def _locks(self, command: commands.MapLock | commands.MapUnlock, answer: Answer) -> None:
        found = self.stores[command.store].durables[command.map]
        assert isinstance(found, MapModel)
        if isinstance(command, commands.MapUnlock):
            if found.is_holder(command):
                found.unlock(command)
                _done(command, answer)
            else:
                _refused(command, answer, Code.NOT_HOLDER)
        elif found.excluding(command) and not command.steal:
            _refused(command, answer, Code.LOCK_HELD)
        else:
            result = _answered(command, answer, commands.MapLocked)
            lock = found.lock(command)
            promise((result.fence, result.until_ms) == (lock.fence, lock.until_ms), "a fence rises", result=result)


def _attached(durable: DurableModel) -> Collection[str]:
    """Who is attached; the durable's own collection, so that it shrinks as they leave."""
    if isinstance(durable, ConsumedModel):
        return durable.subscribers
    return durable.seen if isinstance(durable, LastValueModel) else durable.sessions


def _deliver(durable: DurableModel, command: commands.Deliver, answer: Answer) -> None:
    known = _attached(durable)
    if command.subscriber not in known:
        _refused(command, answer, Code.NOT_FOUND)
        return
    result = _answered(command, answer, commands.Delivered)
    if isinstance(durable, ConsumedModel):
        durable.deliver(command.subscriber, command.count, result, command.at_ms)
    elif isinstance(durable, LastValueModel):
        durable.deliver(command.subscriber, result)


# ---- answers --------------------------------------------------------------------------------------------------------


def _answered(command: Command, answer: Answer, kind: type[Kind]) -> Kind:
    promise(isinstance(answer, kind), "what is allowed is done", command=command, answer=answer)
    return cast("Kind", answer)


def _watched(effects: Effects) -> list[tuple[str, int, str]] | None:
    """The changes that watchers of maps see."""
    if effects is None:
        return None
    return [change for effect in effects if isinstance(effect, Changed) for change in effect.changes]


def _purge_map(found: MapModel, watched: list[tuple[str, int, str]] | None) -> None:
    expected = found.cleared(sorted((key, value.revision, "deleted") for key, value in found.values.items()))
    in_order = watched is None or watched == expected
    promise(in_order, "watchers see a purge", watched=watched, expected=expected)


def _done(command: Command, answer: Answer) -> None:
    _answered(command, answer, commands.Done)


def _refused(command: Command, answer: Answer, code: Code) -> None:
    is_refused = isinstance(answer, HoldfastError) and answer.code is code
    promise(is_refused, "what is not allowed is refused by its name", command=command, answer=answer, expected=code)
