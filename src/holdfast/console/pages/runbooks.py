"""The runbooks of the alerts, from the documentation that is installed with the console."""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path
from typing import Final

from holdfast.console.call import PageCall, Screen
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
    for block in _blocks(text):
        first = block[0]
        if first.startswith("## "):
            title = first[3:].strip()
            parts.append(element("h2", title, id=title.lower().replace(" ", "-")))
        elif first.startswith("```"):
            parts.append(element("pre", "\n".join(block[1:]), tabindex="0"))
        elif first.startswith("    "):
            parts.append(element("pre", "\n".join(line[4:] for line in block), tabindex="0"))
        elif not first.startswith("# "):
            parts.append(element("p", _inline("\n".join(block))))
    return text_of(parts)


def _blocks(text: str) -> list[list[str]]:
    """Lines that belong together: a heading, a paragraph, a block of code without the line that ends it."""
    blocks: list[list[str]] = [[]]
    is_fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
            blocks.append([line] if is_fenced else [])
        elif is_fenced or line.strip():
            blocks[-1].append(line)
        else:
            blocks.append([])
    return [block for block in blocks if block]


def _inline(text: str) -> Html:
    safe = html.escape(text)
    return Html(_LINK.sub(r"\1", _BOLD.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", safe))))


async def _runbooks(call: PageCall) -> Html:
    del call
    text = _text()
    if text is None:
        return notice("warn", "The runbooks are not installed.")
    return element("section", markdown(text), class_="prose")


PAGES: Final = (Screen("/runbooks", "Runbooks", "Overview", _runbooks),)
