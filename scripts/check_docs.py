"""The documentation, checked: links and anchors lead somewhere, commands exist, tables agree with the code.

Run by ``make docs``. Checks every Markdown file of the repository:

1. a relative link names a file that exists, and its anchor a heading of that file;
2. every ``make target`` and ``holdfast command --option`` that is quoted exists;
3. the configuration reference lists exactly the keys, defaults and rules of ``holdfast.settings``;
4. the exit-code reference lists exactly the codes of ``holdfast.cli.output``, the API reference only known error codes;
5. every page under docs/ can be reached from README.md;
6. the reference of rights shows exactly the table of ``holdfast.server.http.rights_table``;
7. the reference has every public name of Python, and names none that does not exist. ``source_baseline.json`` lists
   attributes that it has not yet.

``--write`` rewrites the generated tables instead of complaining.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
import sys
from enum import Enum
from itertools import groupby
from pathlib import Path

from check_source import against_baseline

from holdfast.cli.output import Exit
from holdfast.errors import Code
from holdfast.server.http.auth import Role
from holdfast.server.http.responses import STATUS_OF
from holdfast.server.http.rights_table import RIGHTS, Need
from holdfast.settings import KEYS, load_configuration

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
MAKE = re.compile(r"(?:^\s*|`)make ([a-z][a-z0-9-]*)", re.MULTILINE)
COMMAND = re.compile(
    r"(?:^\s*|`)holdfast ((?:(?:log|queue|retention|spark|stores) )?[a-z][a-z-]*)((?: [^`\n|&<>]*)?)", re.MULTILINE
)
OPTION = re.compile(r"(?<=\s)--[a-z][a-z-]*")
BEGIN, END = "<!-- generated: keys -->", "<!-- end of generated -->"
BEGIN_RIGHTS = "<!-- generated: rights -->"
PUBLIC_MODULES = (
    "holdfast", "holdfast.aio", "holdfast.client", "holdfast.client.stores", "holdfast.queue", "holdfast.spark",
    "holdfast.view",
)  # fmt: skip
CODE = re.compile(r"^```.*?^```|`[^`]+`", re.MULTILINE | re.DOTALL)
DOTTED = re.compile(r"(?<![\w./-])holdfast(?:\.[A-Za-z_]\w*)+(?![\w.-])")
NO_NAMES = {"holdfast.stores.v1", "holdfast.toml", "holdfast.yaml"}
"""A protocol of WebSockets, and files."""
CALL = re.compile(r"^\.?(?!function\b)([a-z_][a-z0-9_]*)\(")
CLIENT_PAGES = ("client.md", "queue.md", "stores-client.md")


def pages() -> list[Path]:
    """Every Markdown file that is ours."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"[`*_]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def links_of(page: Path) -> list[tuple[str, Path, str]]:
    """The relative links of a page: as written, the file meant, the anchor."""
    found: list[tuple[str, Path, str]] = []
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found.append((target, (page.parent / path).resolve() if path else page, anchor))
    return found


def check_links() -> list[str]:
    """Rule 1 and rule 5."""
    found: list[str] = []
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        waiting += [target for _, target, _ in links_of(page) if target.suffix == ".md" and target.exists()]
    for page in pages():
        name = page.relative_to(ROOT)
        if page not in reached:
            found.append(f"{name}: no page that README.md leads to links here")
        for written, target, anchor in links_of(page):
            if not target.exists():
                found.append(f"{name}: {written} leads nowhere")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
                found.append(f"{name}: {written} names no heading")
    return found


def options_of_commands() -> dict[str, set[str]]:
    """Every command of the command line with its options."""
    import typer

    from holdfast.cli.main import application

    found: dict[str, set[str]] = {}
    root = typer.main.get_command(application())

    def walk(command: object, path: str) -> None:
        written = [option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)]
        options = {option for option in written if option.startswith("--")}
        found[path] = options | {"--help"}
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{path} {name}".strip())

    walk(root, "")
    return found


def check_commands() -> list[str]:
    """Rule 2."""
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = options_of_commands()
    found: list[str] = []
    for page in pages():
        name = page.relative_to(ROOT)
        text = page.read_text(encoding="utf-8")
        found += [f"{name}: there is no `make {target}`" for target in MAKE.findall(text) if target not in targets]
        for command, rest in COMMAND.findall(text):
            if command not in known:
                found.append(f"{name}: there is no `holdfast {command}`")
                continue
            found += [
                f"{name}: `holdfast {command}` has no {option}"
                for option in OPTION.findall(rest)
                if option not in known[command]
            ]
    return found


def configuration_table() -> str:
    """The reference table made from the code."""
    shown = {
        origin.key: origin.value
        for origin in load_configuration(environ={}, working_directory=Path("/nowhere")).origins
    }
    rows = ["| key | default | rule |", "|---|---|---|"]
    for key in KEYS:
        value = shown[key.name]  # a mode begins with 0
        default = key.depends or (f"{int(value):,}" if value.isdigit() and value[0] != "0" else value)
        rows.append(f"| `{key.name}` | {default} | {key.rule} |")
    return "\n".join(rows)


def rights_table() -> str:
    """The table of rights made from the code."""
    rows = ["| routes | need | token for some keys | in addition; left out |", "|---|---|---|---|"]
    for cells, alike in groupby(RIGHTS.items(), key=lambda row: rights_cells(row[1])):
        rows.append(f"| {', '.join(f'`{name}`' for name, _ in alike)} | {cells}")
    return "\n".join(rows)


def rights_cells(need: Need) -> str:
    """What a row of the table of rights says after its routes; routes in a row that need the same share one."""
    needs = f"right `{need.right}`" if need.right is not None else f"role `{need.role.name.lower()}`"
    if need.right is None and need.role is Role.OPEN:
        needs = "nothing"
    scope = "" if need.role in (Role.OPEN, Role.ADMIN) and need.right is None else str(need.scope)
    parts = [
        f"{part}: role `{each.name.lower()}`" if isinstance(each, Role) else f"{part}: right `{each}`"
        for part, each in need.parts.items()
    ]
    parts += [f"{kind}: right `{right}` instead" for kind, right in need.others.items()]
    more = [*parts, *([f"left out: {need.hides}"] if need.hides else [])]
    return f"{needs} | {scope} | {'; '.join(more)} |"


def check_table(name: str, begin: str, table: str, *, write: bool) -> list[str]:
    """Rules 3 and 6: the table of a page between ``begin`` and ``END``."""
    page = ROOT / "docs" / "reference" / name
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(END)
    wanted = f"{before}{begin}\n\n{table}\n\n{END}{after}"
    if text == wanted:
        return []
    if write:
        page.write_text(wanted, encoding="utf-8")
        return []
    return [f"docs/reference/{name}: the table is not that of the code (scripts/check_docs.py --write)"]


def check_codes() -> list[str]:
    """Rule 4."""
    exits = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", exits, re.MULTILINE)}
    found: list[str] = []
    if listed != {code.value for code in Exit}:
        found.append(
            f"docs/reference/exit-codes.md lists {sorted(listed)}, the code has {sorted(c.value for c in Exit)}"
        )
    api = (ROOT / "docs" / "reference" / "http-api.md").read_text(encoding="utf-8")
    table = api.partition("## Errors")[2]
    for name, status in re.findall(r"^\| `([a-z_0-9]+)` \| (\d+) \|", table, re.MULTILINE):
        if name not in set(Code):
            found.append(f"docs/reference/http-api.md: {name} is no error code")
        elif STATUS_OF[Code(name)] != int(status):
            found.append(f"docs/reference/http-api.md: {name} is answered with {STATUS_OF[Code(name)]}, not {status}")
    return found


def public_names() -> dict[str, object]:
    """Every name of the public modules, and every public attribute of their classes, by its dotted name."""
    names: dict[str, object] = {}
    for module in map(importlib.import_module, PUBLIC_MODULES):
        for name in module.__all__:
            value = names[f"{module.__name__}.{name}"] = getattr(module, name)
            if inspect.isclass(value) and not issubclass(value, (BaseException, Enum)):
                for base in value.__mro__:
                    if base.__module__.startswith("holdfast"):
                        attributes = {*vars(base), *inspect.get_annotations(base)}
                        names |= {f"{module.__name__}.{name}.{each}": None for each in attributes if each[0] != "_"}
    return names


def check_reference() -> list[str]:
    """Rule 7."""
    texts = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md")}
    spans = {name: CODE.findall(text) for name, text in texts.items()}
    words = {word for name in spans for span in spans[name] for word in re.findall(r"[A-Za-z_]\w*", span)}
    names = public_names()
    known = {word for name in names for word in name.split(".")} | set(dir(builtins))
    for value in names.values():
        if inspect.isclass(value):
            known.update(re.findall(r"self\.([a-z]\w*) = ", inspect.getsource(value)))
    missing = {name: 1 for name in names if name.rpartition(".")[2] not in words}
    problems = against_baseline({"a public name stands in the reference": missing}, write="--write" in sys.argv[1:])
    for page in sorted(spans):
        for span in spans[page]:
            problems += [
                f"docs/reference/{page}: there is no {name}" for name in DOTTED.findall(span) if not exists(name)
            ]
            call = CALL.match(span.strip("`")) if page in CLIENT_PAGES else None
            if call is not None and call[1] not in known:
                problems.append(f"docs/reference/{page}: no public class has {call[0]}...)")
    return problems


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    if name in NO_NAMES:
        return True
    value: object = importlib.import_module("holdfast")
    for index, part in enumerate(name.split(".")[1:], 2):
        if not hasattr(value, part):
            try:
                importlib.import_module(".".join(name.split(".")[:index]))
            except ImportError:
                return False
        value = getattr(value, part)
    return True


def main() -> int:
    """Print every problem; the answer is the exit code."""
    write = "--write" in sys.argv[1:]
    found = [
        *check_table("configuration.md", BEGIN, configuration_table(), write=write),
        *check_table("rights.md", BEGIN_RIGHTS, rights_table(), write=write),
        *check_links(),
        *check_commands(),
        *check_codes(),
        *check_reference(),
    ]
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
