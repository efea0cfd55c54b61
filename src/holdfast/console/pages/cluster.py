"""The processes of the service, each asked by itself: who leads and led, who follows, and what a follower lacks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.console import units
from holdfast.console.call import Action, ActionDone, Form, Input, PageCall, Screen, link
from holdfast.console.html import Content, Html, element
from holdfast.console.parts import (
    Column,
    Tone,
    action,
    attempt,
    badge,
    code,
    commands,
    live,
    moment,
    notice,
    section,
    table,
)
from holdfast.console.reading.exposition import Scrape
from holdfast.console.reading.service import Member
from holdfast.console.values import log_at
from holdfast.errors import HoldfastError, Unavailable
from holdfast.values import VERSION_JUMP
from holdfast.wire.log import HoldState, LeadershipPeriod, Leaderships

STEPPING_DOWN: Final = (
    " makes all accepted commits durable, answers them and stops leading. A snapshot or a verification that runs there "
    "ends."
)
AFTERWARDS: Final = "A standby takes over within seconds. Clients wait and repeat; no commit is lost."
NO_STANDBY: Final = (
    "No standby answers at the addresses of this console. Unless one runs elsewhere, nothing leads the log afterwards: "
    "every commit is refused until a service is started. With “stand by” this process takes the lead again."
)
_STAND_BY: Final = Input("then", "Stand by afterwards: the process waits for its turn instead of ending", "1", "check")
LAG: Final = "Missing transactions"
MIRROR: Final = "mirror-"
"""How the holds of mirrors begin."""
LEADERSHIPS_MAX: Final = 50
TIME_LINE_WIDTH: Final = 1_000


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


async def _seen(call: PageCall, member: Member) -> Seen:
    if member.problem is not None:
        return Seen(member, problem=member.problem.statement())
    try:
        return Seen(member, Scrape(await call.service.read_text("/metrics", member=member.url), time.monotonic()))
    except HoldfastError as error:
        return Seen(member, problem=error.statement())


def _state(row: Seen) -> Content:
    return [badge(*row.state), element("small", f" {row.problem}") if row.problem else None]


async def lag_of_others(call: PageCall) -> int | None:
    """How many transactions the slowest process lacks that answers and does not lead; None where that is not known."""
    members = [member for member in call.watcher.members if member.alive is not None]
    rows = await asyncio.gather(*(_seen(call, member) for member in members))
    newest = max((each.version for each in rows), default=0.0)
    begins = await _begins(call)
    if begins is None:
        return None
    late = [missing(newest, each.version, begins) for each in rows if each.version and not each.member.leads]
    return max(late, default=None)


async def _begins(call: PageCall) -> tuple[int, ...] | None:
    """As ``begins_of``; None while no process leads that could say it."""
    try:
        return await begins_of(call)
    except HoldfastError:
        return None


async def _mirrors(call: PageCall) -> Content:
    """The mirrors that hold the log, by what each lacks of it."""
    answer = await call.service.log.retention()
    newest, begins = (await call.service.log.version(local=True)).version, await begins_of(call)

    def lag(row: tuple[str, HoldState]) -> str:
        return units.count(missing(newest, row[1].from_version, begins))

    holds = "/retention#h-readers-that-hold-the-log"
    columns: list[Column[tuple[str, HoldState]]] = [
        Column("Mirror", lambda row: element("code", row[0]), href=lambda _: holds),
        Column("Has versions up to", lambda row: log_at(row[1].from_version), is_number=True),
        Column(LAG, lag, is_number=True, href=lambda _: link("/log", at=newest)),
        Column("Holds the log until", lambda row: moment(row[1].expires_ms)),
    ]
    rows = sorted((name, hold) for name, hold in answer.holds.items() if name.startswith(MIRROR))
    empty = "No mirror holds the log. One with --no-hold is not seen here."
    return table(call, "mirrors", columns, rows, caption="Mirrors that hold the log", empty=empty)


async def _members(call: PageCall) -> Content:
    members = await asyncio.gather(*(_seen(call, member) for member in await call.service.members()))
    newest, begins = max((row.version for row in members), default=0.0), await _begins(call)

    def lag(row: Seen) -> str:
        return "–" if begins is None or not row.version else units.count(missing(newest, row.version, begins))

    def settings(row: Seen) -> str:
        return link("/configuration", process=row.member.url)

    def leaderships(row: Seen) -> str:
        return "/log#leaderships" if row.member.leads else settings(row)

    def process(row: Seen) -> Content:
        return code(row.member.alive.leader_id[:12]) if row.member.alive else "–"

    def epoch(row: Seen) -> str:
        return units.count(row.value("holdfast_epoch")) if row.member.leads else "–"

    def memory(row: Seen) -> str:
        return "–" if row.scrape is None else units.size(row.value("process_resident_memory_bytes"))

    columns: list[Column[Seen]] = [
        Column("Address", lambda row: row.member.url, lambda row: row.member.url, href=settings),
        Column("State", _state),
        Column("Process", process, href=leaderships),
        Column("Epoch", epoch, is_number=True, href=leaderships),
        Column("Version", lambda row: log_at(row.version) if row.version else "–", is_number=True),
        Column(LAG, lag, is_number=True, href=lambda _: link("/log", at=int(newest))),
        Column("Newest object followed", lambda row: moment(row.value("holdfast_followed_time_seconds") * 1000)),
        Column("Memory", memory, is_number=True, href=lambda row: "/#room" if row.member.leads else ""),
        Column("Answered in", lambda row: units.duration(row.member.seconds), is_number=True, href=settings),
    ]
    return table(call, "members", columns, members, caption="Processes", empty="No address.")


async def _cluster(call: PageCall) -> Content:
    note = "The console asks the addresses of --service; give it once for each standby. The version numbers that a "
    note += "change of leader leaves unused are not counted as missing."
    noted, acts = element("p", note, class_="note"), [action(call, STEP_DOWN, "Step down", "danger")]
    return [
        section("Processes", await _members(call), noted, actions=acts),
        section("Mirrors", await attempt(_mirrors(call))),
        section("Leaderships", live("leaders", await attempt(leaders(call)))),
        commands(call, "/livez", "holdfast version"),
    ]


async def _leaderships(call: PageCall) -> tuple[LeadershipPeriod, ...]:
    answer = await call.service.read(f"/v1/log/leaderships?limit={LEADERSHIPS_MAX}")
    return msgspec.convert(answer, Leaderships).leaderships


async def begins_of(call: PageCall) -> tuple[int, ...]:
    """The versions with which the newest leaderships begin. Raises: as the service does."""
    return tuple(each.version for each in await _leaderships(call))


def missing(newest: float, version: float, begins: Sequence[int]) -> int:
    """How many transactions a follower at ``version`` lacks: a change of leader leaves ``VERSION_JUMP`` numbers unused.

    ``begins``: as ``begins_of``. Changes of leader that are older than these, and forks, count as transactions.

    >>> missing(VERSION_JUMP + 30, 10, [5, VERSION_JUMP + 20]), missing(VERSION_JUMP + 30, VERSION_JUMP + 20, [5])
    (20, 10)
    """
    crossed = sum(version < begin <= newest for begin in begins)
    return max(0, int(newest - version) - crossed * VERSION_JUMP)


async def leaders(call: PageCall) -> Content:
    """The leaderships of the log, newest first: a time line and a table. Raises: as the service does."""
    rows = await _leaderships(call)

    def claim(row: LeadershipPeriod) -> str:
        """The object with which a leadership begins."""
        return link("/log", slot=row.slot) + "#h-batches"

    columns: list[Column[LeadershipPeriod]] = [
        Column("Epoch", lambda row: units.count(row.epoch), is_number=True, href=claim),
        Column("Since", lambda row: moment(row.time_ms)),
        Column("Leader", lambda row: code(row.leader_id), href=claim),
        Column("Address", lambda row: row.address or "–", href=lambda _: "/cluster"),
        Column("Begins at version", lambda row: log_at(row.version), is_number=True),
    ]
    caption, empty = "Leaderships, newest first", "The log has no leader yet."
    line = _time_line([row.time_ms for row in reversed(rows)])
    return [line, table(call, "leaders", columns, rows, caption=caption, empty=empty, is_live=False)]


def _time_line(begins: Sequence[int]) -> Content:
    """One bar for each leadership, oldest on the left; a leader's time is that of its own clock."""
    if not begins:
        return None
    ends = [*begins[1:], max(time.time() * 1000, begins[-1])]
    first, span = begins[0], max(1.0, ends[-1] - begins[0])
    bars: list[Html] = []
    for at, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        x = round((begin - first) / span * TIME_LINE_WIDTH, 1)
        width = max(1.0, round((end - begin) / span * TIME_LINE_WIDTH, 1) - 2)
        bars.append(element("rect", x=x, y=0, width=width, height=16, class_="even" if at % 2 else "odd"))
    said = f"{len(begins)} leaderships in {units.duration(span / 1000)}"
    box = f"0 0 {TIME_LINE_WIDTH} 16"
    picture = element(
        "svg", bars, viewBox=box, preserveAspectRatio="none", role="img", aria_label=said, class_="line-of-time"
    )
    scale = element("div", element("small", moment(first)), element("small", "now"), class_="scale")
    return element("div", picture, scale)


def has_standby(members: Sequence[Member]) -> bool:
    """Whether a process answers that does not lead."""
    return any(member.alive is not None and not member.leads for member in members)


async def _step_down_form(call: PageCall) -> Form:
    leading = call.watcher.leading
    if leading is None or leading.alive is None:
        raise Unavailable("no process leads")
    alive = leading.alive
    return Form(
        effect=[
            element("p", "The leader ", code(alive.leader_id), " at ", element("strong", alive.address), STEPPING_DOWN),
            element("p", AFTERWARDS) if has_standby(call.watcher.members) else notice("warn", NO_STANDBY),
        ],
        button="Step down",
        back="/cluster",
        inputs=(_STAND_BY,),
        typed="step down",
        seen=alive.leader_id,
    )


async def _step_down(call: PageCall) -> ActionDone | Form:
    confirm = await _step_down_form(call)
    if not confirm.is_seen_in(call.form):
        return confirm
    leading = call.watcher.leading
    name = leading.alive.address if leading is not None and leading.alive is not None else ""
    stands_by = call.form.get("then") == "1"
    await call.service.change("POST", "/v1/admin/step-down" + ("?then=stand_by" if stands_by else ""))
    then = "It waits for its turn now." if stands_by else "Its process ends."
    return ActionDone(f"The leader {name} has stepped down. {then}", "/cluster")


STEP_DOWN: Final = Action("/step-down", "Step down", "Cluster", _step_down_form, _step_down)
PAGES: Final = (Screen("/cluster", "Cluster", "Cluster", _cluster),)
ACTIONS: Final = (STEP_DOWN,)
