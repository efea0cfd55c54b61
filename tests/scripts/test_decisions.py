"""The decisions have one form, and each number leads to the page and heading that hold it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
NUMBER = r"(?:\d{4}|\[\d{4}\]\([^)\s]+\))"
STATUS = re.compile(
    rf"Status: (?:in force(?:, changed by {NUMBER}(?:, {NUMBER})*)?|replaced by {NUMBER}(?:, {NUMBER})*)"
)
ROW = re.compile(r"^\| \[(\d{4})\]\((\d{4}-[^)#]+\.md)(?:#([^)]+))?\) \| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall((FOLDER / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name[:4])
def test_a_decision_says_its_status_right_after_its_title(page: Path) -> None:
    title, empty, status = page.read_text(encoding="utf-8").split("\n", 3)[:3]
    assert re.fullmatch(rf"# {page.name[:4]}: .+", title)
    assert empty == ""
    assert STATUS.fullmatch(status), status
    numbers = {number for number, *_ in ROWS}
    assert {*re.findall(r"\b\d{4}\b", status)} <= numbers


def test_each_number_has_one_row_that_leads_to_where_it_is_decided_or_replaced() -> None:
    assert len(ROWS) == sum(line.startswith("| [") for line in (FOLDER / "README.md").read_text("utf-8").split("\n"))
    numbers = [number for number, *_ in ROWS]
    assert numbers == sorted(set(numbers))
    assert {page.name[:4] for page in PAGES} <= set(numbers)
    for number, file, anchor, title in ROWS:
        held = re.findall(r"\d{4}", re.findall(r"(?:-\d{4})*$", anchor)[0]) if anchor else [file[:4]]
        assert number in held or any(title.endswith(f"; replaced by {later}") for later in held), (number, file, anchor)


def test_each_heading_with_a_number_is_where_the_row_of_that_number_leads() -> None:
    rows = {(file, number) for number, file, anchor, _ in ROWS if anchor}
    for page in PAGES:
        headings = re.findall(r"^##+ .*\((\d{4}(?:, \d{4})*)\)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert {(page.name, number) for held in headings for number in held.split(", ")} <= rows
