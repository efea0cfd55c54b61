"""The leader's loop of retention: decide, create the generation, write the truncation into the log, delete.

    step        action                                                a crash after this step leaves
    look        read the newest generation and the snapshots          nothing
    decide      find the cut: the newest object nothing needs         nothing
    verify      the log can produce its state without what goes       nothing
    permit      create a generation whose truncate_through is T       policies below T are refused; nothing is deleted
    truncate    a batch carries T; wait until it is durable and       readers below T get log_truncated
                this leader is proved to own the log
    sweep       delete data objects at or below T, oldest first       the next sweep, by any leader, deletes the rest

A policy that was answered before ``permit`` is in the generation that the cut was computed from: ``permit`` creates the
next number, and is refused when another writer was faster. A policy after ``permit`` that needs a version at or below T
is refused. So no policy that was answered is broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from holdfast.commit.format.batch import FIRST_SLOT, Header, Kind, StoresMode, jump
from holdfast.commit.format.log_clock import Moment, age_ms
from holdfast.commit.leadership.takeover import Clock
from holdfast.commit.reading.reader import find_header
from holdfast.commit.service import CommitService
from holdfast.errors import CorruptData, Fenced, HoldfastError, NotFound, Unavailable
from holdfast.foundations.keeping import KeptSnapshots, StrayParts
from holdfast.foundations.readings import Readings
from holdfast.foundations.state import Depth, require_state
from holdfast.objects.port import ObjectStore
from holdfast.retention.ages import HeldBytes
from holdfast.retention.cut import NOTHING, Border, Needs, border_of, borders_of, find_cut, slot_of_bytes, slot_through
from holdfast.retention.generations import Generations
from holdfast.retention.job_holds import JobHold
from holdfast.retention.policies import (
    CONFIGURATION,
    LOAD_PREFIX,
    Change,
    Content,
    Generation,
    Policy,
    remove_policy,
    set_policy,
    settle_holds,
    truncate_to,
)
from holdfast.retention.sweep import Swept, freed, sweep
from holdfast.values import Slot, Version
from holdfast.wire.log import HoldState, RetentionPlan

log = structlog.get_logger("holdfast.retention")

SWEEP_AGAIN_MS: Final = 3_600_000.0
"""A late duplicate of a PUT may bring a deleted object back, so the whole region is swept again this often."""
STRAY_MS: Final = 86_400_000.0
WARN_AGAIN_MS: Final = 3_600_000.0
HELD_BACK_AGAIN_MS: Final = 86_400_000.0
NO_SNAPSHOT: Final = "nothing is truncated: the log has no verified snapshot; `holdfast log snapshot` makes one"
STORES_NEED_IT: Final = "nothing is truncated: the stores live in the log, and have no verified checkpoint yet"
NOT_WHOLE: Final = "nothing is truncated: a snapshot or checkpoint that would be needed is damaged"
KEEPS_EVERYTHING: Final = "nothing is truncated: a policy keeps everything"
FEW_SLOTS: Final = "nothing is truncated: a truncation waits until it is worth its batch"
REFRESH_SECONDS: Final = 5.0
JOBS_SHOWN: Final = 20
PLANNED_OBJECTS_MAX: Final = 50_000
"""As many are counted of what a plan would remove."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatorOptions:
    """``policy`` comes from the configuration. ``segments_through`` reads the version that the segments table has,
    ``stores_from`` the one from which on stores that live in the log need it; 0: all of it.

    ``slots_min``: a truncation moves by at least this many slots. The batch that carries one lets another object go, so
    without it an idle leader would write and truncate without end.
    ``job_holds`` reads the unfinished jobs as of a version at least; None where the service keeps no view: then they
    hold nothing.
    ``readings``: of the snapshots, shared with the scrub.
    """

    policy: Policy | None = None
    snapshots_keep: int = 3
    min_age_seconds: float = 3_600.0
    check_seconds: float = 60.0
    deletes_per_second: float = 1_000.0
    warn_after_seconds: float = 2_592_000.0
    slots_min: int = 100
    segments_through: Callable[[], Awaitable[int]] | None = None
    stores_from: Callable[[Collection[int]], Awaitable[int]] | None = None
    job_holds: Callable[[int], Awaitable[list[JobHold]]] | None = None
    readings: Readings | None = None


@dataclass(frozen=True, slots=True)
class PolicyExtent:
    """What one policy keeps: ``bytes`` of the log, from ``from_version`` on, whose oldest object is ``seconds`` old."""

    from_version: int
    seconds: float
    bytes: int


@dataclass(slots=True)
class RetentionState:
    """What the last look found, for ``GET /v1/retention`` and the metrics."""

    generation: Generation | None = None
    kept: dict[str, PolicyExtent] = field(default_factory=dict[str, PolicyExtent])
    jobs: dict[str, HoldState] = field(default_factory=dict[str, HoldState])
    """The unfinished jobs that hold the log, at most ``JOBS_SHOWN`` of them, the oldest first."""
    warning: str | None = None
    waits_for_loads: bool = False
    """Whether more of the log would go without the holds of readers that are sent a snapshot."""
    swept: Swept = field(default_factory=Swept)


def _held_snapshots(content: Content, now: Moment) -> list[int]:
    return [hold.snapshot for hold in content.holds.values() if hold.snapshot is not None and hold.holds(now)]


def _warning(content: Content, needs: Needs) -> str | None:
    """What keeps the whole log, although there are policies."""
    if not content.policies:
        return None
    if any(policy.keep is not None for policy in content.policies.values()):
        return KEEPS_EVERYTHING
    if needs.snapshot is None:
        return NO_SNAPSHOT
    return STORES_NEED_IT if needs.stores == NOTHING else None


class _Changed(Exception):
    """The policies are not those that the cut was computed from."""


class Truncator:
    """One leadership's retention. ``run`` it until the leadership ends."""

    def __init__(self, service: CommitService, store: ObjectStore, options: TruncatorOptions, clock: Clock) -> None:
        self._service = service
        self._store = store
        self._options = options
        self._clock = clock
        self.generations = Generations(store, lambda: service.moment().time_ms)
        self.state = RetentionState()
        self._readings = options.readings or Readings(boot_ms=lambda: clock().boot_ms)
        self._snapshots = KeptSnapshots(store, service.claim, keep=options.snapshots_keep, readings=self._readings)
        self._stray = StrayParts(store, min_age_ms=STRAY_MS)
        self._author = f"leader {service.leader_id}"
        self._held = HeldBytes(store)
        self._swept_through = -1
        self._swept_ms = -SWEEP_AGAIN_MS
        self._warned_ms = -WARN_AGAIN_MS
        self._held_back_ms = -HELD_BACK_AGAIN_MS
        self._now = asyncio.Event()
        self._looked = asyncio.Event()

    def look_now(self) -> None:
        """Do not wait for the next look."""
        self._now.set()

    async def refresh(self) -> None:
        """Look now where a warning may be out of date, because a snapshot was made since the last look.

        Waits ``REFRESH_SECONDS`` at most: a large snapshot takes longer to verify. Cost: a LIST or two while there is a
        warning. Raises: Unavailable.
        """
        if self.state.warning not in (NO_SNAPSHOT, NOT_WHOLE) or not await self._snapshots.has_news():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_SECONDS):
                while True:  # the look that is going on may have listed before
                    self._looked.clear()
                    self.look_now()
                    await self._looked.wait()
                    if not await self._snapshots.has_news():
                        return

    async def run(self) -> None:
        """Look every ``check_seconds`` until the leadership ends. Errors of the store are logged, and tried again."""
        while True:
            self._now.clear()
            try:
                await self.look()
            except Fenced:
                return
            except HoldfastError as error:
                log.warning("retention_waits", error=str(error))
            self._looked.set()
            await self._remove_leftovers()
            try:
                async with asyncio.timeout(self._options.check_seconds):
                    await self._now.wait()
            except TimeoutError:
                pass

    async def _remove_leftovers(self) -> None:
        """After a look, so that a store which refuses this holds back no truncation."""
        try:
            await self._store.remove_leftovers(self._clock().boot_ms)
        except HoldfastError as error:
            log.warning("leftovers_stay", error=str(error))

    async def change(self, change: Change, author: str) -> Generation:
        """Make a change of the policies durable. Raises: as ``Generations.change``."""
        generation = await self.generations.change(change, author)
        self.state.generation = generation
        self.look_now()
        return generation

    async def look(self) -> None:
        """One round of the table above. Raises: Fenced, Unavailable, CorruptData."""
        await self._apply_configuration()
        generation = await self._settle(await self.generations.newest())
        content = Content.of(generation)
        self.state.generation = generation
        oldest = await self._snapshots.oldest(_held_snapshots(content, self._service.moment()))
        await self._stray.sweep(self._clock().boot_ms)
        try:
            jobs = await self._jobs_that_hold()
        except Unavailable:
            if content.policies:
                raise  # without them nothing may go
            jobs = []
        self.state.jobs = {each.job: await self._shown(each) for each in jobs[:JOBS_SHOWN]}
        if content.policies:
            await self._truncate(content, oldest, jobs)
        else:
            self.state.kept, self.state.warning, self.state.waits_for_loads = {}, None, False
        await self._sweep()
        if generation is not None:
            await self.generations.remove_old(generation)

    async def _settle(self, generation: Generation | None) -> Generation | None:
        """Let the time of new holds begin, and remove holds whose time is over.

        Only a leader's clock counts for the log. A leader that was deposed in its sleep has an older one, so the proof
        of ownership comes after the look at the clock. A hold that was set after it begins at the next look, so this
        generation alone is followed.
        """
        content, now = Content.of(generation), self._service.moment()
        if settle_holds(now)(content) == content:
            return generation
        await self._service.version()
        newest = await self.generations.newest()  # the proof may have taken long
        if newest != generation:
            return newest
        settled = await self.generations.follow(generation, settle_holds(now), self._author)
        return await self.generations.newest() if settled is None else settled

    async def _apply_configuration(self) -> None:
        policy = self._options.policy
        now = Content.of(await self.generations.newest())
        if policy == now.policies.get(CONFIGURATION):
            return
        head = self._service.local_version()
        change = remove_policy(CONFIGURATION) if policy is None else set_policy(CONFIGURATION, policy, head=head)
        await self.generations.change(change, self._author)

    async def _truncate(self, content: Content, oldest_snapshot: int | None, jobs: list[JobHold]) -> None:
        newest, claim, now = self._service.durable_header(), self._service.claim, self._service.moment()
        bytes_border, needs = await self._bytes_border(content), await self._needs(content, oldest_snapshot, jobs)
        cuts = {
            name: await find_cut(self._store, claim, newest, [border_of(policy, now, bytes_border)])
            for name, policy in content.policies.items()
        }
        sizes = await self._held.look(
            newest.slot, {name: None if cut is None else cut.slot for name, cut in cuts.items()}
        )
        self.state.kept = {
            name: PolicyExtent(
                (newest.truncated_through if cut is None else cut.last_version) + 1,
                age_ms(now, await self._oldest(newest) if cut is None else cut) / 1000.0,
                sizes[name],
            )
            for name, cut in cuts.items()
        }
        self._warn_of_held_back(content)
        borders = borders_of(content, needs, watermark=newest.slot, now=now, bytes_border=bytes_border)
        self._warn(content, needs)
        cut = None if borders is None else await find_cut(self._store, claim, newest, borders)
        self.state.waits_for_loads = await self._waits_for_loads(content, needs, cut, bytes_border)
        if cut is None or not await self._is_worth_it(cut, newest):
            return
        if not await self._can_do_without(cut.last_version, needs, newest):
            return
        if cut.last_version > content.truncate_through and not await self._permit(content, cut.last_version):
            return
        await self._service.truncate(Version(cut.last_version))
        log.info("log_truncated", through=cut.last_version, leader_id=self._service.leader_id)

    async def _waits_for_loads(
        self, content: Content, needs: Needs, cut: Header | None, bytes_border: dict[int, int]
    ) -> bool:
        """Whether more would go if no reader was sent a snapshot. *Cost*: none without such a reader; else a LIST."""
        rest = {name: hold for name, hold in content.holds.items() if not name.startswith(LOAD_PREFIX)}
        if len(rest) == len(content.holds):
            return False
        newest, claim, now = self._service.durable_header(), self._service.claim, self._service.moment()
        content = replace(content, holds=rest)
        try:
            needs = replace(needs, snapshot=await self._snapshots.expected(_held_snapshots(content, now)))
        except Unavailable:  # a new snapshot is not verified yet; the next look knows
            return False
        borders = borders_of(content, needs, watermark=newest.slot, now=now, bytes_border=bytes_border)
        more = None if borders is None else await find_cut(self._store, claim, newest, borders)
        return (
            more is not None
            and (cut is None or more.last_version > cut.last_version)
            and await self._is_worth_it(more, newest)
        )

    async def _can_do_without(self, through: int, needs: Needs, newest: Header) -> bool:
        """Whether the log can produce its state at its new beginning once everything up to ``through`` has gone.

        What was read when it was found may have rotted since.
        """
        assert needs.snapshot is not None, "without one nothing is cut"
        begins = min(newest.last_version, max(needs.snapshot, needs.stores or 0))
        try:
            await require_state(
                self._store,
                (newest, self._service.claim),
                begins,
                depth=Depth.READ,
                truncated_through=through,
                readings=self._readings,
            )
        except (CorruptData, NotFound) as error:
            self.state.warning = NOT_WHOLE
            hint = "`holdfast log verify` names what is damaged; `holdfast log snapshot` makes another snapshot"
            log.error("retention_waits_for_whole_snapshot", error=error.statement(), hint=hint)
            await self._snapshots.look_at(needs.snapshot, fresh=True)
            return False
        return True

    async def _bytes_border(self, content: Content) -> dict[int, int]:
        sizes = {policy.max_bytes for policy in content.policies.values()} - {None}
        return {size: await slot_of_bytes(self._store, size) for size in sizes if size is not None}

    async def _needs(self, content: Content, oldest_snapshot: int | None, jobs: list[JobHold]) -> Needs:
        options = self._options
        return Needs(
            snapshot=oldest_snapshot,
            min_age_ms=options.min_age_seconds * 1000.0,
            segments=None if options.segments_through is None else await options.segments_through(),
            stores=await self._stores_from(content),
            jobs=jobs,
        )

    async def _jobs_that_hold(self) -> list[JobHold]:
        """The unfinished jobs, from the lowest version on. Raises: Unavailable while the view is behind."""
        read = self._options.job_holds
        return [] if read is None else sorted(await read(self._service.local_version()), key=lambda each: each.version)

    async def _shown(self, hold: JobHold) -> HoldState:
        before = self.state.jobs.get(hold.job)
        if before is not None and before.from_version == hold.version:
            return before
        newest = self._service.durable_header()
        slot = await slot_through(self._store, self._service.claim, newest, hold.version)
        header = None if slot is None else await find_header(self._store, slot)
        begun_ms = (newest if header is None else header).time_ms
        return HoldState(hold.version, begun_ms + hold.seconds * 1000)

    async def plan(self, change: Change) -> RetentionPlan:
        """What would be removed now if this change of the policies was made. It changes nothing.

        Cost: as a look, and a LIST for each 1,000 objects that would go. Raises: as the change does; Unavailable, also
        while a new snapshot is not verified; CorruptData.
        """
        content = change(Content.of(await self.generations.newest()))
        newest, claim, now = self._service.durable_header(), self._service.claim, self._service.moment()
        expected = await self._snapshots.expected(_held_snapshots(content, now))
        needs = await self._needs(content, expected, await self._jobs_that_hold())
        border = await self._bytes_border(content)

        async def cut_at(watermark: Slot) -> Header | None:
            borders = borders_of(content, needs, watermark=watermark, now=now, bytes_border=border)
            return None if borders is None else await find_cut(self._store, claim, newest, borders)

        watermark, cut, through = newest.slot, await cut_at(newest.slot), newest.truncated_through
        if cut is None or cut.last_version <= through:
            return RetentionPlan(0, 0, 0, through, warning=_warning(content, needs))
        if not await self._is_worth_it(cut, newest):
            return RetentionPlan(0, 0, 0, through, warning=FEW_SLOTS)
        if newest.kind is Kind.CLAIM:  # this leader's first batch moves the watermark far enough for another truncation
            more = await cut_at(jump(newest.slot))
            if more is not None and cut.slot - more.slot >= self._options.slots_min:
                watermark, cut = jump(newest.slot), more
        end = await self._newest_truncated(newest)
        waste = await freed(self._store, cut.slot, end, watermark, objects_max=PLANNED_OBJECTS_MAX)
        return RetentionPlan(cut.last_version, waste.objects, waste.bytes, through, waste.is_whole)

    async def _is_worth_it(self, cut: Header, newest: Header) -> bool:
        if cut.last_version <= newest.truncated_through:
            return False
        before = await self._newest_truncated(newest)
        return (FIRST_SLOT if before is None else before) - cut.slot >= self._options.slots_min

    async def _newest_truncated(self, newest: Header) -> Slot | None:
        through = newest.truncated_through
        return await slot_through(self._store, self._service.claim, newest, through) if through else None

    async def _oldest(self, newest: Header) -> Header:
        """The oldest object that is not truncated."""
        before = await self._newest_truncated(newest)
        header = await find_header(self._store, FIRST_SLOT if before is None else before - 1)
        return newest if header is None else header

    def _warn_of_held_back(self, content: Content) -> None:
        """A policy that names a version does not move by itself: somebody may have forgotten it."""
        boot_ms = self._clock().boot_ms
        if boot_ms - self._held_back_ms < HELD_BACK_AGAIN_MS:
            return
        for name, part in self.state.kept.items():
            is_fixed = content.policies[name].keep_from_version is not None
            if is_fixed and part.seconds > self._options.warn_after_seconds:
                self._held_back_ms = boot_ms
                hint = "move it, or remove it with `holdfast retention rm`"
                log.warning("policy_holds_back", policy=name, seconds=round(part.seconds), bytes=part.bytes, hint=hint)

    async def _permit(self, computed_from: Content, through: int) -> bool:
        """Create the generation that permits the truncation. False: the policies have changed meanwhile."""

        def permit(now: Content) -> Content:
            if replace(now, truncate_through=0) != replace(computed_from, truncate_through=0):
                raise _Changed
            return truncate_to(through)(now)

        try:
            self.state.generation = await self.generations.change(permit, self._author)
        except _Changed:
            self.look_now()
            return False
        return True

    async def _stores_from(self, content: Content) -> int | None:
        if self._service.claim.stores_mode is not StoresMode.LOG:
            return None
        stores_from = self._options.stores_from
        now = self._service.moment()
        checkpoints = [each.checkpoint for each in content.holds.values() if each.holds(now)]
        return NOTHING if stores_from is None else await stores_from([each for each in checkpoints if each is not None])

    def _warn(self, content: Content, needs: Needs) -> None:
        self.state.warning = _warning(content, needs)
        boot_ms = self._clock().boot_ms
        if self.state.warning == NO_SNAPSHOT and boot_ms - self._warned_ms >= WARN_AGAIN_MS:
            self._warned_ms = boot_ms
            log.warning("retention_waits_for_snapshot", hint="run `holdfast log snapshot`")

    async def _sweep(self) -> None:
        """Delete what the durable log says was truncated. Only a released header counts."""
        newest = self._service.durable_header()
        through, boot_ms = newest.truncated_through, self._clock().boot_ms
        if not through or (through <= self._swept_through and boot_ms - self._swept_ms < SWEEP_AGAIN_MS):
            return
        slot = await slot_through(self._store, self._service.claim, newest, through)
        old = None if slot is None else await self._newest_old(newest)
        if slot is not None and old is not None:
            await sweep(
                self._store,
                Slot(max(slot, old)),
                lambda: self._service.durable_header().slot,
                per_second=self._options.deletes_per_second,
                swept=self.state.swept,
            )
        self._swept_through, self._swept_ms = through, boot_ms

    async def _newest_old(self, newest: Header) -> int | None:
        """The slot of the newest object that is older than the minimum; None where none is left.

        Batches without transactions have the version of the one before them. They may be young where that one is old,
        and go with a later sweep.
        """
        min_age_ms = self._options.min_age_seconds * 1000.0
        if not min_age_ms:
            return 0
        border = Border.of_age(self._service.moment(), min_age_ms)
        cut = await find_cut(self._store, self._service.claim, newest, [border])
        return None if cut is None else cut.slot
