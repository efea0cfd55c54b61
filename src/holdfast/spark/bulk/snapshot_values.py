"""What a job recorded in a part of the log that retention has removed: the newest snapshot has it."""

from __future__ import annotations

from contextlib import aclosing

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commit.format.batch import Header
from holdfast.commit.reading.lineage import lineage_of
from holdfast.errors import Code, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.snapshots.reading import newest_snapshot, read_tables


async def value_in_snapshot(store: ObjectStore, claim: Header, key: bytes) -> bytes | None:
    """The newest value of ``key`` in a truncated log whose rest has none; None for a log that was not truncated.

    Raises and cost: as ``values_in_snapshot``.
    """
    return (await values_in_snapshot(store, claim, key, key + b"\0")).get(key)


async def values_in_snapshot(store: ObjectStore, claim: Header, begin: bytes, end: bytes | None) -> dict[bytes, bytes]:
    """The values of the keys from ``begin`` to before ``end`` in the newest snapshot of a truncated log.

    A log is truncated only where a snapshot has its state, so these and the rest of the log are all there is. Empty for
    a log that was not truncated. Raises: NotFound (``log_truncated``: no snapshot is left), CorruptData, Unavailable.
    Cost: a LIST, a manifest, and the parts that may have such keys, one after the other in memory.
    """
    if claim.truncated_through == 0:
        return {}
    manifest = await newest_snapshot(store, await lineage_of(store, claim), claim.last_version)
    if manifest is None or manifest.version < claim.truncated_through:
        raise NotFound(
            "the log was truncated, and no snapshot has what was recorded in the part that was removed",
            code=Code.LOG_TRUNCATED,
            hint="restore the log's newest snapshot from a backup: without it, requests could be committed twice",
            truncated_through=claim.truncated_through,
            newest_snapshot=None if manifest is None else manifest.version,
        )
    parts = [part for part in manifest.parts if part.last_key >= begin and (end is None or part.first_key < end)]
    found: dict[bytes, bytes] = {}
    async with aclosing(read_tables(store, manifest, parts)) as tables:
        async for table in tables:
            wanted = pc.call_function("greater_equal", [table["key"], pa.scalar(begin, pa.binary())])
            if end is not None:
                before = pc.call_function("less", [table["key"], pa.scalar(end, pa.binary())])
                wanted = pc.call_function("and", [wanted, before])
            rows = table.filter(wanted)
            found |= zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
    return found
