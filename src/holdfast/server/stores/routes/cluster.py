"""The routes of the cluster as a whole: what it is, and to suspend, resume, save, compact and back it up."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.commit.leadership.takeover import now
from holdfast.errors import Code, InvalidRequest, Unavailable
from holdfast.server.http.routes import Response, Route
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.routes.store_call import DOCUMENT, StoreCall, store_route
from holdfast.stores.storage.disk_limit import disk_use
from holdfast.wire.stores import BackupRequest, NothingMore, QuorumResponse


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


def _quorum(call: StoreCall, *, suspended: bool | None = None) -> QuorumResponse:
    services = call.opened.state.definition.services
    member = services[0] if services else "default"
    suspended = call.host.suspended if suspended is None else suspended
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
    definition = opened.state.definition
    stores = list(opened.state.defined_stores())
    space = opened.service.compaction.space()
    disk = await asyncio.to_thread(disk_use, call.host.directory)
    document = definition.document()["cluster"]
    assert isinstance(document, dict), "a definition has a section for the cluster"
    body: dict[str, object] = {
        **document,
        "revision": opened.state.revision,
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
    if call.opened.service.lives_in_log:
        answer = _quorum(call, suspended=True)
        await call.host.gateway.leading().suspending.suspend(call.call.who, now().wall_ms)
        return call.answer(answer)
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
    before = call.opened.service.compaction.space()
    with _disk_named():
        await call.opened.service.compaction.now()
    after = call.opened.service.compaction.space()
    return call.answer({"allocated_before": before.allocated, "allocated": after.allocated, "in_use": after.in_use})


async def _backup(call: StoreCall) -> Response:
    request = await call.body(BackupRequest)
    with _disk_named():
        path = await call.host.back_up(request.name)
    return call.answer({"path": path})


def cluster_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""

    def row(method: str, path: str, *arguments: object, **more: object) -> Route:
        return store_route(host, method, f"/v1/cluster{path}", *arguments, cluster=True, **more)  # type: ignore[arg-type]

    return (
        row("GET", "", "The cluster: what is in force, what it holds, its disk", _cluster, answer=DOCUMENT),
        row("GET", "/quorum", "Who of the cluster's services is there", _get_quorum, answer=QuorumResponse),
        row(
            "POST", "/force-quorum", "Form a quorum of the services that are there", force_quorum,
            answer=QuorumResponse, codes=(Code.NO_QUORUM,),
        ),
        row(
            "POST", "/suspend", "Serve nothing more until it is resumed or restarted", _suspend,
            answer=QuorumResponse, codes=(Code.STORE_UNAVAILABLE,),
        ),
        row("POST", "/resume", "Serve again what was suspended", _resume, answer=QuorumResponse),
        row(
            "POST", "/save", "Write everything that is kept into the index", save,
            answer=NothingMore, codes=(Code.STORE_UNAVAILABLE,),
        ),
        row(
            "POST", "/compact", "Give back the space of what is no longer kept", _compact,
            answer=DOCUMENT, codes=(Code.STORE_UNAVAILABLE,),
        ),
        row(
            "POST", "/backup", "Copy everything, while clients work", _backup,
            body=BackupRequest, answer=DOCUMENT, codes=(Code.ALREADY_OPEN, Code.STORE_UNAVAILABLE),
        ),
    )  # fmt: skip
