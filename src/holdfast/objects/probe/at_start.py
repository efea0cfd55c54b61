"""The probe of each start: a short race and the order of listings, in two waits, in this process.

A store that ignores ``If-None-Match`` overwrites silently; one that does not list in byte order cannot be recovered
with one LIST. Both would lose a log later, so the probe refuses them by name: ``InvalidRequest`` (store_unfit).
``Unavailable`` proves nothing: probe again. A crash leaves the probe's keys under ``probe/``, where nothing reads them.

The connections of a new store are fresh, so the creates of the short race go through different gateways where there are
several. ``race`` is the thorough proof.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from holdfast.errors import Unavailable
from holdfast.objects.port import Created, ObjectStore, Unknown
from holdfast.objects.probe.contest import (
    PREFIX,
    LocalSide,
    Patience,
    clean_up,
    finish_all,
    plan_short_race,
    settle,
    unfit,
)

ATTEMPTS_MAX: Final = 5
BODY: Final = b"the start-up probe"
PATIENCE: Final = Patience(again_max=ATTEMPTS_MAX - 1, pause_seconds=0.0, lead_seconds=0.0)


async def probe(store: ObjectStore, *, unique: str | None = None) -> list[str]:
    """Probe the store under ``probe/{unique}``, a random name unless one is given.

    Returns the names to remove with ``clean_up`` later; after an error they are removed already.
    Raises: InvalidRequest (store_unfit), Unavailable.
    Cost: two sequential waits (15 creates, of which 9 are refused and 4 have 64 KiB, or 1.25 MiB on etcd; 3 reads; 2
    listings), more only where responses are lost.
    """
    prefix = f"{PREFIX}{unique or secrets.token_hex(16)}"
    names: list[str] = []
    here = [LocalSide(store)]
    try:
        await finish_all(
            [
                _require_order(store, f"{prefix}.order", names),
                *(
                    settle(here, contest, store.url, names, PATIENCE, asyncio.sleep)
                    for contest in plan_short_race(prefix, store.url)
                ),
            ]
        )
    except BaseException:
        await clean_up(store, names)
        raise
    return names


async def _require_order(store: ObjectStore, prefix: str, names: list[str]) -> None:
    """Names must list in byte order, and a listing must begin after a given one."""
    # As numbers, as bytes and as written, these have three different orders.
    ordered = sorted(await finish_all([_create(store, f"{prefix}.{part}", names) for part in ("9", "10", "1-")]))
    await finish_all(
        [
            _require_listed(store, prefix, ordered, ordered),
            _require_listed(store, ordered[1], ordered, ordered[2:]),
        ]
    )


async def _require_listed(store: ObjectStore, after: str, ordered: list[str], expected: list[str]) -> None:
    """After ``after``, the names of ``ordered`` must list in byte order and begin with the next one."""
    # Attempts without a clear result may have left further names between these.
    limit = len(ordered) * ATTEMPTS_MAX
    listed = [row.key for row in await store.list(PREFIX, after=after, limit=limit) if row.key in ordered]
    if listed != expected:
        early = sorted(listed) == listed and len(listed) > len(expected)
        wrong = "it does not begin a listing after a given name" if early else "it does not list names in byte order"
        unfit(store.url, wrong)


async def _create(store: ObjectStore, prefix: str, names: list[str]) -> str:
    """Create a new name for certain: another one for each attempt without a clear result."""
    detail = "refused"
    for attempt in range(ATTEMPTS_MAX):
        key = f"{prefix}.{attempt}"
        names.append(key)
        result = await store.create(key, BODY)
        if isinstance(result, Created):
            return key
        if isinstance(result, Unknown):
            detail = result.detail
    raise Unavailable("the object store did not create an object", url=store.url, cause=detail)
