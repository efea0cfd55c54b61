"""Make a new log at an empty prefix that equals another one, cut at a version or at a time.

    step        action                                                    a crash after this step leaves
    role        create meta/role: the source, the cut, the new log id     a prefix where nobody may lead
    objects     copy the chain up to the cut                              the same; a rerun goes on
    snapshots   copy those up to the cut                                  the same
    policies    copy the retention policies, no holds                     the same
    verify      read everything back                                      the same
    promote     create meta/promoted, write the fork claim                a log: the first who leads it forks it, too

The source is only read. A rerun takes the cut from ``meta/role``. Stores on a leader's disk are not in the log.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from holdfast.commit.format.batch import Header
from holdfast.commit.leadership.role import ROLE_KEY, Role, encode_record
from holdfast.commit.leadership.role_records import read_records
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.reader import find_frontier
from holdfast.commit.reading.survey import verify_log
from holdfast.copies.chain import carry
from holdfast.copies.manifests import copy_new_checkpoints, copy_new_snapshots, require_checkpoint, snapshots_between
from holdfast.copies.promoting import fork
from holdfast.copies.source import cut_at, first_slot_of, objects_from, standing_of, version_at
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.retention.generations import Generations
from holdfast.retention.policies import Content, set_content
from holdfast.values import slot_text

Progress = Callable[[str, int, int | None], None]
"""Called with the step, how much of it is done and how much there is, in versions or objects."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where a restore ends: a version, or a time in milliseconds since the Unix epoch; neither: the end of the log."""

    version: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """A log that was restored. ``version`` is the last one that it has from its source."""

    log_id: str
    source_log_id: str
    version: int
    objects: int
    transactions: int
    snapshots: int
    base: int


async def restore(
    source: ObjectStore, copy: ObjectStore, point: Point, on_progress: Progress | None = None
) -> Restored:
    """Restore ``source`` at ``point`` into ``copy``, or go on with a restore that was interrupted.

    Cost: the log up to the cut is read once and written once, and the copy is read once. After a crash: see the module.
    Raises: NotFound (``log_empty``; ``log_truncated``, naming the oldest point that can be restored), InvalidRequest
    (``future_version``; ``log_mismatch``: the prefix holds something else), CorruptData, Unavailable.
    """
    report = on_progress or _no_report
    frontier = await find_frontier(source)
    if frontier is None:
        raise NotFound("the source is empty", code=Code.LOG_EMPTY, url=source.url)
    lineage = await lineage_of(source, frontier[1])
    role = await _role(source, copy, frontier, lineage, point)
    assert role.cut_version is not None, "a restore has a cut"
    assert role.log_id is not None, "a restore has a new log id"
    cut, truncated_through = role.cut_version, role.truncated_through
    done = await find_frontier(copy)
    if done is None or done[0].log_id.hex() != role.log_id:

        def copied(header: Header) -> None:
            report("copying", header.last_version, cut)

        standing = await standing_of(source, copy, truncated_through=truncated_through)
        objects = objects_from(source, standing, role)
        async with aclosing(objects), aclosing(cut_at(objects, cut)) as wanted:
            await carry(wanted, copy, copied)
        await copy_new_snapshots(source, copy, lineage, truncated_through, cut)
        await copy_new_checkpoints(source, copy, lineage, truncated_through, cut)
        await _copy_policies(source, copy)
        check = await verify_log(
            copy, lambda read, total: report("verifying", read, total), truncated_through=truncated_through
        )
        if check.last_version > cut:
            raise InvalidRequest("the copy is past the cut", code=Code.LOG_MISMATCH, cut=cut, copy=check.last_version)
    claim = await fork(copy, role.log_id)
    check = await verify_log(copy)
    kept = await snapshots_between(copy, await lineage_of(copy, claim), 0, cut)
    return Restored(
        log_id=role.log_id,
        source_log_id=role.source_log_id,
        version=claim.forked_at,
        objects=check.objects,
        transactions=check.transactions,
        snapshots=len(kept),
        base=claim.last_version,
    )


def _no_report(step: str, done: int, total: int | None) -> None:
    del step, done, total


async def _role(
    source: ObjectStore, copy: ObjectStore, frontier: tuple[Header, Header], lineage: Lineage, point: Point
) -> Role:
    """The role of the copy, created now or by an earlier run. Raises: as ``restore``."""
    role, _ = (await read_records(copy)).decoded()
    if role is None:
        cut = await _cut(source, frontier, lineage, point)
        role = Role(
            role="restoring",
            source_log_id=lineage.log_id,
            cut_version=cut,
            log_id=secrets.token_hex(16),
            truncated_through=frontier[0].truncated_through,
            first_slot=slot_text(await first_slot_of(source, frontier)),
        )
        role = await begin_copy(copy, role)
    require_role(role, "restoring", lineage)
    if point != Point():
        cut = await _cut(source, frontier, lineage, point)
        if cut != role.cut_version:
            raise InvalidRequest(
                "a restore to another point was begun here",
                hint="run it again without --at, or restore to an empty prefix",
                begun_at=role.cut_version,
                asked_for=cut,
            )
    return role


async def _cut(source: ObjectStore, frontier: tuple[Header, Header], lineage: Lineage, point: Point) -> int:
    head, claim = frontier
    if point.time_ms is not None:
        cut = await version_at(source, frontier, point.time_ms)
    else:
        cut = head.last_version if point.version is None else point.version
    if cut > head.last_version:
        raise InvalidRequest(
            "the log has not reached this version", code=Code.FUTURE_VERSION, at=cut, last_version=head.last_version
        )
    truncated_through = head.truncated_through
    if truncated_through and not await snapshots_between(source, lineage, truncated_through, cut):
        later = await snapshots_between(source, lineage, truncated_through, head.last_version)
        raise NotFound(
            "the log was truncated, and no snapshot that is left is so old",
            code=Code.LOG_TRUNCATED,
            hint="restore a later point" if later else "make a snapshot of the source first: `holdfast log snapshot`",
            at=cut,
            oldest=later[0].version if later else None,
            truncated_through=truncated_through,
        )
    await require_checkpoint(source, claim, lineage, cut, truncated_through)
    return cut


async def begin_copy(copy: ObjectStore, role: Role) -> Role:
    """Create ``meta/role`` at an empty prefix. Returns the role that is there now: another copier may be faster.

    Raises: InvalidRequest (the prefix holds something else), Unavailable.
    """
    for prefix in ("batches/", "meta/", "snapshots/", "stores/"):
        rows = await copy.list(prefix, limit=1)
        if rows and (await read_records(copy)).role is None:
            raise InvalidRequest(
                "a copy begins at an empty prefix, and this one holds something",
                hint="choose another prefix; nothing was changed here",
                url=copy.url,
                object=rows[0].key,
            )
    await create_exactly(copy, ROLE_KEY, encode_record(role))
    begun, _ = (await read_records(copy)).decoded()
    if begun is None:
        raise CorruptData("the record of a copy was removed while it was read", key=ROLE_KEY)
    return begun


def require_role(role: Role, wanted: Literal["mirror", "restoring"], source: Lineage) -> None:
    """Return if a copy may go on with this source as this. Raises: InvalidRequest."""
    if role.role != wanted:
        raise InvalidRequest(
            f"this prefix is {'a mirror' if role.role == 'mirror' else 'a restored log'}, which is something else",
            hint="choose an empty prefix",
            source_log_id=role.source_log_id,
        )
    if not source.holds(role.source_log_id, 0):
        raise InvalidRequest(
            "this is a copy of another log",
            code=Code.LOG_MISMATCH,
            hint="choose an empty prefix",
            copy_of=role.source_log_id,
            log_id=source.log_id,
        )


async def _copy_policies(source: ObjectStore, copy: ObjectStore) -> None:
    def now_ms() -> int:
        return int(time.time() * 1000)

    generation = await Generations(source, now_ms).newest()
    if generation is None:
        return
    content = Content.of(generation)
    truncated = content.truncate_through
    policies = Content(content.policies, {}, truncated)
    await Generations(copy, now_ms).change(set_content(policies), "restore")
