"""``/v1/log/storage``: what the store keeps of the log: snapshots, checkpoints of its stores, and bytes by age."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from holdfast.commit.format.batch import StoresMode
from holdfast.commit.service import CommitService
from holdfast.errors import Code, CorruptData, Unavailable
from holdfast.retention.ages import Ages, bytes_by_age
from holdfast.server.gateway import Gateway
from holdfast.server.http.routes import Call, Response, Route, json_response
from holdfast.server.http.state import JSON
from holdfast.snapshots import reading
from holdfast.stores import checkpoint_objects
from holdfast.wire.log import AgeOfLog, CheckpointOfStores, LogStorage, SnapshotOfLog

AGES: Final = (3_600.0, 86_400.0, 7 * 86_400.0, 30 * 86_400.0)
COUNTED_OBJECTS_MAX: Final = 50_000
MANIFESTS_MAX: Final = 20
COUNT_AGAIN_MS: Final = 60_000
COUNT_TIMES: Final = 20
"""A count is kept for at least ``COUNT_AGAIN_MS``, and for this many times as long as it took."""
WAIT_SECONDS: Final = 4.0
"""How long a request waits: less than the console does."""

T = TypeVar("T")


class StoredLog:
    """Looks at the store, once for all requests that wait; a look that takes longer goes on for later requests.

    Manifests never change, so each is read once in a leadership.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._looking: asyncio.Task[LogStorage] | None = None
        self._leader_id = ""
        self._snapshots: dict[int, SnapshotOfLog | None] = {}
        self._checkpoints: dict[int, CheckpointOfStores | None] = {}
        self._ages: tuple[int, Ages] | None = None
        self._count_again_ms = 0

    async def answer(self, call: Call) -> Response:
        """Raises: Fenced (not_leader), Unavailable, CorruptData."""
        del call
        service = self._gateway.leading()
        if service.leader_id != self._leader_id:
            if self._looking is not None:
                self._looking.cancel()
            self._leader_id, self._ages, self._looking = service.leader_id, None, None
            self._snapshots, self._checkpoints = {}, {}
        looking = self._looking
        if looking is None or (looking.done() and not looking.cancelled() and looking.exception() is None):
            looking = self._looking = asyncio.ensure_future(self._look(service))
            looking.add_done_callback(_seen)
        await asyncio.wait({looking}, timeout=WAIT_SECONDS)
        if not looking.done():
            raise Unavailable("the log is still being counted", retry_after_ms=1000)
        if self._looking is looking:
            self._looking = None  # an error is raised once; a result is looked for again
        if looking.cancelled():
            raise Unavailable("the leadership ended", retry_after_ms=1000)
        return json_response(looking.result())

    async def _look(self, service: CommitService) -> LogStorage:
        store, now_ms = service.store, _now_ms()

        async def snapshot(version: int) -> SnapshotOfLog | None:
            found = await reading.read_manifest(store, version)
            if found is None:
                return None
            return SnapshotOfLog(found.version, found.rows, found.size, len(found.parts), found.slot)

        async def checkpoint(version: int) -> CheckpointOfStores | None:
            found = await checkpoint_objects.read_manifest(store, version)
            return None if found is None else CheckpointOfStores(found.version, found.size)

        self._snapshots = await _known(self._snapshots, await reading.list_versions(store), snapshot)
        if service.claim.stores_mode is StoresMode.LOG:
            versions = await checkpoint_objects.list_versions(store)
            self._checkpoints = await _known(self._checkpoints, versions, checkpoint)
        if self._ages is None or now_ms > self._count_again_ms:
            newest = service.durable_header()
            ages = await bytes_by_age(
                store, service.claim, newest, now=service.moment(), seconds=AGES, objects_max=COUNTED_OBJECTS_MAX
            )
            self._ages, ended_ms = (now_ms, ages), _now_ms()
            self._count_again_ms = ended_ms + max(COUNT_AGAIN_MS, COUNT_TIMES * (ended_ms - now_ms))
        at_ms, counted = self._ages
        return LogStorage(
            at_ms,
            tuple(each for each in self._snapshots.values() if each is not None),
            tuple(each for each in self._checkpoints.values() if each is not None),
            tuple(AgeOfLog(band.seconds_max, band.objects, band.bytes) for band in counted.bands),
            counted.is_whole,
        )


def _now_ms() -> int:
    return int(time.time() * 1000)


def _seen(looking: asyncio.Task[LogStorage]) -> None:
    """Without a request that waits, an error is read here, so that the loop does not report it."""
    if not looking.cancelled():
        looking.exception()


async def _known(
    known: dict[int, T | None], versions: list[int], read: Callable[[int], Awaitable[T | None]]
) -> dict[int, T | None]:
    """What the newest manifests say, newest first. One that is damaged, or was removed meanwhile, is None."""
    found: dict[int, T | None] = {}
    for version in reversed(versions[-MANIFESTS_MAX:]):
        if version in known:
            found[version] = known[version]
            continue
        try:
            found[version] = await read(version)
        except CorruptData:  # `holdfast log snapshots` names it
            found[version] = None
    return found


def storage_route(gateway: Gateway) -> Route:
    """The row of the route table."""
    return Route(
        method="GET", path="/v1/log/storage",
        summary="What the store keeps of the log: snapshots, checkpoints, bytes by age",
        handler=StoredLog(gateway).answer, answers={JSON: LogStorage},
        codes=(Code.NOT_LEADER, Code.LEADER_CHANGED, Code.STORE_UNAVAILABLE),
    )  # fmt: skip
