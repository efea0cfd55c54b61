"""Changes of a state that only a repair makes, before it writes the whole state again.

``accept`` takes the recorded result of a command if a replay gives another one, because a client has seen it:
acknowledged messages are removed, and published ones are kept under the recorded number, or nothing can be accepted.
``drop_lost`` removes messages that cannot be read; which matchers took them is unknown, so every durable is searched
and counted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.errors import CorruptData, HoldfastError
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.machine.state import State
from holdfast.stores.machine.store import Durable
from holdfast.stores.values import commands
from holdfast.stores.values.commands import Record, Result
from holdfast.stores.values.effects import Effect
from holdfast.stores.values.messages import MessageBatch
from holdfast.stores.values.sequence_set import SequenceSet
from holdfast.wire.parts import Message

UNLIMITED_BYTES = 1 << 31


def accept(state: State, record: Record, replayed: Result | HoldfastError) -> None:
    """Bring the state to what clients saw, after the record's command gave ``found`` instead of its result.

    *Raises*: ``CorruptData`` where messages would get other numbers than clients know.
    """
    command, recorded = record.command, record.result
    is_refused = isinstance(replayed, HoldfastError)
    if isinstance(command, commands.Acknowledge) and isinstance(recorded, commands.Acknowledged):
        _remove_acknowledged(state, command, recorded)
    elif isinstance(command, commands.Publish) and isinstance(recorded, commands.Published):
        if is_refused and command.store in state.stores:
            fresh = command.messages[recorded.duplicates :]
            _keep(state, command.store, fresh, command.at_ms)
            first = fresh[0].publisher_seq if fresh else 0
            if fresh and command.publisher:
                seq = recorded.last_seq - len(fresh) + 1
                publishers = state.stores[command.store].publishers
                publishers.accepted(command.publisher, first, len(fresh), seq, command.at_ms)
        _require_number(state, record, command.store, recorded.last_seq)
    elif isinstance(command, commands.DeadLetter | commands.Resend) and isinstance(recorded, commands.Published):
        if is_refused and recorded.last_seq and command.to_store in state.stores:
            _keep(state, command.to_store, [command.message], command.at_ms)
        if recorded.last_seq:
            _require_number(state, record, command.to_store, recorded.last_seq)
    elif isinstance(command, commands.MapChange) and isinstance(recorded, commands.MapChanged):
        if is_refused and command.store in state.stores:
            changes: list[tuple[str, bytes | None, int | None]] = [
                (key, body, None) for key, body, _ in command.changes
            ]
            state.apply(commands.MapChange(command.at_ms, command.store, command.map, changes, 0, command.remove_all))
        if recorded.changed:
            _require_number(state, record, command.store, recorded.revision)


def _remove_acknowledged(state: State, command: commands.Acknowledge, recorded: commands.Acknowledged) -> None:
    """What a subscriber acknowledged with success never comes back."""
    store = state.stores.get(command.store)
    durable = store.durables.get(command.durable) if store is not None else None
    if store is None or not isinstance(durable, Consumption):
        return
    stale = SequenceSet(sorted(recorded.stale))
    for first, last in command.ack:
        for kept in store.shelf.messages.read(store.name, first, last):
            if kept.seq not in stale and store.counts.is_kept(kept.seq):
                durable.drop(kept)
    state.arm(store, command.durable)


def _keep(state: State, name: str, messages: Sequence[Message], at_ms: int) -> None:
    """Accept messages that a limit refuses now, but were accepted once."""
    store = state.stores[name]
    definition, cluster = store.definition, state.definition
    effects: list[Effect] = []
    store.definition = replace(definition, message_limit=0, bytelimit=0)
    state.definition = replace(cluster, message_limit=0, bytelimit=0)
    try:
        if messages:
            store.accept(MessageBatch(messages, UNLIMITED_BYTES, at_ms), effects)
    finally:
        store.definition, state.definition = definition, cluster
    for durable in store.durables:
        state.arm(store, durable)


def _require_number(state: State, record: Record, name: str, last_seq: int) -> None:
    store = state.stores.get(name)
    if store is not None and store.counts.next_seq <= last_seq:
        raise CorruptData(
            "a recorded result cannot be accepted: its messages would get other numbers",
            command=type(record.command).__name__,
            recorded=repr(record.result),
            store=name,
            next_seq=store.counts.next_seq,
            hint="holdfast stores restore BACKUP NEW makes stores of a backup",
        )


CAUSE = "damaged"  # what the durables' counts of lost messages say
PAGE = 4_096


def drop_lost(state: State, name: str, lost: SequenceSet) -> dict[str, int]:
    """Remove these messages from a store. Returns how many each durable lost, if any.

    *Cost*: reads the backlog of every durable of the store.
    """
    store = state.store(name)
    before = {durable: each.pending for durable, each in store.durables.items()}
    for durable in store.durables.values():
        _take_out(durable, lost)
    for residue in store.residues:
        for first, last in lost.runs():
            residue.backlog.exclude(first, last)
    for left in store.keyed_residues:
        for entry in [entry for entry in left.kept() if entry.revision in lost]:
            left.take(entry.key)
    store.forget_done()
    for first, last in lost.runs():
        for seq in range(first, last + 1):
            store.counts.lose(seq)
    losses: dict[str, int] = {}
    for durable_name, each in store.durables.items():
        if isinstance(each, Consumption):
            _count(each)
        if gone := before[durable_name] - each.pending:
            losses[durable_name] = gone
            if isinstance(each, Consumption):
                each.lose(CAUSE, gone)
        state.arm(store, durable_name)
    for residue in store.residues:
        if residue.left is not None:
            residue.left = len(residue.kept())
    store.residues = [residue for residue in store.residues if not residue.is_done]
    return losses


def _take_out(durable: Durable, lost: SequenceSet) -> None:
    if not isinstance(durable, Consumption):
        for entry in [entry for entry in durable.keyed.scan() if entry.revision in lost]:
            durable.keyed.lose(entry.key, CAUSE)
        return
    for first, last in lost.runs():
        for holder in durable.leases.of.values():
            for run in durable.leases.take(holder, first, last):
                durable.release(run[0], run[1])
        for seq in range(first, last + 1):
            if durable.redelivery.remove(seq) is not None or durable.take_dying(seq) is not None:
                durable.release(seq, seq)
        durable.backlog.exclude(first, last)


def _count(durable: Consumption) -> None:
    backlog = durable.backlog
    backlog.delayed_total = len(backlog.passed_delayed())
    counts, after = durable.shelf.counts, 0
    durable.pending = durable.pending_bytes = 0
    while page := durable.browse(after, PAGE):
        durable.pending += len(page)
        durable.pending_bytes += sum(counts.size(seq, seq) for seq, _ in page)
        after = page[-1][0]
    backlog.forget_passed()
