"""``/v1/staged``: objects that a bulk write keeps next to the log until its rows are committed.

A write sends no row before all of its rows are fixed. Its tasks may reach the service alone, so the service keeps what
they stage, under ``staged/{application}/{write}/{name}`` in the log's store. An object never changes: the first one
of a name stays. The service reads none of them. The write removes them when it is done.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.errors import Backpressure, Code, Conflict, InvalidRequest
from holdfast.objects.creating import create_exactly
from holdfast.server.gateway import Gateway
from holdfast.server.http.routes import Call, Parameter, Response, Route, json_response
from holdfast.server.http.state import JSON
from holdfast.wire.log import StagedObject, StagedObjects, StagedRemoved

PREFIX: Final = "staged/"
PART_BYTES_MAX: Final = 8 << 20
"""Of one object, besides its largest row: the service has all of it in memory."""
TRANSFERS_MAX: Final = 8
"""Objects that are received or sent at once; one more is refused with ``overloaded``."""
PAGE: Final = 1_000
OCTETS: Final = "application/octet-stream"

_PART: Final = re.compile(r"[0-9a-z][0-9a-z-]{0,63}")


class _Staging:
    """Receives and sends objects, a few at once."""

    def __init__(self, gateway: Gateway, bytes_max: int) -> None:
        self._gateway = gateway
        self._bytes_max = bytes_max
        self._transfers = 0

    async def put(self, call: Call) -> Response:
        """Keep one object. Repeating it changes nothing."""
        key = _key(call)
        self._begin()
        try:
            data = await call.body(self._bytes_max)
            if not await create_exactly(self._gateway.leading().store, key, data):
                raise Conflict("another object has this name", code=Code.CONFLICT, key=key)
        finally:
            self._transfers -= 1
        return json_response(StagedObject(call.path_text("name"), len(data)))

    async def get(self, call: Call) -> Response:
        """All of one object."""
        key = _key(call)
        self._begin()
        try:
            data = await self._gateway.leading().store.read(key)
        finally:
            self._transfers -= 1
        return Response(data, media_type=OCTETS)

    async def names(self, call: Call) -> Response:
        """A page of the objects of an application, in the order of their names."""
        folder = f"{PREFIX}{_part(call, 'application')}/"
        after = call.text("after") or ""
        rows = await self._gateway.leading().store.list(folder, after=folder + after if after else "", limit=PAGE)
        objects = [StagedObject(row.key.removeprefix(folder), row.size, row.modified_ms) for row in rows]
        return json_response(StagedObjects(objects, objects[-1].name if len(objects) == PAGE else None))

    async def remove(self, call: Call) -> Response:
        """Remove the objects of one write."""
        folder = f"{PREFIX}{_part(call, 'application')}/{_part(call, 'write')}/"
        store, removed = self._gateway.leading().store, 0
        while rows := await store.list(folder, limit=PAGE):
            await store.delete(*[row.key for row in rows])
            removed += len(rows)
        return json_response(StagedRemoved(removed))

    def _begin(self) -> None:
        if self._transfers >= TRANSFERS_MAX:
            raise Backpressure("the service moves as many staged objects as it may at once", retry_after_ms=50)
        self._transfers += 1


def _part(call: Call, name: str) -> str:
    text = call.path_text(name)
    if _PART.fullmatch(text) is None:
        raise InvalidRequest(f"{name} is 1 to 64 digits, lower-case letters and hyphens", found=text[:80])
    return text


def _key(call: Call) -> str:
    return PREFIX + "/".join(_part(call, name) for name in ("application", "write", "name"))


def staged_routes(gateway: Gateway, row_bytes_max: int) -> tuple[Route, ...]:
    """The rows of the route table. ``row_bytes_max``: of the largest row that the service takes."""
    staging = _Staging(gateway, PART_BYTES_MAX + row_bytes_max)
    schema = {"type": "string", "pattern": f"^{_PART.pattern}$"}
    application = Parameter("application", "path", schema, "Whose writes these are", True)
    write = Parameter("write", "path", schema, "The write", True)
    name = Parameter("name", "path", schema, "The object", True)
    after = Parameter("after", "query", {"type": "string"}, "Only objects above this name, as a page names them")
    of_application = "/v1/staged/{application}"
    of_write = of_application + "/{write}"
    codes = (Code.NOT_LEADER, Code.LEADER_CHANGED, Code.STORE_UNAVAILABLE)
    return (
        Route(
            method="PUT", path=of_write + "/{name}", summary="Keep an object of a bulk write",
            handler=staging.put, parameters=(application, write, name), body={OCTETS: bytes},
            answers={JSON: StagedObject}, codes=(*codes, Code.CONFLICT, Code.TOO_LARGE),
        ),
        Route(
            method="GET", path=of_write + "/{name}", summary="An object of a bulk write",
            handler=staging.get, parameters=(application, write, name), answers={OCTETS: bytes},
            codes=(*codes, Code.NOT_FOUND),
        ),
        Route(
            method="DELETE", path=of_write, summary="Remove the objects of a bulk write",
            handler=staging.remove, parameters=(application, write), answers={JSON: StagedRemoved}, codes=codes,
        ),
        Route(
            method="GET", path=of_application, summary="The objects of an application's bulk writes",
            handler=staging.names, parameters=(application, after), answers={JSON: StagedObjects}, codes=codes,
        ),
    )  # fmt: skip
