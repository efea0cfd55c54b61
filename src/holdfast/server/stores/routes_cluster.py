"""The routes of the cluster: its state, its quorum, and what an administrator does to all of it.

Owns: their rows. Does not own: the service's files (``stores.service``), definitions (``routes_definitions``).

A service is a cluster of one here: it has its quorum while it is open and not suspended. Suspending cannot be taken
back but by a restart; until then requests to stores are refused with ``no_quorum``, and saving and backing up still
work.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.errors import Code, InvalidRequest, Unavailable
from holdfast.server.http.routes import Answer, Route
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.store_call import DOCUMENT, StoreCall, store_route
from holdfast.stores.definitions.permissions import Right
from holdfast.stores.storage.disk_limit import disk_use
from holdfast.wire.stores import BackupRequest, NothingMore, QuorumResponse

__all__ = ["cluster_routes"]

Json = dict[str, object]


@contextmanager
def _disk_named() -> Generator[None]:
    """What the disk refuses as an error that says so. What was there before is as it was, and publishers go on."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise Unavailable(
            f"the disk of the stores does not do it: {error}",
            code=Code.STORE_UNAVAILABLE,
            hint="see to the disk's room and its rights, then ask again",
        ) from error


def _member(call: StoreCall) -> str:
    services = call.opened.definitions.cluster.services
    return services[0] if services else "default"


def _quorum(call: StoreCall) -> QuorumResponse:
    member = _member(call)
    suspended = call.host.suspended
    return QuorumResponse(
        have_quorum=not suspended,
        leader="" if suspended else member,
        max_member_count=1,
        min_member_count=1,
        current_member_count=0 if suspended else 1,
        members_in_quorum=[] if suspended else [member],
        members_not_in_quorum=[member] if suspended else [],
        errors=["suspended: restart the service"] if suspended else [],
    )


async def cluster(call: StoreCall) -> Answer:
    """``GET /v1/cluster``."""
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


async def quorum(call: StoreCall) -> Answer:
    """``GET /v1/cluster/quorum``."""
    return call.answer(_quorum(call))


async def force_quorum(call: StoreCall) -> Answer:
    """``POST /v1/cluster/force-quorum``: a cluster of one has it, or is suspended, which no force ends."""
    if call.host.suspended:
        raise InvalidRequest("the cluster is suspended: restart the service", code=Code.NO_QUORUM)
    return call.answer(_quorum(call))


async def suspend(call: StoreCall) -> Answer:
    """``POST /v1/cluster/suspend``."""
    call.host.suspend()
    with _disk_named():
        await call.opened.service.checkpoint()
    return call.answer(_quorum(call))


async def save(call: StoreCall) -> Answer:
    """``POST /v1/cluster/save``: everything that is kept is in the index on disk when this is answered."""
    with _disk_named():
        await call.opened.service.checkpoint()
    return call.answer(NothingMore())


async def compact(call: StoreCall) -> Answer:
    """``POST /v1/cluster/compact``."""
    before = call.opened.service.space()
    with _disk_named():
        await call.opened.service.compact()
    after = call.opened.service.space()
    return call.answer({"allocated_before": before.allocated, "allocated": after.allocated, "in_use": after.in_use})


async def backup(call: StoreCall) -> Answer:
    """``POST /v1/cluster/backup``."""
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
        row("GET", "", browse, "The cluster: what is in force, what it holds, its disk", cluster, answer=DOCUMENT),
        row("GET", "/quorum", browse, "Who of the cluster's services is there", quorum, answer=QuorumResponse),
        row(
            "POST", "/force-quorum", administer, "Form a quorum of the services that are there", force_quorum,
            answer=QuorumResponse, codes=(Code.NO_QUORUM,),
        ),
        row(
            "POST", "/suspend", administer, "Serve nothing more until a restart", suspend,
            answer=QuorumResponse, codes=(Code.STORE_UNAVAILABLE,),
        ),
        row(
            "POST", "/save", administer, "Write everything that is kept into the index", save,
            answer=NothingMore, codes=(Code.STORE_UNAVAILABLE,),
        ),
        row(
            "POST", "/compact", administer, "Give back the space of what is no longer kept", compact,
            answer=DOCUMENT, codes=(Code.STORE_UNAVAILABLE,),
        ),
        row(
            "POST", "/backup", administer, "Copy everything, while clients work", backup,
            body=BackupRequest, answer=DOCUMENT, codes=(Code.ALREADY_OPEN, Code.STORE_UNAVAILABLE),
        ),
    )  # fmt: skip
