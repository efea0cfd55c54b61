"""Changes of one store, durable or template, as changes of the whole definition.

Owns: what the routes for parts make of the whole. Does not own: reading and checking a definition
(``stores.definitions``), which changes a running cluster allows (the state machine), history (``definition_history``).

A definition is replaced whole, so a change is validated with everything that refers to it; nothing is half applied.

Failure model: pure. Raises ``InvalidRequest`` naming every wrong value by its path, ``NotFound`` for what is not there.
"""

from __future__ import annotations

from typing import Final, cast

from holdfast.errors import InvalidRequest, NotFound
from holdfast.stores.definitions import ClusterDefinition, definition_of

__all__ = ["with_part", "with_store", "without_part", "without_store"]

Json = dict[str, object]
_PARTS: Final = ("durables", "templates", "subscribers")


def with_store(definition: ClusterDefinition, store: str, parameters: object) -> ClusterDefinition:
    """The definition with these parameters of a store; durables, templates and subscribers stay unless given."""
    whole = definition.document()
    stores = _section(whole, "stores")
    given = _map_of(parameters, "the parameters of a store")
    kept = _section(stores, store) if store in stores else {}
    stores[store] = {part: kept[part] for part in _PARTS if part in kept} | given
    if "default_durable" not in given and kept.get("default_durable"):
        _section(stores, store)["default_durable"] = kept["default_durable"]
    return definition_of(whole)


def without_store(definition: ClusterDefinition, store: str) -> ClusterDefinition:
    """The definition without a store."""
    whole = definition.document()
    stores = _section(whole, "stores")
    if stores.pop(store, None) is None:
        raise NotFound("there is no such store", store=store)
    return definition_of(whole)


def with_part(definition: ClusterDefinition, store: str, kind: str, name: str, parameters: object) -> ClusterDefinition:
    """The definition with these parameters of a static durable (``durables``) or a template (``templates``)."""
    whole = definition.document()
    section = _section(_store_of(whole, store), kind)
    section[name] = _map_of(parameters, f"the parameters of {kind}")
    return definition_of(whole)


def without_part(definition: ClusterDefinition, store: str, kind: str, name: str) -> ClusterDefinition:
    """The definition without a static durable or a template."""
    whole = definition.document()
    section = _section(_store_of(whole, store), kind)
    if section.pop(name, None) is None:
        raise NotFound(f"there is no such {kind.removesuffix('s')} in the definition", store=store, name=name)
    return definition_of(whole)


def _store_of(whole: Json, store: str) -> Json:
    stores = _section(whole, "stores")
    if store not in stores:
        raise NotFound("there is no such store", store=store)
    return _section(stores, store)


def _section(document: Json, name: str) -> Json:
    return cast(Json, document[name])


def _map_of(parameters: object, what: str) -> Json:
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"{what} are a map")
    return dict(cast(Json, parameters))
