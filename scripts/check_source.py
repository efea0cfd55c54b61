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


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function's body, without its docstring."""
    body = node.body
    if ast.get_docstring(node) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


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
