"""The pages about the queue: every Python block and every command runs as it stands there, and prints what it says.

A block of ``text`` behind a program or commands is what they print; ``...`` in it stands for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.matrix import matrix

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "docs/tutorial/queue.md",
    "docs/tutorial/persist.md",
    *sorted(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs/how-to").glob("queue-*.md")),
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_block(language: str, block: str, folder: Path) -> str:
    """What a block prints, run as a reader would: a program of its own, in one folder for the whole page."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-W", "error::SyntaxWarning", "-"] if language == "python" else ["sh", "-e"]
    done = subprocess.run(
        command, input=block, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def matches(printed: str, said: str) -> bool:
    """Whether the text is what the page says, line ends at the edges aside."""
    pattern = ".*?".join(map(re.escape, said.strip("\n").split("...")))
    return re.fullmatch(pattern, printed.strip("\n"), re.DOTALL) is not None


@pytest.mark.parametrize("page", matrix(PAGES, lambda page: page == "docs/tutorial/queue.md"))
def test_every_block_of_the_page_runs_and_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    run_page(page, (ROOT / page).read_text(encoding="utf-8"), tmp_path)


def test_what_the_readme_says_about_the_queue_runs(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## A queue without a server")[2]
    blocks = FENCE.findall(section.partition("\n## ")[0])
    printed = [run_block(language, block, tmp_path) for language, block in blocks]
    assert [line.split()[0] for line in printed[0].splitlines()] == ["1", "2", "3"]
    assert "billing: has read all" in printed[1]


def run_page(page: str, text: str, folder: Path) -> None:
    """Run every block of a page in order, and compare what is printed with what the page says."""
    blocks = FENCE.findall(text)
    assert {language for language, _ in blocks} <= {"python", "sh", "text"}
    programs = 0
    printed: str | None = None
    for language, block in blocks:
        if language == "text":
            assert printed is not None, f"nothing ran before this block:\n{block}"
            assert matches(printed, block), f"{page} says:\n{block}\nbut it printed:\n{printed}"
            printed = None
        else:
            assert not (printed or "").strip(), f"{page} does not say that this is printed:\n{printed}"
            printed = run_block(language, block, folder)
            programs += 1
    assert not (printed or "").strip(), f"{page} does not say that this is printed:\n{printed}"
    assert programs


def test_the_reference_names_every_argument_method_and_command() -> None:
    import inspect

    import typer

    from holdfast import Queue
    from holdfast.cli.queue import commands

    text = (ROOT / "docs/reference/queue.md").read_text(encoding="utf-8")
    arguments = set(inspect.signature(Queue).parameters) - {"path", "files", "clock", "entropy"}
    table = text.partition("## Opening")[2].partition("## Methods")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == arguments
    named = set(re.findall(r"holdfast queue (\w+)` \|", text))
    found = typer.main.get_command(commands)
    assert named == set(getattr(found, "commands", {}))


def test_the_reference_names_every_argument_of_persist() -> None:
    import inspect

    import holdfast
    import holdfast.aio

    text = (ROOT / "docs/reference/queue.md").read_text(encoding="utf-8")
    table = text.partition("## Persist")[2].partition("What holds:")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert named == list(inspect.signature(holdfast.persist).parameters)
    assert named == list(inspect.signature(holdfast.aio.persist).parameters)


@pytest.mark.parametrize("said", ["one ... three\n", "...\n", "one two three"])
def test_an_ellipsis_stands_for_anything(said: str) -> None:
    assert matches("one two three\n", said)
    assert not matches("one two three\n", "one ... four")


@pytest.mark.parametrize(
    ("example", "last_line"),
    [
        ("mail_workers", "294 delivered, 42 of them at the second try"),
        pytest.param(
            *("order_desk", r"all \d+ orders are billed; \d+ a second time, and their numbers say which"),
            marks=pytest.mark.matrix,
        ),
        pytest.param("csv_to_http", r"all 3000 rows were sent, [0-3] of them twice", marks=pytest.mark.matrix),
    ],
)
def test_the_example_runs_and_finds_what_it_claims(example: str, last_line: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"examples.queue.{example}", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(last_line, done.stdout.splitlines()[-1])
