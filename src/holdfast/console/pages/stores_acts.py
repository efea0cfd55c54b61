"""What an operator can do to message stores, durables, their definition and the cluster. ``stores`` shows them."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from holdfast.client.protocol.stores.administration import ClusterCommand
from holdfast.client.protocol.stores.messages import durable_path, store_path, template_path
from holdfast.console import units
from holdfast.console.call import Action, ActionDone, Form, Input, Limit, PageCall, link, whole
from holdfast.console.html import Content, element
from holdfast.console.parts import anchor, notice
from holdfast.console.reading.service import (
    COUNTS,
    NOT_PARAMETERS,
    Document,
    count_of,
    document,
    document_of,
    documents,
    number,
    yaml_of,
)
from holdfast.console.units import counted
from holdfast.console.values import mark_of, time_given
from holdfast.errors import Code, Conflict, HoldfastError, InvalidRequest, NotFound
from holdfast.stores.definitions.reader import byte_size, check_name

RETAINED_TOO: Final = "Acknowledged messages that it retains go, too; they are not counted."
FOLDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NAMED_MAX: Final = 20
REFUSED: Final = "publishes are refused, and publishers wait, until there are fewer"
NOT_KEPT: Final = "new messages are not kept in this durable until there are fewer, and their publishers get no error"
AS_YAML: Final = "YAML, as in a definition file; what is not named gets its default"


def _defining(
    path: str,
    what: str,
    target: Callable[[PageCall, str], str],
    back: Callable[[PageCall], str],
    shown: Callable[[PageCall, str], str],
    example: str = "",
) -> Action:
    """Defines something that gets a name and parameters."""

    async def form(call: PageCall) -> Form:
        effect = f"Makes a {what}. One that exists gets these parameters after another confirmation. "
        parameters = Input("parameters", "Parameters", example, "area", note=AS_YAML)
        return Form(
            effect=element("p", effect, "What would delete messages is refused."),
            button="Define",
            back=back(call),
            inputs=(Input("name", "Name", required=True), parameters),
        )

    async def act(call: PageCall) -> ActionDone | Form:
        name = call.form.get("name", "").strip()
        check_name(what, name)
        given = await document_of(call.form.get("parameters", ""), "the parameters", call.documents)
        known = await _existing(call, what, target(call, name), name)
        if known is not None:
            passed = _passed_limits(what, given, known, is_whole=True)
            in_force = {key: value for key, value in known.items() if key not in NOT_PARAMETERS}
            confirm = replace(
                await form(call),
                effect=[replacing(what, name, known, given), passed],
                typed=name,
                button="Replace",
                seen=mark_of(msgspec.json.encode([given, in_force, passed is not None])),
            )
            if "confirm" not in call.form or confirm.problems_with(call.form) or not confirm.is_seen_in(call.form):
                return confirm
        await call.service.change("PUT", target(call, name), given)
        how = "is defined" if known is None else "is defined again"
        named = f" with {', '.join(sorted(given))}" if given else " with the defaults"
        return ActionDone(f"The {what} {name} {how}{named}.", shown(call, name))

    return Action(path, f"Define a {what}", "Stores", form, act)


async def _existing(call: PageCall, what: str, target: str, name: str) -> Document | None:
    """What there is now, None where there is nothing."""
    if what == "template":
        templates = await call.service.collection(target.rpartition("/")[0], "templates")
        return next((each for each in templates if each.get("name") == name), None)
    try:
        return await call.service.read(target)
    except NotFound:
        return None


def _passes(changed: Document, messages: float, size: float, effect: str) -> list[str]:
    lines: list[str] = []
    rows: Sequence[tuple[str, float, Callable[[float], str], str]] = (
        ("message_limit", messages, units.count, units.counted(int(messages), "message")),
        ("bytelimit", size, units.size, units.size(size)),
    )
    for name, used, text, held in rows:
        try:
            limit = byte_size(changed.get(name))
        except ValueError:
            continue  # the service will refuse it
        if limit and used >= limit:
            over = f", {text(used - limit)} more than {name} {text(limit)}"
            over = over if used > limit else f", as many as {name} allows"
            lines.append(f"It holds {held}{over}: {effect}.")
    return lines


def store_limits(changed: Document, part: Document) -> list[str]:
    """What the limits that a change of a store sets do at once."""
    return _passes(changed, count_of(part, "messages"), count_of(part, "bytes"), REFUSED)


def durable_limits(changed: Document, part: Document) -> list[str]:
    """The same of a durable. With ``discard: old`` it loses messages, which the service counts and asks about."""
    if (changed.get("discard") or part.get("discard")) == "old":
        return []
    return _passes(changed, count_of(part, "messages"), count_of(part, "bytes"), NOT_KEPT)


def cluster_limits(changed: Document, cluster: Document, revisions: int) -> list[str]:
    """The same of the cluster, which has this many ``revisions`` of its definition."""
    lines = _passes(changed, number(cluster.get("messages")), number(cluster.get("bytes")), REFUSED)
    disk, fraction = document(cluster.get("disk")), changed.get("max_disk_fraction")
    used, capacity = number(disk.get("used")), number(disk.get("capacity"))
    if isinstance(fraction, int | float) and used >= fraction * capacity:
        room = units.size(fraction * capacity)
        lines.append(f"The disk has {units.size(used)} in use, and max_disk_fraction allows {room}: {REFUSED}.")
    revisions_max = changed.get("max_deployment_history")
    if isinstance(revisions_max, int) and 0 < revisions_max < revisions:
        gone = units.counted(revisions - revisions_max, "revision")
        lines.append(f"The oldest {gone} of {revisions} are forgotten: the definition cannot be rolled back to them.")
    return lines


def _passed_limits(what: str, changed: Document, part: Document, *, is_whole: bool = False) -> Content:
    """What the limits of a change do at once, None where they do nothing. ``is_whole``: the rest gets its defaults."""
    of = {"store": store_limits, "durable": durable_limits}.get(what)
    lines = [] if of is None else of(changed, {COUNTS: part.get(COUNTS)} if is_whole else part)
    return notice("warn", " ".join(lines)) if lines else None


def replacing(what: str, name: str, known: Document, given: Document) -> Content:
    """What defining an existing thing again changes: what is not named gets its default."""
    not_named = {key: value for key, value in known.items() if key not in {*given, *NOT_PARAMETERS} and value}
    lost = element("p", "Not named, so reset to their defaults where they differ: ") if not_named else None
    return [
        notice("warn", f"The {what} {name} exists. This replaces all of its parameters; to change some, edit it."),
        lost,
        element("pre", yaml_of(not_named), tabindex="0") if not_named else None,
    ]


def _to_store(call: PageCall) -> str:
    return link("/store", store=call.text("store"))


def _to_durable(call: PageCall) -> str:
    return link("/durable", store=call.text("store"), durable=call.text("durable"))


def limit_of(part: Document, name: str, noun: str) -> Limit:
    """How many things of it an action would delete; an unknown number where the document has no such count."""
    count = document(part.get(COUNTS)).get(name)
    return Limit(noun, count) if isinstance(count, int) else Limit(noun, 0, is_exact=False)


_LOST: Final = re.compile(r" messages=(\d+) places=\d+ count=(exact|at_least)$")
"""The end of a refusal that has counted; names of stores come before it."""


def losses_of(refusal: str) -> Limit:
    """How many messages a refused change would delete. A text that does not say so is an unknown number.

    >>> losses_of("the change would delete messages of a/b (at least 7) messages=7 places=1 count=at_least").is_exact
    False
    """
    count = _LOST.search(refusal)
    return Limit("message", int(count[1]) if count else 0, is_exact=count is not None and count[2] == "exact")


async def _changing(call: PageCall, form: Form, method: str, target: str, body: Document | None = None) -> Form | None:
    """Ask for a change of a definition, which may delete messages only as far as the form confirms.

    The service is first asked without ``delete``: it does what deletes nothing, and otherwise says how much would go. A
    form means that nothing was done and that a person has to confirm. What is added between the two requests goes, too.
    """
    try:
        await call.service.change(method, target, body)
    except Conflict as error:
        if error.code is not Code.DELETES_MESSAGES:
            raise
        losses = losses_of(error.statement())
        said = notice("warn", f"{error.message[:1].upper()}{error.message[1:]}. This cannot be undone.")
        typed = form.typed or "delete messages"
        confirm = replace(form, effect=[form.effect, said], limits=(losses,), typed=typed)
        if losses.field not in call.form or confirm.problems_with(call.form):
            return confirm
        await call.service.change(method, f"{target}?delete=true", body)
    return None


def _edit_form(effect: Sequence[str], back: str, field: str, parameters: Document) -> Form:
    """The form of a change of parameters: as YAML what is in force, and hidden the same, so that a change is seen."""
    text = yaml_of(parameters)
    inputs = (Input(field, field.capitalize(), text, "area", note="YAML"), Input("shown", "", text, "hidden"))
    return Form([element("p", each) for each in effect], "Change", back, inputs)


async def _changed(call: PageCall, field: str, part: Document) -> Document:
    """What a person changed in ``_edit_form``. Raises: as ``changed_by``."""
    given = await document_of(call.form.get(field, ""), f"the {field}", call.documents)
    shown = await document_of(call.form.get("shown", ""), "what the form showed", call.documents)
    return changed_by(part, given, shown)


def _editing(path: str, what: str, target: Callable[[PageCall], str], back: Callable[[PageCall], str]) -> Action:
    """Changes some parameters of a store or a durable."""
    effect = (
        f"Changes the parameters of the {what} that differ from what is in force.",
        "A change that would delete messages has to be confirmed with their number.",
    )

    async def form(call: PageCall) -> Form:
        part = await call.service.read(target(call))
        known = {key: value for key, value in part.items() if key not in NOT_PARAMETERS}
        return _edit_form(effect, back(call), "parameters", known)

    async def act(call: PageCall) -> ActionDone | Form:
        part = await call.service.read(target(call))
        changed = await _changed(call, "parameters", part)
        asking = _asking(await form(call), changed, _passed_limits(what, changed, part))
        if asking.seen and not asking.is_seen_in(call.form):
            return asking
        confirm = await _changing(call, asking, "PATCH", target(call), changed)
        return ActionDone(f"Changed: {', '.join(sorted(changed))}.", back(call)) if confirm is None else confirm

    return Action(path, f"Edit a {what}", "Stores", form, act)


def _asking(form: Form, changed: Document, passed: Content) -> Form:
    """The form of a change that asks once more, for these values, where they pass a limit; else the form itself."""
    return replace(form, effect=[form.effect, passed], seen=msgspec.json.encode(changed).decode()) if passed else form


def changed_by(part: Document, given: Document, shown: Document) -> Document:
    """The parameters that a person changed in a form that showed ``shown``.

    Raises: InvalidRequest where nothing was changed; Conflict where one of them was changed by another meanwhile.
    """
    base = shown or part
    changed = {key: value for key, value in given.items() if key not in base or base[key] != value}
    changed = {key: value for key, value in changed.items() if key not in part or part[key] != value}
    if not changed:
        raise InvalidRequest("nothing differs from what is in force")
    meanwhile = sorted(key for key in changed if base.get(key) != part.get(key))
    if meanwhile:
        now = ", ".join(f"{key} is {part.get(key)} now" for key in meanwhile)
        raise Conflict(f"changed by another since the form was made: {now}; your text is below, load the form again")
    return changed


async def _delete_store_form(call: PageCall) -> Form:
    store = call.required("store")
    part = await call.service.read(store_path(store))
    messages, durables = limit_of(part, "messages", "message"), limit_of(part, "durables", "durable")
    said = f": {messages} ({units.size(count_of(part, 'bytes'))}) of {durables}."
    return Form(
        effect=[
            element("p", "Deletes the store ", element("strong", store), said),
            element("p", "This cannot be undone: a rollback of the definition makes an empty store."),
        ],
        button="Delete the store",
        back=_to_store(call),
        typed=store,
        limits=(messages, durables),
    )


async def _delete_store(call: PageCall) -> ActionDone:
    store = call.required("store")
    part = await call.service.read(store_path(store))
    await call.service.stores.delete_store(store)
    gone = f"{limit_of(part, 'messages', 'message')} of {limit_of(part, 'durables', 'durable')}"
    return ActionDone(f"The store {store} is deleted, with {gone}.", "/stores")


def _deleting(effect: str, label: str) -> Callable[[PageCall], Awaitable[Form]]:
    """The form of an action that deletes the messages of a durable."""

    async def form(call: PageCall) -> Form:
        store, name = call.required("store"), call.required("durable")
        part = await call.service.read(durable_path(store, name))
        messages = limit_of(part, "messages", "message")
        said = f": {messages} ({units.size(count_of(part, 'bytes'))})."
        retained = f"{RETAINED_TOO} " if number(part.get("retention_time")) else None
        lines = [
            element("p", effect, element("strong", f"{store}/{name}"), said),
            element("p", retained, "This cannot be undone."),
        ]
        return Form(lines, label, _to_durable(call), typed=f"{store}/{name}", limits=(messages,))

    return form


async def _purge(call: PageCall) -> ActionDone:
    purged = await call.service.stores.purge(call.required("store"), call.required("durable"))
    return ActionDone(f"Removed {counted(purged.messages, 'message')}, {units.size(purged.bytes)}.", _to_durable(call))


async def _delete_durable(call: PageCall) -> ActionDone:
    store, name = call.required("store"), call.required("durable")
    part = await call.service.read(durable_path(store, name))
    await call.service.stores.delete_durable(store, name)
    return ActionDone(f"The durable {name} is deleted, with {limit_of(part, 'messages', 'message')}.", _to_store(call))


async def _delete_template_form(call: PageCall) -> Form:
    store, template = call.required("store"), call.required("template")
    name = element("strong", f"{store}/{template}")
    return Form(
        effect=element("p", "Deletes the template ", name, ". Durables that were made from it stay."),
        button="Delete the template",
        back=_to_store(call),
        typed=template,
    )


async def _delete_template(call: PageCall) -> ActionDone:
    template = call.required("template")
    await call.service.change("DELETE", template_path(call.required("store"), template))
    return ActionDone(f"The template {template} is deleted.", _to_store(call))


def _backlog(part: Document) -> str:
    return counted(int(count_of(part, "backlog")), "message")


async def _rewind_form(call: PageCall) -> Form:
    store, name = call.required("store"), call.required("durable")
    part = await call.service.read(durable_path(store, name))
    retention_seconds = number(part.get("retention_time"))
    effect = f"Delivers messages of {store}/{name} again that were acknowledged and are still retained"
    already = counted(int(count_of(part, "acknowledged")), "message")
    what = ". This durable has no retention_time: nothing is retained."
    if retention_seconds:
        span = units.duration(retention_seconds)
        what = f": some of the {already} that were acknowledged so far (retention_time {span})."
    everything = "empty, with an empty time: everything that is kept"
    return Form(
        effect=[element("p", effect, what), element("p", f"Now {_backlog(part)} wait in it.")],
        button="Rewind",
        back=_to_durable(call),
        inputs=(
            Input("seq", "From message number", "", "number", note=everything),
            Input("time", "From a time (UTC)", "", note="ISO 8601, such as 2026-11-27T09:30:00"),
            Input("also", "Also rewind", "", note=f"other durables of {store}, separated by commas"),
        ),
    )


async def _rewind(call: PageCall) -> ActionDone:
    store = call.required("store")
    seq_text, time_text = call.form.get("seq", "").strip(), call.form.get("time", "").strip()
    seq, time_ms = whole("the number", seq_text) if seq_text else None, time_given(time_text) if time_text else None
    if time_ms is not None and time_ms > time.time() * 1000:
        raise InvalidRequest("the time to rewind to is in the future")
    names = [call.required("durable"), *(each.strip() for each in call.form.get("also", "").split(",") if each.strip())]
    for name in names:  # one that is not there refuses all of them
        await call.service.read(durable_path(store, name))
    for at_name, name in enumerate(names):
        try:
            await call.service.stores.rewind(store, name, seq=seq, time_ms=time_ms)
        except HoldfastError as error:
            if at_name == 0:
                raise
            return ActionDone(
                f"Rewound: {', '.join(names[:at_name])}. Not {name}: {error.statement()}.", _to_durable(call)
            )
    call.service.forget()
    part = await call.service.read(durable_path(store, names[0]))
    said = f"Rewound: {', '.join(names)}. {_backlog(part)} now wait in {names[0]}; a long rewind goes on."
    return ActionDone(said, _to_durable(call))


async def _redeliver_form(call: PageCall) -> Form:
    store, name = call.required("store"), call.required("durable")
    part = await call.service.read(durable_path(store, name))
    parked = counted(int(count_of(part, "parked")), "parked message")
    return Form(
        effect=[
            element("p", f"Delivers {parked} of {store}/{name} again."),
            element("p", "Dead letters that are here go back to the durable that they came from. Other messages stay."),
        ],
        button="Deliver again",
        back=_to_durable(call),
        inputs=(
            Input("messages", "Only these numbers", call.text("seq"), note="such as 7, 12-20; empty for all"),
            Input("max", "At most", "", "number", note="messages; empty for all"),
        ),
    )


def ranges_in(text: str) -> list[tuple[int, int]]:
    """Numbers and ranges that a person wrote. Raises: InvalidRequest.

    >>> ranges_in("7, 12-20")
    [(7, 7), (12, 20)]
    """
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        if part.strip():
            first, _, last = part.partition("-")
            ranges.append((whole("a number", first), whole("a number", last or first)))
    return ranges


async def _redeliver(call: PageCall) -> ActionDone:
    store, name, most = call.required("store"), call.required("durable"), call.form.get("max", "").strip()
    limit = whole("at most", most) if most else None
    done = await call.service.stores.redeliver(store, name, ranges_in(call.form.get("messages", "")), limit=limit)
    left = "".join(f", {units.count(number)} stay ({reason})" for reason, number in done.left.items())
    return ActionDone(f"Delivered again: {counted(done.messages, 'message')}{left}.", _to_durable(call))


async def _publish_form(call: PageCall) -> Form:
    store = call.required("store")
    rest = ". Subscribers get it like any other message."
    return Form(
        effect=element("p", "Publishes one message into ", element("strong", store), rest),
        button="Publish",
        back=_to_store(call),
        inputs=(
            Input("body", "Body", "", "area", note="text"),
            Input("fields", "Fields", "", "area", note="YAML, such as kind: a"),
            Input("key", "Key", "", note="empty for none"),
        ),
    )


async def _publish(call: PageCall) -> ActionDone:
    store = call.required("store")
    fields = await document_of(call.form.get("fields", ""), "the fields", call.documents)
    message = {"body": call.form.get("body", "").encode(), "fields": fields, "key": call.form.get("key") or None}
    answer = await call.service.change("POST", f"{store_path(store)}/messages", {"messages": [message]})
    unmatched = number(answer.get("unmatched"))
    said = " No durable wanted it, so it is not kept." if unmatched else ""
    return ActionDone(f"Published as number {answer.get('last_seq')}.{said}", _to_store(call))


def names_in(definition: Document) -> frozenset[str]:
    """The stores and durables of a definition."""
    names: set[str] = set()
    for store, parameters in document(definition.get("stores")).items():
        names |= {store, *(f"{store}/{name}" for name in document(document(parameters).get("durables")))}
    return frozenset(names)


def _named(what: str, names: frozenset[str]) -> Content:
    if not names:
        return None
    first = sorted(names)[:NAMED_MAX]
    more = f" and {len(names) - len(first):,} more" if len(names) > len(first) else ""
    return element("p", f"{what}: ", element("strong", ", ".join(first)), f"{more}.")


async def _rollback_form(call: PageCall) -> Form:
    revision = call.number("revision")
    earlier = await call.service.read(f"/v1/cluster/history/{revision}")
    in_force = await call.service.read("/v1/cluster/definition")
    if number(in_force.get("revision")) == revision:
        raise InvalidRequest(f"revision {revision} is in force")
    then, now = names_in(document(earlier.get("definition", earlier))), names_in(document(in_force.get("definition")))
    earlier_one = anchor(f"revision {revision}", link("/definition", revision=revision))
    return Form(
        effect=[
            element("p", f"Puts the definition of revision {revision} in force again, with a new number."),
            element("p", "It restores no message. If it would delete some, their number has to be confirmed."),
            _named("Removes", now - then),
            _named("Makes", then - now),
            element(
                "p", "The definitions on both sides: ", earlier_one, " and ", anchor("in force", "/definition"), "."
            ),
        ],
        button="Roll back",
        back="/stores",
        typed=f"revision {revision}",
    )


async def _rollback(call: PageCall) -> ActionDone | Form:
    revision = call.number("revision")
    confirm = await _changing(call, await _rollback_form(call), "POST", "/v1/cluster/rollback", {"revision": revision})
    if confirm is not None:
        return confirm
    call.service.forget()
    revision_now = (await _cluster_afterwards(call)).get("revision")
    named = f", as revision {revision_now}" if revision_now is not None else ""
    return ActionDone(f"The definition of revision {revision} is in force again{named}.", "/stores")


async def _cluster_afterwards(call: PageCall) -> Document:
    """The cluster after something was done to it. Empty where it cannot be read: what was done is done."""
    try:
        return await call.service.read("/v1/cluster")
    except HoldfastError:
        return {}


CLUSTER_PARAMETERS: Final = (
    "name", "persistence", "bytelimit", "message_limit", "swap", "publisher_ttl", "max_disk_fraction", "disk_compact",
    "min_disk_inuse_ratio", "max_deployment_history",
)  # fmt: skip


async def _edit_cluster_form(call: PageCall) -> Form:
    cluster = await _part_of_definition(call, "cluster")
    known = {name: value for name, value in cluster.items() if name in CLUSTER_PARAMETERS}
    effect = "Changes the parameters of the cluster: persistence, limits, swap, the part of the disk."
    return _edit_form([effect], "/stores", "parameters", known)


async def _edit_cluster(call: PageCall) -> ActionDone | Form:
    changed = await _changed(call, "parameters", await _part_of_definition(call, "cluster"))
    revisions = len(documents((await call.service.read("/v1/cluster/history")).get("history")))
    lines = cluster_limits(changed, await call.service.read("/v1/cluster"), revisions)
    asking = _asking(await _edit_cluster_form(call), changed, notice("warn", " ".join(lines)) if lines else None)
    if asking.seen and not asking.is_seen_in(call.form):
        return asking
    return ActionDone(f"Changed in revision {await _change_part(call, 'cluster', changed)}.", "/stores")


async def _part_of_definition(call: PageCall, part: str) -> Document:
    definition = document((await call.service.read("/v1/cluster/definition")).get("definition"))
    return document(definition.get(part))


async def _change_part(call: PageCall, part: str, changed: Document) -> str:
    """Change one part of the definition: its new revision, and what was changed."""
    answer = await call.service.change("PATCH", "/v1/cluster/definition", {part: changed})
    return f"{answer.get('revision')}: {', '.join(sorted(changed))}"


async def _edit_permissions_form(call: PageCall) -> Form:
    effect = (
        "Changes only what is named; null removes a user or a role. It counts from the next request on.",
        "A new user needs a token of at least 16 random characters, of which the service keeps the SHA-256.",
    )
    return _edit_form(effect, "/definition", "permissions", await _part_of_definition(call, "permissions"))


async def _edit_permissions(call: PageCall) -> ActionDone:
    changed = await _changed(call, "permissions", await _part_of_definition(call, "permissions"))
    revision = await _change_part(call, "permissions", changed)
    return ActionDone(f"Users and roles are changed in revision {revision}.", "/definition")


UNTIL_RESUMED: Final = "“Resume” on the page of the stores ends that, and so does a restart or another leader."


def _count_in(cluster: Document, name: str) -> str:
    """How many stores, durables or messages there are; no number where the cluster could not be read."""
    return counted(int(number(cluster.get(name))), name[:-1]) if cluster else f"the {name}"


def figures_of(cluster: Document) -> str:
    """What a command to the cluster is about."""
    stores, durables, messages = (_count_in(cluster, name) for name in ("stores", "durables", "messages"))
    pages = document(cluster.get("log"))
    taken, used = units.size(number(pages.get("allocated"))), units.size(number(pages.get("in_use")))
    return f"Now: {stores}, {durables}, {messages}; pages of {taken}, of which {used} are in use."


def _cluster_command(
    name: ClusterCommand,
    title: str,
    effect: str,
    came_of_it: Callable[[Document, Document], str],
    *,
    typed: str | None = None,
    inputs: tuple[Input, ...] = (),
) -> Action:
    """A command to the cluster. ``came_of_it`` says what was done, of its answer and of the cluster after it."""

    async def form(call: PageCall) -> Form:
        said = element("p", figures_of(await call.service.read("/v1/cluster")))
        return Form(effect=[element("p", effect), said], button=title, back="/stores", inputs=inputs, typed=typed)

    async def act(call: PageCall) -> ActionDone:
        given: dict[str, Any] = {each.name: call.form.get(each.name, "").strip() for each in inputs}
        if not all(FOLDER.fullmatch(name) for name in given.values()):
            raise InvalidRequest("a folder's name begins with a letter or digit and has only these and . _ -")
        answer = await call.service.stores.cluster_command(name, given or None)
        call.service.forget()
        return ActionDone(came_of_it(answer, await _cluster_afterwards(call)), "/stores")

    return Action(f"/cluster/{name}", title, "Stores", form, act)


DEFINE_STORE: Final = _defining(
    "/stores/define",
    "store",
    lambda _, name: store_path(name),
    lambda _: "/stores",
    lambda _, name: link("/store", store=name),
)
DEFINE_DURABLE: Final = _defining(
    "/store/define-durable",
    "durable",
    lambda call, name: durable_path(call.required("store"), name),
    _to_store,
    lambda call, name: link("/durable", store=call.text("store"), durable=name),
    "type: shared\nmax_delivery: 5\n",
)
DEFINE_TEMPLATE: Final = _defining(
    "/store/define-template",
    "template",
    lambda call, name: template_path(call.required("store"), name),
    _to_store,
    lambda call, _: _to_store(call),
    "type: shared\ndurable_ttl: 1d\n",
)
EDIT_STORE: Final = _editing("/store/edit", "store", lambda call: store_path(call.required("store")), _to_store)
EDIT_DURABLE: Final = _editing(
    "/durable/edit", "durable", lambda call: durable_path(call.required("store"), call.required("durable")), _to_durable
)
DELETE_STORE: Final = Action("/store/delete", "Delete a store", "Stores", _delete_store_form, _delete_store)
_DELETE_FORM: Final = _deleting("Deletes the durable ", "Delete the durable")
DELETE_DURABLE: Final = Action("/durable/delete", "Delete a durable", "Stores", _DELETE_FORM, _delete_durable)
DELETE_TEMPLATE: Final = Action(
    "/store/delete-template", "Delete a template", "Stores", _delete_template_form, _delete_template
)
_PURGE_FORM: Final = _deleting("Removes every message of the durable ", "Purge")
PURGE: Final = Action("/durable/purge", "Purge a durable", "Stores", _PURGE_FORM, _purge)
REWIND: Final = Action("/durable/rewind", "Rewind a durable", "Stores", _rewind_form, _rewind)
REDELIVER: Final = Action("/durable/redeliver", "Deliver again", "Stores", _redeliver_form, _redeliver, "write")
PUBLISH: Final = Action("/store/publish", "Publish a test message", "Messages", _publish_form, _publish, "write")
ROLLBACK: Final = Action("/stores/rollback", "Roll the definition back", "Stores", _rollback_form, _rollback)
EDIT_CLUSTER: Final = Action(
    "/stores/parameters", "Edit the cluster's parameters", "Stores", _edit_cluster_form, _edit_cluster
)
EDIT_PERMISSIONS: Final = Action(
    "/stores/permissions", "Edit users and roles", "Stores", _edit_permissions_form, _edit_permissions
)
SAVE: Final = _cluster_command(
    "save",
    "Save",
    "Writes a checkpoint of the stores' index now, so that the next start reads less.",
    lambda _, cluster: f"Saved: the index on disk has {_count_in(cluster, 'messages')}.",
)
COMPACT: Final = _cluster_command(
    "compact",
    "Compact",
    "Moves the messages that are still needed out of old pages, and removes these pages.",
    lambda answer, _: (
        f"Compacted: the pages take {units.size(number(answer.get('allocated')))}, before it "
        f"{units.size(number(answer.get('allocated_before')))}; {units.size(number(answer.get('in_use')))} are in use."
    ),
)
BACKUP: Final = _cluster_command(
    "backup",
    "Backup",
    "Copies the stores into a folder next to them on the leader's machine. It may take a while.",
    lambda answer, cluster: (
        f"Backed up: {_count_in(cluster, 'messages')} are in {answer.get('path')} on the leader's machine. "
        "holdfast stores restore makes stores of it."
    ),
    inputs=(Input("name", "Name of the folder", "", required=True),),
)
SUSPEND: Final = _cluster_command(
    "suspend",
    "Suspend",
    "Stops every store: publishing and delivering are refused with no_quorum, and connected subscribers are "
    f"disconnected. {UNTIL_RESUMED} Until then clients wait, and nothing is lost.",
    lambda _, cluster: f"Suspended: {_count_in(cluster, 'stores')} serve nothing. {UNTIL_RESUMED}",
    typed="suspend",
)
RESUME: Final = _cluster_command(
    "resume",
    "Resume",
    "Serves every store again: publishers go on, and subscribers connect again by themselves.",
    lambda _, cluster: f"Resumed: {_count_in(cluster, 'stores')} with {_count_in(cluster, 'messages')}.",
)
CLUSTER_ACTIONS: Final[Sequence[Action]] = (SAVE, BACKUP, COMPACT, SUSPEND, RESUME)
ACTIONS: Final = (
    DEFINE_STORE, DEFINE_DURABLE, DEFINE_TEMPLATE, EDIT_STORE, EDIT_DURABLE, DELETE_STORE, DELETE_DURABLE,
    DELETE_TEMPLATE, PURGE, REWIND, REDELIVER, PUBLISH, ROLLBACK, EDIT_CLUSTER, EDIT_PERMISSIONS, *CLUSTER_ACTIONS,
)  # fmt: skip
