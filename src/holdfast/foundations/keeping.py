"""Remove snapshots that newer ones replace, and parts that no manifest names. Only a log's leader does this.

A snapshot goes manifest first, so a crash in between leaves parts that no manifest names, and those go later. It goes
only after enough newer snapshots were read in full and found whole, the oldest of them right before.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from holdfast.commit.format.batch import Header
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.errors import CorruptData, Unavailable
from holdfast.foundations.families import SNAPSHOTS, Flaw
from holdfast.foundations.readings import Readings
from holdfast.objects.port import ObjectStore, Pages
from holdfast.snapshots.manifest import PREFIX, Manifest, manifest_key, part_key
from holdfast.snapshots.reading import list_versions, read_manifest

KEEP_MIN: Final = 2
RETRY_MS: Final = 1_000


class KeptSnapshots:
    """The snapshots of one log that stay: the newest ``keep``, and older ones that a hold names."""

    def __init__(self, store: ObjectStore, claim: Header, *, keep: int, readings: Readings | None = None) -> None:
        """``claim`` is the newest claim of the log. ``readings`` may be shared with others that read snapshots."""
        assert keep >= KEEP_MIN, "one snapshot alone may be damaged"
        self._store = store
        self._claim = claim
        self._lineage: Lineage | None = None
        self._keep = keep
        self._readings = readings or Readings()
        self._whole: dict[int, Manifest] = {}
        self._damaged: set[int] = set()
        self._looked_at: frozenset[int] = frozenset()

    async def oldest(self, held: Collection[int]) -> int | None:
        """Remove what may go, and return the oldest whole version that stays; None without a whole one.

        ``held``: versions that a hold names. Cost: a LIST, and each snapshot is read once in the life of this object;
        before one is removed, what takes its place is read again. Raises: Unavailable.
        """
        versions = await list_versions(self._store)
        if self._lineage is None and versions:
            self._lineage = await lineage_of(self._store, self._claim)
        self._readings.forget_others(SNAPSHOTS, versions)
        self._damaged &= {*versions}
        self._whole = {version: self._whole[version] for version in versions if version in self._whole}
        for version in versions:
            await self.look_at(version)
        self._looked_at = frozenset(versions)
        for version in self._superseded(held):
            successor = min(each for each in self._whole if each > version)
            await self.look_at(successor, fresh=True)  # it may have rotted since it was read first
            if successor not in self._whole:
                break
            await self._remove(self._whole.pop(version))
        return min(self._whole, default=None)

    async def expected(self, held: Collection[int]) -> int | None:
        """What ``oldest`` would return, without removing anything.

        Cost: a LIST. Raises: Unavailable, also while a snapshot is newer than the last look and so is not verified.
        """
        versions = frozenset(await list_versions(self._store))
        if versions - self._looked_at:
            raise Unavailable("a new snapshot of the log is not verified yet", retry_after_ms=RETRY_MS)
        return min((self._whole.keys() & versions).difference(self._superseded(held)), default=None)

    async def has_news(self) -> bool:
        """Whether a snapshot was made since the last look. Cost: a LIST. Raises: Unavailable."""
        return bool(frozenset(await list_versions(self._store)) - self._looked_at)

    def _superseded(self, held: Collection[int]) -> list[int]:
        """The snapshots that newer ones replace."""
        return [version for version in sorted(self._whole)[: -self._keep] if version not in held]

    async def look_at(self, version: int, *, fresh: bool = False) -> None:
        """Find out whether a snapshot is whole; ``fresh``: again, as something showed that it may not be any more."""
        if not fresh and (version in self._whole or version in self._damaged):
            return
        self._whole.pop(version, None)
        try:
            manifest = await read_manifest(self._store, version)
        except CorruptData as error:
            flaw = Flaw(SNAPSHOTS.name(version), manifest_key(version), error.message)
            self._readings.note_unreadable(SNAPSHOTS, version, flaw)
            self._damaged.add(version)
            return
        assert self._lineage is not None, "it was found before the first look"
        if manifest is None or not self._lineage.holds(manifest.log_id, manifest.version):
            return
        if await self._readings.flaw_of(SNAPSHOTS, self._store, manifest, fresh=fresh) is None:
            self._whole[version] = manifest
            self._damaged.discard(version)
        else:
            self._damaged.add(version)

    async def _remove(self, manifest: Manifest) -> None:
        await self._store.delete(manifest_key(manifest.version))
        if manifest.files:
            await self._store.delete(*(part_key(manifest.version, part.name) for part in manifest.files))


class StrayParts:
    """Removes parts that no manifest names, once this process has seen them for ``min_age_ms``.

    Object stores do not tell an object's age here, so a part counts as old from the first time that it was listed.
    """

    def __init__(self, store: ObjectStore, *, min_age_ms: float) -> None:
        self._store = store
        self._min_age_ms = min_age_ms
        self._seen_ms: dict[str, float] = {}

    async def sweep(self, now_ms: float) -> int:
        """Look once. Returns how many parts were removed. Raises: Unavailable."""
        names: set[str] = set()
        rows = [row async for page in Pages(self._store, PREFIX) for row in page]
        listed = [row.key for row in rows if row.key.endswith((".parquet", ".pq"))]
        # The manifests are read after the listing: a manifest that was created since names parts that were listed.
        for version in sorted({int(key.split("/")[1]) for key in listed if key.split("/")[1].isdigit()}):
            try:
                manifest = await read_manifest(self._store, version)
            except CorruptData:
                # Its parts may be what a repair needs.
                names |= {key for key in listed if key.startswith(f"{PREFIX}{version:020d}/")}
                continue
            if manifest is not None:
                names |= {part_key(version, part.name) for part in manifest.files}
        self._seen_ms = {key: self._seen_ms.get(key, now_ms) for key in listed if key not in names}
        old = [key for key, since_ms in self._seen_ms.items() if now_ms - since_ms >= self._min_age_ms]
        for key in old:
            await self._store.delete(key)
            del self._seen_ms[key]
        return len(old)
