"""The routes of stores, durables, templates, and of the definition as a whole with its history.

Owns: their rows. Does not own: checking definitions (``stores.definitions``), applying them (the state machine), what a
change of a part makes of the whole (``definition_edits``), figures (``figures``).

Failure model: a definition is refused whole, naming every problem, or applied whole. One that would delete messages is
refused, unless the request says ``delete=true``. Between reading what is in force and submitting the change nothing
else runs, so no change is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import msgspec

from holdfast.errors import Code, Conflict, InvalidRequest, NotFound
from holdfast.server.http.routes import Answer, Route
from holdfast.server.stores import definition_edits as edits
from holdfast.server.stores.figures import durable_document, store_document, template_document
from holdfast.server.stores.filtering import filtered
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.routes_messages import flag
from holdfast.server.stores.store_call import DOCUMENT, StoreCall, parameter, store_route
from holdfast.stores.definitions.definitions import ClusterDefinition, DurableType, definition_of, with_known_prefetch
from holdfast.stores.definitions.parts import full_parts, parts_between
from holdfast.stores.definitions.permissions import Right
from holdfast.stores.machine.redefine import Revision, definition_at
from holdfast.stores.values.commands import Attach, Attached, Detach, Done, Part, Redefine, Unsubscribe
from holdfast.wire.stores import NothingMore, Rollback

__all__ = ["definition_routes"]

Json = dict[str, object]
DEFINE_CODES: Final = (
    *(Code.BAD_CONFIGURATION, Code.TYPE_MISMATCH, Code.MATCHER_MISMATCH, Code.REVISION_MISMATCH),
    Code.DELETES_MESSAGES,
)
DELETE: Final = (parameter("delete", "boolean", "Whether the change may delete messages", default=False),)
CREATOR: Final = "holdfast.http"
"""The subscriber that is attached for a moment where a dynamic durable is made by PUT."""


async def define(
    call: StoreCall, change: Callable[[ClusterDefinition], list[Part]], *, delete: bool | None = None
) -> int:
    """Apply a change of the definition. Returns its revision. Raises: InvalidRequest, NotFound, Conflict.

    Messages are deleted by it only where ``delete`` says so, or the request by its query where it is None.
    """
    may_delete = flag("delete", call.call.text("delete")) if delete is None else delete
    opened = call.opened
    expected = call.call.request.headers.get("if-match")
    in_force = opened.definitions
    if expected is not None and expected.strip('"') != str(in_force.revision):
        raise Conflict(
            "another revision of the definition is in force", code=Code.REVISION_MISMATCH, revision=in_force.revision
        )
    parts = full_parts(in_force.cluster, change(in_force.cluster))
    if not parts and in_force.revision:
        return in_force.revision
    author = opened.access.user_of(call.call.authorization) or ""
    revision = in_force.revision + 1
    await call.submit(opened.service.submit(Redefine(0, parts, revision, author, may_delete)), Done)
    return revision


# Stores


async def list_stores(call: StoreCall) -> Answer:
    """``GET /v1/stores``."""
    opened, authorization = call.opened, call.call.authorization
    problem = opened.access.problem_with(authorization, Right.BROWSE)
    if problem is not None and problem.code == Code.UNAUTHENTICATED:
        raise problem  # to nobody an empty list would look like a service without stores
    visible = [
        store_document(opened, name)
        for name in opened.definitions.cluster.stores
        if opened.access.allows(authorization, Right.BROWSE, name)
    ]
    return call.answer({"stores": filtered(visible, call.call.request.query_params.multi_items())})


async def get_store(call: StoreCall) -> Answer:
    """``GET /v1/stores/{store}``."""
    call.opened.definitions.store(call.store)
    return call.answer(store_document(call.opened, call.store))


async def put_store(call: StoreCall) -> Answer:
    """``PUT /v1/stores/{store}``."""
    parameters = await call.document()
    await define(call, lambda definition: edits.with_store(definition, call.store, parameters))
    return call.answer(store_document(call.opened, call.store))


async def patch_store(call: StoreCall) -> Answer:
    """``PATCH /v1/stores/{store}``."""
    parameters = await call.document()
    await define(call, lambda definition: edits.patched_store(definition, call.store, parameters))
    return call.answer(store_document(call.opened, call.store))


async def delete_store(call: StoreCall) -> Answer:
    """``DELETE /v1/stores/{store}``."""
    await define(call, lambda definition: edits.without_store(definition, call.store), delete=True)
    return call.answer(NothingMore())


# Durables


async def list_durables(call: StoreCall) -> Answer:
    """``GET .../durables``."""
    opened = call.opened
    items = [durable_document(opened, call.store, name) for name in sorted(opened.definitions.durables(call.store))]
    return call.answer({"durables": filtered(items, call.call.request.query_params.multi_items())})


async def get_durable(call: StoreCall) -> Answer:
    """``GET .../durables/{durable}``."""
    return call.answer(durable_document(call.opened, call.store, call.durable))


async def put_durable(call: StoreCall) -> Answer:
    """``PUT .../durables/{durable}``: a static one, or with ``template`` a dynamic one."""
    parameters = await call.document()
    edits.store_of(call.opened.definitions.cluster, call.store)
    if isinstance(parameters, dict) and "template" in parameters:
        await _make_dynamic(call, cast(Json, parameters))
    else:
        found = call.opened.definitions.find(call.store, call.durable)
        if found is not None and found.dynamic:
            raise InvalidRequest("this durable is dynamic: change its template", template=found.template)
        await define(
            call, lambda definition: edits.with_part(definition, call.store, "durables", call.durable, parameters)
        )
    return call.answer(durable_document(call.opened, call.store, call.durable))


async def patch_durable(call: StoreCall) -> Answer:
    """``PATCH .../durables/{durable}``: a static one."""
    parameters = await call.document()
    found = call.opened.definitions.durable(call.store, call.durable)
    if found.dynamic:
        raise InvalidRequest("this durable is dynamic: change its template", template=found.template)
    patched, name = edits.patched_part, call.durable
    await define(call, lambda definition: patched(definition, call.store, "durables", name, parameters))
    return call.answer(durable_document(call.opened, call.store, call.durable))


async def _make_dynamic(call: StoreCall, parameters: Json) -> None:
    unknown = parameters.keys() - {"template", "matcher"}
    template, matcher = parameters["template"], parameters.get("matcher")
    if unknown or not isinstance(template, str):
        raise InvalidRequest("a dynamic durable has a template, by its name, and perhaps a matcher of its own")
    opened = call.opened
    found = opened.definitions.find(call.store, call.durable)
    if found is not None and found.template == template and matcher is None:
        return
    if found is not None and not found.dynamic:
        raise Conflict("this durable is a static one", code=Code.TYPE_MISMATCH, durable=call.durable)
    if opened.deliveries.connected(call.store, call.durable):
        raise Conflict("somebody is connected to this durable", code=Code.DURABLE_COLLISION, durable=call.durable)
    wanted = b"" if matcher is None else msgspec.json.encode(matcher)
    kind = opened.definitions.terms(call.store, call.durable, template).type
    # Whoever attaches to last values follows a key; which one it is does not matter for a moment.
    key = CREATOR if kind is DurableType.LAST_VALUE else None
    attach = Attach(0, call.store, call.durable, CREATOR, template, wanted, key)
    await call.submit(opened.service.submit(attach), Attached)
    await opened.service.submit(Detach(0, call.store, call.durable, CREATOR))


async def delete_durable(call: StoreCall) -> Answer:
    """``DELETE .../durables/{durable}``: what it keeps goes too."""
    found = call.opened.definitions.durable(call.store, call.durable)
    if found.dynamic:
        await call.submit(call.opened.service.submit(Unsubscribe(0, call.store, call.durable)), Done)
    else:
        # Defining is the administrator's; whoever subscribes may only take dynamic durables away.
        call.opened.access.require(call.call.authorization, Right.ADMINISTER, call.store)
        change = edits.without_part
        await define(call, lambda definition: change(definition, call.store, "durables", call.durable), delete=True)
    return call.answer(NothingMore())


# Templates


def _template_of(call: StoreCall) -> str:
    return call.call.path_text("template")


async def list_templates(call: StoreCall) -> Answer:
    """``GET .../templates``."""
    store = call.opened.definitions.store(call.store)
    items = [template_document(template) for template in store.templates.values()]
    return call.answer({"templates": filtered(items, call.call.request.query_params.multi_items())})


async def get_template(call: StoreCall) -> Answer:
    """``GET .../templates/{template}``."""
    found = call.opened.definitions.store(call.store).template(_template_of(call))
    if found is None:
        raise NotFound("there is no such template", store=call.store, template=_template_of(call))
    return call.answer(template_document(found))


async def put_template(call: StoreCall) -> Answer:
    """``PUT .../templates/{template}``."""
    parameters = await call.document()
    name = _template_of(call)
    await define(call, lambda definition: edits.with_part(definition, call.store, "templates", name, parameters))
    return await get_template(call)


async def patch_template(call: StoreCall) -> Answer:
    """``PATCH .../templates/{template}``."""
    parameters = await call.document()
    name = _template_of(call)
    await define(call, lambda definition: edits.patched_part(definition, call.store, "templates", name, parameters))
    return await get_template(call)


async def delete_template(call: StoreCall) -> Answer:
    """``DELETE .../templates/{template}``."""
    name = _template_of(call)
    await define(call, lambda definition: edits.without_part(definition, call.store, "templates", name))
    return call.answer(NothingMore())


# The whole


def _whole(call: StoreCall, revision: int, definition: Json) -> Answer:
    body = {"revision": revision, "definition": definition}
    return call.answer(body, headers={"ETag": f'"{revision}"'})


async def get_definition(call: StoreCall) -> Answer:
    """``GET /v1/cluster/definition``."""
    in_force = call.opened.definitions
    return _whole(call, in_force.revision, in_force.cluster.document())


def _replaced(before: ClusterDefinition, wanted: ClusterDefinition) -> list[Part]:
    return parts_between(before, with_known_prefetch(before, wanted))


async def put_definition(call: StoreCall) -> Answer:
    """``PUT /v1/cluster/definition``."""
    document = await call.document()
    await define(call, lambda definition: _replaced(definition, definition_of(document)))
    return await get_definition(call)


async def patch_definition(call: StoreCall) -> Answer:
    """``PATCH /v1/cluster/definition``."""
    document = await call.document()
    await define(call, lambda definition: edits.patched(definition, document))
    return await get_definition(call)


async def check_definition(call: StoreCall) -> Answer:
    """``POST /v1/cluster/definition/check``: what would be in force, without applying it."""
    document = await call.document()
    return _whole(call, call.opened.definitions.revision + 1, definition_of(document).document())


async def list_history(call: StoreCall) -> Answer:
    """``GET /v1/cluster/history``."""
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


async def get_history(call: StoreCall) -> Answer:
    """``GET /v1/cluster/history/{revision}``."""
    text = call.call.path_text("revision")
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidRequest("a revision is a whole number")
    kept, definition = _kept(call, int(text))
    document = definition.document()
    return call.answer({"revision": kept.revision, "at_ms": kept.at_ms, "author": kept.author, "definition": document})


async def rollback(call: StoreCall) -> Answer:
    """``POST /v1/cluster/rollback``."""
    asked = await call.body(Rollback)
    _, wanted = _kept(call, asked.revision)
    await define(call, lambda definition: parts_between(definition, wanted))
    return await get_definition(call)


def definition_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    return (*_part_routes(host), *_whole_routes(host))


def _part_routes(host: StoreHost) -> tuple[Route, ...]:
    stores, store = "/v1/stores", "/v1/stores/{store}"
    durables, durable = f"{store}/durables", f"{store}/durables/{{durable}}"
    templates, template = f"{store}/templates", f"{store}/templates/{{template}}"
    browse, administer, subscribe = Right.BROWSE, Right.ADMINISTER, Right.SUBSCRIBE
    return (
        store_route(host, "GET", stores, None, "Every store", list_stores, answer=DOCUMENT, filters=True),
        store_route(host, "GET", store, browse, "A store: parameters in force and counts", get_store, answer=DOCUMENT),
        store_route(
            host, "PUT", store, administer, "Define a store", put_store,
            body=DOCUMENT, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE,
        ),
        store_route(
            host, "PATCH", store, administer, "Change the parameters of a store that are named", patch_store,
            body=DOCUMENT, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE,
        ),
        store_route(
            host, "DELETE", store, administer, "Delete a store and its messages", delete_store,
            answer=NothingMore, codes=DEFINE_CODES,
        ),
        store_route(host, "GET", durables, browse, "Every durable", list_durables, answer=DOCUMENT, filters=True),
        store_route(
            host, "GET", durable, browse, "A durable: parameters, counts, subscribers", get_durable, answer=DOCUMENT
        ),
        store_route(
            host, "PUT", durable, administer, "Define a durable; with a template a dynamic one is made", put_durable,
            body=DOCUMENT, answer=DOCUMENT, codes=(*DEFINE_CODES, Code.TOO_MANY_DURABLES, Code.DURABLE_COLLISION),
            parameters=DELETE,
        ),
        store_route(
            host, "PATCH", durable, administer, "Change the parameters of a durable that are named", patch_durable,
            body=DOCUMENT, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE,
        ),
        store_route(
            host, "DELETE", durable, subscribe, "Delete a durable and what it keeps", delete_durable,
            answer=NothingMore, codes=DEFINE_CODES,
        ),
        store_route(host, "GET", templates, browse, "Every template", list_templates, answer=DOCUMENT, filters=True),
        store_route(host, "GET", template, browse, "A template", get_template, answer=DOCUMENT),
        store_route(
            host, "PUT", template, administer, "Define a template", put_template,
            body=DOCUMENT, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE,
        ),
        store_route(
            host, "PATCH", template, administer, "Change the parameters of a template that are named", patch_template,
            body=DOCUMENT, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE,
        ),
        store_route(
            host, "DELETE", template, administer, "Delete a template", delete_template,
            answer=NothingMore, codes=DEFINE_CODES,
        ),
    )  # fmt: skip


def _whole_routes(host: StoreHost) -> tuple[Route, ...]:
    definition, history = "/v1/cluster/definition", "/v1/cluster/history"
    browse, administer = Right.BROWSE, Right.ADMINISTER
    return (
        store_route(
            host, "GET", definition, browse, "The whole definition in force, and its revision", get_definition,
            answer=DOCUMENT,
        ),
        store_route(
            host, "PUT", definition, administer, "Replace the whole definition", put_definition,
            body=DOCUMENT, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE,
        ),
        store_route(
            host, "PATCH", definition, administer, "Change what a part of a definition names", patch_definition,
            body=DOCUMENT, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE,
        ),
        store_route(
            host, "POST", f"{definition}/check", administer, "Check a whole definition without applying it",
            check_definition, body=DOCUMENT, answer=DOCUMENT, codes=(Code.BAD_CONFIGURATION,),
        ),
        store_route(host, "GET", history, browse, "The definitions that were in force", list_history, answer=DOCUMENT),
        store_route(host, "GET", f"{history}/{{revision}}", browse, "One of them", get_history, answer=DOCUMENT),
        store_route(
            host, "POST", "/v1/cluster/rollback", administer, "Put an earlier definition in force again", rollback,
            body=Rollback, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE,
        ),
    )  # fmt: skip
