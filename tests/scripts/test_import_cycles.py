"""No module of the package imports itself through others, also not inside functions or for types alone."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def imports_of(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_no_module_imports_itself_through_others() -> None:
    imports = imports_of(grimp.build_graph("holdfast", cache_dir=None))
    assert sum(map(len, imports.values())) > 1000, "the imports were found"
    TopologicalSorter(imports).prepare()


def test_a_cycle_is_named() -> None:
    graph = grimp.build_graph("holdfast", cache_dir=None)
    graph.add_import(importer="holdfast.errors", imported="holdfast.queue.queue")
    with pytest.raises(CycleError, match=r"holdfast\.errors"):
        TopologicalSorter(imports_of(graph)).prepare()
