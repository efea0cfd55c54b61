"""What a job recorded in a part of the log that retention has removed: the newest snapshot has it."""

from __future__ import annotations

from contextlib import aclosing

from holdfast.commit.format.batch import Header
from holdfast.commit.reading.lineage import lineage_of
from holdfast.errors import Code, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.snapshots.reading import newest_snapshot, read_rows


async def records_in_snapshot(store: ObjectStore, claim: Header, prefix: str) -> dict[str, bytes]:
    """The records of jobs whose names begin with ``prefix`` in the newest snapshot of a truncated log, by name.

    A log is truncated only where a snapshot has its state, so these and the rest of the log are all there is. Empty for
    a log that was not truncated. Raises: NotFound (``log_truncated``: no snapshot is left), CorruptData, Unavailable.
    Cost: a LIST, a manifest, and the parts with records of jobs, one after the other in memory.
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
    records: dict[str, bytes] = {}
    async with aclosing(read_rows(store, manifest, manifest.jobs)) as parts:
        async for rows in parts:
            names = ((key.decode(), value) for key, value, _ in rows)
            records.update((name, value) for name, value in names if name.startswith(prefix))
    return records
