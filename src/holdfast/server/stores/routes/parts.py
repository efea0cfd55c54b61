"""The routes of stores, durables and templates: the parts of a definition. Lists of them are filtered by attributes,
all or a page by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, cast

import msgspec

from holdfast.errors import Code, Conflict, Fenced, InvalidRequest, NotFound
from holdfast.server.http.rights_table import DYNAMIC
from holdfast.server.http.routes import Response, Route
from holdfast.server.stores.figures import attached_names, figures_of
from holdfast.server.stores.hosting import OpenStores, StoreHost
from holdfast.server.stores.routes.definition import DEFINE_CODES, DELETE, change_route, define, defining
from holdfast.server.stores.routes.store_call import DOCUMENT, EVERY_STORE, StoreCall, parameter, store_route
from holdfast.server.stores.subscribers import ServedSubscriber
from holdfast.stores.definitions.changes import (
    patched_part,
    patched_store,
    store_of,
    with_part,
    with_store,
    without_part,
    without_store,
)
from holdfast.stores.definitions.cluster import DurableType, TemplateDefinition
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.map import MapDurable
from holdfast.stores.machine.store import Durable
from holdfast.stores.values.commands import Attach, Attached, Detach, Done, Unsubscribe
from holdfast.wire.stores import NothingMore

PAGE_MAX: Final = 1_000
PAGING: Final = (
    parameter("after", "string", "A page by name: only names above this one"),
    parameter("max", "integer", "A page by name: how many at most; `more` says whether it goes on", minimum=1,
              maximum=PAGE_MAX),
)  # fmt: skip

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


def collection(call: StoreCall, what: str, names: Iterable[str], document: Callable[[str], Item]) -> Response:
    """The documents of these names that the query asks for: all in the given order, or a page of them by name.

    Documents are made until the page is full, so that reading all pages makes each at most twice.
    """
    filters = [(name, value) for name, value in call.call.query if name not in ("after", "max")]
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


Json = dict[str, object]
LOCKS_SHOWN_MAX: Final = 100
CREATOR: Final = "holdfast.http"
"""The subscriber that is attached for a moment when PUT makes a dynamic durable."""


# Documents


def store_document(opened: OpenStores, name: str) -> Json:
    """A store: what is in force, and what it holds. Raises: NotFound."""
    definition = opened.definitions.store(name)
    store = opened.state.stores[name]
    return {
        "name": name,
        "token": opened.service.token(name),
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
    _, durable = opened.state.find(store, name)
    definition = durable.definition
    return {
        "name": name,
        "store": store,
        "token": opened.service.token(store, name),
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


def _subscriber(name: str, held: int, connected: ServedSubscriber | None) -> Json:
    """One subscriber. Times are milliseconds since 1970, null for never; the service forgets them when it ends."""
    times = {each: getattr(connected, each, 0) or None for each in ("since_ms", "delivered_ms", "acknowledged_ms")}
    return {
        "name": name,
        "connected": connected is not None,
        "unacknowledged": held,
        "room": 0 if connected is None else connected.room,
        "address": "" if connected is None else connected.address,
        **times,
    }


def template_document(template: TemplateDefinition) -> Json:
    """A template: what is in force."""
    return {"name": template.name, **template.pattern.document()}


# Stores


async def _list_stores(call: StoreCall) -> Response:
    opened, authorization, right = call.opened, call.call.authorization, call.call.need.right
    assert right is not None, "stores are listed for a right on them"
    visible = [name for name in opened.state.definition.stores if opened.access.allows(authorization, right, name)]
    return collection(call, "stores", visible, partial(store_document, opened))


async def _get_store(call: StoreCall) -> Response:
    return call.answer(store_document(call.opened, call.store))


_put_store = defining(lambda call, known, given: with_store(known, call.store, given), _get_store)
_patch_store = defining(lambda call, known, given: patched_store(known, call.store, given), _get_store)


async def _delete_store(call: StoreCall) -> Response:
    await define(call, lambda definition: without_store(definition, call.store), delete=True)
    return call.answer(NothingMore())


# Durables


async def _list_durables(call: StoreCall) -> Response:
    opened = call.opened
    names = sorted(opened.state.store(call.store).durables)
    return collection(call, "durables", names, partial(durable_document, opened, call.store))


async def _get_durable(call: StoreCall) -> Response:
    """A map also has its newest locks: a route below the map would take the name of a key."""
    document = durable_document(call.opened, call.store, call.durable)
    _, durable = call.opened.state.find(call.store, call.durable)
    if isinstance(durable, MapDurable):
        locks = durable.locks.newest(LOCKS_SHOWN_MAX)
        document["locks"] = [
            {"key": lock.key, "owner": lock.owner, "fence": lock.fence, "until_ms": lock.until_ms} for lock in locks
        ]
    return call.answer(document)


async def put_durable(call: StoreCall) -> Response:
    """``PUT .../durables/{durable}``: a static one, or with ``template`` a dynamic one."""
    parameters = await call.document()
    if isinstance(parameters, dict) and "template" in parameters:
        call.opened.statistics.want(call.store)
        await _make_dynamic(call, cast(Json, parameters))
    else:
        store_of(call.opened.state.definition, call.store)
        _require_static(call)
        await define(call, lambda definition: with_part(definition, call.store, "durables", call.durable, parameters))
    return call.answer(durable_document(call.opened, call.store, call.durable))


async def patch_durable(call: StoreCall) -> Response:
    """``PATCH .../durables/{durable}``: a static one."""
    parameters = await call.document()
    _require_static(call)
    await define(call, lambda definition: patched_part(definition, call.store, "durables", call.durable, parameters))
    return call.answer(durable_document(call.opened, call.store, call.durable))


def _require_static(call: StoreCall) -> None:
    durable = call.opened.state.store(call.store).durables.get(call.durable)
    if durable is not None and durable.definition.dynamic:
        raise InvalidRequest("this durable is dynamic: change its template", template=durable.definition.template)


async def _make_dynamic(call: StoreCall, parameters: Json) -> None:
    unknown = parameters.keys() - {"template", "matcher"}
    template, matcher = parameters["template"], parameters.get("matcher")
    if unknown or not isinstance(template, str):
        raise InvalidRequest("a dynamic durable has a template, by its name, and perhaps a matcher of its own")
    opened = call.opened
    there = opened.state.store(call.store).durables.get(call.durable)
    if there is not None and there.definition.template == template and matcher is None:
        return
    if there is not None and not there.definition.dynamic:
        raise Conflict("this durable is a static one", code=Code.TYPE_MISMATCH, durable=call.durable)
    if opened.deliveries.connected(call.store, call.durable):
        raise Fenced("somebody is connected to this durable", code=Code.DURABLE_COLLISION, durable=call.durable)
    wanted = b"" if matcher is None else msgspec.json.encode(matcher)
    kind = opened.definitions.terms(call.store, call.durable, template).type
    # Whoever attaches to last values follows a key; which one it is does not matter for a moment.
    key = CREATOR if kind is DurableType.LAST_VALUE else None
    attach = Attach(0, call.store, call.durable, CREATOR, template, wanted, key)
    await call.submit(opened.service.submit(attach), Attached)
    await opened.service.submit(Detach(0, call.store, call.durable, CREATOR))


async def delete_durable(call: StoreCall) -> Response:
    """``DELETE .../durables/{durable}``: what it keeps goes too."""
    (_, durable), need = call.opened.state.find(call.store, call.durable), call.call.need
    is_dynamic = durable.definition.dynamic
    # Only administrators change the definition; only subscribers delete dynamic durables.
    right = need.others[DYNAMIC] if is_dynamic else need.right
    assert right is not None, "the row names the right for a static one"
    call.opened.access.require(call.call.authorization, right, call.store)
    if is_dynamic:
        await call.submit(call.opened.service.submit(Unsubscribe(0, call.store, call.durable)), Done)
    else:
        await define(
            call, lambda definition: without_part(definition, call.store, "durables", call.durable), delete=True
        )
    return call.answer(NothingMore())


# Templates


def _template_of(call: StoreCall) -> str:
    return call.call.path_text("template")


async def _list_templates(call: StoreCall) -> Response:
    store = call.opened.definitions.store(call.store)
    return collection(call, "templates", store.templates, lambda name: template_document(store.templates[name]))


async def _get_template(call: StoreCall) -> Response:
    template = call.opened.definitions.store(call.store).template(_template_of(call))
    if template is None:
        raise NotFound("there is no such template", store=call.store, template=_template_of(call))
    return call.answer(template_document(template))


_put_template = defining(
    lambda call, known, given: with_part(known, call.store, "templates", _template_of(call), given), _get_template
)
_patch_template = defining(
    lambda call, known, given: patched_part(known, call.store, "templates", _template_of(call), given), _get_template
)


async def _delete_template(call: StoreCall) -> Response:
    name = _template_of(call)
    await define(call, lambda definition: without_part(definition, call.store, "templates", name))
    return call.answer(NothingMore())


def part_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    stores, store = EVERY_STORE, "/v1/stores/{store}"
    durables, durable = f"{store}/durables", f"{store}/durables/{{durable}}"
    templates, template = f"{store}/templates", f"{store}/templates/{{template}}"
    change = partial(change_route, host)
    return (
        store_route(
            host, "GET", stores, "Every store", _list_stores, answer=DOCUMENT, filters=True, parameters=PAGING,
        ),
        store_route(host, "GET", store, "A store: parameters in force and counts", _get_store, answer=DOCUMENT),
        change("PUT", store, "Define a store", _put_store),
        change("PATCH", store, "Change the parameters of a store that are named", _patch_store),
        store_route(
            host, "DELETE", store, "Delete a store and its messages", _delete_store,
            answer=NothingMore, codes=DEFINE_CODES,
        ),
        store_route(
            host, "GET", durables, "Every durable", _list_durables, answer=DOCUMENT, filters=True,
            parameters=PAGING,
        ),
        store_route(
            host, "GET", durable, "A durable: parameters, counts, subscribers", _get_durable, answer=DOCUMENT
        ),
        store_route(
            host, "PUT", durable, "Define a durable; with a template a dynamic one is made", put_durable,
            body=DOCUMENT, answer=DOCUMENT, codes=(*DEFINE_CODES, Code.TOO_MANY_DURABLES, Code.DURABLE_COLLISION),
            parameters=DELETE,
        ),
        change("PATCH", durable, "Change the parameters of a durable that are named", patch_durable),
        store_route(
            host, "DELETE", durable, "Delete a durable and what it keeps", delete_durable,
            answer=NothingMore, codes=DEFINE_CODES,
        ),
        store_route(
            host, "GET", templates, "Every template", _list_templates, answer=DOCUMENT, filters=True,
            parameters=PAGING,
        ),
        store_route(host, "GET", template, "A template", _get_template, answer=DOCUMENT),
        change("PUT", template, "Define a template", _put_template),
        change("PATCH", template, "Change the parameters of a template that are named", _patch_template),
        store_route(
            host, "DELETE", template, "Delete a template", _delete_template,
            answer=NothingMore, codes=DEFINE_CODES,
        ),
    )  # fmt: skip
