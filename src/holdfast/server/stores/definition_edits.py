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

__all__ = ["patched", "patched_part", "patched_store", "with_part", "with_store", "without_part", "without_store"]

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


def patched_store(definition: ClusterDefinition, store: str, parameters: object) -> ClusterDefinition:
    """The definition with only these parameters of a store changed; of its durables and templates, those named."""
    whole = definition.document()
    _patch_store(_store_of(whole, store), _map_of(parameters, "the parameters of a store"))
    return definition_of(whole)


def patched_part(
    definition: ClusterDefinition, store: str, kind: str, name: str, parameters: object
) -> ClusterDefinition:
    """The definition with only these parameters of a static durable or a template changed."""
    whole = definition.document()
    section = _section(_store_of(whole, store), kind)
    if name not in section:
        raise NotFound(f"there is no such {kind.removesuffix('s')} in the definition", store=store, name=name)
    _section(section, name).update(_map_of(parameters, f"the parameters of {kind}"))
    return definition_of(whole)


def patched(definition: ClusterDefinition, document: object) -> ClusterDefinition:
    """The definition with only what this part of one names: nothing goes, what is new comes."""
    whole = definition.document()
    given = _map_of(document, "a definition")
    _section(whole, "cluster").update(_map_of(given.pop("cluster", {}), "cluster"))
    stores = _section(whole, "stores")
    for store, parameters in _map_of(given.pop("stores", {}), "stores").items():
        _patch_store(cast(Json, stores.setdefault(store, {})), _map_of(parameters, f"stores.{store}"))
    return definition_of(whole | given)


def _patch_store(store: Json, given: Json) -> None:
    for kind in ("durables", "templates"):
        section = cast(Json, store.setdefault(kind, {}))
        for name, parameters in _map_of(given.pop(kind, {}), kind).items():
            cast(Json, section.setdefault(name, {})).update(_map_of(parameters, f"{kind}.{name}"))
    if "subscribers" in given:
        cast(Json, store.setdefault("subscribers", {})).update(_map_of(given.pop("subscribers"), "subscribers"))
    store.update(given)


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
