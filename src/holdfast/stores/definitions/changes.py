"""What may change between two definitions of a cluster, and what does.

Owns: which parameters of a thing that stays cannot change, the list of differences. Does not own: carrying a change out
(``state``), history and rollback (the server).

Immutable, because what is kept already was decided by the old value:

| of | parameter | because |
|---|---|---|
| store | `replicated` | its messages are on disk, or they are not |
| cluster | `persistence` between `none` and another | the same, for every store that stays |
| durable, template | `type` | another type keeps other things |
| durable, template | `matcher` | every message kept was counted by it; another interest is another durable |
| durable, template | `prefetch` between 0 and more | the one asks for a path beside the service |
| durable, template | `key_field`, `key_ordered` | the entries, and who holds which key, follow from it |

Everything else changes while subscribers are connected. To replace a thing, take it away in one definition and give the
new one in the next; what it kept goes with it.

Failure model: pure; a change is refused whole, and the error names every path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import cast

import msgspec

from holdfast.errors import Code, InvalidRequest
from holdfast.stores.definitions.definitions import (
    SECTIONS,
    ClusterDefinition,
    DurableDefinition,
    Persistence,
    definition_of,
)
from holdfast.stores.definitions.parts import Path, durable_at

__all__ = ["Difference", "check_change", "differences"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs. ``before`` is None where it is added, ``after`` where it is taken away."""

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

    >>> from holdfast.stores.definitions.definitions import parse_definition
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
        place = f"{path}.{name}" if path else name
        if name not in new:
            yield Difference(place, old[name], None)
        elif name not in old:
            yield Difference(place, None, new[name])
        else:
            yield from _differences(place, old[name], new[name])


def beside(current: ClusterDefinition, wanted: ClusterDefinition) -> ClusterDefinition:
    """``wanted``, and what only ``current`` has of stores, durables and templates: nothing that keeps messages goes.

    A section ``cluster`` or ``permissions`` that ``wanted`` was not given stays as it is. Raises ``InvalidRequest``
    where the two do not go together.
    """
    document = msgspec.json.decode(wanted.json(), type=dict[str, object])
    stores = msgspec.convert(document.get("stores", {}), dict[str, dict[str, object]])
    known = current.document()
    kept = msgspec.convert(known.get("stores", {}), dict[str, dict[str, object]])
    for name, store in kept.items():
        named = stores.setdefault(name, store)
        for kind in ("durables", "templates"):
            of_both = (msgspec.convert(each.get(kind, {}), dict[str, object]) for each in (store, named))
            named[kind] = dict(chain.from_iterable(each.items() for each in of_both))
    sections = {name: known[name] for name in sorted(SECTIONS - wanted.sections_given)}
    return definition_of({**document, **sections, "stores": stores})


def check_change(before: ClusterDefinition, after: ClusterDefinition, paths: Iterable[Path]) -> None:
    """Nothing where every thing that stays can become what it shall be; the two differ at these paths only.

    Raises ``InvalidRequest``: code ``type_mismatch`` for a durable's type, ``matcher_mismatch`` for its matcher,
    ``bad_configuration`` for the rest; the first of these that applies, with every path in the text.
    """
    problems = [problem for path in paths for problem in _problems(before, after, path)]
    if not problems:
        return
    codes = [code for code, _ in problems]
    order = (Code.TYPE_MISMATCH, Code.MATCHER_MISMATCH, Code.BAD_CONFIGURATION)
    raise InvalidRequest(
        "the definition changes what cannot change: " + "; ".join(text for _, text in problems),
        code=next(code for code in order if code in codes),
        hint="remove it in one definition and add the new one in the next; its messages are deleted with it",
        facts={"problems": len(problems)},
    )


def _problems(before: ClusterDefinition, after: ClusterDefinition, path: Path) -> list[tuple[Code, str]]:
    if path == ("cluster",):
        kept_nothing, keeps_nothing = (found.persistence is Persistence.NONE for found in (before, after))
        if kept_nothing != keeps_nothing and before.stores.keys() & after.stores.keys():
            return [(Code.BAD_CONFIGURATION, f"cluster.persistence {before.persistence} -> {after.persistence}")]
        return []
    text = ".".join(path)
    if len(path) == 2:
        old, new = (found.stores.get(path[1]) for found in (before, after))
        if old is not None and new is not None and old.replicated != new.replicated:
            return [(Code.BAD_CONFIGURATION, f"{text}.replicated {old.replicated} -> {new.replicated}")]
        return []
    was, becomes = (durable_at(found, path) for found in (before, after))
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
