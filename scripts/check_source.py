"""House rules that no linter knows: a docstring for each module, short functions, names that say something.

Run by ``make check``. A function above 60 lines needs a reason in ``ARGUED``.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src"
FUNCTION_LINES_MAX = 60
FORBIDDEN_NAMES = {"utils", "helpers", "manager", "managers", "common", "misc", "util", "helper"}
FORBIDDEN_WORDS = ("TODO", "FIXME", "XXX")

ARGUED: dict[str, str] = {
    "holdfast/commit/format/batch.py:decode_header": "one call, one line for each field of the format",
    "holdfast/commit/format/batch.py:encode_body": "one pass over the rows, column by column: the hottest loop",
}

DURABLE = "holdfast/durable_directory.py"
CONFINED: dict[str, dict[str, str]] = {
    "mkdir": {DURABLE: "the one function that makes a directory and all names above it durable"},
    "makedirs": {},
    "copytree": {
        "holdfast/stores/repair/damage.py": "make_durable_directory makes the copy's own name, and sync_tree all in it"
    },
    "make_directory": {
        DURABLE: "as mkdir",
        "holdfast/objects/directory/objects.py": "a folder of a log: its name is synced before an object in it counts",
        "holdfast/queue/queue.py": "the queue's port, which is make_durable_directory",
    },
    "rename": {
        "holdfast/objects/directory/objects.py": "an object's file: its data are synced before, and its folder after",
        "holdfast/queue/files/pages.py": "the queue's port: the caller syncs the directory",
        "holdfast/queue/repair/repair.py": "the queue's port: the directory is synced after it",
        "holdfast/server/moving.py": "files of stores: synced before, and both directories after",
        "holdfast/stores/checkpoint_objects.py": "a fetched checkpoint: synced before, and the directory above after",
    },
    "os.replace": {
        DURABLE: "the one function that replaces a file durably",
        "holdfast/queue/files/local.py": "the queue's port: the caller syncs the directory",
    },
}
"""Calls that make or move a name in the file system, the modules that may have them, and why the name is durable where
somebody relies on it. Other modules call ``make_durable_directory`` or ``replace_durably``. Temporary directories
(``tempfile``) are exempt: nothing in them is needed after a crash."""


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function's body, without its docstring."""
    body = node.body
    if ast.get_docstring(node) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def confined_calls(tree: ast.Module, name: str) -> list[str]:
    """Calls of ``CONFINED`` in a module that may not have them."""
    found: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        function = node.func
        last = function.id if isinstance(function, ast.Name) else function.attr
        whole = ast.unparse(function)
        if any(name not in CONFINED.get(each, {name: ""}) for each in (last, whole)):
            found.append(f"{name}:{node.lineno}: {whole} makes a name that may not be durable: see CONFINED")
    return found


def problems_of(path: Path) -> list[str]:
    """What one file breaks."""
    name = path.relative_to(SOURCES).as_posix()
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    found: list[str] = []
    if path.stem in FORBIDDEN_NAMES:
        found.append(f"{name}: a module has one reason to exist, and `{path.stem}` names none")
    docstring = ast.get_docstring(tree)
    if not docstring:
        found.append(f"{name}: no module docstring")
    found += [
        f"{name}:{number}: `{word}` on main"
        for number, line in enumerate(text.splitlines(), 1)
        for word in FORBIDDEN_WORDS
        if word in line
    ]
    found += confined_calls(tree, name)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and function_lines(node) > FUNCTION_LINES_MAX:
            if f"{name}:{node.name}" not in ARGUED:
                found.append(f"{name}:{node.lineno}: {node.name} has {function_lines(node)} lines")
    return found


def main() -> int:
    """Print every problem; the answer is the exit code."""
    found = [problem for path in sorted(SOURCES.rglob("*.py")) for problem in problems_of(path)]
    for problem in found:
        print(problem)
    stale = [entry for entry in ARGUED if not (SOURCES / entry.partition(":")[0]).exists()]
    for entry in stale:
        print(f"scripts/check_source.py argues for {entry}, which is gone")
    return 1 if found or stale else 0


if __name__ == "__main__":
    sys.exit(main())
