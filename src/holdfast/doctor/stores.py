"""The message stores of this machine: whose dead letters go into another store.

The service writes dead letters by itself, so such a link leads from one store into another for anybody who may publish
into the first. It is read from the last checkpoint of the stores' files; what was defined since is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast.doctor.finding import Finding, Level
from holdfast.errors import HoldfastError
from holdfast.settings import Settings
from holdfast.stores.definitions.cluster import ClusterDefinition
from holdfast.stores.repair.reader import checkpointed_definition
from holdfast.stores.storage.index import INDEX_NAME

DEAD_LETTERS: Final = "dead letters"


def check_stores(settings: Settings) -> Iterator[Finding]:
    """Look at each directory with stores of this machine: that of stores in files, and the copies of those in logs."""
    if settings.stores.hosted is None or settings.log.scheme == "memory":
        return
    directory = Path(settings.stores.hosted)
    for index in sorted((*directory.glob(INDEX_NAME), *directory.glob(f"*/*/{INDEX_NAME}"))):
        yield _dead_letters(index.parent)


def _dead_letters(directory: Path) -> Finding:
    try:
        definition = checkpointed_definition(str(directory))
    except HoldfastError as error:
        fix = "`holdfast stores verify` says what is damaged, when the service has stopped"
        return Finding(Level.WARNING, DEAD_LETTERS, f"the stores cannot be read: {error.statement()}", fix)
    links = [] if definition is None else crossing(definition)
    text = "; ".join(links) if links else "none goes into another store"
    return Finding(Level.OK, DEAD_LETTERS, f"{text} ({directory})")


def crossing(definition: ClusterDefinition) -> list[str]:
    """The durables and templates whose dead letters go into another store, and which one: none may name its own."""
    links: list[str] = []
    for name, store in definition.stores.items():
        patterns = {f"durable {each}": durable for each, durable in store.durables.items()}
        patterns |= {f"template {each}": template.pattern for each, template in store.templates.items()}
        links += [
            f"{what} of {name} to {durable.dead_letter_store}"
            for what, durable in patterns.items()
            if durable.dead_letter_store
        ]
    return links
