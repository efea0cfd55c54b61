"""The start-up probe: does this store keep the promises that the log depends on?

A store that ignores ``If-None-Match`` overwrites silently; one that does not list in byte order cannot be recovered
with one LIST. Both would lose a log later, so the probe refuses them by name: ``InvalidRequest`` (store_unfit).
``Unavailable`` proves nothing: probe again. A crash leaves the probe's keys under ``probe/``, where nothing reads them.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final, NoReturn

from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.objects.port import Created, ObjectStore, Refused, Unknown

PREFIX: Final = "probe/"
ATTEMPTS_MAX: Final = 5
FIRST: Final = b"one of two bodies"
SECOND: Final = b"the other of two bodies"


async def probe(store: ObjectStore, *, unique: str | None = None) -> list[str]:
    """Probe the store under ``probe/{unique}``, a random name unless one is given.

    Returns the names to remove with ``clean_up`` later; after an error they are removed already.
    Raises: InvalidRequest (store_unfit), Unavailable.
    Cost: two sequential waits (5 creates, one of them refused; 1 read; 2 listings), more only where responses are lost.
    """
    prefix = f"{PREFIX}{unique or secrets.token_hex(16)}"
    names: list[str] = []
    # As numbers, as bytes and as written, these have three different orders.
    parts = ("9", "10", "1-")
    try:
        (raced, winner), *written = await asyncio.gather(
            _race(store, f"{prefix}.twice", names), *(_create(store, f"{prefix}.order.{part}", names) for part in parts)
        )
        ordered = sorted(key for key, _ in written)
        await asyncio.gather(
            _require_bytes(store, raced, winner),
            _require_order(store, f"{prefix}.order", ordered, ordered),
            _require_order(store, ordered[1], ordered, ordered[2:]),
        )
    except BaseException:
        await clean_up(store, names)
        raise
    return names


async def clean_up(store: ObjectStore, names: list[str]) -> None:
    """Remove the names of a probe. A failure is ignored: leftovers are harmless. Cost: one wait."""
    await asyncio.gather(*(store.delete(name) for name in names), return_exceptions=True)


async def _race(store: ObjectStore, prefix: str, names: list[str]) -> tuple[str, bytes]:
    """Create one name twice concurrently: exactly one must succeed. Returns the name and the bytes that won."""
    for attempt in range(ATTEMPTS_MAX):
        key = f"{prefix}.{attempt}"
        names.append(key)
        results = await asyncio.gather(store.create(key, FIRST), store.create(key, SECOND))
        created = [data for data, result in zip((FIRST, SECOND), results, strict=True) if isinstance(result, Created)]
        if len(created) == 2:
            _unfit(store, "it creates an object that exists already: it ignores If-None-Match")
        if created and any(isinstance(result, Refused) for result in results):
            return key, created[0]
    raise Unavailable("the object store did not answer whether it refuses a taken name", url=store.url)


async def _require_bytes(store: ObjectStore, key: str, expected: bytes) -> None:
    try:
        data = await store.read(key)
    except NotFound:
        _unfit(store, "an object that it acknowledged cannot be read back")
    if data != expected:
        _unfit(store, "an object that it acknowledged reads back with other bytes")


async def _require_order(store: ObjectStore, after: str, ordered: list[str], expected: list[str]) -> None:
    """After ``after``, the names of ``ordered`` must list in byte order and begin with the next one."""
    # Attempts without a clear result may have left further names between these.
    limit = len(ordered) * ATTEMPTS_MAX
    listed = [row.key for row in await store.list(PREFIX, after=after, limit=limit) if row.key in ordered]
    if listed != expected:
        early = sorted(listed) == listed and len(listed) > len(expected)
        wrong = "it does not begin a listing after a given name" if early else "it does not list names in byte order"
        _unfit(store, wrong)


async def _create(store: ObjectStore, prefix: str, names: list[str]) -> tuple[str, bytes]:
    """Create a new name for certain: another one for each attempt without a clear result."""
    detail = "refused"
    for attempt in range(ATTEMPTS_MAX):
        key = f"{prefix}.{attempt}"
        names.append(key)
        result = await store.create(key, FIRST)
        if isinstance(result, Created):
            return key, FIRST
        if isinstance(result, Unknown):
            detail = result.detail
    raise Unavailable("the object store did not create an object", url=store.url, cause=detail)


def _unfit(store: ObjectStore, why: str) -> NoReturn:
    raise InvalidRequest(
        f"this object store cannot hold a log: {why}",
        code=Code.STORE_UNFIT,
        hint="use one with conditional creates and ordered listings",
        url=store.url,
    )
