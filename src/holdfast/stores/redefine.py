"""Carrying a definition out: which stores and durables come, stay and go.

Owns: the command ``Define``, the history of definitions. Does not own: what a definition may say (``definitions``),
which changes are possible (``definition_changes``). Failure model: pure; a definition is checked whole before anything
changes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import msgspec

from holdfast.errors import Code, Conflict, InvalidRequest
from holdfast.stores.commands import Define, Done
from holdfast.stores.definition_changes import check_change
from holdfast.stores.definitions import Discard, parse_definition
from holdfast.stores.durables.aging import expire_newly_parked
from holdfast.stores.durables.consumption import DYING_RETRY_MS, Consumption
from holdfast.stores.durables.retention import set_retention
from holdfast.stores.effects import Advise
from holdfast.stores.limits import check_cluster
from holdfast.stores.reference_counts import REFERENCES_MAX
from holdfast.stores.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.commands import Result
    from holdfast.stores.definitions import ClusterDefinition, DurableDefinition, StoreDefinition
    from holdfast.stores.effects import Effect
    from holdfast.stores.state import State
    from holdfast.stores.store import Durable

__all__ = ["Revision", "define", "make_store"]


HISTORY_BYTES_MAX = 4 << 20
PLACES_SHOWN_MAX = 20
"""Places that an error names."""


class Revision(msgspec.Struct, frozen=True, array_like=True):
    """One definition of the history."""

    revision: int
    at_ms: int
    author: str
    definitions: bytes


def define(state: State, command: Define, effects: list[Effect]) -> tuple[Result, bool]:
    """Replace the definition of the cluster. Raises ``InvalidRequest``; ``Conflict`` where another one was quicker."""
    if command.revision != state.revision + 1:
        raise Conflict(
            "the definition was changed meanwhile",
            code=Code.REVISION_MISMATCH,
            facts={"revision": state.revision, "given": command.revision},
            hint="read it again; the next revision is one above the current one",
        )
    definition = parse_definition(command.definitions)
    check_change(state.definition, definition)
    for store in definition.stores.values():
        _check_dynamic(state, store)
    if not command.delete:
        _check_losses(state, definition)
    for name in [name for name in state.stores if name not in definition.stores]:
        _delete_store(state, name, effects)
    state.definition = definition
    state.revision = command.revision
    state.history.append(Revision(command.revision, command.at_ms, command.author, command.definitions))
    _bound_history(state.history, definition.max_deployment_history)
    for name, wanted in definition.stores.items():
        if name not in state.stores:
            make_store(state, wanted)
        _change_store(state, state.stores[name], wanted, command.at_ms, effects)
    return Done(), True


def _check_losses(state: State, wanted: ClusterDefinition) -> None:
    """Raises ``Conflict`` where messages would go: with a store, a durable, or by a limit that discards old ones."""
    losses: dict[str, int] = {}
    for name, store in state.stores.items():
        of_store = wanted.stores.get(name)
        if of_store is None:
            losses[name] = store.counts.live
            continue
        for durable_name in state.definition.stores[name].durables:
            found = store.durables.get(durable_name)
            if found is None:
                continue
            definition = of_store.durables.get(durable_name)
            losses[f"{name}/{durable_name}"] = _kept(found) if definition is None else _over(found, definition)
    lost = {place: messages for place, messages in losses.items() if messages}
    if lost:
        shown = ", ".join(f"{place} ({messages})" for place, messages in islice(lost.items(), PLACES_SHOWN_MAX))
        more = f" and {len(lost) - PLACES_SHOWN_MAX} more" if len(lost) > PLACES_SHOWN_MAX else ""
        raise Conflict(
            f"the change would delete messages of {shown}{more}",
            code=Code.DELETES_MESSAGES,
            facts={"messages": sum(lost.values()), "places": len(lost)},
            hint="delete=true (--delete) allows it; PATCH (holdfast stores edit) changes only what it names",
        )


def _kept(durable: Durable) -> int:
    return durable.pending if isinstance(durable, Consumption) else durable.keyed.messages


def _over(durable: Durable, wanted: DurableDefinition) -> int:
    """How many messages a new limit would discard; about as many, where it is one of bytes."""
    if not isinstance(durable, Consumption) or wanted.discard is not Discard.OLD:
        return 0
    over = max(0, durable.pending - wanted.message_limit) if wanted.message_limit else 0
    if wanted.bytelimit and durable.pending_bytes > wanted.bytelimit:
        average = max(1, durable.pending_bytes // max(1, durable.pending))
        over = max(over, -(-(durable.pending_bytes - wanted.bytelimit) // average))
    return over


def _bound_history(history: list[Revision], count: int) -> None:
    """Forget the oldest definitions: those above the count, or above so many bytes: each snapshot has them."""
    del history[:-count]
    while len(history) > 1 and sum(len(item.definitions) for item in history) > HISTORY_BYTES_MAX:
        del history[0]


def _check_dynamic(state: State, definition: StoreDefinition) -> None:
    """A static durable that takes the place of a dynamic one keeps what that keeps, so it must be of its kind."""
    store = state.stores.get(definition.name)
    dynamic = [name for name in store.durables if name not in definition.durables] if store is not None else []
    if len(definition.durables) + len(dynamic) > REFERENCES_MAX:
        raise InvalidRequest(
            "a store has too many durables",
            code=Code.TOO_MANY_DURABLES,
            facts={"store": definition.name, "durables": len(definition.durables), "limit": REFERENCES_MAX},
        )
    for name, wanted in definition.durables.items():
        found = store.durables.get(name) if store is not None else None
        if found is None or not found.definition.dynamic:
            continue
        facts = {"store": definition.name, "durable": name}
        if found.definition.type is not wanted.type or found.definition.key_ordered != wanted.key_ordered:
            raise InvalidRequest("a dynamic durable of another type is there", code=Code.TYPE_MISMATCH, facts=facts)
        if found.definition.matcher != wanted.matcher or found.definition.key_field != wanted.key_field:
            raise InvalidRequest(
                "a dynamic durable with another matcher is there", code=Code.MATCHER_MISMATCH, facts=facts
            )


def make_store(state: State, definition: StoreDefinition) -> Store:
    """An empty store."""

    def room(messages: int, size: int) -> None:
        cluster = state.definition
        if cluster.message_limit or cluster.bytelimit:
            check_cluster(cluster, (store.counts for store in state.stores.values()), messages, size)

    store = Store(definition, state.messages, state.blocks, state.entries, room)
    store.shelf.rules = state.rules
    state.stores[definition.name] = store
    return store


def _delete_store(state: State, name: str, effects: list[Effect]) -> None:
    store = state.stores.pop(name)
    for durable in store.durables:
        effects.append(Advise(name, durable, "", "durable_deleted", (("cause", "store_deleted"),)))
        state.deadlines_of(store).set((name, durable), None)
        state.entries.forget(name, durable)
    state.messages.forget_store(name)
    state.blocks.forget_store(name)


def _change_store(state: State, store: Store, wanted: StoreDefinition, now_ms: int, effects: list[Effect]) -> None:
    before, store.definition = store.definition, wanted
    for name in before.durables:
        if name not in wanted.durables and name in store.durables:
            state.delete(store, name, "not_defined", now_ms, effects)
    for name, durable in wanted.durables.items():
        if name in store.durables:
            _change_durable(state, store, durable, now_ms, effects)
        else:
            store.add(durable, now_ms)
            state.arm(store, name)
    for name, found in list(store.durables.items()):
        definition = found.definition
        template = wanted.templates.get(definition.template) if definition.dynamic else None
        if template is not None and template.pattern.type is definition.type:
            own = replace(template.durable(name, definition.matcher), key_field=definition.key_field)
            _change_durable(state, store, replace(own, key_ordered=definition.key_ordered), now_ms, effects)


def _change_durable(state: State, store: Store, wanted: DurableDefinition, now_ms: int, effects: list[Effect]) -> None:
    durable = store.durables[wanted.name]
    if durable.definition == wanted:
        return
    store.unfile(wanted.name)
    letters_moved = durable.definition.dead_letter_store != wanted.dead_letter_store
    durable.definition = wanted
    if isinstance(durable, Consumption):
        durable.parked_ms = None
        if letters_moved:
            # What waits goes to the new place at once; where there is none it stays.
            effects += durable.dying_effects()
            if durable.counts_started:
                durable.dying_retry_ms = now_ms + DYING_RETRY_MS
                expire_newly_parked(durable, now_ms)
        set_retention(durable, wanted.retention_time_ms)
        durable.keep_limits(now_ms)
    store.file(durable)
    if isinstance(durable, Consumption) and durable.ready():
        # Windows may be wider now.
        effects.append(durable.ready_effect)
    state.arm(store, wanted.name)
