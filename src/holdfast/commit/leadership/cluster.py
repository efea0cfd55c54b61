"""Which cluster of servers holds a log, where others may take their place under the same URL: every claim compares.

| object | content | created |
|---|---|---|
| ``meta/cluster/{2^64-1 - generation:020d}`` | ``ClusterRecord`` as JSON | before the first object of a log or a copy |

A cluster that is restored from a snapshot of one member has an id of its own. It lacks what was confirmed after the
snapshot, so a leader under the old log id would give other transactions the versions that clients have seen. The newest
generation counts. Where the URL alone names a store, as on S3, there is no record.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.errors import Closed, Code, CorruptData, NotFound
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.sealed import decode_sealed, encode_sealed

PREFIX: Final = "meta/cluster/"
_NUMBER_MAX: Final = (1 << 64) - 1
HINT: Final = (
    "if it was restored, it lacks what was confirmed since: `holdfast log restore URL NEW_URL` makes a log with an id "
    "of its own from what is here; if not, correct the addresses in the URL"
)


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cluster that a log began in. ``cluster_id``: as the store says it."""

    format: Literal[1] = 1
    cluster_id: str


def key_of(generation: int) -> str:
    """The name of a generation: newer ones are listed first.

    >>> key_of(1)
    'meta/cluster/18446744073709551614'
    """
    return f"{PREFIX}{_NUMBER_MAX - generation:020d}"


async def require_cluster(store: ObjectStore, *, may_begin: bool = False) -> None:
    """Return unless other servers hold this log than those with which it began; with ``may_begin`` it begins here.

    Cost: none where a URL alone names the store; else a listing and a read. Raises: Closed (``cluster_restored``),
    CorruptData, Unavailable.
    """
    if store.cluster_id is None:
        return
    rows = await store.list(PREFIX, limit=1)
    if not rows and may_begin:
        await create_exactly(store, key_of(1), encode_sealed(ClusterRecord(cluster_id=store.cluster_id)))
        rows = await store.list(PREFIX, limit=1)
    began = await _read(store, rows[0].key) if rows else None
    if began != store.cluster_id:
        raise Closed(
            "this log began in another cluster than the one that answers",
            code=Code.CLUSTER_RESTORED,
            hint=HINT,
            began_in=began or "an unknown one",
            answers=store.cluster_id,
            url=store.url,
        )


async def _read(store: ObjectStore, key: str) -> str:
    try:
        return decode_sealed(await store.read(key), ClusterRecord).cluster_id
    except (msgspec.DecodeError, NotFound) as error:
        raise CorruptData("the record of a log's cluster is damaged", key=key, cause=str(error)) from error
