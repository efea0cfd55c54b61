"""Make a new log at an empty prefix that equals another one, cut at a version or at a time.

    step        action                                                    a crash after this step leaves
    role        create meta/role: the source, the cut, the new log id     a prefix where nobody may lead
    hold        ask the source to keep what is copied                     a hold that ends by itself
    objects     copy the chain up to the cut                              the same; a rerun goes on
    foundations copy snapshots and checkpoints up to the cut              the same
    policies    copy the retention policies, no holds                     the same
    verify      read everything back: it can produce its state at the cut the same
    promote     create meta/promoted, write the fork claim                a log: the first who leads it forks it, too

Of the source everything but the hold is only read. A rerun takes the cut from ``meta/role``, whatever the source has
removed since: it goes on, or it is refused. Stores on a leader's disk are not in the log.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from holdfast.commit.format.batch import Header
from holdfast.commit.leadership.cluster import require_cluster
from holdfast.commit.leadership.role import ROLE_KEY, CopyRole, encode_record
from holdfast.commit.leadership.takeover import read_records
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.reader import require_frontier
from holdfast.commit.reading.survey import LogCheck, verify_log
from holdfast.copies.chain import carry
from holdfast.copies.holding import held, hold_id, wall_ms
from holdfast.copies.manifests import copy_foundations, newest_needed
from holdfast.copies.promoting import fork
from holdfast.copies.source import Cut, ended_early, first_slot_of, objects_from, standing_of
from holdfast.copies.times import place_of
from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.foundations.families import SNAPSHOTS, Flaw
from holdfast.foundations.state import Depth, Foundation, require_state
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.objects.probe.results import META_PREFIX, list_meta
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
    """A log that was restored. ``version`` is the last one that it has from its source.

    Where the point was a time: the times of the last object that it has and of the next one, None for no next one.
    """

    log_id: str
    source_log_id: str
    version: int
    objects: int
    transactions: int
    snapshots: int
    base: int
    time_ms: int | None = None
    next_time_ms: int | None = None


async def restore(
    source: ObjectStore, copy: ObjectStore, point: Point, on_progress: Progress | None = None
) -> Restored:
    """Restore ``source`` at ``point`` into ``copy``, or go on with a restore that was interrupted.

    The copy can produce its state at the cut when this returns (``foundations.state``).
    Cost: the log up to the cut is read and written once, and the copy is read twice. After a crash: see the module.
    Raises: NotFound (``log_empty``; ``log_truncated``, naming the oldest point that can be restored), InvalidRequest
    (``future_version``; ``log_mismatch``: the prefix holds something else; a time about which the clocks of the log
    disagree), CorruptData, Unavailable.
    """
    report = on_progress or _unreported
    frontier = await require_frontier(source, "the source")
    lineage = await lineage_of(source, frontier[1])
    place = None if point.time_ms is None else await place_of(source, frontier, point.time_ms)
    if place is not None:
        point = Point(version=place.chosen.last_version)
    role = await _role(source, copy, frontier, lineage, point)
    assert role.cut_version is not None, "a restore has a cut"
    assert role.log_id is not None, "a restore has a new log id"
    _, promoted = (await read_records(copy)).decoded()
    if promoted is None:
        await _copy(source, copy, frontier, role, report)
    claim = await fork(copy, role.log_id)
    check, restored = await verify_copy(copy)
    snapshots, _ = await SNAPSHOTS.between(copy, await lineage_of(copy, claim), 0, claim.forked_at)
    assert restored.version >= claim.forked_at, "it was verified to its end"
    return Restored(
        log_id=role.log_id,
        source_log_id=role.source_log_id,
        version=claim.forked_at,
        objects=check.objects,
        transactions=check.transactions,
        snapshots=len(snapshots),
        base=claim.last_version,
        time_ms=None if place is None else place.chosen.time_ms,
        next_time_ms=None if place is None or place.following is None else place.following.time_ms,
    )


def _unreported(_what: str, _done: int, _total: int | None) -> None:
    """For a caller who does not ask for the progress."""


async def _copy(
    source: ObjectStore, copy: ObjectStore, frontier: tuple[Header, Header], role: CopyRole, report: Progress
) -> None:
    """The steps before the claim. Raises: as ``restore``."""
    cut, truncated_through = role.cut_version, role.truncated_through
    assert cut is not None, "a restore has a cut"
    lineage = await lineage_of(source, frontier[1])
    needed = await newest_needed(source, lineage, truncated_through, cut)

    def copied(header: Header) -> None:
        report("copying", header.last_version, cut)

    async with held(source, hold_id("restore", copy), truncated_through, needed):
        standing = await standing_of(source, copy, truncated_through=truncated_through)
        part = Cut(cut, standing)
        objects = objects_from(source, standing, role)
        async with aclosing(objects), aclosing(part.of(objects)) as parts:
            await carry(parts, copy, copied)
        if not part.is_reached:
            raise await ended_early(source, copy)
        copied_too = await copy_foundations(source, copy, lineage, truncated_through, cut)
        await _copy_policies(source, copy, truncated_through)
    check, _ = await verify_copy(
        copy,
        truncated_through,
        lambda read, total: report("verifying", read, total),
        version=cut,
        passed_over=copied_too.flaws,
    )
    if check.last_version > cut:
        raise InvalidRequest("the copy is past the cut", code=Code.LOG_MISMATCH, cut=cut, copy=check.last_version)


async def verify_copy(
    copy: ObjectStore,
    truncated_through: int = 0,
    on_progress: Callable[[int, int | None], None] | None = None,
    *,
    version: int | None = None,
    passed_over: Sequence[Flaw] = (),
) -> tuple[LogCheck, Foundation]:
    """Read all of a copy, and return if it can produce its state at ``version``, by default at its end.

    Raises: CorruptData, NotFound (``log_truncated``: its foundation is missing), Unavailable.
    """
    check = await verify_log(copy, on_progress, truncated_through=truncated_through)
    frontier = await require_frontier(copy, "the copy")
    foundation = await require_state(
        copy,
        frontier,
        frontier[0].last_version if version is None else version,
        depth=Depth.READ,
        truncated_through=truncated_through,
        passed_over=passed_over,
    )
    return check, foundation


async def _role(
    source: ObjectStore, copy: ObjectStore, frontier: tuple[Header, Header], lineage: Lineage, point: Point
) -> CopyRole:
    """The role of the copy, created now or by an earlier run. Raises: as ``restore``."""
    role, _ = (await read_records(copy)).decoded()
    if role is None:
        cut = await _cut(source, frontier, point)
        role = CopyRole(
            role="restoring",
            source_log_id=lineage.log_id,
            cut_version=cut,
            log_id=secrets.token_hex(16),
            truncated_through=frontier[0].truncated_through,
            first_slot=slot_text(await first_slot_of(source, frontier)),
        )
        role = await begin_copy(copy, role)
    require_role(role, "restoring", lineage)
    await require_cluster(copy, may_begin=True)
    if point != Point():
        cut = await _cut(source, frontier, point)
        if cut != role.cut_version:
            raise InvalidRequest(
                "a restore to another point was begun here",
                hint="run it again without --at, or restore to an empty prefix",
                begun_at=role.cut_version,
                asked_for=cut,
            )
    return role


async def _cut(source: ObjectStore, frontier: tuple[Header, Header], point: Point) -> int:
    head, _ = frontier
    cut = head.last_version if point.version is None else point.version
    if cut > head.last_version:
        raise InvalidRequest(
            "the log has not reached this version", code=Code.FUTURE_VERSION, at=cut, last_version=head.last_version
        )
    await require_state(source, frontier, cut, depth=Depth.LISTED)
    return cut


async def begin_copy(copy: ObjectStore, role: CopyRole) -> CopyRole:
    """Create ``meta/role`` at an empty prefix. Returns the role that is there now: another copier may be faster.

    Raises: InvalidRequest (the prefix holds something else), Unavailable.
    """
    for prefix in ("batches/", META_PREFIX, "snapshots/", "stores/"):
        rows = await (list_meta(copy, limit=1) if prefix == META_PREFIX else copy.list(prefix, limit=1))
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


def require_role(role: CopyRole, wanted: Literal["mirror", "restoring"], source: Lineage) -> None:
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


async def _copy_policies(source: ObjectStore, copy: ObjectStore, truncated_through: int) -> None:
    generation = await Generations(source, wall_ms).newest()
    if generation is None:
        return
    policies = Content(Content.of(generation).policies, {}, truncated_through)
    await Generations(copy, wall_ms).change(set_content(policies), "restore")
