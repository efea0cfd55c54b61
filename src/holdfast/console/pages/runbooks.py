"""The runbooks of the alerts, from the documentation that is installed with the console."""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path
from typing import Final

from holdfast.console.call import Call, Page
from holdfast.console.html import Html, element, text_of
from holdfast.console.parts import notice

INSTALLED: Final = Path(__file__).parent.parent / "runbooks.md"
IN_THE_SOURCES: Final = Path(__file__).parents[4] / "docs" / "how-to" / "operate" / "runbooks.md"
_CODE: Final = re.compile(r"`([^`]+)`")
_BOLD: Final = re.compile(r"\*\*([^*]+)\*\*")
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")


@cache
def _text() -> str | None:
    for path in (INSTALLED, IN_THE_SOURCES):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None


def markdown(text: str) -> Html:
    """The Markdown that the runbooks use: headings, paragraphs, blocks of code, code, bold; a link is its text."""
    parts: list[Html] = []
    for block in re.split(r"\n{2,}(?=\S)|\n(?=```)|(?<=```)\n", text):
        stripped = block.strip("\n")
        if stripped.startswith("# "):
            continue
        if stripped.startswith("## "):
            title = stripped[3:].strip()
            parts.append(element("h2", title, id=title.lower().replace(" ", "-")))
        elif stripped.startswith("```"):
            parts.append(element("pre", re.sub(r"^```\w*\n|\n?```$", "", stripped), tabindex="0"))
        elif block.startswith("    "):
            parts.append(element("pre", "\n".join(line[4:] for line in stripped.split("\n")), tabindex="0"))
        elif stripped.strip():
            parts.append(element("p", _inline(stripped)))
    return text_of(parts)


def _inline(text: str) -> Html:
    safe = html.escape(text)
    return Html(_LINK.sub(r"\1", _BOLD.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", safe))))


async def _runbooks(call: Call) -> Html:
    del call
    text = _text()
    if text is None:
        return notice("warn", "The runbooks are not installed.")
    return element("section", markdown(text), class_="prose")


PAGES: Final = (Page("/runbooks", "Runbooks", "Overview", _runbooks),)
