"""Retention: the policies of the log, what each holds back, who else holds it, and what was removed."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from holdfast.console import units
from holdfast.console.call import CONFIRM_FIELD, Action, ActionDone, Form, Input, Limit, PageCall, Screen, link, whole
from holdfast.console.html import Content, Html, element
from holdfast.console.pages.jobs import SNAPSHOT, job_of
from holdfast.console.parts import (
    Column,
    action,
    anchor,
    attempt,
    bar,
    code,
    commands,
    copied,
    figures,
    live,
    moment,
    notice,
    section,
    table,
    tile,
    tiles,
)
from holdfast.console.values import log_at
from holdfast.errors import HoldfastError, InvalidRequest, Unavailable
from holdfast.wire.log import (
    AgeOfLog,
    CheckpointOfStores,
    HoldState,
    LogStorage,
    PolicyState,
    RetentionAnswer,
    RetentionPolicy,
    SnapshotOfLog,
)

KINDS: Final = ("max_age_seconds", "max_bytes", "keep_from_version", "keep everything")
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


async def _retention(call: PageCall) -> Content:
    job = live("job", await attempt(job_of(call, "snapshot")))
    making = section("Making a snapshot", job, actions=[action(call, SNAPSHOT, "Snapshot now")])
    return [
        live("retention", await attempt(_answer(call))),
        element("div", making, id="snapshot"),
        await attempt(_storage(call)),
        commands(call, "/v1/retention", "holdfast retention ls"),
    ]


def said_of(warning: str) -> Content:
    """A warning of the leader as a sentence: what it says once, with its command as code."""
    plain = warning[:1].lower() + warning[1:]
    plain = plain.removeprefix("nothing is removed: ").removeprefix("nothing is truncated: ")
    parts = f"Nothing of the log is removed: {plain.rstrip('.')}.".split("`")
    return [element("code", part) if at % 2 else part for at, part in enumerate(parts)]


async def _answer(call: PageCall) -> Content:
    answer = await call.service.log.retention()
    now = call.watcher.newest
    removed = 0.0 if now is None else now.value("holdfast_retention_deleted_objects_total")
    removed_bytes = 0.0 if now is None else now.value("holdfast_retention_deleted_bytes_total")
    gone, going = (
        units.version(version) if version else "–" for version in (answer.truncated_through, answer.truncate_through)
    )
    by_leader = f"objects, {units.size(removed_bytes)}, by this leader"
    return [
        notice("warn", said_of(answer.warning)) if answer.warning else None,
        tiles(
            tile("Policies", str(len(answer.policies)), "#h-policies", "without one, everything stays"),
            tile("Truncated through", gone, "/log", "versions up to here may be gone"),
            tile("To be truncated through", going, "#h-bytes-by-age", "no policy needs older versions"),
            tile("Removed", units.count(removed), "#h-bytes-by-age", by_leader),
        ),
        section("Policies", _policies(call, answer), actions=[action(call, SET, "Set a policy")]),
        section("Readers that hold the log", _holds(call, answer)),
    ]


async def _storage(call: PageCall) -> Content:
    """What the store keeps. It is not live: counting costs requests to the object store."""
    stored = msgspec.convert(await call.service.read("/v1/log/storage"), LogStorage)
    return [_ages(call, stored), _snapshots(call, stored), _checkpoints(call, stored)]


def _ages(call: PageCall, stored: LogStorage) -> Html:
    total = sum(band.bytes for band in stored.ages)
    names = [
        "older" if band.seconds_max is None else f"up to {units.duration(band.seconds_max)}" for band in stored.ages
    ]
    starts = dict(zip(names, [0.0, *(band.seconds_max or 0.0 for band in stored.ages)], strict=False))

    def part(row: tuple[str, AgeOfLog]) -> Content:
        return bar(row[1].bytes, total, f"Bytes that are {row[0]}", is_good=True) if total else "–"

    def newest_of(row: tuple[str, AgeOfLog]) -> str:
        """The log from the newest object of an age back."""
        return link("/log", time=units.utc(stored.at_ms - starts[row[0]] * 1000)) if starts[row[0]] else "/log"

    columns: list[Column[tuple[str, AgeOfLog]]] = [
        Column("Age", lambda row: row[0], href=newest_of),
        Column("Objects", lambda row: units.count(row[1].objects), is_number=True, href=newest_of),
        Column("Bytes", lambda row: units.size(row[1].bytes), is_number=True, href=newest_of),
        Column("Part of the log", part, is_number=True),
    ]
    ages, empty = list(zip(names, stored.ages, strict=True)), "The log has no object."
    rows = table(call, "ages", columns, ages, caption="Bytes by age", empty=empty, is_live=False)
    note = "Counted at most once a minute, with objects that are not part of the chain."
    note += "" if stored.is_whole else " The log has more objects; only the newest 50,000 were counted."
    return section("Bytes by age", rows, element("p", note, " ", moment(stored.at_ms), class_="note"))


def _snapshots(call: PageCall, stored: LogStorage) -> Html:
    columns: list[Column[SnapshotOfLog]] = [
        Column("Version", lambda row: [log_at(row.version), " ", copied(str(row.version))], lambda row: row.version),
        figures("Keys", lambda row: row.rows),
        figures("Bytes", lambda row: row.bytes, text=units.size),
        Column("Parts", lambda row: units.count(row.parts), is_number=True),
        Column("Up to the batch", lambda row: anchor(code(row.slot), link("/log", slot=row.slot) + "#h-batches")),
    ]
    caption, empty = "Snapshots, newest first", "The log has no snapshot, so nothing of it can be removed."
    rows = table(call, "snapshots", columns, stored.snapshots, caption=caption, empty=empty, is_live=False)
    return section("Snapshots", rows)


def _checkpoints(call: PageCall, stored: LogStorage) -> Content:
    if not stored.checkpoints:
        return None
    columns: list[Column[CheckpointOfStores]] = [
        Column("After version", lambda row: log_at(row.version), lambda row: row.version),
        figures("Bytes", lambda row: row.bytes, text=units.size),
    ]
    caption = "Checkpoints, newest first"
    rows = table(call, "checkpoints", columns, stored.checkpoints, caption=caption, empty="", is_live=False)
    return section("Checkpoints of the stores in the log", rows)


def keeps(policy: PolicyState) -> str:
    """What a policy keeps, in words."""
    if policy.max_age_seconds is not None:
        return f"the last {units.duration(policy.max_age_seconds)}"
    return policy.text if policy.max_bytes is None else f"the last {units.size(policy.max_bytes)}"


def keeps_of(policy: RetentionPolicy) -> str:
    """The same of a policy that is not set yet."""
    state = PolicyState(policy.keep_from_version, policy.max_age_seconds, policy.max_bytes, policy.keep)
    return keeps(state)


def _policies(call: PageCall, answer: RetentionAnswer) -> Html:
    def start(row: tuple[str, PolicyState]) -> Content:
        return "–" if row[1].from_version is None else log_at(row[1].from_version)

    def oldest(row: tuple[str, PolicyState]) -> str:
        return link("/log", at=row[1].from_version)

    columns: list[Column[tuple[str, PolicyState]]] = [
        Column("Policy", lambda row: element("code", row[0]), lambda row: row[0]),
        Column("Keeps", lambda row: keeps(row[1])),
        Column("From version", start, is_number=True),
        figures("Oldest", lambda row: row[1].held_seconds, oldest, units.duration),
        figures("Holds", lambda row: row[1].held_bytes, lambda _: "#h-bytes-by-age", units.size),
        Column("", lambda row: action(call, REMOVE, "Remove", "danger", policy=row[0])),
    ]
    rows, empty = sorted(answer.policies.items()), "No policy: the whole log stays."
    return table(call, "policies", columns, rows, caption="Policies", empty=empty, is_live=False)


def _holds(call: PageCall, answer: RetentionAnswer) -> Html:
    def snapshot(row: tuple[str, HoldState]) -> str:
        return "–" if row[1].snapshot is None else str(row[1].snapshot)

    columns: list[Column[tuple[str, HoldState]]] = [
        Column("Reader", lambda row: element("code", row[0])),
        Column("From version", lambda row: log_at(row[1].from_version), is_number=True),
        Column("Snapshot", snapshot, is_number=True, href=lambda _: "#h-snapshots"),
        Column("Until", lambda row: moment(row[1].expires_ms)),
    ]
    rows = sorted(answer.holds.items())
    return table(call, "holds", columns, rows, caption="Holds", empty="No reader holds the log.", is_live=False)


def amounts(stored: LogStorage) -> str:
    """How much of the log is how old, as far as the objects were counted."""
    rest = sum(band.bytes for band in stored.ages)
    said = [f"The {'log has' if stored.is_whole else 'newest objects have'} {units.size(rest)}"]
    for band in stored.ages:
        rest -= band.bytes
        if band.seconds_max is not None:
            said.append(f"{units.size(rest)} of it older than {units.duration(band.seconds_max)}")
    more = "" if stored.is_whole else " Older objects were not counted."
    return f"{', '.join(said)}.{more}"


async def _set_form(call: PageCall) -> Form:
    answer = await call.service.log.retention()
    try:
        now = amounts(msgspec.convert(await call.service.read("/v1/log/storage"), LogStorage))
    except HoldfastError as error:
        now = f"How much is how old is not known: {error.statement()}."
    rule = "The log is kept from the oldest point that any policy needs."
    others = ", ".join(f"{name} ({keeps(policy)})" for name, policy in sorted(answer.policies.items()))
    return Form(
        effect=[
            element("p", "Says what must stay of the log. ", rule),
            element("p", "What no policy needs is removed for good, once the log has a snapshot. ", now),
            element("p", f"Policies now: {others or 'none'}. One with the same name is replaced."),
            element("p", "What this one would remove is shown before it is set."),
        ],
        button="Plan",
        back="/retention",
        inputs=(
            Input("policy", "Name", "", required=True),
            Input("kind", "What it keeps", KINDS[0], "choice", choices=KINDS),
            Input("amount", "Seconds, bytes or the version", "", "number", note="empty to keep everything"),
        ),
    )


async def _planned(call: PageCall, name: str, policy: RetentionPolicy | None) -> tuple[Content, tuple[Limit, ...]]:
    """What a change of a policy would remove now, and the limit that a person confirms."""
    try:
        plan = await call.service.log.plan_retention(name, policy)
    except Unavailable as error:
        said = f"What it would remove is not known: {error.statement()}. Ask again in a moment."
        return notice("warn", said), (Limit("object", 0, is_exact=False),)
    why = element("p", said_of(plan.warning)) if plan.warning else None
    if not plan.remove_through:
        later = "Once that no longer holds, it removes at once what no policy keeps." if plan.warning else None
        return [element("p", element("strong", "Now it would remove nothing.")), why, later], ()
    going = Limit("object", plan.objects, plan.is_whole)
    size = f"{'' if plan.is_whole else 'at least '}{units.size(plan.bytes)} ({plan.bytes:,} bytes)"
    through = ["every version up to ", log_at(plan.remove_through)]
    warning = ["Now it would remove ", element("strong", f"{going}, {size}"), ": ", through, ". This cannot be undone."]
    return [notice("warn", *warning), why], (going,)


async def _set(call: PageCall) -> ActionDone | Form:
    name, kind, amount = call.form.get("policy", "").strip(), call.form.get("kind", ""), call.form.get("amount", "")
    if not NAME.fullmatch(name):
        raise InvalidRequest("a policy's name has ASCII letters, digits, dots, dashes and underscores, at most 128")
    match kind:
        case "max_age_seconds":
            policy = RetentionPolicy(max_age_seconds=whole("seconds", amount))
        case "max_bytes":
            policy = RetentionPolicy(max_bytes=whole("bytes", amount))
        case "keep_from_version":
            policy = RetentionPolicy(keep_from_version=whole("the version", amount))
        case "keep everything":
            policy = RetentionPolicy(keep="everything")
        case _:
            raise InvalidRequest("a policy keeps one of what the form offers")
    confirm = await _confirmed(call, name, policy)
    if CONFIRM_FIELD not in call.form or confirm.problems_with(call.form):
        return confirm
    await call.service.log.set_retention(name, policy)
    return ActionDone(f"The policy {name} is set; it keeps {keeps_of(policy)}.", "/retention")


async def _confirmed(call: PageCall, name: str, policy: RetentionPolicy) -> Form:
    """The form that names what a policy would remove."""
    old = (await call.service.log.retention()).policies.get(name)
    replaced = f"The policy exists and keeps {keeps(old)}: this replaces it." if old is not None else ""
    planned, limits = await _planned(call, name, policy)
    return Form(
        effect=[
            element("p", "Sets the policy ", element("strong", name), f", which keeps {keeps_of(policy)}."),
            notice("warn", replaced) if replaced else None,
            planned,
            element("p", "Later it removes more, as the log grows and becomes older, without asking."),
        ],
        button="Set the policy",
        back="/retention/set",
        inputs=tuple(Input(each, "", call.form.get(each, ""), "hidden") for each in ("policy", "kind", "amount")),
        typed="set retention" if old is None else "replace it",
        limits=limits,
    )


async def _remove_form(call: PageCall) -> Form:
    name = call.required("policy")
    answer = await call.service.log.retention()
    policy = answer.policies.get(name)
    if policy is None:
        raise InvalidRequest("there is no such policy", policy=name)
    held = "" if policy.held_bytes is None else f", now {units.size(policy.held_bytes)}"
    planned, limits = await _planned(call, name, None)
    left = "No policy is left: the whole log stays."
    if rest := len(answer.policies) - 1:
        left = f"{rest} policies are left, and what none of them needs is removed."
    return Form(
        effect=[
            element("p", "Removes the policy ", element("strong", name), f", which keeps {keeps(policy)}{held}."),
            element("p", left),
            planned,
        ],
        button="Remove the policy",
        back="/retention",
        typed=name,
        limits=limits,
    )


async def _remove(call: PageCall) -> ActionDone:
    name = call.required("policy")
    await call.service.log.remove_retention(name)
    return ActionDone(f"The policy {name} is removed.", "/retention")


SET: Final = Action("/retention/set", "Set a retention policy", "Retention", _set_form, _set)
REMOVE: Final = Action("/retention/remove", "Remove a retention policy", "Retention", _remove_form, _remove)
PAGES: Final = (Screen("/retention", "Retention", "Retention", _retention),)
ACTIONS: Final = (SET, REMOVE)
