"""A small picture of a queue: pages, how full they are, and where cursors stand. Plain text, the same in a pipe.

Owns: the drawing. Does not own: finding out what to draw (``queue_views``).

Failure model: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["DrawnPage", "draw"]

WIDTH: Final = 32
EDGE_PAGES: Final = 6


@dataclass(frozen=True, slots=True)
class DrawnPage:
    """A page: its messages (``last_seq`` below ``first_seq`` for none), how full it is, and words behind it.

    ``filled`` is from 0 to 1. ``marks`` are (sequence number, text) of those who stand in this page.
    """

    number: int
    first_seq: int
    last_seq: int
    filled: float
    words: str
    marks: Sequence[tuple[int, str]] = field(default_factory=tuple[tuple[int, str], ...])


def draw(pages: Sequence[DrawnPage], *, every_page: bool = False) -> list[str]:
    """The lines. Of many pages only the first and the last few and those with a mark, unless ``every_page``.

    >>> for line in draw([DrawnPage(1, 1, 8, 1.0, "1..8"), DrawnPage(2, 9, 12, 0.5, "9..12", [(11, "billing")])]):
    ...     print(line)
    page 1  [################################]  1..8
    page 2  [################                ]  9..12
                     ^ billing
    """
    lines: list[str] = []
    digits = len(str(pages[-1].number)) if pages else 1
    left_out = 0
    for place, page in enumerate(pages):
        if not every_page and EDGE_PAGES <= place < len(pages) - EDGE_PAGES and not page.marks:
            left_out += 1
            continue
        if left_out:
            lines.append(f"{'':{digits + 6}} ... {left_out} full pages ...")
            left_out = 0
        full = round(WIDTH * max(0.0, min(1.0, page.filled)))
        if page.last_seq >= page.first_seq:
            full = max(1, full)
        lines.append(f"page {page.number:{digits}}  [{'#' * full:{WIDTH}}]  {page.words}".rstrip())
        lines += [_mark(page, full, digits, seq, text) for seq, text in sorted(page.marks)]
    return lines


def _mark(page: DrawnPage, full: int, digits: int, seq: int, text: str) -> str:
    """An arrow under the place of a message in its page's bar."""
    messages = max(1, page.last_seq - page.first_seq + 1)
    place = min(full, (seq - page.first_seq) * full // messages)
    return f"{'':{digits + 8 + place}}^ {text}"
