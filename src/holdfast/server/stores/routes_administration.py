"""The routes for definitions, stores, durables, templates and the cluster.

A change of the definition is a list of parts to put in or take away (``with_store`` and its like, pure). Raises
``InvalidRequest`` naming what is wrong, ``NotFound`` for a part that is not there.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, cast

import msgspec

from holdfast.errors import Code, Conflict, InvalidRequest, NotFound, Unavailable
from holdfast.server.http.routes import Response, Route
from holdfast.server.stores.deliveries import Subscriber
from holdfast.server.stores.figures import attached_names, figures_of
from holdfast.server.stores.hosting import OpenStores, StoreHost
from holdfast.server.stores.routes_messages import flag, map_routes, message_routes, subscribe_routes
from holdfast.server.stores.store_call import DOCUMENT, StoreCall, StoreHandler, parameter, store_route
from holdfast.stores.definitions.cluster import (
    ClusterDefinition,
    DurableType,
    StoreDefinition,
    TemplateDefinition,
    definition_of,
    with_known_prefetch,
)
from holdfast.stores.definitions.parts import DURABLES, TEMPLATES, durable_at, full_parts, parts_between
from holdfast.stores.definitions.permissions import Right, permissions_document
from holdfast.stores.definitions.reader import Reader, raise_problems
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.map import Map
from holdfast.stores.machine.redefine import definition_at
from holdfast.stores.machine.store import Durable, Revision
from holdfast.stores.storage.disk_limit import disk_use
from holdfast.stores.values.commands import Attach, Attached, Detach, Done, Part, Redefine, Unsubscribe
from holdfast.wire.stores import BackupRequest, NothingMore, QuorumResponse, Rollback

Json = dict[str, object]
_KINDS: Final = (DURABLES, TEMPLATES)


def with_store(definition: ClusterDefinition, store: str, parameters: object) -> list[Part]:
    """These parameters of a store; its durables, templates and subscribers stay unless given."""
    given = _map_of(parameters, "the parameters of a store")
    known = definition.stores.get(store)
    sections = {kind: _map_of(given.pop(kind), kind) for kind in _KINDS if kind in given}
    if known is not None:
        given.setdefault("subscribers", dict(known.subscribers))
        given.setdefault("default_durable", known.default_durable)
    parts = [_part(("stores", store), given)]
    for kind, section in sections.items():
        before = () if known is None else known.durables if kind == DURABLES else known.templates
        parts += [Part(("stores", store, kind, name)) for name in before if name not in section]
        parts += [_part(("stores", store, kind, name), parameters) for name, parameters in section.items()]
    return parts


def patched_store(definition: ClusterDefinition, store: str, parameters: object) -> list[Part]:
    """Only these parameters of a store; of its durables and templates, those named."""
    store_of(definition, store)
    return _patched_store(definition, store, _map_of(parameters, "the parameters of a store"))


def _patched_store(definition: ClusterDefinition, store: str, given: Json) -> list[Part]:
    known = definition.stores.get(store)
    sections = {kind: _map_of(given.pop(kind), kind) for kind in _KINDS if kind in given}
    own = {} if known is None else known.own_document()
    if "subscribers" in given and known is not None:
        given["subscribers"] = _merged(dict(known.subscribers), given["subscribers"], f"stores.{store}.subscribers")
    parts = [_part(("stores", store), own | given)] if given or known is None else []
    for kind, section in sections.items():
        parts += [_patched(definition, ("stores", store, kind, name), one) for name, one in section.items()]
    return parts


def patched_part(definition: ClusterDefinition, store: str, kind: str, name: str, parameters: object) -> list[Part]:
    """Only these parameters of a static durable or a template."""
    _require_part(definition, store, kind, name)
    return [_patched(definition, ("stores", store, kind, name), parameters)]


def _patched(definition: ClusterDefinition, path: tuple[str, ...], parameters: object) -> Part:
    known, given = durable_at(definition, path), _map_of(parameters, ".".join(path))
    if known is None:
        return _part(path, given)
    if "type" in given and given["type"] != known.type and given["type"] in list(DurableType):
        # Parameters of the known type would be refused first, and hide the reason.
        raise InvalidRequest(
            f"the type of {'.'.join(path)} cannot change: {known.type} -> {given['type']}",
            code=Code.TYPE_MISMATCH,
            hint="remove it and define it again; its messages are deleted with it",
        )
    return _part(path, known.document() | given)


def patched(definition: ClusterDefinition, document: object) -> list[Part]:
    """Only what this part of a definition names: nothing goes, what is new comes."""
    given = _map_of(document, "a definition")
    parts: list[Part] = []
    problems: list[str] = []
    reader = Reader(given, "", problems)
    for name in ("cluster", "stores", "permissions"):
        reader.section(name)
    reader.finish()
    raise_problems(problems)
    if "cluster" in given:
        parts.append(_part(("cluster",), definition.own_document() | _map_of(given["cluster"], "cluster")))
    for store, parameters in _map_of(given.get("stores", {}), "stores").items():
        parts += _patched_store(definition, store, _map_of(parameters, f"stores.{store}"))
    if "permissions" in given:
        parts.append(_part(("permissions",), _patched_permissions(definition, given["permissions"])))
    return parts


def _patched_permissions(definition: ClusterDefinition, parameters: object) -> Json:
    """Merge users and roles by name and parameter; null removes one."""
    given = _map_of(parameters, "permissions")
    document = permissions_document(definition.permissions)
    for kind in ("users", "roles"):
        if kind not in given:
            continue
        known = _map_of(document[kind], kind)
        named = _map_of(given.pop(kind), f"permissions.{kind}")
        for name, one in named.items():
            if one is not None:
                named[name] = _patched_one(known.get(name, {}), one, f"permissions.{kind}.{name}")
        document[kind] = _merged(known, named, kind)
    return document | given


def _patched_one(known: object, parameters: object, what: str) -> Json:
    before, given = _map_of(known, what), _map_of(parameters, what)
    if "token" in given:
        before.pop("token_sha256", None)
    if "stores" in given:
        given["stores"] = _merged(before.get("stores", {}), given["stores"], f"{what}.stores")
    return before | given


def _merged(known: object, given: object, what: str) -> Json:
    """The entries of both, the given ones first; null removes an entry."""
    return {name: one for name, one in (_map_of(known, what) | _map_of(given, what)).items() if one is not None}


def without_store(definition: ClusterDefinition, store: str) -> list[Part]:
    """A store goes."""
    store_of(definition, store)
    return [Part(("stores", store))]


def with_part(definition: ClusterDefinition, store: str, kind: str, name: str, parameters: object) -> list[Part]:
    """These parameters of a static durable (``durables``) or a template (``templates``), the others by default."""
    store_of(definition, store)
    return [_part(("stores", store, kind, name), _map_of(parameters, f"the parameters of {kind}"))]


def without_part(definition: ClusterDefinition, store: str, kind: str, name: str) -> list[Part]:
    """A static durable or a template goes."""
    _require_part(definition, store, kind, name)
    return [Part(("stores", store, kind, name))]


def _require_part(definition: ClusterDefinition, store: str, kind: str, name: str) -> None:
    store_of(definition, store)
    if durable_at(definition, ("stores", store, kind, name)) is None:
        raise NotFound(f"there is no such {kind.removesuffix('s')} in the definition", store=store, name=name)


def store_of(definition: ClusterDefinition, store: str) -> StoreDefinition:
    """A store that is to get a part. Raises: NotFound, which says to define the store first."""
    known = definition.stores.get(store)
    if known is None:
        raise NotFound(
            "there is no such store",
            hint=f"define the store first: holdfast stores define {store}, or PUT /v1/stores/{store}",
            store=store,
        )
    return known


def _part(path: tuple[str, ...], document: object) -> Part:
    _check_numbers(".".join(path), document)
    return Part(path, msgspec.json.encode(document))


def _check_numbers(path: str, document: object) -> None:
    """MessagePack has numbers that JSON has not: they would become null, which sets a default."""
    pending: list[tuple[str, object]] = [(path, document)]
    for at, value in pending:
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"{at}: a finite number, not {value}", code=Code.BAD_CONFIGURATION)
        if isinstance(value, dict):
            pending += [(f"{at}.{name}", one) for name, one in cast(Json, value).items()]
        elif isinstance(value, list):
            pending += [(f"{at}.{number}", one) for number, one in enumerate(cast("list[object]", value))]


def _map_of(parameters: object, what: str) -> Json:
    if not isinstance(parameters, dict):
        raise InvalidRequest(
            f"{what}: expected an object with parameters, not {_kind(parameters)}",
            hint="a store, durable or template is removed with DELETE" if parameters is None else "",
        )
    return dict(cast(Json, parameters))


def _kind(value: object) -> str:
    """What kind of value was given. Not the value: it may be a token."""
    return "null" if value is None else f"a {type(value).__name__}"


Item = Mapping[str, object]


def filtered(
    items: Iterable[Item], wanted: Sequence[tuple[str, str]], items_max: int | None = None, *, is_rest: bool = False
) -> list[Item]:
    """The first ``items_max`` items whose attributes have these values; one that is given twice may have either value.

    An attribute inside another is named with a dot. Values are compared as JSON writes them, text without its quotes.
    ``items`` is read as far as needed. Raises: InvalidRequest where no item has an attribute, unless ``is_rest``: they
    follow other items.

    >>> filtered([{"name": "a", "counts": {"messages": 1}}, {"name": "b", "counts": {"messages": 0}}],
    ...          [("counts.messages", "0")])
    [{'name': 'b', 'counts': {'messages': 0}}]
    """
    values: dict[str, set[str]] = {}
    for name, value in wanted:
        values.setdefault(name, set()).add(value)
    found: list[Item] = []
    unknown: list[str] = []
    for number, item in enumerate(items):
        unknown = [name for name in (unknown if number else values) if _text(item, name) is None]
        if all(_text(item, name) in accepted for name, accepted in values.items()):
            found.append(item)
            if len(found) == items_max:
                break
    if unknown and not is_rest:
        raise InvalidRequest(f"there is no attribute {unknown[0][:64]!r} to filter by")
    return found


def _collection(call: StoreCall, what: str, names: Iterable[str], document: Callable[[str], Item]) -> Response:
    """The documents of these names that the query asks for: all in the given order, or a page of them by name.

    Documents are made until the page is full, so that reading all pages makes each at most twice.
    """
    query = call.call.request.query_params.multi_items()
    filters = [(name, value) for name, value in query if name not in ("after", "max")]
    after, page_max = call.call.text("after"), call.call.number("max", low=1, high=PAGE_MAX)
    if after is None and page_max is None:
        return call.answer({what: filtered((document(name) for name in names), filters)})
    page_max = PAGE_MAX if page_max is None else page_max
    wanted = sorted(name for name in names if after is None or name > after)
    items = filtered((document(name) for name in wanted), filters, page_max + 1, is_rest=after is not None)
    return call.answer({what: items[:page_max], "more": len(items) > page_max})


def _text(item: Item, name: str) -> str | None:
    value: object = item
    for part in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


DEFINE_CODES: Final = (
    *(Code.BAD_CONFIGURATION, Code.TYPE_MISMATCH, Code.MATCHER_MISMATCH, Code.REVISION_MISMATCH),
    Code.DELETES_MESSAGES,
)
LOCKS_SHOWN_MAX: Final = 100
PAGE_MAX: Final = 1_000
PAGING: Final = (
    parameter("after", "string", "A page by name: only names above this one"),
    parameter("max", "integer", "A page by name: how many at most; `more` says whether it goes on", minimum=1,
              maximum=PAGE_MAX),
)  # fmt: skip
DELETE: Final = (parameter("delete", "boolean", "Whether the change may delete messages", default=False),)
_change_route: Final = partial(store_route, body=DOCUMENT, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE)
CREATOR: Final = "holdfast.http"
"""The subscriber that is attached for a moment when PUT makes a dynamic durable."""


async def define(
    call: StoreCall, change: Callable[[ClusterDefinition], list[Part]], *, delete: bool | None = None
) -> int:
    """Apply a change of the definition. Returns its revision. Raises: InvalidRequest, NotFound, Conflict.

    ``delete``: whether it may delete messages; None: as the request's query says.
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


def _defining(change: Callable[[StoreCall, ClusterDefinition, object], list[Part]], get: StoreHandler) -> StoreHandler:
    """A handler that applies the body as a change of the definition, and replies with the part in force."""

    async def handle(call: StoreCall) -> Response:
        document = await call.document()
        await define(call, lambda definition: change(call, definition, document))
        return await get(call)

    return handle


# Documents


def store_document(opened: OpenStores, name: str) -> Json:
    """A store: what is in force, and what it holds. Raises: NotFound."""
    definition = opened.definitions.store(name)
    store = opened.state.stores[name]
    return {
        "name": name,
        **definition.document(),
        "counts": {
            "messages": store.counts.live,
            "bytes": store.counts.live_bytes,
            "durables": len(store.durables),
            "dynamic_durables": sum(1 for durable in store.durables.values() if durable.definition.dynamic),
            "publishers": len(store.publishers),
            "unmatched": store.unmatched,
            "next_seq": store.counts.next_seq,
        },
    }


def durable_document(opened: OpenStores, store: str, name: str) -> Json:
    """A durable: what is in force, its counts, who is attached. Raises: NotFound."""
    definition = opened.definitions.durable(store, name)
    durable = opened.state.stores[store].durables[name]
    return {
        "name": name,
        "store": store,
        "dynamic": definition.dynamic,
        "template": definition.template,
        **definition.document(),
        "counts": figures_of(durable).document(),
        "subscribers": _subscribers(opened, store, name, durable),
    }


def _subscribers(opened: OpenStores, store: str, name: str, durable: Durable) -> list[Json]:
    connected = {subscriber.name: subscriber for subscriber in opened.deliveries.connected(store, name)}
    held = dict.fromkeys(attached_names(durable), 0)
    if isinstance(durable, Consumption):
        held = {subscriber: holding.held for subscriber, holding in durable.leases.of.items()}
    return [_subscriber(subscriber, count, connected.get(subscriber)) for subscriber, count in held.items()]


def _subscriber(name: str, held: int, connected: Subscriber | None) -> Json:
    """One subscriber. Times are milliseconds since 1970, null for never; the service forgets them when it ends."""
    document: Json = {"name": name, "connected": connected is not None, "unacknowledged": held}
    if connected is None:
        return {**document, "room": 0, "address": "", "since_ms": None, "delivered_ms": None, "acknowledged_ms": None}
    return {
        **document,
        "room": connected.room,
        "address": connected.address,
        "since_ms": connected.since_ms or None,
        "delivered_ms": connected.delivered_ms or None,
        "acknowledged_ms": connected.acknowledged_ms or None,
    }


def template_document(template: TemplateDefinition) -> Json:
    """A template: what is in force."""
    return {"name": template.name, **template.pattern.document()}


# Stores


async def _list_stores(call: StoreCall) -> Response:
    opened, authorization = call.opened, call.call.authorization
    problem = opened.access.problem_with(authorization, Right.BROWSE)
    if problem is not None and problem.code == Code.UNAUTHENTICATED:
        raise problem  # to nobody an empty list would look like a service without stores
    visible = [
        name for name in opened.definitions.cluster.stores if opened.access.allows(authorization, Right.BROWSE, name)
    ]
    return _collection(call, "stores", visible, partial(store_document, opened))


async def _get_store(call: StoreCall) -> Response:
    call.opened.definitions.store(call.store)
    return call.answer(store_document(call.opened, call.store))


_put_store = _defining(lambda call, known, given: with_store(known, call.store, given), _get_store)
_patch_store = _defining(lambda call, known, given: patched_store(known, call.store, given), _get_store)


async def _delete_store(call: StoreCall) -> Response:
    await define(call, lambda definition: without_store(definition, call.store), delete=True)
    return call.answer(NothingMore())


# Durables


async def _list_durables(call: StoreCall) -> Response:
    opened = call.opened
    names = sorted(opened.definitions.durables(call.store))
    return _collection(call, "durables", names, partial(durable_document, opened, call.store))


async def _get_durable(call: StoreCall) -> Response:
    """A map also has its newest locks: a route below the map would take the name of a key."""
    document = durable_document(call.opened, call.store, call.durable)
    durable = call.opened.state.stores[call.store].durables[call.durable]
    if isinstance(durable, Map):
        locks = durable.locks.newest(LOCKS_SHOWN_MAX)
        document["locks"] = [
            {"key": lock.key, "owner": lock.owner, "fence": lock.fence, "until_ms": lock.until_ms} for lock in locks
        ]
    return call.answer(document)


async def put_durable(call: StoreCall) -> Response:
    """``PUT .../durables/{durable}``: a static one, or with ``template`` a dynamic one."""
    parameters = await call.document()
    store_of(call.opened.definitions.cluster, call.store)
    if isinstance(parameters, dict) and "template" in parameters:
        await _make_dynamic(call, cast(Json, parameters))
    else:
        known = call.opened.definitions.find(call.store, call.durable)
        if known is not None and known.dynamic:
            raise InvalidRequest("this durable is dynamic: change its template", template=known.template)
        await define(call, lambda definition: with_part(definition, call.store, "durables", call.durable, parameters))
    return call.answer(durable_document(call.opened, call.store, call.durable))


async def patch_durable(call: StoreCall) -> Response:
    """``PATCH .../durables/{durable}``: a static one."""
    parameters = await call.document()
    known = call.opened.definitions.durable(call.store, call.durable)
    if known.dynamic:
        raise InvalidRequest("this durable is dynamic: change its template", template=known.template)
    patched, name = patched_part, call.durable
    await define(call, lambda definition: patched(definition, call.store, "durables", name, parameters))
    return call.answer(durable_document(call.opened, call.store, call.durable))


async def _make_dynamic(call: StoreCall, parameters: Json) -> None:
    unknown = parameters.keys() - {"template", "matcher"}
    template, matcher = parameters["template"], parameters.get("matcher")
    if unknown or not isinstance(template, str):
        raise InvalidRequest("a dynamic durable has a template, by its name, and perhaps a matcher of its own")
    opened = call.opened
    known = opened.definitions.find(call.store, call.durable)
    if known is not None and known.template == template and matcher is None:
        return
    if known is not None and not known.dynamic:
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


async def delete_durable(call: StoreCall) -> Response:
    """``DELETE .../durables/{durable}``: what it keeps goes too."""
    known = call.opened.definitions.durable(call.store, call.durable)
    if known.dynamic:
        await call.submit(call.opened.service.submit(Unsubscribe(0, call.store, call.durable)), Done)
    else:
        # Only administrators change the definition; subscribers may delete dynamic durables.
        call.opened.access.require(call.call.authorization, Right.ADMINISTER, call.store)
        change = without_part
        await define(call, lambda definition: change(definition, call.store, "durables", call.durable), delete=True)
    return call.answer(NothingMore())


# Templates


def _template_of(call: StoreCall) -> str:
    return call.call.path_text("template")


async def _list_templates(call: StoreCall) -> Response:
    store = call.opened.definitions.store(call.store)
    return _collection(call, "templates", store.templates, lambda name: template_document(store.templates[name]))


async def _get_template(call: StoreCall) -> Response:
    template = call.opened.definitions.store(call.store).template(_template_of(call))
    if template is None:
        raise NotFound("there is no such template", store=call.store, template=_template_of(call))
    return call.answer(template_document(template))


_put_template = _defining(
    lambda call, known, given: with_part(known, call.store, "templates", _template_of(call), given), _get_template
)
_patch_template = _defining(
    lambda call, known, given: patched_part(known, call.store, "templates", _template_of(call), given), _get_template
)


async def _delete_template(call: StoreCall) -> Response:
    name = _template_of(call)
    await define(call, lambda definition: without_part(definition, call.store, "templates", name))
    return call.answer(NothingMore())


# The whole


def _whole(call: StoreCall, revision: int, definition: Json) -> Response:
    body = {"revision": revision, "definition": definition}
    return call.answer(body, headers={"ETag": f'"{revision}"'})


async def _get_definition(call: StoreCall) -> Response:
    in_force = call.opened.definitions
    return _whole(call, in_force.revision, in_force.cluster.document())


_put_definition = _defining(
    lambda _, known, given: parts_between(known, with_known_prefetch(known, definition_of(given))), _get_definition
)
_patch_definition = _defining(lambda _, known, given: patched(known, given), _get_definition)


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


def _part_routes(host: StoreHost) -> tuple[Route, ...]:
    stores, store = "/v1/stores", "/v1/stores/{store}"
    durables, durable = f"{store}/durables", f"{store}/durables/{{durable}}"
    templates, template = f"{store}/templates", f"{store}/templates/{{template}}"
    browse, administer, subscribe = Right.BROWSE, Right.ADMINISTER, Right.SUBSCRIBE
    change = partial(_change_route, host)
    return (
        store_route(
            host, "GET", stores, None, "Every store", _list_stores, answer=DOCUMENT, filters=True, parameters=PAGING,
        ),
        store_route(host, "GET", store, browse, "A store: parameters in force and counts", _get_store, answer=DOCUMENT),
        change("PUT", store, administer, "Define a store", _put_store),
        change("PATCH", store, administer, "Change the parameters of a store that are named", _patch_store),
        store_route(
            host, "DELETE", store, administer, "Delete a store and its messages", _delete_store,
            answer=NothingMore, codes=DEFINE_CODES,
        ),
        store_route(
            host, "GET", durables, browse, "Every durable", _list_durables, answer=DOCUMENT, filters=True,
            parameters=PAGING,
        ),
        store_route(
            host, "GET", durable, browse, "A durable: parameters, counts, subscribers", _get_durable, answer=DOCUMENT
        ),
        store_route(
            host, "PUT", durable, administer, "Define a durable; with a template a dynamic one is made", put_durable,
            body=DOCUMENT, answer=DOCUMENT, codes=(*DEFINE_CODES, Code.TOO_MANY_DURABLES, Code.DURABLE_COLLISION),
            parameters=DELETE,
        ),
        change("PATCH", durable, administer, "Change the parameters of a durable that are named", patch_durable),
        store_route(
            host, "DELETE", durable, subscribe, "Delete a durable and what it keeps", delete_durable,
            answer=NothingMore, codes=DEFINE_CODES,
        ),
        store_route(
            host, "GET", templates, browse, "Every template", _list_templates, answer=DOCUMENT, filters=True,
            parameters=PAGING,
        ),
        store_route(host, "GET", template, browse, "A template", _get_template, answer=DOCUMENT),
        change("PUT", template, administer, "Define a template", _put_template),
        change("PATCH", template, administer, "Change the parameters of a template that are named", _patch_template),
        store_route(
            host, "DELETE", template, administer, "Delete a template", _delete_template,
            answer=NothingMore, codes=DEFINE_CODES,
        ),
    )  # fmt: skip


def _whole_routes(host: StoreHost) -> tuple[Route, ...]:
    definition, history = "/v1/cluster/definition", "/v1/cluster/history"
    change = partial(_change_route, host)
    browse, administer = Right.BROWSE, Right.ADMINISTER
    return (
        store_route(
            host, "GET", definition, browse, "The whole definition in force, and its revision", _get_definition,
            answer=DOCUMENT,
        ),
        change("PUT", definition, administer, "Replace the whole definition", _put_definition),
        change("PATCH", definition, administer, "Change what a part of a definition names", _patch_definition),
        store_route(
            host, "POST", f"{definition}/check", administer, "Check a whole definition without applying it",
            check_definition, body=DOCUMENT, answer=DOCUMENT, codes=(Code.BAD_CONFIGURATION,),
        ),
        store_route(host, "GET", history, browse, "The definitions that were in force", _list_history, answer=DOCUMENT),
        store_route(host, "GET", f"{history}/{{revision}}", browse, "One of them", _get_history, answer=DOCUMENT),
        store_route(
            host, "POST", "/v1/cluster/rollback", administer, "Put an earlier definition in force again", _rollback,
            body=Rollback, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE,
        ),
    )  # fmt: skip


@contextmanager
def _disk_named() -> Generator[None]:
    """Raise a refusal of the disk as Unavailable."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise Unavailable(
            f"the disk of the stores refused the operation: {error}",
            code=Code.STORE_UNAVAILABLE,
            hint="check the free space and the permissions of the disk, then send the request again",
        ) from error


def _quorum(call: StoreCall) -> QuorumResponse:
    services = call.opened.definitions.cluster.services
    member = services[0] if services else "default"
    suspended = call.host.suspended
    return QuorumResponse(
        have_quorum=not suspended,
        leader="" if suspended else member,
        max_member_count=1,
        min_member_count=1,
        current_member_count=0 if suspended else 1,
        members_in_quorum=[] if suspended else [member],
        members_not_in_quorum=[member] if suspended else [],
        errors=["suspended: resume it, or restart the service"] if suspended else [],
    )


async def _cluster(call: StoreCall) -> Response:
    opened = call.opened
    definition = opened.definitions.cluster
    stores = opened.state.stores.values()
    space = opened.service.space()
    disk = await asyncio.to_thread(disk_use, call.host.directory)
    document = definition.document()["cluster"]
    assert isinstance(document, dict), "a definition has a section for the cluster"
    body: Json = {
        **document,
        "revision": opened.definitions.revision,
        "suspended": call.host.suspended,
        "stores": len(definition.stores),
        "durables": sum(len(store.durables) for store in stores),
        "messages": sum(store.counts.live for store in stores),
        "bytes": sum(store.counts.live_bytes for store in stores),
        "sockets": len(call.host.sockets),
        "log": {"allocated": space.allocated, "in_use": space.in_use, "pages": space.pages},
        "disk": {
            "used": disk.used,
            "capacity": disk.capacity,
            "limit": int(disk.capacity * definition.max_disk_fraction),
        },
    }
    return call.answer(body)


async def _get_quorum(call: StoreCall) -> Response:
    return call.answer(_quorum(call))


async def force_quorum(call: StoreCall) -> Response:
    """``POST /v1/cluster/force-quorum``: a cluster of one has it, or is suspended, which no force ends."""
    if call.host.suspended:
        raise InvalidRequest("the cluster is suspended: resume it, or restart the service", code=Code.NO_QUORUM)
    return call.answer(_quorum(call))


async def _suspend(call: StoreCall) -> Response:
    call.host.suspend()
    with _disk_named():
        await call.opened.service.checkpoint()
    return call.answer(_quorum(call))


async def _resume(call: StoreCall) -> Response:
    call.host.resume()
    return call.answer(_quorum(call))


async def save(call: StoreCall) -> Response:
    """``POST /v1/cluster/save``: everything that is kept is in the index on disk when this is answered."""
    with _disk_named():
        await call.opened.service.checkpoint()
    return call.answer(NothingMore())


async def _compact(call: StoreCall) -> Response:
    before = call.opened.service.space()
    with _disk_named():
        await call.opened.service.compact()
    after = call.opened.service.space()
    return call.answer({"allocated_before": before.allocated, "allocated": after.allocated, "in_use": after.in_use})


async def _backup(call: StoreCall) -> Response:
    asked = await call.body(BackupRequest)
    with _disk_named():
        path = await call.host.back_up(asked.name)
    return call.answer({"path": path})


def cluster_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    browse, administer = Right.BROWSE, Right.ADMINISTER

    def row(method: str, path: str, *arguments: object, **more: object) -> Route:
        return store_route(host, method, f"/v1/cluster{path}", *arguments, cluster=True, **more)  # type: ignore[arg-type]

    return (
        row("GET", "", browse, "The cluster: what is in force, what it holds, its disk", _cluster, answer=DOCUMENT),
        row("GET", "/quorum", browse, "Who of the cluster's services is there", _get_quorum, answer=QuorumResponse),
        row(
            "POST", "/force-quorum", administer, "Form a quorum of the services that are there", force_quorum,
            answer=QuorumResponse, codes=(Code.NO_QUORUM,),
        ),
        row(
            "POST", "/suspend", administer, "Serve nothing more until it is resumed or restarted", _suspend,
            answer=QuorumResponse, codes=(Code.STORE_UNAVAILABLE,),
        ),
        row("POST", "/resume", administer, "Serve again what was suspended", _resume, answer=QuorumResponse),
        row(
            "POST", "/save", administer, "Write everything that is kept into the index", save,
            answer=NothingMore, codes=(Code.STORE_UNAVAILABLE,),
        ),
        row(
            "POST", "/compact", administer, "Give back the space of what is no longer kept", _compact,
            answer=DOCUMENT, codes=(Code.STORE_UNAVAILABLE,),
        ),
        row(
            "POST", "/backup", administer, "Copy everything, while clients work", _backup,
            body=BackupRequest, answer=DOCUMENT, codes=(Code.ALREADY_OPEN, Code.STORE_UNAVAILABLE),
        ),
    )  # fmt: skip


def store_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    return (
        *_part_routes(host),
        *_whole_routes(host),
        *message_routes(host),
        *subscribe_routes(host),
        *map_routes(host),
        *cluster_routes(host),
    )
