"""The state of a cluster of stores: definitions, stores and the deadlines of all durables.

``state`` has the commands that change it, with ``redefine`` and ``map_commands``.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.errors import NotFound
from holdfast.stores.definitions.cluster import ClusterDefinition, DurableDefinition, StoreDefinition
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.last_value import LastValue
from holdfast.stores.machine.store import Durable, Store, check_cluster
from holdfast.stores.values.commands import RULES, Part
from holdfast.stores.values.deadlines import Deadlines, earlier
from holdfast.stores.values.effects import Advise, Effect
from holdfast.stores.values.ports import Blocks, Entries, Messages


class Revision(msgspec.Struct, frozen=True, array_like=True):
    """One definition of the history. See ``definition_at``."""

    revision: int
    at_ms: int
    author: str
    definitions: bytes
    """The whole as JSON, or empty where it is made of the next one. A snapshot has that of the last one."""
    undo: list[Part] | None = None
    """What makes the one before of this one; None where a whole definition was given, and the one before is whole."""


Ports = tuple[Messages, Blocks, Entries]


class Cluster:
    """Base of ``State``. ``volatile`` are the ports of stores in memory only, if they are not the same."""

    def __init__(self, messages: Messages, blocks: Blocks, entries: Entries, volatile: Ports | None = None) -> None:
        self._ports: Ports = messages, blocks, entries
        self._volatile_ports = self._ports if volatile is None else volatile
        self.definition = ClusterDefinition()
        self.revision = 0
        self.history: list[Revision] = []  # the last definitions, oldest first; the newest is in force
        self.encoded_definition: tuple[ClusterDefinition, bytes] | None = None
        """The bytes that the last snapshot needed: making them again takes as long as the rest of a snapshot."""
        self.stores: dict[str, Store] = {}
        self._rules = RULES
        self.at_ms = 0  # the time of the last command that changed anything
        self.deadlines: Deadlines[tuple[str, str]] = Deadlines()
        """When each durable has something to do next, by store and durable."""
        self.volatile_deadlines: Deadlines[tuple[str, str]] = Deadlines()
        """Those of stores in memory only, apart: commands outside the log must not change the logged ones."""

    @property
    def rules(self) -> int:
        """The rules that commands follow: ``commands.RULES``, or older ones while a replay applies older records."""
        return self._rules

    @rules.setter
    def rules(self, rules: int) -> None:
        if rules != self._rules:
            self._rules = rules
            for store in self.stores.values():
                store.shelf.rules = rules
                for name in store.durables:
                    self.arm(store, name)

    def store(self, name: str) -> Store:
        """A store. Raises ``NotFound``."""
        store = self.stores.get(name)
        if store is None:
            raise NotFound("there is no such store", store=name)
        return store

    def find(self, store: str, durable: str) -> tuple[Store, Durable]:
        """A durable and its store. Raises ``NotFound``."""
        found = self.store(store)
        return found, found.durable(durable)

    def make_store(self, definition: StoreDefinition) -> Store:
        """Add an empty store."""

        def room(messages: int, size: int) -> None:
            cluster = self.definition
            if cluster.message_limit or cluster.bytelimit:
                check_cluster(cluster, (store.counts for store in self.stores.values()), messages, size)

        ports = self._volatile_ports if self.definition.is_volatile(definition) else self._ports
        store = Store(definition, *ports, room)
        store.shelf.rules = self.rules
        self.stores[definition.name] = store
        return store

    def delete(self, store: Store, name: str, cause: str, now_ms: int, effects: list[Effect]) -> None:
        """Delete a durable with its messages, and notify its subscribers."""
        effects.append(Advise(store.name, name, "", "durable_deleted", (("cause", cause),)))
        store.remove(name, now_ms)
        self.deadlines_of(store).set((store.name, name), None)

    def durable_definitions(self, store: str) -> Mapping[str, DurableDefinition]:
        """Every durable of a store, the dynamic ones too, by name. Raises ``NotFound``."""
        return {name: durable.definition for name, durable in self.store(store).durables.items()}

    def deadlines_of(self, store: Store) -> Deadlines[tuple[str, str]]:
        """The deadlines that those of this store's durables are among."""
        return self.volatile_deadlines if self.definition.is_volatile(store.definition) else self.deadlines

    def next_deadline_ms(self, *, volatile: bool = False) -> int | None:
        """When an ``Expire`` has something to do, or None; that of the stores in memory where ``volatile``.

        Cost: O(stores).
        """
        found = (self.volatile_deadlines if volatile else self.deadlines).next_ms()
        for store in self.stores.values():
            if self.definition.is_volatile(store.definition) is volatile:
                found = earlier(found, self.store_deadline_ms(store))
        return found

    def store_deadline_ms(self, store: Store) -> int | None:
        """When a store has something to do that is no durable's, or None. Only a command of this store, a letter that
        it is sent, ``Expire`` and ``Define`` change it."""
        left_ms = store.residues[0].since_ms if store.residues else None
        if store.keyed_residues:
            left_ms = earlier(left_ms, store.keyed_residues[0].of.since_ms)
        found = earlier(left_ms, store.counts.due_blocks.next_ms())
        return earlier(found, store.publishers.next_deadline_ms(self.definition.publisher_ttl_ms))

    def arm(self, store: Store, name: str) -> None:
        """Note when a durable has something to do next."""
        self.deadlines_of(store).set((store.name, name), self._due_ms(store, name))

    def _due_ms(self, store: Store, name: str) -> int | None:
        durable = store.durables[name]
        at_ms = durable.next_deadline_ms() if isinstance(durable, Consumption) else durable.next_ms()
        ttl_ms = durable.definition.durable_ttl_ms
        return earlier(at_ms, store.idle_since_ms[name] + ttl_ms if ttl_ms and name in store.idle_since_ms else None)

    def ready(self, store: str, durable: str) -> bool:
        """Whether a subscriber that is attached could be given something. Raises ``NotFound``."""
        _, found = self.find(store, durable)
        return found.ready() if isinstance(found, Consumption) else isinstance(found, LastValue) and found.ready

    def ready_for(self, store: str, durable: str, subscriber: str) -> bool:
        """Whether a ``Deliver`` for this subscriber would get on: give it something, or look further for it.

        So an empty answer while this holds means that it should be asked again. False for one that is not attached.
        """
        found = self.stores[store].durables.get(durable) if store in self.stores else None
        if isinstance(found, Consumption):
            return subscriber in found.leases.of and found.ready_for(subscriber)
        return isinstance(found, LastValue) and subscriber in _attached(found) and found.unseen(subscriber) is not None

    def subscribers(self) -> list[tuple[str, str, str]]:
        """Every attached subscriber: store, durable, subscriber. After a start none of them is connected."""
        return [
            (store.name, name, subscriber)
            for store in self.stores.values()
            for name, durable in store.durables.items()
            for subscriber in _attached(durable)
        ]

    def is_held(self) -> bool:
        """Whether any subscriber holds a message. Cost: O(durables)."""
        return any(
            isinstance(durable, Consumption) and durable.leases.held
            for store in self.stores.values()
            for durable in store.durables.values()
        )

    def pending_effects(self) -> list[Effect]:
        """The effects that wait to be carried out, reported again after a start."""
        return [
            effect
            for store in self.stores.values()
            for durable in store.durables.values()
            if isinstance(durable, Consumption)
            for effect in durable.dying_effects()
        ]

    def check(self) -> None:
        """Every invariant. Cost: O(everything that is kept); for tests and simulations."""
        assert set(self.stores) == set(self.definition.stores), "stores are those that are defined"
        for store in self.stores.values():
            store.check()
            for name in store.durables:
                armed_ms = self.deadlines_of(store).get((store.name, name))
                assert armed_ms == self._due_ms(store, name), "deadlines are those of the durables"


def _attached(durable: Durable) -> list[str]:
    if isinstance(durable, Consumption):
        return list(durable.leases.of)
    return [name for name, _ in durable.subscribers()] if isinstance(durable, LastValue) else list(durable.sessions)
