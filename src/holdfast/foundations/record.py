"""The newest readings of a log's foundations, kept in the log's store: what a start and ``holdfast doctor`` report.

| object | content |
|---|---|
| ``meta/readings/{2^64-1 - number:020d}`` | ``FoundationsRecord`` as JSON; the highest number counts |

Only a leader writes it. It says what was true when it was written: a report, and the end that the log had then.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from holdfast.commit.format.batch import FIRST_SLOT, Header
from holdfast.commit.reading.reader import leaderships_back
from holdfast.errors import Code, CorruptData, NotFound, Unavailable
from holdfast.foundations.families import SNAPSHOTS
from holdfast.foundations.readings import Reading
from holdfast.objects.port import Created, ObjectStore
from holdfast.sealed import decode_sealed, encode_sealed

PREFIX: Final = "meta/readings/"
OLDER_MAX: Final = 100


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
        known = sorted(readings, key=lambda each: (each.noun == SNAPSHOTS.noun, each.version), reverse=True)
        flawed = [each for each in known if each.flaw is not None]
        for each in (*flawed, *known):
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
        async with aclosing(leaderships_back(store, claim)) as leaderships:
            async for leadership in leaderships:
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
