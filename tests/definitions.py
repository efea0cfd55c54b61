"""A whole definition of stores as the command that puts it in force."""

from __future__ import annotations

from holdfast.stores.definitions.cluster import ClusterDefinition, parse_definition
from holdfast.stores.definitions.parts import parts_between
from holdfast.stores.machine.state import State
from holdfast.stores.values.commands import Redefine


def define(
    definitions: bytes, state: State | None = None, *, at_ms: int = 0, delete: bool = True, drawn: int = 0
) -> Redefine:
    """What makes the definition of ``state`` (None: that of new stores) the one in the JSON."""
    before, revision = (ClusterDefinition(), 0) if state is None else (state.definition, state.revision)
    parts = parts_between(before, parse_definition(definitions))
    return Redefine(at_ms, parts, revision + 1, "", delete, drawn)
