"""What one process has read of foundations, and when: so that a report is cheap, and a truncation reads nothing twice.

A reading is *fresh* for as long as reading those bytes takes at the rate of the scrub. So what relies on a fresh one
reads small foundations each time, and large ones no faster than the scrub would.

The newest readings are kept in the log's store: what a start and ``holdfast doctor`` report.

| object | content |
|---|---|
| ``meta/readings/{2^64-1 - number:020d}`` | ``FoundationsRecord`` as JSON; the highest number counts |

Only a leader writes it. It says what was true when it was written: a report, and the end that the log had then.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from holdfast.commit.format.batch import FIRST_SLOT, Header
from holdfast.commit.leadership.takeover import now
from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.reading.reader import LeadershipWalk
from holdfast.errors import Code, CorruptData, NotFound, Unavailable
from holdfast.foundations.families import SNAPSHOTS, Family, Flaw, M
from holdfast.objects.port import Created, ObjectStore
from holdfast.sealed import decode_sealed, encode_sealed
from holdfast.values import VERSION_MAX

BYTES_PER_SECOND: Final = 4 << 20
READINGS_MAX: Final = 1_000
PREFIX: Final = "meta/readings/"
OLDER_MAX: Final = 100


class Reading(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A foundation of which every part was read at ``read_ms`` (wall clock).

    ``flaw``: what is wrong with it, None for a whole one.
    """

    noun: str
    version: int
    bytes: int
    read_ms: int
    flaw: str | None = None

    @property
    def name(self) -> str:
        """The foundation for people."""
        return f"{self.noun} {self.version}"


class Readings:
    """The newest reading of each foundation of one log."""

    def __init__(self, bytes_per_second: int = BYTES_PER_SECOND, *, boot_ms: Callable[[], float] | None = None) -> None:
        """``boot_ms``: the clock by which a reading ages."""
        self._bytes_per_second = bytes_per_second
        self._boot_ms = boot_ms or (lambda: now().boot_ms)
        self._read: dict[tuple[str, int], tuple[Reading, Flaw | None, float]] = {}
        self.noted: Callable[[Reading], None] = lambda _: None
        """Called after each reading."""

    async def read(
        self,
        family: Family[M],
        store: ObjectStore,
        manifest: M,
        each: Callable[[str, bytes], Awaitable[None]] | None = None,
    ) -> Flaw | None:
        """Read every part now. Returns the first flaw. Raises: Unavailable, what ``each`` raises."""
        flaw = await family.read_parts(store, manifest, each)
        self._note(family, manifest.version, sum(size for _, size, _ in family.parts_of(manifest)), flaw)
        return flaw

    async def flaw_of(self, family: Family[M], store: ObjectStore, manifest: M, *, fresh: bool) -> Flaw | None:
        """The flaw of a foundation, by the last reading if there is one; with ``fresh`` only by a fresh one.

        A fresh reading shows that its parts were there. That they still are costs a LIST. Raises: Unavailable.
        """
        entry = self._read.get((family.noun, manifest.version))
        if entry is None:
            return await self.read(family, store, manifest)
        reading, flaw, read_ms = entry
        if not fresh:
            return flaw
        if flaw is not None or self._boot_ms() - read_ms > reading.bytes * 1000.0 / self._bytes_per_second:
            return await self.read(family, store, manifest)
        return await family.look_at_parts(store, manifest)

    async def read_family(
        self,
        family: Family[M],
        store: ObjectStore,
        lineage: Lineage,
        is_due: Callable[[str], bool] = lambda _: True,
        each: Callable[[str, bytes], Awaitable[None]] | None = None,
    ) -> int:
        """Read the members of a family that are due, the newest first, and return how many these were.

        Those that went meanwhile are not damage. Raises: Unavailable, what ``each`` raises.
        """
        manifests, unreadable = await family.between(store, lineage, 0, VERSION_MAX)
        self.forget_others(family, [one.version for one in manifests] + [version for version, _ in unreadable])
        for version, flaw in unreadable:
            if is_due(flaw.name):
                self.note_unreadable(family, version, flaw)
        due = [one for one in reversed(manifests) if is_due(family.name(one.version))]
        for one in due:
            if await self.read(family, store, one, each) is not None and await family.has_gone(store, one.version):
                self._read.pop((family.noun, one.version), None)
        return len(due)

    def note_unreadable(self, family: Family[M], version: int, flaw: Flaw) -> None:
        """The manifest itself cannot be read."""
        self._note(family, version, 0, flaw)

    def _note(self, family: Family[M], version: int, size: int, flaw: Flaw | None) -> None:
        reading = Reading(
            noun=family.noun,
            version=version,
            bytes=size,
            read_ms=int(time.time() * 1000),
            flaw=None if flaw is None else f"{flaw.problem} ({flaw.key})",
        )
        self._read[family.noun, version] = reading, flaw, self._boot_ms()
        if len(self._read) > READINGS_MAX:
            del self._read[next(iter(self._read))]
        self.noted(reading)

    def forget_others(self, family: Family[M], versions: Collection[int]) -> None:
        """Only these members of a family are there."""
        gone = [name for name in self._read if name[0] == family.noun and name[1] not in versions]
        for name in gone:
            del self._read[name]

    def all(self) -> list[Reading]:
        """Every reading, by family and version."""
        return [self._read[name][0] for name in sorted(self._read)]


class FoundationsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of the foundations of the log ``log_id``. ``damage``: the newest damage that was met in the log.

    ``version`` was durable under the claim of ``epoch`` when this was written: a log that ends before it lost its end.
    """

    format: Literal[1] = 1
    number: int
    log_id: str
    epoch: int
    version: int
    readings: list[Reading]
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class FoundationReport:
    """The newest result. ``name``: the foundation, None for none; ``read_ms``: when it was read (wall clock).

    ``problem``: what is wrong with it, or why the log cannot produce its state; None for nothing.
    """

    name: str | None = None
    read_ms: int | None = None
    problem: str | None = None

    @classmethod
    def of(cls, readings: Iterable[Reading], damage: str | None = None) -> FoundationReport:
        """A damaged one, if there is one; otherwise the newest snapshot, and the damage in the log after it."""
        ordered = sorted(readings, key=lambda each: (each.noun == SNAPSHOTS.noun, each.version), reverse=True)
        flawed = [each for each in ordered if each.flaw is not None]
        for each in (*flawed, *ordered):
            return cls(each.name, each.read_ms, each.flaw or damage)
        return cls(problem=damage)

    def age_seconds(self, now_ms: int) -> float | None:
        """How long ago it was read; 0 where the clocks disagree."""
        return None if self.read_ms is None else max(0, now_ms - self.read_ms) / 1000.0


def key_of(number: int) -> str:
    """The name of a record.

    >>> key_of(1)
    'meta/readings/18446744073709551614'
    """
    return f"{PREFIX}{FIRST_SLOT - number:020d}"


async def newest_record(store: ObjectStore) -> FoundationsRecord | None:
    """The newest record, None before the first one. Cost: a LIST, a GET. Raises: CorruptData, Unavailable."""
    rows = await store.list(PREFIX, limit=1)
    if not rows:
        return None
    try:
        return decode_sealed(await store.read(rows[0].key), FoundationsRecord)
    except NotFound:
        return None  # a newer one has taken its place since the listing
    except msgspec.DecodeError as error:
        raise CorruptData("the record of what was read is damaged", key=rows[0].key, cause=str(error)) from error


async def require_end(store: ObjectStore, frontier: tuple[Header, Header]) -> None:
    """Return unless the log ends before a version that its leader wrote down as durable.

    Nothing in a log shows that its newest object has gone; this shows it once a leader has written a record after it.
    Cost: a LIST, a GET, and two header reads for each leadership since. Raises: CorruptData, Unavailable.
    """
    head, claim = frontier
    try:
        record = await newest_record(store)
    except CorruptData:
        return  # a report that is damaged keeps nobody from a log that is whole; doctor and the scrub name it
    if record is None or record.log_id != claim.log_id.hex():
        return
    end: int | None = head.last_version if claim.epoch <= record.epoch else None
    if end is None:
        async for leadership in LeadershipWalk(store, claim, head):
            if leadership.claim.epoch == record.epoch + 1:
                end = leadership.rolled_back_to
                break
    if end is not None and end < record.version:
        raise CorruptData(
            "the log ends before a version that was durable: its newest objects have gone",
            code=Code.CORRUPT_LOG,
            hint="delete nothing; a mirror may have them: `holdfast log repair SOURCE DEST --from MIRROR`",
            last_version=end,
            durable=record.version,
        )


async def write_record(
    store: ObjectStore,
    durable: Header,
    readings: list[Reading],
    damage: str | None,
    *,
    lacks: FoundationsRecord | None = None,
) -> None:
    """Write the next record and remove the older ones. Another leader may be faster: then its record counts.

    ``durable``: the newest durable object. ``lacks``: an earlier record, whose end the log lacks: that stays known.
    After a crash: the record is there or not, and perhaps older ones. Raises: Unavailable.
    """
    rows = await store.list(PREFIX, limit=OLDER_MAX)
    number = 1 + (FIRST_SLOT - int(rows[0].key.removeprefix(PREFIX)) if rows else 0)
    record = FoundationsRecord(
        number=number,
        log_id=durable.log_id.hex(),
        epoch=durable.epoch if lacks is None else lacks.epoch,
        version=durable.last_version if lacks is None else lacks.version,
        readings=readings,
        damage=damage,
    )
    if isinstance(await store.create(key_of(number), encode_sealed(record)), Created) and rows:
        with suppress(Unavailable):  # without the right to delete the older ones stay
            await store.delete(*(row.key for row in rows))
