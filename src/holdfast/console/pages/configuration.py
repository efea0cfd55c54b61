"""Every setting of a process in force and where it came from, and the level of its log."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.console.call import Action, ActionDone, Form, Input, PageCall, Screen, link
from holdfast.console.html import Content, Html, element
from holdfast.console.parts import (
    Column,
    action,
    anchor,
    attempt,
    badge,
    choice,
    code,
    commands,
    facts,
    notice,
    section,
    table,
)
from holdfast.wire.log import ConfigurationAnswer, SettingInForce

LEVELS: Final = ("debug", "info", "warning", "error")
LOG_LEVEL: Final = "/v1/admin/log-level"


async def _configuration(call: PageCall) -> Content:
    member = call.service.member_named(call.text("process"))
    change = action(call, CHANGE_LEVEL, "Change the level", process=call.text("process"))
    urls = call.service.urls
    return [
        choice("/configuration", "Process", "process", urls, member) if len(urls) > 1 else None,
        section("Process log", await attempt(_level(call, member)), actions=[change]),
        section("The service", await attempt(_settings(call, member))),
        section("This console", _own(call)),
        commands(call, "/v1/configuration", ""),
    ]


async def _level(call: PageCall, member: str) -> Html:
    answer = await call.service.read(LOG_LEVEL, member=member)
    level, configured = str(answer.get("level")), str(answer.get("configured"))
    shown = badge(level) if level == configured else badge(level, "warn")
    return facts({"Level in force": shown, "Configured": configured})


async def _level_form(call: PageCall) -> Form:
    member = call.service.member_named(call.text("process"))
    answer = await call.service.read(LOG_LEVEL, member=member)
    text = (
        f"Changes which lines the process at {member} writes to its log. It lasts until the process ends; then the "
        f"configured level, {answer.get('configured')}, counts again."
    )
    return Form(
        effect=element("p", text),
        button="Change the level",
        back=link("/configuration", process=call.text("process")),
        inputs=(Input("level", "Level", str(answer.get("level")), "choice", choices=LEVELS),),
    )


async def _change_level(call: PageCall) -> ActionDone:
    member = call.service.member_named(call.text("process"))
    answer = await call.service.change("PUT", LOG_LEVEL, {"level": call.form.get("level", "")}, member=member)
    back = link("/configuration", process=call.text("process"))
    return ActionDone(f"The log of {member} has the level {answer.get('level')}.", back)


async def _settings(call: PageCall, member: str) -> Content:
    answer = msgspec.convert(await call.service.read("/v1/configuration", member=member), ConfigurationAnswer)
    columns: list[Column[SettingInForce]] = [
        Column("Setting", lambda row: element("code", row.key), lambda row: row.key),
        Column("Value", lambda row: element("code", row.value), lambda row: row.value),
        Column(
            "Source",
            lambda row: badge(row.source, "none" if row.source == "default" else "good"),
            lambda row: row.source,
        ),
        Column("Why", lambda row: row.why),
    ]
    shown = table(
        call,
        "settings",
        columns,
        answer.settings,
        caption="Settings in force",
        empty="The service does not say.",
        text=lambda row: f"{row.key} {row.value} {row.source}",
        is_live=False,
    )
    file = element("code", answer.file or "none")
    return [
        [notice("warn", each) for each in answer.warnings],
        element("p", "Its file: ", file, ". A restart applies changes.", class_="note"),
        shown,
    ]


def _own(call: PageCall) -> Html:
    options = call.options
    about: dict[str, Content] = {
        "Service": [code(url) for url in options.services],
        "Listens on": code(f"{options.listen_host}:{options.listen_port}"),
        "Acts": "yes" if options.acts else "no, it only reads",
        "Login": "each user" if options.needs_login else "none",
        "TLS": "yes" if options.scheme == "https" else "no",
        "Tables": anchor(str(len(options.tables)), "/pipelines"),
    }
    return facts(about)


CHANGE_LEVEL: Final = Action(
    "/configuration/log-level", "Change the log level", "Configuration", _level_form, _change_level
)
PAGES: Final = (Screen("/configuration", "Configuration", "Configuration", _configuration),)
ACTIONS: Final = (CHANGE_LEVEL,)
