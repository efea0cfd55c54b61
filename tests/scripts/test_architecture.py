"""ARCHITECTURE.md: the files that it names exist, and its table has every folder of the package."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "holdfast"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_file_that_the_page_names_exists() -> None:
    files = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert len(files) > 30
    assert sorted(file for file in files if not (PACKAGE / file).is_file()) == []


def test_every_folder_of_the_package_has_a_row() -> None:
    rows = set(
        re.findall(r"`(\w+)/`", "".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")))
    )
    assert {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")} <= rows


def test_every_folder_named_in_a_row_exists() -> None:
    for line in PAGE.splitlines():
        if row := re.match(r"\| `(\w+)/` \| (.*)", line):
            inner = re.findall(r"`(\w+)/`", row[2])
            assert [name for name in inner if not (PACKAGE / row[1] / name).is_dir()] == [], line
