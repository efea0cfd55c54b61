"""The leaderships of the log, newest first, on a time line and as a table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from holdfast.console import units
from holdfast.console.call import Call, link
from holdfast.console.html import Html, element, text_of
from holdfast.console.parts import Column, anchor, code, moment, table
from holdfast.console.service import Document, documents, number

SHOWN_MAX: Final = 50
WIDTH: Final = 1_000


async def leaders(call: Call) -> Html:
    """A time line and a table. Raises: as the service does."""
    rows = documents((await call.service.read(f"/v1/log/leaderships?limit={SHOWN_MAX}")).get("leaderships"))
    shown = table(
        call,
        "leaders",
        [
            Column("Epoch", lambda row: units.count(number(row.get("epoch"))), is_number=True),
            Column("Since", lambda row: moment(number(row.get("time_ms")))),
            Column("Leader", lambda row: code(str(row.get("leader_id")))),
            Column("Address", lambda row: str(row.get("address") or "–")),
            Column("Begins at version", _version, is_number=True),
        ],
        rows,
        caption="Leaderships, newest first",
        empty="The log has no leader yet.",
        is_live=False,
    )
    return text_of([_time_line(rows), shown])


def _version(row: Document) -> Html:
    version = int(number(row.get("version")))
    return anchor(str(version), link("/log", at=version))


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
