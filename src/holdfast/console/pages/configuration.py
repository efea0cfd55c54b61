"""Every setting in force, and where it came from."""

from __future__ import annotations

from typing import Final

from holdfast.console.call import Call, Page
from holdfast.console.html import Html, element, text_of
from holdfast.console.parts import Column, Tone, attempt, badge, code, commands, facts, notice, section, table
from holdfast.console.service import Document, documents


async def _configuration(call: Call) -> Html:
    return text_of(
        [
            section("The service", await attempt(_settings(call))),
            section("This console", _own(call)),
            commands(call, "/v1/configuration", ""),
        ]
    )


async def _settings(call: Call) -> Html:
    answer = await call.service.read("/v1/configuration")
    rows = documents(answer.get("settings"))

    def source(row: Document) -> Html:
        tone: Tone = "none" if row["source"] == "default" else "good"
        return badge(str(row["source"]), tone)

    warnings = answer.get("warnings")
    said = [notice("warn", str(each)) for each in warnings] if isinstance(warnings, list) else []
    shown = table(
        call,
        "settings",
        [
            Column("Setting", lambda row: element("code", str(row["key"])), lambda row: str(row["key"])),
            Column("Value", lambda row: element("code", str(row["value"])), lambda row: str(row["value"])),
            Column("Source", source, lambda row: str(row["source"])),
            Column("Why", lambda row: str(row["why"])),
        ],
        rows,
        caption="Settings in force",
        empty="The service does not say.",
        text=lambda row: f"{row['key']} {row['value']} {row['source']}",
        is_live=False,
    )
    file = element(
        "p",
        "Its file: ",
        element("code", str(answer.get("file") or "none")),
        ". A restart applies changes.",
        class_="note",
    )
    return text_of([said, file, shown])


def _own(call: Call) -> Html:
    options = call.options
    return facts(
        {
            "Service": [code(url) for url in options.services],
            "Listens on": code(f"{options.listen_host}:{options.listen_port}"),
            "Acts": "yes" if options.acts else "no, it only reads",
            "Login": "each user" if options.needs_login else "none",
            "TLS": "yes" if options.scheme == "https" else "no",
            "Tables": str(len(options.tables)),
        }
    )


PAGES: Final = (Page("/configuration", "Configuration", "Configuration", _configuration),)
