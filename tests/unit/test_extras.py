"""Each extra of the package brings all that its part imports: read from the sources, without installing anything."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ROOT / "src"
PARTS: Final = {
    "": ("holdfast", "holdfast.queue"),
    "client": ("holdfast.client", "holdfast.aio", "holdfast.view"),
    "console": ("holdfast.console",),
    "server": ("holdfast.server", "holdfast.commit", "holdfast.objects", "holdfast.stores", "holdfast.settings"),
    "segments": ("holdfast.segments",),
    "etcd": ("holdfast.objects.etcd",),
    "spark": ("holdfast.spark", "pyspark_holdfast"),
}
"""What each extra is for: every module of these packages, and what those import."""
OF_ANOTHER: Final = {
    "server": ("holdfast.segments", "holdfast.objects.etcd.channel"),
    "console": ("holdfast.segments",),
    "segments": ("holdfast.objects.etcd.channel",),
}
"""Packages that a part loads when a setting asks for them; then the other extra is needed, too."""
ON_REQUEST: Final = {
    ("holdfast.console.pages.pipelines", "deltalake"),
    ("holdfast.console.pages.pipelines", "deltalake.exceptions"),
    ("holdfast.spark.source.frames", "msgpack"),
    ("holdfast.spark.typed.exact", "msgpack"),
    ("holdfast.wire.formats", "msgpack"),
}
"""Imports within functions for what only some applications have; the reference says so. Bodies in msgpack come to the
service alone, which imports the package itself."""


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES: Final = modules()


def statements(body: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import that can run, those in functions too; those for type checkers cannot."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from statements(node.orelse)
        else:
            yield from statements(ast.iter_child_nodes(node))


@cache
def imported(module: str) -> tuple[str, ...]:
    found: list[str] = []
    for node in statements(ast.parse(MODULES[module].read_text()).body):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        else:
            assert node.module is not None, "relative imports are banned"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if name in MODULES else node.module for name in inside]
    return tuple(found)


def packages_above(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts)))


def is_in(module: str, packages: Iterable[str]) -> bool:
    """Whether this is one of the packages or in one; ``holdfast`` itself is its first module alone."""
    return any(module == each or (each != "holdfast" and module.startswith(f"{each}.")) for each in packages)


def foreign_imports(extra: str) -> dict[str, set[str]]:
    """What the modules of an extra's part, and those that they import, need from elsewhere, and which of them do."""
    elsewhere = OF_ANOTHER.get(extra, ())
    todo = [name for name in MODULES if is_in(name, PARTS[extra]) and not is_in(name, elsewhere)]
    seen = set(todo)
    found: dict[str, set[str]] = {}
    while todo:
        module = todo.pop()
        for name in imported(module):
            if name in MODULES:
                new = {each for each in (name, *packages_above(name)) if not is_in(each, elsewhere)}
                todo += new - seen
                seen |= new
            elif (module, name) not in ON_REQUEST:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top != "__main__":
                    found.setdefault(top, set()).add(module)
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def brought_by(extra: str) -> set[str]:
    """The distributions that ``extra`` requires, and those that they require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
    todo = [Requirement(line) for line in declared]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        if requirement.name == project["name"]:
            todo += [Requirement(line) for own in requirement.extras for line in project["optional-dependencies"][own]]
            continue
        key = (normal(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            lines = requires(requirement.name) or []
        except PackageNotFoundError:
            continue  # of another platform
        for line in lines:
            inner = Requirement(line)
            if inner.marker is None or any(
                inner.marker.evaluate({"extra": each}) for each in (*requirement.extras, "")
            ):
                todo.append(inner)
    return {name for name, _ in seen}


@pytest.mark.parametrize("extra", PARTS)
def test_an_extra_brings_all_that_its_part_imports(extra: str) -> None:
    homes = packages_distributions()
    brought = brought_by(extra)
    lacking = {
        top: sorted(users)
        for top, users in foreign_imports(extra).items()
        if brought.isdisjoint(normal(home) for home in homes.get(top, [top]))
    }
    assert lacking == {}


def test_the_check_finds_an_import_that_no_extra_brings() -> None:
    assert "pyspark" in foreign_imports("spark")
    assert "pyspark" not in brought_by("client") | brought_by("server") | brought_by("")
