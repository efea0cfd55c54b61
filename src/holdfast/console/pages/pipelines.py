"""The tables that Spark pipelines make of the log: how far each is, and what the last audit found.

A table is read from its Delta log, not through the service, so this page needs ``--table`` and the package deltalake.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any, Final, cast

from holdfast.console import units
from holdfast.console.call import PageCall, Screen
from holdfast.console.html import Content, element
from holdfast.console.pages.cluster import begins_of, missing
from holdfast.console.parts import Column, Tone, badge, code, moment, notice, section, table
from holdfast.console.values import log_at
from holdfast.errors import HoldfastError, InvalidRequest, Unavailable
from holdfast.extras import needs
from holdfast.segments.table_location import table_location

KEPT_SECONDS: Final = 10.0
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_CREDENTIALS: Final = re.compile(r"//[^/]*@")
AUDIT: Final = "verify"
VERIFIED: Final = "verified up to"
"""The rule of the rows with which an audit says how far it came."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table. ``offset``: the version of the log that it has reached. ``problem``: why nothing is known.

    Of the table of an audit also its ``findings``, and ``verified``: everything up to this version was found good.
    """

    url: str
    pipeline: str = ""
    log_id: str = ""
    offset: int = 0
    delta_version: int = 0
    written_ms: int = 0
    findings: int | None = None
    verified: int = 0
    problem: str = ""


_kept: dict[str, tuple[float, Table]] = {}


async def _tables(urls: tuple[str, ...]) -> list[Table]:
    tables: list[Table] = []
    for url in urls:
        until, read = _kept.get(url, (0.0, Table(url)))
        if time.monotonic() > until:
            until, read = _kept[url] = time.monotonic() + KEPT_SECONDS, await asyncio.to_thread(read_table, url)
        tables.append(read)
    return tables


def read_table(url: str) -> Table:
    """What the Delta log of a table says. Credentials come from the environment."""
    shown = _CREDENTIALS.sub("//***@", url)
    try:
        return _read(url, shown)
    except HoldfastError as error:
        return Table(shown, problem=str(error))


def _read(url: str, shown: str) -> Table:
    with needs("segments"):
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    location = table_location(url)
    try:
        delta: Any = DeltaTable(location.uri, storage_options=dict(location.options))
        about: dict[str, Any] = json.loads(delta.metadata().description or "{}").get("holdfast", {})
        pipeline = str(about.get("pipeline", ""))
        if not pipeline:
            raise InvalidRequest("no pipeline of Holdfast made this table")
        findings, verified = _audited(delta) if pipeline == AUDIT else (None, 0)
        offset = delta.transaction_version(f"holdfast/{pipeline}") or 0
        log_id = str(about.get("log_id", ""))
        return Table(shown, pipeline, log_id, offset, delta.version(), _written_ms(delta), findings, verified)
    except (DeltaError, OSError, ValueError) as error:
        raise Unavailable("the table cannot be read", cause=plain(str(error))) from error


def _written_ms(delta: Any) -> int:
    """When the table was last written. The history of a table is empty where its path has a # or a ?: then by files."""
    newest = cast("list[dict[str, Any]]", delta.history(1))
    if newest:
        return int(newest[0]["timestamp"])
    files: list[int] = delta.get_add_actions(flatten=True).column("modification_time").to_pylist()
    return max(files, default=int(delta.metadata().created_time))


def plain(text: str) -> str:
    """An error of the Delta library without the colours of a terminal, on one line.

    >>> plain("cannot read \\x1b[31m↳\\x1b[0m the file")
    'cannot read ↳ the file'
    """
    return " ".join(_COLOURS.sub("", text).split())[:300]


def _audited(delta: Any) -> tuple[int, int]:
    rows: list[dict[str, Any]] = delta.to_pyarrow_table(columns=["rule", "version"]).to_pylist()
    marks = [int(row["version"] or 0) for row in rows if row["rule"] == VERIFIED]
    return len(rows) - len(marks), max(marks, default=0)


async def _pipelines(call: PageCall) -> Content:
    tables = await _tables(call.options.tables)
    if not tables:
        text = "Start the console with --table URL, once for each table that a pipeline makes."
        return section("Tables", element("p", text, class_="empty"))
    newest, log_id, problem = 0, "", None
    begins: tuple[int, ...] = ()
    try:
        answer = await call.service.log.version(local=True)
        begins = await begins_of(call)
        newest, log_id = answer.version, answer.log_id or ""
    except HoldfastError as error:
        problem = notice("warn", "The lag is not known: ", error.statement(), ".")

    def lag(row: Table) -> Content:
        if row.problem or not newest:
            return "–"
        return "another log" if row.log_id != log_id else units.count(missing(newest, row.offset, begins))

    columns: list[Column[Table]] = [
        Column("Table", lambda row: element("code", row.url), lambda row: row.url),
        Column("Pipeline", lambda row: row.pipeline or badge("not read", "bad"), lambda row: row.pipeline),
        Column("Has versions up to", lambda row: log_at(row.offset) if row.offset else "–", is_number=True),
        Column("Missing transactions", lag, is_number=True, href=lambda _: "/log"),
        Column("Written", lambda row: moment(row.written_ms), lambda row: row.written_ms),
        Column("Delta version", lambda row: str(row.delta_version), is_number=True),
        Column("Audit", _audit),
    ]
    shown = table(call, "tables", columns, tables, caption="Tables", empty="No table.")
    note = element("p", f"Read at most every {KEPT_SECONDS:g} s. The log: ", code(log_id or "unknown"), class_="note")
    return [problem, section("Tables", shown, note)]


def _audit(row: Table) -> Content:
    if row.problem:
        return element("small", row.problem)
    if row.findings is None:
        return "–"
    tone: Tone = "bad" if row.findings else "good"
    bad = f"{units.counted(row.findings, 'finding')}, " if row.findings else ""
    return badge([f"{bad}good up to ", log_at(row.verified)], tone)


PAGES: Final = (Screen("/pipelines", "Pipelines", "Pipelines", _pipelines),)
