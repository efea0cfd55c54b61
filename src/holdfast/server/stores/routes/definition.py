"""The routes of the whole definition, of those before it, and of the way back to one of them."""

from __future__ import annotations

from functools import partial

from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.server.http.routes import Response, Route
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.routes.defining import DEFINE_CODES, DELETE, change_route, define, defining
from holdfast.server.stores.routes.store_call import DOCUMENT, StoreCall, store_route
from holdfast.stores.definitions.changes import patched
from holdfast.stores.definitions.cluster import ClusterDefinition, definition_of
from holdfast.stores.definitions.parts import parts_between
from holdfast.stores.machine.redefine import definition_at
from holdfast.stores.machine.store import Revision
from holdfast.wire.stores import Rollback

Json = dict[str, object]


def _whole(call: StoreCall, revision: int, definition: Json) -> Response:
    body = {"revision": revision, "definition": definition}
    return call.answer(body, headers={"ETag": f'"{revision}"'})


async def _get_definition(call: StoreCall) -> Response:
    in_force = call.opened.definitions
    return _whole(call, in_force.revision, in_force.cluster.document())


_put_definition = defining(lambda _, known, given: parts_between(known, definition_of(given)), _get_definition)
_patch_definition = defining(lambda _, known, given: patched(known, given), _get_definition)


async def check_definition(call: StoreCall) -> Response:
    """``POST /v1/cluster/definition/check``: what would be in force, without applying it."""
    document = await call.document()
    return _whole(call, call.opened.definitions.revision + 1, definition_of(document).document())


async def _list_history(call: StoreCall) -> Response:
    kept = call.opened.state.history
    return call.answer(
        {"history": [{"revision": one.revision, "at_ms": one.at_ms, "author": one.author} for one in kept]}
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
    asked = await call.body(Rollback)
    _, wanted = _kept(call, asked.revision)
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
