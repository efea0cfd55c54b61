"""How many bytes of a log are how old: what a policy of that age would keep. And how many each policy keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.commit.format.batch import FIRST_SLOT, PREFIX, Header, object_name, slot_of
from holdfast.commit.format.log_clock import Moment
from holdfast.commit.reading.reader import LeadershipWalk, newest_where
from holdfast.objects.port import ObjectStore, Pages
from holdfast.retention.cut import Border
from holdfast.values import Slot


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
    band = 0
    async for rows in Pages(store, PREFIX):
        for row in rows:
            slot = slot_of(row.key)
            while slot is not None and band < len(borders) and slot >= borders[band]:
                band += 1
            objects[band] += 1
            sizes[band] += row.size
        if sum(objects) >= objects_max and len(rows) == Pages.size:
            return Ages(_bands(seconds, objects, sizes), False)
    return Ages(_bands(seconds, objects, sizes), True)


async def _borders(store: ObjectStore, claim: Header, newest: Header, ages: Sequence[Border]) -> list[int]:
    """For each age, youngest first, the slot of the newest data object that is older; 2^64 for none."""
    borders: list[int] = []
    async for leadership in LeadershipWalk(store, claim, newest):
        while len(borders) < len(ages):
            border = ages[len(borders)]
            if not border.lets_go(leadership.claim):
                break  # what a leader writes is younger than its claim
            slot, header = await newest_where(store, leadership, border.lets_go)
            if slot is None:
                break
            borders.append(1 << 64 if header is None else int(slot))
        if len(borders) == len(ages):
            break
    return borders + [1 << 64] * (len(ages) - len(borders))


def _bands(seconds: Sequence[float], objects: Sequence[int], sizes: Sequence[int]) -> tuple[AgeBand, ...]:
    limits: list[float | None] = [*seconds, None]
    return tuple(AgeBand(limit, count, size) for limit, count, size in zip(limits, objects, sizes, strict=True))


class HeldBytes:
    """The bytes from the newest object back to the cut of each policy. Dead objects count: they take space as well."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._newest: int | None = None
        self._held: dict[str, tuple[int, int]] = {}

    async def look(self, newest: Slot, cuts: Mapping[str, Slot | None]) -> dict[str, int]:
        """The bytes that each policy keeps; its cut is the slot before the oldest object that it keeps, None where it
        keeps all that exists.

        Cost: at first a LIST for each 1,000 objects that are kept, then one for each 1,000 that came or went. Raises:
        Unavailable; then the next look goes on from the one before.
        """
        came = 0 if self._newest is None else await self._between(newest, self._newest)
        sizes: dict[str, tuple[int, int]] = {}
        for name, cut in cuts.items():
            end = FIRST_SLOT + 1 if cut is None else int(cut)
            before = self._held.get(name)
            if before is None:
                sizes[name] = end, await self._between(newest, end)
                continue
            old_end, size = before
            # After a sweep nothing is left to cut, so the end moves back over the few objects that stay.
            more, less = await self._between(old_end, end), await self._between(end, old_end)
            sizes[name] = end, size + came + more - less
        self._newest, self._held = newest, sizes
        return {name: size for name, (_, size) in sizes.items()}

    async def _between(self, first: int, end: int) -> int:
        """The bytes of the objects whose slot is in ``[first, end)``."""
        total = 0
        if first >= end:
            return total
        async for rows in Pages(self._store, PREFIX, after=object_name(Slot(first - 1)) if first else ""):
            for row in rows:
                slot = slot_of(row.key)
                if slot is not None and slot >= end:
                    return total
                total += row.size
        return total
