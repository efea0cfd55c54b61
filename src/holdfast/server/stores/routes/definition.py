"""How a request changes the definition of the stores; the routes of the whole of it, and of those before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from holdfast.errors import Code, Conflict, InvalidRequest, NotFound
from holdfast.server.http.rights_table import DEAD_LETTERS
from holdfast.server.http.routes import Response, Route
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.operations import flag
from holdfast.server.stores.routes.store_call import DOCUMENT, StoreCall, StoreHandler, parameter, store_route
from holdfast.stores.definitions.changes import patched
from holdfast.stores.definitions.cluster import ClusterDefinition, definition_of
from holdfast.stores.definitions.parts import (
    dead_letter_stores,
    full_parts,
    new_dead_letters,
    parts_between,
    require_size,
    with_parts,
)
from holdfast.stores.definitions.permissions import Right
from holdfast.stores.machine.redefine import definition_at
from holdfast.stores.machine.store import Revision
from holdfast.stores.values.commands import DefinitionPart, Done, Redefine
from holdfast.wire.stores import Rollback

DEFINE_CODES: Final = (
    *(Code.BAD_CONFIGURATION, Code.TYPE_MISMATCH, Code.MATCHER_MISMATCH, Code.REVISION_MISMATCH),
    Code.DELETES_MESSAGES,
)
DELETE: Final = (parameter("delete", "boolean", "Whether the change may delete messages", default=False),)
change_route: Final = partial(store_route, body=DOCUMENT, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE)


async def define(
    call: StoreCall, change: Callable[[ClusterDefinition], list[DefinitionPart]], *, delete: bool | None = None
) -> int:
    """Apply a change of the definition. Returns its revision. Raises: InvalidRequest, NotFound, Conflict.

    ``delete``: whether it may delete messages; None: as the request's query says.
    """
    may_delete = flag("delete", call.call.text("delete")) if delete is None else delete
    opened = call.opened
    expected = call.call.header("if-match")
    in_force = opened.state
    if expected is not None and expected.strip('"') != str(in_force.revision):
        raise Conflict(
            "another revision of the definition is in force", code=Code.REVISION_MISMATCH, revision=in_force.revision
        )
    parts = _parts_allowed(call, in_force.definition, change)
    if not parts and in_force.revision:
        return in_force.revision
    require_size(parts)
    author = opened.access.user_of(call.call.authorization) or ""
    revision = in_force.revision + 1
    before = in_force.definition.permissions.enabled
    await call.submit(opened.service.submit(Redefine(0, parts, revision, author, may_delete)), Done)
    if not before:
        call.host.warn_about_open_log()
    return revision


def _parts_allowed(
    call: StoreCall, known: ClusterDefinition, change: Callable[[ClusterDefinition], list[DefinitionPart]]
) -> list[DefinitionPart]:
    """The parts of a change. The service writes dead letters by itself, so who names a store for them must have the
    right to publish there. A store without that right is refused in the words for a store that is not defined.

    Who administers the cluster may give every right, so nothing is asked.
    """
    access, authorization = call.opened.access, call.call.authorization

    def parts_of(definition: ClusterDefinition) -> list[DefinitionPart]:
        return full_parts(definition, change(definition))

    if access.allows(authorization, Right.ADMINISTER):
        return parts_of(known)
    right = call.call.need.right_of(DEAD_LETTERS)
    allowed = {name for name in known.stores if name == call.store or access.allows(authorization, right, name)}

    def refused_as_undefined(visible: set[str]) -> None:
        parts_of(replace(known, stores={name: store for name, store in known.stores.items() if name in visible}))

    try:
        parts = parts_of(known)
    except InvalidRequest:
        # In words that show nothing of stores without the right, except of those that its letters go to already.
        refused_as_undefined(allowed | dead_letter_stores(known, call.store))
        raise
    if not new_dead_letters(known, with_parts(known, parts), parts) <= allowed:
        refused_as_undefined(allowed)
        raise AssertionError("a dead-letter store that is not defined is refused")
    return parts


def defining(
    change: Callable[[StoreCall, ClusterDefinition, object], list[DefinitionPart]], get: StoreHandler
) -> StoreHandler:
    """A handler that applies the body as a change of the definition, and replies with the part in force."""

    async def handle(call: StoreCall) -> Response:
        document = await call.document()
        await define(call, lambda definition: change(call, definition, document))
        return await get(call)

    return handle


Json = dict[str, object]


def _whole(call: StoreCall, revision: int, definition: Json) -> Response:
    body = {"revision": revision, "definition": definition}
    return call.answer(body, headers={"ETag": f'"{revision}"'})


async def _get_definition(call: StoreCall) -> Response:
    in_force = call.opened.state
    return _whole(call, in_force.revision, in_force.definition.document())


_put_definition = defining(lambda _, known, given: parts_between(known, definition_of(given)), _get_definition)
_patch_definition = defining(lambda _, known, given: patched(known, given), _get_definition)


async def check_definition(call: StoreCall) -> Response:
    """``POST /v1/cluster/definition/check``: what would be in force, without applying it."""
    document = await call.document()
    return _whole(call, call.opened.state.revision + 1, definition_of(document).document())


async def _list_history(call: StoreCall) -> Response:
    revisions = call.opened.state.history
    return call.answer(
        {"history": [{"revision": one.revision, "at_ms": one.at_ms, "author": one.author} for one in revisions]}
    )


def _kept(call: StoreCall, revision: int) -> tuple[Revision, ClusterDefinition]:
    state = call.opened.state
    for one in state.history:
        if one.revision == revision and (definition := definition_at(state, revision)) is not None:
            return one, definition
    raise NotFound("this revision is not in the history", revision=revision)


async def _get_history(call: StoreCall) -> Response:
    text = call.call.path_text("revision")
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidRequest("a revision is a whole number")
    kept, definition = _kept(call, int(text))
    document = definition.document()
    return call.answer({"revision": kept.revision, "at_ms": kept.at_ms, "author": kept.author, "definition": document})


async def _rollback(call: StoreCall) -> Response:
    rollback = await call.body(Rollback)
    _, wanted = _kept(call, rollback.revision)
    await define(call, lambda definition: parts_between(definition, wanted))
    return await _get_definition(call)


def definition_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    definition, history = "/v1/cluster/definition", "/v1/cluster/history"
    change = partial(change_route, host)
    return (
        store_route(
            host, "GET", definition, "The whole definition in force, and its revision", _get_definition,
            answer=DOCUMENT,
        ),
        change("PUT", definition, "Replace the whole definition", _put_definition),
        change("PATCH", definition, "Change what a part of a definition names", _patch_definition),
        store_route(
            host, "POST", f"{definition}/check", "Check a whole definition without applying it",
            check_definition, body=DOCUMENT, answer=DOCUMENT, codes=(Code.BAD_CONFIGURATION,),
        ),
        store_route(host, "GET", history, "The definitions that were in force", _list_history, answer=DOCUMENT),
        store_route(host, "GET", f"{history}/{{revision}}", "One of them", _get_history, answer=DOCUMENT),
        store_route(
            host, "POST", "/v1/cluster/rollback", "Put an earlier definition in force again", _rollback,
            body=Rollback, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE,
        ),
    )  # fmt: skip
