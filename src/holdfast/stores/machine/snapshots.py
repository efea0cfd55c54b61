"""The bytes of a snapshot: everything that the ports do not keep.

One msgpack array; every item below is an array of its own fields in the order of its class. It is valid if it decodes
to ``ClusterSnapshot`` with ``format`` 1, its definition is valid, and its stores are those of that definition that are
not in memory only.

| item | holds |
|---|---|
| ``ClusterSnapshot`` | format, time of the last change, revision, the definition in force, the last changes of it,
  stores; the history of the numbers and those before it |
| ``StoreSnapshot`` | next number, totals, blocks by their next own time-to-live, publishers, durables, what purges
  left, id |
| ``_Durable`` | name; a dynamic one's template and definition; since when it is idle; the state of its type; id |
"""

from __future__ import annotations

import msgspec

from holdfast.errors import CorruptData, InvalidRequest, statement_of
from holdfast.stores.definitions.cluster import ClusterDefinition, DurableDefinition, durable_of, parse_definition
from holdfast.stores.durables.backlog import Residue, ResidueState
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.keyed import KeyedResidue, KeyedResidueState, LastValue, LastValueState
from holdfast.stores.durables.map import MapDurable, MapState
from holdfast.stores.durables.pending import ConsumptionState
from holdfast.stores.machine.store import Cluster, PublisherState, Revision, Store
from holdfast.stores.values.identity import Ancestor

FORMAT = 1


class _Durable(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: str
    template: str
    definition: bytes
    """Of a dynamic one; a static one's is in the cluster's."""
    idle_since_ms: int | None
    state: ConsumptionState | LastValueState | MapState
    id: int


class StoreSnapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One store in a snapshot."""

    name: str
    next_seq: int
    live: int
    live_bytes: int
    due_blocks: list[tuple[int, int]]
    unmatched: int
    publishers: list[PublisherState]
    forgotten: list[str]
    durables: list[_Durable]
    residues: list[ResidueState]
    keyed_residues: list[KeyedResidueState]
    id: int


class ClusterSnapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All stores that are not in memory only."""

    format: int
    at_ms: int
    revision: int
    definition: bytes
    history: list[Revision]
    stores: list[StoreSnapshot]
    lineage: tuple[str, list[Ancestor]]


_decoder = msgspec.msgpack.Decoder(ClusterSnapshot)
_encoder = msgspec.msgpack.Encoder()


def snapshot(cluster: Cluster) -> bytes:
    """The state's bytes.

    Cost: O(durables, unacknowledged messages, publishers), on the caller's thread: about 5 microseconds a durable and
    one a publisher, 50 milliseconds for 10,000 durables.
    """
    # A store that lives in memory only is empty after a start.
    stores = [_store(store) for name, store in cluster.stores.items() if name not in cluster.volatile_names]
    encoding = cluster.encoded_definition
    if encoding is None or encoding[0] is not cluster.definition:
        encoding = cluster.encoded_definition = cluster.definition, cluster.definition.json()
    lineage = cluster.lineage.state()
    return _encoder.encode((FORMAT, cluster.at_ms, cluster.revision, encoding[1], cluster.history, stores, lineage))


def _store(store: Store) -> tuple[object, ...]:
    """The fields of a ``StoreSnapshot``; its durables are bytes already."""
    known, forgotten = store.publishers.state()
    # Each durable is bytes before the next is looked at. All of them as objects at a time would have the collector walk
    # them again and again, which took longer than to make them.
    durables = bytearray(_array_of(len(store.durables)))
    for name, durable in store.durables.items():
        definition = msgspec.json.encode(durable.definition.document()) if durable.definition.dynamic else b""
        idle_ms = store.idle_since_ms.get(name)
        template, identity = durable.definition.template, store.ids[name]
        _encoder.encode_into(_Durable(name, template, definition, idle_ms, durable.state(), identity), durables, -1)
    counts = store.counts
    return (
        store.name,
        counts.next_seq,
        counts.live,
        counts.live_bytes,
        list(counts.due_blocks.items().items()),
        store.unmatched,
        known,
        forgotten,
        msgspec.Raw(durables),
        [residue.state() for residue in store.residues],
        [residue.state() for residue in store.keyed_residues],
        store.id,
    )


def _array_of(count: int) -> bytes:
    """How a msgpack array of so many items begins.

    >>> [_array_of(count).hex() for count in (0, 15, 16, 65_535, 65_536)]
    ['90', '9f', 'dc0010', 'dcffff', 'dd00010000']
    """
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 65_536 else b"\xdd" + count.to_bytes(4, "big")


def decode_snapshot(data: bytes) -> tuple[ClusterSnapshot, ClusterDefinition]:
    """A snapshot, and the definition in force. Raises ``CorruptData``. Cost: as ``snapshot``."""
    try:
        snapshot = _decoder.decode(data)
        definition = parse_definition(snapshot.definition)
    except (msgspec.DecodeError, InvalidRequest) as error:
        raise _invalid(error) from error
    names = {store.name for store in snapshot.stores}
    if snapshot.format != FORMAT or names != definition.stores.keys() - definition.volatile_stores:
        raise CorruptData("this snapshot of the stores is of another version", facts={"format": snapshot.format})
    return snapshot, definition


def _invalid(error: Exception) -> CorruptData:
    return CorruptData("the snapshot of the stores is not valid", facts={"reason": statement_of(error)})


def restore(cluster: Cluster, data: bytes) -> None:
    """Make an empty state what the snapshot says. Raises ``CorruptData``."""
    snapshot, definition = decode_snapshot(data)
    try:
        definitions = {
            (store.name, durable.name): _definition(definition, store.name, durable)
            for store in snapshot.stores
            for durable in store.durables
        }
    except (msgspec.DecodeError, InvalidRequest, KeyError) as error:
        raise _invalid(error) from error
    assert not cluster.stores, "a snapshot is taken up by an empty state"
    cluster.definition, cluster.revision, cluster.history = definition, snapshot.revision, snapshot.history
    cluster.at_ms = snapshot.at_ms
    cluster.lineage.restore(*snapshot.lineage)
    for name in sorted(definition.volatile_stores):
        # Nothing of an earlier opening is in it, and no token of one is the same: any id will do.
        store = cluster.make_store(definition.stores[name], 0)
        for static in store.definition.durables.values():
            store.add(static, snapshot.at_ms, 0)
            cluster.arm(store, static.name)
    for kept in snapshot.stores:
        store = cluster.make_store(definition.stores[kept.name], kept.id)
        counts = store.counts
        counts.next_seq, counts.live, counts.live_bytes = kept.next_seq, kept.live, kept.live_bytes
        for number, at_ms in kept.due_blocks:
            counts.due_blocks.set(number, at_ms)
        store.unmatched = kept.unmatched
        store.publishers.restore(kept.publishers, kept.forgotten)
        store.residues = [Residue.of(residue, store.shelf) for residue in kept.residues]
        store.keyed_residues = [KeyedResidue(of, store.shelf, store.entries) for of in kept.keyed_residues]
        for durable in kept.durables:
            _restore_durable(store, durable, definitions[kept.name, durable.name])
            cluster.arm(store, durable.name)


def _definition(cluster: ClusterDefinition, store: str, durable: _Durable) -> DurableDefinition:
    if not durable.template:
        return cluster.stores[store].durables[durable.name]
    return durable_of(durable.name, msgspec.json.decode(durable.definition), durable.template)


def _restore_durable(store: Store, kept: _Durable, definition: DurableDefinition) -> None:
    durable = store.add(definition, 0, kept.id)
    state = kept.state
    if isinstance(durable, Consumption) and isinstance(state, ConsumptionState):
        durable.restore(state)
    elif isinstance(durable, LastValue) and isinstance(state, LastValueState):
        durable.restore(state)
    else:
        assert isinstance(durable, MapDurable) and isinstance(state, MapState), "a durable has its type's state"
        durable.restore(state)
    if kept.idle_since_ms is None:
        store.idle_since_ms.pop(kept.name, None)
    else:
        store.idle_since_ms[kept.name] = kept.idle_since_ms
