"""The leaderships of the log, newest first, on a time line and as a table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from holdfast.console import units
from holdfast.console.call import Call, link
from holdfast.console.html import Html, element, text_of
from holdfast.console.parts import Column, code, moment, table
from holdfast.console.reading.service import Document, documents, number
from holdfast.console.values import log_at
from holdfast.values import VERSION_JUMP

SHOWN_MAX: Final = 50
WIDTH: Final = 1_000


async def begins_of(call: Call) -> tuple[int, ...]:
    """The versions with which the newest leaderships begin. Raises: as the service does."""
    answer = await call.service.read(f"/v1/log/leaderships?limit={SHOWN_MAX}")
    return tuple(int(number(row.get("version"))) for row in documents(answer.get("leaderships")))


def missing(newest: float, version: float, begins: Sequence[int]) -> int:
    """How many transactions a follower at ``version`` lacks: a change of leader leaves ``VERSION_JUMP`` numbers unused.

    ``begins``: as ``begins_of``. Changes of leader that are older than these, and forks, count as transactions.

    >>> missing(VERSION_JUMP + 30, 10, [5, VERSION_JUMP + 20]), missing(VERSION_JUMP + 30, VERSION_JUMP + 20, [5])
    (20, 10)
    """
    crossed = sum(version < begin <= newest for begin in begins)
    return max(0, int(newest - version) - crossed * VERSION_JUMP)


async def leaders(call: Call) -> Html:
    """A time line and a table. Raises: as the service does."""
    rows = documents((await call.service.read(f"/v1/log/leaderships?limit={SHOWN_MAX}")).get("leaderships"))
    shown = table(
        call,
        "leaders",
        [
            Column("Epoch", lambda row: units.count(number(row.get("epoch"))), is_number=True, href=_claim),
            Column("Since", lambda row: moment(number(row.get("time_ms")))),
            Column("Leader", lambda row: code(str(row.get("leader_id"))), href=_claim),
            Column("Address", lambda row: str(row.get("address") or "–"), href=lambda _: "/cluster"),
            Column("Begins at version", lambda row: log_at(number(row.get("version"))), is_number=True),
        ],
        rows,
        caption="Leaderships, newest first",
        empty="The log has no leader yet.",
        is_live=False,
    )
    return text_of([_time_line(rows), shown])


def _claim(row: Document) -> str:
    """The object with which a leadership begins."""
    return link("/log", slot=str(row.get("slot"))) + "#h-batches"


def _time_line(rows: Sequence[Document]) -> Html:
    """One bar for each leadership, oldest on the left; a leader's time is that of its own clock."""
    begins = [number(row.get("time_ms")) for row in reversed(rows)]
    if not begins:
        return Html()
    ends = [*begins[1:], max(time.time() * 1000, begins[-1])]
    first, span = begins[0], max(1.0, ends[-1] - begins[0])
    bars = [
        element(
            "rect",
            x=round((begin - first) / span * WIDTH, 1),
            y=0,
            width=max(1.0, round((end - begin) / span * WIDTH, 1) - 2),
            height=16,
            class_="even" if at % 2 else "odd",
        )
        for at, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]
    said = f"{len(begins)} leaderships in {units.duration(span / 1000)}"
    box = f"0 0 {WIDTH} 16"
    picture = element(
        "svg", bars, viewBox=box, preserveAspectRatio="none", role="img", aria_label=said, class_="line-of-time"
    )
    scale = element("div", element("small", moment(first)), element("small", "now"), class_="scale")
    return element("div", picture, scale)
