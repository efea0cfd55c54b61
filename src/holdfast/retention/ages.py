"""How many bytes of a log are how old: what a policy of that age would keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.commit.format.batch import PREFIX, Header, slot_of
from holdfast.objects.port import ObjectStore
from holdfast.retention.cut import PAGE, Border, find_cut


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
    store: ObjectStore, claim: Header, newest: Header, *, now_ms: int, seconds: Sequence[float], objects_max: int
) -> Ages:
    """The bytes by age. ``seconds`` rise. Dead objects count, because they take space as well.

    ``newest`` is a durable object under ``claim``. *Cost*: about log2(objects) header reads for each age, and a LIST
    for each 1,000 objects, of which at most ``objects_max`` are counted. Raises: Unavailable, CorruptData.
    """
    borders: list[int] = []
    for age in seconds:
        cut = await find_cut(store, claim, newest, [Border(older_than_ms=now_ms - age * 1000)])
        borders.append(1 << 64 if cut is None else int(cut.slot))
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


def _bands(seconds: Sequence[float], objects: Sequence[int], sizes: Sequence[int]) -> tuple[AgeBand, ...]:
    limits: list[float | None] = [*seconds, None]
    return tuple(AgeBand(limit, count, size) for limit, count, size in zip(limits, objects, sizes, strict=True))
