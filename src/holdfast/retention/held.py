"""How many bytes of the log each policy keeps: listed once, and then only what was written or removed since."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.commit.format.batch import FIRST_SLOT, PREFIX, object_name, slot_of
from holdfast.objects.port import ObjectStore
from holdfast.retention.cut import PAGE
from holdfast.values import Slot


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
        held: dict[str, tuple[int, int]] = {}
        for name, cut in cuts.items():
            end = FIRST_SLOT + 1 if cut is None else int(cut)
            before = self._held.get(name)
            if before is None:
                held[name] = end, await self._between(newest, end)
                continue
            old_end, size = before
            # After a sweep nothing is left to cut, so the end moves back over the few objects that stay.
            more, less = await self._between(old_end, end), await self._between(end, old_end)
            held[name] = end, size + came + more - less
        self._newest, self._held = newest, held
        return {name: size for name, (_, size) in held.items()}

    async def _between(self, first: int, end: int) -> int:
        """The bytes of the objects whose slot is in ``[first, end)``."""
        total, after = 0, object_name(Slot(first - 1)) if first else ""
        while first < end:
            rows = await self._store.list(PREFIX, after=after, limit=PAGE)
            for row in rows:
                slot = slot_of(row.key)
                if slot is not None and slot >= end:
                    return total
                total += row.size
            if len(rows) < PAGE:
                break
            after = rows[-1].key
        return total
