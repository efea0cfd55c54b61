"""The routes of maps: keys and values with revisions, conditions, locks.

Owns: their rows, and conditions as headers: ``If-Match: "revision"`` (the key has this revision), ``If-None-Match: *``
(there is no such key); ``ETag`` carries the revision. Does not own: what a change does (the state machine).

Failure model: a condition that does not hold is 412 ``revision_mismatch`` with the revision there is, and nothing was
changed. A change that got no answer may have been made: whoever repeats a conditional one may meet its own revision.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.server.http.routes import Answer, Parameter, Route
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.store_call import StoreCall, parameter, store_route
from holdfast.stores.definitions.permissions import Right
from holdfast.stores.values.commands import Done, MapChange, MapChanged, MapLock, MapLocked, MapUnlock
from holdfast.wire.stores import (
    ChangedResponse,
    ChangesRequest,
    EntriesResponse,
    Entry,
    LockedResponse,
    LockRequest,
    NothingMore,
    SetRequest,
    UnlockRequest,
)

__all__ = ["map_routes"]

ENTRIES_DEFAULT: Final = 100
ENTRIES_MAX: Final = 1_000
_REVISION: Final = re.compile(r'"?(\d{1,16})"?', re.ASCII)


async def get_entry(call: StoreCall) -> Answer:
    """``GET .../maps/{map}/{key}``."""
    key = call.call.path_text("key")
    found = call.opened.operations.entries(call.store, call.durable, keys=[key])
    await call.opened.service.settled()
    if not found:
        raise NotFound("there is no such key", code=Code.NO_SUCH_KEY, store=call.store, map=call.durable)
    _, value, revision = found[0]
    return call.answer(Entry(key, value, revision), headers={"ETag": f'"{revision}"'})


async def list_entries(call: StoreCall) -> Answer:
    """``GET .../maps/{map}``."""
    query = call.call
    count = query.number("max", low=1, high=ENTRIES_MAX) or ENTRIES_DEFAULT
    found = call.opened.operations.entries(call.store, call.durable, after=query.text("after") or "", count=count + 1)
    await call.opened.service.settled()
    items = [Entry(key, value, revision) for key, value, revision in found[:count]]
    return call.answer(EntriesResponse(items, len(found) > count))


async def put_entry(call: StoreCall) -> Answer:
    """``PUT .../maps/{map}/{key}``."""
    asked = await call.body(SetRequest)
    return await _change_one(call, asked.value)


async def delete_entry(call: StoreCall) -> Answer:
    """``DELETE .../maps/{map}/{key}``."""
    return await _change_one(call, None)


async def _change_one(call: StoreCall, value: bytes | None) -> Answer:
    change = (call.call.path_text("key"), value, _condition(call))
    return await _change(call, MapChange(0, call.store, call.durable, [change], call.call.number("fence") or 0))


async def change_entries(call: StoreCall) -> Answer:
    """``POST .../maps/{map}``."""
    asked = await call.body(ChangesRequest)
    changes = [(one.key, one.value, one.if_revision) for one in asked.changes]
    return await _change(call, MapChange(0, call.store, call.durable, changes, asked.fence, asked.remove_all))


async def _change(call: StoreCall, command: MapChange) -> Answer:
    result = await call.submit(call.opened.service.submit(command), MapChanged)
    return call.answer(ChangedResponse(result.revision, result.changed), headers={"ETag": f'"{result.revision}"'})


def _condition(call: StoreCall) -> int | None:
    """What ``If-Match`` and ``If-None-Match`` ask for."""
    headers = call.call.request.headers
    matches, none_matches = headers.get("if-match"), headers.get("if-none-match")
    if none_matches is not None:
        if none_matches.strip() != "*" or matches is not None:
            raise InvalidRequest("If-None-Match is * and stands alone")
        return 0
    if matches is None:
        return None
    found = _REVISION.fullmatch(matches.strip())
    if found is None:
        raise InvalidRequest('If-Match is a revision, for example "7"')
    return int(found[1])


async def lock(call: StoreCall) -> Answer:
    """``POST .../maps/{map}/lock``."""
    asked = await call.body(LockRequest)
    command = MapLock(0, call.store, call.durable, asked.key, asked.owner, asked.ttl_ms, asked.steal)
    result = await call.submit(call.opened.service.submit(command), MapLocked)
    return call.answer(LockedResponse(result.fence, result.until_ms))


async def unlock(call: StoreCall) -> Answer:
    """``POST .../maps/{map}/unlock``."""
    asked = await call.body(UnlockRequest)
    command = MapUnlock(0, call.store, call.durable, asked.key, asked.owner, asked.fence)
    await call.submit(call.opened.service.submit(command), Done)
    return call.answer(NothingMore())


_CONDITIONS: Final = (
    parameter("fence", "integer", "The token of a lock that must be held still", minimum=0, default=0),
    Parameter("If-Match", "header", {"type": "string"}, "Only where the key has this revision"),
    Parameter("If-None-Match", "header", {"type": "string"}, "*: only where there is no such key"),
)


def map_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    whole = "/v1/stores/{store}/maps/{map}"
    one = f"{whole}/{{key:any}}"
    change_codes = (
        Code.TYPE_MISMATCH, Code.REVISION_MISMATCH, Code.NOT_HOLDER, Code.LOCK_HELD, Code.STORE_FULL, Code.CLUSTER_FULL,
        Code.MESSAGE_TOO_LARGE, Code.DISK_LIMIT, Code.NO_QUORUM,
    )  # fmt: skip
    return (
        store_route(
            host, "POST", f"{whole}/lock", Right.PUBLISH, "Take, extend or steal a lock", lock,
            body=LockRequest, answer=LockedResponse, codes=(Code.LOCK_HELD, Code.TYPE_MISMATCH),
        ),
        store_route(
            host, "POST", f"{whole}/unlock", Right.PUBLISH, "Give a lock back", unlock,
            body=UnlockRequest, answer=NothingMore, codes=(Code.NOT_HOLDER, Code.TYPE_MISMATCH),
        ),
        store_route(
            host, "GET", whole, Right.SUBSCRIBE, "Keys and values, in the order of keys", list_entries,
            answer=EntriesResponse, codes=(Code.TYPE_MISMATCH,),
            parameters=(
                parameter("after", "string", "Above this key"),
                parameter("max", "integer", "At most so many", minimum=1, maximum=ENTRIES_MAX, default=ENTRIES_DEFAULT),
            ),
        ),
        store_route(
            host, "POST", whole, Right.PUBLISH, "Change several keys: all or nothing", change_entries,
            body=ChangesRequest, answer=ChangedResponse, codes=change_codes,
        ),
        store_route(
            host, "GET", one, Right.SUBSCRIBE, "A key's value and revision", get_entry,
            answer=Entry, codes=(Code.TYPE_MISMATCH, Code.NO_SUCH_KEY),
        ),
        store_route(
            host, "PUT", one, Right.PUBLISH, "Set a key", put_entry,
            body=SetRequest, answer=ChangedResponse, codes=change_codes, parameters=_CONDITIONS,
        ),
        store_route(
            host, "DELETE", one, Right.PUBLISH, "Remove a key", delete_entry,
            answer=ChangedResponse, codes=change_codes, parameters=_CONDITIONS,
        ),
    )  # fmt: skip
