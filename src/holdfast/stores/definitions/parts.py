"""The parts of a definition: changes of single durables, and which changes a running cluster allows.

| path | part |
|---|---|
| ``("cluster",)`` | the cluster's own parameters |
| ``("permissions",)`` | users and roles, as a whole |
| ``("stores", store)`` | a store's own parameters; without it the store is deleted with everything in it |
| ``("stores", store, "durables", durable)`` | a static durable |
| ``("stores", store, "templates", template)`` | a template |

Parts are applied together or refused together. Some parameters are immutable, because kept messages depend on them:

| of | parameter | because |
|---|---|---|
| store | `replicated` | its messages are on disk, or they are not |
| cluster | `persistence` between `none` and another | the same, for every store that stays |
| durable, template | `type` | another type keeps other things |
| durable, template | `matcher` | every kept message was counted by it |
| durable, template | `prefetch` between 0 and more | 0 asks for a path that bypasses the service |
| durable, template | `key_field`, `key_ordered` | the entries, and the subscriber of each key, follow from it |

To replace such a thing, remove it in one definition and add the new one in the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

import msgspec

from holdfast.errors import Code, InvalidRequest, LimitExceeded
from holdfast.stores.definitions.cluster import (
    SECTIONS,
    ClusterDefinition,
    DurableDefinition,
    Persistence,
    StoreDefinition,
    TemplateDefinition,
    check_dead_letters,
    check_references,
    dead_letter_targets,
    definition_of,
    read_cluster,
    read_durable,
    read_store,
)
from holdfast.stores.definitions.permissions import permissions_document, read_permissions
from holdfast.stores.definitions.reader import FieldReader, check_name, raise_problems
from holdfast.stores.values.commands import DefinitionPart
from holdfast.wire.formats import UNDECODABLE, decode_each_once

Path = tuple[str, ...]
DURABLES: Final = "durables"
TEMPLATES: Final = "templates"
CHANGE_BYTES_MAX: Final = 16 << 20
"""A change is one record of a log that has stores, and some stores refuse larger objects for good."""


def with_parts(definition: ClusterDefinition, parts: Iterable[DefinitionPart]) -> ClusterDefinition:
    """The definition with these parts, without those that have no document.

    *Raises*: ``InvalidRequest``, code ``bad_configuration``, naming every problem.

    >>> durable = DefinitionPart(("stores", "o", "durables", "w"), b'{"type": "shared"}')
    >>> changed = with_parts(ClusterDefinition(), [DefinitionPart(("stores", "o"), b"{}"), durable])
    >>> list(changed.stores["o"].durables)
    ['w']
    """
    problems: list[str] = []
    of_stores: dict[str, dict[Path, DefinitionPart]] = {}
    for part in parts:
        match part.path:
            case ("cluster",):
                cluster = read_cluster(_reader(part, problems))
                definition = replace(cluster, stores=definition.stores, permissions=definition.permissions)
            case ("permissions",):
                definition = replace(definition, permissions=read_permissions(_reader(part, problems)))
            case ("stores", of_store) | ("stores", of_store, ("durables" | "templates"), _):
                of_stores.setdefault(of_store, {})[part.path[2:]] = part
            case _:
                problems.append(f"{'.'.join(part.path)}: a definition has no such part")
    stores = dict(definition.stores)
    for name, changed in of_stores.items():
        store = _changed_store(stores.get(name), name, changed, problems)
        if store is None:
            stores.pop(name, None)
        else:
            stores[name] = store
    _check_letters(definition.stores, stores, of_stores, problems)
    raise_problems(problems)
    return replace(definition, stores=stores)


def _reader(part: DefinitionPart, problems: list[str]) -> FieldReader:
    path = ".".join(part.path)
    try:
        document: object = decode_each_once(part.document, object) if part.document else {}
    except UNDECODABLE as error:
        raise InvalidRequest(f"{path} is not JSON", code=Code.BAD_CONFIGURATION, facts={"reason": str(error)}) from None
    return FieldReader(document, path, problems)


def _changed_store(
    before: StoreDefinition | None, name: str, parts: Mapping[Path, DefinitionPart], problems: list[str]
) -> StoreDefinition | None:
    own = parts.get(())
    if own is not None and not own.document:
        return None
    path = f"stores.{name}"
    if before is None:
        _check_name("store", name, path, problems)
        before = StoreDefinition(name)
        if own is None:
            problems.append(f"{path}: there is no such store")
    durables, templates = dict(before.durables), dict(before.templates)
    for rest, part in parts.items():
        match rest:
            case ("durables", durable):
                if part.document:
                    _check_name("durable", durable, path, problems)
                    durables[durable] = read_durable(durable, _reader(part, problems))
                else:
                    durables.pop(durable, None)
            case ("templates", template):
                if part.document:
                    _check_name("template", template, path, problems)
                    pattern = read_durable(template, _reader(part, problems), template=template)
                    templates[template] = TemplateDefinition(template, pattern)
                else:
                    templates.pop(template, None)
            case _:
                continue
    if own is not None:
        return read_store(name, _reader(own, problems), durables, templates)
    after = replace(before, durables=durables, templates=templates)
    check_references(after, FieldReader({}, path, problems))
    return after


def _check_name(kind: str, name: str, path: str, problems: list[str]) -> None:
    try:
        check_name(kind, name)
    except InvalidRequest as error:
        problems.append(f"{path}: {error}")


def _check_letters(
    before: Mapping[str, StoreDefinition],
    after: Mapping[str, StoreDefinition],
    changed: Mapping[str, Mapping[Path, DefinitionPart]],
    problems: list[str],
) -> None:
    gone = any(name not in after for name in changed if name in before)
    for name in after if gone else [name for name in changed if name in after]:
        targets = dead_letter_targets(after[name])
        if not gone:
            places = {".".join(rest) for rest in changed[name]}
            targets = {path: target for path, target in targets.items() if path in places}
        check_dead_letters(after, after[name], targets, problems)


def dead_letter_stores(definition: ClusterDefinition, store: str) -> set[str]:
    """The stores that durables and templates of a store name for their dead letters."""
    defined = definition.stores.get(store)
    return set() if defined is None else {*dead_letter_targets(defined).values()}


def new_dead_letters(before: ClusterDefinition, after: ClusterDefinition, parts: Iterable[DefinitionPart]) -> set[str]:
    """The stores that durables and templates of these parts name for their dead letters, and did not name before."""
    targets: set[str] = set()
    for part in parts:
        was, now = durable_at(before, part.path), durable_at(after, part.path)
        if now is not None and now.dead_letter_store != ("" if was is None else was.dead_letter_store):
            targets.add(now.dead_letter_store)
    return targets - {""}


def durable_at(definition: ClusterDefinition, path: Path) -> DurableDefinition | None:
    """The durable, or the pattern of the template, at a path; None where there is none."""
    match path:
        case ("stores", store, "durables", name) if store in definition.stores:
            return definition.stores[store].durables.get(name)
        case ("stores", store, "templates", name) if store in definition.stores:
            template = definition.stores[store].templates.get(name)
            return None if template is None else template.pattern
        case _:
            return None


def part_of(definition: ClusterDefinition, path: Path) -> DefinitionPart:
    """The part at a path with everything in force; without a document where there is none."""
    match path:
        case ("cluster",):
            document = definition.own_document()
        case ("permissions",):
            document = permissions_document(definition.permissions)
        case ("stores", name):
            document = definition.stores[name].own_document() if name in definition.stores else {}
        case _:
            durable = durable_at(definition, path)
            document = durable.document() if durable is not None else {}
    return DefinitionPart(path, msgspec.json.encode(document) if document else b"")


def changed_paths(before: ClusterDefinition, after: ClusterDefinition) -> list[Path]:
    """The path of every part that differs. *Cost*: parts that are the same object are not looked at."""
    paths: list[Path] = []
    if before.own_document() != after.own_document():
        paths.append(("cluster",))
    if before.permissions != after.permissions:
        paths.append(("permissions",))
    paths += [("stores", name) for name in before.stores if name not in after.stores]
    for name, store in after.stores.items():
        if (known := before.stores.get(name)) is not store:
            paths += [("stores", name, *rest) for rest in _changed_places(known, store)]
    return paths


def _changed_places(before: StoreDefinition | None, after: StoreDefinition) -> Iterator[Path]:
    if before is None:
        yield from _paths_of(after)
        return
    if replace(before, durables={}, templates={}) != replace(after, durables={}, templates={}):
        yield ()
    for kind, old, new in ((DURABLES, before.durables, after.durables), (TEMPLATES, before.templates, after.templates)):
        yield from ((kind, name) for name in old if name not in new)
        yield from ((kind, name) for name, one in new.items() if (was := old.get(name)) is not one and was != one)


def _paths_of(store: StoreDefinition) -> Iterator[Path]:
    yield ()
    yield from ((DURABLES, name) for name in store.durables)
    yield from ((TEMPLATES, name) for name in store.templates)


def parts_between(before: ClusterDefinition, after: ClusterDefinition) -> list[DefinitionPart]:
    """The parts that make ``after`` of ``before``."""
    return [part_of(after, path) for path in changed_paths(before, after)]


def undoing(before: ClusterDefinition, after: ClusterDefinition, paths: Iterable[Path]) -> list[DefinitionPart]:
    """The parts that make ``before`` of ``after`` again, where the two differ at these paths only."""
    parts: list[DefinitionPart] = []
    for path in paths:
        if len(path) == 2 and path[1] not in after.stores and path[1] in before.stores:
            parts += [part_of(before, (*path, *rest)) for rest in _paths_of(before.stores[path[1]])]
        else:
            parts.append(part_of(before, path))
    return parts


def full_parts(before: ClusterDefinition, parts: Iterable[DefinitionPart]) -> list[DefinitionPart]:
    """These parts with every parameter in force, without those that change nothing. *Raises*: as ``with_parts``."""
    parts = list(parts)
    after = with_parts(before, parts)
    full = [part_of(after, path) for path in dict.fromkeys(part.path for part in parts)]
    return [part for part in full if part != part_of(before, part.path)]


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs. ``before`` is None if it is added, ``after`` if it is removed."""

    path: str
    before: object
    after: object

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.path}: {self.after!r}"
        if self.after is None:
            return f"- {self.path}: {self.before!r}"
        return f"~ {self.path}: {self.before!r} -> {self.after!r}"


def differences(before: ClusterDefinition, after: ClusterDefinition) -> list[Difference]:
    """Every value that differs, by path. A thing that comes or goes is one difference, with all of it.

    >>> from holdfast.stores.definitions.cluster import parse_definition
    >>> for difference in differences(parse_definition(b'{"stores": {"a": {"bytelimit": "1k"}}}'),
    ...                               parse_definition(b'{"stores": {"a": {"bytelimit": "2k"}}}')):
    ...     print(difference)
    ~ stores.a.bytelimit: 1024 -> 2048
    """
    return list(_differences("", before.document(), after.document()))


def _differences(path: str, before: object, after: object) -> Iterator[Difference]:
    if before == after and type(before) is type(after):
        return
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        yield Difference(path, before, after)
        return
    old, new = cast("Mapping[str, object]", before), cast("Mapping[str, object]", after)
    for name in sorted(old.keys() | new.keys()):
        full_path = f"{path}.{name}" if path else name
        if name not in new:
            yield Difference(full_path, old[name], None)
        elif name not in old:
            yield Difference(full_path, None, new[name])
        else:
            yield from _differences(full_path, old[name], new[name])


def require_size(parts: Iterable[DefinitionPart]) -> None:
    """Return unless these parts are too large for one record of a log. Raises: LimitExceeded."""
    size = sum(len(part.document) for part in parts)
    if size > CHANGE_BYTES_MAX:
        raise LimitExceeded(
            "the change of the definition is too large",
            hint="send the stores in several definitions",
            bytes=size,
            max=CHANGE_BYTES_MAX,
        )


def keep_sections(current: ClusterDefinition, wanted: ClusterDefinition) -> ClusterDefinition:
    """``wanted``, and what only ``current`` has of stores, durables and templates: nothing that keeps messages is
    removed.

    A section ``cluster`` or ``permissions`` that ``wanted`` was not given stays. Raises ``InvalidRequest`` if the two
    conflict.
    """
    stores = dict(wanted.stores)
    for name, store in current.stores.items():
        before = stores.get(name, store)
        stores[name] = replace(
            before, durables={**store.durables, **before.durables}, templates={**store.templates, **before.templates}
        )
    known = current.document()
    sections = {name: known[name] for name in sorted(SECTIONS - wanted.sections_given)}
    return definition_of({**replace(wanted, stores=stores).document(), **sections})


def check_change(before: ClusterDefinition, after: ClusterDefinition, paths: Iterable[Path]) -> None:
    """Refuse changes that a running cluster does not allow; the two differ at these paths only.

    Raises ``InvalidRequest``, naming every path: code ``type_mismatch`` for a durable's type, else ``matcher_mismatch``
    for its matcher, else ``bad_configuration``.
    """
    problems = [problem for path in paths for problem in _problems(before, after, path)]
    if not problems:
        return
    codes = [code for code, _ in problems]
    only_persistence = all(path == ("cluster",) for path in paths)
    order = (Code.TYPE_MISMATCH, Code.MATCHER_MISMATCH, Code.BAD_CONFIGURATION)
    raise InvalidRequest(
        "the definition changes what cannot change: " + "; ".join(text for _, text in problems),
        code=next(code for code in order if code in codes),
        hint="begin with new stores in another directory: the stores that are there keep to the way they were made"
        if only_persistence
        else "remove it in one definition and add the new one in the next; its messages are deleted with it",
        facts={"problems": len(problems)},
    )


def _problems(before: ClusterDefinition, after: ClusterDefinition, path: Path) -> list[tuple[Code, str]]:
    if path == ("cluster",):
        kept_nothing, keeps_nothing = (each.persistence is Persistence.NONE for each in (before, after))
        if kept_nothing != keeps_nothing and before.stores.keys() & after.stores.keys():
            return [(Code.BAD_CONFIGURATION, f"cluster.persistence {before.persistence} -> {after.persistence}")]
        return []
    text = ".".join(path)
    if len(path) == 2:
        old, new = (each.stores.get(path[1]) for each in (before, after))
        if old is not None and new is not None and old.replicated != new.replicated:
            return [(Code.BAD_CONFIGURATION, f"{text}.replicated {old.replicated} -> {new.replicated}")]
        return []
    was, becomes = (durable_at(each, path) for each in (before, after))
    return [] if was is None or becomes is None else _durable_problems(text, was, becomes)


def _durable_problems(path: str, before: DurableDefinition, after: DurableDefinition) -> list[tuple[Code, str]]:
    if before.type is not after.type:
        return [(Code.TYPE_MISMATCH, f"{path}.type {before.type} -> {after.type}")]
    problems: list[tuple[Code, str]] = []
    if before.matcher != after.matcher:
        problems.append((Code.MATCHER_MISMATCH, f"{path}.matcher"))
    if (before.prefetch == 0) != (after.prefetch == 0):
        problems.append((Code.BAD_CONFIGURATION, f"{path}.prefetch {before.prefetch} -> {after.prefetch}"))
    if before.key_field != after.key_field:
        problems.append((Code.BAD_CONFIGURATION, f"{path}.key_field {before.key_field!r} -> {after.key_field!r}"))
    if before.key_ordered != after.key_ordered:
        problems.append((Code.BAD_CONFIGURATION, f"{path}.key_ordered {before.key_ordered} -> {after.key_ordered}"))
    return problems
