"""Carrying a definition out: which stores and durables come, stay and go.

Owns: the commands ``Define`` and ``Redefine``, the history of definitions. Does not own: what a definition may say
(``definitions``), its parts (``definition_parts``), which changes are possible (``definition_changes``), what they
would delete (``definition_losses``). Failure model: pure; a definition is checked whole before anything changes.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.errors import Code, Conflict, InvalidRequest
from holdfast.stores.definitions.changes import check_change
from holdfast.stores.definitions.definitions import parse_definition, with_earlier_prefetch
from holdfast.stores.definitions.parts import DURABLES, Path, changed_paths, undoing, with_parts
from holdfast.stores.durables.aging import expire_newly_parked
from holdfast.stores.durables.consumption import DYING_RETRY_MS, Consumption
from holdfast.stores.durables.retention import set_retention
from holdfast.stores.machine.definition_losses import Losses
from holdfast.stores.machine.limits import check_cluster
from holdfast.stores.machine.store import Store
from holdfast.stores.values.commands import FIRST_RULES, STEPWISE_RULES, Define, Done, Part, Redefine
from holdfast.stores.values.effects import Advise
from holdfast.stores.values.reference_counts import REFERENCES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.definitions.definitions import ClusterDefinition, DurableDefinition, StoreDefinition
    from holdfast.stores.machine.state import State
    from holdfast.stores.values.commands import Result
    from holdfast.stores.values.effects import Effect

__all__ = [
    "Revision",
    "define",
    "definition_at",
    "make_store",
    "redefine",
    "restored_history",
    "whole_history",
]


HISTORY_BYTES_MAX = 4 << 20


class Revision(msgspec.Struct, frozen=True, array_like=True):
    """One definition of the history. See ``definition_at``."""

    revision: int
    at_ms: int
    author: str
    definitions: bytes
    """The whole as JSON, or empty where it is made of the next one. A snapshot has that of the last one."""
    undo: list[Part] | None = None
    """What makes the one before of this one; None where a whole definition was given, and the one before is whole."""


def define(state: State, command: Define, effects: list[Effect]) -> tuple[Result, bool]:
    """Replace the definition of the cluster. Raises ``InvalidRequest``; ``Conflict`` where another one was quicker."""
    _check_revision(state, command)
    definition, whole = parse_definition(command.definitions), command.definitions
    if state.rules == FIRST_RULES:
        definition = with_earlier_prefetch(definition)
        whole = definition.json()
    paths = changed_paths(state.definition, definition)
    _check(state, command, definition, paths)
    if state.history and not state.history[-1].definitions:
        state.history[-1] = replace(state.history[-1], definitions=state.definition.json())
    _put_in_force(state, command, definition, paths, effects)
    _keep(state, Revision(command.revision, command.at_ms, command.author, whole))
    return Done(), True


def redefine(state: State, command: Redefine, effects: list[Effect]) -> tuple[Result, bool]:
    """Change parts of the definition. Raises as ``define``. *Cost*: what changes, and two copies of a store's names."""
    _check_revision(state, command)
    before = state.definition
    definition = with_parts(before, command.parts)
    paths = list(dict.fromkeys(part.path for part in command.parts))
    _check(state, command, definition, paths)
    _put_in_force(state, command, definition, paths, effects)
    undo = undoing(before, definition, paths)
    _keep(state, Revision(command.revision, command.at_ms, command.author, b"", undo))
    return Done(), True


def definition_at(state: State, revision: int) -> ClusterDefinition | None:
    """The definition with this number, None where it is not in the history. *Cost*: the changes since."""
    places = [place for place, kept in enumerate(state.history) if kept.revision == revision]
    if not places:
        return None
    wanted, definition = places[0], state.definition
    for place in range(len(state.history) - 1, wanted, -1):
        whole = state.history[place - 1].definitions
        definition = parse_definition(whole) if whole else with_parts(definition, state.history[place].undo or ())
    return definition


def whole_history(state: State) -> list[Revision]:
    """The history as a snapshot has it: its last item holds the whole definition."""
    if not state.history or state.history[-1].definitions:
        return state.history
    known = state.encoded_definition
    if known is None or known[0] is not state.definition:
        known = state.encoded_definition = state.definition, state.definition.json()
    return [*state.history[:-1], replace(state.history[-1], definitions=known[1])]


def restored_history(kept: list[Revision], rules: int) -> list[Revision]:
    """The history of a snapshot as the state has it: what a change of parts made has no whole."""
    if rules == FIRST_RULES:
        kept = [_with_earlier_prefetch(one) for one in kept]
    return kept[:-1] + [one if one.undo is None else replace(one, definitions=b"") for one in kept[-1:]]


def _with_earlier_prefetch(kept: Revision) -> Revision:
    if not kept.definitions:
        return kept
    return replace(kept, definitions=with_earlier_prefetch(parse_definition(kept.definitions)).json())


def _check_revision(state: State, command: Define | Redefine) -> None:
    if command.revision != state.revision + 1:
        raise Conflict(
            "the definition was changed meanwhile",
            code=Code.REVISION_MISMATCH,
            facts={"revision": state.revision, "given": command.revision},
            hint="read it again; the next revision is one above the current one",
        )


def _check(state: State, command: Define | Redefine, definition: ClusterDefinition, paths: list[Path]) -> None:
    check_change(state.definition, definition, paths)
    for name, of_store in _by_store(paths).items():
        if name in definition.stores:
            _check_dynamic(state, definition.stores[name], of_store.durables)
    _check_losses(state, command, definition, paths)


def _put_in_force(
    state: State, command: Define | Redefine, definition: ClusterDefinition, paths: list[Path], effects: list[Effect]
) -> None:
    touched = _by_store(paths)
    for name in [name for name in touched if name not in definition.stores and name in state.stores]:
        _delete_store(state, name, effects)
    state.definition, state.revision = definition, command.revision
    for name, of_store in touched.items():
        wanted = definition.stores.get(name)
        if wanted is not None:
            if name not in state.stores:
                make_store(state, wanted)
            _change_store(state, state.stores[name], wanted, of_store, command.at_ms, effects)


class _Touched(NamedTuple):
    """What changes of one store."""

    durables: list[str]
    templates: list[str]


def _by_store(paths: list[Path]) -> dict[str, _Touched]:
    found: dict[str, _Touched] = {}
    for path in paths:
        match path:
            case ("stores", store, *place):
                of_store = found.setdefault(store, _Touched([], []))
                if place:
                    (of_store.durables if place[0] == DURABLES else of_store.templates).append(place[1])
            case _:
                continue
    return found


def _check_losses(state: State, command: Define | Redefine, definition: ClusterDefinition, paths: list[Path]) -> None:
    """Raises ``Conflict`` where messages would go. Records of older rules were accepted by what was counted then."""
    if command.delete or state.rules < STEPWISE_RULES:
        return
    losses = Losses(command.at_ms)
    for name, of_store in _by_store(paths).items():
        store = state.stores.get(name)
        if store is None:
            continue
        if name not in definition.stores:
            losses.remove_store(store)
            continue
        for durable_name, wanted in _reached(store, definition.stores[name], of_store):
            durable = store.durables.get(durable_name)
            if durable is not None and wanted is None:
                losses.remove(store, durable)
            elif durable is not None and wanted is not None:
                losses.change(store, durable, wanted)
    losses.refuse()


def _keep(state: State, revision: Revision) -> None:
    """Add to the history; forget the oldest, those above the count or above so many bytes: each snapshot has them."""
    history = state.history
    history.append(revision)
    del history[: -state.definition.max_deployment_history]
    while len(history) > 1 and sum(map(_size, history)) > HISTORY_BYTES_MAX:
        del history[0]


def _size(kept: Revision) -> int:
    return len(kept.definitions) + sum(len(part.document) for part in kept.undo or ())


def _check_dynamic(state: State, definition: StoreDefinition, durables: list[str]) -> None:
    """A static durable that takes the place of a dynamic one keeps what that keeps, so it must be of its kind."""
    store = state.stores.get(definition.name)
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
        found = known.get(wanted.name)
        if found is None or not found.definition.dynamic:
            continue
        facts = {"store": definition.name, "durable": wanted.name}
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
    state.entries.forget(name)
    state.messages.forget_store(name)
    state.blocks.forget_store(name)


def _reached(store: Store, wanted: StoreDefinition, touched: _Touched) -> list[tuple[str, DurableDefinition | None]]:
    """Each durable that a change of its store reaches and the definition that it gets, None where it is deleted.

    Those that go are first. A template reaches the dynamic durables that were made of it and stay dynamic.
    """
    static = [name for name in touched.durables if name in wanted.durables]
    found: dict[str, DurableDefinition | None] = {
        name: None
        for name in touched.durables
        if name not in wanted.durables and name in store.definition.durables and name in store.durables
    }
    found.update({name: wanted.durables[name] for name in static})
    templates = {name: wanted.templates[name] for name in touched.templates if name in wanted.templates}
    for name, durable in store.durables.items() if templates else ():
        definition = durable.definition
        template = templates.get(definition.template) if definition.dynamic and name not in found else None
        if template is not None and template.pattern.type is definition.type:
            own = dataclasses.replace(template.durable(name, definition.matcher), key_field=definition.key_field)
            found[name] = dataclasses.replace(own, key_ordered=definition.key_ordered)
    return list(found.items())


def _change_store(
    state: State, store: Store, wanted: StoreDefinition, touched: _Touched, now_ms: int, effects: list[Effect]
) -> None:
    reached = _reached(store, wanted, touched)
    store.definition = wanted
    for name, definition in reached:
        if definition is None:
            state.delete(store, name, "not_defined", now_ms, effects)
        elif name in store.durables:
            _change_durable(state, store, definition, now_ms, effects)
        else:
            store.add(definition, now_ms)
            state.arm(store, name)


def _change_durable(state: State, store: Store, wanted: DurableDefinition, now_ms: int, effects: list[Effect]) -> None:
    durable = store.durables[wanted.name]
    if durable.definition == wanted:
        return
    store.unfile(wanted.name)
    letters_moved = durable.definition.dead_letter_store != wanted.dead_letter_store
    durable.definition = wanted
    if isinstance(durable, Consumption):
        if not wanted.message_ttl_ms:
            durable.parked_ms = durable.returned.arrivals = None
        if letters_moved:
            # What waits goes to the new place at once; where there is none it stays.
            effects += durable.dying_effects()
            if durable.counts_started:
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
    state.arm(store, wanted.name)
