"""Accepting the recorded result of a command where a replay gives another one.

A client has seen the recorded result. So what it says was acknowledged is removed, what it says was published is kept
under the recorded number, and the message counts are this code's own. Where a number differs nothing can be accepted.

Failure model: pure. It works on a state that a repair has just opened, and the repair writes all of it afterwards.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.errors import Code, CorruptData, HoldfastError
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.values.batch import Batch
from holdfast.stores.values.commands import (
    Acknowledge,
    Acknowledged,
    DeadLetter,
    MapChange,
    MapChanged,
    Publish,
    Published,
    Resend,
)
from holdfast.stores.values.sequence_set import SequenceSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.machine.state import State
    from holdfast.stores.values.commands import Record, Result
    from holdfast.stores.values.effects import Effect
    from holdfast.stores.values.messages import Message

__all__ = ["accept"]

UNLIMITED_BYTES = 1 << 31


def accept(state: State, record: Record, found: Result | HoldfastError) -> None:
    """Bring the state to what clients saw, after the record's command gave ``found`` instead of its result.

    *Raises*: ``CorruptData`` where messages would get other numbers than clients know.
    """
    command, recorded = record.command, record.result
    is_refused = isinstance(found, HoldfastError)
    if isinstance(command, Acknowledge) and isinstance(recorded, Acknowledged):
        _remove_acknowledged(state, command, recorded)
    elif isinstance(command, Publish) and isinstance(recorded, Published):
        if is_refused and command.store in state.stores:
            fresh = command.messages[recorded.duplicates :]
            _keep(state, command.store, fresh, command.at_ms)
            first = fresh[0].publisher_seq if fresh else 0
            if fresh and command.publisher:
                seq = recorded.last_seq - len(fresh) + 1
                publishers = state.stores[command.store].publishers
                publishers.accepted(command.publisher, first, len(fresh), seq, command.at_ms)
        _require_number(state, record, command.store, recorded.last_seq)
    elif isinstance(command, DeadLetter | Resend) and isinstance(recorded, Published):
        if is_refused and recorded.last_seq and command.to_store in state.stores:
            _keep(state, command.to_store, [command.message], command.at_ms)
        if recorded.last_seq:
            _require_number(state, record, command.to_store, recorded.last_seq)
    elif isinstance(command, MapChange) and isinstance(recorded, MapChanged):
        if is_refused and command.store in state.stores:
            changes: list[tuple[str, bytes | None, int | None]] = [
                (key, body, None) for key, body, _ in command.changes
            ]
            state.apply(MapChange(command.at_ms, command.store, command.map, changes, 0, command.remove_all))
        if recorded.changed:
            _require_number(state, record, command.store, recorded.revision)


def _remove_acknowledged(state: State, command: Acknowledge, recorded: Acknowledged) -> None:
    """What a subscriber acknowledged with success never comes back."""
    store = state.stores.get(command.store)
    durable = store.durables.get(command.durable) if store is not None else None
    if store is None or not isinstance(durable, Consumption):
        return
    stale = SequenceSet(sorted(recorded.stale))
    for first, last in command.ack:
        for kept in state.messages.read(store.name, first, last):
            if kept.seq not in stale and store.counts.is_kept(kept.seq):
                durable.drop(kept)
    state.arm(store, command.durable)


def _keep(state: State, name: str, messages: Sequence[Message], at_ms: int) -> None:
    """Accept messages that a limit refuses now. They were accepted once."""
    store = state.stores[name]
    definition, cluster = store.definition, state.definition
    effects: list[Effect] = []
    store.definition = replace(definition, message_limit=0, bytelimit=0)
    state.definition = replace(cluster, message_limit=0, bytelimit=0)
    try:
        if messages:
            store.accept(Batch(messages, UNLIMITED_BYTES, at_ms), effects)
    finally:
        store.definition, state.definition = definition, cluster
    for durable in store.durables:
        state.arm(store, durable)


def _require_number(state: State, record: Record, name: str, last_seq: int) -> None:
    store = state.stores.get(name)
    if store is not None and store.counts.next_seq <= last_seq:
        raise CorruptData(
            "a recorded result cannot be accepted: its messages would get other numbers",
            code=Code.CORRUPT_LOG,
            command=type(record.command).__name__,
            recorded=repr(record.result),
            store=name,
            next_seq=store.counts.next_seq,
            hint="holdfast stores restore BACKUP NEW makes stores of a backup",
        )
