"""What a service asks about its places before it takes the lead. A refusal changed nothing.

A store that does not answer is asked again for ``PATIENCE_SECONDS``, with a log line for each try; one whose host has
no address for ``UNRESOLVED_SECONDS``, because a name is more often wrong than late.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

import structlog

from holdfast.commit.leadership.log_remains import bound_log, refuse_remains, remains_around, require_bound
from holdfast.commit.leadership.takeover import newest_slot
from holdfast.commit.reading.reader import find_header
from holdfast.commit.subscription import OlderHistory
from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.extras import install_command
from holdfast.objects.endpoint import addresses_of, endpoint_of, is_shared
from holdfast.objects.port import ObjectStore
from holdfast.objects.probe.results import newest_result, require_not_refused
from holdfast.settings import Settings

PATIENCE_SECONDS: Final = 60.0
UNRESOLVED_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 0.5

log = structlog.get_logger("holdfast.server.commit.replaced_log")


async def require_places_of_this_log(store: ObjectStore, settings: Settings, *, init: bool, force_new: bool) -> None:
    """Check that the stores and the view next to the log belong to it, or that ``force_new`` is set.

    Raises: InvalidRequest (log_mismatch), Unavailable, CorruptData. Cost: two requests at most, and the Delta log of
    configured segments for a new log.
    """
    stores = settings.stores.hosted
    if settings.log.scheme == "memory" or force_new:
        return  # a log in memory is another one at every start
    if not init and (stores is None or bound_log(stores) is None):
        return
    await _patiently(lambda: _look(store, settings, stores), settings.log.url)


async def require_raced(store: ObjectStore, url: str) -> None:
    """Warn when no race was run through the endpoint of a store that other machines reach.

    Raises: InvalidRequest (store_unfit) when the newest race refused it, Unavailable, CorruptData. Cost: two requests.
    """
    if not is_shared(url):
        return
    endpoint = endpoint_of(url, os.environ)
    command = f"holdfast doctor --race {url}"

    async def look() -> None:
        result = await newest_result(store, endpoint)
        if result is None:
            log.warning("store_not_raced", endpoint=endpoint, hint=f"prove that it is exclusive: {command}")
        else:
            require_not_refused(result, command)

    await _patiently(look, url)


async def _patiently(look: Callable[[], Awaitable[None]], url: str) -> None:
    began = asyncio.get_running_loop().time()
    for tries in itertools.count(1):
        try:
            await look()
            return
        except Unavailable as error:
            if error.code is not Code.STORE_UNAVAILABLE:
                raise
            host = await _host_without_address(url)
            patience = PATIENCE_SECONDS if host is None else UNRESOLVED_SECONDS
            if asyncio.get_running_loop().time() >= began + patience:
                if host is None:
                    raise
                raise Unavailable("the host of the object store has no address", host=host, cause=error) from error
            log.warning("store_unavailable", error=str(error), tries=tries, host_without_address=host)
        await asyncio.sleep(AGAIN_SECONDS)


async def _host_without_address(url: str) -> str | None:
    """The host of a store that other machines reach, if its name does not resolve."""
    endpoint = endpoint_of(url, os.environ)
    if not is_shared(url) or await asyncio.to_thread(addresses_of, endpoint) > 0:
        return None
    return urlsplit(endpoint).hostname


async def _look(store: ObjectStore, settings: Settings, stores: str | None) -> None:
    slot = await newest_slot(store)
    if slot is None:
        remains = await remains_around(store, settings.log.url, stores)
        segments = await asyncio.to_thread(_segments_of, settings.log.segments_url)
        if await newest_slot(store) is None:  # else another process has begun this log meanwhile, and left what is seen
            refuse_remains([*remains, *segments])
        return
    header = await find_header(store, slot)
    if header is not None and stores is not None:
        require_bound(stores, header.log_id.hex())


def _segments_of(url: str | None) -> list[str]:
    if not url:
        return []
    from holdfast.segments.index import read_segment_index
    from holdfast.segments.table_location import table_location

    location = table_location(url)
    try:
        index = read_segment_index(location.uri, location.options)
    except NotFound:
        return []
    return [f"segments of log {index.log_id} at {url.partition('?')[0]}"]


def segment_history(url: str | None) -> OlderHistory | None:
    """The segments at ``url``; None without one. Raises: InvalidRequest."""
    if not url:
        return None
    try:
        from holdfast.segments.history import SegmentHistory
    except ImportError as missing:
        raise InvalidRequest(
            "log.segments_url needs packages that are not installed",
            code=Code.BAD_CONFIGURATION,
            hint=install_command("segments"),
            missing=missing.name,
        ) from missing
    return SegmentHistory(url)
