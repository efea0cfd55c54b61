"""How many bytes of a log are how old: what a policy of that age would keep."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from holdfast.commit.format.batch import PREFIX, Header, slot_of
from holdfast.commit.format.log_clock import Moment
from holdfast.commit.reading.reader import leaderships_back, newest_where
from holdfast.objects.port import ObjectStore
from holdfast.retention.cut import PAGE, Border


@dataclass(frozen=True, slots=True)
class AgeBand:
    """The objects that are at most ``seconds_max`` old and older than the band before; None: all others."""

    seconds_max: float | None
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Ages:
    """The bands, youngest first. Without ``is_whole`` the oldest objects were not counted."""

    bands: tuple[AgeBand, ...]
    is_whole: bool


async def bytes_by_age(
    store: ObjectStore, claim: Header, newest: Header, *, now: Moment, seconds: Sequence[float], objects_max: int
) -> Ages:
    """The bytes by age. ``seconds`` rise. Dead objects count, because they take space as well.

    ``newest`` is a durable object under ``claim``. *Cost*: two header reads for each leadership that the oldest age
    passes, about log2(objects) of them for each age, and a LIST for each 1,000 objects, of which at most
    ``objects_max`` are counted. Raises: Unavailable, CorruptData.
    """
    borders = await _borders(store, claim, newest, [Border.of_age(now, age * 1000.0) for age in seconds])
    objects, sizes = [0] * (len(borders) + 1), [0] * (len(borders) + 1)
    band, counted, after = 0, 0, ""
    while counted < objects_max:
        rows = await store.list(PREFIX, after=after, limit=PAGE)
        for row in rows:
            slot = slot_of(row.key)
            while slot is not None and band < len(borders) and slot >= borders[band]:
                band += 1
            objects[band] += 1
            sizes[band] += row.size
        counted += len(rows)
        if len(rows) < PAGE:
            return Ages(_bands(seconds, objects, sizes), True)
        after = rows[-1].key
    return Ages(_bands(seconds, objects, sizes), False)


async def _borders(store: ObjectStore, claim: Header, newest: Header, ages: Sequence[Border]) -> list[int]:
    """For each age, youngest first, the slot of the newest data object that is older; 2^64 for none."""
    borders: list[int] = []
    async with aclosing(leaderships_back(store, claim)) as leaderships:
        async for leadership in leaderships:
            while len(borders) < len(ages):
                border = ages[len(borders)]
                if not border.lets_go(leadership.claim):
                    break  # what a leader writes is younger than its claim
                slot, header = await newest_where(store, leadership, newest, border.lets_go)
                if slot is None:
                    break
                borders.append(1 << 64 if header is None else int(slot))
            if leadership.before is None or len(borders) == len(ages):
                break
            newest = leadership.before
    return borders + [1 << 64] * (len(ages) - len(borders))


def _bands(seconds: Sequence[float], objects: Sequence[int], sizes: Sequence[int]) -> tuple[AgeBand, ...]:
    limits: list[float | None] = [*seconds, None]
    return tuple(AgeBand(limit, count, size) for limit, count, size in zip(limits, objects, sizes, strict=True))
