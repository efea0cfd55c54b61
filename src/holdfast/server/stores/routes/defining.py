"""How a request changes the definition of the stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from holdfast.errors import Code, Conflict, InvalidRequest
from holdfast.server.http.rights_table import DEAD_LETTERS
from holdfast.server.http.routes import Response
from holdfast.server.stores.routes.messages import flag
from holdfast.server.stores.routes.store_call import DOCUMENT, StoreCall, StoreHandler, parameter, store_route
from holdfast.stores.definitions.cluster import ClusterDefinition
from holdfast.stores.definitions.parts import dead_letter_stores, full_parts, new_dead_letters, with_parts
from holdfast.stores.definitions.permissions import Right
from holdfast.stores.values.commands import Done, Part, Redefine

DEFINE_CODES: Final = (
    *(Code.BAD_CONFIGURATION, Code.TYPE_MISMATCH, Code.MATCHER_MISMATCH, Code.REVISION_MISMATCH),
    Code.DELETES_MESSAGES,
)
DELETE: Final = (parameter("delete", "boolean", "Whether the change may delete messages", default=False),)
change_route: Final = partial(store_route, body=DOCUMENT, answer=DOCUMENT, codes=DEFINE_CODES, parameters=DELETE)


async def define(
    call: StoreCall, change: Callable[[ClusterDefinition], list[Part]], *, delete: bool | None = None
) -> int:
    """Apply a change of the definition. Returns its revision. Raises: InvalidRequest, NotFound, Conflict.

    ``delete``: whether it may delete messages; None: as the request's query says.
    """
    may_delete = flag("delete", call.call.text("delete")) if delete is None else delete
    opened = call.opened
    expected = call.call.header("if-match")
    in_force = opened.definitions
    if expected is not None and expected.strip('"') != str(in_force.revision):
        raise Conflict(
            "another revision of the definition is in force", code=Code.REVISION_MISMATCH, revision=in_force.revision
        )
    parts = _parts_allowed(call, in_force.cluster, change)
    if not parts and in_force.revision:
        return in_force.revision
    author = opened.access.user_of(call.call.authorization) or ""
    revision = in_force.revision + 1
    before = opened.state.definition.permissions.enabled
    await call.submit(opened.service.submit(Redefine(0, parts, revision, author, may_delete)), Done)
    if not before:
        call.host.warn_about_open_log()
    return revision


def _parts_allowed(
    call: StoreCall, known: ClusterDefinition, change: Callable[[ClusterDefinition], list[Part]]
) -> list[Part]:
    """The parts of a change. The service writes dead letters by itself, so who names a store for them must have the
    right to publish there. A store without that right is refused in the words for a store that is not defined.

    Who administers the cluster may give every right, so nothing is asked.
    """
    access, authorization = call.opened.access, call.call.authorization

    def parts_of(definition: ClusterDefinition) -> list[Part]:
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


def defining(change: Callable[[StoreCall, ClusterDefinition, object], list[Part]], get: StoreHandler) -> StoreHandler:
    """A handler that applies the body as a change of the definition, and replies with the part in force."""

    async def handle(call: StoreCall) -> Response:
        document = await call.document()
        await define(call, lambda definition: change(call, definition, document))
        return await get(call)

    return handle
