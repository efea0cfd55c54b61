"""Damage in the log: reading every object again in the background, and remembering what is damaged.

A pass reads each live object once and checks header, checksums and the encoding of the body. It begins at a random
slot, so that a leader that restarts often reads all parts equally. It is spread over ``days``, at most
``bytes_per_second``; a small object counts as ``OBJECT_BYTES_MIN``. Objects that retention removed are not damage.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from holdfast.commit.format.batch import Header, Kind, decode_header, jump, object_name, read_body_table
from holdfast.commit.format.chain import broken
from holdfast.commit.reading.reader import LeadershipWalk, check_truncated
from holdfast.errors import CorruptData, HoldfastError, NotFound
from holdfast.objects.port import ObjectReader
from holdfast.values import Slot

PLACES_MAX: Final = 1_000
FOUNDATIONS: Final = "foundations"
HINT: Final = "do not delete anything; `holdfast log verify` names every damaged object; restore them from a copy"


class DamageLog:
    """The damage that one leadership has met. ``newest`` is the newest text, None while there is none."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        """How often, by what met it: stream, status, view, scrub or foundations."""
        self.newest: str | None = None
        self.newest_in_chain: str | None = None
        """The newest that is not in a snapshot or checkpoint."""
        self._places: dict[str, None] = {}

    def note(self, met_by: str, error: CorruptData) -> None:
        """``met_by`` met damage. Call it once for each time."""
        self.times[met_by] += 1
        text = self.newest = str(error)
        if met_by != FOUNDATIONS:
            self.newest_in_chain = text
        if text in self._places:
            return
        if len(self._places) < PLACES_MAX:
            self._places[text] = None
        log.error("log_damaged", met_by=met_by, code=str(error.code), error=text, hint=HINT)

    @property
    def places(self) -> int:
        """How many damaged places are known, up to ``PLACES_MAX``."""
        return len(self._places)


OBJECT_BYTES_MIN: Final = 64 << 10
"""What an object costs at least of the bytes per second: a request costs as much as this many bytes."""
RETRY_SECONDS: Final = 30.0
DAY_SECONDS: Final = 86_400.0
MONTH_DAYS: Final = 30

log = structlog.get_logger("holdfast.commit.reading.verify")


def requests_per_month(days: float, bytes_per_second: int) -> tuple[float, int]:
    """Requests in 30 days: for each object of the log, and at most, whatever the log's size."""
    return MONTH_DAYS / days, int(MONTH_DAYS * DAY_SECONDS * bytes_per_second / OBJECT_BYTES_MIN)


@dataclass(frozen=True, slots=True)
class ScrubPlan:
    """The live slots of a log, as stretches from their oldest slot down to their newest, oldest stretch first."""

    stretches: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, leaderships: Sequence[tuple[Slot, Slot]]) -> ScrubPlan:
        """``leaderships``: claim and newest slot of each, newest leadership first."""
        stretches: list[tuple[int, int]] = []
        for claim, newest in reversed(leaderships):
            stretches.append((claim, claim))
            if newest < claim:
                stretches.append((jump(claim), newest))
        return cls(tuple(stretches))

    def __len__(self) -> int:
        return sum(oldest - newest + 1 for oldest, newest in self.stretches)

    def slots(self, start: float) -> Iterator[Slot]:
        """Every slot once, beginning at the fraction ``start`` of all and going round."""
        skipped = int(len(self) * start)
        for first, stop in ((skipped, len(self)), (0, skipped)):
            before = 0
            for oldest, newest in self.stretches:
                size = oldest - newest + 1
                for index in range(max(0, first - before), min(size, stop - before)):
                    yield Slot(oldest - index)
                before += size


class Scrub:
    """The scrub of one leadership. ``run`` ends only by cancellation."""

    def __init__(
        self,
        store: ObjectReader,
        claim: Header,
        durable_header: Callable[[], Header],
        damage: DamageLog,
        *,
        days: float,
        bytes_per_second: int,
        start: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        removed: Callable[[Header], Awaitable[Slot | None]] | None = None,
    ) -> None:
        """``start`` draws where a pass begins, from 0 to below 1. ``removed`` finds the newest slot that the log says
        was truncated; without it no missing object of a truncated log is damage."""
        self._store = store
        self._claim = claim
        self._durable_header = durable_header
        self._damage = damage
        self._seconds = days * DAY_SECONDS
        self._bytes_per_second = bytes_per_second
        self._start = start
        self._pause = pause
        self._removed = removed
        self._claims: dict[int, Header] = {}
        self.objects = 0
        self.bytes = 0
        self.passes = 0

    async def run(self) -> None:
        """Pass after pass."""
        while True:
            try:
                plan = await self._plan()
            except CorruptData as error:
                self._damage.note("scrub", error)
                await self._pause(self._seconds)
                continue
            except HoldfastError as error:
                log.warning("scrub_waits", error=str(error))
                await self._pause(RETRY_SECONDS)
                continue
            for slot in plan.slots(self._start()):
                size = await self._look(slot)
                spread = self._seconds / len(plan)
                await self._pause(max(spread, max(size, OBJECT_BYTES_MIN) / self._bytes_per_second))
            self.passes += 1

    async def _plan(self) -> ScrubPlan:
        head = self._durable_header()
        leaderships = [each async for each in LeadershipWalk(self._store, self._claim, head)]
        self._claims = {each.claim.slot: each.claim for each in leaderships}
        check_truncated(leaderships[-1], self._durable_header())
        return ScrubPlan.of([(each.claim.slot, each.newest.slot) for each in leaderships])

    async def _look(self, slot: Slot) -> int:
        data: bytes | None = None
        while data is None:
            try:
                data = await self._store.read(object_name(slot))
            except NotFound:
                if not await self._is_truncated(slot):
                    self._damage.note("scrub", broken("an object has gone", slot))
                return 0
            except HoldfastError as error:
                log.warning("scrub_waits", error=str(error))
                await self._pause(RETRY_SECONDS)
        self.objects += 1
        self.bytes += len(data)
        try:
            header = decode_header(data, slot=slot)
            if header.kind is not Kind.CLAIM:
                read_body_table(data, header)
        except CorruptData as error:
            self._damage.note("scrub", error)
        else:
            if not self._is_of_the_log(header) and not await self._is_truncated(slot):
                self._damage.note("scrub", broken("object is not of the leader that claimed", slot))
        return len(data)

    def _is_of_the_log(self, header: Header) -> bool:
        claim = self._claims.get(header.slot if header.kind is Kind.CLAIM else header.claim)
        if claim is None:
            return False
        return (header.log_id, header.leader_id, header.epoch) == (claim.log_id, claim.leader_id, claim.epoch)

    async def _is_truncated(self, slot: Slot) -> bool:
        """Whether the log says that this slot was truncated; also where that cannot be found out."""
        newest = self._durable_header()
        if not newest.truncated_through:
            return False
        if self._removed is None:
            return True
        try:
            border = await self._removed(newest)
        except HoldfastError as error:
            log.warning("scrub_waits", error=str(error))
            return True
        return border is not None and slot >= border
