"""The scrub of foundations: a leader reads every snapshot and checkpoint again from time to time, and says how it went.

A pass reads each of them once, the newest first. It takes a day, or ``days`` where that is less, and no more than
``bytes_per_second``. What retention reads of snapshots counts as well. The results go into the log's store, where a
start and ``holdfast doctor`` find them (``readings``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from holdfast.commit.format.batch import Header
from holdfast.commit.leadership.takeover import now
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.verify import FOUNDATIONS, OBJECT_BYTES_MIN, DamageLog
from holdfast.errors import Code, CorruptData, HoldfastError, NotFound
from holdfast.foundations.families import CHECKPOINTS, SNAPSHOTS
from holdfast.foundations.readings import (
    FoundationReport,
    FoundationsRecord,
    Reading,
    Readings,
    newest_record,
    require_end,
    write_record,
)
from holdfast.foundations.state import Depth, require_state
from holdfast.objects.port import ObjectStore

DAY_SECONDS: Final = 86_400.0
TICK_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 600.0
RECORD_SECONDS: Final = 3_600.0

log = structlog.get_logger("holdfast.foundations")


class FoundationScrub:
    """The scrub of one leadership. ``run`` ends only by cancellation."""

    def __init__(
        self,
        store: ObjectStore,
        claim: Header,
        durable_header: Callable[[], Header],
        damage: DamageLog,
        readings: Readings,
        *,
        days: float | None,
        bytes_per_second: int,
        seconds: Callable[[], float] = lambda: now().boot_ms / 1000.0,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chain_passes: Callable[[], int] = lambda: 0,
    ) -> None:
        """``days``: None reads nothing again; what others read is reported all the same. ``chain_passes``: how often
        all objects of the log were read in this leadership; from then on what earlier leaders met does not count."""
        self._store = store
        self._claim = claim
        self._durable_header = durable_header
        self._damage = damage
        self._readings = readings
        self._pass_seconds = None if days is None else min(days, 1.0) * DAY_SECONDS
        self._bytes_per_second = bytes_per_second
        self._seconds = seconds
        self._pause = pause
        self._chain_passes = chain_passes
        self._recorded: FoundationsRecord | None = None
        self._problem: str | None = None
        self._written: tuple[list[Reading], str | None] = [], None
        self._written_s = -RECORD_SECONDS
        self._read_s: dict[str, float] = {}
        self._looked = False
        self._lacks: FoundationsRecord | None = None
        self._lost: str | None = None
        self.passes = 0
        readings.noted = self._noted

    def report(self) -> FoundationReport:
        """The newest result, also that of an earlier leader. Cost: O(readings)."""
        readings = self._readings.all()
        if not readings and self._recorded is not None:
            readings = self._recorded.readings
        report = FoundationReport.of(readings, self._met())
        return report if self._problem is None else FoundationReport(report.name, report.read_ms, self._problem)

    def _met(self) -> str | None:
        """The newest damage in the objects of the log, also what earlier leaders met."""
        recorded = self._recorded
        if recorded is None or self._chain_passes():
            return self._damage.newest_in_chain
        return self._damage.newest_in_chain or recorded.damage

    async def run(self) -> None:
        """Look, read again what is due, write down what was found. Errors of the store are tried again."""
        looked_s = -LOOK_SECONDS
        began = False
        while True:
            try:
                if self._seconds() - looked_s >= LOOK_SECONDS:
                    looked_s = self._seconds()
                    await self.look()
                    if not began:
                        began = True
                        self._tell()
                await self._read_what_is_due()
                await self._write()
            except HoldfastError as error:
                log.warning("foundation_scrub_waits", error=str(error))
            await self._pause(TICK_SECONDS)

    async def look(self) -> None:
        """Names and sizes: is there what the state needs? Raises: Unavailable."""
        if not self._looked:
            self._looked = True
            try:
                record = await newest_record(self._store)
            except CorruptData as error:
                self._damage.note(FOUNDATIONS, error)
            else:
                if record is not None and (await self._lineage()).holds(record.log_id, 0):
                    self._recorded = record
        newest = self._durable_header()
        frontier = newest, self._claim
        try:
            if self._lacks is None:
                await require_end(self._store, frontier)
        except CorruptData as error:
            self._lacks = self._recorded
            self._lost = error.statement()
            self._damage.note(FOUNDATIONS, error)
        try:
            await require_state(self._store, frontier, newest.last_version, depth=Depth.LISTED)
        except (CorruptData, NotFound) as error:
            self._problem = error.statement()
            self._damage.note(FOUNDATIONS, CorruptData(error.message, code=Code.CORRUPT_LOG, facts=error.fields))
        else:
            self._problem = self._lost

    def _tell(self) -> None:
        """Say at a start what is known."""
        report = self.report()
        read_ms = report.read_ms
        if report.problem is not None:
            hint = "`holdfast log verify` says what is damaged and whether the log can produce its state"
            log.error("foundation_is_damaged", foundation=report.name, error=report.problem, hint=hint)
        elif report.name is not None:
            log.info("foundation_is_whole", foundation=report.name, read_ms=read_ms)

    async def _lineage(self) -> Lineage:
        return await lineage_of(self._store, self._claim)

    async def _read_what_is_due(self) -> None:
        if self._pass_seconds is None:
            return
        lineage = await self._lineage()
        due = await self._readings.read_family(SNAPSHOTS, self._store, lineage, self._is_due, self._paced)
        due += await self._readings.read_family(CHECKPOINTS, self._store, lineage, self._is_due, self._paced)
        self.passes += due > 0

    async def _paced(self, _: str, data: bytes) -> None:
        await self._pause(max(len(data), OBJECT_BYTES_MIN) / self._bytes_per_second)

    def _is_due(self, name: str) -> bool:
        """Whether a pass has gone by since this was read. What is new was read by retention, or is read at once."""
        read_s = self._read_s.get(name)
        assert self._pass_seconds is not None, "it is asked by a scrub that reads"
        return read_s is None or self._seconds() - read_s >= self._pass_seconds

    def _noted(self, reading: Reading) -> None:
        self._read_s[reading.name] = self._seconds()
        if reading.flaw is not None:
            self._damage.note(FOUNDATIONS, _damage_of(reading.name, reading.flaw))

    async def _write(self) -> None:
        """Write down what changed at once, and that something was read again once an hour. Raises: Unavailable."""
        report = self._readings.all(), self._met()
        if _results(report) == _results(self._written) and (
            report == self._written or self._seconds() - self._written_s < RECORD_SECONDS
        ):
            return
        await write_record(self._store, self._durable_header(), *report, lacks=self._lacks)
        self._written, self._written_s = report, self._seconds()


def _results(found: tuple[list[Reading], str | None]) -> tuple[list[tuple[str, str | None]], str | None]:
    """What was found, whenever it was read."""
    readings, damage = found
    return [(each.name, each.flaw) for each in readings], damage


def _damage_of(name: str, problem: str) -> CorruptData:
    hint = (
        "`holdfast log verify` says whether the log can produce its state without it; `holdfast log snapshot` makes one"
    )
    return CorruptData(f"{name} is damaged: {problem}", code=Code.CORRUPT_LOG, hint=hint)
