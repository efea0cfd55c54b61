"""Changes of a definition, as a request gives them: a list of parts to put in or take away. Pure.

Each raises ``InvalidRequest``, which names what is wrong, or ``NotFound`` for a part that is not there.
"""

from __future__ import annotations

import math
from typing import Final, cast

import msgspec

from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.stores.definitions.cluster import ClusterDefinition, DurableType, StoreDefinition
from holdfast.stores.definitions.parts import DURABLES, TEMPLATES, durable_at
from holdfast.stores.definitions.permissions import permissions_document
from holdfast.stores.definitions.reader import STATISTICS, FieldReader, raise_problems
from holdfast.stores.values.commands import DefinitionPart

Json = dict[str, object]
_KINDS: Final = (DURABLES, TEMPLATES)


def with_store(definition: ClusterDefinition, store: str, parameters: object) -> list[DefinitionPart]:
    """These parameters of a store; its durables, templates and subscribers stay unless given."""
    values = _map_of(parameters, "the parameters of a store")
    known = definition.stores.get(store)
    sections = {kind: _map_of(values.pop(kind), kind) for kind in _KINDS if kind in values}
    if known is not None:
        values.setdefault("subscribers", dict(known.subscribers))
        values.setdefault("default_durable", known.default_durable)
    parts = [_part(("stores", store), values)]
    for kind, section in sections.items():
        before = () if known is None else known.durables if kind == DURABLES else known.templates
        parts += [DefinitionPart(("stores", store, kind, name)) for name in before if name not in section]
        parts += [_part(("stores", store, kind, name), parameters) for name, parameters in section.items()]
    return parts


def patched_store(definition: ClusterDefinition, store: str, parameters: object) -> list[DefinitionPart]:
    """Only these parameters of a store; of its durables and templates, those named."""
    store_of(definition, store)
    return _patched_store(definition, store, _map_of(parameters, "the parameters of a store"))


def _patched_store(definition: ClusterDefinition, store: str, values: Json) -> list[DefinitionPart]:
    known = definition.stores.get(store)
    sections = {kind: _map_of(values.pop(kind), kind) for kind in _KINDS if kind in values}
    own = {} if known is None else known.own_document()
    if "subscribers" in values and known is not None:
        values["subscribers"] = _merged(dict(known.subscribers), values["subscribers"], f"stores.{store}.subscribers")
    parts = [_part(("stores", store), own | values)] if values or known is None else []
    for kind, section in sections.items():
        parts += [_patched(definition, ("stores", store, kind, name), one) for name, one in section.items()]
    return parts


def patched_part(
    definition: ClusterDefinition, store: str, kind: str, name: str, parameters: object
) -> list[DefinitionPart]:
    """Only these parameters of a static durable or a template."""
    _require_part(definition, store, kind, name)
    return [_patched(definition, ("stores", store, kind, name), parameters)]


def _patched(definition: ClusterDefinition, path: tuple[str, ...], parameters: object) -> DefinitionPart:
    known, values = durable_at(definition, path), _map_of(parameters, ".".join(path))
    if known is None:
        return _part(path, values)
    if "type" in values and values["type"] != known.type and values["type"] in list(DurableType):
        # Parameters of the known type would be refused first, and hide the reason.
        raise InvalidRequest(
            f"the type of {'.'.join(path)} cannot change: {known.type} -> {values['type']}",
            code=Code.TYPE_MISMATCH,
            hint="remove it and define it again; its messages are deleted with it",
        )
    return _part(path, known.document() | values)


def patched(definition: ClusterDefinition, document: object) -> list[DefinitionPart]:
    """Only what this part of a definition names: nothing goes, what is new comes."""
    values = _map_of(document, "a definition")
    parts: list[DefinitionPart] = []
    problems: list[str] = []
    reader = FieldReader(values, "", problems)
    for name in ("cluster", "stores", "permissions"):
        reader.section(name)
    reader.finish()
    raise_problems(problems)
    if "cluster" in values:
        parts.append(_part(("cluster",), definition.own_document() | _map_of(values["cluster"], "cluster")))
    for store, parameters in _map_of(values.get("stores", {}), "stores").items():
        parts += _patched_store(definition, store, _map_of(parameters, f"stores.{store}"))
    if "permissions" in values:
        parts.append(_part(("permissions",), _patched_permissions(definition, values["permissions"])))
    return parts


def _patched_permissions(definition: ClusterDefinition, parameters: object) -> Json:
    """Merge users and roles by name and parameter; null removes one."""
    values = _map_of(parameters, "permissions")
    document = permissions_document(definition.permissions)
    for kind in ("users", "roles"):
        if kind not in values:
            continue
        known = _map_of(document[kind], kind)
        entries = _map_of(values.pop(kind), f"permissions.{kind}")
        for name, one in entries.items():
            if one is not None:
                entries[name] = _patched_one(known.get(name, {}), one, f"permissions.{kind}.{name}")
        document[kind] = _merged(known, entries, kind)
    return document | values


def _patched_one(known: object, parameters: object, what: str) -> Json:
    before, values = _map_of(known, what), _map_of(parameters, what)
    if "token" in values:
        before.pop("token_sha256", None)
    if "stores" in values:
        values["stores"] = _merged(before.get("stores", {}), values["stores"], f"{what}.stores")
    return before | values


def _merged(known: object, values: object, what: str) -> Json:
    """The entries of both, the given ones first; null removes an entry."""
    return {name: one for name, one in (_map_of(known, what) | _map_of(values, what)).items() if one is not None}


def without_store(definition: ClusterDefinition, store: str) -> list[DefinitionPart]:
    """A store goes."""
    store_of(definition, store)
    return [DefinitionPart(("stores", store))]


def with_part(
    definition: ClusterDefinition, store: str, kind: str, name: str, parameters: object
) -> list[DefinitionPart]:
    """These parameters of a static durable (``durables``) or a template (``templates``), the others by default."""
    store_of(definition, store)
    return [_part(("stores", store, kind, name), _map_of(parameters, f"the parameters of {kind}"))]


def without_part(definition: ClusterDefinition, store: str, kind: str, name: str) -> list[DefinitionPart]:
    """A static durable or a template goes."""
    _require_part(definition, store, kind, name)
    return [DefinitionPart(("stores", store, kind, name))]


def _require_part(definition: ClusterDefinition, store: str, kind: str, name: str) -> None:
    store_of(definition, store)
    if durable_at(definition, ("stores", store, kind, name)) is None:
        raise NotFound(f"there is no such {kind.removesuffix('s')} in the definition", store=store, name=name)


def store_of(definition: ClusterDefinition, store: str) -> StoreDefinition:
    """A store that is to get a part. Raises: NotFound, which says to define the store first, where that is possible."""
    known = definition.stores.get(store)
    if known is None:
        hint = f"define the store first: holdfast stores define {store}, or PUT /v1/stores/{store}"
        if store == STATISTICS:
            hint = (
                'the service makes this store; its durables are dynamic: subscribe, or PUT them with {"template": NAME}'
            )
        raise NotFound(
            "no definition has this store" if store == STATISTICS else "there is no such store", hint=hint, store=store
        )
    return known


def _part(path: tuple[str, ...], document: object) -> DefinitionPart:
    _check_numbers(".".join(path), document)
    return DefinitionPart(path, msgspec.json.encode(document))


def _check_numbers(path: str, document: object) -> None:
    """MessagePack has numbers that JSON has not: they would become null, which sets a default."""
    pending: list[tuple[str, object]] = [(path, document)]
    for at, value in pending:
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"{at}: a finite number, not {value}", code=Code.BAD_CONFIGURATION)
        if isinstance(value, dict):
            pending += [(f"{at}.{name}", one) for name, one in cast(Json, value).items()]
        elif isinstance(value, list):
            pending += [(f"{at}.{number}", one) for number, one in enumerate(cast("list[object]", value))]


def _map_of(parameters: object, what: str) -> Json:
    if not isinstance(parameters, dict):
        raise InvalidRequest(
            f"{what}: expected an object with parameters, not {_kind(parameters)}",
            hint="a store, durable or template is removed with DELETE" if parameters is None else "",
        )
    return dict(cast(Json, parameters))


def _kind(value: object) -> str:
    """What kind of value was given. Not the value: it may be a token."""
    return "null" if value is None else f"a {type(value).__name__}"
