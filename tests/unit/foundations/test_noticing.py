"""A rotten snapshot is noticed: by a verification, by the scrub and what it leaves, and before a log is truncated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.copies.test_copies import Source
from tests.unit.copies.test_foundations import flip, parts_of, truncated

from holdfast.commit.format.log_clock import Moment
from holdfast.commit.reading.verify import DamageLog
from holdfast.doctor import Level, check_log
from holdfast.errors import CorruptData, NotFound, Unavailable
from holdfast.foundations.readings import FoundationReport, Readings, newest_record
from holdfast.foundations.scrubbing import FoundationScrub
from holdfast.foundations.state import verify_all
from holdfast.objects.memory import MemoryStore
from holdfast.retention.generations import Generations
from holdfast.retention.policies import Policy, set_policy
from holdfast.retention.truncator import NO_SNAPSHOT, NOT_WHOLE, Truncator, TruncatorOptions
from holdfast.snapshots import list_snapshots, make_snapshot, read_rows
from holdfast.snapshots.manifest import manifest_key
from holdfast.values import Instant


def test_a_verification_names_a_rotten_snapshot_and_says_whether_the_state_is_left() -> None:
    async def main() -> None:
        source, snapshot = await truncated()
        _, state, readings = await verify_all(source.store)
        assert [reading.version for reading in readings] == [snapshot]
        assert state.snapshot is not None
        newer = await make_snapshot(source.store)
        flip(source.store, parts_of(source.store, newer.version)[0])
        with pytest.raises(CorruptData, match=f"without it.*snapshot {newer.version}"):
            await verify_all(source.store)
        flip(source.store, parts_of(source.store, snapshot)[0])
        with pytest.raises(CorruptData, match=f"no whole snapshot.*{snapshot}"):
            await verify_all(source.store)
        for version in (snapshot, newer.version):
            source.objects.delete(manifest_key(version))
        with pytest.raises(NotFound, match="no whole snapshot"):
            await verify_all(source.store)

    asyncio.run(main())


class Scrubbed:
    """The scrub of a log under a clock of its own, which ends after some seconds of it."""

    def __init__(self, source: Source, readings: Readings | None = None) -> None:
        self.seconds = 0.0
        self.readings = readings or Readings(boot_ms=lambda: self.seconds * 1000.0)
        self.damage = DamageLog()
        head, claim = source.log.head, source.log.claim
        self.scrub = FoundationScrub(
            source.store, claim, lambda: head, self.damage, self.readings, days=7.0, bytes_per_second=1 << 20,
            seconds=lambda: self.seconds, pause=self._pause,
        )  # fmt: skip
        self._end = 0.0

    async def _pause(self, seconds: float) -> None:
        self.seconds += seconds
        if self.seconds >= self._end:
            raise asyncio.CancelledError

    async def run(self, seconds: float) -> FoundationReport:
        self._end = self.seconds + seconds
        with pytest.raises(asyncio.CancelledError):
            await self.scrub.run()
        return self.scrub.report()


def test_the_scrub_reads_each_snapshot_once_a_day_and_reports_what_it_found() -> None:
    async def main() -> None:
        source, snapshot = await truncated()
        scrubbed = Scrubbed(source)
        report = await scrubbed.run(3_600.0)
        assert report.name == f"snapshot {snapshot}"
        assert report.problem is None
        passes = scrubbed.scrub.passes
        flip(source.store, parts_of(source.store, snapshot)[0])
        assert (await scrubbed.run(3_600.0)).problem is None, "it is not read again at once"
        report = await scrubbed.run(90_000.0)
        assert report.problem is not None
        assert scrubbed.scrub.passes > passes
        assert scrubbed.damage.newest is not None
        assert f"snapshot {snapshot}" in scrubbed.damage.newest

        record = await newest_record(source.store)
        assert record is not None
        assert FoundationReport.of(record.readings).problem is not None
        assert len(source.objects.list("meta/readings/")) == 1, "older records go"
        after = Scrubbed(source)
        await after.scrub.look()
        assert after.scrub.report().problem == FoundationReport.of(record.readings).problem, (
            "a start reports it without reading"
        )
        findings = [finding async for finding in check_log(source.store)]
        state = next(finding for finding in findings if finding.check == "state")
        assert state.level is Level.ERROR
        assert f"snapshot {snapshot}" in state.seen

    asyncio.run(main())


def test_a_start_and_doctor_see_at_once_that_a_foundation_has_gone() -> None:
    async def main() -> None:
        source, snapshot = await truncated()
        healthy = [finding async for finding in check_log(source.store)]
        assert next(each for each in healthy if each.check == "state").level is Level.OK
        source.objects.delete(parts_of(source.store, snapshot)[0])
        scrubbed = Scrubbed(source)
        await scrubbed.scrub.look()
        assert "no whole snapshot" in str(scrubbed.scrub.report().problem)
        assert scrubbed.damage.newest is not None
        findings = [finding async for finding in check_log(source.store)]
        assert next(each for each in findings if each.check == "state").level is Level.ERROR

    asyncio.run(main())


class Leader:
    """As much of a leader as retention needs. ``truncated`` are the versions that it was asked to truncate through."""

    leader_id = "leader"

    def __init__(self, source: Source) -> None:
        self._source = source
        self.truncated: list[int] = []

    @property
    def claim(self) -> Any:
        return self._source.log.claim

    def durable_header(self) -> Any:
        return self._source.log.head

    def local_version(self) -> int:
        return self._source.log.head.last_version

    def moment(self) -> Moment:
        return Moment(10**12, 10**12, 0, 0, 0, doubted=False)

    async def version(self) -> int:
        return self.local_version()

    async def truncate(self, through: int) -> None:
        self.truncated.append(through)


async def retention_of(source: Source, clock: Callable[[], Instant]) -> tuple[Leader, Truncator]:
    leader = Leader(source)
    options = TruncatorOptions(min_age_seconds=0.0, check_seconds=3_600.0, slots_min=1)
    policy = set_policy("p", Policy(max_age_seconds=0.001), head=10**15)
    await Generations(source.store, lambda: 1_000).change(policy, "test")
    return leader, Truncator(leader, source.store, options, clock)  # type: ignore[arg-type]


def later() -> Instant:
    return Instant(1e9, 10**12)


@pytest.mark.parametrize("how", ["flipped", "removed"])
def test_a_log_is_not_truncated_on_the_strength_of_a_snapshot_that_rotted_since(how: str) -> None:
    async def main() -> None:
        source = Source(batches=1_200)
        boot_ms = 0.0
        leader, truncator = await retention_of(source, lambda: Instant(boot_ms, 10**12))
        snapshot = await make_snapshot(source.store)
        await truncator._snapshots.oldest(())  # pyright: ignore[reportPrivateUsage]  # it was whole when it was found
        part = parts_of(source.store, snapshot.version)[0]
        flip(source.store, part) if how == "flipped" else source.objects.delete(part)
        boot_ms = 60_000.0
        await truncator.look()
        assert not leader.truncated
        assert truncator.state.warning == NOT_WHOLE
        source.log.grow(2)
        for each in await list_snapshots(source.store):
            source.objects.delete(manifest_key(each.version))
        await make_snapshot(source.store)
        await truncator.look()
        assert leader.truncated, "a whole snapshot is enough"

    asyncio.run(main())


def test_the_warning_of_a_missing_snapshot_ends_with_the_next_answer_after_it_was_made() -> None:
    async def main() -> None:
        source = Source(batches=20)
        _, truncator = await retention_of(source, later)
        await truncator.look()
        running = asyncio.ensure_future(truncator.run())
        assert truncator.state.warning == NO_SNAPSHOT
        await truncator.refresh()
        assert truncator.state.warning == NO_SNAPSHOT
        await make_snapshot(source.store)
        await truncator.refresh()
        assert truncator.state.warning is None, "not only after check_seconds"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_an_older_snapshot_stays_where_the_one_that_replaces_it_has_rotted() -> None:
    async def main() -> None:
        source = Source(batches=20)
        boot_ms = 0.0
        _, truncator = await retention_of(source, lambda: Instant(boot_ms, 10**12))
        versions: list[int] = []
        for _ in range(3):
            versions.append((await make_snapshot(source.store)).version)
            source.log.grow(3)
        await truncator.look()
        flip(source.store, parts_of(source.store, versions[1])[0])
        boot_ms = 60_000.0
        versions.append((await make_snapshot(source.store)).version)
        await truncator.look()
        left = [each.version for each in await list_snapshots(source.store)]
        assert versions[0] in left, "three whole snapshots are kept"

    asyncio.run(main())


def test_a_store_that_fails_does_not_end_the_scrub() -> None:
    class Failing(MemoryStore):
        def __init__(self, source: Source) -> None:
            super().__init__(source.objects)
            self.failures = 3

        async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Any:
            if self.failures:
                self.failures -= 1
                raise Unavailable("no answer")
            return await super().list(prefix, after=after, limit=limit)

    async def main() -> None:
        source, snapshot = await truncated()
        source.store = Failing(source)
        report = await Scrubbed(source).run(3_600.0)
        assert report.name == f"snapshot {snapshot}"

    asyncio.run(main())


def test_a_snapshot_is_made_of_the_newest_whole_one() -> None:
    async def main() -> None:
        source = Source(batches=10)
        older = await make_snapshot(source.store)
        source.log.grow(5)
        newer = await make_snapshot(source.store)
        source.log.grow(5)
        flip(source.store, parts_of(source.store, newer.version)[0])
        made = await make_snapshot(source.store)
        assert [row async for rows in read_rows(source.store, made) for row in rows] == source.log.state(made.version)
        assert older.version < newer.version < made.version

    asyncio.run(main())
