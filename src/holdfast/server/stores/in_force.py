"""The definitions that are in force, as the server asks for them.

Owns: looking up a store's, a durable's and a subscriber's terms. Does not own: definitions (``stores.definitions``),
the state that they belong to (``stores.state``), changing them (``definition_edits``).

Failure model: pure reading. A store or durable that is not there raises ``NotFound`` with its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.errors import NotFound
from holdfast.stores.definitions.cluster import (
    ClusterDefinition,
    DurableDefinition,
    StoreDefinition,
)
from holdfast.stores.machine.state import State

__all__ = ["DEFAULT_DURABLE", "InForce"]

DEFAULT_DURABLE: Final = "-"
"""Stands in a path for the durable of a subscriber that names none; no durable is called so."""


class InForce:
    """Looks definitions up. O(1) where nothing else is said."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    @property
    def cluster(self) -> ClusterDefinition:
        """The whole definition."""
        return self._state.definition

    @property
    def revision(self) -> int:
        """The number of the definition in force."""
        return self._state.revision

    def store(self, name: str) -> StoreDefinition:
        """Raises: NotFound."""
        found = self._state.definition.stores.get(name)
        if found is None:
            raise NotFound("there is no such store", store=name)
        return found

    def durables(self, store: str) -> Mapping[str, DurableDefinition]:
        """Every durable of a store, the dynamic ones too, by name. Raises: NotFound. Cost: O(durables)."""
        return self._state.durable_definitions(store)

    def find(self, store: str, name: str) -> DurableDefinition | None:
        """One durable, None where there is none. Raises: NotFound for the store."""
        found = self._state.store(store).durables.get(name)
        return None if found is None else found.definition

    def durable(self, store: str, name: str) -> DurableDefinition:
        """Raises: NotFound."""
        found = self.find(store, name)
        if found is None:
            raise NotFound("there is no such durable", store=store, durable=name)
        return found

    def named(self, store: str, durable: str, subscriber: str) -> str:
        """The durable that is meant: ``DEFAULT_DURABLE`` stands for the one that belongs to the subscriber.

        Raises: NotFound where the store has none for it.
        """
        if durable != DEFAULT_DURABLE:
            return durable
        found = self.store(store).durable_for(subscriber)
        if not found:
            raise NotFound(
                "the store has no default durable, and none for this subscriber", store=store, subscriber=subscriber
            )
        return found

    def terms(self, store: str, name: str, template: str | None = None) -> DurableDefinition:
        """The durable's, or where it does not exist those of the template that it would be made of.

        ``template`` None: it must exist. Raises: NotFound.
        """
        found = self.find(store, name)
        if found is None and template is not None:
            pattern = self.store(store).template(template)
            found = None if pattern is None else pattern.durable(name)
        if found is None:
            what = "there is no such template" if template else "there is no such durable"
            raise NotFound(what, store=store, durable=name, template=template or None)
        return found
