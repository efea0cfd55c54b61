"""Carries out a definition: adds, changes and deletes stores and durables, and refuses unwanted losses.

A definition is checked whole before anything changes. Without ``delete``, a change that would delete messages is
refused: unacknowledged and retained messages, values of maps and last values. They are lost with a removed durable or
store, above a limit that discards old ones, or by a shorter ``message_ttl``, ``retention_time`` or ``durable_ttl``.
Leased messages, and those that end later, do not count. The count reads at most ``LOOKS_MAX`` messages; above that it
is a lower bound, and an unknown number counts as a loss. What a limit of bytes would discard is an estimate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from holdfast.errors import Code, Conflict, InvalidRequest
from holdfast.stores.definitions.cluster import ClusterDefinition, Discard, DurableDefinition, StoreDefinition
from holdfast.stores.definitions.parts import DURABLES, Path, check_change, undoing, with_parts
from holdfast.stores.durables.consumption import DYING_RETRY_MS, Consumption
from holdfast.stores.durables.expiry import expire_newly_parked, retained, set_retention
from holdfast.stores.durables.keyed import KeyedMessages
from holdfast.stores.machine.store import Cluster, Durable, Revision, Store
from holdfast.stores.values.commands import Done, Redefine, Result
from holdfast.stores.values.effects import Advise, Effect
from holdfast.stores.values.identity import id_of
from holdfast.stores.values.reference_counts import REFERENCES_MAX

LOOKS_MAX: Final = 16_384
PLACES_SHOWN_MAX: Final = 20  # places that an error names


@dataclass(frozen=True, slots=True)
class _Loss:
    """``is_exact``: False for a lower bound. ``is_estimate``: by the mean size of a message."""

    messages: int = 0
    is_exact: bool = True
    is_estimate: bool = False

    def __bool__(self) -> bool:
        return self.messages > 0 or not self.is_exact

    def __str__(self) -> str:
        if self.is_exact:
            return f"about {self.messages}" if self.is_estimate else str(self.messages)
        return f"at least {self.messages}" if self.messages else "an unknown number"

    def __add__(self, other: _Loss) -> _Loss:
        return _Loss(
            self.messages + other.messages, self.is_exact and other.is_exact, self.is_estimate or other.is_estimate
        )

    @property
    def count(self) -> str:
        """What the number is, as an error says it."""
        return ("about" if self.is_estimate else "exact") if self.is_exact else "at_least"


class Losses:
    """What one change at ``now_ms`` would delete."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._looks = LOOKS_MAX

    def of_store(self, store: Store) -> _Loss:
        """The store goes, with every durable."""
        loss = sum((self._kept(durable) for durable in store.durables.values()), _Loss())
        # ``live`` includes what a purge has left to give back, and has each message of several durables once.
        return _Loss(min(loss.messages, store.counts.live), loss.is_exact)

    def of_durable(self, store: Store, durable: Durable, after: DurableDefinition | None) -> _Loss:
        """The durable gets another definition, or goes."""
        if after is None:
            return self._kept(durable)
        return self._changed(store, durable, after) if durable.definition != after else _Loss()

    def _kept(self, durable: Durable) -> _Loss:
        if not isinstance(durable, Consumption):
            return _Loss(durable.pending)
        floor = durable.backlog.floor
        ended = _Loss() if floor is None else self._retained(durable, floor, durable.backlog.cursor)
        return _Loss(durable.pending) + ended

    def _changed(self, store: Store, durable: Durable, after: DurableDefinition) -> _Loss:
        before, now_ms = durable.definition, self._now_ms
        idle_ms = store.idle_since_ms.get(after.name)
        if idle_ms is not None and _ends(idle_ms, after.durable_ttl_ms, now_ms):
            return _Loss() if _ends(idle_ms, before.durable_ttl_ms, now_ms) else self._kept(durable)
        over = _over(durable, after)
        added = max(0, over.messages - _over(durable, before).messages)
        expired = self._expired(store, durable, before.message_ttl_ms, after.message_ttl_ms)
        # Both end the oldest ones, so the larger includes the smaller.
        first = _Loss(max(expired.messages, added), expired.is_exact, over.is_estimate)
        return first + self._ended_retained(durable, after.retention_time_ms)

    def _expired(self, store: Store, durable: Durable, before_ms: int, after_ms: int) -> _Loss:
        if not after_ms or 0 < before_ms <= after_ms:
            return _Loss()
        low_ms, high_ms = self._now_ms - before_ms if before_ms else -1, self._now_ms - after_ms
        if not isinstance(durable, Consumption):
            return self._expired_values(store, durable.keyed, low_ms, high_ms)
        backlog, counts = durable.backlog, store.counts
        apart = [(first, last) for first, last, _ in durable.redelivery.all_runs()]
        apart += [(seq, seq) for seq in durable.dying] if durable.parks else []
        loss = self._arrived(durable, apart, low_ms, high_ms)
        first = counts.first_since(max(0, low_ms + 1), backlog.cursor, counts.next_seq)
        end = counts.first_since(max(0, high_ms + 1), first, counts.next_seq)
        looks = min(self._looks, end - first)
        seqs, reached, left = backlog.look(first - 1, looks, looks)
        self._looks -= looks - max(0, left)
        count = self._arrived(durable, [(seq, seq) for seq in seqs if seq < end], low_ms, high_ms)
        return loss + count + _Loss(0, first == end or reached is None or reached >= end - 1)

    def _arrived(self, durable: Consumption, runs: Iterable[tuple[int, int]], low_ms: int, high_ms: int) -> _Loss:
        """Those that began to live after ``low_ms`` and up to ``high_ms``."""
        count = 0
        for first, last in runs:
            if durable.shelf.counts.published_ms(first) > high_ms:
                continue
            for seq in range(first, last + 1):
                if self._looks <= 0:
                    return _Loss(count, is_exact=False)
                self._looks -= 1
                count += low_ms < durable.arrived_ms(seq) <= high_ms
        return _Loss(count)

    def _expired_values(self, store: Store, keyed: KeyedMessages, low_ms: int, high_ms: int) -> _Loss:
        if not keyed.messages:
            return _Loss()
        counts = store.counts
        first = counts.first_since(max(0, low_ms + 1), keyed.oldest, counts.next_seq)
        end = counts.first_since(max(0, high_ms + 1), first, counts.next_seq)
        looks = min(self._looks, end - first)
        entries, reached, left = keyed.browse_page(first - 1, looks, looks)
        self._looks -= looks - max(0, left)
        count = sum(entry.revision < end for entry in entries)
        return _Loss(count, first == end or reached is None or reached >= end - 1 or count == keyed.messages)

    def _ended_retained(self, durable: Durable, after_ms: int) -> _Loss:
        """Retained messages that a shorter ``retention_time`` ends, or none at all."""
        if not isinstance(durable, Consumption) or durable.backlog.floor is None:
            return _Loss()
        before_ms, floor, cursor = durable.definition.retention_time_ms, durable.backlog.floor, durable.backlog.cursor
        if before_ms <= after_ms:
            return _Loss()
        first_since = durable.shelf.counts.first_since
        first = first_since(max(0, self._now_ms - before_ms + 1), floor, cursor)
        end = first_since(max(0, self._now_ms - after_ms + 1), first, cursor) if after_ms else cursor
        return self._retained(durable, first, end)

    def _retained(self, durable: Consumption, first: int, end: int) -> _Loss:
        stop = min(end, first + max(0, self._looks))
        self._looks -= max(0, stop - first)
        count = sum(high - low + 1 for low, high in retained(durable, first, stop)) if first < stop else 0
        return _Loss(count, stop >= end)


def _ends(since_ms: int, ttl_ms: int, now_ms: int) -> bool:
    return 0 < ttl_ms <= now_ms - since_ms


def _over(durable: Durable, wanted: DurableDefinition) -> _Loss:
    """How many messages a limit would discard; an estimate for a limit of bytes."""
    if wanted.discard is not Discard.OLD:
        return _Loss()
    messages, size = durable.pending, durable.pending_bytes
    over = max(0, messages - wanted.message_limit) if wanted.message_limit else 0
    if not wanted.bytelimit or size <= wanted.bytelimit:
        return _Loss(over)
    average = max(1, size // max(1, messages))
    return _Loss(max(over, -(-(size - wanted.bytelimit) // average)), is_estimate=True)


HISTORY_BYTES_MAX = 4 << 20


def redefine(cluster: Cluster, command: Redefine, effects: list[Effect]) -> tuple[Result, bool]:
    """Change parts of the definition. *Cost*: what changes, and copies of a store's names.

    *Raises*: ``InvalidRequest``; ``Conflict`` if it was changed meanwhile, or would delete messages.
    """
    if command.revision != cluster.revision + 1:
        raise Conflict(
            "the definition was changed meanwhile",
            code=Code.REVISION_MISMATCH,
            facts={"revision": cluster.revision, "given": command.revision},
            hint="read it again; the next revision is one above the current one",
        )
    before = cluster.definition
    definition = with_parts(before, command.parts)
    paths = list(dict.fromkeys(part.path for part in command.parts))
    check_change(before, definition, paths)
    touched = _by_store(paths)
    for name, of_store in touched.items():
        if name in definition.stores:
            _check_dynamic(cluster, definition.stores[name], of_store.durables)
    if not command.delete:
        _check_losses(cluster, command.at_ms, definition, touched)
    _put_in_force(cluster, command, definition, touched, effects)
    undo = undoing(before, definition, paths)
    _keep(cluster, Revision(command.revision, command.at_ms, command.author, undo))
    return Done(), True


def definition_at(cluster: Cluster, revision: int) -> ClusterDefinition | None:
    """The definition with this number, None if it is not in the history. *Cost*: the changes since."""
    definition = cluster.definition
    for kept in reversed(cluster.history):
        if kept.revision == revision:
            return definition
        definition = with_parts(definition, kept.undo)
    return None


def _put_in_force(
    cluster: Cluster,
    command: Redefine,
    definition: ClusterDefinition,
    touched: Mapping[str, _Touched],
    effects: list[Effect],
) -> None:
    for name in [name for name in touched if name not in definition.stores and name in cluster.stores]:
        delete_store(cluster, name, effects)
    cluster.definition, cluster.revision = definition, command.revision
    for name, of_store in touched.items():
        wanted = definition.stores.get(name)
        if wanted is not None:
            if name not in cluster.stores:
                cluster.make_store(wanted, id_of(command.drawn, name))
            _change_store(cluster, cluster.stores[name], wanted, of_store, command, effects)


class _Touched(NamedTuple):
    durables: list[str]
    templates: list[str]


def _by_store(paths: list[Path]) -> dict[str, _Touched]:
    touched: dict[str, _Touched] = {}
    for path in paths:
        match path:
            case ("stores", store, *rest):
                of_store = touched.setdefault(store, _Touched([], []))
                if rest:
                    (of_store.durables if rest[0] == DURABLES else of_store.templates).append(rest[1])
            case _:
                continue
    return touched


def _check_losses(
    cluster: Cluster, now_ms: int, definition: ClusterDefinition, touched: Mapping[str, _Touched]
) -> None:
    """Raises ``Conflict`` if messages would be deleted."""
    losses = Losses(now_ms)
    by_place: dict[str, _Loss] = {}
    for name, of_store in touched.items():
        store = cluster.stores.get(name)
        if store is not None and name not in definition.stores:
            by_place[name] = losses.of_store(store)
        elif store is not None:
            for durable_name, wanted in _reached(store, definition.stores[name], of_store):
                durable = store.durables.get(durable_name)
                if durable is not None:
                    by_place[f"{name}/{durable_name}"] = losses.of_durable(store, durable, wanted)
    lost = {path: loss for path, loss in by_place.items() if loss}
    if not lost:
        return
    shown = ", ".join(f"{path} ({loss})" for path, loss in islice(lost.items(), PLACES_SHOWN_MAX))
    more = f" and {len(lost) - PLACES_SHOWN_MAX} more" if len(lost) > PLACES_SHOWN_MAX else ""
    whole = sum(lost.values(), _Loss())
    raise Conflict(
        f"the change would delete messages of {shown}{more}",
        code=Code.DELETES_MESSAGES,
        facts={"messages": whole.messages, "places": len(lost), "count": whole.count},
        hint="delete=true allows it",
    )


def _keep(cluster: Cluster, revision: Revision) -> None:
    """Add to the history, which is bounded in number and in bytes because each snapshot has it."""
    history = cluster.history
    history.append(revision)
    del history[: -cluster.definition.max_deployment_history]
    sizes = [sum(len(part.document) for part in kept.undo) for kept in history]
    while len(history) > 1 and sum(sizes) > HISTORY_BYTES_MAX:
        del history[0], sizes[0]


def _check_dynamic(cluster: Cluster, definition: StoreDefinition, durables: list[str]) -> None:
    """A static durable that replaces a dynamic one keeps its messages, so it must be of its kind."""
    store = cluster.stores.get(definition.name)
    known = store.durables if store is not None else {}
    wanted_durables = [definition.durables[name] for name in durables if name in definition.durables]
    count = len(known) + sum(wanted.name not in known for wanted in wanted_durables)
    if count > REFERENCES_MAX:
        raise InvalidRequest(
            "a store has too many durables",
            code=Code.TOO_MANY_DURABLES,
            facts={"store": definition.name, "durables": len(definition.durables), "limit": REFERENCES_MAX},
        )
    for wanted in wanted_durables:
        durable = known.get(wanted.name)
        if durable is None or not durable.definition.dynamic:
            continue
        facts = {"store": definition.name, "durable": wanted.name}
        if durable.definition.type is not wanted.type or durable.definition.key_ordered != wanted.key_ordered:
            raise InvalidRequest("a dynamic durable of another type is there", code=Code.TYPE_MISMATCH, facts=facts)
        if durable.definition.matcher != wanted.matcher or durable.definition.key_field != wanted.key_field:
            raise InvalidRequest(
                "a dynamic durable with another matcher is there", code=Code.MATCHER_MISMATCH, facts=facts
            )


def delete_store(cluster: Cluster, name: str, effects: list[Effect]) -> None:
    """Delete a store with everything in it."""
    store = cluster.stores.pop(name)
    for durable in store.durables:
        effects.append(Advise(name, durable, "", "durable_deleted", (("cause", "store_deleted"),)))
        cluster.deadlines_of(store).set((name, durable), None)
    store.entries.forget(name)
    store.shelf.messages.forget_store(name)
    store.blocks.forget_store(name)
    cluster.volatile_names.discard(name)


def _reached(store: Store, wanted: StoreDefinition, touched: _Touched) -> list[tuple[str, DurableDefinition | None]]:
    """Each durable that a change of its store affects, with its new definition; None if it is deleted (these first).

    A template affects the dynamic durables that were made of it and stay dynamic.
    """
    static = [name for name in touched.durables if name in wanted.durables]
    durables: dict[str, DurableDefinition | None] = {
        name: None
        for name in touched.durables
        if name not in wanted.durables and name in store.definition.durables and name in store.durables
    }
    durables.update({name: wanted.durables[name] for name in static})
    templates = {name: wanted.templates[name] for name in touched.templates if name in wanted.templates}
    for name, durable in store.durables.items() if templates else ():
        definition = durable.definition
        template = templates.get(definition.template) if definition.dynamic and name not in durables else None
        if template is not None and template.pattern.type is definition.type:
            own = dataclasses.replace(template.durable(name, definition.matcher), key_field=definition.key_field)
            durables[name] = dataclasses.replace(own, key_ordered=definition.key_ordered)
    return list(durables.items())


def _change_store(
    cluster: Cluster,
    store: Store,
    wanted: StoreDefinition,
    touched: _Touched,
    command: Redefine,
    effects: list[Effect],
) -> None:
    now_ms = command.at_ms
    reached = _reached(store, wanted, touched)
    store.definition = wanted
    for name, definition in reached:
        if definition is None:
            cluster.delete(store, name, "not_defined", now_ms, effects)
        elif name in store.durables:
            _change_durable(cluster, store, definition, now_ms, effects)
        else:
            store.add(definition, now_ms, id_of(command.drawn, store.name, name))
            cluster.arm(store, name)


def _change_durable(
    cluster: Cluster, store: Store, wanted: DurableDefinition, now_ms: int, effects: list[Effect]
) -> None:
    durable = store.durables[wanted.name]
    if durable.definition == wanted:
        return
    store.unfile(wanted.name)
    letters_moved = durable.definition.dead_letter_store != wanted.dead_letter_store
    durable.definition = wanted
    if isinstance(durable, Consumption):
        if not wanted.message_ttl_ms:
            durable.parked_ms = durable.redelivery.arrivals = None
        if letters_moved:
            # What waits goes to the new place at once; where there is none it stays.
            effects += durable.dying_effects()
            durable.dying_retry_ms = now_ms + DYING_RETRY_MS
            expire_newly_parked(durable, now_ms)
        residue = set_retention(durable, wanted.retention_time_ms, now_ms)
        if residue is not None:
            store.residues.append(residue)
        durable.keep_limits(now_ms)
    store.file(durable)
    if isinstance(durable, Consumption) and durable.ready():
        # Windows may be wider now.
        effects.append(durable.ready_effect)
    cluster.arm(store, wanted.name)
