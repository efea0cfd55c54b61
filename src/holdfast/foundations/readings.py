"""What one process has read of foundations, and when: so that a report is cheap, and a truncation reads nothing twice.

A reading is *fresh* for as long as reading those bytes takes at the rate of the scrub. So what relies on a fresh one
reads small foundations each time, and large ones no faster than the scrub would.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import msgspec

from holdfast.commit.leadership.takeover import now
from holdfast.foundations.families import Family, Flaw, M
from holdfast.objects.port import ObjectStore

BYTES_PER_SECOND: Final = 4 << 20
READINGS_MAX: Final = 1_000


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
        known = self._read.get((family.noun, manifest.version))
        if known is None:
            return await self.read(family, store, manifest)
        reading, flaw, read_ms = known
        if not fresh:
            return flaw
        if flaw is not None or self._boot_ms() - read_ms > reading.bytes * 1000.0 / self._bytes_per_second:
            return await self.read(family, store, manifest)
        return await family.look_at_parts(store, manifest)

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

    def forget(self, family: Family[M], version: int) -> None:
        """It was removed while it was read."""
        self._read.pop((family.noun, version), None)

    def all(self) -> list[Reading]:
        """Every reading, by family and version."""
        return [self._read[name][0] for name in sorted(self._read)]
