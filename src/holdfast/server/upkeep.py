"""The background work of a leader."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from holdfast.commit.clock_watch import ClockWatch
from holdfast.commit.format.transaction import prefix_end
from holdfast.commit.leadership.takeover import now
from holdfast.commit.reading.verify import Scrub
from holdfast.commit.service import CommitService
from holdfast.commit.subscription import OlderHistory
from holdfast.foundations.readings import Readings
from holdfast.foundations.scrubbing import FoundationScrub
from holdfast.retention.cut import slot_through
from holdfast.retention.job_holds import FOLDER, JobHold, holds_of
from holdfast.retention.truncator import NO_SNAPSHOT, Truncator, TruncatorOptions
from holdfast.server.children.log_job import LogJob, seconds_of
from holdfast.server.commit.log_job_routes import LogJobs
from holdfast.server.commit.retention_routes import RetentionHost
from holdfast.server.health import StoreWatch
from holdfast.server.metrics import ServerMetrics
from holdfast.server.stores.subscribers import wall_ms
from holdfast.server.view.embedded_view import EmbeddedView
from holdfast.settings import Settings
from holdfast.snapshots.schedule import ScheduleOptions, SnapshotSchedule
from holdfast.soundness import report_broken
from holdfast.view.storage import Row
from holdfast.wire.log import LogJobState, RetentionPolicy

UNBOUNDED: Final = 1 << 62

log = structlog.get_logger("holdfast.server")


@dataclass(kw_only=True)
class Upkeep:
    """The background work of a leader: reading the log and its foundations again, truncating it, making snapshots.

    ``oldest_checkpoint``: the version that the stores in the log still need, 0 without any. ``older``: the history in
    segments, None without it.
    """

    settings: Settings
    metrics: ServerMetrics
    retention: RetentionHost
    jobs: LogJobs
    oldest_checkpoint: Callable[[Collection[int]], Awaitable[int]]
    older: OlderHistory | None
    watch: StoreWatch
    view: EmbeddedView

    def __post_init__(self) -> None:
        self._readings = Readings(self.settings.log.scrub_bytes_per_second)
        self._work: list[asyncio.Task[None]] = []
        self._snapshotting: asyncio.Task[None] | None = None

    def lead(self, service: CommitService) -> None:
        """Answer for retention from now on; nothing begins yet."""
        self.retention.truncator = Truncator(service, service.store, self._truncator_options(service), now)

    def begin(self, service: CommitService) -> None:
        """Begin all of it."""
        self._begin_scrub(service)
        self._work += (
            _begin(self._foundation_scrub(service).run(), "scrub_failed"),
            _begin(self.retention.leading().run(), "retention_failed"),
            _begin(ClockWatch(service, service.store, now).run(), "clock_watch_failed"),
        )
        self._begin_snapshots(service)

    async def end(self) -> None:
        """Everything has ended when this returns."""
        if self._snapshotting is not None:  # before the jobs: the schedule begins one
            self._snapshotting.cancel()
            await asyncio.wait({self._snapshotting})
        await self.jobs.end()
        for task in self._work:
            task.cancel()
        if self._work:
            await asyncio.wait(self._work)
        self.retention.truncator = self.metrics.scrub = self.watch.foundations = None

    def _begin_scrub(self, service: CommitService) -> None:
        settings = self.settings.log
        if settings.scrub_days is None:
            return
        scrub = self.metrics.scrub = Scrub(
            service.store,
            service.claim,
            service.durable_header,
            service.damage,
            days=settings.scrub_days,
            bytes_per_second=settings.scrub_bytes_per_second,
            start=random.random,
            removed=lambda newest: slot_through(service.store, service.claim, newest, newest.truncated_through),
        )
        self._work.append(_begin(scrub.run(), "scrub_failed"))

    def _foundation_scrub(self, service: CommitService) -> FoundationScrub:
        settings = self.settings.log
        scrub = self.watch.foundations = FoundationScrub(
            service.store,
            service.claim,
            service.durable_header,
            service.damage,
            self._readings,
            days=settings.scrub_days,
            bytes_per_second=settings.scrub_bytes_per_second,
            chain_passes=lambda: 0 if self.metrics.scrub is None else self.metrics.scrub.passes,
        )
        return scrub

    def _begin_snapshots(self, service: CommitService) -> None:
        settings, log_settings = self.settings.snapshots, self.settings.log
        if log_settings.scheme == "memory":  # no other process reaches it
            return
        retention = self.retention.leading()

        async def make() -> None:
            snapshot.begin({})
            await snapshot.wait()

        def made(state: LogJobState) -> None:
            facts = {name: state.result.get(name) for name in ("version", "rows", "bytes")}
            log.info("snapshot_made", seconds=seconds_of(state), **facts)
            schedule.look_again()
            retention.look_now()

        def verified(state: LogJobState) -> None:
            facts = {name: state.result.get(name) for name in ("objects", "bytes", "transactions")}
            log.info("log_verified", seconds=seconds_of(state), **state.parameters, **facts)

        options = ScheduleOptions(
            every_bytes=UNBOUNDED if settings.every_bytes is None else settings.every_bytes,
            every_seconds=UNBOUNDED if settings.every_seconds is None else settings.every_seconds,
            check_seconds=settings.check_seconds,
            make=make,
            wanted=lambda: retention.state.warning == NO_SNAPSHOT,
        )
        schedule = SnapshotSchedule(service, service.store, options)

        def verify_words(parameters: Mapping[str, int]) -> tuple[str, ...]:
            after, through = str(parameters["after"]), str(parameters["through"])
            return "log", "verify", log_settings.url, "--after", after, "--through", through, *printed

        printed = ("--json", "--progress-lines")
        snapshot = LogJob("snapshot", lambda _: ("log", "snapshot", log_settings.url, *printed), wall_ms, made)
        verify = LogJob("verification", verify_words, wall_ms, verified)
        self.jobs.lead(snapshot, verify)
        self._snapshotting = _begin(schedule.run(), "snapshots_ended")

    async def _job_holds(self, version: int) -> list[JobHold]:
        rows: list[Row] = []
        begin, end = FOLDER.encode(), prefix_end(FOLDER.encode())
        while True:
            page = await self.view.read_page(begin, end, JOBS_PAGE, at=version, room=None, table="jobs")
            rows += page.rows
            if not page.more:
                return holds_of(rows)
            begin = page.rows[-1][0] + b"\0"

    def _truncator_options(self, service: CommitService) -> TruncatorOptions:
        settings, older, limits = self.settings, self.older, self.settings.retention

        async def segments_through() -> int:
            assert older is not None, "only asked where a table is configured"
            return await older.through(service.log_id)

        return TruncatorOptions(
            policy=None
            if limits.max_age_seconds is limits.max_bytes is None
            else RetentionPolicy(max_age_seconds=limits.max_age_seconds, max_bytes=limits.max_bytes),
            snapshots_keep=settings.snapshots.keep,
            min_age_seconds=limits.min_age_seconds,
            check_seconds=limits.check_seconds,
            deletes_per_second=limits.deletes_per_second,
            warn_after_seconds=limits.warn_after_seconds,
            segments_through=None if older is None else segments_through,
            stores_from=self.oldest_checkpoint,
            job_holds=self._job_holds if self.view.enabled else None,
            readings=self._readings,
        )


JOBS_PAGE: Final = 1_000


def _begin(work: Coroutine[object, object, None], event: str) -> asyncio.Task[None]:
    """Begin some work. ``event`` is logged if it fails."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(partial(_tell_ended, event))
    return task


def _tell_ended(event: str, work: asyncio.Task[None]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        if isinstance(error, AssertionError):
            report_broken(work.get_loop(), error)
        log.error(event, exc_info=error)
