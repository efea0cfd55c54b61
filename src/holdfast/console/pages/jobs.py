"""The jobs that a leader has another process do: how far they are, and the forms that begin and end them."""

from __future__ import annotations

import time
from typing import Final, Literal

import msgspec

from holdfast.client.protocol.messages import query_of
from holdfast.console import units
from holdfast.console.call import Action, ActionDone, Form, Input, PageCall, Section, link, whole
from holdfast.console.html import Content, element
from holdfast.console.parts import Tone, action, anchor, badge, bar, code, facts, moment, notice
from holdfast.console.reading import backwards
from holdfast.console.values import log_at
from holdfast.errors import InvalidRequest, PermissionDenied
from holdfast.wire.log import LogJobState

Kind = Literal["snapshot", "verify"]
TONES: Final[dict[str, Tone]] = {
    "idle": "none", "running": "none", "done": "good", "failed": "bad", "cancelled": "warn",
}  # fmt: skip
SAID: Final = {"idle": "none since this leader began", "running": "at work", "cancelled": "ended before its time"}
SIZES: Final = ("bytes",)
VERSIONS: Final = ("last_transaction", "after", "through")
"""Facts that are versions and are not named so."""


async def job_of(call: PageCall, kind: Kind) -> Content:
    """The newest job of the leader, with its progress. Raises: as the service does."""
    try:
        state = msgspec.convert(await call.service.read(f"/v1/admin/{kind}"), LogJobState)
    except (PermissionDenied, InvalidRequest) as error:
        return element("p", f"{error.statement()[:1].upper()}{error.statement()[1:]}.", class_="empty")
    shown: dict[str, Content] = {"State": badge(SAID.get(state.state, state.state), TONES[state.state])}
    if state.parameters:
        shown["Versions"] = [log_at(state.parameters["after"]), " to ", log_at(state.parameters["through"])]
    if state.began_ms:
        end_ms = state.ended_ms or time.time() * 1000
        shown["Began"] = moment(state.began_ms)
        shown["Time" if state.ended_ms else "Time so far"] = units.duration(max(0, end_ms - state.began_ms) / 1000)
    if state.state == "running" and state.total:
        shown["Progress"] = bar(state.done, state.total, "Progress", units.count, is_good=True)
    shown |= {name.replace("_", " ").capitalize(): _result(name, value) for name, value in state.result.items()}
    problem = notice("bad", state.error, " ", element("code", state.code)) if state.error else None
    end = action(call, END_SNAPSHOT if kind == "snapshot" else END_VERIFICATION, "End it")
    return [problem, facts(shown), element("p", end) if state.state == "running" else None]


def _result(name: str, value: int | str | bool | None) -> Content:
    """One of the facts that a job ends with."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        is_slot = name in ("slot", "newest_slot")
        return anchor(code(value), link("/log", slot=value) + "#h-batches") if is_slot else code(value)
    if name in SIZES:
        return units.size(value)
    return log_at(value) if "version" in name or name in VERSIONS else units.count(value)


async def _verify_form(call: PageCall) -> Form:
    newest = await backwards.newest_version(call.service)
    text = (
        "A process of its own on the leader's machine reads every object of the log in this range, at low priority, "
        "and checks the chain, every checksum and every version. It changes nothing. Each object is a request to the "
        "store."
    )
    return Form(
        effect=element("p", text),
        button="Verify",
        back="/log",
        inputs=(
            Input("after", "After version", "0", "number", required=True, note="0: from the oldest one that is left"),
            Input("through", "Up to version", str(newest), "number", required=True),
        ),
    )


async def _verify(call: PageCall) -> ActionDone:
    after = whole("the first version", call.form.get("after", ""))
    through = whole("the last version", call.form.get("through", ""))
    state = await call.service.change("POST", "/v1/admin/verify" + query_of(after=after, through=through))
    if state.get("parameters") != {"after": after, "through": through}:
        return ActionDone("Another verification is at work.", "/log#verify")
    return ActionDone(f"The verification of versions {after} to {through} has begun.", "/log#verify")


async def _snapshot_form(_: PageCall) -> Form:
    text = (
        "A process of its own on the leader's machine reads the log since the newest snapshot, at low priority, and "
        "writes the newest value of every key next to the log. Its temporary file needs room for the whole state."
    )
    return Form(effect=element("p", text), button="Make a snapshot", back="/retention")


async def _snapshot(call: PageCall) -> ActionDone:
    await call.service.change("POST", "/v1/admin/snapshot")
    return ActionDone("A snapshot is being made.", "/retention#snapshot")


def _ending(path: str, kind: Kind, what: str, section: Section, back: str) -> Action:
    """Ends the job of a kind."""
    text = f"Ends the {what} that is at work. What it did so far is lost; it can be begun again."

    async def form(_: PageCall) -> Form:
        return Form(effect=element("p", text), button="End it", back=back)

    async def act(call: PageCall) -> ActionDone:
        await call.service.change("DELETE", f"/v1/admin/{kind}")
        return ActionDone(f"The {what} has ended.", back)

    return Action(path, f"End the {what}", section, form, act)


VERIFY: Final = Action("/log/verify", "Verify a range of the log", "Log", _verify_form, _verify)
END_VERIFICATION: Final = _ending("/log/end-verification", "verify", "verification", "Log", "/log")
SNAPSHOT: Final = Action("/retention/snapshot", "Make a snapshot", "Retention", _snapshot_form, _snapshot)
END_SNAPSHOT: Final = _ending("/retention/end-snapshot", "snapshot", "snapshot", "Retention", "/retention")
ACTIONS: Final = (VERIFY, END_VERIFICATION, SNAPSHOT, END_SNAPSHOT)
