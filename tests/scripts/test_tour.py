"""The tour of the code: every place that the page names is in the code.

Files are read as syntax trees, so that a page about Spark needs no Spark.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs/explain/tour-of-the-code.md"
PLACE = re.compile(r"`([\w/]+\.py)::([\w.]+)`")
SECTIONS = ["One commit", "One published message", "One `queue.append`", "One Spark read"]


def places() -> list[tuple[str, str]]:
    """Each file and name of the page, once."""
    return sorted(set(PLACE.findall(PAGE.read_text(encoding="utf-8"))))


def names_of(statement: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    """The names that a statement defines, those inside an ``if``, ``with`` or ``try`` included."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, statement
        case ast.Assign(targets=targets):
            yield from ((target.id, statement) for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name, statement
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name, statement) for alias in aliases)
        case ast.If() | ast.With() | ast.Try():
            for inner in statement.body:
                yield from names_of(inner)
        case _:
            pass


def problem_with(file: str, name: str) -> str | None:
    """Why this place is wrong, None where it exists."""
    path = ROOT / "src" / file
    if not path.is_file():
        return f"{file}: no such file"
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for part in name.split("."):
        defined = dict(pair for statement in body for pair in names_of(statement))
        if part not in defined:
            return f"{file}: {name} is not defined"
        found = defined[part]
        body = found.body if isinstance(found, ast.ClassDef) else []
    return None


@pytest.mark.parametrize(("file", "name"), places())
def test_every_place_that_the_tour_names_exists(file: str, name: str) -> None:
    assert problem_with(file, name) is None


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("holdfast/commit/no_such_file.py", "Pipeline.step"),
        ("holdfast/commit/stages/pipeline.py", "NoSuchClass"),
        ("holdfast/commit/stages/pipeline.py", "NoSuchClass.step"),
        ("holdfast/commit/stages/pipeline.py", "Pipeline.no_such_method"),
        ("holdfast/commit/format/batch.py", "no_such_function"),
        ("holdfast/commit/format/batch.py", "encode_body.step"),
    ],
)
def test_a_wrong_place_is_reported(file: str, name: str) -> None:
    assert problem_with(file, name) is not None


def test_each_section_of_the_tour_names_places() -> None:
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    assert [section.partition("\n")[0] for section in sections] == SECTIONS
    assert all(PLACE.search(section) for section in sections)


def test_every_file_name_of_the_tour_is_written_as_a_place() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = set(re.findall(r"[\w/]+\.py\b", text)) - {"tests/scripts/test_tour.py"}
    assert written == {file for file, _ in places()}, "a file without its function is not checked"
