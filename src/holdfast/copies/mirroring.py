"""A mirror: a copy of a log that grows with it, byte for byte, until it is promoted.

    a round      action                                                   a crash after it leaves
    copy         carry what the source has and the mirror lacks, up to    a shorter mirror
                 the next object that truncates
    foundations  copy snapshots and checkpoints that it has reached       parts without a manifest
    verify       it can produce its state, also after that truncation     the same; then the copy goes on
    hold         ask the source to keep what is not copied yet            a hold that ends by itself
    truncate     delete what the log says was truncated                   a sweep that goes on in the next round

So no object with a ``truncated_through`` comes before the mirror has a whole snapshot of what that takes away.
The mirror has a place in ``meta/role`` and no state of its own: where it stands is where its chain ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from holdfast.commit.format.batch import PREFIX, Header, object_name
from holdfast.commit.format.chain import next_slot
from holdfast.commit.leadership.cluster import require_cluster
from holdfast.commit.leadership.role import CopyRole
from holdfast.commit.leadership.takeover import read_records
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.reader import LoggedBatch, find_frontier, find_header, require_frontier
from holdfast.copies.chain import carry
from holdfast.copies.holding import NOTHING, Held, held, hold_id, set_source_hold
from holdfast.copies.manifests import copy_foundations, newest_needed
from holdfast.copies.restoring import begin_copy, require_role
from holdfast.copies.source import ended_early, first_slot_of, objects_from, standing_of
from holdfast.errors import Closed, Code, NotFound, Unavailable
from holdfast.foundations.families import SNAPSHOTS, Flaw
from holdfast.foundations.keeping import KeptSnapshots
from holdfast.foundations.readings import require_end
from holdfast.foundations.state import Depth, require_state
from holdfast.objects.port import ObjectStore
from holdfast.retention.cut import slot_through
from holdfast.retention.sweep import Swept, sweep
from holdfast.snapshots.making import make_snapshot
from holdfast.values import slot_text

log = structlog.get_logger("holdfast.copies.mirroring")

HOLD_EVERY_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 30.0
HOLD_LASTS_MS: Final = 86_400_000
LAG_OBJECTS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """``follow``: go on when the end of the source is reached. ``hold``: ask the source to keep what is missing, which
    takes the right to write there."""

    follow: bool = False
    hold: bool = True
    poll_seconds: float = 0.5
    snapshots_keep: int = 3
    deletes_per_second: float = 1_000.0
    retry_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Mirrored:
    """How far a mirror is. ``retired``: the source ended with a claim that retires it, which is not copied.

    ``lag``: what the source has and the mirror lacks. ``lag_bytes`` counts at most ``LAG_OBJECTS_MAX`` objects,
    ``lag_seconds`` is between the newest objects of both, by the clocks of the leaders that wrote them.
    """

    source_log_id: str
    version: int
    objects: int
    snapshots: int
    retired: bool
    lag_versions: int
    lag_bytes: int
    lag_seconds: float


Progress = Callable[[Mirrored], None]


class Mirror:
    """One process that copies ``source`` to ``copy``. Others may do the same at the same time; they get in no way."""

    def __init__(self, source: ObjectStore, copy: ObjectStore, options: MirrorOptions) -> None:
        self._source = source
        self._copy = copy
        self._options = options
        self._objects = 0
        self._snapshots = 0
        self._retired = False
        self._held_s: float | None = None
        self._hold_refused = False
        # Each mirror of a log has a hold of its own, and keeps it when it starts again.
        self._hold_id = hold_id("mirror", copy)
        self._truncated_through = 0
        self._walked = False
        """Whether this process has read what the mirror is made of."""
        self._whole_through = 0
        """The version of the newest snapshot of the mirror that was found whole."""
        self._head: Header | None = None

    async def run(self, on_progress: Progress | None = None) -> Mirrored:
        """Copy to the end of the source; with ``follow``, go on until the source is retired.

        Each time that this returns, and before each call of ``on_progress``, the mirror can produce its state.
        Raises: Closed (``not_promoted`` is the rule of a mirror; once promoted it is a log, and this ends), NotFound
        (``log_empty``; ``log_truncated``: the source removed what was not copied yet), InvalidRequest
        (``log_mismatch``), CorruptData; Unavailable without ``follow``. After a crash: run it again.
        """
        while True:
            try:
                mirrored = await self.round()
            except Unavailable as error:
                if not self._options.follow:
                    raise
                log.warning("mirror_waits", error=str(error))
                await asyncio.sleep(self._options.retry_seconds)
                continue
            if on_progress is not None:
                on_progress(mirrored)
            if not self._options.follow or mirrored.retired:
                return mirrored
            if not mirrored.lag_versions:
                await self._wait_for_more()

    async def round(self) -> Mirrored:
        """One round of the table above. Raises: as ``run``."""
        newest, claim = frontier = await require_frontier(self._source, "the source")
        await require_end(self._source, frontier)
        lineage = await lineage_of(self._source, claim)
        role = await self._role(lineage, frontier)
        async with self._round_hold(role, lineage, newest):
            head, own_claim = await self._copy_all(role, lineage, newest)
        await self._hold(head)
        await self._truncate(role, head, own_claim)
        counts = lineage.log_id, head.last_version, self._objects, self._snapshots
        return Mirrored(*counts, self._retired, *await self._lag(head))

    @asynccontextmanager
    async def _round_hold(self, role: CopyRole, lineage: Lineage, newest: Header) -> AsyncGenerator[None]:
        """The hold of a mirror that does not follow; one that follows has its own."""
        if not self._options.hold or self._options.follow:
            yield
            return
        reached = await find_frontier(self._copy)
        through = max(role.truncated_through, 0 if reached is None else reached[0].last_version)
        needed = NOTHING
        if not self._whole_through:
            needed = await newest_needed(self._source, lineage, role.truncated_through, newest.last_version)
        async with held(self._source, self._hold_id, through, needed):
            yield

    async def _copy_all(self, role: CopyRole, lineage: Lineage, newest: Header) -> tuple[Header, Header]:
        """Copy until nothing is left or a truncation cannot be followed. Returns where the mirror ends then."""
        while True:
            stopped = await self._carry(role, newest)
            reached = await require_frontier(self._copy, "the mirror")
            self._head = reached[0]
            copied = await copy_foundations(
                self._source, self._copy, lineage, role.truncated_through, reached[0].last_version
            )
            self._snapshots += copied.snapshots
            truncates = 0 if stopped is None else stopped.truncated_through
            await self._require_state(role, reached, truncates, copied.flaws)
            if stopped is None:
                return reached

    async def _require_state(
        self, role: CopyRole, reached: tuple[Header, Header], truncates: int, passed_over: list[Flaw]
    ) -> None:
        """Return if the mirror can produce its state, also once everything up to ``truncates`` has gone.

        The first time all is read that this takes, then what is new. Raises: NotFound (``log_truncated``), CorruptData,
        Unavailable.
        """
        head = reached[0]
        through = max(role.truncated_through, head.truncated_through, truncates)
        if self._walked and through <= self._whole_through:
            return
        if truncates:
            there, _ = await SNAPSHOTS.between(
                self._copy, await lineage_of(self._copy, reached[1]), through, head.last_version
            )
            if not there:
                await make_snapshot(self._copy)
        depth = Depth.READ if self._walked else Depth.CHAIN
        state = await require_state(
            self._copy, reached, head.last_version, depth=depth, truncated_through=through, passed_over=passed_over
        )
        self._walked = True
        self._whole_through = 0 if state.snapshot is None else state.snapshot.version

    async def _wait_for_more(self) -> None:
        """Until the source has the next object; a whole round goes by in any case after ``IDLE_SECONDS``."""
        assert self._head is not None, "a round ended at an object"
        for _ in range(max(1, int(IDLE_SECONDS / self._options.poll_seconds))):
            await asyncio.sleep(self._options.poll_seconds)
            try:
                if await find_header(self._source, next_slot(self._head)) is not None:
                    return
            except Unavailable as error:
                log.warning("mirror_waits", error=str(error))

    async def _role(self, lineage: Lineage, frontier: tuple[Header, Header]) -> CopyRole:
        role, promoted = (await read_records(self._copy)).decoded()
        if role is not None:
            require_role(role, "mirror", lineage)
        if promoted is not None:
            raise Closed(
                "this mirror was promoted: it is a log of its own",
                code=Code.LOG_MISMATCH,
                hint="begin another mirror at an empty prefix",
                log_id=promoted.log_id,
            )
        if role is None:
            role = CopyRole(
                role="mirror",
                source_log_id=lineage.log_id,
                truncated_through=frontier[0].truncated_through,
                first_slot=slot_text(await first_slot_of(self._source, frontier)),
            )
            role = await begin_copy(self._copy, role)
            require_role(role, "mirror", lineage)
        await require_cluster(self._copy, may_begin=True)
        return role

    async def _carry(self, role: CopyRole, newest: Header) -> Header | None:
        """Copy to the end of the source. Returns the object before which it stopped, because it truncates."""
        before = self._head
        passed = _Passed(max(role.truncated_through, self._whole_through))

        def copied(header: Header) -> None:
            self._objects += before is None or header.slot < before.slot

        try:
            standing = await standing_of(self._source, self._copy, truncated_through=role.truncated_through)
            objects = objects_from(self._source, standing, role)
            async with aclosing(objects), aclosing(passed.of(objects)) as parts:
                await carry(parts, self._copy, copied)
        except NotFound as gone:
            raise _removed(role) from gone
        self._retired = self._retired or passed.retired
        reached = await find_frontier(self._copy)
        if passed.stopped is not None or (reached is not None and reached[0].slot <= newest.slot):
            return passed.stopped
        # The source had ``newest`` before this round: either it was truncated meanwhile, or it has a hole.
        if self._retired and reached is not None and reached[0].slot == newest.prev:
            return None
        raise await ended_early(self._source, self._copy)

    async def _hold(self, head: Header) -> None:
        """Keep the source from truncating what is not copied yet. A policy is what truncates, so none needs none."""
        now_s = time.monotonic()
        if not self._options.follow or not self._options.hold or self._hold_refused:
            return
        if self._held_s is not None and now_s - self._held_s < HOLD_EVERY_SECONDS:
            return
        self._held_s = now_s
        held_on = await set_source_hold(self._source, self._hold_id, head.last_version, lasts_ms=HOLD_LASTS_MS)
        self._hold_refused = held_on is Held.REFUSED

    async def _truncate(self, role: CopyRole, head: Header, claim: Header) -> None:
        """Delete what the log says was truncated. A whole snapshot has the state: the objects that say so are here."""
        through = head.truncated_through
        if through <= max(self._truncated_through, role.truncated_through):
            return
        snapshots = KeptSnapshots(self._copy, claim, keep=self._options.snapshots_keep)
        oldest = await snapshots.oldest(())
        if oldest is None or oldest < through:
            return
        slot = await slot_through(self._copy, claim, head, through)
        if slot is not None:
            per_second = self._options.deletes_per_second
            await sweep(self._copy, slot, lambda: head.slot, per_second=per_second, swept=Swept())
        self._truncated_through = through

    async def _lag(self, head: Header) -> tuple[int, int, float]:
        frontier = await find_frontier(self._source)
        if frontier is None or frontier[0].retires or frontier[0].slot >= head.slot:
            return 0, 0, 0.0
        newest = frontier[0]
        rows = await self._source.list(PREFIX, limit=LAG_OBJECTS_MAX)
        size = sum(row.size for row in rows if row.key < object_name(head.slot))
        return newest.last_version - head.last_version, size, max(0, newest.time_ms - head.time_ms) / 1000.0


class _Passed:
    """What of the source goes into the mirror now: up to the first object that truncates further than ``allowed``.

    ``retired``: the source ended with a claim that retires it, which is not copied.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self.stopped: Header | None = None
        self.retired = False

    async def of(self, objects: AsyncGenerator[LoggedBatch]) -> AsyncGenerator[LoggedBatch]:
        """The objects."""
        async for batch in objects:
            if batch.header.truncated_through > self._allowed:
                self.stopped = batch.header
                return
            if batch.header.retires:
                self.retired = True
                return
            yield batch


def _removed(role: CopyRole) -> NotFound:
    return NotFound(
        "the source has removed what this mirror has not copied yet",
        code=Code.LOG_TRUNCATED,
        hint="begin another mirror at an empty prefix, and let it follow: then it holds what it needs",
        source_log_id=role.source_log_id,
    )
