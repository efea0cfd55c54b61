"""House rules that no linter knows: sizes, names, durable names in the file system, and the texts of refusals.

Run by ``make check``. A function above 60 lines needs a reason in ``ARGUED``. A module above 700 lines needs one in its
docstring: a sentence that begins with "One module because". ``scripts/source_baseline.json`` lists what broke a rule
when the rule came; nothing may be added to it, and ``--write`` removes what is repaired.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src"
BASELINE = ROOT / "scripts" / "source_baseline.json"
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 700
FOLDER_MODULES_MAX = 15
LONG_MODULE = re.compile(r"\bOne module because\b")
FORBIDDEN_NAMES = {"utils", "helpers", "manager", "managers", "common", "misc", "util", "helper"}
FORBIDDEN_WORDS = ("TODO", "FIXME", "XXX")
PARTICIPLES = {
    "asked", "found", "given", "held", "kept", "known", "made", "named", "seen", "sent", "shown", "taken", "told",
    "wanted", "written",
}  # fmt: skip
"""A local name or parameter says what it is, not what was done to it: ``problems``, not ``found``."""
GENERATED = "holdfast/client/sync"
TWINS = re.compile(r"/aio(?=/)|(?<=/)(aio|sync)(?=[._])")
"""Parts of a path that only say which of two twins, asyncio or threads, a module has: their classes share names."""

ARGUED: dict[str, str] = {
    "holdfast/commit/format/batch.py:decode_header": "one call, one line for each field of the format",
    "holdfast/commit/format/batch.py:encode_body": "one pass over the rows, column by column: the hottest loop",
}

DURABLE = "holdfast/files/durable_directory.py"
CONFINED: dict[str, dict[str, str]] = {
    "mkdir": {DURABLE: "the one function that makes a directory and all names above it durable"},
    "makedirs": {},
    "copytree": {
        "holdfast/stores/repair/damage.py": "make_durable_directory makes the copy's own name, and sync_tree all in it"
    },
    "make_directory": {
        DURABLE: "as mkdir",
        "holdfast/objects/directory/objects.py": "a folder of a log: its name is synced before an object in it counts",
        "holdfast/queue/core.py": "the queue's port, which is make_durable_directory",
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
    problems: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        function = node.func
        last = function.id if isinstance(function, ast.Name) else function.attr
        whole = ast.unparse(function)
        if any(name not in CONFINED.get(each, {name: ""}) for each in (last, whole)):
            problems.append(f"{name}:{node.lineno}: {whole} makes a name that may not be durable: see CONFINED")
    return problems


def problems_of(path: Path, tree: ast.Module, text: str) -> list[str]:
    """What one file breaks on its own."""
    name = path.relative_to(SOURCES).as_posix()
    problems: list[str] = []
    if path.stem in FORBIDDEN_NAMES:
        problems.append(f"{name}: a module has one reason to exist, and `{path.stem}` names none")
    if not ast.get_docstring(tree):
        problems.append(f"{name}: no module docstring")
    problems += [
        f"{name}:{number}: `{word}` on main"
        for number, line in enumerate(text.splitlines(), 1)
        for word in FORBIDDEN_WORDS
        if word in line
    ]
    problems += confined_calls(tree, name)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and function_lines(node) > FUNCTION_LINES_MAX:
            if f"{name}:{node.name}" not in ARGUED:
                problems.append(f"{name}:{node.lineno}: {node.name} has {function_lines(node)} lines")
    return problems


# ---- rules with a baseline: what breaks them now, as keys with a number ---------------------------------------------


def long_modules(trees: Mapping[str, ast.Module], lines: Mapping[str, int]) -> dict[str, int]:
    """Modules above 700 lines whose docstring gives no reason."""
    return {
        name: lines[name]
        for name, tree in trees.items()
        if lines[name] > MODULE_LINES_MAX and not LONG_MODULE.search(ast.get_docstring(tree) or "")
    }


def full_folders(names: Iterable[str]) -> dict[str, int]:
    """Folders with more than fifteen modules."""
    counts = Counter(name.rpartition("/")[0] for name in names if not name.endswith("/__init__.py"))
    return {folder: count for folder, count in counts.items() if count > FOLDER_MODULES_MAX}


def repeated_classes(trees: Mapping[str, ast.Module]) -> dict[str, int]:
    """Names of public classes that several modules define. Twins for asyncio and threads count as one."""
    homes: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(TWINS.sub("", name))
    return {name: len(modules) for name, modules in homes.items() if len(modules) > 1}


def bound_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The parameters and local names of a function, without those of functions inside it."""
    arguments = function.args
    yield from (each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        waiting += ast.iter_child_nodes(node)


def participles(trees: Mapping[str, ast.Module]) -> dict[str, int]:
    """How many functions have a participle as a local name or parameter, by participle."""
    return Counter(
        word
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for word in sorted(PARTICIPLES.intersection(bound_names(node)))
    )


# ---- refusals --------------------------------------------------------------------------------------------------------


def pattern_of(text: ast.expr) -> str | None:
    """What a message looks like, with any text in place of its values; None for one that is not written here."""
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return re.escape(text.value)
    if isinstance(text, ast.JoinedStr):
        return "".join(pattern_of(part) if isinstance(part, ast.Constant) else ".+" for part in text.values)
    return None


def strings_of_tests() -> set[str]:
    """Every text of several words in a test that is not a docstring."""
    texts: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = None  # a docstring, which the walk visits after this
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                texts.add(node.value)
    return texts


def unnamed_refusals(trees: Mapping[str, ast.Module]) -> list[str]:
    """Every ``PermissionDenied`` whose text no test names as a whole."""
    texts = strings_of_tests()
    problems: list[str] = []
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] != "PermissionDenied":
                continue
            pattern = pattern_of(node.args[0]) if node.args else None
            if pattern is None:
                problems.append(f"{name}:{node.lineno}: write the text of this PermissionDenied here")
            elif not any(re.fullmatch(pattern, text) for text in texts):
                problems.append(f"{name}:{node.lineno}: no test names the text of this PermissionDenied")
    return problems


def against_baseline(now: Mapping[str, Mapping[str, int]], *, write: bool) -> list[str]:
    """What is worse than the baseline. ``write`` lowers the baseline to what is left of it."""
    before: dict[str, dict[str, int]] = json.loads(BASELINE.read_text(encoding="utf-8"))
    problems = [
        f"{rule}: {key} ({number}, in {BASELINE.name} {before[rule].get(key, 0)})"
        for rule, numbers in now.items()
        for key, number in sorted(numbers.items())
        if number > before[rule].get(key, 0)
    ]
    if write:
        for rule, numbers in now.items():
            left = {key: min(number, numbers[key]) for key, number in before[rule].items() if key in numbers}
            before[rule] = dict(sorted(left.items()))
        BASELINE.write_text(json.dumps(before, indent=1) + "\n", encoding="utf-8")
    return problems


def main() -> int:
    """Print every problem; the answer is the exit code."""
    texts = {
        path.relative_to(SOURCES).as_posix(): path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.py"))
    }
    trees = {name: ast.parse(text) for name, text in texts.items()}
    problems = [problem for name, tree in trees.items() for problem in problems_of(SOURCES / name, tree, texts[name])]
    written = {name: tree for name, tree in trees.items() if not name.startswith(GENERATED)}
    problems += unnamed_refusals(written)
    now = {
        "a module above 700 lines needs a reason in its docstring": long_modules(
            written, {name: len(texts[name].splitlines()) for name in written}
        ),
        "a folder has at most fifteen modules": full_folders(written),
        "the name of a class is defined once": repeated_classes(written),
        "a participle is not a name": participles(written),
    }
    problems += against_baseline(now, write="--write" in sys.argv[1:])
    problems += [
        f"scripts/check_source.py argues for {entry}, which is gone"
        for entry in ARGUED
        if not (SOURCES / entry.partition(":")[0]).exists()
    ]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
