"""The processes of the service, each asked by itself: who leads, who follows, and what a follower lacks."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from holdfast.console import units
from holdfast.console.call import Call, Page
from holdfast.console.exposition import Scrape
from holdfast.console.html import Content, Html, element, text_of
from holdfast.console.pages.leaders import leaders
from holdfast.console.pages.overview import STEP_DOWN
from holdfast.console.parts import Column, Tone, action, attempt, badge, code, commands, live, moment, section, table
from holdfast.console.service import Member
from holdfast.errors import HoldfastError


@dataclass(frozen=True, slots=True)
class Seen:
    """One address, with what its metrics say, or why they are not known."""

    member: Member
    scrape: Scrape | None = None
    problem: str = ""

    @property
    def state(self) -> tuple[str, Tone]:
        """In words, and how good that is."""
        if self.member.alive is None:
            return "does not answer", "bad"
        return ("leads", "good") if self.member.leads else ("stands by or follows", "none")

    def value(self, name: str) -> float:
        """A value of its metrics."""
        return 0.0 if self.scrape is None else self.scrape.value(name)

    @property
    def version(self) -> float:
        """The newest version that it made durable or has followed."""
        return self.value("holdfast_durable_version" if self.member.leads else "holdfast_followed_version")


async def _seen(call: Call, member: Member) -> Seen:
    if member.problem is not None:
        return Seen(member, problem=member.problem.statement())
    try:
        return Seen(member, Scrape(await call.service.read_text("/metrics", member=member.url), time.monotonic()))
    except HoldfastError as error:
        return Seen(member, problem=error.statement())


def _state(seen: Seen) -> Content:
    return [badge(*seen.state), element("small", f" {seen.problem}") if seen.problem else None]


async def _cluster(call: Call) -> Html:
    members = await asyncio.gather(*(_seen(call, member) for member in await call.service.members()))
    newest = max((seen.version for seen in members), default=0.0)

    def lag(seen: Seen) -> str:
        return units.count(max(0.0, newest - seen.version)) if seen.version else "–"

    rows = table(
        call,
        "members",
        [
            Column("Address", lambda seen: seen.member.url, lambda seen: seen.member.url),
            Column("State", _state),
            Column("Process", lambda seen: code(seen.member.alive.leader_id[:12]) if seen.member.alive else "–"),
            Column("Epoch", lambda seen: units.count(seen.value("holdfast_epoch")), is_number=True),
            Column("Version", lambda seen: units.count(seen.version) if seen.version else "–", is_number=True),
            Column("Missing versions", lag, is_number=True),
            Column("Newest object followed", lambda seen: moment(seen.value("holdfast_followed_time_seconds") * 1000)),
            Column("Memory", lambda seen: units.size(seen.value("process_resident_memory_bytes")), is_number=True),
            Column("Answered in", lambda seen: units.duration(seen.member.seconds), is_number=True),
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
            section("Leaderships", live("leaders", await attempt(leaders(call)))),
            commands(call, "/livez", "holdfast version"),
        ]
    )


PAGES: Final = (Page("/cluster", "Cluster", "Cluster", _cluster),)
