"""The processes of the service, each asked by itself: who leads, who follows, and how far a follower is behind."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from holdfast.console import units
from holdfast.console.call import Call, Page
from holdfast.console.exposition import Scrape
from holdfast.console.html import Html, element, text_of
from holdfast.console.pages.leaders import leaders
from holdfast.console.pages.overview import STEP_DOWN
from holdfast.console.parts import Column, Tone, action, badge, code, commands, live, moment, section, table
from holdfast.errors import HoldfastError


@dataclass(frozen=True, slots=True)
class Member:
    """One address. ``seconds``: how long it took to answer. ``problem``: why the rest is not known."""

    url: str
    state: str
    tone: Tone
    leader_id: str = ""
    seconds: float = 0.0
    epoch: float = 0.0
    version: float = 0.0
    followed_seconds: float = 0.0
    memory: float = 0.0
    problem: str = ""


async def _member(call: Call, url: str) -> Member:
    began = time.monotonic()
    try:
        alive = await call.service.liveness(url)
    except HoldfastError as error:
        return Member(url, "does not answer", "bad", problem=error.statement())
    took = time.monotonic() - began
    state: tuple[str, Tone] = ("leads", "good") if alive.leading else ("stands by or follows", "none")
    try:
        scrape = Scrape(await call.service.read_text("/metrics", member=url), time.monotonic())
    except HoldfastError as error:
        return Member(url, *state, alive.leader_id, took, problem=error.statement())
    version = scrape.value("holdfast_durable_version" if alive.leading else "holdfast_followed_version")
    followed = scrape.value("holdfast_followed_time_seconds")
    memory = scrape.value("process_resident_memory_bytes")
    return Member(url, *state, alive.leader_id, took, scrape.value("holdfast_epoch"), version, followed, memory)


async def _cluster(call: Call) -> Html:
    members = await asyncio.gather(*(_member(call, url) for url in call.service.urls))
    newest = max((member.version for member in members), default=0.0)

    def lag(member: Member) -> str:
        return units.count(max(0.0, newest - member.version)) if member.version else "–"

    rows = table(
        call,
        "members",
        [
            Column("Address", lambda member: member.url, lambda member: member.url),
            Column(
                "State",
                lambda member: [
                    badge(member.state, member.tone),
                    element("small", f" {member.problem}") if member.problem else None,
                ],
            ),
            Column("Process", lambda member: code(member.leader_id[:12]) if member.leader_id else "–"),
            Column("Epoch", lambda member: units.count(member.epoch) if member.epoch else "–", is_number=True),
            Column("Version", lambda member: units.count(member.version) if member.version else "–", is_number=True),
            Column("Versions behind", lag, is_number=True),
            Column("Newest object followed", lambda member: moment(member.followed_seconds * 1000)),
            Column("Memory", lambda member: units.size(member.memory) if member.memory else "–", is_number=True),
            Column(
                "Answered in", lambda member: units.duration(member.seconds) if member.seconds else "–", is_number=True
            ),
        ],
        members,
        caption="Processes",
        empty="No address.",
    )
    note = (
        "The console asks the addresses of --service; give it once for each standby. A mirror of the log writes its "
        "lag to a metrics file of its own."
    )
    return text_of(
        [
            section(
                "Processes",
                rows,
                element("p", note, class_="note"),
                actions=[action(call, STEP_DOWN, "Step down", danger=True)],
            ),
            section("Leaders that this console has seen", live("leaders", leaders(call))),
            commands(call, "/livez", "holdfast version"),
        ]
    )


PAGES: Final = (Page("/cluster", "Cluster", "Cluster", _cluster),)
